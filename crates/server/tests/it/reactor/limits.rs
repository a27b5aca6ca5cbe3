//! maxclients, idle timeout, mailboxes; limits of a reply, a queue and a turn.

use crate::reactor::support::{Asking, DEADLINE, Raw, counter, request, start, wait_until};
use duramen_config::{ServerConfig, Setting};
use duramen_redis::operation::configure;
use duramen_redis::threads::Message;
use duramen_server::Server;
use duramen_wire::resp::Reply;
use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::time::{Duration, Instant};

#[test]
fn one_more_than_maxclients_is_told_so() {
    let server = start(|config| config.maxclients = 3);
    let mut clients: Vec<Raw> = (0..3).map(|_| Raw::connect(&server)).collect();
    for client in &mut clients {
        client.ping();
    }
    let mut fourth = Raw::connect(&server);
    assert_eq!(
        fourth.read_to_end(),
        "-ERR max number of clients reached\r\n"
    );
    assert_eq!(counter(&server, |c| c.connections_rejected.get()), 1);
    drop(clients.pop());
    wait_until("a place is free", || {
        server.shared().threads.connected_clients() == 2
    });
    Raw::connect(&server).ping();
    let setting = Setting::find("maxclients").expect("setting");
    configure::set(server.shared(), &[(setting, "1")]).expect("sets");
    wait_until("the place is free again", || {
        server.shared().threads.connected_clients() == 2
    });
    let told = Raw::connect(&server).read_to_end();
    assert_eq!(told, "-ERR max number of clients reached\r\n");
}

#[test]
fn idle_clients_are_closed_and_active_ones_are_not() {
    // On a machine that stands still for a second, the active client is sometimes idle too.
    let is_seen = (0..60).any(|_| {
        let server = start(|config| config.timeout_s = 1);
        let mut active = Raw::connect(&server);
        let mut idle = Raw::connect(&server);
        active.ping();
        let started = Instant::now();
        idle.ping();
        let (mut last, mut longest) = (started, Duration::ZERO);
        while server.shared().threads.connected_clients() == 2 {
            assert!(started.elapsed() < DEADLINE, "nobody is closed");
            let sent = active.0.write_all(b"*1\r\n$4\r\nPING\r\n");
            let answered = sent.and_then(|()| active.0.read_exact(&mut [0; 7]));
            let now = Instant::now();
            (last, longest) = (now, longest.max(now - last));
            if answered.is_err() {
                assert!(longest > Duration::from_millis(500), "closed while active");
                return false;
            }
        }
        if longest.max(last.elapsed()) > Duration::from_millis(500) {
            return false;
        }
        assert!(started.elapsed() >= Duration::from_millis(900));
        assert_eq!(idle.read_to_end(), "");
        wait_until("it was counted", || {
            counter(&server, |c| c.idle_closed.get()) == 1
        });
        true
    });
    assert!(is_seen, "this machine stands still all the time");
}

#[test]
fn messages_reach_the_right_connection() {
    let server = start(|config| config.threads = 2);
    // A push is for clients that monitor; each of them also gets a line for every later MONITOR.
    let mut clients: Vec<Asking> = (0..6).map(|_| Asking::connect(&server)).collect();
    for client in &mut clients {
        assert_eq!(client.ask(&[b"MONITOR"]), Reply::Simple("OK".into()));
    }
    let records = server.shared().threads.clients();
    assert_eq!(records.len(), 6);
    for record in &records {
        let line = format!("+for {}\r\n", record.peer).into_bytes();
        server.shared().threads.post(
            record,
            Message::Push {
                client: record.id,
                bytes: line,
            },
        );
    }
    for client in &mut clients {
        let me = client.raw.0.local_addr().expect("address");
        assert_eq!(line_that_begins(client, "for "), format!("for {me}"));
    }
    let mut victim = clients.remove(2);
    let me = victim.raw.0.local_addr().expect("address");
    let record = records
        .iter()
        .find(|record| record.peer == me)
        .expect("record");
    server
        .shared()
        .threads
        .post(record, Message::Close { client: record.id });
    assert_eq!(victim.raw.read_to_end(), "");
    wait_until("it is out of the registry", || {
        server.shared().threads.client(record.id).is_none()
    });
    // A message to a client that is gone is dropped.
    server
        .shared()
        .threads
        .post(record, Message::Close { client: record.id });
    for client in &mut clients {
        client.raw.send(&request(&[b"RESET"]));
        line_that_begins(client, "RESET");
        client.raw.ping();
    }
}

