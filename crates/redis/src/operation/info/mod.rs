//! INFO: Redis's sections and field names, as far as they have a meaning here, and `duramen_*`
//! fields for the rest.

mod memory;
mod persistence;
mod ttl;

use super::figures::{self, Member};
use super::latency::since_reset;
use super::{cluster, server as server_commands};
use crate::command::context::{Context, Done};
use crate::command::databases;
use crate::command::row::*;
use crate::command::store_access::Access;
use crate::figures::error_names;
use crate::figures::figure::Figure;
use crate::state::access::users::Reason;
use crate::state::db::DBS;
use crate::state::shared::totals;
use crate::threads::clients::ClientRecord;
use crate::threads::publication::Kind;
use duramen_config::{ConfigFile, REDIS_VERSION, process};
use duramen_engine::{Guard, Mode, TableId};
pub(crate) use memory::peak;
use std::fmt::{Display, Write};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

#[rustfmt::skip] // They are rows of a table.
pub(crate) const COMMANDS: &[Spec] = &[
    row("info", -1, LOADING | STALE | DANGEROUS | TIMED | REPORTS | WITHOUT_DATA,
        doc(Topic::Server, "1.0.0", "O(1)", "Returns what the server tells about itself."),
        Keys::NONE, Effect::Acts, Secrets::None, Run::Alone(info))
        .tips(&["nondeterministic_output", "request_policy:all_shards", "response_policy:special"]),
];

