//! Migrations of tablets from one UP server to another, one by one or all of a server.
//!
//! The source and the target are told by their tablets (`Outgoing`, `Incoming`). A migration ends
//! in one step when the target reports that it has everything: the target is the owner then, if
//! both are UP. If either crashes before, nothing has changed: the target drops its data, the
//! source (or its recovery) continues.

use super::even::STEPS_MAX;
use super::records::{Key, MigrationRecord, Origin, TabletRecord};
use super::{Coordinator, Timer, invalid, refused};
use duramen_base::ids::{KeyRange, MigrationId, RouteHash, SegmentId, ServerId, TableId};
use duramen_base::planted::{Bug, has_bug};
use duramen_wire::native::message::{
    AdminAnswer, CoordinatorAnswer, MigrationOutcome, MigrationPhase, MigrationStatus, NO_ROOM,
    Refusal, ServerRoom,
};

/// Tablets that leave a drained server at a time.
const DRAIN_AT_ONCE: usize = 2;
/// Pause after a failed migration of a drained server. Each further one of the same tablet doubles
/// the tablet's pause, so often at most: a move that cannot succeed costs little, however long the
/// drain waits.
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
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Progress {
    pub phase: MigrationPhase,
    pub bytes: u64,
    pub bytes_total: u64,
    pub entries: u64,
}

/// A migration in progress.
pub(super) struct Migration {
    pub record: MigrationRecord,
    since_us: u64,
    /// As its target reports it.
    progress: Progress,
    /// Since when, by a report of its source or its target, the source serves nothing.
    switching_since_us: Option<u64>,
}

impl Migration {
    pub(super) fn new(record: MigrationRecord, since_us: u64) -> Migration {
        Migration {
            record,
            since_us,
            progress: Progress::default(),
            switching_since_us: None,
        }
    }
}

impl Coordinator {
    pub(super) fn migrate(
        &mut self,
        table: TableId,
        range: KeyRange,
        to: ServerId,
    ) -> CoordinatorAnswer {
        match self.begin_migrations(table, range, to) {
            Ok(begun) => CoordinatorAnswer::Admin(AdminAnswer::Migrating(begun)),
            Err(refusal) => refused(refusal),
        }
    }

