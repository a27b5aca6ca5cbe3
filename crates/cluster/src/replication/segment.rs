//! A master's state of one segment and its replicas.

use super::{BackupId, Found, SegmentId};
use duramen_base::ids::Level;
use duramen_base::planted::{Bug, has_bug};
use duramen_format::certificate::Certificate;
use duramen_format::segment::Kind;
use std::collections::BTreeSet;

/// A position in the control log: grows over all its segments.
pub(super) type Lsn = u64;

/// The progress of a replica.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Progress {
    /// The replication epoch of the replica.
    pub epoch: u64,
    pub open: bool,
    /// Certified bytes.
    pub length: u32,
    pub close: bool,
}

impl Progress {
    /// The progress that both have reached. The epoch is the lower one.
    fn meet(self, other: Progress) -> Progress {
        Progress {
            epoch: self.epoch.min(other.epoch),
            open: self.open && other.open,
            length: self.length.min(other.length),
            close: self.close && other.close,
        }
    }

    /// The further one: progress at a higher epoch replaces that at a lower one.
    fn join(self, other: Progress) -> Progress {
        match self.epoch.cmp(&other.epoch) {
            std::cmp::Ordering::Greater => self,
            std::cmp::Ordering::Less => other,
            std::cmp::Ordering::Equal => Progress {
                epoch: self.epoch,
                open: self.open || other.open,
                length: self.length.max(other.length),
                close: self.close || other.close,
            },
        }
    }
}

/// One copy.
#[derive(Clone, Debug)]
pub(super) struct Replica {
    pub backup: BackupId,
    pub sent: Progress,
    /// Acknowledged, at level buffered or above.
    pub buffered: Progress,
    pub synced: Progress,
    /// The progress that will be synced when the sync in flight has ended.
    pub syncing: Progress,
    /// A recovery reads it first.
    pub primary: bool,
    /// The backup has an older replica, to be freed unless this one is sent.
    pub replaces_garbage: bool,
    /// Sends that are not acknowledged yet.
    pub in_flight: u32,
    /// Sends whose bytes the backup found damaged, since it took some.
    pub damaged: u32,
    /// Its opening was refused, and no other backup can take it: it is sent again
    /// (replication::O13).
    pub refused: bool,
    /// For a control segment, the epoch of its opening, which applies to all of it
    /// (replication::O13).
    pub opened_at: u64,
    /// No older replica of the segment can be on its backup, which was sent no request that drops
    /// this one (replication::O12).
    pub is_first: bool,
}

impl Replica {
    /// The end of all that counts as sent.
    pub fn sent_before(&self) -> Progress {
        match self.refused {
            true => Progress::default(),
            false => self.sent,
        }
    }

    /// Whether an opening may have been stored. Of one that was found damaged, a repetition may
    /// arrive undamaged.
    pub fn may_be_open(&self) -> bool {
        self.sent.open || self.damaged > 0
    }

    /// Whether a backup was chosen for this copy of a closed segment, and nothing was sent to it.
    pub fn is_planned(&self) -> bool {
        self.in_flight == 0 && self.damaged == 0 && !self.sent.open
    }

    pub fn new(backup: BackupId, opened_at: u64) -> Replica {
        let mut replica = Replica::at(backup, Progress::default());
        replica.opened_at = opened_at;
        replica
    }

    fn at(backup: BackupId, progress: Progress) -> Replica {
        Replica {
            backup,
            sent: progress,
            buffered: progress,
            synced: progress,
            syncing: Progress::default(),
            primary: false,
            replaces_garbage: false,
            in_flight: 0,
            damaged: 0,
            refused: false,
            opened_at: progress.epoch,
            is_first: false,
        }
    }

    pub fn found(found: &Found) -> Replica {
        let progress = Progress {
            epoch: found.epoch,
            open: true,
            length: found.certificate.length,
            close: found.closed,
        };
        Replica::at(found.backup, progress)
    }

    pub fn whole(backup: BackupId, certificate: Certificate) -> Replica {
        let progress = Progress {
            epoch: 0,
            open: true,
            length: certificate.length,
            close: true,
        };
        Replica::at(backup, progress)
    }

