//! The columns of all rows of the command table hold for random requests.

use super::*;
use crate::command::flag;
use crate::command::growth::Planned;
use crate::command::lookup::Resolved;
use crate::command::room::{HEAD_BYTES, Planner};
use crate::command::row::Effect;
use crate::command::spec::Spec;
use crate::table::COMMANDS;
use duramen_base::limits::VALUE_BYTES_MAX;
use duramen_base::random::Random;
use duramen_engine::TableId;
use std::collections::BTreeMap;

/// Keys, numbers, and words of options.
const WORDS: [&str; 36] = [
    "a",
    "b",
    "list",
    "hash",
    "set",
    "zset",
    "stream",
    "text",
    "0",
    "1",
    "2",
    "7",
    "-1",
    "17",
    "1x",
    "3.25",
    "left",
    "right",
    "before",
    "get",
    "nx",
    "xx",
    "store",
    "storedist",
    "by",
    "m",
    "count",
    "streams",
    "group",
    "g",
    "*",
    ">",
    "incr",
    "u8",
    "ex",
    "2305843009213693951",
];

/// Requests that make a value of each type.
const VALUES: [&[&str]; 7] = [
    &["rpush", "list", "a", "b", "1", "17"],
    &["hset", "hash", "a", "1", "b", "3.25"],
    &["sadd", "set", "a", "b", "1", "2"],
    &["zadd", "zset", "1", "a", "2", "b"],
    &["xadd", "stream", "*", "a", "b"],
    &["xgroup", "create", "stream", "g", "0"],
    &["set", "text", "17"],
];

/// A request with words at random, as many as the command takes.
fn request(random: &mut Random, spec: &Spec) -> Vec<Vec<u8>> {
    let mut words: Vec<Vec<u8>> = spec.name.split('|').map(|word| word.into()).collect();
    let least = usize::from(spec.arity.unsigned_abs());
    let more = if spec.arity < 0 { random.index(6) } else { 0 };
    while words.len() < least + more {
        words.push(match random.index(60) {
            0 => vec![b'x'; random.index(20_000)],
            _ => WORDS[random.index(WORDS.len())].into(),
        });
    }
    words
}

fn slices(words: &[Vec<u8>]) -> Vec<&[u8]> {
    words.iter().map(Vec::as_slice).collect()
}

/// The keys of a request of a command that writes, each with the bound of its value. `None`: it
/// has a wrong number of arguments.
fn bounds(session: &mut Session, words: &[Vec<u8>]) -> Option<Vec<(Vec<u8>, usize)>> {
    let mut input = Vec::new();
    RequestEncoder::new(&mut input).request(&slices(words));
    let requests = parsed(&input);
    let args = requests.args(0, &input);
    let Resolved::Command(spec) = COMMANDS.resolve(&args) else {
        return None;
    };
    let Effect::Writes(growth) = spec.effect else {
        return None;
    };
    let guard = session.executor.session().expect("a store").pin();
    let mut planner = Planner::new(&guard);
    let planned = Planned {
        args: &args,
        keys: &spec.keys,
        hashes: &[],
        table: TableId::DEFAULT,
        target: TableId::DEFAULT,
    };
    growth.plan(&mut planner, &planned);
    let keys = spec.key_positions(&args).filter_map(|at| args.get(at));
    let bound = |key| {
        let bytes = planner.value_bytes(TableId::DEFAULT, key) + HEAD_BYTES;
        (key.to_vec(), bytes.min(VALUE_BYTES_MAX))
    };
    Some(keys.map(bound).collect())
}

#[test]
fn no_command_writes_beyond_its_bound() {
    let mut session = Server::session(1);
    let mut random = Random::new(3);
    let writes = |spec: &&Spec| spec.has(flag::WRITE) && spec.has_keys();
    let (mut done, mut all) = (0, 0);
    for spec in COMMANDS.rows().iter().filter(writes) {
        for n in 0..300 {
            if n % 20 == 0 {
                session.ask("FLUSHALL");
                for value in VALUES {
                    session.ask(&value.join(" "));
                }
            }
            let words = request(&mut random, spec);
            let Some(bounds) = bounds(&mut session, &words) else {
                continue;
            };
            // Within EXEC no command waits.
            session.expect("MULTI", "+OK\r\n");
            session.ask_bytes(&slices(&words));
            let reply = session.ask("EXEC");
            all += 1;
            done += usize::from(reply.starts_with("*1\r\n") && !reply.starts_with("*1\r\n-"));
            let guard = session.executor.session().expect("a store").pin();
            for (key, bound) in bounds {
                let found = guard.read(TableId::DEFAULT, guard.hash(&key), &key);
                let bytes = found
                    .expect("a sound value")
                    .map_or(0, |object| object.value.len());
                let key = String::from_utf8_lossy(&key);
                assert!(
                    bytes <= bound,
                    "{words:?}: {key:.20} has {bytes}, not {bound}"
                );
            }
        }
    }
    assert!(
        done * 10 > all,
        "only {done} of {all} requests had an effect"
    );
}

