//! Each command's replies, equal to those of Redis.

use super::*;

#[test]
fn strings_are_set_and_got() {
    let mut s = Server::session(1);
    s.expect("GET a", "$-1\r\n");
    s.expect("SET a 1", "+OK\r\n");
    s.expect("get a", "$1\r\n1\r\n");
    s.expect("GETSET a 2", "$1\r\n1\r\n");
    s.expect("SETNX a 3", ":0\r\n");
    s.expect("SETNX b 3", ":1\r\n");
    s.expect("APPEND a 34", ":3\r\n");
    s.expect("STRLEN a", ":3\r\n");
    s.expect("GETRANGE a 1 -1", "$2\r\n34\r\n");
    s.expect("GETRANGE a -100 0", "$1\r\n2\r\n");
    s.expect("GETRANGE a 5 9", "$0\r\n\r\n");
    s.expect("SETRANGE a 5 x", ":6\r\n");
    s.expect("GET a", "$6\r\n234\0\0x\r\n");
    s.expect("SETRANGE nosuch 5 \"\"", ":0\r\n");
    s.expect("EXISTS nosuch", ":0\r\n");
    s.expect_error("SETRANGE a -1 x", "ERR offset is out of range");
    s.expect_error(
        "SETRANGE a 536870912 x",
        "ERR string exceeds maximum allowed size",
    );
    s.expect("GETDEL a", "$6\r\n234\0\0x\r\n");
    s.expect("GETDEL a", "$-1\r\n");
    s.expect("TYPE b", "+string\r\n");
    s.expect("TYPE a", "+none\r\n");
}

#[test]
fn set_options_combine_or_conflict() {
    let mut s = Server::session(1);
    s.expect("SET k v XX", "$-1\r\n");
    s.expect("SET k v NX", "+OK\r\n");
    s.expect("SET k w NX", "$-1\r\n");
    s.expect("SET k w NX GET", "$1\r\nv\r\n");
    s.expect("SET k w XX GET", "$1\r\nv\r\n");
    s.expect("SET k x EX 100", "+OK\r\n");
    s.expect("SET k y KEEPTTL", "+OK\r\n");
    s.expect("TTL k", ":100\r\n");
    s.expect("SET k z", "+OK\r\n");
    s.expect("TTL k", ":-1\r\n");
    s.expect("SET k 1 IFEQ nope", "$-1\r\n");
    s.expect("SET k 1 IFEQ z", "+OK\r\n");
    s.expect("SET k 2 IFEQ 1 GET", "$1\r\n1\r\n");
    s.expect("SET nosuch 2 IFEQ 1", "$-1\r\n");
    s.expect("SET k 3 IFNE 2", "$-1\r\n");
    s.expect("SET k 3 IFNE 2 GET", "$1\r\n2\r\n");
    s.expect("SET k 3 IFNE 1", "+OK\r\n");
    s.expect("SET k 4 IFNE 1 GET", "$1\r\n3\r\n");
    s.expect("GET k", "$1\r\n4\r\n");
    s.expect("SET absent 1 IFNE 1", "+OK\r\n");
    s.expect("SET absent 2 IFNE 1", "$-1\r\n");
    s.expect("RPUSH alist a", ":1\r\n");
    s.expect_error("SET alist 1 IFNE 1", "WRONGTYPE");
    s.expect("DEL absent alist", ":2\r\n");
    s.expect("SET new v GET", "$-1\r\n");
    for conflict in [
        "SET k v NX XX",
        "SET k v EX 1 PX 1",
        "SET k v EX 1 KEEPTTL",
        "SET k v IFEQ a NX",
        "SET k v XX IFNE a",
        "SET k v IFNE a IFEQ b",
        "SET k v IFNE",
        "SET k v EX",
        "SET k v NOSUCH",
        "GETEX k PERSIST EX 1",
        "GETEX k EX 1 PX 1",
    ] {
        s.expect(conflict, "-ERR syntax error\r\n");
    }
    s.expect(
        "SET k v EX 0",
        "-ERR invalid expire time in 'set' command\r\n",
    );
    s.expect(
        "SET k v EX -1",
        "-ERR invalid expire time in 'set' command\r\n",
    );
    s.expect(
        "SET k v EX 9223372036854775807",
        "-ERR invalid expire time in 'set' command\r\n",
    );
    s.expect(
        "SET k v EX x",
        "-ERR value is not an integer or out of range\r\n",
    );
    s.expect(
        "SETEX k 0 v",
        "-ERR invalid expire time in 'setex' command\r\n",
    );
    s.expect(
        "PSETEX k -5 v",
        "-ERR invalid expire time in 'psetex' command\r\n",
    );
}

