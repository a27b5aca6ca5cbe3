//! The control log: the records that the rules write, and what they permit once they are on all
//! replicas.

use super::floor::Floor;
use super::replicas::{Allowed, LostControl, Replicas};
use super::segment::{Lsn, Segment};
use super::segments::Segments;
use super::{BackupId, Certificate, Config, SegmentId};
use crate::control::State;
use duramen_base::ids::Level;
use duramen_base::planted::{Bug, has_bug};
use duramen_format::control::{Pass, Record};
use duramen_format::segment::{HEADER_BYTES, Header, Kind};
use std::collections::{BTreeSet, VecDeque};

/// One segment of the control log; its bytes are kept here until it is freed.
struct ControlSegment {
    id: SegmentId,
    /// Position of its first byte.
    base: Lsn,
    bytes: Vec<u8>,
    certificate: Certificate,
    /// Covers its header and snapshot.
    snapshot: Certificate,
}

/// The control log of a master.
pub struct ControlLog {
    state: State,
    /// The newest last. Only the last is appended to.
    control: VecDeque<ControlSegment>,
    /// Whether a new control segment is wanted.
    is_wanted: bool,
    /// The newest control segment was too full for a record: the next one's snapshot has it
    /// (replication::O14).
    owes: bool,
    /// Passes with those of their victims that are not listed yet (replication::O15).
    unannounced: Vec<Pass>,
    floor: Floor,
    /// The log id in headers of control segments.
    server: u64,
    capacity: u32,
    roll_bytes: u32,
}

impl ControlLog {
    pub(super) fn new(config: &Config, state: State) -> ControlLog {
        ControlLog {
            state,
            control: VecDeque::new(),
            is_wanted: true,
            owes: false,
            unannounced: Vec::new(),
            floor: Floor::new(config.coordinated),
            server: config.server,
            capacity: config.control_capacity,
            roll_bytes: config.control_roll_bytes,
        }
    }

    // --- what users see

    /// Its state, with records that are still in flight.
    pub fn state(&self) -> &State {
        &self.state
    }

    /// Bytes of a control segment, for a [`Send`](super::Send) of it.
    ///
    /// # Panics
    /// If the segment is none, or was freed.
    pub fn bytes(&self, segment: SegmentId) -> &[u8] {
        let control = self.control.iter().find(|control| control.id == segment);
        &control.expect("a control segment on its way").bytes
    }

    /// The control segment that is appended to.
    pub fn head(&self) -> Option<SegmentId> {
        self.control.back().map(|control| control.id)
    }

    /// Its end, with records that are in flight.
    pub fn end(&self) -> u64 {
        let newest = self.control.back();
        newest.map_or(0, |control| {
            // Records for the next control segment are in its snapshot, which counts as a whole
            // (replication::O14).
            control.base + u64::from(control.certificate.length) + u64::from(self.owes)
        })
    }

    // --- records

    /// Writes a record that depends only on its place in the control log.
    ///
    /// # Panics
    /// If the record contradicts the state, or a rule writes such records.
    pub(super) fn record(&mut self, record: Record, replicas: &mut Replicas) {
        match record {
            Record::Pass(pass) => self.announce(pass, replicas),
            Record::TableCreate { .. }
            | Record::TableDrop { .. }
            | Record::TableClear { .. }
            | Record::TableLevel { .. }
            | Record::SafeVersion { .. }
            | Record::CleanShutdown { .. } => {
                self.write(&record, replicas);
            }
            _ => panic!("a `{}` record is written by a rule", record.name()),
        }
    }

    /// Announces the pass for the victims that are listed; the others wait (replication::O15).
    fn announce(&mut self, pass: Pass, replicas: &mut Replicas) {
        let (first, count) = (pass.first, pass.count);
        let is_listed = |victim: &SegmentId| self.state.segments.contains_key(victim);
        let (victims, later): (Vec<SegmentId>, Vec<SegmentId>) =
            pass.victims.into_iter().partition(is_listed);
        if !victims.is_empty() || later.is_empty() {
            let pass = Pass {
                first,
                count,
                victims,
            };
            self.write(&Record::Pass(pass), replicas);
        }
        if !later.is_empty() && !has_bug(Bug::LaterVictimsForgotten) {
            self.unannounced.push(Pass {
                first,
                count,
                victims: later,
            });
        }
    }

    /// replication::O15: segments were listed just now.
    pub(super) fn announce_listed(&mut self, replicas: &mut Replicas) {
        for pass in std::mem::take(&mut self.unannounced) {
            self.announce(pass, replicas);
        }
    }

