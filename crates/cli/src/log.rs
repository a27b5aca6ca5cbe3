//! The log of a serving process: on standard error, or in a file that can be reopened.
//!
//! **Invariants**
//! - L1: no logging thread gets an error of the log, or waits for it longer than [`PATIENCE`] once
//!   per stall. A full file system, a closed terminal and an unread pipe cost lines, and nothing
//!   else.
//! - L2: an accepted line is written before the call returns, unless the log stalls: a reader that
//!   waits for `ready`, or for the end of the process, finds the log complete.
//! - L3: lost lines are counted; a line reports their number, as soon as lines are written again.
//!
//! **Concurrency.** One thread writes. Others pass it lines through a queue of [`QUEUE`] places and
//! wait on a condition variable.

use duramen_base::open::open_log;
use std::fs::File;
use std::io::{self, IsTerminal as _, Write};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;
use tracing::Level;
use tracing::level_filters::LevelFilter;
use tracing_subscriber::layer::{Layer as _, SubscriberExt as _};
use tracing_subscriber::util::SubscriberInitExt as _;
use tracing_subscriber::{fmt, registry, reload};

/// Most queued lines. Further lines are lost, because the writer stalls.
const QUEUE: usize = 1024;
/// A writer that takes longer than this for a line is stalled. The time is longer than any disk
/// needs for a line, and short enough for waiting clients.
const PATIENCE: Duration = Duration::from_millis(100);

/// Longest wait at the end of the process for what is still queued: on a busy machine the writer
/// may not run for longer than [`PATIENCE`].
const LAST_PATIENCE: Duration = Duration::from_secs(2);

/// Settings of the log: level and destination.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    pub(crate) level: Level,
    pub(crate) json: bool,
    /// The log's file; `None` for standard error.
    pub(crate) file: Option<PathBuf>,
}

/// The log of this process.
struct Log {
    queue: SyncSender<Message>,
    state: Arc<State>,
    file: Option<PathBuf>,
    set_level: Box<dyn Fn(Level) + Send + Sync>,
}

static LOG: OnceLock<Log> = OnceLock::new();

enum Message {
    /// A line of the log.
    Line(Vec<u8>),
    /// A message for standard error, independent of the log's destination.
    Words(Vec<u8>),
    /// A new file for the log.
    To(File),
}

#[derive(Default)]
struct State {
    counts: Mutex<Counts>,
    written: Condvar,
}

#[derive(Default)]
struct Counts {
    /// Number of sent messages, number of finished ones, and the number of the last one that was
    /// written.
    sent: u64,
    done: u64,
    written: u64,
    /// Lines that were not written, and not reported yet.
    lost: u64,
    /// Whether the writer took too long: then no thread waits for it until it has caught up.
    stalls: bool,
}

impl State {
    fn counts(&self) -> MutexGuard<'_, Counts> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends a message and waits until it is finished (L1, L2); returns whether lines are being
    /// written.
    fn hand_over(&self, queue: &SyncSender<Message>, message: Message) -> bool {
        let mut counts = self.counts();
        if queue.try_send(message).is_err() {
            counts.lost += 1;
            return false;
        }
        counts.sent += 1;
        if counts.stalls {
            return false;
        }
        let own = counts.sent;
        let waiting = self
            .written
            .wait_timeout_while(counts, PATIENCE, |counts| counts.done < own);
        let (mut counts, timeout) = waiting.unwrap_or_else(PoisonError::into_inner);
        if timeout.timed_out() && counts.done < own {
            counts.stalls = true;
        }
        counts.written >= own
    }

    /// Waits until every sent message is finished, or until `patience` is over.
    fn drain(&self, patience: Duration) {
        let counts = self.counts();
        let waiting = self
            .written
            .wait_timeout_while(counts, patience, |counts| counts.done < counts.sent);
        drop(waiting);
    }

    /// The number of lost lines; they now count as reported.
    fn take_lost(&self) -> u64 {
        std::mem::take(&mut self.counts().lost)
    }

    /// Called by the writing thread: one message is finished.
    fn note_done(&self, is_written: bool) {
        let mut counts = self.counts();
        counts.done += 1;
        if is_written {
            counts.written = counts.done;
        } else {
            counts.lost += 1;
        }
        if counts.done == counts.sent {
            counts.stalls = false;
        }
        self.written.notify_all();
    }
}

