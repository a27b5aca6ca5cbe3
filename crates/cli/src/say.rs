//! Words to a person: the macros `println!`, `eprint!` and `eprintln!` of this program.
//!
//! They hide those of the standard library, which panic when the terminal, the pipe or the disk
//! behind them takes nothing more: a store ended because a line about it could not be written.
//!
//! **Invariant** N1: a failure to write to standard error is ignored. One to write to standard
//! output is ignored if the reader went away (`duramen fsck DIR | head`), else it ends the tool
//! with exit code 2. A process that serves prints nothing to standard output but its line `ready`,
//! by hand.

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

/// To standard error; with a log there, in its turn.
pub(crate) fn error(text: Arguments<'_>) {
    let text = text.to_string();
    if !log::to_stderr(text.as_bytes()) {
        // N1
        let _ = std::io::stderr().write_all(text.as_bytes());
    }
}

/// To standard output, of a tool (N1).
pub(crate) fn out(text: Arguments<'_>) {
    let mut stdout = std::io::stdout();
    if let Err(reason) = stdout.write_fmt(text).and_then(|()| stdout.flush()) {
        ended(&reason);
    }
}

/// Standard output takes no more (N1): ends the tool, unless the reader went away.
pub(crate) fn ended(reason: &std::io::Error) {
    if reason.kind() != ErrorKind::BrokenPipe {
        error(format_args!(
            "duramen: cannot write to standard output: {reason}\n"
        ));
        std::process::exit(2);
    }
}
