//! All or nothing at every limit: after an error, no part of a command or transaction was done.

use super::*;
use duramen_base::random::Random;
use duramen_engine::LogOptions;
use std::collections::BTreeMap;

/// A server whose log writer is the test: nothing becomes durable. `spans`: a group may be longer
/// than a segment.
pub(super) fn logged(spans: bool) -> Session {
    logged_in(spans, 2 << 20)
}

/// As [`logged`], with segments of so many bytes.
fn logged_in(spans: bool, segment_bytes: u64) -> Session {
    let config = ServerConfig {
        level: Some(Level::Memory),
        dir: "nowhere".to_owned(),
        threads: 1,
        ..ServerConfig::default()
    };
    let store = Store::new(Options {
        huge_pages: false,
        heads: 1,
        cleaners: 0,
        log: Some(LogOptions {
            level: Level::Memory,
            segment_bytes,
            group_bytes_max: if spans { u64::MAX } else { 0 },
            ..LogOptions::new(7)
        }),
        ..Options::new(64 * segment_bytes)
    })
    .expect("a store");
    let shared = super::shared(config).expect("shared state");
    shared.serve(store, None);
    let server = Server {
        shared,
        clock_ms: Arc::default(),
    };
    Session {
        executor: server.executor(0),
        client: server.client(0),
        server,
    }
}

/// The beginning of the error of a command or transaction that is too long.
const TOO_MUCH: &str = "-ERR a command or transaction that writes ";

/// `MSET` or `MSETNX` of `keys` keys with values of `bytes` bytes.
fn set_many(s: &mut Session, command: &str, keys: usize, bytes: usize) -> String {
    let names: Vec<String> = (0..keys).map(|n| format!("key:{n}")).collect();
    let value = vec![b'v'; bytes];
    let mut args: Vec<&[u8]> = vec![command.as_bytes()];
    for name in &names {
        args.extend([name.as_bytes(), &value]);
    }
    s.ask_bytes(&args)
}

fn delete_many(s: &mut Session, keys: usize) -> String {
    let names: Vec<String> = (0..keys).map(|n| format!("key:{n}")).collect();
    let mut args: Vec<&[u8]> = vec![b"DEL"];
    args.extend(names.iter().map(|name| name.as_bytes()));
    s.ask_bytes(&args)
}

/// MSET of twelve values of 1 MiB, and DEL of 60,000 keys, once ended with an error when their
/// segment was full; their changes up to then stayed.
#[test]
fn what_is_longer_than_a_segment_is_done_as_a_whole() {
    let mut s = logged(true);
    assert_eq!(set_many(&mut s, "MSET", 12, 1 << 20), "+OK\r\n");
    s.expect("DBSIZE", ":12\r\n");
    s.expect("STRLEN key:11", ":1048576\r\n");
    assert_eq!(set_many(&mut s, "MSET", 60_000, 1), "+OK\r\n");
    s.expect("STRLEN key:0", ":1\r\n");
    assert_eq!(delete_many(&mut s, 70_000), ":60000\r\n");
    s.expect("DBSIZE", ":0\r\n");
    s.expect("MULTI", "+OK\r\n");
    for n in 0..5 {
        let (key, value) = (format!("key:{n}"), vec![b'v'; 900_000]);
        s.ask_bytes(&[b"SET", key.as_bytes(), &value]);
        s.ask(&format!("APPEND {key} more"));
    }
    s.expect(
        "EXEC",
        &format!("*10\r\n{}", "+OK\r\n:900004\r\n".repeat(5)),
    );
}

