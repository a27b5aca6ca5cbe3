//! The table of waits: for each waiting thread of this process, the resource that it waits for, and
//! those that it holds.
//!
//! A thread that may wait for longer than a short critical section enters its wait: by a
//! [`LongWait`] that it calls again and again, or by a [`note`] while it blocks. The table shows
//! why a server has stopped answering.
//!
//! **Invariants**
//! - W1: a thread's waits are pushed and popped by that thread alone, the innermost last.
//! - W2: an entry is dropped with the [`Noted`] that represents it, so a finished wait is not in
//!   the table.
//! - W3: waits have an order. If a thread that holds A ever waits for B, then no thread that holds
//!   B waits for A, neither directly nor through others: otherwise two of them could wait for each
//!   other, even if they never met. Debug and test builds panic at the first wait that breaks this
//!   order, with the circle and the table. Several of one kind are no circle: keys are locked in
//!   their order.
//! - W4: a thread that serves commits ([`serve_commits`]) waits for nothing that another thread may
//!   hold while it waits for a commit (`HELD_OVER_COMMITS`). The same builds panic at the first
//!   such wait, even if nobody holds the resource.
//!
//! **Concurrency**: each thread has a list with a lock of its own, which readers of the table hold
//! for an instant. A wait in a loop is entered only once it has lasted for [`LONG`]; a blocking
//! wait is entered at once.

use crate::sync::Backoff;
use std::cell::{Cell, RefCell};
use std::fmt;
use std::marker::PhantomData;
use std::sync::atomic::{AtomicU16, Ordering};
use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::time::{Duration, Instant};

/// Shortest wait in a loop that is entered: a commit on a slow disk takes less.
pub const LONG: Duration = Duration::from_millis(100);
/// Held resources of a thread that releases everything before it waits.
pub const NOTHING: &[Resource] = &[];
/// Rounds of a loop between two reads of the clock, which costs as much as a few rounds.
const ROUNDS_PER_LOOK: u32 = 256;

/// Kinds of resources that threads wait for, and that they hold while others may wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum Resource {
    /// A commit of the log.
    Commit,
    /// The right to be alone in the store.
    Door,
    Flash,
    /// A head of the log.
    Head,
    /// A bucket of the index, and its keys.
    Key,
    Memory,
    /// A partition of the index that moves.
    Partition,
    /// A pin: memory that its holder may see is not reused.
    Pin,
    /// A place among the sessions.
    Place,
}

impl Resource {
    const ALL: [Resource; 9] = [
        Resource::Commit,
        Resource::Door,
        Resource::Flash,
        Resource::Head,
        Resource::Key,
        Resource::Memory,
        Resource::Partition,
        Resource::Pin,
        Resource::Place,
    ];
}

/// Resources that a thread may hold while it waits for a commit (W4).
const HELD_OVER_COMMITS: [Resource; 4] =
    [Resource::Door, Resource::Head, Resource::Key, Resource::Pin];

thread_local! {
    /// Whether commits wait for this thread (W4).
    static SERVES_COMMITS: Cell<bool> = const { Cell::new(false) };
}

/// Ends what [`serve_commits`] began.
#[derive(Debug)]
#[must_use]
pub struct Serving {
    before: bool,
    /// The value stays with its thread.
    not_send: PhantomData<*const ()>,
}

impl Drop for Serving {
    fn drop(&mut self) {
        SERVES_COMMITS.set(self.before);
    }
}

/// Until the result is dropped, commits wait for what this thread does (W4).
pub fn serve_commits() -> Serving {
    Serving {
        before: SERVES_COMMITS.replace(true),
        not_send: PhantomData,
    }
}

impl fmt::Display for Resource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Resource::Commit => "a commit of the log",
            Resource::Door => "the right to be alone",
            Resource::Flash => "the flash device",
            Resource::Head => "a head",
            Resource::Key => "keys",
            Resource::Memory => "memory",
            Resource::Partition => "a partition of the index",
            Resource::Pin => "a pin",
            Resource::Place => "a place among the sessions",
        })
    }
}

