//! The pings of this server to others.

use crate::member::Input;
use crate::requests::PeerCall;
use duramen_wire::native::message::{Peer, PeerAnswer};
use std::collections::BTreeMap;

/// A ping without an answer is dropped after this time.
const PING_US: u64 = 5_000_000;

/// The pings that are not answered.
#[derive(Default)]
pub(super) struct Pings {
    last: u64,
    /// Their nonces and send times.
    sent: BTreeMap<PeerCall, (u64, u64)>,
}

impl Pings {
    /// The name of a call with this question, which is sent now.
    pub(super) fn sent(&mut self, now_us: u64, question: &Peer) -> PeerCall {
        self.last += 1;
        let call = PeerCall::Ping(self.last);
        if let Peer::Ping { nonce } = question {
            self.sent.insert(call, (*nonce, now_us));
        }
        call
    }

    /// The other server has answered, or was not reached. Returns the answer if it is the right
    /// one.
    pub(super) fn answered(&mut self, call: PeerCall, answer: Option<PeerAnswer>) -> Option<Input> {
        let (known, _) = self.sent.remove(&call)?;
        match answer? {
            PeerAnswer::Pong {
                nonce,
                list_version,
                ..
            } if nonce == known => Some(Input::Ponged {
                nonce,
                list_version,
            }),
            _ => None,
        }
    }

    pub(super) fn forget_old(&mut self, now_us: u64) {
        self.sent
            .retain(|_, (_, sent_us)| *sent_us + PING_US > now_us);
    }
}