    /// Victims for which passes wait are given up, unless they `may_be_listed` in time.
    pub(super) fn forget_victims(&mut self, may_be_listed: impl Fn(SegmentId) -> bool) {
        for pass in &mut self.unannounced {
            pass.victims.retain(|victim| may_be_listed(*victim));
        }
        self.unannounced.retain(|pass| !pass.victims.is_empty());
    }

    /// Applies a record to the state and appends it to the control log; returns its end. Records
    /// before the first control segment are in its snapshot; so are those that do not fit into the
    /// newest one (replication::O14).
    pub(super) fn write(&mut self, record: &Record, replicas: &mut Replicas) -> Lsn {
        if let Err(why) = self.state.apply(record) {
            panic!("a `{}` record {why}: {record:?}", record.name()); // control::C4: a bug, not damage
        }
        let Some(control) = self.control.back_mut() else {
            return 0;
        };
        let start = control.bytes.len();
        if !self.owes {
            record.encode(&mut control.bytes);
        }
        if self.owes || control.bytes.len() > self.capacity as usize {
            control.bytes.truncate(start);
            self.is_wanted = true;
            self.owes = !has_bug(Bug::TooLongIsWritten);
            return self.end();
        }
        control.certificate = control.certificate.extended(&control.bytes[start..]);
        let (id, certificate) = (control.id, control.certificate);
        let end = control.base + u64::from(certificate.length);
        let roll = self.roll_bytes.max(2 * control.snapshot.length);
        self.is_wanted |= certificate.length >= roll.min(self.capacity / 2);
        replicas.queue(id, certificate);
        end
    }

    /// Writes the records of one segment (replication::O1, replication::O4, replication::O8).
    pub(super) fn list(&mut self, id: SegmentId, replicas: &mut Replicas) -> bool {
        let ordered = replicas.segments.ordered(id);
        let segment = replicas.segments.known(id);
        let (kind, head, epoch, queued) =
            (segment.kind, segment.head, segment.epoch, segment.queued);
        let early = has_bug(Bug::ListedBeforeOpen);
        if segment.listed_at.is_none() && (ordered.open || early) {
            let record = Record::AddOpen {
                segment: id,
                epoch,
                head,
                kind,
            };
            let at = self.write(&record, replicas);
            replicas.segments.known_mut(id).listed_at = Some(at);
            self.announce_listed(replicas);
            return true;
        }
        let in_parts = has_bug(Bug::EpochBeforeAll);
        let filled = ordered.length >= segment.epoch_from || in_parts;
        if segment.epoch_wanted && ordered.open && filled {
            let at = self.write(&Record::SegmentEpoch { segment: id, epoch }, replicas);
            let segment = replicas.segments.known_mut(id);
            (segment.epoch_wanted, segment.epoch_at) = (false, Some(at));
            return true;
        }
        let whole = segment.is_whole(ordered) || segment.closed && has_bug(Bug::ClosedBeforeWhole);
        if !segment.close_recorded && segment.listed_at.is_some() && whole {
            let record = Record::Closed {
                segment: id,
                certificate: queued,
            };
            self.write(&record, replicas);
            replicas.segments.known_mut(id).close_recorded = true;
            return true;
        }
        false
    }

    // --- its segments

    /// A replica of a control segment is damaged, or in the wrong place: the log continues in a new
    /// one, which begins with a snapshot (replication::O7).
    pub(super) fn renew(&mut self) {
        self.is_wanted = true;
    }

    /// Backups that hold the newest control segment.
    pub(super) fn newest_at(&self, segments: &Segments) -> Vec<BackupId> {
        let newest = self.head().and_then(|id| segments.get(id));
        newest.into_iter().flat_map(Segment::backups).collect()
    }

    /// Replicas of control segments do not count any more (replication::O8).
    pub(super) fn lost(&mut self, lost: impl IntoIterator<Item = LostControl>) {
        let current = self.head();
        let goes_on = has_bug(Bug::ControlGoesOn);
        for lost in lost {
            self.is_wanted |= Some(lost.id) == current && !goes_on;
            self.floor.lost(lost, current);
        }
    }

