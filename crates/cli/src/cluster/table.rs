//! `duramen table … --coordinator`: tables of a cluster.

use super::{Cluster, names, say, unfit};
use crate::client::TableCommand;
use crate::failure::Failure;
use duramen_base::ids::{Level, ServerId, TableId};
use duramen_client::{Admin, AdminAnswer};
use duramen_wire::native::message::{ServerStatus, Status, TableEntry};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fmt::Write as _;

/// A command about tables, and the cluster that it is for.
pub(crate) struct ClusterTable<'c> {
    pub(crate) command: &'c TableCommand,
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
            let status = cluster.status()?;
            let table = names::table(&status, text(name)?)?.table;
            say(json, &format!("{table}\n"), &json!(table.0))
        }
        TableCommand::Drop { name } => {
            let name = text(name)?;
            cluster.ask(Admin::DropTable {
                name: name.to_owned(),
            })?;
            say(json, "", &json!({ "dropped": name }))
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
        None => masters(&cluster.status()?).max(1),
    };
    let create = Admin::CreateTable {
        name: name.to_owned(),
        servers,
        level: level.and_then(Level::from_name),
    };
    let AdminAnswer::Table(entry) = cluster.ask(create)? else {
        return Err(unfit(&AdminAnswer::Done));
    };
    let status = cluster.status()?;
    let (tablets, owners) = spread(&status, entry.table);
    let said = format!(
        "table `{name}` has id {}: {}\n",
        entry.table,
        parts(tablets, owners)
    );
    say(json, &said, &as_json(&status, &entry))
}

/// Members that can own tablets.
fn masters(status: &Status) -> u32 {
    let up = status
        .servers
        .iter()
        .filter(|entry| entry.status == ServerStatus::Up && entry.roles.master && !entry.draining);
    up.count() as u32
}

fn parts(tablets: usize, owners: usize) -> String {
    let plural = |n: usize, what: &str| format!("{n} {what}{}", if n == 1 { "" } else { "s" });
    format!(
        "{} on {}",
        plural(tablets, "tablet"),
        plural(owners, "server")
    )
}

/// How many tablets a table has, and how many owners.
pub(super) fn spread(status: &Status, table: TableId) -> (usize, usize) {
    let of_table = status.tablets.iter().filter(|route| route.table == table);
    let owners: BTreeSet<ServerId> = of_table.clone().map(|route| route.owner).collect();
    (of_table.count(), owners.len())
}

pub(super) fn as_json(status: &Status, entry: &TableEntry) -> Value {
    let (tablets, servers) = spread(status, entry.table);
    json!({
        "id": entry.table.0,
        "name": entry.name,
        "level": entry.level.map(Level::name),
        "tablets": tablets,
        "servers": servers,
    })
}

fn list(cluster: &Cluster, json: bool) -> Result<(), Failure> {
    let status = cluster.status()?;
    let all = status.tables.iter().map(|entry| as_json(&status, entry));
    say(
        json,
        &lines(&status),
        &Value::from(all.collect::<Vec<Value>>()),
    )
}

/// One line per table, below a heading.
pub(super) fn lines(status: &Status) -> String {
    let mut text = format!("{:<6} {:<24} {:<9} {}\n", "id", "table", "level", "tablets");
    for entry in &status.tables {
        let level = entry.level.map_or("default", Level::name);
        let (tablets, owners) = spread(status, entry.table);
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
