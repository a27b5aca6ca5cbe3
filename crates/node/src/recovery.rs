//! A recovery master: partitions of dead servers' logs, read from their backups and replayed into side logs.
//!
//! **Invariants**
//! - R1: what is reported as replayed is durably part of this server's own log.
//! - R2: nothing is replayed over what is owned here, or is about to be purged, or lies here from another partition: the order
//!   is answered with `Busy` until that is over.
//! - R3: a partition whose end the coordinator does not accept leaves nothing behind: a side log is taken back, and what was
//!   committed already is purged before R2 lets anybody have its range again.
//! - R4: no list of tables that is older than the order drops its tables.
//!
//! **Concurrency** none: one owner, the node.
//!
//! Paper: [Ousterhout15 §7.2, §7.3]; differs: the end is one record, which says what belongs to the log (docs/protocols.md).

use crate::member::Token;
use crate::ranges::Ranges;
use crate::remote::{Asked, PeerCall};
use duramen::Store;
use duramen::engine::{SideCommit, SideError, SideLog, SidePlan};
use duramen_base::ids::{RecoveryId, SegmentId, ServerId, TableId, TabletsVersion};
use duramen_format::segment::Kind;
use duramen_wire::native::message::{
    CoordinatorAnswer, PartitionOutcome, Peer, PeerAnswer, ReadReplica, Recover, TableEntry,
    ToCoordinator,
};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Calls and tokens from here on, up to the next bit, are those of recoveries.
const RECOVERY_NAMES: u64 = 1 << 62;
/// Most partitions at once.
const RUNS_MAX: usize = 2;
/// Segments that are read at once, for each partition.
const READS_MAX: usize = 4;
/// Bytes of entries that are asked for at once.
const READ_BYTES: u32 = 1 << 20;
/// A question that nobody answers is asked again, of the next source, after this time.
const PATIENCE_US: u64 = 1_000_000;
const REST_US: u64 = 50_000;
/// A segment that this many questions to each of its sources did not bring is given up.
const ROUNDS_MAX: usize = 4;

/// Names a partition.
pub(crate) type RunId = (RecoveryId, u32);

struct Read {
    segment: usize,
    /// Sources that have failed, one after the other, and again.
    failed: usize,
    offset: u32,
    due_us: u64,
    is_asked: bool,
}

enum Stage {
    Reading,
    Committing(SideCommit),
    /// It tells the coordinator, which is asked (again) at this time.
    Reporting(PartitionOutcome, u64),
    /// Accepted: until a list of at least this version says what it owns.
    Waiting(TabletsVersion),
    /// To be purged (R3).
    Dropped,
}

struct Run {
    order: Recover,
    ranges: Ranges,
    side: SideLog,
    /// Own segments with lower ids hold nothing of it.
    creation: SegmentId,
    next: usize,
    reads: BTreeMap<PeerCall, Read>,
    stage: Stage,
}

/// See the module.
#[derive(Default)]
pub(crate) struct Recoveries {
    runs: BTreeMap<RunId, Run>,
    tokens: BTreeMap<Token, RunId>,
    next: u64,
}

impl Recoveries {
    /// Whether an answer of the coordinator's is for here.
    pub fn is_for(token: Token) -> bool {
        token.0 >> 62 == 1
    }

    /// Whether an answer of another server's is for here.
    pub fn is_call(call: PeerCall) -> bool {
        call.0 >> 62 == 1
    }

    pub fn has(&self, id: RunId) -> bool {
        self.runs.contains_key(&id)
    }

    /// Tables that must stay, whatever an older list says (R4).
    pub fn tables(&self) -> Vec<TableEntry> {
        let tables = self.runs.values().flat_map(|run| {
            let has = |table| run.ranges.iter().any(|(id, _)| id == table);
            run.order.tables.iter().filter(move |t| has(t.table))
        });
        tables.cloned().collect()
    }

    /// Begins; whether it did. `taken`: what must not be replayed over (R2).
    pub fn begin(
        &mut self,
        now_us: u64,
        store: &Arc<Store>,
        order: Recover,
        taken: &Ranges,
    ) -> bool {
        let id = (order.recovery, order.partition);
        if self.has(id) {
            return true;
        }
        let tablets = order.tablets.iter();
        let Ok(ranges) = Ranges::new(tablets.map(|tablet| (tablet.table, tablet.range))) else {
            return false;
        };
        let overlaps = |other: &Ranges| !ranges.intersection(other).is_empty();
        let is_taken = overlaps(taken) || self.runs.values().any(|run| overlaps(&run.ranges));
        if is_taken || self.runs.len() >= RUNS_MAX || !make_tables(store, &order, &ranges) {
            return false;
        }
        let creation = store.engine().roll_heads();
        let side = store.engine().side_log(SidePlan {
            floors: order.floors.clone(),
            version_floor: order.safe_version,
        });
        let run = Run {
            order,
            ranges,
            side,
            creation,
            next: 0,
            reads: BTreeMap::new(),
            stage: Stage::Reading,
        };
        self.runs.insert(id, run);
        self.refill(now_us, id);
        true
    }

