//! All servers of a rather full cluster stop and start again: scenarios 23 and 25.

use crate::coordinator::rig::{PendingCall, Rig, Shelf, add_open, closed};
use duramen_base::ids::{KeyRange, SegmentId, ServerId, TableId};
use duramen_base::planted::{Bug, with_bug};
use duramen_base::random::Random;
use duramen_cluster::coordinator::Sign;
use duramen_format::control::Record;
use duramen_wire::native::message::{
    CoordinatorAnswer, FromCoordinator, PartitionDone, PartitionOutcome, RangeLoad, Recover,
    RecoveryPhase, ServerAnswer, ServerRoom, ToCoordinator,
};
use std::collections::BTreeMap;

const MIB: u64 = 1 << 20;
const SECOND: u64 = 1_000_000;
const STEP_US: u64 = 50_000;
/// Most live bytes of a server.
const LIMIT: u64 = 226 * MIB;
/// Bytes of a log for each live byte, as overwrites leave it, in percent.
const LOG_PERCENT: u64 = 230;
/// Interval of the reports of room.
const REPORT_US: u64 = 2 * SECOND;
/// Bytes that a server replays in a second.
const REPLAY_BYTES: u64 = 200 * MIB;

/// A partition that a server replays.
struct Run {
    asked: PendingCall,
    bytes: u64,
    done_us: u64,
}

/// A machine, with its present life.
struct Machine {
    /// As given by `Rig::enlist_some`.
    disk: u64,
    /// The life before the stop.
    old: ServerId,
    now: Option<ServerId>,
    used: u64,
    runs: Vec<Run>,
    reported: Option<u64>,
    report_us: u64,
    limit: u64,
}

impl Machine {
    fn running(&self) -> u64 {
        self.runs.iter().map(|run| run.bytes).sum()
    }
}

struct World {
    rig: Rig,
    machines: Vec<Machine>,
    /// The tablets before the stop.
    tablets: usize,
    live: u64,
    /// Orders that did not fit, and all of them.
    failed: u64,
    orders: u64,
    says_room: bool,
    /// The first hash of each machine's tablet before the stop.
    first_of: Vec<u64>,
}

fn whole(range: KeyRange) -> u128 {
    u128::from(range.last.0 - range.first.0) + 1
}

impl World {
    /// Servers of which each has so many live bytes. `reports`: they report loads and room.
    fn new(servers: u64, live: u64, reports: bool) -> World {
        let mut config = duramen_harness::config();
        config.settings.partition_bytes = 128 * MIB;
        config.settings.segment_bytes = MIB as u32;
        let mut rig = Rig::of(config);
        let all: Vec<ServerId> = (1..=servers)
            .map(|n| enlist(&mut rig, n, n, None))
            .collect();
        let table = rig.create_table("a", servers as u32);
        rig.be_good();
        if reports {
            all.iter().for_each(|id| loads(&mut rig, *id, table, live));
            rig.live(12 * SECOND); // they are stored
        }
        let machine = |(n, old)| Machine {
            disk: n,
            old,
            now: None,
            used: 0,
            runs: Vec::new(),
            reported: None,
            report_us: 0,
            limit: LIMIT,
        };
        let tablets = rig.status().tablets;
        let of = |id: &ServerId| tablets.iter().find(|tablet| tablet.owner == *id);
        let first_of = all
            .iter()
            .map(|id| of(id).expect("it has one").range.first.0);
        let first_of = first_of.collect();
        let tablets = tablets.len();
        rig.fail_over();
        World {
            rig,
            machines: (1..).zip(all).map(machine).collect(),
            tablets,
            live,
            failed: 0,
            orders: 0,
            says_room: reports,
            first_of,
        }
    }

    /// A log's segments are on the next two servers.
    fn shelf(&self, n: usize) -> Shelf {
        let segments = self.live * LOG_PERCENT / 100 / MIB;
        let records: Vec<Record> = (1..=segments)
            .flat_map(|n| [add_open(n, 0), closed(n, MIB as u32)])
            .collect();
        let log = self.machines[n].old;
        let shelf = Shelf::default().with_control(log, segments + 1, &records, false);
        (1..=segments).fold(shelf, |shelf, n| shelf.with(n, 0, MIB as u32, true))
    }

