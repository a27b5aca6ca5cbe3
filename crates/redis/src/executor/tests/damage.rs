//! Objects of which memory has changed bits.

use super::{Server, Session};
use crate::operation::figures;
use duramen_base::planted::{Bug, with_bug};
use duramen_engine::{Stats, TableId};

#[test]
fn a_flipped_bit_is_not_seen_and_more_damage_is_an_error_of_its_key_alone() {
    let mut s = Server::session(1);
    s.expect("SET one value", "+OK\r\n");
    s.expect("SET two value", "+OK\r\n");
    s.expect("SET sound value", "+OK\r\n");
    let store = s.server.shared.data().expect("a store").clone();
    assert!(store.flips().entry(TableId::DEFAULT, b"one", &[8 * 20]));
    assert!(
        store
            .flips()
            .entry(TableId::DEFAULT, b"two", &[8 * 20, 8 * 14 + 1])
    );
    s.expect("GET one", "$5\r\nvalue\r\n");
    s.expect("APPEND one !", ":6\r\n");
    s.expect("GET one", "$6\r\nvalue!\r\n");
    for request in [
        "GET two",
        "SET two x",
        "APPEND two x",
        "EXISTS two",
        "TYPE two",
        "DEL two",
        "RENAME two three",
        "KEYS *",
    ] {
        s.expect_error(request, "DAMAGED the entry of this key is damaged");
    }
    let script = b"return redis.call('GET', 'two')";
    let reply = s.ask_bytes(&[b"EVAL", script, b"0"]);
    assert!(reply.starts_with("-DAMAGED "), "{reply}");
    s.expect("MULTI", "+OK\r\n");
    s.expect("GET two", "+QUEUED\r\n");
    s.expect("SET sound new", "+QUEUED\r\n");
    assert!(s.ask("EXEC").starts_with("*2\r\n-DAMAGED "));
    s.expect("GET sound", "$3\r\nnew\r\n");
    s.expect("FLUSHALL", "+OK\r\n");
    s.expect("GET two", "$-1\r\n");
}

#[test]
fn reads_verify_as_it_is_set() {
    let mut s = Server::session(1);
    s.expect("SET key value", "+OK\r\n");
    let store = s.server.shared.data().expect("a store").clone();
    assert!(store.flips().entry(TableId::DEFAULT, b"key", &[8 * 20]));
    s.expect("GET key", "$5\r\nvalue\r\n");
    s.expect("CONFIG SET verify-reads no", "+OK\r\n");
    assert_ne!(s.ask("GET key"), "$5\r\nvalue\r\n");
    s.expect("APPEND key !", ":6\r\n");
    s.expect("GET key", "$6\r\nvalue!\r\n");
}

/// INFO has the number, beside the metric that the alert looks at.
#[test]
fn info_memory_shows_cleaning_that_was_given_up() {
    let name = "duramen_cleaner_given_up";
    let mut s = Server::session(1);
    let info = s.ask("INFO memory");
    assert!(info.contains(&format!("\r\n{name}:0\r\n")), "{info}");
    let stats = Stats {
        passes_given_up: 7,
        ..Stats::default()
    };
    let mut figures = figures::STORE.iter();
    let figure = figures.find(|figure| figure.info == name);
    let figure = figure.expect("a figure of this name");
    assert_eq!(figure.in_info(&stats), "7");
    assert_eq!(
        (figure.metric, figure.is_counter),
        ("cleaner_given_up", true)
    );
}

/// A server in which one key has one changed bit, and another one two of them.
fn damaged() -> Session {
    let mut s = Server::session(1);
    for key in ["one", "two", "sound"] {
        s.expect(&format!("SET {key} value"), "+OK\r\n");
    }
    s.expect("RPUSH queue job", ":1\r\n");
    s.expect("HSET unacked tag job", ":1\r\n");
    let store = s.server.shared.data().expect("a store").clone();
    assert!(store.flips().entry(TableId::DEFAULT, b"one", &[8 * 20]));
    assert!(
        store
            .flips()
            .entry(TableId::DEFAULT, b"two", &[8 * 20, 8 * 14 + 1])
    );
    assert!(
        store
            .flips()
            .entry(TableId::DEFAULT, b"queue", &[8 * 20, 8 * 14 + 1])
    );
    s
}

