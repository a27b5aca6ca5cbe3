//! `duramen table … --coordinator`: tables of a cluster.

use super::{Cluster, names, say, unfit};
use crate::failure::Failure;
use clap::Subcommand;
use duramen_base::ids::{Level, TableId};
use duramen_client::{Admin, AdminAnswer};
use duramen_wire::native::message::{Overview, ServerStatus, Status, TableEntry};
use serde_json::{Value, json};
use std::ffi::{OsStr, OsString};
use std::fmt::Write as _;

#[derive(Subcommand)]
pub(crate) enum TableCommand {
    /// Print the names, ids, sizes and levels of all tables.
    List,
    /// Create a table; prints its id.
    Create {
        name: OsString,
        /// Level at which writes to it are acknowledged: memory, buffered or synced; without, the
        /// server's setting.
        #[arg(long, value_name = "LEVEL", value_parser = ["memory", "buffered", "synced"])]
        level: Option<String>,
        /// In a cluster: spread over this many servers; without, over all that are up.
        #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=16384))]
        servers: Option<u32>,
    },
    /// Print the id of a table.
    Id { name: OsString },
    /// Remove a table and all objects in it.
    Drop { name: OsString },
}

/// A command about tables, and its cluster.
pub(crate) struct ClusterTable<'c> {
    pub(crate) command: &'c TableCommand,
    /// The cluster's coordinators, for messages.
    pub(crate) at: &'c str,
    pub(crate) json: bool,
}

pub(crate) fn run(asked: &ClusterTable<'_>, cluster: &Cluster) -> Result<(), Failure> {
    let json = asked.json;
    match asked.command {
        TableCommand::List => list(cluster, json),
        TableCommand::Create {
            name,
            level,
            servers,
        } => create(cluster, text(name)?, *servers, level.as_deref(), json),
        TableCommand::Id { name } => {
            let overview = cluster.overview()?;
            let table = names::table(&overview.status, text(name)?)?.table;
            say(json, &format!("{table}\n"), &json!(table.0))
        }
        TableCommand::Drop { name } => {
            let name = text(name)?;
            cluster.ask(Admin::DropTable {
                name: name.to_owned(),
            })?;
            let said = format!("dropped table `{name}` of the cluster at {}\n", asked.at);
            say(
                json,
                &said,
                &json!({ "dropped": name, "cluster": asked.at }),
            )
        }
    }
}

fn text(name: &OsStr) -> Result<&str, Failure> {
    let wrong = || Failure::Usage("a table's name in a cluster is UTF-8".to_owned());
    name.to_str().ok_or_else(wrong)
}

fn create(
    cluster: &Cluster,
    name: &str,
    servers: Option<u32>,
    level: Option<&str>,
    json: bool,
) -> Result<(), Failure> {
    let servers = match servers {
        Some(servers) => servers,
        None => masters(&cluster.overview()?.status).max(1),
    };
    let create = Admin::CreateTable {
        name: name.to_owned(),
        servers,
        level: level.and_then(Level::from_name),
    };
    let AdminAnswer::Table(entry) = cluster.ask(create)? else {
        return Err(unfit(&AdminAnswer::Done));
    };
    let overview = cluster.overview()?;
    let (tablets, owners) = spread(&overview, entry.table);
    let said = format!(
        "table `{name}` has id {}: {}\n",
        entry.table,
        parts(tablets, owners)
    );
    say(json, &said, &as_json(&overview, &entry))
}

/// Members that can own tablets.
fn masters(status: &Status) -> u32 {
    let up = status
        .servers
        .iter()
        .filter(|entry| entry.status == ServerStatus::Up && entry.roles.master && !entry.draining);
    up.count() as u32
}

fn parts(tablets: u64, owners: u64) -> String {
    let plural = |n: u64, what: &str| format!("{n} {what}{}", if n == 1 { "" } else { "s" });
    format!(
        "{} on {}",
        plural(tablets, "tablet"),
        plural(owners, "server")
    )
}

/// Number of tablets of a table, and of their owners.
fn spread(overview: &Overview, table: TableId) -> (u64, u64) {
    let found = overview.tables.iter().find(|share| share.table == table);
    found.map_or((0, 0), |share| (share.tablets, share.owners))
}

pub(super) fn as_json(overview: &Overview, entry: &TableEntry) -> Value {
    let (tablets, servers) = spread(overview, entry.table);
    json!({
        "id": entry.table.0,
        "name": entry.name,
        "level": entry.level.map(Level::name),
        "tablets": tablets,
        "servers": servers,
    })
}

fn list(cluster: &Cluster, json: bool) -> Result<(), Failure> {
    let overview = cluster.overview()?;
    let tables = overview.status.tables.iter();
    let all = tables.map(|entry| as_json(&overview, entry));
    say(
        json,
        &lines(&overview),
        &Value::from(all.collect::<Vec<Value>>()),
    )
}

/// One line per table, below a heading.
pub(super) fn lines(overview: &Overview) -> String {
    let mut text = format!("{:<6} {:<24} {:<9} {}\n", "id", "table", "level", "tablets");
    for entry in &overview.status.tables {
        let level = entry.level.map_or("default", Level::name);
        let (tablets, owners) = spread(overview, entry.table);
        let spread = match tablets {
            0 => "none yet: `duramen table create` makes them".to_owned(),
            _ => parts(tablets, owners),
        };
        let _ = writeln!(
            text,
            "{:<6} {:<24} {level:<9} {spread}",
            entry.table.0, entry.name
        );
    }
    text
}