    fn start(&mut self, n: usize) {
        let machine = &self.machines[n];
        let old = machine.now.unwrap_or(machine.old);
        self.start_with(n, Some(old));
    }

    /// Its disk is another one.
    fn start_as_new(&mut self, n: usize) {
        self.start_with(n, None);
    }

    fn start_with(&mut self, n: usize, old: Option<ServerId>) {
        let disk = self.machines[n].disk;
        let nonce = 1_000 + self.rig.now_us + disk;
        let new = enlist(&mut self.rig, disk, nonce, old);
        let now_us = self.rig.now_us;
        let machine = &mut self.machines[n];
        if let Some(before) = machine.now.filter(|_| machine.used > 0) {
            machine.old = before; // its log is the next to be recovered
        }
        (machine.now, machine.used) = (Some(new), 0);
        (machine.reported, machine.report_us) = (None, now_us);
        machine.runs.clear();
    }

    /// Lets time pass among the servers that run.
    fn pass(&mut self, more_us: u64) {
        let until_us = self.rig.now_us + more_us;
        while self.rig.now_us < until_us {
            let off = self.machines.iter().filter(|m| m.now.is_none());
            let off: Vec<ServerId> = off.map(|machine| machine.old).collect();
            self.rig.pass_without(STEP_US, &off, Some(Sign::Dead));
            self.show();
            self.take_orders();
            self.end_runs();
            self.report_rooms();
        }
    }

    fn show(&mut self) {
        for n in 0..self.machines.len() {
            let shelf = self.shelf(n);
            let count = self.machines.len();
            let holders = [1, 2].map(|more| &self.machines[(n + more) % count]);
            let holders = holders.into_iter().filter_map(|holder| holder.now);
            let shelves: BTreeMap<ServerId, Shelf> =
                holders.map(|holder| (holder, shelf.clone())).collect();
            self.rig.show(self.machines[n].old, &shelves);
        }
    }

    fn take_orders(&mut self) {
        let lives: Vec<ServerId> = self.machines.iter().filter_map(|m| m.now).collect();
        for asked in self.rig.orders() {
            let bytes = self.bytes(order(&asked));
            let now_us = self.rig.now_us;
            let machine = self.machines.iter_mut().find(|m| m.now == Some(asked.to));
            let Some(machine) = machine else {
                self.rig.sign(&asked, Sign::Dead); // it is not known to be dead yet
                continue;
            };
            let repeated = machine.runs.iter().any(|run| {
                let (one, other) = (order(&run.asked), order(&asked));
                (one.recovery, one.partition) == (other.recovery, other.partition)
            });
            let mut segments = order(&asked).segments.iter();
            let is_there = segments.all(|of| of.sources.iter().any(|id| lives.contains(id)));
            let is_room = is_there && machine.used + machine.running() + bytes <= machine.limit;
            self.rig.reply(&asked, ServerAnswer::Started);
            if repeated {
                continue;
            }
            self.orders += 1;
            if !is_room {
                self.failed += 1;
                self.end(&asked, no_space());
                continue;
            }
            let done_us = now_us + bytes * SECOND / REPLAY_BYTES;
            machine.runs.push(Run {
                asked,
                bytes,
                done_us,
            });
        }
    }

    fn end_runs(&mut self) {
        for n in 0..self.machines.len() {
            let now_us = self.rig.now_us;
            let is_done = |run: &mut Run| run.done_us <= now_us;
            let done: Vec<Run> = self.machines[n].runs.extract_if(.., is_done).collect();
            for run in done {
                self.machines[n].used += run.bytes;
                let outcome = PartitionOutcome::Replayed {
                    creation: SegmentId(50),
                    bytes: run.bytes,
                    entries: 1,
                };
                self.end(&run.asked, outcome);
            }
        }
    }

    fn end(&mut self, asked: &PendingCall, outcome: PartitionOutcome) {
        let question = ToCoordinator::PartitionDone(PartitionDone {
            recovery: order(asked).recovery,
            partition: order(asked).partition,
            server: asked.to,
            outcome,
        });
        let answer = self.rig.ask(asked.to, question);
        assert!(matches!(answer, Some(CoordinatorAnswer::Accepted { .. })));
    }

