//! Ranges of tables with set operations, and the list since which each is served.
//!
//! **Invariants**
//! - V2: ranges of a table do not overlap.
//!
//! **Layout** one list, sorted by table and range: a lookup is one binary search, and an operation
//! of two lists is one per entry. A cluster may have tens of thousands of tablets, and the node's
//! thread also answers pings.
//!
//! Paper: [Ousterhout15 §3]

use duramen_base::ids::{KeyRange, RouteHash, TableId, TabletsVersion};
use duramen_wire::native::message::Tablets;

/// The error for ranges that violate V2.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("table {table}: {range} overlaps another range, or ends before it begins")]
pub struct NotATable {
    pub table: TableId,
    pub range: KeyRange,
}

/// Ranges of tables, without overlaps (V2).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ranges(Vec<(TableId, KeyRange)>);

impl Ranges {
    /// # Errors
    /// [`NotATable`]: V2 does not hold.
    pub fn new(ranges: impl IntoIterator<Item = (TableId, KeyRange)>) -> Result<Ranges, NotATable> {
        let mut ranges: Vec<(TableId, KeyRange)> = ranges.into_iter().collect();
        ranges.sort_unstable();
        let wrong = |at: usize, &(table, range): &(TableId, KeyRange)| {
            let before = at.checked_sub(1).map(|before| ranges[before]);
            range.first > range.last
                || before.is_some_and(|(other, last)| other == table && last.overlaps(&range))
        };
        let found = ranges
            .iter()
            .enumerate()
            .find(|(at, entry)| wrong(*at, entry));
        if let Some((_, &(table, range))) = found {
            return Err(NotATable { table, range });
        }
        Ok(Ranges(ranges))
    }

    /// The served tablets of a message.
    ///
    /// # Errors
    /// [`NotATable`]: its tablets overlap, served or not.
    pub fn served_of(tablets: &Tablets) -> Result<Ranges, NotATable> {
        let entries = || tablets.tablets.iter();
        Ranges::new(entries().map(|entry| (entry.table, entry.range)))?;
        let served = entries().filter(|entry| entry.state.is_served());
        Ranges::new(served.map(|entry| (entry.table, entry.range)))
    }

    /// All of a message's tablets.
    ///
    /// # Errors
    /// [`NotATable`].
    pub fn all_of(tablets: &Tablets) -> Result<Ranges, NotATable> {
        Ranges::new(
            tablets
                .tablets
                .iter()
                .map(|entry| (entry.table, entry.range)),
        )
    }

    /// The ranges, by table and hash.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (TableId, KeyRange)> {
        self.0.iter().copied()
    }

    /// The ranges of one table.
    pub fn of(&self, table: TableId) -> impl Iterator<Item = KeyRange> {
        let mine = self.overlapping(table, KeyRange::ALL).iter();
        mine.map(|(_, range)| *range)
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether one of them overlaps this range.
    pub(crate) fn overlaps(&self, table: TableId, range: KeyRange) -> bool {
        !self.overlapping(table, range).is_empty()
    }

    pub fn contains(&self, table: TableId, hash: RouteHash) -> bool {
        self.find(table, hash).is_some()
    }

    fn find(&self, table: TableId, hash: RouteHash) -> Option<usize> {
        let next = self
            .0
            .partition_point(|(other, range)| (*other, range.first) <= (table, hash));
        let at = next.checked_sub(1)?;
        let (other, range) = self.0[at];
        (other == table && range.contains(hash)).then_some(at)
    }

    /// The ranges in both.
    pub fn intersection(&self, other: &Ranges) -> Ranges {
        let both = self.iter().flat_map(|(table, range)| {
            let others = other.overlapping(table, range).iter();
            others.filter_map(move |(_, with)| Some((table, range.intersection(with)?)))
        });
        Ranges(both.collect())
    }

    /// The ranges in at least one of both.
    pub fn union(&self, other: &Ranges) -> Ranges {
        let more = other.without(self);
        Ranges::new(self.iter().chain(more.iter())).expect("what is added is cut")
    }

    /// The ranges in this one and not in the other one.
    pub fn without(&self, other: &Ranges) -> Ranges {
        let mut rest = Vec::new();
        for (table, range) in self.iter() {
            let mut left = Some(range);
            for (_, cut) in other.overlapping(table, range) {
                let Some(whole) = left else { break };
                if whole.first < cut.first {
                    let before = KeyRange::new(whole.first, RouteHash(cut.first.0 - 1));
                    rest.push((table, before));
                }
                left = cut
                    .last
                    .next()
                    .filter(|first| *first <= whole.last)
                    .map(|first| KeyRange::new(first, whole.last));
            }
            rest.extend(left.map(|range| (table, range)));
        }
        Ranges(rest)
    }

    /// The entries that overlap this range.
    fn overlapping(&self, table: TableId, range: KeyRange) -> &[(TableId, KeyRange)] {
        let entries = &self.0;
        // By V2 the ends are in the order of the beginnings.
        let first = entries.partition_point(|(of, other)| (*of, other.last) < (table, range.first));
        let after = first
            + entries[first..]
                .partition_point(|(of, other)| (*of, other.first) <= (table, range.last));
        &entries[first..after]
    }
}

