//! Placement of replicas: racks, refinement, copysets; and the effect of copysets, by Monte-Carlo.
//! Scenarios by their numbers in docs/traps.md, "Scenarios".

use duramen_base::ids::SegmentId;
use duramen_base::random::Random;
use duramen_cluster::placement::{Layout, Member, Placement, copysets};
use duramen_cluster::replication::BackupId;
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};

fn member(slot: u64, rack: Option<u64>) -> Member {
    Member {
        backup: BackupId(1 << 32 | slot),
        rack: rack.map(|rack| format!("rack {rack}")),
        read_us: 100,
        ..Member::from(BackupId(0))
    }
}

/// The layouts that the tests of all rules use.
const LAYOUTS: [Layout; 4] = [
    Layout::Scatter,
    Layout::Copysets { groups: 1 },
    Layout::Copysets { groups: 2 },
    Layout::Zones { zones: 3 },
];

fn place(placement: &mut Placement, replicas: usize) -> Vec<BackupId> {
    place_at(placement, SegmentId::NONE, replicas, &BTreeSet::new())
}

fn place_at(
    placement: &mut Placement,
    segment: SegmentId,
    replicas: usize,
    refusing: &BTreeSet<BackupId>,
) -> Vec<BackupId> {
    let mut holding = Vec::new();
    while holding.len() < replicas
        && let Some(chosen) = placement.choose(segment, &holding, refusing)
    {
        holding.push(chosen);
    }
    holding
}

#[test]
fn replicas_lie_in_different_racks_and_nobody_who_refuses_is_asked() {
    let mut placement = Placement::new(Layout::Scatter, 3, 1);
    for slot in 0..9 {
        placement.add(member(slot, Some(slot % 3)));
    }
    for _ in 0..200 {
        let holding = place(&mut placement, 3);
        let racks: BTreeSet<u32> = holding.iter().map(|backup| backup.slot() % 3).collect();
        assert_eq!((holding.len(), racks.len()), (3, 3));
    }
    // There is no fourth rack; no rack has three before each has two.
    for _ in 0..200 {
        let holding = place(&mut placement, 6);
        let in_rack = |rack| holding.iter().filter(|b| b.slot() % 3 == rack).count();
        assert_eq!([0, 1, 2].map(in_rack), [2, 2, 2], "{holding:?}");
    }
    let refusing: BTreeSet<BackupId> = (0..8).map(|slot| member(slot, None).backup).collect();
    let last = placement.choose(SegmentId::NONE, &[], &refusing);
    assert_eq!(last, Some(member(8, None).backup));
    placement.remove(member(8, None).backup);
    assert_eq!(placement.choose(SegmentId::NONE, &[], &refusing), None);
}

/// Four servers in the racks a, a, b and c, two replicas. The server in b died, and the one in c
/// placed no segment any more, as both others are in one rack. All its writes waited for ever,
/// although the metric showed enough backups.
#[test]
fn a_master_that_is_left_with_one_other_rack_goes_on_and_spreads_again() {
    for layout in [
        Layout::Scatter,
        Layout::copysets(2, 2),
        Layout::Zones { zones: 3 },
    ] {
        let mut placement = Placement::new(layout, 2, 1);
        placement.set_master(member(3, Some(2)));
        for (slot, rack) in [(0, 0), (1, 0), (2, 1)] {
            placement.add(member(slot, Some(rack)));
        }
        let before = place(&mut placement, 2);
        assert_eq!(placement.sharing(before.iter().copied()), 0);
        placement.remove(member(2, None).backup);
        assert!(placement.has_enough());
        let apart = place(&mut placement, 2);
        let slots: BTreeSet<u32> = apart.iter().map(|backup| backup.slot()).collect();
        assert_eq!(slots, BTreeSet::from([0, 1]));
        assert_eq!(placement.sharing(apart.iter().copied()), 1);
        assert!(!placement.would_spread(&apart));
        // Another server in b joins: from now on the copies are in different racks again.
        placement.add(member(4, Some(1)));
        assert!(placement.would_spread(&apart));
        for _ in 0..50 {
            let holding = place(&mut placement, 2);
            assert_eq!(placement.sharing(holding.iter().copied()), 0, "{holding:?}");
        }
        placement.remove(member(4, None).backup);
        placement.remove(member(1, None).backup);
        assert!(!placement.has_enough());
    }
}

