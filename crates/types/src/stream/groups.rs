//! Groups of consumers, and the entries that they have read and not acknowledged.
//!
//! **Layout**: the number of groups, and each of them: its name (a [`Text`]), the last id that it
//! was given (two varints), how many entries it read (0 = not known, otherwise one more), the
//! number of its consumers and each: name, when it was seen last in milliseconds, when it was given
//! an entry last (0 = never, otherwise one more); the number of its pending entries and each: a
//! step from the one before, the consumer's place, the time of delivery as its difference to the
//! one before in zigzag form, and the number of deliveries.
//!
//! - G1: the groups are in the order of their names. Consumers are in the order in which they came,
//!   so a new one changes no place.
//! - G2: the ids of pending entries ascend; each has a consumer.

use super::{Id, Stream};
use crate::Error;
use crate::text::{Text, read_varint, write_varint};

/// An entry that was given to a consumer and is not acknowledged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pending {
    pub id: Id,
    /// The place of its consumer in the group.
    pub consumer: usize,
    pub delivered_at_ms: u64,
    /// How often it was delivered.
    pub deliveries: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Consumer<'a> {
    pub name: Text<'a>,
    /// When the consumer asked last.
    pub seen_at_ms: u64,
    /// When the consumer was given an entry last; `None`: never.
    pub active_at_ms: Option<u64>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group<'a> {
    pub name: Text<'a>,
    /// The last id that the group was given.
    pub last: Id,
    /// How many entries of the stream the group has read, from the first that was ever added on;
    /// `None`: that is not known.
    pub read: Option<u64>,
    pub consumers: Vec<Consumer<'a>>,
    /// The pending entries, in the order of ids.
    pub pending: Vec<Pending>,
}

/// Minimum bytes of a group, of a consumer and of a pending entry.
const LEAST_BYTES: [usize; 3] = [6, 3, 5];

/// A vector with room for as many elements as are announced, but not for more than the bytes can
/// have.
fn reserved<T>(number: u64, bytes: &[u8], least_bytes: usize) -> Vec<T> {
    let most = bytes.len() / least_bytes;
    Vec::with_capacity(usize::try_from(number).unwrap_or(most).min(most))
}

fn one_more(number: Option<u64>) -> u64 {
    number.map_or(0, |number| number.saturating_add(1))
}

