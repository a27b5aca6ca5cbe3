//! The command table: each command's name, number of arguments, key positions and function.
//!
//! **Lookup** is one hash of the name's first and last eight bytes (ASCII case folded by setting
//! bit 5), one or two probes of a table built at compile time, and one comparison: no allocation,
//! no lower-casing. Subcommands are separate rows, called `container|sub`.

use super::commands::COMMANDS;
use super::context::{Context, Done};
use super::group::Way;
use crate::shared::Family;
use duramen_engine::{Guard, KeyHash};
use duramen_wire::resp::Args;

/// The way in which a command is run.
#[derive(Clone, Copy)]
pub(crate) enum Run {
    /// Inside the batch's guard; gets the hashes of its keys in order.
    Data(fn(&mut Context<'_>, &mut Guard<'_>, &[KeyHash]) -> Done),
    /// As `Data`, but with its own guard: it locks several keys, which must come before any other
    /// write of a guard.
    Atomic(fn(&mut Context<'_>, &mut Guard<'_>, &[KeyHash]) -> Done),
    /// Uses nothing but the connection.
    Plain(fn(&mut Context<'_>) -> Done),
    /// Uses the store as a whole (tables, counters): runs between guards.
    Store(fn(&mut Context<'_>) -> Done),
    /// Needs the session itself, to enter the store exclusively or to change its tables; inside
    /// EXEC it gets the guard.
    Alone(fn(&mut Context<'_>, Way<'_, '_>) -> Done),
    /// Known, but refused for this reason (a complete error text if it begins with `ERR`).
    Refused(&'static str),
}

/// Positions of a command's keys: `first`, `last` (negative: counted from the end), `step`. `first`
/// 0 = no keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Keys {
    pub(crate) first: u8,
    pub(crate) last: i8,
    pub(crate) step: u8,
}

pub(crate) const NO_KEYS: Keys = keys(0, 0, 0);
pub(crate) const ONE_KEY: Keys = keys(1, 1, 1);
pub(crate) const ALL_KEYS: Keys = keys(1, -1, 1);

pub(crate) const fn keys(first: u8, last: i8, step: u8) -> Keys {
    Keys { first, last, step }
}

/// Bits of [`Spec::flags`]: the flags and the ACL categories that `COMMAND INFO` reports.
pub(crate) mod flag {
    pub(crate) const WRITE: u32 = 1;
    pub(crate) const READONLY: u32 = 1 << 1;
    pub(crate) const DENYOOM: u32 = 1 << 2;
    pub(crate) const ADMIN: u32 = 1 << 3;
    pub(crate) const NOSCRIPT: u32 = 1 << 4;
    pub(crate) const LOADING: u32 = 1 << 5;
    pub(crate) const STALE: u32 = 1 << 6;
    pub(crate) const FAST: u32 = 1 << 7;
    pub(crate) const NO_AUTH: u32 = 1 << 8;
    pub(crate) const ALLOW_BUSY: u32 = 1 << 9;
    /// Refused between MULTI and EXEC.
    pub(crate) const NO_MULTI: u32 = 1 << 10;
    pub(crate) const SKIP_SLOWLOG: u32 = 1 << 11;
    pub(crate) const NO_ASYNC_LOADING: u32 = 1 << 12;
    pub(crate) const BLOCKING: u32 = 1 << 13;
    pub(crate) const KEYSPACE: u32 = 1 << 16;
    pub(crate) const STRING: u32 = 1 << 17;
    pub(crate) const CONNECTION: u32 = 1 << 18;
    pub(crate) const TRANSACTION: u32 = 1 << 19;
    pub(crate) const DANGEROUS: u32 = 1 << 20;
    /// Runs at once even between MULTI and EXEC.
    pub(crate) const NEVER_QUEUED: u32 = 1 << 24;
    /// May take long by its nature: timed by itself for the slow log.
    pub(crate) const TIMED: u32 = 1 << 26;
    /// Reads or writes a whole table: in a transaction it needs exclusive access to the store.
    pub(crate) const WHOLE: u32 = 1 << 27;
    /// Its first argument is the name of a subcommand.
    pub(crate) const CONTAINER: u32 = 1 << 28;
    /// Is a subcommand (set by the table itself).
    pub(crate) const SUB: u32 = 1 << 29;

    /// Flags with their names in Redis.
    pub(crate) const NAMES: &[(u32, &str)] = &[
        (WRITE, "write"),
        (READONLY, "readonly"),
        (DENYOOM, "denyoom"),
        (ADMIN, "admin"),
        (NOSCRIPT, "noscript"),
        (BLOCKING, "blocking"),
        (LOADING, "loading"),
        (STALE, "stale"),
        (SKIP_SLOWLOG, "skip_slowlog"),
        (FAST, "fast"),
        (NO_AUTH, "no_auth"),
        (NO_ASYNC_LOADING, "no_async_loading"),
        (NO_MULTI, "no_multi"),
        (ALLOW_BUSY, "allow_busy"),
    ];
    /// ACL categories with their names in Redis.
    pub(crate) const CATEGORIES: &[(u32, &str)] = &[
        (KEYSPACE, "@keyspace"),
        (READONLY, "@read"),
        (WRITE, "@write"),
        (STRING, "@string"),
        (ADMIN, "@admin"),
        (FAST, "@fast"),
        (BLOCKING, "@blocking"),
        (DANGEROUS, "@dangerous"),
        (CONNECTION, "@connection"),
        (TRANSACTION, "@transaction"),
    ];
}

/// The group in which a command is documented.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Group {
    Connection,
    String,
    Generic,
    Transactions,
    Server,
    Cluster,
    Duramen,
    /// A command of a kind that does not exist here.
    Foreign,
}

impl Group {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Group::Connection => "connection",
            Group::String => "string",
            Group::Generic => "generic",
            Group::Transactions => "transactions",
            Group::Server => "server",
            Group::Cluster => "cluster",
            Group::Duramen => "duramen",
            Group::Foreign => "foreign",
        }
    }
}

pub(crate) struct Spec {
    /// Lower case; `container|sub` for a subcommand.
    pub(crate) name: &'static str,
    /// Number of arguments with the name; negative: at least that many.
    pub(crate) arity: i8,
    pub(crate) flags: u32,
    pub(crate) keys: Keys,
    pub(crate) group: Group,
    /// The latency histogram in which it counts.
    pub(crate) family: Family,
    pub(crate) since: &'static str,
    pub(crate) complexity: &'static str,
    pub(crate) summary: &'static str,
    pub(crate) run: Run,
}

impl Spec {
    pub(crate) fn has(&self, flags: u32) -> bool {
        self.flags & flags != 0
    }

    pub(crate) fn is_refused(&self) -> bool {
        matches!(self.run, Run::Refused(_))
    }

    /// Whether it writes and is allowed when memory is full: it deletes, or its write replaces
    /// about as many bytes.
    #[inline]
    pub(crate) fn rewrites(&self) -> bool {
        self.flags & (flag::WRITE | flag::DENYOOM) == flag::WRITE
    }

    /// Whether it changes several keys, each separately.
    pub(crate) fn changes_many(&self) -> bool {
        self.has(flag::WRITE) && self.keys != ONE_KEY && self.keys != NO_KEYS
    }

    /// Whether argument `n` may be a password, which neither MONITOR nor the slow log shows.
    pub(crate) fn is_secret(&self, n: usize) -> bool {
        match self.name {
            "auth" => n >= 1,
            // Their first argument after the name selects the action.
            "hello" => n >= 2,
            "config|set" => n >= 3,
            _ => false,
        }
    }

    /// The error text of a command that is refused for this reason.
    pub(crate) fn refusal(&self, reason: &str) -> String {
        if reason.starts_with("ERR") {
            return reason.to_string();
        }
        format!(
            "ERR {} is not supported: {reason}",
            self.name.to_ascii_uppercase()
        )
    }

    /// The container's name, if this is a subcommand.
    pub(crate) fn container(&self) -> Option<&'static str> {
        self.name.split_once('|').map(|(container, _)| container)
    }

    pub(crate) fn accepts(&self, args: usize) -> bool {
        let arity = i64::from(self.arity);
        let args = args as i64;
        if arity >= 0 {
            args == arity
        } else {
            args >= -arity
        }
    }

    /// Its position in [`COMMANDS`], which is also its position in the per-thread counters.
    pub(crate) fn number(&'static self) -> usize {
        (std::ptr::from_ref(self) as usize - COMMANDS.as_ptr() as usize) / size_of::<Spec>()
    }

    /// Argument numbers of the keys of a request with `args` arguments.
    pub(crate) fn key_positions(&self, args: usize) -> impl Iterator<Item = usize> + use<> {
        let first = usize::from(self.keys.first);
        let last = if self.keys.last < 0 {
            args.saturating_sub(usize::from(self.keys.last.unsigned_abs()))
        } else {
            usize::from(self.keys.last.unsigned_abs())
        };
        let end = if first == 0 { 0 } else { (last + 1).min(args) };
        (first..end.max(first)).step_by(usize::from(self.keys.step).max(1))
    }
}

/// The command that a request's name stands for.
#[derive(Clone, Copy)]
pub(crate) enum Resolved {
    Command(&'static Spec),
    /// Known, but with a wrong number of arguments.
    Arity(&'static Spec),
    UnknownCommand,
    UnknownSubcommand(&'static Spec),
}

/// Finds the command or subcommand of a request and checks its number of arguments.
pub(crate) fn resolve(args: &Args<'_>) -> Resolved {
    let Some(spec) = find(args.name()) else {
        return Resolved::UnknownCommand;
    };
    if spec.has(flag::CONTAINER | flag::SUB) {
        return resolve_sub(spec, args);
    }
    check_arity(spec, args.len())
}

#[cold]
fn resolve_sub(container: &'static Spec, args: &Args<'_>) -> Resolved {
    if container.has(flag::SUB) {
        return Resolved::UnknownCommand;
    }
    let Some(sub) = args.get(1) else {
        return check_arity(container, 1);
    };
    match find_sub(container, sub) {
        Some(spec) => check_arity(spec, args.len()),
        None => Resolved::UnknownSubcommand(container),
    }
}

/// The row of `container|sub`.
pub(crate) fn find_sub(container: &Spec, sub: &[u8]) -> Option<&'static Spec> {
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
    find(room)
}

#[inline]
fn check_arity(spec: &'static Spec, args: usize) -> Resolved {
    if spec.accepts(args) {
        Resolved::Command(spec)
    } else {
        Resolved::Arity(spec)
    }
}

/// Slots of the lookup table: over four times the number of commands, so that a probe nearly always
/// ends at once.
const SLOTS: usize = 2048;
const EMPTY: u16 = u16::MAX;

static INDEX: [u16; SLOTS] = build_index();

const fn build_index() -> [u16; SLOTS] {
    assert!(COMMANDS.len() * 4 < SLOTS);
    let mut index = [EMPTY; SLOTS];
    let mut n = 0;
    while n < COMMANDS.len() {
        let mut slot = hash_name(COMMANDS[n].name.as_bytes());
        while index[slot] != EMPTY {
            slot = (slot + 1) % SLOTS;
        }
        index[slot] = n as u16;
        n += 1;
    }
    index
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

/// Shown instead of a secret.
pub(crate) const REDACTED: &[u8] = b"(redacted)";

/// The row called `name`, in any case; `None` if there is none.
#[inline(always)]
pub(crate) fn find(name: &[u8]) -> Option<&'static Spec> {
    let mut slot = hash_request_name(name);
    loop {
        let number = INDEX[slot];
        if number == EMPTY {
            return None;
        }
        let spec = &COMMANDS[usize::from(number)];
        if spec.name.as_bytes().eq_ignore_ascii_case(name) {
            return Some(spec);
        }
        slot = (slot + 1) % SLOTS;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_command_is_found_in_any_case_and_nothing_else_is() {
        for spec in COMMANDS {
            for name in [spec.name.to_string(), spec.name.to_ascii_uppercase()] {
                let found = find(name.as_bytes()).expect("a row of the table is found by its name");
                assert_eq!(found.name, spec.name);
                assert_eq!(found.number(), spec.number());
            }
            assert!(find(format!("{}~", spec.name).as_bytes()).is_none());
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
            assert!(find(stranger.as_bytes()).is_none(), "{stranger:?}");
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
        let positions = |name: &str, args| -> Vec<usize> {
            find(name.as_bytes()).unwrap().key_positions(args).collect()
        };
        assert_eq!(positions("get", 2), [1]);
        assert_eq!(positions("mget", 4), [1, 2, 3]);
        assert_eq!(positions("mset", 5), [1, 3]);
        assert_eq!(positions("object|encoding", 3), [2]);
        assert_eq!(positions("ping", 2), [0usize; 0]);
    }

    #[test]
    fn containers_have_rows_and_subcommands_have_containers() {
        for spec in COMMANDS {
            assert_eq!(
                spec.has(flag::SUB),
                spec.container().is_some(),
                "{}",
                spec.name
            );
            if let Some(container) = spec.container() {
                let container = find(container.as_bytes()).expect("a container has a row");
                assert!(container.has(flag::CONTAINER), "{}", spec.name);
            }
        }
    }
}