/// Starts the log of this process. Called once, before any thread logs.
///
/// # Errors
/// A sentence: the file cannot be opened, or no thread can be started.
pub(crate) fn start(settings: &Settings) -> Result<(), String> {
    let file = match &settings.file {
        Some(path) => Some(open(path)?),
        None => None,
    };
    let state = Arc::<State>::default();
    let (queue, messages) = sync_channel(QUEUE);
    let writer = Arc::clone(&state);
    std::thread::Builder::new()
        .name("log".to_owned())
        .spawn(move || write_all(&messages, &writer, file))
        .map_err(|error| format!("cannot start the log's thread: {error}"))?;
    let set_level = subscribe(settings, &queue, &state)?;
    let log = Log {
        queue,
        state,
        file: settings.file.clone(),
        set_level,
    };
    match LOG.set(log) {
        Ok(()) => Ok(()),
        Err(_) => Err("the log was started twice".to_owned()),
    }
}

/// Connects `tracing` to the log; returns the function that changes its level.
fn subscribe(
    settings: &Settings,
    queue: &SyncSender<Message>,
    state: &Arc<State>,
) -> Result<Box<dyn Fn(Level) + Send + Sync>, String> {
    let (queue, state) = (queue.clone(), Arc::clone(state));
    let writer = move || Lines {
        queue: queue.clone(),
        state: Arc::clone(&state),
    };
    let layer = fmt::layer()
        .with_writer(writer)
        .with_target(false)
        .log_internal_errors(false);
    let layer = if settings.json {
        layer.json().flatten_event(true).boxed()
    } else {
        let colours = settings.file.is_none() && io::stderr().is_terminal();
        layer.with_ansi(colours).boxed()
    };
    let (filter, handle) = reload::Layer::new(LevelFilter::from_level(settings.level));
    registry()
        .with(layer.with_filter(filter))
        .try_init()
        .map_err(|error| format!("no log: {error}"))?;
    Ok(Box::new(move |level| {
        // This fails only when logging has ended.
        let _ = handle.reload(LevelFilter::from_level(level));
    }))
}

/// Sets the level: messages of this level and more severe ones are logged.
pub(crate) fn set_level(level: Level) {
    if let Some(log) = LOG.get() {
        (log.set_level)(level);
    }
}

/// Opens the log's file again, under its given name: the file may have been renamed. Returns false
/// if the log is on standard error.
///
/// # Errors
/// A sentence; the log continues in the open file.
pub(crate) fn reopen() -> Result<bool, String> {
    let Some((log, path)) = LOG.get().and_then(|log| Some((log, log.file.as_ref()?))) else {
        return Ok(false);
    };
    let file = open(path)?;
    log.state.hand_over(&log.queue, Message::To(file));
    Ok(true)
}

/// Writes text to standard error behind earlier log lines; Returns false if there is no log, and
/// nothing was done.
pub(crate) fn to_stderr(words: &[u8]) -> bool {
    let Some(log) = LOG.get() else {
        return false;
    };
    log.state
        .hand_over(&log.queue, Message::Words(words.to_owned()));
    true
}

/// Writes the last message of a process to the log's file, if the log is one.
pub(crate) fn to_file(words: &[u8]) {
    if let Some(log) = LOG.get().filter(|log| log.file.is_some()) {
        log.state
            .hand_over(&log.queue, Message::Line(words.to_owned()));
    }
}

/// Waits for a moment until the log is written, before the process ends.
pub(crate) fn drain() {
    if let Some(log) = LOG.get() {
        log.state.drain(LAST_PATIENCE);
    }
}

fn open(path: &Path) -> Result<File, String> {
    open_log(&mut File::options(), path)
        .map_err(|error| format!("cannot open the log file {}: {error}", path.display()))
}

/// The writer of `tracing`. Each line comes in one piece.
struct Lines {
    queue: SyncSender<Message>,
    state: Arc<State>,
}

