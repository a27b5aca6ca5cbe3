//! The heap's own state, stored with a checkpoint of the object store.
//!
//! **Invariants**
//! - Z1: nothing is allocated or freed while a checkpoint is made; a write in the meantime is in it
//!   or not, each object whole.
//! - Z2: restored objects are at their former addresses: pointers between objects stay valid.
//! - Z3: the blob is checked before use: chunks are disjoint and within the arena, each has its
//!   object table, free blocks are disjoint within memory. The checksums show all other damage, so
//!   a blob that fails these checks was written so.
//!
//! **Layout** little-endian: `format u32 | page bytes u32 | arena start u64 | arena bytes u64 |
//! next table u32 | chunks u32 | roots 16 x u64`, then each chunk: `table u32 | objects u32 |
//! object bytes u32 | kind u32 | fresh u32 | first page u64`, and for a pool its bits, for memory
//! `bytes of a large block or 0 u64` and its bits; then `free blocks u64` and each `address u64 |
//! bytes u64`.
//!
//! Paper: [Badam11 §3.6]; differs: arrays and memory are stored as well, and roots, by which a
//! later life finds its objects.

use super::{Heap, ROOTS};
use crate::chunk::{Chunk, GRANULE_PAGES, Kind, rounded};
use crate::error::Error;
use crate::memory::Blocks;
use crate::pager::PAGE_BYTES;
use std::path::Path;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};

const FORMAT: u32 = 1;

