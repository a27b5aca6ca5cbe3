//! Checks suspects: the coordinator itself asks a suspect before it declares it crashed, and asks
//! other servers for signs of life, to find out whether it can reach any.
//!
//! **Invariants** verdict::V1 to verdict::V3, patience::H1 to patience::H4, and
//! - U1: a server is declared crashed if there is enough evidence and either the leader may judge
//!   or another server has its disk, and for no other reason (apart from being replaced, and from
//!   an operator's command).
//! - U2: a missing answer does not count if the coordinator itself was late and did not wait long
//!   enough.
//! - U3: the right to judge depends on a roll call that is no older than a check takes: the servers
//!   are asked for a sign of life when the first of them misses a request. A new leader begins with
//!   one.
//! - U4: silences from a time in which the leader could not judge do not count: they were its own.
//!   After such a time, a connection may wait for TCP's next retransmission for seconds more. That
//!   wait does not count either: connections to servers that do not answer yet are opened anew.

use super::calls::Sounded;
use super::patience::Patience;
use super::verdict::{CHANCES, Count, Evidence, Sign, Standing};
use super::{Call, CallId, CallKind, Coordinator, Output, State, Timer};
use duramen_base::ids::{ListVersion, ServerId};
use duramen_base::planted::{Bug, has_bug};
use duramen_wire::native::message::{CoordinatorAnswer, FromCoordinator, Refusal, ServerAnswer};
use std::collections::BTreeSet;

/// A timer that is late by this much means that this process or machine stood still, not that the
/// suspect did.
const LATE_US: u64 = 50_000;
/// Most servers of a roll call, drawn at random. If a third is gone, fewer than half of 256 answer
/// once in 10⁸ calls.
const ROLL_MAX: usize = 256;
/// A leader that may not judge for this long resigns: usually longer than a switch or a resolver
/// takes to come back, shorter than an operator takes to react.
const RESIGN_US: u64 = 3_000_000;

/// Pause after a roll call that denies the right to judge.
const ROLL_AGAIN_US: u64 = 500_000;

/// A check in progress.
#[derive(Default)]
pub(super) struct Check {
    nonce: u64,
    evidence: Evidence,
    /// Its connection was opened anew.
    is_reopened: bool,
    /// Silences that do not count, because its connection is new.
    spared: u32,
    /// Another server with its disk, or one that claims to follow it, wants to take its place.
    is_claimed: bool,
}

/// A roll call (U3).
#[derive(Default)]
struct Roll {
    number: u64,
    began_us: u64,
    count: Count,
    /// The servers whose requests have ended without a sign of life.
    silent: BTreeSet<ServerId>,
    /// At the end of the call, connections to silent servers are opened anew (U4).
    reopens: bool,
    /// Number of requests that have not ended.
    open: usize,
    /// Servers with enough evidence, until it is known whether this leader may judge.
    ripe: BTreeSet<ServerId>,
    /// The time since which this leader may not judge.
    unfit_since_us: Option<u64>,
}

/// The outcome of a check's request that was not answered.
struct Checked {
    /// Servers that are to be declared crashed.
    condemned: Vec<ServerId>,
    /// The pause before the server is asked again.
    again_us: u64,
    has_evidence: bool,
}

/// The servers that may be dead; see the module.
#[derive(Default)]
pub(super) struct Suspects {
    roll: Roll,
    patience: Patience,
}

impl Suspects {
    /// Asks a server whether it lives, unless that is being done.
    pub(super) fn begin_check(&self, state: &mut State, id: ServerId) {
        match state.servers.get_mut(&id) {
            Some(server) if server.is_up() && server.check.is_none() => {
                server.check = Some(Check::default());
                self.check_again(state, id);
            }
            _ => {}
        }
    }

    /// Asks a server whether it lives, since another one wants to take its place.
    pub(super) fn begin_claimed_check(&self, state: &mut State, id: ServerId) {
        self.begin_check(state, id);
        if let Some(check) = state.servers.get_mut(&id).and_then(|s| s.check.as_mut()) {
            check.is_claimed = true;
        }
    }

    pub(super) fn check_again(&self, state: &mut State, id: ServerId) {
        let nonce = state.random.next_u64();
        let patience_us = self.ping_patience_us(state);
        if let Some(check) = state.servers.get_mut(&id).and_then(|s| s.check.as_mut()) {
            check.nonce = nonce;
            let question = FromCoordinator::Ping { nonce };
            state.ask(id, question, CallKind::Check { nonce }, patience_us);
        }
    }

