//! One TLS connection over a nonblocking socket, for event loops: plain bytes on one side, a socket
//! on the other.
//!
//! The caller owns the buffers. Received records are decrypted into the caller's room; plain bytes
//! that the caller wants to send become records, of which the session keeps those that the socket
//! does not take.
//!
//! **Invariants**
//! - E1: after each [`receive`](Session::receive), what the socket had given is either with the
//!   caller, as plain bytes, or part of a record that has not come whole. So a caller may wait for
//!   the socket's next event: no plain bytes wait inside.
//! - E2: plain bytes are encrypted only when all earlier records have left, so a session keeps at
//!   most [`RECORDS_BYTES_MAX`] and the overhead of records.
//! - E3: before the handshake is over the peer has sent at most [`HANDSHAKE_BYTES_MAX`] and what
//!   one `receive` takes; then the session ends.
//! - E4: updates of keys, renegotiations, empty records and warnings without data in between are
//!   bounded by rustls; a peer that sends too many ends its session.

use crate::certificate::Description;
use crate::error::{LoadError, Plain, TlsError};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendAncillaryBuffer, SendFlags};
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection, Connection, ServerConfig, ServerConnection};
use std::io::{self, ErrorKind, IoSlice, Read as _, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

/// Longest handshake of a peer: a chain of certificates has a few thousand bytes.
pub const HANDSHAKE_BYTES_MAX: usize = 32 << 10;
/// Plain bytes that may come from bytes received earlier: those of one record.
const RECORD_BYTES_MAX: usize = 16 << 10;
/// Least room for [`Session::receive`]: the plain bytes of a record that has come in part, and as
/// much for new bytes.
pub const ROOM_BYTES_MIN: usize = 2 * RECORD_BYTES_MAX;
/// Plain bytes that are encrypted at once: the limit of rustls.
pub const RECORDS_BYTES_MAX: usize = 64 << 10;
/// A record begins with its type, a version, and its length.
const HEADER_BYTES: usize = 5;
/// First byte of a TLS record with a handshake message, and of one with an alert.
const HANDSHAKE_RECORD: u8 = 22;
const ALERT_RECORD: u8 = 21;

/// The result of [`Session::receive`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Received {
    /// So many plain bytes, at least one, are in the front of the room.
    Plain(usize),
    /// Bytes came that give no data: those of a handshake, or of a record that has not come whole.
    /// There may be records to send.
    Progress,
    /// The socket has nothing.
    Nothing,
    /// The peer sends nothing more. It may still receive.
    End,
}

/// The result of [`Session::send`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sent {
    /// Plain bytes that were encrypted: the caller may forget them.
    pub plain: usize,
    /// Bytes that the socket took.
    pub wire: usize,
}

/// One TLS connection.
pub struct Session {
    connection: Connection,
    framing: Framing,
    /// Received before the handshake was over.
    handshake_bytes: usize,
    /// Encrypted bytes that the socket has not taken.
    unsent: usize,
    /// The peer has said that it sends nothing more.
    has_ended: bool,
    /// The first byte has come and may be one of TLS.
    has_begun: bool,
}

impl std::fmt::Debug for Session {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Session")
            .field("is_handshaking", &self.is_handshaking())
            .field("unsent", &self.unsent)
            .field("has_ended", &self.has_ended)
            .finish_non_exhaustive()
    }
}

/// Follows the records in the received bytes, to know how many wait for the rest of their record.
#[derive(Default)]
struct Framing {
    header: [u8; HEADER_BYTES],
    /// Bytes of the header that have come.
    have: usize,
    /// Bytes of the record that have not come; only known with the whole header.
    left: usize,
    partial: usize,
}

impl Framing {
    fn follow(&mut self, mut bytes: &[u8]) {
        while let Some((first, rest)) = bytes.split_first() {
            if self.left > 0 {
                let (taken, behind) = bytes.split_at(self.left.min(bytes.len()));
                self.left -= taken.len();
                self.partial += taken.len();
                bytes = behind;
            } else {
                if let Some(place) = self.header.get_mut(self.have) {
                    *place = *first;
                }
                self.have += 1;
                self.partial += 1;
                bytes = rest;
                if self.have < HEADER_BYTES {
                    continue;
                }
                let [.., high, low] = self.header;
                self.left = usize::from(u16::from_be_bytes([high, low]));
            }
            if self.left == 0 {
                (self.have, self.partial) = (0, 0);
            }
        }
    }
}

/// A nonblocking socket as rustls writes to one.
struct Socket<'a>(BorrowedFd<'a>);

