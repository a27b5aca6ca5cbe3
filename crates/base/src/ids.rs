//! Ids and ordered kinds that every crate of the durable part shares.

use crate::limits::TABLES_MAX;
use serde::{Deserialize, Serialize};
use std::fmt;

/// Names one segment of one server's log, for ever. Data heads, survivors and control segments all
/// take ids from the same counter, so an id is never given twice, not even across restarts. 0 names
/// no segment.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
pub struct SegmentId(pub u64);

impl SegmentId {
    /// No segment.
    pub const NONE: SegmentId = SegmentId(0);
}

impl fmt::Display for SegmentId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The durability of an acknowledged write. Ordered: a higher level promises more.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[repr(u8)]
pub enum Level {
    /// In memory alone: survives nothing.
    Memory = 0,
    /// Handed to the operating system: survives the end of the process, not of the machine.
    Buffered = 1,
    /// On stable storage: survives a power cut.
    #[default]
    Synced = 2,
}

impl Level {
    /// All levels, the weakest first.
    pub const ALL: [Level; 3] = [Level::Memory, Level::Buffered, Level::Synced];

    /// The name that users write and read.
    ///
    /// ```
    /// use duramen_base::ids::Level;
    ///
    /// assert_eq!(Level::Synced.name(), "synced");
    /// ```
    pub fn name(self) -> &'static str {
        match self {
            Level::Memory => "memory",
            Level::Buffered => "buffered",
            Level::Synced => "synced",
        }
    }

    /// The level with this name, in upper or lower case.
    ///
    /// ```
    /// use duramen_base::ids::Level;
    ///
    /// assert_eq!(Level::from_name("Buffered"), Some(Level::Buffered));
    /// assert_eq!(Level::from_name("fast"), None);
    /// ```
    pub fn from_name(name: &str) -> Option<Level> {
        Level::ALL
            .into_iter()
            .find(|level| name.eq_ignore_ascii_case(level.name()))
    }

    /// The inverse of `level as u8`.
    #[doc(hidden)]
    pub fn from_number(number: u8) -> Option<Level> {
        Level::ALL.get(usize::from(number)).copied()
    }
}

impl fmt::Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// One run of one server: the slot is used again when a server comes back, the generation never. So
/// it also names the log that the server writes in this run. As a number: generation in the upper
/// 32 bits, slot in the lower.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
pub struct ServerId {
    /// Grows by one each time that the slot is given again. 0 only in [`ServerId::NONE`].
    pub generation: u32,
    pub slot: u32,
}

impl ServerId {
    /// No server. As the addressee of a message, it means any receiver.
    pub const NONE: ServerId = ServerId {
        generation: 0,
        slot: 0,
    };
    /// The slot that stands for the coordinator.
    pub const COORDINATOR_SLOT: u32 = u32::MAX;

    pub const fn new(slot: u32, generation: u32) -> ServerId {
        ServerId { generation, slot }
    }

    /// The coordinator that leads in this term, as the sender of a message.
    pub const fn coordinator(term: u32) -> ServerId {
        ServerId::new(ServerId::COORDINATOR_SLOT, term)
    }

    pub const fn is_coordinator(self) -> bool {
        self.slot == ServerId::COORDINATOR_SLOT
    }

    pub const fn from_number(number: u64) -> ServerId {
        ServerId {
            generation: (number >> 32) as u32,
            slot: number as u32,
        }
    }

    pub const fn number(self) -> u64 {
        (self.generation as u64) << 32 | self.slot as u64
    }
}

/// Shown as `slot.generation`.
impl fmt::Display for ServerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.slot, self.generation)
    }
}

/// The hash by which a key's owner is found: Redis Cluster slot (14 bits) in front of a hash (50
/// bits), so that a range of them is a range of slots. `duramen_format::hash` computes it.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
pub struct RouteHash(pub u64);

impl RouteHash {
    pub const MIN: RouteHash = RouteHash(0);
    pub const MAX: RouteHash = RouteHash(u64::MAX);
    const SLOT_SHIFT: u32 = 50;

    /// The route hash of a key with this slot and 50-bit hash.
    pub const fn of(slot: u16, hash: u64) -> RouteHash {
        RouteHash((slot as u64) << RouteHash::SLOT_SHIFT | hash)
    }

