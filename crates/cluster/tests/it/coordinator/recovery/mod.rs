//! Recoveries: the replayed segments, the recovery masters, and the owners afterwards.

mod control;
mod drains;
mod leases;
mod losses;
mod older;
mod unheard;

use crate::coordinator::rig::{PendingCall, Rig, Shelf, add_open, closed};
use duramen_base::ids::{KeyRange, RecoveryId, RouteHash, SegmentId, ServerId, TableId};
use duramen_base::planted::{Bug, with_bug};
use duramen_format::control::Record;
use duramen_wire::native::message::{
    Admin, CoordinatorAnswer, FromCoordinator, PartitionDone, PartitionOutcome, RangeLoad, Recover,
    RecoveryPhase, Refusal, ServerAnswer, ServerRoom, TabletState, ToCoordinator,
};
use std::collections::BTreeMap;

/// Servers of which one is crashed; it owned all of a table.
struct Case {
    rig: Rig,
    table: TableId,
    dead: ServerId,
    /// The others.
    left: Vec<ServerId>,
}

type Shelves = BTreeMap<ServerId, Shelf>;

fn case(servers: u64) -> Case {
    case_of(Rig::new(), servers)
}

fn case_of(mut rig: Rig, servers: u64) -> Case {
    let all = rig.enlist_some(servers);
    let table = rig.create_table("a", 1);
    rig.be_good();
    let dead = owner(&rig, table);
    let left = all.into_iter().filter(|s| *s != dead).collect();
    Case {
        rig,
        table,
        dead,
        left,
    }
}

/// The case after the crash.
fn crashed(servers: u64) -> Case {
    let mut case = case(servers);
    case.rig.crash(case.dead);
    case
}

fn owner(rig: &Rig, table: TableId) -> ServerId {
    let status = rig.status();
    status
        .tablets
        .iter()
        .find(|t| t.table == table)
        .unwrap()
        .owner
}

/// A log of one closed and one open segment, whole on every server that is left.
fn whole(case: &Case) -> Shelves {
    let shelf = Shelf::default()
        .with_control(
            case.dead,
            10,
            &[add_open(1, 0), closed(1, 900), add_open(2, 0)],
            false,
        )
        .with(1, 0, 900, true)
        .with(2, 0, 300, false);
    case.left.iter().map(|s| (*s, shelf.clone())).collect()
}

fn order(asked: &PendingCall) -> &Recover {
    match &asked.question {
        FromCoordinator::Recover(order) => order,
        other => panic!("{other:?}"),
    }
}

fn report(
    recovery: RecoveryId,
    partition: u32,
    server: ServerId,
    outcome: PartitionOutcome,
) -> ToCoordinator {
    ToCoordinator::PartitionDone(PartitionDone {
        recovery,
        partition,
        server,
        outcome,
    })
}

const REPLAYED: PartitionOutcome = PartitionOutcome::Replayed {
    creation: SegmentId(50),
    bytes: 1200,
    entries: 12,
};

impl Case {
    fn show(&mut self, shelves: &Shelves) {
        self.rig.show(self.dead, shelves);
    }

    /// The only waiting order, started.
    fn start_one(&mut self) -> PendingCall {
        let [asked] = &self.rig.orders()[..] else {
            panic!("not one order");
        };
        self.rig.reply(asked, ServerAnswer::Started);
        asked.clone()
    }

    fn report(&mut self, asked: &PendingCall, outcome: PartitionOutcome) -> CoordinatorAnswer {
        let of = order(asked);
        let question = report(of.recovery, of.partition, asked.to, outcome);
        self.rig.ask(asked.to, question).expect("an answer at once")
    }

    fn waits_for(&self) -> Option<String> {
        let status = self.rig.status();
        let of = status.recoveries.iter().find(|r| r.server == self.dead)?;
        assert_ne!(of.phase, RecoveryPhase::Done);
        of.waits_for.clone()
    }

