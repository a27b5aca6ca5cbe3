//! `cargo xtask release`: the program to ship, with its debug lines beside it.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::process;

/// Most bytes of the shipped program.
const BYTES_MAX: u64 = 15_000_000;

/// Builds `target/shipped/duramen` and `target/shipped/duramen.debug`. A backtrace of the program
/// has the names of functions; with the second file beside it, files and lines too.
pub(crate) fn run() -> Result<(), String> {
    let (shipped, _) = divide(&build()?, &process::target().join("shipped"))?;
    let bytes = std::fs::metadata(&shipped)
        .map_err(|error| format!("cannot look at {}: {error}", shipped.display()))?
        .len();
    println!("{}: {bytes} bytes", shipped.display());
    if bytes > BYTES_MAX {
        return Err(format!(
            "the program has {bytes} bytes, and {BYTES_MAX} at most are shipped"
        ));
    }
    Ok(())
}

/// Builds the program; returns its path.
pub(crate) fn build() -> Result<PathBuf, String> {
    let build = ["build", "--profile", "ship", "--package", "duramen-cli"];
    process::run(&mut process::cargo(&build))?;
    Ok(process::target().join("ship/duramen"))
}

/// Divides a program into one without debug lines and a file that has them; both go to `folder`.
pub(crate) fn divide(built: &Path, folder: &Path) -> Result<(PathBuf, PathBuf), String> {
    std::fs::create_dir_all(folder)
        .map_err(|error| format!("cannot create {}: {error}", folder.display()))?;
    let (shipped, lines) = (folder.join("duramen"), folder.join("duramen.debug"));
    let mut keep = Command::new("objcopy");
    keep.arg("--only-keep-debug").args([built, &lines]);
    process::run(&mut keep)?;
    // The name of the file and its checksum become part of the program.
    let mut link = std::ffi::OsString::from("--add-gnu-debuglink=");
    link.push(&lines);
    let mut strip = Command::new("objcopy");
    strip.arg("--strip-debug").arg(link).args([built, &shipped]);
    process::run(&mut strip)?;
    Ok((shipped, lines))
}
