//! Facts about this machine, the date, and the resources of a process.

use super::{Doing, Failure, Result};
use rustix::io::Errno;
use rustix::process::Pid;
use rustix::thread::{CpuSet, sched_setaffinity};
use serde::Serialize;
use std::ops::Range;
use std::time::{SystemTime, UNIX_EPOCH};

/// Facts printed beside every figure: absolute numbers mean nothing without them.
#[derive(Clone, Debug, Serialize)]
pub struct Machine {
    pub cpu: String,
    pub cores: usize,
    pub memory_bytes: u64,
    pub kernel: String,
    pub transparent_huge_pages: String,
}

impl Machine {
    pub fn detect() -> Machine {
        let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
        let field = |text: &str, name: &str| {
            let line = text.lines().find(|line| line.starts_with(name));
            let value = line.and_then(|line| line.split_once(':'));
            value.map_or("unknown".to_owned(), |(_, value)| value.trim().to_owned())
        };
        let memory = field(&read("/proc/meminfo"), "MemTotal");
        let memory_kib: u64 = memory.trim_end_matches(" kB").parse().unwrap_or(0);
        let pages = read("/sys/kernel/mm/transparent_hugepage/enabled");
        Machine {
            cpu: field(&read("/proc/cpuinfo"), "model name"),
            cores: cores(),
            memory_bytes: memory_kib * 1024,
            kernel: read("/proc/sys/kernel/osrelease").trim().to_owned(),
            transparent_huge_pages: between(&pages, '[', ']').unwrap_or("unknown").to_owned(),
        }
    }
}

fn between(text: &str, open: char, close: char) -> Option<&str> {
    text.split_once(open)?
        .1
        .split_once(close)
        .map(|(inner, _)| inner)
}

/// Touches free memory, up to half of it, and gives it back. On a hypervisor that takes free pages
/// from its guests, the next touch of a page costs ten times as much: this function pays that cost
/// before the measurement.
pub fn touch_free_memory(bytes: u64) {
    let meminfo = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let free_kib = meminfo
        .lines()
        .find_map(|line| line.strip_prefix("MemFree:"))
        .and_then(|rest| rest.trim().trim_end_matches(" kB").parse::<u64>().ok());
    let bytes = bytes.min(free_kib.unwrap_or(0) * 1024 / 2);
    std::hint::black_box(vec![1u8; bytes as usize]);
}

/// Lets all threads of a process run on these cores only.
///
/// # Errors
/// The process has gone, or there is no such core.
pub fn tie(pid: u32, cores: Range<usize>) -> Result<()> {
    let doing = || format!("tying process {pid} to cores");
    let mut set = CpuSet::new();
    cores.for_each(|core| set.set(core));
    for entry in std::fs::read_dir(format!("/proc/{pid}/task")).doing(doing())? {
        let name = entry.doing(doing())?.file_name();
        let thread = name.to_str().and_then(|name| name.parse().ok());
        let thread = thread.and_then(Pid::from_raw);
        match sched_setaffinity(thread, &set) {
            Err(Errno::SRCH) | Ok(()) => {}
            Err(error) => return Err(Failure::new(doing(), error)),
        }
    }
    Ok(())
}

/// Cores this process may use.
pub fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// Resident set size of a process (`None` = this one), in bytes.
pub fn rss_bytes(pid: Option<u32>) -> Result<u64> {
    let path = pid.map_or("/proc/self/statm".to_owned(), |pid| {
        format!("/proc/{pid}/statm")
    });
    let text = std::fs::read_to_string(&path).doing(format!("reading {path}"))?;
    let pages: Option<u64> = text.split_whitespace().nth(1).and_then(|n| n.parse().ok());
    let pages = pages
        .ok_or("no second number")
        .doing(format!("reading {path}"))?;
    Ok(pages * rustix::param::page_size() as u64)
}

/// Processor time of a process since its start (user + system, all threads), in nanoseconds. From
/// the scheduler's own statistics where the kernel has them, else in clock ticks of usually 10 ms.
pub fn cpu_ns(pid: u32) -> Result<u64> {
    let tasks = format!("/proc/{pid}/task");
    let mut sum_ns = 0u64;
    let mut seen = false;
    for task in std::fs::read_dir(&tasks)
        .doing(format!("reading {tasks}"))?
        .flatten()
    {
        let text = std::fs::read_to_string(task.path().join("schedstat")).unwrap_or_default();
        let ns: Option<u64> = text.split_whitespace().next().and_then(|n| n.parse().ok());
        seen |= ns.is_some_and(|ns| ns > 0);
        sum_ns += ns.unwrap_or(0);
    }
    if seen {
        return Ok(sum_ns);
    }
    let ticks: u64 = user_and_kernel_ticks(pid)?.iter().sum();
    Ok(ticks * 1_000_000_000 / rustix::param::clock_ticks_per_second())
}