    /// Returns the orders if the recovery completes from the replicas of these backups, with
    /// masters that follow their orders.
    fn recovers(&mut self, shelves: &Shelves) -> Option<Vec<Recover>> {
        self.show(shelves);
        self.rig.live(200_000);
        self.show(shelves);
        let mut orders = Vec::new();
        loop {
            let asked = self.rig.orders();
            if asked.is_empty() {
                break;
            }
            for asked in asked {
                self.rig.reply(&asked, ServerAnswer::Started);
                orders.push(order(&asked).clone());
                let accepted = self.report(&asked, REPLAYED);
                assert!(matches!(accepted, CoordinatorAnswer::Accepted { .. }));
            }
        }
        let status = self.rig.status();
        let is_over = status.servers.iter().all(|s| s.server != self.dead);
        (is_over && !orders.is_empty()).then_some(orders)
    }
}

#[test]
fn a_crashed_servers_tablets_get_a_new_owner() {
    let mut case = crashed(4);
    let shelves = whole(&case);
    case.show(&shelves);
    let asked = case.start_one();
    let of = order(&asked).clone();
    assert_eq!((of.log, of.safe_version), (case.dead, 77));
    let ids: Vec<u64> = of.segments.iter().map(|s| s.segment.0).collect();
    assert_eq!(ids, [1, 2]); // the control segment is not replayed
    assert_eq!(of.segments[0].sources.len(), 3);
    assert_eq!(of.tablets[0].range, KeyRange::ALL);
    // The tablet belongs to the dead server until it is replayed.
    assert_eq!(owner(&case.rig, case.table), case.dead);
    let accepted = case.report(&asked, REPLAYED);
    let CoordinatorAnswer::Accepted { since } = accepted else {
        panic!("{accepted:?}");
    };
    assert_eq!(owner(&case.rig, case.table), asked.to);
    let told = case.rig.be_good();
    let (_, tablets) = told
        .iter()
        .rfind(|(to, _)| *to == asked.to)
        .expect("it is told");
    assert!(tablets.version >= since);
    let creation = SegmentId(50);
    assert_eq!(tablets.tablets[0].state, TabletState::Normal { creation });
    let status = case.rig.status();
    assert!(status.servers.iter().all(|s| s.server != case.dead));
    assert_eq!(status.recoveries[0].phase, RecoveryPhase::Done);
    assert_eq!(
        (status.recoveries[0].bytes, status.recoveries[0].entries),
        (1200, 12)
    );
}

#[test]
fn it_waits_for_every_listed_segment() {
    let check = || {
        let mut case = crashed(3);
        let mut shelves = whole(&case);
        for shelf in shelves.values_mut() {
            shelf.segments.retain(|s| s.segment != SegmentId(1));
        }
        let orders = case.recovers(&shelves);
        (case, orders)
    };
    let (mut case, orders) = check();
    assert_eq!(orders, None);
    assert!(case.waits_for().unwrap().contains("segment 1"));
    // A backup with it comes back.
    let back = case.rig.enlist(9, None);
    case.left.push(back);
    let shelves = whole(&case);
    let orders = case.recovers(&shelves).expect("it is whole now");
    assert_eq!(orders[0].segments[0].sources, [back]);
    let (_, orders) = with_bug(Bug::RecoversInParts, check);
    assert!(orders.is_some(), "not found");
}

