//! Waiters for keys: the clients that wait for each key, in their order, and the wake-up of the
//! first of them when something is written there.
//!
//! **Mechanism.** A client that finds nothing under its keys enters the queue of each of them,
//! looks once more, and parks. A writer of a key commits, and wakes the first of the key's queue,
//! which then looks again. If that client has taken something and more is left, its taking is a
//! write too, which wakes the next one. So the clients of one key are served one after the other,
//! in the order in which they came, whatever threads they are on.
//!
//! **Invariants**
//! - W1: no wake-up is lost. A waiter enters before it looks for the last time; a writer commits
//!   before it reads the number of entries. There is a `SeqCst` fence between the two steps of
//!   each, so one of the two sees the other.
//! - W2: while something lies under a key with waiters, the first of them is woken, or is looking,
//!   or a writer is about to wake it. An entry is marked when its waiter is woken, and unmarked
//!   before the waiter looks ([`Waiters::look`]). So a write that comes while it looks wakes it
//!   again.
//! - W3: the first waiter wakes the next one if it leaves while it is marked, or without having
//!   looked at this key.
//! - W4: a waiter takes nothing from a key while an older one waits there
//!   ([`Waiters::is_first`]). Those that only read take nothing, so all of them are woken.
//!
//! **Concurrency.** Any thread calls anything. A shard's lock is held for a look at one queue, and
//! nothing is waited for meanwhile.

use crate::sync::{AtomicU64, AtomicUsize, Mutex, MutexGuard, Ordering, Padded, fence};
use std::collections::{BTreeMap, HashMap};

/// Many more shards than threads, so that two of them seldom want the same, and so that most keys
/// without waiters are in a shard without any.
#[cfg(not(any(loom, shuttle)))]
const SHARDS: usize = 256;
#[cfg(any(loom, shuttle))]
const SHARDS: usize = 1;

/// The aim of a wait: elements of this kind under a key of this table with this hash. If other keys
/// have the same hash, a waiter is woken in vain at times.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct WaitKey {
    pub table: u32,
    pub hash: u64,
    pub kind: u8,
}

/// A client that waits, from its first look to the reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ticket {
    /// Its place in the order of all tickets.
    pub number: u64,
    pub client: u64,
    /// The thread that looks for it.
    pub thread: u32,
    /// Whether the client takes nothing: all such waiters see the same elements.
    pub only_reads: bool,
}

#[derive(Debug)]
struct Entry {
    ticket: Ticket,
    /// The waiter was woken, or has put its look off (W2).
    is_marked: bool,
}

/// The waiters for one key, by the numbers of their tickets: those that take, and those that only
/// read.
#[derive(Debug, Default)]
struct Queue {
    takers: BTreeMap<u64, Entry>,
    readers: BTreeMap<u64, Entry>,
}

impl Queue {
    fn entries(&mut self, ticket: Ticket) -> &mut BTreeMap<u64, Entry> {
        if ticket.only_reads {
            &mut self.readers
        } else {
            &mut self.takers
        }
    }

    fn is_empty(&self) -> bool {
        self.takers.is_empty() && self.readers.is_empty()
    }

    /// The number of the oldest waiter that takes.
    fn first(&self) -> Option<u64> {
        self.takers.keys().next().copied()
    }

    /// Wakes the oldest waiter that takes, and all that only read.
    fn wake(&mut self, wake: &mut impl FnMut(Ticket)) {
        let first = self.takers.values_mut().take(1);
        for entry in self.readers.values_mut().chain(first) {
            entry.wake(wake);
        }
    }
}

impl Entry {
    fn wake(&mut self, wake: &mut impl FnMut(Ticket)) {
        if !std::mem::replace(&mut self.is_marked, true) {
            wake(self.ticket);
        }
    }
}

#[derive(Debug, Default)]
struct Shard {
    queues: Mutex<HashMap<WaitKey, Queue>>,
    /// Number of entries. Changes under the lock; a writer reads it without (W1).
    entries: AtomicUsize,
}

impl Shard {
    fn lock(&self) -> MutexGuard<'_, HashMap<WaitKey, Queue>> {
        match self.queues.lock() {
            Ok(queues) => queues,
            Err(poisoned) => poisoned.into_inner(),
        }
    }
}

/// All waiters of a server.
pub struct Waiters {
    shards: Box<[Padded<Shard>]>,
    /// Number of tickets so far.
    tickets: AtomicU64,
}

impl Default for Waiters {
    fn default() -> Waiters {
        Waiters {
            shards: (0..SHARDS).map(|_| Padded::default()).collect(),
            tickets: AtomicU64::new(0),
        }
    }
}

impl Waiters {
    fn shard(&self, key: WaitKey) -> &Shard {
        // The low bits of a hash are as good as any others.
        &self.shards[(key.hash ^ u64::from(key.table)) as usize % SHARDS].0
    }

