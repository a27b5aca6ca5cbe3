//! A member of a cluster: its log is on other servers, whose answers come at any time.
//!
//! **Invariants** (docs/protocols.md)
//! - J1: one group is in flight at a time: appends made meanwhile form the next one, which begins
//!   when this one has reached its level on all replicas. No write waits for more writers.
//! - J2: the engine gets the level of a group when all of its data, and the records that came with
//!   it, have reached it: data as the rules count it, records synced. A segment's closing is
//!   reported when all its replicas are closed and synced.
//! - J3: a buffered group is reported as synced when all of it is synced.
//! - J4: bytes that are sent were copied from the log under the commit's lock: no call refers to
//!   the engine's memory.
//! - J5: if a backup finds that bytes do not match their certificate, a bit may have changed in
//!   memory since the certificate was made. The next bytes of that segment are compared with it,
//!   one flipped bit of an entry is put back in them, and a survivor is copied again. If they do
//!   not match then, no backup would ever take them, and this life ends: what is acknowledged is on
//!   the backups, and is recovered elsewhere.
//!
//! **Concurrency**: everything here holds the commit's lock; [`Backups`] is called under it and
//! must not call back.

use super::flight::{Part, Survivor};
use super::{Commit, Common};
use crate::hints::Hints;
use crate::{DiskState, Error};
use duramen_base::ids::{Level, SegmentId, ServerId};
use duramen_cluster::replication::{BackupId, Effect, Master, Send, Ticket};
use duramen_engine::{Log, Piece, Store as Engine};
use duramen_format::certificate::Certificate;
use duramen_format::mend;
use duramen_format::segment::Kind;
use duramen_wire::native::Slice;
use duramen_wire::native::message::WriteReplica;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Survivors that are written at once: the rate at which a recovery reaches the disks.
const SURVIVORS_MAX: usize = 4;
/// Buffers for survivors: those in flight, and some whose last copy is still being sent; and those
/// that are kept when none is in flight.
const SPARE_MAX: usize = 2 * SURVIVORS_MAX;
const SPARE_KEPT: usize = 1;
/// Unit of their lengths: survivors are about equally long.
const SPARE_UNIT: usize = 1 << 20;

/// The source of a call's bytes.
#[derive(Clone, Debug)]
pub enum Bytes {
    /// The bytes themselves.
    Here(Slice),
    /// A survivor, and the recipe with which a backup that has its victims builds it. A backup that
    /// cannot build it gets the bytes.
    Built { recipe: Slice, bytes: Slice },
    /// Not in memory any more: each of these backups has the whole segment, closed.
    At(Vec<BackupId>),
}

/// A write to a backup: a [`Send`] of the rules, with its bytes.
#[derive(Clone, Debug)]
pub struct Call {
    pub ticket: Ticket,
    pub to: BackupId,
    pub write: WriteReplica,
    pub bytes: Bytes,
}

/// A request of a member's log. Each one is repeated until the backup is lost, or its answer is
/// passed to the named method: of [`LogWriter`](crate::writer::LogWriter), or of [`Master`], by
/// [`LogWriter::master`](crate::writer::LogWriter::master).
#[derive(Clone, Debug)]
pub enum ToBackups {
    /// → [`LogWriter::answered`](crate::writer::LogWriter::answered)
    Write(Call),
    /// The backup may drop its replica. → `freed` of its [`Master::replicas_mut`]
    Free(BackupId, SegmentId),
    /// Sync all data of this log there. → [`LogWriter::synced`](crate::writer::LogWriter::synced)
    Sync(BackupId),
    /// To the coordinator: record that no older control segment counts. →
    /// [`Master::control_head_noted`]
    ControlHead(SegmentId),
}

/// The connection to a member's backups and to its coordinator.
pub trait Backups: std::marker::Send + Sync {
    /// Neither blocks nor fails.
    fn ask(&self, request: ToBackups);
}

/// The replicas of a member's log: the connection to its backups.
pub(crate) struct Remote {
    pub log: ServerId,
    pub segment_bytes: u32,
    pub replicas: usize,
    pub backups: Arc<dyn Backups>,
    /// Only with a flash tier.
    pub hints: Option<Hints>,
}

