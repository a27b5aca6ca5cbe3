//! The target of a migration: received entries go into a side log, which becomes part of the log
//! when all have arrived.

use super::{
    ASK_US, Environment, LOCK_BYTES, LOOK_US, Names, Outputs, PATIENCE_US, REST_US, Result,
    SETTLE_US,
};
use crate::job::{Job, JobResult, MigrationCompletion};
use crate::requests::RequestId;
use crate::serve::Clients;
use duramen::Store;
use duramen_base::ids::{KeyRange, MigrationId, SegmentId, ServerId, TableId};
use duramen_base::planted::{Bug, has_bug};
use duramen_engine::{SideCommit, SideError, SideLog, SidePlan};
use duramen_wire::native::message::{
    CoordinatorAnswer, MigrateEntries, MigrationDone, MigrationOutcome, MigrationPhase,
    MigrationProgress, NO_ROOM, PeerAnswer, ToCoordinator,
};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Most messages ahead of the first missing one.
const AHEAD_MAX: u64 = 64;
/// With this many bytes of messages in replay, no other message is accepted.
const REPLAYING_MAX: usize = 4 << 20;
/// A replay that takes longer is waiting for memory or a device: no client should wait for that.
const REPLAY_US: u64 = 2_000_000;
/// Segments of the side log that may wait to be written before the source is held up: they are what
/// is left to write after the source has locked.
const UNWRITTEN_MAX: usize = 2;
/// Most memory for segments that may be in use when everything has arrived, in percent.
const FULL_PERCENT: u64 = 90;
/// Most memory for the keys of entries on flash, in percent.
const INDEX_PERCENT: u64 = 60;
/// An index smaller than this part of memory gives no estimate of the memory for keys.
const INDEX_TELLS_PART: u64 = 16;
/// A move fails after so many messages with damaged bytes: a bit that flips by chance comes alone.
const DAMAGED_MAX: u32 = 8;
/// Delay for the source while this side is not ready.
const NOT_YET_MS: u32 = 10;
/// Interval of the progress reports to the coordinator.
const PROGRESS_US: u64 = 500_000;

enum Stage {
    /// Its source has not begun, or its turn has not come, or the list is not applied yet, or part
    /// of the range is here ([`crate::occupancy`]).
    Waiting,
    Filling,
    Committing(SideCommit),
    /// Everything is durable. The coordinator is asked for an answer, (again) at this time
    /// (migration::M9).
    Asking(u64),
    /// The outcome is reported to the coordinator, (again) at this time.
    Reporting(MigrationOutcome, u64),
    /// The outcome has been reported: the target waits for the list.
    Reported,
}

/// A message that has arrived.
enum Arrival {
    Replaying {
        /// The requests that wait for the answer.
        waiting: Vec<RequestId>,
        bytes: usize,
        until_us: u64,
    },
    Replayed,
}

impl Arrival {
    fn is_replaying(&self) -> bool {
        matches!(self, Arrival::Replaying { .. })
    }

    fn into_waiting(self, sequence: u64) -> impl Iterator<Item = (RequestId, u64)> {
        let waiting = match self {
            Arrival::Replaying { waiting, .. } => waiting,
            Arrival::Replayed => Vec::new(),
        };
        waiting.into_iter().map(move |request| (request, sequence))
    }
}

/// The target of a migration; see the module.
pub(super) struct Target {
    id: MigrationId,
    pub table: TableId,
    pub range: KeyRange,
    from: ServerId,
    run: u64,
    stage: Stage,
    side: Option<Arc<SideLog>>,
    /// Own segments with lower ids have no entries of it.
    creation: SegmentId,
    arrivals: BTreeMap<u64, Arrival>,
    /// All messages below this number are replayed.
    whole: u64,
    last: Option<u64>,
    /// Requests that came before the target's turn, one for each message. After that, requests
    /// whose messages were replayed: these are answered when few bytes are left to be written, and
    /// the last one when the outcome of the migration is known.
    held: Vec<(RequestId, u64)>,
    /// Requests whose message has to be sent again, because its bytes were damaged.
    again: Vec<RequestId>,
    /// Messages so far whose bytes were damaged.
    damaged: u32,
    /// The first empty message: answered when all before it is durable (migration::M9).
    settling: Option<u64>,
    /// The deadline for everything (migration::M9).
    until_us: u64,
    /// The reason of its failure (migration::M8).
    refused: Option<String>,
    bytes_total: u64,
    progress_us: u64,
}

