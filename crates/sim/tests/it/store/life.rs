//! Lives of a store on one simulated disk.

use crate::store::model::{End, Model};
use duramen::{Level, Options, Store};
use duramen_base::planted::{Bug, has_bug};
use duramen_engine::{FlipPart, Guard, Session, TableId};
use duramen_sim::Random;
use duramen_sim::disk::{Fault, SimDisk};
use std::sync::Arc;

const T: TableId = TableId::DEFAULT;
const BLOCK: usize = 4096;
pub const FAULTS: [Fault; 3] = [Fault::PowerCut, Fault::PowerCutWithin, Fault::Kill];

/// A kind of step that a history has more of.
#[derive(Clone, Copy, Debug)]
enum More {
    Removing,
    Cleaning,
    /// A bit of this part flips in memory, in an entry that has no other flipped bit.
    Flipping(FlipPart),
}

/// The properties of a history.
#[derive(Clone, Debug)]
pub struct Setting {
    seed: u64,
    steps: u64,
    keys: u64,
    value_bytes_max: u64,
    /// Beside the 16 kinds of steps, so many more are this one.
    more: (u64, More),
}

impl Setting {
    pub fn short(seed: u64) -> Setting {
        Setting {
            seed,
            steps: 25,
            keys: 5,
            value_bytes_max: 3_000,
            more: (0, More::Removing),
        }
    }

    pub fn long(seed: u64) -> Setting {
        Setting {
            seed,
            steps: 400,
            keys: 60,
            value_bytes_max: 400_000,
            more: (0, More::Removing),
        }
    }

    /// Few keys, small values, many reads: for the state that is visible between commits.
    pub fn hot(seed: u64) -> Setting {
        Setting {
            steps: 120,
            keys: 3,
            more: (4, More::Removing),
            ..Setting::short(seed)
        }
    }

    /// Few live data, much cleaning, short lives.
    pub fn cleaned(seed: u64) -> Setting {
        Setting {
            steps: 200,
            keys: 12,
            more: (16, More::Cleaning),
            ..Setting::long(seed)
        }
    }
}

impl Setting {
    /// Much cleaning, and bits of this part of entries that flip in memory.
    pub fn flipped(seed: u64, part: FlipPart) -> Setting {
        Setting {
            steps: 150,
            more: (10, More::Flipping(part)),
            ..Setting::cleaned(seed)
        }
    }
}

fn options() -> Options {
    let mut options = Options::new("", 64 << 20);
    options.engine.heads = 2;
    options.engine.cleaners = 0;
    options.engine.huge_pages = true;
    options.engine.hash_seed = Some(1);
    options.wal_bytes = 2 << 20;
    options
}

/// A disk, the model of its contents, and random numbers.
pub struct Life {
    setting: Setting,
    disk: SimDisk,
    model: Model,
    random: Random,
    next_value: u64,
    /// Bits that flipped in memory.
    pub flips: u64,
}

impl Life {
    pub fn new(setting: &Setting, cut_seed: u64) -> Life {
        Life {
            setting: setting.clone(),
            disk: SimDisk::new(cut_seed, 1 << 30),
            model: Model::default(),
            random: Random::new(setting.seed),
            next_value: 1,
            flips: 0,
        }
    }

    /// Operations of the disk in one whole life.
    pub fn count_operations(setting: &Setting) -> u64 {
        let mut life = Life::new(setting, 0);
        assert!(life.live(), "nothing goes wrong");
        life.disk.operations()
    }

    /// One life that ends at an operation of the disk; then it is checked.
    pub fn live_and_die(&mut self, operation: u64, fault: Fault) {
        self.disk.inject(operation, fault);
        self.live();
        self.die(fault);
    }

    /// One life that ends at some operation, or in order.
    pub fn live_until_cut(&mut self) {
        let fault = FAULTS[self.random.below(3) as usize];
        let span = 1 + self.random.below(8 * self.setting.steps);
        let operation = self.disk.operations() + self.random.below(span);
        self.disk.inject(operation, fault);
        self.live();
        self.die(fault);
    }

    fn die(&mut self, fault: Fault) {
        if !self.disk.is_down() {
            self.disk.cut_power(); // the history ended before the fault
        }
        self.disk.restart();
        let end = match fault {
            Fault::Kill => End::Kill,
            _ => End::PowerCut,
        };
        self.settle(end);
    }

    fn open(&self) -> Result<Arc<Store>, duramen::Error> {
        Store::open_on(Arc::new(self.disk.clone()), options(), false, &|_| {})
    }

