//! Reads replicas back, verified.
//!
//! **Invariant**
//! - D1: of a replica that does not match its certificate, one flipped bit of each entry is put
//!   back (format::mend). It counts only if the certificate matches then, and the replica counts as
//!   damaged all the same: its master replaces it. An encrypted replica is not mended, as there one
//!   flipped bit of the disk changes 16 bytes.

use duramen_base::planted::{Bug, has_bug};
use std::time::Instant;

use duramen_base::ids::SegmentId;
use duramen_format::frame::{SLOT_BYTES, slot_at};
use duramen_format::mend;

use crate::device::Device;
use crate::error::Error;
use crate::flush::Turns;
use crate::rebuild;
use crate::replica::{Data, Decay, Replica};
use crate::salvage::read_what_can_be;
use crate::speed::ReadSpeed;
use crate::state::State;
use crate::types::{Damaged, Place, ReplicaId, ReplicaInfo};

/// Attempts to read a replica that moves meanwhile.
const ATTEMPTS: u32 = 8;

/// The part of a replica that has to be read from the device.
struct Source {
    info: ReplicaInfo,
    /// Place of its first byte in the frames' region.
    at: u64,
    /// Number of its bytes there.
    in_frame: usize,
    base: u32,
    frame: Option<u32>,
}

/// The way to read the bytes of a frame.
#[derive(Clone, Copy)]
pub(crate) enum ReadMode<'a> {
    Usual,
    /// Past all caches, and the slot is verified too.
    Medium,
    /// See [`Reader::read_in_steps`].
    Steps(usize, &'a dyn Fn(usize)),
}

/// Reads replicas; see the module.
#[derive(Clone, Copy)]
pub struct Reader<'b> {
    device: &'b Device,
    turns: &'b Turns,
    /// The speed of the device for reads.
    speed: &'b ReadSpeed,
    is_encrypted: bool,
}

