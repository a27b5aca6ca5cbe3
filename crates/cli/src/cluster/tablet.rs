//! `duramen tablet`: lists, splits and moves tablets.

use super::{Cluster, ask_patiently, names, place, say, unfit};
use crate::arguments::Duration;
use crate::failure::Failure;
use clap::{Args, Subcommand};
use duramen_base::ids::{KeyRange, MigrationId, RouteHash, TableId};
use duramen_client::{Admin, AdminAnswer};
use duramen_format::hash::KeyHasher;
use duramen_wire::native::message::{Overview, ServerStatus, Status, TableEntry, TabletRoute};
use serde_json::{Value, json};
use std::ffi::OsString;
use std::fmt::Write as _;
use std::os::unix::ffi::OsStrExt as _;
use std::time::Instant;

/// The table of RESP's database 0.
pub(super) const RESP_TABLE: &str = "db0";

#[derive(Subcommand)]
pub(crate) enum TabletCommand {
    /// Print the tablets of a table, or of all: range, owner, state.
    #[command(after_help = LIST_HELP)]
    List {
        /// The table's name; without, all tables.
        #[arg(value_name = "TABLE")]
        name: Option<String>,
    },
    /// Cut a tablet in two. Both parts stay on their server.
    #[command(after_help = SPLIT_HELP)]
    Split(SplitArgs),
    /// Move a range of a table to another server, while it is served.
    #[command(after_help = MIGRATE_HELP)]
    Migrate(MigrateArgs),
}

#[derive(Args)]
pub(crate) struct SplitArgs {
    /// The table's name.
    #[arg(value_name = "TABLE")]
    name: String,
    #[command(flatten)]
    at: SplitPoint,
    /// Refuse unless this server owns the tablet to be cut.
    #[arg(long, value_name = "SERVER")]
    of: Option<String>,
}

/// The place of a cut: the second part begins there.
#[derive(Args)]
#[group(required = true, multiple = false)]
struct SplitPoint {
    /// Before this slot of Redis Cluster (0 to 16383).
    #[arg(long, value_parser = place::slot)]
    slot: Option<u16>,
    /// Before this hash (hexadecimal).
    #[arg(long, value_parser = place::hash)]
    hash: Option<RouteHash>,
    /// Before this key's slot.
    #[arg(long)]
    key: Option<OsString>,
}

#[derive(Args)]
pub(crate) struct MigrateArgs {
    /// The table's name.
    #[arg(value_name = "TABLE")]
    name: String,
    #[command(flatten)]
    range: Range,
    /// Target server: as in `duramen status`, such as 2.1, or 2, or an address.
    #[arg(long, value_name = "SERVER")]
    to: String,
    /// Return when it has moved, not when it has begun.
    #[arg(long)]
    wait: bool,
    /// With --wait: stop waiting after this time; the move continues.
    #[arg(long, default_value = "10m", value_name = "TIME", requires = "wait")]
    wait_for: Duration,
}

/// The range to move.
#[derive(Args)]
#[group(required = true, multiple = false)]
struct Range {
    /// These slots of Redis Cluster, such as 0-8191 or 42.
    #[arg(long, value_parser = place::slots, value_name = "FIRST-LAST")]
    slots: Option<KeyRange>,
    /// These hashes (hexadecimal), such as 0000000000000000-7fffffffffffffff.
    #[arg(long, value_parser = place::hashes, value_name = "FIRST-LAST")]
    hashes: Option<KeyRange>,
    /// All of the table.
    #[arg(long)]
    all: bool,
}

const LIST_HELP: &str = "\
EXAMPLES
  duramen tablet list
  duramen tablet list db0
  duramen tablet list db0 --json | jq '.[] | select(.state != \"served\")'

Exit codes: 0 done, 2 wrong usage, 3 the coordinator refused, 4 no coordinator answered.";

const SPLIT_HELP: &str = "\
EXAMPLES
  duramen tablet split db0 --slot 8192              slots 8192 and up become a tablet of their own
  duramen tablet split orders --hash 80000000c0ffee
  duramen tablet split db0 --key user:7             in front of the slot of that key
  duramen tablet split db0 --slot 100 --of 0.1      only if server 0.1 owns it

Nothing changes if a tablet begins there already. Redis clients find keys by slot, so the table of
RESP (`db0`) is split between slots only.

Exit codes: 0 done, 2 wrong usage, 3 the coordinator refused, 4 no coordinator answered.";

const MIGRATE_HELP: &str = "\
EXAMPLES
  duramen tablet migrate db0 --slots 0-1000 --to 2.1
  duramen tablet migrate orders --hashes 0-3fffffffffffffff --to 2 --wait
  duramen tablet migrate orders --all --to 10.0.0.7:7379

