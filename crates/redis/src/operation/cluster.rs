//! CLUSTER: the commands of Redis Cluster's clients and tools, answered from this member's view of
//! the cluster.
//!
//! Nodes are servers of the coordinator's list, and slots are the tablets of the table `db0`. Every
//! node is a master: other members store replicas of the data as segments of the log, which serve
//! no requests, so there are no replicas in Redis's sense. Commands that change a Redis Cluster are
//! refused, because here the coordinator decides.

use super::cluster_slots::{Span, spans};
use crate::command::cold;
use crate::command::context::{Context, Done, Failure, NOT_AN_INTEGER, YIELDS};
use crate::command::row::*;
use crate::command::store_access::Access;
use crate::keyspace::scan::{LOOKS_PER_SLICE, note_walked};
use crate::membership::Membership;
use crate::state::parking::Walk;
use duramen_base::ids::{KeyRange, RouteHash, ServerId, TableId};
use duramen_engine::{Guard, Object};
use duramen_format::hash::{SLOTS, slot};
use duramen_node::View;
use duramen_wire::native::message::Addresses;
use duramen_wire::resp::Encoder;
use duramen_wire::resp::number::parse_integer;
use std::collections::BTreeSet;
use std::fmt::Write;
use std::sync::Arc;

#[rustfmt::skip] // They are rows of a table.
pub(crate) const COMMANDS: &[Spec] = &[
    container("cluster", doc(Topic::Cluster, "3.0.0", "Depends on the subcommand", "A container for commands about the cluster.")),
    row("cluster|info", 2, STALE | REPORTS, doc(Topic::Cluster, "3.0.0", "O(1)", "Returns information about the cluster."),
        Keys::NONE, Effect::Acts, Secrets::None, Run::Plain(info)).tips(&["nondeterministic_output"]),
    row("cluster|keyslot", 3, STALE | REPORTS,
        doc(Topic::Cluster, "3.0.0", "O(N) where N is the number of bytes in the key", "Returns the hash slot of a key."),
        Keys::NONE, Effect::Acts, Secrets::None, Run::Plain(keyslot)),
    row("cluster|links", 2, STALE | REPORTS,
        doc(Topic::Cluster, "7.0.0", "O(N) where N is the total number of Cluster nodes", "Returns the bus connections to other servers: there are none."),
        Keys::NONE, Effect::Acts, Secrets::None, Run::Plain(links)).tips(&["nondeterministic_output"]),
    row("cluster|myid", 2, STALE | REPORTS, doc(Topic::Cluster, "3.0.0", "O(1)", "Returns the id of this server."),
        Keys::NONE, Effect::Acts, Secrets::None, Run::Plain(myid)),
    row("cluster|nodes", 2, STALE | REPORTS,
        doc(Topic::Cluster, "3.0.0", "O(N) where N is the total number of Cluster nodes", "Returns the servers of the cluster and their slots."),
        Keys::NONE, Effect::Acts, Secrets::None, Run::Plain(nodes)).tips(&["nondeterministic_output"]),
    row("cluster|shards", 2, STALE | REPORTS,
        doc(Topic::Cluster, "7.0.0", "O(N) where N is the total number of cluster nodes", "Returns the servers of the cluster and their slots."),
        Keys::NONE, Effect::Acts, Secrets::None, Run::Plain(shards)).tips(&["nondeterministic_output"]),
    row("cluster|slots", 2, STALE | REPORTS,
        doc(Topic::Cluster, "3.0.0", "O(N) where N is the total number of Cluster nodes", "Returns ranges of slots and who serves them."),
        Keys::NONE, Effect::Acts, Secrets::None, Run::Plain(slots)).tips(&["nondeterministic_output"]),
    row("cluster|myshardid", 2, STALE | REPORTS, doc(Topic::Cluster, "7.2.0", "O(1)", "Returns the id of this server, which is its shard."),
        Keys::NONE, Effect::Acts, Secrets::None, Run::Plain(myid)),
    row("cluster|countkeysinslot", 3, STALE | WHOLE | TIMED | REPORTS,
        doc(Topic::Cluster, "3.0.0", "O(N)", "Returns the number of keys of a slot that this server has."),
        Keys::NONE, Effect::Acts, Secrets::None, Run::Alone(countkeysinslot)),
    row("cluster|getkeysinslot", 4, STALE | WHOLE | TIMED | REPORTS,
        doc(Topic::Cluster, "3.0.0", "O(N)", "Returns keys of a slot that this server has."),
        Keys::NONE, Effect::Acts, Secrets::None, Run::Alone(getkeysinslot)).tips(&["nondeterministic_output"]),
    row("cluster|count-failure-reports", 3, ADMIN | STALE | DANGEROUS | REPORTS,
        doc(Topic::Cluster, "3.0.0", "O(N) where N is the number of failure reports", "Returns 0: servers report failures to the coordinator."),
        Keys::NONE, Effect::Acts, Secrets::None, Run::Plain(count_failure_reports)).tips(&["nondeterministic_output"]),
    row("cluster|replicas", 3, ADMIN | STALE | DANGEROUS | REPORTS,
        doc(Topic::Cluster, "5.0.0", "O(N) where N is the number of replicas", "Returns the replicas of a server that serve requests: there are none."),
        Keys::NONE, Effect::Acts, Secrets::None, Run::Plain(replicas)).tips(&["nondeterministic_output"]),
    row("cluster|slaves", 3, ADMIN | STALE | DANGEROUS | REPORTS,
        doc(Topic::Cluster, "3.0.0", "O(N) where N is the number of replicas", "Returns the replicas of a server that serve requests: there are none."),
        Keys::NONE, Effect::Acts, Secrets::None, Run::Plain(replicas)).tips(&["nondeterministic_output"]),
    row("cluster|help", 2, LOADING | STALE | REPORTS, doc(Topic::Cluster, "5.0.0", "O(1)", "Lists the subcommands."),
        Keys::NONE, Effect::Acts, Secrets::None, Run::Plain(help)),
    row("cluster|addslots", -3, ADMIN | STALE | NO_ASYNC_LOADING | DANGEROUS | REPORTS,
        doc(Topic::Cluster, "3.0.0", "O(1)", "Refused: the coordinator decides that."),
        Keys::NONE, Effect::Acts, Secrets::None, Run::Plain(decided_elsewhere)),
    row("cluster|addslotsrange", -4, ADMIN | STALE | NO_ASYNC_LOADING | DANGEROUS | REPORTS,
        doc(Topic::Cluster, "7.0.0", "O(1)", "Refused: the coordinator decides that."),
        Keys::NONE, Effect::Acts, Secrets::None, Run::Plain(decided_elsewhere)),
    row("cluster|bumpepoch", 2, ADMIN | STALE | NO_ASYNC_LOADING | DANGEROUS | REPORTS,
        doc(Topic::Cluster, "3.0.0", "O(1)", "Refused: the coordinator decides that."),
        Keys::NONE, Effect::Acts, Secrets::None, Run::Plain(decided_elsewhere)).tips(&["nondeterministic_output"]),
    row("cluster|delslots", -3, ADMIN | STALE | NO_ASYNC_LOADING | DANGEROUS | REPORTS,
        doc(Topic::Cluster, "3.0.0", "O(1)", "Refused: the coordinator decides that."),
        Keys::NONE, Effect::Acts, Secrets::None, Run::Plain(decided_elsewhere)),
    row("cluster|delslotsrange", -4, ADMIN | STALE | NO_ASYNC_LOADING | DANGEROUS | REPORTS,
        doc(Topic::Cluster, "7.0.0", "O(1)", "Refused: the coordinator decides that."),
        Keys::NONE, Effect::Acts, Secrets::None, Run::Plain(decided_elsewhere)),
    row("cluster|failover", -2, ADMIN | STALE | NO_ASYNC_LOADING | DANGEROUS | REPORTS,
        doc(Topic::Cluster, "3.0.0", "O(1)", "Refused: the coordinator decides that."),
        Keys::NONE, Effect::Acts, Secrets::None, Run::Plain(decided_elsewhere)),
    row("cluster|flushslots", 2, ADMIN | STALE | NO_ASYNC_LOADING | DANGEROUS | REPORTS,
        doc(Topic::Cluster, "3.0.0", "O(1)", "Refused: the coordinator decides that."),
        Keys::NONE, Effect::Acts, Secrets::None, Run::Plain(decided_elsewhere)),
    row("cluster|forget", 3, ADMIN | STALE | NO_ASYNC_LOADING | DANGEROUS | REPORTS,
        doc(Topic::Cluster, "3.0.0", "O(1)", "Refused: the coordinator decides that."),
        Keys::NONE, Effect::Acts, Secrets::None, Run::Plain(decided_elsewhere)),
    row("cluster|meet", -4, ADMIN | STALE | NO_ASYNC_LOADING | DANGEROUS | REPORTS,
        doc(Topic::Cluster, "3.0.0", "O(1)", "Refused: the coordinator decides that."),
        Keys::NONE, Effect::Acts, Secrets::None, Run::Plain(decided_elsewhere)),
    row("cluster|replicate", 3, ADMIN | STALE | NO_ASYNC_LOADING | DANGEROUS | REPORTS,
        doc(Topic::Cluster, "3.0.0", "O(1)", "Refused: the coordinator decides that."),
        Keys::NONE, Effect::Acts, Secrets::None, Run::Plain(decided_elsewhere)),
    row("cluster|saveconfig", 2, ADMIN | STALE | NO_ASYNC_LOADING | DANGEROUS | REPORTS,
        doc(Topic::Cluster, "3.0.0", "O(1)", "Refused: the coordinator decides that."),
        Keys::NONE, Effect::Acts, Secrets::None, Run::Plain(decided_elsewhere)),
    row("cluster|set-config-epoch", 3, ADMIN | STALE | NO_ASYNC_LOADING | DANGEROUS | REPORTS,
        doc(Topic::Cluster, "3.0.0", "O(1)", "Refused: the coordinator decides that."),
        Keys::NONE, Effect::Acts, Secrets::None, Run::Plain(decided_elsewhere)),
    row("cluster|setslot", -4, ADMIN | STALE | NO_ASYNC_LOADING | DANGEROUS | REPORTS,
        doc(Topic::Cluster, "3.0.0", "O(1)", "Refused: the coordinator decides that."),
        Keys::NONE, Effect::Acts, Secrets::None, Run::Plain(decided_elsewhere)),
    row("cluster|reset", -2, ADMIN | NOSCRIPT | STALE | DANGEROUS | REPORTS,
        doc(Topic::Cluster, "3.0.0", "O(1)", "Refused: the coordinator decides that."),
        Keys::NONE, Effect::Acts, Secrets::None, Run::Plain(decided_elsewhere)),
    row("asking", 1, FAST | CONNECTION | TELLS, doc(Topic::Cluster, "3.0.0", "O(1)", "Accepted: a cluster of this kind never asks for it."),
        Keys::NONE, Effect::Acts, Secrets::None, Run::Plain(accept)),
    row("readonly", 1, LOADING | STALE | FAST | CONNECTION | TELLS,
        doc(Topic::Cluster, "3.0.0", "O(1)", "Accepted: every server serves what it owns, and nothing else."),
        Keys::NONE, Effect::Acts, Secrets::None, Run::Plain(accept)),
    row("readwrite", 1, LOADING | STALE | FAST | CONNECTION | TELLS,
        doc(Topic::Cluster, "3.0.0", "O(1)", "Accepted: every server serves what it owns, and nothing else."),
        Keys::NONE, Effect::Acts, Secrets::None, Run::Plain(accept)),
];

