//! The copysets of a cluster have one definition, `placement::copysets` of the server list. The
//! coordinator formed groups of its own, which no master used.

use crate::coordinator::rig::{Rig, enlist};
use duramen_base::ids::{SegmentId, ServerId};
use duramen_cluster::placement::{Layout, Member, Placement, copysets};
use duramen_cluster::replication::BackupId;
use duramen_wire::native::message::{ReplicaLayout, ServerEntry, ServerStatus, ToCoordinator};
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};

const SCATTER: u32 = 4;

/// A change of the cluster: a server joins in this rack, or the member at this place crashes.
#[derive(Clone, Debug)]
enum Change {
    Joins(Option<u8>),
    Crashes(usize),
}

fn change() -> impl Strategy<Value = Change> {
    prop_oneof![
        3 => proptest::option::weighted(0.8, 0u8..5).prop_map(Change::Joins),
        1 => (0usize..20).prop_map(Change::Crashes),
    ]
}

fn member(entry: &ServerEntry) -> Member {
    Member {
        rack: entry.rack.clone(),
        address: entry.addresses.native.clone(),
        disk: entry.disk,
        ..Member::from(BackupId(entry.server.number()))
    }
}

fn up(rig: &Rig) -> BTreeMap<ServerId, Member> {
    let servers = rig.status().servers;
    let up = servers.iter().filter(|s| s.status == ServerStatus::Up);
    up.map(|entry| (entry.server, member(entry))).collect()
}

/// A master's placement, as a node makes it from the server list.
fn master_of(
    id: ServerId,
    list: &BTreeMap<ServerId, Member>,
    replicas: usize,
    layout: Layout,
) -> Placement {
    let mut master = Placement::new(layout, replicas, id.number());
    master.set_master(list[&id].clone());
    for (_, other) in list.iter().filter(|(other, _)| **other != id) {
        master.add(other.clone());
    }
    master
}

/// Checks the choices of a master for many segments, in a cluster of these servers.
fn check_choices(
    id: ServerId,
    master: &mut Placement,
    members: &BTreeMap<ServerId, Member>,
    (replicas, groups): (usize, u32),
) -> Result<(), TestCaseError> {
    let others = members.iter().filter(|(other, _)| **other != id);
    let others = || others.clone().map(|(_, member)| member);
    let sets = copysets(others(), replicas, groups);
    let rack_of: BTreeMap<BackupId, &str> = others()
        .filter_map(|member| Some((member.backup, member.rack.as_deref()?)))
        .collect();
    let own = members[&id].rack.as_deref();
    let is_near = |backup: &BackupId| own.is_some() && rack_of.get(backup).copied() == own;
    let is_away = |set: &Vec<BackupId>| !set.iter().any(is_near);
    let has_away = sets.iter().any(is_away);
    let racks = |backups: &[BackupId]| {
        let named: BTreeSet<&str> = backups
            .iter()
            .filter_map(|backup| rack_of.get(backup).copied())
            .collect();
        named.len()
            + backups
                .iter()
                .filter(|backup| !rack_of.contains_key(backup))
                .count()
    };
    let all: Vec<BackupId> = others().map(|member| member.backup).collect();
    let elsewhere: Vec<BackupId> = all
        .iter()
        .copied()
        .filter(|backup| !is_near(backup))
        .collect();
    let sets: BTreeSet<BTreeSet<BackupId>> = sets.into_iter().map(BTreeSet::from_iter).collect();
    for _ in 0..20 {
        let mut holding = Vec::new();
        while holding.len() < replicas
            && let Some(chosen) = master.choose(SegmentId::NONE, &holding, &BTreeSet::new())
        {
            holding.push(chosen);
        }
        let is_set = sets.contains(&BTreeSet::from_iter(holding.iter().copied()));
        let may_leave = sets.is_empty() || !has_away;
        prop_assert!(
            is_set || may_leave,
            "{id}: {holding:?} is in none of {sets:?}"
        );
        prop_assert_eq!(racks(&holding), racks(&all).min(replicas), "L6: {}", id);
        let must_be_near = racks(&elsewhere) < replicas;
        prop_assert!(is_away(&holding) || must_be_near, "L4: {id}: {holding:?}");
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Each master of a random cluster, whenever it joined, places each segment in a copyset of the
    /// server list without itself (placement::L3), and the list has no other groups. Only if each
    /// copyset has a server in the master's own rack, a segment may have copies elsewhere instead
    /// (placement::L4). No two are in one rack if there are as many racks (placement::L6).
    #[test]
    fn masters_use_the_copysets_of_the_server_list(
        changes in proptest::collection::vec(change(), 4..24),
        replicas in 2u32..4,
    ) {
        let mut settings = duramen_harness::settings();
        settings.replicas = replicas;
        settings.layout = ReplicaLayout::Copysets { scatter: SCATTER };
        let layout = Layout::copysets(SCATTER, replicas);
        let Layout::Copysets { groups } = layout else { panic!("copysets") };
        let replicas = replicas as usize;
        let mut rig = Rig::with_settings(settings);
        let mut masters: BTreeMap<ServerId, Placement> = BTreeMap::new();
        let mut before = up(&rig);
        for (n, change) in (1..).zip(changes) {
            match change {
                Change::Joins(rack) => {
                    let ToCoordinator::Enlist(mut request) = enlist(n, n, None) else {
                        panic!("a request to enlist");
                    };
                    request.rack = rack.map(|rack| format!("rack {rack}"));
                    rig.ask(ServerId::NONE, ToCoordinator::Enlist(request));
                }
                Change::Crashes(at) => {
                    let Some(id) = before.keys().nth(at).copied() else { continue };
                    rig.crash(id);
                }
            }
            let list = up(&rig);
            masters.retain(|id, _| list.contains_key(id));
            for master in masters.values_mut() {
                let gone = before.iter().filter(|(id, _)| !list.contains_key(id));
                gone.for_each(|(_, member)| master.remove(member.backup));
                let new = list.iter().filter(|(id, _)| !before.contains_key(id));
                new.for_each(|(_, member)| master.add(member.clone()));
            }
            for id in list.keys() {
                let made = || master_of(*id, &list, replicas, layout);
                masters.entry(*id).or_insert_with(made);
            }
            before = list;
        }
        for (id, master) in &mut masters {
            check_choices(*id, master, &before, (replicas, groups))?;
        }
        let servers = rig.status().servers;
        prop_assert!(servers.iter().all(|entry| entry.unused.is_none()));
    }
}
