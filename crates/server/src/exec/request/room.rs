//! The room that the commands of one step need. It is set aside before the first of them changes
//! anything (`Guard::set_aside`): so a transaction is done completely or refused completely.
//!
//! A command's writes are bounded by its arguments and by the possible length of its keys' values
//! at that time; the commands themselves need no code for this. A bound that is too high wastes a
//! part of a segment; no bound may be too low.

use super::spec::{Spec, flag};
use duramen_base::limits::VALUE_BYTES_MAX;
use duramen_engine::{Guard, Room, TableId};
use duramen_wire::resp::Args;
use duramen_wire::resp::number::parse_integer;
use std::collections::HashMap;

/// The text of the smallest integer.
const INTEGER_BYTES: usize = 20;
/// More bytes than the text of any number: the smallest float has 326 digits.
const NUMBER_BYTES: usize = 400;
/// A collection has at most this many bytes more for an element than the element's arguments.
const ELEMENT_BYTES: usize = 16;
/// A HyperLogLog, which may grow to that by any change; more than any number has.
const LEAST_BYTES: usize = 12_304 + NUMBER_BYTES;
/// Key and value of the object that SWAPDB writes (`databases`).
const PLACES: (&[u8], usize) = (b"places", 4 * crate::shared::commands::DBS);

/// Room for MSET and MSETNX: keys and values in turn from argument 1 on.
pub(crate) fn of_pairs(args: &Args<'_>) -> Room {
    let mut room = Room::default();
    let mut rest = args.skip(1).into_iter();
    while let (Some(key), Some(value)) = (rest.next(), rest.next()) {
        room.put(key, value.len());
    }
    room
}

/// Room for DEL.
pub(crate) fn of_removals(args: &Args<'_>) -> Room {
    let mut room = Room::default();
    args.skip(1).into_iter().for_each(|key| room.remove(key));
    room
}

/// Adds up the room of a transaction's commands, in order. Their keys are locked.
pub(crate) struct Planner<'p, 'g, 'k> {
    guard: &'p Guard<'g>,
    /// Maximum length that values may have by now, where earlier commands may have changed them.
    /// Only a change that takes effect for certain makes a value shorter.
    values: HashMap<(TableId, &'k [u8]), usize>,
    pub(crate) room: Room,
}

impl<'p, 'g, 'k> Planner<'p, 'g, 'k> {
    pub(crate) fn new(guard: &'p Guard<'g>) -> Planner<'p, 'g, 'k> {
        Planner {
            guard,
            values: HashMap::new(),
            room: Room::default(),
        }
    }

    /// `target`: the table that COPY and MOVE write to.
    pub(crate) fn add(
        &mut self,
        spec: &Spec,
        args: &Args<'k>,
        table: TableId,
        target: Option<TableId>,
    ) {
        if !spec.has(flag::WRITE) {
            return;
        }
        let arg = |n: usize| args.get(n).unwrap_or_default();
        let given: usize = args.skip(1).into_iter().map(<[u8]>::len).sum();
        let keys = spec.key_positions(args);
        match spec.name {
            "swapdb" => self.room.put(PLACES.0, PLACES.1),
            "del" | "unlink" | "getdel" => keys.for_each(|at| {
                self.values.insert((table, arg(at)), 0);
                self.room.remove(arg(at));
            }),
            "duramen.remove" | "duramen.mremove" => keys.for_each(|at| self.room.remove(arg(at))),
            "set" | "getset" if args.len() == 3 => {
                let bytes = given.min(VALUE_BYTES_MAX);
                self.values.insert((table, arg(1)), bytes);
                self.room.put(arg(1), bytes);
            }
            "mset" | "msetnx" | "duramen.mwrite" => {
                keys.for_each(|at| self.put(table, arg(at), arg(at + 1).len()));
            }
            "set" | "setnx" | "setex" | "psetex" | "getset" | "duramen.write" => {
                self.put(table, arg(1), given);
            }
            "rename" | "renamenx" => {
                let bytes = self.value_bytes(table, arg(1));
                self.put(table, arg(2), bytes);
                self.room.remove(arg(1));
            }
            "copy" => {
                let bytes = self.value_bytes(table, arg(1));
                self.put(target.unwrap_or(table), arg(2), bytes);
            }
            "move" => {
                let bytes = self.value_bytes(table, arg(1));
                self.put(target.unwrap_or(table), arg(1), bytes);
                self.room.remove(arg(1));
            }
            "setrange" => {
                let offset = parse_integer(arg(2)).and_then(|offset| usize::try_from(offset).ok());
                let end = offset.unwrap_or(0).saturating_add(arg(3).len());
                let bytes = self.value_bytes(table, arg(1)).max(end);
                self.put(table, arg(1), bytes);
            }
            "incr" | "decr" | "incrby" | "decrby" | "duramen.incrby" => {
                self.put(table, arg(1), INTEGER_BYTES);
            }
            "incrbyfloat" | "duramen.incrbyfloat" => self.put(table, arg(1), NUMBER_BYTES),
            "append" => {
                let bytes = self.value_bytes(table, arg(1)) + arg(2).len();
                self.put(table, arg(1), bytes);
            }
            "expire" | "pexpire" | "expireat" | "pexpireat" | "persist" | "getex" => {
                let bytes = self.value_bytes(table, arg(1));
                self.put(table, arg(1), bytes);
            }
            "setbit" => {
                let bit = parse_integer(arg(2)).and_then(|bit| usize::try_from(bit).ok());
                let bytes = self
                    .value_bytes(table, arg(1))
                    .max(bit.unwrap_or(0) / 8 + 1);
                self.put(table, arg(1), bytes);
            }
            "bitfield" | "restore" => self.put(table, arg(1), VALUE_BYTES_MAX),
            // The result goes into the second key, if there is one.
            "sort" | "georadius" | "georadiusbymember" => {
                if let Some(at) = keys.skip(1).last() {
                    self.put(table, arg(at), VALUE_BYTES_MAX);
                }
            }
            name => {
                let keys: Vec<usize> = keys.collect();
                let values = keys.iter().map(|at| self.value_bytes(table, arg(*at)));
                let values: usize = values.sum();
                if name.ends_with("store") || matches!(name, "bitop" | "pfmerge") {
                    // A score may take 9 bytes instead of 1.
                    let target = keys.first().copied().unwrap_or_default();
                    return self.put(table, arg(target), 9 * values + LEAST_BYTES);
                }
                let bytes = values + given + ELEMENT_BYTES * args.len() + LEAST_BYTES;
                keys.iter().for_each(|at| self.put(table, arg(*at), bytes));
            }
        }
    }

    /// Maximum length that the value of a key may have by now.
    fn value_bytes(&self, table: TableId, key: &'k [u8]) -> usize {
        if let Some(bytes) = self.values.get(&(table, key)) {
            return *bytes;
        }
        match self.guard.read(table, self.guard.hash(key), key) {
            Ok(found) => found.map_or(0, |object| object.value.len()),
            Err(_) => 0, // the command that uses it reports the error
        }
    }

    /// The command may have no effect: then the value is as long as before.
    fn put(&mut self, table: TableId, key: &'k [u8], bytes: usize) {
        let bytes = bytes.min(VALUE_BYTES_MAX);
        let known = self.value_bytes(table, key).max(bytes);
        self.values.insert((table, key), known);
        self.room.put(key, bytes);
    }
}
