//! Where the time of a read and of a write goes: one client with one request at a time, timed at
//! each of its steps, beside the processor time of the servers. Ousterhout15 §5.4, Figures 10, 11.
//!
//! The paper's server has timers of its own; here nothing is added to the server. The client notes
//! the time at each step, and the kernel that of the reply's arrival. The time between is the
//! server's. The kernel's account of the server's process tells how much of it is processor time,
//! in its own code and in system calls. The rest is waiting: for the server's wake-up, as with a
//! server without a store (`floor`), and for more than that: its log, and its backups.

mod client;

use crate::figure::Figure;
use crate::harness::{Chart, Doing, Failure, Options, Report, Result, Row, machine, progress};
use crate::servers::{Cluster, Duramen, ProgramArgs, Programs, Redis, Scratch, Server, Up};
use client::{Client, Parts, Request};
use duramen_base::units::MIB;
use duramen_load::{Command, Load};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

/// Objects of the paper's figures; its keys have 30 bytes, these 16.
const VALUE_BYTES: usize = 100;
/// Requests before those that count: the first ones find cold caches.
const WARM_UP: usize = 200;
const FLOOR: &str = "floor";

/// Where the time of a read and of a write goes
#[derive(Clone, Debug, clap::Args)]
pub(super) struct TimelineFigure {
    #[command(flatten)]
    pub programs: ProgramArgs,
    /// Number of keys [default: 1000000; 100000 with --quick]
    #[arg(long, value_name = "N")]
    pub keys: Option<u64>,
    /// Milliseconds of a measurement [default: 2000; 500 with --quick]
    #[arg(long, value_name = "MS")]
    pub window_ms: Option<u64>,
}

impl Figure for TimelineFigure {
    const NAME: &'static str = "timeline";

    fn run(&self, options: &Options) -> Result<Vec<Report>> {
        Ok(vec![report(self, options)?])
    }
}

/// A server, or a member of a cluster, and what is measured of it.
struct Side {
    name: &'static str,
    address: SocketAddr,
    /// Process that answers.
    server: u32,
    /// Processes with its backups.
    backups: Vec<u32>,
    requests: &'static [Request],
    _held: Held,
}

/// The processes, which end when this is dropped.
#[expect(dead_code, reason = "ended when dropped")]
enum Held {
    Server(Server),
    WithData(Server, Scratch),
    Cluster(Cluster),
}

const BOTH: &[Request] = &[Request::Get, Request::Set];
const WRITES: &[Request] = &[Request::Set];

fn report(args: &TimelineFigure, options: &Options) -> Result<Report> {
    let about = "One client with one connection and one request at a time, 100-byte values, uniform keys, over loopback. Means of the middle half of the requests, by \
        their time. The client notes the time at its steps: `encode`, `send` (its call), `decode`; the kernel notes the arrival of the reply at the client's socket: from there to \
        the end of the receiving call is the client's wake-up, and from the end of the sending call to there is the server's time. `own code` and `system calls`: processor \
        time of the server's process per request, by the kernel's account; `wake-up`: the floor's time without processor time; `waiting`: what is left, for the log and for \
        backups. `floor`: a server without a store. `memory`: Duramen without a log; `polling`: the same, which polls its sockets for a while before it sleeps, so that its \
        processor time is not that of requests and its time is not divided. `own disk`: writes go to its log (level `buffered`); `1 backup`, `3 backups`: a member of a cluster, with \
        its log on so many others.";
    let mut report = Report::new(
        "timeline",
        "Where the time of a request goes",
        about,
        options,
    );
    report.level = "as the column `server` says".to_owned();
    let programs = args.programs.find(&mut report)?;
    let keys = args.keys.unwrap_or(options.size(1_000_000, 100_000));
    let window = Duration::from_millis(args.window_ms.unwrap_or(options.size(2000, 500)));
    let sides = sides(&programs, keys)?;
    for (request, title) in [
        (Request::Get, "A read (Figure 10)"),
        (Request::Set, "A write (Figure 11)"),
    ] {
        let sides: Vec<&Side> = sides
            .iter()
            .filter(|side| side.requests.contains(&request))
            .collect();
        let mut measured: Vec<Measured> = sides.iter().map(|_| Measured::default()).collect();
        for _ in 0..options.rounds() {
            for (side, measured) in sides.iter().zip(&mut measured) {
                measure(side, request, keys, window, measured)?;
            }
        }
        let splits: Vec<Split> = sides
            .iter()
            .zip(&measured)
            .map(|(side, measured)| measured.split(side.name))
            .collect();
        present(&mut report, title, request, &sides, &splits);
    }
    report.note(
        "Not seen: the network, which is loopback; cache misses, which are part of the server's own code; how the server's time is ordered. Processor time includes what a \
         server does after its reply has left, so that the waits are somewhat longer than shown. Own code and system calls are told apart by the kernel's samples, 100 a second \
         or so: to a tenth of them with full windows.",
    );
    Ok(report)
}

