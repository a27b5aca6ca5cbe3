//! Speeds of disks: when a new measurement is news, and what counts for a disk that nobody has
//! measured. Bytes per second; 0: unknown.
//!
//! **Rules**
//! - B1: a speed is news if it differs from the known one by more than a quarter. The server that
//!   measures and the coordinator that stores apply this one rule, so a measurement that varies
//!   does not change the server list again and again.
//! - B2: a disk of unknown speed counts as a usual one, the median of the known speeds: never as
//!   the fastest, which would get most replicas, nor as the slowest, which would get none and so
//!   would never be measured.
//! - B3: no disk counts as more than [`TIMES_MOST`] times faster or slower than the usual one. A
//!   wrong measurement, such as that of a disk that stood still for a moment at its start, neither
//!   takes a healthy disk out of use nor brings all replicas to one disk.
//!
//! Paper: [Ousterhout15 §7.1]

/// About as many times as fast disks of flash are faster than disks with heads.
const TIMES_MOST: u64 = 16;

/// Whether a measured speed is news for a reader that has `known` (B1).
pub fn differs(known: u64, measured: u64) -> bool {
    measured != 0 && known.abs_diff(measured) > known / 4
}

/// The speed, or reading time, of a usual disk: the median of the known ones, the lower one of two
/// (B2). `None`: none is known.
pub fn usual<T: Copy + Ord + Default>(all: impl Iterator<Item = T>) -> Option<T> {
    let mut known: Vec<T> = all.filter(|one| *one != T::default()).collect();
    let middle = known.len().checked_sub(1)? / 2;
    Some(*known.select_nth_unstable(middle).1)
}

/// The speed, or reading time, by which a disk counts (B2, B3).
pub fn counted(known: u64, usual: u64) -> u64 {
    let least = (usual / TIMES_MOST).max(1);
    match known {
        0 => usual.max(1),
        known => known.clamp(least, usual.saturating_mul(TIMES_MOST).max(least)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quarter_is_no_news_and_nothing_measured_is_none_either() {
        assert!(differs(0, 1));
        assert!(!differs(0, 0) && !differs(100, 0));
        assert!(!differs(100, 100) && !differs(100, 125) && !differs(100, 75));
        assert!(differs(100, 126) && differs(100, 74));
        assert!(differs(u64::MAX, 1) && differs(1, u64::MAX));
    }

    #[test]
    fn an_unknown_disk_is_neither_the_fastest_nor_the_slowest() {
        assert_eq!(usual([0u32, 0].into_iter()), None);
        assert_eq!(usual([0u32, 7].into_iter()), Some(7));
        assert_eq!(usual([9u32, 0, 1, 5].into_iter()), Some(5));
        assert_eq!(usual([9u64, 1, 5, 7].into_iter()), Some(5));
    }

    #[test]
    fn no_measurement_excludes_a_disk() {
        assert_eq!(counted(0, 1_000), 1_000);
        assert_eq!(counted(700, 1_000), 700);
        assert_eq!(counted(1, 1_600), 100);
        assert_eq!(counted(u64::MAX, 1_000), 16_000);
        assert_eq!(counted(9, 1), 9);
        for usual in [0, 1, u64::MAX] {
            assert!(
                [0, 1, u64::MAX]
                    .iter()
                    .all(|known| counted(*known, usual) > 0)
            );
        }
    }
}
