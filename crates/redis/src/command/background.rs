//! Commands whose work takes long: threads of the server do it, and the reply waits.
//!
//! **Invariants**
//! - W1: work begins only while its client is still connected, and not later than [`PATIENCE`]
//!   after its request: a command that nobody waits for any more must not take effect after others.
//!   The work of `CLIENT PAUSE` is always done: the pause has begun by then, and the work changes
//!   nothing.

use super::context::{Context, Done, Failure};
use super::turn::Ending;
use crate::reply::wait::Until;
use crate::state::Shared;
use crate::threads::clients::ClientRecord;
pub(crate) use crate::threads::works::Kind;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

/// The reply of a command that only succeeds.
pub(crate) const OK: &[u8] = b"+OK\r\n";

/// Time for a command's work, from its request on: a new coordinator may have to be elected first.
const PATIENCE: Duration = Duration::from_secs(10);

/// Gives the command's work to a thread. The reply is the result of `work`, and is sent when the
/// work is done. `work` also gets the time after which it must change nothing in the cluster any
/// more. The text of an error becomes `-ERR …`. Must not be called for a command inside of `EXEC`.
pub(crate) fn run(
    ctx: &mut Context<'_>,
    kind: Kind,
    work: impl FnOnce(&Shared, Instant) -> Result<Vec<u8>, String> + Send + 'static,
) -> Done {
    let reply = Arc::new(OnceLock::new());
    let (shared, given) = (ctx.shared.this(), Arc::clone(&reply));
    let record = Arc::clone(ctx.client.record());
    let deadline = Instant::now() + PATIENCE;
    let run = move || {
        if let Some(shared) = shared {
            let may = match kind {
                Kind::Pauses => Ok(()),
                Kind::Files | Kind::Users => may_begin(&record, deadline),
            };
            let done = may.and_then(|()| work(&shared, deadline));
            // It is empty: this thread alone sets it.
            let _ = given.set(done);
            shared.threads.wake_for_commit();
        }
    };
    let given = ctx.shared.works().give(kind, run);
    given.map_err(|why| Failure::from(format!("ERR {why}")))?;
    ctx.reply.ok()?;
    ctx.client.wait.then(Until::Reply(reply), OK);
    ctx.turn.ending = Ending::Held;
    Ok(())
}

/// Fails if the work must not begin any more (W1).
fn may_begin(client: &ClientRecord, deadline: Instant) -> Result<(), String> {
    if client.is_gone() {
        return Err("the client is gone".to_owned());
    }
    if Instant::now() >= deadline {
        return Err(format!(
            "nothing was done: earlier requests took more than {PATIENCE:?}"
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// W1: ten changes that had waited for a coordinator undid, 100 s later, a removal of a user
    /// that was made elsewhere.
    #[test]
    fn work_that_nobody_waits_for_any_more_is_not_begun() {
        let address = "127.0.0.1:1".parse().expect("an address");
        let client = ClientRecord::new(1, 0, 0, 3, address, address, 1);
        let now = Instant::now();
        assert_eq!(may_begin(&client, now + PATIENCE), Ok(()));
        let late = may_begin(&client, now).expect_err("too late");
        assert!(late.contains("nothing was done"), "{late}");
        client.note_gone();
        assert!(may_begin(&client, now + PATIENCE).is_err());
    }
}
