//! LATENCY: events that took long, and a histogram per command.

use super::command::NAMES_MAX;
use super::latency_graph;
use crate::command::context::{Context, Done, Failure};
use crate::command::row::*;
use crate::figures::counters::Histogram;
use crate::figures::latency::{Event, Series, now_s};
use crate::figures::totals::CommandTotals;
use crate::state::shared::totals;

#[rustfmt::skip] // They are rows of a table.
pub(crate) const COMMANDS: &[Spec] = &[
    container("latency", doc(Topic::Server, "2.8.13", "Depends on the subcommand", "A container for commands about latency.")),
    row("latency|doctor", 2, ADMIN | NOSCRIPT | LOADING | STALE | DANGEROUS | REPORTS,
        doc(Topic::Server, "2.8.13", "O(1)", "Says in words how latency is."),
        Keys::NONE, Effect::Acts, Secrets::None, Run::Plain(doctor))
            .differs("A remedy for each event, and the times of all commands.")
        .tips(&["nondeterministic_output", "request_policy:all_nodes", "response_policy:special"]),
    row("latency|graph", 3, ADMIN | NOSCRIPT | LOADING | STALE | DANGEROUS | REPORTS,
        doc(Topic::Server, "2.8.13", "O(1)", "Draws the latency of an event."),
        Keys::NONE, Effect::Acts, Secrets::None, Run::Plain(graph))
        .tips(&["nondeterministic_output", "request_policy:all_nodes", "response_policy:special"]),
    row("latency|history", 3, ADMIN | NOSCRIPT | LOADING | STALE | DANGEROUS | REPORTS,
        doc(Topic::Server, "2.8.13", "O(1)", "Returns the samples of an event."),
        Keys::NONE, Effect::Acts, Secrets::None, Run::Plain(history))
        .tips(&["nondeterministic_output", "request_policy:all_nodes", "response_policy:special"]),
    row("latency|latest", 2, ADMIN | NOSCRIPT | LOADING | STALE | DANGEROUS | REPORTS,
        doc(Topic::Server, "2.8.13", "O(1)", "Returns the latest sample of each event."),
        Keys::NONE, Effect::Acts, Secrets::None, Run::Plain(latest))
            .differs("Events of this server: `command`, `fast-command`, `aof-write`, `aof-fsync-always`, `cleaner`, `round`.")
        .tips(&["nondeterministic_output", "request_policy:all_nodes", "response_policy:special"]),
    row("latency|reset", -2, ADMIN | NOSCRIPT | LOADING | STALE | DANGEROUS, doc(Topic::Server, "2.8.13", "O(1)", "Removes samples."),
        Keys::NONE, Effect::Acts, Secrets::None, Run::Plain(reset)).tips(&["request_policy:all_nodes", "response_policy:all_succeeded"]),
    row("latency|histogram", -2, ADMIN | NOSCRIPT | LOADING | STALE | DANGEROUS | REPORTS,
        doc(Topic::Server, "7.0.0", "O(N)", "Returns the distribution of latency by command."),
        Keys::NONE, Effect::Acts, Secrets::None, Run::Plain(histogram))
            .differs("Groups of requests are timed and divided; sums are exact.")
        .tips(&["nondeterministic_output", "request_policy:all_nodes", "response_policy:special"]),
    row("latency|help", 2, LOADING | STALE | TELLS, doc(Topic::Server, "2.8.13", "O(1)", "Lists the subcommands."),
        Keys::NONE, Effect::Acts, Secrets::None, Run::Plain(help)),
];

/// The events that have samples.
fn recorded(ctx: &Context<'_>) -> Vec<(Event, Series)> {
    let latency = ctx.shared.figures.latency();
    let all = Event::ALL.map(|event| (event, latency.of(event)));
    let has_some = |(_, series): &(Event, Series)| !series.samples().is_empty();
    all.into_iter().filter(has_some).collect()
}

/// The samples of the named event, if there are any.
fn named(ctx: &Context<'_>) -> Option<(Event, Series)> {
    let event = Event::find(ctx.arg(2))?;
    let series = ctx.shared.figures.latency().of(event);
    (!series.samples().is_empty()).then_some((event, series))
}

