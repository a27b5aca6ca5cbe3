//! The run of a script: one transaction over the keys that the script uses, which are not known
//! before, on a draft ([`drafted`]).
//!
//! **Invariants**
//! - L1: a script may be stopped, or run again, at any time (drafted::R2): because a key is on
//!   flash or moves, because of a conflict, because its client has gone, or by SCRIPT KILL.
//! - L2: a script that was suspended lets others run before it runs again. Its next run begins when
//!   it is shown again.
//! - L3: each of its commands is checked against the rights of its user (permit::U1), and in a
//!   cluster all its keys are in the slot of its declared keys, which this member serves.
//! - L4: all slices of a run see the same tables behind the databases, and have the same rights and
//!   the same program: after SWAPDB, ACL SETUSER or FUNCTION LOAD REPLACE it runs again.

use super::calls::{allowed, error, may_call, refusal, resolve};
use super::flags::check_flags;
use super::outside::Outside;
use super::place::{check_place, place};
use crate::access::{commands as acl, record as audit};
use crate::command::context::{Context, Done, Failure, YIELDS};
use crate::command::drafted::{self, ALONE_MAX, IN_ONE_GO_MAX};
use crate::command::flag;
use crate::command::outcome::{Abandoned, aborted};
use crate::command::permit::Permit;
use crate::command::refusal::{NO_AUTH, Refusal, denial_text};
use crate::command::routing::NotServed;
use crate::command::spec::Request;
use crate::command::store_access::Access;
use crate::command::{GROUP_KEYS, databases as places, pause, run};
use crate::monitor;
use crate::state::access::audit::Outcome as Audited;
use crate::state::conflicts::Conflicts;
use crate::state::db::{DROPPED, Db};
use crate::state::interpreters as scripts;
use crate::state::interpreters::{
    Command, Entry, Interpreter, RESERVED_MIN, RESERVED_ROUND, Running,
};
use crate::state::script::cache::limits;
use crate::state::shared::commands::global;
use crate::tracking::commands as tracking;
use duramen_base::ids::{Level, TabletsVersion};
use duramen_config::{clock, seldom};
use duramen_engine::{Draft, Guard, KeyHash, Session};
use duramen_script::{Answer, Arguments, Event, Flags, Job, Outcome, Program, Script};
use duramen_wire::resp::Protocol;
use std::sync::Arc;
use std::time::{Duration, Instant};

const BUSY: Failure = Failure::Text(
    "BUSY Redis is busy running a script. You can only call SCRIPT KILL or SHUTDOWN NOSAVE.",
);
const TOO_LONG_IN_EXEC: &str = "ERR the scripts of a transaction take too long";
const KILLED: &str = "ERR Script killed by user with SCRIPT KILL.";
const NON_LOCAL: &str = "ERR Script attempted to access a non local key in a cluster node";
const CROSS_SLOT: &str = "ERR Script attempted to access keys that do not hash to the same slot";

/// A script or function, with the facts of the request that runs it.
pub(crate) struct Call<'c> {
    pub(crate) program: &'c Program,
    pub(crate) flags: Flags,
    keys: usize,
    read_only: bool,
}

/// How a run of a script ended.
enum Ended {
    /// The script is committed, or has failed, and the reply is written.
    Done,
    /// The script has run for its slice, and goes on later.
    Later,
    /// The script runs again at once, from the start.
    Again,
    /// The script runs again, from the start, after others have run.
    AgainLater,
    /// The script runs again when the table behind this database exists.
    NeedsTable(u8),
}

/// The text of the error if a script cannot be compiled.
pub(crate) fn compile_error(
    ctx: &mut Context<'_>,
    script: &Arc<Script>,
) -> Result<Option<String>, Failure> {
    let mut machine = machine(ctx)?;
    let error = machine.compile_error(script);
    ctx.thread.scripts.give_back(ctx.shared, machine);
    Ok(error)
}

/// Maximum memory of one script, and of its writes, in bytes (`script-memory`).
pub(crate) fn memory(ctx: &mut Context<'_>) -> usize {
    ctx.thread.config(ctx.shared).scripts.memory_bytes
}

/// Whether a script has run longer than `busy-reply-threshold`.
fn is_busy(ctx: &mut Context<'_>, running: &Running) -> bool {
    let limit = ctx.thread.config(ctx.shared).scripts.busy_time();
    limit.is_some_and(|limit| running.started.elapsed() > limit)
}

