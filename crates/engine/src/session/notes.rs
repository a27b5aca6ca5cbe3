//! Notes of a session about its writes: writes of typed values, for a caller that wakes clients
//! which wait for such values; and all writes, for a listener.

use super::Session;
use super::reads::Reads;
use crate::core::departures::Departures;
use crate::core::writes::{Writes, Written};
use crate::{Departure, KeyHash, TableId};

/// A note that a typed value was written under a key, or that a typed value that was there has
/// gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TypedWrite {
    pub table: TableId,
    pub hash: KeyHash,
    /// The value's first byte.
    pub first: u8,
    /// Whether the value has gone: it was removed, or replaced by a value with another first byte.
    pub is_gone: bool,
}

/// The notes of a session about the writes of its guards.
#[derive(Default)]
pub struct Notes {
    /// Whether typed writes are noted, and those since they were last looked at.
    wants_typed: bool,
    typed_writes: Vec<TypedWrite>,
    /// Keys of expired objects that the guard's writes have replaced, for a listener.
    replaced: Vec<(TableId, Box<[u8]>)>,
    /// Keys that the guard has written, for the listener to writes.
    written: Vec<Written>,
    /// The reads that came after these writes.
    reads: Reads,
    /// The origin of the next writes.
    origin: u64,
}

impl Session {
    /// The notes about the writes of its guards.
    #[inline]
    pub fn notes(&mut self) -> &mut Notes {
        &mut self.notes
    }
}

impl Notes {
    /// Notes typed writes from now on, for a caller that empties
    /// [`typed_writes`](Self::typed_writes) after each operation.
    pub fn note_typed_writes(&mut self) {
        self.wants_typed = true;
    }

    /// The typed writes that were noted and not removed from this list.
    #[inline]
    pub fn typed_writes(&mut self) -> &mut Vec<TypedWrite> {
        &mut self.typed_writes
    }

    /// The origin of the writes from now on, for the listener to writes; 0 = unknown.
    #[inline]
    pub fn set_origin(&mut self, origin: u64) {
        self.origin = origin;
    }

    /// Whether writes of this guard have replaced objects that had expired, and a listener wants to
    /// hear of these.
    #[inline]
    pub fn has_replaced(&self) -> bool {
        !self.replaced.is_empty()
    }

    /// The keys of these objects, since the last call. The caller reports them when it reports its
    /// writes. The listener hears of all others when the guard ends.
    #[cold]
    pub fn take_replaced(&mut self) -> Vec<(TableId, Box<[u8]>)> {
        std::mem::take(&mut self.replaced)
    }

    /// Notes that a typed value that begins with this byte was written.
    #[inline]
    pub(crate) fn note_typed(&mut self, table: TableId, hash: KeyHash, first: Option<u8>) {
        if self.wants_typed {
            self.typed_writes.push(TypedWrite {
                table,
                hash,
                first: first.unwrap_or_default(),
                is_gone: false,
            });
        }
    }

    /// Notes that a typed value with this first byte has gone, unless the value that is there now
    /// begins alike. `first_now`: the first byte of the typed value that is there now.
    #[inline]
    pub(crate) fn note_gone(
        &mut self,
        table: TableId,
        hash: KeyHash,
        first: Option<u8>,
        first_now: Option<u8>,
    ) {
        if let Some(first) = first.filter(|first| Some(*first) != first_now)
            && self.wants_typed
        {
            self.typed_writes.push(TypedWrite {
                table,
                hash,
                first,
                is_gone: true,
            });
        }
    }

    /// Notes that a write has replaced an object that had expired, and of which no listener has
    /// heard.
    #[inline(always)]
    pub(crate) fn note_replaced(&mut self, departures: &Departures, table: TableId, key: &[u8]) {
        if departures.wants(Departure::Expired) {
            self.replaced.push((table, key.into()));
        }
    }

    /// Notes that a key was written or removed. The change is visible now, or when the guard's
    /// transaction ends.
    #[inline(always)]
    pub(crate) fn note_key(&mut self, writes: &Writes, table: TableId, key: &[u8]) {
        if writes.wanted() {
            self.note_wanted(table, key);
        }
    }

    #[cold]
    fn note_wanted(&mut self, table: TableId, key: &[u8]) {
        if table.is_parts() {
            return; // writes::N3: parts are no keys of users
        }
        self.written.push(Written {
            origin: self.origin,
            readers: Vec::new(),
            table,
            key: key.into(),
        });
    }

    /// Number of written keys that are noted.
    pub(crate) fn written(&self) -> usize {
        self.written.len()
    }

    /// Notes that the writes behind the first `noted` ones are no news for this client.
    pub(crate) fn add_reader(&mut self, noted: usize, client: u64) {
        let later = self.written.iter_mut().skip(noted);
        later.for_each(|write| write.readers.push(client));
    }

    /// As [`Guard::begin_read`](crate::Guard::begin_read), for a guard without a draft.
    pub(crate) fn begin_read(&mut self, client: u64, key: &[u8], remember: impl FnOnce() -> bool) {
        let writes = self.written.len();
        if remember() && writes > 0 {
            self.reads.add(client, key, writes);
        }
    }

    /// Reports the replaced objects. The guard is about to end, and its keys are unlocked.
    #[inline]
    pub(crate) fn tell_replaced(&mut self, departures: &Departures) {
        if self.has_replaced() {
            for (table, key) in self.take_replaced() {
                departures.tell(Departure::Expired, table, &key);
            }
        }
    }

    /// Reports the writes. The guard ends, and its keys are unlocked (writes::N1).
    #[inline]
    pub(crate) fn tell_written(&mut self, writes: &Writes) {
        if !self.written.is_empty() {
            self.tell_all_written(writes);
        }
    }

    #[cold]
    fn tell_all_written(&mut self, writes: &Writes) {
        let mut written = std::mem::take(&mut self.written);
        if !self.reads.is_empty() {
            std::mem::take(&mut self.reads).add_to(&mut written);
        }
        writes.tell(&written);
    }
}
