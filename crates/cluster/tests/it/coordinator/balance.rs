//! Shares become equal by themselves, or when somebody asks; and then nothing moves any more.

use crate::coordinator::rig::Rig;
use duramen_base::ids::{KeyRange, RouteHash, SegmentId, ServerId};
use duramen_base::planted::{Bug, with_bug};
use duramen_cluster::coordinator::Config;
use duramen_harness::config;
use duramen_wire::native::message::{
    Admin, AdminAnswer, BalanceStatus, CoordinatorAnswer, Means, MigrationDone, MigrationOutcome,
    MigrationStatus, PlannedMove, RangeLoad, Refusal, ServerRoom, ServerStatus, ToCoordinator,
};
use std::collections::BTreeMap;

const SECOND: u64 = 1_000_000;
const MIB: u64 = 1 << 20;
const AFTER_US: u64 = 15 * SECOND;
/// Slots of a reported range, as members report them.
const PART: u32 = 64;

/// A cluster, the bytes in each slot, and the moves so far.
struct World {
    rig: Rig,
    slot_bytes: u64,
    limits: BTreeMap<ServerId, u64>,
    /// Servers whose index tells a lower limit, and that limit.
    estimates: BTreeMap<ServerId, u64>,
    moves: Vec<(u64, MigrationStatus)>,
    at_once: usize,
    /// Moves fail.
    fails: bool,
}

fn slots(range: &KeyRange) -> u64 {
    u64::from(range.last.slot()) - u64::from(range.first.slot()) + 1
}

impl World {
    fn new(servers: u64, tablets: u32, slot_bytes: u64) -> World {
        World::with(Some(AFTER_US), servers, tablets, slot_bytes)
    }

    fn with(balance_after_us: Option<u64>, servers: u64, tablets: u32, slot_bytes: u64) -> World {
        let mut rig = Rig::of(Config {
            balance_after_us,
            ..config()
        });
        rig.enlist_some(servers);
        rig.create_table("a", tablets);
        rig.be_good();
        World {
            rig,
            slot_bytes,
            limits: BTreeMap::new(),
            estimates: BTreeMap::new(),
            moves: Vec::new(),
            at_once: 0,
            fails: false,
        }
    }

    fn up(&self) -> Vec<ServerId> {
        let servers = self.rig.status().servers;
        let up = servers.iter().filter(|s| s.status == ServerStatus::Up);
        up.map(|s| s.server).collect()
    }

    fn slots_of(&self, server: ServerId) -> u64 {
        let tablets = self.rig.status().tablets;
        let own = tablets.iter().filter(|tablet| tablet.owner == server);
        own.map(|tablet| slots(&tablet.range)).sum()
    }

    fn shares(&self) -> Vec<u64> {
        self.up().into_iter().map(|id| self.slots_of(id)).collect()
    }

    /// All members report what they have.
    fn report(&mut self) {
        self.report_all_but(ServerId::NONE);
    }

    fn report_all_but(&mut self, silent: ServerId) {
        let tablets = self.rig.status().tablets;
        for server in self.up().into_iter().filter(|server| *server != silent) {
            let own = tablets.iter().filter(|tablet| tablet.owner == server);
            let loads = own.flat_map(|tablet| {
                let KeyRange { first, last } = tablet.range;
                let parts =
                    (u32::from(first.slot())..=u32::from(last.slot())).step_by(PART as usize);
                let parts = parts.map(move |from| {
                    let to = (from + PART - 1).min(u32::from(last.slot()));
                    let range = KeyRange::new(
                        RouteHash::first_of_slot(from as u16),
                        RouteHash::last_of_slot(to as u16),
                    );
                    (tablet.table, range)
                });
                parts.collect::<Vec<_>>()
            });
            let loads = loads.map(|(table, range)| RangeLoad {
                table,
                range,
                bytes: slots(&range) * self.slot_bytes,
                records: slots(&range),
            });
            let loads: Vec<RangeLoad> = loads.collect();
            let used_bytes = loads.iter().map(|load| load.bytes).sum();
            let given_bytes = self.limits.get(&server).copied().unwrap_or(64 << 30);
            let estimate = self.estimates.get(&server).copied();
            let room = ServerRoom {
                used_bytes,
                limit_bytes: estimate.unwrap_or(given_bytes),
                ..ServerRoom::default()
            };
            self.rig.ask(server, ToCoordinator::Loads { server, loads });
            self.rig.ask(server, ToCoordinator::Room { server, room });
            let means = ToCoordinator::Means(Means {
                server,
                given_bytes,
                segments_short: 0,
            });
            self.rig.ask(server, means);
        }
    }

    fn end_moves(&mut self) {
        let migrations = self.rig.status().migrations;
        self.at_once = self.at_once.max(migrations.len());
        for migration in migrations {
            let (server, outcome) = match self.fails {
                true => {
                    let reason = "its disk is full".to_owned();
                    (migration.to, MigrationOutcome::Failed { reason })
                }
                false => {
                    let creation = SegmentId(5);
                    (migration.to, MigrationOutcome::Complete { creation })
                }
            };
            let question = ToCoordinator::MigrationDone(MigrationDone {
                migration: migration.migration,
                server,
                outcome,
            });
            self.rig.ask(server, question).expect("an answer at once");
            self.moves.push((self.rig.now_us, migration));
        }
    }

