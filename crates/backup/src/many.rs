//! Replicas of many masters' logs on one backup: fences, flow control, and reading for recovery.
//!
//! **Invariants**
//! - M1: after [`fence`](Backup::fence) has returned, no replica of that log changes any more, and nothing of it is acknowledged:
//!   what was staged before is committed, what comes later is refused (90-traps.md §D 2, scenario 26).
//! - M2: a replica that was accepted finds a frame: an opening is refused while fewer frames are free than replicas wait for one.
//! - M3: what [`read_sorted`](Backup::read_sorted) gives was verified, as a whole and entry by entry, before the first of it is given.
//!
//! **Concurrency**: a fence is raised under the locks `staging` and `state`, which every change of a replica takes too.

use duramen_base::ids::{KeyRange, Level, RouteHash, SegmentId};
use duramen_format::entry::{self, Entry};
use duramen_format::hash::KeyHasher;
use duramen_format::segment::{HEADER_BYTES, Header};

use crate::backup::{Backup, State};
use crate::error::Error;
use crate::types::{ReplicaId, ReplicaInfo};

/// Frames that openings leave alone: for whole segments that come in one piece, and for first parts of large commits.
const FRAMES_KEPT: u32 = 2;
/// Openings are refused while more of the write-ahead log is in use, in percent: the commits of what is open come first.
const WAL_OPEN_PERCENT: u64 = 75;

/// Keys of one table that a recovery wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wanted {
    pub table: u32,
    pub keys: KeyRange,
    /// Entries in segments below this one are not the tablet's own: its owner had it before, and gave it away.
    pub since: SegmentId,
}

/// A replica's entries, ordered by table and route hash: those of a range lie side by side.
pub struct Sorted {
    pub info: ReplicaInfo,
    bytes: Vec<u8>,
    /// Table, route hash and place of each entry.
    entries: Vec<(u32, RouteHash, u32)>,
}

impl Sorted {
    /// Bytes it takes in memory.
    pub fn memory_bytes(&self) -> usize {
        self.bytes.len() + self.entries.len() * size_of::<(u32, RouteHash, u32)>()
    }

    /// Entries of one range, whole ones as they lie in the log, one after another.
    pub fn range(&self, wanted: &Wanted) -> &[u8] {
        let (first, end) = self.places(wanted);
        self.bytes
            .get(self.offset(first)..self.offset(end))
            .unwrap_or(&[])
    }

    /// Of [`range`](Self::range) the entries from byte `from` on, as many whole ones as `bytes_max` bytes hold, but one at least, and
    /// their number. `None`: no entry begins there.
    pub fn piece(&self, wanted: &Wanted, from: usize, bytes_max: usize) -> Option<(&[u8], u32)> {
        let (first, end) = self.places(wanted);
        let start = self.offset(first).checked_add(from)?;
        let of = self.entries.get(first..end)?;
        let at = of
            .binary_search_by_key(&start, |(_, _, at)| *at as usize)
            .ok()?;
        let limit = start.saturating_add(bytes_max);
        // The end of an entry is where the next one begins.
        let count = of[at + 1..].partition_point(|(_, _, at)| *at as usize <= limit);
        let is_last_whole = self.offset(end) <= limit;
        let count = (count + usize::from(is_last_whole)).max(1);
        let bytes = self.bytes.get(start..self.offset(first + at + count))?;
        Some((bytes, count as u32))
    }

    /// Indices of the first entry of a range, and of the one after its last.
    fn places(&self, wanted: &Wanted) -> (usize, usize) {
        if self.info.segment < wanted.since {
            return (0, 0);
        }
        let (first, last) = (wanted.keys.first, wanted.keys.last);
        let (table, entries) = (wanted.table, &self.entries);
        (
            entries.partition_point(|(of, route, _)| (*of, *route) < (table, first)),
            entries.partition_point(|(of, route, _)| (*of, *route) <= (table, last)),
        )
    }

    /// Where an entry begins.
    fn offset(&self, index: usize) -> usize {
        let place = self.entries.get(index);
        place.map_or(self.bytes.len(), |(_, _, at)| *at as usize)
    }
}

impl Backup {
    /// Refuses writes, openings, closings and freeings of this log from now on, as long as the process lives. Everything
    /// acknowledged before shows in [`replicas_of`](Self::replicas_of), and nothing is acknowledged later (M1).
    ///
    /// # Errors
    /// [`Error::Full`], [`Error::Failed`]: the fence is up, but what was staged before is not settled: ask again.
    pub fn fence(&self, log: u64) -> Result<(), Error> {
        {
            let _staging = self.lock_staging();
            self.state().fenced.insert(log);
        }
        // A frame that is being written whole for this log sees the fence before it is taken in.
        drop(
            self.flushing
                .lock()
                .unwrap_or_else(std::sync::PoisonError::into_inner),
        );
        self.commit(Level::Synced).map(drop)
    }

    /// Whether this log was fenced.
    pub fn is_fenced(&self, log: u64) -> bool {
        self.state().fenced.contains(&log)
    }

    /// Logs of which something is here, in order.
    pub fn logs(&self) -> Vec<u64> {
        let mut logs: Vec<u64> = self.state().replicas.keys().map(|id| id.log).collect();
        logs.dedup(); // they are ordered
        logs
    }

    /// Replicas of one log, by segment id.
    pub fn replicas_of(&self, log: u64) -> Vec<ReplicaInfo> {
        let first = ReplicaId {
            log,
            segment: SegmentId::NONE,
        };
        let state = self.state();
        state
            .replicas
            .range(first..)
            .take_while(|(id, _)| id.log == log)
            .filter(|(_, replica)| replica.committed)
            .map(|(id, replica)| replica.info(*id))
            .collect()
    }

