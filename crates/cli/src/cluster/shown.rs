//! Sizes and times for people.

/// A number of bytes with a unit of 1024s.
pub(super) fn bytes(bytes: u64) -> String {
    let units = ["kb", "mb", "gb", "tb", "pb"];
    let mut value = bytes as f64;
    let mut shown = format!("{bytes}b");
    for unit in units {
        if value < 1024.0 {
            break;
        }
        value /= 1024.0;
        let digits = usize::from(value < 10.0);
        shown = format!("{value:.digits$}{unit}");
    }
    shown
}

/// Milliseconds in the usual units.
pub(super) fn span(ms: u64) -> String {
    match ms {
        0..10_000 => format!("{:.1}s", ms as f64 / 1000.0),
        10_000..600_000 => format!("{}s", ms / 1000),
        _ => format!("{}m", ms / 60_000),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_and_times_are_short() {
        assert_eq!(bytes(0), "0b");
        assert_eq!(bytes(1023), "1023b");
        assert_eq!(bytes(1536), "1.5kb");
        assert_eq!(bytes(10 << 20), "10mb");
        assert_eq!(bytes(u64::MAX), "16384pb");
        assert_eq!(span(1234), "1.2s");
        assert_eq!(span(61_000), "61s");
        assert_eq!(span(6_000_000), "100m");
    }
}
