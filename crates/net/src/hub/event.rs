//! The events of a hub.

use crate::Reason;
use crate::connection::ConnectionId;
use crate::input::Message;
use duramen_base::ids::ClusterId;
use duramen_tls::Session;
use duramen_wire::native::codec::Role;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;

/// A connection to be taken over by another thread. The handshake is over.
#[derive(Debug)]
pub struct Incoming {
    /// A non-blocking socket.
    pub fd: OwnedFd,
    pub role: Role,
    pub peer: SocketAddr,
    /// The socket is a Unix socket ([`Hub::listen_locally`](crate::Hub::listen_locally)); `peer`
    /// is then the loopback address with port 0.
    pub is_local: bool,
    /// TLS, if the connection has it: the socket carries its records.
    pub tls: Option<Box<Session>>,
    /// Bytes received after the handshake, decrypted.
    pub received: Vec<u8>,
}

/// An event of a hub.
#[derive(Debug)]
pub enum Event<M> {
    /// A peer connected and may send questions.
    Accepted {
        connection: ConnectionId,
        role: Role,
        peer: SocketAddr,
    },
    /// See [`Options::hands_over`](crate::Options::hands_over).
    Handed(Incoming),
    /// To be answered by [`Hub::reply`](crate::Hub::reply), once.
    Question {
        connection: ConnectionId,
        role: Role,
        message: Message,
    },
    /// An accepted connection is gone.
    Closed {
        connection: ConnectionId,
        reason: Reason,
    },
    /// The answer to a question of [`Hub::ask`](crate::Hub::ask). `cluster_id`: the id that the
    /// other side sent.
    Answer {
        request: u64,
        message: Message,
        cluster_id: ClusterId,
    },
    /// A process of a cluster with another id connected, and was refused.
    Foreign {
        peer: SocketAddr,
        role: Role,
        cluster_id: ClusterId,
    },
    /// A link broke or could not be opened: these questions, perhaps none, get no answer.
    Unanswered {
        address: String,
        role: Role,
        requests: Vec<u64>,
        reason: Reason,
    },
    /// Mail sent by a [`Handle`](crate::Handle).
    Mail(M),
}
