//! The backup service of a member: handles requests of peers and of the coordinator with a real
//! backup.
//!
//! All requests of peers come in by [`asked`](BackupService::asked), in a server and in a
//! simulator.
//!
//! Writes wait for the next [`run`](BackupService::run): one commit for all that arrived before.
//!
//! **Invariants**
//! - B0: a request for another life of this server has no effect, and neither has one that comes
//!   after this life's end: the service lives on until its thread has stopped. Writes that came
//!   before the end are answered. No safety rests on the moment: what such an answer says is true,
//!   and counts for as much as one that left just before the end (docs/protocols.md, "Leases", 4).
//! - B1: nothing is answered as stored before it has reached its level on the device.
//! - B2: from [`start_read`](BackupService::start_read) on no write to that log is acknowledged,
//!   not even of chunks staged before, and no lease of it is renewed: the answer to the coordinator
//!   stays true (docs/traps.md, trap 22).
//! - B3: only the master of a log writes it, frees replicas of it and renews its lease.
//! - B4: a lease counts from the receipt of the request, not from the answer.
//! - B5: a recovery reads certified bytes with the certificate that it requested, or is told that
//!   the replica is bad here.
//! - B6: a lease has begun as soon as a control segment that was received may be reported: a fence
//!   commits the staged chunks.
//! - B7: a freed control segment does not come back by a late copy of its opening, even if the
//!   first copy was still staged: it would look like the newest one.
//! - B8: a replica is dropped on its master's answer only if it has not changed since the request.
//! - B9: a log that was fenced or dropped here is refused for ever: its server may be a zombie that
//!   is cut off.
//! - B10: a refused opening of a control segment is refused whenever it arrives again; one at a
//!   higher epoch is another one. So its master may give the replica to another backup without any
//!   trace here (replication::O13).
//! - B11: an open replica from before this life is reported as such: nothing shows whether the
//!   directory is an older copy of itself (collect::G6).
//! - B12: a request to sync with a payload is a probe: it is answered after a write to the disk,
//!   also if there was nothing to sync.
//!
//! **Concurrency** none: one owner. Replicas may be read on other threads
//! ([`next_read`](BackupService::next_read)).
//!
//! Paper: [Ousterhout15 §4, §7.3], [Beineke18 §IV]; differs: fences and leases (docs/traps.md,
//! traps 22 and 26).

use crate::builds::Builds;
use crate::life_end::LifeEnd;
use crate::requests::RequestId;
use duramen_backup::{Backup, Chunk, Error, Group, ReadAhead, ReplicaId, ReplicaInfo};
use duramen_base::ids::{Level, RecoveryId, SegmentId, ServerId};
use duramen_base::planted::{Bug, has_bug};
use duramen_cluster::lease::HolderLease;
use duramen_format::certificate::Certificate;
use duramen_format::hash::KeyHasher;
use duramen_format::segment::Kind;
use duramen_wire::native::Slice;
use duramen_wire::native::message::{
    Peer, PeerAnswer, Refusal, ReplicaEntry, Replicas, ServerAnswer, WriteReplica,
};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Delay before a repeated write for which the device had no space.
const FULL_AGAIN_MS: u32 = 100;
/// Refused control segments of one log that are stored one by one; all older ones are refused for
/// ever.
const REFUSED_MAX: usize = 64;

/// An answer, and its receiver.
#[derive(Debug)]
pub struct Reply<T> {
    pub tag: T,
    pub answer: PeerAnswer,
    pub payload: Slice,
}

/// A request of another server to the backup here.
pub struct Asked<'a, T> {
    /// Names the request in its [`Reply`].
    pub tag: T,
    pub sender: ServerId,
    pub target: ServerId,
    pub question: &'a Peer,
    pub payload: &'a [u8],
}

impl<T> Asked<'_, T> {
    /// The reply if the target is not this server's life, or this life has no service yet, or is
    /// over (B0).
    pub fn not_here(self) -> Reply<T> {
        Reply {
            tag: self.tag,
            answer: PeerAnswer::Refused(Refusal::NotUp(self.target)),
            payload: Slice::default(),
        }
    }
}

