//! memcached with its slabs in `duramen_alloc`'s memory, beside unchanged memcached with swap: by
//! size of values, by number of instances, and by device [Badam11 §5.2, Figure 4].
//!
//! **Invariants**
//! - M1: all instances of a way together have the same RAM, whatever the way and the number of
//!   instances: they share one memory cgroup. The library may use the part that an instance does
//!   not need beside its slabs.

use super::swap::Swap;
use super::throttled::{INTEL_SSD, Throttled};
use super::tool::{Bench, Run, arguments, data_bytes, said};
use super::{FlashArgs, RAM_PERCENT};
use crate::harness::{Bound, Doing, Failure, Group, Report, Result, Row, progress};
use duramen_base::units::MIB;
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// RAM of an instance beside its slabs: code, connections, stacks.
const BESIDE_BYTES: u64 = 4 * MIB;
/// The same for each key: a hash table, which doubles, and page tables.
const KEY_BYTES: u64 = 16;
const START_MAX: Duration = Duration::from_secs(30);
/// Numbers of instances, and the connections of all of them together.
const INSTANCES: [u64; 3] = [1, 2, 4];
const CONNECTIONS: u64 = 8;
/// Least RAM of an instance's slabs.
const SLABS_BYTES_MIN: u64 = 6 * MIB;
/// Values of the runs by instances and by device have up to so many bytes.
const MOST_BYTES: u64 = 4096;

/// The data of all instances together, and how they are asked for.
#[derive(Clone, Copy)]
struct Load {
    data_bytes: u64,
    /// Bytes of the longest value.
    most: u64,
    /// RAM of all instances together (M1).
    ram_bytes: u64,
    instances: u64,
    operations: u64,
}

impl Load {
    /// A load for one instance, or for as many as `instances_max`, with the same RAM.
    fn new(data_bytes: u64, most: u64, instances_max: u64, operations: u64) -> Load {
        let mut load = Load {
            data_bytes,
            most,
            ram_bytes: 0,
            instances: instances_max,
            operations,
        };
        let least = instances_max * (SLABS_BYTES_MIN + load.beside_bytes());
        load.ram_bytes = (data_bytes * RAM_PERCENT / 100)
            .max(least)
            .next_multiple_of(MIB);
        load
    }

    /// Keys of each instance.
    fn keys(&self) -> u64 {
        self.data_bytes / self.instances / (self.most / 2 + 64)
    }

    fn beside_bytes(&self) -> u64 {
        BESIDE_BYTES + self.keys() * KEY_BYTES
    }

    /// RAM for the slabs of each instance: what is left (M1).
    fn slabs_bytes(&self) -> u64 {
        self.ram_bytes / self.instances - self.beside_bytes()
    }
}

/// A running memcached.
struct Server {
    child: Child,
    port: u16,
}

