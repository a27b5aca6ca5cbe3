//! LATENCY: this server records no latency events; it keeps histograms by family of commands.

use super::context::{Context, Done};
use super::table;
use super::totals::Totals;
use crate::shared::{Family, Histogram};

pub(super) fn latest(ctx: &mut Context<'_>) -> Done {
    ctx.reply().array(0);
    Ok(())
}

pub(super) fn history(ctx: &mut Context<'_>) -> Done {
    ctx.reply().array(0);
    Ok(())
}

pub(super) fn reset(ctx: &mut Context<'_>) -> Done {
    ctx.integer(0)
}

pub(super) fn graph(ctx: &mut Context<'_>) -> Done {
    let event = String::from_utf8_lossy(ctx.arg(2)).into_owned();
    Err(format!("ERR No samples available for event '{event}'").into())
}

/// Counts per time of all threads together, by family.
pub(super) fn family_counts(ctx: &Context<'_>, family: Family) -> Vec<u64> {
    let mut sum: Vec<u64> = Vec::new();
    for thread in &ctx.shared.threads {
        let counts = thread.counters.latency[family as usize].counts();
        sum.resize(counts.len(), 0);
        for (total, count) in sum.iter_mut().zip(counts) {
            *total += count;
        }
    }
    sum
}

pub(super) fn doctor(ctx: &mut Context<'_>) -> Done {
    let mut text = String::from("Times of requests inside the server, by family of commands:\n");
    for family in Family::ALL {
        let counts = family_counts(ctx, family);
        let total: u64 = counts.iter().sum();
        if total == 0 {
            continue;
        }
        let us = |quantile| Histogram::quantile_ns(&counts, quantile) as f64 / 1000.0;
        text.push_str(&format!(
            "{:<12} {total} requests, p50 {:.3} us, p99 {:.3} us, p99.9 {:.3} us\n",
            family.name(),
            us(0.5),
            us(0.99),
            us(0.999)
        ));
    }
    text.push_str("Requests that took longer than slowlog-log-slower-than are in SLOWLOG GET.\n");
    ctx.reply().verbatim("txt", &text);
    Ok(())
}

/// As Redis, for commands; the times are those of the command's family, which is what is recorded.
pub(super) fn histogram(ctx: &mut Context<'_>) -> Done {
    let names = ctx.args.skip(2);
    let totals = Totals::commands(ctx.shared);
    let called: Vec<_> = totals
        .iter()
        .filter(|(_, totals)| totals.calls > 0)
        .filter(|(spec, _)| {
            names.is_empty()
                || names
                    .iter()
                    .any(|name| table::find(name).is_some_and(|named| named.name == spec.name))
        })
        .map(|(spec, totals)| {
            (
                spec.name,
                totals.calls,
                cumulative(&family_counts(ctx, spec.family)),
            )
        })
        .collect();
    let mut reply = ctx.reply();
    reply.map(called.len());
    for (name, calls, cumulative) in called {
        reply.bulk(name.as_bytes());
        reply.map(2);
        reply.bulk(b"calls");
        reply.integer(calls as i64);
        reply.bulk(b"histogram_usec");
        reply.map(cumulative.len());
        for (us, count) in cumulative {
            reply.integer(us as i64);
            reply.integer(count as i64);
        }
    }
    Ok(())
}

/// Requests that took up to 1, 2, 4 … microseconds, where the number grows.
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

pub(super) fn help(ctx: &mut Context<'_>) -> Done {
    ctx.help(&[
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
