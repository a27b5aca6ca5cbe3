//! Limit of this process's memory: the machine's memory, or the lower limit of a control group (v1
//! or v2).
//!
//! A limit of a group holds for all groups below it. So every group from this process's own up to
//! the root is read.
#![deny(clippy::unwrap_used, clippy::indexing_slicing)]

use std::fs;
use std::path::{Component, Path, PathBuf};

/// The limit of this process's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryLimit {
    pub bytes: u64,
    /// The same limit with the swap space that this process may use.
    pub with_swap_bytes: u64,
    /// Whether a control group sets the limit, not the machine.
    pub by_group: bool,
}

/// Memory of the process beside its budget, in percent of the budget and in bytes. See *Memory* in
/// docs/operations.md.
const BESIDE_PERCENT: u64 = 10;
const BESIDE_BYTES: u64 = 10_000_000;

impl MemoryLimit {
    /// The limit of this process; `None` if the system does not report it.
    pub fn now() -> Option<MemoryLimit> {
        MemoryLimit::read(Path::new("/"))
    }

    /// As [`now`](Self::now), for a system whose files are under `root`.
    fn read(root: &Path) -> Option<MemoryLimit> {
        let text = fs::read_to_string(root.join("proc/meminfo")).ok()?;
        let kilobytes = |name: &str| {
            let line = text.lines().find_map(|line| line.strip_prefix(name))?;
            line.split_whitespace().next()?.parse::<u64>().ok()
        };
        let bytes = kilobytes("MemTotal:")? << 10;
        let swap_bytes = kilobytes("SwapTotal:").unwrap_or(0) << 10;
        let mut limit = MemoryLimit {
            bytes,
            with_swap_bytes: bytes + swap_bytes,
            by_group: false,
        };
        for (group, is_v2) in groups(root) {
            limit.lower(&group, is_v2, swap_bytes);
        }
        Some(limit)
    }

    /// Lowers the limit to that of a control group, read from its files.
    fn lower(&mut self, group: &Path, is_v2: bool, swap_bytes: u64) {
        let number = |name: &str| -> Option<u64> {
            // In v2 `max` stands for no limit; in v1 a very large number does.
            fs::read_to_string(group.join(name))
                .ok()?
                .trim()
                .parse()
                .ok()
        };
        let (bytes, with_swap_bytes) = if is_v2 {
            let bytes = number("memory.max");
            let swap = number("memory.swap.max").unwrap_or(swap_bytes);
            (bytes, bytes.map(|bytes| bytes.saturating_add(swap)))
        } else {
            let bytes = number("memory.limit_in_bytes");
            let both = number("memory.memsw.limit_in_bytes");
            (
                bytes,
                both.or(bytes.map(|bytes| bytes.saturating_add(swap_bytes))),
            )
        };
        if let Some(bytes) = bytes.filter(|bytes| *bytes < self.bytes) {
            self.bytes = bytes;
            self.by_group = true;
        }
        if let Some(bytes) = with_swap_bytes {
            self.with_swap_bytes = self.with_swap_bytes.min(bytes);
        }
    }

    /// A percentage of the limit, in whole MiB.
    pub fn share(&self, percent: u8) -> u64 {
        let bytes = u128::from(self.bytes) * u128::from(percent) / 100;
        (bytes as u64) >> 20 << 20
    }

