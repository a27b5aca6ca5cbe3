//! Migrations of tablets from this server to another one, and from another one to this.
//!
//! The list of tablets alone determines the begin and the end of a migration. In between,
//! [`source`] sends the objects, and [`target`] puts them into a side log and reports.
//!
//! **Invariants** (docs/protocols.md, Moving a tablet)
//! - M1: from before its last check of the written keys the source serves nothing of the range, no
//!   reads either, until a newer list ends the migration, or the target reports that it has failed
//!   (M8), or the source itself gives up before it has sent the last message (M3). No other answer,
//!   no silence and no time unlocks it.
//! - M2: the state of a migration is that in the newest list: outgoing here, or incoming. One that
//!   is not listed is over, whatever its outcome.
//! - M3: the target reports complete only when all messages up to the last one are durably part of
//!   its own log.
//! - M4: a migration that is over and was not complete leaves nothing: its side log is taken back
//!   before an order of the list runs, before another migration and before a recovery of the range
//!   begins. Nothing is added to existing data of a range ([`crate::occupancy`]).
//! - M5: messages may be lost, repeated and late, in any order. Each is replayed as often as it
//!   arrives, until all have arrived.
//! - M6: versions that the target gives are above all that the source has given, also for removed
//!   keys.
//! - M7: completion records are sent when they are durable, with the last entries.
//! - M8: a target that has refused (`MigrationRefused`) never reports complete: no list makes it
//!   the owner.
//! - M9: the source locks only when everything sent before is durable at the target, and the
//!   coordinator has just answered; the target reports only when the coordinator has just answered.
//!   Otherwise, or if that takes long, the migration fails. So a target that cannot store, or a
//!   coordinator that is away, is detected while the source serves, or ends the lock soon.
//! - M10: a step costs time for the migrations that are under way, and these are few. Those that
//!   wait for their turn, and those that wait for the list only, cost nothing, however many they
//!   are: pings are answered by the same thread.
//!
//! **Concurrency** none: one owner, the node. Work that walks the index, waits for guards or
//! replays is a job.
//!
//! Paper: [Ousterhout15 §3.1]; differs: dirty keys instead of a scan of the log, safe versions and
//! completion records are sent too, the list or the target's failure ends a lock (docs/traps.md,
//! traps 31 and 32).

mod source;
mod target;

use crate::job::{Job, MigrationCompletion};
use crate::ranges::Ranges;
use crate::requests::{PeerCall, PeerRequest, RequestId, Token};
use crate::serve::Clients;
use duramen::Store;
use duramen_base::ids::{KeyRange, MigrationId, ServerId, TableId, TabletsVersion};
use duramen_wire::native::message::{
    CoordinatorAnswer, MigrateEntries, PeerAnswer, TabletState, Tablets, ToCoordinator,
};
use source::Source;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
pub(crate) use target::takes_over_max;
use target::{Leftover, Target};

/// A request without an answer is repeated after this time.
const PATIENCE_US: u64 = 2_000_000;
const REST_US: u64 = 50_000;
/// Interval of the checks whether the disks have caught up.
const LOOK_US: u64 = 5_000;
/// The request that checks whether the coordinator answers is repeated after this time.
const ASK_US: u64 = 500_000;
/// After the last message the target has this time to store everything and to reach the
/// coordinator, or it fails.
const SETTLE_US: u64 = 3_000_000;
/// A source that has locked, and is not told by the target within this time that the migration is
/// over, requests its end.
const LOCK_US: u64 = 5_000_000;
/// Most bytes that may be left for the lock. Before the lock the target says that it has room for
/// them.
const LOCK_BYTES: usize = 4 << 20;
/// Outgoing migrations at once; the others wait for their turn (M10).
const SOURCES_MAX: usize = 2;
/// Most incoming migrations at once. They begin in the order in which their sources do.
const TARGETS_MAX: usize = 16;

/// The error is the reason why a step failed, for people.
type Result<T> = std::result::Result<T, String>;

/// The context of migrations.
pub(crate) struct Environment<'a> {
    pub me: ServerId,
    /// The list that was read last.
    pub told: &'a Tablets,
    /// Whether that list is applied.
    pub is_made: bool,
    pub store: &'a Arc<Store>,
    pub clients: &'a Arc<Clients>,
}

/// The outputs, in this order.
#[derive(Default)]
pub(crate) struct Outputs {
    pub answers: Vec<(RequestId, PeerAnswer)>,
    pub requests: Vec<PeerRequest>,
    pub reports: Vec<(Token, ToCoordinator)>,
    /// Ranges that are not served any more (M1): published before the jobs are issued.
    pub locked: Vec<(MigrationId, TableId, KeyRange)>,
    /// Migrations whose ranges are served again (M8).
    pub unlocked: Vec<MigrationId>,
    pub jobs: Vec<Job>,
}

impl Outputs {
    fn answer(&mut self, request: RequestId, answer: PeerAnswer) {
        self.answers.push((request, answer));
    }
}

