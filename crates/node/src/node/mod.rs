//! The node: a whole server of a cluster, with its membership, its store, the connections to its
//! backups, and its leases.
//!
//! [`Node::handle`] takes an input and returns outputs, in order. It never waits. Work on the disk
//! is output as a [`Task`] for the driver's [`BackupService`](crate::BackupService), which came
//! with [`NodeOutput::Opened`] and has a thread of its own in a server. The driver passes requests
//! of other servers for the backup to that service, and not to the node. Other long work is output
//! as a [`Job`](crate::Job).
//!
//! **Invariants**
//! - D1: a list is confirmed after its effects are synced: a crash after that leaves the confirmed
//!   state.
//! - D2: after the end of a life no write is acknowledged, no read is served, and neither the node
//!   nor the backup's service takes a request of a peer (backup_service::B0).
//! - D3: a log is fenced here as soon as the list has its server as crashed, and its replicas are
//!   dropped once the server is removed.
//!
//! **Concurrency** none: one owner. The store may be used from any thread; its requests are taken
//! at the next call of [`Node::handle`], which [`NodeOptions::wake`] requests.
//!
//! Paper: [Ousterhout15 §3, §4, §7]; differs: as in docs/protocols.md.

mod jobs;
mod migrations;
mod orders;
mod pings;
mod replicas;

use crate::backup_service::Task;
use crate::effects::Effects;
use crate::hint_exchange::HeldHint;
use crate::interface::{NodeInput, NodeOptions, NodeOutput};
use crate::lease::ReadUntil;
use crate::life::{Life, member_of};
use crate::member::{Input, Member, Output};
use crate::occupancy;
use crate::recovery::{self, PartitionProgress};
use crate::remote::RemoteEvent;
use crate::requests::{PeerCall, PeerRequest, ReceivedRequest, RequestId, Token};
use duramen::internals::{Hints, LogWriter};
use duramen_base::ids::ServerId;
use duramen_cluster::placement;
use duramen_cluster::replication::{BackupId, Placed};
use duramen_wire::native::Slice;
use duramen_wire::native::message::{
    ClusterSettings, CoordinatorAnswer, FromCoordinator, Peer, PeerAnswer, Recover, Refusal,
    ServerAnswer, ServerChange, ServerStatus, ToCoordinator,
};
use orders::Orders;
use pings::Pings;
use std::sync::Arc;

/// Interval of the checks of leases.
const LOOK_US: u64 = 20_000;
/// Interval after which backups that were short of room are tried again.
const FORGIVE_US: u64 = 100_000;

/// A server of a cluster; see the module.
pub struct Node {
    pub(crate) member: Member,
    options: NodeOptions,
    pub(crate) life: Option<Life>,
    read_until: Arc<ReadUntil>,
    pings: Pings,
    orders: Orders,
    look_us: u64,
    forgive_us: u64,
    pub(crate) ended: bool,
}

impl Node {
    /// Begins to enlist with the first [`NodeInput::Tick`]. The driver must listen already: pings
    /// arrive at once.
    pub fn new(now_us: u64, options: NodeOptions) -> Node {
        Node {
            member: Member::new(now_us, options.candidate.clone()),
            options,
            life: None,
            read_until: Arc::default(),
            pings: Pings::default(),
            orders: Orders::default(),
            look_us: now_us,
            forgive_us: now_us,
            ended: false,
        }
    }

    /// The membership: ids, lists, ownership.
    pub fn member(&self) -> &Member {
        &self.member
    }

    /// The read lease: check it after a read was executed, before it is answered.
    pub fn read_until(&self) -> &Arc<ReadUntil> {
        &self.read_until
    }

    /// The progress of the recoveries that run here, for people.
    pub fn recoveries(&self) -> Vec<PartitionProgress> {
        let lives = self.life.iter();
        lives.flat_map(|life| life.recoveries.progress()).collect()
    }

    /// The hints of other servers that are kept here, for people.
    pub fn hints(&self, now_us: u64) -> Vec<HeldHint> {
        let lives = self.life.iter();
        lives
            .flat_map(|life| life.hint_exchange.held(now_us))
            .collect()
    }

    /// Placement of this member's log on its backups, for people; empty while there is no log.
    pub fn placed(&self) -> Placed {
        let life = self.life.as_ref();
        life.map(|life| life.log().placed()).unwrap_or_default()
    }