impl<'a> Group<'a> {
    pub fn new(name: Text<'a>, last: Id, read: Option<u64>) -> Group<'a> {
        Group {
            name,
            last,
            read,
            consumers: Vec::new(),
            pending: Vec::new(),
        }
    }

    fn decode(bytes: &mut &'a [u8]) -> Option<Group<'a>> {
        let name = Text::decode(bytes)?;
        let last = Id::read(bytes)?;
        let read = read_varint(bytes)?.checked_sub(1);
        let number = read_varint(bytes)?;
        let mut consumers = reserved(number, bytes, LEAST_BYTES[1]);
        for _ in 0..number {
            consumers.push(Consumer {
                name: Text::decode(bytes)?,
                seen_at_ms: read_varint(bytes)?,
                active_at_ms: read_varint(bytes)?.checked_sub(1),
            });
        }
        let number = read_varint(bytes)?;
        let mut pending: Vec<Pending> = reserved(number, bytes, LEAST_BYTES[2]);
        let (mut before, mut time) = (None, 0u64);
        for _ in 0..number {
            let id = before.unwrap_or(Id::MIN).read_step(bytes)?;
            let consumer = usize::try_from(read_varint(bytes)?).ok()?;
            let zigzag = read_varint(bytes)?;
            time = time.wrapping_add((zigzag >> 1) ^ (zigzag & 1).wrapping_neg());
            let is_right = before.is_none_or(|before| before < id) && consumer < consumers.len();
            if !is_right {
                return None; // G2
            }
            before = Some(id);
            pending.push(Pending {
                id,
                consumer,
                delivered_at_ms: time,
                deliveries: read_varint(bytes)?,
            });
        }
        Some(Group {
            name,
            last,
            read,
            consumers,
            pending,
        })
    }

    fn encode(&self, out: &mut Vec<u8>) {
        self.name.encode(out);
        self.last.write(out);
        write_varint(out, one_more(self.read));
        write_varint(out, self.consumers.len() as u64);
        for consumer in &self.consumers {
            consumer.name.encode(out);
            write_varint(out, consumer.seen_at_ms);
            write_varint(out, one_more(consumer.active_at_ms));
        }
        write_varint(out, self.pending.len() as u64);
        let (mut before, mut time) = (Id::MIN, 0u64);
        for pending in &self.pending {
            before.write_step(pending.id, out);
            write_varint(out, pending.consumer as u64);
            let difference = pending.delivered_at_ms.wrapping_sub(time) as i64;
            write_varint(out, ((difference << 1) ^ (difference >> 63)) as u64);
            write_varint(out, pending.deliveries);
            (before, time) = (pending.id, pending.delivered_at_ms);
        }
    }

    /// The place of a consumer.
    pub fn consumer(&self, name: &Text<'_>) -> Option<usize> {
        let mut consumers = self.consumers.iter();
        consumers.position(|consumer| consumer.name == *name)
    }

    /// The place of a consumer that asks now; the consumer is made if it does not exist.
    pub fn seen(&mut self, name: Text<'a>, now_ms: u64) -> usize {
        let place = self.consumer(&name).unwrap_or(self.consumers.len());
        match self.consumers.get_mut(place) {
            Some(consumer) => consumer.seen_at_ms = now_ms,
            None => self.consumers.push(Consumer {
                name,
                seen_at_ms: now_ms,
                active_at_ms: None,
            }),
        }
        place
    }

    /// Notes that a consumer is given entries now.
    pub fn active(&mut self, place: usize, now_ms: u64) {
        if let Some(consumer) = self.consumers.get_mut(place) {
            consumer.active_at_ms = Some(now_ms);
        }
    }

    /// Removes a consumer and its pending entries; returns the number of these entries.
    pub fn remove_consumer(&mut self, place: usize) -> usize {
        let before = self.pending.len();
        self.pending.retain(|pending| pending.consumer != place);
        for pending in &mut self.pending {
            pending.consumer -= usize::from(pending.consumer > place);
        }
        self.consumers.remove(place);
        before - self.pending.len()
    }

    /// The position of a pending entry, or where it would be.
    ///
    /// # Errors
    /// The position at which the entry would be.
    pub fn position(&self, id: Id) -> Result<usize, usize> {
        self.pending.binary_search_by_key(&id, |pending| pending.id)
    }

    /// Gives entries to a consumer for the first time; their ids ascend. An entry that is pending
    /// already changes its consumer.
    pub fn give(&mut self, ids: impl Iterator<Item = Id>, consumer: usize, now_ms: u64) {
        let known = self.pending.len();
        let last = self.pending.last().map(|pending| pending.id);
        let mut is_sorted = true;
        for id in ids {
            let given = Pending {
                id,
                consumer,
                delivered_at_ms: now_ms,
                deliveries: 1,
            };
            let is_behind = last.is_none_or(|last| last < id);
            let place = match self.pending.get_mut(..known) {
                Some(known) if !is_behind => known
                    .binary_search_by_key(&id, |pending| pending.id)
                    .ok()
                    .and_then(|at| known.get_mut(at)),
                _ => None,
            };
            match place {
                Some(pending) => *pending = given,
                None => {
                    is_sorted &= is_behind;
                    self.pending.push(given);
                }
            }
        }
        if !is_sorted {
            self.pending.sort_by_key(|pending| pending.id); // G2
        }
    }

    /// Removes pending entries; returns how many of the ids were pending.
    pub fn acknowledge(&mut self, ids: &[Id]) -> usize {
        let before = self.pending.len();
        let mut ids = ids.to_vec();
        ids.sort_unstable();
        self.pending
            .retain(|pending| ids.binary_search(&pending.id).is_err());
        before - self.pending.len()
    }
}

impl<'a> Stream<'a> {
    /// The groups of the stored value.
    ///
    /// # Errors
    /// [`Error::Damaged`].
    pub fn groups(&self) -> Result<Vec<Group<'a>>, Error> {
        decode(self.old_groups, self.stored_members).ok_or(Error::Damaged)
    }

    /// Replaces all groups.
    pub fn set_groups(&mut self, groups: &[Group<'_>]) {
        let mut bytes = Vec::with_capacity(self.old_groups.len() + 32);
        self.members = 0;
        if !groups.is_empty() {
            write_varint(&mut bytes, groups.len() as u64);
        }
        for group in groups {
            group.encode(&mut bytes);
            self.members += 1 + group.consumers.len() + group.pending.len();
        }
        self.new_groups = Some(bytes);
    }

    /// Number of groups of the stored value.
    pub fn group_count(&self) -> usize {
        let count = read_varint(&mut &self.old_groups[..]).unwrap_or(0);
        usize::try_from(count).unwrap_or(0)
    }
}

/// Inserts a group (G1); returns false if there is one with this name.
pub fn insert<'a>(groups: &mut Vec<Group<'a>>, group: Group<'a>) -> bool {
    match groups.binary_search_by(|known| known.name.compare(&group.name)) {
        Ok(_) => false,
        Err(at) => {
            groups.insert(at, group);
            true
        }
    }
}

fn decode(mut bytes: &[u8], members: usize) -> Option<Vec<Group<'_>>> {
    let number = if bytes.is_empty() {
        0
    } else {
        read_varint(&mut bytes)?
    };
    let mut groups: Vec<Group<'_>> = reserved(number, bytes, LEAST_BYTES[0]);
    let mut counted = 0;
    for _ in 0..number {
        let group = Group::decode(&mut bytes)?;
        if groups
            .last()
            .is_some_and(|last| last.name.compare(&group.name).is_ge())
        {
            return None; // G1
        }
        counted += 1 + group.consumers.len() + group.pending.len();
        groups.push(group);
    }
    (bytes.is_empty() && counted == members).then_some(groups)
}
