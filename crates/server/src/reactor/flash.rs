//! Connections whose requests wait for flash: their entries are fetched in parallel, then the
//! requests continue.
//!
//! A request that met entries on flash has not run (`command::cold`). Its connection is parked: it
//! requests these entries, and those that the requests behind it will need. Other connections
//! continue. When all entries have arrived, they are lent to the session, and the requests are
//! presented again as the connection's next turn. This keeps the order of the connection's replies.
//!
//! **States of a connection** (with `WaitsFor`): queued → fetching → complete → presented again.
//! Queued (`Flash` and its token in `queue`): the reads in flight leave no room. Fetching (`Flash`,
//! `missing > 0`): its reads are in flight. Complete (`Turn`, `missing == 0`): the next round
//! presents its requests again, if its replies are not held. Presented again: `parked` is None
//! afterwards. But if the first request met other entries on flash and made no progress, the
//! entries lent to it are kept for the next time (otherwise they would be needed again, and so on
//! for ever). A queued connection without a list of its entries (F1) becomes complete as soon as
//! there is room for their bytes: its requests find the entries once more.
//!
//! **Invariants**
//! - F1: the bytes fetched for all connections, with those kept for requests that made no progress,
//!   are at most `Tier::fetch_bytes`, or belong to one connection alone. A queued connection has no
//!   fetched bytes. Its list of entries is dropped if the lists of the queue would exceed a part of
//!   `Tier::fetch_bytes` ([`LISTS_PART`]). Only lists with the lengths of longer entries stay, as
//!   the requests cannot find these lengths; such connections are first in the queue (F7).
//! - F2: a connection is in `queue` once, or has `missing` fetches that name it. Each fetch ends
//!   exactly once, with its bytes or an error. After the last one, the connection continues in the
//!   next round, or when its held replies are released; no connection is forgotten.
//! - F3: fetched bytes belong to the waiting connection: a connection that is closed gives back its
//!   part of F1, and fetches without a waiting connection are dropped.
//! - F4: the session forgets lent entries after the next group, and when no connection waits any
//!   more: nothing is kept for closed connections.
//! - F5: replies of requests before one that waits are sent with its own reply, if other
//!   connections wait too. That saves system calls and a wake-up of the client, which cost more
//!   than the requests did. But the replies wait for [`CORK_MS`] at most, and only once.
//! - F6: an entry that the first request needs is never dropped as one that only later requests
//!   need, even if both name it: otherwise the first request would request it again without end.
//! - F7: a connection that was admitted, and needs more, goes before the queue. It continues at
//!   once if F1 has room beside its kept entries. Otherwise it gives them up and becomes the first
//!   of the queue. So it waits only for connections with bytes in F1, which wait for no queued
//!   connection: each ends or gives up its bytes, and the last is alone, with room for all that
//!   it needs. But a request whose entries exceed F1 goes to the end of the queue: otherwise the
//!   others could wait for ever.
//!
//! **Concurrency.** Everything here belongs to the thread; its epoll instance watches its reader.
//!
//! Paper: [Badam11 §4, Figure 2]: only many parallel reads reach the throughput of flash.

use super::connection::{Connection, WaitsFor};
use super::connections::{Connections, Token};
use super::here::Here;
use super::parked::{Ended, FetchedEntry, Outcome, Parked, WantedEntry};
use super::watch::Watch;
use duramen_config::heap;
use duramen_disk::SpanReader;
use duramen_engine::flash::{Cold, Fetched};
use duramen_redis::executor::Executor;
use duramen_redis::flash::{Tier, bytes_of, report_read};
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

/// Maximum in-flight reads of a thread: enough to keep a device busy.
const READS_MAX: u32 = 128;

/// See F1: lists of queued connections may take `Tier::fetch_bytes`, divided by this.
const LISTS_PART: usize = 4;

/// See F5. Longer than a tick of the scheduler: if this timer is the next of all timers, it costs
/// as much as it saves.
const CORK_MS: u64 = 5;
/// Maximum bytes of replies that wait in this way (F5).
const CORK_BYTES_MAX: usize = 16 << 10;

/// The bytes of a read, or the reason why it failed.
type Read = Result<Arc<[u8]>, Box<str>>;

