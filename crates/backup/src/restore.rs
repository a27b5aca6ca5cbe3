//! Copies a stopped store, file by file, onto another disk: for `duramen restore`.
//!
//! The last step turns the copy into a store, as for a snapshot (create::K2). If the copy was
//! cut short before, servers refuse it, and the next restore overwrites it. Nothing else is ever
//! overwritten. The target's key decides whether the copy is encrypted: it always has a store key
//! of its own (encryption::E2).

use std::any::Any;
use std::sync::Arc;

use duramen_base::units::MIB;
use duramen_format::frame;
use duramen_format::superblock::Superblock;

use crate::create::{self, Accepted, Probe, Purpose};
use crate::disk::{BLOCK_BYTES, Disk, OpenHow};
use crate::encryption;
use crate::error::Error;
use crate::open::lock;
use crate::region::{self, Region, SUPERBLOCK_BYTES};
use crate::types::Expected;

/// Bytes read and written at once: large enough for disks, small enough for a steady progress
/// display.
const STEP_BYTES: u64 = 4 * MIB;

/// Parts of these bytes that hold zeros alone are not written.
const PART_BYTES: usize = 256 << 10;

/// A running restore.
pub struct Restore {
    from: Parts,
    to: Arc<dyn Disk>,
    accepted: Accepted,
    resumed: bool,
    _lock: Box<dyn Any + Send + Sync>,
}

/// The parts of a store that are copied unchanged.
struct Parts {
    place: String,
    wal: Region,
    wal_bytes: u64,
    frames: Region,
    frames_bytes: u64,
}

impl Parts {
    fn of(disk: &dyn Disk, accepted: &Accepted) -> Result<Parts, Error> {
        let place = disk.label();
        let superblock = &accepted.superblock;
        let wal_bytes = superblock.wal_bytes;
        let held = Arc::default();
        let wal = accepted.wal(disk, OpenHow::Read, &held)?;
        let frames = accepted.frames(disk, OpenHow::Read, &held)?;
        let measure = |error| Error::io(&place, "measure the files", error);
        let here = wal.bytes().map_err(measure)?;
        if here < wal_bytes {
            let reason = format!("it has {here} bytes of {wal_bytes}");
            return Err(Error::damaged_file(&place, region::WAL, reason));
        }
        // A device may be longer than its last frame.
        let whole = frame::data_start(superblock.frames)
            + u64::from(superblock.frames) * u64::from(superblock.segment_bytes);
        let frames_bytes = frames.bytes().map_err(measure)?.min(whole);
        crate::open::check_slots(&place, frames_bytes, superblock.frames)?;
        Ok(Parts {
            place,
            wal,
            wal_bytes,
            frames,
            frames_bytes,
        })
    }

    fn bytes(&self) -> u64 {
        self.wal_bytes + self.frames_bytes
    }
}

impl Restore {
    /// Checks both disks, and marks `to` as the beginning of a copy. No server may use `from`
    /// meanwhile.
    ///
    /// # Errors
    /// [`Error::Absent`], [`Error::NotDuramen`], [`Error::Unfinished`], damaged files: of `from`.
    /// [`Error::Exists`], [`Error::NotDuramen`], [`Error::Locked`], [`Error::TooSmall`],
    /// [`Error::Permission`]: of `to`, which is unchanged. Those of both disks' keys.
    pub fn begin(from: &dyn Disk, to: Arc<dyn Disk>) -> Result<Restore, Error> {
        let place = from.label();
        let Probe::Store(found) = create::probe(from)? else {
            return Err(Error::Absent { place });
        };
        let found = create::accept(from, *found, &Expected::default(), Purpose::Store)?;
        let parts = Parts::of(from, &found)?;
        is_free(&*to)?;
        let held = lock(&*to, &to.label())?;
        let resumed = is_free(&*to)?;
        let needed = SUPERBLOCK_BYTES + parts.bytes();
        let place = to.label();
        let available = to
            .free_bytes()
            .map_err(|error| Error::io(&place, "measure free space", error))?;
        if available < needed && !resumed {
            return Err(Error::TooSmall {
                place,
                needed,
                available,
            });
        }
        let superblock = Superblock {
            unfinished: true,
            generation: create::RESTORED_GENERATION - 1,
            ..found.superblock
        };
        let superblock = encryption::begin(&*to, superblock)?;
        create::write_first(&*to, &place, &superblock)?; // create::K2: marked as unfinished
        let expected = Expected::default();
        let accepted = create::accept(&*to, superblock, &expected, Purpose::Copy)?;
        Ok(Restore {
            from: parts,
            to,
            accepted,
            resumed,
            _lock: held,
        })
    }

