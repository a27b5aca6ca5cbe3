//! A client whose request waits for entries on flash, or runs in parts (`command::cold`). All that
//! it keeps for the request is dropped with the request's end (computed::C4).

use super::client::Client;
use super::conflicts::Conflicts;
use super::parking::Walk;
use super::progress::Progress;
use crate::flash::unfetched::{Unfetched, bytes_of};
use crate::state::Shared;
use duramen_base::planted::{Bug, has_bug};
use duramen_engine::TableId;
use duramen_engine::flash::Cold;
use duramen_node::WhenCold;

/// How often a request may give up its lent entries. Entries that are cleaned meanwhile have moved,
/// and their old copies are of no use.
const GIVEN_UP_MAX: u32 = 16;

impl Client {
    /// Whether the parked request can use the first of its entries without the rest.
    pub fn takes_part(&self) -> bool {
        self.parking
            .as_ref()
            .is_some_and(|parking| parking.in_parts)
    }

    /// As [`takes_part`](Self::takes_part), for a walk that runs now; the flag is cleared, and set
    /// again if the walk parks again.
    pub(crate) fn take_in_parts(&mut self) -> bool {
        let parking = self.parking.as_mut();
        parking.is_some_and(|parking| std::mem::take(&mut parking.in_parts))
    }

    /// Its first request has ended, or has no use for its lent entries.
    pub fn needs_nothing_lent(&mut self) {
        if let Some(parking) = &mut self.parking {
            parking.given_up = 0;
        }
    }

    /// Gives up the request's lent entries, to make room. The request requests those that it still
    /// needs again. False: it has given them up too often.
    pub fn may_give_up(&mut self) -> bool {
        let parking = self.parking.get_or_insert_default();
        parking.given_up += 1;
        parking.given_up <= GIVEN_UP_MAX
    }

    /// Takes the entries that must be fetched before its requests are presented again: those for
    /// the parked request, and those for the requests behind it.
    pub fn take_wanted(&mut self) -> (Vec<Cold>, Vec<Cold>) {
        let Some(parking) = &mut self.parking else {
            return (Vec::new(), Vec::new());
        };
        let needed = std::mem::take(&mut parking.wanted);
        parking.ahead_bytes = 0;
        (needed, std::mem::take(&mut parking.ahead))
    }

    /// Notes entries that could not be fetched: requests that still need them get an error.
    pub fn could_not_fetch(&mut self, failed: Vec<(Cold, Unfetched)>) {
        self.parking.get_or_insert_default().failed = failed;
    }

    /// Its request is presented again, and was shown to monitors, or written into the audit log:
    /// that is not done once more.
    #[cold]
    pub(crate) fn note_reported(&mut self, is_monitored: bool, is_audited: bool) {
        let parking = self.parking.get_or_insert_default();
        parking.monitored = is_monitored;
        parking.audited = is_audited;
    }

    /// Clears the state. To be called when no request waits for flash or runs in parts.
    #[inline]
    pub fn end_parking(&mut self) {
        self.parking = None;
    }

    /// The walk of the request that was presented again. A new walk, if there is none or another
    /// table is behind the database now.
    pub(crate) fn take_walk(&mut self, table: TableId) -> Walk {
        let parking = self.parking.as_mut();
        parking
            .and_then(|parking| parking.walk.take())
            .filter(|walk| walk.table == Some(table))
            .unwrap_or_else(|| Walk {
                table: Some(table),
                ..Walk::default()
            })
    }

    /// The progress of the request that was presented again, with values of this table.
    pub(crate) fn take_progress_of_values(&mut self, table: TableId) -> Option<Progress> {
        let kept = self.parking.as_mut()?.combined.take();
        kept.filter(|progress| progress.table == Some(table))
    }

    pub(crate) fn keep_progress_of_values(&mut self, progress: Progress) {
        self.parking.get_or_insert_default().combined = Some(progress);
    }

    /// The runs in vain of the request that was presented again.
    pub(crate) fn take_conflicts(&mut self) -> Conflicts {
        let parking = self.parking.as_mut();
        parking.map_or_else(Conflicts::default, |parking| {
            std::mem::take(&mut parking.conflicts)
        })
    }

    pub(crate) fn keep_conflicts(&mut self, conflicts: Conflicts) {
        self.parking.get_or_insert_default().conflicts = conflicts;
    }

    pub(crate) fn keep_walk(&mut self, mut walk: Walk) {
        let parking = self.parking.get_or_insert_default();
        parking.progressed = std::mem::take(&mut walk.moved);
        parking.walk = Some(walk);
    }

    /// The request has no more use for its lent entries.
    pub(crate) fn comes_further(&mut self) {
        self.parking.get_or_insert_default().progressed = true;
    }

    /// Whether the parked request made progress before: then it has no more use for its lent
    /// entries.
    pub fn take_progress(&mut self) -> bool {
        let parking = self.parking.as_mut();
        parking.is_some_and(|parking| std::mem::take(&mut parking.progressed))
    }

    /// computed::C4: a request has ended; the next one of the same turn keeps nothing of it.
    #[inline]
    pub(crate) fn forget_kept(&mut self) {
        if let Some(parking) = &mut self.parking
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
        let parking = self.parking.as_mut();
        parking.is_some_and(|parking| std::mem::take(&mut parking.monitored))
    }

    /// As [`take_monitored`](Self::take_monitored), for the audit log.
    pub(crate) fn take_audited(&mut self) -> bool {
        let parking = self.parking.as_mut();
        parking.is_some_and(|parking| std::mem::take(&mut parking.audited))
    }

    /// As [`renew`](Self::renew), for native clients, whose requests run elsewhere.
    #[inline]
    #[must_use]
    pub fn begin_native(&mut self, shared: &Shared) -> bool {
        let is_known = self.renew(shared);
        if self.user().is_none() && shared.acl.is_open() {
            self.log_in_by_default(shared);
        }
        is_known
    }

    /// Notes the bytes lent for the request that is presented again.
    pub fn was_lent(&mut self, bytes: usize) {
        let parking = self.parking.get_or_insert_default();
        parking.lent = bytes;
        parking.failed.clear(); // these are of an earlier time
    }

    /// Bytes lent for the first request of its turn; 0 for the requests behind it (`executed`).
    #[inline]
    pub fn lent_bytes(&self, executed: usize) -> usize {
        let parking = self.parking.as_ref().filter(|_| executed == 0);
        parking.map_or(0, |parking| parking.lent)
    }

    /// Parks a native request that needs these entries. `Some`: it may not wait, because they could
    /// not be fetched, or are too large together with its lent entries (cold::C3, cold::C4). It
    /// must be answered accordingly.
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
        let parking = self.parking.get_or_insert_default();
        parking.wanted = wanted;
        parking.in_parts = true; // an answer with objects may end anywhere
        None
    }

    pub(crate) fn failure_of(&self, wanted: &[Cold]) -> Option<&Unfetched> {
        let parking = self.parking.as_ref()?;
        let failed = parking.failed.iter();
        let mut met =
            failed.filter(|(failed, _)| wanted.iter().any(|cold| cold.key() == failed.key()));
        met.next().map(|(_, why)| why)
    }
}
