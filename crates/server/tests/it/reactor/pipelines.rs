//! Pipelines, cut at arbitrary positions, and many connections at once.

use crate::reactor::support::{DEADLINE, Raw, counter, request, start};
use std::io::Write;
use std::time::Duration;

#[test]
fn one_request() {
    let server = start(|_| {});
    Raw::connect(&server).ping();
}

#[test]
fn inline_commands() {
    let server = start(|_| {});
    let mut client = Raw::connect(&server);
    client.send(b"PING\r\nping\n");
    client.expect(b"+PONG\r\n+PONG\r\n");
}

/// Wherever the bytes are cut, every request is answered once and in order.
#[test]
fn a_pipeline_cut_everywhere() {
    let server = start(|_| {});
    let mut pipeline = Vec::new();
    for n in 0..20 {
        pipeline.extend(request(&[b"ECHO", format!("argument-{n}").as_bytes()]));
    }
    let wanted: Vec<u8> = (0..20)
        .flat_map(|n| {
            let text = format!("argument-{n}");
            format!("${}\r\n{text}\r\n", text.len()).into_bytes()
        })
        .collect();
    for piece in [1, 2, 3, 7, 13, 64, 255] {
        let mut client = Raw::connect(&server);
        for chunk in pipeline.chunks(piece) {
            client.send(chunk);
        }
        client.expect(&wanted);
    }
}

/// More requests than one turn takes, and more bytes than one receive takes.
#[test]
fn a_long_pipeline() {
    const REQUESTS: usize = 50_000;
    let server = start(|_| {});
    let mut client = Raw::connect(&server);
    let mut sender = client.0.try_clone().expect("clone");
    let writer = std::thread::spawn(move || {
        let pipeline = request(&[b"PING"]).repeat(REQUESTS);
        sender.write_all(&pipeline).expect("sends");
    });
    client.expect(&b"+PONG\r\n".repeat(REQUESTS));
    writer.join().expect("writer");
    assert_eq!(counter(&server, |c| c.commands.get()), REQUESTS as u64);
}

/// A value larger than the thread's buffer grows in the connection's own buffer, and is returned
/// whole.
#[test]
fn large_arguments() {
    let server = start(|_| {});
    let mut client = Raw::connect(&server);
    for size in [16_000, 70_000, 300_000, 1_000_000] {
        let value: Vec<u8> = (0..size).map(|n| (n % 251) as u8).collect();
        let before_and_after = request(&[b"PING"]);
        client.send(&before_and_after);
        client.send(&request(&[b"ECHO", &value]));
        client.send(&before_and_after);
        let mut wanted = b"+PONG\r\n".to_vec();
        wanted.extend(format!("${size}\r\n").into_bytes());
        wanted.extend(&value);
        wanted.extend(b"\r\n+PONG\r\n");
        client.expect(&wanted);
    }
}

#[test]
fn many_connections_over_all_threads() {
    let server = start(|config| config.threads = 3);
    let mut clients: Vec<Raw> = (0..300).map(|_| Raw::connect(&server)).collect();
    for client in &mut clients {
        client.send(&request(&[b"PING"]).repeat(5));
    }
    for client in &mut clients {
        client.expect(&b"+PONG\r\n".repeat(5));
    }
    assert_eq!(server.shared().threads.connected_clients(), 300);
    let shares: Vec<usize> = server
        .shared()
        .threads
        .iter()
        .map(|thread| thread.clients.all().len())
        .collect();
    assert_eq!(shares.iter().sum::<usize>(), 300);
    assert!(
        shares.iter().all(|share| (90..=110).contains(share)),
        "{shares:?}"
    );
    drop(clients);
    crate::reactor::support::wait_until("everybody is gone", || {
        server.shared().threads.connected_clients() == 0
    });
}

/// Bytes that arrive one by one use only their own memory, and the request is answered once it is
/// complete.
#[test]
fn one_byte_at_a_time() {
    let server = start(|_| {});
    let mut client = Raw::connect(&server);
    let mut other = Raw::connect(&server);
    for byte in request(&[b"PING"]) {
        client.send(&[byte]);
        other.ping();
    }
    client.expect(b"+PONG\r\n");
}

/// The client sends, closes its side, and still gets its replies.
#[test]
fn half_closed_clients_get_their_replies() {
    let server = start(|_| {});
    let mut client = Raw::connect(&server);
    client.send(&request(&[b"PING"]).repeat(3));
    client
        .0
        .shutdown(std::net::Shutdown::Write)
        .expect("shutdown");
    assert_eq!(client.read_to_end(), "+PONG\r\n".repeat(3));
}

#[test]
fn works_with_every_way_of_waiting() {
    use duramen_config::Poll;
    for poll in [Poll::Off, Poll::Adaptive, Poll::Busy] {
        let server = start(|config| {
            config.poll = poll;
            config.threads = 1;
        });
        let mut client = Raw::connect(&server);
        for _ in 0..500 {
            client.ping();
        }
        client.0.set_read_timeout(Some(DEADLINE)).expect("timeout");
    }
}

/// Adaptive polling ends in sleep: an idle server sleeps in the kernel and stays there.
#[test]
fn an_idle_server_does_not_spin() {
    let server = start(|config| {
        config.threads = 1;
        config.poll_spin_us = 1_000;
    });
    let mut client = Raw::connect(&server);
    for _ in 0..2_000 {
        client.ping();
    }
    let spun = || counter(&server, |c| c.spin_ns.get());
    let sleeps = || counter(&server, |c| c.sleeps.get());
    crate::reactor::support::wait_until("the spin ends", || {
        let (before, slept) = (spun(), sleeps());
        std::thread::park_timeout(Duration::from_millis(20));
        spun() == before && sleeps() == slept
    });
}
