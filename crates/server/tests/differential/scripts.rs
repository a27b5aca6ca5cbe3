//! Scripts: their replies, and those of the commands about them, are the ones of redis-server, in
//! both protocols. Each script runs on an empty database with two keys and three arguments.
//!
//! A script whose text here begins with `~` has another reply on purpose; the reason is beside it.

use super::{Peer, Redis, duramen};

/// A script per line; `\n` in it is a line end.
const SCRIPTS: &str = include_str!("scripts.txt");

fn prepare(peer: &mut Peer, protocol: &str) {
    for request in [
        "FLUSHALL",
        "SET text hello",
        "RPUSH list a b c",
        "HSET hash f v g w",
    ] {
        peer.ask(request);
    }
    peer.ask("SADD set x");
    peer.ask("ZADD zset 1.5 one 2 two");
    peer.ask(&format!("HELLO {protocol}"));
}

#[test]
fn scripts_reply_as_in_redis() {
    let Some(redis) = Redis::start() else {
        println!("SKIPPED: there is no redis-server on this machine");
        return;
    };
    let server = duramen();
    let mut wrong = Vec::new();
    let mut compared = 0;
    let lines = SCRIPTS
        .lines()
        .filter(|line| !line.is_empty() && !line.starts_with("--"));
    for line in lines {
        let (line, differs) = match line.strip_prefix("~") {
            Some(line) => (line, true),
            None => (line, false),
        };
        let script = line.replace("\\n", "\n");
        for protocol in ["2", "3"] {
            for command in ["EVAL", "EVAL_RO"] {
                let mut replies = [server.addresses().resp[0], redis.address].map(|address| {
                    let mut peer = Peer::connect(address);
                    prepare(&mut peer, protocol);
                    let args = [command, &script, "2", "text", "other", "1", "two", "3.5"];
                    let reply = peer.ask_args(&args);
                    // It may have written.
                    let keys = ["text", "other"].map(|key| peer.ask(&format!("GET {key}")));
                    format!("{reply} {keys:?}")
                });
                compared += 1;
                if (replies[0] == replies[1]) == differs {
                    let [ours, theirs] = std::mem::take(&mut replies);
                    wrong.push(format!(
                        "{command}, RESP{protocol}: {line}\n   Duramen: {ours:?}\n   Redis:   {theirs:?}"
                    ));
                }
            }
        }
    }
    server.stop();
    server.wait().expect("stops");
    assert!(compared > 400, "only {compared} scripts were read");
    assert!(
        wrong.is_empty(),
        "{} of {compared}:\n{}",
        wrong.len(),
        wrong.join("\n")
    );
    println!("{compared} runs of scripts");
}

/// Requests about scripts, in this order on one connection.
const REQUESTS: &[&[&str]] = &[
    &["EVAL", "return 1", "x"],
    &["EVAL", "return 1", "1"],
    &["EVAL", "return 1", "-1"],
    &["EVAL", "return 1"],
    &[
        "EVAL",
        "return {KEYS[1],KEYS[2],ARGV[1],ARGV[2]}",
        "2",
        "a",
        "b",
        "c",
        "d",
    ],
    &["EVALSHA", "e0e1f9fabfc9d4800c877a703b823ac0578ff8db", "0"],
    &["EVALSHA", "x", "0"],
    &["SCRIPT", "LOAD", "return 7"],
    &["EVALSHA", "4fec60b2ad5b0a2a0b1d2b5a1fb9f7e3d5d7ed5e", "0"],
    &["SCRIPT", "LOAD", "return +"],
    &[
        "SCRIPT",
        "EXISTS",
        "e0e1f9fabfc9d4800c877a703b823ac0578ff8db",
        "x",
    ],
    &["EVAL", "return 'kept'", "0"],
    &["EVALSHA", "E0E1F9FABFC9D4800C877A703B823AC0578FF8DB", "0"],
    &["SCRIPT", "FLUSH", "x"],
    &["SCRIPT", "FLUSH", "ASYNC"],
    &["SCRIPT", "KILL"],
    &["SCRIPT", "HELP"],
    &["SCRIPT", "NOPE"],
    &["SCRIPT", "DEBUG", "NO"],
    &["MULTI"],
    &[
        "EVAL",
        "return redis.call('set', KEYS[1], 'in exec')",
        "1",
        "m",
    ],
    &["GET", "m"],
    &["EVAL", "redis.call('set', 'n', 'x') error('no')", "0"],
    &["EVAL", "return redis.call('get', 'n')", "0"],
    &["EXEC"],
    &["GET", "m"],
    &["GET", "n"],
    &[
        "EVAL",
        "redis.call('select', 3) redis.call('set', 'three', 1) return 1",
        "0",
    ],
    &["GET", "three"],
    &["SELECT", "3"],
    &["GET", "three"],
    &["SELECT", "0"],
    &["WATCH", "w"],
    &["EVAL", "return redis.call('set', 'w', 1)", "0"],
    &["MULTI"],
    &["PING"],
    &["EXEC"],
    &["EVAL", "return redis.call('publish', 'c', 'm')", "0"],
    &[
        "EVAL",
        "redis.call('set', 'half', 1) return redis.call('lpush', 'half', 2)",
        "0",
    ],
    &["EVAL", "return redis.call('scan', 0)[1]", "0"],
    &[
        "EVAL",
        "redis.call('set', 'mine', 1) return redis.call('keys', 'mine*')",
        "0",
    ],
];

#[test]
fn requests_about_scripts_are_answered_as_in_redis() {
    let Some(redis) = Redis::start() else {
        println!("SKIPPED: there is no redis-server on this machine");
        return;
    };
    let server = duramen();
    let mut ours = Peer::connect(server.addresses().resp[0]);
    let mut theirs = Peer::connect(redis.address);
    let mut wrong = Vec::new();
    for request in REQUESTS {
        let (our, their) = (ours.ask_args(request), theirs.ask_args(request));
        if our != their {
            wrong.push(format!(
                "{request:?}\n   Duramen: {our:?}\n   Redis:   {their:?}"
            ));
        }
    }
    server.stop();
    server.wait().expect("stops");
    assert!(wrong.is_empty(), "{}:\n{}", wrong.len(), wrong.join("\n"));
}
