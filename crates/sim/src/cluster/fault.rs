//! Starts faults, and ends them.
//!
//! **Invariants**
//! - F1: in a whole run, at most R - 1 disks of a cluster with R replicas lose acknowledged data:
//!   so everything that was acknowledged still exists.
//! - F2: at most R - 1 servers are off at once because of faults of single servers.

use super::coverage::Class;
use super::net::{Cut, Place, Places};
use super::plan::Fault;
use super::world::{Event, World};
use crate::disk::Fault as DiskFault;
use duramen_base::ids::{KeyRange, RouteHash};
use duramen_cluster::coordinator::Sign;
#[cfg(debug_assertions)]
use duramen_engine::FlipPart;
use duramen_wire::native::message::{Admin, CoordinatorAnswer};

/// Interval of the checks whether a drain has ended: longer than a commit of the coordinators'
/// store takes.
pub(super) const UNDRAIN_US: u64 = 100_000;

impl World {
    /// Schedules all faults of the plan.
    pub(super) fn plan_faults(&mut self) {
        for (at_us, fault) in std::mem::take(&mut self.plan.faults) {
            self.after(at_us, Event::Fault(Box::new(fault)));
        }
    }

    /// F2; also whether the server is on.
    fn may_stop(&mut self, n: usize) -> bool {
        let off = self.machines.iter().filter(|m| m.process.is_none()).count();
        let may = self.machines[n].process.is_some() && off + 1 < self.plan.replicas as usize;
        if may && off > 0 {
            self.coverage.fired(Class::CrashesAtOnce);
        }
        may
    }

    /// F1: marks the disk as ruined if that is allowed.
    fn may_ruin(&mut self, n: usize) -> bool {
        if !self.machines[n].is_ruined {
            let ruined = self.machines.iter().filter(|m| m.is_ruined).count();
            if ruined + 1 >= self.plan.replicas as usize {
                return false;
            }
            self.machines[n].is_ruined = true;
        }
        true
    }

    pub(super) fn strike(&mut self, fault: Fault) {
        if self.is_healed {
            return;
        }
        self.say(|| format!("FAULT {fault:?}"));
        match fault {
            Fault::Crash { server, down_us } => self.crash(server, down_us),
            Fault::CrashAtOutput {
                server,
                outputs,
                down_us,
            } => {
                if self.may_stop(server) {
                    self.machines[server].dies_after = Some((outputs, down_us));
                }
            }
            Fault::PowerCut {
                server,
                operations,
                within,
                down_us,
            } => self.cut_power(server, operations, within, down_us),
            Fault::LoseDisk { server, down_us } => self.lose_disk(server, down_us),
            Fault::ColdStart { down_us } => self.cold_start(down_us),
            Fault::FullStop {
                starts_us,
                coordinators,
            } => self.full_stop(&starts_us, coordinators),
            Fault::Close { server } => self.close_log(server),
            Fault::Stop { server, down_us } => self.stop_for(server, down_us),
            Fault::Pause { server, for_us } => self.pause(server, for_us, fault),
            Fault::Partition { .. }
            | Fault::OneWay { .. }
            | Fault::CutLink { .. }
            | Fault::Flapping { .. } => {
                self.cut_links(&fault);
            }
            Fault::SlowDisk { .. }
            | Fault::DiskError { .. }
            | Fault::DiskFull { .. }
            | Fault::DiskFills { .. }
            | Fault::FlashFails { .. }
            | Fault::SlowFlash { .. } => self.strike_device(fault),
            Fault::BitRot { .. } | Fault::Unreadable { .. } | Fault::Misdirected { .. } => {
                self.damage(&fault);
            }
            Fault::CoordinatorCrash { .. }
            | Fault::CoordinatorPause { .. }
            | Fault::CoordinatorBlind { .. } => self.strike_coordinator(&fault),
            Fault::StoreFailure { for_us } => {
                self.store_is_away = true;
                self.ends_after(for_us, fault);
            }
            Fault::ClientCrash { client } => self.crash_client(client),
            Fault::ClientPause { client, for_us } => {
                self.clients[client].is_off = true;
                self.ends_after(for_us, fault);
            }
            Fault::Split | Fault::Migrate | Fault::Drain { .. } => self.operate(fault),
            Fault::ClockStep { server, offset_ms } => {
                self.machines[server].wall_offset_ms = offset_ms;
                self.coverage.fired(Class::ClockStep);
            }
            Fault::DropTable { for_us } => self.drop_table(for_us),
            Fault::EmptyTable => self.empty_table(),
            Fault::MemoryFlip { server, random } => self.flip_in_memory(server, random),
        }
    }

