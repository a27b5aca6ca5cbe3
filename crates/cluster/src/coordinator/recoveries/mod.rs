//! Recoveries in progress: rules that are applied until nothing is left to recover
//! ([`crate::recovery`] has the parts).

mod partitions;

use super::frames::Frames;
use super::losses::{self, Accepted};
use super::rooms::{self, NEWS_US, Planner, RETRY_US};
use super::{CallKind, Coordinator, State, Timer, invalid};
use crate::recovery::collect::{Log, Missing};
use crate::recovery::{Partition, Place, Recovery};
use duramen_base::ids::{RecoveryId, ServerId};
use duramen_base::planted::{Bug, has_bug};
use duramen_wire::native::message::{
    AdminAnswer, CoordinatorAnswer, FromCoordinator, RecoveryPhase, RecoveryStatus, ServerAnswer,
    ServerRoom,
};
use partitions::{abort_run, place_mut};
use std::collections::{BTreeMap, VecDeque};

/// Late answers of backups are waited for this long, even if the log is whole without them: they
/// bring more replicas to read from in parallel.
const PATIENCE_US: u64 = 150_000;
/// A request to a backup or a recovery master without an answer is repeated after this time.
const ASK_AGAIN_US: u64 = 1_000_000;
/// A refused request, to a server that is just starting or busy, is repeated after this time.
const BUSY_US: u64 = 200_000;
/// A recovery master that has started gets its order again after this time: if it had lost it, the
/// recovery would hang.
const REMIND_US: u64 = 5_000_000;
/// A read lease is measured by another clock, which may run faster or slower by this much, in
/// percent.
const DRIFT_PERCENT: u64 = 10;
/// A segment of which all known replicas are damaged is waited for this long: a whole one may be on
/// a server that is just starting. After that, the recovery uses the damaged ones.
const DAMAGED_AFTER_US: u64 = 10_000_000;
/// Ended recoveries that are still shown.
const ENDED_KEPT: usize = 32;

/// The recoveries; see the module.
#[derive(Default)]
pub(super) struct Recoveries {
    /// The recoveries in progress, by the dead server.
    all: BTreeMap<ServerId, Recovery>,
    /// The last ended ones.
    ended: VecDeque<RecoveryStatus>,
    pub accepted: Accepted,
    pub frames: Frames,
}

impl Recoveries {
    /// Whether this server is being recovered.
    pub(super) fn contains(&self, dead: ServerId) -> bool {
        self.all.contains_key(&dead)
    }

    /// One of the servers that are being recovered.
    pub(super) fn first(&self) -> Option<ServerId> {
        self.all.keys().next().copied()
    }

    fn planner<'c>(&'c self, state: &'c State) -> Planner<'c> {
        Planner::new(state, &self.all)
    }

    /// Begins to recover a crashed server's tablets. If it has none, it leaves the list at once.
    pub(super) fn recover(&mut self, state: &mut State, dead: ServerId) {
        if state.tables.tablets_owned(dead) == 0 {
            self.remove(state, dead);
            return;
        }
        let Some(server) = state.servers.get(&dead) else {
            return;
        };
        let (min_open, quiet_until_us) = (server.record.min_open, server.quiet_until_us);
        let id = RecoveryId(state.random.next_u64());
        let mut new = Recovery::new(id, dead, min_open, state.now_us, PATIENCE_US);
        // coordinator::K7: the dead server itself had to be quiet, for the lease of an owner before
        // it.
        if !has_bug(Bug::LeaseForgotten) {
            new.lease_until_us = new.lease_until_us.max(quiet_until_us);
        }
        let tablets = state.tables.lost_tablets(dead);
        new.planned = self.planner(state).counted_bytes(dead, &tablets);
        self.all.insert(dead, new);
        self.ask_backups(state, dead);
        self.arm(state, dead, PATIENCE_US);
    }

    /// Schedules the rules after this time, if not before. One timer for each recovery, for all
    /// reasons.
    pub(super) fn arm(&mut self, state: &mut State, dead: ServerId, after_us: u64) {
        let at_us = state.now_us + after_us;
        let Some(recovery) = self.all.get_mut(&dead) else {
            return;
        };
        if recovery.due_us.is_some_and(|due_us| due_us <= at_us) {
            return;
        }
        if let Some(later_us) = recovery.due_us.replace(at_us) {
            state.asks.disarm(later_us, Timer::Recovery(dead));
        }
        state.asks.arm(at_us, Timer::Recovery(dead));
    }

