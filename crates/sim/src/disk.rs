//! The simulated disk: a seed decides how it behaves, within the limits of a real disk as far as a
//! backup can observe them.
//!
//! Each file is kept twice: as the operating system shows it (`seen`) and as it is on the medium
//! (`kept`). The writes between the two are in a list. A sync moves them to the medium. A power cut
//! chooses, for each 512-byte sector with writes in the list, how many of these writes reached the
//! medium: any prefix per sector. So writes are lost, reordered and torn, but a sector never holds
//! half of a write. The end of a process loses nothing.
//!
//! Faults happen at chosen operations: each call of a file that writes or syncs has a number,
//! counted from 0.
//!
//! **Concurrency**: one lock; made for tests on one thread, correct on several.

use std::any::Any;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::bytes::Bytes;
use duramen_backup::disk::{Disk, File, OpenHow};
use duramen_cipher::KeySource;

use duramen_base::random::Random;

/// Bytes that a device writes as a whole or not at all.
pub const SECTOR_BYTES: usize = 512;

/// The unit in which files take space.
const PAGE_BYTES: u64 = 4096;

/// A failure at one operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The power fails before this call: neither it nor any later call has an effect.
    PowerCut,
    /// The power fails during this call: a write may be torn, a sync may be half done.
    PowerCutWithin,
    /// The process ends: earlier writes stay, this call and all later ones have no effect.
    Kill,
    /// An input/output error, once. A failed sync drops the writes since the last sync, as a page
    /// cache does.
    Error,
    /// No space, once.
    Full,
    /// The write goes to another place of the same file, without an error.
    Misdirected,
    /// The write is reported as done and is not done.
    Lost,
}

/// One write that may not be on the medium yet.
struct Pending {
    at: u64,
    bytes: Vec<u8>,
}

#[derive(Default)]
struct Contents {
    /// The bytes that reads show.
    seen: Bytes,
    /// The bytes that survive a power cut.
    kept: Bytes,
    pending: Vec<Pending>,
    /// Whether the name survives a power cut.
    named: bool,
    /// Pages that take space: those that were written or allocated.
    taken: BTreeSet<u64>,
}

struct State {
    files: BTreeMap<String, Contents>,
    random: Random,
    operations: u64,
    faults: BTreeMap<u64, Fault>,
    /// Reads of these ranges fail: (file, first byte, end).
    unreadable: Vec<(String, u64, u64)>,
    /// No call succeeds from now on.
    down: bool,
    locked: bool,
    /// Another process maps the files: the page cache does not let go of their pages.
    pinned: bool,
    capacity: u64,
    /// Names of the operations so far, for messages; `None`: not recorded.
    trace: Option<Vec<String>>,
}

/// A simulated disk. Clones are the same disk.
#[derive(Clone)]
pub struct SimDisk {
    state: Arc<Mutex<State>>,
    /// The key of the store on it, if that is encrypted.
    key: Option<KeySource>,
}

impl SimDisk {
    /// An empty disk of this size.
    pub fn new(seed: u64, capacity_bytes: u64) -> SimDisk {
        SimDisk {
            key: None,
            state: Arc::new(Mutex::new(State {
                files: BTreeMap::new(),
                random: Random::new(seed),
                operations: 0,
                faults: BTreeMap::new(),
                unreadable: Vec::new(),
                down: false,
                locked: false,
                pinned: false,
                capacity: capacity_bytes,
                trace: Some(Vec::new()),
            })),
        }
    }

    /// The same disk; a store on it is encrypted with this key.
    #[must_use]
    pub fn with_key(self, key: Option<KeySource>) -> SimDisk {
        SimDisk { key, ..self }
    }

