//! MEMORY: the engine's memory report, in Redis's form.

use super::footprint::Footprint;
use super::info;
use crate::command::context::{Context, Done, NOT_AN_INTEGER, SYNTAX};
use crate::command::row::*;
use duramen_config::process;
use duramen_engine::{Guard, MemoryReport};
use duramen_wire::resp::number::parse_integer;

#[rustfmt::skip] // They are rows of a table.
pub(crate) const COMMANDS: &[Spec] = &[
    container("memory", doc(Topic::Server, "4.0.0", "Depends on the subcommand", "A container for commands about memory.")),
    row("memory|usage", -3, NO_FLAGS, doc(Topic::Server, "4.0.0", "O(N) where N is the number of samples", "Returns the bytes that a key takes."),
        Keys::at(2, LOOKS), Effect::Reads, Secrets::None, Run::Data(usage)),
    row("memory|stats", 2, REPORTS, doc(Topic::Server, "4.0.0", "O(1)", "Returns where memory went."),
        Keys::NONE, Effect::Acts, Secrets::None, Run::Store(stats))
        .tips(&["nondeterministic_output", "request_policy:all_shards", "response_policy:special"]),
    row("memory|doctor", 2, REPORTS, doc(Topic::Server, "4.0.0", "O(1)", "Says in words how memory is."),
        Keys::NONE, Effect::Acts, Secrets::None, Run::Store(doctor))
        .tips(&["nondeterministic_output", "request_policy:all_shards", "response_policy:special"]),
    row("memory|malloc-stats", 2, REPORTS, doc(Topic::Server, "4.0.0", "O(1)", "Returns the allocator's figures."),
        Keys::NONE, Effect::Acts, Secrets::None, Run::Store(malloc_stats))
        .tips(&["nondeterministic_output", "request_policy:all_shards", "response_policy:special"]),
    row("memory|purge", 2, NO_FLAGS, doc(Topic::Server, "4.0.0", "O(1)", "Gives free memory back."),
        Keys::NONE, Effect::Acts, Secrets::None, Run::Store(purge)).tips(&["request_policy:all_shards", "response_policy:all_succeeded"]),
    row("memory|help", 2, LOADING | STALE | TELLS, doc(Topic::Server, "4.0.0", "O(1)", "Lists the subcommands."),
        Keys::NONE, Effect::Acts, Secrets::None, Run::Store(help)),
];

pub(crate) fn usage(ctx: &mut Context<'_>, guard: &mut Guard<'_>) -> Done {
    let key = ctx.key();
    match ctx.request.args.len() {
        3 => {}
        5 if ctx.arg(3).eq_ignore_ascii_case(b"samples") => {
            if parse_integer(ctx.arg(4)).ok_or(NOT_AN_INTEGER)? < 0 {
                return Err(SYNTAX);
            }
        }
        _ => return Err(SYNTAX),
    }
    match guard.footprint_bytes(key.table, key.hash, key.bytes)? {
        Some(bytes) => ctx.reply.integer(bytes as i64),
        None => ctx.reply.null(),
    }
}

pub(crate) fn stats(ctx: &mut Context<'_>) -> Done {
    let footprint = Footprint::of(ctx.shared, ctx.shared.store());
    let report = &footprint.report;
    let rss = process::rss_bytes();
    let used = footprint.used_bytes();
    let per_key = report.live_bytes.checked_div(report.objects).unwrap_or(0);
    let fields = [
        ("peak.allocated", info::peak(ctx.shared, used)),
        ("total.allocated", used),
        ("startup.allocated", report.overhead_bytes),
        ("keys.count", report.objects),
        ("keys.bytes-per-key", per_key),
        ("dataset.bytes", report.live_bytes),
        ("overhead.total", report.overhead_bytes + report.index_bytes),
        ("db.overhead.index", report.index_bytes),
    ];
    // Redis has names for the others.
    let own = ["live", "index", "overhead"];
    let parts = footprint.parts();
    let parts = parts.iter().filter(|(name, _)| !own.contains(name));
    let parts = parts.map(|(name, bytes)| {
        let name = name.replace('_', "-");
        (format!("duramen.{name}-bytes"), *bytes)
    });
    let last = [
        ("duramen.budget-bytes", report.budget_bytes),
        ("duramen.rss-bytes", rss),
    ];
    let named = |(name, value): (&str, u64)| (name.to_owned(), value);
    let all = fields.into_iter().map(named).chain(parts);
    let all: Vec<_> = all.chain(last.into_iter().map(named)).collect();
    let mut reply = ctx.reply.encoder();
    reply.map(all.len() + 1);
    for (name, value) in all {
        reply.bulk(name.as_bytes());
        reply.integer(value as i64);
    }
    reply.bulk(b"fragmentation");
    reply.double(ratio(rss, report.live_bytes));
    Ok(())
}

fn ratio(a: u64, b: u64) -> f64 {
    if b == 0 { 0.0 } else { a as f64 / b as f64 }
}

pub(crate) fn doctor(ctx: &mut Context<'_>) -> Done {
    let report = ctx.shared.store().memory_report();
    let text = explain(&report, process::rss_bytes());
    ctx.reply.encoder().verbatim("txt", &text);
    Ok(())
}

/// The memory report in words.
fn explain(report: &MemoryReport, rss_bytes: u64) -> String {
    let mut text = format!(
        "{} objects take {} bytes in the log, and {} bytes of index.\n\
         {} bytes of the log are dead and wait for the cleaner; {} bytes are backed but not written yet; {} bytes are the engine's own tables.\n\
         Together {} of the budget's {} bytes; the process has {rss_bytes} bytes resident.\n",
        report.objects,
        report.live_bytes,
        report.index_bytes,
        report.dead_bytes,
        report.unused_bytes,
        report.overhead_bytes,
        report.total_bytes,
        report.budget_bytes,
    );
    if report.live_bytes > report.budget_bytes / 10 * 9 {
        text.push_str("More than 90 % of the budget is live data: the cleaner works hard; raise the budget or delete something.\n");
    }
    text
}

pub(crate) fn malloc_stats(ctx: &mut Context<'_>) -> Done {
    let text = "Values are not in an allocator but in the log; see MEMORY DOCTOR.\n";
    ctx.reply.encoder().verbatim("txt", text);
    Ok(())
}

/// Does nothing: the cleaner gives memory back by itself.
pub(crate) fn purge(ctx: &mut Context<'_>) -> Done {
    ctx.reply.ok()
}

pub(crate) fn help(ctx: &mut Context<'_>) -> Done {
    ctx.reply.help(
        ctx.request.spec.container(),
        &[
            "DOCTOR",
            "    Return memory problems reports.",
            "MALLOC-STATS",
            "    Return internal statistics report from the memory allocator.",
            "PURGE",
            "    Attempt to purge dirty pages for reclamation by the allocator.",
            "STATS",
            "    Return information about the memory usage of the server.",
            "USAGE <key> [SAMPLES <count>]",
            "    Return memory in bytes used by <key> and its value. Nested values are",
            "    sampled up to <count> times (default: 5, 0 means sample all).",
        ],
    )
}
