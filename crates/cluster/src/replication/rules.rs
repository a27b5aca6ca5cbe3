//! The rules replication::O1 to replication::O9 (and replication::O13), applied until none of them
//! can do more, but for copies that wait: one poll looks at some of them.

use super::segment::{Progress, Replica};
use super::{BackupId, Effect, InFlight, Lsn, Master, Send, Ticket};
use duramen_base::ids::{Level, SegmentId};
use duramen_base::planted::{Bug, has_bug};
use duramen_format::certificate::Certificate;
use duramen_format::control::Record;
use duramen_format::segment::Kind;
use std::collections::BTreeSet;

/// Segments with waiting copies that one poll looks at. Those that no backup takes rest again, and
/// there may be thousands of them, while writes wait for the poll. The next poll goes on behind
/// them: one comes every 100 ms, with [`forgive`](Master::forgive), if nothing else happens.
const WALKED_MAX: usize = 128;

impl Master {
    /// Applies the rules; appends the effects to `effects`, in an order that respects them.
    /// `next_id` gives a new segment id.
    pub fn poll(&mut self, next_id: &mut dyn FnMut() -> SegmentId, effects: &mut Vec<Effect>) {
        if self.fenced {
            return;
        }
        let waiting = std::mem::take(&mut self.kept_waiting);
        let [first, first_copy] = waiting.map(Option::unwrap_or_default);
        let mut walks = WALKED_MAX;
        loop {
            let mut changed = self.continue_control(next_id);
            // Data segments first, so that their records are in the control segment's next chunk.
            // Nothing waits for copies.
            let ids = self.turns(first, false);
            let copies = self.turns(first_copy, true);
            for (ids, kind_is_control) in [(&ids, false), (&ids, true), (&copies, false)] {
                for id in ids {
                    if self
                        .segments
                        .get(id)
                        .is_some_and(|segment| (segment.kind == Kind::Control) == kind_is_control)
                    {
                        changed |= self.advance(*id, effects);
                    }
                }
            }
            changed |= self.advance_waiting(first_copy, &mut walks, effects);
            changed |= self.write_swaps();
            if !changed {
                break;
            }
        }
        self.finish_control();
        self.finish_swaps(effects);
        self.free(effects);
        self.tell_floor(effects);
    }

    /// The segments that rules have to check, from `first` on and then those before it: only those
    /// whose replicas are copies (replication::O11), or all others.
    fn turns(&self, first: SegmentId, copies: bool) -> Vec<SegmentId> {
        let later = self.active.range(first..);
        let all = later.chain(self.active.range(..first)).copied();
        let is_copied = |id: &SegmentId| {
            let segment = self.segments.get(id);
            segment.is_some_and(|segment| segment.close_recorded)
        };
        all.filter(|id| is_copied(id) == copies).collect()
    }

    /// Segments whose copies wait for calls, in turn, from `first` on, while there are calls, but
    /// `walks` at most.
    fn advance_waiting(
        &mut self,
        first: SegmentId,
        walks: &mut usize,
        effects: &mut Vec<Effect>,
    ) -> bool {
        let mut changed = false;
        while !self.is_crowded(true) {
            let next = self.waiting.range(first..).next();
            let Some(id) = next.or(self.waiting.first()).copied() else {
                break;
            };
            if *walks == 0 {
                self.kept_waiting[usize::from(true)].get_or_insert(id);
                break;
            }
            *walks -= 1;
            self.waiting.remove(&id);
            self.active.insert(id);
            changed |= self.advance(id, effects);
        }
        changed
    }

