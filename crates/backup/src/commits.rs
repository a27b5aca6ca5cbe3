//! Commits: chunks are staged, and all that are staged are written together.

use duramen_base::planted::{Bug, has_bug};
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use duramen_base::ids::Level;
use duramen_format::certificate::Certificate;
use duramen_format::wal::{self, COMMIT_BYTES, Commit, HEADER_AT, RING_AT};

use crate::buffer::{Buffer, BufferBytes};
use crate::device::Device;
use crate::disk::BLOCK_BYTES;
use crate::error::Error;
use crate::flush::{Flusher, Turns};
use crate::frames::Frames;
use crate::replica::{Data, Replica};
use crate::ring::Ring;
use crate::staging::Batch;
use crate::state::State;
use crate::types::{Chunk, Committed, ReplicaId};

/// The commits that are not written yet.
pub(crate) struct Batches {
    /// The batch that is being written, or that could not be written for lack of space.
    committing: Mutex<Batch>,
    /// The next batch.
    staging: Mutex<Batch>,
}

impl Batches {
    pub(crate) fn new(held: &Arc<BufferBytes>) -> Batches {
        Batches {
            committing: Mutex::new(Batch::new(held)),
            staging: Mutex::new(Batch::new(held)),
        }
    }

    /// Held for a whole commit.
    pub(crate) fn committing(&self) -> MutexGuard<'_, Batch> {
        self.committing
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Held while a chunk is staged.
    pub(crate) fn staging(&self) -> MutexGuard<'_, Batch> {
        self.staging.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The new bytes of a chunk, and the length staged before it.
struct Fitting<'a> {
    staged: u32,
    new: &'a [u8],
}

/// From this many bytes on, a write from the caller's memory and another one from ours cost less
/// than a copy here.
const UNCOPIED_BYTES: usize = 512 << 10;

/// Stages and commits; see the module.
#[derive(Clone, Copy)]
pub(crate) struct Committer<'b> {
    device: &'b Device,
    turns: &'b Turns,
    flusher: Flusher<'b>,
    batches: &'b Batches,
}

impl<'b> Committer<'b> {
    pub(crate) fn new(device: &'b Device, turns: &'b Turns, batches: &'b Batches) -> Committer<'b> {
        Committer {
            device,
            turns,
            flusher: Flusher::new(device, turns),
            batches,
        }
    }

    pub(crate) fn device(&self) -> &'b Device {
        self.device
    }

