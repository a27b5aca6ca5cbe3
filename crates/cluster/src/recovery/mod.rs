//! The recovery of one dead server's tablets, for the coordinator: fence, collect, complete, cut,
//! replay, hand over.
//!
//! **Invariants**
//! - Y1: an attempt has an id of its own; messages of another attempt do not count (docs/traps.md,
//!   trap 7).
//! - Y2: the partitions of an attempt are the dead server's tablets, each in one.
//! - Y3: a partition counts from one recovery master at a time. It is given to another one only
//!   when the first has refused it or has reported that it failed, has confirmed an order to give
//!   it back, or is crashed. The order is confirmed at once, also by a master that is committing
//!   what it has replayed. So the report is what is checked: it counts only from the master that
//!   has the partition then. A later one is stale, and its sender purges what it has. Until that
//!   is done, it accepts no order for these ranges (`occupancy::E1` in `duramen-node`).
//! - Y4: a partition is given to a master only if what is planned for it, over all recoveries, fits
//!   there ([`rooms`](super::coordinator)). Otherwise many masters would fail at half of their work
//!   at the same time, again and again.
//! - Y5: room for the tablets of a machine's former life is kept free of other logs' partitions
//!   while they wait for it. The data that it held before its end fits there, so after a full stop
//!   nobody depends on the order in which the machines come back.
//! - Y6: a partition is given only if the backups have frames for its copies, beside those of all
//!   others in progress, or if nothing else is in progress. A log's old frames are free when it is
//!   recovered as a whole. So logs for which there are not enough frames at once are recovered one
//!   after the other, and do not wait for each other's frames.
//! - Y7: a partition is given to no master that is unheard (`coordinator/unheard`), and is taken
//!   back from one that has become so: its report would not arrive. From the order to give it back
//!   on, a report of it is stale, also if it arrives: a master that obeys drops what it has.
//!
//! Paper: [Ousterhout15 §7]; docs/traps.md, "Replication and recovery".

pub(crate) mod collect;
mod losses;
pub(crate) mod plan;

use collect::{Collected, Log};
use duramen_base::ids::{RecoveryId, SegmentId, ServerId};
use duramen_format::certificate::Certificate;
use duramen_wire::native::message::{
    Recover, RecoverTablet, RecoveryPhase, RecoveryStatus, TableEntry,
};
pub(crate) use losses::Losses;
use plan::Piece;
use std::collections::{BTreeMap, BTreeSet};

/// More copies of an open segment are waited for this long, if those that are there may all be
/// older (collect::G6). After a full stop members are started at about the same time.
const COPIES_US: u64 = 5_000_000;

/// The state of a partition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// No recovery master has it.
    Waiting,
    /// This recovery master has it; `started` after it has confirmed.
    Given {
        to: ServerId,
        started: bool,
        asked_us: u64,
    },
    /// This recovery master is told to give it back, and has not confirmed that (Y7).
    TakenBack { from: ServerId, asked_us: u64 },
    /// Its tablets have new owners.
    Done { by: ServerId },
    /// Replicas were missing or damaged: the next attempt uses others.
    Failed,
}

impl Place {
    /// The recovery master that has it.
    pub(crate) fn master(&self) -> Option<ServerId> {
        match self {
            Place::Given { to, .. } | Place::TakenBack { from: to, .. } => Some(*to),
            Place::Waiting | Place::Done { .. } | Place::Failed => None,
        }
    }
}

/// A share of the dead server's tablets.
#[derive(Clone, Debug)]
pub(crate) struct Partition {
    pub tablets: Vec<RecoverTablet>,
    /// Whether it is all that is left, and is for the machine of the dead server alone.
    pub is_home: bool,
    /// Estimated bytes that it takes where it is replayed.
    pub bytes: u64,
    pub place: Place,
    /// Masters that had no space for it, or could not read the log in the attempt before.
    pub not_on: BTreeSet<ServerId>,
    /// Progress of its replay: bytes read, bytes in all, entries.
    pub progress: (u64, u64, u64),
}

