//! The table of parsed requests, and the arguments of one request.
//!
//! **Invariants**
//! - I1: an argument is a range of the input, or (inline commands, queued requests) of `copied`: it
//!   is never allocated separately.
//! - I2: spans up to the last of `ends` belong to complete requests; only a parser in the middle of
//!   a request leaves more.

/// Maximum end of a 31-bit range.
pub(super) const REQUEST_BYTES_MAX: usize = i32::MAX as usize;
/// [`Requests::clear`] shrinks tables above this many entries, so that the memory of one giant
/// request is not kept for ever.
const KEPT_CAPACITY: usize = 64 * 1024;

/// Arguments with at most this many bytes between them are copied together: the length of a short
/// argument, with its line ends, has 6.
const BYTES_BETWEEN_MAX: usize = 8;

/// Position of an argument's bytes.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Span {
    pub(super) start: u32,
    pub(super) end: u32,
}

/// The buffer into which a request's spans point.
#[derive(Clone, Copy, Debug)]
pub(super) enum Place {
    Input,
    Copied,
}

/// In [`Requests::ends`]: the spans of this request point into `copied`, not into the input.
const IN_COPIED: u32 = 1 << 31;

/// Requests parsed out of one input buffer: flat tables of argument ranges, reused from round to
/// round.
#[derive(Debug, Default)]
pub struct Requests {
    pub(super) spans: Vec<Span>,
    /// For each request the index after its last span, combined with [`IN_COPIED`].
    ends: Vec<u32>,
    /// Bytes of arguments that are not ranges of the input.
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

    /// The arguments of request `n` (from 0). `input` must be the bytes that were parsed. A request
    /// always has a name; a request beyond the last has no arguments.
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

    /// Bytes held here as copies of arguments (inline commands and [`push`](Self::push)), and
    /// between them.
    #[must_use]
    pub fn copied_bytes(&self) -> usize {
        self.copied.len()
    }

    /// Adds a copy of a request, which no longer needs its input: for the queue of a `MULTI`.
    /// Returns false, and adds nothing, if the copies would exceed 2 GiB.
    #[must_use]
    pub fn push(&mut self, args: Args<'_>) -> bool {
        match args.dense_bytes() {
            Some(bytes) => self.push_dense(args, bytes),
            None => self.push_slices(args),
        }
    }

    /// As [`push`](Self::push), in one copy: `bytes` are those from the first argument to the last.
    fn push_dense(&mut self, args: Args<'_>, bytes: &[u8]) -> bool {
        let from = args.spans.first().map_or(0, |span| span.start);
        let to = self.copied.len();
        if to + bytes.len() > REQUEST_BYTES_MAX {
            return false;
        }
        self.copied.extend_from_slice(bytes);
        let to = to as u32;
        self.spans.extend(args.spans.iter().map(|span| Span {
            start: span.start - from + to,
            end: span.end - from + to,
        }));
        self.end_request(Place::Copied);
        true
    }

    /// Adds a request of arguments that are in no input. Returns false, and adds nothing, as
    /// [`push`](Self::push).
    #[must_use]
    pub fn push_slices(&mut self, args: impl IntoIterator<Item: AsRef<[u8]>>) -> bool {
        let first = self.spans.len();
        for arg in args {
            if !self.push_copied_arg(arg.as_ref()) {
                self.spans.truncate(first);
                return false;
            }
        }
        self.end_request(Place::Copied);
        true
    }

    /// Drops all requests, and keeps the tables' memory unless it is unusually large.
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

    /// Makes one argument of the bytes since `start`.
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

    /// Makes one request of the spans since the last request.
    #[inline]
    pub(super) fn end_request(&mut self, place: Place) {
        let flag = match place {
            Place::Input => 0,
            Place::Copied => IN_COPIED,
        };
        self.ends.push(self.spans.len() as u32 | flag);
    }

    /// Number of spans of complete requests; later ones belong to an incomplete request.
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

    /// Whether there are no arguments, not even a name.
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

    /// The bytes from the first argument to the last, if the arguments are in order and have at
    /// most [`BYTES_BETWEEN_MAX`] bytes between them on average.
    fn dense_bytes(&self) -> Option<&'a [u8]> {
        let (first, last) = (self.spans.first()?, self.spans.last()?);
        let (mut at, mut between) = (first.start, 0);
        for span in self.spans {
            between += span.start.checked_sub(at)? as usize;
            at = span.end;
        }
        if between > BYTES_BETWEEN_MAX * self.spans.len() {
            return None;
        }
        self.bytes.get(first.start as usize..last.end as usize)
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Pushes a request with these ranges of `bytes`; returns the number of bytes that are copied.
    #[track_caller]
    fn copied(bytes: &[u8], ranges: &[(u32, u32)]) -> usize {
        let spans = ranges.iter().map(|(start, end)| Span {
            start: *start,
            end: *end,
        });
        let spans: Vec<Span> = spans.collect();
        let args = Args {
            spans: &spans,
            bytes,
        };
        let mut queue = Requests::new();
        for n in 0..3 {
            assert!(queue.push(args));
            assert!(queue.args(n, b"").iter().eq(args.iter()), "{ranges:?}");
        }
        queue.copied_bytes() / 3
    }

    #[test]
    fn a_queued_request_has_the_arguments_of_its_original() {
        let bytes: Vec<u8> = (0..=255).collect();
        assert_eq!(copied(&bytes, &[(4, 7)]), 3);
        assert_eq!(copied(&bytes, &[(9, 9)]), 0);
        // Near each other; far from each other; not in order; overlapping.
        assert_eq!(copied(&bytes, &[(4, 7), (13, 14), (30, 30)]), 26);
        assert_eq!(copied(&bytes, &[(4, 7), (7 + 17, 30)]), 3 + 6);
        assert_eq!(copied(&bytes, &[(13, 14), (4, 7)]), 1 + 3);
        assert_eq!(copied(&bytes, &[(4, 9), (8, 12)]), 5 + 4);
    }
}