pub(crate) fn latest(ctx: &mut Context<'_>) -> Done {
    let recorded = recorded(ctx);
    let mut reply = ctx.reply.encoder();
    reply.array(recorded.len());
    for (event, series) in &recorded {
        let Some(newest) = series.samples().back() else {
            continue; // `recorded` has no event without samples
        };
        reply.array(4);
        reply.bulk(event.name().as_bytes());
        reply.integer(newest.unix_s as i64);
        reply.integer(newest.ms as i64);
        reply.integer(series.longest_ms() as i64);
    }
    Ok(())
}

pub(crate) fn history(ctx: &mut Context<'_>) -> Done {
    let series = named(ctx).map(|(_, series)| series).unwrap_or_default();
    let mut reply = ctx.reply.encoder();
    reply.array(series.samples().len());
    for sample in series.samples() {
        reply.array(2);
        reply.integer(sample.unix_s as i64);
        reply.integer(sample.ms as i64);
    }
    Ok(())
}

/// Forgets the samples of the named events, or of all; replies with the number of those that had
/// samples.
pub(crate) fn reset(ctx: &mut Context<'_>) -> Done {
    let names = ctx.request.args.skip(2);
    let is_named = |event: &Event| {
        let mut names = names.iter();
        names.any(|name| name == event.name().as_bytes())
    };
    let all = Event::ALL.into_iter();
    let meant = all.filter(|event| names.is_empty() || is_named(event));
    let reset = meant.filter(|event| ctx.shared.figures.latency().reset(*event));
    let count = reset.count();
    ctx.reply.integer(count as i64)
}

pub(crate) fn graph(ctx: &mut Context<'_>) -> Done {
    let Some((event, series)) = named(ctx) else {
        let event = String::from_utf8_lossy(ctx.arg(2)).into_owned();
        return Err(format!("ERR No samples available for event '{event}'").into());
    };
    let drawn = latency_graph::draw(event.name(), &series, now_s());
    ctx.reply.encoder().verbatim("txt", &drawn);
    Ok(())
}

/// Every command with its counters since `CONFIG RESETSTAT`.
pub(super) fn since_reset(
    ctx: &Context<'_>,
) -> impl Iterator<Item = (&'static Spec, CommandTotals)> + use<> {
    let rows = ctx.commands.rows().iter();
    rows.zip(totals::commands_since_reset(ctx.shared))
}

/// Commands that were called, most calls first, with their counters.
fn called(ctx: &Context<'_>) -> Vec<(&'static Spec, CommandTotals)> {
    let mut called = since_reset(ctx).collect::<Vec<_>>();
    called.retain(|(_, totals)| totals.calls > 0);
    called.sort_by_key(|(_, totals)| std::cmp::Reverse(totals.calls));
    called
}

pub(crate) fn doctor(ctx: &mut Context<'_>) -> Done {
    ctx.count_up_to_now();
    let mut text = diagnosis(ctx);
    text.push_str("Times of requests inside the server, by command:\n");
    for (spec, totals) in called(ctx) {
        text.push_str(&format!(
            "{:<20} {} calls, p50 {:.3} us, p99 {:.3} us, p99.9 {:.3} us\n",
            spec.name,
            totals.calls,
            totals.quantile_us(0.5),
            totals.quantile_us(0.99),
            totals.quantile_us(0.999)
        ));
    }
    text.push_str("Requests that took longer than slowlog-log-slower-than are in SLOWLOG GET.\n");
    ctx.reply.encoder().verbatim("txt", &text);
    Ok(())
}

/// The events of `LATENCY LATEST` in words, each with a remedy.
fn diagnosis(ctx: &mut Context<'_>) -> String {
    let from_ms = ctx.thread.config(ctx.shared).slow.event_ms;
    let recorded = recorded(ctx);
    if recorded.is_empty() && from_ms == 0 {
        return "Events are not recorded: CONFIG SET latency-monitor-threshold MILLISECONDS.\n"
            .to_owned();
    }
    if recorded.is_empty() {
        return format!("No event has taken {from_ms} ms.\n");
    }
    let mut text = String::from("Events that took long:\n");
    for (event, series) in recorded {
        let samples = series.samples();
        let (number, sum) = (
            samples.len() as u64,
            samples.iter().map(|s| s.ms).sum::<u64>(),
        );
        text.push_str(&format!(
            "{:<20} {number} samples, mean {} ms, longest {} ms: {}\n",
            event.name(),
            sum / number.max(1),
            series.longest_ms(),
            remedy(event)
        ));
    }
    text
}

