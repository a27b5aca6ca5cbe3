//! Server processes under test: started on a free loopback port, stopped by their own handle.

pub mod echo;

use crate::harness::{Doing, Failure, Result, machine};
use crate::load::client;
use std::io::{BufRead, BufReader};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// How long a server may take until it answers.
const START_LIMIT: Duration = Duration::from_secs(20);

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
        // Both fail only if the process is gone already, which is what is wanted.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// What `duramen serve` is told.
#[derive(Clone, Debug)]
pub struct Duramen {
    pub program: PathBuf,
    pub memory: String,
    pub threads: usize,
    pub poll: &'static str,
}

impl Server {
    /// Starts `duramen serve` on a free port and reads the port from its `ready` line.
    pub fn duramen(name: &str, how: &Duramen) -> Result<Server> {
        let threads = how.threads.to_string();
        let mut command = Command::new(&how.program);
        command.args([
            "serve",
            "--level",
            "memory",
            "--port",
            "0",
            "--admin-port",
            "0",
            "--mode",
            "store",
        ]);
        command.args([
            "--memory",
            &how.memory,
            "--threads",
            &threads,
            "--poll",
            how.poll,
        ]);
        Server::ready_line(name, command)
    }

    /// Starts this program's own echo server, the floor.
    pub fn echo() -> Result<Server> {
        let mut command = Command::new(std::env::current_exe().doing("finding this program")?);
        if std::env::args().nth(1).as_deref() == Some("bench") {
            command.arg("bench");
        }
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
        // The server may go on printing: someone must read it.
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

    /// Starts redis-server on a free port, without persistence.
    pub fn redis(program: &Path) -> Result<Server> {
        let described = format!("starting {}", program.display());
        let address = free_address().doing(&described)?;
        let port = address.port().to_string();
        let mut command = Command::new(program);
        command.args([
            "--port",
            &port,
            "--bind",
            "127.0.0.1",
            "--save",
            "",
            "--appendonly",
            "no",
        ]);
        command.args(["--maxclients", "20000"]);
        let begun = Instant::now();
        let child = command
            .current_dir(std::env::temp_dir())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .doing(&described)?;
        Server::answering("redis", child, address, begun)
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

    /// Processor time it has used, in nanoseconds.
    pub fn cpu_ns(&self) -> Result<u64> {
        machine::cpu_ns(self.child.id())
    }

    pub fn rss_bytes(&self) -> Result<u64> {
        machine::rss_bytes(Some(self.child.id()))
    }
}

fn free_address() -> std::io::Result<SocketAddr> {
    TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()
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