/// The error of a request for the map when there is none. Clients would take an empty map for the
/// whole cluster's map; after this error they ask again, here or at another member.
const NO_MAP: Failure = Failure::Text(
    "CLUSTERDOWN this member knows of no slot: it is new and has not heard of any, or there is no table db0",
);
const NO_CLUSTER: Failure = Failure::Text("ERR This instance has cluster support disabled");
/// Objects examined in one step of `GETKEYSINSLOT`.
const STEP: usize = 1024;
/// Maximum keys that `GETKEYSINSLOT` returns.
const KEYS_MAX: i64 = 1 << 20;

/// The information that the commands report.
struct ClusterView {
    view: Arc<View>,
    /// The table behind database 0; None: it does not exist yet.
    table: Option<TableId>,
    /// Addresses of this member, which may be missing in the map.
    own: Addresses,
    /// Local address of this connection, used when no better one is known.
    local: (String, u16),
    /// Whether this connection has TLS: the reply then shows addresses with TLS (routing::R3).
    has_tls: bool,
}

/// A server with the addresses at which clients reach it.
struct Node {
    server: ServerId,
    host: String,
    port: u16,
    native_port: u16,
    alive: bool,
}

fn member<'s>(ctx: &Context<'s>) -> Result<&'s Membership, Failure> {
    ctx.shared
        .membership()
        .map(|member| &**member)
        .ok_or(NO_CLUSTER)
}

