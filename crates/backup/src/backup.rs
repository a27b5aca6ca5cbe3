//! The backup: replicas of segments on one device.

use std::sync::Arc;

use duramen_base::ids::{Level, SegmentId};
use duramen_format::certificate::Certificate;
use duramen_format::segment::Kind;

use crate::disk::Disk;
use crate::error::Error;
use crate::types::{
    Chunk, Committed, Expected, Geometry, Identity, Options, ReplicaInfo, ScrubStep, Stats,
};

/// Segment replicas on one device. See the crate's documentation for who may call what.
pub struct Backup {
    disk: Arc<dyn Disk>,
    identity: Identity,
    geometry: Geometry,
}

impl Backup {
    /// Creates an empty store on an empty disk (or goes on where a creation was interrupted) and opens it.
    ///
    /// # Errors
    /// [`Error::Exists`] if there is a store, [`Error::NotDuramen`] if there is something else: nothing is overwritten.
    pub fn create(
        disk: Arc<dyn Disk>,
        _options: &Options,
        geometry: &Geometry,
        identity: &Identity,
    ) -> Result<Backup, Error> {
        Ok(Backup {
            disk,
            identity: identity.clone(),
            geometry: *geometry,
        })
    }

    /// Opens a store: the write-ahead log is read, replicas that were open are rebuilt.
    ///
    /// # Errors
    /// [`Error::Absent`] if the disk is empty; otherwise each says what is wrong and what to do.
    pub fn open(
        disk: Arc<dyn Disk>,
        _options: &Options,
        _expected: &Expected,
    ) -> Result<(Backup, Vec<ReplicaInfo>), Error> {
        Err(Error::Absent {
            place: disk.label(),
        })
    }

    /// Who the store belongs to.
    pub fn identity(&self) -> &Identity {
        &self.identity
    }

    /// Its sizes.
    pub fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    /// Takes a chunk into the next commit. Copies its bytes.
    ///
    /// # Errors
    /// [`Error::UnknownSegment`], [`Error::StaleEpoch`], [`Error::Gap`], [`Error::TooLong`]: the chunk was not taken.
    pub fn stage(&self, chunk: Chunk<'_>) -> Result<(), Error> {
        Err(Error::UnknownSegment {
            segment: chunk.segment,
        })
    }

    /// Commits everything staged in one write, all or nothing. Only one caller at a time: the log writer.
    ///
    /// # Errors
    /// [`Error::Full`]: everything stays staged, try again. [`Error::Failed`]: nothing more will be taken.
    pub fn commit(&self, _level: Level) -> Result<Committed, Error> {
        Ok(Committed::default())
    }

    /// Makes every earlier commit [`Level::Synced`].
    ///
    /// # Errors
    /// [`Error::Failed`].
    pub fn sync(&self) -> Result<(), Error> {
        Ok(())
    }

    /// Writes a whole closed segment straight to a frame. Durable on return. A replica with this id that is known to be
    /// damaged is replaced.
    ///
    /// # Errors
    /// [`Error::Full`], [`Error::Failed`].
    pub fn write_frame(
        &self,
        segment: SegmentId,
        _epoch: u64,
        _bytes: &[u8],
        _certificate: Certificate,
        _kind: Kind,
    ) -> Result<(), Error> {
        Err(Error::UnknownSegment { segment })
    }

    /// Forgets a replica; its space is used again at once. It may reappear after a restart: only what the control log
    /// lists is ever replayed.
    ///
    /// # Errors
    /// [`Error::UnknownSegment`], [`Error::Failed`].
    pub fn free(&self, segment: SegmentId) -> Result<(), Error> {
        Err(Error::UnknownSegment { segment })
    }

    /// Reads the certified bytes of a replica into the start of `into` and verifies them.
    ///
    /// # Errors
    /// [`Error::DamagedSegment`], [`Error::UnknownSegment`], [`Error::TooLong`] if `into` is too short.
    pub fn read(&self, segment: SegmentId, _into: &mut [u8]) -> Result<ReplicaInfo, Error> {
        Err(Error::UnknownSegment { segment })
    }

    /// All replicas, by id.
    pub fn replicas(&self) -> Vec<ReplicaInfo> {
        Vec::new()
    }

    /// Writes at most one replica (or part of one) to its frame and trims the write-ahead log. Returns whether there
    /// was something to do. For one background thread, or the simulator.
    ///
    /// # Errors
    /// [`Error::Full`]: later. [`Error::Failed`].
    pub fn flush_step(&self) -> Result<bool, Error> {
        Ok(false)
    }

    /// Verifies one replica in a frame. For one background thread, or the simulator.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn scrub_step(&self) -> Result<ScrubStep, Error> {
        Ok(ScrubStep::Idle)
    }

    /// Figures.
    pub fn stats(&self) -> Stats {
        Stats::default()
    }

    /// Syncs, and notes the end of the write-ahead log, so that a restart need not search for it.
    ///
    /// # Errors
    /// [`Error::Failed`].
    pub fn close(&self) -> Result<(), Error> {
        self.sync()
    }

    /// The disk it is on.
    pub fn disk(&self) -> &Arc<dyn Disk> {
        &self.disk
    }
}
