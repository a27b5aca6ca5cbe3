//! One commit: from what the engine appended to what the disk holds, and back.
//!
//! **Invariants** (docs/protocols.md)
//! - G1: everything that is collected at once becomes durable in one atomic step of the backup,
//!   steps in order; so control records ride with the data that needs them. A long backlog takes
//!   several steps.
//! - G2: the engine hears of a level only after the backup has returned it.
//! - G3: a commit that fails for want of space stays staged; it is tried again before anything
//!   newer is staged.
//! - G4: after a failure of the device nothing is acknowledged any more.
//!
//! **Concurrency**: one thread at a time commits, under `commit`'s lock; it is never held while the
//! engine is entered, so a thread may wait for a commit whatever it holds in the engine.

use crate::ahead::Ahead;
use crate::health::Health;
use crate::heat::Heat;
use crate::hints::Hints;
use crate::member::{Flight, Remote};
use crate::meter::Meter;
use crate::planted::Bug;
use crate::repair::Repairs;
use crate::scrub::Scrub;
use crate::{DiskState, Error, Options};
use duramen_backup::{Backup, Chunk};
use duramen_base::ids::{Level, SegmentId};
use duramen_cluster::replication::{BackupId, Effect, Master, Send};
use duramen_engine::{Collected, Log, Piece, Swap, TableChange};
use duramen_format::certificate::Certificate;
use duramen_format::control::{Pass, Record};
use duramen_format::segment::Kind;
use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, TryLockError};
use std::time::Instant;

/// A commit takes this part of the write-ahead log and a segment at most, so that it fits also
/// where it finds no frame: a quarter lets the next one in while the last one waits for its frames.
/// More than that is committed in several steps.
const PART_OF_WAL: u64 = 4;

/// The only backup of a single server.
pub(crate) const LOCAL: BackupId = BackupId(0);

/// The durable side of one store. Everything here can be called without any thread of its own.
pub(crate) struct Durable {
    pub options: Options,
    pub engine: Arc<duramen_engine::Store>,
    /// Where the log's replicas lie; `None` for a member of a cluster, whose replicas lie with
    /// others.
    pub backup: Option<Backup>,
    /// Of a member of a cluster: the way to its backups.
    pub remote: Option<Remote>,
    pub commit: Mutex<Commit>,
    pub health: Health,
    pub meter: Arc<Meter>,
    /// Commits that ended, well or not. Written before waiters are told (`writer`).
    pub ended: AtomicU64,
    /// As long as there are keys that a clock that was put back would bring back: what it said
    /// before; else 0.
    pub clock_floor_ms: AtomicU64,
    /// A commit at level buffered was not yet followed by a sync.
    pub unsynced: AtomicBool,
    pub ahead: Ahead,
    /// Frames that were verified, and those that were not as they had been written.
    pub scrubbed: AtomicU64,
    pub bad_frames: AtomicU64,
    pub repairs: Repairs,
    pub scrub: Scrub,
    /// The store has ended, and its directory is somebody else's: commits are refused. Stored under
    /// `commit`'s lock; Release pairs with Acquire where it is loaded.
    pub closed: AtomicBool,
    /// With a flash tier and a directory.
    pub heat: Option<Heat>,
    /// Of a member of a cluster with a flash tier.
    pub hints: Option<Hints>,
}

/// What belongs to whoever commits.
pub(crate) struct Commit {
    pub master: Master,
    pub collected: Collected,
    /// `collected` is staged, and a commit of it has failed for want of space (G3).
    staged: bool,
    /// What could not be staged; it goes into the same commit.
    unstaged: VecDeque<Send>,
    pub effects: Vec<Effect>,
    /// Of segments that are still open.
    certificates: BTreeMap<SegmentId, Certificate>,
    /// To be freed on the disk, by the background.
    pub frees: VecDeque<SegmentId>,
    /// Swaps that have become durable, for the background to tell the engine.
    pub swapped: Vec<u64>,
    pub appended_bytes: u64,
    /// Survivors in frames, not yet proposed.
    pub survivors: BTreeMap<SegmentId, Certificate>,
    /// The swap on its way, with its number.
    pub proposed: Option<(u64, Swap)>,
    /// Something was acknowledged since the rules were applied last.
    acknowledged: bool,
    /// Of a member of a cluster: what is on its way.
    pub flight: Flight,
}

