//! No file descriptors left: the limit applies to the whole process.

use crate::alone;
use duramen_config::ServerConfig;
use duramen_server::Server;
use rustix::net::{AddressFamily, SocketType, connect, socket};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

/// Clients get an error one after another, instead of all of them waiting; and the next one is
/// served when there is room.
#[test]
fn clients_are_turned_away_when_descriptors_run_out() {
    let _alone = alone();
    let server = Server::start(ServerConfig {
        level: Some(duramen_config::Level::Memory),
        port: 0,
        admin: false,
        threads: 1,
        memory_bytes: 64 << 20,
        maxclients: 100,
        ..ServerConfig::default()
    })
    .expect("server starts");
    let address = server.addresses().resp[0];
    // The test's ends exist before the limit falls, the server's ends do not.
    let mut sockets: Vec<_> = (0..8)
        .map(|_| socket(AddressFamily::INET, SocketType::STREAM, None).expect("socket"))
        .collect();
    let open = std::fs::read_dir("/proc/self/fd").expect("proc").count() as u64;
    let before = getrlimit(Resource::Nofile);
    // The directory itself was one of the open files; two connections fit.
    let limit = Rlimit {
        current: Some(open - 1 + 2),
        maximum: before.maximum,
    };
    setrlimit(Resource::Nofile, limit).expect("lowers its own limit");
    let mut served = 0;
    let mut turned_away = 0;
    let mut kept = Vec::new();
    for socket in sockets.drain(..) {
        connect(&socket, &address).expect("connects");
        let mut stream = TcpStream::from(socket);
        stream
            .set_read_timeout(Some(Duration::from_secs(60)))
            .expect("timeout");
        stream.write_all(b"PING\r\n").expect("sends");
        let mut reply = [0; 7];
        stream.read_exact(&mut reply).expect("reads");
        match &reply {
            b"+PONG\r\n" => served += 1,
            b"-ERR se" => turned_away += 1,
            other => panic!("{other:?}"),
        }
        kept.push(stream);
    }
    assert!(
        served >= 1 && turned_away >= 5,
        "{served} served, {turned_away} turned away"
    );
    setrlimit(Resource::Nofile, before).expect("restores the limit");
    let mut stream = TcpStream::connect(address).expect("connects");
    stream
        .set_read_timeout(Some(Duration::from_secs(60)))
        .expect("timeout");
    stream.write_all(b"PING\r\n").expect("sends");
    let mut reply = [0; 7];
    stream.read_exact(&mut reply).expect("reads");
    assert_eq!(&reply, b"+PONG\r\n");
}
