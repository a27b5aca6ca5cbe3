//! A commit: from the engine's appends to the disk, and back.
//!
//! **Invariants** (docs/protocols.md)
//! - G1: everything that is collected together becomes durable in one atomic step of the backup,
//!   steps in order; so control records are in the same step as the data that needs them. A long
//!   backlog takes several steps.
//! - G2: the engine gets a level only after the backup has returned it.
//! - G3: a commit that fails for lack of space stays staged; it is retried before anything newer is
//!   staged.
//! - G4: after a failure of the device no write is acknowledged any more.
//!
//! **Concurrency**: one thread at a time commits, under `commit`'s lock; that lock is never held
//! while the engine is entered, so a thread may wait for a commit while it holds locks of the
//! engine.

use super::copies::Copies;
use super::cut::NextCut;
use super::groups::Groups;
use super::survivors::Survivors;
use super::{Common, Durable, Local, Replicas};
use crate::{DiskState, Error};
use duramen_backup::{Backup, Chunk};
use duramen_base::ids::{Level, SegmentId};
use duramen_base::planted::{Bug, has_bug};
use duramen_cluster::replication::{BackupId, Effect, Master, Send};
use duramen_engine::{Collected, Log, Piece, TableChange};
use duramen_format::certificate::Certificate;
use duramen_format::control::{Pass, Record};
use duramen_format::segment::Kind;
use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::Ordering;
use std::time::Instant;

/// Part of the write-ahead log that a commit takes at most, plus a segment, so that it fits also
/// without a free frame. A quarter lets the next commit in while the last one waits for its frames.
/// Longer backlogs are committed in several steps.
const PART_OF_WAL: u64 = 4;

/// The only backup of a single server.
pub(crate) const LOCAL: BackupId = BackupId(0);

/// State of the committing thread.
pub(crate) struct Commit {
    pub master: Master,
    pub collected: Collected,
    pub next_cut: NextCut,
    /// `collected` is staged, and its commit has failed for lack of space (G3).
    staged: bool,
    /// Sends that could not be staged; they go into the same commit.
    unstaged: VecDeque<Send>,
    pub effects: Vec<Effect>,
    /// Certificates of segments that are still open.
    certificates: BTreeMap<SegmentId, Certificate>,
    /// Segments to be freed on the disk, in the background.
    pub frees: VecDeque<SegmentId>,
    pub appended_bytes: u64,
    pub survivors: Survivors,
    /// An acknowledgement came since the rules were last applied.
    acknowledged: bool,
    /// Only a member of a cluster uses these two.
    pub groups: Groups,
    pub copies: Copies,
}

impl Commit {
    pub fn new(master: Master) -> Commit {
        Commit {
            master,
            collected: Collected::default(),
            next_cut: NextCut::None,
            staged: false,
            unstaged: VecDeque::new(),
            effects: Vec::new(),
            certificates: BTreeMap::new(),
            frees: VecDeque::new(),
            appended_bytes: 0,
            survivors: Survivors::default(),
            acknowledged: false,
            groups: Groups::default(),
            copies: Copies::default(),
        }
    }

    /// Passes the collected data to the rules.
    pub fn tell(&mut self, log: &Log) {
        let Commit {
            master,
            collected,
            certificates,
            appended_bytes,
            ..
        } = self;
        for change in collected.changes() {
            master.record(table_record(change));
        }
        // A victim that is not listed yet waits in the rules (replication::O15). One whose swap is
        // written already needs no announcement: nothing that is written now counts without that
        // swap (G1).
        master.forget_victims(|victim| log.swaps().is_durable_segment(victim));
        for pass in collected.passes() {
            master.record(Record::Pass(Pass {
                first: pass.first,
                count: pass.count,
                victims: pass.victims.clone(),
            }));
        }
        for piece in log.pieces(collected) {
            match piece {
                Piece::Open { segment, head } => {
                    certificates.insert(segment, Certificate::EMPTY);
                    master.opened(segment, Kind::Head, u32::from(head));
                }
                Piece::Data {
                    segment,
                    offset,
                    bytes,
                } => {
                    let known = certificates.get_mut(&segment).expect("an open segment");
                    assert_eq!(known.length, offset, "pieces come without gaps");
                    *known = known.extended(bytes);
                    *appended_bytes += bytes.len() as u64;
                    master.appended(segment, *known);
                }
                Piece::Close { segment, length } => {
                    let known = certificates.remove(&segment).expect("an open segment");
                    assert_eq!(known.length, length, "closed where it ends");
                    master.closed(segment);
                }
            }
        }
    }

