//! Survivors that a backup builds from its own replicas: the backup service orders them, any thread
//! builds them.
//!
//! **Invariants**
//! - BU1: a survivor is built only from closed, verified replicas whose certificates are those that
//!   the master named, and counts only with the certificate that the master named. So what is
//!   stored is the survivor, byte for byte, whatever the replicas here were.
//! - BU2: a built survivor is stored as if its bytes had arrived at that moment: the checks of a
//!   write apply then, and the answer waits for its level on the device (backup_service::B1). It is
//!   a new replica in a new frame; the replicas of its victims stay until the master frees them.
//! - BU3: a survivor that was freed, or whose bytes have come, is not built any more. One that was
//!   freed while it was being built is not stored.
//! - BU4: one survivor is built at a time, and none is begun while a recovery waits for a replica.
//!   A build takes the memory of two segments. The recipes that wait take a bounded number of
//!   bytes.
//!
//! Paper: [Beineke18 §VIII]; differs: the reorganisation of a replica is ordered by the master, and
//! is a new frame, so a torn one loses nothing.

use duramen_backup::{Backup, ReplicaId};
use duramen_base::ids::ServerId;
use duramen_base::planted::{Bug, has_bug};
use duramen_format::recipe::{self, Build};
use duramen_format::segment::Header;
use duramen_wire::native::message::WriteReplica;
use std::collections::VecDeque;

/// Survivors that may wait to be built, and bytes of their recipes; masters send the bytes of
/// further survivors. A recipe has a 250th of its victims' bytes if their entries have 64 bytes.
const WAITING_MAX: usize = 256;
const WAITING_BYTES_MAX: usize = 8 << 20;
/// Delay before a repeated request for a survivor that is being built.
pub(crate) const AGAIN_MS: u32 = 50;

/// A survivor that a master has ordered.
pub(crate) struct Ordered<T> {
    pub tag: T,
    pub write: WriteReplica,
    /// Empty once it is being built, or cancelled.
    pub recipe: Vec<u8>,
    pub is_cancelled: bool,
}

/// The survivors that wait; the first one may be being built.
pub(crate) struct Builds<T> {
    pub waiting: VecDeque<Ordered<T>>,
    pub is_building: bool,
}

impl<T> Default for Builds<T> {
    fn default() -> Builds<T> {
        Builds {
            waiting: VecDeque::new(),
            is_building: false,
        }
    }
}

fn id_of(write: &WriteReplica) -> ReplicaId {
    ReplicaId {
        log: write.log.number(),
        segment: write.segment,
    }
}

impl<T> Builds<T> {
    /// Whether a survivor with so long a recipe may wait (BU4).
    pub fn has_room(&self, recipe_bytes: usize) -> bool {
        let waiting: usize = self
            .waiting
            .iter()
            .map(|ordered| ordered.recipe.len())
            .sum();
        self.waiting.len() < WAITING_MAX && waiting + recipe_bytes <= WAITING_BYTES_MAX
    }

    /// The replica was freed, or its bytes have come (BU3): it is not built.
    pub fn cancel(&mut self, id: ReplicaId) {
        let ordered = self.waiting.iter_mut();
        for ordered in ordered.filter(|ordered| id_of(&ordered.write) == id) {
            ordered.is_cancelled = true;
            ordered.recipe = Vec::new(); // that is quickly built
        }
    }

    /// The log is being recovered, or is gone: nothing of it is built any more.
    pub fn cancel_log(&mut self, log: ServerId) {
        let ordered = self.waiting.iter_mut();
        for ordered in ordered.filter(|ordered| ordered.write.log == log) {
            ordered.is_cancelled = true;
            ordered.recipe = Vec::new(); // that is quickly built
        }
    }

    /// The next survivor to build (BU4).
    pub fn next(&mut self) -> Option<BuildJob> {
        let first = self.waiting.front_mut().filter(|_| !self.is_building)?;
        self.is_building = true;
        Some(BuildJob {
            write: first.write,
            recipe: std::mem::take(&mut first.recipe),
        })
    }

    /// Takes the survivor that was being built. `None`: an earlier life of this server ordered it.
    pub fn built(&mut self, id: ReplicaId) -> Option<Ordered<T>> {
        let is_it = |first: &Ordered<T>| self.is_building && id_of(&first.write) == id;
        self.waiting.front().filter(|first| is_it(first))?;
        self.is_building = false;
        self.waiting.pop_front()
    }
}

/// A survivor that is to be built.
pub(crate) struct BuildJob {
    pub write: WriteReplica,
    pub recipe: Vec<u8>,
}

impl BuildJob {
    pub fn id(&self) -> ReplicaId {
        id_of(&self.write)
    }

    /// Builds the survivor. `scratch` grows to the size of a segment.
    ///
    /// # Errors
    /// The reason why it cannot be built here, for people.
    pub fn run(&self, backup: &Backup, scratch: &mut Vec<u8>) -> Result<Vec<u8>, String> {
        let write = &self.write;
        let header = Header {
            kind: write.kind,
            segment: write.segment,
            log: write.log.number(),
            head: 0,
            capacity: write.capacity,
        };
        let mut build = Build::begin(&header);
        scratch.resize(backup.geometry().segment_bytes as usize, 0);
        let mut there = None;
        for (part, certificate) in recipe::decode(&self.recipe).map_err(|e| e.to_string())? {
            let id = ReplicaId {
                log: write.log.number(),
                segment: part.victim,
            };
            if there != Some(part.victim) {
                let read = backup.read_of(id, scratch).map_err(|e| e.to_string())?;
                let is_it = read.closed && read.certificate() == certificate; // BU1
                if !is_it && !has_bug(Bug::BuildsFromStale) {
                    return Err(format!("segment {} has another certificate", part.victim));
                }
                there = Some(part.victim);
                scratch.truncate(read.length as usize);
            }
            let taken = build.take(&part, scratch);
            taken.map_err(|e| format!("segment {}: {e}", part.victim))?;
            scratch.resize(backup.geometry().segment_bytes as usize, 0);
        }
        Ok(build.end())
    }
}