impl Remote {
    /// Continues all possible work: sends as the rules allow, reports reached levels to the engine,
    /// begins the next group.
    ///
    /// # Errors
    /// [`Error::DiskFailed`], permanent, if this server counts as crashed, or cannot continue its
    /// log (J5).
    pub fn pump(&self, common: &Common, commit: &mut Commit, level: Level) -> Result<(), Error> {
        commit.flight.demanded = commit.flight.demanded.max(level);
        commit.flight.wants_sync |= level == Level::Synced;
        loop {
            if commit.flight.level.is_none() && commit.flight.demanded > Level::Memory {
                commit.begin_group(common.log());
            }
            self.apply(common, commit);
            if !commit.end_group(common) {
                break;
            }
        }
        self.sync_behind(common, commit);
        if commit.master.is_fenced() {
            let fault = commit.master.fault();
            let reason = fault.unwrap_or("the cluster takes this server for crashed");
            let reason = reason.to_owned();
            let state = DiskState::Failed(reason.clone());
            common.health.set(state, common.log());
            common.ended.fetch_add(1, Ordering::AcqRel);
            return Err(Error::DiskFailed(reason));
        }
        Ok(())
    }

    /// A member's work beside its groups: survivors, swaps. Returns whether there was any.
    pub fn step(&self, common: &Common) -> Result<bool, Error> {
        let mut commit = common.lock();
        let any = [
            commit.drop_abandoned(common.log()),
            commit.write_survivors(common),
            commit.advance_swaps(common.log()),
        ];
        let any = any.into_iter().any(|any| any);
        if any {
            self.pump(common, &mut commit, Level::Memory)?;
        }
        Ok(any)
    }

    /// Applies the rules and sends their calls.
    fn apply(&self, common: &Common, commit: &mut Commit) {
        let mut effects = std::mem::take(&mut commit.effects);
        let mut next_id = || common.log().new_segment_id();
        commit.master.poll(&mut next_id, &mut effects);
        for effect in effects.drain(..) {
            match effect {
                Effect::Send(send) => self.send(common, commit, send),
                Effect::Free { backup, segment } => {
                    self.backups.ask(ToBackups::Free(backup, segment));
                }
                Effect::Swapped { swap } => commit.survivors.swapped(swap),
                Effect::ControlHead { min_open } => {
                    self.backups.ask(ToBackups::ControlHead(min_open));
                }
            }
        }
        commit.effects = effects;
        common.figures.note(commit);
        commit.flight.last = None;
    }

    fn send(&self, common: &Common, commit: &mut Commit, send: Send) {
        let Some(bytes) = commit.bytes_of(common, &send) else {
            if commit.master.is_fenced() {
                return; // J5
            }
            commit.master.give_up(send.ticket);
            if !commit.lose_survivor(common, send.segment) {
                // Cleaning moves its live entries to another segment.
                common.engine.relocate(send.segment);
            }
            return;
        };
        if send.kind == Kind::Survivor && commit.flight.is_pass_survivor(send.segment) {
            common.figures.note_cleaning(&bytes);
        }
        // Sends that order other data are synced; data alone reaches the level of its group.
        let orders = send.kind != Kind::Head || send.open || send.close || send.epoch > 0;
        let level = match commit.flight.level {
            Some(level) if !orders => level,
            _ => Level::Synced,
        };
        let write = WriteReplica {
            log: self.log,
            segment: send.segment,
            kind: send.kind,
            epoch: send.epoch,
            offset: send.from,
            certificate: (send.certificate.length > 0).then_some(send.certificate),
            open: send.open,
            close: send.close,
            primary: send.primary,
            level,
            capacity: self.segment_bytes,
        };
        self.backups.ask(ToBackups::Write(Call {
            ticket: send.ticket,
            to: send.backup,
            write,
            bytes,
        }));
    }

