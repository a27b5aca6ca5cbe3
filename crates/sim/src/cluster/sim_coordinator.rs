//! Coordinators: several processes, of which one leads, and the store that they share.

use super::coverage::Class;
use super::net::{Mode, Place};
use super::plan::Plan;
use super::world::{Asker, Event, World};
use duramen_base::ids::{ClusterId, ServerId};
use duramen_base::random::Random;
use duramen_cluster::coordinator::store::{Batch, Memory, MetaStore, Term};
use duramen_cluster::coordinator::{
    self, Config, Coordinator, Input, Output, ReplyId, Sign, Token,
};
use duramen_node::{Input as MemberInput, NodeInput, RequestId};
use duramen_wire::native::message::{
    Admin, ClusterSettings, CoordinatorAnswer, FromCoordinator, Refusal, ServerChange,
    ServerListUpdate, ToCoordinator,
};

/// Silence of a leader after which the store lets another one lead.
const LEASE_US: u64 = 400_000;
const CAMPAIGN_US: u64 = 60_000;
/// Longest time between the fault that kept a server from answering and its verdict: 16 failures of
/// 125 ms, and the commit of the verdict.
const EXCUSE_US: u64 = 4_000_000;
/// As in the driver, scaled to the length of a run.
const RESIGN_REST_US: u64 = 1_000_000;
const RESIGN_AGAIN_US: u64 = 60_000_000;

/// A simulated coordinator.
pub(super) struct SimCoordinator {
    meta: Memory,
    pub is_on: bool,
    pub is_paused: bool,
    pub leads: Option<(Term, Coordinator)>,
    /// The coordinator with an empty store that runs in its place while it is off.
    pub foreign: Option<Box<Coordinator>>,
    /// Grows with each process and each leadership.
    pub generation: u64,
    backlog: Vec<Event>,
    wakes_at_us: u64,
    /// The error of all its requests until some time, because of its own fault.
    pub blind: Option<(Sign, u64)>,
    /// When it last resigned.
    resigned_us: Option<u64>,
    drift_ppm: i64,
    offset_us: u64,
}

pub(super) fn address(n: usize) -> String {
    format!("coordinator-{n}:1")
}

pub(super) fn place_of(address: &str) -> Option<usize> {
    let name = address.strip_prefix("coordinator-")?.strip_suffix(":1")?;
    name.parse().ok()
}

impl SimCoordinator {
    pub fn new(n: usize, plan: &Plan, meta: &Memory, random: &mut Random) -> SimCoordinator {
        SimCoordinator {
            meta: meta.peer(&address(n)),
            is_on: true,
            is_paused: false,
            leads: None,
            foreign: None,
            generation: 0,
            backlog: Vec::new(),
            wakes_at_us: u64::MAX,
            blind: None,
            resigned_us: None,
            drift_ppm: drift(plan, random),
            offset_us: random.below(1 << 40),
        }
    }

    pub fn clock(&self, now_us: u64) -> u64 {
        local(now_us, self.drift_ppm) + self.offset_us
    }
}

/// A clock's rate, in millionths above the true one.
pub(super) fn drift(plan: &Plan, random: &mut Random) -> i64 {
    let most = plan.drift_ppm as i64;
    random.below(2 * plan.drift_ppm + 1) as i64 - most
}

/// The time that a clock of this rate shows after this true time.
pub(super) fn local(now_us: u64, drift_ppm: i64) -> u64 {
    (now_us as i64 + now_us as i64 * drift_ppm / 1_000_000) as u64
}

/// The true time when a clock of this rate will show this time, or a little later.
pub(super) fn global(local_us: u64, drift_ppm: i64) -> u64 {
    (i128::from(local_us) * 1_000_000 / i128::from(1_000_000 + drift_ppm)) as u64 + 2
}

impl World {
    pub(super) fn settings(&self) -> ClusterSettings {
        let plan = &self.plan;
        ClusterSettings {
            replicas: plan.replicas,
            segment_bytes: plan.segment_bytes,
            read_lease_ms: plan.read_lease_ms,
            client_lease_ms: plan.client_lease_ms,
            partition_bytes: plan.partition_bytes,
            layout: plan.layout,
            ..duramen_harness::settings()
        }
    }

    /// The current leader, if it runs. A leader that slept while another one took over does not
    /// count: its state is stale.
    pub(super) fn leader(&self) -> Option<usize> {
        let leads = |coordinator: &SimCoordinator| {
            let newest =
                coordinator.leads.as_ref().map(|(term, _)| *term) == Some(self.newest_term);
            newest && coordinator.is_on && !coordinator.is_paused
        };
        self.coordinators.iter().position(leads)
    }