    /// The 50-bit hash without the slot.
    pub const fn hash(self) -> u64 {
        self.0 & ((1 << RouteHash::SLOT_SHIFT) - 1)
    }

    /// The first hash of a Redis Cluster slot.
    pub const fn first_of_slot(slot: u16) -> RouteHash {
        RouteHash((slot as u64) << RouteHash::SLOT_SHIFT)
    }

    /// The last hash of a Redis Cluster slot.
    pub const fn last_of_slot(slot: u16) -> RouteHash {
        RouteHash((slot as u64) << RouteHash::SLOT_SHIFT | ((1 << RouteHash::SLOT_SHIFT) - 1))
    }

    pub const fn slot(self) -> u16 {
        (self.0 >> RouteHash::SLOT_SHIFT) as u16
    }

    /// The hash after this one; `None` after the last.
    pub fn next(self) -> Option<RouteHash> {
        self.0.checked_add(1).map(RouteHash)
    }
}

impl fmt::Display for RouteHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

/// Route hashes from `first` to `last`, both included: never empty if `first <= last`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct KeyRange {
    pub first: RouteHash,
    pub last: RouteHash,
}

impl KeyRange {
    pub const ALL: KeyRange = KeyRange {
        first: RouteHash::MIN,
        last: RouteHash::MAX,
    };

    pub const fn new(first: RouteHash, last: RouteHash) -> KeyRange {
        KeyRange { first, last }
    }

    pub fn contains(&self, hash: RouteHash) -> bool {
        self.first <= hash && hash <= self.last
    }

    /// True if this range contains every hash of `other`.
    pub fn covers(&self, other: &KeyRange) -> bool {
        self.first <= other.first && other.last <= self.last
    }

    pub fn overlaps(&self, other: &KeyRange) -> bool {
        self.first <= other.last && other.first <= self.last
    }

    /// The range that both contain.
    pub fn intersection(&self, other: &KeyRange) -> Option<KeyRange> {
        self.overlaps(other).then(|| KeyRange {
            first: self.first.max(other.first),
            last: self.last.min(other.last),
        })
    }

    /// The part below `at` and the part from `at` on; `None` if one of them would be empty.
    pub fn split(&self, at: RouteHash) -> Option<(KeyRange, KeyRange)> {
        (self.first < at && at <= self.last).then(|| {
            (
                KeyRange::new(self.first, RouteHash(at.0 - 1)),
                KeyRange::new(at, self.last),
            )
        })
    }
}

impl fmt::Display for KeyRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}..={}", self.first, self.last)
    }
}

/// Defines ids that are plain numbers.
macro_rules! number_ids {
    ($($(#[$doc:meta])* $name:ident($number:ty);)*) => {$(
        $(#[$doc])*
        #[derive(
            Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
        )]
        pub struct $name(pub $number);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    )*};
}

number_ids! {
    /// A table, for ever: ids of dropped tables are not given again. Table 0 always exists and is
    /// called `default`. Any number below 2^31 may be the id of a table, as long as no two tables
    /// that exist at once share a [`place`](TableId::place). With bit 31 it stands for the
    /// [parts](TableId::parts) of that table.
    TableId(u32);
    /// A client's lease: masters use it to recognise requests that they have already executed. The
    /// coordinator gives each id once. 0 is no client.
    ClientId(u64);
    /// One request of one client that must take effect once, however often it is sent. A client
    /// numbers its requests from 1, without gaps.
    RpcId(u64);
    /// One attempt to recover the log of one dead server: random, so that data of an earlier
    /// attempt are distinguished.
    RecoveryId(u64);
    /// One attempt to move one tablet; random like [`RecoveryId`].
    MigrationId(u64);
    /// Version of the server list: one more with each change.
    ListVersion(u64);
    /// Version of a single server's list of tablets: one more with each change.
    TabletsVersion(u64);
    /// Version of the whole tablet map, as clients cache it: one more with each change of any
    /// tablet or table.
    MapVersion(u64);
}

/// Which cluster: random, made once when a coordinator's store is new. Two clusters may have one
/// name, and never one id.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
pub struct ClusterId(pub u128);

impl ClusterId {
    /// The cluster's id is not known, or there is none yet.
    pub const NONE: ClusterId = ClusterId(0);

