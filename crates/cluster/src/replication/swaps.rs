//! The replacements of cleaned segments by survivors.

use super::control_log::ControlLog;
use super::replicas::Replicas;
use super::segment::Lsn;
use super::segments::Segments;
use super::{Certificate, SegmentId};
use duramen_base::ids::Level;
use duramen_base::planted::{Bug, has_bug};
use duramen_format::control::{Added, Record};
use std::collections::VecDeque;

/// A swap in progress.
struct Pending {
    number: u64,
    version_floor: u64,
    add: Vec<(SegmentId, Certificate)>,
    remove: Vec<SegmentId>,
    /// End of its record, once written (replication::O5).
    at: Option<Lsn>,
}

/// All swaps in progress, in the order of their proposals.
pub(super) struct Swaps {
    swaps: VecDeque<Pending>,
    next: u64,
}

impl Swaps {
    pub fn new() -> Swaps {
        Swaps {
            swaps: VecDeque::new(),
            next: 1,
        }
    }

    pub fn len(&self) -> usize {
        self.swaps.len()
    }

    pub fn is_empty(&self) -> bool {
        self.swaps.is_empty()
    }

    /// Returns the number of the swap.
    pub fn propose(
        &mut self,
        add: Vec<(SegmentId, Certificate)>,
        remove: Vec<SegmentId>,
        version_floor: u64,
    ) -> u64 {
        let number = self.next;
        self.next += 1;
        self.swaps.push_back(Pending {
            number,
            version_floor,
            add,
            remove,
            at: None,
        });
        number
    }

    /// Takes a swap back, unless its record is written. Returns the segments that it adds.
    pub fn withdraw(&mut self, number: u64) -> Option<Vec<(SegmentId, Certificate)>> {
        let is_it = |swap: &Pending| swap.number == number && swap.at.is_none();
        let at = self.swaps.iter().position(is_it)?;
        self.swaps.remove(at).map(|swap| swap.add)
    }

    /// Writes the records of swaps whose survivors are complete (replication::O5), in the order of
    /// their proposals.
    pub fn write(&mut self, control: &mut ControlLog, replicas: &mut Replicas) -> bool {
        let Some(swap) = self.swaps.iter_mut().find(|swap| swap.at.is_none()) else {
            return false;
        };
        let segments = &replicas.segments;
        let survivors_are_safe = swap.add.iter().all(|(id, certificate)| {
            segments.get(*id).is_some_and(|segment| {
                segment.queued == *certificate
                    && segment.is_whole(segments.on_all(*id, Level::Synced))
            })
        });
        let victims_are_closed = swap.remove.iter().all(|id| {
            let listed = control.state().segments.get(id);
            listed.is_some_and(|listed| listed.closed.is_some())
        });
        let early = has_bug(Bug::SwapBeforeSurvivors);
        if !survivors_are_safe && !early || !victims_are_closed {
            return false;
        }
        let at = control.write(&swap.record(segments), replicas);
        swap.at = Some(at);
        for (id, _) in &swap.add {
            let segment = replicas.segments.known_mut(*id);
            (segment.listed_at, segment.close_recorded) = (Some(at), true);
        }
        control.announce_listed(replicas);
        true
    }

    /// replication::O6: takes the first swap if its record is in the part of the control log up to
    /// `synced`, which counts. Returns its number and its victims.
    pub fn take_done(&mut self, synced: Lsn) -> Option<(u64, Vec<SegmentId>)> {
        let early = has_bug(Bug::FreeBeforeSwap);
        let is_done = |at: Lsn| at <= synced || early;
        let done = self
            .swaps
            .pop_front_if(|swap| swap.at.is_some_and(is_done))?;
        Some((done.number, done.remove))
    }
}

impl Pending {
    fn record(&self, segments: &Segments) -> Record {
        let added = |(segment, certificate): &(SegmentId, Certificate)| Added {
            segment: *segment,
            epoch: segments.known(*segment).epoch,
            certificate: *certificate,
        };
        Record::Swap {
            version_floor: self.version_floor,
            add: self.add.iter().map(added).collect(),
            remove: self.remove.clone(),
        }
    }
}
