//! RAM held to a number of bytes by a memory cgroup, and a swap file. Both need root, and are taken away again.

use crate::harness::{Doing, Failure, Result};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Where the kernel has its memory cgroups, by version.
const FIRST: &str = "/sys/fs/cgroup/memory";
const SECOND: &str = "/sys/fs/cgroup";

/// A memory cgroup of its own.
pub struct Limit(PathBuf);

impl Limit {
    /// Of `bytes`; what does not fit may go to swap, if there is one.
    ///
    /// # Errors
    /// No memory cgroup can be made.
    pub fn new(bytes: u64) -> Result<Limit> {
        let first = Path::new(FIRST).join("memory.limit_in_bytes").exists();
        let (top, file) = if first {
            (FIRST, "memory.limit_in_bytes")
        } else {
            (SECOND, "memory.max")
        };
        let group = Path::new(top).join(format!("duramen-bench-{}", std::process::id()));
        std::fs::create_dir_all(&group).doing("making a memory cgroup (are you root?)")?;
        let limit = Limit(group);
        std::fs::write(limit.0.join(file), bytes.to_string()).doing("limiting a memory cgroup")?;
        Ok(limit)
    }

    /// A program within the limit.
    pub fn command(&self, program: &Path) -> Command {
        let mut command = Command::new("sh");
        command
            .arg("-c")
            .arg(r#"echo $$ > "$0" && exec "$@""#)
            .arg(self.0.join("cgroup.procs"))
            .arg(program);
        command
    }
}

impl Drop for Limit {
    fn drop(&mut self) {
        // Its processes have ended; if the kernel still counts pages for it, an empty group stays, which harms nobody.
        let _ = std::fs::remove_dir(&self.0);
    }
}

/// A swap file that is in use.
pub struct Swap(PathBuf);

impl Swap {
    /// Of `bytes` in a directory.
    ///
    /// # Errors
    /// The file cannot be made, or the kernel does not take it.
    pub fn new(dir: &Path, bytes: u64) -> Result<Swap> {
        let file = dir.join("swap");
        let swap = Swap(file.clone());
        run(Command::new("fallocate")
            .args(["-l", &bytes.to_string()])
            .arg(&file))?;
        run(Command::new("chmod").arg("600").arg(&file))?;
        run(Command::new("mkswap").arg(&file))?;
        run(Command::new("swapon").arg(&file))?;
        Ok(swap)
    }
}

impl Drop for Swap {
    fn drop(&mut self) {
        // What fails is seen by `swapon --show`: the file is then still in use, and stays.
        if run(Command::new("swapoff").arg(&self.0)).is_ok() {
            let _ = std::fs::remove_file(&self.0);
        }
    }
}

fn run(command: &mut Command) -> Result<()> {
    let name = command.get_program().to_string_lossy().into_owned();
    let output = command.stdin(Stdio::null()).output().doing(&name)?;
    if output.status.success() {
        return Ok(());
    }
    Err(Failure::new(name, String::from_utf8_lossy(&output.stderr)))
}
