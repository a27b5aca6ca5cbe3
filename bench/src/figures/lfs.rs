//! A simulation of a log that is cleaned by cost and benefit: write cost against utilization, by
//! the age that the policy takes for a segment's stability. Rumble14 §9 and Figure 13, after
//! Rosenblum's simulator of LFS.
//!
//! The disk is a number of segments of equal objects. The simulator overwrites objects until no
//! segment is clean, then cleans passes of victims until enough segments are clean again. All live
//! objects of a pass are read, its victims become clean, and the objects go to survivors, which
//! stay open over passes and apart from new data. Time is the number of writes.
//!
//! **Invariants**
//! - S1: each object is live in exactly one place, and a segment counts its live objects exactly.
//! - S2: a pass ends with more clean segments than it found, or it has made the survivor longer.

use crate::figure::Figure;
use crate::harness::{Bound, Chart, Options, Random, Report, Result, Row, Series, progress};
use std::cmp::Reverse;

/// Objects of 4 KB in a segment of 2 MB, as LFS had.
pub(super) const SEGMENT_OBJECTS: usize = 512;
/// Live data of a pass, in segments: what is sorted together (RAMCloud).
const PASS_SEGMENTS: usize = 10;
/// Victims of a pass at most (Duramen).
const PASS_VICTIMS_MAX: usize = 64;
/// Cleaning ends when so many segments are clean, or a quarter of those that all objects leave.
const CLEAN_SEGMENTS: usize = 10;
/// Writes per object before the measurement, and in it. A cold object is written once in nine.
pub(super) const WARM_UP: usize = 30;
pub(super) const MEASURED: usize = 10;
/// The same with `--quick`, where the cost is not quite steady yet.
pub(super) const QUICK: (usize, usize) = (12, 4);
const SEED: u64 = 1992;

/// The age in the formula.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Age {
    /// None: the emptiest segments are cleaned.
    Greedy,
    /// None: segments are cleaned at random.
    Random,
    /// The opening of the segment alone, whatever in it is live.
    Oldest,
    /// The write of the youngest object that was put into the segment.
    Youngest,
    /// The mean of the writes of its live objects.
    Average,
    /// The opening of the segment.
    Segment,
}

/// The divisor of the formula.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cost {
    /// Reading the segment and writing its live part: `1 + u`.
    ReadAndWrite,
    /// Writing its live part, as segments are in memory: `u`.
    Write,
}

/// The order of a pass's live objects in survivors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Order {
    /// By the time of their last write.
    Objects,
    /// Victims by their opening, and the objects of each as they lie there.
    Victims,
    /// Victims as they were chosen.
    Chosen,
}

/// One curve.
#[derive(Clone, Copy, Debug)]
pub(super) struct Policy {
    pub name: &'static str,
    pub age: Age,
    pub cost: Cost,
    pub order: Order,
}

pub(super) const fn lfs(name: &'static str, age: Age, order: Order) -> Policy {
    let cost = Cost::ReadAndWrite;
    Policy {
        name,
        age,
        cost,
        order,
    }
}

const YOUNGEST: Policy = lfs("youngest object, sorted", Age::Youngest, Order::Objects);
const SEGMENT: Policy = lfs("segment, sorted", Age::Segment, Order::Objects);
pub(super) const DURAMEN: Policy = Policy {
    name: "segment / u, victims sorted (Duramen)",
    age: Age::Segment,
    cost: Cost::Write,
    order: Order::Victims,
};
const POLICIES: [Policy; 9] = [
    lfs("greedy, unsorted", Age::Greedy, Order::Chosen),
    YOUNGEST,
    lfs("youngest object, unsorted", Age::Youngest, Order::Chosen),
    lfs("average object, sorted", Age::Average, Order::Objects),
    lfs("average object, unsorted", Age::Average, Order::Chosen),
    SEGMENT,
    lfs("segment, unsorted", Age::Segment, Order::Chosen),
    Policy {
        name: "segment / u, sorted (RAMCloud)",
        age: Age::Segment,
        cost: Cost::Write,
        order: Order::Objects,
    },
    DURAMEN,
];

