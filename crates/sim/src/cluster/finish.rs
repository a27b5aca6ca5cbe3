//! The run of a plan: start, load, faults, healing and verdict.

use super::client::key_of;
use super::coverage::Coverage;
use super::fault::UNDRAIN_US;
use super::history::History;
use super::linear::{self, Verdict};
use super::machine::Machine;
use super::plan::Plan;
use super::world::{Event, World};
use duramen_backup::{Backup, ReplicaId, ReplicaInfo};
use duramen_base::ids::{RouteHash, SegmentId, ServerId};
use duramen_base::planted::plant;
use duramen_cluster::control::State;
use duramen_format::hash::KeyHasher;
use duramen_format::segment::Kind;
use duramen_node::Route;
use duramen_wire::native::message::{Admin, AdminAnswer, CoordinatorAnswer, RecoveryPhase, Status};
use std::collections::{BTreeMap, BTreeSet};
use std::panic::{AssertUnwindSafe, catch_unwind};

const SECOND: u64 = 1_000_000;
/// Longest time until a new cluster serves.
const BEGIN_US: u64 = 30 * SECOND;
/// Interval at which conditions are checked.
const LOOK_US: u64 = 20_000;
/// Time for the calls that clients have begun when the faults end.
const CALLS_US: u64 = 60 * SECOND;
/// Time for the last writes of all keys, and for the last reads.
const WRITES_US: u64 = 10 * SECOND;
const READS_US: u64 = 10 * SECOND;
/// Length of the idle phase, and the most messages that each server sends and causes in it: twice
/// the usual number.
const REST_US: u64 = SECOND;
const SENT_AT_REST_MAX: u64 = 180;
/// Time for a drain of one server.
const DRAIN_US: u64 = 20 * SECOND;
/// Longer than the interval at which members count their data, and the coordinator's pause behind
/// it.
const COUNTED_US: u64 = 15 * SECOND;
/// Time for the balance of shares, and for that.
const BALANCE_US: u64 = 120 * SECOND;
/// Number of free frames at which a backup accepts no new replicas any more.
const FRAMES_KEPT: usize = 2;
/// One run in this many ends with a drain and a restart, which take as long as the run before.
const STARTED_ANEW_ONE_IN: u64 = 4;

/// The result of a run.
#[derive(Clone, Debug)]
pub struct Outcome {
    pub seed: u64,
    /// Violations of the rules; empty if there are none.
    pub violations: Vec<String>,
    pub coverage: Coverage,
    pub history: History,
    /// Checksum over all events.
    pub trace: u64,
    pub events: u64,
    /// Simulated time, in microseconds.
    pub took_us: u64,
    /// Time from the end of all faults until the cluster was well, in microseconds.
    pub healed_in_us: u64,
}

/// Runs a plan. A panic of the code under test is a violation like any other.
pub fn run(plan: Plan) -> Outcome {
    let seed = plan.seed;
    let _bug = plan.bug.map(plant);
    let lived = catch_unwind(AssertUnwindSafe(|| judge(plan)));
    lived.unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().cloned();
        let text = text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()));
        Outcome {
            seed,
            violations: vec![format!("panic: {}", text.unwrap_or_default())],
            coverage: Coverage::default(),
            history: History::default(),
            trace: 0,
            events: 0,
            took_us: 0,
            healed_in_us: 0,
        }
    })
}

fn judge(plan: Plan) -> Outcome {
    let seed = plan.seed;
    let mut world = World::new(plan);
    let healed_in_us = world.live();
    world.empties_no_more();
    if world.violations.is_empty() {
        match linear::check(&world.history) {
            Verdict::Linearizable => {}
            Verdict::Illegal(why) => world.violated(format!("not linearizable: {why}")),
            Verdict::Undecided(why) => world.violated(format!("undecided: {why}")),
        }
    }
    for event in &world.history.events {
        world.trace.add(&[event.client, event.key, event.to_us]);
    }
    Outcome {
        seed,
        violations: world.violations,
        coverage: world.coverage,
        history: world.history,
        trace: world.trace.0,
        events: world.events,
        took_us: world.now_us,
        healed_in_us,
    }
}

