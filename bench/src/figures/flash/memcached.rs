//! memcached with its slabs in `duramen_alloc`'s memory, beside unchanged memcached with swap: by
//! size of values, and by number of instances [Badam11 §5.2, Figure 4].

use super::swap::Swap;
use super::tool::{BESIDE_BYTES, Bench, Run, arguments, data_bytes, said};
use super::{FlashArgs, RAM_PERCENT};
use crate::harness::{Bound, Doing, Failure, Group, Report, Result, Row, progress};
use duramen_base::units::MIB;
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// RAM of memcached beside its slabs: hash table, connections, stacks.
const TABLES_BYTES: u64 = 8 * MIB;
const START_MAX: Duration = Duration::from_secs(30);
/// Numbers of instances, and the connections of all of them together.
const INSTANCES: [u64; 3] = [1, 2, 4];
const CONNECTIONS: u64 = 8;
/// Least RAM of an instance's slabs.
const RAM_BYTES_MIN: u64 = 6 * MIB;
/// Values of the runs by instances have up to so many bytes.
const MOST_BYTES: u64 = 4096;

/// A running memcached.
struct Server {
    child: Child,
    port: u16,
    _limit: Group,
}

/// The part of one of several instances.
struct Share {
    number: u64,
    data_bytes: u64,
    ram_bytes: u64,
}

