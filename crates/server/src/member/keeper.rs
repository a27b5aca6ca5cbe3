//! The keeper's thread: stores replicas for other masters, on its own connections.
//!
//! A round: receive from all connections, stage the writes, make one commit for all, answer all. So
//! many masters share one write to the disk, and no ping waits for it. Two threads read replicas
//! for recoveries: while one reads, the other orders entries [Ousterhout15 §7.4], and writes go on.
//!
//! All requests for the backup get to its service by `BackupService::asked`, leases too: the node's
//! thread passes them on.
//!
//! **Concurrency**: the thread owns the backup's service. The node's thread sends it tasks and
//! requests by mail, in order. The readers mail their results.

use super::mail::{Mail, Order};
use super::workers::{Workers, prefer, spawn};
use duramen_backup::Error;
use duramen_config::ServerError;
use duramen_config::clock::now_ms;
use duramen_net::{ConnectionId, Event, Handle, Hub, Message, Options, Payload};
use duramen_node::{Asked, BackupService, NodeOutput, RequestId};
use duramen_redis::membership::Clock;
use duramen_redis::state::{ConfigCache, Shared};
use duramen_wire::native::codec::{
    Envelope, Question, Role, Trouble, decode_question, encode_peer_answer, encode_trouble,
};
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Requests from the keeper's own connections have this bit.
const OWN: u64 = 1 << 63;
/// If new segments were refused for this long, in microseconds, the lack of room is not momentary.
const REFUSES_FOR_US: u64 = 1_000_000;
/// Replicas that are read for recoveries at the same time.
const READERS: usize = 2;
/// Pause after a commit for which there was no disk space.
const FULL_AGAIN: Duration = Duration::from_millis(2);

/// The keeper's thread. Dropping this ends the thread.
pub(super) struct Keeper {
    handle: Handle<Order>,
    thread: Option<JoinHandle<()>>,
}

impl Keeper {
    pub fn start(
        shared: Arc<Shared>,
        offences: Arc<AtomicU64>,
        clock: Clock,
        node: Handle<Mail>,
    ) -> Result<Keeper, ServerError> {
        let options = Options {
            offences,
            ..Options::new(Role::Server, &shared.config().cluster)
        };
        let hub = Hub::new(options).map_err(|source| ServerError::System {
            doing: "watch connections",
            source,
        })?;
        let handle = hub.handle();
        let readers = Workers::start("reader", READERS, &handle)?;
        let thread = spawn("keeper", move || {
            prefer();
            Run {
                hub,
                node,
                clock,
                service: None,
                readers,
                scratches: vec![Vec::new(); READERS],
                asked: HashMap::new(),
                next: OWN,
                full_until: Instant::now(),
                is_full: false,
                config: ConfigCache::new(&shared),
                shared: Arc::clone(&shared),
            }
            .run();
            shared.watch.keeper().sleeps();
        })?;
        Ok(Keeper {
            handle,
            thread: Some(thread),
        })
    }

    pub fn tell(&self, order: Order) {
        self.handle.tell(order);
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        self.handle.tell(Order::Stop);
        if let Some(thread) = self.thread.take() {
            // The thread itself has reported a panic.
            let _ = thread.join();
        }
    }
}

struct Run {
    hub: Hub<Order>,
    node: Handle<Mail>,
    clock: Clock,
    service: Option<Box<BackupService<RequestId>>>,
    readers: Workers<Order>,
    /// Memory of the readers that have nothing to do.
    scratches: Vec<Vec<u8>>,
    asked: HashMap<u64, (ConnectionId, Envelope)>,
    next: u64,
    /// The disk had no space: the next attempt is at this time.
    full_until: Instant,
    /// The last commit failed for lack of space.
    is_full: bool,
    config: ConfigCache,
    shared: Arc<Shared>,
}

impl Run {
    fn now_us(&self) -> u64 {
        self.clock.now_us()
    }

    fn run(mut self) {
        let mut events = Vec::new();
        loop {
            self.shared.watch.keeper().sleeps();
            let spin = self.config.get(&self.shared).longest_spin();
            self.hub.set_longest_spin(spin);
            self.hub.poll(self.patience(), &mut events);
            self.shared.watch.keeper().came_back(now_ms());
            let mut out = Vec::new();
            for event in events.drain(..) {
                match event {
                    Event::Mail(Order::Stop) => return,
                    Event::Mail(order) => self.obey(order, &mut out),
                    Event::Question {
                        connection,
                        message,
                        ..
                    } => self.question(connection, &message, &mut out),
                    Event::Closed { .. }
                    | Event::Accepted { .. }
                    | Event::Handed(_)
                    | Event::Answer { .. }
                    | Event::Foreign { .. }
                    | Event::Unanswered { .. } => {}
                }
            }
            self.say(out);
            if !self.settle() {
                return;
            }
            self.read_replicas();
        }
    }

    /// Gives each reader that has nothing to do the next replica.
    fn read_replicas(&mut self) {
        let now_us = self.now_us();
        let Some(service) = &mut self.service else {
            return;
        };
        while let Some(mut scratch) = self.scratches.pop() {
            let Some(read) = service.next_read(now_us) else {
                return self.scratches.push(scratch);
            };
            self.readers.give(move || {
                let read = read.run(&mut scratch);
                Order::Read { read, scratch }
            });
        }
    }

