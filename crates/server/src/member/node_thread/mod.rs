//! The node's thread: drives the node, and all connections but those for replicas.
//!
//! **Invariants**
//! - X1: no step here takes more than about a millisecond, so pings are answered in time under any
//!   load. Longer work goes to workers and to the keeper.
//! - X2: each incoming question is answered once, even if the node has no answer to it.
//!
//! **Concurrency**: the thread owns node and hub; other threads send it [`Mail`].
//!
//! Paper: [Ousterhout15 §6] a dispatch thread with workers; differs: clients' requests do not pass
//! through it.

mod adoption;
mod certificate;
mod messages;

use super::broadcast::{Broadcast, Heard};
use super::foreign::{SAY_AGAIN, advised};
use super::home::Home;
use super::keeper::Keeper;
use super::local_clients::LocalClients;
use super::mail::{Mail, Order};
use super::silence::Silence;
use super::workers::{Chores, Workers};
use crate::doors::{Doors, STARTER};
use certificate::Renewal;
use duramen::Store;
use duramen_base::ids::{ClusterId, ServerId};
use duramen_config::ServerError;
use duramen_config::clock::now_ms;
use duramen_net as net;
use duramen_net::{ConnectionId, Event, Hub, Payload, Reason};
use duramen_node::{
    BackupService, Clients, Input, Node, NodeInput, NodeOutput, PeerCall, PeerRequest,
    ReceivedRequest, RequestId, Token,
};
use duramen_redis::durability::Durability;
use duramen_redis::flash::Tier;
use duramen_redis::membership::{Clock, MemberStatus, Membership};
use duramen_redis::operation::written;
use duramen_redis::state::Shared;
use duramen_redis::threads::{Background, Message, Stop};
use duramen_wire::native::Slice;
use duramen_wire::native::codec::{
    Envelope, HelloError, Question, Reply, Role, Trouble, decode_question, decode_reply,
    encode_peer, encode_peer_answer, encode_server_answer, encode_to_coordinator, encode_trouble,
};
use duramen_wire::native::message::{
    CoordinatorAnswer, Link, Peer, PeerAnswer, Refusal, TableEntry, ToCoordinator,
};
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Sender, SyncSender};
use std::time::{Duration, Instant};

/// A longer round is logged, at level debug.
const SLOW: Duration = Duration::from_millis(5);
/// Interval at which changeable settings are read and the status is written.
const LOOK_EVERY_US: u64 = 100_000;
/// Interval of the checks which connections have moved bytes.
const MOVING_EVERY_US: u64 = 100_000;

/// An id that could not be stored is stored again after this time.
const STORE_AGAIN: Duration = Duration::from_secs(1);
/// A question without an answer for this long gets an error: its sender repeats it much sooner.
const ANSWER_US_MAX: u64 = 30_000_000;

pub(super) struct Parts {
    pub shared: Arc<Shared>,
    pub doors: Arc<Doors>,
    pub hub: Hub<Mail>,
    pub node: Node,
    pub clock: Clock,
    pub home: Home,
    pub workers: Workers<Mail>,
    /// The thread for clients on this machine; `None` if there is no socket for them.
    pub local: Option<LocalClients>,
    pub keeper: Option<Keeper>,
    /// The disk's chores, which end with this life.
    pub _chores: Option<Chores>,
    pub scrub_ms: Arc<AtomicU64>,
    /// Receives the result when clients are served.
    pub opened: Sender<Result<(), ServerError>>,
    /// The constant part is filled in at the start.
    pub status: MemberStatus,
    /// The flash tier; `None` if the store has memory alone.
    pub tier: Option<Arc<Tier>>,
}

/// A request sent by this member, with its kind of receiver.
enum PendingCall {
    /// A question to a coordinator, with that coordinator's address.
    Coordinator(Asker, String),
    Peer(PeerCall),
    /// Messages of PUBLISH for this member.
    Publish(ServerId),
}

/// The part of this server that asks the coordinator.
enum Asker {
    Node(Token),
    /// Another thread, which waits for the answer.
    Thread(SyncSender<Result<CoordinatorAnswer, String>>),
    /// The thread itself, which reports the certificate of this generation to the leader of this
    /// term.
    Certificate(u64, u32),
}

/// A question from outside that waits for an answer.
struct Waiting {
    connection: ConnectionId,
    envelope: Envelope,
    kind: u16,
    since_us: u64,
}

