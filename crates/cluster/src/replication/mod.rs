//! The master's side of replication: the order in which segments and control records reach the
//! backups.
//!
//! A [`Master`] is told of new data ([`opened`](Master::opened), [`appended`](Master::appended), …)
//! and of answers and losses ([`acked`](Master::acked), [`backup_lost`](Master::backup_lost), …);
//! [`poll`](Master::poll) applies rules until none of them can do more, and returns the sends and
//! frees. It handles neither bytes of data nor time.
//!
//! **Rules** (each may only act when its condition holds; "ordered" is explained below)
//! - O1: a segment's `AddOpen` record is written when the segment is open on all of its replicas
//!   (ordered).
//! - O2: data is sent when the `AddOpen` record is on all replicas of the control log (ordered).
//! - O3: data of a head's segment is sent when the head's segment before it is complete and closed
//!   on all replicas (ordered), and the record of its epoch is synced.
//! - O4: a `Closed` record is written when the segment is complete and closed on all replicas
//!   (ordered).
//! - O5: a `Swap` record is written when each survivor is complete and closed on all replicas,
//!   synced.
//! - O6: a cleaned segment is freed when the `Swap` record is synced on all replicas of the control
//!   log, and no older control segment is eligible any more: all of them are closed, synced
//!   (docs/traps.md, trap 2).
//! - O7: the control log continues in a new segment s2 when s1 is complete on all replicas
//!   (ordered); s2 begins with a snapshot under one certificate; s1 is closed when that is on all
//!   replicas (ordered); more of s2 is sent when s1 is closed on all replicas (ordered); s1 is
//!   freed when both are synced.
//! - O8: when a replica of an open segment is lost, the segment's replication epoch grows, a new
//!   replica is filled (it counts when it is complete, under one certificate), the others get the
//!   epoch, and nothing of the segment counts as durable until the `SegmentEpoch` record is synced.
//!   A control segment in that case is replaced as by O7.
//! - O9: a pinned segment is not freed (a snapshot has yet to copy it).
//! - O10: a lost replica of a control segment that is not known to be closed may come back and look
//!   like the log's newest. So the coordinator is told the next control segment as the oldest that
//!   counts, when that is on all replicas; until the coordinator has noted it, durably, nothing in
//!   this segment or a later one counts. The first control segment of a log is told too: from then
//!   on a recovery knows that there is a log.
//! - O11: a lost replica of a closed segment is replaced on another backup, at a higher epoch: of a
//!   backup's replicas of a segment, the one of the highest epoch counts. The other replicas need
//!   not get the epoch; a closed replica is whole. A backup that refuses such a copy is asked for
//!   one again only after a while: the copy is sent as a whole each time. Those that were only
//!   planned there go to others that may take them, or rest as long. The backup knows a copy
//!   by its opening, which has the close and an epoch above 0. So a segment whose close is not
//!   recorded, for which writes, a recovery or a pass wait, is opened at such an epoch without it.
//! - O12: a backup that comes back is told to drop a replica only if it is known here under its new
//!   name, and the segment is on all its replicas elsewhere, or not part of the log any more. The
//!   same holds for a backup that refused a closed segment's opening, or could not read its
//!   replica: it may have a good one, of before. A lost replica of a listed segment that is open is
//!   never freed: only the request of its backup ends it. A replica that a backup was told to drop,
//!   or was sent anew, does not count again as an old one: its request may have arrived twice.
//!   That of a backup which was only silent does if it was the first there, whole and synced.
//! - O13: a refused opening of a control segment costs nothing: the backup that has refused it
//!   never accepts it again, however often it arrives (backup_service::B10), so the segment
//!   continues with another backup in its place. Each opening after a refusal has a higher epoch,
//!   which distinguishes it from a repetition of the one before.
//! - O14: a record that does not fit into the newest control segment, and each one after it, is in
//!   the next one's snapshot. It counts when that snapshot is there and the control segment before
//!   is closed, as otherwise a recovery may take that for the newest.
//! - O15: a pass with a victim that is not listed yet is announced for it right after the record
//!   that lists it, in the same send. So no data of the victim counts without the announcement.
//!
//! **Flow**: one call per replica at a time; at most [`Config::writes_max`] calls for data,
//! [`Config::copies_max`] copies (O11) beside them, and [`Config::frees_max`] frees in flight.
//! Control segments never wait for data, nor data for copies: a lost backup may have had replicas
//! of all closed segments. A backup that rejects an opening is asked again only after the others,
//! and so is one that finds the bytes of a replica damaged four times. If two do, of one segment
//! whose close is not recorded, the fault is this master's: it loses no more replicas, and its life
//! ends.
//!
//! **Ordered** means synced on every replica: a backup that has a record in its cache alone may
//! lose it in a power cut, while another one keeps data that must not exist without the record.
//! With one replica on a backup with atomic and ordered commits ([`Config::one_stream`]), *sent* is
//! enough: data in the same commit or an earlier one can't be missing when the later ones are
//! there. O5, O6, O8 and acknowledgements to users always wait for acknowledgements of the backups.
//!
//! Paper: [Rumble14 §6], RAMCloud's `ReplicaManager` in rules (docs/traps.md, "Replication and
//! recovery"); differs: several heads, one control log.