    /// Up to so many segments are read at once; after the last one the side log is committed.
    fn refill(&mut self, now_us: u64, id: RunId) {
        let Some(run) = self.runs.get_mut(&id) else {
            return;
        };
        while run.reads.len() < READS_MAX && run.next < run.order.segments.len() {
            let segment = run.next;
            run.next += 1;
            if run.order.segments[segment].kind == Kind::Control {
                continue; // the coordinator has read it
            }
            let read = Read {
                segment,
                failed: 0,
                offset: 0,
                due_us: now_us,
                is_asked: false,
            };
            self.next += 1;
            run.reads.insert(PeerCall(RECOVERY_NAMES | self.next), read);
        }
        if run.reads.is_empty() && matches!(run.stage, Stage::Reading) {
            match run.side.commit() {
                Ok(commit) => run.stage = Stage::Committing(commit),
                Err(error) => run.fail(now_us, &error),
            }
        }
    }

    /// When [`poll`](Self::poll) has something to do by time alone.
    pub fn due_us(&self) -> u64 {
        let of = |run: &Run| match run.stage {
            Stage::Reading => run.reads.values().map(|read| read.due_us).min(),
            Stage::Reporting(_, due_us) => Some(due_us),
            Stage::Committing(_) | Stage::Waiting(_) | Stage::Dropped => None,
        };
        self.runs.values().filter_map(of).min().unwrap_or(u64::MAX)
    }

    /// Goes on with what can go on. `told`: version of the list of tablets that was read last. `ended`: ranges whose objects are
    /// the member's from now on if it owns them, and are to be purged if not (R3).
    pub fn poll(
        &mut self,
        now_us: u64,
        me: ServerId,
        told: TabletsVersion,
        asked: &mut Vec<Asked>,
        reports: &mut Vec<(Token, ToCoordinator)>,
        ended: &mut Vec<Ranges>,
    ) {
        let mut over = Vec::new();
        for (id, run) in &mut self.runs {
            if let Stage::Committing(commit) = &run.stage
                && commit.is_durable()
            {
                let report = run.side.report();
                let outcome = PartitionOutcome::Replayed {
                    creation: run.creation,
                    bytes: report.bytes,
                    entries: report.entries,
                }; // R1
                run.stage = Stage::Reporting(outcome, now_us);
            }
            match &mut run.stage {
                Stage::Reading => run.ask(now_us, &mut self.next, asked),
                Stage::Reporting(outcome, due_us) if *due_us <= now_us => {
                    *due_us = now_us + PATIENCE_US;
                    self.next += 1;
                    let token = Token(RECOVERY_NAMES | self.next);
                    self.tokens.insert(token, *id);
                    let report = ToCoordinator::PartitionDone {
                        recovery: id.0,
                        partition: id.1,
                        server: me,
                        outcome: outcome.clone(),
                    };
                    reports.push((token, report));
                }
                Stage::Waiting(since) if *since > told => {}
                Stage::Waiting(_) | Stage::Dropped => {
                    ended.push(run.ranges.clone());
                    over.push(*id);
                }
                _ => {}
            }
        }
        for id in over {
            self.forget(id);
        }
    }

    fn forget(&mut self, id: RunId) {
        self.runs.remove(&id);
        self.tokens.retain(|_, run| *run != id);
    }

    /// A backup answered; `None`: it was not reached.
    pub fn answered(&mut self, now_us: u64, call: PeerCall, answer: Option<(PeerAnswer, Vec<u8>)>) {
        let holds = |run: &&mut Run| run.reads.contains_key(&call);
        let Some(run) = self.runs.values_mut().find(holds) else {
            return; // of a question that was asked anew
        };
        let id = (run.order.recovery, run.order.partition);
        let mut read = run.reads.remove(&call).expect("it was just seen");
        read.is_asked = false;
        read.due_us = now_us;
        match answer {
            Some((PeerAnswer::Entries { next, .. }, payload)) => match run.side.replay(&payload) {
                Ok(_) => match next {
                    Some(offset) => read.offset = offset,
                    None => return self.refill(now_us, id),
                },
                Err(SideError::Damaged { .. }) => read.turn(),
                Err(error) => return run.fail(now_us, &error),
            },
            Some((PeerAnswer::NotYet { after_ms }, _)) => {
                read.due_us = now_us + u64::from(after_ms) * 1000;
            }
            Some((PeerAnswer::Bad { .. }, _)) => read.turn(),
            _ => {
                read.turn();
                read.due_us = now_us + REST_US;
            }
        }
        self.next += 1;
        run.reads.insert(PeerCall(RECOVERY_NAMES | self.next), read);
    }

