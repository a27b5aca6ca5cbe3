//! Effects of requests on other clients: the delivery of messages to the clients of this thread.
//!
//! **Invariants**
//! - D1: effects are released when their turn's replies may be sent, and in the order of these
//!   releases (effects::E1). If the connection is closed before, they wait in
//!   `Holds::orphans`.
//! - D2: a client whose effects make a mailbox crowded is not read from before the mailbox is not
//!   crowded any more (registry::P3).
//! - D3: a message is appended to the output of its client, behind whole replies. The outputs are
//!   sent once per round, or earlier if the messages for one client, or for all, are long. This
//!   bounds the copies that the kernel has not seen yet, however many patterns match. A client that
//!   does not take its messages is closed at `output-limit`, and at `output-pause` while the
//!   outputs of all clients together are longer than `pipeline-memory`. The two limits hold for
//!   subscribers, monitors and clients that track keys.
//! - D4: a client whose socket is full costs no system call until it is writable.
//! - D5: messages come for every connection of the thread, also for one that is out of its slot and
//!   in the group because spinning has received from it (`Traffic::connection`).
//! - D6: messages for clients of one channel, and for nobody else in this round, are encoded into
//!   one buffer. A client with nothing unsent gets them from there by one system call, without a
//!   copy in its output; what its socket does not take is appended as in D3.

use super::Traffic;
use super::connection::Connection;
use super::connections::Token;
use super::here::Here;
use super::output::is_within_limit;
use super::round::resp_connection;
use duramen_config::seldom;
use duramen_redis::pubsub::Encoded;
use duramen_redis::pubsub::may_keep_subscriptions;
use duramen_redis::threads::{Kind, Lost, Message, Publication};
use rustix::event::epoll::EventFlags;
use std::collections::BTreeSet;
use std::sync::Arc;

/// A subscriber's unsent output from which it is sent before the end of the round.
const SENT_EARLY_BYTES: usize = 256 << 10;
/// Bytes of messages for all subscribers from which they are sent before the end of the round.
const APPENDED_BYTES_MAX: usize = 16 << 20;
/// Bytes of messages with the same receivers that are encoded together.
const RUN_BYTES_MAX: usize = 64 << 10;

/// Splits messages into runs of neighbours that have the same receivers and fit into one buffer.
fn runs(publications: &[Arc<Publication>]) -> impl Iterator<Item = &[Arc<Publication>]> {
    let mut bytes = 0;
    publications.chunk_by(move |one, next| {
        bytes += one.bytes();
        let continues = one.is_like(next) && bytes + next.bytes() <= RUN_BYTES_MAX;
        bytes *= usize::from(continues);
        continues
    })
}

/// Messages for which a thread keeps memory between rounds.
const MESSAGES_KEPT: usize = 1_024;

/// The messages of other threads.
#[derive(Default)]
pub(super) struct Deliveries {
    messages: Vec<Message>,
    /// The generation of the users for which the rights of subscribers were last checked.
    rights_seen: u64,
}

impl Deliveries {
    /// The messages in the thread's mailbox.
    pub(super) fn take(&mut self, here: Here<'_>) -> Vec<Message> {
        let mut messages = std::mem::take(&mut self.messages);
        here.thread.mailbox.take(&mut messages);
        messages
    }

    /// As [`take`](Self::take), of those that the thread has posted to itself.
    pub(super) fn take_own(&mut self, here: Here<'_>) -> Vec<Message> {
        let mut messages = std::mem::take(&mut self.messages);
        here.thread.mailbox.take_own(&mut messages);
        messages
    }

    /// The messages were handled: keeps their memory.
    pub(super) fn give_back(&mut self, mut messages: Vec<Message>) {
        messages.shrink_to(MESSAGES_KEPT);
        self.messages = messages;
    }

    /// Closes the clients of this thread that have subscriptions to which their users have no right
    /// any more; looks only after a change of rights.
    pub(super) fn close_unentitled(&mut self, traffic: &mut Traffic) {
        let generation = traffic.thread.shared().acl().generation();
        if std::mem::replace(&mut self.rights_seen, generation) == generation {
            return;
        }
        for slot in traffic.executor.subscribers().slots() {
            let Some(token) = traffic.connections.token(slot) else {
                continue;
            };
            let connection = traffic.connection(token);
            if connection
                .is_some_and(|it| !may_keep_subscriptions(&it.client, traffic.thread.shared()))
            {
                traffic.close(token);
            }
        }
    }
}