/// The served ranges, each with the list since which it is served: a request that came by an older
/// map may be a late copy of one that another server has executed in between (docs/protocols.md,
/// Exactly once, 6).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tenures {
    ranges: Ranges,
    /// The list of the range at the same index.
    since: Vec<TabletsVersion>,
}

impl Tenures {
    /// All of them from this version on.
    pub fn new(ranges: Ranges, since: TabletsVersion) -> Tenures {
        let since = vec![since; ranges.0.len()];
        Tenures { ranges, since }
    }

    pub fn ranges(&self) -> &Ranges {
        &self.ranges
    }

    /// The list since which a key is served; `None`: it is not served.
    pub fn since(&self, table: TableId, hash: RouteHash) -> Option<TabletsVersion> {
        self.ranges.find(table, hash).map(|at| self.since[at])
    }

    /// The ranges that have been served since this list or an earlier one.
    #[must_use]
    pub fn ranges_since(&self, list: TabletsVersion) -> Ranges {
        let entries = self.entries().filter(|(_, since)| *since <= list);
        Ranges(entries.map(|(range, _)| range).collect())
    }

    /// The tenures after this list: those of ranges that were served before continue, the others
    /// begin.
    #[must_use]
    pub fn renewed(&self, served: &Ranges, since: TabletsVersion) -> Tenures {
        let begins = served.without(&self.ranges);
        let goes_on = self.kept(served);
        let begun = begins.iter().map(|range| (range, since));
        let all = goes_on.entries().chain(begun);
        let mut all: Vec<((TableId, KeyRange), TabletsVersion)> = all.collect();
        all.sort_unstable_by_key(|(range, _)| *range);
        Tenures {
            ranges: Ranges(all.iter().map(|(range, _)| *range).collect()),
            since: all.into_iter().map(|(_, since)| since).collect(),
        }
    }

    /// The tenures of these ranges alone.
    #[must_use]
    pub fn kept(&self, of: &Ranges) -> Tenures {
        let (mut ranges, mut since) = (Vec::new(), Vec::new());
        for ((table, range), from) in self.entries() {
            for (_, other) in of.overlapping(table, range) {
                ranges.extend(range.intersection(other).map(|common| (table, common)));
                since.push(from);
            }
        }
        let ranges = Ranges(ranges);
        Tenures { ranges, since }
    }

