//! A flash device in memory: the second tier of a simulated member. What is on it is nobody's after the process.

use duramen::engine::FlashOptions;
use duramen::engine::flash::Device;
use std::io;
use std::sync::{Arc, PoisonError, RwLock};

const BYTES: usize = 8 << 20;

struct Flash(RwLock<Vec<u8>>);

/// An empty one.
pub(super) fn options() -> FlashOptions {
    FlashOptions {
        device: Arc::new(Flash(RwLock::new(vec![0; BYTES]))),
    }
}

impl Device for Flash {
    fn read_at(&self, offset: u64, into: &mut [u8]) -> io::Result<()> {
        let bytes = self.0.read().unwrap_or_else(PoisonError::into_inner);
        into.copy_from_slice(&bytes[offset as usize..][..into.len()]);
        Ok(())
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let mut all = self.0.write().unwrap_or_else(PoisonError::into_inner);
        all[offset as usize..][..bytes.len()].copy_from_slice(bytes);
        Ok(())
    }

    fn bytes(&self) -> u64 {
        BYTES as u64
    }
}
