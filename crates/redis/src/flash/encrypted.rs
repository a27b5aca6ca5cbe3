//! A flash device whose content is encrypted.
//!
//! **Invariants**
//! - E1: the key is random, new at each start, and stored nowhere: flash is read only by the
//!   process that wrote it.
//! - E2: a read by io_uring is decrypted by the reader ([`Device::decrypt`]), every other read
//!   here.

use duramen_cipher::{SECTOR_BYTES, SectorCipher, StoreKey};
use duramen_config::ServerError;
use duramen_disk::{Aligned, Device, FileDevice};
use std::fs::Metadata;
use std::io;
use std::os::fd::RawFd;

/// Bytes encrypted and written at once: the engine writes no more.
const WRITE_BYTES: usize = 1 << 20;

pub(crate) struct EncryptedDevice {
    below: FileDevice,
    cipher: SectorCipher,
}

impl EncryptedDevice {
    pub(crate) fn new(below: FileDevice) -> Result<EncryptedDevice, ServerError> {
        let cipher = StoreKey::random().and_then(|key| key.cipher("flash"))?; // E1
        Ok(EncryptedDevice { below, cipher })
    }
}

impl Device for EncryptedDevice {
    fn read_at(&self, at: u64, into: &mut [u8]) -> io::Result<()> {
        self.below.read_at(at, into)?;
        self.cipher.decrypt(at, into);
        Ok(())
    }

    fn write_at(&self, at: u64, bytes: &[u8]) -> io::Result<()> {
        assert!(
            bytes.len().is_multiple_of(SECTOR_BYTES),
            "flash is written in blocks"
        );
        let mut memory = Aligned::zeroed(bytes.len().min(WRITE_BYTES));
        let mut at = at;
        for some in bytes.chunks(WRITE_BYTES) {
            let into = &mut memory.bytes_mut()[..some.len()];
            self.cipher.encrypt(at, some, into);
            self.below.write_at(at, into)?;
            at += some.len() as u64;
        }
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        self.below.sync()
    }

    fn bytes(&self) -> u64 {
        self.below.bytes()
    }

    fn alignment(&self) -> usize {
        self.below.alignment().max(SECTOR_BYTES)
    }

    fn lies_in(&self, found: &Metadata) -> bool {
        self.below.lies_in(found)
    }

    fn descriptor(&self) -> Option<RawFd> {
        self.below.descriptor()
    }

    fn decrypt(&self, at: u64, bytes: &mut [u8]) {
        self.cipher.decrypt(at, bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use duramen_disk::{ManyReads, SpanReader};
    use std::sync::Arc;

    const BYTES: u64 = 4 << 20;

    /// E2: each way to read shows what was written; the file shows nothing of it.
    #[test]
    fn every_way_to_read_decrypts() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("flash");
        let below = FileDevice::open(&path, BYTES).unwrap();
        let device: Arc<dyn Device> = Arc::new(EncryptedDevice::new(below).unwrap());
        let mut memory = Aligned::zeroed(3 << 20);
        for (n, byte) in memory.bytes_mut().iter_mut().enumerate() {
            *byte = b"a secret of a client"[n % 20];
        }
        let written = memory.bytes();
        let begin = 1 << 20;
        device.write_at(begin as u64, written).unwrap();
        let expected = |at: usize, bytes: usize| &written[at - begin..at - begin + bytes];
        let mut whole = Aligned::zeroed(written.len());
        device.read_at(begin as u64, whole.bytes_mut()).unwrap();
        assert!(whole.bytes() == written);
        let places = [
            (begin, 10),
            (begin + 777, 5_000),
            (begin + 2_000_003, 70_000),
        ];
        for (at, bytes) in places {
            let mut found = vec![0; bytes];
            device.read_any(at as u64, &mut found).unwrap();
            assert!(found == expected(at, bytes), "{at}");
        }
        for ring in [true, false] {
            let mut reader = SpanReader::new(device.clone(), 8, ring).unwrap();
            for (n, (at, bytes)) in places.into_iter().enumerate() {
                assert!(reader.submit(at as u64, bytes, n as u64));
            }
            while reader.under_way() > 0 {
                reader.wait().unwrap();
                reader.poll(|span| {
                    let (at, bytes) = places[span.tag as usize];
                    assert!(span.result.unwrap() == expected(at, bytes), "{at}, {ring}");
                });
            }
        }
        let mut found = places.map(|(_, bytes)| vec![0; bytes]);
        let [a, b, c] = &mut found;
        let mut reads = [
            (places[0].0 as u64, &mut a[..]),
            (places[1].0 as u64, &mut b[..]),
            (places[2].0 as u64, &mut c[..]),
        ];
        ManyReads::new(device.clone()).read(&mut reads).unwrap();
        for (found, (at, bytes)) in found.iter().zip(places) {
            assert!(found == expected(at, bytes), "{at}");
        }
        let file = std::fs::read(&path).unwrap();
        assert!(!file.windows(8).any(|some| some == b"a secret"));
    }
}
