//! The data that survive a crash: bytes of segments and changes of tables. And their replay, by the
//! plainest form of the rule.

use duramen_base::ids::{SegmentId, TableId};
use duramen_engine::{Collected, Log, Pass, Piece, Swap, TableChange};
use duramen_format::entry::{self, Kind};
use duramen_format::segment::{HEADER_BYTES, Header};
use std::collections::{BTreeMap, BTreeSet};

/// A piece as the disk gets it.
#[derive(Clone, Debug)]
pub enum Write {
    Open(u64),
    Data(u64, usize, Vec<u8>),
    Close(u64, usize),
}

/// The content of one collection: changes of tables, and pieces by head.
#[derive(Clone, Debug, Default)]
pub struct Commit {
    pub changes: Vec<TableChange>,
    passes: Vec<Pass>,
    pub by_head: BTreeMap<u16, Vec<Write>>,
}

#[derive(Clone, Default)]
pub struct Disk {
    /// Bytes, and whether it is closed.
    pub segments: BTreeMap<u64, (Vec<u8>, bool)>,
    /// The segments that make up the log: these and no others.
    pub listed: BTreeSet<u64>,
    pub changes: Vec<TableChange>,
    pub passes: Vec<Pass>,
    pub version_floor: u64,
}

/// The head of each segment: its Open names the head.
#[derive(Default)]
pub struct Heads(BTreeMap<u64, u16>);

impl Heads {
    pub fn commit_of(&mut self, log: &Log, collected: &Collected) -> Commit {
        let mut commit = Commit {
            changes: collected.changes().to_vec(),
            passes: collected.passes().to_vec(),
            ..Commit::default()
        };
        for piece in log.pieces(collected) {
            let (segment, write) = match piece {
                Piece::Open { segment, head } => {
                    assert!(self.0.insert(segment.0, head).is_none(), "opened twice");
                    (segment, Write::Open(segment.0))
                }
                Piece::Data {
                    segment,
                    offset,
                    bytes,
                } => (
                    segment,
                    Write::Data(segment.0, offset as usize, bytes.to_vec()),
                ),
                Piece::Close { segment, length } => {
                    (segment, Write::Close(segment.0, length as usize))
                }
            };
            let head = *self.0.get(&segment.0).expect("opened before it is written");
            commit.by_head.entry(head).or_default().push(write);
        }
        commit
    }
}

impl Disk {
    pub fn write(&mut self, write: &Write) {
        match write {
            Write::Open(segment) => {
                let fresh = self.segments.insert(*segment, (Vec::new(), false));
                assert!(fresh.is_none());
                self.listed.insert(*segment);
            }
            Write::Data(segment, offset, data) => {
                let (bytes, closed) = self.segments.get_mut(segment).expect("open");
                assert!(!*closed && bytes.len() == *offset, "pieces are in order");
                bytes.extend_from_slice(data);
            }
            Write::Close(segment, length) => {
                let (bytes, closed) = self.segments.get_mut(segment).expect("open");
                assert!(!*closed && bytes.len() == *length);
                *closed = true;
            }
        }
    }

    /// Writes those heads' parts of a commit for which `keep` returns true.
    pub fn apply(&mut self, commit: &Commit, keep: impl Fn(u16) -> bool) {
        for change in &commit.changes {
            // A floor implies that versions below it were given, as for `cluster::control`.
            let floor = floor_of(change).map_or(0, |(_, floor)| floor);
            self.version_floor = self.version_floor.max(floor.saturating_sub(1));
        }
        self.changes.extend(commit.changes.iter().cloned());
        self.passes.extend(commit.passes.iter().cloned());
        for (head, writes) in &commit.by_head {
            if keep(*head) {
                writes.iter().for_each(|write| self.write(write));
            }
        }
    }
}

impl Disk {
    /// A frame of a survivor; not listed before its Swap.
    pub fn write_survivor(&mut self, segment: SegmentId, bytes: &[u8]) {
        self.segments.insert(segment.0, (bytes.to_vec(), true));
    }

    pub fn swap(&mut self, swap: &Swap) {
        for segment in &swap.add {
            assert!(
                self.segments[&segment.0].1,
                "a survivor is closed before it is listed"
            );
            assert!(self.listed.insert(segment.0));
        }
        for segment in &swap.remove {
            assert!(self.listed.remove(&segment.0));
        }
        self.version_floor = self.version_floor.max(swap.version_floor);
        for pass in &mut self.passes {
            pass.victims.retain(|victim| !swap.remove.contains(victim));
        }
        self.passes.retain(|pass| !pass.victims.is_empty());
    }

