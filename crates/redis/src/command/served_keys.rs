//! The keys of a table that a member of a cluster serves: it executes commands on a whole table on
//! these (as the masters of a Redis Cluster do).
//!
//! **Invariants**
//! - P1: keys that this member does not serve are not shown: this includes keys that it is still
//!   receiving, and keys that it has not purged yet.

use super::context::Context;
use duramen_engine::{Guard, TableId};
use duramen_node::{Route, View};
use std::sync::Arc;

/// The part of the selected table that is served here.
pub(crate) struct ServedKeys {
    /// The member's view; `None`: the server is no member of a cluster, and serves everything.
    view: Option<Arc<View>>,
    table: TableId,
}

impl ServedKeys {
    pub(crate) fn of(ctx: &mut Context<'_>, guard: &mut Guard<'_>) -> ServedKeys {
        ServedKeys {
            view: ctx.view(guard),
            table: ctx.table,
        }
    }

    #[inline]
    pub(crate) fn has(&self, guard: &Guard<'_>, key: &[u8]) -> bool {
        match &self.view {
            None => true,
            Some(view) => view.route(self.table, guard.hash(key).route(key)) == Route::Serve,
        }
    }
}
