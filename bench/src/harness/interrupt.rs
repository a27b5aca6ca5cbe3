//! Clean-up of an interrupted figure: its processes are ended, its files removed.
//!
//! **Invariants**
//! - I1: the work of an [`Undo`] is done once: when it is dropped, or when a signal ends the
//!   process, whichever comes first.
//! - I2: after a signal the figure changes nothing more that is undone: it stops at the first
//!   [`Undo`] that it makes or drops.
//!
//! **Concurrency.** One lock. The thread that ends the process takes it and keeps it.

use crate::harness::{Doing, Result, progress};
use duramen_base::signals;
use rustix::process::{Pid, Signal, kill_process};
use signal_hook::iterator::Signals;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Time that a process has to end after its signal: a cluster ends within 15 s.
const END_WITHIN: Duration = Duration::from_secs(20);
const LOOK: Duration = Duration::from_millis(10);
/// The number that a shell adds to a signal's number to make an exit code.
const EXIT_BY_SIGNAL: i32 = 128;

type Work = Box<dyn FnOnce() + Send>;

struct Left {
    next: u64,
    works: BTreeMap<u64, Work>,
    /// Processes that end by themselves after this one.
    spared: BTreeSet<u32>,
}

static LEFT: Mutex<Left> = Mutex::new(Left {
    next: 0,
    works: BTreeMap::new(),
    spared: BTreeSet::new(),
});

fn left() -> MutexGuard<'static, Left> {
    LEFT.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A clean-up to be done before this program ends. The last one made is done first.
#[derive(Debug)]
pub struct Undo(u64);

impl Undo {
    /// `work` is done when this is dropped, or before a signal ends the process.
    pub fn new(work: impl FnOnce() + Send + 'static) -> Undo {
        let mut left = left();
        left.next += 1;
        let id = left.next;
        left.works.insert(id, Box::new(work));
        Undo(id)
    }
}

impl Drop for Undo {
    fn drop(&mut self) {
        let mut left = left();
        if let Some(work) = left.works.remove(&self.0) {
            work(); // I2: under the lock, so that the process does not end half-way
        }
    }
}

/// Excludes a child from the ending by a signal: some [`Undo`] ends it.
pub fn spare(child: u32) {
    left().spared.insert(child);
}

/// From now on SIGTERM, SIGINT and SIGHUP end the process after all [`Undo`]s; a second signal ends
/// it at once.
///
/// # Errors
/// The system does not allow to watch for signals.
pub fn watch() -> Result<()> {
    let mut signals = Signals::new(signals::ending()).doing("watching for signals")?;
    std::thread::spawn(move || {
        for (n, signal) in signals.forever().enumerate() {
            if n > 0 {
                std::process::exit(EXIT_BY_SIGNAL + signal);
            }
            std::thread::spawn(move || end(signal));
        }
    });
    Ok(())
}

/// Does not return while a signal is ending the process.
pub fn yield_to_signals() {
    drop(left());
}

fn end(signal: i32) -> ! {
    let mut left = left();
    progress!("interrupted: ending processes and removing files; once more stops at once");
    end_children(&left.spared);
    while let Some((_, work)) = left.works.pop_last() {
        work();
    }
    std::process::exit(EXIT_BY_SIGNAL + signal)
}

/// Sends all children a signal to end, and kills those that do not end.
fn end_children(spared: &BTreeSet<u32>) {
    let until = Instant::now() + END_WITHIN;
    let mut told = BTreeSet::new();
    loop {
        let running: Vec<u32> = children().filter(|id| !spared.contains(id)).collect();
        if running.is_empty() {
            return;
        }
        let late = Instant::now() >= until;
        for id in running {
            let signal = match (late, told.insert(id)) {
                (true, _) => Signal::KILL,
                (false, true) => Signal::TERM,
                (false, false) => continue,
            };
            if let Some(id) = i32::try_from(id).ok().and_then(Pid::from_raw) {
                // It may have ended a moment ago.
                let _ = kill_process(id, signal);
            }
        }
        std::thread::sleep(LOOK);
    }
}

/// Children of this process that have not ended: some ended ones may not have been waited for.
fn children() -> impl Iterator<Item = u32> {
    let threads = std::fs::read_dir("/proc/self/task").into_iter().flatten();
    let lists = threads
        .flatten()
        .filter_map(|thread| std::fs::read_to_string(thread.path().join("children")).ok());
    let ids: Vec<u32> = lists
        .flat_map(|list| {
            list.split_whitespace()
                .map(str::to_owned)
                .collect::<Vec<_>>()
        })
        .filter_map(|id| id.parse().ok())
        .collect();
    ids.into_iter().filter(|id| !has_ended(*id))
}

fn has_ended(id: u32) -> bool {
    // pid (name) state …; a name may contain blanks and brackets.
    let stat = std::fs::read_to_string(format!("/proc/{id}/stat")).unwrap_or_default();
    let state = stat
        .rsplit_once(") ")
        .and_then(|(_, rest)| rest.chars().next());
    matches!(state, None | Some('Z' | 'X'))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    #[test]
    fn what_is_dropped_is_undone_once() {
        let count = Arc::new(AtomicUsize::new(0));
        let counted = count.clone();
        let undo = Undo::new(move || {
            counted.fetch_add(1, Ordering::SeqCst);
        });
        assert_eq!(count.load(Ordering::SeqCst), 0);
        drop(undo);
        assert_eq!(count.load(Ordering::SeqCst), 1);
    }

    #[test]
    fn children_that_run_are_seen() {
        let mut child = std::process::Command::new("sleep")
            .arg("60")
            .spawn()
            .expect("sleep runs");
        let id = child.id();
        assert!(children().any(|child| child == id));
        child.kill().expect("it is ours");
        let until = Instant::now() + Duration::from_secs(10);
        while children().any(|child| child == id) {
            assert!(
                Instant::now() < until,
                "it has ended, and is not waited for yet"
            );
            std::thread::sleep(LOOK);
        }
        child.wait().expect("it is ours");
    }
}
