//! TLS on a hub's connections: its handshakes, decryption, failures.

use super::traffic::broken;
use super::{Hub, SHAKE_TIME};
use crate::Reason;
use crate::channel::Channel;
use crate::connection::{ConnectionId, Phase, Side};
use crate::output::Payload;
use duramen_tls::{Description, Plain, ROOM_BYTES_MIN, Received, TlsError};
use duramen_wire::native::codec::{Envelope, Kind, Opening, Trouble, encode_trouble, fresh_nonce};
use rustix::event::epoll::EventFlags;
use std::sync::atomic::Ordering;
use std::time::Instant;

/// The room for one receive when the connection's buffer has too little.
const ROOM_BYTES: usize = 2 * ROOM_BYTES_MIN;
/// The refusal of a peer that begins without TLS.
const PLAIN: &str = "this port requires TLS: set tls-cert-file, tls-key-file and tls-ca-cert-file";

impl<M: Send + 'static> Hub<M> {
    /// The certificate of the other side of a connection; `None`: it has no TLS, or is gone.
    pub fn peer_certificate(&mut self, connection: ConnectionId) -> Option<Description> {
        self.table.get_mut(connection)?.channel.as_ref()?.peer()
    }

    /// The channel of a new incoming connection (net::W6).
    ///
    /// # Errors
    /// The certificates cannot be used.
    pub(super) fn accept_tls(&self, is_local: bool) -> Result<Option<Channel>, String> {
        let identity = self.options.identity.as_deref().filter(|_| !is_local);
        identity.map(Channel::accept).transpose()
    }

    /// A link's connection is established: TLS comes first, if there is any.
    pub(super) fn begin(&mut self, id: ConnectionId) {
        let Some(identity) = &self.options.identity else {
            return self.begin_handshake(id);
        };
        let Some(connection) = self.table.get_mut(id) else {
            return;
        };
        let Side::Ours { link } = connection.side else {
            return;
        };
        let address = &self.links.get_mut(link).address;
        match Channel::dial(identity, address) {
            Ok(channel) => connection.channel = Some(channel),
            Err(why) => return self.tls_failed(id, why),
        }
        self.flush(id);
    }

    /// Whether the connection's next step may be one of a TLS handshake, which takes long.
    pub(super) fn shakes_hands(&mut self, id: ConnectionId) -> bool {
        if self.options.identity.is_none() {
            return false;
        }
        self.table.get_mut(id).is_some_and(|connection| {
            let early = matches!(
                connection.phase,
                Phase::Connecting { .. } | Phase::Hello { .. }
            );
            early && !connection.is_local
        })
    }

    /// net::W7: handles these events for [`SHAKE_TIME`], at least one. The others are not lost: the
    /// system reports them again in the next round, behind those that it has not reported yet.
    pub(super) fn shake_hands(&mut self, events: &[(ConnectionId, EventFlags)]) {
        let begun = Instant::now();
        for (id, flags) in events {
            self.happened(*id, *flags);
            if begun.elapsed() >= SHAKE_TIME {
                return;
            }
        }
    }

    /// Receives once from a connection with TLS.
    pub(super) fn receive_records(&mut self, id: ConnectionId) {
        let Some(connection) = self.table.get_mut(id) else {
            return;
        };
        let Some(channel) = &mut connection.channel else {
            return;
        };
        let mut spare = std::mem::take(&mut self.room);
        spare.resize(ROOM_BYTES, 0);
        let is_open = connection.phase == Phase::Open;
        let own: &mut [u8] = match is_open {
            true => connection.input.room(&mut self.buffers),
            false => &mut [],
        };
        let is_own = own.len() >= ROOM_BYTES_MIN;
        let room = if is_own { own } else { &mut spare[..] };
        let bytes = match channel.receive(&connection.fd, room) {
            Ok(Received::Plain(bytes)) => Some(bytes),
            Ok(Received::Progress) => Some(0),
            Ok(Received::Nothing) => None,
            Ok(Received::End) => {
                self.close_because(id, Reason::Ended);
                None
            }
            Err(error) => {
                self.records_failed(id, error);
                None
            }
        };
        if let Some(bytes) = bytes {
            self.has_received(id);
            match is_own {
                true => self.arrived(id, bytes),
                false => self.feed(id, is_open, &spare[..bytes]),
            }
        }
        self.room = spare;
    }

    /// Decrypted bytes are in the input of an open connection.
    fn arrived(&mut self, id: ConnectionId, bytes: usize) {
        if let Some(connection) = self.table.get_mut(id) {
            connection.input.filled(bytes);
            self.received(id);
        }
    }

    /// Puts decrypted bytes into the connection's input. Those of a stranger all at once: behind
    /// its last proof there may be frames, which go with the connection to another thread.
    fn feed(&mut self, id: ConnectionId, is_open: bool, mut bytes: &[u8]) {
        if !is_open {
            self.note_opened(id);
            if let Some(connection) = self.table.get_mut(id)
                && !bytes.is_empty()
            {
                connection.input.append(bytes);
                self.received(id);
            }
            return self.flush(id);
        }
        while let Some(connection) = self.table.get_mut(id)
            && !bytes.is_empty()
        {
            let room = connection.input.room(&mut self.buffers);
            let (now, later) = bytes.split_at(bytes.len().min(room.len()));
            room[..now.len()].copy_from_slice(now);
            bytes = later;
            self.arrived(id, now.len());
        }
    }

    /// Begins the handshake of the native protocol when that of TLS is over.
    fn note_opened(&mut self, id: ConnectionId) {
        let Some(connection) = self.table.get_mut(id) else {
            return;
        };
        let has_opened = connection.channel.as_mut().is_some_and(Channel::has_opened);
        match (has_opened, connection.is_theirs()) {
            (true, true) => self.bind(id),
            (true, false) => self.begin_handshake(id),
            (false, _) => {}
        }
    }

    /// Binds the connection's handshake to its channel (handshake::S5), if it has one.
    pub(super) fn bind(&mut self, id: ConnectionId) {
        let Some(connection) = self.table.get_mut(id) else {
            return;
        };
        let (Some(channel), Some(handshake)) = (&connection.channel, &mut connection.handshake)
        else {
            return;
        };
        match channel.binding() {
            Some(binding) => handshake.bind(&binding),
            None => self.tls_failed(id, "the channel has no exporter".to_owned()),
        }
    }

    fn records_failed(&mut self, id: ConnectionId, error: TlsError) {
        match error {
            TlsError::Socket(errno) => self.close_because(id, broken(errno)),
            TlsError::Early => self.close_because(id, Reason::Ended),
            TlsError::PlainClient(Plain::Native) => self.refuse_plain(id),
            error => self.tls_failed(id, error.to_string()),
        }
    }

    /// TLS ends the connection. The other side is sent the alert, if there is one.
    fn tls_failed(&mut self, id: ConnectionId, why: String) {
        self.options.tls_failures.fetch_add(1, Ordering::Relaxed);
        let Some(connection) = self.table.get_mut(id) else {
            return;
        };
        match (&connection.side, connection.phase) {
            (Side::Theirs { peer, .. }, Phase::Hello { .. }) => {
                let peer = *peer;
                self.say_goodbye(id);
                self.warn(peer, &Reason::Tls(why).to_string());
            }
            _ => {
                // The alert, as far as the socket takes it at once.
                let _ = connection.send();
                self.close_because(id, Reason::Tls(why));
            }
        }
    }

    /// The other side began with the native protocol instead of TLS: it is sent the reason, in its
    /// protocol, and nothing else.
    fn refuse_plain(&mut self, id: ConnectionId) {
        self.options.tls_failures.fetch_add(1, Ordering::Relaxed);
        let (role, nonce) = (self.options.role, fresh_nonce());
        let Some(connection) = self.table.get_mut(id) else {
            return;
        };
        let (Side::Theirs { peer, .. }, Ok(nonce)) = (&connection.side, nonce) else {
            return self.close_because(id, Reason::Ended);
        };
        let peer = *peer;
        connection.channel = None;
        connection.output.push(Payload::None, |out| {
            Opening::new(role, nonce).encode(out);
            let trouble = Trouble::WrongProtocol { reason: PLAIN };
            encode_trouble(out, &Envelope::default(), Kind::Ping as u16, &trouble);
        });
        self.say_goodbye(id);
        self.warn(peer, "it began without TLS, which this port requires");
    }
}