mod peers;
mod rules;
mod segment;

use crate::control::State;
pub use crate::placement::BackupId;
use crate::placement::{Layout, Member, Placement};
use duramen_base::ids::{Level, SegmentId};
use duramen_base::planted::{Bug, has_bug};
use duramen_format::certificate::Certificate;
use duramen_format::control::{Added, Pass, Record};
use duramen_format::segment::{HEADER_BYTES, Header, Kind};
use segment::{Progress, Replica, Segment};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// Names a [`Send`] until it is acknowledged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ticket(pub u64);

/// The replication settings of a master.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// Replicas of each segment.
    pub replicas: usize,
    /// One replica, on a backup that makes all sends of one poll durable in one atomic step, polls
    /// in order.
    pub one_stream: bool,
    /// The log id in headers of control segments.
    pub server: u64,
    /// Most bytes of a control segment.
    pub control_capacity: u32,
    /// A control segment of at least this many bytes, twice as long as its snapshot, is replaced by
    /// a new one.
    pub control_roll_bytes: u32,
    /// Most calls with data in flight at once, beside copies.
    pub writes_max: usize,
    /// Most copies of closed segments in flight at once (O11).
    pub copies_max: usize,
    /// Most frees in flight at once.
    pub frees_max: usize,
    /// A coordinator has to note the first control segment that counts (O10).
    pub coordinated: bool,
    pub layout: Layout,
}

impl Config {
    /// One replica on one backup with atomic and ordered commits: a single server.
    pub fn one_backup(server: u64, control_capacity: u32, control_roll_bytes: u32) -> Config {
        Config {
            replicas: 1,
            one_stream: true,
            server,
            control_capacity,
            control_roll_bytes,
            writes_max: usize::MAX,
            copies_max: usize::MAX,
            frees_max: usize::MAX,
            coordinated: false,
            layout: Layout::Scatter,
        }
    }
}

/// A message to a backup.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Send {
    pub ticket: Ticket,
    pub backup: BackupId,
    pub segment: SegmentId,
    pub kind: Kind,
    pub epoch: u64,
    /// The bytes `from..certificate.length` of the segment; none if they are equal. The certificate
    /// is sent with the last of them.
    pub from: u32,
    pub certificate: Certificate,
    pub open: bool,
    pub close: bool,
    /// A recovery reads this replica first.
    pub primary: bool,
}

/// The reason why a backup refused a [`Send`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rejection {
    /// It is short of room: an opening only.
    Busy,
    /// The bytes do not match their certificate: a bit has changed in this master's memory, or on
    /// the way. Nothing of the send was stored.
    Damaged,
    /// This master is declared crashed. Nothing will ever be acknowledged again.
    Fenced,
}

/// An output.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    Send(Send),
    /// The backup may drop its replica.
    Free {
        backup: BackupId,
        segment: SegmentId,
    },
    /// The coordinator has to note this, durably; then [`Master::control_head_noted`]. Output once:
    /// the caller repeats the request.
    ControlHead {
        min_open: SegmentId,
    },
    /// The swap with this number is durable: its victims are not part of the log any more.
    Swapped {
        swap: u64,
    },
}

