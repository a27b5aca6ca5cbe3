//! Log entries: the one format of memory, disk and wire.
//!
//! **Layout** (little endian; an entry starts on a multiple of 8 and its padded length is one):
//!
//! ```text
//! small   0        1                       8        12      13       14        16
//! form    +--------+-----------------------+--------+-------+--------+---------+----------+-----+-------+-----+
//!         | kind   | object version (56 b) | CRC32C | table | key    | value   | [expiry] | key | value | pad |
//!         | +flags |                       |        |  u8   | len u8 | len u16 |   u64    |     |       | 0s  |
//!         +--------+-----------------------+--------+-------+--------+---------+----------+-----+-------+-----+
//! wide    0        1                       8        12              16         18    20         24
//! form    +--------+-----------------------+--------+---------------+----------+-----+----------+----------+-- -
//!         | kind   | object version (56 b) | CRC32C | table u32     | key len  |  0  | value    | [expiry] | key
//!         | +flags |                       |        |               | u16      | u16 | len u32  |   u64    |
//!         +--------+-----------------------+--------+---------------+----------+-----+----------+----------+-- -
//! ```
//!
//! A *completion record* (kind 3) records that a client's request has been executed, and its
//! answer; it is in one group with the effect. Its key is 32 bytes: route hash, client, request,
//! the client's acknowledgement (u64 each); its value is the answer; version 0, never EXPIRY or
//! VICTIM.
//!
//! An entry with flag VICTIM has 8 more bytes at its very end, after the padding: the id of the
//! segment with the version that it replaced (an *embedded tombstone*). Kinds: 1 = object, 2 =
//! tombstone (no value, no expiry, always VICTIM), 3 = completion. Flags of byte 0: WIDE 8, EXPIRY
//! 16, VICTIM 32, TYPED 64: an object whose value is no plain string; its first byte is the type
//! (crate `types`); PART 128 ([`part`]). Segments of version 1 have no typed objects,
//! those of version 2 no parts.
//!
//! **Invariants**
//! - F1: a small object (key < 256 B, value < 64 KiB, table < 256, no expiry) has a header of 16
//!   bytes.
//! - F2: the CRC32C covers every byte of the padded entry, with the CRC field itself read as zero.
//! - F3: byte 0 is never zero, so zeroed memory is not an entry.
//! - F4: an object version has 56 bits and starts at 1 (0 in completions); 2^56 writes to one key
//!   take 2,000 years at a million a second.
//! - F5: a tombstone of version v kills every version of its key up to v; an object kills all below
//!   its own.
//! - F6: a *part* is an object or a tombstone with flag PART. Its key is a [`PartKey`], and it has
//!   neither EXPIRY nor TYPED. Outside of the bytes the flag is bit 31 of the entry's table
//!   ([`TableId::parts`]), so a part is never taken for an entry of the table itself. The id in
//!   the bytes is below 2^31.
//!
//! Paper: [Rumble14 §4] objects are self-identifying; differs: no per-entry length-of-length byte,
//! but one fixed pair of header words, because a reader then needs one aligned load per word and
//! the scan of a segment has no variable decoding. Differs: an overwrite costs 8 bytes of
//! tombstone, not an entry of its own. These bytes are last, so that readers, which need the key,
//! can ignore them.

use crate::checksum;
use crate::hash::KeyHasher;
use crate::part::{self, Names};
use duramen_base::ids::{ClientId, PartKey, RouteHash, RpcId, SegmentId, TableId};
use duramen_base::limits::{KEY_BYTES_MAX, VALUE_BYTES_MAX};
use duramen_base::planted::{Bug, has_bug};

/// Entries start on multiples of this many bytes.
pub const ALIGN_BYTES: usize = 8;
/// Header of the small form.
pub const SMALL_HEADER_BYTES: usize = 16;
/// Header of the wide form.
pub const WIDE_HEADER_BYTES: usize = 24;
/// Largest object version (F4).
pub const VERSION_MAX: u64 = (1 << 56) - 1;
/// Maximum padded length of an entry.
pub const ENTRY_BYTES_MAX: usize =
    (WIDE_HEADER_BYTES + 8 + KEY_BYTES_MAX + VALUE_BYTES_MAX).next_multiple_of(ALIGN_BYTES) + 8;

