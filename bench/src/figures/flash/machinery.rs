//! The cost of a page that is in RAM [Badam11 §3.7, Table 4]: each step by itself, and the whole.

use super::FlashArgs;
use super::tool::{Bench, Run, arguments};
use crate::harness::{Bound, Doing, Failure, Random, Report, Result, Row, median, progress};
use duramen_alloc::measured::{self, Directory, Page};
use duramen_alloc::{Faults, Options};
use duramen_base::units::MIB;
use rustix::time::{ClockId, clock_gettime};
use std::hint::black_box;

const OBJECT_BYTES: u64 = 128;
/// Objects, each on a page of its own; and pages that are shown at once.
const OBJECTS: u64 = 4 * MIB / OBJECT_BYTES;
const SHOWN: u64 = 128;
const PAGE_BYTES: u64 = 4096;
const RAM_BYTES: u64 = 64 * MIB;
/// Entries of the paper's directory.
const ENTRIES: u32 = 1_000_000;
/// The columns: mechanism, and whether the access writes.
const KINDS: [(&str, Faults, bool); 4] = [
    ("userfaultfd, read", Faults::Userfault, false),
    ("userfaultfd, write", Faults::Userfault, true),
    ("mprotect, read", Faults::Protect, false),
    ("mprotect, write", Faults::Protect, true),
];

/// A figure of each kind of access, in µs of processor time.
type Each = [f64; KINDS.len()];

const ABOUT: &str = "Microseconds of processor time, one thread; all data are in RAM, as objects of 128 bytes in the cache, but not as pages. \
    Each row is measured by itself. TLB miss: a read of a line that is in no cache, on pages of 4 KiB, minus one on large pages. Look-up: \
    in a directory of a million chunks, at random. Materialisation: the library brings a page, whose object is in its cache, without a fault. \
    Dematerialisation: it takes pages away, 32 at a time; of pages that were written to it first moves the content into its cache. Fault: \
    delivery of a signal whose handler does nothing but skip the access. Whole: random accesses by a program, each of which brings a page while \
    another one leaves. `the kernel alone`: a fault by userfaultfd, a page copied, and pages taken away 32 at a time, without a library.";

/// Runs the part.
///
/// # Errors
/// Of the programs and of the library.
pub fn run(args: &FlashArgs, bench: &Bench) -> Result<Report> {
    let title = "Flash as memory: what a page costs that is in RAM";
    let mut report = Report::new("flash-machinery", title, ABOUT, &args.options);
    let tlb = tlb_miss(args, bench)?;
    let look_up = look_up(args)?;
    let delivery = [
        fault(args, bench, "userfaultfd")?,
        fault(args, bench, "mprotect")?,
    ];
    let steps = [
        steps(args, bench, Faults::Userfault)?,
        steps(args, bench, Faults::Protect)?,
    ];
    let (kernel, whole) = whole(args, bench)?;
    let of = |kind: usize| &steps[usize::from(KINDS[kind].1 == Faults::Protect)];
    let rows: [(&str, f64, Each); 5] = [
        ("TLB miss", 0.014, [tlb.0; 4]),
        ("look-up of the address", 0.046, [look_up; 4]),
        (
            "materialisation",
            0.138,
            std::array::from_fn(|kind| of(kind)[usize::from(KINDS[kind].2)].0),
        ),
        (
            "dematerialisation",
            0.172,
            std::array::from_fn(|kind| of(kind)[usize::from(KINDS[kind].2)].1),
        ),
        (
            "fault",
            0.666,
            std::array::from_fn(|kind| delivery[usize::from(KINDS[kind].1 == Faults::Protect)]),
        ),
    ];
    let sums: Each = std::array::from_fn(|kind| rows.iter().map(|(_, _, us)| us[kind]).sum());
    let shares: Each = std::array::from_fn(|kind| sums[kind] / whole[kind]);
    let mut table: Vec<Row> = rows
        .iter()
        .map(|(what, paper, us)| row(what, us, *paper))
        .collect();
    let paper_sum = rows.iter().map(|(_, paper, _)| paper).sum();
    table.push(row("sum", &sums, paper_sum));
    table.push(row("the whole", &whole, 0.833));
    table.push(row("sum / the whole", &shares, paper_sum / 0.833));
    report.table("Costs, µs (Table 4)", table);
    for kind in 0..2 {
        report.target(
            format!(
                "page from RAM and back / the kernel alone, {} ≤ 1.3",
                KINDS[kind].0
            ),
            whole[kind] / kernel,
            Bound::AtMost(1.3),
        );
    }
    report.note(format!(
        "The kernel alone: {kernel:.3} µs. A read of a line in no cache: {:.3} µs on pages of 4 KiB, {:.3} µs on large ones.",
        tlb.1, tlb.2
    ));
    Ok(report)
}

