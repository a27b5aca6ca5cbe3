//! The backup: replicas of segments on one device.
//!
//! **Invariants**
//! - V1: nothing is acknowledged before it is in the write-ahead log (docs/traps.md, trap 11):
//!   `commit` returns after its write, and at `Synced` after its sync.
//! - V2: after a failed write or sync of the write-ahead log, of a slot or of a header, nothing is
//!   written any more. The state of the device is then unknown until the next opening.
//! - V3: while buffers take more than `Options::memory_bytes`, a commit writes replicas to frames
//!   before it is written itself, as it does when the write-ahead log is full. The memory exceeds
//!   the limit by the bytes that one commit stages, and by more only while there is no frame.
//!
//! **Concurrency**: five locks, taken in this order:
//! - `committing`: held for a whole commit; commits are written one after another.
//! - `staging`: held while a chunk is staged, and by a commit at its start, when it takes the
//!   batch: the next batch is staged while the commit is written.
//! - `flushing`: held by the flusher, or by a commit that waits for room.
//! - `straight`: held by a caller of `stage` while it writes to a frame, or by a commit that waits
//!   for room.
//! - `state`: taken by all, briefly; no write or sync is done under it, but the file system may be
//!   asked to allocate space.
//!
//! Paper: [Beineke18 §IV]; differs: see the crate's documentation.

use std::any::Any;
use std::sync::{Arc, Mutex, PoisonError};

use duramen_base::ids::{Level, SegmentId};
use duramen_cipher::{KeyId, SectorCipher};

use crate::buffer::Buffer;
use crate::clock::Clock;
use crate::commits::{Batches, Committer};
use crate::device::Device;
use crate::disk::Disk;
use crate::encryption::Ciphers;
use crate::error::Error;
use crate::figures::Figures;
use crate::flush::{Flusher, Turns};
use crate::read::{ReadMode, Reader};
use crate::replica::{Data, Replica};
use crate::scrub::Scrubber;
use crate::speed::ReadSpeed;
use crate::types::{Chunk, Committed, Geometry, Identity, ReplicaId, ReplicaInfo, Stats};

/// Segment replicas on one device. The crate's documentation lists who calls which method.
pub struct Backup {
    device: Device,
    turns: Turns,
    batches: Batches,
    /// `None`: the store is not encrypted.
    ciphers: Option<Ciphers>,
    /// The counters that the last caller got.
    shown: Mutex<Stats>,
    speed: ReadSpeed,
    /// Memory that scrubbing reads into.
    scratch: Mutex<Buffer>,
    /// The lock of the directory, held until [`leave`](Self::leave), or until this backup is
    /// dropped.
    lock: Mutex<Option<Box<dyn Any + Send + Sync>>>,
}

impl Backup {
    pub(crate) fn new(
        device: Device,
        ciphers: Option<Ciphers>,
        lock: Box<dyn Any + Send + Sync>,
    ) -> Backup {
        Backup {
            turns: Turns::default(),
            batches: Batches::new(device.held()),
            ciphers,
            shown: Mutex::default(),
            speed: ReadSpeed::default(),
            scratch: Mutex::new(Buffer::counted(0, device.held())),
            lock: Mutex::new(Some(lock)),
            device,
        }
    }

    // --- its parts

