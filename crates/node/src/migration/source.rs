//! The source of a migration: sends all objects, then those written meanwhile and the completion
//! records, in rounds; then nothing is served and the rest is sent.
//!
//! All of it goes in steps: a step copies `CHUNK_BYTES`, or one object more, and no other begins
//! before there is room in the window. So little is held beside the store, whatever its objects'
//! size, and these bytes are not charged to memory.

use super::{
    ASK_US, Environment, LOCK_BYTES, LOCK_US, Names, Outputs, PATIENCE_US, REST_US, Result,
};
use crate::job::{Exported, Job, JobResult, MigrationCompletion};
use crate::requests::PeerRequest;
use crate::serve::{Clients, Records};
use duramen_base::ids::{KeyRange, MigrationId, RouteHash, ServerId, TableId};
use duramen_base::planted::{Bug, has_bug};
use duramen_engine::{DirtyKey, Export, RANGE_PARTS, Store, Watch};
use duramen_wire::native::Slice;
use duramen_wire::native::message::{
    CoordinatorAnswer, MigrateEntries, MigrationDone, MigrationOutcome, MigrationPhase,
    MigrationProgress, Peer, PeerAnswer, ToCoordinator,
};
use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Approximate bytes of entries in one message.
const CHUNK_BYTES: usize = 64 << 10;
/// Messages in flight, and their bytes before another one is sent.
const WINDOW: usize = 4;
const WINDOW_BYTES: usize = WINDOW * CHUNK_BYTES;
/// Copying while the tablet is served is throttled, to leave time for requests: bytes per second if
/// the tablet is not written to, and if it is. With two cores and one disk for four servers, the
/// copying raised the p99 of requests to 3.4 times at 100 MB/s, and to 2.8 times at 30.
const PACE_READ: u64 = 50_000_000;
const PACE_WRITTEN: u64 = 30_000_000;
/// Each round is sent at twice the pace of the one before, at most this many times: writes that are
/// faster than the first rounds are overtaken.
const PACE_DOUBLED_MAX: u32 = 6;
/// Most marked keys that should be left for the lock, in `LOCK_BYTES` at most.
const KEYS_FEW: usize = 256;
/// After so many rounds the lock comes with more keys, or, if more bytes than `LOCK_BYTES` are
/// left, the migration is given up: more is written than can be sent.
const ROUNDS_MAX: u32 = 16;
/// A move whose target has not answered a message for this long, while some are in flight, is given
/// up.
const UNHEARD_US: u64 = 10_000_000;
/// Requests that are being executed become durable within about this time.
const RECORDS_US: u64 = 2_000;

/// The state that jobs use, one at a time.
struct Work {
    store: Arc<Store>,
    clients: Arc<Clients>,
    table: TableId,
    range: KeyRange,
    watch: Option<Watch>,
    export: Option<Export>,
    /// Keys that are marked, and not exported yet.
    pending: VecDeque<DirtyKey>,
    is_in_round: bool,
    records: Records,
    /// Bytes of the records of this round, and of the last one: about as many come in the next.
    record_bytes: usize,
    record_bytes_before: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    /// Sets the watch first, then copies.
    Begin,
    Copy,
    /// Exports the marked keys, then the completion records that are new.
    Round,
    /// Waits for guards that may still write, then takes the last marks.
    Lock,
    /// Exports the rest of the last marks.
    Rest,
    /// Exports the completion records, and the highest version.
    Records,
}

enum Stage {
    /// Its turn has not come.
    Waiting,
    Copying,
    /// Sends the marked keys, again and again.
    Rounds,
    /// After everything is answered: until the target has room for the rest and, the first time,
    /// all of it is durable there (migration::M9).
    Catching,
    Settling,
    /// Asks the coordinator for an answer, (again) at this time (migration::M9).
    Asking(u64),
    /// The coordinator has answered.
    Ready,
    Locking,
    Rest,
    /// Exports the completion records, not before this time.
    Records(u64),
    /// Waits for the list.
    Sent,
    /// Reports to the coordinator, (again) at this time.
    GivenUp(String, u64),
    /// The end has been reported.
    Reported,
}

