//! A slot's word: where a key's entry is. Its layout is in `bucket`.

pub const TAG_BITS: u32 = 22;
const LOCATION_BITS: u32 = 38;
const LOCATION_MASK: u64 = (1 << LOCATION_BITS) - 1;
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
        Slot(tag << TAG_SHIFT | location)
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
        Slot(self.0 & !ACCESS_MASK | access << ACCESS_SHIFT)
    }

    /// The same tag and access count at another location.
    #[inline(always)]
    pub fn moved_to(self, location: u64) -> Slot {
        debug_assert!(location != 0 && location <= LOCATION_MASK);
        Slot(self.0 & !LOCATION_MASK | location)
    }
}
