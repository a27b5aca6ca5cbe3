//! Commands and reactor together: turns that stop early, pauses, closes, pushed lines.

use crate::reactor::support::{Raw, counter, request, start, wait_until};
use std::time::{Duration, Instant};

/// The executor stops a turn when the replies pile up; the reactor flushes and continues at that
/// request.
#[test]
fn replies_larger_than_a_turn_arrive_whole_and_in_order() {
    const READS: usize = 60;
    let server = start(|config| {
        config.threads = 1;
        config.output_pause_bytes = 256 << 10;
        config.output_limit_bytes = 8 << 20;
    });
    let mut client = Raw::connect(&server);
    let values: Vec<Vec<u8>> = (0..3u8).map(|n| vec![b'a' + n; 400_000]).collect();
    for (n, value) in values.iter().enumerate() {
        client.send(&request(&[b"SET", format!("key{n}").as_bytes(), value]));
        client.expect(b"+OK\r\n");
    }
    let mut pipeline = Vec::new();
    for n in 0..READS {
        pipeline.extend(request(&[b"GET", format!("key{}", n % 3).as_bytes()]));
        pipeline.extend(request(&[b"ECHO", n.to_string().as_bytes()]));
    }
    // A partial request at the end waits for its rest through all turns.
    let last = request(&[b"ECHO", b"the end"]);
    pipeline.extend(&last[..10]);
    client.send(&pipeline);
    for n in 0..READS {
        let mut wanted = b"$400000\r\n".to_vec();
        wanted.extend(&values[n % 3]);
        let text = n.to_string();
        wanted.extend(format!("\r\n${}\r\n{text}\r\n", text.len()).into_bytes());
        client.expect(&wanted);
    }
    client.send(&last[10..]);
    client.expect(b"$7\r\nthe end\r\n");
    assert_eq!(counter(&server, |c| c.output_closed.get()), 0);
}

#[test]
fn quit_answers_and_closes() {
    let server = start(|_| {});
    let mut client = Raw::connect(&server);
    client.send(b"PING\r\nQUIT\r\nPING\r\n");
    assert_eq!(client.read_to_end(), "+PONG\r\n+OK\r\n");
    wait_until("it is gone", || {
        server.shared().threads.connected_clients() == 0
    });
}

#[test]
fn paused_clients_continue_when_the_pause_ends() {
    let server = start(|config| config.threads = 2);
    let mut admin = Raw::connect(&server);
    let mut clients: Vec<Raw> = (0..4).map(|_| Raw::connect(&server)).collect();
    let started = Instant::now();
    admin.send(&request(&[b"CLIENT", b"PAUSE", b"400", b"ALL"]));
    admin.expect(b"+OK\r\n");
    for client in &mut clients {
        client.send(b"PING\r\nPING\r\nSET paused 1\r\nPI");
    }
    for client in &mut clients {
        client.expect(b"+PONG\r\n+PONG\r\n+OK\r\n");
    }
    assert!(started.elapsed() >= Duration::from_millis(395));
    for client in &mut clients {
        client.send(b"NG\r\n");
        client.expect(b"+PONG\r\n");
    }
}

#[test]
fn unpause_ends_a_pause_of_writes() {
    let server = start(|config| config.threads = 2);
    let mut admin = Raw::connect(&server);
    let mut writers: Vec<Raw> = (0..4).map(|_| Raw::connect(&server)).collect();
    admin.send(&request(&[b"CLIENT", b"PAUSE", b"600000", b"WRITE"]));
    admin.expect(b"+OK\r\n");
    for writer in &mut writers {
        // The read before the write is answered; the one after it waits with the write.
        writer.send(b"PING\r\nSET key value\r\nPING\r\n");
        writer.expect(b"+PONG\r\n");
    }
    admin.send(&request(&[b"CLIENT", b"UNPAUSE"]));
    admin.expect(b"+OK\r\n");
    for writer in &mut writers {
        writer.expect(b"+OK\r\n+PONG\r\n");
    }
}

/// Its end was not noticed: what it had given up took effect when the pause ended.
#[test]
fn a_paused_client_that_ends_its_stream_is_closed() {
    let server = start(|_| {});
    let mut admin = Raw::connect(&server);
    admin.send(&request(&[b"CLIENT", b"PAUSE", b"600000", b"WRITE"]));
    admin.expect(b"+OK\r\n");
    let mut gone = Raw::connect(&server);
    gone.send(b"PING\r\nSET key value\r\n");
    gone.expect(b"+PONG\r\n");
    let ended = gone.0.shutdown(std::net::Shutdown::Write);
    ended.expect("it is open");
    assert_eq!(gone.read_to_end(), "");
    admin.send(b"CLIENT UNPAUSE\r\nGET key\r\n");
    admin.expect(b"+OK\r\n$-1\r\n");
}

