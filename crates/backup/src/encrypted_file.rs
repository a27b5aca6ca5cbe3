//! A file that is encrypted on its medium, sector by sector.
//!
//! **Invariants**
//! - F1: reads, writes, syncs and lengths mean the same as those of the file below: a sector is as
//!   torn, as lost or as misplaced as its cipher text (sectors::X1, sectors::X2).
//! - F2: the bytes before `from` are not encrypted: headers that are needed without a key.
//! - F3: a write copies its bytes once, by encrypting them. It takes at most `WRITE_BYTES` of
//!   memory, aligned for writes past the page cache, and counted (backup::V3).

use std::io;
use std::sync::{Arc, Mutex, PoisonError};

use duramen_cipher::{SECTOR_BYTES, SectorCipher};

use crate::buffer::{Buffer, BufferBytes};
use crate::disk::{BLOCK_BYTES, File};

const SECTOR: u64 = SECTOR_BYTES as u64;
/// Bytes encrypted and written at once: two parts side by side (`duramen_disk::Parallel`), and an
/// eighth of the least memory for copies.
const WRITE_BYTES: usize = 1 << 20;

/// A file with encrypted sectors; see the module.
pub(crate) struct EncryptedFile {
    below: Arc<dyn File>,
    cipher: Arc<SectorCipher>,
    /// The first encrypted byte (F2).
    from: u64,
    /// A buffer that no write uses now.
    kept: Mutex<Option<Buffer>>,
    held: Arc<BufferBytes>,
}

impl EncryptedFile {
    /// `from`, a multiple of a sector: the first encrypted byte.
    pub(crate) fn new(
        below: Arc<dyn File>,
        cipher: Arc<SectorCipher>,
        from: u64,
        held: Arc<BufferBytes>,
    ) -> EncryptedFile {
        assert!(from.is_multiple_of(SECTOR), "whole sectors are encrypted");
        EncryptedFile {
            below,
            cipher,
            from,
            kept: Mutex::default(),
            held,
        }
    }

    /// Bytes of a range that are not encrypted.
    fn clear_bytes(&self, at: u64, bytes: usize) -> usize {
        self.from.saturating_sub(at).min(bytes as u64) as usize
    }

    fn read_by(
        &self,
        at: u64,
        into: &mut [u8],
        read: &dyn Fn(u64, &mut [u8]) -> io::Result<()>,
    ) -> io::Result<()> {
        let skip = (at % SECTOR) as usize;
        if skip > 0 {
            // A start within a sector is rare: frames and commits begin at blocks.
            let mut whole = vec![0; skip + into.len()];
            self.read_by(at - skip as u64, &mut whole, read)?;
            into.copy_from_slice(&whole[skip..]);
            return Ok(());
        }
        let is_whole = into.len().is_multiple_of(SECTOR_BYTES);
        let in_place = match is_whole {
            true => into.len(),
            false => into.len() - into.len() % BLOCK_BYTES as usize,
        };
        let (body, tail) = into.split_at_mut(in_place);
        if !body.is_empty() {
            read(at, body)?;
            self.decrypt(at, body);
        }
        if !tail.is_empty() {
            // Segments end anywhere: the last sector is needed as a whole.
            let mut block = [0; BLOCK_BYTES as usize];
            let block = &mut block[..tail.len().next_multiple_of(SECTOR_BYTES)];
            let at = at + in_place as u64;
            read(at, block)?;
            self.decrypt(at, block);
            tail.copy_from_slice(&block[..tail.len()]);
        }
        Ok(())
    }

    fn decrypt(&self, at: u64, bytes: &mut [u8]) {
        let clear = self.clear_bytes(at, bytes.len());
        self.cipher.decrypt(at + clear as u64, &mut bytes[clear..]);
    }

    /// Passes encrypted pieces of the parts to `write`, in order.
    fn write_by(
        &self,
        mut at: u64,
        parts: &[&[u8]],
        write: impl Fn(u64, &[u8]) -> io::Result<()>,
    ) -> io::Result<()> {
        let kept = self.lock_kept().take();
        let mut buffer = kept.unwrap_or_else(|| Buffer::counted(WRITE_BYTES, &self.held));
        buffer.clear();
        let flush = |at: &mut u64, buffer: &mut Buffer| {
            let written = write(*at, buffer.bytes());
            *at += buffer.len() as u64;
            buffer.clear();
            written
        };
        let mut write_all = || {
            for mut part in parts.iter().copied() {
                while !part.is_empty() {
                    let (now, rest) = part.split_at(part.len().min(WRITE_BYTES - buffer.len()));
                    self.append(at, now, &mut buffer);
                    part = rest;
                    if buffer.len() == WRITE_BYTES {
                        flush(&mut at, &mut buffer)?;
                    }
                }
            }
            match buffer.len() {
                0 => Ok(()),
                _ => flush(&mut at, &mut buffer),
            }
        };
        let written = write_all();
        *self.lock_kept() = Some(buffer);
        written
    }

    /// Appends encrypted bytes to a buffer that begins at byte `at` of the file.
    fn append(&self, at: u64, bytes: &[u8], buffer: &mut Buffer) {
        let begin = buffer.len();
        let at = at + begin as u64;
        let clear = self.clear_bytes(at, bytes.len());
        buffer.extend(&bytes[..clear]);
        buffer.resize(begin + bytes.len());
        let into = &mut buffer.bytes_mut()[begin + clear..];
        self.cipher
            .encrypt(at + clear as u64, &bytes[clear..], into);
    }

    fn lock_kept(&self) -> std::sync::MutexGuard<'_, Option<Buffer>> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl File for EncryptedFile {
    fn read_at(&self, at: u64, into: &mut [u8]) -> io::Result<()> {
        self.read_by(at, into, &|at, into| self.below.read_at(at, into))
    }