    /// Number of other servers' replicas here that are damaged and not replaced yet, and the
    /// number of the scrubber's rounds that had ended when they were counted.
    pub fn damaged_replicas(&self) -> (usize, u64) {
        let damage = self.life.as_ref().map(|life| life.replica_gc.damage());
        damage.map_or((0, 0), |known| (known.replicas.len(), known.scrub_rounds))
    }

    /// Number of backups that are much slower than the others.
    pub fn slow_backups(&self) -> usize {
        self.life.as_ref().map_or(0, Life::slow_backups)
    }

    /// Figures of this member's disk. `None`: it keeps no data of others.
    pub fn backup_stats(&self) -> Option<duramen_backup::Stats> {
        self.options.backup.as_ref().map(|backup| backup.stats())
    }

    /// The parts of this member's log that its backups do not have yet, for people.
    pub fn describe_log(&self) -> Option<String> {
        self.life.as_ref().map(|life| life.log().describe())
    }

    /// Time at which it needs a [`NodeInput::Tick`].
    pub fn due_us(&self) -> u64 {
        let life = self.life.iter().filter(|_| !self.ended);
        let remote = life.map(|life| life.due_us().min(self.look_us));
        remote
            .chain([self.member.due_us()])
            .min()
            .unwrap_or(u64::MAX)
    }

    /// `now_us`: the monotonic clock of [`Node::new`].
    pub fn handle(&mut self, now_us: u64, input: NodeInput, out: &mut Vec<NodeOutput>) {
        let _serving = duramen_base::waits::serve_commits(); // replication is done here
        let mut events = Vec::new();
        if input.is_answer()
            && let Some(life) = &mut self.life
        {
            life.remote.heard(now_us);
        }
        match input {
            NodeInput::Member(Input::Answered { token, answer }) => {
                self.coordinator_answered(now_us, token, Some(answer), &mut events, out);
            }
            NodeInput::Member(Input::Unanswered { token }) => {
                self.coordinator_answered(now_us, token, None, &mut events, out);
            }
            NodeInput::JobDone(done) => self.job_done(now_us, done, out),
            NodeInput::Member(input) => self.tell_member(now_us, input, out),
            NodeInput::Request(received) => self.on_request(now_us, received, out),
            NodeInput::PeerAnswered { call, answer } => {
                self.peer_answered(now_us, call, answer, &mut events, out);
            }
            NodeInput::Moving(calls) => {
                if let Some(life) = &mut self.life {
                    life.moving(now_us, &calls);
                }
            }
            NodeInput::Tick => {}
        }
        if self.member.due_us() <= now_us {
            self.tell_member(now_us, Input::Tick, out);
        }
        self.go_on(now_us, events, out);
    }

    /// The coordinator's answer; `None`: it was not reached.
    fn coordinator_answered(
        &mut self,
        now_us: u64,
        token: Token,
        answer: Option<CoordinatorAnswer>,
        events: &mut Vec<RemoteEvent>,
        out: &mut Vec<NodeOutput>,
    ) {
        match (token, &mut self.life, answer.as_ref()) {
            (Token::Member(_), ..) => {
                let input = match answer {
                    Some(answer) => Input::Answered { token, answer },
                    None => Input::Unanswered { token },
                };
                self.tell_member(now_us, input, out);
            }
            (_, None, _) => {}
            (Token::ControlHead(_), Some(life), answer) => {
                life.remote.head_answered(now_us, token, answer, events);
            }
            (Token::Recovery(_), Some(life), answer) => {
                life.recoveries.reported(now_us, token, answer);
            }
            (Token::Migration(_), Some(life), answer) => {
                life.migrations.reported(now_us, token, answer);
            }
            (Token::ClientLeases(_), Some(life), answer) => {
                life.client_leases.answered(token, answer);
            }
            (Token::Needed(_), Some(life), answer) => {
                let tasks = life.replica_gc.listed(token, answer, self.member.members());
                out.extend(tasks.into_iter().map(NodeOutput::Keep));
            }
            (Token::Loads(number), Some(life), answer) => life.loads.answered(number, answer),
        }
    }

