//! The backup: replicas of segments on one device.
//!
//! **Invariants**
//! - V1: nothing is acknowledged before it is in the write-ahead log (docs/traps.md, trap 11):
//!   `commit` returns after its write, and at `Synced` after its sync.
//! - V2: after a failed write or sync of the write-ahead log, of a slot or of a header, nothing is
//!   written any more. The state of the device is then unknown until the next opening.
//! - V3: while buffers take more than `Options::memory_bytes`, a commit writes replicas to frames
//!   before it is written itself, as it does when the write-ahead log is full. The memory exceeds
//!   the limit by the bytes that one commit stages; by more only while there is no frame.
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

use duramen_base::planted::{Bug, has_bug};
use std::any::Any;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use duramen_base::ids::{Level, SegmentId};
use duramen_format::certificate::Certificate;
use duramen_format::wal::{self, COMMIT_BYTES, Commit, HEADER_AT, Header, RING_AT};

use crate::buffer::{Buffer, BufferBytes};
use crate::disk::{BLOCK_BYTES, Disk};
use crate::encryption::Ciphers;
use crate::error::{Error, is_full};
use crate::frames::Frames;
use crate::region::Region;
use crate::replica::{Data, Replica};
use crate::ring::Ring;
use crate::speed::ReadSpeed;
use crate::staging::Batch;
use crate::state::State;
use crate::types::{Chunk, Committed, Geometry, Identity, Options, ReplicaId, Stats};

/// Segment replicas on one device. The crate's documentation lists who calls which method.
pub struct Backup {
    pub(crate) disk: Arc<dyn Disk>,
    pub(crate) place: String,
    pub(crate) options: Options,
    pub(crate) identity: Identity,
    pub(crate) geometry: Geometry,
    pub(crate) wal: Region,
    pub(crate) frames: Region,
    /// The batch that is being written, or that could not be written for lack of space.
    pub(crate) committing: Mutex<Batch>,
    /// The next batch.
    pub(crate) staging: Mutex<Batch>,
    pub(crate) flushing: Mutex<()>,
    pub(crate) straight: Mutex<()>,
    pub(crate) state: Mutex<State>,
    /// `None`: the store is not encrypted.
    pub(crate) ciphers: Option<Ciphers>,
    /// The counters that the last caller got.
    pub(crate) shown: Mutex<Stats>,
    /// The memory of its buffers.
    pub(crate) held: Arc<BufferBytes>,
    /// Of the device, for reads.
    pub(crate) speed: ReadSpeed,
    /// Memory that scrubbing reads into.
    pub(crate) scrubbing: Mutex<Buffer>,
    /// BufferBytes until [`leave`](Self::leave), or until this is dropped.
    pub(crate) lock: Mutex<Option<Box<dyn Any + Send + Sync>>>,
}

/// The new bytes of a chunk, and the length staged before it.
struct Fitting<'a> {
    staged: u32,
    new: &'a [u8],
}

/// From this many bytes on, a write from the caller's memory and another one from ours cost less
/// than a copy here.
const UNCOPIED_BYTES: usize = 512 << 10;

impl Backup {
    /// Writes a header block over the older one.
    pub(crate) fn write_header(&self, header: &Header) -> Result<(), Error> {
        let at = HEADER_AT[(header.sequence % 2) as usize];
        self.wal
            .write_durably(at, &header.encode())
            .map_err(|error| self.failed_write("write the log's header", &error))?;
        self.state().ring.header_clock_ms = header.clock_ms;
        Ok(())
    }

    /// The owner of the store.
    pub fn identity(&self) -> &Identity {
        &self.identity
    }

    /// The sizes of the store.
    pub fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    /// The owner's clock at the store's last write, in milliseconds since the Unix epoch; 0 = not
    /// known.
    pub fn clock_ms(&self) -> u64 {
        self.state().ring.clock_ms
    }

    /// Sets the owner's clock. It is written with the next commit, and with every header of the
    /// write-ahead log; of both the greater counts, so after a step back a header is written at
    /// once.
    ///
    /// # Errors
    /// [`Error::Full`], [`Error::Failed`].
    pub fn set_clock_ms(&self, now_ms: u64) -> Result<(), Error> {
        let mut state = self.state();
        state.ring.clock_ms = now_ms;
        let is_back = now_ms < state.ring.header_clock_ms;
        drop(state);
        if is_back { self.note_clock() } else { Ok(()) }
    }

