//! The EXEC that runs on a thread: what its commands share.

use super::run::ExecRun;
use crate::state::db::DBS;
use duramen_engine::TableId;
use std::time::Duration;

/// See the head of this file.
#[derive(Default)]
pub(crate) struct RunningExec {
    /// Whether a command of a transaction is running.
    runs: bool,
    /// Number of objects that walks of the running EXEC have visited.
    walked: usize,
    /// The tables behind the databases, as the running EXEC found them under its guard. EXEC
    /// creates no tables: it would wait for its own open group.
    dbs: Option<[Option<TableId>; DBS]>,
    /// The suspended run of the EXEC: it is here before the run goes on, and after the run has
    /// stopped.
    suspended: Option<Box<ExecRun>>,
    /// Time that the scripts of the running EXEC have taken.
    scripts_took: Duration,
}

impl RunningExec {
    /// Whether a command of a transaction is running.
    #[inline]
    pub(crate) fn runs(&self) -> bool {
        self.runs
    }

    pub(crate) fn set_runs(&mut self, runs: bool) {
        self.runs = runs;
    }

    /// Sets the number of visited objects to 0.
    pub(crate) fn begin_walks(&mut self) {
        self.walked = 0;
    }

    /// Adds objects that a walk has visited; returns the number of all.
    pub(crate) fn walk(&mut self, objects: usize) -> usize {
        self.walked += objects;
        self.walked
    }

    /// The tables behind the databases, as the running EXEC found them; `None`: they are those of
    /// the server.
    #[inline]
    pub(crate) fn dbs(&self) -> Option<&[Option<TableId>; DBS]> {
        self.dbs.as_ref()
    }

    pub(crate) fn set_dbs(&mut self, dbs: Option<[Option<TableId>; DBS]>) {
        self.dbs = dbs;
    }

    pub(crate) fn take_suspended(&mut self) -> Option<Box<ExecRun>> {
        self.suspended.take()
    }

    pub(crate) fn suspend(&mut self, run: Option<Box<ExecRun>>) {
        self.suspended = run;
    }

    /// Time that the scripts of the running EXEC have taken.
    pub(crate) fn scripts_took(&self) -> Duration {
        self.scripts_took
    }

    pub(crate) fn set_scripts_took(&mut self, time: Duration) {
        self.scripts_took = time;
    }
}