    /// After a crash the store opens, and every key has an allowed state.
    fn settle(&mut self, end: End) {
        let store = self.open().expect("it opens after a crash");
        let keys: Vec<Vec<u8>> = (0..self.setting.keys).map(key).collect();
        let mut session = store.engine().session().expect("a session");
        for key in &keys {
            let found = read(&session.pin(), key);
            self.model.settle(key, found, end);
        }
        for pair in 0..3 {
            let [a, b] = pair_keys(pair);
            let guard = session.pin();
            let (found_a, found_b) = (read(&guard, &a), read(&guard, &b));
            assert_eq!(found_a, found_b, "a group is whole or not there");
            self.model.settle(&a, found_a, end);
            self.model.settle(&b, found_b, end);
        }
    }

    /// One life that ends in order or by a cut; then bits flip on the medium, one or a few at once,
    /// each time on a copy of it. Everything is unchanged; only for more than one bit the
    /// store may refuse to open. Returns the number of refusals.
    pub fn live_and_rot(&mut self, times: u64) -> u64 {
        if self.random.below(2) == 0 {
            self.live_until_cut();
        } else {
            assert!(self.live(), "nothing goes wrong");
        }
        let whole = self.disk.clone();
        let mut refused = 0;
        for _ in 0..times {
            self.disk = whole.copy(self.random.below(u64::MAX));
            let bits = self.rot();
            match self.open() {
                Ok(store) => assert_same(&store, &self.model),
                Err(error) if bits == 1 && !has_bug(Bug::DamageIsSkipped) => {
                    panic!("refused for one flipped bit: {error}")
                }
                Err(duramen::Error::Damaged { .. } | duramen::Error::Disk(_)) => refused += 1,
                Err(error) => panic!("not the words for damage: {error}"),
            }
        }
        self.disk = whole;
        refused
    }

    /// Flips one bit among bytes that were written, or two or three near each other. Returns their
    /// number.
    fn rot(&mut self) -> u64 {
        let name =
            ["frames", "frames", "frames", "wal", "superblock"][self.random.below(5) as usize];
        let bytes = self.disk.bytes_of(name);
        let written: Vec<usize> = (0..bytes.len().div_ceil(BLOCK))
            .filter(|block| {
                bytes[block * BLOCK..]
                    .iter()
                    .take(BLOCK)
                    .any(|byte| *byte != 0)
            })
            .collect();
        let bits = 1 + self.random.below(3);
        let Some(block) = written.get(self.random.below(written.len().max(1) as u64) as usize)
        else {
            return bits;
        };
        let at = block * BLOCK + self.random.below(BLOCK as u64) as usize;
        let first = self.random.below(8);
        for n in 0..bits {
            self.disk.flip(name, at as u64, ((first + 3 * n) % 8) as u8);
        }
        bits
    }

    /// After an orderly shutdown the contents are exactly those of the model.
    pub fn check(&mut self) {
        assert!(self.live(), "nothing goes wrong");
        let store = self.open().expect("it opens after an orderly end");
        assert_same(&store, &self.model);
        let mut session = store.engine().session().expect("a session");
        assert!(store.stats().expect("a directory").clean_start);
        session.pin();
    }

    /// One life; returns whether it had an orderly end.
    fn live(&mut self) -> bool {
        let Ok(store) = self.open() else {
            assert!(self.disk.is_down(), "it opens unless the power fails");
            return false;
        };
        let mut sessions = [(); 2].map(|()| store.engine().session().expect("a session"));
        for _ in 0..self.setting.steps {
            if self.disk.is_down() || !self.step(&store, &mut sessions) {
                return false;
            }
        }
        drop(sessions);
        if store.close().is_err() {
            assert!(self.disk.is_down());
            return false;
        }
        self.model.promise_all(true);
        true
    }

    /// One step; returns false if the disk is down.
    fn step(&mut self, store: &Arc<Store>, sessions: &mut [Session; 2]) -> bool {
        let which = self.random.below(2) as usize;
        let session = &mut sessions[which];
        let (count, more) = self.setting.more;
        let step = match self.random.below(16 + count) {
            16.. => match more {
                More::Removing => 6,
                More::Cleaning => 12 + self.random.below(3),
                More::Flipping(part) => match self.random.below(2) {
                    0 => 12 + self.random.below(3),
                    _ => {
                        self.flip(store, part);
                        return true;
                    }
                },
            },
            step => step,
        };
        match step {
            0..=5 => self.write(session),
            6 => self.remove(session),
            7 => self.write_group(session),
            8..=10 => return self.commit(store, Level::Synced),
            11 => return self.commit(store, Level::Buffered),
            12 | 13 => return store.background_step().is_ok(),
            14 => drop(store.engine().clean_step(1 << 20)),
            _ => return self.read_and_wait(store, which, sessions),
        }
        true
    }

