//! EXEC checks under its locks, before its first command, whether a key that it writes to is
//! damaged. If it is alone in the store, it also checks whether one of its keys has gone to flash.

use super::Queue;
use crate::command::key::Key;
use duramen_engine::{Error, Guard};
use std::collections::HashSet;

/// The check of a longer entry takes some microseconds: it is not made twice.
const LONG_BYTES: u64 = 16 << 10;

/// The keys that COPY and MOVE write to.
pub(super) fn targets<'t>(guard: &Guard<'_>, queue: Queue<'t>) -> impl Iterator<Item = Key<'t>> {
    queue.iter().filter_map(move |(step, args)| {
        let key = args
            .get(queue.spec(step).names.moved_key()?)
            .unwrap_or_default();
        Some(Key::of(guard, step.target.unwrap_or(step.table), key))
    })
}

/// Checks that the keys of a queue are in memory, if it is alone in the store and locks no keys
/// (engine::room::R5).
pub(super) fn warm_alone(guard: &Guard<'_>, queue: Queue<'_>) -> Result<(), Error> {
    let keys = (0..queue.steps.len()).flat_map(|n| queue.data_of(n));
    let keys = keys.chain(targets(guard, queue));
    guard.pin().warm_alone(keys.map(|key| key.place()))
}

/// Fails if the transaction writes to a damaged key: then nothing of it is done (verified::V5). The
/// commands before that write may have taken the only copy of the data from elsewhere.
pub(super) fn check_written(guard: &Guard<'_>, queue: Queue<'_>) -> Result<(), Error> {
    let writes = |n: &usize| {
        let step = queue.steps.get(*n);
        step.is_some_and(|step| queue.spec(step).writes(&queue.args(*n)))
    };
    let written = (0..queue.steps.len()).filter(writes);
    let keys = written
        .flat_map(|n| queue.data_of(n))
        .chain(targets(guard, queue));
    let mut long = HashSet::new();
    for key in keys {
        if !long.is_empty() && long.contains(&key) {
            continue;
        }
        let before = guard.pin().work().met_bytes();
        guard.pin().check_sound(key.table, key.hash, key.bytes)?;
        if guard.pin().work().met_bytes() - before > LONG_BYTES {
            long.insert(key);
        }
    }
    Ok(())
}