fn known(ctx: &mut Context<'_>) -> Result<ClusterView, Failure> {
    let member = member(ctx)?;
    let view = Arc::clone(ctx.thread.view_to_tell(member));
    let local = ctx.client.record().local;
    Ok(ClusterView {
        view,
        own: member.status().addresses.clone(),
        table: ctx.shared.commands.table(0),
        local: (local.ip().to_string(), local.port()),
        has_tls: ctx.client.has_tls(),
    })
}

/// The id of a server in the form that clients of Redis Cluster expect: 40 hexadecimal digits,
/// constant for the server's whole life.
pub(crate) fn node_id(server: ServerId) -> String {
    format!("{:08x}{:08x}{:024x}", server.slot, server.generation, 0)
}

/// Splits `host:port`.
fn split(address: &str) -> Option<(String, u16)> {
    let (host, port) = address.rsplit_once(':')?;
    let host = host.trim_start_matches('[').trim_end_matches(']');
    Some((host.to_owned(), port.parse().ok()?))
}

impl ClusterView {
    fn spans(&self) -> Vec<Span> {
        self.table
            .map_or_else(Vec::new, |table| spans(&self.view, table))
    }

    fn node(&self, server: ServerId, alive: bool) -> Node {
        let me = self.view.me();
        let addresses = match self.view.map().owner(server) {
            Some(owner) => Some(&owner.addresses),
            None => (server == me).then_some(&self.own),
        };
        let resp = addresses.and_then(|addresses| split(addresses.resp_for(self.has_tls)?));
        let native = addresses.and_then(|addresses| split(&addresses.native));
        let (host, port) = match resp {
            Some(address) => address,
            None if server == me => self.local.clone(),
            None => (String::new(), 0),
        };
        Node {
            server,
            host,
            port,
            native_port: native.map_or(0, |(_, port)| port),
            alive,
        }
    }

