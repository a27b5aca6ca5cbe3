//! Helpers for tests of stores with a flash tier: a device in memory, and its writes.

use duramen::Session;
use duramen_engine::TableId;
use duramen_engine::flash::Device;
use std::io;
use std::sync::{Arc, RwLock};

pub const T: TableId = TableId::DEFAULT;
pub const VALUE_BYTES: usize = 6_000;

struct Flash(RwLock<Vec<u8>>);

impl Device for Flash {
    fn read_at(&self, offset: u64, into: &mut [u8]) -> io::Result<()> {
        into.copy_from_slice(&self.0.read().unwrap()[offset as usize..][..into.len()]);
        Ok(())
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.0.write().unwrap()[offset as usize..][..bytes.len()].copy_from_slice(bytes);
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        Ok(())
    }

    fn bytes(&self) -> u64 {
        self.0.read().unwrap().len() as u64
    }
}

/// An empty device of `bytes` bytes.
pub fn memory(bytes: usize) -> Arc<dyn Device> {
    Arc::new(Flash(RwLock::new(vec![0; bytes])))
}

pub fn key(n: u64) -> Vec<u8> {
    format!("key:{n:06}").into_bytes()
}

pub fn value(n: u64, round: u64) -> Vec<u8> {
    let mut value = format!("{n}/{round}/").into_bytes();
    value.resize(VALUE_BYTES, n as u8);
    value
}

/// Writes many values, and waits only at the end.
pub fn write(session: &mut Session, keys: impl Iterator<Item = u64>, round: u64) {
    let keys: Vec<u64> = keys.collect();
    for some in keys.chunks(100) {
        session
            .batch(|guard| {
                for n in some {
                    let hash = guard.hash(&key(*n));
                    guard.write(T, hash, &key(*n), &value(*n, round), None)?;
                }
                Ok(())
            })
            .unwrap();
    }
}
