//! Requests of the coordinator to servers: they end with an answer, with the reason why there is
//! none, or by time.

use super::{CallId, Coordinator, Sign, Timer};
use duramen_base::ids::{ListVersion, RecoveryId, ServerId, TabletsVersion};
use duramen_wire::native::message::{ClusterFunctions, ClusterUsers, ServerAnswer};
use std::collections::{BTreeMap, BTreeSet};

/// A request of the coordinator without an answer.
pub(super) struct Call {
    pub to: ServerId,
    pub kind: CallKind,
    pub asked_us: u64,
    pub deadline_us: u64,
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

impl CallKind {
    /// Whether it asks for nothing but a sign of life.
    pub(super) fn is_sign_of_life(self) -> bool {
        use CallKind::{Check, Probe, Reach, Roll};
        matches!(
            self,
            Check { .. } | Probe { .. } | Roll { .. } | Reach { .. }
        )
    }
}

/// The requests without an answer, and the timers.
#[derive(Default)]
pub(super) struct Asks {
    calls: BTreeMap<CallId, Call>,
    next_call: u64,
    timers: BTreeSet<(u64, Timer)>,
    wakes_at_us: Option<u64>,
}

impl Asks {
    /// A request is sent. It ends at its deadline at the latest.
    pub(super) fn begin(&mut self, call: Call) -> CallId {
        self.next_call += 1;
        let id = CallId(self.next_call);
        self.arm(call.deadline_us, Timer::Call(id));
        self.calls.insert(id, call);
        id
    }

    /// A request has ended.
    fn end(&mut self, id: CallId) -> Option<Call> {
        let call = self.calls.remove(&id)?;
        self.disarm(call.deadline_us, Timer::Call(id));
        Some(call)
    }

    pub(super) fn kind(&self, id: CallId) -> Option<CallKind> {
        self.calls.get(&id).map(|call| call.kind)
    }

    pub(super) fn arm(&mut self, at_us: u64, timer: Timer) {
        self.timers.insert((at_us, timer));
    }

    pub(super) fn disarm(&mut self, at_us: u64, timer: Timer) {
        self.timers.remove(&(at_us, timer));
    }

    /// Takes the next timer whose time has come, with that time.
    pub(super) fn due(&mut self, now_us: u64) -> Option<(u64, Timer)> {
        let is_due = self
            .timers
            .first()
            .is_some_and(|(at_us, _)| *at_us <= now_us);
        if is_due {
            self.timers.pop_first()
        } else {
            None
        }
    }

    /// The time of the first timer, if it is another one than at the last call.
    pub(super) fn wakes_at(&mut self) -> Option<u64> {
        let next = self.timers.first().map(|(at_us, _)| *at_us);
        let before = std::mem::replace(&mut self.wakes_at_us, next);
        next.filter(|_| next != before)
    }

    /// No timer comes any more.
    pub(super) fn stop(&mut self) {
        self.timers.clear();
    }
}

impl Coordinator {
    /// A server's answer, or the reason why there will be none.
    pub(super) fn answered(&mut self, id: CallId, answer: Result<(ServerAnswer, Vec<u8>), Sign>) {
        let is_pong = matches!(answer, Ok((ServerAnswer::Pong { .. }, _)));
        let Some(call) = self.state.asks.end(id) else {
            if is_pong {
                self.suspects.answered_late(&mut self.state, id);
            }
            return;
        };
        if is_pong && call.is_ping() {
            self.suspects.answered(self.state.now_us, &call);
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
            CallKind::Probe { nonce } => {
                let state = &mut self.state;
                return self.suspects.probed(state, call, nonce, &ended);
            }
            CallKind::Roll { number } => return self.rolled(call.to, number, &ended),
            CallKind::Reach { nonce } => return self.reached(call, nonce, &ended),
            _ => {}
        }
        let answer = match ended {
            Sounded::Answered(answer) => Some((answer, payload)),
            Sounded::Signed(_) | Sounded::Silent => None,
        };
        let state = &mut self.state;
        match call.kind {
            CallKind::List(version) => self.pushes.list_told(state, call.to, version, answer),
            CallKind::Tablets(version) => self.pushes.tablets_told(state, call.to, version, answer),
            CallKind::Users(revision) => {
                self.pushes
                    .revision_told::<ClusterUsers>(state, call.to, revision, answer);
            }
            CallKind::Functions(revision) => {
                self.pushes
                    .revision_told::<ClusterFunctions>(state, call.to, revision, answer);
            }
            CallKind::StartRead { dead } => {
                self.recoveries.collected(state, dead, call.to, answer);
            }
            CallKind::Recover {
                dead,
                recovery,
                partition,
            } => {
                let which = (recovery, partition);
                self.recoveries
                    .answered(state, dead, which, call.to, answer);
            }
            CallKind::TakeBack {
                dead,
                recovery,
                partition,
            } => {
                let which = (recovery, partition);
                self.recoveries
                    .taken_back(state, dead, which, call.to, answer);
            }
            _ => {}
        }
    }

    /// There was no answer in time.
    pub(super) fn overdue(&mut self, id: CallId) {
        if let Some(call) = self.state.asks.end(id) {
            if call.is_ping() {
                self.suspects.unanswered_in_time(id, &call);
            }
            self.returned(&call, Sounded::Silent, Vec::new());
        }
    }
}
