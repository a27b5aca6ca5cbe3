//! INFO: Redis's sections and field names, as far as they have a meaning here, and `duramen_*` fields for the rest.

use super::cluster;
use super::connection::REDIS_VERSION;
use super::context::{Context, Done};
use super::latency::family_counts;
use super::ops;
use super::process;
use super::state::DBS;
use super::totals::Totals;
use super::{databases, info_persistence};
use crate::config::ConfigFile;
use crate::shared::{Family, Histogram, ThreadShared};
use crate::tier::FIGURES;
use duramen_engine::{Mode, Stats};
use std::fmt::{Display, Write};
use std::path::Path;

/// What one section writes.
type Section = fn(&Context<'_>, &mut Fields);

/// Name, whether it is shown without being asked for, and who writes it.
const SECTIONS: [(&str, bool, Section); 13] = [
    ("server", true, server),
    ("clients", true, clients),
    ("memory", true, memory),
    ("persistence", true, info_persistence::write),
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
pub(super) struct Fields {
    text: String,
}

impl Fields {
    pub(super) fn add(&mut self, name: impl Display, value: impl Display) {
        // Writing to a String cannot fail.
        let _ = write!(self.text, "{name}:{value}\r\n");
    }
}

pub(super) fn info(ctx: &mut Context<'_>) -> Done {
    let asked = ctx.args.skip(1);
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
        keyspace(ctx, &mut fields);
    }
    ctx.reply().verbatim("txt", &fields.text);
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
    let uptime_s = ctx.shared.started.elapsed().as_secs();
    let config = ctx.shared.config();
    fields.add("redis_version", REDIS_VERSION);
    fields.add("redis_git_sha1", "00000000");
    fields.add("redis_git_dirty", 0);
    let mode = match ctx.shared.membership() {
        None => "standalone",
        Some(_) => "cluster",
    };
    fields.add("redis_mode", mode);
    fields.add("server_name", "duramen");
    fields.add("duramen_version", env!("CARGO_PKG_VERSION"));
    fields.add("os", process::system());
    fields.add("arch_bits", usize::BITS);
    fields.add("multiplexing_api", "epoll");
    fields.add("process_id", std::process::id());
    fields.add("run_id", &ctx.shared.commands.run_id);
    let port = ctx.client.record().local.port();
    fields.add("tcp_port", if port == 0 { config.port } else { port });
    fields.add("server_time_usec", ops::unix_time().as_micros());
    fields.add("uptime_in_seconds", uptime_s);
    fields.add("uptime_in_days", uptime_s / 86_400);
    fields.add("hz", 10);
    fields.add(
        "executable",
        std::env::current_exe().unwrap_or_default().display(),
    );
    let file = ctx.shared.config_file.as_ref();
    fields.add(
        "config_file",
        file.map_or(Path::new(""), ConfigFile::path).display(),
    );
    fields.add("io_threads_active", 0);
    fields.add("duramen_threads", ctx.shared.threads.len());
}

fn clients(ctx: &Context<'_>, fields: &mut Fields) {
    let config = ctx.shared.config();
    fields.add("connected_clients", ctx.shared.connected_clients());
    fields.add("cluster_connections", 0);
    fields.add("maxclients", config.maxclients);
    let buffers = |counter: fn(&crate::shared::ThreadCounters) -> u64| -> u64 {
        ctx.shared
            .threads
            .iter()
            .map(|thread| counter(&thread.counters))
            .sum()
    };
    fields.add(
        "duramen_query_buffer_bytes",
        buffers(|c| c.query_buffer_bytes.get()),
    );
    fields.add(
        "duramen_output_buffer_bytes",
        buffers(|c| c.output_buffer_bytes.get()),
    );
    fields.add("blocked_clients", 0);
    fields.add("tracking_clients", 0);
    fields.add("clients_in_timeout_table", 0);
}

fn memory(ctx: &Context<'_>, fields: &mut Fields) {
    let Some(store) = ctx.shared.data() else {
        return;
    };
    let stats = store.stats();
    let config = ctx.shared.config();
    let rss = process::rss_bytes();
    let on_flash = stats.flash.live_bytes.min(stats.live_bytes);
    let used = stats.live_bytes - on_flash + stats.index_bytes;
    fields.add("used_memory", used);
    fields.add("used_memory_human", human(used));
    fields.add("used_memory_rss", rss);
    fields.add("used_memory_rss_human", human(rss));
    fields.add("used_memory_peak", stats.committed_bytes.max(used));
    fields.add(
        "used_memory_peak_human",
        human(stats.committed_bytes.max(used)),
    );
    fields.add("used_memory_dataset", stats.live_bytes - on_flash);
    fields.add("used_memory_overhead", stats.index_bytes);
    // A part of it may be set aside: see `engine_bytes`.
    fields.add("maxmemory", config.memory_bytes);
    fields.add("maxmemory_human", human(config.memory_bytes));
    let policy = match config.mode {
        Mode::Store => "noeviction",
        Mode::Cache => "allkeys-lru",
    };
    fields.add("maxmemory_policy", policy);
    let ratio = if used == 0 {
        0.0
    } else {
        rss as f64 / used as f64
    };
    fields.add("mem_fragmentation_ratio", format!("{ratio:.2}"));
    fields.add("mem_allocator", "duramen-log");
    fields.add("duramen_live_bytes", stats.live_bytes);
    fields.add("duramen_index_bytes", stats.index_bytes);
    fields.add("duramen_committed_bytes", stats.committed_bytes);
    fields.add("duramen_segment_budget_bytes", stats.segment_budget_bytes);
    fields.add("duramen_utilization", format!("{:.4}", stats.utilization));
    fields.add("duramen_page_bytes", stats.page_bytes);
    if ctx.shared.tier().is_some() {
        let flash = ctx.shared.flash_stats(store);
        for (name, _, _, of) in FIGURES {
            fields.add(format_args!("duramen_flash_{name}"), of(&flash));
        }
        let waiting = |thread: &ThreadShared| thread.counters.flash_parked.get();
        let waiting: u64 = ctx.shared.threads.iter().map(waiting).sum();
        fields.add("duramen_flash_waiting_clients", waiting);
    }
}

/// Bytes as Redis shows them to people.
fn human(bytes: u64) -> String {
    let value = bytes as f64;
    for (shift, unit) in [(40, 'T'), (30, 'G'), (20, 'M'), (10, 'K')] {
        if bytes >= 1 << shift {
            return format!("{:.2}{unit}", value / (1u64 << shift) as f64);
        }
    }
    format!("{bytes}B")
}

fn stats(ctx: &Context<'_>, fields: &mut Fields) {
    let (totals, rates) = Totals::now(ctx.shared);
    fields.add("total_connections_received", totals.connections_accepted);
    fields.add("total_commands_processed", totals.commands);
    fields.add("instantaneous_ops_per_sec", rates.commands as u64);
    fields.add("total_net_input_bytes", totals.net_input_bytes);
    fields.add("total_net_output_bytes", totals.net_output_bytes);
    fields.add(
        "instantaneous_input_kbps",
        format!("{:.2}", rates.input_kbytes),
    );
    fields.add(
        "instantaneous_output_kbps",
        format!("{:.2}", rates.output_kbytes),
    );
    fields.add("rejected_connections", totals.connections_rejected);
    fields.add("sync_full", 0);
    fields.add("sync_partial_ok", 0);
    fields.add("sync_partial_err", 0);
    if let Some(store) = ctx.shared.data() {
        let stats = store.stats();
        fields.add("expired_keys", stats.entries_expired);
        fields.add("evicted_keys", stats.entries_evicted);
    }
    fields.add("keyspace_hits", totals.keyspace_hits);
    fields.add("keyspace_misses", totals.keyspace_misses);
    fields.add("pubsub_channels", 0);
    fields.add("pubsub_patterns", 0);
    fields.add("latest_fork_usec", 0);
    fields.add("total_forks", 0);
    fields.add("total_error_replies", totals.errors);
    fields.add(
        "client_output_buffer_limit_disconnections",
        totals.output_closed,
    );
    fields.add("duramen_idle_disconnections", totals.idle_closed);
}

fn replication(ctx: &Context<'_>, fields: &mut Fields) {
    fields.add("role", "master");
    fields.add("connected_slaves", 0);
    fields.add("master_failover_state", "no-failover");
    fields.add("master_repl_offset", 0);
    fields.add("second_repl_offset", -1);
    fields.add("repl_backlog_active", 0);
    fields.add("repl_backlog_size", 0);
    fields.add("repl_backlog_first_byte_offset", 0);
    fields.add("repl_backlog_histlen", 0);
    if let Some(durability) = ctx.shared.durability() {
        // Of the log, with other members. They serve no requests, so none of Redis's fields counts them.
        fields.add("duramen_replicas", durability.replicas());
    }
}

fn cpu(_: &Context<'_>, fields: &mut Fields) {
    let (user, system) = process::cpu_seconds();
    fields.add("used_cpu_sys", format!("{system:.6}"));
    fields.add("used_cpu_user", format!("{user:.6}"));
}

fn command_stats(ctx: &Context<'_>, fields: &mut Fields) {
    for (spec, totals) in Totals::commands(ctx.shared) {
        if totals.calls + totals.rejected == 0 {
            continue;
        }
        // Only some calls are timed; the rest is taken to be like them.
        let per_call_us = totals.timed_ns as f64 / totals.timed.max(1) as f64 / 1000.0;
        let value = format!(
            "calls={},usec={},usec_per_call={per_call_us:.2},rejected_calls={},failed_calls={}",
            totals.calls,
            (per_call_us * totals.calls as f64) as u64,
            totals.rejected,
            totals.failed
        );
        fields.add(format_args!("cmdstat_{}", spec.name), value);
    }
}

fn error_stats(ctx: &Context<'_>, fields: &mut Fields) {
    let (totals, _) = Totals::now(ctx.shared);
    if totals.errors > 0 {
        fields.add("errorstat_ERR", format_args!("count={}", totals.errors));
    }
}

fn latency_stats(ctx: &Context<'_>, fields: &mut Fields) {
    for family in Family::ALL {
        let counts = family_counts(ctx, family);
        if counts.iter().all(|count| *count == 0) {
            continue;
        }
        let us = |quantile| Histogram::quantile_ns(&counts, quantile) as f64 / 1000.0;
        let value = format!(
            "p50={:.3},p99={:.3},p99.9={:.3}",
            us(0.5),
            us(0.99),
            us(0.999)
        );
        fields.add(
            format_args!("latency_percentiles_usec_{}", family.name()),
            value,
        );
    }
}

fn cluster_section(ctx: &Context<'_>, fields: &mut Fields) {
    let Some(member) = ctx.shared.membership() else {
        return fields.add("cluster_enabled", 0);
    };
    fields.add("cluster_enabled", 1);
    let view = member.view();
    fields.add("duramen_server", view.me());
    fields.add("duramen_node_id", cluster::node_id(view.me()));
    fields.add("duramen_map_version", view.map_version());
    fields.add("duramen_tablets_version", view.tablets_version());
    fields.add("duramen_tablets_served", view.served().iter().len());
    fields.add("duramen_may_reply", u8::from(member.may_reply()));
    let status = member.status();
    fields.add("duramen_cluster", &status.cluster);
    fields.add("duramen_coordinator", &status.coordinator);
    fields.add("duramen_list_version", status.list_version);
    fields.add("duramen_replicas", status.replicas);
    fields.add("duramen_servers_up", status.servers_up);
    fields.add("duramen_servers_crashed", status.servers_crashed);
    fields.add("duramen_enough_backups", u8::from(status.enough_backups));
    fields.add("duramen_backup_full", u8::from(status.backup_full));
    fields.add("duramen_replies_held_ms", ctx.shared.replies_held_ms());
    fields.add("duramen_offences", status.offences);
    fields.add("duramen_recoveries", status.recoveries.len());
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
    let stats: Stats = store.stats();
    let mode = match ctx.shared.config().mode {
        Mode::Store => "store",
        Mode::Cache => "cache",
    };
    fields.add("duramen_mode", mode);
    fields.add("duramen_objects", stats.objects);
    fields.add("duramen_appended_bytes", stats.appended_bytes);
    fields.add("duramen_segments_open", stats.segments_open);
    fields.add("duramen_segments_closed", stats.segments_closed);
    fields.add("duramen_segments_free", stats.segments_free);
    fields.add("duramen_cleaner_passes", stats.cleaner.passes);
    fields.add("duramen_cleaner_compactions", stats.cleaner.compactions);
    fields.add(
        "duramen_cleaner_segments_cleaned",
        stats.cleaner.segments_cleaned,
    );
    fields.add("duramen_cleaner_bytes_scanned", stats.cleaner.bytes_scanned);
    fields.add(
        "duramen_cleaner_bytes_relocated",
        stats.cleaner.bytes_relocated,
    );
    fields.add("duramen_cleaner_bytes_freed", stats.cleaner.bytes_freed);
    fields.add("duramen_cleaner_busy_ms", stats.cleaner.busy_ns / 1_000_000);
    fields.add("duramen_writer_stalls", stats.writer_stalls);
    fields.add("duramen_writer_stall_ms", stats.writer_stall_ns / 1_000_000);
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
            let expires = table.map_or(0, |id| ctx.shared.store().expiring_objects(id));
            // When they expire on average is not counted.
            fields.add(
                format_args!("db{db}"),
                format_args!("keys={objects},expires={expires},avg_ttl=0"),
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
