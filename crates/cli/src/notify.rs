//! Reports of a serving process to its supervisor (systemd, `Type=notify`): that it loads, serves,
//! reads its settings again, stops, works.
//!
//! A report is a datagram to the socket that `NOTIFY_SOCKET` names: a path, or after `@` an
//! abstract name. Without the variable nothing is sent.
//!
//! **Invariants**
//! - Y1: a process is ready from its line `ready` on, at most once, and never after it has begun to
//!   stop: a reload that ends outside of this time does not report readiness.
//! - Y2: no report waits. One that the supervisor does not take is lost.
//!
//! Any thread may report; a lock keeps the reports in the order of the states.

use std::fmt::Display;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Names the socket of the supervisor. (Children do not inherit it: see `up::child`.)
pub(crate) const SOCKET_ENV: &str = "NOTIFY_SOCKET";
/// Two variables: the longest time between two reports that the process works, in microseconds, and
/// the process from which these reports are expected.
const WATCHDOG_ENV: [&str; 2] = ["WATCHDOG_USEC", "WATCHDOG_PID"];
/// Reports in that time: one or two may be missing before the supervisor acts.
const REPORTS_PER_PERIOD: u32 = 4;
/// Time until the next report of progress at the latest, in microseconds: reports come every 5 s.
const EXTEND_US: u32 = 60_000_000;

#[derive(Clone, Copy, PartialEq)]
enum State {
    Starting,
    Ready,
    Stopping,
}

static STATE: Mutex<State> = Mutex::new(State::Starting);

fn state() -> MutexGuard<'static, State> {
    STATE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The process serves; `words` are those of its line `ready`.
pub(crate) fn ready(words: &str) {
    let mut state = state();
    if *state == State::Starting {
        *state = State::Ready;
        send(&format!("READY=1\nSTATUS=serving: {words}\n"));
    }
}

/// The start waits for something outside of this process.
pub(crate) fn waiting(text: impl Display) {
    if *state() == State::Starting {
        send(&format!("STATUS={text}\n"));
    }
}

/// The start goes on: the supervisor gives it more time.
pub(crate) fn loading(progress: impl Display) {
    if *state() == State::Starting {
        send(&format!(
            "EXTEND_TIMEOUT_USEC={EXTEND_US}\nSTATUS=loading: {progress}\n"
        ));
    }
}

/// The process stops.
pub(crate) fn stopping() {
    let mut state = state();
    if *state != State::Stopping {
        *state = State::Stopping;
        send("STOPPING=1\nSTATUS=stopping\n");
    }
}

/// Reports that the settings are read again, and at its end that they have been (Y1).
pub(crate) struct Reload(());

pub(crate) fn reloading() -> Reload {
    if *state() == State::Ready {
        let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
        let us = now.tv_sec * 1_000_000 + now.tv_nsec / 1_000;
        send(&format!("RELOADING=1\nMONOTONIC_USEC={us}\n"));
    }
    Reload(())
}

impl Drop for Reload {
    fn drop(&mut self) {
        if *state() == State::Ready {
            send("READY=1\n");
        }
    }
}

/// If the supervisor asks for it (`WatchdogSec=`), starts a thread that reports that the process
/// works, as long as `is_stuck` returns false.
pub(crate) fn watch_over(is_stuck: impl Fn() -> bool + Send + 'static) {
    let [period, process] = WATCHDOG_ENV.map(std::env::var);
    let is_other = process.is_ok_and(|process| process != std::process::id().to_string());
    let period_us = period.ok().and_then(|us| us.parse::<u64>().ok());
    let Some(period_us) = period_us.filter(|us| *us > 0 && !is_other) else {
        return;
    };
    let pause = Duration::from_micros(period_us) / REPORTS_PER_PERIOD;
    std::thread::spawn(move || {
        loop {
            if !is_stuck() {
                send("WATCHDOG=1\n");
            }
            std::thread::sleep(pause);
        }
    });
}

/// Sends a report (Y2). Errors are ignored, because a process without a supervisor works too.
fn send(report: &str) {
    let _ = try_send(report);
}

fn try_send(report: &str) -> std::io::Result<()> {
    let Some(name) = std::env::var_os(SOCKET_ENV) else {
        return Ok(());
    };
    let address = match name.as_bytes().strip_prefix(b"@") {
        Some(name) => SocketAddr::from_abstract_name(name)?,
        None => SocketAddr::from_pathname(&name)?,
    };
    let socket = UnixDatagram::unbound()?;
    socket.set_nonblocking(true)?;
    socket.send_to_addr(report.as_bytes(), &address).map(drop)
}
