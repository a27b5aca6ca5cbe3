//! Members: enlisting, and the effects of a crash.

use super::loads::Loads;
use super::older::Newer;
use super::records::{Key, ServerRecord};
use super::rooms::Room;
use super::unheard::Heard;
use super::{Coordinator, Push, ReplyId, Server, Timer, refused};
use duramen_base::ids::{SegmentId, ServerId};
use duramen_base::planted::{Bug, has_bug};
use duramen_wire::native::message::{
    CoordinatorAnswer, Enlist, Enlisted, Refusal, ServerChange, ServerEntry, ServerStatus,
};
use std::collections::{BTreeMap, BTreeSet};

/// Delay before a server that enlists with the disk of another one asks again: the other one is
/// being checked.
const DISK_CHECK_MS: u32 = 300;
/// A server counts as alive if it passes a check this long after another one came with its disk.
const DOUBT_US: u64 = 2_000_000;
/// Most servers stored that claim the end of one life. Others wait until one of these stops asking.
const DOUBTS_MAX: usize = 16;

/// The claim of a server that enlists that a life is over.
pub(super) struct Doubt {
    nonce: u64,
    since_us: u64,
    asked_us: u64,
}

/// Since when the server with this nonce has claimed it.
fn doubted_since(doubts: &mut Vec<Doubt>, nonce: u64, now_us: u64) -> u64 {
    if let Some(known) = doubts.iter_mut().find(|doubt| doubt.nonce == nonce) {
        known.asked_us = now_us;
        return known.since_us;
    }
    if doubts.len() >= DOUBTS_MAX {
        doubts.retain(|doubt| doubt.asked_us + DOUBT_US > now_us);
    }
    if doubts.len() < DOUBTS_MAX {
        doubts.push(Doubt {
            nonce,
            since_us: now_us,
            asked_us: now_us,
        });
    }
    now_us
}

/// The members, with their state that is not stored.
pub(super) struct Servers {
    pub all: BTreeMap<ServerId, Server>,
    pub slots: BTreeMap<u32, u32>,
    pub nonces: BTreeMap<u64, ServerId>,
    /// UP members, in no order.
    pub up: Vec<ServerId>,
    /// Their disks.
    pub disks: BTreeMap<u64, ServerId>,
    /// UP masters that may get tablets, by number of tablets ([`rank`](Coordinator::rank)).
    pub masters: BTreeSet<(usize, ServerId)>,
    pub newer: Newer,
    /// When a member last asked for the map.
    pub map_asked_us: Option<u64>,
}

impl Coordinator {
    /// A server enlists. The answer is sent when the change is stored, by
    /// [`welcome`](Self::welcome).
    pub(super) fn enlist(
        &mut self,
        reply: ReplyId,
        sender: ServerId,
        enlist: Enlist,
    ) -> Option<CoordinatorAnswer> {
        let known = self.state.servers.nonces.get(&enlist.nonce).copied();
        if let Some(known) = known
            && !has_bug(Bug::EnlistsTwice)
        {
            if !self.is_up(known) {
                return Some(refused(Refusal::NotUp(known)));
            }
            self.state.records.enlist(reply, known);
            return None;
        }
        if let Err(refusal) = self.check_enlist(&enlist) {
            let (address, why) = (&enlist.addresses.native, refusal.to_string());
            self.turned_away.note(self.state.now_us, address, &why);
            return Some(refused(refusal));
        }
        let next = self.next_id(&enlist);
        if !self.is_reached(reply, sender, &enlist, next) {
            return None; // callers::I1
        }
        let mut replaced = Vec::from_iter(enlist.replaces.filter(|id| self.is_up(*id)));
        replaced.extend(self.unstored_life(&enlist));
        let is_late = has_bug(Bug::AddedBeforeCrashed);
        if !is_late {
            replaced.iter().for_each(|old| self.crash(*old)); // coordinator::K2
        }
        let id = self.add_server(&enlist);
        if is_late {
            replaced.iter().for_each(|old| self.crash(*old));
        }
        self.state.records.enlist(reply, id);
        self.ask_new_backup(id);
        self.home_is_back(id);
        self.give_partitions();
        None
    }

