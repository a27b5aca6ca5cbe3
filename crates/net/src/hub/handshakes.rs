//! The handshakes on new connections: that of TLS first, if there is any, then that of the native
//! protocol. They prove to each side that the other one belongs to its cluster.

use super::complaints::Complaints;
use super::options::Options;
use crate::Reason;
use crate::channel::Channel;
use crate::connection::{Connection, ConnectionId, Phase, Side, Table};
use crate::input::Input;
use crate::output::Payload;
use crate::socket::broken;
use duramen_base::ids::ClusterId;
use duramen_tls::{Identity, Plain, TlsError};
use duramen_wire::native::codec::{
    Credentials, Envelope, Handshake, HelloError, Kind, Opening, Progress, Role, Trouble,
    encode_trouble, fresh_nonce,
};
use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

/// Time that a refused peer has to read the reason.
const GOODBYE: Duration = Duration::from_secs(1);
/// The refusal of a peer that begins without TLS.
const PLAIN: &str = "this port requires TLS: set tls-cert-file, tls-key-file and tls-ca-cert-file";

/// The credentials by which this side proves itself, and the peers that have not proved themselves
/// yet.
#[derive(Debug)]
pub(super) struct Handshakes {
    role: Role,
    cluster: String,
    cluster_id: ClusterId,
    token: Vec<u8>,
    identity: Option<Arc<Identity>>,
    hands_over: fn(Role) -> bool,
    /// Connections whose openers had not proved themselves, oldest first; some have proved
    /// themselves since, or are gone.
    strangers: VecDeque<ConnectionId>,
}

/// The first answer to a peer that has connected.
#[derive(Debug)]
pub(super) struct Greeting {
    pub handshake: Box<Handshake>,
    pub channel: Option<Channel>,
}

/// The consequence of a step of its handshakes for a connection.
#[derive(Debug)]
#[must_use]
pub(super) enum Step {
    Nothing,
    /// The connection's output is to be sent.
    Send,
    Close(Reason),
    /// The peer has proved itself: its frames follow here.
    Accept {
        role: Role,
        peer: SocketAddr,
    },
    /// The peer has proved itself, and another thread takes the connection.
    HandOver {
        role: Role,
        peer: SocketAddr,
    },
    /// The other side of this link has proved itself.
    Linked(usize),
    Goodbye(Goodbye),
}

/// A peer is refused. The reason is queued for it.
#[derive(Debug)]
pub(super) struct Goodbye {
    pub peer: SocketAddr,
    pub why: String,
    /// The peer's role and its cluster, if that is the reason.
    pub foreign: Option<(Role, ClusterId)>,
    /// It has this time to read the reason.
    pub time: Duration,
}

impl Handshakes {
    pub fn new(options: &Options) -> Handshakes {
        Handshakes {
            role: options.role,
            cluster: options.cluster.clone(),
            cluster_id: options.cluster_id,
            token: options.token.clone(),
            identity: options.identity.clone(),
            hands_over: options.hands_over,
            strangers: VecDeque::new(),
        }
    }

    pub fn cluster_id(&self) -> ClusterId {
        self.cluster_id
    }

    pub fn set_cluster_id(&mut self, id: ClusterId) {
        self.cluster_id = id;
    }

    // --- strangers

    /// Notes a connection that a peer opened (net::W5).
    pub fn came(&mut self, id: ConnectionId) {
        self.strangers.push_back(id);
    }

    /// The oldest unproved connection, which is to be closed because there are `most` of them: so
    /// strangers displace only other strangers.
    pub fn crowded_out(
        &mut self,
        most: usize,
        table: &mut Table,
    ) -> Option<(ConnectionId, SocketAddr)> {
        if self.strangers.len() < most {
            return None;
        }
        self.strangers.retain(|id| table.is_stranger(*id));
        if self.strangers.len() < most {
            return None;
        }
        let oldest = self.strangers.pop_front()?;
        match table.get_mut(oldest)?.side {
            Side::Theirs { peer, .. } => Some((oldest, peer)),
            Side::Ours { .. } => None,
        }
    }

    // --- TLS

    /// Whether the connection's next step may be one of a TLS handshake, which takes long.
    pub fn may_take_long(&self, connection: &Connection) -> bool {
        let is_early = matches!(
            connection.phase,
            Phase::Connecting { .. } | Phase::Hello { .. }
        );
        self.identity.is_some() && is_early && !connection.is_local
    }