/// All sides, with all keys.
fn sides(programs: &Programs, keys: u64) -> Result<Vec<Side>> {
    // Less than a quarter full: nothing is cleaned.
    let memory = format!("{}mb", (8 * keys * VALUE_BYTES as u64 / MIB).max(128));
    let single = |poll, dir, level| Duramen {
        program: programs.duramen.clone(),
        memory: memory.clone(),
        threads: programs.threads,
        poll,
        dir,
        level,
        more: Vec::new(),
    };
    let alone = |name, server: Server| Side {
        name,
        address: server.address,
        server: server.process_id(),
        backups: Vec::new(),
        requests: BOTH,
        _held: Held::Server(server),
    };
    let mut sides = vec![
        alone(FLOOR, Server::echo()?),
        alone(
            "memory",
            Server::duramen("memory", &single("off", None, "memory"))?,
        ),
        alone(
            "polling",
            Server::duramen("polling", &single("adaptive", None, "memory"))?,
        ),
    ];
    if let Some(redis) = &programs.redis {
        sides.push(alone(
            "redis",
            Server::redis(redis, Redis::No, &programs.dir)?,
        ));
    }
    let data = Scratch::new(&programs.dir).doing("making a directory")?;
    let own_disk = single("off", Some(data.path().join("data")), "buffered");
    let server = Server::duramen("own disk", &own_disk)?;
    sides.push(Side {
        name: "own disk",
        address: server.address,
        server: server.process_id(),
        backups: Vec::new(),
        requests: WRITES,
        _held: Held::WithData(server, data),
    });
    for (name, replicas) in [("1 backup", 1), ("3 backups", 3)] {
        sides.push(member(programs, &memory, name, replicas)?);
    }
    for side in sides.iter().filter(|side| side.name != FLOOR) {
        let mut load = Load::usual(side.address, Command::Set, 64);
        (load.keys, load.value_bytes) = (keys, VALUE_BYTES);
        load.preload(0)?;
    }
    Ok(sides)
}

/// A member with its log on so many others.
fn member(programs: &Programs, memory: &str, name: &'static str, replicas: usize) -> Result<Side> {
    let up = Up {
        program: programs.duramen.clone(),
        servers: replicas + 1,
        replicas,
        spread: 1,
        memory: memory.to_owned(),
        threads: programs.threads,
        level: "buffered",
        more: ["--set", "poll=off"].map(str::to_owned).into(),
    };
    let cluster = Cluster::start(&up, &programs.dir)?;
    let owner = cluster.owner("key:000000000000")?;
    let mut backups = cluster.pids.clone();
    Ok(Side {
        name,
        address: cluster.resp[owner],
        server: backups.remove(owner),
        backups,
        requests: WRITES,
        _held: Held::Cluster(cluster),
    })
}

/// The kernel's account of a group of processes.
#[derive(Clone, Copy, Default)]
struct Account {
    cpu_ns: u64,
    /// Time in which threads were ready and had no processor.
    ready_ns: u64,
    user_ticks: u64,
    kernel_ticks: u64,
}

