//! Data types beyond strings: what holds for all of them. The replies of each command are compared
//! with Redis's in `tests/differential`.

use super::*;

/// One command of each type that makes the value under `k`, and one that reads it.
const MAKERS: [(&str, &str, &str); 5] = [
    ("hash", "HSET k f 1", "HGETALL k"),
    ("list", "RPUSH k a", "LRANGE k 0 -1"),
    ("set", "SADD k a", "SMEMBERS k"),
    ("zset", "ZADD k 1 a", "ZRANGE k 0 -1"),
    ("stream", "XADD k 1-1 f v", "XRANGE k - +"),
];
const WRONG: &str = "WRONGTYPE Operation against a key holding the wrong kind of value";

#[test]
fn a_command_of_another_type_is_refused_without_effect() {
    let mut session = Server::session(1);
    for (kind, make, read) in MAKERS {
        session.ask("DEL k");
        session.ask(make);
        session.expect("TYPE k", &format!("+{kind}\r\n"));
        let before = session.ask(read);
        for request in [
            "GET k",
            "SET k v GET",
            "GETSET k v",
            "GETDEL k",
            "GETEX k PERSIST",
            "APPEND k v",
            "STRLEN k",
            "GETRANGE k 0 -1",
            "SETRANGE k 0 v",
            "INCR k",
            "INCRBYFLOAT k 1",
            "SETBIT k 0 1",
            "BITCOUNT k",
            "PFADD k a",
            "PFMERGE other k",
            "BITOP NOT other k",
        ] {
            session.expect_error(request, WRONG);
        }
        session.expect("MGET k", "*1\r\n$-1\r\n");
        session.expect_error(
            "LCS k k",
            "ERR The specified keys must contain string values",
        );
        for (other, make, read) in MAKERS {
            if other != kind {
                session.expect_error(make, WRONG);
                session.expect_error(read, WRONG);
            }
        }
        assert_eq!(session.ask(read), before);
        session.expect("EXISTS other", ":0\r\n");
        session.expect("SET k v", "+OK\r\n");
        session.expect_error(make, WRONG);
        session.expect("GET k", "$1\r\nv\r\n");
    }
}

/// Each repetition was read and combined again: half a million of them took a minute or more.
#[test]
fn a_source_that_is_named_again_counts_as_in_redis() {
    let mut s = Server::session(1);
    s.expect("MSET a abc b xy", "+OK\r\n");
    for (request, result) in [
        ("XOR to a a", "\0\0\0"),
        ("XOR to a a a", "abc"),
        ("XOR to b a b a a", "abc"),
        ("XOR to a a b", "xy\0"),
        ("AND to a a", "abc"),
        ("AND to a none a none", "\0\0\0"),
        ("OR to none a a", "abc"),
    ] {
        s.expect(&format!("BITOP {request}"), ":3\r\n");
        s.expect("GET to", &format!("$3\r\n{result}\r\n"));
    }
    s.expect("PFADD h x y z", ":1\r\n");
    s.expect("PFADD i z w", ":1\r\n");
    s.expect("PFCOUNT h i h h none i none", ":4\r\n");
    s.expect("PFMERGE h h i i h", "+OK\r\n");
    s.expect("PFCOUNT h", ":4\r\n");
    s.expect(&format!("PFCOUNT{}", " none h i".repeat(20)), ":4\r\n");
    let many = " a b".repeat(21);
    s.expect(&format!("BITOP XOR to{many}"), ":3\r\n");
    s.expect("BITOP XOR same a b", ":3\r\n");
    let same = s.ask("GET same");
    s.expect("GET to", &same);
    s.expect("SADD set 1 2", ":2\r\n");
    let many = " set none".repeat(20);
    s.expect(&format!("SUNIONSTORE union{many}"), ":2\r\n");
    s.expect(&format!("SINTERSTORE inter{many}"), ":0\r\n");
    s.expect(&format!("ZUNIONSTORE sum 40{many}"), ":2\r\n");
    s.expect("ZSCORE sum 2", "$2\r\n20\r\n");
    s.expect("ZUNIONSTORE sum 4 set none set set", ":2\r\n");
    let sum = "*4\r\n$1\r\n1\r\n$1\r\n3\r\n$1\r\n2\r\n$1\r\n3\r\n";
    s.expect("ZRANGE sum 0 -1 WITHSCORES", sum);
}

