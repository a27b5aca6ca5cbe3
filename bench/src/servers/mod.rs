//! Server processes under test: started on a free loopback port, stopped by their own handle.

pub mod client;
mod costs;
mod group;
mod programs;

pub use costs::Costs;
pub use group::{Cluster, RedisGroup, Up};
pub use programs::{ProgramArgs, Programs};

use crate::harness::{Doing, Failure, Result, Undo, machine};
use std::io::{BufRead, BufReader};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::ops::Range;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Longest time until a server answers.
const START_LIMIT: Duration = Duration::from_secs(120);

/// A running server; dropping it kills the process.
#[derive(Debug)]
pub struct Server {
    pub name: String,
    pub address: SocketAddr,
    /// From starting the process to its answer to PING.
    pub start_time: Duration,
    child: Child,
}

impl Drop for Server {
    fn drop(&mut self) {
        // Both fail only if the process has ended already, which is the goal.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Arguments of `duramen serve`.
#[derive(Clone, Debug)]
pub struct Duramen {
    pub program: PathBuf,
    pub memory: String,
    pub threads: usize,
    pub poll: &'static str,
    /// Data directory; `None` = in memory alone.
    pub dir: Option<PathBuf>,
    pub level: &'static str,
    /// Further arguments.
    pub more: Vec<String>,
}

/// The append-only file of redis-server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Redis {
    /// None.
    No,
    EverySecond,
    Always,
}

impl Redis {
    fn name(self) -> &'static str {
        match self {
            Redis::No => "redis",
            Redis::EverySecond => "redis everysec",
            Redis::Always => "redis always",
        }
    }
}

/// A directory that is removed when this is dropped, or the program is interrupted.
#[derive(Debug)]
pub struct Scratch {
    path: PathBuf,
    _undo: Undo,
}

impl Scratch {
    /// Makes one in `parent`.
    pub fn new(parent: &Path) -> std::io::Result<Scratch> {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let path = parent.join(format!("duramen-bench-{}-{number}", std::process::id()));
        std::fs::create_dir_all(&path)?;
        let made = path.clone();
        let undo = Undo::new(move || {
            // Files that cannot be removed stay in the temporary directory: no reason to fail a
            // measurement.
            let _ = std::fs::remove_dir_all(made);
        });
        Ok(Scratch { path, _undo: undo })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Bytes that the files in it take on the disk.
    pub fn bytes(&self) -> u64 {
        fn of(path: &Path) -> u64 {
            let Ok(entries) = std::fs::read_dir(path) else {
                return 0;
            };
            entries
                .filter_map(std::result::Result::ok)
                .map(|entry| match entry.metadata() {
                    Ok(data) if data.is_dir() => of(&entry.path()),
                    Ok(data) => data.blocks() * 512,
                    Err(_) => 0,
                })
                .sum()
        }
        of(&self.path)
    }
}

impl Server {
    /// Starts `duramen serve` on a free port and waits for its `ready` line.
    pub fn duramen(name: &str, how: &Duramen) -> Result<Server> {
        Server::serve(name, how, "store")
    }

    /// The same as a cache, which evicts.
    pub fn duramen_cache(name: &str, how: &Duramen) -> Result<Server> {
        Server::serve(name, how, "cache")
    }

    fn serve(name: &str, how: &Duramen, mode: &str) -> Result<Server> {
        let threads = how.threads.to_string();
        // With a port for TLS, 0 would mean that there is no other one.
        let port = Server::free_address()
            .doing("looking for a free port")?
            .port();
        let mut command = Command::new(&how.program);
        command.args([
            "serve",
            "--level",
            how.level,
            "--port",
            &port.to_string(),
            "--admin-port",
            "0",
            "--mode",
            mode,
        ]);
        command.args([
            "--memory",
            &how.memory,
            "--threads",
            &threads,
            "--poll",
            how.poll,
        ]);
        if let Some(dir) = &how.dir {
            command.arg("--dir").arg(dir);
        }
        command.args(&how.more);
        Server::ready_line(name, command)
    }

    /// Starts this program's own echo server, the floor.
    pub fn echo() -> Result<Server> {
        let mut command = Command::new(std::env::current_exe().doing("finding this program")?);
        command.arg("echo-server");
        Server::ready_line("floor", command)
    }

    fn ready_line(name: &str, mut command: Command) -> Result<Server> {
        let doing = || format!("starting {name} ({:?})", command.get_program());
        let described = doing();
        let begun = Instant::now();
        let mut child = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .doing(&described)?;
        let output = child
            .stdout
            .take()
            .ok_or("no standard output")
            .doing(&described)?;
        let mut lines = BufReader::new(output).lines();
        let address = lines
            .by_ref()
            .map_while(std::io::Result::ok)
            .find_map(|line| {
                let words = line.strip_prefix("ready ")?;
                words
                    .split_whitespace()
                    .find_map(|word| word.strip_prefix("resp=")?.parse().ok())
            });
        // The server may print more: a thread must read it.
        std::thread::spawn(move || lines.for_each(drop));
        let Some(address) = address else {
            let _ = child.kill();
            let ended = child
                .wait()
                .map_or("it ended".to_owned(), |status| status.to_string());
            return Err(Failure::new(
                described,
                format!("no line `ready resp=…` was printed; {ended}"),
            ));
        };
        Server::answering(name, child, address, begun)
    }