/// One recovery, over all its attempts.
pub(crate) struct Recovery {
    pub id: RecoveryId,
    pub dead: ServerId,
    pub since_us: u64,
    pub collected: Collected,
    /// Backups that have not answered `StartRead`.
    pub asked: BTreeSet<ServerId>,
    /// The backups among them whose request has failed: they are asked again.
    pub silent: BTreeSet<ServerId>,
    /// When the rules are applied again.
    pub due_us: Option<u64>,
    /// Until then the dead server may serve reads.
    pub lease_until_us: u64,
    /// Nothing is decided before this time, unless all have answered: late answers bring more
    /// replicas to read from.
    pub patient_until_us: u64,
    /// Until then more copies of open segments are waited for; none: nothing has waited for them.
    /// It is set once for all attempts.
    pub copies_until_us: Option<u64>,
    /// Nothing is decided before this time: the attempt before has just failed.
    pub rest_until_us: u64,
    pub log: Option<Log>,
    /// Images of open segments that an attempt has chosen.
    pub images: BTreeMap<SegmentId, Certificate>,
    pub partitions: Vec<Partition>,
    /// Bytes that its tablets will take, as far as that is known.
    pub planned: u64,
    /// The time since which partitions wait for frames.
    pub lacks_frames: Option<u64>,
    /// Bytes of partitions that fit nowhere, and since when.
    pub lacks: Option<(u64, u64)>,
    /// Most bytes of a partition of this attempt.
    pub cut_bytes: u64,
    /// Number of attempts that ended for lack of space: each halves the partitions of the next one.
    pub finer: u32,
    /// Number of consecutive attempts that ended for lack of space, and recovered nothing.
    pub in_vain: u32,
    /// Bytes for which the last attempt found no space.
    pub lacking: u64,
    /// The room that the members reported at the end of that attempt.
    pub room: u64,
    /// Masters that could not read the log in the last attempt: others come first, as it may be
    /// their own fault.
    pub unlucky: BTreeSet<ServerId>,
    /// Recovered partitions of earlier attempts: number, bytes, entries.
    pub before: (u32, u64, u64),
    pub waits_for: Option<String>,
    /// The entries that no replica had at the last attempt that ended, or at this one.
    pub losses: Losses,
}

impl Recovery {
    pub(crate) fn new(
        id: RecoveryId,
        dead: ServerId,
        min_open: SegmentId,
        now_us: u64,
        patience_us: u64,
    ) -> Recovery {
        Recovery {
            id,
            dead,
            since_us: now_us,
            collected: Collected::new(dead, min_open),
            asked: BTreeSet::new(),
            silent: BTreeSet::new(),
            due_us: None,
            lease_until_us: now_us,
            patient_until_us: now_us + patience_us,
            copies_until_us: None,
            rest_until_us: now_us,
            log: None,
            images: BTreeMap::new(),
            partitions: Vec::new(),
            planned: 0,
            lacks_frames: None,
            lacks: None,
            cut_bytes: u64::MAX,
            finer: 0,
            in_vain: 0,
            lacking: 0,
            room: 0,
            unlucky: BTreeSet::new(),
            before: (0, 0, 0),
            waits_for: None,
            losses: Losses::default(),
        }
    }

    /// The losses that an operator would have to accept. An attempt that is replaying has to find
    /// them again: they may be on a server that has come since.
    pub(crate) fn lost(&self) -> Option<&Losses> {
        let counts = self.log.is_none() || self.losses.are_of(self.id);
        (counts && !self.losses.is_empty()).then_some(&self.losses)
    }

    /// Whether this attempt looks for what the last one did not find.
    pub(crate) fn looks_again(&self) -> bool {
        self.lost().is_none() && !self.losses.is_empty()
    }

    /// Whether more copies of an open segment are still waited for.
    pub(crate) fn waits_for_copies(&mut self, now_us: u64) -> bool {
        now_us < *self.copies_until_us.get_or_insert(now_us + COPIES_US)
    }

    /// The log is whole: begins to give this attempt's partitions.
    pub(crate) fn begin(&mut self, log: Log, partitions: Vec<Vec<Piece>>, cut_bytes: u64) {
        for segment in log.segments.iter().filter(|segment| !segment.closed) {
            self.images.insert(segment.segment, segment.certificate);
        }
        self.partitions = partitions
            .into_iter()
            .map(|pieces| Partition {
                bytes: pieces.iter().map(|piece| piece.bytes).sum(),
                tablets: pieces.into_iter().map(|piece| piece.tablet).collect(),
                is_home: false,
                place: Place::Waiting,
                not_on: self.unlucky.clone(),
                progress: (0, 0, 0),
            })
            .collect();
        self.log = Some(log);
        (self.lacks, self.cut_bytes) = (None, cut_bytes);
        self.lacks_frames = None;
        self.waits_for = None;
    }

    /// As [`begin`](Self::begin), with one partition, for the dead server's machine.
    pub(crate) fn begin_at_home(&mut self, log: Log, pieces: Vec<Piece>) {
        self.begin(log, vec![pieces], u64::MAX);
        for partition in &mut self.partitions {
            partition.is_home = true;
            partition.not_on.clear();
        }
    }

    /// The bytes of its tablets for which no master has a partition.
    pub(crate) fn waiting_bytes(&self) -> u64 {
        if self.log.is_none() {
            return self.planned;
        }
        let waiting = self.partitions.iter();
        let waiting = waiting.filter(|of| of.place == Place::Waiting);
        waiting.fold(0, |sum, of| sum.saturating_add(of.bytes))
    }

    pub(crate) fn has_given(&self) -> bool {
        let mut places = self.partitions.iter().map(|of| &of.place);
        places.any(|place| place.master().is_some())
    }

