//! The segments of a master's log, and their replicas.

use super::segment::{Progress, Replica, Segment};
use super::{BackupId, Config, Found, SegmentId};
use crate::control::Listed;
use duramen_base::ids::Level;
use duramen_base::planted::{Bug, has_bug};
use duramen_format::certificate::Certificate;
use duramen_format::segment::Kind;
use std::collections::BTreeMap;

/// The segments of a log.
pub struct Segments {
    segments: BTreeMap<SegmentId, Segment>,
    /// The last segment of each head.
    heads: BTreeMap<u32, SegmentId>,
    /// Replicas of each segment.
    wanted: usize,
    one_stream: bool,
}

impl Segments {
    pub(super) fn new(config: &Config) -> Segments {
        Segments {
            segments: BTreeMap::new(),
            heads: BTreeMap::new(),
            wanted: config.replicas,
            one_stream: config.one_stream,
        }
    }

    // --- what users see

    /// Whether a backup's replica of a segment counts, or will.
    pub fn holds(&self, backup: BackupId, segment: SegmentId) -> bool {
        let known = self.get(segment);
        known.is_some_and(|known| known.replicas.iter().any(|held| held.backup == backup))
    }

    /// Backups with all of a closed segment, synced: sources of its bytes.
    pub fn holders(&self, segment: SegmentId) -> Vec<BackupId> {
        let Some(known) = self.get(segment) else {
            return Vec::new();
        };
        let whole = |replica: &&Replica| known.is_whole(replica.synced);
        let whole = known.replicas.iter().filter(whole);
        whole.map(|replica| replica.backup).collect()
    }

    /// Whether a backup has all of a closed segment, synced.
    pub fn has_whole(&self, backup: BackupId, segment: SegmentId) -> bool {
        let known = self.get(segment);
        known.is_some_and(|known| {
            let mut replicas = known.replicas.iter();
            replicas.any(|replica| replica.backup == backup && known.is_whole(replica.synced))
        })
    }

    /// The certificate of a closed segment.
    pub fn closed_certificate(&self, segment: SegmentId) -> Option<Certificate> {
        let known = self.get(segment)?;
        known.closed.then_some(known.queued)
    }

    /// A backup is about to be asked to sync: its acknowledgements so far will be synced when it
    /// answers.
    pub fn sync_begins(&mut self, backup: BackupId) {
        for segment in self.segments.values_mut() {
            if let Some(replica) = segment.replica_mut(backup) {
                replica.syncing = replica.buffered;
            }
        }
    }

    /// The backup has answered the request to sync.
    pub fn sync_ends(&mut self, backup: BackupId) {
        for segment in self.segments.values_mut() {
            if let Some(replica) = segment.replica_mut(backup) {
                let covered = match has_bug(Bug::SyncCoversAll) {
                    true => replica.buffered,
                    false => replica.syncing,
                };
                replica.acked(covered, Level::Synced);
            }
        }
    }

    /// A survivor was written as a whole to `backup`, beside the stream, and is synced there.
    pub fn survivor_durable(&mut self, id: SegmentId, backup: BackupId, certificate: Certificate) {
        let known = self
            .segments
            .entry(id)
            .or_insert_with(|| Segment::new(Kind::Survivor, 0, None));
        known.queued = certificate;
        known.closed = true;
        known.replicas.push(Replica::whole(backup, certificate));
    }

    // --- one segment

    pub(super) fn get(&self, id: SegmentId) -> Option<&Segment> {
        self.segments.get(&id)
    }

    pub(super) fn get_mut(&mut self, id: SegmentId) -> Option<&mut Segment> {
        self.segments.get_mut(&id)
    }

    /// # Panics
    /// If it is unknown.
    pub(super) fn known(&self, id: SegmentId) -> &Segment {
        &self.segments[&id]
    }

    /// # Panics
    /// If it is unknown.
    pub(super) fn known_mut(&mut self, id: SegmentId) -> &mut Segment {
        let known = self.segments.get_mut(&id);
        known.unwrap_or_else(|| panic!("segment {id} was never opened"))
    }

    /// A head has begun a segment, or a pass a survivor.
    pub(super) fn open(&mut self, id: SegmentId, kind: Kind, head: u32) {
        let predecessor = match kind {
            Kind::Head => self.heads.insert(head, id),
            Kind::Survivor | Kind::Control => None,
        };
        let before = self
            .segments
            .insert(id, Segment::new(kind, head, predecessor));
        assert!(before.is_none(), "segment {id} is opened twice"); // control::C2
    }

    /// A control segment begins, with a snapshot that lists everything.
    pub(super) fn open_control(
        &mut self,
        id: SegmentId,
        predecessor: Option<SegmentId>,
        snapshot: Certificate,
    ) {
        let mut segment = Segment::new(Kind::Control, 0, predecessor);
        segment.queued = snapshot;
        segment.listed_at = Some(0);
        self.segments.insert(id, segment);
    }

    /// A restart found a replica of a segment, which `listed` has in the log.
    pub(super) fn adopt(&mut self, found: &Found, listed: &Listed) {
        let segment = self
            .segments
            .entry(found.segment)
            .or_insert_with(|| Segment {
                epoch: listed.epoch.max(found.epoch),
                queued: listed.closed.unwrap_or(found.certificate),
                closed: true,
                listed_at: Some(0),
                close_recorded: listed.closed.is_some(),
                was_placed: true,
                ..Segment::new(listed.kind, listed.head, None)
            });
        segment.replicas.push(Replica::found(found));
    }

    pub(super) fn remove(&mut self, id: SegmentId) -> Option<Segment> {
        self.segments.remove(&id)
    }

    // --- all segments

    pub(super) fn iter(&self) -> impl Iterator<Item = (SegmentId, &Segment)> {
        self.segments.iter().map(|(id, segment)| (*id, segment))
    }

    /// The segments for which `which` holds.
    pub(super) fn find(&self, which: impl Fn(&Segment) -> bool) -> Vec<SegmentId> {
        let found = self.iter().filter(|(_, segment)| which(segment));
        found.map(|(id, _)| id).collect()
    }

    /// The open data segments with a replica at this backup.
    pub(super) fn open_at(&self, backup: BackupId) -> Vec<SegmentId> {
        self.find(|segment| {
            let mut replicas = segment.replicas.iter();
            segment.kind == Kind::Head
                && !segment.closed
                && replicas.any(|replica| replica.backup == backup)
        })
    }

    /// Number of closed segments for which no backup takes a copy that they lack.
    pub(super) fn count_short(&self) -> usize {
        let is_short = |segment: &Segment| {
            let taken = segment.replicas.iter().filter(|replica| !replica.refused);
            segment.kind != Kind::Control && segment.close_recorded && taken.count() < self.wanted
        };
        self.find(is_short).len()
    }

    // --- progress

    /// Replicas of each segment.
    pub(super) fn wanted(&self) -> usize {
        self.wanted
    }

    /// See [`Config::one_stream`].
    pub(super) fn is_one_stream(&self) -> bool {
        self.one_stream
    }

    /// The level that the rules call "ordered".
    pub(super) fn ordering(&self) -> Level {
        match self.one_stream {
            true => Level::Memory,
            false => Level::Synced,
        }
    }

    /// The progress of a segment on all of its replicas.
    ///
    /// # Panics
    /// If it is unknown.
    pub(super) fn on_all(&self, id: SegmentId, level: Level) -> Progress {
        self.known(id).on_all(self.wanted, level)
    }

    pub(super) fn ordered(&self, id: SegmentId) -> Progress {
        self.on_all(id, self.ordering())
    }
}
