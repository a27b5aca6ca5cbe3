//! Bits that flip at rest under a running store: scrubbing finds them, the data are written
//! elsewhere, and after a power cut all of it is there. docs/protocols.md, "Damage at rest".

use duramen::internals::{Repair, RepairStep};
use duramen::{Error, Level, Options, Store};
use duramen_base::test_tier;
use duramen_engine::TableId;
use duramen_format::frame::{Slot, State};
use duramen_format::segment::Kind;
use duramen_sim::Random;
use duramen_sim::disk::{Fault, SimDisk};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

const T: TableId = TableId::DEFAULT;
const KEYS: u64 = 40;

/// A running store, and the values in it.
struct Running {
    disk: SimDisk,
    store: Option<Arc<Store>>,
    values: BTreeMap<u64, Vec<u8>>,
    random: Random,
    events: Arc<Mutex<Vec<Repair>>>,
}

fn options() -> Options {
    let mut options = Options::new("", 64 << 20);
    options.engine.heads = 1;
    options.engine.cleaners = 0;
    options.engine.huge_pages = false;
    options.engine.hash_seed = Some(1);
    options.wal_bytes = 2 << 20;
    options
}

impl Running {
    fn new(seed: u64) -> Running {
        let mut running = Running {
            disk: SimDisk::new(seed, 1 << 30),
            store: None,
            values: BTreeMap::new(),
            random: Random::new(seed),
            events: Arc::default(),
        };
        running.open().expect("a new store");
        running
    }

    fn open(&mut self) -> Result<(), Error> {
        let store = Store::open_on(Arc::new(self.disk.clone()), options(), false, &|_| {})?;
        let events = self.events.clone();
        store
            .directory()
            .expect("a directory")
            .watch_repairs(move |event| events.lock().unwrap().push(event.clone()));
        self.store = Some(store);
        Ok(())
    }

    fn store(&self) -> &Arc<Store> {
        self.store.as_ref().expect("it runs")
    }

    /// Writes some values durably.
    fn write_bytes(&mut self, count: u64, bytes: usize) {
        let store = self.store().clone();
        let mut session = store.engine().session().expect("a session");
        for _ in 0..count {
            let number = self.random.below(KEYS);
            let value = vec![self.random.below(256) as u8; bytes];
            let key = number.to_le_bytes();
            let mut guard = session.pin();
            let hash = guard.hash(&key);
            guard
                .write(T, hash, &key, &value, None)
                .expect("there is room");
            drop(guard);
            assert!(store.log().unwrap().try_commit_here(Level::Synced));
            self.values.insert(number, value);
        }
    }

    /// Writes values as large as they may be: some segments are closed by it.
    fn write(&mut self, count: u64) {
        let bytes = 100_000 + self.random.below(300_000) as usize;
        self.write_bytes(count, bytes);
    }

    /// The slot, in the frames' file, of a control segment with a first part in a frame and the
    /// rest in the write-ahead log.
    fn control_slot(&self) -> Option<usize> {
        let bytes = self.disk.bytes_of("frames");
        let slots = bytes[..1 << 20].chunks_exact(8192).map(Slot::decode);
        let newest = slots
            .enumerate()
            .filter_map(|(n, slot)| Some((n, slot.ok()?)));
        let control =
            newest.filter(|(_, slot)| slot.kind == Kind::Control && slot.state == State::Open);
        control
            .max_by_key(|(_, slot)| slot.stamp)
            .map(|(n, _)| n * 8192)
    }

    /// Scrubs and repairs until the disk is down or refuses.
    fn repair_as_far_as_it_goes(&self) {
        let frames = self.store().scrub().expect("it has a directory");
        for _ in 0..frames {
            let _ = self.store().directory().expect("a directory").scrub_step();
        }
        for _ in 0..200 {
            let _ = self.store().background_step();
        }
    }

    /// Runs background steps until no work is left.
    fn settle(&self) {
        for _ in 0..10_000 {
            if !self.store().background_step().expect("the disk works") {
                return;
            }
        }
        panic!("the background comes to no end");
    }

    /// The offsets in a file of a value of which there is one good copy.
    fn place_of(&self, file: &str, value: &[u8]) -> Vec<usize> {
        let bytes = self.disk.bytes_of(file);
        let mut found = Vec::new();
        let mut from = 0;
        while let Some(at) = bytes[from..]
            .windows(64)
            .position(|part| part == &value[..64])
        {
            found.push(from + at);
            from += at + value.len();
        }
        found
    }

    /// Scrubs all frames once, and repairs.
    fn scrub(&self) {
        let frames = self.store().scrub().expect("it has a directory");
        for _ in 0..frames {
            self.store()
                .directory()
                .expect("a directory")
                .scrub_step()
                .expect("scrubbing has no errors");
        }
        assert_eq!(self.store().stats().unwrap().scrub.left, 0);
    }

    /// Cuts the power; after it all values are there.
    fn cut_and_check(&mut self) {
        self.disk.cut_power();
        self.store = None;
        self.disk.restart();
        self.open().expect("it opens");
        self.check();
    }

