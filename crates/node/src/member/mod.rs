//! Membership: enlisting, the server list, watching other members, and the tablets of this server.
//!
//! A state machine without I/O: [`Member::handle`] takes an event and returns actions, in order.
//! Work that takes time or touches the store is returned as a
//! [`Reconciliation`](crate::reconciliation::Reconciliation) for a worker.
//!
//! **Invariants**
//! - N1: nothing is sent or done under a new id before that id is stored: after a crash the next
//!   life can name this one.
//! - N2: a range that is not listed any more is not served from the moment that the list is read,
//!   is out of the index before anything listed later is served, and no write that was allowed
//!   before follows (the order waits for guards: `engine::quiesce`).
//! - N3: ranges that a newer list gives are served only after its order is done. A list that
//!   arrives meanwhile removes ranges at once, and gives ranges when its own order is done.
//! - N4: a list that is not newer changes nothing; it is confirmed with the version that is here.
//! - N5: a member that is told that it is not UP serves nothing more in this life.
//! - N6: a coordinator of an earlier term is not obeyed.
//! - N10: a server never answers for another life at its address: that one would seem alive.
//! - N11: a request is not repeated while its connection moves: a large answer, such as the map,
//!   takes as long as the link needs, and repetitions would fill the link with more of them. A map
//!   counts however late it comes.
//!
//! Paper: [Ousterhout15 §3, §7.2]; differs: tablets are told declaratively (docs/traps.md,
//! trap 28), a server that is declared crashed ends itself when it is told so, and stops reads
//! after its leases by time.

mod asked;
mod events;

use crate::assignment::Assignment;
use crate::requests::{RequestId, Token};
use crate::view::{Map, View};
use asked::Asked;
use duramen_base::ids::{ListVersion, MapVersion, ServerId, TabletsVersion};
use duramen_base::planted::{Bug, has_bug};
use duramen_base::random::Random;
use duramen_cluster::detector::{Act, Detector};
use duramen_cluster::membership::{Applied, Members};
use duramen_wire::native::message::{
    CoordinatorAnswer, Enlist, Enlisted, FromCoordinator, Peer, PeerAnswer, Refusal, ServerAnswer,
    ServerChange, ServerListUpdate, ServerStatus, Tablets, ToCoordinator,
};
pub use events::{Input, Output};
use std::collections::BTreeMap;
use std::sync::Arc;

/// A request that was refused for now, or did not reach a coordinator, is repeated after about this
/// time (half of it to one and a half times), unless the answer gives another.
const REST_US: u64 = 100_000;
/// Interval of the requests for the map, so that redirects are not much older than this.
const MAP_US: u64 = 1_000_000;
/// The same interval while the map names owners that are gone: clients wait for it.
const MAP_SOON_US: u64 = 100_000;
/// The intervals are this much longer for each server of the cluster.
const MAP_EACH_US: u64 = 500;
const MAP_SOON_EACH_US: u64 = 200;
/// Interval of the reports of its versions, if it knows no other member: the answer tells whether
/// it still is a member (N5).
const CONFIRM_US: u64 = 1_000_000;
/// The same interval if it knows other members, which would tell it (detector::F4).
const CONFIRM_SELDOM_US: u64 = 10_000_000;

/// A server that wants to become a member.
#[derive(Clone, Debug)]
pub struct Candidate {
    /// Its description. The nonce must be random, and new in each life.
    pub enlist: Enlist,
    /// Addresses of coordinators, `host:port`; at least one.
    pub coordinators: Vec<String>,
    /// The seed of random choices.
    pub seed: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Asking {
    Enlist,
    Confirm,
    Map,
    Suspect(ServerId),
}

enum Phase {
    Enlisting,
    /// Its id is being stored.
    Storing(Box<Enlisted>),
    Member,
    Ended,
}

/// The membership of a server; see the module.
pub struct Member {
    candidate: Candidate,
    /// Index of the coordinator that answers, or is tried.
    coordinator: usize,
    /// When a leader last answered. Its orders and pings do not count: if only the way to the
    /// coordinator is cut, they still arrive.
    heard_us: u64,
    phase: Phase,
    me: ServerId,
    term: u32,
    random: Random,
    members: Members,
    detector: Option<Detector>,
    assignment: Assignment,
    /// The request that waits for the confirmation of a list.
    waiting: Option<(RequestId, TabletsVersion)>,
    map: Arc<Map>,
    /// Whether a step of the map did not fit: the whole map is requested.
    wants_whole_map: bool,
    asking: BTreeMap<Token, Asked>,
    /// The time of the next request of each kind.
    timers: BTreeMap<Asking, u64>,
    next_token: u64,
}

impl Member {
    /// Begins to enlist with the first [`Input::Tick`]. The driver must listen already: pings
    /// arrive at once.
    pub fn new(now_us: u64, candidate: Candidate) -> Member {
        assert!(!candidate.coordinators.is_empty(), "somebody to ask");
        Member {
            random: Random::new(candidate.seed ^ candidate.enlist.nonce),
            candidate,
            coordinator: 0,
            heard_us: now_us,
            phase: Phase::Enlisting,
            me: ServerId::NONE,
            term: 0,
            members: Members::new(),
            detector: None,
            assignment: Assignment::default(),
            waiting: None,
            map: Arc::new(Map::default()),
            wants_whole_map: false,
            asking: BTreeMap::new(),
            timers: BTreeMap::from([(Asking::Enlist, now_us)]),
            next_token: 0,
        }
    }