impl Account {
    fn of(processes: &[u32]) -> Result<Account> {
        let mut all = Account::default();
        for &process in processes {
            let [user, kernel] = machine::user_and_kernel_ticks(process)?;
            all.add(&Account {
                cpu_ns: machine::cpu_ns(process)?,
                ready_ns: machine::waited_ns(process)?,
                user_ticks: user,
                kernel_ticks: kernel,
            });
        }
        Ok(all)
    }

    fn add(&mut self, other: &Account) {
        self.cpu_ns += other.cpu_ns;
        self.ready_ns += other.ready_ns;
        self.user_ticks += other.user_ticks;
        self.kernel_ticks += other.kernel_ticks;
    }

    /// Threads that ended meanwhile do not count: a difference may be too small, but not negative.
    fn since(&self, before: &Account) -> Account {
        Account {
            cpu_ns: self.cpu_ns.saturating_sub(before.cpu_ns),
            ready_ns: self.ready_ns.saturating_sub(before.ready_ns),
            user_ticks: self.user_ticks.saturating_sub(before.user_ticks),
            kernel_ticks: self.kernel_ticks.saturating_sub(before.kernel_ticks),
        }
    }
}

/// All rounds of a side.
#[derive(Default)]
struct Measured {
    parts: Vec<Parts>,
    requests: u64,
    server: Account,
    backups: Account,
}

/// The time of a request of one side, divided; in microseconds.
#[derive(Clone, Copy, Debug)]
struct Split {
    encode: f64,
    send: f64,
    server: f64,
    receive: f64,
    decode: f64,
    /// Processor time of the server.
    cpu: f64,
    /// The part of it that is not in the kernel, 0 to 1; NaN without a sample.
    own_code: f64,
    ready: f64,
    backups_cpu: f64,
    /// The server's processor time is not that of its requests.
    polls: bool,
}

fn measure(
    side: &Side,
    request: Request,
    keys: u64,
    window: Duration,
    all: &mut Measured,
) -> Result<()> {
    let mut client = Client::connect(side.address, request, keys, VALUE_BYTES)?;
    for _ in 0..WARM_UP {
        client.ask()?;
    }
    let before = (Account::of(&[side.server])?, Account::of(&side.backups)?);
    let begun = Instant::now();
    while begun.elapsed() < window {
        all.parts.extend(client.ask()?);
        all.requests += 1;
    }
    if all.parts.is_empty() {
        return Err(Failure::new(
            format!("timing requests to {}", side.name),
            "the kernel noted no packet's arrival",
        ));
    }
    all.server
        .add(&Account::of(&[side.server])?.since(&before.0));
    all.backups
        .add(&Account::of(&side.backups)?.since(&before.1));
    Ok(())
}

impl Measured {
    fn split(&self, name: &str) -> Split {
        let mut sorted = self.parts.clone();
        sorted.sort_by_key(Parts::total_ns);
        let quarter = sorted.len() / 4;
        let middle = &sorted[quarter..sorted.len() - quarter];
        let mean = |part: fn(&Parts) -> u64| {
            middle.iter().map(part).sum::<u64>() as f64 / middle.len() as f64 / 1e3
        };
        let each = |ns: u64| ns as f64 / self.requests as f64 / 1e3;
        let (user, kernel) = (self.server.user_ticks, self.server.kernel_ticks);
        Split {
            encode: mean(|parts| parts.encode_ns),
            send: mean(|parts| parts.send_ns),
            server: mean(|parts| parts.server_ns),
            receive: mean(|parts| parts.receive_ns),
            decode: mean(|parts| parts.decode_ns),
            cpu: each(self.server.cpu_ns),
            own_code: user as f64 / (user + kernel) as f64,
            ready: each(self.server.ready_ns),
            backups_cpu: each(self.backups.cpu_ns),
            polls: name == "polling",
        }
    }
}

impl Split {
    fn total(&self) -> f64 {
        self.encode + self.send + self.server + self.receive + self.decode
    }

