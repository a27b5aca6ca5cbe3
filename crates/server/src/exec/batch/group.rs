//! One group of requests: planned, hinted, executed.

use super::admit::{self, Admitted};
use super::{APPENDED_BYTES_PER_TURN, GROUP_REQUESTS, Turn};
use crate::exec::commands::lookup::{self, Resolved};
use crate::exec::request::context::Context;
use crate::exec::request::permit::Permit;
use crate::exec::request::routing::{self, NotServed};
use crate::exec::request::slow_timer;
use crate::exec::request::spec::{Access, Kind, ONE_KEY, Spec, flag};
use crate::exec::request::{ENTRIES_AHEAD, GROUP_KEYS, cold, databases};
use crate::exec::state::client::{Client, Verdict, gate};
use crate::exec::state::local::Local;
use crate::shared::commands::global;
use crate::shared::{Membership, Shared};
use duramen_engine::{Guard, KeyHash, Session, TableId};
use duramen_wire::resp::Args;
use std::time::{Duration, Instant};

/// The next request to be planned.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Position {
    pub(crate) turn: usize,
    /// Index within the turn; 0 also stands for `Turn::executed`.
    request: usize,
}

impl Position {
    /// Whether some requests of the turn have run in this round.
    pub(crate) fn is_within_turn(self) -> bool {
        self.request > 0
    }
}

/// A request of the group.
struct Planned {
    turn: u32,
    request: u32,
    /// Start of its hashes in [`Group::hashes`]. They end where those of the next request start.
    hashes: u32,
    resolved: Resolved,
}

/// One group; its tables are reused.
pub(crate) struct Group {
    planned: Vec<Planned>,
    hashes: Vec<KeyHash>,
    tables: Vec<TableId>,
    /// Number of keys whose entries were hinted.
    hinted: usize,
    /// Requests that ran, including those that were answered without running.
    ran: u64,
    /// [`super::TURN_TIME`], except in tests that expect a whole turn to run.
    turn_time: Duration,
}

/// Hints entries until those of [`ENTRIES_AHEAD`] keys from `at` on are hinted; returns the number
/// of hinted keys.
#[inline]
fn hint_entries(
    guard: &Guard<'_>,
    tables: &[TableId],
    hashes: &[KeyHash],
    hinted: usize,
    at: usize,
) -> usize {
    let end = (at + ENTRIES_AHEAD).min(hashes.len());
    for n in hinted..end {
        guard.prefetch_entry(tables[n], hashes[n]);
    }
    end.max(hinted)
}

/// The number of keys that EXEC counts as. Requests that the same group queues have been counted.
fn keys_of_exec(client: &Client) -> usize {
    let queued = match &client.transaction {
        Some(transaction) => transaction.keys().unwrap_or(GROUP_KEYS),
        None => 0,
    };
    queued + client.watched.len()
}

/// The access to the store that a request needs before it can run.
enum StoreAccess {
    Nothing,
    /// Its own guard.
    Guard,
    /// No guard.
    Session,
}

/// State that is passed to all steps of a request.
struct Environment<'a> {
    shared: &'a Shared,
    local: &'a mut Local,
    /// None: the server is not a member of a cluster, and serves every key.
    member: Option<&'a Membership>,
}

impl Group {
    pub(crate) fn new(turn_time: Duration) -> Group {
        Group {
            planned: Vec::new(),
            hashes: Vec::new(),
            tables: Vec::new(),
            hinted: 0,
            ran: 0,
            turn_time,
        }
    }

    /// Whether a turn that began at `started` has had its time.
    pub(crate) fn is_long(&self, started: Instant) -> bool {
        started.elapsed() >= self.turn_time
    }