/// The same for groups of at most one segment, as for a member of a cluster: then nothing is done,
/// and the error names the bytes, the limit and what it depends on, and not a part of the log.
#[test]
fn what_may_not_be_longer_than_a_segment_is_refused_as_a_whole() {
    let mut s = logged(false);
    for command in ["MSET", "MSETNX"] {
        let reply = set_many(&mut s, command, 12, 1 << 20);
        assert!(reply.starts_with(TOO_MUCH), "{reply}");
        assert!(reply.contains("an eighth of `wal-size`"), "{reply}");
        assert!(!reply.contains("segment"), "{reply}");
        s.expect("DBSIZE", ":0\r\n");
    }
    for part in 0..6 {
        let names: Vec<String> = (part * 10_000..(part + 1) * 10_000)
            .map(|n| format!("key:{n}"))
            .collect();
        let mut args: Vec<&[u8]> = vec![b"MSET"];
        args.extend(names.iter().flat_map(|name| [name.as_bytes(), b"1"]));
        assert_eq!(s.ask_bytes(&args), "+OK\r\n");
    }
    let reply = delete_many(&mut s, 60_000);
    assert!(reply.starts_with("-ERR"), "{reply}");
    s.expect("DBSIZE", ":60000\r\n");
    s.expect("MULTI", "+OK\r\n");
    s.ask("SET first 1");
    let value = vec![b'v'; 900_000];
    for n in 0..3 {
        s.ask_bytes(&[b"SET", format!("key:{n}").as_bytes(), &value]);
    }
    s.ask("SET last 1");
    let reply = s.ask("EXEC");
    let why = format!(
        "-EXECABORT Transaction discarded because of: {}",
        &TOO_MUCH[1..]
    );
    assert!(reply.starts_with(&why), "{reply}");
    s.expect("EXISTS first last", ":0\r\n");
    s.expect("STRLEN key:0", ":1\r\n");
}

/// A `DEL` or `SET` that EXEC refuses, because its user has other rights by then, was taken for one
/// that makes a value shorter: a part of the transaction was done.
#[test]
fn a_refused_step_makes_no_room() {
    for (right, shortens) in [("-del", "DEL"), ("-set", "SET"), ("-unlink", "UNLINK")] {
        for is_within in [false, true] {
            let mut s = logged(false);
            for n in 0..3 {
                let (key, value) = (format!("key:{n}"), vec![b'v'; 900_000]);
                s.ask_bytes(&[b"SET", key.as_bytes(), &value]);
            }
            s.expect("ACL SETUSER u on >p ~* +@all", "+OK\r\n");
            let change = format!("ACL SETUSER u {right}");
            let mut user = s.server.client(0);
            let mut queued = "AUTH u p\r\nMULTI\r\n".to_owned();
            if is_within {
                queued += &format!("{change}\r\n");
            }
            for n in 0..3 {
                let value = if shortens == "SET" { " x" } else { "" };
                queued += &format!("{shortens} key:{n}{value}\r\nAPPEND key:{n} x\r\n");
            }
            let replies = run(&mut s.executor, &mut user, queued.as_bytes());
            assert!(!replies.contains('-'), "{replies}");
            if !is_within {
                s.expect(&change, "+OK\r\n");
            }
            let reply = run(&mut s.executor, &mut user, b"EXEC\r\n");
            assert!(reply.starts_with("-EXECABORT"), "{change}: {reply}");
            for n in 0..3 {
                s.expect(&format!("STRLEN key:{n}"), ":900000\r\n");
            }
        }
    }
}

/// A pipeline of redis-py is a transaction. Each `INCR` of a key once counted the room of all those
/// before it as well, so a few hundred of them were refused.
#[test]
fn many_small_changes_of_one_key_need_little_room() {
    let mut s = logged(false);
    let changes = [
        "INCR n",
        "DECRBY n 3",
        "EXPIRE n 100",
        "PERSIST n",
        "GETEX n EX 100",
        "APPEND text x",
        "INCRBYFLOAT float 0.5",
        "DURAMEN.INCRBY n 7",
    ];
    s.expect("MULTI", "+OK\r\n");
    for _ in 0..1_000 {
        for change in changes {
            s.expect(change, "+QUEUED\r\n");
        }
    }
    let reply = s.ask("EXEC");
    assert!(reply.starts_with("*8000\r\n"), "{reply:.200}");
    s.expect("GET n", "$4\r\n5000\r\n");
    s.expect("STRLEN text", ":1000\r\n");
    s.expect("GET float", "$3\r\n500\r\n");
}

