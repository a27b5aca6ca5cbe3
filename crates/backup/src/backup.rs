//! The backup: replicas of segments on one device.
//!
//! **Invariants**
//! - V1: nothing is acknowledged that the write-ahead log does not hold (90-traps.md, trap 11): `commit` returns after its write,
//!   and at `Synced` after its sync.
//! - V2: after a failed write or sync of the write-ahead log, of a slot or of a header, nothing is written any more. What
//!   reached the device is then unknown, and the next opening finds out.
//!
//! **Concurrency**: three locks, taken in this order: `staging` (the log writer, for a whole commit), `flushing` (the
//! flusher, or a commit that waits for room), `state` (everybody, briefly; no write or sync is done under it, except that
//! the file system may be asked for space).
//!
//! Paper: [Beineke18 §IV]; differs: see the crate's documentation.

use std::any::Any;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use duramen_base::ids::{Level, SegmentId};
use duramen_format::certificate::Certificate;
use duramen_format::wal::{self, COMMIT_BYTES, Commit, HEADER_AT, Header, RING_AT, Record};

use crate::buffer::Buffer;
use crate::disk::{BLOCK_BYTES, Disk};
use crate::error::{Error, is_full};
use crate::frames::Frames;
use crate::region::Region;
use crate::replica::{Data, Decay, Replica, Staged};
use crate::ring::Ring;
use crate::types::{Chunk, Committed, Damaged, Geometry, Identity, Options, ReplicaInfo, Stats};

/// Segment replicas on one device. See the crate's documentation for who may call what.
pub struct Backup {
    pub(crate) disk: Arc<dyn Disk>,
    pub(crate) place: String,
    pub(crate) options: Options,
    pub(crate) identity: Identity,
    pub(crate) geometry: Geometry,
    pub(crate) wal: Region,
    pub(crate) frames: Region,
    pub(crate) staging: Mutex<Staging>,
    pub(crate) flushing: Mutex<()>,
    pub(crate) state: Mutex<State>,
    /// Memory that scrubbing reads into.
    pub(crate) scrubbing: Mutex<Vec<u8>>,
    /// Held as long as the store is open.
    pub(crate) _lock: Box<dyn Any + Send + Sync>,
}

/// What the next commit will hold.
pub(crate) struct Staging {
    /// The commit as it will be written; its first bytes wait for the head.
    bytes: Buffer,
    records: u32,
    payload_bytes: u64,
    staged: Vec<Staged>,
    /// Parts of replicas that go straight to their frames: from their base to here.
    straight: Vec<Straight>,
}

struct Straight {
    segment: SegmentId,
    frame: u32,
    until: u32,
}

/// Everything that is known about the device.
pub(crate) struct State {
    pub(crate) replicas: BTreeMap<SegmentId, Replica>,
    /// Replicas of which a restart would need commits, with the oldest such commit.
    pub(crate) needs: BTreeSet<(u64, SegmentId)>,
    pub(crate) frames: Frames,
    pub(crate) ring: Ring,
    /// Greatest stamp that a slot has.
    pub(crate) stamp: u64,
    pub(crate) failed: Option<String>,
    /// Replicas that were freed while the flusher had them.
    pub(crate) doomed: BTreeMap<SegmentId, Option<Decay>>,
    /// Found since somebody asked.
    pub(crate) damaged: Vec<Damaged>,
    /// Buffers to be used again: fresh memory is slow to touch.
    pub(crate) pool: Vec<Buffer>,
    pub(crate) scrub_after: SegmentId,
    pub(crate) stats: Stats,
}

/// Most buffers kept for reuse: as many as segments are commonly open at once.
const POOL_MAX: usize = 4;

impl State {
    pub(crate) fn buffer(&mut self, bytes: u32) -> Buffer {
        self.pool
            .pop()
            .unwrap_or_else(|| Buffer::with_capacity(bytes as usize))
    }

    pub(crate) fn recycle(&mut self, mut buffer: Buffer) {
        if self.pool.len() < POOL_MAX {
            buffer.clear();
            self.pool.push(buffer);
        }
    }

