//! Scripts of a member of a cluster, whose keys leave while they run (drafted::R4).

use super::cluster_member::{Member, keys};
use super::{Session, run, run_part};
use duramen_base::planted::{Bug, with_bug};
use duramen_wire::resp::RequestEncoder;

const LEFT: &str = "-ERR Script attempted to access a non local key in a cluster node";

fn request(script: &str, key: &str) -> Vec<u8> {
    let mut input = Vec::new();
    RequestEncoder::new(&mut input).request(&[b"EVAL", script.as_bytes(), b"0", key.as_bytes()]);
    input
}

/// Presents the script once. Empty: it is suspended, or waits.
fn present(s: &mut Session, script: &str, key: &str) -> String {
    run_part(&mut s.executor, &mut s.client, &request(script, key))
}

/// Presents the script until it answers.
fn answer(s: &mut Session, script: &str, key: &str) -> String {
    run(&mut s.executor, &mut s.client, &request(script, key))
}

/// A script that runs `before`, takes longer than its slice, then runs `after`.
fn long(before: &str, after: &str) -> String {
    format!("{before} local n = 0 for i = 1, 5000000 do n = n + i end {after}")
}

/// A member whose suspended script has done its first half. Its key is not declared.
fn suspended(before: &str, script: &str) -> (Member, String) {
    let mut member = Member::new(1);
    member.tell_halves();
    let (key, _) = keys();
    if !before.is_empty() {
        member
            .session
            .expect(&before.replace("KEY", &key), "+OK\r\n");
    }
    assert_eq!(
        present(&mut member.session, script, &key),
        "",
        "it is suspended"
    );
    (member, key)
}

/// Whether a suspended script whose key has left changes the store of the former owner.
fn writes_after_its_key_has_left() -> bool {
    let script = long("redis.call('set', ARGV[1], 1)", "return 'done'");
    let (mut member, key) = suspended("", &script);
    member.tell_all_gone();
    let reply = answer(&mut member.session, &script, &key);
    member.tell_halves();
    let is_there = member.session.ask(&format!("EXISTS {key}")) == ":1\r\n";
    assert_eq!(reply.starts_with(LEFT), !is_there, "{reply}");
    is_there
}

#[test]
fn a_suspended_script_does_not_write_when_its_key_has_left() {
    assert!(!writes_after_its_key_has_left());
}

#[test]
fn drafts_that_are_not_routed_are_found() {
    assert!(with_bug(
        Bug::DraftsAreNotRouted,
        writes_after_its_key_has_left
    ));
}

#[test]
fn a_suspended_script_shows_nothing_of_a_key_that_has_left() {
    let script = long("local v = redis.call('get', ARGV[1])", "return v");
    let (mut member, key) = suspended("SET KEY old", &script);
    member.tell_all_gone();
    let reply = answer(&mut member.session, &script, &key);
    assert!(reply.starts_with(LEFT), "{reply}");
}

/// The key has left and come back. The script runs again: its first look at the key counts no more.
#[test]
fn a_script_runs_again_when_its_key_was_served_elsewhere_meanwhile() {
    let script = long(
        "local t = redis.call('time')[1] redis.call('set', ARGV[1], t)",
        "return t",
    );
    let (mut member, key) = suspended("", &script);
    let first = member.session.ask("TIME");
    member.session.server.advance(10_000);
    let second = member.session.ask("TIME");
    assert_ne!(first, second);
    member.tell_all_gone();
    member.tell_halves();
    let reply = answer(&mut member.session, &script, &key);
    assert!(
        second.contains(&reply),
        "{reply:?} is no part of {second:?}"
    );
    assert_eq!(member.session.ask(&format!("GET {key}")), reply);
}

/// While nobody serves the key, the script waits as other requests do.
#[test]
fn a_script_waits_for_the_owner_of_an_undeclared_key() {
    let mut member = Member::new(1);
    member.lock();
    let (key, _) = keys();
    let script = "return redis.call('incr', ARGV[1])";
    assert_eq!(present(&mut member.session, script, &key), "");
    member.tell_halves();
    assert_eq!(answer(&mut member.session, script, &key), ":1\r\n");
    // In EXEC too.
    let exec = |member: &mut Member| member.session.ask("EXEC");
    member.session.expect("MULTI", "+OK\r\n");
    let queued = present(&mut member.session, script, &key);
    assert_eq!(queued, "+QUEUED\r\n");
    member.lock();
    assert_eq!(exec(&mut member), "");
    member.tell_halves();
    assert_eq!(exec(&mut member), "*1\r\n:2\r\n");
}