/// A read that is in flight, or waits for a place in the reader.
struct Fetch {
    /// The entry as requested.
    asked: Cold,
    /// The part that is read: more than requested, if the entry is longer than assumed.
    cold: Cold,
    waiters: Vec<Token>,
}

/// The fetches of a thread.
#[derive(Default)]
pub(super) struct FlashReads {
    /// Made when a connection parks for the first time.
    reader: Option<SpanReader>,
    /// By the tags of the reads.
    fetches: HashMap<u64, Fetch>,
    tags: HashMap<(u64, u32), u64>,
    last_tag: u64,
    /// Tags for which the reader had no place.
    waiting: VecDeque<u64>,
    /// Connections without a read in flight yet.
    queue: VecDeque<Token>,
    /// Connections whose replies wait (F5), or waited, and the end of the wait, in milliseconds of
    /// the server's clock.
    corked: VecDeque<(u64, Token)>,
    /// The most bytes that may be fetched at once (F1).
    bytes: usize,
    /// Length of all lists of entries to be fetched (F1).
    listed: usize,
    /// The kernel has not accepted the submitted reads: they must be submitted again.
    stuck: bool,
    /// Whether the session may have lent entries.
    lent: bool,
    /// How often the session was made to forget the lent entries.
    forgotten: u64,
    /// Memory of the last round.
    ended: Vec<(u64, Read)>,
}

impl FlashReads {
    /// Whether a read is in flight, or a connection waits for one.
    #[inline]
    pub(super) fn is_busy(&self) -> bool {
        self.bytes > 0 || !self.fetches.is_empty() || !self.queue.is_empty()
    }

    /// Whether a connection was lent entries, or waits for them.
    #[inline]
    pub(super) fn has_parked(&self) -> bool {
        self.bytes > 0
    }

    /// The time at which corked replies must be sent (F5).
    pub(super) fn corked_until_ms(&self) -> Option<u64> {
        self.corked.front().map(|(until_ms, _)| *until_ms)
    }

    pub(super) fn is_stuck(&self) -> bool {
        self.stuck && self.is_busy()
    }

    /// Whether a read has ended that was not processed yet. Makes no system call with io_uring.
    #[inline]
    pub(super) fn has_come(&mut self) -> bool {
        self.is_busy() && self.reader.as_mut().is_some_and(SpanReader::has_done)
    }

    /// Submits as many waiting reads as the reader has places for.
    fn submit(&mut self) {
        let Some(reader) = &mut self.reader else {
            return;
        };
        while reader.has_room()
            && let Some(tag) = self.waiting.pop_front()
        {
            if let Some(fetch) = self.fetches.get(&tag) {
                let (offset, bytes) = fetch.cold.span();
                assert!(reader.submit(offset, bytes, tag), "it has room");
            }
        }
    }

    /// A list of entries ends.
    fn unlist(&mut self, wanted: &[WantedEntry]) {
        self.listed -= wanted.len();
        heap::freed(size_of_val(wanted));
    }

    /// Starts a fetch for a connection, or lets the connection join a fetch in flight.
    fn fetch(&mut self, want: WantedEntry, waiter: Token) {
        let under = self.tags.get(&want.asked.key());
        if let Some(fetch) = under.and_then(|tag| self.fetches.get_mut(tag)) {
            return fetch.waiters.push(waiter);
        }
        self.begin(Fetch {
            asked: want.asked,
            cold: want.cold,
            waiters: vec![waiter],
        });
    }

    fn begin(&mut self, fetch: Fetch) {
        self.last_tag += 1;
        self.tags.insert(fetch.asked.key(), self.last_tag);
        self.fetches.insert(self.last_tag, fetch);
        self.waiting.push_back(self.last_tag);
    }

    fn end(&mut self, tag: u64) -> Fetch {
        let fetch = self.fetches.remove(&tag).expect("it was begun once (F2)");
        self.tags.remove(&fetch.asked.key());
        fetch
    }

