//! The room that the commands of one step need. It is set aside before the first of them changes
//! anything (`Guard::set_aside`): so a transaction is done completely or refused completely.
//!
//! A command's writes are bounded by its arguments and by the possible length of its keys' values
//! at that time (`growth`); the commands themselves need no code for this. A bound that is too high
//! wastes a part of a segment; no bound may be too low.

use super::key::Key;
use duramen_base::limits::VALUE_BYTES_MAX;
use duramen_engine::{Guard, KeyHash, Room, TableId};
use duramen_wire::resp::Args;
use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

/// Type and number of elements, at the head of a collection.
pub(crate) const HEAD_BYTES: usize = 4;

/// Room for MSET and MSETNX: keys and values in turn from argument 1 on.
pub(crate) fn of_pairs(args: &Args<'_>) -> Room {
    let mut room = Room::default();
    let mut rest = args.skip(1).into_iter();
    while let (Some(key), Some(value)) = (rest.next(), rest.next()) {
        room.put(key, value.len());
    }
    room
}

/// Room for DEL of the keys among the arguments.
pub(crate) fn of_removals(args: &Args<'_>) -> Room {
    let mut room = Room::default();
    args.skip(1).into_iter().for_each(|key| room.remove(key));
    room
}

/// A hasher that takes the hash of a [`Key`] as it is: the hash depends on the store's secret
/// already.
#[derive(Default)]
struct KnownHash(u64);

impl Hasher for KnownHash {
    fn write(&mut self, bytes: &[u8]) {
        bytes
            .iter()
            .for_each(|byte| self.write_u64(u64::from(*byte)));
    }

    fn write_u64(&mut self, hash: u64) {
        self.0 = self.0.rotate_left(8) ^ hash;
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

/// Adds up the room of a transaction's commands, in order. Their keys are locked.
pub(crate) struct Planner<'p, 'g, 'k> {
    guard: &'p Guard<'g>,
    values: Values<'k>,
    /// The hash of the only key of the current command, if it has one.
    hash: Option<KeyHash>,
    /// Whether the current command will run for certain: its user has the rights, and keeps them.
    pub(crate) is_certain: bool,
    pub(crate) room: Room,
    /// Bytes of all values that are written; a value counts as often as it is written.
    pub(crate) written_bytes: usize,
    /// Whether a value may become longer than values may be, or a collection may get too many
    /// elements: the command that does it then fails.
    pub(crate) may_exceed: bool,
}

/// The length of a value, as far as it is known.
#[derive(Clone, Copy)]
enum Bytes {
    Most(usize),
    /// The longer of this length and of that in the store.
    AtLeast(usize),
}

/// Maximum length that values may have by now, where earlier commands may have changed them. Only a
/// change that takes effect for certain makes a value shorter.
#[derive(Default)]
struct Values<'k> {
    /// The first [`FEW_VALUES`].
    few: Vec<(Key<'k>, Bytes)>,
    /// All of them, if there are more.
    many: HashMap<Key<'k>, Bytes, BuildHasherDefault<KnownHash>>,
}

/// Up to so many keys are compared one by one.
const FEW_VALUES: usize = 8;
/// Reading a longer value takes some microseconds, because its checksum is computed: such a value
/// is not read twice.
const LONG_BYTES: usize = 16 << 10;

impl<'k> Values<'k> {
    fn get(&self, key: &Key<'k>) -> Option<Bytes> {
        if !self.many.is_empty() {
            return self.many.get(key).copied();
        }
        let found = self.few.iter().find(|(known, _)| known == key);
        found.map(|(_, bytes)| *bytes)
    }

    fn insert(&mut self, key: Key<'k>, bytes: Bytes) {
        if self.many.is_empty() {
            if let Some((_, known)) = self.few.iter_mut().find(|(known, _)| *known == key) {
                *known = bytes;
                return;
            }
            if self.few.len() < FEW_VALUES {
                return self.few.push((key, bytes));
            }
            self.many.extend(self.few.drain(..));
        }
        self.many.insert(key, bytes);
    }
}

impl<'p, 'g, 'k> Planner<'p, 'g, 'k> {
    pub(crate) fn new(guard: &'p Guard<'g>) -> Planner<'p, 'g, 'k> {
        Planner {
            guard,
            values: Values::default(),
            hash: None,
            is_certain: false,
            room: Room::default(),
            written_bytes: 0,
            may_exceed: false,
        }
    }

