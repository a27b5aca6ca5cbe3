//! Messages of PUBLISH on their way to another member, one after another in a payload.
//!
//! **Layout** (little-endian)
//!
//! ```text
//! u32 bytes of the channel's name | u32 bytes of the message | name | message
//! ```

use super::cursor::Cursor;
use super::{BodyError, Kind};

/// Bytes of a message beside its texts.
pub const PUBLICATION_HEADER_BYTES: usize = 8;

/// Appends a message.
pub fn append_publication(out: &mut Vec<u8>, channel: &[u8], message: &[u8]) {
    out.reserve(PUBLICATION_HEADER_BYTES + channel.len() + message.len());
    for text in [channel, message] {
        out.extend_from_slice(&(text.len() as u32).to_le_bytes());
    }
    out.extend_from_slice(channel);
    out.extend_from_slice(message);
}

/// The messages of a payload: the name of the channel, and the message.
pub struct Publications<'a>(Cursor<'a>);

impl<'a> Publications<'a> {
    #[must_use]
    pub fn new(payload: &'a [u8]) -> Publications<'a> {
        Publications(Cursor::new(Kind::Peer, payload))
    }

    fn read(&mut self) -> Result<(&'a [u8], &'a [u8]), BodyError> {
        let channel_bytes = self.0.u32("bytes of a channel")? as usize;
        let message_bytes = self.0.u32("bytes of a message")? as usize;
        let channel = self.0.bytes(channel_bytes, "channel")?;
        Ok((channel, self.0.bytes(message_bytes, "message")?))
    }
}

impl<'a> Iterator for Publications<'a> {
    type Item = Result<(&'a [u8], &'a [u8]), BodyError>;

    /// The next message. An error is the last item.
    fn next(&mut self) -> Option<Self::Item> {
        if self.0.rest().is_empty() {
            return None;
        }
        let read = self.read();
        if read.is_err() {
            self.0 = Cursor::new(Kind::Peer, &[]);
        }
        Some(read)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_come_back_and_a_cut_payload_ends_with_an_error() {
        let messages: [(&[u8], &[u8]); 3] = [(b"a", b"first"), (b"", b""), (b"\0b", b"\r\n")];
        let mut payload = Vec::new();
        for (channel, message) in messages {
            append_publication(&mut payload, channel, message);
        }
        let back: Result<Vec<_>, BodyError> = Publications::new(&payload).collect();
        assert_eq!(back, Ok(messages.to_vec()));
        for cut in 1..payload.len() {
            let cut = payload.get(..cut).unwrap_or_default();
            let items: Vec<_> = Publications::new(cut).collect();
            let whole = items.iter().filter(|item| item.is_ok()).count();
            assert!(whole < messages.len());
            assert!(items.len() <= whole + 1, "an error is the last item");
        }
    }
}
