//! Hints of a member of a cluster: hashes of frequently read keys, prepared for other members; and
//! hints of a dead server, loaded into memory by the members that have recovered its data to flash.
//!
//! **Invariants**
//! - N1: a hint is advice, whatever its source: unusable parts are ignored, and no value depends on
//!   it (engine::heat::W1).
//! - N2: a hint has at most one byte of 1,024 of the memory budget, and [`HINT_BYTES_MAX`] at most,
//!   hottest first. Making it takes at most a hundredth of a core's time. At most [`OTHERS_MAX`]
//!   hints of other servers wait; the oldest is dropped first.
//!
//! **Concurrency**: one thread (`duramen-heat`) makes hints and refills, one hint after the other;
//! threads that take or bring hints hold a lock only for a moment.
//!
//! **Layout**: [`duramen_format::heat`], blocks of keys by falling heat.
//!
//! Paper: none; docs/traps.md, trap 37, for a recovery.

use crate::Options;
use crate::bell::Bell;
use crate::heat::{Blocks, PAUSE_FACTOR, Stored, keys_in, refill_from};
use duramen_engine::flash::Flash;
use duramen_format::heat::{BLOCK_BYTES, HINT_BYTES_MAX};
use duramen_wire::native::Slice;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// A hint has one byte per this many bytes of the memory budget (N2).
const MEMORY_PART: u64 = 1024;
/// Most waiting hints of other servers (N2).
const OTHERS_MAX: usize = 16;
/// Sleep of the thread while it makes no hints.
const LONG: Duration = Duration::from_secs(3600);

/// The hints of a member.
pub struct Hints {
    server: u64,
    bytes_max: u64,
    interval: Duration,
    /// Made, and not yet taken.
    mine: Mutex<Option<Slice>>,
    /// Waiting refills: the server of each, and its blocks.
    others: Mutex<VecDeque<(u64, Slice)>>,
    /// Ends the thread's pause.
    pub(crate) bell: Bell,
}

impl Hints {
    /// The hints of a store; `None` without a flash tier.
    pub(crate) fn new(
        options: &Options,
        engine: &Arc<duramen_engine::Store>,
        server: u64,
    ) -> Option<Hints> {
        let part = options.engine.memory_bytes / MEMORY_PART;
        engine.flash().map(|_| Hints {
            server,
            bytes_max: part.clamp(BLOCK_BYTES as u64, HINT_BYTES_MAX as u64),
            interval: options.heat_interval,
            mine: Mutex::default(),
            others: Mutex::default(),
            bell: Bell::default(),
        })
    }

    /// Main loop of the thread, until `stop`.
    pub(crate) fn run(&self, engine: &Arc<duramen_engine::Store>, stop: &dyn Fn() -> bool) {
        let Some(flash) = engine.flash() else {
            return; // `new` found one
        };
        let (mut due, mut news) = (Instant::now() + self.interval, 0);
        while !stop() {
            let next = self.others.lock().expect("hints of others").pop_front();
            if let Some((server, blocks)) = next {
                self.refill(flash, server, &blocks, stop);
                continue;
            }
            let began = Instant::now();
            if !self.interval.is_zero() && began >= due {
                self.make(flash, &mut news, stop);
                due = Instant::now() + self.interval.max(began.elapsed() * PAUSE_FACTOR);
            }
            let pause = if self.interval.is_zero() {
                LONG
            } else {
                due.saturating_duration_since(Instant::now())
            };
            self.bell.sleep(pause);
        }
    }

    /// The keys that are read often here, if there is more to report than the last time: blocks of
    /// [`duramen_format::heat`].
    pub fn take(&self) -> Option<Slice> {
        self.mine.lock().expect("this member's hint").take()
    }

    /// Requests a refill of memory with the hot keys of another server, as far as they are here, on
    /// flash (N2). Does not wait.
    pub fn bring(&self, server: u64, blocks: Slice) {
        let mut others = self.others.lock().expect("hints of others");
        others.push_back((server, blocks));
        if others.len() > OTHERS_MAX {
            others.pop_front();
        }
        drop(others);
        self.bell.ring();
    }

    fn refill(&self, flash: Flash<'_>, server: u64, blocks: &[u8], stop: &dyn Fn() -> bool) {
        let keys = keys_in(blocks, server);
        // All sessions may be taken: then a read fetches each hot key.
        if let Ok(refill) = flash.refill() {
            flash.set_refill_left(keys);
            refill_from(flash, refill, Stored::plain(blocks), server, keys, stop);
        }
        flash.end_refill();
    }

    /// Makes a hint if there is more to report than in the last one.
    fn make(&self, flash: Flash<'_>, told: &mut u64, stop: &dyn Fn() -> bool) {
        let Ok(mut reading) = flash.heat() else {
            return; // all sessions are taken: later
        };
        let news = reading.news();
        if news == *told {
            return;
        }
        let mut blocks = Blocks::new(Vec::new(), self.server, self.bytes_max);
        let is_whole = blocks.fill(&mut reading, stop);
        if matches!(is_whole, Ok(true)) && !blocks.file.is_empty() {
            *told = news;
            *self.mine.lock().expect("this member's hint") = Some(blocks.file.into());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_too_many_hints_the_oldest_go() {
        let hints = Hints {
            server: 1,
            bytes_max: HINT_BYTES_MAX as u64,
            interval: Duration::ZERO,
            mine: Mutex::default(),
            others: Mutex::default(),
            bell: Bell::default(),
        };
        let all = OTHERS_MAX as u64 + 5;
        for server in 0..all {
            hints.bring(server, Slice::default());
        }
        let waiting = hints.others.lock().unwrap();
        let servers: Vec<u64> = waiting.iter().map(|(server, _)| *server).collect();
        assert_eq!(servers, (5..all).collect::<Vec<u64>>());
    }
}
