//! Reading of replicas for recoveries, and building of survivors: the backup service names them, any
//! thread reads and builds. Recoveries go first.

use crate::backup_service::{BackupService, Reply};
use crate::builds::BuildJob;
use duramen_backup::{Backup, Error, ReplicaId, Sorted, Spare};
use duramen_base::ids::ServerId;
use duramen_format::hash::KeyHasher;
use std::sync::Arc;

/// Replicas to be read.
pub struct ReplicaRead {
    backup: Arc<Backup>,
    work: Work,
}

enum Work {
    /// A recovery waits for this one.
    Sort {
        log: ServerId,
        id: ReplicaId,
        hasher: KeyHasher,
        spare: Arc<Spare>,
    },
    /// A survivor is built from others.
    Build(BuildJob),
}

/// The end of a [`ReplicaRead`].
pub struct ReplicaWasRead(Done);

enum Done {
    Sorted {
        log: ServerId,
        id: ReplicaId,
        result: Result<Sorted, Error>,
    },
    Built(Result<Vec<u8>, String>),
}

impl ReplicaRead {
    /// Reads the replica and orders its entries, or builds a survivor. `scratch` grows to the size
    /// of a segment.
    pub fn run(self, scratch: &mut Vec<u8>) -> ReplicaWasRead {
        ReplicaWasRead(match self.work {
            Work::Sort {
                log,
                id,
                hasher,
                spare,
            } => Done::Sorted {
                log,
                id,
                result: self.backup.read_sorted(id, &hasher, scratch, &spare),
            },
            Work::Build(job) => Done::Built(job.run(&self.backup, scratch)),
        })
    }
}

impl<T> BackupService<T> {
    /// The next replica to read, of those that recoveries wait for, or the next survivor to build.
    /// The caller reports its end to [`was_read`](Self::was_read).
    pub fn next_read(&mut self, now_us: u64) -> Option<ReplicaRead> {
        // A share for each log: so none waits for memory of replicas that another one's masters do
        // not request.
        let bytes_max = self.config.ahead_bytes / self.ahead.len().max(1);
        let mut logs = self.ahead.iter_mut();
        let wanted = logs.find_map(|(log, ahead)| {
            Some(Work::Sort {
                log: *log,
                id: ahead.wanted(now_us, bytes_max)?,
                hasher: self.hasher.clone(),
                spare: Arc::clone(ahead.spare()),
            })
        });
        let work = wanted.or_else(|| {
            let (write, recipe) = self.builds.next()?;
            Some(Work::Build(BuildJob { write, recipe }))
        })?;
        let backup = Arc::clone(&self.backup);
        Some(ReplicaRead { backup, work })
    }

    /// A read has ended. Its log may not be here any more. Answers to masters that wait for a
    /// survivor are output here, or by [`run`](Self::run).
    pub fn was_read(&mut self, now_us: u64, read: ReplicaWasRead, out: &mut Vec<Reply<T>>) {
        match read.0 {
            Done::Sorted { log, id, result } => {
                if let Some(ahead) = self.ahead.get_mut(&log) {
                    ahead.done(now_us, id.segment, result);
                }
            }
            Done::Built(built) => self.was_built(now_us, built, out),
        }
    }

    /// Reads one replica on this thread; returns whether there was one.
    pub fn read_step(&mut self, now_us: u64, out: &mut Vec<Reply<T>>) -> bool {
        let Some(read) = self.next_read(now_us) else {
            return false;
        };
        let read = read.run(&mut self.scratch);
        self.was_read(now_us, read, out);
        true
    }
}
