//! Changes of keys, which the store reports to the table of tracked keys (`state::tracking`).

use crate::state::Shared;
use crate::state::tracking::table::Limits;
use duramen_engine::{Error, Store, TableId, Written};
use std::sync::atomic::{Ordering, fence};

/// Notes that a client of `thread` tracks from now on (table::I2). The thread must have no guard.
///
/// # Errors
/// The engine has no room for another session at the moment: the client does not track.
pub(crate) fn track(shared: &Shared, client: u64, thread: usize) -> Result<(), Error> {
    shared.tracking().begin(client, thread, || {
        // Both happen under the lock, so that the data is not loaded between them.
        if let Some(store) = shared.data() {
            let mut session = store.brief_session()?;
            store.listeners().want_writes(true);
            drop(session.pin_exclusive());
        }
        Ok(())
    })
}

/// Called when the data is loaded: `publish` shows it to the threads. From then on the store tells
/// of changes, if clients track already.
pub(crate) fn track_loaded(shared: &Shared, store: &Store, publish: impl FnOnce()) {
    shared.tracking().show_data(|listens| {
        store.listeners().want_writes(listens);
        publish();
    });
}

/// Must be called from time to time by a thread without a guard.
pub fn tend_tracking(shared: &Shared, limits: Limits) {
    shared.tracking().tend(&shared.threads, limits, || {
        if let Some(store) = shared.data() {
            store.listeners().want_writes(false);
        }
    });
}

/// Called by the store with the keys that were written.
pub(crate) fn keys_written(shared: &Shared, writes: &[Written]) {
    fence(Ordering::SeqCst); // as in `Tracking::begin`
    if shared.tracking().is_on() {
        let has_db = |write: &&Written| shared.commands.db_of(write.table).is_some();
        let writes: Vec<&Written> = writes.iter().filter(has_db).collect();
        shared.tracking().changed(&shared.threads, &writes);
    }
}

/// Called by the store with a key that left without a request.
pub(crate) fn key_departed(shared: &Shared, table: TableId, key: &[u8]) {
    if shared.tracking().is_on() {
        let key = key.into();
        keys_written(
            shared,
            &[Written {
                origin: 0,
                readers: Vec::new(),
                table,
                key,
            }],
        );
    }
}
