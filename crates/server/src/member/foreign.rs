//! Answers given and received by a server that is no member yet, as texts for the log and for other
//! servers.

use super::mail::Mail;
use duramen_net::{ConnectionId, Hub, Message, Payload, Reason};
use duramen_wire::native::codec::{HelloError, Trouble, encode_trouble};
use std::time::Duration;

/// An unchanged reason for waiting is logged again after this time.
pub(super) const SAY_AGAIN: Duration = Duration::from_secs(30);

/// Answers a question that arrives before there is a node: the sender must try again.
pub(super) fn not_yet(hub: &mut Hub<Mail>, connection: ConnectionId, message: &Message) {
    let header = message.header();
    let reason = "this server is no member yet";
    hub.reply(connection, Payload::None, |out| {
        let trouble = Trouble::NotServing { reason };
        encode_trouble(out, &header.envelope, header.kind, &trouble);
    });
}

/// Whether the server at that address belongs to another cluster, or has no protocol version in
/// common.
pub(super) fn is_foreign(reason: &Reason) -> bool {
    matches!(
        reason,
        Reason::Hello(HelloError::WrongCluster { .. } | HelloError::NoCommonVersion { .. })
    )
}

/// The text of a reason, with advice. The names of both clusters are the same, so probably the
/// coordinator has the wrong store: the member waits (docs/protocols.md, The coordinator, 13).
pub(super) fn advised(reason: &Reason) -> String {
    match reason {
        Reason::Hello(HelloError::OtherCluster { ours, theirs }) => format!(
            "it belongs to the cluster with id {theirs}, this member to the cluster with id {ours}: start the coordinator with the store of this member's cluster, or, to join the other one, start this member with an empty directory"
        ),
        reason => reason.to_string(),
    }
}
