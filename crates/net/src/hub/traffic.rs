//! The bytes on a hub's connections: this file receives, decrypts, cuts them into frames, and
//! sends.

use super::options::Limits;
use crate::Reason;
use crate::connection::{Connection, ConnectionId, Phase, Side};
use crate::input::{Buffers, Message, Received};
use crate::output::Flushed;
use crate::socket::broken;
use duramen_tls::{ROOM_BYTES_MIN, TlsError};
use duramen_wire::native::codec::{FrameError, HANDSHAKE_BYTES_MAX, Role};
use rustix::event::epoll::EventFlags;
use rustix::net::Shutdown;
use std::time::Instant;

/// The room for one receive when the connection's buffer has too little.
const ROOM_BYTES: usize = 2 * ROOM_BYTES_MIN;

#[derive(Debug, Default)]
pub(super) struct Traffic {
    buffers: Buffers,
    /// TLS records are received into this if a connection's own buffer has too little room.
    room: Vec<u8>,
    /// Connections with new output.
    dirty: Vec<ConnectionId>,
}

/// The end of one receive from a connection with TLS.
#[derive(Debug)]
pub(super) enum Records {
    Nothing,
    End,
    Failed(TlsError),
    /// The decrypted bytes are in the input of the connection.
    InPlace,
    /// This many decrypted bytes are in this room, which goes back by [`Traffic::give_back`].
    Aside(usize, Vec<u8>),
}

impl Traffic {
    /// Receives once from a connection without TLS. Returns false if no bytes have come.
    pub fn receive(&mut self, connection: &mut Connection) -> Result<bool, Reason> {
        let received = match connection.phase {
            Phase::Open => connection.input.receive(&connection.fd, &mut self.buffers),
            _ => connection
                .input
                .receive_of_stranger(&connection.fd, HANDSHAKE_BYTES_MAX),
        };
        match received {
            Received::Bytes => Ok(true),
            Received::Nothing => Ok(false),
            Received::End => Err(Reason::Ended),
            Received::Failed(errno) => Err(broken(errno)),
        }
    }

    /// Receives once from a connection with TLS.
    pub fn receive_records(&mut self, connection: &mut Connection) -> Records {
        let Some(channel) = &mut connection.channel else {
            return Records::Nothing;
        };
        let mut spare = std::mem::take(&mut self.room);
        spare.resize(ROOM_BYTES, 0);
        let own: &mut [u8] = match connection.phase == Phase::Open {
            true => connection.input.room(&mut self.buffers),
            false => &mut [],
        };
        let is_own = own.len() >= ROOM_BYTES_MIN;
        let room = if is_own { own } else { &mut spare[..] };
        let received = channel.receive(&connection.fd, room);
        let bytes = match received {
            Ok(duramen_tls::Received::Plain(bytes)) => Ok(bytes),
            Ok(duramen_tls::Received::Progress) => Ok(0),
            Ok(duramen_tls::Received::Nothing) => Err(Records::Nothing),
            Ok(duramen_tls::Received::End) => Err(Records::End),
            Err(error) => Err(Records::Failed(error)),
        };
        match bytes {
            Ok(bytes) if !is_own => Records::Aside(bytes, spare),
            Ok(bytes) => {
                self.room = spare;
                connection.input.filled(bytes);
                Records::InPlace
            }
            Err(nothing) => {
                self.room = spare;
                nothing
            }
        }
    }

    /// Puts decrypted bytes into the input of an open connection, as many as it has room for, and
    /// removes them from `bytes`.
    pub fn fill(&mut self, connection: &mut Connection, bytes: &mut &[u8]) {
        let room = connection.input.room(&mut self.buffers);
        let (now, later) = bytes.split_at(bytes.len().min(room.len()));
        room[..now.len()].copy_from_slice(now);
        *bytes = later;
        connection.input.filled(now.len());
    }

    pub fn give_back(&mut self, room: Vec<u8>) {
        self.room = room;
    }

    /// Cuts the received bytes into frames. Those before a malformed frame are valid.
    pub fn cut(
        &mut self,
        connection: &mut Connection,
        limits: &Limits,
    ) -> (Vec<Message>, Result<(), FrameError>) {
        let limit = match connection.side {
            Side::Theirs {
                role: Some(Role::Client),
                ..
            } => limits.client_frame_bytes,
            _ => limits.peer_frame_bytes,
        };
        let mut found: Vec<Message> = Vec::new();
        let input = &mut connection.input;
        let cut = input.cut(limit, &mut self.buffers, |message| found.push(message));
        (found, cut)
    }

    /// Marks a connection with new output: the next [`take_dirty`](Self::take_dirty) returns it.
    pub fn soil(&mut self, connection: &mut Connection, now: Instant) {
        if !std::mem::replace(&mut connection.is_dirty, true) {
            if !connection.interest.contains(EventFlags::OUT) {
                connection.moved = now; // nothing waited until now
            }
            self.dirty.push(connection.id);
        }
    }

    pub fn take_dirty(&mut self) -> Vec<ConnectionId> {
        std::mem::take(&mut self.dirty)
    }

    /// Frees unused buffers. To be called periodically.
    pub fn sweep(&mut self) {
        self.buffers.sweep();
    }
}

/// Sends as much as the socket takes.
pub(super) fn flush(connection: &mut Connection, now: Instant) -> Result<(), Reason> {
    if matches!(connection.phase, Phase::Connecting { .. }) {
        return Ok(());
    }
    match connection.send() {
        Flushed::All => {
            connection.moved = now;
            if matches!(connection.phase, Phase::Closing { .. }) {
                if let Some(channel) = &mut connection.channel {
                    channel.say_goodbye(&connection.fd);
                }
                // The peer reads the reason, then the end. Until then its bytes are received
                // and dropped; otherwise the reason might be lost.
                let _ = rustix::net::shutdown(&connection.fd, Shutdown::Write);
            }
            Ok(())
        }
        Flushed::Part { some } => {
            if some {
                connection.moved = now;
            }
            Ok(())
        }
        Flushed::Failed(errno) => Err(broken(errno)),
    }
}
