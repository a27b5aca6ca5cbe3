//! A leader's signs of life, and the compaction of etcd: etcd keeps every revision of every key
//! until it is compacted.
//!
//! **Invariants** etcd::T1, and
//! - Y1: revisions younger than [`COMPACT_EVERY`] are not compacted: other users of the same etcd
//!   may be reading them.

use super::gateway::{Gateway, has_held, revision, transaction};
use duramen_cluster::coordinator::store::{Error, Renewal};
use serde_json::json;
use std::time::{Duration, Instant};

/// Interval of compactions. A leader writes 5 signs of life per second, 28 MB a day; etcd's default
/// quota is 2 GB. The API server of Kubernetes compacts its etcd as often, so other users of a
/// shared etcd expect it.
pub(super) const COMPACT_EVERY: Duration = Duration::from_secs(300);

/// The renewal of an etcd store; see the module.
pub(super) struct EtcdRenewal {
    pub gateway: Gateway,
    /// Revision at which `leader` was written; `None`: this coordinator does not lead.
    pub leader: Option<i64>,
    pub beats: u64,
    pub compact_every: Duration,
    /// Revision of the last sign of life.
    pub revision: i64,
    /// The revision for the next compaction, and the time since which it has existed.
    pub old: Option<(i64, Instant)>,
}

impl Renewal for EtcdRenewal {
    fn renew(&mut self) -> Result<(), Error> {
        let leader = self.leader.ok_or(Error::Deposed)?;
        self.beats += 1;
        let beat = self.gateway.put(b"beat", self.beats.to_string().as_bytes());
        let compare = json!([self.gateway.is_at(b"leader", leader)]);
        let body = transaction(&compare, &[beat], &[]);
        let answer = self.gateway.ask("/v3/kv/txn", &body)?;
        if !has_held(&answer) {
            self.leader = None;
            return Err(Error::Deposed);
        }
        self.revision = revision(&answer)?;
        Ok(())
    }

    fn tidy(&mut self) -> Result<(), Error> {
        let now = Instant::now();
        let (old, since) = *self.old.get_or_insert((self.revision, now));
        if now.duration_since(since) < self.compact_every || old >= self.revision {
            return Ok(());
        }
        // The next compaction is `compact_every` later, whether this one succeeds or fails.
        self.old = Some((self.revision, now));
        let body = json!({ "revision": old.to_string() });
        match self.gateway.ask("/v3/kv/compaction", &body) {
            // Another user of this etcd has compacted it already.
            Err(Error::Unavailable { reason }) if reason.contains("has been compacted") => Ok(()),
            other => other.map(|_| ()),
        }
    }
}
