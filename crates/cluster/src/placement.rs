//! Placement: selects the backups for replicas: at random with refinement, in copysets, or in
//! zones.
//!
//! **Rules**
//! - L1: the replicas of a segment are on different servers, none of them its master. Two lives of
//!   one machine are one server: both are in the list until there is a verdict about the old life.
//!   With fewer servers than replicas a segment stays incomplete, and none of its writes is
//!   acknowledged.
//! - L2: of five random candidates, the one is chosen that would finish reading first if its master
//!   crashed now: its disk's time for all first replicas that it has, and one more. A disk of
//!   unknown speed counts as a usual one (speed::B2), and no speed excludes a disk (speed::B3).
//! - L3: copysets depend on the present members alone, not on the order of joins and crashes: all
//!   masters compute the same ones. Server slots are numbers in base R; R slots that differ in one
//!   digit alone form a group. So each server has one group per digit, and no two servers share
//!   more than one group. A group begins when all its slots have been assigned. The place of a
//!   crashed server is taken by the same stand-in in all its groups. So is the place of a server
//!   whose rack the group has already, as long as there is another rack. A replica is outside of
//!   the copysets only if none of their servers can take it, or if they could keep neither L4 nor
//!   L6: these protect from the loss of one rack, which is likelier than that of *R* servers.
//! - L4: no replica is in the master's own rack while a backup in another rack can take it: the
//!   master's memory is one of the copies.
//! - L5: a draining backup gets a replica only if no other backup can take it. Otherwise a segment
//!   would stay incomplete, and all writes of its master would wait until the drain is cancelled.
//! - L6: racks are a preference, never a reason to wait. The replicas are in as many different
//!   racks as possible, the master's own rack included (it is used before a rack is shared). With
//!   fewer racks than replicas, some replicas share a rack, and racks have about equal numbers.
//! - L7: with zones, a segment's number alone determines its zone, and the members alone determine
//!   the backups of a zone: those with the lowest number from a hash of master, zone and server,
//!   after L4 and L6. So the segments of a zone share their backups, and no state has to say so. A
//!   server that joins takes over its share of the zones. A crashed one, or one that refuses, has
//!   the same stand-in for the whole zone. L2 applies within the set: it chooses the first replica.
//!
//! Paper: [Ousterhout15 §7.1] randomisation with refinement; Cidon13 copysets by permutations, here
//! from digits, so that joining servers change nothing for the others (docs/traps.md, trap 25);
//! [Beineke18 §X] backup zones; differs: a zone is a part of the log, not of the keys.

use crate::speed::{counted, usual};
use duramen_base::ids::SegmentId;
use duramen_base::random::{Random, mix};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

/// Names a backup: one life of a server, as a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BackupId(pub u64);

impl BackupId {
    /// The slot of the server.
    pub fn slot(self) -> u32 {
        self.0 as u32
    }
}

/// Number of random candidates, of which the best is chosen (L2).
const CANDIDATES: usize = 5;

/// The layout of a master's replicas.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Layout {
    /// At random: a recovery reads from all disks at once.
    #[default]
    Scatter,
    /// In copysets, each server in `groups` of them: fewer sets of servers whose joint failure
    /// loses data.
    Copysets { groups: u32 },
    /// In zones: the segments of a master whose numbers are equal modulo `zones` share their
    /// backups, so that these can clean them on their own (docs/protocols.md, "Zones").
    Zones { zones: u64 },
}

impl Layout {
    /// Copysets of `replicas` servers such that each server shares replicas with `scatter_width`
    /// others.
    pub fn copysets(scatter_width: u32, replicas: u32) -> Layout {
        let others = replicas.saturating_sub(1).max(1);
        Layout::Copysets {
            groups: scatter_width.div_ceil(others).max(1),
        }
    }
}

/// A backup that may get replicas.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    pub backup: BackupId,
    /// Servers of one rack fail together.
    pub rack: Option<String>,
    /// Its address: two lives at one address are one machine. Empty: unknown.
    pub address: String,
    /// Id of its data directory; 0: unknown.
    pub disk: u64,
    /// Time in which it reads one segment, in microseconds; 0: unknown.
    pub read_us: u32,
}

