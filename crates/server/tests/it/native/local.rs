//! Clients on the server's machine, through shared memory: the real client, and hostile ones.

use super::cluster::{Cluster, DEADLINE, wait_until};
use super::frames::{envelope, read};
use duramen_base::random::Random;
use duramen_client::{Client, Options, Table};
use duramen_config::Poll;
use duramen_shm::{Rings, bells, memory_bytes, ring_bell};
use duramen_wire::native::codec::{
    CLIENT_FRAME_BYTES_MAX, Parsed, Reply, decode_reply, encode_single, parse_frame,
};
use duramen_wire::native::message::{Answer, Outcome};
use rustix::fs::FallocateFlags;
use std::fs::File;
use std::io::Read as _;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt as _;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

const RING_BYTES: usize = 16 << 10;

fn start() -> Cluster {
    start_with(Poll::Adaptive)
}

fn start_with(poll: Poll) -> Cluster {
    Cluster::with(None, |config| {
        config.local_ring_bytes = RING_BYTES;
        config.poll = poll;
    })
}

fn table(options: Options) -> Table {
    let client = Client::connect(options).expect("the cluster is there");
    client.table("t").expect("it has table t")
}

/// Values of all sizes, also longer than a ring.
fn use_it(table: &Table, name: &str) {
    for bytes in [
        0,
        1,
        100,
        RING_BYTES - 200,
        RING_BYTES,
        3 * RING_BYTES + 7,
        1 << 20,
    ] {
        let key = format!("{name} {bytes}");
        let value: Vec<u8> = (0..bytes).map(|n| (n * 7 / 5) as u8).collect();
        table.set(key.as_bytes(), &value).expect("written");
        let found = table.get(key.as_bytes()).expect("read").expect("present");
        assert!(found.value == value, "{key}");
        table.remove(key.as_bytes()).expect("removed");
    }
}

#[test]
fn a_client_reads_and_writes_through_shared_memory_however_both_sides_wait() {
    for poll in [Poll::Adaptive, Poll::Busy, Poll::Off] {
        let cluster = start_with(poll);
        for spin in [Duration::ZERO, Duration::from_millis(1)] {
            let table = table(Options {
                spin,
                ..cluster.local_options()
            });
            use_it(&table, "k");
            assert_eq!(cluster.local_clients(), 1, "no shared memory was used");
            for n in 0..300u64 {
                table.set(b"n", &n.to_le_bytes()).expect("written");
                let found = table.get(b"n").expect("read").expect("present");
                assert_eq!(found.value, n.to_le_bytes());
            }
            drop(table);
            wait_until("the memory is given back", || cluster.local_clients() == 0);
        }
    }
}

#[test]
fn a_hundred_clients_work_at_once_and_the_rest_use_tcp() {
    let cluster = Cluster::with(None, |config| {
        config.local_ring_bytes = RING_BYTES;
        config.local_clients = 100;
        config.memory_bytes = 512 << 20;
    });
    let gate = std::sync::Barrier::new(120);
    std::thread::scope(|scope| {
        for number in 0..120 {
            let (cluster, gate) = (&cluster, &gate);
            scope.spawn(move || {
                let table = table(cluster.local_options());
                table.set(b"all", b"are here").expect("written");
                gate.wait();
                assert_eq!(cluster.local_clients(), 100);
                gate.wait();
                use_it(&table, &format!("client {number}"));
            });
        }
    });
    wait_until("all have left", || cluster.local_clients() == 0);
}

/// Requests 1 to `count`, each to read the key.
fn reads(cluster: &Cluster, key: &[u8], count: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    for request in 1..=count {
        encode_single(&mut bytes, &envelope(request), &read(cluster.table, key));
    }
    bytes
}

fn send(socket: &UnixStream, rings: &mut Rings, bytes: &[u8]) {
    let (mut sent, until) = (0, Instant::now() + DEADLINE);
    while sent < bytes.len() {
        let moved = rings.write(&bytes[sent..]).expect("valid");
        if moved.wakes {
            ring_bell(socket);
        }
        sent += moved.bytes;
        assert!(Instant::now() < until, "the server does not read");
    }
}

/// Takes at least `bytes` bytes of replies, `at_once` of them at a time at most.
fn take(socket: &UnixStream, rings: &mut Rings, bytes: usize, at_once: usize) {
    let (mut total, until) = (0, Instant::now() + DEADLINE);
    let mut chunk = vec![0; at_once];
    while total < bytes {
        let moved = rings.read(&mut chunk).expect("valid");
        if moved.wakes {
            ring_bell(socket);
        }
        total += moved.bytes;
        assert!(Instant::now() < until, "{total} bytes of replies");
        assert!(bells(socket), "the connection stays open");
    }
}

