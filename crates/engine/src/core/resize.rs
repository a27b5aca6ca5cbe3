//! Changes of the memory budget while the store is used.
//!
//! A higher budget holds at once: writers that wait for memory find it at their next look. A lower
//! budget counts at once in the figures that guide cleaning, demotion and eviction. So memory
//! counts as short, cleaners and writers free it, and the ceiling of the budget follows
//! (`space::budget`).

use super::{Core, LIVE_PART_MAX, LIVE_PART_MIN};
use crate::Error;
use duramen_base::limits::STORE_BYTES_MIN;
use duramen_base::units::MIB;

/// Sets the budget, in bytes. Does not wait until the memory is given back.
///
/// # Errors
/// [`Error::BudgetTooSmall`], [`Error::BudgetTooLarge`], [`Error::BudgetBelowData`],
/// [`Error::BudgetBusy`].
pub fn set_budget(core: &Core, bytes: u64) -> Result<(), Error> {
    let budget = &core.space.budget;
    let maximum = budget.max();
    if bytes > maximum {
        return Err(Error::BudgetTooLarge { bytes, maximum });
    }
    budget.set_limit(bytes, |before| match bytes < before {
        true => check_lower(core, bytes),
        false => Ok(()),
    })?;
    core.space.follow_limit(0, 0);
    core.cleaners.wake();
    Ok(())
}

/// Checks whether the store can work with a lower budget, and whether that holds its data; a
/// cache evicts what it does not hold.
fn check_lower(core: &Core, bytes: u64) -> Result<(), Error> {
    let log = core.log.as_ref();
    if log.is_some_and(|log| log.arrivals().are_there()) {
        return Err(Error::BudgetBusy);
    }
    let index = match core.is_cache() {
        true => 0, // it shrinks with the keys
        false => core.arena.allocated_bytes(),
    };
    let taken = core.overhead_bytes() + core.open_bytes() + index;
    let room = |bytes: u64| (bytes.saturating_sub(taken) as f64 * LIVE_PART_MAX) as u64;
    let part = LIVE_PART_MAX - 1.0 / LIVE_PART_MIN as f64;
    let minimum = (taken as f64 * LIVE_PART_MAX / part) as u64;
    let minimum = minimum
        .max(STORE_BYTES_MIN.min(core.space.budget.start()))
        .next_multiple_of(MIB);
    if bytes < minimum {
        return Err(Error::BudgetTooSmall { bytes, minimum });
    }
    let live_bytes = core.actors.live_bytes();
    let alive = live_bytes.saturating_sub(core.expired_bytes());
    if !core.is_cache() && alive > room(bytes) + core.flash_capacity() {
        if core.cleared().is_pending() {
            return Err(Error::BudgetBusy); // it is not known yet how much of the data was cleared
        }
        let in_memory = live_bytes.saturating_sub(core.flash_capacity());
        let needed = (in_memory as f64 / LIVE_PART_MAX) as u64 + taken;
        return Err(Error::BudgetBelowData {
            bytes,
            live_bytes,
            minimum: needed.max(minimum).next_multiple_of(MIB),
        });
    }
    Ok(())
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use crate::{Options, Store, TableId};
    use std::time::Duration;

    /// The entries of a cleared table are not counted yet. A budget below the data of another table
    /// was accepted meanwhile, and no write after it.
    #[test]
    fn no_budget_below_the_data_is_accepted_after_a_clear() {
        const VALUE: [u8; 1000] = [7; 1000];
        let store = Store::new(Options {
            tiny: true,
            huge_pages: false,
            heads: 1,
            cleaners: 1,
            ..Options::new(128 * MIB)
        });
        let store = store.unwrap();
        let other = store.tables().create("other").unwrap();
        let mut session = store.session().unwrap();
        for (table, count) in [(TableId::DEFAULT, 55_000u32), (other, 20_000)] {
            for n in 0..count {
                let mut guard = session.pin();
                let key = n.to_le_bytes();
                let hash = guard.hash(&key);
                guard.write(table, hash, &key, &VALUE, None).unwrap();
            }
        }
        let core = store.core();
        let context = core.cleaners.lock(0); // so that no cleaner thread counts
        store.tables().clear(other).unwrap();
        assert!(core.cleared().is_pending());
        assert_eq!(store.set_memory(50 * MIB), Err(Error::BudgetBusy));
        store.set_memory(120 * MIB).unwrap(); // whatever was cleared
        drop(context);
        while core.cleared().is_pending() {
            std::thread::sleep(Duration::from_millis(1));
        }
        let refused = store.set_memory(50 * MIB);
        assert!(
            matches!(refused, Err(Error::BudgetBelowData { .. })),
            "{refused:?}"
        );
        store.set_memory(80 * MIB).unwrap();
    }
}
