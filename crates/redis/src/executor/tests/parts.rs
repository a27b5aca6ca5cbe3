//! Requests that run in parts: what they keep between two parts is theirs alone.

use super::*;
use crate::state::progress::Progress;
use crate::values::computed::Part;
use duramen_base::planted::{Bug, carry, with_bug};
use duramen_engine::TableId;
use std::time::Instant;

/// Adds so many members to a set, all of which begin with `tag`.
fn fill(s: &mut Session, set: &str, tag: &str, members: usize) {
    let members: String = (0..members).map(|n| format!(" {tag}:{n}")).collect();
    s.ask(&format!("SADD {set}{members}"));
}

/// Many keys, so that their combination takes long.
fn many(key: &str) -> String {
    format!(" {key}").repeat(400)
}

/// The replies to a union that runs in parts, and to a short one behind it in the pipeline, if the
/// user has lost the right to the first one's keys meanwhile.
fn union_behind_a_refused_one() -> String {
    let mut s = Server::session(1);
    for set in ["secret:1", "secret:2"] {
        fill(&mut s, set, "secret", 2_000);
    }
    fill(&mut s, "f", "f", 2_000);
    for set in ["public:1", "public:2"] {
        s.expect(&format!("SADD {set} {set}"), ":1\r\n");
    }
    s.expect("ACL SETUSER u on >p ~* +@all", "+OK\r\n");
    let mut user = s.server.client(0);
    run(&mut s.executor, &mut user, b"AUTH u p\r\n");
    let long = format!("SUNION secret:1 secret:2{}\r\n", many("f"));
    assert_eq!(run_part(&mut s.executor, &mut user, long.as_bytes()), "");
    s.expect("ACL SETUSER u resetkeys ~public:*", "+OK\r\n");
    let pipeline = format!("{long}SUNION public:1 public:2{}\r\n", many("public:1"));
    run(&mut s.executor, &mut user, pipeline.as_bytes())
}

/// It went on from the progress of the one before it: the user got the members of sets that it had
/// no right to, and stored them.
#[test]
fn a_request_does_not_go_on_from_the_progress_of_a_refused_one() {
    let replies = union_behind_a_refused_one();
    assert!(replies.starts_with("-NOPERM"), "{replies:.200}");
    assert!(replies.contains("\r\n*2\r\n"), "{replies:.200}");
    assert!(!replies.contains("secret:1\r\n"), "{replies:.200}");
}

#[test]
fn progress_that_outlives_its_request_is_found() {
    let replies = with_bug(Bug::ProgressOutlivesRequests, union_behind_a_refused_one);
    assert!(replies.contains("secret:1\r\n"), "not found");
}

/// SWAPDB came between two parts: the rest was of the other database, if its keys had the same
/// versions. These begin at other numbers in a new database.
#[test]
fn a_combination_is_of_one_database() {
    for more in 0..3 {
        let mut s = Server::session(1);
        for (db, tag) in [(0, "old"), (1, "new")] {
            s.expect(&format!("SELECT {db}"), "+OK\r\n");
            for set in ["a", "b", "f"] {
                fill(&mut s, set, &format!("{tag}:{set}"), 2_000);
            }
        }
        s.expect("SELECT 0", "+OK\r\n");
        for n in 0..more {
            for set in ["a", "b", "f"] {
                s.expect(&format!("SADD {set} old:{n}"), ":1\r\n");
            }
        }
        let mut other = s.server.client(0);
        let union = format!("SUNION a{} b\r\n", many("f"));
        let part = run_part(&mut s.executor, &mut s.client, union.as_bytes());
        assert_eq!(part, "");
        run(&mut s.executor, &mut other, b"SWAPDB 0 1\r\n");
        let reply = run(&mut s.executor, &mut s.client, union.as_bytes());
        assert!(reply.contains("new:a:"), "{reply:.100}");
        assert!(!reply.contains("old:"), "two databases");
    }
}

/// Runs a combination to its end. Returns its reply, and how many of its parts ended within a
/// source.
fn in_parts(s: &mut Session, request: &str) -> (String, u32) {
    let mut within = 0;
    loop {
        let reply = s.ask_part(request);
        if !reply.is_empty() {
            return (reply, within);
        }
        let progress = s.client.parking.take_values(TableId::DEFAULT);
        let progress = progress.expect("it goes on");
        within += u32::from(progress.at > 0);
        s.client.parking.keep_values(progress);
    }
}

/// A part ended between two sources alone, and its end had the reply too: rounds of 20 ms.
#[test]
fn a_combination_of_large_sets_is_cut_within_them() {
    combine_large_sets(&mut Server::session(1));
}

/// With flash a combination ran in one go.
#[test]
fn a_combination_is_cut_beside_flash_too() {
    let dir = tempfile::tempdir().expect("a folder");
    let config = ServerConfig {
        level: Some(Level::Memory),
        threads: 1,
        flash_file: dir.path().join("flash").to_string_lossy().into_owned(),
        flash_bytes: 2 << 20,
        ..ServerConfig::default()
    };
    let mut s = Server::with(config).into_session();
    assert!(s.server.shared.tier().is_some());
    combine_large_sets(&mut s);
}