    /// The server's time without its processor time.
    fn without_cpu(&self) -> f64 {
        (self.server - self.cpu).max(0.0)
    }

    /// The stack from below, beside that of the floor.
    fn stack(&self, floor: &Split) -> [(&'static str, f64); 8] {
        let known = |value: f64| if self.polls { 0.0 } else { value };
        // Without a sample all of it shows as system calls.
        let own_code = if self.own_code.is_finite() {
            self.own_code
        } else {
            0.0
        };
        // Processor time beyond the server's time came after the reply.
        let cpu = self.cpu.min(self.server);
        let wake_up = self.without_cpu().min(floor.without_cpu());
        [
            ("client: encode, decode", self.encode + self.decode),
            ("client: send", self.send),
            (
                "server: not divided",
                if self.polls { self.server } else { 0.0 },
            ),
            ("server: wake-up", known(wake_up)),
            ("server: system calls", known(cpu * (1.0 - own_code))),
            ("server: own code", known(cpu * own_code)),
            ("server: waiting", known(self.without_cpu() - wake_up)),
            ("client: wake-up", self.receive),
        ]
    }

    fn row(&self, side: &Side, floor: &Split) -> Row {
        let row = Row::new()
            .with("server", side.name)
            .number("all µs", self.total(), 3);
        let row = self
            .stack(floor)
            .iter()
            .fold(row, |row, (part, us)| row.number(part, *us, 3));
        let cpu = if self.polls { f64::NAN } else { self.cpu };
        row.number("server's CPU", cpu, 3)
            .number("ready, no processor", self.ready, 3)
            .number("backups' CPU", self.backups_cpu, 3)
    }
}

fn present(report: &mut Report, title: &str, request: Request, sides: &[&Side], splits: &[Split]) {
    let floor = splits[0];
    let stacks: Vec<_> = splits.iter().map(|split| split.stack(&floor)).collect();
    for (side, split) in sides.iter().zip(splits) {
        progress!("{request:?}, {}: {:.1} µs", side.name, split.total());
    }
    let series = (0..stacks[0].len()).map(|part| {
        let values = stacks.iter().map(|stack| stack[part].1);
        (stacks[0][part].0.to_owned(), values.collect())
    });
    let groups = sides.iter().map(|side| side.name.to_owned()).collect();
    let chart = Chart::stack(title, "microseconds", groups, series.collect());
    let name = match request {
        Request::Get => "read",
        Request::Set => "write",
    };
    report.plot(name, &chart);
    let rows = sides.iter().zip(splits);
    report.table(
        title,
        rows.map(|(side, split)| split.row(side, &floor)).collect(),
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stack_is_all_of_the_time() {
        let floor = Split {
            encode: 1.0,
            send: 5.0,
            server: 20.0,
            receive: 10.0,
            decode: 1.0,
            cpu: 8.0,
            own_code: 0.25,
            ready: 2.0,
            backups_cpu: 0.0,
            polls: false,
        };
        let busy = Split {
            server: 7.0,
            ..floor
        };
        let waits = Split {
            server: 200.0,
            cpu: 30.0,
            ..floor
        };
        let polls = Split {
            polls: true,
            ..floor
        };
        for split in [floor, busy, waits, polls] {
            let stack = split.stack(&floor);
            let sum: f64 = stack.iter().map(|(_, us)| us).sum();
            assert!((sum - split.total()).abs() < 1e-9, "{split:?}: {stack:?}");
            assert!(stack.iter().all(|(_, us)| *us >= 0.0));
        }
        let waiting = waits.stack(&floor)[6];
        assert_eq!(waiting, ("server: waiting", 200.0 - 30.0 - 12.0));
    }

    #[test]
    fn the_middle_half_counts() {
        let parts = |server_ns| Parts {
            server_ns,
            ..Parts::default()
        };
        let measured = Measured {
            parts: [9_000_000, 2000, 4000, 0].map(parts).into(),
            requests: 4,
            ..Measured::default()
        };
        assert_eq!(measured.split("memory").server, 3.0);
    }
}
