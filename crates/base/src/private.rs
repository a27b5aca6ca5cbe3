//! Files and directories with data: other users of the machine can neither read them nor lock them.
//! Existing ones keep their modes.

use crate::open::open_data;
use rustix::fs::OFlags;
use std::fs::{DirBuilder, File, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::Path;

/// Mode of a new file.
pub const FILE_MODE: u32 = 0o600;
/// Mode of a new directory.
const DIR_MODE: u32 = 0o700;
/// Bits of a mode with which other users can list or enter a directory.
const OTHERS: u32 = 0o005;

/// Makes the directory, and those above it, if they do not exist.
///
/// # Errors
/// Those of the file system.
pub fn make_dir(path: &Path) -> io::Result<()> {
    let mut builder = DirBuilder::new();
    builder.recursive(true).mode(DIR_MODE).create(path)
}

/// Makes the directory. It did not exist.
///
/// # Errors
/// Those of the file system; the directory exists.
pub fn make_new_dir(path: &Path) -> io::Result<()> {
    DirBuilder::new().mode(DIR_MODE).create(path)
}

/// As [`File::create`].
///
/// # Errors
/// As [`open_data`].
pub fn make_file(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(true);
    open_data(options.mode(FILE_MODE), OFlags::empty(), path)
}

/// As [`File::create_new`].
///
/// # Errors
/// Those of the file system; the file exists.
pub fn make_new_file(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create_new(true);
    open_data(options.mode(FILE_MODE), OFlags::empty(), path)
}

/// Whether all users of the machine can enter or list the directory.
pub fn is_open_to_others(dir: &Path) -> bool {
    let found = dir.metadata();
    found.is_ok_and(|found| found.is_dir() && found.mode() & OTHERS != 0)
}
