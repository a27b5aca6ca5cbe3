//! Determines the dead server's log from the reports of fenced backups, and whether all of it is
//! there.
//!
//! **Invariants**
//! - G1: the log is what the newest eligible control segment lists, and nothing else
//!   (docs/protocols.md, The control log). Eligible: not below the recorded `min_open`, and
//!   beginning with a whole snapshot. If none was ever recorded the log is empty: its master has
//!   acknowledged nothing and shown nothing to readers before its first control segment was noted
//!   (replication::O10, lease::E2), and the coordinator refuses to note one now. The recovery waits
//!   for nothing then: there may be no replica anywhere.
//! - G2: a closed control segment proves that its successor was begun: unless it ends with a clean
//!   shutdown, the log continues on backups that have not answered yet. Then the recovery waits,
//!   and never takes an older one.
//! - G3: each listed segment needs a replica: of a closed one with exactly the recorded
//!   certificate, of an open one at the recorded replication epoch or above. Otherwise the recovery
//!   waits; it never recovers in parts (docs/traps.md, traps 1 and 23).
//! - G4: all partitions replay the same image of an open segment, also in later attempts as long as
//!   some backup has it.
//! - G5: data are sent to a head's segment only when the control log lists it on all its replicas
//!   (replication::O2). So a replica with data of a head's segment that is newer than all that a
//!   control segment lists proves that this control segment lacks its end: a disk that has silently
//!   lost its last writes has answered first. The recovery waits for a longer one.
//! - G6: a replica that an earlier process of its backup wrote may be an older copy: a restored
//!   disk, or a snapshot of a machine. It has the right epoch, and lacks acknowledged bytes. So an
//!   open segment, the newest control segment too, is judged by a replica that its backup wrote
//!   itself or closed, or by as many as there are copies. Otherwise the recovery waits for more,
//!   for a limited time ([`unproven`](Collected::unproven)): a copy may be gone for ever.
//!
//! The answer of a single holder of each open segment that it wrote is enough, because it is
//! fenced. The dead server (if it is not dead) can acknowledge nothing more without all holders of
//! the segments it appends to, can't list another segment or another holder without the control
//! segment's holders, and can't replace that one without the coordinator, which has recorded its
//! crash.
//!
//! Paper: [Ousterhout15 §7.4]; differs: one control log instead of digests in heads (docs/traps.md,
//! trap 16).

use crate::control::{self, Listed, State};
use duramen_base::ids::{SegmentId, ServerId, TableId};
use duramen_base::planted::{Bug, has_bug};
use duramen_format::certificate::Certificate;
use duramen_format::control::Pass;
use duramen_format::segment::{Header, Kind};
use duramen_wire::native::message::{
    CleaningPass, RecoverSegment, ReplicaEntry, Replicas, SharedSegments,
};
use std::collections::{BTreeMap, BTreeSet};

const MICROS_PER_SECOND: u64 = 1_000_000;

/// The replicas of the backups that have answered. The cost of an answer depends on its own size,
/// and not on that of the log: a large cluster's coordinator gets ten thousand of them.
pub(crate) struct Collected {
    dead: ServerId,
    min_open: SegmentId,
    answers: BTreeMap<ServerId, Answer>,
    replicas: BTreeMap<SegmentId, Vec<(ServerId, ReplicaEntry)>>,
    /// The replicas that are known to be damaged.
    damaged: BTreeMap<SegmentId, Vec<(ServerId, ReplicaEntry)>>,
    /// Every segment that some backup has reported as its control segment.
    controls: BTreeSet<SegmentId>,
    /// The wanted segments, as far as known; none: the known control segments have changed.
    wanted: Option<Result<ListedSegments, Missing>>,
}

/// The report of a backup.
struct Answer {
    control: Option<(SegmentId, Vec<u8>)>,
    /// Open segments that an earlier process of the backup wrote (G6).
    inherited: BTreeSet<SegmentId>,
    /// Segments of which it has replicas.
    segments: Vec<SegmentId>,
}

/// The list of the newest control segment.
struct ListedSegments {
    control: SegmentId,
    state: State,
    /// Listed, and not on any backup that has answered (G3). Kept up to date by each answer.
    missing: BTreeSet<SegmentId>,
    /// The open data segments (G6).
    open: Vec<SegmentId>,
}