/// A position in the control log: grows over all its segments.
type Lsn = u64;

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

/// A swap in progress.
struct Pending {
    number: u64,
    version_floor: u64,
    add: Vec<(SegmentId, Certificate)>,
    remove: Vec<SegmentId>,
    /// End of its record, once written (O5).
    at: Option<Lsn>,
}

/// The replication state of a master; see the module.
pub struct Master {
    config: Config,
    state: State,
    segments: BTreeMap<SegmentId, Segment>,
    /// Segments that rules have to check.
    active: BTreeSet<SegmentId>,
    /// Those with copies of which each is planned, none is under way, and all calls are taken
    /// (O11): they are checked when a call is free.
    waiting: BTreeSet<SegmentId>,
    /// Those with copies that no backup takes now (O11): they are checked when that may have
    /// changed.
    parked: BTreeSet<SegmentId>,
    /// The newest last. Only the last is appended to.
    control: VecDeque<ControlSegment>,
    control_wanted: bool,
    /// The newest control segment was too full for a record: the next one's snapshot has it (O14).
    control_owes: bool,
    /// The last segment of each head.
    heads: BTreeMap<u32, SegmentId>,
    swaps: VecDeque<Pending>,
    next_swap: u64,
    /// Passes with those of their victims that are not listed yet (O15).
    unannounced: Vec<Pass>,
    placement: Placement,
    /// Backups that have rejected an opening.
    refusing: BTreeSet<BackupId>,
    /// Those that have rejected a new copy of a closed segment: they keep their last frames for
    /// recoveries, and may take open segments.
    refusing_copies: BTreeSet<BackupId>,
    /// Replicas whose bytes were found damaged repeatedly: they are sent again when `forgiven` is
    /// this.
    resting: BTreeMap<(SegmentId, BackupId), u64>,
    /// Calls of [`forgive`](Self::forgive).
    forgiven: u64,
    /// No acknowledgement counts any more.
    fenced: bool,
    /// The reason, if it is this master's own.
    fault: Option<String>,
    in_flight: BTreeMap<Ticket, InFlight>,
    next_ticket: u64,
    /// To be freed as soon as O9 allows. These replicas are out of the log, durably (O6, O7), or do
    /// not count (O12).
    garbage: Vec<(BackupId, SegmentId)>,
    /// Frees in flight.
    freeing: BTreeSet<(BackupId, SegmentId)>,
    /// Unlisted at the restart: garbage when the first control segment is synced.
    leftovers: Vec<(BackupId, SegmentId)>,
    pinned: BTreeSet<SegmentId>,
    /// O10: the next control segment, or this one, must be noted.
    floor_due: bool,
    floor_wanted: SegmentId,
    floor_asked: SegmentId,
    floor_noted: SegmentId,
    /// Replicas of control segments that were lost before they were closed.
    stale_control: BTreeSet<(SegmentId, BackupId)>,
    /// A segment that could not send because too many calls are in flight: it is the first next
    /// time. And one that is copied, or was not looked at.
    kept_waiting: [Option<SegmentId>; 2],
}

/// Placement of a log's segments.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Placed {
    /// Whether there are backups for all replicas of a new segment; if not, writes wait.
    pub has_enough: bool,
    /// Number of segments with two copies in one rack.
    pub segments_sharing_rack: usize,
    /// Number of closed segments for which no backup takes a copy that they lack.
    pub segments_short: usize,
}

struct InFlight {
    segment: SegmentId,
    backup: BackupId,
    progress: Progress,
    /// Its segment's close was recorded before: no write waits for it (O11).
    is_copy: bool,
}

/// A replica that a restart found.
#[derive(Clone, Copy, Debug)]
pub struct Found {
    pub backup: BackupId,
    pub segment: SegmentId,
    pub epoch: u64,
    pub certificate: Certificate,
    pub closed: bool,
}