    /// Asks every backup that is UP once; [`due`](Self::due) repeats unanswered requests.
    fn ask_backups(&mut self, state: &mut State, dead: ServerId) {
        let backups: Vec<ServerId> = state
            .servers
            .up()
            .iter()
            .copied()
            .filter(|id| state.servers[id].record.entry.roles.backup)
            .collect();
        for backup in backups {
            self.ask_backup(state, dead, backup);
        }
    }

    fn ask_backup(&mut self, state: &mut State, dead: ServerId, backup: ServerId) {
        let min_open = state.servers.get(&dead).map(|s| s.record.min_open);
        let (Some(recovery), Some(min_open)) = (self.all.get_mut(&dead), min_open) else {
            return;
        };
        if recovery.log.is_some() || recovery.collected.has(backup) {
            return;
        }
        recovery.asked.insert(backup);
        recovery.silent.remove(&backup);
        let question = FromCoordinator::StartRead {
            recovery: recovery.id,
            log: dead,
            min_open,
        };
        state.ask(backup, question, CallKind::StartRead { dead }, ASK_AGAIN_US);
    }

    /// A backup was added: recoveries that wait for replicas ask it.
    pub(super) fn ask_new_backup(&mut self, state: &mut State, backup: ServerId) {
        let is_backup = |s: &super::Server| s.is_up() && s.record.entry.roles.backup;
        if !state.servers.get(&backup).is_some_and(is_backup) {
            return;
        }
        let dead: Vec<ServerId> = self.all.keys().copied().collect();
        for dead in dead {
            self.ask_backup(state, dead, backup);
        }
        for recovery in self.all.values_mut() {
            losses::look_again(recovery, state.now_us);
        }
    }

    /// Handles the end of a `StartRead`.
    pub(super) fn collected(
        &mut self,
        state: &mut State,
        dead: ServerId,
        backup: ServerId,
        answer: Option<(ServerAnswer, Vec<u8>)>,
    ) {
        let is_up = state.servers.is_up(backup);
        let now_us = state.now_us;
        let Some(recovery) = self.all.get_mut(&dead) else {
            return;
        };
        match answer {
            Some((ServerAnswer::Replicas(replicas), control)) if is_up && replicas.log == dead => {
                let lease_us = u64::from(replicas.lease_left_ms) * 1000;
                let until_us = now_us + lease_us + lease_us * DRIFT_PERCENT / 100;
                recovery.lease_until_us = recovery.lease_until_us.max(until_us);
                recovery.asked.remove(&backup);
                recovery.silent.remove(&backup);
                recovery.collected.add(backup, *replicas, control);
                self.decide(state, dead);
            }
            _ => {
                if recovery.asked.contains(&backup) {
                    recovery.silent.insert(backup);
                }
                self.arm(state, dead, BUSY_US);
            }
        }
    }

    /// If the log is whole, cuts it into partitions and gives them to masters.
    pub(super) fn decide(&mut self, state: &mut State, dead: ServerId) {
        if waits_for_newer_life(state, self.all.get_mut(&dead), dead.slot) {
            return; // older::A3
        }
        let Some(recovery) = self.all.get_mut(&dead) else {
            return;
        };
        let is_early = !recovery.asked.is_empty() && state.now_us < recovery.patient_until_us;
        if recovery.log.is_some() || is_early || state.now_us < recovery.rest_until_us {
            return;
        }
        let copies = state.meta.settings.replicas as usize;
        let with_damaged = state.now_us >= recovery.since_us + DAMAGED_AFTER_US;
        let judged = recovery.collected.judge(with_damaged);
        let judged = judged.and_then(|()| match recovery.collected.unproven(copies) {
            Some(segment) if recovery.waits_for_copies(state.now_us) => {
                Err(Missing::Copies { segment })
            }
            _ => Ok(()),
        });
        if let Err(missing) = judged {
            recovery.waits_for = Some(missing.to_string());
        } else if let Some(until_us) = self.planner(state).left_to_home_us(dead) {
            self.wait_for_home(state, dead, until_us);
        } else if let Some(mut log) = whole(self.all.get(&dead)) {
            let speeds = state.servers.speeds();
            if let Some(recovery) = self.all.get(&dead) {
                recovery.collected.spread(&mut log, &speeds);
            }
            self.begin_partitions(state, dead, log);
        }
    }

