//! HyperLogLogs: the number of different strings, with a standard error of 0.81 %, in at most
//! 12 KiB. The bytes are Redis's, so values can be exchanged with it.
//!
//! **Layout**: `HYLL`, the encoding (0 dense, 1 sparse), 3 zero bytes, the cached number (8 bytes,
//! little endian; its highest bit is set if it is outdated), registers. *Dense*: 16,384 registers
//! of 6 bits, the lowest bits of a byte first. *Sparse*: runs of equal registers. `00nnnnnn` is
//! n + 1 zeros; `01nnnnnn` and a byte are n + 1 zeros, with 14 bits for n; `1vvvvvnn` is n + 1
//! registers of v + 1.
//!
//! - H1: a dense value never becomes sparse again; a sparse one becomes dense when it is longer
//!   than `SPARSE_BYTES_MAX` or has a register above 32.
//!
//! The estimate from the histogram of registers is that of O. Ertl, "New cardinality estimation
//! algorithms for HyperLogLog sketches", 2017.

use std::f64::consts::LN_2;

/// Number of registers: 14 bits of a hash choose one.
const REGISTERS: usize = 1 << INDEX_BITS;
const INDEX_BITS: u32 = 14;
/// Bits of the hash that are counted.
const COUNTED_BITS: usize = 50;
const HEADER_BYTES: usize = 16;
const DENSE_BYTES: usize = HEADER_BYTES + REGISTERS * 6 / 8;
/// Redis's default of `hll-sparse-max-bytes`.
const SPARSE_BYTES_MAX: usize = 3000;
/// The largest register that a sparse value can hold.
const SPARSE_REGISTER_MAX: u8 = 32;
const HASH_SEED: u64 = 0xadc8_3b19;

/// The reason why bytes are not a HyperLogLog.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    #[error("Key is not a valid HyperLogLog string value.")]
    NoLog,
    #[error("Corrupted HLL object detected")]
    Damaged,
}

/// A decoded HyperLogLog.
#[derive(Clone, Debug)]
pub struct Log {
    registers: Box<[u8]>,
    is_dense: bool,
    /// The number of different strings; `None` while it is not known.
    cached: Option<u64>,
}

impl Default for Log {
    fn default() -> Self {
        Log {
            registers: vec![0; REGISTERS].into(),
            is_dense: false,
            cached: Some(0),
        }
    }
}

impl Log {
    /// Decodes a value.
    ///
    /// # Errors
    /// [`Error`].
    pub fn of(value: &[u8]) -> Result<Log, Error> {
        let (header, rest) = value
            .split_first_chunk::<HEADER_BYTES>()
            .ok_or(Error::NoLog)?;
        let [b'H', b'Y', b'L', b'L', encoding, _, _, _, cached @ ..] = *header else {
            return Err(Error::NoLog);
        };
        let cached = u64::from_le_bytes(cached);
        let mut log = Log {
            is_dense: encoding == 0,
            cached: (cached >> 63 == 0).then_some(cached),
            ..Log::default()
        };
        match encoding {
            0 if value.len() == DENSE_BYTES => log.read_dense(rest),
            1 => log.read_sparse(rest)?,
            _ => return Err(Error::NoLog),
        }
        Ok(log)
    }

    fn read_dense(&mut self, bytes: &[u8]) {
        let (groups, _) = bytes.as_chunks::<3>();
        let (places, _) = self.registers.as_chunks_mut::<4>();
        for (place, [a, b, c]) in places.iter_mut().zip(groups) {
            let word = u32::from_le_bytes([*a, *b, *c, 0]);
            *place = [0, 6, 12, 18].map(|shift| (word >> shift) as u8 & 63);
        }
    }

