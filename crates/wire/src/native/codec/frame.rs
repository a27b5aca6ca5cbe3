//! The frame around every message.

use super::Kind;
use duramen_base::ids::{MapVersion, ServerId};
use duramen_format::checksum;

/// Bytes of a frame's header.
pub const HEADER_BYTES: usize = 40;
const BODY_AT: usize = 32;
const CRC_AT: usize = 36;
/// The flags of a frame: it is an answer, and its body is a trouble.
const REPLY: u16 = 1;
const ERROR: u16 = 2;

/// Sender and addressee of a frame, and the number that joins an answer to its question.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Envelope {
    /// Chosen by the sender of the question; the answer repeats it.
    pub request: u64,
    /// The addressee; [`ServerId::NONE`]: any server that receives it. A server drops frames for
    /// another life of its slot.
    pub target: ServerId,
    /// The sender; [`ServerId::NONE`]: no member. In a client's request to a master: the version of
    /// the map by which the client found the master, as a number: see [`Envelope::map_version`].
    pub sender: ServerId,
}

impl Envelope {
    /// In a client's request: the version of the tablet map that led it here. A master that has
    /// owned the key only since a later version answers `UnknownTablet`: the request may be a late
    /// copy of one that another server executed and has forgotten.
    pub fn map_version(&self) -> MapVersion {
        MapVersion(self.sender.number())
    }

    /// The envelope of a client's request.
    pub fn of_client(request: u64, target: ServerId, map: MapVersion) -> Envelope {
        Envelope {
            request,
            target,
            sender: ServerId::from_number(map.0),
        }
    }
}

/// A frame's header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// The number of a [`Kind`]; the decoder of bodies handles unknown ones.
    pub kind: u16,
    pub reply: bool,
    /// The body is a [`Trouble`](super::Trouble).
    pub error: bool,
    pub envelope: Envelope,
}

/// A complete frame whose checksum is right.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frame<'a> {
    pub header: Header,
    pub body: &'a [u8],
    pub payload: &'a [u8],
}

/// The result of [`parse_frame`] for the beginning of its input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Parsed<'a> {
    /// The input must have this length before it can be a frame. The length is only declared by the
    /// other side, but within the limit: grow a buffer towards it as bytes arrive.
    Incomplete { needed: usize },
    /// A frame of this many bytes in total.
    Frame { frame: Frame<'a>, bytes: usize },
}

/// Reason why the input is no frame. Close the connection: the start of the next frame is not
/// known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    #[error("a frame of {bytes} bytes; at most {limit} are allowed here")]
    TooLong { bytes: usize, limit: usize },
    #[error("a body of {body} bytes in a frame of {bytes}")]
    BodyTooLong { body: usize, bytes: usize },
    #[error("unknown flags {found:#06x}")]
    Flags { found: u16 },
    #[error("the frame does not match its CRC32C")]
    Checksum,
}

fn u32_at(bytes: &[u8; HEADER_BYTES], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

fn u64_at(bytes: &[u8; HEADER_BYTES], at: usize) -> u64 {
    u64::from(u32_at(bytes, at)) | u64::from(u32_at(bytes, at + 4)) << 32
}

/// The checksum of a frame (codec::N3).
#[inline]
fn checksum(header: &[u8; HEADER_BYTES], body: &[u8]) -> u32 {
    let crc = checksum::crc32c(&header[..CRC_AT]);
    checksum::crc32c_append(crc, body)
}

/// Parses the frame at the beginning of untrusted `input`. `limit`: length of the longest accepted
/// frame, header excluded.
///
/// # Errors
/// The input is no frame, and more input will not make it one.
#[inline]
pub fn parse_frame(input: &[u8], limit: usize) -> Result<Parsed<'_>, FrameError> {
    let Some((head, rest)) = input.split_first_chunk::<HEADER_BYTES>() else {
        // A frame that is too long is refused as early as possible.
        if let Some(bytes) = input.first_chunk::<4>() {
            check_length(u32::from_le_bytes(*bytes) as usize, limit)?;
        }
        return Ok(Parsed::Incomplete {
            needed: HEADER_BYTES,
        });
    };
    let bytes = u32_at(head, 0) as usize;
    check_length(bytes, limit)?;
    let body = u32_at(head, BODY_AT) as usize;
    if body > bytes {
        return Err(FrameError::BodyTooLong { body, bytes });
    }
    let flags = u16::from_le_bytes([head[6], head[7]]);
    if flags & !(REPLY | ERROR) != 0 {
        return Err(FrameError::Flags { found: flags });
    }
    let Some((body, payload)) = rest
        .get(..bytes)
        .and_then(|frame| frame.split_at_checked(body))
    else {
        return Ok(Parsed::Incomplete {
            needed: HEADER_BYTES + bytes,
        });
    };
    if checksum(head, body) != u32_at(head, CRC_AT) {
        return Err(FrameError::Checksum);
    }
    let header = Header {
        kind: u16::from_le_bytes([head[4], head[5]]),
        reply: flags & REPLY != 0,
        error: flags & ERROR != 0,
        envelope: Envelope {
            request: u64_at(head, 8),
            target: ServerId::from_number(u64_at(head, 16)),
            sender: ServerId::from_number(u64_at(head, 24)),
        },
    };
    Ok(Parsed::Frame {
        frame: Frame {
            header,
            body,
            payload,
        },
        bytes: HEADER_BYTES + bytes,
    })
}