    fn crash_client(&mut self, client: usize) {
        if self.client_crashes(client) {
            self.coverage.fired(Class::ClientCrash);
        }
    }

    fn pause(&mut self, server: usize, for_us: u64, fault: Fault) {
        let machine = &mut self.machines[server];
        if machine.process.is_some() && !machine.is_paused {
            machine.is_paused = true;
            self.coverage.fired(Class::Pause);
            self.ends_after(for_us, fault);
        }
    }

    fn crash(&mut self, server: usize, down_us: u64) {
        if self.may_stop(server) {
            self.coverage.fired(Class::Restart);
            self.stop(server, true);
            self.boot_after(server, down_us);
        }
    }

    fn stop_for(&mut self, server: usize, down_us: u64) {
        self.stop(server, true);
        self.may_stay_off(server);
        self.boot_after(server, down_us);
    }

    /// One server of a plan with bulk data may stay off after the stop.
    fn may_stay_off(&mut self, n: usize) {
        let fill = self.plan.fill;
        self.machines[n].kept_off |= fill.is_some_and(|fill| fill.missing == Some(n));
    }

    fn flip_in_memory(&mut self, server: usize, random: u64) {
        let process = self.machines[server].process.as_ref();
        let store = process.and_then(|process| process.store.as_ref());
        #[cfg(debug_assertions)]
        let is_flipped =
            store.is_some_and(|store| store.engine().flips().some(FlipPart::Any, random));
        #[cfg(not(debug_assertions))]
        let is_flipped = store.is_some() && random == 0; // never: such builds have no planted bugs
        if is_flipped {
            self.coverage.fired(Class::MemoryFlip);
        }
    }

    /// A bit of a payload may flip on its way.
    pub(super) fn flip_on_the_way(&mut self, payload: &mut [u8]) {
        let bits = 8 * payload.len() as u64;
        if bits > 0 && self.plan.flip_ppm > 0 && self.flips.below(1_000_000) < self.plan.flip_ppm {
            let bit = self.flips.below(bits);
            payload[bit as usize / 8] ^= 1 << (bit % 8);
            self.coverage.fired(Class::WireFlip);
        }
    }

    fn lose_disk(&mut self, server: usize, down_us: u64) {
        if self.may_stop(server) && self.may_ruin(server) {
            self.coverage.fired(Class::LostDisk);
            self.stop(server, false);
            self.machines[server].replace_disk(&mut self.random);
            self.boot_after(server, down_us);
        }
    }

    fn strike_device(&mut self, fault: Fault) {
        match fault {
            Fault::SlowDisk {
                server,
                extra_us,
                for_us,
            } => {
                self.machines[server].slow_us = extra_us;
                self.coverage.fired(Class::SlowDisk);
                self.ends_after(for_us, fault);
            }
            Fault::DiskError { server, operations } => {
                if self.may_stop(server) {
                    let disk = &self.machines[server].disk;
                    disk.inject(disk.operations() + operations, DiskFault::Error);
                }
            }
            Fault::DiskFull { server, for_us } => {
                self.machines[server].fill_disk(true);
                self.ends_after(for_us, fault);
            }
            Fault::DiskFills {
                server,
                bytes,
                for_us,
            } => {
                self.machines[server].leave_room(bytes);
                self.ends_after(for_us, fault);
            }
            Fault::FlashFails {
                server,
                reads,
                writes,
                for_us,
            } => {
                self.machines[server].flash.fail(reads, writes);
                self.ends_after(for_us, fault);
            }
            Fault::SlowFlash {
                server,
                most_us,
                for_us,
            } => {
                self.machines[server].flash.slow_down(most_us);
                self.ends_after(for_us, fault);
            }
            _ => unreachable!("no fault of a device"),
        }
    }