    /// Plans and runs one group from `position` on; returns the start of the next.
    pub(crate) fn run(
        &mut self,
        session: &mut Session,
        shared: &Shared,
        local: &mut Local,
        turns: &mut [Turn<'_>],
        position: Position,
    ) -> Position {
        let started = Instant::now();
        self.ran = 0;
        local.begin_group(shared, started);
        let next;
        let member = shared.membership().map(|member| &**member);
        let mut env = Environment {
            shared,
            local,
            member,
        };
        let mut at;
        {
            let mut guard = session.pin();
            next = self.plan(&guard, shared, turns, position);
            self.hinted = 0;
            at = self.run_guarded(&mut env, &mut guard, turns, 0);
        }
        while at < self.planned.len() {
            if !self.run_special(&mut env, session, turns, at) {
                break;
            }
            if self.is_long(started) {
                self.halt(turns, at);
            }
            at += 1;
            let mut guard = session.pin();
            at = self.run_guarded(&mut env, &mut guard, turns, at);
        }
        self.account(&mut env, started, turns);
        next
    }

    /// Takes requests from `position` on until the group is full; hashes their keys and hints the
    /// buckets.
    fn plan(
        &mut self,
        guard: &Guard<'_>,
        shared: &Shared,
        turns: &[Turn<'_>],
        position: Position,
    ) -> Position {
        self.planned.clear();
        self.hashes.clear();
        self.tables.clear();
        let mut keys = 0;
        let mut next = position;
        while let Some(turn) = turns.get(next.turn) {
            next.request = next.request.max(turn.executed);
            if turn.client.halted || next.request >= turn.requests.len() {
                next = Position {
                    turn: next.turn + 1,
                    request: 0,
                };
                continue;
            }
            let table = turn.client.table(shared);
            while next.request < turn.requests.len() {
                if self.planned.len() >= GROUP_REQUESTS || keys >= GROUP_KEYS {
                    return next;
                }
                let args = turn.requests.args(next.request, turn.input);
                let resolved = lookup::resolve(&args);
                let hashes = self.hashes.len();
                if let Resolved::Command(spec) = resolved {
                    keys += self.hint(guard, (table, turn.client), spec, &args);
                }
                self.planned.push(Planned {
                    turn: next.turn as u32,
                    request: next.request as u32,
                    hashes: hashes as u32,
                    resolved,
                });
                next.request += 1;
            }
        }
        next
    }

    /// Hashes the keys of a request, unless a group cannot hold so many (then the command hashes
    /// them). Returns the number of keys that the request counts as: one that may take long fills a
    /// group.
    #[inline]
    fn hint(
        &mut self,
        guard: &Guard<'_>,
        (table, client): (TableId, &Client),
        spec: &Spec,
        args: &Args<'_>,
    ) -> usize {
        if spec.keys == ONE_KEY {
            let hash = guard.hash(args.get(1).unwrap_or_default());
            guard.prefetch_bucket(table, hash);
            self.hashes.push(hash);
            self.tables.push(table);
            return 1;
        }
        if !spec.has_keys() {
            return match spec.has(flag::FAST) {
                true => 0,
                false if spec.name == "exec" => keys_of_exec(client),
                false => GROUP_KEYS,
            };
        }
        let positions = spec.key_positions(args);
        let keys = positions.size_hint().0;
        if keys > GROUP_KEYS {
            return keys;
        }
        for position in positions {
            let hash = guard.hash(args.get(position).unwrap_or_default());
            guard.prefetch_bucket(table, hash);
            self.hashes.push(hash);
            self.tables.push(table);
        }
        keys
    }

    /// Runs requests from `at` on until one needs more than this guard; returns its number.
    fn run_guarded(
        &mut self,
        env: &mut Environment<'_>,
        guard: &mut Guard<'_>,
        turns: &mut [Turn<'_>],
        mut at: usize,
    ) -> usize {
        let mut last = None;
        while let Some(planned) = self.planned.get(at) {
            if last != Some(planned.turn) {
                settle(env, guard, turns, last.replace(planned.turn));
            }
            let turn = &mut turns[planned.turn as usize];
            let end = self
                .planned
                .get(at + 1)
                .map_or(self.hashes.len(), |next| next.hashes as usize);
            self.hinted = hint_entries(
                guard,
                &self.tables,
                &self.hashes,
                self.hinted,
                planned.hashes as usize,
            );
            let hashes = &self.hashes[planned.hashes as usize..end];
            if !turn.client.halted {
                if matches!(
                    needs(&planned.resolved, turn.client, hashes.len(), env.local),
                    StoreAccess::Guard | StoreAccess::Session
                ) {
                    break;
                }
                if is_plain(&planned.resolved) {
                    // It may change the level of the requests behind it: RESET, CONFIG SET.
                    settle_one(env, guard, turn.client);
                }
                let step = Step { planned, hashes };
                step.run(env, turn, Access::Guarded(guard), &mut self.ran);
                // Only a request with its own guard locks keys, and may have to run again alone.
                debug_assert!(!env.local.needs_alone, "keys locked in a shared guard");
            } else if turn.client.verdict == Verdict::Cold {
                let first = planned.hashes as usize;
                look_ahead(env, guard, turn, planned, &self.tables[first..end], hashes);
            }
            at += 1;
        }
        settle(env, guard, turns, last);
        at
    }

    /// The requests behind `at` in its turn run in the next round: this one may have taken long,
    /// whatever the number of its keys.
    fn halt(&self, turns: &mut [Turn<'_>], at: usize) {
        if let Some(planned) = self.planned.get(at)
            && let Some(turn) = turns.get_mut(planned.turn as usize)
        {
            turn.client.halted = true;
        }
    }

    /// Runs request `at`, which needs its own guard or none.
    fn run_special(
        &mut self,
        env: &mut Environment<'_>,
        session: &mut Session,
        turns: &mut [Turn<'_>],
        at: usize,
    ) -> bool {
        let Some(planned) = self.planned.get(at) else {
            return false;
        };
        let turn = &mut turns[planned.turn as usize];
        let end = self
            .planned
            .get(at + 1)
            .map_or(self.hashes.len(), |next| next.hashes as usize);
        let step = Step {
            planned,
            hashes: &self.hashes[planned.hashes as usize..end],
        };
        match needs(&planned.resolved, turn.client, step.hashes.len(), env.local) {
            StoreAccess::Guard => {
                let (start, silent) = (turn.out.len(), admit::is_silent(turn.client));
                let mut guard = session.pin();
                step.run(env, turn, Access::Guarded(&mut guard), &mut self.ran);
                settle_one(env, &mut guard, turn.client);
                drop(guard);
                if std::mem::take(&mut env.local.needs_alone)
                    && let Resolved::Command(spec) = planned.resolved
                {
                    let mut guard = session.pin_exclusive();
                    let mut access = Access::Guarded(&mut guard);
                    if let Some(permit) = step.permit_again(spec, env, turn)
                        && step.is_here(spec, env, turn, &mut access)
                    {
                        step.execute(permit, env, turn, access, true);
                        databases::observe(env.shared, env.local, turn.client, spec);
                        if matches!(turn.client.verdict, Verdict::Cold | Verdict::Blocked) {
                            step.show_again(turn);
                        }
                    }
                    settle_one(env, &mut guard, turn.client);
                    if silent {
                        turn.silence(start);
                    }
                }
            }
            _ => {
                step.run(env, turn, Access::Session(session), &mut self.ran);
            }
        }
        true
    }

    /// Adds the group to the thread's counters, once.
    fn account(&self, env: &mut Environment<'_>, started: Instant, turns: &[Turn<'_>]) {
        let ran = self.ran;
        if ran == 0 {
            return;
        }
        let counters = env.local.counters(env.shared);
        counters.commands.add(ran);
        counters.batches.add(1);
        let now = Instant::now();
        let elapsed_ns = now.duration_since(started).as_nanos() as u64;
        // Requests that were timed separately are in the slow log separately.
        let untimed_ns = elapsed_ns.saturating_sub(std::mem::take(&mut env.local.timed_ns));
        env.local.end_group(env.shared, now);
        if let Some(first) = self.planned.first()
            && let Some(turn) = turns.get(first.turn as usize)
        {
            let args = turn.requests.args(first.request as usize, turn.input);
            slow_timer::group_took(
                env.shared,
                env.local,
                turn.client,
                (first.resolved.spec(), &args),
                untimed_ns,
                ran,
            );
        }
    }
}

/// wait::W1: the position of everything that turn `which` wrote and saw under `guard` joins its
/// wait.
#[inline]
fn settle(
    env: &mut Environment<'_>,
    guard: &mut Guard<'_>,
    turns: &mut [Turn<'_>],
    which: Option<u32>,
) {
    if guard.has_position()
        && let Some(turn) = which.and_then(|which| turns.get_mut(which as usize))
    {
        settle_one(env, guard, turn.client);
    }
}

fn settle_one(env: &mut Environment<'_>, guard: &mut Guard<'_>, client: &mut Client) {
    if guard.has_position() {
        let level = env.local.level_of(env.shared, client);
        client.settle(guard, level);
    }
}

/// Notes the entries on flash that the keys of a request need; it stands behind a request that
/// waits for flash.
#[cold]
fn look_ahead(
    env: &Environment<'_>,
    guard: &Guard<'_>,
    turn: &mut Turn<'_>,
    planned: &Planned,
    tables: &[TableId],
    hashes: &[KeyHash],
) {
    let Resolved::Command(spec) = planned.resolved else {
        return;
    };
    let args = turn.requests.args(planned.request as usize, turn.input);
    let keys = spec.key_positions(&args).zip(tables).zip(hashes);
    for ((at, table), hash) in keys {
        let key = args.get(at).unwrap_or_default();
        if !cold::look_ahead(env.shared, guard, turn.client, (*table, *hash, key)) {
            return;
        }
    }
}

fn needs(resolved: &Resolved, client: &Client, keys: usize, local: &Local) -> StoreAccess {
    let Resolved::Command(spec) = resolved else {
        return StoreAccess::Nothing;
    };
    if client.in_multi() && !spec.has(flag::NEVER_QUEUED) {
        return StoreAccess::Nothing;
    }
    match spec.kind() {
        // cold::C1: they lock their keys, because nothing may happen between the lookup and the
        // change.
        Kind::Data if keys != 1 && local.has_tier() && spec.changes_many() => StoreAccess::Guard,
        Kind::Data | Kind::Plain | Kind::Refused(_) => StoreAccess::Nothing,
        // A single key needs no lock.
        Kind::Atomic if keys == 1 => StoreAccess::Nothing,
        Kind::Atomic => StoreAccess::Guard,
        Kind::Store | Kind::Alone => StoreAccess::Session,
    }
}

/// Whether the request needs no data.
#[inline]
fn is_plain(resolved: &Resolved) -> bool {
    matches!(resolved, Resolved::Command(spec) if spec.kind() == Kind::Plain)
}

struct Step<'p> {
    planned: &'p Planned,
    hashes: &'p [KeyHash],
}

impl Step<'_> {
    #[inline]
    fn run(
        &self,
        env: &mut Environment<'_>,
        turn: &mut Turn<'_>,
        mut access: Access<'_, '_>,
        ran: &mut u64,
    ) {
        let request = self.planned.request as usize;
        turn.executed = request + 1;
        if let Some(permit) = self.permit_at_once(env, turn) {
            let spec = permit.spec();
            if env.member.is_some() && !self.is_here(spec, env, turn, &mut access) {
                return;
            }
            let has_own_guard = matches!(access, Access::Session(_));
            let done = self.execute(permit, env, turn, access, false);
            *ran += u64::from(done);
            if has_own_guard {
                // Databases may have been exchanged since the gate was looked at.
                databases::observe(env.shared, env.local, turn.client, spec);
            }
        } else if let Some(spec) = self.queues_at_once(env, turn) {
            self.queue(spec, env, turn);
            *ran += 1;
        } else if !self.run_slowly(env, turn, access, ran) {
            self.show_again(turn);
        }
        if turn.client.verdict != Verdict::Open
            || turn.has_enough_replies(env.local.room.bytes_max)
            || turn.client.appended_bytes > APPENDED_BYTES_PER_TURN
        {
            turn.client.halted = true;
            if matches!(turn.client.verdict, Verdict::Cold | Verdict::Blocked) {
                // The request has not run.
                *ran -= 1;
                self.show_again(turn);
            }
        }
        if turn.executed > request {
            let client = turn.client.id();
            turn.client.put_off = 0;
            env.local.scripts.request_ended(env.shared, client);
        }
    }

    /// The permit of a request that nothing but rights can stop; `None`: `run_slowly` decides.
    #[inline]
    fn permit_at_once(&self, env: &Environment<'_>, turn: &Turn<'_>) -> Option<Permit> {
        let Resolved::Command(spec) = self.planned.resolved else {
            return None;
        };
        let shared = env.shared.commands.gate();
        // Reads of reserved keys do not wait.
        let shared = match spec.has(flag::WRITE) {
            true => shared,
            false => shared & !global::RESERVED,
        };
        let stops = turn.client.gate & !gate::RESTRICTED | shared;
        if stops != 0 || spec.is_refused() || spec.is_audited(env.local.audited) {
            return None;
        }
        Permit::unrestricted(spec, turn.client).or_else(|| {
            let requests = &turn.requests;
            let args = requests.args(self.planned.request as usize, turn.input);
            Permit::of_one_key(spec, &args, turn.client)
        })
    }

    /// The command of a request of a client in MULTI that nothing can stop from being queued;
    /// `None`: `run_slowly` decides.
    #[inline]
    fn queues_at_once(&self, env: &Environment<'_>, turn: &Turn<'_>) -> Option<&'static Spec> {
        let Resolved::Command(spec) = self.planned.resolved else {
            return None;
        };
        let is_queue = turn.client.gate == gate::MULTI && env.shared.commands.gate() == 0;
        let stops = flag::NEVER_QUEUED | flag::NO_MULTI;
        let is_queued = is_queue && env.member.is_none() && !spec.has(stops) && !spec.is_refused();
        is_queued.then_some(spec)
    }

    fn queue(&self, spec: &'static Spec, env: &mut Environment<'_>, turn: &mut Turn<'_>) {
        let requests = turn.requests;
        let args = requests.args(self.planned.request as usize, turn.input);
        env.local.meter.begin_none();
        turn.client.flushing = None;
        admit::enqueue(
            env.shared,
            env.local,
            turn.client,
            (&args, self.hashes),
            turn.out,
            spec,
        );
    }

    /// The request has not run; the verdict has the time at which to present it again.
    fn show_again(&self, turn: &mut Turn<'_>) {
        turn.executed = self.planned.request as usize;
        turn.client.halted = true;
    }

    /// Whether the keys are here, by the current view (membership::M1).
    #[inline]
    fn place(
        &self,
        spec: &Spec,
        member: &Membership,
        env: &mut Environment<'_>,
        turn: &Turn<'_>,
        access: &mut Access<'_, '_>,
    ) -> Result<(), NotServed> {
        if !spec.has_keys() {
            return Ok(());
        }
        let table = routing::table_of(spec, turn.client.table(env.shared), env.shared);
        let args = turn
            .requests
            .args(self.planned.request as usize, turn.input);
        let mut guard = access.guard();
        let view = match &mut guard {
            Some(guard) => env.local.view(member, guard),
            // It checks again under its guard.
            None => env.local.view_to_tell(member),
        };
        if let [hash] = self.hashes {
            let at = match spec.keys.first {
                0 => spec.key_positions(&args).next().unwrap_or_default(),
                first => first.into(),
            };
            let key = args.get(at).unwrap_or_default();
            return routing::one(view, table, key, *hash);
        }
        routing::find(view, guard.as_deref(), table, spec, &args, self.hashes)
    }

    /// The permit of a request that ran and must run again alone; `None`: it is refused now.
    #[cold]
    fn permit_again(
        &self,
        spec: &'static Spec,
        env: &Environment<'_>,
        turn: &mut Turn<'_>,
    ) -> Option<Permit> {
        let args = turn
            .requests
            .args(self.planned.request as usize, turn.input);
        let table = turn.client.table(env.shared);
        match Permit::check(spec, &args, turn.client, table, env.shared) {
            Ok(permit) => Some(permit),
            Err(refusal) => {
                let (shared, local) = (env.shared, &*env.local);
                admit::deny(shared, local, turn.client, &args, turn.out, spec, refusal);
                None
            }
        }
    }

    /// Whether a request runs here. If not, it is answered, or will be presented again. Kept off
    /// the path of a single server.
    #[inline(never)]
    fn is_here(
        &self,
        spec: &'static Spec,
        env: &mut Environment<'_>,
        turn: &mut Turn<'_>,
        access: &mut Access<'_, '_>,
    ) -> bool {
        let Some(member) = env.member else {
            return true;
        };
        match self.place(spec, member, env, turn, access) {
            Ok(()) => true,
            Err(not_served) => {
                self.send_away(spec, env, turn, not_served);
                false
            }
        }
    }

    #[cold]
    fn send_away(
        &self,
        spec: &'static Spec,
        env: &mut Environment<'_>,
        turn: &mut Turn<'_>,
        not_served: NotServed,
    ) {
        let text: &str = match &not_served {
            NotServed::NotNow(_) if turn.client.waits_for_owner() => return self.show_again(turn),
            NotServed::NotNow(text) => text,
            NotServed::Refused(text) => text,
        };
        turn.client.unserved_until_ms = 0;
        admit::refuse(
            env.shared,
            env.local,
            turn.client,
            turn.out,
            Some(spec),
            text,
        );
    }

    /// Runs a request that a check may stop: `false` = not now.
    #[cold]
    fn run_slowly(
        &self,
        env: &mut Environment<'_>,
        turn: &mut Turn<'_>,
        mut access: Access<'_, '_>,
        ran: &mut u64,
    ) -> bool {
        let start = turn.out.len();
        env.local.meter.begin_none();
        let place = match (self.planned.resolved, env.member) {
            (Resolved::Command(spec), Some(member)) => {
                self.place(spec, member, env, turn, &mut access)
            }
            _ => Ok(()),
        };
        let was_silent = admit::begin_silence(turn.client);
        let mut is_message = false;
        let args = turn
            .requests
            .args(self.planned.request as usize, turn.input);
        match admit::admit(
            &self.planned.resolved,
            place,
            env.shared,
            env.local,
            turn.client,
            (&args, self.hashes),
            turn.out,
        ) {
            Admitted::Run(permit) => {
                let spec = permit.spec();
                let done = self.execute(permit, env, turn, access, false);
                *ran += u64::from(done);
                if !done {
                    return true; // it is made silent when it runs to its end
                }
                databases::observe(env.shared, env.local, turn.client, spec);
                is_message = admit::replies_by_messages(spec) && turn.out.get(start) != Some(&b'-');
            }
            Admitted::Answered => {
                turn.client.flushing = None;
                turn.client.end_caching(self.planned.resolved.spec());
                *ran += 1;
            }
            Admitted::Later => return false,
        }
        databases::halt_if_failed(env.shared, turn.client);
        if matches!(turn.client.verdict, Verdict::Cold | Verdict::Blocked) {
            return true; // it is made silent when it runs to its end
        }
        if was_silent && admit::end_silence(turn.client) && !is_message {
            turn.silence(start);
        }
        true
    }

    /// False: the request has not run, or not to its end, and is presented again. A request that
    /// waits for flash counts as run here.
    #[inline]
    fn execute(
        &self,
        permit: Permit,
        env: &mut Environment<'_>,
        turn: &mut Turn<'_>,
        mut access: Access<'_, '_>,
        alone: bool,
    ) -> bool {
        let spec = permit.spec();
        let appended = access.appended_bytes();
        let mut context = Context {
            args: turn
                .requests
                .args(self.planned.request as usize, turn.input),
            permit,
            spec,
            table: turn.client.table(env.shared),
            client: turn.client,
            out: turn.out,
            shared: env.shared,
            local: env.local,
            locked: alone,
        };
        let tracks = context.client.gate & gate::TRACKS != 0;
        if tracks && let Some(origin) = context.client.origin() {
            access.set_origin(origin);
        }
        context.run(access.for_now(), self.hashes);
        if tracks {
            access.set_origin(0); // others use the session too
        }
        turn.client.appended_bytes += access.appended_bytes() - appended;
        if let Some(writes) = access.typed_writes() {
            env.local.wake_waiters(env.shared, writes);
            // As in Redis, they look before the requests behind this one run.
            turn.client.halted |= !env.local.woken.is_empty();
        }
        // Other clients of the thread waited too: it is their turn.
        turn.client.halted |= access.take_waited();
        let not_now = std::mem::take(&mut env.local.not_now);
        if not_now {
            self.show_again(turn);
        }
        if env.member.is_some() {
            Self::executed_by_member(spec, turn, not_now);
        }
        let runs_again = not_now || matches!(turn.client.verdict, Verdict::Cold | Verdict::Blocked);
        if tracks && !runs_again {
            turn.client.end_caching(Some(spec));
        }
        !not_now
    }

    /// Invariant membership::M2, and the end of the waits of a request that has run.
    #[inline(never)]
    fn executed_by_member(spec: &Spec, turn: &mut Turn<'_>, not_now: bool) {
        turn.client.wait.lease(routing::tells_of_data(spec));
        if !not_now && turn.client.verdict != Verdict::Cold {
            turn.client.unserved_until_ms = 0;
            turn.client.flushing = None;
        }
    }
}
