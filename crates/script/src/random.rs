//! The generator of `math.random`. It is Redis's, so that a script that seeds it draws the same
//! numbers as there.

use std::hash::{BuildHasher, RandomState};

/// The multiplier and the addend of `drand48`.
const MULTIPLIER: u64 = 0x5_DEEC_E66D;
const ADDEND: u64 = 0xB;
/// The low bits of a seeded state.
const LOW: u64 = 0x330E;
const STATE_BITS: u64 = (1 << 48) - 1;
/// Redis's largest number.
const MOST: u64 = i32::MAX as u64;

#[derive(Clone, Copy, Debug)]
pub(crate) struct Generator(u64);

impl Generator {
    pub(crate) fn seeded(seed: i32) -> Generator {
        Generator(u64::from(seed as u32) << 16 | LOW)
    }

    /// A generator with a seed that nobody knows.
    pub(crate) fn unknown() -> Generator {
        Generator::seeded(RandomState::new().hash_one(0) as i32)
    }

    /// The next number, from 0 to 1, without 1.
    pub(crate) fn next(&mut self) -> f64 {
        self.0 = self.0.wrapping_mul(MULTIPLIER).wrapping_add(ADDEND) & STATE_BITS;
        ((self.0 >> 17) % MOST) as f64 / MOST as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sequence_is_that_of_drand48() {
        let mut generator = Generator::seeded(0);
        let first = generator.next();
        assert!((first - 0.170828036106).abs() < 1e-9, "{first}");
    }
}
