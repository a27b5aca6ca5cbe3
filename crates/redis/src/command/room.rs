//! The room that the commands of one step need. It is set aside before the first of them changes
//! anything (`Guard::set_aside`): so a transaction is done completely or refused completely.
//!
//! A command's writes are bounded by its arguments and by the possible length of its keys' values
//! at that time; the commands themselves need no code for this. A bound that is too high wastes a
//! part of a segment; no bound may be too low.

use super::bitfield;
use super::spec::{ONE_KEY, Spec, flag};
use duramen_base::limits::{COLLECTION_ELEMENTS_MAX, VALUE_BYTES_MAX};
use duramen_engine::{Guard, KeyHash, Room, TableId};
use duramen_wire::resp::Args;
use duramen_wire::resp::number::parse_integer;
use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hash, Hasher};

/// The text of the smallest integer.
const INTEGER_BYTES: usize = 20;
/// More bytes than the text of any number: the smallest float has 326 digits.
const NUMBER_BYTES: usize = 400;
/// A collection has at most this many bytes more for an element than the element's arguments.
const ELEMENT_BYTES: usize = 16;
/// Type and number of elements, at the head of a collection.
const HEAD_BYTES: usize = 4;
/// A pending entry of a stream, and what it may add to the one behind it.
const PENDING_BYTES: usize = 56;
/// Least bytes of an entry of a stream, or of one that is pending.
const STREAM_ENTRY_BYTES: usize = 5;
/// Maximum growth of a stream's head, and of a group or a consumer without its name.
const STREAM_BYTES: usize = 128;
/// A score in a sorted set.
const SCORE_BYTES: usize = 9;
/// A HyperLogLog, which may grow to that by any change.
const LEAST_BYTES: usize = 12_304;
/// A collection that is not longer has no more elements than it may have: each takes a byte.
const FEW_ELEMENTS_BYTES: usize = COLLECTION_ELEMENTS_MAX;
/// Key and value of the object that SWAPDB writes (`databases`).
const PLACES: (&[u8], usize) = (b"places", 4 * crate::state::db::DBS);

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

/// A key with its hash.
#[derive(PartialEq, Eq)]
struct Key<'k> {
    hash: KeyHash,
    table: TableId,
    key: &'k [u8],
}

impl Hash for Key<'_> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.hash.hash(state);
    }
}

/// Takes the hash of a [`Key`], which depends on the store's secret, as it is.
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
    /// The hashes of the keys of the current command, in order.
    hashes: &'k [KeyHash],
    /// The current command will run: its user has the rights, and keeps them.
    pub(crate) is_certain: bool,
    pub(crate) room: Room,
    /// Bytes of all values that are written, each as often as it is.
    pub(crate) written_bytes: usize,
    /// A value may become longer than values may be, or a collection have too many elements: then
    /// the command that does it fails.
    pub(crate) may_exceed: bool,
}

