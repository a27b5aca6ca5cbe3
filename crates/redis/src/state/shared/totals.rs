//! Sums of the counters of all threads.

use super::Shared;
use crate::figures::totals::{CommandTotals, Rates, Totals, counted};

impl Shared {
    fn totals_since_start(&self) -> Totals {
        let threads = self.threads.iter().map(|thread| &thread.counters);
        Totals::since_start(threads, &self.commands.threads)
    }

    /// Totals since `CONFIG RESETSTAT`, and the current rates.
    pub(crate) fn totals(&self) -> (Totals, Rates) {
        let all = self.totals_since_start();
        self.commands.baseline().since_reset(all, self.started)
    }

    /// Every command's counters since `CONFIG RESETSTAT`.
    pub(crate) fn command_totals(&self) -> Vec<CommandTotals> {
        self.commands.baseline().commands(&self.commands.threads)
    }

    /// Every command's counters since the server started: these never decrease.
    pub(crate) fn command_totals_since_start(&self) -> Vec<CommandTotals> {
        counted(&self.commands.threads)
    }

    /// Resets all counters to 0.
    pub(crate) fn reset_totals(&self) {
        let totals = self.totals_since_start();
        let commands = self.command_totals_since_start();
        self.commands.baseline().reset(totals, commands);
    }
}