impl Heap {
    /// Makes all allocated objects durable.
    pub fn checkpoint(&self, path: &Path) -> Result<(), Error> {
        let _alone = self
            .changing
            .write()
            .unwrap_or_else(PoisonError::into_inner); // Z1
        self.paging.clean()?;
        self.paging.units().checkpoint(path, &self.encode())
    }

    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        let chunks = self.paging.units().atm().all();
        let memory = self.memory.lock().unwrap_or_else(PoisonError::into_inner);
        put32(&mut bytes, FORMAT);
        put32(&mut bytes, PAGE_BYTES as u32);
        let arena = self.paging.arena();
        put64(&mut bytes, arena.start as u64);
        put64(&mut bytes, arena.len() as u64);
        put32(&mut bytes, self.paging.units().next_table());
        put32(&mut bytes, chunks.len() as u32);
        for root in &self.roots {
            put64(&mut bytes, root.load(Ordering::Acquire) as u64);
        }
        for chunk in &chunks {
            for field in [
                chunk.table,
                chunk.objects,
                chunk.object_bytes,
                chunk.kind as u32,
                chunk.fresh(),
            ] {
                put32(&mut bytes, field);
            }
            put64(&mut bytes, chunk.first);
            chunk.used_words().for_each(|word| put64(&mut bytes, word));
            let run = memory.runs().find(|run| run.chunk.first == chunk.first);
            match run.map(|run| &run.blocks) {
                Some(Blocks::Large(long)) => put64(&mut bytes, *long as u64),
                Some(Blocks::Many(bits)) => {
                    put64(&mut bytes, 0);
                    bits.iter().for_each(|word| put64(&mut bytes, *word));
                }
                None => {}
            }
        }
        put64(&mut bytes, memory.free_blocks().count() as u64);
        for (address, length) in memory.free_blocks() {
            put64(&mut bytes, address as u64);
            put64(&mut bytes, length as u64);
        }
        bytes
    }

    /// Fills an empty heap, whose arena is at the address in [`Frame`].
    pub fn restore(&self, blob: &[u8], path: &Path) -> Result<(), Error> {
        let mut source = Source { left: blob, path };
        let frame = Frame::read(&mut source)?;
        self.paging.units().set_next_table(frame.next_table);
        for (root, found) in self.roots.iter().zip(frame.roots) {
            root.store(found as usize, Ordering::Release);
        }
        let mut chunks = Vec::new();
        for _ in 0..frame.chunks {
            chunks.push(self.restore_chunk(&mut source)?);
        }
        self.check_apart(&source, &chunks)?;
        self.restore_free(&mut source, &chunks)?;
        if !source.left.is_empty() {
            return Err(source.damaged("it is longer than it says"));
        }
        self.recount(&source, &chunks)?;
        self.paging.restore(chunks)
    }

    /// Checks that chunks are disjoint, and that each has an object table of its own (Z3).
    fn check_apart(&self, source: &Source<'_>, chunks: &[Arc<Chunk>]) -> Result<(), Error> {
        let mut tables: Vec<u32> = chunks.iter().map(|chunk| chunk.table).collect();
        tables.sort_unstable();
        if !tables.is_sorted_by(|one, next| one < next) {
            return Err(source.damaged("objects that share their object table"));
        }
        let mut sorted: Vec<&Chunk> = chunks.iter().map(|chunk| &**chunk).collect();
        sorted.sort_by_key(|chunk| chunk.first);
        let mut end = 0;
        for chunk in sorted {
            if chunk.first < end || !chunk.first.is_multiple_of(GRANULE_PAGES) {
                return Err(source.damaged("objects that lie where others do"));
            }
            end = chunk.first + chunk.pages();
            let has = self.paging.units().objects_of(chunk.table);
            if has != Some(chunk.units()) {
                return Err(source.damaged("objects without their object table"));
            }
        }
        Ok(())
    }

    /// Free blocks, in the order of their addresses.
    fn restore_free(&self, source: &mut Source<'_>, chunks: &[Arc<Chunk>]) -> Result<(), Error> {
        let bytes_of = |chunk: &Chunk| {
            let start = self.paging.address_of(chunk.first);
            start..start + chunk.pages() as usize * PAGE_BYTES
        };
        let runs = chunks.iter().filter(|chunk| chunk.kind == Kind::Memory);
        let mut runs: Vec<_> = runs.map(|chunk| bytes_of(chunk)).collect();
        runs.sort_by_key(|run| run.start);
        let mut memory = self.memory.lock().unwrap_or_else(PoisonError::into_inner);
        let mut end = 0;
        for _ in 0..source.u64()? {
            let (address, bytes) = (source.u64()? as usize, source.u64()? as usize);
            let run = runs.partition_point(|run| run.end <= address);
            let run = runs.get(run).filter(|run| run.contains(&address));
            let fits = run.is_some_and(|run| (1..=run.end - address).contains(&bytes));
            if !fits || address < end {
                return Err(source.damaged("a free block outside of memory"));
            }
            end = address + bytes;
            memory.restore_free(address, bytes);
        }
        self.charge_entries(&mut memory)
    }

    fn restore_chunk(&self, source: &mut Source<'_>) -> Result<Arc<Chunk>, Error> {
        let (table, objects, bytes) = (source.u32()?, source.u32()?, source.u32()?);
        let kind = match source.u32()? {
            0 => Kind::Pool,
            1 => Kind::Array,
            2 => Kind::Memory,
            _ => return Err(source.damaged("a kind of memory that is not known")),
        };
        let (fresh, first) = (source.u32()?, source.u64()?);
        let arena_pages = (self.paging.arena().len() / PAGE_BYTES) as u64;
        let most = arena_pages.saturating_sub(first);
        let pages = u64::from(objects) * u64::from(bytes).div_ceil(PAGE_BYTES as u64);
        if objects == 0 || bytes == 0 || pages > most || rounded(bytes as usize) != bytes as usize {
            return Err(source.damaged("objects outside of the arena"));
        }
        // The sizes are checked before memory is taken for the chunk.
        let words = match kind {
            Kind::Pool => source.words(objects.div_ceil(64) as usize)?,
            Kind::Array | Kind::Memory => Vec::new(),
        };
        let chunk = Arc::new(Chunk::new(table, first, objects, bytes, kind));
        match kind {
            Kind::Pool => {
                chunk.restore_used(&words, fresh);
                self.pools.restore(Arc::clone(&chunk));
            }
            Kind::Array => {}
            Kind::Memory => {
                let blocks = match source.u64()? {
                    0 => Blocks::Many(source.words(objects as usize * PAGE_BYTES / 16 / 64)?),
                    long => Blocks::Large(long as usize),
                };
                let bits = match &blocks {
                    Blocks::Many(bits) => bits.len() as u64 * 8,
                    Blocks::Large(_) => 0,
                };
                self.paging.units().charge(bits)?;
                let start = self.paging.address_of(first);
                let mut memory = self.memory.lock().unwrap_or_else(PoisonError::into_inner);
                memory.restore_run(Arc::clone(&chunk), start, blocks);
            }
        }
        self.paging.units().charge(chunk.tables_bytes())?;
        Ok(chunk)
    }

    /// Counts the allocated bytes anew: for each object, array and block the amount that its free
    /// will subtract.
    fn recount(&self, source: &Source<'_>, chunks: &[Arc<Chunk>]) -> Result<(), Error> {
        let memory = self.memory.lock().unwrap_or_else(PoisonError::into_inner);
        let allocated = memory.allocated();
        let (mut data, mut flash) =
            allocated.ok_or_else(|| source.damaged("blocks that do not follow each other"))?;
        drop(memory);
        for chunk in chunks {
            let (used, its) = match chunk.kind {
                Kind::Pool => (chunk.objects - chunk.free(), chunk.flash_bytes_used()),
                Kind::Array => (chunk.objects, chunk.flash_bytes_of_all()),
                Kind::Memory => continue, // memory is counted block by block
            };
            data += u64::from(used) * u64::from(chunk.object_bytes);
            flash += its;
        }
        self.usage.count(data);
        self.reserve_flash(flash, 0)
    }
}

