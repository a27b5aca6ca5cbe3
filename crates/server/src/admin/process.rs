//! What the kernel says about this process.

use std::time::Duration;

pub(super) struct Memory {
    pub(super) resident_bytes: u64,
    pub(super) virtual_bytes: u64,
}

/// None where there is no `/proc`.
pub(super) fn memory() -> Option<Memory> {
    let text = std::fs::read_to_string("/proc/self/statm").ok()?;
    let mut pages = text.split_ascii_whitespace().map(str::parse::<u64>);
    let page_bytes = rustix::param::page_size() as u64;
    let virtual_bytes = pages.next()?.ok()? * page_bytes;
    let resident_bytes = pages.next()?.ok()? * page_bytes;
    Some(Memory {
        resident_bytes,
        virtual_bytes,
    })
}

/// CPU time of all threads, user and system together.
pub(super) fn cpu_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// Open file descriptors.
pub(super) fn open_files() -> Option<u64> {
    Some(std::fs::read_dir("/proc/self/fd").ok()?.count() as u64)
}