    fn owner(&self) -> &'static str {
        if self.by_group {
            "the control group of this process allows"
        } else {
            "this machine has"
        }
    }

    /// Checks whether a budget of `memory_bytes` fits. Returns a warning, if there is one.
    ///
    /// # Errors
    /// It does not fit: the kernel would kill the process long before the budget is used.
    pub fn judge(&self, memory_bytes: u64) -> Result<Option<String>, String> {
        let (has, owner) = (about(self.bytes), self.owner());
        let memory = about(memory_bytes);
        // The largest budget that leaves room for the rest.
        let fits = self.bytes.saturating_sub(BESIDE_BYTES) / (100 + BESIDE_PERCENT) * 100;
        let fits = about(fits);
        if memory_bytes > self.with_swap_bytes {
            return Err(format!(
                "memory: {memory} is more than {owner} ({has}): the kernel would kill the server before it is full; \
                 {fits} fits, or say a share as `--memory 80%`"
            ));
        }
        let needed = memory_bytes / 100 * (100 + BESIDE_PERCENT) + BESIDE_BYTES;
        if needed <= self.bytes {
            return Ok(None);
        }
        Ok(Some(format!(
            "memory is {memory}, for which the process takes up to {}, but {owner} only {has}: the kernel may kill the server \
             when it fills up; {fits} fits, or say a share as `--memory 80%`",
            about(needed)
        )))
    }
}

/// A number of bytes in readable form.
fn about(bytes: u64) -> String {
    for (shift, unit) in [(40, "tb"), (30, "gb"), (20, "mb")] {
        if bytes >= 1 << shift {
            let value = bytes as f64 / (1u64 << shift) as f64;
            let decimals = usize::from(value.fract() >= 0.05 && value < 100.0);
            return format!("{value:.decimals$}{unit}");
        }
    }
    format!("{bytes} bytes")
}

/// The folders of this process's control groups, its own group first; each with whether it is v2.
fn groups(root: &Path) -> Vec<(PathBuf, bool)> {
    let text = |name: &str| fs::read_to_string(root.join(name)).unwrap_or_default();
    let (memberships, mounts) = (text("proc/self/cgroup"), text("proc/self/mountinfo"));
    let mut found = Vec::new();
    for line in memberships.lines() {
        let mut fields = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(path)) = (fields.next(), fields.next()) else {
            continue;
        };
        let is_v2 = controllers.is_empty();
        if !is_v2 && !controllers.split(',').any(|name| name == "memory") {
            continue;
        }
        let mount = mounts.lines().find_map(|line| mount(line, is_v2));
        let Some((mounted, at)) = mount else {
            continue;
        };
        // A container sees its own group as the root of the mount, not always under the same name.
        let below = Path::new(path)
            .strip_prefix(&mounted)
            .unwrap_or(Path::new(""));
        let at = root.join(at.strip_prefix("/").unwrap_or(&at));
        for group in below.ancestors() {
            let is_plain =
                |part: Component<'_>| matches!(part, Component::Normal(_) | Component::RootDir);
            if group.components().all(is_plain) {
                let group = group.strip_prefix("/").unwrap_or(group);
                found.push((at.join(group), is_v2));
            }
        }
    }
    found
}

/// The mounted part of a control-group hierarchy and its mount point, from a line of `mountinfo`;
/// `None` if the line describes another file system.
fn mount(line: &str, is_v2: bool) -> Option<(PathBuf, PathBuf)> {
    let (mount, kind) = line.split_once(" - ")?;
    let mut kind = kind.split(' ');
    let (name, options) = (kind.next()?, kind.nth(1).unwrap_or_default());
    let fits = if is_v2 {
        name == "cgroup2"
    } else {
        name == "cgroup" && options.split(',').any(|option| option == "memory")
    };
    let mut fields = mount.split(' ').skip(3);
    let (mounted, at) = (fields.next()?, fields.next()?);
    fits.then(|| (unescaped(mounted), unescaped(at)))
}