/// speed::B3: a disk that stood still when it was measured, or one whose reads came from a cache.
#[test]
fn a_wrong_speed_neither_excludes_a_disk_nor_gives_it_everything() {
    let first_replicas = |read_us: [u32; 4]| -> [usize; 4] {
        let mut placement = Placement::new(Layout::Scatter, 1, 5);
        for (slot, read_us) in (0..).zip(read_us) {
            placement.add(Member {
                read_us,
                ..member(slot, None)
            });
        }
        let chosen: Vec<u32> = (0..980)
            .map(|_| place(&mut placement, 1)[0].slot())
            .collect();
        [0, 1, 2, 3].map(|slot| chosen.iter().filter(|at| **at == slot).count())
    };
    let slow = first_replicas([1_000, 1_000, 1_000, u32::MAX]);
    assert!((18..=21).contains(&slow[3]), "{slow:?}"); // a share of 1 to 3 · 16
    let fast = first_replicas([1_000, 1_000, 1_000, 1]);
    assert!(fast[..3].iter().all(|count| *count >= 45), "{fast:?}");
    // By speed: 4 to 2 to 1, and an unknown one as the usual one.
    let mixed = first_replicas([1_000, 2_000, 4_000, 0]);
    let expected = [436, 218, 109, 218];
    let is_near = |(count, wanted): (&usize, usize)| count.abs_diff(wanted) <= wanted / 10 + 2;
    assert!(mixed.iter().zip(expected).all(is_near), "{mixed:?}");
}

/// A model of the rules: the allowed placements of a new segment.
struct Model<'a> {
    replicas: usize,
    own: Option<u64>,
    /// Slots and racks of the other living servers.
    others: &'a [(u64, Option<u64>)],
}

impl Model<'_> {
    /// placement::L6: the most racks, where a server without a rack counts as a rack of its own.
    fn racks_most(&self) -> usize {
        let named: BTreeSet<u64> = self.others.iter().filter_map(|(_, rack)| *rack).collect();
        let alone = self.others.iter().filter(|(_, rack)| rack.is_none());
        (named.len() + alone.count()).min(self.replicas)
    }

    fn judge(&self, placement: &mut Placement, case: &str) {
        let enough = self.others.len() >= self.replicas;
        assert_eq!(placement.has_enough(), enough, "{case}");
        let holding = place(placement, self.replicas);
        assert_eq!(
            holding.len() == self.replicas,
            enough,
            "{case}: {holding:?}"
        );
        assert!(enough || holding.len() == self.others.len(), "{case}");
        let servers: BTreeSet<u32> = holding.iter().map(|backup| backup.slot()).collect();
        assert_eq!(servers.len(), holding.len(), "L1: {case}: {holding:?}");
        let rack_of = |slot: &u32| {
            let all = self.others.iter();
            let mut all = all.filter(|(other, _)| *other == u64::from(*slot));
            all.next()
                .unwrap_or_else(|| panic!("L1: {case}: {slot} is no other that lives"))
                .1
        };
        let racks: Vec<Option<u64>> = servers.iter().map(rack_of).collect();
        let named: Vec<u64> = racks.iter().filter_map(|rack| *rack).collect();
        let distinct: BTreeSet<u64> = named.iter().copied().collect();
        let different = distinct.len() + racks.len() - named.len();
        assert_eq!(different, self.racks_most(), "L6: {case}: {holding:?}");
        let sharing = placement.sharing(holding.iter().copied());
        assert_eq!(sharing, holding.len() - different, "{case}: {holding:?}");
        // placement::L4: a replica is in the master's rack only if no other rack can take it.
        let elsewhere = self
            .others
            .iter()
            .filter(|(_, rack)| rack.is_none() || *rack != self.own);
        let elsewhere: Vec<Option<u64>> = elsewhere.map(|(_, rack)| *rack).collect();
        let alone = elsewhere.iter().filter(|rack| rack.is_none()).count();
        let named: BTreeSet<u64> = elsewhere.iter().filter_map(|rack| *rack).collect();
        let is_in_own = self.own.is_some() && racks.contains(&self.own);
        let must_be = alone + named.len() < self.replicas;
        assert!(!is_in_own || must_be, "L4: {case}: {holding:?}");
    }
}