#[test]
fn counters_count() {
    let mut s = Server::session(1);
    s.expect("INCR n", ":1\r\n");
    s.expect("INCRBY n 41", ":42\r\n");
    s.expect("DECR n", ":41\r\n");
    s.expect("DECRBY n 1", ":40\r\n");
    s.expect("SET n 9223372036854775807", "+OK\r\n");
    s.expect("INCR n", "-ERR increment or decrement would overflow\r\n");
    s.expect(
        "DECRBY n -9223372036854775808",
        "-ERR decrement would overflow\r\n",
    );
    s.expect(
        "INCRBY n 1.5",
        "-ERR value is not an integer or out of range\r\n",
    );
    for text in ["\" 1\"", "+1", "01", "1x", "\"\"", "-0"] {
        s.ask(&format!("SET n {text}"));
        s.expect("INCR n", "-ERR value is not an integer or out of range\r\n");
    }
    s.expect("SET f 10.50", "+OK\r\n");
    s.expect("INCRBYFLOAT f 0.1", "$4\r\n10.6\r\n");
    s.expect("INCRBYFLOAT f -5", "$3\r\n5.6\r\n");
    s.expect("INCRBYFLOAT f 5.0e3", "$6\r\n5005.6\r\n");
    s.expect(
        "INCRBYFLOAT f inf",
        "-ERR increment would produce NaN or Infinity\r\n",
    );
    s.expect("INCRBYFLOAT f x", "-ERR value is not a valid float\r\n");
    s.expect("SET f x EX 100", "+OK\r\n");
    s.expect("INCRBYFLOAT f 1", "-ERR value is not a valid float\r\n");
    s.expect("SET n 5 EX 100", "+OK\r\n");
    s.expect("INCR n", ":6\r\n");
    s.expect("TTL n", ":100\r\n");
}

#[test]
fn several_keys_at_once() {
    let mut s = Server::session(1);
    s.expect("MSET a 1 b 2 a 3", "+OK\r\n");
    s.expect("MGET a nosuch b", "*3\r\n$1\r\n3\r\n$-1\r\n$1\r\n2\r\n");
    s.expect("MSETNX c 1 a 9", ":0\r\n");
    s.expect("EXISTS c", ":0\r\n");
    s.expect("MSETNX c 1 d 9", ":1\r\n");
    s.expect("EXISTS a a b nosuch", ":3\r\n");
    s.expect("TOUCH a b nosuch", ":2\r\n");
    s.expect("DEL a b nosuch a", ":2\r\n");
    s.expect("UNLINK c", ":1\r\n");
    s.expect("DBSIZE", ":1\r\n");
    s.expect(
        "MSET a",
        "-ERR wrong number of arguments for 'mset' command\r\n",
    );
    s.expect(
        "MSET a 1 b",
        "-ERR wrong number of arguments for 'mset' command\r\n",
    );
    s.expect(
        "MSETNX a 1 b",
        "-ERR wrong number of arguments for 'msetnx' command\r\n",
    );
}

/// A request with more keys than a group holds hashes them itself.
#[test]
fn more_keys_than_a_group_holds() {
    for threads in [1, 2] {
        let mut s = Server::session(threads);
        let (mut set, mut get, mut reply) = ("MSET".to_string(), "MGET".to_string(), String::new());
        for n in 0..1000 {
            set.push_str(&format!(" key:{n} {n}"));
            get.push_str(&format!(" key:{n}"));
            reply.push_str(&format!("${}\r\n{n}\r\n", n.to_string().len()));
        }
        s.expect(&set, "+OK\r\n");
        s.expect(&get, &format!("*1000\r\n{reply}"));
        s.expect(&get.replace("MGET", "EXISTS"), ":1000\r\n");
        s.expect(&get.replace("MGET", "DEL"), ":1000\r\n");
        s.expect("DBSIZE", ":0\r\n");
    }
}

