//! Texts with a key, from a file or a command.
//!
//! **Invariants**
//! - T1: at most `TEXT_BYTES_MAX` bytes are read, and one more, which shows that there are too
//!   many. They are wiped.

use std::io::{ErrorKind, Read, Result};
use zeroize::Zeroizing;

/// Most bytes of a text with a key: the digits, and white space around them (T1).
const TEXT_BYTES_MAX: usize = 128;

/// Reads the first bytes of a text, at most one more than a key's text may have (T1).
pub(crate) fn read_text(from: impl Read) -> Result<Zeroizing<Vec<u8>>> {
    // The vector has its full capacity from the start: it never moves, so no copy stays behind.
    let mut text = Zeroizing::new(vec![0; TEXT_BYTES_MAX + 1]);
    let mut from = from.take(text.len() as u64);
    let mut filled = 0;
    loop {
        match from.read(&mut text[filled..]) {
            Ok(0) => break,
            Ok(more) => filled += more,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    text.truncate(filled);
    Ok(text)
}