impl World {
    /// Runs the whole plan. Returns the time from the last fault until the cluster was well.
    fn live(&mut self) -> u64 {
        for n in 0..self.coordinators.len() {
            self.at(n as u64 * 2_000, Event::CoordinatorStarts(n, 0));
        }
        for n in 0..self.machines.len() {
            let at_us = 5_000 + self.random.below(100_000);
            self.at(at_us, Event::Boot(n, 0));
        }
        let has_begun = self.run(BEGIN_US, LOOK_US, |world| world.all_joined());
        let tablets = self.plan.tablets;
        let is_made = has_begun
            && self.administer(Admin::CreateTable {
                name: "t".to_owned(),
                servers: tablets,
                level: None,
            })
            && self.run(BEGIN_US, LOOK_US, |world| world.all_served());
        self.make_table();
        let is_made = is_made
            && self.run(BEGIN_US, LOOK_US, |world| {
                world.tables_are_there() && world.all_served()
            });
        if !is_made {
            self.violated("the cluster does not begin".to_owned());
            return 0;
        }
        if let Err(why) = self.fill_up() {
            self.violated(why);
            return 0;
        }
        self.began_us = self.now_us;
        if self.plan.drift_ppm > 0 {
            self.coverage.fired(super::Class::Drift);
        }
        self.plan_faults();
        self.clients_begin();
        // With much data that would take most of the time.
        if self.plan.fill.is_none() {
            self.after(0, Event::Imagine);
        }
        let last_us = self.plan.load_us + SECOND / 2;
        self.run(last_us, u64::MAX, |_| false);
        if let Err(why) = self.does_without_one() {
            self.violated(why);
            return 0;
        }
        self.heal();
        let from_us = self.now_us;
        if !self.becomes_well() {
            let what = self.what_is_wrong();
            self.violated(format!(
                "not well {} s after the last fault: {what}",
                self.plan.patience_us / SECOND
            ));
            return self.now_us - from_us;
        }
        let healed_in_us = self.now_us - from_us;
        if let Err(why) = self.bulk_survived().and_then(|()| self.end()) {
            self.violated(why);
        }
        healed_in_us
    }

    /// Whether the cluster is well within the plan's patience. If the disks are full of replicas of
    /// dead servers, no server has room to recover their data. Then operators add as many servers
    /// as a segment has replicas, in any racks, and that must be enough.
    fn becomes_well(&mut self) -> bool {
        let patience_us = self.plan.patience_us;
        if self.run(patience_us, LOOK_US, |world| world.is_well()) {
            return true;
        }
        if self.plan.is_alone || self.has_room() {
            return false;
        }
        for _ in 0..self.plan.replicas {
            self.add_machine();
        }
        self.run(patience_us, LOOK_US, |world| world.is_well())
    }

    /// Whether each master finds enough backups with room for new segments.
    fn has_room(&self) -> bool {
        let is_roomy = |machine: &&Machine| {
            let backup = machine.process.as_ref().map(|process| &process.backup);
            backup.is_some_and(|backup| {
                let logs = backup.logs().into_iter();
                let kept: usize = logs.map(|log| backup.replicas_of(log).len()).sum();
                kept + FRAMES_KEPT < self.plan.frames as usize
            })
        };
        self.machines.iter().filter(is_roomy).count() > self.plan.replicas as usize
    }