/// A server owns tablets as soon as a list says so. This one crashed before its first control
/// segment was noted, and no remaining backup has any replica of its log. It had acknowledged
/// nothing, but its tablets waited for that log for ever.
#[test]
fn what_no_log_was_noted_of_is_handed_over_empty() {
    let mut rig = Rig::new();
    let dead = rig.enlist_without_log(1, 1, None);
    let table = rig.create_table("a", 1);
    let left: Vec<ServerId> = (2..4).map(|n| rig.enlist(n, None)).collect();
    rig.be_good();
    assert_eq!(owner(&rig, table), dead);
    rig.crash(dead);
    let mut case = Case {
        rig,
        table,
        dead,
        left,
    };
    let nothing = case.left.iter().map(|s| (*s, Shelf::default()));
    let nothing = nothing.collect();
    let orders = case.recovers(&nothing).expect("nothing is waited for");
    assert!(orders.iter().all(|order| order.segments.is_empty()));
    assert!(case.left.contains(&owner(&case.rig, table)));
    // It cannot note one now either: it would acknowledge writes that no recovery would search for.
    let min_open = SegmentId(1);
    let head = ToCoordinator::ControlHead {
        server: dead,
        min_open,
    };
    let answer = case.rig.ask(dead, head);
    let refused = matches!(answer, Some(CoordinatorAnswer::Refused(Refusal::NotUp(_))));
    assert!(refused, "{answer:?}");
}

#[test]
fn replicas_count_by_their_epoch_and_certificate() {
    let check = |listed: &[Record], (epoch, length, is_closed): (u64, u32, bool)| {
        let mut case = crashed(2);
        let shelf = Shelf::default()
            .with_control(case.dead, 10, listed, false)
            .with(1, epoch, length, is_closed);
        let shelves = case.left.iter().map(|s| (*s, shelf.clone())).collect();
        case.recovers(&shelves).is_some()
    };
    let reopened = [
        add_open(1, 0),
        Record::SegmentEpoch {
            segment: SegmentId(1),
            epoch: 2,
        },
    ];
    assert!(!check(&reopened, (1, 500, false)));
    assert!(check(&reopened, (2, 500, false)));
    assert!(check(&reopened, (3, 500, false)));
    assert!(
        check(&reopened, (1, 500, true)),
        "closed is newer than any epoch"
    );
    assert!(
        with_bug(Bug::OldEpochs, || check(&reopened, (1, 500, false))),
        "not found"
    );
    let ended = [add_open(1, 0), closed(1, 500)];
    assert!(check(&ended, (0, 500, true)));
    assert!(!check(&ended, (0, 400, true)));
    assert!(!check(&ended, (0, 500, false)));
    assert!(
        with_bug(Bug::AnyCertificate, || check(&ended, (0, 400, false))),
        "not found"
    );
}

#[test]
fn the_longest_image_of_an_open_segment_from_who_has_it_primary_first() {
    let mut case = crashed(4);
    let mut shelves = whole(&case);
    let short = shelves.get_mut(&case.left[0]).unwrap();
    *short = Shelf::default().with(2, 0, 200, false);
    let primary = shelves.get_mut(&case.left[2]).unwrap();
    primary.segments.iter_mut().for_each(|s| s.primary = true);
    let orders = case.recovers(&shelves).expect("whole");
    let open = &orders[0].segments[1];
    assert_eq!(open.certificate.length, 300);
    assert_eq!(open.sources, [case.left[2], case.left[1]]);
}

/// Trap 6.
#[test]
fn the_head_of_a_dead_server_is_not_recorded() {
    let check = || {
        let mut case = crashed(3);
        let head = ToCoordinator::ControlHead {
            server: case.dead,
            min_open: SegmentId(11),
        };
        let answer = case.rig.ask(case.dead, head);
        case.rig.fail_over(); // begins anew, with the stored state
        let shelves = whole(&case);
        (case.dead, answer, case.recovers(&shelves).is_some())
    };
    let (dead, answer, recovered) = check();
    assert_eq!(
        answer,
        Some(CoordinatorAnswer::Refused(Refusal::NotUp(dead)))
    );
    assert!(recovered);
    assert!(!with_bug(Bug::HeadOfTheDead, check).2, "not found");
}