Tablets are split where the range begins and ends. The old owner serves the range until the new owner
has all data. If one of the two crashes before that, the range stays with the old owner.

Exit codes: 0 begun (--wait: done), 2 wrong usage, 3 refused, 4 no coordinator answered.";

pub(crate) fn run(command: &TabletCommand, cluster: &Cluster, json: bool) -> Result<(), Failure> {
    match command {
        TabletCommand::List { name } => list(cluster, name.as_deref(), json),
        TabletCommand::Split(split) => cut(cluster, split, json),
        TabletCommand::Migrate(migrate) => move_range(cluster, migrate, json),
    }
}

fn list(cluster: &Cluster, name: Option<&str>, json: bool) -> Result<(), Failure> {
    let status = cluster.status()?;
    let table = match name {
        Some(name) => Some(names::table(&status, name)?.table),
        None => None,
    };
    let all = chosen(&status, table).map(|route| as_json(&status, route));
    let value = Value::from(all.collect::<Vec<Value>>());
    say(json, &lines(&status, table), &value)
}

fn chosen(status: &Status, only: Option<TableId>) -> impl Iterator<Item = &TabletRoute> {
    let all = status.tablets.iter();
    all.filter(move |route| only.is_none_or(|only| only == route.table))
}

/// Whether a server serves it, as one word.
fn served(status: &Status, route: &TabletRoute) -> &'static str {
    let mut servers = status.servers.iter();
    let owner = servers.find(|entry| entry.server == route.owner);
    let is_up = owner.is_some_and(|entry| entry.status == ServerStatus::Up);
    match (route.served, is_up) {
        (true, _) => "served",
        (false, true) if route.moving_to.is_some() => "switching",
        (false, true) => "opening",
        (false, false) => "recovering",
    }
}

/// The present state of a tablet.
fn state(status: &Status, route: &TabletRoute) -> String {
    match (route.served, route.moving_to) {
        (false, _) => served(status, route).to_owned(),
        (true, Some(to)) => format!("moving to {to}"),
        (true, None) => "served".to_owned(),
    }
}

/// One line per tablet, below a heading.
pub(super) fn lines(status: &Status, only: Option<TableId>) -> String {
    let mut text = format!(
        "{:<24} {:<8} {:<16} {}\n",
        "table", "owner", "state", "range"
    );
    for route in chosen(status, only) {
        let _ = writeln!(
            text,
            "{:<24} {:<8} {:<16} {}",
            names::of_table(status, route.table),
            route.owner.to_string(),
            state(status, route),
            place::show(&route.range)
        );
    }
    text
}

pub(super) fn as_json(status: &Status, route: &TabletRoute) -> Value {
    let whole = place::is_whole_slots(&route.range);
    json!({
        "table": names::of_table(status, route.table),
        "first_hash": route.range.first.to_string(),
        "last_hash": route.range.last.to_string(),
        "first_slot": whole.then_some(route.range.first.slot()),
        "last_slot": whole.then_some(route.range.last.slot()),
        "owner": route.owner.to_string(),
        "state": served(status, route),
        "moving_to": route.moving_to.map(|to| to.to_string()),
    })
}

impl SplitPoint {
    fn hash(&self, status: &Status) -> Result<RouteHash, Failure> {
        match (self.slot, self.hash, &self.key) {
            (Some(slot), _, _) => Ok(RouteHash::first_of_slot(slot)),
            (_, Some(hash), _) => Ok(hash),
            (_, _, Some(key)) => {
                let hasher = KeyHasher::new(status.settings.hash_seed);
                let slot = hasher.route(key.as_bytes()).slot();
                Ok(RouteHash::first_of_slot(slot))
            }
            _ => Err(Failure::Usage(
                "say where: --slot, --hash or --key".to_owned(),
            )),
        }
    }
}

/// RESP clients find keys by slot: a slot has one owner.
fn check_slots(table: &TableEntry, edge: RouteHash) -> Result<(), Failure> {
    let slot = edge.slot();
    if table.name != RESP_TABLE || edge == RouteHash::first_of_slot(slot) {
        return Ok(());
    }
    Err(Failure::Usage(format!(
        "{edge} lies within slot {slot}, and Redis clients look for keys of `{RESP_TABLE}` by slot: cut it in front of \
         slot {slot} or {}",
        slot + 1
    )))
}