/// Masters of all clusters of up to six members in up to four racks or in none, with every subset
/// of the others dead. If R others live, and only then, a segment is placed, in as many racks as
/// possible, and the metric shows enough backups.
#[test]
fn every_small_cluster_places_where_enough_others_live() {
    let mut cases = 0;
    for count in 1..=6u32 {
        // One digit per server: its rack; the digit 4 is no rack.
        for racks in 0..5u64.pow(count) {
            let rack_of = |slot: u64| Some(racks / 5u64.pow(slot as u32) % 5).filter(|r| *r < 4);
            // Names of racks do not matter: the first rack is 0, the next new rack is 1, and so on.
            let mut names = 0;
            let is_first_of_its_kind = (0..u64::from(count)).filter_map(rack_of).all(|rack| {
                let is_known = rack <= names;
                names = names.max(rack + 1);
                is_known
            });
            if !is_first_of_its_kind {
                continue;
            }
            for dead in 0..1u32 << (count - 1) {
                let others: Vec<(u64, Option<u64>)> = (1..u64::from(count))
                    .filter(|slot| dead >> (slot - 1) & 1 == 0)
                    .map(|slot| (slot, rack_of(slot)))
                    .collect();
                for (replicas, layout) in (1..=3).flat_map(|r| LAYOUTS.map(|layout| (r, layout))) {
                    let mut placement = Placement::new(layout, replicas, racks);
                    placement.set_master(member(0, rack_of(0)));
                    for slot in 1..u64::from(count) {
                        placement.add(member(slot, rack_of(slot)));
                    }
                    for slot in (1..u64::from(count)).filter(|slot| dead >> (slot - 1) & 1 == 1) {
                        placement.remove(member(slot, None).backup);
                    }
                    let model = Model {
                        replicas,
                        own: rack_of(0),
                        others: &others,
                    };
                    let case = format!(
                        "{replicas} replicas, {layout:?}, master in {:?}, others {others:?}",
                        rack_of(0)
                    );
                    model.judge(&mut placement, &case);
                    cases += 1;
                }
            }
        }
    }
    assert!(cases > 100_000, "{cases}");
}

proptest! {
    /// The master's rack had replicas of its log: its memory and a copy were lost with one rack.
    /// With only one other rack no segment was placed.
    #[test]
    fn replicas_keep_away_from_each_other_and_from_their_master(
        racks in proptest::collection::vec(proptest::option::weighted(0.8, 0u64..5), 1..14),
        master_rack in proptest::option::weighted(0.8, 0u64..5),
        replicas in 1usize..5,
        layout in proptest::sample::select(LAYOUTS.to_vec()),
        gone in proptest::collection::btree_set(0usize..14, 0..4),
        seed: u64,
    ) {
        let mut placement = Placement::new(layout, replicas, seed);
        let machine = |slot: u64, rack| Member { disk: slot + 1, ..member(slot, rack) };
        let me = machine(0, master_rack);
        // An earlier life of the master's machine that is not declared crashed yet.
        let old_me = Member { disk: me.disk, ..machine(90, master_rack) };
        placement.set_master(me);
        let others: Vec<Member> = (1..).zip(&racks).map(|(slot, rack)| machine(slot, *rack)).collect();
        for other in others.iter().chain([&old_me]) {
            placement.add(other.clone());
        }
        for at in &gone {
            if let Some(other) = others.get(*at) {
                placement.remove(other.backup);
            }
        }
        let there: Vec<(u64, Option<u64>)> = (0..).zip(&racks)
            .filter(|(at, _)| !gone.contains(at))
            .map(|(at, rack)| (at as u64 + 1, *rack))
            .collect();
        let model = Model { replicas, own: master_rack, others: &there };
        for _ in 0..10 {
            model.judge(&mut placement, "drawn");
        }
    }
}

