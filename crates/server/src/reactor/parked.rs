//! The entries on flash that one connection waits for. The rules are in `flash`.

use duramen_config::heap;
use duramen_engine::flash::{Cold, first_within};
use duramen_redis::command::too_much;
use duramen_redis::flash::{Unfetched, bytes_of};
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

/// The bytes read for an entry, or the reason why there are none; `Ok(None)`: the entry no longer
/// exists.
pub(super) type Outcome = Result<Option<(Cold, Arc<[u8]>)>, Box<str>>;

/// The entries that a connection waits for.
#[derive(Default)]
pub(super) struct Parked {
    /// Entries to be fetched. Empty for a queued connection without a list (reactor::flash::F1).
    wanted: Vec<WantedEntry>,
    /// The bytes of these entries and of the kept ones.
    needs: usize,
    /// Its part of reactor::flash::F1; 0 = the connection is queued.
    bytes: usize,
    /// Fetches that have not ended.
    missing: usize,
    fetched: Vec<FetchedEntry>,
    /// Entries that are longer than assumed, and for which there was no room.
    longer: Vec<WantedEntry>,
    /// Keys of the entries above that only later requests need (reactor::flash::F6).
    ahead: Vec<(u64, u32)>,
    /// Keys of the entries above that were lent to its first request before.
    kept: HashSet<(u64, u32)>,
    /// The order in which the first request needs them, if it can use a first part of them.
    order: Option<HashMap<(u64, u32), usize>>,
    failed: Vec<(Cold, Unfetched)>,
}

#[derive(Clone, Copy)]
pub(super) struct WantedEntry {
    /// The entry as requested.
    pub(super) asked: Cold,
    /// The part to be read.
    pub(super) cold: Cold,
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
    /// The session has the entry as long as this equals `FlashReads::forgotten`.
    lent: u64,
}

impl FetchedEntry {
    pub(super) fn length(&self) -> usize {
        self.bytes.len()
    }
}

/// The result for a connection whose fetches have all ended.
pub(super) enum Ended {
    /// Its requests can be presented again.
    Whole,
    /// It has given up its `given_up` bytes, and needs more than these.
    Needs { given_up: usize },
}

impl Parked {
    /// `needed` are the entries that the first request needs, `ahead` those of the requests behind
    /// it, and `kept` those that were lent to the first request before. With `in_parts`, the first
    /// request can use a first part of its entries.
    pub(super) fn new(
        needed: Vec<Cold>,
        mut ahead: Vec<Cold>,
        kept: Vec<FetchedEntry>,
        in_parts: bool,
    ) -> Parked {
        if !ahead.is_empty() {
            let kept = kept.iter().map(|come| come.asked.key());
            let mut first: HashSet<_> = needed.iter().map(Cold::key).chain(kept).collect();
            ahead.retain(|cold| first.insert(cold.key())); // reactor::flash::F6
        }
        // Only these cases use the order; a request that parks for the first time pays nothing.
        let ordered: &[Cold] = match in_parts || !kept.is_empty() {
            true => &needed,
            false => &[],
        };
        let asked: HashMap<(u64, u32), usize> = ordered.iter().map(Cold::key).zip(0..).collect();
        let kept_bytes = kept.iter().map(FetchedEntry::length).sum::<usize>();
        Parked {
            ahead: ahead.iter().map(Cold::key).collect(),
            kept: kept
                .iter()
                .map(|come| come.asked.key())
                .filter(|key| !asked.contains_key(key))
                .collect(),
            order: in_parts.then_some(asked),
            needs: kept_bytes + bytes_of(&needed) + bytes_of(&ahead),
            wanted: needed
                .into_iter()
                .chain(ahead)
                .map(WantedEntry::from)
                .collect(),
            fetched: kept,
            ..Parked::default()
        }
    }

    /// Entries to be fetched.
    pub(super) fn list(&self) -> &[WantedEntry] {
        &self.wanted
    }

    /// The bytes of all entries that it waits for.
    pub(super) fn needs(&self) -> usize {
        self.needs
    }