    fn check_enlist(&mut self, enlist: &Enlist) -> Result<(), Refusal> {
        let bad = |why: String| Err(Refusal::Invalid(why));
        if enlist.cluster != self.state.meta.cluster {
            return Err(Refusal::WrongCluster {
                expected: self.state.meta.cluster.clone(),
                found: enlist.cluster.clone(),
            });
        }
        if !enlist.roles.master && !enlist.roles.backup {
            return bad("a server is a master, a backup or both".to_owned());
        }
        if enlist.addresses.native.is_empty() {
            return bad("a server needs an address for the native protocol".to_owned());
        }
        let segment_bytes = self.state.meta.settings.segment_bytes;
        if enlist.segment_bytes != segment_bytes {
            let found = enlist.segment_bytes;
            return bad(format!(
                "segments have {segment_bytes} bytes in this cluster, {found} on this server"
            ));
        }
        if let Some(old) = enlist.replaces {
            let given = self
                .state
                .servers
                .slots
                .get(&old.slot)
                .copied()
                .unwrap_or(0);
            if old.generation == 0 || old.generation > given {
                self.note_newer(old); // older::A3
                return bad(self.why_older(old));
            }
            let disk = self
                .state
                .servers
                .all
                .get(&old)
                .map(|s| s.record.entry.disk);
            if disk.is_some_and(|disk| disk != enlist.disk) {
                return bad(format!("server {old} has another disk"));
            }
            if let Some(newer) = self.newer_life(old.slot) {
                return bad(self.why_older(newer)); // older::A2
            }
        }
        self.check_replaced(enlist)?;
        self.check_disk(enlist)
    }

    /// The life that the server claims to follow may not be over: then the data of one of them is a
    /// copy, and not the newest. At that life's address there is no other process, so a server that
    /// enlists from there proves its end.
    fn check_replaced(&mut self, enlist: &Enlist) -> Result<(), Refusal> {
        let Some(old) = enlist.replaces.filter(|id| self.is_up(*id)) else {
            return Ok(());
        };
        let there = &self.state.servers.all[&old].record.entry.addresses.native;
        if *there == enlist.addresses.native {
            return Ok(());
        }
        self.check_life(old, enlist.nonce, "data")
    }

    /// Whether a server is alive whose data or disk another one has. A passed check proves it only
    /// if a later check is passed too: the first answer may have been in flight when that server
    /// ended, and a server that is refused here ends for good.
    fn check_life(&mut self, old: ServerId, nonce: u64, what: &str) -> Result<(), Refusal> {
        let now_us = self.state.now_us;
        let Some(server) = self.state.servers.all.get_mut(&old) else {
            return Ok(());
        };
        let since_us = doubted_since(&mut server.doubts, nonce, now_us);
        let passed_us = server.push.check_passed_us;
        if passed_us.is_some_and(|at_us| at_us >= since_us + DOUBT_US) {
            return Err(Refusal::Invalid(format!(
                "server {old} is alive and has the same {what}: one is a copy of the other"
            )));
        }
        self.begin_claimed_check(old);
        Err(Refusal::NotReady {
            after_ms: DISK_CHECK_MS,
            reason: format!("whether server {old}, which had the same {what}, is alive"),
        })
    }

    /// A life with the same disk that ended before it had stored its id. Only the server that
    /// enlists now is at its address, and it would also answer the check of that life.
    fn unstored_life(&self, enlist: &Enlist) -> Option<ServerId> {
        let same = self.state.servers.disks.get(&enlist.disk).copied()?;
        let entry = &self.state.servers.all[&same].record.entry;
        let is_its = Some(same) != enlist.replaces
            && entry.addresses.native == enlist.addresses.native
            && self.is_up(same);
        is_its.then_some(same)
    }

    /// Two servers with one disk: the older one is gone without notice, or the disk was copied.
    fn check_disk(&mut self, enlist: &Enlist) -> Result<(), Refusal> {
        let same = self.state.servers.disks.get(&enlist.disk).copied();
        let same = same.filter(|id| Some(*id) != enlist.replaces);
        let Some(same) = same.filter(|_| self.unstored_life(enlist).is_none()) else {
            return Ok(());
        };
        self.check_life(same, enlist.nonce, "disk")
    }

    /// The id that this server gets if it is added now.
    fn next_id(&self, enlist: &Enlist) -> ServerId {
        let slot = match enlist.replaces {
            Some(old) => old.slot,
            None => {
                let given = self
                    .state
                    .servers
                    .slots
                    .last_key_value()
                    .map_or(0, |(slot, _)| slot + 1);
                let newer = self
                    .state
                    .servers
                    .newer
                    .last_key_value()
                    .map_or(0, |(slot, _)| slot + 1);
                given.max(newer) // older::A2
            }
        };
        ServerId::new(
            slot,
            self.state.servers.slots.get(&slot).copied().unwrap_or(0) + 1,
        )
    }

    fn add_server(&mut self, enlist: &Enlist) -> ServerId {
        let id = self.next_id(enlist);
        self.state.servers.slots.insert(id.slot, id.generation);
        self.state.records.put(Key::Slot(id.slot), &id.generation);
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
        self.state.records.put(Key::Server(id), &record);
        self.state
            .change_list(ServerChange::Added(record.entry.clone()));
        self.state.servers.nonces.insert(enlist.nonce, id);
        self.adopt(id, record);
        if enlist.replaces.is_some()
            && let Some(server) = self.state.servers.all.get_mut(&id)
        {
            server.room.returns(self.state.now_us);
        }
        self.state.affect(id);
        id
    }

