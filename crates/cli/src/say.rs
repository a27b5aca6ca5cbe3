//! Messages for people: the macros `println!`, `eprint!` and `eprintln!` of this program.
//!
//! They replace those of the standard library, which panic when the terminal, the pipe or the disk
//! behind them takes no more: a store ended because a line about it could not be written.
//!
//! **Invariant**
//! - N1: a failure to write to standard error is ignored. A failure to write to
//!   standard output is ignored if the reader has ended (`duramen fsck DIR | head`), else it ends
//!   the tool with exit code 2. A serving process prints nothing to standard output except its line
//!   `ready`, by other code.

use crate::log;
use std::fmt::Arguments;
use std::io::{ErrorKind, Write as _};

macro_rules! println {
    ($($arg:tt)*) => { $crate::say::out(format_args!("{}\n", format_args!($($arg)*))) };
}
macro_rules! eprint {
    ($($arg:tt)*) => { $crate::say::error(format_args!($($arg)*)) };
}
macro_rules! eprintln {
    ($($arg:tt)*) => { $crate::say::error(format_args!("{}\n", format_args!($($arg)*))) };
}

/// Reports that the process serves: to its supervisor, and by the line for which scripts wait. A
/// pipe that nobody reads may be full, and a signal must stop the process nevertheless. A closed
/// standard output, or a lack of threads, is no reason not to serve.
pub(crate) fn ready(words: String) {
    crate::notify::ready(&words);
    let _ = std::thread::Builder::new().spawn(move || {
        let mut stdout = std::io::stdout();
        let _ = stdout.write_all(format!("ready {words}\n").as_bytes());
        let _ = stdout.flush();
    });
}

/// Writes to standard error, in order with the log's lines, if the log is there too.
pub(crate) fn error(text: Arguments<'_>) {
    let text = text.to_string();
    if !log::to_stderr(text.as_bytes()) {
        // N1
        let _ = std::io::stderr().write_all(text.as_bytes());
    }
}

/// The last message of a process: to standard error and to the log's file, where people look for
/// it.
pub(crate) fn last_words(words: &str) {
    log::to_file(words.as_bytes());
    error(format_args!("{words}"));
    log::drain();
}

/// Writes to the standard output of a tool (N1).
pub(crate) fn out(text: Arguments<'_>) {
    let mut stdout = std::io::stdout();
    if let Err(reason) = stdout.write_fmt(text).and_then(|()| stdout.flush()) {
        ended(&reason);
    }
}

/// Standard output takes no more (N1): ends the tool, unless the reader has ended.
pub(crate) fn ended(reason: &std::io::Error) {
    if reason.kind() != ErrorKind::BrokenPipe {
        error(format_args!(
            "duramen: cannot write to standard output: {reason}\n"
        ));
        std::process::exit(2);
    }
}
