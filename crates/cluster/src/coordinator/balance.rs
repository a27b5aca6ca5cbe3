//! The balance: tablets move by themselves until each master has its share of the data.
//!
//! The leader looks at the shares when nothing has changed for a while: no server has joined, left
//! or begun to drain, and no tablet has got another owner. If some master is far from its share, a
//! plan ([`super::even`]) is made and carried out, a few moves at a time. An operator may ask for
//! a plan at any time.
//!
//! **Invariants**
//! - N1: no move begins while a dead server's data waits, while a server is drained, or beside
//!   moves of others. The moves in progress are given up when a server crashes: its data needs the
//!   room, the disks and the network.
//! - N2: a server takes part in one move at a time. After a move it rests for as long as the move
//!   took. Of four masters, one takes part at a time.
//! - N3: the balancing ends. The moves of a plan bring all masters nearer to their shares
//!   (even::E1). The next plan uses only reports that came later. Each plan in a row waits twice as
//!   long as the one before, until another master comes. A move that fails ends its plan. Data that
//!   has moved counts at its new place, before the next reports.
//!
//! A range that moves takes its reported bytes along, so a plan that follows at once knows of it.
//! Loads and rooms are advice (coordinator::K9): with wrong ones the wrong tablets move, as safely
//! as any. A leader knows only its own plan; its successor looks anew.

use super::even::{self, Held, Master, Step};
use super::migrations::Migrations;
use super::records::MigrationRecord;
use super::{State, Timer, refused};
use duramen_base::ids::{KeyRange, ListVersion, MapVersion, MigrationId, ServerId, TableId};
use duramen_base::planted::{Bug, has_bug};
use duramen_wire::native::message::{
    AdminAnswer, BalanceStatus, CoordinatorAnswer, MigrationPhase, PlannedMove, Refusal,
};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// The weight of all hashes of all tables together. (So little that a table of some hundred
/// megabytes is balanced by its bytes.)
const HASHES_BYTES: u64 = 64 << 20;
/// A plan is made if some master is further from its share than this part of the mean. (A plan
/// leaves a quarter of that.)
const FAR_PART: u64 = 4;
/// The same part, when an operator asks for a plan. It is more than the difference that a plan
/// leaves: members count samples, and a plan that followed their noise would move the same slots
/// again and again.
const NEAR_PART: u64 = 8;
/// The means of two masters count as equal if they differ by less than this part.
const EQUAL_PART: u64 = 8;
/// One master of this many takes part in a move at a time.
const MASTERS_PER_MOVE: usize = 4;
/// Longest interval of the looks.
const LOOK_US: u64 = 1_000_000;
/// The pause before the next plan is the time of quiet, doubled at most this many times.
const DOUBLED_MAX: u32 = 6;
/// Fewest looks in the time of quiet.
const LOOKS: u64 = 10;
/// A tablet is cut only while its table has fewer than this many tablets for each master.
const TABLETS_PER_MASTER: u64 = 16;
/// Repeated requests of an operator wait for so long.
const AGAIN_MS: u32 = 500;

/// The state of the balance; see the module.
#[derive(Default)]
pub(super) struct Balance {
    is_armed: bool,
    planned: VecDeque<Step>,
    /// The moves that have begun, each with the time of its begin.
    under_way: BTreeMap<MigrationId, (Step, u64)>,
    /// N2: the servers that rest, each with the end of its rest.
    rests: BTreeMap<ServerId, u64>,
    /// The versions at the last look, and the time since which they have not changed, except by the
    /// balance's own moves.
    seen: (MapVersion, ListVersion),
    quiet_since_us: u64,
    /// N3: no plan is made without a request before this time; and the number of plans in a row.
    next_us: u64,
    in_a_row: u32,
    /// The masters at the last look. When another one comes, the pauses begin anew (N3).
    masters: BTreeSet<ServerId>,
    /// Hashes of each server, in the map of that version.
    widths: BTreeMap<ServerId, u128>,
    widths_of: MapVersion,
}

impl Balance {
    /// Arms the next look, if there is a reason for one.
    pub(super) fn arm(&mut self, state: &mut State) {
        let has_moves = self.steps().next().is_some();
        if !self.is_armed && (has_moves || state.config.balance_after_us.is_some()) {
            self.is_armed = true;
            let at_us = state.now_us + look_every_us(state);
            state.asks.arm(at_us, Timer::Balance);
        }
    }

