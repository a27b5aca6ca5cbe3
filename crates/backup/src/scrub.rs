//! The scrubber: verifies in the background the data that a restart would read: replicas in frames,
//! one a step, then the write-ahead log.
//!
//! **Invariants**
//! - The data of a commit are in memory as well until they are in a frame (replica::R3). So a
//!   damaged commit is repaired: everything goes to frames, and the commit is not needed any more.
//!   Nothing is overwritten in place.
//!
//! **Concurrency**: one caller. `flushing` is held while a part of the log is read: the log is not
//! trimmed meanwhile, so nothing is written there.

use std::io;
use std::ops::Bound;
use std::sync::{Mutex, PoisonError};

use duramen_format::wal::{COMMIT_BYTES, Commit};

use crate::buffer::Buffer;
use crate::device::Device;
use crate::disk::BLOCK_BYTES;
use crate::error::Error;
use crate::flush::{Flusher, Turns};
use crate::read::{ReadMode, Reader};
use crate::replica::Replica;
use crate::state::State;
use crate::types::{LogDamage, Place, ReplicaId, ScrubStep};

/// Bytes of the write-ahead log that are read at once: a commit that has to wait for room waits at
/// most for this read.
const PART_BYTES: u64 = 4 << 20;

/// Commits that follow each other on the device.
struct Part {
    /// The part's start in the region.
    at: u64,
    bytes: u64,
    /// The lsn of each commit, and its place in the part.
    commits: Vec<(u64, std::ops::Range<usize>)>,
}

/// Verifies what is on the device; see the module.
#[derive(Clone, Copy)]
pub struct Scrubber<'b> {
    device: &'b Device,
    turns: &'b Turns,
    flusher: Flusher<'b>,
    reader: Reader<'b>,
    /// Memory to read into.
    scratch: &'b Mutex<Buffer>,
}

impl<'b> Scrubber<'b> {
    pub(crate) fn new(
        device: &'b Device,
        turns: &'b Turns,
        reader: Reader<'b>,
        scratch: &'b Mutex<Buffer>,
    ) -> Scrubber<'b> {
        Scrubber {
            device,
            turns,
            flusher: Flusher::new(device, turns),
            reader,
            scratch,
        }
    }

    /// The number of things that scrubbing would verify now: replicas, and the write-ahead log.
    pub fn scrubbable(&self) -> u64 {
        in_frames(&self.device.state()) + 1
    }

    /// Verifies one replica, as far as it is in a frame; after all of them the write-ahead log. For
    /// one background thread, or the simulator.
    ///
    /// # Errors
    /// [`Error::Failed`]: a commit is damaged and the device accepts no writes. All other damage is
    /// in the result.
    pub fn step(&self) -> Result<ScrubStep, Error> {
        let next = next_replica(&mut self.device.state());
        let Some((id, bytes)) = next else {
            return self.scrub_log();
        };
        let mut scratch = {
            let mut scratch = self.scratch.lock().unwrap_or_else(PoisonError::into_inner);
            std::mem::replace(&mut *scratch, Buffer::counted(0, self.device.held()))
        };
        scratch.resize(self.device.geometry().segment_bytes as usize); // it may grow meanwhile
        let segment = id.segment;
        let read = self.reader.read(id, scratch.bytes_mut(), ReadMode::Medium);
        *self.scratch.lock().unwrap_or_else(PoisonError::into_inner) = scratch;
        match read {
            Ok(_) => Ok(ScrubStep::Good { segment, bytes }),
            Err(Error::UnknownSegment { .. }) => Ok(ScrubStep::Good { segment, bytes: 0 }), // freed meanwhile
            Err(_) => Ok(ScrubStep::Damaged { segment }),
        }
    }

    /// Refuses all further writes if a file was deleted while it is open, because no restart would
    /// find them. Reads no data.
    ///
    /// # Errors
    /// [`Error::Failed`]: a file was deleted.
    pub fn check_names(&self) -> Result<(), Error> {
        self.device.working(&self.device.state())?;
        if self.device.wal().is_removed() || self.device.frames().is_removed() {
            let error = io::Error::other(
                "the files were deleted while they are in use, and no start will find their data",
            );
            return Err(self.device.fail("make data durable", &error));
        }
        Ok(())
    }

    /// If the start put back a flipped bit of the write-ahead log: repairs the log as scrubbing
    /// does, and returns the damage. `None`: the start put none back, or the repair was tried
    /// already.
    ///
    /// # Errors
    /// As [`step`](Self::step).
    pub fn repair_mended_log(&self) -> Result<Option<LogDamage>, Error> {
        if !std::mem::take(&mut self.device.state().log_is_mended) {
            return Ok(None);
        }
        match self.scrub_log()? {
            ScrubStep::DamagedLog(damage) => Ok(Some(damage)),
            _ => Ok(None),
        }
    }

    /// Verifies every commit that a restart would read.
    fn scrub_log(&self) -> Result<ScrubStep, Error> {
        let (mut from, mut bytes) = (0, 0);
        loop {
            let flushing = self.turns.flushing();
            let Some(part) = next_part(&self.device.state(), from) else {
                let nothing = bytes == 0 && in_frames(&self.device.state()) == 0;
                return Ok(match nothing {
                    true => ScrubStep::Idle,
                    false => ScrubStep::GoodLog { bytes },
                });
            };
            // If a second read gives the same error, it is no accident of reading.
            let found = self
                .verify_part(&part)
                .and_then(|_| self.verify_part(&part));
            if let Some((lsn, reason)) = found {
                self.device.state().stats.damaged += 1;
                let is_mended = match self.flusher.drain() {
                    Ok(()) => true,
                    Err(Error::Full { .. }) => false,
                    Err(error) => return Err(error),
                };
                drop(flushing);
                let state = self.device.state();
                let is_needed = state.ring.live.iter().any(|live| live.lsn == lsn);
                return Ok(ScrubStep::DamagedLog(LogDamage {
                    lsn,
                    reason,
                    is_mended: is_mended && !is_needed,
                }));
            }
            bytes += part.bytes;
            from = part.commits.last().map_or(u64::MAX, |(lsn, _)| lsn + 1);
        }
    }

    /// The first damaged commit of a part, and its damage.
    fn verify_part(&self, part: &Part) -> Option<(u64, String)> {
        let mut bytes = vec![0; part.bytes as usize];
        let first = part.commits.first()?.0;
        if let Err(error) = self.device.wal().read_medium(part.at, &mut bytes) {
            return Some((first, format!("it can't be read: {error}")));
        }
        let salts = self.device.state().ring.salts.clone();
        part.commits.iter().find_map(|(lsn, range)| {
            let is_whole = bytes.get(range.clone()).is_some_and(|bytes| {
                Commit::decode(bytes).is_ok_and(|commit| {
                    let end = COMMIT_BYTES + commit.body_bytes as usize;
                    let body = bytes.get(COMMIT_BYTES..end);
                    salts.has(&commit)
                        && commit.lsn == *lsn
                        && body.is_some_and(|body| commit.records(body).is_ok())
                })
            });
            (!is_whole).then(|| (*lsn, "its bytes do not match its checksum".to_owned()))
        })
    }
}

