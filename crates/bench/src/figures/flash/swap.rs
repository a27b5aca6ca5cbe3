//! A swap file. It needs root, and is taken away again.

use crate::harness::{Doing, Failure, Result};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

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
