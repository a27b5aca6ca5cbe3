//! One group of requests: planned, hinted, executed.

use super::admit::{self, Admitted};
use super::client::{Client, Verdict};
use super::cold;
use super::context::{Context, Done, Failure};
use super::local::Local;
use super::routing::{self, Elsewhere};
use super::slowlog;
use super::state::global;
use super::table::{self, Resolved, Run, Spec, flag};
use super::{ENTRIES_AHEAD, GROUP_KEYS, GROUP_REQUESTS, OUT_BYTES_PER_TURN, Turn, databases};
use crate::cluster::Membership;
use crate::shared::Shared;
use duramen_engine::{Error, Guard, KeyHash, Session, TableId};
use duramen_wire::resp::Args;
use std::time::Instant;

/// The next request to be planned.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Position {
    pub(super) turn: usize,
    /// Index within the turn; 0 also stands for `Turn::executed`.
    request: usize,
}

impl Position {
    /// Whether some requests of the turn have run in this round.
    pub(super) fn is_within_turn(self) -> bool {
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
#[derive(Default)]
pub(super) struct Group {
    planned: Vec<Planned>,
    hashes: Vec<KeyHash>,
    tables: Vec<TableId>,
    /// Number of keys whose entries were hinted.
    hinted: usize,
    /// Requests that ran, including those that were answered without running.
    ran: u64,
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

/// The access to the store that a request needs before it can run.
enum Needs {
    Nothing,
    /// Its own guard.
    Guard,
    /// No guard.
    Session,
}

/// State that is passed to all steps of a request.
struct Hands<'a> {
    shared: &'a Shared,
    local: &'a mut Local,
    /// None: the server is not a member of a cluster, and serves every key.
    member: Option<&'a Membership>,
}

impl Group {
    /// Plans and runs one group from `position` on; returns the start of the next.
    pub(super) fn run(
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
        let mut hands = Hands {
            shared,
            local,
            member,
        };
        let mut at;
        {
            let mut guard = session.pin();
            next = self.plan(&guard, shared, turns, position);
            self.hinted = 0;
            at = self.run_guarded(&mut hands, &mut guard, turns, 0);
        }
        while at < self.planned.len() {
            if !self.run_special(&mut hands, session, turns, at) {
                break;
            }
            at += 1;
            let mut guard = session.pin();
            at = self.run_guarded(&mut hands, &mut guard, turns, at);
        }
        self.account(&mut hands, started, turns);
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
            let table = admit::table_of(turn.client, shared);
            while next.request < turn.requests.len() {
                if self.planned.len() >= GROUP_REQUESTS || keys >= GROUP_KEYS {
                    return next;
                }
                let args = turn.requests.args(next.request, turn.input);
                let resolved = table::resolve(&args);
                let hashes = self.hashes.len();
                if let Resolved::Command(spec) = resolved {
                    keys += self.hint(guard, table, spec, &args);
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
    fn hint(&mut self, guard: &Guard<'_>, table: TableId, spec: &Spec, args: &Args<'_>) -> usize {
        if spec.keys == table::ONE_KEY {
            let hash = guard.hash(args.get(1).unwrap_or_default());
            guard.prefetch_bucket(table, hash);
            self.hashes.push(hash);
            self.tables.push(table);
            return 1;
        }
        if spec.keys.first == 0 {
            return if spec.has(flag::FAST) { 0 } else { GROUP_KEYS };
        }
        let positions = spec.key_positions(args.len());
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
        hands: &mut Hands<'_>,
        guard: &mut Guard<'_>,
        turns: &mut [Turn<'_>],
        mut at: usize,
    ) -> usize {
        let mut last = None;
        while let Some(planned) = self.planned.get(at) {
            if last != Some(planned.turn) {
                settle(hands, guard, turns, last.replace(planned.turn));
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
                    needs(&planned.resolved, turn.client, hashes.len(), hands.local),
                    Needs::Guard | Needs::Session
                ) {
                    break;
                }
                let step = Step { planned, hashes };
                step.run(hands, turn, Way::Guarded(guard), &mut self.ran);
                // Only a request with its own guard locks keys, and may have to run again alone.
                debug_assert!(!hands.local.needs_alone, "keys locked in a shared guard");
            } else if turn.client.verdict == Verdict::Cold {
                let first = planned.hashes as usize;
                look_ahead(
                    hands,
                    guard,
                    turn,
                    planned,
                    &self.tables[first..end],
                    hashes,
                );
            }
            at += 1;
        }
        settle(hands, guard, turns, last);
        at
    }

    /// Runs request `at`, which needs its own guard or none.
    fn run_special(
        &mut self,
        hands: &mut Hands<'_>,
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
        match needs(
            &planned.resolved,
            turn.client,
            step.hashes.len(),
            hands.local,
        ) {
            Needs::Guard => {
                let (start, silent) = (turn.out.len(), admit::is_silent(turn.client));
                let mut guard = session.pin();
                step.run(hands, turn, Way::Guarded(&mut guard), &mut self.ran);
                settle_one(hands, &mut guard, turn.client);
                drop(guard);
                if std::mem::take(&mut hands.local.needs_alone)
                    && let Resolved::Command(spec) = planned.resolved
                {
                    let mut guard = session.pin_exclusive();
                    let mut way = Way::Guarded(&mut guard);
                    if step.is_here(spec, hands, turn, &mut way) {
                        step.execute(spec, hands, turn, way, true);
                        if turn.client.verdict == Verdict::Cold {
                            step.show_again(turn);
                        }
                    }
                    settle_one(hands, &mut guard, turn.client);
                    if silent {
                        turn.silence(start);
                    }
                }
            }
            _ => {
                step.run(hands, turn, Way::Session(session), &mut self.ran);
                databases::observe(hands.shared, hands.local, turn.client);
            }
        }
        true
    }

    /// Adds the group to the thread's counters, once.
    fn account(&self, hands: &mut Hands<'_>, started: Instant, turns: &[Turn<'_>]) {
        let ran = self.ran;
        if ran == 0 {
            return;
        }
        let counters = hands.local.counters(hands.shared);
        counters.commands.add(ran);
        counters.batches.add(1);
        let now = Instant::now();
        let elapsed_ns = now.duration_since(started).as_nanos() as u64;
        // Requests that were timed separately are in the slow log separately.
        let untimed_ns = elapsed_ns.saturating_sub(std::mem::take(&mut hands.local.timed_ns));
        hands.local.end_group(hands.shared, now);
        if let Some(first) = self.planned.first()
            && let Some(turn) = turns.get(first.turn as usize)
        {
            let args = turn.requests.args(first.request as usize, turn.input);
            slowlog::group_took(
                hands.shared,
                hands.local,
                turn.client,
                &args,
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
    hands: &mut Hands<'_>,
    guard: &mut Guard<'_>,
    turns: &mut [Turn<'_>],
    which: Option<u32>,
) {
    if guard.has_position()
        && let Some(turn) = which.and_then(|which| turns.get_mut(which as usize))
    {
        settle_one(hands, guard, turn.client);
    }
}

fn settle_one(hands: &mut Hands<'_>, guard: &mut Guard<'_>, client: &mut Client) {
    if guard.has_position() {
        let level = hands.local.level_of(hands.shared, client);
        client.settle(guard, level);
    }
}

/// Notes the entries on flash that the keys of a request need; it stands behind a request that
/// waits for flash.
#[cold]
fn look_ahead(
    hands: &Hands<'_>,
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
    let keys = spec.key_positions(args.len()).zip(tables).zip(hashes);
    for ((at, table), hash) in keys {
        let key = args.get(at).unwrap_or_default();
        if !cold::look_ahead(hands.shared, guard, turn.client, (*table, *hash, key)) {
            return;
        }
    }
}

fn needs(resolved: &Resolved, client: &Client, keys: usize, local: &Local) -> Needs {
    let Resolved::Command(spec) = resolved else {
        return Needs::Nothing;
    };
    if client.in_multi() && !spec.has(flag::NEVER_QUEUED) {
        return Needs::Nothing;
    }
    match spec.run {
        // cold::C1: they lock their keys, because nothing may happen between the lookup and the
        // change.
        Run::Data(_) if keys != 1 && local.has_tier() && spec.changes_many() => Needs::Guard,
        Run::Data(_) | Run::Plain(_) | Run::Refused(_) => Needs::Nothing,
        // A single key needs no lock.
        Run::Atomic(_) if keys == 1 => Needs::Nothing,
        Run::Atomic(_) => Needs::Guard,
        Run::Store(_) | Run::Alone(_) => Needs::Session,
    }
}

/// A request's access to the store.
pub(crate) enum Way<'w, 'g> {
    Guarded(&'w mut Guard<'g>),
    Session(&'w mut Session),
    /// There is no store yet.
    Nothing,
}

impl<'g> Way<'_, 'g> {
    fn guard(&mut self) -> Option<&mut Guard<'g>> {
        match self {
            Way::Guarded(guard) => Some(guard),
            Way::Session(_) | Way::Nothing => None,
        }
    }

    /// The same access, for a shorter lifetime.
    #[inline]
    fn for_now(&mut self) -> Way<'_, 'g> {
        match self {
            Way::Guarded(guard) => Way::Guarded(guard),
            Way::Session(session) => Way::Session(session),
            Way::Nothing => Way::Nothing,
        }
    }
}

struct Step<'p> {
    planned: &'p Planned,
    hashes: &'p [KeyHash],
}

impl Step<'_> {
    #[inline]
    fn run(&self, hands: &mut Hands<'_>, turn: &mut Turn<'_>, mut way: Way<'_, '_>, ran: &mut u64) {
        let request = self.planned.request as usize;
        turn.executed = request + 1;
        match self.planned.resolved {
            Resolved::Command(spec)
                if turn.client.gate == 0
                    && hands.shared.commands.gate() == 0
                    && !spec.is_refused() =>
            {
                if hands.member.is_some() && !self.is_here(spec, hands, turn, &mut way) {
                    return;
                }
                let done = self.execute(spec, hands, turn, way, false);
                *ran += u64::from(done);
            }
            _ => {
                if !self.run_slowly(hands, turn, way, ran) {
                    self.show_again(turn);
                }
            }
        }
        let enough = OUT_BYTES_PER_TURN.min(hands.local.room.bytes_max);
        if turn.client.verdict != Verdict::Open || turn.out.len() > enough {
            turn.client.halted = true;
            if turn.client.verdict == Verdict::Cold {
                // The request has not run.
                *ran -= 1;
                self.show_again(turn);
            }
        }
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
        hands: &mut Hands<'_>,
        turn: &Turn<'_>,
        way: &mut Way<'_, '_>,
    ) -> Result<(), Elsewhere> {
        if spec.keys.first == 0 {
            return Ok(());
        }
        let table = admit::table_of(turn.client, hands.shared);
        let args = turn
            .requests
            .args(self.planned.request as usize, turn.input);
        let mut guard = way.guard();
        let view = match &mut guard {
            Some(guard) => hands.local.view(member, guard),
            // It checks again under its guard.
            None => hands.local.view_to_tell(member),
        };
        if let [hash] = self.hashes {
            let key = args.get(spec.keys.first.into()).unwrap_or_default();
            return routing::one(view, table, key, *hash);
        }
        routing::find(view, guard.as_deref(), table, spec, &args, self.hashes)
    }

    /// Whether a request runs here. If not, it is answered, or will be presented again. Kept off
    /// the path of a single server.
    #[inline(never)]
    fn is_here(
        &self,
        spec: &'static Spec,
        hands: &mut Hands<'_>,
        turn: &mut Turn<'_>,
        way: &mut Way<'_, '_>,
    ) -> bool {
        let Some(member) = hands.member else {
            return true;
        };
        match self.place(spec, member, hands, turn, way) {
            Ok(()) => true,
            Err(elsewhere) => {
                self.send_away(spec, hands, turn, elsewhere);
                false
            }
        }
    }

    #[cold]
    fn send_away(
        &self,
        spec: &'static Spec,
        hands: &mut Hands<'_>,
        turn: &mut Turn<'_>,
        elsewhere: Elsewhere,
    ) {
        let text: &str = match &elsewhere {
            Elsewhere::NotNow(_) if turn.client.waits_for_owner() => return self.show_again(turn),
            Elsewhere::NotNow(text) => text,
            Elsewhere::Refused(text) => text,
        };
        turn.client.unserved_until_ms = 0;
        admit::refuse(
            hands.shared,
            hands.local,
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
        hands: &mut Hands<'_>,
        turn: &mut Turn<'_>,
        mut way: Way<'_, '_>,
        ran: &mut u64,
    ) -> bool {
        let start = turn.out.len();
        hands.local.meter.begin_none();
        let place = match (self.planned.resolved, hands.member) {
            (Resolved::Command(spec), Some(member)) => {
                self.place(spec, member, hands, turn, &mut way)
            }
            _ => Ok(()),
        };
        let was_silent = admit::begin_silence(turn.client);
        let args = turn
            .requests
            .args(self.planned.request as usize, turn.input);
        match admit::admit(
            &self.planned.resolved,
            place,
            hands.shared,
            hands.local,
            turn.client,
            &args,
            turn.out,
        ) {
            Admitted::Run(spec) => {
                let done = self.execute(spec, hands, turn, way, false);
                *ran += u64::from(done);
                if !done {
                    return true; // it is made silent when it runs to its end
                }
            }
            Admitted::Answered => {
                turn.client.flushing = None;
                *ran += 1;
            }
            Admitted::Later => return false,
        }
        databases::observe(hands.shared, hands.local, turn.client);
        if turn.client.verdict == Verdict::Cold {
            return true; // it is made silent when it runs to its end
        }
        if was_silent && admit::end_silence(turn.client) {
            turn.silence(start);
        }
        true
    }

    /// False: the request has not run, or not to its end, and is presented again. A request that
    /// waits for flash counts as run here.
    #[inline]
    fn execute(
        &self,
        spec: &'static Spec,
        hands: &mut Hands<'_>,
        turn: &mut Turn<'_>,
        way: Way<'_, '_>,
        alone: bool,
    ) -> bool {
        let mut context = Context {
            args: turn
                .requests
                .args(self.planned.request as usize, turn.input),
            spec,
            table: admit::table_of(turn.client, hands.shared),
            client: turn.client,
            out: turn.out,
            shared: hands.shared,
            local: hands.local,
            locked: alone,
        };
        context.run(way, self.hashes);
        let not_now = std::mem::take(&mut hands.local.not_now);
        if not_now {
            self.show_again(turn);
        }
        if hands.member.is_some() {
            Self::executed_by_member(spec, turn, not_now);
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

impl Context<'_> {
    /// Runs the command, counts it, and turns a failure into its reply.
    #[inline]
    pub(super) fn run(&mut self, mut way: Way<'_, '_>, hashes: &[KeyHash]) {
        let start = self.out.len();
        let timer = slowlog::timer(self.spec, self.local);
        let number = self.spec.number();
        self.client.last_command = number as u16;
        self.local.meter.begin(number);
        let mut done = self.dispatch(way.for_now(), hashes);
        while self.is_outdated(&done) {
            self.out.truncate(start);
            if let Way::Guarded(guard) = &mut way {
                guard.renew();
            }
            self.table = admit::table_of(self.client, self.shared);
            done = self.dispatch(way.for_now(), hashes);
        }
        if self.local.room.exceeded {
            self.overflowed(start);
        } else if let Err(failure) = done {
            self.local.not_now = matches!(failure, Failure::GoesOn);
            if self.local.not_now {
                let monitored = self.shared.commands.gate() & global::MONITORED != 0;
                self.client.goes_on(monitored);
            }
            let again = self.local.needs_alone || self.local.not_now;
            if again || self.is_to_be_shown_again(&failure) {
                // It has not run: it is counted when it does.
                return self.out.truncate(start);
            }
            match self.park(failure, &way, hashes) {
                Some(failure) => self.fail(start, &failure),
                None => return self.out.truncate(start),
            }
        }
        self.local.meter.ran();
        if let Some(timer) = timer {
            slowlog::command_took(self, timer);
        }
    }

    /// keys::K1: true if nothing was done, because SWAPDB came between the lookup of the table and
    /// its use.
    #[inline]
    fn is_outdated(&self, done: &Done) -> bool {
        let is_told = |failure: &Failure| failure.is_moving();
        done.as_ref().is_err_and(is_told) && self.may_be_outdated()
    }

    #[inline]
    fn dispatch(&mut self, way: Way<'_, '_>, hashes: &[KeyHash]) -> Done {
        match (self.spec.run, way) {
            (Run::Data(run) | Run::Atomic(run), Way::Guarded(guard)) => {
                guard.rewrites(self.spec.rewrites());
                run(self, guard, hashes)
            }
            (Run::Plain(run) | Run::Store(run), _) => run(self),
            (Run::Alone(run), way) => run(self, way),
            (Run::Refused(reason), _) => Err(self.spec.refusal(reason).into()),
            (Run::Data(_) | Run::Atomic(_), Way::Session(_) | Way::Nothing) => {
                unreachable!("{} runs under a guard", self.spec.name)
            }
        }
    }

    /// The reply did not fit into the connection's output. A command that only reads gets an error.
    /// The effect of a write stays and cannot be reported, so the connection is closed, as Redis
    /// does at its output buffer limit.
    #[cold]
    fn overflowed(&mut self, start: usize) {
        if self.local.in_exec {
            return; // EXEC itself gets here, with its commands' missing replies
        }
        self.local.room.exceeded = false;
        self.client.forget_kept();
        if self.spec.has(flag::READONLY) || !self.spec.has(flag::WRITE | flag::TRANSACTION) {
            return self.fail(start, &self.too_long());
        }
        self.out.truncate(start);
        self.client.verdict = Verdict::CloseNow;
        self.local.counters(self.shared).output_closed.add(1);
        tracing::warn!(
            client = self.client.id(),
            peer = %self.client.record().peer,
            command = self.spec.name,
            limit_bytes = self.local.room.bytes_max,
            "closing a client whose reply does not fit (output-limit)"
        );
    }

    /// Whether the command failed without effect because this member no longer serves the keys, and
    /// the client still has patience.
    #[cold]
    fn is_to_be_shown_again(&mut self, failure: &Failure) -> bool {
        let leaving = self.is_leaving(failure) && !self.locked;
        self.local.not_now = leaving && !self.may_be_half_done() && self.client.waits_for_owner();
        if leaving && !self.local.not_now && self.client.in_multi() {
            self.client.end_transaction(); // EXEC has finally failed
        }
        self.local.not_now
    }

    /// Whether the keys begin to move to another server, or the cluster considers this server
    /// crashed (its life ends in a moment).
    fn is_leaving(&self, failure: &Failure) -> bool {
        let fenced = |failure: &Failure| matches!(failure, Failure::Engine(error) if matches!(**error, Error::DiskFailed));
        self.shared.membership().is_some() && (failure.is_moving() || fenced(failure))
    }

    /// Whether this is a command on several keys, each handled separately. Clients take `TRYAGAIN`
    /// for "nothing was done".
    fn may_be_half_done(&self) -> bool {
        self.spec.keys != table::ONE_KEY && matches!(self.spec.run, Run::Data(_))
    }

    fn failure_text(&self, failure: &Failure) -> String {
        match failure {
            failure if !self.is_leaving(failure) => failure.text(),
            _ if self.may_be_half_done() => {
                "ERR the keys left this server while this ran: some of it may be done".to_string()
            }
            failure if failure.is_moving() => failure.text(),
            _ => "CLUSTERDOWN The cluster is down: it takes this server for crashed".to_string(),
        }
    }

    #[cold]
    fn fail(&mut self, start: usize, failure: &Failure) {
        self.out.truncate(start);
        let text = self.failure_text(failure);
        self.local.note_error(self.shared, &text);
        self.reply().error(text);
        self.local
            .command(self.shared, self.spec.number())
            .failed
            .add(1);
    }
}