    /// Moves end within a second, and members report each second.
    fn live(&mut self, seconds: u64) {
        for _ in 0..seconds {
            self.end_moves();
            self.report();
            self.rig.live(SECOND);
        }
    }

    fn balance(&mut self) -> BalanceStatus {
        match self.rig.admin(Admin::Balance) {
            CoordinatorAnswer::Admin(AdminAnswer::Balance(balance)) => *balance,
            other => panic!("{other:?}"),
        }
    }

    fn rebalance(&mut self, is_dry: bool) -> Vec<PlannedMove> {
        match self.rig.admin(Admin::Rebalance { is_dry }) {
            CoordinatorAnswer::Admin(AdminAnswer::Moves(moves)) => moves,
            other => panic!("{other:?}"),
        }
    }
}

/// It turned 4096 slots each into 8192, 4096, 4096 and none, for good.
#[test]
fn a_rolling_restart_ends_with_equal_shares() {
    for slot_bytes in [0, MIB] {
        let mut world = World::new(4, 4, slot_bytes);
        for (n, old) in world.up().into_iter().enumerate() {
            world.rig.admin(Admin::Drain { server: old });
            world.live(5);
            assert_eq!(world.slots_of(old), 0);
            // Another process, with the same disk.
            let disk = n as u64 + 1;
            world.rig.enlist_as(disk, 100 + disk, Some(old));
            world.live(3);
        }
        assert!(world.shares().contains(&0), "{:?}", world.shares());
        let before = world.moves.len();
        world.live(60);
        assert_eq!(world.shares(), [4096; 4], "{slot_bytes}");
        assert_eq!(world.moves.len(), before + 1, "one move suffices");
        assert!(world.balance().is_even);
        world.live(600);
        assert_eq!(world.moves.len(), before + 1, "and nothing moves any more");
    }
}

#[test]
fn a_member_that_joins_gets_its_share_a_move_at_a_time() {
    let mut world = World::new(4, 4, MIB);
    world.live(30);
    assert_eq!(world.moves.len(), 0);
    world.rig.enlist(5, None);
    world.live(5);
    let planned = world.rebalance(true);
    assert_eq!((planned.len(), world.moves.len()), (4, 0));
    assert!(!world.balance().is_even);
    world.live(120);
    let shares = world.shares();
    assert!(
        shares.iter().all(|slots| (3000..=3550).contains(slots)),
        "{shares:?}"
    );
    assert_eq!((world.moves.len(), world.at_once), (4, 1));
    // balance::N2: the target rests after each move as long as it took.
    for two in world.moves.windows(2) {
        assert!(two[1].0 - two[0].0 >= 2 * SECOND, "{two:?}");
    }
    let left = world.balance();
    assert_eq!((left.moves_left, left.is_even), (0, true));
}

/// Uneven, and a server has just died: whether something moves until its data is recovered.
fn moves_beside_a_recovery() -> bool {
    let mut world = World::new(5, 5, MIB);
    let new = world.rig.enlist(6, None);
    let mut waited = 0;
    while world.rig.status().migrations.is_empty() {
        world.report();
        world.rig.live(SECOND / 10);
        waited += 1;
        assert!(waited < 400, "no move begins");
    }
    let begun = world.rig.status().migrations[0].clone();
    let dead = world
        .up()
        .into_iter()
        .find(|id| *id != begun.from && *id != new);
    world.rig.crash(dead.expect("one"));
    let mut moves = world.rig.status().migrations.len();
    assert_eq!(world.rig.status().recoveries.len(), 1);
    world.live(60);
    moves += world.moves.len();
    moves > 0
}

/// balance::N1
#[test]
fn nothing_moves_while_data_waits_for_a_recovery() {
    assert!(!moves_beside_a_recovery());
    assert!(
        with_bug(Bug::BalancesAlways, moves_beside_a_recovery),
        "not found"
    );
}

#[test]
fn nothing_is_balanced_beside_a_drain_or_moves_of_others() {
    let mut world = World::new(4, 2, MIB);
    world.live(5);
    let owner = world.rig.status().tablets[0].owner;
    world.rig.admin(Admin::Drain { server: owner });
    world.rig.be_good();
    match world.rig.admin(Admin::Rebalance { is_dry: true }) {
        CoordinatorAnswer::Refused(Refusal::NotReady { reason, .. }) => {
            assert!(reason.contains("drained"), "{reason}");
        }
        other => panic!("{other:?}"),
    }
    let of_drain = world.rig.status().migrations.len();
    world.rig.live(60 * SECOND);
    assert_eq!(world.rig.status().migrations.len(), of_drain);
    assert!(
        world
            .balance()
            .waits_for
            .is_some_and(|why| why.contains("drained"))
    );
    world.live(90);
    assert_eq!(world.slots_of(owner), 0, "a drained server gets nothing");
    assert!(world.balance().is_even);
}