/// The state of the node's thread.
pub(super) struct NodeThread {
    parts: Parts,
    membership: Option<Arc<Membership>>,
    asked: HashMap<u64, PendingCall>,
    next_ask: u64,
    silence: Silence,
    /// Questions that wait for an answer.
    questions: HashMap<u64, Waiting>,
    next_question: u64,
    could_read: bool,
    look_us: u64,
    moving_us: u64,
    ended: bool,
    /// The last logged reason why this server is not a member yet.
    waits: Option<String>,
    /// Time of the last log line about a coordinator of another cluster.
    foreign: Option<Instant>,
    /// Whether the cluster's id is being stored.
    adopts: bool,
    /// The thread that takes over the users of the cluster.
    users: Background,
    broadcast: Broadcast,
    heard: Heard,
    /// The thread that delivers messages of PUBLISH of other members.
    deliveries: Background,
    renewal: Renewal,
}

impl NodeThread {
    pub fn new(parts: Parts) -> NodeThread {
        NodeThread {
            renewal: Renewal::new(parts.shared.settings.certificates().cluster()),
            parts,
            membership: None,
            asked: HashMap::new(),
            next_ask: 1 << 32, // disjoint from the requests sent before there was a node
            silence: Silence::default(),
            questions: HashMap::new(),
            next_question: 0,
            could_read: false,
            look_us: 0,
            moving_us: 0,
            ended: false,
            waits: None,
            foreign: None,
            adopts: false,
            users: Background::new("users", STARTER),
            broadcast: Broadcast::default(),
            heard: Heard::default(),
            deliveries: Background::new("deliveries", STARTER),
        }
    }

    fn now_us(&self) -> u64 {
        self.parts.clock.now_us()
    }

    /// Runs until the life ends, or the server does.
    pub fn run(self) {
        let shared = Arc::clone(&self.parts.shared);
        self.run_until_over();
        shared.watch.node().sleeps();
    }

    fn run_until_over(mut self) {
        let mut events = Vec::new();
        self.tell(NodeInput::Tick);
        while !self.ended {
            let left_us = self.parts.node.due_us().saturating_sub(self.now_us());
            let timeout = Duration::from_micros(left_us.min(LOOK_EVERY_US));
            self.parts.shared.watch.node().sleeps();
            self.parts.hub.poll(Some(timeout), &mut events);
            self.parts.shared.watch.node().came_back(now_ms());
            let began = Instant::now();
            self.note_moving();
            for event in events.drain(..) {
                if matches!(event, Event::Mail(Mail::Stop)) {
                    return;
                }
                self.happened(event);
            }
            // Also handles events for which the store woke the thread.
            self.tell(NodeInput::Tick);
            self.look();
            let took = began.elapsed();
            let status = &mut self.parts.status;
            status.slowest_round_us = status.slowest_round_us.max(took.as_micros() as u64);
            if took > SLOW {
                tracing::debug!(us = took.as_micros() as u64, "a slow round of the node");
            }
        }
        self.parts.hub.poll(Some(Duration::ZERO), &mut events); // the last answers
    }

    /// Tells the node which requests are not lost, before it looks for those to be repeated.
    fn note_moving(&mut self) {
        let now_us = self.now_us();
        if now_us < self.moving_us {
            return;
        }
        self.moving_us = now_us + MOVING_EVERY_US;
        let (mut calls, mut tokens) = (Vec::new(), Vec::new());
        for moving in self.parts.hub.moving() {
            match self.asked.get(&moving.request) {
                Some(PendingCall::Peer(call)) => calls.push(*call),
                Some(PendingCall::Coordinator(asker, address)) => {
                    if let Asker::Node(token) = asker {
                        tokens.push(*token);
                    }
                    if moving.has_received {
                        self.silence.heard(address);
                    }
                }
                Some(PendingCall::Publish(_)) | None => {}
            }
        }
        if !calls.is_empty() {
            self.tell(NodeInput::Moving(calls));
        }
        if !tokens.is_empty() {
            self.tell(NodeInput::Member(Input::Moving(tokens)));
        }
    }

    /// Handles a right to answer that came back, and changed settings.
    fn look(&mut self) {
        let now_us = self.now_us();
        let can_read = self.parts.node.read_until().may_read(now_us);
        if can_read && !self.could_read {
            self.parts.shared.threads.wake_for_commit();
        }
        self.could_read = can_read;
        if now_us >= self.look_us {
            self.look_us = now_us + LOOK_EVERY_US;
            let config = self.parts.shared.config();
            let scrub_ms = config.scrub_interval_ms;
            self.parts.scrub_ms.store(scrub_ms, Ordering::Relaxed);
            self.parts.hub.set_longest_spin(config.longest_spin());
            self.write_status();
            self.tell_of_renewal(now_us);
            self.give_up_old(now_us);
            self.publish(now_us);
            if self.membership.is_some() && !can_read {
                let log = self.parts.node.describe_log().unwrap_or_default();
                tracing::debug!(log, "this member has no lease and answers no requests");
            }
        }
    }