/// collection::C1.
#[test]
fn a_change_keeps_the_expiry_and_a_result_has_none() {
    let mut session = Server::session(1);
    for (_, make, read) in MAKERS {
        session.ask(make);
        let before = session.ask(read);
        session.expect("PEXPIREAT k 1700000060000", ":1\r\n");
        session.ask(&make.replace(" a", " b").replace(" f ", " g "));
        session.expect("PEXPIRETIME k", ":1700000060000\r\n");
        session.expect("PERSIST k", ":1\r\n");
        session.expect("PEXPIREAT k 1700000060000", ":1\r\n");
        session.expect("COPY k other REPLACE", ":1\r\n");
        session.expect("RENAME other third", "+OK\r\n");
        session.expect("PEXPIRETIME third", ":1700000060000\r\n");
        session.server.advance(60_001);
        session.expect("EXISTS k third", ":0\r\n");
        session.ask(make);
        assert_eq!(session.ask(read), before, "it begins anew");
        session.expect("PTTL k", ":-1\r\n");
        session.server.clock_ms.store(START_MS, Ordering::Relaxed);
        session.ask("DEL k");
    }
    session.ask("SADD a 1");
    session.ask("SADD to 2");
    session.ask("EXPIRE to 100");
    session.expect("SUNIONSTORE to a", ":1\r\n");
    session.expect("TTL to", ":-1\r\n");
}

/// types::Y3.
#[test]
fn a_collection_without_elements_is_gone() {
    let mut session = Server::session(1);
    for (make, empty) in [
        ("HSET k f 1", "HDEL k f"),
        ("RPUSH k a", "LPOP k"),
        ("RPUSH k a", "LTRIM k 1 0"),
        ("RPUSH k a", "LREM k 0 a"),
        ("RPUSH k a", "RPOPLPUSH k other"),
        ("SADD k a", "SREM k a"),
        ("SADD k a", "SPOP k"),
        ("SADD k a", "SMOVE k other2 a"),
        ("SADD k a", "SINTERSTORE k k missing"),
        ("ZADD k 1 a", "ZREM k a"),
        ("ZADD k 1 a", "ZPOPMAX k"),
        ("ZADD k 1 a", "ZREMRANGEBYSCORE k 0 2"),
        ("ZADD k 1 a", "ZRANGESTORE k k 5 6"),
        ("ZADD k 1 a", "ZDIFFSTORE k 2 k k"),
    ] {
        session.ask(make);
        assert!(!session.ask(empty).starts_with('-'), "{empty}");
        session.expect("EXISTS k", ":0\r\n");
        session.expect("TYPE k", "+none\r\n");
    }
}

/// types::Y4.
#[test]
fn a_full_collection_names_its_limit_and_stays() {
    let mut session = Server::session(1);
    let half = vec![b'x'; 600 << 10];
    for (start, more) in [
        (&["RPUSH", "k"][..], &["RPUSH", "k"][..]),
        (&["HSET", "k", "f"], &["HSET", "k", "g"]),
        (&["SADD", "k"], &["SADD", "k", "y"]),
        (&["ZADD", "k", "1"], &["ZADD", "k", "1", "y", "2"]),
    ] {
        session.ask("DEL k");
        let mut args: Vec<&[u8]> = start.iter().map(|word| word.as_bytes()).collect();
        args.push(&half);
        assert_eq!(session.ask_bytes(&args), ":1\r\n");
        let mut other = half.clone();
        other[0] = b'z';
        let mut args: Vec<&[u8]> = more.iter().map(|word| word.as_bytes()).collect();
        args.push(&other);
        let reply = session.ask_bytes(&args);
        assert!(
            reply.starts_with("-ERR the collection would exceed the limit of 1048576 bytes"),
            "{reply}"
        );
        let length = match start[0] {
            "RPUSH" => session.ask("LLEN k"),
            "HSET" => session.ask("HLEN k"),
            "SADD" => session.ask("SCARD k"),
            _ => session.ask("ZCARD k"),
        };
        assert_eq!(length, ":1\r\n");
    }
}

