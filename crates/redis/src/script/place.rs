//! In a cluster: whether this member serves the keys of a script.

use crate::command::context::{Context, Done};
use crate::command::routing::{self, NotServed, RouteSearch};
use crate::command::spec::Spec;
use duramen_engine::{Guard, KeyHash, TableId};
use duramen_node::View;
use duramen_wire::resp::Args;
use std::sync::Arc;

/// Whether this member serves the declared keys. `placed`: their table, and the view by which it
/// did so in the slice before. A view does not change, and there may be very many keys.
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
    let told = (&*view, ctx.client.has_tls());
    routing::find(
        told,
        Some(guard),
        ctx.table,
        ctx.request.spec,
        &ctx.request.args,
        &[],
    )?;
    *placed = Some((ctx.table, view));
    Ok(())
}

/// script::run::L3: whether the keys of a command are in the slot of the script's keys, and served
/// here. One of those tells the slot: they are all in it ([`check_place`]).
pub(crate) fn place(
    ctx: &mut Context<'_>,
    guard: &mut Guard<'_>,
    spec: &Spec,
    args: &Args<'_>,
    hashes: &[KeyHash],
) -> Result<(), NotServed> {
    if hashes.is_empty() {
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
    let table = routing::table_of(spec, ctx.table, ctx.shared);
    for (hash, at) in hashes.iter().zip(spec.key_positions(args)) {
        search.key(table, args.get(at).unwrap_or_default(), *hash);
    }
    search.outcome()
}
