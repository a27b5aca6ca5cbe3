//! Where replicas go: anywhere, with refinement, or into copysets.
//!
//! **Rules**
//! - L1: the replicas of a segment lie on different servers, none of them its master. Two lives of
//!   one machine are one server: until there is a verdict about the old one both are in the list.
//!   With fewer servers than replicas a segment stays incomplete, and nothing of it is
//!   acknowledged.
//! - L2: of five random candidates the one is taken that would be done reading first, were its
//!   master to crash now.
//! - L3: copysets depend on the members alone, not on the order in which they came and went: all
//!   masters see the same ones. Server slots, written in base R, are grouped R by R where they
//!   differ in one digit alone: as many digits, as many groups for each server, and no two servers
//!   share more than one. A slot that nobody has had yet makes its group wait; the place of a
//!   crashed server is taken by the same other one in all its groups, and so is the place of one
//!   whose rack the group has already, as long as there is another rack. A replica lies outside of
//!   the copysets only where none of their servers can take it.
//! - L4: the replicas do not lie in the master's own rack, as long as there is somebody elsewhere:
//!   the master's memory is one of the copies.
//! - L5: a backup that is drained gets a replica only where nobody else can take it: else a segment
//!   would stay incomplete, and all writes of its master would wait until the drain is taken back.
//! - L6: racks are a preference, never a reason to wait. The replicas lie in as many different
//!   racks as there are, the master's own one included (it comes before a rack that is shared).
//!   Where these are fewer than the replicas, some share a rack, and all racks about equally many.
//!
//! Paper: [Ousterhout15 §3.3] randomisation with refinement; Cidon13 copysets by permutations, here
//! from digits, so that joining servers change nothing for the others (docs/traps.md, trap 25).

use crate::replication::BackupId;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

/// Random candidates of which the best is taken (L2).
const CANDIDATES: usize = 5;

/// The layout of a master's replicas.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Layout {
    /// Anywhere: a recovery reads from all disks at once.
    #[default]
    Scatter,
    /// In copysets, each server in `groups` of them: fewer sets of servers that lose data if all of
    /// a set fail.
    Copysets { groups: u32 },
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

/// A backup that may be given replicas.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    pub backup: BackupId,
    /// Servers of one rack fail together.
    pub rack: Option<String>,
    /// Its address: two lives at one address are one machine. Empty: unknown.
    pub address: String,
    /// Its data directory; 0: unknown.
    pub disk: u64,
    /// Microseconds in which it reads one segment.
    pub read_us: u32,
}

impl From<BackupId> for Member {
    fn from(backup: BackupId) -> Member {
        Member {
            backup,
            rack: None,
            address: String::new(),
            disk: 0,
            read_us: 1,
        }
    }
}

impl Member {
    /// L1.
    fn is_one_machine_with(&self, other: &Member) -> bool {
        !self.address.is_empty() && self.address == other.address
            || self.disk != 0 && self.disk == other.disk
    }

    /// Whether replicas of one segment may lie here and there (L1).
    fn goes_with(&self, other: &Member) -> bool {
        self.backup != other.backup && !self.is_one_machine_with(other)
    }

    /// Whether both may fail together (L4, L6).
    fn shares_rack_with(&self, other: &Member) -> bool {
        self.rack.is_some() && self.rack == other.rack
    }
}

/// How good a place is for one more replica: the lowest is the best.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Rank {
    /// L5.
    is_drained: bool,
    /// L3.
    copyset: InCopyset,
    /// Replicas of the segment that lie in the same rack (L6).
    in_rack: usize,
    /// In the master's own rack (L4).
    is_near: bool,
}

/// Whether a backup and all that hold the segment are of one copyset.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum InCopyset {
    /// Of one that has nobody in the master's rack; or there are no copysets.
    Away,
    /// Of one that has.
    Near,
    No,
}