    /// J3.
    fn sync_behind(&self, common: &Common, commit: &mut Commit) {
        let Commit { flight, master, .. } = commit;
        if !flight.behind.is_empty() && flight.behind.has_reached(master, Level::Synced) {
            flight.behind = Part::default();
            common.unsynced.store(false, Ordering::Relaxed);
            common.log().complete_all(Level::Synced);
            common.ended.fetch_add(1, Ordering::AcqRel);
        }
        let wanted = flight.wants_sync && !flight.behind.is_empty() || master.wants_sync();
        if wanted {
            for backup in master.replicas().unsynced_backups() {
                if flight.syncing.insert(backup) {
                    master.segments_mut().sync_begins(backup);
                    self.backups.ask(ToBackups::Sync(backup));
                }
            }
        } else {
            flight.wants_sync = false;
        }
    }
}

impl Commit {
    /// A backup has ended a sync that was requested with [`ToBackups::Sync`].
    pub fn synced(&mut self, backup: BackupId) {
        if self.flight.syncing.remove(&backup) {
            self.master.segments_mut().sync_ends(backup);
        }
    }

    /// A backup has crashed.
    pub fn backup_lost(&mut self, backup: BackupId) {
        self.flight.syncing.remove(&backup);
        self.master.backup_lost(backup);
    }

    /// Flips these bits in a byte of each copy of a survivor that is being written, for tests.
    /// Returns their number.
    #[cfg(debug_assertions)]
    pub fn flip_survivors(&mut self, bits: u8) -> usize {
        for survivor in self.flight.survivors.values_mut() {
            let mut bytes = survivor.bytes.to_vec();
            let middle = bytes.len() / 2;
            bytes[middle] ^= bits;
            survivor.bytes = bytes.into();
        }
        self.flight.survivors.len()
    }

    /// Whether survivors or a swap are in flight: then the next step is due after each answer.
    pub fn is_swapping(&self) -> bool {
        !self.flight.survivors.is_empty() || self.survivors.is_swap_proposed()
    }

    /// J1.
    fn begin_group(&mut self, log: &Log) {
        let level = std::mem::replace(&mut self.flight.demanded, Level::Memory);
        log.collect(&mut self.collected);
        if self.collected.is_empty() {
            return;
        }
        let mut part = Part::default();
        for piece in log.pieces(&self.collected) {
            match piece {
                Piece::Open { .. } => {}
                Piece::Data {
                    segment,
                    offset,
                    bytes,
                } => {
                    part.ends.insert(segment, offset + bytes.len() as u32);
                }
                Piece::Close { segment, .. } => {
                    part.closed.insert(segment);
                }
            }
        }
        let has_records =
            !self.collected.changes().is_empty() || !self.collected.passes().is_empty();
        self.tell(log);
        // Records before the first control segment are in its snapshot.
        part.records = if has_records {
            self.master.control().end().max(1)
        } else {
            0
        };
        self.flight.part = part;
        self.flight.level = Some(level);
    }

    /// Reports a group that has reached its level to the engine. Returns whether it had.
    fn end_group(&mut self, common: &Common) -> bool {
        let Commit {
            flight,
            master,
            collected,
            ..
        } = self;
        let Some(level) = flight.level else {
            return false;
        };
        if !flight.part.has_reached(master, level) {
            return false;
        }
        let part = std::mem::take(&mut flight.part);
        flight.level = None;
        if level < Level::Synced {
            flight.behind.join(part);
            common.unsynced.store(true, Ordering::Relaxed);
        }
        common.log().complete(collected, level);
        common.ended.fetch_add(1, Ordering::AcqRel);
        true
    }

