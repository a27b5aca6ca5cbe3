//! Who waits, for what, and holding what: a table of the threads of this process that wait for one another.
//!
//! Whoever may wait for longer than a short critical section says so: by a [`LongWait`] that it asks again and again, or by a
//! [`note`] while it blocks. The table answers the question what a server is doing that has stopped answering.
//!
//! **Invariants**
//! - W1: a thread's waits are pushed and popped by that thread alone, the innermost last.
//! - W2: an entry is dropped with the [`Noted`] that stands for it, so a wait that is over is not in the table.
//!
//! **Concurrency**: each thread has a list with a lock of its own, which readers of the table hold for an instant. A wait in a
//! loop is entered only once it has lasted for [`LONG`]; one that blocks is entered at once.

use crate::sync::Backoff;
use std::cell::RefCell;
use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::time::{Duration, Instant};

/// What takes longer is worth an entry: a commit on a slow disk takes less.
pub const LONG: Duration = Duration::from_millis(100);
/// Held by who lets go of everything before it waits.
pub const NOTHING: &str = "nothing";
/// Looks at the clock are this many rounds of a loop apart: a look costs as much as a few rounds.
const ROUNDS_PER_LOOK: u32 = 256;

/// One wait of the table.
#[derive(Clone, Debug)]
pub struct Wait {
    /// Name of the thread, or its number where it has none.
    pub thread: String,
    pub for_what: &'static str,
    pub since: Instant,
    /// What others may want meanwhile.
    pub holding: &'static str,
}

impl std::fmt::Display for Wait {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "{} has waited {:.1} s for {}, holding {}",
            self.thread,
            self.since.elapsed().as_secs_f64(),
            self.for_what,
            self.holding
        )
    }
}

/// A thread and its waits.
struct Waiter {
    thread: String,
    waits: Mutex<Vec<(&'static str, &'static str, Instant)>>,
}

type Table = Mutex<Vec<Weak<Waiter>>>;

fn table() -> &'static Table {
    static TABLE: OnceLock<Table> = OnceLock::new();
    TABLE.get_or_init(Table::default)
}

thread_local! {
    /// In the table as long as the thread lives.
    static WAITER: RefCell<Option<Arc<Waiter>>> = const { RefCell::new(None) };
}

fn waiter() -> Option<Arc<Waiter>> {
    let own = |slot: &RefCell<Option<Arc<Waiter>>>| {
        let mut slot = slot.try_borrow_mut().ok()?;
        Some(slot.get_or_insert_with(enlist).clone())
    };
    // None: the thread is ending.
    WAITER.try_with(own).ok().flatten()
}

fn enlist() -> Arc<Waiter> {
    let thread = std::thread::current();
    let waiter = Arc::new(Waiter {
        thread: match thread.name() {
            Some(name) => name.to_owned(),
            None => format!("{:?}", thread.id()),
        },
        waits: Mutex::default(),
    });
    if let Ok(mut all) = table().lock() {
        all.retain(|known| known.strong_count() > 0);
        all.push(Arc::downgrade(&waiter));
    }
    waiter
}

/// An entry of the table, for as long as it is kept. It stays with its thread.
#[must_use]
pub struct Noted(Option<Arc<Waiter>>);

impl Drop for Noted {
    fn drop(&mut self) {
        if let Some(waiter) = &self.0
            && let Ok(mut waits) = waiter.waits.lock()
        {
            waits.pop();
        }
    }
}

/// This thread is going to block.
pub fn note(for_what: &'static str, holding: &'static str) -> Noted {
    note_since(for_what, holding, Instant::now())
}

fn note_since(for_what: &'static str, holding: &'static str, since: Instant) -> Noted {
    let waiter = waiter();
    if let Some(waiter) = &waiter
        && let Ok(mut waits) = waiter.waits.lock()
    {
        waits.push((for_what, holding, since));
    }
    Noted(waiter)
}