pub(crate) fn machine(ctx: &mut Context<'_>) -> Result<Interpreter, Failure> {
    let limits = limits(memory(ctx));
    let machine = ctx.thread.scripts.machine(ctx.shared, limits);
    machine.ok_or(Failure::Text(
        "OOM no memory for another interpreter of scripts",
    ))
}

pub(crate) fn run(
    ctx: &mut Context<'_>,
    access: Access<'_, '_>,
    program: &Program,
    flags: Flags,
    keys: usize,
    read_only: bool,
) -> Done {
    let call = Call {
        program,
        flags,
        keys,
        read_only: read_only || flags.no_writes,
    };
    match access {
        Access::Session(session) => run_by_itself(ctx, session, &call, read_only),
        Access::Guarded(guard) => {
            check_flags(ctx, guard, call.flags, read_only)?;
            run_in_exec(ctx, guard, &call)
        }
        Access::NoStore => Err(Failure::Text("ERR the data are being loaded")),
    }
}

/// The job of a run of the script. Copying very many arguments takes a part of the slice.
fn job(ctx: &Context<'_>, call: &Call<'_>, slice: Duration) -> Box<Job> {
    let texts = ctx.request.args.skip(3);
    let since = (texts.len() > GROUP_KEYS).then(Instant::now);
    Box::new(Job {
        program: call.program.clone(),
        keys: Arguments::of(texts.into_iter().take(call.keys)),
        args: Arguments::of(texts.skip(call.keys).into_iter()),
        resp3: ctx.client.protocol() == Protocol::Resp3,
        slice: since.map_or(slice, |since| slice.saturating_sub(since.elapsed())),
        reply_bytes_max: ctx.reply.bytes_max(),
    })
}

/// As [`begin_run`], for a script that has not run before.
fn begin(
    ctx: &mut Context<'_>,
    call: &Call<'_>,
    slice: Duration,
) -> Result<(Box<Running>, Duration), Failure> {
    let now = Instant::now();
    let mut running = Box::new(Running {
        machine: None,
        event: Event::Slice { memory_bytes: 0 },
        draft: None,
        effects: Default::default(),
        db: ctx.client.db(),
        tables: Default::default(),
        little: true,
        list: None,
        placed: None,
        lacks_memory: false,
        user: None,
        flags: call.flags,
        program: call.program.clone(),
        started: now,
        began: now,
        ran: Duration::ZERO,
        conflicts: Conflicts::default(),
        long: None,
        shown: now,
        machine_bytes: 0,
        job_bytes: 0,
        is_reported: false,
    });
    let left = begin_run(ctx, call, &mut running, slice)?;
    Ok((running, left))
}

/// Begins a run from the script's first command (L1). Returns the rest of its slice.
fn begin_run(
    ctx: &mut Context<'_>,
    call: &Call<'_>,
    running: &mut Running,
    slice: Duration,
) -> Result<Duration, Failure> {
    if running.machine.as_ref().is_some_and(|it| it.is_busy()) {
        end_run(ctx, running); // the next run must see nothing of a stopped script
    }
    let mut machine = match running.machine.take() {
        Some(machine) => machine,
        None => machine(ctx)?,
    };
    running.effects = Default::default();
    running.draft = None;
    (running.began, running.ran) = (Instant::now(), Duration::ZERO);
    running.db = ctx.client.db();
    running.user = ctx.client.login().user().cloned();
    (running.flags, running.program) = (call.flags, call.program.clone());
    let job = job(ctx, call, slice);
    let left = job.slice;
    running.job_bytes = job.bytes();
    running.event = machine.start(job);
    running.machine = Some(machine);
    Ok(left)
}

/// Ends a run that has ended or is dropped.
fn end_run(ctx: &mut Context<'_>, running: &mut Running) {
    running.draft = None;
    running.effects = Default::default();
    (running.machine_bytes, running.job_bytes) = (0, 0);
    if let Some(machine) = running.machine.take() {
        ctx.thread.scripts.give_back(ctx.shared, machine);
    }
}

