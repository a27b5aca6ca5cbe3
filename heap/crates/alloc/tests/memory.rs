//! `malloc` and related functions, and checkpoints, against models.

mod common;

use common::{Dice, Heap, assert_filled, fill, options};
use duramen_alloc::{Error, Faults};
use std::collections::BTreeMap;

/// A block and its content.
struct Block {
    at: *mut u8,
    bytes: usize,
    tag: u8,
}

impl Block {
    fn set(&mut self, tag: u8) {
        self.tag = tag;
        // SAFETY: it was allocated with this many bytes.
        unsafe { std::ptr::write_bytes(self.at, tag, self.bytes) };
    }

    fn check(&self, bytes: usize) {
        // SAFETY: as above.
        let found = unsafe { std::slice::from_raw_parts(self.at, bytes) };
        assert!(
            found.iter().all(|byte| *byte == self.tag),
            "{bytes} bytes at {:?}",
            self.at
        );
    }
}

/// A block of any length, with zeros or without.
fn allocate(dice: &mut Dice) -> Block {
    let length = match dice.roll(60) {
        0 => dice.roll(1_300_000),
        1..=9 => dice.roll(20_000),
        _ => dice.roll(300),
    } as usize;
    let zeros = dice.roll(2) == 0;
    let at = if zeros {
        duramen_alloc::calloc(length, 1).unwrap()
    } else {
        duramen_alloc::malloc(length).unwrap()
    };
    assert!(at.addr().is_multiple_of(16));
    assert!(duramen_alloc::usable_bytes(at).unwrap() >= length);
    let block = Block {
        at,
        bytes: length,
        tag: 0,
    };
    if zeros {
        block.check(length);
    }
    block
}

/// Blocks of all lengths: aligned, disjoint, unchanged; freed memory is reused.
#[test]
fn blocks_are_apart_and_keep_their_bytes() {
    for kind in [Faults::Userfault, Faults::Protect] {
        let Some(_heap) = Heap::open(128 << 20, 8 << 20, kind) else {
            continue;
        };
        let mut live: Vec<Block> = Vec::new();
        let mut dice = Dice(9);
        let mut bytes = 0;
        for step in 0..4000u32 {
            match dice.roll(10) {
                0..=3 if bytes < 14 << 20 => {
                    let mut block = allocate(&mut dice);
                    block.set(step as u8);
                    bytes += block.bytes;
                    live.push(block);
                }
                4..=5 if !live.is_empty() => {
                    let nth = dice.roll(live.len() as u64) as usize;
                    let block = &mut live[nth];
                    let length = (dice.roll(3) * block.bytes.min(900_000) as u64 / 2) as usize + 1;
                    // SAFETY: it has no other user.
                    block.at = unsafe { duramen_alloc::realloc(block.at, length) }.unwrap();
                    block.check(length.min(block.bytes));
                    bytes = bytes - block.bytes + length;
                    block.bytes = length;
                    block.set(step as u8);
                }
                _ if !live.is_empty() => {
                    let nth = dice.roll(live.len() as u64) as usize;
                    let block = live.swap_remove(nth);
                    block.check(block.bytes);
                    bytes -= block.bytes;
                    // SAFETY: it is not used any more.
                    unsafe { duramen_alloc::free(block.at) }.unwrap();
                }
                _ => {}
            }
        }
        let mut ranges: Vec<_> = live
            .iter()
            .map(|block| (block.at.addr(), block.bytes))
            .collect();
        ranges.sort_unstable();
        for pair in ranges.windows(2) {
            assert!(pair[0].0 + pair[0].1 <= pair[1].0, "blocks overlap");
        }
        for block in live {
            block.check(block.bytes);
            // SAFETY: as above.
            unsafe { duramen_alloc::free(block.at) }.unwrap();
        }
        let stats = duramen_alloc::stats().unwrap();
        assert_eq!(stats.allocated_bytes, 0);
        // Everything was coalesced: a block as long as a run fits into the space of all of them.
        let before = stats.table_bytes;
        for _ in 0..30 {
            duramen_alloc::malloc((1 << 20) - 16).unwrap();
        }
        assert!(duramen_alloc::stats().unwrap().table_bytes <= before + 400_000);
    }
}