/// Trap 7: the recovery master crashes; its report from before it is told does not count.
#[test]
fn a_recovery_master_that_is_not_up_gets_nothing() {
    let check = || {
        let mut case = crashed(4);
        let shelves = whole(&case);
        case.show(&shelves);
        let first = case.start_one();
        case.rig.crash(first.to);
        let answer = case.report(&first, REPLAYED);
        let taken = owner(&case.rig, case.table) == first.to;
        // Another server continues.
        let again = (!taken).then(|| case.start_one());
        if let Some(again) = &again {
            assert_ne!(again.to, first.to);
            assert_eq!(order(again).recovery, order(&first).recovery);
            assert!(matches!(
                case.report(again, REPLAYED),
                CoordinatorAnswer::Accepted { .. }
            ));
            assert_eq!(owner(&case.rig, case.table), again.to);
        }
        (answer, taken)
    };
    assert_eq!(check(), (CoordinatorAnswer::Stale, false));
    assert!(with_bug(Bug::OwnerNotUp, check).1, "not found");
}

/// Trap 7: two attempts of one recovery, the first one's master late.
#[test]
fn an_earlier_attempt_counts_for_nothing() {
    let check = || {
        let mut case = crashed(3);
        let shelves = whole(&case);
        case.show(&shelves);
        let first = case.start_one();
        case.rig.fail_over();
        case.show(&shelves);
        let second = case.start_one();
        assert_ne!(order(&second).recovery, order(&first).recovery);
        let late = case.report(&first, REPLAYED);
        (late, owner(&case.rig, case.table) == case.dead)
    };
    assert_eq!(check(), (CoordinatorAnswer::Stale, true));
    let (late, _) = with_bug(Bug::OldAttemptCounts, check);
    assert_ne!(late, CoordinatorAnswer::Stale, "not found");
}

#[test]
fn a_new_leader_knows_what_was_accepted() {
    let check = || {
        let mut case = crashed(3);
        let shelves = whole(&case);
        case.show(&shelves);
        let asked = case.start_one();
        case.report(&asked, REPLAYED);
        case.rig.fail_over(); // and the answer was lost
        (
            case.report(&asked, REPLAYED),
            owner(&case.rig, case.table) == asked.to,
        )
    };
    let (answer, owns) = check();
    assert!(matches!(answer, CoordinatorAnswer::Accepted { .. }) && owns);
    // The owner would drop its tablet.
    let forgotten = with_bug(Bug::CompletionForgotten, check);
    assert_eq!(forgotten, (CoordinatorAnswer::Stale, true), "not found");
}

#[test]
fn a_dead_server_stays_until_nothing_of_it_is_needed() {
    let check = || {
        let mut case = crashed(3);
        case.rig.be_good();
        match case.rig.ask(ServerId::NONE, ToCoordinator::Servers) {
            Some(CoordinatorAnswer::Servers(list)) => {
                list.servers.iter().any(|s| s.server == case.dead)
            }
            other => panic!("{other:?}"),
        }
    };
    assert!(check());
    assert!(!with_bug(Bug::RemovedTooEarly, check), "not found");
}

#[test]
fn no_space_here_is_another_masters_work() {
    let mut case = crashed(4);
    let shelves = whole(&case);
    case.show(&shelves);
    let full = |retry_elsewhere| PartitionOutcome::Failed {
        retry_elsewhere,
        reason: "no space".to_owned(),
    };
    let mut tried = Vec::new();
    for _ in 0..3 {
        let asked = case.start_one();
        tried.push(asked.to);
        assert!(matches!(
            case.report(&asked, full(true)),
            CoordinatorAnswer::Accepted { .. }
        ));
    }
    tried.sort();
    tried.dedup();
    assert_eq!(tried.len(), 3, "each was tried once");
    assert_eq!(case.rig.orders().len(), 0);
    assert!(case.waits_for().unwrap().contains("no space"));
    // Later it is tried again, under another id.
    case.show(&shelves);
    case.rig.live(2_100_000);
    assert!(case.recovers(&shelves).is_some());
}

