//! The tables of a run: one that stays, and one that an operator drops, creates anew under its old
//! name, and empties.
//!
//! A key of a history determines its table: each incarnation of the table has keys of its own
//! there, though their bytes are the same. So a value of a dropped table that reappears in the next
//! incarnation is a value that no client wrote.
//!
//! **Invariants**
//! - T1: once a name is given again, no server that is UP serves the table that had it before.
//! - T2: a server that has emptied a table has no object of it at that moment.

use super::client::{TABLE, key_of};
use super::coverage::Class;
use super::history::{Action, Event as Deed, Found, UNKNOWN};
use super::twins;
use super::world::{Event, World};
use duramen_base::ids::{ServerId, TableId};
use duramen_format::hash::KeyHasher;
use duramen_node::Route;
use duramen_wire::native::message::{Admin, ServerStatus, Status};
use std::collections::BTreeMap;

/// More than there are keys in a table.
const KEYS: u64 = 1_000;
/// The name that is used again and again.
const NAME: &str = "u";
/// Interval at which the operator checks for completion.
const LOOK_US: u64 = 20_000;
/// Keys that are removed per step.
const SOME: usize = 8;

/// The wanted state of the table that comes and goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wish {
    Nothing,
    /// Dropped, and created again after this time.
    Gone(u64),
    /// Present, from this time on.
    There(u64),
}

/// A removal by the operator that empties tables.
struct Emptied {
    key: u64,
    from_us: u64,
    /// The version that was known when it began.
    before: u64,
}

/// The tables of a run.
pub(super) struct Tables {
    /// By incarnation: 0 is the table that stays, the last one is the newest of the other.
    ids: Vec<TableId>,
    /// Whether the newest one is dropped, or may be.
    is_dropped: bool,
    wish: Wish,
    /// Removals by the operator that empties tables, not yet known to be durable.
    emptied: BTreeMap<u64, Emptied>,
}

impl Tables {
    pub fn new() -> Tables {
        Tables {
            ids: vec![TABLE],
            is_dropped: true,
            wish: Wish::Nothing,
            emptied: BTreeMap::new(),
        }
    }

    /// The table of a key.
    pub fn table_of(&self, key: u64) -> TableId {
        self.ids[(key / KEYS) as usize]
    }

    /// The key with this number in a table.
    pub fn key_in(&self, table: TableId, number: u64) -> Option<u64> {
        let incarnation = self.ids.iter().rposition(|id| *id == table)?;
        Some(incarnation as u64 * KEYS + number)
    }

    /// The tables that exist, as far as is known.
    pub fn present(&self) -> impl Iterator<Item = TableId> {
        let newest = self.ids.last().filter(|_| !self.is_dropped);
        [TABLE].into_iter().chain(newest.copied())
    }

    /// Whether its table was dropped, or may have been.
    pub fn is_gone(&self, key: u64) -> bool {
        let incarnation = (key / KEYS) as usize;
        incarnation > 0 && (incarnation + 1 < self.ids.len() || self.is_dropped)
    }
}

/// The key's number in its table: the same in each incarnation.
pub(super) fn number_of(key: u64) -> u64 {
    key % KEYS
}

impl World {
    /// A random key of a random table; its table may be dropped, as for a client with an old map.
    pub(super) fn some_key(&mut self) -> u64 {
        let number = self.random.below(self.plan.keys);
        if !self.plan.churns || number.is_multiple_of(2) {
            return number;
        }
        let newest = self.tables.ids.len() as u64 - 1;
        if newest > 1 && self.random.one_in(8) {
            number + (newest - 1) * KEYS
        } else {
            number + newest * KEYS
        }
    }

    /// A random table of those that exist.
    pub(super) fn some_table(&mut self) -> TableId {
        let present: Vec<TableId> = self.tables.present().collect();
        match present.len() {
            1 => TABLE,
            count => present[self.random.below(count as u64) as usize],
        }
    }

    /// All keys whose tables exist at the end.
    pub(super) fn present_keys(&self) -> Vec<u64> {
        let newest = self.tables.ids.len() as u64 - 1;
        let of = |number: u64| {
            number
                + if number.is_multiple_of(2) {
                    0
                } else {
                    newest * KEYS
                }
        };
        let twins = twins::FIRST..twins::FIRST + self.plan.twins;
        (0..self.plan.keys).map(of).chain(twins).collect()
    }