/// The pattern of writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Pattern {
    /// 90 % of the writes go to 10 % of the objects.
    HotAndCold,
    Uniform,
}

impl Pattern {
    fn name(self) -> &'static str {
        match self {
            Pattern::HotAndCold => "hot and cold",
            Pattern::Uniform => "uniform",
        }
    }

    fn next(self, objects: u64, random: &mut Random) -> u32 {
        let hot = objects / 10;
        let object = match self {
            Pattern::Uniform => random.below(objects),
            Pattern::HotAndCold if random.percent(90) => random.below(hot),
            Pattern::HotAndCold => hot + random.below(objects - hot),
        };
        object as u32
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Clean,
    Open,
    Closed,
}

struct Segment {
    state: State,
    /// The objects in the order in which they were put here; some have moved on.
    objects: Vec<u32>,
    live: usize,
    opened: u64,
    youngest: u64,
    /// Sum of the last writes of its live objects.
    written_sum: u64,
}

/// Last write and place of an object.
#[derive(Clone, Copy)]
struct Object {
    written: u64,
    segment: u32,
    slot: u32,
}

/// Traffic, in objects.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Traffic {
    written: u64,
    /// Read by the cleaner: whole segments, unless nothing in them is live.
    read: u64,
    moved: u64,
}

impl Traffic {
    /// The write cost of LFS: all traffic of the disk per byte of new data.
    pub(super) fn write_cost(&self) -> f64 {
        (self.written + self.read + self.moved) as f64 / self.written as f64
    }

    /// Written bytes per byte of new data, where segments are cleaned from memory.
    pub(super) fn written_per_byte(&self) -> f64 {
        (self.written + self.moved) as f64 / self.written as f64
    }
}

pub(super) struct Simulation {
    policy: Policy,
    segment_objects: usize,
    segments: Vec<Segment>,
    objects: Vec<Object>,
    clean: Vec<u32>,
    /// Open segments for new data and for survivors.
    head: Option<u32>,
    survivor: Option<u32>,
    now: u64,
    traffic: Traffic,
}

impl Simulation {
    /// A disk with all objects written once, in their order.
    pub(super) fn new(
        policy: Policy,
        segments: usize,
        segment_objects: usize,
        objects: usize,
    ) -> Simulation {
        assert!(
            objects < segments.saturating_sub(2) * segment_objects,
            "open segments need room"
        );
        let segment = || Segment {
            state: State::Clean,
            objects: Vec::with_capacity(segment_objects),
            live: 0,
            opened: 0,
            youngest: 0,
            written_sum: 0,
        };
        let mut simulation = Simulation {
            policy,
            segment_objects,
            segments: (0..segments).map(|_| segment()).collect(),
            objects: Vec::with_capacity(objects),
            clean: (0..segments as u32).rev().collect(),
            head: None,
            survivor: None,
            now: 0,
            traffic: Traffic::default(),
        };
        for object in 0..objects as u32 {
            simulation.now += 1;
            let head = simulation.opened(simulation.head);
            simulation.head = Some(head);
            simulation.objects.push(Object {
                written: simulation.now,
                segment: 0,
                slot: 0,
            });
            simulation.put(head, object);
        }
        simulation
    }

    fn overwrite(&mut self, object: u32) {
        self.now += 1;
        self.traffic.written += 1;
        // A clean segment is left to survivors: they may need one before a victim's is clean.
        let is_full = |window: u32| self.is_full(window);
        if self.head.is_none_or(is_full) && self.clean.len() <= 1 {
            while self.clean.len() < self.clean_wanted() {
                self.clean_pass();
            }
        }
        self.remove(object);
        self.objects[object as usize].written = self.now;
        let head = self.opened(self.head);
        self.head = Some(head);
        self.put(head, object);
    }

    /// Clean segments at which cleaning ends: fewer on a disk that is nearly full.
    fn clean_wanted(&self) -> usize {
        let spare = self.segments.len() - self.objects.len().div_ceil(self.segment_objects);
        (spare / 4).clamp(2, CLEAN_SEGMENTS)
    }

