//! Statistics of a backup: its replicas, its memory, its counters.

use crate::backup::Backup;
use crate::error::Error;
use crate::types::{Copies, ReplicaInfo, Stats};

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

    /// The counters.
    pub fn stats(&self) -> Stats {
        let state = self.state();
        Stats {
            wal_bytes: state.ring.capacity,
            wal_used_bytes: state.ring.used(),
            frames: self.geometry.frames,
            frames_used: state.frames.used(),
            frame_bytes: self.geometry.segment_bytes,
            replicas: state.replicas.len() as u32,
            quarantined: state.frames.quarantined(),
            unflushed: state.needs.len() as u32,
            ..state.stats.clone()
        }
    }
}
