//! A recovery master: partitions of dead servers' logs, read from their backups and replayed into
//! side logs.
//!
//! Several segments are read at once, each piece by piece; pieces that have arrived are replayed by
//! jobs, side by side, while the next pieces are in flight. The pieces in flight or waiting for a
//! thread are bounded. A slow link has few of them: the number grows while answers come quickly,
//! and shrinks otherwise.
//!
//! The newest segments are read first. A version of a key that comes after a newer one takes no
//! memory, so a side log takes little more than the live bytes, however often keys were
//! overwritten. The order is only a matter of memory: side::S1.
//!
//! **Invariants**
//! - R1: entries that are reported as replayed are durably part of this server's own log.
//! - R2: nothing is replayed into ranges that are owned here, or that have anything else here
//!   ([`crate::occupancy`]): the order is answered with `Busy` until that is over.
//! - R3: a partition that the coordinator does not accept leaves nothing behind: a side log is
//!   taken back, and committed entries are purged before R2 allows a new use of the range.
//! - R4: no list of tables that is older than the order drops its tables.
//! - R5: a side log ends, well or not, when no job uses it any more; a failure is reported when
//!   nothing is left of it.
//! - R6: a segment counts when all of its pieces were replayed. They may come from several
//!   replicas, because each holder gives pieces only of a replica with the order's certificate
//!   (backup_service::B5): the same bytes, in the same order. If a piece is damaged, or a holder
//!   has no such replica, the segment begins anew.
//! - R7: a segment of which no holder gives entries, and of which one said that its replica is bad,
//!   is put together from all replicas (`damaged`).
//! - R8: heads are brought above a side log's position before its commit, not earlier (waits::W4).
//!
//! **Concurrency** none: one owner, the node. Jobs share the side log, which allows it.
//!
//! Paper: [Ousterhout15 §7.2, §7.3]; differs: the end is one record, which makes the side log part
//! of the log (docs/protocols.md).

mod damaged;
mod part;

use self::damaged::DamagedSegments;
use self::part::Part;
use crate::effects::Effects;
use crate::job::{Job, JobResult, RecoveryCompletion, RunId};
use crate::ranges::Ranges;
use crate::requests::{PeerCall, PeerRequest, Token};
use duramen::Store;
use duramen_base::ids::{RecoveryId, SegmentId, ServerId, TableId, TabletsVersion};
use duramen_base::planted::{Bug, has_bug};
use duramen_cluster::membership::Members;
use duramen_engine::{SideCommit, SideError, SideLog, SidePlan};
use duramen_format::entry::ALIGN_BYTES;
use duramen_format::hash::KeyHasher;
use duramen_format::segment::Kind;
use duramen_wire::native::Slice;
use duramen_wire::native::message::{
    self, CoordinatorAnswer, PartitionDone, PartitionOutcome, Peer, PeerAnswer, ReadReplica,
    Recover, TableEntry, ToCoordinator,
};
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

/// Most partitions at once.
const RUNS_MAX: usize = 4;
/// Segments that are read at once, for each partition.
const READS_MAX: usize = 8;
/// The next segment is chosen among so many: the one whose backup has the fewest requests.
const LOOK_AHEAD: usize = 32;
/// The same number while several partitions are recovered here, or for a short log, as all logs are
/// in a small memory. The fewer segments are read out of turn, the fewer dead versions take room.
const LOOK_AHEAD_SHORT: usize = 8;
/// The next segment is chosen among at most one in this many of the log's segments.
const LOOK_AHEAD_PART: usize = 16;
/// Bytes of entries per request.
const READ_BYTES: u32 = 1 << 20;
/// Most bytes in flight or waiting to be replayed, for each partition; all partitions share the
/// node's memory for this.
const AHEAD_BYTES: usize = 16 << 20;
/// Fewest such bytes for all partitions together: a few pieces from each of a few backups.
const AHEAD_BYTES_MIN: usize = 4 << 20;
/// Requests in flight for each partition, at first and at least; at most [`READS_MAX`].
const WINDOW_MIN: usize = 2;
/// An answer that takes no longer than this makes room for one more request, any other for half as
/// many.
const QUICK_US: u64 = 500_000;
/// A request without an answer is repeated, to the next source, when nothing has moved for it for
/// this time.
const PATIENCE_US: u64 = 2_000_000;
const REST_US: u64 = 50_000;
/// A segment is given up after this many requests in vain to each of its sources.
const ROUNDS_MAX: usize = 6;
/// A replayed partition is given up, for another master, if none of its segments becomes durable
/// for this time: longer than the replacement of silent backups takes.
const SETTLE_US: u64 = 15_000_000;
/// Interval of the progress reports for people.
const PROGRESS_US: u64 = 250_000;

