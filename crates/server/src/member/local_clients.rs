//! Takes over clients on this machine: makes the memory that each of them shares with the server.
//! That takes up to 10 ms for a large ring, and the node's thread must answer pings meanwhile.
//!
//! **Concurrency**: a thread of its own, which receives the connections from the node's thread.

use super::workers::spawn;
use crate::doors::Doors;
use duramen_config::ServerError;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::mpsc::{self, Sender};
use std::thread::JoinHandle;

/// Dropping it takes over the connections that still wait, and ends the thread.
pub(super) struct LocalClients {
    waiting: Option<Sender<(OwnedFd, SocketAddr)>>,
    thread: Option<JoinHandle<()>>,
}

impl LocalClients {
    pub fn start(doors: &Arc<Doors>) -> Result<LocalClients, ServerError> {
        let (waiting, connections) = mpsc::channel();
        let doors = Arc::clone(doors);
        let thread = spawn("local", move || {
            for (fd, peer) in connections {
                doors.hand_over_local(fd, peer);
            }
        })?;
        Ok(LocalClients {
            waiting: Some(waiting),
            thread: Some(thread),
        })
    }

    /// To be called after both hellos.
    pub fn take_over(&self, fd: OwnedFd, peer: SocketAddr) {
        if let Some(waiting) = &self.waiting {
            // This fails only if the thread has panicked; then the client uses TCP.
            let _ = waiting.send((fd, peer));
        }
    }
}

impl Drop for LocalClients {
    fn drop(&mut self) {
        self.waiting = None;
        if let Some(thread) = self.thread.take() {
            // The thread itself has reported a panic.
            let _ = thread.join();
        }
    }
}
