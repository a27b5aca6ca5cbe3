//! Programs that read and check a server's metrics: redis_exporter and promtool. Tests that need
//! one report and skip if it is missing: its module or package may be unreachable, or the Go of
//! this machine too old.

use std::path::Path;
use std::process::Command;

use crate::process::{self, go, once};

/// The program of redis_exporter; its version is in `tests/exporter/go.mod`.
const EXPORTER: &str = "github.com/oliver006/redis_exporter";

/// Installs both into `built`, each into a folder of its own.
pub(crate) fn provide(built: &Path) {
    for (name, bring) in [
        (
            "redis_exporter",
            exporter as fn(&Path) -> Result<(), String>,
        ),
        ("promtool", promtool),
    ] {
        if let Err(why) = bring(&built.join(name)) {
            println!("{name} cannot be had, its tests are skipped: {why}");
        }
    }
}

fn exporter(folder: &Path) -> Result<(), String> {
    let source = process::root().join("tests/exporter");
    let sources = ["go.mod", "go.sum"].map(|file| source.join(file));
    once(folder, &sources, || {
        let mut build = go(
            &source,
            &["build", "-mod=readonly", "-buildvcs=false", "-o"],
        );
        process::run(build.arg(folder.join("redis_exporter")).arg(EXPORTER))
    })
}

/// Unpacked from Debian's package, because installing it would add a service.
fn promtool(folder: &Path) -> Result<(), String> {
    once(folder, &[], || {
        let mut download = Command::new("apt-get");
        download
            .args(["download", "-q", "prometheus"])
            .current_dir(folder);
        process::run(&mut download)?;
        let files = std::fs::read_dir(folder)
            .map_err(|error| format!("cannot list {}: {error}", folder.display()))?;
        let is_package =
            |path: &std::path::PathBuf| path.extension().is_some_and(|end| end == "deb");
        let package = files
            .filter_map(|file| Some(file.ok()?.path()))
            .find(is_package)
            .ok_or("apt-get brought no package")?;
        process::run(Command::new("dpkg").arg("-x").arg(&package).arg(folder))?;
        let program = folder.join("usr/bin/promtool");
        std::fs::rename(&program, folder.join("promtool"))
            .map_err(|error| format!("cannot move {}: {error}", program.display()))
    })
}
