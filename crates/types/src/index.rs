//! The places of names in a table, by a hash. The hash is keyed by a number of the process, so
//! nobody can choose names that collide.

use crate::text::Text;
use rapidhash::v3::{RapidSecrets, rapidhash_v3_inline};
use std::hash::{BuildHasher, RandomState};
use std::sync::OnceLock;

/// The random numbers of this process, by which hashes are keyed.
static KEY: OnceLock<RapidSecrets> = OnceLock::new();

fn hash(name: &Text<'_>) -> u64 {
    let key = KEY.get_or_init(|| RapidSecrets::seed(RandomState::new().hash_one(0u64)));
    match name {
        Text::Bytes(bytes) => rapidhash_v3_inline::<true, false, false>(bytes, key),
        Text::Integer(integer) => {
            rapidhash_v3_inline::<true, false, false>(&integer.to_le_bytes(), key)
        }
    }
}

/// The upper half of a hash; a slot has the same half.
const TAG: u64 = !0 << 32;

/// Slots, of which at most half are used. A slot is free (0), or it has the upper half of a name's
/// hash, and the number of the name's place plus 1.
#[derive(Clone, Debug)]
pub(crate) struct Index {
    slots: Vec<u64>,
    used: usize,
}

impl Index {
    /// An index of names, each at its place.
    pub(crate) fn of<'n>(names: impl ExactSizeIterator<Item = Text<'n>>) -> Index {
        let mut index = Index::with_room(names.len());
        for (place, name) in names.enumerate() {
            index.put(hash(&name), place);
        }
        index
    }

    /// An index without names, with room for so many.
    pub(crate) fn with_room(names: usize) -> Index {
        Index {
            slots: vec![0; (2 * names).next_power_of_two().max(16)],
            used: 0,
        }
    }

    /// Number of names in the index.
    pub(crate) fn used(&self) -> usize {
        self.used
    }

    /// Memory of the slots.
    pub(crate) fn memory_bytes(&self) -> usize {
        self.slots.capacity() * size_of::<u64>()
    }

    /// Whether there is room for another name; if not, a larger index must be made.
    pub(crate) fn has_room(&self) -> bool {
        2 * self.used < self.slots.len()
    }

    /// Notes the place of a name that is not in the index. There must be room.
    pub(crate) fn add(&mut self, name: &Text<'_>, place: usize) {
        self.put(hash(name), place);
    }

    fn put(&mut self, hash: u64, place: usize) {
        let mask = self.slots.len() - 1;
        let mut at = hash as usize & mask;
        while let Some(slot) = self.slots.get_mut(at) {
            if *slot == 0 {
                *slot = hash & TAG | (place as u64 + 1);
                self.used += 1;
                return;
            }
            at = (at + 1) & mask;
        }
    }

    /// The place of a name; `is_at` compares the name with that at a place.
    #[inline]
    pub(crate) fn find(&self, name: &Text<'_>, is_at: impl Fn(usize) -> bool) -> Option<usize> {
        let hash = hash(name);
        let mask = self.slots.len() - 1;
        let mut at = hash as usize & mask;
        loop {
            let slot = *self.slots.get(at)?;
            if slot == 0 {
                return None;
            }
            let place = (slot & !TAG) as usize - 1;
            if slot & TAG == hash & TAG && is_at(place) {
                return Some(place);
            }
            at = (at + 1) & mask;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_name_is_found_at_its_place() {
        let texts: Vec<String> = (0..10_000).map(|n| format!("{n:b}-")).collect();
        let names: Vec<Text<'_>> = texts.iter().map(|text| Text::of(text.as_bytes())).collect();
        let mut index = Index::of(names.iter().copied().take(9));
        for (place, name) in names.iter().enumerate().skip(9) {
            assert_eq!(index.find(name, |at| names[at] == *name), None);
            if index.has_room() {
                index.add(name, place)
            } else {
                index = Index::of(names.iter().copied().take(place + 1));
            }
        }
        for (place, name) in names.iter().enumerate() {
            assert_eq!(index.find(name, |at| names[at] == *name), Some(place));
        }
        assert!(index.used == names.len() && 2 * index.used <= index.slots.len());
        // All hashes are different, also those of integers.
        let mut hashes: Vec<u64> = names.iter().map(hash).collect();
        hashes.extend((0..10_000).map(|n| hash(&Text::Integer(n))));
        hashes.sort_unstable();
        assert!(hashes.windows(2).all(|pair| pair[0] != pair[1]));
    }
}
