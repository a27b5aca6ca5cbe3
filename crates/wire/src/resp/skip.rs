//! Counts replies without keeping them: sufficient for a load generator, at a small part of a
//! parser's cost.

use super::error::ReplyError;
use super::number::parse_integer;

/// Longest header line: type byte and the number.
const NUMBER_BYTES_MAX: usize = 32;
/// Longest line of text.
const LINE_BYTES_MAX: usize = 64 * 1024;

/// The part of the input that [`ReplySkipper::advance`] passed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Skipped {
    /// Bytes passed; the caller drops them from the front of its input.
    pub bytes: usize,
    /// Replies that ended in them.
    pub replies: usize,
    /// Number of these replies that were errors themselves (not counting errors inside an array).
    pub errors: usize,
    /// Number of these replies that were null themselves.
    pub nulls: usize,
}

/// Skips replies, nested ones too, in constant memory. Checks their framing, not their content.
#[derive(Debug, Default)]
pub struct ReplySkipper {
    /// Elements that are missing from the current reply; 0: between two replies.
    elements_left: u64,
    /// Bytes that are missing from the current bulk string, its line end included.
    bulk_left: u64,
    /// The next value is metadata before a reply, and does not count as a reply.
    attribute: bool,
}

enum Kind {
    Line,
    Error,
    Null,
    /// Bytes that follow, line end included.
    Bulk(u64),
    /// Values that follow.
    Nested(u64),
    Attribute(u64),
}

impl ReplySkipper {
    /// Starts between two replies.
    #[must_use]
    pub fn new() -> ReplySkipper {
        ReplySkipper::default()
    }

    /// Skips as much of `input` as possible.
    ///
    /// # Errors
    /// The bytes are no reply; the connection cannot be used any more.
    pub fn advance(&mut self, input: &[u8]) -> Result<Skipped, ReplyError> {
        let mut passed = Skipped::default();
        loop {
            let rest = input.get(passed.bytes..).unwrap_or_default();
            if self.bulk_left > 0 {
                let now = self.bulk_left.min(rest.len() as u64);
                passed.bytes += now as usize;
                self.bulk_left -= now;
                if self.bulk_left > 0 {
                    return Ok(passed);
                }
                self.end_value(&mut passed);
                continue;
            }
            let Some((kind, bytes)) = header(rest)? else {
                return Ok(passed);
            };
            passed.bytes += bytes;
            let top = self.elements_left == 0;
            match kind {
                Kind::Line => self.end_value(&mut passed),
                Kind::Error => {
                    passed.errors += usize::from(top);
                    self.end_value(&mut passed);
                }
                Kind::Null => {
                    passed.nulls += usize::from(top);
                    self.end_value(&mut passed);
                }
                Kind::Bulk(bytes) => {
                    self.bulk_left = bytes;
                    self.elements_left += u64::from(top);
                }
                Kind::Nested(0) => self.end_value(&mut passed),
                Kind::Nested(values) => self.begin(values, top)?,
                Kind::Attribute(values) => {
                    self.attribute |= top;
                    // The value that the attribute describes follows in any case.
                    self.begin(values, top)?;
                    self.elements_left += u64::from(!top);
                    if self.elements_left == 0 {
                        self.attribute = false;
                    }
                }
            }
        }
    }

    /// Replaces one expected value by the values of the aggregate.
    fn begin(&mut self, values: u64, top: bool) -> Result<(), ReplyError> {
        let left = self.elements_left - u64::from(!top);
        self.elements_left = left.checked_add(values).ok_or(ReplyError::TooBig {
            what: "elements of one reply",
        })?;
        Ok(())
    }

    fn end_value(&mut self, passed: &mut Skipped) {
        self.elements_left = self.elements_left.saturating_sub(1);
        if self.elements_left == 0 {
            passed.replies += usize::from(!self.attribute);
            self.attribute = false;
        }
    }
}

/// The kind of the value at the beginning of `input`, and the bytes of its first line.
fn header(input: &[u8]) -> Result<Option<(Kind, usize)>, ReplyError> {
    let Some(&kind) = input.first() else {
        return Ok(None);
    };
    match kind {
        b'+' | b'-' | b':' | b',' | b'#' | b'(' | b'_' => {
            let Some(end) = memchr::memchr(b'\n', input) else {
                return if input.len() > LINE_BYTES_MAX {
                    Err(malformed("length of a line"))
                } else {
                    Ok(None)
                };
            };
            let kind = match kind {
                b'-' => Kind::Error,
                b'_' => Kind::Null,
                _ => Kind::Line,
            };
            Ok(Some((kind, end + 1)))
        }
        b'$' | b'=' | b'!' | b'*' | b'%' | b'~' | b'>' | b'|' => {
            let line = input
                .get(..NUMBER_BYTES_MAX.min(input.len()))
                .unwrap_or_default();
            let Some(end) = line.iter().position(|&byte| byte == b'\n') else {
                return if line.len() == NUMBER_BYTES_MAX {
                    Err(malformed("length"))
                } else {
                    Ok(None)
                };
            };
            let number = line
                .get(1..end)
                .and_then(|line| line.strip_suffix(b"\r"))
                .and_then(parse_integer);
            let kind = match (kind, number.ok_or(malformed("length"))?) {
                (b'$' | b'*', -1) => Kind::Null,
                (_, ..0) => return Err(malformed("length")),
                (b'$' | b'=' | b'!', bytes) => Kind::Bulk(bytes as u64 + 2),
                (b'%', pairs) => Kind::Nested((pairs as u64).saturating_mul(2)),
                (b'|', pairs) => Kind::Attribute((pairs as u64).saturating_mul(2)),
                (_, values) => Kind::Nested(values as u64),
            };
            Ok(Some((kind, end + 1)))
        }
        got => Err(ReplyError::UnknownType { got }),
    }
}

fn malformed(what: &'static str) -> ReplyError {
    ReplyError::Malformed { what }
}