impl Write for Socket<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.write_vectored(&[IoSlice::new(bytes)])
    }

    fn write_vectored(&mut self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        let mut ancillary = SendAncillaryBuffer::default();
        let sent = rustix::net::sendmsg(self.0, slices, &mut ancillary, SendFlags::NOSIGNAL)?;
        Ok(sent)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn errno(error: &io::Error) -> Errno {
    Errno::from_io_error(error).unwrap_or(Errno::IO)
}

impl Session {
    /// # Errors
    /// [`LoadError::Refused`].
    pub(crate) fn server(config: Arc<ServerConfig>) -> Result<Session, LoadError> {
        Session::new(ServerConnection::new(config).map(Connection::Server))
    }

    /// # Errors
    /// [`LoadError::Refused`].
    pub(crate) fn client(
        config: Arc<ClientConfig>,
        name: ServerName<'static>,
    ) -> Result<Session, LoadError> {
        Session::new(ClientConnection::new(config, name).map(Connection::Client))
    }

    fn new(connection: Result<Connection, rustls::Error>) -> Result<Session, LoadError> {
        let connection = connection.map_err(|error| LoadError::Refused(error.to_string()))?;
        let mut session = Session {
            connection,
            framing: Framing::default(),
            handshake_bytes: 0,
            unsent: 0,
            has_ended: false,
            has_begun: false,
        };
        session.note_unsent(); // a client's hello
        Ok(session)
    }

    /// Whether data can't flow yet.
    pub fn is_handshaking(&self) -> bool {
        self.connection.is_handshaking()
    }

    /// Encrypted bytes that the socket has not taken; at most [`RECORDS_BYTES_MAX`] and overhead.
    pub fn unsent(&self) -> usize {
        self.unsent
    }

    /// Received bytes of a record that has not come whole.
    pub fn partial(&self) -> usize {
        self.framing.partial
    }

    /// The peer has said that it sends nothing more.
    pub fn has_ended(&self) -> bool {
        self.has_ended
    }

    /// Whether the session continues an earlier one.
    pub fn is_resumed(&self) -> bool {
        self.connection.handshake_kind() == Some(rustls::HandshakeKind::Resumed)
    }

    /// The negotiated version, `TLSv1.3`; empty before it is known.
    pub fn version(&self) -> &'static str {
        match self.connection.protocol_version() {
            Some(rustls::ProtocolVersion::TLSv1_3) => "TLSv1.3",
            Some(rustls::ProtocolVersion::TLSv1_2) => "TLSv1.2",
            _ => "",
        }
    }

    /// The peer's certificate. None: it showed none, or none yet.
    pub fn peer(&self) -> Option<Description> {
        Description::new(self.connection.peer_certificates()?.first()?)
    }

    /// 32 bytes that only the two ends of this session know, and that differ for each session
    /// (RFC 9266, `tls-exporter`): what is proved together with them cannot be proved elsewhere.
    /// None before the handshake is over.
    pub fn channel_binding(&self) -> Option<[u8; 32]> {
        let label = b"EXPORTER-Channel-Binding";
        self.connection
            .export_keying_material([0; 32], label, Some(&[]))
            .ok()
    }

    /// Receives once from the socket, and puts the plain bytes into the front of `room`, which has
    /// at least [`ROOM_BYTES_MIN`].
    ///
    /// # Errors
    /// [`TlsError`]: the session is over. [`send`](Self::send) still sends the alert that tells the
    /// peer.
    ///
    /// # Panics
    /// If the room is too small.
    pub fn receive(&mut self, socket: impl AsFd, room: &mut [u8]) -> Result<Received, TlsError> {
        assert!(room.len() >= ROOM_BYTES_MIN, "no room for a record");
        if self.has_ended {
            return Ok(Received::End);
        }
        let space = room.get_mut(RECORD_BYTES_MAX..).unwrap_or_default();
        let received = rustix::net::recv(socket, space, RecvFlags::empty());
        match received.map(|(bytes, _)| bytes) {
            Ok(0) if self.is_handshaking() => Err(TlsError::Early),
            Ok(0) => {
                self.has_ended = true;
                Ok(Received::End)
            }
            Ok(bytes) => self.take(room, bytes),
            Err(Errno::AGAIN | Errno::INTR) => Ok(Received::Nothing),
            Err(error) => Err(TlsError::Socket(error)),
        }
    }

    /// Decrypts the `received` bytes that are in `room` behind the space of one record.
    fn take(&mut self, room: &mut [u8], received: usize) -> Result<Received, TlsError> {
        let (mut from, to) = (RECORD_BYTES_MAX, RECORD_BYTES_MAX + received);
        let bytes = room.get(from..to).unwrap_or_default();
        self.check_first(bytes)?;
        self.framing.follow(bytes);
        if self.is_handshaking() {
            self.handshake_bytes += received;
        }
        let mut plain = 0;
        while from < to {
            let mut rest = room.get(from..to).unwrap_or_default();
            let read = self.connection.read_tls(&mut rest);
            from += read.map_err(|error| TlsError::Invalid(error.to_string()))?;
            // The plain bytes are at most as many as the bytes that were read, and one record more.
            let done = room.get_mut(..from).unwrap_or_default();
            let state = self.connection.process_new_packets();
            self.note_unsent();
            self.has_ended |= state?.peer_has_closed();
            loop {
                let free = done.get_mut(plain..).unwrap_or_default();
                debug_assert!(!free.is_empty(), "E1");
                match self.connection.reader().read(free) {
                    Ok(0) => break,
                    Ok(bytes) => plain += bytes,
                    Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                    Err(error) => return Err(TlsError::Invalid(error.to_string())),
                }
            }
            if self.has_ended {
                break; // bytes behind the end must be ignored
            }
        }
        if self.is_handshaking() && self.handshake_bytes > HANDSHAKE_BYTES_MAX {
            return Err(TlsError::LongHandshake); // E3: too many bytes before its end
        }
        Ok(match plain {
            0 if self.has_ended => Received::End,
            0 => Received::Progress,
            plain => Received::Plain(plain),
        })
    }

    /// Refuses a peer whose first bytes are not those of TLS.
    fn check_first(&mut self, bytes: &[u8]) -> Result<(), TlsError> {
        if self.has_begun {
            return Ok(());
        }
        self.has_begun = true;
        match (bytes.first(), &self.connection) {
            (Some(&HANDSHAKE_RECORD | &ALERT_RECORD) | None, _) => Ok(()),
            (_, Connection::Server(_)) => Err(TlsError::PlainClient(Plain::guess(bytes))),
            (_, Connection::Client(_)) => Err(TlsError::PlainServer),
        }
    }

    /// Sends records that wait, then as much of `plain` as the socket takes and one batch of
    /// records more. Before the handshake is over it sends none of `plain`.
    ///
    /// # Errors
    /// [`TlsError::Socket`]: the peer is gone. A socket that is full is no error.
    pub fn send(&mut self, socket: impl AsFd, plain: &[u8]) -> Result<Sent, TlsError> {
        let mut sent = Sent::default();
        let mut socket = Socket(socket.as_fd());
        loop {
            if self.connection.wants_write() {
                match self.connection.write_tls(&mut socket) {
                    Ok(bytes) => sent.wire += bytes,
                    Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                    Err(error) if error.kind() == ErrorKind::Interrupted => {}
                    Err(error) => return Err(TlsError::Socket(errno(&error))),
                }
                continue;
            }
            let rest = plain.get(sent.plain..).unwrap_or_default();
            if rest.is_empty() || self.is_handshaking() {
                break;
            }
            let taken = self.connection.writer().write(rest); // E2: all earlier records have left
            match taken.map_err(|error| TlsError::Invalid(error.to_string()))? {
                0 => break,
                taken => sent.plain += taken,
            }
        }
        self.note_unsent();
        Ok(sent)
    }

    fn note_unsent(&mut self) {
        self.unsent = match self.connection.wants_write() {
            false => 0,
            // After an error only an alert is left.
            true => self
                .connection
                .process_new_packets()
                .map_or(1, |state| state.tls_bytes_to_write()),
        };
    }

    /// Tells the peer that this side sends nothing more. The message is lost if the socket does not
    /// take it at once.
    pub fn say_goodbye(&mut self, socket: impl AsFd) {
        self.connection.send_close_notify();
        let _ = self.send(socket, &[]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_part_of_a_record_is_counted_however_it_comes() {
        let mut stream = Vec::new();
        for length in [0, 1, 300, 16_000] {
            stream.extend_from_slice(&[23, 3, 3, (length >> 8) as u8, length as u8]);
            stream.resize(stream.len() + length, 0);
        }
        let mut whole = Framing::default();
        whole.follow(&stream);
        assert_eq!(whole.partial, 0);
        for piece in [1, 2, 3, 7, 1000] {
            let mut framing = Framing::default();
            for bytes in stream.chunks(piece) {
                framing.follow(bytes);
                assert!(framing.partial <= HEADER_BYTES + 16_000);
            }
            assert_eq!(framing.partial, 0, "in pieces of {piece}");
        }
        let mut framing = Framing::default();
        framing.follow(&stream[..stream.len() - 10]);
        assert_eq!(framing.partial, HEADER_BYTES + 16_000 - 10);
    }
}