    /// The answer of another server; `None`: it was not reached, or the connection broke.
    fn peer_answered(
        &mut self,
        now_us: u64,
        call: PeerCall,
        answer: Option<(PeerAnswer, Slice)>,
        events: &mut Vec<RemoteEvent>,
        out: &mut Vec<NodeOutput>,
    ) {
        match (call, &mut self.life) {
            (PeerCall::Ping(_), _) => {
                let ponged = self.pings.answered(call, answer.map(|(answer, _)| answer));
                if let Some(ponged) = ponged {
                    self.tell_member(now_us, ponged, out);
                }
            }
            (_, None) => {}
            (PeerCall::Replication(_), Some(life)) => {
                life.remote.answered(now_us, call, answer, events);
            }
            (PeerCall::Recovery(_), Some(life)) => {
                let mut jobs = Vec::new();
                life.recoveries.answered(now_us, call, answer, &mut jobs);
                out.extend(jobs.into_iter().map(NodeOutput::Job));
            }
            (PeerCall::Migration(_), Some(life)) => {
                let answer = answer.map(|(answer, _)| answer);
                life.migrations.answered(now_us, call, answer);
            }
            (PeerCall::Needed(_), Some(life)) => {
                let answer = answer.map(|(answer, _)| answer);
                let task = life.replica_gc.answered(now_us, call, answer);
                out.extend(task.map(NodeOutput::Keep));
            }
            (PeerCall::Hint(_), Some(life)) => life.hint_exchange.answered(call, answer),
        }
    }

    fn on_request(&mut self, now_us: u64, received: ReceivedRequest, out: &mut Vec<NodeOutput>) {
        let ReceivedRequest {
            request,
            sender,
            target,
            question,
            payload,
        } = received;
        if let Peer::Ping { nonce } = question {
            let pinged = Input::Pinged {
                request,
                target,
                nonce,
            };
            return self.tell_member(now_us, pinged, out);
        }
        let is_here = !self.ended && self.life.is_some() && target == self.member.id();
        let answer = match question {
            _ if !is_here => PeerAnswer::Refused(Refusal::NotUp(target)), // D2
            Peer::Needed { log, replicas } => {
                let owner = self.life.as_ref().filter(|_| log == target);
                replicas::hand_back(owner, sender, &replicas)
            }
            Peer::Damaged { log, segments } => {
                let owner = self.life.as_ref().filter(|_| log == target);
                replicas::replace_damaged(owner, sender, &segments)
            }
            Peer::MigrateEntries(message) => {
                return self.entries_arrived(now_us, request, sender, message, payload, out);
            }
            Peer::PutHeat => match &mut self.life {
                Some(life) => {
                    life.hint_exchange
                        .put(now_us, sender, payload, self.member.members())
                }
                None => PeerAnswer::Refused(Refusal::NotUp(target)),
            },
            Peer::GetHeat { server } => {
                let hint = self
                    .life
                    .as_ref()
                    .and_then(|life| life.hint_exchange.get(server));
                return out.push(NodeOutput::AnswerPeer {
                    request,
                    answer: PeerAnswer::Heat,
                    payload: hint.unwrap_or_default(),
                });
            }
            Peer::Publish { .. } => {
                let reason = "its driver delivers messages";
                PeerAnswer::Refused(Refusal::Invalid(reason.to_owned()))
            }
            // If there is a backup, the driver has its service answer these.
            _ => PeerAnswer::Refused(Refusal::Invalid("this server is no backup".to_owned())),
        };
        out.push(NodeOutput::AnswerPeer {
            request,
            answer,
            payload: Slice::default(),
        });
    }

    // --- the member's outputs

    fn tell_member(&mut self, now_us: u64, input: Input, out: &mut Vec<NodeOutput>) {
        let mut outputs = Vec::new();
        self.member.handle(now_us, input, &mut outputs);
        for output in outputs {
            self.member_says(now_us, output, out);
        }
    }

