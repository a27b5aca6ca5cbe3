//! Counts of a server beside the counters of its threads, and the time of its start.

use super::full::Refusals;
use crate::figures::error_names::Codes;
use crate::figures::latency::LatencyEvents;
use crate::figures::local_use::LocalUse;
use crate::threads::start::Starter;
use std::sync::Arc;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

/// See the head of this file.
pub struct Figures {
    started: Instant,
    started_unix_ms: u64,
    latency: LatencyEvents,
    error_codes: Codes,
    refusals: Refusals,
    local: Arc<LocalUse>,
}

impl Figures {
    pub(super) fn new(starter: Starter) -> Figures {
        let since = SystemTime::now().duration_since(UNIX_EPOCH);
        Figures {
            started: Instant::now(),
            started_unix_ms: since.map_or(0, |since| since.as_millis() as u64),
            latency: LatencyEvents::default(),
            error_codes: Codes::default(),
            refusals: Refusals::new(starter),
            local: Arc::default(),
        }
    }

    pub fn started(&self) -> Instant {
        self.started
    }

    pub fn started_unix_ms(&self) -> u64 {
        self.started_unix_ms
    }

    #[inline]
    pub fn latency(&self) -> &LatencyEvents {
        &self.latency
    }

    /// Errors that are not in the table of known ones.
    pub(crate) fn error_codes(&self) -> &Codes {
        &self.error_codes
    }

    /// Writes that were refused for lack of memory.
    pub(crate) fn refusals(&self) -> &Refusals {
        &self.refusals
    }

    /// Memory shared with clients on this machine.
    pub fn local(&self) -> &Arc<LocalUse> {
        &self.local
    }
}
