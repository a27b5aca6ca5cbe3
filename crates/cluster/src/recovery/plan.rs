//! Cuts a dead server's tablets and packs them into partitions, one per recovery master at a time.
//!
//! **Invariants**
//! - N1: the pieces of a tablet are the tablet, without gap or overlap.
//! - N2: a partition stays within the limits, as far as they are known, unless it is for the dead
//!   server's own machine, and is all that is left. A single piece may be above the limits only if
//!   it can't be cut. A slot is not cut before an attempt has shown that no master has room for it.
//! - N3: partitions are so short that each master can get one, and that all of them fit if there is
//!   room ([`partition_bytes`]).
//!
//! Paper: [Ousterhout15 §7.4]; differs: cuts are between Redis Cluster slots where that is
//! possible, so that a slot has one owner (docs/traps.md, trap 24); without statistics the log's
//! length is spread over the tablets by their share of the hash space.

use duramen_base::ids::{KeyRange, RouteHash};
use duramen_base::random::Random;
use duramen_wire::native::message::{RangeLoad, RecoverTablet};

/// Open partitions tried for a piece.
const OPEN_PARTITIONS: usize = 5;
/// Assumed bytes of a record, without statistics.
const BYTES_PER_RECORD: u64 = 250;

/// Limits of a partition.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    pub bytes: u64,
    pub records: u64,
    /// A slot may be cut, as no master had room for a whole one: commands over several of its keys
    /// are refused then.
    pub within_slots: bool,
}

/// Length of the partitions of a log of `total` bytes: at most `most`, and at most an equal share
/// for each master, but at least `least`, below which another master is not worth it. If they would
/// not fit (N3) they are shorter; `rooms` has one number for each master, unlimited if unknown. If
/// not all of them fit, the length is chosen as if there were room. Returns also
/// whether all fit.
pub(crate) fn partition_bytes(total: u64, rooms: &[u64], most: u64, least: u64) -> (u64, bool) {
    let (most, least) = (most.max(1), least.clamp(1, most.max(1)));
    let each = total.div_ceil(rooms.len().max(1) as u64);
    let even = each.clamp(least, most);
    let fit = |bytes: u64| {
        let places = rooms.iter().map(|room| room / bytes);
        places.fold(0, u64::saturating_add) >= total.div_ceil(bytes)
    };
    let mut shorter = std::iter::successors(Some(even), |bytes| Some(bytes / 2));
    let mut shorter = shorter.by_ref().take_while(|bytes| *bytes >= least);
    match shorter.find(|bytes| fit(*bytes)) {
        Some(bytes) => (bytes, true),
        None => (even, false),
    }
}

/// A part of a tablet, with the estimated part of the log that belongs to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Piece {
    pub tablet: RecoverTablet,
    pub bytes: u64,
    pub records: u64,
}

/// Cuts tablets into pieces that fit the limits. `log_bytes`: the bytes that all of them take;
/// `loads`: the server's report about its ranges.
pub(crate) fn cut(
    tablets: &[RecoverTablet],
    loads: &[RangeLoad],
    log_bytes: u64,
    limits: Limits,
) -> Vec<Piece> {
    estimate(tablets, loads, log_bytes)
        .into_iter()
        .flat_map(|whole| {
            let by_bytes = whole.bytes.div_ceil(limits.bytes.max(1));
            let by_records = whole.records.div_ceil(limits.records.max(1));
            let count = match limits.within_slots {
                true => by_bytes.max(by_records).max(1),
                false => by_bytes.max(by_records).clamp(1, slots(whole.tablet.range)),
            };
            let ranges = slices(whole.tablet.range, count);
            let parts = ranges.len() as u64;
            ranges.into_iter().map(move |range| Piece {
                tablet: RecoverTablet {
                    range,
                    ..whole.tablet
                },
                bytes: whole.bytes / parts,
                records: whole.records / parts,
            })
        })
        .collect()
}

/// The bytes of the tablets, as far as they are in the report.
pub(crate) fn counted(tablets: &[RecoverTablet], loads: &[RangeLoad]) -> u64 {
    let pieces = estimate(tablets, loads, 0);
    let bytes = pieces.iter().map(|piece| piece.bytes);
    bytes.fold(0, u64::saturating_add)
}