/// Time for which threads of a process were ready to run and had no processor, since its start, in
/// nanoseconds; 0 if the kernel does not count it. Threads that have ended do not count.
pub fn waited_ns(pid: u32) -> Result<u64> {
    let tasks = format!("/proc/{pid}/task");
    let tasks = std::fs::read_dir(&tasks).doing(format!("reading {tasks}"))?;
    let waited = tasks.flatten().filter_map(|task| {
        let text = std::fs::read_to_string(task.path().join("schedstat")).ok()?;
        text.split_whitespace().nth(1)?.parse::<u64>().ok()
    });
    Ok(waited.sum())
}

/// Processor time of a process since its start in its own code, and in the kernel for it, in clock
/// ticks of usually 10 ms: by samples, so only sums over many ticks mean something.
pub fn user_and_kernel_ticks(pid: u32) -> Result<[u64; 2]> {
    let path = format!("/proc/{pid}/stat");
    let text = std::fs::read_to_string(&path).doing(format!("reading {path}"))?;
    ticks_of(&text)
        .ok_or("no times")
        .doing(format!("reading {path}"))
}

/// User and kernel ticks of a `stat` file.
fn ticks_of(stat: &str) -> Option<[u64; 2]> {
    // The command in brackets may contain blanks: count fields after it.
    let (_, fields) = stat.rsplit_once(')')?;
    let mut ticks = fields.split_whitespace().skip(11);
    let mut next = || ticks.next()?.parse().ok();
    Some([next()?, next()?])
}

/// Processor time of some threads.
#[derive(Clone, Copy, Debug, Default)]
pub struct ThreadTimes {
    pub cpu_ns: u64,
    /// In their own code, and in the kernel: as of [`user_and_kernel_ticks`].
    pub ticks: [u64; 2],
}

/// The threads of this process whose names begin so; all 0 if there is none.
pub fn threads(name_begins: &str) -> ThreadTimes {
    let mut sum = ThreadTimes::default();
    let Ok(tasks) = std::fs::read_dir("/proc/self/task") else {
        return sum;
    };
    for task in tasks.flatten() {
        let read = |file| std::fs::read_to_string(task.path().join(file)).unwrap_or_default();
        if !read("comm").starts_with(name_begins) {
            continue;
        }
        let ns = read("schedstat");
        let ns = ns.split_whitespace().next().and_then(|ns| ns.parse().ok());
        sum.cpu_ns += ns.unwrap_or(0u64);
        let [user, kernel] = ticks_of(&read("stat")).unwrap_or_default();
        sum.ticks = [sum.ticks[0] + user, sum.ticks[1] + kernel];
    }
    sum
}

/// Now, as `2026-11-21T10:59:00Z`.
pub fn date_utc() -> String {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    format_utc(since.map_or(0, |since| since.as_secs()))
}

/// Civil date from days since 1970: H. Hinnant's `civil_from_days`.
fn format_utc(seconds: u64) -> String {
    let (days, second) = (seconds / 86_400, seconds % 86_400);
    let shifted = days + 719_468;
    let (era, of_era) = (shifted / 146_097, shifted % 146_097);
    let year_of_era = (of_era - of_era / 1_460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let from_march = (5 * of_year + 2) / 153;
    let day = of_year - (153 * from_march + 2) / 5 + 1;
    let month = if from_march < 10 {
        from_march + 3
    } else {
        from_march - 9
    };
    let year = year_of_era + era * 400 + u64::from(month <= 2);
    let (h, m, s) = (second / 3600, second / 60 % 60, second % 60);
    format!("{year:04}-{month:02}-{day:02}T{h:02}:{m:02}:{s:02}Z")
}

/// Raises the limit of open descriptors as far as the system allows: here, and in processes that
/// are started later.
pub fn raise_file_limit() -> Result<()> {
    use rustix::process::{Resource, getrlimit, setrlimit};
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    setrlimit(Resource::Nofile, limit).doing("raising the limit of open files")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_civil_dates() {
        assert_eq!(format_utc(0), "1970-01-01T00:00:00Z");
        assert_eq!(format_utc(951_782_399), "2000-02-28T23:59:59Z");
        assert_eq!(format_utc(951_782_400), "2000-02-29T00:00:00Z");
        assert_eq!(format_utc(1_795_257_540), "2026-11-21T10:39:00Z");
    }

    #[test]
    fn threads_are_told_apart_by_their_names() {
        let stop = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            let busy = || {
                while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
            };
            let named = std::thread::Builder::new().name("machine-test-9".to_owned());
            named.spawn_scoped(scope, busy).unwrap();
            let deadline = std::time::Instant::now() + std::time::Duration::from_secs(60);
            while threads("machine-test-").cpu_ns == 0 && std::time::Instant::now() < deadline {}
            let (seen, others) = (threads("machine-test-"), threads("no such thread"));
            stop.store(true, std::sync::atomic::Ordering::Relaxed);
            assert!(seen.cpu_ns > 0 && others.cpu_ns == 0);
        });
    }

    #[test]
    fn this_process_uses_memory_and_time() {
        assert!(rss_bytes(None).unwrap() > 100_000);
        let before = cpu_ns(std::process::id()).unwrap();
        let deadline = std::time::Instant::now() + std::time::Duration::from_secs(60);
        while cpu_ns(std::process::id()).unwrap() == before {
            assert!(
                std::time::Instant::now() < deadline,
                "no processor time was counted"
            );
        }
    }
}
