//! Ranges that are mostly on flash: exports, counts and purges leave nothing out, whatever is
//! demoted and cleaned meanwhile, and report a failing device.

use crate::durable::world::{Consumer, TABLE, hook_up};
use crate::flash::device::{Flash, MIB, check_budget, key, value, write};
use duramen_base::ids::{KeyRange, RouteHash};
use duramen_base::planted::{Bug, carry, with_bug};
use duramen_base::random::Random;
use duramen_engine::flash::FlashOptions;
use duramen_engine::{DirtyKey, Error, LogOptions, MARK_BYTES, Options, Session, Store};
use duramen_format::entry::{self, Kind};
use duramen_format::hash::KeyHasher;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;

const SEED: u64 = 77;
const KEYS: u64 = 24_000;
const VALUE_BYTES: usize = 1000;
/// Half of all slots; begins and ends inside a slot.
const RANGE: KeyRange = KeyRange::new(
    RouteHash(RouteHash::first_of_slot(4000).0 + 12_345),
    RouteHash(RouteHash::last_of_slot(12_000).0 - 54_321),
);

/// A store with a log, and memory for a fifth of its data.
pub struct Tiered {
    pub store: Arc<Store>,
    pub session: Session,
    pub flash: Arc<Flash>,
    pub consumer: Arc<Mutex<Consumer>>,
    hasher: KeyHasher,
}

impl Tiered {
    pub fn new(memory: u64, flash_bytes: u64, cleaners: usize) -> Tiered {
        let flash = Flash::new(flash_bytes);
        let store = Store::new(Options {
            tiny: true,
            huge_pages: false,
            heads: 1,
            cleaners,
            hash_seed: Some(SEED),
            log: Some(LogOptions::new(7)),
            flash: Some(FlashOptions {
                device: flash.clone(),
            }),
            ..Options::new(memory)
        })
        .unwrap();
        let consumer = Arc::<Mutex<Consumer>>::default();
        hook_up(&store, &consumer);
        Tiered {
            session: store.session().unwrap(),
            store,
            flash,
            consumer,
            hasher: KeyHasher::new(SEED),
        }
    }

    /// A store with `KEYS` keys, four fifths of them on flash.
    fn filled(cleaners: usize) -> Tiered {
        let mut tiered = Tiered::new(6 * MIB, 64 * MIB, cleaners);
        tiered.fill();
        tiered
    }

    fn fill(&mut self) {
        for n in 0..KEYS {
            self.put(n, 0);
        }
        let stats = self.store.stats();
        let cold = stats.flash.live_bytes.max(stats.flash.used_bytes);
        assert!(cold > 16 * MIB, "{:?}", stats.flash);
        check_budget(&self.store);
    }

    pub fn put(&mut self, n: u64, round: u64) {
        let value = value(n, round, VALUE_BYTES);
        write(&mut self.session, &key(n), &value).unwrap();
    }

    fn remove(&mut self, n: u64) {
        let mut guard = self.session.pin();
        let hash = guard.hash(&key(n));
        assert!(guard.remove(TABLE, hash, &key(n)).unwrap().before.is_some());
    }

    pub fn is_in(&self, range: &KeyRange, n: u64) -> bool {
        range.contains(self.hasher.route(&key(n)))
    }

    fn is_inside(&self, n: u64) -> bool {
        self.is_in(&RANGE, n)
    }

    pub fn read(&mut self, n: u64) -> Option<Vec<u8>> {
        crate::flash::device::read(&mut self.session, &key(n)).unwrap()
    }
}

/// The content of a target: the highest version of each key, and its value if that is an object.
pub type Copied = BTreeMap<Vec<u8>, (u64, Option<Vec<u8>>)>;

/// Takes over exported entries; returns their number.
pub fn take_over(copied: &mut Copied, exported: &mut Vec<u8>) -> u64 {
    let (mut at, mut count) = (0, 0);
    while at < exported.len() {
        let entry = entry::parse(&exported[at..]).unwrap();
        at += entry.padded_bytes;
        count += 1;
        let known = copied.entry(entry.key.to_vec()).or_default();
        if (entry.version, entry.kind == Kind::Tombstone) >= (known.0, known.1.is_none()) {
            let value = (entry.kind == Kind::Object).then(|| entry.value.to_vec());
            *known = (entry.version, value);
        }
    }
    exported.clear();
    count
}