    /// This member, and every owner of a tablet. An owner whose tablets are not served counts as
    /// dead.
    fn nodes(&self) -> Vec<Node> {
        let me = self.view.me();
        let map = self.view.map();
        let mut dead = BTreeSet::new();
        let mut alive = BTreeSet::from([me]);
        if let Some(table) = self.table {
            for route in map.routes(table) {
                let list = if route.served { &mut alive } else { &mut dead };
                list.insert(route.owner);
            }
        }
        let mut servers: BTreeSet<ServerId> = map.servers().map(|owner| owner.server).collect();
        servers.insert(me);
        servers.remove(&ServerId::NONE);
        let is_alive = |server: &ServerId| alive.contains(server) || !dead.contains(server);
        servers
            .iter()
            .map(|server| self.node(*server, is_alive(server)))
            .collect()
    }
}

impl Node {
    /// Writes the node as one entry of `CLUSTER SLOTS`.
    fn tell(&self, reply: &mut Encoder<'_>) {
        reply.array(4);
        reply.bulk(self.host.as_bytes());
        reply.integer(self.port.into());
        reply.bulk(node_id(self.server).as_bytes());
        reply.array(0);
    }
}

pub(crate) fn slots(ctx: &mut Context<'_>) -> Done {
    let known = known(ctx)?;
    let spans = known.spans();
    if spans.is_empty() {
        return Err(NO_MAP);
    }
    let mut reply = ctx.reply.encoder();
    reply.array(spans.len());
    for span in spans {
        reply.array(3);
        reply.integer(span.first.into());
        reply.integer(span.last.into());
        known.node(span.server, true).tell(&mut reply);
    }
    Ok(())
}