    /// A segment of which a copy only waits for a call, or for a backup that takes it, need not be
    /// checked before there is one. A lost backup may have had replicas of all segments: each poll
    /// walked them all.
    fn let_wait(&mut self, id: SegmentId) {
        let segment = &self.segments[&id];
        if !segment.close_recorded || segment.epoch_wanted || !self.active.contains(&id) {
            return;
        }
        let is_done = |replica: &Replica| segment.is_whole(replica.synced);
        let is_refused = |replica: &Replica| {
            let is_sent = replica.in_flight > 0 || replica.sent_before().open;
            !is_sent && self.refusing_copies.contains(&replica.backup)
        };
        let rests = |replica: &Replica| {
            let is_under_way = replica.in_flight > 0;
            !is_under_way && replica.buffered == replica.synced
        };
        // If all were done, and there were enough of them, it would not be active.
        let mut replicas = segment.replicas.iter();
        let is_parked = replicas.all(|replica| is_done(replica) || is_refused(replica));
        let waits = segment.replicas.iter().all(rests) && self.is_crowded(true);
        if is_parked {
            self.active.remove(&id);
            self.parked.insert(id);
        } else if waits {
            self.active.remove(&id);
            self.waiting.insert(id);
        }
    }

    /// Copies that no backup took may be taken now.
    pub(super) fn try_parked(&mut self) {
        self.waiting.append(&mut self.parked);
    }

    /// A segment that waits is checked in the next poll.
    pub(super) fn wake(&mut self, id: SegmentId) {
        if self.waiting.remove(&id) || self.parked.remove(&id) {
            self.active.insert(id);
        }
    }

    /// A segment is checked in the next poll.
    pub(super) fn look_at(&mut self, id: SegmentId) {
        self.wake(id);
        self.active.insert(id);
    }

    /// Segments with work that is not done.
    pub(super) fn unfinished(&self) -> impl Iterator<Item = &SegmentId> {
        let waiting = self.waiting.iter().chain(&self.parked);
        self.active.iter().chain(waiting)
    }

    /// Whether as many calls with data are in flight as may be. Copies are counted apart: each is
    /// long, and a backup that is lost may have had replicas of all segments.
    fn is_crowded(&self, copies: bool) -> bool {
        if has_bug(Bug::CopiesCrowdWrites) {
            return self.in_flight.len() >= self.config.writes_max;
        }
        let most = match copies {
            true => self.config.copies_max,
            false => self.config.writes_max,
        };
        let calls = self.in_flight.values();
        self.in_flight.len() >= most && calls.filter(|sent| sent.is_copy == copies).count() >= most
    }

    /// The level that the rules call "ordered".
    fn ordering(&self) -> Level {
        if self.config.one_stream {
            Level::Memory
        } else {
            Level::Synced
        }
    }

    fn ordered(&self, segment: SegmentId) -> Progress {
        self.segments[&segment].on_all(self.config.replicas, self.ordering())
    }

    /// The end of the control log that is on all replicas at `level`.
    pub(super) fn control_at(&self, level: Level) -> Lsn {
        let unnoted = self.unnoted();
        for control in self.control.iter().rev() {
            if unnoted.is_some_and(|floor| control.id >= floor) {
                continue; // replication::O10
            }
            let segment = &self.segments[&control.id];
            let length = segment.on_all(self.config.replicas, level).length;
            if length >= control.snapshot.length {
                // replication::O14: while the one before is open, a recovery may take that for the
                // newest.
                let alone =
                    segment.predecessor.is_none() || has_bug(Bug::SnapshotCountsBesideOlder);
                return control.base + if alone { u64::from(length) } else { 0 };
            }
        }
        0
    }

    /// replication::O8: nothing of a segment counts before the record of its epoch is synced.
    pub(super) fn counts(&self, segment: &super::Segment) -> bool {
        if has_bug(Bug::CountsBeforeEpoch) {
            return true;
        }
        !segment.epoch_wanted
            && segment
                .epoch_at
                .is_none_or(|at| at <= self.control_at(Level::Synced))
    }

