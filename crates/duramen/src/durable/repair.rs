//! Repair of replicas that went bad at rest.
//!
//! **Invariants** (docs/protocols.md, "Damage at rest")
//! - A1: a damaged replica of the log is replaced as soon as possible: a cleaning pass moves the
//!   contents of its segment in memory to new segments; a control segment gets a successor. Nothing
//!   is overwritten in place.
//! - A2: a replica is pending from the moment when it was found until nothing depends on it any
//!   more, durably; meanwhile the figures show it. If it cannot be replaced, it is pending for
//!   ever, and reported as lost.
//! - A3: this file never waits for the engine: a head with an active writer is closed at a later
//!   check.

use super::{Common, Local};
use crate::Error;
use duramen_backup::{Backup, Damaged, LogDamage};
use duramen_base::ids::{Level, SegmentId};
use duramen_engine::{Log, Relocation, Store as Engine};
use duramen_format::segment::Kind;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

/// Consecutive checks that find no data of a segment in memory, before it is reported as lost.
const LOOKS_UNTIL_LOST: u32 = 10;
/// Longest wait of an orderly shutdown for repairs.
const AT_THE_END: Duration = Duration::from_secs(10);
/// Victim bytes of one step of relocation, if no cleaner thread does it.
const STEP_BYTES: u64 = 1 << 20;

/// A message to the operator about a replica on disk, or about the write-ahead log.
#[derive(Clone, Debug)]
pub struct Repair {
    /// The segment; `None`: the write-ahead log.
    pub segment: Option<SegmentId>,
    /// Its place; `None` if it was freed meanwhile, or is the write-ahead log.
    pub frame: Option<u32>,
    pub step: RepairStep,
}

/// Progress of the repair of a replica.
#[derive(Clone, Debug)]
pub enum RepairStep {
    /// The replica differs from the written data. Until it is repaired, a restart would refuse the
    /// data.
    Found { reason: String },
    /// Nothing depends on it any more: its contents are elsewhere, durably.
    Repaired { took: Duration },
    /// Memory has no data of it, so it cannot be replaced: a restart will refuse the data.
    Lost,
}

type Hook = Box<dyn Fn(&Repair) + Send + Sync>;

/// Replicas that are being replaced.
#[derive(Default)]
pub(crate) struct Repairs {
    pending: Mutex<BTreeMap<SegmentId, Pending>>,
    hook: Mutex<Option<Hook>>,
    found: AtomicU64,
    repaired: AtomicU64,
    lost: AtomicU64,
    /// Number of pending replicas, for a check without the lock.
    count: AtomicU64,
}

/// Result of a look at all pending replicas.
#[derive(Default)]
struct Looked {
    /// A repair has ended.
    ended: bool,
    /// A control segment that is pending.
    control: Option<SegmentId>,
}

struct Pending {
    damaged: Damaged,
    since: Instant,
    looks_without_source: u32,
}

impl Pending {
    fn found(&self) -> Repair {
        Repair {
            segment: Some(self.damaged.segment),
            frame: self.damaged.frame,
            step: RepairStep::Found {
                reason: self.damaged.reason.clone(),
            },
        }
    }
}