fn remedy(event: Event) -> &'static str {
    match event {
        Event::Command => "SLOWLOG GET names slow commands; use those that read or write less",
        Event::FastCommand => {
            "the machine has too few free cores, or swaps, or the writes wait for memory"
        }
        Event::LogWrite | Event::LogSync => {
            "replies waited for the disk: use a faster one, or a weaker `level`"
        }
        Event::Round => "a thread was busy with one costly request: see SLOWLOG GET",
        Event::Cleaner => "writes waited for memory: raise `memory`, or `cleaners`",
    }
}

/// LATENCY HISTOGRAM, as in Redis: of all commands that were called, or of the named ones. A
/// container stands for its subcommands.
pub(crate) fn histogram(ctx: &mut Context<'_>) -> Done {
    ctx.count_up_to_now();
    let names = ctx.request.args.skip(2);
    if names.len() > NAMES_MAX {
        return Err(Failure::Text("ERR more than 1024 names of commands"));
    }
    let named: Vec<&Spec> = names
        .iter()
        .filter_map(|name| ctx.commands.find(name))
        .collect();
    let is_named = |spec: &Spec| {
        let mut named = named.iter().map(|named| named.name);
        named.any(|name| name == spec.name || Some(name) == spec.container())
    };
    let mut called = called(ctx);
    called.retain(|(spec, _)| names.is_empty() || is_named(spec));
    let mut reply = ctx.reply.encoder();
    reply.map(called.len());
    for (spec, totals) in called {
        let cumulative = cumulative(&totals.times);
        reply.bulk(spec.name.as_bytes());
        reply.map(2);
        reply.bulk(b"calls");
        reply.integer(totals.calls as i64);
        reply.bulk(b"histogram_usec");
        reply.map(cumulative.len());
        for (us, count) in cumulative {
            reply.integer(us as i64);
            reply.integer(count as i64);
        }
    }
    Ok(())
}

/// Number of requests that took up to 1, 2, 4 … microseconds, where the number grows.
fn cumulative(counts: &[u64]) -> Vec<(u64, u64)> {
    let total: u64 = counts.iter().sum();
    let (mut table, mut before, mut us) = (Vec::new(), 0, 1u64);
    while before < total && us < 1 << 40 {
        let up_to: u64 = counts
            .iter()
            .enumerate()
            .filter(|(bucket, _)| Histogram::bucket_end_ns(*bucket) <= us * 1024)
            .map(|(_, count)| count)
            .sum();
        if up_to > before {
            table.push((us, up_to));
            before = up_to;
        }
        us *= 2;
    }
    table
}

pub(crate) fn help(ctx: &mut Context<'_>) -> Done {
    ctx.reply.help(ctx.request.spec.container(), &[
        "DOCTOR",
        "    Return a human readable latency analysis report.",
        "GRAPH <event>",
        "    Return an ASCII latency graph for the <event> class.",
        "HISTORY <event>",
        "    Return time-latency samples for the <event> class.",
        "LATEST",
        "    Return the latest latency samples for all events.",
        "RESET [<event> ...]",
        "    Reset latency data of one or more <event> classes.",
        "    (default: reset all data for all event classes)",
        "HISTOGRAM [COMMAND ...]",
        "    Return a cumulative distribution of latencies in the format of a histogram for the specified command names.",
        "    If no commands are specified then all histograms are replied.",
    ])
}

#[cfg(test)]
mod tests {
    use super::cumulative;

    #[test]
    fn counts_accumulate_up_to_the_total() {
        let mut counts = vec![0; 160];
        counts[40] = 3;
        counts[50] = 4;
        let table = cumulative(&counts);
        assert_eq!(table.last().map(|(_, count)| *count), Some(7));
        assert!(
            table
                .windows(2)
                .all(|pair| pair[0].0 < pair[1].0 && pair[0].1 < pair[1].1)
        );
    }
}
