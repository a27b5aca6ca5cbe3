//! The requests that are not answered: those to the coordinator, and its calls to servers.

use duramen_cluster::coordinator::{CallId, ReplyId};
use duramen_net::ConnectionId;
use duramen_wire::native::codec::Envelope;
use std::collections::HashMap;

/// Age beyond which a call is dropped; the state machine gave it up long before.
const CALL_US_MAX: u64 = 30_000_000;

/// A pending request: its connection, and the envelope of its answer.
pub(super) struct Asker {
    pub connection: ConnectionId,
    pub envelope: Envelope,
}

/// All pending requests.
#[derive(Default)]
pub(super) struct Askers {
    askers: HashMap<ReplyId, Asker>,
    last: u64,
}

impl Askers {
    pub(super) fn add(&mut self, asker: Asker) -> ReplyId {
        self.last += 1;
        let reply = ReplyId(self.last);
        self.askers.insert(reply, asker);
        reply
    }

    pub(super) fn take(&mut self, reply: ReplyId) -> Option<Asker> {
        self.askers.remove(&reply)
    }

    pub(super) fn take_all(&mut self) -> impl Iterator<Item = Asker> + use<> {
        std::mem::take(&mut self.askers).into_values()
    }
}

/// An unanswered call of the state machine to a server.
pub(super) struct Call {
    pub id: CallId,
    pub epoch: u64,
    pub address: String,
    pub since_us: u64,
}

impl Call {
    fn is_old(&self, now_us: u64) -> bool {
        // A call that was sent after `now_us` was read is younger: `saturating_sub` gives 0.
        now_us.saturating_sub(self.since_us) > CALL_US_MAX
    }
}

/// All unanswered calls, by the numbers of their requests.
#[derive(Default)]
pub(super) struct Calls {
    calls: HashMap<u64, Call>,
    last: u64,
    swept_us: u64,
}

impl Calls {
    /// The number of the next request.
    pub(super) fn next(&mut self) -> u64 {
        self.last += 1;
        self.last
    }

    pub(super) fn add(&mut self, request: u64, call: Call) {
        self.calls.insert(request, call);
    }

    pub(super) fn take(&mut self, request: u64) -> Option<Call> {
        self.calls.remove(&request)
    }

    pub(super) fn take_all(&mut self) -> HashMap<u64, Call> {
        std::mem::take(&mut self.calls)
    }

    /// Takes those that are too old. It looks only now and then.
    pub(super) fn take_old(&mut self, now_us: u64) -> Vec<(u64, Call)> {
        if now_us.saturating_sub(self.swept_us) <= CALL_US_MAX / 2 {
            return Vec::new();
        }
        self.swept_us = now_us;
        let old = self.calls.extract_if(|_, call| call.is_old(now_us));
        old.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_are_forgotten_when_they_are_old_and_not_before() {
        let call = Call {
            id: CallId(1),
            epoch: 1,
            address: String::new(),
            since_us: 1_000_000,
        };
        assert!(!call.is_old(999_999), "asked a moment ago");
        assert!(!call.is_old(1_000_000 + CALL_US_MAX));
        assert!(call.is_old(1_000_001 + CALL_US_MAX));
    }
}