    /// X2: the node never answers a question that a newer one has replaced. This answers such old
    /// questions with an error. Their senders gave them up long ago, but without an answer the
    /// connection would run out of room for other questions.
    fn give_up_old(&mut self, now_us: u64) {
        let is_old = |waiting: &Waiting| waiting.since_us + ANSWER_US_MAX < now_us;
        let old = self.questions.iter().filter(|(_, one)| is_old(one));
        for request in old.map(|(request, _)| *request).collect::<Vec<_>>() {
            let reason = "no answer came of it";
            self.trouble(RequestId(request), &Trouble::NotServing { reason });
        }
    }

    fn write_status(&mut self) {
        let now_us = self.now_us();
        if let Some(membership) = &self.membership {
            let status = &mut self.parts.status;
            status.look_at(&self.parts.node, now_us);
            status.tablets_version = membership.view().tablets_version();
            status.offences = self.parts.hub.offences();
            status.tls_failures = self.parts.hub.tls_failures();
            membership.set_status(status.clone());
        }
    }

    fn tell(&mut self, input: NodeInput) {
        let mut out = Vec::new();
        let now_us = self.now_us();
        self.parts.node.handle(now_us, input, &mut out);
        for output in out {
            self.obey(output);
        }
    }

    // --- what happens

    fn happened(&mut self, event: Event<Mail>) {
        match event {
            Event::Mail(mail) => self.on_mail(mail),
            Event::Question {
                connection,
                role,
                message,
            } => self.question(connection, role, &message),
            Event::Answer {
                request,
                message,
                cluster_id,
            } => self.answer(request, &message, cluster_id),
            Event::Unanswered {
                address,
                role,
                requests,
                reason,
            } => self.unanswered(&address, role, &requests, &reason),
            // A dropped connection is closed: no client is served before there is a store.
            Event::Handed(incoming) => match (incoming.role, &self.parts.keeper) {
                (Role::Replica, Some(keeper)) => keeper.tell(Order::Adopt(incoming)),
                (Role::Client, _) if self.membership.is_some() => {
                    let net::Incoming {
                        fd,
                        peer,
                        is_local,
                        tls,
                        received,
                        ..
                    } = incoming;
                    match &self.parts.local {
                        Some(local) if is_local => local.take_over(fd, peer),
                        _ => self.parts.doors.hand_over_native(fd, peer, tls, received),
                    }
                }
                _ => {}
            },
            Event::Accepted { .. } | Event::Closed { .. } | Event::Foreign { .. } => {}
        }
    }

    fn on_mail(&mut self, mail: Mail) {
        match mail {
            Mail::JobDone(done) => {
                self.tell(NodeInput::JobDone(done));
                self.adopt_tables();
            }
            Mail::Stored(server, Ok(())) => {
                self.parts.hub.set_cluster_id(self.parts.home.id);
                self.tell(NodeInput::Member(Input::IdStored { server }));
            }
            // An operator can repair every error but EIO: disk space, a quota, a mode, a moved
            // directory.
            Mail::Stored(server, Err(error)) if error.raw_os_error() != Some(libc::EIO) => {
                self.waits(format!(
                    "this member's id cannot be stored yet, it goes on trying: {error}"
                ));
                let home = self.parts.home.clone();
                self.parts.workers.give(move || {
                    std::thread::sleep(STORE_AGAIN);
                    Mail::Stored(server, home.store_id(server))
                });
            }
            Mail::Stored(_, Err(error)) => {
                self.end(false, format!("this member's id cannot be stored: {error}"));
            }
            Mail::Adopted(cluster_id, stored) => self.adopted(cluster_id, stored),
            Mail::Output(output) => self.obey(output),
            Mail::Ask(asked) => {
                let here = || self.parts.node.member().coordinator().to_owned();
                let address = asked.address.unwrap_or_else(here);
                self.ask_coordinator(Asker::Thread(asked.answer), &address, &asked.question);
            }
            Mail::UsersTaken(request, fault) => {
                let taken = Input::UsersTaken { request, fault };
                self.tell(NodeInput::Member(taken));
            }
            Mail::Published => self.publish(self.now_us()),
            Mail::Delivered(request) => {
                self.answer_peer(request, &PeerAnswer::Heard, Slice::default());
            }
            Mail::Damaged => self.parts.status.damaged_replicas += 1,
            Mail::BackupFull(is_full) => self.parts.status.backup_full = is_full,
            Mail::Failed(reason) => self.end(false, reason),
            Mail::Stop => {}
        }
    }

