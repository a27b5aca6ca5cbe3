//! Commands on a whole table in a cluster: every member executes them on its own part (as the
//! masters of a Redis Cluster do).
//!
//! **Invariants**
//! - P1: keys that this member does not serve are not shown: this includes keys that it is still
//!   receiving, and keys that it has not purged yet.
//! - P2: FLUSHALL deletes key by key, with tombstones. A floor for the whole table, as a single
//!   server writes it, would also delete objects with older versions that arrive later from other
//!   members; a purge would be undone by a recovery.
//! - P3: a round of the reactor spends at most about a millisecond on a flush. The flush continues
//!   after all other connections had a turn, and is answered when all of its deletions are durable.
//!   It also continues from its position after it has waited for flash.

use super::context::{Context, Done, Failure};
use super::group::Way;
use super::routing;
use crate::cluster::Membership;
use duramen_engine::{Error, Guard, KeyHash, Object, Session, TableId};
use duramen_node::View;
use std::sync::Arc;

/// Keys that a flush deletes under one guard: less than a millisecond, so that no thread waits long
/// for this guard.
const FLUSH_STEP: usize = 256;
/// Number of such steps in one round (P3).
const STEPS_PER_ROUND: usize = 4;

/// Progress of a flush that continues in the next round.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Flushing {
    table: TableId,
    cursor: u64,
}

/// The part of the selected table that is served here.
pub(super) struct OwnPart {
    /// None: the server is not a member of a cluster, and serves everything.
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

/// FLUSHALL, FLUSHDB of a member. Not at one instant: keys written meanwhile may stay.
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
    let begun = ctx.client.flushing.take();
    let first = begun.and_then(|begun| tables.iter().position(|table| *table == begun.table));
    let mut cursor = begun
        .filter(|_| first.is_some())
        .map_or(0, |begun| begun.cursor);
    let mut steps = STEPS_PER_ROUND;
    for table in &tables[first.unwrap_or(0)..] {
        match flush_table(ctx, member, session, *table, cursor, &mut steps) {
            (Err(Failure::Engine(error)), _) if matches!(*error, Error::NoSuchTable(_)) => {}
            (Err(failure), at) => {
                // It continues from there only if it waits for flash.
                let table = *table;
                ctx.client.flushing = failure.cold().map(|_| Flushing { table, cursor: at });
                if at != cursor {
                    ctx.client.comes_further();
                }
                return Err(failure);
            }
            (Ok(()), 0) => {}
            (Ok(()), cursor) => {
                let table = *table;
                ctx.client.flushing = Some(Flushing { table, cursor });
                return Err(Failure::GoesOn); // P3
            }
        }
        cursor = 0;
    }
    if begun.is_some() {
        // No reply covers the deletions of earlier rounds yet.
        let level = ctx.strictest(tables);
        let log = ctx.shared.store().log();
        if let Some(appended) = log.map(|log| log.appended()) {
            ctx.client.settle_position(&appended, level);
        }
    }
    Ok(())
}

/// Continues at `cursor` for at most `steps`; returns the result, and the position where it
/// stopped, 0 = finished.
fn flush_table(
    ctx: &mut Context<'_>,
    member: &Membership,
    session: &mut Session,
    table: TableId,
    mut cursor: u64,
    steps: &mut usize,
) -> (Done, u64) {
    let level = ctx.local.level_of_table(ctx.shared, table);
    let in_parts = ctx.client.take_in_parts();
    let mut keys: Vec<(KeyHash, Box<[u8]>)> = Vec::new();
    loop {
        let mut guard = session.pin();
        keys.clear();
        let shows = |object: Object<'_>| keys.push((guard.hash(object.key), object.key.into()));
        let step = guard.scan_as(table, cursor, FLUSH_STEP, in_parts, shows);
        let next = match ctx.note_colds(&guard, in_parts, step) {
            Ok(next) => next,
            Err(error) => return (Err(error.into()), cursor),
        };
        let done = keys
            .iter()
            .try_for_each(|(hash, key)| remove(ctx, member, &mut guard, table, *hash, key));
        ctx.client.settle(&mut guard, level);
        if let Err(error) = done {
            return (Err(error.into()), cursor);
        }
        cursor = next;
        *steps = steps.saturating_sub(1);
        if cursor == 0 || *steps == 0 {
            return (Ok(()), cursor);
        }
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
            // The guard has left the store, and the view has changed or is about to.
            Err(Error::TryAgain) => guard.renew(),
            done => return done.map(|_| ()),
        }
    }
}
