//! Twins: a list and a hash under two keys of one slot, which a client that follows redirections
//! changes together, as a transaction or a script does. A key of a history stands for both.
//!
//! A write appends its value to the list, which keeps the last few, and puts it into the hash. Both
//! depend on the values that were there before.
//!
//! - TW1: both keys are there or neither, and the hash has the list's last value and the number of
//!   writes since both were absent, which the list's first item has as well.

use super::client::{key_of, read_value, value_of};
use super::history::{Action, Found};
use super::world::World;
use duramen_base::ids::TableId;
use duramen_engine::{Error, Guard, KeyHash, Object, Room};
use duramen_types::{List, Part, Parts, Table, Text};

/// The number of the first key of a history that stands for twins: above all others.
pub(super) const FIRST: u64 = 500;
/// Values that the list keeps, behind the number of writes.
const KEPT: usize = 2;

/// Whether a key of a history stands for twins.
pub(super) fn is_twin(key: u64) -> bool {
    (FIRST..FIRST + 100).contains(&key)
}

/// The second key, in the slot of the first.
pub(super) fn twin_of(key: &[u8]) -> Vec<u8> {
    [b"twin{", key, b"}"].concat()
}

/// The state of twins: the number of writes, and the last values.
type State = Option<(u64, Vec<Vec<u8>>)>;

/// Why there is no result.
pub(super) enum Failure {
    /// Nothing was changed.
    Engine(Error),
    /// TW1 does not hold.
    Torn(String),
}

impl From<Error> for Failure {
    fn from(error: Error) -> Failure {
        Failure::Engine(error)
    }
}

/// The part of a collection that is stored.
#[derive(Default)]
struct Root(Vec<u8>);

impl<'p> Parts<'p> for Root {
    fn get(&self, _: Part) -> Option<&'p [u8]> {
        None
    }

    fn put(&mut self, _: Part) -> &mut Vec<u8> {
        &mut self.0
    }

    fn remove(&mut self, _: Part) {}
}

fn torn<T>(why: &str) -> Result<T, Failure> {
    Err(Failure::Torn(why.to_owned()))
}

/// Reads both collections.
fn read(first: Option<&Object<'_>>, second: Option<&Object<'_>>) -> Result<State, Failure> {
    let (first, second) = match (first, second) {
        (None, None) => return Ok(None),
        (Some(first), Some(second)) if first.is_typed && second.is_typed => (first, second),
        _ => return torn("one of the twins is there, or has no type"),
    };
    let (Ok(list), Ok(hash)) = (
        List::of(Some(first.value)),
        Table::<'_, Text<'_>>::of(Some(second.value)),
    ) else {
        return torn("a collection cannot be decoded");
    };
    let field = |name: &[u8]| hash.get(&Text::of(name));
    let (Some([count, rest @ ..]), Some(last)) = (list.items.get(..), list.items.last()) else {
        return torn("the list is empty");
    };
    let is_equal = field(b"last") == Some(*last) && field(b"count") == Some(*count);
    match count {
        Text::Integer(number) if is_equal && !rest.is_empty() => {
            let items = rest.iter().map(|item| item.bytes().to_vec()).collect();
            Ok(Some((*number as u64, items)))
        }
        _ => torn("the list and the hash differ"),
    }
}

/// The bytes of both collections for a state.
fn encode((count, items): &(u64, Vec<Vec<u8>>)) -> [Vec<u8>; 2] {
    let count = Text::Integer(*count as i64);
    let texts = items.iter().map(|item| Text::of(item));
    let list = List {
        items: std::iter::once(count).chain(texts).collect(),
    };
    let mut hash = Table::<'_, Text<'_>>::default();
    hash.insert(Text::of(b"count"), count);
    let last = items.last().expect("a write has a value");
    hash.insert(Text::of(b"last"), Text::of(last));
    let [mut first, mut second] = [Root::default(), Root::default()];
    list.store(&mut first).expect("a short list");
    hash.store(&mut second).expect("a small hash");
    [first.0, second.0]
}

/// Executes an operation on both keys in one step.
pub(super) fn execute(
    guard: &mut Guard<'_>,
    table: TableId,
    (key, action, value_bytes): (u64, Action, usize),
) -> Result<Found, Failure> {
    let first = key_of(key);
    let keys = [twin_of(&first), first];
    let hashes = keys.each_ref().map(|key| guard.hash(key));
    guard.lock_keys(&hashes.map(|hash| (table, hash)))?;
    let done = execute_locked(guard, table, (&keys, hashes), (action, value_bytes));
    guard.unlock_keys();
    done
}

fn execute_locked(
    guard: &mut Guard<'_>,
    table: TableId,
    (keys, hashes): (&[Vec<u8>; 2], [KeyHash; 2]),
    (action, value_bytes): (Action, usize),
) -> Result<Found, Failure> {
    let [second, first] = [0, 1].map(|n| guard.read(table, hashes[n], &keys[n]));
    let (second, first) = (second?, first?);
    let state = read(first.as_ref(), second.as_ref())?;
    let version = first.map_or(0, |object| object.version);
    let Action::Write(value) = action else {
        return read_or_remove(guard, table, (keys, hashes), (action, version));
    };
    let (count, mut items) = state.unwrap_or_default();
    items.push(value_of(value, value_bytes));
    items.drain(..items.len().saturating_sub(KEPT));
    let [first, second] = encode(&(count + 1, items));
    let values = [second, first];
    let mut room = Room::default();
    for (key, value) in keys.iter().zip(&values) {
        room.put(key, value.len());
    }
    guard.set_aside(room)?;
    let mut version = 0;
    for n in [0, 1] {
        let written = guard.write_as(table, hashes[n], &keys[n], (&values[n], true), None);
        match written {
            Ok(outcome) => version = outcome.after.unwrap_or(0),
            Err(error) => return torn(&format!("room was set aside, and a write fails: {error}")),
        }
    }
    Ok(Found::Written { version })
}

/// A read or a removal. `version`: that of the first key.
fn read_or_remove(
    guard: &mut Guard<'_>,
    table: TableId,
    (keys, hashes): (&[Vec<u8>; 2], [KeyHash; 2]),
    (action, version): (Action, u64),
) -> Result<Found, Failure> {
    if version == 0 {
        return Ok(Found::Absent);
    }
    if action == Action::Remove {
        for n in [0, 1] {
            guard.remove(table, hashes[n], &keys[n])?;
        }
        return Ok(Found::Removed { version });
    }
    let object = guard.read(table, hashes[1], &keys[1])?;
    let list = object.and_then(|object| List::of(Some(object.value)).ok());
    let last = list.and_then(|list| list.items.last().map(|item| item.bytes().to_vec()));
    match last.and_then(|last| read_value(&last, false)) {
        Some(value) => Ok(Found::Value { value, version }),
        None => torn("the list has something else"),
    }
}

impl World {
    /// The next operation of a client on twins.
    pub(super) fn some_twin_action(&mut self) -> (u64, Action) {
        let key = FIRST + self.random.below(self.plan.twins);
        let action = match self.random.below(10) {
            0..4 => Action::Read,
            4 => Action::Remove,
            _ => Action::Write(self.new_value()),
        };
        (key, action)
    }
}
