//! A server in this process and plain sockets to it; every wait has a deadline.

use duramen_config::ServerConfig;
use duramen_server::Server;
use duramen_wire::resp::{Reply, ReplyLimits, ReplyParser};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

/// Long enough for a loaded machine; a test that waits this long has failed.
pub(crate) const DEADLINE: Duration = Duration::from_secs(60);

pub(crate) fn config() -> ServerConfig {
    ServerConfig {
        level: Some(duramen_config::Level::Memory),
        port: 0,
        admin: false,
        threads: 2,
        memory_bytes: 64 << 20,
        huge_pages: false,
        ..ServerConfig::default()
    }
}

pub(crate) fn start(change: impl FnOnce(&mut ServerConfig)) -> Server {
    let mut config = config();
    change(&mut config);
    Server::start(config).expect("server starts")
}

pub(crate) fn address(server: &Server) -> SocketAddr {
    server.addresses().resp[0]
}

/// A client that sends and reads plain bytes.
pub(crate) struct Raw(pub(crate) TcpStream);

impl Raw {
    pub(crate) fn connect(server: &Server) -> Raw {
        let stream = TcpStream::connect(address(server)).expect("connects");
        stream.set_nodelay(true).expect("nodelay");
        stream.set_read_timeout(Some(DEADLINE)).expect("timeout");
        stream.set_write_timeout(Some(DEADLINE)).expect("timeout");
        Raw(stream)
    }

    pub(crate) fn send(&mut self, bytes: &[u8]) {
        self.0.write_all(bytes).expect("sends");
    }

    /// Reads exactly these bytes.
    #[track_caller]
    pub(crate) fn expect(&mut self, wanted: &[u8]) {
        let mut got = vec![0; wanted.len()];
        self.0.read_exact(&mut got).expect("reads");
        assert_eq!(
            String::from_utf8_lossy(&got),
            String::from_utf8_lossy(wanted)
        );
    }

    /// Reads everything until the server closes.
    #[track_caller]
    pub(crate) fn read_to_end(&mut self) -> String {
        let mut got = Vec::new();
        match self.0.read_to_end(&mut got) {
            Ok(_) => {}
            // The close may come as a reset, after data that the test does not read.
            Err(e) if e.kind() == std::io::ErrorKind::ConnectionReset => {}
            Err(e) => panic!("{e} after {} bytes", got.len()),
        }
        String::from_utf8_lossy(&got).into_owned()
    }

    #[track_caller]
    pub(crate) fn ping(&mut self) {
        self.send(b"*1\r\n$4\r\nPING\r\n");
        self.expect(b"+PONG\r\n");
    }
}

/// A client that parses replies.
pub(crate) struct Asking {
    pub(crate) raw: Raw,
    parser: ReplyParser,
}

impl Asking {
    pub(crate) fn connect(server: &Server) -> Asking {
        Asking {
            raw: Raw::connect(server),
            parser: ReplyParser::new(ReplyLimits::default()),
        }
    }

    /// The next reply.
    #[track_caller]
    pub(crate) fn reply(&mut self) -> Reply {
        let mut piece = vec![0; 64 << 10];
        loop {
            if let Some(reply) = self.parser.next_reply().expect("a reply") {
                return reply;
            }
            let bytes = self.raw.0.read(&mut piece).expect("reads");
            assert!(bytes > 0, "closed instead of a reply");
            self.parser.feed(&piece[..bytes]);
        }
    }

    #[track_caller]
    pub(crate) fn ask(&mut self, args: &[&[u8]]) -> Reply {
        self.raw.send(&request(args));
        self.reply()
    }
}

/// Waits until `holds`.
#[track_caller]
pub(crate) fn wait_until(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + DEADLINE;
    while !holds() {
        assert!(Instant::now() < deadline, "waited in vain: {what}");
        std::thread::yield_now();
    }
}

/// A request as an array of bulk strings.
pub(crate) fn request(args: &[&[u8]]) -> Vec<u8> {
    let mut bytes = format!("*{}\r\n", args.len()).into_bytes();
    for arg in args {
        bytes.extend_from_slice(format!("${}\r\n", arg.len()).as_bytes());
        bytes.extend_from_slice(arg);
        bytes.extend_from_slice(b"\r\n");
    }
    bytes
}

/// Sum of a counter over all threads.
pub(crate) fn counter(
    server: &Server,
    of: impl Fn(&duramen_redis::figures::ThreadCounters) -> u64,
) -> u64 {
    server
        .shared()
        .threads
        .iter()
        .map(|thread| of(&thread.counters))
        .sum()
}