/// The progress of a partition's replay, for people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PartitionProgress {
    pub recovery: RecoveryId,
    pub partition: u32,
    /// The dead server.
    pub log: ServerId,
    /// Bytes of entries replayed, and an estimate of all of them.
    pub bytes: u64,
    pub bytes_total: u64,
    pub entries: u64,
}

enum Stage {
    Replaying,
    /// A job commits the side log.
    Committing,
    /// The side log is being stored. It is given up at this time, unless fewer segments than these
    /// are left by then.
    Settling(SideCommit, u64, usize),
    /// The outcome is reported to the coordinator, (again) at this time.
    Reporting(PartitionOutcome, u64),
    /// Accepted: waits for a list of at least this version with the owner.
    Waiting(TabletsVersion),
    /// When its jobs have ended, the side log is taken back (R5) and any outcome is reported.
    GivingUp(Option<PartitionOutcome>),
    /// A job takes the side log back.
    Aborting(Option<PartitionOutcome>),
    /// The committed entries are to be purged (R3).
    Dropped,
    /// Nothing is left.
    Over,
}

struct Run {
    order: Recover,
    ranges: Ranges,
    side: Arc<SideLog>,
    /// Own segments with lower ids have no entries of it.
    creation: SegmentId,
    /// The order's segments that are not being read yet, the newest first.
    unread: VecDeque<usize>,
    parts: BTreeMap<usize, Part>,
    damaged: DamagedSegments,
    /// Replays in progress, and their bytes.
    jobs: u32,
    job_bytes: usize,
    /// Most bytes of these and of pieces in flight.
    ahead_bytes: usize,
    /// Most requests in flight.
    window: usize,
    /// Segments that were replayed completely.
    read: u64,
    progress_us: u64,
    /// Whether it is part of the log, durable there or not.
    is_committed: bool,
    stage: Stage,
}

/// The recoveries of a member; see the module.
pub(crate) struct Recoveries {
    runs: BTreeMap<RunId, Run>,
    tokens: BTreeMap<Token, RunId>,
    next: u64,
    /// Most bytes in flight or waiting to be replayed, of all partitions.
    pub(crate) ahead_bytes: usize,
    /// The cluster's hash of keys.
    pub(crate) hasher: KeyHasher,
}

impl Recoveries {
    pub fn new(ahead_bytes: usize, hasher: KeyHasher) -> Recoveries {
        Recoveries {
            runs: BTreeMap::new(),
            tokens: BTreeMap::new(),
            next: 0,
            ahead_bytes,
            hasher,
        }
    }

    pub fn has(&self, id: RunId) -> bool {
        self.runs.contains_key(&id)
    }

    /// Tables that must stay, even if an older list lacks them (R4).
    pub fn tables(&self) -> Vec<TableEntry> {
        if has_bug(Bug::TablesNotHeld) {
            return Vec::new();
        }
        let tables = self.runs.values().flat_map(|run| {
            let has = |table| run.ranges.iter().any(|(id, _)| id == table);
            run.order.tables.iter().filter(move |t| has(t.table))
        });
        tables.cloned().collect()
    }

    /// The progress of all runs, for people.
    pub fn progress(&self) -> Vec<PartitionProgress> {
        self.runs
            .iter()
            .map(|(id, run)| run.progress(*id))
            .collect()
    }

    /// Whether a run, at any stage, has part of these ranges.
    pub fn has_any_of(&self, ranges: &Ranges) -> bool {
        let mut runs = self.runs.values();
        runs.any(|run| !run.ranges.intersection(ranges).is_empty())
    }

