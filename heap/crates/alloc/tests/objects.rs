//! Objects on flash: many times more than RAM, of all sizes, used by many threads.

mod common;

use common::{Dice, Heap, assert_filled, fill, page_table_bytes, resident_bytes};
use duramen_alloc::{Error, Faults};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

const KINDS: [Faults; 2] = [Faults::Userfault, Faults::Protect];

/// Addresses with more page tables than stay beside the budget: 2,048 for 512 pages each.
const MANY_PAGES: usize = 2048 * 512 + 1;

#[test]
fn twelve_times_ram_from_four_threads() {
    twelve_times(false);
}

#[test]
fn twelve_times_ram_of_a_heap_whose_page_tables_cannot_stay() {
    twelve_times(true);
}

/// The tables of objects that were freed stayed, for each size: with a fifth size, RAM had no room
/// for more although nothing was allocated. Freed newest first, those of 10,000 objects stayed.
#[test]
fn tables_of_freed_objects_are_given_back() {
    const OBJECTS: usize = 20_000;
    let mixed = (0..OBJECTS).step_by(2).chain((1..OBJECTS).step_by(2));
    let orders: [Vec<usize>; 3] = [
        mixed.collect(),
        (0..OBJECTS).collect(),
        (0..OBJECTS).rev().collect(),
    ];
    for faults in KINDS {
        let Some(heap) = Heap::open(256 << 20, 7 << 20, faults) else {
            continue;
        };
        let tables = || duramen_alloc::stats().unwrap().table_bytes;
        let before = tables();
        for (nth, bytes) in (128..272).step_by(16).enumerate() {
            let objects = allocate(OBJECTS, bytes);
            for (n, object) in objects.iter().enumerate() {
                // SAFETY: it is this test's object, of more than a word.
                unsafe { *(*object as *mut u64) = n as u64 };
            }
            for n in &orders[nth % 3] {
                // SAFETY: as above.
                assert_eq!(unsafe { *(objects[*n] as *const u64) }, *n as u64);
                free(objects[*n]);
            }
        }
        let kept = tables() - before;
        // One run of addresses at most stays for each size, of 128 objects.
        assert!(kept < 9 * 1024, "{faults:?}: {kept} bytes of tables");
        heap.close();
    }
}

/// Objects of a size, one by one.
fn allocate(count: usize, bytes: usize) -> Vec<usize> {
    let one = |_| duramen_alloc::oalloc(1, bytes).unwrap().addr();
    (0..count).map(one).collect()
}

fn free(object: usize) {
    // SAFETY: the callers use it no more.
    unsafe { duramen_alloc::free(object as *mut u8) }.unwrap();
}

/// Threads use many sizes, one after the other, in RAM for the tables of one size for each thread.
/// At the end, what fitted in the beginning fits again.
#[test]
fn a_program_that_frees_everything_can_allocate_it_again() {
    const THREADS: usize = 4;
    const OBJECTS: usize = 200;
    // Tables of 128 and 256 objects of eight pages, for each thread, and a few headers.
    const ROOM: usize = THREADS * (384 * 8 * 8 + 512) + 4096;
    for faults in KINDS {
        let Some(heap) = Heap::open(256 << 20, 7 << 20, faults) else {
            continue;
        };
        let Err(Error::Budget {
            budget_bytes,
            needed_bytes,
        }) = duramen_alloc::oalloc(1_000_000, 128)
        else {
            panic!("tables of 4 MB in 7 MiB");
        };
        let most = 1_000_000 - ((needed_bytes - budget_bytes) as usize).div_ceil(4);
        let array = |count| duramen_alloc::oalloc(count, 128).unwrap().addr();
        assert!(duramen_alloc::oalloc(most + 1, 128).is_err());
        free(array(most));

        let held = array(most - ROOM / 4);
        std::thread::scope(|scope| {
            for thread in 0..THREADS {
                scope.spawn(move || {
                    let sizes = (4608..=32768).step_by(512).skip(thread);
                    for (nth, bytes) in sizes.step_by(THREADS).cycle().take(100).enumerate() {
                        let mut objects = allocate(OBJECTS, bytes);
                        if nth % 2 == 0 {
                            objects.reverse();
                        }
                        objects.into_iter().for_each(free);
                    }
                });
            }
        });
        free(held);
        free(array(most));

        // Memory as well, with as many free blocks at once as take RAM of their own.
        let block = |_| duramen_alloc::malloc(2000).unwrap().addr();
        let blocks: Vec<usize> = (0..45_000).map(block).collect();
        let (even, odd): (Vec<_>, Vec<_>) = (0..blocks.len()).partition(|nth| nth % 2 == 0);
        for nth in even.into_iter().chain(odd) {
            free(blocks[nth]);
        }
        free(array(most));
        // Addresses that were given back are handed out again, as zeros.
        let again = duramen_alloc::calloc(1, 2000).unwrap();
        // SAFETY: it is ours.
        let bytes = unsafe { std::slice::from_raw_parts(again, 2000) };
        assert!(bytes.iter().all(|byte| *byte == 0));
        heap.close();
    }
}

