//! The lanes of a driver: the operations for one server that are not given to the core yet, and
//! the connection to it.
//!
//! Reads and writes of a server have a lane each, because a server does not read from a connection
//! while a reply on it waits for the disk: a read behind a write would wait too. A tablet without
//! an owner, as the map has it, is in a lane without a connection.

use super::link::Link;
use super::pending::Call;
use crate::core::AsWork;
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

/// Batches of a lane that are not done. Further operations wait, and go into one request later.
const BATCHES_MAX: usize = 4;
/// Most operations of one batch: all batches of a lane together fit into the window of a session.
const BATCH_CALLS_MAX: usize = 128;
const _: () = assert!(BATCHES_MAX * BATCH_CALLS_MAX <= duramen_base::limits::RPC_WINDOW as usize);
/// A batch takes no further operation beyond this many bytes of keys and values.
const BATCH_BYTES_MAX: usize = 256 << 10;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Class {
    Read,
    Write,
    /// Questions to a coordinator.
    Coordinator,
}

impl Class {
    pub fn of(work: &impl AsWork) -> Class {
        if work.as_work().mutates() {
            Class::Write
        } else {
            Class::Read
        }
    }
}

/// The other side of a lane.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Peer {
    /// The address; empty if no server has the tablet now.
    pub address: Arc<str>,
    pub class: Class,
}

#[derive(Debug)]
pub(super) struct Lane {
    pub peer: Peer,
    pub queue: VecDeque<Call>,
    /// Batches that are not done.
    pub batches: usize,
    pub link: Link,
}

impl Lane {
    /// The operations of the next batch, if there may be one.
    pub fn next_batch(&mut self) -> Vec<Call> {
        let mut bytes = 0;
        let mut fits = |call: &Call| {
            let is_more = bytes > 0;
            bytes += call.bytes();
            !is_more || bytes <= BATCH_BYTES_MAX
        };
        let limit = if self.batches < BATCHES_MAX {
            BATCH_CALLS_MAX
        } else {
            0
        };
        let count = self.queue.iter().take(limit);
        let count = count.take_while(|call| fits(call)).count();
        self.queue.drain(..count).collect()
    }

    /// Takes an operation that was called this long ago, if there is one.
    pub fn take_late(&mut self, begun_before_us: u64) -> Option<Call> {
        let first = self.queue.front()?;
        (first.begun_us <= begun_before_us).then(|| self.queue.pop_front())?
    }
}

/// All lanes. There are few: two per address of a server, and one per coordinator.
#[derive(Debug, Default)]
pub(super) struct Lanes {
    pub all: Vec<Lane>,
    by_peer: HashMap<Peer, usize>,
}

impl Lanes {
    /// The number of the lane to this peer.
    pub fn to(&mut self, peer: Peer) -> usize {
        if let Some(lane) = self.by_peer.get(&peer) {
            return *lane;
        }
        let lane = self.all.len();
        self.by_peer.insert(peer.clone(), lane);
        self.all.push(Lane {
            peer,
            queue: VecDeque::new(),
            batches: 0,
            link: Link::default(),
        });
        lane
    }

    /// All operations that are not given to the core yet, in the order of their calls.
    pub fn take_queues(&mut self) -> Vec<Call> {
        let queues = self
            .all
            .iter_mut()
            .map(|lane| std::mem::take(&mut lane.queue));
        let mut calls: Vec<Call> = queues.flatten().collect();
        calls.sort_by_key(|call| call.begun_us);
        calls
    }
}
