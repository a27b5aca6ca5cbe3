//! The kernel's figures of this process.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::fs;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

pub struct Memory {
    pub resident_bytes: u64,
    pub virtual_bytes: u64,
    /// Resident pages of files: the program's code and constants.
    pub file_bytes: u64,
}

/// The process's memory; `None` where there is no `/proc`.
pub fn memory() -> Option<Memory> {
    let text = fs::read_to_string("/proc/self/statm").ok()?;
    let mut pages = text.split_ascii_whitespace().map(str::parse::<u64>);
    let page_bytes = rustix::param::page_size() as u64;
    let virtual_bytes = pages.next()?.ok()? * page_bytes;
    let resident_bytes = pages.next()?.ok()? * page_bytes;
    let file_bytes = pages.next()?.ok()? * page_bytes;
    Some(Memory {
        resident_bytes,
        virtual_bytes,
        file_bytes,
    })
}

/// CPU time of all threads, user and system time together.
pub fn cpu_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

pub fn open_files() -> Option<u64> {
    Some(fs::read_dir("/proc/self/fd").ok()?.count() as u64)
}

/// Maximum number of open file descriptors; `None` if there is no limit.
pub fn open_files_max() -> Option<u64> {
    rustix::process::getrlimit(rustix::process::Resource::Nofile).current
}

/// When the process started, in seconds since 1970.
pub fn start_time() -> Option<f64> {
    let stat = fs::read_to_string("/proc/self/stat").ok()?;
    // The process name, in parentheses, may contain anything. The start time is field 22 of all, in
    // ticks since the machine's start.
    let (_, rest) = stat.rsplit_once(')')?;
    let ticks: f64 = rest.split_whitespace().nth(19)?.parse().ok()?;
    let machine = fs::read_to_string("/proc/stat").ok()?;
    let booted = machine
        .lines()
        .find_map(|line| line.strip_prefix("btime "))?;
    let booted: f64 = booted.trim().parse().ok()?;
    Some(booted + ticks / rustix::param::clock_ticks_per_second() as f64)
}

pub fn threads() -> Option<u64> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let threads = status
        .lines()
        .find_map(|line| line.strip_prefix("Threads:"))?;
    threads.trim().parse().ok()
}

/// Resident memory, in bytes; 0 if the kernel does not report it.
pub fn rss_bytes() -> u64 {
    memory().map_or(0, |memory| memory.resident_bytes)
}

/// Memory of the machine, in bytes.
pub fn machine_bytes() -> u64 {
    let system = rustix::system::sysinfo();
    system.totalram as u64 * u64::from(system.mem_unit)
}

/// CPU time of all threads in user and system mode, in seconds.
pub fn cpu_seconds() -> (f64, f64) {
    let all = cpu_time().as_secs_f64();
    static LAST: LastTimes = LastTimes::new((0.0, 0.0));
    never_less(&LAST, divided(all, "/proc/self/stat"))
}

/// As [`cpu_seconds`], for the first thread alone.
pub fn cpu_seconds_of_main() -> (f64, f64) {
    let folder = format!("/proc/self/task/{}", std::process::id());
    let text = fs::read_to_string(format!("{folder}/schedstat")).unwrap_or_default();
    let ns = text
        .split_whitespace()
        .next()
        .and_then(|ns| ns.parse().ok());
    static LAST: LastTimes = LastTimes::new((0.0, 0.0));
    never_less(
        &LAST,
        divided(ns.unwrap_or(0.0) / 1e9, &format!("{folder}/stat")),
    )
}

/// The times that were reported last.
type LastTimes = Mutex<(f64, f64)>;

/// Keeps both times from falling, because counters must not fall: the parts are estimates, and an
/// estimate may.
fn never_less(last: &LastTimes, now: (f64, f64)) -> (f64, f64) {
    let mut last = last.lock().unwrap_or_else(PoisonError::into_inner);
    *last = (last.0.max(now.0), last.1.max(now.1));
    *last
}

/// Divides the CPU time `all` into user and system time. The kernel counts these two in ticks, but
/// their sum to the nanosecond.
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
pub fn system() -> String {
    let name = rustix::system::uname();
    let text = |part: &std::ffi::CStr| part.to_string_lossy().into_owned();
    format!(
        "{} {} {}",
        text(name.sysname()),
        text(name.release()),
        text(name.machine())
    )
}

/// Descriptors that the server needs beside its clients: listeners, epoll, mailboxes, log, admin
/// connections.
const OTHER_FILES: u64 = 128;
/// Descriptors of a reactor thread.
const FILES_PER_THREAD: u64 = 8;

/// Raises the limit of open files for `maxclients`; returns the number of clients that fit, if the
/// system allows fewer.
pub fn raise_file_limit(maxclients: usize, threads: usize) -> Option<usize> {
    let others = OTHER_FILES + FILES_PER_THREAD * threads as u64;
    let wanted = maxclients as u64 + others;
    let now = getrlimit(Resource::Nofile);
    let allowed = |limit: Option<u64>| limit.is_none_or(|limit| limit >= wanted);
    if allowed(now.current) {
        return None;
    }
    let current = if allowed(now.maximum) {
        Some(wanted)
    } else {
        now.maximum
    };
    // A privileged process may raise the maximum as well.
    let maximum = if allowed(now.maximum) {
        now.maximum
    } else {
        Some(wanted)
    };
    if setrlimit(
        Resource::Nofile,
        Rlimit {
            current: Some(wanted),
            maximum,
        },
    )
    .is_ok()
    {
        return None;
    }
    let _ = setrlimit(
        Resource::Nofile,
        Rlimit {
            current,
            maximum: now.maximum,
        },
    );
    let current = getrlimit(Resource::Nofile).current.unwrap_or(wanted);
    (current < wanted).then(|| current.saturating_sub(others) as usize)
}