    fn member_says(&mut self, now_us: u64, output: Output, out: &mut Vec<NodeOutput>) {
        let output = match output {
            Output::AskCoordinator {
                token,
                address,
                question,
            } => NodeOutput::AskCoordinator {
                token,
                address,
                question,
            },
            Output::Ask {
                to,
                address,
                question,
            } => NodeOutput::AskPeer {
                request: PeerRequest {
                    call: self.pings.sent(now_us, &question),
                    to,
                    question,
                    payload: Slice::default(),
                },
                address,
            },
            Output::Answer { request, answer } => NodeOutput::Answer {
                request,
                answer,
                payload: Vec::new(),
            },
            Output::AnswerPeer { request, answer } => NodeOutput::AnswerPeer {
                request,
                answer,
                payload: Slice::default(),
            },
            Output::Delegate { request, question } => self.delegated(now_us, request, question),
            Output::StoreId { server } => NodeOutput::StoreId { server },
            Output::Joined { server, settings } => {
                return self.joined(now_us, server, settings, out);
            }
            Output::View(view) => NodeOutput::View(view),
            // Issued when the migrations that it ends have no leftovers any more (migration::M4).
            Output::Obey(order) => return self.orders.hold(order),
            Output::Purge(purge) => return self.orders.hold_purge(purge),
            Output::Members(changes) => return self.members_changed(now_us, changes, out),
            Output::Settings(settings) => NodeOutput::Settings(settings),
            Output::Users { request, users } => NodeOutput::Users { request, users },
            Output::Functions { request, functions } => {
                NodeOutput::Functions { request, functions }
            }
            Output::Ended { again, reason } => {
                self.end();
                NodeOutput::Ended { again, reason }
            }
        };
        out.push(output);
    }

    fn delegated(
        &mut self,
        now_us: u64,
        request: RequestId,
        question: FromCoordinator,
    ) -> NodeOutput {
        let answer = match question {
            FromCoordinator::StartRead {
                recovery,
                log,
                min_open,
            } if self.options.backup.is_some() => {
                return NodeOutput::Keep(Task::StartRead {
                    request,
                    recovery,
                    log,
                    min_open,
                });
            }
            FromCoordinator::Recover(order) => match self.begin_recovery(now_us, *order) {
                true => ServerAnswer::Started,
                false => ServerAnswer::Busy,
            },
            FromCoordinator::AbortRecovery {
                recovery,
                partition,
            } => {
                if let Some(life) = &mut self.life {
                    life.recoveries.abort((recovery, partition));
                }
                self.member.confirmed()
            }
            _ => ServerAnswer::Refused(Refusal::Invalid("this server is no backup".to_owned())),
        };
        NodeOutput::Answer {
            request,
            answer,
            payload: Vec::new(),
        }
    }

    /// Begins to replay a partition. Returns whether this server replays it, from now on or
    /// already.
    pub(crate) fn begin_recovery(&mut self, now_us: u64, order: Recover) -> bool {
        let Some(life) = self.life.as_mut().filter(|_| !self.ended) else {
            return false;
        };
        if life.recoveries.has((order.recovery, order.partition)) {
            return true;
        }
        let Some(ranges) = recovery::ranges_of(&order) else {
            return false;
        };
        let assignment = self.member.assignment();
        if assignment.has(&ranges) || occupancy::is_occupied(assignment, life, &ranges) {
            return false; // recovery::R2
        }
        let has_begun = life.recoveries.begin(now_us, &life.store, order, ranges);
        self.member.assignment_mut().hold(life.recoveries.tables());
        has_begun
    }

    fn joined(
        &mut self,
        now_us: u64,
        server: ServerId,
        settings: ClusterSettings,
        out: &mut Vec<NodeOutput>,
    ) {
        let until = self.read_until.clone();
        match Life::begin(now_us, server, settings, &self.options, until) {
            Ok((life, opened)) => {
                self.life = Some(life);
                out.push(opened);
            }
            Err(reason) => self.quit(now_us, false, &reason, out),
        }
    }

