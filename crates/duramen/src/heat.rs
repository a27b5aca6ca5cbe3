//! Heat: the hashes of frequently read keys, written to a file at intervals, and loaded into memory
//! after a restart: the file `heat` of a store with a flash tier.
//!
//! **Invariants**
//! - H1: the file is advice. A part of it that is damaged, of another store or out of date is
//!   ignored; no state of the file, and no failure to read or write it, keeps a store from opening,
//!   serving or closing.
//! - H2: a file is replaced by a whole one (written beside it, renamed), never by a worse one: not
//!   while a refill from it is pending, and not by an interrupted one. Nothing is synced: after a
//!   power cut it may be damaged (H1).
//! - H3: the file has at most one byte of 64 of the memory budget, hottest first. Writing it takes
//!   at most a hundredth of a core's time and 1 MiB a second: the pause after it is long enough for
//!   that.
//! - H4: the file of an encrypted store is encrypted, block by block, at the places of its blocks.
//!
//! **Concurrency**: one thread (`duramen-heat`) refills, then writes; it holds no lock that another
//! thread needs, and is pinned in the engine for moments only. The thread that closes the store
//! writes the last file, when `duramen-heat` has ended.
//!
//! **Layout**: [`duramen_format::heat`], blocks of segments first, then keys by falling heat.

use crate::bell::Bell;
use crate::{DiskMode as Mode, Options};
use duramen_base::ids::SegmentId;
use duramen_base::private::make_file;
use duramen_base::units::MIB;
use duramen_cipher::SectorCipher;
use duramen_engine::TableId;
use duramen_engine::flash::{Flash, Heat as Reading, HotKey, Refill};
use duramen_format::heat::{BLOCK_BYTES, Block, Kind, WORDS_MAX};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, BufReader, BufWriter, ErrorKind, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// The file has one byte per this many bytes of the memory budget (H3).
const MEMORY_PART: u64 = 64;
/// Ids of segments have at most one byte per this many bytes of the file.
const SEGMENTS_PART: u64 = 8;
/// The pause after a write is this many times as long as the write, and as long as the write takes
/// at this rate (H3).
pub(crate) const PAUSE_FACTOR: u32 = 99;
/// Longest counted write; a longer one was due to a stalled disk or machine.
const TOOK_MAX: Duration = Duration::from_millis(500);
const BYTES_PER_SECOND: u64 = MIB;
/// Tables whose blocks are filled at the same time.
const TABLES_AT_ONCE: usize = 32;
/// Longest wait for a last file when a store closes.
const LAST_WITHIN: Duration = Duration::from_secs(1);
const NAME: &str = "heat";
const TEMPORARY: &str = "heat.new";

/// The hints of one store.
pub(crate) struct Heat {
    dir: PathBuf,
    server: u64,
    bytes_max: u64,
    interval: Duration,
    /// The cipher of the file's blocks, for an encrypted store (H4).
    cipher: Option<Arc<SectorCipher>>,
    found: Found,
    /// H2: the file that was found is not used up.
    refills: AtomicBool,
    written: Mutex<Written>,
    /// Ends the thread's pause.
    pub bell: Bell,
}

/// Contents of the file.
#[derive(Debug, Default, PartialEq, Eq)]
struct Found {
    segments: Vec<SegmentId>,
    keys: u64,
    blocks: u64,
    unusable: u64,
    /// The reason why the file cannot be read, or not to its end.
    failed: Option<String>,
}

/// The last file that was written.
#[derive(Default)]
struct Written {
    news: u64,
    bytes: u64,
    took: Duration,
}

impl Heat {
    /// The heat of a store that is about to be loaded; `None` if it has no flash tier, or no
    /// directory for a file.
    pub fn new(
        options: &Options,
        engine: &Arc<duramen_engine::Store>,
        server: u64,
        cipher: Option<Arc<SectorCipher>>,
    ) -> Option<Heat> {
        let (dir, flash) = (options.dir.clone()?, engine.flash()?);
        if options.mode == Mode::Raw {
            return None;
        }
        let bytes_max = options.engine.memory_bytes / MEMORY_PART;
        let found = look(&dir.join(NAME), server, bytes_max, cipher.as_deref());
        flash.set_refill_left(found.keys);
        Some(Heat {
            dir,
            server,
            bytes_max,
            interval: options.heat_interval,
            cipher,
            refills: AtomicBool::new(found.keys > 0),
            found,
            written: Mutex::default(),
            bell: Bell::default(),
        })
    }