    /// One look at the balance.
    pub(super) fn due(
        &mut self,
        state: &mut State,
        migrations: &mut Migrations,
        recovered: Option<ServerId>,
    ) {
        self.is_armed = false;
        self.look(state, migrations, recovered);
        self.arm(state);
    }

    fn look(
        &mut self,
        state: &mut State,
        migrations: &mut Migrations,
        recovered: Option<ServerId>,
    ) {
        self.note_ended_moves(state, migrations);
        let seen = (state.meta.map_version, state.meta.list_version);
        if self.seen != seen {
            (self.seen, self.quiet_since_us) = (seen, state.now_us);
        }
        let masters: BTreeSet<ServerId> = state.servers.masters().collect();
        if !masters.is_subset(&self.masters) {
            (self.in_a_row, self.next_us) = (0, 0);
        }
        self.masters = masters;
        if self.waits_for(state, migrations, recovered).is_some() && !has_bug(Bug::BalancesAlways) {
            self.planned.clear(); // N1
            return;
        }
        if self.planned.is_empty() && self.under_way.is_empty() {
            self.plan_if_uneven(state);
        }
        self.begin_moves(state, migrations);
    }

    fn plan_if_uneven(&mut self, state: &State) {
        let Some(after_us) = state.config.balance_after_us else {
            return;
        };
        let quiet_until_us = self.quiet_since_us + after_us;
        if state.now_us < quiet_until_us.max(self.next_us) {
            return;
        }
        let shares = self.shares_of_masters(state);
        if !even::is_uneven(&shares, FAR_PART) {
            self.in_a_row = 0;
            return;
        }
        let doubled = self.in_a_row.min(DOUBLED_MAX);
        self.in_a_row += 1;
        self.next_us = state.now_us + (after_us << doubled); // N3
        self.planned = self.plan(state).into();
    }

    /// The masters without their tablets.
    fn shares_of_masters(&mut self, state: &State) -> Vec<Master> {
        let version = state.meta.map_version;
        if self.widths_of != version {
            let mut widths: BTreeMap<ServerId, u128> = BTreeMap::new();
            for ((_, first), tablet) in state.tables.tablets() {
                let hashes = u128::from(tablet.last.0 - first.0) + 1;
                *widths.entry(tablet.owner).or_default() += hashes;
            }
            // Until a version is shown, it may name another state of the map (map::W1).
            let named = if state.changes.is_new() {
                MapVersion(0)
            } else {
                version
            };
            (self.widths, self.widths_of) = (widths, named);
        }
        let of_table = weight_of_table(state);
        let master = |id: ServerId| {
            let server = &state.servers[&id];
            let hashes = self.widths.get(&id).copied().unwrap_or(0);
            let room = server.room.report();
            let left = room.map(|room| room.limit_bytes.saturating_sub(room.used_bytes));
            Master {
                id,
                weight: server
                    .loads
                    .sums()
                    .0
                    .saturating_add(even::part(of_table, hashes)),
                share: 0,
                room: left.unwrap_or(u64::MAX),
                tablets: Vec::new(),
            }
        };
        let mut masters: Vec<Master> = state.servers.masters().map(master).collect();
        // The given bytes count and not the limits: with flash, a limit follows from the size of
        // the keys.
        let given = |of: &Master| Some(state.servers[&of.id].means?.given_bytes);
        let given: Option<Vec<u64>> = masters.iter().map(given).collect();
        share_out(&mut masters, given);
        masters
    }

