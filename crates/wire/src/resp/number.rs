//! Decimal integers and doubles in RESP's form. Shared with commands whose arguments are numbers.

pub use duramen_base::number::{INTEGER_BYTES_MAX, parse_integer};

/// `00` to `99`: two digits per division halve the divisions.
static PAIRS: [[u8; 2]; 100] = pairs();

// Only the compiler evaluates this: an index out of range would not compile.
#[allow(clippy::indexing_slicing)]
const fn pairs() -> [[u8; 2]; 100] {
    let mut table = [[0; 2]; 100];
    let mut n = 0;
    while n < 100 {
        table[n] = [b'0' + (n / 10) as u8, b'0' + (n % 10) as u8];
        n += 1;
    }
    table
}

/// End of the digits in the buffer of an [`IntegerText`]: the prefix fits before the longest
/// number, the line end after it.
const DIGITS_END: usize = 22;
/// A frame of any integer (prefix, 20 bytes of text, CR LF) is copied as this many bytes, whatever
/// its length: a copy of constant length is a few moves, a copy of variable length is a call.
const FRAME_BYTES: usize = 24;

/// Text of an integer, built from its end.
pub struct IntegerText {
    /// The text, with room for a copy of `FRAME_BYTES` from any start.
    bytes: [u8; DIGITS_END + FRAME_BYTES],
    start: usize,
}

impl IntegerText {
    /// Formats `value`.
    #[inline]
    #[must_use]
    pub fn new(value: i64) -> IntegerText {
        let mut text = IntegerText::unsigned(value.unsigned_abs());
        if value < 0 {
            text.push_front(b'-');
        }
        text
    }

    /// Formats `value`, which may be above `i64::MAX`.
    #[inline]
    #[must_use]
    pub fn unsigned(mut value: u64) -> IntegerText {
        let mut text = IntegerText {
            bytes: [0; DIGITS_END + FRAME_BYTES],
            start: DIGITS_END,
        };
        while value >= 100 {
            let [tens, ones] = pair(value % 100);
            value /= 100;
            text.push_front(ones);
            text.push_front(tens);
        }
        let [tens, ones] = pair(value);
        text.push_front(ones);
        if value >= 10 {
            text.push_front(tens);
        }
        text
    }

    /// The digits.
    #[inline]
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        self.bytes.get(self.start..DIGITS_END).unwrap_or_default()
    }

    #[inline]
    fn push_front(&mut self, byte: u8) {
        self.start = self.start.saturating_sub(1);
        if let Some(place) = self.bytes.get_mut(self.start) {
            *place = byte;
        }
    }
}

#[inline]
fn pair(below_100: u64) -> [u8; 2] {
    PAIRS.get(below_100 as usize).copied().unwrap_or_default()
}

/// Appends the decimal text of `value`.
pub fn write_integer(out: &mut Vec<u8>, value: i64) {
    out.extend_from_slice(IntegerText::new(value).as_bytes());
}

/// Appends `kind`, the decimal text of `value`, CR LF.
#[inline]
pub(super) fn write_frame(out: &mut Vec<u8>, kind: u8, value: i64) {
    // The common lengths take one store each; no cast loses bits at these values.
    let digit = |value: i64| b'0' + (value % 10) as u8;
    match value {
        0..=9 => out.extend_from_slice(&[kind, digit(value), b'\r', b'\n']),
        10..=99 => out.extend_from_slice(&[kind, digit(value / 10), digit(value), b'\r', b'\n']),
        100..=999 => out.extend_from_slice(&[
            kind,
            digit(value / 100),
            digit(value / 10),
            digit(value),
            b'\r',
            b'\n',
        ]),
        _ => write_long_frame(out, kind, value),
    }
}

fn write_long_frame(out: &mut Vec<u8>, kind: u8, value: i64) {
    let mut text = IntegerText::new(value);
    text.push_front(kind);
    text.bytes[DIGITS_END] = b'\r';
    text.bytes[DIGITS_END + 1] = b'\n';
    let frame = text
        .bytes
        .get(text.start..)
        .and_then(|frame| frame.first_chunk::<FRAME_BYTES>());
    if let Some(frame) = frame {
        let end = out.len() + (DIGITS_END + 2 - text.start);
        out.extend_from_slice(frame);
        out.truncate(end);
    }
}

/// The number that is the whole text, as C's `strtod` reads it: decimal, hexadecimal (`0x1.8p3`),
/// `inf`, `nan`. Blanks before the number are refused. A number that is too large is infinite.
#[must_use]
pub fn parse_double(text: &[u8]) -> Option<f64> {
    let decimal = std::str::from_utf8(text).ok()?.parse().ok();
    decimal.or_else(|| parse_hexadecimal(text))
}

#[cold]
fn parse_hexadecimal(text: &[u8]) -> Option<f64> {
    let (sign, text) = match text {
        [b'-', rest @ ..] => (-1.0, rest),
        [b'+', rest @ ..] => (1.0, rest),
        rest => (1.0, rest),
    };
    let [b'0', b'x' | b'X', rest @ ..] = text else {
        return None;
    };
    let mut rest = rest;
    let (mut value, mut scale, mut point, mut digits) = (0.0_f64, 0_i32, false, false);
    while let [byte, tail @ ..] = rest {
        match char::from(*byte).to_digit(16) {
            Some(digit) => {
                value = value * 16.0 + f64::from(digit);
                scale = scale.saturating_sub(4 * i32::from(point));
                digits = true;
            }
            None if *byte == b'.' && !point => point = true,
            None => break,
        }
        rest = tail;
    }
    if !digits {
        return None;
    }
    if let [b'p' | b'P', exponent @ ..] = rest {
        let exponent: i16 = std::str::from_utf8(exponent).ok()?.parse().ok()?;
        scale = scale.saturating_add(exponent.into());
    } else if !rest.is_empty() {
        return None;
    }
    Some(sign * value * 2.0_f64.powi(scale))
}

