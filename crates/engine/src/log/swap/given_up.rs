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
//!   may take their windows, but no pass does. So what kills an entry of them stays needed in this
//!   life; in later ones it does as long as a victim is listed (swap::D4).
//! - GU3: its victims count as leaving for ever: an eviction from a survivor of it announces them
//!   too (swap::D12), and the token of a pass that has evicted an object stands on (swap::D11).
//! - GU4: a segment whose compaction was given up has two windows: the old one, which no cleaner
//!   takes, with the entries that are left, and the new one. It is *kept*: no pass takes it, as
//!   its Swap would remove the only durable copy of the entries in the old window.
//! - GU5: a pass is given up once, and told once, however many of its survivors, and copies of
//!   them, are found to be lost.

use super::{Life, Log, Pass, Pending, Queues, Swap, Swaps};
use duramen_base::ids::SegmentId;
use duramen_base::planted::{Bug, has_bug};
use std::sync::atomic::Ordering;

impl Swaps {
    /// GU4.
    pub fn keep(&self, segment: SegmentId) {
        if has_bug(Bug::StoppedIsCleaned) {
            return;
        }
        let mut list = self.change_list();
        if let Some(life) = list.segments.get_mut(&segment.0)
            && *life != Life::InVain
        {
            *life = Life::Kept;
        }
        drop(list);
        self.relocations.forget(&[segment]);
    }

    /// The pass at work cannot end. Its survivors are closed. `has_evicted`: an object of its
    /// victims has left memory.
    pub fn give_up_work(&self, swap: Swap, has_evicted: bool) {
        let mut queues = self.queues();
        let evicts = queues.evicting.take().is_some();
        queues.working.clear();
        self.given_up(&mut queues, swap, evicts && has_evicted);
        self.end_token(&mut queues, &[]);
    }

    /// Gives up the passes that wait for their Swap and have a hopeless survivor, unless the
    /// consumer has got their Swap.
    pub(super) fn give_up_hopeless(&self, queues: &mut Queues) {
        loop {
            let hopeless = &queues.hopeless;
            let is_hopeless = |pending: &Pending| {
                let mut survivors = pending.swap.add.iter();
                let is_pass = pending.done.is_none() && !pending.handed;
                is_pass && survivors.any(|segment| hopeless.contains(segment))
            };
            let at = queues.pending.iter().position(is_hopeless);
            let Some(pending) = at.and_then(|at| queues.pending.remove(at)) else {
                return;
            };
            self.given_up(queues, pending.swap, pending.evicted);
        }
    }

    fn given_up(&self, queues: &mut Queues, swap: Swap, evicted: bool) {
        queues.hopeless.retain(|known| !swap.add.contains(known));
        let mut list = self.change_list();
        for segment in &swap.add {
            if let Some(life) = list.segments.get_mut(&segment.0) {
                *life = Life::InVain;
            }
        }
        drop(list);
        self.relocations.forget(&swap.add);
        for segment in &swap.add {
            queues.written.remove(&segment.0);
            let mut waiting = queues.survivors.iter();
            match waiting.position(|waiting| waiting.segment == *segment) {
                // The consumer may be reading its bytes.
                Some(at) if queues.survivors[at].handed => queues.survivors[at].in_vain = true,
                Some(at) => {
                    if let Some(waiting) = queues.survivors.remove(at) {
                        let known = &self.windows[waiting.window as usize];
                        known.unwritten.store(false, Ordering::Release);
                    }
                }
                None => queues.abandoned.push(*segment),
            }
        }
        for victim in swap.remove {
            if evicted && !queues.evicted.contains(&victim) {
                queues.evicted.push(victim);
            }
            queues.stranded.push(victim);
        }
        self.progress.fetch_add(1, Ordering::Relaxed);
    }

    /// See [`Log::give_up_pass_of`].
    fn lose_survivor(&self, survivor: SegmentId) -> Option<bool> {
        let mut queues = self.queues();
        let needs = self.needs();
        let life = *needs.list.segments.get(&survivor.0)?;
        if life == Life::InVain {
            return Some(false);
        }
        // Not by the victims: a pass that evicts announces those of others too (swap::D11).
        let hopeless = &queues.hopeless;
        let is_lost = |pass: &Pass| hopeless.iter().any(|known| pass.has_survivor(known.0));
        let passes = needs.list.passes.iter();
        let its = passes.filter(|pass| pass.has_survivor(survivor.0));
        let was_lost = its.map(is_lost).reduce(|some, other| some || other);
        let was_lost = was_lost.filter(|_| life != Life::Settled)?;
        drop(needs);
        if !was_lost {
            queues.hopeless.push(survivor);
        }
        self.give_up_hopeless(&mut queues);
        Some(!was_lost)
    }
}

impl Log {
    /// This survivor of a pass will never be durable: the pass is given up as soon as its scan has
    /// ended, unless its Swap was handed out. `None`: it is no survivor that waits for a Swap.
    /// False: that of its pass was known before (GU5).
    pub(crate) fn give_up_pass_of(&self, survivor: SegmentId) -> Option<bool> {
        self.swaps.lose_survivor(survivor)
    }

