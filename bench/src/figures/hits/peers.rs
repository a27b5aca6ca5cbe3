//! Real servers as caches: redis-server and memcached, over loopback.

use super::traces::value_bytes;
use super::{Count, Outcome};
use crate::harness::{Doing, Failure, Result};
use crate::servers::{Duramen, Redis, Scratch, Server, client};
use duramen_base::units::MIB;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Requests that are on their way together.
const BATCH: usize = 256;
const START_MAX: Duration = Duration::from_secs(30);

/// A server, and how it evicts.
#[derive(Clone, Debug)]
pub(super) enum Peer {
    /// With its policy.
    Redis(PathBuf, &'static str),
    Memcached(PathBuf),
    /// As a cache of its own, over loopback like the others.
    Duramen(PathBuf),
}

/// A running server; dropping it ends the process.
pub(super) enum Running {
    Redis(
        Server,
        #[expect(dead_code, reason = "removed when dropped")] Scratch,
    ),
    Memcached(Memcached),
    Duramen(Server),
}

pub(super) struct Memcached {
    child: Child,
    address: SocketAddr,
}

impl Drop for Memcached {
    fn drop(&mut self) {
        // It may have ended already; its figure reported that.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Peer {
    pub(super) fn name(&self) -> String {
        match self {
            Peer::Redis(_, policy) => format!("redis {policy}"),
            Peer::Memcached(_) => "memcached".to_owned(),
            Peer::Duramen(_) => "duramen".to_owned(),
        }
    }

    /// The hits of a trace in `memory_bytes`: Redis's own count of all its memory, memcached's
    /// limit of its slabs.
    ///
    /// # Errors
    /// The server does not start, or does not answer as a cache does.
    pub(super) fn run(&self, requests: &[u32], memory_bytes: u64) -> Result<Outcome> {
        let running = self.start(memory_bytes)?;
        let address = running.address();
        let doing = || format!("asking {}", self.name());
        let stream = TcpStream::connect(address).doing(doing())?;
        stream.set_nodelay(true).doing(doing())?;
        let mut replies = BufReader::with_capacity(256 << 10, stream);
        let mut count = Count::of(requests.len());
        let value = vec![b'v'; 4096];
        let (mut out, mut missed): (Vec<u8>, Vec<u32>) = (Vec::new(), Vec::new());
        let mut asked: Vec<u32> = Vec::new();
        for batch in requests.chunks(BATCH) {
            out.clear();
            asked.clear();
            for &key in &missed {
                self.encode_set(key, &value[..value_bytes(key)], &mut out);
            }
            for &key in batch {
                if !asked.contains(&key) {
                    asked.push(key);
                    self.encode_get(key, &mut out);
                }
            }
            replies.get_mut().write_all(&out).doing(doing())?;
            for _ in missed.drain(..) {
                self.stored(&mut replies).doing(doing())?;
            }
            for &key in &asked {
                if !self.found(&mut replies).doing(doing())? {
                    missed.push(key);
                }
            }
            // One that comes again in a batch would have been written by then.
            let mut first_misses = missed.iter();
            let mut next = first_misses.next();
            for key in batch {
                let is_miss = next == Some(key);
                if is_miss {
                    next = first_misses.next();
                }
                count.note(!is_miss);
            }
        }
        let objects = running.objects()?;
        Ok(count.outcome(&self.name(), objects))
    }

    /// Starts it with one thread for requests.
    ///
    /// # Errors
    /// It does not start.
    pub(super) fn start(&self, memory_bytes: u64) -> Result<Running> {
        match self {
            Peer::Redis(program, policy) => {
                let scratch = Scratch::new(&std::env::temp_dir()).doing("making a directory")?;
                let server = Server::redis(program, Redis::No, scratch.path())?;
                let memory = memory_bytes.to_string();
                for (name, value) in [("maxmemory", &*memory), ("maxmemory-policy", policy)] {
                    client::ask(server.address, &["CONFIG", "SET", name, value])?;
                }
                Ok(Running::Redis(server, scratch))
            }
            Peer::Memcached(program) => start_memcached(program, memory_bytes),
            Peer::Duramen(program) => {
                let how = Duramen {
                    program: program.clone(),
                    memory: format!("{}mb", memory_bytes / MIB),
                    threads: 1,
                    poll: "adaptive",
                    dir: None,
                    level: "memory",
                    more: Vec::new(),
                };
                let server = Server::duramen_cache(&self.name(), &how)?;
                Ok(Running::Duramen(server))
            }
        }
    }

    fn encode_get(&self, key: u32, out: &mut Vec<u8>) {
        // A vector takes everything.
        let _ = match self {
            Peer::Redis(..) | Peer::Duramen(_) => {
                write!(out, "*2\r\n$3\r\nGET\r\n$16\r\n{key:016x}\r\n")
            }
            Peer::Memcached(_) => write!(out, "get {key:016x}\r\n"),
        };
    }

    pub(super) fn encode_set(&self, key: u32, value: &[u8], out: &mut Vec<u8>) {
        let length = value.len();
        let _ = match self {
            Peer::Redis(..) | Peer::Duramen(_) => {
                write!(out, "*3\r\n$3\r\nSET\r\n$16\r\n{key:016x}\r\n${length}\r\n")
            }
            Peer::Memcached(_) => write!(out, "set {key:016x} 0 0 {length}\r\n"),
        };
        out.extend_from_slice(value);
        out.extend_from_slice(b"\r\n");
    }

    /// Reads the reply to a write.
    pub(super) fn stored(&self, replies: &mut impl BufRead) -> std::io::Result<()> {
        let line = line(replies)?;
        match self {
            Peer::Redis(..) | Peer::Duramen(_) if line == "+OK" => Ok(()),
            // A size of which nothing is left to evict stays out.
            Peer::Memcached(_) if line == "STORED" || line.starts_with("SERVER_ERROR") => Ok(()),
            _ => Err(std::io::Error::other(line)),
        }
    }

    fn found(&self, replies: &mut impl BufRead) -> std::io::Result<bool> {
        let first = line(replies)?;
        let length = match self {
            Peer::Redis(..) | Peer::Duramen(_) => match first.strip_prefix('$') {
                Some("-1") => return Ok(false),
                length => length.map(str::to_owned),
            },
            Peer::Memcached(_) if first == "END" => return Ok(false),
            Peer::Memcached(_) => first
                .strip_prefix("VALUE ")
                .and_then(|words| words.rsplit(' ').next().map(str::to_owned)),
        };
        let length: Option<u64> = length.and_then(|length| length.parse().ok());
        let length = length.ok_or_else(|| std::io::Error::other(first))?;
        std::io::copy(&mut replies.take(length + 2), &mut std::io::sink())?;
        if let Peer::Memcached(_) = self {
            line(replies)?;
        }
        Ok(true)
    }
}

/// The next line without its end.
fn line(replies: &mut impl BufRead) -> std::io::Result<String> {
    let mut text = String::new();
    match replies.read_line(&mut text)? {
        0 => Err(std::io::Error::other("the server closed the connection")),
        _ => Ok(text.trim_end().to_owned()),
    }
}

fn start_memcached(program: &Path, memory_bytes: u64) -> Result<Running> {
    let doing = || format!("starting {}", program.display());
    let address = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))
        .and_then(|listener| listener.local_addr())
        .doing(doing())?;
    let port = address.port().to_string();
    let memory = (memory_bytes / MIB).to_string();
    let mut command = Command::new(program);
    command
        .args(["-l", "127.0.0.1", "-U", "0", "-u", "root", "-t", "1"])
        .args(["-p", &port, "-m", &memory])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    let child = command.spawn().doing(doing())?;
    let mut server = Memcached { child, address };
    let begun = Instant::now();
    while TcpStream::connect(address).is_err() {
        if let Some(status) = server.child.try_wait().doing(doing())? {
            return Err(Failure::new(doing(), format!("it ended: {status}")));
        }
        if begun.elapsed() > START_MAX {
            return Err(Failure::new(doing(), "it does not listen"));
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    Ok(Running::Memcached(server))
}

impl Running {
    pub(super) fn address(&self) -> SocketAddr {
        match self {
            Running::Redis(server, _) | Running::Duramen(server) => server.address,
            Running::Memcached(server) => server.address,
        }
    }

    pub(super) fn process_id(&self) -> u32 {
        match self {
            Running::Redis(server, _) | Running::Duramen(server) => server.process_id(),
            Running::Memcached(server) => server.child.id(),
        }
    }

    /// Number of objects in it.
    pub(super) fn objects(&self) -> Result<u64> {
        match self {
            Running::Redis(server, _) | Running::Duramen(server) => {
                let size = client::ask(server.address, &["DBSIZE"])?.as_integer();
                Ok(size.unwrap_or(0) as u64)
            }
            Running::Memcached(server) => items(server.address).doing("asking memcached"),
        }
    }
}

fn items(address: SocketAddr) -> std::io::Result<u64> {
    let mut stream = TcpStream::connect(address)?;
    stream.write_all(b"stats\r\n")?;
    let mut replies = BufReader::new(stream);
    let mut items = 0;
    loop {
        let line = line(&mut replies)?;
        if line == "END" {
            return Ok(items);
        }
        if let Some(number) = line.strip_prefix("STAT curr_items ") {
            items = number.parse().map_err(std::io::Error::other)?;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_of_both_servers_are_understood() {
        let redis = Peer::Redis(PathBuf::new(), "allkeys-lru");
        let mut replies: &[u8] = b"+OK\r\n$3\r\nab\n\r\n$-1\r\n-ERR no\r\n";
        redis.stored(&mut replies).unwrap();
        assert!(redis.found(&mut replies).unwrap());
        assert!(!redis.found(&mut replies).unwrap());
        assert!(redis.found(&mut replies).is_err());
        let memcached = Peer::Memcached(PathBuf::new());
        let mut replies: &[u8] = b"STORED\r\nVALUE k 0 3\r\nab\n\r\nEND\r\nEND\r\nERROR\r\n";
        memcached.stored(&mut replies).unwrap();
        assert!(memcached.found(&mut replies).unwrap());
        assert!(!memcached.found(&mut replies).unwrap());
        assert!(memcached.found(&mut replies).is_err());
    }
}