    fn plan(&mut self, state: &State) -> Vec<Step> {
        let mut masters = self.shares_of_masters(state);
        let few = TABLETS_PER_MASTER * masters.len() as u64;
        let may_be_cut: BTreeMap<TableId, bool> = state
            .tables
            .entries()
            .map(|entry| {
                (
                    entry.table,
                    state.tables.shares.of_table(entry.table).0 < few,
                )
            })
            .collect();
        for master in &mut masters {
            let mut loads: BTreeMap<TableId, Vec<(KeyRange, u64)>> = BTreeMap::new();
            for load in state.servers[&master.id].loads.ranges() {
                let of_table = loads.entry(load.table).or_default();
                of_table.push((load.range, load.bytes));
            }
            loads
                .values_mut()
                .for_each(|of_table| of_table.sort_unstable());
            let owned = state.tables.owned(master.id);
            let held = owned.filter_map(|at| {
                let tablet = state.tables.tablet(*at)?;
                let range = KeyRange::new(at.1, tablet.last);
                let of_table = loads.get(&at.0).map_or(&[][..], Vec::as_slice);
                let from = of_table.partition_point(|(load, _)| load.last < range.first);
                let some = of_table[from..].iter();
                let some = some.take_while(|(load, _)| load.first <= range.last);
                Some(Held {
                    table: at.0,
                    range,
                    loads: some.copied().collect(),
                    may_be_cut: may_be_cut.get(&at.0).copied().unwrap_or(false),
                })
            });
            master.tablets = held.collect();
        }
        even::plan(masters, weight_of_table(state))
    }

    /// N2, N3: notes the moves that have ended.
    fn note_ended_moves(&mut self, state: &State, migrations: &Migrations) {
        let ended = self.under_way.iter();
        let ended = ended.filter(|(id, _)| !migrations.contains(**id));
        let ended: Vec<MigrationId> = ended.map(|(id, _)| *id).collect();
        for id in ended {
            let Some((step, since_us)) = self.under_way.remove(&id) else {
                continue;
            };
            let took_us = (state.now_us - since_us).max(look_every_us(state));
            for server in [step.from, step.to] {
                self.rests.insert(server, state.now_us + took_us);
            }
            let mut known = migrations.ended().rev();
            let status = known.find(|status| status.migration == id);
            if status.is_some_and(|status| status.phase == MigrationPhase::GivenUp) {
                self.planned.clear();
            }
        }
        let now_us = state.now_us;
        self.rests.retain(|_, until_us| *until_us > now_us);
    }

    /// Begins the moves whose turn has come.
    fn begin_moves(&mut self, state: &mut State, migrations: &mut Migrations) {
        let most = (state.servers.masters_count() / MASTERS_PER_MOVE).max(1);
        let mut later = VecDeque::new();
        while let Some(step) = self.planned.pop_front() {
            let is_free = |id: &ServerId| {
                let mut moves = self.under_way.values();
                let moves_now = moves.any(|(other, _)| [other.from, other.to].contains(id));
                !moves_now && !self.rests.contains_key(id)
            };
            let is_free = [step.from, step.to].iter().all(is_free);
            if self.under_way.len() >= most || !is_free {
                later.push_back(step);
                continue;
            }
            match begin_step(state, migrations, &step) {
                Some(id) => {
                    self.under_way.insert(id, (step, state.now_us));
                }
                // The cluster is not as it was when the plan was made.
                None => {
                    later.clear();
                    self.planned.clear();
                }
            }
        }
        self.planned = later;
    }

    /// N1: the reason why nothing is balanced now, for people.
    fn waits_for(
        &self,
        state: &State,
        migrations: &Migrations,
        recovered: Option<ServerId>,
    ) -> Option<String> {
        if let Some(dead) = recovered {
            return Some(format!("the data of server {dead} is being recovered"));
        }
        let drains = |id: &&ServerId| {
            state.servers[*id].record.entry.draining && state.tables.tablets_owned(**id) > 0
        };
        if let Some(drained) = state.servers.up().iter().find(drains) {
            return Some(format!("server {drained} is being drained"));
        }
        let mut others = migrations.ids();
        let has_others = others.any(|id| !self.under_way.contains_key(&id));
        has_others.then(|| "other moves are in progress".to_owned())
    }

    /// N1: a server has crashed, so the moves in progress are given up.
    pub(super) fn gives_way(&mut self, state: &mut State, migrations: &mut Migrations) {
        if has_bug(Bug::BalancesAlways) {
            return;
        }
        self.planned.clear();
        let begun: Vec<MigrationId> = self.under_way.keys().copied().collect();
        for id in begun {
            migrations.abort(state, id, "a server crashed, and its data comes first");
        }
    }

