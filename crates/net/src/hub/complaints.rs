//! Faults of peers: they are counted, and logged within bounds.

use crate::Reason;
use crate::quiet::Quiet;
use rustix::io::Errno;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

#[derive(Debug)]
pub(super) struct Complaints {
    quiet: Quiet,
    offences: Arc<AtomicU64>,
    tls_failures: Arc<AtomicU64>,
}

impl Complaints {
    pub fn new(now: Instant, offences: Arc<AtomicU64>, tls_failures: Arc<AtomicU64>) -> Complaints {
        Complaints {
            quiet: Quiet::new(now),
            offences,
            tls_failures,
        }
    }

    pub fn offended(&self) {
        self.offences.fetch_add(1, Ordering::Relaxed);
    }

    pub fn offences(&self) -> &Arc<AtomicU64> {
        &self.offences
    }

    pub fn tls_failed(&self) {
        self.tls_failures.fetch_add(1, Ordering::Relaxed);
    }

    pub fn tls_failures(&self) -> u64 {
        self.tls_failures.load(Ordering::Relaxed)
    }

    pub fn cannot_accept(&mut self, errno: Errno, now: Instant) {
        if let Some(more) = self.quiet.says(now) {
            tracing::warn!(more, "cannot accept a connection: {errno}");
        }
    }

    pub fn refused(&mut self, peer: SocketAddr, why: &str, now: Instant) {
        if let Some(more) = self.quiet.says(now) {
            tracing::warn!(%peer, more, "a connection is refused: {why}");
        }
    }

    /// An accepted connection of a peer that has proved itself is closed.
    pub fn closed(&mut self, peer: SocketAddr, reason: &Reason, now: Instant) {
        use Reason::{Direction, Frame, Slow, Tls};
        if matches!(reason, Frame(_) | Direction | Slow | Tls(_)) {
            self.offended();
            if let Some(more) = self.quiet.says(now) {
                tracing::warn!(%peer, more, "a connection is closed: {reason}");
            }
        }
    }

    /// Notes that the connection of a link is gone. With `is_urgent`, people must act.
    pub fn lost(&mut self, address: &str, reason: &Reason, is_urgent: bool, now: Instant) {
        let is_clean = matches!(reason, Reason::Ended | Reason::Here);
        if is_urgent {
            tracing::warn!(%address, "no connection can be made: {reason}");
        } else if !is_clean && let Some(more) = self.quiet.says(now) {
            tracing::debug!(%address, more, "a link is gone: {reason}");
        }
    }
}
