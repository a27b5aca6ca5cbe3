//! The wiring of the driver: converts frames to inputs of the state machine, and its outputs to
//! frames.

use super::Driver;
use super::requests::{Asker, Call};
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
        if !is_meant {
            let here = self.roles.me();
            let kind = duramen_wire::native::codec::Kind::ToCoordinator as u16;
            return self.send_trouble(&asker, kind, &Trouble::WrongServer { here });
        }
        if let Some(refusal) = self.roles.refusal() {
            return self.send_refusal(&asker, refusal);
        }
        let sender = asker.envelope.sender;
        let reply = self.askers.add(asker);
        self.handle(Input::Request {
            reply,
            sender,
            question,
        });
    }

    /// The envelope of an answer.
    pub(super) fn back(&self, to: &Envelope) -> Envelope {
        Envelope {
            request: to.request,
            target: to.sender,
            sender: self.roles.me(),
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
        let Some(asker) = self.askers.take(reply) else {
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
        let Some(epoch) = self.roles.epoch() else {
            return;
        };
        self.figures.asked += 1;
        let request = self.calls.next();
        let envelope = Envelope {
            request,
            target: to,
            sender: self.roles.me(),
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
        self.calls.add(request, call);
    }

    pub(super) fn forget(&mut self, request: u64, address: &str) {
        self.hub.forget(address, Role::Coordinator, request);
    }

    pub(super) fn answered(&mut self, request: u64, message: &Message) {
        let Some(call) = self.calls.take(request) else {
            return;
        };
        if self.roles.epoch() != Some(call.epoch) {
            return;
        }
        match decode_reply(&message.frame()) {
            Ok(Reply::Server(answer)) => {
                if let ServerAnswer::Refused(refusal) = &answer {
                    let refusal = refusal.to_string();
                    self.complaints.refused(&call.address, &refusal);
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

    pub(super) fn unanswered(&mut self, requests: &[u64], reason: &Reason) {
        for request in requests {
            let Some(call) = self.calls.take(*request) else {
                continue;
            };
            if self.roles.epoch() == Some(call.epoch) {
                let (call, sign) = (call.id, sign(reason));
                if let Some(leading) = self.roles.leading_mut() {
                    leading.machine.explain(call, &reason.to_string());
                }
                self.handle(Input::Unanswered { call, sign });
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
