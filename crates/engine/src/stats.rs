//! Figures that the engine reports: counters ([`Stats`]) and "explain my memory"
//! ([`MemoryReport`]).

/// Counters since start and present gauges. Cheap to take: sums of per-core counters, no lock on
/// any data path.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Stats {
    /// Objects in all tables, including expired ones that no thread has met yet.
    pub objects: u64,
    /// Bytes of live entries in segments, headers and alignment included, those on flash too.
    pub live_bytes: u64,
    /// Key and value bytes appended by writers since start.
    pub appended_bytes: u64,
    /// Bytes of segments that may be used for data: the budget less index and tables.
    pub segment_budget_bytes: u64,
    pub segment_bytes: u64,
    /// Live bytes, those on flash too, beyond which writes are refused.
    pub live_limit_bytes: u64,
    /// Live bytes in memory as a part of `segment_budget_bytes`, 0 to 1.
    pub utilization: f64,
    /// Bytes of `live_bytes` that have expired, as estimated.
    pub expired_bytes: u64,
    /// Bytes of the budget that are backed by memory now.
    pub committed_bytes: u64,
    /// Bytes in use beyond a budget that was lowered, which have not been given back yet.
    pub excess_bytes: u64,
    pub index_bytes: u64,
    pub segments_open: u64,
    pub segments_closed: u64,
    pub segments_free: u64,
    pub entries_expired: u64,
    pub entries_evicted: u64,
    /// Bytes of tombstones in memory that no cleaner has dropped yet.
    pub tombstone_bytes: u64,
    pub cleaner: CleanerStats,
    /// Number of times that a writer had to clean or to wait before it could append, and the time
    /// spent, in nanoseconds.
    pub writer_stalls: u64,
    pub writer_stall_ns: u64,
    pub flash: crate::FlashStats,
    /// The largest page size that the kernel really gave, in bytes (4096 or 2097152), 0 = not yet
    /// known.
    pub page_bytes: u64,
    /// Flipped bits of entries, and of slots of the index, that were put back since the start.
    pub flipped_bits: u64,
    /// Number of times that an entry was found with damage that one bit does not explain.
    pub damaged_entries: u64,
    /// Passes and compactions that were given up: their segments stay on disk until a restart.
    pub passes_given_up: u64,
}

impl Stats {
    /// Live data as a part of the limit beyond which a store refuses writes.
    pub fn fill(&self) -> f64 {
        let live_bytes = self.live_bytes.saturating_sub(self.expired_bytes);
        live_bytes as f64 / self.live_limit_bytes.max(1) as f64
    }
}

/// The cleaner's work since start.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct CleanerStats {
    pub passes: u64,
    pub compactions: u64,
    pub segments_cleaned: u64,
    pub bytes_scanned: u64,
    pub bytes_relocated: u64,
    pub bytes_freed: u64,
    pub busy_ns: u64,
}

/// One segment of the memory report.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SegmentReport {
    /// Number of its window in the region.
    pub window: u32,
    pub state: SegmentState,
    pub committed_bytes: u64,
    pub appended_bytes: u64,
    pub live_bytes: u64,
    /// Time since it was opened, in milliseconds.
    pub age_ms: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SegmentState {
    Head,
    Survivor,
    Closed,
    /// Holds copies of entries that are on flash.
    Promoted,
    /// Cleaned; waits for readers that may still see it.
    Retired,
    /// Backed and ready to become a head.
    Free,
}

/// "Explain my memory": every byte the engine holds, by purpose; the parts add up to `total_bytes`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct MemoryReport {
    pub segments: Vec<SegmentReport>,
    pub live_bytes: u64,
    pub dead_bytes: u64,
    /// Backed but not yet appended to: tails of heads and survivors, free windows.
    pub unused_bytes: u64,
    pub index_bytes: u64,
    /// Bytes of buckets in `index_bytes`; the rest is free memory of the index.
    pub index_used_bytes: u64,
    /// Engine tables: window states, counters, directories.
    pub overhead_bytes: u64,
    pub total_bytes: u64,
    pub budget_bytes: u64,
    /// Number of objects and parts: all entries that have a slot.
    pub objects: u64,
    pub index_slots: u64,
}
