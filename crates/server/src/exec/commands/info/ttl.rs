//! Average time to live of the keys of a table: an estimate from a sample, for `INFO keyspace`.

use duramen_engine::{Error, Guard, TableId};

/// Maximum objects that a sample visits: half a millisecond.
const OBJECTS_MAX: usize = 4_096;
/// Number of objects with an expiry that suffices: the average is then known within about a fifth.
const EXPIRING: u64 = 64;
/// Objects in one step of the walk.
const STEP: usize = 16;

/// The average time to live, in milliseconds, of the objects that expire, from a sample that begins
/// at a random position (`random`). None: no object of the sample expires. Entries on flash are
/// skipped.
pub(crate) fn average_ms(
    guard: &Guard<'_>,
    table: TableId,
    mut random: impl FnMut() -> u64,
) -> Option<u64> {
    let now_ms = guard.now_ms();
    let (mut left_ms, mut expiring, mut looked) = (0u128, 0u64, 0);
    let mut cursor = random();
    for _ in 0..OBJECTS_MAX / STEP {
        let next = guard.scan_as(table, cursor, STEP, true, |object| {
            looked += 1;
            if let Some(at_ms) = object.expires_at_ms {
                left_ms += u128::from(at_ms.saturating_sub(now_ms));
                expiring += 1;
            }
        });
        cursor = match next {
            Ok(next) => next, // after the end it continues at the beginning
            Err(Error::Cold(_)) => {
                guard.take_colds();
                random()
            }
            Err(_) => break,
        };
        if expiring >= EXPIRING || looked >= OBJECTS_MAX {
            break;
        }
    }
    (expiring > 0).then(|| (left_ms / u128::from(expiring)) as u64)
}
