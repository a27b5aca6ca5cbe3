//! Replies on the client's side: whole values, built from bytes that arrive in any pieces.
//!
//! **Invariants**
//! - I1: every byte is parsed once: the parsed elements of an aggregate wait on a stack of frames
//!   while the rest arrives.
//! - I2: nothing is reserved for declared elements or bytes, and every total has a limit
//!   ([`ReplyLimits`]).

use super::error::ReplyError;
use super::number::parse_integer;
use std::io::{self, ErrorKind, Read};

/// A reply, or an element of one.
#[derive(Clone, Debug, PartialEq)]
pub enum Reply {
    /// A short status text.
    Simple(String),
    /// An error: its code word, a space, its message.
    Error(String),
    /// An integer.
    Integer(i64),
    /// A binary-safe string.
    Bulk(Vec<u8>),
    /// No value (in RESP2 either of its two nulls).
    Null,
    /// An array.
    Array(Vec<Reply>),
    /// Pairs, in the server's order (RESP3).
    Map(Vec<(Reply, Reply)>),
    /// A set, in the server's order (RESP3).
    Set(Vec<Reply>),
    /// A message that answers no request (RESP3).
    Push(Vec<Reply>),
    /// A floating-point number (RESP3).
    Double(f64),
    /// A truth value (RESP3).
    Boolean(bool),
    /// An integer of any size, as its digits (RESP3).
    BigNumber(String),
    /// Text for people with its three-letter format (RESP3).
    Verbatim {
        /// `txt` or `mkd`.
        format: String,
        /// The text, usually UTF-8.
        text: Vec<u8>,
    },
}

impl Reply {
    /// The bytes of a string of any kind.
    #[must_use]
    pub fn as_bytes(&self) -> Option<&[u8]> {
        match self {
            Reply::Simple(text) | Reply::BigNumber(text) => Some(text.as_bytes()),
            Reply::Bulk(bytes) | Reply::Verbatim { text: bytes, .. } => Some(bytes),
            _ => None,
        }
    }

    /// An integer, sent as an integer or as decimal text.
    #[must_use]
    pub fn as_integer(&self) -> Option<i64> {
        match self {
            Reply::Integer(value) => Some(*value),
            other => parse_integer(other.as_bytes()?),
        }
    }

    /// The elements of an array, a set or a push.
    #[must_use]
    pub fn as_array(&self) -> Option<&[Reply]> {
        match self {
            Reply::Array(elements) | Reply::Set(elements) | Reply::Push(elements) => Some(elements),
            _ => None,
        }
    }
}

/// Limits of one reply.
#[derive(Clone, Copy, Debug)]
pub struct ReplyLimits {
    /// Longest string.
    pub bulk_bytes_max: usize,
    /// Maximum values in one reply, nested ones included.
    pub values_max: usize,
    /// Deepest nesting.
    pub depth_max: usize,
}

impl Default for ReplyLimits {
    fn default() -> ReplyLimits {
        ReplyLimits {
            bulk_bytes_max: 512 << 20,
            values_max: 16 << 20,
            depth_max: 32,
        }
    }
}

/// Maximum length of a line of text; headers are far shorter.
const LINE_BYTES_MAX: usize = 64 * 1024;
/// Maximum elements for which memory is reserved before they arrive.
const RESERVED_ELEMENTS_MAX: usize = 64;
/// Parsed bytes are dropped from the buffer when there are this many, or when all are parsed.
const DROPPED_BYTES_MIN: usize = 64 * 1024;

/// Bytes of one read from a stream.
const READ_BYTES: usize = 16 * 1024;

/// An aggregate whose elements are still arriving.
#[derive(Debug)]
struct Frame {
    kind: u8,
    left: usize,
    elements: Vec<Reply>,
}

/// Builds replies from bytes as they arrive. After an error, make a new parser for a new
/// connection.
#[derive(Debug, Default)]
pub struct ReplyParser {
    limits: ReplyLimits,
    buffer: Vec<u8>,
    /// Bytes of `buffer` that are parsed.
    passed: usize,
    /// Fewer bytes than this after `passed` allow no progress.
    needed: usize,
    stack: Vec<Frame>,
    values: usize,
}

enum Value {
    Whole(Reply),
    Aggregate { kind: u8, values: usize },
}