    /// The consumer will not record this Swap: its pass may be given up.
    pub fn swap_withdrawn(&self, swap: &Swap) {
        let mut queues = self.swaps.queues();
        let mut pending = queues.pending.iter_mut();
        if let Some(pending) = pending.find(|pending| pending.swap == *swap) {
            pending.handed = false;
        }
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    const VICTIMS: [SegmentId; 2] = [SegmentId(1), SegmentId(2)];
    const SURVIVORS: [SegmentId; 2] = [SegmentId(9), SegmentId(10)];

    /// A pass with two victims and the survivors 9 and 10, of which the first one is durable.
    fn at_work(evicts: bool) -> (Swaps, Swap) {
        let swaps = Swaps::new(100, 100, 4, 100, 1);
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
        swaps.durable(SegmentId(9)).expect("it is known");
        let swap = Swap {
            add: SURVIVORS.to_vec(),
            remove: VICTIMS.to_vec(),
            version_floor: 0,
        };
        (swaps, swap)
    }

    fn hopeless(swaps: &Swaps, segment: SegmentId) {
        assert_eq!(swaps.lose_survivor(segment), Some(true));
    }

    fn is_given_up(swaps: &Swaps) -> bool {
        let needs = swaps.needs();
        let mut stay = VICTIMS.into_iter().chain(SURVIVORS);
        assert!(stay.all(|id| needs.tombstone(id, &[])));
        assert!(!SURVIVORS.into_iter().any(|id| needs.is_settled(id)));
        drop(needs);
        !swaps.is_waiting() && VICTIMS.into_iter().all(|id| swaps.is_victim(id))
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
            assert_eq!(swaps.next(false, |_| true), Some(later.clone()));
            swaps.finished(&later);
            assert!(is_given_up(&swaps));
            assert!(swaps.is_written(4) && swaps.is_written(5));
            // The consumer frees what it has written, and nothing else.
            assert_eq!(swaps.queues().abandoned, [SegmentId(9)]);
            assert!(swaps.queues().hopeless.is_empty());
        }
    }

    #[test]
    fn a_survivor_that_is_being_written_is_freed_afterwards() {
        let (swaps, swap) = at_work(false);
        swaps.queues().survivors[0].handed = true;
        swaps.give_up_work(swap, false);
        assert!(!swaps.is_written(5), "its bytes are being read");
        swaps.durable(SegmentId(10)).expect("it is known");
        assert!(swaps.is_written(5) && is_given_up(&swaps));
        let abandoned = swaps.queues().abandoned.clone();
        assert_eq!(abandoned, [SegmentId(9), SegmentId(10)]);
    }

    /// Its record may be durable: then the victims are gone.
    #[test]
    fn a_pass_whose_swap_was_handed_out_is_not_given_up() {
        let (swaps, swap) = at_work(false);
        swaps.scanned(swap.clone(), Default::default());
        swaps.durable(SegmentId(10)).expect("it is known");
        assert_eq!(swaps.next(false, |_| true), Some(swap.clone()));
        hopeless(&swaps, SegmentId(10));
        assert_eq!(swaps.next(false, |_| true), Some(swap.clone()));
        swaps.finished(&swap);
        assert!(swaps.needs().is_settled(SegmentId(10)));
        assert!(swaps.queues().hopeless.is_empty());
        assert_eq!(swaps.lose_survivor(SegmentId(10)), None);
    }

    /// GU5: each copy of a lost survivor counted as another pass.
    #[test]
    fn a_pass_is_given_up_once() {
        for early in [true, false] {
            let (swaps, swap) = at_work(false);
            if !early {
                swaps.scanned(swap.clone(), Default::default());
            }
            let told = [9, 9, 10, 10].map(|id| swaps.lose_survivor(SegmentId(id)));
            assert_eq!(told, [Some(true), Some(false), Some(false), Some(false)]);
            if early {
                swaps.scanned(swap, Default::default());
            }
            assert_eq!(swaps.lose_survivor(SegmentId(10)), Some(false));
            assert_eq!(swaps.lose_survivor(SegmentId(3)), None);
            assert!(swaps.queues().hopeless.is_empty());
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
        assert!(is_given_up(&swaps) && swaps.is_victim(SegmentId(3)));
    }

    /// GU3: the token of a pass that evicted stands on, and a later eviction from a survivor names
    /// the victims too. So did the token of a pass that was given up before it evicted anything:
    /// each new key left a tombstone until the next start.
    #[test]
    fn evicted_objects_of_a_pass_that_was_given_up_stay_away() {
        for (has_evicted, token) in [(true, 9), (false, 0)] {
            let (swaps, swap) = at_work(true);
            swaps.give_up_work(swap, has_evicted);
            assert_eq!(swaps.eviction_victim.load(Ordering::Acquire), token);
        }
        let (swaps, swap) = at_work(false);
        swaps.give_up_work(swap, false);
        let leaving: Vec<SegmentId> = swaps.queues().leaving().collect();
        assert_eq!(leaving, VICTIMS);
    }

    /// GU4.
    #[test]
    fn a_kept_segment_is_never_settled() {
        let (swaps, swap) = at_work(false);
        swaps.durable(SegmentId(10)).expect("it is known");
        swaps.scanned(swap.clone(), Default::default());
        swaps.keep(SegmentId(10));
        swaps.keep(SegmentId(3));
        assert_eq!(swaps.next(false, |_| true), Some(swap.clone()));
        swaps.finished(&swap);
        let needs = swaps.needs();
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
