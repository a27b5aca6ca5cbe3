//! The wiring of the driver: converts frames to inputs of the state machine, and its outputs to
//! frames.

use super::{Asker, CALL_US_MAX, Call, Driver, State, may_log};
use duramen_base::ids::ServerId;
use duramen_cluster::coordinator::{CallId, Input, ReplyId, Sign};
use duramen_net::{ConnectionId, Message, Payload, Reason};
use duramen_wire::native::codec::{
    Envelope, Question, Reply, Role, Trouble, decode_question, decode_reply,
    encode_coordinator_answer, encode_from_coordinator, encode_pong, encode_trouble,
};
use duramen_wire::native::message::{
    AdminAnswer, CoordinatorAnswer, FromCoordinator, Refusal, Request, ServerAnswer, ToCoordinator,
};

impl Call {
    fn is_old(&self, now_us: u64) -> bool {
        // A call that was sent after `now_us` was read is younger: `saturating_sub` gives 0.
        now_us.saturating_sub(self.since_us) > CALL_US_MAX
    }
}

impl Driver {
    /// coordinator::D4: handles a request.
    pub(super) fn on_request(&mut self, connection: ConnectionId, role: Role, message: &Message) {
        self.figures.questions += 1;
        let frame = message.frame();
        let envelope = frame.header.envelope;
        let asker = Asker {
            connection,
            envelope,
        };
        let kind = frame.header.kind;
        match decode_question(&frame) {
            Ok(Question::ToCoordinator(question)) => {
                if role == Role::Server {
                    let sender = envelope.sender;
                    self.certificates.asked(connection, sender, &question);
                }
                if role != Role::Client || self.admits(connection, envelope, &question) {
                    self.consider(asker, question);
                }
            }
            Ok(Question::Login(login)) => self.log_in(connection, envelope, &login),
            Ok(Question::Client(Request::Ping)) => {
                let back = self.back(&envelope);
                self.hub
                    .reply(connection, Payload::None, |out| encode_pong(out, &back));
            }
            Ok(_) => {
                let reason = "this is a coordinator: it owns no tablets and keeps no replicas";
                self.send_trouble(&asker, kind, &Trouble::NotServing { reason });
            }
            Err(error) => {
                self.hub.offended();
                let reason = error.to_string();
                self.send_trouble(&asker, kind, &Trouble::Malformed { reason: &reason });
            }
        }
    }

    fn consider(&mut self, asker: Asker, question: ToCoordinator) {
        let target = asker.envelope.target;
        let is_meant = target == ServerId::NONE || target.is_coordinator();
        match &self.state {
            _ if !is_meant => {
                let here = self.me();
                let kind = duramen_wire::native::codec::Kind::ToCoordinator as u16;
                self.send_trouble(&asker, kind, &Trouble::WrongServer { here });
            }
            State::Leading(_) => {
                self.next_reply += 1;
                let reply = ReplyId(self.next_reply);
                let sender = asker.envelope.sender;
                self.askers.insert(reply, asker);
                self.handle(Input::Request {
                    reply,
                    sender,
                    question,
                });
            }
            State::Standby { leader } => {
                let leader = leader.clone();
                self.send_refusal(&asker, Refusal::NotLeader { leader });
            }
            State::Away { reason } => {
                let reason = reason.clone();
                self.send_refusal(&asker, Refusal::Store(reason));
            }
        }
    }

    /// The envelope of an answer.
    pub(super) fn back(&self, to: &Envelope) -> Envelope {
        Envelope {
            request: to.request,
            target: to.sender,
            sender: self.me(),
        }
    }

    pub(super) fn send_trouble(&mut self, asker: &Asker, kind: u16, trouble: &Trouble<'_>) {
        let back = self.back(&asker.envelope);
        self.hub.reply(asker.connection, Payload::None, |out| {
            encode_trouble(out, &back, kind, trouble);
        });
    }

    pub(super) fn send_refusal(&mut self, asker: &Asker, refusal: Refusal) {
        self.send_answer(asker, &CoordinatorAnswer::Refused(refusal));
    }

