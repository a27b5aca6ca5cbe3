//! Little-endian fields at fixed places of a block, and the CRC that closes it. For headers of
//! fixed size only.

/// Writes fields into a block of fixed size.
pub(crate) struct Writer<'a> {
    block: &'a mut [u8],
}

impl<'a> Writer<'a> {
    /// A writer over `block`, which it first fills with zeros.
    pub(crate) fn new(block: &'a mut [u8]) -> Writer<'a> {
        block.fill(0);
        Writer { block }
    }

    /// # Panics
    /// If the field is outside of the block; layouts are constants.
    pub(crate) fn put(&mut self, at: usize, field: &[u8]) -> &mut Self {
        self.block[at..at + field.len()].copy_from_slice(field);
        self
    }

    pub(crate) fn u64(&mut self, at: usize, value: u64) -> &mut Self {
        self.put(at, &value.to_le_bytes())
    }

    pub(crate) fn u32(&mut self, at: usize, value: u32) -> &mut Self {
        self.put(at, &value.to_le_bytes())
    }

    pub(crate) fn u16(&mut self, at: usize, value: u16) -> &mut Self {
        self.put(at, &value.to_le_bytes())
    }

    pub(crate) fn u8(&mut self, at: usize, value: u8) -> &mut Self {
        self.put(at, &[value])
    }

    /// Closes the block: its last four bytes become the CRC32C of all bytes before.
    pub(crate) fn seal(&mut self) {
        let at = self.block.len() - 4;
        let crc = crc32c::crc32c(&self.block[..at]);
        self.u32(at, crc);
    }
}

/// True if the last four bytes of `block` are the CRC32C of all bytes before.
pub(crate) fn is_sealed(block: &[u8]) -> bool {
    match block.split_last_chunk::<4>() {
        Some((body, crc)) => u32::from_le_bytes(*crc) == crc32c::crc32c(body),
        None => false,
    }
}

/// `N` bytes at `at`; zeros if the block is too short, which the caller has excluded by its length
/// or its seal.
fn field<const N: usize>(block: &[u8], at: usize) -> [u8; N] {
    block
        .get(at..)
        .and_then(|rest| rest.first_chunk::<N>())
        .copied()
        .unwrap_or([0; N])
}

pub(crate) fn u64_at(block: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(field(block, at))
}

pub(crate) fn u32_at(block: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(field(block, at))
}

pub(crate) fn u16_at(block: &[u8], at: usize) -> u16 {
    u16::from_le_bytes(field(block, at))
}

pub(crate) fn u8_at(block: &[u8], at: usize) -> u8 {
    u8::from_le_bytes(field(block, at))
}

/// Checks that each flipped bit and each cut of these bytes is noticed.
#[cfg(test)]
pub(crate) fn assert_noticed(bytes: &[u8], is_noticed: impl Fn(&[u8]) -> bool) {
    for bit in 0..8 * bytes.len() {
        let mut damaged = bytes.to_vec();
        damaged[bit / 8] ^= 1 << (bit % 8);
        assert!(is_noticed(&damaged), "bit {bit}");
    }
    for cut in 0..bytes.len() {
        assert!(is_noticed(&bytes[..cut]), "cut at {cut}");
    }
}