    /// Its id; `NONE` before it is a member.
    pub fn id(&self) -> ServerId {
        self.me
    }

    /// The newest term of a coordinator that gave orders here.
    pub fn term(&self) -> u32 {
        self.term
    }

    /// The server list here.
    pub fn members(&self) -> &Members {
        &self.members
    }

    /// The coordinator that answers, or is tried: `host:port`.
    pub fn coordinator(&self) -> &str {
        &self.candidate.coordinators[self.coordinator]
    }

    /// Time since a leading coordinator last answered a request of this member.
    pub fn coordinator_silent_us(&self, now_us: u64) -> u64 {
        now_us.saturating_sub(self.heard_us)
    }

    /// The versions here, as they are confirmed to the coordinator.
    pub(crate) fn confirmed(&self) -> ServerAnswer {
        match self.phase {
            Phase::Ended => ServerAnswer::Refused(Refusal::NotUp(self.me)),
            _ => ServerAnswer::Confirmed {
                list_version: self.members.version(),
                tablets_version: self.assignment.done(),
            },
        }
    }

    /// The tablets of this member.
    pub(crate) fn assignment(&self) -> &Assignment {
        &self.assignment
    }

    pub(crate) fn assignment_mut(&mut self) -> &mut Assignment {
        &mut self.assignment
    }

    /// Publishes the served ranges after a lock or an unlock.
    pub(crate) fn publish_now(&self, out: &mut Vec<Output>) {
        if matches!(self.phase, Phase::Member) {
            self.publish(out);
        }
    }

    /// N5: another part of this server was told that it is not UP.
    pub(crate) fn quit(&mut self, again: bool, reason: &str, out: &mut Vec<Output>) {
        if !matches!(self.phase, Phase::Ended) {
            self.end(again, reason, out);
        }
    }

    /// When it needs an [`Input::Tick`].
    pub fn due_us(&self) -> u64 {
        let asking = self.asking.values().map(|asked| asked.deadline_us);
        let timers = self.timers.values().copied();
        let detector = self.detector.iter().map(Detector::due_us);
        asking
            .chain(timers)
            .chain(detector)
            .min()
            .unwrap_or(u64::MAX)
    }