pub fn alive(copied: Copied) -> BTreeMap<Vec<u8>, Vec<u8>> {
    let values = copied.into_iter();
    values
        .filter_map(|(key, (_, value))| Some((key, value?)))
        .collect()
}

#[test]
fn a_table_with_few_keys_is_counted() {
    // Most partitions have no buckets.
    let mut tiered = Tiered::new(16 * MIB, 64 * MIB, 0);
    for keys in 0..3 {
        let counted = tiered.store.ranges().count(TABLE, KeyRange::ALL).unwrap();
        assert_eq!(counted.objects, keys);
        write(&mut tiered.session, &key(keys), &value(keys, 1, 100)).unwrap();
    }
}

#[test]
fn an_export_shows_what_is_on_flash_and_reads_each_segment_once() {
    let mut tiered = Tiered::filled(0);
    let mut expected = BTreeMap::new();
    for n in 0..KEYS {
        match n % 10 {
            3 => tiered.put(n, 1),
            7 => tiered.remove(n),
            _ => {}
        }
        if n % 10 != 7 && tiered.is_inside(n) {
            expected.insert(key(n), value(n, u64::from(n % 10 == 3), VALUE_BYTES));
        }
    }
    let reads = tiered.flash.reads.load(Ordering::Relaxed);
    let mut export = tiered.store.ranges().export(TABLE, RANGE);
    let (mut copied, mut out, mut entries) = (Copied::new(), Vec::new(), 0);
    loop {
        let more = export.step(20_000, &mut out).unwrap();
        assert!(out.len() < 20_000 + 2 * 1100 * 40, "{} bytes", out.len());
        entries += take_over(&mut copied, &mut out);
        if !more {
            break;
        }
    }
    assert_eq!(alive(copied), expected);
    assert_eq!(entries, expected.len() as u64, "nothing moved meanwhile");
    let reads = tiered.flash.reads.load(Ordering::Relaxed) - reads;
    let segments = tiered.store.stats().flash.segments;
    assert!(reads <= segments, "{reads} reads of {segments} segments");
}

#[test]
fn counts_and_samples_include_what_is_on_flash() {
    let tiered = Tiered::filled(0);
    let inside = (0..KEYS).filter(|n| tiered.is_inside(*n)).count() as u64;
    let counted = tiered.store.ranges().count(TABLE, RANGE).unwrap();
    assert_eq!(counted.objects, inside);
    let all = tiered.store.ranges().count(TABLE, KeyRange::ALL).unwrap();
    assert_eq!(all.objects, KEYS);
    assert_eq!(all.bytes, tiered.store.stats().live_bytes);
    let sampled = || {
        let parts = tiered.store.ranges().statistics(TABLE).unwrap().parts;
        let entries: u64 = parts.iter().map(|part| part.entries).sum();
        let bytes: u64 = parts.iter().map(|part| part.bytes).sum();
        let empty = parts.iter().filter(|part| part.entries == 0).count();
        (entries, bytes, empty)
    };
    let is_near = |found: u64, real: u64| found.abs_diff(real) < real / 20;
    let (entries, bytes, empty) = sampled();
    assert!(is_near(entries, KEYS) && is_near(bytes, all.bytes) && empty == 0);
    // If no sample can be read, the result is a guess, and no failure.
    tiered.flash.reads_fail.store(true, Ordering::Relaxed);
    let (entries, bytes, _) = sampled();
    assert!(is_near(entries, KEYS) && is_near(bytes, all.bytes));
    let failed = tiered.store.ranges().count(TABLE, RANGE);
    assert_eq!(failed, Err(Error::FlashFailed));
}