impl From<BackupId> for Member {
    fn from(backup: BackupId) -> Member {
        Member {
            backup,
            rack: None,
            address: String::new(),
            disk: 0,
            read_us: 0,
        }
    }
}

impl Member {
    /// Whether both are lives of one machine (L1).
    fn is_one_machine_with(&self, other: &Member) -> bool {
        !self.address.is_empty() && self.address == other.address
            || self.disk != 0 && self.disk == other.disk
    }

    /// Whether both may have replicas of one segment (L1).
    fn goes_with(&self, other: &Member) -> bool {
        self.backup != other.backup && !self.is_one_machine_with(other)
    }

    /// Whether both may fail together (L4, L6).
    fn shares_rack_with(&self, other: &Member) -> bool {
        self.rack.is_some() && self.rack == other.rack
    }
}

/// Rank of a backup for one more replica: the lowest rank is the best.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Rank {
    /// The backup is being drained (L5).
    is_drained: bool,
    /// Number of the segment's replicas in the same rack (L6).
    in_rack: usize,
    /// The backup is in the master's own rack (L4).
    is_near: bool,
    /// Whether the segment's sets have the backup (L3, L7).
    set: InSet,
}

/// Whether a copyset has a backup and all present holders of the segment; or whether the segment's
/// zone has the backup.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum InSet {
    /// A copyset without a server in the master's rack has them; or the zone has the backup; or
    /// there are no sets.
    Away,
    /// Only copysets with a server in the master's rack have them.
    Near,
    /// No copyset has them, or the zone does not have the backup.
    No,
}

/// The backups that a segment prefers.
type Sets = BTreeMap<BackupId, InSet>;

/// Whether a backup is preferred.
fn has_in(sets: &Option<Sets>, backup: BackupId) -> bool {
    sets.as_ref().is_some_and(|sets| sets.contains_key(&backup))
}

/// Chooses backups for one master.
pub struct Placement {
    layout: Layout,
    replicas: usize,
    /// The master itself; `None`: unknown.
    master: Option<Member>,
    members: BTreeMap<BackupId, Member>,
    /// Retired backups: they keep their replicas, and get new ones only by L5. `true`: retired
    /// because a newer life of the same machine was added.
    retired: BTreeMap<BackupId, (Member, bool)>,
    /// Number of this master's replicas that a recovery would read from each backup.
    load: BTreeMap<BackupId, u32>,
    random: Random,
    /// Differs between masters (L7).
    seed: u64,
    /// Copysets of the present members; empty if the layout has none.
    groups: Vec<Vec<BackupId>>,
    /// Whether `groups` are of earlier members.
    stale: bool,
    /// The backups of each zone that had a segment since the members changed.
    zones: BTreeMap<u64, Vec<BackupId>>,
    /// Reading time of a disk of unknown speed (L2), in microseconds; `None`: not computed yet.
    usual_us: Option<u32>,
}

impl Placement {
    /// `seed` should differ between masters.
    pub fn new(layout: Layout, replicas: usize, seed: u64) -> Placement {
        Placement {
            layout,
            replicas,
            master: None,
            members: BTreeMap::new(),
            retired: BTreeMap::new(),
            load: BTreeMap::new(),
            random: Random::new(seed),
            seed,
            groups: Vec::new(),
            stale: true,
            zones: BTreeMap::new(),
            usual_us: None,
        }
    }

    /// Sets the master itself, before members are added (L1, L4).
    pub fn set_master(&mut self, master: Member) {
        self.master = Some(master);
    }

    /// Whether a backup is in the master's rack (L4).
    fn is_near(&self, member: &Member) -> bool {
        let master = self.master.as_ref();
        master.is_some_and(|master| master.shares_rack_with(member))
    }

