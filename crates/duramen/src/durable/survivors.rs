//! Survivors that are written, from the end of their writing until the Swap that lists them.

use duramen_base::ids::SegmentId;
use duramen_cluster::replication::Master;
use duramen_engine::{Log, Swap};
use duramen_format::certificate::Certificate;
use std::collections::BTreeMap;

/// Written survivors, and the Swap in flight.
#[derive(Default)]
pub(crate) struct Survivors {
    /// Survivors that are written, and not yet proposed.
    written: BTreeMap<SegmentId, Certificate>,
    /// The Swap in flight, with its number.
    proposed: Option<(u64, Swap)>,
    /// Numbers of Swaps that are durable, and not yet reported to the engine.
    swapped: Vec<u64>,
}

impl Survivors {
    pub fn add(&mut self, segment: SegmentId, certificate: Certificate) {
        self.written.insert(segment, certificate);
    }

    /// Forgets a survivor of a side log that was given up. Returns whether it was written, and not
    /// yet proposed.
    pub fn remove(&mut self, segment: SegmentId) -> bool {
        self.written.remove(&segment).is_some()
    }

    pub fn is_swap_proposed(&self) -> bool {
        self.proposed.is_some()
    }

    /// Proposes the next Swap. One at a time.
    pub fn propose(&mut self, swap: Swap, master: &mut Master) {
        let add = swap.add.iter().map(|id| {
            let certificate = self.written.remove(id);
            (*id, certificate.expect("a survivor that was written"))
        });
        let add = add.collect();
        let number = master.swap(add, swap.remove.clone(), swap.version_floor);
        self.proposed = Some((number, swap));
    }

    /// The record of a Swap is durable.
    pub fn swapped(&mut self, number: u64) {
        self.swapped.push(number);
    }

    /// The proposed Swap, once, when its record is durable.
    pub fn take_swapped(&mut self) -> Option<Swap> {
        let (_, swap) = self
            .proposed
            .take_if(|(number, _)| self.swapped.contains(number))?;
        self.swapped.clear();
        Some(swap)
    }

    /// Takes the proposed Swap back if it adds this segment. Returns false if its record is
    /// written.
    pub fn withdraw(&mut self, segment: SegmentId, master: &mut Master, log: &Log) -> bool {
        let is_its = |(_, swap): &mut (u64, Swap)| swap.add.contains(&segment);
        if let Some((number, swap)) = self.proposed.take_if(is_its) {
            let Some(added) = master.withdraw(number) else {
                self.proposed = Some((number, swap));
                return false;
            };
            self.written.extend(added);
            log.swaps().swap_withdrawn(&swap);
        }
        true
    }
}