    /// How long the thread may sleep.
    fn patience(&self) -> Option<Duration> {
        let service = self.service.as_ref()?;
        let due = self.clock.until(service.due_us()?);
        let full = self.full_until.saturating_duration_since(Instant::now());
        Some(due.max(full))
    }

    fn obey(&mut self, order: Order, out: &mut Vec<NodeOutput>) {
        match order {
            Order::Opened(service) => self.service = Some(service),
            Order::Adopt(incoming) => self.hub.adopt(incoming),
            Order::Read { read, scratch } => {
                self.scratches.push(scratch);
                let now_us = self.now_us();
                if let Some(service) = &mut self.service {
                    let mut replies = Vec::new();
                    service.was_read(now_us, read, &mut replies);
                    out.extend(replies.into_iter().map(NodeOutput::from));
                }
            }
            Order::Task(task) => {
                let now_us = self.now_us();
                if let Some(service) = &mut self.service {
                    service.obey(now_us, task, out);
                }
            }
            Order::Asked(received) => self.ask(received.asked(), out),
            Order::Stop => {}
        }
    }

    fn question(&mut self, connection: ConnectionId, message: &Message, out: &mut Vec<NodeOutput>) {
        let header = message.header();
        let (kind, envelope) = (header.kind, header.envelope);
        let question = match decode_question(&message.frame()) {
            Ok(Question::Peer(question)) => question,
            Ok(_) => {
                let reason = "only replicas are written and read on this connection";
                return self.trouble(connection, kind, &envelope, Trouble::NotServing { reason });
            }
            Err(error) => {
                self.hub.offended();
                let reason = error.to_string();
                let trouble = Trouble::Malformed { reason: &reason };
                return self.trouble(connection, kind, &envelope, trouble);
            }
        };
        self.next += 1;
        self.asked.insert(self.next, (connection, envelope));
        let asked = Asked {
            tag: RequestId(self.next),
            sender: envelope.sender,
            target: envelope.target,
            question: &question,
            payload: message.payload(),
        };
        self.ask(asked, out);
    }

    fn ask(&mut self, asked: Asked<'_, RequestId>, out: &mut Vec<NodeOutput>) {
        let (now_us, mut replies) = (self.now_us(), Vec::new());
        match &mut self.service {
            Some(service) => service.asked(now_us, asked, &mut replies),
            None => replies.push(asked.not_here()),
        }
        out.extend(replies.into_iter().map(NodeOutput::from));
    }

    fn trouble(
        &mut self,
        connection: ConnectionId,
        kind: u16,
        envelope: &Envelope,
        trouble: Trouble<'_>,
    ) {
        self.hub.reply(connection, Payload::None, |out| {
            encode_trouble(out, envelope, kind, &trouble);
        });
    }

    /// Commits the writes that are due. Returns false if the disk failed for good.
    fn settle(&mut self) -> bool {
        let own = self.clock;
        let clock = move || own.now_us();
        let Some(service) = &mut self.service else {
            return true;
        };
        let lasts = |since_us: u64| clock().saturating_sub(since_us) >= REFUSES_FOR_US;
        let refuses = service
            .lacks_room()
            .filter(|(since_us, _)| lasts(*since_us));
        let refuses = refuses.map(|(_, why)| why.to_owned());
        let is_due = service.due_us().is_some_and(|due_us| due_us <= clock());
        if !is_due || Instant::now() < self.full_until {
            if refuses.is_some() {
                self.note_full(refuses);
            }
            return true;
        }
        let mut out = Vec::new();
        let result = service.settle(&clock, &mut out);
        self.say(out);
        match result {
            Ok(()) => {
                self.note_full(refuses);
                true
            }
            Err(error @ Error::Failed { .. }) => {
                self.node.tell(Mail::Failed(error.to_string()));
                false
            }
            Err(error) => {
                self.full_until = Instant::now() + FULL_AGAIN;
                self.note_full(Some(error.to_string()));
                true
            }
        }
    }

    /// Logs and reports, once each, that there is no room for other members' writes, or that there
    /// is room again.
    fn note_full(&mut self, why: Option<String>) {
        if self.is_full == why.is_some() {
            return;
        }
        self.is_full = why.is_some();
        self.node.tell(Mail::BackupFull(self.is_full));
        match why {
            Some(why) => {
                tracing::warn!("what other members write here is refused, or waits: {why}");
            }
            None => tracing::info!("the disk has room again for what other members write here"),
        }
    }

    /// Answers requests of the keeper's own connections; all other output goes to the node.
    fn say(&mut self, out: Vec<NodeOutput>) {
        for output in out {
            match output {
                NodeOutput::AnswerPeer {
                    request,
                    answer,
                    payload,
                } if request.0 & OWN != 0 => {
                    let Some((connection, envelope)) = self.asked.remove(&request.0) else {
                        continue;
                    };
                    let bytes = payload.len();
                    self.hub.reply(connection, Payload::Shared(payload), |out| {
                        encode_peer_answer(out, &envelope, &answer, bytes);
                    });
                }
                other => self.node.tell(Mail::Output(other)),
            }
        }
    }
}