    /// Parks a connection whose requests met entries on flash: it waits for flash from now on. The
    /// connection is out of its slot. `presented`: the entries lent to its first request, if that
    /// was presented again and made no progress.
    pub(super) fn park(
        &mut self,
        here: Here<'_>,
        token: Token,
        connection: &mut Connection,
        presented: Option<Vec<FetchedEntry>>,
        connections: &mut Connections,
        watch: &Watch,
    ) {
        let mut goes_first = presented.is_some(); // F7
        let mut kept = presented.unwrap_or_default();
        let (needed, ahead) = connection.client.parking.take_wanted();
        assert!(!needed.is_empty(), "a request that parks needs something");
        let kept_bytes = kept.iter().map(FetchedEntry::length).sum::<usize>();
        if kept_bytes > 0 && kept_bytes + bytes_of(&needed) > bytes_max(here) {
            goes_first = false;
            if connection.client.parking.may_give_up() {
                kept.clear();
            }
        }
        let in_parts = connection.client.parking.takes_part();
        let parked = Parked::new(needed, ahead, kept, in_parts);
        self.listed += parked.list().len();
        connection.waits_for = WaitsFor::Flash;
        connection.parked = Some(Box::new(parked));
        here.thread.counters.flash_parked.add(1);
        let is_next = goes_first || self.queue.is_empty();
        if !is_next || !self.admit(here, token, connection, connections, watch) {
            self.enqueue(here, token, connection, goes_first);
        }
    }

    /// Queues a connection that F1 has no room for.
    fn enqueue(
        &mut self,
        here: Here<'_>,
        token: Token,
        connection: &mut Connection,
        goes_first: bool,
    ) {
        let lists_max = bytes_max(here) / LISTS_PART / size_of::<WantedEntry>();
        if let Some(parked) = &mut connection.parked
            && (parked.has_fetched() || self.listed > lists_max)
        {
            let list = parked.forget_list();
            self.unlist(&list);
        }
        match goes_first {
            true => self.queue.push_front(token),
            false => self.queue.push_back(token),
        }
    }

    /// Lets the replies of a parked connection wait (F5). To be called after `park`, before
    /// anything is sent.
    pub(super) fn cork(&mut self, here: Here<'_>, token: Token, connection: &mut Connection) {
        let waits = connection.waits_for == WaitsFor::Flash && connection.held.is_none();
        let bytes = connection.unsent_bytes();
        let others = here.thread.counters.flash_parked.get() > 1;
        if waits && others && (1..=CORK_BYTES_MAX).contains(&bytes) {
            connection.corked_until_ms = here.now_ms + CORK_MS;
            let corked = (connection.corked_until_ms, token);
            self.corked.push_back(corked);
        }
    }

    /// Returns a connection whose replies have waited long enough, and are to be sent (F5).
    pub(super) fn uncork_late(
        &mut self,
        here: Here<'_>,
        connections: &mut Connections,
    ) -> Option<Token> {
        while let Some((until_ms, token)) = self.corked.front().copied() {
            let corked = connections.get_mut(token);
            let corked = corked.filter(|connection| connection.corked_until_ms == until_ms);
            if corked.is_some() && until_ms > here.now_ms {
                return None;
            }
            self.corked.pop_front();
            if let Some(connection) = corked {
                connection.corked_until_ms = 0;
                return Some(token);
            }
        }
        None
    }

    /// Starts the fetches of a connection, if F1 has room for them.
    fn admit(
        &mut self,
        here: Here<'_>,
        token: Token,
        connection: &mut Connection,
        connections: &mut Connections,
        watch: &Watch,
    ) -> bool {
        let (Some(parked), Some(tier)) = (&mut connection.parked, here.shared.tier()) else {
            return true;
        };
        let bytes = parked.needs();
        if self.bytes > 0 && self.bytes + bytes > tier.fetch_bytes() {
            return false;
        }
        self.bytes += bytes;
        let list = parked.begin();
        self.unlist(&list);
        match self.make_reader(tier, watch) {
            Ok(()) if list.is_empty() => is_whole(token, connection, connections),
            Ok(()) => {
                for want in list {
                    self.fetch(want, token);
                }
            }
            Err(why) => {
                parked.cannot_begin(list, why);
                is_whole(token, connection, connections);
            }
        }
        true
    }