fn row(what: &str, us: &Each, paper: f64) -> Row {
    let row = Row::new().with("cost", what);
    let row = KINDS
        .iter()
        .zip(us)
        .fold(row, |row, ((kind, _, _), us)| row.number(kind, *us, 3));
    row.number("the paper's", paper, 3)
}

/// Processor time of a run for each of `count` steps of all its operations, in µs.
fn cpu_us(run: &Run, count: f64) -> f64 {
    1e6 * run.number("cpu_seconds") / count
}

/// The median, over rounds, of a program's processor time for each access, in µs.
fn access_us(args: &FlashArgs, bench: &Bench, kind: &str, more: &[(&str, u64)]) -> Result<f64> {
    let mut given = arguments(more);
    given.extend(arguments(&[
        ("operations", args.options.size(2000, 200)),
        ("warm-up", 20),
    ]));
    let megabytes = more.iter().map(|(_, megabytes)| *megabytes).sum::<u64>();
    let ram = RAM_BYTES + megabytes * MIB;
    let mut found = Vec::new();
    for _ in 0..args.options.rounds() {
        for run in bench.run("costs", kind, ram, &given)? {
            found.push(cpu_us(&run, run.number("accesses")));
        }
    }
    Ok(median(&found))
}

/// A TLB miss, and a read that has one, and a read that has none, in µs.
fn tlb_miss(args: &FlashArgs, bench: &Bench) -> Result<(f64, f64, f64)> {
    let size = [("data-mb", args.options.size(8192, 1024))];
    let small = access_us(args, bench, "small", &size)?;
    let large = match access_us(args, bench, "huge", &size) {
        Ok(large) => large,
        Err(failure) => {
            progress!("no large pages: {failure}");
            f64::NAN
        }
    };
    Ok((small - large, small, large))
}

fn fault(args: &FlashArgs, bench: &Bench, mechanism: &str) -> Result<f64> {
    access_us(args, bench, mechanism, &[])
}

/// Seconds of processor time of this thread.
fn cpu_seconds() -> f64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

fn look_up(args: &FlashArgs) -> Result<f64> {
    let directory = Directory::new(ENTRIES).doing("memory for a directory of addresses")?;
    let count = args.options.size(20_000_000, 2_000_000);
    let mut random = Random::new(3);
    let mut found = Vec::new();
    for _ in 0..args.options.rounds() {
        let begun = cpu_seconds();
        for _ in 0..count {
            let page = random.below(directory.pages());
            assert!(black_box(directory.finds(page)), "all pages have objects");
        }
        found.push(1e6 * (cpu_seconds() - begun) / f64::from(count));
    }
    Ok(median(&found))
}

/// Materialisation and dematerialisation for a read and for a write, in µs a page.
fn steps(args: &FlashArgs, bench: &Bench, faults: Faults) -> Result<[(f64, f64); 2]> {
    bench.clear();
    let options = Options {
        flash_file: bench.flash(),
        flash_bytes: RAM_BYTES + 4 * OBJECTS * OBJECT_BYTES,
        ram_bytes: RAM_BYTES,
        page_buffer_bytes: SHOWN * PAGE_BYTES,
        faults: Some(faults),
        ..Options::default()
    };
    duramen_alloc::init(&options).doing("opening the heap")?;
    let measured = steps_of_pages(args);
    // SAFETY: its objects were never touched, and no other thread knows them.
    unsafe { duramen_alloc::close() }.doing("closing the heap")?;
    measured
}