    fn report_rooms(&mut self) {
        for n in 0..self.machines.len() {
            let machine = &mut self.machines[n];
            let Some(server) = machine.now.filter(|_| self.says_room) else {
                continue;
            };
            // Side logs count as soon as they have something.
            let used = machine.used + machine.running() / 2;
            if machine.report_us > self.rig.now_us || machine.reported == Some(used) {
                continue;
            }
            machine.reported = Some(used);
            machine.report_us = self.rig.now_us + REPORT_US;
            let room = ServerRoom {
                used_bytes: used,
                limit_bytes: machine.limit,
                replicas: 0,
                segments_sharing_rack: 0,
            };
            self.rig.ask(server, ToCoordinator::Room { server, room });
        }
    }

    /// The live bytes of an order.
    fn bytes(&self, order: &Recover) -> u64 {
        let all = self.live * self.machines.len() as u64;
        let width: u128 = order.tablets.iter().map(|of| whole(of.range)).sum();
        (u128::from(all) * width / whole(KeyRange::ALL)) as u64
    }

    fn is_well(&self) -> bool {
        let status = self.rig.status();
        let mut under_way = status.recoveries.iter();
        under_way.all(|of| of.phase == RecoveryPhase::Done)
            && status.tablets.iter().all(|tablet| tablet.served)
    }

    /// The time until everything is served.
    fn becomes_well(&mut self, patience_us: u64) -> u64 {
        let from_us = self.rig.now_us;
        while !self.is_well() {
            if self.rig.now_us > from_us + patience_us {
                let waits: Vec<_> = self.rig.status().recoveries;
                panic!(
                    "not well, {} of {} failed: {waits:?}",
                    self.failed, self.orders
                );
            }
            self.pass(STEP_US);
        }
        self.rig.now_us - from_us
    }

    fn waits_for(&self, n: usize) -> Option<String> {
        let old = self.machines[n].old;
        let status = self.rig.status();
        let of = status.recoveries.into_iter().find(|of| of.server == old)?;
        of.waits_for
    }
}

fn enlist(rig: &mut Rig, disk: u64, nonce: u64, replaces: Option<ServerId>) -> ServerId {
    let mut enlist = crate::coordinator::rig::enlist(disk, nonce, replaces);
    if let ToCoordinator::Enlist(enlist) = &mut enlist {
        enlist.segment_bytes = MIB as u32;
    }
    let server = match rig.ask(ServerId::NONE, enlist) {
        Some(CoordinatorAnswer::Enlisted(enlisted)) => enlisted.server,
        other => panic!("{other:?}"),
    };
    let min_open = SegmentId(1);
    rig.ask(server, ToCoordinator::ControlHead { server, min_open });
    server
}

fn loads(rig: &mut Rig, server: ServerId, table: TableId, bytes: u64) {
    let tablets = rig.status().tablets.into_iter();
    let own = tablets.filter(|tablet| tablet.owner == server);
    let loads = own.map(|tablet| RangeLoad {
        table,
        range: tablet.range,
        bytes,
        records: bytes / 1_000,
    });
    let loads = loads.collect();
    rig.ask(server, ToCoordinator::Loads { server, loads });
}

fn order(asked: &PendingCall) -> &Recover {
    match &asked.question {
        FromCoordinator::Recover(order) => order,
        other => panic!("{other:?}"),
    }
}

fn no_space() -> PartitionOutcome {
    PartitionOutcome::Failed {
        retry_elsewhere: true,
        reason: "no space".to_owned(),
    }
}

/// A cluster with this fill starts in this order, with these pauses. Returns the time until it is
/// well, the orders that failed for lack of room, and the tablets that came in addition.
fn restart(percent: u64, order: &[usize], pause_us: u64) -> (u64, u64, usize) {
    let mut world = World::new(order.len() as u64, LIMIT * percent / 100, true);
    for n in order {
        world.start(*n);
        world.pass(pause_us);
    }
    let took_us = world.becomes_well(120 * SECOND);
    let tablets = world.rig.status().tablets.len();
    (took_us, world.failed, tablets - world.tablets)
}

/// All orders of some machines.
fn orders(count: usize) -> Vec<Vec<usize>> {
    if count == 0 {
        return vec![Vec::new()];
    }
    let shorter = orders(count - 1);
    let all = shorter.iter().flat_map(|order| {
        (0..count).map(|at| {
            let mut longer = order.clone();
            longer.insert(at, count - 1);
            longer
        })
    });
    all.collect()
}

