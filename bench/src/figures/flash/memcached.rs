//! memcached with its slabs in `duramen_alloc`'s memory, beside unchanged memcached with swap
//! [Badam11 §5.2, Figure 4].

use super::swap::Swap;
use super::tool::{BESIDE_BYTES, Bench, arguments, data_bytes, said};
use super::{FlashArgs, RAM_PERCENT};
use crate::harness::{Doing, Failure, Group, Report, Result, Row, progress};
use duramen_base::units::MIB;
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// RAM of memcached beside its slabs: hash table, connections, stacks.
const TABLES_BYTES: u64 = 8 * MIB;
const START_MAX: Duration = Duration::from_secs(30);

/// A running memcached.
struct Server {
    child: Child,
    port: u16,
    _limit: Group,
    _swap: Option<Swap>,
}

impl Server {
    fn start(args: &FlashArgs, bench: &Bench, built: &Path, way: &str, ram: u64) -> Result<Server> {
        let swap = if way == "plain" { bench.swap()? } else { None };
        let limit = Group::new(ram + BESIDE_BYTES + TABLES_BYTES)
            .doing("making a memory cgroup (are you root?)")?;
        let port = TcpListener::bind("127.0.0.1:0")
            .and_then(|listener| listener.local_addr())
            .doing("finding a free port")?
            .port();
        let data = data_bytes(args);
        let mut command = limit.command(&built.join(format!("memcached-{way}")));
        // Chunks of `ssd_oalloc` are not within one page of slabs, so slabs cannot be moved from
        // class to class.
        command
            .args(["-l", "127.0.0.1", "-U", "0", "-u", "root", "-t", "8", "-p"])
            .arg(port.to_string())
            .args(["-m", &(4 * data / MIB).to_string()])
            .args(["-o", "no_slab_reassign,no_lru_maintainer,no_lru_crawler"])
            .env("SSD_FILE", bench.flash())
            .env("SSD_FLASH_MB", (4 * data / MIB + 64).to_string())
            .env("SSD_RAM_MB", (ram / MIB).to_string())
            .stdin(Stdio::null());
        let child = command.spawn().doing("starting memcached")?;
        let mut server = Server {
            child,
            port,
            _limit: limit,
            _swap: swap,
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
    let data = data_bytes(args) / 2;
    let ram = (data * RAM_PERCENT / 100)
        .next_multiple_of(MIB)
        .max(6 * MIB);
    let ways = [("opp", "OPP"), ("mp", "MP"), ("plain", "swap")];
    let ways = &ways[..if bench.can_swap() { 3 } else { 2 }];
    let mut rows = Vec::new();
    for most in [512, 4096] {
        let mut by_objects = f64::NAN;
        for (way, shown) in ways {
            bench.clear();
            let server = Server::start(args, bench, built, way, ram)?;
            let operations =
                args.options.size(80_000, 10_000) / if *way == "plain" { 4 } else { 1 };
            let given = arguments(&[
                ("port", u64::from(server.port)),
                ("keys", data / (most / 2 + 64)),
                ("most", most),
                ("threads", 8),
                ("operations", operations),
                ("warm-up", operations / 3),
            ]);
            let mut load = Command::new(built.join("load"));
            load.arg("--flash").arg(bench.scratch.path()).args(&given);
            let runs = match said(&format!("memcached by {shown}, up to {most} B"), &mut load) {
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
    report.table("memcached (Figure 4)", rows);
    Ok(report)
}