    /// Whether the two cannot be ids of one cluster. An unknown id may be any.
    pub fn contradicts(self, other: ClusterId) -> bool {
        self != ClusterId::NONE && other != ClusterId::NONE && self != other
    }

    /// The id that is shown as this text.
    pub fn parse(text: &str) -> Option<ClusterId> {
        let is_hex = text.len() == 32 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
        let number = u128::from_str_radix(text, 16).ok()?;
        is_hex.then_some(ClusterId(number))
    }
}

impl fmt::Display for ClusterId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

impl TableId {
    /// The table that always exists.
    pub const DEFAULT: TableId = TableId(0);
    /// The bit of an id that stands for a table's parts.
    pub const PARTS: u32 = 1 << 31;

    /// The parts of this table: the entries that its large collections consist of. Each table has
    /// them; they have no name and no record of their own.
    ///
    /// ```
    /// use duramen_base::ids::TableId;
    ///
    /// let table = TableId(7);
    /// assert!(table.parts().is_parts() && !table.is_parts());
    /// assert_eq!(table.parts().whole(), table);
    /// ```
    #[inline(always)]
    pub const fn parts(self) -> TableId {
        TableId(self.0 | TableId::PARTS)
    }

    #[inline(always)]
    pub const fn is_parts(self) -> bool {
        self.0 & TableId::PARTS != 0
    }

    /// The table itself, if this stands for its parts.
    #[inline(always)]
    pub const fn whole(self) -> TableId {
        TableId(self.0 & !TableId::PARTS)
    }

    /// The place of the table's data in a store: one of [`TABLES_MAX`] places, and the same one
    /// for its parts. The other bits of the id count the tables that had the place before.
    #[doc(hidden)]
    #[inline(always)]
    pub fn place(self) -> usize {
        self.0 as usize % TABLES_MAX
    }

    /// Number of places for the indexes of tables, and behind them of their parts.
    #[doc(hidden)]
    pub const INDEX_PLACES: usize = 2 * TABLES_MAX;

    /// The place of the index of a table, or of that of its parts: one of
    /// [`INDEX_PLACES`](TableId::INDEX_PLACES).
    #[doc(hidden)]
    #[inline(always)]
    pub fn index_place(self) -> usize {
        self.place() + usize::from(self.is_parts()) * TABLES_MAX
    }

    /// The first id from this one on whose place is free; `None`: none is. After the last id comes
    /// 0. To give no id twice, the caller continues after the id that it gave last.
    #[doc(hidden)]
    pub fn first_free(self, is_taken: impl Fn(usize) -> bool) -> Option<TableId> {
        (0..TABLES_MAX as u32)
            .map(|ahead| TableId(self.0.wrapping_add(ahead)).whole())
            .find(|id| !is_taken(id.place()))
    }
}

/// Names the parts of one collection, for ever: its Redis Cluster slot (14 bits) in front of a
/// random number (74 bits). A billion homes contain two equal ones with a chance of 2 in a
/// billion, so nobody looks whether a drawn one is taken. The format of parts is in
/// `duramen_format::part`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Home([u8; Home::BYTES]);

impl Home {
    /// Bytes of a home.
    pub const BYTES: usize = 11;
    const SLOT_BITS: u32 = 14;

    /// A new home in this slot; `random` gives 64 random bits at each call.
    pub fn draw(slot: u16, random: &mut impl FnMut() -> u64) -> Home {
        debug_assert!(slot < 1 << Home::SLOT_BITS);
        let route = RouteHash::of(slot, random() >> Home::SLOT_BITS);
        let [r0, r1, r2, r3, r4, r5, r6, r7] = route.0.to_be_bytes();
        let [r8, r9, r10, ..] = random().to_be_bytes();
        Home([r0, r1, r2, r3, r4, r5, r6, r7, r8, r9, r10])
    }

    /// The home with these bytes. Any 11 bytes are a home.
    pub const fn from_bytes(bytes: [u8; Home::BYTES]) -> Home {
        Home(bytes)
    }

    pub const fn as_bytes(&self) -> &[u8; Home::BYTES] {
        &self.0
    }

