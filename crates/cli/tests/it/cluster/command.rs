//! `duramen` with arguments, and its result.

use std::process::{Command, Output, Stdio};

/// The binary under test.
pub const DURAMEN: &str = env!("CARGO_BIN_EXE_duramen");

/// Addresses without a listener: the system never assigns such ports as free ones.
pub const CLOSED: [&str; 2] = ["127.0.0.1:1", "127.0.0.1:2"];

/// A call of the binary.
pub struct Call {
    command: Command,
}

pub fn duramen(args: &[&str]) -> Call {
    let mut command = Command::new(DURAMEN);
    command
        .args(args)
        .current_dir(std::env::temp_dir())
        .stdin(Stdio::null());
    Call { command }
}

impl Call {
    pub fn coordinators(mut self, addresses: &str) -> Call {
        self.command.env("DURAMEN_COORDINATOR", addresses);
        self
    }

    /// Waits for three seconds at most. (`table` is among the commands that count in seconds.)
    pub fn timeout(mut self, args: &[&str]) -> Call {
        let seconds = if args[0] == "table" { "3" } else { "3s" };
        self.command.args(["--timeout", seconds]);
        self
    }

    pub fn run(mut self) -> Answer {
        let Output {
            status,
            stdout,
            stderr,
        } = self.command.output().expect("the binary under test runs");
        Answer {
            code: status.code(),
            out: String::from_utf8_lossy(&stdout).into_owned(),
            err: String::from_utf8_lossy(&stderr).into_owned(),
        }
    }
}

/// Result of a process.
#[derive(Debug)]
pub struct Answer {
    pub code: Option<i32>,
    pub out: String,
    pub err: String,
}

impl Answer {
    /// Its output, parsed.
    #[track_caller]
    pub fn json(&self) -> serde_json::Value {
        self.expect(0);
        serde_json::from_str(&self.out).expect("one line of JSON")
    }

    #[track_caller]
    pub fn expect(&self, code: i32) {
        assert_eq!(self.code, Some(code), "{self:?}");
    }

    #[track_caller]
    pub fn expect_error(&self, code: i32, text: &str) {
        assert_eq!(self.code, Some(code), "{self:?}");
        assert!(self.err.contains(text), "{text:?} is not in {:?}", self.err);
    }
}
