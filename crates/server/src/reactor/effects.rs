//! Effects of requests on other clients: the delivery of messages to the clients of this thread.
//!
//! **Invariants**
//! - D1: effects are released when their turn's replies may be sent, and in the order of these
//!   releases (effects::E1). If the connection is closed before, they wait in
//!   `Holds::orphans`.
//! - D2: a client whose effects make a mailbox crowded is not read from before the mailbox is not
//!   crowded any more (registry::P3).
//! - D3: a message is appended to the output of its client, behind whole replies. The outputs are
//!   sent once per round, or earlier, when the messages for one client, or for all, are long: so
//!   the copies that were not yet shown to the kernel are bounded, however many patterns match. A
//!   client that does not take its messages is closed at `output-limit`, and at `output-pause`
//!   while the outputs of all clients together are longer than `pipeline-memory`. That holds for
//!   subscribers, monitors and clients that track keys.
//! - D4: a client whose socket is full costs no system call until it is writable.
//! - D5: messages come for every connection of the thread: also for one that spinning has received
//!   from, which is out of its slot and in the group (`round::Reactor::connection`).
//! - D6: messages for clients of one channel, and for nobody else in this round, are encoded into
//!   one buffer. A client with nothing unsent gets them from there by one system call, without a
//!   copy in its output; what its socket does not take is appended as in D3.

use super::Reactor;
use super::connection::Connection;
use super::connections::Token;
use super::round::resp_connection;
use duramen_config::seldom;
use duramen_redis::pubsub::Encoded;
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

/// Messages one behind the other that have the same receivers, as far as they fit into one buffer.
fn runs(publications: &[Arc<Publication>]) -> impl Iterator<Item = &[Arc<Publication>]> {
    let mut bytes = 0;
    publications.chunk_by(move |one, next| {
        bytes += one.bytes();
        let continues = one.is_like(next) && bytes + next.bytes() <= RUN_BYTES_MAX;
        bytes *= usize::from(continues);
        continues
    })
}

impl Reactor {
    /// After a round: takes the messages that this thread has posted to itself.
    pub(super) fn take_own_messages(&mut self) {
        if self.traffic.releases.take_posted() {
            let mut messages = std::mem::take(&mut self.messages);
            self.traffic.me().mailbox.take_own(&mut messages);
            self.handle_messages(messages);
        }
    }

    /// Sends messages to their subscribers, most of them by their outputs (D3, D6).
    pub(super) fn deliver(&mut self, publications: &[Arc<Publication>]) {
        let (mut touched, mut receivers, mut bytes) = (Vec::new(), Vec::new(), 0);
        for run in runs(publications) {
            let is_all = run.len() == publications.len();
            for pattern in run[0].names() {
                let subscribers = self.traffic.executor.subscribers();
                receivers.clear();
                receivers.extend(subscribers.receivers(&run[0], pattern));
                if receivers.is_empty() {
                    continue;
                }
                let encoded = Encoded::new(run, pattern);
                let alone = is_all && run[0].patterns.is_empty();
                for (slot, since) in &receivers {
                    bytes += self.give_messages((*slot, *since), &encoded, alone, &mut touched);
                    if bytes > APPENDED_BYTES_MAX {
                        bytes = 0;
                        self.send_touched(&mut touched);
                    }
                }
            }
        }
        self.send_touched(&mut touched);
    }

    fn send_touched(&mut self, touched: &mut Vec<Token>) {
        for token in touched.drain(..) {
            self.send_messages(token);
        }
    }

    /// Gives messages to the subscriber in `slot`, those from number `since` on. `alone`: no others
    /// come for it in this call. Returns the bytes that were appended to its output.
    fn give_messages(
        &mut self,
        (slot, since): (u32, u64),
        encoded: &Encoded,
        alone: bool,
        touched: &mut Vec<Token>,
    ) -> usize {
        let Some(token) = self.traffic.connections.token(slot) else {
            return 0;
        };
        let Some(connection) = self.traffic.connection(token) else {
            return 0;
        };
        let mut bytes = encoded.since(since, connection.client.protocol());
        if alone {
            match self.send_straight(token, bytes) {
                Some(sent) => bytes = &bytes[sent..],
                None => return 0,
            }
        }
        if !bytes.is_empty() {
            self.append(token, bytes, touched);
        }
        bytes.len()
    }