/// The script of this client, which goes on or begins now, and its slice. Fails with [`YIELDS`] if
/// the script waits for others.
fn running_of(
    ctx: &mut Context<'_>,
    session: &mut Session,
    call: &Call<'_>,
    by_ro: bool,
) -> Result<(Box<Running>, Duration), Failure> {
    let (client, bytes_max) = (ctx.client.id(), memory(ctx));
    let reserved = match ctx.shared.commands.is_reserving(client) {
        true => Some(ctx.thread.scripts.reserved_slice().ok_or(YIELDS)?),
        false => None,
    };
    let scripts = &mut ctx.thread.scripts;
    if scripts.has(client) && reserved.is_none() && !scripts.may_go_on(client, bytes_max) {
        return Err(YIELDS);
    }
    let is_killed = scripts.is_killed(client);
    let lacks_machine = scripts.needs_machine(client) && ctx.shared.scripts().are_many_discarded();
    if lacks_machine && scripts.has(client) && !is_killed {
        return Err(YIELDS); // interpreters::S5
    }
    if let Some(mut running) = scripts.take(client) {
        // A kill is looked at before all that may keep the script from being shown.
        if is_killed {
            give_up(ctx, running);
            return Err(killed_text(call.program).into());
        }
        let mut slice = reserved.unwrap_or(ctx.thread.scripts.slice());
        (running.began, running.shown) = (Instant::now(), Instant::now());
        if running.machine.is_none() {
            match begin_run(ctx, call, &mut running, slice) {
                Ok(left) => slice = left,
                Err(failure) => {
                    give_up(ctx, running);
                    return Err(failure);
                }
            }
        }
        return Ok((running, slice));
    }
    let busy = ctx.thread.config(ctx.shared).scripts.patience();
    match ctx.thread.scripts.entry(client, bytes_max, busy) {
        _ if reserved.is_some() => {}
        Entry::Runs => {}
        Entry::Waits => return Err(YIELDS),
        Entry::Busy => return Err(BUSY),
    }
    if lacks_machine {
        return Err(YIELDS); // interpreters::S5
    }
    if call.flags.declared {
        check_flags(ctx, &session.pin(), call.flags, by_ro)?;
    }
    let slice = reserved.unwrap_or(ctx.thread.scripts.first_slice());
    begin(ctx, call, slice)
}

/// Whether the script must not run now, because another one has reserved the keys that it declares,
/// or because the script stands in line already.
fn stands_in_line(ctx: &mut Context<'_>, session: &mut Session, call: &Call<'_>) -> bool {
    let is_killed = ctx.thread.scripts.is_killed(ctx.client.id());
    if is_killed || !drafted::may_stand_in_line(ctx, !call.read_only) {
        return false;
    }
    if let Some(stands) = drafted::still_stands_in_line(ctx) {
        return stands;
    }
    let guard = session.pin();
    let positions = ctx.request.key_positions();
    let keys: Vec<KeyHash> = positions.map(|at| guard.hash(ctx.arg(at))).collect();
    drop(guard);
    drafted::stands_in_line(ctx, keys.iter().copied())
}

/// Drops the suspended run of a script that stands in line. The script before it in the line
/// changes its keys, so the run would be in vain, and scripts in line must take no memory.
fn drop_run(ctx: &mut Context<'_>) -> Done {
    let client = ctx.client.id();
    if !ctx.thread.scripts.has_run(client) {
        return Ok(());
    }
    let Some(mut running) = ctx.thread.scripts.take(client) else {
        return Ok(());
    };
    end_run(ctx, &mut running);
    running.conflicts.lose(running.ran);
    if let Err(failure) = drafted::check_time(ctx, &running.conflicts) {
        give_up(ctx, running);
        return Err(failure);
    }
    ctx.thread.scripts.suspend(client, running);
    Ok(())
}

/// Drops the script: it does not run any more.
fn give_up(ctx: &mut Context<'_>, mut running: Box<Running>) {
    if let Some(long) = &running.long {
        ctx.shared.scripts().end_long(long);
    }
    end_run(ctx, &mut running);
}

fn run_by_itself(
    ctx: &mut Context<'_>,
    session: &mut Session,
    call: &Call<'_>,
    by_ro: bool,
) -> Done {
    let effects = ctx.client.effects.len();
    if stands_in_line(ctx, session, call) {
        drop_run(ctx)?;
        return Err(YIELDS);
    }
    let client = ctx.client.id();
    let began = Instant::now();
    let (running, slice) = running_of(ctx, session, call, by_ro)?;
    let done = run_to_its_end(ctx, session, call, running, slice, effects);
    if ctx.shared.commands.is_reserving(client) {
        ctx.thread.scripts.ran_reserved(began.elapsed());
    }
    done
}