impl Server {
    /// The instance with this number, in the group of all instances.
    fn start(
        bench: &Bench,
        program: &Path,
        (load, number): (&Load, u64),
        group: &Group,
    ) -> Result<Server> {
        let name = program.display().to_string();
        let port = TcpListener::bind("127.0.0.1:0")
            .and_then(|listener| listener.local_addr())
            .doing("finding a free port")?
            .port();
        // Twice the data: slabs of each size of value are taken in whole pages.
        let data = 2 * load.data_bytes / load.instances;
        let flash = bench.scratch.path().join(format!("flash-{number}"));
        // The one of an earlier run; it need not exist.
        let _ = std::fs::remove_file(&flash);
        let mut command = group.command(program);
        // Chunks of `ssd_oalloc` are not within one page of slabs, so slabs cannot be moved from
        // class to class.
        command
            .args(["-l", "127.0.0.1", "-U", "0", "-u", "root", "-t", "8", "-p"])
            .arg(port.to_string())
            .args(["-m", &(4 * data / MIB).to_string()])
            .args(["-o", "no_slab_reassign,no_lru_maintainer,no_lru_crawler"])
            .env("SSD_FILE", flash)
            .env("SSD_FLASH_MB", (4 * data / MIB + 64).to_string())
            .env("SSD_RAM_MB", (load.slabs_bytes() / MIB).to_string())
            .stdin(Stdio::null());
        let child = command.spawn().doing("starting memcached")?;
        let mut server = Server { child, port };
        let begun = Instant::now();
        while TcpStream::connect(("127.0.0.1", port)).is_err() {
            if let Some(status) = server.child.try_wait().doing("waiting for memcached")? {
                return Err(Failure::new(name, status));
            }
            if begun.elapsed() > START_MAX {
                return Err(Failure::new(name, "it does not listen"));
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(server)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // It may have ended already; its figure reported that.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

const ABOUT: &str = "Debian's memcached, built from its source package: as it is, with swap, and with the lines of `heap/crates/alloc/examples/memcached` that \
    replace its slabs. Eight connections on loopback, one request at a time on each, half of them sets; values are of random lengths from 4 \
    bytes on, and each one that comes is checked. One memory cgroup holds all instances of a way; `RAM MB` is its limit, the same for all ways and \
    numbers of instances, for everything that is not on flash. `misses` are gets of keys that memcached has not got any more.";

/// A way to have more data than RAM.
struct Way {
    /// Of the program's name.
    program: &'static str,
    shown: &'static str,
    /// OPP's best rate / this one's, and the ratios by device, in the paper.
    paper: (f64, f64),
}

const WAYS: [Way; 3] = [
    Way {
        program: "opp",
        shown: "OPP",
        paper: (1.0, 1.0),
    },
    Way {
        program: "mp",
        shown: "MP",
        paper: (1.6, 1.2),
    },
    Way {
        program: "plain",
        shown: "swap",
        paper: (5.1, 4.1),
    },
];

impl Way {
    fn swaps(&self) -> bool {
        self.program == "plain"
    }

    fn all(bench: &Bench) -> &'static [Way] {
        &WAYS[..if bench.can_swap() { 3 } else { 2 }]
    }
}

/// The sum of several instances' results.
struct Sum(Vec<Run>);

impl Sum {
    fn of(&self, name: &str) -> f64 {
        self.0.iter().map(|run| run.number(name)).sum()
    }

    fn mean(&self, name: &str) -> f64 {
        self.of(name) / self.0.len() as f64
    }

    fn row(&self, row: Row) -> Row {
        row.number("k/s", self.of("per_second") / 1e3, 3)
            .number("mean µs", self.mean("mean_us"), 3)
            .number("deviation µs", self.mean("deviation_us"), 3)
            .number("p99 µs", self.mean("p99_us"), 3)
            .number("misses", self.of("misses"), 3)
            .number(
                "device bytes per set",
                self.mean("device_written_bytes") / self.of("writes"),
                3,
            )
    }
}

/// Runs the part.
///
/// # Errors
/// Of the programs.
pub fn run(args: &FlashArgs, bench: &Bench, built: &Path) -> Result<Report> {
    let title = "Flash as memory: memcached";
    let mut report = Report::new("flash-memcached", title, ABOUT, &args.options);
    by_size(args, bench, built, &mut report)?;
    by_instances(args, bench, built, &mut report)?;
    by_device(args, bench, built, &mut report)?;
    Ok(report)
}

fn operations(args: &FlashArgs) -> u64 {
    args.options.size(80_000, 20_000)
}

/// The result of a way, with its row; `None`: Linux ended it by its limit of memory, although swap
/// had room.
fn measured(
    bench: &Bench,
    built: &Path,
    way: &Way,
    load: &Load,
    row: Row,
) -> Result<(Row, Option<Sum>)> {
    let row = row.number("RAM MB", load.ram_bytes as f64 / MIB as f64, 4);
    Ok(match instances_of(bench, built, way, load)? {
        Some(runs) => {
            let sum = Sum(runs);
            (sum.row(row), Some(sum))
        }
        None => (row.with("k/s", "ended by the limit"), None),
    })
}

/// All ways with a load; adds their rows. The rate of each; NaN: ended by the limit.
fn all_ways(
    bench: &Bench,
    built: &Path,
    load: &Load,
    (column, cell): (&str, &str),
    rows: &mut Vec<Row>,
) -> Result<Vec<f64>> {
    let mut rates = Vec::new();
    for way in Way::all(bench) {
        let row = Row::new().with("slabs", way.shown).with(column, cell);
        let (row, sum) = measured(bench, built, way, load, row)?;
        rates.push(sum.map_or(f64::NAN, |sum| sum.of("per_second")));
        rows.push(row.number("OPP / this", rates[0] / rates[rates.len() - 1], 3));
    }
    Ok(rates)
}

/// Figure 4(b).
fn by_size(args: &FlashArgs, bench: &Bench, built: &Path, report: &mut Report) -> Result<()> {
    let mut rows = Vec::new();
    for most in [512, MOST_BYTES] {
        let load = Load::new(data_bytes(args), most, 1, operations(args));
        let cell = most.to_string();
        all_ways(
            bench,
            built,
            &load,
            ("values up to, bytes", &cell),
            &mut rows,
        )?;
    }
    report.table("memcached by size of values (Figure 4b)", rows);
    let data = data_bytes(args) / MIB;
    report.note(format!("By size: {data} MB of data, one instance."));
    Ok(())
}

/// Figure 4(a): the same data, RAM and connections, divided among more and more instances.
fn by_instances(args: &FlashArgs, bench: &Bench, built: &Path, report: &mut Report) -> Result<()> {
    let data = 4 * data_bytes(args);
    let most_instances = INSTANCES.iter().copied().max().unwrap_or(1);
    let all = Load::new(data, MOST_BYTES, most_instances, operations(args));
    let (mut rows, mut best) = (Vec::new(), Vec::new());
    for way in Way::all(bench) {
        let mut rates = Vec::new();
        for instances in INSTANCES {
            let row = Row::new()
                .with("slabs", way.shown)
                .with("instances", instances);
            let load = Load { instances, ..all };
            let (row, sum) = measured(bench, built, way, &load, row)?;
            rates.extend(sum.map(|sum| sum.of("per_second")));
            rows.push(row);
        }
        best.push(rates.iter().copied().fold(f64::NAN, f64::max));
    }
    for (way, rate) in Way::all(bench).iter().zip(&best).skip(1) {
        report.target(
            format!(
                "OPP / {}, each with its best number of instances (paper: {}) ≥ 1",
                way.shown, way.paper.0
            ),
            best[0] / rate,
            Bound::AtLeast(1.0),
        );
    }
    report.table(
        "memcached by instances, values up to 4 KB (Figure 4a)",
        rows,
    );
    report.note(format!(
        "By instances: {} MB of data and {CONNECTIONS} connections in all.",
        data / MIB,
    ));
    Ok(())
}

/// Figure 4(c): this machine's device, and one that is held to the rates of the paper's.
fn by_device(args: &FlashArgs, bench: &Bench, built: &Path, report: &mut Report) -> Result<()> {
    let data = 2 * data_bytes(args);
    let load = Load::new(data, MOST_BYTES, 1, operations(args));
    let (mut rows, mut devices) = (Vec::new(), Vec::new());
    all_ways(bench, built, &load, ("device", "as it is"), &mut rows)?;
    devices.push(device_row(args, bench, "as it is")?);
    // Flash file and swap file, each with room to spare.
    match Throttled::new(&INTEL_SSD, 24 * data_bytes(args) + 1024 * MIB) {
        Ok(throttled) => {
            let on_it = FlashArgs {
                dir: Some(throttled.path().to_owned()),
                ..args.clone()
            };
            let bench = Bench::new(&on_it)?;
            let rates = all_ways(&bench, built, &load, ("device", INTEL_SSD.name), &mut rows)?;
            devices.push(device_row(args, &bench, INTEL_SSD.name)?);
            for (way, rate) in Way::all(&bench).iter().zip(&rates).skip(1) {
                report.target(
                    format!(
                        "OPP / {}, on a device {} ≥ {} (paper)",
                        way.shown, INTEL_SSD.name, way.paper.1
                    ),
                    rates[0] / rate,
                    Bound::AtLeast(way.paper.1),
                );
            }
        }
        Err(failure) => report.note(format!("No throttled device can be made here: {failure}")),
    }
    report.table("memcached by device, values up to 4 KB (Figure 4c)", rows);
    report.table("Devices by eight threads, k/s (Table 3)", devices);
    report.note(format!(
        "By device: {} MB of data, one instance.",
        data / MIB
    ));
    Ok(())
}

/// The rates of the device alone.
fn device_row(args: &FlashArgs, bench: &Bench, name: &str) -> Result<Row> {
    const FILE_BYTES: u64 = 64 * MIB;
    bench.clear();
    // Written to: the kernel reads no device for what was never written.
    std::fs::write(bench.flash(), vec![1; FILE_BYTES as usize]).doing("writing a file")?;
    let file = std::fs::File::open(bench.flash()).doing("the file")?;
    file.sync_all().doing("syncing the file")?;
    let mut row = Row::new().with("device", name);
    for size in [512, 4096] {
        let given = arguments(&[
            ("size", size),
            ("data-mb", FILE_BYTES / MIB),
            ("threads", CONNECTIONS),
            ("operations", 2 * operations(args)),
            ("fill", 0),
        ]);
        for run in bench.run("array", "device", FILE_BYTES, &given)? {
            let rate = run.number("per_second") / 1e3;
            row = row.number(&format!("reads of {size} bytes"), rate, 3);
        }
    }
    bench.clear();
    Ok(row)
}

/// Starts the instances of a way, which divide data, RAM and operations among themselves; the
/// results of their loads. `None`: Linux ended an instance with swap by the limit of memory.
fn instances_of(bench: &Bench, built: &Path, way: &Way, load: &Load) -> Result<Option<Vec<Run>>> {
    let _swap: Option<Swap> = match way.swaps() {
        true => bench.swap_of(2 * load.data_bytes)?,
        false => None,
    };
    let program = built.join(format!("memcached-{}", way.program));
    let group = Group::new(load.ram_bytes).doing("making a memory cgroup (are you root?)")?;
    let mut servers = Vec::new();
    for number in 0..load.instances {
        servers.push(Server::start(bench, &program, (load, number), &group)?);
    }
    let slower = if way.swaps() { 4 } else { 1 };
    let operations = load.operations / slower / load.instances;
    let loads = servers.iter().map(|server| {
        let given = arguments(&[
            ("port", u64::from(server.port)),
            ("keys", load.keys()),
            ("most", load.most),
            ("threads", CONNECTIONS / load.instances),
            ("operations", operations),
            ("warm-up", operations / 3),
        ]);
        let mut command = Command::new(built.join("load"));
        command
            .arg("--flash")
            .arg(bench.scratch.path())
            .args(&given);
        command
    });
    match at_once(loads.collect(), way.shown) {
        Err(failure) if way.swaps() => {
            progress!("{failure}");
            Ok(None)
        }
        runs => runs.map(Some),
    }
}

/// Runs loads, all at once; their results.
fn at_once(loads: Vec<Command>, shown: &str) -> Result<Vec<Run>> {
    let count = loads.len();
    let about = format!("memcached by {shown}, one of {count}");
    let about = &about;
    let runs = std::thread::scope(|scope| {
        let running: Vec<_> = loads
            .into_iter()
            .map(|mut load| scope.spawn(move || said(about, &mut load)))
            .collect();
        let join = |thread: std::thread::ScopedJoinHandle<'_, _>| thread.join();
        running.into_iter().map(join).collect::<Vec<_>>()
    });
    let mut all = Vec::new();
    for run in runs {
        let run: Result<Vec<Run>> = run.expect("a load does not panic");
        all.extend(run?);
    }
    Ok(all)
}
