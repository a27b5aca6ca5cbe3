//! Zones: the segments of a zone share their backups, whatever joins, crashes and refuses
//! (placement::L7). The other rules of placement are tested with zones in `placement.rs`.

use duramen_base::ids::SegmentId;
use duramen_cluster::placement::{Layout, Member, Placement};
use duramen_cluster::replication::BackupId;
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};

const ZONES: u64 = 7;
const REPLICAS: usize = 3;

fn member(slot: u64, rack: Option<u64>) -> Member {
    Member {
        rack: rack.map(|rack| format!("rack {rack}")),
        disk: slot + 1,
        read_us: 100,
        ..Member::from(BackupId(1 << 32 | slot))
    }
}

fn zones(seed: u64, members: &[Member]) -> Placement {
    let mut placement = Placement::new(Layout::Zones { zones: ZONES }, REPLICAS, seed);
    for member in members {
        placement.add(member.clone());
    }
    placement
}

fn place(
    placement: &mut Placement,
    segment: SegmentId,
    refusing: &BTreeSet<BackupId>,
) -> Vec<BackupId> {
    let mut holding = Vec::new();
    while holding.len() < REPLICAS
        && let Some(chosen) = placement.choose(segment, &holding, refusing)
    {
        holding.push(chosen);
    }
    holding
}

/// The backups of each zone; all segments of a zone must have the same.
fn sets(placement: &mut Placement, refusing: &BTreeSet<BackupId>) -> Vec<BTreeSet<BackupId>> {
    let of_zone = |zone| {
        let segments = (0..5).map(|n| SegmentId(zone + n * ZONES));
        let mut sets: BTreeSet<BTreeSet<BackupId>> = segments
            .map(|segment| place(placement, segment, refusing).into_iter().collect())
            .collect();
        let first = sets.pop_first().expect("five segments");
        assert!(sets.is_empty(), "zone {zone} is on {first:?} and {sets:?}");
        first
    };
    (0..ZONES).map(of_zone).collect()
}

proptest! {
    #[test]
    fn segments_of_a_zone_share_their_backups(
        racks in proptest::collection::vec(proptest::option::weighted(0.7, 0u64..4), 3..14),
        gone in proptest::collection::btree_set(0usize..14, 0..4),
        refusing in proptest::collection::btree_set(0u64..14, 0..4),
        seed: u64,
    ) {
        let members: Vec<Member> =
            (0..).zip(&racks).map(|(slot, rack)| member(slot, *rack)).collect();
        let refusing: BTreeSet<BackupId> =
            refusing.into_iter().map(|slot| member(slot, None).backup).collect();
        let mut placement = zones(seed, &members);
        sets(&mut placement, &BTreeSet::new());
        sets(&mut placement, &refusing);
        for at in gone {
            if let Some(member) = members.get(at) {
                placement.remove(member.backup);
            }
        }
        let after = sets(&mut placement, &BTreeSet::new());
        sets(&mut placement, &refusing);
        // The order of joins does not matter, and no state but the members does.
        let there: Vec<Member> = members.iter().rev()
            .filter(|member| placement.has(member.backup)).cloned().collect();
        prop_assert_eq!(after, sets(&mut zones(seed, &there), &BTreeSet::new()));
    }
}

/// A crash costs each of its zones one stand-in; a join takes over its share and no more.
#[test]
fn joins_and_crashes_move_as_little_as_may_be() {
    let members: Vec<Member> = (0..10).map(|slot| member(slot, None)).collect();
    let nobody = BTreeSet::new();
    let mut shares: BTreeMap<BackupId, usize> = BTreeMap::new();
    for seed in 0..40 {
        let mut placement = zones(seed, &members[..9]);
        let before = sets(&mut placement, &nobody);
        placement.add(members[9].clone());
        let joined = sets(&mut placement, &nobody);
        for (before, after) in before.iter().zip(&joined) {
            let new: Vec<_> = after.difference(before).collect();
            assert!(new.is_empty() || new == [&members[9].backup]);
        }
        for set in &joined {
            set.iter()
                .for_each(|id| *shares.entry(*id).or_default() += 1);
        }
        placement.remove(members[3].backup);
        for (before, after) in joined.iter().zip(sets(&mut placement, &nobody)) {
            let lost = usize::from(before.contains(&members[3].backup));
            assert_eq!(before.difference(&after).count(), lost);
        }
    }
    // 40 masters with 7 zones of 3 backups each, on 10 servers: 84 each.
    assert!(
        shares.len() == 10 && shares.values().all(|n| (55..115).contains(n)),
        "{shares:?}"
    );
}

/// placement::L2 within the zone: a recovery reads the first replicas, from all disks of the zone.
#[test]
fn first_replicas_are_spread_over_the_backups_of_their_zone() {
    let members: Vec<Member> = (0..5).map(|slot| member(slot, None)).collect();
    let mut placement = zones(1, &members);
    let mut firsts: BTreeMap<BackupId, usize> = BTreeMap::new();
    for segment in 0..700 {
        let holding = place(&mut placement, SegmentId(segment), &BTreeSet::new());
        *firsts.entry(holding[0]).or_default() += 1;
    }
    assert!(
        firsts.values().all(|n| (110..170).contains(n)),
        "{firsts:?}"
    );
}