    /// The Redis Cluster slot with which the parts move.
    pub fn slot(&self) -> u16 {
        let [high, low, ..] = self.0;
        u16::from_be_bytes([high, low]) >> (16 - Home::SLOT_BITS)
    }

    /// 64 of its random bits, for hashes that clients cannot foresee and that every store computes
    /// alike.
    pub fn seed(&self) -> u64 {
        let [_, _, _, seed @ ..] = self.0;
        u64::from_be_bytes(seed)
    }

    /// The key of the part with this number, at most [`PartKey::NUMBER_MAX`].
    pub fn key(&self, number: u64) -> PartKey {
        debug_assert!(number <= PartKey::NUMBER_MAX);
        let mut key = [0; PartKey::BYTES];
        let (home, at) = key.split_at_mut(Home::BYTES);
        home.copy_from_slice(&self.0);
        let [_, _, _, number @ ..] = number.to_be_bytes();
        at.copy_from_slice(&number);
        PartKey(key)
    }
}

/// Shown as 22 hexadecimal digits.
impl fmt::Display for Home {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// The key of a part: its home (88 bits) in front of its number (40 bits), big endian. So the
/// parts of a collection follow each other in the order of their numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PartKey([u8; PartKey::BYTES]);

impl PartKey {
    /// Bytes of the key of a part.
    pub const BYTES: usize = 16;
    /// The number of a home's record; those of its parts begin at 1.
    pub const RECORD: u64 = 0;
    /// The largest number of a part.
    pub const NUMBER_MAX: u64 = (1 << 40) - 1;

    /// The key with these bytes; `None`: they have not the length of a part's key.
    pub fn parse(key: &[u8]) -> Option<PartKey> {
        key.try_into().ok().map(PartKey)
    }

    /// The key of an entry of this table, if the table stands for parts.
    #[inline]
    pub fn of(table: TableId, key: &[u8]) -> Option<PartKey> {
        match table.is_parts() {
            true => PartKey::parse(key),
            false => None,
        }
    }

    pub const fn as_bytes(&self) -> &[u8; PartKey::BYTES] {
        &self.0
    }

    pub fn home(&self) -> Home {
        let mut home = [0; Home::BYTES];
        home.copy_from_slice(&self.0[..Home::BYTES]);
        Home(home)
    }

    pub fn number(&self) -> u64 {
        u128::from_be_bytes(self.0) as u64 & PartKey::NUMBER_MAX
    }

    /// Whether it is the key of its home's record.
    pub fn is_record(&self) -> bool {
        self.number() == PartKey::RECORD
    }

    /// The route hash with which the part moves: the beginning of its home.
    pub fn route(&self) -> RouteHash {
        RouteHash((u128::from_be_bytes(self.0) >> 64) as u64)
    }
}

/// Shown as home and number.
impl fmt::Display for PartKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.home(), self.number())
    }
}

impl ClientId {
    /// No client: the request need not take effect exactly once.
    pub const NONE: ClientId = ClientId(0);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_are_ordered_and_named() {
        assert!(Level::Memory < Level::Buffered && Level::Buffered < Level::Synced);
        for level in Level::ALL {
            assert_eq!(Level::from_name(level.name()), Some(level));
            assert_eq!(Level::from_number(level as u8), Some(level));
        }
        assert_eq!(Level::from_name("SYNCED"), Some(Level::Synced));
        assert_eq!(Level::from_name("sync"), None);
        assert_eq!(Level::from_number(3), None);
    }

    /// Ids once went to tables that had nothing to do with the dropped one, and clients that still
    /// used the dropped one wrote to them.
    #[test]
    fn ids_go_on_and_leave_out_those_whose_place_is_taken() {
        let n = TABLES_MAX as u32;
        assert_eq!(TableId(5).first_free(|_| false), Some(TableId(5)));
        assert_eq!(
            TableId(n).first_free(|place| place == 0),
            Some(TableId(n + 1))
        );
        assert_eq!(
            TableId(3).first_free(|place| place != 2),
            Some(TableId(n + 2))
        );
        assert_eq!(TableId(7).first_free(|_| true), None);
        assert_eq!(TableId(2 * n + 9).place(), 9);
        let last = TableId(TableId::PARTS - 1);
        assert_eq!(last.first_free(|place| place > 1), Some(TableId(0)));
    }

