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

use super::cut::NextCut;
use super::flight::Flight;
use super::{Durable, Local, Replicas};
use crate::{DiskState, Error};
use duramen_backup::Chunk;
use duramen_base::ids::{Level, SegmentId};
use duramen_base::planted::{Bug, has_bug};
use duramen_cluster::replication::{BackupId, Effect, Master, Send};
use duramen_engine::{Collected, Piece, Swap, TableChange};
use duramen_format::certificate::Certificate;
use duramen_format::control::{Pass, Record};
use duramen_format::segment::Kind;
use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::Ordering;
use std::time::Instant;

/// Part of the write-ahead log that a commit takes at most, plus a segment, so that it fits also
/// without a free frame. A quarter lets the next commit in while the last one waits for its frames.
/// Longer backlogs are committed in several steps.
pub(super) const PART_OF_WAL: u64 = 4;

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
    /// To be freed on the disk, in the background.
    pub frees: VecDeque<SegmentId>,
    /// Swaps that have become durable; the background work reports them to the engine.
    pub swapped: Vec<u64>,
    pub appended_bytes: u64,
    /// Survivors in frames, not yet proposed.
    pub survivors: BTreeMap<SegmentId, Certificate>,
    /// The swap in flight, with its number.
    pub proposed: Option<(u64, Swap)>,
    /// An acknowledgement came since the rules were last applied.
    acknowledged: bool,
    /// For a member of a cluster: its sends in flight.
    pub flight: Flight,
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
            swapped: Vec::new(),
            appended_bytes: 0,
            survivors: BTreeMap::new(),
            proposed: None,
            acknowledged: false,
            flight: Flight::default(),
        }
    }

    /// Certificates of the segments that heads write to, up to the last commit.
    pub fn open_certificates(&self) -> &BTreeMap<SegmentId, Certificate> {
        &self.certificates
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
        let local = match &self.replicas {
            Replicas::Local(local) => local,
            Replicas::Remote(remote) => return self.pump(commit, remote, level),
        };
        self.check_open(local)?;
        let result = self.commit_local(commit, local, level);
        match &result {
            Ok(()) => self.health.set(DiskState::Ok, self.log()),
            Err(Error::DiskFull(_)) => self.health.set(DiskState::Full, self.log()),
            Err(error) => self
                .health
                .set(DiskState::Failed(error.to_string()), self.log()),
        }
        self.ended.fetch_add(1, Ordering::AcqRel);
        result
    }

    fn commit_local(&self, commit: &mut Commit, local: &Local, level: Level) -> Result<(), Error> {
        if let DiskState::Failed(reason) = self.health.get() {
            return Err(Error::DiskFailed(reason)); // G4
        }
        local.backup.clock().set_ms(self.clock_ms())?;
        self.secure_room(local);
        if commit.staged {
            self.stage_rest(commit, local)?;
            self.write(commit, local, level)?; // G3
            commit.make_cut();
        }
        let is_cut = self.collect(commit, local);
        // Earlier appends are committed here; appends made meanwhile may be in the next commit.
        let until = is_cut.then(|| self.log().appended());
        let mut wrote = self.commit_collected(commit, local, level)?;
        if let Some(until) = until {
            while self.log().reached(&until) < level && self.collect(commit, local) {
                wrote |= self.commit_collected(commit, local, level)?;
            }
            wrote |= self.commit_collected(commit, local, level)?;
        }
        if !wrote && level == Level::Synced && self.unsynced.load(Ordering::Relaxed) {
            let started = Instant::now();
            local.backup.sync()?;
            local.meter.synced(started.elapsed());
            self.log().complete_all(Level::Synced);
            self.acked(commit, Level::Synced);
        }
        Ok(())
    }

    /// One atomic step (G1); returns whether there was anything to write.
    fn commit_collected(
        &self,
        commit: &mut Commit,
        local: &Local,
        level: Level,
    ) -> Result<bool, Error> {
        self.tell(commit);
        let staged = self.stage(commit, local)?;
        let is_needed = staged || !commit.collected.is_empty();
        if is_needed {
            commit.staged = true;
            self.write(commit, local, level)?;
        }
        commit.make_cut();
        Ok(is_needed)
    }

    /// Passes the collected data to the rules.
    pub fn tell(&self, commit: &mut Commit) {
        let Commit {
            master,
            collected,
            certificates,
            appended_bytes,
            ..
        } = commit;
        for change in collected.changes() {
            master.record(table_record(change));
        }
        // A victim that is not listed yet waits in the rules (replication::O15). One whose swap is
        // written already needs no announcement: nothing that is written now counts without that
        // swap (G1).
        master.forget_victims(|victim| self.log().is_durable_segment(victim));
        for pass in collected.passes() {
            master.record(Record::Pass(Pass {
                first: pass.first,
                count: pass.count,
                victims: pass.victims.clone(),
            }));
        }
        for piece in self.log().pieces(collected) {
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

    /// Applies the rules and stages their sends. Returns whether there were any.
    fn stage(&self, commit: &mut Commit, local: &Local) -> Result<bool, Error> {
        let mut effects = std::mem::take(&mut commit.effects);
        let mut next_id = || self.log().new_segment_id();
        commit.master.poll(&mut next_id, &mut effects);
        for effect in effects.drain(..) {
            match effect {
                Effect::Send(send) => commit.unstaged.push_back(send),
                Effect::Free { segment, .. } => commit.frees.push_back(segment),
                Effect::Swapped { swap } => commit.swapped.push(swap),
                Effect::ControlHead { .. } => {} // only a coordinator must know it
            }
        }
        commit.effects = effects;
        self.figures.note(commit);
        let sent = !commit.unstaged.is_empty();
        commit.staged |= sent;
        self.stage_rest(commit, local)?;
        Ok(sent)
    }

    /// Stages the remaining sends. A failed one is retried as a whole; parts of it that are staged
    /// stay staged.
    fn stage_rest(&self, commit: &mut Commit, local: &Local) -> Result<(), Error> {
        while let Some(send) = commit.unstaged.pop_front() {
            if let Err(error) = self.stage_one(commit, local, &send) {
                commit.unstaged.push_front(send);
                return Err(error);
            }
        }
        Ok(())
    }

    fn stage_one(&self, commit: &Commit, local: &Local, send: &Send) -> Result<(), Error> {
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
            local.backup.stage_certified(chunk)
        };
        if send.from == end {
            return Ok(chunk(end, &[], true)?);
        }
        if send.kind == Kind::Control {
            let bytes = commit.master.control().bytes(send.segment);
            return Ok(chunk(
                send.from,
                &bytes[send.from as usize..end as usize],
                true,
            )?);
        }
        let mut at = send.from;
        for piece in self.log().pieces(&commit.collected) {
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

    /// Commits the staged data, then reports the result (G2).
    fn write(&self, commit: &mut Commit, local: &Local, level: Level) -> Result<(), Error> {
        let started = Instant::now();
        let committed = local.backup.commit(level)?;
        if level == Level::Synced {
            local.meter.synced(started.elapsed());
        }
        commit.staged = false;
        let mut reached = committed.level.min(level);
        if has_bug(Bug::AnswerBeforeSync) {
            reached = Level::Synced;
        }
        self.log().complete(&mut commit.collected, reached);
        if reached == Level::Synced && self.unsynced.load(Ordering::Relaxed) {
            self.log().complete_all(Level::Synced);
        }
        self.acked(commit, reached);
        Ok(())
    }

    fn acked(&self, commit: &mut Commit, level: Level) {
        self.unsynced
            .store(level < Level::Synced, Ordering::Relaxed);
        commit.master.replicas_mut().acked_all(LOCAL, level);
        commit.acknowledged = true;
    }

    /// Applies the rules to new acknowledgements: swaps that have become durable, segments to be
    /// freed.
    pub fn apply_rules(&self, commit: &mut Commit, local: &Local) -> Result<(), Error> {
        if std::mem::take(&mut commit.acknowledged) && self.stage(commit, local)? {
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
        if let Some(local) = self.local() {
            local.backup.clock().set_ms(self.clock_ms())?;
            local.backup.clock().note()?;
        }
        Ok(())
    }

    /// The clock value that the next start gets.
    fn clock_ms(&self) -> u64 {
        let floor_ms = self.clock_floor_ms.load(Ordering::Relaxed);
        self.options.engine.clock.now_ms().max(floor_ms)
    }

    /// Records the result of a background step: a failure of the device stops the whole store, and
    /// while there is no space no write waits for room from cleaning.
    pub fn note(&self, done: Result<(), &Error>) {
        if let Err(Error::DiskFailed(reason)) = done {
            self.health
                .set(DiskState::Failed(reason.clone()), self.log());
        }
        self.log()
            .cannot_clean(matches!(done, Err(Error::DiskFull(_))));
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
