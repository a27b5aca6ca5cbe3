//! A load generator for two protocols: one thread per connection, which sends a few requests and
//! reads their replies.

use super::VALUE_BYTES;
use super::rivals::{Protocol, Rival};
use crate::harness::{Doing, Failure, Latencies, Random, Result, fresh_seed};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

/// Percent of the reads of a hot set that go to the hot keys, which are one in so many.
const HOT_READS: u64 = 90;
const HOT_KEYS: u64 = 20;
const FILL_CONNECTIONS: u64 = 4;
const FILL_PIPELINE: u64 = 64;
/// A server without a reply for this time has failed.
const SILENCE: Duration = Duration::from_secs(60);

/// The choice of keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Choice {
    /// All with equal probability
    Uniform,
    /// 90 % of reads to 5 % of the keys
    Hot,
}

impl Choice {
    pub(super) fn name(self) -> &'static str {
        match self {
            Choice::Uniform => "all keys alike",
            Choice::Hot => "90 % to 5 % of keys",
        }
    }

    fn key(self, rng: &mut Random, keys: u64) -> u64 {
        match self {
            Choice::Hot if rng.below(100) < HOT_READS => rng.below(keys / HOT_KEYS) * HOT_KEYS,
            _ => rng.below(keys),
        }
    }
}

/// Random reads for a time.
#[derive(Clone, Copy)]
pub(super) struct Reads {
    pub(super) choice: Choice,
    pub(super) keys: u64,
    pub(super) connections: usize,
    pub(super) pipeline: usize,
    pub(super) time: Duration,
}

/// The results of requests.
#[derive(Default)]
pub(super) struct Outcome {
    pub(super) requests: u64,
    /// Stored, or found with the right value.
    pub(super) found: u64,
    /// Found with another value than the key's.
    pub(super) wrong: u64,
    pub(super) seconds: f64,
    pub(super) latencies: Latencies,
    /// Entries that Duramen read from flash during the run.
    pub(super) fetched: f64,
}

impl Outcome {
    pub(super) fn add(&mut self, other: &Outcome) {
        self.requests += other.requests;
        self.found += other.found;
        self.wrong += other.wrong;
        self.seconds = self.seconds.max(other.seconds);
        self.latencies.add(&other.latencies);
        self.fetched += other.fetched;
    }

    pub(super) fn found_per_second(&self) -> f64 {
        self.found as f64 / self.seconds
    }
}

/// A reply.
#[derive(Debug, PartialEq, Eq)]
enum Reply {
    Stored,
    NotStored,
    /// A value; it is in the caller's buffer.
    Value,
    Nothing,
}

fn key(n: u64) -> String {
    format!("key:{n:012}")
}

/// A key's value begins with its key.
fn value(n: u64) -> Vec<u8> {
    let mut value = key(n).into_bytes();
    value.resize(VALUE_BYTES, b'v');
    value
}

struct Connection {
    protocol: Protocol,
    output: TcpStream,
    input: BufReader<TcpStream>,
    line: String,
    value: Vec<u8>,
}

impl Connection {
    fn open(rival: &Rival) -> Result<Connection> {
        let connect = || {
            let stream = TcpStream::connect(rival.address)?;
            stream.set_nodelay(true)?;
            stream.set_read_timeout(Some(SILENCE))?;
            Ok::<_, std::io::Error>((stream.try_clone()?, stream))
        };
        let (input, output) = connect().doing(format!("connecting to {}", rival.name()))?;
        Ok(Connection {
            protocol: rival.protocol,
            output,
            input: BufReader::with_capacity(256 << 10, input),
            line: String::new(),
            value: Vec::new(),
        })
    }

    fn encode_get(&self, n: u64, out: &mut Vec<u8>) {
        let key = key(n);
        let request = match self.protocol {
            Protocol::Resp => format!("*2\r\n$3\r\nGET\r\n${}\r\n{key}\r\n", key.len()),
            Protocol::Memcached => format!("get {key}\r\n"),
        };
        out.extend_from_slice(request.as_bytes());
    }

    fn encode_set(&self, n: u64, out: &mut Vec<u8>) {
        let (key, value) = (key(n), value(n));
        let head = match self.protocol {
            Protocol::Resp => format!(
                "*3\r\n$3\r\nSET\r\n${}\r\n{key}\r\n${}\r\n",
                key.len(),
                value.len()
            ),
            Protocol::Memcached => format!("set {key} 0 0 {}\r\n", value.len()),
        };
        out.extend_from_slice(head.as_bytes());
        out.extend_from_slice(&value);
        out.extend_from_slice(b"\r\n");
    }