    fn strike_coordinator(&mut self, fault: &Fault) {
        let Some(n) = self.leader() else { return };
        match *fault {
            Fault::CoordinatorCrash { down_us } => {
                self.coverage.fired(Class::CoordinatorCrash);
                self.coordinator_stops(n);
                self.foreign_comes(n);
                let generation = self.coordinators[n].generation;
                self.after(down_us, Event::CoordinatorStarts(n, generation));
            }
            Fault::CoordinatorPause { for_us } => {
                self.coordinator_pauses(n);
                let fault = Fault::Pause {
                    server: self.machines.len() + n,
                    for_us,
                };
                self.ends_after(for_us, fault);
            }
            Fault::CoordinatorBlind { denied, for_us } => {
                let sign = if denied { Sign::Denied } else { Sign::Unknown };
                self.coordinators[n].blind = Some((sign, self.now_us + for_us));
            }
            _ => unreachable!("no fault of a coordinator"),
        }
    }

    fn ends_after(&mut self, for_us: u64, fault: Fault) {
        self.after(for_us, Event::Ends(Box::new(fault)));
    }

    /// Ends a fault that lasted.
    pub(super) fn relent(&mut self, fault: Fault) {
        match fault {
            Fault::Pause { server, .. } if server >= self.machines.len() => {
                let n = server - self.machines.len();
                self.coordinator_resumes(n);
            }
            Fault::Pause { server, .. } => self.resume(server),
            Fault::SlowDisk { server, .. } => self.machines[server].slow_us = 0,
            Fault::DiskFull { server, .. } | Fault::DiskFills { server, .. } => {
                self.machines[server].fill_disk(false);
            }
            Fault::FlashFails { server, .. } => self.machines[server].flash.fail(0, 0),
            Fault::SlowFlash { server, .. } => self.machines[server].flash.slow_down(0),
            Fault::StoreFailure { .. } => self.store_is_away = false,
            Fault::ClientPause { client, for_us } => {
                self.clients[client].is_off = false;
                let is_native = self.clients[client].native.is_some();
                if is_native && for_us >= u64::from(self.plan.client_lease_ms) * 1_000 {
                    self.coverage.fired(Class::LeaseEnd);
                }
                let turn = self.clients[client]
                    .native
                    .as_ref()
                    .map_or(0, |native| native.turn);
                self.after(0, Event::ClientActs(client, turn));
            }
            Fault::Drain { server, .. } => self.ends_drain(server),
            _ => {}
        }
    }

    /// If there is no leader, or the store fails before the commit, the operator repeats the
    /// command until the list shows the change.
    fn ends_drain(&mut self, n: usize) {
        let (id, status) = (self.id_of(n), self.status());
        let entry = status.map(|status| {
            let mut servers = status.servers.into_iter();
            servers.find(|entry| Some(entry.server) == id)
        });
        match entry {
            Some(Some(entry)) if !entry.draining => return,
            Some(Some(entry)) => {
                let server = entry.server;
                self.administer(Admin::Undrain { server });
            }
            _ => {}
        }
        let again = Fault::Drain {
            server: n,
            for_us: 0,
        };
        self.ends_after(UNDRAIN_US, again);
    }