    /// The cluster must work after all faults: this finds endless retries, data that does not fit,
    /// and stuck states. Some runs also drain one server, and then restart the cluster.
    fn end(&mut self) -> Result<(), String> {
        if !self.are_done(CALLS_US) {
            return Err("a client's call does not end".to_owned());
        }
        self.last_writes();
        if !self.are_done(WRITES_US) {
            return Err("not every key can be written".to_owned());
        }
        self.last_reads();
        if !self.are_done(READS_US) {
            return Err("not every key can be read".to_owned());
        }
        self.comes_to_balance()?;
        self.rests()?;
        if !self.plan.seed.is_multiple_of(STARTED_ANEW_ONE_IN) {
            return Ok(());
        }
        // Where nobody adds a server, there may be no room for the tablets of a drained one.
        if !self.plan.is_alone {
            self.drain_one()?;
        }
        self.cold_start(SECOND);
        if !self.becomes_well() {
            let what = self.what_is_wrong();
            return Err(format!("not well after a last cold start: {what}"));
        }
        self.last_reads();
        if !self.are_done(READS_US) {
            return Err("not every key can be read after a last cold start".to_owned());
        }
        self.bulk_is_there()
    }

    /// Where the coordinators balance, moves end: for longer than members need to count their data
    /// nothing moves (balance::N3). Without reports of room the shares are equal then.
    fn comes_to_balance(&mut self) -> Result<(), String> {
        if self.plan.balance_after_us.is_none() {
            return Ok(());
        }
        let (mut last, mut since_us) = (None, self.now_us);
        let stays = |world: &mut World| {
            let Some(status) = world.status() else {
                return false;
            };
            let ended = status.migrations_ended.last().map(|m| m.migration);
            if !status.migrations.is_empty() || ended != last {
                (last, since_us) = (ended, world.now_us);
            }
            world.now_us >= since_us + COUNTED_US
        };
        if !self.run(BALANCE_US, SECOND, stays) {
            let ended = self.status().map(|status| status.migrations_ended);
            return Err(format!("tablets move without end: {ended:?}"));
        }
        // With reports of room, some server may be full; and after moves that failed the next plan
        // may be due later.
        if self.plan.room_us > 0 {
            return Ok(());
        }
        self.told.clear();
        self.administer(Admin::Balance);
        match self.told.pop() {
            Some(CoordinatorAnswer::Admin(AdminAnswer::Balance(balance))) if balance.is_even => {
                Ok(())
            }
            other => Err(format!("shares stay uneven: {other:?}")),
        }
    }

    /// Without client requests, only pings, leases and occasional reads of the map are sent. This
    /// finds requests that are repeated for ever.
    fn rests(&mut self) -> Result<(), String> {
        let before = self.sent;
        self.run(REST_US, u64::MAX, |_| false);
        let (sent, machines) = (self.sent - before, self.machines.len() as u64);
        if sent > machines * SENT_AT_REST_MAX {
            return Err(format!(
                "{sent} messages within {REST_US} us, of {machines} servers that have nothing to do"
            ));
        }
        Ok(())
    }

    fn are_done(&mut self, within_us: u64) -> bool {
        self.run(within_us, LOOK_US, |world| {
            world.clients.iter().all(|c| c.is_done())
        })
    }

    /// Drains one server: all its tablets move to the others, and a drain that begins must end.
    fn drain_one(&mut self) -> Result<(), String> {
        // Earlier drains may last until now, and leave no target for this one. Then the operator's
        // retry that ends one must see that it has ended, or it would end this one.
        let none_drains = |world: &mut World| {
            let status = world.status();
            status.is_some_and(|status| !status.servers.iter().any(|entry| entry.draining))
        };
        if !self.run(DRAIN_US, LOOK_US, none_drains) {
            return Err("an earlier drain is not taken back".to_owned());
        }
        self.run(2 * UNDRAIN_US, u64::MAX, |_| false);
        let n = self.random.below(self.machines.len() as u64) as usize;
        let Some(server) = self.id_of(n) else {
            return Err(format!("server {n} is no member"));
        };
        if !self.administer(Admin::Drain { server }) {
            return Err(format!("a drain of {server} is not answered"));
        }
        let is_empty = |world: &mut World| {
            let status = world.status();
            let has_tablets = |status: Status| status.tablets.iter().any(|t| t.owner == server);
            status.is_some_and(|status| !has_tablets(status))
        };
        if !self.run(DRAIN_US, LOOK_US, is_empty) {
            let status = self.status().map(|status| status.migrations);
            let waits = (0..self.machines.len()).map(|n| (self.id_of(n), self.waits_for(n)));
            let waits: Vec<_> = waits.collect();
            return Err(format!(
                "a drain of {server} does not end: {status:?}; {waits:?}"
            ));
        }
        self.administer(Admin::Undrain { server });
        Ok(())
    }

