//! The disk itself: the rates of one thread without any store.

use crate::harness::{Doing, Latencies, Result};
use std::fs::File;
use std::io::Read;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::{Duration, Instant};

const BLOCK_BYTES: usize = 4096;
/// Blocks of the file that is overwritten in a ring, as in a write-ahead log.
const BLOCKS: u64 = 1024;

/// A preallocated file with blocks that are overwritten one after another.
pub(super) struct RawLog {
    file: File,
    next: u64,
}

impl RawLog {
    pub(super) fn new(dir: &Path) -> Result<RawLog> {
        let path = dir.join("raw-log");
        let file = File::create(&path).doing(format!("creating {}", path.display()))?;
        for block in 0..BLOCKS {
            file.write_all_at(&[0; BLOCK_BYTES], block * BLOCK_BYTES as u64)
                .doing("filling the raw log")?;
        }
        file.sync_all().doing("syncing the raw log")?;
        Ok(RawLog { file, next: 0 })
    }

    /// Overwrites one block and syncs it, again and again for `duration`.
    pub(super) fn run(&mut self, duration: Duration) -> Result<Latencies> {
        let mut latencies = Latencies::default();
        let begun = Instant::now();
        while begun.elapsed() < duration {
            let start = Instant::now();
            let block = self.next % BLOCKS;
            self.next += 1;
            self.file
                .write_all_at(&[self.next as u8; BLOCK_BYTES], block * BLOCK_BYTES as u64)
                .and_then(|()| self.file.sync_data())
                .doing("overwriting the raw log")?;
            latencies.record_ns(start.elapsed().as_nanos() as u64);
        }
        Ok(latencies)
    }
}

/// Bytes per second of reading files of at least `bytes` sequentially, from the disk and not from
/// memory.
pub(super) fn read_rate(dir: &Path, bytes: u64) -> Result<f64> {
    let path = dir.join("raw-read");
    let mut file = File::create(&path).doing(format!("creating {}", path.display()))?;
    let block = vec![0x5a; 1 << 20];
    for _ in 0..bytes >> 20 {
        std::io::Write::write_all(&mut file, &block).doing("filling the file to be read")?;
    }
    file.sync_all().doing("syncing the file to be read")?;
    forget_pages()?;
    let mut file = File::open(&path).doing("opening the file to be read")?;
    let mut buffer = vec![0; 1 << 20];
    let begun = Instant::now();
    while file.read(&mut buffer).doing("reading a file")? > 0 {}
    let rate = bytes as f64 / begun.elapsed().as_secs_f64();
    std::fs::remove_file(&path).doing("removing the file")?;
    Ok(rate)
}

/// Drops the system's page cache: a restart after a power cut finds no cached page.
pub(super) fn forget_pages() -> Result<()> {
    rustix::fs::sync();
    std::fs::write("/proc/sys/vm/drop_caches", "3").doing("dropping the page cache (needs root)")
}