    /// A link's connection to `address` is established: TLS comes first (net::W6), if there is any.
    pub fn begin(
        &self,
        connection: &mut Connection,
        (address, role): (&str, Role),
        complaints: &Complaints,
    ) -> Step {
        let Some(identity) = &self.identity else {
            return begin_native(connection, role, complaints);
        };
        match Channel::dial(identity, address) {
            Ok(channel) => {
                connection.channel = Some(channel);
                Step::Send
            }
            Err(why) => tls_failed(connection, why, complaints),
        }
    }

    // --- the native protocol

    /// The first answer to a new incoming connection. Nothing is sent before the other side has
    /// sent something (handshake::S2).
    ///
    /// # Errors
    /// There is no randomness, or the certificates cannot be used.
    pub fn greet(&self, is_local: bool) -> Result<Greeting, String> {
        let nonce = fresh_nonce().map_err(|error| error.to_string())?;
        let identity = self.identity.as_deref().filter(|_| !is_local); // net::W6
        Ok(Greeting {
            channel: identity.map(Channel::accept).transpose()?,
            handshake: Box::new(Handshake::accept(self.role, nonce)),
        })
    }

    /// Takes a step of a handshake with the bytes that have arrived. `is_full` is true if the limit
    /// of proved peers is reached.
    pub fn go_on(
        &self,
        connection: &mut Connection,
        is_full: bool,
        complaints: &Complaints,
    ) -> Step {
        let Some(handshake) = &mut connection.handshake else {
            return Step::Nothing;
        };
        let ours = Credentials {
            cluster: &self.cluster,
            token: &self.token,
            id: self.cluster_id,
        };
        let (input, mut progress) = (connection.input.bytes(), None);
        connection.output.push(Payload::None, |out| {
            progress = Some(handshake.advance(ours, input, out));
        });
        match progress.expect("it was tried") {
            Ok(Progress::Waiting { used }) => {
                connection.input.skip(used);
                Step::Send
            }
            Ok(Progress::Done { used, role }) => {
                connection.input.skip(used);
                connection.cluster_id = handshake.their_id();
                connection.told_id = handshake.told_id();
                // This side got its id during the handshake: the server connects again, and gets
                // the id too.
                let is_greeted = connection.told_id == self.cluster_id || !handshake.has_ids();
                match connection.side {
                    Side::Theirs { .. } if role != Role::Client && !is_greeted => {
                        Step::Close(Reason::Here)
                    }
                    _ => self.place(connection, role, is_full, complaints),
                }
            }
            Err(error) => refuse(connection, error.into(), complaints),
        }
    }

    /// The other side has proved itself: frames follow (net::W4).
    fn place(
        &self,
        connection: &mut Connection,
        role: Role,
        is_full: bool,
        complaints: &Complaints,
    ) -> Step {
        connection.handshake = None;
        match connection.side {
            Side::Theirs { .. } if connection.is_local && role != Role::Client => {
                let why = "only clients connect to this socket";
                refuse(connection, Reason::Refused(why.to_owned()), complaints)
            }
            Side::Theirs { peer, .. } if (self.hands_over)(role) => Step::HandOver { role, peer },
            Side::Theirs { .. } if is_full => refuse(connection, Reason::Full, complaints),
            Side::Theirs { peer, .. } => {
                connection.phase = Phase::Open;
                Step::Accept { role, peer }
            }
            Side::Ours { link } => {
                connection.phase = Phase::Open;
                Step::Linked(link)
            }
        }
    }

    /// TLS has failed on a connection.
    pub fn failed(
        &self,
        connection: &mut Connection,
        error: TlsError,
        complaints: &Complaints,
    ) -> Step {
        match error {
            TlsError::Socket(errno) => Step::Close(broken(errno)),
            TlsError::Early => Step::Close(Reason::Ended),
            TlsError::PlainClient(Plain::Native) => self.refuse_plain(connection, complaints),
            error => tls_failed(connection, error.to_string(), complaints),
        }
    }

    /// Refuses a side that began with the native protocol instead of TLS: it gets the reason, in
    /// that protocol, and nothing else.
    fn refuse_plain(&self, connection: &mut Connection, complaints: &Complaints) -> Step {
        complaints.tls_failed();
        let (Side::Theirs { peer, .. }, Ok(nonce)) = (&connection.side, fresh_nonce()) else {
            return Step::Close(Reason::Ended);
        };
        let peer = *peer;
        connection.channel = None;
        connection.output.push(Payload::None, |out| {
            Opening::new(self.role, nonce).encode(out);
            let trouble = Trouble::WrongProtocol { reason: PLAIN };
            encode_trouble(out, &Envelope::default(), Kind::Ping as u16, &trouble);
        });
        let why = "it began without TLS, which this port requires";
        say_goodbye(connection, peer, why.to_owned(), None)
    }
}