#[test]
fn bad_pointers_to_memory_are_refused() {
    let Some(_heap) = Heap::open(32 << 20, 6 << 20, Faults::Userfault) else {
        return;
    };
    let block = duramen_alloc::malloc(100).unwrap();
    let other = duramen_alloc::malloc(100).unwrap();
    // SAFETY: the test checks that nothing is freed wrongly.
    unsafe {
        for inside in [1, 16, 96] {
            let refused = duramen_alloc::free(block.add(inside));
            assert!(
                matches!(refused, Err(Error::BadPointer { .. })),
                "{refused:?}"
            );
        }
        duramen_alloc::free(block).unwrap();
        let twice = duramen_alloc::free(block);
        assert!(matches!(twice, Err(Error::DoubleFree { .. })), "{twice:?}");
        assert!(duramen_alloc::realloc(block, 5).is_err());
        duramen_alloc::free(other).unwrap();
        let twice = duramen_alloc::free(other);
        assert!(matches!(twice, Err(Error::DoubleFree { .. })), "{twice:?}");
    }
    assert!(matches!(
        duramen_alloc::malloc(usize::MAX),
        Err(Error::Invalid(_))
    ));
    assert!(matches!(
        duramen_alloc::calloc(usize::MAX, 2),
        Err(Error::Invalid(_))
    ));
    assert!(matches!(
        duramen_alloc::malloc(1 << 30),
        Err(Error::NoSpace { .. })
    ));
}

fn refused(done: Result<(), Error>) -> Error {
    done.expect_err("it was taken")
}

/// Several lives: each continues from the checkpoint of the previous one, with pointers between
/// objects, arrays, memory and roots.
#[test]
fn a_later_life_goes_on_where_a_checkpoint_was_made() {
    let Some(heap) = Heap::open(64 << 20, 6 << 20, Faults::Userfault) else {
        return;
    };
    let path = heap.dir.path().join("checkpoint");
    let open = || duramen_alloc::init(&options(heap.dir.path(), 0, 6 << 20, heap.faults));
    let sizes = [8usize, 64, 128, 1000, 4096, 6000];
    let mut model: BTreeMap<usize, (usize, u64)> = BTreeMap::new();
    let mut dice = Dice(3);
    for life in 0..5u64 {
        if life > 0 {
            open().unwrap();
            duramen_alloc::restore(&path).unwrap();
            assert_eq!(
                duramen_alloc::root(3).unwrap().addr(),
                *model.keys().next().unwrap()
            );
            assert!(duramen_alloc::root(4).unwrap().is_null());
        }
        for (object, (bytes, tag)) in &model {
            // SAFETY: it is restored, with this many bytes.
            unsafe { assert_filled(*object as *const u64, bytes / 8, *tag, 1) };
        }
        for step in 0..4000 {
            let tag = life << 20 | step;
            let bytes = sizes[dice.roll(6) as usize];
            if dice.roll(3) > 0 || model.is_empty() {
                let object = match dice.roll(8) {
                    0..=4 => duramen_alloc::oalloc(1, bytes),
                    5 if step % 20 == 0 => duramen_alloc::oalloc(10, bytes),
                    _ => duramen_alloc::malloc(bytes),
                };
                let object = object.unwrap();
                // SAFETY: it has this length, and is new.
                unsafe { fill(object.cast(), bytes / 8, tag, 1) };
                model.insert(object.addr(), (bytes, tag));
            } else {
                let nth = dice.roll(model.len() as u64) as usize;
                let (object, _) = model.iter().nth(nth).unwrap();
                let object = *object;
                model.remove(&object);
                // SAFETY: it is not used any more.
                unsafe { duramen_alloc::free(object as *mut u8) }.unwrap();
            }
        }
        let first = *model.keys().next().unwrap();
        duramen_alloc::set_root(3, first as *mut u8).unwrap();
        duramen_alloc::checkpoint(&path).unwrap();
        // Later writes are not in it.
        for object in model.keys().take(500) {
            // SAFETY: as above.
            unsafe { (*object as *mut u64).write(1) };
        }
        let after = duramen_alloc::oalloc(1, 128).unwrap();
        // SAFETY: as above.
        unsafe { after.write(1) };
        heap.close();
    }
    open().unwrap();
    duramen_alloc::restore(&path).unwrap();
    for object in model.keys() {
        // SAFETY: as above.
        unsafe { duramen_alloc::free(*object as *mut u8) }.unwrap();
    }
    assert_eq!(
        duramen_alloc::stats().unwrap().allocated_bytes,
        0,
        "what was allocated is known"
    );
}

/// Allocates this many bytes.
type Allocate = fn(usize) -> Result<*mut u8, Error>;