/// A stop does not wait for the end of a pause: requests that have not run never run.
#[test]
fn a_stop_ends_paused_clients() {
    let server = start(|_| {});
    let mut client = Raw::connect(&server);
    client.send(&request(&[b"CLIENT", b"PAUSE", b"600000", b"ALL"]));
    client.expect(b"+OK\r\n");
    client.send(b"PING\r\n");
    wait_until("the request is there", || {
        counter(&server, |c| c.query_buffer_bytes.get()) > 0
    });
    let started = Instant::now();
    server.stop();
    server.wait().expect("stops");
    assert!(started.elapsed() < Duration::from_secs(20));
    assert_eq!(client.read_to_end(), "");
}

#[test]
fn monitors_see_the_commands_of_all_threads() {
    use std::io::{BufRead, BufReader};
    let server = start(|config| config.threads = 2);
    let mut monitor = Raw::connect(&server);
    monitor.send(&request(&[b"MONITOR"]));
    monitor.expect(b"+OK\r\n");
    let mut clients: Vec<Raw> = (0..4).map(|_| Raw::connect(&server)).collect();
    for (n, client) in clients.iter_mut().enumerate() {
        client.send(&request(&[b"ECHO", format!("seen-{n}").as_bytes()]));
        client.expect(format!("$6\r\nseen-{n}\r\n").as_bytes());
    }
    let mut lines = BufReader::new(&monitor.0).lines();
    let mut seen = [false; 4];
    while seen.contains(&false) {
        let line = lines.next().expect("a line").expect("reads");
        for (n, seen) in seen.iter_mut().enumerate() {
            *seen |= line.contains(&format!("\"seen-{n}\""));
        }
    }
}

#[test]
fn client_kill_reaches_other_threads() {
    let server = start(|config| config.threads = 3);
    let mut killer = Raw::connect(&server);
    let mut victims: Vec<Raw> = (0..6).map(|_| Raw::connect(&server)).collect();
    for victim in &mut victims {
        victim.ping();
        let address = victim.0.local_addr().expect("address").to_string();
        killer.send(&request(&[b"CLIENT", b"KILL", address.as_bytes()]));
        killer.expect(b"+OK\r\n");
        assert_eq!(victim.read_to_end(), "");
    }
    wait_until("only the killer is left", || {
        server.shared().threads.connected_clients() == 1
    });
}

#[test]
fn shutdown_ends_the_server() {
    let server = start(|_| {});
    let mut client = Raw::connect(&server);
    client.send(&request(&[b"SHUTDOWN"]));
    assert_eq!(client.read_to_end(), "");
    server.wait().expect("stops");
}

/// Unauthenticated clients get small limits, and the full limits after the password.
#[test]
fn limits_before_and_after_the_password() {
    let server = start(|config| config.requirepass = "hush".to_owned());
    let large = vec![b'x'; 100_000];
    let mut stranger = Raw::connect(&server);
    stranger.send(&request(&[b"ECHO", &large])[..200]);
    assert_eq!(
        stranger.read_to_end(),
        "-ERR Protocol error: unauthenticated bulk length\r\n"
    );
    let mut friend = Raw::connect(&server);
    let mut pipeline = request(&[b"AUTH", b"hush"]);
    pipeline.extend(request(&[b"SET", b"key", &large]));
    pipeline.extend(request(&[b"STRLEN", b"key"]));
    friend.send(&pipeline);
    friend.expect(b"+OK\r\n+OK\r\n:100000\r\n");
}

#[test]
fn buffers_are_accounted_for_and_given_back() {
    let server = start(|config| config.output_pause_bytes = 64 << 20);
    let mut client = Raw::connect(&server);
    let mut other = Raw::connect(&server);
    client.send(&request(&[b"ECHO", &vec![b'y'; 900_000]]).repeat(12));
    other.send(b"*2\r\n$4\r\nECHO\r\n$500\r\nstart");
    wait_until("replies and a partial request are held", || {
        counter(&server, |c| c.output_buffer_bytes.get()) > 1 << 20
            && counter(&server, |c| c.query_buffer_bytes.get()) == 25
    });
    drop(client);
    drop(other);
    wait_until("nothing is held", || {
        counter(&server, |c| c.output_buffer_bytes.get()) == 0
            && counter(&server, |c| c.query_buffer_bytes.get()) == 0
    });
}

/// Without a password every client has the full limits, from the first byte on.
#[test]
fn the_first_request_may_be_large() {
    let server = start(|_| {});
    let mut client = Raw::connect(&server);
    client.send(&request(&[b"SET", b"key", &vec![b'x'; 500_000]]));
    client.expect(b"+OK\r\n");
}
