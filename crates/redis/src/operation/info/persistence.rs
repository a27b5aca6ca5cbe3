//! `INFO persistence`: Redis's fields, each with the closest meaning here, then the server's own
//! fields.
//!
//! The append-only file stands for the log: it is on whenever there is a data directory, and its
//! fields about writing and syncing describe the log. The RDB stands for snapshots (SAVE, BGSAVE).

use super::Fields;
use crate::command::context::Context;
use crate::durability::{Durability, Job};
use crate::operation::figures;
use duramen::{DiskState, DurabilityStats};
use duramen_base::ids::Level;

pub(crate) fn write(ctx: &Context<'_>, fields: &mut Fields) {
    let config = ctx.shared.config();
    if ctx.shared.data().is_none() {
        return loading(ctx, fields);
    }
    let Some(durability) = ctx.shared.durability() else {
        return in_memory(fields);
    };
    let stats = durability.stats();
    let job = durability.snapshot_job();
    fields.zeros(&["loading", "async_loading"]);
    fields.zeros(&NEVER);
    rdb(durability, job.as_deref(), &stats, fields);
    aof(&stats, fields);
    let level = config.write_level();
    fields.add("duramen_level", level.name());
    match durability.replicas() {
        0 => fields.add("duramen_durability", promise(level)),
        replicas => fields.add("duramen_durability", promise_of_member(level, replicas)),
    }
    if let Some(dir) = config.data_dir() {
        fields.add("duramen_dir", dir.display());
    }
    match ctx.shared.storage.encryption_key() {
        Some(key) => {
            fields.add("duramen_encryption", "aes-256-xts");
            fields.add("duramen_encryption_key", key);
        }
        None => fields.add("duramen_encryption", "off"),
    }
    own(&stats, fields);
    snapshot(job.as_deref(), fields);
}

/// Fields of copy-on-write and of module processes, which do not exist here.
const NEVER: [&str; 6] = [
    "current_cow_peak",
    "current_cow_size",
    "current_cow_size_age",
    "rdb_last_cow_size",
    "module_fork_in_progress",
    "module_fork_last_cow_size",
];

/// The events that an acknowledged write survives, in words.
pub(crate) fn promise(level: Level) -> &'static str {
    match level {
        Level::Memory => {
            "an acknowledged write is in memory; it reaches the disk a moment later and is lost if this process ends before"
        }
        Level::Buffered => {
            "an acknowledged write is with the operating system: it survives the end of this process, not a power cut"
        }
        Level::Synced => "an acknowledged write is on stable storage: it survives a power cut",
    }
}

/// As [`promise`], for a member of a cluster.
fn promise_of_member(level: Level, replicas: usize) -> String {
    match level {
        Level::Memory => format!(
            "an acknowledged write is in memory; it reaches {replicas} other servers a moment later and is lost if this process ends before"
        ),
        Level::Buffered => format!(
            "an acknowledged write is with the operating systems of {replicas} other servers: it survives the end of this server and of all but one of those, not a power cut of all"
        ),
        Level::Synced => format!(
            "an acknowledged write is on stable storage of {replicas} other servers: it survives a power cut of all, or the loss of this server and of all but one of those"
        ),
    }
}

fn loading(ctx: &Context<'_>, fields: &mut Fields) {
    fields.add("loading", 1);
    fields.add("async_loading", 0);
    fields.add(
        "loading_start_time",
        ctx.shared.figures.started_unix_ms() / 1000,
    );
    let progress = ctx.shared.storage.progress();
    if let Some(now) = progress.now {
        fields.add("loading_total_bytes", now.bytes_total);
        fields.add("loading_loaded_bytes", now.bytes_done);
        fields.add(
            "loading_loaded_perc",
            format_args!("{}.00", progress.percent().unwrap_or(0)),
        );
        fields.add(
            "loading_eta_seconds",
            now.eta().map_or(-1, |left| left.as_secs() as i64),
        );
        fields.add("duramen_loading_entries", now.entries_done);
    }
}

fn in_memory(fields: &mut Fields) {
    fields.zeros(&["loading", "async_loading"]);
    fields.zeros(&NEVER);
    fields.add("current_fork_perc", "0.00");
    fields.zeros(&["current_save_keys_processed", "current_save_keys_total"]);
    fields.zeros(&["rdb_changes_since_last_save", "rdb_bgsave_in_progress"]);
    fields.add("rdb_last_save_time", 0);
    fields.add("rdb_last_bgsave_status", "ok");
    fields.add("rdb_last_bgsave_time_sec", -1);
    fields.add("rdb_current_bgsave_time_sec", -1);
    fields.zeros(&[
        "rdb_saves",
        "rdb_last_load_keys_expired",
        "rdb_last_load_keys_loaded",
    ]);
    fields.add("aof_enabled", 0);
    aof_rewrites(fields);
    fields.add("aof_last_write_status", "ok");
    fields.add("duramen_level", "memory");
    fields.add(
        "duramen_durability",
        "none: an acknowledged write is in memory only and is lost when this process ends",
    );
}