/// A task for the keeper.
#[derive(Clone, Debug)]
pub enum Task {
    StartRead {
        request: RequestId,
        recovery: RecoveryId,
        log: ServerId,
        min_open: SegmentId,
    },
    /// The master of this log does not need these replicas.
    NotNeeded {
        log: ServerId,
        replicas: Vec<ReplicaEntry>,
    },
    /// The server of this log has crashed: its log is fenced (node::D3).
    Crashed(ServerId),
    /// The server of this log has left the list: its replicas are dropped (node::D3).
    Removed(ServerId),
}

/// The settings of a backup service.
#[derive(Clone, Copy, Debug)]
pub struct BackupConfig {
    /// This server's life (B0).
    pub server: ServerId,
    /// Seed of the cluster's key hash.
    pub hash_seed: u64,
    /// The duration of a read lease.
    pub read_lease_ms: u32,
    /// Memory for sorted replicas of all logs that are being recovered, in bytes.
    pub ahead_bytes: usize,
}

/// A write that was staged, and is not answered.
struct Unanswered<T> {
    tag: T,
    log: ServerId,
    segment: SegmentId,
    /// When it was received, if its answer renews the lease.
    leases_from_us: Option<u64>,
}

impl<T> Unanswered<T> {
    /// Whether it writes to a control segment: those writes renew the lease.
    fn is_control(&self) -> bool {
        self.leases_from_us.is_some()
    }
}

/// The backup service; see the module. `T` names the sender of a request.
pub struct BackupService<T> {
    pub(crate) backup: Arc<Backup>,
    pub(crate) hasher: KeyHasher,
    group: Group<u64>,
    /// The writes in the group, by number.
    staged: BTreeMap<u64, Unanswered<T>>,
    next: u64,
    syncs: Vec<(T, ServerId)>,
    is_probed: bool,
    leases: HolderLease,
    /// Replicas that recovery reads first.
    primaries: BTreeSet<ReplicaId>,
    /// Open replicas that an earlier life wrote (B11).
    inherited: BTreeSet<ReplicaId>,
    /// The newest freed control segment of each log.
    freed_control: BTreeMap<ServerId, SegmentId>,
    /// Control segments of each log with a refused opening, and the highest epoch of the refusal
    /// (B10).
    refused_control: BTreeMap<ServerId, BTreeMap<SegmentId, u64>>,
    /// Since when, in microseconds, each opening was refused for lack of room, and the reason;
    /// `None`: the last one was accepted.
    without_room: Option<(u64, String)>,
    pub(crate) ahead: BTreeMap<ServerId, ReadAhead>,
    pub(crate) builds: Builds<T>,
    pub(crate) scratch: Vec<u8>,
    pub(crate) config: BackupConfig,
    /// B0. The node has it too.
    pub(crate) life_end: LifeEnd,
}

impl<T> BackupService<T> {
    /// `now_us`: for one lease from now on, the masters of all logs here may hold a read lease.
    pub fn new(backup: Arc<Backup>, config: BackupConfig, now_us: u64) -> BackupService<T> {
        let inherited = backup.logs().into_iter();
        let inherited = inherited.flat_map(|log| backup.replicas_of(log));
        let inherited = inherited.filter(|replica| !replica.closed);
        BackupService {
            inherited: inherited.map(|replica| replica.id()).collect(),
            backup,
            hasher: KeyHasher::new(config.hash_seed),
            group: Group::default(),
            staged: BTreeMap::new(),
            next: 0,
            syncs: Vec::new(),
            is_probed: false,
            leases: HolderLease::new(u64::from(config.read_lease_ms) * 1000, now_us),
            primaries: BTreeSet::new(),
            freed_control: BTreeMap::new(),
            refused_control: BTreeMap::new(),
            without_room: None,
            ahead: BTreeMap::new(),
            builds: Builds::default(),
            scratch: Vec::new(),
            config,
            life_end: LifeEnd::default(),
        }
    }