fn cut(cluster: &Cluster, split: &SplitArgs, json: bool) -> Result<(), Failure> {
    let status = cluster.status()?;
    let table = names::table(&status, &split.name)?;
    let at = split.at.hash(&status)?;
    check_slots(table, at)?;
    if let Some(of) = &split.of {
        let server = names::server(&status, of)?.server;
        let found = chosen(&status, Some(table.table)).find(|route| route.range.contains(at));
        if let Some(route) = found.filter(|route| route.owner != server) {
            return Err(Failure::Coordinator(format!(
                "{at} lies in {} of table `{}`, which is server {}'s, not {server}'s",
                place::show(&route.range),
                split.name,
                route.owner
            )));
        }
    }
    cluster.ask(Admin::Split {
        table: table.table,
        at,
    })?;
    say(
        json,
        "",
        &json!({ "table": split.name, "at": at.to_string() }),
    )
}

impl Range {
    fn range(&self) -> KeyRange {
        self.slots.or(self.hashes).unwrap_or(KeyRange::ALL)
    }
}

fn move_range(cluster: &Cluster, migrate: &MigrateArgs, json: bool) -> Result<(), Failure> {
    let status = cluster.status()?;
    let table = names::table(&status, &migrate.name)?;
    let range = migrate.range.range();
    check_slots(table, range.first)?;
    if let Some(after) = range.last.next() {
        check_slots(table, after)?;
    }
    let to = names::server(&status, &migrate.to)?.server;
    let ask = Admin::Migrate {
        table: table.table,
        range,
        to,
    };
    let begun = match cluster.ask(ask)? {
        AdminAnswer::Migrating(begun) => begun,
        other => return Err(unfit(&other)),
    };
    let ids: Vec<String> = begun.iter().map(|id| format!("{id}")).collect();
    let value = json!({ "to": to.to_string(), "migrations": ids });
    if begun.is_empty() {
        let text = format!("server {to} owns all of {} already\n", place::show(&range));
        return say(json, &text, &value);
    }
    if !migrate.wait {
        let what = if begun.len() == 1 {
            "tablet moves"
        } else {
            "tablets move"
        };
        let text = format!("{} {what} to {to}; see `duramen status`\n", begun.len());
        return say(json, &text, &value);
    }
    let until = Instant::now() + std::time::Duration::from_millis(migrate.wait_for.ms);
    wait(until, || {
        let overview = cluster.overview();
        overview.map(|overview| is_under_way(&overview, &begun))
    })?;
    // A migration ends by success or failure: the owner shows which.
    let status = ask_patiently(until, MOVE, || cluster.status())?;
    let stayed = chosen(&status, Some(table.table))
        .find(|route| route.range.overlaps(&range) && route.owner != to);
    if let Some(route) = stayed {
        let ended = status.migrations_ended.iter().rev();
        let mut reasons = ended.filter(|ended| begun.contains(&ended.migration));
        let why = reasons.find_map(|ended| ended.reason.clone());
        return Err(Failure::Coordinator(format!(
            "{} has not moved, server {} still owns it: {}",
            place::show(&route.range),
            route.owner,
            why.unwrap_or_else(|| "a server crashed meanwhile".to_owned())
        )));
    }
    say(
        json,
        &format!("{} is at {to} now\n", place::show(&range)),
        &value,
    )
}

/// The name of the operation, which continues while a coordinator restarts.
const MOVE: &str = "the move";

/// Whether any of these may be in progress.
fn is_under_way(overview: &Overview, begun: &[MigrationId]) -> bool {
    let shown = &overview.status.migrations;
    // A very long list is cut: then wait until there are fewer.
    let is_cut = overview.migrations > shown.len() as u64;
    is_cut || shown.iter().any(|one| begun.contains(&one.migration))
}

/// Waits until nothing is under way.
fn wait(until: Instant, is_under_way: impl Fn() -> Result<bool, Failure>) -> Result<(), Failure> {
    while ask_patiently(until, MOVE, &is_under_way)? {
        if Instant::now() >= until {
            return Err(Failure::Coordinator(
                "it is still in progress: see `duramen status`".to_owned(),
            ));
        }
        std::thread::sleep(std::time::Duration::from_millis(100));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    /// `duramen tablet migrate --wait` ended when its coordinator was started again.
    #[test]
    fn a_move_is_waited_for_while_a_coordinator_restarts() {
        let asked = Cell::new(0);
        let is_under_way = || {
            asked.set(asked.get() + 1);
            match asked.get() {
                1 => Err(Failure::NotReady {
                    within: std::time::Duration::ZERO,
                    reason: "it reads its store".to_owned(),
                }),
                n => Ok(n < 4),
            }
        };
        let until = Instant::now() + std::time::Duration::from_secs(60);
        assert!(wait(until, is_under_way).is_ok());
        assert_eq!(asked.get(), 4);
        let late = wait(Instant::now(), || Ok(true));
        assert!(matches!(late, Err(Failure::Coordinator(_))));
    }
}
