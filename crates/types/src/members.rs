//! A set that is built in steps, and owns its members: no step has to read again the members of the
//! steps before it. Members keep the order in which they came.

use crate::Error;
use crate::index::Index;
use crate::table::{COMPARISONS_MAX, Set};
use crate::text::Text;

/// Maximum comparisons before an index is made. A comparison with a member decodes it, so fewer of
/// them than for a table cost as much as an index.
const DECODED_MAX: usize = COMPARISONS_MAX / 4;
/// Members that go from a full index to the next one with each new member. The next index is twice
/// as large, so all members are there long before it is full too.
const MOVED_AT_ONCE: usize = 4;

/// See the head of this file.
#[derive(Default)]
pub struct Members {
    /// All members, one behind the other, encoded.
    bytes: Vec<u8>,
    /// The places in `bytes` at which the members begin.
    starts: Vec<usize>,
    /// Places of all members, except those that are in `next` alone; `None`: members are searched
    /// one by one.
    index: Option<Index>,
    /// The index that is to replace a full one. It has all members that were added since, and this
    /// many of the earlier ones.
    next: Option<(Index, usize)>,
}

impl Members {
    pub fn len(&self) -> usize {
        self.starts.len()
    }

    pub fn is_empty(&self) -> bool {
        self.starts.is_empty()
    }

    /// Memory that the set takes.
    pub fn memory_bytes(&self) -> usize {
        let next = self.next.as_ref().map(|(next, _)| next);
        let indexes = self.index.iter().chain(next).map(Index::memory_bytes);
        let indexes: usize = indexes.sum();
        self.bytes.capacity() + self.starts.capacity() * size_of::<usize>() + indexes
    }

    /// All members.
    ///
    /// # Errors
    /// None, because the set has encoded its members itself.
    pub fn set(&self) -> Result<Set<'_>, Error> {
        Set::unpack(&self.bytes)
    }

    /// All members, one after the other.
    pub fn all(&self) -> impl Iterator<Item = Text<'_>> {
        let mut rest = self.bytes.as_slice();
        (0..self.len()).map_while(move |_| Text::decode(&mut rest))
    }

    /// Prepares for so many members of so many bytes together, encoded.
    pub fn reserve(&mut self, members: usize, bytes: usize) {
        self.starts.reserve(members);
        self.bytes.reserve(bytes);
    }

    /// Prepares for this many calls of [`position`](Self::position) and [`insert`](Self::insert).
    pub fn expect(&mut self, calls: usize) {
        let comparisons = calls.saturating_mul(self.len() + calls);
        if calls > 1 && comparisons > DECODED_MAX && self.index.is_none() {
            self.index = Some(self.new_index());
        }
    }

    fn new_index(&self) -> Index {
        let member = |place| self.at(place).unwrap_or(Text::Integer(0));
        Index::of((0..self.len()).map(member))
    }

    fn at(&self, place: usize) -> Option<Text<'_>> {
        let mut rest = self.bytes.get(*self.starts.get(place)?..)?;
        Text::decode(&mut rest)
    }

    /// The number of a member.
    #[inline]
    pub fn position(&self, member: &Text<'_>) -> Option<usize> {
        let is_at = |place: usize| self.at(place).is_some_and(|it| it == *member);
        match (&self.index, &self.next) {
            (Some(index), None) => index.find(member, is_at),
            (Some(index), Some((next, _))) => {
                let found = next.find(member, is_at);
                found.or_else(|| index.find(member, is_at))
            }
            (None, _) => (0..self.len()).find(|place| is_at(*place)),
        }
    }

    /// Adds a member, unless it is in the set.
    pub fn insert(&mut self, member: &Text<'_>) {
        if self.position(member).is_none() {
            self.add(member);
        }
    }

    /// Adds a member that is not in the set.
    pub fn add(&mut self, member: &Text<'_>) {
        self.starts.push(self.bytes.len());
        member.encode(&mut self.bytes);
        let place = self.starts.len() - 1;
        let Some(index) = &mut self.index else {
            return;
        };
        if self.next.is_none() && index.has_room() {
            return index.add(member, place);
        }
        let all = index.used();
        let (mut next, moved) = match self.next.take() {
            Some(next) => next,
            None => (Index::with_room(2 * all), 0),
        };
        next.add(member, place);
        let end = all.min(moved + MOVED_AT_ONCE);
        for place in moved..end {
            if let Some(member) = self.at(place) {
                next.add(&member, place);
            }
        }
        if end < all {
            self.next = Some((next, end));
        } else {
            self.index = Some(next);
        }
    }

    /// Keeps the members for whose numbers `keep` returns true.
    pub fn retain(&mut self, keep: impl Fn(usize) -> bool) {
        let mut kept = Members::default();
        for place in (0..self.len()).filter(|place| keep(*place)) {
            if let Some(member) = self.at(place) {
                kept.add(&member);
            }
        }
        *self = kept;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_members_are_searched_one_by_one() {
        let texts: Vec<String> = (0..40).map(|n| format!("m{n}")).collect();
        for (number, is_indexed) in [(20, false), (40, true)] {
            let mut members = Members::default();
            members.reserve(number, number * 4);
            let reserved = members.memory_bytes();
            for text in &texts[..number] {
                members.add(&Text::of(text.as_bytes()));
            }
            assert_eq!(members.memory_bytes(), reserved);
            members.expect(number);
            assert_eq!(members.index.is_some(), is_indexed, "{number}");
        }
    }

    #[test]
    fn members_are_found_at_their_numbers_with_and_without_an_index() {
        let texts: Vec<String> = (0..3_000)
            .map(|n| match n % 2 {
                0 => n.to_string(),
                _ => format!("m{n}"),
            })
            .collect();
        let all: Vec<Text<'_>> = texts.iter().map(|text| Text::of(text.as_bytes())).collect();
        let (few, more) = all.split_at(50);
        let mut members = Members::default();
        assert!(members.is_empty() && members.position(&few[0]).is_none());
        few.iter().for_each(|member| members.add(member));
        for indexed in [false, true] {
            if indexed {
                members.expect(more.len());
            }
            assert_eq!(members.index.is_some(), indexed);
            for (place, member) in few.iter().enumerate() {
                members.insert(member);
                assert_eq!(members.position(member), Some(place));
            }
            assert_eq!(members.position(&more[0]), None);
        }
        let before = members.memory_bytes();
        let mut growing = 0;
        for (n, member) in more.iter().enumerate() {
            members.insert(member);
            assert_eq!(members.position(member), Some(few.len() + n));
            assert_eq!(members.position(&all[n]), Some(n));
            growing += usize::from(members.next.is_some());
        }
        assert!((500..1_500).contains(&growing), "{growing}");
        all.iter().for_each(|member| members.insert(member));
        assert_eq!(members.len(), all.len());
        assert!(members.memory_bytes() > before);
        members.retain(|place| place % 3 == 0);
        let set = members.set().expect("its own bytes");
        let left: Vec<Text<'_>> = set.elements().iter().map(|(member, ())| *member).collect();
        let expected: Vec<Text<'_>> = all.iter().step_by(3).copied().collect();
        assert_eq!(left, expected);
        assert_eq!(members.all().collect::<Vec<_>>(), expected);
        assert_eq!(members.position(&all[3]), Some(1));
        assert_eq!(members.position(&all[4]), None);
    }
}
