//! Names of hosts, looked up on a thread of their own: that may take seconds.

use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::{Arc, Mutex, PoisonError};

/// What was found, by link.
pub(crate) type Found = Vec<(usize, Result<SocketAddr, String>)>;

/// Answers that wait for the hub's thread.
#[derive(Clone, Debug, Default)]
pub(crate) struct Resolver {
    found: Arc<Mutex<Found>>,
}

impl Resolver {
    /// Looks up `host:port` and calls `wake` when that is done.
    pub fn look_up(&self, link: usize, address: &str, wake: impl FnOnce() + Send + 'static) {
        let (found, address) = (Arc::clone(&self.found), address.to_owned());
        let job = move || {
            let result = match address.to_socket_addrs() {
                Ok(mut all) => all
                    .next()
                    .ok_or_else(|| format!("`{address}` has no address")),
                Err(error) => Err(format!("`{address}`: {error}")),
            };
            push(&found, link, result);
            wake();
        };
        let started = std::thread::Builder::new().name("resolver".to_owned());
        if let Err(error) = started.spawn(job) {
            push(&self.found, link, Err(format!("no thread: {error}")));
        }
    }

    pub fn take(&self) -> Found {
        std::mem::take(&mut *self.found.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

fn push(found: &Mutex<Found>, link: usize, result: Result<SocketAddr, String>) {
    let mut found = found.lock().unwrap_or_else(PoisonError::into_inner);
    found.push((link, result));
}
