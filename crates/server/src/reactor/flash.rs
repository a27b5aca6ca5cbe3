//! Connections whose requests wait for flash: their entries are fetched in parallel, then the
//! requests continue.
//!
//! A request that met entries on flash has not run (`command::cold`). Its connection is
//! parked: it requests these entries, and those that the requests behind it will need. Other
//! connections continue. When all entries have arrived, they are lent to the session, and the
//! requests are presented again as the connection's next turn. So the order of its replies is kept.
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
//!   exactly once, with its bytes or an error. After the last, the connection
//!   continues in the next round, or with its release. So no connection is forgotten.
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

use super::Reactor;
use super::connection::{Connection, WaitsFor};
use super::connections::Token;
use duramen_config::heap;
use duramen_disk::SpanReader;
use duramen_engine::flash::{Cold, Fetched, first_within};
use duramen_redis::command::too_much;
use duramen_redis::flash::{Unfetched, bytes_of, report_read};
use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;

/// Maximum in-flight reads of a thread: enough to keep a device busy.
const READS_MAX: u32 = 128;

/// See F1: lists of queued connections may take `Tier::fetch_bytes`, divided by this.
const LISTS_PART: usize = 4;

/// See F5. Longer than a tick of the scheduler: if this timer is the next of all timers, it costs
/// as much as it saves.
const CORK_MS: u64 = 5;
/// Maximum bytes of replies that wait this way.
const CORK_BYTES_MAX: usize = 16 << 10;

/// The bytes of a read, or the reason why it failed.
type Read = Result<Arc<[u8]>, Box<str>>;

/// The bytes read for an entry, or the reason why there are none; `Ok(None)`: the entry no longer
/// exists.
type Outcome = Result<Option<(Cold, Arc<[u8]>)>, Box<str>>;

/// The entries that a connection waits for.
#[derive(Default)]
pub(super) struct Parked {
    /// Entries to be fetched. Empty for a queued connection without a list (F1).
    wanted: Vec<WantedEntry>,
    /// The bytes of these entries and of the kept ones.
    needs: usize,
    /// Its part of F1; 0 = the connection is queued.
    bytes: usize,
    /// Fetches that have not ended.
    missing: usize,
    fetched: Vec<FetchedEntry>,
    /// Entries that are longer than assumed, and for which there was no room.
    longer: Vec<WantedEntry>,
    /// Keys of the entries above that only later requests need (F6).
    ahead: Vec<(u64, u32)>,
    /// Keys of the entries above that were lent to its first request before.
    kept: HashSet<(u64, u32)>,
    /// The order in which the first request needs them, if it can use a first part of them.
    order: Option<HashMap<(u64, u32), usize>>,
    failed: Vec<(Cold, Unfetched)>,
}

#[derive(Clone, Copy)]
struct WantedEntry {
    /// The entry as requested.
    asked: Cold,
    /// The part to be read.
    cold: Cold,
}

impl WantedEntry {
    fn length(&self) -> usize {
        self.cold.span().1
    }
}

impl From<Cold> for WantedEntry {
    fn from(asked: Cold) -> WantedEntry {
        WantedEntry { asked, cold: asked }
    }
}

/// A fetched entry.
pub(super) struct FetchedEntry {
    asked: Cold,
    cold: Cold,
    bytes: Arc<[u8]>,
    /// The session has the entry as long as this equals `Flash::forgotten`.
    lent: u64,
}

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
pub(super) struct Flash {
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
    /// See F1.
    bytes: usize,
    /// Length of all lists of entries to be fetched (F1).
    listed: usize,
    /// The kernel has not accepted the submitted reads: they must be submitted again.
    stuck: bool,
    /// The session may have lent entries.
    lent: bool,
    /// How often the session was made to forget them.
    forgotten: u64,
    /// Memory of the last round.
    ended: Vec<(u64, Read)>,
}

impl Flash {
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
}