    pub(super) fn is_counter(&self, key: u64) -> bool {
        number_of(key) < self.plan.counters
    }

    /// Whether the tables that the plan wants exist.
    pub(super) fn tables_are_there(&self) -> bool {
        !self.plan.churns || !self.tables.is_dropped && self.tables.wish == Wish::Nothing
    }

    /// Creates the table that comes and goes for the first time.
    pub(super) fn make_table(&mut self) {
        if self.plan.churns {
            self.tables.wish = Wish::There(0);
            self.after(0, Event::Operate);
        }
    }

    /// Drops it, and creates it again after this time.
    pub(super) fn drop_table(&mut self, for_us: u64) {
        if self.tables.wish == Wish::Nothing && !self.tables.is_dropped {
            self.tables.wish = Wish::Gone(for_us);
            self.tables.is_dropped = true;
            self.after(0, Event::Operate);
        }
    }

    /// The operator checks its progress, and repeats requests that have no effect yet.
    pub(super) fn operate_tables(&mut self) {
        if self.tables.wish == Wish::Nothing {
            return;
        }
        self.after(LOOK_US, Event::Operate);
        let Some(status) = self.status() else { return };
        let mut named = status.tables.iter().filter(|entry| entry.name == NAME);
        let there = named.next().map(|entry| entry.table);
        match (self.tables.wish, there) {
            (Wish::Gone(_), Some(_)) => {
                self.administer(Admin::DropTable {
                    name: NAME.to_owned(),
                });
            }
            (Wish::Gone(for_us), None) => {
                self.say(|| "the table is dropped".to_owned());
                self.coverage.fired(Class::TableDropped);
                self.tables.wish = Wish::There(self.now_us + for_us);
            }
            (Wish::There(_), Some(table)) => {
                self.say(|| format!("the table is made: {table}"));
                self.tables.ids.push(table);
                self.tables.is_dropped = false;
                self.tables.wish = Wish::Nothing;
                self.check_names(&status);
            }
            (Wish::There(from_us), None) if self.now_us >= from_us || self.is_healed => {
                let servers = 1 + self.random.below(self.machines.len() as u64) as u32;
                self.administer(Admin::CreateTable {
                    name: NAME.to_owned(),
                    servers,
                    level: None,
                });
            }
            _ => {}
        }
    }

    /// T1.
    fn check_names(&mut self, status: &Status) {
        let newest = self.tables.ids.len() - 1;
        let mut old: Vec<TableId> = self.tables.ids[1..newest].to_vec();
        // An id that was given twice is detected by its contents.
        old.retain(|id| *id != self.tables.ids[newest]);
        let is_up = |id: ServerId| {
            let mut servers = status.servers.iter();
            servers.any(|s| s.server == id && s.status == ServerStatus::Up)
        };
        let keys: Vec<u64> = (0..self.plan.keys).collect();
        for n in 0..self.machines.len() {
            let (Some(id), Some(process)) = (self.id_of(n), &self.machines[n].process) else {
                continue;
            };
            let serves = |table: &&TableId| {
                let mut routes = keys
                    .iter()
                    .map(|key| KeyHasher::new(1).route(&key_of(*key)));
                routes.any(|route| process.view.route(**table, route) == Route::Serve)
            };
            if let Some(table) = old.iter().find(serves).filter(|_| is_up(id)) {
                return self.violated(format!(
                    "server {n} ({id}) serves table {table}, and another one has its name"
                ));
            }
        }
    }

    /// Each server deletes its part of the table that comes and goes, key by key, as FLUSHDB does.
    pub(super) fn empty_table(&mut self) {
        let newest = self.tables.ids.last().copied();
        let Some(table) = newest.filter(|_| !self.tables.is_dropped) else {
            return;
        };
        self.coverage.fired(Class::TableEmptied);
        for n in 0..self.machines.len() {
            let process = self.machines[n].process.as_ref();
            if process.is_some_and(|process| process.store.is_some() && !process.ended)
                && !self.machines[n].is_paused
            {
                self.empty_part(n, table);
                self.let_work(n);
            }
        }
    }

