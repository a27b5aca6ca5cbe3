//! Places in a table: slots of Redis Cluster, or hashes.

use duramen_base::ids::{KeyRange, RouteHash};

/// Slots of Redis Cluster.
const SLOTS: u32 = 1 << 14;

/// Parses `7` or `0-8191`.
pub(super) fn slots(text: &str) -> Result<KeyRange, String> {
    let (first, last) = match text.split_once('-') {
        Some((first, last)) => (slot(first)?, slot(last)?),
        None => (slot(text)?, slot(text)?),
    };
    if first > last {
        return Err(format!("{first} comes after {last}: write the lower first"));
    }
    Ok(KeyRange::new(
        RouteHash::first_of_slot(first),
        RouteHash::last_of_slot(last),
    ))
}

/// Parses a slot.
pub(super) fn slot(text: &str) -> Result<u16, String> {
    let wrong = || {
        format!(
            "`{text}` is not a slot: write a number from 0 to {}",
            SLOTS - 1
        )
    };
    let slot: u32 = text.trim().parse().map_err(|_| wrong())?;
    if slot >= SLOTS {
        return Err(wrong());
    }
    u16::try_from(slot).map_err(|_| wrong())
}

/// Parses hashes as `duramen tablet list` prints them: `0000000000000000-7fffffffffffffff`.
pub(super) fn hashes(text: &str) -> Result<KeyRange, String> {
    let (first, last) = text
        .split_once('-')
        .ok_or("write two hashes, as in 0000000000000000-7fffffffffffffff")?;
    let range = KeyRange::new(hash(first)?, hash(last)?);
    if range.first > range.last {
        return Err(format!("{first} comes after {last}: write the lower first"));
    }
    Ok(range)
}

/// Parses a hash: 1 to 16 hexadecimal digits, with or without `0x`.
pub(super) fn hash(text: &str) -> Result<RouteHash, String> {
    let digits = text.trim();
    let digits = digits.strip_prefix("0x").unwrap_or(digits);
    let wrong = |_| format!("`{text}` is not a hash: write up to 16 hexadecimal digits");
    if digits.starts_with('+') {
        return Err(format!("`{text}` is no hash"));
    }
    u64::from_str_radix(digits, 16)
        .map(RouteHash)
        .map_err(wrong)
}

/// Whether the range begins and ends at edges of slots.
pub(super) fn is_whole_slots(range: &KeyRange) -> bool {
    range.first == RouteHash::first_of_slot(range.first.slot())
        && range.last == RouteHash::last_of_slot(range.last.slot())
}

/// As slots if it consists of whole slots, as hashes otherwise.
pub(super) fn show(range: &KeyRange) -> String {
    if !is_whole_slots(range) {
        return format!("{}-{}", range.first, range.last);
    }
    match (range.first.slot(), range.last.slot()) {
        (first, last) if first == last => format!("slot {first}"),
        (first, last) => format!("slots {first}-{last}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_and_hashes_are_understood_and_shown() {
        assert_eq!(slots("0-16383"), Ok(KeyRange::ALL));
        let one = slots("16383").expect("a slot");
        assert_eq!(one.last, RouteHash::MAX);
        assert_eq!(show(&one), "slot 16383");
        assert_eq!(show(&slots("5-9").expect("slots")), "slots 5-9");
        for wrong in ["", "-", "5-", "9-5", "16384", "0-16384", "-1", "a", "70000"] {
            assert!(slots(wrong).is_err(), "{wrong}");
        }
        assert_eq!(hashes("0-ffffffffffffffff"), Ok(KeyRange::ALL));
        let part = hashes("0x10-0x1f").expect("hashes");
        assert_eq!(part, KeyRange::new(RouteHash(0x10), RouteHash(0x1f)));
        assert_eq!(hashes(&show(&part)), Ok(part));
        for wrong in ["", "1", "2-1", "x-y", "0-10000000000000000", "+1-2"] {
            assert!(hashes(wrong).is_err(), "{wrong}");
        }
    }
}