/// The tablets as they are, with the estimated bytes and records of each.
pub(crate) fn uncut(tablets: &[RecoverTablet], loads: &[RangeLoad], bytes: u64) -> Vec<Piece> {
    estimate(tablets, loads, bytes)
}

fn estimate(tablets: &[RecoverTablet], loads: &[RangeLoad], log_bytes: u64) -> Vec<Piece> {
    // Ranges of one report do not overlap: so each tablet checks only those near it.
    let mut loads: Vec<&RangeLoad> = loads.iter().collect();
    loads.sort_unstable_by_key(|load| (load.table, load.range));
    let mut pieces: Vec<Piece> = tablets
        .iter()
        .map(|tablet| {
            let mut piece = Piece {
                tablet: *tablet,
                bytes: 0,
                records: 0,
            };
            let is_before = |load: &&RangeLoad| {
                (load.table, load.range.last) < (tablet.table, tablet.range.first)
            };
            let from = loads.partition_point(is_before);
            let is_near = |load: &&&RangeLoad| {
                (load.table, load.range.first) <= (tablet.table, tablet.range.last)
            };
            for load in loads[from..].iter().take_while(is_near) {
                if let Some(common) = load.range.intersection(&tablet.range) {
                    piece.bytes += share(load.bytes, width(common), width(load.range));
                    piece.records += share(load.records, width(common), width(load.range));
                }
            }
            piece
        })
        .collect();
    // Bytes that were not counted are spread over all tablets.
    let counted: u64 = pieces.iter().map(|piece| piece.bytes).sum();
    let rest = log_bytes.saturating_sub(counted);
    let all: u128 = tablets.iter().map(|tablet| width(tablet.range)).sum();
    for piece in &mut pieces {
        let more = share(rest, width(piece.tablet.range), all);
        piece.bytes += more;
        piece.records += more / BYTES_PER_RECORD;
    }
    pieces
}

fn width(range: KeyRange) -> u128 {
    u128::from(range.last.0) - u128::from(range.first.0) + 1
}

fn share(of: u64, part: u128, all: u128) -> u64 {
    // Widths are below 2^65: shifted, the product fits.
    (u128::from(of) * (part >> 2) / (all >> 2).max(1)) as u64
}

/// Number of slots that the range covers, at least in part.
fn slots(range: KeyRange) -> u64 {
    u64::from(range.last.slot()) - u64::from(range.first.slot()) + 1
}

/// The range in `count` slices, as equal as possible; fewer if it has fewer hashes. Whole slots if
/// it has that many.
pub(crate) fn slices(range: KeyRange, count: u64) -> Vec<KeyRange> {
    let slot_bits = RouteHash::first_of_slot(1).0.trailing_zeros();
    let slots = slots(range);
    let count = u128::from(count).clamp(1, width(range).min(1 << 14));
    let mut slices = Vec::new();
    let mut first = range.first;
    for n in 1..count {
        let exact = u128::from(range.first.0) + width(range) * n / count;
        let at = if slots as u128 >= count {
            exact >> slot_bits << slot_bits
        } else {
            exact
        };
        let Some((low, high)) = KeyRange::new(first, range.last).split(RouteHash(at as u64)) else {
            continue;
        };
        slices.push(low);
        first = high.first;
    }
    slices.push(KeyRange::new(first, range.last));
    slices
}