    /// Begins a run; returns whether it did. The caller has checked that no part of its ranges is
    /// here (R2).
    pub fn begin(
        &mut self,
        now_us: u64,
        store: &Arc<Store>,
        order: Recover,
        ranges: Ranges,
    ) -> bool {
        let id = (order.recovery, order.partition);
        if self.runs.len() >= RUNS_MAX || !make_tables(store, &order, &ranges) {
            return false;
        }
        let creation = store.engine().heads().try_roll();
        let side = store.engine().side_log(SidePlan {
            floors: order.floors.clone(),
            version_floor: order.safe_version,
        });
        // The coordinator has read the control segments.
        let is_data = |n: &usize| order.segments[*n].kind != Kind::Control;
        let unread = (0..order.segments.len()).rev().filter(is_data).collect();
        let run = Run {
            ranges,
            side: Arc::new(side),
            creation,
            unread,
            parts: BTreeMap::new(),
            damaged: DamagedSegments::default(),
            jobs: 0,
            job_bytes: 0,
            ahead_bytes: 0,
            window: WINDOW_MIN,
            read: 0,
            progress_us: now_us + PROGRESS_US,
            is_committed: false,
            stage: Stage::Replaying,
            order,
        };
        self.runs.insert(id, run);
        true
    }

    /// When [`poll`](Self::poll) has work without any input.
    pub fn due_us(&self) -> u64 {
        let due = self.runs.values().map(Run::due_us);
        due.min().unwrap_or(u64::MAX)
    }

    /// Continues all runs. `told`: version of the list of tablets that was read last.
    pub fn poll(
        &mut self,
        now_us: u64,
        me: ServerId,
        told: TabletsVersion,
        members: &Members,
        out: &mut Effects,
    ) {
        let ahead_bytes = self.ahead_bytes.max(AHEAD_BYTES_MIN) / self.runs.len().max(1);
        let runs = self.runs.len();
        for (id, run) in &mut self.runs {
            run.ahead_bytes = ahead_bytes.min(AHEAD_BYTES);
            run.settle(now_us);
            match &mut run.stage {
                Stage::Replaying => {
                    run.refill(now_us, look_ahead(runs, run.order.segments.len()));
                    run.ask(now_us, members, &mut self.next, &mut out.requests);
                    run.put_together(*id, &self.hasher, &mut out.jobs);
                    run.end(*id, &mut out.jobs);
                }
                Stage::GivingUp(outcome) if run.jobs == 0 => {
                    run.stage = Stage::Aborting(outcome.take());
                    let (run, side) = (*id, run.side.clone());
                    out.jobs.push(Job::new("take back", move || {
                        let _ = side.abort(); // no effect on one that had ended
                        JobResult::Recovery(run, RecoveryCompletion::Aborted)
                    }));
                }
                Stage::Reporting(outcome, due_us) if *due_us <= now_us => {
                    *due_us = now_us + PATIENCE_US;
                    self.next += 1;
                    let token = Token::Recovery(self.next);
                    self.tokens.insert(token, *id);
                    let report = ToCoordinator::PartitionDone(PartitionDone {
                        recovery: id.0,
                        partition: id.1,
                        server: me,
                        outcome: outcome.clone(),
                    });
                    out.reports.push((token, report));
                }
                Stage::Waiting(since) if *since > told => {}
                Stage::Waiting(_) | Stage::Dropped => {
                    if matches!(run.stage, Stage::Waiting(_)) {
                        out.recovered.push(run.order.log);
                    }
                    out.ended.push(run.ranges.clone());
                    run.stage = Stage::Over;
                }
                _ => {}
            }
            if run.tells_progress() && run.progress_us <= now_us {
                run.progress_us = now_us + PROGRESS_US;
                self.next += 1;
                let token = Token::Recovery(self.next); // the answer is ignored
                out.reports.push((token, run.progress_report(*id, me)));
            }
        }
        self.runs.retain(|_, run| !matches!(run.stage, Stage::Over));
        self.tokens.retain(|_, run| self.runs.contains_key(run));
    }