    /// Applies the rules. Returns whether something is to be sent.
    fn poll(&mut self, log: &Log) -> bool {
        let mut next_id = || log.numbers().new_segment_id();
        self.master.poll(&mut next_id, &mut self.effects);
        for effect in self.effects.drain(..) {
            match effect {
                Effect::Send(send) => self.unstaged.push_back(send),
                Effect::Free { segment, .. } => self.frees.push_back(segment),
                Effect::Swapped { swap } => self.survivors.swapped(swap),
                Effect::ControlHead { .. } => {} // only a coordinator must know it
            }
        }
        let sends = !self.unstaged.is_empty();
        self.staged |= sends;
        sends
    }

    /// Stages the remaining sends. A failed one is retried as a whole; parts of it that are staged
    /// stay staged.
    fn stage(&mut self, log: &Log, backup: &Backup) -> Result<(), Error> {
        while let Some(send) = self.unstaged.pop_front() {
            if let Err(error) = self.stage_one(log, backup, &send) {
                self.unstaged.push_front(send);
                return Err(error);
            }
        }
        Ok(())
    }

    fn stage_one(&self, log: &Log, backup: &Backup, send: &Send) -> Result<(), Error> {
        let end = send.certificate.length;
        let mut open = send.open;
        let mut chunk = |offset: u32, bytes: &[u8], last: bool| {
            let certified = last && end > 0;
            let chunk = Chunk {
                segment: send.segment,
                epoch: send.epoch,
                kind: send.kind,
                offset,
                bytes,
                certificate: certified.then_some(send.certificate),
                open: std::mem::take(&mut open),
                close: last && send.close,
            };
            backup.stage_certified(chunk)
        };
        if send.from == end {
            return Ok(chunk(end, &[], true)?);
        }
        if send.kind == Kind::Control {
            let bytes = self.master.control().bytes(send.segment);
            return Ok(chunk(
                send.from,
                &bytes[send.from as usize..end as usize],
                true,
            )?);
        }
        let mut at = send.from;
        for piece in log.pieces(&self.collected) {
            if let Piece::Data {
                segment,
                offset,
                bytes,
            } = piece
                && segment == send.segment
            {
                assert_eq!(offset, at, "pieces come without gaps");
                at += bytes.len() as u32;
                chunk(offset, bytes, at == end)?;
            }
        }
        assert_eq!(at, end, "what is sent was collected in this commit");
        Ok(())
    }

    /// All that was sent has reached this level on the local disk.
    fn acked(&mut self, level: Level) {
        self.master.replicas_mut().acked_all(LOCAL, level);
        self.acknowledged = true;
    }

    /// The collected part is written.
    fn make_cut(&mut self) {
        self.next_cut.make(&mut self.master, &self.certificates);
    }
}

impl Durable {
    /// Makes all appends so far reach `level`. This is a whole commit: the simulator calls nothing
    /// else.
    ///
    /// # Errors
    /// [`Error::DiskFull`]: retry later, nothing is lost. [`Error::DiskFailed`]: permanent (G4).
    /// [`Error::Closed`].
    pub fn commit_once(&self, commit: &mut Commit, level: Level) -> Result<(), Error> {
        let level = level.max(Level::Buffered);
        match &self.replicas {
            Replicas::Local(local) => local.commit(&self.common, commit, level),
            Replicas::Remote(remote) => remote.pump(&self.common, commit, level),
        }
    }
}

impl Local {
    /// As [`Durable::commit_once`], at level buffered or synced.
    ///
    /// # Errors
    /// As [`Durable::commit_once`].
    pub fn commit(&self, common: &Common, commit: &mut Commit, level: Level) -> Result<(), Error> {
        self.check_open(common)?;
        let result = self.commit_all(common, commit, level);
        let state = match &result {
            Ok(()) => DiskState::Ok,
            Err(Error::DiskFull(_)) => DiskState::Full,
            Err(error) => DiskState::Failed(error.to_string()),
        };
        common.health.set(state, common.log());
        common.ended.fetch_add(1, Ordering::AcqRel);
        result
    }

    fn commit_all(&self, common: &Common, commit: &mut Commit, level: Level) -> Result<(), Error> {
        if let DiskState::Failed(reason) = common.health.get() {
            return Err(Error::DiskFailed(reason)); // G4
        }
        let log = common.log();
        self.backup.clock().set_ms(self.clock_ms())?;
        self.secure_room(common);
        if commit.staged {
            commit.stage(log, &self.backup)?;
            self.write(common, commit, level)?; // G3
            commit.make_cut();
        }
        let is_cut = self.collect(log, commit);
        // Earlier appends are committed here; appends made meanwhile may be in the next commit.
        let until = is_cut.then(|| log.appended());
        let mut wrote = self.commit_collected(common, commit, level)?;
        if let Some(until) = until {
            while log.reached(&until) < level && self.collect(log, commit) {
                wrote |= self.commit_collected(common, commit, level)?;
            }
            wrote |= self.commit_collected(common, commit, level)?;
        }
        if !wrote && level == Level::Synced && common.unsynced.load(Ordering::Relaxed) {
            let started = Instant::now();
            self.backup.sync()?;
            self.meter.synced(started.elapsed());
            log.complete_all(Level::Synced);
            common.unsynced.store(false, Ordering::Relaxed);
            commit.acked(Level::Synced);
        }
        Ok(())
    }