/// A whole log, and the holders of its segments.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Log {
    pub control: SegmentId,
    pub segments: SharedSegments,
    /// Entries of these tables below these versions are dead.
    pub floors: Vec<(TableId, u64)>,
    pub safe_version: u64,
    pub passes: Vec<CleaningPass>,
}

impl Log {
    /// Bytes to replay.
    pub(crate) fn bytes(&self) -> u64 {
        self.segments
            .iter()
            .map(|segment| u64::from(segment.certificate.length))
            .sum()
    }
}

/// The reason why a recovery waits.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Missing {
    #[error("no backup that answered has its newest control segment")]
    Control,
    #[error("control segment {segment} is closed; backups with the next one are missing")]
    NextControl { segment: SegmentId },
    #[error("every replica of control segment {segment} is damaged: {damage}")]
    Damaged { segment: SegmentId, damage: String },
    #[error(
        "control segment {control} lacks its end: it does not list segment {segment}, which has data"
    )]
    Later {
        control: SegmentId,
        segment: SegmentId,
    },
    #[error("no backup that answered has segment {first} ({count} segments are missing)")]
    Segments { first: SegmentId, count: usize },
    #[error("more copies of segment {segment}: those that answered are of restarted members")]
    Copies { segment: SegmentId },
}

impl Collected {
    pub(crate) fn new(dead: ServerId, min_open: SegmentId) -> Collected {
        Collected {
            dead,
            min_open,
            answers: BTreeMap::new(),
            replicas: BTreeMap::new(),
            damaged: BTreeMap::new(),
            controls: BTreeSet::new(),
            wanted: None,
        }
    }

    /// An empty collection for the same log.
    pub(crate) fn anew(&self) -> Collected {
        Collected::new(self.dead, self.min_open)
    }

    /// A backup answered. `control`: the valid bytes of the control segment that it names.
    pub(crate) fn add(&mut self, backup: ServerId, replicas: Replicas, control: Vec<u8>) {
        self.forget(backup);
        let mut segments = Vec::with_capacity(replicas.segments.len());
        let mut tells_of_control = replicas.control.is_some();
        self.controls.extend(replicas.control);
        for entry in replicas.segments {
            let segment = entry.segment;
            tells_of_control |= self.is_control(segment, &entry) || self.is_later(segment, &entry);
            self.found(segment, &entry);
            let known = self.replicas.entry(segment).or_default();
            known.push((backup, entry));
            segments.push(segment);
        }
        if tells_of_control {
            self.wanted = None;
        }
        for entry in replicas.damaged {
            let known = self.damaged.entry(entry.segment).or_default();
            known.push((backup, entry));
        }
        let control = replicas.control.map(|segment| (segment, control));
        let answer = Answer {
            control,
            inherited: replicas.inherited.into_iter().collect(),
            segments,
        };
        self.answers.insert(backup, answer);
    }

    /// The backup is crashed: nothing can be read from it.
    pub(crate) fn forget(&mut self, backup: ServerId) {
        let Some(answer) = self.answers.remove(&backup) else {
            return;
        };
        if answer.control.is_some() || matches!(self.wanted, Some(Err(Missing::Later { .. }))) {
            self.wanted = None;
        }
        for known in self.damaged.values_mut() {
            known.retain(|(holder, _)| *holder != backup);
        }
        for segment in answer.segments {
            let Some(known) = self.replicas.get_mut(&segment) else {
                continue; // it was named twice
            };
            let was_control = known.iter().any(|(holder, entry)| {
                *holder == backup
                    && (entry.kind == Kind::Control || self.controls.contains(&segment))
            });
            known.retain(|(holder, _)| *holder != backup);
            if known.is_empty() {
                self.replicas.remove(&segment);
            }
            if was_control {
                self.wanted = None;
            }
            self.lost(segment);
        }
    }

    pub(crate) fn has(&self, backup: ServerId) -> bool {
        self.answers.contains_key(&backup)
    }

    fn is_control(&self, segment: SegmentId, entry: &ReplicaEntry) -> bool {
        entry.kind == Kind::Control || self.controls.contains(&segment)
    }

    /// Whether a replica of a head's segment has data that is newer than all that is listed (G5).
    fn is_later(&self, segment: SegmentId, entry: &ReplicaEntry) -> bool {
        let wanted = self.wanted.as_ref().and_then(|wanted| wanted.as_ref().ok());
        has_data_of_a_head(entry)
            && wanted.is_some_and(|wanted| segment >= wanted.state.next_segment)
    }