    /// A ticket behind all others.
    pub fn ticket(&self, client: u64, thread: u32, only_reads: bool) -> Ticket {
        Ticket {
            // Relaxed: an order of tickets that are drawn at one moment does not matter.
            number: self.tickets.fetch_add(1, Ordering::Relaxed),
            client,
            thread,
            only_reads,
        }
    }

    /// A waiter enters the queues of `keys`, which are different. Afterwards it must look again
    /// (W1).
    pub fn enter(&self, ticket: Ticket, keys: &[WaitKey]) {
        for key in keys {
            let shard = self.shard(*key);
            let mut queues = shard.lock();
            let entry = Entry {
                ticket,
                is_marked: false,
            };
            let queue = queues.entry(*key).or_default();
            queue.entries(ticket).insert(ticket.number, entry);
            shard.entries.fetch_add(1, Ordering::Relaxed);
        }
        fence(Ordering::SeqCst);
    }

    /// To be called before a waiter looks: a write from now on wakes it again (W2).
    pub fn look(&self, ticket: Ticket, keys: &[WaitKey]) {
        self.mark(ticket, keys, false);
    }

    /// Notes that a waiter that was to look will look later. Until then it needs no other wake-up.
    pub fn put_off(&self, ticket: Ticket, keys: &[WaitKey]) {
        self.mark(ticket, keys, true);
    }

    fn mark(&self, ticket: Ticket, keys: &[WaitKey], is_marked: bool) {
        for key in keys {
            let mut queues = self.shard(*key).lock();
            let queue = queues.get_mut(key);
            let entries = queue.map(|queue| queue.entries(ticket));
            if let Some(entry) = entries.and_then(|it| it.get_mut(&ticket.number)) {
                entry.is_marked = is_marked;
            }
        }
    }

    /// Whether a waiter, or a newcomer without a ticket, may take from a key (W4). To be called
    /// before it looks.
    pub fn is_first(&self, ticket: Option<Ticket>, key: WaitKey) -> bool {
        let shard = self.shard(key);
        if shard.entries.load(Ordering::Relaxed) == 0 {
            return true;
        }
        let queues = shard.lock();
        let first = queues.get(&key).and_then(Queue::first);
        first.is_none_or(|first| ticket.is_some_and(|it| it.only_reads || it.number <= first))
    }

    /// A waiter leaves the queues of `keys`. `passes_on`: it may have left something that it did
    /// not look at (W3). `wake` gets the waiters that must look instead.
    pub fn leave(
        &self,
        ticket: Ticket,
        keys: &[WaitKey],
        passes_on: bool,
        mut wake: impl FnMut(Ticket),
    ) {
        for key in keys {
            let shard = self.shard(*key);
            let mut queues = shard.lock();
            let Some(queue) = queues.get_mut(key) else {
                continue;
            };
            let was_first = queue.first() == Some(ticket.number);
            let Some(entry) = queue.entries(ticket).remove(&ticket.number) else {
                continue;
            };
            shard.entries.fetch_sub(1, Ordering::Relaxed);
            if queue.is_empty() {
                queues.remove(key);
            } else if was_first && (passes_on || entry.is_marked) {
                queue.wake(&mut wake);
            }
        }
    }

    /// A writer has committed elements under a key. `wake` gets the waiters that must look.
    #[inline]
    pub fn wake(&self, key: WaitKey, wake: impl FnMut(Ticket)) {
        fence(Ordering::SeqCst); // W1: between the commit and the look
        if self.shard(key).entries.load(Ordering::Relaxed) > 0 {
            self.wake_queue(key, wake);
        }
    }

    #[cold]
    fn wake_queue(&self, key: WaitKey, mut wake: impl FnMut(Ticket)) {
        if let Some(queue) = self.shard(key).lock().get_mut(&key) {
            queue.wake(&mut wake);
        }
    }

    /// All waiters for keys of a table must look again.
    pub fn wake_table(&self, table: u32, mut wake: impl FnMut(Ticket)) {
        for shard in &self.shards {
            let mut queues = shard.0.lock();
            let of_table = queues.iter_mut().filter(|(key, _)| key.table == table);
            for (_, queue) in of_table {
                let takers = queue.takers.values_mut();
                let all = queue.readers.values_mut().chain(takers);
                all.for_each(|entry| entry.wake(&mut wake));
            }
        }
    }

