//! Statistics of a backup: its replicas, its memory, its counters.

use crate::backup::Backup;
use crate::state::State;
use crate::error::Error;
use crate::types::{Copies, KnownDamage, ReplicaInfo, Stats};
use duramen_base::planted::{Bug, has_bug};
use std::sync::{MutexGuard, PoisonError, TryLockError};
use std::time::{Duration, Instant};

/// Longest wait for the counters.
const FIGURES_WITHIN: Duration = Duration::from_millis(5);

impl Backup {
    /// All replicas, by id.
    pub fn replicas(&self) -> Vec<ReplicaInfo> {
        let state = self.state();
        state
            .replicas
            .iter()
            .filter(|(_, replica)| replica.committed)
            .map(|(id, replica)| replica.info(*id))
            .collect()
    }

    /// Memory of copies that wait for frames.
    pub fn copies(&self) -> Copies {
        Copies {
            bytes: self.held.bytes(),
            reserved_bytes: self.held.reserved_bytes(),
            bytes_max: self.options.memory_bytes,
        }
    }

    /// Allocates disk space for `wanted` frames ahead of their use. Returns the number of frames
    /// with space: fewer on a full disk.
    ///
    /// # Errors
    /// [`Error::Failed`].
    pub fn secure_frames(&self, wanted: u32) -> Result<u32, Error> {
        let mut state = self.state();
        self.working(&state)?;
        let secured = state.frames.secure(&self.frames, wanted);
        drop(state);
        secured.map_err(|error| self.fail("allocate frames", &error))
    }

    /// The counters. While the device allocates frames, which locks the state, they are those of
    /// the last call.
    pub fn stats(&self) -> Stats {
        let now = self
            .state_within(FIGURES_WITHIN)
            .map(|state| self.count(&state));
        let mut shown = self.shown.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(now) = now {
            *shown = now;
        }
        shown.clone()
    }

    /// As [`logs`](Self::logs), and whether each is fenced. `None`: the device allocates frames
    /// now, which locks the state and may take long.
    pub fn logs_now(&self) -> Option<Vec<(u64, bool)>> {
        let state = self.state_within(FIGURES_WITHIN)?;
        let logs = state.logs().into_iter();
        let with_fence = logs.map(|log| (log, state.fenced.contains(&log)));
        Some(with_fence.collect())
    }

    /// As [`replicas_of`](Self::replicas_of). `None`: as [`logs_now`](Self::logs_now).
    pub fn replicas_now(&self, log: u64) -> Option<Vec<ReplicaInfo>> {
        let state = self.state_within(FIGURES_WITHIN)?;
        Some(state.replicas_of(log))
    }

    /// The known damage. `None`: as [`logs_now`](Self::logs_now).
    pub fn damage_now(&self) -> Option<KnownDamage> {
        let state = self.state_within(FIGURES_WITHIN)?;
        let damaged = state.replicas.iter().filter(|(_, replica)| {
            replica.committed && replica.is_to_be_replaced() && !has_bug(Bug::DamageStays)
        });
        Some(KnownDamage {
            replicas: damaged.map(|(id, _)| *id).collect(),
            scrub_rounds: state.stats.scrub_rounds,
        })
    }

    fn state_within(&self, patience: Duration) -> Option<MutexGuard<'_, State>> {
        let begun = Instant::now();
        loop {
            match self.state.try_lock() {
                Ok(state) => return Some(state),
                Err(TryLockError::Poisoned(state)) => return Some(state.into_inner()),
                Err(TryLockError::WouldBlock) if begun.elapsed() >= patience => return None,
                Err(TryLockError::WouldBlock) => std::thread::sleep(Duration::from_micros(50)),
            }
        }
    }

    fn count(&self, state: &State) -> Stats {
        Stats {
            wal_bytes: state.ring.capacity,
            wal_used_bytes: state.ring.used(),
            frames: self.geometry.frames,
            frames_used: state.frames.used(),
            lacks_space: state.frames.lacks_space() && state.waits_for_frames(),
            frame_bytes: self.geometry.segment_bytes,
            replicas: state.replicas.len() as u32,
            quarantined: state.frames.quarantined(),
            unflushed: state.needs.len() as u32,
            ..state.stats.clone()
        }
    }
}