    /// The same disk; operations are counted but not recorded.
    #[must_use]
    pub fn untraced(self) -> SimDisk {
        self.state().trace = None;
        self
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Operations so far that wrote, allocated or synced.
    pub fn operations(&self) -> u64 {
        self.state().operations
    }

    /// Injects a failure at the operation with this number.
    pub fn inject(&self, operation: u64, fault: Fault) {
        self.state().faults.insert(operation, fault);
    }

    /// The operations so far, for messages.
    pub fn trace(&self) -> Vec<String> {
        self.state().trace.clone().unwrap_or_default()
    }

    /// Makes reads of a range fail.
    pub fn make_unreadable(&self, name: &str, at: u64, bytes: u64) {
        self.state()
            .unreadable
            .push((name.to_owned(), at, at + bytes));
    }

    /// Sets the capacity in bytes.
    pub fn set_capacity(&self, bytes: u64) {
        self.state().capacity = bytes;
    }

    /// Bytes that the files take.
    pub fn used_bytes(&self) -> u64 {
        self.state().used()
    }

    /// Whether a power cut or a kill has happened.
    pub fn is_down(&self) -> bool {
        self.state().down
    }

    /// From now on another process maps the files: pages that were read or written stay in the page
    /// cache.
    pub fn pin_cache(&self) {
        self.state().pinned = true;
    }

    /// Cuts the power now.
    pub fn cut_power(&self) {
        self.state().cut();
    }

    /// Starts the machine again. Faults that have not happened yet are dropped.
    pub fn restart(&self) {
        let mut state = self.state();
        state.down = false;
        state.locked = false;
        state.faults.clear();
    }

    /// A disk with the same contents and another seed: several continuations of one state can be
    /// tried.
    pub fn copy(&self, seed: u64) -> SimDisk {
        let state = self.state();
        let files = state
            .files
            .iter()
            .map(|(name, contents)| (name.clone(), contents.copy()))
            .collect();
        let copy = SimDisk::new(seed, state.capacity).with_key(self.key.clone());
        copy.state().files = files;
        copy
    }

    /// A file's bytes as reads show them.
    pub fn bytes_of(&self, name: &str) -> Vec<u8> {
        self.state()
            .files
            .get(name)
            .map_or_else(Vec::new, |contents| contents.seen.to_vec())
    }

    /// Flips one bit on the medium.
    pub fn flip(&self, name: &str, at: u64, bit: u8) {
        let mut state = self.state();
        if let Some(contents) = state.files.get_mut(name) {
            let mut byte = [0];
            if contents.seen.read(at, &mut byte) {
                contents.change(at, &[byte[0] ^ 1 << (bit % 8)]);
            }
        }
    }

    /// The offsets of a file's pages that hold anything but zeros.
    pub fn written(&self, name: &str) -> Vec<u64> {
        let state = self.state();
        let contents = state.files.get(name);
        contents.map_or_else(Vec::new, |contents| contents.seen.written())
    }

    /// Drops all faults that have not happened yet; unreadable ranges stay unreadable.
    pub fn forgive(&self) {
        self.state().faults.clear();
    }

    /// Changes bytes on the medium, within the file.
    pub fn put(&self, name: &str, at: u64, bytes: &[u8]) {
        let mut state = self.state();
        if let Some(contents) = state.files.get_mut(name) {
            let end = (at as usize + bytes.len()).min(contents.seen.len());
            let bytes = &bytes[..end.saturating_sub(at as usize)];
            contents.change(at, bytes);
        }
    }

    /// Removes a file.
    pub fn remove(&self, name: &str) {
        self.state().files.remove(name);
    }
}

impl Contents {
    fn copy(&self) -> Contents {
        Contents {
            seen: self.seen.clone(),
            kept: self.kept.clone(),
            pending: self
                .pending
                .iter()
                .map(|write| Pending {
                    at: write.at,
                    bytes: write.bytes.clone(),
                })
                .collect(),
            named: self.named,
            taken: self.taken.clone(),
        }
    }

    /// The pages of a range that take no space yet.
    fn missing(&self, at: u64, bytes: u64) -> Vec<u64> {
        let pages = at / PAGE_BYTES..(at + bytes).div_ceil(PAGE_BYTES);
        pages.filter(|page| !self.taken.contains(page)).collect()
    }