/// A side log that is being taken back (migration::M4).
pub(super) struct Leftover {
    pub run: u64,
    pub table: TableId,
    pub range: KeyRange,
    side: Arc<SideLog>,
    replaying: usize,
    is_given: bool,
}

impl Target {
    pub fn new(
        id: MigrationId,
        table: TableId,
        range: KeyRange,
        from: ServerId,
        run: u64,
    ) -> Target {
        Target {
            id,
            table,
            range,
            from,
            run,
            stage: Stage::Waiting,
            side: None,
            creation: SegmentId::NONE,
            arrivals: BTreeMap::new(),
            whole: 0,
            last: None,
            again: Vec::new(),
            damaged: 0,
            held: Vec::new(),
            settling: None,
            until_us: u64::MAX,
            refused: None,
            bytes_total: 0,
            progress_us: 0,
        }
    }

    pub fn run(&self) -> u64 {
        self.run
    }

    /// Whether it waits, and this is its source.
    pub fn waits_for(&self, sender: ServerId) -> bool {
        matches!(self.stage, Stage::Waiting) && sender == self.from
    }

    /// Whether [`poll`](Self::poll) may have anything to do before the list ends it.
    pub fn has_work(&self) -> bool {
        !matches!(self.stage, Stage::Waiting | Stage::Reported)
    }

    /// Begins: the list is applied, and no part of the range is left here. The source sends again
    /// what it has sent.
    pub fn begin(&mut self, store: &Arc<Store>, out: &mut Outputs) {
        for (request, _) in self.held.drain(..) {
            out.answer(request, PeerAnswer::NotYet { after_ms: 0 });
        }
        self.creation = store.engine().heads().try_roll();
        let plan = SidePlan::default();
        self.side = Some(Arc::new(store.engine().side_log(plan)));
        self.stage = Stage::Filling;
    }

    /// The source has sent a message (migration::M5).
    #[expect(clippy::too_many_arguments, reason = "a frame's fields")]
    pub fn arrived(
        &mut self,
        now_us: u64,
        request: RequestId,
        sender: ServerId,
        message: MigrateEntries,
        entries: Vec<u8>,
        env: &Environment<'_>,
        out: &mut Outputs,
    ) {
        let sequence = message.sequence;
        let not_yet = PeerAnswer::NotYet {
            after_ms: NOT_YET_MS,
        };
        let migrated = PeerAnswer::Migrated { sequence };
        if sender != self.from {
            return out.answer(request, not_yet);
        }
        if let Some(reason) = self.refused.clone() {
            return out.answer(request, PeerAnswer::MigrationRefused { reason });
        }
        match &self.stage {
            Stage::Waiting => return self.keep_waiting(request, sequence, out),
            Stage::Committing(_) | Stage::Asking(_) => return self.held.push((request, sequence)),
            Stage::Reporting(..) | Stage::Reported => return out.answer(request, migrated),
            Stage::Filling => {}
        }
        let is_too_much =
            sequence >= self.whole + AHEAD_MAX || self.replaying_bytes() > REPLAYING_MAX;
        match self.arrivals.get_mut(&sequence) {
            Some(Arrival::Replaying { waiting, .. }) => return waiting.push(request),
            Some(Arrival::Replayed) => return self.held.push((request, sequence)),
            None if sequence < self.whole => return self.held.push((request, sequence)),
            None if is_too_much => return out.answer(request, not_yet),
            None => {}
        }
        let Some(side) = self.side.clone() else {
            return out.answer(request, not_yet);
        };
        let is_question = entries.is_empty() && !message.last;
        let bytes = self.wants_room(&message, entries.len());
        if let Err(reason) = room_for(bytes, &side, env.store) {
            self.fail(now_us, reason.clone());
            return out.answer(request, PeerAnswer::MigrationRefused { reason });
        }
        self.bytes_total = self.bytes_total.max(message.bytes_total);
        side.raise_version_floor(message.safe_version);
        if message.last {
            self.last = Some(sequence);
        }
        let arrival = Arrival::Replaying {
            waiting: vec![request],
            bytes: entries.len(),
            until_us: now_us + REPLAY_US,
        };
        self.arrivals.insert(sequence, arrival);
        if is_question {
            self.settling.get_or_insert(sequence);
            return self.replayed(now_us, sequence, Ok(true));
        }
        out.jobs.push(self.replay(&message, side, entries));
    }

