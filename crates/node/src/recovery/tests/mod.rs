//! The ends of a partition's replay, step by step, over a store without reachable backups.

mod lost;

use super::*;
use crate::assignment::Assignment;
use crate::servers::members;
use duramen::internals::{Backups, MemberOptions, ToBackups};
use duramen_base::ids::{KeyRange, Level};
use duramen_base::planted::{Bug, with_bug};
use duramen_base::waits;
use duramen_cluster::placement::Layout;
use duramen_format::certificate::Certificate;
use duramen_format::entry::NewObject;
use duramen_wire::native::message::{RecoverSegment, RecoverTablet, Tablets};
use std::panic::AssertUnwindSafe;

const ME: ServerId = ServerId::new(0, 1);
const DEAD: ServerId = ServerId::new(1, 1);
const SOURCES: [ServerId; 2] = [ServerId::new(2, 1), ServerId::new(3, 1)];
const TABLE: TableId = TableId(1);
const ID: RunId = (RecoveryId(5), 0);

struct Nobody;

impl Backups for Nobody {
    fn ask(&self, _: ToBackups) {}
}

fn store() -> Arc<Store> {
    let memory = 64 << 20;
    let mut store = duramen::Options::memory(memory);
    store.engine.heads = 1;
    store.engine.huge_pages = false;
    let options = MemberOptions {
        store,
        log: ME.number(),
        hash_seed: 1,
        segment_bytes: duramen_engine::segment_bytes(memory) as u32,
        replicas: 1,
        layout: Layout::Scatter,
        zone_bytes: None,
        backups: Arc::new(Nobody),
    };
    Store::open_member(options, false).unwrap()
}

fn order() -> Recover {
    let table = TableEntry {
        table: TABLE,
        name: "t".to_owned(),
        level: None::<Level>,
    };
    let segment = RecoverSegment {
        segment: SegmentId(9),
        kind: Kind::Head,
        epoch: 0,
        certificate: Certificate::EMPTY,
        closed: true,
        sources: SOURCES.to_vec(),
    };
    Recover {
        recovery: ID.0,
        partition: ID.1,
        log: DEAD,
        tablets: vec![RecoverTablet {
            table: TABLE,
            range: KeyRange::ALL,
            creation: SegmentId::NONE,
        }],
        floors: Vec::new(),
        safe_version: 0,
        tables: vec![table],
        segments: vec![segment].into(),
        passes: Vec::new(),
        accepted: Vec::new(),
    }
}

/// A stage at which a test keeps a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RunStage {
    Replaying,
    Committing,
    Settling,
    Reporting,
    ReportingFailure,
    Waiting,
    GivingUp,
    Aborting,
    Dropped,
}

impl RunStage {
    pub(crate) const ALL: [RunStage; 9] = [
        RunStage::Replaying,
        RunStage::Committing,
        RunStage::Settling,
        RunStage::Reporting,
        RunStage::ReportingFailure,
        RunStage::Waiting,
        RunStage::GivingUp,
        RunStage::Aborting,
        RunStage::Dropped,
    ];
}

impl Recoveries {
    /// Keeps the only run at this stage; only [`RunStage::Dropped`] continues.
    pub(crate) fn hold(&mut self, stage: RunStage) {
        let run = self.runs.values_mut().next().expect("there is one");
        let replayed = PartitionOutcome::Replayed {
            creation: SegmentId(1),
            bytes: 1,
            entries: 1,
        };
        let failed = PartitionOutcome::Failed {
            retry_elsewhere: true,
            reason: String::new(),
        };
        run.jobs = 1; // so the run never ends
        let committed = [
            RunStage::Settling,
            RunStage::Reporting,
            RunStage::Waiting,
            RunStage::Dropped,
        ];
        run.is_committed = committed.contains(&stage);
        run.stage = match stage {
            RunStage::Replaying => Stage::Replaying,
            RunStage::Committing => Stage::Committing,
            RunStage::Settling => {
                let commit = run.side.commit().expect("nothing is at it");
                Stage::Settling(commit, u64::MAX, 0)
            }
            RunStage::Reporting => Stage::Reporting(replayed, 0),
            RunStage::ReportingFailure => Stage::Reporting(failed, 0),
            RunStage::Waiting => Stage::Waiting(TabletsVersion(u64::MAX)),
            RunStage::GivingUp => Stage::GivingUp(None),
            RunStage::Aborting => Stage::Aborting(None),
            RunStage::Dropped => Stage::Dropped,
        };
    }
}

