//! The actors of a store: all that append, and those that clean. Each has counters, which are
//! summed up here.

use crate::TableId;
use crate::counters::Counters;
use crate::head::{Head, Processor};
use crate::space::SEGLET_BYTES;
use crate::topology::Topology;
use duramen_base::sync::{Mutex, fence};
use std::sync::atomic::Ordering;

/// Maximum reads of the counters that hope for no writer in between; after them a sum is taken that
/// may be too low.
const LIVE_LOOKS_MAX: u32 = 8;
/// Number of threads that can replay into side logs without waiting for each other's counters.
const GUESTS_MAX: usize = 8;

/// The heads, the guests, and the counters of cleaning contexts.
pub struct Actors {
    topology: Topology,
    heads: Box<[Head]>,
    /// Counters for changes of the store without a head and without cleaning: side logs and purges.
    guests: Box<[Guest]>,
    /// Counters of the cleaning contexts, outside their locks.
    contexts: Box<[Counters]>,
}

/// Counters that belong to the holder of their lock.
struct Guest {
    owner: Mutex<()>,
    counters: Counters,
}

impl Actors {
    /// `has_log`: several threads may replay into side logs.
    pub fn new(
        (heads, contexts): (usize, usize),
        has_log: bool,
        windows: usize,
        topology: &Topology,
    ) -> Actors {
        let guests = match has_log {
            true => heads.clamp(2, GUESTS_MAX),
            false => 1,
        };
        let guest = |_| Guest {
            owner: Mutex::default(),
            counters: Counters::new(windows),
        };
        let head = |n| Head {
            number: n,
            counters: Counters::new(windows),
            tail: Mutex::default(),
            node: topology.node_of(n),
            processor: Processor::default(),
        };
        Actors {
            topology: topology.clone(),
            heads: (0..heads).map(head).collect(),
            guests: (0..guests).map(guest).collect(),
            contexts: (0..contexts).map(|_| Counters::new(windows)).collect(),
        }
    }

    /// The nodes and processors that the heads are spread over.
    pub fn topology(&self) -> &Topology {
        &self.topology
    }

    #[inline(always)]
    pub fn heads(&self) -> &[Head] {
        &self.heads
    }

    /// The head that a session of head `number` appends to now: one of the node on which its thread
    /// runs, and the node's first one while memory is scarce (space::S5).
    #[inline(always)]
    pub fn head_in_use(&self, number: usize, is_scarce: bool) -> &Head {
        let own = &self.heads[number];
        let node = self.topology.local().unwrap_or(own.node);
        if node == own.node && !is_scarce {
            return own;
        }
        let number = if is_scarce { 0 } else { number };
        self.head_on(node, number).unwrap_or(own)
    }

    #[cold]
    fn head_on(&self, node: usize, number: usize) -> Option<&Head> {
        let heads = || self.heads.iter().filter(|head| head.node == node);
        heads().nth(number % heads().count().max(1))
    }

    /// Calls `work` with counters that no other thread uses meanwhile. `work` must not wait for
    /// another thread.
    pub fn as_guest<T>(&self, work: impl FnOnce(&Counters) -> T) -> T {
        for guest in &self.guests {
            if let Ok(_owner) = guest.owner.try_lock() {
                return work(&guest.counters);
            }
        }
        let guest = &self.guests[0];
        let _owner = guest.owner.lock().expect("a guest's counters");
        work(&guest.counters)
    }

    /// The counters of a cleaning context, for its holder.
    #[inline(always)]
    pub fn of_context(&self, number: usize) -> &Counters {
        &self.contexts[number]
    }

    /// Counters of all actors that append: heads and guests.
    fn appenders(&self) -> impl Iterator<Item = &Counters> {
        let guests = self.guests.iter().map(|guest| &guest.counters);
        self.heads.iter().map(|head| &head.counters).chain(guests)
    }

    /// Counters of all actors: those that append, then cleaning contexts.
    fn all(&self) -> impl Iterator<Item = &Counters> {
        self.appenders().chain(&self.contexts)
    }

    /// The sum of a figure of all actors.
    pub fn sum(&self, figure: impl Fn(&Counters) -> u64) -> u64 {
        self.all().map(figure).sum()
    }

    /// Bytes appended by writers since the start: log time.
    pub fn log_time(&self) -> u64 {
        self.appenders().map(Counters::appended).sum()
    }

    /// Padded bytes of entries that have died since the start.
    pub fn dead_bytes(&self) -> u64 {
        self.sum(Counters::dead)
    }

    /// Padded bytes of live entries.
    pub fn live_bytes(&self) -> u64 {
        let mut appended_before = self.log_time();
        for _ in 0..LIVE_LOOKS_MAX {
            // The dead bytes are read first: an entry counted as dead has been counted as appended
            // before, so the difference is not negative.
            let dead = self.dead_bytes();
            fence(duramen_base::sync::Ordering::Acquire);
            let appended = self.log_time();
            // If this thread lost its core between the two sums, entries that were overwritten
            // meanwhile would count as alive.
            if appended - appended_before <= SEGLET_BYTES as u64 {
                return appended.saturating_sub(dead);
            }
            appended_before = appended;
        }
        appended_before.saturating_sub(self.dead_bytes())
    }

    /// Bytes of entries that have ever died in a window, modulo 2^64 (see `Segment::dead_base`).
    pub fn dead_in(&self, window: u32) -> u64 {
        self.all()
            .map(|actor| actor.dead_in(window as usize))
            .fold(0, u64::wrapping_add)
    }

    /// Bytes of tombstones in memory that no cleaner has dropped yet.
    pub fn tombstone_bytes(&self) -> u64 {
        let sum = self.all().fold(0, |sum: u64, actor| {
            sum.wrapping_add(actor.tombstones.load(Ordering::Relaxed))
        });
        // Sums of counters that change meanwhile may be slightly off, also below zero.
        (sum as i64).max(0) as u64
    }

    /// The largest object version that any write has given since the start.
    pub fn version_max(&self) -> u64 {
        self.all().map(Counters::version_max).max().unwrap_or(0)
    }

    pub fn expiring(&self, table: TableId) -> u64 {
        self.all()
            .map(|actor| actor.expiring(table))
            .sum::<i64>()
            .max(0) as u64
    }

    pub fn objects(&self, table: TableId) -> u64 {
        self.all()
            .map(|actor| actor.objects(table))
            .sum::<i64>()
            .max(0) as u64
    }

    /// Objects of a table, and parts.
    pub fn entries(&self, table: TableId) -> u64 {
        self.objects(table) + self.objects(table.parts())
    }

    /// Memory of all counters.
    pub fn overhead_bytes(&self) -> u64 {
        self.sum(Counters::bytes)
    }
}
