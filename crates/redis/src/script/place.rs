//! The check, in a cluster, that this member serves the keys of a script.

use crate::command::context::{Context, Done};
use crate::command::routing::{self, NotServed, RouteSearch};
use crate::command::spec::Request;
use duramen_engine::{Guard, TableId};
use duramen_node::View;
use std::sync::Arc;

/// Checks that this member serves the declared keys. `placed`: their table, and the view by which
/// this member served them in the slice before. A view does not change, so the keys, of which there
/// may be very many, are checked once for each view.
pub(crate) fn check_place(
    ctx: &mut Context<'_>,
    guard: &mut Guard<'_>,
    placed: &mut Option<(TableId, Arc<View>)>,
) -> Done {
    let Some(view) = ctx.view(guard) else {
        return Ok(());
    };
    let is_same =
        |(table, it): &(TableId, Arc<View>)| *table == ctx.table && Arc::ptr_eq(it, &view);
    if placed.as_ref().is_some_and(is_same) {
        return Ok(());
    }
    let has_tls = ctx.client.has_tls();
    routing::find(&view, has_tls, Some(guard), ctx.table, &ctx.request)?;
    *placed = Some((ctx.table, view));
    Ok(())
}

/// Checks that the keys of a command are in the slot of the script's declared keys, and served here
/// (script::run::L3). One declared key is enough to know the slot: all of them are in it
/// ([`check_place`]).
pub(crate) fn place(
    ctx: &mut Context<'_>,
    guard: &mut Guard<'_>,
    command: &Request<'_>,
) -> Result<(), NotServed> {
    if command.hashes.is_empty() {
        return Ok(());
    }
    let Some(view) = ctx.view(guard) else {
        return Ok(());
    };
    let mut search = RouteSearch::new(&view, ctx.client.has_tls());
    if let Some(at) = ctx.request.key_positions().next() {
        let key = ctx.arg(at);
        search.key(ctx.table, key, guard.hash(key));
    }
    let table = routing::table_of(command.spec, ctx.table, ctx.shared);
    for key in command.keys(table) {
        search.key(key.table, key.bytes, key.hash);
    }
    search.outcome()
}