fn steps_of_pages(args: &FlashArgs) -> Result<[(f64, f64); 2]> {
    let array = duramen_alloc::oalloc(OBJECTS as usize, OBJECT_BYTES as usize);
    let array = array.doing("allocating an array")?;
    let stride = duramen_alloc::stride(OBJECT_BYTES as usize);
    let found =
        (0..OBJECTS as usize).map(|nth| measured::page_at(array.wrapping_add(nth * stride)));
    let pages: Option<Vec<Page>> = found.collect();
    let mut pages = pages.ok_or_else(|| Failure::new("an array", "a page of it has no object"))?;
    let mut random = Random::new(7);
    for nth in (1..pages.len()).rev() {
        pages.swap(nth, random.below(nth as u64 + 1) as usize);
    }
    pass(&pages, true)?; // all objects are in the cache now
    let passes = args.options.size(10, 1);
    let mut each = [(0.0, 0.0); 2];
    for (write, each) in [false, true].into_iter().zip(&mut each) {
        let (mut brought, mut evicted) = (Vec::new(), Vec::new());
        for _ in 0..args.options.rounds() * passes {
            let before = duramen_alloc::stats()
                .doing("the heap's counts")?
                .from_cache;
            let (bring, evict) = pass(&pages, write)?;
            let after = duramen_alloc::stats()
                .doing("the heap's counts")?
                .from_cache;
            if after - before != OBJECTS {
                let how = format!("{} of {OBJECTS} pages came from it", after - before);
                return Err(Failure::new("the cache", how));
            }
            brought.push(bring);
            evicted.push(evict);
        }
        *each = (median(&brought), median(&evicted));
    }
    Ok(each)
}

/// Brings and evicts all pages, as many at once as may be shown: µs a page of both steps.
fn pass(pages: &[Page], write: bool) -> Result<(f64, f64)> {
    let (mut bring, mut evict) = (0.0, 0.0);
    for some in pages.chunks(SHOWN as usize) {
        let begun = cpu_seconds();
        for page in some {
            measured::bring(page, write).doing("bringing a page")?;
        }
        let between = cpu_seconds();
        let evicted = measured::evict_all().doing("evicting pages")?;
        evict += cpu_seconds() - between;
        bring += between - begun;
        if evicted != some.len() {
            let how = format!("{evicted} of {} were evicted", some.len());
            return Err(Failure::new("pages", how));
        }
    }
    let each = |seconds: f64| 1e6 * seconds / pages.len() as f64;
    Ok((each(bring), each(evict)))
}

/// An access by the kernel alone, and an access of each kind, in µs.
fn whole(args: &FlashArgs, bench: &Bench) -> Result<(f64, Each)> {
    let operations = args.options.size(500_000, 50_000);
    let counts = [("operations", operations), ("warm-up", operations / 5)];
    let mut kernel = Vec::new();
    let mut whole: [Vec<f64>; KINDS.len()] = Default::default();
    for _ in 0..args.options.rounds() {
        for run in bench.run("pairs", "pages", RAM_BYTES, &arguments(&counts))? {
            kernel.push(cpu_us(&run, operations as f64));
        }
        for (nth, (_, faults, write)) in KINDS.iter().enumerate() {
            let mut given = arguments(&counts);
            given.extend(arguments(&[
                ("data-mb", OBJECTS * OBJECT_BYTES / MIB),
                ("size", OBJECT_BYTES),
                ("page-buffer-kb", SHOWN * PAGE_BYTES / 1024),
                ("faults", 1 + u64::from(*faults == Faults::Protect)),
                ("writes", 100 * u64::from(*write)),
            ]));
            bench.clear();
            for run in bench.run("array", "opp", RAM_BYTES, &given)? {
                whole[nth].push(cpu_us(&run, operations as f64));
            }
        }
    }
    Ok((median(&kernel), whole.map(|found| median(&found))))
}
