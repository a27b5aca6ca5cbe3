//! Reads replicas back, verified; and verifies them without being asked.

use std::sync::PoisonError;

use duramen_base::ids::SegmentId;

use crate::backup::Backup;
use crate::disk::BLOCK_BYTES;
use crate::error::Error;
use crate::replica::Data;
use crate::types::{Place, ReplicaInfo, ScrubStep};

/// Times to look again when a replica moved while it was read.
const ATTEMPTS: u32 = 8;

/// What has to be read from the device.
struct Source {
    info: ReplicaInfo,
    /// Where in the frames' region its first bytes lie.
    at: u64,
    /// How many of them lie there.
    in_frame: usize,
    base: u32,
    frame: Option<u32>,
}

impl Backup {
    /// Reads the certified bytes of a replica into the start of `into` and verifies them.
    ///
    /// # Errors
    /// [`Error::DamagedSegment`], [`Error::UnknownSegment`], [`Error::TooLong`] if `into` is too short.
    pub fn read(&self, segment: SegmentId, into: &mut [u8]) -> Result<ReplicaInfo, Error> {
        let mut reason = String::new();
        for _ in 0..ATTEMPTS {
            let source = self.source(segment, into)?;
            let part = &mut into[..source.in_frame];
            let read = if part.is_empty() {
                Ok(())
            } else {
                self.frames.read_at(source.at, part)
            };
            #[cfg(feature = "planted")]
            if read.is_ok() && self.planted(crate::planted::Bug::DamageIsSkipped) {
                return Ok(source.info);
            }
            reason = match read {
                Ok(()) if source.info.certificate().matches(into) => return Ok(source.info),
                Ok(()) => "its bytes do not match its certificate".to_owned(),
                Err(error) => format!("it can't be read: {error}"),
            };
            if !self.moved(segment, &source)? {
                break;
            }
        }
        let mut state = self.state();
        state.stats.damaged += 1;
        if let Some(replica) = state.replicas.get_mut(&segment) {
            replica.damaged.get_or_insert_with(|| reason.clone());
        }
        Err(self.damaged(segment, reason))
    }

    fn damaged(&self, segment: SegmentId, reason: String) -> Error {
        Error::DamagedSegment {
            place: self.place.clone(),
            segment,
            reason,
        }
    }

    /// Copies what is in memory, and says where the rest is.
    fn source(&self, segment: SegmentId, into: &mut [u8]) -> Result<Source, Error> {
        let state = self.state();
        let replica = state
            .replicas
            .get(&segment)
            .filter(|replica| replica.committed)
            .ok_or(Error::UnknownSegment { segment })?;
        let info = replica.info(segment);
        if let Some(reason) = &replica.damaged {
            return Err(self.damaged(segment, reason.clone()));
        }
        let length = info.length as usize;
        if into.len() < length {
            return Err(Error::TooLong {
                segment,
                capacity: into.len() as u32,
                end: length as u64,
            });
        }
        let in_frame = match &replica.data {
            Data::InFrame => length,
            Data::Growing(buffer) => from_memory(into, replica.base, length, buffer.bytes()),
            Data::Lent(buffer) | Data::Sealed(buffer) => {
                from_memory(into, replica.base, length, buffer.bytes())
            }
        };
        Ok(Source {
            info,
            at: replica.frame.map_or(0, |frame| state.frames.data_at(frame)),
            in_frame,
            base: replica.base,
            frame: replica.frame,
        })
    }

    /// Whether a replica lies elsewhere than when it was looked up.
    fn moved(&self, segment: SegmentId, source: &Source) -> Result<bool, Error> {
        let state = self.state();
        let replica = state
            .replicas
            .get(&segment)
            .ok_or(Error::UnknownSegment { segment })?;
        Ok(replica.base != source.base
            || replica.frame != source.frame
            || replica.place() != source.info.place)
    }

    /// Verifies one replica in a frame. For one background thread, or the simulator.
    ///
    /// # Errors
    /// None today; what is found is in the result.
    pub fn scrub_step(&self) -> Result<ScrubStep, Error> {
        let (segment, bytes) = {
            let mut state = self.state();
            let after = state.scrub_after.0 + 1;
            let in_frame = |from: u64, to: u64| {
                state
                    .replicas
                    .range(SegmentId(from)..SegmentId(to))
                    .find(|(_, replica)| replica.place() == Place::Frame)
                    .map(|(segment, replica)| (*segment, replica.certificate.length))
            };
            let Some(next) = in_frame(after, u64::MAX).or_else(|| in_frame(0, after)) else {
                return Ok(ScrubStep::Idle);
            };
            state.scrub_after = next.0;
            state.stats.scrubbed += 1;
            next
        };
        let rounded = (bytes as usize).next_multiple_of(BLOCK_BYTES as usize);
        let mut scratch = {
            let mut scratch = self
                .scrubbing
                .lock()
                .unwrap_or_else(PoisonError::into_inner);
            std::mem::take(&mut *scratch)
        };
        scratch.resize(rounded, 0);
        let read = self.read(segment, &mut scratch);
        *self
            .scrubbing
            .lock()
            .unwrap_or_else(PoisonError::into_inner) = scratch;
        match read {
            Ok(_) => Ok(ScrubStep::Good { segment, bytes }),
            Err(Error::UnknownSegment { .. }) => Ok(ScrubStep::Good { segment, bytes: 0 }), // freed meanwhile
            Err(_) => Ok(ScrubStep::Damaged { segment }),
        }
    }
}

/// Copies the part of a replica that is in memory to its place; returns how many bytes come before it.
fn from_memory(into: &mut [u8], base: u32, length: usize, held: &[u8]) -> usize {
    let base = base as usize;
    let count = length.saturating_sub(base).min(held.len());
    into[base..base + count].copy_from_slice(&held[..count]);
    base
}
