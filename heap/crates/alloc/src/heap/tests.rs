//! Unit tests of the heap: its counts, and its limits.

use super::*;
use crate::pager::{Faults, PAGE_BYTES, REGION_PAGES};
use duramen_disk::Device;
use std::io;
use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, MutexGuard};

const FLASH: u64 = 64 << 20;

/// A device in memory whose writes can be made to fail.
#[derive(Clone)]
struct Ram(Arc<(Mutex<Vec<u8>>, AtomicBool)>);

impl Ram {
    fn new() -> Ram {
        Ram(Arc::new((
            Mutex::new(vec![0; FLASH as usize]),
            AtomicBool::new(false),
        )))
    }
}

impl Device for Ram {
    fn read_at(&self, at: u64, into: &mut [u8]) -> io::Result<()> {
        let bytes = self.0.0.lock().unwrap();
        into.copy_from_slice(&bytes[at as usize..][..into.len()]);
        Ok(())
    }

    fn write_at(&self, at: u64, from: &[u8]) -> io::Result<()> {
        if self.0.1.load(Ordering::SeqCst) {
            return Err(io::ErrorKind::Other.into());
        }
        let mut bytes = self.0.0.lock().unwrap();
        bytes[at as usize..][..from.len()].copy_from_slice(from);
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        Ok(())
    }

    fn bytes(&self) -> u64 {
        FLASH
    }
}

/// Heaps of these tests use the same addresses, so one test runs at a time.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

const START: usize = 0x3100_0000_0000;

fn heap_of(device: &Ram, pager: Pager) -> Heap {
    let options = duramen_flash::Options {
        device: Arc::new(device.clone()),
    };
    let store = ObjectStore::create(options).unwrap();
    let budget = Budget::new(6 << 20, 0, FLASH, pager.pages_max()).unwrap();
    let tables = Tables::reserve(&pager, &budget).unwrap();
    Heap::new(pager, store, budget, tables)
}

fn heap(device: &Ram) -> Heap {
    heap_of(
        device,
        Pager::reserve(Faults::Protect, START, 1 << 32, true).unwrap(),
    )
}

fn counts(heap: &Heap) -> (u64, u64) {
    (heap.usage.allocated_bytes(), heap.usage.flash_bytes())
}

/// Flash was counted block by block when blocks were allocated and freed, and page by page when
/// they were restored: freeing restored blocks made the count negative, and everything was refused
/// with "no room".
#[test]
fn what_is_freed_after_a_restore_is_what_was_counted() {
    let _alone = alone();
    let device = Ram::new();
    let first = heap(&device);
    let mut all = Vec::new();
    for nth in 1..400 {
        all.push(first.allocate_memory(nth * 37).unwrap());
        all.push(first.allocate_objects(1, nth * 3).unwrap());
    }
    all.push(first.allocate_memory(3 << 20).unwrap());
    all.push(first.allocate_memory((1 << 20) + 1).unwrap());
    all.push(first.allocate_objects(100, 5000).unwrap());
    for nth in (0..all.len()).step_by(3).rev() {
        first.free(all.swap_remove(nth)).unwrap();
    }
    let counted = counts(&first);
    let chunks = first.paging.units().atm().all();
    let blob = first.encode();
    drop(first);
    let restored = heap(&device);
    for chunk in &chunks {
        restored.paging.units().add_table(chunk).unwrap();
    }
    restored.restore(&blob, Path::new("checkpoint")).unwrap();
    assert_eq!(counts(&restored), counted);
    for address in all {
        restored.free(address).unwrap();
    }
    assert_eq!(counts(&restored), (0, 0));
    restored.allocate_memory(40 << 20).unwrap();
}

/// RAM that was taken for tables stayed taken if flash refused the objects that would have had to
/// leave for them. Frees, which sometimes take RAM for the list of free blocks, failed, and the
/// blocks that they freed were lost.
#[test]
fn what_fails_takes_no_ram_and_freeing_works_without() {
    let _alone = alone();
    let device = Ram::new();
    let heap = heap(&device);
    let blocks: Vec<usize> = (0..10_000)
        .map(|_| heap.allocate_memory(48).unwrap())
        .collect();
    let array = heap.allocate_objects(4000, 1024).unwrap();
    device.0.1.store(true, Ordering::SeqCst);
    // As many dirty objects as RAM and the flash queue can hold.
    let first = heap.paging.page_of(array);
    let units = heap.paging.units();
    let put = |nth| units.put(first + nth, &[1; 1024], true);
    let kept = (0..4000).take_while(|nth| put(*nth).is_ok()).count();
    assert!(kept < 4000, "flash takes nothing");
    let taken = heap.stats().table_bytes;
    for _ in 0..3 {
        assert!(matches!(units.charge(1 << 20), Err(Error::Flash(_))));
        assert!(heap.allocate_objects(60_000, 128).is_err());
    }
    assert_eq!(heap.stats().table_bytes, taken);
    let (data, _) = counts(&heap);
    for block in blocks.iter().step_by(2) {
        heap.free(*block).unwrap();
    }
    assert_eq!(counts(&heap).0, data - 5000 * 48);
    for block in blocks.iter().skip(1).step_by(2) {
        heap.free(*block).unwrap();
    }
    assert!(matches!(
        heap.free(blocks[7]),
        Err(Error::DoubleFree { .. })
    ));
}