    /// `now_us`: a monotonic clock of any origin.
    pub fn handle(&mut self, now_us: u64, input: Input, out: &mut Vec<Output>) {
        if matches!(self.phase, Phase::Ended) {
            return self.handle_ended(input, out);
        }
        match input {
            Input::Order {
                request,
                sender,
                target,
                question,
            } => {
                self.on_order(now_us, request, sender, target, question, out);
            }
            Input::Pinged {
                request,
                target,
                nonce,
            } => self.pinged(request, target, nonce, out),
            Input::Answered { token, answer } => {
                self.learn(&answer, out); // N11: also if it is asked for again
                if let Some(asked) = self.asking.remove(&token) {
                    self.answered(now_us, asked.what, answer, out);
                }
            }
            Input::Unanswered { token } => {
                if let Some(asked) = self.asking.remove(&token) {
                    self.next_coordinator(None);
                    self.again_soon(asked.what, now_us);
                }
            }
            Input::Moving(tokens) => self.moving(now_us, &tokens),
            Input::Ponged {
                nonce,
                list_version,
            } => self.ponged(now_us, nonce, list_version, out),
            Input::Unreachable { server } => {
                let act = self.detector.as_mut().and_then(|d| d.unreachable(server));
                self.act(now_us, act, out);
            }
            Input::IdStored { server } => self.id_stored(now_us, server, out),
            Input::Obeyed { version } => self.obeyed(now_us, version, out),
            Input::NotObeyed { version, reason } => self.not_obeyed(version, reason, out),
            Input::ObeyAgain => out.extend(self.assignment.next_order().map(Output::Obey)),
            Input::Purged => {
                self.assignment.purged();
                out.extend(self.assignment.next_purge().map(Output::Purge));
                out.extend(self.assignment.next_order().map(Output::Obey));
            }
            Input::Left(ranges) => {
                self.assignment.stain(&ranges);
                out.extend(self.assignment.next_purge().map(Output::Purge));
            }
            Input::UsersTaken {
                request,
                fault: None,
            } => self.confirm(request, out),
            Input::UsersTaken {
                request,
                fault: Some(fault),
            } => {
                let answer = ServerAnswer::Refused(Refusal::Invalid(fault));
                out.push(Output::Answer { request, answer });
            }
            Input::Tick => self.tick(now_us, out),
        }
    }

    fn pinged(&self, request: RequestId, target: ServerId, nonce: u64, out: &mut Vec<Output>) {
        if self.is_me(target) {
            let answer = PeerAnswer::Pong {
                nonce,
                list_version: self.members.version(),
                tablets_version: self.assignment.done(),
            };
            out.push(Output::AnswerPeer { request, answer });
        }
    }

    fn ponged(
        &mut self,
        now_us: u64,
        nonce: u64,
        list_version: ListVersion,
        out: &mut Vec<Output>,
    ) {
        let Some(detector) = &mut self.detector else {
            return;
        };
        detector.pong(now_us, nonce);
        if detector.heard(now_us, list_version) {
            self.timers.insert(Asking::Confirm, now_us); // N5
            self.tick(now_us, out);
        }
    }

    /// N5: a sender that takes this life for alive is told that it is over.
    fn handle_ended(&mut self, input: Input, out: &mut Vec<Output>) {
        if let Input::Order { request, .. } = input {
            let answer = ServerAnswer::Refused(Refusal::NotUp(self.me));
            out.push(Output::Answer { request, answer });
        }
    }

    /// N10: whether a frame is for this life. Before it knows its id, it may be any id that the
    /// coordinator may give it: a later generation of its last life's slot, or the first one of a
    /// new slot.
    fn is_me(&self, target: ServerId) -> bool {
        match (&self.phase, self.candidate.enlist.replaces) {
            (Phase::Enlisting, Some(last)) => {
                target.slot == last.slot && target.generation > last.generation
            }
            (Phase::Enlisting, None) => target.generation == 1,
            (Phase::Storing(enlisted), _) => target == enlisted.server,
            (Phase::Member, _) => target == self.me,
            (Phase::Ended, _) => false,
        }
    }

    // --- asking the coordinator

    fn ask(&mut self, now_us: u64, asking: Asking, out: &mut Vec<Output>) {
        let question = match asking {
            Asking::Enlist => ToCoordinator::Enlist(self.candidate.enlist.clone()),
            Asking::Confirm => ToCoordinator::Confirm {
                server: self.me,
                list_version: self.members.version(),
                tablets_version: self.assignment.done(),
            },
            Asking::Map if self.map.version().0 == 0 || self.wants_whole_map => {
                ToCoordinator::Map {
                    table: None,
                    since: MapVersion(0),
                }
            }
            Asking::Map => ToCoordinator::MapChanges {
                since: self.map.version(),
            },
            Asking::Suspect(server) => ToCoordinator::Suspect {
                server,
                list_version: self.members.version(),
            },
        };
        let token = Token::Member(self.next_token);
        self.next_token += 1;
        self.asking.insert(token, Asked::new(asking, now_us));
        let address = self.candidate.coordinators[self.coordinator].clone();
        out.push(Output::AskCoordinator {
            token,
            address,
            question,
        });
    }

    /// The connections of these requests have moved something: the requests are not lost (N11).
    fn moving(&mut self, now_us: u64, tokens: &[Token]) {
        for token in tokens {
            if let Some(asked) = self.asking.get_mut(token) {
                asked.moves(now_us);
            }
        }
    }