impl Commit {
    pub fn new(master: Master) -> Commit {
        Commit {
            master,
            collected: Collected::default(),
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

    /// Of the segments that heads write to, up to the last commit.
    pub fn open_certificates(&self) -> &BTreeMap<SegmentId, Certificate> {
        &self.certificates
    }
}

impl Durable {
    /// The engine's side of the log.
    pub fn log(&self) -> &Log {
        self.engine.log().expect("a durable store has a log")
    }

    /// The own disk of a single server.
    pub fn backup(&self) -> &Backup {
        self.backup
            .as_ref()
            .expect("a member's replicas are not its own")
    }

    pub fn lock(&self) -> MutexGuard<'_, Commit> {
        self.commit.lock().expect("nobody panics while committing")
    }

    /// As [`lock`](Self::lock), `None` if somebody else commits.
    pub fn try_lock(&self) -> Option<MutexGuard<'_, Commit>> {
        match self.commit.try_lock() {
            Ok(commit) => Some(commit),
            Err(TryLockError::WouldBlock) => None,
            Err(TryLockError::Poisoned(_)) => panic!("nobody panics while committing"),
        }
    }

    /// # Errors
    /// [`Error::Closed`].
    pub fn check_open(&self) -> Result<(), Error> {
        if self.closed.load(Ordering::Acquire) {
            return Err(Error::Closed);
        }
        Ok(())
    }

