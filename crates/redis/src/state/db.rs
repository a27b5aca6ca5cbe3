//! Databases, and the tables behind them.

use duramen_engine::TableId;

/// Number of databases that `SELECT` accepts, as Redis's default.
pub(crate) const DBS: usize = 16;

/// An id that no table has: the engine answers that the table does not exist.
pub(crate) const DROPPED: TableId = TableId(u32::MAX);

/// A client's selected database or table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Db {
    /// `SELECT n`.
    Number(u8),
    /// `DURAMEN.USE table`.
    Table(TableId),
}