    /// There is one more replica.
    fn found(&mut self, segment: SegmentId, entry: &ReplicaEntry) {
        if let Some(Ok(wanted)) = &mut self.wanted
            && let Some(listed) = wanted.state.segments.get(&segment)
            && counts(listed, entry)
        {
            wanted.missing.remove(&segment);
        }
    }

    /// There is one replica less.
    fn lost(&mut self, segment: SegmentId) {
        let Some(Ok(wanted)) = &mut self.wanted else {
            return;
        };
        let Some(listed) = wanted.state.segments.get(&segment) else {
            return;
        };
        let replicas = self.replicas.get(&segment).map_or(&[][..], Vec::as_slice);
        if listed.kind != Kind::Control && !is_there(listed, replicas) {
            wanted.missing.insert(segment);
        }
    }

    /// Whether each segment of the log has a replica. `with_damaged`: a damaged one will do, of
    /// which the recovery master takes the sound entries.
    ///
    /// # Errors
    /// The [`Missing`] part: wait for more answers.
    pub(crate) fn judge(&mut self, with_damaged: bool) -> Result<(), Missing> {
        let wanted = match self.wanted.take() {
            Some(known) => known,
            None => self.look(),
        };
        let wanted = self.wanted.insert(wanted).as_ref();
        let wanted = wanted.map_err(|missing| missing.clone())?;
        let is_missing = |segment: &&SegmentId| {
            let damaged = self.damaged.get(*segment).map_or(&[][..], Vec::as_slice);
            let listed = wanted.state.segments.get(*segment);
            !(with_damaged && listed.is_some_and(|listed| is_there(listed, damaged)))
        };
        match wanted.missing.iter().find(is_missing).copied() {
            Some(first) if !has_bug(Bug::RecoversInParts) => Err(Missing::Segments {
                first,
                count: wanted.missing.len(),
            }), // G3
            _ => Ok(()),
        }
    }

    /// An open segment of the judged log of which there are fewer than `copies` replicas, all of
    /// them from earlier processes of their backups (G6).
    pub(crate) fn unproven(&self, copies: usize) -> Option<SegmentId> {
        let Some(Ok(wanted)) = &self.wanted else {
            return None;
        };
        // G6 would hide the other two bugs: it waits for the copies that these do without.
        let hidden = [Bug::FirstCopyCounts, Bug::EpochStays, Bug::RecoversInParts];
        if wanted.control == SegmentId::NONE || hidden.into_iter().any(has_bug) {
            return None; // G1
        }
        let has_written = |holder: &ServerId, segment: SegmentId| {
            let answer = self.answers.get(holder);
            answer.is_some_and(|answer| !answer.inherited.contains(&segment))
        };
        let is_proven = |segment: SegmentId, listed: Option<&Listed>| {
            let found = self.replicas(segment).iter();
            let mut found =
                found.filter(|(_, entry)| listed.is_none_or(|listed| counts(listed, entry)));
            found.clone().count() >= copies
                || found.any(|(holder, entry)| entry.closed || has_written(holder, segment))
        };
        if !is_proven(wanted.control, None) {
            return Some(wanted.control);
        }
        let mut open = wanted.open.iter().copied();
        open.find(|segment| !is_proven(*segment, wanted.state.segments.get(segment)))
    }

    /// The wanted segments, and the missing ones among them.
    fn look(&self) -> Result<ListedSegments, Missing> {
        let (control, state) = match self.min_open {
            SegmentId::NONE => (SegmentId::NONE, State::default()), // G1
            _ => self.newest_control()?,
        };
        if let Some(segment) = self.later_than(&state)
            && !has_bug(Bug::LaterIgnored)
        {
            return Err(Missing::Later { control, segment });
        }
        let data = state
            .segments
            .iter()
            .filter(|(_, of)| of.kind != Kind::Control);
        let missing = data
            .filter(|(id, listed)| !is_there(listed, self.replicas(**id)))
            .map(|(id, _)| *id)
            .collect();
        let is_open = |of: &Listed| of.kind != Kind::Control && of.closed.is_none();
        let open = state.segments.iter().filter(|(_, of)| is_open(of));
        Ok(ListedSegments {
            open: open.map(|(id, _)| *id).collect(),
            control,
            state,
            missing,
        })
    }

