//! Flights: synced commits that are written side by side, so that the device does not idle while
//! the next batch grows.
//!
//! **Invariants**
//! - F1: a flight gets its number and its place when it takes its batch, and flights *land* in this
//!   order. Only landing has effects: on the replicas, on `durable_lsn`, for the caller. So a
//!   flight is acknowledged when it and all commits before it are durable.
//! - F2: a flight begins only if each commit before it is durable or a flight itself. So a landed
//!   flight is durable with all before it.
//! - F3: a commit is written alone, while there is no flight, if it is not synced, not small, has
//!   bytes that went straight to a frame, or waits for room or memory.
//! - F4: a flight without space on the disk is *grounded*: it keeps its place and its bytes, and
//!   its caller gets `Full`, as do those of the flights behind it, written or not. The next commit
//!   writes it again, at the same place, before anything newer. So no two flights of one generation
//!   have the same number and other bytes.
//! - F5: a crash may leave a flight on the device and not the one before it. A restart ends the log
//!   before the missing one (`scan`): the later flight names an older commit as durable, so it is
//!   no sign of damage, and the next generation's commits never lead to it (wal::W5).
//!
//! **Concurrency**: `committing` is held while a flight begins, not while it is written. The phases
//! of flights are under `state`.
//!
//! Paper: [Beineke18 §IV] the primary log; differs: it has one write in flight.

use duramen_base::ids::Level;
use duramen_base::planted::{Bug, has_bug};
use duramen_format::wal::{self, COMMIT_BYTES};
use std::io;
use std::sync::{MutexGuard, PoisonError};
use std::time::Instant;

use crate::backup::{Backup, State};
use crate::error::{Error, is_full};
use crate::ring::{Flight, Phase};
use crate::staging::Batch;
use crate::types::{Committed, ReplicaId};

/// Most flights at once. A device that takes 9,000 synced writes a second from one thread takes
/// 14,000 from two.
pub const FLIGHTS_MAX: usize = 2;

/// A flight's batch, for the thread that writes it.
pub(crate) struct Aloft {
    batch: Batch,
    lsn: u64,
    /// Its place in the region.
    at: u64,
    lane: usize,
}

impl State {
    /// Whether the next commit may be a flight (F2, F3, F4).
    fn takes_flights(&self) -> bool {
        let ring = &self.ring;
        let is_grounded = |flight: &Flight| matches!(flight.phase, Phase::Grounded(_));
        self.failed.is_none()
            && ring.begun
            && ring.durable_lsn == ring.committed_lsn
            && !ring.flights.iter().any(is_grounded)
    }

    /// Lands the flights that are written, up to the first that is not (F1).
    fn land(&mut self) {
        while self.failed.is_none()
            && let Some(flight) = self.ring.flights.pop_front()
        {
            let Phase::Written(mut batch) = flight.phase else {
                self.ring.flights.push_front(flight);
                return;
            };
            self.ring.written(flight.start, flight.bytes);
            assert_eq!(self.ring.committed_lsn, flight.lsn, "F1");
            self.ring.durable_lsn = flight.lsn; // F2
            self.stats.syncs += 1;
            self.note_committed(&batch, flight.bytes, flight.began);
            batch.reset();
            if self.spare.len() < FLIGHTS_MAX {
                self.spare.push(batch);
            }
        }
    }
}

impl Backup {
    /// Begins a flight with everything staged. `None`: there is nothing, or the next commit is to
    /// be written alone (F3). The caller holds `committing`, with nothing in it.
    pub(crate) fn take_off(&self, empty: &mut Batch) -> Option<Aloft> {
        let mut state = self.state();
        while state.ring.flying().count() >= FLIGHTS_MAX {
            state = self.wait_landed(state);
        }
        drop(state);
        let mut staging = self.lock_staging();
        let bytes = wal::padded_bytes(staging.bytes.len().checked_sub(COMMIT_BYTES)?);
        let is_small = self.wal.writes_apart(bytes as usize);
        let is_crowded = self.held.bytes() > self.options.memory_bytes;
        if staging.is_empty() || staging.straight || !is_small || is_crowded {
            return None;
        }
        let mut guard = self.state();
        let state = &mut *guard;
        if !state.takes_flights() {
            return None;
        }
        let start = state.ring.place(bytes)?;
        let is_free = |lane: &usize| state.ring.flying().all(|flight| flight.lane != *lane);
        let lane = (0..FLIGHTS_MAX).find(is_free)?;
        let head = state.ring.head_of(&staging);
        let (lsn, at) = (head.lsn, state.ring.at(start));
        state.ring.flights.push_back(Flight {
            lsn,
            start,
            bytes,
            lane,
            began: Instant::now(),
            phase: Phase::Flying,
        });
        let spare = state.spare.pop();
        drop(guard);
        std::mem::swap(&mut *staging, empty);
        drop(staging);
        let spare = spare.unwrap_or_else(|| Batch::new(&self.held));
        let mut batch = std::mem::replace(empty, spare);
        batch.seal(&head);
        Some(Aloft {
            batch,
            lsn,
            at,
            lane,
        })
    }