/// The function that writes one section.
type Section = fn(&Context<'_>, &mut Fields);

/// The name of each section, whether it is shown by default, and its function.
const SECTIONS: [(&str, bool, Section); 13] = [
    ("server", true, server),
    ("clients", true, clients),
    ("memory", true, memory::write),
    ("persistence", true, persistence::write),
    ("stats", true, stats),
    ("replication", true, replication),
    ("cpu", true, cpu),
    ("modules", true, nothing),
    ("commandstats", false, command_stats),
    ("errorstats", true, error_stats),
    ("latencystats", false, latency_stats),
    ("cluster", true, cluster_section),
    ("duramen", true, duramen),
];

/// Lines of `name:value`.
pub(crate) struct Fields {
    text: String,
}

impl Fields {
    pub(crate) fn add(&mut self, name: impl Display, value: impl Display) {
        // Writing to a String cannot fail.
        let _ = write!(self.text, "{name}:{value}\r\n");
    }

    /// Adds a number of bytes, and the same number in readable form.
    pub(crate) fn bytes(&mut self, name: &str, bytes: u64) {
        self.add(name, bytes);
        self.add(format_args!("{name}_human"), human(bytes));
    }

    /// Adds the figures of a table with these names, in this order.
    fn figures<S>(&mut self, table: &[Figure<S>], source: &S, names: &[&str]) {
        for name in names {
            let row = table.iter().find(|figure| figure.info == *name);
            self.add(name, row.expect("a figure of this name").in_info(source));
        }
    }

    /// Fields for features that this server does not have.
    pub(crate) fn zeros(&mut self, names: &[&str]) {
        for name in names {
            self.add(name, 0);
        }
    }
}

pub(crate) fn info(ctx: &mut Context<'_>, mut access: Access<'_, '_>) -> Done {
    ctx.count_up_to_now();
    let asked = ctx.request.args.skip(1);
    let asks = |name: &str| {
        asked
            .iter()
            .any(|arg| arg.eq_ignore_ascii_case(name.as_bytes()))
    };
    let all = asks("all") || asks("everything");
    let usual = asked.is_empty() || asks("default");
    let mut fields = Fields {
        text: String::new(),
    };
    for (name, by_default, write) in SECTIONS {
        if all || usual && by_default || asks(name) {
            title(&mut fields, name);
            write(ctx, &mut fields);
        }
    }
    if (all || usual || asks("keyspace")) && ctx.shared.data().is_some() {
        title(&mut fields, "keyspace");
        estimate_ttls(ctx, &mut access);
        keyspace(ctx, &mut fields);
    }
    ctx.reply.encoder().verbatim("txt", &fields.text);
    Ok(())
}

fn title(fields: &mut Fields, name: &str) {
    if !fields.text.is_empty() {
        fields.text.push_str("\r\n");
    }
    let title = match name {
        "cpu" => "CPU".to_string(),
        name => name[..1].to_ascii_uppercase() + &name[1..],
    };
    let _ = write!(fields.text, "# {title}\r\n");
}

fn nothing(_: &Context<'_>, _: &mut Fields) {}

fn server(ctx: &Context<'_>, fields: &mut Fields) {
    let uptime_s = ctx.shared.figures.started().elapsed().as_secs();
    let config = ctx.shared.config();
    fields.add("redis_version", REDIS_VERSION);
    fields.add("redis_git_sha1", "00000000");
    fields.add("redis_git_dirty", 0);
    let mode = match ctx.shared.membership() {
        None => "standalone",
        Some(_) => "cluster",
    };
    fields.add("redis_build_id", format_args!("{:016x}", 0));
    fields.add("redis_mode", mode);
    fields.add("server_name", "duramen");
    fields.add("duramen_version", env!("CARGO_PKG_VERSION"));
    fields.add("os", process::system());
    fields.add("arch_bits", usize::BITS);
    fields.add("monotonic_clock", "POSIX clock_gettime");
    fields.add("multiplexing_api", "epoll");
    fields.add("atomicvar_api", "rust-std");
    fields.add("process_id", std::process::id());
    fields.add("process_supervised", "no");
    fields.add("run_id", &ctx.shared.commands.run_id);
    let port = ctx.client.record().local.port();
    fields.add("tcp_port", if port == 0 { config.port } else { port });
    fields.add("server_time_usec", server_commands::unix_time().as_micros());
    fields.figures(&figures::SERVER, ctx.shared, &["uptime_in_seconds"]);
    fields.add("uptime_in_days", uptime_s / 86_400);
    fields.add("hz", 10);
    fields.add("configured_hz", 10);
    // The low 24 bits of the seconds since 1970, as in Redis.
    let lru_clock = server_commands::unix_time().as_secs() & 0xff_ffff;
    fields.add("lru_clock", lru_clock);
    fields.add(
        "executable",
        std::env::current_exe().unwrap_or_default().display(),
    );
    let file = ctx.shared.settings.file();
    fields.add(
        "config_file",
        file.map_or(Path::new(""), ConfigFile::path).display(),
    );
    fields.add("io_threads_active", 0);
    fields.figures(&figures::SERVER, ctx.shared, &["duramen_threads"]);
    if let Some(certificate) = ctx.shared.settings.certificates().certificate() {
        let days = certificate.days_left();
        fields.add("duramen_tls_certificate_days_left", days);
    }
}

fn clients(ctx: &Context<'_>, fields: &mut Fields) {
    fields.figures(&figures::SERVER, ctx.shared, &["connected_clients"]);
    fields.add("cluster_connections", 0);
    fields.figures(&figures::SERVER, ctx.shared, &["maxclients"]);
    let input_bytes = ctx.shared.threads.sum(|c| &c.query_buffer_bytes);
    fields.add("duramen_query_buffer_bytes", input_bytes);
    let output_bytes = ctx.shared.threads.sum(|c| &c.output_buffer_bytes);
    fields.add("duramen_output_buffer_bytes", output_bytes);
    let clients = ctx.shared.threads.clients();
    let most = |of: fn(&ClientRecord) -> &AtomicU64| {
        let bytes = clients.iter().map(|one| of(one).load(Ordering::Relaxed));
        bytes.max().unwrap_or(0)
    };
    fields.add(
        "client_recent_max_input_buffer",
        most(|one| &one.query_bytes),
    );
    fields.add(
        "client_recent_max_output_buffer",
        most(|one| &one.output_bytes),
    );
    let watched = clients
        .iter()
        .map(|one| one.watched.load(Ordering::Relaxed));
    let watched: Vec<u32> = watched.filter(|keys| *keys > 0).collect();
    let blocked = clients.iter().filter(|one| one.waits());
    fields.add("blocked_clients", blocked.count());
    fields.add("tracking_clients", ctx.shared.tracking().totals().clients);
    fields.add("pubsub_clients", ctx.shared.threads.subscribed_clients());
    fields.add("watching_clients", watched.len());
    fields.zeros(&["clients_in_timeout_table"]);
    fields.add("total_watched_keys", watched.iter().sum::<u32>());
    fields.add("total_blocking_keys", ctx.shared.waiters().keys());
    fields.zeros(&["total_blocking_keys_on_nokey"]);
}

/// A number of bytes in the readable form that Redis uses.
pub(crate) fn human(bytes: u64) -> String {
    let value = bytes as f64;
    for (shift, unit) in [(40, 'T'), (30, 'G'), (20, 'M'), (10, 'K')] {
        if bytes >= 1 << shift {
            return format!("{:.2}{unit}", value / (1u64 << shift) as f64);
        }
    }
    format!("{bytes}B")
}

fn stats(ctx: &Context<'_>, fields: &mut Fields) {
    let (totals, rates) = totals::since_reset(ctx.shared);
    let sums = |fields: &mut Fields, names: &[&str]| {
        for name in names {
            fields.add(name, totals.get(name));
        }
    };
    sums(
        fields,
        &["total_connections_received", "total_commands_processed"],
    );
    fields.add("instantaneous_ops_per_sec", rates.commands as u64);
    sums(fields, &["total_net_input_bytes", "total_net_output_bytes"]);
    fields.zeros(&["total_net_repl_input_bytes", "total_net_repl_output_bytes"]);
    fields.add(
        "instantaneous_input_kbps",
        format!("{:.2}", rates.input_kbytes),
    );
    fields.add(
        "instantaneous_output_kbps",
        format!("{:.2}", rates.output_kbytes),
    );
    for name in [
        "instantaneous_input_repl_kbps",
        "instantaneous_output_repl_kbps",
    ] {
        fields.add(name, "0.00");
    }
    sums(fields, &["rejected_connections"]);
    fields.zeros(&["sync_full", "sync_partial_ok", "sync_partial_err"]);
    if let Some(store) = ctx.shared.data() {
        let names = ["expired_keys", "evicted_keys"];
        fields.figures(&figures::STORE, &store.stats(), &names);
    }
    fields.figures(&figures::SERVER, ctx.shared, &["duramen_memory_refusals"]);
    // This server has no expiry cycles: expired keys are removed when they are met or cleaned.
    fields.zeros(&[
        "expired_time_cap_reached_count",
        "expire_cycle_cpu_milliseconds",
    ]);
    fields.zeros(&["evicted_clients", "total_eviction_exceeded_time"]);
    fields.zeros(&["current_eviction_exceeded_time"]);
    sums(fields, &["keyspace_hits", "keyspace_misses"]);
    for (name, kind) in [
        ("pubsub_channels", Kind::Channel),
        ("pubsub_patterns", Kind::Pattern),
        ("pubsubshard_channels", Kind::Shard),
    ] {
        fields.add(name, ctx.shared.pubsub().count(kind));
    }
    let tracked = ctx.shared.tracking().totals();
    fields.add("tracking_total_keys", tracked.keys);
    fields.add("tracking_total_items", tracked.items);
    fields.add("tracking_total_prefixes", tracked.prefixes);
    fields.zeros(&ABSENT);
    sums(
        fields,
        &[
            "total_error_replies",
            "client_output_buffer_limit_disconnections",
            "duramen_idle_disconnections",
            "duramen_login_timeouts",
        ],
    );
    denials(ctx, fields);
}

fn denials(ctx: &Context<'_>, fields: &mut Fields) {
    for (name, reason) in [
        ("acl_access_denied_auth", Reason::Auth),
        ("acl_access_denied_cmd", Reason::Command),
        ("acl_access_denied_key", Reason::Key),
        ("acl_access_denied_channel", Reason::Channel),
        ("duramen_acl_access_denied_table", Reason::Table),
    ] {
        fields.add(name, ctx.shared.acl().count(reason));
    }
}

/// Fields of forks, migration, replicas, defragmentation and helper threads,
/// which this server does not have.
const ABSENT: [&str; 17] = [
    "latest_fork_usec",
    "total_forks",
    "migrate_cached_sockets",
    "slave_expires_tracked_keys",
    "active_defrag_hits",
    "active_defrag_misses",
    "active_defrag_key_hits",
    "active_defrag_key_misses",
    "total_active_defrag_time",
    "current_active_defrag_time",
    "unexpected_error_replies",
    "dump_payload_sanitizations",
    "io_threaded_reads_processed",
    "io_threaded_writes_processed",
    "reply_buffer_shrinks",
    "reply_buffer_expands",
    "evicted_scripts",
];

fn replication(ctx: &Context<'_>, fields: &mut Fields) {
    fields.add("role", "master");
    fields.add("connected_slaves", 0);
    fields.add("master_failover_state", "no-failover");
    fields.add("master_replid", &ctx.shared.commands.run_id);
    fields.add("master_replid2", "0".repeat(40));
    fields.add("master_repl_offset", 0);
    fields.add("second_repl_offset", -1);
    fields.add("repl_backlog_active", 0);
    fields.add("repl_backlog_size", 0);
    fields.add("repl_backlog_first_byte_offset", 0);
    fields.add("repl_backlog_histlen", 0);
    if let Some(durability) = ctx.shared.durability() {
        // Replicas of the log, on other members. They serve no requests, so none of Redis's fields
        // counts them.
        fields.add("duramen_replicas", durability.replicas());
    }
}

fn cpu(_: &Context<'_>, fields: &mut Fields) {
    let (user, system) = process::cpu_seconds();
    fields.add("used_cpu_sys", format!("{system:.6}"));
    fields.add("used_cpu_user", format!("{user:.6}"));
    // The server starts no child processes.
    fields.add("used_cpu_sys_children", "0.000000");
    fields.add("used_cpu_user_children", "0.000000");
    let (user, system) = process::cpu_seconds_of_main();
    fields.add("used_cpu_sys_main_thread", format!("{system:.6}"));
    fields.add("used_cpu_user_main_thread", format!("{user:.6}"));
}

fn command_stats(ctx: &Context<'_>, fields: &mut Fields) {
    for (spec, totals) in since_reset(ctx) {
        if totals.calls + totals.rejected == 0 {
            continue;
        }
        let us = totals.ns as f64 / 1000.0;
        let value = format!(
            "calls={},usec={},usec_per_call={:.2},rejected_calls={},failed_calls={}",
            totals.calls,
            us.round() as u64,
            us / totals.calls.max(1) as f64,
            totals.rejected,
            totals.failed
        );
        fields.add(format_args!("cmdstat_{}", spec.name), value);
    }
}

fn error_stats(ctx: &Context<'_>, fields: &mut Fields) {
    let (totals, _) = totals::since_reset(ctx.shared);
    for (name, count) in error_names::NAMES.iter().zip(totals.errors_by_name) {
        if count > 0 {
            fields.add(
                format_args!("errorstat_{name}"),
                format_args!("count={count}"),
            );
        }
    }
    for (code, count) in ctx.shared.figures.error_codes().all() {
        fields.add(
            format_args!("errorstat_{code}"),
            format_args!("count={count}"),
        );
    }
}

fn latency_stats(ctx: &Context<'_>, fields: &mut Fields) {
    for (spec, totals) in since_reset(ctx) {
        if totals.calls == 0 {
            continue;
        }
        let value = format!(
            "p50={:.3},p99={:.3},p99.9={:.3}",
            totals.quantile_us(0.5),
            totals.quantile_us(0.99),
            totals.quantile_us(0.999)
        );
        fields.add(
            format_args!("latency_percentiles_usec_{}", spec.name),
            value,
        );
    }
}

fn cluster_section(ctx: &Context<'_>, fields: &mut Fields) {
    let Some(member) = Member::of(ctx.shared) else {
        return fields.add("cluster_enabled", 0);
    };
    fields.add("cluster_enabled", 1);
    let (status, me) = (&member.status, member.view.me());
    fields.add("duramen_server", me);
    fields.add("duramen_node_id", cluster::node_id(me));
    let mut figures = |names: &[&str]| fields.figures(&figures::MEMBER, &member, names);
    figures(&["duramen_map_version", "duramen_tablets_version"]);
    figures(&["duramen_tablets_served", "duramen_may_reply"]);
    fields.add("duramen_cluster", &status.cluster);
    fields.add("duramen_coordinator", &status.coordinator);
    fields.add("duramen_users_revision", ctx.shared.acl().revision());
    let names = [
        "duramen_coordinator_silent_ms",
        "duramen_list_version",
        "duramen_replicas",
        "duramen_servers_up",
        "duramen_servers_crashed",
        "duramen_enough_backups",
        "duramen_segments_sharing_rack",
        "duramen_segments_short",
        "duramen_slow_backups",
        "duramen_damaged_replicas",
        "duramen_damaged_replicas_left",
        "duramen_scrub_rounds",
        "duramen_backup_full",
        "duramen_backup_written_bytes",
        "duramen_backup_frames",
        "duramen_backup_frames_free",
        "duramen_replies_held_ms",
        "duramen_offences",
        "duramen_cluster_tls_failures",
        "duramen_recoveries",
    ];
    fields.figures(&figures::MEMBER, &member, &names);
    for part in &status.recoveries {
        fields.add(
            format_args!("duramen_recovery_{}_{}", part.log, part.partition),
            format_args!(
                "bytes={},bytes_total={},entries={}",
                part.bytes, part.bytes_total, part.entries
            ),
        );
    }
}

fn duramen(ctx: &Context<'_>, fields: &mut Fields) {
    let Some(store) = ctx.shared.data() else {
        return;
    };
    let mode = match ctx.shared.config().mode {
        Mode::Store => "store",
        Mode::Cache => "cache",
    };
    fields.add("duramen_mode", mode);
    let names = [
        "duramen_objects",
        "duramen_appended_bytes",
        "duramen_segments_open",
        "duramen_segments_closed",
        "duramen_segments_free",
        "duramen_cleaner_passes",
        "duramen_cleaner_compactions",
        "duramen_cleaner_segments_cleaned",
        "duramen_cleaner_bytes_scanned",
        "duramen_cleaner_bytes_relocated",
        "duramen_cleaner_bytes_freed",
        "duramen_cleaner_busy_ms",
        "duramen_writer_stalls",
        "duramen_writer_stall_ms",
    ];
    fields.figures(&figures::STORE, &store.stats(), &names);
}

/// Estimates the time to live of each database's keys. A database keeps its last estimate if the
/// sample has found no key that expires.
fn estimate_ttls(ctx: &mut Context<'_>, access: &mut Access<'_, '_>) {
    let own;
    let guard: &Guard<'_> = match access {
        Access::Guarded(guard) => guard,
        Access::Session(session) => {
            own = session.pin();
            &own
        }
        Access::NoStore => return,
    };
    for (db, table) in ctx.shared.commands.tables().into_iter().enumerate() {
        let expires = |table: &TableId| ctx.shared.store().tables().expiring_objects(*table) > 0;
        if let Some(table) = table.filter(expires)
            && let Some(ttl_ms) = ttl::average_ms(guard, table, || ctx.thread.random().next_u64())
        {
            ctx.shared.commands.ttl_ms[db].store(ttl_ms, Ordering::Relaxed);
        }
    }
}

fn keyspace(ctx: &Context<'_>, fields: &mut Fields) {
    let tables = databases::tables(ctx.shared);
    for db in 0..DBS as u8 {
        let table = ctx.shared.commands.table(db);
        let objects = tables
            .iter()
            .find(|info| Some(info.id) == table)
            .map_or(0, |info| info.objects);
        if objects > 0 {
            let expires = table.map_or(0, |id| ctx.shared.store().tables().expiring_objects(id));
            let ttl_ms = match expires {
                0 => 0,
                _ => ctx.shared.commands.ttl_ms[usize::from(db)].load(Ordering::Relaxed),
            };
            fields.add(
                format_args!("db{db}"),
                format_args!("keys={objects},expires={expires},avg_ttl={ttl_ms}"),
            );
        }
    }
    for info in tables {
        if ctx.shared.commands.db_of(info.id).is_none() {
            fields.add(
                format_args!("duramen_table_{}", info.name),
                format_args!("keys={}", info.objects),
            );
        }
    }
}
