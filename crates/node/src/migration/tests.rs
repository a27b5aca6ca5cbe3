//! Many migrations at once (migration::M10).

use super::{Environment, Migrations, Outputs, SOURCES_MAX, TARGETS_MAX};
use crate::job::{Exported, JobResult};
use crate::life::Life;
use crate::requests::RequestId;
use crate::servers;
use duramen_base::ids::{
    KeyRange, MigrationId, RouteHash, SegmentId, ServerId, TableId, TabletsVersion,
};
use duramen_base::planted::{Bug, with_bug};
use duramen_format::entry::NewObject;
use duramen_wire::native::Slice;
use duramen_wire::native::message::{
    MigrateEntries, MigrationDone, MigrationOutcome, PeerAnswer, TabletEntry, TabletState, Tablets,
    ToCoordinator,
};
use std::sync::Arc;

const ME: ServerId = ServerId::new(0, 1);
const OTHER: ServerId = ServerId::new(1, 1);
const MANY: u64 = 2_400;

fn incoming(n: u64) -> TabletState {
    TabletState::Incoming {
        migration: MigrationId(n),
        from: OTHER,
    }
}

fn outgoing(n: u64) -> TabletState {
    TabletState::Outgoing {
        migration: MigrationId(n),
        to: OTHER,
        creation: SegmentId::NONE,
    }
}

/// The migrations of one member. A message is named by the number of its migration.
struct Rig {
    life: Life,
    told: Tablets,
}

impl Rig {
    fn new() -> Rig {
        let options = servers::options(None);
        let begun = Life::begin(0, ME, servers::settings(), &options, Arc::default());
        let (life, _) = begun.expect("it can be a member");
        let told = Tablets::default();
        Rig { life, told }
    }

