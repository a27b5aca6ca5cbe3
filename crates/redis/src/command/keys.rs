//! Where the keys of a command are, and what it does to them: no place stands without an access.

use super::access::KeyAccess;
use duramen_wire::resp::Args;
use duramen_wire::resp::number::parse_integer;

/// The keys of a command.
#[derive(Clone, Copy)]
#[repr(C)] // What each request reads comes first.
pub(crate) struct Keys {
    place: Place,
    first: KeyAccess,
    /// The access to the keys behind the first.
    others: KeyAccess,
    /// Needed in rights beside the declared access.
    undeclared: KeyAccess,
    misses: Misses,
    by_arguments: Option<fn(&Args<'_>) -> KeyAccess>,
    unnamed: Option<Unnamed>,
    /// Redis's note on a key that has a fixed place; empty: there is none.
    pub(crate) note: &'static str,
    /// Keys without a fixed place, as `COMMAND INFO` tells them: their access, and a note.
    pub(crate) anywhere: &'static [(KeyAccess, &'static str)],
}

/// Positions of keys: `first`, `last` (negative: counted from the end), `step`. `first` 0 = none of
/// this kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) first: u8,
    pub(crate) last: i8,
    pub(crate) step: u8,
    /// The argument with the number of keys that follow it; 0 = none.
    pub(crate) count_at: u8,
    /// The first option, if one of them can be `STORE key` or `STOREDIST key`; 0 = none can.
    pub(crate) store_from: u8,
    /// The first option, if keys, and an id for each, are behind `STREAMS`; 0 = there are none.
    pub(crate) streams_from: u8,
}

const NO_KEYS: Place = place(0, 0, 0);
const ONE_KEY: Place = place(1, 1, 1);
const ALL_KEYS: Place = place(1, -1, 1);

const fn place(first: u8, last: i8, step: u8) -> Place {
    Place {
        first,
        last,
        step,
        count_at: 0,
        store_from: 0,
        streams_from: 0,
    }
}

impl Place {
    /// Whether all keys have fixed places.
    const fn is_fixed(&self) -> bool {
        self.count_at == 0 && self.store_from == 0 && self.streams_from == 0
    }
}

/// Keys that a command may read although its arguments do not name them.
#[derive(Clone, Copy)]
pub(crate) struct Unnamed {
    /// The argument by which it may read them: its user then needs the right to read any key.
    /// `None` if the command reads none.
    pub(crate) stand_at: fn(&Args<'_>) -> Option<usize>,
    /// Whether a request does read such keys. The second parameter: whether the request may write.
    pub(crate) are_read: fn(&Args<'_>, bool) -> bool,
}

/// The keys that a command looks up to read them. A lookup of a missing key adds an event.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Misses {
    /// All keys, if the command only reads. Else those behind the first, which gets the result.
    /// None, if the command waits for elements.
    ByEffect,
    None,
    First,
    All,
}

/// Constructors: each has the places of the keys, with the access to them.
impl Keys {
    pub(crate) const NONE: Keys = Keys::new(NO_KEYS, KeyAccess::NONE, KeyAccess::NONE);

    /// Argument 1.
    pub(crate) const fn one(access: KeyAccess) -> Keys {
        Keys::new(ONE_KEY, access, access)
    }

    /// One other argument.
    pub(crate) const fn at(argument: u8, access: KeyAccess) -> Keys {
        Keys::new(place(argument, argument as i8, 1), access, access)
    }

    /// All arguments.
    pub(crate) const fn all(access: KeyAccess) -> Keys {
        Keys::new(ALL_KEYS, access, access)
    }

    /// Argument 1 and those behind it, up to `last`, which is counted from the end.
    pub(crate) const fn until(last: i8, access: KeyAccess) -> Keys {
        Keys::new(place(1, last, 1), access, access)
    }

    /// Arguments 1 and 2.
    pub(crate) const fn two(first: KeyAccess, second: KeyAccess) -> Keys {
        Keys::new(place(1, 2, 1), first, second)
    }

    /// All arguments from `first` on: one for the result, and its sources.
    pub(crate) const fn target_and_sources(
        first: u8,
        target: KeyAccess,
        sources: KeyAccess,
    ) -> Keys {
        Keys::new(place(first, -1, 1), target, sources)
    }

    /// Keys and values in turn.
    pub(crate) const fn pairs(access: KeyAccess) -> Keys {
        Keys::new(place(1, -1, 2), access, access)
    }

    /// Behind the argument that has their number.
    pub(crate) const fn counted(at: u8, access: KeyAccess) -> Keys {
        let place = Place {
            count_at: at,
            ..NO_KEYS
        };
        Keys::new(place, access, access)
    }