    /// Its part of reactor::flash::F1.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(super) fn has_fetched(&self) -> bool {
        !self.fetched.is_empty()
    }

    /// Forgets all but the number of bytes: the requests find the entries once more. Returns the
    /// list.
    pub(super) fn forget_list(&mut self) -> Vec<WantedEntry> {
        let forgotten = std::mem::take(self);
        self.needs = forgotten.needs;
        forgotten.wanted
    }

    /// Its fetches begin: they have room in reactor::flash::F1. Returns the list.
    pub(super) fn begin(&mut self) -> Vec<WantedEntry> {
        self.bytes = self.needs;
        self.missing = self.wanted.len();
        std::mem::take(&mut self.wanted)
    }

    /// Its fetches cannot begin.
    pub(super) fn cannot_begin(&mut self, list: Vec<WantedEntry>, why: Box<str>) {
        self.missing = 0;
        let why = Unfetched::Unreadable(why);
        let failed = list.into_iter().map(|want| (want.asked, why.clone()));
        self.failed = failed.collect();
    }

    /// Notes that one fetch has ended; `lent` is as in [`FetchedEntry`]. Returns true if it was the
    /// last one.
    pub(super) fn ended(&mut self, asked: Cold, outcome: &Outcome, lent: u64) -> bool {
        match outcome {
            Ok(Some((cold, bytes))) => self.fetched.push(FetchedEntry {
                asked,
                cold: *cold,
                bytes: Arc::clone(bytes),
                lent,
            }),
            Ok(None) => {}
            Err(why) => self
                .failed
                .push((asked, Unfetched::Unreadable(why.clone()))),
        }
        self.missing -= 1;
        self.missing == 0
    }

    /// One fetch continues: its entry has `bytes` more than assumed.
    pub(super) fn grows(&mut self, bytes: usize) {
        self.bytes += bytes;
    }

    /// Notes a fetch which has shown that the entry is longer, and that there was no room for it.
    /// Returns true if it was the last fetch.
    pub(super) fn ended_short(&mut self, longer: WantedEntry) -> bool {
        self.longer.push(longer);
        self.missing -= 1;
        self.missing == 0
    }

    /// All fetches have ended. Entries that had no room are requested again, together with the
    /// others, now that their length is known. If the others were kept meanwhile, connections could
    /// wait for each other's room for ever. `most` is the limit of reactor::flash::F1.
    pub(super) fn all_ended(&mut self, most: usize, may_give_up: impl FnOnce() -> bool) -> Ended {
        let ahead = std::mem::take(&mut self.ahead);
        let is_needed = |want: &WantedEntry| !ahead.contains(&want.asked.key());
        let mut longer = std::mem::take(&mut self.longer);
        longer.retain(is_needed);
        let Some(first) = longer.first().copied() else {
            return Ended::Whole;
        };
        let come = self.fetched.iter().map(|come| WantedEntry {
            asked: come.asked,
            cold: come.cold,
        });
        let mut wanted: Vec<WantedEntry> = come.filter(is_needed).chain(longer).collect();
        let over =
            |wanted: &[WantedEntry]| wanted.iter().map(WantedEntry::length).sum::<usize>() > most;
        let needed: usize = wanted.iter().map(WantedEntry::length).sum();
        let mut may_go_on = true;
        if over(&wanted) && !self.kept.is_empty() {
            may_go_on = may_give_up();
            wanted.retain(|want| !self.kept.contains(&want.asked.key()));
        }
        if over(&wanted)
            && let Some(order) = &self.order
        {
            wanted.sort_by_key(|want| order.get(&want.asked.key()));
            wanted.truncate(first_within(wanted.iter().map(WantedEntry::length), most));
        }
        if over(&wanted) || !may_go_on {
            let why = too_much(needed, most).into();
            self.failed.push((first.asked, Unfetched::TooMuch(why)));
            return Ended::Whole;
        }
        let given_up = std::mem::take(&mut self.bytes);
        heap::freed(given_up);
        self.fetched = Vec::new();
        self.needs = wanted.iter().map(WantedEntry::length).sum();
        self.wanted = wanted;
        Ended::Needs { given_up }
    }

    /// Lends all fetched entries that the session does not have. Returns the bytes of all fetched
    /// entries, and the entries that it could not lend, with the reasons.
    pub(super) fn lend(
        &mut self,
        forgotten: u64,
        mut lend: impl FnMut(&Cold, &[u8]) -> Result<(), Box<str>>,
    ) -> (usize, Vec<(Cold, Unfetched)>) {
        let mut failed = std::mem::take(&mut self.failed);
        for come in &mut self.fetched {
            if come.lent != forgotten
                && let Err(why) = lend(&come.cold, &come.bytes)
            {
                failed.push((come.cold, Unfetched::Unreadable(why)));
            }
            come.lent = forgotten;
        }
        let lent = self.fetched.iter().map(FetchedEntry::length).sum();
        (lent, failed)
    }

    pub(super) fn into_fetched(self) -> Vec<FetchedEntry> {
        self.fetched
    }
}
