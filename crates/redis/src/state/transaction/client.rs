//! A client between MULTI and EXEC, and the keys that it watches.

use super::queue::Transaction;
use super::watches::Watches;
use duramen_base::ids::Level;

/// See the head of this file.
#[derive(Default)]
pub(crate) struct ClientTransaction {
    /// The open transaction; `None` if the client is not between MULTI and EXEC.
    open: Option<Box<Transaction>>,
    /// Number of transactions so far.
    count: u64,
    /// Number of `DISCARD`s so far.
    discards: u64,
    watched: Watches,
    /// The strictest level that a command of the running transaction requested.
    asked_level: Option<Level>,
}

impl ClientTransaction {
    pub(crate) fn open(&self) -> Option<&Transaction> {
        self.open.as_deref()
    }

    pub(crate) fn open_mut(&mut self) -> Option<&mut Transaction> {
        self.open.as_deref_mut()
    }

    /// The number of the transaction that is open, or was last.
    #[inline]
    pub(crate) fn number(&self) -> u64 {
        self.count
    }

    #[inline]
    pub(crate) fn discards(&self) -> u64 {
        self.discards
    }

    pub(crate) fn watched(&self) -> &Watches {
        &self.watched
    }

    pub(crate) fn watched_mut(&mut self) -> &mut Watches {
        &mut self.watched
    }

    /// Takes the watched keys: the client watches none after that.
    pub(crate) fn take_watched(&mut self) -> Watches {
        std::mem::take(&mut self.watched)
    }

    pub(crate) fn watch(&mut self, watched: Watches) {
        self.watched = watched;
    }

    /// Marks the transaction, if there is one, as refused.
    pub(crate) fn refuse(&mut self) {
        if let Some(open) = &mut self.open {
            open.broken = true;
        }
    }

    pub(crate) fn note_discard(&mut self) {
        self.discards += 1;
    }

    /// Begins a new transaction.
    pub(in crate::state) fn begin(&mut self, transaction: Box<Transaction>) {
        self.count += 1;
        self.open = Some(transaction);
    }

    /// Ends the transaction; the keys are not watched any more.
    pub(in crate::state) fn end(&mut self) -> Option<Box<Transaction>> {
        self.watched = Watches::default();
        self.open.take()
    }

    /// Restores the transaction as it was before its end.
    pub(in crate::state) fn resume(&mut self, transaction: Box<Transaction>, watched: Watches) {
        self.open = Some(transaction);
        self.watched = watched;
    }

    /// Notes that a command of the running transaction requests a level for its writes.
    pub(crate) fn ask_level(&mut self, level: Level) {
        self.asked_level = self.asked_level.max(Some(level));
    }

    pub(crate) fn asked_level(&self) -> Option<Level> {
        self.asked_level
    }

    pub(crate) fn set_asked_level(&mut self, level: Option<Level>) {
        self.asked_level = level;
    }
}