    fn all_joined(&mut self) -> bool {
        let count = self.machines.len();
        self.machines.iter().all(|machine| {
            let process = machine.process.as_ref();
            process.is_some_and(|process| {
                process.store.is_some() && process.node.member().members().up().count() == count
            })
        })
    }

    /// Whether each hash is served by exactly one server that may read.
    pub(super) fn all_served(&mut self) -> bool {
        let now_us = self.now_us;
        let serves = |machine: &Machine, table, hash| {
            machine.process.as_ref().is_some_and(|process| {
                process.view.route(table, hash) == Route::Serve
                    && process.node.read_until().may_read(machine.clock(now_us))
            })
        };
        let keys = (0..self.plan.keys).map(|key| KeyHasher::new(1).route(&key_of(key)));
        let hashes = keys.chain((0..32).map(|n| RouteHash(n << 59 | 77)));
        let hashes: Vec<RouteHash> = hashes.collect();
        self.tables.present().all(|table| {
            hashes.iter().all(|hash| {
                let machines = self.machines.iter();
                let servers = machines.filter(|machine| serves(machine, table, *hash));
                servers.count() == 1
            })
        })
    }

    pub(super) fn status(&mut self) -> Option<Status> {
        self.told.clear();
        if !self.administer(Admin::Status) {
            return None;
        }
        match self.told.pop() {
            Some(CoordinatorAnswer::Admin(AdminAnswer::Status(status))) => Some(*status),
            _ => None,
        }
    }

    fn is_well(&mut self) -> bool {
        self.wrong().is_none()
    }

    fn what_is_wrong(&mut self) -> String {
        self.wrong().unwrap_or_default()
    }

    /// The first violated condition at the end of the run; `None`: all hold.
    fn wrong(&mut self) -> Option<String> {
        if !self.all_joined() {
            return Some("not everybody is a member".to_owned());
        }
        if !self.tables_are_there() {
            return Some("a table is not dropped, or not made".to_owned());
        }
        if !self.all_served() {
            let servers: Vec<String> = (0..self.machines.len()).map(|n| self.who(n)).collect();
            let recoveries = self.status().map(|status| status.recoveries);
            return Some(format!(
                "not everything is served: {recoveries:?}; {}",
                servers.join("; ")
            ));
        }
        let Some(status) = self.status() else {
            return Some("no coordinator leads".to_owned());
        };
        let mut recoveries = status.recoveries.iter();
        if let Some(recovery) = recoveries.find(|r| r.phase != RecoveryPhase::Done) {
            return Some(format!("{recovery:?}"));
        }
        let mut migrations = status.migrations.iter();
        if let Some(migration) = migrations.find(|m| m.reason.is_none()) {
            return Some(format!("{migration:?}"));
        }
        let members: BTreeSet<ServerId> = status.servers.iter().map(|s| s.server).collect();
        if members.len() != self.machines.len() {
            return Some(format!("{} servers are listed", members.len()));
        }
        (0..self.machines.len())
            .find_map(|n| self.too_few_replicas(n))
            .or_else(|| self.leaked(&members))
    }

