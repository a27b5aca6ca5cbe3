//! The interface of a device: a few files that are read and written at given places.
//!
//! The real device is [`os::OsDisk`](crate::os::OsDisk); the simulator puts its own under the same
//! code.
//!
//! **Invariants** (an implementation must keep them; callers rely on nothing else)
//! - D1: a write is durable only after a `sync_data` that began after it returned `Ok`, or if it
//!   was `write_durably`. Before that a power cut may keep any subset of its 512-byte sectors, in
//!   any order.
//! - D2: a write that returned `Ok` is seen by every later read, and survives the end of the
//!   process.
//! - D3: after a failed sync nothing is known about writes since the last good one (they may be
//!   lost although a later sync succeeds).

use std::any::Any;
use std::io;
use std::sync::Arc;

use duramen_cipher::KeySource;

/// Smallest unit that a backup writes and aligns to, in bytes: O_DIRECT accepts it on every common
/// device.
pub const BLOCK_BYTES: u64 = 4096;

/// The way to open a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OpenHow {
    /// The file must exist; it will not be written.
    Read,
    /// The file must exist.
    ReadWrite,
    /// The file is created if it does not exist; existing contents stay.
    Create,
}

/// A device, or a directory on one.
pub trait Disk: Send + Sync {
    /// Opens a file by its name. In raw mode all names open the same file.
    ///
    /// # Errors
    /// As the operating system gives them.
    fn open(&self, name: &str, how: OpenHow) -> io::Result<Arc<dyn File>>;

    /// Names of all existing files.
    ///
    /// # Errors
    /// As the operating system gives them.
    fn names(&self) -> io::Result<Vec<String>>;

    /// Takes the lock against a second server, until the returned guard is dropped.
    ///
    /// # Errors
    /// `WouldBlock` if another process holds it.
    fn lock(&self) -> io::Result<Box<dyn Any + Send + Sync>>;

    /// Locks the files that hold data as well, all of which exist, until the returned guard is
    /// dropped: against programs that use one of them as a file of another kind without
    /// [`lock`](Self::lock).
    ///
    /// # Errors
    /// `WouldBlock` if another process holds one of them.
    fn lock_files(&self) -> io::Result<Box<dyn Any + Send + Sync>> {
        Ok(Box::new(()))
    }

    /// Gives the file `name` these bytes, which are whole blocks, durably, whether the file exists
    /// or not. Only for a disk that is a directory.
    ///
    /// # Errors
    /// As the operating system gives them.
    fn put_file(&self, name: &str, bytes: &[u8]) -> io::Result<()> {
        let file = self.open(name, OpenHow::Create)?;
        file.write_at(0, bytes)?;
        file.sync_data()?;
        self.sync_dir()
    }

    /// Makes the files' names durable.
    ///
    /// # Errors
    /// As the operating system gives them.
    fn sync_dir(&self) -> io::Result<()>;

    /// Bytes that could still be allocated.
    ///
    /// # Errors
    /// As the operating system gives them.
    fn free_bytes(&self) -> io::Result<u64>;

    /// Whether this is one device or file that holds all regions at fixed places.
    fn is_raw(&self) -> bool {
        false
    }

    /// The name of this disk in messages.
    fn label(&self) -> String;

    /// The key of an encrypted store on it. `None`: the store is not encrypted.
    fn key(&self) -> Option<&KeySource> {
        None
    }
}

/// An open file. All methods may be called from several threads at once.
pub trait File: Send + Sync {
    /// Reads exactly `into.len()` bytes.
    ///
    /// # Errors
    /// `UnexpectedEof` if the file ends before; others as the device gives them.
    fn read_at(&self, at: u64, into: &mut [u8]) -> io::Result<()>;

    /// As [`read_at`](Self::read_at), from the medium itself as far as the system allows: a cached
    /// copy does not show damage of the medium.
    ///
    /// # Errors
    /// As [`read_at`](Self::read_at).
    fn read_medium(&self, at: u64, into: &mut [u8]) -> io::Result<()> {
        self.read_at(at, into)
    }

    /// Drops what the system keeps of the file in memory, as far as it is synced: later reads show
    /// what is on the medium. After a failed sync that may be less than reads showed before (D3).
    ///
    /// # Errors
    /// As the system gives them.
    fn forget_cached(&self) -> io::Result<()>;

    /// Writes all of `bytes`. Places and lengths are multiples of [`BLOCK_BYTES`].
    ///
    /// # Errors
    /// As the device gives them; some of the bytes may have been written then.
    fn write_at(&self, at: u64, bytes: &[u8]) -> io::Result<()>;

    /// Writes parts one after another, from `at` on, as [`write_at`](Self::write_at) does: for
    /// large writes, past any cache. Their lengths are multiples of [`BLOCK_BYTES`].
    ///
    /// # Errors
    /// As [`write_at`](Self::write_at).
    fn write_parts(&self, at: u64, parts: &[&[u8]]) -> io::Result<()> {
        let mut at = at;
        for part in parts {
            self.write_at(at, part)?;
            at += part.len() as u64;
        }
        Ok(())
    }

    /// As [`write_at`](Self::write_at), and durable on return (this write alone: D1 holds for all
    /// others).
    ///
    /// # Errors
    /// As the device gives them.
    fn write_durably(&self, at: u64, bytes: &[u8]) -> io::Result<()> {
        self.write_at(at, bytes)?;
        self.sync_data()
    }

    /// Makes every write that returned before this call durable.
    ///
    /// # Errors
    /// As the device gives them (D3).
    fn sync_data(&self) -> io::Result<()>;