/// Integers up to this are written without an exponent.
const PLAIN_INTEGER_MAX: f64 = (i64::MAX / 2) as f64;

/// The shortest text that reads back as the same double, with `inf`, `-inf`, `nan`, and an
/// exponent where Redis 7.2 and later write one (`1e+30`, `5.31e-5`).
#[must_use]
pub fn format_double(value: f64) -> String {
    if value.is_nan() {
        return "nan".to_owned();
    }
    if value.is_infinite() {
        return if value > 0.0 { "inf" } else { "-inf" }.to_owned();
    }
    if value.fract() == 0.0 && value.abs() <= PLAIN_INTEGER_MAX {
        return format!("{value}");
    }
    let text = format!("{value:e}");
    let Some((shown, exponent)) = text.split_once('e') else {
        return text;
    };
    let digits = shown.bytes().filter(u8::is_ascii_digit).count() as i32;
    let exponent: i32 = exponent.parse().unwrap_or(0);
    // `last` is the exponent of the last digit.
    let last = exponent - (digits - 1);
    let is_plain = if last >= 0 {
        exponent < digits + 7
    } else {
        last > -7 || exponent.abs() < 4
    };
    match is_plain {
        true => format!("{value}"),
        false if exponent >= 0 => format!("{shown}e+{exponent}"),
        false => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn parses_only_canonical_decimals() {
        for (text, value) in [
            ("0", 0),
            ("7", 7),
            ("-1", -1),
            ("9223372036854775807", i64::MAX),
            ("-9223372036854775808", i64::MIN),
        ] {
            assert_eq!(parse_integer(text.as_bytes()), Some(value), "{text}");
        }
        for text in [
            "",
            "-",
            "+1",
            "01",
            "-0",
            "-01",
            "1 ",
            " 1",
            "1a",
            "0x1",
            "9223372036854775808",
            "-9223372036854775809",
            "18446744073709551616",
            "99999999999999999999",
            "184467440737095516150",
        ] {
            assert_eq!(parse_integer(text.as_bytes()), None, "{text}");
        }
    }

    #[test]
    fn doubles_are_short_and_read_back() {
        for (value, text) in [
            (0.0, "0"),
            (3.0, "3"),
            (-0.1, "-0.1"),
            (1e17, "100000000000000000"),
            (5.5e20, "5.5e+20"),
            (123_456_789_012_345_680_000.0, "123456789012345680000"),
            (1e30, "1e+30"),
            (1e-6, "0.000001"),
            (5.3e-5, "0.000053"),
            (5.31e-5, "5.31e-5"),
            (0.001_234_567, "0.001234567"),
            (-1.5e-7, "-1.5e-7"),
            (-0.0, "-0"),
            (f64::INFINITY, "inf"),
            (f64::NEG_INFINITY, "-inf"),
        ] {
            assert_eq!(format_double(value), text);
        }
        assert_eq!(format_double(f64::NAN), "nan");
    }

    #[test]
    fn doubles_are_read_as_by_c() {
        for (text, value) in [
            ("1.5", 1.5),
            (".5", 0.5),
            ("1e309", f64::INFINITY),
            ("-inf", f64::NEG_INFINITY),
            ("0x10", 16.0),
            ("-0X1F", -31.0),
            ("0x1.8p3", 12.0),
            ("0x.8", 0.5),
            ("0x1p-2", 0.25),
        ] {
            assert_eq!(parse_double(text.as_bytes()), Some(value), "{text}");
        }
        for text in [
            "", " 1", "1 ", "0x", "0x.", "0xg", "0x1p", "0x1pz", "x10", "(1", "1_0",
        ] {
            assert_eq!(parse_double(text.as_bytes()), None, "{text}");
        }
    }

    proptest! {
        #[test]
        fn integers_agree_with_the_standard_library(value: i64, unsigned: u64) {
            let mut text = Vec::new();
            write_integer(&mut text, value);
            prop_assert_eq!(&text, &value.to_string().into_bytes());
            prop_assert_eq!(parse_integer(&text), Some(value));
            prop_assert_eq!(IntegerText::unsigned(unsigned).as_bytes().to_vec(), unsigned.to_string().into_bytes());
        }

        #[test]
        fn parsing_agrees_with_the_standard_library(text in "-?[0-9]{1,21}") {
            let canonical = !(text.starts_with("-0") || (text.starts_with('0') && text.len() > 1));
            prop_assert_eq!(parse_integer(text.as_bytes()), text.parse().ok().filter(|_| canonical));
        }

        #[test]
        fn doubles_read_back(bits: u64) {
            let value = f64::from_bits(bits);
            prop_assume!(!value.is_nan());
            prop_assert_eq!(format_double(value).parse::<f64>().ok(), Some(value));
        }
    }
}