    /// Logs once what this server waits for.
    fn waits(&mut self, why: String) {
        if self.waits.as_ref() != Some(&why) {
            tracing::warn!("{why}");
            self.waits = Some(why);
        }
    }

    fn question(&mut self, connection: ConnectionId, role: Role, message: &net::Message) {
        let header = message.header();
        let (envelope, kind) = (header.envelope, header.kind);
        self.next_question += 1;
        let request = RequestId(self.next_question);
        let waiting = Waiting {
            connection,
            envelope,
            kind,
            since_us: self.now_us(),
        };
        self.questions.insert(request.0, waiting);
        let question = match decode_question(&message.frame()) {
            Ok(question) => question,
            Err(error) => {
                self.parts.hub.offended();
                let reason = error.to_string();
                return self.trouble(request, &Trouble::Malformed { reason: &reason });
            }
        };
        let (sender, target) = (envelope.sender, envelope.target);
        let input = match (role, question) {
            (Role::Coordinator, Question::FromCoordinator(question)) => {
                NodeInput::Member(Input::Order {
                    request,
                    sender,
                    target,
                    question,
                })
            }
            (Role::Server, Question::Peer(Peer::Publish { number })) => {
                let payload = message.payload_shared();
                return self.deliver(request, (sender, target), number, payload);
            }
            (Role::Server, Question::Peer(question)) => {
                let received = ReceivedRequest {
                    request,
                    sender,
                    target,
                    question,
                    payload: message.payload().to_vec(),
                };
                match &self.parts.keeper {
                    Some(keeper) if received.question.is_for_backup() => {
                        return keeper.tell(Order::Asked(received));
                    }
                    _ => NodeInput::Request(received),
                }
            }
            _ => {
                let reason = "this server does not have the role that answers this request";
                return self.trouble(request, &Trouble::NotServing { reason });
            }
        };
        let is_ping = matches!(
            input,
            NodeInput::Request(ReceivedRequest {
                question: Peer::Ping { .. },
                ..
            })
        );
        self.tell(input);
        if is_ping {
            // X2: a ping for another life.
            let here = self.parts.node.member().id();
            self.trouble(request, &Trouble::WrongServer { here });
        }
    }

    /// Answers with an error, unless the question was answered already.
    fn trouble(&mut self, request: RequestId, trouble: &Trouble<'_>) {
        if let Some(waiting) = self.questions.remove(&request.0) {
            let (hub, envelope, kind) = (&mut self.parts.hub, waiting.envelope, waiting.kind);
            hub.reply(waiting.connection, Payload::None, |out| {
                encode_trouble(out, &envelope, kind, trouble);
            });
        }
    }

    fn answer(&mut self, request: u64, message: &net::Message, cluster_id: ClusterId) {
        let Some(asked) = self.asked.remove(&request) else {
            return;
        };
        let reply = decode_reply(&message.frame());
        if let PendingCall::Coordinator(_, address) = &asked {
            self.silence.heard(address);
        }
        if let Ok(Reply::Coordinator(CoordinatorAnswer::Refused(why @ Refusal::NotReady { .. }))) =
            &reply
            && self.membership.is_none()
        {
            self.waits(format!(
                "the coordinator does not let this member in yet, it goes on trying: {why}"
            ));
        }
        if let Ok(Reply::Coordinator(answer)) = &reply {
            self.hear_cluster_id(answer, cluster_id);
        }
        let input = match (asked, reply) {
            (PendingCall::Coordinator(Asker::Node(token), _), Ok(Reply::Coordinator(answer))) => {
                NodeInput::Member(Input::Answered { token, answer })
            }
            (PendingCall::Coordinator(Asker::Thread(to), _), reply) => {
                let answer = match reply {
                    Ok(Reply::Coordinator(answer)) => Ok(answer),
                    Ok(other) => Err(format!("an answer that does not fit: {other:?}")),
                    Err(error) => Err(error.to_string()),
                };
                return drop(to.try_send(answer)); // it may have given up
            }
            (PendingCall::Coordinator(Asker::Certificate(generation, term), _), reply) => {
                return self.told_of_renewal((generation, term), reply.ok());
            }
            // Any answer ends the batch: an older member does not understand it.
            (PendingCall::Publish(server), _) => {
                let now_us = self.now_us();
                self.broadcast.answered(server, true, now_us);
                return self.publish(now_us);
            }
            (PendingCall::Peer(call), Ok(Reply::Peer(answer))) => NodeInput::PeerAnswered {
                call,
                answer: Some((answer, message.payload_shared())),
            },
            (asked, reply) => {
                tracing::debug!(?reply, "a question is not answered");
                return self.not_answered(asked, "an answer that does not fit");
            }
        };
        self.tell(input);
    }