impl Reactor {
    /// Parks a connection whose requests met entries on flash: it waits for flash from now on. The
    /// connection is out of its slot. `presented`: the entries lent to its first request, if that
    /// was presented again and made no progress.
    pub(super) fn park(
        &mut self,
        token: Token,
        connection: &mut Connection,
        presented: Option<Vec<FetchedEntry>>,
    ) {
        let mut goes_first = presented.is_some(); // F7
        let mut kept = presented.unwrap_or_default();
        let (needed, mut ahead) = connection.client.take_wanted();
        assert!(!needed.is_empty(), "a request that parks needs something");
        let most = self
            .thread
            .shared()
            .tier()
            .map_or(0, |tier| tier.fetch_bytes());
        let mut kept_bytes = kept.iter().map(|come| come.bytes.len()).sum::<usize>();
        let bytes = bytes_of(&needed);
        if kept_bytes > 0 && kept_bytes + bytes > most {
            goes_first = false;
            if connection.client.may_give_up() {
                kept.clear();
                kept_bytes = 0;
            }
        }
        if !ahead.is_empty() {
            let kept = kept.iter().map(|come| come.asked.key());
            let mut first: HashSet<_> = needed.iter().map(Cold::key).chain(kept).collect();
            ahead.retain(|cold| first.insert(cold.key())); // F6
        }
        let in_parts = connection.client.takes_part();
        // Only these cases use the order; a request that parks for the first time pays nothing.
        let ordered: &[Cold] = match in_parts || !kept.is_empty() {
            true => &needed,
            false => &[],
        };
        let asked: HashMap<(u64, u32), usize> = ordered.iter().map(Cold::key).zip(0..).collect();
        self.flash.listed += needed.len() + ahead.len();
        connection.waits_for = WaitsFor::Flash;
        connection.parked = Some(Box::new(Parked {
            ahead: ahead.iter().map(Cold::key).collect(),
            kept: kept
                .iter()
                .map(|come| come.asked.key())
                .filter(|key| !asked.contains_key(key))
                .collect(),
            order: in_parts.then_some(asked),
            needs: kept_bytes + bytes + bytes_of(&ahead),
            wanted: needed
                .into_iter()
                .chain(ahead)
                .map(WantedEntry::from)
                .collect(),
            fetched: kept,
            ..Parked::default()
        }));
        self.me().counters.flash_parked.add(1);
        let is_next = goes_first || self.flash.queue.is_empty();
        if !is_next || !self.admit_parked(token, connection) {
            self.enqueue(token, connection, goes_first);
        }
    }

    /// Queues a connection that F1 has no room for.
    fn enqueue(&mut self, token: Token, connection: &mut Connection, goes_first: bool) {
        let most = self
            .thread
            .shared()
            .tier()
            .map_or(0, |tier| tier.fetch_bytes());
        let lists_max = most / LISTS_PART / size_of::<WantedEntry>();
        if let Some(parked) = &mut connection.parked
            && (!parked.fetched.is_empty() || self.flash.listed > lists_max)
        {
            self.flash.unlist(&parked.wanted);
            **parked = Parked {
                needs: parked.needs,
                ..Parked::default()
            };
        }
        match goes_first {
            true => self.flash.queue.push_front(token),
            false => self.flash.queue.push_back(token),
        }
    }

    /// F5. To be called after `park`, before anything is sent.
    pub(super) fn cork(&mut self, token: Token, connection: &mut Connection) {
        let waits = connection.waits_for == WaitsFor::Flash && connection.held.is_none();
        let bytes = connection.unsent_bytes();
        let others = self.me().counters.flash_parked.get() > 1;
        if waits && others && (1..=CORK_BYTES_MAX).contains(&bytes) {
            connection.corked_until_ms = self.thread.now_ms() + CORK_MS;
            let corked = (connection.corked_until_ms, token);
            self.flash.corked.push_back(corked);
        }
    }

