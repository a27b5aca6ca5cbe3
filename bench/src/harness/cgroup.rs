//! Memory cgroups: limits for a process and its part of the page cache. They need root, and are
//! removed afterwards.

use crate::harness::Undo;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};

/// A memory cgroup; it is removed when this is dropped, which must be after its processes.
pub struct Group {
    path: PathBuf,
    _undo: Undo,
}

impl Group {
    /// Limited to so many bytes; memory beyond the limit may go to swap, if there is one.
    ///
    /// # Errors
    /// The system allows none: this is not root, or there is no memory controller.
    pub fn new(limit_bytes: u64) -> std::io::Result<Group> {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let (place, limit) = place();
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let path = place.join(format!("duramen-bench-{}-{number}", std::process::id()));
        std::fs::create_dir_all(&path)?;
        let made = path.clone();
        let group = Group {
            path,
            _undo: Undo::new(move || {
                // The kernel refuses as long as it still has memory of the group: then the group
                // stays empty, which does no harm.
                let _ = std::fs::remove_dir(made);
            }),
        };
        std::fs::write(group.path.join(limit), limit_bytes.to_string())?;
        Ok(group)
    }

    /// The reason why no group can be made here.
    pub fn missing() -> Option<String> {
        Group::new(1 << 40).err().map(|error| error.to_string())
    }

    /// Adds a running process; its present memory stays counted in its old group.
    ///
    /// # Errors
    /// The process has gone, or may not be moved.
    pub fn take(&self, process: u32) -> std::io::Result<()> {
        std::fs::write(self.path.join("cgroup.procs"), process.to_string())
    }

    /// A command that runs a program within the limit from its start.
    pub fn command(&self, program: &Path) -> Command {
        let mut command = Command::new("sh");
        command
            .arg("-c")
            .arg(r#"echo $$ > "$0" && exec "$@""#)
            .arg(self.path.join("cgroup.procs"))
            .arg(program);
        command
    }
}

/// The directory of memory groups, and the name of the file with a group's limit, by version.
fn place() -> (&'static Path, &'static str) {
    let first = Path::new("/sys/fs/cgroup/memory");
    if first.join("memory.limit_in_bytes").exists() {
        return (first, "memory.limit_in_bytes");
    }
    (Path::new("/sys/fs/cgroup"), "memory.max")
}