    /// Makes the last [`set_clock_ms`](Self::set_clock_ms) durable.
    ///
    /// # Errors
    /// [`Error::Full`], [`Error::Failed`].
    pub fn note_clock(&self) -> Result<(), Error> {
        let _flushing = self.flushing.lock().unwrap_or_else(PoisonError::into_inner);
        self.working(&self.state())?;
        let header = self.state().header();
        self.write_header(&header)?;
        self.state().ring.sequence = header.sequence;
        Ok(())
    }

    /// The disk that the store is on.
    pub fn disk(&self) -> &Arc<dyn Disk> {
        &self.disk
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        // A thread that panicked under this lock failed an assertion: the others report it.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Refuses all further writes (V2).
    pub(crate) fn fail(&self, doing: &'static str, error: &io::Error) -> Error {
        let mut state = self.state();
        state.stats.io_errors += 1;
        let reason = state
            .failed
            .get_or_insert_with(|| format!("cannot {doing}: {error}"))
            .clone();
        state.stats.failed.clone_from(&reason);
        Error::Failed {
            place: self.place.clone(),
            reason,
        }
    }

    /// Handles the error of a write. Without space nothing happened: it is written again later. Any
    /// other error is final (V2).
    pub(crate) fn failed_write(&self, doing: &'static str, error: &io::Error) -> Error {
        if is_full(error) {
            self.state().stats.io_errors += 1;
            self.full()
        } else {
            self.fail(doing, error)
        }
    }

    /// Returns an error if the device has failed.
    pub(crate) fn working(&self, state: &State) -> Result<(), Error> {
        match &state.failed {
            None => Ok(()),
            Some(reason) => Err(Error::Failed {
                place: self.place.clone(),
                reason: reason.clone(),
            }),
        }
    }

    pub(crate) fn full(&self) -> Error {
        Error::Full {
            place: self.place.clone(),
        }
    }

    /// Adds a chunk to the next commit. Copies its bytes.
    ///
    /// # Errors
    /// [`Error::UnknownSegment`], [`Error::StaleEpoch`], [`Error::Gap`], [`Error::TooLong`],
    /// [`Error::Certificate`], [`Error::CommitTooLarge`]: the chunk was not accepted.
    pub fn stage(&self, chunk: Chunk<'_>) -> Result<(), Error> {
        self.stage_with(self.own(chunk.segment), chunk, false)
    }

    /// As [`stage`](Self::stage), for a certificate that the caller has just computed over this
    /// memory: the bytes are not verified again.
    ///
    /// # Errors
    /// As [`stage`](Self::stage).
    pub fn stage_certified(&self, chunk: Chunk<'_>) -> Result<(), Error> {
        self.stage_with(self.own(chunk.segment), chunk, true)
    }

    /// As [`stage`](Self::stage), for a segment of any log. A segment that is opened again at a
    /// higher epoch begins anew: its old replica is dropped, and the new one does not count until
    /// it is certified. A refused opening drops nothing (many::M5).
    ///
    /// # Errors
    /// As there; [`Error::Fenced`]; [`Error::Busy`] for an opening: choose another backup.
    pub fn stage_of(&self, log: u64, chunk: Chunk<'_>) -> Result<(), Error> {
        let segment = chunk.segment;
        self.stage_with(ReplicaId { log, segment }, chunk, false)
    }

    /// The name of a segment of the own log.
    pub(crate) fn own(&self, segment: SegmentId) -> ReplicaId {
        let log = self.identity.server;
        ReplicaId { log, segment }
    }

    fn stage_with(&self, id: ReplicaId, chunk: Chunk<'_>, trusted: bool) -> Result<(), Error> {
        let mut state = self.state();
        self.not_fenced(&state, id.log)?;
        self.working(&state)?;
        let older = state.replicas.get(&id);
        let is_superseded = older.is_some_and(|older| chunk.open && older.epoch < chunk.epoch);
        if chunk.open && (older.is_none() || is_superseded) {
            self.reserve_for_others(&mut state, id.log)?;
            self.has_room(&state, id, &chunk)?;
        }
        if is_superseded {
            drop(state);
            self.supersede(id, &chunk, trusted)?;
            state = self.state();
        }
        let fresh = chunk.open && !state.replicas.contains_key(&id);
        if fresh {
            let buffer = state.buffer(self.geometry.segment_bytes);
            let replica = Replica::new(chunk.kind, chunk.epoch, Data::Growing(buffer));
            state.replicas.insert(id, replica);
        }
        drop(state);
        let taken = self.stage_in(id, &chunk, fresh, trusted);
        if fresh && taken.is_err() {
            let mut state = self.state();
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
        let mut batch = self.lock_staging();
        let mut guard = self.state();
        let state = &mut *guard;
        self.not_fenced(state, id.log)?;
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
            batch = self.lock_staging();
            guard = self.state();
            self.not_fenced(&guard, id.log)?; // the fence may have been set meanwhile
            batch.straight = true;
        }
        let replica = guard.replicas.get_mut(&id);
        let replica = replica.ok_or(Error::UnknownSegment {
            segment: id.segment,
        })?;
        let Data::Growing(buffer) = &mut replica.data else {
            return Err(Error::UnknownSegment {
                segment: id.segment,
            }); // a sealed one is closed, which was excluded above
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
    /// the ring. `new_bytes`: of the chunk; `needed`: of a commit with it.
    fn frame_to_write(
        &self,
        replica: &mut Replica,
        (frames, ring): (&mut Frames, &mut Ring),
        may_bypass: bool,
        (new_bytes, needed): (usize, u64),
    ) -> Result<Option<u32>, Error> {
        let is_large = new_bytes >= self.options.bypass_bytes as usize || needed > ring.ready / 4;
        let frame = match may_bypass && !replica.flushing && is_large {
            true => frames
                .take_for(replica, &self.frames)
                .map_err(|error| Error::io(&self.place, "allocate a frame", error))?,
            false => None,
        };
        if frame.is_none() && needed > ring.reserved / 2 {
            let reserved = ring.reserve(&self.wal, 2 * needed - ring.reserved);
            reserved
                .map_err(|error| Error::io(&self.place, "extend the write-ahead log", error))?;
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
        let capacity = self.geometry.segment_bytes;
        let replica = state.replicas.get(&id);
        // A damaged replica is opened again, and never continued: its damage would be forgotten.
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
        let _straight = self.straight.lock().unwrap_or_else(PoisonError::into_inner);
        let mut guard = self.state();
        let state = &mut *guard;
        let rest = Buffer::counted(0, &self.held); // usually less than a block
        let replica = state.replicas.get_mut(&id);
        let replica = replica.ok_or(Error::UnknownSegment {
            segment: id.segment,
        })?;
        let staged = replica.staged();
        let count = until.saturating_sub(staged) as usize;
        // The rest of the block of which a part is in memory; then whole blocks.
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
        let written = self.frames.write_parts(at, &[given.bytes(), blocks]);
        let mut guard = self.state();
        guard.stats.frame_written_bytes += u64::from(until - from);
        if let Err(error) = written {
            if let Some(replica) = guard.replicas.get_mut(&id) {
                replica.take_back(from, given, length);
            }
            drop(guard);
            return Err(self.failed_write("write a frame", &error));
        }
        Ok(())
    }

    pub(crate) fn lock_committing(&self) -> MutexGuard<'_, Batch> {
        self.committing
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn lock_staging(&self) -> MutexGuard<'_, Batch> {
        self.staging.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Commits everything staged in one write, all or nothing. Commits are written one after
    /// another; chunks that another thread stages meanwhile belong to the next one.
    ///
    /// # Errors
    /// [`Error::Full`]: everything stays staged, try again. [`Error::Failed`]: nothing more is
    /// accepted.
    pub fn commit(&self, level: Level) -> Result<Committed, Error> {
        let mut batch = self.lock_committing();
        let mut sum = Committed::default();
        if !batch.is_empty() {
            // There was no space for it, and more was staged since.
            sum = self.commit_batch(&mut batch, level)?;
        }
        std::mem::swap(&mut *batch, &mut *self.lock_staging());
        if !batch.is_empty() {
            let committed = self.commit_batch(&mut batch, level);
            let mut staging = self.lock_staging();
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
            self.sync()?;
        }
        let state = self.state();
        self.working(&state)?;
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
            if self.sync_frames().is_err() {
                self.working(&self.state())?;
            }
            batch.straight = false;
        }
        let bytes = wal::padded_bytes(batch.bytes.len() - COMMIT_BYTES);
        let start = self.room(bytes)?;
        let (at, all_durable) = self.seal(batch, start)?;
        self.write_commit(&batch.bytes, at, level, all_durable)?;
        let mut state = self.state();
        state.ring.written(start, bytes);
        let lsn = state.ring.committed_lsn;
        if level == Level::Synced {
            state.ring.durable_lsn = lsn;
            state.stats.syncs += 1;
        }
        for staged in &batch.staged {
            let Some(replica) = state.replicas.get_mut(&staged.id) else {
                continue; // freed since
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

    /// Finds room for a commit: its start. Empties the write-ahead log if necessary.
    fn room(&self, bytes: u64) -> Result<u64, Error> {
        let mut stalled = false;
        loop {
            let mut state = self.state();
            self.working(&state)?;
            let place = state.ring.place(bytes);
            if place.is_some() && self.held.bytes() > self.options.memory_bytes {
                state.pool.clear();
            }
            let crowded = self.held.bytes() > self.options.memory_bytes;
            if let Some(start) = place.filter(|_| !crowded) {
                return Ok(start);
            }
            state.stats.stalls += u64::from(!stalled);
            stalled = true;
            drop(state);
            let made = match place {
                None => self.make_room(bytes)?,
                Some(_) => match self.make_memory() {
                    Err(Error::Full { .. }) => false, // only the write-ahead log is left
                    made => made?,                    // V3
                },
            };
            match place {
                _ if made => {}
                Some(start) => return Ok(start), // no more data can go to a frame now
                None => {
                    return Err(Error::CommitTooLarge {
                        needed: bytes,
                        wal: self.geometry.wal_bytes - RING_AT,
                    });
                }
            }
        }
    }

    /// Writes the head of the commit and pads it. Returns its place, and whether everything before
    /// it is durable.
    fn seal(&self, batch: &mut Batch, start: u64) -> Result<(u64, bool), Error> {
        let state = self.state();
        self.working(&state)?;
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
            // Only the commit has to become durable: one call does it.
            Level::Synced if all_durable => self.wal.write_durably(at, padded),
            Level::Synced => {
                let written = self.wal.write_at(at, padded);
                let sync = || match self.wal.sync() {
                    Err(_) if has_bug(Bug::SyncAgain) => self.wal.sync(),
                    other => other,
                };
                // The writes before a failed sync are lost, whatever its reason (disk::D3).
                written.and_then(|()| sync().map_err(|error| io::Error::other(error.to_string())))
            }
            Level::Memory | Level::Buffered => self.wal.write_at(at, padded),
        };
        match written {
            Ok(()) => Ok(()),
            // The place has space (ring::G4), but some file systems copy on write.
            Err(error) => Err(self.failed_write("write the write-ahead log", &error)),
        }
    }

    /// A commit that names a frame must not be written after that frame was given away: chunks
    /// staged for a replica that is to be freed are committed first.
    pub(crate) fn commit_before_free(&self, id: ReplicaId) -> Result<(), Error> {
        let has = |batch: &Batch| batch.staged.iter().any(|staged| staged.id == id);
        // Waits for the commit in flight.
        let staged = has(&self.lock_committing()) || has(&self.lock_staging());
        if staged {
            self.commit(Level::Buffered)?;
        }
        Ok(())
    }

    /// Makes every earlier commit [`Level::Synced`].
    ///
    /// # Errors
    /// [`Error::Failed`].
    pub fn sync(&self) -> Result<(), Error> {
        let state = self.state();
        self.working(&state)?;
        let lsn = state.ring.committed_lsn;
        if state.ring.durable_lsn >= lsn {
            return Ok(());
        }
        drop(state);
        self.wal
            .sync()
            .map_err(|error| self.fail("sync the write-ahead log", &error))?;
        let mut state = self.state();
        // After a failure in the meantime nothing is known (disk::D3): this success does not count.
        self.working(&state)?;
        state.ring.durable_lsn = state.ring.durable_lsn.max(lsn);
        state.stats.syncs += 1;
        Ok(())
    }

    /// Syncs if at least `at_least` bytes of the write-ahead log are only buffered, so that a later
    /// sync has little to do. Called beside commits, from another thread than theirs.
    ///
    /// # Errors
    /// [`Error::Failed`].
    pub fn sync_ahead(&self, at_least: u64) -> Result<(), Error> {
        if self.state().ring.unsynced() < at_least {
            return Ok(());
        }
        self.sync()
    }

    /// Writes the data of all commits to frames, so that a restart needs nothing of the write-ahead
    /// log, and records its end, so that a restart need not search for it. Without room for frames
    /// the commits stay.
    ///
    /// # Errors
    /// [`Error::Full`], [`Error::Failed`]: the end is not recorded.
    pub fn close(&self) -> Result<(), Error> {
        let _flushing = self.flushing.lock().unwrap_or_else(PoisonError::into_inner);
        self.sync()?;
        match self.drain() {
            Ok(()) | Err(Error::Full { .. }) => {}
            Err(error) => return Err(error),
        }
        let state = self.state();
        let mut header = state.header();
        header.end_lsn = state.ring.committed_lsn + 1;
        drop(state);
        self.write_header(&header)?;
        self.state().ring.sequence = header.sequence;
        Ok(())
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
