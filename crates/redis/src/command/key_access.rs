//! A command's access to its keys, as the command table declares it: for `COMMAND`, and for the
//! check of a user's rights.

use super::spec::{COMMANDS_MAX, Spec, flag};
use duramen_wire::resp::Args;
use std::sync::OnceLock;

/// A set of Redis's flags of a key specification.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct KeyAccess(u16);

const RO: u16 = 1;
const RW: u16 = 1 << 1;
const OW: u16 = 1 << 2;
const RM: u16 = 1 << 3;
const ACCESS: u16 = 1 << 4;
const UPDATE: u16 = 1 << 5;
const INSERT: u16 = 1 << 6;
const DELETE: u16 = 1 << 7;
const VARIABLE: u16 = 1 << 8;
/// Only the slot counts, not the key of this name.
const NOT_KEY: u16 = 1 << 9;

const NAMES: [&str; 10] = [
    "RO",
    "RW",
    "OW",
    "RM",
    "access",
    "update",
    "insert",
    "delete",
    "variable_flags",
    "not_key",
];

/// Of the commands that were looked at, by their numbers.
static DECLARED: [OnceLock<(KeyAccess, Option<KeyAccess>)>; COMMANDS_MAX] =
    [const { OnceLock::new() }; COMMANDS_MAX];

impl KeyAccess {
    /// A command's access to its first key, and to the second if that differs.
    pub(crate) fn declared(spec: &Spec) -> (KeyAccess, Option<KeyAccess>) {
        match DECLARED.get(spec.number) {
            Some(known) => *known.get_or_init(|| KeyAccess::named(spec)),
            None => KeyAccess::named(spec),
        }
    }

    /// A command that writes and is not named here counts as one that reads too: it then needs more
    /// rights than it should, and no less.
    fn named(spec: &Spec) -> (KeyAccess, Option<KeyAccess>) {
        let (first, second) = match spec.name {
            "rename" => (RW | ACCESS | DELETE, Some(OW | UPDATE)),
            "renamenx" => (RW | ACCESS | DELETE, Some(OW | INSERT)),
            "copy" => (RO | ACCESS, Some(OW | UPDATE)),
            "spublish" | "ssubscribe" | "sunsubscribe" => (NOT_KEY, None),
            "set" => (RW | ACCESS | UPDATE | VARIABLE, None),
            "setnx" | "msetnx" => (OW | INSERT, None),
            "mset" | "setex" | "psetex" | "restore" | "duramen.write" | "duramen.mwrite" => {
                (OW | UPDATE, None)
            }
            "delifeq" | "getdel" | "lpop" | "rpop" | "lmpop" | "spop" | "zpopmin" | "zpopmax"
            | "zmpop" | "blpop" | "brpop" | "blmpop" | "bzpopmin" | "bzpopmax" | "bzmpop" => {
                (RW | ACCESS | DELETE, None)
            }
            "append"
            | "hsetnx"
            | "linsert"
            | "lpush"
            | "lpushx"
            | "rpush"
            | "rpushx"
            | "sadd"
            | "pfadd"
            | "xgroup|create"
            | "xgroup|createconsumer" => (RW | INSERT, None),
            "setrange" | "expire" | "pexpire" | "expireat" | "pexpireat" | "persist" | "geoadd"
            | "hset" | "hmset" | "lset" | "zadd" | "xadd" | "xack" | "xclaim" | "xsetid"
            | "xgroup|setid" => (RW | UPDATE, None),
            "hdel" | "lrem" | "ltrim" | "srem" | "zrem" | "zremrangebylex" | "zremrangebyrank"
            | "zremrangebyscore" | "xdel" | "xtrim" | "xautoclaim" | "xgroup|destroy"
            | "xgroup|delconsumer" => (RW | DELETE, None),
            "lmove" | "rpoplpush" | "smove" | "blmove" | "brpoplpush" => {
                (RW | ACCESS | DELETE, Some(RW | INSERT))
            }
            "bitop" | "geosearchstore" | "sdiffstore" | "sunionstore" | "zdiffstore"
            | "zinterstore" | "zunionstore" | "zrangestore" => (OW | UPDATE, Some(RO | ACCESS)),
            "sinterstore" => (RW | UPDATE, Some(RO | ACCESS)),
            "sort" | "georadius" | "georadiusbymember" => (RO | ACCESS, Some(OW | UPDATE)),
            "bitfield" => (RW | ACCESS | UPDATE | VARIABLE, None),
            "pfcount" => (RW | ACCESS, None),
            "pfmerge" => (RW | ACCESS | INSERT, Some(RO | ACCESS)),
            "del" | "unlink" | "duramen.remove" | "duramen.mremove" => (RM | DELETE, None),
            "strlen" | "exists" | "touch" | "type" | "watch" | "hexists" | "hlen" | "hstrlen"
            | "llen" | "scard" | "sismember" | "zcard" | "xlen" => (RO, None),
            "xreadgroup" | "xinfo|stream" | "xinfo|groups" | "xinfo|consumers" => {
                (RO | ACCESS, None)
            }
            name if name.contains('|') && spec.has(flag::READONLY) => (RO, None),
            _ if spec.has(flag::READONLY) => (RO | ACCESS, None),
            _ => (RW | ACCESS | UPDATE, None),
        };
        (KeyAccess(first), second.map(KeyAccess))
    }

