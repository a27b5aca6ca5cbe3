//! Stores of the engine under test, filled to a wanted utilization.

use super::Doing;
use super::{Result, progress};
use duramen_base::units::MIB;
use duramen_engine as engine;
use duramen_engine::{Store, TableId};
use std::sync::Arc;

/// Operations per batch, in figures with batches.
pub const BATCH: usize = 16;

/// The table that every figure uses.
pub const TABLE: TableId = TableId::DEFAULT;

/// Key number `id` in `N` bytes (at least 8): the number, then zeros.
#[inline]
pub fn key<const N: usize>(id: u64) -> [u8; N] {
    let mut key = [0u8; N];
    key[..8].copy_from_slice(&id.to_le_bytes());
    key
}

/// A value of `bytes` bytes (at least 8) that begins with the number of its key, so that reads can
/// be checked.
pub fn value(bytes: usize) -> Vec<u8> {
    (0..bytes).map(|n| (n as u8).wrapping_mul(31)).collect()
}

/// Adds sequential keys from `records` on, until the engine reports a utilization of at least
/// `utilization` (0 to 1).
pub fn fill_to<const KEY: usize>(
    store: &Arc<Store>,
    utilization: f64,
    value_bytes: usize,
    records: &mut u64,
) -> Result<()> {
    let entry_bytes = footprint::<KEY>(value_bytes)?.entry_bytes;
    loop {
        let stats = store.stats();
        // An engine without counters is filled by the footprint alone.
        let counted = stats.segment_budget_bytes > 0;
        let budget_bytes = if counted {
            stats.segment_budget_bytes
        } else {
            store.memory_bytes()
        };
        let live_bytes = if counted {
            stats.live_bytes as f64
        } else {
            *records as f64 * entry_bytes
        };
        let missing = ((utilization * budget_bytes as f64 - live_bytes) / entry_bytes) as u64;
        if missing < 2 {
            return Ok(());
        }
        // The index takes its share of the budget while the store fills: approach in steps.
        let step = (missing / 2).max(missing.min(64));
        fill::<KEY>(store, *records..*records + step, value_bytes)?;
        *records += step;
    }
}

/// The size and the settings of a store.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    pub records: u64,
    pub value_bytes: usize,
    /// Live bytes over bytes of segments, 0 to 1.
    pub utilization: f64,
    pub cleaners: usize,
    pub loaders: usize,
}

/// Memory of the engine for one object: measured with a small store, to compute budgets.
#[derive(Clone, Copy, Debug)]
pub struct Footprint {
    /// In segments: header, key, value and alignment.
    pub entry_bytes: f64,
}

/// An empty store.
pub fn open(memory_bytes: u64, cleaners: usize) -> Result<Arc<Store>> {
    let mut options =
        engine::Options::new(memory_bytes.max(duramen_base::limits::MEMORY_BYTES_MIN));
    options.cleaners = cleaners;
    options.hash_seed = Some(1);
    Store::new(options).doing(format!("opening a store of {} MiB", memory_bytes / MIB))
}

/// Writes keys `ids` with values of `value_bytes`, in batches.
pub fn fill<const KEY: usize>(
    store: &Arc<Store>,
    ids: std::ops::Range<u64>,
    value_bytes: usize,
) -> Result<()> {
    let mut session = store.session().doing("opening a session")?;
    let mut value = value(value_bytes);
    let mut next = ids.start;
    while next < ids.end {
        let mut guard = session.pin();
        for id in next..ids.end.min(next + BATCH as u64) {
            let key = key::<KEY>(id);
            value[..8].copy_from_slice(&id.to_le_bytes());
            let hash = guard.hash(&key);
            guard
                .write(TABLE, hash, &key, &value, None)
                .doing(format!("loading record {id}"))?;
        }
        next += BATCH as u64;
    }
    Ok(())
}

/// [`fill`] by several threads.
pub fn fill_parallel<const KEY: usize>(
    store: &Arc<Store>,
    records: u64,
    value_bytes: usize,
    threads: usize,
) -> Result<()> {
    let share = records.div_ceil(threads.max(1) as u64);
    std::thread::scope(|scope| {
        let parts: Vec<_> = (0..threads.max(1) as u64)
            .map(|n| (n * share).min(records)..((n + 1) * share).min(records))
            .map(|ids| scope.spawn(move || fill::<KEY>(store, ids, value_bytes)))
            .collect();
        parts
            .into_iter()
            .try_for_each(|part| part.join().expect("a loader does not panic"))
    })
}

/// Measures the memory of one object.
pub fn footprint<const KEY: usize>(value_bytes: usize) -> Result<Footprint> {
    let records = (16 * MIB / value_bytes as u64).clamp(100, 20_000);
    let store = open(160 * MIB, 0)?;
    fill::<KEY>(&store, 0..records, value_bytes)?;
    let live_bytes = store.stats().live_bytes;
    // Measured by the engine; the fallback is its documented bound, for an engine without counters.
    let told = live_bytes as f64 / records as f64;
    let bound = ((16 + KEY + value_bytes).div_ceil(8) * 8) as f64;
    Ok(Footprint {
        entry_bytes: if live_bytes > 0 { told } else { bound },
    })
}

/// A store loaded with `shape.records` objects at about `shape.utilization`: its budget is
/// corrected once or twice after loading, because index and tables use the same budget.
pub fn loaded<const KEY: usize>(shape: Shape) -> Result<Arc<Store>> {
    let live_bytes = footprint::<KEY>(shape.value_bytes)?.entry_bytes * shape.records as f64;
    let mut beside_bytes = 12.0 * shape.records as f64;
    for attempt in 0.. {
        let budget_bytes = (live_bytes / shape.utilization + beside_bytes) as u64;
        progress!(
            "loading {} records into {} MiB",
            shape.records,
            budget_bytes / MIB
        );
        let store = open(budget_bytes, shape.cleaners)?;
        fill_parallel::<KEY>(&store, shape.records, shape.value_bytes, shape.loaders)?;
        let stats = store.stats();
        let off = (stats.utilization - shape.utilization).abs();
        if off < 0.01 || attempt == 2 || stats.live_bytes == 0 {
            return Ok(store);
        }
        beside_bytes = (store.memory_bytes() - stats.segment_budget_bytes) as f64;
    }
    unreachable!("the loop ends by returning")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_record_is_loaded_once_whatever_the_threads() {
        for threads in [1, 2, 3] {
            let store = open(64 * MIB, 0).unwrap();
            fill_parallel::<16>(&store, 1000, 100, threads).unwrap();
            assert_eq!(store.stats().objects, 1000);
            let mut session = store.session().unwrap();
            let guard = session.pin();
            for id in 0..1000 {
                let key = key::<16>(id);
                let object = guard.read(TABLE, guard.hash(&key), &key).unwrap().unwrap();
                assert_eq!(object.version, 1, "record {id} was written once");
                assert_eq!(object.value[..8], id.to_le_bytes());
            }
        }
    }
}
