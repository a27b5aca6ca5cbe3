//! The server's first frame on a Unix socket: its memory descriptor travels with it, and the bytes
//! of all later frames are in that memory.

use super::frame::Builder;
use super::{Parsed, parse_frame};

/// The number of the frame's kind, which is not one of [`Kind`](super::Kind)'s: it is part of the
/// connection's beginning.
const RINGS_KIND: u16 = 6;
const BODY_BYTES: usize = 8;
/// Bytes of the frame.
pub const RINGS_FRAME_BYTES: usize = super::HEADER_BYTES + BODY_BYTES;

/// Appends the frame. `ring_bytes`: size of each of the two rings.
pub fn encode_rings(out: &mut Vec<u8>, ring_bytes: u32) {
    let builder = Builder::proof(out, RINGS_KIND, true);
    builder.out.extend_from_slice(&ring_bytes.to_le_bytes());
    builder.out.extend_from_slice(&[0; 4]);
    builder.finish(0);
}

/// The size of each ring; `None`: `input` is not this frame and nothing else.
pub fn decode_rings(input: &[u8]) -> Option<u32> {
    let Ok(Parsed::Frame { frame, bytes }) = parse_frame(input, BODY_BYTES) else {
        return None;
    };
    let (ring_bytes, zero) = frame.body.split_first_chunk()?;
    let header = frame.header;
    let is_it = header.kind == RINGS_KIND && header.reply && !header.error;
    (is_it && bytes == input.len() && zero == [0; 4]).then(|| u32::from_le_bytes(*ring_bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_frame_is_read_as_written_and_nothing_else_is() {
        let mut frame = Vec::new();
        encode_rings(&mut frame, 1 << 18);
        assert_eq!(frame.len(), RINGS_FRAME_BYTES);
        assert_eq!(decode_rings(&frame), Some(1 << 18));
        for at in 0..frame.len() {
            assert_eq!(decode_rings(&frame[..at]), None, "cut at {at}");
            let mut wrong = frame.clone();
            wrong[at] ^= 1;
            assert_eq!(decode_rings(&wrong), None, "a wrong byte at {at}");
        }
        frame.push(0);
        assert_eq!(decode_rings(&frame), None, "a byte behind it");
    }
}
