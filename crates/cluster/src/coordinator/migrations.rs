//! Migrations of tablets from one UP server to another, one by one or all of a server.
//!
//! The source and the target are told by their tablets (`Outgoing`, `Incoming`). A migration ends
//! in one step when the target reports that it has everything: the target is the owner then, if
//! both are UP. If either crashes before, nothing has changed: the target drops its data, the
//! source (or its recovery) continues.

use super::even::STEPS_MAX;
use super::records::{Key, MigrationRecord, Origin, TabletRecord};
use super::shares::At;
use super::{Coordinator, State, Timer, invalid, refused};
use duramen_base::ids::{KeyRange, MigrationId, RouteHash, SegmentId, ServerId, TableId};
use duramen_base::planted::{Bug, has_bug};
use duramen_wire::native::message::{
    AdminAnswer, CoordinatorAnswer, MigrationDone, MigrationOutcome, MigrationPhase,
    MigrationProgress, MigrationStatus, NO_ROOM, Refusal, ServerRoom,
};
use std::collections::{BTreeMap, VecDeque};

/// Tablets that leave a drained server at a time.
const DRAIN_AT_ONCE: usize = 2;
/// Pause after a failed migration of a drained server. Each further failure of the same tablet
/// doubles the tablet's pause, at most this many times: a move that cannot succeed costs little,
/// however long the drain waits.
const DRAIN_REST_US: u64 = 1_000_000;
const DRAIN_REST_DOUBLED_MAX: u32 = 6;
/// Failures after which a drained server's tablet is cut in two, if it is longer than this.
const HALVED_AFTER: u32 = 2;
const HALVED_BYTES_MIN: u64 = 16 << 20;
/// A target that failed to take a drained server's tablet gets no other one for this time.
const DECLINED_US: u64 = 10_000_000;
/// A tablet that neither side serves for longer counts as unserved.
const SWITCHING_US: u64 = 1_000_000;
/// Ended migrations that are still known: all of a plan, as `rebalance --wait` looks for each.
const MOVED_KEPT: usize = STEPS_MAX;

/// The progress of a migration, as its target reports it. Not stored.
#[derive(Default)]
struct Progress {
    phase: MigrationPhase,
    bytes: u64,
    bytes_total: u64,
    entries: u64,
}

impl From<MigrationProgress> for Progress {
    fn from(report: MigrationProgress) -> Progress {
        Progress {
            phase: report.phase,
            bytes: report.bytes,
            bytes_total: report.bytes_total,
            entries: report.entries,
        }
    }
}

/// A migration in progress.
struct Migration {
    record: MigrationRecord,
    since_us: u64,
    /// The progress, as the target reports it.
    progress: Progress,
    /// The time since which the source serves nothing, by a report of its source or its target.
    switching_since_us: Option<u64>,
}

impl Migration {
    fn new(record: MigrationRecord, since_us: u64) -> Migration {
        Migration {
            record,
            since_us,
            progress: Progress::default(),
            switching_since_us: None,
        }
    }

    /// Whether neither side has served the tablet for long.
    fn switches_long(&self, now_us: u64) -> bool {
        let since_us = self.switching_since_us;
        since_us.is_some_and(|since_us| now_us > since_us + SWITCHING_US)
    }
}

/// The migrations; see the module.
#[derive(Default)]
pub(super) struct Migrations {
    /// The migrations in progress.
    all: BTreeMap<MigrationId, Migration>,
    /// The last ended ones.
    ended: VecDeque<MigrationStatus>,
}

impl Migrations {
    /// Takes over a migration that is stored.
    pub(super) fn adopt(&mut self, state: &mut State, id: MigrationId, record: MigrationRecord) {
        state.tables.begin_move(id, record);
        self.all.insert(id, Migration::new(record, state.now_us));
    }

    pub(super) fn records(&self) -> impl Iterator<Item = &MigrationRecord> {
        self.all.values().map(|migration| &migration.record)
    }

    pub(super) fn ids(&self) -> impl ExactSizeIterator<Item = MigrationId> {
        self.all.keys().copied()
    }

    pub(super) fn contains(&self, id: MigrationId) -> bool {
        self.all.contains_key(&id)
    }

    /// The last ended ones, the last one last.
    pub(super) fn ended(&self) -> impl DoubleEndedIterator<Item = &MigrationStatus> {
        self.ended.iter()
    }

    pub(super) fn migrate(
        &mut self,
        state: &mut State,
        table: TableId,
        range: KeyRange,
        to: ServerId,
    ) -> CoordinatorAnswer {
        match self.begin_migrations(state, table, range, to) {
            Ok(begun) => CoordinatorAnswer::Admin(AdminAnswer::Migrating(begun)),
            Err(refusal) => refused(refusal),
        }
    }