    /// Bytes that [`copy`](Self::copy) copies.
    pub fn bytes(&self) -> u64 {
        self.from.bytes()
    }

    /// Whether there was the beginning of a copy, which is overwritten.
    pub fn is_resumed(&self) -> bool {
        self.resumed
    }

    /// Copies everything, durably. `progress` gets the bytes so far.
    ///
    /// # Errors
    /// [`Error::Io`] and [`Error::Full`]: the copy can be started again.
    pub fn copy(&self, progress: &mut dyn FnMut(u64)) -> Result<(), Error> {
        let place = self.to.label();
        let held = Arc::default();
        let wal = self.accepted.wal(&*self.to, OpenHow::Create, &held)?;
        let frames = self.accepted.frames(&*self.to, OpenHow::Create, &held)?;
        let parts = [
            (&self.from.wal, &wal, self.from.wal_bytes),
            (&self.from.frames, &frames, self.from.frames_bytes),
        ];
        let mut done = 0;
        for (from, to, bytes) in parts {
            // The length alone: what holds nothing takes no space in the copy either.
            let last = bytes.next_multiple_of(BLOCK_BYTES) - BLOCK_BYTES;
            to.allocate(last, BLOCK_BYTES, false)
                .map_err(|error| Error::io(&place, "make room", error))?;
            for at in (0..bytes).step_by(STEP_BYTES as usize) {
                let step = STEP_BYTES.min(bytes - at);
                self.copy_step(from, to, at, step)?;
                done += step;
                progress(done);
            }
            to.sync()
                .map_err(|error| Error::io(&place, "sync the files", error))?;
        }
        let synced = self.to.sync_dir();
        synced.map_err(|error| Error::io(&place, "sync the folder", error))
    }

    fn copy_step(&self, from: &Region, to: &Region, at: u64, bytes: u64) -> Result<(), Error> {
        let mut buffer = vec![0; bytes.next_multiple_of(BLOCK_BYTES) as usize];
        let read = from.read_at(at, &mut buffer[..bytes as usize]);
        read.map_err(|error| Error::io(&self.from.place, "read the files", error))?;
        for (number, part) in buffer.chunks(PART_BYTES).enumerate() {
            // A resumed copy may have other bytes here, and a device anything.
            let is_blank = !self.resumed && !self.to.is_raw() && part.iter().all(|byte| *byte == 0);
            if !is_blank {
                let written = to.write_at(at + (number * PART_BYTES) as u64, part);
                written.map_err(|error| Error::io(&self.to.label(), "write the files", error))?;
            }
        }
        Ok(())
    }

    /// The copy, for a check by [`Inspector::of_copy`](crate::inspect::Inspector::of_copy) before
    /// it is finished.
    pub fn disk(&self) -> &Arc<dyn Disk> {
        &self.to
    }

    /// Turns the copy into a store.
    ///
    /// # Errors
    /// [`Error::Io`]: it can be opened, or is refused as unfinished.
    pub fn finish(self) -> Result<(), Error> {
        create::finish(&*self.to)
    }
}

/// Returns true if the disk has the beginning of a copy, and false if it is empty.
fn is_free(disk: &dyn Disk) -> Result<bool, Error> {
    match create::probe(disk) {
        Ok(Probe::Empty) => Ok(false),
        Ok(Probe::Store(found)) if found.unfinished => Ok(true),
        Err(Error::Unfinished { .. }) => Ok(true),
        Ok(Probe::Store(_)) => Err(Error::Exists {
            place: disk.label(),
        }),
        Err(error) => Err(error),
    }
}
