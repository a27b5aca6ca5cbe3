//! A device in memory that can be made to fail, and a store with little memory on it.

use duramen_engine::flash::{Device, SECTOR_BYTES};
use duramen_engine::{Cold, Error, Fetched, FlashOptions, Guard, Options, Session, Store, TableId};
use std::collections::{BTreeMap, HashSet};
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, RwLock};
use std::thread::ThreadId;
use std::time::{Duration, Instant};

pub const TABLE: TableId = TableId::DEFAULT;
pub const MIB: u64 = 1 << 20;
/// No wait takes longer on a busy machine, unless it never ends.
pub const PATIENCE: Duration = Duration::from_secs(300);

pub struct Flash {
    bytes: RwLock<Vec<u8>>,
    pub reads_fail: AtomicBool,
    pub writes_fail: AtomicBool,
    /// A write is reported as done, but the earlier data stay.
    pub forgets: AtomicBool,
    /// Each sector that is read has a bit flipped.
    pub damages: AtomicBool,
    pub reads: AtomicU64,
    /// Reads wait while this is set.
    pub stands_still: AtomicBool,
    /// Writes wait while this is set.
    pub writes_stand_still: AtomicBool,
    /// The threads that have written.
    pub writers: RwLock<HashSet<ThreadId>>,
}

impl Flash {
    pub fn new(bytes: u64) -> Arc<Flash> {
        Arc::new(Flash {
            bytes: RwLock::new(vec![0; bytes as usize]),
            reads_fail: AtomicBool::new(false),
            writes_fail: AtomicBool::new(false),
            forgets: AtomicBool::new(false),
            damages: AtomicBool::new(false),
            reads: AtomicU64::new(0),
            stands_still: AtomicBool::new(false),
            writes_stand_still: AtomicBool::new(false),
            writers: RwLock::default(),
        })
    }
}

impl Flash {
    /// Flips a bit that was written.
    pub fn flip(&self, bit: usize) {
        self.bytes.write().unwrap()[bit / 8] ^= 1 << (bit % 8);
    }
}

impl Device for Flash {
    fn read_at(&self, offset: u64, into: &mut [u8]) -> io::Result<()> {
        let aligned = |n: usize| n.is_multiple_of(SECTOR_BYTES);
        assert!(aligned(offset as usize) && aligned(into.len()) && aligned(into.as_ptr() as usize));
        while self.stands_still.load(Ordering::Relaxed) {
            std::thread::yield_now();
        }
        if self.reads_fail.load(Ordering::Relaxed) {
            return Err(io::Error::from_raw_os_error(5));
        }
        self.reads.fetch_add(1, Ordering::Relaxed);
        let bytes = self.bytes.read().unwrap();
        into.copy_from_slice(&bytes[offset as usize..][..into.len()]);
        if self.damages.load(Ordering::Relaxed) {
            for sector in into.chunks_mut(32) {
                sector[17] ^= 4;
            }
        }
        Ok(())
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let aligned = |n: usize| n.is_multiple_of(4096);
        assert!(
            aligned(offset as usize) && aligned(bytes.len()) && aligned(bytes.as_ptr() as usize)
        );
        self.writers
            .write()
            .unwrap()
            .insert(std::thread::current().id());
        while self.writes_stand_still.load(Ordering::Relaxed) {
            std::thread::yield_now();
        }
        if self.writes_fail.load(Ordering::Relaxed) {
            return Err(io::Error::from_raw_os_error(5));
        }
        if self.forgets.load(Ordering::Relaxed) {
            return Ok(());
        }
        let mut all = self.bytes.write().unwrap();
        all[offset as usize..][..bytes.len()].copy_from_slice(bytes);
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        Ok(())
    }

    fn bytes(&self) -> u64 {
        self.bytes.read().unwrap().len() as u64
    }
}

/// Options of a store with this much memory and flash.
pub fn options(memory: u64, flash: &Arc<Flash>) -> Options {
    Options {
        tiny: true,
        huge_pages: false,
        heads: 1,
        flash: Some(FlashOptions {
            device: flash.clone(),
        }),
        ..Options::new(memory)
    }
}

pub fn key(n: u64) -> Vec<u8> {
    format!("key:{n:08}").into_bytes()
}

/// A value that identifies its key and round.
pub fn value(n: u64, round: u64, bytes: usize) -> Vec<u8> {
    let mut value = format!("{n}/{round}/").into_bytes();
    value.resize(bytes.max(value.len()), (n ^ round) as u8);
    value
}

pub fn write(session: &mut Session, key: &[u8], value: &[u8]) -> Result<u64, Error> {
    let mut guard = session.pin();
    let hash = guard.hash(key);
    let outcome = guard.write(TABLE, hash, key, value, None)?;
    Ok(outcome.after.expect("written"))
}

pub fn read(session: &mut Session, key: &[u8]) -> Result<Option<Vec<u8>>, Error> {
    let guard = session.pin();
    let found = guard.read(TABLE, guard.hash(key), key)?;
    Ok(found.map(|object| object.value.to_vec()))
}

/// Runs an operation in a session that parks: its missing entries are read outside of the guard,
/// and handed in.
pub fn parked<T>(
    session: &mut Session,
    flash: &Flash,
    mut run: impl FnMut(&mut Guard<'_>) -> Result<T, Error>,
) -> Result<T, Error> {
    let mut have: BTreeMap<(u64, u32), (Cold, Vec<u8>)> = BTreeMap::new();
    loop {
        let mut lacking = Vec::new();
        let mut guard = session.pin();
        for (cold, bytes) in have.values() {
            if let Fetched::Longer(longer) = guard.pin().fetched(cold, bytes)? {
                lacking.push(longer);
            }
        }
        if lacking.is_empty() {
            match run(&mut guard) {
                Err(Error::Cold(_)) => lacking = guard.pin().take_colds(),
                done => {
                    assert!(guard.pin().take_colds().is_empty());
                    guard.pin_mut().forget_fetched();
                    return done;
                }
            }
            assert!(!lacking.is_empty(), "cold, but nothing is lacking");
        }
        guard.pin_mut().forget_fetched();
        drop(guard);
        for cold in lacking {
            let (offset, length) = cold.span();
            let mut memory = vec![0; length + SECTOR_BYTES];
            let skip = memory.as_ptr().align_offset(SECTOR_BYTES);
            flash
                .read_at(offset, &mut memory[skip..skip + length])
                .unwrap();
            let bytes = memory[skip..skip + length].to_vec();
            have.insert(cold.key(), (cold, bytes));
        }
    }
}

/// Waits until a condition holds.
pub fn wait_for(what: &str, mut holds: impl FnMut() -> bool) {
    let started = Instant::now();
    while !holds() {
        let waited = started.elapsed();
        assert!(
            waited < PATIENCE,
            "{waited:.0?} passed and still not: {what}"
        );
        std::thread::yield_now();
    }
}

/// Checks that memory in use does not exceed the budget.
pub fn check_budget(store: &Store) {
    let (used, limit) = (store.stats().committed_bytes, store.memory_bytes());
    assert!(used <= limit, "{used} of {limit} bytes");
}
