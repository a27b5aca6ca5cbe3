//! Users, the Unix socket and the audit log, as clients see them.

use crate::reactor::support::{Asking, DEADLINE, Raw, request, start, wait_until};
use duramen_wire::resp::Reply;
use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::time::Instant;

/// A reply as a line of words.
fn text(reply: &Reply) -> String {
    let joined = |list: &[Reply]| list.iter().map(text).collect::<Vec<_>>().join(" ");
    match reply {
        Reply::Simple(text) | Reply::Error(text) => text.clone(),
        Reply::Bulk(bytes) => String::from_utf8_lossy(bytes).into_owned(),
        Reply::Verbatim { text, .. } => String::from_utf8_lossy(text).into_owned(),
        Reply::Array(list) | Reply::Set(list) => joined(list),
        Reply::Map(pairs) => {
            let pairs = pairs.iter();
            let words = pairs.map(|(name, value)| format!("{} {}", text(name), text(value)));
            words.collect::<Vec<_>>().join(" ")
        }
        other => format!("{other:?}"),
    }
}

/// A failed login is answered late, and no other client of the thread waits for it.
#[test]
fn failed_logins_wait_and_delay_no_one() {
    let server = start(|config| {
        config.threads = 1;
        config.requirepass = "hush".to_owned();
    });
    let mut other = Raw::connect(&server);
    other.send(&request(&[b"AUTH", b"hush"]));
    other.expect(b"+OK\r\n");
    let wrong = b"-WRONGPASS invalid username-password pair or user is disabled.\r\n";
    let mut guesser = Raw::connect(&server);
    for _ in 0..8 {
        guesser.send(&request(&[b"AUTH", b"guess"]));
        guesser.expect(wrong);
    }
    // 100 + 200 + 400 ms are over; the next waits for 800 ms, and those after it for longer. It
    // needs the clock, because waits are of time. A busy machine may delay one ping as long.
    let is_first = (0..5).any(|_| {
        let began = Instant::now();
        guesser.send(&request(&[b"AUTH", b"guess"]));
        other.ping();
        guesser.0.set_nonblocking(true).expect("a socket");
        let is_first = guesser.0.peek(&mut [0]).is_err();
        guesser.0.set_nonblocking(false).expect("a socket");
        guesser.expect(wrong);
        assert!(began.elapsed().as_millis() >= 700, "{:?}", began.elapsed());
        is_first
    });
    assert!(is_first, "the other client waits for the guesser");
    guesser.send(&request(&[b"AUTH", b"hush"]));
    guesser.expect(b"+OK\r\n");
}

#[test]
fn a_removed_user_loses_its_connections() {
    let server = start(|_| {});
    let (mut admin, mut client) = (Asking::connect(&server), Raw::connect(&server));
    admin.ask(&[b"ACL", b"SETUSER", b"u", b"on", b">p", b"~*", b"+@all"]);
    client.send(&request(&[b"AUTH", b"u", b"p"]));
    client.expect(b"+OK\r\n");
    let list = text(&admin.ask(&[b"CLIENT", b"LIST"]));
    assert!(
        list.contains("user=u ") && list.contains("user=default "),
        "{list}"
    );
    admin.ask(&[b"ACL", b"DELUSER", b"u"]);
    assert_eq!(client.read_to_end(), "");
}

/// A monitor sends nothing, so no request of its own would tell that its rights have changed.
#[test]
fn a_monitor_ends_with_its_right() {
    let server = start(|_| {});
    let (mut admin, mut monitor) = (Asking::connect(&server), Raw::connect(&server));
    admin.ask(&[b"ACL", b"SETUSER", b"u", b"on", b">p", b"~*", b"+@all"]);
    monitor.send(&request(&[b"AUTH", b"u", b"p"]));
    monitor.send(&request(&[b"MONITOR"]));
    monitor.expect(b"+OK\r\n+OK\r\n");
    admin.ask(&[b"ACL", b"SETUSER", b"u", b"-get"]);
    admin.ask(&[b"ACL", b"SETUSER", b"u", b"-monitor"]);
    admin.ask(&[b"GET", b"secret"]);
    assert!(!monitor.read_to_end().contains("secret"));
}

