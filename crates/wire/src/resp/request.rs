//! Requests on the server's side: arrays of bulk strings and inline commands, parsed in place.
//!
//! **Invariants**
//! - I1: the input begins with the request that was incomplete last time; [`ParseState`] describes
//!   that request and no other.
//! - I2: ranges fit in 31 bits: a longer request is refused before its bytes arrive.
//!
//! **Speed.** `*2\r\n$3\r\nGET\r\n$16\r\n…` is the important case: [`short_request`] reads each
//! header as one word and takes lengths of one to three digits. All other requests (more arguments,
//! longer, incomplete or invalid ones) take the slow path.

use super::error::ProtocolError;
use super::inline;
use super::number::parse_integer;
use super::requests::{Place, REQUEST_BYTES_MAX, Requests, Span};

/// Limits of one request. A client that has not authenticated gets smaller ones.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Maximum arguments of one array, the command's name included.
    pub args_max: usize,
    /// Longest single argument.
    pub bulk_bytes_max: usize,
    /// Longest inline command, its line end excluded.
    pub inline_bytes_max: usize,
    /// Longest request in total, lengths and line ends included; never more than 2 GiB - 1.
    pub request_bytes_max: usize,
    /// Maximum requests that one call takes out of the input.
    pub requests_max: usize,
    /// A call ends behind the request, also an empty one, with which it has parsed more bytes than
    /// this.
    pub parsed_bytes_max: usize,
    /// Whether these are limits for a client before `AUTH`: the error text says so.
    pub unauthenticated: bool,
}

impl Default for Limits {
    /// Redis's own limits: 1,048,576 arguments, 512 MiB per argument, 64 KiB inline.
    fn default() -> Limits {
        Limits {
            args_max: 1024 * 1024,
            bulk_bytes_max: 512 << 20,
            inline_bytes_max: INLINE_BYTES_MAX,
            request_bytes_max: REQUEST_BYTES_MAX,
            requests_max: usize::MAX,
            parsed_bytes_max: REQUEST_BYTES_MAX,
            unauthenticated: false,
        }
    }
}

impl Limits {
    /// Redis's own limits before `AUTH`: 10 arguments of 16 KiB. One request per call, because that
    /// request may lift the limits.
    #[must_use]
    pub fn unauthenticated() -> Limits {
        Limits {
            args_max: 10,
            bulk_bytes_max: 16 * 1024,
            inline_bytes_max: INLINE_BYTES_MAX,
            request_bytes_max: 10 * (16 * 1024 + HEADER_BYTES_MAX + 2) + HEADER_BYTES_MAX,
            requests_max: 1,
            parsed_bytes_max: REQUEST_BYTES_MAX,
            unauthenticated: true,
        }
    }

    /// Whether every request that [`short_request`] accepts is within the limits.
    fn allow_short_requests(&self) -> bool {
        self.args_max >= SHORT_ARGS_MAX
            && self.bulk_bytes_max >= 999
            && self.request_bytes_max >= 4 + SHORT_ARGS_MAX * (6 + 999 + 2)
    }

    fn multibulk_error(&self) -> ProtocolError {
        if self.unauthenticated {
            ProtocolError::UnauthenticatedMultibulkLength
        } else {
            ProtocolError::InvalidMultibulkLength
        }
    }

    fn bulk_error(&self) -> ProtocolError {
        if self.unauthenticated {
            ProtocolError::UnauthenticatedBulkLength
        } else {
            ProtocolError::InvalidBulkLength
        }
    }
}

/// Redis's `PROTO_INLINE_MAX_SIZE`.
const INLINE_BYTES_MAX: usize = 64 * 1024;
/// Type byte, sign, 19 digits and CR LF are 23 bytes: a header line without CR in 32 is no number.
const HEADER_BYTES_MAX: usize = 32;
/// Parsed arguments of an incomplete request are kept from this count on; fewer are cheap to parse
/// again, and then use no memory of an idle connection.
const KEPT_ARGS_MIN: usize = 32;

/// Maximum arguments of a request for [`short_request`]: the count has one digit.
const SHORT_ARGS_MAX: usize = 9;

