//! Finds the row of a request's command.
//!
//! **Lookup** is one hash of the name's first and last eight bytes (ASCII case folded by setting
//! bit 5), one or two probes of a table built at compile time, and one comparison: no allocation,
//! no lower-casing. Subcommands are separate rows, called `container|sub`.

use super::flag;
use super::spec::{COMMANDS_MAX, Commands, Hooks, SLOTS, Spec, bar_in};
use duramen_wire::resp::Args;

/// The command that a request's name stands for.
#[derive(Clone, Copy)]
pub(crate) enum Resolved {
    Command(&'static Spec),
    /// Known, but with a wrong number of arguments.
    Arity(&'static Spec),
    UnknownCommand,
    UnknownSubcommand(&'static Spec),
}

impl Resolved {
    /// The row that the name stands for, with any number of arguments.
    pub(crate) fn spec(&self) -> Option<&'static Spec> {
        match self {
            Resolved::Command(spec) | Resolved::Arity(spec) => Some(spec),
            Resolved::UnknownCommand | Resolved::UnknownSubcommand(_) => None,
        }
    }
}

/// The mark of a free slot in the index.
const EMPTY: u16 = u16::MAX;

impl Commands {
    /// Makes the table of `rows`, whose positions become their numbers. Every name is unique, and
    /// each subcommand has a container.
    pub(crate) const fn new(rows: &'static [Spec], hooks: Hooks) -> Commands {
        assert!(rows.len() <= COMMANDS_MAX && COMMANDS_MAX * 4 < SLOTS);
        let mut index = [EMPTY; SLOTS];
        let mut n = 0;
        while n < rows.len() {
            let slot = slot_of(rows, &index, rows[n].name.as_bytes());
            assert!(index[slot] == EMPTY, "a name stands twice");
            index[slot] = n as u16;
            n += 1;
        }
        let mut n = 0;
        while n < rows.len() {
            let name = rows[n].name.as_bytes();
            if let Some(bar) = bar_in(name) {
                let slot = slot_of(rows, &index, name.split_at(bar).0);
                assert!(index[slot] != EMPTY, "a subcommand has no container");
                let container = &rows[index[slot] as usize];
                assert!(
                    container.flags & flag::CONTAINER != 0,
                    "it has no subcommands"
                );
            }
            n += 1;
        }
        Commands { rows, index, hooks }
    }

    /// The row of this name. A name without a row fails the build.
    pub(crate) const fn named(&self, name: &str) -> &'static Spec {
        let slot = slot_of(self.rows, &self.index, name.as_bytes());
        assert!(self.index[slot] != EMPTY, "no command has this name");
        &self.rows[self.index[slot] as usize]
    }

    /// All rows, by their numbers.
    #[inline]
    pub(crate) fn rows(&self) -> &'static [Spec] {
        self.rows
    }

    /// The row with this number.
    #[inline]
    pub(crate) fn row(&self, number: u16) -> &'static Spec {
        &self.rows[usize::from(number)]
    }

    /// The row called `name`, in any case; `None` if there is none.
    #[inline(always)]
    pub fn find(&self, name: &[u8]) -> Option<&'static Spec> {
        let mut slot = hash_request_name(name);
        loop {
            let number = self.index[slot];
            if number == EMPTY {
                return None;
            }
            let spec = &self.rows[usize::from(number)];
            if spec.name.as_bytes().eq_ignore_ascii_case(name) {
                return Some(spec);
            }
            slot = (slot + 1) % SLOTS;
        }
    }

    /// Finds the command or subcommand of a request and checks its number of arguments.
    #[inline]
    pub(crate) fn resolve(&self, args: &Args<'_>) -> Resolved {
        let Some(spec) = self.find(args.name()) else {
            return Resolved::UnknownCommand;
        };
        if spec.has(flag::CONTAINER | flag::SUB) {
            return self.resolve_sub(spec, args);
        }
        check_arity(spec, args.len())
    }

    #[cold]
    fn resolve_sub(&self, container: &'static Spec, args: &Args<'_>) -> Resolved {
        if container.has(flag::SUB) {
            return Resolved::UnknownCommand;
        }
        let Some(sub) = args.get(1) else {
            return check_arity(container, 1);
        };
        match self.find_sub(container, sub) {
            Some(spec) => check_arity(spec, args.len()),
            None => Resolved::UnknownSubcommand(container),
        }
    }

    /// The row of `container|sub`.
    fn find_sub(&self, container: &Spec, sub: &[u8]) -> Option<&'static Spec> {
        let mut name = [0u8; 64];
        let head = container.name.len();
        let len = head + 1 + sub.len();
        if sub.contains(&b'|') {
            return None;
        }
        let room = name.get_mut(..len)?;
        room[..head].copy_from_slice(container.name.as_bytes());
        room[head] = b'|';
        room[head + 1..].copy_from_slice(sub);
        self.find(room)
    }
}

/// The slot of the row with this name, or the free one where it would be.
const fn slot_of(rows: &[Spec], index: &[u16; SLOTS], name: &[u8]) -> usize {
    let mut slot = hash_name(name);
    while index[slot] != EMPTY && !is_same(rows[index[slot] as usize].name.as_bytes(), name) {
        slot = (slot + 1) % SLOTS;
    }
    slot
}

const fn is_same(name: &[u8], other: &[u8]) -> bool {
    let mut n = 0;
    while n < name.len() && n < other.len() && name[n] == other[n] {
        n += 1;
    }
    n == name.len() && n == other.len()
}

