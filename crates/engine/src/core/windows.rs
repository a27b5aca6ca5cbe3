//! The way of windows into use as segments, and back.

use super::Core;
use super::actors::Actors;
use super::doubt::DoubtedClock;
use super::flash::tier::Tier;
use crate::epoch::Epochs;
use crate::log::{DiskRoom, Log};
use crate::space::{Purpose, Space};

/// The windows of a store, for those who open and free segments.
#[derive(Clone, Copy)]
pub struct Windows<'c> {
    space: &'c Space,
    tier: Option<&'c Tier>,
    log: Option<&'c Log>,
    epochs: &'c Epochs,
    clock: &'c DoubtedClock,
    actors: &'c Actors,
}

impl Core {
    #[inline]
    pub fn windows(&self) -> Windows<'_> {
        Windows {
            space: &self.space,
            tier: self.tier.as_deref(),
            log: self.log.as_deref(),
            epochs: self.door.epochs(),
            clock: &self.clock,
            actors: &self.actors,
        }
    }
}

impl Windows<'_> {
    /// Opens a window for a head or a survivor and starts its counters anew. `head`: the number of
    /// the head that it is for, 0 for survivors.
    pub fn open(self, node: usize, purpose: Purpose, head: usize) -> Option<u32> {
        let window = self.set_aside(node, purpose)?;
        if purpose.is_for_head() {
            self.name(window, head);
        } else {
            self.begin_counting(window);
        }
        Some(window)
    }

    /// Opens a window for a survivor that backs only `bytes`, when no whole one is left.
    pub fn open_partial(self, node: usize, bytes: usize) -> Option<u32> {
        let (now_ms, tick) = self.now();
        let window = self.space.acquire_partial(node, bytes, now_ms, tick)?;
        self.begin_counting(window);
        Some(window)
    }

    /// As [`open`](Self::open), for tombstones: opens a window of at least `bytes`, if a scarce
    /// store has so much beside the window for cleaning (space::S5).
    pub fn open_short(self, node: usize, bytes: usize, head: usize) -> Option<u32> {
        let window = self.set_aside_by(Purpose::Tombstones, |now_ms, tick| {
            self.space.acquire_short(node, bytes, now_ms, tick)
        })?;
        self.name(window, head);
        Some(window)
    }

    /// Takes a window that is no segment yet. `None`: memory or disk has none. A window for a head
    /// has to be named, or given back, later.
    pub fn set_aside(self, node: usize, purpose: Purpose) -> Option<u32> {
        self.set_aside_by(purpose, |now_ms, tick| {
            self.free_retired(node);
            self.space.acquire(node, purpose, now_ms, tick)
        })
    }

    /// `acquire` is called with the time of the clock and of the log.
    fn set_aside_by(
        self,
        purpose: Purpose,
        acquire: impl FnOnce(u64, u64) -> Option<u32>,
    ) -> Option<u32> {
        let disk = self.log.map(|log| log.swaps().disk());
        let is_for_head = purpose.is_for_head();
        let has_room = |disk: &DiskRoom| match is_for_head {
            true => disk.take_room(purpose), // swap::D9: heads take room first
            false => disk.has_room(purpose),
        };
        if !disk.is_none_or(has_room) {
            return None;
        }
        let (now_ms, tick) = self.now();
        let window = acquire(now_ms, tick);
        if window.is_none() && is_for_head {
            disk.inspect(|disk| disk.give_back_room());
        }
        window
    }

    /// The time of the clock and of the log.
    fn now(self) -> (u64, u64) {
        (self.clock.now_ms(), self.actors.log_time())
    }

    /// Gives back a window that was set aside for a head.
    pub fn give_back(self, window: u32) {
        self.space.abandon(self.space.node_of(window), window);
        if let Some(log) = self.log {
            log.swaps().disk().give_back_room();
        }
    }

    /// Makes a window that was set aside a segment of a head.
    pub fn name(self, window: u32, head: usize) {
        self.begin_counting(window);
        if let Some(log) = self.log {
            log.open_window(self.space, window, head);
            log.swaps().disk().give_back_room();
        }
    }

    fn begin_counting(self, window: u32) {
        let dead = self.actors.dead_in(window);
        self.space.segments[window as usize].set_dead_base(dead);
    }

    /// Retires the windows of abandoned side logs that the consumer has finished reading.
    pub fn take_back_released(self) {
        if let Some(log) = self.log {
            for window in log.swaps().take_released() {
                let node = self.space.node_of(window);
                self.space.retire(node, window, self.epochs);
            }
        }
    }

    /// Frees retired windows that no reader can see any more, with their slots of the device.
    pub fn free_retired(self, node: usize) {
        self.space.reap(node, self.epochs, |window| {
            if let Some(tier) = self.tier {
                tier.forget(window);
            }
        });
    }

    /// Frees the memory of windows that no reader can see any more: retired ones, and those that
    /// turned cold. Gives some of it back if the budget was lowered.
    pub fn reap(self, node: usize) {
        self.free_retired(node);
        if let Some(tier) = self.tier {
            tier.release(self.space, self.epochs);
        }
        self.space.follow_limit(node, 1);
    }
}