    fn begin_migrations(
        &mut self,
        state: &mut State,
        table: TableId,
        range: KeyRange,
        to: ServerId,
    ) -> Result<Vec<MigrationId>, Refusal> {
        let bad = |why: String| Err(Refusal::Invalid(why));
        if range.first > range.last {
            return bad("the range is empty".to_owned());
        }
        let target = state.servers.get(&to).filter(|server| server.is_up());
        let Some(target) = target.map(|server| &server.record.entry) else {
            return bad(format!("server {to} is not UP"));
        };
        if !target.roles.master {
            return bad(format!("server {to} owns no tablets: it is a backup only"));
        }
        if target.draining {
            return bad(format!("server {to} is being drained"));
        }
        state.tables.tablet_of(table, range.first)?;
        // Everything is checked before anything is changed.
        for (first, tablet) in state.tables.tablets_in(table, range) {
            state.check_rests(table, first, tablet)?;
        }
        self.check_room(state, table, range, to)?;
        state.cut(table, range.first)?;
        if let Some(after) = range.last.next() {
            state.cut(table, after)?;
        }
        let moving: Vec<(RouteHash, TabletRecord)> = state
            .tables
            .tablets_in(table, range)
            .map(|(first, tablet)| (first, *tablet))
            .filter(|(_, tablet)| tablet.owner != to)
            .collect();
        let begun = moving.into_iter().map(|(first, tablet)| {
            let record = MigrationRecord {
                table,
                range: KeyRange::new(first, tablet.last),
                from: tablet.owner,
                to,
            };
            self.begin(state, record)
        });
        Ok(begun.collect())
    }

    /// A refusal now is better than one by the target: nothing has moved yet. Reports of servers
    /// may be some seconds old, so the target may still refuse.
    fn check_room(
        &self,
        state: &State,
        table: TableId,
        range: KeyRange,
        to: ServerId,
    ) -> Result<(), Refusal> {
        let tablets = state.tables.tablets_in(table, range);
        let coming = tablets.filter(|(_, tablet)| tablet.owner != to);
        let bytes = coming.map(|(first, tablet)| {
            let moving = KeyRange::new(first, tablet.last).intersection(&range);
            moving.map_or(0, |moving| {
                state.servers.bytes_in(table, moving, tablet.owner)
            })
        });
        let bytes = bytes.fold(0, u64::saturating_add);
        let Some((room, promised)) = self.lacks_room(state, to, bytes) else {
            return Ok(());
        };
        let on_its_way = match promised {
            0 => String::new(),
            promised => format!("{promised} more are on their way to it, "),
        };
        Err(Refusal::Invalid(format!(
            "server {to} has no room: about {bytes} bytes would come, {} are there, {on_its_way}and {} may be. \
             Move less, or to another server",
            room.used_bytes, room.limit_bytes
        )))
    }

    /// The reported room of a server, and the bytes that are moving to it, if `bytes` more do not
    /// fit.
    pub(super) fn lacks_room(
        &self,
        state: &State,
        to: ServerId,
        bytes: u64,
    ) -> Option<(ServerRoom, u64)> {
        let room = state.servers.get(&to)?.room.report()?;
        let migrations = self.all.values().map(|migration| migration.record);
        let others = migrations.filter(|record| record.to == to);
        let promised = others
            .map(|other| state.servers.bytes_in(other.table, other.range, other.from))
            .fold(0, u64::saturating_add);
        let sum = room.used_bytes.saturating_add(promised);
        (sum.saturating_add(bytes) > room.limit_bytes).then_some((room, promised))
    }

    pub(super) fn begin(&mut self, state: &mut State, record: MigrationRecord) -> MigrationId {
        let id = MigrationId(state.random.next_u64());
        state.records.put(Key::Migration(id), &record);
        state.tables.begin_move(id, record);
        self.all.insert(id, Migration::new(record, state.now_us));
        state.change_map(record.table, record.range);
        state.affect(record.from);
        state.affect(record.to);
        id
    }

