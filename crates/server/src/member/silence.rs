//! Coordinators that leave everything unanswered on a connection that stays open.
//!
//! A device between the two sides may keep a connection to a process that is gone, and then no
//! error ever ends the connection. Such a coordinator is asked through a new connection.

use std::collections::HashMap;
use std::time::{Duration, Instant};

/// A coordinator is silent after this time.
const SILENT: Duration = Duration::from_secs(5);

/// The time of the first request since the last answer, by address.
#[derive(Default)]
pub(super) struct Silence(HashMap<String, Instant>);

impl Silence {
    /// Notes that a request is about to be sent to this address. Returns true if the connection
    /// there must be closed first.
    pub fn asks(&mut self, address: &str) -> bool {
        let Some(since) = self.0.get_mut(address) else {
            self.0.insert(address.to_owned(), Instant::now());
            return false;
        };
        let is_silent = since.elapsed() > SILENT;
        if is_silent {
            *since = Instant::now();
        }
        is_silent
    }

    /// Notes that the coordinator at this address is not silent: an answer came, a part of one, or
    /// the connection's end.
    pub fn heard(&mut self, address: &str) {
        self.0.remove(address);
    }
}