/// Head of a checkpoint's blob.
pub(crate) struct Frame {
    pub start: usize,
    pub bytes: usize,
    next_table: u32,
    chunks: u32,
    roots: [u64; ROOTS],
}

impl Frame {
    /// The head of a checkpoint's blob, with the place at which the arena must be (Z2).
    pub fn of(blob: &[u8], path: &Path) -> Result<Frame, Error> {
        Frame::read(&mut Source { left: blob, path })
    }

    fn read(source: &mut Source<'_>) -> Result<Frame, Error> {
        let format = source.u32()?;
        if format != FORMAT {
            return Err(Error::Version {
                path: source.path.display().to_string(),
                found: format,
                known: FORMAT,
            });
        }
        if source.u32()? != PAGE_BYTES as u32 {
            return Err(source.damaged("it was made with pages of another size"));
        }
        let (start, bytes) = (source.u64()? as usize, source.u64()? as usize);
        let (next_table, chunks) = (source.u32()?, source.u32()?);
        let mut roots = [0; ROOTS];
        for root in &mut roots {
            *root = source.u64()?;
        }
        Ok(Frame {
            start,
            bytes,
            next_table,
            chunks,
            roots,
        })
    }
}

fn put32(bytes: &mut Vec<u8>, field: u32) {
    bytes.extend_from_slice(&field.to_le_bytes());
}

fn put64(bytes: &mut Vec<u8>, field: u64) {
    bytes.extend_from_slice(&field.to_le_bytes());
}

struct Source<'b> {
    left: &'b [u8],
    path: &'b Path,
}

