//! What the kernel tells about this process.

use std::fs;

/// Resident memory, in bytes; 0 if the kernel does not tell.
pub(crate) fn rss_bytes() -> u64 {
    let pages = fs::read_to_string("/proc/self/statm")
        .ok()
        .and_then(|text| text.split_whitespace().nth(1)?.parse::<u64>().ok());
    pages.unwrap_or(0) * rustix::param::page_size() as u64
}

/// CPU time in user and system mode, in seconds.
pub(crate) fn cpu_seconds() -> (f64, f64) {
    let ticks_per_second = rustix::param::clock_ticks_per_second() as f64;
    let text = fs::read_to_string("/proc/self/stat").unwrap_or_default();
    // The name, in parentheses, may contain anything: fields are counted after it. User time is field 14 of all.
    let mut fields = text
        .rsplit_once(')')
        .map_or("", |(_, rest)| rest)
        .split_whitespace()
        .skip(11);
    let mut next = || {
        fields
            .next()
            .and_then(|field| field.parse::<f64>().ok())
            .unwrap_or(0.0)
    };
    (next() / ticks_per_second, next() / ticks_per_second)
}

/// `Linux 6.1 x86_64`.
pub(crate) fn system() -> String {
    let name = rustix::system::uname();
    let text = |part: &std::ffi::CStr| part.to_string_lossy().into_owned();
    format!(
        "{} {} {}",
        text(name.sysname()),
        text(name.release()),
        text(name.machine())
    )
}