/// Packs pieces into partitions. Big ones first; each goes to the first of a few random partitions
/// with room for it.
pub(crate) fn pack(mut pieces: Vec<Piece>, limits: Limits, random: &mut Random) -> Vec<Vec<Piece>> {
    pieces.sort_by_key(|piece| std::cmp::Reverse(piece.bytes.max(piece.records)));
    let mut partitions: Vec<(u64, u64, Vec<Piece>)> = Vec::new();
    for piece in pieces {
        let fits = |(bytes, records, _): &(u64, u64, Vec<Piece>)| {
            bytes + piece.bytes <= limits.bytes && records + piece.records <= limits.records
        };
        let tried: Vec<usize> = (0..OPEN_PARTITIONS.min(partitions.len()))
            .map(|_| random.index(partitions.len()))
            .collect();
        match tried.into_iter().find(|n| fits(&partitions[*n])) {
            Some(n) => {
                let (bytes, records, of) = &mut partitions[n];
                *bytes += piece.bytes;
                *records += piece.records;
                of.push(piece);
            }
            None => partitions.push((piece.bytes, piece.records, vec![piece])),
        }
    }
    partitions
        .into_iter()
        .map(|(_, _, pieces)| pieces)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use duramen_base::ids::{SegmentId, TableId};
    use proptest::prelude::*;

    fn tablet(first: u64, last: u64) -> RecoverTablet {
        RecoverTablet {
            table: TableId(1),
            range: KeyRange::new(RouteHash(first), RouteHash(last)),
            creation: SegmentId(3),
        }
    }

    proptest! {
        #[test]
        fn slices_are_the_range(first: u64, more: u64, count in 0u64..40) {
            let range = KeyRange::new(RouteHash(first), RouteHash(first.saturating_add(more)));
            let cut = slices(range, count);
            prop_assert!(cut.len() as u64 <= count.max(1));
            prop_assert_eq!(cut[0].first, range.first);
            prop_assert_eq!(cut[cut.len() - 1].last, range.last);
            for pair in cut.windows(2) {
                prop_assert_eq!(pair[0].last.next(), Some(pair[1].first)); // N1
            }
        }

        #[test]
        fn partitions_hold_every_piece_once_within_the_limits(
            cuts in proptest::collection::btree_set(1u64.., 0..30),
            log_bytes in 0u64..20_000,
            seed: u64,
        ) {
            let limits = Limits { bytes: 1_000, records: 1_000, within_slots: true };
            let mut first = 0;
            let mut tablets: Vec<RecoverTablet> = Vec::new();
            for at in cuts {
                tablets.push(tablet(first, at - 1));
                first = at;
            }
            tablets.push(tablet(first, u64::MAX));
            let pieces = cut(&tablets, &[], log_bytes, limits);
            let estimated: u64 = pieces.iter().map(|piece| piece.bytes).sum();
            prop_assert!(estimated <= log_bytes && log_bytes - estimated <= 2 * pieces.len() as u64 + tablets.len() as u64);
            let partitions = pack(pieces.clone(), limits, &mut Random::new(seed));
            let mut packed: Vec<KeyRange> = Vec::new();
            for partition in &partitions {
                prop_assert!(partition.iter().map(|piece| piece.bytes).sum::<u64>() <= limits.bytes); // N2
                packed.extend(partition.iter().map(|piece| piece.tablet.range));
            }
            packed.sort();
            let mut all: Vec<KeyRange> = pieces.iter().map(|piece| piece.tablet.range).collect();
            all.sort();
            prop_assert_eq!(packed, all); // N1
        }
    }

    /// Each tablet was compared with each load, on the thread that all servers wait for: 16,384
    /// tablets took a second.
    #[test]
    fn what_was_counted_is_shared_among_many_tablets() {
        let width = 1u64 << 50;
        let many: Vec<RecoverTablet> = (0..1 << 14)
            .map(|n: u64| tablet(n * width, n * width + (width - 1)))
            .collect();
        // Counted before each tablet was split in four, the last ones first.
        let counted = many.chunks(4).rev().map(|four| RangeLoad {
            table: TableId(1),
            range: KeyRange::new(four[0].range.first, four[3].range.last),
            bytes: 4_000,
            records: 400,
        });
        let elsewhere = RangeLoad {
            table: TableId(2),
            range: KeyRange::ALL,
            bytes: 1 << 40,
            records: 0,
        };
        let loads: Vec<RangeLoad> = counted.chain([elsewhere]).collect();
        let pieces = estimate(&many, &loads, 1_000 << 14);
        assert!(
            pieces
                .iter()
                .all(|piece| (piece.bytes, piece.records) == (1_000, 100))
        );
    }

    #[test]
    fn partitions_are_as_long_as_there_is_room_for() {
        const UNKNOWN: u64 = u64::MAX;
        let bytes =
            |total, rooms: &[u64], most, least| partition_bytes(total, rooms, most, least).0;
        // One for each, whatever the maximum; but not less than the minimum.
        assert_eq!(bytes(900, &[UNKNOWN; 3], 1_000, 10), 300);
        assert_eq!(bytes(9_000, &[UNKNOWN; 3], 1_000, 10), 1_000);
        assert_eq!(bytes(9, &[UNKNOWN; 3], 1_000, 10), 10);
        // Twice the room, in all; if an even share fits into only one of them, they are shorter.
        assert_eq!(bytes(900, &[250, 700, 850], 1_000, 10), 300);
        assert_eq!(bytes(900, &[250, 250, 850], 1_000, 10), 150);
        assert_eq!(bytes(900, &[200, 200, 600], 1_000, 10), 150);
        // Not all fit, or there is no master: as if there were room.
        assert!(!partition_bytes(900, &[100, 0, 0], 1_000, 10).1);
        assert_eq!(bytes(900, &[100, 0, 0], 1_000, 10), 300);
        assert_eq!(bytes(900, &[], 1_000, 10), 900);
        assert_eq!(bytes(0, &[0], 0, 0), 1);
    }

    proptest! {
        /// N3: with twice the room, and no useless small rooms, everything fits.
        #[test]
        fn what_fits_is_cut_so_that_it_fits(
            rooms in proptest::collection::vec(0u64..10_000, 1..12),
            part in 1u64..=50,
            most in 100u64..5_000,
        ) {
            let total = rooms.iter().sum::<u64>() * part / 100;
            let (bytes, fits) = partition_bytes(total, &rooms, most, 1);
            prop_assert!(fits);
            let places: u64 = rooms.iter().map(|room| room / bytes).sum();
            prop_assert!(bytes <= most && places >= total.div_ceil(bytes), "{bytes}");
        }
    }

    #[test]
    fn whole_slots_where_there_are_enough() {
        for range in slices(KeyRange::ALL, 5) {
            assert_eq!(range.first, RouteHash::first_of_slot(range.first.slot()));
            assert_eq!(range.last, RouteHash::last_of_slot(range.last.slot()));
        }
        let one_slot = KeyRange::new(RouteHash::first_of_slot(9), RouteHash::last_of_slot(9));
        assert_eq!(slices(one_slot, 4).len(), 4);
        assert_eq!(
            slices(KeyRange::new(RouteHash(7), RouteHash(7)), 4).len(),
            1
        );
    }

    /// A recovery cut a slot in four, for four masters: commands over several keys of one hash tag
    /// were refused from then on.
    #[test]
    fn a_slot_is_cut_when_it_did_not_fit_as_a_whole() {
        let slot = KeyRange::new(RouteHash::first_of_slot(9), RouteHash::last_of_slot(9));
        let pieces = |within_slots| {
            let limits = Limits {
                bytes: 1_000,
                records: 1_000,
                within_slots,
            };
            cut(&[tablet(slot.first.0, slot.last.0)], &[], 9_000, limits).len()
        };
        assert_eq!((pieces(false), pieces(true)), (1, 9));
    }

    #[test]
    fn statistics_count_more_than_the_share_of_the_hashes() {
        let half = 1 << 63;
        let tablets = [tablet(0, half - 1), tablet(half, u64::MAX)];
        let loads = [RangeLoad {
            table: TableId(1),
            range: tablets[1].range,
            bytes: 9_000,
            records: 90,
        }];
        let limits = Limits {
            bytes: 1_000,
            records: 1_000,
            within_slots: false,
        };
        let pieces = cut(&tablets, &loads, 9_000, limits);
        let in_second = pieces.iter().filter(|p| p.tablet.range.first.0 >= half);
        assert_eq!((pieces.len(), in_second.count()), (10, 9));
        // Many records count like many bytes.
        let small = [RangeLoad {
            records: 4_000,
            ..loads[0]
        }];
        let limits = Limits {
            bytes: 1 << 40,
            within_slots: false,
            records: 1_000,
        };
        assert_eq!(cut(&tablets, &small, 9_000, limits).len(), 5);
    }
}
