//! Replies on the server's side: appended to the connection's output, in the dialect that it
//! negotiated.

use super::Protocol;
use super::number::{format_double, write_frame};

/// Appends replies to an output buffer. A value that the dialect lacks is written as Redis writes
/// it there (a map as a flat array, a double as a bulk string, a boolean as 0 or 1).
#[derive(Debug)]
pub struct Encoder<'a> {
    out: &'a mut Vec<u8>,
    protocol: Protocol,
    /// The limit of the output; `None`: the output may grow without one.
    room: Option<&'a mut Room>,
}

/// Limit of an output's length. A value is omitted if the output is already longer, and that is
/// noted: so the output exceeds its limit by at most one value.
#[derive(Debug)]
pub struct Room {
    /// The limit, for the whole output.
    pub bytes_max: usize,
    /// A value was omitted: the output is no valid sequence of replies any more, and the caller
    /// truncates it.
    pub exceeded: bool,
}

/// Room for a type byte, any length and two line ends.
const FRAME_BYTES: usize = 1 + super::number::INTEGER_BYTES_MAX + 2 + 2;

impl Room {
    /// Whether a value was omitted from `out`, or `out` is longer than the limit now; the latter is
    /// noted as if a value had been omitted.
    pub fn is_exceeded_by(&mut self, out: &[u8]) -> bool {
        self.exceeded |= out.len() > self.bytes_max;
        self.exceeded
    }
}

impl<'a> Encoder<'a> {
    /// Appends to `out` in the dialect `protocol`.
    #[inline]
    #[must_use]
    pub fn new(out: &'a mut Vec<u8>, protocol: Protocol) -> Encoder<'a> {
        Encoder {
            out,
            protocol,
            room: None,
        }
    }

    /// As [`new`](Self::new), within `room`.
    #[inline]
    #[must_use]
    pub fn within(out: &'a mut Vec<u8>, protocol: Protocol, room: &'a mut Room) -> Encoder<'a> {
        Encoder {
            out,
            protocol,
            room: Some(room),
        }
    }

    /// Whether another value may be appended.
    #[inline]
    fn has_room(&mut self) -> bool {
        match &mut self.room {
            Some(room) if self.out.len() > room.bytes_max => {
                room.exceeded = true;
                false
            }
            _ => true,
        }
    }

    /// The dialect.
    #[inline]
    #[must_use]
    pub fn protocol(&self) -> Protocol {
        self.protocol
    }

    /// `+OK`.
    #[inline]
    pub fn ok(&mut self) {
        self.text(b"+OK\r\n");
    }

    /// `+text`. Line ends in it become spaces.
    pub fn simple(&mut self, text: impl AsRef<[u8]>) {
        self.line(b'+', text.as_ref());
    }

    /// `-text`: the error's code word, a space and the message. Line ends in it become spaces.
    pub fn error(&mut self, text: impl AsRef<[u8]>) {
        self.line(b'-', text.as_ref());
    }

    /// `:value`.
    #[inline]
    pub fn integer(&mut self, value: i64) {
        if self.has_room() {
            write_frame(self.out, b':', value);
        }
    }

    /// A binary-safe string.
    #[inline]
    pub fn bulk(&mut self, bytes: &[u8]) {
        if !self.has_room() {
            return;
        }
        self.out.reserve(bytes.len() + FRAME_BYTES);
        write_length(self.out, b'$', bytes.len());
        self.out.extend_from_slice(bytes);
        self.out.extend_from_slice(b"\r\n");
    }

    /// No value, in the place of a string.
    #[inline]
    pub fn null(&mut self) {
        self.text(match self.protocol {
            Protocol::Resp2 => b"$-1\r\n",
            Protocol::Resp3 => b"_\r\n",
        });
    }

    /// No value, in the place of an array (a cancelled `EXEC`).
    pub fn null_array(&mut self) {
        self.text(match self.protocol {
            Protocol::Resp2 => b"*-1\r\n",
            Protocol::Resp3 => b"_\r\n",
        });
    }

    /// An array: `len` replies follow.
    #[inline]
    pub fn array(&mut self, len: usize) {
        self.length(b'*', len);
    }

    /// A map: `len` pairs, that is `2 * len` replies, follow.
    pub fn map(&mut self, len: usize) {
        match self.protocol {
            Protocol::Resp2 => self.length(b'*', len.saturating_mul(2)),
            Protocol::Resp3 => self.length(b'%', len),
        }
    }

    /// A set: `len` replies follow.
    pub fn set(&mut self, len: usize) {
        self.length(self.or_array(b'~'), len);
    }

    /// A message that answers no request: `len` replies follow.
    pub fn push(&mut self, len: usize) {
        self.length(self.or_array(b'>'), len);
    }

    /// A floating-point number.
    pub fn double(&mut self, value: f64) {
        self.double_text(&format_double(value));
    }

    /// A floating-point number by its text.
    pub fn double_text(&mut self, text: &str) {
        match self.protocol {
            Protocol::Resp2 => self.bulk(text.as_bytes()),
            Protocol::Resp3 => self.line(b',', text.as_bytes()),
        }
    }

    /// A truth value.
    pub fn boolean(&mut self, value: bool) {
        match self.protocol {
            Protocol::Resp2 => self.integer(i64::from(value)),
            Protocol::Resp3 => self.text(if value { b"#t\r\n" } else { b"#f\r\n" }),
        }
    }