/// The value of a key to which a script appends, if it has one changed bit and reads do not verify.
fn appended_to_a_flipped_bit() -> String {
    let mut s = damaged();
    s.expect("CONFIG SET verify-reads no", "+OK\r\n");
    let script = b"return redis.call('APPEND', KEYS[1], '!')";
    s.ask_bytes(&[b"EVAL", script, b"1", b"one"]);
    s.expect("CONFIG SET verify-reads yes", "+OK\r\n");
    s.ask("GET one")
}

/// A draft read without a look at the sum, and wrote the wrong value with a good one.
#[test]
fn what_decides_a_write_is_verified_whatever_is_set() {
    assert_eq!(appended_to_a_flipped_bit(), "$6\r\nvalue!\r\n");
    let mut s = damaged();
    s.expect("CONFIG SET verify-reads no", "+OK\r\n");
    s.expect("COPY one copy", ":1\r\n");
    s.expect("GET copy", "$5\r\nvalue\r\n");
    s.expect("BITOP AND all one sound", ":5\r\n");
    s.expect("GET all", "$5\r\nvalue\r\n");
    // It brought the server down.
    let script = b"return redis.call('APPEND', KEYS[1], '!')";
    let reply = s.ask_bytes(&[b"EVAL", script, b"1", b"two"]);
    assert!(reply.starts_with("-DAMAGED "), "{reply}");
}

#[test]
fn decisions_that_are_not_verified_are_found() {
    let value = with_bug(Bug::DecisionsUnverified, appended_to_a_flipped_bit);
    assert_ne!(value, "$6\r\nvalue!\r\n");
}

/// Whether requests on several keys, one of them damaged, have changed none of the others.
fn several_keys_change_nothing() -> bool {
    let mut s = damaged();
    s.expect_error("MSET sound new two x", "DAMAGED ");
    s.expect_error("DEL sound two", "DAMAGED ");
    s.ask("RENAME sound two");
    let is_first = s.ask("GET sound") == "$5\r\nvalue\r\n";
    let mut queues = vec!["HDEL unacked tag\r\nRPUSH queue job".to_owned()];
    // On a draft too.
    let sleep = "EVAL \"return 1\" 0";
    queues.push(format!("{sleep}\r\nHDEL unacked tag\r\nRPUSH queue job"));
    let script = "redis.call('HDEL','unacked','tag')redis.call('RPUSH','queue','job')";
    queues.push(format!("EVAL \"{script}\" 0"));
    let are_whole = queues.iter().all(|queue| {
        s.expect("MULTI", "+OK\r\n");
        queue
            .split("\r\n")
            .for_each(|request| s.expect(request, "+QUEUED\r\n"));
        let reply = s.ask("EXEC");
        let is_left = s.ask("HGET unacked tag") == "$3\r\njob\r\n";
        s.ask("HSET unacked tag job");
        is_left && reply.starts_with("-EXECABORT Transaction discarded because of: DAMAGED ")
    });
    let script = "redis.call('HDEL', 'unacked', 'tag') redis.call('RPUSH', 'queue', 'job')";
    let reply = s.ask_bytes(&[b"EVAL", script.as_bytes(), b"0"]);
    let is_left = s.ask("HGET unacked tag") == "$3\r\njob\r\n";
    is_first && are_whole && is_left && reply.starts_with("-DAMAGED ")
}

/// The keys before the damaged one were changed: a job that was moved to a damaged list was lost.
#[test]
fn a_step_on_several_keys_changes_nothing_if_one_is_damaged() {
    assert!(several_keys_change_nothing());
}

#[test]
fn damage_that_is_met_behind_the_first_write_is_found() {
    assert!(!with_bug(Bug::DamageIsMetLate, several_keys_change_nothing));
}