    fn step(
        &mut self,
        step: impl FnOnce(&mut Migrations, &Environment<'_>, &mut Outputs),
    ) -> Outputs {
        let env = Environment {
            me: ME,
            told: &self.told,
            is_made: true,
            store: &self.life.store,
            clients: self.life.client_leases.clients(),
        };
        let mut outputs = Outputs::default();
        step(&mut self.life.migrations, &env, &mut outputs);
        outputs
    }

    /// As the node after each input.
    fn go_on(&mut self) -> Outputs {
        self.step(|migrations, env, out| {
            migrations.follow(env.told, out);
            migrations.poll(0, env, out);
            let (room, waiting) = migrations.waiting();
            let ready: Vec<_> = waiting.take(room).map(|(id, ..)| id).collect();
            for id in ready {
                migrations.begin(id, env.store, out);
            }
        })
    }

    /// A newer list has these migrations.
    fn list(&mut self, states: impl Iterator<Item = TabletState>) -> Outputs {
        let entry = |(n, state)| TabletEntry {
            table: TableId(1),
            range: KeyRange::new(RouteHash(n), RouteHash(n)),
            state,
        };
        self.told = Tablets {
            version: TabletsVersion(self.told.version.0 + 1),
            tables: Vec::new(),
            tablets: (0..).zip(states).map(entry).collect(),
        };
        self.go_on()
    }

    /// The source has sent the first message of a migration.
    fn arrives(&mut self, n: u64) -> Outputs {
        let message = MigrateEntries {
            migration: MigrationId(n),
            sequence: 0,
            safe_version: 0,
            last: false,
            bytes_total: 0,
        };
        let (request, entries) = (RequestId(n), Vec::new());
        self.life.migrations.wants(MigrationId(n), OTHER);
        let mut outputs = self.go_on();
        let arrived = self.step(|migrations, env, out| {
            migrations.arrived(0, request, OTHER, message, entries, env, out);
        });
        outputs.answers.extend(arrived.answers);
        outputs
    }

    fn waiting(&self) -> Vec<u64> {
        let (_, waiting) = self.life.migrations.waiting();
        waiting.map(|(id, ..)| id.0).collect()
    }
}

fn not_yet(n: u64, after_ms: u32) -> (RequestId, PeerAnswer) {
    (RequestId(n), PeerAnswer::NotYet { after_ms })
}

/// All of them began at once, and each was visited at every input: the thread had no time left for
/// pings, and the member was taken for crashed.
#[test]
fn few_of_many_targets_are_under_way() {
    let mut rig = Rig::new();
    rig.list((0..MANY).map(incoming));
    assert!(
        rig.life.migrations.working_targets.is_empty(),
        "nothing comes yet"
    );
    for n in 0..MANY {
        rig.arrives(n);
        assert!(
            rig.life.migrations.working_targets.len() <= TARGETS_MAX,
            "M10"
        );
    }
    let later: Vec<u64> = (TARGETS_MAX as u64..MANY).collect();
    assert_eq!(rig.waiting(), later, "in order");
}

#[test]
fn a_target_begins_when_another_one_has_ended() {
    let mut rig = Rig::new();
    let first = TARGETS_MAX as u64;
    let all = first + 4;
    rig.list((0..all).map(incoming));
    for n in 0..all {
        let answers = rig.arrives(n).answers;
        let is_answered = answers.iter().any(|(request, _)| request.0 == n);
        assert!(n < first || !is_answered, "it waits: {answers:?}");
    }
    // One that is under way and one that waits are given up.
    let given_up = [0, first + 1];
    let left = (0..all).filter(|n| !given_up.contains(n));
    let answers = rig.list(left.map(incoming)).answers;
    assert!(answers.contains(&not_yet(first + 1, 10)), "{answers:?}");
    assert!(
        answers.contains(&not_yet(first, 0)),
        "its turn: {answers:?}"
    );
    assert_eq!(rig.waiting(), [first + 2, first + 3]);
}

#[test]
fn a_message_that_is_repeated_in_vain_holds_one_request_open() {
    let mut rig = Rig::new();
    let last = TARGETS_MAX as u64;
    rig.list((0..=last).map(incoming));
    (0..=last).for_each(|n| drop(rig.arrives(n)));
    let answers = rig.arrives(last).answers;
    assert_eq!(answers, [not_yet(last, 2_000)], "the earlier request");
}

#[test]
fn few_of_many_sources_are_under_way() {
    let mut rig = Rig::new();
    let jobs = rig.list((0..MANY).map(outgoing)).jobs;
    assert_eq!(jobs.len(), SOURCES_MAX, "M10");
    assert_eq!(rig.life.migrations.working_sources.len(), SOURCES_MAX);
    let jobs = rig.list((1..MANY).map(outgoing)).jobs;
    assert_eq!(jobs.len(), 1, "the next one");
}

/// The answers to a message in which a bit has flipped of an entry that is too long to be mended,
/// and which is sent so often.
fn after_flips_on_the_way(times: u64) -> Vec<(RequestId, PeerAnswer)> {
    let mut rig = Rig::new();
    rig.list([incoming(0)].into_iter());
    rig.life.migrations.wants(MigrationId(0), OTHER);
    drop(rig.go_on());
    let object = NewObject {
        table: 1,
        version: 1,
        expires_at_ms: None,
        key: b"key",
        value: &[7; 100 << 10],
        victim: SegmentId::NONE,
        is_typed: false,
    };
    let mut entries = vec![0; object.padded_bytes()];
    object.write_to(&mut entries);
    entries[5_000] ^= 1;
    let message = MigrateEntries {
        migration: MigrationId(0),
        sequence: 0,
        safe_version: 0,
        last: false,
        bytes_total: 0,
    };
    let mut answers = Vec::new();
    for n in 1..=times {
        let (request, entries) = (RequestId(n), entries.clone());
        let arrived = rig.step(|migrations, env, out| {
            migrations.arrived(0, request, OTHER, message, entries, env, out);
        });
        for job in arrived.jobs {
            if let JobResult::Migration(run, completion) = job.run().result {
                rig.life.migrations.job_done(0, run, completion);
            }
        }
        answers.extend(arrived.answers);
        answers.extend(rig.go_on().answers);
    }
    answers
}

/// The whole move failed.
#[test]
fn a_message_with_damaged_bytes_is_asked_for_again() {
    let answers = after_flips_on_the_way(2);
    assert_eq!(answers, [not_yet(1, 10), not_yet(2, 10)]);
    let failed = with_bug(Bug::DamageEndsMove, || after_flips_on_the_way(1));
    assert!(matches!(
        &failed[..],
        [(_, PeerAnswer::MigrationRefused { .. })]
    ));
}

/// The buffer at the source was damaged: its message was asked for again for ever, every 10 ms, and
/// the move showed no reason.
#[test]
fn a_move_whose_messages_stay_damaged_fails() {
    let answers = after_flips_on_the_way(100);
    let refusal = answers.iter().find_map(|(request, answer)| match answer {
        PeerAnswer::MigrationRefused { reason } => Some((request.0, reason)),
        _ => None,
    });
    let (request, reason) = refusal.expect("it fails");
    assert!((2..20).contains(&request), "after {request}");
    assert!(reason.contains("damaged"), "{reason}");
}

impl Rig {
    /// Whether the source has reported at this time that the move has failed.
    fn has_failed(&mut self, now_us: u64) -> bool {
        let reports = self.step(|migrations, env, out| migrations.poll(now_us, env, out));
        reports.reports.iter().any(|(_, report)| match report {
            ToCoordinator::MigrationDone(MigrationDone { outcome, .. }) => {
                matches!(outcome, MigrationOutcome::Failed { .. })
            }
            _ => false,
        })
    }
}

/// The link to the target broke after its first answer: the move never ended, and no other began.
#[test]
fn a_move_whose_target_falls_silent_is_given_up() {
    let mut rig = Rig::new();
    rig.list([outgoing(0)].into_iter());
    let exported = Exported {
        chunks: vec![Slice::from(vec![1; 8]), Slice::from(vec![2; 8])],
        more: true,
        ..Exported::default()
    };
    let answers = |rig: &mut Rig, now_us, sequence, answer| {
        let source = rig.life.migrations.sources.get_mut(&MigrationId(0));
        let source = source.expect("it is under way");
        if sequence == 0 {
            source.exported(0, Ok(exported.clone()));
        }
        source.answered(now_us, sequence, Some(answer));
    };
    let first = PeerAnswer::Migrated { sequence: 0 };
    answers(&mut rig, 1_000_000, 0, first);
    assert!(!rig.has_failed(9_000_000));
    answers(&mut rig, 9_000_000, 1, PeerAnswer::NotYet { after_ms: 1 });
    assert!(!rig.has_failed(18_000_000));
    assert!(rig.has_failed(19_500_000));
}
