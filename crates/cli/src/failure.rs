//! Failures of a command, as text and as an exit code.

use std::io;
use std::process::ExitCode;

use duramen_wire::resp::ReplyError;

/// Shown under each command's help.
pub(crate) const EXIT_CODES: &str = "\
Exit codes: 0 done, 1 not found or condition not met, 2 wrong usage, 3 error from the server,
4 no connection.";

/// A serving process could not start, or broke.
pub(crate) const EXIT_FAILED: u8 = 5;
/// A thread did not end when the process was stopped, or a second signal ended it at once.
pub(crate) const EXIT_STUCK: u8 = 6;

/// The reason why a command failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
    /// The key is absent, or the condition did not hold. The text may be empty.
    #[error("{0}")]
    NotFound(String),
    #[error("{0}")]
    Usage(String),
    #[error("the server refused: {0}")]
    Server(String),
    #[error(
        "cannot reach a server at {address}: {reason}\nIs one running there? Start one with `duramen serve`, or name another with --host and --port."
    )]
    Unreachable { address: String, reason: io::Error },
    #[error("no TLS connection to {address}: {reason}\n{advice}")]
    Tls {
        address: String,
        reason: io::Error,
        advice: &'static str,
    },
    #[error("the coordinator refused: {0}")]
    Coordinator(String),
    #[error("not done within {within:?}: {reason}")]
    NotReady {
        within: std::time::Duration,
        reason: String,
    },
    #[error("no coordinator answered within {within:?}: {tried}\n{advice}")]
    NoCoordinator {
        within: std::time::Duration,
        /// Each address with its error.
        tried: String,
        advice: &'static str,
    },
    /// `duramen bench` could not measure.
    #[error("{0}")]
    Unmeasured(String),
    #[error("the connection to {address} broke: {reason}")]
    Broken { address: String, reason: io::Error },
    #[error("{address}: {reason}")]
    NotResp { address: String, reason: ReplyError },
    #[error("cannot read {what}: {reason}")]
    Input { what: String, reason: io::Error },
    #[error("cannot write {what}: {reason}")]
    Output { what: String, reason: io::Error },
}

impl Failure {
    /// Standard output was closed or is full.
    pub(crate) fn stdout(reason: io::Error) -> Failure {
        Failure::Output {
            what: "to standard output".to_owned(),
            reason,
        }
    }

    /// Prints the reason to standard error; returns the exit code that `--help` documents.
    pub(crate) fn report(&self) -> ExitCode {
        let code = match self {
            // The reader ended (`duramen scan | head`): it needs no more output.
            Failure::Output { reason, .. } if reason.kind() == io::ErrorKind::BrokenPipe => {
                return ExitCode::SUCCESS;
            }
            Failure::NotFound(_) | Failure::Unmeasured(_) => 1,
            Failure::Usage(_) | Failure::Input { .. } | Failure::Output { .. } => 2,
            Failure::Server(_) | Failure::Coordinator(_) | Failure::NotReady { .. } => 3,
            Failure::Unreachable { .. }
            | Failure::Tls { .. }
            | Failure::NoCoordinator { .. }
            | Failure::Broken { .. }
            | Failure::NotResp { .. } => 4,
        };
        let text = self.to_string();
        if !text.is_empty() {
            eprintln!("duramen: {}", text.trim_end());
        }
        ExitCode::from(code)
    }
}
