//! Members, and the effects of a crash.

use super::records::{Key, ServerRecord};
use super::{Coordinator, Server, State, Timer, refused};
use crate::speed::{counted, usual};
use duramen_base::ids::{KeyRange, RouteHash, SegmentId, ServerId, TableId, TabletsVersion};
use duramen_base::planted::{Bug, has_bug};
use duramen_wire::native::message::{
    Addresses, CoordinatorAnswer, Enlist, Refusal, ServerChange, ServerEntry, ServerStatus,
    TabletRoute,
};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Index;

/// The members, with their state that is not stored.
#[derive(Default)]
pub(super) struct Servers {
    all: BTreeMap<ServerId, Server>,
    /// The members, by the nonces of their enlistments.
    nonces: BTreeMap<u64, ServerId>,
    /// UP members, in no order.
    up: Vec<ServerId>,
    /// The UP members, by their disks.
    disks: BTreeMap<u64, ServerId>,
    /// UP masters that may get tablets, by number of tablets.
    masters: BTreeSet<(usize, ServerId)>,
}

impl Index<&ServerId> for Servers {
    type Output = Server;

    fn index(&self, id: &ServerId) -> &Server {
        &self.all[id]
    }
}

impl Servers {
    pub(super) fn get(&self, id: &ServerId) -> Option<&Server> {
        self.all.get(id)
    }

    pub(super) fn get_mut(&mut self, id: &ServerId) -> Option<&mut Server> {
        self.all.get_mut(id)
    }

