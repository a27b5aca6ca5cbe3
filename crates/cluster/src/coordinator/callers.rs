//! Callers: servers that enlist, until the coordinator has reached them.
//!
//! **Invariants**
//! - I1: a server is added to the list after it has answered a ping at the address that it
//!   announces, to the id that it is about to get. Otherwise masters would wait for a backup that
//!   nobody reaches: an empty server attracts new replicas.
//! - I2: a caller that is not reached has to try again, and the list stays as it is. The
//!   failure may be the coordinator's own, and no running member depends on it.

use super::calls::Sounded;
use super::suspects::is_pong;
use super::{Call, CallId, CallKind, Coordinator, Output, ReplyId, Sign, State, refused};
use duramen_base::ids::ServerId;
use duramen_wire::native::message::{
    Enlist, FromCoordinator, Refusal, ServerAnswer, ToCoordinator,
};
use std::collections::BTreeMap;

/// Shortest wait for a caller's answer. It is shorter than a member's wait for the answer to its
/// request, which contains the reason of a failure. With a longer verdict timeout, for slow
/// networks, it is as long as that timeout, and the member repeats its request meanwhile.
const REACH_US_MIN: u64 = 400_000;
/// Delay before a server that was not reached asks again.
const REACH_AGAIN_MS: u32 = 500;

/// Callers that were not reached are named for this long: each asks again more often.
const TURNED_AWAY_US: u64 = 10_000_000;
/// Most callers that are named.
const TURNED_AWAY_MAX: usize = 8;

/// A server that enlists and was not reached yet.
struct Caller {
    enlist: Enlist,
    /// Its requests, each with the sender of its frame.
    asked: Vec<(ReplyId, ServerId)>,
    is_reached: bool,
    /// The reason why the caller was not reached, as its connection saw it.
    why: Option<String>,
}

/// The servers that enlist.
#[derive(Default)]
pub(super) struct Callers {
    /// The callers, by nonce.
    all: BTreeMap<u64, Caller>,
    /// The servers that were turned away, the newest last: the time, the address and the reason.
    turned_away: Vec<(u64, String, String)>,
}

impl Callers {
    /// Whether this server has answered at its address. If not, the coordinator asks it, and
    /// answers this request when that question has ended.
    pub(super) fn is_reached(
        &mut self,
        state: &mut State,
        (reply, sender): (ReplyId, ServerId),
        enlist: &Enlist,
        next: ServerId,
    ) -> bool {
        if let Some(caller) = self.all.get_mut(&enlist.nonce) {
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
        self.all.insert(nonce, caller);
        let address = enlist.addresses.native.clone();
        let question = FromCoordinator::Ping { nonce };
        let kind = CallKind::Reach { nonce };
        let patience_us = reach_us(state);
        state.ask_at(next, address, question, kind, patience_us);
        false
    }

    /// Notes for people why a server is not reached, before its request ends.
    pub(super) fn explain(&mut self, nonce: u64, reason: &str) {
        if let Some(caller) = self.all.get_mut(&nonce) {
            caller.why = Some(reason.to_owned());
        }
    }

    /// Handles the end of the request to a server that enlists. Returns the server's own requests
    /// if it was reached: they are handled again before the server is forgotten.
    pub(super) fn reached(
        &mut self,
        state: &mut State,
        call: &Call,
        nonce: u64,
        ended: &Sounded,
    ) -> Option<(Enlist, Vec<(ReplyId, ServerId)>)> {
        let caller = self.all.get_mut(&nonce)?;
        let asked = std::mem::take(&mut caller.asked);
        if matches!(ended, Sounded::Answered(answer) if is_pong(answer, nonce)) {
            caller.is_reached = true;
            let enlist = caller.enlist.clone();
            self.forget_turned_away(&enlist.addresses.native);
            return Some((enlist, asked));
        }
        let caller = self.all.remove(&nonce)?;
        let address = &caller.enlist.addresses.native;
        let why = caller
            .why
            .unwrap_or_else(|| reason(call, ended, reach_us(state)));
        let not_reached = format!("this coordinator does not reach it there: {why}");
        self.turn_away(state.now_us, address, &not_reached);
        let answer = refused(Refusal::NotReady {
            after_ms: REACH_AGAIN_MS,
            reason: format!(
                "the coordinator cannot reach this member at the address that it announces, \
                 {address}: {why}"
            ),
        });
        for (reply, _) in asked {
            let answer = answer.clone();
            state.records.tell(Output::Answer { reply, answer });
        }
        None
    }

    /// The requests of this server were handled.
    pub(super) fn forget(&mut self, nonce: u64) {
        self.all.remove(&nonce);
    }

    /// The requests of all callers, which get no answer any more.
    pub(super) fn abandon(&mut self) -> Vec<ReplyId> {
        let callers = std::mem::take(&mut self.all).into_values();
        let replies = callers.flat_map(|caller| caller.asked.into_iter().map(|(reply, _)| reply));
        replies.collect()
    }

    /// Notes for people why a server cannot join.
    pub(super) fn turn_away(&mut self, now_us: u64, address: &str, why: &str) {
        self.forget_turned_away(address);
        if self.turned_away.len() >= TURNED_AWAY_MAX {
            self.turned_away.remove(0);
        }
        let noted = (now_us, address.to_owned(), why.to_owned());
        self.turned_away.push(noted);
    }

    /// This server is not turned away any more, or is turned away for another reason.
    fn forget_turned_away(&mut self, address: &str) {
        self.turned_away.retain(|(_, known, _)| known != address);
    }

    /// The addresses of servers that were turned away lately, and why.
    pub(super) fn turned_away(&self, now_us: u64) -> impl Iterator<Item = (&str, &str)> {
        let recent = self.turned_away.iter();
        let recent = recent.filter(move |(at_us, ..)| now_us < at_us + TURNED_AWAY_US);
        recent.map(|(_, address, why)| (address.as_str(), why.as_str()))
    }
}

fn reach_us(state: &State) -> u64 {
    REACH_US_MIN.max(u64::from(state.meta.settings.verdict_timeout_ms) * 1000)
}

impl Coordinator {
    /// Notes for people why a call has no answer, before [`Input::Unanswered`](super::Input).
    pub fn explain(&mut self, call: CallId, reason: &str) {
        if let Some(CallKind::Reach { nonce }) = self.state.asks.kind(call) {
            self.callers.explain(nonce, reason);
        }
    }

    /// The end of the request to a server that enlists.
    pub(super) fn reached(&mut self, call: &Call, nonce: u64, ended: &Sounded) {
        let reached = self.callers.reached(&mut self.state, call, nonce, ended);
        let Some((enlist, asked)) = reached else {
            return;
        };
        for (reply, sender) in asked {
            // The state may have changed meanwhile: everything is checked again.
            self.on_request(reply, sender, ToCoordinator::Enlist(enlist.clone()));
        }
        self.callers.forget(nonce);
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
