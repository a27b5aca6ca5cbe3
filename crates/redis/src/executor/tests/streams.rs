//! Streams: what Redis 7.4 answers otherwise than 7.0, with which `tests/differential` compares;
//! and what is our own.

use super::*;
use crate::command::lookup::Resolved;
use crate::command::row::{Effect, Growth};
use crate::table::COMMANDS;
use duramen_base::random::Random;

#[test]
fn consumers_are_there_once_they_have_asked() {
    let mut session = Server::session(1);
    session.expect("XGROUP CREATE k g $ MKSTREAM", "+OK\r\n");
    session.expect("XREADGROUP GROUP g a STREAMS k >", "*-1\r\n");
    session.expect("XCLAIM k g c 0 1-1", "*0\r\n");
    session.expect("XAUTOCLAIM k g d 0 0", "*3\r\n$3\r\n0-0\r\n*0\r\n*0\r\n");
    session.server.advance(5);
    let mut expected = "*3\r\n".to_owned();
    for name in ["a", "c", "d"] {
        expected += &format!("*8\r\n$4\r\nname\r\n$1\r\n{name}\r\n$7\r\npending\r\n:0\r\n");
        expected += "$4\r\nidle\r\n:5\r\n$8\r\ninactive\r\n:-1\r\n";
    }
    session.expect("XINFO CONSUMERS k g", &expected);
    session.expect("XADD k 1-1 f v", "$3\r\n1-1\r\n");
    session.ask("XREADGROUP GROUP g a STREAMS k >");
    session.server.advance(20);
    let told = session.ask("XINFO CONSUMERS k g");
    assert!(
        told.contains(":1\r\n$4\r\nidle\r\n:20\r\n$8\r\ninactive\r\n:20\r\n"),
        "{told}"
    );
    let told = session.ask("XINFO STREAM k FULL");
    let active = format!("$11\r\nactive-time\r\n:{}\r\n", START_MS + 5);
    assert!(told.contains(&active), "{told}");
}

/// stream::read::R1.
#[test]
fn asking_in_vain_is_seldom_written() {
    let mut session = Server::session(1);
    session.ask("XGROUP CREATE k g $ MKSTREAM");
    let ask = "XREADGROUP GROUP g a STREAMS k >";
    session.expect(ask, "*-1\r\n");
    session.ask("WATCH k");
    session.server.advance(9_999);
    session.expect(ask, "*-1\r\n");
    session.ask("MULTI");
    session.expect("EXEC", "*0\r\n");
    session.ask("WATCH k");
    session.server.advance(1);
    session.expect(ask, "*-1\r\n");
    session.ask("MULTI");
    session.expect("EXEC", "*-1\r\n");
    let told = session.ask("XINFO CONSUMERS k g");
    assert!(told.contains("$4\r\nidle\r\n:0\r\n"), "{told}");
}

#[test]
fn the_last_entry_is_read_by_plus() {
    let mut session = Server::session(1);
    session.expect("XREAD STREAMS k +", "*-1\r\n");
    session.ask("XADD k 1-1 f v");
    session.ask("XADD k 2-0 f w");
    let last = "*1\r\n*2\r\n$1\r\nk\r\n*1\r\n*2\r\n$3\r\n2-0\r\n*2\r\n$1\r\nf\r\n$1\r\nw\r\n";
    session.expect("XREAD STREAMS k +", last);
    session.ask("XADD k 3-0 f x");
    session.ask("XDEL k 3-0");
    session.expect("XREAD STREAMS k +", last);
    session.ask("XGROUP CREATE k g 0");
    session.expect_error(
        "XREADGROUP GROUP g c STREAMS k +",
        "ERR The + ID is meaningless in the context of XREADGROUP: you want to read the history of \
         this consumer by specifying a proper ID, or use the > ID to get new messages. The + ID \
         would just return an empty result set.",
    );
    session.expect_error(
        "XREAD STREAMS k k 0",
        "ERR Unbalanced 'xread' list of streams: for each stream key an ID or '$' must be specified.",
    );
    session.expect_error(
        "XREADGROUP GROUP g c STREAMS k k >",
        "ERR Unbalanced 'xreadgroup' list of streams: for each stream key an ID or '>' must be \
         specified.",
    );
    session.expect_error(
        "XSETID k 2-9",
        "ERR The ID specified in XSETID is smaller than current max_deleted_entry_id",
    );
}

