//! Changes of keys, as the store tells of them to the table of tracked keys (`state::tracking`).

use crate::state::Shared;
use crate::state::tracking::table::Limits;
use duramen_engine::{Error, Store, TableId, Written};
use std::sync::atomic::{Ordering, fence};

/// A client of `thread`, which has no guard, tracks from now on (table::I2).
///
/// # Errors
/// The engine has no room for another session for a moment: the client does not track.
pub(crate) fn track(shared: &Shared, client: u64, thread: usize) -> Result<(), Error> {
    shared.tracking().begin(client, thread, || {
        // Under the lock, so that the data is not loaded between the two.
        if let Some(store) = shared.data() {
            let mut session = store.brief_session()?;
            store.listeners().want_writes(true);
            drop(session.pin_exclusive());
        }
        Ok(())
    })
}

/// The data is loaded, and `publish` shows it to the threads: the store tells of changes if
/// clients track already.
pub(crate) fn track_loaded(shared: &Shared, store: &Store, publish: impl FnOnce()) {
    shared.tracking().show_data(|listens| {
        store.listeners().want_writes(listens);
        publish();
    });
}

/// To be called at times by a thread without a guard.
pub fn tend_tracking(shared: &Shared, limits: Limits) {
    shared.tracking().tend(&shared.threads, limits, || {
        if let Some(store) = shared.data() {
            store.listeners().want_writes(false);
        }
    });
}

/// The store tells of written keys.
pub(crate) fn keys_written(shared: &Shared, writes: &[Written]) {
    fence(Ordering::SeqCst); // as in `Tracking::begin`
    if shared.tracking().is_on() {
        let has_db = |write: &&Written| shared.commands.db_of(write.table).is_some();
        let writes: Vec<&Written> = writes.iter().filter(has_db).collect();
        shared.tracking().changed(&shared.threads, &writes);
    }
}

/// The store tells of a key that left without a request.
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
