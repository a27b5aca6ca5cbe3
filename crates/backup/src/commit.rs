//! Commits: the write of staged chunks to the write-ahead log, and its effect on the replicas.

use duramen_base::ids::Level;
use duramen_base::planted::{Bug, has_bug};
use duramen_format::wal::{self, COMMIT_BYTES, RING_AT};
use std::io;
use std::sync::MutexGuard;
use std::time::Instant;

use crate::backup::{Backup, State};
use crate::buffer::Buffer;
use crate::error::Error;
use crate::ring::Ring;
use crate::staging::Batch;
use crate::types::{Committed, ReplicaId};

impl State {
    /// Applies the last commit of the ring to the replicas and the counters.
    pub(crate) fn note_committed(&mut self, batch: &Batch, bytes: u64, began: Instant) {
        let lsn = self.ring.committed_lsn;
        for staged in &batch.staged {
            let Some(replica) = self.replicas.get_mut(&staged.id) else {
                continue; // freed since
            };
            let before = replica.wal_from;
            let unused = replica.commit(staged, lsn);
            self.need(staged.id, before);
            if let Some(buffer) = unused {
                self.recycle(buffer);
            }
        }
        self.stats.commits += 1;
        self.stats.records += u64::from(batch.records);
        self.stats.payload_bytes += batch.payload_bytes;
        self.stats.wal_written_bytes += bytes;
        let micros = began.elapsed().as_micros().max(1) as u64;
        let bucket = (micros.ilog2() as usize).min(self.stats.commit_micros.len() - 1);
        self.stats.commit_micros[bucket] += 1;
    }
}

impl Backup {
    /// Commits everything staged in one write, all or nothing. Chunks that another thread stages
    /// meanwhile belong to a later commit. Several threads may commit at once: when this returns,
    /// everything that was staged before the call has reached the level, whichever call wrote it.
    ///
    /// # Errors
    /// [`Error::Full`]: everything stays staged, try again. [`Error::Failed`]: nothing more is
    /// accepted.
    pub fn commit(&self, level: Level) -> Result<Committed, Error> {
        let mut batch = self.lock_committing();
        if level == Level::Synced
            && batch.is_empty()
            && let Some(flight) = self.take_off(&mut batch)
        {
            drop(batch);
            return self.fly(flight);
        }
        self.commit_alone(batch, level)
    }

    /// As [`commit`](Self::commit), while there is no flight (flights::F3).
    fn commit_alone(
        &self,
        mut batch: MutexGuard<'_, Batch>,
        level: Level,
    ) -> Result<Committed, Error> {
        let mut sum = self.land_all()?;
        if !batch.is_empty() {
            // There was no space for it, and more was staged since.
            sum = self.commit_batch(&mut batch, level)?.after(&sum);
        }
        std::mem::swap(&mut *batch, &mut *self.lock_staging());
        if !batch.is_empty() {
            let committed = self.commit_batch(&mut batch, level);
            let mut staging = self.lock_staging();
            if committed.is_err() && staging.is_empty() {
                std::mem::swap(&mut *batch, &mut *staging);
            }
            return Ok(committed?.after(&sum));
        }
        drop(batch);
        if sum.lsn > 0 {
            return Ok(sum);
        }
        if level == Level::Synced {
            self.sync()?;
        }
        let state = self.state();
        self.working(&state)?;
        Ok(Committed {
            level: reached(&state.ring).max(level),
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
        let committed = batch.committed(lsn, reached(&state.ring));
        state.note_committed(batch, bytes, began);
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
                None => self.make_room()?,
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
        let head = ring.head_of(batch);
        let place = (ring.at(start), ring.durable_lsn == ring.committed_lsn);
        drop(state);
        batch.seal(&head);
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
            // Space was allocated at creation, but some file systems copy on write.
            Err(error) => Err(self.failed_write("write the write-ahead log", &error)),
        }
    }

    /// A commit that names a frame must not be written after that frame was given away: chunks
    /// staged for a replica that is to be freed are committed first.
    pub(crate) fn commit_before_free(&self, id: ReplicaId) -> Result<(), Error> {
        let committing = self.lock_committing(); // waits for a commit that is written alone
        let is_staged = committing.has(id) || self.lock_staging().has(id);
        drop(committing);
        if is_staged || self.is_grounded(id) {
            self.commit(Level::Buffered)?;
        }
        Ok(())
    }
}

fn reached(ring: &Ring) -> Level {
    if ring.durable_lsn >= ring.committed_lsn {
        Level::Synced
    } else {
        Level::Buffered
    }
}
