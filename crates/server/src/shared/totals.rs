//! Counters summed over all threads, since the start or since `CONFIG RESETSTAT`.

use super::error_names;
use super::{Counter, Histogram, Shared, ThreadCounters};
use std::sync::PoisonError;
use std::time::Instant;

/// Shortest time over which a rate is computed.
const RATE_MS_MIN: u128 = 100;

/// Sums over all threads.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Totals {
    pub(crate) commands: u64,
    pub(crate) errors: u64,
    pub(crate) keyspace_hits: u64,
    pub(crate) keyspace_misses: u64,
    pub(crate) net_input_bytes: u64,
    pub(crate) net_output_bytes: u64,
    pub(crate) connections_accepted: u64,
    pub(crate) connections_rejected: u64,
    pub(crate) idle_closed: u64,
    pub(crate) output_closed: u64,
    /// Error replies, in the order of [`error_names::NAMES`].
    pub(crate) errors_by_name: [u64; error_names::NAMES.len()],
}

/// One command's counters over all threads.
#[derive(Clone, Debug, Default)]
pub(crate) struct CommandTotals {
    /// Calls that ran to their end.
    pub(crate) calls: u64,
    pub(crate) rejected: u64,
    pub(crate) failed: u64,
    /// Time of all calls.
    pub(crate) ns: u64,
    /// Number of calls by time, as [`Histogram::counts`]; empty: there was none.
    pub(crate) times: Vec<u64>,
}

impl CommandTotals {
    fn add_times(&mut self, histogram: &Histogram) {
        self.ns += histogram.sum_ns();
        let counts = histogram.counts();
        self.times.resize(counts.len(), 0);
        self.times
            .iter_mut()
            .zip(counts)
            .for_each(|(sum, n)| *sum += n);
    }

    fn less(mut self, before: &CommandTotals) -> CommandTotals {
        let less = |now: &mut u64, before: u64| *now = now.saturating_sub(before);
        less(&mut self.rejected, before.rejected);
        less(&mut self.failed, before.failed);
        less(&mut self.ns, before.ns);
        let times = self.times.iter_mut().zip(&before.times);
        times.for_each(|(now, before)| less(now, *before));
        self.calls = self.times.iter().sum();
        self
    }

    /// The time, in microseconds, that a share of `quantile` (0 to 1) of the calls did not exceed.
    pub(crate) fn quantile_us(&self, quantile: f64) -> f64 {
        Histogram::quantile_ns(&self.times, quantile) as f64 / 1000.0
    }
}

/// Rates per second, over the last period that was long enough.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Rates {
    pub(crate) commands: f64,
    pub(crate) input_kbytes: f64,
    pub(crate) output_kbytes: f64,
}

/// Values of the counters at the last sample, and at the last reset.
#[derive(Debug, Default)]
pub(crate) struct Baseline {
    totals: Totals,
    commands: Vec<CommandTotals>,
    sampled: Option<(Instant, Totals)>,
    rates: Rates,
}

impl Totals {
    /// Totals since the server started.
    fn since_start(shared: &Shared) -> Totals {
        let sum = |counter: fn(&ThreadCounters) -> &Counter| {
            shared
                .threads
                .iter()
                .map(|thread| counter(&thread.counters).get())
                .sum()
        };
        Totals {
            commands: sum(|c| &c.commands),
            errors: sum(|c| &c.errors),
            keyspace_hits: sum(|c| &c.keyspace_hits),
            keyspace_misses: sum(|c| &c.keyspace_misses),
            net_input_bytes: sum(|c| &c.net_input_bytes),
            net_output_bytes: sum(|c| &c.net_output_bytes),
            connections_accepted: sum(|c| &c.connections_accepted),
            connections_rejected: sum(|c| &c.connections_rejected),
            idle_closed: sum(|c| &c.idle_closed),
            output_closed: sum(|c| &c.output_closed),
            errors_by_name: std::array::from_fn(|name| {
                let threads = shared.commands.threads.iter();
                threads.map(|thread| thread.errors[name].get()).sum()
            }),
        }
    }

    /// Totals since `CONFIG RESETSTAT`, and the current rates.
    pub(crate) fn now(shared: &Shared) -> (Totals, Rates) {
        let all = Totals::since_start(shared);
        let mut baseline = shared
            .commands
            .baseline
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        let (sampled, before) = baseline
            .sampled
            .unwrap_or((shared.started, Totals::default()));
        let elapsed = now.duration_since(sampled);
        if elapsed.as_millis() >= RATE_MS_MIN {
            let rate = |a: u64, b: u64| a.saturating_sub(b) as f64 / elapsed.as_secs_f64();
            baseline.rates = Rates {
                commands: rate(all.commands, before.commands),
                input_kbytes: rate(all.net_input_bytes, before.net_input_bytes) / 1024.0,
                output_kbytes: rate(all.net_output_bytes, before.net_output_bytes) / 1024.0,
            };
            baseline.sampled = Some((now, all));
        }
        (all.less(&baseline.totals), baseline.rates)
    }

    fn less(&self, before: &Totals) -> Totals {
        Totals {
            commands: self.commands.saturating_sub(before.commands),
            errors: self.errors.saturating_sub(before.errors),
            keyspace_hits: self.keyspace_hits.saturating_sub(before.keyspace_hits),
            keyspace_misses: self.keyspace_misses.saturating_sub(before.keyspace_misses),
            net_input_bytes: self.net_input_bytes.saturating_sub(before.net_input_bytes),
            net_output_bytes: self
                .net_output_bytes
                .saturating_sub(before.net_output_bytes),
            connections_accepted: self
                .connections_accepted
                .saturating_sub(before.connections_accepted),
            connections_rejected: self
                .connections_rejected
                .saturating_sub(before.connections_rejected),
            idle_closed: self.idle_closed.saturating_sub(before.idle_closed),
            output_closed: self.output_closed.saturating_sub(before.output_closed),
            errors_by_name: std::array::from_fn(|name| {
                self.errors_by_name[name].saturating_sub(before.errors_by_name[name])
            }),
        }
    }

    /// Every command's counters since `CONFIG RESETSTAT`.
    pub(crate) fn commands(shared: &Shared) -> Vec<CommandTotals> {
        let baseline = shared
            .commands
            .baseline
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let all = counted(shared);
        let nothing = CommandTotals::default();
        let since = all.into_iter().enumerate().map(|(n, now)| {
            let before = baseline.commands.get(n).unwrap_or(&nothing);
            now.less(before)
        });
        since.collect()
    }

    /// Resets all counters to 0.
    pub(crate) fn reset(shared: &Shared) {
        let totals = Totals::since_start(shared);
        let commands = counted(shared);
        let mut baseline = shared
            .commands
            .baseline
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        baseline.totals = totals;
        baseline.commands = commands;
    }
}

/// Every command's counters since the server started: these never decrease.
pub(crate) fn counted(shared: &Shared) -> Vec<CommandTotals> {
    let commands = &shared.commands.threads[0].commands;
    let mut all = vec![CommandTotals::default(); commands.len()];
    for thread in &shared.commands.threads {
        for (sum, command) in all.iter_mut().zip(&thread.commands) {
            sum.rejected += command.rejected.get();
            sum.failed += command.failed.get();
            if let Some(times) = command.times.get() {
                sum.add_times(times);
            }
        }
    }
    all
}