    fn cut_power(&mut self, n: usize, operations: Option<u64>, within: bool, down_us: u64) {
        if !self.may_stop(n) {
            return;
        }
        let machine = &mut self.machines[n];
        let Some(operations) = operations else {
            machine.disk.cut_power();
            self.coverage.fired(Class::PowerCut);
            self.stop(n, false);
            return self.boot_after(n, down_us);
        };
        machine.cut_us = Some(down_us);
        let at = machine.disk.operations() + operations;
        let fault = if within {
            DiskFault::PowerCutWithin
        } else {
            DiskFault::PowerCut
        };
        machine.disk.inject(at, fault);
        if within {
            self.coverage.fired(Class::Torn);
        }
    }

    pub(super) fn cold_start(&mut self, down_us: u64) {
        self.coverage.fired(Class::ColdStart);
        for n in 0..self.machines.len() {
            if self.machines[n].process.is_some() {
                self.machines[n].disk.cut_power();
                self.stop(n, false);
            }
            let delay_us = down_us + self.random.below(1_500_000);
            self.boot_after(n, delay_us);
        }
        for n in 0..self.coordinators.len() {
            self.coordinator_stops(n);
            let generation = self.coordinators[n].generation;
            let delay_us = down_us + self.random.below(1_000_000);
            self.after(delay_us, Event::CoordinatorStarts(n, generation));
        }
    }

    fn full_stop(&mut self, starts_us: &[u64], coordinators: bool) {
        self.coverage.fired(Class::CrashesAtOnce);
        for (n, start_us) in starts_us.iter().enumerate() {
            if self.machines[n].process.is_some() {
                self.stop(n, true);
            }
            self.may_stay_off(n);
            self.boot_after(n, *start_us);
        }
        for n in 0..self.coordinators.len() {
            if coordinators {
                self.coordinator_stops(n);
                let generation = self.coordinators[n].generation;
                self.after(300_000, Event::CoordinatorStarts(n, generation));
            }
        }
    }

    fn cut_links(&mut self, fault: &Fault) {
        let since_us = self.now_us;
        let cut = |from: Places, to: Places, for_us: u64, class| Cut {
            from,
            to,
            since_us,
            until_us: since_us + for_us,
            period_us: None,
            class,
        };
        let of = |servers: &[usize]| Places::of(servers.iter().map(|n| Place::Server(*n)));
        let of_one = |n: usize| of(&[n]);
        match fault {
            Fault::Partition {
                servers,
                coordinator,
                clients,
                for_us,
            } => {
                let near = of(servers);
                let mut far = Places::all().without(near);
                if !coordinator {
                    far = far.without(Places::COORDINATORS);
                }
                if !clients {
                    far = far.without(Places::CLIENTS);
                }
                self.net.cut(cut(near, far, *for_us, Class::Partition));
                self.net.cut(cut(far, near, *for_us, Class::Partition));
            }
            Fault::OneWay {
                servers,
                outward,
                for_us,
            } => {
                let near = of(servers);
                // Clients get through: a zombie would give them stale answers.
                let far = Places::all().without(near).without(Places::CLIENTS);
                let (from, to) = if *outward { (near, far) } else { (far, near) };
                self.net.cut(cut(from, to, *for_us, Class::OneWay));
            }
            Fault::CutLink { from, to, for_us } => {
                let place = |of: &Option<usize>| of.map_or(Places::COORDINATORS, of_one);
                let cut = cut(place(from), place(to), *for_us, Class::Link);
                self.net.cut(cut);
            }
            Fault::Flapping {
                a,
                b,
                period_us,
                for_us,
            } => {
                let one = of(&[*a]);
                let other = b.map_or(Places::COORDINATORS, |b| of(&[b]));
                for (from, to) in [(one, other), (other, one)] {
                    self.net.cut(Cut {
                        period_us: Some(*period_us),
                        ..cut(from, to, *for_us, Class::Flapping)
                    });
                }
            }
            _ => unreachable!("no fault of links"),
        }
    }