    fn make_reader(&mut self, tier: &Tier, watch: &Watch) -> Result<(), Box<str>> {
        if self.reader.is_some() {
            return Ok(());
        }
        let reader = tier.reader(READS_MAX).map_err(|error| error.to_string())?;
        watch
            .add(reader.descriptor(), Token::FLASH)
            .map_err(|error| format!("cannot watch the reader of flash: {error}"))?;
        self.reader = Some(reader);
        Ok(())
    }

    /// Before the thread waits: admits queued connections, starts reads, and passes them to the
    /// device.
    pub(super) fn start_fetches(
        &mut self,
        here: Here<'_>,
        connections: &mut Connections,
        watch: &Watch,
    ) {
        self.admit_queued(here, connections, watch); // others have made room
        self.submit();
        let reader = self.reader.as_mut();
        self.stuck = reader.is_some_and(|reader| reader.start().is_err());
    }

    /// Takes the reads that have ended, and continues connections whose last read this was.
    pub(super) fn take_fetched(
        &mut self,
        here: Here<'_>,
        connections: &mut Connections,
        executor: &mut Executor,
    ) {
        let Some(reader) = &mut self.reader else {
            return;
        };
        let mut ended = std::mem::take(&mut self.ended);
        reader.poll(|span| {
            let result = span.result.map(Arc::from).map_err(|error| {
                report_read(&error);
                format!("reading from flash failed: {error}").into()
            });
            ended.push((span.tag, result));
        });
        for (tag, result) in ended.drain(..) {
            self.fetch_ended(here, tag, result, connections, executor);
        }
        self.ended = ended;
    }

    fn fetch_ended(
        &mut self,
        here: Here<'_>,
        tag: u64,
        result: Read,
        connections: &mut Connections,
        executor: &mut Executor,
    ) {
        let fetch = self.end(tag);
        let waits = |token: &Token| connections.get(*token).is_some();
        if !fetch.waiters.iter().any(waits) {
            return; // F3
        }
        let counters = &here.thread.counters;
        let outcome: Outcome = match result {
            Err(why) => {
                counters.flash_read_errors.add(1);
                Err(why)
            }
            Ok(bytes) => {
                counters.flash_fetched_bytes.add(bytes.len() as u64);
                match self.lend(executor, &fetch.cold, &bytes) {
                    Ok(Fetched::Held) => {
                        counters.flash_fetches.add(1);
                        Ok(Some((fetch.cold, bytes)))
                    }
                    Ok(Fetched::Gone) => Ok(None),
                    Ok(Fetched::Longer(longer)) => {
                        return self.read_longer(here, fetch, longer, connections);
                    }
                    Err(why) => Err(why),
                }
            }
        };
        for token in fetch.waiters {
            self.give(here, token, fetch.asked, &outcome, connections);
        }
    }

    fn lend(
        &mut self,
        executor: &mut Executor,
        cold: &Cold,
        bytes: &[u8],
    ) -> Result<Fetched, Box<str>> {
        self.lent = true;
        let session = executor
            .session()
            .expect("a server that parks requests has data");
        session
            .fetched(cold, bytes)
            .map_err(|error| error.to_string().into())
    }

    /// Ends one fetch of a connection.
    fn give(
        &mut self,
        here: Here<'_>,
        token: Token,
        asked: Cold,
        outcome: &Outcome,
        connections: &mut Connections,
    ) {
        let Some(mut connection) = connections.take(token) else {
            return; // It was closed meanwhile.
        };
        let parked = connection.parked.as_mut();
        if parked.is_some_and(|parked| parked.ended(asked, outcome, self.forgotten)) {
            self.all_ended(here, token, &mut connection, connections);
        }
        connections.put(token, connection);
    }

    /// The bytes read show that the entry is longer: it is read completely for the connections that
    /// F1 has room for.
    fn read_longer(
        &mut self,
        here: Here<'_>,
        fetch: Fetch,
        longer: Cold,
        connections: &mut Connections,
    ) {
        let asked = fetch.asked;
        let more = longer.span().1 - fetch.cold.span().1;
        let mut stay = Vec::with_capacity(fetch.waiters.len());
        for token in fetch.waiters {
            let Some(mut connection) = connections.take(token) else {
                continue; // It was closed meanwhile.
            };
            if let Some(parked) = &mut connection.parked {
                if self.bytes + more <= bytes_max(here) {
                    self.bytes += more;
                    parked.grows(more);
                    stay.push(token);
                } else {
                    let cold = longer;
                    if parked.ended_short(WantedEntry { asked, cold }) {
                        self.all_ended(here, token, &mut connection, connections);
                    }
                }
            }
            connections.put(token, connection);
        }
        if !stay.is_empty() {
            self.begin(Fetch {
                asked,
                cold: longer,
                waiters: stay,
            });
        }
    }