impl Master {
    /// A master of an empty log, or of the log that a restart found: `state` of the control log,
    /// the replicas, and which of them count (the others are left over and will be freed). Segments
    /// that are still open are closed where they end; the control log continues in a new segment.
    /// `state`'s segments must be complete.
    pub fn new(config: Config, mut state: State, backups: &[BackupId], found: &[Found]) -> Master {
        assert!(
            !config.one_stream
                || (config.replicas == 1 && backups.len() == 1 && !config.coordinated),
            "one stream is one replica on one backup"
        );
        state.clean = false;
        let mut master = Master {
            config,
            segments: BTreeMap::new(),
            active: BTreeSet::new(),
            waiting: BTreeSet::new(),
            parked: BTreeSet::new(),
            control: VecDeque::new(),
            control_wanted: true,
            control_owes: false,
            heads: BTreeMap::new(),
            swaps: VecDeque::new(),
            next_swap: 1,
            unannounced: Vec::new(),
            placement: Placement::new(config.layout, config.replicas, config.server),
            refusing: BTreeSet::new(),
            refusing_copies: BTreeSet::new(),
            resting: BTreeMap::new(),
            forgiven: 0,
            fenced: false,
            fault: None,
            in_flight: BTreeMap::new(),
            next_ticket: 1,
            garbage: Vec::new(),
            leftovers: Vec::new(),
            freeing: BTreeSet::new(),
            pinned: BTreeSet::new(),
            floor_due: config.coordinated,
            floor_wanted: SegmentId::NONE,
            floor_asked: SegmentId::NONE,
            floor_noted: SegmentId::NONE,
            stale_control: BTreeSet::new(),
            kept_waiting: [None; 2],
            state,
        };
        for backup in backups {
            master.placement.add(Member::from(*backup));
        }
        for replica in found {
            master.adopt(replica);
        }
        master
    }

    fn adopt(&mut self, found: &Found) {
        let Some(listed) = self.state.segments.get(&found.segment) else {
            self.leftovers.push((found.backup, found.segment));
            return;
        };
        let expected = listed.closed.unwrap_or(found.certificate);
        let is_old = listed.closed.is_none() && !found.closed && found.epoch < listed.epoch;
        if found.certificate != expected || is_old {
            self.leftovers.push((found.backup, found.segment));
            return;
        }
        let segment = self
            .segments
            .entry(found.segment)
            .or_insert_with(|| Segment {
                kind: listed.kind,
                head: listed.head,
                predecessor: None,
                epoch: listed.epoch.max(found.epoch),
                queued: expected,
                closed: true,
                listed_at: Some(0),
                close_recorded: listed.closed.is_some(),
                epoch_at: None,
                epoch_wanted: false,
                epoch_from: 0,
                replicas: Vec::new(),
                settled: Vec::new(),
                damaged_at: BTreeSet::new(),
                was_placed: true,
                has_lost: false,
                has_no_source: false,
                shares_rack: false,
            });
        segment.replicas.push(Replica::found(found));
        self.active.insert(found.segment);
    }

    /// The state of the control log, with records that are still in flight.
    pub fn state(&self) -> &State {
        &self.state
    }

    /// A head has begun a new segment. `head` counts from 0; survivors have none.
    ///
    /// # Panics
    /// If the segment is known.
    pub fn opened(&mut self, segment: SegmentId, kind: Kind, head: u32) {
        let predecessor = match kind {
            Kind::Head => self.heads.insert(head, segment),
            Kind::Survivor | Kind::Control => None,
        };
        let added = Segment::new(kind, head, predecessor);
        let before = self.segments.insert(segment, added);
        assert!(before.is_none(), "segment {segment} is opened twice"); // control::C2
        self.active.insert(segment);
    }

    /// The segment is valid up to `certificate`; all of it can be sent from now on.
    ///
    /// # Panics
    /// If the segment is unknown, closed or would shrink.
    pub fn appended(&mut self, segment: SegmentId, certificate: Certificate) {
        let known = self.segment_mut(segment);
        assert!(!known.closed, "segment {segment} is closed");
        assert!(known.queued.length <= certificate.length);
        known.queued = certificate;
        self.active.insert(segment);
    }