    /// replication::O7: the next control segment, if one is wanted and the one before is complete
    /// on its remaining replicas.
    pub(super) fn go_on(
        &mut self,
        replicas: &mut Replicas,
        next_id: &mut dyn FnMut() -> SegmentId,
    ) -> bool {
        let segments = &replicas.segments;
        let complete = self.control.back().is_none_or(|before| {
            let segment = segments.known(before.id);
            if segment.replicas.is_empty() && segment.was_placed
                || self.control.len() > 1 && segment.has_lost
            {
                return true; // nothing of it is left, or it will never be on all
            }
            let left = segment.replicas.len().clamp(1, segments.wanted());
            // One successor at a time: the one before this is closed and gone first.
            self.control.len() == 1
                && segment.on_all(left, segments.ordering()).length == segment.queued.length
                || self.control.len() == 1 && has_bug(Bug::RollBeforeComplete)
        });
        if !self.is_wanted || !complete {
            return false;
        }
        self.begin(next_id(), replicas);
        true
    }

    /// replication::O7: begins a control segment with a snapshot of the state.
    fn begin(&mut self, id: SegmentId, replicas: &mut Replicas) {
        (self.is_wanted, self.owes) = (false, false);
        self.floor.begins(id);
        self.state.next_segment = self.state.next_segment.max(SegmentId(id.0 + 1));
        let header = Header {
            kind: Kind::Control,
            segment: id,
            log: self.server,
            head: 0,
            capacity: self.capacity,
        };
        let mut bytes = header.encode().to_vec();
        debug_assert_eq!(bytes.len(), HEADER_BYTES);
        for record in self.state.snapshot() {
            record.encode(&mut bytes);
        }
        let certificate = Certificate::of(&bytes);
        assert!(
            certificate.length <= self.capacity,
            "the list of segments outgrew a segment"
        );
        let base = self.control.back().map_or(0, |before| {
            before.base + u64::from(before.certificate.length)
        });
        let predecessor = self.head();
        if let Some(before) = predecessor {
            replicas.segments.known_mut(before).closed = true;
        }
        replicas.segments.open_control(id, predecessor, certificate);
        replicas.agenda.add(id);
        self.control.push_back(ControlSegment {
            id,
            base,
            bytes,
            certificate,
            snapshot: certificate,
        });
    }

    /// replication::O7: takes the oldest control segment, if its successor has taken over: it is
    /// garbage.
    pub(super) fn take_old(&mut self, segments: &Segments) -> Option<SegmentId> {
        if self.control.len() <= 1 {
            return None;
        }
        let (first, mut later) = (&self.control[0], self.control.iter().skip(1));
        let old = segments.known(first.id);
        let left = old.replicas.len().min(segments.wanted());
        let closed = left == 0 || old.is_whole(old.on_all(left, Level::Synced));
        let succeeded = later.any(|new| new.is_on_all(segments, Level::Synced));
        let early = has_bug(Bug::FreeControlEarly);
        if !early && (!closed || !succeeded) {
            return None;
        }
        self.control.pop_front().map(|old| old.id)
    }

    /// Whether there is one control segment.
    pub(super) fn is_single(&self) -> bool {
        self.control.len() == 1
    }

    /// Whether an older control segment is still there.
    pub(super) fn has_old(&self) -> bool {
        self.control.len() > 1
    }

    // --- what it permits

    /// The end of the part that is on all replicas at `level`, and counts.
    pub(super) fn at(&self, segments: &Segments, level: Level) -> Lsn {
        let unnoted = self.floor.unnoted();
        for control in self.control.iter().rev() {
            if unnoted.is_some_and(|floor| control.id >= floor) {
                continue; // replication::O10
            }
            let length = segments.on_all(control.id, level).length;
            if length >= control.snapshot.length {
                // replication::O14: while the one before is open, a recovery may take that for the
                // newest.
                let alone = segments.known(control.id).predecessor.is_none()
                    || has_bug(Bug::SnapshotCountsBesideOlder);
                return control.base + if alone { u64::from(length) } else { 0 };
            }
        }
        0
    }

    /// The end of the part that counts, synced; 0 if none of it does.
    pub fn reached(&self, segments: &Segments) -> u64 {
        self.at(segments, Level::Synced)
    }

    /// replication::O8: nothing of a segment counts before the record of its epoch is synced.
    pub(super) fn counts(&self, segment: &Segment, segments: &Segments) -> bool {
        if has_bug(Bug::CountsBeforeEpoch) {
            return true;
        }
        !segment.epoch_wanted
            && segment
                .epoch_at
                .is_none_or(|at| at <= self.at(segments, Level::Synced))
    }

    /// Whether a closed segment is on all its replicas, synced. One that is not known any more
    /// needs none.
    pub(super) fn is_safe(&self, id: SegmentId, segments: &Segments) -> bool {
        segments.get(id).is_none_or(|known| {
            known.is_whole(segments.on_all(id, Level::Synced)) && self.counts(known, segments)
        })
    }