    /// Keeps `needs` true to a replica that changed.
    pub(crate) fn need(&mut self, segment: SegmentId, before: Option<u64>) {
        let after = self
            .replicas
            .get(&segment)
            .and_then(|replica| replica.wal_from);
        if before != after {
            if let Some(lsn) = before {
                self.needs.remove(&(lsn, segment));
            }
            if let Some(lsn) = after {
                self.needs.insert((lsn, segment));
            }
        }
    }
}

impl Backup {
    /// Writes a header block over the older one.
    pub(crate) fn write_header(&self, header: &Header) -> Result<(), Error> {
        let at = HEADER_AT[(header.sequence % 2) as usize];
        self.wal
            .write_durably(at, &header.encode())
            .map_err(|error| self.failed_write("write the log's header", &error))
    }

    /// Who the store belongs to.
    pub fn identity(&self) -> &Identity {
        &self.identity
    }

    /// Its sizes.
    pub fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    /// The disk it is on.
    pub fn disk(&self) -> &Arc<dyn Disk> {
        &self.disk
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        // A thread that panicked under this lock failed an assertion; the others go on to report it.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    #[cfg(feature = "planted")]
    pub(crate) fn planted(&self, bug: crate::planted::Bug) -> bool {
        self.options.planted == Some(bug)
    }

    /// Takes no more writes from now on (V2).
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

    /// A write had an error. Without space nothing happened: it is written again later. Anything else is final (V2).
    pub(crate) fn failed_write(&self, doing: &'static str, error: &io::Error) -> Error {
        if is_full(error) {
            self.state().stats.io_errors += 1;
            self.full()
        } else {
            self.fail(doing, error)
        }
    }

    /// Refuses if the device has failed.
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

    /// Takes a chunk into the next commit. Copies its bytes.
    ///
    /// # Errors
    /// [`Error::UnknownSegment`], [`Error::StaleEpoch`], [`Error::Gap`], [`Error::TooLong`], [`Error::Certificate`],
    /// [`Error::CommitTooLarge`]: the chunk was not taken.
    pub fn stage(&self, chunk: Chunk<'_>) -> Result<(), Error> {
        let mut staging = self.lock_staging();
        let mut state = self.state();
        self.working(&state)?;
        if chunk.open && !state.replicas.contains_key(&chunk.segment) {
            let buffer = state.buffer(self.geometry.segment_bytes);
            let replica = Replica::new(chunk.kind, chunk.epoch, Data::Growing(buffer));
            state.replicas.insert(chunk.segment, replica);
            let taken = self.stage_in(&mut staging, &mut state, &chunk, true);
            if taken.is_err() {
                state.replicas.remove(&chunk.segment);
            }
            return taken;
        }
        self.stage_in(&mut staging, &mut state, &chunk, false)
    }

    fn stage_in(
        &self,
        staging: &mut Staging,
        state: &mut State,
        chunk: &Chunk<'_>,
        fresh: bool,
    ) -> Result<(), Error> {
        let segment = chunk.segment;
        let capacity = self.geometry.segment_bytes;
        let replica = state
            .replicas
            .get_mut(&segment)
            .ok_or(Error::UnknownSegment { segment })?;
        if chunk.epoch < replica.epoch {
            return Err(Error::StaleEpoch {
                segment,
                known: replica.epoch,
                given: chunk.epoch,
            });
        }
        let staged = replica.staged();
        let end = u64::from(chunk.offset) + chunk.bytes.len() as u64;
        if end > u64::from(capacity) {
            return Err(Error::TooLong {
                segment,
                capacity,
                end,
            });
        }
        let end = end as u32;
        if chunk.offset > staged {
            return Err(Error::Gap {
                segment,
                length: staged,
                offset: chunk.offset,
            });
        }
        let certifies = |given: Certificate| given.length > replica.staged_certified;
        let adds = fresh || end > staged || chunk.close || chunk.certificate.is_some_and(certifies);
        if replica.staged_closed || !adds {
            return Ok(()); // a repetition
        }
        let new = chunk
            .bytes
            .get((staged - chunk.offset) as usize..)
            .unwrap_or(&[]);
        let rolling = replica.rolling.extended(new);
        if chunk.certificate.is_some_and(|given| given != rolling) {
            return Err(Error::Certificate {
                segment,
                length: end,
            });
        }
        let needed = wal::padded_bytes(staging.bytes.len() + 64 + new.len());
        let ring = self.geometry.wal_bytes - RING_AT;
        let straight = chunk.certificate.is_some()
            && !replica.flushing
            && (new.len() >= self.options.bypass_bytes as usize || needed > ring / 4);
        let until = end - end % BLOCK_BYTES as u32;
        let frame = if straight && until > replica.staged_base {
            straight_frame(replica, &mut state.frames, &self.frames)
        } else {
            None
        };
        if frame.is_none() && needed > ring / 2 {
            return Err(Error::CommitTooLarge { needed, wal: ring });
        }
        let Data::Growing(buffer) = &mut replica.data else {
            return Err(Error::UnknownSegment { segment }); // sealed: closed, and excluded above
        };
        buffer.extend(new);
        let (offset, payload) = match frame {
            Some(_) => (until, &buffer.bytes()[(until - replica.base) as usize..]),
            None => (staged, new),
        };
        let record = Record {
            segment,
            log: self.identity.server,
            epoch: chunk.epoch,
            offset,
            payload,
            certificate: chunk.certificate,
            open: chunk.open,
            close: chunk.close,
            kind: chunk.kind,
            frame,
        };
        staging.append(&record, self.skips(&record));
        staging.payload_bytes += new.len() as u64;
        staging.staged.push(Staged {
            segment,
            epoch: chunk.epoch,
            end,
            certificate: chunk.certificate,
            close: chunk.close,
            base: frame.map(|_| until),
        });
        if let Some(frame) = frame {
            replica.staged_base = until;
            staging.straight.push(Straight {
                segment,
                frame,
                until,
            });
        }
        replica.rolling = rolling;
        if chunk.certificate.is_some() {
            replica.staged_certified = end;
        }
        replica.staged_closed |= chunk.close;
        Ok(())
    }

    #[cfg(not(feature = "planted"))]
    #[expect(
        clippy::unused_self,
        reason = "the planted variant looks at the options"
    )]
    fn skips(&self, _record: &Record<'_>) -> bool {
        false
    }

    #[cfg(feature = "planted")]
    fn skips(&self, record: &Record<'_>) -> bool {
        record.close && self.planted(crate::planted::Bug::CloseFromMemory)
    }

    fn lock_staging(&self) -> MutexGuard<'_, Staging> {
        self.staging.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Commits everything staged in one write, all or nothing. Only one caller at a time: the log writer.
    ///
    /// # Errors
    /// [`Error::Full`]: everything stays staged, try again. [`Error::Failed`]: nothing more will be taken.
    pub fn commit(&self, level: Level) -> Result<Committed, Error> {
        let mut staging = self.lock_staging();
        if staging.staged.is_empty() {
            drop(staging);
            if level == Level::Synced {
                self.sync()?;
            }
            let state = self.state();
            self.working(&state)?;
            return Ok(Committed {
                level: reached(&state.ring),
                ..Committed::default()
            });
        }
        let began = Instant::now();
        self.write_straight(&staging)?;
        let bytes = wal::padded_bytes(staging.bytes.len() - COMMIT_BYTES);
        let start = self.room(bytes)?;
        let (at, all_durable) = self.seal(&mut staging, start)?;
        self.write_commit(&staging.bytes, at, level, all_durable)?;
        let mut state = self.state();
        state.ring.written(start, bytes);
        let lsn = state.ring.committed_lsn;
        if level == Level::Synced {
            state.ring.durable_lsn = lsn;
            state.stats.syncs += 1;
        }
        for staged in &staging.staged {
            let Some(replica) = state.replicas.get_mut(&staged.segment) else {
                continue; // freed since
            };
            let before = replica.wal_from;
            replica.commit(staged, lsn);
            state.need(staged.segment, before);
        }
        let committed = Committed {
            lsn,
            chunks: staging.staged.len() as u32,
            bytes: staging.payload_bytes,
            level: reached(&state.ring),
        };
        state.stats.commits += 1;
        state.stats.records += u64::from(staging.records);
        state.stats.payload_bytes += staging.payload_bytes;
        state.stats.wal_written_bytes += bytes;
        let micros = began.elapsed().as_micros().max(1) as u64;
        let bucket = (micros.ilog2() as usize).min(state.stats.commit_micros.len() - 1);
        state.stats.commit_micros[bucket] += 1;
        drop(state);
        staging.reset();
        Ok(committed)
    }

    /// Writes the parts that go straight to frames, durably: the commit that certifies them must not come before.
    fn write_straight(&self, staging: &Staging) -> Result<(), Error> {
        for part in &staging.straight {
            let Some((at, length, lent)) = self.lend(part) else {
                continue;
            };
            let written = self
                .frames
                .write_durably(at, &lent.bytes()[..length as usize]);
            let mut guard = self.state();
            let state = &mut *guard;
            state.stats.frame_written_bytes += u64::from(length);
            state.stats.syncs += 1;
            let replica = state.replicas.get_mut(&part.segment);
            match replica.map(|replica| &mut replica.data) {
                Some(data @ Data::Lent(_)) => {
                    *data = Data::InFrame; // drops its share
                    let buffer = Arc::into_inner(lent);
                    *data = Data::Growing(buffer.expect("a buffer is lent to one"));
                }
                _ => drop(lent), // freed meanwhile
            }
            drop(guard);
            written.map_err(|error| self.failed_write("write a frame", &error))?;
        }
        Ok(())
    }

    /// Takes a replica's bytes for writing a part of them to its frame: where, how many. `None`: freed since, or an earlier
    /// attempt or the flusher has written it.
    fn lend(&self, part: &Straight) -> Option<(u64, u32, Arc<Buffer>)> {
        let mut guard = self.state();
        let state = &mut *guard;
        let at = state.frames.data_at(part.frame);
        let replica = state.replicas.get_mut(&part.segment)?;
        let length = part
            .until
            .checked_sub(replica.base)
            .filter(|length| *length > 0)?;
        match std::mem::replace(&mut replica.data, Data::InFrame) {
            Data::Growing(buffer) => {
                let lent = Arc::new(buffer);
                replica.data = Data::Lent(lent.clone());
                Some((at + u64::from(replica.base), length, lent))
            }
            other => {
                replica.data = other;
                None
            }
        }
    }

    /// Finds room for a commit, emptying the write-ahead log if need be. Returns where it starts.
    fn room(&self, bytes: u64) -> Result<u64, Error> {
        let mut stalled = false;
        loop {
            let state = self.state();
            self.working(&state)?;
            if let Some(start) = state.ring.place(bytes) {
                return Ok(start);
            }
            drop(state);
            if !stalled {
                self.state().stats.stalls += 1;
                stalled = true;
            }
            if !self.make_room()? {
                return Err(Error::CommitTooLarge {
                    needed: bytes,
                    wal: self.geometry.wal_bytes - RING_AT,
                });
            }
        }
    }

    /// Writes the head of the commit and pads it. Returns its place, and whether everything before is durable.
    fn seal(&self, staging: &mut Staging, start: u64) -> Result<(u64, bool), Error> {
        let body = &staging.bytes.bytes()[COMMIT_BYTES..];
        let (body_bytes, body_crc) = (body.len() as u32, crc32c::crc32c(body));
        let state = self.state();
        self.working(&state)?;
        let ring = &state.ring;
        let commit = Commit {
            server: self.identity.server,
            lsn: ring.committed_lsn + 1,
            generation: ring.generation,
            durable_lsn: ring.durable_lsn,
            body_bytes,
            records: staging.records,
            body_crc,
        };
        let place = (ring.at(start), ring.durable_lsn == ring.committed_lsn);
        drop(state);
        commit.write_to(staging.bytes.bytes_mut());
        staging.bytes.fill_last_block();
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
            // The commit alone has to become durable: one call does it.
            Level::Synced if all_durable => self.wal.write_durably(at, padded),
            Level::Synced => {
                let written = self.wal.write_at(at, padded);
                #[cfg(feature = "planted")]
                let sync = || {
                    let again = self.planted(crate::planted::Bug::SyncAgain);
                    self.wal
                        .sync()
                        .or_else(|error| if again { self.wal.sync() } else { Err(error) })
                };
                #[cfg(not(feature = "planted"))]
                let sync = || self.wal.sync();
                // What a failed sync lost is lost, whatever its reason (D3).
                written.and_then(|()| sync().map_err(|error| io::Error::other(error.to_string())))
            }
            Level::Memory | Level::Buffered => self.wal.write_at(at, padded),
        };
        match written {
            Ok(()) => Ok(()),
            // Space was promised at creation, but some file systems copy on write.
            Err(error) => Err(self.failed_write("write the write-ahead log", &error)),
        }
    }

    /// A commit that names a frame must not be written after that frame was given away: what is staged for a replica that is
    /// to be freed is committed first.
    pub(crate) fn commit_before_free(&self, segment: SegmentId) -> Result<(), Error> {
        let staged = self
            .lock_staging()
            .staged
            .iter()
            .any(|staged| staged.segment == segment);
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
        // A failure meanwhile says that nothing is known (D3): this success must not be believed.
        self.working(&state)?;
        state.ring.durable_lsn = state.ring.durable_lsn.max(lsn);
        state.stats.syncs += 1;
        Ok(())
    }

    /// All replicas, by id.
    pub fn replicas(&self) -> Vec<ReplicaInfo> {
        let state = self.state();
        state
            .replicas
            .iter()
            .filter(|(_, replica)| replica.committed)
            .map(|(segment, replica)| replica.info(*segment))
            .collect()
    }

    /// Figures.
    pub fn stats(&self) -> Stats {
        let state = self.state();
        Stats {
            wal_bytes: state.ring.capacity,
            wal_used_bytes: state.ring.used(),
            frames: self.geometry.frames,
            frames_used: state.frames.used(),
            quarantined: state.frames.quarantined(),
            unflushed: state.needs.len() as u32,
            ..state.stats.clone()
        }
    }

    /// Syncs, and notes the end of the write-ahead log, so that a restart need not search for it.
    ///
    /// # Errors
    /// [`Error::Failed`].
    pub fn close(&self) -> Result<(), Error> {
        let _flushing = self.flushing.lock().unwrap_or_else(PoisonError::into_inner);
        self.sync()?;
        let state = self.state();
        let mut header = state.ring.header();
        header.end_lsn = state.ring.committed_lsn + 1;
        drop(state);
        self.write_header(&header)?;
        self.state().ring.sequence = header.sequence;
        Ok(())
    }
}

