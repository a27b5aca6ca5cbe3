//! FUNCTION, FCALL and FCALL_RO: the commands on libraries, and the calls of their functions.
//!
//! A library is a record in the server's own table ([`TABLE`]): its name and its text. It is loaded
//! in slices, as a script runs, and then stored and put in force in one step. A cluster's libraries
//! are kept by its coordinator, which sends them to all members.

use super::cluster;
use super::commands::{end_long, keys};
use super::run as script_run;
use crate::command::background::{self, Kind, OK};
use crate::command::context::{Context, Done, Failure, YIELDS};
use crate::command::databases;
use crate::command::row::*;
use crate::command::store_access::Access;
use crate::state::interpreters::Load;
use crate::state::script::cache::limits;
use crate::state::script::libraries::{LOAD_MAX, LOAD_TIMEOUT, Libraries, Library};
use crate::state::{Shared, interpreters as scripts};
use duramen_base::glob::Pattern;
use duramen_base::ids::Level;
use duramen_engine::{Error, Guard, Room, Session, Store, TableId};
use duramen_script::{Answer, Event, LibraryText, Program};
use duramen_types::dump::{dump_libraries, restore_libraries};
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

#[rustfmt::skip] // They are rows of a table.
pub(crate) const COMMANDS: &[Spec] = &[
    row("fcall", -3, NOSCRIPT | STALE | MAY_REPLICATE | TIMED,
        doc(Topic::Scripting, "7.0.0", "Depends on the function that is executed", "Calls a function."),
        Keys::counted(2, CHANGES), Effect::Acts, Secrets::None, Run::Alone(fcall))
            .differs("As `EVAL`; variables outside of a function may be empty at any time.").names(Names::Script(ScriptName::Function)),
    row("fcall_ro", -3, NOSCRIPT | STALE | TIMED,
        doc(Topic::Scripting, "7.0.0", "Depends on the function that is executed", "Calls a function that does not write."),
        Keys::counted(2, READS), Effect::Reads, Secrets::None, Run::Alone(fcall_ro)).family(Family::Other),
    container("function", doc(Topic::Scripting, "7.0.0", "Depends on the subcommand", "A container for commands about functions.")),
    row("function|delete", 3, NOSCRIPT, doc(Topic::Scripting, "7.0.0", "O(1)", "Deletes a library and its functions."),
        Keys::NONE, Effect::Writes(Growth::Nothing), Secrets::None, Run::Alone(delete)),
    row("function|dump", 2, NOSCRIPT | REPORTS, doc(Topic::Scripting, "7.0.0", "O(N)", "Serializes all libraries."),
        Keys::NONE, Effect::Acts, Secrets::None, Run::Plain(dump)),
    row("function|flush", -2, NOSCRIPT, doc(Topic::Scripting, "7.0.0", "O(N)", "Deletes all libraries."),
        Keys::NONE, Effect::Writes(Growth::Nothing), Secrets::None, Run::Alone(flush)),
    row("function|help", 2, LOADING | STALE | TELLS, doc(Topic::Scripting, "7.0.0", "O(1)", "Lists the subcommands."),
        Keys::NONE, Effect::Acts, Secrets::None, Run::Plain(help)),
    row("function|kill", 2, NOSCRIPT | ALLOW_BUSY, doc(Topic::Scripting, "7.0.0", "O(1)", "Ends the functions that run for long."),
        Keys::NONE, Effect::Acts, Secrets::None, Run::Plain(kill)),
    row("function|list", -2, NOSCRIPT | REPORTS, doc(Topic::Scripting, "7.0.0", "O(N)", "Lists the libraries and their functions."),
        Keys::NONE, Effect::Acts, Secrets::None, Run::Plain(list)),
    row("function|load", -3, NOSCRIPT | DENYOOM, doc(Topic::Scripting, "7.0.0", "O(1)", "Creates a library."),
        Keys::NONE, Effect::Writes(Growth::Nothing), Secrets::None, Run::Alone(load))
            .differs("Refused in `MULTI`; in a cluster it is in force on all members."),
    row("function|restore", -3, NOSCRIPT | DENYOOM, doc(Topic::Scripting, "7.0.0", "O(N)", "Restores libraries from a payload."),
        Keys::NONE, Effect::Writes(Growth::Nothing), Secrets::None, Run::Alone(restore)),
    row("function|stats", 2, NOSCRIPT | ALLOW_BUSY | TELLS,
        doc(Topic::Scripting, "7.0.0", "O(1)", "Tells about the function that runs, and about the libraries."),
        Keys::NONE, Effect::Acts, Secrets::None, Run::Plain(stats))
            .differs("The first 1,024 arguments."),
];