/// Names requests, and finds the migration of an answer.
#[derive(Default)]
struct Names {
    next: u64,
    calls: BTreeMap<PeerCall, (MigrationId, u64)>,
    tokens: BTreeMap<Token, MigrationId>,
}

impl Names {
    fn number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    /// The name of a report whose answer is ignored.
    fn untracked(&mut self) -> Token {
        Token::Migration(self.number())
    }

    fn token(&mut self, id: MigrationId) -> Token {
        let token = self.untracked();
        self.tokens.insert(token, id);
        token
    }

    fn call(&mut self, id: MigrationId, sequence: u64) -> PeerCall {
        let call = PeerCall::Migration(self.number());
        self.calls.insert(call, (id, sequence));
        call
    }

    fn forget(&mut self, id: MigrationId) {
        self.calls.retain(|_, (of, _)| *of != id);
        self.tokens.retain(|_, of| *of != id);
    }
}

/// The migrations of a member; see the module.
#[derive(Default)]
pub(crate) struct Migrations {
    sources: BTreeMap<MigrationId, Source>,
    targets: BTreeMap<MigrationId, Target>,
    /// Sources whose turn has not come.
    waiting_sources: BTreeSet<MigrationId>,
    /// Targets whose sources have begun, in this order, and whose own turn has not come.
    waiting_targets: VecDeque<MigrationId>,
    /// The sources and targets that have begun and have work left: only these are polled (M10).
    working_sources: BTreeSet<MigrationId>,
    working_targets: BTreeSet<MigrationId>,
    leftovers: Vec<Leftover>,
    names: Names,
    /// The list that was followed last.
    seen: TabletsVersion,
    now_us: u64,
}

impl Migrations {
    /// Whether no leftover of a migration remains (M4).
    pub fn is_settled(&self) -> bool {
        self.leftovers.is_empty()
    }

    /// Whether a part of these ranges is being taken back (M4).
    pub fn leaves_any_of(&self, ranges: &Ranges) -> bool {
        let mut leftovers = self.leftovers.iter();
        leftovers.any(|of| ranges.overlaps(of.table, of.range))
    }

    /// The source of an incoming migration has begun.
    pub fn wants(&mut self, id: MigrationId, sender: ServerId) {
        let target = self.targets.get(&id);
        let waits = target.is_some_and(|target| target.waits_for(sender));
        if waits && !self.waiting_targets.contains(&id) {
            self.waiting_targets.push_back(id);
        }
    }

    /// Incoming migrations whose sources have begun, their ranges, and how many of them may begin.
    pub fn waiting(
        &self,
    ) -> (
        usize,
        impl Iterator<Item = (MigrationId, TableId, KeyRange)>,
    ) {
        let known = |id: &MigrationId| self.targets.get(id).map(|of| (*id, of.table, of.range));
        let waiting = self.waiting_targets.iter().filter_map(known);
        let room = TARGETS_MAX.saturating_sub(self.working_targets.len());
        (room, waiting)
    }

    /// Begins a target: the list is applied, and no part of the range is here.
    pub fn begin(&mut self, id: MigrationId, store: &Arc<Store>, out: &mut Outputs) {
        if let Some(target) = self.targets.get_mut(&id) {
            target.begin(store, out);
            self.waiting_targets.retain(|waiting| *waiting != id);
            self.working_targets.insert(id);
        }
    }

    /// M2: begins the migrations of a newer list, and ends those that are not in it.
    pub fn follow(&mut self, told: &Tablets, out: &mut Outputs) {
        if told.version <= self.seen {
            return;
        }
        self.seen = told.version;
        let (mut outgoing, mut incoming) = (BTreeMap::new(), BTreeMap::new());
        for entry in &told.tablets {
            match entry.state {
                TabletState::Outgoing { migration, to, .. } => {
                    outgoing.insert(migration, (entry.table, entry.range, to));
                }
                TabletState::Incoming { migration, from } => {
                    incoming.insert(migration, (entry.table, entry.range, from));
                }
                TabletState::Normal { .. } | TabletState::Recovering => {}
            }
        }
        let sources = self.sources.keys();
        let over = sources.filter(|id| !outgoing.contains_key(id));
        for id in over.copied().collect::<Vec<_>>() {
            self.sources.remove(&id);
            self.waiting_sources.remove(&id);
            self.working_sources.remove(&id);
            self.names.forget(id);
        }
        let targets = self.targets.keys();
        let over = targets.filter(|id| !incoming.contains_key(id));
        for id in over.copied().collect::<Vec<_>>() {
            let ended = self.targets.remove(&id).and_then(|target| target.end(out));
            self.leftovers.extend(ended);
            self.waiting_targets.retain(|waiting| *waiting != id);
            self.working_targets.remove(&id);
            self.names.forget(id);
        }
        for (id, (table, range, to)) in outgoing {
            let run = self.names.number();
            self.sources.entry(id).or_insert_with(|| {
                self.waiting_sources.insert(id);
                Source::new(id, table, range, to, run)
            });
        }
        for (id, (table, range, from)) in incoming {
            let run = self.names.number();
            let new = || Target::new(id, table, range, from, run);
            self.targets.entry(id).or_insert_with(new);
        }
    }

