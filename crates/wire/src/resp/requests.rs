//! The table of parsed requests, and the arguments of one.
//!
//! **Invariants**
//! 1. An argument is a range of the input, or (inline commands, queued requests) of `copied`: never
//!    an allocation of its own.
//! 2. Spans up to the last of `ends` belong to whole requests; only a parser in the middle of one
//!    leaves more.

/// What a 31-bit range can reach.
pub(super) const REQUEST_BYTES_MAX: usize = i32::MAX as usize;
/// Tables above this many entries are given back by [`Requests::clear`], so that one giant request
/// is not kept for ever.
const KEPT_CAPACITY: usize = 64 * 1024;

/// Where an argument's bytes are.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Span {
    pub(super) start: u32,
    pub(super) end: u32,
}

/// What a request's spans are ranges of.
#[derive(Clone, Copy, Debug)]
pub(super) enum Place {
    Input,
    Copied,
}

/// In [`Requests::ends`]: the spans of this request are ranges of `copied`, not of the input.
const IN_COPIED: u32 = 1 << 31;

/// Requests parsed out of one input buffer: flat tables of argument ranges, reused from round to
/// round.
#[derive(Debug, Default)]
pub struct Requests {
    pub(super) spans: Vec<Span>,
    /// For each request the index after its last span, and [`IN_COPIED`].
    ends: Vec<u32>,
    /// Bytes of arguments that are no plain range of the input.
    pub(super) copied: Vec<u8>,
}

impl Requests {
    /// No requests, no memory.
    #[must_use]
    pub fn new() -> Requests {
        Requests::default()
    }

    /// Number of requests.
    #[inline]
    #[must_use]
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Whether there is no request.
    #[inline]
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// The arguments of request `n` (from 0), whose bytes are in `input`: the same bytes that were
    /// parsed. A request always has a name; one past the end has no arguments at all.
    #[inline]
    #[must_use]
    pub fn args<'a>(&'a self, n: usize, input: &'a [u8]) -> Args<'a> {
        let end = self.ends.get(n).copied().unwrap_or(0);
        let start = match n.checked_sub(1) {
            Some(before) => self.ends.get(before).copied().unwrap_or(0) & !IN_COPIED,
            None => 0,
        };
        let bytes = if end & IN_COPIED == 0 {
            input
        } else {
            &self.copied
        };
        let spans = self
            .spans
            .get(start as usize..(end & !IN_COPIED) as usize)
            .unwrap_or_default();
        Args { spans, bytes }
    }

    /// Bytes of arguments held here as copies (inline commands and [`push`](Self::push)).
    #[must_use]
    pub fn copied_bytes(&self) -> usize {
        self.copied.len()
    }

    /// Adds a copy of a request, which no longer needs its input: the queue of a `MULTI`. Returns
    /// false, and adds nothing, when the copies would exceed 2 GiB.
    #[must_use]
    pub fn push(&mut self, args: Args<'_>) -> bool {
        let first = self.spans.len();
        for arg in args {
            if !self.push_copied_arg(arg) {
                self.spans.truncate(first);
                return false;
            }
        }
        self.end_request(Place::Copied);
        true
    }

    /// Forgets all requests, and keeps the tables' memory unless it is unusually large.
    pub fn clear(&mut self) {
        self.spans.clear();
        self.ends.clear();
        self.copied.clear();
        self.spans.shrink_to(KEPT_CAPACITY);
        self.ends.shrink_to(KEPT_CAPACITY);
        self.copied.shrink_to(KEPT_CAPACITY);
    }

    fn push_copied_arg(&mut self, arg: &[u8]) -> bool {
        let start = self.copied.len();
        self.copied.extend_from_slice(arg);
        let whole = self.close_copied_arg(start);
        if !whole {
            self.copied.truncate(start);
        }
        whole
    }

    /// The bytes since `start` become one argument.
    pub(super) fn close_copied_arg(&mut self, start: usize) -> bool {
        let end = self.copied.len();
        if end > REQUEST_BYTES_MAX {
            return false;
        }
        self.spans.push(Span {
            start: start as u32,
            end: end as u32,
        });
        true
    }

    /// The spans since the last request are one more.
    #[inline]
    pub(super) fn end_request(&mut self, place: Place) {
        let flag = match place {
            Place::Input => 0,
            Place::Copied => IN_COPIED,
        };
        self.ends.push(self.spans.len() as u32 | flag);
    }

    /// How many spans belong to requests that have ended; later ones are of a request that has not.
    pub(super) fn spans_of_whole_requests(&self) -> usize {
        (self.ends.last().copied().unwrap_or(0) & !IN_COPIED) as usize
    }
}

/// The arguments of one request; the first is the command's name.
#[derive(Clone, Copy, Debug)]
pub struct Args<'a> {
    spans: &'a [Span],
    bytes: &'a [u8],
}

impl<'a> Args<'a> {
    /// Number of arguments, the name included.
    #[inline]
    #[must_use]
    pub fn len(&self) -> usize {
        self.spans.len()
    }

    /// Whether there is nothing, not even a name.
    #[inline]
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.spans.is_empty()
    }

    /// Argument `i`; the name is argument 0.
    #[inline]
    #[must_use]
    pub fn get(&self, i: usize) -> Option<&'a [u8]> {
        let span = self.spans.get(i)?;
        self.bytes.get(span.start as usize..span.end as usize)
    }

    /// The command's name as the client wrote it, in any case; empty if there are no arguments.
    #[inline]
    #[must_use]
    pub fn name(&self) -> &'a [u8] {
        self.get(0).unwrap_or_default()
    }

    /// The arguments from `n` on.
    #[inline]
    #[must_use]
    pub fn skip(&self, n: usize) -> Args<'a> {
        Args {
            spans: self.spans.get(n..).unwrap_or_default(),
            bytes: self.bytes,
        }
    }

    /// All arguments in order, the name first.
    #[inline]
    #[must_use]
    pub fn iter(&self) -> ArgsIter<'a> {
        ArgsIter {
            spans: self.spans.iter(),
            bytes: self.bytes,
        }
    }
}

impl<'a> IntoIterator for Args<'a> {
    type Item = &'a [u8];
    type IntoIter = ArgsIter<'a>;

    fn into_iter(self) -> ArgsIter<'a> {
        self.iter()
    }
}

/// Iterator of [`Args`].
#[derive(Clone, Debug)]
pub struct ArgsIter<'a> {
    spans: std::slice::Iter<'a, Span>,
    bytes: &'a [u8],
}

impl<'a> Iterator for ArgsIter<'a> {
    type Item = &'a [u8];

    #[inline]
    fn next(&mut self) -> Option<&'a [u8]> {
        let span = self.spans.next()?;
        self.bytes.get(span.start as usize..span.end as usize)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        self.spans.size_hint()
    }
}

impl ExactSizeIterator for ArgsIter<'_> {}
