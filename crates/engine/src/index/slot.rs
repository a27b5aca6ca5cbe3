//! A slot's word: where a key's entry is. Its layout is in `bucket`.

pub const TAG_BITS: u32 = 22;
const LOCATION_BITS: u32 = 38;
const LOCATION_MASK: u64 = (1 << LOCATION_BITS) - 1;
/// The bit that makes the number of ones even (bucket::B7).
const CHECK: u64 = 1 << LOCATION_BITS;
const ACCESS_SHIFT: u32 = LOCATION_BITS + 1;
const ACCESS_MASK: u64 = 0b111 << ACCESS_SHIFT;
const TAG_SHIFT: u32 = 64 - TAG_BITS;

const _: () = assert!(TAG_SHIFT == ACCESS_SHIFT + 3);

/// A slot's word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slot(pub u64);

impl Slot {
    pub const EMPTY: Slot = Slot(0);

    pub fn new(tag: u64, location: u64) -> Slot {
        debug_assert!(tag < 1 << TAG_BITS && location != 0 && location <= LOCATION_MASK);
        Slot::checked(tag << TAG_SHIFT | location)
    }

    /// The word with its check bit set anew (bucket::B7).
    #[inline(always)]
    fn checked(word: u64) -> Slot {
        let rest = word & !CHECK;
        Slot(rest | u64::from(rest.count_ones() & 1) << LOCATION_BITS)
    }

    /// Whether no bit of the slot has flipped, as far as its check bit tells (bucket::B7).
    #[inline(always)]
    pub fn is_whole(self) -> bool {
        self.0.count_ones() & 1 == 0
    }

    /// The slot with this tag and location, if one flipped bit turns it into this slot. A flipped
    /// bit of the access count is not put back.
    pub fn before_flip(self, tag: u64, location: u64) -> Option<Slot> {
        let whole = Slot::new(tag, location).with_access(self.access());
        ((whole.0 ^ self.0).count_ones() == 1).then_some(whole)
    }

    /// True if this slot, which is damaged, may have had this tag and location: up to three flipped
    /// bits explain it.
    pub fn may_have_been(self, tag: u64, location: u64) -> bool {
        let whole = Slot::new(tag, location).with_access(self.access());
        (whole.0 ^ self.0).count_ones() <= 3
    }

    /// The slot's location, and all locations that one flipped bit turns into it.
    pub fn locations_before_flip(self) -> impl Iterator<Item = u64> {
        let here = self.location();
        let others = (0..LOCATION_BITS).map(move |bit| here ^ 1 << bit);
        std::iter::once(here)
            .chain(others)
            .filter(|location| *location != 0)
    }

    #[inline(always)]
    pub fn location(self) -> u64 {
        self.0 & LOCATION_MASK
    }

    #[inline(always)]
    pub fn tag(self) -> u64 {
        self.0 >> TAG_SHIFT
    }

    /// Number of recent reads, 0 to 7 (cache mode).
    pub fn access(self) -> u64 {
        (self.0 & ACCESS_MASK) >> ACCESS_SHIFT
    }

    pub fn with_access(self, access: u64) -> Slot {
        Slot::checked(self.0 & !ACCESS_MASK | access << ACCESS_SHIFT)
    }

    /// The same tag and access count at another location.
    #[inline(always)]
    pub fn moved_to(self, location: u64) -> Slot {
        debug_assert!(location != 0 && location <= LOCATION_MASK);
        Slot::checked(self.0 & !LOCATION_MASK | location)
    }
}
