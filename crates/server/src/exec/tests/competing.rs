//! Scripts and transactions on drafts that compete for keys, and those that end without an effect.

use super::*;
use duramen_base::planted::{Bug, with_bug};
use std::time::Instant;

fn eval(s: &mut Session, script: &str, words: &[&str]) -> String {
    s.ask_bytes(&eval_words(script, words))
}

fn eval_words<'t>(script: &'t str, words: &[&'t str]) -> Vec<&'t [u8]> {
    let mut args: Vec<&[u8]> = vec![b"EVAL", script.as_bytes()];
    args.extend(words.iter().map(|word| word.as_bytes()));
    args
}

/// The script of a queue moves a job to a list that cannot take it. Returns whether the job is
/// where it was each time.
fn a_job_stays() -> bool {
    let mut s = Server::session(1);
    let job = "j".repeat(900);
    while !s
        .ask_bytes(&[b"RPUSH", b"processing", job.as_bytes()])
        .starts_with('-')
    {}
    s.ask_bytes(&[b"RPUSH", b"queue", job.as_bytes()]);
    let script = "local job = redis.call('RPOP', 'queue')
        return redis.pcall('LPUSH', 'processing', job)";
    let reply = eval(&mut s, script, &["0"]);
    assert!(reply.starts_with("-ERR the collection would"), "{reply}");
    let is_left = s.ask("LLEN queue") == ":1\r\n";
    s.ask_bytes(&[b"RPUSH", b"queue", job.as_bytes()]);
    s.expect("MULTI", "+OK\r\n");
    s.ask_bytes(&eval_words(script, &["0"]));
    let reply = s.ask("EXEC");
    let is_whole = s.ask("LLEN queue") == ":2\r\n";
    is_left && is_whole && reply.starts_with("-EXECABORT")
}

/// The job was lost: the client got the error of the push, and the pop was done.
#[test]
fn a_job_that_a_list_cannot_take_stays_where_it_was() {
    assert!(a_job_stays());
}

#[test]
fn scripts_that_stop_halfway_are_found() {
    assert!(!with_bug(Bug::ScriptsStopHalfway, a_job_stays));
}

/// The same, for the memory of the writes of a script.
#[test]
fn a_script_whose_writes_take_too_much_memory_does_nothing() {
    let mut s = Server::session(1);
    s.expect("CONFIG SET script-memory 4mb", "+OK\r\n");
    s.expect("SET queue job", "+OK\r\n");
    let script = "redis.call('DEL', 'queue')
        for i = 1, 10 do redis.pcall('SET', 'k' .. i, ('x'):rep(900000)) end return 1";
    let reply = eval(&mut s, script, &["0"]);
    assert!(reply.starts_with('-'), "{reply}");
    s.expect("EXISTS queue k1", ":1\r\n");
}

fn request(script: &str, words: &[&str]) -> Vec<u8> {
    let mut request = Vec::new();
    RequestEncoder::new(&mut request).request(&eval_words(script, words));
    request
}

/// A part of a script that takes about so many milliseconds here.
fn lasting(s: &mut Session, ms: u64) -> String {
    let script = "local n = 0 for i = 1, 1000000 do n = n + i end return 1";
    let times = (0..5).map(|_| {
        let began = Instant::now();
        assert_eq!(eval(s, script, &["0"]), ":1\r\n");
        began.elapsed()
    });
    let million = times.min().expect("a time").as_micros().max(1) as u64;
    let times = ms * 1_000_000_000 / million;
    format!("do local n = 0 for i = 1, {times} do n = n + i end end")
}

/// How often commands of this name were called, also in vain.
fn calls(s: &mut Session, name: &str) -> u64 {
    let info = s.ask("INFO commandstats");
    let start = format!("cmdstat_{name}:calls=");
    let line = info.lines().find_map(|line| line.strip_prefix(&start));
    let calls = line.and_then(|line| line.split(',').next());
    calls.map_or(0, |calls| calls.parse().expect("calls"))
}

/// A key that is absent had the stamp of a count of removals, also those of other keys: such a
/// script failed in a store in which keys expire all the time.
#[test]
fn removals_of_other_keys_do_not_break_a_script_that_makes_keys() {
    let mut s = Server::session(1);
    for n in 0..400 {
        s.ask(&format!("SET other{n} v"));
    }
    let long = lasting(&mut s, 20);
    // A run in vain would be the last.
    s.expect("CONFIG SET busy-reply-threshold 1", "+OK\r\n");
    let script = format!("for i = 1, 2000 do redis.call('set', 'k' .. i, 'v') end {long} return 1");
    let request = request(&script, &["0"]);
    let mut other = s.server.client(0);
    let (mut reply, mut removed) = (String::new(), 0);
    for _ in 0..10_000 {
        reply = run_part(&mut s.executor, &mut s.client, &request);
        if !reply.is_empty() {
            break;
        }
        for n in removed..(removed + 100).min(400) {
            let request = format!("DEL other{n}\r\n");
            run(&mut s.executor, &mut other, request.as_bytes());
        }
        // One that comes and goes is absent when the script ends, as it has seen it.
        run(&mut s.executor, &mut other, b"SET k7 x\r\n");
        run(&mut s.executor, &mut other, b"DEL k7\r\n");
        removed += 100;
    }
    assert_eq!(reply, ":1\r\n");
    assert!(removed >= 200, "it was not suspended");
    s.expect("EXISTS k1 k7 k2000", ":3\r\n");
}

/// A script that only reads has no locks, and sees a moment only if no key has come meanwhile.
#[test]
fn a_script_that_only_reads_sees_a_key_that_came_and_went() {
    let mut s = Server::session(1);
    let long = lasting(&mut s, 20);
    // A run in vain is the last.
    s.expect("CONFIG SET busy-reply-threshold 1", "+OK\r\n");
    let script = format!("redis.call('get', 'a') {long} redis.call('get', 'b') return 1");
    let request = request(&script, &["0"]);
    let mut other = s.server.client(0);
    let reply = run_part(&mut s.executor, &mut s.client, &request);
    assert_eq!(reply, "");
    for request in ["SET a v", "SET b v", "DEL b", "DEL a"] {
        run(
            &mut s.executor,
            &mut other,
            format!("{request}\r\n").as_bytes(),
        );
    }
    let reply = run(&mut s.executor, &mut s.client, &request);
    assert!(reply.starts_with("-ERR it ran again and again"), "{reply}");
}
