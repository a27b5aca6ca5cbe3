//! Bitmaps and bit fields inside plain strings. Bit 0 is the highest bit of the first byte. Bits
//! behind the end are 0.

/// The treatment of a number that does not fit its field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Overflow {
    /// The field gets the lowest bits of the number.
    Wrap,
    /// The field gets the nearest number that fits.
    Saturate,
    /// Nothing is written.
    Fail,
}

/// The form of a field: 1 to 64 bits if signed, else 1 to 63.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Form {
    pub is_signed: bool,
    pub bits: u32,
}

/// The bit at a position.
#[inline]
pub fn bit(bytes: &[u8], at: usize) -> bool {
    bytes
        .get(at / 8)
        .is_some_and(|byte| byte >> (7 - at % 8) & 1 == 1)
}

/// Sets a bit inside the bytes; returns the bit before.
pub fn set_bit(bytes: &mut [u8], at: usize, to: bool) -> bool {
    let Some(byte) = bytes.get_mut(at / 8) else {
        return false;
    };
    let mask = 0x80 >> (at % 8);
    let before = *byte & mask != 0;
    if to {
        *byte |= mask;
    } else {
        *byte &= !mask;
    }
    before
}

/// Number of bits that are 1 from bit `start` to bit `end`, which is not counted.
pub fn count(bytes: &[u8], start: usize, end: usize) -> u64 {
    let end = end.min(bytes.len() * 8);
    if start >= end {
        return 0;
    }
    let (first, last) = (start / 8, (end - 1) / 8);
    let whole = bytes.get(first..=last).unwrap_or_default();
    let (words, rest) = whole.as_chunks::<8>();
    let words: u64 = words
        .iter()
        .map(|word| u64::from(u64::from_ne_bytes(*word).count_ones()))
        .sum();
    let rest: u64 = rest.iter().map(|byte| u64::from(byte.count_ones())).sum();
    let outside = |range: std::ops::Range<usize>| range.filter(|at| bit(bytes, *at)).count() as u64;
    words + rest - outside(first * 8..start) - outside(end..last * 8 + 8)
}

/// The first bit with the value `wanted` from bit `start` to bit `end`, which is not searched.
pub fn position(bytes: &[u8], wanted: bool, start: usize, end: usize) -> Option<usize> {
    let end = end.min(bytes.len() * 8);
    let skipped = if wanted { 0 } else { 0xff };
    let mut at = start;
    while at < end {
        if at.is_multiple_of(8) {
            let rest = bytes.get(at / 8..end.div_ceil(8)).unwrap_or_default();
            at += 8 * rest.iter().take_while(|byte| **byte == skipped).count();
            if at >= end {
                break;
            }
        }
        if bit(bytes, at) == wanted {
            return Some(at);
        }
        at += 1;
    }
    None
}

/// The number in a field.
pub fn field(bytes: &[u8], form: Form, at: usize) -> i128 {
    let mut value = 0u64;
    for n in 0..form.bits as usize {
        value = value << 1 | u64::from(bit(bytes, at + n));
    }
    read(value, form)
}

/// The lowest bits of a word as the field's number.
fn read(word: u64, form: Form) -> i128 {
    let unused = 64 - form.bits;
    if form.is_signed {
        i128::from((word << unused) as i64 >> unused)
    } else {
        i128::from(word << unused >> unused)
    }
}

/// Writes the lowest bits of a number into a field inside the bytes.
pub fn set_field(bytes: &mut [u8], form: Form, at: usize, value: i128) {
    for n in 0..form.bits as usize {
        let place = form.bits as usize - 1 - n;
        set_bit(bytes, at + n, value >> place & 1 == 1);
    }
}

/// The number that a field takes for `value`; `None`: the field takes none.
pub fn fit(value: i128, form: Form, overflow: Overflow) -> Option<i128> {
    let (min, max) = if form.is_signed {
        (-(1i128 << (form.bits - 1)), (1i128 << (form.bits - 1)) - 1)
    } else {
        (0, (1i128 << form.bits) - 1)
    };
    if (min..=max).contains(&value) {
        return Some(value);
    }
    match overflow {
        Overflow::Fail => None,
        Overflow::Saturate => Some(value.clamp(min, max)),
        Overflow::Wrap => Some(read(value as u64, form)),
    }
}