/// Runs the script until it has ended or is suspended. `effects`: the number of effects before it.
fn run_to_its_end(
    ctx: &mut Context<'_>,
    session: &mut Session,
    call: &Call<'_>,
    mut running: Box<Running>,
    mut slice: Duration,
    effects: usize,
) -> Done {
    let done = loop {
        let ended = {
            let mut guard = match running.lacks_memory {
                true => session.pin_exclusive(),
                false => session.pin(),
            };
            let ended = match pause::has_begun(ctx) {
                true => Ok(Ended::AgainLater), // pause::P1
                false => attempt(ctx, &mut guard, call, &mut running, slice),
            };
            guard.end_draft();
            if let Err(failure) = &ended
                && failure.cold().is_some()
            {
                ctx.client.parking.want_all(guard.pin().take_colds());
            }
            ctx.settle(&mut guard);
            ended
        };
        if !matches!(ended, Ok(Ended::Done)) {
            ctx.client.effects.truncate(effects);
        }
        match ended {
            Ok(Ended::Done) => break Ok(()),
            Ok(Ended::Later) => return suspend(ctx, call, running),
            Ok(Ended::AgainLater) => {
                end_run(ctx, &mut running);
                return suspend(ctx, call, running);
            }
            Ok(Ended::Again) => {}
            Ok(Ended::NeedsTable(db)) => {
                if let Err(failure) = places::table_for(ctx.shared, ctx.client, db) {
                    break Err(failure);
                }
            }
            // There is no memory for locks: alone in the store it needs none, if it only removes.
            Err(failure)
                if failure.is_out_of_memory() && running.little && !running.lacks_memory =>
            {
                running.lacks_memory = true;
            }
            Err(failure) => break Err(failure),
        }
        let scripts = &ctx.thread.scripts;
        slice = match ctx.shared.commands.is_reserving(ctx.client.id()) {
            true => {
                let left = scripts.reserved_slice().unwrap_or_default();
                left.saturating_sub(running.shown.elapsed())
                    .max(RESERVED_MIN)
            }
            false => scripts.slice(),
        };
        match begin_run(ctx, call, &mut running, slice) {
            Ok(left) => slice = left,
            Err(failure) => break Err(failure),
        }
    };
    give_up(ctx, running);
    done
}

/// Suspends the script: others run before it goes on.
fn suspend(ctx: &mut Context<'_>, call: &Call<'_>, mut running: Box<Running>) -> Done {
    let (client, bytes_max) = (ctx.client.id(), memory(ctx));
    let has_run = running.machine.is_some();
    let is_new = has_run && running.ran.is_zero() && !ctx.shared.commands.is_reserving(client);
    running.ran += running.began.elapsed();
    if is_new && !ctx.thread.scripts.has_place(client, bytes_max) {
        // There is no place for it (interpreters::S2), and nothing of it is done.
        give_up(ctx, running);
        ctx.thread.scripts.wait(client);
        return Err(YIELDS);
    }
    if running.long.is_none() {
        let scripts = ctx.shared.scripts();
        let long = scripts.begin_long(call.program, ctx.request.args, running.started);
        running.long = Some(long);
    }
    report(ctx, call, &mut running);
    running.shown = Instant::now();
    ctx.thread.scripts.suspend(client, running);
    Err(YIELDS)
}

/// Logs once that a script takes long.
fn report(ctx: &mut Context<'_>, call: &Call<'_>, running: &mut Running) {
    if !running.is_reported && is_busy(ctx, running) {
        running.is_reported = true;
        seldom!(
            warn,
            client = ctx.client.id(),
            script = call.program.name(),
            ms = running.started.elapsed().as_millis() as u64,
            "a script takes long; SCRIPT KILL ends it (busy-reply-threshold)"
        );
    }
}

/// Notes a run in vain, because keys have changed; returns how the script runs again.
fn conflict(ctx: &mut Context<'_>, running: &mut Running, draft: &Draft) -> Result<Ended, Failure> {
    let keys = draft.keys();
    let keys = keys.iter().map(|(_, hash)| *hash);
    let time = running.ran + running.began.elapsed();
    let at_once = drafted::runs_at_once(ctx, &mut running.conflicts, time, keys)?;
    let is_short = running.long.is_none() && running.shown.elapsed() < RESERVED_ROUND;
    Ok(match at_once && is_short {
        true => Ended::Again,
        false => Ended::AgainLater, // L2
    })
}

