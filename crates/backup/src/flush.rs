//! The flusher: moves data from the write-ahead log to frames, closed replicas whole, and the
//! oldest open ones in part when room is short.
//!
//! **Invariants**
//! - H1: a slot is written after the data that it certifies are durable, and after every commit up
//!   to its lsn is (frame::P1, frame::P3).
//! - H2: the write-ahead log is trimmed after the slots are durable that make its commits unneeded.
//! - H3: the last acknowledged block is never rewritten: bytes that do not fill a block wait in the
//!   slot (frame::P2).
//!
//! **Concurrency**: all functions here hold the lock `flushing`. Replicas may be freed meanwhile:
//! then their frames are given back at the end (`doomed`).

use duramen_base::planted::{Bug, has_bug};
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use duramen_base::ids::SegmentId;
use duramen_base::units::MIB;
use duramen_format::certificate::Certificate;
use duramen_format::frame::{Slot, State as SlotState};
use duramen_format::segment::Kind;
use duramen_format::wal::RING_AT;

use crate::buffer::Buffer;
use crate::device::Device;
use crate::disk::BLOCK_BYTES;
use crate::error::{Error, is_full};
use crate::frames::slot_bytes;
use crate::replica::{Data, Replica};
use crate::state::State;
use crate::types::ReplicaId;

/// Frames to try before the device counts as failed.
const ATTEMPTS: u32 = 3;
/// A trim that frees less than this part of the write-ahead log is delayed: each trim costs a sync.
const TRIM_PART: u64 = 8;
/// The background flush writes no part of an open replica for less than this part of the memory for
/// copies: each part costs syncs.
const AHEAD_PART: u64 = 16;
/// Zeros written at once: a commit that needs the space waits for them.
const ZEROS_BYTES: u64 = 4 * MIB;
/// Bytes written at once.
const WRITE_BYTES: usize = (4 * MIB) as usize;

/// A replica, or the part of one, that is being written to its frame.
struct Flush {
    id: ReplicaId,
    slot: Slot,
    frame: u32,
    /// Bytes of the replica before this offset are in the frame already.
    base: u32,
    /// A later part was written directly to the frame: staged chunks name the frame.
    is_shared: bool,
    /// The bytes from `base` on, up to the end of a block; of a closed replica the last block is
    /// filled with zeros.
    data: Arc<Buffer>,
    tail: Vec<u8>,
}

/// The turns of those that write to frames. Each is taken after the locks of commits, and before
/// that of the device's state.
#[derive(Default)]
pub(crate) struct Turns {
    flushing: Mutex<()>,
    straight: Mutex<()>,
}

impl Turns {
    /// Held by the flusher, or by a commit that waits for room.
    pub(crate) fn flushing(&self) -> MutexGuard<'_, ()> {
        self.flushing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Held by a caller of `stage` while it writes to a frame, or by a commit that waits for room.
    pub(crate) fn straight(&self) -> MutexGuard<'_, ()> {
        self.straight.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Moves data to frames; see the module.
#[derive(Clone, Copy)]
pub struct Flusher<'b> {
    device: &'b Device,
    turns: &'b Turns,
}

