//! The section `memory` of INFO.
//!
//! Redis's fields describe an allocator. Here `used_memory` is the memory of data, index, the
//! engine's tables, data not yet on disk, clients and the heap. Memory that the cleaner will give
//! back, and memory that is backed but not used yet, are reported separately, as Redis reports the
//! allocator's fragmentation. So `used_memory`, `mem_fragmentation_bytes` and the program itself
//! add up to resident memory.

use super::{Fields, human};
use crate::command::context::Context;
use crate::operation::figures;
use crate::operation::footprint::Footprint;
use crate::state::Shared;
use crate::state::flash_stats;
use duramen_config::process;
use duramen_engine::Store;
use std::sync::atomic::Ordering;

/// Greatest memory in use that `INFO` or `MEMORY STATS` has found, `used` included.
pub(crate) fn peak(shared: &Shared, used: u64) -> u64 {
    let peak = &shared.commands.used_memory_peak;
    peak.fetch_max(used, Ordering::Relaxed).max(used)
}

pub(crate) fn write(ctx: &Context<'_>, fields: &mut Fields) {
    let Some(store) = ctx.shared.data() else {
        return;
    };
    let footprint = Footprint::of(ctx.shared, store);
    let report = &footprint.report;
    let (used, rss) = (footprint.used_bytes(), process::rss_bytes());
    let peak = peak(ctx.shared, used);
    let dataset = report.live_bytes;
    let overhead = used - dataset;
    fields.bytes("used_memory", used);
    fields.bytes("used_memory_rss", rss);
    fields.bytes("used_memory_peak", peak);
    fields.add("used_memory_peak_perc", percent(used, peak));
    fields.add("used_memory_overhead", overhead);
    // The engine's tables are created at the start.
    fields.add("used_memory_startup", report.overhead_bytes);
    fields.add("used_memory_dataset", dataset);
    let beyond_startup = used - report.overhead_bytes;
    fields.add("used_memory_dataset_perc", percent(dataset, beyond_startup));
    allocator(&footprint, rss, fields);
    fields.bytes("total_system_memory", process::machine_bytes());
    scripts(ctx.shared, fields);
    let config = ctx.shared.config();
    // A part of it may be reserved: see `engine_bytes`.
    fields.bytes("maxmemory", config.memory_bytes);
    fields.add("maxmemory_policy", config.policy_name());
    let private = rss.saturating_sub(footprint.program_bytes);
    fields.add("mem_fragmentation_ratio", ratio(private, used));
    fields.add("mem_fragmentation_bytes", private as i64 - used as i64);
    fields.add(
        "mem_not_counted_for_evict",
        overhead - report.overhead_bytes - report.index_bytes,
    );
    fields.zeros(&[
        "mem_replication_backlog",
        "mem_total_replication_buffers",
        "mem_clients_slaves",
    ]);
    fields.add(
        "mem_clients_normal",
        footprint.query_bytes + footprint.output_bytes,
    );
    fields.add("mem_cluster_links", 0);
    fields.add("mem_aof_buffer", footprint.log_buffer_bytes);
    fields.add("mem_allocator", "duramen-log");
    fields.zeros(&[
        "active_defrag_running",
        "lazyfree_pending_objects",
        "lazyfreed_objects",
    ]);
    own_figures(ctx.shared, store, fields);
}

/// The figures that Redis does not have.
fn own_figures(shared: &Shared, store: &Store, fields: &mut Fields) {
    let names = [
        "duramen_live_bytes",
        "duramen_live_limit_bytes",
        "duramen_index_bytes",
        "duramen_committed_bytes",
        "duramen_excess_bytes",
        "duramen_segment_budget_bytes",
        "duramen_utilization",
        "duramen_page_bytes",
        "duramen_flipped_bits",
        "duramen_damaged_entries",
        "duramen_cleaner_given_up",
    ];
    fields.figures(&figures::STORE, &store.stats(), &names);
    if shared.tier().is_some() {
        let names = figures::FLASH.each_ref().map(|figure| figure.info);
        fields.figures(
            &figures::FLASH,
            &flash_stats(store, &shared.threads),
            &names,
        );
        let waiting = shared.threads.sum(|counters| &counters.flash_parked);
        fields.add("duramen_flash_waiting_clients", waiting);
    }
}

/// Redis's fields of its allocator: here for the log and the heap together.
fn allocator(footprint: &Footprint, rss: u64, fields: &mut Fields) {
    let allocated = footprint.used_bytes();
    let resident = rss.saturating_sub(footprint.program_bytes);
    // Memory that was never touched is not active.
    let active = (footprint.total_bytes() - footprint.program_bytes).min(resident);
    let allocated = allocated.min(active);
    fields.add("allocator_allocated", allocated);
    fields.add("allocator_active", active);
    fields.add("allocator_resident", resident);
    fields.add("allocator_frag_ratio", ratio(active, allocated));
    fields.add("allocator_frag_bytes", active - allocated);
    fields.add("allocator_rss_ratio", ratio(resident, active));
    fields.add("allocator_rss_bytes", resident as i64 - active as i64);
    fields.add("rss_overhead_ratio", ratio(rss, resident));
    fields.add("rss_overhead_bytes", rss - resident);
}

/// Fields of scripts and functions, whose interpreters are a part of the heap.
fn scripts(shared: &Shared, fields: &mut Fields) {
    let (number, bytes) = shared.scripts().cache.size();
    fields.add("number_of_cached_scripts", number);
    let libraries = shared.scripts().libraries.current();
    fields.add("number_of_functions", libraries.functions());
    fields.add("number_of_libraries", libraries.all().count());
    for name in ["used_memory_scripts", "used_memory_scripts_eval"] {
        fields.add(name, bytes);
    }
    fields.add("used_memory_scripts_human", human(bytes as u64));
    fields.zeros(&[
        "used_memory_lua",
        "used_memory_vm_eval",
        "used_memory_vm_functions",
        "used_memory_vm_total",
        "used_memory_functions",
    ]);
    for name in ["used_memory_lua", "used_memory_vm_total"] {
        fields.add(format_args!("{name}_human"), human(0));
    }
}

fn ratio(a: u64, b: u64) -> String {
    format!("{:.2}", a as f64 / b.max(1) as f64)
}

fn percent(a: u64, b: u64) -> String {
    format!("{:.2}%", a as f64 * 100.0 / b.max(1) as f64)
}
