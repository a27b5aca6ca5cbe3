//! Stops: graceful with replies in flight, bounded by the timeout, immediate.

use crate::reactor::support::{Raw, address, counter, request, start, wait_until};
use duramen_redis::threads::Stop;
use std::io::Read;
use std::net::TcpStream;
use std::time::{Duration, Instant};

#[test]
fn idle_clients_do_not_hold_up_a_stop() {
    let server = start(|config| config.stop_timeout_ms = 60_000);
    let mut client = Raw::connect(&server);
    client.ping();
    let (address, started) = (address(&server), Instant::now());
    server.stop();
    server.wait().expect("stops");
    assert!(started.elapsed() < Duration::from_secs(20));
    assert_eq!(client.read_to_end(), "");
    assert!(TcpStream::connect(address).is_err());
}

/// Everything received before the stop is answered, although the client reads slowly.
#[test]
fn replies_in_flight_are_delivered() {
    const REQUESTS: usize = 400;
    let server = start(|config| {
        config.output_pause_bytes = 64 << 20;
        config.stop_timeout_ms = 30_000;
    });
    let mut client = Raw::connect(&server);
    let argument = vec![b'y'; 30_000];
    let pipeline = request(&[b"ECHO", &argument]).repeat(REQUESTS);
    client.send(&pipeline);
    wait_until("everything has run", || {
        counter(&server, |c| c.commands.get()) == REQUESTS as u64
    });
    server.stop();
    let waiter = std::thread::spawn(move || server.wait());
    let mut got = Vec::new();
    client.0.read_to_end(&mut got).expect("reads");
    assert_eq!(got.len(), REQUESTS * (30_000 + 10));
    waiter.join().expect("waits").expect("stops");
}

#[test]
fn a_client_that_never_reads_holds_up_a_stop_for_the_timeout_only() {
    let server = start(|config| {
        config.output_pause_bytes = 64 << 20;
        config.stop_timeout_ms = 300;
    });
    let mut client = Raw::connect(&server);
    client.send(&request(&[b"ECHO", &vec![b'y'; 900_000]]).repeat(20));
    wait_until("everything has run", || {
        counter(&server, |c| c.commands.get()) == 20
    });
    let started = Instant::now();
    server.stop();
    server.wait().expect("stops");
    assert!(started.elapsed() >= Duration::from_millis(290));
}

#[test]
fn a_second_stop_is_at_once() {
    let server = start(|config| {
        config.output_pause_bytes = 64 << 20;
        config.stop_timeout_ms = 600_000;
    });
    let mut client = Raw::connect(&server);
    client.send(&request(&[b"ECHO", &vec![b'y'; 900_000]]).repeat(20));
    wait_until("everything has run", || {
        counter(&server, |c| c.commands.get()) == 20
    });
    server.stop();
    server.shared().stop(Stop::AtOnce);
    server.wait().expect("stops");
}

/// The server once waited for a thread that never came back to its loop, until it was killed with
/// SIGKILL.
#[test]
fn a_stop_ends_although_a_thread_is_stuck() {
    for how in [Stop::Graceful, Stop::AtOnce] {
        let server = start(|config| {
            config.threads = 1;
            config.stop_timeout_ms = 50;
        });
        server.shared().watch.set_stuck_after_ms(100);
        let mut session = server.shared().store().session().expect("a session");
        // Any thread that wants to access data waits until this session has left the store.
        let alone = session.pin_exclusive();
        let mut client = Raw::connect(&server);
        client.send(&request(&[b"GET", b"k"]));
        wait_until("the thread is stuck", || server.shared().is_stuck());
        server.shared().stop(how);
        let error = server.wait().expect_err("a thread is stuck").to_string();
        assert!(
            error.contains("reactor-0") && error.contains("has not come back"),
            "{error}"
        );
        drop(alone);
    }
}
