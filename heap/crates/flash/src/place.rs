//! The place of a checkpoint's file: only a checkpoint is ever replaced.
//!
//! **Invariants**
//! - W1: a file at a checkpoint's path, or at the path beside it for writing, is replaced only if
//!   it is empty, a checkpoint, or, beside, an unfinished checkpoint. It is never the flash file,
//!   whatever its name, and no link is followed.

use crate::error::Error;
use crate::pieces::{HEADER_BYTES, MAGIC};
use duramen_disk::Device;
use rustix::fs::{Mode, OFlags};
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

/// The path at which the checkpoint for `path` is written.
pub(crate) fn beside(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".new");
    PathBuf::from(name)
}

/// Whether a checkpoint can be made at `path` (W1).
///
/// # Errors
/// [`Error::Occupied`], [`Error::Device`].
pub(crate) fn check(path: &Path, device: &dyn Device) -> Result<(), Error> {
    for (place, is_beside) in [(path, false), (&beside(path), true)] {
        let why = occupied(place, is_beside, device);
        if let Some(why) = why.map_err(Error::device("looking at the checkpoint's path"))? {
            return Err(Error::Occupied {
                path: place.display().to_string(),
                why,
            });
        }
    }
    Ok(())
}

/// The reason why a place cannot be used.
fn occupied(
    place: &Path,
    is_beside: bool,
    device: &dyn Device,
) -> io::Result<Option<&'static str>> {
    let found = match place.symlink_metadata() {
        Ok(found) => found,
        Err(error) if is_free(&error) => return Ok(None),
        Err(error) => return Err(error),
    };
    if !found.is_file() {
        return Ok(Some("it is no regular file"));
    }
    if device.lies_in(&found) {
        return Ok(Some("it is the flash file"));
    }
    if found.len() == 0 {
        return Ok(None);
    }
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
    let file = match rustix::fs::open(place, flags, Mode::empty()) {
        Ok(file) => File::from(file),
        Err(error) => return Err(error.into()),
    };
    let mut header = Vec::with_capacity(HEADER_BYTES);
    file.take(HEADER_BYTES as u64).read_to_end(&mut header)?;
    let is_checkpoint = header.starts_with(&MAGIC);
    // The header is written last.
    let is_unfinished = is_beside && header.iter().all(|byte| *byte == 0);
    Ok((!is_checkpoint && !is_unfinished).then_some("it holds something that is no checkpoint"))
}

/// Whether the error says that the place is empty. A missing directory is reported when the file is
/// created.
fn is_free(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::NotFound
}