    fn read_sparse(&mut self, mut bytes: &[u8]) -> Result<(), Error> {
        let mut places = self.registers.iter_mut();
        while let [first, rest @ ..] = bytes {
            bytes = rest;
            let (length, register) = match first >> 6 {
                0 => (usize::from(first & 63) + 1, 0),
                1 => {
                    let (low, rest) = bytes.split_first().ok_or(Error::Damaged)?;
                    bytes = rest;
                    ((usize::from(first & 63) << 8 | usize::from(*low)) + 1, 0)
                }
                _ => (usize::from(first & 3) + 1, (first >> 2 & 31) + 1),
            };
            for _ in 0..length {
                *places.next().ok_or(Error::Damaged)? = register;
            }
        }
        match places.next() {
            None => Ok(()),
            Some(_) => Err(Error::Damaged),
        }
    }

    /// Adds a string; returns whether a register changed.
    pub fn add(&mut self, string: &[u8]) -> bool {
        let hash = hash(string);
        let index = hash as usize % REGISTERS;
        let counted = hash >> INDEX_BITS | 1 << COUNTED_BITS;
        let zeros = counted.trailing_zeros() as u8 + 1;
        match self.registers.get_mut(index) {
            Some(register) if *register < zeros => {
                *register = zeros;
                self.cached = None;
                true
            }
            _ => false,
        }
    }

    /// Adds all strings of another HyperLogLog.
    pub fn merge(&mut self, other: &Log) {
        self.is_dense |= other.is_dense;
        for (register, other) in self.registers.iter_mut().zip(&other.registers) {
            *register = (*register).max(*other);
        }
        self.cached = None;
    }

    /// Estimates the number of different strings.
    pub fn count(&self) -> u64 {
        if let Some(cached) = self.cached {
            return cached;
        }
        let mut histogram = [0u32; 64];
        for register in &self.registers {
            if let Some(count) = histogram.get_mut(usize::from(*register)) {
                *count += 1;
            }
        }
        let of = |register: usize| f64::from(histogram.get(register).copied().unwrap_or(0));
        let all = REGISTERS as f64;
        let mut z = all * tau((all - of(COUNTED_BITS + 1)) / all);
        for register in (1..=COUNTED_BITS).rev() {
            z += of(register);
            z *= 0.5;
        }
        z += all * sigma(of(0) / all);
        (0.5 / LN_2 * all * all / z).round() as u64
    }

    /// Appends the value.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let start = out.len();
        let max = self.registers.iter().max().copied().unwrap_or(0);
        if !self.is_dense && max <= SPARSE_REGISTER_MAX {
            self.write_header(1, out);
            self.write_sparse(out);
            if out.len() - start <= HEADER_BYTES + SPARSE_BYTES_MAX {
                return;
            }
            out.truncate(start); // the sparse form is too long (H1)
        }
        self.write_header(0, out);
        let (groups, _) = self.registers.as_chunks::<4>();
        for group in groups {
            let shifted = group.iter().zip([0, 6, 12, 18]);
            let word = shifted.fold(0u32, |word, (register, shift)| {
                word | u32::from(*register) << shift
            });
            let [a, b, c, _] = word.to_le_bytes();
            out.extend_from_slice(&[a, b, c]);
        }
    }

    fn write_header(&self, encoding: u8, out: &mut Vec<u8>) {
        out.extend_from_slice(&[b'H', b'Y', b'L', b'L', encoding, 0, 0, 0]);
        out.extend_from_slice(&self.cached.unwrap_or(1 << 63).to_le_bytes());
    }

    fn write_sparse(&self, out: &mut Vec<u8>) {
        for run in self.registers.chunk_by(|a, b| a == b) {
            let register = run.first().copied().unwrap_or(0);
            if register != 0 {
                for part in run.chunks(4) {
                    out.push(0x80 | (register - 1) << 2 | (part.len() - 1) as u8);
                }
            } else if run.len() <= 64 {
                out.push((run.len() - 1) as u8);
            } else {
                let [low, high, ..] = (run.len() - 1).to_le_bytes();
                out.extend_from_slice(&[0x40 | high, low]);
            }
        }
    }
}