struct Flight {
    message: MigrateEntries,
    entries: Slice,
    due_us: u64,
}

/// The source of a migration; see the module.
pub(super) struct Source {
    id: MigrationId,
    pub table: TableId,
    pub range: KeyRange,
    to: ServerId,
    run: u64,
    stage: Stage,
    work: Option<Arc<Mutex<Work>>>,
    is_busy: bool,
    flights: BTreeMap<u64, Flight>,
    next: u64,
    rounds: u32,
    marked: usize,
    left_bytes: usize,
    bytes_total: u64,
    /// Nothing is exported before this time.
    rest_us: u64,
    /// The last report to the coordinator was that this locks.
    is_announced: bool,
    locked_us: Option<u64>,
    /// Whether the range is to be served again (migration::M8).
    unlocks: bool,
    /// Before the lock, while messages are in flight: when the target has answered last, or the
    /// first of them was sent.
    unheard_since_us: Option<u64>,
}

impl Source {
    pub fn new(id: MigrationId, table: TableId, range: KeyRange, to: ServerId, run: u64) -> Source {
        Source {
            id,
            table,
            range,
            to,
            run,
            stage: Stage::Waiting,
            work: None,
            is_busy: false,
            flights: BTreeMap::new(),
            next: 0,
            rounds: 0,
            marked: 0,
            left_bytes: 0,
            bytes_total: 0,
            rest_us: 0,
            is_announced: false,
            locked_us: None,
            unlocks: false,
            unheard_since_us: None,
        }
    }

    pub fn run(&self) -> u64 {
        self.run
    }

    /// Whether [`poll`](Self::poll) may have anything to do before the list ends it.
    pub fn has_work(&self) -> bool {
        !matches!(self.stage, Stage::Reported) || !self.flights.is_empty() || self.unlocks
    }

    /// Whether it is under way, and so costs time and memory (migration::M10).
    pub fn is_active(&self) -> bool {
        !matches!(
            self.stage,
            Stage::Waiting | Stage::GivenUp(..) | Stage::Reported
        )
    }

    pub fn begin(&mut self, env: &Environment<'_>, out: &mut Outputs) {
        self.work = Some(Arc::new(Mutex::new(Work {
            store: env.store.engine().clone(),
            clients: env.clients.clone(),
            table: self.table,
            range: self.range,
            watch: None,
            export: None,
            pending: VecDeque::new(),
            is_in_round: false,
            records: Records::new(self.table, self.range),
            record_bytes: 0,
            record_bytes_before: 0,
        })));
        self.stage = Stage::Copying;
        self.give(Step::Begin, out);
    }

    fn give(&mut self, step: Step, out: &mut Outputs) {
        let Some(work) = self.work.clone().filter(|_| !self.is_busy) else {
            return;
        };
        self.is_busy = true;
        let run = self.run;
        out.jobs.push(Job::new("export", move || {
            let completion = MigrationCompletion::Exported(lock(&work).step(step));
            JobResult::Migration(run, completion)
        }));
    }