    /// The log is whole, and its machine may come back soon (recovery::Y5).
    fn wait_for_home(&mut self, state: &mut State, dead: ServerId, until_us: u64) {
        let left_us = until_us - state.now_us;
        if let Some(recovery) = self.all.get_mut(&dead) {
            let left_s = left_us.div_ceil(1_000_000);
            let text = format!("the machine of server {dead}, for {left_s} s more");
            recovery.waits_for = Some(text);
        }
        self.arm(state, dead, left_us);
    }

    /// The machine of some logs may be back: the recoveries that wait for it begin.
    pub(super) fn home_is_back(&mut self, state: &mut State, home: ServerId) {
        let of_it = self.all.keys().copied();
        let of_it: Vec<ServerId> = of_it
            .filter(|dead| state.home_of(*dead) == Some(home))
            .collect();
        for dead in of_it {
            if let Some(recovery) = self.all.get_mut(&dead) {
                recovery.finer = 0; // attempts before say nothing about this life
            }
            self.decide(state, dead);
        }
    }

    /// Ends a recovery that has nothing left to do, or begins its next attempt.
    pub(super) fn settle(&mut self, state: &mut State, dead: ServerId) {
        if !self.all.contains_key(&dead) {
            return;
        }
        if state.tables.tablets_owned(dead) == 0 {
            self.end(state, dead);
            return;
        }
        let Some(recovery) = self.all.get(&dead) else {
            return;
        };
        let nobody = state.recovery_masters().next().is_none();
        let home = state.home_of(dead);
        let can_go_on = recovery.partitions.iter().any(|p| match p.place {
            Place::Given { .. } | Place::TakenBack { .. } => true,
            Place::Waiting if p.is_home => home.is_none_or(|home| !p.not_on.contains(&home)),
            Place::Waiting => nobody || state.recovery_masters().any(|m| !p.not_on.contains(&m)),
            Place::Done { .. } | Place::Failed => false,
        });
        if recovery.log.is_none() || can_go_on {
            return;
        }
        let id = RecoveryId(state.random.next_u64());
        if let Some(recovery) = self.all.get_mut(&dead) {
            recovery.begin_again(id);
        }
        let room = self.planner(state).room();
        if let Some(recovery) = self.all.get_mut(&dead) {
            rooms::rest(recovery, state.now_us, room);
            losses::rest(recovery, state.now_us);
        }
        self.ask_backups(state, dead);
        self.arm(state, dead, RETRY_US);
    }

    pub(super) fn settle_all(&mut self, state: &mut State) {
        let dead: Vec<ServerId> = self.all.keys().copied().collect();
        dead.into_iter().for_each(|dead| self.settle(state, dead));
    }

    fn end(&mut self, state: &mut State, dead: ServerId) {
        let Some(recovery) = self.all.remove(&dead) else {
            return;
        };
        let mut status = recovery.status(state.now_us);
        status.phase = RecoveryPhase::Done;
        self.ended.push_back(status);
        if self.ended.len() > ENDED_KEPT {
            self.ended.pop_front();
        }
        for (number, partition) in recovery.partitions.iter().enumerate() {
            if let Some(to) = partition.place.master() {
                // Its tablets are gone: the table was dropped.
                state.servers.release(state.now_us, to, 0);
                abort_run(state, to, (recovery.id, number as u32));
            }
        }
        self.remove(state, dead);
    }

    /// A server is crashed: its partitions and replicas are gone.
    pub(super) fn forget(&mut self, state: &mut State, server: ServerId) {
        self.frames.forget(server);
        let dead: Vec<ServerId> = self.all.keys().copied().collect();
        for dead in dead {
            if let Some(recovery) = self.all.get_mut(&dead) {
                recovery.forget(server);
            }
            self.collect_again(state, dead);
            self.decide(state, dead);
            self.settle(state, dead);
        }
        self.give_partitions(state);
    }

