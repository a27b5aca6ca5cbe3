//! The moves after which each master has its share: a pure function.
//!
//! A range weighs its bytes, and a little for each of its hashes: so the slots of a cluster
//! without data are spread evenly, too.
//!
//! **Invariants**
//! - E1: a move takes at most what its source has too much and what its target lacks, apart from
//!   the rest of one slot. So each move brings both nearer to their shares, and no move is taken
//!   back.
//! - E2: only whole slots move.
//! - E3: a target gets no more bytes than it has room for.

use duramen_base::ids::{KeyRange, RouteHash, ServerId, TableId};
use duramen_base::planted::{Bug, has_bug};

/// Most moves of a plan: the next plan goes on.
pub(super) const STEPS_MAX: usize = 256;
/// A difference to the share by less than this part of the mean stays.
const LEAST_PART: u64 = 16;
/// A whole tablet is moved instead of a part of another one if it has at least this part of what
/// should move, in percent.
const WHOLE_PERCENT: u64 = 75;

/// A master; see the module.
#[derive(Clone, Debug)]
pub(super) struct Master {
    pub id: ServerId,
    pub weight: u64,
    pub share: u64,
    /// Bytes that the master may get.
    pub room: u64,
    /// The tablets of the master that may move.
    pub tablets: Vec<Held>,
}

/// A tablet of a master.
#[derive(Clone, Debug)]
pub(super) struct Held {
    pub table: TableId,
    pub range: KeyRange,
    /// Bytes by range, in order.
    pub loads: Vec<(KeyRange, u64)>,
    /// Whether a part of it may move.
    pub may_be_cut: bool,
}

/// A move.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Step {
    pub table: TableId,
    pub range: KeyRange,
    pub from: ServerId,
    pub to: ServerId,
    pub bytes: u64,
}

fn width(range: &KeyRange) -> u128 {
    u128::from(range.last.0 - range.first.0) + 1
}

/// The part of a whole table's `weight` that these hashes have.
pub(super) fn part(weight: u64, hashes: u128) -> u64 {
    ((u128::from(weight) * (hashes >> 32)) >> 32) as u64
}

impl Held {
    /// The bytes of a part of this range. A load that is only partly in it counts with the same
    /// part.
    fn bytes(&self, range: &KeyRange) -> u64 {
        let from = self
            .loads
            .partition_point(|(load, _)| load.last < range.first);
        let some = self.loads[from..].iter();
        let some = some.take_while(|(load, _)| load.first <= range.last);
        let bytes = some.filter_map(|(load, bytes)| {
            let common = load.intersection(range)?;
            Some((u128::from(*bytes) * width(&common) / width(load)) as u64)
        });
        bytes.fold(0, u64::saturating_add)
    }

    fn weight(&self, range: &KeyRange, of_table: u64) -> u64 {
        self.bytes(range)
            .saturating_add(part(of_table, width(range)))
    }

    /// E2: whether it consists of whole slots.
    fn is_whole(&self) -> bool {
        let KeyRange { first, last } = self.range;
        first == RouteHash::first_of_slot(first.slot())
            && last == RouteHash::last_of_slot(last.slot())
    }

    /// Its last slots that weigh `amount` together, and `most` at most.
    fn tail(&self, (amount, most): (u64, u64), of_table: u64) -> Option<KeyRange> {
        let KeyRange { first, last } = self.range;
        let is_whole = last == RouteHash::last_of_slot(last.slot());
        let high = u32::from(last.slot()) + u32::from(is_whole);
        let is_whole = first == RouteHash::first_of_slot(first.slot());
        let low = u32::from(first.slot()) + u32::from(!is_whole);
        let slot = |n: u32| {
            let n = n as u16;
            KeyRange::new(RouteHash::first_of_slot(n), RouteHash::last_of_slot(n))
        };
        let (mut from, mut sum) = (high, 0u64);
        while from > low {
            let weight = self.weight(&slot(from - 1), of_table);
            if sum >= amount || sum.saturating_add(weight) > most {
                break;
            }
            (from, sum) = (from - 1, sum + weight);
        }
        (from < high).then(|| KeyRange::new(slot(from).first, slot(high - 1).last))
    }
}

