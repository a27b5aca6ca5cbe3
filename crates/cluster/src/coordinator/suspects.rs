//! Whether a suspect is crashed: the coordinator asks it itself, twice, before it says so.
//!
//! **Invariants**
//! - U1: a server is called crashed after two questions without an answer, or two refused connections, and for nothing else
//!   (apart from being replaced, and from people who say so).
//! - U2: an answer that was not waited for long enough, as the coordinator itself was late, counts for nothing.

use super::{Call, CallKind, Coordinator, Timer};
use crate::planted::Bug;
use duramen_base::ids::{ListVersion, ServerId};
use duramen_wire::native::message::{CoordinatorAnswer, FromCoordinator, ServerAnswer};

/// Questions that a suspect may miss.
const CHANCES: u32 = 2;
/// A timer that comes so much too late says that this process or machine stood still, not that the suspect did.
const LATE_US: u64 = 50_000;

/// A check under way.
pub(super) struct Check {
    nonce: u64,
    missed: u32,
}

impl Coordinator {
    pub(super) fn suspected(
        &mut self,
        by: ServerId,
        server: ServerId,
        list_version: ListVersion,
    ) -> CoordinatorAnswer {
        if self.is_up(server) && by != server {
            self.begin_check(server);
        } else if list_version < self.published.version() {
            self.kick(by); // it does not know yet
        }
        CoordinatorAnswer::Noted
    }

    /// Asks a server whether it lives, unless that is being done.
    pub(super) fn begin_check(&mut self, id: ServerId) {
        match self.servers.get_mut(&id) {
            Some(server) if server.is_up() && server.check.is_none() => {
                server.check = Some(Check {
                    nonce: 0,
                    missed: 0,
                });
                self.check_again(id);
            }
            _ => {}
        }
    }

    pub(super) fn check_again(&mut self, id: ServerId) {
        let nonce = self.random.number();
        let patience_us = self.ping_patience_us();
        if let Some(check) = self.servers.get_mut(&id).and_then(|s| s.check.as_mut()) {
            check.nonce = nonce;
            let question = FromCoordinator::Ping { nonce };
            self.ask(id, question, CallKind::Check { nonce }, patience_us);
        }
    }

    fn ping_patience_us(&self) -> u64 {
        u64::from(self.meta.settings.verdict_timeout_ms) * 1000 / u64::from(CHANCES)
    }

    /// The end of a check's question.
    pub(super) fn checked(
        &mut self,
        call: &Call,
        nonce: u64,
        answer: Option<(ServerAnswer, Vec<u8>)>,
        is_late: bool,
    ) {
        let now_us = self.now_us;
        let excused = is_late
            && now_us - call.deadline_us > LATE_US
            && !self.config.planted.is(Bug::LateVerdict); // U2
        let Some(server) = self.servers.get_mut(&call.to) else {
            return;
        };
        let Some(check) = server.check.as_mut().filter(|check| check.nonce == nonce) else {
            return;
        };
        if is_pong(answer.as_ref(), nonce) {
            server.check = None;
            server.push.check_passed_us = Some(now_us);
            return;
        }
        if !excused {
            check.missed += 1;
        }
        if check.missed >= CHANCES {
            self.crash(call.to); // U1
        } else if is_late {
            self.check_again(call.to);
        } else {
            // Refused at once: who is just starting gets a moment.
            let rest_us = self.ping_patience_us() / 2;
            self.arm(now_us + rest_us, Timer::Check(call.to));
        }
    }

    /// Asks a random member whether it lives: so a cluster of one or two servers is watched as well.
    pub(super) fn probe(&mut self) {
        let interval_us = u64::from(self.meta.settings.ping_interval_ms).max(1) * 1000;
        self.arm(self.now_us + interval_us, Timer::Probe);
        let picked = self.random.pick(&self.up).copied();
        if let Some(id) = picked.filter(|id| self.servers[id].push.is_welcome) {
            let nonce = self.random.number();
            let question = FromCoordinator::Ping { nonce };
            let patience_us = self.ping_patience_us();
            self.ask(id, question, CallKind::Probe { nonce }, patience_us);
        }
    }

    pub(super) fn probed(
        &mut self,
        call: &Call,
        nonce: u64,
        answer: Option<(ServerAnswer, Vec<u8>)>,
    ) {
        if !is_pong(answer.as_ref(), nonce) {
            self.begin_check(call.to);
        }
    }
}

fn is_pong(answer: Option<&(ServerAnswer, Vec<u8>)>, asked: u64) -> bool {
    matches!(answer, Some((ServerAnswer::Pong { nonce, .. }, _)) if *nonce == asked)
}