    /// Segments that were in memory.
    pub fn segments(&self) -> &[SegmentId] {
        &self.found.segments
    }

    /// The damage of the file, as a message.
    pub fn damage(&self) -> Option<String> {
        let place = self.dir.join(NAME);
        let found = &self.found;
        if let Some(reason) = &found.failed {
            return Some(format!("{}: {reason}", place.display()));
        }
        (found.unusable > 0).then(|| {
            format!(
                "{}: {} of {} blocks are damaged or of another store",
                place.display(),
                found.unusable,
                found.blocks
            )
        })
    }

    /// Main loop of the thread: fills memory with hot keys, then writes the file at intervals,
    /// until `stop`.
    pub fn run(&self, engine: &Arc<duramen_engine::Store>, stop: &dyn Fn() -> bool) {
        let Some(flash) = engine.flash() else {
            return; // `new` found one
        };
        self.refill(flash, stop);
        while !stop() && !self.interval.is_zero() {
            self.pause(stop);
            if !stop() {
                self.write_if_news(flash, stop);
            }
        }
    }

    fn pause(&self, stop: &dyn Fn() -> bool) {
        let written = self.written.lock().expect("the last hints");
        let by_bytes = Duration::from_millis(1000 * written.bytes / BYTES_PER_SECOND);
        let took = written.took.min(TOOK_MAX);
        let pause = self.interval.max(took * PAUSE_FACTOR).max(by_bytes);
        drop(written);
        let began = Instant::now();
        while !stop() && began.elapsed() < pause {
            self.bell.sleep(pause.saturating_sub(began.elapsed()));
        }
    }

    fn refill(&self, flash: Flash<'_>, stop: &dyn Fn() -> bool) {
        if self.refills.load(Ordering::Relaxed) {
            // All sessions may be taken: then a read fetches each hot key.
            if let Ok(refill) = flash.refill()
                && let Ok(file) = File::open(self.dir.join(NAME))
            {
                let blocks = Stored {
                    file: file.take(self.bytes_max),
                    cipher: self.cipher.as_deref(),
                };
                refill_from(flash, refill, blocks, self.server, self.found.keys, stop);
            }
            if stop() {
                return; // H2: the next start continues with it
            }
        }
        flash.end_refill();
        self.refills.store(false, Ordering::Relaxed);
    }

    /// Writes a file if there is more to report than in the last one.
    fn write_if_news(&self, flash: Flash<'_>, stop: &dyn Fn() -> bool) {
        let Ok(mut reading) = flash.heat() else {
            return; // all sessions are taken: later
        };
        let news = reading.news();
        let mut written = self.written.lock().expect("the last hints");
        if news == written.news || self.refills.load(Ordering::Relaxed) {
            return; // H2
        }
        let began = Instant::now();
        // A failure shows only in the file's age: hints are advice (H1).
        let bytes = self.write(&mut reading, stop).ok().flatten();
        *written = Written {
            news: if bytes.is_some() { news } else { written.news },
            bytes: bytes.unwrap_or(0),
            took: began.elapsed(),
        };
    }

    /// Called at the end of a store, when the thread has ended.
    pub fn write_last(&self, engine: &Arc<duramen_engine::Store>) {
        let began = Instant::now();
        if let Some(flash) = engine.flash().filter(|_| !self.interval.is_zero()) {
            self.write_if_news(flash, &|| began.elapsed() > LAST_WITHIN);
        }
    }

    /// Writes a file in place of the last one; `None`: it was stopped, and the last one stays.
    /// Returns its length.
    fn write(&self, reading: &mut Reading, stop: &dyn Fn() -> bool) -> io::Result<Option<u64>> {
        let temporary = self.dir.join(TEMPORARY);
        let file = BufWriter::with_capacity(16 * BLOCK_BYTES, make_file(&temporary)?);
        let mut blocks = Blocks::new(file, self.server, self.bytes_max);
        blocks.cipher.clone_from(&self.cipher);
        let filled = self.fill(&mut blocks, reading, stop);
        let whole = filled.and_then(|whole| {
            if whole {
                blocks.file.flush()?;
                std::fs::rename(&temporary, self.dir.join(NAME))?;
            }
            Ok(whole)
        });
        if !matches!(whole, Ok(true)) {
            let _ = std::fs::remove_file(&temporary);
        }
        whole.map(|whole| whole.then_some(blocks.written * BLOCK_BYTES as u64))
    }

