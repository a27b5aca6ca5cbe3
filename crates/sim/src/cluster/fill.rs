//! Bulk data that fills each server up to a part of its limit, and what a cluster with so much data
//! survives: docs/operations.md, *Stop and start everything*.
//!
//! **Invariants**
//! - B1: each object of the bulk data was acknowledged before the first fault, and no client
//!   changes it. So whenever everything is served, it is there with its last value.
//! - B2: nobody waits for memory in real time. A request that would have to wait arrives again a
//!   little later.

use super::bulk::Home;
use super::client::{TABLE, read_value, value_of};
use super::plan::{Fault, Fill, Plan, ZONES};
use super::world::{Event, World};
use duramen::internals::Position;
use duramen_base::ids::Level;
use duramen_base::random::Random;
use duramen_format::hash::KeyHasher;
use duramen_node::Route;
use duramen_wire::native::message::{Admin, AdminAnswer, CoordinatorAnswer, ServerRoom, Wait};
use std::collections::{BTreeSet, VecDeque};

const MS: u64 = 1_000;
const SECOND: u64 = 1_000_000;
/// Fills, in percent of what fits, up to the largest that the page promises.
const FILL_PERCENT: [u64; 4] = [50, 70, 80, 90];
/// Segments of a server's memory, beside what the engine needs for itself.
const FILL_SEGMENTS: u64 = 64;
const ENGINE_BYTES: u64 = 2 << 20;
/// Machines that are killed at once and come back within this time get back what they had, up to
/// this fill.
const HOME_US: u64 = 3 * SECOND;
const HOME_PERCENT: u64 = 85;
/// A server writes so many bytes per step.
const STEP_BYTES: u64 = 48 << 10;
const STEP_US: u64 = 2 * MS;
/// Bulk data that cannot be written for this long does not fit.
const STUCK_US: u64 = 20 * SECOND;
/// Passes in which servers are filled. Limits shrink while the index grows: with the first data by
/// a third, in so little memory.
const PASSES: usize = 4;
const FIRST_PERCENT: u64 = 10;
/// Bytes of an entry beside its value.
const EXTRA_BYTES: u64 = 48;
/// A log that is as long as it gets: its limit was written, and a quarter more.
const WRITTEN_PERCENT: u64 = 125;
/// Members report their sizes every 10 s, and the coordinator stores them 10 s later.
const STORED_US: u64 = 24 * SECOND;
/// The promise of the page beyond N - 1 of N servers, in percent.
const LESS_PERCENT: u64 = 5;
/// Time within which the others serve the data of a server that stays away, or say why not.
const ALONE_US: u64 = 20 * SECOND;
const LOOK_US: u64 = 20 * MS;
/// A request that would have to wait for memory arrives again after this time.
const AGAIN_US: u64 = 3 * MS;

fn key_of(object: u64) -> Vec<u8> {
    format!("bulk {object}").into_bytes()
}

/// The value that an object has after so many writes.
fn value(object: u64, times: u64) -> u64 {
    object << 8 | times & 0xff
}

impl Plan {
    /// A cluster with much data of which all servers stop, and come back in any order; nobody adds
    /// a server. Any 16 seeds in a row have each fill with each number of servers.
    pub fn full_stop(seed: u64) -> Plan {
        let mut random = Random::new(seed ^ 0x0062_756c_6b73);
        let servers = 3 + ((seed % 4 + seed / 4) % 4) as usize;
        let replicas = match servers {
            3 => 2,
            _ => 2 + random.below(2) as u32,
        };
        let mut plan = Plan::calm(seed, servers, replicas);
        plan.memory_bytes = ENGINE_BYTES + FILL_SEGMENTS * u64::from(plan.segment_bytes);
        // As a member's directory is made.
        plan.log_bytes = 2 * plan.memory_bytes;
        let segments = plan.log_bytes / u64::from(plan.segment_bytes);
        plan.frames = (segments as u32 * replicas * 9).div_ceil(8) + 16;
        if random.one_in(3) {
            plan.layout = ZONES;
        }
        plan.room_us = [200 * MS, 2 * SECOND][random.index(2)];
        plan.is_alone = true;
        plan.partition_bytes = [2 << 20, 1 << 30][random.index(2)];
        plan.tablets = servers as u32;
        plan.fill = Some(Fill {
            percent: FILL_PERCENT[(seed % 4) as usize],
            value_bytes: [400, 1_500, 4_000][random.index(3)],
            overwrites: random.one_in(2),
            missing: random.one_in(3).then(|| random.index(servers)),
            comes_home: false,
        });
        plan.draw_stop(&mut random);
        plan
    }