    pub(super) fn coordinator_starts(&mut self, n: usize, generation: u64) {
        let coordinator = &mut self.coordinators[n];
        if coordinator.generation != generation {
            return;
        }
        coordinator.is_on = true;
        coordinator.foreign = None;
        coordinator.generation += 1;
        let generation = coordinator.generation;
        self.after(1_000, Event::Campaign(n, generation));
    }

    pub(super) fn coordinator_stops(&mut self, n: usize) {
        let coordinator = &mut self.coordinators[n];
        let led = coordinator.leads.take().is_some();
        coordinator.is_on = false;
        coordinator.is_paused = false;
        coordinator.generation += 1;
        coordinator.backlog.clear();
        coordinator.wakes_at_us = u64::MAX;
        let generation = coordinator.generation;
        if led {
            self.after(LEASE_US, Event::Depose(n, generation));
        }
    }

    pub(super) fn coordinator_pauses(&mut self, n: usize) {
        let coordinator = &mut self.coordinators[n];
        coordinator.is_paused = true;
        let generation = coordinator.generation;
        if coordinator.leads.is_some() {
            self.after(LEASE_US, Event::Depose(n, generation));
        }
    }

    pub(super) fn coordinator_resumes(&mut self, n: usize) {
        let coordinator = &mut self.coordinators[n];
        if !std::mem::replace(&mut coordinator.is_paused, false) {
            return;
        }
        for event in std::mem::take(&mut coordinator.backlog) {
            self.after(0, event);
        }
        self.after(0, Event::CoordinatorWakes(n));
    }

    /// The leader's lease has ended.
    pub(super) fn depose(&mut self, n: usize, generation: u64) {
        let coordinator = &self.coordinators[n];
        let slept = coordinator.is_paused && coordinator.generation == generation;
        let is_its = self.meta.leader().ok().flatten() == Some(address(n));
        if is_its && (slept || coordinator.leads.is_none()) {
            self.say(|| format!("coordinator {n} is deposed"));
            self.meta.expire();
            if slept {
                self.coverage.fired(Class::CoordinatorPause);
            }
        }
    }

    pub(super) fn campaign(&mut self, n: usize, generation: u64) {
        let coordinator = &mut self.coordinators[n];
        if coordinator.generation != generation || !coordinator.is_on || coordinator.leads.is_some()
        {
            return;
        }
        let again = Event::Campaign(n, generation);
        if coordinator.is_paused || self.store_is_away {
            return self.after(CAMPAIGN_US, again);
        }
        let term = match coordinator.meta.acquire() {
            Ok(Some(term)) => term,
            _ => return self.after(CAMPAIGN_US, again),
        };
        let contents = coordinator.meta.load().expect("it leads");
        let config = Config {
            cluster: "simulated".to_owned(),
            new_id: ClusterId(u128::from(self.plan.seed) << 64 | u128::from(term.0)),
            name: address(n),
            term: term.0 as u32,
            seed: self.plan.seed ^ term.0 << 32,
            settings: self.settings(),
            balance_after_us: self.plan.balance_after_us,
        };
        self.say(|| format!("coordinator {n} leads in term {}", term.0));
        let now_us = self.coordinators[n].clock(self.now_us);
        match Coordinator::open(now_us, &contents, config) {
            Ok((leader, outputs)) => {
                let coordinator = &mut self.coordinators[n];
                coordinator.generation += 1;
                coordinator.leads = Some((term, leader));
                self.newest_term = term;
                self.coordinated(n, outputs);
            }
            Err(error) => self.violated(format!("a leader cannot read what is stored: {error}")),
        }
    }

    fn tell_coordinator(&mut self, n: usize, input: Input) {
        let coordinator = &mut self.coordinators[n];
        let now_us = coordinator.clock(self.now_us);
        let Some((_, leader)) = &mut coordinator.leads else {
            return;
        };
        let outputs = leader.handle(now_us, input);
        self.coordinated(n, outputs);
    }

    pub(super) fn coordinator_wakes(&mut self, n: usize) {
        let coordinator = &mut self.coordinators[n];
        if coordinator.is_on && !coordinator.is_paused && coordinator.wakes_at_us <= self.now_us {
            coordinator.wakes_at_us = u64::MAX;
            self.tell_coordinator(n, Input::Tick);
        }
    }

    pub(super) fn coordinator_hears(&mut self, n: usize, input: Input) {
        let coordinator = &mut self.coordinators[n];
        if coordinator.is_paused {
            let event = Event::ToCoordinator(n, Box::new(input));
            return coordinator.backlog.push(event);
        }
        if coordinator.has_foreign()
            && let Input::Request { reply, .. } = input
        {
            return self.foreign_hears(n, reply, input);
        }
        if !coordinator.is_on {
            if let Input::Request { reply, .. } = input {
                self.nobody_answers(reply.0);
            }
            return;
        }
        if coordinator.leads.is_some() {
            return self.tell_coordinator(n, input);
        }
        if let Input::Request { reply, .. } = input {
            let leader = self.meta.leader().ok().flatten();
            let refusal = Refusal::NotLeader { leader };
            self.coordinator_answers(n, reply, CoordinatorAnswer::Refused(refusal));
        }
    }