    fn check(&self) {
        let mut session = self.store().engine().session().expect("a session");
        let guard = session.pin();
        for (number, value) in &self.values {
            let key = number.to_le_bytes();
            let found = guard.read(T, guard.hash(&key), &key).expect("the table");
            assert!(
                found.is_some_and(|object| object.value == &value[..]),
                "key {number}"
            );
        }
    }

    fn count(&self, is: fn(&RepairStep) -> bool) -> usize {
        let events = self.events.lock().unwrap();
        events.iter().filter(|event| is(&event.step)).count()
    }
}

/// A store with several closed segments in frames.
fn with_frames(seed: u64) -> Running {
    let mut running = Running::new(seed);
    running.write(60);
    running.settle();
    assert!(running.store().stats().unwrap().frames_used > 3);
    running
}

/// Damages a place in the frames that holds part of a live value; returns the place.
fn hurt(running: &mut Running) -> usize {
    let numbers: Vec<u64> = running.values.keys().copied().collect();
    loop {
        let number = numbers[running.random.below(numbers.len() as u64) as usize];
        let mut value = number.to_le_bytes().to_vec();
        value.extend_from_slice(&running.values[&number]);
        let places = running.place_of("frames", &value);
        if let [at] = places[..] {
            // Two bits: a start corrects one.
            running.disk.flip("frames", at as u64 + 50, 3);
            running.disk.flip("frames", at as u64 + 50, 6);
            return at;
        }
    }
}

#[test]
fn a_flipped_bit_is_found_and_its_segment_moved() {
    for seed in 0..test_tier::runs(1, 3) {
        let mut running = with_frames(seed);
        hurt(&mut running);
        // Without a scrub the damage is noticed at the next start, which refuses the data.
        let unrepaired = running.disk.copy(1);
        running.scrub();
        let before = running.store().stats().unwrap();
        assert_eq!(before.bad_frames, 1);
        running.settle();
        let after = running.store().stats().unwrap();
        assert_eq!(
            (after.scrub_repaired, after.scrub_pending, after.scrub_lost),
            (1, 0, 0)
        );
        assert!(
            after.is_sound() && after.quarantined_frames == 1,
            "{after:?}"
        );
        assert_eq!(
            running.count(|step| matches!(step, RepairStep::Found { .. })),
            1
        );
        assert_eq!(
            running.count(|step| matches!(step, RepairStep::Repaired { .. })),
            1
        );
        running.check();
        running.cut_and_check();
        running.write(20);
        running.scrub();
        let clean = running.store().stats().unwrap();
        assert_eq!(
            clean.bad_frames,
            0,
            "{seed} {:?}",
            running.events.lock().unwrap()
        );

        unrepaired.restart();
        let refused = Store::open_on(Arc::new(unrepaired), options(), false, &|_| {});
        assert!(matches!(refused, Err(Error::Damaged { .. })));
    }
}

/// Everything at once: damage again and again, in fresh survivors too, between writes; the power
/// fails when all is repaired.
#[test]
fn damage_under_writes_and_in_survivors() {
    for seed in 10..10 + test_tier::runs(1, 2) {
        let mut running = with_frames(seed);
        for round in 0..4 {
            hurt(&mut running);
            running.write(3);
            running.scrub();
            if round % 2 == 0 {
                hurt(&mut running);
                running.write(2); // the pass is running
            }
            running.settle();
        }
        running.scrub();
        running.settle();
        let stats = running.store().stats().unwrap();
        assert!(stats.bad_frames >= 4 && stats.is_sound(), "{stats:?}");
        assert_eq!(stats.scrub_repaired, stats.bad_frames);
        running.cut_and_check();
    }
}

/// Until the repair is done, a power cut has the same result as without it: no damaged data are
/// served, and nothing wrong is shown. After the repair, a power cut at any moment loses nothing.
#[test]
fn a_power_cut_at_any_moment_of_a_repair() {
    let mut refused = 0;
    let mut opened = 0;
    for operation in 0..200 {
        let mut running = Running::new(3);
        running.write_bytes(16, 300_000);
        running.settle();
        hurt(&mut running);
        let start = running.disk.operations();
        running
            .disk
            .inject(start + operation, Fault::PowerCutWithin);
        running.repair_as_far_as_it_goes();
        let ended = !running.disk.is_down();
        let repaired = running.count(|step| matches!(step, RepairStep::Repaired { .. })) > 0;
        if ended {
            running.disk.cut_power();
        }
        running.store = None;
        running.disk.restart();
        match running.open() {
            Ok(()) => {
                opened += 1;
                running.check();
            }
            Err(Error::Damaged { .. }) if !repaired => refused += 1,
            Err(error) => panic!("operation {operation}: {error}"),
        }
        if ended {
            assert!(refused > 0 && opened > 0, "{refused} {opened}");
            return;
        }
    }
    panic!("a repair takes that many operations?");
}