    fn members_changed(
        &mut self,
        now_us: u64,
        changes: Vec<ServerChange>,
        out: &mut Vec<NodeOutput>,
    ) {
        let mut events = Vec::new();
        let me = self.member.id();
        let Some(life) = self.life.as_mut() else {
            return;
        };
        // All are added at once: with the first alone there would be no choice of backups.
        let mut up: Vec<placement::Member> = Vec::new();
        let mut draining: Vec<BackupId> = Vec::new();
        for change in changes {
            let (gone, is_removed) = match change {
                ServerChange::Added(entry) if entry.status == ServerStatus::Up => {
                    if entry.server != me && entry.roles.backup {
                        draining.extend(entry.draining.then(|| BackupId(entry.server.number())));
                        up.push(member_of(&entry, &life.settings));
                    }
                    continue;
                }
                ServerChange::Added(entry) => (entry.server, false),
                ServerChange::Changed(entry) => {
                    let is_backup = entry.roles.backup && entry.server != me;
                    let backup = BackupId(entry.server.number());
                    if entry.draining {
                        draining.push(backup);
                        let log = life.log();
                        log.master(|master| master.replicas_mut().backup_retires(backup));
                    } else if is_backup && !life.is_lost_for_now(entry.server) {
                        draining.retain(|retired| *retired != backup);
                        up.push(member_of(&entry, &life.settings));
                    }
                    continue;
                }
                ServerChange::Crashed(server) => (server, false),
                ServerChange::Removed(server) => (server, true),
            };
            let backup = BackupId(gone.number());
            up.retain(|member| member.backup != backup);
            life.remote.lost(now_us, backup, &mut events);
            life.log().backup_lost(backup);
            if self.options.backup.is_some() {
                out.push(NodeOutput::Keep(match is_removed {
                    true => Task::Removed(gone),
                    false => Task::Crashed(gone),
                }));
            }
        }
        life.log().backups_up(up, &draining);
        self.go_on(now_us, events, out);
    }

    /// Ends this life (D2).
    fn end(&mut self) {
        self.ended = true;
        if let Some(life) = &mut self.life {
            life.end();
        }
    }

    fn quit(&mut self, now_us: u64, again: bool, reason: &str, out: &mut Vec<NodeOutput>) {
        let mut outputs = Vec::new();
        self.member.quit(again, reason, &mut outputs);
        for output in outputs {
            self.member_says(now_us, output, out);
        }
    }

    /// Publishes the view after a lock or an unlock.
    fn publish(&self, out: &mut Vec<NodeOutput>) {
        let mut outputs = Vec::new();
        self.member.publish_now(&mut outputs);
        for output in outputs {
            if let Output::View(view) = output {
                out.push(NodeOutput::View(view));
            }
        }
    }

    // --- the store's side

    fn go_on(&mut self, now_us: u64, mut events: Vec<RemoteEvent>, out: &mut Vec<NodeOutput>) {
        if self.ended {
            return;
        }
        self.look_at_log(now_us, &mut events, out);
        while !events.is_empty() {
            for event in std::mem::take(&mut events) {
                self.remote_event(now_us, event, &mut events, out);
            }
        }
        self.say_obeyed(now_us, out);
        self.try_again(now_us, out);
        self.look(now_us);
        let Some(life) = self.life.as_mut().filter(|_| !self.ended) else {
            return;
        };
        let mut effects = Effects::default();
        let head = life.remote.poll(now_us, &mut effects.requests);
        effects.reports.extend(head);
        life.client_leases.charge(life.store.engine());
        effects.reports.extend(life.client_leases.poll(now_us));
        let (me, told) = (self.member.id(), self.member.assignment().latest().version);
        let members = self.member.members();
        life.recoveries
            .poll(now_us, me, told, members, &mut effects);
        if let Some(backup) = &self.options.backup {
            life.replica_gc
                .poll(now_us, me, backup, members, &mut effects);
        }
        let assignment = self.member.assignment();
        let backup = self.options.backup.as_deref();
        life.loads.poll(
            now_us,
            (me, members, self.member.term()),
            assignment.latest(),
            (&life.store, backup),
            &mut effects,
        );
        for server in std::mem::take(&mut effects.recovered) {
            life.hint_exchange.recovered(server);
        }
        let hints = life.store.log().and_then(LogWriter::hints);
        let hint = || hints.and_then(Hints::take);
        let found = life
            .hint_exchange
            .poll(now_us, me, members, hint, &mut effects);
        for (server, blocks) in found {
            if let Some(hints) = hints {
                hints.bring(server.number(), blocks);
            }
        }
        self.member.assignment_mut().hold(life.recoveries.tables());
        let Effects {
            requests,
            reports,
            jobs,
            tasks,
            ended,
            recovered: _,
        } = effects;
        out.extend(tasks.into_iter().map(NodeOutput::Keep));
        out.extend(jobs.into_iter().map(NodeOutput::Job));
        for ranges in ended {
            self.tell_member(now_us, Input::Left(ranges), out);
        }
        self.report(reports, out);
        self.ask_peers(requests, out);
        self.move_on(now_us, out);
    }

