//! The frame around every message.

use super::Kind;
use duramen_base::ids::{MapVersion, ServerId};
use duramen_format::checksum;

/// Bytes of a frame's header.
pub const HEADER_BYTES: usize = 40;
const BODY_AT: usize = 32;
const CRC_AT: usize = 36;
/// Flags.
const REPLY: u16 = 1;
const ERROR: u16 = 2;

/// Who asks whom, and which question an answer belongs to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Envelope {
    /// Chosen by the asker; the answer has the same.
    pub request: u64,
    /// For whom it is; [`ServerId::NONE`]: whoever gets it. A server drops what is for another life
    /// of its slot.
    pub target: ServerId,
    /// Who sends it; [`ServerId::NONE`]: no member. A client that asks a master says here, as a
    /// number, by which version of the map it found it: see [`Envelope::map_version`].
    pub sender: ServerId,
}

impl Envelope {
    /// Of a client's request: the version of the tablet map that led it here. A master that has
    /// owned the key only since a later version answers `UnknownTablet`: the request may be a late
    /// copy of one that was executed elsewhere and is forgotten there.
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
    /// [`Kind`] as a number; unknown ones are left to the decoder of bodies.
    pub kind: u16,
    pub reply: bool,
    /// The body is a [`Trouble`](super::Trouble).
    pub error: bool,
    pub envelope: Envelope,
}

/// A whole frame whose checksum was right.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frame<'a> {
    pub header: Header,
    pub body: &'a [u8],
    pub payload: &'a [u8],
}

/// What [`parse_frame`] found at the beginning of its input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Parsed<'a> {
    /// Not before the input has this length. Only declared by the other side, but within the limit:
    /// grow a buffer towards it as bytes arrive.
    Incomplete { needed: usize },
    /// A frame of so many bytes in all.
    Frame { frame: Frame<'a>, bytes: usize },
}

/// Why the input can't be a frame. Close the connection: where the next one begins is not known.
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

/// The checksum of a frame (N3).
#[inline]
fn checksum(header: &[u8; HEADER_BYTES], body: &[u8]) -> u32 {
    let crc = checksum::crc32c(&header[..CRC_AT]);
    checksum::crc32c_append(crc, body)
}

/// Takes the frame at the beginning of untrusted `input`. `limit`: the longest frame to wait for,
/// header excluded.
///
/// # Errors
/// The input is no frame, and no more input will make it one.
#[inline]
pub fn parse_frame(input: &[u8], limit: usize) -> Result<Parsed<'_>, FrameError> {
    let Some((head, rest)) = input.split_first_chunk::<HEADER_BYTES>() else {
        // What is too long is refused as early as it can be seen.
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

/// Where the payload of the frame at the beginning of untrusted `input` begins, as soon as its
/// header is there.
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

/// A frame that is being written to the end of a buffer.
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

    /// Of a kind that is none of [`Kind`]'s: a proof.
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

    /// Bytes of body so far.
    pub fn body_bytes(&self) -> usize {
        self.out.len() - self.start - HEADER_BYTES
    }

    /// The body from byte `at` on.
    pub fn body_mut(&mut self, at: usize) -> &mut [u8] {
        &mut self.out[self.start + HEADER_BYTES + at..]
    }

    /// Ends header and body; the caller sends `payload_bytes` of payload after them.
    ///
    /// # Panics
    /// If the frame is longer than 4 GiB: limits are checked before a message is made.
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
