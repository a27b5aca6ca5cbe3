//! A device as slow as one of the paper's: a disk in RAM, as a loop device with a file system, that
//! the kernel holds to the rates of a real one. Needs root and the blkio controller of cgroups of
//! version 1, in whose root group all I/O counts: also that of mapped files and of swap.
//!
//! The limits hold each for itself, where a real device has one budget for all, and say nothing
//! about response times.

use crate::harness::{Doing, Failure, Result, Undo, progress};
use crate::servers::Scratch;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Of the rates: a file for each, by device.
const LIMITS: &str = "/sys/fs/cgroup/blkio";
const LIMITED: [&str; 4] = ["read_iops", "read_bps", "write_iops", "write_bps"];
/// A file system in RAM.
const MEMORY: &str = "/dev/shm";

/// Most requests and bytes in a second; 0: any number.
#[derive(Clone, Copy, Debug)]
pub struct Rates {
    pub name: &'static str,
    pub reads: u64,
    pub read_bytes: u64,
    pub writes: u64,
    pub written_bytes: u64,
}

/// Intel's `X25-E` [Badam11 Table 3]: reads and writes of 512 bytes, bytes of reads of 4 KiB; bytes
/// written by its data sheet.
pub const INTEL_SSD: Rates = Rates {
    name: "as an Intel X25-E",
    reads: 44_000,
    read_bytes: 26_000 * 4096,
    writes: 2_700,
    written_bytes: 170_000_000,
};

/// The device, mounted; it is gone when this is dropped.
pub struct Throttled {
    mount: PathBuf,
    // In this order: the device goes before the file that it consists of.
    _undo: Undo,
    _scratch: Scratch,
}

impl Throttled {
    /// A device of `bytes` bytes, which take as much RAM.
    ///
    /// # Errors
    /// No root, no such controller, no loop device, no RAM.
    pub fn new(rates: &Rates, bytes: u64) -> Result<Throttled> {
        let scratch = Scratch::new(Path::new(MEMORY)).doing(format!("a directory in {MEMORY}"))?;
        let (file, mount) = (scratch.path().join("disk"), scratch.path().join("mount"));
        std::fs::create_dir(&mount).doing("a directory to mount a device on")?;
        // All RAM of the disk is taken here, and counts for no group of a program.
        let file_name = file.display().to_string();
        said("fallocate", &["-l", &bytes.to_string(), &file_name])?;
        let device = said("losetup", &["--find", "--show", &file_name])?;
        let (mounted, attached) = (mount.display().to_string(), device.clone());
        let undo = Undo::new(move || take_down(&mounted, &attached));
        let throttled = Throttled {
            mount,
            _undo: undo,
            _scratch: scratch,
        };
        // No journal: all writes are those of the measured program.
        let made = [
            "-q",
            "-E",
            "nodiscard,lazy_itable_init=0",
            "-O",
            "^has_journal",
        ];
        said("mkfs.ext4", &[&made[..], &[&device]].concat())?;
        let path = throttled.mount.display().to_string();
        said("mount", &[&device, &path])?;
        limit(&device, rates)?;
        Ok(throttled)
    }

    /// A directory on the device.
    pub fn path(&self) -> &Path {
        &self.mount
    }
}

/// Sets the limits.
fn limit(device: &str, rates: &Rates) -> Result<()> {
    let most = [
        rates.reads,
        rates.read_bytes,
        rates.writes,
        rates.written_bytes,
    ];
    let number = std::fs::metadata(device).doing(device)?.rdev();
    for (name, most) in LIMITED.iter().zip(most) {
        let file = format!("{LIMITS}/blkio.throttle.{name}_device");
        let (major, minor) = (libc::major(number), libc::minor(number));
        std::fs::write(&file, format!("{major}:{minor} {most}")).doing(&file)?;
    }
    Ok(())
}

/// Ends the limits, which the kernel would keep for the next device of this name, and the device.
fn take_down(mounted: &str, device: &str) {
    let free = Rates {
        name: "",
        reads: 0,
        read_bytes: 0,
        writes: 0,
        written_bytes: 0,
    };
    let done = [
        limit(device, &free),
        said("umount", &[mounted]).map(drop),
        said("losetup", &["--detach", device]).map(drop),
    ];
    for failure in done.into_iter().filter_map(Result::err) {
        progress!("{failure}");
    }
}

/// Runs a tool to its end; its output.
fn said(tool: &str, arguments: &[&str]) -> Result<String> {
    let about = format!("{tool} {}", arguments.join(" "));
    let output = Command::new(tool)
        .args(arguments)
        .stdin(Stdio::null())
        .output()
        .doing(&about)?;
    if !output.status.success() {
        return Err(Failure::new(about, String::from_utf8_lossy(&output.stderr)));
    }
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}