    /// The segment is closed.
    ///
    /// # Panics
    /// If it is unknown or closed already.
    pub fn closed(&mut self, segment: SegmentId) {
        let known = self.segment_mut(segment);
        assert!(!known.closed, "segment {segment} is closed twice");
        known.closed = true;
        self.active.insert(segment);
    }

    /// A survivor was written as a whole to `backup`, beside the stream, and is synced there.
    pub fn survivor_durable(
        &mut self,
        segment: SegmentId,
        backup: BackupId,
        certificate: Certificate,
    ) {
        let known = self
            .segments
            .entry(segment)
            .or_insert_with(|| Segment::new(Kind::Survivor, 0, None));
        known.queued = certificate;
        known.closed = true;
        known.replicas.push(Replica::whole(backup, certificate));
    }

    /// A survivor will never be listed: its side log was given up. The writer of its replicas frees
    /// them.
    ///
    /// # Panics
    /// If it is listed.
    pub fn survivor_abandoned(&mut self, segment: SegmentId) {
        assert!(
            !self.state.segments.contains_key(&segment),
            "segment {segment} is part of the log"
        );
        if self.config.one_stream {
            self.segments.remove(&segment); // the writer of its frame frees it
        } else {
            self.discard(segment);
        }
    }

    /// Writes a record that depends only on its place in the control log: a table's, a pass, a safe
    /// version. A pass waits for those of its victims that are not listed (O15).
    ///
    /// # Panics
    /// If the record contradicts the state.
    pub fn record(&mut self, record: Record) {
        match record {
            Record::Pass(pass) => self.announce(pass),
            Record::TableCreate { .. }
            | Record::TableDrop { .. }
            | Record::TableClear { .. }
            | Record::TableLevel { .. }
            | Record::SafeVersion { .. }
            | Record::CleanShutdown { .. } => {
                self.write_record(&record);
            }
            _ => panic!("a `{}` record is written by a rule", record.name()),
        }
    }

    /// Announces the pass for the victims that are listed; the others wait (O15).
    fn announce(&mut self, pass: Pass) {
        let (first, count) = (pass.first, pass.count);
        let is_listed = |victim: &SegmentId| self.state.segments.contains_key(victim);
        let (victims, later): (Vec<SegmentId>, Vec<SegmentId>) =
            pass.victims.into_iter().partition(is_listed);
        if !victims.is_empty() || later.is_empty() {
            self.write_record(&Record::Pass(Pass {
                first,
                count,
                victims,
            }));
        }
        if !later.is_empty() && !has_bug(Bug::LaterVictimsForgotten) {
            self.unannounced.push(Pass {
                first,
                count,
                victims: later,
            });
        }
    }

    /// O15: segments were listed just now.
    fn announce_listed(&mut self) {
        for pass in std::mem::take(&mut self.unannounced) {
            self.announce(pass);
        }
    }

    /// Victims for which passes wait are given up, unless they `may_be_listed` in time (O15): they
    /// have left the log already, or were given up before they got into it.
    pub fn forget_victims(&mut self, may_be_listed: impl Fn(SegmentId) -> bool) {
        for pass in &mut self.unannounced {
            pass.victims.retain(|victim| may_be_listed(*victim));
        }
        self.unannounced.retain(|pass| !pass.victims.is_empty());
    }

    /// Proposes to replace `remove` in the log by `add`, which were opened or written before.
    /// Returns the number of the swap.
    pub fn swap(
        &mut self,
        add: Vec<(SegmentId, Certificate)>,
        remove: Vec<SegmentId>,
        version_floor: u64,
    ) -> u64 {
        let number = self.next_swap;
        self.next_swap += 1;
        self.swaps.push_back(Pending {
            number,
            version_floor,
            add,
            remove,
            at: None,
        });
        number
    }

    /// Takes a swap back, unless its record is written. Returns the segments that it adds.
    pub fn withdraw(&mut self, number: u64) -> Option<Vec<(SegmentId, Certificate)>> {
        let is_it = |swap: &Pending| swap.number == number && swap.at.is_none();
        let at = self.swaps.iter().position(is_it)?;
        self.swaps.remove(at).map(|swap| swap.add)
    }