/// State of the incomplete request at the beginning of a connection's input. Uses no heap memory
/// unless that request has many arguments.
#[derive(Debug, Default)]
pub struct ParseState {
    /// With a shorter input than this, no progress is possible.
    needed: usize,
    /// Bytes of an inline command that are known to contain no line end.
    scanned: usize,
    /// Arguments that are still missing, if `spans` is in use.
    args_left: usize,
    /// Start of the next argument.
    next: usize,
    spans: Vec<Span>,
}

impl ParseState {
    /// The state of a new connection.
    #[must_use]
    pub fn new() -> ParseState {
        ParseState::default()
    }

    /// Length that the input must have before another parse can make progress: 0 if no request is
    /// incomplete. It is within the limits, but only declared by the peer: grow a buffer towards it
    /// as bytes arrive.
    #[must_use]
    pub fn bytes_needed(&self) -> usize {
        self.needed
    }

    fn reset(&mut self) {
        *self = ParseState::default();
    }
}

/// Result of [`parse_requests`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Consumed {
    /// Bytes of the parsed requests (and of empty ones, which are not in the table). The caller
    /// drops them from the front of the input, after the requests have run and before the next
    /// call.
    pub bytes: usize,
    /// Whether parsing stopped at [`Limits::requests_max`] or [`Limits::parsed_bytes_max`] with
    /// input left: call again before reading more.
    pub more: bool,
}

/// Parses all complete requests of `input`, within the limits, into `out`, whose old content is
/// dropped.
///
/// `state` belongs to the connection; between two calls its input may only lose [`Consumed::bytes`]
/// from the front and grow at the end.
///
/// # Errors
/// The input is no valid request. The requests before it are in `out`: run them, send the error,
/// close the connection.
pub fn parse_requests(
    input: &[u8],
    limits: &Limits,
    state: &mut ParseState,
    out: &mut Requests,
) -> Result<Consumed, ProtocolError> {
    out.clear();
    if input.len() < state.needed {
        return Ok(Consumed {
            bytes: 0,
            more: false,
        });
    }
    // The input is long enough. The rest of `state` belongs to a request that is not short.
    state.needed = 0;
    let short = limits.allow_short_requests() && input.len() <= REQUEST_BYTES_MAX;
    let mut at = 0;
    let parsed_bytes_max = limits.parsed_bytes_max.min(REQUEST_BYTES_MAX);
    while at < input.len() && at <= parsed_bytes_max {
        if out.len() >= limits.requests_max {
            return Ok(Consumed {
                bytes: at,
                more: true,
            });
        }
        if short && let Some(end) = short_request(input, at, out) {
            at = end;
            continue;
        }
        let end = if input.get(at) == Some(&b'*') {
            array(input, at, limits, state, out)?
        } else {
            line(input, at, limits, state, out)?
        };
        match end {
            Some(end) => at = end,
            None => {
                return Ok(Consumed {
                    bytes: at,
                    more: false,
                });
            }
        }
    }
    Ok(Consumed {
        bytes: at,
        more: at < input.len(),
    })
}

/// A complete request of at most 9 arguments of at most 999 bytes. `None`: the input begins with
/// something else, and nothing was changed.
#[inline]
fn short_request(input: &[u8], at: usize, out: &mut Requests) -> Option<usize> {
    let header = u32::from_le_bytes(*input.get(at..)?.first_chunk()?);
    let count = (header >> 8 & 0xFF).wrapping_sub(u32::from(b'0'));
    if header & 0xFFFF_00FF != u32::from_le_bytes(*b"*\0\r\n")
        || count.wrapping_sub(1) >= SHORT_ARGS_MAX as u32
    {
        return None;
    }
    let first = out.spans.len();
    let mut next = at + 4;
    for _ in 0..count {
        match short_bulk(input, next) {
            Some(span) => {
                out.spans.push(span);
                next = span.end as usize + 2;
            }
            None => {
                out.spans.truncate(first);
                return None;
            }
        }
    }
    out.end_request(Place::Input);
    Some(next)
}