#[test]
fn ids_come_from_the_clock_and_never_go_back() {
    let mut session = Server::session(1);
    let id = |ms: u64, seq: u64| format!("${}\r\n{ms}-{seq}\r\n", format!("{ms}-{seq}").len());
    session.expect("XADD k * f v", &id(START_MS, 0));
    session.expect("XADD k * f v", &id(START_MS, 1));
    session.server.advance(7);
    session.expect("XADD k * f v", &id(START_MS + 7, 0));
    session.expect(
        "XADD k 1900000000000-18446744073709551615 f v",
        "$34\r\n1900000000000-18446744073709551615\r\n",
    );
    session.expect("XADD k * f v", &id(1_900_000_000_001, 0));
    session.expect("XADD k 18446744073709551615-* f v", &id(u64::MAX, 0));
    session.expect(
        "XADD k 18446744073709551615-18446744073709551615 f v",
        &id(u64::MAX, u64::MAX),
    );
    session.expect_error(
        "XADD k * f v",
        "ERR The stream has exhausted the last possible ID, unable to add more items",
    );
}

/// Redis removes whole nodes, of 100 entries by default.
#[test]
fn rough_trimming_removes_hundreds() {
    let mut session = Server::session(1);
    for n in 1..=1_000 {
        session.ask(&format!("XADD k MAXLEN ~ 555 {n}-0 f v"));
    }
    session.expect("XLEN k", ":600\r\n");
    session.expect("XTRIM k MAXLEN ~ 85 LIMIT 30", ":0\r\n");
    session.expect("XTRIM k MAXLEN ~ 85 LIMIT 250", ":200\r\n");
    session.expect("XTRIM k MINID ~ 750", ":100\r\n");
    session.expect("XTRIM k MAXLEN ~ 0 LIMIT 0", ":300\r\n");
    session.expect("XLEN k", ":0\r\n");
    session.expect("TYPE k", "+stream\r\n");
}

#[test]
fn a_full_stream_names_its_limit_and_stays() {
    let mut session = Server::session(1);
    let half = vec![b'x'; 600 << 10];
    let reply = session.ask_bytes(&[b"XADD", b"k", b"1-1", b"f", &half]);
    assert_eq!(reply, "$3\r\n1-1\r\n");
    let reply = session.ask_bytes(&[b"XADD", b"k", b"2-1", b"f", &half]);
    assert!(
        reply.starts_with("-ERR the collection would exceed the limit of 1048576 bytes"),
        "{reply}"
    );
    session.expect("XLEN k", ":1\r\n");
    let reply = session.ask_bytes(&[b"XADD", b"k", b"MAXLEN", b"1", b"2-1", b"f", &half]);
    assert_eq!(reply, "$3\r\n2-1\r\n");
}

#[test]
fn a_transaction_changes_streams_at_once() {
    let mut session = Server::session(1);
    session.ask("XGROUP CREATE k g 0 MKSTREAM");
    session.ask("MULTI");
    for request in [
        "XADD k 1-1 f v",
        "XADD other 1-1 f v",
        "XREADGROUP GROUP g c COUNT 1 STREAMS k >",
        "XREADGROUP GROUP g c BLOCK 0 STREAMS k >",
        "XACK k g 1-1",
        "XADD k 1-1 f v",
        "XREAD STREAMS k other 0 1-1",
    ] {
        session.expect(request, "+QUEUED\r\n");
    }
    let entries = "*1\r\n*2\r\n$1\r\nk\r\n*1\r\n*2\r\n$3\r\n1-1\r\n*2\r\n$1\r\nf\r\n$1\r\nv\r\n";
    let expected = format!(
        "*7\r\n$3\r\n1-1\r\n$3\r\n1-1\r\n{entries}*-1\r\n:1\r\n-ERR The ID specified in XADD is equal or \
         smaller than the target stream top item\r\n{entries}"
    );
    assert_eq!(session.ask("EXEC"), expected);
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
        format!("XCLAIM k {group} {consumer} 0 {id}-1 {id} FORCE TIME {id} RETRYCOUNT 99999999"),
        format!("XAUTOCLAIM k {group} {consumer} 0 {id}"),
        format!("XAUTOCLAIM k {group} {consumer} 0 0 COUNT 2 JUSTID"),
    ];
    random.pick(&templates).cloned().unwrap_or_default()
}

#[test]
fn no_stream_grows_beyond_its_bound() {
    let mut session = Server::session(1);
    let (mut random, mut last) = (Random::new(5), 1);
    session.ask("XGROUP CREATE k g 0 MKSTREAM");
    let mut before = session.number("MEMORY USAGE k");
    for _ in 0..20_000 {
        let request = stream_request(&mut random, &mut last);
        let input = format!("{request}\r\n");
        let requests = parsed(input.as_bytes());
        let args = requests.args(0, input.as_bytes());
        let Resolved::Command(spec) = COMMANDS.resolve(&args) else {
            panic!("{request}");
        };
        let Effect::Writes(Growth::By(more)) = spec.effect else {
            panic!("{request} has another bound");
        };
        let more = more(&args, before as usize);
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
