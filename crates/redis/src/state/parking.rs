//! State that a connection keeps for requests that wait for entries on flash, or that run in parts
//! (`command::cold`). All that it keeps for the request is dropped with the request's end
//! (computed::C4).

use super::conflicts::Conflicts;
use super::progress::Progress;
use crate::flash::unfetched::{Unfetched, bytes_of};
use crate::threads::clients::ClientRecord;
use duramen_acl::Users;
use duramen_base::planted::{Bug, has_bug};
use duramen_engine::TableId;
use duramen_engine::flash::{Cold, first_within};
use duramen_node::WhenCold;
use std::sync::Arc;

/// Progress of KEYS, RANDOMKEY, CLIENT LIST or ACL LIST.
#[derive(Default)]
pub(crate) struct Walk {
    /// The table behind its database when the walk began.
    table: Option<TableId>,
    pub(crate) cursor: u64,
    pub(crate) keys: usize,
    /// The replies of these keys, or the key that RANDOMKEY has drawn.
    pub(crate) found: Vec<u8>,
    /// RANDOMKEY: 1 = from its random place to the end, 2 = from the start.
    pub(crate) passes: u8,
    /// Whether the walk made progress since the request was presented.
    pub(crate) moved: bool,
    /// The clients that CLIENT LIST shows; the cursor is the position of the next one.
    pub(crate) clients: Vec<Arc<ClientRecord>>,
    /// The users when ACL LIST began.
    pub(crate) users: Option<Arc<Users>>,
}

/// How often a request may give up its lent entries. If entries are cleaned meanwhile, they have
/// moved, and lent copies of their old places are of no use.
const GIVEN_UP_MAX: u32 = 16;
/// Maximum entries that a walk in parts requests at once.
const PART_ENTRIES_MAX: usize = 16;

/// Entries that a client's parked requests need, and the state kept for these requests.
#[derive(Default)]
struct Parking {
    /// The entries that the first request noted when it last looked.
    wanted: Vec<Cold>,
    /// Entries for the requests behind it, and their bytes.
    ahead: Vec<Cold>,
    ahead_bytes: usize,
    /// Entries that were not fetched, with the reason.
    failed: Vec<(Cold, Unfetched)>,
    /// The walk of KEYS and its like (cold::C4).
    walk: Option<Walk>,
    /// The progress of a command that combines values (computed::C2).
    combined: Option<Progress>,
    /// The runs of SORT that were in vain.
    conflicts: Conflicts,
    /// See [`Parked::take_progress`].
    progressed: bool,
    /// Whether monitors have been sent the parked request.
    monitored: bool,
    /// Whether the parked request is in the audit log.
    audited: bool,
    /// Bytes that were lent for the parked request.
    lent: usize,
    /// Whether a walk needs more entries than may be fetched at once: it requests the first of
    /// them, and can use a part of those.
    in_parts: bool,
    /// How often its lent entries were given up because there was no room for more beside them.
    given_up: u32,
}

/// The state that is kept for a client's requests; none, if none of them waits for flash or runs
/// in parts.
#[derive(Default)]
pub struct Parked(Option<Box<Parking>>);

impl Parked {
    /// Whether the parked request can use the first of its entries without the rest.
    pub fn takes_part(&self) -> bool {
        self.0.as_ref().is_some_and(|parking| parking.in_parts)
    }

    /// As [`takes_part`](Self::takes_part), for a walk that runs now. Clears the flag; it is set
    /// again if the walk parks again.
    pub(crate) fn take_in_parts(&mut self) -> bool {
        let parking = self.0.as_mut();
        parking.is_some_and(|parking| std::mem::take(&mut parking.in_parts))
    }

    /// Notes that the first request has ended, or has no use for its lent entries.
    pub fn needs_nothing_lent(&mut self) {
        if let Some(parking) = &mut self.0 {
            parking.given_up = 0;
        }
    }

    /// Gives up the request's lent entries, to make room. The request will request again those that
    /// it still needs. Returns false if it has given them up too often.
    pub fn may_give_up(&mut self) -> bool {
        let parking = self.0.get_or_insert_default();
        parking.given_up += 1;
        parking.given_up <= GIVEN_UP_MAX
    }

