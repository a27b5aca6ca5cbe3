//! MULTI, WATCH and the multi-key commands, alone and against other threads.

use super::*;
use duramen_base::planted::{Bug, carry, with_bug};
use rustix::time::{ClockId, clock_gettime};
use std::sync::atomic::AtomicBool;
use std::thread;
use std::time::{Duration, Instant};

/// EXEC planned what it would read, and took the channel of SPUBLISH for a key. That one it had not
/// locked (transaction::T8): two such transactions waited for each other's locks for ever.
#[test]
fn a_channel_is_no_key_to_read_under_the_locks_of_exec() {
    for keys in [20, 200] {
        let mut s = Server::session(2);
        let sets: String = (0..keys).map(|n| format!("SET k{n} v\r\n")).collect();
        let input = format!("MULTI\r\n{sets}SPUBLISH channel m\r\nEXEC\r\n");
        let reply = run(&mut s.executor, &mut s.client, input.as_bytes());
        let end = format!("*{}\r\n{}:0\r\n", keys + 1, "+OK\r\n".repeat(keys));
        assert!(reply.ends_with(&end), "{reply}");
    }
}

#[test]
fn transactions_queue_run_and_abort() {
    let mut s = Server::session(2);
    s.expect("EXEC", "-ERR EXEC without MULTI\r\n");
    s.expect("DISCARD", "-ERR DISCARD without MULTI\r\n");
    s.expect("MULTI", "+OK\r\n");
    s.expect("MULTI", "-ERR MULTI calls can not be nested\r\n");
    s.expect("WATCH a", "-ERR WATCH inside MULTI is not allowed\r\n");
    s.expect("SET a 1", "+QUEUED\r\n");
    s.expect("INCR a", "+QUEUED\r\n");
    s.expect("GET a", "+QUEUED\r\n");
    s.expect("EXEC", "*3\r\n+OK\r\n:2\r\n$1\r\n2\r\n");
    s.expect("MULTI", "+OK\r\n");
    s.expect("SET a x", "+QUEUED\r\n");
    s.expect("INCR a", "+QUEUED\r\n");
    s.expect("SET b 1", "+QUEUED\r\n");
    s.expect(
        "EXEC",
        "*3\r\n+OK\r\n-ERR value is not an integer or out of range\r\n+OK\r\n",
    );
    s.expect("MULTI", "+OK\r\n");
    s.expect(
        "NOSUCH",
        "-ERR unknown command 'NOSUCH', with args beginning with: \r\n",
    );
    s.expect("SET a 9", "+QUEUED\r\n");
    s.expect(
        "EXEC",
        "-EXECABORT Transaction discarded because of previous errors.\r\n",
    );
    s.expect("GET a", "$1\r\nx\r\n");
    s.expect("MULTI", "+OK\r\n");
    s.expect("SET a 9", "+QUEUED\r\n");
    s.expect("DISCARD", "+OK\r\n");
    s.expect("GET a", "$1\r\nx\r\n");
    s.expect("MULTI", "+OK\r\n");
    s.expect("EXEC", "*0\r\n");
    s.expect("MULTI", "+OK\r\n");
    s.expect("SAVE", "-ERR Command not allowed inside a transaction\r\n");
    s.expect(
        "EXEC",
        "-EXECABORT Transaction discarded because of previous errors.\r\n",
    );
}