impl Staging {
    pub(crate) fn new() -> Staging {
        Staging {
            bytes: Buffer::with_capacity(COMMIT_BYTES),
            records: 0,
            payload_bytes: 0,
            staged: Vec::new(),
            straight: Vec::new(),
        }
    }

    fn append(&mut self, record: &Record<'_>, skipped: bool) {
        if self.bytes.len() < COMMIT_BYTES {
            self.bytes.clear();
            self.bytes.extend(&[0; COMMIT_BYTES]);
        }
        if skipped {
            return;
        }
        self.bytes.extend(&record.head());
        self.bytes.extend(record.payload);
        self.bytes.pad(8);
        self.records += 1;
    }

    fn reset(&mut self) {
        self.bytes.clear();
        self.records = 0;
        self.payload_bytes = 0;
        self.staged.clear();
        self.straight.clear();
    }
}

/// The frame of a replica, taken if it has none yet. `None`: there is none, so the write-ahead log has to do.
fn straight_frame(replica: &mut Replica, frames: &mut Frames, region: &Region) -> Option<u32> {
    if replica.frame.is_none() {
        replica.frame = frames.take(region).ok().flatten();
    }
    replica.frame
}

fn reached(ring: &Ring) -> Level {
    if ring.durable_lsn >= ring.committed_lsn {
        Level::Synced
    } else {
        Level::Buffered
    }
}
