//! The heap's counts in one place.

/// Counts since [`crate::init`]; sizes in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Stats {
    pub ram_budget_bytes: u64,
    /// Shown pages, object by object or page by page.
    pub pages_shown_bytes: u64,
    /// Page tables under them.
    pub page_table_bytes: u64,
    pub cache_bytes: u64,
    pub cached_objects: u64,
    /// Object tables and other structures that grow with the allocated amount.
    pub table_bytes: u64,
    pub fixed_bytes: u64,
    pub allocated_bytes: u64,
    pub allocations: u64,
    /// Pages shown: all, from the cache, from flash, never used before.
    pub faults: u64,
    pub from_cache: u64,
    pub from_flash: u64,
    pub fresh: u64,
    /// First writes to pages that had been read.
    pub write_faults: u64,
    /// Pages evicted, and the number of dirty ones among them.
    pub evicted_pages: u64,
    pub evicted_dirty_pages: u64,
    /// Objects evicted from the cache, and the number of those written to flash.
    pub evicted_objects: u64,
    pub written_objects: u64,
    /// Bytes written to flash, in total, and by the collector.
    pub flash_written_bytes: u64,
    pub flash_relocated_bytes: u64,
    pub flash_capacity_bytes: u64,
    pub flash_live_bytes: u64,
    /// Held for the last checkpoint alone.
    pub flash_held_bytes: u64,
    /// 1: userfaultfd; 2: `mprotect`.
    pub fault_kind: u64,
    /// Page tables that were returned and may not be freed by the kernel yet.
    pub page_tables_leaving_bytes: u64,
}
