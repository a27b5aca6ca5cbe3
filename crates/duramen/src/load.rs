//! Loads segments from disk into memory, several at a time, the newest first: so most old entries
//! are already dead when they are loaded.

use crate::{Error, Phase, Progress};
use duramen_backup::{Backup, ReplicaInfo};
use duramen_base::ids::SegmentId;
use duramen_base::planted::carry;
use duramen_cluster::control::State;
use duramen_engine::{LoadError, Loader, Pass, Unfinished};
use duramen_format::mend::Mended;
use std::collections::BTreeMap;
use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Result of a restart.
#[derive(Clone, Debug, Default)]
pub(crate) struct Loaded {
    pub bytes: u64,
    pub entries: u64,
    pub took: Duration,
    pub clean: bool,
    /// Keys that had expired are live by the present clock, and must be removed before the store is
    /// used.
    pub has_revived: bool,
    /// Flipped bits that the load has put back in memory; the segments on disk still have them.
    pub mended: Vec<(SegmentId, Mended)>,
}

/// The segments of the log.
pub(crate) struct Manifest<'a> {
    pub state: &'a State,
    pub listed: &'a [ReplicaInfo],
    /// The rest of segments of which a part is lost, and that was accepted.
    pub left: &'a BTreeMap<SegmentId, Vec<u8>>,
    /// Segments that should be in memory if not all fit.
    pub kept: &'a [SegmentId],
    /// See [`Loader::keep_part`].
    pub kept_part: Option<f64>,
}

/// The reason why a load failed.
pub(crate) struct Failed {
    pub error: Error,
    /// A load that keeps less may succeed.
    pub lacks_memory: bool,
}

impl From<Error> for Failed {
    fn from(error: Error) -> Failed {
        Failed {
            error,
            lacks_memory: false,
        }
    }
}

/// State that the threads of a load share.
struct Load<'a> {
    loader: &'a Loader,
    backup: &'a Backup,
    /// The newest first.
    segments: &'a [ReplicaInfo],
    /// See [`Manifest::left`].
    left: &'a BTreeMap<SegmentId, Vec<u8>>,
    next: AtomicUsize,
    /// Half as many as threads; a reading thread holds one. If all threads read together, all would
    /// wait for the device and then all would compute.
    turns: Vec<Mutex<()>>,
    stop: AtomicBool,
    bytes: AtomicU64,
    bytes_total: u64,
    entries: AtomicU64,
    failed: Mutex<Option<LoadError<String>>>,
}

/// Adopts all listed segments with `threads` threads; 0 = two per core: while one waits for the
/// device, the other one verifies and indexes the read segments.
pub(crate) fn load(
    engine: &Arc<duramen_engine::Store>,
    backup: &Backup,
    manifest: &Manifest<'_>,
    threads: usize,
    started: Instant,
    progress: &(dyn Fn(&Progress) + Send + Sync),
) -> Result<Loaded, Failed> {
    let place = backup.disk().label();
    let (state, listed) = (manifest.state, manifest.listed);
    let ids: Vec<SegmentId> = listed.iter().map(|replica| replica.segment).collect();
    let passes: Vec<Pass> = state
        .passes
        .iter()
        .map(|pass| Pass {
            first: pass.first,
            count: pass.count,
            victims: pass.victims.clone(),
        })
        .collect();
    let mut loader = engine.loader(&ids, &passes);
    loader.keep(manifest.kept);
    if let Some(part) = manifest.kept_part {
        loader.keep_part(part);
    }
    let mut segments = listed.to_vec();
    segments.sort_unstable_by_key(|replica| std::cmp::Reverse(replica.segment));
    let wanted = match threads {
        0 => 2 * std::thread::available_parallelism().map_or(1, NonZeroUsize::get),
        threads => threads,
    };
    let load = Load {
        loader: &loader,
        backup,
        segments: &segments,
        left: manifest.left,
        next: AtomicUsize::new(0),
        turns: (0..wanted.div_ceil(2)).map(|_| Mutex::new(())).collect(),
        stop: AtomicBool::new(false),
        bytes: AtomicU64::new(0),
        bytes_total: listed.iter().map(|replica| u64::from(replica.length)).sum(),
        entries: AtomicU64::new(0),
        failed: Mutex::new(None),
    };
    load.run_on(wanted, started, progress);
    let failed = load.failed.lock().expect("a load's failure").take();
    if let Some(error) = failed {
        return Err(explained(error, place));
    }
    let report = loader.finish().map_err(|unfinished| match unfinished {
        Unfinished::Missing(missing) => Error::Damaged {
            place,
            reason: missing.to_string(),
        },
        Unfinished::Flipped => flipped(place),
    })?;
    Ok(Loaded {
        bytes: report.bytes,
        entries: report.entries,
        has_revived: report.has_revived,
        mended: report.mended,
        ..Loaded::default()
    })
}