    /// Number of keys that are waited for.
    pub fn keys(&self) -> usize {
        let shards = self.shards.iter();
        shards.map(|shard| shard.0.lock().len()).sum()
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use std::collections::VecDeque;
    use std::sync::mpsc::{Receiver, Sender, channel};

    fn key(hash: u64) -> WaitKey {
        WaitKey {
            table: 0,
            hash,
            kind: 2,
        }
    }

    fn woken(waiters: &Waiters, key: WaitKey) -> Vec<u64> {
        let mut woken = Vec::new();
        waiters.wake(key, |ticket| woken.push(ticket.client));
        woken
    }

    fn left(waiters: &Waiters, ticket: Ticket, keys: &[WaitKey], passes_on: bool) -> Vec<u64> {
        let mut woken = Vec::new();
        waiters.leave(ticket, keys, passes_on, |ticket| woken.push(ticket.client));
        woken
    }

    #[test]
    fn the_first_is_woken_once_and_passes_on_what_it_has_not_looked_at() {
        let waiters = Waiters::default();
        let (a, b) = ([key(1), key(2)], [key(1)]);
        let [first, second] = [7, 8].map(|client| waiters.ticket(client, 0, false));
        waiters.enter(first, &a);
        waiters.enter(second, &b);
        assert_eq!(waiters.keys(), 2);
        assert!(waiters.is_first(Some(first), key(1)));
        assert!(!waiters.is_first(Some(second), key(1)));
        assert!(!waiters.is_first(None, key(2)) && waiters.is_first(None, key(3)));
        assert_eq!(woken(&waiters, key(1)), [7]);
        assert_eq!(woken(&waiters, key(1)), [0; 0], "it looks soon");
        waiters.look(first, &a);
        assert_eq!(woken(&waiters, key(1)), [7], "it may have looked already");
        assert_eq!(left(&waiters, first, &a, false), [8], "W3");
        waiters.look(second, &b);
        assert_eq!(left(&waiters, second, &b, true), [0; 0]);
        assert_eq!(waiters.keys(), 0);
    }

    #[test]
    fn only_the_first_passes_its_place_on() {
        let waiters = Waiters::default();
        let tickets = [1, 2, 3].map(|client| waiters.ticket(client, 0, false));
        for ticket in tickets {
            waiters.enter(ticket, &[key(1)]);
        }
        assert_eq!(left(&waiters, tickets[1], &[key(1)], true), [0; 0]);
        assert_eq!(left(&waiters, tickets[0], &[key(1)], true), [3]);
        assert_eq!(left(&waiters, tickets[2], &[key(1)], true), [0; 0]);
    }

    #[test]
    fn all_that_only_read_are_woken_with_the_first_that_takes() {
        let waiters = Waiters::default();
        for (client, only_reads) in [(1, true), (2, false), (3, true), (4, false)] {
            let ticket = waiters.ticket(client, 0, only_reads);
            waiters.enter(ticket, &[key(1)]);
            assert_eq!(waiters.is_first(Some(ticket), key(1)), client != 4);
        }
        assert_eq!(woken(&waiters, key(1)), [1, 3, 2]);
        let mut all = Vec::new();
        waiters.wake_table(0, |ticket| all.push(ticket.client));
        assert_eq!(all, [4], "the others are woken already");
        waiters.wake_table(1, |_| panic!("nobody waits there"));
    }

    /// Threads that push and pop: each element is taken once, and every pop ends (W1, W2).
    #[test]
    fn threads_lose_no_wake_up() {
        const POPPERS: u64 = 4;
        const EACH: u64 = 2_000;
        let waiters = Waiters::default();
        let list = std::sync::Mutex::new(VecDeque::new());
        let (senders, receivers): (Vec<Sender<()>>, Vec<Receiver<()>>) =
            (0..POPPERS).map(|_| channel()).unzip();
        let wake = |ticket: Ticket| {
            let _ = senders[ticket.thread as usize].send(()); // it may have ended
        };
        let take = |ticket: Option<Ticket>| {
            let is_first = waiters.is_first(ticket, key(1));
            let mut list = list.lock().unwrap();
            let taken = if is_first { list.pop_front() } else { None }?;
            let is_more = !list.is_empty();
            drop(list);
            if let Some(ticket) = ticket {
                waiters.leave(ticket, &[key(1)], false, wake);
            }
            if is_more {
                waiters.wake(key(1), wake);
            }
            Some(taken)
        };
        let pop = |thread: u32, woken: &Receiver<()>| {
            if let Some(taken) = take(None) {
                return taken;
            }
            let ticket = waiters.ticket(thread.into(), thread, false);
            waiters.enter(ticket, &[key(1)]);
            loop {
                if let Some(taken) = take(Some(ticket)) {
                    return taken;
                }
                let limit = std::time::Duration::from_secs(60);
                woken.recv_timeout(limit).expect("a wake-up is lost");
                waiters.look(ticket, &[key(1)]);
            }
        };
        let mut all: Vec<u64> = std::thread::scope(|scope| {
            let poppers: Vec<_> = (0..)
                .zip(receivers)
                .map(|(thread, woken)| {
                    let pop = &pop;
                    scope.spawn(move || {
                        let popped = (0..EACH).map(|_| pop(thread, &woken));
                        popped.collect::<Vec<u64>>()
                    })
                })
                .collect();
            for n in 0..POPPERS * EACH {
                list.lock().unwrap().push_back(n);
                waiters.wake(key(1), wake);
            }
            poppers
                .into_iter()
                .flat_map(|popper| popper.join().unwrap())
                .collect()
        });
        all.sort_unstable();
        assert!(all.into_iter().eq(0..POPPERS * EACH));
        assert_eq!(waiters.keys(), 0);
    }
}
