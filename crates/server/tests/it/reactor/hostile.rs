//! Clients that send garbage, declare false lengths, never read, or never stop.

use crate::reactor::support::{Raw, counter, request, start, wait_until};
use std::io::{ErrorKind, Write};
use std::sync::atomic::{AtomicU64, Ordering};

#[test]
fn garbage_gets_redis_protocol_errors() {
    let server = start(|_| {});
    for (bytes, error) in [
        (
            &b"*1\r\n$x\r\n"[..],
            "-ERR Protocol error: invalid bulk length\r\n",
        ),
        (
            b"*x\r\n",
            "-ERR Protocol error: invalid multibulk length\r\n",
        ),
        (
            b"*2147483648\r\n",
            "-ERR Protocol error: invalid multibulk length\r\n",
        ),
        (
            b"*1\r\n$-5\r\n",
            "-ERR Protocol error: invalid bulk length\r\n",
        ),
        (
            b"*1\r\n$99999999999\r\n",
            "-ERR Protocol error: invalid bulk length\r\n",
        ),
        (
            b"*1\r\nPING\r\n",
            "-ERR Protocol error: expected '$', got 'P'\r\n",
        ),
        (
            b"ECHO \"open\r\n",
            "-ERR Protocol error: unbalanced quotes in request\r\n",
        ),
    ] {
        let mut client = Raw::connect(&server);
        client.send(&request(&[b"PING"]));
        client.send(bytes);
        let mut other = Raw::connect(&server);
        other.ping();
        assert_eq!(client.read_to_end(), format!("+PONG\r\n{error}"));
    }
    assert_eq!(counter(&server, |c| c.protocol_errors.get()), 7);
    wait_until("they are gone", || {
        server.shared().threads.connected_clients() <= 1
    });
}

/// The server stops reading from a client that sends and never reads, when its requests and replies
/// fill `pipeline-memory`, then closes it; other clients are not affected.
#[test]
fn a_client_that_never_reads_is_bounded_and_cut() {
    let server = start(|config| {
        config.threads = 1;
        config.output_pause_bytes = 256 << 10;
        config.pipeline_bytes = 2 << 20;
        config.output_limit_bytes = 64 << 20;
        config.output_stall_s = 1;
    });
    let mut hog = Raw::connect(&server);
    hog.0.set_nonblocking(true).expect("nonblocking");
    let asking = request(&[b"ECHO", &[b'x'; 10_000]]);
    let mut asked: u64 = 0;
    let mut rest: &[u8] = &[];
    let mut other = Raw::connect(&server);
    wait_until("the hog is cut", || {
        if rest.is_empty() {
            rest = &asking;
        }
        match hog.0.write(rest) {
            Ok(bytes) => {
                asked += bytes as u64;
                rest = &rest[bytes..];
            }
            Err(e) if e.kind() == ErrorKind::WouldBlock => {
                other.ping();
                let records = server.shared().threads.clients();
                for record in records {
                    let load = |bytes: &AtomicU64| bytes.load(Ordering::Relaxed);
                    let held = load(&record.output_bytes) + load(&record.query_bytes);
                    // At most `pipeline-memory`, the replies to one turn and one receive.
                    assert!(held < 5 << 20, "{held} bytes of replies and requests");
                }
            }
            Err(_) => return true,
        }
        false
    });
    // The buffers in between have room for this much.
    assert!(asked > 64 << 10);
    assert_eq!(counter(&server, |c| c.output_closed.get()), 1);
    other.ping();
}