#[test]
fn transactions_change_all_types_at_once_and_watch_them() {
    let mut session = Server::session(2);
    let mut other = session.server.client(1);
    let mut executor = session.server.executor(1);
    session.ask("RPUSH l a b c");
    session.expect("WATCH l", "+OK\r\n");
    session.expect("MULTI", "+OK\r\n");
    for request in [
        "LMOVE l m LEFT RIGHT",
        "ZADD z 0.1 a",
        "ZUNIONSTORE u 2 z z",
        "HINCRBY h f 5",
        "BITFIELD b SET u8 100 7",
        "LPUSH m x",
        "INCR l",
        "PFADD p a b c",
        "SORT m ALPHA STORE sorted",
        "SETBIT bit 9999 1",
        "GEOADD g 1 2 a",
        "GEORADIUS g 1 2 5 km STORE near",
    ] {
        session.expect(request, "+QUEUED\r\n");
    }
    let reply = session.ask("EXEC");
    let expected = format!(
        "*12\r\n$1\r\na\r\n:1\r\n:1\r\n:5\r\n*1\r\n:0\r\n:2\r\n-{WRONG}\r\n:1\r\n:2\r\n:0\r\n:1\r\n:1\r\n"
    );
    assert_eq!(reply, expected);
    session.expect("LRANGE sorted 0 -1", "*2\r\n$1\r\na\r\n$1\r\nx\r\n");
    session.expect("ZSCORE u a", "$3\r\n0.2\r\n");
    session.ask("WATCH l");
    run(&mut executor, &mut other, b"LSET l 0 changed\r\n");
    session.ask("MULTI");
    session.ask("DEL l");
    session.expect("EXEC", "*-1\r\n");
    session.expect("LLEN l", ":2\r\n");
}

#[test]
fn scan_shows_the_keys_of_one_type() {
    let mut session = Server::session(1);
    session.ask("SET string 1");
    for (kind, make, _) in MAKERS {
        session.ask(&make.replace(" k", &format!(" {kind}")));
    }
    for kind in ["string", "hash", "list", "set", "zset", "stream"] {
        let reply = session.ask(&format!("SCAN 0 COUNT 100 TYPE {kind}"));
        let expected = format!("*2\r\n$1\r\n0\r\n*1\r\n${}\r\n{kind}\r\n", kind.len());
        assert_eq!(reply, expected);
    }
    session.expect("SCAN 0 COUNT 100 TYPE other", "*2\r\n$1\r\n0\r\n*0\r\n");
}

/// Redis 7.4's names; the random test compares with 7.0, which has others for lists and sets.
#[test]
fn encodings_have_the_names_of_redis() {
    let mut session = Server::session(1);
    let long = "x".repeat(65);
    for (make, name) in [
        ("HSET k a 1".to_owned(), "listpack"),
        (format!("HSET k a {long}"), "hashtable"),
        ("RPUSH k a".to_owned(), "listpack"),
        (format!("RPUSH k {}", "y".repeat(9000)), "quicklist"),
        ("SADD k 1 2 3".to_owned(), "intset"),
        ("SADD k 1 a".to_owned(), "listpack"),
        (format!("SADD k {long}"), "hashtable"),
        ("ZADD k 1 a".to_owned(), "listpack"),
        (format!("ZADD k 1 {long}"), "skiplist"),
        ("XADD k * f v".to_owned(), "stream"),
    ] {
        session.ask("DEL k");
        session.ask(&make);
        let expected = format!("${}\r\n{name}\r\n", name.len());
        assert_eq!(session.ask("OBJECT ENCODING k"), expected, "{make:.40}");
    }
}

