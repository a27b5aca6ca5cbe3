//! The stores that are compared, each with its flash file and its share of memory.

use super::{MIB, Sizes};
use crate::harness::{Doing, Failure, Group, Result, machine};
use crate::servers::client;
use crate::servers::{Duramen, Scratch, Server};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

pub(super) const TIERED: &str = "duramen, flash tier";
pub(super) const EXTSTORE: &str = "memcached, extstore";
pub(super) const EXTSTORE_MORE: &str = "memcached, extstore, 3 x the memory";
pub(super) const IN_MEMORY: &str = "duramen, all in memory";

/// The part of a server's memory for its program: code, stacks, buffers.
const PROGRAM_BYTES: u64 = 24 * MIB;
/// memcached needs more beside `-m`: its hash table and the buffers of extstore. With 24 MiB the
/// limit killed it.
const MEMCACHED_BYTES: u64 = 48 * MIB;
const START_LIMIT: Duration = Duration::from_secs(60);

enum Process {
    Duramen(Server),
    Memcached(Child),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Protocol {
    Resp,
    Memcached,
}

/// A store under test. Fields are dropped in this order.
pub(super) struct Rival {
    name: &'static str,
    pub(super) address: SocketAddr,
    pub(super) protocol: Protocol,
    process: Process,
    _group: Option<Group>,
    _flash: Option<Scratch>,
}

impl Drop for Rival {
    fn drop(&mut self) {
        self.kill();
    }
}

impl Rival {
    /// Duramen with a flash tier.
    pub(super) fn duramen(program: &Path, sizes: &Sizes, parent: &Path) -> Result<Rival> {
        Rival::serve(program, sizes, Some(parent), None)
    }

    /// The same, durable.
    pub(super) fn durable(
        program: &Path,
        sizes: &Sizes,
        parent: &Path,
        data: &Path,
    ) -> Result<Rival> {
        Rival::serve(program, sizes, Some(parent), Some(data))
    }

    /// Duramen with memory for all data.
    pub(super) fn in_memory(program: &Path, sizes: &Sizes) -> Result<Rival> {
        Rival::serve(program, sizes, None, None)
    }

    fn serve(
        program: &Path,
        sizes: &Sizes,
        flash: Option<&Path>,
        data: Option<&Path>,
    ) -> Result<Rival> {
        let data_bytes = sizes.keys * 1100;
        let flash = flash
            .map(Scratch::new)
            .transpose()
            .doing("making a directory for flash")?;
        let memory_bytes = match flash {
            Some(_) => sizes.memory_bytes - PROGRAM_BYTES,
            None => data_bytes * 3 / 2,
        };
        let mut more = Vec::new();
        if let Some(flash) = &flash {
            let file = flash.path().join("flash");
            more.extend(["--flash-file".to_owned(), file.display().to_string()]);
            more.extend([
                "--flash-size".to_owned(),
                format!("{}mb", data_bytes * 3 / 2 / MIB),
            ]);
        }
        if data.is_some() {
            more.extend([
                "--disk-size".to_owned(),
                format!("{}mb", data_bytes * 3 / 2 / MIB),
            ]);
        }
        let how = Duramen {
            program: program.to_owned(),
            memory: format!("{}mb", memory_bytes / MIB),
            threads: sizes.threads,
            poll: "adaptive",
            dir: data.map(Path::to_owned),
            level: if data.is_some() { "buffered" } else { "memory" },
            more,
        };
        let name = if flash.is_some() { TIERED } else { IN_MEMORY };
        let server = Server::duramen(name, &how)?;
        let group = match (&flash, data) {
            // The log's part of the page cache does not belong to the comparison.
            (Some(_), None) => limited(sizes.memory_bytes, server.process_id())?,
            _ => None,
        };
        Ok(Rival {
            name,
            address: server.address,
            protocol: Protocol::Resp,
            process: Process::Duramen(server),
            _group: group,
            _flash: flash,
        })
    }

    /// memcached with its extstore, and `times` times the memory.
    pub(super) fn memcached(
        program: &Path,
        sizes: &Sizes,
        times: u64,
        parent: &Path,
    ) -> Result<Rival> {
        let memory_bytes = times * sizes.memory_bytes;
        let described = format!("starting {}", program.display());
        let flash = Scratch::new(parent).doing("making a directory for flash")?;
        let file = flash.path().join("extstore");
        let address = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))
            .and_then(|listener| listener.local_addr())
            .doing(&described)?;
        let megabytes = sizes.keys * 1100 * 3 / 2 / MIB;
        let child = Command::new(program)
            .args(["-l", "127.0.0.1", "-U", "0", "-u", "root"])
            .args(["-p", &address.port().to_string()])
            .args(["-m", &((memory_bytes - MEMCACHED_BYTES) / MIB).to_string()])
            .args(["-t", &sizes.threads.to_string()])
            .args(["-o", &format!("ext_path={}:{megabytes}m", file.display())])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .doing(&described)?;
        let mut rival = Rival {
            name: if times == 1 { EXTSTORE } else { EXTSTORE_MORE },
            address,
            protocol: Protocol::Memcached,
            _group: limited(memory_bytes, child.id())?,
            process: Process::Memcached(child),
            _flash: Some(flash),
        };
        let begun = Instant::now();
        while TcpStream::connect(address).is_err() {
            if let Process::Memcached(child) = &mut rival.process
                && let Ok(Some(status)) = child.try_wait()
            {
                return Err(Failure::new(described, format!("it ended: {status}")));
            }
            if begun.elapsed() > START_LIMIT {
                return Err(Failure::new(described, "it does not listen"));
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        Ok(rival)
    }

    pub(super) fn name(&self) -> &'static str {
        self.name
    }

    pub(super) fn rss_bytes(&self) -> Result<u64> {
        match &self.process {
            Process::Duramen(server) => server.rss_bytes(),
            Process::Memcached(child) => machine::rss_bytes(Some(child.id())),
        }
    }

    /// Entries that it has read from flash; 0 if unknown.
    pub(super) fn fetches(&self) -> Result<f64> {
        match self.protocol {
            Protocol::Resp => {
                let told = client::info_number(self.address, "duramen_flash_fetches")?;
                Ok(told.unwrap_or(0.0))
            }
            Protocol::Memcached => Ok(0.0),
        }
    }

    /// Waits until a restarted server has loaded its data.
    pub(super) fn wait_until_served(&self) -> Result<()> {
        let begun = Instant::now();
        while client::info_number(self.address, "loading")? != Some(0.0) {
            if begun.elapsed() > START_LIMIT * 5 {
                return Err(Failure::new(
                    "waiting for a restarted server",
                    "it still loads",
                ));
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(())
    }

    pub(super) fn kill(&mut self) {
        match &mut self.process {
            Process::Duramen(server) => server.kill(),
            Process::Memcached(child) => {
                // Both fail only if it has ended already.
                let _ = child.kill();
                let _ = child.wait();
            }
        }
    }
}

/// Puts a server, which has no data yet, into a group with its share of memory; `None`: the system
/// allows no group.
fn limited(memory_bytes: u64, process: u32) -> Result<Option<Group>> {
    let Ok(group) = Group::new(memory_bytes) else {
        return Ok(None);
    };
    group
        .take(process)
        .doing("putting a server into a memory cgroup")?;
    Ok(Some(group))
}
