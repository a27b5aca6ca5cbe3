//! Which table is behind which database (`SELECT`), beyond this process.
//!
//! Database *n* is table `db`*n* until `SWAPDB` exchanges two. What it exchanged is kept as one object in a table of our
//! own, which no client sees; it is written, and durable, before the exchange takes place.
//!
//! **Invariants**
//! 1. What the object says is what `State::dbs` says, or a swap that nobody has been told of.
//! 2. One swap at a time: [`State::swaps`] is held from reading the places until they are exchanged.

use super::context::Failure;
use super::keys::{parse_db, table_for};
use super::state::DBS;
use crate::shared::Shared;
use duramen_engine::{Error, Guard, Store, TableId, TableInfo};
use std::sync::Arc;

/// Tables whose names begin like this are the server's own.
const OWN: &str = "duramen:";
const TABLE: &str = "duramen:databases";
const KEY: &[u8] = b"places";
/// In the object: the database has no table.
const NONE: u32 = u32::MAX;

/// Whether a table's name is kept for the server.
pub(super) fn is_own(name: &str) -> bool {
    name.starts_with(OWN)
}

/// The tables that clients may know of.
pub(super) fn tables(shared: &Shared) -> Vec<TableInfo> {
    let mut tables = shared.store().tables();
    tables.retain(|table| !is_own(&table.name));
    tables
}

/// Makes the table that swaps are written to, if there is none; None: nothing outlasts this process. Not while a guard
/// is held.
pub(super) fn own_table(shared: &Shared) -> Result<Option<TableId>, Failure> {
    if shared.durability().is_none() {
        return Ok(None);
    }
    match shared.create_table(TABLE, None) {
        Ok(table) => Ok(Some(table)),
        Err(duramen::Error::Engine(Error::TableExists(_))) => Ok(shared.store().table_id(TABLE)),
        Err(error) => Err(error.into()),
    }
}

/// The table that swaps are written to, for EXEC, which has made it before.
pub(super) fn own_table_if_made(shared: &Shared) -> Option<TableId> {
    shared.durability()?;
    shared.store().table_id(TABLE)
}

/// Writes what the places will be.
pub(super) fn write(
    guard: &mut Guard<'_>,
    table: TableId,
    places: &[Option<TableId>],
) -> Result<(), Error> {
    let bytes: Vec<u8> = places
        .iter()
        .flat_map(|place| place.map_or(NONE, |table| table.0).to_le_bytes())
        .collect();
    let hash = guard.hash(KEY);
    guard.write(table, hash, KEY, &bytes, None).map(|_| ())
}

/// After loading: puts every table behind its database.
///
/// # Errors
/// [`Error::TooManySessions`].
pub(crate) fn restore(shared: &Shared, store: &Arc<Store>) -> Result<(), Error> {
    let tables = store.tables();
    for table in &tables {
        let number = table.name.strip_prefix("db").map(str::as_bytes);
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
    for (db, place) in object.value.chunks_exact(4).take(DBS).enumerate() {
        let id = place.try_into().map_or(NONE, u32::from_le_bytes);
        // A table that was dropped since leaves its database empty.
        let table = tables.iter().find(|table| table.id.0 == id);
        shared
            .commands
            .set_table(db as u8, table.map(|table| table.id));
    }
    Ok(())
}

/// The places after `first` and `second` are exchanged.
pub(super) fn exchanged(
    shared: &Shared,
    first: u8,
    second: u8,
) -> Result<Vec<Option<TableId>>, Failure> {
    let (a, b) = (table_for(shared, first)?, table_for(shared, second)?);
    Ok((0..DBS as u8)
        .map(|db| match db {
            db if db == first => Some(b),
            db if db == second => Some(a),
            db => shared.commands.table(db),
        })
        .collect())
}