#[test]
fn transactions_select_flush_and_look_at_whole_tables() {
    let mut s = Server::session(2);
    for request in [
        "MULTI",
        "SET a 0",
        "SELECT 7",
        "SET a 7",
        "COPY a b DB 8",
        "DBSIZE",
        "SELECT 0",
        "GET a",
    ] {
        s.ask(request);
    }
    s.expect(
        "EXEC",
        "*7\r\n+OK\r\n+OK\r\n+OK\r\n:1\r\n:1\r\n+OK\r\n$1\r\n0\r\n",
    );
    for request in [
        "MULTI",
        "FLUSHALL",
        "DBSIZE",
        "MSET x 1 y 2",
        "KEYS x",
        "FLUSHDB",
        "SET z 1",
    ] {
        s.ask(request);
    }
    s.expect(
        "EXEC",
        "*6\r\n+OK\r\n:0\r\n+OK\r\n*1\r\n$1\r\nx\r\n+OK\r\n+OK\r\n",
    );
    s.expect("DBSIZE", ":1\r\n");
    s.expect("SELECT 8", "+OK\r\n");
    s.expect("DBSIZE", ":0\r\n");
}

#[test]
fn watched_keys_that_change_cancel_the_transaction() {
    let mut s = Server::session(2);
    let (mut executor, mut other) = (s.server.executor(1), s.server.client(1));
    let mut meddle = |request: &str| {
        run(
            &mut executor,
            &mut other,
            format!("{request}\r\n").as_bytes(),
        )
    };
    for (change, cancelled) in [
        ("SET w 2", true),
        ("SET w 1", true),
        ("DEL w", true),
        ("EXPIRE w 100", true),
        ("GET w", false),
        ("SET unrelated 1", false),
        ("FLUSHALL", true),
    ] {
        s.expect("SET w 1", "+OK\r\n");
        s.expect("WATCH w", "+OK\r\n");
        meddle(change);
        s.expect("MULTI", "+OK\r\n");
        s.expect("SET result 1", "+QUEUED\r\n");
        let reply = s.ask("EXEC");
        assert_eq!(reply == "*-1\r\n", cancelled, "{change}: {reply}");
    }
    s.ask("DEL w");
    s.expect("WATCH w", "+OK\r\n");
    meddle("SET w 1");
    s.ask("MULTI");
    s.expect("EXEC", "*-1\r\n");
    s.expect("WATCH w", "+OK\r\n");
    meddle("SET w 2");
    s.expect("UNWATCH", "+OK\r\n");
    s.ask("MULTI");
    s.expect("EXEC", "*0\r\n");
}

#[test]
fn a_watched_key_that_expires_cancels_and_one_that_had_expired_does_not() {
    let mut s = Server::session(1);
    s.expect("SET w 1 PX 100", "+OK\r\n");
    s.expect("WATCH w", "+OK\r\n");
    s.server.advance(101);
    s.ask("MULTI");
    s.expect("EXEC", "*-1\r\n");
    s.expect("WATCH w", "+OK\r\n");
    s.ask("MULTI");
    s.expect("EXEC", "*0\r\n");
}

/// Two exchanges put the watched table back, and changes of the database between them once went
/// unnoticed.
#[test]
fn a_database_that_was_exchanged_twice_cancels_the_transaction() {
    let mut s = Server::session(2);
    let (mut executor, mut other) = (s.server.executor(1), s.server.client(1));
    s.expect("SET w 1", "+OK\r\n");
    for (between, cancelled) in [
        ("SWAPDB 0 3\r\nSWAPDB 3 0\r\n", true),
        ("SWAPDB 3 4\r\nSWAPDB 0 0\r\n", false),
    ] {
        s.expect("WATCH w", "+OK\r\n");
        run(&mut executor, &mut other, between.as_bytes());
        s.ask("MULTI");
        s.ask("GET w");
        let reply = s.ask("EXEC");
        assert_eq!(reply == "*-1\r\n", cancelled, "{between}: {reply}");
    }
}

/// EXEC once looked up a database's table under its own locks, found that it had been dropped, and
/// waited for itself to create another.
#[test]
fn a_transaction_goes_on_while_its_databases_are_dropped() {
    let server = Server::new(4);
    race(
        &server,
        2,
        |worker, ask| {
            for _ in 0..300 {
                if worker == 0 {
                    ask("SELECT 5");
                    ask("DURAMEN.TABLE DROP db5");
                    continue;
                }
                for queued in [
                    "MULTI",
                    "SET a 1",
                    "SELECT 5",
                    "SET b 1",
                    "COPY b c DB 5",
                    "SELECT 0",
                ] {
                    ask(queued);
                }
                let reply = ask("EXEC");
                assert!(reply.starts_with("*5\r\n+OK"), "{reply}");
            }
        },
        |ask| {
            ask("GET a");
        },
    );
}