impl ReplyParser {
    /// A parser for a new connection.
    #[must_use]
    pub fn new(limits: ReplyLimits) -> ReplyParser {
        ReplyParser {
            limits,
            ..ReplyParser::default()
        }
    }

    /// Takes received bytes.
    pub fn feed(&mut self, bytes: &[u8]) {
        if self.passed == self.buffer.len() || self.passed >= DROPPED_BYTES_MIN {
            self.buffer.drain(..self.passed);
            self.passed = 0;
        }
        self.buffer.extend_from_slice(bytes);
    }

    /// The next whole reply, or None until more bytes are fed. Attributes (RESP3 metadata) are
    /// skipped.
    ///
    /// # Errors
    /// The bytes are no reply, or a reply over a limit: close the connection.
    pub fn next_reply(&mut self) -> Result<Option<Reply>, ReplyError> {
        loop {
            let input = self.buffer.get(self.passed..).unwrap_or_default();
            if input.is_empty() || input.len() < self.needed {
                return Ok(None);
            }
            self.needed = 0;
            let value = match value(input, &self.limits)? {
                Parsed::Value(value, bytes) => {
                    self.passed += bytes;
                    value
                }
                Parsed::Incomplete { needed } => {
                    self.needed = needed;
                    return Ok(None);
                }
            };
            self.values += 1;
            if self.values > self.limits.values_max {
                return Err(ReplyError::TooBig {
                    what: "values in one reply",
                });
            }
            let done = match value {
                Value::Whole(reply) => self.fold(reply)?,
                Value::Aggregate { kind, values } => self.open(kind, values)?,
            };
            if let Some(reply) = done {
                self.values = 0;
                return Ok(Some(reply));
            }
        }
    }

    /// Waits for the next reply of a stream.
    ///
    /// # Errors
    /// Those of the stream. [`ErrorKind::UnexpectedEof`]: it has ended.
    /// [`ErrorKind::InvalidData`]: as [`next_reply`](Self::next_reply).
    pub fn read_from(&mut self, stream: &mut impl Read) -> io::Result<Reply> {
        let mut piece = [0; READ_BYTES];
        loop {
            let next = self.next_reply();
            let next = next.map_err(|error| io::Error::new(ErrorKind::InvalidData, error))?;
            if let Some(reply) = next {
                return Ok(reply);
            }
            let bytes = stream.read(&mut piece)?;
            if bytes == 0 {
                let end = "the server closed the connection";
                return Err(io::Error::new(ErrorKind::UnexpectedEof, end));
            }
            self.feed(piece.get(..bytes).unwrap_or_default());
        }
    }

    fn open(&mut self, kind: u8, values: usize) -> Result<Option<Reply>, ReplyError> {
        if values > self.limits.values_max {
            return Err(ReplyError::TooBig {
                what: "values in one reply",
            });
        }
        if values > 0 {
            if self.stack.len() >= self.limits.depth_max {
                return Err(ReplyError::TooBig { what: "nesting" });
            }
            let elements = Vec::with_capacity(values.min(RESERVED_ELEMENTS_MAX));
            self.stack.push(Frame {
                kind,
                left: values,
                elements,
            });
            return Ok(None);
        }
        match aggregate(kind, Vec::new())? {
            Some(reply) => self.fold(reply),
            None => Ok(None),
        }
    }

    /// Adds a complete value to the aggregate that waits for it, and closes all aggregates that
    /// this completes.
    fn fold(&mut self, mut reply: Reply) -> Result<Option<Reply>, ReplyError> {
        loop {
            let Some(frame) = self.stack.last_mut() else {
                return Ok(Some(reply));
            };
            frame.elements.push(reply);
            frame.left -= 1;
            if frame.left > 0 {
                return Ok(None);
            }
            let Some(full) = self.stack.pop() else {
                return Ok(None);
            };
            match aggregate(full.kind, full.elements)? {
                Some(whole) => reply = whole,
                None => return Ok(None),
            }
        }
    }
}

/// The reply for a complete aggregate; None for an attribute, which is dropped.
fn aggregate(kind: u8, elements: Vec<Reply>) -> Result<Option<Reply>, ReplyError> {
    Ok(Some(match kind {
        b'*' => Reply::Array(elements),
        b'~' => Reply::Set(elements),
        b'>' => Reply::Push(elements),
        b'|' => return Ok(None),
        b'%' => {
            let mut pairs = Vec::with_capacity(elements.len() / 2);
            let mut elements = elements.into_iter();
            while let (Some(key), Some(value)) = (elements.next(), elements.next()) {
                pairs.push((key, value));
            }
            Reply::Map(pairs)
        }
        got => return Err(ReplyError::UnknownType { got }),
    }))
}

