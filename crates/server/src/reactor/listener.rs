//! Listening sockets: one per address and thread, sharing the port by SO_REUSEPORT.

use duramen_config::{ServerConfig, ServerError};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, ipproto, sockopt};
use std::net::SocketAddr;
use std::os::fd::OwnedFd;

/// A listening socket of one thread.
pub(crate) struct Listener {
    pub(super) fd: OwnedFd,
    /// Its clients speak TLS.
    pub(super) is_tls: bool,
}

/// The listeners of one thread.
pub(crate) type Listeners = Vec<Listener>;

/// The listeners of all threads, and their addresses.
pub(crate) struct Bound {
    pub(crate) by_thread: Vec<Listeners>,
    pub(crate) plain: Vec<SocketAddr>,
    pub(crate) tls: Vec<SocketAddr>,
}

/// Binds `threads` listeners for each of the configured addresses and ports.
///
/// # Errors
/// [`ServerError::Listen`] with the address.
pub(crate) fn bind(config: &ServerConfig, threads: usize) -> Result<Bound, ServerError> {
    let mut by_thread: Vec<Listeners> = (0..threads).map(|_| Vec::new()).collect();
    let (mut plain, mut tls) = (Vec::new(), Vec::new());
    if config.serves_plain() {
        plain = bind_port(config, config.port, false, &mut by_thread)?;
    }
    if config.tls_port != 0 {
        tls = bind_port(config, config.tls_port, true, &mut by_thread)?;
    }
    Ok(Bound {
        by_thread,
        plain,
        tls,
    })
}

/// Binds listeners of one port for all threads; returns their addresses.
fn bind_port(
    config: &ServerConfig,
    mut port: u16,
    is_tls: bool,
    by_thread: &mut [Listeners],
) -> Result<Vec<SocketAddr>, ServerError> {
    let mut addresses = Vec::new();
    for ip in &config.bind {
        let mut address = SocketAddr::new(*ip, port);
        // Sockets with SO_REUSEPORT would silently share a port with another server of the same
        // user: check first.
        if address.port() != 0 {
            drop(listen(address, config, false).map_err(refused(address))?);
        }
        for listeners in &mut *by_thread {
            let fd = listen(address, config, true).map_err(refused(address))?;
            address = rustix::net::getsockname(&fd)
                .and_then(TryInto::try_into)
                .map_err(refused(address))?;
            listeners.push(Listener { fd, is_tls });
        }
        port = address.port();
        addresses.push(address);
    }
    Ok(addresses)
}

fn refused(address: SocketAddr) -> impl Fn(Errno) -> ServerError {
    move |source| ServerError::Listen {
        address,
        purpose: "RESP",
        source: source.into(),
    }
}

fn listen(address: SocketAddr, config: &ServerConfig, share: bool) -> Result<OwnedFd, Errno> {
    let family = match address {
        SocketAddr::V4(_) => AddressFamily::INET,
        SocketAddr::V6(_) => AddressFamily::INET6,
    };
    let socket = rustix::net::socket_with(
        family,
        SocketType::STREAM,
        SocketFlags::CLOEXEC | SocketFlags::NONBLOCK,
        Some(ipproto::TCP),
    )?;
    sockopt::set_socket_reuseaddr(&socket, true)?;
    sockopt::set_socket_reuseport(&socket, share)?;
    if family == AddressFamily::INET6 {
        sockopt::set_ipv6_v6only(&socket, true)?;
    }
    // Accepted sockets inherit these.
    sockopt::set_tcp_nodelay(&socket, true)?;
    if config.tcp_keepalive_s > 0 {
        let idle = std::time::Duration::from_secs(config.tcp_keepalive_s);
        sockopt::set_socket_keepalive(&socket, true)?;
        sockopt::set_tcp_keepidle(&socket, idle)?;
        sockopt::set_tcp_keepintvl(&socket, (idle / 3).max(std::time::Duration::from_secs(1)))?;
        sockopt::set_tcp_keepcnt(&socket, 3)?;
    }
    rustix::net::bind(&socket, &address)?;
    rustix::net::listen(&socket, config.tcp_backlog as i32)?;
    Ok(socket)
}