    /// The coordinator answered a report; `None`: it was not reached.
    pub fn reported(&mut self, now_us: u64, token: Token, answer: Option<&CoordinatorAnswer>) {
        let id = self.tokens.remove(&token);
        let Some((id, run)) = id.and_then(|id| Some((id, self.runs.get_mut(&id)?))) else {
            return;
        };
        let Stage::Reporting(outcome, due_us) = &mut run.stage else {
            return;
        };
        let is_replayed = matches!(outcome, PartitionOutcome::Replayed { .. });
        match answer {
            Some(CoordinatorAnswer::Accepted { since }) if is_replayed => {
                run.stage = Stage::Waiting(*since);
            }
            Some(CoordinatorAnswer::Stale) if is_replayed => run.stage = Stage::Dropped,
            Some(CoordinatorAnswer::Accepted { .. } | CoordinatorAnswer::Stale) => self.forget(id),
            _ => *due_us = now_us + REST_US,
        }
    }

    /// The coordinator wants this partition no more. What is being committed, or was accepted, goes its way: its report is stale,
    /// or a list says what is owned.
    pub fn abort(&mut self, id: RunId) {
        let Some(run) = self.runs.get_mut(&id) else {
            return;
        };
        match &run.stage {
            Stage::Reporting(PartitionOutcome::Replayed { .. }, _) => run.stage = Stage::Dropped,
            Stage::Reading | Stage::Reporting(PartitionOutcome::Failed { .. }, _) => {
                self.forget(id); // a side log that is dropped is taken back
            }
            Stage::Committing(_) | Stage::Waiting(_) | Stage::Dropped => {}
        }
    }
}

impl Read {
    /// The next source, from the beginning.
    fn turn(&mut self) {
        self.failed += 1;
        self.offset = 0;
    }
}

impl Run {
    fn fail(&mut self, now_us: u64, error: &SideError) {
        let outcome = PartitionOutcome::Failed {
            retry_elsewhere: true,
            reason: error.to_string(),
        };
        self.give_up(now_us, outcome);
    }

    fn give_up(&mut self, now_us: u64, outcome: PartitionOutcome) {
        let _ = self.side.abort(); // one that had ended is as it was
        self.reads.clear();
        self.stage = Stage::Reporting(outcome, now_us);
    }

    fn ask(&mut self, now_us: u64, next: &mut u64, asked: &mut Vec<Asked>) {
        let due = |(_, read): &(&PeerCall, &Read)| read.due_us <= now_us;
        let due: Vec<PeerCall> = self.reads.iter().filter(due).map(|(c, _)| *c).collect();
        for call in due {
            let mut read = self.reads.remove(&call).expect("it was just seen");
            if read.is_asked {
                read.turn(); // nobody answered
            }
            let wanted = &self.order.segments[read.segment];
            let count = wanted.sources.len();
            if read.failed >= count * ROUNDS_MAX {
                let outcome = PartitionOutcome::Failed {
                    retry_elsewhere: false,
                    reason: format!("nobody has segment {}", wanted.segment),
                };
                return self.give_up(now_us, outcome);
            }
            let question = Peer::ReadReplica(ReadReplica {
                recovery: self.order.recovery,
                partition: self.order.partition,
                log: self.order.log,
                segment: wanted.segment,
                certificate: wanted.certificate,
                tablets: self.order.tablets.clone(),
                offset: read.offset,
                bytes_max: READ_BYTES,
            });
            let to = wanted.sources[read.failed % count];
            read.is_asked = true;
            read.due_us = now_us + PATIENCE_US;
            *next += 1;
            let call = PeerCall(RECOVERY_NAMES | *next);
            asked.push(Asked {
                call,
                to,
                question,
                payload: Arc::default(),
            });
            self.reads.insert(call, read);
        }
    }
}

/// The tables of a partition, if they are not there; whether that could be done.
fn make_tables(store: &Arc<Store>, order: &Recover, ranges: &Ranges) -> bool {
    let engine = store.engine();
    let there = engine.tables();
    let wanted = |table: TableId| ranges.iter().any(|(id, _)| id == table);
    order.tables.iter().all(|entry| {
        let known = there.iter().find(|table| table.id == entry.table);
        match known {
            _ if !wanted(entry.table) => true,
            Some(table) => table.name == entry.name,
            None => {
                let floor = engine.version_floor();
                let made = engine.restore_table(entry.table, &entry.name, floor, entry.level);
                made.is_ok()
            }
        }
    })
}