    /// Repeats a request later. A suspicion is not repeated: if it lasts, the detector reports it
    /// again.
    fn again(&mut self, asking: Asking, at_us: u64) {
        if !matches!(asking, Asking::Suspect(_)) {
            self.timers.insert(asking, at_us);
        }
    }

    /// Repeats it after a random rest: all members lose a coordinator at the same moment.
    fn again_soon(&mut self, asking: Asking, now_us: u64) {
        let rest_us = REST_US / 2 + self.random.below(REST_US);
        self.again(asking, now_us + rest_us);
    }

    fn next_coordinator(&mut self, hint: Option<&str>) {
        let known = &mut self.candidate.coordinators;
        self.coordinator = match hint {
            Some(leader) => known
                .iter()
                .position(|name| name == leader)
                .unwrap_or_else(|| {
                    known.push(leader.to_owned());
                    known.len() - 1
                }),
            None => (self.coordinator + 1) % known.len(),
        };
    }

    fn answered(
        &mut self,
        now_us: u64,
        asking: Asking,
        answer: CoordinatorAnswer,
        out: &mut Vec<Output>,
    ) {
        if !matches!(
            &answer,
            CoordinatorAnswer::Refused(Refusal::NotLeader { .. })
        ) {
            self.heard_us = now_us;
        }
        match (asking, answer) {
            (Asking::Enlist, CoordinatorAnswer::Enlisted(enlisted)) => {
                if matches!(self.phase, Phase::Enlisting) {
                    let server = enlisted.server;
                    self.timers.remove(&Asking::Enlist);
                    self.phase = Phase::Storing(enlisted);
                    out.push(Output::StoreId { server });
                }
            }
            (
                Asking::Map,
                CoordinatorAnswer::Map(_)
                | CoordinatorAnswer::MapStep(_)
                | CoordinatorAnswer::MapIsCurrent,
            ) => self.map_again(now_us),
            (_, CoordinatorAnswer::Refused(refusal)) => self.refused(now_us, asking, refusal, out),
            (Asking::Enlist | Asking::Map, _) => self.again_soon(asking, now_us),
            (Asking::Confirm, _) => {
                let is_alone = self.detector.as_ref().is_none_or(Detector::is_alone);
                let pause_us = if is_alone {
                    CONFIRM_US
                } else {
                    CONFIRM_SELDOM_US
                };
                self.again(asking, now_us + pause_us);
            }
            (Asking::Suspect(_), _) => {}
        }
    }

    /// Takes the map from an answer that has one.
    fn learn(&mut self, answer: &CoordinatorAnswer, out: &mut Vec<Output>) {
        match answer {
            _ if !matches!(self.phase, Phase::Member) => {} // nobody asked for one
            CoordinatorAnswer::Map(map) => match Map::new(map) {
                Ok(map) if map.version() >= self.map.version() => self.found(map, out),
                _ => {} // an older one, or none: ask later
            },
            CoordinatorAnswer::MapStep(step) if step.since == self.map.version() => {
                match self.map.step(step) {
                    Ok(map) => self.found(map, out),
                    Err(_) => self.wants_whole_map = true, // two that do not fit
                }
            }
            _ => {}
        }
    }

    fn found(&mut self, map: Map, out: &mut Vec<Output>) {
        let replaces = std::mem::take(&mut self.wants_whole_map);
        if replaces || map.version() > self.map.version() {
            self.map = Arc::new(map);
            self.publish(out);
        }
    }

    fn map_again(&mut self, now_us: u64) {
        let is_whole = self.map.owners().all(|(owner, served)| {
            served && self.members.is_up(owner) // tablets that are not served come back soon
        });
        let members = self.members.count() as u64;
        let pause_us = if is_whole {
            MAP_US.max(members * MAP_EACH_US)
        } else {
            MAP_SOON_US.max(members * MAP_SOON_EACH_US)
        };
        self.again(Asking::Map, now_us + pause_us);
    }

