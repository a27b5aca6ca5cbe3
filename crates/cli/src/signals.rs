//! Meanings of signals for a serving process: `serve`, `coordinator`, `up`.
//!
//! **Invariant**
//! - G1: of the signals that a person or a closed terminal sends, only SIGTERM and
//!   SIGINT end such a process (and SIGKILL, which cannot be handled). By default the kernel ends a
//!   process for each of the others.
//! - G2: the thread that takes the stops opens and reads no file ([`apart`]).

use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2};
use signal_hook::iterator::Signals;
use std::sync::mpsc::{SyncSender, sync_channel};

/// The action for a signal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Order {
    Stop,
    /// Open the log's file anew, read the configuration file again.
    Reload,
    /// Write all waits of the threads into the log.
    Report,
    /// Do nothing.
    Ignore,
}

/// SIGPIPE is ignored by every Rust program: writing to a closed pipe is an error there.
const MEANINGS: [(i32, &str, Order); 6] = [
    (SIGTERM, "SIGTERM", Order::Stop),
    (SIGINT, "SIGINT", Order::Stop),
    (SIGHUP, "SIGHUP", Order::Reload),
    (SIGQUIT, "SIGQUIT", Order::Report),
    (SIGUSR1, "SIGUSR1", Order::Ignore),
    (SIGUSR2, "SIGUSR2", Order::Ignore),
];

/// Handles all of them. Called before there are other threads: a signal that comes while they start
/// must not be lost.
///
/// # Errors
/// The system refuses a handler.
pub(crate) fn watch() -> std::io::Result<Signals> {
    Signals::new(MEANINGS.map(|(signal, ..)| signal))
}

/// A signal's name and its action.
pub(crate) fn meaning(signal: i32) -> (&'static str, Order) {
    let found = MEANINGS.iter().find(|(known, ..)| *known == signal);
    found.map_or(("a signal", Order::Ignore), |(_, name, order)| {
        (name, *order)
    })
}

/// Starts a thread that does `work` for each name that is sent: files on a hanging disk must not
/// delay the next signal. A name that finds the queue full may be dropped: the work that waits
/// there reads the same files.
pub(crate) fn apart(
    mut work: impl FnMut(&'static str) + Send + 'static,
) -> SyncSender<&'static str> {
    let (queue, names) = sync_channel(1);
    std::thread::spawn(move || names.iter().for_each(&mut work));
    queue
}

/// Opens the log's file again and logs the result.
pub(crate) fn reopen_log() {
    match crate::log::reopen() {
        Ok(true) => tracing::info!("the log file was opened again"),
        Ok(false) => {}
        Err(why) => tracing::error!("{why}: the log goes on in the file that is open"),
    }
}