/// Each change of a collection once counted 12,704 bytes more for those before it on the same key,
/// so 36 of them were refused.
#[test]
fn many_small_changes_of_one_collection_need_little_room() {
    let mut s = logged_in(false, 8 << 20);
    for (make, count) in [
        ("SADD s member", "SCARD s"),
        ("HSET h field", "HLEN h"),
        ("RPUSH l element", "LLEN l"),
        ("ZADD z 1 member", "ZCARD z"),
        ("PFADD p element", "EXISTS p s h l z"),
    ] {
        s.expect("MULTI", "+OK\r\n");
        // PFADD may write 12 KiB each time.
        let changes = if make.starts_with("PF") { 300 } else { 1_000 };
        for n in 0..changes {
            let value = if make.starts_with('H') { " v" } else { "" };
            s.expect(
                &format!("{make}{n}{value}").replace("member", "m"),
                "+QUEUED\r\n",
            );
        }
        let reply = s.ask("EXEC");
        assert!(
            reply.starts_with(&format!("*{changes}\r\n")),
            "{make}: {reply:.200}"
        );
        let wanted = if make.starts_with("PF") { 5 } else { 1_000 };
        assert_eq!(s.number(count), wanted, "{make}");
    }
    s.expect("MULTI", "+OK\r\n");
    for n in 0..150 {
        for removal in [
            format!("SREM s m{n}"),
            format!("HDEL h field{n}"),
            "LPOP l".to_owned(),
            "ZPOPMIN z".to_owned(),
            "BITFIELD b SET u8 #7 1".to_owned(),
        ] {
            s.expect(&removal, "+QUEUED\r\n");
        }
    }
    let reply = s.ask("EXEC");
    assert!(reply.starts_with("*750\r\n"), "{reply:.200}");
    s.expect("STRLEN b", ":8\r\n");
    s.expect("SCARD s", ":850\r\n");
}

/// GETDEL and GETSET once counted as done for certain; but they fail on a collection, which stays
/// as long as it is.
#[test]
fn what_fails_on_a_collection_makes_no_bound_lower() {
    let mut s = logged(false);
    let value = vec![b'v'; 1_000_000];
    s.ask_bytes(&[b"HSET", b"h", b"f", &value]);
    for first in ["GETDEL h", "GETSET h v"] {
        s.expect("MULTI", "+OK\r\n");
        s.ask(first);
        s.ask("CLIENT NO-TOUCH OFF"); // so that it does not run on a draft
        for n in 0..9 {
            s.ask(&format!("HSET h f{n} v"));
        }
        s.expect_error("EXEC", "EXECABORT");
        s.expect("HLEN h", ":1\r\n");
    }
}

/// When a disk became full in the middle of a command, the first part of the command once stayed
/// done.
#[test]
fn a_full_disk_refuses_all_of_a_command() {
    let mut s = logged(true);
    s.expect("MSET a 1 b 2 c 3", "+OK\r\n");
    let shared = Arc::clone(&s.server.shared);
    let log = shared.store().log().expect("a log");
    log.disk_full(true);
    for request in [
        "MSET a 9 d 9",
        "MSETNX d 9 e 9",
        "DEL a b",
        "RENAME a d",
        "COPY a d",
    ] {
        s.expect_error(request, "MISCONF");
    }
    for queued in ["MULTI", "SET a 9", "DEL b", "EXPIRE c 9"] {
        s.ask(queued);
    }
    s.expect_error(
        "EXEC",
        "EXECABORT Transaction discarded because of: MISCONF",
    );
    s.expect(
        "MGET a b c d",
        "*4\r\n$1\r\n1\r\n$1\r\n2\r\n$1\r\n3\r\n$-1\r\n",
    );
    s.expect("TTL c", ":-1\r\n");
    log.disk_full(false);
    s.expect("RENAME a d", "+OK\r\n");
}

