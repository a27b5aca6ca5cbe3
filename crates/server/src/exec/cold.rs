//! Requests that meet entries on flash: what they need is noted, and they are shown again when it
//! is there.
//!
//! **How.** An operation of the engine that needs an entry on flash says so (`Error::Cold`) and
//! does nothing. Then all keys of the request are looked for, so that their entries are fetched
//! side by side, and those of the requests behind it on its connection too. The reactor fetches
//! them ([`Client::take_wanted`]), lends them to the session, and shows the request again.
//!
//! **Invariants**
//! - C1: a request that parks has had no effect. A command that changes several keys asks for all
//!   of them, under their locks, before it changes the first ([`Context::warm`]); a key that is
//!   locked and not on flash, or was lent, stays so.
//! - C2: requests behind one that parks have not run.
//! - C3: what a request needs at once is bounded ([`Tier::fetch_bytes`]); needing more is an error,
//!   but a walk takes smaller steps.
//! - C4: a request that is shown again comes further, unless others change the same keys meanwhile:
//!   it is lent all that it asked for, and before, draws no other number, and does not begin its
//!   walk anew.
//!
//! [`Tier::fetch_bytes`]: crate::tier::Tier::fetch_bytes

use super::client::{Client, Verdict};
use super::context::{Context, Done, Failure};
use super::group::Way;
use super::local::Local;
use super::state::global;
use crate::shared::Shared;
use duramen_engine::flash::{Cold, first_within};
use duramen_engine::{Error, Guard, KeyHash, TableId};
use duramen_node::WhenCold;

/// Of what may be fetched at once, one of so many parts may be for requests behind the one that
/// parks.
const AHEAD_PART: usize = 8;
/// Entries that a walk in parts asks for at once.
const PART_ENTRIES_MAX: usize = 16;
/// A request gives up what it was lent so often. Entries that are cleaned meanwhile have moved, and
/// their old copies are of no use.
const GIVEN_UP_MAX: u32 = 16;

/// How far KEYS has come.
#[derive(Default)]
pub(super) struct Walk {
    /// Of the table behind its database when it began.
    table: Option<TableId>,
    pub(super) cursor: u64,
    pub(super) keys: usize,
    /// Their replies.
    pub(super) found: Vec<u8>,
    /// It has come further since it was shown.
    pub(super) moved: bool,
}

/// Why something was not fetched.
#[derive(Clone, Debug)]
pub(crate) enum Unfetched {
    Unreadable(Box<str>),
    /// It is too much at once (C3).
    TooMuch(Box<str>),
}

/// What a client's requests that wait for flash need, and what is remembered for them.
#[derive(Default)]
pub(crate) struct Parking {
    wanted: Vec<Cold>,
    /// Of the requests behind, and the bytes of it.
    ahead: Vec<Cold>,
    ahead_bytes: usize,
    /// What was not fetched, and why.
    failed: Vec<(Cold, Unfetched)>,
    /// Of RANDOMKEY (C4).
    draw: Option<u64>,
    /// Of KEYS (C4).
    walk: Option<Walk>,
    /// See [`Client::take_progress`].
    progressed: bool,
    /// Monitors have seen the request that parked.
    monitored: bool,
    /// Bytes that were lent for it.
    lent: usize,
    /// A walk that lacks more than may be fetched at once: it asks for the first of it, and takes a
    /// part of that.
    in_parts: bool,
    /// How often what was lent for it was given up, as there was no room for more beside it.
    given_up: u32,
}

impl Client {
    /// Whether the first of what the request that parks needs is of use to it without the rest.
    pub(crate) fn takes_part(&self) -> bool {
        self.parking
            .as_ref()
            .is_some_and(|parking| parking.in_parts)
    }

    /// As [`takes_part`](Self::takes_part), of a walk that is shown; it says so anew if it parks
    /// again.
    pub(super) fn take_in_parts(&mut self) -> bool {
        let parking = self.parking.as_mut();
        parking.is_some_and(|parking| std::mem::take(&mut parking.in_parts))
    }

