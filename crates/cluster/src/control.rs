//! The control log: the segments that it lists are the log, and nothing else is ever replayed.
//!
//! **Invariants**
//! - C1: the state after a record depends only on the state before and the record; a snapshot's
//!   records, applied to an empty state, give the state they were made from.
//! - C2: a segment id is listed at most once in the life of a log, and closed at most once.
//! - C3: only a control segment that begins with a whole snapshot is eligible; of several, the one
//!   with the highest id counts.
//! - C4: a record that does not fit the state is damage, not a reason to guess (docs/traps.md,
//!   traps 1 and 8).
//!
//! Paper: [Rumble14 §4], [Ousterhout15 §4.5] the digest; differs: a log of changes for all heads,
//! whose segments each begin with a snapshot (docs/traps.md, trap 16).

use duramen_base::ids::{Level, SegmentId};
use duramen_base::limits::TABLES_MAX;
use duramen_format::certificate::Certificate;
use duramen_format::control::{
    Added, Damage, LISTED_BYTES_USUAL, ListedSegment, Pass, Record, TABLE_RECORD_BYTES_MAX,
};
use duramen_format::segment::{self, HEADER_BYTES, Header, Kind};
use std::collections::BTreeMap;

/// Most segments of a log with control segments of this capacity: a snapshot must fit into one,
/// with all tables, and leave a quarter to the records after it.
pub fn segments_max(control_capacity: u64) -> u64 {
    let tables = (TABLES_MAX as u64 * TABLE_RECORD_BYTES_MAX).min(control_capacity / 4);
    let room = (control_capacity / 4 * 3).saturating_sub(HEADER_BYTES as u64 + tables);
    room / LISTED_BYTES_USUAL
}

/// A listed segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Listed {
    pub kind: Kind,
    /// The head that writes the segment; 0 for segments of other kinds.
    pub head: u32,
    /// Replicas at a lower replication epoch don't count while the segment is open.
    pub epoch: u64,
    /// Its certificate, once it is closed.
    pub closed: Option<Certificate>,
    /// Raised when it is rewritten in place of its older image.
    pub generation: u64,
}

/// A table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Table {
    pub name: String,
    pub level: Option<Level>,
    /// Entries below this version do not belong to the table, or were cleared.
    pub floor: u64,
}

/// The state that a control log describes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct State {
    pub segments: BTreeMap<SegmentId, Listed>,
    pub tables: BTreeMap<u32, Table>,
    /// Cleaning passes with victims that are still in the log, in the order of their start.
    pub passes: Vec<Pass>,
    /// No object version at or below this one is given again.
    pub safe_version: u64,
    /// No id at or above this one was given.
    pub next_segment: SegmentId,
    /// The last record marks an orderly shutdown.
    pub clean: bool,
}

/// The reason why a control segment cannot be read. The directory is damaged: nothing of it may be
/// served.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    #[error("control segment {segment}: {damage}")]
    Header {
        segment: SegmentId,
        damage: segment::Damage,
    },
    #[error("control segment {segment} holds the header of another one")]
    Foreign { segment: SegmentId },
    #[error("control segment {segment}, byte {offset}: {damage}")]
    Record {
        segment: SegmentId,
        offset: usize,
        damage: Damage,
    },
    #[error("control segment {segment}, byte {offset}: a `{record}` record {why}")]
    Contradiction {
        segment: SegmentId,
        offset: usize,
        record: &'static str,
        why: &'static str,
    },
    /// C3: such a segment is not eligible.
    #[error("control segment {segment} does not begin with a whole snapshot")]
    NoSnapshot { segment: SegmentId },
}