/// With copysets, too: a copyset without it is preferred.
#[test]
fn copysets_keep_away_from_the_masters_rack() {
    let mut placement = Placement::new(Layout::Copysets { groups: 2 }, 2, 1);
    placement.set_master(member(0, Some(0)));
    for slot in 1..9 {
        placement.add(member(slot, Some(slot % 3)));
    }
    for _ in 0..100 {
        let holding = place(&mut placement, 2);
        assert_eq!(holding.len(), 2);
        assert!(
            holding.iter().all(|backup| backup.slot() % 3 != 0),
            "{holding:?}"
        );
    }
}

/// A machine lost its disk and is back before its old life is declared crashed: both are in the
/// list. A segment with a replica on one of them gets none on the other.
#[test]
fn two_lives_of_one_machine_are_one_server() {
    for layout in [Layout::Scatter, Layout::Copysets { groups: 2 }] {
        let life = |slot: u64, address: &str, disk: u64| Member {
            address: address.to_owned(),
            disk,
            ..member(slot, None)
        };
        let mut placement = Placement::new(layout, 2, 1);
        let (old, other) = (life(0, "a:1", 10), life(1, "b:1", 11));
        placement.add(old.clone());
        placement.add(other.clone());
        let segment = place(&mut placement, 2);
        assert_eq!(segment.len(), 2);
        let new = life(2, "a:1", 12);
        let moved = life(3, "c:1", 11);
        placement.add(new.clone());
        for _ in 0..50 {
            let holding = place(&mut placement, 3);
            let both = BTreeSet::from([new.backup, other.backup]);
            assert_eq!(
                BTreeSet::from_iter(holding),
                both,
                "the old life gets nothing"
            );
        }
        let nobody = BTreeSet::new();
        let chosen = placement.choose(SegmentId::NONE, &[old.backup], &nobody);
        assert_eq!(
            chosen,
            Some(other.backup),
            "the new life does not get what the old one has"
        );
        assert_eq!(
            placement.choose(SegmentId::NONE, &[old.backup, other.backup], &nobody),
            None
        );
        placement.remove(other.backup);
        assert_eq!(
            placement.choose(SegmentId::NONE, &[old.backup], &nobody),
            None
        );
        placement.add(moved.clone());
        assert_eq!(
            placement.choose(SegmentId::NONE, &[old.backup], &nobody),
            Some(moved.backup)
        );
        placement.add(other.clone());
        assert_eq!(
            placement.choose(SegmentId::NONE, &[new.backup, moved.backup], &nobody),
            None,
            "one directory"
        );
        placement.remove(old.backup);
        assert!(!placement.has(old.backup) && placement.has(new.backup));
        // In the other order: the verdict about the old life makes the new one eligible again.
        placement.add(old.clone());
        assert!(!placement.has(new.backup));
        placement.remove(old.backup);
        assert!(placement.has(new.backup));
    }
}