const KIND_MASK: u8 = 0b0000_0111;
const TOMBSTONE: u8 = Kind::Tombstone as u8;
const COMPLETION: u8 = Kind::Completion as u8;
const FLAG_WIDE: u8 = 0b0000_1000;
const FLAG_EXPIRY: u8 = 0b0001_0000;
const FLAG_VICTIM: u8 = 0b0010_0000;
const FLAG_TYPED: u8 = 0b0100_0000;
const FLAG_PART: u8 = 0b1000_0000;
/// Shifts [`FLAG_PART`] to the bit [`TableId::PARTS`].
const PART_SHIFT: u32 = 24;

/// The kind of an entry. Zero is no kind (F3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    Object = 1,
    /// Versions of a key up to its own are dead.
    Tombstone = 2,
    /// A request was executed; has its answer.
    Completion = 3,
}

/// Bytes of a completion's key.
pub const COMPLETION_KEY_BYTES: usize = 32;

/// A completion record: written with the effect of a request, so that it takes effect exactly once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completion<'a> {
    pub table: u32,
    /// Route hash of the request's key: the record moves with the key.
    pub route: RouteHash,
    pub client: ClientId,
    pub rpc: RpcId,
    /// The client has received the answers to all requests up to this one.
    pub ack: RpcId,
    pub result: &'a [u8],
}

impl<'a> Completion<'a> {
    /// The record in an entry; `None` if it is of another kind.
    pub fn of(entry: &Entry<'a>) -> Option<Completion<'a>> {
        if entry.kind != Kind::Completion {
            return None;
        }
        let (words, _) = entry.key.as_chunks::<8>();
        let [route, client, rpc, ack] = *words.first_chunk::<4>()?;
        Some(Completion {
            table: entry.table,
            route: RouteHash(u64::from_le_bytes(route)),
            client: ClientId(u64::from_le_bytes(client)),
            rpc: RpcId(u64::from_le_bytes(rpc)),
            ack: RpcId(u64::from_le_bytes(ack)),
            result: entry.value,
        })
    }

    fn key(&self) -> [u8; COMPLETION_KEY_BYTES] {
        let mut key = [0; COMPLETION_KEY_BYTES];
        let words = [self.route.0, self.client.0, self.rpc.0, self.ack.0];
        for (to, word) in key.as_chunks_mut::<8>().0.iter_mut().zip(words) {
            *to = word.to_le_bytes();
        }
        key
    }

    fn raw<'k>(&self, key: &'k [u8; COMPLETION_KEY_BYTES]) -> Raw<'k>
    where
        'a: 'k,
    {
        Raw {
            kind: Kind::Completion,
            table: self.table,
            version: 0,
            expires_at_ms: None,
            key,
            value: self.result,
            victim: None,
            is_typed: false,
        }
    }

    /// As [`NewObject::padded_bytes`].
    pub fn padded_bytes(&self) -> usize {
        self.raw(&[0; COMPLETION_KEY_BYTES]).padded_bytes()
    }

    /// As [`NewObject::write_to`].
    ///
    /// # Panics
    /// As [`NewObject::write_to`].
    pub fn write_to(&self, out: &mut [u8]) {
        self.raw(&self.key()).write_to(out);
    }
}

/// The fields of an object to be written.
#[derive(Clone, Copy, Debug)]
pub struct NewObject<'a> {
    /// The id of the table; with bit 31 set, the object is a part (F6).
    pub table: u32,
    pub version: u64,
    /// Milliseconds since the Unix epoch; `None` = never.
    pub expires_at_ms: Option<u64>,
    pub key: &'a [u8],
    pub value: &'a [u8],
    /// The segment of the version that this one replaces, if it must be named; costs 8 bytes.
    pub victim: SegmentId,
    /// The value is no plain string: its first byte is its type.
    pub is_typed: bool,
}

