//! A leader's signs of life, and what it does beside them: etcd keeps every revision of every key
//! until it is told not to.
//!
//! **Invariants** etcd::T1, and
//! - Y1: what is younger than [`COMPACT_EVERY`] is not compacted: others who use the same etcd may
//!   be reading it.

use super::gateway::{Gateway, has_held, revision, transaction};
use duramen_cluster::coordinator::store::{Error, Renewal};
use serde_json::json;
use std::time::{Duration, Instant};

/// A leader writes 5 signs of life a second, 28 MB a day; etcd's default quota is 2 GB. Kubernetes'
/// own server compacts its etcd as often, so who shares one with others is used to it.
pub(super) const COMPACT_EVERY: Duration = Duration::from_secs(300);

/// See the module.
pub(super) struct EtcdRenewal {
    pub gateway: Gateway,
    /// At which `leader` was written; none: this one does not lead.
    pub leader: Option<i64>,
    pub beats: u64,
    pub compact_every: Duration,
    /// Of the last sign of life.
    pub revision: i64,
    /// A revision, and since when it is known.
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
        // Whether it is done or not: the next time is so much later.
        self.old = Some((self.revision, now));
        let body = json!({ "revision": old.to_string() });
        match self.gateway.ask("/v3/kv/compaction", &body) {
            // Somebody else was faster.
            Err(Error::Unavailable { reason }) if reason.contains("has been compacted") => Ok(()),
            other => other.map(|_| ()),
        }
    }
}
