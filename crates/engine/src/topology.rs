//! NUMA nodes: "write local, read global" [Merritt17 §3.2]. One node costs nothing: one pool, no
//! system call.

use std::ffi::c_void;

/// The machine's memory nodes and the processors of each.
pub struct Topology {
    /// Node of each processor.
    node_of_cpu: Vec<usize>,
    /// The kernel's number of each node; nodes without processors are left out.
    kernel_nodes: Vec<u32>,
}

impl Topology {
    /// Reads `/sys/devices/system/node`; if that cannot be read, returns one node.
    pub fn detect() -> Topology {
        Self::read().unwrap_or_else(Self::single)
    }

    /// One node, whatever the machine has.
    pub fn single() -> Topology {
        Topology {
            node_of_cpu: Vec::new(),
            kernel_nodes: vec![0],
        }
    }

    /// A pretended machine whose processors belong to `nodes` nodes in turn.
    #[cfg(test)]
    fn pretended(nodes: usize) -> Topology {
        Topology {
            node_of_cpu: (0..nodes).collect(),
            kernel_nodes: vec![0; nodes],
        }
    }

    fn read() -> Option<Topology> {
        let mut kernel_nodes = Vec::new();
        let mut node_of_cpu = Vec::new();
        let online = std::fs::read_to_string("/sys/devices/system/node/online").ok()?;
        for kernel_node in parse_list(online.trim())? {
            let path = format!("/sys/devices/system/node/node{kernel_node}/cpulist");
            let cpus = parse_list(std::fs::read_to_string(path).ok()?.trim())?;
            if cpus.is_empty() {
                continue;
            }
            for cpu in cpus {
                let cpu = cpu as usize;
                if node_of_cpu.len() <= cpu {
                    node_of_cpu.resize(cpu + 1, 0);
                }
                node_of_cpu[cpu] = kernel_nodes.len();
            }
            kernel_nodes.push(kernel_node);
        }
        (!kernel_nodes.is_empty()).then_some(Topology {
            node_of_cpu,
            kernel_nodes,
        })
    }

    pub fn nodes(&self) -> usize {
        self.kernel_nodes.len()
    }

    /// Node of a processor; heads are spread over processors in order.
    pub fn node_of(&self, cpu: usize) -> usize {
        if self.node_of_cpu.is_empty() {
            0
        } else {
            self.node_of_cpu[cpu % self.node_of_cpu.len()]
        }
    }

    /// Asks the kernel to back a range from a node's memory if possible. Refusals are ignored, as
    /// this is not required for correctness.
    pub fn prefer(&self, node: usize, at: *mut u8, bytes: usize) {
        if self.kernel_nodes.len() < 2 {
            return;
        }
        const MPOL_PREFERRED: usize = 1;
        let kernel_node = self.kernel_nodes[node] as usize;
        let mut mask = [0usize; 16];
        let bits = usize::BITS as usize;
        if kernel_node < mask.len() * bits {
            mask[kernel_node / bits] |= 1 << (kernel_node % bits);
            let at: *mut c_void = at.cast();
            // SAFETY: mbind reads `mask` and sets the policy of a range of our own mapping; it
            // touches no memory.
            unsafe {
                libc::syscall(
                    libc::SYS_mbind,
                    at,
                    bytes,
                    MPOL_PREFERRED,
                    mask.as_ptr(),
                    mask.len() * bits,
                    0,
                );
            }
        }
    }
}

/// Parses the kernel's list form: `0-3,8`.
fn parse_list(text: &str) -> Option<Vec<u32>> {
    let mut numbers = Vec::new();
    for part in text.split(',').filter(|part| !part.is_empty()) {
        let (from, to) = part.split_once('-').unwrap_or((part, part));
        numbers.extend(from.parse::<u32>().ok()?..=to.parse().ok()?);
    }
    Some(numbers)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Error, Options, Session, Store, TableId};
    use std::sync::Arc;
    use std::time::{Duration, Instant};

    #[test]
    fn lists_of_the_kernel_are_read() {
        assert_eq!(parse_list("0-2,5"), Some(vec![0, 1, 2, 5]));
        assert_eq!(parse_list(""), Some(vec![]));
        assert_eq!(parse_list("x"), None);
        assert!(Topology::detect().nodes() >= 1);
        assert_eq!(Topology::single().node_of(17), 0);
    }

    const KEYS: u64 = 20_000;

    fn store(heads: usize) -> Arc<Store> {
        let mut options = Options::new(128 << 20);
        options.heads = heads;
        Store::with_topology(&options, &Topology::pretended(2)).unwrap()
    }

    fn put(session: &mut Session, key: u64, bytes: usize) -> Result<(), Error> {
        let mut guard = session.pin();
        let name = key.to_le_bytes();
        let hash = guard.hash(&name);
        guard
            .write(TableId::DEFAULT, hash, &name, &vec![key as u8; bytes], None)
            .map(|_| ())
    }

    fn check(session: &mut Session, keys: std::ops::Range<u64>) {
        let guard = session.pin();
        for key in keys {
            let name = key.to_le_bytes();
            let found = guard.read(TableId::DEFAULT, guard.hash(&name), &name);
            let object = found.unwrap().expect("never deleted");
            assert!(object.value.iter().all(|byte| *byte == key as u8));
        }
    }

    /// Live bytes in the windows of a node.
    fn live_on(store: &Store, node: usize) -> u64 {
        let windows = store.core().space.windows_of_node(node);
        let segments = &store.core().space.segments;
        windows
            .filter(|window| segments[*window as usize].is_in_log())
            .map(|window| store.core().live_in(window))
            .sum()
    }

    #[test]
    fn each_node_writes_and_cleans_its_own_windows() {
        let store = store(2);
        assert_eq!(store.core().space.nodes(), 2);
        std::thread::scope(|scope| {
            for node in 0..2u64 {
                let mut session = store.session().unwrap();
                scope.spawn(move || {
                    let keys = node * KEYS..(node + 1) * KEYS;
                    for _ in 0..6 {
                        keys.clone()
                            .for_each(|key| put(&mut session, key, 1000).unwrap());
                    }
                    check(&mut session, keys);
                });
            }
        });
        let stats = store.stats();
        assert_eq!(stats.objects, 2 * KEYS);
        assert!(stats.cleaner.segments_cleaned > 50, "{stats:?}");
        assert!(stats.committed_bytes <= 128 << 20);
        // Moved entries stayed on their node: it has the data of its own writer, and no others.
        let deadline = Instant::now() + Duration::from_secs(120);
        while (0..2).any(|node| live_on(&store, node) != KEYS * 1024) {
            assert!(
                Instant::now() < deadline,
                "{} and {} of {}",
                live_on(&store, 0),
                live_on(&store, 1),
                KEYS * 1024
            );
            std::thread::yield_now();
        }
    }

    #[test]
    fn a_writer_of_one_node_can_fill_the_store() {
        let store = store(1);
        let mut session = store.session().unwrap();
        let mut keys = 0;
        while put(&mut session, keys, 1000).is_ok() {
            keys += 1;
        }
        let stats = store.stats();
        assert!(stats.utilization > 0.7, "{stats:?}");
        check(&mut session, 0..keys);
        for key in (0..keys).step_by(2) {
            let mut guard = session.pin();
            let name = key.to_le_bytes();
            let hash = guard.hash(&name);
            guard.remove(TableId::DEFAULT, hash, &name).unwrap();
        }
        for key in (1..keys).step_by(2) {
            put(&mut session, key, 1000).unwrap();
        }
    }
}