/// Of three servers with two replicas one was drained: the segments of the other two stayed
/// incomplete, and neither the drain nor a write ever ended (seed 8 of the simulated cluster).
#[test]
fn a_drained_backup_is_the_last_resort() {
    for layout in [
        Layout::Scatter,
        Layout::copysets(2, 2),
        Layout::Zones { zones: 3 },
    ] {
        let mut placement = Placement::new(layout, 2, 7);
        placement.set_master(member(0, None));
        let (stays, drained) = (member(1, None), member(2, None));
        placement.add(stays.clone());
        placement.add(drained.clone());
        placement.retire(drained.backup);
        let nobody = BTreeSet::new();
        for _ in 0..20 {
            assert_eq!(
                placement.choose(SegmentId::NONE, &[], &nobody),
                Some(stays.backup)
            );
        }
        let second = placement.choose(SegmentId::NONE, &[stays.backup], &nobody);
        assert_eq!(second, Some(drained.backup), "L5");
        let refusing = BTreeSet::from([stays.backup]);
        assert_eq!(
            placement.choose(SegmentId::NONE, &[], &refusing),
            Some(drained.backup)
        );
        // Not an older life of a machine, which may be over; nor one that is gone.
        placement.remove(drained.backup);
        assert_eq!(
            placement.choose(SegmentId::NONE, &[stays.backup], &nobody),
            None
        );
    }
}

/// Of five candidates the one that would finish first: the fullest disk has little more than the
/// average, and a slow one less.
/// A slow backup that was taken back counted as empty, and got most of the new first replicas.
#[test]
fn a_backup_that_comes_back_with_its_replicas_is_as_full_as_before() {
    let mut placement = Placement::new(Layout::Scatter, 1, 1);
    for slot in 0..3 {
        placement.add(member(slot, None));
    }
    let first = |placement: &mut Placement, segments: usize| {
        let none = BTreeSet::new();
        let chosen = (0..segments).filter_map(|_| placement.choose(SegmentId::NONE, &[], &none));
        chosen.filter(|backup| backup.slot() == 0).count()
    };
    first(&mut placement, 300);
    placement.retire(member(0, None).backup);
    placement.add(member(0, None));
    let back = first(&mut placement, 90);
    assert!((20..=40).contains(&back), "{back} of 90");
    placement.remove(member(0, None).backup);
    placement.add(member(0, None));
    let empty = first(&mut placement, 90);
    assert!(empty > 70, "{empty} of 90: it has lost its replicas");
}

#[test]
fn what_a_recovery_reads_is_spread_by_speed() {
    let mut placement = Placement::new(Layout::Scatter, 3, 2);
    for slot in 0..20 {
        let mut member = member(slot, None);
        member.read_us = if slot < 5 { 400 } else { 100 };
        placement.add(member);
    }
    let mut primaries: BTreeMap<u32, u32> = BTreeMap::new();
    for _ in 0..4000 {
        let first = placement
            .choose(SegmentId::NONE, &[], &BTreeSet::new())
            .expect("somebody");
        *primaries.entry(first.slot()).or_default() += 1;
    }
    let time = |slot: &u32| primaries[slot] * if *slot < 5 { 400 } else { 100 };
    let times: Vec<u32> = primaries.keys().map(time).collect();
    let (most, total) = (*times.iter().max().unwrap(), times.iter().sum::<u32>());
    let average = total / times.len() as u32;
    assert!(most < average * 115 / 100, "{times:?}");
}

