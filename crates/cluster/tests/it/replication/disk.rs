//! A simulated backup's replicas.

use duramen_base::ids::SegmentId;
use duramen_base::random::Random;
use duramen_cluster::replication::Send;
use duramen_format::certificate::Certificate;
use duramen_format::segment::Kind;
use std::collections::BTreeMap;

/// A replica of one segment.
#[derive(Clone, Debug)]
pub struct Stored {
    pub epoch: u64,
    pub kind: Kind,
    pub certificate: Certificate,
    pub closed: bool,
    /// Of control segments only.
    pub bytes: Vec<u8>,
}

impl Stored {
    pub fn new(send: &Send) -> Stored {
        Stored {
            epoch: send.epoch,
            kind: send.kind,
            certificate: Certificate::EMPTY,
            closed: false,
            bytes: Vec::new(),
        }
    }
}

pub type Disk = BTreeMap<SegmentId, Stored>;

#[derive(Clone, Debug)]
pub struct Message {
    pub send: Send,
    /// Of control segments only.
    pub bytes: Vec<u8>,
}

/// Writes a message to a disk.
pub type Store = fn(&mut Disk, &Message);

/// A disk, its contents as of the last sync, and the later writes in atomic steps.
#[derive(Clone, Default)]
pub struct Synced {
    pub disk: Disk,
    pub synced: Disk,
    pub journal: Vec<Vec<Message>>,
}

impl Synced {
    pub fn sync(&mut self) {
        self.synced = self.disk.clone();
        self.journal.clear();
    }

    pub fn free(&mut self, segment: SegmentId) {
        self.disk.remove(&segment);
        self.synced.remove(&segment);
        for step in &mut self.journal {
            step.retain(|message| message.send.segment != segment);
        }
    }

    /// The disk after a crash. A power cut leaves the synced data and some of the later writes, in
    /// order.
    pub fn after(&self, power_cut: bool, random: &mut Random, store: Store) -> Disk {
        if !power_cut {
            return self.disk.clone();
        }
        let mut disk = self.synced.clone();
        let kept = random.index(self.journal.len() + 1);
        for message in self.journal[..kept].iter().flatten() {
            store(&mut disk, message);
        }
        disk
    }
}
