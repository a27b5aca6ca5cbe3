//! A master's backups: they come, go, refuse, come back, and report their replicas.

use super::segment::{Replica, Segment};
use super::{BackupId, Found, InFlight, Kind, Level, Master, Placed, Rejection, SegmentId, Ticket};
use crate::placement::Member;
use duramen_base::planted::{Bug, has_bug};
use duramen_format::certificate::Certificate;
use std::collections::BTreeSet;

/// Refused copies of closed segments are sent again after so many times that all others are.
const COPIES_FORGIVEN: u64 = 20;
/// So many times a backup finds the same replica's bytes damaged before another one gets them: a
/// bit that flips on the way comes alone, and one in memory is put back at the second attempt
/// (durable::remote::J5).
const DAMAGED_MAX: u32 = 4;
/// If so many backups find the bytes of one segment damaged so often, the fault is the master's.
const BACKUPS_BLAMED: usize = 2;
/// Without another backup a control segment is replaced by the next one after so many times.
const CONTROL_ANEW: u32 = 10;

impl Master {
    /// Sets the place of this master, before any backup is added.
    pub fn is_at(&mut self, me: Member) {
        self.placement.set_master(me);
    }

    /// A backup may be given replicas.
    pub fn backup_up(&mut self, member: impl Into<Member>) {
        self.placement.add(member.into());
        self.look_at_incomplete();
        self.spread_control();
    }

    /// Continues the control log in a new segment if that would be in more racks (placement::L6):
    /// an idle master would keep all its copies in one rack for days. Data is not moved.
    fn spread_control(&mut self) {
        let newest = self.control.back();
        let newest = newest.and_then(|control| self.segments.get(&control.id));
        let holding: Vec<BackupId> = newest.into_iter().flat_map(Segment::backups).collect();
        if self.placement.would_spread(&holding) {
            self.renew_control();
        }
    }

    /// Placement of this log's segments, for people.
    pub fn placed(&mut self) -> Placed {
        let sharing = self.segments.values().filter(|segment| segment.shares_rack);
        let wanted = self.config.replicas;
        let is_short = |segment: &&Segment| {
            let taken = segment.replicas.iter().filter(|replica| !replica.refused);
            segment.kind != Kind::Control && segment.close_recorded && taken.count() < wanted
        };
        Placed {
            segments_sharing_rack: sharing.count(),
            segments_short: self.segments.values().filter(is_short).count(),
            has_enough: self.placement.has_enough(),
        }
    }

    /// Updates whether copies of a segment share a rack, after a change of its copies.
    pub(super) fn look_at_racks(&mut self, id: SegmentId) {
        if let Some(segment) = self.segments.get_mut(&id) {
            segment.shares_rack = self.placement.sharing(segment.backups()) > 0;
        }
    }

    /// Backups that have refused openings may be asked again: some time has passed.
    pub fn forgive(&mut self) {
        self.forgiven += 1;
        let now = self.forgiven;
        let rested = self.resting.extract_if(.., |_, until| *until <= now);
        let rested: Vec<SegmentId> = rested.map(|((id, _), _)| id).collect();
        for id in rested {
            if self.segments.contains_key(&id) {
                self.look_at(id);
            }
        }
        if self.forgiven.is_multiple_of(COPIES_FORGIVEN) {
            self.refusing_copies.clear();
            self.try_parked();
        }
        if !self.refusing.is_empty() {
            self.refusing.clear();
            let wanted = self.config.replicas;
            let lacks = |segment: &Segment| {
                let is_refused = segment.replicas.iter().any(|r| r.refused);
                !segment.close_recorded && (is_refused || segment.replicas.len() < wanted)
            };
            let lacking = self.segments.iter().filter(|(_, segment)| lacks(segment));
            self.active.extend(lacking.map(|(id, _)| *id));
        }
    }

    fn look_at_incomplete(&mut self) {
        self.try_parked();
        let wanted = self.config.replicas;
        let closed_too = !has_bug(Bug::ClosedNotRefilled);
        let incomplete = self.segments.iter().filter(|(_, segment)| {
            segment.replicas.len() < wanted && (closed_too || !segment.close_recorded)
        });
        let incomplete: Vec<SegmentId> = incomplete.map(|(id, _)| *id).collect();
        for id in incomplete {
            self.look_at(id);
        }
    }