/// A loop that waits: a [`Backoff`] that enters the table when it lasts.
pub struct LongWait {
    backoff: Backoff,
    for_what: &'static str,
    holding: &'static str,
    rounds: u32,
    since: Option<Instant>,
    noted: Option<Noted>,
}

impl LongWait {
    pub fn new(for_what: &'static str, holding: &'static str) -> LongWait {
        LongWait {
            backoff: Backoff::new(),
            for_what,
            holding,
            rounds: 0,
            since: None,
            noted: None,
        }
    }

    #[inline]
    pub fn wait(&mut self) {
        self.backoff.wait();
        self.rounds = self.rounds.wrapping_add(1);
        if self.rounds.is_multiple_of(ROUNDS_PER_LOOK) {
            self.look();
        }
    }

    /// As [`wait`](Self::wait), for who has slept in between: looks at the clock in any case.
    #[cold]
    pub fn look(&mut self) {
        // The threads of a model checker are none of the system's.
        if self.noted.is_some() || cfg!(any(loom, shuttle)) {
            return;
        }
        let since = *self.since.get_or_insert_with(Instant::now);
        if since.elapsed() >= LONG {
            self.noted = Some(note_since(self.for_what, self.holding, since));
        }
    }
}

/// All waits that have lasted this long, the longest first.
pub fn longer_than(least: Duration) -> Vec<Wait> {
    let waiters: Vec<_> = match table().lock() {
        Ok(all) => all.iter().filter_map(Weak::upgrade).collect(),
        Err(_) => Vec::new(),
    };
    let mut found = Vec::new();
    for waiter in waiters {
        let waits = match waiter.waits.lock() {
            Ok(waits) => waits.clone(),
            Err(_) => continue,
        };
        let long = waits.into_iter().filter(|wait| wait.2.elapsed() >= least);
        found.extend(long.map(|(for_what, holding, since)| Wait {
            thread: waiter.thread.clone(),
            for_what,
            since,
            holding,
        }));
    }
    found.sort_by_key(|wait| wait.since);
    found
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use std::sync::mpsc;

    fn waits(thread: &str) -> Vec<Wait> {
        let mut all = longer_than(Duration::ZERO);
        all.retain(|wait| wait.thread == thread);
        all
    }

    #[test]
    fn a_wait_is_in_the_table_while_it_lasts() {
        let (go_on, told) = mpsc::channel::<()>();
        let (began, begins) = mpsc::channel();
        let thread = std::thread::Builder::new().name("blocked".to_owned());
        let thread = thread
            .spawn(move || {
                let _noted = note("a word", "nothing");
                let inner = note("the same word", "a pen");
                began.send(()).unwrap();
                told.recv().unwrap();
                drop(inner);
                began.send(()).unwrap();
                told.recv().unwrap();
            })
            .unwrap();
        begins.recv().unwrap();
        let both: Vec<_> = waits("blocked").iter().map(|wait| wait.for_what).collect();
        assert_eq!(both, ["a word", "the same word"]);
        go_on.send(()).unwrap();
        begins.recv().unwrap();
        assert!(waits("blocked")[0].to_string().contains("holding nothing"));
        assert_eq!(waits("blocked").len(), 1);
        go_on.send(()).unwrap();
        thread.join().unwrap();
        assert!(waits("blocked").is_empty());
    }

    #[test]
    fn a_loop_enters_the_table_when_it_lasts() {
        let thread = std::thread::Builder::new().name("looping".to_owned());
        let thread = thread.spawn(|| {
            let mut waiting = LongWait::new("time to pass", "nothing");
            assert!(waits("looping").is_empty(), "not for an instant");
            while waits("looping").is_empty() {
                waiting.wait();
            }
            let [wait] = &waits("looping")[..] else {
                panic!("entered once");
            };
            assert!(wait.since.elapsed() >= LONG);
        });
        thread.unwrap().join().unwrap();
    }
}
