//! The events of a hub.

use crate::Reason;
use crate::channel::Channel;
use crate::connection::{Connection, ConnectionId, Side};
use crate::input::Message;
use crate::link::Broken;
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
    /// Whether the socket is a Unix socket ([`Hub::listen_locally`](crate::Hub::listen_locally));
    /// `peer` is then the loopback address with port 0.
    pub is_local: bool,
    /// The TLS session, if there is one: the socket carries its records.
    pub tls: Option<Box<Session>>,
    /// Bytes received after the handshake, decrypted.
    pub received: Vec<u8>,
}

impl Incoming {
    /// A connection on which a peer has proved itself in this role.
    pub(super) fn of(connection: Connection, role: Role, peer: SocketAddr) -> Incoming {
        let Connection {
            fd,
            is_local,
            channel,
            input,
            ..
        } = connection;
        Incoming {
            fd,
            role,
            peer,
            is_local,
            tls: channel.map(Channel::into_session),
            received: input.into_bytes(),
        }
    }
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
    /// A question of a peer, to be answered once by [`Hub::reply`](crate::Hub::reply).
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

impl<M> Event<M> {
    /// A question of the other side, or its answer to one of this side.
    pub(super) fn of(connection: &mut Connection, message: Message) -> Event<M> {
        match connection.side {
            Side::Ours { .. } => Event::Answer {
                request: message.header().envelope.request,
                message,
                cluster_id: connection.cluster_id,
            },
            Side::Theirs { role, .. } => {
                connection.unanswered += 1;
                Event::Question {
                    connection: connection.id,
                    role: role.expect("frames follow a handshake"),
                    message,
                }
            }
        }
    }
}

impl<M> From<Broken> for Event<M> {
    fn from(broken: Broken) -> Event<M> {
        let Broken {
            address,
            role,
            requests,
            reason,
        } = broken;
        Event::Unanswered {
            address,
            role,
            requests,
            reason,
        }
    }
}