    /// Adds a backup that may be chosen. An older life of the same machine is not chosen any more,
    /// as it may be over.
    pub fn add(&mut self, member: Member) {
        let master = self.master.as_ref();
        if master.is_some_and(|master| master.is_one_machine_with(&member)) {
            return; // L1: an earlier life of the master's machine
        }
        self.retired.remove(&member.backup);
        let older = self.members.values();
        let older = older
            .filter(|other| other.backup != member.backup && other.is_one_machine_with(&member));
        let older: Vec<BackupId> = older.map(|other| other.backup).collect();
        for other in older {
            self.retire(other);
            if let Some((_, is_superseded)) = self.retired.get_mut(&other) {
                *is_superseded = true;
            }
        }
        self.members.insert(member.backup, member);
        self.look_again();
    }

    /// Retires a backup: it is not chosen any more, and keeps its replicas: when it is added
    /// again, it is as full as before (L2).
    pub fn retire(&mut self, backup: BackupId) {
        if let Some(member) = self.members.remove(&backup) {
            self.retired.insert(backup, (member, false));
        }
        self.look_again();
    }

    /// The members have changed.
    fn look_again(&mut self) {
        self.stale = true;
        self.zones.clear();
        self.usual_us = None;
    }

    /// Removes a backup that is gone with its replicas.
    pub fn remove(&mut self, backup: BackupId) {
        self.retire(backup);
        self.load.remove(&backup);
        let Some((gone, _)) = self.retired.remove(&backup) else {
            return;
        };
        let mut others = self.retired.values();
        let other = others
            .find(|(other, is_superseded)| *is_superseded && other.is_one_machine_with(&gone));
        if let Some((other, _)) = other.cloned() {
            self.add(other); // the life that was added last is over
        }
    }

    pub fn has(&self, backup: BackupId) -> bool {
        self.members.contains_key(&backup)
    }

    /// Chooses a backup for one more replica of a segment. `holding`: backups that have replicas of
    /// it already. `refusing`: backups that must not be chosen. `None`: no backup can take it. A
    /// recovery reads the first replica of a segment.
    pub fn choose(
        &mut self,
        segment: SegmentId,
        holding: &[BackupId],
        refusing: &BTreeSet<BackupId>,
    ) -> Option<BackupId> {
        let sets = self.sets_of(segment, holding);
        let possible = self.willing(&sets, holding, refusing);
        let is_first_of_zone = |id: &BackupId| holding.is_empty() && has_in(&sets, *id);
        let chosen = match self.zone_of(segment) {
            Some(zone) if !possible.iter().all(is_first_of_zone) => {
                possible.into_iter().min_by_key(|id| self.drawn(zone, *id)) // L7
            }
            _ => self.refine(possible),
        }?;
        if holding.is_empty() {
            *self.load.entry(chosen).or_default() += 1;
        }
        Some(chosen)
    }

    /// Whether [`choose`](Self::choose) would find a backup.
    pub fn can_choose(&mut self, holding: &[BackupId], refusing: &BTreeSet<BackupId>) -> bool {
        !self.willing(&None, holding, refusing).is_empty()
    }

    /// The backups that may take one more replica (L1) and have the best rank.
    fn willing(
        &self,
        sets: &Option<Sets>,
        holding: &[BackupId],
        refusing: &BTreeSet<BackupId>,
    ) -> Vec<BackupId> {
        let holders: Vec<&Member> = holding.iter().filter_map(|id| self.known(*id)).collect();
        let members = self.members.values().map(|member| (member, false));
        let drained = self.retired.values();
        let drained = drained.filter(|(_, is_superseded)| !is_superseded);
        let drained = drained.map(|(member, _)| (member, true));
        let (mut best, mut willing) = (None, Vec::new());
        for (member, is_drained) in members.chain(drained) {
            let backup = member.backup;
            let may = !holding.contains(&backup) && !refusing.contains(&backup);
            if !may || !holders.iter().all(|holder| holder.goes_with(member)) {
                continue;
            }
            let in_rack = holders.iter().filter(|h| h.shares_rack_with(member));
            let rank = Rank {
                is_drained,
                in_rack: in_rack.count(),
                is_near: self.is_near(member),
                set: sets.as_ref().map_or(InSet::Away, |of| {
                    of.get(&backup).copied().unwrap_or(InSet::No)
                }),
            };
            if best.is_none_or(|best| rank < best) {
                best = Some(rank);
                willing.clear();
            }
            if best == Some(rank) {
                willing.push(backup);
            }
        }
        willing
    }