    fn is_full(&self, segment: u32) -> bool {
        self.segments[segment as usize].objects.len() == self.segment_objects
    }

    /// This segment if it has room, else a clean one in its stead.
    fn opened(&mut self, open: Option<u32>) -> u32 {
        if let Some(open) = open {
            if !self.is_full(open) {
                return open;
            }
            self.segments[open as usize].state = State::Closed;
        }
        let window = self.clean.pop().expect("a segment is clean");
        let segment = &mut self.segments[window as usize];
        (segment.state, segment.opened) = (State::Open, self.now);
        (segment.youngest, segment.written_sum, segment.live) = (0, 0, 0);
        segment.objects.clear();
        window
    }

    fn put(&mut self, window: u32, object: u32) {
        let its = &mut self.objects[object as usize];
        let segment = &mut self.segments[window as usize];
        (its.segment, its.slot) = (window, segment.objects.len() as u32);
        segment.objects.push(object);
        segment.live += 1;
        segment.written_sum += its.written;
        segment.youngest = segment.youngest.max(its.written);
    }

    fn remove(&mut self, object: u32) {
        let its = self.objects[object as usize];
        let segment = &mut self.segments[its.segment as usize];
        segment.live -= 1;
        segment.written_sum -= its.written;
    }

    /// Benefit over cost; the larger, the sooner the segment is cleaned.
    fn score(&self, segment: &Segment) -> f64 {
        let u = segment.live as f64 / self.segment_objects as f64;
        let age = match self.policy.age {
            Age::Greedy => return 1.0 - u,
            Age::Random => {
                return Random::new(self.now ^ segment.opened << 20).below(1 << 30) as f64;
            }
            Age::Oldest => return (self.now - segment.opened) as f64,
            Age::Youngest => self.now - segment.youngest,
            Age::Average => self.now - segment.written_sum / (segment.live as u64).max(1),
            Age::Segment => self.now - segment.opened,
        };
        let cost = match self.policy.cost {
            Cost::ReadAndWrite => 1.0 + u,
            Cost::Write => u.max(1e-6),
        };
        // One segment more, as in `select`: a new one has an age too.
        (1.0 - u) * (age + self.segment_objects as u64) as f64 / cost
    }

    /// The victims of a pass, best first: as many as fill the survivors of a pass, and more if
    /// these would free nothing.
    fn victims(&self) -> Vec<u32> {
        let numbered = self.segments.iter().zip(0..);
        let mut candidates: Vec<(f64, u32)> = numbered
            .filter(|(segment, _)| {
                segment.state == State::Closed && segment.live < self.segment_objects
            })
            .map(|(segment, window)| (self.score(segment), window))
            .collect();
        candidates.sort_unstable_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
        let live_max = PASS_SEGMENTS.min(self.segments.len() / 8).max(1) * self.segment_objects;
        let (mut live, mut victims) = (0, Vec::new());
        for (_, window) in candidates {
            let gains = victims.len() > usize::div_ceil(live, self.segment_objects);
            let its = self.segments[window as usize].live;
            let is_enough = live + its > live_max || victims.len() >= PASS_VICTIMS_MAX;
            if gains && is_enough {
                break;
            }
            live += its;
            victims.push(window);
        }
        victims
    }

    fn clean_pass(&mut self) {
        let mut victims = self.victims();
        assert!(!victims.is_empty(), "nothing has died");
        if self.policy.order == Order::Victims {
            victims.sort_by_key(|window| self.segments[*window as usize].opened);
        }
        let mut live = Vec::new();
        for &window in &victims {
            let segment = &mut self.segments[window as usize];
            let objects = &self.objects;
            let is_here = |(slot, object): (u32, &u32)| {
                let its = objects[*object as usize];
                (its.segment, its.slot) == (window, slot)
            };
            let kept = (0..).zip(&segment.objects).filter(|it| is_here(*it));
            live.extend(kept.map(|(_, object)| *object));
            if segment.live > 0 {
                self.traffic.read += self.segment_objects as u64;
            }
            segment.state = State::Clean;
            self.clean.push(window);
        }
        if self.policy.order == Order::Objects {
            live.sort_by_key(|object| self.objects[*object as usize].written);
        }
        self.traffic.moved += live.len() as u64;
        for object in live {
            let survivor = self.opened(self.survivor);
            self.survivor = Some(survivor);
            self.put(survivor, object);
        }
    }