/// Reads and writes that a request needs rights for, by key.
fn needed(words: &[Vec<u8>]) -> Option<BTreeMap<String, [bool; 2]>> {
    let mut input = Vec::new();
    RequestEncoder::new(&mut input).request(&slices(words));
    let requests = parsed(&input);
    let args = requests.args(0, &input);
    let Resolved::Command(spec) = COMMANDS.resolve(&args) else {
        return None;
    };
    let mut keys: BTreeMap<String, [bool; 2]> = BTreeMap::new();
    for (n, at) in spec.key_positions(&args).enumerate() {
        let key = String::from_utf8(args.get(at)?.to_vec()).ok()?;
        let is_plain = key.bytes().all(|byte| byte.is_ascii_alphanumeric());
        let rights = spec.keys.needed(&args, n).rights();
        let rights = [rights.reads, rights.writes];
        if !is_plain || key.is_empty() || rights == [false; 2] {
            return None;
        }
        let all = keys.entry(key).or_default();
        *all = [all[0] || rights[0], all[1] || rights[1]];
    }
    Some(keys).filter(|keys| !keys.is_empty() && spec.keys.unnamed_at(&args).is_none())
}

/// Whether a user with these rights on keys may make a request.
fn may(session: &mut Session, rights: &BTreeMap<String, [bool; 2]>, words: &[Vec<u8>]) -> bool {
    let mut user = "ACL SETUSER u reset +@all allchannels alltables".to_owned();
    for (key, [reads, writes]) in rights {
        user += if *reads { " %R~" } else { "" };
        user += if *reads { key } else { "" };
        user += if *writes { " %W~" } else { "" };
        user += if *writes { key } else { "" };
    }
    session.expect(&user, "+OK\r\n");
    let test: [&[u8]; 3] = [b"ACL", b"DRYRUN", b"u"];
    let test: Vec<&[u8]> = test.into_iter().chain(slices(words)).collect();
    session.ask_bytes(&test) == "+OK\r\n"
}

/// No longer pattern may stand in the rights of a user.
const KEY_BYTES_MAX: usize = 1_000;

#[test]
fn a_request_needs_the_rights_of_its_row_and_no_others() {
    let mut session = Server::session(1);
    let mut random = Random::new(4);
    let has_keys = |spec: &&Spec| spec.has_keys() && !spec.has(flag::PUBSUB);
    let mut tested = 0;
    for spec in COMMANDS.rows().iter().filter(has_keys) {
        for _ in 0..30 {
            let words = request(&mut random, spec);
            let Some(mut rights) = needed(&words) else {
                continue;
            };
            if rights.keys().any(|key| key.len() > KEY_BYTES_MAX) {
                continue;
            }
            assert!(may(&mut session, &rights, &words), "{words:?} {rights:?}");
            let keys: Vec<String> = rights.keys().cloned().collect();
            for key in keys {
                for right in 0..2 {
                    if rights[&key][right] {
                        rights.entry(key.clone()).or_default()[right] = false;
                        assert!(!may(&mut session, &rights, &words), "{words:?} {rights:?}");
                        rights.entry(key.clone()).or_default()[right] = true;
                    }
                }
            }
            tested += 1;
        }
    }
    assert!(tested > 1_000, "only {tested} requests were tested");
}

/// MONITOR, slow log and audit log show no argument that may be a password.
#[test]
fn secrets_are_those_of_the_rows() {
    let secret = |spec: &Spec| (0..8).find(|n| spec.is_secret(*n));
    let with_secrets = COMMANDS.rows().iter().filter(|spec| secret(spec).is_some());
    let found: Vec<(&str, Option<usize>)> =
        with_secrets.map(|spec| (spec.name, secret(spec))).collect();
    let expected = [
        ("hello", Some(2)),
        ("auth", Some(1)),
        ("config|set", Some(3)),
        ("acl|dryrun", Some(4)),
        ("acl|setuser", Some(3)),
    ];
    assert_eq!(found, expected);
}