/// Full members and a death: each attempt took memory that deletes needed for a moment, and the
/// next one began 2 s later, for ever. While there is no room, somebody is asked once in a minute,
/// since reports are only advice; when there is, at once.
#[test]
fn what_nobody_has_space_for_is_tried_when_there_is_room() {
    let mut case = case(4);
    let say = |case: &mut Case, free: u64| {
        for server in case.left.clone() {
            let room = ServerRoom {
                used_bytes: 1 << 20,
                limit_bytes: (1 << 20) + free,
                replicas: 0,
                segments_sharing_rack: 0,
            };
            case.rig.ask(server, ToCoordinator::Room { server, room });
        }
    };
    let loads = vec![RangeLoad {
        table: case.table,
        range: KeyRange::ALL,
        bytes: 1200,
        records: 12,
    }];
    let server = case.dead;
    case.rig.ask(server, ToCoordinator::Loads { server, loads });
    say(&mut case, 0);
    case.rig.crash(case.dead);
    let shelves = whole(&case);
    let mut tries = BTreeMap::new();
    let mut pass = |case: &mut Case, steps: u64| {
        let before = tries.len();
        for _ in 0..steps {
            case.show(&shelves);
            for asked in case.rig.orders() {
                tries.insert(order(&asked).recovery, ());
                case.rig.reply(&asked, ServerAnswer::Started);
                let full = PartitionOutcome::Failed {
                    retry_elsewhere: true,
                    reason: "no space".to_owned(),
                };
                case.report(&asked, full);
            }
            case.rig.live(50_000);
        }
        tries.len() - before
    };
    assert_eq!(pass(&mut case, 50 * 20), 0, "attempts in 50 s");
    let said = case.waits_for().expect("it waits");
    assert!(said.contains("room for 1 MiB: the 3 servers"), "{said}");
    let later = pass(&mut case, 150 * 20);
    assert!((1..=3).contains(&later), "{later} attempts in 150 s");
    say(&mut case, 1 << 30);
    let soon = pass(&mut case, 2);
    assert_eq!(soon, 1, "attempts when there is room");
}

/// Masters that take partitions as far as they have room, one attempt after the other; returns the
/// number of attempts.
fn attempts_with_room(rooms: [u64; 4], do_they_say: bool, data: KeyRange) -> usize {
    let mut config = duramen_harness::config();
    let piece = config.settings.partition_bytes;
    let total = 9 * piece;
    config.settings.partition_bytes = 128 * piece;
    let mut case = case_of(Rig::of(config), 5);
    let mut left: BTreeMap<ServerId, u64> = case.left.iter().copied().zip(rooms).collect();
    for (server, room) in left.clone().into_iter().filter(|_| do_they_say) {
        let room = ServerRoom {
            used_bytes: 77,
            limit_bytes: room + 77,
            replicas: 0,
            segments_sharing_rack: 0,
        };
        case.rig.ask(server, ToCoordinator::Room { server, room });
    }
    case.rig.crash(case.dead);
    let shelves = long(&case, 9);
    let size = |of: &Recover| {
        let ranges = of.tablets.iter();
        let parts = ranges.filter_map(|tablet| tablet.range.intersection(&data));
        let width = |range: KeyRange| u128::from(range.last.0 - range.first.0) + 1;
        let bytes = parts.map(|part| u128::from(total) * width(part) / width(data));
        bytes.sum::<u128>() as u64
    };
    for attempt in 1..=8 {
        case.show(&shelves);
        case.rig.live(200_000);
        case.show(&shelves);
        let mut orders = case.rig.orders();
        while let Some(asked) = orders.pop() {
            case.rig.reply(&asked, ServerAnswer::Started);
            let room = left.get_mut(&asked.to).expect("it is alive");
            let outcome = match room.checked_sub(size(order(&asked))) {
                Some(less) => {
                    *room = less;
                    REPLAYED
                }
                None => PartitionOutcome::Failed {
                    retry_elsewhere: true,
                    reason: "no space".to_owned(),
                },
            };
            case.report(&asked, outcome);
            orders.extend(case.rig.orders());
        }
        let tablets = case.rig.status().tablets;
        if tablets.iter().all(|tablet| tablet.owner != case.dead) {
            return attempt;
        }
        case.rig.live(2_100_000);
    }
    panic!("it is never recovered: {:?}", case.waits_for());
}