    /// Traffic of overwrites after as many that the effect of the beginning has gone.
    fn run(self, pattern: Pattern, warm_up: usize, measured: usize) -> Traffic {
        let mut random = Random::new(SEED);
        let objects = self.objects.len() as u64;
        self.run_with(|| pattern.next(objects, &mut random), warm_up, measured)
    }

    /// [`run`](Self::run), of the objects that `next` gives.
    pub(super) fn run_with(
        mut self,
        mut next: impl FnMut() -> u32,
        warm_up: usize,
        measured: usize,
    ) -> Traffic {
        let objects = self.objects.len();
        for _ in 0..objects * warm_up {
            self.overwrite(next());
        }
        self.traffic = Traffic::default();
        for _ in 0..objects * measured {
            self.overwrite(next());
        }
        self.traffic
    }
}

/// A simulation of cleaning by cost and benefit: write cost by the age that the policy uses
#[derive(Clone, Debug, clap::Args)]
pub(super) struct LfsFigure {
    /// Only these utilizations of the disk, in percent
    #[arg(
        long,
        value_delimiter = ',',
        default_value = "10,20,30,40,50,60,70,75,80,85,90,95"
    )]
    pub percent: Vec<usize>,
    /// Segments of the disk; with --quick a fifth of them
    #[arg(long, default_value_t = 250)]
    pub segments: usize,
}

impl Figure for LfsFigure {
    const NAME: &'static str = "lfs";

    fn run(&self, options: &Options) -> Result<Vec<Report>> {
        Ok(vec![report(self, options)])
    }
}

/// One point of all curves.
struct Cell {
    pattern: Pattern,
    percent: usize,
    policy: Policy,
    traffic: Traffic,
}

fn report(args: &LfsFigure, options: &Options) -> Report {
    let about = "A simulation, the same on every machine: objects of 4 KB in segments of 2 MB, overwritten at random; when no segment is \
        clean, victims are cleaned by benefit over cost, `(1 - u) · age / (1 + u)`, or, where the curve says `/ u`, `(1 - u) · age / u`. The curves \
        differ in the age: of the youngest object in the segment (LFS's paper), of its live objects on average, or of the segment itself \
        (RAMCloud); `greedy` takes the emptiest. `sorted`: the live objects of a pass go to survivors by age; `victims sorted`: its victims are \
        emptied oldest first, and objects stay in the order of their segment; `unsorted`: as the victims were chosen. Hot and cold: 90 % of the writes go to 10 % of the objects. \
        Write cost: bytes written and read, per byte of new data; a cleaner whose segments are in memory reads nothing: `written` leaves reads out.";
    let title = "Cleaning by cost and benefit, simulated";
    let mut report = Report::new("lfs", title, about, options);
    let segments = options.size(args.segments, args.segments / 5).max(20);
    let cells = cells(args, options, segments);
    for pattern in [Pattern::HotAndCold, Pattern::Uniform] {
        let name = pattern.name();
        let own: Vec<&Cell> = cells.iter().filter(|c| c.pattern == pattern).collect();
        let series = POLICIES.iter().map(|policy| Series {
            name: policy.name.to_owned(),
            points: of(&own, policy.name)
                .map(|c| (c.percent as f64, c.traffic.write_cost()))
                .collect(),
        });
        let chart = Chart::lines(
            &format!("Write cost, {name}"),
            "utilization of the disk, %",
            "bytes moved per byte of new data",
            series.collect(),
        );
        report.plot(&name.replace(' ', "-"), &chart);
        let table = |of: fn(&Traffic) -> f64| rows(&own, &args.percent, of);
        report.table(&format!("Write cost, {name}"), table(Traffic::write_cost));
        report.table(
            &format!("Written per byte of new data, {name}"),
            table(Traffic::written_per_byte),
        );
    }
    targets(&mut report, &cells);
    let (warm_up, measured) = options.size((WARM_UP, MEASURED), QUICK);
    report.note(format!(
        "{segments} segments of {SEGMENT_OBJECTS} objects, {warm_up} writes per object before {measured} that are measured; a pass has at most \
         {} segments of live objects, and cleaning goes on until {CLEAN_SEGMENTS} segments are clean, or a quarter of those that all objects leave. Seed {SEED}.",
        PASS_SEGMENTS.min(segments / 8)
    ));
    report
}

