//! waiters::W1 to waiters::W3 in every interleaving of waiters and writers that are few.
//!
//! The element under the key is a word that is written and taken; mailboxes are counters behind a
//! condition variable. Loom reports a deadlock if a waiter sleeps for ever.

use duramen_base::sync::{AtomicU64, Ordering};
use duramen_base::waiters::{Ticket, WaitKey, Waiters};
use loom::sync::{Arc, Condvar, Mutex};
use loom::thread;

const KEY: WaitKey = WaitKey {
    table: 1,
    hash: 7,
    kind: 2,
};

/// Forced switches in one execution: a lost wake-up needs two.
const PREEMPTIONS: usize = 3;

#[derive(Default)]
struct Mailbox {
    woken: Mutex<u32>,
    news: Condvar,
}

impl Mailbox {
    fn post(&self) {
        *self.woken.lock().unwrap() += 1;
        self.news.notify_one();
    }

    fn wait(&self) {
        let mut woken = self.woken.lock().unwrap();
        while *woken == 0 {
            woken = self.news.wait(woken).unwrap();
        }
        *woken = 0;
    }
}

#[derive(Default)]
struct World {
    waiters: Waiters,
    /// Number of elements under the key.
    elements: AtomicU64,
    mailboxes: [Mailbox; 2],
}

impl World {
    fn wake(&self, ticket: Ticket) {
        self.mailboxes[ticket.thread as usize].post();
    }

    fn push(&self) {
        self.elements.fetch_add(1, Ordering::Relaxed);
        self.waiters.wake(KEY, |ticket| self.wake(ticket));
    }

    /// Takes an element if there is one and no older waiter; then, if some are left, that is a
    /// write.
    fn take(&self, ticket: Option<Ticket>) -> bool {
        if !self.waiters.is_first(ticket, KEY) {
            return false;
        }
        let taken = self
            .elements
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |n| n.checked_sub(1));
        if let (Ok(_), Some(ticket)) = (taken, ticket) {
            self.leave(ticket, false);
        }
        if taken.is_ok_and(|before| before > 1) {
            self.waiters.wake(KEY, |ticket| self.wake(ticket));
        }
        taken.is_ok()
    }

    fn leave(&self, ticket: Ticket, passes_on: bool) {
        let wake = |ticket| self.wake(ticket);
        self.waiters.leave(ticket, &[KEY], passes_on, wake);
    }

    /// Waits until it has taken an element.
    fn pop(&self, thread: u32) {
        if self.take(None) {
            return;
        }
        let ticket = self.waiters.ticket(thread.into(), thread, false);
        self.waiters.enter(ticket, &[KEY]);
        while !self.take(Some(ticket)) {
            self.mailboxes[thread as usize].wait();
            self.waiters.look(ticket, &[KEY]);
        }
    }

    /// Waits for one wake-up at most, and goes away without having looked.
    fn come_and_go(&self, thread: u32) {
        let ticket = self.waiters.ticket(thread.into(), thread, false);
        self.waiters.enter(ticket, &[KEY]);
        self.leave(ticket, true);
    }
}

fn check(run: impl Fn(Arc<World>) + Sync + Send + 'static) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(PREEMPTIONS);
    model.check(move || run(Arc::default()));
}

#[test]
fn a_push_is_seen_or_wakes() {
    check(|world| {
        let theirs = Arc::clone(&world);
        let writer = thread::spawn(move || theirs.push());
        world.pop(0);
        writer.join().unwrap();
    });
}

#[test]
fn two_waiters_get_two_elements() {
    check(|world| {
        let theirs = Arc::clone(&world);
        let other = thread::spawn(move || theirs.pop(1));
        let theirs = Arc::clone(&world);
        let writer = thread::spawn(move || {
            theirs.push();
            theirs.push();
        });
        world.pop(0);
        other.join().unwrap();
        writer.join().unwrap();
    });
}

#[test]
fn one_that_goes_away_passes_its_turn_on() {
    check(|world| {
        let theirs = Arc::clone(&world);
        let other = thread::spawn(move || theirs.come_and_go(1));
        let theirs = Arc::clone(&world);
        let writer = thread::spawn(move || theirs.push());
        world.pop(0);
        other.join().unwrap();
        writer.join().unwrap();
    });
}
