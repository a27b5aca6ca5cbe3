//! The kernel's figures of this process.

use std::fs;
use std::sync::{Mutex, PoisonError};

/// Resident memory, in bytes; 0 if the kernel does not report it.
pub(crate) fn rss_bytes() -> u64 {
    let pages = fs::read_to_string("/proc/self/statm")
        .ok()
        .and_then(|text| text.split_whitespace().nth(1)?.parse::<u64>().ok());
    pages.unwrap_or(0) * rustix::param::page_size() as u64
}

/// Memory of the machine, in bytes.
pub(crate) fn machine_bytes() -> u64 {
    let system = rustix::system::sysinfo();
    system.totalram as u64 * u64::from(system.mem_unit)
}

/// CPU time of all threads in user and system mode, in seconds.
pub(crate) fn cpu_seconds() -> (f64, f64) {
    let all = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    let all = all.tv_sec as f64 + all.tv_nsec as f64 / 1e9;
    static TOLD: Told = Told::new((0.0, 0.0));
    never_less(&TOLD, divided(all, "/proc/self/stat"))
}

/// The same for the first thread alone.
pub(crate) fn cpu_seconds_of_main() -> (f64, f64) {
    let folder = format!("/proc/self/task/{}", std::process::id());
    let text = fs::read_to_string(format!("{folder}/schedstat")).unwrap_or_default();
    let ns = text
        .split_whitespace()
        .next()
        .and_then(|ns| ns.parse().ok());
    static TOLD: Told = Told::new((0.0, 0.0));
    never_less(
        &TOLD,
        divided(ns.unwrap_or(0.0) / 1e9, &format!("{folder}/stat")),
    )
}

/// The times that were reported last.
type Told = Mutex<(f64, f64)>;

/// Keeps both times from falling, as counters must: the parts are estimates, and one may fall.
fn never_less(told: &Told, now: (f64, f64)) -> (f64, f64) {
    let mut told = told.lock().unwrap_or_else(PoisonError::into_inner);
    *told = (told.0.max(now.0), told.1.max(now.1));
    *told
}

/// The kernel counts user and system mode in ticks, but their sum to the nanosecond.
fn divided(all: f64, stat: &str) -> (f64, f64) {
    let text = fs::read_to_string(stat).unwrap_or_default();
    // The process name, in parentheses, may contain anything: fields are counted after it. User
    // time is field 14 of all.
    let mut fields = text
        .rsplit_once(')')
        .map_or("", |(_, rest)| rest)
        .split_whitespace()
        .skip(11);
    let mut next = || fields.next().and_then(|field| field.parse::<f64>().ok());
    let (user, system) = (next().unwrap_or(0.0), next().unwrap_or(0.0));
    let user = match user + system {
        0.0 => all,
        ticks => all * user / ticks,
    };
    (user, all - user)
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
