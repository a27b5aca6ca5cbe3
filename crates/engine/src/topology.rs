//! NUMA nodes: "write local, read global" [Merritt17 §3.4]. One node costs nothing: one pool, no system call.

use std::ffi::c_void;

/// The machine's memory nodes and where its processors are.
pub struct Topology {
    /// Node of each processor.
    node_of_cpu: Vec<usize>,
    /// The kernel's number of each node; nodes without processors are left out.
    kernel_nodes: Vec<u32>,
}

impl Topology {
    /// Reads `/sys/devices/system/node`; what cannot be read counts as one node.
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

    /// Asks the kernel to back a range from a node's memory where it can. A wish, not a need: refusals are ignored.
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
            // SAFETY: mbind reads `mask` and sets the policy of a range of our own mapping; it touches no memory.
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

    #[test]
    fn lists_of_the_kernel_are_read() {
        assert_eq!(parse_list("0-2,5"), Some(vec![0, 1, 2, 5]));
        assert_eq!(parse_list(""), Some(vec![]));
        assert_eq!(parse_list("x"), None);
        assert!(Topology::detect().nodes() >= 1);
        assert_eq!(Topology::single().node_of(17), 0);
    }
}
