//! All memory of the process by purpose, as `/memory` and `MEMORY STATS` list it.
//!
//! **Invariants**
//! - Y1: no byte counts in two parts. Parts that are allocated on the heap (tables, copies, buffers
//!   of connections) are subtracted from the heap's part.
//! - Y2: the sum of the parts is resident memory, with two exceptions. The stacks of threads are
//!   resident and not counted. Memory that was allocated and never touched is counted and not
//!   resident.

use crate::state::Shared;
use duramen_config::{heap, process};
use duramen_engine::{MemoryReport, Store};

pub struct Footprint {
    pub report: MemoryReport,
    /// Copies of data on its way to disk (own log and replicas for others), and the limit of their
    /// size.
    pub log_buffer_bytes: u64,
    pub log_buffer_bytes_max: u64,
    /// Bytes of incomplete requests, and bytes of replies that clients have not taken.
    pub query_bytes: u64,
    pub output_bytes: u64,
    /// Memory shared with clients on this machine, which is not on the heap.
    pub rings_bytes: u64,
    /// Everything else that is allocated, and memory that was freed but is kept.
    pub heap_bytes: u64,
    pub heap_free_bytes: u64,
    /// The program's code and constants, resident from its files.
    pub program_bytes: u64,
}

impl Footprint {
    pub fn of(shared: &Shared, store: &Store) -> Footprint {
        let report = store.memory_report();
        let copies = shared.storage.copies();
        let query_bytes = shared.threads.sum(|counters| &counters.query_buffer_bytes);
        let output_bytes = shared.threads.sum(|counters| &counters.output_buffer_bytes);
        let heap = heap::figures();
        let known = report.overhead_bytes + copies.reserved_bytes + query_bytes + output_bytes;
        Footprint {
            log_buffer_bytes: copies.bytes,
            log_buffer_bytes_max: copies.bytes_max,
            query_bytes,
            output_bytes,
            rings_bytes: shared.figures.local().bytes(),
            heap_bytes: heap.used_bytes.saturating_sub(known), // Y1
            heap_free_bytes: heap.free_bytes,
            program_bytes: process::memory().map_or(0, |memory| memory.file_bytes),
            report,
        }
    }

    /// Bytes in use: without dead, empty and freed bytes, and without the program itself.
    pub fn used_bytes(&self) -> u64 {
        let report = &self.report;
        let idle = report.dead_bytes + report.unused_bytes + self.heap_free_bytes;
        self.total_bytes() - idle - self.program_bytes
    }

    /// The parts with their names: they are `NAME_bytes` in `/memory`, and `duramen.NAME-bytes` in
    /// `MEMORY STATS` unless Redis has a name for the part.
    pub fn parts(&self) -> [(&'static str, u64); 12] {
        let report = &self.report;
        [
            ("live", report.live_bytes),
            ("dead", report.dead_bytes),
            ("unused", report.unused_bytes),
            ("index", report.index_bytes),
            ("overhead", report.overhead_bytes),
            ("log_buffer", self.log_buffer_bytes),
            ("query_buffer", self.query_bytes),
            ("output_buffer", self.output_bytes),
            ("rings", self.rings_bytes),
            ("heap", self.heap_bytes),
            ("heap_free", self.heap_free_bytes),
            ("program", self.program_bytes),
        ]
    }

    pub fn total_bytes(&self) -> u64 {
        self.parts().iter().map(|(_, bytes)| bytes).sum()
    }
}