    pub fn acked(&mut self, progress: Progress, level: Level) {
        if level >= Level::Buffered {
            self.buffered = self.buffered.join(progress);
        }
        if level >= Level::Synced {
            self.synced = self.synced.join(progress);
        }
    }

    pub fn reached(&self, level: Level) -> Progress {
        match level {
            Level::Memory => self.sent,
            Level::Buffered => self.buffered,
            Level::Synced => self.synced,
        }
    }
}

/// One segment.
#[derive(Clone, Debug)]
pub(super) struct Segment {
    pub kind: Kind,
    pub head: u32,
    /// replication::O3, replication::O7: the segment that has to be complete before this one's data
    /// is sent.
    pub predecessor: Option<SegmentId>,
    pub epoch: u64,
    /// The end of the bytes to be sent.
    pub queued: Certificate,
    /// No data follow.
    pub closed: bool,
    /// End of its `AddOpen` record, once written (replication::O1).
    pub listed_at: Option<Lsn>,
    /// The close is recorded (replication::O4), or a `Swap` has listed the segment: from now on its
    /// replicas count at any epoch.
    pub close_recorded: bool,
    /// A `SegmentEpoch` record is needed (replication::O8).
    pub epoch_wanted: bool,
    /// The length that each replica must have before that record may be written: a lower length may
    /// have been promised.
    pub epoch_from: u32,
    /// End of the last `SegmentEpoch` record; nothing counts as durable before it is synced
    /// (replication::O8).
    pub epoch_at: Option<Lsn>,
    pub replicas: Vec<Replica>,
    /// replication::O12: older replicas of the segment on these backups do not count again: they
    /// were sent it anew, or told to drop it.
    pub settled: Vec<BackupId>,
    /// Backups that found its bytes damaged again and again, and have taken none since.
    pub damaged_at: BTreeSet<BackupId>,
    /// At least one send of it was made.
    pub was_placed: bool,
    /// A replica was lost since.
    pub has_lost: bool,
    /// No backup has its bytes: it is cleaned instead of being replaced.
    pub has_no_source: bool,
    /// Two of its replicas are in one rack.
    pub shares_rack: bool,
}

impl Segment {
    pub fn new(kind: Kind, head: u32, predecessor: Option<SegmentId>) -> Segment {
        Segment {
            kind,
            head,
            predecessor,
            epoch: 0,
            queued: Certificate::EMPTY,
            closed: false,
            listed_at: None,
            close_recorded: false,
            epoch_wanted: false,
            epoch_from: 0,
            epoch_at: None,
            replicas: Vec::new(),
            settled: Vec::new(),
            damaged_at: BTreeSet::new(),
            was_placed: false,
            has_lost: false,
            has_no_source: false,
            shares_rack: false,
        }
    }

    pub fn backups(&self) -> impl Iterator<Item = BackupId> + Clone {
        self.replicas.iter().map(|replica| replica.backup)
    }

    pub fn replica_mut(&mut self, backup: BackupId) -> Option<&mut Replica> {
        self.replicas
            .iter_mut()
            .find(|replica| replica.backup == backup)
    }

    /// A backup that was chosen for a replica was sent nothing: the choice is undone. Returns
    /// whether an older replica there is to be freed.
    pub fn unplace(&mut self, backup: BackupId) -> bool {
        let mut removed = self.replicas.extract_if(.., |r| r.backup == backup);
        let has_garbage = removed.any(|replica| replica.replaces_garbage);
        drop(removed);
        self.unsettle(backup);
        has_garbage
    }

    /// Undoes the choice of a backup for which nothing was sent, or that refused it. Returns the
    /// backup, and whether a replica there is to be freed.
    pub fn unplace_planned(&mut self) -> Option<(BackupId, bool)> {
        let mut replicas = self.replicas.iter();
        let planned =
            replicas.find(|r| r.in_flight == 0 && r.damaged == 0 && !r.sent_before().open)?;
        let (backup, was_sent) = (planned.backup, planned.sent.open);
        Some((backup, self.unplace(backup) || was_sent))
    }