    fn write(&mut self, at: u64, bytes: &[u8]) {
        self.seen.put(at, bytes);
        self.pending.push(Pending {
            at,
            bytes: bytes.to_vec(),
        });
    }

    /// Changes the medium, and so the reads; no earlier write comes later.
    fn change(&mut self, at: u64, bytes: &[u8]) {
        self.seen.put(at, bytes);
        self.keep(at, bytes);
    }

    /// Moves all pending writes to the medium.
    fn sync(&mut self) {
        for write in std::mem::take(&mut self.pending) {
            self.kept.put(write.at, &write.bytes);
        }
    }

    /// Reads the medium, with the writes that are yet to reach it.
    fn read_medium(&self, at: u64, into: &mut [u8]) -> bool {
        let end = at + into.len() as u64;
        if end > self.seen.len() as u64 {
            return false;
        }
        let kept = (self.kept.len() as u64).saturating_sub(at) as usize;
        let (kept, grown) = into.split_at_mut(kept.min(into.len()));
        grown.fill(0);
        let read = self.kept.read(at, kept);
        for write in &self.pending {
            let from = at.max(write.at);
            let to = end.min(write.at + write.bytes.len() as u64);
            if from < to {
                let source = (from - write.at) as usize..(to - write.at) as usize;
                into[(from - at) as usize..(to - at) as usize]
                    .copy_from_slice(&write.bytes[source]);
            }
        }
        read
    }

    /// The medium, with the writes that are yet to reach it.
    fn medium(&self) -> Bytes {
        let mut medium = self.kept.clone();
        for write in &self.pending {
            medium.put(write.at, &write.bytes);
        }
        medium
    }

    /// Puts this range on the medium, whatever is pending elsewhere.
    fn keep(&mut self, at: u64, bytes: &[u8]) {
        self.kept.put(at, bytes);
        for write in &mut self.pending {
            // Older writes to the same place may not overwrite it later.
            let from = at.max(write.at);
            let to = (at + bytes.len() as u64).min(write.at + write.bytes.len() as u64);
            if from < to {
                let source = (from - at) as usize..(to - at) as usize;
                let target = (from - write.at) as usize..(to - write.at) as usize;
                write.bytes[target].copy_from_slice(&bytes[source]);
            }
        }
    }

    /// A power cut: of the writes to each sector, a prefix reaches the medium.
    fn settle(&mut self, random: &mut Random) {
        let mut fates: BTreeMap<u64, u64> = BTreeMap::new();
        let mut counts: BTreeMap<u64, u64> = BTreeMap::new();
        for write in &self.pending {
            for sector in sectors(write) {
                *counts.entry(sector).or_default() += 1;
            }
        }
        // In two of eight cuts all writes reach the medium, or none: extremes find more bugs.
        let mood = random.below(8);
        for (sector, count) in counts {
            let fate = match mood {
                0 => count,
                1 => 0,
                _ => random.below(count + 1),
            };
            fates.insert(sector, fate);
        }
        for write in std::mem::take(&mut self.pending) {
            for sector in sectors(&write) {
                let Some(left) = fates.get_mut(&sector).filter(|left| **left > 0) else {
                    continue;
                };
                *left -= 1;
                let from = write.at.max(sector * SECTOR_BYTES as u64);
                let to =
                    (write.at + write.bytes.len() as u64).min((sector + 1) * SECTOR_BYTES as u64);
                let part = &write.bytes[(from - write.at) as usize..(to - write.at) as usize];
                self.kept.put(from, part);
            }
        }
        self.seen.clone_from(&self.kept);
    }
}

fn sectors(write: &Pending) -> std::ops::Range<u64> {
    let end = write.at + write.bytes.len() as u64;
    write.at / SECTOR_BYTES as u64..end.div_ceil(SECTOR_BYTES as u64)
}

fn gone() -> io::Error {
    io::Error::new(io::ErrorKind::BrokenPipe, "the simulated machine is down")
}

fn broken() -> io::Error {
    io::Error::from_raw_os_error(5) // EIO
}

fn full() -> io::Error {
    io::Error::from_raw_os_error(28) // ENOSPC
}

impl State {
    fn cut(&mut self) {
        self.down = true;
        self.files.retain(|_, contents| contents.named);
        for contents in self.files.values_mut() {
            contents.settle(&mut self.random);
        }
    }

