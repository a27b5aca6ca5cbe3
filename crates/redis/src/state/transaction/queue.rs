//! The requests of a client between MULTI and EXEC, and the tables with which EXEC runs them.
//!
//! **Invariants**
//! - Q1: a transaction of usual size allocates nothing: the thread keeps the tables of one that has
//!   ended for the next one.
//! - Q2: everything that EXEC decides from all commands together ([`Transaction::flags`] and
//!   the fields behind it) is collected while they are queued.

use super::run::ExecRun;
use crate::state::conflicts::Conflicts;
use duramen_config::heap;
use duramen_engine::{KeyHash, TableId};
use duramen_wire::resp::{Args, Requests};
use std::time::Duration;

/// The tables of a longer transaction are freed at its end.
const KEPT_BYTES_MAX: usize = 16 << 10;

/// Requests between MULTI and EXEC.
#[derive(Default)]
pub(crate) struct Transaction {
    pub(crate) queue: Requests,
    /// The number of the command of each.
    pub(crate) commands: Vec<u16>,
    /// The hashes of all their keys, in order, unless `lacks_hashes`.
    hashes: Vec<KeyHash>,
    /// Whether a request came without the hashes of its keys.
    lacks_hashes: bool,
    /// The flags that any of its commands has.
    flags: u64,
    /// Whether a command selects or names databases.
    pub(crate) names_dbs: bool,
    /// Whether a command changes more than data, which cannot be taken back.
    pub(crate) acts: bool,
    /// Whether a command runs a script.
    pub(crate) runs_scripts: bool,
    /// Whether a SORT reads keys that its arguments do not name.
    pub(crate) sorts_by_keys: bool,
    /// Bytes of the queue, as `admit` counts them.
    pub(crate) queued_bytes: usize,
    /// Queued requests without keys, `SELECT` excluded.
    pub(crate) without_keys: usize,
    /// Whether a queued request writes.
    pub(crate) writes: bool,
    /// Whether a request was refused: EXEC will refuse all of them.
    pub(crate) broken: bool,
    /// The runs of EXEC that were in vain.
    pub(crate) conflicts: Conflicts,
    /// Whether EXEC runs on a draft, and in slices unless it needs the whole store.
    pub(crate) sliced: bool,
    /// The suspended run of EXEC.
    pub(crate) run: Option<Box<ExecRun>>,
    /// The time of the slices of this run so far.
    pub(crate) ran: Duration,
}

/// The facts about a request that EXEC needs of all requests together (Q2).
pub(crate) struct Facts {
    /// The number of its command.
    pub(crate) command: u16,
    /// The flags of its command.
    pub(crate) flags: u64,
    /// See the fields of [`Transaction`].
    pub(crate) names_dbs: bool,
    pub(crate) acts: bool,
    pub(crate) runs_scripts: bool,
    pub(crate) sorts_by_keys: bool,
    /// Whether the hashes of its keys are not known.
    pub(crate) lacks_hashes: bool,
}

impl Drop for Transaction {
    fn drop(&mut self) {
        heap::freed(self.queued_bytes);
    }
}

impl Transaction {
    /// Adds a copy of a request. `hashes`: those of its keys, or none. Returns false, and adds
    /// nothing, if the copies would exceed 2 GiB.
    #[inline]
    pub(crate) fn add(&mut self, args: &Args<'_>, hashes: &[KeyHash], facts: &Facts) -> bool {
        if !self.queue.push(*args) {
            return false;
        }
        self.commands.push(facts.command);
        self.flags |= facts.flags;
        self.names_dbs |= facts.names_dbs;
        self.acts |= facts.acts;
        self.runs_scripts |= facts.runs_scripts;
        self.sorts_by_keys |= facts.sorts_by_keys;
        self.hashes.extend_from_slice(hashes);
        self.lacks_hashes |= facts.lacks_hashes;
        true
    }

    /// Whether any of its commands has one of these flags.
    #[inline]
    pub(crate) fn has(&self, flags: u64) -> bool {
        self.flags & flags != 0
    }

    /// The hashes of the keys of all requests, in order, if they are known.
    #[inline]
    pub(crate) fn hashes(&self) -> Option<&[KeyHash]> {
        (!self.lacks_hashes).then_some(&self.hashes)
    }

    /// Whether the keys of the transaction are not known before it has run.
    pub(crate) fn is_drafted(&self) -> bool {
        self.runs_scripts || self.sorts_by_keys
    }

    /// Drops all requests, and keeps the tables' memory.
    fn clear(&mut self) {
        let Transaction {
            queue,
            commands,
            hashes,
            lacks_hashes,
            flags,
            names_dbs,
            acts,
            runs_scripts,
            sorts_by_keys,
            queued_bytes,
            without_keys,
            writes,
            broken,
            conflicts,
            sliced,
            run,
            ran,
        } = self;
        queue.clear();
        commands.clear();
        hashes.clear();
        *conflicts = Conflicts::default();
        (*run, *ran) = (None, Duration::ZERO);
        (*flags, *queued_bytes, *without_keys) = (0, 0, 0);
        for told in [
            lacks_hashes,
            names_dbs,
            acts,
            runs_scripts,
            sorts_by_keys,
            writes,
            broken,
            sliced,
        ] {
            *told = false;
        }
    }
}

/// A queued request, ready to run.
pub(crate) struct Step {
    /// The number of its command.
    pub(crate) command: u16,
    /// Start of its hashes in the list of all; they end where the next step's start.
    pub(crate) hashes: usize,
    /// The table that is selected when it runs.
    pub(crate) table: TableId,
    /// The table that COPY or MOVE writes to, if it names one.
    pub(crate) target: Option<TableId>,
}

/// The tables that transactions of one thread use in turn (Q1).
#[derive(Default)]
pub(crate) struct Spare {
    transaction: Option<Box<Transaction>>,
    steps: Vec<Step>,
}

impl Spare {
    /// An empty transaction.
    pub(crate) fn begin(&mut self) -> Box<Transaction> {
        self.transaction.take().unwrap_or_default()
    }

    /// Takes back the memory of a transaction that has ended.
    pub(crate) fn end(&mut self, mut transaction: Box<Transaction>) {
        if transaction.queued_bytes <= KEPT_BYTES_MAX {
            transaction.clear();
            self.transaction = Some(transaction);
        }
    }

    /// An empty table of steps.
    pub(crate) fn take_steps(&mut self) -> Vec<Step> {
        std::mem::take(&mut self.steps)
    }

    pub(crate) fn keep_steps(&mut self, mut steps: Vec<Step>) {
        steps.clear();
        steps.shrink_to(KEPT_BYTES_MAX / size_of::<Step>());
        self.steps = steps;
    }
}