/// The fields of a tombstone to be written.
#[derive(Clone, Copy, Debug)]
pub struct NewTombstone<'a> {
    /// As [`NewObject::table`].
    pub table: u32,
    /// The version that died; all versions below it are dead as well.
    pub version: u64,
    pub key: &'a [u8],
    /// The segment of that version. The tombstone is needed while this segment can be replayed.
    pub victim: SegmentId,
}

impl NewTombstone<'_> {
    fn raw(&self) -> Raw<'_> {
        Raw {
            kind: Kind::Tombstone,
            table: self.table,
            version: self.version,
            expires_at_ms: None,
            key: self.key,
            value: &[],
            victim: Some(self.victim),
            is_typed: false,
        }
    }

    /// As [`NewObject::padded_bytes`].
    pub fn padded_bytes(&self) -> usize {
        self.raw().padded_bytes()
    }

    /// As [`NewObject::write_to`].
    ///
    /// # Panics
    /// As [`NewObject::write_to`].
    pub fn write_to(&self, out: &mut [u8]) {
        self.raw().write_to(out);
    }
}

impl NewObject<'_> {
    #[inline(always)]
    fn raw(&self) -> Raw<'_> {
        Raw {
            kind: Kind::Object,
            table: self.table,
            version: self.version,
            expires_at_ms: self.expires_at_ms,
            key: self.key,
            value: self.value,
            victim: (self.victim != SegmentId::NONE).then_some(self.victim),
            is_typed: self.is_typed,
        }
    }

    /// Bytes the entry takes in the log, padding included: a multiple of [`ALIGN_BYTES`].
    #[inline]
    pub fn padded_bytes(&self) -> usize {
        self.raw().padded_bytes()
    }

    /// Writes the entry, CRC included, into the first [`padded_bytes`](Self::padded_bytes) bytes of
    /// `out`.
    ///
    /// # Panics
    /// If `out` is shorter than that, or a field exceeds its limit: the caller checks limits first.
    #[inline]
    pub fn write_to(&self, out: &mut [u8]) {
        self.raw().write_to(out);
    }
}

/// The fields of an entry of any kind to be written.
struct Raw<'a> {
    kind: Kind,
    table: u32,
    version: u64,
    expires_at_ms: Option<u64>,
    key: &'a [u8],
    value: &'a [u8],
    victim: Option<SegmentId>,
    is_typed: bool,
}

impl Raw<'_> {
    /// The table's id as it is in the bytes (F6).
    #[inline(always)]
    fn stored_table(&self) -> u32 {
        TableId(self.table).whole().0
    }

    #[inline(always)]
    fn is_wide(&self) -> bool {
        self.key.len() > 0xff || self.value.len() > 0xffff || self.stored_table() > 0xff
    }

    /// Whether the fields fit the form of a part, if the table says that this is one (F6).
    fn may_be_written(&self) -> bool {
        let is_plain = self.expires_at_ms.is_none() && !self.is_typed;
        let fits = is_plain && self.kind != Kind::Completion && self.key.len() == PartKey::BYTES;
        fits || !TableId(self.table).is_parts()
    }

    /// Bytes of the header, expiry included.
    #[inline(always)]
    fn prefix_bytes(&self) -> usize {
        let header = if self.is_wide() {
            WIDE_HEADER_BYTES
        } else {
            SMALL_HEADER_BYTES
        };
        header + if self.expires_at_ms.is_some() { 8 } else { 0 }
    }

    #[inline(always)]
    fn padded_bytes(&self) -> usize {
        let body = self.prefix_bytes() + self.key.len() + self.value.len();
        body.next_multiple_of(ALIGN_BYTES) + if self.victim.is_some() { 8 } else { 0 }
    }

    #[inline(always)]
    fn write_to(&self, out: &mut [u8]) {
        debug_assert!(self.key.len() <= KEY_BYTES_MAX && self.value.len() <= u32::MAX as usize);
        debug_assert!(self.version <= VERSION_MAX && self.may_be_written());
        let mut total = self.padded_bytes();
        let out = &mut out[..total];
        let mut flags = self.kind as u8 | (self.table >> PART_SHIFT) as u8 & FLAG_PART;
        if self.is_typed {
            flags |= FLAG_TYPED;
        }
        if let Some(victim) = self.victim {
            flags |= FLAG_VICTIM;
            out[total - 8..].copy_from_slice(&victim.0.to_le_bytes());
            total -= 8;
        }
        // Padding first: header, key and value then overwrite their part of the last word.
        out[total - 8..total].fill(0);
        let wide = self.is_wide();
        if wide {
            flags |= FLAG_WIDE;
        }
        if self.expires_at_ms.is_some() {
            flags |= FLAG_EXPIRY;
        }
        out[..8].copy_from_slice(&(u64::from(flags) | self.version << 8).to_le_bytes());
        let mut at = if wide {
            out[8..16].copy_from_slice(&(u64::from(self.stored_table()) << 32).to_le_bytes());
            let lengths = self.key.len() as u64 | (self.value.len() as u64) << 32;
            out[16..24].copy_from_slice(&lengths.to_le_bytes());
            WIDE_HEADER_BYTES
        } else {
            let word = u64::from(self.stored_table()) << 32
                | (self.key.len() as u64) << 40
                | (self.value.len() as u64) << 48;
            out[8..16].copy_from_slice(&word.to_le_bytes());
            SMALL_HEADER_BYTES
        };
        if let Some(expires_at_ms) = self.expires_at_ms {
            out[at..at + 8].copy_from_slice(&expires_at_ms.to_le_bytes());
            at += 8;
        }
        out[at..at + self.key.len()].copy_from_slice(self.key);
        at += self.key.len();
        out[at..at + self.value.len()].copy_from_slice(self.value);
        let crc = checksum::crc32c(out);
        out[8..12].copy_from_slice(&crc.to_le_bytes());
    }
}