    /// Frees the frames of segments that were swapped out.
    pub fn free(&mut self, swap: &Swap) {
        for segment in &swap.remove {
            self.segments.remove(&segment.0);
        }
    }

    /// All entries of a key, for a message.
    pub fn tell(&self, name: &Name) -> String {
        let mut told = String::new();
        for (id, (bytes, closed)) in &self.segments {
            let listed = self.listed.contains(id);
            let mut at = HEADER_BYTES;
            while at < bytes.len() {
                let entry = entry::parse(&bytes[at..]).expect("whole entries");
                if (entry.table, entry.key) == (name.0, &name.1[..]) {
                    let (kind, victim, length) = (entry.kind, entry.victim, entry.value.len());
                    told += &format!(
                        "\nsegment {id} (listed {listed}, closed {closed}) at {at}: {kind:?} \
                         version {} victim {victim}, {length} bytes",
                        entry.version
                    );
                }
                at += entry.padded_bytes;
            }
        }
        told
    }

    /// A missing version of a key below its highest one. Cleaning leaves such gaps; a crash must
    /// not: a version that was derived from a lost one would exist without it.
    pub fn gap(&self, name: &Name) -> Option<u64> {
        let mut versions = BTreeSet::new();
        for (bytes, _) in self.segments.values() {
            let mut at = HEADER_BYTES;
            while at < bytes.len() {
                let entry = entry::parse(&bytes[at..]).expect("whole entries");
                if (entry.table, entry.key) == (name.0, &name.1[..]) {
                    versions.insert(entry.version);
                }
                at += entry.padded_bytes;
            }
        }
        let (first, last) = (versions.first().copied()?, versions.last().copied()?);
        (first..last).find(|version| !versions.contains(version))
    }

    /// The machine restarts: unlisted segments are dropped, open ones end at their present length.
    pub fn restart(&mut self) {
        let listed = &self.listed;
        self.segments.retain(|id, _| listed.contains(id));
        for (_, closed) in self.segments.values_mut() {
            *closed = true;
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Recovered {
    pub version: u64,
    pub value: Vec<u8>,
    /// 0 = never.
    pub expires_at_ms: u64,
}

/// Key with its table.
pub type Name = (u32, Vec<u8>);

/// The floor that this change gives a table and its parts.
fn floor_of(change: &TableChange) -> Option<(TableId, u64)> {
    match change {
        TableChange::Create { table, floor, .. }
        | TableChange::Drop { table, floor }
        | TableChange::Clear { table, floor } => Some((*table, *floor)),
        TableChange::SetLevel { .. } => None,
    }
}

/// The replay rule: the highest version wins; a tombstone of version v kills up to v; entries below
/// a table's floor are dead. Also returns the largest version seen. The order of segments does not
/// matter, so they are taken as they come.
pub fn replay(disk: &Disk) -> (BTreeMap<Name, Recovered>, u64) {
    let mut floors: BTreeMap<u32, u64> = BTreeMap::new();
    for (table, floor) in disk.changes.iter().filter_map(floor_of) {
        let known = floors.entry(table.0).or_default();
        *known = (*known).max(floor);
    }
    let mut best: BTreeMap<Name, (u64, Option<Recovered>)> = BTreeMap::new();
    let mut version_max = disk.version_floor;
    for id in &disk.listed {
        let (bytes, _) = &disk.segments[id];
        if bytes.is_empty() {
            continue;
        }
        let header = Header::decode(bytes).expect("a header");
        assert_eq!(header.segment.0, *id);
        let mut at = HEADER_BYTES;
        while at < bytes.len() {
            let entry = entry::parse(&bytes[at..]).expect("whole entries");
            at += entry.padded_bytes;
            version_max = version_max.max(entry.version);
            let table = TableId(entry.table).whole();
            if entry.version < floors.get(&table.0).copied().unwrap_or(0) {
                continue;
            }
            let object = (entry.kind == Kind::Object).then(|| Recovered {
                version: entry.version,
                value: entry.value.to_vec(),
                expires_at_ms: entry.expires_at_ms,
            });
            // At the same version a tombstone wins.
            let rank = |version: u64, is_object: bool| (version, !is_object);
            let new = rank(entry.version, object.is_some());
            let known = best.entry((entry.table, entry.key.to_vec())).or_default();
            if new >= rank(known.0, known.1.is_some()) {
                *known = (entry.version, object);
            }
        }
        assert_eq!(at, bytes.len());
    }
    let alive = best
        .into_iter()
        .filter_map(|(name, (_, object))| Some((name, object?)));
    (alive.collect(), version_max)
}
