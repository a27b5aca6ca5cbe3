//! The durable layer and the threads of the server: commits wake the threads that wait, and a
//! snapshot and the last flush before a stop run on threads of their own.

use crate::durability::{Durability, Job, Target};
use crate::state::Shared;
use crate::threads::start::Starter;
use crate::threads::watch::Stop;
use duramen_config::finish::Finish;
use duramen_config::{ConfigFile, seldom};
use std::sync::{Arc, mpsc};
use std::time::Duration;

/// Waits a bounded time until everything is on disk: the disk may never answer.
fn flush_within(
    durability: &Arc<Durability>,
    patience: Duration,
    starter: Starter,
) -> Result<(), String> {
    let (ends, end) = mpsc::channel();
    let flushed = Arc::clone(durability);
    let flush = move || drop(ends.send(flushed.store().flush()));
    if let Err(error) = starter.start("flush", flush) {
        return Err(format!("cannot start a thread: {error}"));
    }
    match end.recv_timeout(patience) {
        Ok(result) => result.map_err(|error| error.to_string()),
        Err(_) => Err(format!("the disk has not answered for {patience:?}")),
    }
}

/// Stops the server after all acknowledged writes are on disk. With `anyway` it stops even if they
/// cannot be written, which loses them. Returns at once; `None`: the server stops now, as there is
/// nothing to write.
pub fn stop(shared: &Shared, how: Stop, anyway: bool) -> Option<Arc<Finish>> {
    // The log of a member is on other servers. A write that was answered after it was on disk
    // cannot be lost.
    let alone = shared.membership().is_none() && shared.commands.levels.answered_early();
    let durability = shared.durability().filter(|_| alone);
    let Some(durability) = durability.filter(|durability| durability.has_unwritten()) else {
        shared.stop(how);
        return None;
    };
    let stopping = Arc::new(Finish::default());
    let (durability, this) = (Arc::clone(durability), shared.this());
    let finish = Arc::clone(&stopping);
    shared.watch.ending().ask(true);
    let patience = Duration::from_millis(shared.config().stop_timeout_ms);
    let starter = shared.works().starter();
    let write = move || {
        let written = match anyway {
            true => flush_within(&durability, patience, starter),
            false => durability
                .store()
                .flush()
                .map_err(|error| error.to_string()),
        };
        let Some(shared) = this else { return };
        let result = match written {
            Ok(()) => Ok(how),
            Err(why) if anyway => {
                seldom!(
                    error,
                    "stopping; writes that are not on disk are lost: {why}"
                );
                Ok(Stop::AtOnce)
            }
            Err(why) => {
                seldom!(
                    error,
                    "not stopping: {why}; acknowledged writes that are not on disk would be lost. Free space, or discard them with SHUTDOWN NOSAVE"
                );
                shared.watch.ending().ask(false);
                Err(why)
            }
        };
        finish.end(result.clone().map(|_| ()));
        if let Ok(how) = result {
            shared.stop(how);
        }
        shared.threads.wake_for_commit();
    };
    if let Err(error) = shared.works().start("stop", write) {
        shared.watch.ending().ask(false);
        let why = format!("cannot start the thread that writes the rest: {error}");
        seldom!(error, "not stopping: {why}");
        stopping.end(Err(why));
    }
    Some(stopping)
}

/// Writes the settings that `CONFIG SET` changed into the configuration file, on a thread of
/// its own: the file's disk may hang.
///
/// # Errors
/// A text, if no thread can be started.
pub(crate) fn rewrite_config(shared: &Shared, file: &ConfigFile) -> Result<Arc<Finish>, String> {
    let (finish, is_first) = file.request_rewrite();
    if !is_first {
        return Ok(finish);
    }
    let this = shared.this();
    let rewrite = move || {
        let Some(shared) = this else { return };
        let Some(file) = shared.settings.file() else {
            return;
        };
        while let Some(finish) = file.next_rewrite() {
            let result = file.rewrite(|| shared.config());
            finish.end(result.map_err(|error| format!("Rewriting config file: {error}")));
            shared.threads.wake_for_commit();
        }
    };
    shared.works().start("rewrite", rewrite).map_err(|error| {
        let text = format!("cannot start a thread: {error}");
        while let Some(finish) = file.next_rewrite() {
            finish.end(Err(text.clone())); // another client may wait for this result too
        }
        shared.threads.wake_for_commit();
        format!("ERR {text}")
    })?;
    Ok(finish)
}

/// Starts a snapshot on its own thread.
///
/// # Errors
/// A text, if another snapshot is in progress or the target exists already.
pub fn snapshot(
    shared: &Shared,
    durability: &Durability,
    target: Target,
) -> Result<Arc<Job>, String> {
    let (place, job) = durability.begin_snapshot(&shared.config(), target)?;
    let (this, made) = (shared.this(), Arc::clone(&job));
    let make = move || {
        let Some(shared) = this else { return };
        let Some(durability) = shared.durability() else {
            return;
        };
        let next = durability.make_snapshot(&place, &made);
        shared.threads.wake_for_commit();
        if let Some(target) = next
            && let Err(why) = snapshot(&shared, durability, target)
        {
            seldom!(error, "the scheduled snapshot failed: {why}");
        }
    };
    shared.works().start("snapshot", make).map_err(|error| {
        let text = format!("ERR cannot start a thread: {error}");
        job.end(Err(text.clone()));
        text
    })?;
    Ok(job)
}

/// From now on every commit wakes the reactor threads that wait for one.
pub fn watch_commits(shared: &Arc<Shared>, durability: &Durability) {
    let this = Arc::downgrade(shared);
    durability.log().watch(Arc::new(move || {
        if let Some(shared) = this.upgrade() {
            shared.threads.wake_for_commit();
        }
    }));
}
