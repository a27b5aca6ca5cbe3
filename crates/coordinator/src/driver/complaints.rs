//! Log lines about problems that may last: at most one of each in a while.

use duramen_base::ids::ClusterId;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

/// Interval at which a lasting problem is logged again.
const LOG_AGAIN: Duration = Duration::from_secs(10);

/// When each problem was last logged.
#[derive(Default)]
pub(super) struct Complaints {
    /// This coordinator cannot judge which servers have crashed.
    unfit: Option<Instant>,
    /// A server refused an order.
    refused: Option<Instant>,
    /// A server belongs to another cluster.
    foreign: Option<Instant>,
    /// A client has no right to what it asked.
    denied: Option<Instant>,
}

impl Complaints {
    pub(super) fn unfit(&mut self, asked: usize, answered: usize, is_denied: bool) {
        if !may_log(&mut self.unfit) {
            return;
        }
        if is_denied {
            tracing::error!(
                asked,
                "no server admits this coordinator: it has another token, cluster name or version than they"
            );
        } else {
            tracing::warn!(
                asked,
                answered,
                "fewer than half of the servers answer this coordinator: it calls none of them crashed"
            );
        }
    }

    /// A server refused an order. The call is repeated while the reason of the refusal lasts.
    pub(super) fn refused(&mut self, address: &str, refusal: &str) {
        if may_log(&mut self.refused) {
            tracing::warn!(address, "a server refused an order: {refusal}");
        }
    }

    pub(super) fn foreign(&mut self, peer: SocketAddr, theirs: ClusterId, ours: ClusterId) {
        if may_log(&mut self.foreign) {
            tracing::warn!(
                %peer,
                "a server of the cluster with id {theirs} is refused: this is the cluster with id {ours}"
            );
        }
    }

    /// The servers belong to another cluster than the store.
    pub(super) fn mistaken(&mut self, why: &str) {
        if may_log(&mut self.foreign) {
            tracing::error!("not ready: {why}");
        }
    }

    pub(super) fn denied(&mut self, peer: Option<SocketAddr>, why: &str) {
        if may_log(&mut self.denied) {
            tracing::warn!(?peer, "a client is refused: {why}");
        }
    }
}

/// Whether a problem is logged now. `last`: as in [`Complaints`].
fn may_log(last: &mut Option<Instant>) -> bool {
    let may = last.is_none_or(|time| time.elapsed() >= LOG_AGAIN);
    if may {
        *last = Some(Instant::now());
    }
    may
}