    fn report(&self, reports: Vec<(Token, ToCoordinator)>, out: &mut Vec<NodeOutput>) {
        for (token, question) in reports {
            let address = self.member.coordinator().to_owned();
            out.push(NodeOutput::AskCoordinator {
                token,
                address,
                question,
            });
        }
    }

    fn ask_peers(&self, requests: Vec<PeerRequest>, out: &mut Vec<NodeOutput>) {
        for request in requests {
            let entry = self.member.members().get(request.to);
            let address = entry.map(|entry| entry.addresses.native.clone());
            // A server that is not listed any more gets no request: its removal ends its calls.
            out.extend(address.map(|address| NodeOutput::AskPeer { request, address }));
        }
    }

    fn remote_event(
        &mut self,
        now_us: u64,
        event: RemoteEvent,
        events: &mut Vec<RemoteEvent>,
        out: &mut Vec<NodeOutput>,
    ) {
        let Some(life) = self.life.as_mut().filter(|_| !self.ended) else {
            return;
        };
        let log = life.log();
        match event {
            RemoteEvent::Answered(ticket, answer) => log.answered(ticket, answer),
            RemoteEvent::Damaged(backup) => out.extend(life.note_damaged(backup)),
            RemoteEvent::RecipeRefused(bytes) => log.recipe_refused(bytes),
            RemoteEvent::NotFetched(ticket, holders) => {
                log.master(|master| master.not_fetched(ticket, &holders));
            }
            RemoteEvent::Freed(backup, segment) => {
                log.master(|master| master.replicas_mut().freed(backup, segment));
            }
            RemoteEvent::Synced(backup) => log.synced(backup),
            RemoteEvent::Noted(min_open) => {
                log.master(|master| master.control_head_noted(min_open));
            }
            RemoteEvent::Granted(holder, sent_us) => {
                life.leases.granted(holder, sent_us);
                self.look_us = now_us;
            }
            RemoteEvent::Lost(backup) => life.lose(now_us, backup, events),
            RemoteEvent::Back(backup, took_us) => {
                life.is_back(now_us, backup, took_us, self.member.members());
            }
            RemoteEvent::Fenced => {
                let reason = "a backup or the coordinator takes it for crashed";
                self.quit(now_us, true, reason, out);
            }
        }
    }

    /// Silent backups are lost (remote::Q8); a log that cannot go on ends this life
    /// (durable::remote::J5).
    fn look_at_log(
        &mut self,
        now_us: u64,
        events: &mut Vec<RemoteEvent>,
        out: &mut Vec<NodeOutput>,
    ) {
        let Some(life) = self.life.as_mut().filter(|_| !self.ended) else {
            return;
        };
        if let Some(reason) = life.log().failure() {
            return self.quit(now_us, true, &reason, out);
        }
        let (me, members) = (self.member.id(), self.member.members());
        let said = life.leave_slow(now_us, me, members); // remote::Q9
        out.extend(said.into_iter().map(NodeOutput::Fails));
        for backup in life.silent_backups(me, members) {
            let server = ServerId::from_number(backup.0);
            out.push(NodeOutput::Fails(format!(
                "server {server} runs, but stores nothing that it is sent: other backups replace it"
            )));
            life.lose(now_us, backup, events);
        }
    }

    /// Confirms a list whose effects are synced (D1).
    fn say_obeyed(&mut self, now_us: u64, out: &mut Vec<NodeOutput>) {
        let log = self.life.as_ref().map(Life::log);
        if let Some(version) = log.and_then(|log| self.orders.take_synced(log)) {
            self.tell_member(now_us, Input::Obeyed { version }, out);
        }
    }

    /// Leases, and other periodic work.
    fn look(&mut self, now_us: u64) {
        let Some(life) = self.life.as_mut().filter(|_| now_us >= self.look_us) else {
            return;
        };
        self.look_us = now_us + LOOK_US;
        self.pings.forget_old(now_us);
        if now_us >= self.forgive_us {
            self.forgive_us = now_us + FORGIVE_US;
            let log = life.log();
            log.master(|master| master.replicas_mut().forgive());
            life.take_back(now_us, self.member.members());
        }
        let holders = life.log().control_holders();
        let due = life.leases.step(now_us, &holders);
        life.remote.renew(now_us, due);
    }
}