    /// Logs that the coordinator at this address belongs to another cluster.
    fn say_foreign(&mut self, address: &str, reason: &Reason) {
        let is_foreign = matches!(reason, Reason::Hello(HelloError::OtherCluster { .. }));
        if is_foreign && self.foreign.is_none_or(|said| said.elapsed() > SAY_AGAIN) {
            self.foreign = Some(Instant::now());
            tracing::warn!(
                address,
                "this is not this member's coordinator; the answer is ignored: {}",
                advised(reason)
            );
        }
    }

    fn unanswered(&mut self, address: &str, role: Role, requests: &[u64], reason: &Reason) {
        // Only control links count: each watched member has one.
        if reason.is_sign_of_death() && role == Role::Server {
            let members = self.parts.node.member().members();
            let there = members.up().find(|entry| entry.addresses.native == address);
            if let Some(server) = there.map(|entry| entry.server) {
                self.tell(NodeInput::Member(Input::Unreachable { server }));
            }
        }
        self.say_foreign(address, reason);
        self.silence.heard(address);
        for request in requests {
            if let Some(asked) = self.asked.remove(request) {
                self.not_answered(asked, &reason.to_string());
            }
        }
    }

    fn not_answered(&mut self, asked: PendingCall, reason: &str) {
        match asked {
            PendingCall::Coordinator(Asker::Node(token), _) => {
                self.tell(NodeInput::Member(Input::Unanswered { token }));
            }
            PendingCall::Coordinator(Asker::Certificate(..), _) => {} // it tells again
            // The thread may have given up.
            PendingCall::Coordinator(Asker::Thread(to), _) => {
                drop(to.try_send(Err(reason.to_owned())));
            }
            PendingCall::Publish(server) => {
                let now_us = self.now_us();
                self.broadcast.answered(server, false, now_us);
            }
            PendingCall::Peer(call) => {
                let answer = None;
                self.tell(NodeInput::PeerAnswered { call, answer });
            }
        }
    }

    // --- what to do

    fn obey(&mut self, output: NodeOutput) {
        match output {
            NodeOutput::AskCoordinator {
                token,
                address,
                question,
            } => self.ask_coordinator(Asker::Node(token), &address, &question),
            NodeOutput::AskPeer { request, address } => self.ask_peer(request, &address),
            NodeOutput::Answer {
                request,
                answer,
                payload,
            } => {
                if let Some(waiting) = self.questions.remove(&request.0) {
                    let bytes = payload.len();
                    let payload = Payload::Owned(payload);
                    self.parts.hub.reply(waiting.connection, payload, |out| {
                        encode_server_answer(out, &waiting.envelope, &answer, bytes);
                    });
                }
            }
            NodeOutput::AnswerPeer {
                request,
                answer,
                payload,
            } => self.answer_peer(request, &answer, payload),
            NodeOutput::StoreId { server } => {
                let home = self.parts.home.clone();
                self.parts
                    .workers
                    .give(move || Mail::Stored(server, home.store_id(server)));
            }
            NodeOutput::Opened {
                store,
                keeper,
                clients,
            } => self.open(store, keeper, clients),
            NodeOutput::Keep(task) => {
                if let Some(keeper) = &self.parts.keeper {
                    keeper.tell(Order::Task(task));
                }
            }
            NodeOutput::View(view) => {
                if let Some(membership) = &self.membership {
                    membership.publish(view);
                    self.parts.shared.threads.post_all(&Message::Wake);
                }
            }
            NodeOutput::Job(job) => self.parts.workers.give(move || Mail::JobDone(job.run())),
            NodeOutput::Fails(reason) => tracing::warn!("{reason}"),
            NodeOutput::Settings(settings) => self.parts.status.replicas = settings.replicas,
            NodeOutput::Users { request, users } => self.take_users(request, users),
            NodeOutput::Functions { request, functions } => {
                self.take_functions(request, functions);
            }
            NodeOutput::Ended { again, reason } => self.end(again, reason),
        }
    }