/// Sends cut requests of reads while it reads the replies.
#[test]
fn a_pipeline_is_answered_in_order_however_it_is_cut() {
    let cluster = start();
    cluster.table().set(b"k", &[7; 900]).expect("written");
    let (socket, mut rings, _fd) = cluster.raw_local();
    let mut random = Random::new(1);
    let mut unsent = reads(&cluster, b"k", 3_000);
    let (mut input, mut seen) = (Vec::new(), 0);
    let until = Instant::now() + DEADLINE;
    while seen < 3_000 {
        assert!(Instant::now() < until, "{seen} replies");
        let piece = random.index(700).min(unsent.len());
        let moved = rings.write(&unsent[..piece]).expect("valid");
        unsent.drain(..moved.bytes);
        let mut chunk = vec![0; random.index(3_000)];
        let taken = rings.read(&mut chunk).expect("valid");
        input.extend_from_slice(&chunk[..taken.bytes]);
        if moved.wakes || taken.wakes {
            ring_bell(&socket);
        }
        while let Ok(Parsed::Frame { frame, bytes }) = parse_frame(&input, CLIENT_FRAME_BYTES_MAX) {
            seen += 1;
            assert_eq!(frame.header.envelope.request, seen);
            let reply = decode_reply(&frame).expect("a reply");
            let Reply::Client(Answer::Single(Outcome::Value { value, .. })) = reply else {
                panic!("{reply:?}");
            };
            assert_eq!(value, [7; 900]);
            input.drain(..bytes);
        }
    }
}

/// The server has closed the connection.
fn expect_end(socket: &mut UnixStream) {
    let mut bytes = [0; 256];
    loop {
        match socket.read(&mut bytes) {
            Ok(0) => return,
            Ok(_) => {}
            Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => return,
            Err(error) => panic!("the connection stays open: {error}"),
        }
    }
}

fn poke(fd: &OwnedFd, at: u64, bytes: &[u8]) {
    let file = File::from(fd.try_clone().expect("a descriptor"));
    file.write_all_at(bytes, at).expect("written");
}

#[test]
fn impossible_counters_end_their_connection_alone() {
    let cluster = start();
    let other = table(cluster.local_options());
    for value in [u64::MAX, RING_BYTES as u64 + 1, 1 << 63] {
        let (mut socket, _rings, fd) = cluster.raw_local();
        poke(&fd, 0, &value.to_ne_bytes());
        ring_bell(&socket);
        expect_end(&mut socket);
        use_it(&other, "still");
    }
    // The counter of the replies' ring, while a reply is written.
    let (mut socket, mut rings, fd) = cluster.raw_local();
    poke(&fd, 512 + 128, &u64::MAX.to_ne_bytes());
    other.set(b"large", &[1; 3 * RING_BYTES]).expect("written");
    send(&socket, &mut rings, &reads(&cluster, b"large", 1));
    ring_bell(&socket);
    expect_end(&mut socket);
    use_it(&other, "still");
}

/// A client cannot shorten the memory, but it can give back its pages: they read as zeros, so that
/// counters fall.
#[test]
fn memory_that_its_client_empties_ends_that_client_alone() {
    let cluster = start();
    let other = table(cluster.local_options());
    other.set(b"k", b"v").expect("written");
    let (mut socket, mut rings, fd) = cluster.raw_local();
    send(&socket, &mut rings, &reads(&cluster, b"k", 1));
    ring_bell(&socket);
    wait_until("the reply", || rings.readable().expect("valid") > 0);
    let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    let bytes = memory_bytes(RING_BYTES) as u64;
    rustix::fs::fallocate(&fd, flags, 0, bytes).expect("emptied");
    ring_bell(&socket);
    expect_end(&mut socket);
    use_it(&other, "still");
}

