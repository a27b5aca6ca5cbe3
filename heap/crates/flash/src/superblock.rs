//! The superblock of a device: its two copies, and the work that is due before it is written again.

use crate::error::Error;
use crate::layout::{FORMAT, SUPERBLOCK_BYTES, Superblock};
use duramen_disk::{Aligned, Device};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::path::PathBuf;

/// Random enough that no two lives and no two devices are the same.
pub(crate) fn drawn() -> u64 {
    let mut hasher = RandomState::new().build_hasher();
    hasher.write_u32(std::process::id());
    hasher.finish()
}

/// The newest superblock; `None`: there is none.
pub(crate) fn superblock_of(device: &dyn Device) -> Result<Option<Superblock>, Error> {
    let mut both = Aligned::zeroed(2 * SUPERBLOCK_BYTES);
    device
        .read_at(0, both.bytes_mut())
        .map_err(Error::device("reading the superblock"))?;
    let mut newest: Option<Superblock> = None;
    for copy in both.bytes().chunks(SUPERBLOCK_BYTES) {
        let found = Superblock::decode(copy).map_err(|found| Error::Newer {
            what: "the flash file".to_owned(),
            found,
            known: FORMAT,
        })?;
        newest = newest.max_by_version(found);
    }
    Ok(newest)
}

/// Work that is left over before another checkpoint can be made.
#[derive(Default)]
pub(crate) enum Unsettled {
    #[default]
    No,
    /// A file of the next checkpoint's number was given up: the number must not be used again. If a
    /// path is named, the last checkpoint's file at that path was moved away for a moment; its
    /// return must become durable first.
    Void(Option<PathBuf>),
    /// The next checkpoint's file is in place, so it becomes the last one. If a path is named, the
    /// replacement must become durable first.
    Replaced(Option<PathBuf>),
}

trait Newest {
    fn max_by_version(self, other: Self) -> Self;
}

impl Newest for Option<Superblock> {
    fn max_by_version(self, other: Self) -> Self {
        match (self, other) {
            (Some(one), Some(two)) if two.version > one.version => Some(two),
            (None, other) => other,
            (one, _) => one,
        }
    }
}

/// Writes one of the two copies, the older one, and syncs.
pub(crate) fn write_superblock(device: &dyn Device, superblock: &Superblock) -> Result<(), Error> {
    let mut copy = Aligned::zeroed(SUPERBLOCK_BYTES);
    copy.bytes_mut().copy_from_slice(&superblock.encode());
    let at = superblock.version % 2 * SUPERBLOCK_BYTES as u64;
    device
        .write_at(at, copy.bytes())
        .and_then(|()| device.sync())
        .map_err(Error::device("writing the superblock"))
}