    /// replication::O7: the next control segment, if one is wanted and the one before is complete
    /// on its remaining replicas.
    fn continue_control(&mut self, next_id: &mut dyn FnMut() -> SegmentId) -> bool {
        let complete = self.control.back().is_none_or(|before| {
            let segment = &self.segments[&before.id];
            if segment.replicas.is_empty() && segment.was_placed
                || self.control.len() > 1 && segment.has_lost
            {
                return true; // nothing of it is left, or it will never be on all
            }
            let left = segment.replicas.len().clamp(1, self.config.replicas);
            // One successor at a time: the one before this is closed and gone first.
            self.control.len() == 1
                && segment.on_all(left, self.ordering()).length == segment.queued.length
                || self.control.len() == 1 && has_bug(Bug::RollBeforeComplete)
        });
        if !self.control_wanted || !complete {
            return false;
        }
        self.begin_control(next_id());
        true
    }

    /// Applies the rules to one segment.
    fn advance(&mut self, id: SegmentId, effects: &mut Vec<Effect>) -> bool {
        let mut changed = self.place(id);
        changed |= self.place_anew(id);
        self.look_at_racks(id);
        let data_allowed = self.data_allowed(id);
        let close_allowed = self.close_allowed(id);
        for n in 0..self.segments[&id].replicas.len() {
            if let Some(send) = self.send(id, n, data_allowed, close_allowed) {
                effects.push(Effect::Send(send));
                changed = true;
            }
        }
        if self.segments[&id].kind == Kind::Head {
            changed |= self.write_records(id);
        }
        self.retire(id);
        self.let_wait(id);
        changed
    }