/// Members more than half full, with logs of overwritten keys: the log's length counted as what its
/// keys take, each recovery took all room for itself, and every master got four partitions of which
/// two fitted. All failed at half of their work, again and again.
#[test]
fn scenario_25_full_members_come_back_without_an_attempt_in_vain() {
    for percent in [50, 75, 85] {
        for order in orders(4) {
            let pause_us = Random::new(percent + order[0] as u64).below(2 * SECOND);
            let (took_us, failed, more) = restart(percent, &order, pause_us);
            assert_eq!((failed, more), (0, 0), "{percent} % {order:?}");
            assert!(took_us < 30 * SECOND, "{percent} % {order:?}: {took_us}");
        }
    }
}

#[test]
fn masters_without_room_that_are_asked_are_found() {
    let failed = || restart(75, &[2, 0, 3, 1], 12 * SECOND).1;
    assert!(with_bug(Bug::RoomIsIgnored, failed) > 0, "not found");
}

/// A master has got several partitions, and has reported: they do not count again.
#[test]
fn what_was_recovered_counts_once() {
    let check = || {
        let mut world = World::new(4, LIMIT / 2, true);
        (0..4).for_each(|n| world.start(n));
        world.becomes_well(20 * SECOND);
        world.pass(20 * SECOND);
        // One dies for good.
        let dead = world.machines[3].now.take().expect("it runs");
        world.machines[3].old = dead;
        world.rig.crash(dead);
        std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            world.becomes_well(5 * SECOND);
            assert_eq!(world.failed, 0);
        }))
        .is_ok()
    };
    assert!(check());
    assert!(!with_bug(Bug::DoneCountsTwice, check), "not found");
}

/// Without reports there is no limit, as for members with an older program. Attempts in vain end,
/// with shorter and shorter partitions.
#[test]
fn without_reports_it_ends_as_well() {
    let mut world = World::new(4, LIMIT / 2, false);
    (0..4).for_each(|n| world.start(n));
    world.becomes_well(300 * SECOND);
}

/// Two of four members: their data fit, those of the others don't. It is said, and nothing is
/// tried; it goes on when the others are back.
#[test]
fn what_does_not_fit_waits_for_room_and_says_so() {
    let mut world = World::new(4, LIMIT * 75 / 100, true);
    [0, 1].into_iter().for_each(|n| world.start(n));
    world.pass(30 * SECOND);
    assert_eq!(world.failed, 0);
    let said: Vec<String> = (0..4).filter_map(|n| world.waits_for(n)).collect();
    let has = |word: &str| said.iter().any(|text| text.contains(word));
    assert!(has("room for") && has("Start server"), "{said:?}");
    [2, 3].into_iter().for_each(|n| world.start(n));
    let took_us = world.becomes_well(60 * SECOND);
    assert!(took_us < 30 * SECOND, "{took_us}");
    assert_eq!(world.failed, 0);
}

impl World {
    /// The machine whose present life owns the tablet that machine `n` had.
    fn owner_of(&self, n: usize) -> Option<usize> {
        let status = self.rig.status();
        let width = u64::MAX / self.machines.len() as u64;
        let at = self.first_of[n] + width / 2;
        let of = |first: u64, last: u64| (first..=last).contains(&at);
        let mut tablets = status.tablets.iter();
        let tablet = tablets.find(|tablet| of(tablet.range.first.0, tablet.range.last.0))?;
        let owner = Some(tablet.owner);
        self.machines
            .iter()
            .position(|machine| machine.now == owner)
    }
}

/// One after the other, longer apart than logs are left to their machines.
#[test]
fn machines_that_come_back_late_are_waited_for_or_replaced() {
    for percent in [30, 50, 75, 85] {
        let (_, failed, more) = restart(percent, &[2, 0, 3, 1], 12 * SECOND);
        assert_eq!(failed, 0, "{percent} %");
        // There is room for a second log beside the own one only in an emptier cluster.
        assert_eq!(more > 0, percent <= 50, "{percent} %: {more}");
    }
}

/// The first machine's log is on the two that come last. Others take their tablets before.
fn who_gets_the_first_log() -> Option<usize> {
    let mut world = World::new(4, LIMIT / 2, true);
    [0, 3].into_iter().for_each(|n| world.start(n));
    world.pass(12 * SECOND);
    [1, 2].into_iter().for_each(|n| world.start(n));
    world.becomes_well(30 * SECOND);
    assert_eq!(world.failed, 0);
    world.owner_of(0)
}