    /// The send of `ticket` has reached `level`.
    pub fn acked(&mut self, ticket: Ticket, level: Level) {
        // A ticket of a lost backup may come late.
        if let Some(sent) = self.in_flight.remove(&ticket) {
            self.acked_inner(&sent, level);
        }
    }

    fn acked_inner(&mut self, sent: &InFlight, level: Level) {
        self.wake(sent.segment);
        if let Some(segment) = self.segments.get_mut(&sent.segment)
            && let Some(replica) = segment.replica_mut(sent.backup)
        {
            replica.in_flight = replica.in_flight.saturating_sub(1);
            let is_more = sent.progress.length > replica.buffered.length;
            replica.acked(sent.progress, level);
            if is_more {
                replica.damaged = 0;
                segment.damaged_at.remove(&sent.backup);
            }
        }
    }

    /// Everything sent to `backup` so far has reached `level`.
    pub fn acked_all(&mut self, backup: BackupId, level: Level) {
        let in_flight = std::mem::take(&mut self.in_flight);
        for (ticket, sent) in in_flight {
            if sent.backup == backup {
                self.acked_inner(&sent, level);
            } else {
                self.in_flight.insert(ticket, sent);
            }
        }
        if level == Level::Synced {
            self.acked_all_buffered(backup);
        }
    }

    /// All sends that `backup` has acknowledged at level buffered are synced now.
    pub fn acked_all_buffered(&mut self, backup: BackupId) {
        for id in &self.active {
            if let Some(segment) = self.segments.get_mut(id)
                && let Some(replica) = segment.replica_mut(backup)
            {
                replica.synced = replica.buffered;
            }
        }
    }

    /// A replica of a control segment is damaged on its backup: the log continues in a new one,
    /// which begins with a snapshot (O7). (A damaged data segment is replaced by cleaning it.)
    pub fn renew_control(&mut self) {
        self.control_wanted = true;
    }

    /// O9: keeps all segments that are listed now from being freed, each until it is
    /// [`unpinned`](Self::unpin).
    pub fn pin(&mut self) {
        self.pinned.extend(self.state.segments.keys());
    }

    /// The segment may be freed when it is not needed.
    pub fn unpin(&mut self, segment: SegmentId) {
        self.pinned.remove(&segment);
    }

    /// As [`unpin`](Self::unpin), for all segments.
    pub fn unpin_all(&mut self) {
        self.pinned.clear();
    }

    /// Bytes of a control segment, for a [`Send`] of it.
    ///
    /// # Panics
    /// If the segment is none, or was freed.
    pub fn control_bytes(&self, segment: SegmentId) -> &[u8] {
        let control = self.control.iter().find(|control| control.id == segment);
        &control.expect("a control segment on its way").bytes
    }

    /// The control segment that is appended to.
    pub fn control_head(&self) -> Option<SegmentId> {
        self.control.back().map(|control| control.id)
    }

    /// Bytes of the segment that are safe on all replicas, at `level`.
    pub fn durable_bytes(&self, segment: SegmentId, level: Level) -> u32 {
        match self.segments.get(&segment) {
            Some(known) if self.counts(known) && !self.fenced => {
                known.on_all(self.config.replicas, level).length
            }
            _ => 0,
        }
    }

    /// The oldest control segment that still counts: a recovery that finds only older ones has not
    /// found the log. With several replicas the coordinator has to note it before anything is
    /// acknowledged that older ones don't list.
    pub fn control_floor(&self, level: Level) -> Option<SegmentId> {
        self.control
            .iter()
            .rev()
            .find(|control| {
                let on_all = self.segments[&control.id].on_all(self.config.replicas, level);
                on_all.length >= control.snapshot.length
            })
            .map(|control| control.id)
    }

    /// Whether a swap, or a segment to be freed, waits for acknowledgements at level synced.
    pub fn wants_sync(&self) -> bool {
        !self.swaps.is_empty()
            || !self.leftovers.is_empty()
            || self.control.len() > 1
            || self.segments_await_sync()
    }

    fn segments_await_sync(&self) -> bool {
        self.active.iter().any(|id| {
            let segment = &self.segments[id];
            segment.kind == Kind::Head && segment.closed
        })
    }

