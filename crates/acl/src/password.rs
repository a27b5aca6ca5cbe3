//! Passwords: their digests, the comparison, and new random ones.

use ring::digest::{SHA256, digest};
use ring::rand::{SecureRandom, SystemRandom};
use std::fmt;

const DIGEST_BYTES: usize = 32;

/// SHA-256 of a password: the form in which Redis keeps and prints passwords.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Digest([u8; DIGEST_BYTES]);

impl Digest {
    pub fn of(password: &[u8]) -> Digest {
        let mut bytes = [0; DIGEST_BYTES];
        bytes.copy_from_slice(digest(&SHA256, password).as_ref());
        Digest(bytes)
    }

    /// Reads 64 lower-case hexadecimal digits; returns `None` if the text is something else.
    pub fn parse(text: &[u8]) -> Option<Digest> {
        let mut bytes = [0; DIGEST_BYTES];
        if text.len() != 2 * DIGEST_BYTES {
            return None;
        }
        for (byte, pair) in bytes.iter_mut().zip(text.chunks_exact(2)) {
            for digit in pair {
                let value = match digit {
                    b'0'..=b'9' => digit - b'0',
                    b'a'..=b'f' => digit - b'a' + 10,
                    _ => return None,
                };
                *byte = *byte << 4 | value;
            }
        }
        Some(Digest(bytes))
    }

    /// Compares in a time that does not depend on the bytes.
    pub(crate) fn is(&self, other: &Digest) -> bool {
        let pairs = self.0.iter().zip(&other.0);
        let different = pairs.fold(0, |different, (a, b)| different | a ^ b);
        std::hint::black_box(different) == 0
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Digest(..)")
    }
}

/// A new password of `bits` bits (rounded up to whole digits) as hexadecimal digits; `None`: the
/// system has no random numbers.
pub fn random_password(bits: usize) -> Option<String> {
    let digits = bits.div_ceil(4);
    let mut bytes = vec![0; digits.div_ceil(2)];
    SystemRandom::new().fill(&mut bytes).ok()?;
    let mut text: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    text.truncate(digits);
    Some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_digest_is_sha_256_in_lower_case() {
        // From the standard: the digest of "abc".
        let abc = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert_eq!(Digest::of(b"abc").to_string(), abc);
        assert!(Digest::parse(abc.as_bytes()) == Some(Digest::of(b"abc")));
        assert!(Digest::parse(abc.to_uppercase().as_bytes()).is_none());
        assert!(Digest::parse(&abc.as_bytes()[1..]).is_none());
        assert!(Digest::of(b"abc").is(&Digest::of(b"abc")));
        assert!(!Digest::of(b"abc").is(&Digest::of(b"abd")));
    }

    #[test]
    fn random_passwords_have_the_wanted_length_and_differ() {
        for (bits, digits) in [(1, 1), (4, 1), (5, 2), (256, 64), (4096, 1024)] {
            assert_eq!(random_password(bits).expect("random").len(), digits);
        }
        assert_ne!(random_password(256), random_password(256));
    }
}