    /// Argument 1 for the result, and its sources behind the argument that has their number.
    pub(crate) const fn target_and_counted(at: u8, target: KeyAccess, sources: KeyAccess) -> Keys {
        let place = Place {
            count_at: at,
            ..ONE_KEY
        };
        Keys::new(place, target, sources)
    }

    /// Argument 1, and perhaps `STORE key` from argument `from` on.
    pub(crate) const fn and_store(from: u8, first: KeyAccess, stored: KeyAccess) -> Keys {
        let place = Place {
            store_from: from,
            ..ONE_KEY
        };
        Keys::new(place, first, stored)
    }

    /// Behind `STREAMS`, which is an option from argument `from` on.
    pub(crate) const fn streams(from: u8, access: KeyAccess) -> Keys {
        let place = Place {
            streams_from: from,
            ..NO_KEYS
        };
        Keys::new(place, access, access)
    }

    const fn new(place: Place, first: KeyAccess, others: KeyAccess) -> Keys {
        Keys {
            place,
            first,
            others,
            undeclared: KeyAccess::NONE,
            misses: Misses::ByEffect,
            by_arguments: None,
            unnamed: None,
            note: "",
            anywhere: &[],
        }
    }

    /// The arguments of a request decide which access it has.
    pub(crate) const fn by_arguments(self, access: fn(&Args<'_>) -> KeyAccess) -> Keys {
        Keys {
            by_arguments: Some(access),
            ..self
        }
    }

    /// The user needs this access too, which Redis does not declare.
    pub(crate) const fn needing(self, undeclared: KeyAccess) -> Keys {
        Keys { undeclared, ..self }
    }

    pub(crate) const fn unnamed(self, unnamed: Unnamed) -> Keys {
        Keys {
            unnamed: Some(unnamed),
            ..self
        }
    }

    pub(crate) const fn misses(self, misses: Misses) -> Keys {
        Keys { misses, ..self }
    }

    pub(crate) const fn note(self, note: &'static str) -> Keys {
        Keys { note, ..self }
    }

    pub(crate) const fn anywhere(self, keys: &'static [(KeyAccess, &'static str)]) -> Keys {
        Keys {
            anywhere: keys,
            ..self
        }
    }
}

impl Keys {
    /// The first, last and step of the keys with a fixed place, and the other places.
    pub(crate) const fn place(&self) -> Place {
        self.place
    }

    /// Whether arguments may name keys, or channels in their place.
    #[inline]
    pub(crate) const fn are_named(&self) -> bool {
        let place = self.place;
        place.first != 0 || place.count_at != 0 || place.streams_from != 0
    }

    /// Whether there is exactly one key, argument 1.
    #[inline]
    pub(crate) fn is_one(&self) -> bool {
        self.place == ONE_KEY
    }

    /// Whether there is exactly one key, in a fixed place.
    pub(super) const fn is_single(&self) -> bool {
        let place = self.place;
        place.is_fixed() && place.first != 0 && place.first as i8 == place.last
    }

    /// Whether there may be several keys, or one that is not argument 1.
    pub(crate) fn may_be_several(&self) -> bool {
        self.place != ONE_KEY && self.place != NO_KEYS
    }

    /// Whether requests that this arity allows have all keys with a fixed place. A channel may be
    /// missing.
    pub(super) const fn fit(&self, arity: i8) -> bool {
        let (place, least) = (self.place, arity.unsigned_abs());
        let has_last = place.last <= 0 || place.last.unsigned_abs() < least;
        let has_fixed = place.first < least && place.count_at < least && has_last;
        has_fixed || !self.first.is_of_key()
    }

    /// Whether its arguments tell where its keys are.
    pub(super) const fn are_movable(&self) -> bool {
        !self.place.is_fixed() || !self.anywhere.is_empty()
    }

    /// The access to the first key, and to those behind it if that differs.
    pub(crate) const fn declared(&self) -> (KeyAccess, Option<KeyAccess>) {
        match self.first.is(self.others) {
            true => (self.first, None),
            false => (self.first, Some(self.others)),
        }
    }

    /// The access of a request with these arguments to its key number `n`, from 0.
    #[inline]
    pub(crate) fn access(&self, args: &Args<'_>, n: usize) -> KeyAccess {
        match self.by_arguments {
            Some(access) => access(args),
            None if n > 0 => self.others,
            None => self.first,
        }
    }

    /// The access for which the user needs rights.
    #[inline]
    pub(crate) fn needed(&self, args: &Args<'_>, n: usize) -> KeyAccess {
        self.access(args, n).and(self.undeclared)
    }

    /// Whether its arguments may make it read keys that they do not name.
    #[inline]
    pub(crate) fn may_be_unnamed(&self) -> bool {
        self.unnamed.is_some()
    }

    /// The argument by which a request may read any key.
    pub(crate) fn unnamed_at(&self, args: &Args<'_>) -> Option<usize> {
        (self.unnamed?.stand_at)(args)
    }