impl State {
    /// Applies one record.
    ///
    /// # Errors
    /// The reason why the record does not fit (C4); the state is unchanged then.
    pub fn apply(&mut self, record: &Record) -> Result<(), &'static str> {
        self.apply_inner(record)?;
        self.clean = matches!(record, Record::CleanShutdown { .. });
        Ok(())
    }

    fn apply_inner(&mut self, record: &Record) -> Result<(), &'static str> {
        match record {
            Record::Snapshot {
                next_segment,
                safe_version,
                ..
            } => {
                if !self.segments.is_empty() || !self.tables.is_empty() {
                    return Err("comes after other records");
                }
                self.raise(*next_segment, *safe_version);
            }
            Record::AddOpen {
                segment,
                epoch,
                head,
                kind,
            } => {
                let listed = Listed {
                    kind: *kind,
                    head: *head,
                    epoch: *epoch,
                    closed: None,
                    generation: 0,
                };
                self.list(*segment, listed)?;
            }
            Record::Segments(listed) => self.list_all(listed)?,
            Record::Closed {
                segment,
                certificate,
            } => {
                let listed = self.listed(*segment)?;
                if listed.closed.is_some() {
                    return Err("closes a segment twice"); // C2
                }
                listed.closed = Some(*certificate);
            }
            Record::Swap {
                version_floor,
                add,
                remove,
            } => self.swap(*version_floor, add, remove)?,
            Record::Pass(pass) => self.pass(pass)?,
            Record::SafeVersion { version } => self.raise(SegmentId::NONE, *version),
            Record::SegmentEpoch { segment, epoch } => self.raise_epoch(*segment, *epoch)?,
            Record::SegmentGeneration {
                segment,
                generation,
                certificate,
            } => self.raise_generation(*segment, *generation, *certificate)?,
            Record::CleanShutdown {
                next_segment,
                safe_version,
            } => self.raise(*next_segment, *safe_version),
            Record::TableCreate { .. }
            | Record::TableDrop { .. }
            | Record::TableClear { .. }
            | Record::TableLevel { .. } => self.table(record)?,
            Record::TableStats { .. } => {}
        }
        Ok(())
    }

    fn list_all(&mut self, segments: &[ListedSegment]) -> Result<(), &'static str> {
        for one in segments {
            let listed = Listed {
                kind: one.kind,
                head: one.head,
                epoch: one.epoch,
                closed: one.closed,
                generation: one.generation,
            };
            self.list(one.segment, listed)?;
        }
        Ok(())
    }

    fn raise_epoch(&mut self, segment: SegmentId, epoch: u64) -> Result<(), &'static str> {
        let listed = self.listed(segment)?;
        if listed.closed.is_some() || listed.epoch >= epoch {
            return Err("gives a replication epoch that is not newer");
        }
        listed.epoch = epoch;
        Ok(())
    }

    fn raise_generation(
        &mut self,
        segment: SegmentId,
        generation: u64,
        certificate: Certificate,
    ) -> Result<(), &'static str> {
        let listed = self.listed(segment)?;
        if listed.closed.is_none() || listed.generation >= generation {
            return Err("gives a generation that is not newer");
        }
        listed.generation = generation;
        listed.closed = Some(certificate);
        Ok(())
    }

    fn table(&mut self, record: &Record) -> Result<(), &'static str> {
        const UNKNOWN: &str = "names a table that does not exist";
        match record {
            Record::TableCreate {
                table,
                floor,
                level,
                name,
            } => {
                if self.tables.contains_key(table) {
                    return Err("creates a table that exists");
                }
                let created = Table {
                    name: name.clone(),
                    level: *level,
                    floor: *floor,
                };
                self.tables.insert(*table, created);
                self.raise_below(*floor);
            }
            Record::TableDrop { table, floor } => {
                self.tables.remove(table).ok_or(UNKNOWN)?;
                self.raise_below(*floor);
            }
            Record::TableClear { table, floor } => {
                let cleared = self.tables.get_mut(table).ok_or(UNKNOWN)?;
                cleared.floor = cleared.floor.max(*floor);
                self.raise_below(*floor);
            }
            Record::TableLevel { table, level } => {
                self.tables.get_mut(table).ok_or(UNKNOWN)?.level = *level;
            }
            _ => unreachable!("only records of tables come here"),
        }
        Ok(())
    }

    fn listed(&mut self, segment: SegmentId) -> Result<&mut Listed, &'static str> {
        self.segments
            .get_mut(&segment)
            .ok_or("names a segment that is not listed")
    }

    fn list(&mut self, segment: SegmentId, listed: Listed) -> Result<(), &'static str> {
        if segment == SegmentId::NONE {
            return Err("lists no segment");
        }
        if self.segments.contains_key(&segment) {
            return Err("lists a segment twice"); // C2
        }
        self.segments.insert(segment, listed);
        self.raise(SegmentId(segment.0.saturating_add(1)), 0);
        Ok(())
    }

    fn swap(
        &mut self,
        version_floor: u64,
        add: &[Added],
        remove: &[SegmentId],
    ) -> Result<(), &'static str> {
        for id in remove {
            let victim = self.segments.get(id).ok_or("removes what is not listed")?;
            if victim.closed.is_none() {
                return Err("removes an open segment");
            }
        }
        if add.iter().any(|a| self.segments.contains_key(&a.segment)) {
            return Err("lists a segment twice"); // C2
        }
        for added in add {
            let listed = Listed {
                kind: Kind::Survivor,
                head: 0,
                epoch: added.epoch,
                closed: Some(added.certificate), // before it is listed: docs/traps.md, trap 9
                generation: 0,
            };
            self.list(added.segment, listed)?;
        }
        for id in remove {
            self.segments.remove(id);
        }
        for pass in &mut self.passes {
            pass.victims.retain(|victim| !remove.contains(victim));
        }
        self.passes.retain(|pass| !pass.victims.is_empty());
        self.raise(SegmentId::NONE, version_floor);
        Ok(())
    }

    fn pass(&mut self, pass: &Pass) -> Result<(), &'static str> {
        if !pass
            .victims
            .iter()
            .all(|victim| self.segments.contains_key(victim))
        {
            return Err("cleans what is not listed");
        }
        let after = pass.first.0.saturating_add(u64::from(pass.count));
        self.raise(SegmentId(after), 0);
        if !pass.victims.is_empty() {
            self.passes.push(pass.clone());
        }
        Ok(())
    }

    fn raise(&mut self, next_segment: SegmentId, safe_version: u64) {
        self.next_segment = self.next_segment.max(next_segment);
        self.safe_version = self.safe_version.max(safe_version);
    }

    /// A floor implies that versions below it were given.
    fn raise_below(&mut self, floor: u64) {
        self.raise(SegmentId::NONE, floor.saturating_sub(1));
    }

    /// The records that give this state (C1), the `Snapshot` first.
    pub fn snapshot(&self) -> Vec<Record> {
        let mut records = vec![Record::Snapshot {
            next_segment: self.next_segment,
            safe_version: self.safe_version,
            records: 0,
        }];
        for (table, info) in &self.tables {
            records.push(Record::TableCreate {
                table: *table,
                floor: info.floor,
                level: info.level,
                name: info.name.clone(),
            });
        }
        let listed = self.segments.iter().map(|(segment, listed)| ListedSegment {
            segment: *segment,
            epoch: listed.epoch,
            generation: listed.generation,
            head: listed.head,
            kind: listed.kind,
            closed: listed.closed,
        });
        records.push(Record::Segments(listed.collect()));
        records.extend(self.passes.iter().cloned().map(Record::Pass));
        let following = (records.len() - 1) as u32;
        if let Some(Record::Snapshot { records, .. }) = records.first_mut() {
            *records = following;
        }
        records
    }

    /// The state that a control segment's certified bytes describe.
    ///
    /// # Errors
    /// Any [`Error`]: the segment is damaged, or not eligible (C3).
    pub fn replay(segment: SegmentId, bytes: &[u8]) -> Result<State, Error> {
        let mut state = State::default();
        each_record(segment, bytes, |offset, record| {
            state.apply(record).map_err(|why| Error::Contradiction {
                segment,
                offset,
                record: record.name(),
                why,
            })
        })?;
        state.raise(SegmentId(segment.0.saturating_add(1)), 0);
        Ok(state)
    }
}