/// Runs `work` on `threads` threads, each with an executor, until all have returned; `judge` runs
/// in parallel on another thread.
fn race(
    server: &Server,
    threads: usize,
    work: impl Fn(usize, &mut dyn FnMut(&str) -> String) + Sync,
    judge: impl Fn(&mut dyn FnMut(&str) -> String) + Sync,
) {
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        let judging = scope.spawn(carry(|| {
            let (mut executor, mut client) = (server.executor(threads), server.client(threads));
            let mut ask = |request: &str| {
                run(
                    &mut executor,
                    &mut client,
                    format!("{request}\r\n").as_bytes(),
                )
            };
            while !done.load(Ordering::Relaxed) {
                judge(&mut ask);
            }
            judge(&mut ask);
        }));
        let workers: Vec<_> = (0..threads)
            .map(|n| {
                let work = &work;
                scope.spawn(carry(move || {
                    let (mut executor, mut client) = (server.executor(n), server.client(n));
                    let mut ask = |request: &str| {
                        run(
                            &mut executor,
                            &mut client,
                            format!("{request}\r\n").as_bytes(),
                        )
                    };
                    work(n, &mut ask);
                }))
            })
            .collect();
        let results: Vec<_> = workers.into_iter().map(|worker| worker.join()).collect();
        done.store(true, Ordering::Relaxed);
        judging.join().expect("the judge");
        results
            .into_iter()
            .for_each(|result| result.expect("a worker"));
    });
}

fn sum_of(reply: &str) -> i64 {
    reply
        .split("\r\n")
        .filter(|line| !line.starts_with(['*', '$']) && !line.is_empty())
        .map(|line| line.parse::<i64>().unwrap_or_else(|_| panic!("{reply}")))
        .sum()
}

const ACCOUNTS: usize = 8;

#[test]
fn transfers_keep_the_sum_for_every_reader() {
    let server = Server::new(4);
    let (mut executor, mut client) = (server.executor(3), server.client(3));
    let accounts: Vec<String> = (0..ACCOUNTS).map(|n| format!("account:{n}")).collect();
    let set: String = accounts
        .iter()
        .map(|account| format!(" {account} 100"))
        .collect();
    run(
        &mut executor,
        &mut client,
        format!("MSET{set}\r\n").as_bytes(),
    );
    let all = format!("MGET {}", accounts.join(" "));
    race(
        &server,
        2,
        |worker, ask| {
            let mut at = worker;
            for round in 0..3_000 {
                at = (at * 5 + 3 + round) % ACCOUNTS;
                let to = (at + 1 + worker) % ACCOUNTS;
                ask("MULTI");
                ask(&format!("DECRBY account:{at} 7"));
                ask(&format!("INCRBY account:{to} 7"));
                assert!(ask("EXEC").starts_with("*2\r\n:"));
            }
        },
        |ask| {
            let reply = ask(&all);
            assert_eq!(sum_of(&reply), 100 * ACCOUNTS as i64, "{reply}");
        },
    );
}

#[test]
fn mset_is_seen_whole() {
    let server = Server::new(4);
    let keys: Vec<String> = (0..70).map(|n| format!("k{n}")).collect();
    let get = format!("MGET {}", keys.join(" "));
    race(
        &server,
        2,
        |worker, ask| {
            for round in 0..300 {
                let value = worker * 1000 + round;
                let set: String = keys.iter().map(|key| format!(" {key} {value}")).collect();
                assert_eq!(ask(&format!("MSET{set}")), "+OK\r\n");
            }
        },
        |ask| {
            let reply = ask(&get);
            let mut values: Vec<&str> = reply
                .split("\r\n")
                .filter(|line| !line.starts_with(['*', '$']))
                .filter(|line| !line.is_empty())
                .collect();
            values.dedup();
            assert!(values.len() <= 1, "{values:?}");
        },
    );
}