    fn empty_part(&mut self, n: usize, table: TableId) {
        let process = self.machines[n].process.as_ref().expect("it runs");
        let store = process.store.clone().expect("it is a member");
        let mut session = store.engine().session().expect("few sessions");
        let (mut cursor, mut is_done) = (0, true);
        loop {
            let mut keys: Vec<Vec<u8>> = Vec::new();
            let guard = session.pin();
            let next = guard
                .walk()
                .scan(table, cursor, SOME, |object| keys.push(object.key.to_vec()));
            drop(guard);
            // The table does not exist here yet, or its flash cannot be read.
            let Ok(next) = next else { return };
            for key in keys {
                is_done &= self.empty_key(n, table, &mut session, &key);
            }
            if next == 0 {
                break;
            }
            cursor = next;
        }
        if is_done {
            self.check_empty(n, table, &mut session);
        }
    }

    /// Returns false if the key cannot be removed now.
    fn empty_key(
        &mut self,
        n: usize,
        table: TableId,
        session: &mut duramen_engine::Session,
        bytes: &[u8],
    ) -> bool {
        let text = std::str::from_utf8(bytes).unwrap_or_default();
        let number = text.strip_prefix("key ").and_then(|n| n.parse().ok());
        let Some(key) = number.and_then(|number| self.tables.key_in(table, number)) else {
            self.violated(format!(
                "server {n} has a key that was never written: {bytes:?}"
            ));
            return false;
        };
        let process = self.machines[n].process.as_ref().expect("it runs");
        let mut guard = session.pin();
        let hash = guard.hash(bytes);
        if process.view.route(table, KeyHasher::new(1).route(bytes)) != Route::Serve {
            return true; // it is still receiving the key, or has not purged it
        }
        let done = guard.remove(table, hash, bytes);
        let position = guard.order().take_position();
        drop(guard);
        let Ok(outcome) = done else { return false };
        let found = match outcome.before {
            Some(version) => Found::Removed { version },
            None => Found::Absent,
        };
        self.say(|| format!("server {n} empties key {key}: {found:?}, durable by {position:?}"));
        self.doubt(key, Action::Remove);
        let sequence = self.number();
        let removal = Emptied {
            key,
            from_us: self.now_us,
            before: self.known_version(key),
        };
        self.tables.emptied.insert(sequence, removal);
        self.hold_removal(n, (sequence, key), position, found);
        true
    }

    /// T2. Only objects that can be read at this moment.
    fn check_empty(&mut self, n: usize, table: TableId, session: &mut duramen_engine::Session) {
        for number in 0..self.plan.keys {
            let bytes = key_of(number);
            let process = self.machines[n].process.as_ref().expect("it runs");
            let guard = session.pin();
            let hash = guard.hash(&bytes);
            let route = KeyHasher::new(1).route(&bytes);
            let serves = process.view.route(table, route) == Route::Serve;
            let found = guard.read(table, hash, &bytes);
            let version = found.ok().flatten().map(|object| object.version);
            drop(guard);
            if let Some(version) = version.filter(|_| serves) {
                self.violated(format!(
                    "server {n} is emptied, and has key {number} of table {table} at {version}"
                ));
            }
        }
    }

    /// A removal by the operator that empties tables is durable.
    pub(super) fn emptied(&mut self, sequence: u64, found: Found) {
        if let Some(removal) = self.tables.emptied.remove(&sequence) {
            self.know(removal.key, Action::Remove, found, removal.before);
            self.put_removal(sequence, &removal, found, self.now_us);
        }
    }

    /// Removals that are not known to be durable have an unknown outcome.
    pub(super) fn empties_no_more(&mut self) {
        for (sequence, removal) in std::mem::take(&mut self.tables.emptied) {
            self.put_removal(sequence, &removal, Found::Nothing, UNKNOWN);
        }
    }

    fn put_removal(&mut self, name: u64, removal: &Emptied, found: Found, to_us: u64) {
        self.history.events.push(Deed {
            client: name << 32,
            key: removal.key,
            action: Action::Remove,
            found,
            from_us: removal.from_us,
            to_us,
        });
    }
}