    /// All servers stop, at once or one after the other, told to or killed, and start again.
    fn draw_stop(&mut self, random: &mut Random) {
        let stop_us = 2 * SECOND;
        let most_us = [100 * MS, HOME_US - 200 * MS][random.index(2)];
        let starts_us = (0..self.servers).map(|_| 200 * MS + random.below(most_us));
        let starts_us: Vec<u64> = starts_us.collect();
        let coordinators = random.one_in(2);
        let (is_slow, is_clean) = (random.one_in(3), random.one_in(2));
        let step_us = if is_slow {
            [300 * MS, SECOND, 2 * SECOND][random.index(3)]
        } else {
            0
        };
        let all_us = step_us * self.servers as u64 + SECOND;
        self.load_us = stop_us + all_us + SECOND + HOME_US;
        if !is_slow && !is_clean {
            if let Some(fill) = &mut self.fill {
                fill.comes_home = fill.percent <= HOME_PERCENT;
            }
            let stop = Fault::FullStop {
                starts_us,
                coordinators,
            };
            self.faults.push((stop_us, stop));
            return;
        }
        if coordinators {
            let crash = Fault::CoordinatorCrash { down_us: 300 * MS };
            self.faults.push((stop_us, crash));
        }
        for (n, start_us) in starts_us.iter().enumerate() {
            let mut ends_us = step_us * n as u64;
            if is_clean {
                let close = Fault::Close { server: n };
                self.faults.push((stop_us + ends_us, close));
                ends_us += 10 * MS + random.below(SECOND);
            }
            let stop = Fault::Stop {
                server: n,
                down_us: all_us + start_us - ends_us,
            };
            self.faults.push((stop_us + ends_us, stop));
        }
    }
}

impl World {
    fn bulk_bytes(&self, fill: &Fill, object: u64) -> u64 {
        let seed = self.plan.seed ^ 0x6275_6c6b ^ object << 20;
        fill.value_bytes / 2 + Random::new(seed).below(fill.value_bytes)
    }

    /// Writes the bulk data, before any fault.
    pub(super) fn fill_up(&mut self) -> Result<(), String> {
        let Some(fill) = self.plan.fill else {
            return Ok(());
        };
        for pass in 0..PASSES {
            self.run(2 * self.plan.room_us + SECOND, u64::MAX, |_| false);
            let percent = if pass == 0 {
                FIRST_PERCENT
            } else {
                fill.percent
            };
            let queues = self.bulk_to_add(&fill, percent);
            if queues.iter().all(VecDeque::is_empty) {
                break;
            }
            self.write_bulk(&fill, queues)?;
        }
        if fill.overwrites {
            let objects = self.bulk.written.keys();
            let bytes = objects.map(|object| self.bulk_bytes(&fill, *object) + EXTRA_BYTES);
            let bytes: u64 = bytes.sum();
            let most = self.plan.log_bytes * self.machines.len() as u64 * WRITTEN_PERCENT / 100;
            for _ in 1..most.div_ceil(bytes.max(1)) {
                let queues = self.bulk_anew();
                self.write_bulk(&fill, queues)?;
            }
        }
        self.run(STORED_US, u64::MAX, |_| false);
        let ahead = self.waits().into_iter().filter(|wait| !wait.is_now);
        self.bulk.warnings = ahead.map(|wait| wait.reason).collect();
        self.bulk.homes = self.homes();
        let rooms = self.rooms();
        self.say(|| format!("FILLED {rooms:?}"));
        Ok(())
    }

    /// The servers' memory as `status` shows it.
    fn rooms(&mut self) -> Vec<ServerRoom> {
        self.told.clear();
        self.administer(Admin::Overview);
        let Some(CoordinatorAnswer::Admin(AdminAnswer::Overview(overview))) = self.told.pop()
        else {
            return vec![ServerRoom::default(); self.machines.len()];
        };
        let room = |n| {
            let mut shares = overview.servers.iter();
            let share = shares.find(|share| Some(share.server) == self.id_of(n));
            share.and_then(|share| share.room).unwrap_or_default()
        };
        (0..self.machines.len()).map(room).collect()
    }

    pub(super) fn waits(&mut self) -> Vec<Wait> {
        self.told.clear();
        self.administer(Admin::Waits);
        match self.told.pop() {
            Some(CoordinatorAnswer::Admin(AdminAnswer::Waits(waits))) => waits,
            _ => Vec::new(),
        }
    }