    fn used(&self) -> u64 {
        self.files
            .values()
            .map(|contents| contents.taken.len() as u64 * PAGE_BYTES)
            .sum()
    }

    /// Takes space for a range of a file.
    fn take(&mut self, name: &str, at: u64, bytes: u64) -> io::Result<()> {
        let (used, capacity) = (self.used(), self.capacity);
        let contents = self.contents(name)?;
        let missing = contents.missing(at, bytes);
        if used + missing.len() as u64 * PAGE_BYTES > capacity && !missing.is_empty() {
            return Err(full());
        }
        contents.taken.extend(missing);
        Ok(())
    }

    /// Counts an operation, and returns the fault injected at it.
    fn operation(&mut self, what: impl FnOnce() -> String) -> io::Result<Option<Fault>> {
        if self.down {
            return Err(gone());
        }
        let number = self.operations;
        self.operations += 1;
        if let Some(trace) = &mut self.trace {
            trace.push(what());
        }
        let fault = self.faults.get(&number).copied();
        match fault {
            Some(Fault::PowerCut) => {
                self.cut();
                Err(gone())
            }
            Some(Fault::Kill) => {
                self.down = true;
                Err(gone())
            }
            Some(Fault::Full) => Err(full()),
            other => Ok(other),
        }
    }

    fn contents(&mut self, name: &str) -> io::Result<&mut Contents> {
        self.files
            .get_mut(name)
            .ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    fn write(&mut self, name: &str, at: u64, bytes: &[u8], durable: bool) -> io::Result<()> {
        let length = bytes.len();
        let fault = self.operation(|| {
            let how = if durable { "write durably" } else { "write" };
            format!("{how} {name} {at}+{length}")
        })?;
        self.take(name, at, length as u64)?;
        match fault {
            Some(Fault::PowerCutWithin) => {
                self.contents(name)?.write(at, bytes);
                self.cut();
                return Err(gone());
            }
            Some(Fault::Error) => {
                // Part of it may have been written.
                let part =
                    self.random.below(length as u64 + 1) as usize / SECTOR_BYTES * SECTOR_BYTES;
                self.contents(name)?.write(at, &bytes[..part]);
                return Err(broken());
            }
            Some(Fault::Misdirected) => {
                let blocks = (self.contents(name)?.seen.len() / 4096).max(1) as u64;
                let elsewhere = self.random.below(blocks) * 4096;
                let contents = self.contents(name)?;
                contents.write(elsewhere, bytes);
                if durable {
                    contents.keep(elsewhere, bytes);
                }
                return Ok(());
            }
            Some(Fault::Lost) => return Ok(()),
            _ => {}
        }
        let contents = self.contents(name)?;
        contents.write(at, bytes);
        if durable {
            contents.keep(at, bytes);
        }
        Ok(())
    }

    fn sync(&mut self, name: &str) -> io::Result<()> {
        let fault = self.operation(|| format!("sync {name}"))?;
        match fault {
            Some(Fault::PowerCutWithin) => {
                self.cut();
                Err(gone())
            }
            Some(Fault::Error) => {
                // The pages are clean afterwards and their writes are lost, although reads may
                // still show them.
                let mut random = Random::new(self.random.below(u64::MAX));
                let contents = self.contents(name)?;
                let seen = contents.seen.clone();
                contents.settle(&mut random);
                contents.seen = seen;
                Err(broken())
            }
            _ => {
                self.contents(name)?.sync();
                Ok(())
            }
        }
    }

    fn allocate(&mut self, name: &str, at: u64, bytes: u64, zero: bool) -> io::Result<()> {
        let fault = self.operation(|| format!("allocate {name} {at}+{bytes}"))?;
        if fault == Some(Fault::Error) {
            return Err(broken());
        }
        self.take(name, at, bytes)?;
        let contents = self.contents(name)?;
        let end = at + bytes;
        // A file system's journal keeps lengths; zeros are data like any other.
        if contents.seen.len() < end as usize {
            contents.seen.resize(end as usize);
            contents.kept.resize(end as usize);
        }
        if zero {
            contents.write(at, &vec![0; bytes as usize]);
        }
        if fault == Some(Fault::PowerCutWithin) {
            self.cut();
            return Err(gone());
        }
        Ok(())
    }
}

impl Disk for SimDisk {
    fn open(&self, name: &str, how: OpenHow) -> io::Result<Arc<dyn File>> {
        let mut state = self.state();
        if state.down {
            return Err(gone());
        }
        if how == OpenHow::Create {
            state.files.entry(name.to_owned()).or_default();
        }
        state.contents(name)?;
        Ok(Arc::new(SimFile {
            disk: self.clone(),
            name: name.to_owned(),
        }))
    }