    /// Its first request has ended, or has no use for what it was lent.
    pub(crate) fn needs_nothing_lent(&mut self) {
        if let Some(parking) = &mut self.parking {
            parking.given_up = 0;
        }
    }

    /// The request gives up the entries that it was lent, to make room. It asks again for those
    /// that it needs. False: it has given up too often.
    pub(crate) fn may_give_up(&mut self) -> bool {
        let parking = self.parking.get_or_insert_default();
        parking.given_up += 1;
        parking.given_up <= GIVEN_UP_MAX
    }

    /// What must be fetched before the verdict [`Verdict::Cold`] is over: for the request that
    /// parks, and for those behind it.
    pub(crate) fn take_wanted(&mut self) -> (Vec<Cold>, Vec<Cold>) {
        let Some(parking) = &mut self.parking else {
            return (Vec::new(), Vec::new());
        };
        let needed = std::mem::take(&mut parking.wanted);
        parking.ahead_bytes = 0;
        (needed, std::mem::take(&mut parking.ahead))
    }

    /// These could not be fetched: requests that still need them are answered with an error.
    pub(crate) fn could_not_fetch(&mut self, failed: Vec<(Cold, Unfetched)>) {
        self.parking.get_or_insert_default().failed = failed;
    }

    /// Its request did a part and is shown again in the next round (`Failure::GoesOn`).
    #[cold]
    pub(super) fn goes_on(&mut self, monitored: bool) {
        self.goes_on = true;
        self.parking.get_or_insert_default().monitored = monitored;
    }

    /// Its requests wait for nothing on flash any more, and none goes on.
    #[inline]
    pub(crate) fn end_parking(&mut self) {
        if self.parking.is_some() && self.verdict != Verdict::Cold && !self.goes_on {
            self.parking = None;
        }
    }

    /// The walk of the request that was shown again, or one from the start: also if another table
    /// is behind the database now.
    pub(super) fn take_walk(&mut self, table: TableId) -> Walk {
        let parking = self.parking.as_mut();
        parking
            .and_then(|parking| parking.walk.take())
            .filter(|walk| walk.table == Some(table))
            .unwrap_or_else(|| Walk {
                table: Some(table),
                ..Walk::default()
            })
    }

    pub(super) fn keep_walk(&mut self, mut walk: Walk) {
        let parking = self.parking.get_or_insert_default();
        parking.progressed = std::mem::take(&mut walk.moved);
        parking.walk = Some(walk);
    }

    /// What the request was lent is of no use to it any more.
    pub(super) fn comes_further(&mut self) {
        self.parking.get_or_insert_default().progressed = true;
    }

    /// Whether the request that parked has come further before: what it was lent is of no use to it
    /// any more.
    pub(crate) fn take_progress(&mut self) -> bool {
        let parking = self.parking.as_mut();
        parking.is_some_and(|parking| std::mem::take(&mut parking.progressed))
    }

    pub(super) fn take_draw(&mut self) -> Option<u64> {
        self.parking.as_mut()?.draw.take()
    }

    pub(super) fn keep_draw(&mut self, draw: u64) {
        self.parking.get_or_insert_default().draw = Some(draw);
    }

    /// What was kept for the request that has now ended is of no use to the next.
    pub(super) fn forget_kept(&mut self) {
        if let Some(parking) = &mut self.parking {
            (parking.draw, parking.walk) = (None, None);
            parking.in_parts = false;
        }
    }

    /// Whether monitors have seen the request already, when it was shown before.
    pub(super) fn take_monitored(&mut self) -> bool {
        let parking = self.parking.as_mut();
        parking.is_some_and(|parking| std::mem::take(&mut parking.monitored))
    }

    /// Before the requests of its turn: it waits for nothing. For native clients, whose requests
    /// run elsewhere.
    #[inline]
    pub(crate) fn begin_native(&mut self) {
        if self.verdict == Verdict::Cold {
            self.verdict = Verdict::Open;
        }
    }

    pub(crate) fn is_cold(&self) -> bool {
        self.verdict == Verdict::Cold
    }