    /// The job that replays a message. It also closes heads that are below the position, which the
    /// node's thread may not wait for (waits::W4): before the end, and most likely before the
    /// source locks.
    fn replay(&self, message: &MigrateEntries, side: Arc<SideLog>, entries: Vec<u8>) -> Job {
        let (run, creation, sequence) = (self.run, self.creation, message.sequence);
        let closes_heads = sequence == 0 || message.last;
        Job::new("replay", move || {
            if closes_heads {
                side.close_heads_below(creation);
            }
            let result = match side.replay(&entries) {
                Err(SideError::Damaged { .. }) if !has_bug(Bug::DamageEndsMove) => Ok(false),
                result => result.map(|_| true).map_err(|e| e.to_string()),
            };
            JobResult::Migration(run, MigrationCompletion::Replayed(sequence, result))
        })
    }

    /// Messages whose bytes were damaged: the source sends them again.
    fn ask_again(&mut self, out: &mut Outputs) {
        let after_ms = NOT_YET_MS;
        for request in self.again.drain(..) {
            out.answer(request, PeerAnswer::NotYet { after_ms });
        }
    }

    /// The message is sent again when it is this migration's turn. The answer to an earlier request
    /// of the same message changes nothing: connections have no room for many open requests.
    fn keep_waiting(&mut self, request: RequestId, sequence: u64, out: &mut Outputs) {
        let after_ms = (PATIENCE_US / 1000) as u32;
        let is_same = |held: &mut (RequestId, u64)| held.1 == sequence;
        for (earlier, _) in self.held.extract_if(.., is_same) {
            out.answer(earlier, PeerAnswer::NotYet { after_ms });
        }
        self.held.push((request, sequence));
    }

    /// Bytes for which a message needs room: the first one for all, and the source's question
    /// before it locks for the rest, which is no more than all.
    fn wants_room(&self, message: &MigrateEntries, entries: usize) -> u64 {
        match entries {
            _ if message.last => 0,
            0 => message.bytes_total.min(LOCK_BYTES as u64),
            _ if self.bytes_total == 0 => message.bytes_total,
            bytes => bytes as u64,
        }
    }

    /// A message was replayed.
    pub fn replayed(&mut self, now_us: u64, sequence: u64, result: Result<bool>) {
        if let Ok(false) = result {
            self.damaged += 1;
        }
        let result = match result {
            Ok(false) if self.damaged < DAMAGED_MAX => {
                let arrival = self.arrivals.remove(&sequence);
                let waiting = arrival.into_iter().flat_map(|it| it.into_waiting(sequence));
                return self.again.extend(waiting.map(|(request, _)| request));
            }
            Ok(false) => Err(format!(
                "{DAMAGED_MAX} messages had damaged bytes: the memory of server {}, or the network",
                self.from
            )),
            result => result,
        };
        if let Err(reason) = result {
            // Its job has ended: the entries are taken back when the others have ended.
            if let Some(arrival) = self.arrivals.remove(&sequence) {
                self.held.extend(arrival.into_waiting(sequence));
            }
            return self.fail(now_us, reason);
        }
        let before = self.arrivals.insert(sequence, Arrival::Replayed);
        if let Some(arrival) = before {
            self.held.extend(arrival.into_waiting(sequence));
        }
        while let Some(Arrival::Replayed) = self.arrivals.get(&self.whole) {
            self.arrivals.remove(&self.whole);
            if self.settling == Some(self.whole) {
                self.side.iter().for_each(|side| side.settle());
            }
            self.whole += 1;
        }
    }

    fn is_replaying(&self) -> bool {
        let mut arrivals = self.arrivals.values();
        arrivals.any(Arrival::is_replaying)
    }

    fn replaying_bytes(&self) -> usize {
        let bytes = self.arrivals.values().map(|arrival| match arrival {
            Arrival::Replaying { bytes, .. } => *bytes,
            Arrival::Replayed => 0,
        });
        bytes.sum()
    }