/// Runs the script until it ends or is suspended, and commits it.
fn attempt(
    ctx: &mut Context<'_>,
    guard: &mut Guard<'_>,
    call: &Call<'_>,
    running: &mut Running,
    slice: Duration,
) -> Result<Ended, Failure> {
    check_place(ctx, guard, &mut running.placed)?;
    let program = (call.program, call.flags);
    if running.is_outdated(
        ctx.shared.commands.tables(),
        ctx.client.login().user(),
        program,
    ) {
        // The script was suspended, and no longer fits (L4). It fails if that happens for too long.
        drafted::check_time(ctx, &running.conflicts)?;
        running.conflicts.lose(running.ran);
        return Ok(Ended::AgainLater);
    }
    let start = ctx.client.effects.len();
    let earlier = std::mem::take(&mut running.effects);
    ctx.client.effects.append(earlier);
    let draft = match running.draft.take() {
        Some(draft) => draft,
        None => {
            running.list = drafted::list_at_start(ctx, guard);
            Box::new(Draft::new(memory(ctx)))
        }
    };
    guard.begin_draft(draft);
    let driven = drive(ctx, guard, call, running, slice);
    let mut draft = guard.end_draft().unwrap_or_else(|| Box::new(Draft::new(0)));
    match driven? {
        Driven::Suspended => {
            running.draft = Some(draft);
            running.effects = ctx.client.effects.split_off(start);
            Ok(Ended::Later)
        }
        Driven::NeedsTable(db) => Ok(Ended::NeedsTable(db)),
        Driven::Ended(outcome) => {
            if running.long.is_some() {
                tracking::note_reads_again(ctx, &mut draft);
            }
            running.little = draft.rewrites();
            let committed = commit(ctx, guard, &draft, running.list)?;
            if guard.notes().has_replaced() {
                ctx.notify_replaced(guard.notes().take_replaced(), start);
            }
            if !committed {
                return conflict(ctx, running, &draft);
            }
            answer(ctx, &outcome);
            Ok(Ended::Done)
        }
    }
}

/// Writes the reply of a script that has ended.
fn answer(ctx: &mut Context<'_>, outcome: &Outcome) {
    if outcome.reply.first() == Some(&b'-') {
        let text = String::from_utf8_lossy(outcome.reply.get(1..).unwrap_or_default());
        // Error replies of its commands were counted when it ran them.
        ctx.thread.note_error_of_script(ctx.shared, text.trim_end());
        let command = ctx.thread.command(ctx.shared, ctx.request.spec.number);
        command.failed.add(1);
    }
    ctx.reply.append(&outcome.reply);
}

/// Applies the draft if all its keys are as the script has met them. Returns false if they are not.
fn commit(
    ctx: &mut Context<'_>,
    guard: &mut Guard<'_>,
    draft: &Draft,
    list: Option<TabletsVersion>,
) -> Result<bool, Failure> {
    let holds = drafted::commit(ctx, guard, draft, list, &[], |_, _, _| Ok(true))?;
    if holds && !draft.is_empty() {
        let level = draft.changed_tables().fold(ctx.level(), |level, table| {
            level.max(ctx.thread.level_of_table(ctx.shared, table))
        });
        if guard.order().has_position() {
            ctx.client.wait.settle(guard, level.max(Level::Memory));
        }
    }
    Ok(holds)
}

enum Driven {
    Suspended,
    NeedsTable(u8),
    Ended(Outcome),
}

/// Answers the events of the script, until it ends or its slice is over.
fn drive(
    ctx: &mut Context<'_>,
    guard: &mut Guard<'_>,
    call: &Call<'_>,
    running: &mut Running,
    slice: Duration,
) -> Result<Driven, Failure> {
    let Some(mut machine) = running.machine.take() else {
        unreachable!("a run has an interpreter");
    };
    let outside = Outside::enter(ctx, running);
    let none = Event::Slice { memory_bytes: 0 };
    let mut event = std::mem::replace(&mut running.event, none);
    let mut resumed = matches!(event, Event::Slice { .. });
    let driven = loop {
        let answer = match event {
            Event::Done(outcome) => break Ok(Driven::Ended(outcome)),
            Event::Slice { .. } if resumed => {
                resumed = false;
                Answer::Slice(slice)
            }
            Event::Slice { memory_bytes } => {
                running.event = Event::Slice { memory_bytes };
                running.machine_bytes = memory_bytes;
                break Ok(Driven::Suspended);
            }
            Event::Log { level, text } => {
                scripts::log(level, &text);
                Answer::GoOn
            }
            Event::Allowed { args } => Answer::Reply(allowed(ctx, &args)),
            Event::Call { args, resp3 } => match command(ctx, guard, call, &args, resp3) {
                Ok(Called::Replied(reply)) => Answer::Reply(reply),
                Ok(Called::NeedsTable(db)) => break Ok(Driven::NeedsTable(db)),
                Err(failure) => break Err(failure),
            },
        };
        event = machine.resume(answer);
    };
    running.machine = Some(machine);
    running.db = ctx.client.db();
    outside.leave(ctx);
    driven
}