/// A complete bulk string of at most 999 bytes at `at`.
#[inline(always)]
fn short_bulk(input: &[u8], at: usize) -> Option<Span> {
    const CR_LF: u16 = u16::from_le_bytes(*b"\r\n");
    let word = u64::from_le_bytes(*input.get(at..)?.first_chunk()?);
    let pair = |n: u32| (word >> (8 * n)) as u16;
    let digit = |n: u32| u32::from((word >> (8 * n)) as u8).wrapping_sub(u32::from(b'0'));
    if word as u8 != b'$' {
        return None;
    }
    let (header, bytes) = if pair(2) == CR_LF && digit(1) <= 9 {
        (4, digit(1))
    } else if pair(3) == CR_LF && digit(1).wrapping_sub(1) <= 8 && digit(2) <= 9 {
        (5, digit(1) * 10 + digit(2))
    } else if pair(4) == CR_LF && digit(1).wrapping_sub(1) <= 8 && digit(2) <= 9 && digit(3) <= 9 {
        (6, digit(1) * 100 + digit(2) * 10 + digit(3))
    } else {
        return None;
    };
    let start = at + header;
    let end = start + bytes as usize;
    if input.get(end..)?.first_chunk() != Some(b"\r\n") {
        return None;
    }
    Some(Span {
        start: start as u32,
        end: end as u32,
    })
}

/// Result of parsing a header line `*n` or `$n`.
enum Header {
    Number { value: i64, next: usize },
    NotANumber,
    TooLong,
    Incomplete,
}

fn header(input: &[u8], at: usize) -> Header {
    let line = input.get(at..).unwrap_or_default();
    let line = line
        .get(..HEADER_BYTES_MAX.min(line.len()))
        .unwrap_or_default();
    match line.iter().position(|&byte| byte == b'\r') {
        None if line.len() == HEADER_BYTES_MAX => Header::TooLong,
        None => Header::Incomplete,
        Some(end) => match (
            parse_integer(line.get(1..end).unwrap_or_default()),
            input.get(at + end + 1),
        ) {
            (_, None) => Header::Incomplete,
            (Some(value), Some(b'\n')) => Header::Number {
                value,
                next: at + end + 2,
            },
            _ => Header::NotANumber,
        },
    }
}

/// An array of bulk strings at `at`: its end, or None if it is incomplete (then `state` describes
/// it).
fn array(
    input: &[u8],
    at: usize,
    limits: &Limits,
    state: &mut ParseState,
    out: &mut Requests,
) -> Result<Option<usize>, ProtocolError> {
    let resumed = state.args_left > 0;
    let (mut left, mut next) = (state.args_left, state.next);
    if !resumed {
        match header(input, at) {
            Header::Number { value, next: after } if value <= 0 => {
                state.reset();
                return Ok(Some(after));
            }
            Header::Number { value, next: after } => {
                left = usize::try_from(value).unwrap_or(usize::MAX);
                next = after;
            }
            Header::NotANumber => return Err(ProtocolError::InvalidMultibulkLength),
            Header::TooLong => return Err(ProtocolError::TooBigMultibulkCount),
            Header::Incomplete => {
                state.needed = input.len() - at + 1;
                return Ok(None);
            }
        }
        if left > limits.args_max {
            return Err(limits.multibulk_error());
        }
    }
    let spans = if resumed {
        &mut state.spans
    } else {
        &mut out.spans
    };
    while left > 0 {
        match bulk(input, at, next, limits) {
            Ok(Bulk::Whole(span)) => {
                spans.push(span);
                next = span.end as usize + 2;
                left -= 1;
            }
            Ok(Bulk::Incomplete { needed }) => {
                keep(at, next, left, state, out);
                state.needed = needed - at;
                return Ok(None);
            }
            Err(error) => {
                let whole = out.spans_of_whole_requests();
                out.spans.truncate(whole);
                return Err(error);
            }
        }
    }
    if resumed {
        out.spans.append(&mut state.spans);
    }
    state.reset();
    out.end_request(Place::Input);
    Ok(Some(next))
}

/// Keeps the parsed part of the incomplete request at `at`, if it is large.
#[cold]
fn keep(at: usize, next: usize, left: usize, state: &mut ParseState, out: &mut Requests) {
    let first = out.spans_of_whole_requests();
    let fresh = out.spans.get(first..).unwrap_or_default();
    if state.args_left > 0 || fresh.len() >= KEPT_ARGS_MIN {
        let at = at as u32;
        state.spans.extend(fresh.iter().map(|span| Span {
            start: span.start - at,
            end: span.end - at,
        }));
        state.args_left = left;
        state.next = next - at as usize;
    }
    out.spans.truncate(first);
}

