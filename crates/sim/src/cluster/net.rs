//! The network: reachability, latency and loss of messages.

use super::coverage::{Class, Coverage};
use super::plan::Plan;
use duramen_base::random::Random;
use std::collections::BTreeMap;

/// An end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Place {
    Server(usize),
    Coordinator(usize),
    Client(usize),
}

/// A set of places.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Places(u64);

impl Places {
    pub const COORDINATORS: Places = Places(0xff << 16);
    pub const CLIENTS: Places = Places(u64::MAX << 24);

    pub fn of(places: impl IntoIterator<Item = Place>) -> Places {
        Places(places.into_iter().fold(0, |all, place| all | bit(place)))
    }

    #[must_use]
    pub fn without(self, other: Places) -> Places {
        Places(self.0 & !other.0)
    }

    pub fn all() -> Places {
        Places(u64::MAX)
    }

    fn has(self, place: Place) -> bool {
        self.0 & bit(place) != 0
    }
}

fn bit(place: Place) -> u64 {
    1 << match place {
        Place::Server(n) => n,
        Place::Coordinator(n) => 16 + n,
        Place::Client(n) => 24 + n,
    }
}

/// Nothing gets from these places to those.
#[derive(Clone, Copy, Debug)]
pub struct Cut {
    pub from: Places,
    pub to: Places,
    pub since_us: u64,
    pub until_us: u64,
    /// If set, the cut is on and off by turns, with this period.
    pub period_us: Option<u64>,
    pub class: Class,
}

/// The guarantees of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// May be lost, repeated, overtaken.
    Free,
    /// Arrives once or not at all.
    Once,
    /// Arrives in order, and is never lost by chance.
    Safe,
}

/// The fate of a message.
pub enum Fate {
    /// Arrives after this time, and a second time after the other one, if there is one.
    Arrives(u64, Option<u64>),
    /// Does not arrive; `true`: the sender is told some time later that the connection broke.
    Lost(bool),
}

pub struct Net {
    cuts: Vec<Cut>,
    /// Arrival time of the last message from one place to another.
    last_us: BTreeMap<(Place, Place), u64>,
    loss_ppm: u64,
    duplicate_ppm: u64,
    delay_ppm: u64,
    latency_us: u64,
    late_us: u64,
    ordered: bool,
    /// Servers handle messages up to this time later.
    lag_us: u64,
    /// The server of which that is true; none: of all, more and more.
    slow: Option<usize>,
    /// The seed of the differences between links; `None`: all links are alike.
    uneven: Option<u64>,
}

const MILLION: u64 = 1_000_000;
const QUICKEST_US: u64 = 30;
/// Loss of a bad link.
const LOSSY_PPM: u64 = 100_000;
const SLOW_US: u64 = 40_000;
/// The time in which servers become as slow as planned.
const SLOWER_US: u64 = 5_000_000;

impl Net {
    pub fn new(plan: &Plan) -> Net {
        Net {
            cuts: Vec::new(),
            last_us: BTreeMap::new(),
            loss_ppm: plan.loss_ppm,
            duplicate_ppm: plan.duplicate_ppm,
            delay_ppm: plan.delay_ppm,
            latency_us: plan.latency_us,
            late_us: plan.late_us,
            ordered: plan.ordered,
            lag_us: plan.lag_us,
            slow: plan
                .seed
                .is_multiple_of(2)
                .then_some(plan.seed as usize / 2 % plan.servers),
            uneven: plan.uneven.then_some(plan.seed),
        }
    }

    pub fn cut(&mut self, cut: Cut) {
        self.cuts.push(cut);
    }

    /// Removes all cuts, losses and delays.
    pub fn heal(&mut self) {
        self.cuts.clear();
        self.uneven = None;
        self.lag_us = 0;
        (self.loss_ppm, self.duplicate_ppm, self.delay_ppm) = (0, 0, 0);
    }

    /// The fault that keeps a message from arriving, if there is one.
    pub fn blocked(&mut self, now_us: u64, from: Place, to: Place) -> Option<Class> {
        self.cuts.retain(|cut| now_us < cut.until_us);
        let is_cut = |cut: &&Cut| {
            let is_up = cut.period_us.is_some_and(|period_us| {
                (now_us.saturating_sub(cut.since_us) / period_us.max(1)) % 2 == 1
            });
            cut.from.has(from) && cut.to.has(to) && !is_up
        };
        self.cuts.iter().find(is_cut).map(|cut| cut.class)
    }

    /// The loss of a link in one direction, and the longest time of a message.
    fn link(&self, from: Place, to: Place) -> (u64, u64) {
        let Some(seed) = self.uneven else {
            return (self.loss_ppm, self.latency_us);
        };
        let number = |place| u64::from(bit(place).trailing_zeros());
        let mut random = Random::new(seed ^ (number(from) + 1) << 40 ^ (number(to) + 1) << 20);
        let loss_ppm = match random.below(8) {
            0 => LOSSY_PPM,
            _ => self.loss_ppm,
        };
        let latency_us = match random.below(6) {
            0 => (10 * self.latency_us).min(SLOW_US),
            1 => self.latency_us / 4 + 1,
            _ => self.latency_us,
        };
        (loss_ppm, latency_us)
    }

    /// The longest time for which a message waits where it arrives.
    fn lag_us(&self, now_us: u64, to: Place) -> u64 {
        match (to, self.slow) {
            (Place::Server(n), Some(slow)) if n == slow => self.lag_us,
            (Place::Server(_), None) => self.lag_us * now_us.min(SLOWER_US) / SLOWER_US,
            _ => 0,
        }
    }

    /// The fate of a message that leaves now.
    pub fn fate(
        &mut self,
        now_us: u64,
        (from, to): (Place, Place),
        mode: Mode,
        random: &mut Random,
        coverage: &mut Coverage,
    ) -> Fate {
        if from == to {
            return Fate::Arrives(QUICKEST_US, None);
        }
        if let Some(class) = self.blocked(now_us, from, to) {
            coverage.fired(class);
            return Fate::Lost(random.one_in(2));
        }
        let (loss_ppm, latency_us) = self.link(from, to);
        if mode != Mode::Safe && random.below(MILLION) < loss_ppm {
            coverage.fired(Class::Loss);
            return Fate::Lost(random.one_in(2));
        }
        let mut delay_us = QUICKEST_US + random.below(latency_us);
        if random.below(MILLION) < self.delay_ppm {
            coverage.fired(Class::Delay);
            delay_us = delay_us * 10 + 1_000;
        }
        let lag_us = self.lag_us(now_us, to);
        if lag_us > 0 {
            delay_us += random.below(lag_us);
            coverage.fired(Class::Delay);
        }
        let last_us = self.last_us.entry((from, to)).or_default();
        if now_us + delay_us < *last_us {
            if self.ordered || mode == Mode::Safe {
                delay_us = *last_us - now_us;
            } else {
                coverage.fired(Class::Reorder);
            }
        }
        *last_us = (*last_us).max(now_us + delay_us);
        let again = mode == Mode::Free && random.below(MILLION) < self.duplicate_ppm;
        let again = again.then(|| {
            coverage.fired(Class::Duplicate);
            // Some arrive long after their requests have ended.
            let most_us = if random.one_in(8) {
                self.late_us
            } else {
                20 * self.latency_us
            };
            delay_us + random.below(most_us)
        });
        Fate::Arrives(delay_us, again)
    }
}