    pub(crate) fn turns(&self) -> &'b Turns {
        self.turns
    }

    pub(crate) fn batches(&self) -> &'b Batches {
        self.batches
    }

    /// Adds a chunk to the next commit. `trusted`: its bytes match its certificate.
    pub(crate) fn stage(
        &self,
        id: ReplicaId,
        chunk: Chunk<'_>,
        trusted: bool,
    ) -> Result<(), Error> {
        let mut state = self.device.state();
        self.device.not_fenced(&state, id.log)?;
        self.device.working(&state)?;
        let older = state.replicas.get(&id);
        let is_superseded = older.is_some_and(|older| chunk.open && older.epoch < chunk.epoch);
        if chunk.open && (older.is_none() || is_superseded) {
            self.reserve_for_others(&mut state, id.log)?;
            self.has_room(&state, id, &chunk)?;
        }
        if is_superseded {
            drop(state);
            self.supersede(id, &chunk, trusted)?;
            state = self.device.state();
        }
        let fresh = chunk.open && !state.replicas.contains_key(&id);
        if fresh {
            let buffer = state.buffer(self.device.geometry().segment_bytes);
            let replica = Replica::new(chunk.kind, chunk.epoch, Data::Growing(buffer));
            state.replicas.insert(id, replica);
        }
        drop(state);
        let taken = self.stage_in(id, &chunk, fresh, trusted);
        if fresh && taken.is_err() {
            let mut state = self.device.state();
            let refused = state.replicas.remove(&id);
            if let Some(frame) = refused.and_then(|replica| replica.frame) {
                state.frames.put(frame);
            }
        }
        taken
    }

    fn stage_in(
        &self,
        id: ReplicaId,
        chunk: &Chunk<'_>,
        fresh: bool,
        trusted: bool,
    ) -> Result<(), Error> {
        let mut batch = self.batches.staging();
        let mut guard = self.device.state();
        let state = &mut *guard;
        self.device.not_fenced(state, id.log)?;
        let Some(Fitting { staged, new }) = self.fitting(state, id, chunk, fresh)? else {
            return Ok(()); // a repetition
        };
        let end = staged + new.len() as u32;
        let Some(replica) = state.replicas.get_mut(&id) else {
            return Err(Error::UnknownSegment {
                segment: id.segment,
            });
        };
        let before = replica.rolling;
        let rolling = extended(before, new, chunk, trusted).ok_or(Error::Certificate {
            segment: id.segment,
            length: end,
        })?;
        let needed = wal::padded_bytes(batch.bytes.len() + 64 + new.len());
        let until = end - end % BLOCK_BYTES as u32;
        let may_bypass = chunk.certificate.is_some() && until > replica.staged_base;
        let bytes = (new.len(), needed);
        let parts = (&mut state.frames, &mut state.ring);
        let frame = self.frame_to_write(replica, parts, may_bypass, bytes)?;
        let mut rest = new;
        if let Some(frame) = frame {
            drop(guard);
            drop(batch); // commits continue meanwhile
            self.write_straight(id, frame, until, new)?;
            rest = &new[until.saturating_sub(staged) as usize..];
            batch = self.batches.staging();
            guard = self.device.state();
            self.device.not_fenced(&guard, id.log)?; // the fence may have been set meanwhile
            batch.straight = true;
        }
        let replica = guard.replicas.get_mut(&id);
        let replica = replica.ok_or(Error::UnknownSegment {
            segment: id.segment,
        })?;
        let Data::Growing(buffer) = &mut replica.data else {
            return Err(Error::UnknownSegment {
                segment: id.segment,
            }); // sealed data belong to a closed replica, excluded above
        };
        buffer.extend(rest);
        let (offset, payload) = match frame {
            Some(_) => (until, buffer.bytes()),
            None => (staged, new),
        };
        let record = chunk.record(id.log, offset, payload, frame);
        let known = frame.is_none().then_some((before, rolling));
        batch.stage(&record, known, end);
        batch.payload_bytes += new.len() as u64;
        replica.rolling = rolling;
        if chunk.certificate.is_some() {
            replica.staged_certified = end;
        }
        replica.staged_closed |= chunk.close;
        Ok(())
    }

    /// The frame to which the whole blocks of a chunk are written now; `None`: its bytes go through
    /// the ring. `new_bytes`: the chunk's new bytes; `needed`: the bytes of a commit with the
    /// chunk.
    fn frame_to_write(
        &self,
        replica: &mut Replica,
        (frames, ring): (&mut Frames, &mut Ring),
        may_bypass: bool,
        (new_bytes, needed): (usize, u64),
    ) -> Result<Option<u32>, Error> {
        let is_large =
            new_bytes >= self.device.options().bypass_bytes as usize || needed > ring.ready / 4;
        let frame = match may_bypass && !replica.flushing && is_large {
            true => frames
                .take_for(replica, self.device.frames())
                .map_err(|error| Error::io(self.device.place(), "allocate a frame", error))?,
            false => None,
        };
        if frame.is_none() && needed > ring.reserved / 2 {
            let reserved = ring.reserve(self.device.wal(), 2 * needed - ring.reserved);
            reserved.map_err(|error| {
                Error::io(self.device.place(), "extend the write-ahead log", error)
            })?;
        }
        if frame.is_none() && needed > ring.reserved / 2 {
            let wal = ring.reserved;
            return Err(Error::CommitTooLarge { needed, wal });
        }
        Ok(frame)
    }

    /// The new part of a chunk; `None`: nothing is new.
    fn fitting<'a>(
        &self,
        state: &State,
        id: ReplicaId,
        chunk: &Chunk<'a>,
        fresh: bool,
    ) -> Result<Option<Fitting<'a>>, Error> {
        let capacity = self.device.geometry().segment_bytes;
        let replica = state.replicas.get(&id);
        // A damaged replica is opened anew and never continued, because its damage would be
        // forgotten.
        let replica = replica.filter(|replica| replica.damaged.is_none());
        let replica = replica.ok_or(Error::UnknownSegment {
            segment: id.segment,
        })?;
        if chunk.epoch < replica.epoch {
            return Err(Error::StaleEpoch {
                segment: id.segment,
                known: replica.epoch,
                given: chunk.epoch,
            });
        }
        let staged = replica.staged();
        let end = u64::from(chunk.offset) + chunk.bytes.len() as u64;
        if end > u64::from(capacity) {
            return Err(Error::TooLong {
                segment: id.segment,
                capacity,
                end,
            });
        }
        if chunk.offset > staged {
            return Err(Error::Gap {
                segment: id.segment,
                length: staged,
                offset: chunk.offset,
            });
        }
        let certifies = |given: Certificate| given.length > replica.staged_certified;
        let adds = fresh
            || end > u64::from(staged)
            || chunk.close
            || chunk.epoch > replica.epoch
            || chunk.certificate.is_some_and(certifies);
        let new = chunk.bytes.get((staged - chunk.offset) as usize..);
        let new = new.unwrap_or_default();
        Ok((!replica.staged_closed && adds).then_some(Fitting { staged, new }))
    }

    /// Writes all staged bytes of a replica and the start of `new`, up to `until`, to its frame:
    /// from the caller's memory where that is aligned. Not durable until the commit has synced the
    /// frames.
    fn write_straight(
        &self,
        id: ReplicaId,
        frame: u32,
        until: u32,
        new: &[u8],
    ) -> Result<(), Error> {
        let _straight = self.turns.straight();
        let mut guard = self.device.state();
        let state = &mut *guard;
        let rest = Buffer::counted(0, self.device.held()); // usually less than a block
        let replica = state.replicas.get_mut(&id);
        let replica = replica.ok_or(Error::UnknownSegment {
            segment: id.segment,
        })?;
        let staged = replica.staged();
        let count = until.saturating_sub(staged) as usize;
        // `head` is the rest of the block of which a part is in memory; whole blocks follow.
        let head = (staged.next_multiple_of(BLOCK_BYTES as u32) - staged) as usize;
        let blocks = new.get(head..count).unwrap_or_default();
        let aligned = blocks.as_ptr().addr().is_multiple_of(BLOCK_BYTES as usize);
        let (copied, blocks) = if aligned && blocks.len() >= UNCOPIED_BYTES {
            (&new[..head], blocks)
        } else {
            (&new[..count], &[][..])
        };
        let length = (staged - replica.staged_base) as usize;
        let (from, given) = replica.lend(copied, until, rest);
        let at = state.frames.data_at(frame) + u64::from(from);
        drop(guard);
        let written = self
            .device
            .frames()
            .write_parts(at, &[given.bytes(), blocks]);
        let mut guard = self.device.state();
        guard.stats.frame_written_bytes += u64::from(until - from);
        if let Err(error) = written {
            if let Some(replica) = guard.replicas.get_mut(&id) {
                replica.take_back(from, given, length);
            }
            drop(guard);
            return Err(self.device.failed_write("write a frame", &error));
        }
        Ok(())
    }

    /// Commits everything staged in one write, all or nothing. Commits are written one after
    /// another; chunks that another thread stages meanwhile belong to the next one.
    ///
    /// # Errors
    /// [`Error::Full`]: everything stays staged, try again. [`Error::Failed`]: nothing more is
    /// accepted.
    pub(crate) fn commit(&self, level: Level) -> Result<Committed, Error> {
        let mut batch = self.batches.committing();
        let mut sum = Committed::default();
        if !batch.is_empty() {
            // An earlier commit found no space for this batch, and more was staged since.
            sum = self.commit_batch(&mut batch, level)?;
        }
        std::mem::swap(&mut *batch, &mut *self.batches.staging());
        if !batch.is_empty() {
            let committed = self.commit_batch(&mut batch, level);
            let mut staging = self.batches.staging();
            if committed.is_err() && staging.is_empty() {
                std::mem::swap(&mut *batch, &mut *staging);
            }
            let committed = committed?;
            return Ok(Committed {
                chunks: sum.chunks + committed.chunks,
                bytes: sum.bytes + committed.bytes,
                ..committed
            });
        }
        if sum.lsn > 0 {
            return Ok(sum);
        }
        drop(batch);
        if level == Level::Synced {
            self.device.sync()?;
        }
        let state = self.device.state();
        self.device.working(&state)?;
        Ok(Committed {
            level: reached(&state.ring),
            ..Committed::default()
        })
    }

    fn commit_batch(&self, batch: &mut Batch, level: Level) -> Result<Committed, Error> {
        let began = Instant::now();
        self.begin()?;
        if batch.straight {
            // The commit that certifies these bytes must not be written before them.
            if self.device.sync_frames().is_err() {
                self.device.working(&self.device.state())?;
            }
            batch.straight = false;
        }
        let bytes = wal::padded_bytes(batch.bytes.len() - COMMIT_BYTES);
        let start = self.room(bytes)?;
        let (at, all_durable) = self.seal(batch, start)?;
        self.write_commit(&batch.bytes, at, level, all_durable)?;
        let mut state = self.device.state();
        state.ring.written(start, bytes);
        let lsn = state.ring.committed_lsn;
        if level == Level::Synced {
            state.ring.durable_lsn = lsn;
            state.stats.syncs += 1;
        }
        for staged in &batch.staged {
            let Some(replica) = state.replicas.get_mut(&staged.id) else {
                continue; // the replica was freed since
            };
            let before = replica.wal_from;
            let unused = replica.commit(staged, lsn);
            state.need(staged.id, before);
            if let Some(buffer) = unused {
                state.recycle(buffer);
            }
        }
        let committed = Committed {
            lsn,
            chunks: batch.staged.len() as u32,
            bytes: batch.payload_bytes,
            level: reached(&state.ring),
        };
        state.stats.commits += 1;
        state.stats.records += u64::from(batch.records);
        state.stats.payload_bytes += batch.payload_bytes;
        state.stats.wal_written_bytes += bytes;
        let micros = began.elapsed().as_micros().max(1) as u64;
        let bucket = (micros.ilog2() as usize).min(state.stats.commit_micros.len() - 1);
        state.stats.commit_micros[bucket] += 1;
        drop(state);
        batch.reset();
        Ok(committed)
    }

    /// Finds room for a commit, and returns its start. Empties the write-ahead log if necessary.
    fn room(&self, bytes: u64) -> Result<u64, Error> {
        let mut stalled = false;
        loop {
            let mut state = self.device.state();
            self.device.working(&state)?;
            let place = state.ring.place(bytes);
            if place.is_some() && self.device.held().bytes() > self.device.options().memory_bytes {
                state.pool.clear();
            }
            let crowded = self.device.held().bytes() > self.device.options().memory_bytes;
            if let Some(start) = place.filter(|_| !crowded) {
                return Ok(start);
            }
            state.stats.stalls += u64::from(!stalled);
            stalled = true;
            drop(state);
            let made = match place {
                None => self.flusher.make_room(bytes)?,
                Some(_) => match self.flusher.make_memory() {
                    Err(Error::Full { .. }) => false, // the write-ahead log must give room
                    made => made?,                    // backup::V3
                },
            };
            match place {
                _ if made => {}
                Some(start) => return Ok(start), // no more data can go to frames now
                None => {
                    return Err(Error::CommitTooLarge {
                        needed: bytes,
                        wal: self.device.geometry().wal_bytes - RING_AT,
                    });
                }
            }
        }
    }

    /// Writes the head of the commit and pads it. Returns its place, and whether everything before
    /// it is durable.
    fn seal(&self, batch: &mut Batch, start: u64) -> Result<(u64, bool), Error> {
        let state = self.device.state();
        self.device.working(&state)?;
        let ring = &state.ring;
        let commit = Commit {
            salt: ring.salt(),
            lsn: ring.committed_lsn + 1,
            generation: ring.generation,
            durable_lsn: ring.durable_lsn,
            body_bytes: (batch.bytes.len() - COMMIT_BYTES) as u32,
            records: batch.records,
            body_crc: batch.body_crc,
            clock_ms: ring.clock_ms,
        };
        let place = (ring.at(start), ring.durable_lsn == ring.committed_lsn);
        drop(state);
        commit.write_to(batch.bytes.bytes_mut());
        batch.bytes.fill_last_block();
        Ok(place)
    }

    fn write_commit(
        &self,
        bytes: &Buffer,
        at: u64,
        level: Level,
        all_durable: bool,
    ) -> Result<(), Error> {
        let padded = bytes.blocks();
        let written = match level {
            // If only the commit has to become durable, one call does it.
            Level::Synced if all_durable => self.device.wal().write_durably(at, padded),
            Level::Synced => {
                let written = self.device.wal().write_at(at, padded);
                let sync = || match self.device.wal().sync() {
                    Err(_) if has_bug(Bug::SyncAgain) => self.device.wal().sync(),
                    other => other,
                };
                // The writes before a failed sync are lost, whatever its reason (disk::D3).
                written.and_then(|()| sync().map_err(|error| io::Error::other(error.to_string())))
            }
            Level::Memory | Level::Buffered => self.device.wal().write_at(at, padded),
        };
        match written {
            Ok(()) => Ok(()),
            // The place has space (ring::G4), but some file systems copy on write.
            Err(error) => Err(self
                .device
                .failed_write("write the write-ahead log", &error)),
        }
    }

    /// A commit that names a frame must not be written after that frame was given away: chunks
    /// staged for a replica that is to be freed are committed first.
    pub(crate) fn commit_before_free(&self, id: ReplicaId) -> Result<(), Error> {
        let has = |batch: &Batch| batch.staged.iter().any(|staged| staged.id == id);
        // Waits for the commit in flight.
        let staged = has(&self.batches.committing()) || has(&self.batches.staging());
        if staged {
            self.commit(Level::Buffered)?;
        }
        Ok(())
    }

    /// Writes the new generation, and its salt, into both header blocks (ring::G3): if one of them
    /// goes bad, the other identifies the commits of this generation.
    pub(crate) fn begin(&self) -> Result<(), Error> {
        if self.device.state().ring.begun {
            return Ok(());
        }
        let _flushing = self.turns.flushing();
        for _ in HEADER_AT {
            let header = self.device.state().header();
            self.device.write_next_header(&header)?;
        }
        self.device.state().ring.begun = true;
        Ok(())
    }

    /// Frees a replica; see [`Backup::free`](crate::Backup::free).
    pub(crate) fn forget(&self, id: ReplicaId) -> Result<(), Error> {
        self.commit_before_free(id)?;
        let mut guard = self.device.state();
        let state = &mut *guard;
        let Some(replica) = state.replicas.remove(&id) else {
            return Err(Error::UnknownSegment {
                segment: id.segment,
            });
        };
        state.need(id, replica.wal_from);
        if replica.flushing {
            state.doomed.insert(id, replica.decay);
            return Ok(());
        }
        match replica.data {
            Data::Growing(buffer) => state.recycle(buffer),
            Data::Sealed(buffer) => {
                if let Some(buffer) = Arc::into_inner(buffer) {
                    state.recycle(buffer);
                }
            }
            Data::InFrame => {}
        }
        drop(guard);
        match replica.frame {
            Some(frame) => self
                .device
                .release(frame, id, replica.epoch, replica.decay.as_ref()),
            None => Ok(()),
        }
    }
}

/// The certificate after the new part of a chunk; `None`: the chunk has another one.
pub(crate) fn extended(
    before: Certificate,
    new: &[u8],
    chunk: &Chunk<'_>,
    trusted: bool,
) -> Option<Certificate> {
    let end = before.length + new.len() as u32;
    match chunk.certificate {
        Some(given) if trusted && new.len() == chunk.bytes.len() && given.length == end => {
            debug_assert_eq!(given, before.extended(new), "the caller's own certificate");
            Some(given)
        }
        given => Some(before.extended(new)).filter(|new| given.is_none_or(|given| given == *new)),
    }
}

fn reached(ring: &Ring) -> Level {
    if ring.durable_lsn >= ring.committed_lsn {
        Level::Synced
    } else {
        Level::Buffered
    }
}