    /// Handles a request of a peer. Answers are output at once, or by [`run`](Self::run).
    pub fn asked(&mut self, now_us: u64, asked: Asked<'_, T>, out: &mut Vec<Reply<T>>) {
        let is_over = self.life_end.has_come() && !has_bug(Bug::ServesAfterEnd);
        if asked.target != self.config.server || is_over {
            return out.push(asked.not_here()); // B0
        }
        let Asked {
            tag,
            sender,
            question,
            payload,
            ..
        } = asked;
        let answer = match question {
            Peer::WriteReplica(write) => {
                return self.write(now_us, tag, sender, write, payload, out);
            }
            Peer::BuildReplica(write) => {
                return self.ask_build(tag, sender, write, payload, out);
            }
            Peer::SyncReplicas { log } => match self.check_master(sender, *log) {
                Ok(()) => {
                    self.is_probed |= !payload.is_empty(); // B12
                    return self.syncs.push((tag, *log));
                }
                Err(answer) => answer,
            },
            Peer::FreeReplicas { log, segments } => self.free(sender, *log, segments),
            Peer::RenewLease { log, control } => self.renew(now_us, sender, *log, *control),
            Peer::ReadSegment {
                log,
                segment,
                certificate,
            } => {
                let (answer, payload) = self.read_segment(sender, *log, *segment, *certificate);
                return out.push(Reply {
                    tag,
                    answer,
                    payload: payload.into(),
                });
            }
            Peer::ReadReplica(_) | Peer::ReadRaw { .. } => {
                let (answer, payload) = self.read_for_recovery(question);
                return out.push(Reply {
                    tag,
                    answer,
                    payload,
                });
            }
            Peer::Ping { .. }
            | Peer::Needed { .. }
            | Peer::Damaged { .. }
            | Peer::MigrateEntries(_)
            | Peer::PutHeat
            | Peer::GetHeat { .. }
            | Peer::Publish { .. } => invalid("this is no question to a backup"),
        };
        out.push(Reply {
            tag,
            answer,
            payload: Slice::default(),
        });
    }

    /// Checks that the sender is the log's master (B3), and that the log is not fenced (B2).
    fn check_master(&self, sender: ServerId, log: ServerId) -> Result<(), PeerAnswer> {
        if sender != log || log == ServerId::NONE || log.is_coordinator() {
            return Err(invalid("only its master writes a log"));
        }
        if self.backup.is_fenced(log.number()) {
            return Err(PeerAnswer::Fenced);
        }
        Ok(())
    }

    pub(crate) fn write(
        &mut self,
        now_us: u64,
        tag: T,
        sender: ServerId,
        write: &WriteReplica,
        payload: &[u8],
        out: &mut Vec<Reply<T>>,
    ) {
        let refuse = |tag, answer| Reply {
            tag,
            answer,
            payload: Slice::default(),
        };
        if let Err(answer) = self.may_write(sender, write) {
            return out.push(refuse(tag, answer));
        }
        let chunk = Chunk {
            segment: write.segment,
            epoch: write.epoch,
            kind: write.kind,
            offset: write.offset,
            bytes: payload,
            certificate: write.certificate,
            open: write.open,
            close: write.close,
        };
        let log = write.log.number();
        let level = write.level.max(Level::Buffered);
        let number = self.next;
        let submitted = self
            .group
            .submit(&self.backup, log, chunk, level, number, now_us);
        if let Err(error) = submitted {
            let is_short = matches!(error, Error::Busy { .. } | Error::Full { .. });
            if write.open && !chunk.is_refill() && is_short {
                self.without_room
                    .get_or_insert_with(|| (now_us, error.to_string()));
            }
            let answer = self.refusal(write, &error);
            return out.push(refuse(tag, answer));
        }
        self.next += 1;
        let id = ReplicaId {
            log,
            segment: write.segment,
        };
        self.builds.cancel(id);
        if write.open {
            self.without_room = None;
            self.inherited.remove(&id);
        }
        if write.kind == Kind::Control && !has_bug(Bug::LeaseWithAnswer) {
            self.leases.grant(log, now_us); // B6
        }
        if write.primary {
            self.primaries.insert(id);
        }
        let unanswered = Unanswered {
            tag,
            log: write.log,
            segment: write.segment,
            leases_from_us: (write.kind == Kind::Control).then_some(now_us),
        };
        self.staged.insert(number, unanswered);
    }