    /// Whether there are backups for all replicas of a new segment. A backup that has refused
    /// counts: it is tried again.
    pub fn has_enough(&mut self) -> bool {
        self.place_new().len() >= self.replicas
    }

    /// Whether the replicas of a new segment would be in more racks than these (L6).
    pub fn would_spread(&mut self, holding: &[BackupId]) -> bool {
        let sharing = self.sharing(holding.iter().copied());
        sharing > 0 && {
            let new = self.place_new();
            new.len() >= holding.len() && self.sharing(new.into_iter()) < sharing
        }
    }

    /// Number of these replicas that are in the rack of an earlier one.
    pub fn sharing(&self, holding: impl Iterator<Item = BackupId> + Clone) -> usize {
        let members = holding.filter_map(|backup| self.known(backup));
        let shares = |(n, member): &(usize, &Member)| {
            let mut before = members.clone().take(*n);
            before.any(|other| other.shares_rack_with(member))
        };
        members.clone().enumerate().filter(shares).count()
    }

    /// Backups for a new segment: as many as there are, at most `replicas`.
    fn place_new(&mut self) -> Vec<BackupId> {
        let mut holding = Vec::with_capacity(self.replicas);
        while holding.len() < self.replicas {
            let sets = self.sets_of(SegmentId::NONE, &holding);
            let willing = self.willing(&sets, &holding, &BTreeSet::new());
            let Some(next) = willing.first() else {
                break;
            };
            holding.push(*next);
        }
        holding
    }

    /// A segment whose first replica is on this backup is gone.
    pub fn unload(&mut self, backup: BackupId) {
        if let Some(load) = self.load.get_mut(&backup) {
            *load = load.saturating_sub(1);
        }
    }

    /// The zone of a segment; `None`: the layout has no zones.
    fn zone_of(&self, segment: SegmentId) -> Option<u64> {
        match self.layout {
            Layout::Zones { zones } => Some(segment.0 % zones.max(1)),
            Layout::Scatter | Layout::Copysets { .. } => None,
        }
    }

    /// The number by which a zone prefers backups: the lowest ones are its own (L7).
    fn drawn(&self, zone: u64, backup: BackupId) -> u64 {
        mix(mix(self.seed ^ mix(zone)) ^ u64::from(backup.slot()))
    }

    /// The backups that a segment prefers; `None`: the layout has no such preference.
    fn sets_of(&mut self, segment: SegmentId, holding: &[BackupId]) -> Option<Sets> {
        if let Some(zone) = self.zone_of(segment) {
            let set = match self.zones.get(&zone) {
                Some(set) => set,
                None => {
                    let set = self.set_of_zone(zone);
                    self.zones.entry(zone).or_insert(set)
                }
            };
            return Some(set.iter().map(|id| (*id, InSet::Away)).collect());
        }
        let Layout::Copysets { groups } = self.layout else {
            return None;
        };
        Some(self.copysets_of(groups, holding))
    }

    /// The backups of a zone (L7).
    fn set_of_zone(&self, zone: u64) -> Vec<BackupId> {
        let mut set = Vec::with_capacity(self.replicas);
        while set.len() < self.replicas {
            let willing = self.willing(&None, &set, &BTreeSet::new()).into_iter();
            let Some(next) = willing.min_by_key(|id| self.drawn(zone, *id)) else {
                break;
            };
            set.push(next);
        }
        set
    }

    /// The members of all copysets that contain all of `holding` (L3, L4).
    fn copysets_of(&mut self, groups: u32, holding: &[BackupId]) -> Sets {
        if std::mem::take(&mut self.stale) {
            self.groups = copysets(self.members.values(), self.replicas, groups);
        }
        let mut found = BTreeMap::new();
        let has_all = |group: &&Vec<BackupId>| holding.iter().all(|id| group.contains(id));
        for group in self.groups.iter().filter(has_all) {
            let mut members = group.iter().map(|id| &self.members[id]);
            let rank = match members.any(|member| self.is_near(member)) {
                true => InSet::Near,
                false => InSet::Away,
            };
            for id in group {
                let known = found.entry(*id).or_insert(rank);
                *known = rank.min(*known);
            }
        }
        found
    }

