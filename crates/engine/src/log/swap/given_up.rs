//! Passes that cannot end: they are given up, and cleaning goes on with other segments.
//!
//! A pass cannot end if a survivor of it will never be durable, or if a victim of it got damage
//! after its first entries had left it. Its Swap would wait for ever, and so would all later ones.
//! (A Swap without that victim would let later passes clean the survivors, which have a part of
//! it. Entries that kill such a part then name no segment that keeps them needed while the victim
//! is listed: swap::D3.)
//!
//! **Invariants**
//! - GU1: no Swap of such a pass is ever recorded, as if a crash had come before it. Its victims
//!   stay listed on disk, and a restart loads them. So nothing is lost, and no memory is needed.
//! - GU2: its survivors stay in memory. They are listed and never settled (swap::D3): compactions
//!   may take their windows, but no pass does. So an entry that kills one of theirs stays needed in
//!   this life, and in later ones as long as a victim is listed (swap::D4).
//! - GU3: its victims count as leaving for ever: an eviction from a survivor of it announces them
//!   too (swap::D12), and the token of a pass that has evicted an object stands on (swap::D11).
//! - GU4: a segment whose compaction was given up has two windows: the old one, which no cleaner
//!   takes, with the entries that are left, and the new one. It is *kept*: no pass takes it, as
//!   its Swap would remove the only durable copy of the entries in the old window.
//! - GU5: a pass is given up once, and reported once, however many of its survivors, and copies of
//!   them, are found to be lost.

use super::list::Life;
use super::{Queues, Swap, Swaps};
use duramen_base::ids::SegmentId;
use duramen_base::planted::{Bug, has_bug};
use std::sync::atomic::Ordering;

impl Swaps {
    /// Keeps a segment whose compaction was given up, so that no pass takes it (GU4).
    pub(crate) fn keep(&self, segment: SegmentId) {
        if has_bug(Bug::StoppedIsCleaned) {
            return;
        }
        let mut list = self.list.change();
        if let Some(life) = list.life(segment)
            && *life != Life::InVain
        {
            *life = Life::Kept;
        }
        drop(list);
        self.relocations.forget(&[segment]);
    }

    /// Gives up the running pass, which cannot end. Its survivors are closed. `has_evicted`: an
    /// object of its victims has left memory.
    pub(crate) fn give_up_work(&self, swap: Swap, has_evicted: bool) {
        let mut queues = self.queues();
        let evicts = queues.eviction.end_work();
        queues.passes.end_work();
        self.given_up(&mut queues, swap, evicts && has_evicted);
        queues.end_token(&self.token, &[]);
    }

    /// Gives up the passes that wait for their Swap and have a hopeless survivor, unless the
    /// consumer has got their Swap.
    pub(super) fn give_up_hopeless(&self, queues: &mut Queues) {
        while let Some(pending) = queues.passes.take_hopeless() {
            self.given_up(queues, pending.swap, pending.evicted);
        }
    }

    fn given_up(&self, queues: &mut Queues, swap: Swap, evicted: bool) {
        queues.passes.forget_hopeless(&swap.add);
        let mut list = self.list.change();
        for segment in &swap.add {
            if let Some(life) = list.life(*segment) {
                *life = Life::InVain;
            }
        }
        drop(list);
        self.relocations.forget(&swap.add);
        for segment in &swap.add {
            if let Some(window) = queues.survivors.give_up(*segment) {
                self.marks.set_written(window, true);
            }
        }
        for victim in swap.remove {
            if evicted {
                queues.eviction.add(victim);
            }
            queues.passes.strand(victim);
        }
        self.progress.fetch_add(1, Ordering::Relaxed);
    }