    /// So much was lent for the request that is shown again.
    pub(crate) fn was_lent(&mut self, bytes: usize) {
        let parking = self.parking.get_or_insert_default();
        parking.lent = bytes;
        parking.failed.clear(); // of an earlier time
    }

    /// Bytes that were lent for the first request of its turn; nothing for those behind it
    /// (`executed`).
    #[inline]
    pub(crate) fn lent_bytes(&self, executed: usize) -> usize {
        let parking = self.parking.as_ref().filter(|_| executed == 0);
        parking.map_or(0, |parking| parking.lent)
    }

    /// A native request waits for these. `Some`: it may not, as they could not be fetched, or are
    /// too many beside what it was lent (C3, C4): it is to be answered so.
    #[cold]
    pub(crate) fn park_native(
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
        parking.in_parts = true; // an answer with objects ends where it must
        self.verdict = Verdict::Cold;
        None
    }

    fn failure_of(&self, wanted: &[Cold]) -> Option<&Unfetched> {
        let parking = self.parking.as_ref()?;
        let failed = parking.failed.iter();
        let mut met =
            failed.filter(|(failed, _)| wanted.iter().any(|cold| cold.key() == failed.key()));
        met.next().map(|(_, why)| why)
    }
}

/// Why a request that needs so much is refused.
pub(crate) fn too_much(bytes: usize, most: usize) -> String {
    format!(
        "this request needs {bytes} bytes from flash at once, and {most} is the most: ask for fewer keys"
    )
}

fn bytes_of(wanted: &[Cold]) -> usize {
    wanted.iter().map(|cold| cold.span().1).sum()
}

/// Notes what the key of a request behind one that parks needs; whether there is room for more.
#[cold]
pub(crate) fn look_ahead(
    shared: &Shared,
    guard: &Guard<'_>,
    client: &mut Client,
    (table, hash, key): (TableId, KeyHash, &[u8]),
) -> bool {
    let (Some(tier), Some(parking)) = (shared.tier(), &mut client.parking) else {
        return false;
    };
    let room = tier.fetch_bytes() / AHEAD_PART;
    let Ok(Some(cold)) = guard.cold(table, hash, key) else {
        return true;
    };
    let bytes = parking.ahead_bytes + cold.span().1;
    let fits = bytes <= room;
    if fits {
        parking.ahead.push(cold);
        parking.ahead_bytes = bytes;
    }
    fits
}

impl Local {
    /// Whether the server has a second tier.
    #[inline]
    pub(super) fn has_tier(&self) -> bool {
        self.tier
    }
}

