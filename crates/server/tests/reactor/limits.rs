//! maxclients, idle timeout, mailboxes.

use crate::support::{DEADLINE, Raw, counter, start, wait_until};
use duramen_server::config::Setting;
use duramen_server::shared::Message;
use std::io::{Read, Write};
use std::sync::Arc;
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
        server.shared().connected_clients() == 2
    });
    Raw::connect(&server).ping();
    let setting = Setting::find("maxclients").expect("setting");
    server.shared().set_config(setting, "1").expect("sets");
    wait_until("the place is free again", || {
        server.shared().connected_clients() == 2
    });
    let told = Raw::connect(&server).read_to_end();
    assert_eq!(told, "-ERR max number of clients reached\r\n");
}

#[test]
fn idle_clients_are_closed_and_active_ones_are_not() {
    // A machine that stands still for a second makes the active one idle too, now and then.
    let is_seen = (0..60).any(|_| {
        let server = start(|config| config.timeout_s = 1);
        let mut active = Raw::connect(&server);
        let mut idle = Raw::connect(&server);
        active.ping();
        let started = Instant::now();
        idle.ping();
        let (mut last, mut longest) = (started, Duration::ZERO);
        while server.shared().connected_clients() == 2 {
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
    let mut clients: Vec<Raw> = (0..6).map(|_| Raw::connect(&server)).collect();
    for client in &mut clients {
        client.ping();
    }
    let records = server.shared().clients();
    assert_eq!(records.len(), 6);
    for record in &records {
        let line: Arc<[u8]> = format!("+for {}\r\n", record.peer).into_bytes().into();
        server.shared().post(
            record,
            Message::Push {
                client: record.id,
                bytes: line,
            },
        );
    }
    for client in &mut clients {
        let me = client.0.local_addr().expect("address");
        client.expect(format!("+for {me}\r\n").as_bytes());
    }
    let mut victim = clients.remove(2);
    let me = victim.0.local_addr().expect("address");
    let record = records
        .iter()
        .find(|record| record.peer == me)
        .expect("record");
    server
        .shared()
        .post(record, Message::Close { client: record.id });
    assert_eq!(victim.read_to_end(), "");
    wait_until("it is out of the registry", || {
        server.shared().client(record.id).is_none()
    });
    // A message to somebody who is gone is dropped.
    server
        .shared()
        .post(record, Message::Close { client: record.id });
    for client in &mut clients {
        client.ping();
    }
}

#[test]
fn a_port_in_use_is_refused() {
    let server = start(|_| {});
    let taken = crate::support::address(&server).port();
    let mut config = crate::support::config();
    config.port = taken;
    let error = duramen_server::Server::start(config)
        .err()
        .expect("refused")
        .to_string();
    assert!(error.contains(&format!("127.0.0.1:{taken}")), "{error}");
    assert!(error.contains("another server"), "{error}");
}