    /// A log that was whole, and of which nobody is replaying anything, is collected anew when the
    /// last holder of one of its segments is gone: the holder's next life has another id.
    fn collect_again(&mut self, state: &mut State, dead: ServerId) {
        let Some(recovery) = self.all.get(&dead) else {
            return;
        };
        let is_there = recovery.log.as_ref().is_none_or(|log| {
            let mut segments = log.segments.iter();
            segments.all(|segment| segment.sources.iter().any(|id| state.servers.is_up(*id)))
        });
        if is_there || recovery.has_given() {
            return;
        }
        let id = RecoveryId(state.random.next_u64());
        if let Some(recovery) = self.all.get_mut(&dead) {
            recovery.begin_again(id);
        }
        self.ask_backups(state, dead);
        self.arm(state, dead, BUSY_US);
    }

    /// Applies the rules again.
    pub(super) fn due(&mut self, state: &mut State, dead: ServerId) {
        self.take_back(state, dead);
        let now_us = state.now_us;
        let Some(recovery) = self.all.get_mut(&dead) else {
            return;
        };
        recovery.due_us = None;
        let unanswered: Vec<ServerId> = recovery.silent.iter().copied().collect();
        let silent = |(number, partition): (usize, &Partition)| {
            let Place::Given {
                to,
                started,
                asked_us,
            } = partition.place
            else {
                return None;
            };
            let patience_us = if started { REMIND_US } else { BUSY_US };
            (now_us - asked_us >= patience_us).then_some((number as u32, to))
        };
        let silent: Vec<(u32, ServerId)> = recovery
            .partitions
            .iter()
            .enumerate()
            .filter_map(silent)
            .collect();
        if now_us > recovery.patient_until_us {
            for backup in unanswered {
                self.ask_backup(state, dead, backup);
            }
        }
        for (partition, to) in silent {
            if let Some(Place::Given { asked_us, .. }) = place_mut(&mut self.all, dead, partition) {
                *asked_us = now_us;
            }
            self.ask_master(state, dead, partition, to);
        }
        let room = self.planner(state).room();
        if let Some(recovery) = self.all.get_mut(&dead) {
            rooms::rest_less(recovery, now_us, room);
        }
        self.decide(state, dead);
        self.settle(state, dead);
        self.give_partitions(state);
        let Some(recovery) = self.all.get(&dead) else {
            return;
        };
        let copies_until_us = recovery.copies_until_us.unwrap_or(0);
        let ends = [
            recovery.rest_until_us,
            recovery.patient_until_us,
            copies_until_us,
        ];
        let next_us = ends.into_iter().filter(|at_us| *at_us > now_us).min();
        let after_us = next_us.map_or(RETRY_US, |at_us| RETRY_US.min(at_us - now_us));
        self.arm(state, dead, after_us);
    }

    /// Recoveries in progress, then the ended ones, the last one last.
    pub(super) fn statuses(&self, state: &State) -> Vec<RecoveryStatus> {
        let status = |recovery: &Recovery| {
            let mut status = recovery.status(state.now_us);
            if let Some(losses) = recovery.lost() {
                status.waits_for = Some(losses.text(recovery.dead));
            } else if let Some(text) = partitions::taken_back_from(recovery) {
                status.waits_for = Some(text);
            } else if let Some((bytes, _)) = recovery.lacks {
                status.waits_for = Some(self.planner(state).lacks_text(recovery.dead, bytes));
            } else if recovery.lacks_frames.is_some() {
                let text = "room on the servers' disks, which other recoveries will free";
                status.waits_for.get_or_insert_with(|| text.to_owned());
            }
            status
        };
        let mut all: Vec<RecoveryStatus> = self.all.values().map(status).collect();
        let is_backup = |id: &&ServerId| state.servers[*id].record.entry.roles.backup;
        let replicas = state.meta.settings.replicas as usize;
        let up = state
            .servers
            .up()
            .iter()
            .filter(is_backup)
            .take(replicas + 1);
        let backups = if all.is_empty() {
            usize::MAX
        } else {
            up.count()
        };
        if backups <= replicas {
            let waits_for = format!(
                "{backups} backups are up: a log has {replicas} replicas, none of them on its own server"
            );
            let replaying = |status: &&mut RecoveryStatus| status.phase == RecoveryPhase::Replaying;
            for status in all.iter_mut().filter(replaying) {
                status.waits_for.get_or_insert_with(|| waits_for.clone());
            }
        }
        all.extend(self.ended.iter().cloned());
        all
    }

