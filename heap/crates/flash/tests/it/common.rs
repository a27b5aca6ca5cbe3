//! A device in memory whose writes can be lost, cut and made to fail, and whose bits can be
//! flipped.

use duramen_disk::Device;
use duramen_flash::{BLOCK_BYTES, ObjectStore, Options};
use std::io;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

pub struct Memory {
    bytes: Mutex<Vec<u8>>,
    pub fails_writes: AtomicBool,
    pub fails_reads: AtomicBool,
    pub writes: AtomicU64,
    /// Writes and syncs that succeed before one fails; below 0: all do.
    pub until_failure: AtomicI64,
    /// Alignment of its reads and of their memory, in bytes.
    pub alignment: AtomicUsize,
}

impl Memory {
    /// Whether this operation fails.
    fn is_due(&self) -> bool {
        self.until_failure.fetch_sub(1, Ordering::SeqCst) == 0
    }
}

/// A handle on it: the store takes one, the test keeps another.
#[derive(Clone)]
pub struct Ram(pub Arc<Memory>);

impl Ram {
    pub fn new(blocks: usize) -> Ram {
        Ram::of(vec![0; blocks * BLOCK_BYTES])
    }

    pub fn of(bytes: Vec<u8>) -> Ram {
        Ram(Arc::new(Memory {
            bytes: Mutex::new(bytes),
            fails_writes: AtomicBool::new(false),
            fails_reads: AtomicBool::new(false),
            writes: AtomicU64::new(0),
            until_failure: AtomicI64::new(-1),
            alignment: AtomicUsize::new(512),
        }))
    }

    /// The content after a crash of the process.
    pub fn copy(&self) -> Vec<u8> {
        self.0.bytes.lock().unwrap().clone()
    }

    pub fn flip(&self, byte: usize, bit: u32) {
        self.0.bytes.lock().unwrap()[byte] ^= 1 << bit;
    }

    pub fn options(&self) -> Options {
        Options {
            device: Arc::new(self.clone()),
        }
    }

    pub fn store(&self) -> ObjectStore {
        ObjectStore::create(self.options()).unwrap()
    }
}

fn refused() -> io::Error {
    io::Error::from(io::ErrorKind::Other)
}

impl Device for Ram {
    fn read_at(&self, at: u64, into: &mut [u8]) -> io::Result<()> {
        let unit = self.alignment();
        assert!(
            at.is_multiple_of(unit as u64) && into.len().is_multiple_of(unit),
            "whole sectors"
        );
        assert!(into.as_ptr().addr().is_multiple_of(unit), "aligned memory");
        if self.0.fails_reads.load(Ordering::SeqCst) {
            return Err(refused());
        }
        let bytes = self.0.bytes.lock().unwrap();
        let from = at as usize;
        let found = bytes.get(from..from + into.len());
        into.copy_from_slice(found.ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    }

    fn write_at(&self, at: u64, bytes: &[u8]) -> io::Result<()> {
        assert!(
            at.is_multiple_of(4096) && bytes.len().is_multiple_of(4096),
            "whole units of the coarsest device"
        );
        self.0.writes.fetch_add(1, Ordering::SeqCst);
        if self.0.fails_writes.load(Ordering::SeqCst) || self.0.is_due() {
            return Err(refused());
        }
        let mut all = self.0.bytes.lock().unwrap();
        let from = at as usize;
        all[from..from + bytes.len()].copy_from_slice(bytes);
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        if self.0.is_due() {
            return Err(refused());
        }
        Ok(())
    }

    fn alignment(&self) -> usize {
        self.0.alignment.load(Ordering::SeqCst)
    }

    fn bytes(&self) -> u64 {
        self.0.bytes.lock().unwrap().len() as u64
    }
}

/// Numbers from a seed (SplitMix64).
pub struct Dice(pub u64);

impl Dice {
    pub fn roll(&mut self, below: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % below
    }
}

/// The value of version `version` of object `index`: of a length of its own, and different from all
/// others.
pub fn value(index: u32, version: u32, bytes_max: usize) -> Vec<u8> {
    let mut dice = Dice(u64::from(index) << 32 | u64::from(version));
    let bytes = 8 + dice.roll(bytes_max as u64 - 7) as usize;
    let mut value = Vec::with_capacity(bytes);
    value.extend(index.to_le_bytes());
    value.extend(version.to_le_bytes());
    value.extend((8..bytes).map(|_| dice.roll(256) as u8));
    value
}
