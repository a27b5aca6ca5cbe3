//! Scripts of a member of a cluster, whose keys leave while they run (drafted::R4).

use super::cluster_member::{Member, keys};
use super::{Session, run, run_part};
use crate::script::cluster;
use duramen_base::planted::{Bug, with_bug};
use duramen_wire::native::message::ClusterFunctions;
use duramen_wire::resp::RequestEncoder;
use std::sync::Arc;
use std::time::Duration;

const LEFT: &str = "-ERR Script attempted to access a non local key in a cluster node";
/// A script runs by its text, by its name, or as a function of a library.
const WAYS: [&str; 3] = ["EVAL", "EVALSHA", "FCALL"];
/// Runs in one of which a key leaves at the right moment.
const RUNS: u32 = 8;

fn encoded(words: &[&str]) -> Vec<u8> {
    let mut input = Vec::new();
    RequestEncoder::new(&mut input).request(words);
    input
}

fn request(script: &str, key: &str) -> Vec<u8> {
    encoded(&["EVAL", script, "0", key])
}

/// The request that runs a script in this way, of which the key is not declared.
fn request_by(way: &str, s: &mut Session, script: &str, key: &str) -> Vec<u8> {
    let name = match way {
        "EVAL" => script.to_owned(),
        "EVALSHA" => {
            let loaded = s.ask_bytes(&[b"SCRIPT", b"LOAD", script.as_bytes()]);
            loaded.lines().nth(1).expect("a name").to_owned()
        }
        _ => {
            let text = format!(
                "#!lua name=l\nredis.register_function('f', function(KEYS, ARGV) {script} end)"
            );
            cluster::adopt_functions(
                &s.server.shared,
                &ClusterFunctions {
                    revision: 1,
                    texts: vec![text.into_bytes()],
                },
            );
            "f".to_owned()
        }
    };
    encoded(&[way, &name, "0", key])
}

/// Presents a script once. Empty: it is suspended, or waits.
fn present(s: &mut Session, request: &[u8]) -> String {
    run_part(&mut s.executor, &mut s.client, request)
}

/// Presents a script until it answers.
fn answer(s: &mut Session, request: &[u8]) -> String {
    run(&mut s.executor, &mut s.client, request)
}

/// A script that runs `before`, takes longer than its slice, then runs `after`.
fn long(before: &str, after: &str) -> String {
    format!("{before} local n = 0 for i = 1, 5000000 do n = n + i end {after}")
}

/// A member whose suspended script has done its first half, the script's key, which is not
/// declared, and its request.
fn suspended(way: &str, before: &str, script: &str) -> (Member, String, Vec<u8>) {
    let mut member = Member::new(1);
    member.tell_halves();
    let (key, _) = keys();
    if !before.is_empty() {
        member
            .session
            .expect(&before.replace("KEY", &key), "+OK\r\n");
    }
    let s = &mut member.session;
    let request = request_by(way, s, script, &key);
    assert_eq!(present(s, &request), "", "{way}: it is suspended");
    assert!(s.executor.thread.scripts.has_run(s.client.id()), "{way}");
    (member, key, request)
}

/// Whether a suspended script whose key has left changes the store of the former owner.
fn writes_after_its_key_has_left(way: &str) -> bool {
    let script = long("redis.call('set', ARGV[1], 1)", "return 'done'");
    let (mut member, key, request) = suspended(way, "", &script);
    member.tell_all_gone();
    let reply = answer(&mut member.session, &request);
    member.tell_halves();
    let is_there = member.session.ask(&format!("EXISTS {key}")) == ":1\r\n";
    assert_eq!(reply.starts_with(LEFT), !is_there, "{way}: {reply}");
    is_there
}

#[test]
fn a_suspended_script_does_not_write_when_its_key_has_left() {
    assert!(!WAYS.into_iter().any(writes_after_its_key_has_left));
}

/// The same for an undeclared key in the part of a slot that leaves. `is_declared`: the script
/// declares a key of the part that stays.
fn writes_in_a_part_that_has_left(is_declared: bool) -> bool {
    let mut member = Member::new(1);
    let (ends, [stays, leaves]) = member.cut_slot();
    member.tell_divided(ends, true);
    let script = long("redis.call('set', ARGV[#ARGV], 1)", "return 'done'");
    let number = if is_declared { "1" } else { "0" };
    let request = encoded(&["EVAL", &script, number, stays, leaves]);
    assert_eq!(present(&mut member.session, &request), "");
    member.tell_divided(ends, false);
    let reply = answer(&mut member.session, &request);
    member.tell_divided(ends, true);
    let is_there = member.session.ask(&format!("EXISTS {leaves}")) == ":1\r\n";
    // Keys of both parts wait for one owner of them.
    let expected = if is_declared { "" } else { LEFT };
    let is_refused = reply.starts_with(expected) && !reply.contains("done");
    assert_eq!(is_refused, !is_there, "{is_declared}: {reply}");
    is_there
}

