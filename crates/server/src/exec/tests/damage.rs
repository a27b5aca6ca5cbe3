//! Objects of which memory has changed bits.

use super::Server;
use duramen_engine::TableId;

#[test]
fn a_flipped_bit_is_not_seen_and_more_damage_is_an_error_of_its_key_alone() {
    let mut s = Server::session(1);
    s.expect("SET one value", "+OK\r\n");
    s.expect("SET two value", "+OK\r\n");
    s.expect("SET sound value", "+OK\r\n");
    let store = s.server.shared.data().expect("a store").clone();
    assert!(store.flip_bits(TableId::DEFAULT, b"one", &[8 * 20]));
    assert!(store.flip_bits(TableId::DEFAULT, b"two", &[8 * 20, 8 * 14 + 1]));
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
    assert!(store.flip_bits(TableId::DEFAULT, b"key", &[8 * 20]));
    s.expect("GET key", "$5\r\nvalue\r\n");
    s.expect("CONFIG SET verify-reads no", "+OK\r\n");
    assert_ne!(s.ask("GET key"), "$5\r\nvalue\r\n");
    s.expect("APPEND key !", ":6\r\n");
    s.expect("GET key", "$6\r\nvalue!\r\n");
}