#[test]
fn keys_expire() {
    let mut s = Server::session(1);
    s.expect("SET k v", "+OK\r\n");
    s.expect("TTL nosuch", ":-2\r\n");
    s.expect("TTL k", ":-1\r\n");
    s.expect("EXPIRE k 10", ":1\r\n");
    s.expect("PTTL k", ":10000\r\n");
    s.expect("EXPIRETIME k", &format!(":{}\r\n", START_MS / 1000 + 10));
    s.expect("PEXPIRETIME k", &format!(":{}\r\n", START_MS + 10_000));
    s.expect("EXPIRE k 20 NX", ":0\r\n");
    s.expect("EXPIRE k 20 XX", ":1\r\n");
    s.expect("EXPIRE k 10 GT", ":0\r\n");
    s.expect("EXPIRE k 30 GT", ":1\r\n");
    s.expect("EXPIRE k 40 LT", ":0\r\n");
    s.expect("EXPIRE k 5 LT", ":1\r\n");
    s.expect("PERSIST k", ":1\r\n");
    s.expect("PERSIST k", ":0\r\n");
    s.expect("EXPIRE k 10 GT", ":0\r\n");
    s.expect("EXPIRE k 10 LT", ":1\r\n");
    s.expect("PEXPIRE k 1500", ":1\r\n");
    s.expect("TTL k", ":2\r\n");
    s.server.advance(1501);
    s.expect("GET k", "$-1\r\n");
    s.expect("EXISTS k", ":0\r\n");
    s.expect("EXPIRE k 10", ":0\r\n");
    s.expect("SET k v", "+OK\r\n");
    s.expect("EXPIREAT k 1", ":1\r\n");
    s.expect("EXISTS k", ":0\r\n");
    s.expect("SET k v", "+OK\r\n");
    s.expect("EXPIRE k -1", ":1\r\n");
    s.expect("GET k", "$-1\r\n");
    let both = "-ERR NX and XX, GT or LT options at the same time are not compatible\r\n";
    s.expect("EXPIRE k 1 NX XX", both);
    s.expect(
        "EXPIRE k 1 GT LT",
        "-ERR GT and LT options at the same time are not compatible\r\n",
    );
    s.expect("EXPIRE k 1 YY", "-ERR Unsupported option YY\r\n");
    s.expect(
        "EXPIRE k 9223372036854775807",
        "-ERR invalid expire time in 'expire' command\r\n",
    );
    s.expect(
        "PEXPIRE k 9223372036854775807",
        "-ERR invalid expire time in 'pexpire' command\r\n",
    );
    s.expect(
        "EXPIRE k x",
        "-ERR value is not an integer or out of range\r\n",
    );
    s.expect("SET k v PX 100", "+OK\r\n");
    s.expect("GETEX k EX 50", "$1\r\nv\r\n");
    s.expect("TTL k", ":50\r\n");
    s.expect("GETEX k PERSIST", "$1\r\nv\r\n");
    s.expect("TTL k", ":-1\r\n");
    s.expect("GETEX nosuch EX 0", "$-1\r\n");
    s.expect(
        "GETEX k EX 0",
        "-ERR invalid expire time in 'getex' command\r\n",
    );
}

/// As in Redis, a key exists in the millisecond of its time of expiry: a new value may have that
/// time. A key that keeps its value and is given that time goes at once.
#[test]
fn a_key_exists_in_the_millisecond_of_its_expiry() {
    let mut s = Server::session(1);
    s.expect("SET k 5 PX 100", "+OK\r\n");
    s.server.advance(100);
    let now_ms = START_MS + 100;
    s.expect("GET k", "$1\r\n5\r\n");
    s.expect("TTL k", ":0\r\n");
    s.expect("PTTL k", ":0\r\n");
    s.expect("INCR k", ":6\r\n");
    s.expect("APPEND k 0", ":2\r\n");
    s.expect("SET k v KEEPTTL", "+OK\r\n");
    s.expect("COPY k copy", ":1\r\n");
    s.expect("RENAME k renamed", "+OK\r\n");
    s.expect(&format!("SET set v PXAT {now_ms}"), "+OK\r\n");
    let in_transaction =
        format!("MULTI\r\nSET queued v PXAT {now_ms}\r\nGET queued\r\nAPPEND queued w\r\nEXEC");
    let queued = "+QUEUED\r\n".repeat(3);
    s.expect(
        &in_transaction,
        &format!("+OK\r\n{queued}*3\r\n+OK\r\n$1\r\nv\r\n:2\r\n"),
    );
    s.expect("EXISTS copy renamed set queued", ":4\r\n");
    for command in [
        format!("PEXPIREAT gone {now_ms}"),
        "PEXPIRE gone 0".to_owned(),
    ] {
        s.expect(&format!("SET gone v PXAT {now_ms}"), "+OK\r\n");
        s.expect(&command, ":1\r\n");
        s.expect("EXISTS gone", ":0\r\n");
    }
    s.expect(&format!("SET gone v PXAT {now_ms}"), "+OK\r\n");
    s.expect(&format!("GETEX gone PXAT {now_ms}"), "$1\r\nv\r\n");
    s.expect("EXISTS gone", ":0\r\n");
    s.server.advance(1);
    s.expect("EXISTS copy renamed set queued", ":0\r\n");
    s.expect("PTTL set", ":-2\r\n");
}