    /// Reserves space, and grows the file if necessary; with `zero`, the range is written with
    /// zeros (so that later overwrites change no metadata).
    ///
    /// # Errors
    /// `StorageFull` if there is not enough space.
    fn allocate(&self, at: u64, bytes: u64, zero: bool) -> io::Result<()>;

    /// Reserves space for a range of the existing bytes, which may have holes. Returns how many
    /// bytes from `at` on have space: fewer than `bytes` if the disk is full.
    ///
    /// # Errors
    /// As the operating system gives them.
    fn fill_holes(&self, at: u64, bytes: u64) -> io::Result<u64> {
        Ok(bytes.min(self.bytes()?.saturating_sub(at)))
    }

    /// The bytes before the first hole, or before a part that was reserved and not yet written.
    ///
    /// # Errors
    /// As the operating system gives them.
    fn first_hole(&self) -> io::Result<u64> {
        self.bytes()
    }

    /// Whether the file lost its name: its contents go with the last process that has it open.
    fn is_removed(&self) -> bool {
        false
    }

    /// Length in bytes.
    ///
    /// # Errors
    /// As the operating system gives them.
    fn bytes(&self) -> io::Result<u64>;

    /// Whether the file has no bytes.
    ///
    /// # Errors
    /// As the operating system gives them.
    fn is_empty(&self) -> io::Result<bool> {
        Ok(self.bytes()? == 0)
    }
}

/// A file in front of another one: methods that it does not override go to the one below.
pub trait Front: Send + Sync {
    fn below(&self) -> &dyn File;

    /// # Errors
    /// As [`File::write_at`].
    fn write_at(&self, at: u64, bytes: &[u8]) -> io::Result<()> {
        self.below().write_at(at, bytes)
    }

    /// # Errors
    /// As [`File::write_durably`].
    fn write_durably(&self, at: u64, bytes: &[u8]) -> io::Result<()> {
        Front::write_at(self, at, bytes)?;
        Front::sync_data(self)
    }

    /// # Errors
    /// As [`File::sync_data`].
    fn sync_data(&self) -> io::Result<()> {
        self.below().sync_data()
    }

    /// # Errors
    /// As [`File::allocate`].
    fn allocate(&self, at: u64, bytes: u64, zero: bool) -> io::Result<()> {
        self.below().allocate(at, bytes, zero)
    }
}

impl<F: Front> File for F {
    fn read_at(&self, at: u64, into: &mut [u8]) -> io::Result<()> {
        self.below().read_at(at, into)
    }

    fn read_medium(&self, at: u64, into: &mut [u8]) -> io::Result<()> {
        self.below().read_medium(at, into)
    }

    fn forget_cached(&self) -> io::Result<()> {
        self.below().forget_cached()
    }

    fn write_at(&self, at: u64, bytes: &[u8]) -> io::Result<()> {
        Front::write_at(self, at, bytes)
    }

    fn write_durably(&self, at: u64, bytes: &[u8]) -> io::Result<()> {
        Front::write_durably(self, at, bytes)
    }

    fn sync_data(&self) -> io::Result<()> {
        Front::sync_data(self)
    }

    fn allocate(&self, at: u64, bytes: u64, zero: bool) -> io::Result<()> {
        Front::allocate(self, at, bytes, zero)
    }

    fn fill_holes(&self, at: u64, bytes: u64) -> io::Result<u64> {
        self.below().fill_holes(at, bytes)
    }

    fn first_hole(&self) -> io::Result<u64> {
        self.below().first_hole()
    }

    fn is_removed(&self) -> bool {
        self.below().is_removed()
    }

    fn bytes(&self) -> io::Result<u64> {
        self.below().bytes()
    }
}

/// A disk with each file behind a [`Front`].
pub struct Fronted<W> {
    below: Arc<dyn Disk>,
    wrap: W,
    /// The key; `None`: the key of the disk below.
    key: Option<KeySource>,
}

impl<W: Fn(Arc<dyn File>) -> Arc<dyn File> + Send + Sync> Fronted<W> {
    pub fn new(below: Arc<dyn Disk>, wrap: W) -> Fronted<W> {
        Fronted {
            below,
            wrap,
            key: None,
        }
    }
}

impl<W: Fn(Arc<dyn File>) -> Arc<dyn File> + Send + Sync> Disk for Fronted<W> {
    fn open(&self, name: &str, how: OpenHow) -> io::Result<Arc<dyn File>> {
        self.below.open(name, how).map(&self.wrap)
    }

    fn names(&self) -> io::Result<Vec<String>> {
        self.below.names()
    }

    fn lock(&self) -> io::Result<Box<dyn Any + Send + Sync>> {
        self.below.lock()
    }

    fn lock_files(&self) -> io::Result<Box<dyn Any + Send + Sync>> {
        self.below.lock_files()
    }

    fn put_file(&self, name: &str, bytes: &[u8]) -> io::Result<()> {
        self.below.put_file(name, bytes)
    }

    fn sync_dir(&self) -> io::Result<()> {
        self.below.sync_dir()
    }

    fn free_bytes(&self) -> io::Result<u64> {
        self.below.free_bytes()
    }

    fn is_raw(&self) -> bool {
        self.below.is_raw()
    }

    fn label(&self) -> String {
        self.below.label()
    }

    fn key(&self) -> Option<&KeySource> {
        self.key.as_ref().or_else(|| self.below.key())
    }
}

/// `below` with a key, so that its store is encrypted; without one, `below` itself.
pub fn keyed(below: Arc<dyn Disk>, key: Option<KeySource>) -> Arc<dyn Disk> {
    match key {
        None => below,
        key => Arc::new(Fronted {
            below,
            wrap: |file| file,
            key,
        }),
    }
}
