//! The state of a backup's device.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use duramen_base::ids::SegmentId;

use crate::buffer::{Buffer, BufferBytes};
use crate::frames::Frames;
use crate::replica::{Data, Decay, Replica};
use crate::ring::Ring;
use crate::types::{Damaged, ReplicaId, ReplicaInfo, Stats};

/// Most buffers kept for reuse: often each of two heads begins a segment while others go to their
/// frames.
const POOL_MAX: usize = 2;

/// The state of the device.
pub(crate) struct State {
    pub(crate) replicas: BTreeMap<ReplicaId, Replica>,
    /// Replicas for which a restart would need commits, with the oldest such commit.
    pub(crate) needs: BTreeSet<(u64, ReplicaId)>,
    pub(crate) frames: Frames,
    pub(crate) ring: Ring,
    /// Greatest stamp of any slot.
    pub(crate) stamp: u64,
    pub(crate) failed: Option<String>,
    /// Replicas that were freed while the flusher wrote them.
    pub(crate) doomed: BTreeMap<ReplicaId, Option<Decay>>,
    /// Replicas found damaged since the last [`take_damaged`](crate::Reader::take_damaged).
    pub(crate) damaged: Vec<Damaged>,
    /// Replicas mended for readers since the last [`take_mended`](crate::Reader::take_mended).
    pub(crate) mended: Vec<(ReplicaId, String)>,
    /// A start has put back a flipped bit of the write-ahead log, which still has it.
    pub(crate) log_is_mended: bool,
    /// Buffers for reuse: fresh memory is slow to touch.
    pub(crate) pool: Vec<Buffer>,
    pub(crate) held: Arc<BufferBytes>,
    /// Logs of which nothing is accepted any more.
    pub(crate) fenced: BTreeSet<u64>,
    /// The replica that was verified last in this round.
    pub(crate) scrub_after: ReplicaId,
    pub(crate) stats: Stats,
}

impl State {
    /// This state, with the buffers of its replicas counted by `held`.
    pub(crate) fn counted(mut self, held: &Arc<BufferBytes>) -> State {
        for replica in self.replicas.values_mut() {
            if let Data::Growing(buffer) = &mut replica.data {
                buffer.count(held);
            }
        }
        self.held = held.clone();
        self
    }

    pub(crate) fn buffer(&mut self, bytes: u32) -> Buffer {
        let kept = self.pool.pop();
        kept.filter(|buffer| buffer.capacity() >= bytes as usize)
            .unwrap_or_else(|| Buffer::counted(bytes as usize, &self.held))
    }

    pub(crate) fn recycle(&mut self, mut buffer: Buffer) {
        if self.pool.len() < POOL_MAX {
            buffer.clear();
            self.pool.push(buffer);
        }
    }

    /// Updates `needs` for a replica that changed.
    pub(crate) fn need(&mut self, id: ReplicaId, before: Option<u64>) {
        let after = self.replicas.get(&id).and_then(|replica| replica.wal_from);
        if before != after {
            if let Some(lsn) = before {
                self.needs.remove(&(lsn, id));
            }
            if let Some(lsn) = after {
                self.needs.insert((lsn, id));
            }
        }
    }

    /// Whether a closed replica has no frame yet.
    pub(crate) fn waits_for_frames(&self) -> bool {
        let mut replicas = self.replicas.values();
        replicas.any(|replica| replica.closed && replica.frame.is_none())
    }

    pub(crate) fn logs(&self) -> Vec<u64> {
        let mut logs: Vec<u64> = self.replicas.keys().map(|id| id.log).collect();
        logs.dedup(); // they are ordered
        logs
    }

    pub(crate) fn replicas_of(&self, log: u64) -> Vec<ReplicaInfo> {
        let first = ReplicaId {
            log,
            segment: SegmentId::NONE,
        };
        self.replicas
            .range(first..)
            .take_while(|(id, _)| id.log == log)
            .filter(|(_, replica)| replica.committed)
            .map(|(id, replica)| replica.info(*id))
            .collect()
    }
}