#[test]
fn keys_are_renamed_copied_and_moved() {
    let mut s = Server::session(1);
    s.expect("RENAME a b", "-ERR no such key\r\n");
    s.expect("SET a 1 EX 100", "+OK\r\n");
    s.expect("RENAME a b", "+OK\r\n");
    s.expect("TTL b", ":100\r\n");
    s.expect("RENAME b b", "+OK\r\n");
    s.expect("RENAMENX b b", ":0\r\n");
    s.expect("SET c 3", "+OK\r\n");
    s.expect("RENAMENX b c", ":0\r\n");
    s.expect("RENAMENX b d", ":1\r\n");
    s.expect("COPY d c", ":0\r\n");
    s.expect("COPY d c REPLACE", ":1\r\n");
    s.expect("TTL c", ":100\r\n");
    s.expect("COPY nosuch x", ":0\r\n");
    s.expect(
        "COPY c c",
        "-ERR source and destination objects are the same\r\n",
    );
    s.expect("COPY c c DB 3", ":1\r\n");
    s.expect("COPY c c DB 16", "-ERR DB index is out of range\r\n");
    s.expect("MOVE c 3", ":0\r\n");
    s.expect("MOVE c 4", ":1\r\n");
    s.expect(
        "MOVE c 0",
        "-ERR source and destination objects are the same\r\n",
    );
    s.expect("EXISTS c", ":0\r\n");
    s.expect("SELECT 3", "+OK\r\n");
    s.expect("GET c", "$1\r\n1\r\n");
    s.expect_error("SWAPDB -1 x", "ERR invalid second DB index");
    s.expect_error("SWAPDB x 99", "ERR invalid first DB index");
    s.expect_error("SWAPDB -1 1", "ERR DB index is out of range");
    s.expect("SWAPDB 3 4", "+OK\r\n");
    s.expect("GET c", "$1\r\n1\r\n");
    s.expect("DEL c", ":1\r\n");
    s.expect("SWAPDB 4 3", "+OK\r\n");
    s.expect("GET c", "$1\r\n1\r\n");
    s.expect("SELECT 16", "-ERR DB index is out of range\r\n");
    s.expect(
        "SELECT x",
        "-ERR value is not an integer or out of range\r\n",
    );
    s.expect("FLUSHDB", "+OK\r\n");
    s.expect("DBSIZE", ":0\r\n");
    s.expect("SELECT 0", "+OK\r\n");
    s.expect("DBSIZE", ":1\r\n");
    s.expect("FLUSHALL ASYNC", "+OK\r\n");
    s.expect("FLUSHALL NOW", "-ERR syntax error\r\n");
    s.expect("DBSIZE", ":0\r\n");
    s.expect("RANDOMKEY", "$-1\r\n");
    s.expect("SET only 1", "+OK\r\n");
    s.expect("RANDOMKEY", "$4\r\nonly\r\n");
}

#[test]
fn scans_show_every_key_once_when_nothing_changes() {
    let mut s = Server::session(1);
    for n in 0..500 {
        s.ask(&format!("SET key:{n} {n}"));
    }
    let mut keys = Vec::new();
    let mut cursor = "0".to_string();
    loop {
        let reply = s.ask(&format!("SCAN {cursor} COUNT 7 MATCH key:*"));
        let mut lines = reply
            .split("\r\n")
            .filter(|line| !line.starts_with(['$', '*']));
        cursor = lines.next().expect("a cursor").to_string();
        keys.extend(lines.filter(|line| !line.is_empty()).map(String::from));
        if cursor == "0" {
            break;
        }
    }
    assert_eq!(keys.len(), 500);
    keys.sort();
    keys.dedup();
    assert_eq!(keys.len(), 500);
    assert!(s.ask("KEYS key:1?").starts_with("*10\r\n"));
    s.expect("SCAN 0 TYPE list COUNT 1000", "*2\r\n$1\r\n0\r\n*0\r\n");
    s.expect("SCAN x", "-ERR invalid cursor\r\n");
    s.expect("SCAN 0 COUNT 0", "-ERR syntax error\r\n");
    s.expect("SCAN 0 COUNT", "-ERR syntax error\r\n");
    s.expect(
        "SCAN 0 COUNT x",
        "-ERR value is not an integer or out of range\r\n",
    );
}