    fn refused(&mut self, now_us: u64, asking: Asking, refusal: Refusal, out: &mut Vec<Output>) {
        match refusal {
            Refusal::NotLeader { leader } => {
                self.next_coordinator(leader.as_deref());
                self.again_soon(asking, now_us);
            }
            Refusal::NotReady { after_ms, .. } => {
                self.again(asking, now_us + u64::from(after_ms) * 1000);
            }
            Refusal::Store(_) => {
                self.next_coordinator(None);
                self.again_soon(asking, now_us);
            }
            Refusal::NotUp(_) => self.end(true, &refusal.to_string(), out), // N5
            Refusal::WrongCluster { .. } | Refusal::WrongProtocol { .. } | Refusal::Invalid(_) => {
                if asking == Asking::Enlist {
                    return self.end(false, &refusal.to_string(), out);
                }
                self.again(asking, now_us + CONFIRM_US);
            }
        }
    }

    // --- being a member

    /// The id is stored (N1): this server is a member from now on.
    fn id_stored(&mut self, now_us: u64, server: ServerId, out: &mut Vec<Output>) {
        let phase = std::mem::replace(&mut self.phase, Phase::Member);
        let enlisted = match phase {
            Phase::Storing(enlisted) if enlisted.server == server => enlisted,
            other => {
                self.phase = other; // an id of another life
                return;
            }
        };
        self.me = server;
        let settings = enlisted.settings;
        let (interval_ms, timeout_ms) = (settings.ping_interval_ms, settings.ping_timeout_ms);
        let seed = self.candidate.seed;
        self.detector = Some(Detector::new(server, interval_ms, timeout_ms, seed, now_us));
        out.push(Output::Joined { server, settings });
        self.update(&ServerListUpdate::Full(enlisted.list), out);
        if matches!(self.phase, Phase::Member) {
            self.publish(out);
            self.timers.insert(Asking::Confirm, now_us);
            self.timers.insert(Asking::Map, now_us);
            self.tick(now_us, out);
        }
    }

    fn on_order(
        &mut self,
        now_us: u64,
        request: RequestId,
        sender: ServerId,
        target: ServerId,
        question: FromCoordinator,
        out: &mut Vec<Output>,
    ) {
        let refuse = |refusal| Output::Answer {
            request,
            answer: ServerAnswer::Refused(refusal),
        };
        let is_old = sender.generation < self.term && !has_bug(Bug::OldLeaderObeyed);
        if !sender.is_coordinator() || is_old {
            return out.push(refuse(Refusal::NotLeader { leader: None })); // N6
        }
        self.term = self.term.max(sender.generation);
        if !self.is_me(target) {
            return out.push(refuse(Refusal::NotUp(target)));
        }
        let is_member = matches!(self.phase, Phase::Member);
        match question {
            FromCoordinator::Ping { nonce } => {
                let answer = ServerAnswer::Pong {
                    nonce,
                    list_version: self.members.version(),
                };
                out.push(Output::Answer { request, answer });
            }
            _ if !is_member => {
                let reason = "its id is not stored yet".to_owned();
                let after_ms = (REST_US / 1000) as u32;
                out.push(refuse(Refusal::NotReady { after_ms, reason }));
            }
            FromCoordinator::Servers(update) => {
                self.update(&update, out);
                self.confirm(request, out);
            }
            FromCoordinator::Tablets(tablets) => self.tablets(request, tablets, out),
            FromCoordinator::Settings(settings) => {
                out.push(Output::Settings(settings));
                self.confirm(request, out);
            }
            FromCoordinator::Users(users) => out.push(Output::Users { request, users }),
            FromCoordinator::Functions(functions) => {
                out.push(Output::Functions { request, functions });
            }
            question @ (FromCoordinator::StartRead { .. }
            | FromCoordinator::Recover(_)
            | FromCoordinator::AbortRecovery { .. }) => {
                out.push(Output::Delegate { request, question });
            }
        }
        if is_member && now_us >= self.due_us() {
            self.tick(now_us, out);
        }
    }

    fn confirm(&self, request: RequestId, out: &mut Vec<Output>) {
        let answer = self.confirmed();
        out.push(Output::Answer { request, answer });
    }

    fn update(&mut self, update: &ServerListUpdate, out: &mut Vec<Output>) {
        let Applied::Changed(mut changes) = self.members.apply(update) else {
            return;
        };
        if matches!(update, ServerListUpdate::Full(_)) {
            // The sender's store may be older than a server that it lacks: this member asks about
            // the logs of such servers (replica_gc::U2).
            changes.retain(|change| !matches!(change, ServerChange::Removed(_)));
        }
        if let Some(detector) = &mut self.detector {
            detector.set_members(&self.members);
        }
        if !changes.is_empty() {
            if let Some(at_us) = self.timers.get_mut(&Asking::Map) {
                *at_us = 0; // at the next tick
            }
            out.push(Output::Members(changes));
        }
        let up = self.members.get(self.me).map(|entry| entry.status);
        if up != Some(ServerStatus::Up) {
            self.end(true, "the server list does not have it as UP", out); // N5
        }
    }

