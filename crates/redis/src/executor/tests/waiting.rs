//! Replies that wait for the log, and their levels: engine and executor without a disk; the test
//! plays the disk.

use super::{Executor, START_MS};
use crate::command::databases;
use crate::command::outcome::Outcome;
use crate::executor::Turn;
use crate::reply::wait::{State as WaitState, Until, Wait};
use crate::state::Shared;
use crate::state::client::Client;
use crate::threads::clients::ClientRecord;
use duramen_config::{Level, ServerConfig};
use duramen_engine::{Collected, LogOptions, Options, Store};
use duramen_wire::resp::{Limits, ParseState, Requests, parse_requests};
use std::sync::Arc;

struct Bench {
    shared: Arc<Shared>,
    executor: Executor,
}

impl Bench {
    fn new(level: Level) -> Bench {
        let config = ServerConfig {
            level: Some(level),
            dir: "nowhere".to_owned(),
            threads: 1,
            ..ServerConfig::default()
        };
        let store = Store::new(Options {
            huge_pages: false,
            heads: 1,
            cleaners: 0,
            log: Some(LogOptions {
                level,
                ..LogOptions::new(7)
            }),
            ..Options::new(64 << 20)
        })
        .expect("a store");
        let shared = super::shared(config).expect("shared state");
        shared.serve(store, None);
        let executor = Executor::new(Arc::clone(&shared), 0).expect("an executor");
        Bench { shared, executor }
    }

    fn client(&self) -> Client {
        let id = self.shared.threads.next_client_id();
        let address = "127.0.0.1:1".parse().expect("an address");
        let record = Arc::new(ClientRecord::new(id, 0, 0, 3, address, address, START_MS));
        self.shared.threads[0].clients.insert(Arc::clone(&record));
        Client::new(record)
    }

    /// Everything so far reaches this level, as after a commit.
    fn commit(&self, level: Level) {
        let log = self.shared.store().log().expect("a log");
        let mut collected = Collected::default();
        log.collect(&mut collected);
        log.complete(&mut collected, Level::Buffered);
        if level == Level::Synced {
            log.complete_all(Level::Synced);
        }
    }

    /// Runs the clients' requests as one group, to their end; returns replies and waits.
    fn run(&mut self, turns: &mut [(&mut Client, &str)]) -> Vec<(String, Wait)> {
        let parsed: Vec<Requests> = turns
            .iter()
            .map(|(_, input)| {
                let mut requests = Requests::new();
                let (limits, mut state) = (Limits::default(), ParseState::new());
                parse_requests(input.as_bytes(), &limits, &mut state, &mut requests)
                    .expect("well-formed requests");
                requests
            })
            .collect();
        let mut outs = vec![Vec::new(); turns.len()];
        let mut executed = vec![0; turns.len()];
        loop {
            let before = executed.clone();
            let mut group: Vec<Turn<'_>> = turns
                .iter_mut()
                .zip(&parsed)
                .zip(&mut outs)
                .map(|(((client, input), requests), out)| {
                    Turn::new(client, requests, input.as_bytes(), out)
                })
                .collect();
            for (turn, executed) in group.iter_mut().zip(&before) {
                turn.executed = *executed;
            }
            self.executor.run(&mut group);
            executed = group.iter().map(|turn| turn.executed).collect();
            // On a busy machine a request may have used its time before it has ended.
            let yields = |turn: &Turn<'_>| turn.unfinished == Some(Outcome::Yield);
            if executed == before && !group.iter().any(yields) {
                break;
            }
        }
        outs.into_iter()
            .zip(turns)
            .map(|(out, (client, _))| {
                (
                    String::from_utf8_lossy(&out).into_owned(),
                    client.wait.take(),
                )
            })
            .collect()
    }

    fn one(&mut self, client: &mut Client, input: &str) -> (String, Wait) {
        self.run(&mut [(client, input)]).remove(0)
    }

    fn is_over(&self, wait: &Wait) -> bool {
        let log = self.shared.store().log().expect("a log");
        let state = wait.state(|position| log.reached(position), None, START_MS);
        state == WaitState::Over
    }
}

#[test]
fn a_write_waits_for_its_level() {
    for level in [Level::Buffered, Level::Synced] {
        let mut bench = Bench::new(level);
        let mut client = bench.client();
        let (reply, wait) = bench.one(&mut client, "SET k v\r\n");
        assert_eq!((reply.as_str(), wait.level()), ("+OK\r\n", level));
        assert!(!bench.is_over(&wait));
        bench.commit(Level::Buffered);
        assert_eq!(bench.is_over(&wait), level == Level::Buffered);
        bench.commit(Level::Synced);
        assert!(bench.is_over(&wait));
    }
    let mut bench = Bench::new(Level::Memory);
    let mut client = bench.client();
    let (_, wait) = bench.one(&mut client, "SET k v\r\nGET k\r\n");
    assert!(wait.is_none());
}

