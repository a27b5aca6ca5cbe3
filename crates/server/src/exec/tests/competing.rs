//! Scripts and transactions on drafts that compete for keys, and those that end without an effect.

use super::*;
use duramen_base::planted::{Bug, with_bug};

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