struct Rig {
    recoveries: Recoveries,
    members: Members,
    now_us: u64,
    _store: Arc<Store>,
}

impl Rig {
    fn new() -> Rig {
        Rig::of(order())
    }

    fn of(order: Recover) -> Rig {
        let store = store();
        let mut recoveries = Recoveries::new(0, KeyHasher::new(0));
        let ranges = ranges_of(&order).unwrap();
        assert!(recoveries.begin(0, &store, order, ranges));
        Rig {
            recoveries,
            members: members(&SOURCES),
            now_us: 0,
            _store: store,
        }
    }

    fn poll(&mut self) -> Effects {
        let mut out = Effects::default();
        let told = TabletsVersion(1);
        self.recoveries
            .poll(self.now_us, ME, told, &self.members, &mut out);
        out
    }

    fn answer(&mut self, asked: &PeerRequest, answer: PeerAnswer, payload: Vec<u8>) -> Vec<Job> {
        let mut jobs = Vec::new();
        let answer = Some((answer, payload.into()));
        self.recoveries
            .answered(self.now_us, asked.call, answer, &mut jobs);
        jobs
    }

    fn run(&mut self, job: Job) {
        let JobResult::Recovery(run, completion) = job.run().result else {
            panic!("it is a recovery's");
        };
        self.recoveries.job_done(self.now_us, run, completion);
    }

    fn stage(&self) -> &Stage {
        &self.recoveries.runs[&ID].stage
    }
}

fn object(key: &[u8]) -> Vec<u8> {
    let object = NewObject {
        table: TABLE.0,
        key,
        value: b"value",
        version: 3,
        expires_at_ms: None,
        victim: SegmentId::NONE,
        is_typed: false,
    };
    let mut bytes = vec![0; object.padded_bytes()];
    object.write_to(&mut bytes);
    bytes
}

fn entries(next: Option<u32>) -> PeerAnswer {
    PeerAnswer::Entries { next, entries: 1 }
}

/// It is replayed, and the coordinator reports that another server owns it by now.
fn stale() {
    let mut rig = Rig::new();
    let run = rig.recoveries.runs.get_mut(&ID).unwrap();
    let outcome = PartitionOutcome::Replayed {
        creation: SegmentId(1),
        bytes: 1,
        entries: 1,
    };
    run.is_committed = true;
    run.stage = Stage::Reporting(outcome, 0);
    let reports = rig.poll().reports;
    let [(token, ToCoordinator::PartitionDone(_))] = &reports[..] else {
        panic!("{reports:?}");
    };
    assert!(rig.poll().reports.is_empty(), "it was just told");
    let stale = CoordinatorAnswer::Stale;
    rig.recoveries.reported(0, *token, Some(&stale));
    let ended = rig.poll().ended;
    let all = Ranges::new([(TABLE, KeyRange::ALL)]).unwrap();
    assert_eq!(ended, [all], "R3");
    assert!(!rig.recoveries.has(ID));
}

/// A list arrives that is older than the table.
fn tables() {
    let rig = Rig::new();
    let mut assignment = Assignment::default();
    assignment.hold(rig.recoveries.tables());
    let older = Tablets {
        version: TabletsVersion(1),
        ..Tablets::default()
    };
    assignment.tell(older).unwrap();
    let order = assignment.next_order().unwrap();
    let held = order.tables.iter().any(|entry| entry.table == TABLE);
    assert!(held, "R4");
}

/// A replica turns out to be damaged while pieces of it are being replayed: only those of the next
/// one count.
fn turned() {
    let mut rig = Rig::new();
    let asked = rig.poll().requests.pop().unwrap();
    assert_eq!(asked.to, SOURCES[0]);
    let first = rig
        .answer(&asked, entries(Some(8)), object(b"a"))
        .pop()
        .unwrap();
    let asked = rig.poll().requests.pop().unwrap();
    let bad = PeerAnswer::Bad {
        reason: "damaged".to_owned(),
    };
    assert!(rig.answer(&asked, bad, Vec::new()).is_empty());
    let asked = rig.poll().requests.pop().unwrap();
    assert_eq!(asked.to, SOURCES[1], "the next source, from the beginning");
    let Peer::ReadReplica(ReadReplica { offset: 0, .. }) = asked.question else {
        panic!("{:?}", asked.question);
    };
    // All of it has arrived, damaged, when the old piece ends, whose result does not count.
    let second = rig
        .answer(&asked, entries(None), b"damaged.".repeat(9))
        .pop()
        .unwrap();
    rig.run(first);
    rig.run(second);
    let mut out = rig.poll();
    assert!(out.jobs.is_empty(), "R6");
    let asked = out.requests.pop().expect("another source");
    let third = rig
        .answer(&asked, entries(None), object(b"a"))
        .pop()
        .unwrap();
    assert!(rig.poll().jobs.is_empty());
    rig.run(third);
    let commit = rig.poll().jobs.pop().expect("all is there");
    assert_eq!(commit.name(), "commit");
    rig.run(commit);
    assert!(
        matches!(rig.stage(), Stage::Settling(..)),
        "R1: nobody has stored it"
    );
    assert!(rig.poll().reports.is_empty());
}