    /// The source of a migration has sent a message.
    #[expect(clippy::too_many_arguments, reason = "a frame's fields")]
    pub fn arrived(
        &mut self,
        now_us: u64,
        request: RequestId,
        sender: ServerId,
        message: MigrateEntries,
        entries: Vec<u8>,
        env: &Environment<'_>,
        out: &mut Outputs,
    ) {
        match self.targets.get_mut(&message.migration) {
            Some(target) => {
                target.arrived(now_us, request, sender, message, entries, env, out);
            }
            // The migration is over, or this side is not told of it yet: the coordinator tells the
            // source which of both.
            None => out.answer(
                request,
                PeerAnswer::NotYet {
                    after_ms: (REST_US / 1000) as u32,
                },
            ),
        }
    }

    /// The answer of a target; `None`: it was not reached.
    pub fn answered(&mut self, now_us: u64, call: PeerCall, answer: Option<PeerAnswer>) {
        if let Some((id, sequence)) = self.names.calls.remove(&call)
            && let Some(source) = self.sources.get_mut(&id)
        {
            source.answered(now_us, sequence, answer);
        }
    }

    /// The coordinator's answer to a report; `None`: it was not reached.
    pub fn reported(&mut self, now_us: u64, token: Token, answer: Option<&CoordinatorAnswer>) {
        let Some(id) = self.names.tokens.remove(&token) else {
            return;
        };
        if let Some(target) = self.targets.get_mut(&id) {
            target.reported(now_us, answer);
        }
        if let Some(source) = self.sources.get_mut(&id) {
            source.reported(now_us, answer);
        }
    }

    /// Handles the end of a job.
    pub fn job_done(&mut self, now_us: u64, run: u64, completion: MigrationCompletion) {
        match completion {
            MigrationCompletion::Exported(result) => {
                let sources = &mut self.sources;
                let is_it = |id: &&MigrationId| sources.get(id).is_some_and(|of| of.run() == run);
                let id = self.working_sources.iter().find(is_it);
                if let Some(source) = id.and_then(|id| sources.get_mut(id)) {
                    source.exported(now_us, result);
                }
            }
            MigrationCompletion::Replayed(sequence, result) => {
                let targets = &mut self.targets;
                let is_it = |id: &&MigrationId| targets.get(id).is_some_and(|of| of.run() == run);
                let id = self.working_targets.iter().find(is_it);
                let mut leftovers = self.leftovers.iter_mut();
                if let Some(leftover) = leftovers.find(|leftover| leftover.run == run) {
                    leftover.replayed();
                } else if let Some(target) = id.and_then(|id| targets.get_mut(id)) {
                    target.replayed(now_us, sequence, result);
                }
            }
            MigrationCompletion::TakenBack => self.leftovers.retain(|leftover| leftover.run != run),
        }
    }

    /// Continues the migrations that are under way (M10), and begins sources.
    pub fn poll(&mut self, now_us: u64, env: &Environment<'_>, out: &mut Outputs) {
        self.now_us = now_us;
        let (sources, targets, names) = (&mut self.sources, &mut self.targets, &mut self.names);
        self.working_targets.retain(|id| {
            let Some(target) = targets.get_mut(id) else {
                return false;
            };
            target.poll(now_us, env, names, out);
            self.leftovers.extend(target.take_leftover());
            target.has_work()
        });
        for leftover in &mut self.leftovers {
            leftover.poll(env.clients, out);
        }
        let is_active = |id: &&MigrationId| sources.get(id).is_some_and(Source::is_active);
        let mut active = self.working_sources.iter().filter(is_active).count();
        while env.is_made
            && active < SOURCES_MAX
            && let Some(id) = self.waiting_sources.pop_first()
        {
            if let Some(source) = sources.get_mut(&id) {
                active += 1;
                source.begin(env, out);
                self.working_sources.insert(id);
            }
        }
        self.working_sources.retain(|id| {
            let Some(source) = sources.get_mut(id) else {
                return false;
            };
            source.poll(now_us, env, names, out);
            source.has_work()
        });
    }

    /// When [`poll`](Self::poll) has work without any input.
    pub fn due_us(&self) -> u64 {
        let sources = self.working_sources.iter();
        let sources = sources.filter_map(|id| self.sources.get(id));
        let targets = self.working_targets.iter();
        let targets = targets.filter_map(|id| self.targets.get(id));
        let targets = targets.map(|target| target.due_us(self.now_us));
        sources
            .map(Source::due_us)
            .chain(targets)
            .min()
            .unwrap_or(u64::MAX)
    }
}

#[cfg(test)]
mod tests;
