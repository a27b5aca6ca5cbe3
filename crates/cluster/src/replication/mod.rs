//! The master's side of replication: the order in which segments and control records reach the
//! backups.
//!
//! A [`Master`] is told of new data ([`opened`](Master::opened), [`appended`](Master::appended), …)
//! and of answers and losses ([`acked`](Replicas::acked), [`backup_lost`](Master::backup_lost), …);
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
//!   one again only after a while: the copy is sent as a whole each time. Copies that were only
//!   planned there go to others that may take them, or rest as long. The backup knows a copy by its
//!   opening, which has the close and an epoch above 0. So a segment whose close is not recorded is
//!   opened at such an epoch without the close: writes, a recovery or a pass wait for it.
//! - O12: a backup that comes back is told to drop a replica only if the backup is known here under
//!   its new name, and the segment is on all its replicas elsewhere, or not part of the log any
//!   more. The same holds for a backup that refused a closed segment's opening, or could not read
//!   its replica: it may have a good replica from an earlier life. A lost replica of a listed
//!   segment that is open is never freed from here: only the request of its backup ends it. A
//!   replica that a backup was told to drop, or was sent anew, does not count again as an old one:
//!   the backup's request may have arrived twice. The replica of a backup that was only silent
//!   counts again if it was the first there, and is whole and synced.
//! - O13: a refused opening of a control segment costs nothing: the backup that has refused it
//!   never accepts it again, however often it arrives (backup_service::B10). So another backup
//!   takes the place of that one, and the segment continues. Each opening after a refusal has a
//!   higher epoch, which distinguishes it from a repetition of the one before.
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
//! and so is one that finds the bytes of a replica damaged four times. If two backups find that, of
//! one segment whose close is not recorded, the fault is this master's: it loses no more replicas,
//! and its life ends.
//!
//! **Ordered** means synced on every replica: a backup that has a record in its cache alone may
//! lose it in a power cut, while another one keeps data that must not exist without the record.
//! With one replica on a backup with atomic and ordered commits ([`Config::one_stream`]), *sent* is
//! enough: data in the same commit or an earlier one can't be missing when the later ones are
//! there. O5, O6, O8 and acknowledgements to users always wait for acknowledgements of the backups.
//!
//! The rules are in the parts that own what they decide about: [`ControlLog`] what is written and
//! permitted, [`Swaps`] the replacements, [`Replicas`] the copies of each segment.
//!
//! Paper: [Rumble14 §6], RAMCloud's `ReplicaManager` in rules (docs/traps.md, "Replication and
//! recovery"); differs: several heads, one control log.

mod agenda;
mod backups;
mod control_log;
mod flights;
mod floor;
mod garbage;
mod replicas;
mod segment;
mod segments;
mod swaps;

pub use control_log::ControlLog;
pub use replicas::Replicas;
pub use segments::Segments;

use crate::control::State;
pub use crate::placement::BackupId;
use crate::placement::{Layout, Member};
use duramen_base::ids::{Level, SegmentId};
use duramen_format::certificate::Certificate;
use duramen_format::control::Record;
use duramen_format::segment::Kind;
use std::collections::BTreeSet;
use swaps::Swaps;

/// Segments with waiting copies that one poll looks at. There may be thousands of them, and writes
/// wait for the poll. A segment whose copies no backup takes rests again, and the next poll goes on
/// behind it: one comes every 100 ms, with [`forgive`](Replicas::forgive), if nothing else happens.
const WALKED_MAX: usize = 128;

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
    /// The backup is short of room; only an opening is refused so.
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