    fn homes(&mut self) -> Vec<Home> {
        let Some(status) = self.status() else {
            return Vec::new();
        };
        let tablets = status.tablets.into_iter();
        let homes = tablets.map(|tablet| {
            let mut machines = 0..self.machines.len();
            let home = machines.find(|n| self.id_of(*n) == Some(tablet.owner));
            (tablet.table, tablet.range, home)
        });
        homes.collect()
    }

    /// The server of a key of the bulk data.
    fn server_of(&self, object: u64) -> Option<usize> {
        let route = KeyHasher::new(1).route(&key_of(object));
        self.machines.iter().position(|machine| {
            let process = machine.process.as_ref();
            process.is_some_and(|process| process.view.route(TABLE, route) == Route::Serve)
        })
    }

    /// New objects, so many that each server is as full as planned.
    fn bulk_to_add(&mut self, fill: &Fill, percent: u64) -> Vec<VecDeque<u64>> {
        let rooms = self.rooms().into_iter();
        let mut left: Vec<u64> = rooms
            .map(|room| (room.limit_bytes * percent / 100).saturating_sub(room.used_bytes))
            .collect();
        let mut queues = vec![VecDeque::new(); left.len()];
        let longest = fill.value_bytes * 3 / 2 + EXTRA_BYTES;
        let until = self.bulk.next + 200_000;
        while left.iter().any(|left| *left >= longest) && self.bulk.next < until {
            let object = self.bulk.next;
            self.bulk.next += 1;
            let Some(n) = self.server_of(object).filter(|n| left[*n] >= longest) else {
                continue;
            };
            left[n] -= self.bulk_bytes(fill, object) + EXTRA_BYTES;
            queues[n].push_back(object);
        }
        queues
    }

    /// All objects, in another order.
    fn bulk_anew(&mut self) -> Vec<VecDeque<u64>> {
        let mut objects: Vec<u64> = self.bulk.written.keys().copied().collect();
        for n in (1..objects.len()).rev() {
            let other = self.random.below(n as u64 + 1) as usize;
            objects.swap(n, other);
        }
        let mut queues = vec![VecDeque::new(); self.machines.len()];
        for object in objects {
            if let Some(n) = self.server_of(object) {
                queues[n].push_back(object);
            }
        }
        queues
    }

    /// Writes these objects, as fast as the servers can, and waits until they are durable.
    fn write_bulk(&mut self, fill: &Fill, mut queues: Vec<VecDeque<u64>>) -> Result<(), String> {
        let mut positions: Vec<Option<Position>> = vec![None; queues.len()];
        let mut moved_us = self.now_us;
        while queues.iter().any(|queue| !queue.is_empty()) {
            for (n, queue) in queues.iter_mut().enumerate() {
                if let Some(position) = self.write_some(n, fill, queue)? {
                    (positions[n], moved_us) = (Some(position), self.now_us);
                }
            }
            if self.now_us > moved_us + STUCK_US || !self.violations.is_empty() {
                let rooms = self.rooms();
                return Err(format!("the bulk data does not fit: {rooms:?}"));
            }
            self.run(STEP_US, u64::MAX, |_| false);
        }
        let is_durable = |world: &mut World| {
            let mut machines = world.machines.iter().zip(&positions);
            machines.all(|(machine, position)| {
                let process = machine.process.as_ref();
                let store = process.and_then(|process| process.store.as_ref());
                let log = store.and_then(|store| store.log());
                position.as_ref().is_none_or(|position| {
                    log.is_some_and(|log| log.reached(position) >= Level::Synced)
                })
            })
        };
        if self.run(STUCK_US, STEP_US, is_durable) {
            Ok(())
        } else {
            Err("the bulk data does not become durable".to_owned())
        }
    }

    /// Writes a few objects; returns the position of the last one.
    fn write_some(
        &mut self,
        n: usize,
        fill: &Fill,
        queue: &mut VecDeque<u64>,
    ) -> Result<Option<Position>, String> {
        let process = self.machines[n].process.as_ref();
        let Some(store) = process.and_then(|process| process.store.clone()) else {
            return Err(format!("server {n} has ended"));
        };
        let mut session = store.engine().session().expect("few sessions");
        let (mut bytes, mut last) = (0, None);
        while bytes < STEP_BYTES
            && store.engine().opens_at_once()
            && let Some(object) = queue.front().copied()
        {
            let times = self.bulk.written.get(&object).copied().unwrap_or(0) + 1;
            let length = self.bulk_bytes(fill, object);
            let key = key_of(object);
            let mut guard = session.pin();
            let hash = guard.hash(&key);
            let value = value_of(value(object, times), length as usize);
            if let Err(error) = guard.write(TABLE, hash, &key, &value, None) {
                return Err(format!("server {n} does not take bulk data: {error}"));
            }
            last = Some(guard.order().take_position());
            drop(guard);
            self.bulk.written.insert(object, times);
            queue.pop_front();
            bytes += length + EXTRA_BYTES;
        }
        self.let_work(n);
        Ok(last)
    }