    /// A report that a migration has ended. Returns its answer, and whether the tablet has moved.
    pub(super) fn done(
        &mut self,
        state: &mut State,
        sender: ServerId,
        done: MigrationDone,
    ) -> (CoordinatorAnswer, bool) {
        let (id, server) = (done.migration, done.server);
        let careless = has_bug(Bug::MigratedToTheDead);
        if sender != server || !state.servers.is_up(server) && !careless {
            return (CoordinatorAnswer::Stale, false); // coordinator::K3
        }
        let Some(record) = self.all.get(&id).map(|m| m.record) else {
            let answer = state.accepted_before(server, Origin::Migrated(id));
            return (answer, false);
        };
        let has_moved = match done.outcome {
            MigrationOutcome::Complete { creation } if server == record.to => {
                self.end(state, id, creation);
                true
            }
            MigrationOutcome::Failed { reason } if server == record.to || server == record.from => {
                self.abort(state, id, &reason);
                if let Some(target) = state.servers.get_mut(&record.to) {
                    target.declined_until_us = state.now_us + DECLINED_US;
                }
                hold_back(state, record.from, (record.table, record.range.first));
                if reason.starts_with(NO_ROOM) {
                    halve_stuck(state, record.from, record.table, record.range.first);
                }
                false
            }
            _ => return (CoordinatorAnswer::Stale, false),
        };
        let since = state.tablets_version();
        (CoordinatorAnswer::Accepted { since }, has_moved)
    }

    fn end(&mut self, state: &mut State, id: MigrationId, creation: SegmentId) {
        let Some(record) = self.remove(state, id, MigrationPhase::Done, None) else {
            return;
        };
        let tablet = TabletRecord {
            last: record.range.last,
            owner: record.to, // coordinator::K4
            creation,
            origin: Origin::Migrated(id),
        };
        state.set_tablet(record.table, record.range.first, tablet);
        let mut moved = Vec::new();
        if let Some(source) = state.servers.get_mut(&record.from) {
            let at = (record.table, record.range.first);
            source.held_back.remove(&at);
            moved = source.loads.lose(record.table, record.range);
        }
        if let Some(target) = state.servers.get_mut(&record.to) {
            target.loads.gain(moved);
        }
        state.affect(record.from);
        state.affect(record.to);
        self.drain_further(state, record.from);
    }

    fn remove(
        &mut self,
        state: &mut State,
        id: MigrationId,
        phase: MigrationPhase,
        reason: Option<&str>,
    ) -> Option<MigrationRecord> {
        let migration = self.all.remove(&id)?;
        let record = migration.record;
        state.tables.end_move(&record);
        state.records.delete(Key::Migration(id));
        state.change_map(record.table, record.range);
        let mut status = status(state.now_us, id, &migration);
        status.phase = phase;
        status.reason = reason.map(str::to_owned);
        self.ended.push_back(status);
        if self.ended.len() > MOVED_KEPT {
            self.ended.pop_front();
        }
        Some(record)
    }

    /// Gives a migration up; `reason` is for people.
    pub(super) fn abort(&mut self, state: &mut State, id: MigrationId, reason: &str) -> bool {
        let removed = self.remove(state, id, MigrationPhase::GivenUp, Some(reason));
        let Some(record) = removed else {
            return false;
        };
        state.affect(record.from);
        state.affect(record.to);
        let drains = |source: &super::Server| source.record.entry.draining;
        let is_drained = state.servers.get(&record.from).is_some_and(drains);
        if is_drained && !has_bug(Bug::DrainForgotten) {
            state
                .asks
                .arm(state.now_us + DRAIN_REST_US, Timer::Drain(record.from));
        }
        true
    }

    pub(super) fn progress(
        &mut self,
        state: &State,
        report: MigrationProgress,
    ) -> CoordinatorAnswer {
        let Some(migration) = self.all.get_mut(&report.migration) else {
            return CoordinatorAnswer::Noted;
        };
        let is_switching = report.phase == MigrationPhase::Switching;
        if migration.record.to == report.server {
            migration.progress = Progress::from(report);
        }
        // The source reports its lock, the target the arrival of the last message.
        if migration.record.from == report.server && !is_switching {
            migration.switching_since_us = None;
        } else if is_switching {
            migration.switching_since_us.get_or_insert(state.now_us);
        }
        CoordinatorAnswer::Noted
    }

    pub(super) fn abort_where(
        &mut self,
        state: &mut State,
        reason: &str,
        is_over: impl Fn(&MigrationRecord) -> bool,
    ) {
        let over: Vec<MigrationId> = self
            .all
            .iter()
            .filter(|(_, migration)| is_over(&migration.record))
            .map(|(id, _)| *id)
            .collect();
        for id in over {
            self.abort(state, id, reason);
        }
    }

    /// Whether neither side of a migration serves a tablet.
    fn is_between(&self, state: &State, at: (TableId, RouteHash)) -> bool {
        let moving = state.tables.migration_of(at.0, at.1);
        let migration = moving.and_then(|(id, _)| self.all.get(&id));
        migration.is_some_and(|migration| migration.switches_long(state.now_us))
    }

