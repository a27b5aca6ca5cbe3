//! The Unix socket for RESP clients on this machine (`unixsocket`).
//!
//! **Invariants**
//! - X1: only a socket of this user on which no process listens is replaced; every other file at
//!   the path stays, and the server does not start.
//! - X2: the file has its permissions before it can be opened, and is removed at the end, unless
//!   another file has taken its place.

use super::listener::Listener;
use duramen_config::{ServerConfig, ServerError};
use rustix::fs::Mode;
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};

/// The address of clients at the Unix socket, which have none.
pub(super) const PEER: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0);

/// The file of the socket; removed when dropped (X2).
pub(crate) struct SocketFile {
    path: PathBuf,
    device_and_inode: (u64, u64),
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        if identity(&self.path).is_ok_and(|now| now == self.device_and_inode) {
            // It fails only if a person has removed it.
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

fn identity(path: &Path) -> io::Result<(u64, u64)> {
    let found = std::fs::symlink_metadata(path)?;
    Ok((found.dev(), found.ino()))
}

/// The listening socket of `unixsocket`; `None` if the setting is empty.
///
/// # Errors
/// [`ServerError::File`] with the reason.
pub(crate) fn listen_at(
    config: &ServerConfig,
) -> Result<Option<(Listener, SocketFile)>, ServerError> {
    if config.access.unixsocket.is_empty() {
        return Ok(None);
    }
    let path = std::path::absolute(&config.access.unixsocket);
    let path = path.unwrap_or_else(|_| PathBuf::from(&config.access.unixsocket));
    let failed = |source| ServerError::File {
        doing: "listen on the Unix socket",
        path: path.clone(),
        source,
    };
    make_room(&path).map_err(failed)?;
    let listener = listen(&path, config).map_err(|errno| failed(errno.into()))?;
    let device_and_inode = identity(&path).map_err(failed)?;
    let file = SocketFile {
        path,
        device_and_inode,
    };
    let listener = Listener {
        fd: listener,
        is_tls: false,
    };
    Ok(Some((listener, file)))
}

fn unix() -> Result<OwnedFd, Errno> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)
}

fn listen(path: &Path, config: &ServerConfig) -> Result<OwnedFd, Errno> {
    let listener = unix()?;
    // Before the file exists: it gets this mode, less the process's umask.
    let mode = Mode::from_raw_mode(config.unixsocket_mode().unwrap_or(0o700));
    rustix::fs::fchmod(&listener, mode)?;
    rustix::net::bind(&listener, &SocketAddrUnix::new(path)?)?;
    // No client can connect before `listen`.
    rustix::fs::chmod(path, mode)?;
    rustix::net::listen(&listener, config.tcp_backlog as i32)?;
    Ok(listener)
}

/// Removes the socket of a server that was killed (X1).
fn make_room(path: &Path) -> io::Result<()> {
    let refuse = |why: &str| Err(io::Error::other(why.to_owned()));
    let found = match std::fs::symlink_metadata(path) {
        Ok(found) => found,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error),
    };
    if !found.file_type().is_socket() {
        return refuse("another file is there, which is no socket: choose another path");
    }
    if found.uid() != rustix::process::geteuid().as_raw() {
        return refuse("the socket there belongs to another user: choose another path");
    }
    match rustix::net::connect(unix()?, &SocketAddrUnix::new(path)?) {
        Err(Errno::CONNREFUSED) => std::fs::remove_file(path),
        Err(Errno::NOENT) => Ok(()),
        _ => refuse("another process listens there: stop it, or choose another path"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use duramen_config::AccessConfig;
    use std::os::unix::fs::PermissionsExt as _;
    use std::os::unix::net::{UnixListener, UnixStream};

    fn config(path: &Path) -> ServerConfig {
        ServerConfig {
            access: AccessConfig {
                unixsocket: path.display().to_string(),
                unixsocketperm: "770".to_owned(),
                ..AccessConfig::default()
            },
            ..ServerConfig::default()
        }
    }

    #[test]
    fn a_stale_socket_is_replaced_and_the_file_goes_at_the_end() {
        let dir = tempfile::tempdir().expect("a folder");
        let path = dir.path().join("s");
        drop(UnixListener::bind(&path).expect("a socket")); // its file stays
        let (listener, file) = listen_at(&config(&path)).expect("listens").expect("is set");
        let mode = path.metadata().expect("it is there").permissions().mode();
        assert_eq!(mode & 0o777, 0o770);
        UnixStream::connect(&path).expect("it listens");
        assert!(listen_at(&config(&path)).is_err(), "X1: it is in use");
        drop(listener);
        drop(file);
        assert!(!path.exists(), "X2");
    }

    #[test]
    fn other_files_stay() {
        let dir = tempfile::tempdir().expect("a folder");
        let (path, link) = (dir.path().join("f"), dir.path().join("l"));
        std::fs::write(&path, "mine").expect("a file");
        std::os::unix::fs::symlink(&path, &link).expect("a link");
        for path in [&path, &link] {
            let error = listen_at(&config(path)).err().expect("X1").to_string();
            assert!(error.contains("no socket"), "{error}");
        }
        assert_eq!(std::fs::read(&path).expect("it stays"), b"mine");
        let stale = dir.path().join("s");
        drop(UnixListener::bind(&stale).expect("a socket"));
        let link = dir.path().join("to-socket");
        std::os::unix::fs::symlink(&stale, &link).expect("a link");
        assert!(listen_at(&config(&link)).is_err(), "X1: a link");
        // Another server's file at the path stays at our end.
        let path = dir.path().join("ours");
        let (_listener, file) = listen_at(&config(&path)).expect("listens").expect("is set");
        std::fs::remove_file(&path).expect("a person removes it");
        let _other = UnixListener::bind(&path).expect("another socket");
        drop(file);
        assert!(path.exists(), "X2");
    }
}