/// A parsed entry: slices of the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry<'a> {
    pub kind: Kind,
    /// As [`NewObject::table`].
    pub table: u32,
    pub version: u64,
    /// 0 = never expires.
    pub expires_at_ms: u64,
    pub key: &'a [u8],
    pub value: &'a [u8],
    /// The segment of the version that this one replaced or killed; none if it need not be named.
    pub victim: SegmentId,
    /// As [`NewObject::is_typed`].
    pub is_typed: bool,
    /// Bytes of the entry in the log, padding included.
    pub padded_bytes: usize,
}

impl<'a> Entry<'a> {
    /// The route hash with which the entry moves in a cluster with this hash: that of its key,
    /// that of the request that it completes, or that of its home (part::K1).
    pub fn route(&self, hasher: &KeyHasher) -> RouteHash {
        match (Completion::of(self), self.part_key()) {
            (Some(completion), _) => completion.route,
            (None, Some(part)) if !has_bug(Bug::PartRoutesByKey) => part.route(),
            _ => hasher.route(self.key),
        }
    }

    /// The key of a part, or of its tombstone; `None`: it is no part.
    #[inline]
    pub fn part_key(&self) -> Option<PartKey> {
        PartKey::of(TableId(self.table), self.key)
    }

    /// Whether it is an object that is the root of parts.
    #[inline(always)]
    pub fn has_parts(&self) -> bool {
        part::has_parts(self.value, self.is_typed)
    }

    /// The names in a root or a part; `None`: it is an object without parts, or no object.
    ///
    /// # Errors
    /// The names are damaged (part::K4).
    pub fn names(&self) -> Result<Option<Names<'a>>, part::Damage> {
        let names = match self.part_key() {
            Some(key) if self.kind == Kind::Object => part::names_under(key, self.value),
            None if self.has_parts() => part::names(self.value, true),
            _ => return Ok(None),
        };
        names.map(Some).ok_or(part::Damage)
    }
}

/// The entry's shape, from its header alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    pub kind: Kind,
    /// As [`NewObject::table`].
    pub table: u32,
    pub version: u64,
    pub has_expiry: bool,
    pub has_victim: bool,
    pub is_typed: bool,
    pub key_start: usize,
    pub key_bytes: usize,
    pub value_bytes: usize,
}