fn killed_text(program: &Program) -> String {
    let chunk = match program {
        Program::Script(_) => "@user_script",
        Program::Function { .. } => "@user_function",
    };
    format!("{KILLED} script: {}, on {chunk}.", program.name())
}

enum Called {
    /// The command has run; this is its reply as RESP.
    Replied(Vec<u8>),
    NeedsTable(u8),
}

/// Runs one command of the script.
fn command(
    ctx: &mut Context<'_>,
    guard: &mut Guard<'_>,
    call: &Call<'_>,
    texts: &Arguments,
    resp3: bool,
) -> Result<Called, Failure> {
    let mut tables = std::mem::take(&mut ctx.thread.scripts.command);
    let called = match tables.requests.push_slices(texts.iter()) {
        true => command_in(ctx, guard, call, &mut tables, resp3),
        false => Ok(Called::Replied(error("ERR the arguments are too long"))),
    };
    tables.requests.clear();
    tables.hashes.clear();
    tables.hashes.shrink_to(GROUP_KEYS);
    ctx.thread.scripts.command = tables;
    called
}

/// Runs the request in `tables`.
fn command_in(
    ctx: &mut Context<'_>,
    guard: &mut Guard<'_>,
    call: &Call<'_>,
    tables: &mut Command,
    resp3: bool,
) -> Result<Called, Failure> {
    let Command { requests, hashes } = tables;
    let args = requests.args(0, &[]);
    let spec = match resolve(ctx.commands, &args) {
        Ok(spec) => spec,
        Err(text) => return Ok(Called::Replied(error(text))),
    };
    if let Some(db) = places::named(spec.names, &args).into_iter().find(|db| {
        ctx.thread
            .exec
            .dbs()
            .is_some_and(|dbs| dbs[usize::from(*db)].is_none())
    }) && ctx.shared.membership().is_none()
    {
        return Ok(Called::NeedsTable(db));
    }
    ctx.table = match ctx.client.db() {
        Db::Number(db) => {
            let dbs = ctx.thread.exec.dbs().copied().unwrap_or_default();
            dbs[usize::from(db)].unwrap_or(DROPPED)
        }
        Db::Table(table) => table,
    };
    let keys = spec.key_positions(&args);
    hashes.extend(keys.map(|at| guard.hash(args.get(at).unwrap_or_default())));
    let request = Request { spec, args, hashes };
    let permit = match admit(ctx, guard, call, &request)? {
        Ok(permit) => permit,
        Err(text) => return Ok(Called::Replied(error(&text))),
    };
    let (table, mut out) = (ctx.table, Vec::new());
    ctx.client.reply_in(if resp3 {
        Protocol::Resp3
    } else {
        Protocol::Resp2
    });
    if ctx.shared.commands.gate() & global::MONITORED != 0 {
        monitor::feed_script(ctx.shared, ctx.client, spec, &args);
    }
    let mut inner = Context {
        request,
        commands: ctx.commands,
        reply: ctx.reply.apart(&mut out, ctx.client.protocol()),
        client: &mut *ctx.client,
        turn: &mut *ctx.turn,
        shared: ctx.shared,
        thread: &mut *ctx.thread,
        table,
        locked: true,
    };
    run::run_in_script(&mut inner, permit, guard)?;
    if spec.has(flag::PUBLISHES) && out.first() == Some(&b':') {
        let receivers = ctx
            .shared
            .pubsub()
            .receivers(args.get(1).unwrap_or_default());
        out = format!(":{receivers}\r\n").into_bytes();
    }
    Ok(Called::Replied(out))
}

