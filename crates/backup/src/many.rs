//! Replicas of many masters' logs on one backup: fences, flow control, and reads for a recovery.
//!
//! **Invariants**
//! - M1: after [`fence`](crate::Backup::fence) has returned, no replica of that log changes any
//!   more, and no write to it is acknowledged: chunks staged before are committed, later ones are
//!   refused (docs/traps.md, trap 22 and scenario 26).
//! - M2: a replica that was accepted finds a frame: an opening is refused while fewer frames are
//!   free than replicas wait for one. A new copy of a lost replica leaves frames free besides,
//!   unless it gets the frame of the one that it replaces: else a cluster whose servers stop one
//!   after the other fills its disks with copies, and has none for the recoveries of all logs.
//! - M3: the entries from [`read_sorted`](crate::Reader::read_sorted) were verified, as a whole and
//!   entry by entry, before the first of them is given. One flipped bit of an entry that was
//!   certified with it is put back and reported (format::mend): all replicas have the same bit.
//! - M4: closed replicas for whose frames the file system has no space take at most
//!   [`Options::memory_bytes`](crate::Options), or [`SEGMENTS_WAITING`] segments if that is more,
//!   and each replica that was open by then one segment more.
//! - M5: an opening that replaces a replica with a lower epoch is refused, for lack of room or for
//!   damaged bytes, before that replica is dropped: it may be whole, and count again.
//!
//! **Concurrency**: a fence is set under the locks `staging` and `state`, which every change of a
//! replica takes too.

use duramen_base::planted::{Bug, has_bug};
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use duramen_base::ids::{KeyRange, Level, RouteHash, SegmentId, TableId};
use duramen_format::certificate::Certificate;
use duramen_format::entry::{self, Entry};
use duramen_format::hash::KeyHasher;
use duramen_format::mend::{self, Mended};
use duramen_format::segment::HEADER_BYTES;

use crate::commits::{Committer, extended};
use crate::error::Error;
use crate::read::{ReadMode, Reader};
use crate::replica::Data;
use crate::state::State;
use crate::types::{Chunk, ReplicaId, ReplicaInfo};

/// Openings are refused while more of the write-ahead log is in use, in percent: the commits of
/// open replicas have priority.
const WAL_OPEN_PERCENT: u64 = 75;

/// While the file system has no space for frames, openings are refused when the closed replicas
/// that wait in memory take more than [`Options::memory_bytes`](crate::Options) and more than this
/// many segments; openings of whole segments, when they take twice as much.
const SEGMENTS_WAITING: u64 = 4;

/// Segments that fit into the ring of a backup with other masters' logs: those that may wait,
/// twice, within the part of the ring that openings may use, and the open ones.
const SEGMENTS_OF_OTHERS: u64 = 16;

/// Most replicas that [`Reader::take_mended`] gives at once.
const MENDED_MAX: usize = 1000;

/// Usual bytes of an entry, for the first estimate of the number of entries in a segment.
const USUAL_ENTRY_BYTES: usize = 128;

/// The keys of one table that a recovery needs, and its parts with such routes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WantedKeys {
    pub table: u32,
    pub keys: KeyRange,
    /// Entries in segments below this one do not belong to the tablet: its owner had it before, and
    /// gave it away.
    pub since: SegmentId,
}

/// Table, route hash and place of an entry. Parts are located in the table itself: they move with
/// the tablet.
type Located = (u32, RouteHash, u32);

/// Memory of [`Sorted`] for reuse: fresh memory is slow to touch.
#[derive(Default)]
pub struct Spare {
    free: Mutex<Vec<(Vec<u8>, Vec<Located>)>>,
}

/// Most that are kept: two are read at a time.
const SPARE_MAX: usize = 2;

impl Spare {
    fn take(&self) -> (Vec<u8>, Vec<Located>) {
        let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        free.pop().unwrap_or_default()
    }

    fn put(&self, bytes: Vec<u8>, entries: Vec<Located>) {
        let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        if free.len() < SPARE_MAX {
            free.push((bytes, entries));
        }
    }
}

