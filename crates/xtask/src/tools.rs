//! Programs that the tests in Rust and Go call. `tests/provide.py` installs them, as the fixtures
//! of the tests in Python do with theirs.

use std::ffi::OsString;
use std::process::Command;

use crate::process;

/// Programs, as `tests/provide.py` names them.
const PROGRAMS: [&str; 4] = ["etcd", "redis-server", "pkg-config", "go"];

/// Makes sure that every program is installed.
///
/// # Errors
/// A sentence; the output before it names what to install by hand.
pub(crate) fn provide() -> Result<(), String> {
    let script = process::root().join("tests/provide.py");
    let mut command = Command::new("python3");
    command
        .arg(script)
        .args(PROGRAMS)
        .env("DURAMEN_TEST_BUILT", process::target().join("clients"));
    process::run(&mut command)
}

/// The search path of the tests: with the programs that `tests/provide.py` makes, and the folders
/// of administration commands, which the path of a user may lack.
pub(crate) fn path() -> OsString {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let made = process::target().join("clients/bin");
    let more = [made, "/usr/sbin".into(), "/sbin".into()];
    let folders = std::env::split_paths(&path).chain(more);
    std::env::join_paths(folders).unwrap_or(path.clone())
}