    /// The time after which the first replay has taken too long.
    fn stuck_us(&self) -> u64 {
        let untils = self.arrivals.values().map(|arrival| match arrival {
            Arrival::Replaying { until_us, .. } => *until_us,
            Arrival::Replayed => u64::MAX,
        });
        untils.min().unwrap_or(u64::MAX)
    }

    /// Continues the migration.
    pub fn poll(
        &mut self,
        now_us: u64,
        env: &Environment<'_>,
        names: &mut Names,
        out: &mut Outputs,
    ) {
        if matches!(self.stage, Stage::Filling) && self.stuck_us() <= now_us {
            self.fail(now_us, "the target finds no memory in time".to_owned());
        }
        self.ask_again(out);
        self.answer(out);
        if let (Stage::Filling, Some(side)) = (&self.stage, self.side.clone())
            && !self.is_replaying()
            && let Some(last) = self.last
            && (self.whole > last || has_bug(Bug::LastIsEnough))
        {
            match side.commit() {
                Ok(commit) => {
                    self.stage = Stage::Committing(commit);
                    self.until_us = now_us + SETTLE_US;
                    self.progress_us = now_us; // all of it
                }
                Err(error) => self.fail(now_us, error.to_string()),
            }
        }
        self.settle(now_us, env, names, out);
        self.answer(out);
        self.report_progress(now_us, env, names, out);
        if let Stage::Reporting(outcome, due_us) = &mut self.stage
            && *due_us <= now_us
        {
            *due_us = now_us + PATIENCE_US;
            let is_first = std::mem::replace(&mut self.until_us, u64::MAX) != u64::MAX;
            if is_first && self.refused.is_none() && has_bug(Bug::ServedBeforeListed) {
                out.unlocked.push(self.id);
            }
            let report = ToCoordinator::MigrationDone(MigrationDone {
                migration: self.id,
                server: env.me,
                outcome: outcome.clone(),
            });
            out.reports.push((names.token(self.id), report));
        }
    }

    /// migration::M9: waits until everything is durable, then until the coordinator answers.
    fn settle(&mut self, now_us: u64, env: &Environment<'_>, names: &mut Names, out: &mut Outputs) {
        let reason = match &self.stage {
            Stage::Committing(_) => "the target does not store it in time",
            Stage::Asking(_) => "the target does not reach the coordinator",
            _ => return,
        };
        if self.until_us <= now_us {
            self.until_us = u64::MAX;
            if has_bug(Bug::RefusesAndReports) {
                return self.refuse(reason, out);
            }
            return self.fail(now_us, reason.to_owned());
        }
        if let Stage::Committing(commit) = &self.stage
            && (commit.is_durable() || has_bug(Bug::ReportedBeforeDurable))
        {
            self.stage = Stage::Asking(now_us); // migration::M3
        }
        if let Stage::Asking(due_us) = &mut self.stage
            && *due_us <= now_us
        {
            *due_us = now_us + ASK_US;
            let progress = self.progress(env, MigrationPhase::Switching);
            out.reports.push((names.token(self.id), progress));
        }
    }

    fn progress(&self, env: &Environment<'_>, phase: MigrationPhase) -> ToCoordinator {
        let report = self.side.as_ref().map(|side| side.report());
        let report = report.unwrap_or_default();
        ToCoordinator::MigrationProgress(MigrationProgress {
            migration: self.id,
            server: env.me,
            bytes: report.bytes,
            bytes_total: self.bytes_total,
            entries: report.entries,
            phase,
        })
    }

    fn report_progress(
        &mut self,
        now_us: u64,
        env: &Environment<'_>,
        names: &mut Names,
        out: &mut Outputs,
    ) {
        let phase = match self.stage {
            Stage::Filling if self.last.is_none() => MigrationPhase::Copying,
            Stage::Filling | Stage::Committing(_) => MigrationPhase::Switching,
            _ => return,
        };
        if self.progress_us > now_us {
            return;
        }
        self.progress_us = now_us + PROGRESS_US;
        out.reports
            .push((names.untracked(), self.progress(env, phase)));
    }

