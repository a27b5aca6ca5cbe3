//! Numbers as C's `printf` writes them.

/// A number as `%.{digits}g` writes it; `digits` from 1 to 17.
pub(crate) fn general(number: f64, digits: usize) -> String {
    if number.is_nan() {
        return if number.is_sign_negative() {
            "-nan"
        } else {
            "nan"
        }
        .to_owned();
    }
    if number.is_infinite() {
        return if number < 0.0 { "-inf" } else { "inf" }.to_owned();
    }
    let digits = digits.clamp(1, 17);
    let text = format!("{:.*e}", digits - 1, number);
    let (mantissa, exponent) = text.split_once('e').unwrap_or((&text, "0"));
    let exponent: i32 = exponent.parse().unwrap_or_default();
    if exponent < -4 || exponent >= digits as i32 {
        let sign = if exponent < 0 { '-' } else { '+' };
        return format!(
            "{}e{sign}{:02}",
            shortened(mantissa),
            exponent.unsigned_abs()
        );
    }
    let decimals = (digits as i32 - 1 - exponent).max(0) as usize;
    shortened(&format!("{number:.decimals$}")).to_owned()
}

/// The text without zeros at the end of its decimals.
fn shortened(text: &str) -> &str {
    if text.contains('.') {
        text.trim_end_matches('0').trim_end_matches('.')
    } else {
        text
    }
}

/// An integer as C converts a `double` to `long long` on x86-64: a number that is NaN or too large
/// becomes the smallest integer.
pub(crate) fn to_integer(number: f64) -> i64 {
    let range = -9_223_372_036_854_775_808.0..9_223_372_036_854_775_808.0;
    if range.contains(&number) {
        number as i64
    } else {
        i64::MIN
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_written_as_c_writes_them() {
        for (number, digits, text) in [
            (0.1, 17, "0.10000000000000001"),
            (0.1, 14, "0.1"),
            (3.0, 17, "3"),
            (-0.0, 17, "-0"),
            (1e15, 14, "1e+15"),
            (1e14, 14, "1e+14"),
            (123456789012345.0, 14, "1.2345678901234e+14"),
            (1e-5, 17, "1.0000000000000001e-05"),
            (1e100, 17, "1e+100"),
            (0.0001, 14, "0.0001"),
            (9.5, 1, "1e+01"),
            (99999.0, 3, "1e+05"),
            (f64::INFINITY, 17, "inf"),
            (f64::NEG_INFINITY, 17, "-inf"),
        ] {
            assert_eq!(general(number, digits), text);
        }
        assert_eq!(to_integer(-3.99), -3);
        assert_eq!(to_integer(f64::NAN), i64::MIN);
        assert_eq!(to_integer(9.3e18), i64::MIN);
    }
}