/// Scenario 40: for any order in which servers came and went, all masters see the same copysets, in
/// R distinct racks.
#[test]
fn scenario_40_masters_agree_on_copysets_whatever_happened_in_which_order() {
    let mut random = Random::new(40);
    for round in 0..100 {
        let count = 9 + random.index(40) as u64;
        let racks = (round % 2 == 0).then(|| 4 + random.index(4) as u64);
        let member = |slot: u64| member(slot, racks.map(|racks| (slot * 7 / 3) % racks));
        let gone: BTreeSet<u64> = (0..3)
            .map(|_| random.index(count as usize) as u64)
            .collect();
        let layout = Layout::copysets(4, 3);
        let mut masters = [Placement::new(layout, 3, 1), Placement::new(layout, 3, 2)];
        // One sees all servers join and some crash, in some order; the other sees the remaining
        // ones, the last first.
        for slot in 0..count {
            masters[0].add(member(slot));
            if gone.contains(&slot) && slot % 2 == 0 {
                masters[0].remove(member(slot).backup);
            }
        }
        for slot in &gone {
            masters[0].remove(member(*slot).backup);
        }
        for slot in (0..count).rev().filter(|slot| !gone.contains(slot)) {
            masters[1].add(member(slot));
        }
        let members: Vec<Member> = (0..count)
            .filter(|slot| !gone.contains(slot))
            .map(member)
            .collect();
        let sets: BTreeSet<BTreeSet<BackupId>> = copysets(members.iter(), 3, 2)
            .into_iter()
            .map(BTreeSet::from_iter)
            .collect();
        let rack_of: BTreeMap<BackupId, &Option<String>> =
            members.iter().map(|m| (m.backup, &m.rack)).collect();
        for set in &sets {
            let racks: BTreeSet<_> = set.iter().filter_map(|b| rack_of[b].as_ref()).collect();
            assert!(
                set.len() == 3 && (racks.is_empty() || racks.len() == 3),
                "{set:?}"
            );
        }
        assert!(!sets.is_empty());
        for master in &mut masters {
            for _ in 0..50 {
                let holding: BTreeSet<BackupId> = place(master, 3).into_iter().collect();
                assert!(sets.contains(&holding), "{holding:?} is no copyset");
            }
        }
    }
}

/// A server that joins waits for R, and changes nothing for the others; one that crashes is
/// replaced in its sets alone.
#[test]
fn copysets_change_as_little_as_may_be() {
    let sets_of = |slots: &[u64]| -> BTreeSet<Vec<BackupId>> {
        let members: Vec<Member> = slots.iter().map(|slot| member(*slot, None)).collect();
        copysets(members.iter(), 3, 2).into_iter().collect()
    };
    let nine: Vec<u64> = (0..9).collect();
    let eleven: Vec<u64> = (0..11).collect();
    let twelve: Vec<u64> = (0..12).collect();
    assert_eq!(sets_of(&nine).len(), 6); // two groups for each server
    assert_eq!(sets_of(&nine), sets_of(&eleven));
    let grown: Vec<_> = sets_of(&twelve)
        .difference(&sets_of(&nine))
        .cloned()
        .collect();
    assert_eq!(grown.len(), 1, "{grown:?}");
    let crashed: Vec<u64> = (0..12).filter(|slot| *slot != 4).collect();
    let (before, after) = (sets_of(&twelve), sets_of(&crashed));
    let lost: Vec<_> = before.difference(&after).collect();
    assert!(
        lost.iter()
            .all(|set| set.iter().any(|backup| backup.slot() == 4))
    );
    assert_eq!(after.len(), before.len());
    let mut stand_ins: BTreeSet<&BackupId> = BTreeSet::new();
    for set in after.difference(&before) {
        let old = |backup: &&BackupId| !lost.iter().any(|lost| lost.contains(backup));
        stand_ins.extend(set.iter().filter(old));
    }
    assert_eq!(
        stand_ins.len(),
        1,
        "one stands in everywhere: {stand_ins:?}"
    );
}

const SERVERS: usize = 5000;
const REPLICAS: usize = 3;
/// One percent of the servers fail at once.
const FAILED: usize = 50;

/// The share of `trials` random failures of so many servers in which some set is lost as a whole.
fn losses(sets: &[[u16; REPLICAS]], trials: usize, seed: u64) -> f64 {
    let mut random = Random::new(seed);
    let mut lost = 0;
    let mut failed = vec![false; SERVERS];
    let mut by_server: Vec<Vec<u32>> = vec![Vec::new(); SERVERS];
    for (n, set) in sets.iter().enumerate() {
        let first = set.iter().min().expect("three servers");
        by_server[usize::from(*first)].push(n as u32);
    }
    for _ in 0..trials {
        let mut down = Vec::with_capacity(FAILED);
        while down.len() < FAILED {
            let server = random.index(SERVERS);
            if !std::mem::replace(&mut failed[server], true) {
                down.push(server);
            }
        }
        let is_lost = down.iter().any(|server| {
            let sets = by_server[*server].iter().map(|n| &sets[*n as usize]);
            sets.into_iter()
                .any(|set| set.iter().all(|server| failed[usize::from(*server)]))
        });
        lost += usize::from(is_lost);
        for server in down {
            failed[server] = false;
        }
    }
    lost as f64 / trials as f64
}