#[test]
fn nobody_waits_for_what_others_write() {
    let mut bench = Bench::new(Level::Synced);
    let (mut a, mut b, mut c) = (bench.client(), bench.client(), bench.client());
    bench.one(&mut a, "MSET old 1 other 2\r\n");
    bench.commit(Level::Synced);
    let waits = bench.run(&mut [
        (&mut a, "GET old\r\n"),
        (&mut b, "SET new 1\r\n"),
        (&mut c, "GET other\r\nGET old\r\n"),
    ]);
    assert!(waits[0].1.is_none() && waits[2].1.is_none());
    assert!(!waits[1].1.is_none());
}

#[test]
fn nobody_is_shown_what_can_vanish() {
    let mut bench = Bench::new(Level::Synced);
    let (mut a, mut b) = (bench.client(), bench.client());
    bench.one(&mut a, "SET gone 1\r\n");
    bench.commit(Level::Synced);
    bench.one(&mut a, "SET k v\r\nDEL gone\r\n");
    // A hit, a miss, a condition that failed, a walk, a count: all of them depend on data that is
    // not durable.
    for request in [
        "GET k",
        "GET gone",
        "EXISTS gone",
        "SETNX k x",
        "DURAMEN.WRITE k x IFABSENT",
        "SCAN 0",
        "KEYS *",
        "DBSIZE",
        "MGET k gone",
        "STRLEN k",
        "TTL k",
        "WATCH k",
        "RANDOMKEY",
        "COPY gone elsewhere",
        "DURAMEN.TABLE LIST",
    ] {
        let (reply, wait) = bench.one(&mut b, &format!("{request}\r\n"));
        assert!(!wait.is_none(), "{request}: {reply}");
        assert!(!bench.is_over(&wait), "{request}: {reply}");
        bench.one(&mut b, "UNWATCH\r\n");
    }
    bench.commit(Level::Synced);
    for request in ["GET k", "GET gone", "SCAN 0", "DBSIZE", "MGET k gone"] {
        let (reply, wait) = bench.one(&mut b, &format!("{request}\r\n"));
        assert!(wait.is_none() || bench.is_over(&wait), "{request}: {reply}");
    }
}

#[test]
fn a_transaction_waits_as_a_whole() {
    let mut bench = Bench::new(Level::Buffered);
    let mut client = bench.client();
    let (_, wait) = bench.one(&mut client, "MULTI\r\nSET a 1\r\nSET b 2\r\n");
    assert!(wait.is_none(), "nothing has run yet");
    let (reply, wait) = bench.one(&mut client, "EXEC\r\n");
    assert_eq!(reply, "*2\r\n+OK\r\n+OK\r\n");
    assert_eq!(wait.level(), Level::Buffered);
    let script = "MULTI\r\nSET a 1\r\nDURAMEN.WRITE b 2 LEVEL synced\r\nEXEC\r\n";
    let (_, wait) = bench.one(&mut client, script);
    assert_eq!(wait.level(), Level::Synced);
    // A level that one transaction requested does not apply to the next.
    let (_, wait) = bench.one(&mut client, "MULTI\r\nSET a 1\r\nEXEC\r\n");
    assert_eq!(wait.level(), Level::Buffered);
    let (_, wait) = bench.one(&mut client, "MULTI\r\nSET a 1\r\nFLUSHALL\r\nEXEC\r\n");
    assert!(!wait.is_none());
}

/// An exchange of databases is visible in every reply, although it writes no entry that a reader
/// looks at: such replies must wait for the exchange. Both variants: SWAPDB by itself, and within
/// EXEC.
#[test]
fn an_exchange_of_databases_shows_only_when_it_is_kept() {
    for script in [
        "SWAPDB 0 5\r\n",
        "MULTI\r\nSET x 1\r\nSWAPDB 0 5\r\nEXEC\r\n",
    ] {
        let mut bench = Bench::new(Level::Synced);
        let (mut a, mut b) = (bench.client(), bench.client());
        bench.one(
            &mut a,
            "SET k zero\r\nSELECT 5\r\nSET k five\r\nSELECT 3\r\nSELECT 0\r\n",
        );
        bench.commit(Level::Synced);
        let (reply, wait) = bench.one(&mut b, "GET k\r\n");
        assert!(reply.contains("zero") && wait.is_none(), "{reply}");
        let (_, own) = bench.one(&mut a, script);
        assert!(!bench.is_over(&own), "{script}");
        // A hit, a miss, and commands that need exclusive access to the store.
        for request in ["GET k", "GET x", "DBSIZE", "RENAME k l", "FLUSHDB"] {
            let (reply, wait) = bench.one(&mut b, &format!("{request}\r\n"));
            assert!(!bench.is_over(&wait), "{script} {request}: {reply}");
        }
        let (_, wait) = bench.one(&mut b, "MULTI\r\nGET k\r\nEXEC\r\n");
        assert!(!bench.is_over(&wait), "{script}");
        // Replies that depend on no data of the two databases do not wait.
        for request in ["PING", "INFO server", "SELECT 3", "GET k"] {
            let (reply, wait) = bench.one(&mut b, &format!("{request}\r\n"));
            assert!(bench.is_over(&wait), "{script} {request}: {reply}");
        }
        bench.one(&mut b, "SELECT 0\r\n");
        bench.commit(Level::Buffered);
        assert!(!bench.is_over(&own), "{script}");
        bench.commit(Level::Synced);
        assert!(bench.is_over(&own), "{script}");
        let (_, wait) = bench.one(&mut b, "GET k\r\n");
        assert!(wait.is_none(), "{script}");
        assert_eq!(
            bench.shared.commands.gate(),
            0,
            "nothing is in the way any more"
        );
    }
}