    /// Begins anew, under another id (Y1); backups are to be asked again, as some lacked reported
    /// replicas.
    ///
    /// # Panics
    /// If a recovery master still has a partition (Y3).
    pub(crate) fn begin_again(&mut self, id: RecoveryId) {
        let (mut lacks_space, mut has_done) = (false, false);
        self.lacking = 0;
        self.count_done();
        let before = std::mem::take(&mut self.unlucky);
        for partition in &self.partitions {
            match partition.place {
                Place::Done { .. } => has_done = true,
                Place::Given { .. } | Place::TakenBack { .. } => {
                    panic!("Y3: a partition is still replayed")
                }
                Place::Waiting => {
                    lacks_space |= !partition.not_on.is_subset(&before);
                    self.lacking = self.lacking.saturating_add(partition.bytes);
                }
                Place::Failed => self.unlucky.extend(&partition.not_on),
            }
        }
        self.losses.end(self.id);
        self.id = id;
        self.finer += u32::from(lacks_space);
        self.in_vain = match lacks_space && !has_done {
            true => self.in_vain + 1,
            false => 0,
        };
        self.partitions.clear();
        self.lacks = None;
        self.log = None;
        self.collected = self.collected.anew();
        self.asked.clear();
        self.silent.clear();
    }

    /// As [`begin_again`](Self::begin_again), also while masters have partitions: what they report
    /// does not count any more (Y1). Returns these partitions, each with its master.
    pub(crate) fn stop(&mut self, id: RecoveryId) -> Vec<(u32, ServerId)> {
        let mut given = Vec::new();
        for (number, partition) in (0..).zip(&mut self.partitions) {
            if let Some(by) = partition.place.master() {
                partition.place = Place::Failed;
                given.push((number, by));
            }
        }
        self.begin_again(id);
        given
    }

    /// Gives the log back to be cut anew, under another id (Y1).
    ///
    /// # Panics
    /// If a recovery master still has a partition (Y3).
    pub(crate) fn cut_again(&mut self, id: RecoveryId) -> Option<Log> {
        assert!(!self.has_given(), "Y3: a partition is still replayed");
        self.count_done();
        self.id = id;
        self.partitions.clear();
        self.log.take()
    }

    /// Counts recovered partitions as those of an earlier attempt.
    fn count_done(&mut self) {
        for partition in &self.partitions {
            if matches!(partition.place, Place::Done { .. }) {
                self.before.0 += 1;
                self.before.1 += partition.progress.1;
                self.before.2 += partition.progress.2;
            }
        }
    }

    /// A server is crashed: its reports and replicas are gone. Returns whether it had a partition.
    pub(crate) fn forget(&mut self, server: ServerId) -> bool {
        self.collected.forget(server);
        self.asked.remove(&server);
        self.silent.remove(&server);
        let mut had = false;
        for partition in &mut self.partitions {
            if partition.place.master() == Some(server) {
                partition.place = Place::Waiting;
                partition.progress = (0, 0, 0);
                had = true;
            }
        }
        had
    }

    /// The order for the recovery master of a partition; none if there is no such partition.
    pub(crate) fn order(
        &self,
        partition: u32,
        tables: Vec<TableEntry>,
        accepted: Vec<u32>,
    ) -> Option<Recover> {
        let log = self.log.as_ref()?;
        Some(Recover {
            recovery: self.id,
            partition,
            log: self.dead,
            tablets: self.partitions.get(partition as usize)?.tablets.clone(),
            floors: log.floors.clone(),
            safe_version: log.safe_version,
            tables,
            segments: log.segments.clone(),
            passes: log.passes.clone(),
            accepted,
        })
    }

    /// The status, for people.
    pub(crate) fn status(&self, now_us: u64) -> RecoveryStatus {
        let done = self
            .partitions
            .iter()
            .filter(|p| matches!(p.place, Place::Done { .. }));
        let sum = |of: fn(&Partition) -> u64| self.partitions.iter().map(of).sum::<u64>();
        let is_over = self.log.is_some()
            && self
                .partitions
                .iter()
                .all(|p| matches!(p.place, Place::Done { .. }));
        let phase = match &self.log {
            None if self.waits_for.is_some() => RecoveryPhase::Incomplete,
            None => RecoveryPhase::Collecting,
            Some(_) if is_over && now_us < self.lease_until_us => RecoveryPhase::WaitingForLease,
            Some(_) if is_over => RecoveryPhase::Done,
            Some(_) => RecoveryPhase::Replaying,
        };
        RecoveryStatus {
            recovery: self.id,
            server: self.dead,
            phase,
            partitions: self.before.0 + self.partitions.len() as u32,
            partitions_done: self.before.0 + done.count() as u32,
            bytes: self.before.1 + sum(|p| p.progress.0),
            bytes_total: self.before.1 + sum(|p| p.progress.1.max(p.bytes)),
            entries: self.before.2 + sum(|p| p.progress.2),
            elapsed_ms: (now_us - self.since_us) / 1000,
            waits_for: self.waits_for.clone(),
        }
    }
}