    /// replication::O12: the older replica of this backup may count again.
    pub fn unsettle(&mut self, backup: BackupId) {
        if let Some(last) = self.settled.iter().rposition(|settled| *settled == backup) {
            self.settled.remove(last);
        }
    }

    /// replication::O12: this backup is lost, perhaps only silent. Its replica may count again if
    /// the backup has synced all of it, and no request that drops it can be under way. An older
    /// replica may count again if nothing of the newer one was sent.
    pub fn may_return(&mut self, backup: BackupId) {
        let Some(lost) = self.replicas.iter().find(|r| r.backup == backup) else {
            return;
        };
        let is_sound = lost.is_first && self.is_whole(lost.synced);
        let may_count = is_sound || lost.is_planned() || has_bug(Bug::SentAnewCounts);
        if self.close_recorded && may_count {
            self.unsettle(backup);
        }
    }

    /// The progress that each of at least `wanted` replicas has reached at `level` (`memory` = was
    /// sent); replicas of an older epoch don't count, except those of a control segment, where the
    /// epoch only distinguishes openings (replication::O13).
    pub fn on_all(&self, wanted: usize, level: Level) -> Progress {
        let mut all = Progress::default();
        let mut counted = 0;
        for replica in &self.replicas {
            let reached = replica.reached(level);
            let any_epoch = self.close_recorded || self.kind == Kind::Control;
            if reached.epoch == self.epoch || any_epoch || has_bug(Bug::OldEpochCounts) {
                all = if counted == 0 {
                    reached
                } else {
                    all.meet(reached)
                };
                counted += 1;
            }
        }
        if counted < wanted.max(1) {
            return Progress::default();
        }
        all
    }

    /// Whether a progress covers the whole closed segment.
    pub fn is_whole(&self, progress: Progress) -> bool {
        self.closed && progress.close && progress.length == self.queued.length
    }

    /// Its progress, for people.
    pub fn described(&self, id: SegmentId) -> String {
        use std::fmt::Write;
        let mut text = format!(
            "{} segment {id}, epoch {}, {} bytes{}, listed at {:?}, after {:?}:",
            self.kind.name(),
            self.epoch,
            self.queued.length,
            if self.closed { " closed" } else { "" },
            self.listed_at,
            self.predecessor,
        );
        for replica in &self.replicas {
            let _ = write!(
                text,
                "\n  {}: sent {:?}, synced {:?}, {} under way",
                replica.backup.0, replica.sent, replica.synced, replica.in_flight
            );
        }
        text
    }

    /// replication::O13: a control segment's opening was refused. None of its bytes are there, nor
    /// will be: the next one, here or elsewhere, is another opening.
    pub fn refuse(&mut self, backup: BackupId) {
        self.epoch += 1;
        let epoch = self.epoch;
        self.replicas
            .retain(|replica| replica.backup != backup || replica.refused);
        if let Some(replica) = self.replica_mut(backup) {
            replica.sent = Progress::default();
            replica.opened_at = epoch;
        }
    }

    /// replication::O8: later sends have a higher epoch; those in flight at the old one will not
    /// count.
    pub fn lose_replica(&mut self, epoch_stays: bool) {
        if !epoch_stays {
            self.epoch += 1;
            self.epoch_wanted = self.listed_at.is_some();
        }
        self.epoch_from = self.queued.length;
        for replica in &mut self.replicas {
            replica.sent = replica.buffered;
        }
    }
}

/// The end of a write that brings no new data to a replica, to which `sent_bytes` were sent.
/// `snapshot`: of a control segment that the write opens.
pub(super) fn without_data(
    sent_bytes: u32,
    queued: Certificate,
    snapshot: Option<Certificate>,
) -> Certificate {
    match snapshot {
        Some(snapshot) => snapshot,
        // No more bytes are to be sent: a close needs no permission to send data.
        None if sent_bytes == queued.length => queued,
        None => Certificate {
            length: sent_bytes,
            crc: 0,
        },
    }
}
