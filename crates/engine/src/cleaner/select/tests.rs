//! Which segments a pass takes, and claims of windows that were filled again.

use super::{DiskCandidate, For, Mergeable, PassLimits, claim, closed_windows, mergeable};
use crate::log::Collected;
use crate::{LogOptions, Options, Store, TableId};
use duramen_base::ids::Level;
use duramen_base::planted::{Bug, with_bug};

const MB: u64 = 1 << 20;

/// Limits of a pass whose full survivors leave so many bytes unused.
fn limits(unused: u64) -> PassLimits {
    PassLimits {
        live_max: 10 * MB,
        room: 20 * MB,
        segment_bytes: MB,
        survivor_bytes: MB - unused,
    }
}

/// Segments of the same age, with so many live bytes each; the number of a window is its place.
fn candidates(live: &[u64]) -> Vec<DiskCandidate> {
    let of = |(window, live): (u32, &u64)| {
        let u = *live as f64 / MB as f64;
        ((1.0 - u) / u.max(1e-6), window, *live)
    };
    let mut all: Vec<DiskCandidate> = (0..).zip(live).map(of).collect();
    all.sort_unstable_by(|a, b| b.0.total_cmp(&a.0));
    all
}

fn windows(pass: &[DiskCandidate]) -> Vec<u32> {
    let mut windows: Vec<u32> = pass.iter().map(|(_, window, _)| *window).collect();
    windows.sort_unstable();
    windows
}

/// A pass within a zone took a single empty segment, as nothing is cheaper: each segment waited
/// for a Swap of its own, and the writers for all of them.
#[test]
fn empty_segments_of_a_zone_leave_together() {
    let live = [0, 0, 400, 900, 0, 0, 300, 900];
    let pass = limits(0).best_in_zone(candidates(&live), |window| u64::from(window / 4));
    assert_eq!(pass.len(), 4, "{pass:?}");
}

#[test]
fn a_pass_takes_the_best_zone_or_all_if_none_gains() {
    // The second zone has more dead bytes, the third one only in single segments.
    let live = [700, 700, 700, 700, 500, 500, 500, 500, 10, 995, 995, 995];
    let live = live.map(|kb| kb * MB / 1000);
    let in_zone = |live: &[u64]| {
        let zone_of = |window| u64::from(window / 4);
        windows(&limits(0).best_in_zone(candidates(live), zone_of))
    };
    let best = in_zone(&live[..8]);
    assert!(best.len() >= 2 && best.iter().all(|window| *window >= 4));
    let of_three = in_zone(&live);
    assert!(
        of_three.iter().all(|window| window / 4 == of_three[0] / 4),
        "{of_three:?}"
    );
    // Two segments of each zone fill two survivors, those of all zones free one.
    let live = [600; 6].map(|kb| kb * MB / 1000);
    let zone_of = |window| u64::from(window / 2);
    let pass = limits(0).best_in_zone(candidates(&live), zone_of);
    assert_eq!(windows(&pass), [0, 1, 2, 3, 4, 5]);
}

/// Three quarters are live: by their bytes, eight segments fit six survivors exactly, but with
/// large objects each survivor leaves some of its end unused.
#[test]
fn a_start_that_fits_only_to_the_byte_gains_nothing_with_large_objects() {
    let live = [3 * MB / 4; 9];
    let start = |unused| limits(unused).best_start(&candidates(&live));
    assert_eq!(start(0).map(|(_, count)| count), Some(8));
    assert_eq!(start(1000).map(|(_, count)| count), Some(9));
    assert_eq!(start(MB / 4), None);
}

/// Segments of which each is full, and of which this part of 1,000 is dead.
fn with_dead(count: usize, dead: u64) -> Vec<Mergeable> {
    let segment = |window| Mergeable {
        needed: MB - MB * dead / 1000,
        appended: MB,
        window,
    };
    (0..count as u32).map(segment).collect()
}

