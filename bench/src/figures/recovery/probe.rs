//! A Redis client that reads a sample of keys again and again until each has its value.

use crate::harness::{Doing, Failure, Result};
use duramen_format::hash::KeyHasher;
use duramen_wire::resp::{Reply, ReplyLimits, ReplyParser, RequestEncoder};
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::io::Write as _;
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

/// Keys that are read: many more than there are partitions.
const SAMPLE: u64 = 2000;
/// Pause before the next request to a server that cannot answer yet.
const REST: Duration = Duration::from_millis(5);
/// While no key is served, only so many, spread over all of them, are requested: the probe shares
/// its processors with the measured servers.
const SCOUTS: usize = 40;
/// Longer than any recovery.
const PATIENCE: Duration = Duration::from_secs(90);

pub(super) struct Probe {
    survivors: Vec<SocketAddr>,
    connections: HashMap<SocketAddr, (TcpStream, ReplyParser)>,
    keys: Vec<String>,
    value: Vec<u8>,
}

impl Probe {
    /// Connects: this does not belong to the measured time.
    pub(super) fn new(survivors: &[SocketAddr], keys: u64, value_bytes: usize) -> Result<Probe> {
        let step = (keys / SAMPLE).max(1);
        let sample = (0..keys).step_by(step as usize).map(duramen_load::key);
        let mut sample: Vec<String> = sample.collect();
        // In the order of slots: requests for one server come together.
        sample.sort_by_key(|key| KeyHasher::new(0).route(key.as_bytes()).slot());
        let mut probe = Probe {
            survivors: survivors.to_vec(),
            connections: HashMap::new(),
            keys: sample,
            value: duramen_load::value(value_bytes),
        };
        for address in survivors {
            probe.connection(*address)?;
        }
        Ok(probe)
    }

    fn connection(&mut self, address: SocketAddr) -> Result<&mut (TcpStream, ReplyParser)> {
        let doing = || format!("reading from {address}");
        match self.connections.entry(address) {
            Entry::Occupied(known) => Ok(known.into_mut()),
            Entry::Vacant(free) => {
                let stream = TcpStream::connect(address).doing(doing())?;
                stream.set_nodelay(true).doing(doing())?;
                stream.set_read_timeout(Some(PATIENCE)).doing(doing())?;
                let parser = ReplyParser::new(ReplyLimits::default());
                Ok(free.insert((stream, parser)))
            }
        }
    }

    /// Seconds from the kill to the first and to the last key.
    pub(super) fn run(mut self, killed: Instant) -> Result<(f64, f64)> {
        let mut pending: Vec<(usize, SocketAddr)> = (0..self.keys.len())
            .map(|n| (n, self.survivors[n % self.survivors.len()]))
            .collect();
        let (mut first, mut last) = (None, 0.0);
        let (mut turn, mut seen) = (0, false);
        while !pending.is_empty() {
            if killed.elapsed() > PATIENCE {
                let left = pending.len();
                return Err(Failure::new(
                    "reading keys again",
                    format!("{left} of the sample are not served"),
                ));
            }
            let before = pending.len();
            let mut by_server: HashMap<SocketAddr, Vec<usize>> = HashMap::new();
            // After a round in which a server answered, all keys are requested.
            let step = if seen { 1 } else { before.div_ceil(SCOUTS) };
            turn += 1;
            let asked = pending.extract_if(.., {
                let mut n = turn;
                move |_| {
                    n += 1;
                    n % step == 0
                }
            });
            for (key, address) in asked {
                by_server.entry(address).or_default().push(key);
            }
            let mut moved = false;
            seen = false;
            // All servers get their requests before the probe waits for any: a server that delays
            // its answers delays no others.
            for (address, keys) in &by_server {
                self.send(*address, keys)?;
            }
            for (address, keys) in by_server {
                for (key, reply) in self.receive(address, &keys)? {
                    match self.judge(key, &reply)? {
                        Verdict::Served => {
                            last = killed.elapsed().as_secs_f64();
                            seen = true;
                            first.get_or_insert(last);
                        }
                        Verdict::Moved(to) => {
                            moved = true;
                            pending.push((key, to));
                        }
                        Verdict::NotYet => pending.push((key, address)),
                    }
                }
            }
            if pending.len() == before && !moved {
                std::thread::sleep(REST);
            }
        }
        Ok((first.unwrap_or(0.0), last))
    }

    fn judge(&self, key: usize, reply: &Reply) -> Result<Verdict> {
        if reply.as_bytes() == Some(&self.value) {
            return Ok(Verdict::Served);
        }
        if let Reply::Error(text) = reply {
            let mut words = text.split(' ');
            let (word, address) = (words.next().unwrap_or_default(), words.nth(1));
            let to = address.and_then(|text| text.parse::<SocketAddr>().ok());
            match (word, to) {
                // Only living servers: the dead one is still in old maps.
                ("MOVED", Some(to)) if self.survivors.contains(&to) => {
                    return Ok(Verdict::Moved(to));
                }
                ("MOVED" | "TRYAGAIN" | "CLUSTERDOWN" | "LOADING", _) => {
                    return Ok(Verdict::NotYet);
                }
                _ => {}
            }
        }
        let key = &self.keys[key];
        Err(Failure::new(
            "reading keys again",
            format!("{key} is lost or wrong: {reply:?}"),
        ))
    }

    fn send(&mut self, address: SocketAddr, keys: &[usize]) -> Result<()> {
        let mut requests = Vec::new();
        let mut encoder = RequestEncoder::new(&mut requests);
        for key in keys {
            encoder.request(&["GET", self.keys[*key].as_str()]);
        }
        let (stream, _) = self.connection(address)?;
        stream
            .write_all(&requests)
            .doing(format!("asking {address}"))
    }

    /// The answers to the requests.
    fn receive(&mut self, address: SocketAddr, keys: &[usize]) -> Result<Vec<(usize, Reply)>> {
        let doing = || format!("reading from {address}");
        let (stream, parser) = self.connection(address)?;
        let replies = keys.iter().map(|key| {
            let reply = parser.read_from(stream).doing(doing());
            reply.map(|reply| (*key, reply))
        });
        replies.collect()
    }
}

enum Verdict {
    Served,
    Moved(SocketAddr),
    NotYet,
}