/// Memory has changed a bit of the index, which the next start builds anew.
fn flipped(place: String) -> Error {
    Error::Misfit {
        place,
        reason: "memory has changed a bit of the index while its data were loaded; start again, \
                 and test the memory of this machine"
            .to_owned(),
    }
}

fn explained(error: LoadError<String>, place: String) -> Failed {
    match error {
        LoadError::Memory {
            segment,
            reason: reason @ duramen_engine::Error::FlashStuck,
        } => Failed::from(Error::Misfit {
            place,
            reason: format!(
                "memory cannot hold its data without flash (segment {segment}: {reason}); start again with a flash device that works"
            ),
        }),
        LoadError::Memory {
            reason: duramen_engine::Error::Damaged,
            ..
        } => Failed::from(flipped(place)),
        LoadError::Memory { segment, reason } => Failed {
            error: Error::Misfit {
                place,
                reason: format!(
                    "its data do not fit into the memory budget (segment {segment}: {reason}); give the store more memory"
                ),
            },
            lacks_memory: true,
        },
        error => Failed::from(Error::Damaged {
            place,
            reason: error.to_string(),
        }),
    }
}

impl Load<'_> {
    /// Runs on the calling thread, and on others up to `threads`.
    fn run_on(
        &self,
        threads: usize,
        started: Instant,
        progress: &(dyn Fn(&Progress) + Send + Sync),
    ) {
        if threads == 1 || self.segments.len() < 2 {
            return self.run(started, progress);
        }
        std::thread::scope(|scope| {
            for _ in 1..threads.min(self.segments.len()) {
                let run = carry(|| self.run(started, progress));
                if std::thread::Builder::new()
                    .spawn_scoped(scope, run)
                    .is_err()
                {
                    break; // The system allows no more threads.
                }
            }
            self.run(started, progress);
        });
    }

    /// Takes segments until there are none, or until another thread has failed.
    fn run(&self, started: Instant, progress: &(dyn Fn(&Progress) + Send + Sync)) {
        while !self.stop.load(Ordering::Relaxed) {
            let n = self.next.fetch_add(1, Ordering::Relaxed);
            let Some(replica) = self.segments.get(n) else {
                return;
            };
            let left = self.left.get(&replica.segment);
            let length = left.map_or(replica.length, |left| left.len() as u32);
            let mut fill = |into: &mut [u8]| {
                if let Some(left) = left {
                    into.copy_from_slice(left);
                    return Ok(());
                }
                let turn = &self.turns[n % self.turns.len()];
                let _turn = turn.lock().expect("a turn to read");
                let read = self.backup.read(replica.segment, into);
                read.map(drop).map_err(|error| error.damage())
            };
            match self.loader.adopt(replica.segment, length, &mut fill) {
                Ok(entries) => self.show(replica, entries, started, progress),
                Err(error) => {
                    self.stop.store(true, Ordering::Relaxed);
                    *self.failed.lock().expect("a load's failure") = Some(error);
                }
            }
        }
    }

    fn show(
        &self,
        replica: &ReplicaInfo,
        entries: u64,
        started: Instant,
        progress: &(dyn Fn(&Progress) + Send + Sync),
    ) {
        let bytes = u64::from(replica.length);
        progress(&Progress {
            bytes_done: self.bytes.fetch_add(bytes, Ordering::Relaxed) + bytes,
            bytes_total: self.bytes_total,
            entries_done: self.entries.fetch_add(entries, Ordering::Relaxed) + entries,
            ..Progress::new(Phase::Segments, started)
        });
    }
}