impl Header {
    /// Decodes a header from the first three words of an entry; `third` is called in the wide form
    /// only.
    #[inline(always)]
    fn decode(first: u64, second: u64, third: impl FnOnce() -> u64) -> Header {
        let flags = first as u8;
        let has_expiry = flags & FLAG_EXPIRY != 0;
        let has_victim = flags & FLAG_VICTIM != 0;
        let is_typed = flags & FLAG_TYPED != 0;
        // The flag is 16: 8 bytes when set.
        let expiry_bytes = usize::from(flags & FLAG_EXPIRY) >> 1;
        let parts = u32::from(flags & FLAG_PART) << PART_SHIFT;
        // The caller has checked the kind, or wrote it.
        let kind = match flags & KIND_MASK {
            TOMBSTONE => Kind::Tombstone,
            COMPLETION => Kind::Completion,
            _ => Kind::Object,
        };
        if flags & FLAG_WIDE == 0 {
            Header {
                kind,
                table: (second >> 32) as u32 & 0xff | parts,
                version: first >> 8,
                has_expiry,
                has_victim,
                is_typed,
                key_start: SMALL_HEADER_BYTES + expiry_bytes,
                key_bytes: (second >> 40) as usize & 0xff,
                value_bytes: (second >> 48) as usize,
            }
        } else {
            let third = third();
            Header {
                kind,
                table: (second >> 32) as u32 | parts,
                version: first >> 8,
                has_expiry,
                has_victim,
                is_typed,
                key_start: WIDE_HEADER_BYTES + expiry_bytes,
                key_bytes: third as usize & 0xffff,
                value_bytes: (third >> 32) as usize,
            }
        }
    }

    /// Bytes of the entry in the log, padding included.
    #[inline(always)]
    pub fn padded_bytes(&self) -> usize {
        let body = self.key_start + self.key_bytes + self.value_bytes;
        body.next_multiple_of(ALIGN_BYTES) + (usize::from(self.has_victim) << 3)
    }
}

/// The reason why bytes are not an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Damage {
    #[error("no entry starts here (kind {kind})")]
    Kind { kind: u8 },
    #[error("the flags {flags:#04x} do not fit a tombstone, or it has a value")]
    Tombstone { flags: u8 },
    #[error("the flags {flags:#04x} tell of a typed value, and the value is empty")]
    Untyped { flags: u8 },
    #[error("the flags {flags:#04x} do not fit a completion, or its key has {key_bytes} bytes")]
    Completion { flags: u8, key_bytes: usize },
    #[error("the flags {flags:#04x} do not fit a part, or its key has {key_bytes} bytes")]
    Part { flags: u8, key_bytes: usize },
    #[error("no table has the id {table}")]
    Table { table: u32 },
    #[error("the entry would take {needed} bytes, {available} are there")]
    Truncated { needed: usize, available: usize },
    #[error("CRC32C is {stored:#010x} in the header and {computed:#010x} over the bytes")]
    Checksum { stored: u32, computed: u32 },
}

/// Parses the entry at the start of untrusted `bytes`, verifying every field and the CRC.
///
/// # Errors
/// [`Damage`] names the wrong field; no part of the entry may be used then.
#[inline]
pub fn parse(bytes: &[u8]) -> Result<Entry<'_>, Damage> {
    parse_with(bytes, true)
}

/// As [`parse`], without the CRC: for bytes that were just parsed with it.
///
/// # Errors
/// Those of [`parse`].
#[inline]
pub fn parse_again(bytes: &[u8]) -> Result<Entry<'_>, Damage> {
    parse_with(bytes, false)
}