    fn flip(&mut self, store: &Arc<Store>, part: FlipPart) {
        let random = self.random.below(u64::MAX);
        self.flips += u64::from(store.engine().flips().some(part, random));
    }

    fn write(&mut self, session: &mut Session) {
        let key = key(self.random.below(self.setting.keys));
        let value = self.value(self.setting.value_bytes_max);
        let mut guard = session.pin();
        let hash = guard.hash(&key);
        if let Ok(outcome) = guard.write(T, hash, &key, &value, None) {
            let version = outcome.after.expect("written");
            self.model.write(&key, self.next_value, version);
        }
    }

    fn remove(&mut self, session: &mut Session) {
        let key = key(self.random.below(self.setting.keys));
        let mut guard = session.pin();
        let hash = guard.hash(&key);
        if let Ok(outcome) = guard.remove(T, hash, &key)
            && outcome.before.is_some()
        {
            self.model.remove(&key);
        }
    }

    fn write_group(&mut self, session: &mut Session) {
        let keys = pair_keys(self.random.below(3));
        let value = self.value(3_000); // less than the room that a transaction begins with
        let mut guard = session.pin();
        let hashes = keys.clone().map(|key| guard.hash(&key));
        if guard.lock_keys(&hashes.map(|hash| (T, hash))).is_err() {
            return;
        }
        for (key, hash) in keys.iter().zip(hashes) {
            match guard.write(T, hash, key, &value, None) {
                Ok(outcome) => {
                    let version = outcome.after.expect("written");
                    self.model.write(key, self.next_value, version);
                }
                Err(error) => panic!(
                    "a group was refused half way: {error} down {}",
                    self.disk.is_down()
                ),
            }
        }
        guard.unlock_keys();
    }

    /// A value: its number, then some more bytes.
    fn value(&mut self, bytes_max: u64) -> Vec<u8> {
        self.next_value += 1;
        let bytes = 8 + self.random.below(bytes_max) as usize;
        let mut value = vec![self.next_value as u8; bytes];
        value[..8].copy_from_slice(&self.next_value.to_le_bytes());
        value
    }

    fn commit(&mut self, store: &Store, level: Level) -> bool {
        let log = store.log().expect("a durable store");
        let position = store.engine().log().expect("it has one").appended();
        assert!(log.try_commit_here(level), "nobody else commits");
        if log.reached(&position) < level {
            assert!(log.failure().is_some() || log.disk() != duramen::DiskState::Ok);
            return false;
        }
        self.model.promise_all(level == Level::Synced);
        true
    }

    /// A reader is shown a key when its position is synced: that state is a promise.
    fn read_and_wait(&mut self, store: &Store, which: usize, sessions: &mut [Session; 2]) -> bool {
        let key = key(self.random.below(self.setting.keys));
        let session = &mut sessions[which];
        let guard = session.pin();
        let found = read(&guard, &key);
        assert_eq!(found, self.model.is(&key), "a read shows the present");
        let position = guard.order().take_position();
        drop(guard);
        let log = store.log().expect("a durable store");
        if log.reached(&position) == Level::Synced {
            self.model.promise_key(&key); // the reader need not wait: so the state must survive
        }
        true
    }
}

fn key(number: u64) -> Vec<u8> {
    format!("key {number}").into_bytes()
}

fn pair_keys(number: u64) -> [Vec<u8>; 2] {
    ["a", "b"].map(|side| format!("pair {number}{side}").into_bytes())
}

/// The number at the start of a key's value.
fn read(guard: &Guard<'_>, key: &[u8]) -> Option<u64> {
    let object = guard
        .read(T, guard.hash(key), key)
        .expect("the table is there");
    object.map(|object| {
        let (number, rest) = object.value.split_first_chunk().expect("eight bytes");
        let number = u64::from_le_bytes(*number);
        assert!(
            rest.iter().all(|byte| *byte == number as u8),
            "a whole value"
        );
        number
    })
}

fn assert_same(store: &Arc<Store>, model: &Model) {
    let mut session = store.engine().session().expect("a session");
    for key in model.keys() {
        assert_eq!(read(&session.pin(), key), model.is(key));
    }
}