    fn entries(&self) -> impl Iterator<Item = ((TableId, KeyRange), TabletsVersion)> {
        self.ranges.iter().zip(self.since.iter().copied())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: TableId = TableId(3);

    fn ranges(of: &[(u64, u64)]) -> Ranges {
        let range = |(first, last): &(u64, u64)| KeyRange::new(RouteHash(*first), RouteHash(*last));
        Ranges::new(of.iter().map(|of| (TABLE, range(of)))).unwrap()
    }

    /// Compared with a set of single hashes.
    #[test]
    fn ranges_are_cut_as_sets_are() {
        let all = [
            vec![],
            vec![(0, u64::MAX)],
            vec![(0, 4), (8, 8), (10, 20)],
            vec![(2, 9), (11, 12), (14, 14), (20, 30)],
            vec![(0, 0), (5, 7), (u64::MAX, u64::MAX)],
        ];
        for one in &all {
            for other in &all {
                let (a, b) = (ranges(one), ranges(other));
                let (both, rest) = (a.intersection(&b), a.without(&b));
                assert_eq!(
                    Ranges::new(both.iter()),
                    Ok(both.clone()),
                    "sorted, without overlaps"
                );
                assert_eq!(Ranges::new(rest.iter()), Ok(rest.clone()));
                for hash in (0..40).chain([u64::MAX - 1, u64::MAX]).map(RouteHash) {
                    let (in_a, in_b) = (a.contains(TABLE, hash), b.contains(TABLE, hash));
                    assert_eq!(both.contains(TABLE, hash), in_a && in_b);
                    assert_eq!(
                        rest.contains(TABLE, hash),
                        in_a && !in_b,
                        "{one:?} {other:?} {hash}"
                    );
                    assert!(!both.contains(TableId(4), hash));
                }
            }
        }
    }

    /// The lists of a cluster with the most tablets were compared entry by entry: the node's thread
    /// answered no pings for seconds, and healthy members were called crashed.
    #[test]
    fn operations_of_long_lists_take_little_time() {
        const TABLETS: u64 = 32_768;
        let step = u64::MAX / TABLETS;
        let every = |n: u64| (n * step, n * step + step - 1);
        let all: Vec<(u64, u64)> = (0..TABLETS).map(every).collect();
        let even: Vec<(u64, u64)> = (0..TABLETS).step_by(2).map(every).collect();
        let (all, even) = (ranges(&all), ranges(&even));
        let began = std::time::Instant::now();
        let odd = all.without(&even);
        assert_eq!(odd.iter().len() as u64, TABLETS / 2);
        assert_eq!(all.intersection(&even), even);
        assert_eq!(even.union(&odd), all);
        let tenures = Tenures::default().renewed(&all, TabletsVersion(1));
        assert_eq!(tenures.kept(&odd).ranges(), &odd);
        assert_eq!(tenures.renewed(&even, TabletsVersion(2)).ranges(), &even);
        // Entry by entry it takes more than a minute, on a machine with nothing else to do.
        let took = began.elapsed();
        assert!(took.as_secs() < 30, "{took:?}");
    }

    #[test]
    fn a_tenure_goes_on_while_its_range_is_served_and_begins_anew_after_a_break() {
        let since = |tenures: &Tenures, hash| tenures.since(TABLE, RouteHash(hash)).map(|v| v.0);
        let first = Tenures::default().renewed(&ranges(&[(0, 9), (20, 29)]), TabletsVersion(3));
        let second = first.renewed(&ranges(&[(5, 24)]), TabletsVersion(7));
        for (hash, expected) in [
            (4, None),
            (5, Some(3)),
            (10, Some(7)),
            (20, Some(3)),
            (25, None),
        ] {
            assert_eq!(since(&second, hash), expected, "{hash}");
        }
        let third = second.renewed(&ranges(&[(0, 40)]), TabletsVersion(9));
        for (hash, expected) in [
            (4, Some(9)),
            (5, Some(3)),
            (10, Some(7)),
            (24, Some(3)),
            (25, Some(9)),
        ] {
            assert_eq!(since(&third, hash), expected, "{hash}");
        }
        let kept = third.kept(&ranges(&[(24, 24)]));
        assert_eq!((since(&kept, 24), since(&kept, 25)), (Some(3), None));
        assert_eq!(
            Ranges::new(third.ranges().iter()).as_ref(),
            Ok(third.ranges())
        );
    }
}