impl Source<'_> {
    fn damaged(&self, why: &str) -> Error {
        Error::Checkpoint {
            path: self.path.display().to_string(),
            why: why.to_owned(),
        }
    }

    fn take<const N: usize>(&mut self) -> Result<[u8; N], Error> {
        let found = self.left.split_first_chunk::<N>();
        let (field, left) = found.ok_or_else(|| self.damaged("it is shorter than it says"))?;
        self.left = left;
        Ok(*field)
    }

    fn u32(&mut self) -> Result<u32, Error> {
        Ok(u32::from_le_bytes(self.take()?))
    }

    fn u64(&mut self) -> Result<u64, Error> {
        Ok(u64::from_le_bytes(self.take()?))
    }

    fn words(&mut self, count: usize) -> Result<Vec<u64>, Error> {
        if count > self.left.len() / 8 {
            return Err(self.damaged("it is shorter than it says"));
        }
        (0..count).map(|_| self.u64()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::budget::Budget;
    use crate::pager::{Faults, Pager};
    use crate::paging::Tables;
    use duramen_disk::Device;
    use duramen_flash::ObjectStore;
    use std::io;

    const FLASH: u64 = 64 << 20;

    /// A device that no test reads.
    struct Nothing;

    impl Device for Nothing {
        fn read_at(&self, _: u64, into: &mut [u8]) -> io::Result<()> {
            into.fill(0);
            Ok(())
        }

        fn write_at(&self, _: u64, _: &[u8]) -> io::Result<()> {
            Ok(())
        }

        fn sync(&self) -> io::Result<()> {
            Ok(())
        }

        fn bytes(&self) -> u64 {
            FLASH
        }
    }

    fn heap() -> Heap {
        let pager = Pager::reserve(Faults::Protect, 0x3000_0000_0000, 1 << 30, true).unwrap();
        let options = duramen_flash::Options {
            device: Arc::new(Nothing),
        };
        let store = ObjectStore::create(options).unwrap();
        let budget = Budget::new(6 << 20, 0, FLASH, pager.pages_max()).unwrap();
        let tables = Tables::reserve(&pager, &budget).unwrap();
        Heap::new(pager, store, budget, tables)
    }

    /// An empty heap before a restore, with the object tables of these chunks.
    fn with_tables(chunks: &[Arc<Chunk>]) -> Heap {
        let heap = heap();
        for chunk in chunks {
            heap.paging.units().add_table(chunk).unwrap();
        }
        heap
    }

    /// Z3: bytes are changed behind the checksums, one by one; the result is an error or a heap,
    /// never a panic.
    #[test]
    fn no_changed_byte_makes_a_restore_panic() {
        let first = heap();
        for bytes in [8, 128, 5000] {
            first.allocate_objects(1, bytes).unwrap();
        }
        first.allocate_objects(7, 100).unwrap();
        first.allocate_memory(2 << 20).unwrap();
        let blocks = [300, 40, 9000].map(|bytes| first.allocate_memory(bytes).unwrap());
        first.free(blocks[1]).unwrap();
        let chunks = first.paging.units().atm().all();
        let blob = first.encode();
        drop(first); // the next ones use the same addresses
        let path = Path::new("checkpoint");
        {
            let restored = with_tables(&chunks);
            restored.restore(&blob, path).unwrap();
            assert_eq!(restored.encode(), blob, "it is as it was");
        }
        let (mut taken, mut refused) = (0, 0);
        let ends = (0..500).chain(blob.len() - 60..blob.len());
        for at in ends {
            for change in [1 << (at % 8), 0xff] {
                let mut changed = blob.clone();
                changed[at] ^= change;
                let heap = with_tables(&chunks);
                match heap.restore(&changed, path) {
                    Ok(()) => taken += 1,
                    Err(error) => {
                        assert!(
                            [-3, -4, -9, -10].contains(&error.code()),
                            "byte {at}: {error}"
                        );
                        refused += 1;
                    }
                }
            }
        }
        assert!(
            taken > 100 && refused > 200,
            "{taken} taken, {refused} refused"
        );
        for length in (0..500).chain([blob.len() / 2, blob.len() - 1]) {
            let cut = with_tables(&chunks).restore(&blob[..length], path);
            assert!(cut.is_err(), "cut to {length}");
        }
    }
}