impl<'b> Flusher<'b> {
    pub(crate) fn new(device: &'b Device, turns: &'b Turns) -> Flusher<'b> {
        Flusher { device, turns }
    }

    /// Writes at most one replica (or part of one) to its frame and trims the write-ahead log.
    /// Returns whether there was work. For one background thread, or the simulator.
    ///
    /// # Errors
    /// [`Error::Full`]: try again later. [`Error::Failed`].
    pub(crate) fn step(&self) -> Result<bool, Error> {
        let _flushing = self.turns.flushing();
        self.device.working(&self.device.state())?;
        let has_grown = self.grow_ring()?;
        let chosen = {
            let state = self.device.state();
            let allowed =
                state.ring.ready / 100 * u64::from(self.device.options().wal_fill_percent.min(100));
            let crowded = state.ring.used() > allowed;
            closed_first(&state)
                .or_else(|| oldest(&state, false).filter(|_| crowded))
                .or_else(|| self.ahead_of_memory(state))
        };
        if let Some(id) = chosen {
            self.flush(id, false)?;
            self.trim(self.device.ring_bytes() / TRIM_PART)?;
            return Ok(true);
        }
        Ok(self.trim(self.device.ring_bytes() / TRIM_PART)? || has_grown)
    }

    /// Called before the last steps of a close, which then fill no space that only later commits
    /// would need.
    pub fn end_growth(&self) {
        let ring = &mut self.device.state().ring;
        ring.reserved = ring.ready;
    }

    /// Bytes of the write-ahead log in which commits may lie now. A commit takes a quarter of
    /// them, and a segment, at most.
    pub fn ring_bytes(&self) -> u64 {
        self.device.ring_bytes()
    }

    /// Allocates disk space for `wanted` frames ahead of their use. Returns the number of frames
    /// with space: fewer on a full disk.
    ///
    /// # Errors
    /// [`Error::Failed`].
    pub fn secure_frames(&self, wanted: u32) -> Result<u32, Error> {
        let mut state = self.device.state();
        self.device.working(&state)?;
        let secured = state.frames.secure(self.device.frames(), wanted);
        drop(state);
        secured.map_err(|error| self.device.fail("allocate frames", &error))
    }

    /// New copies of lost replicas leave this many frames free (many::M2).
    pub fn keep_from_refills(&self, frames: u32) {
        self.device.state().frames.refills_leave = frames;
    }

    /// Writes the data of all commits to frames, so that a restart needs nothing of the write-ahead
    /// log, and records its end, so that a restart need not search for it. Without room for frames
    /// the commits stay.
    ///
    /// # Errors
    /// [`Error::Full`], [`Error::Failed`]: the end is not recorded.
    pub(crate) fn close(&self) -> Result<(), Error> {
        let _flushing = self.turns.flushing();
        self.device.sync()?;
        match self.drain() {
            Ok(()) | Err(Error::Full { .. }) => {}
            Err(error) => return Err(error),
        }
        let state = self.device.state();
        let mut header = state.header();
        header.end_lsn = state.ring.committed_lsn + 1;
        drop(state);
        self.device.write_next_header(&header)
    }

    /// Gives the ring more space while commits fill it fast, and fills new space with zeros before
    /// commits lie there. Returns whether there was work. The caller holds `flushing`.
    fn grow_ring(&self) -> Result<bool, Error> {
        let is_filled = {
            let mut guard = self.device.state();
            let state = &mut *guard;
            state.ring.fills_fast(state.stats.wal_written_bytes)
        };
        if is_filled {
            self.reserve(BLOCK_BYTES)?;
        }
        let (at, bytes) = {
            let ring = &self.device.state().ring;
            let bytes = (ring.reserved - ring.ready).min(ZEROS_BYTES);
            (RING_AT + ring.ready, bytes)
        };
        if bytes == 0 {
            return Ok(false);
        }
        match self.device.wal().allocate(at, bytes, true) {
            Ok(()) => {}
            // On a file system that writes elsewhere each time, zeros would gain nothing.
            Err(error) if is_full(&error) => {}
            // A failed sync may have lost commits (disk::D3).
            Err(error) => return Err(self.device.fail("extend the write-ahead log", &error)),
        }
        self.device.state().ring.ready += bytes;
        Ok(true)
    }

    /// Gives the ring more space for a waiting commit of this many bytes. Returns false if the ring
    /// gets none. The caller holds `flushing`.
    fn extend_ring(&self, bytes: u64) -> Result<bool, Error> {
        let is_whole = {
            let ring = &self.device.state().ring;
            ring.ready == ring.reserved
        };
        if is_whole {
            self.reserve(bytes)?;
        }
        let ring = &mut self.device.state().ring;
        Ok(std::mem::replace(&mut ring.ready, ring.reserved) < ring.reserved)
    }

    fn reserve(&self, least: u64) -> Result<(), Error> {
        let mut state = self.device.state();
        let reserved = state.ring.reserve(self.device.wal(), least);
        drop(state);
        reserved.map_err(|error| self.device.fail("extend the write-ahead log", &error))
    }

    /// Writes all data that only commits have to frames and drops those commits: at an orderly
    /// shutdown, or when a commit can't be read any more. Bytes without a certificate stay. The
    /// caller holds `flushing`.
    ///
    /// # Errors
    /// [`Error::Full`]: the rest stays in the write-ahead log. [`Error::Failed`].
    pub(crate) fn drain(&self) -> Result<(), Error> {
        let until = {
            let state = self.device.state();
            self.device.working(&state)?;
            state.ring.committed_lsn
        };
        loop {
            let next = next_to_drain(&self.device.state(), until);
            let Some(id) = next else { break };
            self.flush(id, false)?;
        }
        self.trim(1).map(|_| ())
    }

    /// The next replica for the background flush, so that commits need not wait for memory.
    fn ahead_of_memory(&self, mut state: MutexGuard<'_, State>) -> Option<ReplicaId> {
        let most = self.device.options().memory_bytes / 4 * 3;
        if self.device.held().bytes() > most {
            state.pool.clear();
        }
        let least = self.device.options().memory_bytes / AHEAD_PART;
        largest(&state, least.max(BLOCK_BYTES)).filter(|_| self.device.held().bytes() > most)
    }

    /// Frees some of the write-ahead log, for a waiting commit of this many bytes. Returns false if
    /// nothing can be freed.
    pub(crate) fn make_room(&self, bytes: u64) -> Result<bool, Error> {
        let _flushing = self.turns.flushing();
        if self.device.state().ring.place(bytes).is_some() {
            return Ok(true); // the background flush was faster
        }
        // Space at the end helps no commit that lies before the oldest one.
        if !self.device.state().ring.wraps() && self.extend_ring(bytes)? {
            return Ok(true);
        }
        // No valid block is written again (H3): bytes that are being staged directly to a frame
        // have to be there first.
        let _straight = self.turns.straight();
        if self.trim(1)? {
            return Ok(true);
        }
        let Some(id) = oldest(&self.device.state(), true) else {
            return Ok(false);
        };
        self.flush(id, true)?;
        self.trim(1)?;
        Ok(true)
    }

    /// Writes the replica that takes most memory to a frame, for a commit that waits. Returns false
    /// if no replica can go to a frame now.
    pub(crate) fn make_memory(&self) -> Result<bool, Error> {
        let _flushing = self.turns.flushing();
        if self.device.held().bytes() <= self.device.options().memory_bytes {
            return Ok(true); // the background flush was faster
        }
        let Some(id) = largest(&self.device.state(), BLOCK_BYTES) else {
            return Ok(false);
        };
        self.flush(id, false)?;
        Ok(true)
    }

    /// Writes the certified bytes of a replica to its frame. `in_commit`: the caller is the log
    /// writer, so no staged bytes are being written to that frame at the same time.
    fn flush(&self, id: ReplicaId, in_commit: bool) -> Result<(), Error> {
        self.device.sync()?; // H1: data and commits before the slot
        for _ in 0..ATTEMPTS {
            let Some(flush) = self.begin_flush(id, in_commit)? else {
                return Ok(());
            };
            match self.write_data(&flush) {
                Ok(()) => {}
                Err(error) if is_full(&error) => {
                    self.abandon(&flush, false);
                    return Err(self.device.full());
                }
                Err(error) if flush.base > 0 || flush.is_shared => {
                    // A part of the replica is in this frame, or was written directly to it: that
                    // part cannot be written again to another frame.
                    self.abandon(&flush, false);
                    return Err(self.device.fail("write a frame", &error));
                }
                Err(_) => {
                    self.device.state().stats.io_errors += 1;
                    self.abandon(&flush, true);
                    continue; // the bytes are in memory and in the write-ahead log: another frame will do
                }
            }
            if let Err(error) = self.certify(flush.frame, &flush.slot, &flush.tail) {
                self.abandon(&flush, false);
                return Err(error);
            }
            return self.end_flush(flush);
        }
        let error = io::Error::other("several frames in a row could not be written");
        Err(self.device.fail("write a frame", &error))
    }

    /// Chooses a frame and takes the bytes to be written.
    fn begin_flush(&self, id: ReplicaId, in_commit: bool) -> Result<Option<Flush>, Error> {
        let mut guard = self.device.state();
        let state = &mut *guard;
        let stamp = state.stamp + 1;
        let lsn = state.ring.durable_lsn;
        let Some(replica) = state.replicas.get_mut(&id) else {
            return Ok(None);
        };
        if !flushable(replica, in_commit) {
            return Ok(None);
        }
        if replica.frame.is_none() {
            match state.frames.take(self.device.frames()) {
                Ok(Some(frame)) => replica.frame = Some(frame),
                Ok(None) => return Err(self.device.full()),
                Err(error) if is_full(&error) => return Err(self.device.full()),
                Err(error) => {
                    drop(guard);
                    return Err(self.device.fail("allocate a frame", &error));
                }
            }
        }
        let length = (replica.certificate.length - replica.base) as usize;
        let whole = replica.closed;
        let (data, tail) = match &mut replica.data {
            Data::Sealed(data) => (data.clone(), Vec::new()),
            Data::Growing(_) if whole => {
                assert!(replica.lent.is_empty(), "all of it is committed");
                (seal(&mut replica.data), Vec::new())
            }
            Data::Growing(_) => self.copied(replica, length),
            Data::InFrame => return Ok(None),
        };
        replica.flushing = true;
        let slot = Slot {
            state: if whole {
                SlotState::Closed
            } else {
                SlotState::Open
            },
            kind: replica.kind,
            segment: id.segment,
            log: id.log,
            epoch: replica.epoch,
            stamp,
            lsn,
            certificate: replica.certificate,
            tail_bytes: tail.len() as u32,
            tail_crc: crc32c::crc32c(&tail),
        };
        state.stamp = stamp;
        Ok(Some(Flush {
            id,
            slot,
            frame: replica.frame.unwrap_or_default(),
            base: replica.base,
            is_shared: !replica.lent.is_empty(),
            data,
            tail,
        }))
    }

    /// A copy of the bytes of a replica that grows: whole blocks, and the rest.
    fn copied(&self, replica: &Replica, length: usize) -> (Arc<Buffer>, Vec<u8>) {
        let full = length - length % BLOCK_BYTES as usize;
        let mut copy = Buffer::counted(full, self.device.held());
        let mut tail = vec![0; length - full];
        copy.resize_zeroed(full);
        let copied = replica.copy_from(replica.base, copy.bytes_mut())
            + replica.copy_from(replica.base + full as u32, &mut tail);
        assert_eq!(copied, length, "what is certified is in memory");
        (Arc::new(copy), tail)
    }

    /// Writes the data, durably.
    fn write_data(&self, flush: &Flush) -> io::Result<()> {
        let blocks = flush.data.blocks();
        let at = self.device.state().frames.data_at(flush.frame) + u64::from(flush.base);
        self.write_blocks(at, blocks)
    }

    /// Writes blocks to frames, durably. Syncs even if there are none: a slot that marked the frame
    /// as free must be complete before the next one is written.
    fn write_blocks(&self, at: u64, blocks: &[u8]) -> io::Result<()> {
        for (index, part) in blocks.chunks(WRITE_BYTES).enumerate() {
            let at = at + (index * WRITE_BYTES) as u64;
            if self.device.options().frames_past_cache {
                self.device.frames().write_parts(at, &[part])?;
            } else {
                self.device.frames().write_at(at, part)?;
            }
        }
        if !has_bug(Bug::SlotBeforeData) {
            self.device.sync_frames()?;
        }
        self.device.state().stats.frame_written_bytes += blocks.len() as u64;
        Ok(())
    }

    /// Writes a frame's next slot, durably.
    fn certify(&self, frame: u32, slot: &Slot, tail: &[u8]) -> Result<(), Error> {
        let at = {
            let state = self.device.state();
            self.device.working(&state)?;
            state.frames.next_slot_at(frame)
        };
        let bytes = slot_bytes(slot, tail);
        self.device
            .frames()
            .write_durably(at, &bytes)
            .map_err(|error| self.device.failed_write("write a frame's slot", &error))?;
        let mut state = self.device.state();
        state.frames.flip(frame, slot.stamp);
        state.stats.frame_written_bytes += bytes.len() as u64;
        state.stats.syncs += 1;
        Ok(())
    }

    /// Completes a flush after its slot is durable: the replica needs less of the write-ahead log.
    fn end_flush(&self, flush: Flush) -> Result<(), Error> {
        let mut guard = self.device.state();
        let state = &mut *guard;
        state.stats.flushes += 1;
        if let Some(decay) = state.doomed.remove(&flush.id) {
            drop(guard);
            return self
                .device
                .release(flush.frame, flush.id, flush.slot.epoch, decay.as_ref());
        }
        let Some(replica) = state.replicas.get_mut(&flush.id) else {
            return Ok(());
        };
        let before = replica.wal_from;
        replica.flushing = false;
        replica.in_slot = true;
        if flush.slot.state == SlotState::Closed {
            replica.data = Data::InFrame;
            replica.wal_from = None;
            if let Some(buffer) = Arc::into_inner(flush.data) {
                state.recycle(buffer);
            }
        } else {
            let base = flush.slot.data_bytes();
            let unused = replica.rebase(base);
            // Bytes that were committed since the slot was made, or have no certificate yet, are
            // still needed.
            let newer = replica.received > flush.slot.certificate.length
                || replica.closed
                || replica.epoch != flush.slot.epoch
                || replica.certificate != flush.slot.certificate;
            let next = flush.slot.lsn + 1;
            replica.wal_from =
                newer.then(|| replica.uncertified_from.map_or(next, |from| from.min(next)));
            if let Some(buffer) = unused {
                state.recycle(buffer);
            }
        }
        state.need(flush.id, before);
        Ok(())
    }

    /// A frame could not be written: the replica stays in the write-ahead log.
    fn abandon(&self, flush: &Flush, retire: bool) {
        let mut guard = self.device.state();
        let state = &mut *guard;
        if retire {
            state.frames.retired += 1;
        }
        // A replica with this id may be another instance than the one that was freed.
        if let Some(decay) = state.doomed.remove(&flush.id) {
            if !retire {
                state.frames.put_after(flush.frame, decay.as_ref());
            }
        } else if let Some(replica) = state.replicas.get_mut(&flush.id) {
            replica.flushing = false;
            if retire {
                (replica.frame, replica.in_slot) = (None, false);
            }
        }
    }

    /// Moves the tail of the write-ahead log, if that frees at least `at_least` bytes.
    fn trim(&self, at_least: u64) -> Result<bool, Error> {
        let (header, tail) = {
            let state = self.device.state();
            self.device.working(&state)?;
            let first = state
                .needs
                .first()
                .map_or(state.ring.committed_lsn + 1, |(lsn, _)| *lsn);
            let (mut header, tail) = state.ring.header_from(first);
            if tail - state.ring.tail < at_least {
                return Ok(false);
            }
            header.marks = state.marks();
            (header, tail)
        };
        if !has_bug(Bug::TrimBeforeHeader) {
            // A commit that names a frame makes older ones unneeded, so it has to be durable before
            // these go.
            self.device.sync()?;
            self.device.write_header(&header)?; // H2: before the ring's space is reused
        }
        self.device.state().ring.trimmed(&header, tail);
        Ok(true)
    }

    /// Writes a whole closed segment directly to a frame. Durable on return. A replica with this id
    /// that is known to be damaged is replaced; a sound one stays as it is.
    ///
    /// # Errors
    /// [`Error::Full`], [`Error::Failed`]; [`Error::Certificate`] if the certificate does not match
    /// the bytes.
    pub fn write_frame(
        &self,
        segment: SegmentId,
        epoch: u64,
        bytes: &[u8],
        certificate: Certificate,
        kind: Kind,
    ) -> Result<(), Error> {
        self.write_frame_of(self.device.own(segment), epoch, bytes, certificate, kind)
    }

    /// As [`write_frame`](Self::write_frame), for a segment of any log.
    ///
    /// # Errors
    /// Those of [`write_frame`](Self::write_frame); [`Error::Fenced`].
    pub fn write_frame_of(
        &self,
        id: ReplicaId,
        epoch: u64,
        bytes: &[u8],
        certificate: Certificate,
        kind: Kind,
    ) -> Result<(), Error> {
        let segment = id.segment;
        let length = certificate.length;
        if length > self.device.geometry().segment_bytes {
            return Err(Error::TooLong {
                segment: id.segment,
                capacity: self.device.geometry().segment_bytes,
                end: u64::from(length),
            });
        }
        if bytes.len() != length as usize || !certificate.matches(bytes) {
            return Err(Error::Certificate { segment, length });
        }
        let _flushing = self.turns.flushing();
        self.device.not_fenced(&self.device.state(), id.log)?;
        self.device.sync()?; // H1: the slot's lsn must be durable
        let known = self.device.state().replicas.get(&id).map(|replica| {
            replica.damage().is_none() && replica.closed && replica.certificate == certificate
        });
        if known == Some(true) {
            return Ok(());
        }
        let frame = self.write_whole(bytes)?;
        let slot = {
            let mut state = self.device.state();
            state.stamp += 1;
            Slot {
                state: SlotState::Closed,
                kind,
                segment,
                log: id.log,
                epoch,
                stamp: state.stamp,
                lsn: state.ring.durable_lsn,
                certificate,
                tail_bytes: 0,
                tail_crc: 0,
            }
        };
        if let Err(error) = self.certify(frame, &slot, &[]) {
            self.device.state().frames.put(frame);
            return Err(error);
        }
        let mut replica = Replica::new(kind, epoch, Data::InFrame);
        replica.committed = true;
        replica.closed = true;
        replica.staged_closed = true;
        replica.certificate = certificate;
        replica.rolling = certificate;
        replica.received = length;
        replica.in_slot = true;
        self.replace(id, replica, frame)
    }

    /// Puts a replica with a frame in the place of the known one, and releases the frame of that
    /// one.
    fn replace(&self, id: ReplicaId, mut replica: Replica, frame: u32) -> Result<(), Error> {
        let older = {
            let mut state = self.device.state();
            if let Err(error) = self.device.not_fenced(&state, id.log) {
                drop(state);
                self.device.release(frame, id, replica.epoch, None)?;
                return Err(error);
            }
            replica.frame = Some(frame);
            let older = state.replicas.insert(id, replica);
            state.need(id, older.as_ref().and_then(|older| older.wal_from));
            older.and_then(|older| older.frame.map(|frame| (frame, older.epoch, older.decay)))
        };
        match older {
            Some((older, epoch, decay)) => self.device.release(older, id, epoch, decay.as_ref()),
            None => Ok(()),
        }
    }

    /// Writes a whole segment's bytes to a free frame, durably.
    fn write_whole(&self, bytes: &[u8]) -> Result<u32, Error> {
        for _ in 0..ATTEMPTS {
            let (frame, at) = {
                let mut state = self.device.state();
                let frame = match state.frames.take(self.device.frames()) {
                    Ok(Some(frame)) => frame,
                    Ok(None) => return Err(self.device.full()),
                    Err(error) if is_full(&error) => return Err(self.device.full()),
                    Err(error) => {
                        drop(state);
                        return Err(self.device.fail("allocate a frame", &error));
                    }
                };
                (frame, state.frames.data_at(frame))
            };
            let whole = bytes.len() - bytes.len() % BLOCK_BYTES as usize;
            let (blocks, rest) = bytes.split_at(whole);
            let mut last = Buffer::with_capacity(rest.len());
            last.extend(rest);
            last.fill_last_block();
            let written = if rest.is_empty() {
                self.write_blocks(at, blocks)
            } else {
                self.device
                    .frames()
                    .write_at(at + whole as u64, last.blocks())
                    .and_then(|()| self.write_blocks(at, blocks))
            };
            let mut state = self.device.state();
            match written {
                Ok(()) => return Ok(frame),
                Err(error) if is_full(&error) => {
                    state.frames.put(frame);
                    return Err(self.device.full());
                }
                Err(_) => {
                    state.stats.io_errors += 1;
                    state.frames.retired += 1;
                    self.device.working(&state)?;
                }
            }
        }
        let error = io::Error::other("several frames in a row could not be written");
        Err(self.device.fail("write a frame", &error))
    }
}