    fn send(&mut self, requests: &[u8]) -> Result<()> {
        self.output.write_all(requests).doing("sending requests")
    }

    fn reply(&mut self) -> Result<Reply> {
        read_reply(
            self.protocol,
            &mut self.input,
            &mut self.line,
            &mut self.value,
        )
        .doing("reading a reply")
    }

    /// Sends requests for some keys and reads their replies.
    fn exchange(&mut self, keys: &[u64], set: bool, outcome: &mut Outcome) -> Result<()> {
        let mut out = Vec::with_capacity(keys.len() * 64);
        for n in keys {
            match set {
                true => self.encode_set(*n, &mut out),
                false => self.encode_get(*n, &mut out),
            }
        }
        let begun = Instant::now();
        self.send(&out)?;
        for n in keys {
            let reply = self.reply()?;
            let ns = begun.elapsed().as_nanos() as u64;
            outcome.latencies.record_ns(ns);
            outcome.requests += 1;
            match reply {
                Reply::Stored => outcome.found += 1,
                Reply::Value if self.value == value(*n) => outcome.found += 1,
                Reply::Value => outcome.wrong += 1,
                Reply::NotStored | Reply::Nothing => {}
            }
        }
        Ok(())
    }
}

/// Reads one reply.
fn read_reply(
    protocol: Protocol,
    input: &mut impl BufRead,
    line: &mut String,
    value: &mut Vec<u8>,
) -> std::io::Result<Reply> {
    let mut next = |input: &mut dyn BufRead| -> std::io::Result<String> {
        line.clear();
        match input.read_line(line)? {
            0 => Err(std::io::ErrorKind::UnexpectedEof.into()),
            _ => Ok(line.trim_end().to_owned()),
        }
    };
    let first = next(input)?;
    let strange = |line: &str| std::io::Error::other(format!("a strange reply: {line}"));
    let mut whole = |input: &mut dyn Read, length: usize| -> std::io::Result<()> {
        value.resize(length + 2, 0);
        input.read_exact(value)?;
        value.truncate(length);
        Ok(())
    };
    match protocol {
        Protocol::Resp => match first.as_bytes().first() {
            Some(b'+') => Ok(Reply::Stored),
            Some(b'-') => Ok(Reply::NotStored),
            Some(b'$') if first == "$-1" => Ok(Reply::Nothing),
            Some(b'_') => Ok(Reply::Nothing),
            Some(b'$') => {
                whole(input, first[1..].parse().map_err(|_| strange(&first))?)?;
                Ok(Reply::Value)
            }
            _ => Err(strange(&first)),
        },
        Protocol::Memcached => match first.split(' ').next() {
            Some("STORED") => Ok(Reply::Stored),
            Some("NOT_STORED" | "SERVER_ERROR") => Ok(Reply::NotStored),
            Some("END") => Ok(Reply::Nothing),
            Some("VALUE") => {
                let length = first.rsplit(' ').next().and_then(|word| word.parse().ok());
                whole(input, length.ok_or_else(|| strange(&first))?)?;
                match next(input)?.as_str() {
                    "END" => Ok(Reply::Value),
                    other => Err(strange(other)),
                }
            }
            _ => Err(strange(&first)),
        },
    }
}

/// Runs so many threads, each with a connection, and adds up their results.
fn in_threads(
    rival: &Rival,
    threads: u64,
    work: impl Fn(u64, &mut Connection, &mut Outcome) -> Result<()> + Sync,
) -> Result<Outcome> {
    let begun = Instant::now();
    let one = |number: u64| {
        let mut connection = Connection::open(rival)?;
        let mut outcome = Outcome::default();
        work(number, &mut connection, &mut outcome)?;
        Ok::<_, Failure>(outcome)
    };
    let parts: Vec<Result<Outcome>> = std::thread::scope(|scope| {
        let running: Vec<_> = (0..threads)
            .map(|number| scope.spawn(move || one(number)))
            .collect();
        let join = |thread: std::thread::ScopedJoinHandle<'_, _>| {
            thread.join().expect("a generator thread")
        };
        running.into_iter().map(join).collect()
    });
    let mut all = Outcome::default();
    for part in parts {
        all.add(&part?);
    }
    all.seconds = begun.elapsed().as_secs_f64();
    Ok(all)
}

