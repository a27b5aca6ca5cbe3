//! Requests that meet entries on flash: these entries are noted, and the requests are presented
//! again once the entries are fetched.
//!
//! **Mechanism.** An operation of the engine that needs an entry on flash returns `Error::Cold` and
//! does nothing. Then all keys of the request are looked up, so that their entries are fetched in
//! parallel, and so are those of the requests behind it on its connection. The reactor fetches them
//! ([`Client::take_wanted`]), lends them to the session, and presents the request again.
//!
//! **Invariants**
//! - C1: a request that parks has had no effect. A command that changes several keys requests the
//!   entries of all of them, under their locks, before it changes the first ([`Context::warm`]); a
//!   locked key that is not on flash, or whose entry was lent, stays so.
//! - C2: requests behind one that parks have not run.
//! - C3: the bytes that a request needs at once are bounded ([`Tier::fetch_bytes`]); needing more
//!   is an error, but a walk takes smaller steps.
//! - C4: a request that is presented again makes progress, unless others change the same keys
//!   meanwhile: it is lent all entries that it requested, now and before, draws no other random
//!   number, and does not restart its walk.
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

/// Requests behind the parked one may fetch the bytes allowed at once, divided by this.
const AHEAD_PART: usize = 8;
/// Maximum entries that a walk in parts requests at once.
const PART_ENTRIES_MAX: usize = 16;
/// How often a request may give up its lent entries. Entries that are cleaned meanwhile have moved,
/// and their old copies are of no use.
const GIVEN_UP_MAX: u32 = 16;

/// Progress of KEYS.
#[derive(Default)]
pub(super) struct Walk {
    /// The table behind its database when the walk began.
    table: Option<TableId>,
    pub(super) cursor: u64,
    pub(super) keys: usize,
    /// The replies of these keys.
    pub(super) found: Vec<u8>,
    /// The walk made progress since the request was presented.
    pub(super) moved: bool,
}

/// Reason why an entry was not fetched.
#[derive(Clone, Debug)]
pub(crate) enum Unfetched {
    Unreadable(Box<str>),
    /// The entries are too large to be fetched at once (C3).
    TooMuch(Box<str>),
}

/// Entries that a client's parked requests need, and the state kept for these requests.
#[derive(Default)]
pub(crate) struct Parking {
    wanted: Vec<Cold>,
    /// Entries for the requests behind, and their bytes.
    ahead: Vec<Cold>,
    ahead_bytes: usize,
    /// Entries that were not fetched, with the reason.
    failed: Vec<(Cold, Unfetched)>,
    /// The random number of RANDOMKEY (C4).
    draw: Option<u64>,
    /// The walk of KEYS (C4).
    walk: Option<Walk>,
    /// See [`Client::take_progress`].
    progressed: bool,
    /// Monitors have been sent the parked request.
    monitored: bool,
    /// Bytes that were lent for the parked request.
    lent: usize,
    /// A walk needs more entries than may be fetched at once: it requests the first of them, and
    /// can use a part of those.
    in_parts: bool,
    /// How often its lent entries were given up because there was no room for more beside them.
    given_up: u32,
}

impl Client {
    /// Whether the parked request can use the first of its entries without the rest.
    pub(crate) fn takes_part(&self) -> bool {
        self.parking
            .as_ref()
            .is_some_and(|parking| parking.in_parts)
    }

    /// As [`takes_part`](Self::takes_part), for a walk that runs now; the flag is cleared, and set
    /// again if the walk parks again.
    pub(super) fn take_in_parts(&mut self) -> bool {
        let parking = self.parking.as_mut();
        parking.is_some_and(|parking| std::mem::take(&mut parking.in_parts))
    }

    /// Its first request has ended, or has no use for its lent entries.
    pub(crate) fn needs_nothing_lent(&mut self) {
        if let Some(parking) = &mut self.parking {
            parking.given_up = 0;
        }
    }

    /// Gives up the request's lent entries, to make room. The request requests those that it still
    /// needs again. False: it has given them up too often.
    pub(crate) fn may_give_up(&mut self) -> bool {
        let parking = self.parking.get_or_insert_default();
        parking.given_up += 1;
        parking.given_up <= GIVEN_UP_MAX
    }

    /// Takes the entries that must be fetched before the verdict [`Verdict::Cold`] ends: those for
    /// the parked request, and those for the requests behind it.
    pub(crate) fn take_wanted(&mut self) -> (Vec<Cold>, Vec<Cold>) {
        let Some(parking) = &mut self.parking else {
            return (Vec::new(), Vec::new());
        };
        let needed = std::mem::take(&mut parking.wanted);
        parking.ahead_bytes = 0;
        (needed, std::mem::take(&mut parking.ahead))
    }

