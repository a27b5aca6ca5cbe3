//! Keyspace events, without sockets.

use super::pubsub::delivered;
use super::{Server, run};
use crate::executor::Executor;
use crate::state::client::Client;
use duramen_config::{EventClasses, Level, ServerConfig};

/// A server that publishes events, a client, and one that has subscribed to all events.
struct Noted {
    server: Server,
    executor: Executor,
    client: Client,
    listener: Client,
}

impl Noted {
    fn new(events: &str) -> Noted {
        Noted::of(Server::with(ServerConfig {
            level: Some(Level::Memory),
            threads: 1,
            ..ServerConfig::default()
        }))
        .publishing(events)
    }

    fn of(server: Server) -> Noted {
        let mut noted = Noted {
            executor: server.executor(0),
            client: server.client(0),
            listener: server.client(0),
            server,
        };
        let subscribe = b"PSUBSCRIBE __key*__:*\r\n";
        run(&mut noted.executor, &mut noted.listener, subscribe);
        noted
    }

    fn publishing(mut self, events: &str) -> Noted {
        let reply = self.ask(&format!("CONFIG SET notify-keyspace-events {events}"));
        assert_eq!(reply, "+OK\r\n");
        self
    }

    fn ask(&mut self, requests: &str) -> String {
        let input = requests.replace('\n', "\r\n") + "\r\n";
        run(&mut self.executor, &mut self.client, input.as_bytes())
    }

    /// The events since the last call, each as `channel payload`, without the prefix of the
    /// channel.
    fn events(&mut self) -> Vec<String> {
        let text = delivered(&self.server, &self.executor, &self.listener);
        let messages = text.split("*4\r\n").skip(1);
        let shown = messages.map(|message| {
            let mut parts = message.lines().skip(5).step_by(2);
            let (channel, payload) = (parts.next(), parts.next());
            let channel = channel.expect("a channel").trim_start_matches("__key");
            format!("{channel} {}", payload.expect("a payload"))
        });
        shown.collect()
    }

    /// Runs requests and expects these events of database 0, as `event key`.
    #[track_caller]
    fn expect(&mut self, requests: &str, events: &[&str]) {
        let reply = self.ask(requests);
        assert!(!reply.starts_with("-"), "{requests}: {reply}");
        let expected: Vec<_> = events.iter().map(|it| format!("event@0__:{it}")).collect();
        assert_eq!(self.events(), expected, "{requests}");
    }
}

#[test]
fn commands_on_strings_and_keys_tell_their_events() {
    let mut noted = Noted::new("EAn");
    for (requests, events) in [
        ("SET a 1", &["new a", "set a"][..]),
        ("SET a 2", &["set a"]),
        ("SET a 2 EX 100", &["set a", "expire a"]),
        ("SET a 3 NX", &[]),
        ("GET a", &[]),
        ("INCR a", &["incrby a"]),
        ("INCRBYFLOAT a 1.5", &["incrbyfloat a"]),
        ("APPEND a x", &["append a"]),
        ("SETRANGE a 1 yy", &["setrange a"]),
        ("GETEX a PERSIST", &["persist a"]),
        ("GETEX a EX 5", &["expire a"]),
        ("PERSIST a", &["persist a"]),
        ("EXPIRE a 10", &["expire a"]),
        ("EXPIRE a -1", &["del a"]),
        ("MSET a 1 b 2", &["new a", "set a", "new b", "set b"]),
        ("RENAME a c", &["new c", "rename_from a", "rename_to c"]),
        ("COPY c a", &["new a", "copy_to a"]),
        ("DEL a missing", &["del a"]),
        ("GETDEL c", &["del c"]),
    ] {
        noted.expect(requests, events);
    }
    noted.ask("MOVE b 1");
    let moved = ["@1__:new b", "@0__:move_from b", "@1__:move_to b"];
    assert_eq!(noted.events(), moved.map(|it| format!("event{it}")));
}

#[test]
fn commands_on_collections_tell_their_events() {
    let mut noted = Noted::new("EA");
    for (requests, events) in [
        ("RPUSH l a b c", &["rpush l"][..]),
        ("LSET l 0 x", &["lset l"]),
        ("LPOP l", &["lpop l"]),
        ("LMOVE l m LEFT RIGHT", &["rpush m", "lpop l"]),
        ("RPOP l", &["rpop l", "del l"]),
        ("SADD s a b", &["sadd s"]),
        ("SADD s a", &[]),
        ("SREM s a b", &["srem s", "del s"]),
        ("HSET h f 1", &["hset h"]),
        ("HINCRBY h f 1", &["hincrby h"]),
        ("HDEL h f", &["hdel h", "del h"]),
        ("ZADD z 1 a 2 b", &["zadd z"]),
        ("ZINCRBY z 1 a", &["zincr z"]),
        ("ZPOPMIN z 9", &["zpopmin z", "del z"]),
        ("ZUNIONSTORE z 1 none", &[]),
        ("GEOADD g 1 1 a", &["zadd g"]),
        ("PFADD p a", &["pfadd p"]),
        ("SETBIT b 1 1", &["setbit b"]),
        ("BITOP NOT c b", &["set c"]),
        ("SORT m ALPHA STORE n", &["sortstore n"]),
    ] {
        noted.expect(requests, events);
    }
}