#[test]
fn switched_off_nothing_moves_until_somebody_asks() {
    let mut world = World::with(None, 3, 1, MIB);
    world.live(300);
    assert_eq!(world.moves.len(), 0);
    let status = world.balance();
    assert!(!status.is_automatic && !status.is_even);
    let planned = world.rebalance(false);
    assert_eq!(planned.len(), 2, "{planned:?}");
    world.live(30);
    assert_eq!(world.moves.len(), 2);
    let shares = world.shares();
    assert!(
        shares.iter().all(|slots| slots.abs_diff(5461) < 200),
        "{shares:?}"
    );
    assert_eq!(world.rebalance(true), []);
}

/// `duramen rebalance --wait` looks for each move of its plan among those that have ended. Only the
/// last 16 were known, so a longer plan that was done counted as one that had failed.
#[test]
fn all_moves_of_a_plan_are_known_when_they_have_ended() {
    let mut world = World::with(None, 24, 1, MIB);
    world.live(2);
    let planned = world.rebalance(false);
    assert!(planned.len() > 16, "{planned:?}");
    for _ in 0..60 {
        if world.balance().moves_left > 0 {
            world.live(10);
        }
    }
    assert_eq!(world.balance().moves_left, 0);
    let ended = world.rig.status().migrations_ended;
    for one in &planned {
        let is_it = |of: &MigrationStatus| {
            (of.table, of.range, of.from, of.to) == (one.table, one.range, one.from, one.to)
        };
        assert!(ended.iter().any(is_it), "{one:?}");
    }
}

/// Members count what they have every ten seconds. A second `rebalance` before that saw the bytes
/// where they had been, and moved as many once more.
#[test]
fn what_has_just_moved_counts_where_it_is() {
    let mut world = World::with(None, 2, 1, MIB);
    world.report();
    world.rig.live(SECOND);
    assert_eq!(world.rebalance(false).len(), 1);
    world.end_moves();
    world.rig.live(SECOND);
    assert_eq!(world.moves.len(), 1);
    assert!(world.balance().is_even);
    assert_eq!(world.rebalance(true), []);
    // Nor is it the noise of samples that moves.
    let owner = world.up()[0];
    let more = world.slot_bytes + world.slot_bytes / 5;
    let less = std::mem::replace(&mut world.slot_bytes, more);
    world.report();
    world.slot_bytes = less;
    world.report_all_but(owner);
    assert_eq!(world.rebalance(true), []);
}

/// balance::N3. No plan brought anything, so the next one waited for a quarter of an hour: a server
/// that joined then got nothing before.
#[test]
fn a_new_master_does_not_wait_for_plans_that_failed() {
    let mut world = World::new(3, 1, MIB);
    world.fails = true;
    world.live(1200);
    world.fails = false;
    let (before, new) = (world.moves.len(), world.rig.enlist(9, None));
    world.live(60);
    let moves = &world.moves[before..];
    assert!(moves.iter().any(|(_, of)| of.to == new), "{moves:?}");
}

/// balance::N3
#[test]
fn moves_that_fail_are_tried_ever_more_rarely() {
    let mut world = World::new(4, 1, MIB);
    world.fails = true;
    world.live(900);
    assert!(
        (3..=9).contains(&world.moves.len()),
        "{} in 15 minutes",
        world.moves.len()
    );
    world.fails = false;
    world.live(1200);
    assert!(world.balance().is_even);
}

#[test]
fn a_machine_with_little_memory_gets_little() {
    let mut world = World::new(3, 3, MIB);
    let small = world.up()[2];
    for server in world.up() {
        let limit = if server == small {
            5000 * MIB
        } else {
            20_000 * MIB
        };
        world.limits.insert(server, limit);
    }
    world.live(120);
    // A ninth of all, not a third.
    let slots = world.slots_of(small);
    assert!(slots.abs_diff(16_384 / 9) < 400, "{slots}");
    let moves = world.moves.len();
    world.live(600);
    assert_eq!(world.moves.len(), moves);
}

/// With flash the limit follows from the keys that are there: a member without data has a higher
/// one.
/// It was given twice the share of the others, and later the data moved back.
#[test]
fn shares_do_not_follow_a_limit_that_depends_on_the_keys() {
    let mut world = World::new(3, 3, MIB);
    for server in world.up() {
        world.estimates.insert(server, 30 << 30);
    }
    world.rig.enlist(4, None);
    world.live(120);
    let shares = world.shares();
    let is_equal = |slots: &u64| slots.abs_diff(16_384 / 4) < 600;
    assert!(shares.iter().all(is_equal), "{shares:?}");
}

#[test]
fn a_new_leader_looks_anew() {
    let mut world = World::new(3, 3, MIB);
    world.rig.enlist(4, None);
    world.live(18);
    assert!(!world.moves.is_empty());
    world.rig.fail_over();
    world.rig.be_good();
    world.live(5);
    let moves = world.moves.len();
    // The rig's next leaders do not balance by themselves.
    world.live(60);
    assert_eq!(world.moves.len(), moves);
    assert!(!world.rebalance(false).is_empty());
    world.live(60);
    assert!(world.balance().is_even);
}