/// A client adds a member and stores its set, while another one stores a union with that set: how
/// often the member was not there afterwards.
fn members_lost_by_a_stale_union() -> u64 {
    let server = Server::new(4);
    let (mut executor, mut client) = (server.executor(3), server.client(3));
    let members: String = (0..3_000).map(|n| format!(" member:{n}")).collect();
    run(
        &mut executor,
        &mut client,
        format!("SADD a{members}\r\n").as_bytes(),
    );
    let (lost, next) = (AtomicU64::new(0), AtomicU64::new(0));
    race(
        &server,
        1,
        |_, ask| {
            for _ in 0..300 {
                ask("SUNIONSTORE d b a");
            }
        },
        |ask| {
            let n = next.fetch_add(1, Ordering::Relaxed);
            ask(&format!("SADD b new:{n}"));
            // This one is quick: the other one has not ended that began before.
            ask("SUNIONSTORE d b");
            let is_lost = |_| ask(&format!("SISMEMBER d new:{n}")) != ":1\r\n";
            lost.fetch_add(u64::from((0..2_000).any(is_lost)), Ordering::Relaxed);
            ask(&format!("SREM b new:{n}"));
        },
    );
    lost.into_inner()
}

#[test]
fn the_result_of_values_that_have_changed_is_not_stored() {
    assert_eq!(members_lost_by_a_stale_union(), 0);
}

#[test]
fn results_of_values_that_have_changed_are_found() {
    // On a busy machine no write may come in between in a run.
    let is_found = |_| with_bug(Bug::StaleResultIsStored, members_lost_by_a_stale_union) > 0;
    assert!((0..30).any(is_found));
}

/// A member moves between two sets: each reader sees it in one of them.
#[test]
fn sets_are_combined_as_they_stood_together() {
    let server = Server::new(4);
    let (mut executor, mut client) = (server.executor(3), server.client(3));
    run(&mut executor, &mut client, b"SADD a x\r\n");
    race(
        &server,
        1,
        |_, ask| {
            for _ in 0..3_000 {
                assert_eq!(ask("SMOVE a b x"), ":1\r\n");
                assert_eq!(ask("SMOVE b a x"), ":1\r\n");
            }
        },
        |ask| {
            assert_eq!(ask("SUNION a b"), "*1\r\n$1\r\nx\r\n");
            assert_eq!(ask("SINTERCARD 2 a b"), ":0\r\n");
            assert_eq!(ask("ZUNIONSTORE d 2 a b"), ":1\r\n");
            assert_eq!(ask("ZCARD d"), ":1\r\n");
        },
    );
}

#[test]
fn watched_increments_lose_nothing() {
    let server = Server::new(4);
    let deadline = Instant::now() + Duration::from_secs(300);
    let wins = AtomicU64::new(0);
    race(
        &server,
        3,
        |_, ask| {
            let mut won = 0;
            while won < 500 {
                assert!(Instant::now() < deadline, "no progress");
                ask("WATCH n");
                let value = ask("GET n");
                let value: i64 = value
                    .split("\r\n")
                    .nth(1)
                    .and_then(|text| text.parse().ok())
                    .unwrap_or(0);
                ask("MULTI");
                ask(&format!("SET n {}", value + 1));
                if ask("EXEC") != "*-1\r\n" {
                    won += 1;
                    wins.fetch_add(1, Ordering::Relaxed);
                }
            }
        },
        |ask| {
            ask("GET n");
        },
    );
    let (mut executor, mut client) = (server.executor(0), server.client(0));
    let wins = wins.load(Ordering::Relaxed).to_string();
    assert_eq!(
        run(&mut executor, &mut client, b"GET n\r\n"),
        format!("${}\r\n{wins}\r\n", wins.len())
    );
}

