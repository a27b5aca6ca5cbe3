//! Floating-point numbers of `INCRBYFLOAT`.
//!
//! Decimal texts are added exactly if they fit (17 digits after the point, about 10^21 before it).
//! So the sums have none of the rounding errors of Redis's `long double`. Larger or finer numbers
//! are added as `f64`.

use duramen_wire::resp::number::parse_double;

/// Digits that [`Float::Fixed`] keeps after the point: as many as Redis prints.
const FRACTION_DIGITS: i32 = 17;
const FIXED_ONE: u128 = 10u128.pow(FRACTION_DIGITS as u32);
/// Longest text that is read as a number, as in Redis.
const TEXT_BYTES_MAX: usize = 5 * 1024;

/// A number from a value or an argument.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Float {
    /// The number in units of 10^-17, exactly.
    Fixed(i128),
    /// A number that is too large or too fine for `Fixed`.
    Binary(f64),
}

impl Float {
    /// Reads a decimal number; `None` for anything else, NaN included.
    pub(crate) fn parse(text: &[u8]) -> Option<Float> {
        if text.is_empty() || text.len() > TEXT_BYTES_MAX {
            return None;
        }
        if let Some(fixed) = parse_fixed(text) {
            return Some(Float::Fixed(fixed));
        }
        let value = parse_double(text)?;
        let spelled_infinite = text.iter().any(|b| matches!(b, b'i' | b'I'));
        if value.is_nan() || value.is_infinite() && !spelled_infinite {
            return None;
        }
        Some(Float::Binary(value))
    }

    pub(crate) fn value(self) -> f64 {
        match self {
            Float::Fixed(units) => {
                // The number is converted through its text, so that it is rounded once.
                let mut text = Vec::new();
                write_fixed(units, &mut text);
                let text = std::str::from_utf8(&text).ok();
                text.and_then(|text| text.parse().ok()).unwrap_or(0.0)
            }
            Float::Binary(value) => value,
        }
    }

    /// The sum; `None` if it is not finite.
    pub(crate) fn add(self, other: Float) -> Option<Float> {
        if let (Float::Fixed(a), Float::Fixed(b)) = (self, other)
            && let Some(sum) = a.checked_add(b)
        {
            return Some(Float::Fixed(sum));
        }
        let sum = self.value() + other.value();
        sum.is_finite().then_some(Float::Binary(sum))
    }

    /// Appends the number without exponent or trailing zeros.
    pub(crate) fn write(self, out: &mut Vec<u8>) {
        match self {
            Float::Fixed(units) => write_fixed(units, out),
            Float::Binary(value) => out.extend_from_slice(format!("{value}").as_bytes()),
        }
    }
}

fn parse_fixed(text: &[u8]) -> Option<i128> {
    let (negative, mut rest) = match text {
        [b'-', rest @ ..] => (true, rest),
        [b'+', rest @ ..] => (false, rest),
        rest => (false, rest),
    };
    let (mut digits, mut scale, mut seen, mut point) = (0i128, 0i32, false, false);
    while let [byte, tail @ ..] = rest {
        match byte {
            b'0'..=b'9' => {
                digits = digits
                    .checked_mul(10)?
                    .checked_add(i128::from(byte - b'0'))?;
                scale += i32::from(point);
                seen = true;
            }
            b'.' if !point => point = true,
            _ => break,
        }
        rest = tail;
    }
    if !seen {
        return None;
    }
    if let [b'e' | b'E', exponent @ ..] = rest {
        let exponent = std::str::from_utf8(exponent).ok()?;
        scale = scale.checked_sub(exponent.parse::<i16>().ok()?.into())?;
    } else if !rest.is_empty() {
        return None;
    }
    let shift = FRACTION_DIGITS - scale;
    let power = 10i128.checked_pow(shift.unsigned_abs())?;
    let units = if shift >= 0 {
        digits.checked_mul(power)?
    } else if digits % power == 0 {
        digits / power
    } else {
        return None;
    };
    Some(if negative { -units } else { units })
}

fn write_fixed(units: i128, out: &mut Vec<u8>) {
    if units < 0 {
        out.push(b'-');
    }
    let magnitude = units.unsigned_abs();
    out.extend_from_slice((magnitude / FIXED_ONE).to_string().as_bytes());
    let fraction = magnitude % FIXED_ONE;
    if fraction != 0 {
        let digits = format!(".{fraction:017}");
        out.extend_from_slice(digits.trim_end_matches('0').as_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn floats_add_without_rounding_noise() {
        for (a, b, expected) in [
            ("10.50", "0.1", "10.6"),
            ("5.0e3", "2.0e2", "5200"),
            ("0.1", "0.2", "0.3"),
            ("3", "-3.5", "-0.5"),
            ("0", "0", "0"),
            ("1e-17", "0", "0.00000000000000001"),
            ("1e30", "1", "1000000000000000000000000000000"),
            ("-0.0", "0", "0"),
            ("123456789.123456789", "1", "123456790.123456789"),
        ] {
            let read = |text: &str| Float::parse(text.as_bytes()).expect("a number");
            let mut out = Vec::new();
            read(a).add(read(b)).expect("finite").write(&mut out);
            assert_eq!(String::from_utf8_lossy(&out), expected, "{a} + {b}");
        }
        let huge = Float::parse(b"1e308").expect("a number");
        assert_eq!(huge.add(huge), None);
    }

    #[test]
    fn only_numbers_are_read() {
        for junk in [
            "", " 1", "1 ", "abc", "nan", "1e999", "1.2.3", "e5", "-", ".",
        ] {
            assert_eq!(Float::parse(junk.as_bytes()), None, "{junk:?}");
        }
        assert!(
            Float::parse(b"inf")
                .expect("accepted")
                .value()
                .is_infinite()
        );
    }
}