    /// Begins the next command. `hash` is the hash of its only key, if it has one.
    pub(super) fn begin(&mut self, hash: Option<KeyHash>) {
        self.hash = hash;
    }

    /// Maximum length that the value of a key may have by now, without the head of a collection.
    pub(crate) fn value_bytes(&mut self, table: TableId, key: &'k [u8]) -> usize {
        self.bytes_of(self.key(table, key))
    }

    /// The key, in a table, of the current command.
    fn key(&self, table: TableId, key: &'k [u8]) -> Key<'k> {
        let hash = self.hash.unwrap_or_else(|| self.guard.hash(key));
        Key {
            table,
            hash,
            bytes: key,
        }
    }

    fn bytes_of(&mut self, key: Key<'k>) -> usize {
        let least = match self.values.get(&key) {
            Some(Bytes::Most(bytes)) => return bytes,
            Some(Bytes::AtLeast(bytes)) => bytes,
            None => 0,
        };
        let Ok(found) = self.guard.read(key.table, key.hash, key.bytes) else {
            return least; // the command that uses it reports the error
        };
        let bytes = found.map_or(0, |object| object.value.len()).max(least);
        if bytes > LONG_BYTES {
            self.values.insert(key, Bytes::Most(bytes));
        }
        bytes
    }

    /// Notes that a command may set a value of this length. The command may have no effect: then
    /// the value is as long as before.
    pub(crate) fn put(&mut self, table: TableId, key: &'k [u8], bytes: usize) {
        self.may_exceed |= bytes > VALUE_BYTES_MAX;
        let bytes = bytes.min(VALUE_BYTES_MAX);
        self.written_bytes += bytes;
        let at = self.key(table, key);
        let known = match self.values.get(&at) {
            Some(Bytes::Most(known)) => Bytes::Most(known.max(bytes)),
            Some(Bytes::AtLeast(known)) => Bytes::AtLeast(known.max(bytes)),
            None => Bytes::AtLeast(bytes),
        };
        self.values.insert(at, known);
        self.room
            .put(key, (bytes + HEAD_BYTES).min(VALUE_BYTES_MAX));
    }

    /// Notes that a command sets a value of this length for certain.
    pub(crate) fn put_certainly(&mut self, table: TableId, key: &'k [u8], bytes: usize) {
        let bytes = bytes.min(VALUE_BYTES_MAX);
        self.values.insert(self.key(table, key), Bytes::Most(bytes));
        self.room.put(key, bytes);
    }

    /// Notes that a command may remove a key.
    pub(crate) fn remove(&mut self, key: &'k [u8]) {
        self.room.remove(key);
    }

    /// Notes that a command removes a key for certain.
    pub(crate) fn remove_certainly(&mut self, table: TableId, key: &'k [u8]) {
        self.values.insert(self.key(table, key), Bytes::Most(0));
        self.room.remove(key);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_and_many_values_are_found_alike() {
        let mut session = crate::executor::tests::Server::session(1);
        let guard = session.executor.session().expect("a store").pin();
        let names: Vec<String> = (0..3 * FEW_VALUES).map(|n| format!("k{n}")).collect();
        let key = |n: usize, table: u32| Key::of(&guard, TableId(table), names[n].as_bytes());
        let mut values = Values::default();
        for n in 0..names.len() {
            values.insert(key(n, 0), Bytes::Most(1));
            values.insert(key(n, 0), Bytes::Most(n));
            for before in 0..names.len() {
                let found = values.get(&key(before, 0));
                let is_right = match found {
                    Some(Bytes::Most(bytes)) => before <= n && bytes == before,
                    Some(Bytes::AtLeast(_)) => false,
                    None => before > n,
                };
                assert!(is_right, "{before} of {n}");
                assert!(values.get(&key(before, 1)).is_none());
            }
        }
    }
}