    fn names(&self) -> io::Result<Vec<String>> {
        let state = self.state();
        if state.down {
            return Err(gone());
        }
        Ok(state.files.keys().cloned().collect())
    }

    fn lock(&self) -> io::Result<Box<dyn Any + Send + Sync>> {
        let mut state = self.state();
        if state.down {
            return Err(gone());
        }
        if std::mem::replace(&mut state.locked, true) {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        Ok(Box::new(Unlock(self.clone())))
    }

    fn sync_dir(&self) -> io::Result<()> {
        let mut state = self.state();
        let fault = state.operation(|| "sync directory".to_owned())?;
        for contents in state.files.values_mut() {
            contents.named = true;
        }
        match fault {
            Some(Fault::Error) => Err(broken()),
            Some(Fault::PowerCutWithin) => {
                state.cut();
                Err(gone())
            }
            _ => Ok(()),
        }
    }

    fn free_bytes(&self) -> io::Result<u64> {
        let state = self.state();
        Ok(state.capacity.saturating_sub(state.used()))
    }

    fn key(&self) -> Option<&KeySource> {
        self.key.as_ref()
    }

    fn label(&self) -> String {
        "simulated disk".to_owned()
    }
}

struct Unlock(SimDisk);

impl Drop for Unlock {
    fn drop(&mut self) {
        self.0.state().locked = false;
    }
}

struct SimFile {
    disk: SimDisk,
    name: String,
}

impl SimFile {
    fn read(&self, at: u64, into: &mut [u8], cached: bool) -> io::Result<()> {
        let mut state = self.disk.state();
        if state.down {
            return Err(gone());
        }
        let end = at + into.len() as u64;
        let bad =
            |(name, from, to): &(String, u64, u64)| *name == self.name && *from < end && at < *to;
        if state.unreadable.iter().any(bad) {
            return Err(broken());
        }
        let contents = state.contents(&self.name)?;
        let read = if cached {
            contents.seen.read(at, into)
        } else {
            contents.read_medium(at, into)
        };
        if read {
            Ok(())
        } else {
            Err(io::ErrorKind::UnexpectedEof.into())
        }
    }
}

impl File for SimFile {
    fn read_at(&self, at: u64, into: &mut [u8]) -> io::Result<()> {
        self.read(at, into, true)
    }

    fn read_medium(&self, at: u64, into: &mut [u8]) -> io::Result<()> {
        self.read(at, into, false)
    }

    fn forget_cached(&self) -> io::Result<()> {
        let mut state = self.disk.state();
        if state.down {
            return Err(gone());
        }
        if !state.pinned {
            let contents = state.contents(&self.name)?;
            contents.seen = contents.medium();
        }
        Ok(())
    }

    fn write_at(&self, at: u64, bytes: &[u8]) -> io::Result<()> {
        self.disk.state().write(&self.name, at, bytes, false)
    }

    fn write_durably(&self, at: u64, bytes: &[u8]) -> io::Result<()> {
        self.disk.state().write(&self.name, at, bytes, true)
    }