    /// Writes the blocks; returns false if it was stopped.
    fn fill(
        &self,
        blocks: &mut Blocks<BufWriter<File>>,
        reading: &mut Reading,
        stop: &dyn Fn() -> bool,
    ) -> io::Result<bool> {
        let segments = reading.segments_in_memory();
        let most = (self.bytes_max / SEGMENTS_PART) as usize / size_of::<u64>();
        let ids: Vec<u64> = segments.iter().take(most).map(|id| id.0).collect();
        for some in ids.chunks(WORDS_MAX) {
            blocks.put(Kind::Segments, 0, 0, some.to_vec())?;
        }
        blocks.fill(reading, stop)
    }
}

/// Copies the keys of this server in these blocks, as far as there is room; `keys` is about their
/// number.
pub(crate) fn refill_from(
    flash: Flash<'_>,
    mut refill: Refill,
    blocks: Stored<'_, impl Read>,
    server: u64,
    keys: u64,
    stop: &dyn Fn() -> bool,
) {
    let keys_max = refill.keys_max();
    let mut left = keys;
    let mut some: Vec<HotKey> = Vec::new();
    let mut heat = Reading::MAX;
    // Returns false if the rest would be in vain.
    let mut copy = |heat: u8, some: &mut Vec<HotKey>| {
        let done = refill.copy(heat, some, stop);
        left = left.saturating_sub(some.len() as u64);
        flash.set_refill_left(left);
        some.clear();
        !done.is_over && !stop()
    };
    let is_its = |block: &Block| block.server == server && block.kind == Kind::Keys;
    let mut goes_on = true;
    let read = each_block(blocks, |block| {
        let Some(block) = block.filter(is_its) else {
            return true;
        };
        if block.heat != heat || some.len() + block.words.len() > keys_max {
            goes_on = copy(heat, &mut some);
            heat = block.heat;
        }
        let table = TableId(block.table);
        let keys = block.words.into_iter();
        some.extend(keys.map(|hash| HotKey { table, hash }));
        goes_on
    });
    if goes_on && read.is_ok() {
        copy(heat, &mut some);
    }
}

/// Number of keys of this server in these blocks.
pub(crate) fn keys_in(blocks: &[u8], server: u64) -> u64 {
    sum_up(Stored::plain(blocks), server).keys
}

/// Blocks for a file, or for other servers.
pub(crate) struct Blocks<W> {
    pub file: W,
    server: u64,
    written_ms: u64,
    most: u64,
    written: u64,
    /// H4; `None`: the blocks are not encrypted.
    cipher: Option<Arc<SectorCipher>>,
    /// Keys of one heat, by table.
    open: BTreeMap<u32, Vec<u64>>,
}

