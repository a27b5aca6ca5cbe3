//! Bytes that change on disk under a running server: the server finds and repairs the damage, so a
//! SIGKILL loses nothing.

use crate::kill::server::Server;
use crate::kill::wire::{Wire, says};
use duramen_base::random::Random;
use duramen_wire::resp::Reply;
use std::collections::{HashMap, HashSet};
use std::fs::OpenOptions;
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

const KEYS: u64 = 400;
/// The frames of a store of 64 MB of memory are searched in pieces of this length.
const PIECE_BYTES: usize = 1 << 20;

/// The `INFO persistence` fields.
fn info(wire: &mut Wire) -> HashMap<String, String> {
    let Reply::Bulk(text) = wire.ask(&[b"INFO", b"persistence"]).expect("a reply") else {
        panic!("INFO is a text");
    };
    let text = String::from_utf8(text).expect("text");
    let fields = text.lines().filter_map(|line| line.split_once(':'));
    fields
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .collect()
}

fn number(fields: &HashMap<String, String>, name: &str) -> u64 {
    let text = fields.get(name).unwrap_or_else(|| panic!("no {name}"));
    text.parse().unwrap_or_else(|_| panic!("{name} is {text}"))
}

/// Polls until the fields have the wanted values.
fn wait_for(wire: &mut Wire, what: &str, is: impl Fn(&HashMap<String, String>) -> bool) {
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        let fields = info(wire);
        if is(&fields) {
            return;
        }
        assert!(
            Instant::now() < deadline,
            "60 s passed and still not: {what}: {fields:?}"
        );
        std::thread::park_timeout(Duration::from_millis(5));
    }
}

fn key(number: u64) -> Vec<u8> {
    format!("key {number}").into_bytes()
}

/// A value that can be found on disk.
fn value(number: u64, round: u64) -> Vec<u8> {
    let mark = format!("<{number} of round {round}>");
    mark.bytes().cycle().take(20_000).collect()
}

/// Changes some bytes of these values at all their places in the frames; returns the number of
/// values found.
fn hurt(frames: &Path, values: &[Vec<u8>]) -> usize {
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .open(frames)
        .expect("frames");
    let length = file.metadata().expect("its length").len();
    let numbers: HashMap<&[u8], usize> = values
        .iter()
        .enumerate()
        .map(|(number, value)| (&value[..64], number))
        .collect();
    let mut at = 0;
    let mut found = HashSet::new();
    let mut piece = vec![0; PIECE_BYTES + 64];
    while at < length {
        let count = file.read_at(&mut piece, at).expect("frames can be read");
        let mut hurt_here = HashSet::new();
        for (place, part) in piece[..count].windows(64).enumerate() {
            // Each begins with its mark.
            let Some(number) = (part[0] == b'<').then(|| numbers.get(part)).flatten() else {
                continue;
            };
            if hurt_here.insert(*number) {
                let at = at + place as u64 + 5_000;
                file.write_all_at(b"changed", at)
                    .expect("frames can be written");
            }
        }
        found.extend(hurt_here);
        at += PIECE_BYTES as u64;
    }
    found.len()
}

/// Ends running threads on drop.
struct End<'a>(&'a AtomicBool);

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

#[test]
fn damage_under_a_running_server_is_repaired() {
    for mode in ["buffered", "direct"] {
        let folder = tempfile::tempdir().expect("a folder");
        let frames = folder.path().join("data/frames");
        let mut random = Random::new(7);
        let server = Server::start(folder.path(), mode, &mut random);
        let mut wire = Wire::connect(server.port).expect("it serves");
        let set = |wire: &mut Wire, number: u64, round: u64| {
            let reply = wire.ask(&[b"SET", &key(number), &value(number, round)]);
            assert!(says(&reply.expect("a reply"), "OK"));
        };
        (0..KEYS).for_each(|number| set(&mut wire, number, 0));
        wait_for(&mut wire, "frames", |fields| {
            number(fields, "duramen_frames_used") >= 3
        });
        let values: Vec<Vec<u8>> = (0..KEYS / 4).map(|number| value(number, 0)).collect();
        // A frame is counted when it is assigned, and written a little later.
        let deadline = Instant::now() + Duration::from_secs(60);
        while hurt(&frames, &values) <= 10 {
            assert!(Instant::now() < deadline, "hardly any value is in a frame");
        }
        // Other clients write meanwhile.
        let done = AtomicBool::new(false);
        let rounds = std::thread::scope(|scope| {
            // Also if the awaited state never comes: the scope waits for the writer before the test
            // reports it.
            let end = End(&done);
            let writer = scope.spawn(|| {
                let mut wire = Wire::connect(server.port).expect("it serves");
                let mut round = 1;
                while !done.load(Ordering::Acquire) {
                    (KEYS - 50..KEYS).for_each(|number| set(&mut wire, number, round));
                    round += 1;
                }
                round - 1
            });
            let Reply::Integer(count) = wire.ask(&[b"DURAMEN.SCRUB"]).expect("a reply") else {
                panic!("SCRUB tells how many frames there are");
            };
            assert!(count >= 3, "{count}");
            wait_for(&mut wire, "the end of the scrub", |fields| {
                number(fields, "duramen_scrub_left") == 0
            });
            wait_for(&mut wire, "repair", |fields| {
                number(fields, "duramen_bad_frames") > 0
                    && number(fields, "duramen_scrub_pending") == 0
            });
            drop(end);
            writer.join().expect("the writer ends")
        });
        let fields = info(&mut wire);
        assert_eq!(fields["duramen_disk_state"], "ok");
        assert_eq!(
            fields["duramen_bad_frames"],
            fields["duramen_scrub_repaired"]
        );
        let log = server.log();
        assert!(
            log.contains("is damaged") && log.contains("is repaired"),
            "{log}"
        );

        drop((wire, server)); // SIGKILL
        let server = Server::start(folder.path(), mode, &mut random);
        let mut wire = Wire::connect(server.port).expect("it serves");
        for number in 0..KEYS {
            let round = if number < KEYS - 50 { 0 } else { rounds };
            let found = wire.ask(&[b"GET", &key(number)]).expect("a reply");
            assert_eq!(found, Reply::Bulk(value(number, round)), "key {number}");
        }
    }
}