impl Master {
    fn excess(&self) -> u64 {
        self.weight.saturating_sub(self.share)
    }

    fn lack(&self) -> u64 {
        self.share.saturating_sub(self.weight)
    }

    /// Takes the piece of its tablets that weighs about `amount`, and `most` at most: its table,
    /// range, bytes and weight.
    fn give(
        &mut self,
        (amount, most): (u64, u64),
        of_table: u64,
    ) -> Option<(TableId, KeyRange, u64, u64)> {
        let weights = self.tablets.iter();
        let weights: Vec<u64> = weights
            .map(|held| held.weight(&held.range, of_table))
            .collect();
        let all = || 0..self.tablets.len();
        let is_fit = |n: &usize| self.tablets[*n].is_whole() && weights[*n] <= most;
        let whole = all().filter(is_fit).max_by_key(|n| weights[*n]);
        let is_enough = |n: &usize| {
            u128::from(weights[*n]) * 100 >= u128::from(amount) * u128::from(WHOLE_PERCENT)
        };
        let cut = || {
            let longer = all().filter(|n| self.tablets[*n].may_be_cut && weights[*n] > most);
            let at = longer.max_by_key(|n| weights[*n])?;
            Some((at, self.tablets[at].tail((amount, most), of_table)?))
        };
        let (at, range) = match (whole.filter(is_enough), cut()) {
            (Some(at), _) => (at, self.tablets[at].range),
            (None, Some(cut)) => cut,
            (None, None) => whole.map(|at| (at, self.tablets[at].range))?,
        };
        let held = &mut self.tablets[at];
        let (table, bytes, weight) = (
            held.table,
            held.bytes(&range),
            held.weight(&range, of_table),
        );
        match held.range.split(range.first) {
            Some((rest, _)) => held.range = rest,
            None => drop(self.tablets.swap_remove(at)),
        }
        Some((table, range, bytes, weight))
    }
}

/// Whether some master is further from its share than the mean divided by `part`.
pub(super) fn is_uneven(masters: &[Master], part: u64) -> bool {
    let most = mean(masters) / part;
    let mut far = masters.iter().map(|of| of.excess().max(of.lack()));
    far.any(|far| far > most)
}

fn mean(masters: &[Master]) -> u64 {
    let sum: u128 = masters.iter().map(|of| u128::from(of.weight)).sum();
    (sum / masters.len().max(1) as u128) as u64
}

/// The moves, in order. `of_table`: the weight of a whole table's hashes.
pub(super) fn plan(mut masters: Vec<Master>, of_table: u64) -> Vec<Step> {
    let least = (mean(&masters) / LEAST_PART).max(1);
    let mut sources: Vec<usize> = (0..masters.len()).collect();
    let mut steps = Vec::new();
    while steps.len() < STEPS_MAX {
        let from = sources.iter().copied().max_by_key(|n| masters[*n].excess());
        let to = (0..masters.len()).max_by_key(|n| masters[*n].lack().min(masters[*n].room));
        let (Some(from), Some(to)) = (from, to) else {
            break;
        };
        let amount = match has_bug(Bug::BalanceSwings) {
            true => masters[from].excess() + masters[to].lack(),
            false => masters[from].excess().min(masters[to].lack()), // E1
        };
        let amount = amount.min(masters[to].room); // E3
        if from == to || amount < least {
            break;
        }
        let most = amount.saturating_add(least / 2).min(masters[to].room);
        let Some((table, range, bytes, weight)) = masters[from].give((amount, most), of_table)
        else {
            sources.retain(|n| *n != from);
            continue;
        };
        masters[from].weight = masters[from].weight.saturating_sub(weight);
        masters[to].weight = masters[to].weight.saturating_add(weight);
        masters[to].room = masters[to].room.saturating_sub(bytes);
        steps.push(Step {
            table,
            range,
            from: masters[from].id,
            to: masters[to].id,
            bytes,
        });
    }
    steps
}

