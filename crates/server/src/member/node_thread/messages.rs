//! Messages of PUBLISH between members.

use super::super::broadcast::Receiver;
use super::{Mail, NodeThread, PendingCall};
use duramen_base::ids::ServerId;
use duramen_net::Payload;
use duramen_node::RequestId;
use duramen_redis::pubsub::Publisher;
use duramen_redis::state::Shared;
use duramen_redis::threads::{Kind, Stop};
use duramen_wire::native::Slice;
use duramen_wire::native::codec::{Envelope, Publications, Role, Trouble, encode_peer};
use duramen_wire::native::message::Peer;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Longest wait of a batch for room in the mailboxes here. The batch's sender gives up its question
/// only later.
const DELIVERY_WAIT_MAX: Duration = Duration::from_secs(5);
/// Interval of the looks at the mailboxes meanwhile.
const CROWDED_LOOK: Duration = Duration::from_millis(1);

impl NodeThread {
    /// Sends messages of PUBLISH to the other members.
    pub(super) fn publish(&mut self, now_us: u64) {
        let Some(membership) = &self.membership else {
            return;
        };
        let batches = membership.outbox().take();
        if batches.is_empty() && self.broadcast.is_empty() {
            return;
        }
        let member = self.parts.node.member();
        let (me, members) = (member.id(), member.members());
        let is_up = |server| members.up().any(|entry| entry.server == server);
        self.broadcast.retain(is_up);
        self.heard.retain(is_up);
        for batch in batches {
            let others = members.up().filter(|it| it.server != me && it.roles.master);
            let receivers = others.map(|entry| Receiver {
                server: entry.server,
                address: entry.addresses.native.clone(),
            });
            self.broadcast.add(batch, receivers);
        }
        for batch in self.broadcast.due(now_us) {
            let request = self.asks(PendingCall::Publish(batch.to.server));
            let envelope = Envelope {
                request,
                target: batch.to.server,
                sender: me,
            };
            let question = Peer::Publish {
                number: batch.number,
            };
            let bytes = batch.payload.len();
            let (payload, hub) = (Payload::Shared(batch.payload), &mut self.parts.hub);
            hub.ask(&batch.to.address, Role::Server, request, payload, |out| {
                encode_peer(out, &envelope, &question, bytes);
            });
        }
    }

    /// Delivers messages of another member to the subscribers here, on another thread, and answers
    /// when they are delivered. So messages that come faster than that wait at their sender
    /// (broadcast::B3).
    pub(super) fn deliver(
        &mut self,
        request: RequestId,
        (sender, target): (ServerId, ServerId),
        number: u64,
        payload: Slice,
    ) {
        let here = self.parts.node.member().id();
        if target != here || self.membership.is_none() {
            return self.trouble(request, &Trouble::WrongServer { here });
        }
        let is_new = self.heard.is_new(sender, number);
        let (shared, owner) = (Arc::clone(&self.parts.shared), self.parts.hub.handle());
        let given = self.deliveries.give(move || {
            if is_new {
                publish_all(&shared, &payload, DELIVERY_WAIT_MAX);
            }
            owner.tell(Mail::Delivered(request));
        });
        if let Err(why) = given {
            let reason = &why;
            self.trouble(request, &Trouble::NotServing { reason });
        }
    }
}

/// Publishes a batch of messages to the subscribers here, as soon as their threads have taken those
/// before it; at the latest after `wait_max`, or when the server stops. Blocks.
fn publish_all(shared: &Shared, batch: &[u8], wait_max: Duration) {
    let deadline = Instant::now() + wait_max;
    while shared.threads.has_crowded_mailbox()
        && shared.watch.stopping() == Stop::No
        && Instant::now() < deadline
    {
        std::thread::sleep(CROWDED_LOOK);
    }
    let publisher = Publisher::other(&shared.threads);
    for (channel, message) in Publications::new(batch).flatten() {
        let kind = Kind::Channel;
        shared.pubsub().publish(publisher, kind, channel, message);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doors::Doors;
    use duramen_config::ServerConfig;
    use duramen_redis::threads::CROWDED_BYTES;
    use duramen_wire::native::codec::append_publication;

    /// Batches of other members were delivered, and answered, however many messages waited here.
    #[test]
    fn a_batch_waits_until_the_threads_have_taken_those_before_it() {
        let config = ServerConfig {
            threads: 1,
            ..ServerConfig::default()
        };
        let doors = Doors::open(config, None).expect("a server");
        let shared = doors.shared();
        shared.pubsub().subscribe(Kind::Channel, b"a", 0);
        let mut batch = Vec::new();
        append_publication(&mut batch, b"a", &vec![0; CROWDED_BYTES]);
        let mailbox = &shared.threads[0].mailbox;
        let taken = || {
            let mut messages = Vec::new();
            mailbox.take(&mut messages);
            messages.len()
        };
        publish_all(shared, &batch, DELIVERY_WAIT_MAX);
        std::thread::scope(|scope| {
            let second = scope.spawn(|| publish_all(shared, &batch, DELIVERY_WAIT_MAX));
            std::thread::sleep(20 * CROWDED_LOOK);
            assert!(!second.is_finished());
            assert_eq!(taken(), 1, "the second waits");
            second.join().expect("it ends");
        });
        publish_all(shared, &batch, 2 * CROWDED_LOOK);
        assert_eq!(taken(), 2, "the third gave up waiting");
    }
}