    /// Moves data from the write-ahead log to frames.
    pub fn flusher(&self) -> Flusher<'_> {
        Flusher::new(&self.device, &self.turns)
    }

    /// Reads replicas, and keeps account of their damage.
    pub fn reader(&self) -> Reader<'_> {
        let is_encrypted = self.ciphers.is_some();
        Reader::new(&self.device, &self.turns, &self.speed, is_encrypted)
    }

    /// Verifies what is on the device.
    pub fn scrubber(&self) -> Scrubber<'_> {
        Scrubber::new(&self.device, &self.turns, self.reader(), &self.scratch)
    }

    /// Figures that need no wait.
    pub fn figures(&self) -> Figures<'_> {
        Figures::new(&self.device, &self.shown)
    }

    /// The owner's clock, as of the store's last write.
    pub fn clock(&self) -> Clock<'_> {
        Clock::new(&self.device, &self.turns)
    }

    pub(crate) fn committer(&self) -> Committer<'_> {
        Committer::new(&self.device, &self.turns, &self.batches)
    }

    // --- the store

    /// The owner of the store.
    pub fn identity(&self) -> &Identity {
        self.device.identity()
    }

    /// The sizes of the store.
    pub fn geometry(&self) -> &Geometry {
        self.device.geometry()
    }

    /// The disk that the store is on.
    pub fn disk(&self) -> &Arc<dyn Disk> {
        self.device.disk()
    }

    /// The id of the master key that opened the store; `None`: it is not encrypted.
    pub fn encryption_key(&self) -> Option<KeyId> {
        self.ciphers.as_ref().map(|ciphers| ciphers.key)
    }

    /// The cipher for hints of hot keys, beside the store.
    pub fn heat_cipher(&self) -> Option<Arc<SectorCipher>> {
        self.ciphers.as_ref().map(|ciphers| ciphers.heat.clone())
    }

    // --- commits

    /// Adds a chunk to the next commit. Copies its bytes.
    ///
    /// # Errors
    /// [`Error::UnknownSegment`], [`Error::StaleEpoch`], [`Error::Gap`], [`Error::TooLong`],
    /// [`Error::Certificate`], [`Error::CommitTooLarge`]: the chunk was not accepted.
    pub fn stage(&self, chunk: Chunk<'_>) -> Result<(), Error> {
        let id = self.device.own(chunk.segment);
        self.committer().stage(id, chunk, false)
    }

    /// As [`stage`](Self::stage), for a certificate that the caller has just computed over this
    /// memory: the bytes are not verified again.
    ///
    /// # Errors
    /// As [`stage`](Self::stage).
    pub fn stage_certified(&self, chunk: Chunk<'_>) -> Result<(), Error> {
        let id = self.device.own(chunk.segment);
        self.committer().stage(id, chunk, true)
    }

    /// As [`stage`](Self::stage), for a segment of any log. A segment that is opened again at a
    /// higher epoch begins anew: its old replica is dropped, and the new one does not count until
    /// it is certified. A refused opening drops nothing (many::M5).
    ///
    /// # Errors
    /// Those of [`stage`](Self::stage); [`Error::Fenced`]; [`Error::Busy`] for an opening: choose
    /// another backup.
    pub fn stage_of(&self, log: u64, chunk: Chunk<'_>) -> Result<(), Error> {
        let segment = chunk.segment;
        self.committer()
            .stage(ReplicaId { log, segment }, chunk, false)
    }

    /// Commits everything staged in one write, all or nothing. Commits are written one after
    /// another; chunks that another thread stages meanwhile belong to the next one.
    ///
    /// # Errors
    /// [`Error::Full`]: everything stays staged, try again. [`Error::Failed`]: nothing more is
    /// accepted.
    pub fn commit(&self, level: Level) -> Result<Committed, Error> {
        self.committer().commit(level)
    }

    /// Makes every earlier commit [`Level::Synced`].
    ///
    /// # Errors
    /// [`Error::Failed`].
    pub fn sync(&self) -> Result<(), Error> {
        self.device.sync()
    }

    /// Syncs if at least `at_least` bytes of the write-ahead log are only buffered, so that a later
    /// sync has little to do. Called beside commits, from another thread than theirs.
    ///
    /// # Errors
    /// [`Error::Failed`].
    pub fn sync_ahead(&self, at_least: u64) -> Result<(), Error> {
        if self.device.state().ring.unsynced() < at_least {
            return Ok(());
        }
        self.sync()
    }

    /// Writes at most one replica (or part of one) to its frame and trims the write-ahead log.
    /// Returns whether there was work. For one background thread, or the simulator.
    ///
    /// # Errors
    /// [`Error::Full`]: try again later. [`Error::Failed`].
    pub fn flush_step(&self) -> Result<bool, Error> {
        self.flusher().step()
    }

    // --- replicas

    /// All replicas, by id.
    pub fn replicas(&self) -> Vec<ReplicaInfo> {
        let state = self.device.state();
        state
            .replicas
            .iter()
            .filter(|(_, replica)| replica.committed)
            .map(|(id, replica)| replica.info(*id))
            .collect()
    }

    /// Whether there is a replica of this segment, whole or not.
    pub fn holds(&self, segment: SegmentId) -> bool {
        let id = self.device.own(segment);
        self.device.state().replicas.contains_key(&id)
    }

    /// Reads the certified bytes of a replica into the start of `into` and verifies them.
    ///
    /// # Errors
    /// [`Error::DamagedSegment`], [`Error::UnknownSegment`], [`Error::TooLong`] if `into` is too
    /// short.
    pub fn read(&self, segment: SegmentId, into: &mut [u8]) -> Result<ReplicaInfo, Error> {
        self.reader()
            .read(self.device.own(segment), into, ReadMode::Usual)
    }

    /// As [`read`](Self::read), for a replica of any log.
    ///
    /// # Errors
    /// Those of [`read`](Self::read).
    pub fn read_of(&self, id: ReplicaId, into: &mut [u8]) -> Result<ReplicaInfo, Error> {
        self.reader().read(id, into, ReadMode::Usual)
    }

    /// Frees a replica; its space is used again at once. It may reappear after a restart: only
    /// segments that the control log lists are ever replayed.
    ///
    /// # Errors
    /// [`Error::UnknownSegment`], [`Error::Failed`].
    pub fn free(&self, segment: SegmentId) -> Result<(), Error> {
        self.committer().forget(self.device.own(segment))
    }

    /// A restart also rebuilds freed replicas, from commits that are still in the write-ahead log:
    /// up to the size of that log. Drops those that are not listed, so that their memory is
    /// available for the data. Writes nothing: like replicas freed by [`free`](Self::free), they
    /// may reappear.
    pub fn forget_rebuilt(&self, is_listed: &dyn Fn(SegmentId) -> bool) {
        let own = self.device.own(SegmentId::NONE).log;
        let mut guard = self.device.state();
        let state = &mut *guard;
        let unlisted = |(id, replica): (&ReplicaId, &Replica)| {
            let is_rebuilt = matches!(replica.data, Data::Growing(_));
            (id.log == own && is_rebuilt && !is_listed(id.segment)).then_some(*id)
        };
        let unlisted: Vec<ReplicaId> = state.replicas.iter().filter_map(unlisted).collect();
        for id in unlisted {
            let Some(replica) = state.replicas.remove(&id) else {
                continue;
            };
            state.need(id, replica.wal_from);
            if let Some(frame) = replica.frame {
                state.frames.put(frame);
            }
        }
    }

    // --- logs of other masters

    /// Logs with at least one replica here, in order.
    pub fn logs(&self) -> Vec<u64> {
        self.device.state().logs()
    }

    /// Replicas of one log, by segment id.
    pub fn replicas_of(&self, log: u64) -> Vec<ReplicaInfo> {
        self.device.state().replicas_of(log)
    }

    /// As [`free`](Self::free), for a master's log.
    ///
    /// # Errors
    /// Those of [`free`](Self::free); [`Error::Fenced`].
    pub fn free_of(&self, id: ReplicaId) -> Result<(), Error> {
        self.committer().free_of(id)
    }

    /// Frees all replicas of a log that has been recovered, or of a removed server. Returns their
    /// number. A fence stays: that server may be a zombie that still writes.
    ///
    /// # Errors
    /// [`Error::Failed`].
    pub fn free_log(&self, log: u64) -> Result<u32, Error> {
        self.committer().free_log(log)
    }

    /// Refuses writes, openings, closings and freeings of this log from now on, until the process
    /// ends. Everything acknowledged before is in [`replicas_of`](Self::replicas_of), and nothing
    /// is acknowledged later (many::M1).
    ///
    /// # Errors
    /// [`Error::Full`], [`Error::Failed`]: the fence is set, but the chunks staged before are not
    /// settled: call this again.
    pub fn fence(&self, log: u64) -> Result<(), Error> {
        self.committer().fence(log)
    }

    /// Whether this log was fenced.
    pub fn is_fenced(&self, log: u64) -> bool {
        self.device.state().fenced.contains(&log)
    }

    // --- figures and ends

    /// The counters. While the device allocates frames, which locks the state, they are those of
    /// the last call.
    pub fn stats(&self) -> Stats {
        self.figures().stats()
    }

    /// Writes the data of all commits to frames, so that a restart needs nothing of the write-ahead
    /// log, and records its end, so that a restart need not search for it. Without room for frames
    /// the commits stay.
    ///
    /// # Errors
    /// [`Error::Full`], [`Error::Failed`]: the end is not recorded.
    pub fn close(&self) -> Result<(), Error> {
        self.flusher().close()
    }

    /// Releases the directory: another process may open it as soon as this returns. Waits for
    /// writes in flight; later ones are refused as by a failed device.
    pub fn leave(&self) {
        let committing = self.batches.committing();
        let flushing = self.turns.flushing();
        let straight = self.turns.straight();
        let mut state = self.device.state();
        state
            .failed
            .get_or_insert_with(|| "it is closed".to_owned());
        drop((state, straight, flushing, committing));
        let lock = self.lock.lock();
        drop(lock.unwrap_or_else(PoisonError::into_inner).take());
    }
}