#[test]
fn unknown_and_foreign_commands_are_named() {
    let mut s = Server::session(1);
    s.expect(
        "NOSUCH a b",
        "-ERR unknown command 'NOSUCH', with args beginning with: 'a' 'b' \r\n",
    );
    s.expect(
        "GET",
        "-ERR wrong number of arguments for 'get' command\r\n",
    );
    s.expect(
        "CLIENT",
        "-ERR wrong number of arguments for 'client' command\r\n",
    );
    s.expect(
        "CLIENT GETNAME x",
        "-ERR wrong number of arguments for 'client|getname' command\r\n",
    );
    s.expect(
        "CLIENT NOSUCH",
        "-ERR unknown subcommand 'NOSUCH'. Try CLIENT HELP.\r\n",
    );
    s.expect(
        "client|getname",
        "-ERR unknown command 'client|getname', with args beginning with: \r\n",
    );
    s.expect_error(
        "HEXPIRE x 0",
        "ERR HEXPIRE is not supported: fields of a hash do not expire",
    );
    s.expect(
        "CLUSTER INFO",
        "-ERR This instance has cluster support disabled\r\n",
    );
}

/// Clients decode errors as text.
#[test]
fn errors_are_text_whatever_bytes_their_request_has() {
    let mut s = Server::session(1);
    let unknown = "-ERR unknown command 'NO\u{fffd}', with args beginning with: '\u{fffd}b' \r\n";
    let subcommand = "-ERR unknown subcommand '\u{fffd}'. Try CLIENT HELP.\r\n";
    let cases: [(&[&[u8]], &str); 2] = [
        (&[b"NO\xff", b"\xfeb"], unknown),
        (&[b"CLIENT", b"\xff"], subcommand),
    ];
    for (request, expected) in cases {
        let reply = run_bytes(&mut s.executor, &mut s.client, request);
        assert_eq!(reply, expected.as_bytes(), "{}", reply.escape_ascii());
    }
}

#[test]
fn keys_and_values_beyond_the_limits_are_refused() {
    let mut s = Server::session(1);
    let (key, value) = (vec![b'k'; 65_536], vec![b'v'; (1 << 20) + 1]);
    let reply = s.ask_bytes(&[b"SET", &key, b"v"]);
    assert!(reply.starts_with("-ERR key of 65536 bytes"), "{reply}");
    let reply = s.ask_bytes(&[b"SET", b"k", &value]);
    assert!(
        reply.starts_with("-ERR string exceeds maximum allowed size"),
        "{reply}"
    );
    let reply = s.ask_bytes(&[b"MSET", b"a", b"1", b"k", &value]);
    assert!(reply.starts_with("-ERR string exceeds"), "{reply}");
    s.expect("DBSIZE", ":0\r\n");
    assert_eq!(s.ask_bytes(&[b"GET", &key]), "$-1\r\n");
    assert_eq!(s.ask_bytes(&[b"SET", b"k", &value[..1 << 20]]), "+OK\r\n");
    let reply = s.ask_bytes(&[b"APPEND", b"k", b"v"]);
    assert!(reply.starts_with("-ERR string exceeds"), "{reply}");
}

#[test]
fn a_key_is_deleted_if_its_value_is_the_given_one() {
    let mut s = Server::session(1);
    s.expect("SET lock owner", "+OK\r\n");
    s.expect("DELIFEQ lock other", ":0\r\n");
    s.expect("EXISTS lock", ":1\r\n");
    s.expect("DELIFEQ lock owner", ":1\r\n");
    s.expect("DELIFEQ lock owner", ":0\r\n");
    s.expect("EXISTS lock", ":0\r\n");
    s.expect("LPUSH list a", ":1\r\n");
    s.expect_error("DELIFEQ list a", "WRONGTYPE");
    s.expect("EXISTS list", ":1\r\n");
}