/// The thread of the node waited for a head, to begin a recovery, whose holder waited for a commit,
/// which this thread does.
fn beside_a_head_that_is_held() {
    let store = store();
    let table = TableId::DEFAULT;
    let mut session = store.engine().session().unwrap();
    let mut guard = session.pin();
    let hash = guard.hash(b"key");
    guard.write(table, hash, b"key", b"value", None).unwrap();
    let serving = waits::serve_commits();
    let mut recoveries = Recoveries::new(0, KeyHasher::new(0));
    let ranges = ranges_of(&order()).unwrap();
    let begin = || recoveries.begin(0, &store, order(), ranges);
    let begun = std::panic::catch_unwind(AssertUnwindSafe(begin));
    drop((serving, guard));
    assert!(matches!(begun, Ok(true)), "W4");
    let run = &recoveries.runs[&ID];
    assert!(run.side.commit_above(run.creation).is_ok());
}

#[test]
fn a_recovery_begins_beside_a_head_that_is_held() {
    beside_a_head_that_is_held();
}

#[test]
fn what_belongs_to_somebody_else_is_purged() {
    stale();
}

#[test]
fn a_list_from_before_the_table_does_not_drop_it_beneath_a_replay() {
    tables();
}

#[test]
fn pieces_of_a_replica_that_was_given_up_do_not_count() {
    turned();
}

/// It stayed in memory, and first in the queue of Swaps, until some backup had frames for it: the
/// next attempt found no memory.
#[test]
fn what_no_backup_stores_is_taken_back() {
    let mut rig = Rig::new();
    let asked = rig.poll().requests.pop().unwrap();
    let replay = rig.answer(&asked, entries(None), object(b"a"));
    replay.into_iter().for_each(|job| rig.run(job));
    let commit = rig.poll().jobs.pop().expect("all is there");
    rig.run(commit);
    let objects = |rig: &Rig| rig._store.engine().tables().objects(TABLE);
    assert!(rig.poll().jobs.is_empty());
    assert_eq!(objects(&rig), 1);
    rig.now_us += SETTLE_US;
    let back = rig.poll().jobs.pop().expect("nobody stores it");
    assert_eq!(back.name(), "take back");
    rig.run(back);
    assert_eq!(objects(&rig), 0);
    let reports = rig.poll().reports;
    let [(token, ToCoordinator::PartitionDone(PartitionDone { outcome, .. }))] = &reports[..]
    else {
        panic!("{reports:?}");
    };
    assert!(matches!(outcome, PartitionOutcome::Failed { .. }));
    let since = TabletsVersion(1);
    let accepted = CoordinatorAnswer::Accepted { since };
    rig.recoveries.reported(0, *token, Some(&accepted));
    assert!(rig.poll().ended.is_empty(), "there is nothing to purge");
    assert!(!rig.recoveries.has(ID));
}

#[test]
fn who_gives_up_waits_for_its_jobs_and_then_says_so() {
    let mut rig = Rig::new();
    let asked = rig.poll().requests.pop().unwrap();
    let job = rig
        .answer(&asked, entries(None), object(b"a"))
        .pop()
        .unwrap();
    let run = rig.recoveries.runs.get_mut(&ID).unwrap();
    run.fail(&SideError::Closed);
    assert!(rig.poll().jobs.is_empty(), "R5: a job is at it");
    rig.run(job);
    let back = rig.poll().jobs.pop().expect("now it is taken back");
    assert!(rig.poll().reports.is_empty(), "R5");
    rig.run(back);
    let reports = rig.poll().reports;
    assert!(matches!(
        reports[..],
        [(
            _,
            ToCoordinator::PartitionDone(PartitionDone {
                outcome: PartitionOutcome::Failed { .. },
                ..
            })
        )]
    ));
    rig.recoveries.abort(ID);
    rig.poll();
    assert!(!rig.recoveries.has(ID));
}

