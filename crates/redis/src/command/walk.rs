//! Arguments of commands that walk: cursors, and patterns of names.

use super::context::Failure;
use duramen_base::glob::Pattern;

pub(crate) const LONG_PATTERN: Failure =
    Failure::Text("ERR the pattern is too long: it may have 1024 bytes");

/// Compiles the last pattern of a request: earlier ones have no effect, and cost no time.
pub(crate) fn compiled(text: Option<&[u8]>) -> Result<Option<Pattern>, Failure> {
    text.map(|text| Pattern::new(text, false).ok_or(LONG_PATTERN))
        .transpose()
}

/// A cursor: an unsigned decimal number. As in Redis, it may have a sign. A text without digits
/// counts as 0: Laravel sends one.
pub(crate) fn parse_cursor(text: &[u8]) -> Result<u64, Failure> {
    let digits = text.strip_prefix(b"+").unwrap_or(text);
    if text.is_empty() {
        return Ok(0);
    }
    std::str::from_utf8(digits)
        .ok()
        .filter(|digits| digits.bytes().all(|byte| byte.is_ascii_digit()))
        .and_then(|digits| digits.parse().ok())
        .ok_or(Failure::Text("ERR invalid cursor"))
}
