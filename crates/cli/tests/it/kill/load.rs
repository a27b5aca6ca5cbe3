//! Writers and a reader, until the server dies.

use super::check::{
    self, Counter, GROUP, Known, Model, State, Totals, Writer, group_key, public_key,
};
use super::server::Server;
use super::wire::{Wire, says};
use duramen_base::random::Random;
use duramen_wire::resp::Reply;
use std::collections::VecDeque;
use std::io;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::time::{Duration, Instant};

pub(crate) const WRITERS: usize = 4;
/// Keys of a writer: few, so that each is overwritten and deleted often.
const KEYS: u64 = 60;

/// State that all clients of one life share.
struct Shared {
    port: u16,
    /// The server is about to be stopped cleanly: no new requests.
    ending: AtomicBool,
    /// INCRs that were sent, and those that were acknowledged.
    sent: AtomicI64,
    acknowledged: AtomicI64,
    /// The highest value of the counter that any client saw.
    shown: AtomicI64,
    /// Values are numbered consecutively, so that no two are the same.
    next: AtomicU64,
    /// The public numbers of the writers that the reader saw.
    public: Vec<AtomicU64>,
    totals: Mutex<Totals>,
}

/// Loads the server for a while, then ends it: mostly by SIGKILL amid requests.
pub(crate) fn run(
    server: &Server,
    model: &mut Model,
    run: Duration,
    random: &mut Random,
    totals: &mut Totals,
) {
    let shared = Shared {
        port: server.port,
        ending: AtomicBool::new(false),
        sent: AtomicI64::new(0),
        acknowledged: AtomicI64::new(0),
        shown: AtomicI64::new(model.counter.shown),
        next: AtomicU64::new(1 + totals.acknowledged + totals.unanswered + totals.checked_keys),
        public: model
            .writers
            .iter()
            .map(|writer| AtomicU64::new(writer.shown))
            .collect(),
        totals: Mutex::default(),
    };
    let clean = random.below(8) == 0;
    std::thread::scope(|scope| {
        for (number, writer) in model.writers.iter_mut().enumerate() {
            let (shared, seed) = (&shared, random.below(1 << 30));
            scope.spawn(move || write(shared, number, writer, Random::new(seed)));
        }
        scope.spawn(|| read(&shared));
        let until = Instant::now() + run;
        while Instant::now() < until {
            std::thread::park_timeout(until - Instant::now());
        }
        shared.ending.store(clean, Ordering::Relaxed);
        server.end(clean);
    });
    totals.clean_stops += u64::from(clean);
    for (writer, shown) in model.writers.iter_mut().zip(&shared.public) {
        writer.shown = shown.load(Ordering::Relaxed);
    }
    let acknowledged = shared.acknowledged.load(Ordering::Relaxed);
    model.counter = Counter {
        acknowledged: model.counter.acknowledged + acknowledged,
        maybe: shared.sent.load(Ordering::Relaxed) - acknowledged,
        shown: shared.shown.load(Ordering::Relaxed),
    };
    totals.add(&shared.totals.lock().expect("totals"));
}

/// The request of a reply.
enum Sent {
    /// The next state of a key; `lasting`: at a level that survives a kill.
    Key {
        key: String,
        lasting: bool,
    },
    /// The public number was set to this.
    Public,
    Count,
    /// MULTI, or a request between it and EXEC.
    Queued,
    Exec,
    /// A step of the writer's series.
    Series,
}

fn write(shared: &Shared, number: usize, writer: &mut Writer, mut random: Random) {
    let mut totals = Totals::default();
    if let Ok(mut wire) = Wire::connect(shared.port) {
        let mut sent = VecDeque::new();
        let result = batches(
            shared,
            number,
            writer,
            &mut random,
            &mut wire,
            &mut sent,
            &mut totals,
        );
        if let Err(error) = result {
            assert_ne!(error.kind(), io::ErrorKind::InvalidData, "{error}");
        }
        totals.unanswered += sent.len() as u64;
    }
    shared.totals.lock().expect("totals").add(&totals);
}

fn batches(
    shared: &Shared,
    number: usize,
    writer: &mut Writer,
    random: &mut Random,
    wire: &mut Wire,
    sent: &mut VecDeque<Sent>,
    totals: &mut Totals,
) -> io::Result<()> {
    while !shared.ending.load(Ordering::Relaxed) {
        // Lone requests and pipelines.
        let requests = [1, 1, 4, 16, 40][random.below(5) as usize];
        for _ in 0..requests {
            send(shared, number, writer, random, wire, sent);
        }
        wire.flush()?;
        while let Some(next) = sent.front() {
            let reply = wire.reply()?;
            acknowledge(shared, writer, next, &reply);
            sent.pop_front();
            totals.acknowledged += 1;
        }
    }
    Ok(())
}

fn value(shared: &Shared, random: &mut Random) -> Vec<u8> {
    let number = shared.next.fetch_add(1, Ordering::Relaxed);
    let mut value = format!("{number}:").into_bytes();
    let bytes = [10, 100, 100, 700, 6_000][random.below(5) as usize];
    value.resize(value.len().max(bytes), b'.');
    value
}

