//! A checkpoint leaves room: 40 % of flash may be allocated by a program that makes checkpoints and
//! continues to write.
//!
//! A checkpoint held whole blocks, dead bytes included, up to three fifths of flash for 25 % that
//! were allocated. A program that continued to write was killed by SIGBUS (`flash is full`),
//! although 40 % were promised.

mod common;

use common::{Dice, Heap, options};
use duramen_alloc::Faults;

const FLASH: u64 = 32 << 20;
const RAM: u64 = 5 << 20;

/// Random writes to objects of `bytes` bytes, `percent` of flash together, with checkpoints in
/// between; then a check of the last one.
fn goes_on(percent: u64, bytes: usize, between: u32) {
    let Some(heap) = Heap::open(FLASH, RAM, Faults::Userfault) else {
        return;
    };
    let count = (FLASH * percent / 100) as usize / bytes;
    let stride = duramen_alloc::stride(bytes);
    let array = duramen_alloc::oalloc(count, bytes).unwrap();
    duramen_alloc::set_root(0, array).unwrap();
    let word = |array: *mut u8, index: usize| array.wrapping_add(index * stride).cast::<u64>();
    let mut kept = vec![0u64; count];
    let mut dice = Dice(percent);
    let write = |kept: &mut Vec<u64>, index: usize| {
        kept[index] += 1;
        // SAFETY: an object of at least 8 bytes.
        unsafe { *word(array, index) += 1 };
    };
    for index in 0..count {
        write(&mut kept, index);
    }
    let path = heap.dir.path().join("checkpoint");
    let mut saved = Vec::new();
    for round in 0..4 {
        for _ in 0..between {
            write(&mut kept, dice.roll(count as u64) as usize);
        }
        if round < 3 {
            duramen_alloc::checkpoint(&path).unwrap();
            saved.clone_from(&kept);
            let stats = duramen_alloc::stats().unwrap();
            let half = stats.flash_capacity_bytes / 2;
            let held = stats.flash_live_bytes + stats.flash_held_bytes;
            assert!(held <= half, "{percent} %, checkpoint {round}: {stats:?}");
        }
    }
    heap.close();
    duramen_alloc::init(&options(heap.dir.path(), FLASH, RAM, Faults::Userfault)).unwrap();
    duramen_alloc::restore(&path).unwrap();
    let array = duramen_alloc::root(0).unwrap();
    for (index, wanted) in saved.iter().enumerate() {
        // SAFETY: as above.
        assert_eq!(unsafe { *word(array, index) }, *wanted, "object {index}");
    }
}

#[test]
fn a_quarter_of_flash_is_written_on_and_on() {
    goes_on(25, 4000, 4_500);
}

#[test]
fn two_fifths_of_flash_are_written_on_and_on() {
    goes_on(40, 4000, 4_000);
}