/// Chooses backups for one master.
pub struct Placement {
    layout: Layout,
    replicas: usize,
    /// The master itself; `None`: unknown.
    master: Option<Member>,
    members: BTreeMap<BackupId, Member>,
    /// They keep their replicas, and get new ones only by L5; `true`: as long as there is another
    /// life of the same machine.
    retired: BTreeMap<BackupId, (Member, bool)>,
    /// Replicas of this master that a recovery would read there.
    load: BTreeMap<BackupId, u32>,
    random: u64,
    /// Groups of the present members, if there are any.
    groups: Vec<Vec<BackupId>>,
    stale: bool,
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
            random: seed ^ 0x9E37_79B9_7F4A_7C15,
            groups: Vec::new(),
            stale: true,
        }
    }

    /// Sets the place of the master itself, before there are members (L1, L4).
    pub fn set_master(&mut self, master: Member) {
        self.master = Some(master);
    }

    /// Whether it is in the master's rack (L4).
    fn is_near(&self, member: &Member) -> bool {
        let master = self.master.as_ref();
        master.is_some_and(|master| master.shares_rack_with(member))
    }

    /// It may be chosen from now on, and an older life of the same machine not any more: it may be
    /// over.
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
        self.stale = true;
    }

    /// It is not chosen any more, and keeps its replicas.
    pub fn retire(&mut self, backup: BackupId) {
        if let Some(member) = self.members.remove(&backup) {
            self.retired.insert(backup, (member, false));
        }
        self.load.remove(&backup);
        self.stale = true;
    }

    /// It is gone, with its replicas.
    pub fn remove(&mut self, backup: BackupId) {
        self.retire(backup);
        let Some((gone, _)) = self.retired.remove(&backup) else {
            return;
        };
        let mut others = self.retired.values();
        let other = others
            .find(|(other, is_superseded)| *is_superseded && other.is_one_machine_with(&gone));
        if let Some((other, _)) = other.cloned() {
            self.add(other); // the last added life was over
        }
    }

    pub fn has(&self, backup: BackupId) -> bool {
        self.members.contains_key(&backup)
    }

    /// Chooses a backup for one more replica of a segment that is on `holding` already, none of
    /// `refusing`; a recovery reads the first replica of a segment. `None`: there is none.
    pub fn choose(
        &mut self,
        holding: &[BackupId],
        refusing: &BTreeSet<BackupId>,
    ) -> Option<BackupId> {
        let possible = self.willing(holding, refusing);
        let chosen = self.refine(possible)?;
        if holding.is_empty() {
            *self.load.entry(chosen).or_default() += 1;
        }
        Some(chosen)
    }

    /// Whether [`choose`](Self::choose) would find a backup.
    pub fn can_choose(&mut self, holding: &[BackupId], refusing: &BTreeSet<BackupId>) -> bool {
        !self.willing(holding, refusing).is_empty()
    }

    /// Those that may take one more replica (L1), of the best rank.
    fn willing(&mut self, holding: &[BackupId], refusing: &BTreeSet<BackupId>) -> Vec<BackupId> {
        let copysets = self.copysets_of(holding);
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
                copyset: copysets.as_ref().map_or(InCopyset::Away, |of| {
                    of.get(&backup).copied().unwrap_or(InCopyset::No)
                }),
                in_rack: in_rack.count(),
                is_near: self.is_near(member),
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

    /// Whether a new segment would find backups for all its replicas. One that has refused counts:
    /// it is asked again.
    pub fn has_enough(&mut self) -> bool {
        self.place_new().len() >= self.replicas
    }

    /// Whether a new segment would lie in more racks than these replicas do (L6).
    pub fn would_spread(&mut self, holding: &[BackupId]) -> bool {
        let sharing = self.sharing(holding.iter().copied());
        sharing > 0 && {
            let new = self.place_new();
            new.len() >= holding.len() && self.sharing(new.into_iter()) < sharing
        }
    }

    /// How many of these replicas lie in the rack of one before them.
    pub fn sharing(&self, holding: impl Iterator<Item = BackupId> + Clone) -> usize {
        let members = holding.filter_map(|backup| self.known(backup));
        let shares = |(n, member): &(usize, &Member)| {
            let mut before = members.clone().take(*n);
            before.any(|other| other.shares_rack_with(member))
        };
        members.clone().enumerate().filter(shares).count()
    }

    /// Where a new segment could lie.
    fn place_new(&mut self) -> Vec<BackupId> {
        let mut holding = Vec::with_capacity(self.replicas);
        while holding.len() < self.replicas
            && let Some(next) = self.willing(&holding, &BTreeSet::new()).first()
        {
            holding.push(*next);
        }
        holding
    }

    /// A segment that this backup was to read first is gone.
    pub fn unload(&mut self, backup: BackupId) {
        if let Some(load) = self.load.get_mut(&backup) {
            *load = load.saturating_sub(1);
        }
    }

    /// The members of copysets that have all of these (L3, L4); `None`: the layout has no copysets.
    fn copysets_of(&mut self, holding: &[BackupId]) -> Option<BTreeMap<BackupId, InCopyset>> {
        let Layout::Copysets { groups } = self.layout else {
            return None;
        };
        if std::mem::take(&mut self.stale) {
            self.groups = copysets(self.members.values(), self.replicas, groups);
        }
        let mut found = BTreeMap::new();
        let has_all = |group: &&Vec<BackupId>| holding.iter().all(|id| group.contains(id));
        for group in self.groups.iter().filter(has_all) {
            let mut members = group.iter().map(|id| &self.members[id]);
            let rank = match members.any(|member| self.is_near(member)) {
                true => InCopyset::Near,
                false => InCopyset::Away,
            };
            for id in group {
                let known = found.entry(*id).or_insert(rank);
                *known = rank.min(*known);
            }
        }
        Some(found)
    }

    fn known(&self, backup: BackupId) -> Option<&Member> {
        let member = self.members.get(&backup);
        member.or_else(|| Some(&self.retired.get(&backup)?.0))
    }

    /// L2.
    fn refine(&mut self, possible: Vec<BackupId>) -> Option<BackupId> {
        if possible.is_empty() {
            return None;
        }
        let mut best: Option<(u64, BackupId)> = None;
        for _ in 0..CANDIDATES {
            let candidate = possible[self.roll(possible.len())];
            let load = self.load.get(&candidate).copied().unwrap_or(0);
            let read_us = self.known(candidate).map_or(1, |member| member.read_us);
            let until = (u64::from(load) + 1) * u64::from(read_us.max(1));
            if best.is_none_or(|(known, _)| until < known) {
                best = Some((until, candidate));
            }
        }
        best.map(|(_, backup)| backup)
    }

    fn roll(&mut self, sides: usize) -> usize {
        self.random = self.random.wrapping_add(0x9E37_79B9_7F4A_7C15);
        (mix(self.random) % sides as u64) as usize
    }
}

/// splitmix64's end: spreads all bits of a number over all bits.
fn mix(mut z: u64) -> u64 {
    z = (z ^ z >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ z >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ z >> 31
}

/// The copysets of these members (L3): groups of `replicas` servers, each server in up to `groups`.
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
        // Blocks in which all slots have been given.
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

/// The members in a group's slots, or others that stand in for them. `None`: there are too few
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
        // L6; then the member whose slot it is; then the same one everywhere: that with the highest
        // number drawn for it and this slot.
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
