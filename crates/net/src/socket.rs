//! Sockets with the options of the native protocol.

use crate::Reason;
use rustix::fs::Mode;
use rustix::io::Errno;
use rustix::ioctl;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, ipproto, sockopt};
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileTypeExt as _;
use std::path::Path;
use std::time::Duration;

/// `linux/sockios.h`; the same on all architectures that this program is built for.
const SIOCOUTQ: ioctl::Opcode = 0x5411;
const BACKLOG: i32 = 1024;
/// After this time of silence a peer is probed, then every [`KEEPALIVE_EVERY`].
const KEEPALIVE_IDLE: Duration = Duration::from_secs(10);
const KEEPALIVE_EVERY: Duration = Duration::from_secs(5);
const KEEPALIVE_COUNT: u32 = 3;

fn socket(address: SocketAddr) -> Result<OwnedFd, Errno> {
    let family = match address {
        SocketAddr::V4(_) => AddressFamily::INET,
        SocketAddr::V6(_) => AddressFamily::INET6,
    };
    rustix::net::socket_with(
        family,
        SocketType::STREAM,
        SocketFlags::CLOEXEC | SocketFlags::NONBLOCK,
        Some(ipproto::TCP),
    )
}

/// A listening socket and its actual address.
pub(crate) fn listen(address: SocketAddr) -> Result<(OwnedFd, SocketAddr), Errno> {
    let listener = socket(address)?;
    sockopt::set_socket_reuseaddr(&listener, true)?;
    if address.is_ipv6() {
        sockopt::set_ipv6_v6only(&listener, true)?;
    }
    rustix::net::bind(&listener, &address)?;
    rustix::net::listen(&listener, BACKLOG)?;
    let address = rustix::net::getsockname(&listener).and_then(TryInto::try_into)?;
    Ok((listener, address))
}

/// A listening Unix socket at this path, for this user alone. A socket there on which no process
/// listens any more is replaced.
pub(crate) fn listen_locally(path: &Path) -> Result<OwnedFd, Errno> {
    let address = SocketAddrUnix::new(path)?;
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let unix = || rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None);
    let is_socket = std::fs::symlink_metadata(path).is_ok_and(|it| it.file_type().is_socket());
    if is_socket && rustix::net::connect(unix()?, &address) == Err(Errno::CONNREFUSED) {
        rustix::fs::unlink(path)?;
    }
    let listener = unix()?;
    // The mode is set before the file exists, which then gets this mode.
    rustix::fs::fchmod(&listener, Mode::RUSR | Mode::WUSR)?;
    rustix::net::bind(&listener, &address)?;
    rustix::net::listen(&listener, BACKLOG)?;
    Ok(listener)
}

/// The next connection.
pub(crate) fn accept(listener: impl AsFd) -> Result<(OwnedFd, Option<SocketAddr>), Errno> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let (fd, peer) = rustix::net::acceptfrom_with(listener, flags)?;
    Ok((fd, peer.and_then(|peer| peer.try_into().ok())))
}

/// Starts to connect; the result is known when the socket is writable, see [`connected`].
pub(crate) fn connect(address: SocketAddr) -> Result<OwnedFd, Errno> {
    let fd = socket(address)?;
    match rustix::net::connect(&fd, &address) {
        Ok(()) | Err(Errno::INPROGRESS) => Ok(fd),
        Err(errno) => Err(errno),
    }
}

/// Whether a started connection is established.
pub(crate) fn connected(fd: impl AsFd) -> Result<(), Errno> {
    sockopt::socket_error(fd)?
}

/// Reason why a socket could not be connected.
pub(crate) fn not_connected(errno: Errno) -> Reason {
    match errno {
        Errno::CONNREFUSED => Reason::NobodyListens,
        _ => Reason::Unreachable(errno.to_string()),
    }
}

/// Reason why an established connection broke. Only a reset is certainly caused by the other side.
pub(crate) fn broken(errno: Errno) -> Reason {
    match errno {
        Errno::CONNRESET | Errno::PIPE => Reason::Reset,
        _ => Reason::Broken(errno.to_string()),
    }
}

/// Sends small frames at once, and detects peers that are cut off: `patience` is how long sent
/// bytes may remain unacknowledged by the other system.
pub(crate) fn tune(fd: impl AsFd, patience: Duration) {
    // Each call fails only where the system has no such option, and the connection then works
    // without it.
    let _ = sockopt::set_tcp_nodelay(&fd, true);
    let _ = sockopt::set_socket_keepalive(&fd, true);
    let _ = sockopt::set_tcp_keepidle(&fd, KEEPALIVE_IDLE);
    let _ = sockopt::set_tcp_keepintvl(&fd, KEEPALIVE_EVERY);
    let _ = sockopt::set_tcp_keepcnt(&fd, KEEPALIVE_COUNT);
    // A request that was lost is sent again at constant intervals at first, not ever later.
    let _ = sockopt::set_tcp_thin_linear_timeouts(&fd, true);
    let _ = sockopt::set_tcp_user_timeout(&fd, patience.as_millis() as u32);
}

/// Sent bytes that the other side's system has not acknowledged; 0 if this system cannot tell.
pub(crate) fn unacknowledged(fd: impl AsFd) -> usize {
    // SAFETY: SIOCOUTQ writes one `c_int`, the output type of this getter.
    let bytes = unsafe {
        let getter = ioctl::Getter::<{ SIOCOUTQ }, std::ffi::c_int>::new();
        ioctl::ioctl(fd, getter)
    };
    bytes.map_or(0, |bytes| usize::try_from(bytes).unwrap_or(0))
}