/// Makes a closed replica's bytes immutable, so that they can be written and read at once.
fn seal(data: &mut Data) -> Arc<Buffer> {
    let Data::Growing(mut buffer) = std::mem::replace(data, Data::InFrame) else {
        unreachable!("only a growing replica is sealed")
    };
    buffer.fill_last_block();
    let sealed = Arc::new(buffer);
    *data = Data::Sealed(sealed.clone());
    sealed
}

/// Whether a replica's bytes can go to a frame now.
fn flushable(replica: &Replica, in_commit: bool) -> bool {
    replica.committed
        && replica.damaged.is_none()
        && !replica.flushing
        && (in_commit || replica.staged_base == replica.base)
        && !matches!(replica.data, Data::InFrame)
        && (!replica.closed || replica.received == replica.certificate.length)
}

/// The closed replica that has waited longest.
fn closed_first(state: &State) -> Option<ReplicaId> {
    state.needs.iter().map(|(_, id)| *id).find(|id| {
        state
            .replicas
            .get(id)
            .is_some_and(|replica| replica.closed && flushable(replica, false))
    })
}

/// The replica that keeps the oldest commit from being trimmed, if flushing it helps.
fn oldest(state: &State, in_commit: bool) -> Option<ReplicaId> {
    let (_, id) = state.needs.first()?;
    helps(state, *id, in_commit).then_some(*id)
}