/// W3: for each resource, a bit for each other one that a thread waited for while it held the
/// first.
#[derive(Default)]
struct Order([AtomicU16; Resource::ALL.len()]);

impl Order {
    /// Adds a wait.
    ///
    /// # Errors
    /// W3: the circle that it closes, from the wanted resource to the held one.
    fn learn(&self, wants: Resource, holding: &[Resource]) -> Result<(), Vec<Resource>> {
        for held in holding.iter().filter(|held| **held != wants) {
            let bit = 1 << wants as usize;
            let known = self.0[*held as usize].fetch_or(bit, Ordering::AcqRel);
            if known & bit == 0
                && let Some(circle) = self.way(wants, *held, &mut Vec::new())
            {
                return Err(circle);
            }
        }
        Ok(())
    }

    fn way(&self, from: Resource, to: Resource, seen: &mut Vec<Resource>) -> Option<Vec<Resource>> {
        if from == to {
            return Some(vec![to]);
        }
        seen.push(from);
        let edges = self.0[from as usize].load(Ordering::Acquire);
        let next = Resource::ALL.into_iter();
        let mut next = next.filter(|next| edges & (1 << *next as usize) != 0);
        next.find_map(|next| {
            let fresh = !seen.contains(&next);
            let mut way = fresh.then(|| self.way(next, to, seen)).flatten()?;
            way.insert(0, from);
            Some(way)
        })
    }
}

/// Checks W3 and W4, in builds that may panic.
fn check_order(wants: Resource, holding: &[Resource]) {
    static ORDER: Order = Order([const { AtomicU16::new(0) }; Resource::ALL.len()]);
    // The threads of a model checker wait for one another by other means.
    if cfg!(not(debug_assertions)) || cfg!(any(loom, shuttle)) {
        return;
    }
    let is_held_over_commits = HELD_OVER_COMMITS.contains(&wants);
    assert!(
        !(is_held_over_commits && SERVES_COMMITS.get()),
        "W4: commits wait for this thread, which waits for {wants}"
    );
    assert!(
        wants != Resource::Commit || holding.iter().all(|held| HELD_OVER_COMMITS.contains(held)),
        "W4: {holding:?} held over a commit"
    );
    if let Err(circle) = ORDER.learn(wants, holding) {
        let circle: Vec<String> = circle.iter().map(Resource::to_string).collect();
        let table: Vec<String> = longer_than(Duration::ZERO)
            .iter()
            .map(Wait::to_string)
            .collect();
        panic!(
            "W3: a thread that holds {} waits for {wants}, but {} wait for each other already; waits now: {table:?}",
            circle.last().map_or("", String::as_str),
            circle.join(" -> "),
        );
    }
}

/// One wait of the table.
#[derive(Clone, Debug)]
pub struct Wait {
    /// Name of the thread, or its number if it has none.
    pub thread: String,
    pub wants: Resource,
    pub since: Instant,
    /// Held resources, which others may want meanwhile.
    pub holding: &'static [Resource],
}

impl fmt::Display for Wait {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let holding: Vec<String> = self.holding.iter().map(Resource::to_string).collect();
        write!(
            f,
            "{} has waited {:.1} s for {}, holding {}",
            self.thread,
            self.since.elapsed().as_secs_f64(),
            self.wants,
            if holding.is_empty() {
                "nothing".to_owned()
            } else {
                holding.join(", ")
            }
        )
    }
}

/// A thread and its waits.
struct Waiter {
    thread: String,
    waits: Mutex<Vec<(Resource, &'static [Resource], Instant)>>,
}

type Table = Mutex<Vec<Weak<Waiter>>>;

fn table() -> &'static Table {
    static TABLE: OnceLock<Table> = OnceLock::new();
    TABLE.get_or_init(Table::default)
}