/// A replica's entries, ordered by table and route hash: those of a range follow each other.
pub struct Sorted {
    pub info: ReplicaInfo,
    bytes: Vec<u8>,
    entries: Vec<Located>,
    /// The place where the memory is returned.
    spare: Weak<Spare>,
}

impl Drop for Sorted {
    fn drop(&mut self) {
        if let Some(spare) = self.spare.upgrade() {
            let bytes = std::mem::take(&mut self.bytes);
            spare.put(bytes, std::mem::take(&mut self.entries));
        }
    }
}

impl AsRef<[u8]> for Sorted {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Sorted {
    /// Bytes of its memory.
    pub fn memory_bytes(&self) -> usize {
        self.bytes.len() + self.entries.len() * size_of::<Located>()
    }

    /// Entries of one range, whole ones in the form of the log, one after another.
    pub fn range(&self, wanted: &WantedKeys) -> &[u8] {
        let (first, end) = self.places(wanted);
        self.bytes
            .get(self.offset(first)..self.offset(end))
            .unwrap_or(&[])
    }

    /// The whole entries of [`range`](Self::range) from byte `from` on that fit into `bytes_max`
    /// bytes, but at least one: their place in [`as_ref`](Self::as_ref), and their number. `None`:
    /// no entry begins there.
    pub fn piece(
        &self,
        wanted: &WantedKeys,
        from: usize,
        bytes_max: usize,
    ) -> Option<(Range<usize>, u32)> {
        let (first, end) = self.places(wanted);
        let start = self.offset(first).checked_add(from)?;
        let of = self.entries.get(first..end)?;
        let at = of
            .binary_search_by_key(&start, |(_, _, at)| *at as usize)
            .ok()?;
        let limit = start.saturating_add(bytes_max);
        // The end of an entry is the start of the next one.
        let count = of[at + 1..].partition_point(|(_, _, at)| *at as usize <= limit);
        let is_last_whole = self.offset(end) <= limit;
        let count = (count + usize::from(is_last_whole)).max(1);
        Some((start..self.offset(first + at + count), count as u32))
    }

    /// Indices of the first entry of a range, and of the first one after it.
    fn places(&self, wanted: &WantedKeys) -> (usize, usize) {
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

    /// The start of an entry.
    fn offset(&self, index: usize) -> usize {
        let place = self.entries.get(index);
        place.map_or(self.bytes.len(), |(_, _, at)| *at as usize)
    }
}

/// The sort key of the entry at this place of the segment.
fn rank_of(entry: &Entry<'_>, hasher: &KeyHasher, at: usize) -> u128 {
    rank(TableId(entry.table).whole().0, entry.route(hasher), at)
}

/// The sort key of an entry: table, route hash, place in the segment.
fn rank(table: u32, route: RouteHash, at: usize) -> u128 {
    u128::from(table) << 96 | u128::from(route.0) << 32 | at as u128
}

fn route_of(rank: u128) -> u64 {
    (rank >> 32) as u64
}

/// Most ranks expected in one bucket: insertion sort is fastest for so many.
const BUCKET_RANKS: usize = 8;

/// Sorts ranks. Routes are hashes, so a rank's place in the order follows from its value: sorting
/// takes one pass and a little work within each bucket.
fn sorted(mut ranks: Vec<u128>) -> Vec<u128> {
    let extremes = ranks.iter().fold(None, |found, &rank| {
        let (least, most) = found.unwrap_or((rank, rank));
        Some((rank.min(least), rank.max(most)))
    });
    let Some((least, most)) = extremes else {
        return ranks;
    };
    let wanted = (ranks.len() / BUCKET_RANKS).next_power_of_two();
    let is_one_table = least >> 96 == most >> 96;
    if !is_one_table || wanted < 4 {
        ranks.sort_unstable();
        return ranks;
    }
    let span = route_of(most) - route_of(least);
    // The bucket of a rank does not depend on this many low bits of its difference to the least
    // rank.
    let shift = (64 - span.leading_zeros()).saturating_sub(wanted.trailing_zeros());
    let bucket = |rank: u128| ((route_of(rank) - route_of(least)) >> shift) as usize;
    let mut ends = vec![0u32; bucket(most) + 2];
    for &rank in &ranks {
        ends[bucket(rank) + 1] += 1;
    }
    for n in 1..ends.len() {
        ends[n] += ends[n - 1];
    }
    // Each end begins as its bucket's start, and moves as the bucket fills.
    let mut ordered = vec![0; ranks.len()];
    for &rank in &ranks {
        let end = &mut ends[bucket(rank)];
        ordered[*end as usize] = rank;
        *end += 1;
    }
    let mut start = 0;
    for end in ends {
        ordered[start..end as usize].sort_unstable();
        start = end as usize;
    }
    ordered
}

impl Committer<'_> {
    /// See [`Backup::fence`](crate::Backup::fence) (M1).
    pub(crate) fn fence(&self, log: u64) -> Result<(), Error> {
        {
            let _staging = self.batches().staging();
            self.device().state().fenced.insert(log);
        }
        // A frame that is being written whole for this log sees the fence before it is added.
        drop(self.turns().flushing());
        self.commit(Level::Synced).map(drop)
    }