    fn known(&self, backup: BackupId) -> Option<&Member> {
        let member = self.members.get(&backup);
        member.or_else(|| Some(&self.retired.get(&backup)?.0))
    }

    /// Chooses among these backups (L2).
    fn refine(&mut self, possible: Vec<BackupId>) -> Option<BackupId> {
        if possible.is_empty() {
            return None;
        }
        let known_us = self.members.values().map(|member| member.read_us);
        let usual_us = *(self.usual_us).get_or_insert_with(|| usual(known_us).unwrap_or(1));
        let mut best: Option<(u64, BackupId)> = None;
        for _ in 0..CANDIDATES {
            let candidate = possible[self.random.index(possible.len())];
            let load = self.load.get(&candidate).copied().unwrap_or(0);
            let read_us = self.known(candidate).map_or(0, |member| member.read_us);
            let read_us = counted(read_us.into(), usual_us.into());
            let until = (u64::from(load) + 1).saturating_mul(read_us);
            if best.is_none_or(|(known, _)| until < known) {
                best = Some((until, candidate));
            }
        }
        best.map(|(_, backup)| backup)
    }
}

/// The copysets of these members (L3): groups of `replicas` servers, each server in at most
/// `groups` of them.
pub fn copysets<'a>(
    members: impl Iterator<Item = &'a Member>,
    replicas: usize,
    groups: u32,
) -> Vec<Vec<BackupId>> {
    let by_slot: BTreeMap<u64, &Member> = members
        .map(|member| (u64::from(member.backup.slot()), member))
        .collect();
    let Some((highest, _)) = by_slot.last_key_value() else {
        return Vec::new();
    };
    let (base, slots) = (replicas.max(1) as u64, highest + 1);
    let mut sets = Vec::new();
    let mut stride = 1;
    for _ in 0..groups.max(1) {
        let block = stride * base;
        // Only blocks whose slots have all been assigned.
        for start in (0..slots / block).map(|n| n * block) {
            for first in start..start + stride {
                let group: Vec<u64> = (0..base).map(|n| first + n * stride).collect();
                sets.extend(fill(&group, &by_slot));
            }
        }
        stride = block;
        if stride > slots {
            break;
        }
    }
    sets
}

/// The members in a group's slots, with stand-ins for missing ones. `None`: there are too few
/// servers.
fn fill(group: &[u64], by_slot: &BTreeMap<u64, &Member>) -> Option<Vec<BackupId>> {
    let mut chosen: Vec<&Member> = Vec::with_capacity(group.len());
    let fits =
        |chosen: &[&Member], member: &Member| chosen.iter().all(|other| other.goes_with(member));
    let in_rack = |chosen: &[&Member], member: &Member| {
        let others = chosen.iter();
        others
            .filter(|other| other.shares_rack_with(member))
            .count()
    };
    let mut missing = Vec::new();
    for slot in group {
        match by_slot.get(slot) {
            Some(member) if fits(&chosen, member) && in_rack(&chosen, member) == 0 => {
                chosen.push(member);
            }
            _ => missing.push(*slot),
        }
    }
    for slot in missing {
        // First L6, then the slot's own member, then the highest number from a hash of the slot and
        // the member: the same stand-in in all groups.
        let rank = |(own, member): &(&u64, &&Member)| {
            let drawn = mix(mix(slot) ^ u64::from(member.backup.slot()));
            (Reverse(in_rack(&chosen, member)), **own == slot, drawn)
        };
        let possible = by_slot.iter().filter(|(_, member)| fits(&chosen, member));
        let (_, stand_in) = possible.max_by_key(rank)?;
        chosen.push(stand_in);
    }
    Some(chosen.iter().map(|member| member.backup).collect())
}
