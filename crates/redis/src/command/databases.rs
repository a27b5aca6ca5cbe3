//! The mapping from databases (`SELECT`) to tables, kept beyond this process.
//!
//! Database *n* is table `db`*n* until `SWAPDB` exchanges two. The exchanged mapping is stored as
//! one object in the server's own table, which no client sees. It is written in the same exclusive
//! step of the store in which the databases are exchanged.
//!
//! **Invariants**
//! - I1: the stored object equals `State::dbs`, so data written to a database later is found there
//!   after a restart.
//! - I2: while a crash can still undo the exchange, every reply that depends on data of an
//!   exchanged database waits for it ([`observe`]), and so does a reply about data that COPY or
//!   MOVE took from there. No other reply does: the disk may hang or fail. INFO counts keys of all
//!   databases and does not wait.

use super::context::{Context, Failure};
use super::names::Names;
use super::routing::tells_of_data;
use super::spec::{Kind, Spec};
use crate::state::Shared;
use crate::state::client::Client;
use crate::state::db::{DBS, DROPPED, Db};
use crate::state::shared::commands::global;
use crate::state::thread::Thread;
use duramen_base::ids::Level;
use duramen_engine::{Error, Guard, Session, Store, TableId, TableInfo};
use duramen_wire::resp::Args;
use duramen_wire::resp::number::parse_integer;
use std::sync::Arc;

pub(crate) const DB_OUT_OF_RANGE: Failure = Failure::Text("ERR DB index is out of range");
/// How often a database's table is created again if other clients drop it at once.
const TABLE_ATTEMPTS_MAX: u32 = 16;
pub(crate) const DROPPED_NOW: Failure =
    Failure::Text("ERR the database is being dropped; try again");
/// Prefix of the server's own tables.
const OWN: &str = "duramen:";
const TABLE: &str = "duramen:databases";
const KEY: &[u8] = b"places";
/// Key and maximum length of the object that SWAPDB writes.
pub(crate) const PLACES: (&[u8], usize) = (KEY, size_of::<u32>() * DBS);
/// Value in the object: the database has no table.
const NONE: u32 = u32::MAX;

/// Whether a table's name is reserved for the server.
pub(crate) fn is_own(name: &str) -> bool {
    name.starts_with(OWN)
}

/// A table of this name was once taken for database 0 after a restart. The table of database 0 on a
/// single server is `default`, so its data could not be reached.
pub(crate) const NOT_FIRST: &str = "db0";

/// The tables that clients may see.
pub(crate) fn tables(shared: &Shared) -> Vec<TableInfo> {
    let mut tables = shared.store().tables().list();
    tables.retain(|table| !is_own(&table.name));
    tables
}

/// Creates the table to which swaps are written, if there is none. Returns `None` if the data is in
/// memory only. Must not be called while a guard is held.
pub(crate) fn own_table(shared: &Shared, client: &mut Client) -> Result<Option<TableId>, Failure> {
    if shared.store().log().is_none() {
        return Ok(None);
    }
    match create(shared, client, TABLE, None) {
        Ok(table) => Ok(Some(table)),
        Err(duramen::Error::TableExists(_)) => Ok(shared.store().tables().find(TABLE)),
        Err(error) => Err(error.into()),
    }
}

/// Exchanges two databases. The guard is exclusive; both databases' tables, and the server's own
/// table, were created before.
pub(crate) fn exchange(
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
    commands.set_tables(&places, &guard.order().position());
    guard.pin().outdate_others(); // keys::K1
    let exchanged = [first, second].map(|db| commands.table(db));
    ctx.shared.tracking().all_changed(&ctx.shared.threads, None);
    for table in exchanged.into_iter().flatten() {
        ctx.thread.wake_table(ctx.shared, table); // both databases have another table now
    }
    Ok(())
}