/// The data is twelve times the budget; several threads read and write each object at random. RSS
/// stays within the budget; page tables do as well, or are at most 8 MiB beside it, including those
/// that the kernel has not freed yet.
fn twelve_times(many_pages: bool) {
    const OBJECTS: u64 = 200_000;
    const WORDS: usize = 64;
    const RAM: u64 = 8 << 20;
    let Some(heap) = Heap::open(256 << 20, RAM, Faults::Userfault) else {
        return;
    };
    if many_pages {
        duramen_alloc::oalloc(MANY_PAGES, 4).unwrap();
    }
    let stride = duramen_alloc::stride(8 * WORDS);
    let array = duramen_alloc::oalloc(OBJECTS as usize, 8 * WORDS).unwrap() as usize;
    assert!(OBJECTS * 8 * WORDS as u64 > 12 * RAM);
    let at = |index: u64| (array + index as usize * stride) as *mut u64;
    let versions: Vec<AtomicU64> = (0..8).map(|_| AtomicU64::new(0)).collect();
    let done = AtomicBool::new(false);
    let (most, most_tables) = (AtomicU64::new(0), AtomicU64::new(0));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::SeqCst) {
                let (resident, tables) = (resident_bytes(), page_table_bytes());
                let counted = resident + if many_pages { tables } else { 0 };
                most.fetch_max(counted, Ordering::SeqCst);
                let leaving = duramen_alloc::stats().unwrap().page_tables_leaving_bytes;
                most_tables.fetch_max(tables + leaving, Ordering::SeqCst);
                std::thread::yield_now();
            }
        });
        let workers: Vec<_> = (0..4u64)
            .map(|thread| {
                let versions = &versions;
                scope.spawn(move || {
                    let mut mine = vec![0u8; OBJECTS as usize / 4];
                    let mut dice = Dice(thread);
                    for index in (thread..OBJECTS).step_by(4) {
                        // SAFETY: each thread has objects of its own.
                        unsafe { fill(at(index), WORDS, index, 0) };
                    }
                    for _ in 0..5_000 {
                        let nth = dice.roll(OBJECTS / 4);
                        let (index, version) = (nth * 4 + thread, &mut mine[nth as usize]);
                        // SAFETY: as above.
                        unsafe { assert_filled(at(index), WORDS, index, u64::from(*version)) };
                        if dice.roll(2) == 0 {
                            *version = version.wrapping_add(1);
                            // SAFETY: as above.
                            unsafe { fill(at(index), WORDS, index, u64::from(*version)) };
                        }
                    }
                    versions[thread as usize].store(mine.len() as u64, Ordering::SeqCst);
                })
            })
            .collect();
        let ended: Vec<_> = workers.into_iter().map(|worker| worker.join()).collect();
        done.store(true, Ordering::SeqCst);
        ended.into_iter().for_each(|ended| ended.unwrap());
    });
    let stats = duramen_alloc::stats().unwrap();
    assert!(stats.from_flash > 1000, "{stats:?}");
    // Memory of the test itself: versions, heaps of threads.
    let allowed = RAM + RAM / 20 + OBJECTS + (1 << 20);
    let used = most
        .load(Ordering::SeqCst)
        .saturating_sub(heap.resident_before);
    assert!(
        used <= allowed,
        "{used} bytes of RAM, {allowed} are allowed: {stats:?}"
    );
    // Tables of pages in use, tables that each thread returns at once, those of the test, and
    // tables that were counted twice: before their return and after.
    let tables = most_tables.load(Ordering::SeqCst);
    assert!(tables <= (8 << 20) + (4 << 20), "{tables} bytes: {stats:?}");
    assert!(
        !many_pages || stats.page_table_bytes <= 1 << 20,
        "{stats:?}"
    );
    assert!(stats.table_bytes <= OBJECTS * 8 * WORDS as u64 / 32 + 4096);
}

