//! After a failover a member may still be recovering a range that others have recovered since. When
//! the range moves to that member, nothing may arrive before the old run is over and its leftover
//! is purged: their entries would be the same in the index, so acknowledged data would be lost with
//! the old run, or removed keys would return with it.

use crate::job::{Job, JobResult};
use crate::member::Input;
use crate::ranges::Ranges;
use crate::recovery::tests::RunStage;
use crate::requests::{ReceivedRequest, RequestId};
use crate::servers::{list, options, settings};
use crate::{Node, NodeInput, NodeOutput};
use duramen_base::ids::{KeyRange, MigrationId, RecoveryId, SegmentId, ServerId, TableId};
use duramen_base::ids::{Level, TabletsVersion};
use duramen_wire::native::message::{
    CoordinatorAnswer, Enlisted, FromCoordinator, MigrateEntries, Peer, Recover, RecoverTablet,
    TableEntry, TabletEntry, TabletState, Tablets,
};

const ME: ServerId = ServerId::new(0, 1);
const OTHER: ServerId = ServerId::new(1, 1);
const DEAD: ServerId = ServerId::new(2, 1);
const TABLE: TableId = TableId(1);
const NORMAL: TabletState = TabletState::Normal {
    creation: SegmentId::NONE,
};
const MIGRATION: MigrationId = MigrationId(7);

fn all() -> Ranges {
    Ranges::new([(TABLE, KeyRange::ALL)]).unwrap()
}

fn table() -> TableEntry {
    TableEntry {
        table: TABLE,
        name: "t".to_owned(),
        level: None::<Level>,
    }
}

/// A member, its jobs that were not run yet, and the version of its newest list.
struct Rig {
    node: Node,
    jobs: Vec<Job>,
    version: u64,
}

impl Rig {
    fn new() -> Rig {
        let node = Node::new(0, options(None));
        let (jobs, version) = (Vec::new(), 0);
        let mut rig = Rig {
            node,
            jobs,
            version,
        };
        let asked = rig.handle(NodeInput::Tick);
        let token = asked.iter().find_map(|output| match output {
            NodeOutput::AskCoordinator { token, .. } => Some(*token),
            _ => None,
        });
        let enlisted = Box::new(Enlisted {
            server: ME,
            list: list(1, &[ME, OTHER]).into(),
            settings: settings(),
        });
        rig.handle(NodeInput::Member(Input::Answered {
            token: token.expect("it enlists"),
            answer: CoordinatorAnswer::Enlisted(enlisted),
        }));
        rig.handle(NodeInput::Member(Input::IdStored { server: ME }));
        rig
    }

    fn handle(&mut self, input: NodeInput) -> Vec<NodeOutput> {
        let mut out = Vec::new();
        self.node.handle(0, input, &mut out);
        let is_job = |output: &mut NodeOutput| matches!(output, NodeOutput::Job(_));
        let jobs = out.extract_if(.., is_job);
        self.jobs.extend(jobs.filter_map(|output| match output {
            NodeOutput::Job(job) => Some(job),
            _ => None,
        }));
        out
    }

    /// A list with this one tablet, or with none, applied at once.
    fn list(&mut self, state: Option<TabletState>) {
        self.version += 1;
        let entry = |state| TabletEntry {
            table: TABLE,
            range: KeyRange::ALL,
            state,
        };
        let tablets = Tablets {
            version: TabletsVersion(self.version),
            tables: vec![table()],
            tablets: state.map(entry).into_iter().collect(),
        };
        self.handle(NodeInput::Member(Input::Order {
            request: RequestId(1),
            sender: ServerId::coordinator(1),
            target: ME,
            question: FromCoordinator::Tablets(tablets),
        }));
        let at = self.jobs.iter().position(|job| job.name() == "order");
        let order = self.jobs.remove(at.expect("a list is an order")).run();
        assert!(matches!(order.result, JobResult::Obeyed(_, Ok(()))));
        // The sync before the confirmation is not checked here.
        let version = TabletsVersion(self.version);
        self.handle(NodeInput::Member(Input::Obeyed { version }));
    }

    /// The tablet is to come here from the other server, which has begun to send it.
    fn moves_in(&mut self) {
        let from = OTHER;
        self.list(Some(TabletState::Incoming {
            migration: MIGRATION,
            from,
        }));
        self.handle(NodeInput::Request(ReceivedRequest {
            request: RequestId(2),
            sender: OTHER,
            target: ME,
            question: Peer::MigrateEntries(MigrateEntries {
                migration: MIGRATION,
                sequence: 0,
                safe_version: 0,
                last: false,
                bytes_total: 0,
            }),
            payload: Vec::new(),
        }));
    }