    /// Text for people, with its three-letter format (`txt`, `mkd`).
    pub fn verbatim(&mut self, format: &str, text: &str) {
        match self.protocol {
            Protocol::Resp2 => self.bulk(text.as_bytes()),
            Protocol::Resp3 => {
                if !self.has_room() {
                    return;
                }
                let mut tag = [b' '; 4];
                for (place, byte) in tag.iter_mut().zip(format.bytes().take(3)) {
                    *place = byte;
                }
                tag[3] = b':';
                write_length(self.out, b'=', tag.len() + text.len());
                self.out.extend_from_slice(&tag);
                self.out.extend_from_slice(text.as_bytes());
                self.out.extend_from_slice(b"\r\n");
            }
        }
    }

    /// An integer of any size, as its decimal digits.
    pub fn big_number(&mut self, digits: &str) {
        match self.protocol {
            Protocol::Resp2 => self.bulk(digits.as_bytes()),
            Protocol::Resp3 => self.line(b'(', digits.as_bytes()),
        }
    }

    fn or_array(&self, kind: u8) -> u8 {
        match self.protocol {
            Protocol::Resp2 => b'*',
            Protocol::Resp3 => kind,
        }
    }

    #[inline]
    fn length(&mut self, kind: u8, len: usize) {
        if self.has_room() {
            write_length(self.out, kind, len);
        }
    }

    /// A complete encoded value.
    #[inline]
    fn text(&mut self, bytes: &[u8]) {
        if self.has_room() {
            self.out.extend_from_slice(bytes);
        }
    }

    fn line(&mut self, kind: u8, text: &[u8]) {
        if !self.has_room() {
            return;
        }
        self.out.reserve(text.len() + FRAME_BYTES);
        self.out.push(kind);
        let start = self.out.len();
        self.out.extend_from_slice(text);
        for byte in self.out.iter_mut().skip(start) {
            if matches!(byte, b'\r' | b'\n') {
                *byte = b' ';
            }
        }
        self.out.extend_from_slice(b"\r\n");
    }
}

/// A header: `kind`, decimal `len`, CR LF.
#[inline]
pub(super) fn write_length(out: &mut Vec<u8>, kind: u8, len: usize) {
    write_frame(out, kind, i64::try_from(len).unwrap_or(i64::MAX));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(protocol: Protocol, write: impl FnOnce(&mut Encoder<'_>)) -> String {
        let mut out = Vec::new();
        write(&mut Encoder::new(&mut out, protocol));
        String::from_utf8(out).unwrap_or_default()
    }

    /// The value that crosses the limit is still appended; nothing after it is.
    #[test]
    fn nothing_is_appended_beyond_the_room() {
        type Write = fn(&mut Encoder<'_>);
        let writes: [Write; 12] = [
            |e| e.ok(),
            |e| e.simple("a"),
            |e| e.error("ERR a"),
            |e| e.integer(1),
            |e| e.bulk(b"a"),
            |e| e.null(),
            |e| e.null_array(),
            |e| e.array(1),
            |e| e.map(1),
            |e| e.double(1.5),
            |e| e.boolean(true),
            |e| e.verbatim("txt", "a"),
        ];
        for protocol in [Protocol::Resp2, Protocol::Resp3] {
            for write in writes {
                let mut room = Room {
                    bytes_max: 4,
                    exceeded: false,
                };
                let mut out = b"1234".to_vec();
                write(&mut Encoder::within(&mut out, protocol, &mut room));
                let length = out.len();
                assert!(length > 4 && !room.exceeded, "the limit itself is allowed");
                write(&mut Encoder::within(&mut out, protocol, &mut room));
                assert!(out.len() == length && room.exceeded);
            }
        }
    }

    /// Each reply in both dialects, byte for byte as Redis 7 writes it.
    #[test]
    fn golden_bytes() {
        type Write = fn(&mut Encoder<'_>);
        let cases: [(Write, &str, &str); 19] = [
            (|e| e.ok(), "+OK\r\n", "+OK\r\n"),
            (|e| e.simple("PONG"), "+PONG\r\n", "+PONG\r\n"),
            (
                |e| e.error("ERR no\r\nlines"),
                "-ERR no  lines\r\n",
                "-ERR no  lines\r\n",
            ),
            (|e| e.integer(-42), ":-42\r\n", ":-42\r\n"),
            (|e| e.integer(7), ":7\r\n", ":7\r\n"),
            (|e| e.bulk(b""), "$0\r\n\r\n", "$0\r\n\r\n"),
            (
                |e| e.bulk(b"a\r\nb"),
                "$4\r\na\r\nb\r\n",
                "$4\r\na\r\nb\r\n",
            ),
            (
                |e| e.bulk(b"0123456789"),
                "$10\r\n0123456789\r\n",
                "$10\r\n0123456789\r\n",
            ),
            (|e| e.null(), "$-1\r\n", "_\r\n"),
            (|e| e.null_array(), "*-1\r\n", "_\r\n"),
            (|e| e.array(100), "*100\r\n", "*100\r\n"),
            (|e| e.map(2), "*4\r\n", "%2\r\n"),
            (|e| e.set(3), "*3\r\n", "~3\r\n"),
            (|e| e.push(1), "*1\r\n", ">1\r\n"),
            (|e| e.double(1.5), "$3\r\n1.5\r\n", ",1.5\r\n"),
            (
                |e| e.double(f64::NEG_INFINITY),
                "$4\r\n-inf\r\n",
                ",-inf\r\n",
            ),
            (|e| e.boolean(true), ":1\r\n", "#t\r\n"),
            (
                |e| e.verbatim("txt", "Some string"),
                "$11\r\nSome string\r\n",
                "=15\r\ntxt:Some string\r\n",
            ),
            (
                |e| e.big_number("12345678901234567890123"),
                "$23\r\n12345678901234567890123\r\n",
                "(12345678901234567890123\r\n",
            ),
        ];
        for (write, resp2, resp3) in cases {
            assert_eq!(written(Protocol::Resp2, write), resp2);
            assert_eq!(written(Protocol::Resp3, write), resp3);
        }
    }
}