/// Objects of all sizes against a model: allocated, written, read, freed; a new object is zero.
#[test]
fn objects_of_all_sizes_are_what_was_written() {
    for kind in KINDS {
        let Some(_heap) = Heap::open(64 << 20, 6 << 20, kind) else {
            continue;
        };
        let sizes = [
            1, 4, 8, 16, 60, 100, 128, 200, 513, 1000, 2048, 4095, 4096, 4097, 9000, 40_000,
        ];
        let mut live: Vec<(*mut u8, usize, u8)> = Vec::new();
        let mut dice = Dice(5);
        let mut bytes = 0;
        for step in 0..8_000u32 {
            let choice = dice.roll(10);
            if choice < 5 && bytes < 20 << 20 {
                let size = sizes[dice.roll(sizes.len() as u64) as usize];
                let object = duramen_alloc::oalloc(1, size).unwrap();
                assert!(object.addr().is_multiple_of(4096));
                let tag = step as u8;
                // SAFETY: it has this length, and is ours.
                let slice = unsafe { std::slice::from_raw_parts_mut(object, size) };
                assert!(
                    slice.iter().all(|byte| *byte == 0),
                    "{size} bytes, {kind:?}"
                );
                slice.fill(tag);
                live.push((object, size, tag));
                bytes += size;
            } else if !live.is_empty() {
                let nth = dice.roll(live.len() as u64) as usize;
                let (object, size, tag) = live[nth];
                // SAFETY: as above.
                let slice = unsafe { std::slice::from_raw_parts_mut(object, size) };
                assert!(
                    slice.iter().all(|byte| *byte == tag),
                    "{size} bytes, {kind:?}"
                );
                if choice < 8 {
                    live[nth].2 = tag.wrapping_add(1);
                    slice.fill(tag.wrapping_add(1));
                } else {
                    live.swap_remove(nth);
                    bytes -= size;
                    // SAFETY: it is not used any more.
                    unsafe { duramen_alloc::free(object) }.unwrap();
                }
            }
        }
        for (object, size, tag) in live {
            // SAFETY: as above.
            let slice = unsafe { std::slice::from_raw_parts(object, size) };
            assert!(
                slice.iter().all(|byte| *byte == tag),
                "{size} bytes, {kind:?}"
            );
            // SAFETY: as above.
            unsafe { duramen_alloc::free(object) }.unwrap();
        }
        assert_eq!(duramen_alloc::stats().unwrap().allocated_bytes, 0);
    }
}

/// Threads read and write the same objects; each word of an object belongs to one thread, and none
/// of its writes is ever lost.
#[test]
fn no_write_is_lost_when_pages_are_taken_away() {
    const OBJECTS: usize = 3000;
    for kind in KINDS {
        // The page buffer holds a few of them.
        let Some(_heap) = Heap::open(32 << 20, 6 << 20, kind) else {
            continue;
        };
        let stride = duramen_alloc::stride(64);
        let array = duramen_alloc::oalloc(OBJECTS, 64).unwrap() as usize;
        std::thread::scope(|scope| {
            for thread in 0..4usize {
                scope.spawn(move || {
                    let mut mine = vec![0u64; OBJECTS];
                    let mut dice = Dice(thread as u64);
                    for _ in 0..6_000 {
                        let index = dice.roll(OBJECTS as u64) as usize;
                        let word = (array + index * stride) as *mut u64;
                        // SAFETY: a word of this thread alone.
                        unsafe {
                            let word = word.add(thread);
                            assert_eq!(
                                word.read_volatile(),
                                mine[index],
                                "object {index}, {kind:?}"
                            );
                            word.write_volatile(mine[index] + 1);
                        }
                        mine[index] += 1;
                    }
                });
            }
        });
        assert!(duramen_alloc::stats().unwrap().evicted_dirty_pages > 1000);
    }
}

