//! The replicas of a master's segments: where they are, and what is under way to them.

use super::agenda::Agenda;
use super::backups::{Backups, COPIES_FORGIVEN};
use super::flights::{Flights, InFlight};
use super::garbage::Garbage;
use super::segment::{Progress, Replica, without_data};
use super::segments::Segments;
use super::{BackupId, Config, Found, Kind, Level, Member, Placed, SegmentId, Send, Ticket};
use crate::control::State;
use duramen_base::planted::{Bug, has_bug};
use duramen_format::certificate::Certificate;
use std::collections::BTreeSet;

/// Another backup gets a replica after one has found its bytes damaged this many times. A bit that
/// flips on the way comes alone, and one in memory is put back at the second attempt
/// (durable::remote::J5).
const DAMAGED_MAX: u32 = 4;
/// If this many backups find the bytes of one segment damaged that often, the fault is the
/// master's.
const BACKUPS_BLAMED: usize = 2;
/// Without another backup, a control segment is replaced by the next one after this many damaged
/// sends.
const CONTROL_ANEW: u32 = 10;

/// The replicas of a log.
pub struct Replicas {
    pub(super) segments: Segments,
    pub(super) agenda: Agenda,
    pub(super) garbage: Garbage,
    pub(super) flights: Flights,
    pub(super) backups: Backups,
}

/// A replica of a control segment that does not count any more.
#[derive(Clone, Copy, Debug)]
pub(super) struct LostControl {
    pub id: SegmentId,
    pub backup: BackupId,
    /// Whether the replica may be open: it may come back and look like the log's newest.
    pub may_look_new: bool,
}

/// The consequences of an answer that is no acknowledgement.
#[derive(Debug, Default)]
pub(super) struct Outcome {
    pub lost: Option<LostControl>,
    /// A fault of this master itself.
    pub fault: Option<String>,
}

/// The rules' permission for one segment.
#[derive(Clone, Copy, Debug)]
pub(super) struct Allowed {
    /// Bytes may be sent.
    pub data: bool,
    pub close: bool,
    /// The certificate of its snapshot; a control segment has one.
    pub snapshot: Option<Certificate>,
}

impl Replicas {
    pub(super) fn new(config: &Config, backups: &[BackupId]) -> Replicas {
        Replicas {
            segments: Segments::new(config),
            agenda: Agenda::default(),
            garbage: Garbage::new(config),
            flights: Flights::new(config),
            backups: Backups::new(config, backups),
        }
    }

    /// A replica that a restart found.
    pub(super) fn adopt(&mut self, found: &Found, state: &State) {
        let listed = state.segments.get(&found.segment).filter(|listed| {
            let expected = listed.closed.unwrap_or(found.certificate);
            let is_old = listed.closed.is_none() && !found.closed && found.epoch < listed.epoch;
            found.certificate == expected && !is_old
        });
        let Some(listed) = listed else {
            return self.garbage.add_leftover(found.backup, found.segment);
        };
        self.segments.adopt(found, listed);
        self.agenda.add(found.segment);
    }

    // --- what users say

    /// Sets the place of this master, before any backup is added.
    pub fn is_at(&mut self, me: Member) {
        self.backups.set_master(me);
    }

    /// Placement of this log's segments, for people.
    pub fn placed(&mut self) -> Placed {
        Placed {
            has_enough: self.backups.has_enough(),
            segments_sharing_rack: self.segments.find(|segment| segment.shares_rack).len(),
            segments_short: self.segments.count_short(),
        }
    }

    /// The send of `ticket` has reached `level`.
    pub fn acked(&mut self, ticket: Ticket, level: Level) {
        // A ticket of a lost backup may come late.
        if let Some(sent) = self.flights.take(ticket) {
            self.note_acked(&sent, level);
        }
    }

    /// Everything sent to `backup` so far has reached `level`.
    pub fn acked_all(&mut self, backup: BackupId, level: Level) {
        for sent in self.flights.take_all(backup) {
            self.note_acked(&sent, level);
        }
        if level == Level::Synced {
            self.acked_all_buffered(backup);
        }
    }

