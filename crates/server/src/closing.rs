//! The end of a server: its data directory is closed, as long as the disk answers.
//!
//! **Invariants**
//! - E5: the end of a single server waits for the disk without bound only for writes that were
//!   acknowledged before they were on disk. Otherwise, if the disk has not answered for
//!   `stop-timeout-ms` and 5 s more, the end is given up: the next start reads the log as after a
//!   crash, and nothing acknowledged is lost.

use duramen_config::ServerError;
use duramen_redis::durability::Durability;
use duramen_redis::state::Shared;
use duramen_redis::threads::Stop;
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

/// Pause between two attempts to close the directory when the disk has no room for the writes that
/// were acknowledged while the stop began.
const CLOSE_AGAIN: Duration = Duration::from_secs(1);
/// A member's backups have this time to confirm its last writes, however long the clients took to
/// take their replies.
const BACKUPS_AT_LEAST: Duration = Duration::from_secs(1);
/// Interval of the checks whether the disk has answered.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// Closes the directory on a thread of its own. Returns false if the disk does not answer, so that
/// the process should end (E5).
pub(crate) fn close(
    shared: &Arc<Shared>,
    durability: &Arc<Durability>,
    patience: impl Fn(Stop) -> Duration,
) -> Result<bool, ServerError> {
    let must_wait = shared.membership().is_none() && shared.commands.levels.answered_early();
    let owed = must_wait.then(|| durability.unwritten());
    let (ends, end) = mpsc::channel();
    let (shared, durability) = (Arc::clone(shared), Arc::clone(durability));
    let closed = (Arc::clone(&shared), Arc::clone(&durability));
    let close = move || {
        let result = close_now(&closed.0, &closed.1);
        drop(closed); // the directory belongs to the next owner when the caller knows
        let _ = ends.send(result);
    };
    let thread = std::thread::Builder::new().name("close".to_owned());
    let spawned = thread.spawn(close);
    spawned.map_err(|source| ServerError::System {
        doing: "start the closing thread",
        source,
    })?;
    let (mut answers, mut since, mut told) = (durability.disk_answers(), Instant::now(), false);
    loop {
        match end.recv_timeout(LOOK_EVERY) {
            Ok(result) => return result.map(|()| true),
            Err(mpsc::RecvTimeoutError::Timeout) => {}
            Err(mpsc::RecvTimeoutError::Disconnected) => panic!("the closing thread panicked"),
        }
        let now = durability.disk_answers();
        if now != answers {
            (answers, since, told) = (now, Instant::now(), false);
        }
        let silent = since.elapsed();
        if silent < patience(shared.watch.stopping()) {
            continue;
        }
        if let Some(owed) = &owed
            && shared.watch.stopping() == Stop::Graceful
            && !durability.is_written(owed)
        {
            if !told {
                tracing::error!(
                    "the stop waits, because the last acknowledged writes would be lost: the disk has not answered for {} s; another signal stops at once",
                    silent.as_secs()
                );
                told = true;
            }
            continue;
        }
        tracing::error!(
            "the directory is not closed: the disk has not answered for {} s; writes acknowledged at `buffered` or `synced` are on disk, and the next start reads the log as after a crash",
            silent.as_secs()
        );
        return Ok(false);
    }
}

fn close_now(shared: &Shared, durability: &Durability) -> Result<(), ServerError> {
    match (shared.watch.stopping(), shared.membership()) {
        (Stop::Graceful, None) => {}
        (Stop::Graceful, Some(_)) => return close_member(shared, durability),
        (_, None) => {
            let _ = durability.store().flush(); // as far as the disk takes it
            return Ok(());
        }
        (_, Some(_)) => return Ok(()),
    }
    loop {
        match durability.store().close() {
            // Without room for writes that were already acknowledged, it tries again until an
            // immediate stop is requested.
            Err(error @ duramen::Error::DiskFull(_))
                if shared.watch.stopping() == Stop::Graceful
                    && shared.commands.levels.answered_early() =>
            {
                tracing::error!(
                    "the stop waits, because the last acknowledged writes would be lost: {error}; another signal stops at once"
                );
                std::thread::sleep(CLOSE_AGAIN);
            }
            other => return Ok(other?),
        }
    }
}

/// Closes the log of a member. It waits for the backups within the time of the stop, because they
/// may be gone for ever.
fn close_member(shared: &Shared, durability: &Durability) -> Result<(), ServerError> {
    let stop_timeout = Duration::from_millis(shared.config().stop_timeout_ms);
    let left = stop_timeout.saturating_sub(shared.watch.ending().since());
    let until = Instant::now() + left.max(BACKUPS_AT_LEAST);
    let gives_up = || shared.watch.stopping() != Stop::Graceful || Instant::now() >= until;
    if let Some(bytes) = durability.store().close_unless(gives_up)? {
        tracing::warn!(
            bytes,
            "stopping, although the backups have not confirmed the end of the log: writes in it that were acknowledged at level `memory` may be lost"
        );
    }
    Ok(())
}
