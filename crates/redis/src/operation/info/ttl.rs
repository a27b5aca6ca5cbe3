//! Average time to live of the keys of a table: an estimate from a sample, for `INFO keyspace`.

use duramen_engine::{Error, Guard, TableId};

/// Maximum entries that a sample looks at: half a millisecond.
const LOOKS_MAX: usize = 4_096;
/// Number of objects with an expiry that suffices: the average is then known within about a fifth.
const EXPIRING: u64 = 64;
/// Objects in one step of the walk.
const STEP: usize = 16;

/// The average time to live, in milliseconds, of the objects that expire, from a sample that begins
/// at a random bucket (`random`). None: no object of the sample expires. Entries on flash are
/// skipped.
pub(crate) fn average_ms(
    guard: &Guard<'_>,
    table: TableId,
    mut random: impl FnMut() -> u64,
) -> Option<u64> {
    let now_ms = guard.now_ms();
    let (mut left_ms, mut expiring, mut looked) = (0u128, 0u64, 0);
    let mut place = || guard.walk().random_place(table, random()).ok();
    let mut cursor = place()?;
    for _ in 0..LOOKS_MAX / STEP {
        let step = guard.walk().scan_as(table, cursor, STEP, true, |object| {
            if let Some(at_ms) = object.expires_at_ms {
                left_ms += u128::from(at_ms.saturating_sub(now_ms));
                expiring += 1;
            }
        });
        cursor = match step {
            Ok((next, looks)) => {
                looked += looks;
                next // after the end the sample goes on at the beginning
            }
            Err(Error::Cold(_)) => {
                guard.pin().take_colds();
                place()?
            }
            Err(_) => break,
        };
        if expiring >= EXPIRING || looked >= LOOKS_MAX {
            break;
        }
    }
    (expiring > 0).then(|| (left_ms / u128::from(expiring)) as u64)
}
