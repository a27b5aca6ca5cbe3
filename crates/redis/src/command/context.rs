//! The functions of the context in which a command runs.

use super::key::Key;
pub(crate) use super::outcome::{
    Done, Failure, NO_SUCH_KEY, NOT_A_FLOAT, NOT_AN_INTEGER, SYNTAX, YIELDS,
};
pub(crate) use super::spec::Context;
use duramen_base::ids::Level;
use duramen_engine::{Guard, TableId};

impl<'a> Context<'a> {
    /// Argument `n` (0 is the name); empty if the request is shorter, which the arity excludes
    /// where it matters.
    #[inline]
    pub(crate) fn arg(&self, n: usize) -> &'a [u8] {
        self.request.arg(n)
    }

    /// The key of a command that has one, or the first one. It runs within a guard.
    #[inline]
    pub(crate) fn key(&self) -> Key<'a> {
        Key {
            table: self.table,
            hash: self.request.hashes[0],
            bytes: self.arg(self.request.spec.keys.place().first.into()),
        }
    }

    /// Whether a command that names no key may stop, and go on when it is shown again: not in
    /// EXEC, and not while the data is being loaded.
    pub(crate) fn may_go_on_later(&self) -> bool {
        !self.locked && !self.thread.exec.runs() && self.shared.data().is_some()
    }

    /// Refuses a feature that needs several databases: a cluster has one, like Redis Cluster.
    pub(crate) fn not_in_cluster(&self, what: &str) -> Done {
        match self.shared.membership() {
            None => Ok(()),
            Some(_) => Err(format!("ERR {what} not allowed in cluster mode").into()),
        }
    }

    /// Counts the calls and times of the requests before this one.
    pub(crate) fn count_up_to_now(&mut self) {
        self.thread
            .count_up_to_now(self.shared, self.request.spec.number);
    }

    /// The level of the selected table.
    pub(crate) fn level(&mut self) -> Level {
        self.thread.level_of_table(self.shared, self.table)
    }

    /// The strictest level of some tables.
    pub(crate) fn strictest(&mut self, tables: &[TableId]) -> Level {
        let levels = tables
            .iter()
            .map(|table| self.thread.level_of_table(self.shared, *table));
        levels.max().unwrap_or(Level::Memory)
    }

    /// Adds the position of the command's own guard to the replies' wait. Not used within EXEC,
    /// which does this for all its commands.
    pub(crate) fn settle(&mut self, guard: &mut Guard<'_>) {
        if guard.order().has_position() {
            let level = self.level();
            self.client.wait.settle(guard, level);
        }
    }

    /// Makes the replies wait until all writes of all clients up to now have reached the table's
    /// level: for data that is seen without a guard.
    pub(crate) fn settle_all(&mut self) {
        if let Some(log) = self.shared.store().log() {
            let level = self.level();
            self.client.wait.join(&log.appended(), level);
        }
    }
}