/// Keys of the model; with values of 200,000 bytes they need more room than a store of 64 MiB has.
const KEYS: usize = 500;

/// A key's value: a letter and its number of repetitions.
type Model = BTreeMap<String, (u8, usize)>;

fn value_of((letter, bytes): (u8, usize)) -> Vec<u8> {
    vec![letter; bytes]
}

/// One request, and the model after it unless it is refused.
fn draw(random: &mut Random, model: &Model) -> (Vec<Vec<u8>>, Model) {
    let mut after = model.clone();
    let key = |random: &mut Random| format!("k{}", random.index(KEYS));
    let value = |random: &mut Random| (b'a' + random.index(26) as u8, 1 + random.index(400_000));
    let mut words: Vec<Vec<u8>> = Vec::new();
    match random.index(8) {
        0..=3 => {
            words.push(b"MSET".to_vec());
            for _ in 0..1 + random.index(12) {
                let (key, value) = (key(random), value(random));
                words.extend([key.clone().into_bytes(), value_of(value)]);
                after.insert(key, value);
            }
        }
        4 => {
            words.push(b"MSETNX".to_vec());
            let mut taken = false;
            for _ in 0..2 + random.index(3) {
                let (key, value) = (key(random), value(random));
                words.extend([key.clone().into_bytes(), value_of(value)]);
                taken |= model.contains_key(&key);
                after.insert(key, value);
            }
            if taken {
                after = model.clone();
            }
        }
        5 => {
            words.push(b"DEL".to_vec());
            for _ in 0..1 + random.index(6) {
                let key = key(random);
                after.remove(&key);
                words.push(key.into_bytes());
            }
        }
        other => {
            let (from, to) = (key(random), key(random));
            let command = if other == 6 { "RENAME" } else { "COPY" };
            words.extend([command, &from, &to].map(|word| word.as_bytes().to_vec()));
            if let Some(value) = model.get(&from)
                && from != to
                && (other == 6 || !model.contains_key(&to))
            {
                if other == 6 {
                    after.remove(&from);
                }
                after.insert(to, *value);
            }
        }
    }
    (words, after)
}

/// An MSET without memory for all its keys once wrote the first of them.
#[test]
fn without_memory_nothing_of_a_request_or_transaction_is_done() {
    let mut s = Server::session(2);
    let (mut random, mut model, mut refused) = (Random::new(0x5eed), Model::new(), 0);
    for round in 0..300 {
        let in_transaction = random.index(3) == 0;
        let requests = if in_transaction {
            1 + random.index(4)
        } else {
            1
        };
        let mut after = model.clone();
        let mut reply = s.ask(if in_transaction { "MULTI" } else { "PING" });
        for _ in 0..requests {
            let (words, then) = draw(&mut random, &after);
            let words: Vec<&[u8]> = words.iter().map(Vec::as_slice).collect();
            reply = s.ask_bytes(&words);
            after = then;
        }
        if in_transaction {
            reply = s.ask("EXEC");
        }
        if reply.starts_with("-OOM") || reply.starts_with("-EXECABORT") {
            refused += 1;
        } else {
            model = after;
        }
        for n in 0..KEYS {
            let key = format!("k{n}");
            let bytes = model.get(&key).map_or(0, |(_, bytes)| *bytes);
            s.expect(&format!("STRLEN {key}"), &format!(":{bytes}\r\n"));
            if let Some((letter, _)) = model.get(&key) {
                let first = format!("$1\r\n{}\r\n", char::from(*letter));
                let reply = s.ask(&format!("GETRANGE {key} -1 -1"));
                assert_eq!(reply, first, "round {round}: {key}");
            }
        }
    }
    assert!(refused > 20, "only {refused} of 300 found no memory");
}
