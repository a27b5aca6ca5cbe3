//! A disk written to in small, synced steps with rests between them, so that somebody else's commits on the same device hardly
//! wait: one large write would hold up each of them for as long as it takes.

use duramen_backup::disk::{Disk, File, OpenHow};
use std::any::Any;
use std::io;
use std::sync::Arc;
use std::time::Instant;

/// One step: takes about as long as a commit.
const STEP_BYTES: usize = 256 << 10;

/// Whether there is anybody to be considerate of.
pub(crate) type Busy = Arc<dyn Fn() -> bool + Send + Sync>;

pub(crate) struct Throttled {
    pub inner: Arc<dyn Disk>,
    pub busy: Busy,
}

struct ThrottledFile {
    inner: Arc<dyn File>,
    busy: Busy,
}

impl Disk for Throttled {
    fn open(&self, name: &str, how: OpenHow) -> io::Result<Arc<dyn File>> {
        Ok(Arc::new(ThrottledFile {
            inner: self.inner.open(name, how)?,
            busy: self.busy.clone(),
        }))
    }

    fn names(&self) -> io::Result<Vec<String>> {
        self.inner.names()
    }

    fn lock(&self) -> io::Result<Box<dyn Any + Send + Sync>> {
        self.inner.lock()
    }

    fn sync_dir(&self) -> io::Result<()> {
        self.inner.sync_dir()
    }

    fn free_bytes(&self) -> io::Result<u64> {
        self.inner.free_bytes()
    }

    fn is_raw(&self) -> bool {
        self.inner.is_raw()
    }

    fn label(&self) -> String {
        self.inner.label()
    }
}

impl File for ThrottledFile {
    fn read_at(&self, at: u64, into: &mut [u8]) -> io::Result<()> {
        self.inner.read_at(at, into)
    }

    fn write_at(&self, at: u64, bytes: &[u8]) -> io::Result<()> {
        for (n, step) in bytes.chunks(STEP_BYTES).enumerate() {
            let began = Instant::now();
            let at = at + (n * STEP_BYTES) as u64;
            if (self.busy)() {
                self.inner.write_durably(at, step)?;
                std::thread::sleep(began.elapsed());
            } else {
                self.inner.write_at(at, step)?;
            }
        }
        Ok(())
    }

    fn write_durably(&self, at: u64, bytes: &[u8]) -> io::Result<()> {
        self.inner.write_durably(at, bytes)
    }

    fn sync_data(&self) -> io::Result<()> {
        self.inner.sync_data()
    }

    fn allocate(&self, at: u64, bytes: u64, zero: bool) -> io::Result<()> {
        self.inner.allocate(at, bytes, zero)
    }

    fn bytes(&self) -> io::Result<u64> {
        self.inner.bytes()
    }
}