/// One block of each page, or one object of each unit, stays. Pages and units are stored whole, but
/// only the bytes of blocks were counted, and a later store to new memory ended in SIGBUS. Freed
/// room beside the kept blocks is handed out again, also while flash takes no more.
#[test]
fn room_that_is_lost_between_blocks_is_counted() {
    let malloc = duramen_alloc::malloc;
    let oalloc = |bytes| duramen_alloc::oalloc(1, bytes);
    let ways: [(Allocate, usize, usize); 2] = [(malloc, 64, 64), (oalloc, 16, 8)];
    for (allocate, bytes, shared) in ways {
        let Some(_heap) = Heap::open(16 << 20, 8 << 20, Faults::Userfault) else {
            continue;
        };
        let mut all = Vec::new();
        for nth in 0..(16 << 20) / 2 / bytes.max(20) {
            let at = allocate(bytes).unwrap();
            // SAFETY: it is ours.
            unsafe { std::ptr::write_bytes(at, nth as u8, bytes) };
            all.push((at, nth as u8));
        }
        let count = all.len();
        let mut kept = Vec::new();
        for (nth, (at, tag)) in all.into_iter().enumerate() {
            if nth % shared == 0 {
                kept.push((at, tag));
            } else {
                // SAFETY: nothing uses it.
                unsafe { duramen_alloc::free(at) }.unwrap();
            }
        }
        let mut pages = Vec::new();
        let full = loop {
            match duramen_alloc::oalloc(1, 4096) {
                Ok(page) => pages.push(page),
                Err(error) => break error,
            }
            // SAFETY: it is ours.
            unsafe { std::ptr::write_bytes(pages[pages.len() - 1], pages.len() as u8, 4096) };
        };
        assert!(matches!(full, Error::NoSpace { .. }), "{full}");
        assert!(pages.len() > 500, "{} pages", pages.len());
        let mut again = Vec::new();
        for _ in 0..(count - kept.len()).min(4000) {
            let at = allocate(bytes).unwrap();
            // SAFETY: it is ours.
            unsafe { std::ptr::write_bytes(at, 1, bytes) };
            again.push((at, 1));
        }
        for (at, tag) in kept.into_iter().chain(again) {
            // SAFETY: as above.
            let found = unsafe { std::slice::from_raw_parts(at, bytes) };
            assert!(found.iter().all(|byte| *byte == tag));
        }
        for (nth, page) in (1..).zip(pages) {
            // SAFETY: as above.
            let found = unsafe { std::slice::from_raw_parts(page, 4096) };
            assert!(found.iter().all(|byte| *byte == nth as u8), "page {nth}");
        }
    }
}

#[test]
fn checkpoints_that_cannot_be_restored_are_refused() {
    let Some(heap) = Heap::open(32 << 20, 6 << 20, Faults::Userfault) else {
        return;
    };
    let dir = heap.dir.path().to_path_buf();
    let path = dir.join("checkpoint");
    let open = || duramen_alloc::init(&options(&dir, 0, 6 << 20, heap.faults)).unwrap();
    let object = duramen_alloc::oalloc(1, 128).unwrap();
    // SAFETY: it is ours.
    unsafe { object.write(77) };
    assert!(matches!(
        refused(duramen_alloc::restore(&path)),
        Error::State(_)
    ));
    duramen_alloc::checkpoint(&path).unwrap();
    heap.close();
    let whole = std::fs::read(&path).unwrap();
    for (at, bit) in [(0, 1), (20, 1), (5000, 4), (whole.len() - 3, 2)] {
        let mut damaged = whole.clone();
        damaged[at] ^= bit;
        std::fs::write(&path, &damaged).unwrap();
        open();
        let error = refused(duramen_alloc::restore(&path));
        assert_eq!(error.code(), -9, "byte {at}: {error}");
    }
    std::fs::write(&path, &whole[..whole.len() / 2]).unwrap();
    open();
    assert_eq!(refused(duramen_alloc::restore(&path)).code(), -9);
    open();
    let missing = refused(duramen_alloc::restore(&dir.join("none")));
    assert_eq!(missing.code(), -9, "{missing}");
    std::fs::write(&path, &whole).unwrap();
    // Another mapping is in the place of the objects.
    let start = object.addr() & !((4 << 40) - 1);
    // SAFETY: new memory, over nothing.
    let taken = unsafe {
        libc::mmap(
            start as *mut _,
            4096,
            libc::PROT_READ,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE,
            -1,
            0,
        )
    };
    assert_eq!(taken.addr(), start);
    open();
    let error = refused(duramen_alloc::restore(&path));
    assert!(matches!(error, Error::AddressTaken { .. }), "{error}");
    // SAFETY: just mapped.
    unsafe { libc::munmap(taken, 4096) };
    open();
    duramen_alloc::restore(&path).unwrap();
    // SAFETY: it is restored.
    assert_eq!(unsafe { object.read() }, 77);
    // A new heap in the same file gives the checkpoint up.
    heap.close();
    open();
    duramen_alloc::oalloc(1, 8).unwrap();
    heap.close();
    open();
    assert_eq!(refused(duramen_alloc::restore(&path)).code(), -9);
}