    /// Answers the source, if the disks of this side keep up, and the last message when the outcome
    /// is known.
    fn answer(&mut self, out: &mut Outputs) {
        if let Some(reason) = self.refused.clone() {
            return self.refuse(&reason, out);
        }
        let unwritten = match self.stage {
            Stage::Filling => self.side.as_ref().map_or(0, |side| side.unwritten()),
            Stage::Committing(_) | Stage::Asking(_) => return,
            _ => 0,
        };
        let settling = self.settling;
        // The outcome of the last one is known later (migration::M8).
        let last = self.last.filter(|_| matches!(self.stage, Stage::Filling));
        let goes = |sequence: u64| match settling == Some(sequence) {
            true => unwritten == 0,
            false => unwritten <= UNWRITTEN_MAX && last != Some(sequence),
        };
        for (request, sequence) in self.held.extract_if(.., |(_, sequence)| goes(*sequence)) {
            out.answer(request, PeerAnswer::Migrated { sequence });
        }
    }

    fn refuse(&mut self, reason: &str, out: &mut Outputs) {
        for (request, _) in self.held.drain(..) {
            let reason = reason.to_owned();
            out.answer(request, PeerAnswer::MigrationRefused { reason });
        }
    }

    /// When [`poll`](Self::poll) has work without any input.
    pub fn due_us(&self, now_us: u64) -> u64 {
        let own = match &self.stage {
            Stage::Reporting(_, due_us) => *due_us,
            Stage::Filling => self.progress_us.min(self.until_us).min(self.stuck_us()),
            Stage::Committing(_) => self.progress_us.min(self.until_us),
            Stage::Asking(due_us) => self.until_us.min(*due_us),
            Stage::Waiting | Stage::Reported => u64::MAX,
        };
        match self.held.is_empty() || !matches!(self.stage, Stage::Filling) {
            true => own,
            false => own.min(now_us + LOOK_US),
        }
    }

    /// The migration fails (migration::M8).
    fn fail(&mut self, now_us: u64, reason: String) {
        if let Stage::Filling | Stage::Committing(_) | Stage::Asking(_) = self.stage {
            self.refused = Some(reason.clone());
            for (sequence, arrival) in &mut self.arrivals {
                if let Arrival::Replaying { waiting, .. } = arrival {
                    let held = waiting.drain(..).map(|request| (request, *sequence));
                    self.held.extend(held);
                }
            }
            self.stage = Stage::Reporting(MigrationOutcome::Failed { reason }, now_us);
        }
    }

    /// The coordinator's answer to a report; `None`: it was not reached.
    pub fn reported(&mut self, now_us: u64, answer: Option<&CoordinatorAnswer>) {
        match (&mut self.stage, answer) {
            (Stage::Asking(_), Some(CoordinatorAnswer::Noted)) => {
                let creation = self.creation;
                self.stage = Stage::Reporting(MigrationOutcome::Complete { creation }, now_us);
            }
            (
                Stage::Reporting(..),
                Some(CoordinatorAnswer::Accepted { .. } | CoordinatorAnswer::Stale),
            ) => self.stage = Stage::Reported,
            (Stage::Asking(due_us) | Stage::Reporting(_, due_us), _) => *due_us = now_us + REST_US,
            _ => {}
        }
    }

    /// After a failure: the side log is taken back, in parallel with the report.
    pub fn take_leftover(&mut self) -> Option<Leftover> {
        match self.stage {
            Stage::Reporting(MigrationOutcome::Failed { .. }, _) => self.leftover(),
            _ => None,
        }
    }

    fn leftover(&mut self) -> Option<Leftover> {
        let side = self.side.take()?;
        let arrivals = self.arrivals.values();
        let replaying = arrivals.filter(|arrival| arrival.is_replaying());
        Some(Leftover {
            run: self.run,
            table: self.table,
            range: self.range,
            side,
            replaying: replaying.count(),
            is_given: false,
        })
    }

    /// The list does not have the migration any more. Committed entries belong to the log: they are
    /// served, or purged by the list's order.
    pub fn end(mut self, out: &mut Outputs) -> Option<Leftover> {
        self.ask_again(out);
        let after_ms = NOT_YET_MS;
        let replaying = self
            .arrivals
            .values_mut()
            .flat_map(|arrival| match arrival {
                Arrival::Replaying { waiting, .. } => std::mem::take(waiting),
                Arrival::Replayed => Vec::new(),
            });
        let held = self.held.drain(..).map(|(request, _)| request);
        for request in held.chain(replaying) {
            out.answer(request, PeerAnswer::NotYet { after_ms });
        }
        match self.stage {
            Stage::Filling | Stage::Reporting(MigrationOutcome::Failed { .. }, _) => {
                self.leftover()
            }
            _ => None,
        }
    }
}

