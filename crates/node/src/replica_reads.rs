//! Reading of replicas for recoveries: the backup service names them, any thread reads them.

use crate::backup_service::BackupService;
use duramen_backup::{Backup, Error, ReplicaId, Sorted, Spare};
use duramen_base::ids::ServerId;
use duramen_format::hash::KeyHasher;
use std::sync::Arc;

/// A replica that a recovery waits for.
pub struct ReplicaRead {
    log: ServerId,
    id: ReplicaId,
    backup: Arc<Backup>,
    hasher: KeyHasher,
    spare: Arc<Spare>,
}

/// The end of a [`ReplicaRead`].
pub struct ReplicaWasRead {
    log: ServerId,
    id: ReplicaId,
    result: Result<Sorted, Error>,
}

impl ReplicaRead {
    /// Reads the replica and orders its entries. `scratch` grows to the size of a segment.
    pub fn run(self, scratch: &mut Vec<u8>) -> ReplicaWasRead {
        let (id, hasher) = (self.id, &self.hasher);
        ReplicaWasRead {
            log: self.log,
            id,
            result: self.backup.read_sorted(id, hasher, scratch, &self.spare),
        }
    }
}

impl<T> BackupService<T> {
    /// The next replica to read, of those that recoveries wait for. The caller reports its end to
    /// [`was_read`](Self::was_read).
    pub fn next_read(&mut self, now_us: u64) -> Option<ReplicaRead> {
        // A share for each log: so none waits for memory of replicas that another one's masters do
        // not request.
        let bytes_max = self.config.ahead_bytes / self.ahead.len().max(1);
        let mut logs = self.ahead.iter_mut();
        logs.find_map(|(log, ahead)| {
            Some(ReplicaRead {
                log: *log,
                id: ahead.wanted(now_us, bytes_max)?,
                backup: Arc::clone(&self.backup),
                hasher: self.hasher.clone(),
                spare: Arc::clone(ahead.spare()),
            })
        })
    }

    /// A read has ended. Its log may not be here any more.
    pub fn was_read(&mut self, now_us: u64, read: ReplicaWasRead) {
        if let Some(ahead) = self.ahead.get_mut(&read.log) {
            ahead.done(now_us, read.id.segment, read.result);
        }
    }

    /// Reads one replica on this thread; returns whether there was one.
    pub fn read_step(&mut self, now_us: u64) -> bool {
        let Some(read) = self.next_read(now_us) else {
            return false;
        };
        let read = read.run(&mut self.scratch);
        self.was_read(now_us, read);
        true
    }
}