/// `CONFIG SET` refused these limits, and a hash was a hashtable from 129 fields on.
#[test]
fn limits_of_encodings_can_be_set() {
    let mut session = Server::session(1);
    let encoding_is = |session: &mut Session, name: &str| {
        let expected = format!("${}\r\n{name}\r\n", name.len());
        assert_eq!(session.ask("OBJECT ENCODING k"), expected);
    };
    for n in 0..512 {
        session.ask(&format!("HSET k {n} v"));
    }
    encoding_is(&mut session, "listpack");
    session.ask("HSET k 512 v");
    encoding_is(&mut session, "hashtable");
    session.expect("CONFIG SET hash-max-ziplist-entries 513", "+OK\r\n");
    encoding_is(&mut session, "listpack");
    let reply = "*2\r\n$25\r\nhash-max-listpack-entries\r\n$3\r\n513\r\n";
    session.expect("CONFIG GET hash-max-listpack-entries", reply);
    session.ask("DEL k");
    session.ask("SADD k 1 2");
    session.expect("CONFIG SET set-max-intset-entries 1", "+OK\r\n");
    encoding_is(&mut session, "listpack");
    session.expect("CONFIG SET set-max-listpack-value 0", "+OK\r\n");
    encoding_is(&mut session, "hashtable");
    let wrong = session.ask("CONFIG SET set-max-listpack-entries 1 zset-max-listpack-value -1");
    assert!(wrong.starts_with("-ERR CONFIG SET failed"), "{wrong}");
    session.expect(
        "CONFIG GET set-max-listpack-entries",
        "*2\r\n$24\r\nset-max-listpack-entries\r\n$3\r\n128\r\n",
    );
}

/// Commands and options of versions after 7.0, with which the random test compares.
#[test]
fn replies_of_newer_versions() {
    let mut session = Server::session(1);
    session.ask("ZADD z 1 a 0.1 b");
    session.expect("ZRANK z a WITHSCORE", "*2\r\n:1\r\n$1\r\n1\r\n");
    session.expect("ZREVRANK z b WITHSCORE", "*2\r\n:1\r\n$3\r\n0.1\r\n");
    session.expect("ZRANK z c WITHSCORE", "*-1\r\n");
    session.expect("ZINCRBY z 0.2 b", "$19\r\n0.30000000000000004\r\n");
    session.ask("HSET h a 1 b 2");
    session.expect(
        "HSCAN h 0 NOVALUES",
        "*2\r\n$1\r\n0\r\n*2\r\n$1\r\na\r\n$1\r\nb\r\n",
    );
    session.ask("SADD s a");
    session.expect_error(
        "SSCAN s 0 NOVALUES",
        "ERR NOVALUES option can only be used in HSCAN",
    );
    session.expect_error(
        "BITCOUNT missing x y",
        "ERR value is not an integer or out of range",
    );
}

/// A connection whose output is limited to 1 MiB.
fn limited() -> Session {
    let server = Server::with(ServerConfig {
        level: Some(Level::Memory),
        threads: 1,
        output_limit_bytes: 1 << 20,
        ..ServerConfig::default()
    });
    Session {
        executor: server.executor(0),
        client: server.client(0),
        server,
    }
}

/// A count of -9223372036854775807 once picked millions of places before the limit was met, and
/// ZRANDMEMBER copied each of their members.
#[test]
fn random_elements_end_at_the_limit_of_the_output() {
    let mut s = limited();
    for make in ["SADD s a", "HSET h a 1", "ZADD z 1 a"] {
        s.expect(make, ":1\r\n");
    }
    for (command, options) in [
        ("SRANDMEMBER s", ""),
        ("HRANDFIELD h", ""),
        ("HRANDFIELD h", " WITHVALUES"),
        ("ZRANDMEMBER z", ""),
        ("ZRANDMEMBER z", " WITHSCORES"),
    ] {
        let all = format!("{command} -9223372036854775807{options}");
        let reply = s.ask(&all);
        assert!(reply.starts_with("-ERR the reply does not fit"), "{reply}");
        let elements = if options.is_empty() {
            "$1\r\na\r\n"
        } else {
            "$1\r\na\r\n$1\r\n1\r\n"
        };
        let width = if options.is_empty() { 1 } else { 2 };
        let reply = format!("*{}\r\n{}", 3 * width, elements.repeat(3));
        s.expect(&format!("{command} -3{options}"), &reply);
        let reply = format!("*{width}\r\n{elements}");
        s.expect(&format!("{command} 3{options}"), &reply);
        s.expect(&format!("{command} 0{options}"), "*0\r\n");
        s.expect(command, "$1\r\na\r\n");
        let of_none = format!("{}x -3{options}", command.trim_end_matches(['s', 'h', 'z']));
        s.expect(&of_none, "*0\r\n");
    }
}