/// An error of the device at a frame: the frame is never used again.
#[test]
fn a_frame_that_cannot_be_read_is_left_alone() {
    let mut running = with_frames(21);
    let at = hurt(&mut running);
    running.disk.make_unreadable("frames", at as u64, 1);
    running.scrub();
    running.settle();
    let stats = running.store().stats().unwrap();
    assert_eq!(
        (
            stats.bad_frames,
            stats.scrub_repaired,
            stats.quarantined_frames
        ),
        (1, 1, 1)
    );
    let writes_before = running.disk.trace().len();
    running.write(200);
    running.settle();
    let trace = running.disk.trace();
    let touched = trace[writes_before..].iter().filter_map(|line| {
        let (from, length) = line.split_once("frames ")?.1.split_once('+')?;
        Some(
            from.parse::<usize>().ok()?
                ..from.parse::<usize>().ok()? + length.parse::<usize>().ok()?,
        )
    });
    let touched: Vec<_> = touched.collect();
    assert!(touched.len() > 10);
    assert!(touched.iter().all(|range| !range.contains(&at)));
    assert_eq!(running.store().stats().unwrap().bad_frames, 1);
    running.cut_and_check();
}

/// The slot that describes a frame's contents is as much a part of it as the data.
#[test]
fn a_damaged_slot_is_found() {
    let mut running = with_frames(22);
    let frames = running.store().stats().unwrap().frames_used;
    // Both slots of all frames in use; the first frames are used first.
    let mut hit = 0;
    for slot in 0..2 * frames {
        let at = slot * 8192 + 100;
        if running.disk.bytes_of("frames")[slot as usize * 8192..][..4] == *b"DFRM" {
            running.disk.flip("frames", at, 1);
            hit += 1;
        }
    }
    assert!(hit >= 3);
    running.scrub();
    running.settle();
    let stats = running.store().stats().unwrap();
    assert!(stats.bad_frames >= 3 && stats.is_sound(), "{stats:?}");
    running.cut_and_check();
}

/// The control segment in its frame: the log continues in a new one.
#[test]
fn a_damaged_control_segment_has_a_successor() {
    let mut running = with_frames(30);
    // Small commits fill the write-ahead log until the segment that keeps its tail from moving, the
    // control segment, goes to a frame in part.
    let control = (0..200).find_map(|_| {
        running.write_bytes(2, 50_000);
        running.settle();
        running.control_slot()
    });
    let control = control.expect("a control segment came to a frame");
    running.disk.flip("frames", control as u64 + 40, 0);
    running.scrub();
    running.settle();
    let stats = running.store().stats().unwrap();
    assert_eq!(
        (stats.bad_frames, stats.scrub_repaired, stats.scrub_pending),
        (1, 1, 0)
    );
    running.cut_and_check();
}

/// An open segment with a first part in a frame: it is closed and moved.
#[test]
fn a_damaged_open_segment_is_closed_and_moved() {
    let mut running = with_frames(40);
    running.write(2);
    let stats = running.store().stats().unwrap();
    let numbers: Vec<u64> = running.values.keys().copied().collect();
    // The values written last are in the open segment, directly in its frame: they are large.
    let mut hurt = 0;
    for number in numbers {
        let mut value = number.to_le_bytes().to_vec();
        value.extend_from_slice(&running.values[&number]);
        for at in running.place_of("frames", &value) {
            running.disk.flip("frames", at as u64 + 64, 5);
            hurt += 1;
        }
    }
    assert!(hurt > 3);
    running.scrub();
    running.settle();
    let after = running.store().stats().unwrap();
    assert!(after.bad_frames > 2 && after.is_sound(), "{after:?}");
    assert!(after.commits > stats.commits);
    running.check();
    running.cut_and_check();
}

/// No space for survivors: the repair waits, the statistics show it, and it continues when there is
/// space.
#[test]
fn a_repair_on_a_full_disk_waits_for_room() {
    let mut running = with_frames(50);
    hurt(&mut running);
    let now = running.disk.operations();
    for operation in now..now + 2000 {
        running.disk.inject(operation, Fault::Full);
    }
    // Step by step; each failed step is tried again.
    running.repair_as_far_as_it_goes();
    let stats = running.store().stats().unwrap();
    assert_eq!(
        (stats.bad_frames, stats.scrub_pending, stats.scrub_repaired),
        (1, 1, 0)
    );
    running.check();
    running.disk.restart(); // drops the faults
    running.settle();
    let stats = running.store().stats().unwrap();
    assert!(stats.is_sound() && stats.scrub_repaired == 1, "{stats:?}");
    running.write(3);
    running.cut_and_check();
}

/// An orderly shutdown repairs the known damage: memory still has the data.
#[test]
fn an_orderly_end_leaves_nothing_damaged() {
    let mut running = with_frames(60);
    hurt(&mut running);
    running.scrub();
    running.store().close().expect("the disk works");
    running.store = None;
    running.disk.restart();
    running.open().expect("it opens");
    running.check();
}