impl Write for Lines {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let message = Message::Line(line.to_owned());
        let is_written = self.state.hand_over(&self.queue, message);
        let lines = if is_written {
            self.state.take_lost()
        } else {
            0
        };
        if lines > 0 {
            tracing::warn!(
                lines,
                "the log could not be written for a while: lines are lost"
            ); // L3
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The writing thread.
fn write_all(messages: &Receiver<Message>, state: &State, mut file: Option<File>) {
    // Set after a partial write of a line, so that the next line does not continue it.
    let mut is_torn = false;
    for message in messages {
        let is_written = match message {
            Message::Line(line) => match &mut file {
                Some(file) => put(file, &line, &mut is_torn),
                None => put(&mut io::stderr(), &line, &mut is_torn),
            },
            Message::Words(words) => {
                // An error here cannot be reported.
                let _ = io::stderr().write_all(&words);
                true
            }
            Message::To(reopened) => {
                file = Some(reopened);
                is_torn = false;
                true
            }
        };
        state.note_done(is_written);
    }
}

/// Returns whether the line was written.
fn put(to: &mut dyn Write, line: &[u8], is_torn: &mut bool) -> bool {
    let end: &[u8] = if *is_torn { b"\n" } else { b"" };
    let mut rest = [end, line].concat();
    while !rest.is_empty() {
        match to.write(&rest) {
            Ok(0) => return false,
            Ok(bytes) => {
                *is_torn = bytes < rest.len();
                rest.drain(..bytes);
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            // Another process has made the terminal or the pipe non-blocking.
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                std::thread::sleep(Duration::from_millis(1));
            }
            Err(_) => return false,
        }
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A pipe that takes this many bytes and then fails.
    struct Takes(usize, Vec<u8>);

    impl Write for Takes {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let taken = bytes.len().min(self.0);
            if taken == 0 {
                return Err(io::Error::from(io::ErrorKind::StorageFull));
            }
            self.0 -= taken;
            self.1.extend_from_slice(&bytes[..taken]);
            Ok(taken)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_line_that_was_cut_ends_before_the_next_one() {
        let (mut to, mut is_torn) = (Takes(5, Vec::new()), false);
        assert!(!put(&mut to, b"first line\n", &mut is_torn));
        to.0 = 100;
        assert!(put(&mut to, b"second\n", &mut is_torn));
        assert!(put(&mut to, b"third\n", &mut is_torn));
        assert_eq!(to.1, b"first\nsecond\nthird\n");
    }

    /// The reason of a refused start was lost on a busy machine: the process ended before the
    /// writer ran.
    #[test]
    fn the_end_waits_for_a_writer_that_comes_late() {
        let state = Arc::<State>::default();
        let (queue, messages) = sync_channel(2);
        assert!(!state.hand_over(&queue, Message::Line(b"x\n".to_vec())));
        let writer = Arc::clone(&state);
        let late = std::thread::spawn(move || {
            while messages.try_recv().is_ok() {
                writer.note_done(true);
            }
        });
        state.drain(Duration::from_secs(60));
        assert_eq!(state.counts().written, 1);
        late.join().unwrap();
        // `drain` gives up after its time if no writer takes the messages.
        let (queue, _messages) = sync_channel(2);
        assert!(!state.hand_over(&queue, Message::Line(b"x\n".to_vec())));
        state.drain(Duration::from_millis(1));
    }

    #[test]
    fn a_writer_that_stalls_is_waited_for_once_and_lost_lines_are_counted() {
        // On a busy machine another one may seem to wait; but not each time.
        assert!(
            (0..20).any(|_| waits_of_five() == 1),
            "only the first waits"
        );
    }

    /// The number of lines that wait for a writer that stalls, of five.
    fn waits_of_five() -> usize {
        let state = State::default();
        let (queue, messages) = sync_channel(2);
        let mut waits = 0;
        for _ in 0..5 {
            let start = std::time::Instant::now();
            assert!(!state.hand_over(&queue, Message::Line(b"x\n".to_vec())));
            waits += usize::from(start.elapsed() >= PATIENCE);
        }
        assert_eq!(state.counts().sent, 2);
        assert_eq!(state.counts().lost, 3);
        while messages.try_recv().is_ok() {
            state.note_done(true);
        }
        assert!(!state.counts().stalls);
        assert_eq!(state.counts().written, 2);
        assert_eq!(state.take_lost(), 3);
        assert_eq!(state.take_lost(), 0);
        waits
    }
}