#[test]
fn a_suspended_script_does_not_write_in_a_part_of_its_slot_that_has_left() {
    assert!(
        ![true, false]
            .into_iter()
            .any(writes_in_a_part_that_has_left)
    );
}

/// Whether EXEC writes although its script has met that its key has left. A script in EXEC is not
/// suspended, but its commands look at the newest owners, and so does the guard of its commit.
fn writes_in_exec_after_its_key_has_left() -> bool {
    let script = "local n = 0 for i = 1, 3000000 do n = n + i end
        local value = redis.pcall('get', ARGV[1])
        return type(value) == 'table' and 'left' or 'here'";
    let mut member = Member::new(1);
    member.tell_halves();
    let (key, _) = keys();
    let request = request(script, &key);
    let s = &mut member.session;
    s.expect("MULTI", "+OK\r\n");
    s.expect(&format!("SET {key} 1"), "+QUEUED\r\n");
    assert_eq!(present(s, &request), "+QUEUED\r\n");
    let (membership, gone) = (Arc::clone(&member.membership), member.view_without_any());
    let reply = std::thread::scope(|scope| {
        scope.spawn(move || {
            std::thread::sleep(Duration::from_millis(10)); // the script runs
            membership.publish(gone);
        });
        member.session.ask("EXEC")
    });
    member.tell_halves();
    let is_there = member.session.ask(&format!("EXISTS {key}")) == ":1\r\n";
    assert!(!reply.starts_with('-') || !is_there, "{reply}");
    reply.contains("left") && is_there
}

#[test]
fn a_transaction_does_not_write_when_its_script_has_met_that_its_key_left() {
    assert!(!(0..RUNS).any(|_| writes_in_exec_after_its_key_has_left()));
}

#[test]
fn drafts_that_are_not_routed_are_found() {
    let bug = Bug::DraftsAreNotRouted;
    for way in WAYS {
        assert!(
            with_bug(bug, || writes_after_its_key_has_left(way)),
            "{way}"
        );
    }
    for is_declared in [true, false] {
        let found = with_bug(bug, || writes_in_a_part_that_has_left(is_declared));
        assert!(found, "{is_declared}");
    }
    assert!((0..RUNS).any(|_| with_bug(bug, writes_in_exec_after_its_key_has_left)));
}

#[test]
fn a_suspended_script_shows_nothing_of_a_key_that_has_left() {
    let script = long("local v = redis.call('get', ARGV[1])", "return v");
    for way in WAYS {
        let (mut member, _, request) = suspended(way, "SET KEY old", &script);
        member.tell_all_gone();
        let reply = answer(&mut member.session, &request);
        assert!(reply.starts_with(LEFT), "{way}: {reply}");
    }
}

/// The microseconds in a reply of `TIME`: numbers of 10 and of up to 6 digits.
fn micros(reply: &str) -> u64 {
    let is_number = |line: &&str| line.bytes().all(|byte| byte.is_ascii_digit());
    let numbers = reply
        .split("\r\n")
        .filter(|line| !line.is_empty() && is_number(line));
    let number = |line: &str| line.parse::<u64>().expect("a number");
    numbers.fold(0, |sum, line| sum * 1_000_000 + number(line))
}

/// The key has left and come back. The script runs again: its first look at the key counts no more.
#[test]
fn a_script_runs_again_when_its_key_was_served_elsewhere_meanwhile() {
    let script = long(
        "local t = redis.call('time') t = string.format('%d%06d', t[1], t[2]) \
         redis.call('set', ARGV[1], t)",
        "return t",
    );
    let (mut member, key, request) = suspended("FCALL", "", &script);
    let asked = member.session.ask("TIME");
    member.tell_all_gone();
    member.tell_halves();
    let reply = answer(&mut member.session, &request);
    assert!(
        micros(&reply) > micros(&asked),
        "{reply:?} is of the first run, before {asked:?}"
    );
    assert_eq!(member.session.ask(&format!("GET {key}")), reply);
}

/// While nobody serves the key, the script waits as other requests do.
#[test]
fn a_script_waits_for_the_owner_of_an_undeclared_key() {
    let mut member = Member::new(1);
    member.lock();
    let (key, _) = keys();
    let request = request("return redis.call('incr', ARGV[1])", &key);
    assert_eq!(present(&mut member.session, &request), "");
    member.tell_halves();
    assert_eq!(answer(&mut member.session, &request), ":1\r\n");
    // In EXEC too.
    let exec = |member: &mut Member| member.session.ask("EXEC");
    member.session.expect("MULTI", "+OK\r\n");
    let queued = present(&mut member.session, &request);
    assert_eq!(queued, "+QUEUED\r\n");
    member.lock();
    assert_eq!(exec(&mut member), "");
    member.tell_halves();
    assert_eq!(exec(&mut member), "*1\r\n:2\r\n");
}
