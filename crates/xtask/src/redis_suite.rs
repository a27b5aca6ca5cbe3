//! The test suite of Redis, from Debian's source package. If it can't be had, its tests report that
//! and skip: the package may be unreachable, or the machine not a Debian.

use std::path::Path;
use std::process::Command;

use crate::process::{self, once};
use crate::tools;

/// Programs that fetch and run it, and their Debian packages.
const TOOLS: [(&str, &str); 2] = [
    ("dpkg-source", "dpkg-dev"),
    ("redis-benchmark", "redis-tools"),
];

/// Brings it into the folder `redis-suite` of `built`.
pub(crate) fn provide(built: &Path) {
    let tools = tools::provide_these(&TOOLS).and_then(|()| tools::provide_tcl());
    if let Err(why) = tools.and_then(|()| fetch(&built.join("redis-suite"))) {
        println!("the test suite of Redis cannot be had, its tests are skipped: {why}");
    }
}

fn fetch(folder: &Path) -> Result<(), String> {
    let source = process::root().join("tests/redis_suite");
    let sources = ["fetch", "suite.sed", "redis-server"].map(|file| source.join(file));
    once(folder, &sources, || {
        process::run(Command::new(&sources[0]).arg(folder))
    })
}