pub(crate) fn shards(ctx: &mut Context<'_>) -> Done {
    let known = known(ctx)?;
    let spans = known.spans();
    if spans.is_empty() {
        return Err(NO_MAP);
    }
    let nodes = known.nodes();
    let mut reply = ctx.reply.encoder();
    reply.array(nodes.len());
    for node in nodes {
        let own: Vec<&Span> = spans
            .iter()
            .filter(|span| span.server == node.server)
            .collect();
        reply.map(2);
        reply.bulk(b"slots");
        reply.array(own.len() * 2);
        for span in own {
            reply.integer(span.first.into());
            reply.integer(span.last.into());
        }
        reply.bulk(b"nodes");
        reply.array(1);
        reply.map(7);
        reply.bulk(b"id");
        reply.bulk(node_id(node.server).as_bytes());
        reply.bulk(b"port");
        reply.integer(node.port.into());
        for name in ["ip", "endpoint"] {
            reply.bulk(name.as_bytes());
            reply.bulk(node.host.as_bytes());
        }
        reply.bulk(b"role");
        reply.bulk(b"master");
        reply.bulk(b"replication-offset");
        reply.integer(0);
        reply.bulk(b"health");
        reply.bulk(if node.alive { b"online" } else { b"fail" });
    }
    Ok(())
}

/// One line per node.
pub(crate) fn nodes(ctx: &mut Context<'_>) -> Done {
    let known = known(ctx)?;
    let spans = known.spans();
    let mut text = String::new();
    for node in known.nodes() {
        let me = node.server == known.view.me();
        let flags = match (me, node.alive) {
            (true, _) => "myself,master",
            (false, true) => "master",
            (false, false) => "master,fail",
        };
        let link = if node.alive {
            "connected"
        } else {
            "disconnected"
        };
        // Writing to a String cannot fail.
        let _ = write!(
            text,
            "{} {}:{}@{} {flags} - 0 0 {} {link}",
            node_id(node.server),
            node.host,
            node.port,
            node.native_port,
            node.server.generation,
        );
        for span in spans.iter().filter(|span| span.server == node.server) {
            let _ = match (span.first, span.last) {
                (first, last) if first == last => write!(text, " {first}"),
                (first, last) => write!(text, " {first}-{last}"),
            };
        }
        text.push('\n');
    }
    ctx.reply.encoder().verbatim("txt", &text);
    Ok(())
}

pub(crate) fn info(ctx: &mut Context<'_>) -> Done {
    let known = known(ctx)?;
    let spans = known.spans();
    let count = |spans: &mut dyn Iterator<Item = &Span>| -> u32 {
        spans
            .map(|span| u32::from(span.last - span.first) + 1)
            .sum()
    };
    let assigned = count(&mut spans.iter());
    let served = count(&mut spans.iter().filter(|span| span.served));
    let owners: BTreeSet<ServerId> = spans.iter().map(|span| span.server).collect();
    let waits_for = member(ctx)?.waits_for();
    let state = if served == u32::from(SLOTS) && waits_for.is_none() {
        "ok"
    } else {
        "fail"
    };
    let (table, view) = (ctx.table, &known.view);
    let served_hashes = width(view.served().of(table));
    let assigned_hashes = width(view.map().routes(table).iter().map(|route| route.range));
    let mut text = format!("cluster_state:{state}\r\n");
    let fields: [(&str, u64); 13] = [
        ("cluster_slots_assigned", assigned.into()),
        ("cluster_slots_ok", served.into()),
        ("cluster_slots_pfail", 0),
        ("cluster_slots_fail", (assigned - served).into()),
        ("cluster_known_nodes", known.nodes().len() as u64),
        ("cluster_size", owners.len() as u64),
        ("cluster_current_epoch", known.view.map_version().0),
        ("cluster_my_epoch", known.view.me().generation.into()),
        ("cluster_stats_messages_sent", 0),
        ("cluster_stats_messages_received", 0),
        ("total_cluster_links_buffer_limit_exceeded", 0),
        ("duramen_map_version", known.view.map_version().0),
        ("duramen_tablets_version", known.view.tablets_version().0),
    ];
    for (name, value) in fields {
        let _ = write!(text, "{name}:{value}\r\n");
    }
    if let Some(why) = waits_for {
        let _ = write!(text, "duramen_waits_for:{why}\r\n");
    }
    // A client that asks all members whether together they have every key compares these.
    let _ = write!(
        text,
        "duramen_hashes_assigned:{assigned_hashes}\r\nduramen_hashes_served:{served_hashes}\r\n"
    );
    ctx.reply.encoder().verbatim("txt", &text);
    Ok(())
}