/// Must be called before a table is dropped, when no database has it any more. Writes the mapping,
/// if one was written before: after a restart the id of the dropped table may be assigned again.
pub(crate) fn note_places(ctx: &mut Context<'_>, session: &mut Session) -> Result<(), Error> {
    if ctx.shared.store().tables().find(TABLE).is_none() {
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
    if let Some(own) = store.log().and_then(|_| store.tables().find(TABLE)) {
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

/// Index of a database, from 0 to 15.
pub(crate) fn parse_db(text: &[u8], not_a_number: Failure) -> Result<u8, Failure> {
    in_range(parse_index(text, not_a_number)?)
}

/// The databases that a request names. The command itself reports invalid ones.
pub(crate) fn named(names: Names, args: &Args<'_>) -> Vec<u8> {
    let db = |at: usize| {
        let text = args.get(at).unwrap_or_default();
        parse_db(text, Failure::Text("")).ok()
    };
    names.databases(args).filter_map(db).collect()
}

pub(crate) fn parse_index(text: &[u8], not_a_number: Failure) -> Result<i32, Failure> {
    parse_integer(text)
        .and_then(|index| i32::try_from(index).ok())
        .ok_or(not_a_number)
}

pub(crate) fn in_range(index: i32) -> Result<u8, Failure> {
    u8::try_from(index)
        .ok()
        .filter(|db| usize::from(*db) < DBS)
        .ok_or(DB_OUT_OF_RANGE)
}

/// Creates a table, with its own level or the server's. Must not be called while a guard is held.
/// The table is durable when `Log::changed` is.
pub(crate) fn create_table(
    shared: &Shared,
    name: &str,
    level: Option<Level>,
) -> Result<TableId, duramen::Error> {
    // Set the level before the table can be found: its first write is answered at its level.
    let tell = |table| shared.commands.levels.set(table, level);
    match shared.durability() {
        Some(durability) => {
            durability.log().check_disk()?; // a full disk: the client would wait for space
            durability.store().begin_table(name, level, tell)
        }
        None => Ok(shared.store().tables().create_told(name, level, tell)?),
    }
}

/// Creates a table. The client's replies wait until it is durable; the thread does not.
pub(crate) fn create(
    shared: &Shared,
    client: &mut Client,
    name: &str,
    level: Option<Level>,
) -> Result<TableId, duramen::Error> {
    let table = create_table(shared, name, level)?;
    tables_changed(shared, client);
    Ok(table)
}

/// The client's replies wait until all changes of tables are durable.
pub(crate) fn tables_changed(shared: &Shared, client: &mut Client) {
    if let Some(log) = shared.store().log() {
        client.wait.join(&log.changed(), Level::Synced);
    }
}

/// The table of a database, created at its first use. Must not be called while a guard is held.
pub(crate) fn table_for(shared: &Shared, client: &mut Client, db: u8) -> Result<TableId, Failure> {
    if let Some(table) = table_behind(shared, db) {
        return Ok(table);
    }
    if shared.membership().is_some() {
        return Ok(DROPPED); // the coordinator creates tables; requests get an error
    }
    let name = format!("db{db}");
    for _ in 0..TABLE_ATTEMPTS_MAX {
        let table = match create(shared, client, &name, None) {
            Ok(table) => Some(table),
            // Another thread or DURAMEN.TABLE created the table first; it may be dropped again by
            // now.
            Err(duramen::Error::TableExists(_)) => shared.store().tables().find(&name),
            Err(error) => return Err(error.into()),
        };
        if let Some(table) = table {
            return put_behind(shared, db, table);
        }
    }
    Err(DROPPED_NOW)
}

/// The table behind the database, if it still exists.
fn table_behind(shared: &Shared, db: u8) -> Option<TableId> {
    // A table that was dropped while another client assigned it may still be assigned.
    let table = shared.commands.table(db)?;
    let exists = shared.membership().is_some() || shared.store().tables().has(table);
    exists.then_some(table)
}

/// Assigns a table to a database that has none, and returns the database's table.
pub(crate) fn put_behind(shared: &Shared, db: u8, table: TableId) -> Result<TableId, Failure> {
    let commands = &shared.commands;
    let _places = commands.lock_places();
    // SWAPDB may have assigned another table since.
    if let Some(other) = table_behind(shared, db) {
        return Ok(other);
    }
    if commands.tables().contains(&Some(table)) && commands.table(db) != Some(table) {
        return Err(Failure::Owned(
            format!(
                "ERR database {db} has no table: SWAPDB put `db{db}` behind another database; \
                 exchange them again"
            )
            .into(),
        ));
    }
    commands.set_table(db, Some(table));
    Ok(table)
}

/// The table of a database for a command. Within EXEC it is the table that EXEC found, because none
/// can be created under its guard.
pub(crate) fn table_in(ctx: &mut Context<'_>, db: u8) -> Result<TableId, Failure> {
    match ctx.thread.exec.dbs() {
        None => table_for(ctx.shared, ctx.client, db),
        Some(tables) => tables
            .get(usize::from(db))
            .copied()
            .flatten()
            .ok_or(DROPPED_NOW),
    }
}

/// Whether the log fails. While it does, each request is a turn of its own.
#[inline]
pub(crate) fn log_fails(shared: &Shared) -> bool {
    shared.commands.gate() & global::FAILED != 0
}

/// Makes the reply wait for an exchange of databases (I2). Called after a request ran, before its
/// reply is sent.
#[inline]
pub(crate) fn observe(shared: &Shared, thread: &mut Thread, client: &mut Client, ran: &Spec) {
    if shared.commands.gate() & global::EXCHANGED != 0 && tells_of_data(ran) {
        observe_slowly(shared, thread, client, ran);
    }
}

#[cold]
fn observe_slowly(shared: &Shared, thread: &mut Thread, client: &mut Client, spec: &Spec) {
    let commands = &shared.commands;
    // Transactions, COPY and MOVE may reach several databases.
    let is_one = spec.kind() != Kind::Alone;
    let db = match client.db() {
        Db::Table(_) if is_one => return, // its table is behind no database
        Db::Number(db) => is_one.then_some(db),
        Db::Table(_) => None,
    };
    if let Some(position) = commands.awaited_exchange(shared.store().log(), db) {
        let level = thread.level_of(shared, client);
        client.wait.join(&position, level);
    }
}

/// After loading, assigns every table to its database.
///
/// # Errors
/// [`Error::TooManySessions`].
pub fn restore(shared: &Shared, store: &Arc<Store>) -> Result<(), Error> {
    let tables = store.tables().list();
    for table in &tables {
        let number = table.name.strip_prefix("db").map(str::as_bytes);
        let number = number.filter(|_| table.name != NOT_FIRST);
        if let Some(Ok(db)) = number.map(|number| parse_db(number, Failure::Text(""))) {
            shared.commands.set_table(db, Some(table.id));
        }
    }
    let Some(own) = store.tables().find(TABLE) else {
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