    /// Handles the end of a step.
    pub fn exported(&mut self, now_us: u64, result: Result<Exported>) {
        self.is_busy = false;
        if let Stage::GivenUp(..) | Stage::Reported = self.stage {
            return;
        }
        let exported = match result {
            Ok(exported) => exported,
            Err(reason) => return self.give_up(now_us, reason),
        };
        let pace = match exported.left_bytes > self.left_bytes {
            true => PACE_WRITTEN,
            false => PACE_READ,
        } << self.rounds.min(PACE_DOUBLED_MAX);
        (self.marked, self.left_bytes) = (exported.marked, exported.left_bytes);
        self.bytes_total = self.bytes_total.max(exported.bytes_total);
        let is_last = matches!(self.stage, Stage::Records(_)) && !exported.more;
        let bytes: usize = exported.chunks.iter().map(|chunk| chunk.len()).sum();
        self.rest_us = now_us + bytes as u64 * 1_000_000 / pace;
        let safe_version = match has_bug(Bug::SafeVersionStays) {
            true => 0,
            false => exported.safe_version,
        };
        for chunk in exported.chunks {
            self.send(now_us, chunk, safe_version, false);
        }
        if is_last {
            self.send(now_us, Slice::default(), safe_version, true);
        }
        self.stage = match std::mem::replace(&mut self.stage, Stage::Sent) {
            Stage::Copying if exported.more => Stage::Copying,
            Stage::Copying => Stage::Rounds,
            Stage::Rounds if exported.more => Stage::Rounds,
            Stage::Rounds => {
                self.rounds += 1;
                let is_enough = match self.is_little_left() {
                    true => self.rounds >= 2 * ROUNDS_MAX, // it was more before each lock
                    false => self.rounds >= ROUNDS_MAX,
                };
                if is_enough {
                    let (left, rounds) = (self.left_bytes, self.rounds);
                    let reason = format!(
                        "{left} bytes are left after {rounds} rounds: it is written too fast"
                    );
                    return self.give_up(now_us, reason);
                }
                match self.is_little_left() {
                    true => Stage::Catching,
                    false => Stage::Rounds,
                }
            }
            Stage::Locking | Stage::Rest if exported.more => Stage::Rest,
            Stage::Locking | Stage::Rest => Stage::Records(now_us),
            Stage::Records(_) if exported.waits => Stage::Records(now_us + RECORDS_US),
            Stage::Records(_) if exported.more => Stage::Records(now_us),
            Stage::Records(_) => Stage::Sent,
            other => other,
        };
    }

    /// Whether the rest is so small that the lock is short.
    fn is_little_left(&self) -> bool {
        let are_few = self.marked <= KEYS_FEW || self.rounds >= ROUNDS_MAX;
        are_few && self.left_bytes <= LOCK_BYTES
    }

    fn has_window(&self) -> bool {
        let bytes = self.flights.values().map(|flight| flight.entries.len());
        self.flights.len() < WINDOW && bytes.sum::<usize>() < WINDOW_BYTES
    }

    fn send(&mut self, now_us: u64, entries: Slice, safe_version: u64, last: bool) {
        let message = MigrateEntries {
            migration: self.id,
            sequence: self.next,
            safe_version,
            last,
            bytes_total: self.bytes_total,
        };
        let flight = Flight {
            message,
            entries,
            due_us: now_us,
        };
        let is_first = self.flights.is_empty();
        self.flights.insert(self.next, flight);
        self.next += 1;
        if is_first {
            self.expect_answer(now_us);
        }
    }

    /// From now on the target has to answer within [`UNHEARD_US`]. After the lock, the lock's limit
    /// counts.
    fn expect_answer(&mut self, now_us: u64) {
        let is_served = matches!(
            self.stage,
            Stage::Copying | Stage::Rounds | Stage::Catching | Stage::Settling
        );
        let waits = is_served && !self.flights.is_empty();
        self.unheard_since_us = waits.then_some(now_us);
    }

    /// Continues the migration.
    pub fn poll(
        &mut self,
        now_us: u64,
        env: &Environment<'_>,
        names: &mut Names,
        out: &mut Outputs,
    ) {
        self.watch_lock(now_us, out);
        // Nothing is locked yet, and another target may be reached.
        let is_unheard = |since_us: &mut u64| now_us > *since_us + UNHEARD_US;
        if self.unheard_since_us.take_if(is_unheard).is_some() {
            let reason = "the target does not answer this server".to_owned();
            self.give_up(now_us, reason);
        }
        if let Stage::GivenUp(reason, due_us) = &mut self.stage {
            if *due_us <= now_us {
                *due_us = now_us + PATIENCE_US;
                let outcome = MigrationOutcome::Failed {
                    reason: reason.clone(),
                };
                let report = ToCoordinator::MigrationDone(MigrationDone {
                    migration: self.id,
                    server: env.me,
                    outcome,
                });
                out.reports.push((names.token(self.id), report));
            }
            return self.ask(now_us, names, out);
        }
        self.ask(now_us, names, out);
        if self.is_busy {
            return;
        }
        let has_window = self.has_window();
        let has_room = has_window && now_us >= self.rest_us;
        match self.stage {
            Stage::Copying if has_room => self.give(Step::Copy, out),
            Stage::Rounds if has_room => self.give(Step::Round, out),
            Stage::Catching if self.flights.is_empty() => {
                self.send(now_us, Slice::default(), 0, false);
                self.stage = Stage::Settling;
                self.ask(now_us, names, out);
            }
            Stage::Settling if self.flights.is_empty() => {
                self.ask_coordinator(now_us, env, names, out);
            }
            Stage::Asking(due_us) if due_us <= now_us => {
                self.ask_coordinator(now_us, env, names, out);
            }
            Stage::Ready => self.lock(now_us, env, names, out),
            // No client is served: the sooner the better.
            Stage::Rest if has_window => self.give(Step::Rest, out),
            Stage::Records(due_us) if has_window && due_us <= now_us => {
                self.give(Step::Records, out);
            }
            _ => {}
        }
    }

