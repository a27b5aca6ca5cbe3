//! Callers: servers that enlist, until the coordinator has reached them.
//!
//! **Invariants**
//! - I1: a server is added to the list after it has answered a ping at the address that it
//!   announces, to the id that it is about to get. Otherwise masters would wait for a backup that
//!   nobody reaches: an empty server attracts new replicas.
//! - I2: a caller that is not reached is told to try again, and the list stays as it is. The
//!   failure may be the coordinator's own, and no running member depends on it.

use super::calls::Sounded;
use super::suspects::is_pong;
use super::{Call, CallId, CallKind, Coordinator, Output, ReplyId, Sign, refused};
use duramen_base::ids::ServerId;
use duramen_wire::native::message::{
    Enlist, FromCoordinator, Refusal, ServerAnswer, ToCoordinator,
};

/// Shortest wait for its answer: shorter than a member's wait for the answer to its request, which
/// contains the reason of a failure. With a longer verdict timeout, for slow networks, it is as
/// long, and the member repeats its request meanwhile.
const REACH_US_MIN: u64 = 400_000;
/// Delay before a server that was not reached asks again.
const REACH_AGAIN_MS: u32 = 500;

/// A server that enlists and was not reached yet.
pub(super) struct Caller {
    enlist: Enlist,
    /// Its requests, each with the sender of its frame.
    asked: Vec<(ReplyId, ServerId)>,
    is_reached: bool,
    /// The reason why it was not, as its connection saw it.
    why: Option<String>,
}

impl Coordinator {
    /// Whether this server has answered at its address. If not, it is asked, and this request is
    /// answered when that has ended.
    pub(super) fn is_reached(
        &mut self,
        reply: ReplyId,
        sender: ServerId,
        enlist: &Enlist,
        next: ServerId,
    ) -> bool {
        if let Some(caller) = self.callers.get_mut(&enlist.nonce) {
            if !caller.is_reached {
                caller.asked.push((reply, sender));
            }
            return caller.is_reached;
        }
        let nonce = enlist.nonce;
        let caller = Caller {
            enlist: enlist.clone(),
            asked: vec![(reply, sender)],
            is_reached: false,
            why: None,
        };
        self.callers.insert(nonce, caller);
        let address = enlist.addresses.native.clone();
        let question = FromCoordinator::Ping { nonce };
        let kind = CallKind::Reach { nonce };
        self.state
            .ask_at(next, address, question, kind, self.reach_us());
        false
    }

    fn reach_us(&self) -> u64 {
        REACH_US_MIN.max(u64::from(self.state.meta.settings.verdict_timeout_ms) * 1000)
    }

    /// Notes for people why a call has no answer, before [`Input::Unanswered`](super::Input).
    pub fn explain(&mut self, call: CallId, reason: &str) {
        if let Some(CallKind::Reach { nonce }) = self.state.asks.kind(call)
            && let Some(caller) = self.callers.get_mut(&nonce)
        {
            caller.why = Some(reason.to_owned());
        }
    }

    /// The end of the request to a server that enlists.
    pub(super) fn reached(&mut self, call: &Call, nonce: u64, ended: &Sounded) {
        let reach_us = self.reach_us();
        let Some(caller) = self.callers.get_mut(&nonce) else {
            return;
        };
        let asked = std::mem::take(&mut caller.asked);
        if matches!(ended, Sounded::Answered(answer) if is_pong(answer, nonce)) {
            caller.is_reached = true;
            self.turned_away.forget(&caller.enlist.addresses.native);
            let enlist = caller.enlist.clone();
            for (reply, sender) in asked {
                // The state may have changed meanwhile: everything is checked again.
                self.on_request(reply, sender, ToCoordinator::Enlist(enlist.clone()));
            }
        } else {
            let why = caller
                .why
                .take()
                .unwrap_or_else(|| reason(call, ended, reach_us));
            let address = &caller.enlist.addresses.native;
            let not_reached = format!("this coordinator does not reach it there: {why}");
            self.turned_away
                .note(self.state.now_us, address, &not_reached);
            let answer = refused(Refusal::NotReady {
                after_ms: REACH_AGAIN_MS,
                reason: format!(
                    "the coordinator cannot reach this member at the address that it announces, \
                     {address}: {why}"
                ),
            });
            for (reply, _) in asked {
                let answer = answer.clone();
                self.state.records.tell(Output::Answer { reply, answer });
            }
        }
        self.callers.remove(&nonce);
    }

    /// The requests of all callers, which get no answer any more.
    pub(super) fn abandon_callers(&mut self) -> Vec<ReplyId> {
        let callers = std::mem::take(&mut self.callers).into_values();
        let replies = callers.flat_map(|caller| caller.asked.into_iter().map(|(reply, _)| reply));
        replies.collect()
    }
}

fn reason(call: &Call, ended: &Sounded, reach_us: u64) -> String {
    match ended {
        Sounded::Answered(ServerAnswer::Refused(why)) => {
            format!("the process there refuses a ping for {}: {why}", call.to)
        }
        Sounded::Answered(_) => "the process there answers something else".to_owned(),
        Sounded::Signed(Sign::Dead) => "another process is there, or none".to_owned(),
        Sounded::Signed(Sign::Denied) => "the process there does not admit it".to_owned(),
        Sounded::Signed(Sign::Unknown) => "no connection".to_owned(),
        Sounded::Silent => format!("no answer within {} ms", reach_us / 1000),
    }
}