fn cells(args: &LfsFigure, options: &Options, segments: usize) -> Vec<Cell> {
    let writes = options.size((WARM_UP, MEASURED), QUICK);
    let mut jobs: Vec<(Pattern, usize, Policy)> = Vec::new();
    for pattern in [Pattern::HotAndCold, Pattern::Uniform] {
        for &percent in &args.percent {
            jobs.extend(POLICIES.map(|policy| (pattern, percent, policy)));
        }
    }
    // The longest first, so that all threads end together.
    jobs.sort_by_key(|(_, percent, _)| Reverse(*percent));
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let next = std::sync::atomic::AtomicUsize::new(0);
    let work = || {
        let mut done = Vec::new();
        while let Some(&(pattern, percent, policy)) =
            jobs.get(next.fetch_add(1, std::sync::atomic::Ordering::Relaxed))
        {
            let objects = segments * SEGMENT_OBJECTS * percent / 100;
            let simulation = Simulation::new(policy, segments, SEGMENT_OBJECTS, objects);
            let traffic = simulation.run(pattern, writes.0, writes.1);
            progress!(
                "{} at {percent} %, {}: write cost {:.2}",
                pattern.name(),
                policy.name,
                traffic.write_cost()
            );
            done.push(Cell {
                pattern,
                percent,
                policy,
                traffic,
            });
        }
        done
    };
    let mut cells: Vec<Cell> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        let done = threads.into_iter();
        done.flat_map(|thread| thread.join().expect("a simulation does not panic"))
            .collect()
    });
    cells.sort_by_key(|cell| cell.percent);
    cells
}

/// The points of a policy.
fn of<'a>(cells: &'a [&Cell], name: &'a str) -> impl Iterator<Item = &'a Cell> + 'a {
    cells
        .iter()
        .copied()
        .filter(move |cell| cell.policy.name == name)
}

/// A row per utilization, a column per policy.
fn rows(cells: &[&Cell], percents: &[usize], of: fn(&Traffic) -> f64) -> Vec<Row> {
    let row = |percent: &usize| {
        let start = Row::new().with("utilization %", *percent as u64);
        POLICIES.iter().fold(start, |row, policy| {
            let cell = cells
                .iter()
                .find(|c| c.percent == *percent && c.policy.name == policy.name);
            let value = cell.map_or(f64::NAN, |cell| of(&cell.traffic));
            row.number(policy.name, value, 3)
        })
    };
    percents.iter().map(row).collect()
}