/// The share of registers that are 0, as a term of the estimate.
fn sigma(mut x: f64) -> f64 {
    if x == 1.0 {
        return f64::INFINITY;
    }
    let (mut y, mut z) = (1.0, x);
    loop {
        x *= x;
        let before = z;
        z += x * y;
        y += y;
        if before == z {
            return z;
        }
    }
}

/// The share of registers that are full, as a term of the estimate.
fn tau(mut x: f64) -> f64 {
    if x == 0.0 || x == 1.0 {
        return 0.0;
    }
    let (mut y, mut z) = (1.0, 1.0 - x);
    loop {
        x = x.sqrt();
        let before = z;
        y *= 0.5;
        z -= (1.0 - x) * (1.0 - x) * y;
        if before == z {
            return z / 3.0;
        }
    }
}

/// MurmurHash2, the variant of 64 bits, with which Redis hashes.
fn hash(bytes: &[u8]) -> u64 {
    const FACTOR: u64 = 0xc6a4_a793_5bd1_e995;
    let mut hash = HASH_SEED ^ (bytes.len() as u64).wrapping_mul(FACTOR);
    let (words, tail) = bytes.as_chunks::<8>();
    for word in words {
        let mut word = u64::from_le_bytes(*word).wrapping_mul(FACTOR);
        word = (word ^ word >> 47).wrapping_mul(FACTOR);
        hash = (hash ^ word).wrapping_mul(FACTOR);
    }
    if !tail.is_empty() {
        let word = tail
            .iter()
            .rev()
            .fold(0, |word, byte| word << 8 | u64::from(*byte));
        hash = (hash ^ word).wrapping_mul(FACTOR);
    }
    hash = (hash ^ hash >> 47).wrapping_mul(FACTOR);
    hash ^ hash >> 47
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn with(strings: std::ops::Range<u32>) -> Log {
        let mut log = Log::default();
        strings.for_each(|n| {
            log.add(n.to_string().as_bytes());
        });
        log
    }

    fn encoded(log: &Log) -> Vec<u8> {
        let mut bytes = Vec::new();
        log.encode(&mut bytes);
        bytes
    }

    #[test]
    fn estimates_are_close_and_survive_both_encodings() {
        let mut lengths = Vec::new();
        for count in [0, 1, 10, 100, 1_000, 10_000, 200_000] {
            let log = with(0..count);
            let estimate = log.count() as f64;
            let error = (estimate - f64::from(count)).abs() / f64::from(count.max(1));
            assert!(error < 0.03, "{count}: {estimate}");
            let bytes = encoded(&log);
            let again = Log::of(&bytes).unwrap();
            assert_eq!(again.count(), log.count());
            assert_eq!(encoded(&again), bytes);
            lengths.push(bytes.len());
        }
        assert!(lengths[2] < 64 && lengths[6] == DENSE_BYTES, "{lengths:?}");
    }

    /// `PFADD k a b c` of Redis 7.0: `GET k`.
    #[test]
    fn golden_bytes_are_those_of_redis() {
        let mut log = Log::default();
        for string in ["a", "b", "c"] {
            assert!(log.add(string.as_bytes()));
        }
        let expected = b"HYLL\x01\0\0\0\0\0\0\0\0\0\0\x80";
        assert_eq!(&encoded(&log)[..16], expected);
        assert_eq!(log.count(), 3);
    }

    #[test]
    fn merging_counts_the_union() {
        let mut log = with(0..3_000);
        log.merge(&with(2_000..5_000));
        assert_eq!(log.count(), with(0..5_000).count());
    }

    proptest! {
        #[test]
        fn any_bytes_are_refused_or_read(mut bytes: Vec<u8>, sparse: bool) {
            let _ = Log::of(&bytes);
            let mut value = b"HYLL\x01\0\0\0\0\0\0\0\0\0\0\x80".to_vec();
            if !sparse {
                value[4] = 0;
            }
            value.append(&mut bytes);
            if let Ok(log) = Log::of(&value) {
                prop_assert!(log.count() < u64::MAX);
            }
        }
    }
}