    /// F5: sends the replies that have waited long enough. Called after each round.
    pub(super) fn uncork_late(&mut self) {
        while let Some((until_ms, token)) = self.flash.corked.front().copied() {
            let waits = |connection: &Connection| connection.corked_until_ms == until_ms;
            let is_corked = self.connections.get(token).is_some_and(waits);
            if is_corked && until_ms > self.thread.now_ms() {
                return;
            }
            self.flash.corked.pop_front();
            if is_corked && let Some(mut connection) = self.connections.take(token) {
                connection.corked_until_ms = 0;
                self.connections.put(token, connection);
                self.writable(token);
            }
        }
    }

    /// Starts the fetches of a connection, if F1 has room for them.
    fn admit_parked(&mut self, token: Token, connection: &mut Connection) -> bool {
        let (Some(parked), Some(tier)) = (&mut connection.parked, self.thread.shared().tier())
        else {
            return true;
        };
        let bytes = parked.needs;
        if self.flash.bytes > 0 && self.flash.bytes + bytes > tier.fetch_bytes() {
            return false;
        }
        self.flash.bytes += bytes;
        parked.bytes = bytes;
        parked.missing = parked.wanted.len();
        let wanted = std::mem::take(&mut parked.wanted);
        self.flash.unlist(&wanted);
        match self.make_reader() {
            Ok(()) if wanted.is_empty() => self.is_whole(token, connection),
            Ok(()) => {
                for want in wanted {
                    self.flash.fetch(want, token);
                }
            }
            Err(why) => {
                parked.missing = 0;
                let why = Unfetched::Unreadable(why);
                let failed = wanted.into_iter().map(|want| (want.asked, why.clone()));
                parked.failed = failed.collect();
                self.is_whole(token, connection);
            }
        }
        true
    }

    fn make_reader(&mut self) -> Result<(), Box<str>> {
        if self.flash.reader.is_some() {
            return Ok(());
        }
        let tier = self
            .thread
            .shared()
            .tier()
            .expect("only a server with flash parks requests");
        let reader = tier.reader(READS_MAX).map_err(|error| error.to_string())?;
        self.watch
            .add(reader.descriptor(), Token::FLASH)
            .map_err(|error| format!("cannot watch the reader of flash: {error}"))?;
        self.flash.reader = Some(reader);
        Ok(())
    }

    /// All entries that the connection waited for have arrived, or their reads have failed.
    fn is_whole(&mut self, token: Token, connection: &mut Connection) {
        connection.waits_for = WaitsFor::Turn;
        if connection.held.is_none() {
            self.connections.continue_soon(token);
        }
    }

    /// Before the thread waits: admits queued connections, starts reads, and passes them to the
    /// device.
    pub(super) fn start_fetches(&mut self) {
        self.admit_queued(); // continued or closed connections have made room
        self.flash.submit();
        let reader = self.flash.reader.as_mut();
        self.flash.stuck = reader.is_some_and(|reader| reader.start().is_err());
    }

    /// Takes the reads that have ended, and continues connections whose last read this was.
    pub(super) fn take_fetched(&mut self) {
        let Some(reader) = &mut self.flash.reader else {
            return;
        };
        let mut ended = std::mem::take(&mut self.flash.ended);
        reader.poll(|span| {
            let result = span.result.map(Arc::from).map_err(|error| {
                report_read(&error);
                format!("reading from flash failed: {error}").into()
            });
            ended.push((span.tag, result));
        });
        for (tag, result) in ended.drain(..) {
            self.fetch_ended(tag, result);
        }
        self.flash.ended = ended;
    }