/// The name of the server's own table, whose keys are the names of libraries.
const TABLE: &str = "duramen:functions";
/// Minimum time of a part of a load: all suspended requests of a thread share its time.
const SLICE_MIN: Duration = Duration::from_micros(500);
/// Number of objects in a step of a walk over the table.
const WALK: usize = 1_000;

const NOT_IN_EXEC: Failure =
    Failure::Text("ERR libraries of functions cannot be changed in a transaction");

fn run(ctx: &mut Context<'_>, access: Access<'_, '_>, read_only: bool) -> Done {
    let libraries = ctx.shared.scripts().libraries.current();
    let found = libraries.find(ctx.arg(1));
    let (library, function) = found.ok_or(Failure::Text("ERR Function not found"))?;
    let keys = keys(ctx, Failure::Text("ERR Bad number of keys provided"))?;
    let program = Program::Function {
        library: Arc::clone(&library.text),
        name: function.name.clone(),
    };
    script_run::run(ctx, access, &program, function.flags, keys, read_only)
}

pub(crate) fn fcall(ctx: &mut Context<'_>, access: Access<'_, '_>) -> Done {
    run(ctx, access, false)
}

pub(crate) fn fcall_ro(ctx: &mut Context<'_>, access: Access<'_, '_>) -> Done {
    run(ctx, access, true)
}

pub(crate) fn load(ctx: &mut Context<'_>, access: Access<'_, '_>) -> Done {
    let last = ctx.request.args.len() - 1;
    let mut replace = false;
    for at in 2..last {
        match ctx.arg(at) {
            option if option.eq_ignore_ascii_case(b"replace") => replace = true,
            option => {
                let option = String::from_utf8_lossy(option);
                return Err(format!("ERR Unknown option given: {option}").into());
            }
        }
    }
    let text = LibraryText::new(ctx.arg(last))?;
    let name = text.name.clone();
    if !replace
        && ctx
            .shared
            .scripts()
            .libraries
            .current()
            .get(&name)
            .is_some()
    {
        return Err(format!("ERR Library '{name}' already exists").into());
    }
    let Access::Session(session) = access else {
        return Err(NOT_IN_EXEC);
    };
    let mut loaded = load_all(ctx, |_| Ok(vec![text]))?;
    let library = loaded.pop().map(Arc::new);
    let library = library.ok_or(Failure::Text("ERR No functions registered"))?;
    let reply = format!("${}\r\n{name}\r\n", name.len());
    change(ctx, session, reply.into_bytes(), move |libraries| {
        libraries.add(Arc::clone(&library), replace)
    })
}

pub(crate) fn restore(ctx: &mut Context<'_>, access: Access<'_, '_>) -> Done {
    if ctx.request.args.len() > 4 {
        return Err(wrong_number(ctx));
    }
    let policy = ctx
        .request
        .args
        .get(3)
        .unwrap_or(b"append")
        .to_ascii_lowercase();
    let (flush, replace) = match policy.as_slice() {
        b"append" => (false, false),
        b"replace" => (false, true),
        b"flush" => (true, false),
        _ => {
            return Err(Failure::Text(
                "ERR Wrong restore policy given, value should be either FLUSH, APPEND or REPLACE.",
            ));
        }
    };
    let Access::Session(session) = access else {
        return Err(NOT_IN_EXEC);
    };
    let loaded = load_all(ctx, |ctx| {
        let texts = restore_libraries(ctx.arg(2)).map_err(|error| format!("ERR {error}"))?;
        let texts = texts.ok_or("ERR given type is not a function".to_owned())?;
        let texts = texts.iter().map(|text| LibraryText::new(text));
        Ok(texts.collect::<Result<_, _>>()?)
    })?;
    let loaded: Vec<_> = loaded.into_iter().map(Arc::new).collect();
    change(ctx, session, OK.to_vec(), move |libraries| {
        if flush {
            *libraries = Libraries::default();
        }
        let mut loaded = loaded.iter();
        loaded.try_for_each(|library| libraries.add(Arc::clone(library), replace))
    })
}

