//! Background work beside commits: survivors and closed segments go to frames, swaps are proposed,
//! replicas are freed, damaged ones are replaced.
//!
//! **Invariants** (docs/protocols.md, "Swapping", "Freeing")
//! - B1: this file never holds the commit's lock during I/O, so a frame never delays commits.
//! - B3: each entry of a survivor is verified before the survivor gets a certificate. One flipped
//!   bit is put back in what is written. With more damage it is not written, and its pass is given
//!   up: its victims stay listed, and a restart loads those.
//! - B2: a failed step changes nothing and is retried; only a failure of the device ends it.

use super::{Common, Durable, LOCAL, Local, Replicas};
use crate::Error;
use duramen_base::ids::{Level, SegmentId};
use duramen_base::planted::{Bug, has_bug};
use duramen_format::certificate::Certificate;
use duramen_format::segment::{HEADER_BYTES, Kind};
use duramen_format::{entry, mend};
use std::borrow::Cow;
use std::sync::atomic::Ordering;

impl Durable {
    /// One step of each kind of background work; returns whether there was any work. Called by one
    /// thread at a time, or by the simulator.
    ///
    /// # Errors
    /// [`Error::DiskFull`]: retry later. [`Error::DiskFailed`], [`Error::Closed`].
    pub fn background_step(&self) -> Result<bool, Error> {
        match &self.replicas {
            Replicas::Local(local) => local.step(&self.common),
            Replicas::Remote(remote) => remote.step(&self.common),
        }
    }
}

impl Local {
    /// As [`Durable::background_step`].
    ///
    /// # Errors
    /// As [`Durable::background_step`].
    pub(crate) fn step(&self, common: &Common) -> Result<bool, Error> {
        self.check_open(common)?;
        self.secure_room(common);
        // Each step gets its turn regardless of errors of the others: a step that makes room must
        // not wait for one that needs room.
        let steps = [
            self.settle(common),
            self.free_all(common),
            self.backup.flush_step().map_err(Error::from),
            self.write_survivor(common),
            Ok(drop_abandoned(common)),
            self.advance_swap(common),
            self.repair(common),
        ];
        steps
            .into_iter()
            .try_fold(false, |any, step| Ok(step? || any))
    }

    /// Applies the rules: the last commits' acknowledgements may allow further steps.
    fn settle(&self, common: &Common) -> Result<bool, Error> {
        self.apply_rules(common, &mut common.lock())?;
        Ok(false)
    }

    /// Writes a closed survivor to its frame, as a whole.
    fn write_survivor(&self, common: &Common) -> Result<bool, Error> {
        let log = common.log();
        let Some(ready) = log.next_survivor() else {
            return Ok(false);
        };
        if self.held.load(Ordering::Relaxed) == ready.segment.0 {
            return Ok(false); // B3
        }
        let Some(bytes) = common.sound_survivor(ready.segment, ready.bytes) else {
            if common.give_up_damaged(ready.segment) {
                return Ok(true);
            }
            self.held.store(ready.segment.0, Ordering::Relaxed);
            return Ok(false);
        };
        let certificate = Certificate::of(&bytes);
        self.backup
            .flusher()
            .write_frame(ready.segment, 0, &bytes, certificate, Kind::Survivor)?;
        let mut commit = common.lock();
        commit.survivors.add(ready.segment, certificate);
        commit
            .master
            .segments_mut()
            .survivor_durable(ready.segment, LOCAL, certificate);
        drop(commit);
        log.swaps().survivor_durable(ready.segment);
        Ok(true)
    }