    /// A backup has crashed: its replicas are gone (replication::O8, replication::O10,
    /// replication::O11).
    pub fn backup_lost(&mut self, backup: BackupId) {
        self.placement.remove(backup);
        self.try_parked();
        self.refusing.remove(&backup);
        self.refusing_copies.remove(&backup);
        self.freeing.retain(|(at, _)| *at != backup);
        self.in_flight.retain(|_, sent| sent.backup != backup);
        self.garbage.retain(|(at, _)| *at != backup);
        self.leftovers.retain(|(at, _)| *at != backup);
        let ids: Vec<SegmentId> = self.segments.keys().copied().collect();
        for id in ids {
            self.segment_mut(id).may_return(backup);
            self.lose_replica(id, backup);
        }
    }

    /// A replica does not count any more; it may reappear unchanged (replication::O8,
    /// replication::O10, replication::O11).
    fn lose_replica(&mut self, id: SegmentId, backup: BackupId) {
        let current = self.control.back().map(|control| control.id);
        let Some(segment) = self.segments.get_mut(&id) else {
            return;
        };
        let Some(n) = segment.replicas.iter().position(|r| r.backup == backup) else {
            return;
        };
        let lost = segment.replicas.remove(n);
        segment.has_lost = true;
        self.waiting.remove(&id);
        self.parked.remove(&id);
        self.active.insert(id);
        if segment.kind == Kind::Control {
            let goes_on = has_bug(Bug::ControlGoesOn);
            self.control_wanted |= Some(id) == current && !goes_on;
            // A control segment below the noted one does not count, and its holders are not needed.
            let may_look_new = lost.may_be_open() && !lost.synced.close && id >= self.floor_noted;
            if self.config.coordinated && may_look_new {
                self.stale_control.insert((id, backup));
                if Some(id) == current {
                    self.floor_due = true; // replication::O10
                } else {
                    self.floor_wanted = self.floor_wanted.max(current.unwrap_or_default());
                }
            }
        } else if segment.close_recorded {
            segment.epoch += 1; // replication::O11
            if has_bug(Bug::ClosedNotRefilled) {
                self.active.remove(&id);
            }
        } else {
            segment.lose_replica(has_bug(Bug::EpochStays));
        }
    }

    /// The send of `ticket` was refused.
    pub fn rejected(&mut self, ticket: Ticket, why: Rejection) {
        let sent = self.in_flight.remove(&ticket);
        if let Some(sent) = &sent {
            self.wake(sent.segment);
        }
        match (why, sent) {
            (Rejection::Fenced, _) => self.fenced = true,
            (Rejection::Busy, Some(sent)) => self.refused(&sent),
            (Rejection::Damaged, Some(sent)) => self.send_again(&sent),
            (Rejection::Busy | Rejection::Damaged, None) => {}
        }
    }

    /// The segment of a send that is in flight.
    pub fn segment_of(&self, ticket: Ticket) -> Option<SegmentId> {
        self.in_flight.get(&ticket).map(|sent| sent.segment)
    }

    /// Nothing of a send was stored, and the backup is well: it is sent again. If that repeats, the
    /// bytes change on the way there, in the backup, or in this master's memory: another backup
    /// takes the replica, and each further attempt comes after a longer while. If another backup
    /// says the same of this segment, the fault is here, and nobody else loses a replica.
    fn send_again(&mut self, sent: &InFlight) {
        let Some(segment) = self.segments.get_mut(&sent.segment) else {
            return;
        };
        let is_copy = segment.close_recorded;
        let holding: Vec<BackupId> = segment.backups().collect();
        let kind = segment.kind;
        let Some(replica) = segment.replica_mut(sent.backup) else {
            return;
        };
        replica.in_flight = replica.in_flight.saturating_sub(1);
        replica.sent = replica.buffered;
        replica.damaged += 1;
        let damaged = replica.damaged;
        self.active.insert(sent.segment);
        if damaged < DAMAGED_MAX {
            return;
        }
        let is_control = kind == Kind::Control;
        if !is_copy && !is_control {
            segment.damaged_at.insert(sent.backup);
            if segment.damaged_at.len() >= BACKUPS_BLAMED {
                let id = sent.segment;
                self.fail(format!(
                    "several backups find segment {id} damaged when it arrives"
                ));
                return;
            }
        }
        let rest = u64::from(damaged - DAMAGED_MAX + 1).min(COPIES_FORGIVEN);
        let until = self.forgiven + rest;
        self.resting.insert((sent.segment, sent.backup), until);
        let refusing = match is_copy {
            true => &mut self.refusing_copies,
            false => &mut self.refusing,
        };
        refusing.insert(sent.backup);
        // The next control segment's bytes are encoded anew.
        let begins_anew = is_control && damaged.is_multiple_of(CONTROL_ANEW);
        if !begins_anew && !self.placement.can_choose(&holding, refusing) {
            return;
        }
        self.lose_replica(sent.segment, sent.backup);
        if !is_control {
            self.free_lost(sent.segment, sent.backup);
        }
    }