    pub(super) fn contains(&self, id: &ServerId) -> bool {
        self.all.contains_key(id)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&ServerId, &Server)> {
        self.all.iter()
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = (&ServerId, &mut Server)> {
        self.all.iter_mut()
    }

    pub(super) fn keys(&self) -> impl Iterator<Item = &ServerId> {
        self.all.keys()
    }

    pub(super) fn values(&self) -> impl Iterator<Item = &Server> {
        self.all.values()
    }

    pub(super) fn values_mut(&mut self) -> impl Iterator<Item = &mut Server> {
        self.all.values_mut()
    }

    /// UP members, in no order.
    pub(super) fn up(&self) -> &[ServerId] {
        &self.up
    }

    pub(super) fn is_up(&self, server: ServerId) -> bool {
        self.all.get(&server).is_some_and(Server::is_up)
    }

    /// The server that enlisted with this nonce.
    pub(super) fn of_nonce(&self, nonce: u64) -> Option<ServerId> {
        self.nonces.get(&nonce).copied()
    }

    /// The UP server with this disk.
    pub(super) fn with_disk(&self, disk: u64) -> Option<ServerId> {
        self.disks.get(&disk).copied()
    }

    /// UP masters that may get tablets, those that own the fewest first.
    pub(super) fn masters(&self) -> impl Iterator<Item = ServerId> {
        self.masters.iter().map(|(_, id)| *id)
    }

    /// The number of [`masters`](Self::masters).
    pub(super) fn masters_count(&self) -> usize {
        self.masters.len()
    }

    /// A life with the same disk that ended before it had stored its id. Only the server that
    /// enlists now is at its address, and it would also answer the check of that life.
    pub(super) fn unstored_life(&self, enlist: &Enlist) -> Option<ServerId> {
        let same = self.disks.get(&enlist.disk).copied()?;
        let entry = &self.all[&same].record.entry;
        let is_its = Some(same) != enlist.replaces
            && entry.addresses.native == enlist.addresses.native
            && self.is_up(same);
        is_its.then_some(same)
    }

    /// The UP backups for a log of this master.
    pub(super) fn backups_of(&self, master: ServerId) -> Vec<ServerId> {
        let is_backup = |id: &ServerId| self.all[id].record.entry.roles.backup;
        let others = self.up.iter().copied().filter(|id| *id != master);
        others.filter(is_backup).collect()
    }

    /// Approximate bytes of a range, as its owner reports them.
    pub(super) fn bytes_in(&self, table: TableId, range: KeyRange, owner: ServerId) -> u64 {
        let loads = self.all.get(&owner).map_or(&[][..], |s| s.loads.ranges());
        let of_table = loads.iter().filter(|load| load.table == table);
        let parts = of_table.filter_map(|load| {
            let common = load.range.intersection(&range)?;
            let width = |range: &KeyRange| u128::from(range.last.0 - range.first.0) + 1;
            Some((u128::from(load.bytes) * width(&common) / width(&load.range)) as u64)
        });
        parts.fold(0, u64::saturating_add)
    }

    /// The addresses of all servers that these routes name.
    pub(super) fn addresses(&self, tablets: &[TabletRoute]) -> Vec<(ServerId, Addresses)> {
        let named = tablets
            .iter()
            .flat_map(|route| [Some(route.owner), route.moving_to]);
        let mut owners: Vec<ServerId> = named.flatten().collect();
        owners.sort_unstable();
        owners.dedup();
        let with = owners.into_iter().filter_map(|id| {
            let entry = &self.all.get(&id)?.record.entry;
            Some((id, entry.addresses.clone()))
        });
        with.collect()
    }

    /// Whether a server is UP and has not confirmed a list of this version.
    pub(super) fn lacks(&self, id: ServerId, version: TabletsVersion) -> bool {
        let server = self.all.get(&id).filter(|server| server.is_up());
        server.is_some_and(|server| server.push.lacks(version))
    }

    /// The speeds by which the disks of all servers that are UP count, in bytes per second
    /// (speed::B2, speed::B3). Empty: none is known.
    pub(super) fn speeds(&self) -> BTreeMap<ServerId, u64> {
        let speed = |id: &ServerId| self.all[id].record.entry.read_bytes_per_s;
        let Some(usual) = usual(self.up.iter().map(speed)) else {
            return BTreeMap::new();
        };
        let up = self.up.iter();
        up.map(|id| (*id, counted(speed(id), usual))).collect()
    }

    /// A recovery master has one partition less. It gets no other one for `rest_us`.
    pub(super) fn release(&mut self, now_us: u64, id: ServerId, rest_us: u64) {
        if let Some(server) = self.all.get_mut(&id) {
            server.recovering = server.recovering.saturating_sub(1);
            server.busy_until_us = server.busy_until_us.max(now_us + rest_us);
            if server.recovering == 0 {
                server.room.rests(now_us);
            }
        }
    }

    /// Adds a server that is stored, or about to be.
    fn add(&mut self, now_us: u64, id: ServerId, record: ServerRecord) {
        self.nonces.insert(record.nonce, id);
        if record.entry.status == ServerStatus::Up {
            self.up.push(id);
            self.disks.insert(record.entry.disk, id);
        }
        self.all.insert(id, Server::new(now_us, record));
    }

    /// A server is crashed, if it is UP. Returns its record.
    fn crash(&mut self, dead: ServerId) -> Option<ServerRecord> {
        let server = self.all.get_mut(&dead).filter(|server| server.is_up())?;
        server.record.entry.status = ServerStatus::Crashed;
        server.check = None;
        let record = server.record.clone();
        self.up.retain(|id| *id != dead);
        self.disks.remove(&record.entry.disk);
        Some(record)
    }

    /// Removes a crashed server.
    ///
    /// # Panics
    /// If it is UP (coordinator::K6).
    fn remove(&mut self, dead: ServerId) -> Option<Server> {
        let server = self.all.remove(&dead)?;
        assert!(!server.is_up(), "K6: server {dead} is UP");
        self.nonces.remove(&server.record.nonce);
        Some(server)
    }

    /// Updates the order of [`masters`](Self::masters) after a possible change of this server,
    /// which owns so many tablets.
    fn rank(&mut self, id: ServerId, owned: usize) {
        let Some(server) = self.all.get_mut(&id) else {
            return;
        };
        let entry = &server.record.entry;
        let may = server.is_up() && entry.roles.master && !entry.draining;
        let rank = may.then_some(owned);
        let before = std::mem::replace(&mut server.rank, rank);
        if before == rank {
            return;
        }
        if let Some(before) = before {
            self.masters.remove(&(before, id));
        }
        if let Some(rank) = rank {
            self.masters.insert((rank, id));
        }
    }
}

impl State {
    /// Updates the order of masters after a possible change of this server.
    pub(super) fn rank(&mut self, id: ServerId) {
        let owned = self.tables.tablets_owned(id);
        self.servers.rank(id, owned);
    }

    /// Adds a server that is stored, or about to be.
    pub(super) fn adopt(&mut self, id: ServerId, record: ServerRecord) {
        self.servers.add(self.now_us, id, record);
        self.rank(id);
    }