/// The paper's result, and the price of Duramen's simpler order.
fn targets(report: &mut Report, cells: &[Cell]) {
    let at = |pattern: Pattern, policy: Policy, of: fn(&Traffic) -> f64| {
        let cell = cells
            .iter()
            .find(|c| (c.pattern, c.percent, c.policy.name) == (pattern, 90, policy.name));
        cell.map_or(f64::NAN, |cell| of(&cell.traffic))
    };
    let hot = |policy| at(Pattern::HotAndCold, policy, Traffic::write_cost);
    report.target(
        "hot and cold at 90 %, sorted: write cost by the youngest object / by the segment ≥ 1.7",
        hot(YOUNGEST) / hot(SEGMENT),
        Bound::AtLeast(1.7),
    );
    report.target(
        "hot and cold at 90 %: write cost of Duramen's selection / by the segment, sorted ≤ 1.1",
        hot(DURAMEN) / hot(SEGMENT),
        Bound::AtMost(1.1),
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    fn simulation(policy: Policy, segments: usize, objects: usize) -> Simulation {
        Simulation::new(policy, segments, 4, objects)
    }

    /// S1, by counting everything anew.
    fn check(simulation: &Simulation) {
        let mut live = vec![(0, 0); simulation.segments.len()];
        for (object, number) in simulation.objects.iter().zip(0..) {
            let segment = &simulation.segments[object.segment as usize];
            assert_eq!(segment.objects[object.slot as usize], number);
            assert_ne!(segment.state, State::Clean, "object {number}");
            live[object.segment as usize].0 += 1;
            live[object.segment as usize].1 += object.written;
        }
        for (segment, live) in simulation.segments.iter().zip(live) {
            if segment.state != State::Clean {
                assert_eq!((segment.live, segment.written_sum), live);
            }
        }
    }

    #[test]
    fn every_object_is_live_in_one_place_whatever_the_policy() {
        for policy in POLICIES {
            for pattern in [Pattern::HotAndCold, Pattern::Uniform] {
                let mut simulation = simulation(policy, 40, 130);
                let mut random = Random::new(7);
                for _ in 0..5_000 {
                    simulation.overwrite(pattern.next(130, &mut random));
                }
                check(&simulation);
                assert!(simulation.traffic.moved > 0, "{}", policy.name);
            }
        }
    }

    /// Overwritten in their order, objects leave whole segments behind them, which cost nothing.
    #[test]
    fn a_log_that_is_overwritten_in_order_costs_nothing() {
        for policy in POLICIES {
            let mut simulation = simulation(policy, 20, 20);
            for write in 0..1_000 {
                simulation.overwrite(write % 20);
            }
            assert_eq!(simulation.traffic.write_cost(), 1.0, "{}", policy.name);
        }
    }

    /// Three of four objects are live in each segment: a byte of room costs three that are moved
    /// and four that are read.
    #[test]
    fn the_cost_is_that_of_the_live_part_of_the_victims() {
        let mut simulation = simulation(POLICIES[0], 20, 64);
        for segment in 0..16 {
            simulation.overwrite(segment * 4);
        }
        // The four segments of the head were written after the 16, and are full of live objects.
        simulation.clean_pass();
        let traffic = simulation.traffic;
        assert_eq!(traffic.moved, 3 * traffic.read / 4);
        check(&simulation);
    }

    /// The ages of one segment, of which one object was overwritten.
    #[test]
    fn each_age_has_its_own_source() {
        let score = |age| {
            let policy = lfs("", age, Order::Chosen);
            let mut simulation = simulation(policy, 20, 8);
            simulation.overwrite(0); // at 9; objects 1, 2 and 3 are of 2, 3 and 4
            simulation.now = 104;
            // The formula, solved for the age; `score` adds the four objects of a segment.
            simulation.score(&simulation.segments[0]) * 1.75 / 0.25 - 4.0
        };
        assert_eq!(score(Age::Youngest).round(), 100.0);
        assert_eq!(score(Age::Average).round(), 101.0);
        assert_eq!(score(Age::Segment).round(), 103.0);
    }

    /// Objects that were put into a survivor are older than it.
    #[test]
    fn a_survivor_keeps_the_ages_of_its_objects_and_gets_a_new_one_itself() {
        let mut simulation = simulation(SEGMENT, 20, 64);
        for segment in 0..8 {
            simulation.overwrite(segment * 4);
        }
        simulation.clean_pass();
        let survivor = &simulation.segments[simulation.survivor.unwrap() as usize];
        assert_eq!(survivor.opened, 72);
        assert!(survivor.youngest <= 64, "{}", survivor.youngest);
        let written = |object: &u32| simulation.objects[*object as usize].written;
        assert!(survivor.objects.is_sorted_by_key(written));
    }

    #[test]
    fn the_age_of_the_youngest_object_is_worse_than_that_of_the_segment() {
        let cost = |policy| {
            let simulation = Simulation::new(policy, 100, 64, 5760);
            simulation.run(Pattern::HotAndCold, 30, 10).write_cost()
        };
        let (youngest, segment) = (cost(YOUNGEST), cost(SEGMENT));
        assert!(youngest > 1.2 * segment, "{youngest} and {segment}");
    }
}