#[test]
fn misuse_is_an_error() {
    let Some(heap) = Heap::open(16 << 20, 6 << 20, Faults::Userfault) else {
        return;
    };
    let again = duramen_alloc::init(&common::options(
        heap.dir.path(),
        0,
        6 << 20,
        Faults::Userfault,
    ));
    assert!(matches!(again, Err(Error::State(_))));
    assert!(matches!(
        duramen_alloc::oalloc(0, 8),
        Err(Error::Invalid(_))
    ));
    assert!(matches!(
        duramen_alloc::oalloc(1, 0),
        Err(Error::Invalid(_))
    ));
    let full = duramen_alloc::oalloc(1 << 20, 4096);
    assert!(matches!(full, Err(Error::NoSpace { .. })), "{full:?}");
    let object = duramen_alloc::oalloc(1, 100).unwrap();
    let mut local = 0u8;
    // SAFETY: the test checks that none of it is freed.
    unsafe {
        let inside = duramen_alloc::free(object.add(8));
        assert!(
            matches!(inside, Err(Error::BadPointer { .. })),
            "{inside:?}"
        );
        let foreign = duramen_alloc::free(&raw mut local);
        assert!(
            matches!(foreign, Err(Error::BadPointer { .. })),
            "{foreign:?}"
        );
        let never = duramen_alloc::free(object.add(4096 * 5));
        assert!(matches!(never, Err(Error::BadPointer { .. })), "{never:?}");
        duramen_alloc::free(object).unwrap();
        let twice = duramen_alloc::free(object);
        assert!(matches!(twice, Err(Error::DoubleFree { .. })), "{twice:?}");
        let array = duramen_alloc::oalloc(10, 100).unwrap();
        let element = duramen_alloc::free(array.add(4096));
        assert!(
            matches!(element, Err(Error::BadPointer { .. })),
            "{element:?}"
        );
        duramen_alloc::free(array).unwrap();
        let gone = duramen_alloc::free(array);
        assert!(matches!(gone, Err(Error::BadPointer { .. })), "{gone:?}");
        duramen_alloc::free(std::ptr::null_mut()).unwrap();
    }
    heap.close();
    assert!(matches!(
        duramen_alloc::oalloc(1, 8),
        Err(Error::NotInitialized)
    ));
    let poor = duramen_alloc::init(&common::options(
        heap.dir.path(),
        0,
        1 << 20,
        Faults::Userfault,
    ));
    assert!(matches!(poor, Err(Error::Budget { .. })), "{poor:?}");
    assert!(poor.unwrap_err().to_string().contains("too small"));
}

/// By `mprotect`, page tables that were counted as returned stayed: 4 KiB for each 2 MiB of
/// addresses that were ever touched.
#[test]
fn page_tables_without_pages_are_the_kernels_again() {
    const REGIONS: usize = 12_000;
    for kind in KINDS {
        let Some(_heap) = Heap::open(256 << 20, 12 << 20, kind) else {
            continue;
        };
        let before = page_table_bytes();
        let array = duramen_alloc::oalloc(REGIONS * 512, 4).unwrap().addr();
        for region in 0..REGIONS {
            // SAFETY: an array of this many objects, each a page of addresses.
            unsafe { ((array + region * (2 << 20)) as *mut u32).write(region as u32) };
        }
        let stats = duramen_alloc::stats().unwrap();
        let grown = page_table_bytes().saturating_sub(before);
        let all = (REGIONS * 4096) as u64;
        // If this kernel keeps them all, they are counted.
        assert!(
            grown < all / 4 || stats.page_table_bytes >= all,
            "{kind:?}: {grown} bytes: {stats:?}"
        );
        for region in (0..REGIONS).rev() {
            // SAFETY: as above.
            let found = unsafe { ((array + region * (2 << 20)) as *const u32).read() };
            assert_eq!(found, region as u32);
        }
    }
}