/// `mountinfo` writes a blank as `\040`; so do `/etc/fstab` and `/proc/self/mounts`.
pub(crate) fn unescaped(text: &str) -> PathBuf {
    PathBuf::from(text.replace("\\040", " ").replace("\\134", "\\"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const GB: u64 = 1 << 30;

    /// The limit of a system with 8 GiB of memory, 2 GiB of swap space and these files.
    fn system(files: &[(&str, &str)]) -> MemoryLimit {
        let dir = tempfile::tempdir().expect("a directory");
        let meminfo = (
            "proc/meminfo",
            "MemTotal:  8388608 kB\nMemFree: 1 kB\nSwapTotal: 2097152 kB\n",
        );
        for (name, text) in files.iter().chain([&meminfo]) {
            let path = dir.path().join(name);
            fs::create_dir_all(path.parent().expect("a folder")).expect("made");
            fs::write(path, text).expect("written");
        }
        MemoryLimit::read(dir.path()).expect("a limit")
    }

    const V2: &str = "30 23 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n";
    const V1: &str = "31 23 0:27 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu,cpuacct\n\
                      32 23 0:28 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n";

    /// A budget above a container's limit was once accepted without a warning, and the kernel
    /// killed the server when the budget was half used.
    #[test]
    fn the_lowest_limit_of_all_groups_holds() {
        let machine = MemoryLimit {
            bytes: 8 * GB,
            with_swap_bytes: 10 * GB,
            by_group: false,
        };
        assert_eq!(system(&[]), machine);
        let v2 = system(&[
            ("proc/self/cgroup", "0::/system.slice/duramen.service\n"),
            ("proc/self/mountinfo", V2),
            ("sys/fs/cgroup/memory.max", "max\n"),
            ("sys/fs/cgroup/system.slice/memory.max", "2147483648\n"),
            (
                "sys/fs/cgroup/system.slice/duramen.service/memory.max",
                "3221225472\n",
            ),
            (
                "sys/fs/cgroup/system.slice/duramen.service/memory.swap.max",
                "0\n",
            ),
        ]);
        assert_eq!(
            (v2.bytes, v2.with_swap_bytes, v2.by_group),
            (2 * GB, 3 * GB, true)
        );
        let v1 = system(&[
            (
                "proc/self/cgroup",
                "5:cpu,cpuacct:/\n4:memory:/docker/abc\n0::/\n",
            ),
            ("proc/self/mountinfo", V1),
            (
                "sys/fs/cgroup/memory/memory.limit_in_bytes",
                "9223372036854771712\n",
            ),
            (
                "sys/fs/cgroup/memory/docker/abc/memory.limit_in_bytes",
                "1073741824\n",
            ),
            (
                "sys/fs/cgroup/memory/docker/abc/memory.memsw.limit_in_bytes",
                "1073741824\n",
            ),
        ]);
        assert_eq!((v1.bytes, v1.with_swap_bytes, v1.by_group), (GB, GB, true));
        // A container with its own name space, and a container whose group is mounted under another
        // name.
        for (group, mounted) in [
            ("0::/\n", "/"),
            ("0::/host/a b\n", "/host/a\\040b"),
            ("0::/../x\n", "/"),
        ] {
            let mounts = V2.replace(" / /sys", &format!(" {mounted} /sys"));
            let inside = system(&[
                ("proc/self/cgroup", group),
                ("proc/self/mountinfo", &mounts),
                ("sys/fs/cgroup/memory.max", "1073741824\n"),
            ]);
            assert_eq!((inside.bytes, inside.by_group), (GB, true), "{group}");
        }
    }

    #[test]
    fn a_budget_that_cannot_fit_is_refused_and_a_tight_one_is_told_of() {
        let limit = MemoryLimit {
            bytes: 2 * GB,
            with_swap_bytes: 3 * GB,
            by_group: true,
        };
        assert_eq!(limit.share(80), 1638 << 20);
        assert_eq!(limit.judge(GB), Ok(None));
        assert_eq!(limit.judge(limit.share(80)), Ok(None));
        let told = limit
            .judge(2 * GB)
            .expect("not certain")
            .expect("a warning");
        assert_eq!(
            told,
            "memory is 2gb, for which the process takes up to 2.2gb, but the control group of this process allows only 2gb: \
             the kernel may kill the server when it fills up; 1.8gb fits, or say a share as `--memory 80%`"
        );
        assert!(limit.judge(3 * GB).is_ok(), "it may be swapped out");
        let refused = limit.judge(4 * GB).expect_err("certain");
        assert!(
            refused.contains("4gb is more than the control group of this process allows (2gb)"),
            "{refused}"
        );
    }
}