    fn fetch_ended(&mut self, tag: u64, result: Read) {
        let Fetch {
            asked,
            cold,
            waiters,
        } = self.flash.end(tag);
        if !waiters
            .iter()
            .any(|token| self.connections.get(*token).is_some())
        {
            return; // F3
        }
        let counters = &self.me().counters;
        let outcome: Outcome = match result {
            Err(why) => {
                counters.flash_read_errors.add(1);
                Err(why)
            }
            Ok(bytes) => {
                counters.flash_fetched_bytes.add(bytes.len() as u64);
                match self.lend(&cold, &bytes) {
                    Ok(Fetched::Held) => {
                        self.me().counters.flash_fetches.add(1);
                        Ok(Some((cold, bytes)))
                    }
                    Ok(Fetched::Gone) => Ok(None),
                    Ok(Fetched::Longer(longer)) => {
                        return self.read_longer(asked, cold, longer, waiters);
                    }
                    Err(why) => Err(why),
                }
            }
        };
        for token in waiters {
            self.give(token, asked, &outcome);
        }
    }

    fn lend(&mut self, cold: &Cold, bytes: &[u8]) -> Result<Fetched, Box<str>> {
        self.flash.lent = true;
        let session = self
            .executor
            .session()
            .expect("a server that parks requests has data");
        session
            .fetched(cold, bytes)
            .map_err(|error| error.to_string().into())
    }

    /// Ends one fetch of a connection.
    fn give(&mut self, token: Token, asked: Cold, outcome: &Outcome) {
        let Some(mut connection) = self.connections.take(token) else {
            return; // It was closed meanwhile.
        };
        if let Some(parked) = &mut connection.parked {
            match outcome {
                Ok(Some((cold, bytes))) => parked.fetched.push(FetchedEntry {
                    asked,
                    cold: *cold,
                    bytes: Arc::clone(bytes),
                    lent: self.flash.forgotten,
                }),
                Ok(None) => {}
                Err(why) => parked
                    .failed
                    .push((asked, Unfetched::Unreadable(why.clone()))),
            }
            parked.missing -= 1;
            if parked.missing == 0 {
                self.all_ended(token, &mut connection);
            }
        }
        self.connections.put(token, connection);
    }

    /// The bytes read show that the entry is longer: it is read completely for the connections that
    /// F1 has room for.
    fn read_longer(&mut self, asked: Cold, cold: Cold, longer: Cold, waiters: Vec<Token>) {
        let most = self
            .thread
            .shared()
            .tier()
            .map_or(0, |tier| tier.fetch_bytes());
        let more = longer.span().1 - cold.span().1;
        let mut stay = Vec::with_capacity(waiters.len());
        for token in waiters {
            let Some(mut connection) = self.connections.take(token) else {
                continue; // It was closed meanwhile.
            };
            if let Some(parked) = &mut connection.parked {
                if self.flash.bytes + more <= most {
                    self.flash.bytes += more;
                    parked.bytes += more;
                    stay.push(token);
                } else {
                    parked.longer.push(WantedEntry {
                        asked,
                        cold: longer,
                    });
                    parked.missing -= 1;
                    if parked.missing == 0 {
                        self.all_ended(token, &mut connection);
                    }
                }
            }
            self.connections.put(token, connection);
        }
        if !stay.is_empty() {
            self.flash.begin(Fetch {
                asked,
                cold: longer,
                waiters: stay,
            });
        }
    }

