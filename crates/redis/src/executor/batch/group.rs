//! One group of requests: planned, hinted, executed.

use super::step::{Environment, Planned, Step, StoreAccess, is_plain, needs, settle_one};
use super::{GROUP_REQUESTS, Turn, admit};
use crate::command::flag;
use crate::command::key::Key;
use crate::command::lookup::Resolved;
use crate::command::outcome::Outcome;
use crate::command::spec::Spec;
use crate::command::store_access::Access;
use crate::command::turn::Ending;
use crate::command::{ENTRIES_AHEAD, GROUP_KEYS, cold, databases, pause, slow_timer};
use crate::executor::pace::{self, Pace};
use crate::state::Shared;
use crate::state::client::Client;
use crate::state::thread::Thread;
use crate::table::COMMANDS;
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

/// One group; its tables are reused.
pub(crate) struct Group {
    planned: Vec<Planned>,
    hashes: Vec<KeyHash>,
    tables: Vec<TableId>,
    /// Number of keys whose entries were hinted.
    hinted: usize,
    /// Requests that ran, including those that were answered without running.
    ran: u64,
    pace: Pace,
}

/// Why a run under one guard has ended.
enum Stop {
    AtEnd,
    /// The next request needs its own guard, or none.
    Special,
    OldGuard,
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
        guard.pin().prefetch_entry(tables[n], hashes[n]);
    }
    end.max(hinted)
}

/// The number of keys that EXEC counts as. Requests that the same group queues have been counted.
fn keys_of_exec(client: &Client) -> usize {
    let queued = match client.transaction.open() {
        Some(transaction) => transaction.keys().unwrap_or(GROUP_KEYS),
        None => 0,
    };
    queued + client.transaction.watched().len()
}

impl Group {
    pub(crate) fn new(turn_time: Duration) -> Group {
        Group {
            planned: Vec::new(),
            hashes: Vec::new(),
            tables: Vec::new(),
            hinted: 0,
            ran: 0,
            pace: Pace::new(turn_time, pace::System),
        }
    }

    /// A round of the thread begins, with about so many turns.
    pub(crate) fn begin_round(&mut self, turns: usize) {
        self.pace.begin_round(turns);
    }

    /// A part of a round begins, with so many turns.
    pub(crate) fn begin_part(&mut self, turns: usize) {
        self.pace.begin_part(turns);
    }

    /// Whether the turn of the last request has had its time.
    pub(crate) fn is_turn_over(&mut self, session: &Session, thread: &Thread) -> bool {
        let work = session.work().met_bytes() + thread.work();
        self.pace.look(work).turn_is_over
    }