impl Server {
    fn start(bench: &Bench, built: &Path, way: &str, share: &Share) -> Result<Server> {
        let limit = Group::new(share.ram_bytes + BESIDE_BYTES + TABLES_BYTES)
            .doing("making a memory cgroup (are you root?)")?;
        let port = TcpListener::bind("127.0.0.1:0")
            .and_then(|listener| listener.local_addr())
            .doing("finding a free port")?
            .port();
        let data = share.data_bytes;
        let flash = bench.scratch.path().join(format!("flash-{}", share.number));
        // The one of an earlier run; it need not exist.
        let _ = std::fs::remove_file(&flash);
        let mut command = limit.command(&built.join(format!("memcached-{way}")));
        // Chunks of `ssd_oalloc` are not within one page of slabs, so slabs cannot be moved from
        // class to class.
        command
            .args(["-l", "127.0.0.1", "-U", "0", "-u", "root", "-t", "8", "-p"])
            .arg(port.to_string())
            .args(["-m", &(4 * data / MIB).to_string()])
            .args(["-o", "no_slab_reassign,no_lru_maintainer,no_lru_crawler"])
            .env("SSD_FILE", flash)
            .env("SSD_FLASH_MB", (4 * data / MIB + 64).to_string())
            .env("SSD_RAM_MB", (share.ram_bytes / MIB).to_string())
            .stdin(Stdio::null());
        let child = command.spawn().doing("starting memcached")?;
        let mut server = Server {
            child,
            port,
            _limit: limit,
        };
        let begun = Instant::now();
        while TcpStream::connect(("127.0.0.1", port)).is_err() {
            if let Some(status) = server.child.try_wait().doing("waiting for memcached")? {
                return Err(Failure::new(format!("memcached-{way}"), status));
            }
            if begun.elapsed() > START_MAX {
                return Err(Failure::new(
                    format!("memcached-{way}"),
                    "it does not listen",
                ));
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

/// Runs the part.
pub fn run(args: &FlashArgs, bench: &Bench, built: &Path) -> Result<Report> {
    let about = "Debian's memcached, built from its source package: as it is, with swap, and with the lines of `heap/crates/alloc/examples/memcached` that \
        replace its slabs. Eight connections on loopback, one request at a time on each, half of them sets; values are of random lengths from 4 \
        bytes on, and each one that comes is checked. RAM is 8 % of the data, and 20 MiB for what is not slabs. `misses` are gets of keys \
        that memcached has not got any more.";
    let title = "Flash as memory: memcached";
    let mut report = Report::new("flash-memcached", title, about, &args.options);
    let ways = [("opp", "OPP"), ("mp", "MP"), ("plain", "swap")];
    let ways = &ways[..if bench.can_swap() { 3 } else { 2 }];
    by_size(args, bench, built, ways, &mut report)?;
    by_instances(args, bench, built, ways, &mut report)?;
    Ok(report)
}

/// The swap file of a way that needs it.
fn swap_of(bench: &Bench, way: &str) -> Result<Option<Swap>> {
    if way == "plain" {
        bench.swap()
    } else {
        Ok(None)
    }
}

/// Figure 4(b).
fn by_size(
    args: &FlashArgs,
    bench: &Bench,
    built: &Path,
    ways: &[(&str, &str)],
    report: &mut Report,
) -> Result<()> {
    let data = data_bytes(args) / 2;
    let share = Share {
        number: 0,
        data_bytes: data_bytes(args),
        ram_bytes: (data * RAM_PERCENT / 100)
            .next_multiple_of(MIB)
            .max(RAM_BYTES_MIN),
    };
    let mut rows = Vec::new();
    for most in [512, 4096] {
        let mut by_objects = f64::NAN;
        for (way, shown) in ways {
            let _swap = swap_of(bench, way)?;
            let server = Server::start(bench, built, way, &share)?;
            let operations =
                args.options.size(80_000, 10_000) / if *way == "plain" { 4 } else { 1 };
            let about = format!("memcached by {shown}, up to {most} B");
            let each = (data, CONNECTIONS, operations);
            let mut load = load(bench, built, &server, most, each);
            let runs = match said(&about, &mut load) {
                // As for the programs: Linux may find no memory although swap has room.
                Err(failure) if *way == "plain" => {
                    progress!("{failure}");
                    let row = Row::new().with("slabs", format!("{shown}: killed by the limit"));
                    rows.push(row.with("values up to, bytes", most));
                    continue;
                }
                runs => runs?,
            };
            for run in runs {
                let rate = run.number("per_second");
                if *way == "opp" {
                    by_objects = rate;
                }
                let row = Row::new()
                    .with("slabs", *shown)
                    .with("values up to, bytes", most);
                rows.push(
                    run.times(row)
                        .number("misses", run.number("misses"), 3)
                        .number(
                            "device bytes per set",
                            run.per_write("device_written_bytes"),
                            3,
                        )
                        .number("OPP / this", by_objects / rate, 3),
                );
            }
        }
    }
    report.table("memcached (Figure 4b)", rows);
    Ok(())
}

/// The load generator for one server, with values up to `most` bytes, `data` in all.
fn load(
    bench: &Bench,
    built: &Path,
    server: &Server,
    most: u64,
    (data, connections, operations): (u64, u64, u64),
) -> Command {
    let given = arguments(&[
        ("port", u64::from(server.port)),
        ("keys", data / (most / 2 + 64)),
        ("most", most),
        ("threads", connections),
        ("operations", operations),
        ("warm-up", operations / 3),
    ]);
    let mut load = Command::new(built.join("load"));
    load.arg("--flash").arg(bench.scratch.path()).args(&given);
    load
}

/// Figure 4(a): the same data, RAM and connections, divided among more and more instances.
fn by_instances(
    args: &FlashArgs,
    bench: &Bench,
    built: &Path,
    ways: &[(&str, &str)],
    report: &mut Report,
) -> Result<()> {
    let data = data_bytes(args);
    let most_instances = INSTANCES.iter().copied().max().unwrap_or(1);
    let ram = (data * RAM_PERCENT / 100).max(RAM_BYTES_MIN * most_instances);
    let mut rows = Vec::new();
    let mut best = Vec::new();
    for (way, shown) in ways {
        let mut rates = Vec::new();
        for instances in INSTANCES {
            let row = Row::new()
                .with("slabs", *shown)
                .with("instances", instances);
            let slower = if *way == "plain" { 4 } else { 1 };
            let operations = args.options.size(80_000, 10_000) / slower;
            let runs = instances_of(bench, built, way, (data, ram, instances), operations);
            match runs {
                Err(failure) if *way == "plain" => {
                    progress!("{failure}");
                    rows.push(row.with("k/s", "killed by the limit"));
                }
                runs => {
                    let runs = runs?;
                    let sum = |name| runs.iter().map(|run| run.number(name)).sum::<f64>();
                    rates.push(sum("per_second"));
                    rows.push(
                        row.number("k/s", sum("per_second") / 1e3, 3)
                            .number("mean µs", sum("mean_us") / runs.len() as f64, 3)
                            .number("misses", sum("misses"), 3),
                    );
                }
            }
        }
        best.push(rates.iter().copied().fold(f64::NAN, f64::max));
    }
    for ((_, shown), (rate, paper)) in ways.iter().zip(best.iter().zip([1.0, 1.6, 5.1])).skip(1) {
        report.target(
            format!("OPP / {shown}, each with its best number of instances (paper: {paper}) ≥ 1"),
            best[0] / rate,
            Bound::AtLeast(1.0),
        );
    }
    report.table(
        "memcached by instances, values up to 4 KB (Figure 4a)",
        rows,
    );
    report.note(format!(
        "By instances: {} MB of data, {} MB of RAM for slabs, and {CONNECTIONS} connections in all.",
        data / MIB,
        ram / MIB
    ));
    Ok(())
}

/// Starts so many instances of a way, which divide data, RAM and operations among themselves; the
/// results of their loads.
fn instances_of(
    bench: &Bench,
    built: &Path,
    way: &str,
    (data, ram, instances): (u64, u64, u64),
    operations: u64,
) -> Result<Vec<Run>> {
    let _swap = swap_of(bench, way)?;
    let mut servers = Vec::new();
    for number in 0..instances {
        let share = Share {
            number,
            data_bytes: 2 * data / instances,
            ram_bytes: (ram / instances).next_multiple_of(MIB),
        };
        servers.push(Server::start(bench, built, way, &share)?);
    }
    let each = (
        data / instances,
        CONNECTIONS / instances,
        operations / instances,
    );
    at_once(&servers, |server| {
        load(bench, built, server, MOST_BYTES, each)
    })
}

/// Runs a load on each server, all at once; their results.
fn at_once(servers: &[Server], load: impl Fn(&Server) -> Command) -> Result<Vec<Run>> {
    let loads: Vec<Command> = servers.iter().map(load).collect();
    let runs = std::thread::scope(|scope| {
        let running: Vec<_> = loads
            .into_iter()
            .map(|mut load| scope.spawn(move || said("memcached, one of several", &mut load)))
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