/// Start of the payload in the frame at the beginning of untrusted `input`; known once the header
/// has arrived.
pub fn payload_at(input: &[u8]) -> Option<usize> {
    let head = input.first_chunk::<HEADER_BYTES>()?;
    Some(HEADER_BYTES + u32_at(head, BODY_AT) as usize)
}

#[inline]
fn check_length(bytes: usize, limit: usize) -> Result<(), FrameError> {
    if bytes > limit {
        return Err(FrameError::TooLong { bytes, limit });
    }
    Ok(())
}

/// A frame that is being written at the end of a buffer.
#[derive(Debug)]
pub(super) struct Builder<'o> {
    pub out: &'o mut Vec<u8>,
    start: usize,
}

impl<'o> Builder<'o> {
    #[inline]
    pub fn question(out: &'o mut Vec<u8>, kind: Kind, envelope: &Envelope) -> Builder<'o> {
        Builder::begin(out, kind as u16, 0, envelope)
    }

    #[inline]
    pub fn reply(out: &'o mut Vec<u8>, kind: Kind, envelope: &Envelope) -> Builder<'o> {
        Builder::begin(out, kind as u16, REPLY, envelope)
    }

    /// Begins a proof, whose kind is not one of [`Kind`]'s.
    pub fn proof(out: &'o mut Vec<u8>, kind: u16, is_reply: bool) -> Builder<'o> {
        let flags = if is_reply { REPLY } else { 0 };
        Builder::begin(out, kind, flags, &Envelope::default())
    }

    pub fn error(out: &'o mut Vec<u8>, kind: u16, envelope: &Envelope) -> Builder<'o> {
        Builder::begin(out, kind, REPLY | ERROR, envelope)
    }

    #[inline]
    fn begin(out: &'o mut Vec<u8>, kind: u16, flags: u16, envelope: &Envelope) -> Builder<'o> {
        let start = out.len();
        let mut head = [0; HEADER_BYTES];
        head[4..6].copy_from_slice(&kind.to_le_bytes());
        head[6..8].copy_from_slice(&flags.to_le_bytes());
        head[8..16].copy_from_slice(&envelope.request.to_le_bytes());
        head[16..24].copy_from_slice(&envelope.target.number().to_le_bytes());
        head[24..32].copy_from_slice(&envelope.sender.number().to_le_bytes());
        out.extend_from_slice(&head);
        Builder { out, start }
    }

    /// Bytes of the body so far.
    pub fn body_bytes(&self) -> usize {
        self.out.len() - self.start - HEADER_BYTES
    }

    /// The body from byte `at` on.
    pub fn body_mut(&mut self, at: usize) -> &mut [u8] {
        &mut self.out[self.start + HEADER_BYTES + at..]
    }

    /// Completes header and body; the caller sends `payload_bytes` of payload after them.
    ///
    /// # Panics
    /// If the frame is longer than 4 GiB: callers check limits before they make a message.
    #[inline]
    pub fn finish(self, payload_bytes: usize) {
        let body = self.body_bytes();
        let bytes = u32::try_from(body + payload_bytes).expect("a frame below 4 GiB");
        let frame = &mut self.out[self.start..];
        let Some((head, body_bytes)) = frame.split_first_chunk_mut::<HEADER_BYTES>() else {
            unreachable!("begin wrote the header");
        };
        head[..4].copy_from_slice(&bytes.to_le_bytes());
        head[BODY_AT..CRC_AT].copy_from_slice(&(body as u32).to_le_bytes());
        let crc = checksum(head, body_bytes);
        head[CRC_AT..].copy_from_slice(&crc.to_le_bytes());
    }
}