    fn read_medium(&self, at: u64, into: &mut [u8]) -> io::Result<()> {
        self.read_by(at, into, &|at, into| self.below.read_medium(at, into))
    }

    fn forget_cached(&self) -> io::Result<()> {
        self.below.forget_cached()
    }

    fn write_at(&self, at: u64, bytes: &[u8]) -> io::Result<()> {
        self.write_by(at, &[bytes], |at, bytes| self.below.write_at(at, bytes))
    }

    fn write_parts(&self, at: u64, parts: &[&[u8]]) -> io::Result<()> {
        self.write_by(at, parts, |at, bytes| self.below.write_parts(at, &[bytes]))
    }

    fn write_durably(&self, at: u64, bytes: &[u8]) -> io::Result<()> {
        self.write_by(at, &[bytes], |at, bytes| {
            self.below.write_durably(at, bytes)
        })
    }

    fn sync_data(&self) -> io::Result<()> {
        self.below.sync_data()
    }

    /// Zeros are not encrypted: they read as zeros (sectors::X2).
    fn allocate(&self, at: u64, bytes: u64, zero: bool) -> io::Result<()> {
        self.below.allocate(at, bytes, zero)
    }

    fn fill_holes(&self, at: u64, bytes: u64) -> io::Result<u64> {
        self.below.fill_holes(at, bytes)
    }

    fn first_hole(&self) -> io::Result<u64> {
        self.below.first_hole()
    }

    fn is_removed(&self) -> bool {
        self.below.is_removed()
    }

    /// A part of a sector at the end cannot be read: a damaged file may have one.
    fn bytes(&self) -> io::Result<u64> {
        let bytes = self.below.bytes()?;
        Ok(bytes - bytes % SECTOR)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::{Disk, OpenHow};
    use crate::os::OsDisk;
    use crate::region::FRAMES;
    use crate::types::Mode;
    use duramen_base::random::Random;
    use duramen_cipher::StoreKey;

    const BYTES: usize = 5 << 20;
    const FROM: usize = 8192;

    struct Both {
        file: EncryptedFile,
        /// The bytes as they must read.
        model: Vec<u8>,
        random: Random,
    }

    impl Both {
        fn some(&mut self, blocks_max: usize) -> (usize, Vec<u8>) {
            let block = BLOCK_BYTES as usize;
            let blocks = 1 + self.random.index(blocks_max);
            let at = self.random.index(BYTES / block - blocks + 1) * block;
            let fill = self.random.next_u64() as u8;
            let bytes = (0..blocks * block).map(|n| (n as u8).wrapping_mul(7) ^ fill);
            (at, bytes.collect())
        }

        fn write(&mut self) {
            let large = self.random.one_in(8);
            let (at, bytes) = self.some(if large { 800 } else { 4 });
            let place = at as u64;
            match self.random.below(3) {
                0 => self.file.write_at(place, &bytes).unwrap(),
                1 => self.file.write_durably(place, &bytes).unwrap(),
                _ => {
                    let middle = self.random.index(bytes.len() / 4096 + 1) * 4096;
                    let (front, back) = bytes.split_at(middle);
                    let parts = [&[], front, back, &[]];
                    self.file.write_parts(place, &parts).unwrap();
                }
            }
            self.model[at..at + bytes.len()].copy_from_slice(&bytes);
        }

        fn read(&mut self) {
            let from = self.random.index(BYTES);
            let large = self.random.one_in(8);
            let most = if large { BYTES } else { 10_000 };
            let length = self.random.index(most.min(BYTES - from) + 1);
            let aligned = self.random.one_in(2);
            let (from, length) = match aligned {
                true => (from / 512 * 512, length / 512 * 512),
                false => (from, length),
            };
            let mut found = vec![1; length];
            match self.random.one_in(2) {
                true => self.file.read_at(from as u64, &mut found).unwrap(),
                false => self.file.read_medium(from as u64, &mut found).unwrap(),
            }
            assert!(found == self.model[from..from + length], "{from}+{length}");
        }
    }

    /// F1, F2: random reads and writes show what a plain file would; of what was written, the file
    /// below has nothing but the first bytes.
    #[test]
    fn it_reads_as_a_plain_file_does() {
        for mode in [Mode::Buffered, Mode::Direct] {
            let dir = tempfile::tempdir().unwrap();
            let disk = OsDisk::new(dir.path(), mode);
            let below = disk.open(FRAMES, OpenHow::Create).unwrap();
            below.allocate(0, BYTES as u64, true).unwrap();
            let held = Arc::new(BufferBytes::default());
            let cipher = Arc::new(StoreKey::random().unwrap().cipher("frames").unwrap());
            let from = FROM as u64;
            let mut both = Both {
                file: EncryptedFile::new(below.clone(), cipher, from, held.clone()),
                model: vec![0; BYTES],
                random: Random::new(11),
            };
            for _ in 0..150 {
                both.write();
                both.read();
                both.read();
            }
            let mut medium = vec![0; BYTES];
            below.read_at(0, &mut medium).unwrap();
            assert!(medium[..FROM] == both.model[..FROM]);
            let sectors = |bytes: &[u8]| {
                let (sectors, _) = bytes[FROM..].as_chunks::<512>();
                sectors.to_vec()
            };
            let both_ways = sectors(&medium).into_iter().zip(sectors(&both.model));
            for (n, (below, above)) in both_ways.enumerate() {
                let is_blank = above.iter().all(|byte| *byte == 0);
                assert!(is_blank || below != above, "sector {n} is not encrypted");
            }
            assert!(held.bytes() <= WRITE_BYTES as u64, "F3");
            drop(both);
            assert_eq!(held.bytes(), 0);
        }
    }
}