    /// The time that a silence takes, lengthened by how slowly the servers have answered.
    fn ping_patience_us(&self, state: &State) -> u64 {
        self.patience.of(state.now_us, silence_us(state))
    }

    /// A ping was answered in time.
    pub(super) fn answered(&mut self, now_us: u64, call: &Call) {
        self.patience.took(now_us, now_us - call.asked_us);
    }

    /// A ping has ended without an answer.
    pub(super) fn unanswered_in_time(&mut self, id: CallId, call: &Call) {
        self.patience.gives_up(id, call.to, call.asked_us);
    }

    /// A ping is answered after its end (patience::H3).
    pub(super) fn answered_late(&mut self, state: &mut State, id: CallId) {
        if let Some((from, asked_us)) = self.patience.late(id) {
            self.patience.took(state.now_us, state.now_us - asked_us);
            let check = state.servers.get(&from).and_then(|s| s.check.as_ref());
            // The ping may be older than the claim that the server's life is over.
            if check.is_some_and(|check| !check.is_claimed) {
                self.lives(state, from);
            }
        }
    }

    /// A sign of life: a check of it ends.
    fn lives(&mut self, state: &mut State, id: ServerId) {
        if let Some(server) = state.servers.get_mut(&id)
            && server.check.take().is_some()
        {
            server.push.check_passed_us = Some(state.now_us);
        }
        self.roll.ripe.remove(&id);
    }

    /// The end of a check's request. `None`: it says nothing, or that the server lives.
    fn checked(
        &mut self,
        state: &mut State,
        call: &Call,
        nonce: u64,
        ended: &Sounded,
    ) -> Option<Checked> {
        let now_us = state.now_us;
        let rest_us = silence_us(state);
        let was_late = now_us.saturating_sub(call.deadline_us) > LATE_US;
        let is_short = now_us - call.asked_us < self.ping_patience_us(state); // patience::H4
        let is_excused = (is_short || was_late) && !has_bug(Bug::LateVerdict); // U2
        let blames = has_bug(Bug::OwnFaultIsDeath);
        let check = state.servers.get_mut(&call.to)?.check.as_mut();
        let check = check.filter(|check| check.nonce == nonce)?;
        let again_us = match ended {
            Sounded::Answered(answer) if is_pong(answer, nonce) => {
                self.lives(state, call.to);
                return None;
            }
            Sounded::Silent if is_excused => 0,
            Sounded::Silent if check.spared > 0 => {
                check.spared -= 1;
                0
            }
            Sounded::Silent => {
                check.evidence.missed += 1;
                0
            }
            // A server that is just starting gets a moment.
            Sounded::Signed(Sign::Dead) => {
                check.evidence.missed += 1;
                rest_us / 2
            }
            Sounded::Answered(answer) if is_over(answer, call.to) => {
                check.evidence.missed += 1;
                rest_us / 2
            }
            Sounded::Signed(_) if blames => {
                check.evidence.missed += 1;
                rest_us / 2
            }
            Sounded::Signed(_) | Sounded::Answered(_) => {
                check.evidence.unknown += 1;
                rest_us
            }
        };
        let (evidence, is_claimed) = (check.evidence, check.is_claimed);
        let mut condemned = Vec::new();
        if evidence.is_enough() {
            self.roll.ripe.insert(call.to);
            condemned.extend(self.judge(state));
        }
        if is_claimed && evidence.is_enough() {
            condemned.push(call.to);
        }
        Some(Checked {
            condemned,
            again_us,
            has_evidence: evidence != Evidence::default(),
        })
    }

    /// Asks this server again, unless it is one of the condemned, which are crashed by now.
    fn check_further(&mut self, state: &mut State, id: ServerId, checked: &Checked) {
        if !state.servers.is_up(id) {
            return;
        }
        match checked.again_us {
            0 => self.check_again(state, id),
            again_us => state.asks.arm(state.now_us + again_us, Timer::Check(id)),
        }
        if checked.has_evidence && !self.is_roll_fresh(state) {
            self.call_roll(state);
        }
    }

    /// Asks a random member whether it lives: so a cluster of one or two servers is watched as
    /// well.
    pub(super) fn probe(&mut self, state: &mut State) {
        let interval_us = u64::from(state.meta.settings.ping_interval_ms).max(1) * 1000;
        let next_us = state.now_us + interval_us;
        self.patience.looks(state.now_us, next_us);
        state.asks.arm(next_us, Timer::Probe);
        let picked = state.random.pick(state.servers.up()).copied();
        if let Some(id) = picked.filter(|id| state.servers[id].push.is_welcome) {
            let nonce = state.random.next_u64();
            let question = FromCoordinator::Ping { nonce };
            let patience_us = self.ping_patience_us(state);
            state.ask(id, question, CallKind::Probe { nonce }, patience_us);
        }
    }