    fn send_answer(&mut self, asker: &Asker, answer: &CoordinatorAnswer) {
        let back = self.back(&asker.envelope);
        self.hub.reply(asker.connection, Payload::None, |out| {
            encode_coordinator_answer(out, &back, answer);
        });
    }

    pub(super) fn answer(&mut self, reply: ReplyId, answer: &CoordinatorAnswer) {
        let Some(asker) = self.askers.remove(&reply) else {
            return;
        };
        // The rules of the cluster know no certificates.
        if let CoordinatorAnswer::Admin(AdminAnswer::Members(_)) = answer
            && let Some(health) = self.members_health()
        {
            let answer = CoordinatorAnswer::Admin(AdminAnswer::Members(health));
            return self.send_answer(&asker, &answer);
        }
        self.send_answer(&asker, answer);
    }

    pub(super) fn ask(
        &mut self,
        id: CallId,
        to: ServerId,
        address: String,
        question: &FromCoordinator,
    ) {
        let Some(epoch) = self.epoch() else {
            return;
        };
        self.figures.asked += 1;
        self.next_request += 1;
        let request = self.next_request;
        let envelope = Envelope {
            request,
            target: to,
            sender: self.me(),
        };
        self.hub
            .ask(&address, Role::Coordinator, request, Payload::None, |out| {
                encode_from_coordinator(out, &envelope, question)
            });
        let since_us = self.now_us();
        let call = Call {
            id,
            epoch,
            address,
            since_us,
        };
        self.calls.insert(request, call);
    }

    pub(super) fn forget(&mut self, request: u64, address: &str) {
        self.hub.forget(address, Role::Coordinator, request);
    }

    pub(super) fn answered(&mut self, request: u64, message: &Message) {
        let Some(call) = self.calls.remove(&request) else {
            return;
        };
        if self.epoch() != Some(call.epoch) {
            return;
        }
        match decode_reply(&message.frame()) {
            Ok(Reply::Server(answer)) => {
                if let ServerAnswer::Refused(refusal) = &answer {
                    self.say_refused(&call.address, &refusal.to_string());
                }
                self.handle(Input::Answered {
                    call: call.id,
                    answer,
                    payload: message.payload().to_vec(),
                });
            }
            Ok(Reply::Trouble(trouble)) => {
                tracing::debug!(address = call.address, "an answer: {trouble}");
                let sign = match trouble {
                    // The process at this address is another life of the server.
                    Trouble::WrongServer { .. } => Sign::Dead,
                    _ => Sign::Unknown,
                };
                let call = call.id;
                self.handle(Input::Unanswered { call, sign });
            }
            Ok(_) => {}
            Err(error) => {
                self.hub.offended();
                tracing::warn!(address = call.address, "an answer that is none: {error}");
            }
        }
    }

    /// Logs a refusal, but not often: the call is repeated while its reason lasts.
    fn say_refused(&mut self, address: &str, refusal: &str) {
        if may_log(&mut self.logged.refused) {
            tracing::warn!(address, "a server refused an order: {refusal}");
        }
    }

    pub(super) fn unanswered(&mut self, requests: &[u64], reason: &Reason) {
        for request in requests {
            let Some(call) = self.calls.remove(request) else {
                continue;
            };
            if self.epoch() == Some(call.epoch) {
                let (call, sign) = (call.id, sign(reason));
                if let State::Leading(leading) = &mut self.state {
                    leading.machine.explain(call, &reason.to_string());
                }
                self.handle(Input::Unanswered { call, sign });
            }
        }
    }

    /// Drops calls whose answer is not needed any more.
    pub(super) fn sweep(&mut self, now_us: u64) {
        let old: Vec<u64> = self
            .calls
            .iter()
            .filter(|(_, call)| call.is_old(now_us))
            .map(|(request, _)| *request)
            .collect();
        for request in old {
            if let Some(call) = self.calls.remove(&request) {
                self.forget(request, &call.address);
            }
        }
    }
}

/// The sign that the end of a connection gives about its server.
fn sign(reason: &Reason) -> Sign {
    if reason.is_sign_of_death() {
        Sign::Dead
    } else if reason.is_denial() {
        Sign::Denied
    } else {
        Sign::Unknown
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
