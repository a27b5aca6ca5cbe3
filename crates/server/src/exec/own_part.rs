//! What concerns a whole table, in a cluster: every member does it with its own part (as the masters of a Redis Cluster do).
//!
//! **Invariants**
//! - P1: nothing is shown that this member does not serve: what it is still receiving, or has not purged yet, is not there.
//! - P2: what FLUSHALL deletes, it deletes key by key, with tombstones. A floor for the whole table, as a single server writes it,
//!   would also delete what comes later from other members with older versions; a purge would come back with a recovery.

use super::context::{Context, Done, Failure};
use super::group::Way;
use super::routing;
use crate::cluster::Membership;
use duramen_engine::{Error, Guard, KeyHash, Session, TableId};
use duramen_node::View;
use std::sync::Arc;

/// Keys that a flush deletes under one guard: less than a millisecond, so that nobody waits long for this guard.
const FLUSH_STEP: usize = 256;

/// What is served here of the selected table.
pub(super) struct OwnPart {
    /// None: the server belongs to no cluster, and serves everything.
    view: Option<Arc<View>>,
    table: TableId,
}

impl OwnPart {
    pub(super) fn of(ctx: &mut Context<'_>, guard: &mut Guard<'_>) -> OwnPart {
        let member = ctx.shared.membership();
        OwnPart {
            view: member.map(|member| Arc::clone(ctx.local.view(member, guard))),
            table: ctx.table,
        }
    }

    #[inline]
    pub(super) fn has(&self, guard: &Guard<'_>, key: &[u8]) -> bool {
        match &self.view {
            None => true,
            Some(view) => routing::one(view, self.table, key, guard.hash(key)).is_ok(),
        }
    }
}

/// FLUSHALL, FLUSHDB of a member. Not at one instant: what is written meanwhile may stay.
pub(super) fn flush(
    ctx: &mut Context<'_>,
    member: &Membership,
    way: Way<'_, '_>,
    tables: &[TableId],
) -> Done {
    let Way::Session(session) = way else {
        return Err(Failure::Text(
            "ERR a member of a cluster deletes its part of a table step by step, and so not inside MULTI",
        ));
    };
    for table in tables {
        match flush_table(ctx, member, session, *table) {
            Err(Failure::Engine(error)) if matches!(*error, Error::NoSuchTable(_)) => {}
            done => done?,
        }
    }
    Ok(())
}

fn flush_table(
    ctx: &mut Context<'_>,
    member: &Membership,
    session: &mut Session,
    table: TableId,
) -> Done {
    let level = ctx.local.level_of_table(ctx.shared, table);
    let mut keys: Vec<(KeyHash, Box<[u8]>)> = Vec::new();
    let mut cursor = 0;
    loop {
        let mut guard = session.pin();
        keys.clear();
        let next = guard.scan(table, cursor, FLUSH_STEP, |object| {
            keys.push((guard.hash(object.key), object.key.into()));
        })?;
        let done = keys
            .iter()
            .try_for_each(|(hash, key)| remove(ctx, member, &mut guard, table, *hash, key));
        ctx.client.settle(&mut guard, level);
        done?;
        if next == 0 {
            return Ok(());
        }
        cursor = next;
    }
}

/// Removes a key if it is served here.
fn remove(
    ctx: &mut Context<'_>,
    member: &Membership,
    guard: &mut Guard<'_>,
    table: TableId,
    hash: KeyHash,
    key: &[u8],
) -> Result<(), Error> {
    loop {
        if routing::one(ctx.local.view(member, guard), table, key, hash).is_err() {
            return Ok(());
        }
        match guard.remove(table, hash, key) {
            // It has been outside, and the view has changed or is about to.
            Err(Error::TryAgain) => guard.renew(),
            done => return done.map(|_| ()),
        }
    }
}