    /// The rules' permission for one segment.
    pub(super) fn allowed(&self, id: SegmentId, segments: &mut Segments) -> Allowed {
        let data = self.allows_data(id, segments);
        let snapshot = self.control.iter().find(|control| control.id == id);
        Allowed {
            data,
            close: self.allows_close(id, segments),
            snapshot: snapshot.map(|control| control.snapshot),
        }
    }

    /// Whether data may be sent: by replication::O2 and replication::O3, or, for a control
    /// segment's bytes after its snapshot, by replication::O7.
    fn allows_data(&self, id: SegmentId, segments: &mut Segments) -> bool {
        let segment = segments.known(id);
        if segment.kind == Kind::Head {
            let Some(at) = segment.listed_at else {
                return false;
            };
            if at > self.at(segments, segments.ordering()) && !has_bug(Bug::DataBeforeListed) {
                return false;
            }
        }
        let Some(before) = segment.predecessor else {
            return true;
        };
        if has_bug(match segment.kind {
            Kind::Control => Bug::MoreBeforeClose,
            _ => Bug::DataBeforePredecessor,
        }) {
            return true;
        }
        let done = segments.get(before).is_none_or(|predecessor| {
            if predecessor.kind == Kind::Control && predecessor.replicas.is_empty() {
                return true; // nothing of it is left
            }
            let left = predecessor.replicas.len().clamp(1, segments.wanted());
            let wanted = if predecessor.kind == Kind::Control {
                left
            } else {
                segments.wanted()
            };
            // If the record of its epoch may be lost, an older and shorter replica may count again
            // (replication::O8).
            let counts = predecessor.kind == Kind::Control
                || self.counts(predecessor, segments)
                || has_bug(Bug::PredecessorMayShrink);
            predecessor.is_whole(predecessor.on_all(wanted, segments.ordering())) && counts
        });
        if done {
            segments.known_mut(id).predecessor = None;
        }
        done
    }

    /// replication::O7: a control segment is closed when its successor's snapshot is there.
    fn allows_close(&self, id: SegmentId, segments: &Segments) -> bool {
        if segments.known(id).kind != Kind::Control || has_bug(Bug::CloseBeforeSnapshot) {
            return true;
        }
        let mut controls = self.control.iter().skip_while(|control| control.id != id);
        controls.next();
        controls.any(|next| next.is_on_all(segments, segments.ordering()))
    }

    // --- its oldest segment that counts

    /// The oldest control segment that still counts: a recovery that finds only older ones has not
    /// found the log. With several replicas the coordinator has to note it before anything is
    /// acknowledged that older ones don't list.
    pub fn floor(&self, segments: &Segments, level: Level) -> Option<SegmentId> {
        let mut controls = self.control.iter().rev();
        let newest = controls.find(|control| control.is_on_all(segments, level));
        newest.map(|control| control.id)
    }

    /// replication::O10: a control segment that the coordinator has to note; once.
    pub(super) fn tell_floor(&mut self, segments: &Segments) -> Option<SegmentId> {
        let control = &self.control;
        self.floor.tell(|floor| {
            let wanted = control.iter().find(|control| control.id == floor);
            wanted.is_some_and(|control| control.is_on_all(segments, Level::Synced))
        })
    }

    /// See [`Master::control_head_noted`](super::Master::control_head_noted).
    pub(super) fn floor_noted(&mut self, min_open: SegmentId) {
        self.floor.is_noted(min_open);
    }

    /// Backups that hold, or held, a control segment that a recovery might take for the newest.
    pub(super) fn holders(&self, segments: &Segments) -> BTreeSet<BackupId> {
        if self.floor.is_first() {
            return BTreeSet::new();
        }
        let present = self.control.iter().flat_map(|control| {
            let replicas = segments.known(control.id).replicas.iter();
            replicas.filter(|r| r.may_be_open()).map(|r| r.backup)
        });
        present.chain(self.floor.stale_holders()).collect()
    }

    /// Whether it owes no record to a next segment, nor a note to the coordinator.
    pub(super) fn is_settled(&self) -> bool {
        self.floor.is_settled() && !self.owes
    }

    /// The control segments that have to be noted, and that were, for people.
    pub(super) fn floor_progress(&self) -> (SegmentId, SegmentId) {
        self.floor.progress()
    }
}

impl ControlSegment {
    /// Whether its snapshot is on all its replicas.
    fn is_on_all(&self, segments: &Segments, level: Level) -> bool {
        segments.on_all(self.id, level).length >= self.snapshot.length
    }
}