#[cfg(test)]
mod tests {
    use super::*;
    use duramen_base::planted::with_bug;
    use duramen_base::random::Random;

    const MIB: u64 = 1 << 20;
    const OF_TABLE: u64 = 64 * MIB;

    fn slots(first: u16, last: u16) -> KeyRange {
        KeyRange::new(
            RouteHash::first_of_slot(first),
            RouteHash::last_of_slot(last),
        )
    }

    fn held(range: KeyRange, bytes: u64) -> Held {
        Held {
            table: TableId(1),
            range,
            loads: vec![(range, bytes)],
            may_be_cut: true,
        }
    }

    fn master(n: u32, tablets: Vec<Held>) -> Master {
        let weights = tablets.iter();
        let weight = weights.map(|held| held.weight(&held.range, OF_TABLE)).sum();
        Master {
            id: ServerId::new(n, 1),
            weight,
            share: 0,
            room: u64::MAX,
            tablets,
        }
    }

    /// Gives all the same share.
    fn equal(mut masters: Vec<Master>) -> Vec<Master> {
        let share = mean(&masters);
        masters.iter_mut().for_each(|of| of.share = share);
        masters
    }

    /// The masters after the moves.
    fn after(masters: &[Master], steps: &[Step]) -> Vec<Master> {
        let mut all = masters.to_vec();
        for step in steps {
            let at = |id: ServerId| masters.iter().position(|of| of.id == id).expect("known");
            let (from, to) = (at(step.from), at(step.to));
            let tablets = &mut all[from].tablets;
            let whose = tablets
                .iter()
                .position(|held| held.range.covers(&step.range));
            let old = tablets.remove(whose.expect("its own"));
            let moved = Held {
                range: step.range,
                ..old.clone()
            };
            let weight = moved.weight(&moved.range, OF_TABLE);
            for rest in [
                old.range.split(step.range.first).map(|(low, _)| low),
                step.range
                    .last
                    .next()
                    .and_then(|next| Some(old.range.split(next)?.1)),
            ] {
                all[from].tablets.extend(rest.map(|range| Held {
                    range,
                    ..old.clone()
                }));
            }
            all[to].tablets.push(moved);
            all[from].weight -= weight;
            all[to].weight += weight;
            all[to].room = all[to].room.saturating_sub(step.bytes);
        }
        all
    }

    fn quarter(n: u16) -> KeyRange {
        slots(n * 4096, n * 4096 + 4095)
    }

    /// A rolling restart of four members ended with 8192, 4096, 4096 and no slots.
    #[test]
    fn after_a_rolling_restart_one_whole_tablet_moves() {
        for bytes in [0, 100 * MIB] {
            let masters = equal(vec![
                master(0, vec![held(quarter(0), bytes), held(quarter(3), bytes)]),
                master(1, vec![held(quarter(1), bytes)]),
                master(2, vec![held(quarter(2), bytes)]),
                master(3, vec![]),
            ]);
            assert!(is_uneven(&masters, 4));
            let steps = plan(masters.clone(), OF_TABLE);
            assert_eq!(steps.len(), 1, "{steps:?}");
            assert_eq!((steps[0].from, steps[0].to), (masters[0].id, masters[3].id));
            assert!(steps[0].range == quarter(0) || steps[0].range == quarter(3));
            assert!(!is_uneven(&after(&masters, &steps), 100));
        }
    }

