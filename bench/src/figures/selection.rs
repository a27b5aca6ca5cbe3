//! The choice of the segments to clean, over distributions of writes: by cost and benefit, the
//! emptiest, the oldest, at random. In the simulation of `lfs`. Beineke18 §XI-C, Figures 17 to 20.

use super::lfs::{
    Age, DURAMEN, MEASURED, Order, Policy, QUICK, SEGMENT_OBJECTS, Simulation, WARM_UP, lfs,
};
use crate::figure::Figure;
use crate::harness::{
    Bound, Chart, Chooser, Distribution, Options, Random, Report, Result, Row, progress,
};

/// The strategies. DXRAM's own are `oldest`, since its segments are full when they are cleaned,
/// and `random`.
const STRATEGIES: [Policy; 4] = [
    Policy {
        name: "cost and benefit (Duramen)",
        ..DURAMEN
    },
    lfs("emptiest", Age::Greedy, Order::Chosen),
    lfs("oldest", Age::Oldest, Order::Chosen),
    lfs("random", Age::Random, Order::Chosen),
];
const SEED: u64 = 2018;
/// YCSB's exponent; the paper does not state its own.
const ZIPF: f64 = 0.99;
/// DXRAM updates ten neighbours at a time.
const BATCH: u32 = 10;

/// The order of overwrites.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Access {
    Sequential,
    Random,
    Zipf,
    HotAndCold,
}

impl Access {
    pub(super) const ALL: [Access; 4] = [
        Access::Sequential,
        Access::Random,
        Access::Zipf,
        Access::HotAndCold,
    ];

    pub(super) fn name(self) -> &'static str {
        match self {
            Access::Sequential => "sequential",
            Access::Random => "random",
            Access::Zipf => "Zipf",
            Access::HotAndCold => "hot and cold",
        }
    }

    /// The objects to overwrite, one after another.
    pub(super) fn objects(self, objects: u32) -> Box<dyn FnMut() -> u32> {
        let mut random = Random::new(SEED);
        let mut zipf = Chooser::new(Distribution::Zipfian(ZIPF), objects.into(), SEED);
        let (mut first, mut left) = (0, 0);
        let hot = objects / 10;
        Box::new(move || {
            if self == Access::Zipf {
                return zipf.next_key() as u32;
            }
            if left == 0 {
                left = BATCH;
                first = match self {
                    Access::Sequential | Access::Zipf => first + BATCH,
                    Access::Random => random.below(objects.into()) as u32,
                    // The hot objects are spread: a tenth of the batches.
                    Access::HotAndCold if random.percent(90) => {
                        random.below((hot / BATCH).max(1).into()) as u32 * 10 * BATCH
                    }
                    Access::HotAndCold => random.below(objects.into()) as u32,
                };
            }
            left -= 1;
            (first + BATCH - 1 - left) % objects
        })
    }
}

/// The choice of segments to clean over distributions of writes, simulated
#[derive(Clone, Debug, clap::Args)]
pub(super) struct SelectionFigure {
    /// Live data in percent of the disk
    #[arg(long, value_delimiter = ',', default_value = "50,70,80,90")]
    pub percent: Vec<usize>,
    /// Segments of the disk; with --quick a fifth of them
    #[arg(long, default_value_t = 250)]
    pub segments: usize,
}

impl Figure for SelectionFigure {
    const NAME: &'static str = "selection";

    fn run(&self, options: &Options) -> Result<Vec<Report>> {
        Ok(vec![report(self, options)])
    }
}