/// Begins the handshake of the native protocol when that of TLS is over. `role` is the role of the
/// connection's link.
pub(super) fn note_opened(
    connection: &mut Connection,
    role: impl FnOnce(usize) -> Role,
    complaints: &Complaints,
) -> Step {
    let has_opened = connection.channel.as_mut().is_some_and(Channel::has_opened);
    match connection.side {
        _ if !has_opened => Step::Nothing,
        Side::Theirs { .. } => match bind(connection) {
            Ok(()) => Step::Nothing,
            Err(why) => tls_failed(connection, why, complaints),
        },
        Side::Ours { link } => begin_native(connection, role(link), complaints),
    }
}

/// A link's connection is established, and encrypted if it is to be.
fn begin_native(connection: &mut Connection, role: Role, complaints: &Complaints) -> Step {
    let nonce = match fresh_nonce() {
        Ok(nonce) => nonce,
        Err(error) => return Step::Close(error.into()),
    };
    let mut handshake = None;
    connection.output.push(Payload::None, |out| {
        handshake = Some(Box::new(Handshake::dial(role, nonce, out)));
    });
    connection.handshake = handshake;
    match bind(connection) {
        Ok(()) => Step::Send,
        Err(why) => tls_failed(connection, why, complaints),
    }
}

/// Binds the connection's handshake to its channel (handshake::S5), if it has one.
fn bind(connection: &mut Connection) -> Result<(), String> {
    let (Some(channel), Some(handshake)) = (&connection.channel, &mut connection.handshake) else {
        return Ok(());
    };
    let Some(binding) = channel.binding() else {
        return Err("the channel has no exporter".to_owned());
    };
    handshake.bind(&binding);
    Ok(())
}

/// Ends a connection because TLS has failed. The other side gets the alert, if there is one.
fn tls_failed(connection: &mut Connection, why: String, complaints: &Complaints) -> Step {
    complaints.tls_failed();
    match (&connection.side, connection.phase) {
        (Side::Theirs { peer, .. }, Phase::Hello { .. }) => {
            let peer = *peer;
            say_goodbye(connection, peer, Reason::Tls(why).to_string(), None)
        }
        _ => {
            // This sends the alert, as far as the socket takes it at once.
            let _ = connection.send();
            Step::Close(Reason::Tls(why))
        }
    }
}

/// Queues the reason for a refused peer.
fn refuse(connection: &mut Connection, reason: Reason, complaints: &Complaints) -> Step {
    let Side::Theirs { peer, .. } = connection.side else {
        // handshake::S4: queued bytes are sent, as far as the socket takes them at once.
        let _ = connection.send();
        return Step::Close(reason);
    };
    complaints.offended();
    let role = connection.handshake.as_ref().and_then(|shake| shake.role());
    let text = reason.to_string();
    let trouble = trouble(&reason, &text);
    connection.output.push(Payload::None, |out| {
        encode_trouble(out, &Envelope::default(), Kind::Ping as u16, &trouble);
    });
    let foreign = match reason {
        Reason::Hello(HelloError::OtherCluster { theirs, .. }) => role.map(|role| (role, theirs)),
        _ => None,
    };
    say_goodbye(connection, peer, text, foreign)
}

/// The error frame for a refused peer.
fn trouble<'r>(reason: &Reason, text: &'r str) -> Trouble<'r> {
    match reason {
        Reason::Hello(HelloError::WrongCluster { .. } | HelloError::OtherCluster { .. }) => {
            Trouble::WrongCluster { reason: text }
        }
        Reason::Token => Trouble::NotPermitted { reason: text },
        Reason::Full => Trouble::Busy {
            after_ms: GOODBYE.as_millis() as u32,
        },
        _ => Trouble::WrongProtocol { reason: text },
    }
}

/// Ends a refused peer's connection once its output is sent, and gives the peer some time to read
/// that output.
fn say_goodbye(
    connection: &mut Connection,
    peer: SocketAddr,
    why: String,
    foreign: Option<(Role, ClusterId)>,
) -> Step {
    connection.handshake = None;
    connection.input = Input::default();
    Step::Goodbye(Goodbye {
        peer,
        why,
        foreign,
        time: GOODBYE,
    })
}