#[test]
fn the_room_of_a_machine_that_is_back_is_kept_for_it() {
    assert_eq!(who_gets_the_first_log(), Some(0));
    let given = with_bug(Bug::HomeRoomGiven, who_gets_the_first_log);
    assert_ne!(given, Some(0), "not found");
}

/// A crash of one: it is spread over all others at once. If its machine comes back before the log
/// is whole, it gets its tablets, unless that is a long log.
#[test]
fn one_crash_is_spread_as_before() {
    let check = |live: u64, is_back: bool| {
        let mut world = World::new(4, live, true);
        for n in 0..4 {
            world.start(n);
        }
        world.becomes_well(30 * SECOND);
        let table = world.rig.status().tablets[0].table;
        let now = world.machines[2].now.expect("it runs");
        loads(&mut world.rig, now, table, live);
        world.pass(20 * SECOND);
        world.machines[2].old = now;
        let orders = world.orders;
        match is_back {
            true => world.start(2),
            false => {
                world.machines[2].now = None;
                world.rig.crash(now);
            }
        }
        world.pass(400_000);
        let given = world.orders - orders;
        world.becomes_well(30 * SECOND);
        (given, world.owner_of(2) == Some(2))
    };
    assert_eq!(check(32 * MIB, false), (3, false));
    assert_eq!(check(32 * MIB, true), (1, true));
}

/// A server that stopped soon after it had recovered another one's data was planned without that:
/// what was given to others did not fit.
#[test]
fn what_a_server_has_recovered_counts_before_its_next_report() {
    let live = 40 * MIB;
    let mut world = World::new(4, live, true);
    (0..4).for_each(|n| world.start(n));
    world.becomes_well(30 * SECOND);
    let counted = |world: &World| {
        let loads = world.rig.status().loads;
        loads.iter().map(|load| load.bytes).sum::<u64>()
    };
    let all = 4 * live;
    assert!(
        (all - MIB..=all).contains(&counted(&world)),
        "{}",
        counted(&world)
    );
    let gone = world.machines[2].now.take().expect("it runs");
    world.machines[2].old = gone;
    world.rig.crash(gone);
    world.becomes_well(30 * SECOND);
    assert!(
        (all - MIB..=all).contains(&counted(&world)),
        "{}",
        counted(&world)
    );
}

/// A machine was given its log while holders of it were still on their way, and could not read it.
/// From then on others came first, and none of them had room.
#[test]
fn a_machine_that_could_not_read_its_log_tries_again_if_nobody_else_has_room() {
    let mut world = World::new(4, LIMIT * 80 / 100, true);
    for n in 0..4 {
        world.start(n);
    }
    let mut runs = Vec::new();
    while runs.is_empty() {
        world.pass(STEP_US);
        runs = std::mem::take(&mut world.machines[1].runs);
    }
    for run in runs {
        let unread = PartitionOutcome::Failed {
            retry_elsewhere: false,
            reason: "no backup has segment 48".to_owned(),
        };
        world.end(&run.asked, unread);
    }
    world.becomes_well(20 * SECOND);
    assert_eq!(world.owner_of(1), Some(1));
}

/// A machine that has less memory than before does not get what does not fit any more.
#[test]
fn a_machine_with_less_memory_gets_no_more_than_fits() {
    let mut world = World::new(4, LIMIT * 40 / 100, true);
    world.machines[1].limit = LIMIT / 8;
    for n in [1, 2, 3, 0] {
        world.start(n);
        world.pass(SECOND);
    }
    world.becomes_well(60 * SECOND);
    assert_eq!(world.failed, 0);
    assert_ne!(world.owner_of(1), Some(1));
    assert!([0, 2, 3].iter().all(|n| world.owner_of(*n) == Some(*n)));
}

/// A machine that crashes again while it takes its tablets, and one without its disk.
#[test]
fn machines_that_are_lost_on_the_way_do_no_harm() {
    let mut world = World::new(4, LIMIT / 2, true);
    for n in [0, 1, 3] {
        world.start(n);
    }
    world.pass(300_000);
    let now = world.machines[0].now;
    world.start(0);
    assert_ne!(world.machines[0].now, now);
    world.machines[2].disk = 77;
    world.start_as_new(2);
    world.becomes_well(60 * SECOND);
    assert_eq!(world.failed, 0);
    assert!([0, 1, 3].iter().all(|n| world.owner_of(*n) == Some(*n)));
}