enum Parsed {
    Value(Value, usize),
    Incomplete { needed: usize },
}

/// The value at the beginning of `input`.
fn value(input: &[u8], limits: &ReplyLimits) -> Result<Parsed, ReplyError> {
    let Some((&kind, rest)) = input.split_first() else {
        return Ok(Parsed::Incomplete { needed: 1 });
    };
    if !b"+-:$*_,#(=!%~>|".contains(&kind) {
        return Err(ReplyError::UnknownType { got: kind });
    }
    let Some(newline) = memchr::memchr(b'\n', rest) else {
        if rest.len() > LINE_BYTES_MAX {
            return Err(ReplyError::TooBig {
                what: "length of a line",
            });
        }
        return Ok(Parsed::Incomplete {
            needed: input.len() + 1,
        });
    };
    let line = rest
        .get(..newline)
        .and_then(|line| line.strip_suffix(b"\r"));
    let line = line.ok_or(ReplyError::Malformed { what: "line end" })?;
    let next = newline + 2;
    let whole = |reply| Ok(Parsed::Value(Value::Whole(reply), next));
    match kind {
        b'+' => whole(Reply::Simple(text(line))),
        b'-' => whole(Reply::Error(text(line))),
        b':' => whole(Reply::Integer(
            parse_integer(line).ok_or(ReplyError::Malformed { what: "integer" })?,
        )),
        b'(' => whole(Reply::BigNumber(text(line))),
        b'_' if line.is_empty() => whole(Reply::Null),
        b'#' if line == b"t" => whole(Reply::Boolean(true)),
        b'#' if line == b"f" => whole(Reply::Boolean(false)),
        b',' => whole(Reply::Double(
            text(line)
                .parse()
                .map_err(|_| ReplyError::Malformed { what: "double" })?,
        )),
        b'_' => Err(ReplyError::Malformed { what: "null" }),
        b'#' => Err(ReplyError::Malformed { what: "boolean" }),
        _ => match (kind, parse_integer(line)) {
            (b'$' | b'*', Some(-1)) => whole(Reply::Null),
            (_, Some(length @ 0..)) => {
                let length = usize::try_from(length).unwrap_or(usize::MAX);
                match kind {
                    b'$' | b'=' | b'!' => bulk(kind, input, next, length, limits),
                    b'%' | b'|' => Ok(Parsed::Value(
                        Value::Aggregate {
                            kind,
                            values: length.saturating_mul(2),
                        },
                        next,
                    )),
                    _ => Ok(Parsed::Value(
                        Value::Aggregate {
                            kind,
                            values: length,
                        },
                        next,
                    )),
                }
            }
            _ => Err(ReplyError::Malformed { what: "length" }),
        },
    }
}

/// The `length` bytes at `start`, and their line end.
fn bulk(
    kind: u8,
    input: &[u8],
    start: usize,
    length: usize,
    limits: &ReplyLimits,
) -> Result<Parsed, ReplyError> {
    if length > limits.bulk_bytes_max {
        return Err(ReplyError::TooBig {
            what: "length of a string",
        });
    }
    let end = start + length;
    match input.get(end..).unwrap_or_default() {
        [b'\r', b'\n', ..] => {}
        [] => return Ok(Parsed::Incomplete { needed: end + 1 }),
        [b'\r'] => return Ok(Parsed::Incomplete { needed: end + 2 }),
        _ => {
            return Err(ReplyError::Malformed {
                what: "end of a string",
            });
        }
    }
    let bytes = input.get(start..end).unwrap_or_default();
    let reply = match (kind, bytes) {
        (b'$', _) => Reply::Bulk(bytes.to_vec()),
        (b'!', _) => Reply::Error(text(bytes)),
        (_, [a, b, c, b':', rest @ ..]) => Reply::Verbatim {
            format: text(&[*a, *b, *c]),
            text: rest.to_vec(),
        },
        _ => {
            return Err(ReplyError::Malformed {
                what: "verbatim string",
            });
        }
    };
    Ok(Parsed::Value(Value::Whole(reply), end + 2))
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}