#[test]
fn a_device_that_fails_in_the_midst_leaves_nothing_out() {
    let tiered = Tiered::filled(0);
    let expected = (0..KEYS).filter(|n| tiered.is_inside(*n)).count();
    for damages in [false, true] {
        let set = |on: bool| {
            tiered
                .flash
                .reads_fail
                .store(on && !damages, Ordering::Relaxed);
            tiered.flash.damages.store(on && damages, Ordering::Relaxed);
        };
        let mut export = tiered.store.ranges().export(TABLE, RANGE);
        let (mut copied, mut out, mut failures, mut steps) = (Copied::new(), Vec::new(), 0, 0);
        loop {
            steps += 1;
            set(steps % 3 == 0);
            let more = export.step(50_000, &mut out);
            take_over(&mut copied, &mut out);
            match more {
                Ok(true) => {}
                Ok(false) => break,
                Err(error) => {
                    assert_eq!(error, Error::FlashFailed);
                    failures += 1;
                }
            }
        }
        assert!(failures > 10, "{failures} failures");
        assert_eq!(copied.len(), expected);
        // An export that goes on failing never reports its end.
        set(true);
        let mut export = tiered.store.ranges().export(TABLE, RANGE);
        for _ in 0..1000 {
            assert_ne!(export.step(1 << 20, &mut out), Ok(false));
        }
        let keys = (0..KEYS).map(|n| DirtyKey::of_object(&key(n), 9));
        let keys = keys.collect::<Vec<_>>();
        let failed = tiered.store.ranges().export_keys(TABLE, &keys, &mut out);
        assert_eq!(failed, Err(Error::FlashFailed));
        assert_eq!(
            tiered.store.ranges().purge(TABLE, RANGE),
            Err(Error::FlashFailed)
        );
        set(false);
        if !damages {
            // Purged objects are gone: from here on there are fewer.
            drop(copied);
            return a_purge_goes_on(tiered, expected as u64);
        }
    }
}

fn a_purge_goes_on(mut tiered: Tiered, inside: u64) {
    tiered.store.ranges().purge(TABLE, RANGE).unwrap();
    assert_eq!(tiered.store.tables().objects(TABLE), KEYS - inside);
    for n in 0..KEYS {
        let expected = (!tiered.is_inside(n)).then(|| value(n, 0, VALUE_BYTES));
        assert_eq!(tiered.read(n), expected);
    }
}

/// Writes and removes keys of the range, marked by a watch, and others, as fast as possible.
fn disturb(store: &Arc<Store>, stop: &AtomicBool, rounds: &AtomicU64, inside_too: bool) {
    let hasher = KeyHasher::new(SEED);
    let mut session = store.session().unwrap();
    let mut random = Random::new(5);
    while !stop.load(Ordering::Relaxed) {
        let n = random.below(KEYS);
        if !inside_too && RANGE.contains(hasher.route(&key(n))) {
            continue;
        }
        let round = rounds.fetch_add(1, Ordering::Relaxed) + 1;
        if random.below(8) == 0 {
            let mut guard = session.pin();
            let hash = guard.hash(&key(n));
            guard.remove(TABLE, hash, &key(n)).unwrap();
        } else {
            write(&mut session, &key(n), &value(n, round, VALUE_BYTES)).unwrap();
        }
    }
}

/// The present content of a range, as its readers see it.
fn content(tiered: &mut Tiered) -> BTreeMap<Vec<u8>, Vec<u8>> {
    let mut found = BTreeMap::new();
    for n in 0..KEYS {
        if tiered.is_inside(n)
            && let Some(value) = tiered.read(n)
        {
            found.insert(key(n), value);
        }
    }
    found
}

/// A range is copied while its keys, and others, are written, demoted and cleaned. In the end, the
/// exported and the marked keys together equal the content.
fn copy_beside_writers() -> Result<(), String> {
    // Marks for every key, however late this thread takes them; their memory comes on top of that
    // of the data.
    let room = KEYS as usize * (key(KEYS).len() + MARK_BYTES);
    let mut tiered = Tiered::new(6 * MIB + 2 * room as u64, 64 * MIB, 1);
    let watch = tiered.store.ranges().watch(TABLE, RANGE, room).unwrap();
    tiered.fill();
    watch.take();
    let (stop, rounds) = (AtomicBool::new(false), AtomicU64::new(0));
    let mut copied = Copied::new();
    let keys = |dirty: duramen_engine::Dirty| {
        assert!(!dirty.start_again);
        dirty.keys
    };
    thread::scope(|scope| {
        let store = tiered.store.clone();
        scope.spawn(carry(|| disturb(&tiered.store, &stop, &rounds, true)));
        let mut out = Vec::new();
        let mut export = store.ranges().export(TABLE, RANGE);
        while export.step(100_000, &mut out).unwrap() || !out.is_empty() {
            take_over(&mut copied, &mut out);
        }
        // However fast the export was, the writer has worked beside a part of it.
        crate::flash::device::wait_for("writes", || rounds.load(Ordering::Relaxed) > 3000);
        for _ in 0..2 {
            store
                .ranges()
                .export_keys(TABLE, &keys(watch.take()), &mut out)
                .unwrap();
            take_over(&mut copied, &mut out);
        }
        stop.store(true, Ordering::Relaxed);
    });
    tiered.store.quiesce();
    let mut out = Vec::new();
    let last = keys(watch.take());
    tiered
        .store
        .ranges()
        .export_keys(TABLE, &last, &mut out)
        .unwrap();
    take_over(&mut copied, &mut out);
    let (copied, there) = (alive(copied), content(&mut tiered));
    check_budget(&tiered.store);
    if copied == there {
        Ok(())
    } else {
        let differs = |(key, value): &(&Vec<u8>, &Vec<u8>)| copied.get(*key) != Some(*value);
        let lost = there.iter().filter(differs).count();
        Err(format!(
            "{lost} of {} keys differ, {} copied",
            there.len(),
            copied.len()
        ))
    }
}