    pub(super) fn add_server(&mut self, enlist: &Enlist) -> ServerId {
        let id = self.lives.next_id(enlist.replaces);
        self.lives.give(id);
        self.records.put(Key::Slot(id.slot), &id.generation);
        let record = ServerRecord {
            entry: ServerEntry {
                server: id,
                addresses: enlist.addresses.clone(),
                rack: enlist.rack.clone(),
                roles: enlist.roles,
                disk: enlist.disk,
                read_bytes_per_s: enlist.read_bytes_per_s,
                status: ServerStatus::Up,
                draining: false,
                unused: None,
            },
            nonce: enlist.nonce,
            min_open: SegmentId::NONE,
        };
        self.records.put(Key::Server(id), &record);
        self.change_list(ServerChange::Added(record.entry.clone()));
        self.adopt(id, record);
        if enlist.replaces.is_some()
            && let Some(server) = self.servers.get_mut(&id)
        {
            server.room.returns(self.now_us);
        }
        self.affect(id);
        id
    }

    /// Changes a member's entry in the list.
    pub(super) fn change_member(&mut self, id: ServerId, change: impl FnOnce(&mut ServerEntry)) {
        if let Some(server) = self.servers.get_mut(&id) {
            change(&mut server.record.entry);
            let record = server.record.clone();
            self.records.put(Key::Server(id), &record);
            self.change_list(ServerChange::Changed(record.entry));
            self.rank(id);
        }
    }

    /// coordinator::K3: recorded only for a server that is UP. The server's recovery reads the
    /// record later.
    pub(super) fn control_head(
        &mut self,
        server: ServerId,
        min_open: SegmentId,
    ) -> CoordinatorAnswer {
        let Some(member) = self.servers.get_mut(&server) else {
            return refused(Refusal::NotUp(server));
        };
        if member.record.min_open < min_open {
            member.record.min_open = min_open;
            let record = member.record.clone();
            self.records.put(Key::Server(server), &record);
        }
        CoordinatorAnswer::Noted
    }

    /// UP masters that may get dead servers' tablets: none whose reports would not arrive here
    /// (recovery::Y7), and drained ones only if there are no others.
    pub(super) fn recovery_masters(&self) -> impl Iterator<Item = ServerId> {
        let is_heard = move |id: &ServerId| self.unheard_us(*id).is_none();
        let has_others = self.servers.masters().any(|id| is_heard(&id));
        let drained = self.servers.iter().filter(|(_, server)| {
            let entry = &server.record.entry;
            server.is_up() && entry.roles.master && entry.draining
        });
        let drained = drained.filter(move |_| !has_others);
        let all = self.servers.masters().chain(drained.map(|(id, _)| *id));
        all.filter(is_heard)
    }

    /// Continues the drains.
    pub(super) fn drain_all(&mut self) {
        let draining: Vec<ServerId> = self
            .servers
            .up()
            .iter()
            .copied()
            .filter(|id| self.servers[id].record.entry.draining)
            .collect();
        for id in draining {
            self.asks.arm(self.now_us, Timer::Drain(id));
        }
    }

    /// A server is crashed, if it is UP. Returns whether it was.
    fn crash(&mut self, dead: ServerId) -> bool {
        let Some(record) = self.servers.crash(dead) else {
            return false;
        };
        self.records.put(Key::Server(dead), &record);
        self.change_list(ServerChange::Crashed(dead));
        self.rank(dead);
        self.touch_map();
        let owned: Vec<(TableId, RouteHash)> = self.tables.owned(dead).copied().collect();
        for (table, first) in owned {
            if let Some(last) = self.tables.tablet((table, first)).map(|tablet| tablet.last) {
                self.change_map(table, KeyRange::new(first, last)); // it is not served any more
            }
        }
        self.tables.shares.forget(dead);
        true
    }

    /// Removes a crashed server: its log is not needed any more. Returns whether it was in the
    /// list.
    ///
    /// # Panics
    /// If it still owns tablets (coordinator::K6).
    pub(super) fn remove(&mut self, dead: ServerId) -> bool {
        self.tables.forget_owner(dead);
        let Some(server) = self.servers.remove(dead) else {
            return false;
        };
        self.records.delete(Key::Server(dead));
        if server.loads.is_stored() {
            self.records.delete(Key::Loads(dead));
        }
        self.change_list(ServerChange::Removed(dead));
        true
    }
}

impl Coordinator {
    /// Declares a server crashed, and begins the consequences. Does nothing if it is crashed
    /// already.
    pub(super) fn crash(&mut self, dead: ServerId) {
        if !self.state.crash(dead) {
            return;
        }
        let (state, migrations) = (&mut self.state, &mut self.migrations);
        migrations.abort_of(state, dead);
        self.balance.gives_way(state, migrations);
        self.recoveries.forget(state, dead);
        self.recoveries.recover(state, dead);
        let early = has_bug(Bug::RemovedTooEarly);
        if early && self.recoveries.contains(dead) {
            state.change_list(ServerChange::Removed(dead));
        }
        state.drain_all();
    }
}