#[test]
fn sort_reads_fields_of_hashes() {
    let mut s = Server::session(1);
    s.expect("RPUSH l a b c", ":3\r\n");
    s.expect("HSET h:a f 3 g x", ":2\r\n");
    s.expect("HSET h:b f 1", ":1\r\n");
    s.expect("HSET h:c f 2 g 7", ":2\r\n");
    s.expect(
        "SORT l BY h:*->f GET # GET h:*->g",
        "*6\r\n$1\r\nb\r\n$-1\r\n$1\r\nc\r\n$1\r\n7\r\n$1\r\na\r\n$1\r\nx\r\n",
    );
}

#[test]
fn what_is_not_sorted_has_its_own_order_or_the_reverse() {
    let mut s = Server::session(1);
    s.expect("RPUSH l b c a", ":3\r\n");
    s.expect("ZADD z 1 b 2 c 3 a", ":3\r\n");
    for key in ["l", "z"] {
        let sort = |rest: &str| format!("SORT {key} BY nosort {rest}");
        s.expect(&sort(""), "*3\r\n$1\r\nb\r\n$1\r\nc\r\n$1\r\na\r\n");
        s.expect(&sort("DESC"), "*3\r\n$1\r\na\r\n$1\r\nc\r\n$1\r\nb\r\n");
        s.expect(&sort("DESC LIMIT 0 1"), "*1\r\n$1\r\na\r\n");
        s.expect(&sort("LIMIT 1 2"), "*2\r\n$1\r\nc\r\n$1\r\na\r\n");
    }
}

/// The values of one element were all copied before their limit was looked at.
#[test]
fn sort_ends_at_the_limit_of_its_result() {
    let mut s = limited();
    s.expect("RPUSH l a", ":1\r\n");
    s.ask_bytes(&[b"SET", b"x:a", &vec![b'v'; 1 << 20]]);
    let gets = "GET x:* ".repeat(3_000); // 3 GB
    s.expect_error(
        &format!("SORT l ALPHA {gets}STORE t"),
        "ERR the collection would exceed",
    );
    s.expect("EXISTS t", ":0\r\n");
    s.expect_error(
        &format!("SORT l ALPHA {gets}"),
        "ERR the reply does not fit",
    );
}

