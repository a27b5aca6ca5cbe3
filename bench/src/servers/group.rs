//! Groups of servers with replicas: a cluster of Duramen servers, a Redis master with its replicas.

use super::{Redis, Scratch, Server, client};
use crate::harness::{Doing, Failure, Result};
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Longest time until all of a group is up.
const START_LIMIT: Duration = Duration::from_secs(120);
/// Longest time until a cluster has ended after its signal.
const END_LIMIT: Duration = Duration::from_secs(20);

/// Arguments of `duramen up`.
#[derive(Clone, Debug)]
pub struct Up {
    pub program: PathBuf,
    pub servers: usize,
    /// Number of backups that each segment is written to.
    pub replicas: usize,
    /// Number of servers with the tablets of the table of RESP's database 0.
    pub spread: usize,
    pub memory: String,
    /// Reactor threads of each server.
    pub threads: usize,
    pub level: &'static str,
    /// Further arguments.
    pub more: Vec<String>,
}

/// A local cluster; dropping it ends all of its processes.
#[derive(Debug)]
pub struct Cluster {
    pub coordinator: String,
    /// Of each server; `resp`, `native` and `pids` have the same order.
    pub resp: Vec<SocketAddr>,
    pub native: Vec<SocketAddr>,
    pub pids: Vec<u32>,
    child: Child,
    _data: Scratch,
}

impl Cluster {
    /// Starts it in a directory of its own within `dir`; it is up when this returns.
    ///
    /// # Errors
    /// The program is missing, or does not report that it is ready.
    pub fn start(up: &Up, dir: &Path) -> Result<Cluster> {
        let described = format!(
            "starting a cluster ({} up --servers {})",
            up.program.display(),
            up.servers
        );
        let data = Scratch::new(dir).doing(&described)?;
        let mut command = Command::new(&up.program);
        let number = |number: usize| number.to_string();
        command
            .args(["up", "--servers", &number(up.servers)])
            .args(["--replicas", &number(up.replicas)])
            .args(["--spread", &number(up.spread)])
            .args(["--memory", &up.memory, "--threads", &number(up.threads)])
            .args(["--level", up.level, "--dir"])
            .arg(data.path())
            .args(&up.more);
        let mut child = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .doing(&described)?;
        let output = child.stdout.take().ok_or("no output").doing(&described)?;
        let mut lines = BufReader::new(output).lines();
        let ready = lines
            .by_ref()
            .map_while(std::io::Result::ok)
            .find(|line| line.starts_with("ready "));
        // It may print more: a thread must read it.
        std::thread::spawn(move || lines.for_each(drop));
        let mut cluster = Cluster {
            coordinator: String::new(),
            resp: Vec::new(),
            native: Vec::new(),
            pids: Vec::new(),
            child,
            _data: data,
        };
        let Some(ready) = ready else {
            return Err(Failure::new(described, "no line `ready …` was printed"));
        };
        cluster.learn(&ready).doing(described)?;
        Ok(cluster)
    }

    fn learn(&mut self, ready: &str) -> std::result::Result<(), String> {
        fn all<T: std::str::FromStr>(list: &str) -> std::result::Result<Vec<T>, String> {
            let parse = |word: &str| word.parse().map_err(|_| format!("`{word}` in `{list}`"));
            list.split(',').map(parse).collect()
        }
        for word in ready.split_whitespace() {
            match word.split_once('=') {
                Some(("coordinator", address)) => self.coordinator = address.to_owned(),
                Some(("resp", list)) => self.resp = all(list)?,
                Some(("native", list)) => self.native = all(list)?,
                Some(("pids", list)) => self.pids = all(list)?,
                _ => {}
            }
        }
        let same = self.resp.len() == self.native.len() && self.resp.len() == self.pids.len();
        if self.coordinator.is_empty() || self.resp.is_empty() || !same {
            return Err(format!("`{ready}` does not name every server's addresses"));
        }
        Ok(())
    }

    /// The server that owns everything, if the table is on one server.
    ///
    /// # Errors
    /// None of them accepts the key.
    pub fn owner(&self, key: &str) -> Result<usize> {
        let asked = |at: &usize| client::ask(self.resp[*at], &["GET", key]).is_ok();
        (0..self.resp.len())
            .find(asked)
            .ok_or("every server says that another one has it")
            .doing(format!("looking for the owner of {key}"))
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        let id = rustix::process::Pid::from_child(&self.child);
        // It fails only if the process is gone already.
        let _ = rustix::process::kill_process(id, rustix::process::Signal::TERM);
        let begun = Instant::now();
        while matches!(self.child.try_wait(), Ok(None)) && begun.elapsed() < END_LIMIT {
            std::thread::sleep(Duration::from_millis(5));
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A Redis master and its replicas, all with the same append-only file.
pub struct RedisGroup {
    pub master: Server,
    _replicas: Vec<Server>,
    _data: Vec<Scratch>,
}

impl RedisGroup {
    /// All replicas are connected when this returns.
    ///
    /// # Errors
    /// One does not start, or the replicas do not catch up.
    pub fn start(program: &Path, append: Redis, replicas: usize, dir: &Path) -> Result<RedisGroup> {
        let described = format!("starting {} with {replicas} replicas", program.display());
        let mut servers = Vec::new();
        let mut data = Vec::new();
        for _ in 0..=replicas {
            let scratch = Scratch::new(dir).doing(&described)?;
            servers.push(Server::redis(program, append, scratch.path())?);
            data.push(scratch);
        }
        let master = servers.remove(0);
        let port = master.address.port().to_string();
        for replica in &servers {
            client::ask(replica.address, &["REPLICAOF", "127.0.0.1", &port])?;
        }
        let begun = Instant::now();
        while client::info_number(master.address, "connected_slaves")? != Some(replicas as f64)
            || !in_step(&master, replicas)?
        {
            if begun.elapsed() > START_LIMIT {
                return Err(Failure::new(described, "they do not come into step"));
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(RedisGroup {
            master,
            _replicas: servers,
            _data: data,
        })
    }
}

/// Whether a write reaches all replicas.
fn in_step(master: &Server, replicas: usize) -> Result<bool> {
    client::ask(master.address, &["SET", "in:step", "yes"])?;
    let wanted = replicas.to_string();
    let reached = client::ask(master.address, &["WAIT", &wanted, "1000"])?;
    Ok(reached.as_integer() == Some(replicas as i64))
}