    /// Chooses backups for missing replicas: the next in turn that has none of this segment.
    fn place(&mut self, id: SegmentId) -> bool {
        let Some(segment) = self.segments.get_mut(&id) else {
            return false;
        };
        // A control segment that lost a replica is replaced (replication::O7, replication::O8), not
        // completed.
        let replaced = segment.kind == Kind::Control
            && (segment.closed || segment.has_lost && segment.was_placed);
        let mut changed = false;
        while segment.replicas.len() < self.config.replicas && !replaced && !segment.has_no_source {
            let holding: Vec<BackupId> = segment.backups().collect();
            // replication::O12: replicas that are not freed before the segment is safe block no
            // choice.
            let kept = segment.close_recorded;
            let mut avoided = match kept {
                true => self.refusing_copies.clone(),
                false => self.refusing.clone(),
            };
            let garbage = self.garbage.iter().filter(|_| !kept);
            let freed = self.freeing.iter().chain(garbage);
            avoided.extend(freed.filter(|(_, of)| *of == id).map(|(at, _)| *at));
            let Some(backup) = self.placement.choose(id, &holding, &avoided) else {
                break;
            };
            let mut replica = Replica::new(backup, segment.epoch);
            if kept {
                let garbage = self.garbage.len();
                self.garbage.retain(|entry| *entry != (backup, id));
                replica.replaces_garbage = self.garbage.len() < garbage;
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
    fn place_anew(&mut self, id: SegmentId) -> bool {
        let Some(segment) = self.segments.get(&id) else {
            return false;
        };
        let stays = !segment.close_recorded || segment.has_no_source;
        if stays || self.refusing_copies.is_empty() || has_bug(Bug::RefusedPlansStay) {
            return false;
        }
        let in_vain = |replica: &&Replica| {
            replica.is_planned() && self.refusing_copies.contains(&replica.backup)
        };
        let planned = segment.replicas.iter().filter(in_vain);
        let planned: Vec<BackupId> = planned.map(|replica| replica.backup).collect();
        let mut changed = false;
        for backup in planned {
            let freed = self.freeing.iter().filter(|(_, of)| *of == id);
            let mut avoided = self.refusing_copies.clone();
            avoided.extend(freed.map(|(at, _)| *at));
            let holding = self.segments[&id].backups();
            let others: Vec<BackupId> = holding.filter(|at| *at != backup).collect();
            if !self.placement.can_choose(&others, &avoided) {
                continue;
            }
            if self.segment_mut(id).unplace(backup) {
                self.garbage.push((backup, id));
            }
            changed |= self.place(id);
        }
        changed
    }

    /// replication::O2 and replication::O3; replication::O7 for a control segment's bytes after its
    /// snapshot.
    fn data_allowed(&mut self, id: SegmentId) -> bool {
        let segment = &self.segments[&id];
        if segment.kind == Kind::Head {
            let Some(at) = segment.listed_at else {
                return false;
            };
            if at > self.control_at(self.ordering()) && !has_bug(Bug::DataBeforeListed) {
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
        let done = self.segments.get(&before).is_none_or(|predecessor| {
            if predecessor.kind == Kind::Control && predecessor.replicas.is_empty() {
                return true; // nothing of it is left
            }
            let left = predecessor.replicas.len().clamp(1, self.config.replicas);
            let wanted = if predecessor.kind == Kind::Control {
                left
            } else {
                self.config.replicas
            };
            // If the record of its epoch may be lost, an older and shorter replica may count again
            // (replication::O8).
            let counts = predecessor.kind == Kind::Control
                || self.counts(predecessor)
                || has_bug(Bug::PredecessorMayShrink);
            predecessor.is_whole(predecessor.on_all(wanted, self.ordering())) && counts
        });
        if done && let Some(segment) = self.segments.get_mut(&id) {
            segment.predecessor = None;
        }
        done
    }

    /// replication::O7: a control segment is closed when its successor's snapshot is there.
    fn close_allowed(&self, id: SegmentId) -> bool {
        if self.segments[&id].kind != Kind::Control || has_bug(Bug::CloseBeforeSnapshot) {
            return true;
        }
        let mut controls = self.control.iter().skip_while(|control| control.id != id);
        controls.next();
        controls.any(|next| self.ordered(next.id).length >= next.snapshot.length)
    }

    /// Whether a replica's backup has refused it a short while ago, or others like it
    /// (replication::O11), or found its bytes damaged again.
    fn is_refused(&mut self, id: SegmentId, n: usize) -> bool {
        let Some(segment) = self.segments.get_mut(&id) else {
            return false;
        };
        let is_copy = segment.close_recorded;
        let refusing = match is_copy {
            true => &self.refusing_copies,
            false => &self.refusing,
        };
        let Some(replica) = segment.replicas.get_mut(n) else {
            return false;
        };
        if self.resting.contains_key(&(id, replica.backup)) {
            return true;
        }
        let refuses = refusing.contains(&replica.backup);
        replica.refused |= is_copy && refuses && !replica.sent_before().open;
        replica.refused && refuses
    }

    /// The next send to one replica, if there is one.
    fn send(&mut self, id: SegmentId, n: usize, data: bool, close: bool) -> Option<Send> {
        if self.is_refused(id, n) {
            return None;
        }
        let one_stream = self.config.one_stream;
        let in_parts = has_bug(Bug::EpochBeforeAll);
        let snapshot = self.control.iter().find(|control| control.id == id);
        let snapshot = snapshot.map(|control| control.snapshot);
        let is_copy = self.segments.get(&id)?.close_recorded;
        let crowded = snapshot.is_none() && self.is_crowded(is_copy);
        let segment = self.segments.get_mut(&id)?;
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
        let close = closed && close && certificate.length == queued.length && !before.close;
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
            self.kept_waiting[usize::from(is_copy)].get_or_insert(id);
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
        let ticket = self.note_flight(InFlight {
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

    /// Gives a ticket to a write that is sent now.
    fn note_flight(&mut self, flight: InFlight) -> Ticket {
        let ticket = Ticket(self.next_ticket);
        self.next_ticket += 1;
        self.in_flight.insert(ticket, flight);
        ticket
    }

    /// replication::O1, replication::O4, replication::O8.
    fn write_records(&mut self, id: SegmentId) -> bool {
        let ordered = self.ordered(id);
        let segment = &self.segments[&id];
        let (kind, head, epoch, queued) =
            (segment.kind, segment.head, segment.epoch, segment.queued);
        let early = has_bug(Bug::ListedBeforeOpen);
        if segment.listed_at.is_none() && (ordered.open || early) {
            let at = self.write_record(&Record::AddOpen {
                segment: id,
                epoch,
                head,
                kind,
            });
            self.segment_mut(id).listed_at = Some(at);
            self.announce_listed();
            return true;
        }
        let in_parts = has_bug(Bug::EpochBeforeAll);
        let filled = ordered.length >= segment.epoch_from || in_parts;
        if segment.epoch_wanted && ordered.open && filled {
            let at = self.write_record(&Record::SegmentEpoch { segment: id, epoch });
            let segment = self.segment_mut(id);
            (segment.epoch_wanted, segment.epoch_at) = (false, Some(at));
            return true;
        }
        let whole = segment.is_whole(ordered) || segment.closed && has_bug(Bug::ClosedBeforeWhole);
        if !segment.close_recorded && segment.listed_at.is_some() && whole {
            self.write_record(&Record::Closed {
                segment: id,
                certificate: queued,
            });
            self.segment_mut(id).close_recorded = true;
            return true;
        }
        false
    }

    /// A segment that is whole on all replicas needs no more checks.
    fn retire(&mut self, id: SegmentId) {
        let segment = &self.segments[&id];
        let synced = segment.on_all(self.config.replicas, Level::Synced);
        let recorded = segment.close_recorded || segment.kind != Kind::Head;
        if recorded && segment.is_whole(synced) {
            self.active.remove(&id);
        }
    }

    /// replication::O5: in the order of their proposals.
    fn write_swaps(&mut self) -> bool {
        let Some(n) = self.swaps.iter().position(|swap| swap.at.is_none()) else {
            return false;
        };
        let swap = &self.swaps[n];
        let survivors_are_safe = swap.add.iter().all(|(id, certificate)| {
            self.segments.get(id).is_some_and(|segment| {
                segment.queued == *certificate
                    && segment.is_whole(segment.on_all(self.config.replicas, Level::Synced))
            })
        });
        let victims_are_closed = swap.remove.iter().all(|id| {
            let listed = self.state.segments.get(id);
            listed.is_some_and(|listed| listed.closed.is_some())
        });
        let early = has_bug(Bug::SwapBeforeSurvivors);
        if !survivors_are_safe && !early || !victims_are_closed {
            return false;
        }
        let record = self.swap_record(swap);
        let survivors: Vec<SegmentId> = swap.add.iter().map(|(id, _)| *id).collect();
        let at = self.write_record(&record);
        self.swaps[n].at = Some(at);
        for id in survivors {
            let segment = self.segment_mut(id);
            (segment.listed_at, segment.close_recorded) = (Some(at), true);
        }
        self.announce_listed();
        true
    }

    /// replication::O7: a control segment whose successor has taken over is garbage.
    fn finish_control(&mut self) {
        while self.control.len() > 1 {
            let (first, mut later) = (&self.control[0], self.control.iter().skip(1));
            let old = &self.segments[&first.id];
            let left = old.replicas.len().min(self.config.replicas);
            let closed = left == 0 || old.is_whole(old.on_all(left, Level::Synced));
            let succeeded = later.any(|new| {
                let there = self.segments[&new.id].on_all(self.config.replicas, Level::Synced);
                there.length >= new.snapshot.length
            });
            let early = has_bug(Bug::FreeControlEarly);
            if !early && (!closed || !succeeded) {
                return;
            }
            let id = first.id;
            self.control.pop_front();
            self.discard(id);
        }
    }

    /// replication::O6.
    fn finish_swaps(&mut self, effects: &mut Vec<Effect>) {
        let listed = self.control_at(Level::Synced);
        if listed > 0 {
            let leftovers = std::mem::take(&mut self.leftovers);
            self.garbage.extend(leftovers);
        }
        let early = has_bug(Bug::FreeBeforeSwap);
        while self.control.len() == 1
            && self
                .swaps
                .front()
                .is_some_and(|swap| swap.at.is_some_and(|at| at <= listed || early))
        {
            let swap = self.swaps.pop_front().expect("just looked at");
            for id in swap.remove {
                self.discard(id);
            }
            effects.push(Effect::Swapped { swap: swap.number });
        }
    }

    /// Drops a segment; its replicas are garbage.
    pub(super) fn discard(&mut self, id: SegmentId) {
        self.active.remove(&id);
        self.waiting.remove(&id);
        self.parked.remove(&id);
        let Some(segment) = self.segments.remove(&id) else {
            return;
        };
        for replica in segment.replicas.iter().filter(|replica| replica.primary) {
            self.placement.unload(replica.backup);
        }
        let replicas = segment.replicas.iter().filter(|r| r.sent.open);
        self.garbage.extend(replicas.map(|r| (r.backup, id)));
    }

    /// replication::O6's end, and replication::O9.
    fn free(&mut self, effects: &mut Vec<Effect>) {
        let (pinned, in_flight) = (&self.pinned, &self.in_flight);
        let careless = has_bug(Bug::PinnedFreed);
        // A write in flight must not arrive after the free.
        let awaited = |backup, segment| {
            let mut sent = in_flight.values();
            sent.any(|sent| (sent.backup, sent.segment) == (backup, segment))
        };
        // replication::O12: of a segment that is part of the log, only replicas that others have
        // too: a refused backup, or one with an unreadable replica, may hold the last good one from
        // an earlier life.
        let hasty = has_bug(Bug::LastFreed);
        let kept: BTreeSet<SegmentId> = match hasty {
            true => BTreeSet::new(),
            false => {
                let known = self.garbage.iter().filter_map(|(_, id)| {
                    let segment = self.segments.get(id)?;
                    (segment.close_recorded && !self.is_safe(*id)).then_some(*id)
                });
                known.collect()
            }
        };
        let freeing = &mut self.freeing;
        let (most, counted) = (self.config.frees_max, !self.config.one_stream);
        let freed = self.garbage.extract_if(.., |(backup, segment)| {
            let allowed = (careless || !pinned.contains(segment))
                && !kept.contains(segment)
                && !awaited(*backup, *segment)
                && (!counted || freeing.len() < most);
            if allowed && counted {
                freeing.insert((*backup, *segment));
            }
            allowed
        });
        for (backup, segment) in freed {
            if let Some(known) = self.segments.get_mut(&segment) {
                known.settled.push(backup); // replication::O12
            }
            effects.push(Effect::Free { backup, segment });
        }
    }

    /// replication::O10: once, when the control segment is on all replicas, so that a recovery will
    /// find it.
    fn tell_floor(&mut self, effects: &mut Vec<Effect>) {
        if self.floor_noted >= self.floor_wanted || self.floor_asked == self.floor_wanted {
            return;
        }
        let floor = self.floor_wanted;
        let wanted = self.control.iter().find(|control| control.id == floor);
        let is_there = wanted.is_some_and(|control| {
            let there = self.segments[&floor].on_all(self.config.replicas, Level::Synced);
            there.length >= control.snapshot.length
        });
        if is_there {
            self.floor_asked = floor;
            effects.push(Effect::ControlHead { min_open: floor });
        }
    }
}

/// The end of a write that brings no new data to a replica, to which `sent_bytes` were sent.
/// `snapshot`: of a control segment that the write opens.
fn without_data(
    sent_bytes: u32,
    queued: Certificate,
    snapshot: Option<Certificate>,
) -> Certificate {
    match snapshot {
        Some(snapshot) => snapshot,
        // No more bytes are to be sent: a close needs no permission to send data.
        None if sent_bytes == queued.length => queued,
        None => Certificate {
            length: sent_bytes,
            crc: 0,
        },
    }
}