    /// migration::M9: reports to the coordinator that this is about to lock; its answer shows that
    /// it is there.
    fn ask_coordinator(
        &mut self,
        now_us: u64,
        env: &Environment<'_>,
        names: &mut Names,
        out: &mut Outputs,
    ) {
        self.stage = Stage::Asking(now_us + ASK_US);
        self.is_announced = true;
        let progress = self.progress(env, MigrationPhase::Switching);
        out.reports.push((names.token(self.id), progress));
    }

    fn progress(&self, env: &Environment<'_>, phase: MigrationPhase) -> ToCoordinator {
        ToCoordinator::MigrationProgress(MigrationProgress {
            migration: self.id,
            server: env.me,
            bytes: 0, // the target counts them
            bytes_total: self.bytes_total,
            entries: 0,
            phase,
        })
    }

    /// Whether the target has answered the last message.
    fn is_answered(&self) -> bool {
        matches!(self.stage, Stage::Sent) && self.flights.is_empty()
    }

    /// Unlocks the range after the target's refusal (migration::M8), and gives up if the target has
    /// not answered the lock in time (migration::M9).
    fn watch_lock(&mut self, now_us: u64, out: &mut Outputs) {
        if std::mem::take(&mut self.unlocks) {
            out.unlocked.push(self.id);
        }
        if self.locked_us.is_none_or(|at_us| now_us < at_us + LOCK_US) {
            return;
        }
        self.locked_us = None;
        self.unlocks |= has_bug(Bug::TimeUnlocks);
        // When all is answered, the target has reported: the coordinator decides.
        if self.is_answered() {
            return;
        }
        // If everything is sent, the requests continue: the target's refusal unlocks.
        let flights = match self.stage {
            Stage::Sent => std::mem::take(&mut self.flights),
            _ => BTreeMap::new(),
        };
        self.give_up(now_us, "the target has not answered in time".to_owned());
        self.flights = flights;
    }

    /// migration::M1: the view without this range is output before the job.
    fn lock(&mut self, now_us: u64, env: &Environment<'_>, names: &mut Names, out: &mut Outputs) {
        if let Some(work) = &self.work {
            let work = lock(work);
            (self.marked, self.left_bytes) = (work.marked(), work.left_bytes());
        }
        if !self.is_little_left() {
            if std::mem::take(&mut self.is_announced) {
                let progress = self.progress(env, MigrationPhase::Copying);
                out.reports.push((names.untracked(), progress));
            }
            self.stage = Stage::Rounds;
            return self.give(Step::Round, out);
        }
        self.locked_us = Some(now_us);
        if !has_bug(Bug::SourceServesOn) {
            out.locked.push((self.id, self.table, self.range));
        }
        self.stage = Stage::Locking;
        self.give(Step::Lock, out);
    }

    fn ask(&mut self, now_us: u64, names: &mut Names, out: &mut Outputs) {
        for flight in self.flights.values_mut() {
            if flight.due_us > now_us {
                continue;
            }
            flight.due_us = now_us + PATIENCE_US;
            out.requests.push(PeerRequest {
                call: names.call(self.id, flight.message.sequence),
                to: self.to,
                question: Peer::MigrateEntries(flight.message),
                payload: flight.entries.clone(),
            });
        }
    }