    /// Sends messages to a client that has no output before them (D6); closes it if its peer is
    /// gone, then `None`. Returns the number of bytes that its socket has taken.
    fn send_straight(&mut self, token: Token, bytes: &[u8]) -> Option<usize> {
        let is_stopping = self.traffic.thread.stop_deadline().is_some();
        let connection = self
            .traffic
            .connections
            .get_mut(token)
            .filter(|it| it.is_quiet());
        let Some(connection) = connection.filter(|_| !is_stopping && !bytes.is_empty()) else {
            return Some(0);
        };
        let Some(sent) = connection.send_straight(bytes, self.traffic.thread.now_ms()) else {
            self.traffic.close(token);
            return None;
        };
        connection.note_sent(sent, self.traffic.thread.now_ms());
        self.traffic.me().counters.net_output_bytes.add(sent as u64);
        Some(sent)
    }

    /// Appends bytes that are no reply to a request of this connection, and sends its output if
    /// that is long. `touched`: the connections with such bytes that are not sent yet.
    fn append(&mut self, token: Token, bytes: &[u8], touched: &mut Vec<Token>) {
        let Some(connection) = self.traffic.connections.get_mut(token) else {
            return self.traffic.append_before_replies(token, bytes); // sent with them
        };
        if connection.closing {
            return;
        }
        if connection.output.is_empty() {
            connection.output = self.traffic.buffers.take(bytes.len());
            connection.taken_at_ms = self.traffic.thread.now_ms();
        }
        connection.output.extend_from_slice(bytes);
        if connection.unsent_bytes() > SENT_EARLY_BYTES {
            self.send_messages(token);
        } else if !std::mem::replace(&mut connection.has_messages, true) {
            touched.push(token);
        }
    }

    /// Appends bytes that are no reply to a request of this connection, and sends its output.
    pub(super) fn push(&mut self, token: Token, bytes: &[u8]) {
        let mut touched = Vec::new();
        self.append(token, bytes, &mut touched);
        self.send_touched(&mut touched);
    }

    /// Sends the output of a connection that gets messages; closes it if it takes too little (D3,
    /// D4).
    fn send_messages(&mut self, token: Token) {
        let Some(mut connection) = self.traffic.connections.take(token) else {
            return;
        };
        connection.has_messages = false;
        let may_stay = match connection.interest.contains(EventFlags::OUT) {
            true => self.traffic.is_within_limit(&connection),
            false => self.traffic.send(&mut connection),
        };
        if !may_stay || self.is_slow(&connection) {
            return self.traffic.close_taken(token, connection);
        }
        self.traffic.resume_run(token, &mut connection);
        self.traffic.settle(token, connection);
    }

