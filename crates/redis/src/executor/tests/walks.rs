//! Walks over tables in which almost everything has expired.

use super::groups::turns;
use super::*;

const EXPIRED: usize = 40_000;

/// A table of expired keys that no cleaner removes.
fn expired() -> Session {
    let config = ServerConfig {
        level: Some(Level::Memory),
        threads: 1,
        ..ServerConfig::default()
    };
    let server = Server::with_cleaners(config, 0);
    let mut s = Session {
        executor: server.executor(0),
        client: server.client(0),
        server,
    };
    let sets: String = (0..EXPIRED)
        .map(|n| format!("SET k{n} v PX 10\r\n"))
        .collect();
    run(&mut s.executor, &mut s.client, sets.as_bytes());
    s.server.advance(20);
    assert_eq!(s.number("DBSIZE"), EXPIRED as i64);
    s
}

/// Runs a request to its end: its reply, and the number of rounds.
fn finish(s: &mut Session, request: &str) -> (String, usize) {
    let turns = turns(&mut s.executor, &mut s.client, &format!("{request}\r\n"));
    let out: Vec<u8> = turns.iter().flat_map(|(_, out)| out.clone()).collect();
    (String::from_utf8_lossy(&out).into_owned(), turns.len())
}

/// Only live objects were counted: one walk held its thread until it had seen the whole table.
#[test]
fn walks_over_expired_keys_go_on_in_later_rounds() {
    let mut s = expired();
    let (reply, rounds) = finish(&mut s, "KEYS *");
    assert_eq!(reply, "*0\r\n");
    assert!((5..=9).contains(&rounds), "{rounds}");
    // From a random place to the end, then through all of it.
    let (reply, rounds) = finish(&mut s, "RANDOMKEY");
    assert_eq!(reply, "$-1\r\n");
    assert!((5..=18).contains(&rounds), "{rounds}");
    s.expect("SET live 1", "+OK\r\n");
    for _ in 0..20 {
        let (reply, rounds) = finish(&mut s, "RANDOMKEY");
        assert_eq!(reply, "$4\r\nlive\r\n");
        assert!(rounds <= 9, "{rounds}");
    }
    let (mut cursor, mut keys, mut scans) = ("0".to_owned(), 0, 0);
    loop {
        let reply = s.ask(&format!("SCAN {cursor} COUNT 100000"));
        let lines: Vec<&str> = reply.lines().collect();
        cursor = lines[2].to_owned();
        keys += usize::from(lines.contains(&"live"));
        scans += 1;
        if cursor == "0" {
            break;
        }
    }
    assert_eq!(keys, 1);
    assert!((5..=9).contains(&scans), "{scans}");
}

#[test]
fn walks_over_expired_keys_count_in_a_transaction() {
    for walk in ["KEYS *", "RANDOMKEY"] {
        let mut s = expired();
        let walks = format!("{walk}\r\n").repeat(120);
        let reply = run(
            &mut s.executor,
            &mut s.client,
            format!("MULTI\r\n{walks}EXEC\r\n").as_bytes(),
        );
        let refused = "-ERR KEYS, SCAN and RANDOMKEY look at 32768 keys at most";
        assert!(reply.contains(refused), "{walk}");
    }
}

/// The sample began at a place that is none, and so always at the first bucket.
#[test]
fn the_average_time_to_live_is_of_a_random_sample() {
    let mut s = Server::session(1);
    let sets: String = (0..EXPIRED)
        .map(|n| format!("SET k{n} v PX {}\r\n", 1_000_000 + n))
        .collect();
    run(&mut s.executor, &mut s.client, sets.as_bytes());
    let mut seen = std::collections::BTreeSet::new();
    for _ in 0..20 {
        let info = s.ask("INFO keyspace");
        let line = info.lines().find(|line| line.starts_with("db0:"));
        seen.insert(line.expect("a line for database 0").to_owned());
    }
    assert!(seen.len() > 5, "{seen:?}");
}

/// All tables were walked 1000 times, while all other sessions waited.
#[test]
fn flushes_in_a_transaction_have_a_limit() {
    let mut s = Server::session(1);
    for n in 0..500 {
        let reply = s.ask(&format!("DURAMEN.TABLE CREATE t{n}"));
        assert!(reply.starts_with(':'), "{reply}");
    }
    let flushes = "FLUSHALL\r\n".repeat(1000);
    let reply = run(
        &mut s.executor,
        &mut s.client,
        format!("MULTI\r\n{flushes}EXEC\r\n").as_bytes(),
    );
    assert!(reply.contains("*1000\r\n+OK\r\n"));
    assert!(reply.contains("-ERR commands that empty databases"));
    s.expect("FLUSHALL", "+OK\r\n");
}