    /// A log or a life is known: it may be newer than the coordinator's store. Then the attempts to
    /// recover lives of its slot end (older::A3). If a master stops late, its reports are of an
    /// attempt that does not count any more (recovery::Y1).
    pub(super) fn note_newer(&mut self, state: &mut State, life: ServerId) {
        if !state.lives.note(life) {
            return;
        }
        let slot = life.slot;
        let dead = self.all.keys().copied();
        let of_it = |dead: &ServerId| dead.slot == slot && !has_bug(Bug::FormerLifeServes);
        let dead: Vec<ServerId> = dead.filter(of_it).collect();
        for dead in dead {
            let next = RecoveryId(state.random.next_u64());
            let recovery = self.all.get_mut(&dead);
            if let Some(recovery) = recovery.filter(|recovery| recovery.log.is_some()) {
                let attempt = recovery.id;
                for (partition, by) in recovery.stop(next) {
                    state.servers.release(state.now_us, by, 0);
                    abort_run(state, by, (attempt, partition));
                }
            }
            self.decide(state, dead);
        }
        self.give_partitions(state);
    }

    /// A member has reported its room: recoveries that lack some look again.
    fn room_changed(&mut self, state: &mut State) {
        let lacking = self.all.iter().filter(|(_, recovery)| {
            let lacks = recovery.lacks.is_some() || recovery.lacks_frames.is_some();
            lacks || recovery.rest_until_us > state.now_us
        });
        let lacking: Vec<ServerId> = lacking.map(|(dead, _)| *dead).collect();
        for dead in lacking {
            self.arm(state, dead, NEWS_US);
        }
    }

    /// Removes a crashed server: its log is not needed any more.
    fn remove(&mut self, state: &mut State, dead: ServerId) {
        if state.remove(dead) {
            self.accepted.forget(state, dead);
        }
    }

    /// A member reports its room.
    pub(super) fn room(
        &mut self,
        state: &mut State,
        server: ServerId,
        room: ServerRoom,
    ) -> CoordinatorAnswer {
        if let Some(member) = state.servers.get_mut(&server) {
            member.room.reports(state.now_us, room);
            self.room_changed(state);
        }
        CoordinatorAnswer::Noted
    }

    /// A backup reports its free frames.
    pub(super) fn disk_room(
        &mut self,
        state: &mut State,
        server: ServerId,
        free: u64,
    ) -> CoordinatorAnswer {
        let is_in_progress = self.planner(state).is_in_progress();
        self.frames.report(is_in_progress, server, free);
        self.room_changed(state);
        CoordinatorAnswer::Noted
    }

    /// recovery::Y6: whether there are frames for the copies of so many bytes of this master.
    pub(super) fn has_frames(&self, state: &State, master: ServerId, bytes: u64) -> bool {
        self.frames.has(self.planner(state), master, bytes)
    }

    /// The losses that an operator would have to accept.
    pub(super) fn losses(&self, server: ServerId) -> CoordinatorAnswer {
        losses::shown(server, self.all.get(&server))
    }

    pub(super) fn accept_loss(
        &mut self,
        state: &mut State,
        server: ServerId,
        token: u32,
    ) -> CoordinatorAnswer {
        let recovery = self.all.get_mut(&server);
        if let Err(why) = self.accepted.accept(state, server, recovery, token) {
            return invalid(why);
        }
        self.arm(state, server, 0);
        CoordinatorAnswer::Admin(AdminAnswer::Done)
    }
}

/// older::A3: whether a recovery waits for the newest store, as a later life of this slot is known;
/// people are told.
fn waits_for_newer_life(state: &State, recovery: Option<&mut Recovery>, slot: u32) -> bool {
    let newer = state.lives.newer_life(slot);
    let Some(life) = newer.filter(|_| !has_bug(Bug::FormerLifeServes)) else {
        return false;
    };
    if let Some(recovery) = recovery {
        recovery.waits_for = Some(state.lives.why_older(life));
    }
    true
}

impl Coordinator {
    /// Recoveries in progress, then the ended ones, the last one last.
    pub fn recovery_statuses(&self) -> Vec<RecoveryStatus> {
        self.recoveries.statuses(&self.state)
    }
}

fn whole(recovery: Option<&Recovery>) -> Option<Log> {
    recovery.and_then(|of| of.collected.whole(&of.images))
}