    /// Whether requests wait for flash or run in parts.
    #[inline]
    pub(crate) fn is_some(&self) -> bool {
        self.0.is_some()
    }

    /// Notes another entry that the request needs.
    pub(crate) fn want(&mut self, cold: Cold) {
        self.0.get_or_insert_default().wanted.push(cold);
    }

    /// Notes that the request needs these entries, and no others.
    pub(crate) fn want_all(&mut self, wanted: Vec<Cold>) {
        self.0.get_or_insert_default().wanted = wanted;
    }

    /// Forgets the noted entries: the request looks again for those that it needs.
    pub(crate) fn want_none(&mut self) {
        if let Some(parking) = &mut self.0 {
            parking.wanted.clear();
        }
    }

    /// Notes the entries that a step of a walk needs. Notes only the first of them if all together
    /// are larger than `most` (cold::C3), or if that was so for the previous steps (`in_parts`,
    /// [`take_in_parts`](Self::take_in_parts)).
    pub(crate) fn want_for_walk(&mut self, mut wanted: Vec<Cold>, most: usize, in_parts: bool) {
        let parking = self.0.get_or_insert_default();
        let failed = parking.failed.len();
        parking
            .failed
            .retain(|(_, why)| !matches!(why, Unfetched::TooMuch(_)));
        parking.in_parts = in_parts || parking.failed.len() < failed || bytes_of(&wanted) > most;
        if parking.in_parts {
            let lengths = wanted.iter().map(|cold| cold.span().1);
            let first = first_within(lengths.take(PART_ENTRIES_MAX), most);
            wanted.truncate(first);
        }
        parking.wanted = wanted;
    }

    /// Takes the entries that the request needs.
    pub(crate) fn take_own_wanted(&mut self) -> Vec<Cold> {
        let parking = self.0.as_mut();
        parking.map_or_else(Vec::new, |parking| std::mem::take(&mut parking.wanted))
    }

    /// Notes an entry for a request behind the parked one. Returns false if there is no `room` for
    /// it.
    pub(crate) fn want_ahead(&mut self, cold: Cold, room: usize) -> bool {
        let parking = self.0.get_or_insert_default();
        let bytes = parking.ahead_bytes + cold.span().1;
        let fits = bytes <= room;
        if fits {
            parking.ahead.push(cold);
            parking.ahead_bytes = bytes;
        }
        fits
    }

    /// Takes the entries that must be fetched before its requests are presented again: those for
    /// the parked request, and those for the requests behind it.
    pub fn take_wanted(&mut self) -> (Vec<Cold>, Vec<Cold>) {
        let Some(parking) = &mut self.0 else {
            return (Vec::new(), Vec::new());
        };
        let needed = std::mem::take(&mut parking.wanted);
        parking.ahead_bytes = 0;
        (needed, std::mem::take(&mut parking.ahead))
    }

    /// Notes entries that could not be fetched: requests that still need them get an error.
    pub fn could_not_fetch(&mut self, failed: Vec<(Cold, Unfetched)>) {
        self.0.get_or_insert_default().failed = failed;
    }

    /// Notes that the request, which is presented again, was shown to monitors or written into the
    /// audit log: neither is done a second time.
    #[cold]
    pub(crate) fn note_reported(&mut self, is_monitored: bool, is_audited: bool) {
        let parking = self.0.get_or_insert_default();
        parking.monitored = is_monitored;
        parking.audited = is_audited;
    }

    /// Clears the state. Must be called when no request waits for flash or runs in parts.
    #[inline]
    pub fn end(&mut self) {
        self.0 = None;
    }

    /// Takes the walk of the request that was presented again, or begins a new one, if there is
    /// none or if another table is behind the database now.
    pub(crate) fn take_walk(&mut self, table: TableId) -> Walk {
        let parking = self.0.as_mut();
        parking
            .and_then(|parking| parking.walk.take())
            .filter(|walk| walk.table == Some(table))
            .unwrap_or_else(|| Walk {
                table: Some(table),
                ..Walk::default()
            })
    }

    /// The progress of the request that was presented again, with values of this table.
    pub(crate) fn take_values(&mut self, table: TableId) -> Option<Progress> {
        let kept = self.0.as_mut()?.combined.take();
        kept.filter(|progress| progress.table == Some(table))
    }