    /// Makes everything appended so far reach `level`. The whole of a commit: the simulator calls
    /// nothing else.
    ///
    /// # Errors
    /// [`Error::DiskFull`]: try again later, nothing is lost. [`Error::DiskFailed`]: for good (G4).
    /// [`Error::Closed`].
    pub fn commit_once(&self, commit: &mut Commit, level: Level) -> Result<(), Error> {
        if let Some(remote) = &self.remote {
            return self.pump(commit, remote, level.max(Level::Buffered));
        }
        self.check_open()?;
        let result = self.commit_inner(commit, level.max(Level::Buffered));
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

    fn commit_inner(&self, commit: &mut Commit, level: Level) -> Result<(), Error> {
        if let DiskState::Failed(reason) = self.health.get() {
            return Err(Error::DiskFailed(reason)); // G4
        }
        self.backup().set_clock_ms(self.clock_ms())?;
        self.secure_room();
        if commit.staged {
            self.stage_rest(commit)?;
            self.write(commit, level)?; // G3
        }
        let part_max = self.backup().geometry().wal_bytes / PART_OF_WAL;
        let is_cut = self.log().collect_part(&mut commit.collected, part_max);
        // What was appended until now is committed here; what is appended meanwhile may be the next
        // one's.
        let until = is_cut.then(|| self.log().appended());
        let mut wrote = self.commit_collected(commit, level)?;
        if let Some(until) = until {
            while self.log().reached(&until) < level
                && self.log().collect_part(&mut commit.collected, part_max)
            {
                wrote |= self.commit_collected(commit, level)?;
            }
            wrote |= self.commit_collected(commit, level)?;
        }
        if !wrote && level == Level::Synced && self.unsynced.load(Ordering::Relaxed) {
            let started = Instant::now();
            self.backup().sync()?;
            self.meter.synced(started.elapsed());
            self.log().complete_all(Level::Synced);
            self.acked(commit, Level::Synced);
        }
        Ok(())
    }

    /// One atomic step (G1); returns whether there was anything to be written.
    fn commit_collected(&self, commit: &mut Commit, level: Level) -> Result<bool, Error> {
        self.tell(commit);
        let staged = self.stage(commit)?;
        if !staged && commit.collected.is_empty() {
            return Ok(false);
        }
        commit.staged = true;
        self.write(commit, level)?;
        Ok(true)
    }

    /// The rules hear of what was collected.
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
        for pass in collected.passes() {
            // A member's swap does not wait for the next group, so it may be written already: then
            // there is nothing to announce.
            let listed = |victim| master.state().segments.contains_key(victim);
            if self.remote.is_some() && !pass.victims.iter().all(listed) {
                continue;
            }
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

    /// Applies the rules and stages what they send. Returns whether there was anything.
    fn stage(&self, commit: &mut Commit) -> Result<bool, Error> {
        let mut effects = std::mem::take(&mut commit.effects);
        let mut next_id = || self.log().new_segment_id();
        commit.master.poll(&mut next_id, &mut effects);
        for effect in effects.drain(..) {
            match effect {
                Effect::Send(send) => commit.unstaged.push_back(send),
                Effect::Free { segment, .. } => commit.frees.push_back(segment),
                Effect::Swapped { swap } => commit.swapped.push(swap),
                Effect::ControlHead { .. } => unreachable!("a single server has no coordinator"),
            }
        }
        commit.effects = effects;
        let sent = !commit.unstaged.is_empty();
        commit.staged |= sent;
        self.stage_rest(commit)?;
        Ok(sent)
    }

    /// Stages what is not staged yet. One that fails is tried again as a whole: what of it was
    /// staged stays as it is.
    fn stage_rest(&self, commit: &mut Commit) -> Result<(), Error> {
        while let Some(send) = commit.unstaged.pop_front() {
            if let Err(error) = self.stage_one(commit, &send) {
                commit.unstaged.push_front(send);
                return Err(error);
            }
        }
        Ok(())
    }

    fn stage_one(&self, commit: &Commit, send: &Send) -> Result<(), Error> {
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
            self.backup().stage_certified(chunk)
        };
        if send.from == end {
            return Ok(chunk(end, &[], true)?);
        }
        if send.kind == Kind::Control {
            let bytes = commit.master.control_bytes(send.segment);
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

    /// Commits what is staged, then tells everybody (G2).
    fn write(&self, commit: &mut Commit, level: Level) -> Result<(), Error> {
        let started = Instant::now();
        let committed = self.backup().commit(level)?;
        if level == Level::Synced {
            self.meter.synced(started.elapsed());
        }
        commit.staged = false;
        let mut reached = committed.level.min(level);
        if self.options.has_bug(Bug::AnswerBeforeSync) {
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
        commit.master.acked_all(LOCAL, level);
        commit.acknowledged = true;
    }

    /// Lets the rules act on what was acknowledged: swaps that have become durable, segments to be
    /// freed.
    pub fn apply_rules(&self, commit: &mut Commit) -> Result<(), Error> {
        if std::mem::take(&mut commit.acknowledged) && self.stage(commit)? {
            commit.staged = true;
        }
        Ok(())
    }

    /// What has expired stays away after a restart, whatever the clock says then.
    ///
    /// # Errors
    /// [`Error::DiskFull`], [`Error::DiskFailed`].
    pub fn note_clock(&self) -> Result<(), Error> {
        if let Some(backup) = &self.backup {
            backup.set_clock_ms(self.clock_ms())?;
            backup.note_clock()?;
        }
        Ok(())
    }

    /// What the next start is told that the clock said last.
    fn clock_ms(&self) -> u64 {
        let floor_ms = self.clock_floor_ms.load(Ordering::Relaxed);
        self.options.engine.clock.now_ms().max(floor_ms)
    }

    /// What came of a step in the background: the device's failure is everybody's, and while there
    /// is no space nobody waits for what cleaning would free.
    pub fn note(&self, done: Result<(), &Error>) {
        if let Err(Error::DiskFailed(reason)) = done {
            self.health
                .set(DiskState::Failed(reason.clone()), self.log());
        }
        self.log()
            .cannot_clean(matches!(done, Err(Error::DiskFull(_))));
    }
}

/// The control record of a table's change.
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