fn report(args: &SelectionFigure, options: &Options) -> Report {
    let about = "A simulation, the same on every machine: equal objects are overwritten on a disk of 512 objects a segment; when no segment is clean, some are read, and their live objects \
        are written again. New data, in percent of all that the disk reads and writes: the speed of logging where the disk is the limit. Overwrites come in batches of ten neighbours: \
        `sequential` from the first object to the last, `random`, `hot and cold` (90 % of the batches go to a tenth of the objects, which is spread); `Zipf` (exponent 0.99) one by one.";
    let title = "Selection of segments, simulated";
    let mut report = Report::new("selection", title, about, options);
    let segments = options.size(args.segments, args.segments / 5).max(20);
    let (warm_up, measured) = options.size((WARM_UP, MEASURED), QUICK);
    for access in Access::ALL {
        let mut rows = Vec::new();
        for &percent in &args.percent {
            let objects = segments * SEGMENT_OBJECTS * percent / 100;
            let mut row = Row::new().with("live % of the disk", percent);
            let mut shares = Vec::new();
            for policy in STRATEGIES {
                let simulation = Simulation::new(policy, segments, SEGMENT_OBJECTS, objects);
                let next = access.objects(objects as u32);
                let traffic = simulation.run_with(next, warm_up, measured);
                let share = 100.0 / traffic.write_cost();
                progress!(
                    "{} at {percent} %, {}: {share:.1} %",
                    access.name(),
                    policy.name
                );
                row = row.number(policy.name, share, 3);
                shares.push(share);
            }
            let best_other = shares[1..].iter().copied().fold(0.0, f64::max);
            rows.push(row.number(
                "cost and benefit / the best other",
                shares[0] / best_other,
                3,
            ));
            if percent == 80 {
                report.target(
                    format!("{} at 80 %: cost and benefit / random ≥ 1", access.name()),
                    shares[0] / shares[3],
                    Bound::AtLeast(1.0),
                );
            }
        }
        plot(&mut report, access, args, &rows);
        report.table(
            &format!("New data, % of the disk's traffic: {}", access.name()),
            rows,
        );
    }
    report.note(format!(
        "{segments} segments, {warm_up} writes per object before {measured} that are measured; seed {SEED}."
    ));
    report
}

fn plot(report: &mut Report, access: Access, args: &SelectionFigure, rows: &[Row]) {
    let cell = |row: &Row, name| row.get(name).and_then(serde_json::Value::as_f64);
    let bars = STRATEGIES.iter().map(|policy| {
        let values = rows.iter().map(|row| cell(row, policy.name));
        let values = values.map(|share| share.unwrap_or(f64::NAN));
        (policy.name.to_owned(), values.collect())
    });
    let groups = args.percent.iter().map(|percent| format!("{percent} %"));
    let chart = Chart::bars(
        &format!("Selection of segments: {}", access.name()),
        "new data, % of the disk's traffic",
        groups.collect(),
        bars.collect(),
    );
    report.plot(&access.name().replace(' ', "-").to_lowercase(), &chart);
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::Value;

    #[test]
    fn a_tiny_run_has_every_row_and_repeats_itself() {
        let args = SelectionFigure {
            percent: vec![80],
            segments: 20,
        };
        let figure = || report(&args, &Options::for_tests());
        let (first, second) = (figure(), figure());
        assert_eq!((first.tables.len(), first.targets.len()), (4, 4));
        for (table, again) in first.tables.iter().zip(&second.tables) {
            assert_eq!(table.rows[0].cells(), again.rows[0].cells());
            for policy in STRATEGIES {
                let share = table.rows[0].get(policy.name).and_then(Value::as_f64);
                assert!(share.is_some_and(|share| share > 0.0 && share <= 100.0));
            }
        }
    }

    /// Overwrites in order leave whole segments dead, which costs no strategy anything that looks
    /// for them.
    #[test]
    fn sequential_writes_cost_nothing_by_age() {
        for policy in STRATEGIES.into_iter().take(3) {
            let simulation = Simulation::new(policy, 40, 10, 200);
            let traffic = simulation.run_with(Access::Sequential.objects(200), 4, 4);
            assert_eq!(traffic.write_cost(), 1.0, "{}", policy.name);
        }
    }

    #[test]
    fn most_writes_are_hot() {
        let objects = 1000;
        let mut next = Access::HotAndCold.objects(objects);
        let mut counts = vec![0; objects as usize];
        (0..100_000).for_each(|_| counts[next() as usize] += 1);
        counts.sort_unstable();
        let hot: u32 = counts[900..].iter().sum();
        assert!((88_000..94_000).contains(&hot), "{hot}");
    }
}