    /// All sends that `backup` has acknowledged at level buffered are synced now.
    pub fn acked_all_buffered(&mut self, backup: BackupId) {
        for id in self.agenda.active() {
            if let Some(segment) = self.segments.get_mut(*id)
                && let Some(replica) = segment.replica_mut(backup)
            {
                replica.synced = replica.buffered;
            }
        }
    }

    /// Backups that have acknowledged data which are not synced there.
    pub fn unsynced_backups(&self) -> BTreeSet<BackupId> {
        let active = self.agenda.active().filter_map(|id| self.segments.get(*id));
        let replicas = active.flat_map(|segment| &segment.replicas);
        let unsynced = replicas.filter(|replica| replica.buffered != replica.synced);
        unsynced.map(|replica| replica.backup).collect()
    }

    /// The segment of a send that is in flight.
    pub fn segment_of(&self, ticket: Ticket) -> Option<SegmentId> {
        self.flights.segment_of(ticket)
    }

    /// A backup has dropped a replica, after [`Effect::Free`](super::Effect::Free).
    pub fn freed(&mut self, backup: BackupId, segment: SegmentId) {
        self.garbage.freed(backup, segment);
        self.agenda.wake(segment); // it may go there again
    }

    /// A backup that is UP gets no new replicas: it is about to be stopped, and keeps its present
    /// ones.
    pub fn backup_retires(&mut self, backup: BackupId) {
        self.backups.retire(backup);
    }

    /// Backups that have refused openings may be asked again: some time has passed.
    pub fn forgive(&mut self) {
        let forgiven = self.backups.forgive();
        for id in forgiven.rested {
            if self.segments.get(id).is_some() {
                self.agenda.look_at(id);
            }
        }
        if forgiven.copies {
            self.agenda.try_parked();
        }
        if forgiven.openings {
            let wanted = self.segments.wanted();
            let lacking = self.segments.find(|segment| {
                let is_refused = segment.replicas.iter().any(|r| r.refused);
                !segment.close_recorded && (is_refused || segment.replicas.len() < wanted)
            });
            for id in lacking {
                self.agenda.add(id);
            }
        }
    }

    /// The segment may be freed when it is not needed (replication::O9).
    pub fn unpin(&mut self, segment: SegmentId) {
        self.garbage.unpin(segment);
    }

    /// As [`unpin`](Self::unpin), for all segments.
    pub fn unpin_all(&mut self) {
        self.garbage.unpin_all();
    }

    // --- segments grow

    /// The segment is valid up to `certificate`.
    pub(super) fn queue(&mut self, id: SegmentId, certificate: Certificate) {
        self.segments.known_mut(id).queued = certificate;
        self.agenda.add(id);
    }