    /// Starts redis-server on a free port, with its files in `dir`.
    pub fn redis(program: &Path, append: Redis, dir: &Path) -> Result<Server> {
        Server::redis_with(append.name(), program, append, dir, &[])
    }

    /// The same, with a name and further arguments.
    pub fn redis_with(
        name: &str,
        program: &Path,
        append: Redis,
        dir: &Path,
        more: &[String],
    ) -> Result<Server> {
        let described = format!("starting {}", program.display());
        let address = Server::free_address().doing(&described)?;
        let port = address.port().to_string();
        let mut command = Command::new(program);
        command.args(["--port", &port, "--bind", "127.0.0.1", "--save", ""]);
        match append {
            Redis::No => command.args(["--appendonly", "no"]),
            Redis::EverySecond => {
                command.args(["--appendonly", "yes", "--appendfsync", "everysec"])
            }
            Redis::Always => command.args(["--appendonly", "yes", "--appendfsync", "always"]),
        };
        command.args(["--maxclients", "20000"]).args(more);
        let begun = Instant::now();
        let child = command
            .current_dir(dir)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .doing(&described)?;
        Server::answering(name, child, address, begun)
    }

    fn answering(name: &str, child: Child, address: SocketAddr, begun: Instant) -> Result<Server> {
        let mut server = Server {
            name: name.to_owned(),
            address,
            start_time: Duration::ZERO,
            child,
        };
        loop {
            match client::ask(address, &["PING"]) {
                Ok(_) => {
                    server.start_time = begun.elapsed();
                    return Ok(server);
                }
                Err(error) if begun.elapsed() > START_LIMIT => return Err(error),
                Err(_) => {}
            }
            if let Ok(Some(status)) = server.child.try_wait() {
                return Err(Failure::new(
                    format!("starting {name}"),
                    format!("it ended: {status}"),
                ));
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// An address on loopback that no socket has now.
    pub fn free_address() -> std::io::Result<SocketAddr> {
        TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()
    }

    pub fn process_id(&self) -> u32 {
        self.child.id()
    }

    /// As [`machine::tie`].
    pub fn tie(&self, cores: Range<usize>) -> Result<()> {
        machine::tie(self.child.id(), cores)
    }

    /// Processor time of the server, in nanoseconds.
    pub fn cpu_ns(&self) -> Result<u64> {
        machine::cpu_ns(self.child.id())
    }

    pub fn rss_bytes(&self) -> Result<u64> {
        machine::rss_bytes(Some(self.child.id()))
    }

    /// Its own memory and the private memory of its children.
    pub fn rss_with_children_bytes(&self) -> Result<u64> {
        let id = self.child.id();
        let path = format!("/proc/{id}/task/{id}/children");
        let children = std::fs::read_to_string(path).unwrap_or_default();
        let own: u64 = children
            .split_whitespace()
            .filter_map(|child| child.parse().ok())
            .map(private_bytes)
            .sum();
        Ok(self.rss_bytes()? + own)
    }

    /// Kills it: as by a power cut, except that the system's page cache stays.
    pub fn kill(&mut self) {
        // Both fail only if it is gone already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Waits until it has ended by itself.
    pub fn wait_for_end(&mut self, limit: Duration) -> Result<()> {
        let begun = Instant::now();
        while self
            .child
            .try_wait()
            .doing("waiting for a server")?
            .is_none()
        {
            if begun.elapsed() > limit {
                return Err(Failure::new(
                    format!("waiting for {} to end", self.name),
                    format!("it runs on after {limit:?}"),
                ));
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        Ok(())
    }
}

/// Memory that a process shares with no other.
fn private_bytes(id: u32) -> u64 {
    let rollup = std::fs::read_to_string(format!("/proc/{id}/smaps_rollup")).unwrap_or_default();
    rollup
        .lines()
        .filter(|line| line.starts_with("Private_"))
        .filter_map(|line| line.split_whitespace().nth(1)?.parse::<u64>().ok())
        .sum::<u64>()
        * 1024
}

/// The program `duramen`: the named one, or one beside this program, or on `PATH`.
pub fn find_duramen(named: Option<&Path>) -> Result<PathBuf> {
    let missing = || {
        Failure::new(
            "looking for the program `duramen`",
            "build it, or name it with --duramen FILE",
        )
    };
    let found = named
        .map(Path::to_owned)
        .or_else(|| find_program("duramen"));
    found.ok_or_else(missing)
}

/// A program beside this one, or on `PATH`.
pub fn find_program(name: &str) -> Option<PathBuf> {
    let beside = std::env::current_exe()
        .ok()
        .and_then(|path| Some(path.parent()?.join(name)));
    let path = std::env::var_os("PATH").unwrap_or_default();
    let on_path = std::env::split_paths(&path).map(|directory| directory.join(name));
    beside
        .into_iter()
        .chain(on_path)
        .find(|candidate| candidate.is_file())
}
