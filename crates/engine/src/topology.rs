//! NUMA nodes: "write local, read global" [Merritt17 §3.2]. One node costs nothing: one pool, no
//! system call.
//!
//! - A guard appends to a head of the node on which its thread runs ([`Topology::local`]).
//! - Each node has windows, spare ones and cleaners of its own; the cleaners stay on their node.
//! - The index is spread over all nodes, page by page, as every thread reads all of it.

use rustix::thread::{CpuSet, sched_getaffinity, sched_getcpu, sched_setaffinity};
use std::ffi::c_void;

/// The nodes of the machine that have processors for this process, and those processors.
#[derive(Clone)]
pub struct Topology {
    /// Processors that this process may use, in order. Empty: they are not known.
    processors: Vec<usize>,
    /// Node of each processor, by the processor's number.
    node_of_processor: Vec<usize>,
    /// The kernel's number of each node.
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
            processors: Vec::new(),
            node_of_processor: Vec::new(),
            kernel_nodes: vec![0],
        }
    }

    fn read() -> Option<Topology> {
        let allowed = sched_getaffinity(None).ok()?;
        let online = std::fs::read_to_string("/sys/devices/system/node/online").ok()?;
        let mut nodes = Vec::new();
        for kernel_node in parse_list(online.trim())? {
            let path = format!("/sys/devices/system/node/node{kernel_node}/cpulist");
            nodes.push((
                kernel_node,
                parse_list(std::fs::read_to_string(path).ok()?.trim())?,
            ));
        }
        Self::of(&nodes, |processor| {
            processor < CpuSet::MAX_CPU && allowed.is_set(processor)
        })
    }

    /// The topology of the kernel's nodes and their processors, as far as they are `allowed`.
    fn of(nodes: &[(u32, Vec<u32>)], allowed: impl Fn(usize) -> bool) -> Option<Topology> {
        let mut topology = Topology {
            processors: Vec::new(),
            node_of_processor: Vec::new(),
            kernel_nodes: Vec::new(),
        };
        for (kernel_node, processors) in nodes {
            let processors = processors.iter().map(|processor| *processor as usize);
            let usable: Vec<usize> = processors.filter(|processor| allowed(*processor)).collect();
            let Some(last) = usable.iter().max() else {
                continue;
            };
            let places = topology.node_of_processor.len().max(last + 1);
            topology.node_of_processor.resize(places, 0);
            for processor in &usable {
                topology.node_of_processor[*processor] = topology.kernel_nodes.len();
            }
            topology.processors.extend(usable);
            topology.kernel_nodes.push(*kernel_node);
        }
        topology.processors.sort_unstable();
        (!topology.kernel_nodes.is_empty()).then_some(topology)
    }

    pub fn nodes(&self) -> usize {
        self.kernel_nodes.len()
    }

    /// Node of the head with this number: heads are spread over the processors in order.
    pub fn node_of(&self, number: usize) -> usize {
        if self.processors.is_empty() {
            0
        } else {
            self.node_of_processor[self.processors[number % self.processors.len()]]
        }
    }

    /// Node on which the calling thread runs now; `None` if there is one node only, or if the
    /// processor is new.
    #[inline(always)]
    pub fn local(&self) -> Option<usize> {
        if self.kernel_nodes.len() < 2 {
            return None;
        }
        self.node_of_processor.get(sched_getcpu()).copied()
    }

    /// Keeps the calling thread on the processors of a node. Does nothing if there is one node
    /// only; a refusal is ignored, as this is not required for correctness.
    pub fn stay_on(&self, node: usize) {
        if self.kernel_nodes.len() < 2 {
            return;
        }
        let mut processors = CpuSet::new();
        for processor in &self.processors {
            if self.node_of_processor[*processor] == node {
                processors.set(*processor);
            }
        }
        let _ = sched_setaffinity(None, &processors);
    }

    /// Asks the kernel to back a range from a node's memory if possible.
    pub fn prefer(&self, node: usize, at: *mut u8, bytes: usize) {
        const MPOL_PREFERRED: usize = 1;
        self.place(MPOL_PREFERRED, &self.kernel_nodes[node..=node], at, bytes);
    }

    /// Asks the kernel to back a range from all nodes in turn.
    pub fn spread(&self, at: *mut u8, bytes: usize) {
        const MPOL_INTERLEAVE: usize = 3;
        self.place(MPOL_INTERLEAVE, &self.kernel_nodes, at, bytes);
    }

    /// Sets the policy of a range. Refusals are ignored, as this is not required for correctness.
    fn place(&self, policy: usize, kernel_nodes: &[u32], at: *mut u8, bytes: usize) {
        if self.kernel_nodes.len() < 2 {
            return;
        }
        let mut mask = [0usize; 16];
        let bits = usize::BITS as usize;
        for node in kernel_nodes.iter().map(|node| *node as usize) {
            if node < mask.len() * bits {
                mask[node / bits] |= 1 << (node % bits);
            }
        }
        let at: *mut c_void = at.cast();
        // SAFETY: mbind reads `mask` and sets the policy of a range of our own mapping; it touches
        // no memory.
        unsafe {
            libc::syscall(
                libc::SYS_mbind,
                at,
                bytes,
                policy,
                mask.as_ptr(),
                mask.len() * bits,
                0,
            );
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

    /// A pretended machine: each processor is a node of its own. `None`: there is one processor.
    fn pretended() -> Option<Topology> {
        let allowed = sched_getaffinity(None).ok()?;
        let processors = (0..CpuSet::MAX_CPU as u32).filter(|n| allowed.is_set(*n as usize));
        let nodes: Vec<(u32, Vec<u32>)> = processors.take(2).map(|n| (0, vec![n])).collect();
        (nodes.len() == 2).then(|| Topology::of(&nodes, |_| true).unwrap())
    }

    fn store(heads: usize, topology: &Topology) -> Arc<Store> {
        let mut options = Options::new(128 << 20);
        options.heads = heads;
        Store::with_topology(&options, topology).unwrap()
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
    fn nodes_without_usable_processors_are_left_out() {
        let nodes = [(0, vec![0, 1, 4]), (2, vec![2, 3]), (5, vec![6])];
        let all = Topology::of(&nodes, |_| true).unwrap();
        assert_eq!(all.kernel_nodes, [0, 2, 5]);
        let of_heads: Vec<usize> = (0..7).map(|n| all.node_of(n)).collect();
        assert_eq!(of_heads, [0, 0, 1, 1, 0, 2, 0]);
        let some = Topology::of(&nodes, |processor| processor > 1 && processor < 6).unwrap();
        assert_eq!(some.kernel_nodes, [0, 2]);
        assert_eq!(some.processors, [2, 3, 4]);
        assert_eq!((some.node_of(0), some.node_of(2)), (1, 0));
        assert!(Topology::of(&nodes, |_| false).is_none());
    }

    /// A session appends where its thread runs, also after the thread has moved.
    #[test]
    fn each_node_writes_and_cleans_its_own_windows() {
        let Some(topology) = pretended() else {
            return eprintln!("skipped: one processor only");
        };
        // Different numbers, so that data on the other's node are seen.
        let keys_of = |node: u64| node * KEYS..(node + 1) * KEYS - node * KEYS / 2;
        let store = store(2, &topology);
        assert_eq!(store.core().space.nodes(), 2);
        std::thread::scope(|scope| {
            for node in [1u64, 0] {
                let (mut session, topology) = (store.session().unwrap(), &topology);
                scope.spawn(move || {
                    topology.stay_on(1 - node as usize);
                    put(&mut session, keys_of(node).start, 1000).unwrap();
                    topology.stay_on(node as usize);
                    let keys = keys_of(node);
                    for _ in 0..6 {
                        keys.clone()
                            .for_each(|key| put(&mut session, key, 1000).unwrap());
                    }
                    check(&mut session, keys);
                });
            }
        });
        let stats = store.stats();
        let bytes_of = |node: u64| 1024 * keys_of(node).count() as u64;
        assert_eq!(1024 * stats.objects, bytes_of(0) + bytes_of(1));
        // The bytes that were appended beyond the memory went into cleaned segments.
        let beyond = (stats.appended_bytes - (128 << 20)) / stats.segment_bytes;
        assert!(stats.cleaner.segments_cleaned >= beyond, "{stats:?}");
        assert!(beyond > 20 && stats.committed_bytes <= 128 << 20);
        // Moved entries stayed on their node: it has the data of its own writer, and no others.
        let deadline = Instant::now() + Duration::from_secs(300);
        let live = || [live_on(&store, 0), live_on(&store, 1)];
        while live() != [bytes_of(0), bytes_of(1)] {
            assert!(
                Instant::now() < deadline,
                "{:?} of {} and {}",
                live(),
                bytes_of(0),
                bytes_of(1)
            );
            std::thread::yield_now();
        }
    }

    #[test]
    fn a_writer_of_one_node_can_fill_the_store() {
        let Some(topology) = pretended() else {
            return eprintln!("skipped: one processor only");
        };
        let store = store(1, &topology);
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
