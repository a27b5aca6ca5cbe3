//! One heap at a time: the tests of a file share a process, and a process has one heap.
#![allow(dead_code)] // each test file uses a part

use duramen_alloc::{Error, Faults, Options};
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};

static ALONE: Mutex<()> = Mutex::new(());

pub struct Heap {
    pub dir: tempfile::TempDir,
    pub faults: Faults,
    /// RAM of the process when the heap was opened, in bytes.
    pub resident_before: u64,
    _alone: MutexGuard<'static, ()>,
}

pub fn options(dir: &Path, flash: u64, ram: u64, faults: Faults) -> Options {
    Options {
        flash_file: dir.join("flash"),
        flash_bytes: flash,
        ram_bytes: ram,
        faults: Some(faults),
        ..Options::default()
    }
}

impl Heap {
    /// `None`: this kernel cannot do it; a message reports that.
    pub fn open(flash: u64, ram: u64, faults: Faults) -> Option<Heap> {
        let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        let resident_before = resident_bytes();
        let dir = tempfile::tempdir().unwrap();
        match duramen_alloc::init(&options(dir.path(), flash, ram, faults)) {
            Ok(()) => {}
            Err(error @ Error::Kernel { .. }) => {
                println!("skipped: {error}");
                return None;
            }
            Err(error) => panic!("{error}"),
        }
        Some(Heap {
            dir,
            faults,
            resident_before,
            _alone: alone,
        })
    }

    /// As at the end of a process.
    pub fn close(&self) {
        // SAFETY: tests end their threads before.
        unsafe { duramen_alloc::close() }.unwrap();
    }
}

impl Drop for Heap {
    fn drop(&mut self) {
        // SAFETY: as above. It may be closed already.
        let _ = unsafe { duramen_alloc::close() };
    }
}

/// Memory of this process that is in RAM and belongs to no file, in bytes. Counted page by page if
/// the kernel can: its usual figure is a sum that lacks unreported counts of each processor, and is
/// wrong by megabytes on machines with many processors.
pub fn resident_bytes() -> u64 {
    let counted = bytes_in("/proc/self/smaps_rollup", "Anonymous:");
    let told = || bytes_in("/proc/self/status", "RssAnon:");
    counted.or_else(told).expect("the kernel tells")
}

/// Page tables of this process, in bytes.
pub fn page_table_bytes() -> u64 {
    bytes_in("/proc/self/status", "VmPTE:").expect("the kernel tells")
}

fn bytes_in(path: &str, kind: &str) -> Option<u64> {
    let text = std::fs::read_to_string(path).ok()?;
    let line = text.lines().find(|line| line.starts_with(kind))?;
    Some(line.split_whitespace().nth(1)?.parse::<u64>().ok()? * 1024)
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

/// Fills an object of words, from its index and version.
///
/// # Safety
/// It has `words` words and no other user.
pub unsafe fn fill(object: *mut u64, words: usize, index: u64, version: u64) {
    for word in 0..words {
        // SAFETY: the caller's promise.
        unsafe {
            object
                .add(word)
                .write(index << 32 | version << 8 | word as u64 & 0xff)
        };
    }
}

/// Asserts that an object has the content that `fill` wrote.
///
/// # Safety
/// As of [`fill`].
pub unsafe fn assert_filled(object: *const u64, words: usize, index: u64, version: u64) {
    for word in 0..words {
        // SAFETY: the caller's promise.
        let found = unsafe { object.add(word).read() };
        let wanted = index << 32 | version << 8 | word as u64 & 0xff;
        assert_eq!(found, wanted, "word {word} of object {index}");
    }
}