    pub(crate) fn may_write(
        &self,
        sender: ServerId,
        write: &WriteReplica,
    ) -> Result<(), PeerAnswer> {
        self.check_master(sender, write.log)?;
        let capacity = self.backup.geometry().segment_bytes;
        if write.open && write.capacity > capacity {
            return Err(invalid(&format!(
                "segments have {capacity} bytes here, not {}",
                write.capacity
            )));
        }
        if write.kind != Kind::Control {
            return Ok(());
        }
        let gone = self.freed_control.get(&write.log).copied();
        if gone >= Some(write.segment) && !has_bug(Bug::FreedControlOpens) {
            return Err(PeerAnswer::Unknown); // B7
        }
        match self.has_refused(write) {
            true => Err(PeerAnswer::Busy), // B10
            false => Ok(()),
        }
    }

    /// Since when, in microseconds, it has accepted no new segment for lack of room, and the
    /// reason.
    pub fn lacks_room(&self) -> Option<(u64, &str)> {
        let (since_us, why) = self.without_room.as_ref()?;
        Some((*since_us, why))
    }

    /// When [`run`](Self::run) should be called: `None` if no write waits, a time in the past for
    /// at once.
    pub fn due_us(&self) -> Option<u64> {
        let syncs = (!self.syncs.is_empty()).then_some(0);
        syncs.or_else(|| self.group.due())
    }

    /// Commits the waiting writes and answers them (B1). `clock`: microseconds.
    ///
    /// # Errors
    /// [`Error::Full`]: all continue to wait; call again after replicas were freed.
    /// [`Error::Failed`]: final; the masters find other backups when this one's server ends.
    pub fn run(&mut self, clock: &dyn Fn() -> u64, out: &mut Vec<Reply<T>>) -> Result<(), Error> {
        for answered in self.group.run(&self.backup, clock)? {
            let unanswered = self.staged.remove(&answered.tag);
            let Unanswered {
                tag,
                log,
                leases_from_us,
                ..
            } = unanswered.expect("what was staged waits");
            let answer = if self.backup.is_fenced(log.number()) {
                PeerAnswer::Fenced // B2
            } else {
                if let Some(from_us) = leases_from_us {
                    self.leases.grant(log.number(), from_us); // B4
                }
                let (level, leased) = (answered.level, leases_from_us.is_some());
                PeerAnswer::Stored { level, leased }
            };
            out.push(Reply {
                tag,
                answer,
                payload: Slice::default(),
            });
        }
        if !self.syncs.is_empty() {
            self.backup.commit(Level::Synced)?;
            self.backup.sync()?;
            if self.is_probed {
                self.backup.clock().note()?;
                self.is_probed = false; // B12: only now; a full disk is tried again
            }
        }
        for (tag, log) in std::mem::take(&mut self.syncs) {
            let is_fenced = self.backup.is_fenced(log.number());
            let answer = if is_fenced {
                PeerAnswer::Fenced
            } else {
                PeerAnswer::Synced
            };
            out.push(Reply {
                tag,
                answer,
                payload: Slice::default(),
            });
        }
        Ok(())
    }

    /// Whether this opening of a control segment was refused for ever (B10).
    fn has_refused(&self, write: &WriteReplica) -> bool {
        let of_log = self.refused_control.get(&write.log);
        let refused = of_log.and_then(|refused| refused.get(&write.segment));
        refused.is_some_and(|epoch| write.epoch <= *epoch) && !has_bug(Bug::RefusedOpeningTaken)
    }

