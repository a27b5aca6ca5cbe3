//! Opens a coordinator from the stored state, with the first steps of a new leader.

use super::balance::Balance;
use super::callers::Callers;
use super::calls::Asks;
use super::foreign::Foreign;
use super::map::Changes;
use super::migrations::Migrations;
use super::older::Lives;
use super::pipeline::Records;
use super::push::Pushes;
use super::records::{self, Key, Meta, MigrationRecord, Origin, ServerRecord, TabletRecord};
use super::recoveries::Recoveries;
use super::servers::Servers;
use super::store::{Contents, is_advice};
use super::suspects::Suspects;
use super::tables::Tables;
use super::{Config, Coordinator, Output, State, Timer, clients, loads};
use duramen_base::ids::{ClientId, ClusterId, ListVersion, MapVersion, ServerId, TableId};
use duramen_base::planted::{Bug, has_bug};
use duramen_base::random::Random;
use duramen_wire::native::message::ServerList;

/// The reason why a coordinator could not be opened.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OpenError {
    /// The remedy is another store, or another name.
    #[error("the store holds cluster `{found}`, not `{expected}`")]
    Foreign { found: String, expected: String },
    /// The remedy is a newer program.
    #[error("the store has layout {found}; this program knows layouts up to {known}")]
    Newer { found: u32, known: u32 },
    /// The remedy is to restore the store from a copy.
    #[error("the store is damaged: {what}")]
    Damaged { what: String },
}

impl Coordinator {
    /// The coordinator that leads in `config.term`, from the stored state (nothing, for a new
    /// cluster), and its first outputs.
    ///
    /// # Errors
    /// Any [`OpenError`]; nothing was changed.
    pub fn open(
        now_us: u64,
        contents: &Contents,
        config: Config,
    ) -> Result<(Coordinator, Vec<Output>), OpenError> {
        let mut new = empty(now_us, config);
        let damaged = |key: &[u8]| OpenError::Damaged {
            what: format!("key {}", key.escape_ascii()),
        };
        let first = contents.keys().find(|key| !is_advice(key));
        if let Some(bytes) = contents.get(&Key::Meta.encode()) {
            new.state.meta = records::decode(bytes).ok_or_else(|| damaged(b"m"))?;
            check_meta(&new.state.meta, &new.state.config)?;
        } else if let Some(key) = first {
            return Err(damaged(key));
        }
        for (key, value) in contents {
            let known = Key::decode(key).and_then(|key| new.load(key, value));
            if known.is_none() && !is_advice(key) {
                return Err(damaged(key));
            }
        }
        let has_id = new.foreign.ours() != ClusterId::NONE;
        if first.is_some() && new.state.meta.format >= records::WITH_ID && !has_id {
            return Err(damaged(&Key::Id.encode()));
        }
        check_whole(&new.state, &new.migrations)?;
        new.begin();
        let outputs = new.finish();
        Ok((new, outputs))
    }

    fn load(&mut self, key: Key, value: &[u8]) -> Option<()> {
        match key {
            Key::Meta => {}
            Key::Id => self.foreign.set_ours(records::decode(value)?),
            Key::Server(id) => {
                let record: ServerRecord = records::decode(value)?;
                self.state.adopt(id, record);
                self.pushes.begin(&mut self.state, id, ListVersion(0));
            }
            Key::Slot(slot) => {
                let generation = records::decode(value)?;
                self.state.lives.give(ServerId::new(slot, generation));
            }
            Key::Table(_) => self.state.tables.add(records::decode(value)?),
            Key::Tablet(table, first) => {
                let record: TabletRecord = records::decode(value)?;
                self.state.tables.insert((table, first), record);
                self.state.rank(record.owner);
            }
            Key::Migration(id) => {
                let record: MigrationRecord = records::decode(value)?;
                self.migrations.adopt(&mut self.state, id, record);
            }
            Key::Client(id) => {
                self.clients.renew(&self.state, id);
            }
            Key::Users => self.pushes.users.adopt(records::decode(value)?),
            Key::Functions => self.pushes.functions.adopt(records::decode(value)?),
            Key::Loads(id) => loads::adopt(&mut self.state, id, value),
            Key::Accepted(id) => self.recoveries.accepted.adopt(id, value),
        }
        Some(())
    }