#[test]
fn without_a_source_that_is_up_it_is_given_up_soon() {
    let mut rig = Rig::new();
    rig.members = Members::new();
    let mut reports = Vec::new();
    while reports.is_empty() {
        assert!(rig.now_us < 1_000_000, "at once, nearly");
        let out = rig.poll();
        assert!(out.requests.is_empty());
        out.jobs.into_iter().for_each(|job| rig.run(job));
        reports = out.reports;
        reports.retain(|(_, report)| matches!(report, ToCoordinator::PartitionDone(_)));
        rig.now_us += 10_000;
    }
}

/// A master that could not reach its backups kept a share of a dead server's keys from all clients,
/// as long as that lasted. Here all is stored but the record of the Swap.
#[test]
fn what_backups_do_not_store_is_for_another_master_and_purged_here() {
    let mut rig = Rig::new();
    let run = rig.recoveries.runs.get_mut(&ID).unwrap();
    let commit = run.side.commit().expect("nothing is at it");
    run.is_committed = true;
    run.stage = Stage::Settling(commit, SETTLE_US, 0);
    let writer = rig._store.engine().log().expect("it has one");
    let handed = with_bug(Bug::SwapBeforeReasons, || writer.next_swap());
    assert!(handed.is_some(), "no sync is waited for");
    assert!(rig.recoveries.due_us() <= SETTLE_US);
    rig.now_us = SETTLE_US - 1;
    rig.poll();
    assert!(matches!(rig.stage(), Stage::Settling(..)));
    rig.now_us = SETTLE_US;
    let out = rig.poll();
    let report = out.reports.iter().find_map(|(token, report)| match report {
        ToCoordinator::PartitionDone(PartitionDone { outcome, .. }) => {
            Some((*token, outcome.clone()))
        }
        _ => None,
    });
    let (token, outcome) = report.expect("the coordinator is told");
    let elsewhere = PartitionOutcome::Failed {
        retry_elsewhere: true,
        reason: "its backups did not store what was replayed".to_owned(),
    };
    assert_eq!(outcome, elsewhere);
    let accepted = CoordinatorAnswer::Accepted {
        since: TabletsVersion(2),
    };
    rig.recoveries.reported(rig.now_us, token, Some(&accepted));
    let out = rig.poll();
    assert_eq!(out.ended.len(), 1, "what is committed is purged (R3)");
    assert!(rig.recoveries.runs.is_empty());
}

/// The offset and the source of a request.
fn wanted(asked: &PeerRequest) -> (u32, ServerId) {
    let Peer::ReadReplica(ReadReplica { offset, .. }) = asked.question else {
        panic!("{:?}", asked.question);
    };
    (offset, asked.to)
}

/// A slow link held many copies of each piece: each segment was read again from its start, from one
/// source after another, and the late answers were dropped.
#[test]
fn a_slow_source_is_waited_for_while_its_connection_moves() {
    let mut rig = Rig::new();
    let asked = rig.poll().requests.pop().unwrap();
    for _ in 0..100 {
        rig.now_us += PATIENCE_US / 2;
        rig.recoveries.moving(rig.now_us, asked.call);
        assert!(rig.poll().requests.is_empty());
    }
    let first = rig.answer(&asked, entries(Some(8)), object(b"a"));
    assert_eq!(first.len(), 1, "it counts");
}

#[test]
fn after_a_change_of_source_it_continues_at_its_offset_and_late_answers_count() {
    let mut rig = Rig::new();
    let first = rig.poll().requests.pop().unwrap();
    assert_eq!(wanted(&first), (0, SOURCES[0]));
    let mut jobs = rig.answer(&first, entries(Some(8)), object(b"a"));
    let slow = rig.poll().requests.pop().unwrap();
    assert_eq!(wanted(&slow), (8, SOURCES[0]));
    rig.now_us += PATIENCE_US; // nothing moves: it is stopped, or its disk hangs
    let next = rig.poll().requests.pop().unwrap();
    assert_eq!(wanted(&next), (8, SOURCES[1]));
    jobs.extend(rig.answer(&slow, entries(Some(16)), object(b"b")));
    assert!(
        rig.answer(&next, entries(Some(16)), object(b"b"))
            .is_empty()
    );
    let last = rig.poll().requests.pop().unwrap();
    assert_eq!(wanted(&last), (16, SOURCES[1]));
    jobs.extend(rig.answer(&last, entries(None), object(b"c")));
    assert_eq!(jobs.len(), 3, "each piece once");
    jobs.into_iter().for_each(|job| rig.run(job));
    let out = rig.poll();
    assert_eq!(out.jobs.len(), 1, "all of it is replayed (R6)");
}

