//! Entries that do not match their checksum, for a listener: the memory of this machine, or of the
//! sender of the entry, has changed them.
//!
//! **Concurrency**: the listener is called by any thread, which is in the store and may hold a
//! context. So it must not enter the store, and waits for nothing that a thread in the store may
//! hold.

use duramen_base::ids::SegmentId;
use duramen_base::sync::coarse::Mutex;
use duramen_format::mend::Flip;
use std::collections::BTreeMap;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// An entry that did not match its checksum.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EntryDamage {
    /// Its segment; none without a log.
    pub segment: SegmentId,
    /// Whether one bit had flipped and was put back. If not, the entry and its segment were left as
    /// they are.
    pub is_mended: bool,
    /// Its place, bit and key, or its damage.
    pub what: String,
}

type Listener = Box<dyn Fn(&EntryDamage) + Send + Sync>;
type GivenUpListener = Box<dyn Fn(SegmentId, &str) + Send + Sync>;

/// Maximum number of findings that are kept for a listener that does not exist yet.
const WAITING_MAX: usize = 100;

/// Maximum number of places that are remembered, so that each is searched and reported once.
const KNOWN_MAX: usize = 10_000;

/// The result of a search at a place with damage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Finding {
    /// This bit had flipped.
    Flipped(Flip),
    /// No single bit explains the damage.
    Unexplained,
}

impl Finding {
    pub fn of(flip: Option<Flip>) -> Finding {
        flip.map_or(Finding::Unexplained, Finding::Flipped)
    }

    pub fn flip(self) -> Option<Flip> {
        match self {
            Finding::Flipped(flip) => Some(flip),
            Finding::Unexplained => None,
        }
    }
}

/// A location, and the incarnation of its window.
type Place = (u64, u64);

/// The listener, and counts.
#[derive(Default)]
pub struct Damages {
    listener: OnceLock<Listener>,
    waiting: Mutex<Vec<EntryDamage>>,
    known: Mutex<BTreeMap<Place, Finding>>,
    flipped_bits: AtomicU64,
    damaged_entries: AtomicU64,
    given_up_listener: OnceLock<GivenUpListener>,
    given_up: AtomicU64,
    /// Reads may use an entry without its sum (verified::V6). Relaxed: no other data depends on it.
    trusts_reads: AtomicBool,
}

impl Damages {
    /// Sets the listener to passes and compactions that are given up. Only the first one counts.
    pub fn listen_given_up(&self, listener: GivenUpListener) {
        self.given_up_listener.get_or_init(|| listener);
    }

    /// The pass, or the compaction, of this segment was given up (swap::given_up).
    #[cold]
    pub fn tell_given_up(&self, segment: SegmentId, why: &str) {
        self.given_up.fetch_add(1, Ordering::Relaxed);
        if let Some(listener) = self.given_up_listener.get() {
            listener(segment, why);
        }
    }

    /// Passes and compactions that were given up.
    pub fn given_up(&self) -> u64 {
        self.given_up.load(Ordering::Relaxed)
    }

    /// Sets the listener; only the first one counts. It also hears of earlier findings.
    pub fn listen(&self, listener: Listener) {
        let mut waiting = self.waiting.lock().expect("damages");
        let listener = self.listener.get_or_init(|| listener);
        waiting.drain(..).for_each(|damage| listener(&damage));
    }

    /// The result of an earlier search at a place; none if there was no search.
    pub fn known(&self, place: Place) -> Option<Finding> {
        let known = self.known.lock().expect("damages");
        known.get(&place).copied()
    }

    /// As [`tell`](Self::tell), unless the same finding at this place was reported before.
    pub fn tell_once(&self, place: Place, found: Finding, damage: EntryDamage) {
        if self.note(place, found) {
            self.tell(damage);
        }
    }

    /// Keeps the result of a search at a place. Returns false if it was known.
    pub fn note(&self, place: Place, found: Finding) -> bool {
        let mut known = self.known.lock().expect("damages");
        if known.len() >= KNOWN_MAX {
            known.clear();
        }
        known.insert(place, found) != Some(found)
    }

    #[cold]
    pub fn tell(&self, damage: EntryDamage) {
        let count = match damage.is_mended {
            true => &self.flipped_bits,
            false => &self.damaged_entries,
        };
        count.fetch_add(1, Ordering::Relaxed);
        let mut waiting = self.waiting.lock().expect("damages");
        match self.listener.get() {
            Some(listener) => listener(&damage),
            None if waiting.len() < WAITING_MAX => waiting.push(damage),
            None => {}
        }
    }

    /// verified::V6: whether reads may use an entry without its sum.
    #[inline(always)]
    pub fn trusts_reads(&self) -> bool {
        self.trusts_reads.load(Ordering::Relaxed)
    }

    pub fn set_trusts_reads(&self, trusts: bool) {
        self.trusts_reads.store(trusts, Ordering::Relaxed);
    }

    /// Flipped bits that were put back.
    pub fn flipped_bits(&self) -> u64 {
        self.flipped_bits.load(Ordering::Relaxed)
    }

    /// Entries found with damage that one bit does not explain.
    pub fn damaged_entries(&self) -> u64 {
        self.damaged_entries.load(Ordering::Relaxed)
    }
}