    fn ask_coordinator(&mut self, asker: Asker, address: &str, question: &ToCoordinator) {
        if self.silence.asks(address) {
            self.parts.hub.close_links(address);
        }
        let request = self.asks(PendingCall::Coordinator(asker, address.to_owned()));
        let envelope = Envelope {
            request,
            target: ServerId::NONE,
            sender: self.parts.node.member().id(),
        };
        let (hub, role) = (&mut self.parts.hub, Role::Server);
        hub.ask(address, role, request, Payload::None, |out| {
            encode_to_coordinator(out, &envelope, question);
        });
    }

    fn ask_peer(&mut self, request: PeerRequest, address: &str) {
        let PeerRequest {
            call,
            to,
            question,
            payload,
        } = request;
        let request = self.asks(PendingCall::Peer(call));
        let envelope = Envelope {
            request,
            target: to,
            sender: self.parts.node.member().id(),
        };
        tracing::trace!(%to, address, ?question, "asks");
        let bytes = payload.len();
        let payload = Payload::Shared(payload);
        let role = match question.link() {
            Link::Control => Role::Server,
            Link::Replica => Role::Replica,
        };
        self.parts.hub.ask(address, role, request, payload, |out| {
            encode_peer(out, &envelope, &question, bytes);
        });
    }

    fn asks(&mut self, asked: PendingCall) -> u64 {
        self.next_ask += 1;
        self.asked.insert(self.next_ask, asked);
        self.next_ask
    }

    fn answer_peer(&mut self, request: RequestId, answer: &PeerAnswer, payload: Slice) {
        if let Some(waiting) = self.questions.remove(&request.0) {
            let bytes = payload.len();
            let payload = Payload::Shared(payload);
            self.parts.hub.reply(waiting.connection, payload, |out| {
                encode_peer_answer(out, &waiting.envelope, answer, bytes);
            });
        }
    }

    /// Starts to serve clients as a member.
    fn open(
        &mut self,
        store: Arc<Store>,
        keeper: Option<Box<BackupService<RequestId>>>,
        clients: Arc<Clients>,
    ) {
        let me = self.parts.node.member().id();
        if let (Some(service), Some(thread)) = (keeper, &self.parts.keeper) {
            thread.tell(Order::Opened(service));
        }
        let read_until = Arc::clone(self.parts.node.read_until());
        let handle = self.parts.hub.handle();
        let ask = Box::new(move |question| handle.tell(Mail::Ask(question)));
        let membership = Membership::new(self.parts.clock, read_until, clients, ask);
        let membership = Arc::new(membership);
        let handle = self.parts.hub.handle();
        membership.when_published(Box::new(move || handle.tell(Mail::Published)));
        self.membership = Some(Arc::clone(&membership));
        let shared = &self.parts.shared;
        shared.join(membership);
        // The status must be there before a client can request it.
        self.write_status();
        let shared = &self.parts.shared;
        shared.commands.adopt_tables(&[]);
        let durability = Arc::new(Durability::of_member(store));
        written::watch_commits(shared, &durability);
        let engine = Arc::clone(durability.store().engine());
        shared.serve_with(engine, Some(durability), self.parts.tier.clone());
        tracing::info!(server = %me, "a member of the cluster");
        // The receiver may be gone already.
        let _ = self.parts.opened.send(Ok(()));
    }

    /// Reports the tables that were created from the coordinator's list.
    fn adopt_tables(&self) {
        let Some(store) = self.parts.shared.data() else {
            return;
        };
        let tables = store.tables().list().into_iter().map(|table| TableEntry {
            table: table.id,
            level: store.tables().level(table.id).unwrap_or_default(),
            name: table.name,
        });
        let tables = tables.collect::<Vec<_>>();
        self.parts.shared.commands.adopt_tables(&tables);
    }

    fn end(&mut self, again: bool, reason: String) {
        if std::mem::replace(&mut self.ended, true) {
            return;
        }
        tracing::warn!(again, "this member's life is over: {reason}");
        let shared = &self.parts.shared;
        if self.membership.is_none() {
            let over = ServerError::LifeOver { again, reason };
            let _ = self.parts.opened.send(Err(over));
        } else {
            shared.life_is_over(again, reason);
            shared.stop(Stop::AtOnce);
        }
    }
}
