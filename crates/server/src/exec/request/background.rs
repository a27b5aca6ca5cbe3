//! Commands whose work takes long: one thread of the server does it, and the reply waits.

use super::context::{Context, Done, Failure};
use crate::exec::state::client::Verdict;
use crate::exec::state::wait::Until;
use crate::shared::Shared;
use std::sync::{Arc, OnceLock};

/// The reply of a command that only succeeds.
pub(crate) const OK: &[u8] = b"+OK\r\n";

/// Gives the command's work to the thread; the reply, which `work` returns, waits for it. The text
/// of an error becomes `-ERR …`. Not for a command inside of `EXEC`.
pub(crate) fn run(
    ctx: &mut Context<'_>,
    work: impl FnOnce(&Shared) -> Result<Vec<u8>, String> + Send + 'static,
) -> Done {
    let reply = Arc::new(OnceLock::new());
    let (shared, given) = (ctx.shared.this(), Arc::clone(&reply));
    let run = move || {
        if let Some(shared) = shared {
            // It is empty: this thread alone sets it.
            let _ = given.set(work(&shared));
            shared.wake_for_commit();
        }
    };
    let given = ctx.shared.background.give(run);
    given.map_err(|why| Failure::from(format!("ERR {why}")))?;
    ctx.ok()?;
    ctx.client.wait.then(Until::Reply(reply), OK);
    ctx.client.verdict = Verdict::Held;
    Ok(())
}