    /// All fetches of a connection have ended. Entries that had no room are requested again,
    /// together with the others, now that their length is known. If the others were kept meanwhile,
    /// connections could wait for each other's room for ever.
    fn all_ended(&mut self, token: Token, connection: &mut Connection) {
        let most = self
            .thread
            .shared()
            .tier()
            .map_or(0, |tier| tier.fetch_bytes());
        let Some(parked) = &mut connection.parked else {
            return;
        };
        let ahead = std::mem::take(&mut parked.ahead);
        let is_needed = |want: &WantedEntry| !ahead.contains(&want.asked.key());
        let mut longer = std::mem::take(&mut parked.longer);
        longer.retain(is_needed);
        let Some(first) = longer.first().copied() else {
            return self.is_whole(token, connection);
        };
        let come = parked.fetched.iter().map(|come| WantedEntry {
            asked: come.asked,
            cold: come.cold,
        });
        let mut wanted: Vec<WantedEntry> = come.filter(is_needed).chain(longer).collect();
        let over =
            |wanted: &[WantedEntry]| wanted.iter().map(WantedEntry::length).sum::<usize>() > most;
        let needed: usize = wanted.iter().map(WantedEntry::length).sum();
        let mut may_go_on = true;
        if over(&wanted) && !parked.kept.is_empty() {
            may_go_on = connection.client.may_give_up();
            wanted.retain(|want| !parked.kept.contains(&want.asked.key()));
        }
        if over(&wanted)
            && let Some(order) = &parked.order
        {
            wanted.sort_by_key(|want| order.get(&want.asked.key()));
            wanted.truncate(first_within(wanted.iter().map(WantedEntry::length), most));
        }
        if over(&wanted) || !may_go_on {
            let why = too_much(needed, most).into();
            parked.failed.push((first.asked, Unfetched::TooMuch(why)));
            return self.is_whole(token, connection);
        }
        heap::freed(parked.bytes);
        self.flash.bytes -= std::mem::take(&mut parked.bytes);
        self.flash.listed += wanted.len();
        parked.fetched = Vec::new();
        parked.needs = wanted.iter().map(WantedEntry::length).sum();
        parked.wanted = wanted;
        self.flash.queue.push_front(token); // F7
    }

    /// Admits queued connections as long as F1 has room, in the order of the queue.
    fn admit_queued(&mut self) {
        while let Some(token) = self.flash.queue.front().copied() {
            if let Some(mut connection) = self.connections.take(token) {
                let admitted = self.admit_parked(token, &mut connection);
                self.connections.put(token, connection);
                if !admitted {
                    return;
                }
            }
            self.flash.queue.pop_front();
        }
    }

    /// Before the requests of a connection are presented again: lends all entries fetched for them
    /// to the session.
    pub(super) fn lend_fetched(&mut self, connection: &mut Connection) {
        let Some(parked) = &mut connection.parked else {
            return;
        };
        let mut failed = std::mem::take(&mut parked.failed);
        for come in &mut parked.fetched {
            if come.lent != self.flash.forgotten
                && let Err(why) = self.lend(&come.cold, &come.bytes)
            {
                failed.push((come.cold, Unfetched::Unreadable(why)));
            }
            come.lent = self.flash.forgotten;
        }
        let lent = parked.fetched.iter().map(|come| come.bytes.len()).sum();
        connection.client.was_lent(lent);
        if !failed.is_empty() {
            connection.client.could_not_fetch(failed);
        }
    }

    /// After the requests of a connection were presented again: returns the entries lent to them,
    /// if the first request made no progress.
    pub(super) fn take_back(
        &mut self,
        connection: &mut Connection,
        executed: usize,
    ) -> Option<Vec<FetchedEntry>> {
        match self.unpark(connection) {
            Some(parked) if executed == 0 && !connection.client.take_progress() => {
                Some(parked.fetched)
            }
            _ => {
                connection.client.needs_nothing_lent();
                None
            }
        }
    }

    /// Ends the connection's wait for flash: it is presented again, or it is closed, or its client
    /// does not take its replies.
    pub(super) fn unpark(&mut self, connection: &mut Connection) -> Option<Box<Parked>> {
        let parked = connection.parked.take()?;
        self.flash.bytes -= parked.bytes;
        self.flash.unlist(&parked.wanted);
        heap::freed(parked.bytes);
        self.me().counters.flash_parked.add(1u64.wrapping_neg());
        if !self.flash.has_parked() {
            self.forget_fetched();
        }
        Some(parked)
    }

    /// F4. Called between groups.
    pub(super) fn forget_fetched(&mut self) {
        if std::mem::take(&mut self.flash.lent)
            && let Some(session) = self.executor.session()
        {
            session.forget_fetched();
            self.flash.forgotten += 1;
        }
    }
}
