//! One connection of a hub: its state, and the table of all connections.

use crate::Reason;
use crate::channel::Channel;
use crate::input::Input;
use crate::output::{Flushed, Output};
use duramen_base::ids::ClusterId;
use duramen_wire::native::codec::{Handshake, Role};
use rustix::event::epoll::EventFlags;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

/// Identifies a connection of a hub; a hub never uses an id twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConnectionId(pub(crate) u64);

impl ConnectionId {
    fn new(slot: usize, generation: u32) -> ConnectionId {
        ConnectionId(u64::from(generation) << 32 | slot as u64)
    }

    fn slot(self) -> usize {
        self.0 as u32 as usize
    }
}

/// The side that opened the connection.
#[derive(Clone, Debug)]
pub(crate) enum Side {
    /// The other side. Its role is known once it has proved itself.
    Theirs {
        role: Option<Role>,
        peer: SocketAddr,
    },
    /// This side, for a link.
    Ours { link: usize },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    Connecting {
        until: Instant,
    },
    Hello {
        until: Instant,
    },
    Open,
    /// Its last frame is being sent; received bytes are dropped.
    Closing {
        until: Instant,
    },
}

#[derive(Debug)]
pub(crate) struct Connection {
    pub id: ConnectionId,
    pub fd: OwnedFd,
    /// Whether it came by a Unix socket.
    pub is_local: bool,
    /// With a channel the bytes on the socket are TLS records; with `None` they are frames.
    pub channel: Option<Channel>,
    pub side: Side,
    pub phase: Phase,
    /// The state of the handshake, only in phase `Hello`.
    pub handshake: Option<Box<Handshake>>,
    /// The cluster's id that the other side sent in its handshake.
    pub cluster_id: ClusterId,
    /// The cluster's id that this side sent.
    pub told_id: ClusterId,
    pub input: Input,
    pub output: Output,
    pub interest: EventFlags,
    /// When the socket last accepted bytes, or had nothing to send.
    pub moved: Instant,
    /// Questions of the other side that are not answered yet.
    pub unanswered: usize,
    /// Whether it is in the list of connections to be flushed.
    pub is_dirty: bool,
}

impl Connection {
    pub fn is_theirs(&self) -> bool {
        matches!(self.side, Side::Theirs { .. })
    }

    /// Bytes that the socket has not taken, encrypted or not.
    pub fn unsent_bytes(&self) -> usize {
        let encrypted = self.channel.as_ref().map_or(0, Channel::unsent_bytes);
        encrypted + self.output.bytes()
    }

    /// Reason to close it now, because it is late.
    pub fn is_late(&self, now: Instant) -> Option<Reason> {
        let (until, reason) = match self.phase {
            Phase::Open => return None,
            Phase::Connecting { until } => {
                (until, Reason::Unreachable("it takes too long".to_owned()))
            }
            Phase::Hello { until } => (until, Reason::TimedOut("prove itself")),
            Phase::Closing { until } => (until, Reason::Here),
        };
        (until <= now).then_some(reason)
    }

    /// Whether it is open and has taken nothing for longer than `patience`.
    pub fn is_stalled(&self, patience: Duration, now: Instant) -> bool {
        self.phase == Phase::Open
            && self.unsent_bytes() > 0
            && now.saturating_duration_since(self.moved) > patience
    }

    /// Sends as much as the socket takes.
    pub fn send(&mut self) -> Flushed {
        match &mut self.channel {
            Some(channel) => channel.flush(&self.fd, &mut self.output),
            None => self.output.flush(&self.fd),
        }
    }
}

fn is_proved(side: &Side) -> bool {
    matches!(side, Side::Theirs { role: Some(_), .. })
}

/// All connections of a hub.
#[derive(Debug, Default)]
pub(crate) struct Table {
    slots: Vec<Option<Box<Connection>>>,
    generations: Vec<u32>,
    free: Vec<usize>,
    /// Number of connections that the other side opened, and on which it has proved itself.
    proved: usize,
}

impl Table {
    pub fn add(
        &mut self,
        fd: OwnedFd,
        side: Side,
        phase: Phase,
        input: Input,
        now: Instant,
    ) -> &mut Connection {
        let slot = self.free.pop().unwrap_or_else(|| {
            self.slots.push(None);
            self.generations.push(0);
            self.slots.len() - 1
        });
        self.generations[slot] += 1;
        self.proved += usize::from(is_proved(&side));
        self.slots[slot].insert(Box::new(Connection {
            id: ConnectionId::new(slot, self.generations[slot]),
            fd,
            is_local: false,
            channel: None,
            side,
            phase,
            handshake: None,
            cluster_id: ClusterId::NONE,
            told_id: ClusterId::NONE,
            input,
            output: Output::default(),
            interest: EventFlags::empty(),
            moved: now,
            unanswered: 0,
            is_dirty: false,
        }))
    }

    pub fn get_mut(&mut self, id: ConnectionId) -> Option<&mut Connection> {
        let connection = self.slots.get_mut(id.slot())?.as_mut()?;
        (connection.id == id).then_some(connection)
    }

    pub fn take(&mut self, id: ConnectionId) -> Option<Box<Connection>> {
        self.get_mut(id)?;
        let connection = self.slots[id.slot()].take()?;
        self.proved -= usize::from(is_proved(&connection.side));
        self.free.push(id.slot());
        Some(connection)
    }

    /// Notes that the other side, which opened this connection, has proved itself.
    pub fn prove(&mut self, id: ConnectionId, role: Role) {
        if let Some(connection) = self.get_mut(id)
            && let Side::Theirs { role: known, .. } = &mut connection.side
            && known.replace(role).is_none()
        {
            self.proved += 1;
        }
    }

    /// See [`Table::prove`]; connections that another hub handed over count too.
    pub fn proved(&self) -> usize {
        self.proved
    }

    /// Whether the connection was opened by the other side, which has not proved itself.
    pub fn is_stranger(&mut self, id: ConnectionId) -> bool {
        self.get_mut(id)
            .is_some_and(|found| found.is_theirs() && !is_proved(&found.side))
    }

    /// The connections for which `which` returns true.
    pub fn find(&self, which: impl Fn(&Connection) -> bool) -> Vec<ConnectionId> {
        let all = self.slots.iter().flatten();
        let found = all.filter(|connection| which(connection));
        found.map(|connection| connection.id).collect()
    }
}