/// Merges until a segment is free. The number of passes; none if one would gain nothing.
fn passes_until_free(mut segments: Vec<Mergeable>, room: u64) -> Option<usize> {
    let before = segments.len();
    for passes in 1.. {
        segments.sort_unstable_by_key(|segment| segment.needed);
        let count = mergeable(&segments, room, MB);
        if count == 0 {
            return None;
        }
        let kept: u64 = segments.drain(..count).map(|victim| victim.needed).sum();
        assert!(
            kept.div_ceil(MB) <= room,
            "more survivors than there is room for"
        );
        segments.extend((0..kept.div_ceil(MB)).map(|n| Mergeable {
            needed: (kept - n * MB).min(MB),
            appended: (kept - n * MB).min(MB),
            window: 0,
        }));
        if segments.len() < before {
            return Some(passes);
        }
    }
    unreachable!()
}

#[test]
fn merging_frees_a_segment_in_a_bounded_number_of_passes() {
    for room in 3..10 {
        for dead in [16, 20, 50, 100, 200, 300, 500, 900, 1000] {
            let passes = passes_until_free(with_dead(100, dead), room);
            let bound = 64.min(2 + 1000 / (dead as usize * (room as usize - 1)) * 2);
            assert!(
                passes.is_some_and(|passes| passes <= bound),
                "{dead} of 1000, room {room}: {passes:?} passes, at most {bound}"
            );
        }
    }
}

#[test]
fn merging_ends_where_nothing_is_gained() {
    assert_eq!(passes_until_free(with_dead(100, 0), 8), None);
    assert_eq!(passes_until_free(with_dead(3, 100), 8), None);
    assert_eq!(mergeable(&[], 8, MB), 0);
    assert_eq!(mergeable(&with_dead(10, 500), 0, MB), 0);
}

/// Looks at a window, lets another context clean it and a head fill it again, and claims it for
/// a compaction and for a pass: whether each gets it while the disk does not have its bytes,
/// and when it has them.
fn claims_of_a_window_that_was_filled_again() -> [bool; 4] {
    let store = Store::new(Options {
        heads: 1,
        cleaners: 0,
        log: Some(LogOptions::new(1)),
        ..Options::new(64 << 20)
    })
    .expect("a store");
    let (core, log) = (store.core(), store.log().expect("a log"));
    let mut session = store.session().expect("a session");
    let mut write = |value: &[u8]| {
        let mut guard = session.pin();
        let hash = guard.hash(b"key");
        guard
            .write(TableId::DEFAULT, hash, b"key", value, None)
            .expect("room");
        drop(guard);
        store.heads().close_all();
    };
    let commit = || {
        let mut collected = Collected::default();
        log.collect(&mut collected);
        log.complete(&mut collected, Level::Synced);
    };
    write(b"1");
    commit();
    let looked: Vec<u32> = closed_windows(core, log, 0).collect();
    let [window] = looked[..] else {
        panic!("{looked:?}");
    };
    let segment = &core.space.segments[window as usize];
    let first = log.segment_of(window as usize);
    write(b"2"); // "1" is dead
    commit();
    for _ in 0..100 {
        if !segment.is_in_log() {
            break;
        }
        store.clean_step(1);
    }
    assert!(!segment.is_in_log(), "another context cleaned it");
    write(b"3");
    let second = log.segment_of(window as usize);
    assert!(segment.is_closed() && second != first, "a head filled it");
    let claims = |what_for| {
        let claimed = claim(core, vec![(1.0, window)], 1, what_for);
        claimed
            .iter()
            .for_each(|window| core.space.segments[*window as usize].unclaim());
        claimed == [window]
    };
    let both = || [claims(For::Level { on_flash: false }), claims(For::Pass)];
    let before = both();
    commit();
    let after = both();
    [before[0], before[1], after[0], after[1]]
}

/// levels::V1. It was cleaned before its bytes were on disk, and the disk got those of a third
/// segment in their place.
#[test]
fn a_window_that_was_filled_again_is_claimed_once_the_disk_has_it() {
    assert_eq!(
        claims_of_a_window_that_was_filled_again(),
        [false, false, true, true]
    );
}

#[test]
fn a_claim_of_what_was_not_looked_at_is_found() {
    let claims = with_bug(Bug::ClaimedUnseen, claims_of_a_window_that_was_filled_again);
    assert_eq!(claims, [true; 4]);
}