thread_local! {
    /// The thread's waits, in the table as long as the thread lives.
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

/// Notes that this thread is going to block.
pub fn note(wants: Resource, holding: &'static [Resource]) -> Noted {
    check_order(wants, holding);
    note_since(wants, holding, Instant::now())
}

fn note_since(wants: Resource, holding: &'static [Resource], since: Instant) -> Noted {
    let waiter = waiter();
    if let Some(waiter) = &waiter
        && let Ok(mut waits) = waiter.waits.lock()
    {
        waits.push((wants, holding, since));
    }
    Noted(waiter)
}

/// A loop that waits: a [`Backoff`] that enters the table when it lasts.
pub struct LongWait {
    backoff: Backoff,
    wants: Resource,
    holding: &'static [Resource],
    rounds: u32,
    since: Option<Instant>,
    noted: Option<Noted>,
}

impl LongWait {
    pub fn new(wants: Resource, holding: &'static [Resource]) -> LongWait {
        check_order(wants, holding);
        LongWait {
            backoff: Backoff::new(),
            wants,
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

    /// As [`wait`](Self::wait), for a caller that has slept in between: reads the clock in any
    /// case.
    #[cold]
    pub fn look(&mut self) {
        // The threads of a model checker are not threads of the system.
        if self.noted.is_some() || cfg!(any(loom, shuttle)) {
            return;
        }
        let since = *self.since.get_or_insert_with(Instant::now);
        if since.elapsed() >= LONG {
            self.noted = Some(note_since(self.wants, self.holding, since));
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
        found.extend(long.map(|(wants, holding, since)| Wait {
            thread: waiter.thread.clone(),
            wants,
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
                let _noted = note(Resource::Memory, NOTHING);
                let inner = note(Resource::Flash, &[Resource::Pin]);
                began.send(()).unwrap();
                told.recv().unwrap();
                drop(inner);
                began.send(()).unwrap();
                told.recv().unwrap();
            })
            .unwrap();
        begins.recv().unwrap();
        let both: Vec<_> = waits("blocked").iter().map(|wait| wait.wants).collect();
        assert_eq!(both, [Resource::Memory, Resource::Flash]);
        assert!(waits("blocked")[1].to_string().ends_with("holding a pin"));
        go_on.send(()).unwrap();
        begins.recv().unwrap();
        assert!(waits("blocked")[0].to_string().contains("holding nothing"));
        assert_eq!(waits("blocked").len(), 1);
        go_on.send(()).unwrap();
        thread.join().unwrap();
        assert!(waits("blocked").is_empty());
    }

    /// W4: the thread that sends the log to its backups waited for a head, whose holder waited for
    /// a commit.
    #[test]
    #[cfg(debug_assertions)]
    fn a_thread_that_commits_wait_for_waits_for_no_head() {
        let is_refused = |wants| std::panic::catch_unwind(|| drop(note(wants, NOTHING))).is_err();
        assert!(!is_refused(Resource::Head));
        let serving = serve_commits();
        assert!(is_refused(Resource::Head) && is_refused(Resource::Key));
        assert!(!is_refused(Resource::Place) && !is_refused(Resource::Commit));
        let inner = serve_commits();
        drop(inner);
        assert!(is_refused(Resource::Door));
        drop(serving);
        assert!(!is_refused(Resource::Head));
    }

    /// Each wait alone is allowed, and no two of the threads need ever meet.
    #[test]
    fn a_circle_of_waits_is_found_though_nobody_is_in_it() {
        use Resource::{Commit, Head, Key, Memory, Pin};
        let order = Order::default();
        assert_eq!(order.learn(Key, &[Pin, Head]), Ok(()));
        assert_eq!(order.learn(Key, &[Pin, Key]), Ok(()), "keys have an order");
        assert_eq!(order.learn(Commit, &[Key]), Ok(()));
        assert_eq!(order.learn(Memory, &[Key, Head]), Ok(()));
        assert_eq!(order.learn(Head, NOTHING), Ok(()));
        let circle = order.learn(Head, &[Commit]);
        assert_eq!(circle, Err(vec![Head, Key, Commit]), "W3");
    }

    #[test]
    fn a_loop_enters_the_table_when_it_lasts() {
        let thread = std::thread::Builder::new().name("looping".to_owned());
        let thread = thread.spawn(|| {
            let mut waiting = LongWait::new(Resource::Place, NOTHING);
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