/// Sends messages to their subscribers, most of them by their outputs (D3, D6).
pub(super) fn deliver(traffic: &mut Traffic, publications: &[Arc<Publication>]) {
    let (mut touched, mut receivers, mut bytes) = (Vec::new(), Vec::new(), 0);
    for run in runs(publications) {
        let is_all = run.len() == publications.len();
        for pattern in run[0].names() {
            let subscribers = traffic.executor.subscribers();
            receivers.clear();
            receivers.extend(subscribers.receivers(&run[0], pattern));
            if receivers.is_empty() {
                continue;
            }
            let encoded = Encoded::new(run, pattern);
            let alone = is_all && run[0].patterns.is_empty();
            for (slot, since) in &receivers {
                bytes += give_messages(traffic, (*slot, *since), &encoded, alone, &mut touched);
                if bytes > APPENDED_BYTES_MAX {
                    bytes = 0;
                    send_touched(traffic, &mut touched);
                }
            }
        }
    }
    send_touched(traffic, &mut touched);
}

fn send_touched(traffic: &mut Traffic, touched: &mut Vec<Token>) {
    for token in touched.drain(..) {
        send_messages(traffic, token);
    }
}

/// Gives messages to the subscriber in `slot`, those from number `since` on. `alone`: no others
/// come for it in this call. Returns the bytes that were appended to its output.
fn give_messages(
    traffic: &mut Traffic,
    (slot, since): (u32, u64),
    encoded: &Encoded,
    alone: bool,
    touched: &mut Vec<Token>,
) -> usize {
    let Some(token) = traffic.connections.token(slot) else {
        return 0;
    };
    let Some(connection) = traffic.connection(token) else {
        return 0;
    };
    let mut bytes = encoded.since(since, connection.client.protocol());
    if alone {
        match send_straight(traffic, token, bytes) {
            Some(sent) => bytes = &bytes[sent..],
            None => return 0,
        }
    }
    if !bytes.is_empty() {
        append(traffic, token, bytes, touched);
    }
    bytes.len()
}

/// Sends messages to a client that has no output before them (D6). Returns the number of bytes that
/// its socket has taken; if its peer is gone, closes the connection and returns `None`.
fn send_straight(traffic: &mut Traffic, token: Token, bytes: &[u8]) -> Option<usize> {
    let is_stopping = traffic.thread.stop_deadline().is_some();
    let connection = traffic
        .connections
        .get_mut(token)
        .filter(|it| it.is_quiet());
    let Some(connection) = connection.filter(|_| !is_stopping && !bytes.is_empty()) else {
        return Some(0);
    };
    let Some(sent) = connection.send_straight(bytes, traffic.thread.now_ms()) else {
        traffic.close(token);
        return None;
    };
    connection.note_sent(sent, traffic.thread.now_ms());
    traffic.me().counters.net_output_bytes.add(sent as u64);
    Some(sent)
}

/// Appends bytes that are no reply to a request of this connection, and sends its output if
/// that is long. `touched`: the connections with such bytes that are not sent yet.
fn append(traffic: &mut Traffic, token: Token, bytes: &[u8], touched: &mut Vec<Token>) {
    let Some(connection) = traffic.connections.get_mut(token) else {
        return traffic.groups.append_before_replies(token, bytes); // sent with them
    };
    if connection.closing {
        return;
    }
    if connection.output.is_empty() {
        connection.output = traffic.buffers.take(bytes.len());
        connection.taken_at_ms = traffic.thread.now_ms();
    }
    connection.output.extend_from_slice(bytes);
    if connection.unsent_bytes() > SENT_EARLY_BYTES {
        send_messages(traffic, token);
    } else if !std::mem::replace(&mut connection.has_messages, true) {
        touched.push(token);
    }
}

/// Appends bytes that are no reply to a request of this connection, and sends its output.
pub(super) fn push(traffic: &mut Traffic, token: Token, bytes: &[u8]) {
    let mut touched = Vec::new();
    append(traffic, token, bytes, &mut touched);
    send_touched(traffic, &mut touched);
}

