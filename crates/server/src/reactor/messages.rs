//! The messages of other threads to this one, and of this thread to itself.

use super::Reactor;
use super::effects::{close_losers, deliver, leave_channels, push};
use super::tracking::{invalidate, redirected};
use duramen_redis::threads::{Message, Stop};

impl Reactor {
    pub(super) fn take_messages(&mut self) {
        let messages = self.deliveries.take(self.traffic.thread.here());
        self.handle_messages(messages);
    }

    /// After a round: takes the messages that this thread has posted to itself.
    pub(super) fn take_own_messages(&mut self) {
        if self.traffic.releases.take_posted() {
            let messages = self.deliveries.take_own(self.traffic.thread.here());
            self.handle_messages(messages);
        }
    }

    /// Settings changed, a pause ended, connections were handed over, or the server stops.
    fn look_again(&mut self) {
        self.adopt();
        // There may be a password, or a time limit for it, from now on.
        let is_open = self.traffic.thread.shared().acl().is_open();
        self.traffic.sweeps.note_stranger(!is_open);
        self.deliveries.close_unentitled(&mut self.traffic);
        let (here, connections) = (self.traffic.thread.here(), &mut self.traffic.connections);
        self.traffic
            .waits
            .resume_paused(here, u64::MAX, connections);
        if self.traffic.thread.shared().watch.stopping() == Stop::Graceful {
            self.begin_drain();
        }
    }

    /// Handles messages, and gives back their memory.
    fn handle_messages(&mut self, mut messages: Vec<Message>) {
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
                        connection.is_some_and(|to| to.client.record().monitors())
                    });
                    if let Some(token) = token {
                        push(&mut self.traffic, token, &bytes);
                    }
                }
                Message::Publish(publication) => publications.push(publication),
                Message::PublicationsLost(lost) => close_losers(&mut self.traffic, &lost),
                Message::Invalidate { client, what } => invalidate(&mut self.traffic, client, what),
                Message::Redirected { client, what } => {
                    redirected(&mut self.traffic, client, &what)
                }
            }
        }
        if closes {
            // Replies of CLIENT KILL wait for this.
            self.traffic.thread.shared().threads.wake_for_commit();
        }
        deliver(&mut self.traffic, &publications);
        if woken {
            leave_channels(&mut self.traffic); // after their last messages
            self.invalidations.lose_all(self.traffic.thread.here());
            let (here, connections) = (self.traffic.thread.here(), &mut self.traffic.connections);
            self.traffic
                .waits
                .show_moved(here, connections, &mut self.traffic.executor);
        }
        self.deliveries.give_back(messages);
    }
}
