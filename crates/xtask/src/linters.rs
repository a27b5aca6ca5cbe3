//! Programs that check packages, units, charts and container files: buildah, lintian, logrotate,
//! hadolint, Helm, the schemas of Kubernetes. Tests that need one report and skip if it is missing.

use std::path::Path;
use std::process::Command;

use crate::process::{self, once};
use crate::tools;

/// Programs, and their Debian packages.
const TOOLS: [(&str, &str); 4] = [
    ("buildah", "buildah"),
    ("lintian", "lintian"),
    ("logrotate", "logrotate"),
    ("systemd-analyze", "systemd"),
];

/// Installs all of them; Python's packages into the folder `linters` of `built`.
pub(crate) fn provide(built: &Path) {
    if let Err(why) = tools::provide_these(&TOOLS).and_then(|()| packages(&built.join("linters"))) {
        println!("some linters cannot be had, their tests are skipped: {why}");
    }
}

/// The packages of `tests/packages/requirements.txt`, in an environment of their own: the clients'
/// tests work without them.
fn packages(home: &Path) -> Result<(), String> {
    let requirements = process::root().join("tests/packages/requirements.txt");
    once(home, std::slice::from_ref(&requirements), || {
        let venv = ["-m", "venv", "--clear"];
        process::run(Command::new("python3").args(venv).arg(home))?;
        let pip = [
            "-m",
            "pip",
            "install",
            "--quiet",
            "--disable-pip-version-check",
        ];
        let mut install = Command::new(home.join("bin/python"));
        install.args(pip).arg("--requirement").arg(&requirements);
        process::run(&mut install)
    })
}