    /// Notes entries that could not be fetched: requests that still need them get an error.
    pub(crate) fn could_not_fetch(&mut self, failed: Vec<(Cold, Unfetched)>) {
        self.parking.get_or_insert_default().failed = failed;
    }

    /// Its request did one part and is presented again in the next round (`Failure::GoesOn`).
    #[cold]
    pub(super) fn goes_on(&mut self, monitored: bool) {
        self.goes_on = true;
        self.parking.get_or_insert_default().monitored = monitored;
    }

    /// Clears the state, unless a request waits for flash or runs in parts.
    #[inline]
    pub(crate) fn end_parking(&mut self) {
        if self.parking.is_some() && self.verdict != Verdict::Cold && !self.goes_on {
            self.parking = None;
        }
    }

    /// The walk of the request that was presented again. A new walk, if there is none or another
    /// table is behind the database now.
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

    /// The request has no more use for its lent entries.
    pub(super) fn comes_further(&mut self) {
        self.parking.get_or_insert_default().progressed = true;
    }

    /// Whether the parked request made progress before: then it has no more use for its lent
    /// entries.
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

    /// The state kept for a request that has ended must not affect the next one.
    pub(super) fn forget_kept(&mut self) {
        if let Some(parking) = &mut self.parking {
            (parking.draw, parking.walk) = (None, None);
            parking.in_parts = false;
        }
    }

    /// Whether monitors were sent the request already, when it was presented before.
    pub(super) fn take_monitored(&mut self) -> bool {
        let parking = self.parking.as_mut();
        parking.is_some_and(|parking| std::mem::take(&mut parking.monitored))
    }

    /// To be called before a turn's requests run: the client waits for nothing. For native clients,
    /// whose requests run elsewhere.
    #[inline]
    pub(crate) fn begin_native(&mut self) {
        if self.verdict == Verdict::Cold {
            self.verdict = Verdict::Open;
        }
    }

    pub(crate) fn is_cold(&self) -> bool {
        self.verdict == Verdict::Cold
    }

    /// Notes the bytes lent for the request that is presented again.
    pub(crate) fn was_lent(&mut self, bytes: usize) {
        let parking = self.parking.get_or_insert_default();
        parking.lent = bytes;
        parking.failed.clear(); // these are of an earlier time
    }

    /// Bytes lent for the first request of its turn; 0 for the requests behind it (`executed`).
    #[inline]
    pub(crate) fn lent_bytes(&self, executed: usize) -> usize {
        let parking = self.parking.as_ref().filter(|_| executed == 0);
        parking.map_or(0, |parking| parking.lent)
    }

    /// Parks a native request that needs these entries. `Some`: it may not wait, because they could
    /// not be fetched, or are too large together with its lent entries (C3, C4). It must be
    /// answered accordingly.
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
        parking.in_parts = true; // an answer with objects may end anywhere
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

/// Error text for a request that needs too many bytes.
pub(crate) fn too_much(bytes: usize, most: usize) -> String {
    format!(
        "this request needs {bytes} bytes from flash at once, and {most} is the most: ask for fewer keys"
    )
}

fn bytes_of(wanted: &[Cold]) -> usize {
    wanted.iter().map(|cold| cold.span().1).sum()
}

/// Notes the entry of a key of a request behind the parked one; returns whether there is room for
/// more.
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
    /// C1: fails if an entry of one of the keys is on flash, and notes all such entries. Does
    /// nothing without a second tier.
    #[inline]
    pub(super) fn warm<'k>(
        &mut self,
        guard: &Guard<'_>,
        keys: impl Iterator<Item = (TableId, KeyHash, &'k [u8])>,
    ) -> Done {
        // EXEC requested the entries of all keys before it ran the first command. An entry that was
        // moved to flash since is fetched when a command needs it.
        if !self.local.has_tier() || self.local.in_exec {
            return Ok(());
        }
        self.local.colds.clear();
        for (table, hash, key) in keys {
            match guard.cold(table, hash, key) {
                Ok(Some(cold)) => self.local.colds.push(cold),
                // The command that uses the key reports that.
                Ok(None) | Err(Error::NoSuchTable(_)) => {}
                Err(error) => return Err(error.into()),
            }
        }
        match self.local.colds.first() {
            None => Ok(()),
            Some(cold) => Err(Error::Cold(*cold).into()),
        }
    }

    /// As [`warm`](Self::warm), for the request's keys.
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

    /// Notes the entries on flash that a step of a walk met. Notes only the first of them if all
    /// are too large at once (C3), or were for the previous steps (`in_parts`,
    /// [`Client::take_in_parts`]).
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

    /// Parks the request if it failed because of entries on flash. `Some`: it has finally failed,
    /// for this reason.
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
                self.client.end_transaction(); // EXEC has finally failed
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

    /// The reason why the request may not wait for these entries.
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

    /// The entry on flash that was needed.
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