    /// The access of a request with these arguments to its key number `n`, from 0.
    pub(crate) fn of(spec: &Spec, args: &Args<'_>, n: usize) -> KeyAccess {
        let (first, second) = KeyAccess::declared(spec);
        if first.0 & VARIABLE == 0 {
            return second.filter(|_| n > 0).unwrap_or(first);
        }
        if spec.name == "bitfield" {
            return KeyAccess(match changes_bits(args) {
                true => RW | ACCESS | UPDATE,
                false => RO | ACCESS,
            });
        }
        // SET: it reads the key if it returns the value or compares it.
        let mut options = args.skip(3).into_iter();
        let reads = |option: &[u8]| {
            let mut readers = [&b"get"[..], b"ifeq", b"ifne"].into_iter();
            readers.any(|reader| option.eq_ignore_ascii_case(reader))
        };
        KeyAccess(match options.any(reads) {
            true => RW | ACCESS | UPDATE,
            false => OW | UPDATE,
        })
    }

    /// The access for which its user needs rights.
    pub(crate) fn needed(spec: &Spec, args: &Args<'_>, n: usize) -> KeyAccess {
        let access = KeyAccess::of(spec, args, n);
        match spec.name {
            // They return entries, which Redis does not declare.
            "xclaim" | "xautoclaim" => KeyAccess(access.0 | ACCESS),
            _ => access,
        }
    }

    pub(crate) fn names(self) -> impl Iterator<Item = &'static str> {
        let named = NAMES.iter().enumerate();
        named
            .filter(move |(bit, _)| self.0 & 1 << bit != 0)
            .map(|(_, name)| *name)
    }

    /// Whether there is a key, and not only the name of a shard channel.
    pub(crate) fn is_of_key(self) -> bool {
        self.0 & NOT_KEY == 0
    }

    /// The rights that it needs.
    pub(crate) fn rights(self) -> duramen_acl::Access {
        duramen_acl::Access {
            reads: self.0 & ACCESS != 0,
            writes: self.0 & (UPDATE | INSERT | DELETE) != 0,
        }
    }
}

/// Whether a BITFIELD does more than GET.
fn changes_bits(args: &Args<'_>) -> bool {
    let mut rest = args.skip(2).into_iter();
    while let Some(operation) = rest.next() {
        let arguments = match operation.to_ascii_lowercase().as_slice() {
            b"get" => 2,
            b"overflow" => 1,
            _ => return true,
        };
        if rest.by_ref().take(arguments).count() < arguments {
            return true;
        }
    }
    false
}