fn rdb(durability: &Durability, job: Option<&Job>, stats: &DurabilityStats, fields: &mut Fields) {
    let running = job.is_some_and(|job| job.result().is_none());
    let failed = job.is_some_and(|job| matches!(job.result(), Some(Err(_))));
    // Every write goes to the log by itself: none waits for a save.
    fields.add("rdb_changes_since_last_save", 0);
    fields.add("rdb_bgsave_in_progress", u8::from(running));
    fields.add("rdb_last_save_time", durability.saved_s());
    fields.add("rdb_last_bgsave_status", if failed { "err" } else { "ok" });
    let seconds = job.map_or(-1, |job| job.elapsed().as_secs() as i64);
    let (last, now) = if running {
        (-1, seconds)
    } else {
        (seconds, -1)
    };
    fields.add("rdb_last_bgsave_time_sec", last);
    fields.add("rdb_current_bgsave_time_sec", now);
    // A snapshot is counted in bytes, and no process is copied.
    let (done, total) = match job.filter(|_| running) {
        Some(job) => (job.bytes_done(), job.bytes_total()),
        None => (0, 0),
    };
    let percent = done as f64 * 100.0 / total.max(1) as f64;
    fields.add("current_fork_perc", format_args!("{percent:.2}"));
    fields.add("current_save_keys_processed", done);
    fields.add("current_save_keys_total", total);
    fields.add("rdb_saves", durability.saves());
    fields.add("rdb_last_load_keys_expired", 0);
    fields.add("rdb_last_load_keys_loaded", stats.loaded_entries);
}

/// The log is cleaned continuously, and never rewritten.
fn aof_rewrites(fields: &mut Fields) {
    fields.zeros(&["aof_rewrite_in_progress", "aof_rewrite_scheduled"]);
    fields.add("aof_last_rewrite_time_sec", -1);
    fields.add("aof_current_rewrite_time_sec", -1);
    fields.add("aof_last_bgrewrite_status", "ok");
    fields.zeros(&[
        "aof_rewrites",
        "aof_rewrites_consecutive_failures",
        "aof_last_cow_size",
    ]);
}

fn aof(stats: &DurabilityStats, fields: &mut Fields) {
    let status = match stats.disk {
        DiskState::Ok => "ok",
        DiskState::Full | DiskState::Failed(_) => "err",
    };
    fields.add("aof_enabled", 1);
    aof_rewrites(fields);
    fields.add("aof_last_write_status", status);
    let frames_bytes = stats.frames_used * stats.frame_bytes;
    fields.add("aof_current_size", stats.wal_used_bytes + frames_bytes);
    fields.add("aof_base_size", frames_bytes);
    fields.add("aof_pending_rewrite", 0);
    fields.add("aof_buffer_length", stats.undurable_bytes);
    fields.zeros(&["aof_pending_bio_fsync", "aof_delayed_fsync"]);
}

fn own(stats: &DurabilityStats, fields: &mut Fields) {
    let state = match &stats.disk {
        DiskState::Ok if stats.scrub_lost > 0 => format!(
            "damaged: {} segments on disk cannot be repaired, see the log",
            stats.scrub_lost
        ),
        DiskState::Ok if stats.scrub_pending > 0 => format!(
            "degraded: {} damaged segments on disk are being repaired",
            stats.scrub_pending
        ),
        DiskState::Ok => "ok".to_owned(),
        DiskState::Full => "full: writes are refused until there is space".to_owned(),
        DiskState::Failed(why) => format!("failed: {why}"),
    };
    fields.add("duramen_disk_state", state);
    let names = [
        "duramen_undurable_bytes",
        "duramen_commits",
        "duramen_syncs",
        "duramen_sync_last_us",
        "duramen_sync_average_us",
        "duramen_sync_p50_us",
        "duramen_sync_p99_us",
        "duramen_sync_max_us",
        "duramen_wal_bytes",
        "duramen_wal_used_bytes",
        "duramen_frames",
        "duramen_frames_used",
        "duramen_segments_listed",
        "duramen_log_segments",
        "duramen_log_segments_max",
        "duramen_wal_written_bytes",
        "duramen_frame_written_bytes",
        "duramen_cleaning_network_bytes",
        "duramen_recipes_sent",
        "duramen_recipes_refused",
        "duramen_damaged_sends",
    ];
    fields.figures(&figures::DURABILITY, stats, &names);
    let amplification = stats.write_amplification();
    fields.add(
        "duramen_write_amplification",
        format_args!("{amplification:.2}"),
    );
    let names = [
        "duramen_loaded_bytes",
        "duramen_loaded_entries",
        "duramen_load_ms",
        "duramen_clean_start",
        "duramen_scrubbed_frames",
        "duramen_bad_frames",
        "duramen_quarantined_frames",
        "duramen_scrub_left",
        "duramen_scrub_total",
        "duramen_scrub_repaired",
        "duramen_scrub_pending",
        "duramen_scrub_lost",
    ];
    fields.figures(&figures::DURABILITY, stats, &names);
}

fn snapshot(job: Option<&Job>, fields: &mut Fields) {
    let Some(job) = job else {
        return;
    };
    fields.add("duramen_snapshot_dir", job.dir().display());
    fields.add("duramen_snapshot_bytes_done", job.bytes_done());
    fields.add("duramen_snapshot_bytes_total", job.bytes_total());
    let state = match job.result() {
        None => "running".to_owned(),
        Some(Ok(())) => "ok".to_owned(),
        Some(Err(why)) => format!("failed: {}", why.replace(['\r', '\n'], " ")),
    };
    fields.add("duramen_snapshot_state", state);
}