#[test]
fn renames_and_flushes_are_seen_whole() {
    let server = Server::new(4);
    race(
        &server,
        2,
        |worker, ask| {
            for _ in 0..1_000 {
                if worker == 0 {
                    ask("MSET a 1 b 1");
                    ask("FLUSHALL");
                } else {
                    ask("MSET c 1 d 1");
                    ask("DEL c d");
                }
            }
        },
        |ask| {
            for pair in ["MGET a b", "MGET c d"] {
                let reply = ask(pair);
                let seen = reply.matches("$1\r\n").count();
                assert!(seen == 0 || seen == 2, "{pair}: {reply}");
            }
            // These commands once counted one of two keys that are written and deleted together.
            for pair in ["EXISTS c d", "TOUCH d c", "EXISTS a b"] {
                let reply = ask(pair);
                assert!(matches!(&*reply, ":0\r\n" | ":2\r\n"), "{pair}: {reply}");
            }
        },
    );
}

/// A transaction that waits for memory holds its keys, and threads that wait for these keys keep
/// memory from being freed: neither may wait for ever.
#[test]
fn transactions_go_on_when_memory_is_short() {
    const KEYS: usize = 40_000;
    let server = Server::new(4);
    let value = "v".repeat(900);
    let started = Instant::now();
    let written = AtomicU64::new(0);
    race(
        &server,
        2,
        |worker, ask| {
            let mut at = worker * 7919 + 1;
            for _ in 0..4_000 {
                let mut set = "MSET".to_string();
                for _ in 0..20 {
                    at = (at * 48_271) % 2_147_483_647;
                    set.push_str(&format!(" k{} {value}", at % KEYS));
                }
                let began = Instant::now();
                let reply = ask(&set);
                assert!(reply == "+OK\r\n" || reply.starts_with("-OOM"), "{reply}");
                written.fetch_add(u64::from(reply == "+OK\r\n"), Ordering::Relaxed);
                assert!(began.elapsed() < Duration::from_secs(60), "stalled");
                // On a busy machine many transactions are refused, each after a short wait.
                if started.elapsed() > Duration::from_secs(100) {
                    break;
                }
            }
        },
        |ask| {
            ask("MGET k1 k2 k3 k4 k5 k6 k7 k8");
            ask("SET k9 1");
        },
    );
    // At least those written before memory was full succeed. The scheduler decides how many of the
    // others are refused.
    let written = written.load(Ordering::Relaxed);
    assert!(written > 1_000, "only {written} of 8000 found memory");
    // A single client finds memory, because the live data fits easily.
    let (mut executor, mut client) = (server.executor(0), server.client(0));
    let set = format!("MSET k1 {value} k2 {value}\r\n");
    while run(&mut executor, &mut client, set.as_bytes()) != "+OK\r\n" {
        assert!(started.elapsed() < Duration::from_secs(300), "no memory");
    }
}

/// A DEL of many keys in a full store was once refused for lack of memory, which it would have
/// freed.
#[test]
fn a_full_store_lets_many_keys_be_deleted_at_once() {
    let mut s = Server::session(2);
    let value = vec![b'v'; 500_000];
    let mut keys = Vec::new();
    loop {
        let key = format!("key:{}", keys.len());
        let reply = s.ask_bytes(&[b"SET", key.as_bytes(), &value]);
        if reply != "+OK\r\n" {
            assert!(reply.starts_with("-OOM"), "{reply}");
            break;
        }
        keys.push(key);
        assert!(keys.len() < 1_000, "64 MiB never fill");
    }
    // One request got no reply, and the next one was executed twice.
    let reply = s.ask("MSET fresh 1");
    assert!(reply == "+OK\r\n" || reply.starts_with("-OOM"), "{reply:?}");
    s.ask("DEL fresh");
    s.expect("MULTI", "+OK\r\n");
    s.expect(&format!("DEL {}", keys[0]), "+QUEUED\r\n");
    s.expect("EXEC", "*1\r\n:1\r\n");
    let rest = keys.split_off(1);
    s.expect(
        &format!("DEL {}", rest.join(" ")),
        &format!(":{}\r\n", rest.len()),
    );
    s.expect("DBSIZE", ":0\r\n");
}

