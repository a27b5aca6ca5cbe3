//! Sorted sets: members with a score, in the order of scores, and of bytes among equal scores.
//!
//! - S1: a stored sorted set is in that order, so ranges are found by halving.

use crate::table::Table;
use crate::text::Text;
use crate::{Error, Parts};
use std::cmp::Ordering;
use std::ops::Range;

/// An end of a range of scores.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ScoreEnd {
    pub score: f64,
    /// Whether the score itself is outside of the range.
    pub is_open: bool,
}

/// An end of a range of members.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LexEnd<'a> {
    /// Before all members.
    First,
    /// After all members.
    Last,
    Closed(&'a [u8]),
    Open(&'a [u8]),
}

/// A decoded sorted set.
#[derive(Clone, Debug, Default)]
pub struct Sorted<'a> {
    table: Table<'a, f64>,
    /// Whether no score was changed since it was sorted.
    is_sorted: bool,
}

fn order((name, score): &(Text<'_>, f64), (other, to): &(Text<'_>, f64)) -> Ordering {
    // -0 counts as 0. There is no NaN.
    let scores = (score + 0.0).total_cmp(&(to + 0.0));
    scores.then_with(|| name.compare(other))
}

impl<'a> Sorted<'a> {
    /// Decodes a packed value; without a value the set is empty.
    ///
    /// # Errors
    /// [`Error::WrongType`], [`Error::Damaged`].
    pub fn of(value: Option<&'a [u8]>) -> Result<Sorted<'a>, Error> {
        Ok(Sorted {
            table: Table::of(value)?,
            is_sorted: true,
        })
    }

    /// As [`of`](Self::of), from the parts.
    ///
    /// # Errors
    /// Those of [`of`](Self::of).
    pub fn load(parts: &impl Parts<'a>) -> Result<Sorted<'a>, Error> {
        Ok(Sorted {
            table: Table::load(parts)?,
            is_sorted: true,
        })
    }

    /// A set of these members, which must be different.
    pub fn of_elements(elements: Vec<(Text<'a>, f64)>) -> Sorted<'a> {
        let mut table = Table::default();
        table.elements = elements;
        Sorted {
            table,
            is_sorted: false,
        }
    }

    /// As [`Table::pack`].
    pub fn pack(&self) -> Vec<u8> {
        self.table.pack()
    }

    /// As [`Table::unpack`].
    ///
    /// # Errors
    /// As [`Table::unpack`].
    pub fn unpack(bytes: &'a [u8]) -> Result<Sorted<'a>, Error> {
        Ok(Sorted {
            table: Table::unpack(bytes)?,
            is_sorted: false,
        })
    }

    /// Replaces the set's parts, or removes them if it is empty.
    ///
    /// # Errors
    /// [`Error::Full`].
    pub fn store<'p>(&mut self, parts: &mut impl Parts<'p>) -> Result<(), Error> {
        self.sort();
        self.table.store(parts)
    }

    /// Sorts the members, if a score was changed (S1).
    fn sort(&mut self) {
        if !self.is_sorted {
            self.table.retain(|_| true); // positions of an index do not survive
            self.table.elements.sort_by(order);
            self.is_sorted = true;
        }
    }

    pub fn len(&self) -> usize {
        self.table.len()
    }

    pub fn is_empty(&self) -> bool {
        self.table.is_empty()
    }

    /// As [`Table::expect`].
    pub fn expect(&mut self, calls: usize) {
        self.table.expect(calls);
    }

    /// The place of a member, until the set is sorted or a member is removed.
    #[inline]
    pub fn position(&self, name: &Text<'_>) -> Option<usize> {
        self.table.position(name)
    }

    /// The score of the member at a place. The caller may change it to another number.
    #[inline]
    pub fn score_at(&mut self, position: usize) -> Option<&mut f64> {
        self.is_sorted = false;
        let element = self.table.elements.get_mut(position);
        element.map(|(_, score)| score)
    }

    /// Adds a member that is not in the set.
    pub fn add(&mut self, name: Text<'a>, score: f64) {
        self.is_sorted = false;
        self.table.add(name, score);
    }

    /// Keeps the members at the places for which `keep` is true.
    pub fn retain_at(&mut self, keep: impl Fn(usize) -> bool) {
        let mut places = 0..;
        self.table.retain(|_| places.next().is_some_and(&keep));
    }

    pub fn score(&self, name: &Text<'_>) -> Option<f64> {
        self.table.get(name)
    }

    /// Sets a score, which is a number; returns the one before.
    pub fn set(&mut self, name: Text<'a>, score: f64) -> Option<f64> {
        debug_assert!(!score.is_nan());
        let before = self.table.insert(name, score);
        self.is_sorted &= before == Some(score);
        before
    }

    /// Removes members; returns how many of them were there.
    pub fn remove<'n>(&mut self, names: impl ExactSizeIterator<Item = Text<'n>>) -> usize {
        self.table.remove(names)
    }

    /// Removes the members with these ranks.
    pub fn remove_ranks(&mut self, ranks: Range<usize>) {
        self.sort();
        let mut rank = 0;
        self.table.retain(|_| {
            rank += 1;
            !ranks.contains(&(rank - 1))
        });
    }

    /// All members in order.
    pub fn elements(&mut self) -> &[(Text<'a>, f64)] {
        self.sort();
        self.table.elements()
    }

    /// The position of a member in the order.
    pub fn rank(&mut self, name: &Text<'_>) -> Option<usize> {
        self.elements().iter().position(|(found, _)| found == name)
    }

    /// Ranks of the members with scores from `min` to `max`.
    pub fn ranks_of_scores(&mut self, min: ScoreEnd, max: ScoreEnd) -> Range<usize> {
        let elements = self.elements();
        let start = elements.partition_point(|(_, score)| {
            if min.is_open {
                *score <= min.score
            } else {
                *score < min.score
            }
        });
        let end = elements.partition_point(|(_, score)| {
            if max.is_open {
                *score < max.score
            } else {
                *score <= max.score
            }
        });
        start..end.max(start)
    }

    /// Ranks of the members from `min` to `max`, if all scores are equal. Otherwise the range is
    /// that of Redis for small sets: it begins with the first member that is not below `min`, and
    /// ends before the next one that is above `max`. It is empty if the last of all members is
    /// below `min`, or the first above `max`. With `reversed` the search begins at the other end.
    pub fn ranks_of_members(
        &mut self,
        min: LexEnd<'_>,
        max: LexEnd<'_>,
        reversed: bool,
    ) -> Range<usize> {
        let elements = self.elements();
        let is_above = |(name, _): &(Text<'_>, f64)| min.is_below(&name.bytes());
        let is_below = |(name, _): &(Text<'_>, f64)| max.is_above(&name.bytes());
        let (Some(first), Some(last)) = (elements.first(), elements.last()) else {
            return 0..0;
        };
        if !is_below(first) || !is_above(last) || min.is_beyond(max) {
            return 0..0;
        }
        if reversed {
            let end = elements.iter().rposition(is_below).map_or(0, |at| at + 1);
            let head = elements.get(..end).unwrap_or_default();
            let outside = head.iter().rposition(|element| !is_above(element));
            return outside.map_or(0, |at| at + 1)..end;
        }
        let start = elements.iter().position(is_above).unwrap_or(0);
        let tail = elements.get(start..).unwrap_or_default();
        let inside = tail.iter().position(|element| !is_below(element));
        start..start + inside.unwrap_or(tail.len())
    }
}

impl LexEnd<'_> {
    /// Whether a name is inside of a range with this lower end.
    fn is_below(self, name: &[u8]) -> bool {
        match self {
            LexEnd::First => true,
            LexEnd::Last => false,
            LexEnd::Closed(end) => name >= end,
            LexEnd::Open(end) => name > end,
        }
    }

    /// Whether a name is inside of a range with this upper end.
    fn is_above(self, name: &[u8]) -> bool {
        match self {
            LexEnd::First => false,
            LexEnd::Last => true,
            LexEnd::Closed(end) => name <= end,
            LexEnd::Open(end) => name < end,
        }
    }

    /// Whether no name is between this lower end and an upper one.
    fn is_beyond(self, max: LexEnd<'_>) -> bool {
        match (self, max) {
            (LexEnd::Last, _) | (_, LexEnd::First) => true,
            (LexEnd::First, _) | (_, LexEnd::Last) => false,
            (LexEnd::Closed(min), LexEnd::Closed(max)) => min > max,
            (LexEnd::Closed(min) | LexEnd::Open(min), LexEnd::Closed(max) | LexEnd::Open(max)) => {
                min >= max
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn minus_zero_is_zero_in_the_order() {
        let mut set = Sorted::default();
        for (name, score) in [
            (&b"b"[..], -0.0),
            (b"a", 0.0),
            (b"c", f64::NEG_INFINITY),
            (b"d", 1.0),
        ] {
            set.set(Text::of(name), score);
        }
        let names: Vec<_> = set.elements().iter().map(|(name, _)| *name).collect();
        assert_eq!(names, [&b"c"[..], b"a", b"b", b"d"].map(Text::of));
    }

    #[test]
    fn a_score_that_is_no_number_is_damage() {
        let mut value = vec![
            crate::Type::SortedSet as u8,
            1,
            Text::of(b"a").fingerprint(),
        ];
        Text::of(b"a").encode(&mut value);
        Text::Bytes(&f64::NAN.to_le_bytes()).encode(&mut value);
        assert_eq!(Sorted::of(Some(&value)).err(), Some(Error::Damaged));
        assert_eq!(
            crate::find_at_most_once::<f64>(&value, b"a"),
            Err(Error::Damaged)
        );
    }
}