fn combine_large_sets(s: &mut Session) {
    for part in 0..20 {
        let members: String = (0..3_000)
            .map(|n| format!(" m:{}", 3_000 * part + n))
            .collect();
        s.ask(&format!("SADD a{members}"));
    }
    for (set, gone) in [("b", 7), ("c", 59_999), ("d", 7)] {
        s.expect(&format!("COPY a {set}"), ":1\r\n");
        s.expect(&format!("SREM {set} m:{gone}"), ":1\r\n");
    }
    let (inter, cut) = in_parts(s, "SINTERSTORE r a b c d");
    assert_eq!(inter, ":59998\r\n");
    s.expect("SMISMEMBER r m:7 m:8 m:59999", "*3\r\n:0\r\n:1\r\n:0\r\n");
    let (union, cut_too) = in_parts(s, "SUNIONSTORE r b c d");
    assert_eq!(union, ":60000\r\n");
    assert!(cut + cut_too > 0, "no part ended within a source");
    let (diff, _) = in_parts(s, "SDIFF a b c d");
    assert_eq!(diff, "*0\r\n");
    let (diff, _) = in_parts(s, "SDIFF a c");
    assert_eq!(diff, "*1\r\n$7\r\nm:59999\r\n");
}

/// A part whose time was over when it had unpacked the result of those before it combined nothing,
/// and so did the next one, for ever.
#[test]
fn each_part_of_a_combination_of_sorted_sets_comes_further() {
    let mut s = Server::session(1);
    for part in 0..15 {
        let members: String = (0..3_000)
            .map(|n| format!(" 1 m:{}", 3_000 * part + n))
            .collect();
        s.expect(&format!("ZADD a{members}"), ":3000\r\n");
    }
    for set in ["b", "c"] {
        s.expect(&format!("COPY a {set}"), ":1\r\n");
    }
    // Others are suspended too, so each part has the least time.
    for other in 1..6 {
        s.executor.thread.scripts.keep(u64::MAX - other, 1);
    }
    let mut parts = (0..10).map(|_| s.ask_part("ZUNIONSTORE r 3 a b c"));
    let reply = parts.find(|reply| !reply.is_empty());
    assert_eq!(reply.as_deref(), Some(":45000\r\n"));
}

/// The parts of a combination went on after its client had gone.
#[test]
fn a_combination_ends_with_its_client() {
    let mut s = Server::session(1);
    fill(&mut s, "f", "f", 2_000);
    assert_eq!(s.ask_part(&format!("SUNION{}", many("f"))), "");
    assert_eq!(s.executor.script_of(&s.client), Some(false));
    // As its connection is closed.
    s.executor.end_subscriptions(&mut s.client);
    assert_eq!(s.executor.script_of(&s.client), None);
    assert_eq!(s.executor.thread.scripts.bytes(), 0);
}

/// computed::C2. Each part read all keys again, and then combined for a tenth of that time.
#[test]
fn a_part_of_a_combination_knows_how_long_its_reading_took() {
    let mut s = Server::session(1);
    fill(&mut s, "f", "f", 2_000);
    assert_eq!(s.ask_part(&format!("SUNION{}", many("f"))), "");
    let progress = s.client.parking.take_values(TableId::DEFAULT);
    let progress = progress.expect("it goes on");
    assert!(progress.reading > Duration::ZERO);
    let time = Duration::from_millis(1);
    let ends = |reading| {
        let progress = Progress {
            reading,
            ..Progress::default()
        };
        let began = Instant::now();
        Part::of(Some(&progress), time).ends.expect("an end") - began
    };
    assert!(ends(Duration::from_secs(60)) >= Duration::from_secs(60));
    assert!(ends(Duration::ZERO) >= time);
}

/// Each part forgot the runs before it that were in vain: beside a steady writer it never ended.
#[test]
fn a_long_sort_ends_beside_a_steady_writer() {
    let server = Server::new(2);
    let (mut executor, mut client) = (server.executor(0), server.client(0));
    for part in 0..60 {
        let items: String = (0..2_000)
            .map(|n| format!(" {}", (n * 7_919 + part * 13) % 100_003))
            .collect();
        run(
            &mut executor,
            &mut client,
            format!("RPUSH l{items}\r\n").as_bytes(),
        );
    }
    let is_over = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(carry(|| {
            let (mut executor, mut writer) = (server.executor(1), server.client(1));
            while !is_over.load(Ordering::Relaxed) {
                run_part(&mut executor, &mut writer, b"LSET l 0 5\r\n");
            }
        }));
        let deadline = Instant::now() + Duration::from_secs(20);
        let mut reply = String::new();
        while reply.is_empty() && Instant::now() < deadline {
            reply = run_part(&mut executor, &mut client, b"SORT l STORE sorted\r\n");
        }
        is_over.store(true, Ordering::Relaxed);
        assert_eq!(reply, ":120000\r\n");
    });
}

/// It was in the audit log once for each part.
#[test]
fn a_request_in_parts_is_in_the_audit_log_once() {
    let dir = tempfile::tempdir().expect("a folder");
    let log = dir.path().join("audit");
    let mut config = ServerConfig {
        level: Some(Level::Memory),
        threads: 1,
        ..ServerConfig::default()
    };
    config.access.audit_log = log.to_string_lossy().into_owned();
    config.access.audit_log_classes = "read".to_owned();
    let mut s = Server::with(config).into_session();
    for set in ["a", "f"] {
        fill(&mut s, set, set, 2_000);
    }
    let union = format!("SUNION a{}", many("f"));
    assert_eq!(s.ask_part(&union), "");
    assert!(s.ask(&union).starts_with("*4000\r\n"));
    assert!(s.ask("SCARD a").starts_with(':'));
    s.server.shared.audit().end();
    let lines = std::fs::read_to_string(&log).expect("a log");
    assert_eq!(lines.matches("sunion").count(), 1, "{lines}");
    assert_eq!(lines.matches("scard").count(), 1, "{lines}");
}