    fn sync_data(&self) -> io::Result<()> {
        self.disk.state().sync(&self.name)
    }

    fn allocate(&self, at: u64, bytes: u64, zero: bool) -> io::Result<()> {
        self.disk.state().allocate(&self.name, at, bytes, zero)
    }

    fn fill_holes(&self, at: u64, bytes: u64) -> io::Result<u64> {
        let bytes = bytes.min(self.bytes()?.saturating_sub(at));
        let mut state = self.disk.state();
        let full = state.take(&self.name, at, bytes).is_err();
        let missing = if full {
            state.contents(&self.name)?.missing(at, bytes)
        } else {
            Vec::new()
        };
        let end = missing.first().map_or(at + bytes, |page| page * PAGE_BYTES);
        Ok(end.saturating_sub(at))
    }

    /// As on a file system that does not show reserved space.
    fn first_hole(&self) -> io::Result<u64> {
        let bytes = self.bytes()?;
        let mut state = self.disk.state();
        let missing = state.contents(&self.name)?.missing(0, bytes);
        Ok(missing.first().map_or(bytes, |page| page * PAGE_BYTES))
    }

    fn bytes(&self) -> io::Result<u64> {
        let mut state = self.disk.state();
        if state.down {
            return Err(gone());
        }
        Ok(state.contents(&self.name)?.seen.len() as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_power_cut_keeps_what_was_synced_and_any_part_of_the_rest() {
        let mut outcomes = std::collections::BTreeSet::new();
        for seed in 0..200 {
            let disk = SimDisk::new(seed, 1 << 20);
            let file = disk.open("f", OpenHow::Create).unwrap();
            disk.sync_dir().unwrap();
            file.write_at(0, &[1; 2048]).unwrap();
            file.sync_data().unwrap();
            file.write_at(0, &[2; 1024]).unwrap();
            file.write_at(512, &[3; 512]).unwrap();
            disk.cut_power();
            assert!(file.write_at(0, &[9; 512]).is_err());
            disk.restart();
            let bytes = disk.bytes_of("f");
            assert_eq!(bytes[1024..], [1; 1024]);
            for sector in bytes.chunks(512) {
                assert!(sector.iter().all(|byte| *byte == sector[0]), "torn sector");
            }
            outcomes.insert((bytes[0], bytes[512]));
        }
        assert_eq!(outcomes.len(), 6, "{outcomes:?}"); // {1,2} x {1,2,3}
    }

    #[test]
    fn a_kill_loses_nothing_and_a_durable_write_is_durable() {
        let disk = SimDisk::new(1, 1 << 20);
        let file = disk.open("f", OpenHow::Create).unwrap();
        disk.sync_dir().unwrap();
        file.write_at(0, &[1; 512]).unwrap();
        disk.inject(disk.operations() + 1, Fault::Kill);
        file.write_durably(512, &[2; 512]).unwrap();
        assert!(file.sync_data().is_err());
        disk.restart();
        assert_eq!(disk.bytes_of("f")[0], 1);
        disk.cut_power();
        assert_eq!(disk.bytes_of("f")[512], 2);
    }

    #[test]
    fn a_failed_sync_forgets() {
        let mut lost = 0;
        for seed in 0..50 {
            let disk = SimDisk::new(seed, 1 << 20);
            let file = disk.open("f", OpenHow::Create).unwrap();
            disk.sync_dir().unwrap();
            file.write_at(0, &[1; 512]).unwrap();
            disk.inject(disk.operations(), Fault::Error);
            assert!(file.sync_data().is_err());
            assert_eq!(disk.bytes_of("f").first(), Some(&1), "the cache shows it");
            file.sync_data().unwrap();
            file.forget_cached().unwrap();
            let seen = disk.bytes_of("f");
            disk.cut_power();
            assert_eq!(disk.bytes_of("f"), seen);
            lost += u32::from(disk.bytes_of("f").first() != Some(&1));
        }
        assert!(lost > 0);
    }
}
