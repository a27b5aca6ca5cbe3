//! Sums of the counters of all threads.

use super::Shared;
use crate::figures::totals::{CommandTotals, Rates, Totals, counted};

fn totals_since_start(shared: &Shared) -> Totals {
    let threads = shared.threads.iter().map(|thread| &thread.counters);
    Totals::since_start(threads, &shared.commands.threads)
}

/// Totals since `CONFIG RESETSTAT`, and the current rates.
pub(crate) fn since_reset(shared: &Shared) -> (Totals, Rates) {
    let all = totals_since_start(shared);
    shared
        .commands
        .baseline()
        .since_reset(all, shared.figures.started())
}

/// Every command's counters since `CONFIG RESETSTAT`.
pub(crate) fn commands_since_reset(shared: &Shared) -> Vec<CommandTotals> {
    shared
        .commands
        .baseline()
        .commands(&shared.commands.threads)
}

/// Every command's counters since the server started: these never decrease.
pub(crate) fn commands_since_start(shared: &Shared) -> Vec<CommandTotals> {
    counted(&shared.commands.threads)
}

/// Resets all counters to 0.
pub(crate) fn reset(shared: &Shared) {
    let totals = totals_since_start(shared);
    let commands = commands_since_start(shared);
    shared.commands.baseline().reset(totals, commands);
}