/// Checks whether a command may run. `Ok(Err(…))` is the text of the error for the script.
fn admit(
    ctx: &mut Context<'_>,
    guard: &mut Guard<'_>,
    call: &Call<'_>,
    request: &Request<'_>,
) -> Result<Result<Permit, String>, Failure> {
    let (spec, args) = (request.spec, &request.args);
    if spec.is_refused() {
        let Some(reason) = refusal(spec) else {
            return Ok(Err(
                "ERR This Redis command is not allowed from script".to_owned()
            ));
        };
        return Ok(Err(reason));
    }
    if !may_call(spec) {
        return Ok(Err(
            "ERR This Redis command is not allowed from script".to_owned()
        ));
    }
    let permit = match Permit::check(spec, args, ctx.client, ctx.table, ctx.shared) {
        Ok(permit) => permit,
        Err(Refusal::LogIn) => return Ok(Err(NO_AUTH.to_owned())),
        Err(Refusal::Denied(denied)) => {
            acl::note_denied(ctx.shared, ctx.client, spec, args, denied, "lua");
            audit::record(ctx.shared, ctx.client, spec, args, Audited::Denied);
            let user = ctx.client.login().user_name();
            let text = denial_text(denied, user, spec.name);
            let text = text.strip_prefix("NOPERM ").unwrap_or(&text);
            return Ok(Err(format!("NOPERM ACL failure in script: {text}")));
        }
    };
    if call.read_only && spec.has(flag::WRITE | flag::MAY_REPLICATE) {
        let text = "ERR Write commands are not allowed from read-only scripts.";
        return Ok(Err(text.to_owned()));
    }
    let allows_oom = call.flags.declared;
    // After its first write only the commit checks for memory: it refuses all writes, or none.
    let is_first = guard.draft().is_none_or(|draft| draft.is_empty());
    if spec.has(flag::DENYOOM) && !allows_oom && is_first && guard.pin().is_full() {
        let text = "OOM command not allowed when used memory > 'maxmemory'.";
        ctx.shared.figures.refusals().note_if_full("OOM", text);
        return Ok(Err(text.to_owned()));
    }
    if spec.is_audited(ctx.thread.audited()) {
        audit::record(ctx.shared, ctx.client, spec, args, Audited::Allowed);
    }
    match place(ctx, guard, request) {
        Ok(()) => Ok(Ok(permit)),
        // The script, which has had no effect, waits for the owner and runs again.
        Err(not_now @ NotServed::NotNow(_)) => Err(not_now.into()),
        Err(NotServed::Refused(text)) if text.starts_with("CROSSSLOT") => {
            Ok(Err(CROSS_SLOT.into()))
        }
        Err(NotServed::Refused(_)) => Ok(Err(NON_LOCAL.into())),
    }
}

/// Runs the script as a step of EXEC, whose draft the guard has. If the script cannot end, nothing
/// of the EXEC is done.
fn run_in_exec(ctx: &mut Context<'_>, guard: &mut Guard<'_>, call: &Call<'_>) -> Done {
    let took_max = match guard.pin().is_alone() {
        true => ALONE_MAX,
        false => IN_ONE_GO_MAX,
    };
    if ctx.thread.exec.scripts_took() >= took_max {
        return Err(Abandoned::Failed(TOO_LONG_IN_EXEC.into()).into());
    }
    let (started, before) = (clock::thread_time(), ctx.thread.exec.scripts_took());
    let slice = ctx.thread.scripts.first_slice();
    let (mut running, _) = begin(ctx, call, slice)?;
    let ended = loop {
        match drive(ctx, guard, call, &mut running, slice) {
            Ok(Driven::Suspended) if before + clock::thread_time() - started < took_max => {}
            Ok(Driven::Suspended) => break Err(Abandoned::Failed(TOO_LONG_IN_EXEC.into())),
            Ok(Driven::NeedsTable(db)) => break Err(Abandoned::NeedsTable(db)),
            Ok(Driven::Ended(outcome)) => break Ok(outcome),
            Err(failure) => {
                let text = failure.text();
                let failed = || match failure.is_too_long() || failure.is_damaged() {
                    true => Abandoned::Failed(aborted(&text).into()),
                    false => Abandoned::Failed(text.into()),
                };
                break Err(Abandoned::of(&failure).unwrap_or_else(failed));
            }
        }
    };
    end_run(ctx, &mut running);
    ctx.thread
        .exec
        .set_scripts_took(before + clock::thread_time() - started);
    answer(ctx, &ended?);
    Ok(())
}