/// The length of a value, as far as it is known.
#[derive(Clone, Copy)]
enum Bytes {
    Most(usize),
    /// The longer of this and of what the store has.
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

/// So many keys are compared one by one.
const FEW_VALUES: usize = 8;
/// To read a value that is longer takes some microseconds, for its sum: it is not read twice.
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
            hashes: &[],
            is_certain: false,
            room: Room::default(),
            written_bytes: 0,
            may_exceed: false,
        }
    }

    /// Adds a command that writes. `hashes`: those of its keys, in order. `target`: the table that
    /// COPY and MOVE write to.
    pub(crate) fn add(
        &mut self,
        spec: &Spec,
        (args, hashes): (&Args<'k>, &'k [KeyHash]),
        table: TableId,
        target: Option<TableId>,
    ) {
        debug_assert!(spec.has(flag::WRITE), "{} writes nothing", spec.name);
        self.hashes = if spec.keys == ONE_KEY { hashes } else { &[] };
        let arg = |n: usize| args.get(n).unwrap_or_default();
        let given: usize = args.skip(1).into_iter().map(<[u8]>::len).sum();
        let keys = spec.key_positions(args);
        match spec.name {
            "swapdb" => self.room.put(PLACES.0, PLACES.1),
            "del" | "unlink" if self.is_certain => keys.for_each(|at| {
                self.values.insert(self.key(table, arg(at)), Bytes::Most(0));
                self.room.remove(arg(at));
            }),
            // Without effect on a collection, so it makes no value shorter for certain.
            "del" | "unlink" | "delifeq" | "getdel" | "duramen.remove" | "duramen.mremove" => {
                keys.for_each(|at| self.room.remove(arg(at)));
            }
            "set" if args.len() == 3 && self.is_certain => {
                let bytes = given.min(VALUE_BYTES_MAX);
                let key = self.key(table, arg(1));
                self.values.insert(key, Bytes::Most(bytes));
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
            "restore" => {
                self.may_exceed = true;
                self.put(table, arg(1), VALUE_BYTES_MAX);
            }
            // The result goes into the second key, if there is one.
            "sort" | "georadius" | "georadiusbymember" => {
                if let Some(at) = keys.skip(1).last() {
                    self.may_exceed = true;
                    self.put(table, arg(at), VALUE_BYTES_MAX);
                }
            }
            _ => self.add_text(spec, args, table),
        }
    }

    /// As [`add`](Self::add), for a command that changes a text.
    #[inline]
    fn add_text(&mut self, spec: &Spec, args: &Args<'k>, table: TableId) {
        let arg = |n: usize| args.get(n).unwrap_or_default();
        match spec.name {
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
            "bitfield" => {
                let bytes = self
                    .value_bytes(table, arg(1))
                    .max(bitfield::bytes_of(args));
                self.put(table, arg(1), bytes);
            }
            "pfadd" => {
                let bytes = self.value_bytes(table, arg(1)).max(LEAST_BYTES);
                self.put(table, arg(1), bytes);
            }
            _ => self.add_collections(spec, args, table),
        }
    }

    /// As [`add`](Self::add), for a command that changes collections, or stores a combination of
    /// several values.
    fn add_collections(&mut self, spec: &Spec, args: &Args<'k>, table: TableId) {
        let arg = |n: usize| args.get(n).unwrap_or_default();
        let keys: Vec<usize> = spec.key_positions(args).collect();
        if let Some(more) = growth(spec.name, args) {
            for at in keys {
                let bytes = self.value_bytes(table, arg(at)) + more;
                self.may_exceed |= more > 0 && bytes > FEW_ELEMENTS_BYTES;
                self.put(table, arg(at), bytes);
            }
            return;
        }
        if matches!(spec.name, "xreadgroup" | "xautoclaim") {
            for at in keys {
                let bytes = self.value_bytes(table, arg(at));
                let more = counted_stream_bytes(spec.name, args, bytes);
                self.may_exceed |= bytes + more > FEW_ELEMENTS_BYTES;
                self.put(table, arg(at), bytes + more);
            }
            return;
        }
        let values = keys.iter().map(|at| self.value_bytes(table, arg(*at)));
        let values: usize = values.sum();
        if spec.name.ends_with("store") || matches!(spec.name, "bitop" | "pfmerge") {
            // A score may take 9 bytes instead of 1.
            let target = keys.first().copied().unwrap_or_default();
            self.may_exceed |= 2 * values > FEW_ELEMENTS_BYTES;
            return self.put(table, arg(target), 9 * values + LEAST_BYTES);
        }
        let given: usize = args.skip(1).into_iter().map(<[u8]>::len).sum();
        let bytes = values + given + ELEMENT_BYTES * args.len() + NUMBER_BYTES;
        self.may_exceed |= bytes > FEW_ELEMENTS_BYTES;
        keys.iter().for_each(|at| self.put(table, arg(*at), bytes));
    }

    /// Maximum length that the value of a key may have by now, without the head of a collection.
    fn value_bytes(&mut self, table: TableId, key: &'k [u8]) -> usize {
        self.bytes_of(self.key(table, key))
    }

    /// A key of the current command.
    fn key(&self, table: TableId, key: &'k [u8]) -> Key<'k> {
        let hash = match self.hashes {
            [only] => *only,
            _ => self.guard.hash(key),
        };
        Key { hash, table, key }
    }

    fn bytes_of(&mut self, key: Key<'k>) -> usize {
        let least = match self.values.get(&key) {
            Some(Bytes::Most(bytes)) => return bytes,
            Some(Bytes::AtLeast(bytes)) => bytes,
            None => 0,
        };
        let Ok(found) = self.guard.read(key.table, key.hash, key.key) else {
            return least; // the command that uses it reports the error
        };
        let bytes = found.map_or(0, |object| object.value.len()).max(least);
        if bytes > LONG_BYTES {
            self.values.insert(key, Bytes::Most(bytes));
        }
        bytes
    }

    /// The command may have no effect: then the value is as long as before.
    fn put(&mut self, table: TableId, key: &'k [u8], bytes: usize) {
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
}

/// Maximum number of bytes by which a command makes each of its collections longer, without their
/// heads; `None`: that depends on the values.
fn growth(name: &str, args: &Args<'_>) -> Option<usize> {
    let arg = |n: usize| text_bytes(args.get(n).unwrap_or_default());
    let all = || args.skip(2).into_iter().map(text_bytes).sum::<usize>();
    Some(match name {
        "hdel" | "lpop" | "rpop" | "ltrim" | "lrem" | "lmpop" | "srem" | "spop" | "zrem"
        | "zpopmin" | "zpopmax" | "zmpop" | "zremrangebyrank" | "zremrangebyscore"
        | "zremrangebylex" | "blpop" | "brpop" | "blmpop" | "bzpopmin" | "bzpopmax" | "bzmpop" => 0,
        "sadd" | "hset" | "hmset" | "hsetnx" | "lpush" | "rpush" | "lpushx" | "rpushx" => all(),
        "lset" | "smove" => arg(3),
        "linsert" => arg(4),
        "hincrby" => arg(2) + text_bytes(&[b'0'; INTEGER_BYTES]),
        "hincrbyfloat" => arg(2) + text_bytes(&[b'0'; NUMBER_BYTES]),
        // Fields may become the stream's common ones too.
        "xadd" => 2 * all() + STREAM_BYTES,
        "xdel" | "xtrim" | "xsetid" | "xack" => STREAM_BYTES,
        "xgroup|create" | "xgroup|setid" | "xgroup|destroy" => arg(3) + STREAM_BYTES,
        "xgroup|createconsumer" | "xgroup|delconsumer" => arg(4) + STREAM_BYTES,
        "xclaim" => arg(3) + STREAM_BYTES + args.len() * PENDING_BYTES,
        "zadd" | "zincrby" => scored_bytes(args, name == "zincrby"),
        "geoadd" => all() + SCORE_BYTES * (args.len() / 3),
        "rpoplpush" | "lmove" | "brpoplpush" | "blmove" if args.get(1) == args.get(2) => 0,
        _ => return None,
    })
}

/// The growth of a stream of `bytes` by XREADGROUP and XAUTOCLAIM: by as many pending entries as
/// COUNT says, or as there may be.
fn counted_stream_bytes(name: &str, args: &Args<'_>, bytes: usize) -> usize {
    let all = bytes / STREAM_ENTRY_BYTES;
    let mut most = all;
    let mut at = if name == "xautoclaim" { 6 } else { 1 };
    while let Some(option) = args.get(at) {
        at += match option.to_ascii_lowercase().as_slice() {
            b"count" => {
                let count = args.get(at + 1).and_then(parse_integer).unwrap_or(0);
                let count = usize::try_from(count).unwrap_or(0);
                // The last one counts.
                most = if count > 0 { all.min(count) } else { all };
                2
            }
            b"block" => 2,
            b"group" => 3,
            b"streams" => break,
            _ => 1,
        };
    }
    let names: usize = args.skip(1).into_iter().map(text_bytes).sum();
    names + STREAM_BYTES + most * PENDING_BYTES
}

/// Maximum number of bytes of a string in a collection, with its fingerprint.
fn text_bytes(text: &[u8]) -> usize {
    let length_bytes = match text.len() {
        0..64 => 1,
        64..8192 => 2,
        _ => 3,
    };
    text.len() + length_bytes + 1
}

/// The growth by scores and members in turn at the end of a request; options are before them.
/// `adds`: the scores are added to those of the set, and a sum may be longer than both.
fn scored_bytes(args: &Args<'_>, adds: bool) -> usize {
    let is_incr = |arg: &[u8]| arg.eq_ignore_ascii_case(b"incr");
    let adds = adds || args.skip(2).into_iter().any(is_incr);
    let bytes = args.skip(2).into_iter().enumerate().map(|(n, arg)| {
        let is_member = (args.len() - 3 - n).is_multiple_of(2);
        match parse_integer(arg) {
            _ if is_member => text_bytes(arg),
            Some(_) if !adds => arg.len().min(SCORE_BYTES),
            _ => SCORE_BYTES,
        }
    });
    bytes.sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::lookup::Resolved;
    use crate::table::COMMANDS;
    use duramen_base::random::Random;
    use duramen_types::table::Hash;
    use duramen_types::{Part, Parts, Sorted, Text};

    #[derive(Default)]
    struct Built(Vec<u8>);

    impl<'p> Parts<'p> for Built {
        fn get(&self, _: Part) -> Option<&'p [u8]> {
            None
        }

        fn put(&mut self, _: Part) -> &mut Vec<u8> {
            &mut self.0
        }

        fn remove(&mut self, _: Part) {}
    }

    /// A random request that changes the stream `k`.
    fn stream_request(random: &mut Random, last: &mut u64) -> String {
        *last += random.below(3);
        let id = random.below(*last + 1);
        let texts = ["x", "17", "a longer value", "-1", "2305843009213693951"];
        let mut text = || random.pick(&texts).copied().unwrap_or_default();
        let (f, v) = (text(), text());
        let group = ["g", "another-group"][random.index(2)];
        let consumer = format!("c{}", random.below(300));
        let templates = [
            format!("XADD k {last}-{id} {f} {v}"),
            format!("XADD k MAXLEN 40 {last}-{id} {f} {v} {v} {f}"),
            format!("XADD k {last}000000000-{id} same {v}"),
            format!("XDEL k {id}-1 {id}"),
            format!("XTRIM k MINID {id}"),
            format!("XSETID k {last}000-9 ENTRIESADDED 1844674407370955161"),
            format!("XGROUP CREATE k {group} {id}"),
            format!("XGROUP SETID k {group} 0 ENTRIESREAD 9223372036854775807"),
            format!("XGROUP CREATECONSUMER k {group} {consumer}"),
            format!("XGROUP DELCONSUMER k {group} {consumer}"),
            format!("XREADGROUP GROUP {group} {consumer} COUNT 3 STREAMS k >"),
            format!("XREADGROUP GROUP {group} {consumer} STREAMS k >"),
            format!("XREADGROUP GROUP {group} {consumer} NOACK COUNT 1 STREAMS k >"),
            format!("XREADGROUP GROUP {group} {consumer} STREAMS k {id}"),
            format!("XACK k {group} {id}-1 {id}-2"),
            format!(
                "XCLAIM k {group} {consumer} 0 {id}-1 {id} FORCE TIME {id} RETRYCOUNT 99999999"
            ),
            format!("XAUTOCLAIM k {group} {consumer} 0 {id}"),
            format!("XAUTOCLAIM k {group} {consumer} 0 0 COUNT 2 JUSTID"),
        ];
        random.pick(&templates).cloned().unwrap_or_default()
    }

    #[test]
    fn few_and_many_values_are_found_alike() {
        let mut session = crate::executor::tests::Server::session(1);
        let guard = session.executor.session().expect("a store").pin();
        let names: Vec<String> = (0..3 * FEW_VALUES).map(|n| format!("k{n}")).collect();
        let key = |n: usize, table: u32| Key {
            hash: guard.hash(names[n].as_bytes()),
            table: TableId(table),
            key: names[n].as_bytes(),
        };
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

    /// The bound of an APPEND must include what the store has, also behind a command that needs no
    /// reading.
    #[test]
    fn a_value_that_may_have_stayed_counts() {
        let mut session = crate::executor::tests::Server::session(1);
        session.ask_bytes(&[b"SET", b"k", &[b'x'; 5_000]]);
        let guard = session.executor.session().expect("a store").pin();
        let mut planner = Planner::new(&guard);
        planner.is_certain = true;
        let add = |planner: &mut Planner<'_, '_, 'static>, request: &'static str| {
            let requests = Box::leak(Box::new(crate::executor::tests::parsed(request.as_bytes())));
            let args = requests.args(0, request.as_bytes());
            let Resolved::Command(spec) = COMMANDS.resolve(&args) else {
                panic!("{request}");
            };
            let hashes = Box::leak(Box::new([guard.hash(b"k")]));
            planner.add(spec, (&args, hashes), TableId::DEFAULT, None);
            planner.value_bytes(TableId::DEFAULT, b"k")
        };
        assert_eq!(add(&mut planner, "SETNX k abc\r\n"), 5_000);
        assert_eq!(add(&mut planner, "INCR k\r\n"), 5_000);
        assert_eq!(add(&mut planner, "SETRANGE k 5990 0123456789\r\n"), 6_000);
        assert_eq!(add(&mut planner, "SET k abc\r\n"), "kabc".len());
        assert_eq!(add(&mut planner, "INCR k\r\n"), INTEGER_BYTES);
    }

    #[test]
    fn no_stream_grows_beyond_its_bound() {
        let mut session = crate::executor::tests::Server::session(1);
        let (mut random, mut last) = (Random::new(5), 1);
        session.ask("XGROUP CREATE k g 0 MKSTREAM");
        let mut before = session.number("MEMORY USAGE k");
        for _ in 0..20_000 {
            let request = stream_request(&mut random, &mut last);
            let input = format!("{request}\r\n");
            let requests = crate::executor::tests::parsed(input.as_bytes());
            let args = requests.args(0, input.as_bytes());
            let name = match COMMANDS.resolve(&args) {
                Resolved::Command(spec) => spec.name,
                _ => panic!("{request}"),
            };
            let more = growth(name, &args);
            let more = more.unwrap_or_else(|| counted_stream_bytes(name, &args, before as usize));
            session.ask(&request);
            let after = session.number("MEMORY USAGE k");
            let padding = 8;
            assert!(
                after as usize <= before as usize + more + padding,
                "{request}: {before}, {after}"
            );
            before = after;
            session.server.advance(random.below(100_000));
        }
    }

    /// The bound of an element holds for what is really written.
    #[test]
    fn no_element_is_longer_than_its_bound() {
        let long = [b'x'; 70_000];
        let numbers = [
            "0",
            "-9",
            "99",
            "2305843009213693951",
            "-4611686018427387904",
        ];
        let texts = [0, 1, 63, 64, 8191, 8192, 70_000].map(|bytes| &long[..bytes]);
        for text in numbers.map(str::as_bytes).into_iter().chain(texts) {
            let (mut built, mut hash) = (Built::default(), Hash::default());
            hash.insert(Text::of(text), Text::of(text));
            hash.store(&mut built).unwrap();
            assert!(
                built.0.len() <= HEAD_BYTES + 2 * text_bytes(text),
                "{text:.40?}"
            );
            for score in [0.1, 9e15, -9e15, f64::INFINITY, 1.0] {
                let (mut built, mut set) = (Built::default(), Sorted::default());
                set.set(Text::of(text), score);
                set.store(&mut built).unwrap();
                let most = HEAD_BYTES + text_bytes(text) + SCORE_BYTES;
                assert!(built.0.len() <= most, "{text:.40?} {score}");
            }
        }
    }
}