impl Context<'_> {
    /// C1: fails if one of the keys lies on flash, and notes all that do. Without a second tier it
    /// does nothing.
    #[inline]
    pub(super) fn warm<'k>(
        &mut self,
        guard: &Guard<'_>,
        keys: impl Iterator<Item = (TableId, KeyHash, &'k [u8])>,
    ) -> Done {
        // EXEC has asked for all keys before it ran the first command. What went to flash since is
        // waited for.
        if !self.local.has_tier() || self.local.in_exec {
            return Ok(());
        }
        self.local.colds.clear();
        for (table, hash, key) in keys {
            match guard.cold(table, hash, key) {
                Ok(Some(cold)) => self.local.colds.push(cold),
                // Who uses it is told so.
                Ok(None) | Err(Error::NoSuchTable(_)) => {}
                Err(error) => return Err(error.into()),
            }
        }
        match self.local.colds.first() {
            None => Ok(()),
            Some(cold) => Err(Error::Cold(*cold).into()),
        }
    }

    /// As [`warm`](Self::warm), of the request's keys.
    #[inline]
    pub(super) fn warm_own(&mut self, guard: &Guard<'_>, hashes: &[KeyHash]) -> Done {
        if !self.local.has_tier() {
            return Ok(());
        }
        let (args, table) = (self.args, self.table);
        let positions = self.spec.key_positions(args.len());
        let keys = hashes.iter().zip(positions);
        self.warm(
            guard,
            keys.map(|(hash, at)| (table, *hash, args.get(at).unwrap_or_default())),
        )
    }

    /// Notes what a step of a walk met on flash: all of it, or the first of it if all is too much
    /// at once (C3), or was for the steps before (`in_parts`, [`Client::take_in_parts`]).
    pub(super) fn note_colds<T>(
        &mut self,
        guard: &Guard<'_>,
        in_parts: bool,
        step: Result<T, Error>,
    ) -> Result<T, Error> {
        if let (Err(Error::Cold(_)), Some(tier)) = (&step, self.shared.tier()) {
            let mut colds = guard.take_colds();
            let parking = self.client.parking.get_or_insert_default();
            let failed = parking.failed.len();
            parking
                .failed
                .retain(|(_, why)| !matches!(why, Unfetched::TooMuch(_)));
            let most = tier.fetch_bytes();
            parking.in_parts = in_parts || parking.failed.len() < failed || bytes_of(&colds) > most;
            if parking.in_parts {
                let lengths = colds.iter().map(|cold| cold.span().1);
                let first = first_within(lengths.take(PART_ENTRIES_MAX), most);
                colds.truncate(first);
            }
            self.local.colds = colds;
        }
        step
    }

    /// Parks the request if it failed for want of what lies on flash. `Some`: it has failed for
    /// good, for this reason.
    #[cold]
    pub(super) fn park(
        &mut self,
        failure: Failure,
        way: &Way<'_, '_>,
        hashes: &[KeyHash],
    ) -> Option<Failure> {
        let Some(first) = failure.cold() else {
            self.client.forget_kept();
            return Some(failure);
        };
        let mut wanted = std::mem::take(&mut self.local.colds);
        if let Way::Guarded(guard) = way {
            if wanted.is_empty() {
                self.look_for_own(guard, hashes, &mut wanted);
            }
            wanted.append(&mut guard.take_colds());
        }
        if wanted.is_empty() || !self.client.takes_part() {
            wanted.push(first);
            wanted.sort_unstable_by_key(Cold::key);
            wanted.dedup_by_key(|cold| cold.key());
        }
        match self.refusal(&wanted) {
            Some(text) => {
                self.client.end_transaction(); // EXEC has failed for good
                self.client.forget_kept();
                Some(text.into())
            }
            None => {
                let parking = self.client.parking.get_or_insert_default();
                parking.wanted = wanted;
                parking.monitored = self.shared.commands.gate() & global::MONITORED != 0;
                self.client.verdict = Verdict::Cold;
                None
            }
        }
    }

    fn look_for_own(&self, guard: &Guard<'_>, hashes: &[KeyHash], wanted: &mut Vec<Cold>) {
        for (n, at) in self.spec.key_positions(self.args.len()).enumerate() {
            let key = self.arg(at);
            let hash = hashes.get(n).copied().unwrap_or_else(|| guard.hash(key));
            if let Ok(Some(cold)) = guard.cold(self.table, hash, key) {
                wanted.push(cold);
            }
        }
    }

    /// Why the request may not wait for these.
    fn refusal(&self, wanted: &[Cold]) -> Option<String> {
        let Some(tier) = self.shared.tier() else {
            return Some("ERR the server has no flash, and something lies there".to_owned());
        };
        if let Some(Unfetched::Unreadable(why) | Unfetched::TooMuch(why)) =
            self.client.failure_of(wanted)
        {
            return Some(format!("ERR {why}"));
        }
        if self.local.in_exec {
            return Some(format!(
                "ERR {} meets keys on flash, and cannot wait for them inside MULTI: send it by itself",
                self.spec.name.to_ascii_uppercase()
            ));
        }
        let (bytes, most) = (bytes_of(wanted), tier.fetch_bytes());
        (bytes > most).then(|| format!("ERR {}", too_much(bytes, most)))
    }
}

impl Failure {
    pub(super) fn is_out_of_memory(&self) -> bool {
        match self {
            Failure::Engine(error) => matches!(**error, Error::OutOfMemory { .. }),
            _ => false,
        }
    }

    /// What lies on flash and was needed.
    pub(crate) fn cold(&self) -> Option<Cold> {
        match self {
            Failure::Engine(error) => match **error {
                Error::Cold(cold) => Some(cold),
                _ => None,
            },
            _ => None,
        }
    }
}
