//! The longest common subsequence of two strings, and the runs of bytes in which they agree.
//!
//! - L1: at most [`CELLS_MAX`] pairs of bytes are compared, so a request takes some 10 ms at most.

use std::ops::Range;

/// Maximum product of the lengths of the two strings.
pub const CELLS_MAX: usize = 1 << 22;

/// The longest common subsequence of two strings.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Common {
    pub bytes: Vec<u8>,
    /// Runs of equal bytes in both strings, the last first.
    pub runs: Vec<(Range<usize>, Range<usize>)>,
}

/// Finds the longest common subsequence; `None` if the strings are too long (L1).
pub fn common(a: &[u8], b: &[u8]) -> Option<Common> {
    if a.len().saturating_mul(b.len()) > CELLS_MAX {
        return None;
    }
    // Row i has the lengths for the first i bytes of `a`, column j for the first j bytes of `b`.
    let width = b.len() + 1;
    let mut lengths = vec![0u32; width * (a.len() + 1)];
    for (i, x) in (1..).zip(a) {
        let (above, row) = lengths.split_at_mut_checked(i * width)?;
        let above = above.get((i - 1) * width..)?;
        let mut left = 0;
        for ((y, pair), place) in b.iter().zip(above.windows(2)).zip(row.iter_mut().skip(1)) {
            let [diagonal, up] = *pair else { return None };
            left = if x == y { diagonal + 1 } else { left.max(up) };
            *place = left;
        }
    }
    let length = |i: usize, j: usize| lengths.get(i * width + j).copied().unwrap_or(0);
    let (mut i, mut j) = (a.len(), b.len());
    let mut result = Common::default();
    while i > 0 && j > 0 {
        let (x, y) = (a.get(i - 1)?, b.get(j - 1)?);
        if x == y {
            result.bytes.push(*x);
            match result.runs.last_mut() {
                Some((in_a, in_b)) if in_a.start == i && in_b.start == j => {
                    (in_a.start, in_b.start) = (i - 1, j - 1);
                }
                _ => result.runs.push((i - 1..i, j - 1..j)),
            }
            (i, j) = (i - 1, j - 1);
        } else if length(i - 1, j) > length(i, j - 1) {
            i -= 1;
        } else {
            j -= 1;
        }
    }
    result.bytes.reverse();
    Some(result)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The example of Redis's documentation.
    #[test]
    fn runs_are_those_of_redis() {
        let found = common(b"ohmytext", b"mynewtext").unwrap();
        assert_eq!(found.bytes, b"mytext");
        assert_eq!(found.runs, [(4..8, 5..9), (2..4, 0..2)]);
        assert_eq!(common(b"", b"x").unwrap(), Common::default());
    }

    #[test]
    fn long_strings_are_refused() {
        assert!(common(&[0; 2048], &[0; 2048]).is_some());
        assert_eq!(common(&[0; 2048], &[0; 2049]), None);
    }
}