    /// The answer of a backup; `None`: it was not reached. A job replays its entries.
    pub fn answered(
        &mut self,
        now_us: u64,
        call: PeerCall,
        answer: Option<(PeerAnswer, Slice)>,
        jobs: &mut Vec<Job>,
    ) {
        let mut runs = self.runs.values_mut();
        if let Some(run) = runs.find(|run| run.damaged.has(call)) {
            return run.damaged.answered(now_us, call, answer);
        }
        let found = self.runs.iter_mut().find_map(|(id, run)| {
            let mut parts = run.parts.iter();
            let of = parts.find(|(_, part)| part.asked.contains(&call));
            of.map(|(segment, _)| *segment)
                .map(|segment| (*id, run, segment))
        });
        let Some((id, run, segment)) = found else {
            return; // of a piece that has arrived
        };
        let part = run.parts.get_mut(&segment).expect("it was just seen");
        let has_piece = matches!(answer, Some((PeerAnswer::Entries { .. }, _)));
        if part.asked.last() != Some(&call) && !has_piece {
            return part.asked.retain(|asked| *asked != call); // a source that was left
        }
        part.asked.clear();
        part.due_us = now_us;
        match answer {
            Some((PeerAnswer::Entries { next, .. }, payload)) => {
                let took_us = now_us.saturating_sub(part.asked_us);
                run.window = match took_us <= QUICK_US {
                    true => (run.window + 1).min(READS_MAX),
                    false => (run.window / 2).max(WINDOW_MIN),
                };
                part.goes_on(next);
                part.jobs += 1;
                run.jobs += 1;
                run.job_bytes += payload.len();
                let (side, attempt) = (run.side.clone(), part.attempt);
                let payload = aligned(payload);
                jobs.push(Job::new("replay", move || {
                    let completion = RecoveryCompletion::Replayed {
                        segment,
                        attempt,
                        bytes: payload.len(),
                        result: side.replay(&payload),
                    };
                    JobResult::Recovery(id, completion)
                }));
            }
            Some((PeerAnswer::NotYet { after_ms }, _)) => {
                part.due_us = now_us + u64::from(after_ms) * 1000;
            }
            Some((PeerAnswer::Bad { .. }, _)) => {
                part.is_bad = true;
                part.turn();
            }
            _ => {
                part.leave();
                part.asked.clear();
                part.due_us = now_us + REST_US;
            }
        }
    }

    /// An unanswered request is not lost: its connection moves.
    pub fn moving(&mut self, now_us: u64, call: PeerCall) {
        let parts = self
            .runs
            .values_mut()
            .flat_map(|run| run.parts.values_mut());
        for part in parts.filter(|part| part.asked.contains(&call)) {
            part.due_us = part.due_us.max(now_us + PATIENCE_US);
        }
    }

    /// Handles the end of a job.
    pub fn job_done(&mut self, now_us: u64, id: RunId, completion: RecoveryCompletion) {
        let Some(run) = self.runs.get_mut(&id) else {
            return;
        };
        match completion {
            RecoveryCompletion::Replayed {
                segment,
                attempt,
                bytes,
                result,
            } => {
                let part = run.parts.get(&segment);
                let attempt = match part.filter(|_| has_bug(Bug::OldPiecesCount)) {
                    Some(part) => part.attempt,
                    None => attempt,
                };
                run.replayed(segment, attempt, bytes, result);
            }
            RecoveryCompletion::PutTogether { segment, result } => {
                run.was_put_together(segment, result);
            }
            RecoveryCompletion::Committed(Ok(commit)) => {
                run.is_committed = true;
                run.stage = Stage::Settling(commit, now_us + SETTLE_US, usize::MAX);
            }
            RecoveryCompletion::Committed(Err(error)) => run.fail(&error),
            RecoveryCompletion::Aborted => {
                let outcome = match &mut run.stage {
                    Stage::Aborting(outcome) => outcome.take(),
                    _ => return,
                };
                run.stage = match outcome {
                    Some(outcome) => Stage::Reporting(outcome, now_us),
                    None => Stage::Over,
                };
            }
        }
    }