#[test]
fn requests_and_tables_have_levels_of_their_own() {
    let mut bench = Bench::new(Level::Buffered);
    let mut client = bench.client();
    let (_, wait) = bench.one(&mut client, "DURAMEN.WRITE k v LEVEL memory\r\n");
    assert!(wait.is_none());
    let (_, wait) = bench.one(&mut client, "DURAMEN.WRITE k v LEVEL synced\r\n");
    assert_eq!(wait.level(), Level::Synced);
    let (_, wait) = bench.one(
        &mut client,
        "DURAMEN.WRITE k v LEVEL memory\r\nDURAMEN.REMOVE k LEVEL buffered\r\n",
    );
    assert_eq!(wait.level(), Level::Buffered);
    let table = databases::create_table(&bench.shared, "fast", Some(Level::Memory));
    let table = table.expect("a table");
    assert_eq!(bench.shared.commands.levels.of(table), Some(Level::Memory));
    bench.commit(Level::Synced);
    let (reply, wait) = bench.one(
        &mut client,
        "DURAMEN.USE fast\r\nSET a 1\r\nGET a\r\nDEL a\r\nGET a\r\n",
    );
    assert!(wait.is_none(), "{reply}");
    // A request may nevertheless ask for its reply to wait.
    let (_, wait) = bench.one(&mut client, "DURAMEN.WRITE a 1 LEVEL synced\r\n");
    assert_eq!(wait.level(), Level::Synced);
    assert!(!bench.is_over(&wait));
    bench.commit(Level::Synced);
    assert!(bench.is_over(&wait));
}

#[test]
fn a_disk_that_fails_turns_waiting_replies_into_errors() {
    let mut bench = Bench::new(Level::Synced);
    let mut client = bench.client();
    let (_, wait) = bench.one(&mut client, "SET k v\r\n");
    let log = bench.shared.store().log().expect("a log");
    let failure = Some("EIO");
    match wait.state(|position| log.reached(position), failure, START_MS) {
        WaitState::Failed(text) => assert!(
            text.starts_with("MISCONF") && text.contains("EIO"),
            "{text}"
        ),
        state => panic!("{state:?}"),
    }
    bench.commit(Level::Synced);
    // Replies whose data was durable before the failure are true.
    let log = bench.shared.store().log().expect("a log");
    let state = wait.state(|position| log.reached(position), failure, START_MS);
    assert_eq!(state, WaitState::Over);
}

#[test]
fn waitaof_gives_up_when_its_time_is_over() {
    let mut bench = Bench::new(Level::Buffered);
    let mut client = bench.client();
    let (_, mut wait) = bench.one(&mut client, "SET k v\r\n");
    bench.commit(Level::Buffered);
    let log = bench.shared.store().log().expect("a log");
    let position = log.appended();
    let deadline_ms = START_MS + 100;
    let until = Until::Reached {
        level: Level::Synced,
        late: b"*2\r\n:0\r\n:0\r\n",
        position,
        deadline_ms,
    };
    wait.then(until, b"*2\r\n:1\r\n:0\r\n");
    assert_eq!(wait.level(), Level::Synced);
    let at = |now_ms| wait.state(|position| log.reached(position), None, now_ms);
    assert_eq!(at(START_MS), WaitState::Waiting { deadline_ms });
    match at(deadline_ms) {
        WaitState::Instead { hoped, reply } => {
            assert_eq!(hoped, b"*2\r\n:1\r\n:0\r\n");
            assert_eq!(reply, b"*2\r\n:0\r\n:0\r\n");
        }
        state => panic!("{state:?}"),
    }
    bench.commit(Level::Synced);
    assert_eq!(at(deadline_ms), WaitState::Over);
}