    fn note_acked(&mut self, sent: &InFlight, level: Level) {
        self.agenda.wake(sent.segment);
        if let Some(segment) = self.segments.get_mut(sent.segment)
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

    // --- backups come and go

    /// A backup may be given replicas.
    pub(super) fn backup_up(&mut self, member: Member) {
        self.backups.add(member);
        self.agenda.try_parked();
        let wanted = self.segments.wanted();
        let closed_too = !has_bug(Bug::ClosedNotRefilled);
        let incomplete = self.segments.find(|segment| {
            segment.replicas.len() < wanted && (closed_too || !segment.close_recorded)
        });
        for id in incomplete {
            self.agenda.look_at(id);
        }
    }

    /// A backup has crashed: its replicas are gone (replication::O8, replication::O10,
    /// replication::O11).
    pub(super) fn backup_lost(&mut self, backup: BackupId) -> Vec<LostControl> {
        self.backups.remove(backup);
        self.agenda.try_parked();
        self.flights.take_all(backup);
        self.garbage.lost(backup);
        let mut lost = Vec::new();
        for id in self.segments.find(|_| true) {
            self.segments.known_mut(id).may_return(backup);
            lost.extend(self.lose(id, backup));
        }
        lost
    }

    /// A replica does not count any more; it may reappear unchanged (replication::O8,
    /// replication::O10, replication::O11).
    fn lose(&mut self, id: SegmentId, backup: BackupId) -> Option<LostControl> {
        let segment = self.segments.get_mut(id)?;
        let n = segment.replicas.iter().position(|r| r.backup == backup)?;
        let lost = segment.replicas.remove(n);
        segment.has_lost = true;
        self.agenda.look_at(id);
        if segment.kind == Kind::Control {
            let may_look_new = lost.may_be_open() && !lost.synced.close;
            return Some(LostControl {
                id,
                backup,
                may_look_new,
            });
        }
        if segment.close_recorded {
            segment.epoch += 1; // replication::O11
            if has_bug(Bug::ClosedNotRefilled) {
                self.agenda.is_done(id);
            }
        } else {
            segment.lose_replica(has_bug(Bug::EpochStays));
        }
        None
    }

    // --- calls that fail

    /// Nothing of a send was stored, and the backup is well: it is sent again. If that repeats, the
    /// bytes change on the way there, in the backup, or in this master's memory. Then another
    /// backup takes the replica, and each further attempt comes after a longer while. If another
    /// backup says the same of this segment, the fault is here, and nobody else loses a replica.
    pub(super) fn send_again(&mut self, sent: &InFlight) -> Outcome {
        let mut outcome = Outcome::default();
        let Some(segment) = self.segments.get_mut(sent.segment) else {
            return outcome;
        };
        let is_copy = segment.close_recorded;
        let holding: Vec<BackupId> = segment.backups().collect();
        let kind = segment.kind;
        let Some(replica) = segment.replica_mut(sent.backup) else {
            return outcome;
        };
        replica.in_flight = replica.in_flight.saturating_sub(1);
        replica.sent = replica.buffered;
        replica.damaged += 1;
        let damaged = replica.damaged;
        self.agenda.add(sent.segment);
        if damaged < DAMAGED_MAX {
            return outcome;
        }
        let is_control = kind == Kind::Control;
        if !is_copy && !is_control {
            segment.damaged_at.insert(sent.backup);
            if segment.damaged_at.len() >= BACKUPS_BLAMED {
                let id = sent.segment;
                let fault = format!("several backups find segment {id} damaged when it arrives");
                outcome.fault = Some(fault);
                return outcome;
            }
        }
        let rest = u64::from(damaged - DAMAGED_MAX + 1).min(COPIES_FORGIVEN);
        self.backups.rest(sent.segment, sent.backup, rest);
        self.backups.refused(sent.backup, is_copy);
        // The next control segment's bytes are encoded anew.
        let begins_anew = is_control && damaged.is_multiple_of(CONTROL_ANEW);
        let none = std::iter::empty();
        if !begins_anew && !self.backups.can_choose(&holding, is_copy, none) {
            return outcome;
        }
        outcome.lost = self.lose(sent.segment, sent.backup);
        if !is_control {
            self.free_lost(sent.segment, sent.backup);
        }
        outcome
    }

    /// An opening was refused: another backup is asked; if there is none, the same one again after
    /// a while. A repetition of a data segment's opening may have been accepted all the same: so
    /// the replica there counts as lost, and is freed. A repetition of a control segment's opening
    /// is never accepted (replication::O13), so nothing counts as lost: each loss would cost a
    /// control segment.
    pub(super) fn refused(&mut self, sent: &InFlight) {
        let Some(segment) = self.segments.get_mut(sent.segment) else {
            return;
        };
        let holding: Vec<BackupId> = segment.backups().collect();
        let is_copy = segment.close_recorded;
        let Some(replica) = segment.replica_mut(sent.backup) else {
            return;
        };
        if replica.buffered.open {
            replica.in_flight = replica.in_flight.saturating_sub(1); // no opening: it is sent again
            replica.sent = replica.buffered;
            return;
        }
        self.backups.refused(sent.backup, is_copy);
        let none = std::iter::empty();
        let is_alone = !self.backups.can_choose(&holding, is_copy, none);
        if is_alone {
            replica.in_flight = replica.in_flight.saturating_sub(1);
            replica.refused = true;
        }
        if segment.kind == Kind::Control {
            segment.refuse(sent.backup);
            self.agenda.add(sent.segment);
            return;
        }
        if is_alone {
            return;
        }
        if has_bug(Bug::RefusedForgotten) {
            segment
                .replicas
                .retain(|replica| replica.backup != sent.backup);
            self.agenda.add(sent.segment);
            return;
        }
        self.lose(sent.segment, sent.backup); // no control segment
        let segment = self.segments.known_mut(sent.segment);
        if segment.close_recorded {
            segment.unsettle(sent.backup); // its older replica is not freed yet
        }
        self.free_lost(sent.segment, sent.backup);
    }

    /// A backup may drop a lost replica of a data segment. Not that of a listed segment that is
    /// open: it may have acknowledged bytes that no other replica has any more. The backup asks
    /// about it (replication::O12).
    fn free_lost(&mut self, id: SegmentId, backup: BackupId) {
        let known = self.segments.get(id);
        let may_have_data = known.is_some_and(|s| s.listed_at.is_some() && !s.close_recorded);
        if !may_have_data || has_bug(Bug::LastOpenFreed) {
            self.garbage.add(backup, id);
        }
    }

    /// A send is impossible: no backup has the bytes of that closed segment any more. It keeps its
    /// present replicas, and should be cleaned. Returns false if the segment is open: its head
    /// could never go on without the bytes.
    pub(super) fn give_up(&mut self, sent: &InFlight) -> bool {
        let id = sent.segment;
        if let Some(segment) = self.segments.get_mut(id) {
            if segment.kind == Kind::Head && !segment.close_recorded {
                return false;
            }
            segment.has_no_source = true;
            if segment.unplace(sent.backup) {
                self.garbage.add(sent.backup, id);
            }
        }
        self.look_at_racks(id);
        self.agenda.remove(id);
        true
    }

    /// None of `holders` could provide the bytes for a send of a closed segment: their replicas are
    /// lost (replication::O11). Nothing reached the target, so it is neither refused nor freed.
    pub(super) fn not_fetched(
        &mut self,
        sent: &InFlight,
        holders: &[BackupId],
    ) -> Vec<LostControl> {
        let mut lost = Vec::new();
        let id = sent.segment;
        let Some(segment) = self.segments.get_mut(id) else {
            return lost;
        };
        match segment.replica_mut(sent.backup) {
            Some(replica) if replica.buffered.open => {
                replica.in_flight = replica.in_flight.saturating_sub(1);
                replica.sent = replica.buffered;
            }
            _ => {
                if segment.unplace(sent.backup) {
                    self.garbage.add(sent.backup, id);
                }
            }
        }
        self.agenda.look_at(id);
        for holder in holders {
            if self.segments.holds(*holder, id) {
                lost.extend(self.lose(id, *holder));
                self.garbage.add(*holder, id);
            }
        }
        lost
    }

    /// A backup has found its replicas of these segments damaged: they are lost, and freed when
    /// there are enough others (replication::O8 to replication::O11). A data segment must be
    /// closed, and none of its bytes may be on the way to that backup. Otherwise nothing happens,
    /// and the backup reports the damage again.
    pub(super) fn damaged(&mut self, backup: BackupId, segments: &[SegmentId]) -> Vec<LostControl> {
        let mut lost = Vec::new();
        for id in segments {
            let Some(segment) = self.segments.get_mut(*id) else {
                continue;
            };
            let rests = segment.close_recorded || segment.kind == Kind::Control;
            let held = segment.replica_mut(backup);
            if rests && held.is_some_and(|replica| replica.in_flight == 0) {
                // A control segment goes when a newer one is there, and not before.
                let may_go = segment.kind != Kind::Control;
                lost.extend(self.lose(*id, backup));
                if may_go {
                    self.garbage.add(backup, *id);
                }
                self.look_at_racks(*id);
            }
        }
        lost
    }

    /// A backup still has these replicas: it was restarted, and is known here under its new name,
    /// or it was silent. Returns those that it may drop (replication::O12). Closed replicas count
    /// again if their segments lack one, and so do those in whose place a copy is only planned.
    pub(super) fn hand_back(&mut self, backup: BackupId, found: &[Found]) -> Vec<SegmentId> {
        if !self.backups.has(backup) && !has_bug(Bug::DroppedUnseen) {
            return Vec::new();
        }
        let (mut not_needed, mut changed) = (Vec::new(), Vec::new());
        for replica in found {
            let wanted = self.segments.wanted();
            let id = replica.segment;
            let Some(segment) = self.segments.get_mut(id) else {
                not_needed.push(id);
                continue;
            };
            let is_whole =
                segment.close_recorded && replica.closed && replica.certificate == segment.queued;
            if let Some(held) = segment.replica_mut(backup) {
                let is_there = held.in_flight > 0 || held.sent_before().open;
                if is_there || !is_whole {
                    continue; // it was, or is being, given to it anew
                }
                if segment.unplace(backup) {
                    self.garbage.add(backup, id);
                }
                changed.push(id);
            }
            let may_count = is_whole && !segment.settled.contains(&backup);
            if may_count
                && segment.replicas.len() >= wanted
                && let Some((planned, is_garbage)) = segment.unplace_planned()
                && is_garbage
            {
                self.garbage.add(planned, id);
            }
            if may_count && segment.replicas.len() < wanted {
                segment.settled.push(backup);
                let mut whole = Replica::whole(backup, replica.certificate);
                whole.is_first = true;
                segment.replicas.push(whole);
                segment.has_no_source = false; // the others can be filled from this one
                self.garbage.take_back(backup, id);
                changed.push(id);
                continue;
            }
            let on_others = segment.on_all(wanted, Level::Synced);
            let elsewhere = on_others.open && on_others.length == segment.queued.length;
            let counts = segment.epoch_at.is_none() || segment.close_recorded;
            if elsewhere && (counts || replica.epoch < segment.epoch) {
                segment.settled.push(backup);
                not_needed.push(id);
            }
        }
        for id in changed {
            self.agenda.look_at(id);
        }
        not_needed
    }

    // --- one segment in a poll

    /// Chooses backups for missing replicas: the next in turn that has none of this segment.
    pub(super) fn place(&mut self, id: SegmentId) -> bool {
        let wanted = self.segments.wanted();
        let Some(segment) = self.segments.get_mut(id) else {
            return false;
        };
        // A control segment that lost a replica is replaced (replication::O7, replication::O8), not
        // completed.
        let replaced = segment.kind == Kind::Control
            && (segment.closed || segment.has_lost && segment.was_placed);
        let mut changed = false;
        while segment.replicas.len() < wanted && !replaced && !segment.has_no_source {
            let holding: Vec<BackupId> = segment.backups().collect();
            // replication::O12: replicas that are not freed before the segment is safe block no
            // choice.
            let kept = segment.close_recorded;
            let garbage = self.garbage.to_free_at(id).filter(|_| !kept);
            let avoided = self.garbage.freeing_at(id).chain(garbage);
            let Some(backup) = self.backups.choose(id, &holding, kept, avoided) else {
                break;
            };
            let mut replica = Replica::new(backup, segment.epoch);
            if kept {
                replica.replaces_garbage = self.garbage.take_back(backup, id);
            }
            replica.primary = segment.replicas.iter().all(|r| !r.primary);
            replica.is_first = !kept && !segment.has_lost;
            segment.replicas.push(replica);
            segment.settled.push(backup); // replication::O12
            changed = true;
        }
        changed
    }

    /// replication::O11: copies that are only planned on a backup that takes none now go to
    /// another one that may. When a backup was lost, all of them were planned at once.
    pub(super) fn place_anew(&mut self, id: SegmentId) -> bool {
        let Some(segment) = self.segments.get(id) else {
            return false;
        };
        let stays = !segment.close_recorded || segment.has_no_source;
        if stays || !self.backups.refuse_copies() || has_bug(Bug::RefusedPlansStay) {
            return false;
        }
        let in_vain =
            |replica: &&Replica| replica.is_planned() && self.backups.refuses(replica.backup, true);
        let planned = segment.replicas.iter().filter(in_vain);
        let planned: Vec<BackupId> = planned.map(|replica| replica.backup).collect();
        let mut changed = false;
        for backup in planned {
            let holding = self.segments.known(id).backups();
            let others: Vec<BackupId> = holding.filter(|at| *at != backup).collect();
            let freed = self.garbage.freeing_at(id);
            if !self.backups.can_choose(&others, true, freed) {
                continue;
            }
            if self.segments.known_mut(id).unplace(backup) {
                self.garbage.add(backup, id);
            }
            changed |= self.place(id);
        }
        changed
    }

    /// Updates whether copies of a segment share a rack, after a change of its copies.
    pub(super) fn look_at_racks(&mut self, id: SegmentId) {
        if let Some(segment) = self.segments.get_mut(id) {
            segment.shares_rack = self.backups.share_rack(segment.backups());
        }
    }

    /// Whether a replica's backup has refused it a short while ago, or others like it
    /// (replication::O11), or found its bytes damaged again.
    fn is_refused(&mut self, id: SegmentId, n: usize) -> bool {
        let Some(segment) = self.segments.get_mut(id) else {
            return false;
        };
        let is_copy = segment.close_recorded;
        let Some(replica) = segment.replicas.get_mut(n) else {
            return false;
        };
        if self.backups.rests(id, replica.backup) {
            return true;
        }
        let refuses = self.backups.refuses(replica.backup, is_copy);
        replica.refused |= is_copy && refuses && !replica.sent_before().open;
        replica.refused && refuses
    }

    /// The next send to one replica, if there is one.
    pub(super) fn send(&mut self, id: SegmentId, n: usize, allowed: Allowed) -> Option<Send> {
        if self.is_refused(id, n) {
            return None;
        }
        let one_stream = self.segments.is_one_stream();
        let in_parts = has_bug(Bug::EpochBeforeAll);
        let (data, snapshot) = (allowed.data, allowed.snapshot);
        let is_copy = self.segments.get(id)?.close_recorded;
        let crowded = snapshot.is_none() && self.flights.is_crowded(is_copy);
        let segment = self.segments.get_mut(id)?;
        let (kind, queued, closed) = (segment.kind, segment.queued, segment.closed);
        let replica = segment.replicas.get_mut(n)?;
        if replica.in_flight > 0 && !one_stream {
            return None; // one call per replica at a time: docs/traps.md, trap 20
        }
        let epoch = match kind {
            Kind::Control => replica.opened_at, // replication::O13
            Kind::Head | Kind::Survivor => segment.epoch,
        };
        let before = replica.sent_before();
        let open = !before.open;
        let certificate = match data {
            true => queued,
            false => without_data(before.length, queued, snapshot.filter(|_| open)),
        };
        // A backup may refuse an opening with a close at such an epoch: it is a copy
        // (replication::O11).
        let is_no_copy = open && !is_copy && epoch > 0 && kind != Kind::Control;
        let close = closed && allowed.close && certificate.length == queued.length && !before.close;
        let close = close && !is_no_copy;
        let new_epoch = !is_copy && before.epoch != epoch && !open;
        if !open && !close && !new_epoch && certificate.length == before.length {
            return None;
        }
        let is_refilled = new_epoch || open && epoch > 0 && kind != Kind::Control;
        if is_refilled && !data && segment.listed_at.is_some() && !in_parts {
            return None; // replication::O8: a replica at this epoch has everything, from its first certificate on
        }
        if crowded {
            self.flights.keep_waiting(is_copy, id);
            return None;
        }
        segment.was_placed = true;
        replica.refused = false;
        replica.sent = Progress {
            epoch,
            open: true,
            length: certificate.length,
            close: before.close || close,
        };
        replica.in_flight += 1;
        let (backup, progress, primary) = (replica.backup, replica.sent, replica.primary);
        let ticket = self.flights.note(InFlight {
            segment: id,
            backup,
            progress,
            is_copy,
        });
        Some(Send {
            ticket,
            backup,
            segment: id,
            kind,
            epoch,
            from: before.length,
            certificate,
            open,
            close,
            primary,
        })
    }

    /// The next segment whose copies wait for calls, in turn from `first` on, while there are
    /// calls, but `walks` at most.
    pub(super) fn next_copy(&mut self, first: SegmentId, walks: &mut usize) -> Option<SegmentId> {
        if self.flights.is_crowded(true) {
            return None;
        }
        let id = self.agenda.next_waiting(first)?;
        if *walks == 0 {
            self.flights.keep_waiting(true, id);
            return None;
        }
        *walks -= 1;
        self.agenda.look_at(id);
        Some(id)
    }

    /// A segment that is whole on all replicas needs no more checks.
    pub(super) fn retire(&mut self, id: SegmentId) {
        let segment = self.segments.known(id);
        let synced = self.segments.on_all(id, Level::Synced);
        let recorded = segment.close_recorded || segment.kind != Kind::Head;
        if recorded && segment.is_whole(synced) {
            self.agenda.is_done(id);
        }
    }

    /// A segment of which a copy only waits for a call, or for a backup that takes it, need not be
    /// checked before there is one. A lost backup may have had replicas of all segments, and each
    /// poll would walk them all.
    pub(super) fn let_wait(&mut self, id: SegmentId) {
        let segment = self.segments.known(id);
        if !segment.close_recorded || segment.epoch_wanted || !self.agenda.is_active(id) {
            return;
        }
        let is_done = |replica: &Replica| segment.is_whole(replica.synced);
        let is_refused = |replica: &Replica| {
            let is_sent = replica.in_flight > 0 || replica.sent_before().open;
            !is_sent && self.backups.refuses(replica.backup, true)
        };
        let rests = |replica: &Replica| {
            let is_under_way = replica.in_flight > 0;
            !is_under_way && replica.buffered == replica.synced
        };
        // If enough replicas were there and all were done, the segment would not be active.
        let mut replicas = segment.replicas.iter();
        let is_parked = replicas.all(|replica| is_done(replica) || is_refused(replica));
        let waits = segment.replicas.iter().all(rests) && self.flights.is_crowded(true);
        if is_parked {
            self.agenda.park(id);
        } else if waits {
            self.agenda.let_wait(id);
        }
    }

    // --- ends

    /// Drops a segment; its replicas are garbage.
    pub(super) fn discard(&mut self, id: SegmentId) {
        self.agenda.remove(id);
        let Some(segment) = self.segments.remove(id) else {
            return;
        };
        for replica in segment.replicas.iter().filter(|replica| replica.primary) {
            self.backups.unload(replica.backup);
        }
        for replica in segment.replicas.iter().filter(|r| r.sent.open) {
            self.garbage.add(replica.backup, id);
        }
    }

    /// Takes the replicas that may be freed now (replication::O6, replication::O9). `is_safe`:
    /// whether a closed segment is on all its replicas elsewhere.
    pub(super) fn free(
        &mut self,
        is_safe: impl Fn(&Segments, SegmentId) -> bool,
    ) -> Vec<(BackupId, SegmentId)> {
        let (segments, flights) = (&self.segments, &self.flights);
        let hasty = has_bug(Bug::LastFreed);
        let freed = self.garbage.take(|backup, id| {
            // replication::O12: a replica of a segment that is part of the log is freed only if
            // others have it, too. A refused backup, or one with an unreadable replica, may hold
            // the last good one from an earlier life.
            let is_listed = segments.get(id).is_some_and(|known| known.close_recorded);
            let is_last = is_listed && !hasty && !is_safe(segments, id);
            // A write in flight must not arrive after the free.
            is_last || flights.has(backup, id)
        });
        for (backup, id) in &freed {
            if let Some(known) = self.segments.get_mut(*id) {
                known.settled.push(*backup); // replication::O12
            }
        }
        freed
    }

    // --- for people

    /// Whether nothing is under way, or left to send.
    pub(super) fn is_idle(&self) -> bool {
        self.flights.is_empty()
            && self.garbage.is_empty()
            && self.agenda.unfinished().all(|id| {
                let segment = self.segments.known(*id);
                let done = self.segments.on_all(*id, Level::Synced);
                done.length == segment.queued.length && done.close == segment.closed
            })
    }

    /// The segments with unfinished work.
    pub(super) fn describe(&self, text: &mut String) {
        use std::fmt::Write;
        for id in self.agenda.unfinished() {
            let _ = write!(text, "\n{}", self.segments.known(*id).described(*id));
        }
    }
}