    /// A segment with data that is newer than all that the log lists (G5).
    fn later_than(&self, state: &State) -> Option<SegmentId> {
        if self.min_open == SegmentId::NONE {
            return None; // G1
        }
        let mut later = self.replicas.range(state.next_segment..);
        let later = later.find(|(_, of)| of.iter().any(|(_, entry)| has_data_of_a_head(entry)));
        later.map(|(segment, _)| *segment)
    }

    /// The whole log, after it was [judged](Self::judge); `None`: it was not. `before`: images of
    /// open segments that an earlier attempt used (G4).
    pub(crate) fn whole(&self, before: &BTreeMap<SegmentId, Certificate>) -> Option<Log> {
        let wanted = self.wanted.as_ref()?.as_ref().ok()?;
        let state = &wanted.state;
        let data = state
            .segments
            .iter()
            .filter(|(_, of)| of.kind != Kind::Control);
        let segments: Vec<RecoverSegment> = data
            .filter_map(|(id, listed)| self.image(*id, listed, before.get(id)))
            .collect();
        Some(Log {
            control: wanted.control,
            segments: segments.into(),
            floors: state
                .tables
                .iter()
                .filter(|(_, table)| table.floor > 0)
                .map(|(id, table)| (TableId(*id), table.floor))
                .collect(),
            safe_version: state.safe_version,
            passes: state.passes.iter().cloned().map(cleaning_pass).collect(),
        })
    }

    /// The newest eligible control segment, and the state that it describes (G1, G2).
    fn newest_control(&self) -> Result<(SegmentId, State), Missing> {
        let ignores = has_bug(Bug::OldControlHead);
        let mut candidates: Vec<(SegmentId, &[u8])> = self
            .answers
            .values()
            .filter_map(|answer| answer.control.as_ref())
            .filter(|(segment, _)| *segment >= self.min_open || ignores)
            .map(|(segment, bytes)| (*segment, bytes.as_slice()))
            .collect();
        candidates.sort_by_key(|(segment, bytes)| (*segment, bytes.len()));
        let newest = match candidates.last() {
            Some((segment, _)) if !ignores => *segment,
            Some(_) => candidates[0].0,
            None => return Err(Missing::Control),
        };
        let mut damage = String::new();
        for (_, bytes) in candidates.iter().rev().filter(|(id, _)| *id == newest) {
            match self.read_control(newest, bytes) {
                Ok(state) if state.clean || !self.is_closed(newest) => return Ok((newest, state)),
                Ok(state) if has_bug(Bug::ClosedControlHead) => return Ok((newest, state)),
                Ok(_) => return Err(Missing::NextControl { segment: newest }),
                Err(why) => damage = why,
            }
        }
        Err(Missing::Damaged {
            segment: newest,
            damage,
        })
    }

    fn read_control(&self, segment: SegmentId, bytes: &[u8]) -> Result<State, String> {
        let found = Certificate::of(bytes);
        let mut replicas = self.replicas(segment).iter();
        if !replicas.any(|(_, entry)| entry.certificate == found) {
            return Err("its bytes are not what was certified".to_owned());
        }
        let header = Header::decode(bytes).map_err(|damage| damage.to_string())?;
        if header.log != self.dead.number() {
            return Err("it is of another log".to_owned());
        }
        State::replay(segment, bytes).map_err(|error: control::Error| error.to_string())
    }

    fn is_closed(&self, control: SegmentId) -> bool {
        self.replicas(control).iter().any(|(_, entry)| entry.closed)
    }

    fn replicas(&self, segment: SegmentId) -> &[(ServerId, ReplicaEntry)] {
        self.replicas.get(&segment).map_or(&[], Vec::as_slice)
    }