impl Reads {
    /// Reads for the time.
    pub(super) fn run(&self, rival: &Rival) -> Result<Outcome> {
        let before = rival.fetches()?;
        let mut outcome = self.read(rival)?;
        outcome.fetched = rival.fetches()? - before;
        Ok(outcome)
    }

    fn read(&self, rival: &Rival) -> Result<Outcome> {
        in_threads(rival, self.connections as u64, |_, connection, outcome| {
            let mut rng = Random::new(fresh_seed());
            let begun = Instant::now();
            let mut keys = vec![0; self.pipeline];
            while begun.elapsed() < self.time {
                keys.fill_with(|| self.choice.key(&mut rng, self.keys));
                connection.exchange(&keys, false, outcome)?;
            }
            Ok(())
        })
    }
}

/// Accesses every key once, by a few connections.
fn each(rival: &Rival, keys: u64, set: bool, rate: Option<f64>) -> Result<Outcome> {
    in_threads(rival, FILL_CONNECTIONS, |number, connection, outcome| {
        let own: Vec<u64> = (number..keys).step_by(FILL_CONNECTIONS as usize).collect();
        let begun = Instant::now();
        for some in own.chunks(FILL_PIPELINE as usize) {
            connection.exchange(some, set, outcome)?;
            if let Some(rate) = rate {
                let due =
                    Duration::from_secs_f64((outcome.requests * FILL_CONNECTIONS) as f64 / rate);
                std::thread::sleep(due.saturating_sub(begun.elapsed()));
            }
        }
        Ok(())
    })
}

/// Sets all keys, at most so many per second; returns how many were stored.
pub(super) fn fill(rival: &Rival, keys: u64, rate: Option<f64>) -> Result<u64> {
    Ok(each(rival, keys, true, rate)?.found)
}

/// Reads each key once.
pub(super) fn read_all(rival: &Rival, keys: u64) -> Result<Outcome> {
    each(rival, keys, false, None)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn replies(protocol: Protocol, bytes: &[u8]) -> Vec<(Reply, Vec<u8>)> {
        let (mut input, mut line, mut value) = (bytes, String::new(), Vec::new());
        let mut all = Vec::new();
        while !input.is_empty() {
            let reply = read_reply(protocol, &mut input, &mut line, &mut value).expect("a reply");
            let held = if reply == Reply::Value {
                value.clone()
            } else {
                Vec::new()
            };
            all.push((reply, held));
        }
        all
    }

    #[test]
    fn both_protocols_say_the_same() {
        let expected = [
            (Reply::Stored, Vec::new()),
            (Reply::Value, b"a\r\nb".to_vec()),
            (Reply::Nothing, Vec::new()),
            (Reply::NotStored, Vec::new()),
        ];
        let resp = b"+OK\r\n$4\r\na\r\nb\r\n$-1\r\n-OOM full\r\n";
        assert_eq!(replies(Protocol::Resp, resp), expected);
        let memcached = b"STORED\r\nVALUE key:1 0 4\r\na\r\nb\r\nEND\r\nEND\r\nSERVER_ERROR out of memory storing object\r\n";
        assert_eq!(replies(Protocol::Memcached, memcached), expected);
    }

    #[test]
    fn what_is_cut_short_or_strange_is_an_error() {
        for (protocol, bytes) in [
            (Protocol::Resp, &b"$10\r\nabc"[..]),
            (Protocol::Resp, b"hello\r\n"),
            (Protocol::Memcached, b"VALUE k 0 3\r\nabc\r\nmore\r\n"),
            (Protocol::Memcached, b""),
        ] {
            let (mut input, mut line, mut value) = (bytes, String::new(), Vec::new());
            assert!(read_reply(protocol, &mut input, &mut line, &mut value).is_err());
        }
    }

    #[test]
    fn nine_of_ten_hot_reads_are_of_one_key_in_twenty() {
        let mut rng = Random::new(1);
        let hot = (0..10_000)
            .filter(|_| Choice::Hot.key(&mut rng, 100_000).is_multiple_of(HOT_KEYS))
            .count();
        assert!((8_900..9_300).contains(&hot), "{hot}");
        assert_eq!(&value(7)[..16], b"key:000000000007");
    }
}