    /// Collects the next part of a commit. Returns whether something was left.
    fn collect(&self, log: &Log, commit: &mut Commit) -> bool {
        let (out, next_cut) = (&mut commit.collected, &mut commit.next_cut);
        self.parts.collect(log, self.part_bytes(), out, next_cut)
    }

    /// Most bytes of a part.
    pub(super) fn part_bytes(&self) -> u64 {
        self.backup.flusher().ring_bytes() / PART_OF_WAL
    }

    /// One atomic step (G1); returns whether there was anything to write.
    fn commit_collected(
        &self,
        common: &Common,
        commit: &mut Commit,
        level: Level,
    ) -> Result<bool, Error> {
        commit.tell(common.log());
        let staged = self.stage(common, commit)?;
        let is_needed = staged || !commit.collected.is_empty();
        if is_needed {
            commit.staged = true;
            self.write(common, commit, level)?;
        }
        commit.make_cut();
        Ok(is_needed)
    }

    /// Applies the rules and stages their sends. Returns whether there were any.
    fn stage(&self, common: &Common, commit: &mut Commit) -> Result<bool, Error> {
        let sends = commit.poll(common.log());
        common.figures.note(commit);
        commit.stage(common.log(), &self.backup)?;
        Ok(sends)
    }

    /// Commits the staged data, then reports the result (G2).
    fn write(&self, common: &Common, commit: &mut Commit, level: Level) -> Result<(), Error> {
        let started = Instant::now();
        let committed = self.backup.commit(level)?;
        if level == Level::Synced {
            self.meter.synced(started.elapsed());
        }
        commit.staged = false;
        let mut reached = committed.level.min(level);
        if has_bug(Bug::AnswerBeforeSync) {
            reached = Level::Synced;
        }
        common.log().complete(&mut commit.collected, reached);
        if reached == Level::Synced && common.unsynced.load(Ordering::Relaxed) {
            common.log().complete_all(Level::Synced);
        }
        let unsynced = reached < Level::Synced;
        common.unsynced.store(unsynced, Ordering::Relaxed);
        commit.acked(reached);
        Ok(())
    }

    /// Applies the rules to new acknowledgements: swaps that have become durable, segments to be
    /// freed.
    pub fn apply_rules(&self, common: &Common, commit: &mut Commit) -> Result<(), Error> {
        if std::mem::take(&mut commit.acknowledged) && self.stage(common, commit)? {
            commit.staged = true;
        }
        Ok(())
    }

    /// Records the clock, so that expired objects stay away after a restart, whatever the clock
    /// shows then.
    ///
    /// # Errors
    /// [`Error::DiskFull`], [`Error::DiskFailed`].
    pub fn note_clock(&self) -> Result<(), Error> {
        self.backup.clock().set_ms(self.clock_ms())?;
        self.backup.clock().note()?;
        Ok(())
    }

    /// From here on the present clock counts, and is recorded.
    ///
    /// # Errors
    /// As [`note_clock`](Self::note_clock).
    pub fn forget_former_clock(&self) -> Result<(), Error> {
        self.clock_floor_ms.store(0, Ordering::Relaxed);
        self.note_clock()
    }

    /// The clock value that the next start gets.
    fn clock_ms(&self) -> u64 {
        let floor_ms = self.clock_floor_ms.load(Ordering::Relaxed);
        self.clock.now_ms().max(floor_ms)
    }
}

/// The control record of a change of a table.
fn table_record(change: &TableChange) -> Record {
    match change {
        TableChange::Create {
            table,
            name,
            level,
            floor,
        } => Record::TableCreate {
            table: table.0,
            floor: *floor,
            level: *level,
            name: name.clone(),
        },
        TableChange::Drop { table, floor } => Record::TableDrop {
            table: table.0,
            floor: *floor,
        },
        TableChange::Clear { table, floor } => Record::TableClear {
            table: table.0,
            floor: *floor,
        },
        TableChange::SetLevel { table, level } => Record::TableLevel {
            table: table.0,
            level: *level,
        },
    }
}