    pub(super) fn probed(&self, state: &mut State, call: &Call, nonce: u64, ended: &Sounded) {
        let is_well = matches!(ended, Sounded::Answered(answer) if is_pong(answer, nonce));
        if !is_well {
            self.begin_check(state, call.to);
        }
    }

    // --- roll calls

    fn is_roll_fresh(&self, state: &State) -> bool {
        let patience_us = self.ping_patience_us(state) * u64::from(CHANCES);
        self.roll.number > 0 && state.now_us <= self.roll.began_us + patience_us
    }

    /// Servers that do not answer, if they are so many that this leader may not judge.
    pub(super) fn unanswered(&self) -> usize {
        let count = self.roll.count;
        match self.roll.unfit_since_us {
            Some(_) => count.asked - count.answered,
            None => 0,
        }
    }

    /// Whether the last roll call gave this leader the right to judge.
    pub(super) fn may_judge(&self) -> bool {
        self.roll.number > 0 && self.roll.count.standing() == Standing::Judges
    }

    /// A leader that may not judge calls the roll again, however patient it is by now: if no server
    /// is suspected any more, nothing else would show that it is fit.
    pub(super) fn roll_due(&mut self, state: &mut State) {
        let is_unfit = self.roll.unfit_since_us.is_some() && self.roll.open == 0;
        if is_unfit || !self.is_roll_fresh(state) {
            self.call_roll(state);
        }
    }

    /// Asks the servers for a sign of life (U3).
    pub(super) fn call_roll(&mut self, state: &mut State) {
        let mut asked = state.servers.up().to_vec();
        asked.retain(|id| state.servers[id].push.is_welcome);
        if asked.len() > ROLL_MAX {
            for n in 0..ROLL_MAX {
                let other = n + state.random.index(asked.len() - n);
                asked.swap(n, other);
            }
            asked.truncate(ROLL_MAX);
        }
        if asked.is_empty() {
            self.roll.unfit_since_us = None;
            return;
        }
        let number = self.roll.number + 1;
        self.roll.number = number;
        self.roll.began_us = state.now_us;
        self.roll.open = asked.len();
        self.roll.silent.clear();
        self.roll.count = Count {
            asked: asked.len(),
            ..Count::default()
        };
        let patience_us = self.ping_patience_us(state);
        for id in asked {
            let question = FromCoordinator::Ping { nonce: number };
            state.ask(id, question, CallKind::Roll { number }, patience_us);
        }
    }

    /// The end of a roll call's request. Returns the servers that are to be declared crashed;
    /// `None`: the request is of another call.
    fn rolled(
        &mut self,
        state: &mut State,
        from: ServerId,
        number: u64,
        ended: &Sounded,
    ) -> Option<BTreeSet<ServerId>> {
        if self.roll.number != number {
            return None;
        }
        self.roll.open -= 1;
        match ended {
            Sounded::Answered(answer) if is_pong(answer, number) => {
                self.roll.count.answered += 1;
            }
            Sounded::Signed(Sign::Denied) => self.roll.count.denied += 1,
            Sounded::Silent | Sounded::Signed(Sign::Unknown) => {
                self.roll.silent.insert(from);
            }
            Sounded::Signed(Sign::Dead) if is_emptied(state, from) => self.roll.count.asked -= 1,
            Sounded::Answered(_) | Sounded::Signed(Sign::Dead) => {}
        }
        Some(self.judge(state))
    }

    /// Ends a roll call whose requests have all ended. The condemned are crashed by now.
    fn end_roll(&mut self, state: &mut State) {
        if self.roll.open > 0 {
            return;
        }
        if std::mem::take(&mut self.roll.reopens) {
            self.reopen_silent(state);
        }
        self.consider_standing(state);
    }

    /// The servers with enough evidence, which are to be declared crashed, if this leader may judge
    /// (U1, U4).
    fn judge(&mut self, state: &mut State) -> BTreeSet<ServerId> {
        let has_right = self.roll.count.standing() == Standing::Judges;
        let judges_alone = has_bug(Bug::JudgesAlone);
        // This holds also if the answers were handled too late for a verdict.
        if has_right && !judges_alone && self.roll.unfit_since_us.take().is_some() {
            self.forget_evidence(state);
            return BTreeSet::new();
        }
        let may = has_right && self.is_roll_fresh(state) || judges_alone;
        match may {
            true => std::mem::take(&mut self.roll.ripe),
            false => BTreeSet::new(),
        }
    }