    /// A member that joined owned nothing.
    #[test]
    fn a_member_that_joins_gets_its_share_and_nothing_else_moves() {
        let mut masters: Vec<Master> = (0..4u16)
            .map(|n| master(n.into(), vec![held(quarter(n), 1000 * MIB)]))
            .collect();
        masters.push(master(4, vec![]));
        let masters = equal(masters);
        let steps = plan(masters.clone(), OF_TABLE);
        assert_eq!(steps.len(), 4, "{steps:?}");
        assert!(steps.iter().all(|step| step.to == masters[4].id));
        let after = after(&masters, &steps);
        assert!(!is_uneven(&after, 16), "{after:?}");
        assert_eq!(plan(after, OF_TABLE), []);
    }

    /// E1 to E3, of random clusters: and the next plan is empty.
    #[test]
    fn a_plan_brings_all_nearer_and_the_next_one_is_empty() {
        for seed in 0..300 {
            let masters = random(seed);
            let steps = plan(masters.clone(), OF_TABLE);
            let least = mean(&masters) / LEAST_PART;
            for (n, step) in steps.iter().enumerate() {
                assert_eq!(step.range.first.0 % (1 << 50), 0, "seed {seed}");
                assert_eq!(step.range.last.0 % (1 << 50), (1 << 50) - 1, "seed {seed}");
                let now = after(&masters, &steps[..=n]);
                for of in &now {
                    let before = masters
                        .iter()
                        .find(|old| old.id == of.id)
                        .expect("the same");
                    let far = |of: &Master| of.excess().max(of.lack());
                    assert!(far(of) <= far(before).max(least), "seed {seed}: {step:?}");
                }
            }
            let after = after(&masters, &steps);
            assert_eq!(plan(after, OF_TABLE), [], "seed {seed}");
        }
    }

    fn random(seed: u64) -> Vec<Master> {
        let mut random = Random::new(seed);
        let count = 2 + random.below(6) as usize;
        let mut tablets: Vec<Vec<Held>> = vec![Vec::new(); count];
        let mut next = 0u32;
        while next < 1 << 14 {
            let last = (next + random.below(4000) as u32).min((1 << 14) - 1);
            let range = slots(next as u16, last as u16);
            let parts = (next..=last).step_by(64).map(|first| {
                let end = (first + 63).min(last);
                (slots(first as u16, end as u16), random.below(20) * MIB)
            });
            let held = Held {
                loads: parts.collect(),
                may_be_cut: !random.one_in(4),
                ..held(range, 0)
            };
            tablets[random.index(count)].push(held);
            next = last + 1;
        }
        let masters = tablets.into_iter().enumerate();
        let masters = masters.map(|(n, tablets)| master(n as u32, tablets));
        let mut masters = equal(masters.collect());
        for of in &mut masters {
            of.room = [u64::MAX, random.below(4000) * MIB][random.index(2)];
        }
        masters
    }

    #[test]
    fn rooms_are_kept_and_slots_stay_whole() {
        let mut masters = equal(vec![
            master(0, vec![held(KeyRange::ALL, 1000 * MIB)]),
            master(1, vec![]),
        ]);
        masters[1].room = 100 * MIB;
        let steps = plan(masters.clone(), OF_TABLE);
        let bytes: u64 = steps.iter().map(|step| step.bytes).sum();
        assert!((80 * MIB..=100 * MIB).contains(&bytes), "{steps:?}");
        // One slot that weighs more than should move stays.
        let one = held(slots(7, 7), 1000 * MIB);
        let masters = equal(vec![master(0, vec![one]), master(1, vec![])]);
        assert_eq!(plan(masters, OF_TABLE), []);
    }

    #[test]
    fn what_takes_too_much_swings() {
        let swings = || {
            let whole = held(KeyRange::ALL, 1000 * MIB);
            let mut masters = equal(vec![master(0, vec![whole]), master(1, vec![])]);
            let mut rounds = 0;
            loop {
                let steps = plan(masters.clone(), OF_TABLE);
                rounds += 1;
                if steps.is_empty() || rounds > 10 {
                    return rounds > 10;
                }
                masters = after(&masters, &steps);
            }
        };
        assert!(!swings());
        assert!(with_bug(Bug::BalanceSwings, swings), "not found");
    }
}
