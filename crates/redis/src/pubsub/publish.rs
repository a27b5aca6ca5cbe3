//! Messages to subscribers here and on the other members of a cluster, and whether clients that
//! publish should wait.

use crate::state::Shared;
use crate::state::pubsub::registry::Publisher;
use crate::threads::publication::{CROWDED_BYTES, Kind};

/// Publishes a message here and, unless it is for a shard channel, on the other members of the
/// cluster; returns the number of receivers here.
pub(crate) fn publish(
    shared: &Shared,
    publisher: Publisher<'_>,
    kind: Kind,
    channel: &[u8],
    payload: &[u8],
) -> u64 {
    let others = shared.membership().filter(|_| kind == Kind::Channel);
    let broadcast = || {
        if let Some(member) = others {
            member.broadcast(channel, payload);
        }
    };
    let pubsub = shared.pubsub();
    pubsub.publish_also(publisher, kind, channel, payload, broadcast)
}

/// Whether a thread's mailbox, or that of the messages for other members, is so full that
/// publishers should wait (registry::P3).
pub fn is_crowded(shared: &Shared) -> bool {
    let outbox_bytes = shared
        .membership()
        .map_or(0, |member| member.outbox().bytes());
    outbox_bytes > CROWDED_BYTES || shared.threads.has_crowded_mailbox()
}