#[inline]
fn check_arity(spec: &'static Spec, args: usize) -> Resolved {
    if spec.accepts(args) {
        Resolved::Command(spec)
    } else {
        Resolved::Arity(spec)
    }
}

/// First and last eight bytes of a name, case folded, mixed with its length. `|0x20` folds letters;
/// the comparison distinguishes other bytes that it folds together.
const fn hash_name(name: &[u8]) -> usize {
    let n = name.len();
    let (mut head, mut tail) = (0u64, 0u64);
    if n >= 8 {
        let (mut i, mut j) = (0, n - 8);
        while i < 8 {
            head |= (name[i] as u64) << (8 * i);
            tail |= (name[j] as u64) << (8 * i);
            i += 1;
            j += 1;
        }
    } else {
        let mut i = 0;
        while i < n {
            head |= (name[i] as u64) << (8 * i);
            i += 1;
        }
    }
    mix(head, tail, n)
}

const fn mix(head: u64, tail: u64, len: usize) -> usize {
    const FOLD: u64 = 0x2020_2020_2020_2020;
    let word = (head | FOLD) ^ (tail | FOLD).rotate_left(29) ^ (len as u64).wrapping_mul(0xff51);
    let mixed = (word ^ (word >> 32)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed >> 53) as usize
}

/// The same hash as [`hash_name`], computed by whole words.
#[inline]
fn hash_request_name(name: &[u8]) -> usize {
    let n = name.len();
    if let (Some(head), Some(tail)) = (name.first_chunk::<8>(), name.last_chunk::<8>()) {
        return mix(u64::from_le_bytes(*head), u64::from_le_bytes(*tail), n);
    }
    let head = if let (Some(low), Some(high)) = (name.first_chunk::<4>(), name.last_chunk::<4>()) {
        u64::from(u32::from_le_bytes(*low)) | u64::from(u32::from_le_bytes(*high)) << (8 * (n - 4))
    } else {
        name.iter()
            .rev()
            .fold(0, |word, byte| word << 8 | u64::from(*byte))
    };
    mix(head, 0, n)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::COMMANDS;

    #[test]
    fn every_command_is_found_in_any_case_and_nothing_else_is() {
        for spec in COMMANDS.rows() {
            for name in [spec.name.to_string(), spec.name.to_ascii_uppercase()] {
                let found = COMMANDS
                    .find(name.as_bytes())
                    .expect("a row of the table is found by its name");
                assert_eq!(found.name, spec.name);
                assert_eq!(found.number, spec.number);
            }
            assert!(
                COMMANDS
                    .find(format!("{}~", spec.name).as_bytes())
                    .is_none()
            );
        }
        for stranger in [
            "",
            "g",
            "ge",
            "gett",
            "\x07et",
            "nosuchcommandatall",
            "GE\x14",
        ] {
            assert!(COMMANDS.find(stranger.as_bytes()).is_none(), "{stranger:?}");
        }
    }

    #[test]
    fn both_ways_of_hashing_a_name_agree() {
        for len in 0..40 {
            let name: Vec<u8> = (0..len).map(|i| b'a' + (i * 7 % 26) as u8).collect();
            assert_eq!(hash_name(&name), hash_request_name(&name), "length {len}");
        }
    }

    #[test]
    fn key_positions_follow_first_last_and_step() {
        let positions = |request: &str| -> Vec<usize> {
            let input = format!("{request}\r\n");
            let requests = crate::executor::tests::parsed(input.as_bytes());
            let args = requests.args(0, input.as_bytes());
            match COMMANDS.resolve(&args) {
                Resolved::Command(spec) => spec.key_positions(&args).collect(),
                _ => panic!("{request}"),
            }
        };
        assert_eq!(positions("get a"), [1]);
        assert_eq!(positions("mget a b c"), [1, 2, 3]);
        assert_eq!(positions("mset a 1 b 2"), [1, 3]);
        assert_eq!(positions("object encoding a"), [2]);
        assert_eq!(positions("ping a"), [0usize; 0]);
        assert_eq!(positions("bitop and to a b"), [2, 3, 4]);
        assert_eq!(positions("lmpop 2 a b left"), [2, 3]);
        assert_eq!(positions("zunionstore to 2 a b weights 1 2"), [1, 3, 4]);
        for wrong in ["0", "-1", "4", "x", "99999999999999999999"] {
            assert_eq!(positions(&format!("zunion {wrong} a b c")), [0usize; 0]);
        }
        for number in ["1", "01", "+1", "1x"] {
            assert_eq!(positions(&format!("zunion {number} a b c")), [2]);
        }
        assert_eq!(positions("sort a"), [1]);
        assert_eq!(positions("sort a by store get store store to"), [1, 7]);
        assert_eq!(positions("sort a limit 0 store store to"), [1, 6]);
        assert_eq!(positions("georadius a 1 2 3 m store b storedist c"), [1, 9]);
        assert_eq!(positions("georadius a 1 2 3 m store"), [1]);
    }

    #[test]
    fn containers_have_rows_and_subcommands_have_containers() {
        for spec in COMMANDS.rows() {
            assert_eq!(
                spec.has(flag::SUB),
                spec.container().is_some(),
                "{}",
                spec.name
            );
            if let Some(container) = spec.container() {
                let container = COMMANDS
                    .find(container.as_bytes())
                    .expect("a container has a row");
                assert!(container.has(flag::CONTAINER), "{}", spec.name);
            }
        }
    }
}