    /// The answer to a master after its write was refused.
    fn refusal(&mut self, write: &WriteReplica, error: &Error) -> PeerAnswer {
        let answer = refused_write(error, write.open);
        let is_refused = matches!(answer, PeerAnswer::Busy | PeerAnswer::Full);
        let is_opening = write.kind == Kind::Control && write.open;
        if is_refused && is_opening && !self.refuses(write, error) {
            return PeerAnswer::Unknown; // the replica here counts as lost
        }
        answer
    }

    /// Refuses the opening of a control segment for lack of room, for ever (B10). Returns false if
    /// that can't be promised.
    fn refuses(&mut self, write: &WriteReplica, error: &Error) -> bool {
        let is_it = |log: u64, segment| (log, segment) == (write.log.number(), write.segment);
        let mut staged = self.staged.values();
        let mut held = self.backup.replicas_of(write.log.number()).into_iter();
        let is_there = staged.any(|s| is_it(s.log.number(), s.segment))
            || held.any(|held| is_it(write.log.number(), held.segment));
        if is_there || !matches!(error, Error::Busy { .. } | Error::Full { .. }) {
            return false; // the contents of a failed device are unknown
        }
        self.note_refused(write);
        true
    }

    fn note_refused(&mut self, write: &WriteReplica) {
        let refused = self.refused_control.entry(write.log).or_default();
        let epoch = refused.entry(write.segment).or_default();
        *epoch = write.epoch.max(*epoch);
        if refused.len() > REFUSED_MAX
            && let Some((oldest, _)) = refused.pop_first()
        {
            let newest = self.freed_control.entry(write.log).or_default();
            *newest = (*newest).max(oldest);
        }
    }

    fn free(&mut self, sender: ServerId, log: ServerId, segments: &[SegmentId]) -> PeerAnswer {
        if let Err(answer) = self.check_master(sender, log) {
            return answer;
        }
        let replicas = self.backup.replicas_of(log.number());
        for segment in segments {
            let is_control = |r: &ReplicaInfo| r.segment == *segment && r.kind == Kind::Control;
            let mut staged = self.staged.values();
            let is_staged = staged.any(|s| s.is_control() && (s.log, s.segment) == (log, *segment));
            if is_staged || replicas.iter().any(is_control) {
                let newest = self.freed_control.entry(log).or_default();
                *newest = (*newest).max(*segment); // B7
            }
            let id = ReplicaId {
                log: log.number(),
                segment: *segment,
            };
            self.builds.cancel(id);
            match self.backup.free_of(id) {
                Ok(()) | Err(Error::UnknownSegment { .. }) => self.primaries.remove(&id),
                Err(Error::Fenced { .. }) => return PeerAnswer::Fenced,
                Err(error) => return not_ready(&error),
            };
        }
        PeerAnswer::Freed
    }

    fn renew(
        &mut self,
        now_us: u64,
        sender: ServerId,
        log: ServerId,
        control: SegmentId,
    ) -> PeerAnswer {
        if let Err(answer) = self.check_master(sender, log) {
            return answer;
        }
        let mut replicas = self.backup.replicas_of(log.number()).into_iter();
        if !replicas.any(|replica| replica.segment == control && replica.kind == Kind::Control) {
            return PeerAnswer::Unknown;
        }
        self.leases.grant(log.number(), now_us);
        PeerAnswer::Leased
    }