    pub(crate) fn keep_values(&mut self, progress: Progress) {
        self.0.get_or_insert_default().combined = Some(progress);
    }

    /// The runs in vain of the request that was presented again.
    pub(crate) fn take_conflicts(&mut self) -> Conflicts {
        let parking = self.0.as_mut();
        parking.map_or_else(Conflicts::default, |parking| {
            std::mem::take(&mut parking.conflicts)
        })
    }

    pub(crate) fn keep_conflicts(&mut self, conflicts: Conflicts) {
        self.0.get_or_insert_default().conflicts = conflicts;
    }

    pub(crate) fn keep_walk(&mut self, mut walk: Walk) {
        let parking = self.0.get_or_insert_default();
        parking.progressed = std::mem::take(&mut walk.moved);
        parking.walk = Some(walk);
    }

    /// Notes that the request has no more use for its lent entries.
    pub(crate) fn comes_further(&mut self) {
        self.0.get_or_insert_default().progressed = true;
    }

    /// Whether the parked request made progress when it ran last: then it has no more use for its
    /// lent entries.
    pub fn take_progress(&mut self) -> bool {
        let parking = self.0.as_mut();
        parking.is_some_and(|parking| std::mem::take(&mut parking.progressed))
    }

    /// Notes that a request has ended: the next one of the same turn must find nothing of it
    /// (computed::C4).
    #[inline]
    pub(crate) fn forget_kept(&mut self) {
        if let Some(parking) = &mut self.0
            && !has_bug(Bug::ProgressOutlivesRequests)
        {
            parking.walk = None;
            parking.combined = None;
            parking.conflicts = Conflicts::default();
            parking.in_parts = false;
            (parking.monitored, parking.audited) = (false, false);
        }
    }

    /// Whether monitors were sent the request already, when it was presented before.
    pub(crate) fn take_monitored(&mut self) -> bool {
        let parking = self.0.as_mut();
        parking.is_some_and(|parking| std::mem::take(&mut parking.monitored))
    }

    /// As [`take_monitored`](Self::take_monitored), for the audit log.
    pub(crate) fn take_audited(&mut self) -> bool {
        let parking = self.0.as_mut();
        parking.is_some_and(|parking| std::mem::take(&mut parking.audited))
    }

    /// Notes the bytes lent for the request that is presented again.
    pub fn was_lent(&mut self, bytes: usize) {
        let parking = self.0.get_or_insert_default();
        parking.lent = bytes;
        parking.failed.clear(); // these failed for an earlier run
    }

    /// Bytes lent for the first request of its turn; 0 for the requests behind it (`executed`).
    #[inline]
    pub fn lent_bytes(&self, executed: usize) -> usize {
        let parking = self.0.as_ref().filter(|_| executed == 0);
        parking.map_or(0, |parking| parking.lent)
    }

    /// Parks a native request that needs these entries. Returns the reason if the request may not
    /// wait, because the entries could not be fetched, or are too large together with its lent
    /// entries (cold::C3, cold::C4): it must be answered accordingly.
    #[cold]
    pub fn park_native(
        &mut self,
        executed: usize,
        wanted: Vec<Cold>,
        most: usize,
    ) -> Option<WhenCold> {
        match self.failure_of(&wanted) {
            Some(Unfetched::Unreadable(_)) => return Some(WhenCold::Fails),
            Some(Unfetched::TooMuch(_)) => return Some(WhenCold::Retries),
            None => {}
        }
        let lent = self.lent_bytes(executed);
        if lent > 0 && lent + bytes_of(&wanted) > most {
            return Some(WhenCold::Retries);
        }
        let parking = self.0.get_or_insert_default();
        parking.wanted = wanted;
        parking.in_parts = true; // an answer with objects may end anywhere
        None
    }

    pub(crate) fn failure_of(&self, wanted: &[Cold]) -> Option<&Unfetched> {
        let parking = self.0.as_ref()?;
        let failed = parking.failed.iter();
        let mut met =
            failed.filter(|(failed, _)| wanted.iter().any(|cold| cold.key() == failed.key()));
        met.next().map(|(_, why)| why)
    }
}