/// Skips the lines for commands that this client monitors.
fn line_that_begins(client: &mut Asking, beginning: &str) -> String {
    loop {
        match client.reply() {
            Reply::Simple(line) if line.starts_with(beginning) => return line,
            Reply::Simple(_) => {}
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn a_port_in_use_is_refused() {
    let server = start(|_| {});
    let taken = crate::reactor::support::address(&server).port();
    let mut config = crate::reactor::support::config();
    config.port = taken;
    let error = duramen_server::Server::start(config)
        .err()
        .expect("refused")
        .to_string();
    assert!(error.contains(&format!("127.0.0.1:{taken}")), "{error}");
    assert!(error.contains("another server"), "{error}");
}

const OUTPUT_LIMIT: usize = 4 << 20;

fn small_output(config: &mut ServerConfig) {
    config.threads = 1;
    config.output_limit_bytes = OUTPUT_LIMIT;
}

/// Whether the reply was refused for its length. (Any other reply is too long to be printed.)
fn is_too_long(reply: &Reply) -> bool {
    let text = format!(
        "ERR the reply does not fit into this connection's output-limit of {OUTPUT_LIMIT} bytes: ask for less at once"
    );
    *reply == Reply::Error(text)
}

/// 28 KB of `MGET k` once asked for 4.3 GB and ended the process.
#[test]
fn a_reply_of_many_values_ends_at_the_output_limit() {
    let server = start(small_output);
    let mut client = Asking::connect(&server);
    let value = vec![b'v'; 1 << 20];
    assert_eq!(
        client.ask(&[b"SET", b"k", &value]),
        Reply::Simple("OK".into())
    );
    for name in [&b"MGET"[..], b"DURAMEN.MREAD"] {
        let mut many = vec![name];
        many.resize(65, b"k");
        assert!(is_too_long(&client.ask(&many)));
        let few = client.ask(&[name, b"k", b"k", b"k"]);
        assert_eq!(few.as_array().map(<[Reply]>::len), Some(3));
    }
    assert_eq!(counter(&server, |c| c.output_closed.get()), 0);
}

/// The effect of a transaction stays, and its reply cannot be sent: the connection is closed, as in
/// Redis.
#[test]
fn a_transaction_whose_reply_does_not_fit_runs_and_closes() {
    let server = start(small_output);
    let mut client = Asking::connect(&server);
    let value = vec![b'v'; 1 << 20];
    client.ask(&[b"SET", b"k", &value]);
    client.ask(&[b"MULTI"]);
    for _ in 0..40 {
        assert_eq!(client.ask(&[b"GET", b"k"]), Reply::Simple("QUEUED".into()));
    }
    client.ask(&[b"SET", b"done", b"1"]);
    client.raw.send(&request(&[b"EXEC"]));
    assert_eq!(client.raw.read_to_end(), "");
    assert_eq!(counter(&server, |c| c.output_closed.get()), 1);
    let mut other = Asking::connect(&server);
    assert_eq!(other.ask(&[b"GET", b"done"]), Reply::Bulk(b"1".to_vec()));
}

fn keys_of(found: &Reply) -> Vec<Vec<u8>> {
    let keys = found.as_array().expect("keys").iter();
    keys.map(|key| key.as_bytes().expect("a key").to_vec())
        .collect()
}

/// `KEYS` and scans collect before they answer: that was once not bounded either, nor was `COUNT`.
#[test]
fn walks_end_at_the_output_limit_and_scans_before() {
    const KEYS: usize = 80;
    let server = start(small_output);
    let mut client = Asking::connect(&server);
    let value = vec![b'v'; 200_000];
    for n in 0..KEYS {
        let key = format!("{n:060000}");
        client.ask(&[b"SET", key.as_bytes(), &value]);
    }
    assert!(is_too_long(&client.ask(&[b"KEYS", b"*"])));
    for (name, each) in [(&b"SCAN"[..], 1), (b"DURAMEN.SCAN", 3)] {
        let (mut cursor, mut seen, mut calls) = (b"0".to_vec(), BTreeSet::new(), 0);
        loop {
            let reply = client.ask(&[name, &cursor, b"COUNT", b"1000000000"]);
            let [next, found] = reply.as_array().expect("a cursor and keys") else {
                panic!("{reply:?}");
            };
            let found = found.as_array().expect("keys");
            seen.extend(
                found
                    .iter()
                    .step_by(each)
                    .map(|key| key.as_bytes().expect("a key").to_vec()),
            );
            calls += 1;
            cursor = next.as_bytes().expect("a cursor").to_vec();
            if cursor == b"0" {
                break;
            }
        }
        assert_eq!(seen.len(), KEYS);
        assert!(calls > 2, "{calls} calls");
    }
}

/// Empty arguments have no bytes: 12 MB of such requests once became a queue of 511 MB.
#[test]
fn the_queue_of_a_transaction_counts_all_that_it_takes() {
    let server = start(|config| config.request_limit_bytes = 2 << 20);
    let mut client = Asking::connect(&server);
    client.ask(&[b"MULTI"]);
    let mut del = vec![&b"DEL"[..]];
    del.resize(1_000, b"");
    client.raw.send(&request(&del).repeat(200));
    let refused = (0..200).filter(|_| {
        let reply = client.reply();
        matches!(reply, Reply::Error(text) if text.starts_with("ERR transaction is larger than the request limit"))
    });
    assert!(refused.count() > 100);
    let reply = client.ask(&[b"EXEC"]);
    assert!(
        matches!(&reply, Reply::Error(text) if text.starts_with("EXECABORT")),
        "{reply:?}"
    );
}

#[test]
fn names_of_clients_are_bounded() {
    let server = start(|_| {});
    let mut client = Asking::connect(&server);
    let long = vec![b'n'; 1_025];
    for request in [
        &[&b"CLIENT"[..], b"SETNAME", &long][..],
        &[b"CLIENT", b"SETINFO", b"LIB-NAME", &long],
        &[b"HELLO", b"2", b"SETNAME", &long],
    ] {
        let reply = client.ask(request);
        assert!(
            matches!(&reply, Reply::Error(text) if text.ends_with("cannot be longer than 1024 bytes")),
            "{reply:?}"
        );
    }
    assert_eq!(
        client.ask(&[b"CLIENT", b"SETNAME", &long[1..]]),
        Reply::Simple("OK".into())
    );
}

/// Requests behind `RESET` were once searched with the limits of an unauthenticated client, in
/// bytes that were parsed without these limits. If `RESET` was the last of its turn, they were
/// dropped without a reply.
#[test]
fn requests_behind_reset_are_answered() {
    let server = start(|config| config.requirepass = "secret".to_owned());
    let mut client = Asking::connect(&server);
    client.ask(&[b"AUTH", b"secret"]);
    // Together with the replies before it, RESET's reply exceeds the output of one turn.
    let value = vec![b'v'; (1 << 20) - 20];
    client.ask(&[b"SET", b"k", &value]);
    let mut pipeline = request(&[b"SET", b"long", &[b'x'; 20_000]]);
    pipeline.extend(request(&[b"GET", b"k"]));
    pipeline.extend(request(&[b"RESET"]));
    pipeline.extend(request(&[b"AUTH", b"secret"]));
    pipeline.extend(request(&[b"ECHO", b"the end"]));
    client.raw.send(&pipeline);
    assert_eq!(client.reply(), Reply::Simple("OK".into()));
    assert_eq!(client.reply(), Reply::Bulk(value));
    assert_eq!(client.reply(), Reply::Simple("RESET".into()));
    assert_eq!(client.reply(), Reply::Simple("OK".into()));
    assert_eq!(client.reply(), Reply::Bulk(b"the end".to_vec()));
}

fn fill(client: &mut Asking, keys: usize) {
    let mut pipeline = Vec::new();
    for n in 0..keys {
        pipeline.extend(request(&[b"SET", format!("key:{n}").as_bytes(), b"v"]));
    }
    client.raw.send(&pipeline);
    for _ in 0..keys {
        assert_eq!(client.reply(), Reply::Simple("OK".into()));
    }
}

fn commands(server: &Server) -> u64 {
    counter(server, |c| c.commands.get())
}

/// One batch of 60 pipelined `KEYS` once kept all other clients of its thread waiting until the
/// last of them was done.
#[test]
fn long_commands_of_one_client_leave_turns_to_the_others() {
    const WALKS: u64 = 60;
    let server = start(|config| config.threads = 1);
    let mut client = Asking::connect(&server);
    fill(&mut client, 50_000);
    let mut other = Raw::connect(&server);
    other.ping();
    let before = commands(&server);
    client
        .raw
        .send(&request(&[b"KEYS", b"none*"]).repeat(WALKS as usize));
    wait_until("the first has run", || commands(&server) > before);
    for _ in 0..5 {
        other.ping();
    }
    let walked = commands(&server) - before - 5;
    assert!(walked < WALKS, "all ran before anybody else");
    for _ in 0..WALKS {
        assert_eq!(client.reply(), Reply::Array(Vec::new()));
    }
}

/// `KEYS` does one part in each round: writes of another client in between must not make it report
/// a key twice, or omit one.
#[test]
fn keys_tells_each_key_once_while_others_write() {
    const KEYS: usize = 40_000;
    let server = start(|config| config.threads = 1);
    let mut client = Asking::connect(&server);
    fill(&mut client, KEYS);
    let mut writer = Asking::connect(&server);
    client.raw.send(&request(&[b"KEYS", b"key:*"]));
    let mut more = Vec::new();
    for n in 0..KEYS {
        more.extend(request(&[b"SET", format!("other:{n}").as_bytes(), b"v"]));
    }
    writer.raw.send(&more);
    let told = keys_of(&client.reply());
    assert_eq!(told.len(), KEYS);
    assert_eq!(told.into_iter().collect::<BTreeSet<_>>().len(), KEYS);
}
