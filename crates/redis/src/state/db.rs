//! Databases, and the tables behind them.

use duramen_engine::TableId;

/// Number of databases that `SELECT` accepts, as Redis's default.
pub(crate) const DBS: usize = 16;

/// No table has this id: the engine answers that it does not exist.
pub(crate) const DROPPED: TableId = TableId(u32::MAX);

/// A client's selected database or table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Db {
    /// `SELECT n`.
    Number(u8),
    /// `DURAMEN.USE table`.
    Table(TableId),
}