/// Members with little memory, somewhat more than half of it in use: a dead one's data fit into no
/// single member, but twice into all together. The data were one partition, since the maximum was
/// longer than all of them, and each attempt was cut like the one before.
#[test]
fn what_fits_into_nobody_is_cut_so_that_it_fits() {
    const MIB: u64 = 1 << 20;
    let even = [5 * MIB; 4];
    assert_eq!(attempts_with_room(even, true, KeyRange::ALL), 1);
    assert_eq!(attempts_with_room(even, false, KeyRange::ALL), 1);
    // An even share would fit into the last one alone, and only twice: those with room get shorter
    // ones.
    let uneven = [MIB * 3 / 2, MIB * 3 / 2, 2 * MIB, 6 * MIB];
    assert_eq!(attempts_with_room(uneven, true, KeyRange::ALL), 1);
    // All data are in a small part of the hash space, and no report says so.
    let crowded = KeyRange::new(RouteHash(u64::MAX << 58), RouteHash::MAX);
    let attempts = attempts_with_room(even, true, crowded);
    assert!((2..=6).contains(&attempts), "{attempts}");
}

#[test]
fn bad_replicas_mean_another_attempt_with_other_answers() {
    let mut case = crashed(3);
    let shelves = whole(&case);
    case.show(&shelves);
    let asked = case.start_one();
    let bad = PartitionOutcome::Failed {
        retry_elsewhere: false,
        reason: "segment 1 is damaged everywhere".to_owned(),
    };
    case.report(&asked, bad);
    assert_eq!(case.rig.orders().len(), 0);
    let first = order(&asked).recovery;
    case.show(&shelves);
    case.rig.live(2_100_000);
    let again = case.start_one();
    assert_ne!(order(&again).recovery, first);
}

/// A master that other servers could not reach failed every 18 s, and got its share again each
/// time: it was never served.
#[test]
fn who_could_not_read_the_log_gets_nothing_in_the_next_attempt() {
    let mut case = crashed(3);
    let shelves = whole(&case);
    let bad = || PartitionOutcome::Failed {
        retry_elsewhere: false,
        reason: "nobody has segment 1".to_owned(),
    };
    case.show(&shelves);
    let mut asked = case.start_one();
    let mut before = Vec::new();
    for _ in 0..4 {
        before.push(asked.to);
        case.report(&asked, bad());
        case.show(&shelves);
        case.rig.live(2_100_000);
        asked = case.start_one();
        assert_ne!(Some(&asked.to), before.last());
    }
    // No server is left out for ever.
    before.sort();
    before.dedup();
    assert_eq!(before.len(), 2);
}

#[test]
fn a_busy_master_is_not_waited_for() {
    let mut case = crashed(3);
    let shelves = whole(&case);
    case.show(&shelves);
    let [asked] = &case.rig.orders()[..] else {
        panic!();
    };
    case.rig.reply(asked, ServerAnswer::Busy);
    let again = case.start_one();
    assert_ne!(again.to, asked.to);
}

/// A log of `times` times the size of one partition.
fn long(case: &Case, times: u64) -> Shelves {
    let bytes = duramen_harness::settings().partition_bytes as u32;
    let segments: Vec<Record> = (1..=times)
        .flat_map(|n| [add_open(n, 0), closed(n, bytes)])
        .collect();
    let mut shelf = Shelf::default().with_control(case.dead, 10, &segments, false);
    for n in 1..=times {
        shelf = shelf.with(n, 0, bytes, true);
    }
    case.left.iter().map(|s| (*s, shelf.clone())).collect()
}

