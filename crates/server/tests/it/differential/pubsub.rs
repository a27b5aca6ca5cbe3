//! Random commands of publish and subscribe on several connections: each gets the replies and
//! messages that it gets from redis-server.
//!
//! A message by patterns comes once for each of them, in the order of a hash table there, and so do
//! the replies of UNSUBSCRIBE without names. So the lines that a connection gets for one request
//! are compared in any order. A client that publishes to itself is left out: since Redis 7.2
//! messages come behind the reply, before that in front of it.

use super::random::{end_of_reply, seeds, unordered};
use super::{Peer, both};
use duramen_base::random::Random;
use std::io::{Read, Write};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

/// Requests of one sequence.
const SEQUENCE: usize = 60;
const CHANNELS: &[&str] = &["a", "b", "ab", "news", "a b"];
const PATTERNS: &[&str] = &["a", "*", "a*", "?b", "[ab]", "n\\ews", "x*"];

/// Requests of subscribers: `c` channel, `p` pattern, `+` may be repeated.
const SUBSCRIBERS: &[&str] = &[
    "SUBSCRIBE c+",
    "SUBSCRIBE c",
    "UNSUBSCRIBE c+",
    "UNSUBSCRIBE",
    "PSUBSCRIBE p+",
    "PSUBSCRIBE p",
    "PUNSUBSCRIBE p+",
    "PUNSUBSCRIBE",
    "SSUBSCRIBE c+",
    "SUNSUBSCRIBE c+",
    "SUNSUBSCRIBE",
    "PING",
    "PING c",
    "GET k",
    "MULTI",
    "EXEC",
    "DISCARD",
    "RESET",
    "HELLO 2",
    "HELLO 3",
    "SUBSCRIBE",
    "PSUBSCRIBE",
];

/// Requests of the publisher.
const PUBLISHER: &[&str] = &[
    "PUBLISH c c",
    "PUBLISH c c",
    "PUBLISH c c",
    "SPUBLISH c c",
    "PUBSUB CHANNELS",
    "PUBSUB CHANNELS p",
    "PUBSUB CHANNELS p p",
    "PUBSUB NUMSUB c+",
    "PUBSUB NUMSUB",
    "PUBSUB NUMPAT",
    "PUBSUB SHARDCHANNELS",
    "PUBSUB SHARDCHANNELS p",
    "PUBSUB SHARDNUMSUB c+",
    "PUBSUB",
    "PUBSUB NUMPAT c",
    "PUBSUB NOSUCH",
    "PUBLISH c",
    "MULTI",
    "EXEC",
];

/// Connections of a sequence: subscribers, and behind them the publisher.
const CONNECTIONS: usize = 4;

/// A request, and the connection that sends it.
type Step = (usize, Vec<String>);

fn sequence(seed: u64) -> Vec<Step> {
    let mut random = Random::new(seed);
    let mut steps = Vec::new();
    for _ in 0..SEQUENCE {
        let is_publisher = random.one_in(2);
        let (connection, templates) = match is_publisher {
            true => (CONNECTIONS - 1, PUBLISHER),
            false => (random.below(CONNECTIONS as u64 - 1) as usize, SUBSCRIBERS),
        };
        let template = random.pick(templates).expect("templates");
        let mut words = Vec::new();
        for word in template.split(' ') {
            let (word, times) = match word.strip_suffix('+') {
                Some(word) => (word, 1 + random.below(3)),
                None => (word, 1),
            };
            for _ in 0..times {
                let word = match word {
                    "c" => random.pick(CHANNELS).expect("channels"),
                    "p" => random.pick(PATTERNS).expect("patterns"),
                    word => word,
                };
                words.push(word.to_owned());
            }
        }
        steps.push((connection, words));
    }
    steps
}

struct Connections(Vec<(Peer, Vec<u8>)>);

impl Connections {
    fn open(address: SocketAddr) -> Connections {
        let peers = (0..CONNECTIONS).map(|_| (Peer::connect(address), Vec::new()));
        let mut connections = Connections(peers.collect());
        // A server learns some time later that the connections of the sequence before are closed.
        let deadline = Instant::now() + Duration::from_secs(60);
        for (question, nothing) in [
            ("NUMPAT", ":0\r\n"),
            ("CHANNELS", "*0\r\n"),
            ("SHARDCHANNELS", "*0\r\n"),
        ] {
            loop {
                connections.send(0, &["PUBSUB", question]);
                if connections.receive(0) == nothing {
                    break;
                }
                assert!(Instant::now() < deadline, "{question}");
            }
        }
        connections
    }

    fn send(&mut self, connection: usize, words: &[&str]) {
        let mut input = format!("*{}\r\n", words.len());
        for word in words {
            input.push_str(&format!("${}\r\n{word}\r\n", word.len()));
        }
        let (peer, _) = &mut self.0[connection];
        peer.stream.write_all(input.as_bytes()).expect("sent");
    }

    fn receive(&mut self, connection: usize) -> String {
        let (peer, bytes) = &mut self.0[connection];
        let mut buffer = [0; 4096];
        loop {
            if let Some(end) = (!bytes.is_empty()).then(|| end_of_reply(bytes)).flatten() {
                let reply: Vec<u8> = bytes.drain(..end).collect();
                return String::from_utf8(reply).expect("text");
            }
            let read = peer.stream.read(&mut buffer).expect("a reply");
            assert!(read > 0, "closed");
            bytes.extend_from_slice(&buffer[..read]);
        }
    }

    /// The bytes that each connection gets for one request. An unknown command shows the end of
    /// them, since its error is the same in every state of a connection.
    fn ask(&mut self, (connection, words): &Step) -> Vec<String> {
        let words: Vec<_> = words.iter().map(String::as_str).collect();
        self.send(*connection, &words);
        // A transaction must not get the mark.
        let mut got = vec![String::new(); CONNECTIONS];
        got[*connection] = self.receive(*connection);
        for (other, got) in got.iter_mut().enumerate() {
            self.send(other, &["NOSUCH"]);
            loop {
                let reply = self.receive(other);
                if reply.contains("unknown command 'NOSUCH'") {
                    break;
                }
                got.push_str(&reply);
            }
        }
        got
    }
}

/// The first difference, shown.
fn difference(steps: &[Step], addresses: [SocketAddr; 2]) -> Option<String> {
    let [mut ours, mut theirs] = addresses.map(Connections::open);
    for (n, step) in steps.iter().enumerate() {
        let (our, their) = (ours.ask(step), theirs.ask(step));
        // HELLO shows the server.
        if step.1[0] == "HELLO" {
            continue;
        }
        for (connection, (our, their)) in our.iter().zip(&their).enumerate() {
            if unordered(our) != unordered(their) {
                let before: Vec<_> = steps[..=n].iter().map(|step| format!("{step:?}")).collect();
                let before = before.join("\n   ");
                return Some(format!(
                    "{before}\n   connection {connection}: {our:?}\n   Redis: {their:?}"
                ));
            }
        }
    }
    None
}

#[test]
fn random_subscribers_get_what_redis_sends() {
    let Some((server, redis)) = both() else {
        return;
    };
    let addresses = [server.addresses().resp[0], redis.address];
    let mut compared = 0;
    let mut found = None;
    for seed in seeds(100, 10) {
        if found.is_some() {
            break;
        }
        let steps = sequence(seed);
        compared += steps.len();
        found = difference(&steps, addresses).map(|shown| format!("seed {seed}: {shown}"));
    }
    server.stop();
    server.wait().expect("stops");
    assert!(found.is_none(), "{}", found.unwrap_or_default());
    println!("{compared} random requests, no difference");
}