/// Adds a request of a random kind to the batch.
fn send(
    shared: &Shared,
    number: usize,
    writer: &mut Writer,
    random: &mut Random,
    wire: &mut Wire,
    sent: &mut VecDeque<Sent>,
) {
    match random.below(20) {
        0 => send_group(shared, number, writer, random, wire, sent),
        1 | 2 => {
            shared.sent.fetch_add(1, Ordering::Relaxed);
            wire.request(&[b"INCR", check::COUNTER.as_bytes()]);
            sent.push_back(Sent::Count);
        }
        3 => {
            let next = shared.next.fetch_add(1, Ordering::Relaxed).to_string();
            wire.request(&[b"SET", public_key(number).as_bytes(), next.as_bytes()]);
            sent.push_back(Sent::Public);
        }
        4 => {
            let in_script = random.below(2) == 0;
            let queued = writer.series.send(number, in_script, wire);
            (0..queued).for_each(|_| sent.push_back(Sent::Queued));
            sent.push_back(Sent::Series);
        }
        kind => {
            let n = random.below(KEYS);
            let key = format!("key:{number}:{n}");
            let known = writer.keys.entry(key.clone()).or_default();
            let level = level(n);
            let state = match kind {
                5 | 6 => {
                    wire.request(&[b"DURAMEN.REMOVE", key.as_bytes(), b"LEVEL", level]);
                    None
                }
                7 if known
                    .newest()
                    .as_ref()
                    .is_some_and(|old| old.len() < 20_000)
                    && level == b"synced" =>
                {
                    wire.request(&[b"APPEND", key.as_bytes(), b"+"]);
                    let mut value = known.newest().clone().unwrap_or_default();
                    value.push(b'+');
                    Some(value)
                }
                _ => {
                    let value = value(shared, random);
                    if level == b"synced" && kind < 14 {
                        wire.request(&[b"SET", key.as_bytes(), &value]);
                    } else {
                        wire.request(&[b"DURAMEN.WRITE", key.as_bytes(), &value, b"LEVEL", level]);
                    }
                    Some(value)
                }
            };
            known.maybe.push(state);
            sent.push_back(Sent::Key {
                key,
                lasting: level != b"memory",
            });
        }
    }
}

/// The level of a key, which never changes: most are synced.
fn level(key: u64) -> &'static [u8] {
    match key % 10 {
        0 => b"memory",
        1 | 2 => b"buffered",
        _ => b"synced",
    }
}

/// One transaction over all keys of the writer's group.
fn send_group(
    shared: &Shared,
    number: usize,
    writer: &mut Writer,
    random: &mut Random,
    wire: &mut Wire,
    sent: &mut VecDeque<Sent>,
) {
    let value = value(shared, random);
    writer.group.maybe.push(Some(value.clone()));
    if random.below(2) == 0 {
        wire.request(&[b"MULTI"]);
        for n in 0..GROUP {
            wire.request(&[b"SET", group_key(number, n).as_bytes(), &value]);
        }
        wire.request(&[b"EXEC"]);
        (0..=GROUP).for_each(|_| sent.push_back(Sent::Queued));
    } else {
        let keys: Vec<String> = (0..GROUP).map(|n| group_key(number, n)).collect();
        let pairs = keys.iter().flat_map(|key| [key.as_bytes(), &value]);
        let words: Vec<&[u8]> = std::iter::once(&b"MSET"[..]).chain(pairs).collect();
        wire.request(&words);
    }
    sent.push_back(Sent::Exec);
}

/// Handles a reply: the state that it shows must persist.
fn acknowledge(shared: &Shared, writer: &mut Writer, sent: &Sent, reply: &Reply) {
    if let Reply::Error(text) = reply {
        panic!("an error under load: {text}; sent at {}", shared.port);
    }
    match sent {
        Sent::Key { key, lasting } => {
            let known: &mut Known = writer.keys.get_mut(key).expect("it was sent");
            known.acknowledge(*lasting);
        }
        Sent::Public => assert!(says(reply, "OK"), "{reply:?}"),
        Sent::Count => {
            let Reply::Integer(value) = reply else {
                panic!("INCR: {reply:?}");
            };
            shared.acknowledged.fetch_add(1, Ordering::Relaxed);
            shared.shown.fetch_max(*value, Ordering::Relaxed);
        }
        Sent::Queued => assert!(says(reply, "OK") || says(reply, "QUEUED"), "{reply:?}"),
        Sent::Exec => writer.group.acknowledge(true),
        Sent::Series => writer.series.acknowledge(reply),
    }
}

/// Reads other writers' keys: the values that it saw must persist as well (docs/traps.md, trap 4).
fn read(shared: &Shared) {
    let Ok(mut wire) = Wire::connect(shared.port) else {
        return;
    };
    let keys: Vec<String> = (0..WRITERS).map(public_key).collect();
    while !shared.ending.load(Ordering::Relaxed) {
        for (key, shown) in keys.iter().zip(&shared.public) {
            match wire.ask(&[b"GET", key.as_bytes()]) {
                Ok(reply) => {
                    shown.fetch_max(number(&reply), Ordering::Relaxed);
                }
                Err(_) => return,
            }
        }
        match wire.ask(&[b"GET", check::COUNTER.as_bytes()]) {
            Ok(reply) => {
                shared
                    .shown
                    .fetch_max(number(&reply) as i64, Ordering::Relaxed);
            }
            Err(_) => return,
        }
    }
}

fn number(reply: &Reply) -> u64 {
    match reply {
        Reply::Bulk(value) => check::number_in(value),
        _ => 0,
    }
}

#[test]
fn the_model_tells_right_from_wrong() {
    let value = |n: u64| -> State { Some(n.to_string().into_bytes()) };
    let mut known = Known::default();
    known.maybe.push(value(1));
    known.maybe.push(value(2));
    known.acknowledge(true);
    assert_eq!((&known.sure, known.newest()), (&value(1), &value(2)));
    known.acknowledge(false);
    assert_eq!(known.loose, [value(1)]);
}
