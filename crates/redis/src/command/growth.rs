//! Bounds of what a command writes, by its arguments: EXEC sets that room aside before its first
//! command (`room`).

use super::keys::Keys;
use super::room::Planner;
use duramen_base::limits::{COLLECTION_ELEMENTS_MAX, VALUE_BYTES_MAX};
use duramen_engine::{KeyHash, TableId};
use duramen_wire::resp::Args;
use duramen_wire::resp::number::parse_integer;

/// The text of the smallest integer.
pub(crate) const INTEGER_BYTES: usize = 20;
/// More bytes than the text of any number: the smallest float has 326 digits.
pub(crate) const NUMBER_BYTES: usize = 400;
/// Maximum bytes that a collection needs for an element beside the bytes of the element's
/// arguments.
const ELEMENT_BYTES: usize = 16;
/// A score in a sorted set.
pub(crate) const SCORE_BYTES: usize = 9;
/// Bytes of a HyperLogLog: any change of one may make it this long.
pub(crate) const LEAST_BYTES: usize = 12_304;
/// A collection of at most so many bytes cannot have too many elements: each element takes a byte.
const FEW_ELEMENTS_BYTES: usize = COLLECTION_ELEMENTS_MAX;

/// A bound of the bytes that the values of a command's keys may have afterwards. A bound that is
/// too high wastes a part of a segment; one that is too low is a defect.
#[derive(Clone, Copy)]
pub(crate) enum Growth {
    /// Values change in place or become shorter.
    Nothing,
    /// The keys go.
    Removes,
    /// As `Removes`, but the command may have no effect.
    MayRemove,
    /// The value is this long at most, whatever it was.
    Sets(fn(&Args<'_>) -> usize),
    /// Each key gets the argument behind it.
    SetsPairs,
    /// The value is this long at most; the second argument is its longest length now.
    To(fn(&Args<'_>, usize) -> usize),
    /// Each collection grows by so much at most; the second argument is its longest length now.
    By(fn(&Args<'_>, usize) -> usize),
    /// Elements go from a collection to another one, or within one.
    Moves,
    /// The first key gets a combination of all values.
    Combines,
    /// A value of any length, for the second key if there is one.
    Stores,
    /// The command's own plan.
    Own(for<'p, 'g, 'a, 'k> fn(&mut Planner<'p, 'g, 'k>, &Planned<'a, 'k>)),
}

/// A command that will write, as its bound sees it.
pub(crate) struct Planned<'a, 'k> {
    pub(crate) args: &'a Args<'k>,
    pub(crate) keys: &'a Keys,
    /// Those of its keys, in order.
    pub(crate) hashes: &'a [KeyHash],
    pub(crate) table: TableId,
    /// The table that COPY and MOVE write to.
    pub(crate) target: TableId,
}

impl<'k> Planned<'_, 'k> {
    pub(crate) fn arg(&self, n: usize) -> &'k [u8] {
        self.args.get(n).unwrap_or_default()
    }

    /// All keys, in order.
    fn each_key(&self) -> impl Iterator<Item = &'k [u8]> + use<'k> {
        let args = *self.args;
        let positions = self.keys.positions(self.args);
        positions.map(move |at| args.get(at).unwrap_or_default())
    }
}

impl Growth {
    /// Adds a command to a plan.
    pub(crate) fn plan<'k>(&self, planner: &mut Planner<'_, '_, 'k>, planned: &Planned<'_, 'k>) {
        let (args, table) = (planned.args, planned.table);
        planner.begin(match planned.hashes {
            [only] if planned.keys.is_one() => Some(*only),
            _ => None,
        });
        match *self {
            Growth::Own(plan) => plan(planner, planned),
            Growth::Nothing => each(planner, planned, |bytes| bytes),
            Growth::To(bytes_of) => each(planner, planned, |bytes| bytes_of(args, bytes)),
            Growth::Removes if planner.is_certain => {
                let keys = planned.each_key();
                keys.for_each(|key| planner.remove_certainly(table, key));
            }
            // Without effect on a collection, DELIFEQ makes no value shorter for certain.
            Growth::Removes | Growth::MayRemove => {
                planned.each_key().for_each(|key| planner.remove(key));
            }
            Growth::Sets(bytes_of) => {
                let bytes = bytes_of(args);
                let keys = planned.each_key();
                keys.for_each(|key| planner.put(table, key, bytes));
            }
            Growth::SetsPairs => {
                for at in planned.keys.positions(args) {
                    let bytes = planned.arg(at + 1).len();
                    planner.put(table, planned.arg(at), bytes);
                }
            }
            Growth::By(more) => each_collection(planner, planned, more),
            Growth::Moves if args.get(1) == args.get(2) => each(planner, planned, |bytes| bytes),
            Growth::Moves => moved(planner, planned),
            Growth::Combines => combined(planner, planned),
            Growth::Stores => {
                if let Some(key) = planned.each_key().nth(1) {
                    planner.put(table, key, ANY_BYTES);
                }
            }
        }
    }
}

/// More than any value may have.
const ANY_BYTES: usize = VALUE_BYTES_MAX + 1;

/// Each value gets a length by its length now.
fn each<'k>(
    planner: &mut Planner<'_, '_, 'k>,
    planned: &Planned<'_, 'k>,
    bytes_of: impl Fn(usize) -> usize,
) {
    for key in planned.each_key() {
        let bytes = planner.value_bytes(planned.table, key);
        planner.put(planned.table, key, bytes_of(bytes));
    }
}

fn each_collection<'k>(
    planner: &mut Planner<'_, '_, 'k>,
    planned: &Planned<'_, 'k>,
    more: fn(&Args<'_>, usize) -> usize,
) {
    for key in planned.each_key() {
        let bytes = planner.value_bytes(planned.table, key);
        let more = more(planned.args, bytes);
        planner.may_exceed |= more > 0 && bytes + more > FEW_ELEMENTS_BYTES;
        planner.put(planned.table, key, bytes + more);
    }
}

/// Each collection may get all elements of the others, and the arguments.
fn moved<'k>(planner: &mut Planner<'_, '_, 'k>, planned: &Planned<'_, 'k>) {
    let elements = ELEMENT_BYTES * planned.args.len() + NUMBER_BYTES;
    let bytes = sum(planner, planned) + given(planned.args) + elements;
    planner.may_exceed |= bytes > FEW_ELEMENTS_BYTES;
    let keys = planned.each_key();
    keys.for_each(|key| planner.put(planned.table, key, bytes));
}

/// A score may take 9 bytes instead of 1.
fn combined<'k>(planner: &mut Planner<'_, '_, 'k>, planned: &Planned<'_, 'k>) {
    let values = sum(planner, planned);
    planner.may_exceed |= 2 * values > FEW_ELEMENTS_BYTES;
    if let Some(target) = planned.each_key().next() {
        planner.put(planned.table, target, SCORE_BYTES * values + LEAST_BYTES);
    }
}

/// Maximum length of all values together.
fn sum<'k>(planner: &mut Planner<'_, '_, 'k>, planned: &Planned<'_, 'k>) -> usize {
    let keys = planned.each_key();
    keys.map(|key| planner.value_bytes(planned.table, key))
        .sum()
}

/// The bytes of all arguments.
pub(crate) fn given(args: &Args<'_>) -> usize {
    args.skip(1).into_iter().map(<[u8]>::len).sum()
}

/// The bytes of an integer.
pub(crate) fn integer(_: &Args<'_>) -> usize {
    INTEGER_BYTES
}

/// The bytes of a number.
pub(crate) fn number(_: &Args<'_>) -> usize {
    NUMBER_BYTES
}

/// More bytes than any value may have: the arguments do not bound the length of the value.
pub(crate) fn any(_: &Args<'_>) -> usize {
    ANY_BYTES
}

/// The number in argument `n`; 0 if the argument is no number, or a negative one.
pub(crate) fn index(args: &Args<'_>, n: usize) -> usize {
    let index = args.get(n).and_then(parse_integer);
    index
        .and_then(|index| usize::try_from(index).ok())
        .unwrap_or(0)
}

/// Maximum number of bytes of a string of `len` bytes in a collection, with its fingerprint.
pub(crate) const fn text_bytes(len: usize) -> usize {
    let length_bytes = match len {
        0..64 => 1,
        64..8192 => 2,
        _ => 3,
    };
    len + length_bytes + 1
}

/// As [`text_bytes`], of argument `n`.
pub(crate) fn text(args: &Args<'_>, n: usize) -> usize {
    text_bytes(args.get(n).map_or(0, <[u8]>::len))
}

/// As [`text_bytes`], of all arguments from `n` on.
pub(crate) fn texts(args: &Args<'_>, n: usize) -> usize {
    let texts = args.skip(n).into_iter();
    texts.map(|text| text_bytes(text.len())).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::lookup::Resolved;
    use crate::command::room::HEAD_BYTES;
    use crate::command::spec::Effect;
    use crate::table::COMMANDS;
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
            let planned = Planned {
                args: &args,
                keys: &spec.keys,
                hashes: &[guard.hash(b"k")],
                table: TableId::DEFAULT,
                target: TableId::DEFAULT,
            };
            let Effect::Writes(growth) = spec.effect else {
                panic!("{request} does not write");
            };
            growth.plan(planner, &planned);
            planner.value_bytes(TableId::DEFAULT, b"k")
        };
        assert_eq!(add(&mut planner, "SETNX k abc\r\n"), 5_000);
        assert_eq!(add(&mut planner, "INCR k\r\n"), 5_000);
        assert_eq!(add(&mut planner, "SETRANGE k 5990 0123456789\r\n"), 6_000);
        assert_eq!(add(&mut planner, "SET k abc\r\n"), "kabc".len());
        assert_eq!(add(&mut planner, "INCR k\r\n"), INTEGER_BYTES);
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
                built.0.len() <= HEAD_BYTES + 2 * text_bytes(text.len()),
                "{text:.40?}"
            );
            for score in [0.1, 9e15, -9e15, f64::INFINITY, 1.0] {
                let (mut built, mut set) = (Built::default(), Sorted::default());
                set.set(Text::of(text), score);
                set.store(&mut built).unwrap();
                let most = HEAD_BYTES + text_bytes(text.len()) + SCORE_BYTES;
                assert!(built.0.len() <= most, "{text:.40?} {score}");
            }
        }
    }
}
