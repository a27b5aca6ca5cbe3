//! Opens files with data, and logs.
//!
//! **Invariants**
//! - P1: for data, only a regular file or a block device is opened. The thread waits for nothing
//!   but a file server with a lease on the file, for some seconds at most. A pipe without a writer
//!   would block it for ever.
//! - P2: no descriptor is one of the three standard ones. In a program that was started with one of
//!   them closed, the program's own output would go into the file.

use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::io::{Errno, fcntl_dupfd_cloexec};
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::Path;
use std::time::{Duration, Instant};

/// The lowest descriptor that is not a standard one.
pub const DESCRIPTOR_MIN: RawFd = libc::STDERR_FILENO + 1;

/// A file server with a lease on a file gives the lease back within this time.
const LEASE_PATIENCE: Duration = Duration::from_secs(5);
const LEASE_LOOK: Duration = Duration::from_millis(20);

/// Opens a file with these options, and with these flags in place of the options' own ones (P1,
/// P2).
///
/// # Errors
/// Those of the file system; the path is neither a regular file nor a block device.
pub fn open_data(options: &mut OpenOptions, flags: OFlags, path: &Path) -> io::Result<File> {
    let flags = flags | OFlags::NONBLOCK;
    options.custom_flags(flags.bits().cast_signed());
    let opened = while_leased(|| options.open(path));
    let file = match opened {
        Err(error) if Errno::from_io_error(&error) == Some(Errno::NXIO) => return Err(no_data()),
        opened => above_standard(opened?)?,
    };
    let kind = file.metadata()?.file_type();
    if !kind.is_file() && !kind.is_block_device() {
        return Err(no_data());
    }
    // The flag is removed, because io_uring would not wait for the device with it.
    fcntl_setfl(&file, fcntl_getfl(&file)?.difference(OFlags::NONBLOCK))?;
    Ok(file)
}

/// As [`open_data`], to read an existing file.
///
/// # Errors
/// As [`open_data`].
pub fn open_to_read(path: &Path) -> io::Result<File> {
    open_data(File::options().read(true), OFlags::empty(), path)
}

/// Opens a log to append to it, and makes it with these options if it does not exist. A pipe is
/// opened if a process reads it, and no reader is waited for. Writes wait as usual.
///
/// # Errors
/// Those of the file system; the path is a pipe without a reader.
pub fn open_log(options: &mut OpenOptions, path: &Path) -> io::Result<File> {
    options.custom_flags(OFlags::NONBLOCK.bits().cast_signed());
    let file = match options.append(true).create(true).open(path) {
        Err(error) if Errno::from_io_error(&error) == Some(Errno::NXIO) => {
            return Err(io::Error::other("it is a pipe that no process reads"));
        }
        opened => opened?,
    };
    fcntl_setfl(&file, fcntl_getfl(&file)?.difference(OFlags::NONBLOCK))?;
    Ok(file)
}

/// Drops the pages of a file that the system keeps in memory, as far as they are not dirty: later
/// reads show the medium. After a sync that failed, in this process or an earlier one, pages are
/// clean although they are not on the medium.
///
/// # Errors
/// Those of the file system.
pub fn forget_cached(file: &File) -> io::Result<()> {
    rustix::fs::fadvise(file, 0, None, rustix::fs::Advice::DontNeed)?;
    Ok(())
}

/// Opens again until no lease is in the way: without waiting, the kernel only asks for it back.
fn while_leased(mut open: impl FnMut() -> io::Result<File>) -> io::Result<File> {
    let since = Instant::now();
    loop {
        match open() {
            Err(error)
                if error.kind() == io::ErrorKind::WouldBlock
                    && since.elapsed() < LEASE_PATIENCE =>
            {
                std::thread::sleep(LEASE_LOOK);
            }
            opened => return opened,
        }
    }
}

fn no_data() -> io::Error {
    io::Error::other("it is neither a regular file nor a block device")
}

/// The same open file, under a descriptor that is not a standard one (P2).
///
/// # Errors
/// The process has too many descriptors.
pub fn above_standard<T: From<OwnedFd> + Into<OwnedFd>>(file: T) -> io::Result<T> {
    let file = file.into();
    if file.as_raw_fd() >= DESCRIPTOR_MIN {
        return Ok(file.into());
    }
    Ok(fcntl_dupfd_cloexec(&file, DESCRIPTOR_MIN)?.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;
    use std::time::Duration;

    fn open_in_time(path: &Path, writes: bool) -> io::Result<File> {
        let (done, opened) = mpsc::channel();
        let path = path.to_owned();
        std::thread::spawn(move || {
            let mut options = File::options();
            let _ = done.send(open_data(
                options.read(true).write(writes),
                OFlags::empty(),
                &path,
            ));
        });
        let opened = opened.recv_timeout(Duration::from_secs(60));
        opened.expect("to open a file does not wait (P1)")
    }

    /// A file that a Samba server had open could not be opened any more.
    #[test]
    fn a_lease_is_waited_for() {
        let mut left = 3;
        let opened = while_leased(|| {
            left -= 1;
            match left {
                0 => tempfile::tempfile(),
                _ => Err(Errno::AGAIN.into()),
            }
        });
        assert!(opened.is_ok(), "P1");
    }

    #[test]
    fn a_log_may_be_a_pipe_that_is_read() {
        let folder = tempfile::tempdir().unwrap();
        let pipe = folder.path().join("pipe");
        let made = std::process::Command::new("mkfifo").arg(&pipe).status();
        assert!(made.unwrap().success());
        let error = open_log(&mut File::options(), &pipe).expect_err("nobody reads it");
        assert!(error.to_string().contains("no process reads"), "{error}");
        let flags = OFlags::NONBLOCK.bits().cast_signed();
        let reader = File::options().read(true).custom_flags(flags).open(&pipe);
        let log = open_log(&mut File::options(), &pipe).unwrap();
        assert!(!fcntl_getfl(&log).unwrap().contains(OFlags::NONBLOCK));
        drop(reader);
    }

    /// A pipe named `superblock` in a neighbour's folder blocked the first start of a server.
    #[test]
    fn a_pipe_is_refused_and_not_waited_for() {
        let folder = tempfile::tempdir().unwrap();
        let pipe = folder.path().join("pipe");
        let made = std::process::Command::new("mkfifo").arg(&pipe).status();
        assert!(made.unwrap().success());
        let socket = folder.path().join("socket");
        let _listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
        for (path, writes) in [
            (pipe.as_path(), false),
            (pipe.as_path(), true),
            (socket.as_path(), false),
            (folder.path(), false),
            (Path::new("/dev/zero"), true),
        ] {
            let error = open_in_time(path, writes).expect_err("it is no file with data");
            assert!(
                error.to_string().contains("neither a regular file"),
                "{}: {error}",
                path.display()
            );
        }
        let file = folder.path().join("file");
        std::fs::write(&file, "x").unwrap();
        let opened = open_in_time(&file, true).unwrap();
        let flags = fcntl_getfl(&opened).unwrap();
        assert!(!flags.contains(OFlags::NONBLOCK), "reads wait as usual");
    }
}