#[test]
fn the_setting_chooses_classes_and_channels() {
    let mut noted = Noted::new("K$");
    noted.ask("SET a 1\nDEL a\nLPUSH l x");
    assert_eq!(noted.events(), ["space@0__:a set"]);
    let mut noted = noted.publishing("KElm");
    noted.ask("SET a 1\nLPUSH l x\nGET none\nSELECT 3\nLPUSH l x");
    let expected = [
        "space@0__:l lpush",
        "event@0__:lpush l",
        "space@0__:none keymiss",
        "event@0__:keymiss none",
        "space@3__:l lpush",
        "event@3__:lpush l",
    ];
    assert_eq!(noted.events(), expected);
    let mut noted = noted.publishing("\"\"");
    noted.ask("LPUSH l x");
    assert_eq!(noted.events(), [""; 0]);
    let reply = noted.ask("CONFIG SET notify-keyspace-events Kq");
    assert!(reply.starts_with("-ERR"), "{reply}");
}

#[test]
fn a_transaction_tells_what_it_did_and_a_failed_one_nothing() {
    let mut noted = Noted::new("EA");
    noted.ask("MULTI\nSET a 1\nLPUSH a x\nDEL a\nEXEC");
    assert_eq!(noted.events(), ["event@0__:set a", "event@0__:del a"]);
    noted.ask("WATCH a");
    let mut other = noted.server.client(0);
    run(&mut noted.executor, &mut other, b"SET a 2\r\n");
    assert_eq!(noted.events(), ["event@0__:set a"]);
    let reply = noted.ask("MULTI\nSET a 3\nEXEC");
    assert!(reply.ends_with("*-1\r\n"), "{reply}");
    assert_eq!(noted.events(), [""; 0]);
}

/// The event comes when the key is gone: by a command that meets it, or by a cleaner.
#[test]
fn keys_that_expire_are_told_once() {
    let mut noted = Noted::new("Ex");
    noted.ask("SET met 1 PX 5\nSET cleaned 1 PX 5");
    noted.server.advance(10);
    assert_eq!(noted.ask("GET met"), "$-1\r\n");
    let mut events = noted.events();
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(120);
    while events.len() < 2 && std::time::Instant::now() < deadline {
        noted.server.advance(1_000);
        std::thread::sleep(std::time::Duration::from_millis(10));
        events.extend(noted.events());
    }
    noted.ask("GET met\nGET cleaned\nDEL met cleaned");
    events.extend(noted.events());
    events.sort();
    assert_eq!(
        events,
        ["event@0__:expired cleaned", "event@0__:expired met"]
    );
}

/// The event of a key that a write replaces was told at once: before those of the requests before,
/// and before its own data were durable.
#[test]
fn the_event_of_a_replaced_key_leaves_with_the_reply() {
    let config = ServerConfig {
        level: Some(Level::Memory),
        threads: 1,
        ..ServerConfig::default()
    };
    let mut noted = Noted::of(Server::with_cleaners(config, 0)).publishing("EA");
    for request in ["SET k w", "MSET o 2 k w", "MULTI\nSET o 2\nSET k w\nEXEC"] {
        noted.ask("SET k v PX 5\nDEL o");
        noted.events();
        noted.server.advance(10);
        noted.ask(&format!("SET first 1\n{request}"));
        let events = noted.events();
        let place = |event: &str| {
            let wanted = format!("event@0__:{event}");
            let place = events.iter().position(|it| *it == wanted);
            place.unwrap_or_else(|| panic!("{event}: {events:?}"))
        };
        assert_eq!(place("set first"), 0, "{events:?}");
        assert!(place("expired k") < place("set k"), "{events:?}");
    }
}

/// The look of WATCH at the key removed it, and that counted as a change.
#[test]
fn an_expired_key_can_be_watched_while_events_are_on() {
    let config = ServerConfig {
        level: Some(Level::Memory),
        threads: 1,
        ..ServerConfig::default()
    };
    let mut noted = Noted::of(Server::with_cleaners(config, 0)).publishing("Ex");
    noted.ask("SET k v PX 5");
    noted.server.advance(10);
    let replies = noted.ask("WATCH k\nGET k\nMULTI\nSET k w\nEXEC");
    assert!(replies.ends_with("*1\r\n+OK\r\n"), "{replies}");
    assert_eq!(noted.events(), ["event@0__:expired k"]);
}

#[test]
fn letters_are_shown_as_redis_does() {
    let mut noted = Noted::new("KEA");
    let reply = noted.ask("CONFIG GET notify-keyspace-events");
    assert!(reply.ends_with("$3\r\nAKE\r\n"), "{reply}");
    assert!(EventClasses::parse("KEA").is_some_and(|it| it.has(EventClasses::EXPIRED)));
}
