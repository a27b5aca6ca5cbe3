//! Statistics of a backup: its replicas, its memory, its counters.

use crate::device::Device;
use crate::state::State;
use crate::types::{Copies, KnownDamage, ReplicaInfo, Stats};
use duramen_base::planted::{Bug, has_bug};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// Longest wait for the counters.
const FIGURES_WITHIN: Duration = Duration::from_millis(5);

/// Figures of a backup.
#[derive(Clone, Copy)]
pub struct Figures<'b> {
    device: &'b Device,
    /// The counters that the last caller got.
    shown: &'b Mutex<Stats>,
}

impl<'b> Figures<'b> {
    pub(crate) fn new(device: &'b Device, shown: &'b Mutex<Stats>) -> Figures<'b> {
        Figures { device, shown }
    }

    /// Memory of copies that wait for frames.
    pub fn copies(&self) -> Copies {
        Copies {
            bytes: self.device.held().bytes(),
            reserved_bytes: self.device.held().reserved_bytes(),
            bytes_max: self.device.options().memory_bytes,
        }
    }

    /// The counters. While the device allocates frames, which locks the state, they are those of
    /// the last call.
    pub(crate) fn stats(&self) -> Stats {
        let now = self
            .device
            .state_within(FIGURES_WITHIN)
            .map(|state| self.count(&state));
        let mut shown = self.shown.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(now) = now {
            *shown = now;
        }
        shown.clone()
    }

    /// As [`Backup::logs`](crate::Backup::logs), and whether each is fenced. `None`: the device
    /// allocates frames now, which locks the state and may take long.
    pub fn logs_now(&self) -> Option<Vec<(u64, bool)>> {
        let state = self.device.state_within(FIGURES_WITHIN)?;
        let logs = state.logs().into_iter();
        let with_fence = logs.map(|log| (log, state.fenced.contains(&log)));
        Some(with_fence.collect())
    }

    /// As [`Backup::replicas_of`](crate::Backup::replicas_of). `None`: as
    /// [`logs_now`](Self::logs_now).
    pub fn replicas_now(&self, log: u64) -> Option<Vec<ReplicaInfo>> {
        let state = self.device.state_within(FIGURES_WITHIN)?;
        Some(state.replicas_of(log))
    }

    /// The known damage. `None`: as [`logs_now`](Self::logs_now).
    pub fn damage_now(&self) -> Option<KnownDamage> {
        let state = self.device.state_within(FIGURES_WITHIN)?;
        let damaged = state.replicas.iter().filter(|(_, replica)| {
            replica.committed && replica.is_to_be_replaced() && !has_bug(Bug::DamageStays)
        });
        Some(KnownDamage {
            replicas: damaged.map(|(id, _)| *id).collect(),
            scrub_rounds: state.stats.scrub_rounds,
        })
    }

    fn count(&self, state: &State) -> Stats {
        Stats {
            wal_bytes: state.ring.capacity,
            wal_used_bytes: state.ring.used(),
            frames: self.device.geometry().frames,
            frames_used: state.frames.used(),
            lacks_space: state.frames.lacks_space() && state.waits_for_frames(),
            frame_bytes: self.device.geometry().segment_bytes,
            replicas: state.replicas.len() as u32,
            quarantined: state.frames.quarantined(),
            unflushed: state.needs.len() as u32,
            ..state.stats.clone()
        }
    }
}