impl Repairs {
    fn pending(&self) -> MutexGuard<'_, BTreeMap<SegmentId, Pending>> {
        self.pending.lock().expect("damaged replicas")
    }

    /// Calls `hook` for all pending replicas, and for all later changes.
    pub fn watch(&self, hook: Hook) {
        let pending = self.pending();
        for known in pending.values() {
            hook(&known.found());
        }
        *self.hook.lock().expect("no thread panics with the hook") = Some(hook);
    }

    fn count(&self, pending: &BTreeMap<SegmentId, Pending>) {
        self.count.store(pending.len() as u64, Ordering::Relaxed);
    }

    fn end(&self, known: &Pending) -> RepairStep {
        self.repaired.fetch_add(1, Ordering::Relaxed);
        RepairStep::Repaired {
            took: known.since.elapsed(),
        }
    }

    fn tell(&self, event: &Repair) {
        if let Some(hook) = &*self.hook.lock().expect("no thread panics with the hook") {
            hook(event);
        }
    }

    /// Reports a commit that went bad.
    pub fn log_damaged(&self, damage: &LogDamage) {
        let tell = |step| {
            self.tell(&Repair {
                segment: None,
                frame: None,
                step,
            });
        };
        tell(RepairStep::Found {
            reason: format!("commit {}: {}", damage.lsn, damage.reason),
        });
        if damage.is_mended {
            self.repaired.fetch_add(1, Ordering::Relaxed);
            tell(RepairStep::Repaired {
                took: Duration::ZERO,
            });
        }
    }

    /// Adds a replica, if it is part of the log.
    fn add(&self, damaged: Damaged, log: &Log) {
        let segment = damaged.segment;
        if damaged.kind != Kind::Control && !log.swaps().is_durable_segment(segment) {
            return; // about to be freed
        }
        self.found.fetch_add(1, Ordering::Relaxed);
        let known = Pending {
            damaged,
            since: Instant::now(),
            looks_without_source: 0,
        };
        self.tell(&known.found());
        let mut pending = self.pending();
        pending.insert(segment, known);
        self.count(&pending);
    }

    /// Does the possible work for all pending replicas but those of control segments.
    fn look(&self, engine: &Engine, backup: &Backup) -> Looked {
        let mut looked = Looked::default();
        let mut pending = self.pending();
        pending.retain(|segment, known| {
            if known.damaged.kind == Kind::Control {
                looked.control = Some(*segment);
            }
            let Some(step) = self.look_at(engine, backup, *segment, known) else {
                return true;
            };
            looked.ended = true;
            let event = Repair {
                segment: Some(*segment),
                frame: known.damaged.frame,
                step,
            };
            self.tell(&event);
            matches!(event.step, RepairStep::Lost)
        });
        self.count(&pending);
        looked
    }

    /// Does the possible work for one segment; returns its step when the repair has ended.
    fn look_at(
        &self,
        engine: &Engine,
        backup: &Backup,
        segment: SegmentId,
        known: &mut Pending,
    ) -> Option<RepairStep> {
        if !backup.holds(segment) {
            return Some(self.end(known));
        }
        if known.damaged.kind == Kind::Control {
            return None;
        }
        match engine.segments().relocation(segment) {
            Relocation::Done => Some(self.end(known)),
            Relocation::Waiting => {
                engine.heads().close(segment); // A3
                engine.segments().relocate(segment);
                known.looks_without_source = 0;
                None
            }
            Relocation::NoSource => {
                known.looks_without_source = known.looks_without_source.saturating_add(1);
                (known.looks_without_source == LOOKS_UNTIL_LOST).then(|| {
                    self.lost.fetch_add(1, Ordering::Relaxed);
                    RepairStep::Lost
                })
            }
        }
    }

    /// Number of damaged replicas so far.
    pub fn found(&self) -> u64 {
        self.found.load(Ordering::Relaxed)
    }

    pub fn repaired(&self) -> u64 {
        self.repaired.load(Ordering::Relaxed)
    }

    pub fn waiting(&self) -> u64 {
        self.count.load(Ordering::Relaxed)
    }

    pub fn lost(&self) -> u64 {
        self.lost.load(Ordering::Relaxed)
    }
}

impl Local {
    /// Begins the repair of damaged replicas, and checks the progress of the others. Returns
    /// whether a repair has ended.
    pub(super) fn repair(&self, common: &Common) -> Result<bool, Error> {
        for damaged in self.backup.reader().take_damaged() {
            self.repairs.add(damaged, common.log());
        }
        if let Some(damage) = self.backup.scrubber().repair_mended_log()? {
            self.repairs.log_damaged(&damage);
        }
        if self.repairs.waiting() == 0 {
            return Ok(false);
        }
        let looked = self.repairs.look(&common.engine, &self.backup);
        if let Some(damaged) = looked.control {
            self.renew_control(common, damaged)?;
        }
        Ok(looked.ended)
    }

    /// Continues the control log in a new segment, if it is still in this one.
    fn renew_control(&self, common: &Common, damaged: SegmentId) -> Result<(), Error> {
        let mut commit = common.lock();
        if commit.master.control().head() == Some(damaged) {
            commit.master.renew_control();
        }
        // The previous one is closed when the next one has begun, and freed when both are synced.
        self.commit(common, &mut commit, Level::Synced)?;
        self.apply_rules(common, &mut commit)
    }

    /// Before an orderly shutdown: replaces damaged replicas while memory still has their data, if
    /// that is possible in reasonable time.
    ///
    /// # Errors
    /// As [`step`](Self::step).
    pub fn finish_repairs(&self, common: &Common) -> Result<(), Error> {
        let began = Instant::now();
        while self.repairs.waiting() > self.repairs.lost() && began.elapsed() < AT_THE_END {
            let relocated = common.relocation_step();
            if !self.step(common)? && !relocated {
                std::thread::park_timeout(Duration::from_millis(1)); // a cleaner thread works on it
            }
        }
        Ok(())
    }
}

impl Common {
    /// A step of relocation, if no cleaner thread does it. Not to be called from inside the engine.
    pub fn relocation_step(&self) -> bool {
        self.engine.segments().relocation_step(STEP_BYTES)
    }
}