enum Bulk {
    Whole(Span),
    /// With a shorter input than this, nothing more is known.
    Incomplete {
        needed: usize,
    },
}

/// The bulk string at `at` of the request that begins at `request`.
#[inline]
fn bulk(input: &[u8], request: usize, at: usize, limits: &Limits) -> Result<Bulk, ProtocolError> {
    let request_end_max = request + limits.request_bytes_max.min(REQUEST_BYTES_MAX);
    if let Some(span) = short_bulk(input, at) {
        if (span.end - span.start) as usize > limits.bulk_bytes_max {
            return Err(limits.bulk_error());
        }
        if span.end as usize + 2 > request_end_max {
            return Err(ProtocolError::TooBigRequest);
        }
        return Ok(Bulk::Whole(span));
    }
    long_bulk(input, at, request_end_max, limits)
}

fn long_bulk(
    input: &[u8],
    at: usize,
    request_end_max: usize,
    limits: &Limits,
) -> Result<Bulk, ProtocolError> {
    match input.get(at) {
        None => return Ok(Bulk::Incomplete { needed: at + 1 }),
        Some(b'$') => {}
        Some(&got) => return Err(ProtocolError::ExpectedBulk { got }),
    }
    let (bytes, start) = match header(input, at) {
        Header::Number { value, next } => (
            usize::try_from(value).map_err(|_| ProtocolError::InvalidBulkLength)?,
            next,
        ),
        Header::NotANumber => return Err(ProtocolError::InvalidBulkLength),
        Header::TooLong => return Err(ProtocolError::TooBigBulkCount),
        Header::Incomplete => {
            return Ok(Bulk::Incomplete {
                needed: input.len() + 1,
            });
        }
    };
    if bytes > limits.bulk_bytes_max {
        return Err(limits.bulk_error());
    }
    if request_end_max.saturating_sub(start) < bytes.saturating_add(2) {
        return Err(ProtocolError::TooBigRequest);
    }
    let end = start + bytes;
    // The line end is checked as soon as its first byte arrives, so that the result does not depend
    // on the boundaries between reads.
    match input.get(end..).unwrap_or_default() {
        [b'\r', b'\n', ..] => {
            let (Ok(start), Ok(end)) = (u32::try_from(start), u32::try_from(end)) else {
                return Err(ProtocolError::TooBigRequest);
            };
            Ok(Bulk::Whole(Span { start, end }))
        }
        [] => Ok(Bulk::Incomplete { needed: end + 1 }),
        [b'\r'] => Ok(Bulk::Incomplete { needed: end + 2 }),
        _ => Err(ProtocolError::ExpectedLineEnd),
    }
}

/// An inline command at `at`: its end, or None if its line is incomplete.
fn line(
    input: &[u8],
    at: usize,
    limits: &Limits,
    state: &mut ParseState,
    out: &mut Requests,
) -> Result<Option<usize>, ProtocolError> {
    let rest = input.get(at..).unwrap_or_default();
    let fresh = rest.get(state.scanned..).unwrap_or_default();
    let Some(newline) = memchr::memchr(b'\n', fresh).map(|found| found + state.scanned) else {
        // A CR at the end may be the first half of the line end.
        if rest.len() > limits.inline_bytes_max + 1 {
            return Err(ProtocolError::TooBigInline);
        }
        state.scanned = rest.len();
        state.needed = rest.len() + 1;
        return Ok(None);
    };
    let line = rest.get(..newline).unwrap_or_default();
    let line = line.strip_suffix(b"\r").unwrap_or(line);
    if line.len() > limits.inline_bytes_max {
        return Err(ProtocolError::TooBigInline);
    }
    let (spans, copied) = (out.spans.len(), out.copied.len());
    if let Err(error) = inline::split(line, out) {
        out.spans.truncate(spans);
        out.copied.truncate(copied);
        return Err(error);
    }
    state.reset();
    if out.spans.len() > spans {
        out.end_request(Place::Copied);
    }
    Ok(Some(at + newline + 1))
}
