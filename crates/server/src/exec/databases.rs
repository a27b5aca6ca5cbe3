//! The mapping from databases (`SELECT`) to tables, kept beyond this process.
//!
//! Database *n* is table `db`*n* until `SWAPDB` exchanges two. The exchanged mapping is stored as
//! one object in the server's own table, which no client sees. It is written in the same exclusive
//! step of the store in which the databases are exchanged.
//!
//! **Invariants**
//! - I1: the stored object equals `State::dbs`, so data written to a database later is found there
//!   after a restart.
//! - I2: while a crash can still undo the exchange, every reply waits for it ([`observe`]): all
//!   later requests may depend on it.

use super::client::Client;
use super::context::{Context, Failure};
use super::keys::parse_db;
use super::local::Local;
use super::state::{DBS, global};
use crate::shared::Shared;
use duramen_engine::{Error, Guard, Session, Store, TableId, TableInfo};
use duramen_wire::native::message::TableEntry;
use std::sync::Arc;

/// Prefix of the server's own tables.
const OWN: &str = "duramen:";
const TABLE: &str = "duramen:databases";
const KEY: &[u8] = b"places";
/// Value in the object: the database has no table.
const NONE: u32 = u32::MAX;

/// Whether a table's name is reserved for the server.
pub(super) fn is_own(name: &str) -> bool {
    name.starts_with(OWN)
}

/// The table of database 0 on a single server is `default`. A table of this name was once taken for
/// it after a restart, and the data of database 0 could not be reached.
pub(super) const NOT_FIRST: &str = "db0";

/// The tables that clients may see.
pub(super) fn tables(shared: &Shared) -> Vec<TableInfo> {
    let mut tables = shared.store().tables();
    tables.retain(|table| !is_own(&table.name));
    tables
}

/// Creates the table to which swaps are written, if there is none; None: the data is in memory
/// only. Not to be called while a guard is held.
pub(super) fn own_table(shared: &Shared) -> Result<Option<TableId>, Failure> {
    if shared.store().log().is_none() {
        return Ok(None);
    }
    match shared.create_table(TABLE, None) {
        Ok(table) => Ok(Some(table)),
        Err(duramen::Error::TableExists(_)) => Ok(shared.store().table_id(TABLE)),
        Err(error) => Err(error.into()),
    }
}

/// Exchanges two databases. The guard is exclusive; both databases' tables, and the server's own
/// table, were created before.
pub(super) fn exchange(
    ctx: &mut Context<'_>,
    guard: &mut Guard<'_>,
    first: u8,
    second: u8,
) -> Result<(), Error> {
    let commands = &ctx.shared.commands;
    let _places = commands.lock_places();
    let places: Vec<Option<TableId>> = (0..DBS as u8)
        .map(|db| match db {
            db if db == first => commands.table(second),
            db if db == second => commands.table(first),
            db => commands.table(db),
        })
        .collect();
    write_places(ctx, guard, &places)?;
    commands.set_tables(&places, &guard.position());
    guard.outdate_others(); // keys::K1
    Ok(())
}

/// Called before a table is dropped, when no database has it any more: writes the mapping, if one
/// was written before. After a restart the id of the dropped table may be assigned again.
pub(super) fn note_places(ctx: &mut Context<'_>, session: &mut Session) -> Result<(), Error> {
    if ctx.shared.store().table_id(TABLE).is_none() {
        return Ok(());
    }
    let mut guard = session.pin_exclusive();
    let places: Vec<_> = (0..DBS as u8)
        .map(|db| ctx.shared.commands.table(db))
        .collect();
    write_places(ctx, &mut guard, &places)?;
    ctx.settle(&mut guard);
    Ok(())
}

fn write_places(
    ctx: &Context<'_>,
    guard: &mut Guard<'_>,
    places: &[Option<TableId>],
) -> Result<(), Error> {
    let store = ctx.shared.store();
    if let Some(own) = store.log().and_then(|_| store.table_id(TABLE)) {
        let bytes: Vec<u8> = places
            .iter()
            .flat_map(|place| place.map_or(NONE, |table| table.0).to_le_bytes())
            .collect();
        let hash = guard.hash(KEY);
        guard.rewrites(true);
        guard.write(own, hash, KEY, &bytes, None)?;
    }
    Ok(())
}

/// I2: to be called after a request ran, before its reply is sent.
#[inline]
pub(super) fn observe(shared: &Shared, local: &mut Local, client: &mut Client) {
    if shared.commands.gate() & global::EXCHANGED != 0
        && let Some(position) = shared.commands.awaited_exchange(shared.store().log())
    {
        let level = local.level_of(shared, client);
        client.settle_position(&position, level);
    }
}

/// In a cluster: takes over the coordinator's list of tables whenever it changes. Database 0 is the
/// table `db0`, and there is no other database, as in Redis Cluster. An empty list: no table is
/// known yet.
pub fn adopt(shared: &Shared, tables: &[TableEntry]) {
    let first = tables.iter().find(|entry| entry.name == "db0");
    shared.commands.set_table(0, first.map(|entry| entry.table));
    for db in 1..DBS as u8 {
        shared.commands.set_table(db, None);
    }
    for entry in tables {
        shared.commands.set_level(entry.table, entry.level);
    }
}

/// After loading: assigns every table to its database.
///
/// # Errors
/// [`Error::TooManySessions`].
pub(crate) fn restore(shared: &Shared, store: &Arc<Store>) -> Result<(), Error> {
    let tables = store.tables();
    for table in &tables {
        let number = table.name.strip_prefix("db").map(str::as_bytes);
        let number = number.filter(|_| table.name != NOT_FIRST);
        if let Some(Ok(db)) = number.map(|number| parse_db(number, Failure::Text(""))) {
            shared.commands.set_table(db, Some(table.id));
        }
    }
    let Some(own) = store.table_id(TABLE) else {
        return Ok(());
    };
    let mut session = store.session()?;
    let guard = session.pin();
    let Some(object) = guard.read(own, guard.hash(KEY), KEY)? else {
        return Ok(());
    };
    let places: Vec<u32> = object
        .value
        .chunks_exact(4)
        .take(DBS)
        .map(|place| place.try_into().map_or(NONE, u32::from_le_bytes))
        .collect();
    let is_placed = |table: &TableInfo| places.contains(&table.id.0);
    for (db, place) in places.iter().enumerate() {
        let table = if *place == NONE {
            // The database may have got its own table since. A table with that name may also be in
            // another database now.
            let name = format!("db{db}");
            let own = tables.iter().find(|table| table.name == name);
            own.filter(|table| !is_placed(table))
        } else {
            // A table that was dropped since leaves its database empty.
            tables.iter().find(|table| table.id.0 == *place)
        };
        shared
            .commands
            .set_table(db as u8, table.map(|table| table.id));
    }
    Ok(())
}
