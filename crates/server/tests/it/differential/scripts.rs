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

const LIBRARY: &str = "#!lua name=lib\nlocal n = 0\nlocal function add(by) n = n + by return n end\n\
    redis.register_function('add', function(keys, args) return add(tonumber(args[1])) end)\n\
    redis.register_function('put', function(keys, args) return redis.call('set', keys[1], args[1]) end)\n\
    redis.register_function('fail', function(keys, args) return redis.call('lpush', keys[1]) end)\n\
    redis.register_function('throw', function() error('thrown') end)\n\
    redis.register_function('tables', function(keys, args) return {#keys, #args, keys[1], args[2]} end)\n\
    redis.register_function{function_name='read', callback=function(keys) return redis.call('get', keys[1]) end, flags={'no-writes', 'allow-stale'}, description='reads'}\n\
    redis.register_function{function_name='lies', callback=function(keys) return redis.call('set', keys[1], 1) end, flags={'no-writes'}}\n\
    redis.register_function{function_name='resp3', callback=function() redis.setresp(3) return redis.call('hgetall', 'hash') end, flags={'allow-oom', 'no-cluster', 'allow-cross-slot-keys'}}\n\
    redis.register_function('globals', function() return {type(KEYS)} end)\n\
    redis.register_function('inner', function() redis.register_function('g', function() end) end)\n\
    redis.register_function('set_global', function() x = 1 end)\n";

/// Requests about functions, in this order on one connection.
fn function_requests() -> Vec<Vec<String>> {
    let one = |text: &str| -> Vec<String> { text.split(' ').map(str::to_owned).collect() };
    let load = |text: &str| ["FUNCTION", "LOAD", text].map(str::to_owned).to_vec();
    let replace = |text: &str| {
        ["FUNCTION", "LOAD", "REPLACE", text]
            .map(str::to_owned)
            .to_vec()
    };
    let mut all = vec![
        one("FUNCTION LIST"),
        one("FUNCTION STATS"),
        one("FCALL add 0"),
        load(LIBRARY),
        load(LIBRARY),
        replace(LIBRARY),
        one("FUNCTION STATS"),
    ];
    for call in [
        "add 0 1",
        "ADD 0 2",
        "put 1 key value",
        "fail 1 key",
        "throw 0",
        "tables 2 a b c d",
        "read 1 key",
        "lies 1 key",
        "resp3 0",
        "globals 0",
        "inner 0",
        "set_global 0",
        "nope 0",
        "add x",
        "add 3 a",
        "add -1 a",
        "add",
        "lib 0",
        "put 1 list x",
    ] {
        all.push(one(&format!("FCALL {call}")));
        all.push(one(&format!("FCALL_RO {call}")));
    }
    for line in [
        "",
        "#!lua",
        "#!lua name=x",
        "#!lua\n",
        "#!lua name=a-b\n",
        "#!lua name=\n",
        "#! name=x\n",
        "#!js name=x\n",
        "#!lua name=x y=z\n",
        "#!lua name=x name=y\n",
        "#!lua name=\"x\n",
    ] {
        all.push(load(line));
    }
    for body in [
        "",
        "return 1",
        "bad code",
        "x = 1",
        "return math.random()",
        "return redis.call('ping')",
        "error('e')",
        "error({err='e'})",
        "error({err='MY e'})",
        "local a = nil return a.b",
        "return getmetatable(_G)",
        "redis.register_function()",
        "redis.register_function('f')",
        "redis.register_function('f', 1)",
        "redis.register_function(nil, function() end)",
        "redis.register_function('f', function() end, 1)",
        "redis.register_function('a b', function() end)",
        "redis.register_function('', function() end)",
        "redis.register_function(1, function() end)",
        "redis.register_function('f', function() end) redis.register_function('f', function() end)",
        "redis.register_function('ADD', function() end)",
        "redis.register_function{}",
        "redis.register_function{function_name='f'}",
        "redis.register_function{callback=function() end}",
        "redis.register_function{function_name={}, callback=function() end}",
        "redis.register_function{function_name='f', callback=1}",
        "redis.register_function{function_name='f', callback=function() end, description={}}",
        "redis.register_function{function_name='f', callback=function() end, flags='x'}",
        "redis.register_function{function_name='f', callback=function() end, flags={'x'}}",
        "redis.register_function{function_name='f', callback=function() end, flags={{}}}",
        "redis.register_function{function_name='f', callback=function() end, x=1}",
        "redis.register_function{function_name='f', callback=function() end, 1}",
        "redis.log(redis.LOG_DEBUG, 'x') redis.register_function(redis.REDIS_VERSION, function() end)",
    ] {
        all.push(load(&format!("#!lua name=other\n{body}")));
    }
    all.push(one("FUNCTION DELETE other"));
    all.push(replace("#!lua name=lib\nredis.register_function{function_name='f', callback=function() return 1 end, description='d', flags={'no-writes'}}"));
    for request in [
        "FUNCTION LIST",
        "FUNCTION LIST WITHCODE",
        "FUNCTION LIST LIBRARYNAME l*",
        "FUNCTION LIST LIBRARYNAME x",
        "FUNCTION LIST LIBRARYNAME",
        "FUNCTION LIST x",
        "FUNCTION LIST WITHCODE WITHCODE",
        "FUNCTION LIST LIBRARYNAME a LIBRARYNAME b",
        "FUNCTION DELETE none",
        "FUNCTION DELETE lib",
        "FCALL f 0",
        "FUNCTION KILL",
        "FUNCTION FLUSH x",
        "FUNCTION FLUSH SYNC x",
        "FUNCTION FLUSH ASYNC",
        "FUNCTION RESTORE x",
        "FUNCTION RESTORE x y z",
        "FUNCTION RESTORE x y",
        "FUNCTION LOAD x y",
        "FUNCTION LOAD REPLACE",
        "FUNCTION",
        "FUNCTION NOPE",
        "FUNCTION HELP",
        "FUNCTION STATS x",
        "FUNCTION DELETE",
        "FUNCTION LIST",
        "COMMAND GETKEYS FCALL f 2 a b c",
    ] {
        all.push(one(request));
    }
    all
}

#[test]
fn requests_about_functions_are_answered_as_in_redis() {
    let Some(redis) = Redis::start() else {
        println!("SKIPPED: there is no redis-server on this machine");
        return;
    };
    let server = duramen();
    let mut wrong = Vec::new();
    for protocol in ["2", "3"] {
        let mut peers = [server.addresses().resp[0], redis.address].map(Peer::connect);
        for peer in &mut peers {
            prepare(peer, protocol);
            peer.ask("FUNCTION FLUSH");
        }
        for request in function_requests() {
            let args: Vec<&str> = request.iter().map(String::as_str).collect();
            let [ours, theirs] = [0, 1].map(|n| peers[n].ask_args(&args));
            if ours != theirs {
                wrong.push(format!(
                    "RESP{protocol}: {request:?}\n   Duramen: {ours:?}\n   Redis:   {theirs:?}"
                ));
            }
        }
    }
    server.stop();
    server.wait().expect("stops");
    assert!(wrong.is_empty(), "{}:\n{}", wrong.len(), wrong.join("\n"));
}