impl World {
    fn reports_frames(&mut self, n: usize, free: u64) {
        let server = self.machines[n].now.expect("it runs");
        let frames = 10_000;
        let room = ToCoordinator::DiskRoom {
            server,
            free,
            frames,
        };
        assert_eq!(self.rig.ask(server, room), Some(CoordinatorAnswer::Noted));
    }

    /// Most logs that are recovered at once, and the time until all are.
    fn logs_at_once(&mut self) -> (usize, u64) {
        let (mut most, from_us) = (0, self.rig.now_us);
        while !self.is_well() {
            assert!(self.rig.now_us < from_us + 60 * SECOND, "never well");
            self.pass(STEP_US);
            let under_way = self.machines.iter().filter(|m| !m.runs.is_empty());
            most = most.max(under_way.count());
        }
        (most, self.rig.now_us - from_us)
    }
}

/// The same with so many free frames on each server.
fn logs_at_once(free: u64) -> (usize, u64) {
    let mut world = World::new(4, LIMIT / 2, true);
    for n in 0..4 {
        world.start(n);
        world.reports_frames(n, free);
    }
    world.logs_at_once()
}

/// A log was given to its machine when two of three backups were there, whose frames did not
/// suffice: it got stuck 15 s later, and its tablets were cut.
#[test]
fn frames_of_backups_that_are_on_their_way_are_waited_for() {
    let mut world = World::new(4, LIMIT / 2, true);
    for n in 0..3 {
        world.start(n);
        world.reports_frames(n, 100);
    }
    world.pass(3 * SECOND);
    assert_eq!(world.orders, 0);
    world.start(3);
    world.reports_frames(3, 100);
    world.pass(SECOND / 4);
    assert_eq!(world.orders, 1);
    assert_eq!(world.logs_at_once().0, 1);
}

/// A backup that had come, and had not reported yet, counted as one without limit: two logs were
/// begun where frames were left for one, and each waited for the other's.
#[test]
fn frames_of_a_backup_that_has_just_come_are_not_without_limit() {
    let mut world = World::new(4, LIMIT / 2, true);
    (0..4).for_each(|n| world.start(n));
    world.pass(SECOND / 2);
    (0..3).for_each(|n| world.reports_frames(n, 100));
    world.pass(SECOND / 2);
    world.reports_frames(3, 100);
    assert_eq!(world.logs_at_once().0, 1);
    // One that never reports has no limit.
    let mut world = World::new(4, LIMIT / 2, true);
    (0..4).for_each(|n| world.start(n));
    let took_us = world.becomes_well(20 * SECOND);
    assert!(took_us < 8 * SECOND, "{took_us}");
}

/// The copies of four logs had no room beside the old ones, which are free when a log is recovered:
/// all waited for each other's frames.
#[test]
fn logs_wait_for_the_frames_of_others() {
    // A log has 119 MiB, two copies on three servers: 82 frames of each for one log.
    for (free, most) in [(0, 1), (100, 1), (180, 2), (1_000, 4)] {
        let (at_once, took_us) = logs_at_once(free);
        assert_eq!(at_once, most, "{free} frames");
        assert!(took_us < 20 * SECOND, "{free} frames: {took_us}");
    }
    let at_once = with_bug(Bug::FramesIgnored, || logs_at_once(100)).0;
    assert_eq!(at_once, 4, "not found");
}

/// A log was whole, and waited for room. Its holder was started again: the order still named the
/// holder's former life, and the attempt failed.
#[test]
fn a_log_whose_holders_restart_while_it_waits_is_collected_anew() {
    let mut world = World::new(4, LIMIT * 75 / 100, true);
    [0, 1].into_iter().for_each(|n| world.start(n));
    world.pass(12 * SECOND);
    assert!(
        world
            .waits_for(2)
            .is_some_and(|text| text.contains("room for"))
    );
    world.start(0);
    world.pass(3 * SECOND);
    [2, 3].into_iter().for_each(|n| world.start(n));
    world.becomes_well(60 * SECOND);
    assert_eq!(world.failed, 0);
}
