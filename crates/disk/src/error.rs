//! Errors of this crate, by the remedy.

use std::io;

/// Each variant's text names the remedy.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The device failed; data that is not on it yet is still in memory. Replace the device, or
    /// give up.
    #[error("{doing}: {source}")]
    Device {
        doing: &'static str,
        source: io::Error,
    },
    /// The flash file cannot be used: correct the path, its permissions, or the room on its file
    /// system.
    #[error("{doing} {path}: {source}")]
    Open {
        doing: &'static str,
        path: String,
        source: io::Error,
    },
    /// Configure more bytes, or another device.
    #[error("{bytes} bytes of flash are too few: {least} is the least")]
    TooSmall { bytes: u64, least: u64 },
    #[error("{bytes} bytes of flash are more than sectors can be numbered: {most} is the most")]
    TooLargeDevice { bytes: u64, most: u64 },
    /// Use a device with smaller sectors.
    #[error(
        "{path} is read and written past the page cache in units of {bytes} bytes; at most {most} can be used: choose a device or file system with smaller sectors"
    )]
    Alignment {
        path: String,
        bytes: usize,
        most: usize,
    },
    /// Another process uses it now, or the system does.
    #[error(
        "{path} is mounted, part of another device (RAID, LVM, swap), or in use by another process"
    )]
    InUse { path: String },
    /// Name another file: nothing was changed.
    #[error("{path} is {what}, and everything in it would be lost")]
    OfStore { path: String, what: String },
}

impl Error {
    pub(crate) fn device(doing: &'static str) -> impl FnOnce(io::Error) -> Error {
        move |source| Error::Device { doing, source }
    }
}
