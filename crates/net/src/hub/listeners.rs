//! The listening sockets of a hub.

use super::poller::Poller;
use crate::socket;
use rustix::io::Errno;
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

/// The address of peers on Unix sockets, which have none.
const LOCAL_PEER: SocketAddr = SocketAddr::V4(SocketAddrV4::new(Ipv4Addr::LOCALHOST, 0));

#[derive(Debug)]
struct Listener {
    fd: OwnedFd,
    is_resting: bool,
    is_local: bool,
}

#[derive(Debug, Default)]
pub(super) struct Listeners {
    /// Dropped before `listeners`: a socket's file is removed while the ports are still taken, so
    /// that it is not the file of the next process on these ports.
    socket_files: Vec<SocketFile>,
    listeners: Vec<Listener>,
}

/// A connection that came by a listener.
#[derive(Debug)]
pub(super) struct Caller {
    pub fd: OwnedFd,
    pub peer: SocketAddr,
    pub is_local: bool,
}

impl Listeners {
    /// See [`Hub::listen`](crate::Hub::listen).
    pub fn listen(&mut self, poller: &Poller, address: SocketAddr) -> std::io::Result<SocketAddr> {
        let (fd, address) = socket::listen(address)?;
        self.add(poller, fd, false)?;
        Ok(address)
    }

    /// See [`Hub::listen_locally`](crate::Hub::listen_locally).
    pub fn listen_locally(&mut self, poller: &Poller, path: &Path) -> std::io::Result<()> {
        let fd = socket::listen_locally(path)?;
        self.socket_files.push(SocketFile(path.to_owned()));
        self.add(poller, fd, true)
    }

    fn add(&mut self, poller: &Poller, fd: OwnedFd, is_local: bool) -> std::io::Result<()> {
        poller.watch_listener(self.listeners.len(), &fd)?;
        self.listeners.push(Listener {
            fd,
            is_resting: false,
            is_local,
        });
        Ok(())
    }

    /// The next connection of a listener; `None` if it is gone already, or its address is of no
    /// known kind.
    pub fn accept(&self, number: usize) -> Result<Option<Caller>, Errno> {
        let Listener { fd, is_local, .. } = &self.listeners[number];
        match socket::accept(fd) {
            Ok((fd, peer)) => {
                let peer = peer.or(is_local.then_some(LOCAL_PEER));
                Ok(peer.map(|peer| Caller {
                    fd,
                    peer,
                    is_local: *is_local,
                }))
            }
            Err(Errno::INTR | Errno::CONNABORTED | Errno::PROTO) => Ok(None),
            Err(errno) => Err(errno),
        }
    }

    /// Stops to watch a listener: its connections stay in the system's queue.
    pub fn rest(&mut self, poller: &Poller, number: usize) {
        self.listeners[number].is_resting = true;
        poller.let_listener_rest(number, &self.listeners[number].fd, true);
    }

    /// Watches all listeners again.
    pub fn go_on(&mut self, poller: &Poller) {
        let listeners = self.listeners.iter_mut().enumerate();
        for (number, listener) in listeners.filter(|(_, listener)| listener.is_resting) {
            listener.is_resting = false;
            poller.let_listener_rest(number, &listener.fd, false);
        }
    }
}

/// The file of a Unix socket; removed when dropped.
#[derive(Debug)]
struct SocketFile(PathBuf);

impl Drop for SocketFile {
    fn drop(&mut self) {
        // This fails only if the file was removed before.
        let _ = std::fs::remove_file(&self.0);
    }
}