/// A full store once refused writes that replace about as many bytes, as if they added bytes; Redis
/// allows them.
#[test]
fn a_full_store_lets_keys_be_renamed_and_expire() {
    let mut s = Server::session(2);
    let value = vec![b'v'; 20_000];
    let mut keys = Vec::new();
    loop {
        let key = format!("key:{}", keys.len());
        if s.ask_bytes(&[b"SET", key.as_bytes(), &value]) != "+OK\r\n" {
            break;
        }
        keys.push(key);
        assert!(keys.len() < 10_000, "64 MiB never fill");
    }
    // As far as the reserve allows: some of them, for which cleaning frees memory again.
    for key in keys.iter().step_by(keys.len() / 50) {
        s.expect(&format!("EXPIRE {key} 100"), ":1\r\n");
        s.expect(
            &format!("GETEX {key} PERSIST"),
            &format!("$20000\r\n{}\r\n", "v".repeat(20_000)),
        );
        s.expect("MULTI", "+OK\r\n");
        s.ask(&format!("EXPIRE {key} 100"));
        s.ask(&format!("PERSIST {key}"));
        s.expect("EXEC", "*2\r\n:1\r\n:1\r\n");
    }
    // A refusal is right until cleaning has freed the memory of earlier rewrites. It never freed
    // any when all dead bytes were in the open segment of a head.
    let until = Instant::now() + Duration::from_secs(300);
    let mut renamed = |from: &str, to: &str| {
        loop {
            let reply = s.ask(&format!("RENAME {from} {to}"));
            if reply == "+OK\r\n" {
                break;
            }
            assert!(
                Instant::now() < until,
                "300 s passed and still not: RENAME {from} {to}: {reply} {:?}",
                s.server.shared.store().stats()
            );
        }
    };
    for pair in keys.chunks_exact(2).step_by(keys.len() / 20) {
        renamed(&pair[0], &pair[1]);
        renamed(&pair[1], &pair[0]);
    }
}

/// Each key of a WATCH was once compared with all keys watched before: 65,536 of them held a thread
/// for 7 s.
#[test]
fn watching_many_keys_takes_time_in_proportion() {
    let mut s = Server::session(1);
    let keys: Vec<String> = (0..65_536).map(|n| format!("key:{n}")).collect();
    let mut watch = |keys: &[String]| {
        let mut args = vec![&b"WATCH"[..]];
        args.extend(keys.iter().map(String::as_bytes));
        // CPU time of this thread only: other threads may use the processor meanwhile.
        let used = || Duration::try_from(clock_gettime(ClockId::ThreadCPUTime)).expect("a time");
        let before = used();
        assert_eq!(s.ask_bytes(&args), "+OK\r\n");
        used() - before
    };
    watch(&keys[..2_048]); // memory that is touched for the first time
    let few = watch(&keys[2_048..6_144]);
    let many = watch(&keys[6_144..]);
    // 15 times as many keys: 15 times as long, or 130 times if each is compared with all before it.
    assert!(many < few * 60, "{few:?} for 4,096 and {many:?} for 59,392");
    s.expect_error("WATCH one:more", "ERR more than 65536 watched keys");
    s.expect("WATCH key:0", "+OK\r\n");
    s.expect("UNWATCH", "+OK\r\n");
    s.expect("WATCH one:more", "+OK\r\n");
}