/// Sends the output of a connection that gets messages; closes it if it takes too little (D3,
/// D4).
fn send_messages(traffic: &mut Traffic, token: Token) {
    let Some(mut connection) = traffic.connections.take(token) else {
        return;
    };
    connection.has_messages = false;
    let may_stay = match connection.interest.contains(EventFlags::OUT) {
        true => is_within_limit(traffic.thread.here(), &connection),
        false => traffic.send(&mut connection),
    };
    if !may_stay || is_slow(traffic, &connection) {
        return traffic.close_taken(token, connection);
    }
    traffic.resume_run(token, &mut connection);
    traffic.settle(token, connection);
}

/// Whether a client's unsent messages take memory that others need.
fn is_slow(traffic: &mut Traffic, connection: &Connection) -> bool {
    let unsent_bytes = connection.unsent_bytes();
    let config = traffic.thread.here().config;
    let (pause, bytes_max) = (config.output_pause_bytes, config.pipeline_bytes_max());
    if unsent_bytes <= pause {
        return false;
    }
    let buffered = traffic
        .thread
        .shared()
        .threads
        .sum(|counters| &counters.output_buffer_bytes);
    let is_slow = buffered > bytes_max;
    if is_slow {
        traffic.me().counters.output_closed.add(1);
        seldom!(
            warn,
            client = connection.record.id,
            peer = %connection.record.peer,
            unsent_bytes,
            "closing a client that does not take its messages: all outputs together are longer than pipeline-memory"
        );
    }
    is_slow
}

/// Closes the subscribers of this thread for whom messages were dropped.
pub(super) fn close_losers(traffic: &mut Traffic, lost: &Lost) {
    let subscribers = traffic.executor.subscribers();
    let slots: BTreeSet<u32> = match lost.names() {
        Some(names) => names
            .flat_map(|(kind, name)| subscribers.slots_of(kind, name))
            .collect(),
        None => subscribers.slots(),
    };
    seldom!(
        warn,
        thread = traffic.thread.number(),
        clients = slots.len(),
        "closing subscribers: messages for them came faster than their thread could deliver them"
    );
    for slot in slots {
        if let Some(token) = traffic.connections.token(slot) {
            traffic.me().counters.output_closed.add(1);
            traffic.close(token);
        }
    }
}

/// Ends subscriptions to shard channels that other members serve now.
pub(super) fn leave_channels(traffic: &mut Traffic) {
    for channel in traffic.executor.left_channels() {
        for slot in traffic
            .executor
            .subscribers()
            .slots_of(Kind::Shard, &channel)
        {
            let Some(token) = traffic.connections.token(slot) else {
                continue;
            };
            let (connections, groups) = (&mut traffic.connections, &mut traffic.groups);
            let Some(connection) = resp_connection(connections, groups, token) else {
                continue;
            };
            let told = traffic.executor.end_left(&mut connection.client, &channel);
            push(traffic, token, &told);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(kind: Kind, channel: &str, bytes: usize, patterns: &[&str]) -> Arc<Publication> {
        Arc::new(Publication {
            kind,
            channel: channel.as_bytes().into(),
            payload: vec![0; bytes].into(),
            patterns: patterns.iter().map(|it| it.as_bytes().into()).collect(),
            number: 0,
        })
    }

    #[test]
    fn a_run_has_one_channel_no_pattern_and_fits_into_its_buffer() {
        let half = RUN_BYTES_MAX / 2;
        let messages = [
            message(Kind::Channel, "a", 1, &[]),
            message(Kind::Channel, "a", 1, &[]),
            message(Kind::Shard, "a", 1, &[]),
            message(Kind::Channel, "b", half, &[]),
            message(Kind::Channel, "b", half, &[]),
            message(Kind::Channel, "b", 1, &[]),
            message(Kind::Channel, "b", 1, &["*"]),
            message(Kind::Channel, "b", 1, &["*"]),
            message(Kind::Channel, "b", 2 * RUN_BYTES_MAX, &[]),
            message(Kind::Channel, "b", 1, &[]),
            message(Kind::Channel, "b", 1, &[]),
        ];
        let lengths: Vec<_> = runs(&messages).map(<[_]>::len).collect();
        assert_eq!(lengths, [2, 1, 1, 2, 1, 1, 1, 2]);
        assert_eq!(runs(&[]).count(), 0);
    }
}