    /// The number of an UP server's confirmed tablets that neither side of a migration serves.
    fn between(&self, state: &State) -> usize {
        let long = self.all.values().filter(|m| m.switches_long(state.now_us));
        let at = long.map(|m| ((m.record.table, m.record.range.first), m.record.from));
        at.filter(|(at, owner)| state.is_opened(*at, *owner))
            .count()
    }

    /// A server is crashed: its migrations are given up.
    pub(super) fn abort_of(&mut self, state: &mut State, dead: ServerId) {
        let outlives = has_bug(Bug::MigrationOutlivesSource);
        let careless = has_bug(Bug::MigratedToTheDead);
        self.abort_where(state, &format!("server {dead} crashed"), |record| {
            record.to == dead && !careless || record.from == dead && !outlives
        });
    }

    /// The states of at most `most` migrations in progress.
    pub(super) fn statuses(&self, now_us: u64, most: usize) -> Vec<MigrationStatus> {
        let some = self.all.iter().take(most);
        some.map(|(id, migration)| status(now_us, *id, migration))
            .collect()
    }

    pub(super) fn drain(&mut self, state: &mut State, server: ServerId) -> CoordinatorAnswer {
        if !state.servers.is_up(server) {
            return invalid(format!("server {server} is not UP"));
        }
        if state.tables.tablets_owned(server) > 0 && state.servers.masters().all(|id| id == server)
        {
            return invalid("no other server is UP that could take its tablets");
        }
        if !state.servers[&server].record.entry.draining {
            state.change_member(server, |entry| entry.draining = true);
        }
        // Tablets that are moving to it stay at their sources.
        self.abort_where(state, "its target is being drained", |record| {
            record.to == server
        });
        self.drain_further(state, server);
        CoordinatorAnswer::Admin(AdminAnswer::Done)
    }

    pub(super) fn undrain(&mut self, state: &mut State, server: ServerId) -> CoordinatorAnswer {
        if !state.servers.is_up(server) {
            return invalid(format!("server {server} is not UP"));
        }
        if state.servers[&server].record.entry.draining {
            state.change_member(server, |entry| entry.draining = false);
            if let Some(source) = state.servers.get_mut(&server) {
                source.held_back.clear();
            }
            self.abort_where(state, "its source is not drained any more", |record| {
                record.from == server
            });
        }
        CoordinatorAnswer::Admin(AdminAnswer::Done)
    }

    /// The reason why no tablet leaves a drained server that owns some or is to own some; for
    /// people.
    pub(super) fn drain_waits_for(&self, state: &State, server: ServerId) -> Option<String> {
        let drained = state.servers.get(&server).filter(|s| s.is_up())?;
        if state.tables.tablets_owned(server) == 0 {
            let parts = drained.recovering;
            let recovers = drained.record.entry.draining && parts > 0;
            return recovers.then(|| {
                format!("it recovers data of dead servers (parts: {parts}), which moves on then")
            });
        }
        let mut owned = state.tables.owned(server);
        let mut migrations = self.all.values();
        let leaves = migrations.any(|migration| migration.record.from == server);
        if !drained.record.entry.draining || leaves {
            return None;
        }
        let Some(first) = owned.find(|at| !is_held_back(state, server, **at)) else {
            return Some(
                "its tablets failed to move, and are tried again after growing pauses".to_owned(),
            );
        };
        if self.drain_target(state, server, *first, 0).is_some() {
            return None;
        }
        Some("no other server has room for its tablets, or takes them".to_owned())
    }

    /// The target of a drained server's tablet: one of those that own the fewest, in turn, with
    /// room.
    fn drain_target(
        &self,
        state: &State,
        server: ServerId,
        at: (TableId, RouteHash),
        turn: usize,
    ) -> Option<ServerId> {
        let tablet = state.tables.tablet(at)?;
        let bytes = state
            .servers
            .bytes_in(at.0, KeyRange::new(at.1, tablet.last), server);
        let has_room = |id: &ServerId| self.lacks_room(state, *id, bytes).is_none();
        let is_willing = |id: &ServerId| state.servers[id].declined_until_us <= state.now_us;
        let others = state
            .servers
            .masters()
            .filter(|id| *id != server && is_willing(id));
        let some: Vec<ServerId> = others.filter(has_room).take(DRAIN_AT_ONCE).collect();
        (!some.is_empty()).then(|| some[turn % some.len()])
    }