    /// J4. `None`: no copy exists.
    fn bytes_of(&mut self, common: &Common, send: &Send) -> Option<Bytes> {
        let (segment, from, to) = (send.segment, send.from, send.certificate.length);
        if from == to {
            return Some(Bytes::Here(Slice::default()));
        }
        let Commit { flight, master, .. } = self;
        let is_suspect = flight.suspects.contains(&segment);
        if is_suspect && let Some(survivor) = flight.survivors.get_mut(&segment) {
            verify_survivor(common, master, send, survivor)?;
        }
        if let Some(survivor) = flight.survivors.get(&segment)
            && let Some((recipe, victims)) = &survivor.recipe
            && send.open
            && send.close
            && victims
                .iter()
                .all(|id| master.segments().has_whole(send.backup, *id))
        {
            let (recipe, bytes) = (recipe.clone(), survivor.bytes.clone());
            return Some(Bytes::Built { recipe, bytes });
        }
        if let Some((known, at, end, bytes)) = &flight.last
            && (*known, *at, *end) == (segment, from, to)
        {
            return Some(Bytes::Here(bytes.clone()));
        }
        let range = from as usize..to as usize;
        let bytes: Slice = match flight.survivors.get(&segment) {
            Some(survivor) => survivor.bytes.part(range),
            _ if send.kind == Kind::Control => master.control().bytes(segment)[range].into(),
            _ => match common.log().unclosed_bytes(segment, from, to) {
                Some(_) if is_suspect => {
                    let all = common.log().unclosed_bytes(segment, 0, to)?;
                    certified(&common.engine, master, send, all.to_vec())?[range].into()
                }
                Some(bytes) => bytes.into(),
                None => {
                    // Waits for flash only if there is no other copy (swap::D7): other threads wait
                    // for the commit meanwhile.
                    let holders = master.segments().holders(segment);
                    let last = holders.is_empty();
                    match unswapped(&common.engine, send, last) {
                        Some(bytes) => bytes.into(),
                        None => return (!last).then_some(Bytes::At(holders)),
                    }
                }
            },
        };
        flight.last = Some((segment, from, to, bytes.clone()));
        Some(Bytes::Here(bytes))
    }

    /// No copy of a segment's bytes is left. If it is a survivor of a pass whose Swap is not
    /// recorded, the pass is given up (engine::log::swap::given_up). Returns whether it is one.
    #[cold]
    fn lose_survivor(&mut self, common: &Common, segment: SegmentId) -> bool {
        let survivors = &mut self.survivors;
        if !survivors.withdraw(segment, &mut self.master, common.log()) {
            return false;
        }
        let why = "all its replicas were lost before its Swap, and memory has changed since";
        common.engine.give_up_pass_of(segment, why)
    }

    /// Sends a few survivors at a time to all their replicas, each as a whole.
    fn write_survivors(&mut self, common: &Common) -> bool {
        let log = common.log();
        let Commit {
            flight,
            master,
            survivors,
            ..
        } = self;
        let written = flight.survivors.extract_if(.., |id, _| master.is_safe(*id));
        let mut any = false;
        for (segment, survivor) in written {
            survivors.add(segment, survivor.certificate);
            log.survivor_durable(segment);
            any = true;
        }
        while flight.survivors.len() < SURVIVORS_MAX {
            let Some(ready) = log.another_survivor() else {
                break;
            };
            let Some(bytes) = common.sound_survivor(ready.segment, ready.bytes) else {
                common.give_up_damaged(ready.segment);
                continue;
            };
            let certificate = Certificate::of(&bytes);
            master.opened(ready.segment, Kind::Survivor, 0);
            master.appended(ready.segment, certificate);
            master.closed(ready.segment);
            let recipe = ready.parts.as_deref().and_then(|parts| {
                let recipe = parts.encode(|id| master.segments().closed_certificate(id))?;
                let victims: BTreeSet<SegmentId> = parts.victims().collect();
                Some((recipe.into(), victims.into_iter().collect()))
            });
            let survivor = Survivor {
                certificate,
                bytes: copied(&mut flight.spare, &bytes),
                recipe,
                is_side: ready.is_side,
            };
            flight.survivors.insert(ready.segment, survivor);
            any = true;
        }
        if flight.survivors.is_empty() {
            flight.spare.truncate(SPARE_KEPT);
        }
        any
    }

    /// Frees the replicas of survivors of side logs that were given up.
    fn drop_abandoned(&mut self, log: &Log) -> bool {
        let abandoned = log.take_abandoned();
        for segment in &abandoned {
            let is_written = self.survivors.remove(*segment);
            let is_under_way = self.flight.survivors.remove(segment).is_some();
            if is_under_way {
                log.survivor_durable(*segment);
            }
            if is_written || is_under_way {
                self.master.survivor_abandoned(*segment);
            }
        }
        !abandoned.is_empty()
    }

