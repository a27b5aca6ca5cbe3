//! Decimal integers, as Redis reads them.

/// Longest text of an `i64`: sign and 19 digits.
pub const INTEGER_BYTES_MAX: usize = 20;

/// Parses a decimal integer by Redis's `string2ll` rules: no sign but a leading `-`, no leading
/// zeros, no `-0`, no spaces, nothing after it, range of `i64`.
#[inline]
#[must_use]
pub fn parse_integer(text: &[u8]) -> Option<i64> {
    let (negative, digits) = match text.split_first() {
        Some((b'-', rest)) => (true, rest),
        _ => (false, text),
    };
    match digits {
        [b'0'] if !negative => return Some(0),
        [b'1'..=b'9', ..] if digits.len() < INTEGER_BYTES_MAX => {}
        _ => return None,
    }
    // At most 19 digits: below 10^19, which fits u64.
    let mut magnitude = 0u64;
    for &byte in digits {
        let digit = byte.wrapping_sub(b'0');
        if digit > 9 {
            return None;
        }
        magnitude = magnitude * 10 + u64::from(digit);
    }
    if negative {
        0i64.checked_sub_unsigned(magnitude)
    } else {
        i64::try_from(magnitude).ok()
    }
}