    fn coordinated(&mut self, n: usize, outputs: Vec<Output>) {
        let generation = self.coordinators[n].generation;
        for output in outputs {
            if self.coordinators[n].generation != generation {
                return;
            }
            self.look_for_excuses(&output);
            match output {
                Output::Answer { reply, answer } => self.coordinator_answers(n, reply, answer),
                Output::Ask {
                    call,
                    to,
                    address,
                    question,
                } => self.coordinator_asks(n, call, to, &address, question),
                Output::Persist { token, batch } => {
                    let delay_us = 200 + self.random.below(self.plan.commit_us);
                    self.after(
                        delay_us,
                        Event::Commit(n, generation, token, Box::new(batch)),
                    );
                }
                // A message's delay in this network does not depend on earlier ones.
                Output::Reopen { .. } => {}
                Output::Unfit { resigns, .. } => {
                    if resigns {
                        self.coordinator_resigns(n);
                    }
                }
                Output::WakeAt { at_us } => {
                    let coordinator = &mut self.coordinators[n];
                    let at_us = at_us.saturating_sub(coordinator.offset_us);
                    let at_us = global(at_us, coordinator.drift_ppm).max(self.now_us);
                    coordinator.wakes_at_us = at_us;
                    self.at(at_us, Event::CoordinatorWakes(n));
                }
            }
        }
    }

    /// It reaches too few servers, and another one may reach more; as often as the driver allows.
    fn coordinator_resigns(&mut self, n: usize) {
        let now_us = self.now_us;
        let coordinator = &mut self.coordinators[n];
        if coordinator
            .resigned_us
            .is_some_and(|at_us| now_us < at_us + RESIGN_AGAIN_US)
        {
            return;
        }
        coordinator.resigned_us = Some(now_us);
        coordinator.leads = None;
        coordinator.generation += 1;
        coordinator.wakes_at_us = u64::MAX;
        coordinator.meta.resign();
        let generation = coordinator.generation;
        self.say(|| format!("coordinator {n} resigns"));
        self.after(RESIGN_REST_US, Event::Campaign(n, generation));
    }

    /// A server that is declared crashed was off, paused, unreachable or slow, or its life had
    /// ended: no other fault justifies it (verdict::V1 and verdict::V2).
    fn look_for_excuses(&mut self, output: &Output) {
        let Output::Ask {
            question: FromCoordinator::Servers(ServerListUpdate::Step { changes, .. }),
            ..
        } = output
        else {
            return;
        };
        for change in changes {
            let ServerChange::Crashed(id) = change else {
                continue;
            };
            let lives = |n: &usize| self.id_of(*n) == Some(*id);
            let machine = (0..self.machines.len()).find(lives);
            let Some(n) = machine.filter(|_| self.judged.insert(*id)) else {
                continue;
            };
            let excused_us = self.excused_us[n];
            if excused_us.is_none_or(|at_us| self.now_us > at_us + EXCUSE_US) {
                self.violated(format!(
                    "server {n} is called crashed as {id}, and was well: its last excuse was at {excused_us:?}"
                ));
            }
        }
    }

    fn coordinator_asks(
        &mut self,
        n: usize,
        call: coordinator::CallId,
        to: ServerId,
        address: &str,
        question: FromCoordinator,
    ) {
        let is_blind = |(_, until_us): &(Sign, u64)| self.now_us < *until_us && !self.is_healed;
        if let Some((sign, _)) = self.coordinators[n].blind.filter(is_blind) {
            self.coverage.fired(Class::CoordinatorBlind);
            let input = Input::Unanswered { call, sign };
            let delay_us = 100 + self.random.below(1_000);
            return self.after(delay_us, Event::ToCoordinator(n, Box::new(input)));
        }
        let generation = self.coordinators[n].generation;
        let term = self.coordinators[n].leads.as_ref().expect("it leads").0;
        let request = self.number();
        let asker = Asker::Coordinator(n, generation, call);
        self.askers.insert(request, asker);
        let server: usize = address.parse().expect("servers have numbers");
        self.say(|| format!("coordinator {n} -> {server}: {}", brief(&question)));
        let told = NodeInput::Member(MemberInput::Order {
            request: RequestId(request),
            sender: ServerId::coordinator(term.0 as u32),
            target: to,
            question,
        });
        let way = (Place::Coordinator(n), Place::Server(server));
        let sign = Sign::Unknown;
        let lost = Event::ToCoordinator(n, Box::new(Input::Unanswered { call, sign }));
        let event = Event::ToServer(server, Box::new(told));
        self.send(way, Mode::Free, event, Some(lost));
    }