    /// Whether a client's unsent messages take memory that others need.
    fn is_slow(&mut self, connection: &Connection) -> bool {
        let unsent_bytes = connection.unsent_bytes();
        let config = self.traffic.thread.here().config;
        let (pause, bytes_max) = (config.output_pause_bytes, config.pipeline_bytes_max());
        if unsent_bytes <= pause {
            return false;
        }
        let buffered = self
            .traffic
            .thread
            .shared()
            .sum(|counters| &counters.output_buffer_bytes);
        let is_slow = buffered > bytes_max;
        if is_slow {
            self.traffic.me().counters.output_closed.add(1);
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
    fn close_losers(&mut self, lost: &Lost) {
        let subscribers = self.traffic.executor.subscribers();
        let slots: BTreeSet<u32> = match lost.names() {
            Some(names) => names
                .flat_map(|(kind, name)| subscribers.slots_of(kind, name))
                .collect(),
            None => subscribers.slots(),
        };
        seldom!(
            warn,
            thread = self.traffic.thread.number(),
            clients = slots.len(),
            "closing subscribers: messages for them came faster than their thread could deliver them"
        );
        for slot in slots {
            if let Some(token) = self.traffic.connections.token(slot) {
                self.traffic.me().counters.output_closed.add(1);
                self.traffic.close(token);
            }
        }
    }

    /// Closes the clients of this thread that have subscriptions to which their users have no right
    /// any more; looks only after a change of rights.
    pub(super) fn close_unentitled(&mut self) {
        let generation = self.traffic.thread.shared().acl.generation();
        if std::mem::replace(&mut self.rights_seen, generation) == generation {
            return;
        }
        for slot in self.traffic.executor.subscribers().slots() {
            let Some(token) = self.traffic.connections.token(slot) else {
                continue;
            };
            let connection = self.traffic.connection(token);
            if connection.is_some_and(|it| {
                !it.client
                    .may_keep_subscriptions(self.traffic.thread.shared())
            }) {
                self.traffic.close(token);
            }
        }
    }

    /// Ends subscriptions to shard channels that other members serve now.
    fn leave_channels(&mut self) {
        for channel in self.traffic.executor.left_channels() {
            for slot in self
                .traffic
                .executor
                .subscribers()
                .slots_of(Kind::Shard, &channel)
            {
                let Some(token) = self.traffic.connections.token(slot) else {
                    continue;
                };
                let (slots, ready) = (&mut self.traffic.connections, &mut self.traffic.ready);
                let Some(connection) = resp_connection(slots, ready, token) else {
                    continue;
                };
                let told = self
                    .traffic
                    .executor
                    .end_left(&mut connection.client, &channel);
                self.push(token, &told);
            }
        }
    }

    /// Handles messages, and gives back their memory.
    pub(super) fn handle_messages(&mut self, mut messages: Vec<Message>) {
        let (mut closes, mut woken) = (false, false);
        let mut publications = Vec::new();
        for message in messages.drain(..) {
            match message {
                Message::Wake => {
                    woken = true;
                    self.look_again();
                }
                // Every round ends with a check of the held replies.
                Message::Committed => {}
                Message::Close { client } => {
                    closes = true;
                    match self.traffic.token_of(client) {
                        Some(token) if self.traffic.native.about_to_run(token).is_some() => {
                            self.traffic
                                .me()
                                .mailbox
                                .post_own(Message::Close { client });
                            self.traffic.releases.note_posted();
                        }
                        Some(token) => self.traffic.close(token),
                        None => {}
                    }
                }
                Message::ShowAgain { client } => {
                    let (here, connections) =
                        (self.traffic.thread.here(), &mut self.traffic.connections);
                    self.traffic.waits.show_client_again(
                        here,
                        client,
                        connections,
                        &self.traffic.executor,
                    );
                }
                Message::Push { client, bytes } => {
                    // RESET may have ended MONITOR since then.
                    let token = self.traffic.token_of(client).filter(|token| {
                        let connection = self.traffic.connection(*token);
                        connection.is_some_and(|to| to.client.monitors())
                    });
                    if let Some(token) = token {
                        self.push(token, &bytes);
                    }
                }
                Message::Publish(publication) => publications.push(publication),
                Message::PublicationsLost(lost) => self.close_losers(&lost),
                Message::Invalidate { client, what } => self.invalidate(client, what),
                Message::Redirected { client, what } => self.redirected(client, &what),
            }
        }
        if closes {
            self.traffic.thread.shared().wake_for_commit(); // replies of CLIENT KILL wait for this
        }
        self.deliver(&publications);
        if woken {
            self.leave_channels(); // after their last messages
            self.invalidate_left();
            let (here, connections) = (self.traffic.thread.here(), &mut self.traffic.connections);
            self.traffic
                .waits
                .show_moved(here, connections, &mut self.traffic.executor);
        }
        messages.shrink_to(super::MESSAGES_KEPT);
        self.messages = messages;
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