/// Sets that are combined in parts, as others change them or not.
#[test]
fn sets_are_combined_in_parts() {
    let mut s = Server::session(2);
    let mut other = (s.server.executor(1), s.server.client(1));
    for set in 0..6 {
        for part in 0..10 {
            let members = (0..3_000).map(|n| format!(" {}", set + 3_000 * part + n));
            s.ask(&format!("SADD s{set}{}", members.collect::<String>()));
        }
    }
    let all = "s0 s1 s2 s3 s4 s5";
    let mut rounds = |request: &str, change: Option<&str>| {
        let input = format!("{request}\r\n");
        for round in 1..1_000 {
            let reply = run_part(&mut s.executor, &mut s.client, input.as_bytes());
            if !reply.is_empty() {
                return (reply, round);
            }
            if let Some(change) = change {
                run(
                    &mut other.0,
                    &mut other.1,
                    format!("{change}\r\n").as_bytes(),
                );
            }
        }
        panic!("{request} does not end");
    };
    let changes = [None, Some("SADD s3 x"), Some("SPOP s3")];
    assert_eq!(rounds(&format!("SINTERCARD 6 {all}"), None).0, ":29995\r\n");
    assert_eq!(
        rounds(&format!("SUNIONSTORE d {all}"), None).0,
        ":30005\r\n"
    );
    assert_eq!(rounds("SDIFFSTORE d s0 s5 s4 s3 s2 s1", None).0, ":1\r\n");
    assert_eq!(
        rounds(&format!("ZUNIONSTORE d 6 {all}"), None).0,
        ":30005\r\n"
    );
    assert_eq!(rounds("ZSCORE d 100", None).0, "$1\r\n6\r\n");
    assert_eq!(
        rounds(&format!("ZINTERSTORE d 6 {all} WEIGHTS 1 2 3 4 5 6"), None).0,
        ":29995\r\n"
    );
    assert_eq!(rounds("ZSCORE d 100", None).0, "$2\r\n21\r\n");
    assert_eq!(rounds("ZDIFFSTORE d 6 s0 s5 s4 s3 s2 s1", None).0, ":1\r\n");
    // A writer of a source does not keep it from its end. One union of all sets may fit into a
    // slice of a fast machine.
    let mut most = 0;
    let eight_times = [all; 8].join(" ");
    for change in changes.iter().cycle().take(9) {
        let (reply, parts) = rounds(&format!("ZUNIONSTORE d 48 {eight_times}"), *change);
        assert!(reply.starts_with(":300"), "{reply}");
        most = most.max(parts);
    }
    assert!((2..60).contains(&most), "{most} parts");
}

/// Small differences from Redis that users met.
#[test]
fn numbers_and_options_are_read_as_in_redis() {
    let mut s = Server::session(1);
    s.expect("ZADD z 0x10 a 5.31e-05 b 1 c", ":3\r\n");
    s.expect("ZSCORE z a", "$2\r\n16\r\n");
    s.expect("ZSCORE z b", "$7\r\n5.31e-5\r\n");
    s.expect("ZINCRBY z 0x10 a", "$2\r\n32\r\n");
    for wrong in ["(1", "1e309", "\" 1\"", "\"1 \"", "0x"] {
        s.expect_error(
            &format!("ZADD z {wrong} x"),
            "ERR value is not a valid float",
        );
    }
    for (low, high, count) in [
        ("(", "+inf", 3),
        ("\" 1\"", "0x20", 2),
        ("\"\"", "(0x20", 2),
        ("1", "1e309", 2),
    ] {
        s.expect(&format!("ZCOUNT z {low} {high}"), &format!(":{count}\r\n"));
    }
    s.expect_error("ZCOUNT z \"( x\" 5", "ERR min or max is not a float");
    s.expect("INCRBYFLOAT f 0x10", "$2\r\n16\r\n");
    s.expect_error("INCRBYFLOAT f 1e400", "ERR value is not a valid float");
    s.expect(
        "BITFIELD b GET u8 4294967295 GET i64 4294967290",
        "*2\r\n:0\r\n:0\r\n",
    );
    s.expect_error("BITFIELD b GET u8 4294967296", "ERR bit offset is not");
    for twice in ["REV REV", "BYSCORE BYSCORE", "BYLEX BYSCORE"] {
        s.expect_error(&format!("ZRANGE z 0 1 {twice}"), "ERR syntax error");
    }
    s.ask("SET k v");
    for options in ["FREQ 1 IDLETIME 1", "IDLETIME 1 FREQ 1"] {
        s.expect_error(&format!("RESTORE l 0 x {options}"), "ERR syntax error");
    }
    let long = "x".repeat(100_000);
    for name in ["maxmemory", "maxmemory-policy", &long] {
        let request = ["CONFIG", "SET", name, &long].map(str::as_bytes);
        let reply = s.ask_bytes(&request);
        assert!(
            reply.starts_with("-ERR") && reply.len() < 1_000,
            "{reply:.300}"
        );
    }
}