    /// The coordinator recovers this log: sets the fence, reports the replicas here and begins to
    /// read them. The payload is that of [`Replicas::control`]. A repeated request gets the state
    /// at that time.
    pub fn start_read(
        &mut self,
        now_us: u64,
        recovery: RecoveryId,
        log: ServerId,
        min_open: SegmentId,
    ) -> (ServerAnswer, Vec<u8>) {
        if let Err(error) = self.backup.fence(log.number()) {
            let refusal = Refusal::NotReady {
                after_ms: FULL_AGAIN_MS,
                reason: error.to_string(),
            };
            return (ServerAnswer::Refused(refusal), Vec::new());
        }
        self.builds.cancel_log(log);
        // An error of the device may pass. Other bytes than the certified ones do not.
        self.backup.reader().retry_unreadable(log.number());
        if let Some(ahead) = self.ahead.get_mut(&log) {
            ahead.retry_bad();
        }
        let replicas = self.backup.replicas_of(log.number());
        let (damaged, mut replicas): (Vec<_>, Vec<_>) =
            replicas.into_iter().partition(|replica| replica.damaged);
        let (control, payload) = self.newest_control(log, min_open, &mut replicas);
        let is_holder = replicas.iter().any(|replica| replica.kind == Kind::Control);
        let left_us = if is_holder {
            self.leases.left(log.number(), now_us)
        } else {
            0
        };
        let entry = |replica: &ReplicaInfo| ReplicaEntry {
            segment: replica.segment,
            kind: replica.kind,
            epoch: replica.epoch,
            certificate: replica.certificate(),
            closed: replica.closed,
            primary: self.primaries.contains(&replica.id()),
        };
        let entries: Vec<ReplicaEntry> = replicas.iter().map(entry).collect();
        let damaged = damaged.iter().filter(|of| of.kind != Kind::Control);
        let damaged = damaged.map(entry).collect();
        let open = replicas.iter().filter(|replica| !replica.closed);
        let inherited = open.filter(|replica| self.inherited.contains(&replica.id()));
        let inherited = inherited.map(|replica| replica.segment).collect();
        // The others are read on request: their primaries are read elsewhere.
        let primaries = entries.iter().filter(|entry| entry.primary);
        let data = primaries.filter(|entry| entry.kind != Kind::Control);
        let mut order: Vec<SegmentId> = data.map(|entry| entry.segment).collect();
        order.sort_unstable_by_key(|segment| Reverse(*segment)); // as masters read them
        self.ahead
            .entry(log)
            .or_insert_with(|| ReadAhead::new(log.number(), order));
        let answer = ServerAnswer::Replicas(Box::new(Replicas {
            log,
            recovery,
            segments: entries,
            control,
            lease_left_ms: u32::try_from(left_us.div_ceil(1000)).unwrap_or(u32::MAX),
            inherited,
            damaged,
        }));
        (answer, payload)
    }

    /// The newest control segment that may count, with its bytes. Unreadable ones are removed from
    /// the list.
    fn newest_control(
        &mut self,
        log: ServerId,
        min_open: SegmentId,
        replicas: &mut Vec<ReplicaInfo>,
    ) -> (Option<SegmentId>, Vec<u8>) {
        loop {
            let control = replicas.iter().rev().find(|replica| {
                replica.kind == Kind::Control && (replica.closed || replica.segment >= min_open)
            });
            let Some(id) = control.map(ReplicaInfo::id) else {
                return (None, Vec::new());
            };
            debug_assert_eq!(id.log, log.number());
            self.scratch
                .resize(self.backup.geometry().segment_bytes as usize, 0);
            match self.backup.read_of(id, &mut self.scratch) {
                Ok(info) => {
                    let bytes = self.scratch[..info.length as usize].to_vec();
                    return (Some(id.segment), bytes);
                }
                Err(_) => replicas.retain(|replica| replica.id() != id),
            }
        }
    }

    /// A whole closed segment, for the master that lacks a replica of it.
    fn read_segment(
        &mut self,
        sender: ServerId,
        log: ServerId,
        segment: SegmentId,
        certificate: Certificate,
    ) -> (PeerAnswer, Vec<u8>) {
        if let Err(answer) = self.check_master(sender, log) {
            return (answer, Vec::new());
        }
        let id = ReplicaId {
            log: log.number(),
            segment,
        };
        self.scratch
            .resize(self.backup.geometry().segment_bytes as usize, 0);
        let reason = match self.backup.read_of(id, &mut self.scratch) {
            Ok(info) if info.closed && info.certificate() == certificate => {
                let mut bytes = std::mem::take(&mut self.scratch);
                bytes.truncate(info.length as usize);
                return (PeerAnswer::Segment, bytes);
            }
            Ok(_) => "the replica has another certificate".to_owned(),
            Err(error) => error.to_string(),
        };
        (PeerAnswer::Bad { reason }, Vec::new())
    }