/// Number of hashes in ranges.
fn width(ranges: impl Iterator<Item = KeyRange>) -> u128 {
    let widths = ranges.map(|range| u128::from(range.last.0 - range.first.0) + 1);
    widths.sum()
}

pub(crate) fn keyslot(ctx: &mut Context<'_>) -> Done {
    member(ctx)?;
    ctx.reply.integer(slot(ctx.arg(2)).into())
}

/// CLUSTER MYID and MYSHARDID: each shard has one node, so the node's id is the shard's id.
pub(crate) fn myid(ctx: &mut Context<'_>) -> Done {
    let id = node_id(known(ctx)?.view.me());
    ctx.reply.bulk(id.as_bytes())
}

/// Replies with an empty list: there are no connections of the requested kind.
pub(crate) fn links(ctx: &mut Context<'_>) -> Done {
    member(ctx)?;
    ctx.reply.encoder().array(0);
    Ok(())
}

/// Checks that the server in question is known.
fn check_node(ctx: &mut Context<'_>) -> Done {
    let id = ctx.arg(2);
    let is_known = known(ctx)?
        .nodes()
        .iter()
        .any(|node| node_id(node.server).as_bytes() == id);
    if is_known {
        return Ok(());
    }
    Err(format!("ERR Unknown node {}", String::from_utf8_lossy(id)).into())
}

/// Always 0: members report failures to the coordinator.
pub(crate) fn count_failure_reports(ctx: &mut Context<'_>) -> Done {
    check_node(ctx)?;
    ctx.reply.integer(0)
}

pub(crate) fn replicas(ctx: &mut Context<'_>) -> Done {
    check_node(ctx)?;
    ctx.reply.encoder().array(0);
    Ok(())
}

fn slot_range(text: &[u8], wrong: Failure) -> Result<KeyRange, Failure> {
    let slot = parse_integer(text)
        .ok_or(NOT_AN_INTEGER)
        .map(u16::try_from)?;
    let slot = slot.ok().filter(|slot| *slot < SLOTS).ok_or(wrong)?;
    Ok(KeyRange::new(
        RouteHash::first_of_slot(slot),
        RouteHash::last_of_slot(slot),
    ))
}

/// Counts the keys of a range that are served here, up to `most`, and encodes them if requested.
fn walk(
    ctx: &mut Context<'_>,
    access: Access<'_, '_>,
    range: &KeyRange,
    most: usize,
    encodes: bool,
) -> Result<Walk, Failure> {
    let member = member(ctx)?;
    let Some(table) = ctx.shared.commands.table(0) else {
        return Ok(Walk::default());
    };
    let mut walk = ctx.client.parking.take_walk(table);
    let (goes_on, in_parts, mut looked) = (walk.cursor != 0, ctx.client.parking.take_in_parts(), 0);
    let mut step = |ctx: &mut Context<'_>, guard: &mut Guard<'_>| {
        let view = Arc::clone(ctx.thread.view(member, guard));
        let before = (walk.keys, walk.found.len());
        let mut room = ctx.reply.room_left();
        let mut reply = Encoder::within(&mut walk.found, ctx.client.protocol(), &mut room);
        let shows = |object: Object<'_>| {
            let route = guard.hash(object.key).route(object.key);
            if walk.keys < most && view.served().contains(table, route) {
                walk.keys += 1;
                if encodes {
                    reply.bulk(object.key);
                }
            }
            true
        };
        let (of, at) = ((table, range), walk.cursor);
        let step = guard.walk().scan_range_as(of, at, STEP, in_parts, shows);
        if room.is_exceeded_by(&walk.found) {
            return Err(ctx.reply.too_long());
        }
        match cold::note_colds(ctx, guard, in_parts, step) {
            Ok((next, looks)) => {
                note_walked(ctx, looks, 0)?;
                (walk.cursor, walk.moved) = (next.unwrap_or(0), true);
                Ok((next.is_none() || walk.keys >= most, looks))
            }
            Err(error) => {
                walk.keys = before.0;
                walk.found.truncate(before.1);
                ctx.client.parking.keep_walk(std::mem::take(&mut walk));
                Err(Failure::from(error))
            }
        }
    };
    match access {
        Access::Session(session) => loop {
            let mut guard = session.pin();
            let done = step(ctx, &mut guard);
            ctx.settle(&mut guard);
            let (is_done, looks) = done?;
            if is_done {
                break;
            }
            looked += looks;
            if looked >= LOOKS_PER_SLICE {
                ctx.client.parking.keep_walk(walk);
                return Err(YIELDS); // keyspace::scan::W1
            }
        },
        Access::Guarded(guard) => while !step(ctx, guard)?.0 {},
        Access::NoStore => unreachable!("{} needs data", ctx.request.spec.name),
    }
    if goes_on {
        ctx.settle_all(); // no reply covers the objects seen in earlier rounds yet
    }
    Ok(walk)
}