    /// A new leader's first steps.
    fn begin(&mut self) {
        if self.foreign.ours() == ClusterId::NONE {
            // A new store, or one of an older version.
            let id = self.state.config.new_id;
            self.foreign.set_ours(id);
            self.state.meta.format = records::WITH_ID;
            self.state.records.put(Key::Id, &id);
            self.state.put_meta();
        }
        if self.state.meta.list_version.0 == 0 {
            self.state.meta.list_version.0 = 1; // empty; the first step leads from it
        }
        let list = ServerList {
            version: self.state.meta.list_version,
            servers: self
                .state
                .servers
                .values()
                .map(|server| server.record.entry.clone())
                .collect(),
        };
        self.pushes.adopt(list);
        if self.state.meta.map_version.0 == 0 {
            let mut tables = self.state.tables.entries();
            if let Some(default) = tables.find(|entry| entry.table == TableId::DEFAULT) {
                let key = Key::Table(TableId::DEFAULT);
                self.state.records.put(key, default);
            }
        }
        self.state.changes.begin(self.state.meta.map_version);
        // The previous leader may have told anything in this version: later versions are newer
        // (coordinator::K5).
        self.state.affect_all();
        let version = self.state.tablets_version();
        for owner in self.state.servers.up() {
            self.state.tables.shares.begin(*owner, version);
        }
        let up = self.state.servers.up().to_vec();
        self.state.tables.note_dropped(None, version, up);
        let lease_us = u64::from(self.state.meta.settings.read_lease_ms) * 1100;
        let now_us = self.state.now_us;
        let forgets = has_bug(Bug::LeaseForgotten);
        for (id, server) in self.state.servers.iter_mut() {
            let tables = &self.state.tables;
            let mut owned = tables.owned(*id).filter_map(|at| tables.tablet(*at));
            let recovered = owned.any(|tablet| matches!(tablet.origin, Origin::Recovered { .. }));
            if recovered && !forgets {
                server.quiet_until_us = now_us + lease_us; // coordinator::K7
            }
        }
        let crashed: Vec<ServerId> = self
            .state
            .servers
            .iter()
            .filter(|(_, server)| !server.is_up())
            .map(|(id, _)| *id)
            .collect();
        for dead in crashed {
            self.recoveries.recover(&mut self.state, dead);
        }
        self.pushes.kick_all(&mut self.state);
        let draining: Vec<ServerId> = self.state.servers.up().to_vec();
        for id in draining {
            self.migrations.drain_further(&mut self.state, id);
        }
        self.suspects.call_roll(&mut self.state);
        self.state.asks.arm(self.state.now_us, Timer::Probe);
        clients::arm(&mut self.state);
        self.balance.arm(&mut self.state);
    }
}

/// The coordinator of a store without records.
fn empty(now_us: u64, config: Config) -> Coordinator {
    let state = State {
        now_us,
        random: Random::new(config.seed),
        meta: first_meta(&config),
        config,
        asks: Asks::default(),
        records: Records::new(),
        lives: Lives::default(),
        servers: Servers::default(),
        map_asked_us: None,
        tables: Tables::new(),
        changes: Changes::default(),
    };
    Coordinator {
        state,
        foreign: Foreign::new(),
        callers: Callers::default(),
        migrations: Migrations::default(),
        clients: clients::Clients::default(),
        recoveries: Recoveries::default(),
        balance: Balance::default(),
        storing: loads::Storing::default(),
        pushes: Pushes::default(),
        suspects: Suspects::default(),
    }
}

/// The record of a cluster that does not exist yet.
fn first_meta(config: &Config) -> Meta {
    Meta {
        format: records::WITH_ID,
        cluster: config.cluster.clone(),
        settings: config.settings.clone(),
        list_version: ListVersion(0),
        map_version: MapVersion(0),
        next_table: TableId(1),
        next_client: ClientId(1),
        unused: 0,
    }
}

fn check_meta(meta: &Meta, config: &Config) -> Result<(), OpenError> {
    if meta.format > records::FORMAT {
        return Err(OpenError::Newer {
            found: meta.format,
            known: records::FORMAT,
        });
    }
    if meta.cluster != config.cluster {
        return Err(OpenError::Foreign {
            found: meta.cluster.clone(),
            expected: config.cluster.clone(),
        });
    }
    Ok(())
}

/// Checks that the stored records fit together; a coordinator never stores others.
fn check_whole(state: &State, migrations: &Migrations) -> Result<(), OpenError> {
    let damaged = |what: String| Err(OpenError::Damaged { what });
    for ((table, first), record) in state.tables.tablets() {
        if !state.servers.contains(&record.owner) {
            return damaged(format!("owner {} of a tablet is missing", record.owner));
        }
        if !state.tables.contains(*table) || record.last < *first {
            return damaged(format!("a tablet of table {table} makes no sense"));
        }
    }
    for record in migrations.records() {
        let at = (record.table, record.range.first);
        let tablet = state.tables.tablet(at);
        if !tablet.is_some_and(|t| t.owner == record.from && t.last == record.range.last) {
            return damaged("a migration has no tablet".to_owned());
        }
    }
    Ok(())
}
