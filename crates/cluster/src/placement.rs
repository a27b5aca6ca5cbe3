//! Where replicas go: anywhere, with refinement, or into copysets.
//!
//! **Rules**
//! - L1: the replicas of a segment lie on different servers, none of them its master, in different
//!   racks where racks are named. Two lives of one machine are one server: until there is a verdict
//!   about the old one both are in the list. With fewer racks than replicas a segment stays
//!   incomplete, and nothing of it is acknowledged.
//! - L4: nor do they lie in the master's own rack, as long as there is somebody elsewhere: the
//!   master's memory is one of the copies. With just as many racks as replicas there is nobody
//!   else, and one of them lies there.
//! - L2: of five random candidates the one is taken that would be done reading first, were its
//!   master to crash now.
//! - L3: copysets depend on the members alone, not on the order in which they came and went: all
//!   masters see the same ones. Server slots, written in base R, are grouped R by R where they
//!   differ in one digit alone: as many digits, as many groups for each server, and no two servers
//!   share more than one. A slot that nobody has had yet makes its group wait; the place of a
//!   crashed server, or of one in the wrong rack, is taken by the same other one in all its groups,
//!   as far as racks allow.
//! - L5: a backup that is drained gets a replica only where nobody else can take it: else a segment
//!   would stay incomplete, and all writes of its master would wait until the drain is taken back.
//!
//! Paper: [Ousterhout15 §3.3] randomisation with refinement; Cidon13 copysets by permutations, here
//! from digits, so that joining servers change nothing for the others (docs/traps.md, trap 25).

use crate::replication::BackupId;
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
        self.backup != other.backup
            && (self.rack.is_none() || self.rack != other.rack)
            && !self.is_one_machine_with(other)
    }
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
    fn is_near(&self, backup: BackupId) -> bool {
        let known = self.members.get(&backup).zip(self.master.as_ref());
        known.is_some_and(|(member, master)| !master.goes_with(member))
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

    /// Those that may take one more replica, or, where there are none, those that are drained (L5).
    fn willing(&mut self, holding: &[BackupId], refusing: &BTreeSet<BackupId>) -> Vec<BackupId> {
        let mut possible = self.possible(holding);
        possible.retain(|backup| !refusing.contains(backup));
        if possible.is_empty() {
            let drained = self.retired.values();
            let drained = drained.filter(|(_, is_superseded)| !is_superseded);
            let drained = drained.map(|(member, _)| member);
            possible = self.fitting(drained, holding);
            possible.retain(|backup| !refusing.contains(backup));
        }
        possible
    }

    /// A segment that this backup was to read first is gone.
    pub fn unload(&mut self, backup: BackupId) {
        if let Some(load) = self.load.get_mut(&backup) {
            *load = load.saturating_sub(1);
        }
    }

    /// L1, L4, and what the layout allows.
    fn possible(&mut self, holding: &[BackupId]) -> Vec<BackupId> {
        if let Layout::Copysets { groups } = self.layout {
            if std::mem::take(&mut self.stale) {
                self.groups = copysets(self.members.values(), self.replicas, groups);
            }
            let has_all =
                |group: &&Vec<BackupId>| holding.iter().all(|backup| group.contains(backup));
            let is_away =
                |group: &&Vec<BackupId>| !group.iter().any(|backup| self.is_near(*backup));
            let fitting = || self.groups.iter().filter(has_all);
            let mut members: BTreeSet<BackupId> =
                fitting().filter(is_away).flatten().copied().collect();
            if members.is_empty() {
                members = fitting().flatten().copied().collect();
            }
            let others: Vec<BackupId> = members
                .into_iter()
                .filter(|backup| !holding.contains(backup))
                .collect();
            if !others.is_empty() {
                return others;
            }
        }
        let fitting = self.fitting(self.members.values(), holding);
        let away = fitting.iter().filter(|backup| !self.is_near(**backup));
        let away: Vec<BackupId> = away.copied().collect();
        if away.is_empty() { fitting } else { away }
    }

    fn known(&self, backup: BackupId) -> Option<&Member> {
        let member = self.members.get(&backup);
        member.or_else(|| Some(&self.retired.get(&backup)?.0))
    }

    /// L1.
    fn fitting<'a>(
        &self,
        members: impl Iterator<Item = &'a Member>,
        holding: &[BackupId],
    ) -> Vec<BackupId> {
        let holders: Vec<&Member> = holding.iter().filter_map(|id| self.known(*id)).collect();
        let fits = |member: &&Member| {
            let mut holders = holders.iter();
            !holding.contains(&member.backup) && holders.all(|holder| holder.goes_with(member))
        };
        members.filter(fits).map(|member| member.backup).collect()
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

/// The members in a group's slots, or whoever stands in for them. `None`: there are too few racks
/// or servers.
fn fill(group: &[u64], by_slot: &BTreeMap<u64, &Member>) -> Option<Vec<BackupId>> {
    let mut chosen: Vec<&Member> = Vec::with_capacity(group.len());
    let fits =
        |chosen: &[&Member], member: &Member| chosen.iter().all(|other| other.goes_with(member));
    let mut missing = Vec::new();
    for slot in group {
        match by_slot.get(slot) {
            Some(member) if fits(&chosen, member) => chosen.push(member),
            _ => missing.push(*slot),
        }
    }
    for slot in missing {
        // The same one everywhere: whoever has the highest number drawn for it and this slot.
        let stand_in = by_slot
            .values()
            .filter(|member| fits(&chosen, member))
            .max_by_key(|member| mix(mix(slot) ^ u64::from(member.backup.slot())))?;
        chosen.push(stand_in);
    }
    Some(chosen.iter().map(|member| member.backup).collect())
}