    /// The coordinator's answer to a report; `None`: it was not reached.
    pub fn reported(&mut self, now_us: u64, token: Token, answer: Option<&CoordinatorAnswer>) {
        let id = self.tokens.remove(&token);
        let Some(run) = id.and_then(|id| self.runs.get_mut(&id)) else {
            return;
        };
        let Stage::Reporting(outcome, due_us) = &mut run.stage else {
            return;
        };
        let is_replayed = matches!(outcome, PartitionOutcome::Replayed { .. });
        let stays = has_bug(Bug::StaleStays);
        match answer {
            Some(CoordinatorAnswer::Accepted { since }) if is_replayed => {
                run.stage = Stage::Waiting(*since);
            }
            Some(CoordinatorAnswer::Stale) if is_replayed && stays => run.stage = Stage::Over,
            Some(CoordinatorAnswer::Accepted { .. } | CoordinatorAnswer::Stale) => run.leave(),
            _ => *due_us = now_us + REST_US,
        }
    }

    /// The coordinator gives this partition up. A run that is being committed, or was accepted,
    /// continues: its report is stale, or a list contains the owner.
    pub fn abort(&mut self, id: RunId) {
        let Some(run) = self.runs.get_mut(&id) else {
            return;
        };
        match &mut run.stage {
            Stage::Replaying => run.give_up(None),
            Stage::GivingUp(outcome) | Stage::Aborting(outcome) => *outcome = None,
            Stage::Reporting(..) => run.leave(),
            Stage::Committing
            | Stage::Settling(..)
            | Stage::Waiting(_)
            | Stage::Dropped
            | Stage::Over => {}
        }
    }
}

impl Run {
    fn due_us(&self) -> u64 {
        let has_room = self.has_room();
        let due = match self.stage {
            Stage::Replaying => {
                let wait =
                    |part: &&Part| !part.asked.is_empty() || has_room && part.offset.is_some();
                let parts = self.parts.values().filter(wait);
                let parts = parts.map(|part| part.due_us);
                parts.chain(self.damaged.due_us()).min()
            }
            Stage::Reporting(_, due_us) | Stage::Settling(_, due_us, _) => Some(due_us),
            _ => None,
        };
        let progress = self.tells_progress().then_some(self.progress_us);
        due.into_iter().chain(progress).min().unwrap_or(u64::MAX)
    }

    fn tells_progress(&self) -> bool {
        matches!(
            self.stage,
            Stage::Replaying | Stage::Committing | Stage::Settling(..)
        )
    }

    fn progress_report(&self, id: RunId, server: ServerId) -> ToCoordinator {
        let progress = self.progress(id);
        ToCoordinator::PartitionProgress(message::PartitionProgress {
            recovery: id.0,
            partition: id.1,
            server,
            bytes: progress.bytes,
            bytes_total: progress.bytes_total,
            entries: progress.entries,
        })
    }

    fn progress(&self, id: RunId) -> PartitionProgress {
        let report = self.side.report();
        let segments = self.order.segments.len() as u64;
        let estimate = (report.bytes * segments).checked_div(self.read);
        PartitionProgress {
            recovery: id.0,
            partition: id.1,
            log: self.order.log,
            bytes: report.bytes,
            bytes_total: estimate.unwrap_or(0).max(report.bytes),
            entries: report.entries,
        }
    }

    /// Whether another piece may be requested.
    fn has_room(&self) -> bool {
        let asked = self.parts.values().filter(|part| !part.asked.is_empty());
        let asked = asked.count();
        asked < self.window && asked * READ_BYTES as usize + self.job_bytes < self.ahead_bytes
    }

    /// Fills up the number of segments that are read at once.
    fn refill(&mut self, now_us: u64, look_ahead: usize) {
        while self.parts.len() < READS_MAX && !self.unread.is_empty() {
            let first = |n: usize| self.order.segments[n].sources.first().copied();
            let at_work = |source: Option<ServerId>| {
                let parts = self.parts.keys();
                parts.filter(|n| first(**n) == source).count()
            };
            let near = self.unread.iter().take(look_ahead).enumerate();
            let best = near.min_by_key(|(at, n)| (at_work(first(**n)), *at));
            let at = best.expect("there is one").0;
            let segment = self.unread.remove(at).expect("it was just seen");
            self.parts.insert(segment, Part::new(now_us));
        }
    }