    /// Whether a request reads keys that its arguments do not name.
    #[inline]
    pub(crate) fn reads_unnamed(&self, args: &Args<'_>, may_write: bool) -> bool {
        let unnamed = self.unnamed.as_ref();
        unnamed.is_some_and(|unnamed| (unnamed.are_read)(args, may_write))
    }

    /// Whether a request looks key number `n` up to read it. `by_effect` decides for
    /// [`Misses::ByEffect`].
    pub(crate) fn looks_up(&self, n: usize, by_effect: bool) -> bool {
        match self.misses {
            Misses::ByEffect => by_effect,
            Misses::None => false,
            Misses::First => n == 0,
            Misses::All => true,
        }
    }

    /// Number of a request's keys.
    #[inline(always)]
    pub(crate) fn count(&self, args: &Args<'_>) -> usize {
        match self.place {
            ONE_KEY => usize::from(args.len() > 1),
            NO_KEYS => 0,
            _ => self.positions(args).count(),
        }
    }

    /// Argument numbers of a request's keys, and of channels in a key's place.
    #[inline]
    pub(crate) fn positions(&self, args: &Args<'_>) -> impl Iterator<Item = usize> + use<> {
        let place = self.place;
        let (len, first) = (args.len(), usize::from(place.first));
        let last = if place.last < 0 {
            len.saturating_sub(usize::from(place.last.unsigned_abs()))
        } else {
            usize::from(place.last.unsigned_abs())
        };
        let end = if first == 0 { 0 } else { (last + 1).min(len) };
        let fixed = (first..end.max(first)).step_by(usize::from(place.step).max(1));
        let (counted, stored) = match place {
            Place {
                count_at: 0,
                store_from: 0,
                streams_from: 0,
                ..
            } => (0..0, None),
            Place {
                streams_from: 1.., ..
            } => (streams(args), None),
            place => (
                counted(args, place.count_at),
                stored(args, place.store_from),
            ),
        };
        fixed.chain(counted).chain(stored)
    }
}

/// Keys behind their number. If the number is invalid or too large, there are no keys: the command
/// fails.
fn counted(args: &Args<'_>, count_at: u8) -> std::ops::Range<usize> {
    let start = usize::from(count_at) + 1;
    let count = match count_at {
        0 => 0,
        at => key_number(args.get(at.into()).unwrap_or_default()),
    };
    match args.len().checked_sub(start) {
        Some(most) if count <= most => start..start + count,
        _ => start..start,
    }
}

/// A number of keys. As in Redis, a text counts if it begins with a number (`01`, `+1`, `1x`):
/// commands refuse such a text, but only after the checks of rights and of the place of the keys.
fn key_number(text: &[u8]) -> usize {
    if let Some(number) = parse_integer(text) {
        return usize::try_from(number).unwrap_or(0);
    }
    let text = text.trim_ascii_start();
    let text = text.strip_prefix(b"+").unwrap_or(text);
    let digits = text
        .iter()
        .take(20)
        .take_while(|byte| byte.is_ascii_digit());
    let number = digits.map(|byte| char::from(*byte)).collect::<String>();
    number.parse().unwrap_or(0)
}

/// The keys of XREAD and XREADGROUP: the first half of the arguments behind `STREAMS`.
fn streams(args: &Args<'_>) -> std::ops::Range<usize> {
    let mut at = 1;
    while let Some(option) = args.get(at) {
        at += match option.to_ascii_lowercase().as_slice() {
            b"block" | b"count" => 2,
            b"group" => 3,
            b"noack" => 1,
            b"streams" => {
                let (start, behind) = (at + 1, args.len() - at - 1);
                let number = if behind % 2 == 0 { behind / 2 } else { 0 };
                return start..start + number;
            }
            _ => break,
        };
    }
    0..0
}

/// Shows the options of SORT and GEORADIUS from argument `from` on, each in lower case, with the
/// position of its first argument.
pub(crate) fn each_option(args: &Args<'_>, from: usize, mut look: impl FnMut(&[u8], usize)) {
    let mut at = from;
    while let Some(option) = args.get(at) {
        let option = option.to_ascii_lowercase();
        look(&option, at + 1);
        at += match option.as_slice() {
            b"limit" => 3,
            b"store" | b"storedist" | b"by" | b"get" | b"count" => 2,
            _ => 1,
        };
    }
}

/// The key of the last option `STORE` or `STOREDIST`.
fn stored(args: &Args<'_>, from: u8) -> Option<usize> {
    let mut found = None;
    if from != 0 {
        each_option(args, from.into(), |option, at| {
            if matches!(option, b"store" | b"storedist") && at < args.len() {
                found = Some(at);
            }
        });
    }
    found
}