/// Reads the whole table: the index is not in the order of slots.
pub(crate) fn countkeysinslot(ctx: &mut Context<'_>, access: Access<'_, '_>) -> Done {
    member(ctx)?;
    let range = slot_range(ctx.arg(2), Failure::Text("ERR Invalid slot"))?;
    let walk = walk(ctx, access, &range, usize::MAX, false)?;
    ctx.reply.integer(walk.keys as i64)
}

pub(crate) fn getkeysinslot(ctx: &mut Context<'_>, access: Access<'_, '_>) -> Done {
    const WRONG: &str = "ERR Invalid slot or number of keys";
    member(ctx)?;
    let range = slot_range(ctx.arg(2), Failure::Text(WRONG))?;
    let count = parse_integer(ctx.arg(3)).ok_or(NOT_AN_INTEGER)?;
    if count < 0 {
        return Err(Failure::Text(WRONG));
    }
    let count = count.min(KEYS_MAX) as usize;
    let mut walked = Walk::default();
    if count > 0 {
        walked = walk(ctx, access, &range, count, true)?;
    }
    ctx.reply.encoder().array(walked.keys);
    ctx.reply.append(&walked.found);
    Ok(())
}

/// Refuses commands by which an operator changes a Redis Cluster.
pub(crate) fn decided_elsewhere(ctx: &mut Context<'_>) -> Done {
    member(ctx)?;
    let name = ctx.request.spec.name.replace('|', " ").to_ascii_uppercase();
    Err(format!(
        "ERR {name} is not supported: the coordinator decides who is a member and who serves which slots; \
         see `duramen status`, `duramen tablet` and `duramen drain`"
    )
    .into())
}

/// READONLY, READWRITE, ASKING: accepted, because they would change nothing. No replica serves
/// reads; and there is no `ASK`, because the source of a moving tablet serves it until its target
/// does.
pub(crate) fn accept(ctx: &mut Context<'_>) -> Done {
    member(ctx)?;
    ctx.reply.ok()
}

pub(crate) fn help(ctx: &mut Context<'_>) -> Done {
    member(ctx)?;
    ctx.reply.help(ctx.request.spec.container(), &[
        "COUNTKEYSINSLOT <slot>",
        "    Return the number of keys in <slot> that this server has.",
        "COUNT-FAILURE-REPORTS <node-id>",
        "    Return 0: servers report failures to the coordinator.",
        "GETKEYSINSLOT <slot> <count>",
        "    Return <count> keys of <slot> that this server has.",
        "INFO",
        "    Return information about the cluster.",
        "KEYSLOT <key>",
        "    Return the hash slot of <key>.",
        "LINKS",
        "    Return nothing: servers do not speak Redis's bus protocol.",
        "MYID, MYSHARDID",
        "    Return the id of this server.",
        "NODES",
        "    Return the servers and their slots. Format: <id> <ip:port@native-port> <flags> - 0 0 <generation> <link> <slot> ...",
        "REPLICAS <node-id>",
        "    Return nothing: no replica serves requests.",
        "SHARDS",
        "    Return the servers and their slots.",
        "SLOTS",
        "    Return ranges of slots and who serves them.",
        "Slots are moved, and servers added and drained, with `duramen tablet`, `duramen serve --coordinator` and `duramen drain`.",
    ])
}