    fn ask(
        &mut self,
        now_us: u64,
        members: &Members,
        next: &mut u64,
        requests: &mut Vec<PeerRequest>,
    ) {
        let due = |(_, part): &(&usize, &Part)| {
            part.due_us <= now_us && (!part.asked.is_empty() || part.offset.is_some())
        };
        let parts = self.parts.iter().rev();
        let due: Vec<usize> = parts.filter(due).map(|(n, _)| *n).collect();
        for segment in due {
            let part = self.parts.get_mut(&segment).expect("it was just seen");
            let is_late = !part.asked.is_empty();
            if is_late {
                part.leave();
            }
            let wanted = &self.order.segments[segment];
            let alive = wanted.sources.iter().filter(|id| members.is_up(**id));
            let alive: Vec<ServerId> = alive.copied().collect();
            if alive.is_empty() {
                part.failed += 1; // unless the list here is about to name one
                part.asked.clear();
                part.due_us = now_us + REST_US;
            }
            if part.failed >= alive.len().max(1) * ROUNDS_MAX {
                if !self.fetch_bad(now_us, segment, alive) {
                    return self.lacks(self.order.segments[segment].segment);
                }
                continue;
            }
            if alive.is_empty() {
                continue;
            }
            // A repetition takes the place of the request before it.
            if !is_late && !self.has_room() {
                continue;
            }
            let part = self.parts.get_mut(&segment).expect("it was just seen");
            let Some(offset) = part.offset else {
                continue;
            };
            let question = Peer::ReadReplica(ReadReplica {
                recovery: self.order.recovery,
                partition: self.order.partition,
                log: self.order.log,
                segment: wanted.segment,
                certificate: wanted.certificate,
                tablets: self.order.tablets.clone(),
                offset,
                bytes_max: READ_BYTES,
            });
            *next += 1;
            let call = PeerCall::Recovery(*next);
            part.asked.push(call);
            (part.asked_us, part.due_us) = (now_us, now_us + PATIENCE_US);
            requests.push(PeerRequest {
                call,
                to: alive[part.left % alive.len()],
                question,
                payload: Slice::default(),
            });
        }
        if !self.ask_damaged(now_us, next, requests) {
            self.lacks(SegmentId::NONE);
        }
    }

    /// R7: a segment's replicas are fetched as they are, or wait for that. Returns false if it is
    /// not damage that keeps them away.
    fn fetch_bad(&mut self, now_us: u64, segment: usize, holders: Vec<ServerId>) -> bool {
        let part = self.parts.get_mut(&segment).expect("it is being read");
        if !part.is_bad || part.jobs > 0 {
            return false;
        }
        if self.damaged.has_room() {
            self.parts.remove(&segment);
            let mut away = self.order.segments[segment].sources.clone();
            away.retain(|source| !holders.contains(source));
            self.damaged.add(segment, holders, away);
        } else {
            part.due_us = now_us + REST_US;
        }
        true
    }

    /// No backup has this segment.
    fn lacks(&mut self, segment: SegmentId) {
        self.give_up(Some(PartitionOutcome::Failed {
            retry_elsewhere: false,
            reason: format!("no backup has segment {segment}"),
        }));
    }

    fn replayed(
        &mut self,
        segment: usize,
        attempt: u32,
        bytes: usize,
        result: Result<u64, SideError>,
    ) {
        self.jobs -= 1;
        self.job_bytes -= bytes;
        if !matches!(self.stage, Stage::Replaying) {
            return;
        }
        match (result, self.parts.get_mut(&segment)) {
            (Err(error @ (SideError::Store(_) | SideError::Closed | SideError::Busy)), _) => {
                self.fail(&error);
            }
            (Ok(_), Some(part)) if part.attempt == attempt => {
                part.jobs -= 1;
                if part.jobs == 0 && part.offset.is_none() {
                    self.read += 1;
                    self.parts.remove(&segment); // R6
                    self.expect();
                }
            }
            (Err(SideError::Damaged { .. }), Some(part)) if part.attempt == attempt => part.turn(),
            _ => {} // of an earlier attempt
        }
    }

    /// Makes the index grow in few steps, if all ranges are of one table. Only objects that stay
    /// count: memory for versions that are not kept would be missing for others.
    fn expect(&self) {
        let mut tables = self.ranges.iter().map(|(table, _)| table);
        let first = tables.next();
        if tables.any(|table| Some(table) != first) {
            return;
        }
        let left = (self.parts.len() + self.unread.len()) as u64;
        self.side
            .expect(self.side.report().kept_objects * left / self.read);
    }