    /// Frees a replica of a log that is not fenced.
    pub(crate) fn free_of(&self, id: ReplicaId) -> Result<(), Error> {
        let staging = self.batches().staging();
        self.device().not_fenced(&self.device().state(), id.log)?;
        drop(staging);
        self.forget(id)
    }

    /// See [`Backup::free_log`](crate::Backup::free_log).
    pub(crate) fn free_log(&self, log: u64) -> Result<u32, Error> {
        let mut freed = 0;
        let replicas = self.device().state().replicas_of(log);
        for replica in replicas {
            match self.forget(replica.id()) {
                Ok(()) => freed += 1,
                Err(Error::UnknownSegment { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        if has_bug(Bug::FenceForgotten) {
            self.device().state().fenced.remove(&log);
        }
        Ok(freed)
    }

    /// Drops the replica that an opening replaces, for which there is room (M5).
    pub(crate) fn supersede(
        &self,
        id: ReplicaId,
        chunk: &Chunk<'_>,
        trusted: bool,
    ) -> Result<(), Error> {
        if extended(Certificate::EMPTY, chunk.bytes, chunk, trusted).is_none() {
            return Err(Error::Certificate {
                segment: id.segment,
                length: chunk.bytes.len() as u32,
            });
        }
        self.forget(id)?;
        self.device().not_fenced(&self.device().state(), id.log)
    }

    /// Whether too many segments wait to be written as frames (M4).
    fn is_crowded(&self, state: &State, whole: bool) -> bool {
        let closed = state.replicas.values().filter(|replica| replica.closed);
        let waiting = closed.filter(|replica| !matches!(replica.data, Data::InFrame));
        let bytes: u64 = waiting
            .map(|r| u64::from(r.received.saturating_sub(r.base)))
            .sum();
        let segments = SEGMENTS_WAITING * u64::from(self.device().geometry().segment_bytes);
        let most = self.device().options().memory_bytes.max(segments);
        bytes > most.saturating_mul(1 + u64::from(whole))
    }

    /// Frames that an opening leaves free; none if the whole segment arrives in one piece: most
    /// such segments come from a recovery or a cleaner, and free more than they take. A copy takes
    /// no further frame if the replica that it replaces gives one back (`is_freed`).
    fn frames_kept(&self, state: &State, chunk: &Chunk<'_>, is_freed: bool) -> u32 {
        let takes_one = chunk.is_refill() && !is_freed;
        match chunk.is_whole() {
            true if takes_one && !has_bug(Bug::RefillsTakeAll) => state.frames.refills_leave,
            true => 0,
            false => 2,
        }
    }

    /// Space for what other masters' logs may put into the ring while the disk has no frames (M4),
    /// taken before the first of them is opened.
    pub(crate) fn reserve_for_others(&self, state: &mut State, log: u64) -> Result<(), Error> {
        let ring = &mut state.ring;
        let wanted = SEGMENTS_OF_OTHERS * u64::from(self.device().geometry().segment_bytes);
        let missing = wanted.min(ring.capacity).saturating_sub(ring.reserved);
        if log == self.device().identity().server || missing == 0 || ring.is_refused {
            return Ok(());
        }
        let reserved = ring.reserve(self.device().wal(), missing);
        reserved
            .map_err(|error| Error::io(self.device().place(), "extend the write-ahead log", error))
    }

    /// Whether an opening finds room (M2). The own log of a single server is never refused, because
    /// there is no other backup for it. The frame of the replica that the opening replaces counts
    /// as free (M5).
    pub(crate) fn has_room(
        &self,
        state: &State,
        id: ReplicaId,
        chunk: &Chunk<'_>,
    ) -> Result<(), Error> {
        if id.log == self.device().identity().server {
            return Ok(());
        }
        let others = state.replicas.iter().filter(|(other, _)| **other != id);
        let waiting = others.filter(|(_, r)| r.frame.is_none()).count() as u32;
        let older = state.replicas.get(&id);
        let is_freed = older.is_some_and(|r| r.frame.is_some() && !r.flushing && r.decay.is_none());
        let kept = self.frames_kept(state, chunk, is_freed);
        let free = state.frames.free() + u32::from(is_freed);
        let what = if free < waiting.saturating_add(1 + kept) {
            "frames"
        } else if state.ring.used() > state.ring.size() / 100 * WAL_OPEN_PERCENT {
            "room in its write-ahead log"
        } else if state.frames.lacks_space() && self.is_crowded(state, chunk.is_whole()) {
            "space on its disk, and memory for what waits for it"
        } else {
            return Ok(());
        };
        Err(Error::Busy {
            place: self.device().place().to_owned(),
            what,
        })
    }
}

impl Reader<'_> {
    /// Reads a replica, verifies it, and orders its entries for recovery masters. `scratch` grows
    /// to the size of a segment; `spare` provides the result's memory, and gets it back.
    ///
    /// # Errors
    /// [`Error::UnknownSegment`]; [`Error::DamagedSegment`] (M3): use another replica.
    pub fn read_sorted(
        &self,
        id: ReplicaId,
        hasher: &KeyHasher,
        scratch: &mut Vec<u8>,
        spare: &Arc<Spare>,
    ) -> Result<Sorted, Error> {
        scratch.resize(self.device().geometry().segment_bytes as usize, 0);
        let info = self.read(id, scratch, ReadMode::Usual)?;
        let bytes = &mut scratch[..info.length as usize];
        let mut found = Vec::with_capacity(bytes.len() / USUAL_ENTRY_BYTES);
        self.walk(id, bytes, &mut |at, entry| {
            found.push(rank_of(entry, hasher, at));
        })?;
        let found = sorted(found);
        let (mut into, mut entries) = spare.take();
        into.clear();
        into.reserve(bytes.len());
        entries.clear();
        entries.reserve(found.len());
        for rank in found {
            let (table, route, at) = ((rank >> 96) as u32, route_of(rank), rank as u32);
            let rest = &bytes[at as usize..];
            let length = entry::parse_again(rest)
                .expect("it was just walked over")
                .padded_bytes;
            entries.push((table, RouteHash(route), into.len() as u32));
            into.extend_from_slice(&rest[..length]);
        }
        Ok(Sorted {
            info,
            bytes: into,
            entries,
            spare: Arc::downgrade(spare),
        })
    }

    /// Visits every entry of a data segment (M3).
    fn walk(
        &self,
        id: ReplicaId,
        bytes: &mut [u8],
        visit: &mut dyn FnMut(usize, &Entry<'_>),
    ) -> Result<(), Error> {
        let damaged = |reason: String| Error::DamagedSegment {
            place: self.device().place().to_owned(),
            segment: id.segment,
            reason,
        };
        if bytes.is_empty() {
            return Ok(()); // the segment was opened, and nothing was written yet
        }
        let mut mended = Vec::new();
        let header =
            mend::header(bytes, &mut mended).map_err(|error| damaged(error.to_string()))?;
        if header.segment != id.segment || header.log != id.log {
            return Err(damaged("it holds another segment's header".to_owned()));
        }
        let mut at = HEADER_BYTES;
        while at < bytes.len() {
            match entry::parse(&bytes[at..]) {
                Ok(entry) => {
                    visit(at, &entry);
                    at += entry.padded_bytes;
                }
                Err(error) => {
                    // An entry that was mended is parsed again.
                    let may_mend = !has_bug(Bug::OneBitStopsRecovery);
                    let flip = may_mend.then(|| mend::entry_at(bytes, at, usize::MAX));
                    let wrong = || damaged(format!("byte {at}: {error}"));
                    mended.push(flip.flatten().ok_or_else(wrong)?);
                }
            }
        }
        if !mended.is_empty() {
            self.note_mended(id, &mended);
        }
        Ok(())
    }

    fn note_mended(&self, id: ReplicaId, mended: &[Mended]) {
        let mut state = self.device().state();
        state.stats.flipped_bits += mended.len() as u64;
        if state.mended.len() < MENDED_MAX {
            let what = mended.iter().map(ToString::to_string).collect::<Vec<_>>();
            state.mended.push((id, what.join("; ")));
        }
    }

    /// Replicas with flipped bits that were certified with them and were put back for a reader
    /// since the last call. On the device the bits stay as they are.
    pub fn take_mended(&self) -> Vec<(ReplicaId, String)> {
        std::mem::take(&mut self.device().state().mended)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use duramen_base::ids::Home;
    use duramen_format::entry::NewObject;

    /// A recovery asks for a tablet once, and gets its parts with all else.
    #[test]
    fn parts_have_the_rank_of_their_home_in_the_table_itself() {
        let key = Home::from_bytes([0x8d, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11]).key(77);
        let hasher = KeyHasher::new(1);
        for table in [3, 300] {
            let mut object = NewObject {
                table: TableId(table).parts().0,
                version: 2,
                expires_at_ms: None,
                key: key.as_bytes(),
                value: &[0, b'v'],
                victim: SegmentId::NONE,
                is_typed: false,
            };
            let mut bytes = vec![0; object.padded_bytes()];
            object.write_to(&mut bytes);
            let part = entry::parse(&bytes).expect("just written");
            let route = RouteHash(0x8d02_0304_0506_0708);
            assert_eq!(rank_of(&part, &hasher, 64), rank(table, route, 64));
            object.table = table;
            object.write_to(&mut bytes);
            let other = entry::parse(&bytes).expect("just written");
            let route = hasher.route(key.as_bytes());
            assert_eq!(rank_of(&other, &hasher, 64), rank(table, route, 64));
        }
    }

    /// The same order as by a comparison sort: routes of the whole ring, of a part of it, of one
    /// key, near each other, of two tables.
    #[test]
    fn ranks_come_out_in_order() {
        let hash = |n: u64| (n + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let spread: [fn(u64) -> u64; 5] = [
            |hash| hash,
            |hash| hash >> 3 | 5 << 60,
            |_| u64::MAX,
            |hash| hash & 0x3f,
            |hash| if hash & 1 == 0 { 0 } else { hash },
        ];
        for count in [0, 1, 2, 31, 32, 33, 1000, 70_000] {
            for (n, spread) in spread.iter().enumerate() {
                for tables in [1, 2] {
                    let ranks: Vec<u128> = (0..count)
                        .map(|at| {
                            let route = RouteHash(spread(hash(at)));
                            rank(7 + (at % tables) as u32, route, at as usize)
                        })
                        .collect();
                    let mut expected = ranks.clone();
                    expected.sort_unstable();
                    assert!(sorted(ranks) == expected, "{count} of kind {n}, {tables}");
                }
            }
        }
    }
}