    /// Whether all work so far is done, and acknowledged at level synced.
    pub fn is_idle(&self) -> bool {
        self.in_flight.is_empty()
            && self.swaps.is_empty()
            && self.garbage.is_empty()
            && self.leftovers.is_empty()
            && self.freeing.is_empty()
            && self.floor_noted >= self.floor_wanted
            && !self.control_owes
            && self.unfinished().all(|id| {
                let segment = &self.segments[id];
                let done = segment.on_all(self.config.replicas, Level::Synced);
                done.length == segment.queued.length && done.close == segment.closed
            })
    }

    fn segment_mut(&mut self, segment: SegmentId) -> &mut Segment {
        let known = self.segments.get_mut(&segment);
        known.unwrap_or_else(|| panic!("segment {segment} was never opened"))
    }

    /// Applies a record to the state and appends it to the control log; returns its end. Records
    /// before the first control segment are in its snapshot; so are those that do not fit into the
    /// newest one (O14).
    fn write_record(&mut self, record: &Record) -> Lsn {
        if let Err(why) = self.state.apply(record) {
            panic!("a `{}` record {why}: {record:?}", record.name()); // control::C4: a bug, not damage
        }
        let capacity = self.config.control_capacity;
        let Some(control) = self.control.back_mut() else {
            return 0;
        };
        let start = control.bytes.len();
        if !self.control_owes {
            record.encode(&mut control.bytes);
        }
        if self.control_owes || control.bytes.len() > capacity as usize {
            control.bytes.truncate(start);
            self.control_wanted = true;
            self.control_owes = !has_bug(Bug::TooLongIsWritten);
            return self.control_end();
        }
        control.certificate = control.certificate.extended(&control.bytes[start..]);
        let (id, certificate) = (control.id, control.certificate);
        let end = control.base + u64::from(certificate.length);
        let roll = self
            .config
            .control_roll_bytes
            .max(2 * control.snapshot.length);
        self.control_wanted |= certificate.length >= roll.min(capacity / 2);
        self.segment_mut(id).queued = certificate;
        self.active.insert(id);
        end
    }

    /// O7: begins a control segment with a snapshot of the state.
    fn begin_control(&mut self, id: SegmentId) {
        (self.control_wanted, self.control_owes) = (false, false);
        // A segment that is to be noted and is not yet may end before all its replicas are whole:
        // the next one takes its place.
        if std::mem::take(&mut self.floor_due) || self.unnoted().is_some() {
            self.floor_wanted = id;
        }
        self.state.next_segment = self.state.next_segment.max(SegmentId(id.0 + 1));
        let header = Header {
            kind: Kind::Control,
            segment: id,
            log: self.config.server,
            head: 0,
            capacity: self.config.control_capacity,
        };
        let mut bytes = header.encode().to_vec();
        debug_assert_eq!(bytes.len(), HEADER_BYTES);
        for record in self.state.snapshot() {
            record.encode(&mut bytes);
        }
        let certificate = Certificate::of(&bytes);
        assert!(
            certificate.length <= self.config.control_capacity,
            "the list of segments outgrew a segment"
        );
        let base = self.control.back().map_or(0, |before| {
            before.base + u64::from(before.certificate.length)
        });
        let predecessor = self.control.back().map(|before| before.id);
        if let Some(before) = predecessor {
            self.segment_mut(before).closed = true;
        }
        let mut segment = Segment::new(Kind::Control, 0, predecessor);
        segment.queued = certificate;
        segment.listed_at = Some(0); // its snapshot lists everything
        self.segments.insert(id, segment);
        self.active.insert(id);
        self.control.push_back(ControlSegment {
            id,
            base,
            bytes,
            certificate,
            snapshot: certificate,
        });
    }

    /// The record of a swap.
    fn swap_record(&self, swap: &Pending) -> Record {
        let added = |(segment, certificate): &(SegmentId, Certificate)| Added {
            segment: *segment,
            epoch: self.segments[segment].epoch,
            certificate: *certificate,
        };
        Record::Swap {
            version_floor: swap.version_floor,
            add: swap.add.iter().map(added).collect(),
            remove: swap.remove.clone(),
        }
    }
}