    /// Moves the next tablets off a drained server.
    pub(super) fn drain_further(&mut self, state: &mut State, server: ServerId) {
        let drains = |s: &super::Server| s.is_up() && s.record.entry.draining;
        if !state.servers.get(&server).is_some_and(drains) {
            return;
        }
        let leaving = self.all.values();
        let leaving = leaving.filter(|m| m.record.from == server).count();
        let rest: Vec<(TableId, RouteHash)> = state
            .tables
            .owned(server)
            .filter(|(table, first)| state.tables.migration_of(*table, *first).is_none())
            .filter(|at| !is_held_back(state, server, **at))
            .take(DRAIN_AT_ONCE.saturating_sub(leaving))
            .copied()
            .collect();
        for (n, (table, first)) in rest.into_iter().enumerate() {
            let target = self.drain_target(state, server, (table, first), n);
            let (Some(to), Some(tablet)) = (target, state.tables.tablet((table, first))) else {
                state
                    .asks
                    .arm(state.now_us + DRAIN_REST_US, Timer::Drain(server));
                return;
            };
            let record = MigrationRecord {
                table,
                range: KeyRange::new(first, tablet.last),
                from: server,
                to,
            };
            self.begin(state, record);
        }
    }

    /// Whether the tablet's owner serves it, as far as is known (shares::S2).
    pub(super) fn is_served(&self, state: &State, at: At, owner: ServerId) -> bool {
        state.is_opened(at, owner) && !self.is_between(state, at)
    }

    /// The number of unserved tablets, as far as is known.
    pub(super) fn unserved(&self, state: &State) -> usize {
        state.unopened() + self.between(state)
    }
}

/// A drained server's tablet failed to move.
fn hold_back(state: &mut State, server: ServerId, tablet: (TableId, RouteHash)) {
    let now_us = state.now_us;
    let Some(source) = state.servers.get_mut(&server) else {
        return;
    };
    let mut until_us = now_us + DRAIN_REST_US;
    if source.record.entry.draining {
        let (failures, again_us) = source.held_back.entry(tablet).or_default();
        until_us = now_us + (DRAIN_REST_US << *failures);
        *failures = (*failures + 1).min(DRAIN_REST_DOUBLED_MAX);
        *again_us = until_us;
    }
    // Other tablets need not wait for this one.
    state.asks.arm(now_us + DRAIN_REST_US, Timer::Drain(server));
    state.asks.arm(until_us, Timer::Drain(server));
}

/// Cuts a drained server's tablet for which targets have no room. Its keys that are overwritten
/// meanwhile take the target's room until the end of the move, so a smaller part may fit.
fn halve_stuck(state: &mut State, server: ServerId, table: TableId, first: RouteHash) {
    let Some(source) = state.servers.get(&server) else {
        return;
    };
    let held_back = source.held_back.get(&(table, first));
    let is_stuck = held_back.is_some_and(|(failures, _)| *failures >= HALVED_AFTER);
    let Some(tablet) = state.tables.tablet((table, first)).filter(|_| is_stuck) else {
        return;
    };
    let range = KeyRange::new(first, tablet.last);
    let middle = first.slot() + (tablet.last.slot() - first.slot()).div_ceil(2);
    if middle > first.slot() && state.servers.bytes_in(table, range, server) > HALVED_BYTES_MIN {
        // The cut is refused only while the tablet is being recovered: then it would come too late.
        let _ = state.cut(table, RouteHash::first_of_slot(middle));
    }
}

fn is_held_back(state: &State, server: ServerId, tablet: (TableId, RouteHash)) -> bool {
    let source = state.servers.get(&server);
    let held_back = source.and_then(|source| source.held_back.get(&tablet));
    held_back.is_some_and(|(_, until_us)| *until_us > state.now_us)
}

fn status(now_us: u64, id: MigrationId, migration: &Migration) -> MigrationStatus {
    let Migration {
        record,
        since_us,
        progress,
        switching_since_us,
    } = migration;
    MigrationStatus {
        migration: id,
        table: record.table,
        range: record.range,
        from: record.from,
        to: record.to,
        phase: match switching_since_us {
            Some(_) => MigrationPhase::Switching,
            None => progress.phase,
        },
        bytes: progress.bytes,
        bytes_total: progress.bytes_total,
        entries: progress.entries,
        elapsed_ms: (now_us - since_us) / 1000,
        reason: None,
    }
}

impl Coordinator {
    pub(super) fn migration_done(
        &mut self,
        sender: ServerId,
        done: MigrationDone,
    ) -> CoordinatorAnswer {
        let (state, migrations) = (&mut self.state, &mut self.migrations);
        let (answer, has_moved) = migrations.done(state, sender, done);
        if has_moved {
            self.recoveries.settle_all(state);
        }
        answer
    }
}
