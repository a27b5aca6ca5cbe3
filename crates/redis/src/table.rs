//! The command table: the rows of all files of commands.
//!
//! Names, arities, flags and key positions are those of Redis, because clients read them
//! (`COMMAND`).

use crate::access::commands as acl;
use crate::command::flag::{FAST, NO_AUTH};
use crate::command::spec::{Commands, Hooks, Spec};
use crate::connection::{client, client_list, commands as connection};
use crate::figures::totals::CommandTotals;
use crate::keyspace::{databases, dump, expire, keys, scan, sort};
use crate::operation::{
    absent, cluster, command, config, duramen, info, latency, memory, persistence, server, slowlog,
};
use crate::pubsub::commands as pubsub;
use crate::script::{commands as script, function};
use crate::state::Shared;
use crate::state::shared::totals;
use crate::tracking::commands as tracking;
use crate::values::{
    bitmap, blocking, geo, hash, hyperloglog, list, multi_key, set, stream, string, zset,
};
use crate::{monitor, transaction};
use duramen_acl::{CATEGORIES, Catalog, Command};

/// The rows of all files of commands, in the order in which `COMMAND` lists them.
const LISTS: &[&[Spec]] = &[
    connection::COMMANDS,
    databases::COMMANDS,
    string::COMMANDS,
    multi_key::COMMANDS,
    hash::COMMANDS,
    list::COMMANDS,
    blocking::COMMANDS,
    set::COMMANDS,
    zset::COMMANDS,
    zset::range::COMMANDS,
    zset::combine::COMMANDS,
    bitmap::COMMANDS,
    hyperloglog::COMMANDS,
    geo::COMMANDS,
    stream::COMMANDS,
    stream::read::COMMANDS,
    stream::group::COMMANDS,
    stream::claim::COMMANDS,
    stream::info::COMMANDS,
    dump::COMMANDS,
    sort::COMMANDS,
    keys::COMMANDS,
    expire::COMMANDS,
    scan::COMMANDS,
    pubsub::COMMANDS,
    transaction::commands::COMMANDS,
    script::COMMANDS,
    function::COMMANDS,
    info::COMMANDS,
    config::COMMANDS,
    server::COMMANDS,
    persistence::COMMANDS,
    monitor::COMMANDS,
    slowlog::COMMANDS,
    latency::COMMANDS,
    memory::COMMANDS,
    client::COMMANDS,
    client_list::COMMANDS,
    tracking::COMMANDS,
    command::COMMANDS,
    cluster::COMMANDS,
    duramen::COMMANDS,
    acl::COMMANDS,
    absent::COMMANDS,
];

/// The command table.
pub static COMMANDS: Commands = Commands::new(&ROWS, HOOKS);

const HOOKS: Hooks = Hooks {
    note_reads: tracking::note_reads,
    refused_late: acl::refused_late,
};

/// All rows; a command's position is its number.
static ROWS: [Spec; count(LISTS)] = collect(LISTS);

const fn count(lists: &[&[Spec]]) -> usize {
    let (mut list, mut rows) = (0, 0);
    while list < lists.len() {
        rows += lists[list].len();
        list += 1;
    }
    rows
}

const fn collect<const N: usize>(lists: &[&[Spec]]) -> [Spec; N] {
    let mut rows = [lists[0][0]; N];
    let (mut list, mut number) = (0, 0);
    while list < lists.len() {
        let mut n = 0;
        while n < lists[list].len() {
            rows[number] = lists[list][n];
            rows[number].number = number;
            number += 1;
            n += 1;
        }
        list += 1;
    }
    rows
}

// The requests of native clients count as calls of these commands.
pub static GET: &Spec = COMMANDS.named("get");
pub static SET: &Spec = COMMANDS.named("set");
pub static DEL: &Spec = COMMANDS.named("del");
pub static SCAN: &Spec = COMMANDS.named("scan");
pub static INCRBY: &Spec = COMMANDS.named("incrby");
pub static INCRBYFLOAT: &Spec = COMMANDS.named("incrbyfloat");

/// Every command with its counters since the server started: these never decrease.
pub fn commands_since_start(
    shared: &Shared,
) -> impl Iterator<Item = (&'static Spec, CommandTotals)> {
    COMMANDS
        .rows()
        .iter()
        .zip(totals::commands_since_start(shared))
}

/// The commands, as rules of users see them.
pub fn catalog() -> Catalog {
    Catalog::new(COMMANDS.rows().iter().map(|spec| Command {
        name: spec.name,
        categories: categories(spec),
        is_free: spec.has(NO_AUTH),
    }))
}

fn categories(spec: &Spec) -> u32 {
    let mut bits = 0;
    let mut add = |name: &str| {
        let bit = CATEGORIES.iter().position(|known| *known == name);
        bits |= bit.map_or(0, |bit| 1 << bit);
    };
    for name in spec.categories() {
        add(name.trim_start_matches('@'));
    }
    if !spec.has(FAST) && !spec.is_refused() {
        add("slow");
    }
    bits
}