    /// A table and its parts share a place, and no table is taken for the parts of another one.
    #[test]
    fn parts_of_a_table_have_its_place() {
        for id in [0, 1, 1023, 1024, TableId::PARTS - 1] {
            let table = TableId(id);
            assert!(!table.is_parts() && table.parts().is_parts());
            assert_eq!((table.whole(), table.parts().whole()), (table, table));
            assert_eq!(table.parts().place(), table.place());
            assert_eq!(table.index_place(), table.place());
            assert_eq!(table.parts().index_place(), table.place() + TABLES_MAX);
        }
    }

    #[test]
    fn a_home_has_its_slot_and_74_random_bits() {
        let home = Home::draw(0x2345, &mut || u64::MAX);
        assert_eq!(home.slot(), 0x2345);
        assert_eq!(home.to_string(), "8d17ffffffffffffffffff");
        let home = Home::draw(0x3fff, &mut || 0);
        assert_eq!((home.slot(), home.seed()), (0x3fff, 0));
        assert_eq!(home.to_string(), "fffc000000000000000000");
        let mut words = [0x0123_4567_89ab_cdef, 0x1122_3344_5566_7788].into_iter();
        let home = Home::draw(1, &mut || words.next().expect("two"));
        assert_eq!(home.to_string(), "0004048d159e26af112233");
        assert_eq!(home.seed(), 0x8d15_9e26_af11_2233);
        assert_eq!(Home::from_bytes(*home.as_bytes()), home);
    }

    #[test]
    fn a_key_of_a_part_is_home_and_number() {
        let home = Home::from_bytes([0x8d, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11]);
        let key = home.key(0x01_0203_0405);
        let bytes = [0x8d, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 1, 2, 3, 4, 5];
        assert_eq!(*key.as_bytes(), bytes);
        assert_eq!(PartKey::parse(&bytes), Some(key));
        assert_eq!((key.home(), key.number()), (home, 0x01_0203_0405));
        assert_eq!(key.route(), RouteHash(0x8d02_0304_0506_0708));
        assert_eq!(key.route().slot(), home.slot());
        assert_eq!(key.to_string(), "8d02030405060708090a0b/4328719365");
        for number in [0, 1, PartKey::NUMBER_MAX] {
            let key = home.key(number);
            assert_eq!((key.home(), key.number()), (home, number));
            assert_eq!(key.is_record(), number == PartKey::RECORD);
        }
        assert!(home.key(255) < home.key(256));
        let (table, parts) = (TableId(3), TableId(3).parts());
        assert_eq!(PartKey::of(parts, &bytes), Some(key));
        assert_eq!(
            (PartKey::of(table, &bytes), PartKey::of(parts, b"k")),
            (None, None)
        );
        assert_eq!(PartKey::parse(&bytes[..15]), None);
        assert_eq!(PartKey::parse(&[0; 17]), None);
    }

    #[test]
    fn a_later_life_of_a_slot_is_a_greater_number() {
        let (first, second) = (ServerId::new(7, 1), ServerId::new(7, 2));
        assert!(first < second && first.number() < second.number());
        assert_eq!(second.number(), 2 << 32 | 7);
        for id in [first, second, ServerId::NONE, ServerId::coordinator(3)] {
            assert_eq!(ServerId::from_number(id.number()), id);
        }
        assert_eq!(second.to_string(), "7.2");
    }

    #[test]
    fn ranges_split_without_gap_or_overlap() {
        let slots = KeyRange::new(RouteHash::first_of_slot(3), RouteHash::last_of_slot(5));
        let (low, high) = slots.split(RouteHash::first_of_slot(4)).expect("inside");
        assert_eq!(low.last, RouteHash::last_of_slot(3));
        assert_eq!(low.last.next(), Some(high.first));
        assert_eq!(high.last.slot(), 5);
        assert!(!low.overlaps(&high) && slots.covers(&low) && slots.covers(&high));
        assert_eq!(slots.intersection(&high), Some(high));
        assert_eq!(low.intersection(&high), None);
        assert_eq!(slots.split(slots.first), None);
        assert_eq!(KeyRange::ALL.split(RouteHash::MIN), None);
        assert_eq!(RouteHash::last_of_slot((1 << 14) - 1), RouteHash::MAX);
    }
}
