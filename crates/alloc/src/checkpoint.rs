//! The heap's own state, kept with a checkpoint of the object store.
//!
//! **Invariants**
//! - Z1: nothing is allocated or freed while a checkpoint is made; what is written to meanwhile is in it or not, each object whole.
//! - Z2: what is restored lies at the addresses where it lay: pointers between objects hold.
//!
//! **Layout** little-endian: `format u32 | page bytes u32 | arena start u64 | arena bytes u64 | next table u32 | chunks u32 | roots 16 x u64`,
//! then each chunk: `table u32 | objects u32 | object bytes u32 | kind u32 | fresh u32 | first page u64`, and for a pool its bits, for memory
//! `bytes of a large block or 0 u64` and its bits; then `free blocks u64` and each `address u64 | bytes u64`.
//!
//! Paper: [Badam11 §3.6]; differs: arrays and memory are kept as well, and roots, by which a later life finds its objects.

use crate::chunk::{Chunk, Kind, rounded};
use crate::error::Error;
use crate::heap::{Heap, ROOTS};
use crate::memory::Blocks;
use crate::pager::PAGE_BYTES;
use std::path::Path;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};

const FORMAT: u32 = 1;

impl Heap {
    /// Makes everything that is allocated last.
    pub fn checkpoint(&self, path: &Path) -> Result<(), Error> {
        let _alone = self
            .changing
            .write()
            .unwrap_or_else(PoisonError::into_inner); // Z1
        self.clean()?;
        self.store.checkpoint(path, &self.encode())?;
        Ok(())
    }

    fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        let chunks = self.atm.all();
        let memory = self.memory.lock().unwrap_or_else(PoisonError::into_inner);
        put32(&mut bytes, FORMAT);
        put32(&mut bytes, PAGE_BYTES as u32);
        put64(&mut bytes, self.pager.start() as u64);
        put64(&mut bytes, self.pager.bytes() as u64);
        put32(&mut bytes, self.next_table.load(Ordering::Relaxed));
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

    /// Fills an empty heap, whose arena lies where [`Frame`] says.
    pub fn restore(&self, blob: &[u8], path: &Path) -> Result<(), Error> {
        let mut source = Source { left: blob, path };
        let frame = Frame::read(&mut source)?;
        self.next_table.store(frame.next_table, Ordering::Relaxed);
        for (root, found) in self.roots.iter().zip(frame.roots) {
            root.store(found as usize, Ordering::Release);
        }
        let mut chunks = Vec::new();
        for _ in 0..frame.chunks {
            chunks.push(self.restore_chunk(&mut source)?);
        }
        let mut memory = self.memory.lock().unwrap_or_else(PoisonError::into_inner);
        let mut free = 0;
        for _ in 0..source.u64()? {
            let (address, bytes) = (source.u64()? as usize, source.u64()? as usize);
            if !self.contains(address) || bytes > self.pager.bytes() {
                return Err(source.damaged("a free block outside of the arena"));
            }
            memory.restore_free(address, bytes);
            free += bytes as u64;
        }
        drop(memory);
        if !source.left.is_empty() {
            return Err(source.damaged("it is longer than it says"));
        }
        self.recount(&chunks, free)?;
        for chunk in &chunks {
            let regions = self.buffer.regions();
            regions.use_up_to(chunk.first + chunk.pages());
        }
        self.atm.restore(chunks);
        Ok(())
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
        let arena_pages = (self.pager.bytes() / PAGE_BYTES) as u64;
        let most = arena_pages.saturating_sub(first);
        let pages = u64::from(objects) * u64::from(bytes).div_ceil(PAGE_BYTES as u64);
        if objects == 0 || bytes == 0 || pages > most || rounded(bytes as usize) != bytes as usize {
            return Err(source.damaged("objects outside of the arena"));
        }
        let chunk = Arc::new(Chunk::new(table, first, objects, bytes, kind));
        match kind {
            Kind::Pool => {
                let words = source.words(objects.div_ceil(64) as usize)?;
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
                self.charge(bits)?;
                let start = self.address_of(first);
                let mut memory = self.memory.lock().unwrap_or_else(PoisonError::into_inner);
                memory.restore_run(Arc::clone(&chunk), start, blocks);
            }
        }
        self.charge(chunk.ram_bytes() + u64::from(chunk.units()) * 4)?;
        Ok(chunk)
    }

    /// Counts what is allocated anew.
    fn recount(&self, chunks: &[Arc<Chunk>], free: u64) -> Result<(), Error> {
        let (mut data, mut flash) = (0, 0);
        for chunk in chunks {
            let used = match chunk.kind {
                Kind::Pool => u64::from(chunk.objects - chunk.free()),
                Kind::Array | Kind::Memory => u64::from(chunk.objects),
            };
            data += used * u64::from(chunk.object_bytes);
            flash += used * chunk.flash_bytes();
        }
        self.count(data.saturating_sub(free));
        self.reserve_flash(flash.saturating_sub(free))
    }
}

/// What a checkpoint begins with.
pub(crate) struct Frame {
    pub start: usize,
    pub bytes: usize,
    next_table: u32,
    chunks: u32,
    roots: [u64; ROOTS],
}

impl Frame {
    /// Where the arena must lie (Z2).
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