/// An object that is allocated, used and freed left 8 bytes in the queue of pages each time, beside
/// the budget, if no page had to leave.
#[test]
fn the_queue_of_pages_has_an_end() {
    let _alone = alone();
    let heap = heap(&Ram::new());
    let kept = heap.allocate_objects(20, 4096).unwrap();
    let bring = |address: usize| {
        let page = heap.paging.page_of(address);
        let place = heap.paging.units().atm().place(page).unwrap();
        heap.paging.bring(page, &place, Some(true)).unwrap();
    };
    for nth in 0..20 {
        bring(kept + nth * PAGE_BYTES);
    }
    for _ in 0..3000 {
        let object = heap.allocate_objects(1, 4096).unwrap();
        bring(object);
        heap.free(object).unwrap();
    }
    let shown = || heap.stats().pages_shown_bytes as usize / PAGE_BYTES;
    assert_eq!(shown(), 20);
    let most = 3 * heap.paging.pages_max();
    assert!(
        heap.paging.queued() <= most,
        "{} places",
        heap.paging.queued()
    );
    // The pages that stayed are still in the queue, each once.
    while heap.paging.queued() > 0 {
        heap.paging.evict_all().unwrap();
    }
    assert_eq!(shown(), 0);
}

/// Object tables were numbered by 32 bits; after 2^32 of them a number in use came again, and 0,
/// which means no table.
#[test]
fn object_tables_have_numbers_of_their_own_after_the_last_one() {
    let _alone = alone();
    let device = Ram::new();
    let first = heap(&device);
    let early = first.allocate_objects(10, 100).unwrap();
    first.paging.units().set_next_table(u32::MAX - 1);
    let late: Vec<usize> = (0..5)
        .map(|_| first.allocate_objects(10, 100).unwrap())
        .collect();
    let mut tables: Vec<u32> = first
        .paging
        .units()
        .atm()
        .all()
        .iter()
        .map(|chunk| chunk.table)
        .collect();
    tables.sort_unstable();
    assert_eq!(tables, [1, 2, 3, 4, u32::MAX - 1, u32::MAX]);
    let (chunks, blob) = (first.paging.units().atm().all(), first.encode());
    drop(first);
    let restored = heap(&device);
    for chunk in chunks {
        restored.paging.units().add_table(&chunk).unwrap();
    }
    restored.restore(&blob, Path::new("checkpoint")).unwrap();
    for address in late.into_iter().chain([early]) {
        restored.free(address).unwrap();
    }
}

/// Page tables that the kernel does not take back were counted as returned. If it never takes one
/// back, RAM is taken for them.
#[test]
fn page_tables_that_stay_take_ram() {
    let _alone = alone();
    let Ok(mut pager) = Pager::reserve(Faults::Userfault, START, 1 << 38, true) else {
        println!("skipped: no userfaultfd here");
        return;
    };
    if let Pager::Userfault(pager) = &mut pager {
        pager.frees_tables = false;
    }
    let heap = heap_of(&Ram::new(), pager);
    let (_, beside) = heap.paging.kept_tables();
    let refused = loop {
        let before = heap.stats().table_bytes;
        match heap.allocate_objects(100_000, 4) {
            Err(error) => break error,
            Ok(array) => {
                let end = heap.paging.page_of(array) + 100_000;
                let kept = end.div_ceil(REGION_PAGES).saturating_sub(beside);
                assert_eq!(heap.paging.kept_tables(), (kept, beside));
                let more = heap.stats().table_bytes - before;
                assert!(kept == 0 || more > 100_000, "{more} bytes");
            }
        }
    };
    assert!(matches!(refused, Error::Budget { .. }), "{refused}");
    assert!(heap.paging.kept_tables().0 > 0);
}