#[inline(always)]
fn parse_with(bytes: &[u8], sums: bool) -> Result<Entry<'_>, Damage> {
    let word = |at: usize| {
        bytes
            .get(at..at + 8)
            .and_then(|w| w.try_into().ok())
            .map(u64::from_le_bytes)
    };
    let truncated = |needed| Damage::Truncated {
        needed,
        available: bytes.len(),
    };
    let first = word(0).ok_or(truncated(SMALL_HEADER_BYTES))?;
    let second = word(8).ok_or(truncated(SMALL_HEADER_BYTES))?;
    let flags = first as u8;
    if !(1..=COMPLETION).contains(&(flags & KIND_MASK)) {
        return Err(Damage::Kind { kind: flags });
    }
    if flags & FLAG_WIDE != 0 {
        if bytes.len() < WIDE_HEADER_BYTES {
            return Err(truncated(WIDE_HEADER_BYTES));
        }
        let table = (second >> 32) as u32;
        if TableId(table).is_parts() {
            return Err(Damage::Table { table }); // F6
        }
    }
    let header = Header::decode(first, second, || word(16).unwrap_or(0));
    check_shape(flags, &header)?;
    let padded = header.padded_bytes();
    let Some(whole) = bytes.get(..padded) else {
        return Err(truncated(padded));
    };
    if sums {
        let (stored, computed) = (second as u32, crc_of(whole, first, second));
        if stored != computed {
            return Err(Damage::Checksum { stored, computed });
        }
    }
    // SAFETY: `whole` is an initialised slice that holds the padded entry (checked just above).
    Ok(unsafe { parse_trusted(whole.as_ptr()) })
}

/// Checks the other fields of an entry against its kind.
#[inline(always)]
fn check_shape(flags: u8, header: &Header) -> Result<(), Damage> {
    if flags & FLAG_PART != 0 {
        check_part(flags, header)?;
    }
    match header.kind {
        // A typed value has its type.
        Kind::Object if header.is_typed && header.value_bytes == 0 => {
            Err(Damage::Untyped { flags })
        }
        Kind::Object => Ok(()),
        Kind::Tombstone => {
            let is_object = header.has_expiry || header.is_typed || header.value_bytes != 0;
            if is_object || !header.has_victim {
                return Err(Damage::Tombstone { flags });
            }
            Ok(())
        }
        Kind::Completion => {
            let key_bytes = header.key_bytes;
            let is_object = header.has_expiry || header.has_victim || header.is_typed;
            if is_object || key_bytes != COMPLETION_KEY_BYTES {
                return Err(Damage::Completion { flags, key_bytes });
            }
            Ok(())
        }
    }
}

/// F6. Each number of 40 bits is that of a part.
fn check_part(flags: u8, header: &Header) -> Result<(), Damage> {
    let key_bytes = header.key_bytes;
    let is_plain = !header.has_expiry && !header.is_typed;
    if is_plain && header.kind != Kind::Completion && key_bytes == PartKey::BYTES {
        return Ok(());
    }
    Err(Damage::Part { flags, key_bytes })
}

/// CRC of a padded entry with its CRC field read as zero (F2).
#[inline(always)]
fn crc_of(whole: &[u8], first: u64, second: u64) -> u32 {
    let rest = whole.get(SMALL_HEADER_BYTES..).unwrap_or(&[]);
    checksum::crc32c_of_words([first, second & !0xffff_ffff], rest)
}

/// True if an entry begins at `at`, ends within `available` bytes and has the right sum.
///
/// # Safety
/// As [`parse_at`].
#[inline]
pub unsafe fn is_sound(at: *const u8, available: usize) -> bool {
    // SAFETY: as the caller promises.
    unsafe { is_sound_or_known(at, available, |_| None) }
}

/// As [`is_sound`], but `known`, which gets the length of the entry, may give the answer: then no
/// sum is taken.
///
/// # Safety
/// As [`parse_at`].
#[inline]
pub unsafe fn is_sound_or_known(
    at: *const u8,
    available: usize,
    known: impl FnOnce(usize) -> Option<bool>,
) -> bool {
    // SAFETY: as the caller promises; the header is there, and so are all bytes of the entry.
    unsafe {
        let Some(header) = header_at(at, available) else {
            return false;
        };
        let padded_bytes = header.padded_bytes();
        if let Some(is_sound) = known(padded_bytes) {
            return is_sound;
        }
        let words = at.cast::<u64>();
        let (first, second) = (u64::from_le(*words), u64::from_le(*words.add(1)));
        let whole = std::slice::from_raw_parts(at, padded_bytes);
        second as u32 == crc_of(whole, first, second)
    }
}