/// The replication state of a master; see the module.
pub struct Master {
    config: Config,
    control: ControlLog,
    swaps: Swaps,
    replicas: Replicas,
    /// No acknowledgement counts any more.
    fenced: bool,
    /// The reason, if it is this master's own.
    fault: Option<String>,
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
        let mut replicas = Replicas::new(&config, backups);
        for replica in found {
            replicas.adopt(replica, &state);
        }
        Master {
            config,
            control: ControlLog::new(&config, state),
            swaps: Swaps::new(),
            replicas,
            fenced: false,
            fault: None,
        }
    }

    // --- its parts

    /// The control log.
    pub fn control(&self) -> &ControlLog {
        &self.control
    }

    pub fn segments(&self) -> &Segments {
        &self.replicas.segments
    }

    pub fn segments_mut(&mut self) -> &mut Segments {
        &mut self.replicas.segments
    }

    pub fn replicas(&self) -> &Replicas {
        &self.replicas
    }

    pub fn replicas_mut(&mut self) -> &mut Replicas {
        &mut self.replicas
    }

    // --- the log grows

    /// A head has begun a new segment. `head` counts from 0; survivors have none.
    ///
    /// # Panics
    /// If the segment is known.
    pub fn opened(&mut self, segment: SegmentId, kind: Kind, head: u32) {
        self.replicas.segments.open(segment, kind, head);
        self.replicas.agenda.add(segment);
    }

    /// The segment is valid up to `certificate`; all of it can be sent from now on.
    ///
    /// # Panics
    /// If the segment is unknown, closed or would shrink.
    pub fn appended(&mut self, segment: SegmentId, certificate: Certificate) {
        let known = self.replicas.segments.known_mut(segment);
        assert!(!known.closed, "segment {segment} is closed");
        assert!(known.queued.length <= certificate.length);
        self.replicas.queue(segment, certificate);
    }

    /// The segment is closed.
    ///
    /// # Panics
    /// If it is unknown or closed already.
    pub fn closed(&mut self, segment: SegmentId) {
        let known = self.replicas.segments.known_mut(segment);
        assert!(!known.closed, "segment {segment} is closed twice");
        known.closed = true;
        self.replicas.agenda.add(segment);
    }

    /// A survivor will never be listed: its side log was given up. The writer of its replicas frees
    /// them.
    ///
    /// # Panics
    /// If it is listed.
    pub fn survivor_abandoned(&mut self, segment: SegmentId) {
        assert!(
            !self.control.state().segments.contains_key(&segment),
            "segment {segment} is part of the log"
        );
        if self.config.one_stream {
            self.replicas.segments.remove(segment); // the writer of its frame frees it
        } else {
            self.replicas.discard(segment);
        }
    }

    /// Writes a record that depends only on its place in the control log: a table's, a pass, a safe
    /// version. A pass waits for those of its victims that are not listed (O15).
    ///
    /// # Panics
    /// If the record contradicts the state.
    pub fn record(&mut self, record: Record) {
        self.control.record(record, &mut self.replicas);
    }

    /// Victims for which passes wait are given up, unless they `may_be_listed` in time (O15): they
    /// have left the log already, or were given up before they got into it.
    pub fn forget_victims(&mut self, may_be_listed: impl Fn(SegmentId) -> bool) {
        self.control.forget_victims(may_be_listed);
    }

    /// Proposes to replace `remove` in the log by `add`, which were opened or written before.
    /// Returns the number of the swap.
    pub fn swap(
        &mut self,
        add: Vec<(SegmentId, Certificate)>,
        remove: Vec<SegmentId>,
        version_floor: u64,
    ) -> u64 {
        self.swaps.propose(add, remove, version_floor)
    }

    /// Takes a swap back, unless its record is written. Returns the segments that it adds.
    pub fn withdraw(&mut self, number: u64) -> Option<Vec<(SegmentId, Certificate)>> {
        self.swaps.withdraw(number)
    }

    /// A replica of a control segment is damaged on its backup: the log continues in a new one,
    /// which begins with a snapshot (O7). (A damaged data segment is replaced by cleaning it.)
    pub fn renew_control(&mut self) {
        self.control.renew();
    }

    /// O9: keeps all segments that are listed now from being freed, each until it is
    /// [`unpinned`](Replicas::unpin).
    pub fn pin(&mut self) {
        let listed = self.control.state().segments.keys();
        self.replicas.garbage.pin(listed.copied());
    }

    /// The coordinator has noted, durably, that no control segment before `min_open` counts (O10).
    pub fn control_head_noted(&mut self, min_open: SegmentId) {
        self.control.floor_noted(min_open);
    }

    // --- the rules

    /// Applies the rules until none of them can do more, but for copies that wait: one poll looks
    /// at some of them. Appends the effects to `effects`, in an order that respects the rules.
    /// `next_id` gives a new segment id.
    pub fn poll(&mut self, next_id: &mut dyn FnMut() -> SegmentId, effects: &mut Vec<Effect>) {
        if self.fenced {
            return;
        }
        let [first, first_copy] = self.replicas.flights.take_waiting();
        let mut walks = WALKED_MAX;
        loop {
            let mut changed = self.control.go_on(&mut self.replicas, next_id);
            // Data segments first, so that their records are in the control segment's next chunk.
            // Nothing waits for copies.
            let Replicas {
                agenda, segments, ..
            } = &self.replicas;
            let ids = agenda.turns(first, false, segments);
            let copies = agenda.turns(first_copy, true, segments);
            for (ids, kind_is_control) in [(&ids, false), (&ids, true), (&copies, false)] {
                for id in ids {
                    let segment = self.replicas.segments.get(*id);
                    let is_control = segment.map(|segment| segment.kind == Kind::Control);
                    if is_control == Some(kind_is_control) {
                        changed |= self.advance(*id, effects);
                    }
                }
            }
            while let Some(id) = self.replicas.next_copy(first_copy, &mut walks) {
                changed |= self.advance(id, effects);
            }
            changed |= self.swaps.write(&mut self.control, &mut self.replicas);
            if !changed {
                break;
            }
        }
        self.finish(effects);
    }

    /// Applies the rules to one segment.
    fn advance(&mut self, id: SegmentId, effects: &mut Vec<Effect>) -> bool {
        let replicas = &mut self.replicas;
        let mut changed = replicas.place(id);
        changed |= replicas.place_anew(id);
        replicas.look_at_racks(id);
        let allowed = self.control.allowed(id, &mut replicas.segments);
        for n in 0..replicas.segments.known(id).replicas.len() {
            if let Some(send) = replicas.send(id, n, allowed) {
                effects.push(Effect::Send(send));
                changed = true;
            }
        }
        if replicas.segments.known(id).kind == Kind::Head {
            changed |= self.control.list(id, replicas);
        }
        replicas.retire(id);
        replicas.let_wait(id);
        changed
    }

    /// The end of a poll: what is not needed any more is freed (O6, O7, O9), and the coordinator is
    /// told what counts (O10).
    fn finish(&mut self, effects: &mut Vec<Effect>) {
        while let Some(id) = self.control.take_old(&self.replicas.segments) {
            self.replicas.discard(id);
        }
        let synced = self.control.reached(&self.replicas.segments);
        if synced > 0 {
            self.replicas.garbage.take_leftovers();
        }
        while self.control.is_single()
            && let Some((swap, victims)) = self.swaps.take_done(synced)
        {
            for id in victims {
                self.replicas.discard(id);
            }
            effects.push(Effect::Swapped { swap });
        }
        let control = &self.control;
        let freed = self
            .replicas
            .free(|segments, id| control.is_safe(id, segments));
        let freed = freed.into_iter();
        effects.extend(freed.map(|(backup, segment)| Effect::Free { backup, segment }));
        let told = self.control.tell_floor(&self.replicas.segments);
        effects.extend(told.map(|min_open| Effect::ControlHead { min_open }));
    }

    // --- answers

    /// The send of `ticket` was refused.
    pub fn rejected(&mut self, ticket: Ticket, why: Rejection) {
        let sent = self.replicas.flights.take(ticket);
        if let Some(sent) = &sent {
            self.replicas.agenda.wake(sent.segment);
        }
        match (why, sent) {
            (Rejection::Fenced, _) => self.fenced = true,
            (Rejection::Busy, Some(sent)) => self.replicas.refused(&sent),
            (Rejection::Damaged, Some(sent)) => {
                let outcome = self.replicas.send_again(&sent);
                self.control.lost(outcome.lost);
                if let Some(fault) = outcome.fault {
                    self.fail(fault);
                }
            }
            (Rejection::Busy | Rejection::Damaged, None) => {}
        }
    }

    /// The send of `ticket` is impossible: no backup has the bytes of that closed segment any more.
    /// The segment keeps its present replicas, and should be cleaned. Without the bytes of an open
    /// segment, its head could never go on.
    pub fn give_up(&mut self, ticket: Ticket) {
        if let Some(sent) = self.replicas.flights.take(ticket)
            && !self.replicas.give_up(&sent)
        {
            self.fail(format!("the bytes of segment {} are lost", sent.segment));
        }
    }

    /// None of `holders` could provide the bytes for `ticket`'s send, of a closed segment: their
    /// replicas are lost (O11). Nothing reached the target, so it is neither refused nor freed.
    pub fn not_fetched(&mut self, ticket: Ticket, holders: &[BackupId]) {
        if let Some(sent) = self.replicas.flights.take(ticket) {
            let lost = self.replicas.not_fetched(&sent, holders);
            self.control.lost(lost);
        }
    }

    // --- backups

    /// A backup may be given replicas.
    pub fn backup_up(&mut self, member: impl Into<Member>) {
        self.replicas.backup_up(member.into());
        // The control log continues in a new segment if that would be in more racks
        // (placement::L6): an idle master would keep all its copies in one rack for days. Data is
        // not moved.
        let holding = self.control.newest_at(&self.replicas.segments);
        if self.replicas.backups.would_spread(&holding) {
            self.control.renew();
        }
    }

    /// A backup has crashed: its replicas are gone (O8, O10, O11).
    pub fn backup_lost(&mut self, backup: BackupId) {
        let lost = self.replicas.backup_lost(backup);
        self.control.lost(lost);
    }

    /// As [`backup_retires`](Replicas::backup_retires), and the control log continues elsewhere.
    /// Returns the open data segments with a replica there: they are to be closed.
    pub fn backup_leaves(&mut self, backup: BackupId) -> Vec<SegmentId> {
        self.replicas.backup_retires(backup);
        let holding = self.control.newest_at(&self.replicas.segments);
        if holding.contains(&backup) {
            self.control.renew();
        }
        self.replicas.segments.open_at(backup)
    }

    /// A backup has found its replicas of these segments damaged: they are lost, and freed when
    /// there are enough others (O8 to O11). A data segment must be closed, and none of its bytes
    /// may be on the way to that backup. Otherwise nothing happens, and the backup reports the
    /// damage again.
    pub fn replica_damaged(&mut self, backup: BackupId, segments: &[SegmentId]) {
        let lost = self.replicas.damaged(backup, segments);
        self.control.lost(lost);
    }

    /// A backup still has these replicas: it was restarted, and is known here under its new name,
    /// or it was silent. Returns those that it may drop (O12). Closed replicas count again if their
    /// segments lack one, and so do those in whose place a copy is only planned.
    pub fn hand_back(&mut self, backup: BackupId, found: &[Found]) -> Vec<SegmentId> {
        match self.fenced {
            true => Vec::new(),
            false => self.replicas.hand_back(backup, found),
        }
    }

    // --- its own life

    /// This master has a fault of its own: its life ends like that of one that was declared
    /// crashed, and its log is recovered from what is acknowledged.
    pub fn fail(&mut self, why: String) {
        self.fenced = true;
        self.fault.get_or_insert(why);
    }

    /// See [`fail`](Self::fail).
    pub fn fault(&self) -> Option<&str> {
        self.fault.as_deref()
    }

    /// Whether a backup has answered that this master is declared crashed, or it has a
    /// [`fault`](Self::fault).
    pub fn is_fenced(&self) -> bool {
        self.fenced
    }

    // --- what counts

    /// Bytes of the segment that are safe on all replicas, at `level`.
    pub fn durable_bytes(&self, segment: SegmentId, level: Level) -> u32 {
        let segments = &self.replicas.segments;
        match segments.get(segment) {
            Some(known) if self.control.counts(known, segments) && !self.fenced => {
                segments.on_all(segment, level).length
            }
            _ => 0,
        }
    }

    /// Whether a closed segment is on all its replicas, synced. One that is not known any more
    /// needs none.
    pub fn is_safe(&self, segment: SegmentId) -> bool {
        self.control.is_safe(segment, &self.replicas.segments)
    }

    /// Backups that hold, or held, a control segment that a recovery might take for the newest:
    /// their leases are needed for reading. None before the first one is noted: nothing is read
    /// then, since a recovery would not ask for this log (collect::G1).
    pub fn control_holders(&self) -> BTreeSet<BackupId> {
        self.control.holders(&self.replicas.segments)
    }

    /// Whether a swap, or a segment to be freed, waits for acknowledgements at level synced.
    pub fn wants_sync(&self) -> bool {
        let awaits_sync = |id: &SegmentId| {
            let segment = self.replicas.segments.known(*id);
            segment.kind == Kind::Head && segment.closed
        };
        !self.swaps.is_empty()
            || self.replicas.garbage.has_leftovers()
            || self.control.has_old()
            || self.replicas.agenda.active().any(awaits_sync)
    }

    /// Whether all work so far is done, and acknowledged at level synced.
    pub fn is_idle(&self) -> bool {
        self.swaps.is_empty() && self.control.is_settled() && self.replicas.is_idle()
    }

    /// The unfinished work, for people.
    pub fn describe(&self) -> String {
        let (copies_wait, find_no_backup) = self.replicas.agenda.counts();
        let (to_be_freed, being_freed) = self.replicas.garbage.counts();
        let (wanted, noted) = self.control.floor_progress();
        let mut text = format!(
            "{} calls, {copies_wait} copies wait, {find_no_backup} find no backup, {} swaps, \
             {to_be_freed} to be freed, {being_freed} being freed, control head wanted {wanted} \
             noted {noted}",
            self.replicas.flights.len(),
            self.swaps.len(),
        );
        self.replicas.describe(&mut text);
        text
    }
}