    /// Adds a server that is stored, or about to be.
    pub(super) fn adopt(&mut self, id: ServerId, record: ServerRecord) {
        if record.entry.status == ServerStatus::Up {
            self.state.servers.up.push(id);
            self.state.servers.disks.insert(record.entry.disk, id);
        }
        let server = Server {
            record,
            push: Push::default(),
            check: None,
            heard: Heard::new(self.state.now_us),
            doubts: Vec::new(),
            rank: None,
            loads: Loads::default(),
            room: Room::new(self.state.now_us),
            means: None,
            recovering: 0,
            busy_until_us: 0,
            quiet_until_us: 0,
            declined_until_us: 0,
            held_back: BTreeMap::new(),
        };
        self.state.servers.all.insert(id, server);
        self.rank(id);
    }

    /// Answers an enlistment, from the stored state.
    pub(super) fn welcome(&mut self, reply: ReplyId, id: ServerId) {
        let answer = if self.published.is_up(id) {
            CoordinatorAnswer::Enlisted(Box::new(Enlisted {
                server: id,
                list: self.published.list(),
                settings: self.state.meta.settings.clone(),
            }))
        } else {
            refused(Refusal::NotUp(id))
        };
        self.state
            .records
            .tell_at_once(super::Output::Answer { reply, answer });
        self.set_welcome(id, self.published.version());
    }

    /// Declares a server crashed, and begins the consequences. Does nothing if it is crashed
    /// already.
    pub(super) fn crash(&mut self, dead: ServerId) {
        let Some(server) = self
            .state
            .servers
            .all
            .get_mut(&dead)
            .filter(|server| server.is_up())
        else {
            return;
        };
        server.record.entry.status = ServerStatus::Crashed;
        server.check = None;
        let record = server.record.clone();
        self.state.records.put(Key::Server(dead), &record);
        self.state.change_list(ServerChange::Crashed(dead));
        self.state.servers.up.retain(|id| *id != dead);
        self.forget_disk(dead);
        self.state.servers.disks.remove(&record.entry.disk);
        self.rank(dead);
        self.state.touch_map();
        self.state.change_map_of(dead);
        self.state.tables.shares.forget(dead);
        self.abort_migrations_of(dead);
        self.balance_gives_way();
        self.forget_in_recoveries(dead);
        self.recover(dead);
        let early = has_bug(Bug::RemovedTooEarly);
        if early && self.recoveries.contains_key(&dead) {
            self.state.change_list(ServerChange::Removed(dead));
        }
        self.drain_all();
    }

    /// Removes a crashed server: its log is not needed any more.
    ///
    /// # Panics
    /// If it still owns tablets (coordinator::K6).
    pub(super) fn remove(&mut self, dead: ServerId) {
        let owns = self
            .state
            .tables
            .owned
            .get(&dead)
            .is_some_and(|owned| !owned.is_empty());
        assert!(!owns, "K6: tablets wait for the log of server {dead}");
        self.state.tables.owned.remove(&dead);
        if let Some(server) = self.state.servers.all.remove(&dead) {
            assert!(!server.is_up(), "K6: server {dead} is UP");
            self.state.servers.nonces.remove(&server.record.nonce);
            self.state.records.delete(Key::Server(dead));
            if server.loads.is_stored() {
                self.state.records.delete(Key::Loads(dead));
            }
            self.forget_accepted(dead);
            self.state.change_list(ServerChange::Removed(dead));
        }
    }

    /// coordinator::K3: recorded only for a server that is UP; its recovery reads it when it is not
    /// UP any more.
    pub(super) fn control_head(
        &mut self,
        server: ServerId,
        min_open: SegmentId,
    ) -> CoordinatorAnswer {
        let Some(member) = self.state.servers.all.get_mut(&server) else {
            return refused(Refusal::NotUp(server));
        };
        if member.record.min_open < min_open {
            member.record.min_open = min_open;
            let record = member.record.clone();
            self.state.records.put(Key::Server(server), &record);
        }
        CoordinatorAnswer::Noted
    }

    /// Changes a member's entry in the list.
    pub(super) fn change_member(&mut self, id: ServerId, change: impl FnOnce(&mut ServerEntry)) {
        if let Some(server) = self.state.servers.all.get_mut(&id) {
            change(&mut server.record.entry);
            let record = server.record.clone();
            self.state.records.put(Key::Server(id), &record);
            self.state.change_list(ServerChange::Changed(record.entry));
            self.rank(id);
        }
    }

    /// Continues the drains.
    pub(super) fn drain_all(&mut self) {
        let draining: Vec<ServerId> = self
            .state
            .servers
            .up
            .iter()
            .copied()
            .filter(|id| self.state.servers.all[id].record.entry.draining)
            .collect();
        for id in draining {
            self.state.asks.arm(self.state.now_us, Timer::Drain(id));
        }
    }
}
