//! Lookups of host names, on their own threads, because they may take seconds.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};

/// Results of lookups, by link.
pub(crate) type Found = Vec<(usize, Result<Vec<SocketAddr>, String>)>;

/// Results that wait for the hub's thread.
#[derive(Clone, Debug, Default)]
pub(crate) struct Resolver {
    found: Arc<Mutex<Found>>,
}

impl Resolver {
    /// Looks up all addresses of `host:port`, then calls `wake`.
    pub fn look_up(
        &self,
        link: usize,
        address: String,
        resolve: fn(&str) -> std::io::Result<Vec<SocketAddr>>,
        wake: impl FnOnce() + Send + 'static,
    ) {
        let found = Arc::clone(&self.found);
        let job = move || {
            let result = resolve(&address).map_err(|error| format!("`{address}`: {error}"));
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

fn push(found: &Mutex<Found>, link: usize, result: Result<Vec<SocketAddr>, String>) {
    let mut found = found.lock().unwrap_or_else(PoisonError::into_inner);
    found.push((link, result));
}
