//! Processes of a cluster, started and ended by a test.

use crate::cluster::command::{Call, DURAMEN, duramen};
use std::io::{BufRead as _, BufReader, Read as _};
use std::process::{Child, ChildStderr, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

/// Longest wait; a longer one fails the test.
pub const DEADLINE: Duration = Duration::from_secs(60);

/// Waits until it holds.
pub fn until(what: &str, mut is_true: impl FnMut() -> bool) {
    let since = Instant::now();
    while !is_true() {
        assert!(since.elapsed() < DEADLINE, "never: {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// A `duramen` that runs until it is ended, with the test at the latest.
pub struct Process {
    child: Child,
    lines: Receiver<String>,
    stderr: Option<ChildStderr>,
    /// Its ready line.
    pub ready: String,
}

impl Process {
    /// Starts it without waiting.
    pub fn launch(args: &[&str]) -> Process {
        let mut child = Command::new(DURAMEN)
            .args(args)
            .current_dir(std::env::temp_dir())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the binary under test runs");
        let stdout = child.stdout.take().expect("stdout is a pipe");
        let (tell, lines) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                let _ = tell.send(line);
            }
        });
        let stderr = child.stderr.take();
        Process {
            child,
            lines,
            stderr,
            ready: String::new(),
        }
    }

    /// Starts it and waits for its ready line.
    pub fn start(args: &[&str]) -> Process {
        let mut process = Process::launch(args);
        process.await_ready();
        process
    }

    /// Waits for its ready line.
    pub fn await_ready(&mut self) {
        let until = Instant::now() + DEADLINE;
        loop {
            match self.lines.recv_timeout(Duration::from_millis(100)) {
                Ok(line) if line.starts_with("ready ") => {
                    self.ready = line;
                    return;
                }
                Ok(_) => {}
                Err(RecvTimeoutError::Timeout) if Instant::now() < until => {}
                Err(_) => {
                    let _ = self.child.kill();
                    panic!("it did not become ready: {}", self.log());
                }
            }
        }
    }

    pub fn is_running(&mut self) -> bool {
        let ended = self.child.try_wait().expect("it is ours");
        ended.is_none()
    }

    /// A field of its ready line.
    pub fn said(&self, name: &str) -> String {
        let mut fields = self
            .ready
            .split(' ')
            .filter_map(|word| word.split_once('='));
        let found = fields.find(|(key, _)| *key == name);
        found
            .unwrap_or_else(|| panic!("no {name} in {}", self.ready))
            .1
            .to_owned()
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    pub fn kill(&mut self) {
        self.child.kill().expect("it is ours");
        self.child.wait().expect("it is ours");
    }

    pub fn terminate(&self) {
        signal(self.pid(), "TERM");
    }

    /// Its exit status, and its standard error.
    pub fn wait(&mut self) -> (ExitStatus, String) {
        let until = Instant::now() + DEADLINE;
        let status = loop {
            if let Some(status) = self.child.try_wait().expect("it is ours") {
                break status;
            }
            assert!(Instant::now() < until, "it does not end");
            std::thread::sleep(Duration::from_millis(10));
        };
        (status, self.log())
    }

    fn log(&mut self) -> String {
        let mut text = String::new();
        if let Some(mut stderr) = self.stderr.take() {
            let _ = stderr.read_to_string(&mut text);
        }
        text
    }

    /// A command for the cluster of this coordinator.
    pub fn call(&self, args: &[&str]) -> Call {
        duramen(args).coordinators(&self.said("coordinator"))
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub fn signal(pid: u32, name: &str) {
    let sent = Command::new("kill")
        .arg(format!("-{name}"))
        .arg(pid.to_string())
        .status();
    assert!(sent.expect("kill runs").success());
}