/// Loads the libraries of the request. The load is suspended after its slice, as a script is.
fn load_all(
    ctx: &mut Context<'_>,
    texts: impl FnOnce(&Context<'_>) -> Result<Vec<LibraryText>, Failure>,
) -> Result<Vec<Library>, Failure> {
    let (client, bytes_max) = (ctx.client.id(), script_run::memory(ctx));
    if !ctx.thread.scripts.may_go_on(client, bytes_max) {
        return Err(YIELDS); // interpreters::S4
    }
    let mut load = match ctx.thread.scripts.loads.remove(&client) {
        Some(load) => load,
        None => {
            let texts: VecDeque<_> = texts(ctx)?.into_iter().map(Arc::new).collect();
            Box::new(Load {
                machine: script_run::machine(ctx)?,
                event: None,
                texts,
                loaded: Vec::new(),
                ran: Duration::ZERO,
            })
        }
    };
    let done = load_in_slice(ctx, &mut load);
    if done.as_ref().is_err_and(Failure::yields) {
        if let Some(Event::Slice { memory_bytes }) = load.event {
            ctx.thread.scripts.keep(client, memory_bytes);
        }
        ctx.thread.scripts.loads.insert(client, load);
        return Err(YIELDS);
    }
    let Load {
        machine, loaded, ..
    } = *load;
    ctx.thread.scripts.give_back(ctx.shared, machine);
    done.map(|()| loaded)
}

fn load_in_slice(ctx: &mut Context<'_>, load: &mut Load) -> Done {
    let scripts = &ctx.thread.scripts;
    let slice = scripts.share(scripts.slice(), SLICE_MIN);
    let began = Instant::now();
    while let Some(text) = load.texts.front() {
        let since = Instant::now();
        let event = match load.event.take() {
            None => {
                load.ran = Duration::ZERO;
                load.machine.load(Arc::clone(text), slice)
            }
            Some(Event::Log { level, text }) => {
                scripts::log(level, &text);
                load.machine.resume(Answer::GoOn)
            }
            Some(_) => load.machine.resume(Answer::Slice(slice)),
        };
        load.ran += since.elapsed();
        if let Event::Done(outcome) = event {
            let functions = outcome.loaded()?;
            let text = Arc::clone(text);
            load.loaded.push(Library { text, functions });
            load.texts.pop_front();
        } else {
            load.event = Some(event);
            if load.ran > LOAD_MAX {
                return Err(Failure::Text(LOAD_TIMEOUT));
            }
        }
        if began.elapsed() >= slice && !load.texts.is_empty() {
            return Err(YIELDS);
        }
    }
    Ok(())
}

/// Changes the libraries of this server or of the cluster, stores the change, and replies. An error
/// of `make` is the text of an error reply.
fn change(
    ctx: &mut Context<'_>,
    session: &mut Session,
    reply: Vec<u8>,
    make: impl Fn(&mut Libraries) -> Result<(), String> + Send + 'static,
) -> Done {
    if ctx.shared.membership().is_some() {
        return background::run(ctx, Kind::Users, move |shared, deadline| {
            let membership = shared.membership().ok_or("this is no member any more")?;
            let done = cluster::change_cluster_functions(shared, membership, deadline, make);
            done.map(|()| reply)
                .map_err(|why| match why.strip_prefix("ERR ") {
                    Some(text) => text.to_owned(),
                    None => why,
                })
        });
    }
    let own = own_table(ctx)?;
    let shared = ctx.shared;
    let make = |libraries: &mut Libraries| make(libraries).map_err(Failure::from);
    shared.scripts().libraries.change(make, |before, after| {
        if let Some(own) = own {
            let mut guard = session.pin_exclusive();
            guard.rewrites(true);
            store(&mut guard, own, before, after)?;
            ctx.client.wait.settle(&mut guard, Level::Synced);
        }
        Ok(())
    })?;
    shared.scripts().renew();
    ctx.reply.append(&reply);
    Ok(())
}

/// The table of libraries; `None` if the data is in memory only.
fn own_table(ctx: &mut Context<'_>) -> Result<Option<TableId>, Failure> {
    if ctx.shared.store().log().is_none() {
        return Ok(None);
    }
    match databases::create(ctx.shared, ctx.client, TABLE, None) {
        Ok(table) => Ok(Some(table)),
        Err(duramen::Error::TableExists(_)) => Ok(ctx.shared.store().tables().find(TABLE)),
        Err(error) => Err(error.into()),
    }
}

/// Writes the libraries that have changed, as one group.
fn store(
    guard: &mut Guard<'_>,
    own: TableId,
    before: &Libraries,
    after: &Libraries,
) -> Result<(), Error> {
    let is_same = |one: &Library, other: Option<&Arc<Library>>| {
        other.is_some_and(|other| other.text == one.text)
    };
    let new = after.all();
    let new: Vec<_> = new
        .filter(|it| !is_same(it, before.get(&it.text.name)))
        .collect();
    let gone = before.all();
    let gone: Vec<_> = gone
        .filter(|it| after.get(&it.text.name).is_none())
        .collect();
    let mut room = Room::default();
    new.iter()
        .for_each(|it| room.put(it.text.name.as_bytes(), it.text.text.len()));
    gone.iter()
        .for_each(|it| room.remove(it.text.name.as_bytes()));
    guard.set_aside(room)?;
    let names = new.iter().chain(&gone).map(|it| it.text.name.as_bytes());
    guard
        .pin()
        .warm_alone(names.map(|name| (own, guard.hash(name))))?;
    for library in new {
        let name = library.text.name.as_bytes();
        let hash = guard.hash(name);
        guard.write(own, hash, name, &library.text.text, None)?;
    }
    for library in gone {
        let name = library.text.name.as_bytes();
        let hash = guard.hash(name);
        guard.remove(own, hash, name)?;
    }
    Ok(())
}

/// After loading, puts the stored libraries in force again.
///
/// # Errors
/// [`Error::TooManySessions`].
pub fn restore_all(shared: &Shared, store: &Arc<Store>) -> Result<(), Error> {
    let Some(own) = store.tables().find(TABLE) else {
        return Ok(());
    };
    let mut session = store.session()?;
    let mut texts = Vec::new();
    let mut cursor = 0;
    loop {
        let guard = session.pin();
        let show = |object: duramen_engine::Object<'_>| texts.push(object.value.to_vec());
        let (next, _) = guard.walk().scan_as(own, cursor, WALK, false, show)?;
        cursor = next;
        if cursor == 0 {
            break;
        }
    }
    let limits = limits(shared.config().scripts.memory_bytes);
    let texts = texts.iter().map(Vec::as_slice);
    let libraries = Libraries::default().read(texts, &limits);
    let put = |current: &mut Libraries| {
        *current = libraries;
        Ok::<_, Error>(())
    };
    shared.scripts().libraries.change(put, |_, _| Ok(()))
}

pub(crate) fn delete(ctx: &mut Context<'_>, access: Access<'_, '_>) -> Done {
    let Access::Session(session) = access else {
        return Err(NOT_IN_EXEC);
    };
    let name = String::from_utf8_lossy(ctx.arg(2)).into_owned();
    change(ctx, session, OK.to_vec(), move |libraries| {
        let is_removed = libraries.remove(&name);
        is_removed
            .then_some(())
            .ok_or("ERR Library not found".to_owned())
    })
}

pub(crate) fn flush(ctx: &mut Context<'_>, access: Access<'_, '_>) -> Done {
    if ctx.request.args.len() > 3 {
        return Err(wrong_number(ctx));
    }
    let is_mode =
        |arg: &[u8]| arg.eq_ignore_ascii_case(b"sync") || arg.eq_ignore_ascii_case(b"async");
    if ctx.request.args.get(2).is_some_and(|arg| !is_mode(arg)) {
        return Err(Failure::Text(
            "ERR FUNCTION FLUSH only supports SYNC|ASYNC option",
        ));
    }
    let Access::Session(session) = access else {
        return Err(NOT_IN_EXEC);
    };
    change(ctx, session, OK.to_vec(), |libraries| {
        *libraries = Libraries::default();
        Ok(())
    })
}

fn wrong_number(ctx: &Context<'_>) -> Failure {
    let name = String::from_utf8_lossy(ctx.arg(1));
    format!("ERR unknown subcommand or wrong number of arguments for '{name}'. Try FUNCTION HELP.")
        .into()
}

pub(crate) fn list(ctx: &mut Context<'_>) -> Done {
    let (mut with_code, mut pattern) = (false, None);
    let mut at = 2;
    while let Some(option) = ctx.request.args.get(at) {
        at += 1;
        if !with_code && option.eq_ignore_ascii_case(b"withcode") {
            with_code = true;
        } else if pattern.is_none() && option.eq_ignore_ascii_case(b"libraryname") {
            let missing = Failure::Text("ERR library name argument was not given");
            pattern = Some(ctx.request.args.get(at).ok_or(missing)?);
            at += 1;
        } else {
            let option = String::from_utf8_lossy(option);
            return Err(format!("ERR Unknown argument {option}").into());
        }
    }
    let pattern = pattern.map(|text| Pattern::new(text, true));
    let libraries = ctx.shared.scripts().libraries.current();
    let is_wanted = |library: &&Arc<Library>| match &pattern {
        None => true,
        Some(pattern) => pattern
            .as_ref()
            .is_some_and(|pattern| pattern.matches(library.text.name.as_bytes())),
    };
    let wanted: Vec<_> = libraries.all().filter(is_wanted).collect();
    let mut reply = ctx.reply.encoder();
    reply.array(wanted.len());
    for library in wanted {
        reply.map(3 + usize::from(with_code));
        reply.bulk(b"library_name");
        reply.bulk(library.text.name.as_bytes());
        reply.bulk(b"engine");
        reply.bulk(b"LUA");
        reply.bulk(b"functions");
        reply.array(library.functions.len());
        for function in &library.functions {
            reply.map(3);
            reply.bulk(b"name");
            reply.bulk(function.name.as_bytes());
            reply.bulk(b"description");
            match &function.description {
                Some(text) => reply.bulk(text),
                None => reply.null(),
            }
            reply.bulk(b"flags");
            let names = function.flags.names();
            reply.set(names.len());
            names.iter().for_each(|name| reply.simple(name));
        }
        if with_code {
            reply.bulk(b"library_code");
            reply.bulk(&library.text.text);
        }
    }
    Ok(())
}

pub(crate) fn stats(ctx: &mut Context<'_>) -> Done {
    let libraries = ctx.shared.scripts().libraries.current();
    let longest = ctx.shared.scripts().longest_function();
    let mut reply = ctx.reply.encoder();
    reply.map(2);
    reply.bulk(b"running_script");
    match longest {
        None => reply.null(),
        Some(long) => {
            reply.map(3);
            reply.bulk(b"name");
            reply.bulk(long.name.as_bytes());
            reply.bulk(b"command");
            reply.array(long.request.len());
            long.request.iter().for_each(|arg| reply.bulk(arg));
            reply.bulk(b"duration_ms");
            reply.integer(long.started.elapsed().as_millis() as i64);
        }
    }
    reply.bulk(b"engines");
    reply.map(1);
    reply.bulk(b"LUA");
    reply.map(2);
    reply.bulk(b"libraries_count");
    reply.integer(libraries.all().count() as i64);
    reply.bulk(b"functions_count");
    reply.integer(libraries.functions() as i64);
    Ok(())
}

pub(crate) fn kill(ctx: &mut Context<'_>) -> Done {
    end_long(ctx, true)
}

pub(crate) fn dump(ctx: &mut Context<'_>) -> Done {
    let libraries = ctx.shared.scripts().libraries.current();
    let payload = dump_libraries(libraries.all().map(|library| &library.text.text[..]));
    ctx.reply.bulk(&payload)
}

pub(crate) fn help(ctx: &mut Context<'_>) -> Done {
    ctx.reply.help(ctx.request.spec.container(), &[
        "LOAD [REPLACE] <FUNCTION CODE>",
        "    Create a new library with the given library name and code.",
        "DELETE <LIBRARY NAME>",
        "    Delete the given library.",
        "LIST [LIBRARYNAME PATTERN] [WITHCODE]",
        "    Return general information on all the libraries:",
        "    * Library name",
        "    * The engine used to run the Library",
        "    * Library description",
        "    * Functions list",
        "    * Library code (if WITHCODE is given)",
        "    It also possible to get only function that matches a pattern using LIBRARYNAME argument.",
        "STATS",
        "    Return information about the current function running:",
        "    * Function name",
        "    * Command used to run the function",
        "    * Duration in MS that the function is running",
        "    If no function is running, return nil",
        "    In addition, returns a list of available engines.",
        "KILL",
        "    Kill the current running function.",
        "FLUSH [ASYNC|SYNC]",
        "    Delete all the libraries.",
        "    When called without the optional mode argument, the behavior is determined by the",
        "    lazyfree-lazy-user-flush configuration directive. Valid modes are:",
        "    * ASYNC: Asynchronously flush the libraries.",
        "    * SYNC: Synchronously flush the libraries.",
        "DUMP",
        "    Return a serialized payload representing the current libraries, can be restored using FUNCTION RESTORE command",
        "RESTORE <PAYLOAD> [FLUSH|APPEND|REPLACE]",
        "    Restore the libraries represented by the given payload, it is possible to give a restore policy to",
        "    control how to handle existing libraries (default APPEND):",
        "    * FLUSH: delete all existing libraries.",
        "    * APPEND: appends the restored libraries to the existing libraries. On collision, abort.",
        "    * REPLACE: appends the restored libraries to the existing libraries, On collision, replace the old",
        "      libraries with the new libraries (notice that even on this option there is a chance of failure",
        "      in case of functions name collision with another library).",
    ])
}