/// The header of the entry at `at`, if the entry ends within `available` bytes.
///
/// # Safety
/// As [`parse_at`].
#[inline(always)]
pub unsafe fn header_at(at: *const u8, available: usize) -> Option<Header> {
    // SAFETY: as the caller promises.
    unsafe {
        has_header(at, available)
            .then(|| header_trusted(at))
            .filter(|header| header.padded_bytes() <= available)
    }
}

/// As [`parse`], for an entry of which only its place is known. Its other fields are not checked
/// if its sum is right.
///
/// # Safety
/// `at` is aligned to [`ALIGN_BYTES`], and `available` initialised bytes are there. Those of the
/// entry stay unchanged for `'a`; those behind it may be written meanwhile.
///
/// # Errors
/// As [`parse`].
#[inline(always)]
pub unsafe fn parse_at<'a>(at: *const u8, available: usize) -> Result<Entry<'a>, Damage> {
    // SAFETY: as the caller promises; a sound entry is whole.
    unsafe {
        if is_sound(at, available) {
            Ok(parse_trusted(at))
        } else {
            Err(damage_at(at, available))
        }
    }
}

/// # Safety
/// As [`parse_at`].
#[inline(always)]
unsafe fn has_header(at: *const u8, available: usize) -> bool {
    // SAFETY: the byte is there (checked first).
    available >= WIDE_HEADER_BYTES
        || available >= SMALL_HEADER_BYTES && unsafe { *at } & FLAG_WIDE == 0
}

/// # Safety
/// As [`parse_at`].
#[cold]
unsafe fn damage_at(at: *const u8, available: usize) -> Damage {
    // SAFETY: the caller guarantees the bytes; no byte behind the claimed end is read.
    let bytes = unsafe {
        let header = header_at(at, available).map(|header| header.padded_bytes());
        std::slice::from_raw_parts(at, header.unwrap_or(available.min(WIDE_HEADER_BYTES)))
    };
    match parse(bytes) {
        Err(Damage::Truncated { needed, .. }) => Damage::Truncated { needed, available },
        Err(damage) => damage,
        // Another thread changes the bytes meanwhile.
        Ok(_) => Damage::Kind {
            kind: bytes.first().copied().unwrap_or(0),
        },
    }
}

/// Reads the header of an entry this process wrote.
///
/// # Safety
/// `at` must point to a whole entry written by [`NewObject::write_to`] or
/// [`NewTombstone::write_to`], 8-aligned, which stays valid and unchanged.
#[inline(always)]
pub unsafe fn header_trusted(at: *const u8) -> Header {
    // SAFETY: the caller guarantees a whole, aligned entry: two header words always exist, the
    // third in the wide form.
    unsafe {
        let words = at.cast::<u64>();
        Header::decode(u64::from_le(*words), u64::from_le(*words.add(1)), || {
            u64::from_le(*words.add(2))
        })
    }
}

/// Reads an entry this process wrote, without checking it again.
///
/// # Safety
/// As [`header_trusted`]; the entry must stay valid and unchanged for `'a`.
#[inline(always)]
pub unsafe fn parse_trusted<'a>(at: *const u8) -> Entry<'a> {
    // SAFETY: the caller guarantees a whole entry, so header, expiry, key and value are inside it.
    unsafe {
        let header = header_trusted(at);
        let expires_at_ms = if header.has_expiry {
            u64::from_le(*at.add(header.key_start - 8).cast::<u64>())
        } else {
            0
        };
        let key = at.add(header.key_start);
        let padded_bytes = header.padded_bytes();
        let victim = if header.has_victim {
            u64::from_le(*at.add(padded_bytes - 8).cast::<u64>())
        } else {
            0
        };
        Entry {
            kind: header.kind,
            table: header.table,
            version: header.version,
            expires_at_ms,
            key: std::slice::from_raw_parts(key, header.key_bytes),
            value: std::slice::from_raw_parts(key.add(header.key_bytes), header.value_bytes),
            victim: SegmentId(victim),
            is_typed: header.is_typed,
            padded_bytes,
        }
    }
}

#[cfg(test)]
mod tests;