/// Only failures without progress count: a segment of many pieces may need many changes of source.
#[test]
fn a_segment_that_comes_piece_by_piece_is_not_given_up() {
    let mut rig = Rig::new();
    for n in 1..=10 * ROUNDS_MAX as u32 {
        rig.poll();
        rig.now_us += PATIENCE_US;
        let asked = rig.poll().requests.pop().expect("the other source");
        let jobs = rig.answer(&asked, entries(Some(8 * n)), object(b"a"));
        jobs.into_iter().for_each(|job| rig.run(job));
    }
    for n in 0..2 * ROUNDS_MAX {
        assert!(matches!(rig.stage(), Stage::Replaying), "{n}");
        rig.poll();
        rig.now_us += PATIENCE_US;
    }
    rig.poll();
    assert!(!matches!(rig.stage(), Stage::Replaying), "nobody answers");
}

#[test]
fn quick_answers_let_more_pieces_be_in_flight_and_slow_ones_fewer() {
    let mut order = order();
    let segment = order.segments[0].clone();
    let segments = (1..=40).map(|n| RecoverSegment {
        segment: SegmentId(n),
        ..segment.clone()
    });
    order.segments = segments.collect::<Vec<_>>().into();
    let mut rig = Rig::of(order);
    rig.recoveries.ahead_bytes = AHEAD_BYTES;
    let mut in_flight = rig.poll().requests;
    assert_eq!(in_flight.len(), WINDOW_MIN);
    let next_piece = |rig: &mut Rig, in_flight: &mut Vec<PeerRequest>, took_us: u64| {
        rig.now_us += took_us;
        let calls: Vec<PeerCall> = in_flight.iter().map(|asked| asked.call).collect();
        for call in calls {
            rig.recoveries.moving(rig.now_us, call);
        }
        let asked = in_flight.remove(0);
        let offset = wanted(&asked).0;
        let jobs = rig.answer(&asked, entries(Some(offset + 8)), object(b"a"));
        jobs.into_iter().for_each(|job| rig.run(job));
        in_flight.extend(rig.poll().requests);
    };
    for _ in 0..READS_MAX {
        next_piece(&mut rig, &mut in_flight, 1_000);
    }
    assert_eq!(in_flight.len(), READS_MAX);
    for _ in 0..2 * READS_MAX {
        next_piece(&mut rig, &mut in_flight, QUICK_US);
    }
    assert_eq!(in_flight.len(), WINDOW_MIN);
}

/// Otherwise each version of a key takes memory, and not only the last one.
#[test]
fn the_newest_segments_are_read_first() {
    let mut order = order();
    let segment = order.segments[0].clone();
    let segments = (1..=40).map(|n| RecoverSegment {
        segment: SegmentId(n),
        sources: vec![SOURCES[n as usize % 2]],
        ..segment.clone()
    });
    order.segments = segments.collect::<Vec<_>>().into();
    let mut rig = Rig::of(order);
    rig.recoveries.ahead_bytes = AHEAD_BYTES;
    let mut asked = Vec::new();
    while asked.len() < 40 {
        for request in rig.poll().requests {
            let Peer::ReadReplica(of) = &request.question else {
                panic!("{:?}", request.question);
            };
            asked.push(of.segment.0);
            let jobs = rig.answer(&request, entries(None), object(b"a"));
            jobs.into_iter().for_each(|job| rig.run(job));
        }
    }
    // Out of turn only by the segments that are read at once.
    for (n, segment) in (0..).zip(&asked) {
        assert!(segment.abs_diff(40 - n) < READS_MAX as u64, "{asked:?}");
    }
}

fn is_found(bug: Bug, scenario: fn()) {
    assert!(std::panic::catch_unwind(|| with_bug(bug, scenario)).is_err());
}

#[test]
fn heads_that_are_waited_for_on_the_thread_of_the_node_are_found() {
    is_found(Bug::RollsOnNodeThread, beside_a_head_that_is_held);
}

#[test]
fn a_stale_partition_that_stays_is_found() {
    is_found(Bug::StaleStays, stale);
}

#[test]
fn a_table_that_is_dropped_beneath_a_replay_is_found() {
    is_found(Bug::TablesNotHeld, tables);
}

#[test]
fn pieces_of_an_old_attempt_that_count_are_found() {
    is_found(Bug::OldPiecesCount, turned);
}