    /// Writes a flight, and waits until it has landed.
    pub(crate) fn fly(&self, flight: Aloft) -> Result<Committed, Error> {
        let Aloft {
            batch,
            lsn,
            at,
            lane,
        } = flight;
        let committed = batch.committed(lsn, Level::Synced);
        let written = self.lanes[lane].write_durably(at, batch.bytes.blocks());
        let is_written = written.is_ok();
        let mut state = self.touch_down(lsn, batch, written);
        if is_written && has_bug(Bug::LandsOutOfOrder) {
            return Ok(committed);
        }
        loop {
            if state.ring.committed_lsn >= lsn {
                return Ok(committed);
            }
            self.working(&state)?;
            let first = state.ring.flights.front();
            if first.is_some_and(|first| matches!(first.phase, Phase::Grounded(_))) {
                return Err(self.full()); // F4
            }
            state = self.wait_landed(state);
        }
    }

    /// Notes the end of a flight's write, and lands all that can land.
    fn touch_down(&self, lsn: u64, batch: Batch, written: io::Result<()>) -> MutexGuard<'_, State> {
        let is_written = written.is_ok();
        if let Err(error) = written {
            if is_full(&error) {
                self.state().stats.io_errors += 1;
            } else {
                self.fail("write the write-ahead log", &error); // V2: nothing lands any more
            }
        }
        let mut state = self.state();
        let mut flights = state.ring.flights.iter_mut();
        let flight = flights.find(|flight| flight.lsn == lsn);
        flight.expect("a flight lands after its write").phase = match is_written {
            true => Phase::Written(batch),
            false => Phase::Grounded(batch),
        };
        state.land();
        self.landed.notify_all();
        state
    }

    fn wait_landed<'a>(&'a self, state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        let woken = self.landed.wait(state);
        woken.unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes `committing` and waits until no flight is written any more: none begins while the lock
    /// is held. Grounded ones stay.
    pub(crate) fn lock_landed(&self) -> MutexGuard<'_, Batch> {
        let committing = self.lock_committing();
        let mut state = self.state();
        while state.ring.flying().next().is_some() {
            state = self.wait_landed(state);
        }
        drop(state);
        committing
    }

    /// Ends all flights; grounded ones are written again, in their order (F4). Returns the sum of
    /// those. The caller holds `committing`.
    pub(crate) fn land_all(&self) -> Result<Committed, Error> {
        let mut sum = Committed::default();
        let mut state = self.state();
        loop {
            if state.ring.flying().next().is_some() {
                state = self.wait_landed(state);
                continue;
            }
            self.working(&state)?;
            let Some(first) = state.ring.flights.front_mut() else {
                return Ok(sum);
            };
            let (lsn, start, lane) = (first.lsn, first.start, first.lane);
            let batch = match std::mem::replace(&mut first.phase, Phase::Flying) {
                Phase::Grounded(batch) => batch,
                Phase::Flying | Phase::Written(_) => unreachable!("F1"),
            };
            let at = state.ring.at(start);
            drop(state);
            let committed = batch.committed(lsn, Level::Synced);
            let written = self.lanes[lane].write_durably(at, batch.bytes.blocks());
            let is_written = written.is_ok();
            state = self.touch_down(lsn, batch, written);
            self.working(&state)?;
            if !is_written {
                return Err(self.full());
            }
            sum = committed.after(&sum);
        }
    }

    /// Waits for all flights that have begun. Returns whether a grounded one has chunks of this
    /// replica. The caller does not hold `committing`.
    pub(crate) fn is_grounded(&self, id: ReplicaId) -> bool {
        let mut state = self.state();
        let last = state.ring.last_lsn();
        while state.ring.flying().any(|flight| flight.lsn <= last) {
            state = self.wait_landed(state);
        }
        state.ring.flights.iter().any(|flight| match &flight.phase {
            Phase::Grounded(batch) | Phase::Written(batch) => batch.has(id),
            Phase::Flying => false,
        })
    }
}
