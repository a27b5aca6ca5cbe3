//! The kernel's figures of this process, also as metrics under the names that all programs use.

use super::metrics::{counter, gauge};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;
use std::fmt;
use std::fs;
use std::time::Duration;

pub(super) struct Memory {
    pub(super) resident_bytes: u64,
    pub(super) virtual_bytes: u64,
}

/// None where there is no `/proc`.
pub(super) fn memory() -> Option<Memory> {
    let text = fs::read_to_string("/proc/self/statm").ok()?;
    let mut pages = text.split_ascii_whitespace().map(str::parse::<u64>);
    let page_bytes = rustix::param::page_size() as u64;
    let virtual_bytes = pages.next()?.ok()? * page_bytes;
    let resident_bytes = pages.next()?.ok()? * page_bytes;
    Some(Memory {
        resident_bytes,
        virtual_bytes,
    })
}

/// CPU time of all threads, user and system time together.
fn cpu_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

fn open_files() -> Option<u64> {
    Some(fs::read_dir("/proc/self/fd").ok()?.count() as u64)
}

/// Maximum number of open file descriptors; None: no limit.
fn open_files_max() -> Option<u64> {
    rustix::process::getrlimit(rustix::process::Resource::Nofile).current
}

/// When the process started, in seconds since 1970.
fn start_time() -> Option<f64> {
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

fn threads() -> Option<u64> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let threads = status
        .lines()
        .find_map(|line| line.strip_prefix("Threads:"))?;
    threads.trim().parse().ok()
}

/// `process_*`.
#[derive(Debug)]
pub(super) struct Figures;

impl Collector for Figures {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        counter(
            &mut encoder,
            "process_cpu_seconds",
            "CPU time, user and system.",
            cpu_time().as_secs_f64(),
        )?;
        let memory = memory();
        let resident = memory.as_ref().map(|memory| memory.resident_bytes as f64);
        let reserved = memory.as_ref().map(|memory| memory.virtual_bytes as f64);
        for (name, help, value) in [
            (
                "process_resident_memory_bytes",
                "Resident memory.",
                resident,
            ),
            ("process_virtual_memory_bytes", "Address space.", reserved),
            (
                "process_open_fds",
                "Open file descriptors.",
                open_files().map(|files| files as f64),
            ),
            (
                "process_max_fds",
                "File descriptors that may be open.",
                open_files_max().map(|files| files as f64),
            ),
            (
                "process_threads",
                "Threads of the process.",
                threads().map(|threads| threads as f64),
            ),
            (
                "process_start_time_seconds",
                "When the process began, in seconds since 1970.",
                start_time(),
            ),
        ] {
            if let Some(value) = value {
                gauge(&mut encoder, name, help, value)?;
            }
        }
        Ok(())
    }
}
