//! EXEC looks under its locks, before its first command, whether a key that it writes to is
//! damaged.

use super::{Queue, slice};
use duramen_engine::{Error, Guard, KeyHash, TableId};

/// The keys that COPY and MOVE write to.
pub(super) fn targets<'t>(
    guard: &Guard<'_>,
    queue: Queue<'t>,
) -> impl Iterator<Item = (TableId, KeyHash, &'t [u8])> {
    queue.iter().filter_map(|(step, args)| {
        let at = match step.spec.name {
            "copy" => 2,
            "move" => 1,
            _ => return None,
        };
        let key = args.get(at).unwrap_or_default();
        Some((step.target.unwrap_or(step.table), guard.hash(key), key))
    })
}

/// verified::V5: nothing of the transaction is done if it writes to a damaged key. The commands
/// before that one may have taken the only copy of the data from elsewhere.
pub(super) fn check_written(guard: &Guard<'_>, queue: Queue<'_>) -> Result<(), Error> {
    let writes = |n: &usize| {
        let step = queue.steps.get(*n);
        step.is_some_and(|step| slice::writes(step.spec, &queue.args(*n)))
    };
    let written = (0..queue.steps.len()).filter(writes);
    let mut keys = written
        .flat_map(|n| queue.data_of(n))
        .chain(targets(guard, queue));
    keys.try_for_each(|(table, hash, key)| guard.check_sound(table, hash, key))
}
