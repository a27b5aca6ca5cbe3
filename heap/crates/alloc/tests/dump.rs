//! A core dump: the kernel looks for no page among the addresses that are not shown (pager::P3). A
//! program that crashed with core dumps on stayed in the kernel for minutes.

mod common;

use common::Heap;
use duramen_alloc::Faults;

/// Mappings that lie in these addresses: their permissions and flags.
fn mappings(of: std::ops::Range<usize>) -> Vec<(String, String)> {
    let text = std::fs::read_to_string("/proc/self/smaps").unwrap();
    let mut found = Vec::new();
    let mut inside = None;
    for line in text.lines() {
        let mut words = line.split_whitespace();
        let first = words.next().unwrap_or_default();
        if let Some((start, end)) = first.split_once('-') {
            let number = |text| usize::from_str_radix(text, 16).unwrap();
            let overlaps = number(start) < of.end && of.start < number(end);
            inside = overlaps.then(|| words.next().unwrap().to_owned());
        } else if first == "VmFlags:"
            && let Some(permissions) = inside.take()
        {
            found.push((permissions, line.to_owned()));
        }
    }
    found
}

#[test]
fn a_core_dump_skips_what_is_not_shown() {
    for faults in [Faults::Userfault, Faults::Protect] {
        let Some(heap) = Heap::open(64 << 20, 6 << 20, faults) else {
            continue;
        };
        let (objects, bytes) = (2000, 4096);
        let array = duramen_alloc::oalloc(objects, bytes).unwrap();
        for round in 0..2 {
            for nth in 0..objects {
                // SAFETY: objects of this length. Most of them are evicted again.
                unsafe { array.add(nth * bytes).write(round) };
            }
        }
        let found = mappings(array.addr()..array.addr() + (1 << 30));
        assert!(!found.is_empty());
        for (permissions, flags) in &found {
            let is_shown = faults == Faults::Protect && permissions.starts_with('r');
            let is_skipped = flags.split_whitespace().any(|flag| flag == "dd");
            assert!(is_shown || is_skipped, "{permissions} {flags}");
        }
        // A page that was evicted is one mapping with its neighbours again.
        assert!(found.len() < 1000, "{} mappings", found.len());
        heap.close();
    }
}