    /// U4: this leader reaches the servers again. Checks in progress begin without evidence.
    fn forget_evidence(&mut self, state: &mut State) {
        self.roll.ripe.clear();
        self.roll.reopens = true;
        for server in state.servers.values_mut() {
            if let Some(check) = &mut server.check {
                check.evidence = Evidence::default();
            }
        }
    }

    /// U4: servers that were silent in this call, by which the leader got its right back. A new
    /// connection takes four round trips to its first answer, so its first silences do not count;
    /// but only once: a server that has not answered since is not spared again.
    fn reopen_silent(&mut self, state: &mut State) {
        for id in std::mem::take(&mut self.roll.silent) {
            self.begin_check(state, id);
            let Some(server) = state.servers.get_mut(&id).filter(|server| server.is_up()) else {
                continue;
            };
            if let Some(check) = &mut server.check
                && !std::mem::replace(&mut check.is_reopened, true)
            {
                check.evidence = Evidence::default();
                check.spared = CHANCES;
                self.roll.ripe.remove(&id);
            }
            let address = server.record.entry.addresses.native.clone();
            state.records.tell_at_once(Output::Reopen { address });
        }
    }

    /// Considers the leader's right to judge: all servers were asked, and the time is over.
    fn consider_standing(&mut self, state: &mut State) {
        let count = self.roll.count;
        let standing = count.standing();
        if standing == Standing::Judges {
            self.roll.unfit_since_us = None;
            return;
        }
        let since_us = *self.roll.unfit_since_us.get_or_insert(state.now_us);
        let is_denied = standing == Standing::Denied;
        state.records.tell_at_once(Output::Unfit {
            asked: count.asked,
            answered: count.answered,
            is_denied,
            resigns: is_denied || state.now_us - since_us >= RESIGN_US,
        });
        state.asks.arm(state.now_us + ROLL_AGAIN_US, Timer::Roll);
    }
}

/// The time that a silence takes, as configured.
fn silence_us(state: &State) -> u64 {
    u64::from(state.meta.settings.verdict_timeout_ms) * 1000 / u64::from(CHANCES)
}

/// Whether a server is being drained and owns nothing any more (verdict::V2).
fn is_emptied(state: &State, id: ServerId) -> bool {
    let draining = |server: &super::Server| server.record.entry.draining;
    state.servers.get(&id).is_some_and(draining) && state.tables.tablets_owned(id) == 0
}

impl Coordinator {
    pub(super) fn suspected(
        &mut self,
        by: ServerId,
        server: ServerId,
        list_version: ListVersion,
    ) -> CoordinatorAnswer {
        if has_bug(Bug::SuspicionIsVerdict) {
            self.crash(server);
        } else if self.state.servers.is_up(server) && by != server {
            self.suspects.begin_check(&mut self.state, server);
        } else if list_version < self.pushes.list().version() {
            self.pushes.kick(&mut self.state, by); // it lacks the newest list
        }
        CoordinatorAnswer::Noted
    }

    /// The end of a check's request.
    pub(super) fn checked(&mut self, call: &Call, nonce: u64, ended: &Sounded) {
        let checked = self.suspects.checked(&mut self.state, call, nonce, ended);
        if let Some(checked) = checked {
            checked.condemned.iter().for_each(|id| self.crash(*id));
            let state = &mut self.state;
            self.suspects.check_further(state, call.to, &checked);
        }
    }

    /// The end of a roll call's request.
    pub(super) fn rolled(&mut self, from: ServerId, number: u64, ended: &Sounded) {
        let condemned = self.suspects.rolled(&mut self.state, from, number, ended);
        if let Some(condemned) = condemned {
            condemned.into_iter().for_each(|id| self.crash(id));
            self.suspects.end_roll(&mut self.state);
        }
    }

    /// Servers that do not answer, if they are so many that this leader may not judge.
    pub fn unanswered(&self) -> usize {
        self.suspects.unanswered()
    }

    /// Whether the last roll call gave this leader the right to judge.
    pub fn may_judge(&self) -> bool {
        self.suspects.may_judge()
    }
}

/// Whether the asked life is over: its process has ended, or another life answers at its address.
fn is_over(answer: &ServerAnswer, asked: ServerId) -> bool {
    matches!(answer, ServerAnswer::Refused(Refusal::NotUp(gone)) if *gone == asked)
}

pub(super) fn is_pong(answer: &ServerAnswer, asked: u64) -> bool {
    matches!(answer, ServerAnswer::Pong { nonce, .. } if *nonce == asked)
}