impl Leftover {
    /// A replay in progress has ended.
    pub fn replayed(&mut self) {
        self.replaying -= 1;
    }

    /// Outputs the job that takes it back, with its completion records: once, when no replay uses
    /// it any more.
    pub fn poll(&mut self, clients: &Arc<Clients>, out: &mut Outputs) {
        if self.is_given || self.replaying > 0 {
            return;
        }
        self.is_given = true;
        let (side, run) = (self.side.clone(), self.run);
        let (clients, table, range) = (clients.clone(), self.table, self.range);
        out.jobs.push(Job::new("take back", move || {
            side.withdraw();
            let _ = side.abort(); // no effect on one that is part of the log, or will be
            clients.purge(table, &range);
            JobResult::Migration(run, MigrationCompletion::TakenBack)
        }));
    }
}

/// Most live bytes when everything has arrived: in memory, and on flash as far as the index, which
/// stays in memory, has room for the keys. An estimate: keys of other tables or ranges may be
/// longer or shorter.
pub(crate) fn takes_over_max(stats: &duramen_engine::Stats) -> u64 {
    let memory = stats.segment_budget_bytes;
    let flash = &stats.flash;
    let on_flash = if flash.is_off {
        flash.live_bytes
    } else {
        flash.bytes
    };
    let both = memory.saturating_add(on_flash) * FULL_PERCENT / 100;
    let for_keys = (memory + stats.index_bytes) * INDEX_PERCENT / 100;
    // A small index has pages for a few keys, or for keys that are gone: it gives no estimate for
    // new keys.
    if stats.index_bytes <= memory / INDEX_TELLS_PART {
        return both;
    }
    let indexed = u128::from(for_keys) * u128::from(stats.live_bytes);
    let indexed = indexed / u128::from(stats.index_bytes);
    both.min(u64::try_from(indexed).unwrap_or(u64::MAX))
        .max(memory * FULL_PERCENT / 100)
}

/// Checks that the side log may grow by so many bytes. A refusal now is better than after the
/// source has sent everything, or while it is locked. Dead bytes of the side log stay until its
/// end.
fn room_for(bytes: u64, side: &SideLog, store: &Arc<Store>) -> Result<()> {
    let stats = store.engine().stats();
    let limit = takes_over_max(&stats);
    let used = stats.live_bytes.saturating_add(side.report().dead_bytes);
    if bytes == 0 || used.saturating_add(bytes) <= limit {
        return Ok(());
    }
    Err(format!(
        "{NO_ROOM}: {bytes} bytes come, {used} are there, and {limit} may be"
    ))
}

#[cfg(test)]
mod tests {
    use super::takes_over_max;
    use duramen_engine::{FlashStats, Stats};

    const MIB: u64 = 1 << 20;

    #[test]
    fn flash_counts_as_room_as_far_as_memory_has_room_for_keys() {
        let alone = Stats {
            segment_budget_bytes: 90 * MIB,
            index_bytes: 10 * MIB,
            live_bytes: 50 * MIB,
            ..Stats::default()
        };
        assert_eq!(takes_over_max(&alone), 81 * MIB);
        let with = |bytes: u64, is_off| Stats {
            flash: FlashStats {
                bytes,
                live_bytes: 20 * MIB,
                is_off,
                ..FlashStats::default()
            },
            ..alone
        };
        assert_eq!(takes_over_max(&with(110 * MIB, false)), 180 * MIB);
        // A byte of the index for five of entries: 60 MiB are enough for 300.
        assert_eq!(takes_over_max(&with(10_000 * MIB, false)), 300 * MIB);
        assert_eq!(takes_over_max(&with(10_000 * MIB, true)), 99 * MIB);
        let empty = Stats {
            live_bytes: 0,
            index_bytes: 0,
            ..with(110 * MIB, false)
        };
        assert_eq!(takes_over_max(&empty), 180 * MIB);
        // All keys were given away, or one key is there: the index still has pages.
        let emptied = Stats {
            index_bytes: 2 * MIB,
            ..empty
        };
        assert_eq!(takes_over_max(&emptied), 180 * MIB);
    }
}
