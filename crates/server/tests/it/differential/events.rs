//! Keyspace events of random commands: the same events in the same order as from redis-server, and
//! each with the request that it came from.
//!
//! The listener tells the requests apart by messages that the client publishes after each of them.
//! The environment is that of `random`.

use super::random::{self, Step, TEMPLATES, ask_all, end_of_reply, seeds, shortened};
use super::{Peer, both};
use std::io::Read;
use std::net::SocketAddr;

/// Templates beside those of `random`.
const MORE: &[&str] = &[
    "SET k v EX|PX 100000",
    "SET k v KEEPTTL",
    "SET k v XX|NX",
    "SETEX k 1000 v",
    "PSETEX k 100000 v",
    "GETEX k EX 1000",
    "GETEX k PERSIST",
    "GETEX k PXAT 1",
    "GETEX k",
    "EXPIRE k 1000",
    "EXPIRE k -1|0",
    "EXPIRE k 2000 GT|LT|NX|XX",
    "PEXPIREAT k 1|4000000000000",
    "MSET k v k v k v",
    "MSETNX k v k v",
    "DECR k",
    "DECRBY k n",
    "INCRBY k n",
    "MOVE k 0|1",
    "SELECT 0|1",
    "COPY k k DB 1 REPLACE",
    "EXISTS k k",
    "HSTRLEN h f",
    "SMOVE s s f",
    "LMOVE l l LEFT|RIGHT LEFT|RIGHT",
    "ZADD z INCR x f",
    "DUMP k",
];

/// The channel of messages that say after which request they were sent.
const CHANNEL: &str = "after";

struct Listened {
    client: Peer,
    listener: Peer,
}

impl Listened {
    fn connect(address: SocketAddr) -> Listened {
        let mut listened = Listened {
            client: Peer::connect(address),
            listener: Peer::connect(address),
        };
        let set = listened
            .client
            .ask("CONFIG SET notify-keyspace-events AKEmn");
        assert_eq!(set, "+OK\r\n");
        listened.listener.ask("PSUBSCRIBE __key*__:*");
        listened.listener.ask(&format!("SUBSCRIBE {CHANNEL}"));
        listened
    }

    /// The events of each request. Not misses of a request that fails: Redis tells those of the
    /// keys that it looks up before it finds the mistake; nor misses of streams, which XREAD tells
    /// twice there. Misses of SORT come in the order of a sorted set's skip list there.
    fn events(&mut self, steps: &[Step]) -> Vec<Vec<String>> {
        for request in ["DISCARD", "UNWATCH", "SELECT 0", "FLUSHALL"] {
            self.client.ask(request);
        }
        let mut all = Vec::new();
        for (n, step) in steps.iter().enumerate() {
            let publish = Step::new(&["PUBLISH", CHANNEL, &n.to_string()]);
            all.extend([step.clone(), publish]);
        }
        // A transaction that is left open would keep the end back.
        all.push(Step::new(&["DISCARD"]));
        all.push(Step::new(&["PUBLISH", CHANNEL, "end"]));
        let replies = ask_all(&mut self.client, &all);
        let of_stream = |step: &Step| step.request[0].starts_with('X');
        let has_streams = steps.iter().any(of_stream);
        let (mut events, mut waiting) = (vec![Vec::new(); steps.len()], Vec::new());
        loop {
            let message = self.message();
            let words: Vec<_> = message.split("\r\n").skip(2).step_by(2).collect();
            match words[..] {
                ["message", _, "end", ..] => break,
                ["message", _, n, ..] => {
                    let n: usize = n.parse().expect("a number");
                    let step = &steps[n];
                    events[n] = std::mem::take(&mut waiting);
                    let is_miss = |event: &String| event.contains("keymiss");
                    let in_exec = has_streams && step.request[0] == "EXEC";
                    if in_exec || of_stream(step) || may_have_failed(&replies[2 * n]) {
                        events[n].retain(|event| !is_miss(event));
                    }
                    if ["SORT", "EXEC"].contains(&&*step.request[0]) {
                        events[n].sort_by_key(|event| is_miss(event).then(|| event.clone()));
                    }
                }
                ["pmessage", _, channel, payload, ..] => {
                    waiting.push(format!("{channel} {payload}"));
                }
                _ => panic!("{message}"),
            }
        }
        events
    }

    fn message(&mut self) -> String {
        let (mut bytes, mut one) = (Vec::new(), [0; 1]);
        while bytes.is_empty() || end_of_reply(&bytes).is_none() {
            self.listener
                .stream
                .read_exact(&mut one)
                .expect("a message");
            bytes.extend_from_slice(&one);
        }
        String::from_utf8_lossy(&bytes).into_owned()
    }
}

/// A queued command gets its reply in that of EXEC.
fn may_have_failed(reply: &str) -> bool {
    reply.starts_with('-') || reply == "+QUEUED\r\n" || reply.contains("\n-")
}

struct Both {
    ours: Listened,
    theirs: Listened,
}

impl Both {
    /// The first request with other events than in Redis, and both lists.
    fn difference(&mut self, steps: &[Step]) -> Option<(usize, Vec<String>, Vec<String>)> {
        let (ours, theirs) = (self.ours.events(steps), self.theirs.events(steps));
        let mut pairs = ours.into_iter().zip(theirs).enumerate();
        let (n, (our, their)) = pairs.find(|(_, (our, their))| our != their)?;
        Some((n, our, their))
    }
}

#[test]
fn random_commands_tell_the_events_of_redis() {
    let Some((server, redis)) = both() else {
        return;
    };
    let mut both = Both {
        ours: Listened::connect(server.addresses().resp[0]),
        theirs: Listened::connect(redis.address),
    };
    let templates: Vec<_> = TEMPLATES.iter().chain(MORE).copied().collect();
    let (mut compared, mut found) = (0, Vec::new());
    for seed in seeds(200, 20) {
        if found.len() >= 10 {
            break;
        }
        let steps = random::sequence(seed, &templates);
        compared += steps.len();
        let Some(difference) = both.difference(&steps) else {
            continue;
        };
        // All of the rest is kept: an EXEC may be there.
        let steps = shortened(steps, |steps| {
            both.difference(steps).map(|_| steps.len() - 1)
        });
        let difference = both.difference(&steps).unwrap_or(difference);
        let shown: Vec<_> = steps.iter().map(|it| format!("{:?}", it.request)).collect();
        let shown = shown.join("\n   ");
        found.push(format!("seed {seed}: {shown}\n   {difference:?}"));
    }
    server.stop();
    server.wait().expect("stops");
    assert!(found.is_empty(), "{}", found.join("\n"));
    println!("{compared} random requests, no difference in their events");
}