impl<'b> Reader<'b> {
    pub(crate) fn new(
        device: &'b Device,
        turns: &'b Turns,
        speed: &'b ReadSpeed,
        is_encrypted: bool,
    ) -> Reader<'b> {
        Reader {
            device,
            turns,
            speed,
            is_encrypted,
        }
    }

    pub(crate) fn device(&self) -> &'b Device {
        self.device
    }

    pub(crate) fn speed(&self) -> &'b ReadSpeed {
        self.speed
    }

    /// As [`Backup::read`](crate::Backup::read), in steps of at most `step_bytes`; `before` is
    /// called before each, and may wait.
    ///
    /// # Errors
    /// As [`Backup::read`](crate::Backup::read).
    pub fn read_in_steps(
        &self,
        segment: SegmentId,
        into: &mut [u8],
        step_bytes: usize,
        before: &dyn Fn(usize),
    ) -> Result<ReplicaInfo, Error> {
        self.read(
            self.device.own(segment),
            into,
            ReadMode::Steps(step_bytes, before),
        )
    }

    /// The first bytes of a replica, as many as are certified and fit into `into`, damaged or not:
    /// zeros where the device gives an error. Nothing is verified, and no damage is noted.
    ///
    /// # Errors
    /// [`Error::UnknownSegment`].
    pub fn read_raw(&self, id: ReplicaId, into: &mut [u8]) -> Result<ReplicaInfo, Error> {
        let unknown = || Error::UnknownSegment {
            segment: id.segment,
        };
        for _ in 0..ATTEMPTS {
            let source = {
                let state = self.device.state();
                let replica = state.replicas.get(&id).filter(|replica| replica.committed);
                self.copy(&state, replica.ok_or_else(unknown)?, id, into)
            };
            let part = &mut into[..source.in_frame];
            match source.frame {
                Some(_) => drop(read_what_can_be(self.device.frames(), source.at, part)),
                None => part.fill(0),
            }
            if !self.moved(id, &source)? {
                return Ok(source.info);
            }
        }
        Err(unknown())
    }

    /// Reads the certified bytes of a replica into the start of `into` and verifies them.
    pub(crate) fn read(
        &self,
        id: ReplicaId,
        into: &mut [u8],
        how: ReadMode<'_>,
    ) -> Result<ReplicaInfo, Error> {
        let mut found = None;
        for _ in 0..ATTEMPTS {
            let source = self.source(id, into)?;
            let decay = match self.verify(id, &source, into, how) {
                None => return Ok(source.info),
                Some(decay) => decay,
            };
            // If a second read gives the same error in the same place, it is no accident of
            // reading.
            let is_mended = decay.mendable && !matches!(how, ReadMode::Medium);
            if !self.moved(id, &source)? && found.replace(decay).is_some() {
                if is_mended && let Some(decay) = found {
                    self.device.state().stats.flipped_bits += 1;
                    self.note_decay(id, decay); // D1: it counts as damaged all the same
                    return Ok(source.info);
                }
                break;
            }
        }
        let decay = found.unwrap_or_else(|| Decay::wrong("it moved whenever it was read"));
        Err(self.note_decay(id, decay))
    }

    /// The damage of a replica, if there is any. Mendable damage was mended in `into`.
    fn verify(
        &self,
        id: ReplicaId,
        source: &Source,
        into: &mut [u8],
        how: ReadMode<'_>,
    ) -> Option<Decay> {
        let part = &mut into[..source.in_frame];
        let read = match how {
            _ if part.is_empty() => Ok(()),
            ReadMode::Medium => {
                let begun = Instant::now();
                let read = self.device.frames().read_medium(source.at, part);
                if read.is_ok() {
                    self.note_read(part.len() as u64, begun.elapsed());
                }
                read
            }
            ReadMode::Usual => self.device.frames().read_at(source.at, part),
            ReadMode::Steps(step_bytes, before) => {
                let mut steps = (0..).zip(part.chunks_mut(step_bytes));
                steps.try_for_each(|(n, step)| {
                    before(step.len());
                    let at = source.at + n * step_bytes as u64;
                    self.device.frames().read_at(at, step)
                })
            }
        };
        if let Err(error) = read {
            return Some(Decay::unreadable(&error));
        }
        if !source.info.certificate().matches(into) && !has_bug(Bug::DamageIsSkipped) {
            let mended = self.mend(&source.info, into).map(Decay::mendable);
            let wrong = || Decay::wrong("its bytes do not match its certificate");
            return Some(mended.unwrap_or_else(wrong));
        }
        match how {
            ReadMode::Medium => self.verify_slot(id),
            ReadMode::Usual | ReadMode::Steps(..) => None,
        }
    }

    /// D1: puts back the flipped bits of a replica, and names them. `None`: other damage.
    fn mend(&self, info: &ReplicaInfo, into: &mut [u8]) -> Option<String> {
        if self.is_encrypted || has_bug(Bug::OneBitLosesReplica) {
            return None;
        }
        let bytes = into.get_mut(..info.length as usize)?;
        // There is no other copy of a single server's own log.
        let entry_bytes_max = match info.log == self.device.identity().server {
            true => usize::MAX,
            false => mend::SURE_BYTES_MAX,
        };
        let mended = mend::segment(bytes, info.kind, entry_bytes_max);
        if has_bug(Bug::MendsUnproved) {
            return Some(String::new());
        }
        let names: Vec<String> = mended.ok()?.iter().map(ToString::to_string).collect();
        let certificate = info.certificate();
        (!names.is_empty() && certificate.matches(bytes)).then(|| names.join("; "))
    }

    /// The damage of the replica's slot, if there is any.
    fn verify_slot(&self, id: ReplicaId) -> Option<Decay> {
        // This replica's slots do not change meanwhile, unless it is freed.
        let _flushing = self.turns.flushing();
        let (frame, current, closed, certificate) = {
            let state = self.device.state();
            let replica = state.replicas.get(&id)?;
            let frame = replica.frame.filter(|_| replica.in_slot)?;
            let closed = replica.place() == Place::Frame;
            (
                frame,
                state.frames.current(frame),
                closed,
                replica.certificate,
            )
        };
        let mut pair = vec![0; 2 * SLOT_BYTES as usize];
        if let Err(error) = self
            .device
            .frames()
            .read_medium(slot_at(frame, 0), &mut pair)
        {
            return Some(Decay::unreadable(&error));
        }
        let found = rebuild::decode(frame, &pair);
        let is_whole = found.current == current
            && found.slot.is_some_and(|slot| {
                slot.segment == id.segment
                    && slot.log == id.log
                    && (!closed || slot.certificate == certificate)
            });
        // A replica that was freed meanwhile may have any slot.
        let state = self.device.state();
        let is_there = state.replicas.get(&id).and_then(|r| r.frame) == Some(frame);
        (!is_whole && is_there).then(|| Decay::wrong("its frame's slot is not what was written"))
    }

    /// Notes that a sound replica has become damaged. Its master fetches it with
    /// [`take_damaged`](Self::take_damaged).
    fn note_decay(&self, id: ReplicaId, decay: Decay) -> Error {
        let mut guard = self.device.state();
        let state = &mut *guard;
        let error = self.device.damaged(id, decay.reason.clone());
        let Some(replica) = state.replicas.get_mut(&id) else {
            return error;
        };
        let worse = |known: &Decay| known.mendable && !decay.mendable;
        if replica.decay.as_ref().is_none_or(worse) {
            state.stats.damaged += 1;
            state.damaged.push(Damaged {
                log: id.log,
                segment: id.segment,
                kind: replica.kind,
                frame: replica.frame,
                unreadable: decay.unreadable,
                reason: decay.reason.clone(),
            });
            replica.decay = Some(decay);
        }
        error
    }

    /// A reader has found that bits of an own segment had flipped before it was certified, and has
    /// put them back: the segment counts as damaged until it is replaced.
    pub fn note_flipped(&self, segment: SegmentId, bits: u64, reason: String) {
        self.device.state().stats.flipped_bits += bits;
        self.note_decay(self.device.own(segment), Decay::mendable(reason));
    }

    /// Flipped bits of a replica that were put back for readers.
    pub(crate) fn mended_text(&self, id: ReplicaId) -> Option<String> {
        let state = self.device.state();
        let decay = state.replicas.get(&id)?.decay.as_ref()?;
        decay.mendable.then(|| decay.reason.clone())
    }

    /// Replicas of a log that the device did not read count as readable again.
    pub fn retry_unreadable(&self, log: u64) {
        let mut state = self.device.state();
        let of_log = state.replicas.iter_mut().filter(|(id, _)| id.log == log);
        for (_, replica) in of_log {
            replica.decay.take_if(|decay| decay.unreadable);
        }
    }

    /// Replicas that were found damaged since the last call, by scrubbing or by a reader. They stay
    /// as they are until they are freed, or written again with
    /// [`write_frame`](crate::Flusher::write_frame).
    pub fn take_damaged(&self) -> Vec<Damaged> {
        std::mem::take(&mut self.device.state().damaged)
    }

    /// Copies the bytes that are in memory, and returns the place of the rest.
    fn source(&self, id: ReplicaId, into: &mut [u8]) -> Result<Source, Error> {
        let state = self.device.state();
        let replica = state
            .replicas
            .get(&id)
            .filter(|replica| replica.committed)
            .ok_or(Error::UnknownSegment {
                segment: id.segment,
            })?;
        let info = replica.info(id);
        if let Some(reason) = replica.damage() {
            return Err(self.device.damaged(id, reason.to_owned()));
        }
        let length = info.length as usize;
        if into.len() < length {
            return Err(Error::TooLong {
                segment: id.segment,
                capacity: into.len() as u32,
                end: length as u64,
            });
        }
        Ok(self.copy(&state, replica, id, into))
    }

    /// Copies the bytes that are in memory, as far as they are certified and fit into `into`.
    fn copy(&self, state: &State, replica: &Replica, id: ReplicaId, into: &mut [u8]) -> Source {
        let info = replica.info(id);
        let length = into.len().min(info.length as usize);
        let in_frame = if let Data::InFrame = replica.data {
            length
        } else {
            let base = length.min(replica.base as usize);
            replica.copy_from(replica.base, &mut into[base..length]);
            base
        };
        Source {
            info,
            at: replica.frame.map_or(0, |frame| state.frames.data_at(frame)),
            in_frame,
            base: replica.base,
            frame: replica.frame,
        }
    }

    /// Whether a replica has moved since it was looked up.
    fn moved(&self, id: ReplicaId, source: &Source) -> Result<bool, Error> {
        let state = self.device.state();
        let replica = state.replicas.get(&id).ok_or(Error::UnknownSegment {
            segment: id.segment,
        })?;
        Ok(replica.base != source.base
            || replica.frame != source.frame
            || replica.place() != source.info.place)
    }
}
