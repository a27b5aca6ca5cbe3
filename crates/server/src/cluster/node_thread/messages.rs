//! Messages of PUBLISH between members.

use super::super::broadcast::Receiver;
use super::{NodeThread, PendingCall};
use crate::shared::pubsub::{Kind, Publisher};
use duramen_base::ids::ServerId;
use duramen_net::Payload;
use duramen_node::RequestId;
use duramen_wire::native::Slice;
use duramen_wire::native::codec::{Envelope, Publications, Role, Trouble, encode_peer};
use duramen_wire::native::message::{Peer, PeerAnswer};

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

    /// Delivers messages of another member to the subscribers here.
    pub(super) fn deliver(
        &mut self,
        request: RequestId,
        (sender, target): (ServerId, ServerId),
        number: u64,
        payload: &[u8],
    ) {
        let here = self.parts.node.member().id();
        if target != here || self.membership.is_none() {
            return self.trouble(request, &Trouble::WrongServer { here });
        }
        if self.heard.is_new(sender, number) {
            let shared = &self.parts.shared;
            let publisher = Publisher::other(&shared.threads);
            for (channel, message) in Publications::new(payload).flatten() {
                let kind = Kind::Channel;
                shared.pubsub.publish(publisher, kind, channel, message);
            }
        }
        self.answer_peer(request, &PeerAnswer::Heard, Slice::default());
    }
}
