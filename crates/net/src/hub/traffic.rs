//! Events on a hub's connections: handshakes, frames, sending, ends, timers.

use super::{
    Credentials, Event, GOODBYE, Handshake, Hub, Incoming, SWEEP, Timer, fresh_nonce, not_connected,
};
use crate::Reason;
use crate::channel::Channel;
use crate::connection::{Connection, ConnectionId, Phase, Side};
use crate::input::{Input, Message, Received};
use crate::link::State;
use crate::output::{Flushed, Payload};
use crate::socket;
use duramen_base::ids::ClusterId;
use duramen_wire::native::codec::{
    Envelope, HANDSHAKE_BYTES_MAX, HelloError, Kind, Progress, Reply, Role, Trouble, decode_reply,
    encode_trouble,
};
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::io::Errno;
use rustix::net::Shutdown;
use std::cmp::Reverse;
use std::net::SocketAddr;

/// Reason why an established connection broke. Only a reset is certainly caused by the other side.
pub(super) fn broken(errno: Errno) -> Reason {
    match errno {
        Errno::CONNRESET | Errno::PIPE => Reason::Reset,
        _ => Reason::Broken(errno.to_string()),
    }
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

impl<M: Send + 'static> Hub<M> {
    pub(super) fn happened(&mut self, id: ConnectionId, flags: EventFlags) {
        let Some(connection) = self.table.get_mut(id) else {
            return;
        };
        if let Phase::Connecting { until } = connection.phase {
            if let Err(errno) = socket::connected(&connection.fd) {
                return self.close_because(id, not_connected(errno));
            }
            if !flags.contains(EventFlags::OUT) {
                return;
            }
            // An address that accepted the connection gets the full time for its hello.
            let until = until.max(self.now + self.options.limits.hello);
            connection.phase = Phase::Hello { until };
            self.timers.push(Reverse((until, Timer::Connection(id.0))));
            return self.begin(id);
        }
        if flags.contains(EventFlags::OUT) {
            self.flush(id);
        }
        if flags.intersects(EventFlags::IN | EventFlags::HUP | EventFlags::ERR) {
            self.receive(id);
        }
    }

    fn receive(&mut self, id: ConnectionId) {
        let Some(connection) = self.table.get_mut(id) else {
            return;
        };
        // Further bytes of a refused peer are not even decrypted.
        let is_closing = matches!(connection.phase, Phase::Closing { .. });
        if connection.channel.is_some() && !is_closing {
            return self.receive_records(id);
        }
        let received = match connection.phase {
            Phase::Open => connection.input.receive(&connection.fd, &mut self.buffers),
            _ => connection
                .input
                .receive_of_stranger(&connection.fd, HANDSHAKE_BYTES_MAX),
        };
        match received {
            Received::Bytes => self.has_received(id),
            Received::Nothing => return,
            Received::End => return self.close_because(id, Reason::Ended),
            Received::Failed(errno) => return self.close_because(id, broken(errno)),
        }
        self.received(id);
    }

    /// Bytes of the other side have arrived: its process works.
    pub(super) fn has_received(&mut self, id: ConnectionId) {
        let connection = self.table.get_mut(id);
        if let Some(Side::Ours { link }) = connection.map(|connection| &connection.side) {
            self.links.get_mut(*link).has_received = true;
        }
    }

    /// Bytes of the other side are in the connection's input.
    pub(super) fn received(&mut self, id: ConnectionId) {
        let Some(connection) = self.table.get_mut(id) else {
            return;
        };
        match connection.phase {
            Phase::Closing { .. } => connection.input = Input::default(),
            Phase::Hello { .. } => self.go_on_with_handshake(id),
            Phase::Open => self.cut_frames(id),
            Phase::Connecting { .. } => {}
        }
    }

    // --- handshakes

    /// A link's connection is established, and encrypted if it is to be.
    pub(super) fn begin_handshake(&mut self, id: ConnectionId) {
        let nonce = match fresh_nonce() {
            Ok(nonce) => nonce,
            Err(error) => return self.close_because(id, error.into()),
        };
        let Some(connection) = self.table.get_mut(id) else {
            return;
        };
        if let Side::Ours { link } = connection.side {
            let role = self.links.get_mut(link).role;
            let mut handshake = None;
            connection.output.push(Payload::None, |out| {
                handshake = Some(Box::new(Handshake::dial(role, nonce, out)));
            });
            connection.handshake = handshake;
            self.bind(id);
        }
        self.flush(id);
    }

    fn go_on_with_handshake(&mut self, id: ConnectionId) {
        let Some(connection) = self.table.get_mut(id) else {
            return;
        };
        let Some(handshake) = &mut connection.handshake else {
            return;
        };
        let ours = Credentials {
            cluster: &self.options.cluster,
            token: &self.options.token,
            id: self.options.cluster_id,
        };
        let (input, mut progress) = (connection.input.bytes(), None);
        connection.output.push(Payload::None, |out| {
            progress = Some(handshake.advance(ours, input, out));
        });
        match progress.expect("it was tried") {
            Ok(Progress::Waiting { used }) => {
                connection.input.skip(used);
                self.flush(id);
            }
            Ok(Progress::Done { used, role }) => {
                connection.input.skip(used);
                connection.cluster_id = handshake.their_id();
                connection.told_id = handshake.told_id();
                // This side got its id during the handshake: the server connects again, and gets
                // the id too.
                let is_greeted =
                    connection.told_id == self.options.cluster_id || !handshake.has_ids();
                match connection.side {
                    Side::Theirs { .. } if role != Role::Client && !is_greeted => {
                        self.close_because(id, Reason::Here);
                    }
                    _ => self.is_known(id, role),
                }
            }
            Err(error) => self.refuse(id, error.into()),
        }
    }

    /// The other side has proved itself: frames follow (net::W4).
    fn is_known(&mut self, id: ConnectionId, role: Role) {
        let is_full = self.table.proved() >= self.options.limits.connections;
        let Some(connection) = self.table.get_mut(id) else {
            return;
        };
        connection.handshake = None;
        match connection.side {
            Side::Theirs { .. } if connection.is_local && role != Role::Client => {
                let why = "only clients connect to this socket";
                return self.refuse(id, Reason::Refused(why.to_owned()));
            }
            Side::Theirs { peer, .. } if (self.options.hands_over)(role) => {
                return self.hand_over(id, role, peer);
            }
            Side::Theirs { .. } if is_full => return self.refuse(id, Reason::Full),
            Side::Theirs { peer, .. } => {
                connection.phase = Phase::Open;
                self.table.prove(id, role);
                self.pending.push(Event::Accepted {
                    connection: id,
                    role,
                    peer,
                });
            }
            Side::Ours { link } => {
                connection.phase = Phase::Open;
                let link = self.links.get_mut(link);
                link.state = State::Open(id);
                link.addresses.succeeded();
                connection.output.append(std::mem::take(&mut link.queue));
                self.soil(id);
            }
        }
        self.cut_frames(id);
    }

    fn hand_over(&mut self, id: ConnectionId, role: Role, peer: SocketAddr) {
        let Some(connection) = self.table.take(id) else {
            return;
        };
        let is_sent = connection.unsent_bytes() == 0;
        // A connection dropped here leaves the epoll instance when its descriptor is closed.
        let Connection {
            fd,
            input,
            channel,
            is_local,
            ..
        } = *connection;
        if !is_sent {
            return self.warn(peer, "it does not take its part of the handshake");
        }
        if epoll::delete(&self.epoll, &fd).is_ok() {
            let received = input.into_bytes();
            self.pending.push(Event::Handed(Incoming {
                fd,
                role,
                peer,
                is_local,
                tls: channel.map(Channel::into_session),
                received,
            }));
        }
    }

    /// Sends the reason to a refused peer, and gives it some time to read it.
    fn refuse(&mut self, id: ConnectionId, reason: Reason) {
        let Some(connection) = self.table.get_mut(id) else {
            return;
        };
        let Side::Theirs { peer, .. } = connection.side else {
            // handshake::S4: queued bytes are sent, as far as the socket takes them at once.
            let _ = connection.send();
            return self.close_because(id, reason);
        };
        let role = connection.handshake.as_ref().and_then(|shake| shake.role());
        let text = reason.to_string();
        let envelope = Envelope::default();
        let trouble = trouble(&reason, &text);
        connection.output.push(Payload::None, |out| {
            encode_trouble(out, &envelope, Kind::Ping as u16, &trouble);
        });
        self.say_goodbye(id);
        self.offended();
        match (reason, role) {
            (Reason::Hello(HelloError::OtherCluster { theirs, .. }), Some(role)) => {
                self.pending.push(Event::Foreign {
                    peer,
                    role,
                    cluster_id: theirs,
                });
            }
            _ => self.warn(peer, &text),
        }
    }

    /// Sends the queued output to a peer that is refused, and gives it some time to read it.
    pub(super) fn say_goodbye(&mut self, id: ConnectionId) {
        let until = self.now + GOODBYE;
        if let Some(connection) = self.table.get_mut(id) {
            connection.phase = Phase::Closing { until };
            connection.handshake = None;
            connection.input = Input::default();
            self.timers.push(Reverse((until, Timer::Connection(id.0))));
            self.flush(id);
        }
    }

    pub(super) fn warn(&mut self, peer: SocketAddr, why: &str) {
        if let Some(more) = self.quiet.says(self.now) {
            tracing::warn!(%peer, more, "a connection is refused: {why}");
        }
    }

    // --- frames

    pub(super) fn cut_frames(&mut self, id: ConnectionId) {
        let Some(connection) = self.table.get_mut(id) else {
            return;
        };
        let limits = self.options.limits;
        let cluster_id = connection.cluster_id;
        let (role, link) = match connection.side {
            Side::Theirs { role, .. } => (role, None),
            Side::Ours { link } => (None, Some(link)),
        };
        let limit = match role {
            Some(Role::Client) => limits.client_frame_bytes,
            _ => limits.peer_frame_bytes,
        };
        let mut found: Vec<Message> = Vec::new();
        let cut = connection
            .input
            .cut(limit, &mut self.buffers, |message| found.push(message));
        for message in found {
            if message.header().reply != link.is_some() {
                return self.close_because(id, Reason::Direction);
            }
            match (link, role) {
                (Some(link), _) => {
                    if let Err(reason) = self.hear_answer(link, message, cluster_id) {
                        return self.close_because(id, reason);
                    }
                }
                (None, role) => {
                    let role = role.expect("frames follow a handshake");
                    self.hear_question(id, role, message);
                }
            }
        }
        if let Err(error) = cut {
            return self.close_because(id, error.into());
        }
        self.update_interest(id);
    }

    fn hear_answer(
        &mut self,
        link: usize,
        message: Message,
        cluster_id: ClusterId,
    ) -> Result<(), Reason> {
        let request = message.header().envelope.request;
        let link = self.links.get_mut(link);
        if link.outstanding.remove(&request).is_some() {
            link.answered();
            self.pending.push(Event::Answer {
                request,
                message,
                cluster_id,
            });
        } else if message.header().error && request == 0 {
            // The answer to the hello.
            match decode_reply(&message.frame()) {
                Ok(Reply::Trouble(Trouble::Busy { .. })) => return Err(Reason::Full),
                Ok(Reply::Trouble(trouble)) => return Err(Reason::Refused(trouble.to_string())),
                _ => {}
            }
        }
        Ok(())
    }

    fn hear_question(&mut self, connection: ConnectionId, role: Role, message: Message) {
        if let Some(found) = self.table.get_mut(connection) {
            found.unanswered += 1;
        }
        self.pending.push(Event::Question {
            connection,
            role,
            message,
        });
    }

    // --- sending

    /// Marks a connection with new output: the next `poll` sends it.
    pub(super) fn soil(&mut self, id: ConnectionId) {
        if let Some(connection) = self.table.get_mut(id).filter(|found| !found.is_dirty) {
            connection.is_dirty = true;
            if !connection.interest.contains(EventFlags::OUT) {
                connection.moved = self.now; // nothing waited until now
            }
            self.dirty.push(id);
        }
    }

    pub(super) fn flush_dirty(&mut self) {
        for id in std::mem::take(&mut self.dirty) {
            if let Some(connection) = self.table.get_mut(id) {
                connection.is_dirty = false;
                self.flush(id);
            }
        }
    }

    pub(super) fn flush(&mut self, id: ConnectionId) {
        let Some(connection) = self.table.get_mut(id) else {
            return;
        };
        if matches!(connection.phase, Phase::Connecting { .. }) {
            return;
        }
        match connection.send() {
            Flushed::All => {
                connection.moved = self.now;
                if matches!(connection.phase, Phase::Closing { .. }) {
                    if let Some(channel) = &mut connection.channel {
                        channel.say_goodbye(&connection.fd);
                    }
                    // The peer reads the reason, then the end. Until then its bytes are received
                    // and dropped; otherwise the reason might be lost.
                    let _ = rustix::net::shutdown(&connection.fd, Shutdown::Write);
                }
            }
            Flushed::Part { some } => {
                if some {
                    connection.moved = self.now;
                }
            }
            Flushed::Failed(errno) => return self.close_because(id, broken(errno)),
        }
        self.update_interest(id);
    }

    // --- watching and ending

    /// Starts to watch a new connection; `false`: it is closed for lack of kernel memory.
    pub(super) fn watch(&mut self, id: ConnectionId, interest: EventFlags) -> bool {
        let Some(connection) = self.table.get_mut(id) else {
            return false;
        };
        connection.interest = interest;
        let data = EventData::new_u64(id.0);
        let added = epoll::add(&self.epoll, &connection.fd, data, interest);
        if let Err(errno) = added {
            self.close_because(id, Reason::Broken(errno.to_string()));
        }
        added.is_ok()
    }

    pub(super) fn update_interest(&mut self, id: ConnectionId) {
        let limits = &self.options.limits;
        let Some(connection) = self.table.get_mut(id) else {
            return;
        };
        if matches!(connection.phase, Phase::Connecting { .. }) {
            return;
        }
        let mut wanted = EventFlags::empty();
        let is_paused = connection.is_theirs()
            && (connection.unsent_bytes() > limits.pause_bytes
                || connection.unanswered > limits.pause_questions);
        if !is_paused {
            wanted |= EventFlags::IN;
        }
        if connection.unsent_bytes() > 0 {
            wanted |= EventFlags::OUT;
        }
        if wanted != connection.interest {
            connection.interest = wanted;
            // This fails only for lack of kernel memory; then the sweep finds the connection
            // stalled.
            let _ = epoll::modify(
                &self.epoll,
                &connection.fd,
                EventData::new_u64(id.0),
                wanted,
            );
        }
    }

    pub(super) fn close_because(&mut self, id: ConnectionId, reason: Reason) {
        let Some(connection) = self.table.take(id) else {
            return;
        };
        match connection.side {
            Side::Ours { link } => {
                let is_open = connection.phase == Phase::Open;
                let reason = match reason {
                    Reason::Ended | Reason::Reset | Reason::Broken(_) if !is_open => {
                        Reason::NoHello
                    }
                    other => other,
                };
                let is_clean = matches!(reason, Reason::Ended | Reason::Here);
                let is_tls = matches!(reason, Reason::Tls(_));
                let of_link = self.links.get_mut(link);
                let complains = is_tls && of_link.may_complain(self.now);
                let address = &of_link.address;
                if complains {
                    tracing::warn!(%address, "no connection can be made: {reason}");
                } else if !is_clean && let Some(more) = self.quiet.says(self.now) {
                    tracing::debug!(%address, more, "a link is gone: {reason}");
                }
                let is_given_up = matches!(reason, Reason::Here | Reason::Slow);
                if is_open || is_given_up {
                    self.link_broke(link, reason);
                } else {
                    self.way_failed(link, reason);
                }
            }
            Side::Theirs {
                role: Some(_),
                peer,
            } => {
                use Reason::{Direction, Frame, Slow, Tls};
                if matches!(reason, Frame(_) | Direction | Slow | Tls(_)) {
                    self.offended();
                    if let Some(more) = self.quiet.says(self.now) {
                        tracing::warn!(%peer, more, "a connection is closed: {reason}");
                    }
                }
                self.pending.push(Event::Closed {
                    connection: id,
                    reason,
                });
            }
            Side::Theirs { role: None, .. } => {}
        }
    }

    // --- time

    pub(super) fn fire_timers(&mut self) {
        while let Some(Reverse((at, timer))) = self.timers.peek().copied() {
            if at > self.now {
                return;
            }
            self.timers.pop();
            match timer {
                Timer::Connection(id) => self.late(ConnectionId(id)),
                Timer::Link(number) => {
                    let link = self.links.try_get_mut(number);
                    let is_due =
                        link.is_some_and(|link| link.state == State::Waiting && link.retry <= at);
                    if is_due {
                        self.open_link(number);
                    }
                }
                Timer::Lookup(number) => self.looks_up_long(number, at),
                Timer::Accept => {
                    for listener in 0..self.listeners.len() {
                        if self.listeners[listener].is_resting {
                            self.rest(listener, false);
                        }
                    }
                }
                Timer::Sweep => self.sweep(),
            }
        }
    }

    fn late(&mut self, id: ConnectionId) {
        let Some(connection) = self.table.get_mut(id) else {
            return;
        };
        let (until, reason) = match connection.phase {
            Phase::Open => return,
            Phase::Connecting { until } => {
                (until, Reason::Unreachable("it takes too long".to_owned()))
            }
            Phase::Hello { until } => (until, Reason::TimedOut("prove itself")),
            Phase::Closing { until } => (until, Reason::Here),
        };
        if until <= self.now {
            self.close_because(id, reason);
        }
    }

    fn sweep(&mut self) {
        self.timers.push(Reverse((self.now + SWEEP, Timer::Sweep)));
        self.links.sweep(self.now);
        self.buffers.sweep();
        let patience = self.options.limits.patience;
        let is_stalled = |connection: &&Connection| {
            connection.phase == Phase::Open
                && connection.unsent_bytes() > 0
                && self.now.saturating_duration_since(connection.moved) > patience
        };
        let stalled = self.table.iter().filter(is_stalled);
        let stalled: Vec<ConnectionId> = stalled.map(|connection| connection.id).collect();
        for id in stalled {
            self.close_because(id, Reason::TimedOut("take what was sent"));
        }
    }
}