/// Within three standard errors.
fn agrees(measured: f64, expected: f64, trials: usize) {
    let error = (expected * (1.0 - expected) / trials as f64).sqrt();
    println!("{measured:.5}, expected {expected:.5}, standard error {error:.5}");
    assert!((measured - expected).abs() <= 3.0 * error.max(0.5 / trials as f64));
}

/// Sets of servers of a layout with this scatter width.
fn sets_of(scatter_width: u32) -> Vec<[u16; REPLICAS]> {
    let members: Vec<Member> = (0..SERVERS as u64).map(|slot| member(slot, None)).collect();
    let Layout::Copysets { groups } = Layout::copysets(scatter_width, REPLICAS as u32) else {
        panic!("copysets");
    };
    let sets = copysets(members.iter(), REPLICAS, groups);
    let number = |set: Vec<BackupId>| {
        let slots: Vec<u16> = set.iter().map(|backup| backup.slot() as u16).collect();
        slots.try_into().expect("three of them")
    };
    sets.into_iter().map(number).collect()
}

/// docs/traps.md, trap 25 [Cidon13 §1, §5]: 5,000 servers, R = 3, one percent lost at once. Random
/// placement of 8,000 chunks per server loses data almost surely; copysets of width 2 in 0.15 % of
/// the cases.
#[test]
fn cidons_figures_for_random_placement_and_for_copysets() {
    let mut placement = Placement::new(Layout::Scatter, REPLICAS, 11);
    for slot in 0..SERVERS as u64 {
        placement.add(member(slot, None));
    }
    // Placement itself gives the first sets; the rest, up to the number of chunks, comes from the
    // same distribution, faster.
    let mut random = Random::new(5);
    let chunks = SERVERS * 8000 / REPLICAS;
    let mut sets = Vec::with_capacity(chunks);
    for _ in 0..50 {
        let chosen = place(&mut placement, REPLICAS);
        sets.push([0, 1, 2].map(|n: usize| chosen[n].slot() as u16));
    }
    while sets.len() < chunks {
        let set = [0; REPLICAS].map(|_: u16| random.index(SERVERS) as u16);
        if set[0] != set[1] && set[0] != set[2] && set[1] != set[2] {
            sets.push(set);
        }
    }
    agrees(losses(&sets, 200, 1), 0.9999, 200);
    let sets = sets_of(2);
    assert_eq!(sets.len(), SERVERS / REPLICAS);
    agrees(losses(&sets, 60_000, 2), 0.0015, 60_000);
}

/// The same for a scatter width of 10, as in Facebook's HDFS (replicas within a window of
/// neighbours): 22.8 % against 0.78 %.
#[test]
fn cidons_figures_for_a_scatter_width_of_ten() {
    // Facebook's window: two of the eleven servers after the first one.
    let mut windows = Vec::new();
    for first in 0..SERVERS {
        for second in 1..=11 {
            for third in second + 1..=11 {
                let at = |n: usize| ((first + n) % SERVERS) as u16;
                windows.push([at(0), at(second), at(third)]);
            }
        }
    }
    agrees(losses(&windows, 4_000, 3), 0.228, 4_000);
    let sets = sets_of(10);
    let wanted = 5 * SERVERS / REPLICAS;
    assert!(
        sets.len().abs_diff(wanted) < wanted / 50,
        "{} of {wanted}",
        sets.len()
    );
    agrees(losses(&sets, 20_000, 4), 0.0078, 20_000);
}