    /// Plans and runs one group from `position` on; returns the start of the next.
    pub(crate) fn run(
        &mut self,
        session: &mut Session,
        shared: &Shared,
        thread: &mut Thread,
        turns: &mut [Turn<'_>],
        position: Position,
    ) -> Position {
        let started = Instant::now();
        self.ran = 0;
        thread.begin_group(shared, started);
        let next;
        let member = shared.membership().map(|member| &**member);
        let mut env = Environment {
            shared,
            thread,
            member,
        };
        let (mut at, mut stop);
        {
            let mut guard = session.pin();
            self.pace
                .begin_guard(started, guard.pin().work().met_bytes() + env.thread.work());
            next = self.plan(&guard, shared, turns, position);
            self.hinted = 0;
            (at, stop) = self.run_guarded(&mut env, &mut guard, turns, 0);
        }
        loop {
            match stop {
                Stop::AtEnd => break,
                Stop::OldGuard => {}
                Stop::Special => {
                    if !self.run_special(&mut env, session, turns, at) {
                        break;
                    }
                    if self.is_turn_over(session, env.thread) {
                        self.halt(turns, at);
                    }
                    at += 1;
                }
            }
            let mut guard = session.pin();
            let now = self.pace.now();
            self.pace
                .begin_guard(now, guard.pin().work().met_bytes() + env.thread.work());
            (at, stop) = self.run_guarded(&mut env, &mut guard, turns, at);
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
            if turn.state.halted || next.request >= turn.requests.len() {
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
                let resolved = COMMANDS.resolve(&args);
                let hashes = self.hashes.len();
                if let Resolved::Command(spec) = resolved {
                    keys += self.hint(guard, table, turn.client, spec, &args);
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
        table: TableId,
        client: &Client,
        spec: &Spec,
        args: &Args<'_>,
    ) -> usize {
        if spec.keys.is_one() {
            let hash = guard.hash(args.get(1).unwrap_or_default());
            guard.pin().prefetch_bucket(table, hash);
            self.hashes.push(hash);
            self.tables.push(table);
            return 1;
        }
        if !spec.has_keys() {
            return match spec.has(flag::FAST) {
                true => 0,
                false if spec.has(flag::RUNS_QUEUE) => keys_of_exec(client),
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
            guard.pin().prefetch_bucket(table, hash);
            self.hashes.push(hash);
            self.tables.push(table);
        }
        keys
    }

    /// Runs requests from `at` on until one needs more than this guard, or the guard is old;
    /// returns the number of the next one, and the reason.
    fn run_guarded(
        &mut self,
        env: &mut Environment<'_>,
        guard: &mut Guard<'_>,
        turns: &mut [Turn<'_>],
        mut at: usize,
    ) -> (usize, Stop) {
        let mut last = None;
        while let Some(planned) = self.planned.get(at) {
            if last != Some(planned.turn) {
                settle(env, guard, turns, last.replace(planned.turn));
                let work = guard.pin().work().met_bytes() + env.thread.work();
                self.pace.begin_turn(planned.turn, work);
                let replies = &mut turns[planned.turn as usize].replies;
                replies.set_bytes_max(env.thread.output_bytes_max());
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
            if !turn.state.halted {
                if matches!(
                    needs(&planned.resolved, turn.client, hashes.len(), env.thread),
                    StoreAccess::Guard | StoreAccess::Session
                ) {
                    settle(env, guard, turns, last);
                    return (at, Stop::Special);
                }
                if is_plain(&planned.resolved) {
                    // The request may change the level of the requests behind it: RESET, CONFIG
                    // SET.
                    settle_one(env, guard, turn.client);
                }
                let step = Step { planned, hashes };
                let outcome = step.run(env, turn, Access::Guarded(guard), &mut self.ran);
                // Only a request with its own guard locks keys, and may have to run again alone.
                let locks = outcome == Outcome::Retry { alone: true };
                debug_assert!(!locks, "keys locked in a shared guard");
                let work = guard.pin().work().met_bytes() + env.thread.work();
                if self.pace.is_due(work) {
                    let look = self.pace.look(work);
                    turn.state.halted |= look.turn_is_over;
                    if look.guard_is_old {
                        settle(env, guard, turns, last);
                        return (at + 1, Stop::OldGuard);
                    }
                }
            } else if turn.state.ending == Ending::Cold {
                let first = planned.hashes as usize;
                look_ahead(env, guard, turn, planned, &self.tables[first..end], hashes);
            }
            at += 1;
        }
        settle(env, guard, turns, last);
        (at, Stop::AtEnd)
    }

    /// Lets the requests behind `at` in its turn run in the next round: request `at` may have taken
    /// long, whatever the number of its keys.
    fn halt(&self, turns: &mut [Turn<'_>], at: usize) {
        if let Some(planned) = self.planned.get(at)
            && let Some(turn) = turns.get_mut(planned.turn as usize)
        {
            turn.state.halted = true;
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
        match needs(
            &planned.resolved,
            turn.client,
            step.hashes.len(),
            env.thread,
        ) {
            StoreAccess::Guard => {
                let (start, silent) = (turn.out.len(), admit::is_silent(turn.client));
                let mut guard = session.pin();
                let access = Access::Guarded(&mut guard);
                let outcome = step.run(env, turn, access, &mut self.ran);
                settle_one(env, &mut guard, turn.client);
                drop(guard);
                if outcome == (Outcome::Retry { alone: true })
                    && let Resolved::Command(spec) = planned.resolved
                {
                    let mut guard = session.pin_exclusive();
                    run_alone(&step, spec, env, &mut *turn, &mut guard);
                    settle_one(env, &mut guard, turn.client);
                    if silent {
                        turn.silence(start);
                    }
                }
            }
            _ => {
                let outcome = step.run(env, turn, Access::Session(session), &mut self.ran);
                debug_assert!(outcome != Outcome::Retry { alone: true });
            }
        }
        true
    }

    /// Adds the group to the thread's counters, once.
    fn account(&self, env: &mut Environment<'_>, started: Instant, turns: &[Turn<'_>]) {
        let ran = self.ran;
        if ran == 0 {
            // Steps of an EXEC that goes on may have run, and their time was noted.
            env.thread.timing.take_timed_ns();
            return env.thread.end_group(env.shared, Instant::now());
        }
        let counters = env.thread.counters(env.shared);
        counters.commands.add(ran);
        counters.batches.add(1);
        let now = Instant::now();
        let elapsed_ns = now.duration_since(started).as_nanos() as u64;
        // Requests that were timed separately are in the slow log separately.
        let untimed_ns = elapsed_ns.saturating_sub(env.thread.timing.take_timed_ns());
        env.thread.end_group(env.shared, now);
        if let Some(first) = self.planned.first()
            && let Some(turn) = turns.get(first.turn as usize)
        {
            let args = turn.requests.args(first.request as usize, turn.input);
            slow_timer::group_took(
                env.shared,
                env.thread,
                turn.client,
                first.resolved.spec(),
                &args,
                untimed_ns,
                ran,
            );
        }
    }
}

/// Runs a request again that ran in vain for want of memory: now it is alone in the store, and
/// locks nothing.
#[cold]
fn run_alone(
    step: &Step<'_>,
    spec: &'static Spec,
    env: &mut Environment<'_>,
    turn: &mut Turn<'_>,
    guard: &mut Guard<'_>,
) {
    let request = step.request(spec, turn.requests, turn.input);
    if pause::has_begun_for(&COMMANDS, &request, env.shared, turn.client) {
        // The request has waited at the store's door (pause::P1).
        cold::note_reported(spec, env.shared, env.thread, turn.client);
        return step.show_again(turn, Outcome::Yield);
    }
    let mut access = Access::Guarded(guard);
    if let Some(permit) = step.permit_again(spec, env, turn)
        && step.is_here(spec, env, turn, &mut access).is_ok()
    {
        let outcome = step.execute(permit, env, turn, access, true);
        databases::observe(env.shared, env.thread, turn.client, spec);
        if outcome.is_shown_again() {
            step.show_again(turn, outcome);
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
    if guard.order().has_position()
        && let Some(turn) = which.and_then(|which| turns.get_mut(which as usize))
    {
        settle_one(env, guard, turn.client);
    }
}

/// Notes the entries on flash that the keys of a request need. The request stands behind one that
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
    let keys = spec.data_positions(&args).zip(tables).zip(hashes);
    for ((at, table), hash) in keys {
        let key = Key {
            table: *table,
            hash: *hash,
            bytes: args.get(at).unwrap_or_default(),
        };
        if !cold::look_ahead(env.shared, guard, turn.client, key) {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::executor::Executor;
    use crate::executor::tests::{Server, parsed, run};
    use duramen_base::planted::{Bug, with_bug};
    use duramen_config::clock;

    /// The reply to a DEL of two keys that had no memory to lock them, and that waited to be alone
    /// in the store when a pause began. Empty: it is shown again.
    fn reply_in_the_pause() -> String {
        let server = Server::new(1);
        let (mut executor, mut client) = (server.executor(0), server.client(0));
        let set = run(&mut executor, &mut client, b"MSET a 1 b 2\r\n");
        assert_eq!(set, "+OK\r\n");
        let input = b"DEL a b\r\n";
        let (requests, mut out) = (parsed(input), Vec::new());
        let planned = Planned {
            turn: 0,
            request: 0,
            hashes: 0,
            resolved: COMMANDS.resolve(&requests.args(0, input)),
        };
        let Resolved::Command(spec) = planned.resolved else {
            panic!("DEL is a command");
        };
        let now_ms = clock::now_ms();
        let commands = &server.shared.commands;
        commands.pause(now_ms + 100_000, true, now_ms);
        let mut turn = Turn::new(&mut client, &requests, input, &mut out);
        turn.executed = 1;
        let Executor {
            session, thread, ..
        } = &mut executor;
        let mut guard = session.as_mut().expect("a session").pin_exclusive();
        let hashes = [guard.hash(b"a"), guard.hash(b"b")];
        let step = Step {
            planned: &planned,
            hashes: &hashes,
        };
        let mut env = Environment {
            shared: &server.shared,
            thread,
            member: None,
        };
        run_alone(&step, spec, &mut env, &mut turn, &mut guard);
        drop(guard);
        let is_shown_again = turn.executed == 0;
        let reply = String::from_utf8_lossy(&out).into_owned();
        assert_eq!(is_shown_again, reply.is_empty(), "{reply}");
        reply
    }

    /// It had been admitted before the pause, and removed its keys after CLIENT PAUSE was answered
    /// (pause::P1).
    #[test]
    fn a_request_that_runs_again_alone_looks_at_the_pause() {
        assert_eq!(reply_in_the_pause(), "");
        let reply = with_bug(Bug::PauseIsNotLookedAt, reply_in_the_pause);
        assert_eq!(reply, ":2\r\n");
    }
}