    /// When [`poll`](Self::poll) has work without any input.
    pub fn due_us(&self) -> u64 {
        let flights = self.flights.values().map(|flight| flight.due_us).min();
        let own = match self.stage {
            _ if self.unlocks => return 0,
            Stage::GivenUp(_, due_us) => due_us,
            Stage::Ready if !self.is_busy => return 0,
            Stage::Asking(due_us) => due_us,
            _ if self.is_busy => u64::MAX,
            Stage::Copying | Stage::Rounds if self.has_window() => self.rest_us,
            Stage::Records(due_us) if self.has_window() => due_us,
            _ => u64::MAX,
        };
        let locked = self.locked_us.map_or(u64::MAX, |at_us| at_us + LOCK_US);
        own.min(flights.unwrap_or(u64::MAX)).min(locked)
    }

    /// The answer of the target; `None`: it was not reached.
    pub fn answered(&mut self, now_us: u64, sequence: u64, answer: Option<PeerAnswer>) {
        let Some(flight) = self.flights.get_mut(&sequence) else {
            return;
        };
        let is_heard = answer.is_some();
        match answer {
            Some(PeerAnswer::Migrated { sequence: got }) if got == sequence => {
                self.flights.remove(&sequence);
                if has_bug(Bug::PurgedEarly)
                    && self.is_answered()
                    && let Some(work) = &self.work
                {
                    drop(lock(work).store.ranges().purge(self.table, self.range));
                }
            }
            Some(PeerAnswer::NotYet { after_ms }) => {
                flight.due_us = now_us + u64::from(after_ms) * 1000;
            }
            Some(PeerAnswer::MigrationRefused { reason }) => {
                match self.stage {
                    Stage::GivenUp(..) | Stage::Reported => self.flights.clear(),
                    _ => self.give_up(now_us, reason),
                }
                self.unlocks = true;
            }
            // Only the coordinator decides whether the target is alive.
            _ => flight.due_us = now_us + REST_US,
        }
        if is_heard {
            self.expect_answer(now_us);
        }
    }

    /// Gives up. A locked range stays so until a newer list, or the target's failure
    /// (migration::M1), unless the last message was never sent, without which no migration is
    /// complete (migration::M3).
    fn give_up(&mut self, now_us: u64, reason: String) {
        self.unheard_since_us = None;
        self.unlocks |= !matches!(self.stage, Stage::Sent);
        self.flights.clear();
        self.locked_us = None;
        self.work = None; // and with it the watch, when no job uses it any more
        self.stage = Stage::GivenUp(reason, now_us);
    }

    /// The answer of the coordinator; `None`: it was not reached.
    pub fn reported(&mut self, now_us: u64, answer: Option<&CoordinatorAnswer>) {
        match (&mut self.stage, answer) {
            (
                Stage::GivenUp(..),
                Some(CoordinatorAnswer::Accepted { .. } | CoordinatorAnswer::Stale),
            ) => self.stage = Stage::Reported,
            (Stage::Asking(_), Some(CoordinatorAnswer::Noted)) => self.stage = Stage::Ready,
            (Stage::Asking(due_us), _) => *due_us = now_us + REST_US,
            _ => {}
        }
    }
}