/// An operation on whole strings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    And,
    Or,
    Xor,
    Not,
}

/// Applies an operation to strings; zeros follow the shorter ones. `Not` takes the first string.
pub fn combine<'a>(operation: Operation, sources: impl Iterator<Item = &'a [u8]>) -> Vec<u8> {
    let mut result: Option<Vec<u8>> = None;
    for source in sources {
        let Some(result) = &mut result else {
            result = Some(source.to_vec());
            continue;
        };
        result.resize(result.len().max(source.len()), 0);
        let (same, longer) = result.split_at_mut(source.len());
        if operation == Operation::And {
            longer.fill(0);
        }
        for (byte, other) in same.iter_mut().zip(source) {
            match operation {
                Operation::And => *byte &= other,
                Operation::Or => *byte |= other,
                Operation::Xor => *byte ^= other,
                Operation::Not => {}
            }
        }
    }
    let mut result = result.unwrap_or_default();
    if operation == Operation::Not {
        result.iter_mut().for_each(|byte| *byte = !*byte);
    }
    result
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn bytes() -> impl Strategy<Value = Vec<u8>> {
        let byte = prop_oneof![Just(0u8), Just(255), any::<u8>()];
        proptest::collection::vec(byte, 0..40)
    }

    proptest! {
        #[test]
        fn counts_and_positions_agree_with_single_bits(
            bytes in bytes(),
            start in 0usize..340, end in 0usize..340, wanted: bool,
        ) {
            let bits: Vec<bool> = (0..bytes.len() * 8).map(|at| bit(&bytes, at)).collect();
            let inside = || (start..end.min(bits.len())).filter(|at| bits[*at] == wanted);
            if wanted {
                prop_assert_eq!(count(&bytes, start, end), inside().count() as u64);
            }
            prop_assert_eq!(position(&bytes, wanted, start, end), inside().next());
        }

        #[test]
        fn a_field_keeps_what_fits(
            is_signed: bool, bits in 1u32..=63, at in 0usize..70, value: i64, old: [u8; 20],
        ) {
            let form = Form { is_signed, bits };
            let mut bytes = old;
            let fits = fit(value.into(), form, Overflow::Wrap).unwrap();
            set_field(&mut bytes, form, at, fits);
            prop_assert_eq!(field(&bytes, form, at), fits);
            let outside = (0..160).filter(|n| !(at..at + bits as usize).contains(n));
            for n in outside {
                prop_assert_eq!(bit(&bytes, n), bit(&old, n));
            }
            let failing = fit(value.into(), form, Overflow::Fail);
            prop_assert_eq!(failing.is_some(), fits == i128::from(value));
        }
    }

    #[test]
    fn overflow_has_three_answers() {
        let (u8_form, i8_form) = (
            Form {
                is_signed: false,
                bits: 8,
            },
            Form {
                is_signed: true,
                bits: 8,
            },
        );
        for (value, form, wrap, saturate) in [
            (256, u8_form, 0, 255),
            (-1, u8_form, 255, 0),
            (128, i8_form, -128, 127),
            (-129, i8_form, 127, -128),
        ] {
            assert_eq!(fit(value, form, Overflow::Wrap), Some(wrap));
            assert_eq!(fit(value, form, Overflow::Saturate), Some(saturate));
            assert_eq!(fit(value, form, Overflow::Fail), None);
        }
    }

    #[test]
    fn strings_of_different_lengths_are_combined() {
        let sources = [&b"\xff\x0f"[..], b"\x0f"];
        for (operation, result) in [
            (Operation::And, &b"\x0f\x00"[..]),
            (Operation::Or, b"\xff\x0f"),
            (Operation::Xor, b"\xf0\x0f"),
        ] {
            assert_eq!(combine(operation, sources.into_iter()), result);
            assert_eq!(combine(operation, sources.into_iter().rev()), result);
        }
        assert_eq!(combine(Operation::Not, [&b"\x0f"[..]].into_iter()), b"\xf0");
    }
}