/// Each of these clients sends more than `pipeline-memory`, and reads nothing. Each once got the
/// whole room for itself, one after the other, and kept it until `output-stall`.
#[test]
fn many_clients_that_never_read_share_one_bound() {
    const HOGS: usize = 8;
    let server = start(|config| {
        config.threads = 2;
        config.output_pause_bytes = 64 << 10;
        config.pipeline_bytes = 2 << 20;
        config.output_limit_bytes = 64 << 20;
        config.output_stall_s = 1;
    });
    let asking = request(&[b"ECHO", &[b'x'; 10_000]]).repeat(500);
    let mut hogs: Vec<(Raw, usize, bool)> = (0..HOGS)
        .map(|_| {
            let hog = Raw::connect(&server);
            hog.0.set_nonblocking(true).expect("nonblocking");
            (hog, 0, true)
        })
        .collect();
    let mut most = 0;
    wait_until("all hogs are cut", || {
        for (hog, sent, is_open) in hogs.iter_mut().filter(|(_, _, is_open)| *is_open) {
            match hog.0.write(&asking[*sent..]) {
                Ok(bytes) => *sent = (*sent + bytes) % asking.len(),
                Err(e) if e.kind() == ErrorKind::WouldBlock => {}
                Err(_) => *is_open = false,
            }
        }
        let held = counter(&server, |c| c.query_buffer_bytes.get())
            + counter(&server, |c| c.output_buffer_bytes.get());
        most = most.max(held);
        hogs.iter().all(|(_, _, is_open)| !is_open)
    });
    // Twice the room; and of each client one receive and its replies.
    assert!(most > 2 << 20, "{most}");
    assert!(most < (4 << 20) + HOGS as u64 * (256 << 10), "{most}");
}

/// Output over the hard limit closes the connection at once, without waiting for the stall.
#[test]
fn output_over_the_limit_closes() {
    let server = start(|config| {
        config.output_pause_bytes = 64 << 10;
        config.output_limit_bytes = 64 << 10;
        config.output_stall_s = 0;
    });
    let mut hog = Raw::connect(&server);
    hog.0.set_nonblocking(true).expect("nonblocking");
    let asking = request(&[b"ECHO", &vec![b'x'; 900_000]]);
    let mut rest: &[u8] = &[];
    wait_until("the hog is closed", || {
        if rest.is_empty() {
            rest = &asking;
        }
        match hog.0.write(rest) {
            Ok(bytes) => {
                rest = &rest[bytes..];
                false
            }
            Err(e) => e.kind() != ErrorKind::WouldBlock,
        }
    });
    wait_until("it was counted", || {
        counter(&server, |c| c.output_closed.get()) == 1
    });
}

/// A client that reads slowly gets everything, in order, despite the pauses.
#[test]
fn slow_readers_get_everything() {
    use std::io::Read;
    const REQUESTS: usize = 2_000;
    let server = start(|config| config.output_pause_bytes = 32 << 10);
    let mut client = Raw::connect(&server);
    let mut sender = client.0.try_clone().expect("clone");
    let writer = std::thread::spawn(move || {
        for n in 0..REQUESTS {
            let argument = format!("{n:010}").repeat(200);
            sender
                .write_all(&request(&[b"ECHO", argument.as_bytes()]))
                .expect("sends");
        }
    });
    for n in 0..REQUESTS {
        let text = format!("{n:010}").repeat(200);
        let mut got = vec![0; text.len() + 9];
        // Odd pieces.
        for piece in got.chunks_mut(777) {
            client.0.read_exact(piece).expect("reads");
        }
        assert_eq!(got, format!("$2000\r\n{text}\r\n").into_bytes());
    }
    writer.join().expect("writer");
}

/// A client that sends requests without end does not keep others from being served.
#[test]
fn a_flood_leaves_room_for_others() {
    let server = start(|config| config.threads = 1);
    let flood = Raw::connect(&server);
    let mut sender = flood.0.try_clone().expect("clone");
    let writer = std::thread::spawn(move || {
        let pipeline = request(&[b"PING"]).repeat(1_000);
        while sender.write_all(&pipeline).is_ok() {}
    });
    let mut reader = flood.0.try_clone().expect("clone");
    let drain = std::thread::spawn(move || {
        let _ = std::io::copy(&mut reader, &mut std::io::sink());
    });
    let mut other = Raw::connect(&server);
    for _ in 0..50 {
        other.ping();
    }
    flood
        .0
        .shutdown(std::net::Shutdown::Both)
        .expect("shutdown");
    writer.join().expect("writer");
    drain.join().expect("drain");
}