/// Scenario 24: one master for many partitions.
#[test]
fn what_can_be_done_in_one_round_is_and_masters_share_it() {
    let mut case = crashed(5);
    let shelves = long(&case, 9);
    case.show(&shelves);
    let asked = case.rig.orders();
    let mut given: BTreeMap<ServerId, usize> = BTreeMap::new();
    for asked in &asked {
        *given.entry(asked.to).or_default() += 1;
    }
    let mut counts: Vec<usize> = given.into_values().collect();
    counts.sort_unstable();
    assert!(asked.len() >= 9 && counts.len() == 4, "{counts:?}");
    assert!(counts[3] - counts[0] <= 1, "{counts:?}");
}

/// Each partition takes a segment on several disks, even with little data: many at once could fill
/// the disks with nothing.
#[test]
fn short_partitions_are_recovered_one_at_a_time() {
    let mut config = duramen_harness::config();
    config.settings.partition_bytes = u64::from(config.settings.segment_bytes);
    let mut case = case_of(Rig::of(config), 5);
    case.rig.crash(case.dead);
    let shelves = long(&case, 2);
    case.show(&shelves);
    let mut asked: Vec<ServerId> = case.rig.orders().iter().map(|of| of.to).collect();
    let orders = asked.len();
    asked.sort_unstable();
    asked.dedup();
    assert_eq!((asked.len(), orders), (4, 4));
}

#[test]
fn fewer_masters_than_partitions_take_several_rounds() {
    let mut case = case(2);
    case.rig.crash(case.dead);
    let shelves = long(&case, 7);
    let orders = case.recovers(&shelves).expect("round by round");
    assert!(orders.len() >= 7, "{}", orders.len());
    let mut ranges: Vec<KeyRange> = orders
        .iter()
        .flat_map(|o| o.tablets.iter().map(|t| t.range))
        .collect();
    ranges.sort();
    assert_eq!(ranges[0].first, RouteHash::MIN);
    assert_eq!(ranges[ranges.len() - 1].last, RouteHash::MAX);
    assert!(
        ranges
            .windows(2)
            .all(|p| p[0].last.next() == Some(p[1].first))
    );
}

#[test]
fn a_table_dropped_meanwhile_ends_its_recovery() {
    let mut case = crashed(3);
    let shelves = whole(&case);
    case.show(&shelves);
    let asked = case.start_one();
    let name = "a".to_owned();
    case.rig.admin(Admin::DropTable { name });
    let aborts = case
        .rig
        .asked_where(|a| matches!(a.question, FromCoordinator::AbortRecovery { .. }));
    assert_eq!(aborts[0].to, asked.to);
    assert_eq!(case.report(&asked, REPLAYED), CoordinatorAnswer::Stale);
    let status = case.rig.status();
    assert!(status.servers.iter().all(|s| s.server != case.dead));
}

#[test]
fn a_lost_order_is_sent_again_to_the_same_master() {
    let mut case = crashed(4);
    let shelves = whole(&case);
    case.show(&shelves);
    let [lost] = &case.rig.orders()[..] else {
        panic!();
    };
    case.rig.live(2_000_000);
    let again = case.rig.orders();
    assert!(!again.is_empty());
    for asked in again {
        assert_eq!((asked.to, order(&asked)), (lost.to, order(lost)));
    }
}

/// Scenario 25: all servers are down at once, and come back one by one.
#[test]
fn a_cold_start_recovers_as_backups_come_back() {
    let mut case = case(3);
    case.rig.fail_over();
    let shelves = whole(&case);
    let mut before = case.left.clone();
    before.push(case.dead);
    let mut back = BTreeMap::new();
    for (n, old) in before.iter().enumerate() {
        let disk = u64::from(old.slot) + 1; // as given by `enlist_some`
        let nonce = 100 + n as u64;
        let new = case.rig.enlist_as(disk, nonce, Some(*old));
        if let Some(shelf) = shelves.get(old) {
            back.insert(new, shelf.clone());
        }
    }
    assert!(case.recovers(&back).is_some());
    let owner = owner(&case.rig, case.table);
    assert!(owner.generation > 1, "{owner}");
}