    /// A server has crashed: no write to its log is accepted any more.
    pub(crate) fn crashed(&mut self, log: ServerId) {
        // Even if the staged chunks could not be committed now, the fence is set, and a recovery
        // asks again.
        let _ = self.backup.fence(log.number());
        self.builds.cancel_log(log);
    }

    /// No replica of this log is needed any more: its server has left the list.
    ///
    /// # Errors
    /// [`Error::Failed`].
    pub fn removed(&mut self, log: ServerId) -> Result<u32, Error> {
        self.backup.fence(log.number())?; // what is under way does not come back, nor does anything later (B9)
        self.builds.cancel_log(log);
        self.ahead.remove(&log);
        self.leases.forget(log.number());
        self.freed_control.remove(&log);
        self.refused_control.remove(&log);
        self.primaries.retain(|id| id.log != log.number());
        self.inherited.retain(|id| id.log != log.number());
        self.backup.free_log(log.number())
    }

    /// The master of this log does not need these replicas. A replica that has changed since the
    /// request stays (B8).
    ///
    /// # Errors
    /// [`Error::Fenced`]: a recovery has begun, everything stays. [`Error::Failed`].
    pub fn not_needed(&mut self, log: ServerId, replicas: &[ReplicaEntry]) -> Result<u32, Error> {
        let present = self.backup.replicas_of(log.number());
        let mut freed = 0;
        for replica in replicas {
            let is_same = |now: &ReplicaInfo| {
                let certificate = (now.certificate(), now.epoch, now.closed);
                now.segment == replica.segment
                    && certificate == (replica.certificate, replica.epoch, replica.closed)
            };
            let mut staged = self.staged.values();
            let is_changing = staged.any(|s| s.log == log && s.segment == replica.segment);
            let is_compared = !has_bug(Bug::HandBackUncompared);
            if is_compared && (is_changing || !present.iter().any(is_same)) {
                continue;
            }
            if replica.kind == Kind::Control {
                let newest = self.freed_control.entry(log).or_default();
                *newest = (*newest).max(replica.segment); // B7
            }
            let id = ReplicaId {
                log: log.number(),
                segment: replica.segment,
            };
            self.builds.cancel(id);
            match self.backup.free_of(id) {
                Ok(()) => freed += 1,
                Err(Error::UnknownSegment { .. }) => {}
                Err(error) => return Err(error),
            }
            self.primaries.remove(&id);
        }
        Ok(freed)
    }
}

/// The answer to a master after its write was refused.
fn refused_write(error: &Error, open: bool) -> PeerAnswer {
    match error {
        Error::Fenced { .. } => PeerAnswer::Fenced,
        Error::StaleEpoch { known, .. } => PeerAnswer::OldEpoch { has: *known },
        Error::UnknownSegment { .. } | Error::Gap { .. } => PeerAnswer::Unknown,
        Error::Busy { .. } => PeerAnswer::Busy,
        Error::Full { .. } | Error::Failed { .. } | Error::Io { .. } if open => PeerAnswer::Full,
        Error::Full { .. } => PeerAnswer::Busy,
        Error::Certificate { .. } => PeerAnswer::Bad {
            reason: error.to_string(),
        },
        Error::Failed { .. } | Error::Io { .. } => PeerAnswer::Unknown,
        other => invalid(&other.to_string()),
    }
}

fn not_ready(error: &Error) -> PeerAnswer {
    PeerAnswer::Refused(Refusal::NotReady {
        after_ms: FULL_AGAIN_MS,
        reason: error.to_string(),
    })
}

pub(crate) fn invalid(why: &str) -> PeerAnswer {
    PeerAnswer::Refused(Refusal::Invalid(why.to_owned()))
}