/// Shows each record of a control segment's certified bytes, with its offset; the first is always a
/// whole snapshot's (C3).
///
/// # Errors
/// Any [`Error`], also `show`'s.
pub fn each_record(
    segment: SegmentId,
    bytes: &[u8],
    mut show: impl FnMut(usize, &Record) -> Result<(), Error>,
) -> Result<(), Error> {
    let header = Header::decode(bytes).map_err(|damage| Error::Header { segment, damage })?;
    if header.segment != segment || header.kind != Kind::Control {
        return Err(Error::Foreign { segment });
    }
    let mut at = HEADER_BYTES;
    let mut missing = None;
    while at < bytes.len() {
        let rest = bytes.get(at..).unwrap_or_default();
        let (record, length) = Record::decode(rest).map_err(|damage| Error::Record {
            segment,
            offset: at,
            damage,
        })?;
        missing = match (missing, &record) {
            (None, Record::Snapshot { records, .. }) => Some(*records),
            (None, _) => return Err(Error::NoSnapshot { segment }),
            (Some(missing), _) => Some(u32::saturating_sub(missing, 1)),
        };
        show(at, &record)?;
        at += length;
    }
    match missing {
        Some(0) => Ok(()),
        _ => Err(Error::NoSnapshot { segment }),
    }
}
