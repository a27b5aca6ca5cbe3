//! Tools that the runner of the tests and the tests in Rust and Go need on a machine, and their
//! installation.

use std::ffi::OsString;
use std::process::{Command, Stdio};

use crate::process;

/// A program, and its Debian packages.
struct Tool {
    program: &'static str,
    packages: &'static [&'static str],
}

/// Python's tests bring what they need themselves (tests/provide.py).
const TOOLS: [Tool; 7] = [
    Tool {
        program: "redis-cli",
        packages: &["redis-tools"],
    },
    Tool {
        program: "etcd",
        packages: &["etcd-server"],
    },
    Tool {
        program: "pkg-config",
        packages: &["pkg-config"],
    },
    Tool {
        program: "ip",
        packages: &["iproute2"],
    },
    Tool {
        program: "nsenter",
        packages: &["util-linux"],
    },
    Tool {
        program: "python3",
        packages: &["python3", "python3-venv"],
    },
    Tool {
        program: "go",
        packages: &["golang-go"],
    },
];

/// Makes sure that every tool is installed, by `apt-get` if possible.
///
/// # Errors
/// A sentence that names what to install by hand.
pub(crate) fn provide() -> Result<(), String> {
    let mut packages: Vec<&str> = TOOLS
        .iter()
        .filter(|tool| !is_here(tool.program))
        .flat_map(|tool| tool.packages.iter().copied())
        .collect();
    if !packages.contains(&"python3-venv") && !runs("python3", &["-c", "import venv, ensurepip"]) {
        packages.push("python3-venv");
    }
    install(&packages)
}

/// Installs packages by `apt-get`.
fn install(packages: &[&str]) -> Result<(), String> {
    if packages.is_empty() {
        return Ok(());
    }
    let by_hand = format!(
        "the tests need these packages, install them first: apt-get install {}",
        packages.join(" ")
    );
    let root = process::output(Command::new("id").arg("-u"))?.trim() == "0";
    let mut prefix: Vec<&str> = Vec::new();
    if !root {
        if !runs("sudo", &["-n", "true"]) {
            return Err(by_hand);
        }
        prefix.push("sudo");
    }
    if !runs("apt-get", &["--version"]) {
        return Err(by_hand);
    }
    println!("installing {}", packages.join(" "));
    let apt = |arguments: &[&str]| {
        let mut words = prefix.clone();
        words.extend(["env", "DEBIAN_FRONTEND=noninteractive", "apt-get"]);
        words.extend(arguments);
        process::run(Command::new(words[0]).args(&words[1..]))
    };
    apt(&["update", "-q"])
        .and_then(|()| {
            let mut arguments = vec!["install", "-y", "-q", "--no-install-recommends"];
            arguments.extend(packages);
            apt(&arguments)
        })
        .map_err(|error| format!("{error}; {by_hand}"))
}

/// The search path of the tests. If only redis-tools is installed, the path contains redis-server
/// too: Debian's redis-check-rdb is the same program under another name, and the package
/// redis-server would only add a service that takes port 6379.
pub(crate) fn path() -> OsString {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let find = |name: &str| {
        std::env::split_paths(&path)
            .map(|folder| folder.join(name))
            .find(|file| file.is_file())
    };
    let ours = process::target().join("clients/bin");
    if let (None, Some(program)) = (find("redis-server"), find("redis-check-rdb")) {
        let link = ours.join("redis-server");
        // If the link can't be made, the tests that need redis-server report that.
        let _ = std::fs::create_dir_all(&ours);
        let _ = std::os::unix::fs::symlink(program, link);
    }
    let folders = std::env::split_paths(&path).chain([ours]);
    std::env::join_paths(folders).unwrap_or(path.clone())
}

/// A user's search path may lack the folders of administration commands.
fn is_here(program: &str) -> bool {
    let places = [program.to_owned(), format!("/usr/sbin/{program}")];
    places.iter().any(|program| {
        let asked = ["--version", "version", "-V"];
        asked.iter().any(|argument| runs(program, &[argument]))
    })
}

fn runs(program: &str, arguments: &[&str]) -> bool {
    Command::new(program)
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|status| status.success())
}