#[test]
fn users_are_loaded_from_their_file_and_saved_to_it() {
    let dir = tempfile::tempdir().expect("a folder");
    let path = dir.path().join("users");
    std::fs::write(&path, "user u on >p ~a +get\n").expect("a file");
    let server = start(|config| config.access.aclfile = path.display().to_string());
    let mut client = Asking::connect(&server);
    assert_eq!(text(&client.ask(&[b"AUTH", b"u", b"p"])), "OK");
    let denied = text(&client.ask(&[b"GET", b"b"]));
    assert!(
        denied.contains("NOPERM No permissions to access a key"),
        "{denied}"
    );
    let mut admin = Asking::connect(&server);
    std::fs::write(&path, "user u on >p ~b +get\nuser wrong +nosuch\n").expect("a file");
    let fault = text(&admin.ask(&[b"ACL", b"LOAD"]));
    assert!(
        fault.contains("users:2: ") && fault.contains("no change"),
        "{fault}"
    );
    assert!(
        text(&client.ask(&[b"GET", b"b"])).contains("NOPERM"),
        "nothing has changed"
    );
    std::fs::write(&path, "user u on >p ~b +get\n").expect("a file");
    admin.ask(&[b"ACL", b"LOAD"]);
    wait_until("the connection has the new rights", || {
        !text(&client.ask(&[b"GET", b"b"])).contains("NOPERM")
    });
    admin.ask(&[b"ACL", b"SETUSER", b"v", b"on", b"nopass"]);
    admin.ask(&[b"ACL", b"SAVE"]);
    let saved = std::fs::read_to_string(&path).expect("the file");
    let names: Vec<&str> = saved
        .lines()
        .filter_map(|line| line.split(' ').nth(1))
        .collect();
    assert_eq!(names, ["default", "u", "v"], "{saved}");
    assert!(!saved.contains(">p") && saved.contains("#"), "{saved}");
}

#[test]
fn clients_connect_by_the_unix_socket() {
    let dir = tempfile::tempdir().expect("a folder");
    let path = dir.path().join("socket");
    let server = start(|config| config.access.unixsocket = path.display().to_string());
    let mut stream = UnixStream::connect(&path).expect("connects");
    stream.set_read_timeout(Some(DEADLINE)).expect("a timeout");
    stream
        .write_all(b"SET k v\r\nGET k\r\nCLIENT INFO\r\n")
        .expect("sends");
    let mut got = String::new();
    let mut piece = [0; 4096];
    while !got.contains("tot-net-out") {
        let bytes = stream.read(&mut piece).expect("reads");
        got.push_str(&String::from_utf8_lossy(&piece[..bytes]));
    }
    let shown = format!("addr={0}:0 laddr={0}:0", path.display());
    assert!(
        got.starts_with("+OK\r\n$1\r\nv\r\n") && got.contains(&shown),
        "{got}"
    );
    assert!(got.contains("flags=U "), "{got}");
    server.stop();
    server.wait().expect("stops");
    assert!(!path.exists());
}

/// Classes, denials and failed logins; and no password, in any place.
#[test]
fn the_audit_log_names_requests_and_no_secret() {
    let dir = tempfile::tempdir().expect("a folder");
    let path = dir.path().join("audit");
    let server = start(|config| {
        config.access.audit_log = path.display().to_string();
        config.slow.log_slower_than_us = 0;
    });
    let mut client = Asking::connect(&server);
    for args in [
        &[
            &b"ACL"[..],
            b"SETUSER",
            b"u",
            b"on",
            b">open-sesame",
            b"~a",
            b"+@all",
        ][..],
        &[b"CONFIG", b"SET", b"requirepass", b"open-sesame"],
        &[b"AUTH", b"u", b"not-open-sesame"],
        &[b"AUTH", b"u", b"open-sesame"],
        &[b"HELLO", b"3", b"AUTH", b"u", b"open-sesame"],
        &[b"ACL", b"DRYRUN", b"u", b"AUTH", b"open-sesame"],
        &[b"SET", b"a", b"1"],
        &[b"SET", b"b", b"1"],
        &[b"CONFIG", b"SET", b"audit-log-classes", b"write"],
        &[b"SET", b"a", b"2"],
    ] {
        client.ask(args);
    }
    let shown = [
        text(&client.ask(&[b"SLOWLOG", b"GET", b"100"])),
        text(&client.ask(&[b"CLIENT", b"LIST"])),
        text(&client.ask(&[b"CONFIG", b"GET", b"*"])),
        text(&client.ask(&[b"ACL", b"LIST"])),
        text(&client.ask(&[b"ACL", b"LOG"])),
        text(&client.ask(&[b"INFO", b"everything"])),
    ];
    server.stop();
    server.wait().expect("stops");
    let log = std::fs::read_to_string(&path).expect("the log");
    for place in shown.iter().chain([&log]) {
        assert!(!place.contains("open-sesame"), "{place}");
    }
    let lines: Vec<serde_json::Value> = log
        .lines()
        .map(|line| serde_json::from_str(line).expect("JSON"))
        .collect();
    let met = |command: &str, outcome: &str, user: &str| {
        lines.iter().any(|line| {
            line["command"] == command && line["outcome"] == outcome && line["user"] == user
        })
    };
    assert!(met("acl|setuser", "allowed", "default"), "{log}");
    assert!(met("config|set", "allowed", "default"), "{log}");
    assert!(met("auth", "failed-login", "u"), "{log}");
    assert!(met("auth", "allowed", "u"), "{log}");
    assert!(met("set", "denied", "u"), "{log}");
    let allowed = lines
        .iter()
        .filter(|line| line["command"] == "set" && line["outcome"] == "allowed");
    assert_eq!(allowed.count(), 1, "only after the class was chosen: {log}");
}
