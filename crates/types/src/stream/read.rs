//! How far groups have read a stream, in numbers of entries, counted and estimated as in Redis.

use super::{Group, Id, Stream};

impl Stream<'_> {
    /// Whether an entry at or after `start`, which lay between entries, was deleted.
    fn has_gap(&self, start: Id) -> bool {
        !self.is_empty()
            && self.deleted != Id::MIN
            && self.first() <= self.deleted
            && start <= self.deleted
    }

    /// The number of entries up to an id, from the first that was ever added on; `None`: it is not
    /// known.
    pub fn distance(&self, id: Id) -> Option<u64> {
        let before = self.added.wrapping_sub(self.len() as u64);
        if self.added == 0 {
            return Some(0);
        }
        if id == self.last || self.is_empty() && id < self.last {
            return Some(self.added);
        }
        if id > self.last || self.deleted != Id::MIN && self.deleted >= self.first() {
            return None;
        }
        match id.cmp(&self.first()) {
            std::cmp::Ordering::Less => Some(before),
            std::cmp::Ordering::Equal => Some(before.wrapping_add(1)),
            std::cmp::Ordering::Greater => None,
        }
    }

    /// How many entries a group has still to read; `None` if that is not known.
    pub fn lag(&self, group: &Group<'_>) -> Option<i64> {
        if self.added == 0 {
            return Some(0);
        }
        let read = group.read.filter(|_| !self.has_gap(group.last));
        let read = read.or_else(|| self.distance(group.last))?;
        Some(self.added.wrapping_sub(read) as i64)
    }

    /// Notes that a group was given an entry.
    pub fn note_read(&self, group: &mut Group<'_>, id: Id) {
        if id <= group.last {
            return;
        }
        match group.read {
            Some(read) if !self.has_gap(id) => group.read = Some(read.saturating_add(1)),
            _ if self.added > 0 => group.read = self.distance(id),
            _ => {}
        }
        group.last = id;
    }
}
