//! Counters summed over all threads, since the start or since `CONFIG RESETSTAT`.

use super::counters::{Histogram, THREADS, ThreadCommands, ThreadCounters};
use super::error_names;
use std::time::Instant;

/// Shortest time over which a rate is computed.
const RATE_MS_MIN: u128 = 100;

/// Sums over all threads.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Totals {
    /// In the order of [`THREADS`].
    counters: [u64; THREADS.len()],
    /// Error replies, in the order of [`error_names::NAMES`].
    pub(crate) errors_by_name: [u64; error_names::NAMES.len()],
}

/// One command's counters over all threads.
#[derive(Clone, Debug, Default)]
pub struct CommandTotals {
    /// Calls that ran to their end.
    pub(crate) calls: u64,
    pub(crate) rejected: u64,
    pub(crate) failed: u64,
    /// Time of all calls.
    pub ns: u64,
    /// Number of calls by time, as [`Histogram::counts`]; empty: there was none.
    pub times: Vec<u64>,
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
    /// Totals since the server started. `threads`, `commands`: the counters of its threads, and
    /// those of their commands.
    pub(crate) fn since_start<'t>(
        threads: impl Iterator<Item = &'t ThreadCounters> + Clone,
        commands: &[ThreadCommands],
    ) -> Totals {
        Totals {
            counters: std::array::from_fn(|row| {
                let read = THREADS[row].read;
                let counts = threads.clone().map(|thread| read(thread).as_count());
                counts.sum()
            }),
            errors_by_name: std::array::from_fn(|name| {
                let counts = commands.iter().map(|thread| thread.errors[name].get());
                counts.sum()
            }),
        }
    }

    /// The sum that `INFO` shows in this field.
    pub(crate) fn get(&self, info: &str) -> u64 {
        let rows = THREADS.iter().zip(self.counters);
        let mut named = rows.filter(|(figure, _)| figure.info == info);
        named.next().map_or(0, |(_, sum)| sum)
    }

    fn less(&self, before: &Totals) -> Totals {
        Totals {
            counters: less(&self.counters, &before.counters),
            errors_by_name: less(&self.errors_by_name, &before.errors_by_name),
        }
    }
}

impl Baseline {
    /// Totals since `CONFIG RESETSTAT`, and the current rates. `all`: the totals since the server
    /// started, at `started`.
    pub(crate) fn since_reset(&mut self, all: Totals, started: Instant) -> (Totals, Rates) {
        let now = Instant::now();
        let (sampled, before) = self.sampled.unwrap_or((started, Totals::default()));
        let elapsed = now.duration_since(sampled);
        if elapsed.as_millis() >= RATE_MS_MIN {
            let since = all.less(&before);
            let rate = |info| since.get(info) as f64 / elapsed.as_secs_f64();
            self.rates = Rates {
                commands: rate("total_commands_processed"),
                input_kbytes: rate("total_net_input_bytes") / 1024.0,
                output_kbytes: rate("total_net_output_bytes") / 1024.0,
            };
            self.sampled = Some((now, all));
        }
        (all.less(&self.totals), self.rates)
    }

    /// Every command's counters since `CONFIG RESETSTAT`. `threads`: those since the start.
    pub(crate) fn commands(&self, threads: &[ThreadCommands]) -> Vec<CommandTotals> {
        let nothing = CommandTotals::default();
        let all = counted(threads).into_iter().enumerate();
        let since = all.map(|(n, now)| {
            let before = self.commands.get(n).unwrap_or(&nothing);
            now.less(before)
        });
        since.collect()
    }

    /// Counts from these values on.
    pub(crate) fn reset(&mut self, totals: Totals, commands: Vec<CommandTotals>) {
        self.totals = totals;
        self.commands = commands;
    }
}

fn less<const N: usize>(now: &[u64; N], before: &[u64; N]) -> [u64; N] {
    std::array::from_fn(|n| now[n].saturating_sub(before[n]))
}

/// Every command's counters since the server started: these never decrease.
pub(crate) fn counted(threads: &[ThreadCommands]) -> Vec<CommandTotals> {
    let mut all = vec![CommandTotals::default(); threads[0].commands.len()];
    for thread in threads {
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