impl<W: Write> Blocks<W> {
    pub fn new(file: W, server: u64, bytes_max: u64) -> Blocks<W> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        Blocks {
            file,
            server,
            written_ms: now.map_or(0, |now| now.as_millis() as u64),
            most: bytes_max / BLOCK_BYTES as u64,
            written: 0,
            cipher: None,
            open: BTreeMap::new(),
        }
    }

    fn has_room(&self) -> bool {
        self.written < self.most
    }

    /// Adds hot keys, hottest first; returns false if it was stopped.
    pub fn fill(&mut self, reading: &mut Reading, stop: &dyn Fn() -> bool) -> io::Result<bool> {
        for heat in (0..=Reading::MAX).rev() {
            let mut result = Ok(());
            reading.each(heat, |keys| {
                result = keys.iter().try_for_each(|key| self.add(heat, key));
                result.is_ok() && self.has_room() && !stop()
            });
            result?;
            if stop() {
                return Ok(false);
            }
            self.end(heat)?;
        }
        Ok(true)
    }

    fn add(&mut self, heat: u8, key: &HotKey) -> io::Result<()> {
        if !self.open.contains_key(&key.table.0) && self.open.len() >= TABLES_AT_ONCE {
            self.end(heat)?;
        }
        let words = self.open.entry(key.table.0).or_default();
        words.push(key.hash);
        if words.len() < WORDS_MAX {
            return Ok(());
        }
        let words = std::mem::take(words);
        self.put(Kind::Keys, heat, key.table.0, words)
    }

    /// Writes all open blocks, of this heat.
    fn end(&mut self, heat: u8) -> io::Result<()> {
        for (table, words) in std::mem::take(&mut self.open) {
            if !words.is_empty() {
                self.put(Kind::Keys, heat, table, words)?;
            }
        }
        Ok(())
    }

    /// Writes nothing beyond the file's length (H3).
    fn put(&mut self, kind: Kind, heat: u8, table: u32, words: Vec<u64>) -> io::Result<()> {
        if !self.has_room() {
            return Ok(());
        }
        let block = Block {
            kind,
            heat,
            server: self.server,
            written_ms: self.written_ms,
            table,
            words,
        };
        let at = self.written * BLOCK_BYTES as u64;
        self.written += 1;
        let block = block.encode();
        let Some(cipher) = &self.cipher else {
            return self.file.write_all(&block);
        };
        let mut encrypted = [0; BLOCK_BYTES];
        cipher.encrypt(at, &block, &mut encrypted);
        self.file.write_all(&encrypted)
    }
}

/// Blocks in a file or in memory.
pub(crate) struct Stored<'a, R> {
    file: R,
    cipher: Option<&'a SectorCipher>,
}

impl<R> Stored<'_, R> {
    pub fn plain(file: R) -> Self {
        Stored { file, cipher: None }
    }
}