    pub(super) fn coordinator_answers(
        &mut self,
        n: usize,
        reply: ReplyId,
        answer: CoordinatorAnswer,
    ) {
        self.say(|| format!("coordinator {n} answers: {}", brief(&answer)));
        match self.askers.get(&reply.0).cloned() {
            Some(Asker::Member(server, generation, token, head)) => {
                if let (Some((log, min_open)), CoordinatorAnswer::Noted) = (head, &answer) {
                    let noted = self.noted.entry(log).or_default();
                    *noted = (*noted).max(min_open);
                }
                if let CoordinatorAnswer::Enlisted(_) = &answer {
                    self.hears_cluster_id(n, server);
                }
                let input = MemberInput::Answered { token, answer };
                let input = Box::new(NodeInput::Member(input));
                let way = (Place::Coordinator(n), Place::Server(server));
                let event = Event::Within(server, generation, input);
                self.send(way, Mode::Once, event, None);
            }
            Some(Asker::Person) => self.told.push(answer),
            Some(Asker::Client(c)) => {
                let way = (Place::Coordinator(n), Place::Client(c));
                let event = Event::CoordinatorAnswered(c, reply.0, Box::new(answer));
                self.send(way, Mode::Once, event, None);
            }
            _ => {}
        }
    }

    pub(super) fn commit(&mut self, n: usize, generation: u64, token: Token, batch: &Batch) {
        let coordinator = &mut self.coordinators[n];
        if !coordinator.is_on && !self.store_is_away && self.random.one_in(2) {
            // It died, but the store has the commit already.
            let _ = coordinator.meta.commit(batch);
        }
        if coordinator.generation != generation || !coordinator.is_on {
            return;
        }
        if coordinator.is_paused {
            let event = Event::Commit(n, generation, token, Box::new(batch.clone()));
            return coordinator.backlog.push(event);
        }
        let mut failure = None;
        if self.store_is_away {
            self.coverage.fired(Class::StoreFailure);
            // The commit may have been stored, and the answer was lost.
            if self.random.one_in(2) {
                let _ = self.coordinators[n].meta.commit(batch);
            }
            failure = Some("the store is away".to_owned());
        } else if let Err(error) = self.coordinators[n].meta.commit(batch) {
            failure = Some(error.to_string());
        }
        let Some(reason) = failure else {
            return self.tell_coordinator(n, Input::Persisted { token });
        };
        self.tell_coordinator(n, Input::StoreFailed { reason });
        let coordinator = &mut self.coordinators[n];
        coordinator.leads = None;
        coordinator.generation += 1;
        coordinator.wakes_at_us = u64::MAX;
        coordinator.meta.resign();
        let generation = coordinator.generation;
        self.after(CAMPAIGN_US, Event::Campaign(n, generation));
    }

    /// A server sends a request to the coordinator that it takes for the leader.
    pub(super) fn asks_coordinator(
        &mut self,
        server: usize,
        sender: ServerId,
        token: duramen_node::Token,
        at: &str,
        question: ToCoordinator,
    ) {
        let Some(n) = place_of(at).filter(|n| *n < self.coordinators.len()) else {
            return self.violated(format!("server {server} asks `{at}`"));
        };
        let what = &question;
        self.say(|| format!("server {server} -> coordinator {n}: {}", brief(what)));
        let reply = self.number();
        let generation = self.machines[server].generation;
        let head = match &question {
            ToCoordinator::ControlHead { server, min_open } => Some((*server, *min_open)),
            _ => None,
        };
        let asker = Asker::Member(server, generation, token, head);
        self.askers.insert(reply, asker);
        let asked = Input::Request {
            reply: ReplyId(reply),
            sender,
            question,
        };
        let lost = NodeInput::Member(MemberInput::Unanswered { token });
        let lost = Event::Within(server, generation, Box::new(lost));
        let way = (Place::Server(server), Place::Coordinator(n));
        // A repeated frame on a connection would break the connection: requests arrive once or not
        // at all.
        let event = Event::ToCoordinator(n, Box::new(asked));
        self.send(way, Mode::Once, event, Some(lost));
    }

    /// The operator sends a command to the leader; the answer arrives in `told`, at once or later.
    pub(super) fn administer(&mut self, admin: Admin) -> bool {
        let Some(n) = self.leader() else {
            return false;
        };
        let reply = self.number();
        self.askers.insert(reply, Asker::Person);
        self.tell_coordinator(
            n,
            Input::Request {
                reply: ReplyId(reply),
                sender: ServerId::NONE,
                question: ToCoordinator::Admin(admin),
            },
        );
        true
    }
}

pub(super) fn brief(question: &impl std::fmt::Debug) -> String {
    let text = format!("{question:?}");
    text.chars().take(200).collect()
}