    /// The first violation of: each segment that a log lists has R replicas, on distinct servers
    /// other than its own.
    pub(super) fn too_few_replicas(&self, n: usize) -> Option<String> {
        let log = self.id_of(n)?;
        let wanted = self.plan.replicas as usize;
        let others = self.machines.iter().enumerate().filter(|(at, _)| *at != n);
        let backups: Vec<&Backup> = others
            .filter_map(|(_, machine)| machine.process.as_ref())
            .map(|process| &*process.backup)
            .collect();
        let mut replicas: BTreeMap<SegmentId, Vec<(&Backup, ReplicaInfo)>> = BTreeMap::new();
        for backup in backups {
            for info in backup.replicas_of(log.number()) {
                replicas
                    .entry(info.segment)
                    .or_default()
                    .push((backup, info));
            }
        }
        let is_control = |of: &&Vec<(&Backup, ReplicaInfo)>| {
            of.iter()
                .any(|(_, info)| info.kind == Kind::Control && info.length > 0)
        };
        let Some(control) = replicas.values().rev().find(is_control) else {
            return Some(format!("{log} has no control segment"));
        };
        if control.len() < wanted {
            return Some(format!(
                "{log}: {} replicas of its control segment",
                control.len()
            ));
        }
        let longest = control.iter().max_by_key(|(_, info)| info.length)?;
        let mut bytes = vec![0; self.plan.segment_bytes as usize];
        let id = ReplicaId {
            log: log.number(),
            segment: longest.1.segment,
        };
        let Ok(info) = longest.0.read_of(id, &mut bytes) else {
            return None; // other checks find damage
        };
        let Ok(state) = State::replay(id.segment, &bytes[..info.length as usize]) else {
            return Some(format!("{log}: its control segment makes no sense"));
        };
        state.segments.iter().find_map(|(segment, listed)| {
            let good = |info: &ReplicaInfo| match listed.closed {
                Some(certificate) => info.closed && info.certificate() == certificate,
                None => info.closed || info.epoch >= listed.epoch,
            };
            let of = replicas.get(segment).map_or(&[][..], |of| &of[..]);
            let count = of.iter().filter(|(_, info)| good(info)).count();
            (count < wanted).then(|| {
                let found: Vec<&ReplicaInfo> = of.iter().map(|(_, info)| info).collect();
                let waits = self.waits_for(n);
                format!("{log}: {count} replicas of {segment}: {listed:?}: {found:?}; {waits}")
            })
        })
    }

    fn who(&self, n: usize) -> String {
        let machine = &self.machines[n];
        let Some(process) = &machine.process else {
            return format!("server {n} is off");
        };
        let reads = process
            .node
            .read_until()
            .may_read(machine.clock(self.now_us));
        let serves = (0..64u64).filter(|at| {
            process
                .view
                .route(super::client::TABLE, RouteHash(at << 58 | 77))
                == Route::Serve
        });
        let id = process.node.member().id();
        let waits = self.waits_for(n);
        let backup = &process.backup;
        let kept = backup.logs().into_iter().map(|log| {
            let count = backup.replicas_of(log).len();
            format!("{count} of {}", ServerId::from_number(log))
        });
        let kept: Vec<String> = kept.collect();
        format!(
            "server {n} = {id} serves {} of 64, reads {reads}, keeps {} of {} frames, {waits}",
            serves.count(),
            kept.join(" + "),
            self.plan.frames,
        )
    }

    pub(super) fn waits_for(&self, n: usize) -> String {
        let process = self.machines[n].process.as_ref();
        let store = process.and_then(|process| process.store.as_ref());
        let log = store.and_then(|store| store.log());
        log.map(duramen::internals::LogWriter::describe)
            .unwrap_or_default()
    }

    /// A server that keeps replicas of a log that no server needs any more.
    fn leaked(&self, members: &BTreeSet<ServerId>) -> Option<String> {
        let machines = self.machines.iter().enumerate();
        for (n, machine) in machines {
            let backup = &machine.process.as_ref()?.backup;
            let strange = |log: &u64| !members.contains(&ServerId::from_number(*log));
            if let Some(log) = backup.logs().into_iter().find(strange) {
                let log = ServerId::from_number(log);
                return Some(format!("server {n} keeps replicas of {log}, which is gone"));
            }
        }
        None
    }
}
