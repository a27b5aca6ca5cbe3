//! The device of a backup: its regions, and the state of what is on it.

use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::{Duration, Instant};

use duramen_base::ids::SegmentId;
use duramen_format::certificate::Certificate;
use duramen_format::frame::{Slot, State as SlotState};
use duramen_format::segment::Kind;
use duramen_format::wal::{HEADER_AT, Header};

use crate::buffer::BufferBytes;
use crate::disk::Disk;
use crate::error::{Error, is_full};
use crate::frames::slot_bytes;
use crate::region::Region;
use crate::replica::Decay;
use crate::state::State;
use crate::types::{Geometry, Identity, Options, ReplicaId};

/// The device of a backup; see the module.
pub(crate) struct Device {
    disk: Arc<dyn Disk>,
    place: String,
    options: Options,
    identity: Identity,
    geometry: Geometry,
    wal: Region,
    frames: Region,
    /// The memory of its buffers.
    held: Arc<BufferBytes>,
    state: Mutex<State>,
}

impl Device {
    pub(crate) fn new(
        disk: Arc<dyn Disk>,
        options: Options,
        (identity, geometry): (Identity, Geometry),
        (wal, frames): (Region, Region),
        held: Arc<BufferBytes>,
        state: State,
    ) -> Device {
        Device {
            place: disk.label(),
            disk,
            options,
            identity,
            geometry,
            wal,
            frames,
            held,
            state: Mutex::new(state),
        }
    }

    pub(crate) fn disk(&self) -> &Arc<dyn Disk> {
        &self.disk
    }

    /// The name of the disk, for people.
    pub(crate) fn place(&self) -> &str {
        &self.place
    }

    pub(crate) fn options(&self) -> &Options {
        &self.options
    }

    pub(crate) fn identity(&self) -> &Identity {
        &self.identity
    }

    pub(crate) fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    pub(crate) fn wal(&self) -> &Region {
        &self.wal
    }

    pub(crate) fn frames(&self) -> &Region {
        &self.frames
    }

    pub(crate) fn held(&self) -> &Arc<BufferBytes> {
        &self.held
    }

    /// The name of a segment of the own log.
    pub(crate) fn own(&self, segment: SegmentId) -> ReplicaId {
        let log = self.identity.server;
        ReplicaId { log, segment }
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        // A thread that panicked under this lock failed an assertion: the others report it.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Refuses all further writes (backup::V2).
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

    /// Handles the error of a write. A write that failed for lack of space is done again later. Any
    /// other error is final (backup::V2).
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

    /// As [`state`](Self::state), but waits for the lock no longer than `patience`. `None`: another
    /// thread held it for longer.
    pub(crate) fn state_within(&self, patience: Duration) -> Option<MutexGuard<'_, State>> {
        let begun = Instant::now();
        loop {
            match self.state.try_lock() {
                Ok(state) => return Some(state),
                Err(TryLockError::Poisoned(state)) => return Some(state.into_inner()),
                Err(TryLockError::WouldBlock) if begun.elapsed() >= patience => return None,
                Err(TryLockError::WouldBlock) => std::thread::sleep(Duration::from_micros(50)),
            }
        }
    }

    pub(crate) fn damaged(&self, id: ReplicaId, reason: String) -> Error {
        Error::DamagedSegment {
            place: self.place.clone(),
            segment: id.segment,
            reason,
        }
    }

    pub(crate) fn not_fenced(&self, state: &State, log: u64) -> Result<(), Error> {
        if state.fenced.contains(&log) {
            return Err(Error::Fenced { log });
        }
        Ok(())
    }

    /// Writes a header block over the older one.
    pub(crate) fn write_header(&self, header: &Header) -> Result<(), Error> {
        let at = HEADER_AT[(header.sequence % 2) as usize];
        self.wal
            .write_durably(at, &header.encode())
            .map_err(|error| self.failed_write("write the log's header", &error))?;
        self.state().ring.header_clock_ms = header.clock_ms;
        Ok(())
    }

    /// Writes the next header, with the present tail. The caller holds `flushing`.
    pub(crate) fn write_next_header(&self, header: &Header) -> Result<(), Error> {
        self.write_header(header)?;
        self.state().ring.sequence = header.sequence;
        Ok(())
    }

    /// Makes every earlier commit durable.
    ///
    /// # Errors
    /// [`Error::Failed`].
    pub(crate) fn sync(&self) -> Result<(), Error> {
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

    /// Syncs frames. A failure is final (backup::V2): which of the writes since the last good sync
    /// are lost is unknown.
    pub(crate) fn sync_frames(&self) -> io::Result<()> {
        self.state().stats.syncs += 1;
        self.frames.sync().map_err(|error| {
            self.fail("sync the frames", &error);
            io::Error::other(error.to_string())
        })
    }

    /// Bytes of the write-ahead log in which commits may lie now. A commit takes a quarter of
    /// them, and a segment, at most.
    pub(crate) fn ring_bytes(&self) -> u64 {
        self.state().ring.ready
    }

    /// Marks a frame as free, and gives it back. The mark need not be durable: a freed replica that
    /// reappears is not listed anywhere. So nothing is written where the device has returned errors
    /// (frames::N3).
    pub(crate) fn release(
        &self,
        frame: u32,
        id: ReplicaId,
        epoch: u64,
        decay: Option<&Decay>,
    ) -> Result<(), Error> {
        if decay.is_some_and(|decay| decay.unreadable) {
            self.state().frames.put_after(frame, decay);
            return Ok(());
        }
        let (slot, at) = {
            let mut state = self.state();
            self.working(&state)?;
            state.stamp += 1;
            let slot = Slot {
                state: SlotState::Free,
                kind: Kind::Head,
                segment: id.segment,
                log: id.log,
                epoch,
                stamp: state.stamp,
                lsn: state.ring.durable_lsn,
                certificate: Certificate::EMPTY,
                tail_bytes: 0,
                tail_crc: 0,
            };
            (slot, state.frames.next_slot_at(frame))
        };
        let bytes = slot_bytes(&slot, &[]);
        let written = match self.frames.write_at(at, &bytes) {
            Ok(()) => true,
            // The replica will reappear after a restart, and be freed again.
            Err(error) if is_full(&error) || decay.is_some() => false,
            Err(error) => return Err(self.fail("write a frame's slot", &error)),
        };
        let mut state = self.state();
        if written {
            state.frames.flip(frame, slot.stamp);
        }
        state.frames.put_after(frame, decay);
        Ok(())
    }
}