    /// An operator's plan, which begins now unless `is_dry`.
    pub(super) fn rebalance(
        &mut self,
        state: &mut State,
        migrations: &mut Migrations,
        recovered: Option<ServerId>,
        is_dry: bool,
    ) -> CoordinatorAnswer {
        self.note_ended_moves(state, migrations);
        if let Some(reason) = self.waits_for(state, migrations, recovered) {
            return refused(Refusal::NotReady {
                after_ms: AGAIN_MS,
                reason,
            });
        }
        if self.planned.is_empty() && self.under_way.is_empty() {
            let steps = match even::is_uneven(&self.shares_of_masters(state), NEAR_PART) {
                true => self.plan(state),
                false => Vec::new(),
            };
            if is_dry {
                return moves(steps.iter());
            }
            self.planned = steps.into();
        }
        let answer = moves(self.steps());
        self.begin_moves(state, migrations);
        self.arm(state);
        answer
    }

    fn steps(&self) -> impl Iterator<Item = &Step> {
        let begun = self.under_way.values().map(|(step, _)| step);
        begun.chain(&self.planned)
    }

    pub(super) fn status(
        &mut self,
        state: &State,
        migrations: &Migrations,
        recovered: Option<ServerId>,
    ) -> BalanceStatus {
        self.note_ended_moves(state, migrations);
        let shares = self.shares_of_masters(state);
        BalanceStatus {
            is_automatic: state.config.balance_after_us.is_some(),
            is_even: !even::is_uneven(&shares, FAR_PART),
            moves_left: self.steps().count() as u32,
            bytes_left: self.steps().map(|step| step.bytes).sum(),
            waits_for: self.waits_for(state, migrations, recovered),
            shares: shares
                .iter()
                .map(|of| (of.id, of.weight, of.share))
                .collect(),
        }
    }
}

/// The interval of looks, which is the shortest rest of a server, too.
fn look_every_us(state: &State) -> u64 {
    let after_us = state.config.balance_after_us;
    after_us.map_or(LOOK_US, |after_us| LOOK_US.min(after_us / LOOKS).max(1))
}

/// The weight of all hashes of one table.
fn weight_of_table(state: &State) -> u64 {
    let tables = state.tables.shares.tables().max(1) as u64;
    HASHES_BYTES / tables
}

fn begin_step(state: &mut State, migrations: &mut Migrations, step: &Step) -> Option<MigrationId> {
    let Step { table, range, .. } = *step;
    let (first, tablet) = state.tables.tablet_of(table, range.first).ok()?;
    let target = state.servers.get(&step.to)?;
    let is_as_planned = tablet.owner == step.from && tablet.last >= range.last;
    let is_willing = target.rank.is_some() && target.declined_until_us <= state.now_us;
    if !is_as_planned || !is_willing || migrations.lacks_room(state, step.to, step.bytes).is_some()
    {
        return None;
    }
    state.check_rests(table, first, &tablet).ok()?;
    state.cut(table, range.first).ok()?;
    if let Some(after) = range.last.next() {
        state.cut(table, after).ok()?;
    }
    Some(migrations.begin(
        state,
        MigrationRecord {
            table,
            range,
            from: step.from,
            to: step.to,
        },
    ))
}

/// Gives each master its share of all: by the memory and flash that they were given, if these are
/// known and differ much.
fn share_out(masters: &mut [Master], given: Option<Vec<u64>>) {
    let all: u128 = masters.iter().map(|of| u128::from(of.weight)).sum();
    let most = given.iter().flatten().copied().max().unwrap_or(0);
    let given = given.unwrap_or_else(|| vec![1; masters.len()]);
    let rounded = |one: &u64| match one.saturating_add(one / EQUAL_PART) >= most {
        true => most.max(1),
        false => *one,
    };
    let given: Vec<u64> = given.iter().map(rounded).collect();
    let sum: u128 = given.iter().map(|one| u128::from(*one)).sum();
    for (of, one) in masters.iter_mut().zip(given) {
        let share = all.saturating_mul(u128::from(one)) / sum.max(1);
        of.share = u64::try_from(share).unwrap_or(u64::MAX);
    }
}

fn moves<'s>(steps: impl Iterator<Item = &'s Step>) -> CoordinatorAnswer {
    let moves = steps.map(|step| PlannedMove {
        table: step.table,
        range: step.range,
        from: step.from,
        to: step.to,
        bytes: step.bytes,
    });
    CoordinatorAnswer::Admin(AdminAnswer::Moves(moves.collect()))
}