    /// As [`free`](Self::free), for a master's log.
    ///
    /// # Errors
    /// As there; [`Error::Fenced`].
    pub fn free_of(&self, id: ReplicaId) -> Result<(), Error> {
        let staging = self.lock_staging();
        self.not_fenced(&self.state(), id.log)?;
        drop(staging);
        self.forget(id)
    }

    /// Forgets all replicas of a log that has been recovered, or whose server was removed. Returns how many there were. A fence
    /// stays: that server may still write, not knowing that it is dead.
    ///
    /// # Errors
    /// [`Error::Failed`].
    pub fn free_log(&self, log: u64) -> Result<u32, Error> {
        let mut freed = 0;
        for replica in self.replicas_of(log) {
            match self.forget(replica.id()) {
                Ok(()) => freed += 1,
                Err(Error::UnknownSegment { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        #[cfg(feature = "planted")]
        if self.planted(crate::planted::Bug::FenceForgotten) {
            self.state().fenced.remove(&log);
        }
        Ok(freed)
    }

    /// Reads a replica, verifies it and each of its entries, and orders them for recovery masters. `scratch` is grown to the
    /// size of a segment.
    ///
    /// # Errors
    /// [`Error::UnknownSegment`]; [`Error::DamagedSegment`] (M3): another replica has to do.
    pub fn read_sorted(
        &self,
        id: ReplicaId,
        hasher: &KeyHasher,
        scratch: &mut Vec<u8>,
    ) -> Result<Sorted, Error> {
        scratch.resize(self.geometry.segment_bytes as usize, 0);
        let info = self.read_of(id, scratch)?;
        let bytes = &scratch[..info.length as usize];
        let mut found = Vec::new();
        self.walk(id, bytes, &mut |at, entry| {
            found.push((entry.table, entry.route(hasher), at, entry.padded_bytes));
        })?;
        found.sort_unstable_by_key(|(table, route, at, _)| (*table, *route, *at));
        let mut sorted = Sorted {
            info,
            bytes: Vec::with_capacity(bytes.len()),
            entries: Vec::with_capacity(found.len()),
        };
        for (table, route, at, length) in found {
            sorted
                .entries
                .push((table, route, sorted.bytes.len() as u32));
            sorted.bytes.extend_from_slice(&bytes[at..at + length]);
        }
        Ok(sorted)
    }

    /// Reads a replica, verifies it, and appends the entries of each range to the bucket of the same number.
    ///
    /// # Errors
    /// As [`read_sorted`](Self::read_sorted).
    pub fn read_filtered(
        &self,
        id: ReplicaId,
        ranges: &[Wanted],
        hasher: &KeyHasher,
        buckets: &mut [Vec<u8>],
    ) -> Result<ReplicaInfo, Error> {
        let sorted = self.read_sorted(id, hasher, &mut Vec::new())?;
        for (wanted, bucket) in ranges.iter().zip(buckets) {
            bucket.extend_from_slice(sorted.range(wanted));
        }
        Ok(sorted.info)
    }

    /// Every entry of a data segment.
    fn walk(
        &self,
        id: ReplicaId,
        bytes: &[u8],
        visit: &mut dyn FnMut(usize, &Entry<'_>),
    ) -> Result<(), Error> {
        let damaged = |reason: String| Error::DamagedSegment {
            place: self.place.clone(),
            segment: id.segment,
            reason,
        };
        if bytes.is_empty() {
            return Ok(()); // opened, and nothing written yet
        }
        let header = Header::decode(bytes).map_err(|error| damaged(error.to_string()))?;
        if header.segment != id.segment || header.log != id.log {
            return Err(damaged("it holds another segment's header".to_owned()));
        }
        let mut at = HEADER_BYTES;
        while at < bytes.len() {
            let rest = &bytes[at..];
            let entry =
                entry::parse(rest).map_err(|error| damaged(format!("byte {at}: {error}")))?;
            visit(at, &entry);
            at += entry.padded_bytes;
        }
        Ok(())
    }

    pub(crate) fn not_fenced(&self, state: &State, log: u64) -> Result<(), Error> {
        if state.fenced.contains(&log) {
            return Err(Error::Fenced { log });
        }
        Ok(())
    }

    /// Whether an opening begins a replica anew that is here at a lower epoch.
    pub(crate) fn is_superseded(&self, id: ReplicaId, epoch: u64) -> Result<bool, Error> {
        let state = self.state();
        self.not_fenced(&state, id.log)?;
        Ok(state
            .replicas
            .get(&id)
            .is_some_and(|replica| replica.epoch < epoch))
    }

    /// M2. The own log of a single server is never refused: nobody else would have it.
    pub(crate) fn has_room(&self, state: &State, log: u64) -> Result<(), Error> {
        if log == self.identity.server {
            return Ok(());
        }
        let waiting = state
            .replicas
            .values()
            .filter(|r| r.frame.is_none())
            .count() as u32;
        let what = if state.frames.free() < waiting.saturating_add(1 + FRAMES_KEPT) {
            "frames"
        } else if state.ring.used() > state.ring.capacity / 100 * WAL_OPEN_PERCENT {
            "room in its write-ahead log"
        } else {
            return Ok(());
        };
        Err(Error::Busy {
            place: self.place.clone(),
            what,
        })
    }
}