    /// B1: an error names what is missing.
    pub(super) fn bulk_is_there(&self) -> Result<(), String> {
        let mut missing: BTreeSet<u64> = self.bulk.written.keys().copied().collect();
        for (n, machine) in self.machines.iter().enumerate() {
            let Some(process) = machine.process.as_ref() else {
                continue;
            };
            let Some(store) = process.store.as_ref() else {
                continue;
            };
            let mut session = store.engine().session().expect("few sessions");
            for (object, times) in &self.bulk.written {
                let key = key_of(*object);
                let route = KeyHasher::new(1).route(&key);
                if process.view.route(TABLE, route) != Route::Serve {
                    continue;
                }
                let guard = session.pin();
                let hash = guard.hash(&key);
                let found = guard.read(TABLE, hash, &key);
                let found = found.map_err(|error| format!("server {n}: {error}"))?;
                let found = found.and_then(|object| read_value(object.value, false));
                let wanted = value(*object, *times);
                if found != Some(wanted) {
                    return Err(format!(
                        "server {n} has {found:?} instead of {wanted} in bulk object {object}"
                    ));
                }
                missing.remove(object);
            }
        }
        match missing.len() {
            0 => Ok(()),
            count => Err(format!(
                "{count} objects of the bulk data are served nowhere"
            )),
        }
    }

    /// All servers but one are back. They serve its data if that is promised; else `status` has
    /// warned before, and says for what the data waits.
    pub(super) fn does_without_one(&mut self) -> Result<(), String> {
        let Some(fill) = self.plan.fill else {
            return Ok(());
        };
        let Some(missing) = fill.missing else {
            return Ok(());
        };
        let servers = self.machines.len() as u64;
        let has_backups = servers - 1 > u64::from(self.plan.replicas);
        let part = 100 * (servers - 1) / servers;
        let warnings = &self.bulk.warnings;
        let is_warned = warnings.iter().any(|text| text.contains("if it crashes"));
        if has_backups && fill.percent >= part && !is_warned {
            return Err(format!(
                "status does not warn that server {missing} may not stay away: {warnings:?}"
            ));
        }
        if self.run(ALONE_US, LOOK_US, |world| world.all_served()) {
            return self.bulk_is_there();
        }
        let now = self.waits().into_iter().filter(|wait| wait.is_now);
        let now: Vec<String> = now.map(|wait| wait.reason).collect();
        if has_backups && fill.percent + LESS_PERCENT <= part {
            return Err(format!(
                "the others do not serve the data of server {missing}: {now:?}"
            ));
        }
        let why = if has_backups {
            "room "
        } else {
            "servers are up"
        };
        if now.iter().any(|text| text.contains(why)) {
            Ok(())
        } else {
            Err(format!("status does not say why data waits: {now:?}"))
        }
    }

    /// Everything is served again.
    pub(super) fn bulk_survived(&mut self) -> Result<(), String> {
        let Some(fill) = self.plan.fill else {
            return Ok(());
        };
        self.bulk_is_there()?;
        let homes = self.homes();
        if fill.comes_home && fill.missing.is_none() && homes != self.bulk.homes {
            return Err(format!(
                "tablets are elsewhere: {homes:?} instead of {:?}",
                self.bulk.homes
            ));
        }
        Ok(())
    }

    /// B2: whether this event has to wait at this server. If so, it comes again.
    pub(super) fn waits_for_memory(&mut self, n: usize, event: impl FnOnce() -> Event) -> bool {
        if self.plan.fill.is_none() {
            return false;
        }
        let process = self.machines[n].process.as_ref();
        let store = process.and_then(|process| process.store.as_ref());
        let waits = store.is_some_and(|store| !store.engine().opens_at_once());
        if waits {
            self.after(AGAIN_US, event());
            self.let_work(n); // it cleans
        }
        waits
    }

    /// The member is told to stop: it closes its log as far as the others store it in time.
    pub(super) fn close_log(&mut self, n: usize) {
        let process = self.machines[n].process.as_ref();
        if let Some(store) = process.and_then(|process| process.store.as_ref()) {
            store.engine().heads().close_all();
            self.let_work(n);
        }
    }
}