/// Durable commits from an lsn on that follow each other on the device, at least one.
fn next_part(state: &State, from: u64) -> Option<Part> {
    let ring = &state.ring;
    let first = ring.live.partition_point(|live| live.lsn < from);
    let begin = ring.live.get(first)?.start;
    let wraps_at = begin - begin % ring.capacity + ring.capacity;
    let mut part = Part {
        at: ring.at(begin),
        bytes: 0,
        commits: Vec::new(),
    };
    for live in ring.live.iter().skip(first) {
        if live.lsn > ring.durable_lsn || live.start >= wraps_at {
            break;
        }
        let end = live.start + live.bytes;
        if !part.commits.is_empty() && end - begin > PART_BYTES {
            break;
        }
        let range = (live.start - begin) as usize..(end - begin) as usize;
        part.commits.push((live.lsn, range));
        part.bytes = end - begin;
    }
    debug_assert!(part.bytes.is_multiple_of(BLOCK_BYTES));
    (!part.commits.is_empty()).then_some(part)
}

/// The replica after the one that was verified last. `None`: that was the last one, and the next
/// call begins with the first. So each round has every replica once, even if some are freed during
/// it.
fn next_replica(state: &mut State) -> Option<(ReplicaId, u32)> {
    let range = (Bound::Excluded(state.scrub_after), Bound::Unbounded);
    let mut replicas = state.replicas.range(range);
    let found = replicas.find(|(_, replica)| scrubs(replica));
    let next = found.map(|(id, replica)| (*id, replica.certificate.length));
    state.scrub_after = next.map_or(ReplicaId::default(), |(id, _)| id);
    match next {
        Some(_) => state.stats.scrubbed += 1,
        None => state.stats.scrub_rounds += 1,
    }
    next
}

fn in_frames(state: &State) -> u64 {
    let replicas = state.replicas.values();
    replicas.filter(|replica| scrubs(replica)).count() as u64
}

/// Whether there is data to verify: in a frame, and not known to be damaged.
fn scrubs(replica: &Replica) -> bool {
    let in_frame = replica.place() == Place::Frame || replica.base > 0 || replica.in_slot;
    replica.committed && in_frame && !replica.is_to_be_replaced()
}