    fn begin_recovery(&mut self, id: u64) -> bool {
        let tablet = RecoverTablet {
            table: TABLE,
            range: KeyRange::ALL,
            creation: SegmentId::NONE,
        };
        let order = Recover {
            recovery: RecoveryId(id),
            partition: 0,
            log: DEAD,
            tablets: vec![tablet],
            floors: Vec::new(),
            safe_version: 0,
            tables: vec![table()],
            segments: Vec::new().into(),
            passes: Vec::new(),
            accepted: Vec::new(),
        };
        self.node.begin_recovery(0, order)
    }

    /// A recovery's run that stays at this stage.
    fn hold(&mut self, stage: RunStage) {
        assert!(self.begin_recovery(1));
        let life = self.node.life.as_mut().unwrap();
        life.recoveries.hold(stage);
    }

    fn has_begun(&self) -> bool {
        let life = self.node.life.as_ref().unwrap();
        life.migrations.waiting().1.next().is_none()
    }

    /// Runs all jobs, until none is left.
    fn run_all(&mut self) {
        while let Some(job) = self.jobs.pop() {
            let done = job.run();
            self.handle(NodeInput::JobDone(done));
        }
    }
}

fn old_run_at(stage: RunStage) {
    let mut rig = Rig::new();
    rig.list(None);
    rig.hold(stage);
    rig.moves_in();
    assert!(!rig.has_begun(), "E1: over a run that is {stage:?}");
    assert!(!rig.begin_recovery(2), "R2: over a run that is {stage:?}");
    // occupancy::E2: it ends, its leftover is purged, and then the migration continues.
    if stage != RunStage::Dropped {
        let life = rig.node.life.as_mut().unwrap();
        life.recoveries.hold(RunStage::Dropped);
    }
    rig.handle(NodeInput::Tick);
    assert!(!rig.has_begun(), "N7: what it left is here");
    rig.run_all();
    rig.handle(NodeInput::Tick);
    assert!(rig.has_begun(), "E2: after {stage:?}");
}

fn purge() {
    let mut rig = Rig::new();
    rig.list(Some(NORMAL));
    rig.list(None);
    assert!(!rig.begin_recovery(1), "E1: during a purge");
    rig.run_all();
    assert!(rig.begin_recovery(2), "E2: after it");
}

/// A migration ends; its data are being taken back when the range is to be recovered here.
fn leftover() {
    let mut rig = Rig::new();
    rig.moves_in();
    assert!(rig.has_begun());
    rig.handle(NodeInput::Tick);
    // The next list lacks it. Its order waits, and would block a recovery by itself.
    let life = rig.node.life.as_mut().unwrap();
    let mut outputs = crate::migration::Outputs::default();
    let tablets = Tablets {
        version: TabletsVersion(9),
        ..Tablets::default()
    };
    life.migrations.follow(&tablets, &mut outputs);
    let is_here = |rig: &Rig| {
        let (assignment, life) = (
            rig.node.member.assignment(),
            rig.node.life.as_ref().unwrap(),
        );
        super::is_occupied(assignment, life, &all())
    };
    assert!(is_here(&rig), "E1: it is being taken back");
}

#[test]
fn nothing_moves_in_over_a_run_at_any_stage() {
    for stage in RunStage::ALL {
        old_run_at(stage);
    }
}

#[test]
fn nothing_moves_in_during_a_purge_of_its_range() {
    purge();
}

#[test]
fn what_a_migration_leaves_behind_is_here() {
    leftover();
}

mod planted {
    use super::*;
    use duramen_base::planted::{Bug, with_bug};

    /// Checks that the bug is found by the rule that it breaks.
    fn is_found(bug: Bug, rule: &str, scenario: impl Fn() + std::panic::RefUnwindSafe) {
        let found = std::panic::catch_unwind(|| with_bug(bug, &scenario));
        let why = found.expect_err("it is not found");
        let fixed = why.downcast_ref::<&str>().map(|why| (*why).to_owned());
        let why = fixed.or_else(|| why.downcast_ref::<String>().cloned());
        assert!(why.is_some_and(|why| why.contains(rule)), "{bug:?}");
    }

    #[test]
    fn a_run_that_does_not_count_is_found_at_each_stage() {
        for stage in RunStage::ALL {
            if !matches!(stage, RunStage::Dropped) {
                is_found(Bug::RunIsNotHere, "E1", || old_run_at(stage));
            }
        }
    }

    #[test]
    fn a_purge_that_does_not_count_is_found() {
        is_found(Bug::PurgeIsNotHere, "E1", purge);
    }

    #[test]
    fn a_side_log_being_taken_back_that_does_not_count_is_found() {
        is_found(Bug::LeftoverIsNotHere, "E1", leftover);
    }

    #[test]
    fn what_an_old_run_leaves_where_a_migration_comes_is_found() {
        is_found(Bug::IncomingStays, "N7", || old_run_at(RunStage::Reporting));
    }
}