    fn end(&mut self, again: bool, reason: &str, out: &mut Vec<Output>) {
        self.phase = Phase::Ended;
        self.asking.clear();
        self.timers.clear();
        self.detector = None;
        if !has_bug(Bug::ServesAfterEnd) {
            out.push(Output::View(Arc::new(View::default())));
        }
        out.push(Output::Ended {
            again,
            reason: reason.to_owned(),
        });
    }

    fn act(&mut self, now_us: u64, act: impl IntoIterator<Item = Act>, out: &mut Vec<Output>) {
        for act in act {
            match act {
                Act::Ping { to, nonce } => {
                    let entry = self.members.get(to);
                    let address = entry.map(|entry| entry.addresses.native.clone());
                    let question = Peer::Ping { nonce };
                    out.extend(address.map(|address| Output::Ask {
                        to,
                        address,
                        question,
                    }));
                }
                Act::Suspect(server) => self.ask(now_us, Asking::Suspect(server), out),
            }
        }
    }

    fn tick(&mut self, now_us: u64, out: &mut Vec<Output>) {
        let late: Vec<Token> = self
            .asking
            .iter()
            .filter(|(_, asked)| asked.deadline_us <= now_us)
            .map(|(token, _)| *token)
            .collect();
        for token in late {
            if let Some(asked) = self.asking.remove(&token) {
                self.next_coordinator(None);
                self.again(asked.what, now_us);
            }
        }
        let due = |(_, at_us): &(&Asking, &u64)| **at_us <= now_us;
        let due: Vec<Asking> = self
            .timers
            .iter()
            .filter(due)
            .map(|(asking, _)| *asking)
            .collect();
        for asking in due {
            self.timers.remove(&asking);
            self.ask(now_us, asking, out);
        }
        let acts = match &mut self.detector {
            Some(detector) if detector.due_us() <= now_us => detector.tick(now_us),
            _ => Vec::new(),
        };
        self.act(now_us, acts, out);
        if self.detector.as_ref().is_some_and(Detector::is_alone)
            && let Some(at_us) = self.timers.get_mut(&Asking::Confirm)
        {
            *at_us = (*at_us).min(now_us + CONFIRM_US); // N5
        }
    }

    // --- owning tablets

    fn publish(&self, out: &mut Vec<Output>) {
        let view = self.assignment.view(self.me, self.map.clone());
        out.push(Output::View(Arc::new(view)));
    }

    fn tablets(&mut self, request: RequestId, tablets: Tablets, out: &mut Vec<Output>) {
        if tablets.version > self.assignment.latest().version {
            if let Err(error) = self.assignment.tell(tablets) {
                let refusal = Refusal::Invalid(error.to_string());
                let answer = ServerAnswer::Refused(refusal);
                return out.push(Output::Answer { request, answer });
            }
            self.publish(out);
            out.extend(self.assignment.next_purge().map(Output::Purge));
            out.extend(self.assignment.next_order().map(Output::Obey));
        }
        let told = self.assignment.latest().version;
        if self.assignment.done() >= told {
            return self.confirm(request, out); // N4
        }
        // The coordinator has given up earlier requests.
        self.waiting = Some((request, told));
    }

    fn not_obeyed(&mut self, version: TabletsVersion, reason: String, out: &mut Vec<Output>) {
        self.assignment.failed(version);
        if let Some((request, _)) = self.waiting.take() {
            let answer = ServerAnswer::Refused(Refusal::Invalid(reason));
            out.push(Output::Answer { request, answer });
        }
        if self.assignment.latest().version > version {
            out.extend(self.assignment.next_order().map(Output::Obey));
        }
    }

    fn obeyed(&mut self, now_us: u64, version: TabletsVersion, out: &mut Vec<Output>) {
        if self.assignment.obeyed(version) {
            self.publish(out);
            self.timers.insert(Asking::Map, now_us);
            if let Some((request, _)) = self.waiting.take() {
                self.confirm(request, out);
            }
        }
        out.extend(self.assignment.next_order().map(Output::Obey));
    }
}