fn lock(work: &Mutex<Work>) -> MutexGuard<'_, Work> {
    work.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Work {
    fn marked(&self) -> usize {
        self.watch.as_ref().map_or(0, Watch::marked)
    }

    fn left_bytes(&self) -> usize {
        self.watch.as_ref().map_or(0, Watch::marked_bytes) + self.record_bytes_before
    }

    /// Runs on a worker.
    fn step(&mut self, step: Step) -> Result<Exported> {
        let mut out = Vec::new();
        let mut exported = Exported::default();
        exported.more = match step {
            Step::Begin => {
                let bytes_max = self.store.ranges().marks_bytes_max();
                let watch = self.store.ranges().watch(self.table, self.range, bytes_max);
                self.watch = Some(watch.map_err(reason)?);
                self.export = Some(self.store.ranges().export(self.table, self.range));
                exported.bytes_total = self.estimate()?;
                true
            }
            Step::Copy => self.relieve(&mut out)? || self.copy(&mut out)?,
            Step::Round => self.round(&mut out)?,
            Step::Lock => {
                self.store.quiesce();
                self.take()?;
                if has_bug(Bug::RoundsAreLost) {
                    self.pending.clear();
                }
                self.marks(&mut out)?
            }
            Step::Rest => self.marks(&mut out)?,
            Step::Records => {
                let more = self.new_records(&mut out);
                exported.waits = !more && self.records.is_running();
                more || exported.waits
            }
        };
        (exported.marked, exported.left_bytes) = (self.marked(), self.left_bytes());
        exported.safe_version = self.store.version_floor();
        exported.chunks = chunks(out);
        Ok(exported)
    }

    fn estimate(&self) -> Result<u64> {
        let statistics = self.store.ranges().statistics(self.table).map_err(reason)?;
        let part_of = |hash: RouteHash| {
            let slots = usize::from(duramen_format::hash::SLOTS);
            usize::from(hash.slot()) * RANGE_PARTS / slots
        };
        let parts = part_of(self.range.first)..=part_of(self.range.last);
        Ok(statistics.parts[parts].iter().map(|part| part.bytes).sum())
    }

    fn copy(&mut self, out: &mut Vec<u8>) -> Result<bool> {
        let Some(export) = &mut self.export else {
            return Ok(false);
        };
        while out.len() < CHUNK_BYTES {
            if !export.step(CHUNK_BYTES, out).map_err(reason)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Takes the marks if half of their room is used, and exports those that were taken. Returns
    /// whether there were any.
    fn relieve(&mut self, out: &mut Vec<u8>) -> Result<bool> {
        if self.pending.is_empty() && self.watch.as_ref().is_some_and(Watch::is_half_full) {
            self.take()?;
        }
        self.marks(out)?;
        Ok(!out.is_empty())
    }

    /// A part of a round. Sending the records may take long: marks interrupt it.
    fn round(&mut self, out: &mut Vec<u8>) -> Result<bool> {
        if !std::mem::replace(&mut self.is_in_round, true) {
            self.take()?;
        }
        if self.relieve(out)? || self.new_records(out) {
            return Ok(true);
        }
        self.is_in_round = false;
        self.record_bytes_before = std::mem::take(&mut self.record_bytes);
        Ok(false)
    }

    /// Exports completion records that are new since the last round. Returns false after the last
    /// ones.
    fn new_records(&mut self, out: &mut Vec<u8>) -> bool {
        if has_bug(Bug::RecordsStay) {
            return false;
        }
        let before = out.len();
        let more = self
            .clients
            .export_some(&mut self.records, CHUNK_BYTES, out);
        self.record_bytes += out.len() - before;
        more
    }

    fn take(&mut self) -> Result<()> {
        let Some(watch) = &self.watch else {
            return Ok(());
        };
        let dirty = watch.take();
        if dirty.start_again {
            return Err("its table was cleared, or more was written than can be sent".to_owned());
        }
        self.pending.extend(dirty.keys);
        Ok(())
    }

    fn marks(&mut self, out: &mut Vec<u8>) -> Result<bool> {
        let (store, pending) = (&self.store, &mut self.pending);
        let exported = store
            .ranges()
            .export_some_keys(self.table, pending, CHUNK_BYTES, out);
        exported.map_err(reason)?;
        Ok(!self.pending.is_empty())
    }
}

/// Cuts entries into messages, which share their bytes: one message if no hashes are equal.
fn chunks(entries: Vec<u8>) -> Vec<Slice> {
    let entries = Slice::from(entries);
    let (mut chunks, mut from, mut at) = (Vec::new(), 0, 0);
    while at < entries.len() {
        let entry = duramen_format::entry::parse(&entries[at..]);
        at += entry.expect("it was just written").padded_bytes;
        if at - from >= CHUNK_BYTES || at == entries.len() {
            chunks.push(entries.part(from..at));
            from = at;
        }
    }
    chunks
}

fn reason(error: impl std::fmt::Display) -> String {
    error.to_string()
}