    /// Orders the sources of segments by the speeds of their disks, in bytes per second; empty: it
    /// changes nothing. A segment with one primary is read there, where it is being read ahead.
    /// Each of the others is read first where that read ends soonest, as replicas are placed
    /// (placement::L2).
    pub(crate) fn spread(&self, log: &mut Log, speeds: &BTreeMap<ServerId, u64>) {
        if speeds.is_empty() {
            return;
        }
        let mut segments: Vec<RecoverSegment> = log.segments.iter().cloned().collect();
        let mut busy_us: BTreeMap<ServerId, u64> = BTreeMap::new();
        let read_us = |segment: &RecoverSegment, at: &ServerId| {
            let speed = speeds.get(at).map_or(1, |speed| (*speed).max(1));
            u64::from(segment.certificate.length).saturating_mul(MICROS_PER_SECOND) / speed
        };
        let (first_read, others): (Vec<_>, Vec<_>) = segments
            .iter_mut()
            .map(|segment| (self.primaries(segment), segment))
            .partition(|(primaries, _)| *primaries == 1);
        for (_, segment) in first_read {
            let us = read_us(segment, &segment.sources[0]);
            *busy_us.entry(segment.sources[0]).or_default() += us;
        }
        for (primaries, segment) in others {
            let count = if primaries > 1 {
                primaries
            } else {
                segment.sources.len()
            };
            let end_us = |at: &ServerId| {
                let busy_us = busy_us.get(at).copied().unwrap_or(0);
                busy_us.saturating_add(read_us(segment, at))
            };
            let soonest = (0..count).min_by_key(|n| end_us(&segment.sources[*n]));
            let soonest = soonest.expect("a segment has a source");
            let at = segment.sources[soonest];
            let until_us = end_us(&at);
            busy_us.insert(at, until_us);
            segment.sources[..=soonest].rotate_right(1);
        }
        log.segments = segments.into();
    }

    /// The number of a segment's sources that keep it as primary; these come first.
    fn primaries(&self, segment: &RecoverSegment) -> usize {
        let replicas = self.replicas(segment.segment);
        let is_primary = |at: &&ServerId| {
            let mut replicas = replicas.iter();
            replicas.any(|(holder, entry)| holder == *at && entry.primary)
        };
        segment.sources.iter().take_while(is_primary).count()
    }

    /// The image of a listed segment that is replayed, and its holders; none if no backup has it
    /// (G3).
    fn image(
        &self,
        segment: SegmentId,
        listed: &Listed,
        before: Option<&Certificate>,
    ) -> Option<RecoverSegment> {
        let damaged = self.damaged.get(&segment).map_or(&[][..], Vec::as_slice);
        let counts = |holder: &&(ServerId, ReplicaEntry)| counts(listed, &holder.1);
        let mut holders: Vec<_> = self.replicas(segment).iter().filter(counts).collect();
        let of_damaged = damaged.iter().filter(counts);
        if holders.is_empty() {
            holders.extend(of_damaged.clone());
        }
        let longest = holders
            .iter()
            .map(|(_, entry)| entry.certificate)
            .max_by_key(|certificate| certificate.length)?;
        let is_held = |image: &&Certificate| holders.iter().any(|(_, e)| e.certificate == **image);
        let image = before.filter(is_held).copied().unwrap_or(longest); // G4
        let mut equal: Vec<&(ServerId, ReplicaEntry)> = holders
            .into_iter()
            .filter(|(_, entry)| entry.certificate == image)
            .collect();
        let turn = segment.0 as usize % equal.len();
        equal.rotate_left(turn); // spreads segments with no primary, or several
        equal.sort_by_key(|(_, entry)| !entry.primary);
        for holder in of_damaged.filter(|(_, entry)| entry.certificate == image) {
            if !equal.contains(&holder) {
                equal.push(holder); // what the others lack may be there
            }
        }
        Some(RecoverSegment {
            segment,
            kind: listed.kind,
            epoch: listed.epoch,
            certificate: image,
            closed: listed.closed.is_some() || equal.iter().any(|(_, entry)| entry.closed),
            sources: equal.iter().map(|(backup, _)| *backup).collect(),
        })
    }
}

/// Whether a replica is one of a listed segment (G3).
fn counts(listed: &Listed, entry: &ReplicaEntry) -> bool {
    match listed.closed {
        Some(certificate) => {
            entry.closed && entry.certificate == certificate || has_bug(Bug::AnyCertificate)
        }
        None => entry.closed || entry.epoch >= listed.epoch || has_bug(Bug::OldEpochs),
    }
}

fn has_data_of_a_head(entry: &ReplicaEntry) -> bool {
    entry.kind == Kind::Head && entry.certificate.length > 0
}

fn is_there(listed: &Listed, replicas: &[(ServerId, ReplicaEntry)]) -> bool {
    let mut replicas = replicas.iter();
    replicas.any(|(_, entry)| counts(listed, entry))
}

fn cleaning_pass(pass: Pass) -> CleaningPass {
    CleaningPass {
        first: pass.first,
        count: pass.count,
        victims: pass.victims,
    }
}