    /// A backup may drop a lost replica of a data segment. Not that of a listed segment that is
    /// open: it may have acknowledged bytes that no other replica has any more. The backup asks
    /// about it (replication::O12).
    fn free_lost(&mut self, id: SegmentId, backup: BackupId) {
        let known = self.segments.get(&id);
        let may_have_data = known.is_some_and(|s| s.listed_at.is_some() && !s.close_recorded);
        if !may_have_data || has_bug(Bug::LastOpenFreed) {
            self.garbage.push((backup, id));
        }
    }

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

    /// An opening was refused: another backup is asked; if there is none, the same one again after
    /// a while. A repetition of a data segment's opening may have been accepted all the same: so a
    /// replica there counts as lost, and is freed. For a control segment it may not
    /// (replication::O13): to lose a replica of one would cost a control segment each time.
    fn refused(&mut self, sent: &InFlight) {
        let Some(segment) = self.segments.get_mut(&sent.segment) else {
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
        let refusing = match is_copy {
            true => &mut self.refusing_copies,
            false => &mut self.refusing,
        };
        refusing.insert(sent.backup);
        let is_alone = !self.placement.can_choose(&holding, refusing);
        if is_alone {
            replica.in_flight = replica.in_flight.saturating_sub(1);
            replica.refused = true;
        }
        if segment.kind == Kind::Control {
            segment.refuse(sent.backup);
            self.active.insert(sent.segment);
            return;
        }
        if is_alone {
            return;
        }
        if has_bug(Bug::RefusedForgotten) {
            let segment = self.segment_mut(sent.segment);
            segment
                .replicas
                .retain(|replica| replica.backup != sent.backup);
            self.active.insert(sent.segment);
            return;
        }
        self.lose_replica(sent.segment, sent.backup);
        let segment = self.segment_mut(sent.segment);
        if segment.close_recorded {
            segment.unsettle(sent.backup); // its older replica is not freed yet
        }
        self.free_lost(sent.segment, sent.backup);
    }

    /// Whether a backup has answered that this master is declared crashed, or it has a
    /// [`fault`](Self::fault).
    pub fn is_fenced(&self) -> bool {
        self.fenced
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

    /// It has answered.
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

    /// A backup has dropped a replica, after [`Effect::Free`](super::Effect::Free).
    pub fn freed(&mut self, backup: BackupId, segment: SegmentId) {
        self.freeing.remove(&(backup, segment));
        self.wake(segment); // it may go there again
    }

    /// The coordinator has noted, durably, that no control segment before `min_open` counts
    /// (replication::O10).
    pub fn control_head_noted(&mut self, min_open: SegmentId) {
        self.floor_noted = self.floor_noted.max(min_open);
        let noted = self.floor_noted;
        self.stale_control.retain(|(control, _)| *control >= noted);
    }

    /// The control segment that must be noted before the log continues, if it is not yet.
    pub(super) fn unnoted(&self) -> Option<SegmentId> {
        let waits = self.floor_noted < self.floor_wanted && !has_bug(Bug::FloorIgnored);
        waits.then_some(self.floor_wanted)
    }

    /// Backups that hold, or held, a control segment that a recovery might take for the newest:
    /// their leases are needed for reading. None before the first one is noted: nothing is read
    /// then, since a recovery would not ask for this log (collect::G1).
    pub fn control_holders(&self) -> BTreeSet<BackupId> {
        if self.unnoted().is_some() && self.floor_noted == SegmentId::NONE {
            return BTreeSet::new();
        }
        let present = self.control.iter().flat_map(|control| {
            let replicas = self.segments[&control.id].replicas.iter();
            replicas.filter(|r| r.may_be_open()).map(|r| r.backup)
        });
        let stale = self.stale_control.iter().map(|(_, backup)| *backup);
        present.chain(stale).collect()
    }

    /// Backups with all of a closed segment, synced: sources of its bytes.
    pub fn holders(&self, segment: SegmentId) -> Vec<BackupId> {
        let Some(known) = self.segments.get(&segment) else {
            return Vec::new();
        };
        let whole = |replica: &&Replica| known.is_whole(replica.synced);
        let whole = known.replicas.iter().filter(whole);
        whole.map(|replica| replica.backup).collect()
    }

    /// Whether a backup has all of a closed segment, synced.
    pub fn has_whole(&self, backup: BackupId, segment: SegmentId) -> bool {
        let known = self.segments.get(&segment);
        known.is_some_and(|known| {
            let mut replicas = known.replicas.iter();
            replicas.any(|replica| replica.backup == backup && known.is_whole(replica.synced))
        })
    }

    /// The certificate of a closed segment.
    pub fn closed_certificate(&self, segment: SegmentId) -> Option<Certificate> {
        let known = self.segments.get(&segment)?;
        known.closed.then_some(known.queued)
    }

    /// Whether a closed segment is on all its replicas, synced. One that is not known any more
    /// needs none.
    pub fn is_safe(&self, segment: SegmentId) -> bool {
        self.segments.get(&segment).is_none_or(|known| {
            known.is_whole(known.on_all(self.config.replicas, Level::Synced)) && self.counts(known)
        })
    }

    /// End of the control log, with records that are in flight.
    pub fn control_end(&self) -> u64 {
        let newest = self.control.back();
        newest.map_or(0, |control| {
            // Records for the next control segment are in its snapshot, which counts as a whole
            // (replication::O14).
            control.base + u64::from(control.certificate.length) + u64::from(self.control_owes)
        })
    }

    /// The end of the part of the control log that counts, synced; 0 if none of it does.
    pub fn control_reached(&self) -> u64 {
        self.control_at(Level::Synced)
    }

    /// Backups that have acknowledged data which are not synced there.
    pub fn unsynced_backups(&self) -> BTreeSet<BackupId> {
        let active = self.active.iter().filter_map(|id| self.segments.get(id));
        let replicas = active.flat_map(|segment| &segment.replicas);
        let unsynced = replicas.filter(|replica| replica.buffered != replica.synced);
        unsynced.map(|replica| replica.backup).collect()
    }

    /// The send of `ticket` is impossible: no backup has the bytes of that closed segment any more.
    /// It keeps its present replicas, and should be cleaned. Without the bytes of one that is open,
    /// its head could never go on.
    pub fn give_up(&mut self, ticket: Ticket) {
        let Some(sent) = self.in_flight.remove(&ticket) else {
            return;
        };
        if let Some(segment) = self.segments.get_mut(&sent.segment) {
            if segment.kind == Kind::Head && !segment.close_recorded {
                return self.fail(format!("the bytes of segment {} are lost", sent.segment));
            }
            segment.has_no_source = true;
            if segment.unplace(sent.backup) {
                self.garbage.push((sent.backup, sent.segment));
            }
        }
        self.look_at_racks(sent.segment);
        self.active.remove(&sent.segment);
        self.waiting.remove(&sent.segment);
        self.parked.remove(&sent.segment);
    }

    /// None of `holders` could provide the bytes for `ticket`'s send, of a closed segment: their
    /// replicas are lost (replication::O11). Nothing reached the target, so it is neither refused
    /// nor freed.
    pub fn not_fetched(&mut self, ticket: Ticket, holders: &[BackupId]) {
        let Some(sent) = self.in_flight.remove(&ticket) else {
            return;
        };
        let Some(segment) = self.segments.get_mut(&sent.segment) else {
            return;
        };
        match segment.replica_mut(sent.backup) {
            Some(replica) if replica.buffered.open => {
                replica.in_flight = replica.in_flight.saturating_sub(1);
                replica.sent = replica.buffered;
            }
            _ => {
                if segment.unplace(sent.backup) {
                    self.garbage.push((sent.backup, sent.segment));
                }
            }
        }
        self.look_at(sent.segment);
        for holder in holders {
            if self.holds(*holder, sent.segment) {
                self.lose_replica(sent.segment, *holder);
                self.garbage.push((*holder, sent.segment));
            }
        }
    }

    /// A backup has found its replicas of these segments damaged: they are lost, and freed when
    /// there are enough others (replication::O8 to replication::O11). A data segment has to be
    /// closed, and nothing of it on the way to that backup; the backup tells it again.
    pub fn replica_damaged(&mut self, backup: BackupId, segments: &[SegmentId]) {
        for id in segments {
            let Some(segment) = self.segments.get_mut(id) else {
                continue;
            };
            let rests = segment.close_recorded || segment.kind == Kind::Control;
            let held = segment.replica_mut(backup);
            if rests && held.is_some_and(|replica| replica.in_flight == 0) {
                // A control segment goes when a newer one is there, and not before.
                let may_go = segment.kind != Kind::Control;
                self.lose_replica(*id, backup);
                if may_go {
                    self.garbage.push((backup, *id));
                }
                self.look_at_racks(*id);
            }
        }
    }

    /// A backup that was restarted, and is known here under its new name, still has these
    /// replicas; or one that was silent. Returns those that it may drop (replication::O12); closed
    /// ones of segments that lack a replica count again, as do those in whose place a copy is only
    /// planned.
    pub fn hand_back(&mut self, backup: BackupId, found: &[Found]) -> Vec<SegmentId> {
        let known = self.placement.has(backup) || has_bug(Bug::DroppedUnseen);
        if !known || self.fenced {
            return Vec::new();
        }
        let (mut not_needed, mut changed) = (Vec::new(), Vec::new());
        for replica in found {
            let wanted = self.config.replicas;
            let Some(segment) = self.segments.get_mut(&replica.segment) else {
                not_needed.push(replica.segment);
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
                    self.garbage.push((backup, replica.segment));
                }
                changed.push(replica.segment);
            }
            let may_count = is_whole && !segment.settled.contains(&backup);
            if may_count
                && segment.replicas.len() >= wanted
                && let Some((planned, is_garbage)) = segment.unplace_planned()
            {
                let garbage = (planned, replica.segment);
                self.garbage.extend(is_garbage.then_some(garbage));
            }
            if may_count && segment.replicas.len() < wanted {
                segment.settled.push(backup);
                let mut whole = Replica::whole(backup, replica.certificate);
                whole.is_first = true;
                segment.replicas.push(whole);
                segment.has_no_source = false; // the others can be filled from this one
                self.garbage
                    .retain(|entry| *entry != (backup, replica.segment));
                changed.push(replica.segment);
                continue;
            }
            let on_others = segment.on_all(wanted, Level::Synced);
            let elsewhere = on_others.open && on_others.length == segment.queued.length;
            let counts = segment.epoch_at.is_none() || segment.close_recorded;
            if elsewhere && (counts || replica.epoch < segment.epoch) {
                segment.settled.push(backup);
                not_needed.push(replica.segment);
            }
        }
        for id in changed {
            self.look_at(id);
        }
        not_needed
    }

    /// Whether a backup's replica of a segment counts, or will.
    pub fn holds(&self, backup: BackupId, segment: SegmentId) -> bool {
        let known = self.segments.get(&segment);
        known.is_some_and(|known| known.replicas.iter().any(|held| held.backup == backup))
    }

    /// A backup that is UP gets no new replicas: it is about to be stopped, and keeps its present
    /// ones.
    pub fn backup_retires(&mut self, backup: BackupId) {
        self.placement.retire(backup);
    }

    /// As [`backup_retires`](Self::backup_retires), and the control log continues elsewhere.
    /// Returns the open data segments with a replica there: they are to be closed.
    pub fn backup_leaves(&mut self, backup: BackupId) -> Vec<SegmentId> {
        self.backup_retires(backup);
        let is_there = |segment: &Segment| segment.replicas.iter().any(|r| r.backup == backup);
        let newest = self.control.back();
        if newest.is_some_and(|control| self.segments.get(&control.id).is_some_and(is_there)) {
            self.renew_control();
        }
        let open = self.segments.iter().filter(|(_, segment)| {
            segment.kind == Kind::Head && !segment.closed && is_there(segment)
        });
        open.map(|(id, _)| *id).collect()
    }

    /// The unfinished work, for people.
    pub fn describe(&self) -> String {
        use std::fmt::Write;
        let mut text = format!(
            "{} calls, {} copies wait, {} find no backup, {} swaps, {} to be freed, {} being \
             freed, control head wanted {} noted {}",
            self.in_flight.len(),
            self.waiting.len(),
            self.parked.len(),
            self.swaps.len(),
            self.garbage.len() + self.leftovers.len(),
            self.freeing.len(),
            self.floor_wanted,
            self.floor_noted
        );
        for id in self.unfinished() {
            let segment = &self.segments[id];
            let _ = write!(
                text,
                "\n{} segment {id}, epoch {}, {} bytes{}, listed at {:?}, after {:?}:",
                segment.kind.name(),
                segment.epoch,
                segment.queued.length,
                if segment.closed { " closed" } else { "" },
                segment.listed_at,
                segment.predecessor,
            );
            for replica in &segment.replicas {
                let _ = write!(
                    text,
                    "\n  {}: sent {:?}, synced {:?}, {} under way",
                    replica.backup.0, replica.sent, replica.synced, replica.in_flight
                );
            }
        }
        text
    }
}
