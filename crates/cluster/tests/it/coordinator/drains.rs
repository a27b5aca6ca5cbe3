//! Drains whose moves fail, or are given up.

use crate::coordinator::rig::Rig;
use duramen_base::ids::{KeyRange, SegmentId, ServerId};
use duramen_base::planted::{Bug, with_bug};
use duramen_wire::native::message::{
    Admin, MigrationDone, MigrationOutcome, MigrationStatus, RangeLoad, ToCoordinator,
};

const SECOND_US: u64 = 1_000_000;

fn done(rig: &mut Rig, migration: &MigrationStatus, server: ServerId, outcome: MigrationOutcome) {
    let migration = migration.migration;
    let question = ToCoordinator::MigrationDone(MigrationDone {
        migration,
        server,
        outcome,
    });
    rig.ask(server, question).expect("an answer at once");
}

fn fail(rig: &mut Rig, migration: &MigrationStatus) {
    let reason = "it is hot".to_owned();
    done(
        rig,
        migration,
        migration.from,
        MigrationOutcome::Failed { reason },
    );
}

fn complete(rig: &mut Rig, migration: &MigrationStatus) {
    let creation = SegmentId(5);
    done(
        rig,
        migration,
        migration.to,
        MigrationOutcome::Complete { creation },
    );
}

/// Each attempt costs the servers work: it was repeated as soon as a target could be found, for
/// ever.
#[test]
fn a_tablet_that_does_not_move_is_tried_ever_more_rarely() {
    let mut rig = Rig::new();
    let servers = rig.enlist_some(4);
    rig.create_table("a", 4);
    rig.be_good();
    let drained = servers[1];
    rig.admin(Admin::Drain { server: drained });
    let mut attempts = 0;
    let mut last = 0;
    for second in 0..600 {
        for migration in rig.leader.coordinator.status().migrations {
            fail(&mut rig, &migration);
            attempts += 1;
            last = second;
        }
        rig.live(SECOND_US);
    }
    assert!((6..=20).contains(&attempts), "{attempts} in ten minutes");
    assert!(last > 500, "it is still tried: {last}");
    let shares = rig.leader.coordinator.overview().servers;
    let mut of = shares.into_iter().filter(|share| share.server == drained);
    let why = of.next().expect("a share").waits_for;
    assert!(why.is_some_and(|why| why.contains("failed to move")));
}

#[test]
fn other_tablets_of_a_drained_server_go_on() {
    let mut rig = Rig::new();
    let servers = rig.enlist_some(4);
    rig.create_table("a", 16);
    rig.be_good();
    let drained = servers[1];
    rig.admin(Admin::Drain { server: drained });
    let owned = |rig: &Rig| {
        let tablets = rig.leader.coordinator.status().tablets;
        let of = tablets.into_iter().filter(|tablet| tablet.owner == drained);
        of.map(|tablet| tablet.range.first).collect::<Vec<_>>()
    };
    let stuck = owned(&rig)[0];
    assert!(owned(&rig).len() > 2);
    for _ in 0..60 {
        for migration in rig.leader.coordinator.status().migrations {
            match migration.range.first == stuck {
                true => fail(&mut rig, &migration),
                false => complete(&mut rig, &migration),
            }
            rig.be_good();
        }
        rig.live(SECOND_US);
    }
    assert_eq!(owned(&rig), [stuck]);
}

/// A drain did not end while its tablet was overwritten fast: whatever was sent again took the
/// target's room until the move's end, and each attempt failed.
#[test]
fn a_tablet_that_does_not_fit_is_moved_in_parts() {
    let mut rig = Rig::new();
    let servers = rig.enlist_some(3);
    rig.create_table("a", 3);
    rig.be_good();
    let drained = servers[1];
    let tablets = rig.leader.coordinator.status().tablets;
    let tablet = tablets.into_iter().find(|tablet| tablet.owner == drained);
    let tablet = tablet.expect("it owns one");
    let load = RangeLoad {
        table: tablet.table,
        range: tablet.range,
        bytes: 200 << 20,
        records: 200 << 10,
    };
    let loads = vec![load];
    let server = drained;
    rig.ask(drained, ToCoordinator::Loads { server, loads });
    rig.admin(Admin::Drain { server: drained });
    let width = |range: &KeyRange| range.last.0 - range.first.0;
    let mut parts = Vec::new();
    for _ in 0..300 {
        for migration in rig.leader.coordinator.status().migrations {
            // Up to a third fits.
            if width(&migration.range) > width(&tablet.range) / 3 {
                let reason = "no room".to_owned();
                let failed = MigrationOutcome::Failed { reason };
                done(&mut rig, &migration, migration.to, failed);
            } else {
                parts.push(migration.range);
                complete(&mut rig, &migration);
            }
            rig.be_good();
        }
        rig.live(SECOND_US);
    }
    assert_eq!(parts.len(), 4, "{parts:?}");
    assert!(parts.iter().all(|part| part.first.0 % (1 << 50) == 0));
    let owns = rig.leader.coordinator.status().tablets;
    assert!(owns.iter().all(|tablet| tablet.owner != drained));
}

/// A server is drained, and `end` ends its first moves; the tablets of drained servers a minute
/// later.
fn left_after(end: fn(&mut Rig, &MigrationStatus)) -> usize {
    let mut rig = Rig::new();
    let servers = rig.enlist_some(4);
    rig.create_table("a", 8);
    rig.create_table("b", 4);
    rig.be_good();
    rig.admin(Admin::Drain { server: servers[0] });
    let first = rig.status().migrations;
    assert_eq!(first.len(), 2);
    for migration in first {
        end(&mut rig, &migration);
    }
    for _ in 0..60 {
        for migration in rig.status().migrations {
            complete(&mut rig, &migration);
            rig.be_good();
        }
        rig.live(SECOND_US);
    }
    let status = rig.status();
    let drained = status.servers.iter().filter(|entry| entry.draining);
    let drained: Vec<ServerId> = drained.map(|entry| entry.server).collect();
    let owners = status.tablets.iter().map(|tablet| tablet.owner);
    owners.filter(|owner| drained.contains(owner)).count()
}

/// The drain of a move's target, an operator and a dropped table end moves without a report of
/// either side: nothing tried the tablets again, and the drain that had begun them never ended.
#[test]
fn a_drain_goes_on_after_moves_that_were_given_up() {
    let ends: [fn(&mut Rig, &MigrationStatus); 3] = [
        |rig, migration| {
            let server = migration.to;
            rig.admin(Admin::Drain { server });
        },
        |rig, migration| {
            let migration = migration.migration;
            rig.admin(Admin::AbortMigration { migration });
        },
        |rig, _| {
            let name = "a".to_owned();
            rig.admin(Admin::DropTable { name });
        },
    ];
    for (n, end) in ends.into_iter().enumerate() {
        assert_eq!(left_after(end), 0, "{n}");
        let left = with_bug(Bug::DrainForgotten, || left_after(end));
        assert!(left > 0, "not found: {n}");
    }
}
