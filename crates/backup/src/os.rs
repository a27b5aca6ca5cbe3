//! The real device: a directory, or one preallocated file or partition.

use std::any::Any;
use std::fs::{self, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::disk::{Disk, File, OpenHow};
use crate::types::Mode;

/// A directory on a file system, or a raw device.
pub struct OsDisk {
    path: PathBuf,
    mode: Mode,
}

impl OsDisk {
    /// The directory `path` (created if need be when a store is), or in raw mode the file or partition `path`.
    pub fn new(path: &Path, mode: Mode) -> OsDisk {
        OsDisk {
            path: path.to_path_buf(),
            mode,
        }
    }
}

impl Disk for OsDisk {
    fn open(&self, name: &str, how: OpenHow) -> io::Result<Arc<dyn File>> {
        let path = if self.is_raw() {
            self.path.clone()
        } else {
            self.path.join(name)
        };
        let file = OpenOptions::new()
            .read(true)
            .write(how != OpenHow::Read)
            .create(how == OpenHow::Create)
            .truncate(false)
            .open(path)?;
        Ok(Arc::new(OsFile { file }))
    }

    fn names(&self) -> io::Result<Vec<String>> {
        fs::read_dir(&self.path)?
            .map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()))
            .collect()
    }

    fn lock(&self) -> io::Result<Box<dyn Any + Send + Sync>> {
        Ok(Box::new(()))
    }

    fn sync_dir(&self) -> io::Result<()> {
        fs::File::open(&self.path)?.sync_all()
    }

    fn free_bytes(&self) -> io::Result<u64> {
        let found = rustix::fs::statvfs(&self.path)?;
        Ok(found.f_bavail * found.f_frsize)
    }

    fn is_raw(&self) -> bool {
        self.mode == Mode::Raw
    }

    fn label(&self) -> String {
        self.path.display().to_string()
    }
}

struct OsFile {
    file: fs::File,
}

impl File for OsFile {
    fn read_at(&self, at: u64, into: &mut [u8]) -> io::Result<()> {
        self.file.read_exact_at(into, at)
    }

    fn write_at(&self, at: u64, bytes: &[u8]) -> io::Result<()> {
        self.file.write_all_at(bytes, at)
    }

    fn sync_data(&self) -> io::Result<()> {
        self.file.sync_data()
    }

    fn allocate(&self, at: u64, bytes: u64, _zero: bool) -> io::Result<()> {
        rustix::fs::fallocate(&self.file, rustix::fs::FallocateFlags::empty(), at, bytes)?;
        Ok(())
    }

    fn bytes(&self) -> io::Result<u64> {
        Ok(self.file.metadata()?.len())
    }
}
