//! Memory of connections that are idle, or declare false lengths. One test needs nearly all allowed
//! file descriptors, and both read the memory of the whole process.

use crate::alone;
use crate::support::{Raw, counter, request, start, wait_until};

/// Idle connections may use 4 KB of resident memory each; the test's own sockets do not count, as
/// they use none.
#[test]
fn ten_thousand_idle_connections() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let _alone = alone();
    // Both ends of every connection are in this process.
    let maximum = getrlimit(Resource::Nofile).maximum;
    let connections = maximum.map_or(10_000, |files| ((files as usize - 600) / 2).min(10_000));
    let current = maximum.or(Some(21_000));
    setrlimit(Resource::Nofile, Rlimit { current, maximum }).expect("raises its own limit");
    let server = start(|config| config.maxclients = connections + 200);
    let mut first: Vec<Raw> = (0..100).map(|_| Raw::connect(&server)).collect();
    let busy = |client: &mut Raw| {
        client.send(&request(&[b"PING"]).repeat(50));
        client.expect(&b"+PONG\r\n".repeat(50));
    };
    first.iter_mut().for_each(busy);
    let before = resident_bytes();
    let mut clients: Vec<Raw> = Vec::with_capacity(connections);
    for _ in 0..connections {
        let mut client = Raw::connect(&server);
        busy(&mut client);
        clients.push(client);
    }
    assert_eq!(
        server.shared().threads.connected_clients(),
        connections + 100
    );
    let each = resident_bytes().saturating_sub(before) / connections as u64;
    eprintln!("{each} bytes of resident memory per idle connection, of {connections}");
    assert!(each <= 4096, "{each} bytes per idle connection");
    clients[connections / 2].ping();
}

/// A declared length reserves nothing: memory grows with the bytes that arrive.
#[test]
fn giant_lengths_cost_nothing() {
    let _alone = alone();
    let server = start(|_| {});
    let before = resident_bytes();
    let mut clients: Vec<Raw> = (0..100).map(|_| Raw::connect(&server)).collect();
    let lie = b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$67000000\r\nstart";
    let received = (clients.len() * lie.len()) as u64;
    for client in &mut clients {
        client.send(lie);
    }
    wait_until("the server has seen them", || {
        counter(&server, |c| c.net_input_bytes.get()) >= received
    });
    Raw::connect(&server).ping();
    let grown = resident_bytes().saturating_sub(before);
    assert!(
        grown < 20 << 20,
        "{grown} bytes for 100 declared lengths of 64 MB"
    );
}

fn resident_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/statm").expect("statm");
    let pages: u64 = status
        .split(' ')
        .nth(1)
        .expect("rss")
        .parse()
        .expect("number");
    pages * 4096
}