    /// F1.
    fn damage(&mut self, fault: &Fault) {
        let (Fault::BitRot { server, .. }
        | Fault::Unreadable { server }
        | Fault::Misdirected { server, .. }) = *fault
        else {
            unreachable!("no damage");
        };
        if !self.may_ruin(server) {
            return;
        }
        let disk = self.machines[server].disk.clone();
        let names = ["wal", "frames"];
        match *fault {
            Fault::BitRot { flips, .. } => {
                for _ in 0..flips {
                    let name = names[self.random.below(2) as usize];
                    let written = disk.written(name);
                    if !written.is_empty() {
                        let page = written[self.random.below(written.len() as u64) as usize];
                        let at = page + self.random.below(4096);
                        disk.flip(name, at, self.random.below(8) as u8);
                        self.coverage.fired(Class::BitRot);
                    }
                }
            }
            Fault::Unreadable { .. } => {
                let written = disk.written("frames");
                if !written.is_empty() {
                    let page = written[self.random.below(written.len() as u64) as usize];
                    disk.make_unreadable("frames", page, 4096);
                    self.coverage.fired(Class::Unreadable);
                }
            }
            Fault::Misdirected {
                operations, lost, ..
            } => {
                let fault = if lost {
                    DiskFault::Lost
                } else {
                    DiskFault::Misdirected
                };
                disk.inject(disk.operations() + operations, fault);
                self.coverage.fired(Class::Misdirected);
            }
            _ => unreachable!("no damage"),
        }
    }

    pub(super) fn id_of(&self, n: usize) -> Option<duramen_base::ids::ServerId> {
        let process = self.machines[n].process.as_ref()?;
        let id = process.node.member().id();
        (id != duramen_base::ids::ServerId::NONE).then_some(id)
    }

    /// An operator's action while everything runs.
    fn operate(&mut self, fault: Fault) {
        let at = RouteHash(self.random.next_u64());
        let table = self.some_table();
        match fault {
            Fault::Split => {
                let told = self.told.len();
                self.administer(Admin::Split { table, at });
                if !matches!(self.told.get(told), Some(CoordinatorAnswer::Refused(_))) {
                    self.coverage.fired(Class::Split);
                }
            }
            Fault::Migrate => {
                let to = self.random.below(self.machines.len() as u64) as usize;
                let Some(to) = self.id_of(to) else { return };
                let last = RouteHash(at.0.saturating_add(1 << 61));
                let range = KeyRange::new(at, last);
                self.administer(Admin::Migrate { table, range, to });
                self.coverage.fired(Class::Migration);
            }
            Fault::Drain { server, for_us } => {
                let Some(id) = self.id_of(server) else { return };
                self.administer(Admin::Drain { server: id });
                self.ends_after(for_us, Fault::Drain { server, for_us });
            }
            _ => unreachable!("nothing that an operator does"),
        }
    }

    /// Ends all faults, as far as possible.
    pub(super) fn heal(&mut self) {
        self.is_healed = true;
        self.say(|| "HEALED".to_owned());
        self.net.heal();
        self.store_is_away = false;
        for n in 0..self.machines.len() {
            self.resume(n);
            let machine = &mut self.machines[n];
            machine.slow_us = 0;
            machine.operation_us = 0;
            machine.flash.fail(0, 0);
            machine.flash.slow_down(0);
            machine.dies_after = None;
            machine.kept_off = false;
            machine.fill_disk(false);
            machine.disk.forgive();
            if machine.process.is_none() {
                self.boot_after(n, 1_000);
            }
        }
        for n in 0..self.coordinators.len() {
            self.coordinator_resumes(n);
            if !self.coordinators[n].is_on {
                let generation = self.coordinators[n].generation;
                self.after(1_000, Event::CoordinatorStarts(n, generation));
            }
        }
    }
}