    /// Proposes the next swap; reports a durable one to the engine.
    fn advance_swaps(&mut self, log: &Log) -> bool {
        if self.survivors.is_swap_proposed() {
            let swap = self.survivors.take_swapped();
            if let Some(swap) = &swap {
                log.swapped(swap);
            }
            return swap.is_some();
        }
        if let Some(swap) = log.next_swap() {
            self.survivors.propose(swap, &mut self.master);
            return true;
        }
        let waits = log.swap_waits_for();
        if waits.is_some_and(|position| log.reached(&position) < Level::Synced) {
            let flight = &mut self.flight;
            let is_under_way = flight.level == Some(Level::Synced)
                || flight.demanded == Level::Synced
                || flight.wants_sync && !flight.behind.is_empty();
            (flight.demanded, flight.wants_sync) = (Level::Synced, true);
            return !is_under_way; // a caller that gets true checks again at once
        }
        false
    }
}

/// The bytes of a durable survivor that is not swapped in yet, from memory or flash, as they
/// were certified (swap::D7). One flipped bit of an entry is put back. `None`: neither of both
/// has them.
#[cold]
fn unswapped(engine: &Engine, send: &Send, may_wait: bool) -> Option<Vec<u8>> {
    let to = send.certificate.length;
    let mut all = engine.unswapped_bytes(send.segment, 0, to, may_wait)?;
    if Certificate::of(&all) != send.certificate {
        let mended = mend::segment(&mut all, send.kind, usize::MAX).ok()?;
        if Certificate::of(&all) != send.certificate {
            return None;
        }
        for bit in mended {
            engine.tell_damage(send.segment, true, bit.to_string());
        }
    }
    all.drain(..send.from as usize);
    Some(all)
}

/// The bytes of a whole segment as they were certified for a send. `None`: that is impossible,
/// and this life ends (J5).
#[cold]
fn certified(
    engine: &Engine,
    master: &mut Master,
    send: &Send,
    mut all: Vec<u8>,
) -> Option<Vec<u8>> {
    let is_right = |all: &[u8]| Certificate::of(all) == send.certificate;
    if is_right(&all) {
        return Some(all);
    }
    let mended = mend::segment(&mut all, send.kind, usize::MAX);
    if let Ok(mended) = mended
        && is_right(&all)
    {
        for bit in mended {
            engine.tell_damage(send.segment, true, bit.to_string());
        }
        return Some(all);
    }
    let what = "it does not match its certificate any more, and this server's log ends here";
    engine.tell_damage(send.segment, false, what.to_owned());
    master.fail(format!(
        "segment {} in memory does not match its certificate",
        send.segment
    ));
    None
}

/// The copy of a survivor that is being written matches its certificate now (J5).
#[cold]
fn verify_survivor(
    common: &Common,
    master: &mut Master,
    send: &Send,
    survivor: &mut Survivor,
) -> Option<()> {
    if Certificate::of(&survivor.bytes) != send.certificate {
        let bytes = common.log().unwritten_survivor(send.segment)?;
        survivor.bytes = certified(&common.engine, master, send, bytes.to_vec())?.into();
    }
    Some(())
}

/// J4, in reused memory if a buffer is free.
fn copied(spare: &mut Vec<Arc<Vec<u8>>>, bytes: &[u8]) -> Slice {
    let free = spare
        .iter_mut()
        .position(|buffer| Arc::get_mut(buffer).is_some());
    let mut buffer = free.map(|at| spare.swap_remove(at)).unwrap_or_default();
    let into = Arc::get_mut(&mut buffer).expect("the buffer has one owner");
    into.clear();
    into.reserve_exact(bytes.len().next_multiple_of(SPARE_UNIT));
    into.extend_from_slice(bytes);
    if spare.len() < SPARE_MAX {
        spare.push(buffer.clone());
    }
    Slice::of(buffer, 0..bytes.len())
}