/// Passes each block of a file, or `None` for an unusable one, to `show`, until `show` returns
/// false.
fn each_block(
    from: Stored<'_, impl Read>,
    mut show: impl FnMut(Option<Block>) -> bool,
) -> io::Result<()> {
    let mut file = BufReader::with_capacity(16 * BLOCK_BYTES, from.file);
    let mut bytes = vec![0; BLOCK_BYTES];
    let mut at = 0;
    loop {
        let mut filled = 0;
        while filled < BLOCK_BYTES {
            match file.read(&mut bytes[filled..]) {
                Ok(0) => break,
                Ok(more) => filled += more,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        if let (Some(cipher), BLOCK_BYTES) = (from.cipher, filled) {
            cipher.decrypt(at, &mut bytes);
        }
        at += BLOCK_BYTES as u64;
        if filled == 0 || !show(Block::decode(&bytes[..filled]).ok()) {
            return Ok(());
        }
    }
}

/// Contents of the file at a path, if any, in its first bytes.
fn look(path: &Path, server: u64, bytes_max: u64, cipher: Option<&SectorCipher>) -> Found {
    let open = match std::fs::metadata(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Found::default(),
        Err(error) => Err(error),
        // Opening a pipe waits for its other end.
        Ok(metadata) if !metadata.is_file() => Err(io::Error::other("it is no file")),
        Ok(_) => File::open(path),
    };
    match open {
        Ok(file) => {
            let file = file.take(bytes_max);
            sum_up(Stored { file, cipher }, server)
        }
        Err(error) => Found {
            failed: Some(error.to_string()),
            ..Found::default()
        },
    }
}

fn sum_up(file: Stored<'_, impl Read>, server: u64) -> Found {
    let mut found = Found::default();
    let read = each_block(file, |block| {
        found.blocks += 1;
        match block {
            Some(block) if block.server == server => match block.kind {
                Kind::Segments => found
                    .segments
                    .extend(block.words.into_iter().map(SegmentId)),
                Kind::Keys => found.keys += block.words.len() as u64,
            },
            _ => found.unusable += 1,
        }
        true
    });
    found.failed = read.err().map(|error| error.to_string());
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use duramen_cipher::StoreKey;

    const SERVER: u64 = 0xabcd_ef01_2345;
    const MOST: u64 = 1 << 20;

    /// Three blocks: segments, and keys of two heats.
    fn example() -> Vec<u8> {
        encrypted_by(None)
    }

    fn encrypted_by(cipher: Option<Arc<SectorCipher>>) -> Vec<u8> {
        let mut blocks = Blocks::new(Vec::new(), SERVER, MOST);
        blocks.cipher = cipher;
        blocks.put(Kind::Segments, 0, 0, vec![1, 2, 3]).unwrap();
        for (heat, keys) in [(3, 10), (1, 20)] {
            for hash in 0..keys {
                let table = TableId(4);
                blocks.add(heat, &HotKey { table, hash }).unwrap();
            }
            blocks.end(heat).unwrap();
        }
        blocks.file
    }

    #[test]
    fn damage_takes_the_block_that_it_is_in_and_no_other() {
        let whole = example();
        let all = sum_up(Stored::plain(&whole[..]), SERVER);
        assert_eq!((all.segments.len(), all.keys, all.blocks), (3, 30, 3));
        assert_eq!((all.unusable, &all.failed), (0, &None));
        let usable = |found: &Found| {
            let parts = [
                !found.segments.is_empty(),
                found.keys % 20 == 10,
                found.keys >= 20,
            ];
            parts.map(u64::from).iter().sum::<u64>()
        };
        for at in 0..whole.len() {
            let mut damaged = whole.clone();
            damaged[at] ^= 0x41;
            let found = sum_up(Stored::plain(&damaged[..]), SERVER);
            assert_eq!((found.unusable, usable(&found)), (1, 2), "byte {at}");
        }
        for length in 0..whole.len() {
            let found = sum_up(Stored::plain(&whole[..length]), SERVER);
            let parts = (length / BLOCK_BYTES) as u64;
            let cut = u64::from(!length.is_multiple_of(BLOCK_BYTES));
            assert_eq!((found.unusable, usable(&found)), (cut, parts), "{length}");
        }
    }

    /// H4: with its cipher the file shows what a plain one does, without it nothing.
    #[test]
    fn the_file_of_an_encrypted_store_is_encrypted() {
        let cipher = || Arc::new(StoreKey::random().unwrap().cipher("heat").unwrap());
        let (right, wrong) = (cipher(), cipher());
        let plain = example();
        let file = encrypted_by(Some(right.clone()));
        assert_eq!(file.len(), plain.len());
        let read = |file: &[u8], cipher| sum_up(Stored { file, cipher }, SERVER);
        assert_eq!(read(&file, Some(&*right)), read(&plain, None));
        for cipher in [None, Some(&*wrong)] {
            let found = read(&file, cipher);
            assert_eq!((found.keys, found.unusable), (0, 3));
        }
        let cut = read(&file[..2 * BLOCK_BYTES + 5], Some(&*right));
        assert_eq!((cut.keys, cut.unusable), (10, 1));
    }

    #[test]
    fn what_is_of_another_store_or_no_file_is_told_and_not_used() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(NAME);
        assert_eq!(look(&path, SERVER, MOST, None), Found::default());
        std::fs::write(&path, example()).unwrap();
        let found = look(&path, SERVER + 1, MOST, None);
        assert_eq!((found.keys, found.blocks, found.unusable), (0, 3, 3));
        // No more than memory can use.
        let found = look(&path, SERVER, 2 * BLOCK_BYTES as u64, None);
        assert_eq!((found.keys, found.blocks), (10, 2));
        std::fs::remove_file(&path).unwrap();
        std::fs::create_dir(&path).unwrap();
        assert!(look(&path, SERVER, MOST, None).failed.is_some());
    }

    #[test]
    fn a_file_ends_where_its_part_of_memory_does_with_the_hottest_first() {
        let mut blocks = Blocks::new(Vec::new(), SERVER, 3 * BLOCK_BYTES as u64);
        for heat in (0..=Reading::MAX).rev() {
            for hash in 0..2 * WORDS_MAX as u64 {
                let table = TableId((hash % 40) as u32);
                blocks.add(heat, &HotKey { table, hash }).unwrap();
            }
            blocks.end(heat).unwrap();
        }
        assert!(!blocks.has_room());
        let mut heats = Vec::new();
        each_block(Stored::plain(&blocks.file[..]), |block| {
            heats.push(block.expect("whole").heat);
            true
        })
        .unwrap();
        assert_eq!(heats, [Reading::MAX; 3]);
    }
}
