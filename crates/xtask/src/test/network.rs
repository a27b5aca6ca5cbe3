//! A network namespace for each worker: no port that a test expects to be free is taken by a test
//! beside it.

use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

/// A namespace with nothing but its loopback, as long as this value lives. On a machine without the
/// right to make one, tests run in the network of this process.
#[derive(Debug)]
pub(super) struct Namespace {
    /// A process that keeps the namespace alive.
    keeper: Option<Child>,
}

impl Namespace {
    pub(super) fn new() -> Namespace {
        // `cat` ends with this process, however that ends.
        let script = "ip link set lo up && echo ready && exec cat";
        let keeper = Command::new("unshare")
            .args(["--net", "sh", "-c", script])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn();
        let mut keeper = keeper.ok();
        let is_ready = keeper.as_mut().is_some_and(|keeper| {
            let mut line = String::new();
            let output = keeper.stdout.take().map(std::io::BufReader::new);
            let mut output = output.expect("its output is a pipe");
            let read = std::io::BufRead::read_line(&mut output, &mut line);
            read.is_ok() && line == "ready\n"
        });
        let mut made = Namespace { keeper };
        if !is_ready {
            made.end();
        }
        made
    }

    /// True if tests have a network of their own.
    pub(super) fn is_own(&self) -> bool {
        self.keeper.is_some()
    }

    /// A command for `program` in this namespace.
    pub(super) fn command(&self, program: &std::ffi::OsStr) -> Command {
        let Some(keeper) = &self.keeper else {
            return Command::new(program);
        };
        let mut command = Command::new("nsenter");
        command.arg(format!("--net=/proc/{}/ns/net", keeper.id()));
        command.arg("--").arg(program);
        command
    }

    fn end(&mut self) {
        if let Some(mut keeper) = self.keeper.take() {
            let _ = keeper.kill();
            let _ = keeper.wait();
        }
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        self.end();
    }
}

/// The network of this process, for tests that bring something from a registry.
pub(super) fn outside() -> PathBuf {
    PathBuf::from(format!("/proc/{}/ns/net", std::process::id()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_namespaces_have_the_same_port_free() {
        let spaces = [Namespace::new(), Namespace::new()];
        if !spaces.iter().all(Namespace::is_own) {
            println!("SKIPPED: no network namespaces here");
            return;
        }
        // Each of the two binds the same port while the other one holds it.
        let script = "import socket,sys\ns=socket.create_server(('127.0.0.1',4000))\nprint('bound',flush=True)\nsys.stdin.read()";
        let mut running: Vec<Child> = spaces
            .iter()
            .map(|space| {
                let mut command = space.command("python3".as_ref());
                command.args(["-c", script]);
                command.stdin(Stdio::piped()).stdout(Stdio::piped());
                command.spawn().expect("python3")
            })
            .collect();
        for child in &mut running {
            let mut line = String::new();
            let output = child.stdout.take().expect("a pipe");
            let mut output = std::io::BufReader::new(output);
            std::io::BufRead::read_line(&mut output, &mut line).expect("its output");
            assert_eq!(line, "bound\n");
        }
        for mut child in running {
            drop(child.stdin.take());
            assert!(child.wait().expect("its end").success());
        }
    }
}