    fn begin_migrations(
        &mut self,
        table: TableId,
        range: KeyRange,
        to: ServerId,
    ) -> Result<Vec<MigrationId>, Refusal> {
        let bad = |why: String| Err(Refusal::Invalid(why));
        if range.first > range.last {
            return bad("the range is empty".to_owned());
        }
        let target = self.state.servers.get(&to).filter(|server| server.is_up());
        let Some(target) = target.map(|server| &server.record.entry) else {
            return bad(format!("server {to} is not UP"));
        };
        if !target.roles.master {
            return bad(format!("server {to} owns no tablets: it is a backup only"));
        }
        if target.draining {
            return bad(format!("server {to} is being drained"));
        }
        self.state.tables.tablet_of(table, range.first)?;
        // Everything is checked before anything is changed.
        for (first, tablet) in self.state.tables.tablets_in(table, range) {
            self.state.check_rests(table, first, tablet)?;
        }
        self.check_room(table, range, to)?;
        self.state.cut(table, range.first)?;
        if let Some(after) = range.last.next() {
            self.state.cut(table, after)?;
        }
        let moving: Vec<(RouteHash, TabletRecord)> = self
            .state
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
            self.begin_migration(record)
        });
        Ok(begun.collect())
    }

    /// A refusal now is better than one by the target: nothing has moved yet. Reports of servers
    /// may be some seconds old, so the target may still refuse.
    fn check_room(&self, table: TableId, range: KeyRange, to: ServerId) -> Result<(), Refusal> {
        let tablets = self.state.tables.tablets_in(table, range);
        let coming = tablets.filter(|(_, tablet)| tablet.owner != to);
        let bytes = coming.map(|(first, tablet)| {
            let moving = KeyRange::new(first, tablet.last).intersection(&range);
            moving.map_or(0, |moving| {
                self.state.servers.bytes_in(table, moving, tablet.owner)
            })
        });
        let bytes = bytes.fold(0, u64::saturating_add);
        let Some((room, promised)) = self.lacks_room(to, bytes) else {
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
    pub(super) fn lacks_room(&self, to: ServerId, bytes: u64) -> Option<(ServerRoom, u64)> {
        let room = self.state.servers.get(&to)?.room.report()?;
        let migrations = self.migrations.values().map(|migration| migration.record);
        let others = migrations.filter(|record| record.to == to);
        let promised = others
            .map(|other| {
                self.state
                    .servers
                    .bytes_in(other.table, other.range, other.from)
            })
            .fold(0, u64::saturating_add);
        let sum = room.used_bytes.saturating_add(promised);
        (sum.saturating_add(bytes) > room.limit_bytes).then_some((room, promised))
    }

    pub(super) fn begin_migration(&mut self, record: MigrationRecord) -> MigrationId {
        let id = MigrationId(self.state.random.next_u64());
        self.state.records.put(Key::Migration(id), &record);
        self.state.tables.begin_move(id, record);
        self.migrations
            .insert(id, Migration::new(record, self.state.now_us));
        self.state.change_map(record.table, record.range);
        self.state.affect(record.from);
        self.state.affect(record.to);
        id
    }

    pub(super) fn migration_done(
        &mut self,
        sender: ServerId,
        server: ServerId,
        id: MigrationId,
        outcome: MigrationOutcome,
    ) -> CoordinatorAnswer {
        let careless = has_bug(Bug::MigratedToTheDead);
        if sender != server || !self.state.servers.is_up(server) && !careless {
            return CoordinatorAnswer::Stale; // coordinator::K3
        }
        let Some(record) = self.migrations.get(&id).map(|m| m.record) else {
            return self.state.accepted_before(server, Origin::Migrated(id));
        };
        match outcome {
            MigrationOutcome::Complete { creation } if server == record.to => {
                self.end_migration(id, creation);
            }
            MigrationOutcome::Failed { reason } if server == record.to || server == record.from => {
                self.abort_migration(id, &reason);
                if let Some(target) = self.state.servers.get_mut(&record.to) {
                    target.declined_until_us = self.state.now_us + DECLINED_US;
                }
                self.hold_back(record.from, (record.table, record.range.first));
                if reason.starts_with(NO_ROOM) {
                    self.halve_stuck(record.from, record.table, record.range.first);
                }
            }
            _ => return CoordinatorAnswer::Stale,
        }
        CoordinatorAnswer::Accepted {
            since: self.state.tablets_version(),
        }
    }

    /// A drained server's tablet failed to move.
    fn hold_back(&mut self, server: ServerId, tablet: (TableId, RouteHash)) {
        let now_us = self.state.now_us;
        let Some(source) = self.state.servers.get_mut(&server) else {
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
        self.state
            .asks
            .arm(now_us + DRAIN_REST_US, Timer::Drain(server));
        self.state.asks.arm(until_us, Timer::Drain(server));
    }

    /// Cuts a drained server's tablet for which targets have no room. Its keys that are overwritten
    /// meanwhile take the target's room until the end of the move, so a smaller part may fit.
    fn halve_stuck(&mut self, server: ServerId, table: TableId, first: RouteHash) {
        let Some(source) = self.state.servers.get(&server) else {
            return;
        };
        let held_back = source.held_back.get(&(table, first));
        let is_stuck = held_back.is_some_and(|(failures, _)| *failures >= HALVED_AFTER);
        let Some(tablet) = self
            .state
            .tables
            .tablet((table, first))
            .filter(|_| is_stuck)
        else {
            return;
        };
        let range = KeyRange::new(first, tablet.last);
        let middle = first.slot() + (tablet.last.slot() - first.slot()).div_ceil(2);
        if middle > first.slot()
            && self.state.servers.bytes_in(table, range, server) > HALVED_BYTES_MIN
        {
            // Refused at most while the tablet is recovered; then it is too late.
            let _ = self.state.cut(table, RouteHash::first_of_slot(middle));
        }
    }

    fn is_held_back(&self, server: ServerId, tablet: (TableId, RouteHash)) -> bool {
        let source = self.state.servers.get(&server);
        let held_back = source.and_then(|source| source.held_back.get(&tablet));
        held_back.is_some_and(|(_, until_us)| *until_us > self.state.now_us)
    }

    fn end_migration(&mut self, id: MigrationId, creation: SegmentId) {
        let Some(record) = self.remove_migration(id, MigrationPhase::Done, None) else {
            return;
        };
        let tablet = TabletRecord {
            last: record.range.last,
            owner: record.to, // coordinator::K4
            creation,
            origin: Origin::Migrated(id),
        };
        self.state
            .set_tablet(record.table, record.range.first, tablet);
        let mut moved = Vec::new();
        if let Some(source) = self.state.servers.get_mut(&record.from) {
            let at = (record.table, record.range.first);
            source.held_back.remove(&at);
            moved = source.loads.lose(record.table, record.range);
        }
        if let Some(target) = self.state.servers.get_mut(&record.to) {
            target.loads.gain(moved);
        }
        self.state.affect(record.from);
        self.state.affect(record.to);
        self.drain_further(record.from);
        self.settle_all();
    }

    fn remove_migration(
        &mut self,
        id: MigrationId,
        phase: MigrationPhase,
        reason: Option<&str>,
    ) -> Option<MigrationRecord> {
        let migration = self.migrations.remove(&id)?;
        let record = migration.record;
        self.state.tables.end_move(&record);
        self.state.records.delete(Key::Migration(id));
        self.state.change_map(record.table, record.range);
        let mut status = self.migration_status(id, &migration);
        status.phase = phase;
        status.reason = reason.map(str::to_owned);
        self.moved.push_back(status);
        if self.moved.len() > MOVED_KEPT {
            self.moved.pop_front();
        }
        Some(record)
    }

    /// `reason`: for people.
    pub(super) fn abort_migration(&mut self, id: MigrationId, reason: &str) -> bool {
        let removed = self.remove_migration(id, MigrationPhase::GivenUp, Some(reason));
        let Some(record) = removed else {
            return false;
        };
        self.state.affect(record.from);
        self.state.affect(record.to);
        let drains = |source: &super::Server| source.record.entry.draining;
        let is_drained = self.state.servers.get(&record.from).is_some_and(drains);
        if is_drained && !has_bug(Bug::DrainForgotten) {
            self.state
                .asks
                .arm(self.state.now_us + DRAIN_REST_US, Timer::Drain(record.from));
        }
        true
    }

    pub(super) fn migration_progress(
        &mut self,
        server: ServerId,
        id: MigrationId,
        progress: Progress,
    ) -> CoordinatorAnswer {
        let now_us = self.state.now_us;
        let Some(migration) = self.migrations.get_mut(&id) else {
            return CoordinatorAnswer::Noted;
        };
        let is_switching = progress.phase == MigrationPhase::Switching;
        if migration.record.to == server {
            migration.progress = progress;
        }
        // The source reports its lock, the target the arrival of the last message.
        if migration.record.from == server && !is_switching {
            migration.switching_since_us = None;
        } else if is_switching {
            migration.switching_since_us.get_or_insert(now_us);
        }
        CoordinatorAnswer::Noted
    }

    pub(super) fn abort_migrations_where(
        &mut self,
        reason: &str,
        is_over: impl Fn(&MigrationRecord) -> bool,
    ) {
        let over: Vec<MigrationId> = self
            .migrations
            .iter()
            .filter(|(_, migration)| is_over(&migration.record))
            .map(|(id, _)| *id)
            .collect();
        for id in over {
            self.abort_migration(id, reason);
        }
    }

    /// Whether neither side of a migration serves a tablet.
    pub(super) fn is_between(&self, at: (TableId, RouteHash)) -> bool {
        let moving = self.state.tables.migration_of(at.0, at.1);
        let migration = moving.and_then(|(id, _)| self.migrations.get(&id));
        migration.is_some_and(|migration| self.switches_long(migration))
    }

    /// The number of an UP server's confirmed tablets that neither side of a migration serves.
    pub(super) fn between(&self) -> usize {
        let long = self.migrations.values().filter(|m| self.switches_long(m));
        let at = long.map(|m| ((m.record.table, m.record.range.first), m.record.from));
        at.filter(|(at, owner)| self.state.is_opened(*at, *owner))
            .count()
    }

    fn switches_long(&self, migration: &Migration) -> bool {
        let since_us = migration.switching_since_us;
        since_us.is_some_and(|since_us| self.state.now_us > since_us + SWITCHING_US)
    }

    /// A server is crashed.
    pub(super) fn abort_migrations_of(&mut self, dead: ServerId) {
        let outlives = has_bug(Bug::MigrationOutlivesSource);
        let careless = has_bug(Bug::MigratedToTheDead);
        self.abort_migrations_where(&format!("server {dead} crashed"), |record| {
            record.to == dead && !careless || record.from == dead && !outlives
        });
    }

    /// At most `most` of those in progress.
    pub(super) fn migration_statuses(&self, most: usize) -> Vec<MigrationStatus> {
        let some = self.migrations.iter().take(most);
        some.map(|(id, migration)| self.migration_status(*id, migration))
            .collect()
    }

    fn migration_status(&self, id: MigrationId, migration: &Migration) -> MigrationStatus {
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
            elapsed_ms: (self.state.now_us - since_us) / 1000,
            reason: None,
        }
    }

    pub(super) fn drain(&mut self, server: ServerId) -> CoordinatorAnswer {
        if !self.state.servers.is_up(server) {
            return invalid(format!("server {server} is not UP"));
        }
        if self.state.tables.tablets_owned(server) > 0
            && self.state.servers.masters().all(|id| id == server)
        {
            return invalid("no other server is UP that could take its tablets");
        }
        if !self.state.servers[&server].record.entry.draining {
            self.state
                .change_member(server, |entry| entry.draining = true);
        }
        // Tablets that are moving to it stay at their sources.
        self.abort_migrations_where("its target is being drained", |record| record.to == server);
        self.drain_further(server);
        CoordinatorAnswer::Admin(AdminAnswer::Done)
    }

    pub(super) fn undrain(&mut self, server: ServerId) -> CoordinatorAnswer {
        if !self.state.servers.is_up(server) {
            return invalid(format!("server {server} is not UP"));
        }
        if self.state.servers[&server].record.entry.draining {
            self.state
                .change_member(server, |entry| entry.draining = false);
            if let Some(source) = self.state.servers.get_mut(&server) {
                source.held_back.clear();
            }
            self.abort_migrations_where("its source is not drained any more", |record| {
                record.from == server
            });
        }
        CoordinatorAnswer::Admin(AdminAnswer::Done)
    }

    /// The reason why no tablet leaves a drained server that owns some or is to own some; for
    /// people.
    pub(super) fn drain_waits_for(&self, server: ServerId) -> Option<String> {
        let drained = self.state.servers.get(&server).filter(|s| s.is_up())?;
        if self.state.tables.tablets_owned(server) == 0 {
            let parts = drained.recovering;
            let recovers = drained.record.entry.draining && parts > 0;
            return recovers.then(|| {
                format!("it recovers data of dead servers (parts: {parts}), which moves on then")
            });
        }
        let mut owned = self.state.tables.owned(server);
        let mut migrations = self.migrations.values();
        let leaves = migrations.any(|migration| migration.record.from == server);
        if !drained.record.entry.draining || leaves {
            return None;
        }
        let Some(first) = owned.find(|at| !self.is_held_back(server, **at)) else {
            return Some(
                "its tablets failed to move, and are tried again after growing pauses".to_owned(),
            );
        };
        if self.drain_target(server, *first, 0).is_some() {
            return None;
        }
        Some("no other server has room for its tablets, or takes them".to_owned())
    }

    /// The target of a drained server's tablet: one of those that own the fewest, in turn, with
    /// room.
    fn drain_target(
        &self,
        server: ServerId,
        at: (TableId, RouteHash),
        turn: usize,
    ) -> Option<ServerId> {
        let tablet = self.state.tables.tablet(at)?;
        let bytes = self
            .state
            .servers
            .bytes_in(at.0, KeyRange::new(at.1, tablet.last), server);
        let has_room = |id: &ServerId| self.lacks_room(*id, bytes).is_none();
        let is_willing =
            |id: &ServerId| self.state.servers[id].declined_until_us <= self.state.now_us;
        let others = self
            .state
            .servers
            .masters()
            .filter(|id| *id != server && is_willing(id));
        let some: Vec<ServerId> = others.filter(has_room).take(DRAIN_AT_ONCE).collect();
        (!some.is_empty()).then(|| some[turn % some.len()])
    }

    /// Moves the next tablets off a drained server.
    pub(super) fn drain_further(&mut self, server: ServerId) {
        let drains = |s: &super::Server| s.is_up() && s.record.entry.draining;
        if !self.state.servers.get(&server).is_some_and(drains) {
            return;
        }
        let leaving = |this: &Coordinator| {
            let of = this.migrations.values();
            of.filter(|m| m.record.from == server).count()
        };
        let rest: Vec<(TableId, RouteHash)> = self
            .state
            .tables
            .owned(server)
            .filter(|(table, first)| self.state.tables.migration_of(*table, *first).is_none())
            .filter(|at| !self.is_held_back(server, **at))
            .take(DRAIN_AT_ONCE.saturating_sub(leaving(self)))
            .copied()
            .collect();
        for (n, (table, first)) in rest.into_iter().enumerate() {
            let target = self.drain_target(server, (table, first), n);
            let (Some(to), Some(tablet)) = (target, self.state.tables.tablet((table, first)))
            else {
                self.state
                    .asks
                    .arm(self.state.now_us + DRAIN_REST_US, Timer::Drain(server));
                return;
            };
            let record = MigrationRecord {
                table,
                range: KeyRange::new(first, tablet.last),
                from: server,
                to,
            };
            self.begin_migration(record);
        }
    }
}