    /// Commits the side log after the last segment.
    fn end(&mut self, id: RunId, jobs: &mut Vec<Job>) {
        let is_all = self.parts.is_empty() && self.unread.is_empty() && self.jobs == 0; // R5
        if !is_all || !self.damaged.is_empty() || !matches!(self.stage, Stage::Replaying) {
            return;
        }
        if let Some(outcome) = self.damaged.outcome() {
            return self.give_up(Some(outcome));
        }
        self.stage = Stage::Committing;
        let (side, creation) = (self.side.clone(), self.creation);
        jobs.push(Job::new("commit", move || {
            let committed = side.commit_above(creation); // R8
            JobResult::Recovery(id, RecoveryCompletion::Committed(committed))
        }));
    }

    /// R1: reports a durable partition. If no backup stores the log, this server may be at fault:
    /// then another master must get the partition, and its memory and frames are free at once.
    fn settle(&mut self, now_us: u64) {
        let Stage::Settling(commit, until_us, unwritten) = &mut self.stage else {
            return;
        };
        let left = self.side.unwritten();
        if left < *unwritten {
            (*until_us, *unwritten) = (now_us + SETTLE_US, left);
        }
        let outcome = if commit.is_durable() {
            let report = self.side.report();
            PartitionOutcome::Replayed {
                creation: self.creation,
                bytes: report.bytes,
                entries: report.entries,
            }
        } else if now_us < *until_us {
            return;
        } else {
            let outcome = PartitionOutcome::Failed {
                retry_elsewhere: true,
                reason: "its backups did not store what was replayed".to_owned(),
            };
            if self.side.withdraw() {
                self.is_committed = false;
                return self.give_up(Some(outcome));
            }
            outcome // its record may become durable: then all of it is purged
        };
        self.stage = Stage::Reporting(outcome, now_us);
    }

    /// The partition is given up: nothing stays here (R3).
    fn leave(&mut self) {
        self.stage = match self.is_committed {
            true => Stage::Dropped,
            false => Stage::Over,
        };
    }

    fn fail(&mut self, error: &SideError) {
        self.give_up(Some(PartitionOutcome::Failed {
            retry_elsewhere: true,
            reason: error.to_string(),
        }));
    }

    fn give_up(&mut self, outcome: Option<PartitionOutcome>) {
        self.parts.clear();
        self.unread.clear();
        self.stage = Stage::GivingUp(outcome);
    }
}

/// The ranges of a partition; `None`: its tablets overlap, so it is invalid.
pub(crate) fn ranges_of(order: &Recover) -> Option<Ranges> {
    let tablets = order.tablets.iter();
    Ranges::new(tablets.map(|tablet| (tablet.table, tablet.range))).ok()
}

/// Segments among which the next one is chosen, with so many partitions here, and so many segments
/// of the log.
fn look_ahead(runs: usize, segments: usize) -> usize {
    match runs {
        0 | 1 => LOOK_AHEAD.min((segments / LOOK_AHEAD_PART).max(LOOK_AHEAD_SHORT)),
        _ => LOOK_AHEAD_SHORT,
    }
}

/// Aligns entries to multiples of 8 in memory. Large messages are aligned already.
fn aligned(entries: Slice) -> Slice {
    match entries.as_ptr().addr().is_multiple_of(ALIGN_BYTES) {
        true => entries,
        false => entries.to_vec().into(),
    }
}

/// Creates the tables of a partition, if they do not exist; returns whether they exist now.
fn make_tables(store: &Arc<Store>, order: &Recover, ranges: &Ranges) -> bool {
    let engine = store.engine();
    let there = engine.tables().list();
    let wanted = |table: TableId| ranges.iter().any(|(id, _)| id == table);
    order.tables.iter().all(|entry| {
        let known = there.iter().find(|table| table.id == entry.table);
        match known {
            _ if !wanted(entry.table) => true,
            Some(table) => table.name == entry.name,
            None => {
                let made = engine.tables().adopt(entry.table, &entry.name, entry.level);
                made.is_ok()
            }
        }
    })
}

#[cfg(test)]
pub(crate) mod tests;
