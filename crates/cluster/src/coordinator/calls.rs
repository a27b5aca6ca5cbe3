//! Requests of the coordinator to servers: they end with an answer, with the reason why there is
//! none, or by time.

use super::{CallId, Coordinator, Output, Sign, Timer};
use duramen_base::ids::{ListVersion, RecoveryId, ServerId, TabletsVersion};
use duramen_wire::native::message::{FromCoordinator, ServerAnswer};
use std::collections::{BTreeMap, BTreeSet};

/// A request of the coordinator without an answer.
pub(super) struct Call {
    pub to: ServerId,
    pub kind: CallKind,
    pub asked_us: u64,
    pub deadline_us: u64,
}

/// The requests without an answer, and the timers.
#[derive(Default)]
pub(super) struct Asks {
    pub calls: BTreeMap<CallId, Call>,
    pub next_call: u64,
    pub timers: BTreeSet<(u64, Timer)>,
    pub wakes_at_us: Option<u64>,
}

/// The end of a request.
pub(super) enum Sounded {
    Answered(ServerAnswer),
    Signed(Sign),
    /// Time ran out.
    Silent,
}

impl Call {
    fn is_ping(&self) -> bool {
        use CallKind::{Check, Probe, Roll};
        matches!(self.kind, Check { .. } | Probe { .. } | Roll { .. })
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CallKind {
    Check {
        nonce: u64,
    },
    Probe {
        nonce: u64,
    },
    Roll {
        number: u64,
    },
    Reach {
        nonce: u64,
    },
    List(ListVersion),
    Tablets(TabletsVersion),
    /// The users of this revision.
    Users(u64),
    /// The libraries of functions of this revision.
    Functions(u64),
    StartRead {
        dead: ServerId,
    },
    Recover {
        dead: ServerId,
        recovery: RecoveryId,
        partition: u32,
    },
    Abort,
    TakeBack {
        dead: ServerId,
        recovery: RecoveryId,
        partition: u32,
    },
}

impl Coordinator {
    /// Sends a request to a server that is UP; [`returned`](Self::returned) gets the answer, or its
    /// absence after `patience_us`.
    pub(super) fn ask(
        &mut self,
        to: ServerId,
        question: FromCoordinator,
        kind: CallKind,
        patience_us: u64,
    ) {
        if let Some(server) = self.state.servers.all.get(&to) {
            let address = server.record.entry.addresses.native.clone();
            self.ask_at(to, address, question, kind, patience_us);
        }
    }

    pub(super) fn ask_at(
        &mut self,
        to: ServerId,
        address: String,
        question: FromCoordinator,
        kind: CallKind,
        patience_us: u64,
    ) {
        self.state.asks.next_call += 1;
        let call = CallId(self.state.asks.next_call);
        let deadline_us = self.state.now_us + patience_us;
        let waiting = Call {
            to,
            kind,
            asked_us: self.state.now_us,
            deadline_us,
        };
        self.state.asks.calls.insert(call, waiting);
        self.state
            .asks
            .timers
            .insert((deadline_us, Timer::Call(call)));
        let output = Output::Ask {
            call,
            to,
            address,
            question,
        };
        match kind {
            // pipeline::P3: contains nothing but the request
            CallKind::Check { .. }
            | CallKind::Probe { .. }
            | CallKind::Roll { .. }
            | CallKind::Reach { .. } => self.state.records.out.push(output),
            _ => self.tell(output),
        }
    }

    /// A server's answer, or the reason why there will be none.
    pub(super) fn answered(&mut self, id: CallId, answer: Result<(ServerAnswer, Vec<u8>), Sign>) {
        let is_pong = matches!(answer, Ok((ServerAnswer::Pong { .. }, _)));
        let Some(call) = self.state.asks.calls.remove(&id) else {
            if is_pong {
                self.answered_late(id);
            }
            return;
        };
        self.state
            .asks
            .timers
            .remove(&(call.deadline_us, Timer::Call(id)));
        if is_pong && call.is_ping() {
            let took_us = self.state.now_us - call.asked_us;
            self.roll.patience.took(self.state.now_us, took_us);
        }
        match answer {
            Ok((answer, payload)) => self.returned(&call, Sounded::Answered(answer), payload),
            Err(sign) => self.returned(&call, Sounded::Signed(sign), Vec::new()),
        }
    }

    /// A call has ended.
    fn returned(&mut self, call: &Call, ended: Sounded, payload: Vec<u8>) {
        match call.kind {
            CallKind::Check { nonce } => return self.checked(call, nonce, &ended),
            CallKind::Probe { nonce } => return self.probed(call, nonce, &ended),
            CallKind::Roll { number } => return self.rolled(call.to, number, &ended),
            CallKind::Reach { nonce } => return self.reached(call, nonce, &ended),
            _ => {}
        }
        let answer = match ended {
            Sounded::Answered(answer) => Some((answer, payload)),
            Sounded::Signed(_) | Sounded::Silent => None,
        };
        match call.kind {
            CallKind::List(version) => self.list_told(call.to, version, answer),
            CallKind::Tablets(version) => self.tablets_told(call.to, version, answer),
            CallKind::Users(revision) => self.users_told(call.to, revision, answer),
            CallKind::Functions(revision) => self.functions_told(call.to, revision, answer),
            CallKind::StartRead { dead } => self.collected(dead, call.to, answer),
            CallKind::Recover {
                dead,
                recovery,
                partition,
            } => self.recover_answered(dead, (recovery, partition), call.to, answer),
            CallKind::TakeBack {
                dead,
                recovery,
                partition,
            } => self.taken_back(dead, (recovery, partition), call.to, answer),
            _ => {}
        }
    }

    /// There was no answer in time.
    pub(super) fn overdue(&mut self, id: CallId) {
        if let Some(call) = self.state.asks.calls.remove(&id) {
            if call.is_ping() {
                self.roll.patience.gives_up(id, call.to, call.asked_us);
            }
            self.returned(&call, Sounded::Silent, Vec::new());
        }
    }
}