    /// All fetches of a connection have ended.
    fn all_ended(
        &mut self,
        here: Here<'_>,
        token: Token,
        connection: &mut Connection,
        connections: &mut Connections,
    ) {
        let Connection {
            parked: Some(parked),
            client,
            ..
        } = connection
        else {
            return;
        };
        match parked.all_ended(bytes_max(here), || client.parking.may_give_up()) {
            Ended::Whole => is_whole(token, connection, connections),
            Ended::Needs { given_up } => {
                self.bytes -= given_up;
                self.listed += parked.list().len();
                self.queue.push_front(token); // F7
            }
        }
    }

    /// Admits queued connections as long as F1 has room, in the order of the queue.
    fn admit_queued(&mut self, here: Here<'_>, connections: &mut Connections, watch: &Watch) {
        while let Some(token) = self.queue.front().copied() {
            if let Some(mut connection) = connections.take(token) {
                let admitted = self.admit(here, token, &mut connection, connections, watch);
                connections.put(token, connection);
                if !admitted {
                    return;
                }
            }
            self.queue.pop_front();
        }
    }

    /// Before the requests of a connection are presented again: lends all entries fetched for them
    /// to the session.
    pub(super) fn lend_fetched(&mut self, executor: &mut Executor, connection: &mut Connection) {
        let Connection {
            parked: Some(parked),
            client,
            ..
        } = connection
        else {
            return;
        };
        let forgotten = self.forgotten;
        let (lent, failed) = parked.lend(forgotten, |cold, bytes| {
            self.lend(executor, cold, bytes).map(|_| ())
        });
        client.parking.was_lent(lent);
        if !failed.is_empty() {
            client.parking.could_not_fetch(failed);
        }
    }

    /// After the requests of a connection were presented again: returns the entries lent to them,
    /// if the first request made no progress.
    #[inline]
    pub(super) fn take_back(
        &mut self,
        here: Here<'_>,
        connection: &mut Connection,
        executed: usize,
        executor: &mut Executor,
    ) -> Option<Vec<FetchedEntry>> {
        match self.unpark(here, connection, executor) {
            Some(parked) if executed == 0 && !connection.client.parking.take_progress() => {
                Some(parked.into_fetched())
            }
            _ => {
                connection.client.parking.needs_nothing_lent();
                None
            }
        }
    }

    /// Ends the connection's wait for flash: it is presented again, or it is closed, or its client
    /// does not take its replies.
    #[inline]
    pub(super) fn unpark(
        &mut self,
        here: Here<'_>,
        connection: &mut Connection,
        executor: &mut Executor,
    ) -> Option<Box<Parked>> {
        let parked = connection.parked.take()?;
        self.bytes -= parked.bytes();
        self.unlist(parked.list());
        heap::freed(parked.bytes());
        here.thread.counters.flash_parked.add(1u64.wrapping_neg());
        if !self.has_parked() {
            self.forget_fetched(executor);
        }
        Some(parked)
    }

    /// Makes the session forget the lent entries when they are not needed any more (F4). Called
    /// between groups.
    pub(super) fn forget_fetched(&mut self, executor: &mut Executor) {
        if std::mem::take(&mut self.lent)
            && let Some(session) = executor.session()
        {
            session.forget_fetched();
            self.forgotten += 1;
        }
    }
}

/// The most bytes that may be fetched at once (F1).
fn bytes_max(here: Here<'_>) -> usize {
    here.shared.tier().map_or(0, |tier| tier.fetch_bytes())
}

/// All entries that the connection waited for have arrived, or their reads have failed.
fn is_whole(token: Token, connection: &mut Connection, connections: &mut Connections) {
    connection.waits_for = WaitsFor::Turn;
    if connection.held.is_none() {
        connections.continue_soon(token);
    }
}
