//! Inline commands: a line of words, with the quoting rules of Redis's `sdssplitargs`.
//!
//! - Words are separated by white space. A NUL is an ordinary byte.
//! - In `"…"`: `\xHH`, `\n \r \t \b \a`, and `\` before any other byte stands for that byte.
//! - In `'…'`: only `\'` is special.
//! - A quote may open inside a word (`foo"bar"` is `foobar`), and must be followed by white space
//!   or the end when it closes.

use super::error::ProtocolError;
use super::requests::Requests;

/// Appends the words of `line` to `out` as arguments of a request that the caller ends.
///
/// # Errors
/// [`ProtocolError::UnbalancedQuotes`]; words already appended stay, for the caller to remove.
pub(super) fn split(line: &[u8], out: &mut Requests) -> Result<(), ProtocolError> {
    let mut rest = skip_spaces(line);
    while !rest.is_empty() {
        let start = out.copied.len();
        rest = skip_spaces(word(rest, &mut out.copied)?);
        if !out.close_copied_arg(start) {
            return Err(ProtocolError::TooBigRequest);
        }
    }
    Ok(())
}

/// C's `isspace`; Rust's `is_ascii_whitespace` differs from it in the vertical tab.
fn is_space(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t' | b'\n' | b'\r' | 0x0B | 0x0C)
}

fn skip_spaces(line: &[u8]) -> &[u8] {
    let spaces = line.iter().take_while(|&&byte| is_space(byte)).count();
    line.get(spaces..).unwrap_or_default()
}

/// Appends one word to `out`; returns the rest of the line.
fn word<'a>(mut rest: &'a [u8], out: &mut Vec<u8>) -> Result<&'a [u8], ProtocolError> {
    loop {
        match rest {
            [] | [b' ' | b'\n' | b'\r' | b'\t', ..] => return Ok(rest),
            [b'"', inside @ ..] => return closed(double_quoted(inside, out)?),
            [b'\'', inside @ ..] => return closed(single_quoted(inside, out)?),
            [byte, after @ ..] => {
                out.push(*byte);
                rest = after;
            }
        }
    }
}

/// A closing quote ends the word: white space or nothing must follow.
fn closed(rest: &[u8]) -> Result<&[u8], ProtocolError> {
    match rest.first() {
        Some(&byte) if !is_space(byte) => Err(ProtocolError::UnbalancedQuotes),
        _ => Ok(rest),
    }
}

fn double_quoted<'a>(mut rest: &'a [u8], out: &mut Vec<u8>) -> Result<&'a [u8], ProtocolError> {
    loop {
        rest = match rest {
            [] => return Err(ProtocolError::UnbalancedQuotes),
            [b'"', after @ ..] => return Ok(after),
            [b'\\', b'x', high, low, after @ ..]
                if high.is_ascii_hexdigit() && low.is_ascii_hexdigit() =>
            {
                out.push(hex(*high) << 4 | hex(*low));
                after
            }
            [b'\\', escaped, after @ ..] => {
                out.push(match escaped {
                    b'n' => b'\n',
                    b'r' => b'\r',
                    b't' => b'\t',
                    b'b' => 0x08,
                    b'a' => 0x07,
                    other => *other,
                });
                after
            }
            [byte, after @ ..] => {
                out.push(*byte);
                after
            }
        }
    }
}

fn single_quoted<'a>(mut rest: &'a [u8], out: &mut Vec<u8>) -> Result<&'a [u8], ProtocolError> {
    loop {
        rest = match rest {
            [] => return Err(ProtocolError::UnbalancedQuotes),
            [b'\'', after @ ..] => return Ok(after),
            [b'\\', b'\'', after @ ..] => {
                out.push(b'\'');
                after
            }
            [byte, after @ ..] => {
                out.push(*byte);
                after
            }
        }
    }
}

fn hex(digit: u8) -> u8 {
    char::from(digit).to_digit(16).unwrap_or(0) as u8
}