#[test]
fn what_is_copied_beside_writers_is_what_is_there() {
    copy_beside_writers().unwrap();
}

#[test]
fn a_walk_that_leaves_out_what_is_on_flash_is_found() {
    assert!(with_bug(Bug::WalkLeavesColdOut, copy_beside_writers).is_err());
}

/// A member that is drained, or whose table is spread anew, purges many ranges at once. Each of
/// them once read all of flash.
#[test]
fn many_ranges_are_purged_in_one_pass_over_flash() {
    let slots = |first: u16, last: u16| {
        KeyRange::new(
            RouteHash::first_of_slot(first),
            RouteHash::last_of_slot(last),
        )
    };
    // Every second 32nd of the table, not in order; and all of the table in one range.
    let many: Vec<KeyRange> = (0..16)
        .rev()
        .map(|n| slots(n * 1024, n * 1024 + 511))
        .collect();
    let reads_for = |ranges: &[KeyRange]| {
        let mut tiered = Tiered::filled(1);
        let before = tiered.flash.reads.load(Ordering::Relaxed);
        let mut purge = tiered.store.ranges().begin_purge(TABLE, ranges);
        while purge.step().unwrap() {}
        let reads = tiered.flash.reads.load(Ordering::Relaxed) - before;
        let hasher = KeyHasher::new(SEED);
        let is_gone = |n: u64| {
            ranges
                .iter()
                .any(|range| range.contains(hasher.route(&key(n))))
        };
        let gone = (0..KEYS).filter(|n| is_gone(*n)).count() as u64;
        assert_eq!(
            (purge.purged().objects, tiered.store.tables().objects(TABLE)),
            (gone, KEYS - gone)
        );
        for n in (0..KEYS).step_by(7) {
            let expected = (!is_gone(n)).then(|| value(n, 0, VALUE_BYTES));
            assert_eq!(tiered.read(n), expected, "key {n}");
        }
        reads
    };
    let (whole, parts) = (reads_for(&[KeyRange::ALL]), reads_for(&many));
    assert!(
        whole > 10 && parts <= whole * 3,
        "{parts} reads for 16 ranges, {whole} for one"
    );
}

/// A range is purged while others are written, demoted and cleaned.
fn purge_beside_writers() -> Result<(), String> {
    let mut tiered = Tiered::filled(1);
    let inside = (0..KEYS).filter(|n| tiered.is_inside(*n)).count() as u64;
    let (stop, rounds) = (AtomicBool::new(false), AtomicU64::new(0));
    let purged = thread::scope(|scope| {
        scope.spawn(carry(|| disturb(&tiered.store, &stop, &rounds, false)));
        let purged = tiered.store.ranges().purge(TABLE, RANGE);
        stop.store(true, Ordering::Relaxed);
        purged.unwrap()
    });
    if purged.objects != inside {
        return Err(format!("{} of {inside} went", purged.objects));
    }
    for n in 0..KEYS {
        if tiered.is_inside(n) && tiered.read(n).is_some() {
            return Err(format!("key {n} is still there"));
        }
    }
    let there = (0..KEYS).filter(|n| tiered.read(*n).is_some()).count() as u64;
    assert_eq!(tiered.store.tables().objects(TABLE), there);
    // Counters are exact: the remaining objects take exactly the live bytes.
    let all = tiered.store.ranges().count(TABLE, KeyRange::ALL).unwrap();
    assert_eq!(
        (all.objects, all.bytes),
        (there, tiered.store.stats().live_bytes)
    );
    Ok(())
}

#[test]
fn a_range_goes_from_memory_and_flash_and_nothing_else() {
    purge_beside_writers().unwrap();
}

#[test]
fn a_purge_that_leaves_out_what_is_on_flash_is_found() {
    assert!(with_bug(Bug::WalkLeavesColdOut, purge_beside_writers).is_err());
}