/// The next replica that needs a commit up to `until`, and would not need it after a flush.
fn next_to_drain(state: &State, until: u64) -> Option<ReplicaId> {
    let needs = state.needs.iter().take_while(|(lsn, _)| *lsn <= until);
    let mut ids = needs.map(|(_, id)| *id);
    ids.find(|id| helps(state, *id, false))
}

/// Whether a flush of the replica makes the oldest commit that it needs unneeded.
fn helps(state: &State, id: ReplicaId, in_commit: bool) -> bool {
    state.replicas.get(&id).is_some_and(|replica| {
        let certified = replica
            .uncertified_from
            .is_none_or(|from| replica.wal_from.is_some_and(|needed| needed < from));
        flushable(replica, in_commit) && certified
    })
}

/// The replica with the flush that frees most memory, if that is at least `least` bytes, or the
/// replica is closed.
fn largest(state: &State, least: u64) -> Option<ReplicaId> {
    let gain = |id: &ReplicaId| {
        let replica = state.replicas.get(id)?;
        let bytes = replica.certificate.length.checked_sub(replica.base)?;
        let worth = replica.closed || u64::from(bytes) >= least;
        (worth && flushable(replica, false)).then_some(bytes)
    };
    let gains = state
        .needs
        .iter()
        .filter_map(|(_, id)| Some((gain(id)?, *id)));
    gains.max().map(|(_, id)| id)
}