#[test]
fn random_contents_of_the_shared_memory_harm_only_their_writer() {
    let cluster = start();
    let other = table(cluster.local_options());
    let mut random = Random::new(2);
    for round in 0..200 {
        let (socket, _rings, fd) = cluster.raw_local();
        for _ in 0..random.index(30) {
            let small = random.one_in(2);
            let value = random.next_u64();
            let value = if small {
                value % (2 * RING_BYTES as u64)
            } else {
                value
            };
            let at = match random.one_in(3) {
                true => 4096 + random.below(2 * RING_BYTES as u64 - 8),
                false => 128 * random.below(8),
            };
            poke(&fd, at, &value.to_ne_bytes());
            if random.one_in(3) {
                ring_bell(&socket);
            }
        }
        if round % 20 == 0 {
            use_it(&other, "still");
        }
        drop(socket);
    }
    use_it(&other, "still");
    wait_until("their memory is given back", || {
        cluster.local_clients() == 1
    });
}

/// Its requests are not read any more at `output-pause`, and it is closed after `output-stall`.
#[test]
fn a_client_that_takes_no_replies_is_paused_and_closed() {
    let cluster = Cluster::with(None, |config| {
        config.local_ring_bytes = RING_BYTES;
        config.output_pause_bytes = 1 << 20;
        config.output_limit_bytes = 4 << 20;
        config.output_stall_s = 1;
    });
    let other = table(cluster.local_options());
    other.set(b"large", &[1; 1 << 20]).expect("written");
    let (mut socket, mut rings, _fd) = cluster.raw_local();
    send(&socket, &mut rings, &reads(&cluster, b"large", 100));
    ring_bell(&socket);
    expect_end(&mut socket);
    use_it(&other, "still");
}

/// A reader that is slow, but within the limit, gets everything.
#[test]
fn a_slow_reader_gets_all_its_replies() {
    let cluster = start();
    let other = table(cluster.local_options());
    other.set(b"large", &[1; 1 << 20]).expect("written");
    let (socket, mut rings, _fd) = cluster.raw_local();
    send(&socket, &mut rings, &reads(&cluster, b"large", 3));
    ring_bell(&socket);
    take(&socket, &mut rings, 3 << 20, 1_000);
}

/// A pipeline that is sent before any reply is taken: its requests fit neither into the ring nor do
/// its replies into half of `pipeline-memory`. Such a connection once stood still until
/// `output-stall`, because nothing looked at its ring.
#[test]
fn a_long_pipeline_may_be_sent_before_its_replies_are_read() {
    const COUNT: u64 = 12_000;
    let cluster = start();
    cluster.table().set(b"k", &[7; 1_000]).expect("written");
    let (socket, mut rings, _fd) = cluster.raw_local();
    send(&socket, &mut rings, &reads(&cluster, b"k", COUNT));
    take(&socket, &mut rings, COUNT as usize * 1_000, RING_BYTES);
}

/// As over TCP: the requests run, and their replies are there until they are read.
#[test]
fn a_client_that_ends_its_sending_side_gets_its_replies() {
    let cluster = start();
    cluster.table().set(b"k", &[7; 1_000]).expect("written");
    let (mut socket, mut rings, _fd) = cluster.raw_local();
    send(&socket, &mut rings, &reads(&cluster, b"k", 10));
    ring_bell(&socket);
    socket
        .shutdown(std::net::Shutdown::Write)
        .expect("it is open");
    expect_end(&mut socket);
    let mut chunk = [0; RING_BYTES];
    let moved = rings.read(&mut chunk).expect("valid");
    assert!(moved.bytes > 10_000, "{} bytes of replies", moved.bytes);
}

/// doors::rings::L2
#[test]
fn memory_is_given_back_though_its_client_keeps_it() {
    let cluster = start();
    let (socket, rings, fd) = cluster.raw_local();
    let blocks = || rustix::fs::fstat(&fd).expect("its length").st_blocks;
    assert!(blocks() > 0);
    drop(socket);
    wait_until("the pages are gone", || blocks() == 0);
    drop(rings);
}

/// A request is cut by the client's end: nothing of it takes effect, and the server goes on.
#[test]
fn a_client_that_ends_amid_a_request_is_forgotten() {
    let cluster = start();
    for _ in 0..20 {
        let (socket, mut rings, _fd) = cluster.raw_local();
        let request = reads(&cluster, b"k", 1);
        send(&socket, &mut rings, &request[..request.len() - 1]);
        ring_bell(&socket);
    }
    wait_until("all are closed", || cluster.local_clients() == 0);
    use_it(&table(cluster.local_options()), "still");
}

#[test]
fn a_stop_ends_clients_with_shared_memory() {
    let cluster = start();
    let (mut socket, _rings, _fd) = cluster.raw_local();
    cluster.server.stop();
    expect_end(&mut socket);
}
