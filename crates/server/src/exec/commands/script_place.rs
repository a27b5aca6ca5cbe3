//! In a cluster: whether this member serves the keys of a script.

use crate::exec::request::context::{Context, Done};
use crate::exec::request::routing::{self, NotServed, RouteSearch};
use crate::exec::request::spec::Spec;
use duramen_engine::{Guard, KeyHash};
use duramen_wire::resp::Args;

/// Whether this member serves the declared keys.
pub(super) fn check_place(ctx: &mut Context<'_>, guard: &mut Guard<'_>) -> Done {
    let Some(view) = ctx.view(guard) else {
        return Ok(());
    };
    let view = (&*view, ctx.client.has_tls());
    routing::find(view, Some(guard), ctx.table, ctx.spec, &ctx.args, &[])?;
    Ok(())
}

/// script_run::L3: whether the keys of a command are in the slot of the script's keys, and served
/// here.
pub(super) fn place(
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
    for at in ctx.spec.key_positions(&ctx.args) {
        let key = ctx.arg(at);
        search.key(ctx.table, key, guard.hash(key));
    }
    let table = routing::table_of(spec, ctx.table, ctx.shared);
    for (hash, at) in hashes.iter().zip(spec.key_positions(args)) {
        search.key(table, args.get(at).unwrap_or_default(), *hash);
    }
    search.outcome()
}