    /// Proposes the next swap; reports a durable one to the engine. The record needs a synced
    /// commit.
    fn advance_swap(&self, common: &Common) -> Result<bool, Error> {
        let log = common.log();
        let commit = &mut *common.lock();
        if !commit.survivors.is_swap_proposed() {
            let Some(swap) = log.next_swap() else {
                let waits = log.swap_waits_for();
                return match waits {
                    // swap::D2: the heads must be synced up to this position.
                    Some(position) if log.reached(&position) < Level::Synced => {
                        self.commit(common, commit, Level::Synced)?;
                        Ok(true)
                    }
                    _ => Ok(false),
                };
            };
            let frees_early = has_bug(Bug::FreeBeforeSwap);
            if frees_early {
                commit.frees.extend(&swap.remove);
            }
            commit.survivors.propose(swap, &mut commit.master);
            if frees_early {
                return Ok(true);
            }
        }
        // Commits the record; then applies the rules that depend on its being synced.
        self.commit(common, commit, Level::Synced)?;
        self.apply_rules(common, commit)?;
        if let Some(swap) = commit.survivors.take_swapped() {
            log.swaps().swapped(&swap);
        }
        Ok(true)
    }

    /// Frees all of them: a swap can remove many segments at once.
    fn free_all(&self, common: &Common) -> Result<bool, Error> {
        let mut any = false;
        while self.free_one(common)? {
            any = true;
        }
        Ok(any)
    }

    /// Drops from the backup one replica that is not part of the log any more.
    fn free_one(&self, common: &Common) -> Result<bool, Error> {
        let segment = common.lock().frees.pop_front();
        let Some(segment) = segment else {
            return Ok(false);
        };
        match self.backup.free(segment) {
            // A survivor that was never swapped in may have been lost with its frame.
            Ok(()) | Err(duramen_backup::Error::UnknownSegment { .. }) => Ok(true),
            Err(error) => {
                common.lock().frees.push_front(segment);
                Err(error.into())
            }
        }
    }
}

/// Drops frames of side logs that were given up. Returns whether there were any.
fn drop_abandoned(common: &Common) -> bool {
    let abandoned = common.log().swaps().take_abandoned();
    let mut commit = common.lock();
    for segment in &abandoned {
        if commit.survivors.remove(*segment) {
            commit.master.survivor_abandoned(*segment);
            commit.frees.push_back(*segment);
        }
    }
    !abandoned.is_empty()
}

impl Common {
    /// The bytes of a survivor as they are to be written (B3). `None`: they have more damage than
    /// one flipped bit of an entry.
    pub(super) fn sound_survivor<'a>(
        &self,
        segment: SegmentId,
        bytes: &'a [u8],
    ) -> Option<Cow<'a, [u8]>> {
        let mut at = HEADER_BYTES;
        while let Some(rest) = bytes.get(at..).filter(|rest| !rest.is_empty()) {
            match entry::parse(rest) {
                Ok(entry) => at += entry.padded_bytes,
                Err(_) if has_bug(Bug::SwapBeforeVerified) => break,
                Err(_) => return self.mended_survivor(segment, bytes),
            }
        }
        Some(Cow::Borrowed(bytes))
    }

    /// A survivor has damage: the pass that it belongs to is given up (B3). The caller does not
    /// read its bytes any more. Returns false if it belongs to a side log.
    #[cold]
    pub(super) fn give_up_damaged(&self, segment: SegmentId) -> bool {
        let why = "more than one bit of an entry changed in memory before it was written";
        let is_given_up = self.engine.segments().give_up_pass_of(segment, why);
        if is_given_up {
            self.log().swaps().survivor_durable(segment); // only its memory is to be freed
        }
        is_given_up
    }

    #[cold]
    fn mended_survivor<'a>(&self, segment: SegmentId, bytes: &[u8]) -> Option<Cow<'a, [u8]>> {
        let mut copy = bytes.to_vec();
        match mend::segment(&mut copy, Kind::Survivor, usize::MAX) {
            Ok(mended) => {
                for bit in mended {
                    self.engine.segments().tell_mended(segment, bit.to_string());
                }
                Some(Cow::Owned(copy))
            }
            Err(at) => {
                let what = format!(
                    "byte {at} of a survivor: it is not written, and its victims stay; restart to load them"
                );
                self.engine.segments().tell_damage(segment, what);
                None
            }
        }
    }
}