    /// This survivor of a pass will never be durable: gives the pass up as soon as its scan has
    /// ended, unless its Swap was handed out. `None`: the segment is no survivor that waits for a
    /// Swap. `Some(false)`: the pass was known to be lost before (GU5).
    pub(crate) fn give_up_pass_of(&self, survivor: SegmentId) -> Option<bool> {
        let mut queues = self.queues();
        let needs = self.list.needs();
        let life = needs.life(survivor)?;
        if life == Life::InVain {
            return Some(false);
        }
        let passes = needs.passes().iter();
        let its = passes.filter(|pass| pass.has_survivor(survivor.0));
        let was_lost = its.map(|pass| queues.passes.is_lost(pass));
        let was_lost = was_lost.reduce(|some, other| some || other);
        let was_lost = was_lost.filter(|_| life != Life::Settled)?;
        drop(needs);
        if !was_lost {
            queues.passes.lose(survivor);
        }
        self.give_up_hopeless(&mut queues);
        Some(!was_lost)
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::super::Pass;
    use super::super::tests::swaps;
    use super::*;

    const VICTIMS: [SegmentId; 2] = [SegmentId(1), SegmentId(2)];
    const SURVIVORS: [SegmentId; 2] = [SegmentId(9), SegmentId(10)];

    /// A pass with two victims and the survivors 9 and 10, of which the first one is durable.
    fn at_work(evicts: bool) -> (Swaps, Swap) {
        let swaps = swaps();
        (1..=3).for_each(|id| swaps.opened(SegmentId(id)));
        let pass = Pass {
            first: SegmentId(9),
            count: 4,
            victims: VICTIMS.to_vec(),
        };
        swaps.announce(pass, evicts);
        for (id, window) in [(9, 4), (10, 5)] {
            swaps.opened_survivor(SegmentId(id));
            swaps.closed_survivor(SegmentId(id), window, 100, None);
        }
        assert!(swaps.survivor_durable(SegmentId(9)));
        let swap = Swap {
            add: SURVIVORS.to_vec(),
            remove: VICTIMS.to_vec(),
            version_floor: 0,
        };
        (swaps, swap)
    }

    fn hopeless(swaps: &Swaps, segment: SegmentId) {
        assert_eq!(swaps.give_up_pass_of(segment), Some(true));
    }

    fn is_given_up(swaps: &Swaps) -> bool {
        let needs = swaps.list().needs();
        let mut stay = VICTIMS.into_iter().chain(SURVIVORS);
        assert!(stay.all(|id| needs.tombstone(id, &[])));
        assert!(!SURVIVORS.into_iter().any(|id| needs.is_settled(id)));
        drop(needs);
        !swaps.is_waiting()
            && VICTIMS
                .into_iter()
                .all(|id| swaps.queues().passes.is_victim(id))
    }

    /// It waited for ever, and all later Swaps did (swap::D5).
    #[test]
    fn a_pass_with_a_hopeless_survivor_is_given_up_and_later_ones_are_not() {
        for early in [true, false] {
            let (swaps, swap) = at_work(false);
            if early {
                hopeless(&swaps, SegmentId(10));
                assert!(swaps.is_waiting(), "its scan has not ended");
            }
            swaps.scanned(swap, Default::default());
            let later = Swap {
                add: Vec::new(),
                remove: vec![SegmentId(3)],
                version_floor: 0,
            };
            swaps.scanned(later.clone(), Default::default());
            if !early {
                hopeless(&swaps, SegmentId(10));
            }
            assert_eq!(swaps.queues().passes.next(|_| true), Some(later.clone()));
            swaps.swapped(&later);
            assert!(is_given_up(&swaps));
            assert!(swaps.marks().is_written(4) && swaps.marks().is_written(5));
            // The consumer frees what it has written, and nothing else.
            assert_eq!(swaps.take_abandoned(), [SegmentId(9)]);
            assert!(!swaps.queues().passes.has_hopeless());
        }
    }

    #[test]
    fn a_survivor_that_is_being_written_is_freed_afterwards() {
        let (swaps, swap) = at_work(false);
        swaps.queues().survivors.next();
        swaps.give_up_work(swap, false);
        assert!(!swaps.marks().is_written(5), "its bytes are being read");
        assert!(swaps.survivor_durable(SegmentId(10)));
        assert!(swaps.marks().is_written(5) && is_given_up(&swaps));
        assert_eq!(swaps.take_abandoned(), [SegmentId(9), SegmentId(10)]);
    }

    /// Its record may be durable: then the victims are gone.
    #[test]
    fn a_pass_whose_swap_was_handed_out_is_not_given_up() {
        let (swaps, swap) = at_work(false);
        swaps.scanned(swap.clone(), Default::default());
        assert!(swaps.survivor_durable(SegmentId(10)));
        assert_eq!(swaps.queues().passes.next(|_| true), Some(swap.clone()));
        hopeless(&swaps, SegmentId(10));
        assert_eq!(swaps.queues().passes.next(|_| true), Some(swap.clone()));
        swaps.swapped(&swap);
        assert!(swaps.list().needs().is_settled(SegmentId(10)));
        assert!(!swaps.queues().passes.has_hopeless());
        assert_eq!(swaps.give_up_pass_of(SegmentId(10)), None);
    }

    /// GU5: each copy of a lost survivor counted as another pass.
    #[test]
    fn a_pass_is_given_up_once() {
        for early in [true, false] {
            let (swaps, swap) = at_work(false);
            if !early {
                swaps.scanned(swap.clone(), Default::default());
            }
            let told = [9, 9, 10, 10].map(|id| swaps.give_up_pass_of(SegmentId(id)));
            assert_eq!(told, [Some(true), Some(false), Some(false), Some(false)]);
            if early {
                swaps.scanned(swap, Default::default());
            }
            assert_eq!(swaps.give_up_pass_of(SegmentId(10)), Some(false));
            assert_eq!(swaps.give_up_pass_of(SegmentId(3)), None);
            assert!(!swaps.queues().passes.has_hopeless());
            assert!(is_given_up(&swaps));
        }
    }

    /// Its announcement has the victims of the one before it, which evicts too.
    #[test]
    fn a_pass_after_one_that_was_given_up_is_given_up_too() {
        let (swaps, swap) = at_work(true);
        swaps.scanned(swap, Default::default());
        let pass = Pass {
            first: SegmentId(20),
            count: 4,
            victims: vec![SegmentId(3)],
        };
        swaps.announce(pass, true);
        swaps.opened_survivor(SegmentId(20));
        swaps.closed_survivor(SegmentId(20), 6, 100, None);
        hopeless(&swaps, SegmentId(10));
        hopeless(&swaps, SegmentId(20));
        let swap = Swap {
            add: vec![SegmentId(20)],
            remove: vec![SegmentId(3)],
            version_floor: 0,
        };
        swaps.scanned(swap, Default::default());
        assert!(is_given_up(&swaps) && swaps.queues().passes.is_victim(SegmentId(3)));
    }

    /// GU3: the token of a pass that evicted stands on, and a later eviction from a survivor names
    /// the victims too. So did the token of a pass that was given up before it evicted anything:
    /// each new key left a tombstone until the next start.
    #[test]
    fn evicted_objects_of_a_pass_that_was_given_up_stay_away() {
        for (has_evicted, token) in [(true, 9), (false, 0)] {
            let (swaps, swap) = at_work(true);
            swaps.give_up_work(swap, has_evicted);
            assert_eq!(swaps.eviction_victim(), SegmentId(token));
        }
        let (swaps, swap) = at_work(false);
        swaps.give_up_work(swap, false);
        let leaving: Vec<SegmentId> = swaps.queues().passes.leaving().collect();
        assert_eq!(leaving, VICTIMS);
    }

    /// GU4.
    #[test]
    fn a_kept_segment_is_never_settled() {
        let (swaps, swap) = at_work(false);
        assert!(swaps.survivor_durable(SegmentId(10)));
        swaps.scanned(swap.clone(), Default::default());
        swaps.keep(SegmentId(10));
        swaps.keep(SegmentId(3));
        assert_eq!(swaps.queues().passes.next(|_| true), Some(swap.clone()));
        swaps.swapped(&swap);
        let needs = swaps.list().needs();
        let settled = [9, 10, 3].map(|id| needs.is_settled(SegmentId(id)));
        assert_eq!(settled, [true, false, false]);
    }

    /// relocate::R1: no pass takes them, and while one was wanted, nothing else was cleaned.
    #[test]
    fn segments_that_no_pass_may_take_are_not_relocated() {
        for early in [true, false] {
            let (swaps, swap) = at_work(false);
            swaps.keep(SegmentId(3));
            if early {
                let wanted = SURVIVORS.map(|id| swaps.relocate(id));
                assert_eq!(wanted, [true, true]);
                assert!(swaps.relocations.is_asking());
            }
            swaps.give_up_work(swap, false);
            for id in [1, 2, 3, 9, 10, 77] {
                assert!(!swaps.relocate(SegmentId(id)), "segment {id}");
            }
            assert!(!swaps.relocations.is_asking());
            swaps.opened(SegmentId(4));
            assert!(swaps.relocate(SegmentId(4)) && swaps.relocations.is_asking());
            swaps.keep(SegmentId(4));
            assert!(!swaps.relocations.is_asking());
        }
    }
}
