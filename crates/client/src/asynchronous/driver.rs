//! The thread of an asynchronous client: the loop around [`crate::core`].
//!
//! Operations for one server that are called while earlier ones are in flight wait in its lane,
//! and are given to the core as one batch, so they become one request. The more operations are in
//! flight, the fewer requests carry them.
//!
//! **Invariants**
//! - D1: the thread waits only in one place, for all sockets and times together.
//! - D2: a batch counts in the lane of the server that it was last sent to, so that a
//!   server without answers stops its own lane alone.
//! - D3: a request is sent only while all of its operations wait for it (core::session::S2).

use super::inbox::{Inbox, Load};
use super::lanes::{Class, Lane, Lanes, Peer};
use super::link::{BELL, Flight, Poller, credentials};
use super::pending::Call;
use crate::certificates::Certificates;
use crate::core::{AsWork, Batch, CoordinatorRequest, Core, Next, Route, Send};
use crate::error::Error;
use crate::net::{Failure, Unopened};
use crate::options::Options;
use duramen_base::ids::MapVersion;
use duramen_wire::native::codec::{
    CLIENT_FRAME_BYTES_MAX, Envelope, Frame, PEER_FRAME_BYTES_MAX, Parsed, Reply, decode_reply,
    encode_to_coordinator, parse_frame,
};
use rustix::event::epoll::{Event, EventFlags};
use std::collections::{BTreeSet, HashMap};
use std::net::{SocketAddr, ToSocketAddrs as _};
use std::sync::Arc;

/// Events that are taken at once.
const EVENTS_MAX: usize = 64;

/// Operations that were given to the core together.
struct Running {
    batch: Batch<Call>,
    class: Class,
    lane: usize,
    /// The time of its entry in the timers.
    wakes_us: u64,
}

pub(super) struct Driver {
    inbox: Arc<Inbox>,
    options: Options,
    certificates: Option<Certificates>,
    poller: Poller,
    core: Core,
    lanes: Lanes,
    /// The address of operations whose tablets no server has.
    nowhere: Arc<str>,
    running: HashMap<u64, Running>,
    batches: u64,
    /// The times at which batches are to be looked at again.
    timers: BTreeSet<(u64, u64)>,
    /// Batches to be looked at now.
    ready: Vec<u64>,
    /// Lanes whose connection could not be opened.
    broken: Vec<(usize, Unopened)>,
    /// Operations that have ended since their room was last given back to the inbox.
    ended: Load,
    /// The map by which the operations in the queues were assigned.
    map: MapVersion,
}

impl Driver {
    pub fn new(
        options: Options,
        certificates: Option<Certificates>,
        inbox: Arc<Inbox>,
        seed: u64,
    ) -> std::io::Result<Driver> {
        let ask_timeout_us = options.attempt.as_micros() as u64;
        let coordinators = options.coordinators.clone();
        let core = Core::new(coordinators, options.exactly_once, ask_timeout_us, seed);
        Ok(Driver {
            poller: Poller::new(inbox.bell())?,
            core: core.with_session_per_server(),
            inbox,
            options,
            certificates,
            lanes: Lanes::default(),
            nowhere: Arc::from(""),
            running: HashMap::new(),
            batches: 0,
            timers: BTreeSet::new(),
            ready: Vec::new(),
            broken: Vec::new(),
            ended: Load::default(),
            map: MapVersion(0),
        })
    }

    /// Runs until the inbox is closed.
    pub fn run(mut self) {
        let mut events: Vec<Event> = Vec::with_capacity(EVENTS_MAX);
        loop {
            let news = self.inbox.take();
            if news.is_closed {
                return;
            }
            for (lane, addresses) in news.resolved {
                self.resolved(lane, addresses);
            }
            news.calls.into_iter().for_each(|call| self.assign(call));
            let now_us = self.inbox.now_us();
            self.expire(now_us);
            self.work(now_us);
            self.flush(now_us);
            let timeout_us = self.timeout_us(now_us);
            self.poller.wait(timeout_us, &mut events);
            self.handle(&events);
        }
    }

    /// Puts an operation into the lane of the server that owns its key by the map.
    fn assign(&mut self, call: Call) {
        let class = Class::of(&call);
        let address = match call.as_work().route(self.core.routes()) {
            Route::Owner { address, .. } => address,
            _ => self.nowhere.clone(),
        };
        let lane = self.lanes.to(Peer { address, class });
        self.lanes.all[lane].queue.push_back(call);
    }

    fn end(&mut self, mut call: Call, result: Error) {
        self.ended.calls += 1;
        self.ended.bytes += call.bytes();
        call.end(Err(result));
    }

    /// Ends operations and requests that have waited for too long, and finds the batches whose time
    /// has come.
    fn expire(&mut self, now_us: u64) {
        let deadline = self.options.deadline;
        let begun_before_us = now_us.checked_sub(deadline.as_micros() as u64);
        if let Some(begun_before_us) = begun_before_us {
            let trouble = self.core.coordinators().last_trouble();
            let last = trouble.unwrap_or("it waited for earlier operations");
            let error = Error::Deadline {
                deadline,
                last: last.to_owned(),
            };
            while let Some(mut call) = self.inbox.take_late(begun_before_us) {
                call.end(Err(error.clone()));
            }
            for lane in 0..self.lanes.all.len() {
                while let Some(call) = self.lanes.all[lane].take_late(begun_before_us) {
                    self.end(call, error.clone());
                }
            }
        }
        for lane in 0..self.lanes.all.len() {
            let expires_us = self.lanes.all[lane].link.expires_us();
            if expires_us.is_some_and(|expires_us| expires_us <= now_us) {
                let why = self.lanes.all[lane].link.too_late();
                self.break_lane(now_us, lane, &why);
            }
        }
        while let Some((wakes_us, batch)) = self.timers.first().copied() {
            if wakes_us > now_us {
                break;
            }
            self.timers.pop_first();
            self.ready.push(batch);
        }
    }

    /// Gives operations to the core and takes the core's next steps, until there are none.
    fn work(&mut self, now_us: u64) {
        loop {
            self.start(now_us);
            if self.ready.is_empty() && self.broken.is_empty() {
                return;
            }
            let mut ready = std::mem::take(&mut self.ready);
            ready.sort_unstable();
            ready.dedup();
            for batch in ready {
                self.step(now_us, batch);
            }
            for (lane, why) in std::mem::take(&mut self.broken) {
                self.break_lane(now_us, lane, &why);
            }
        }
    }

    /// Makes batches of the operations in the lanes that have room for one.
    fn start(&mut self, now_us: u64) {
        for lane in 0..self.lanes.all.len() {
            loop {
                let mut calls = self.lanes.all[lane].next_batch();
                let Some(first) = calls.first() else {
                    break;
                };
                let class = Class::of(first);
                calls.iter_mut().for_each(|call| call.is_started = true);
                let calls = calls.into_iter().map(|call| (call.begun_us, call));
                self.batches += 1;
                let running = Running {
                    batch: Batch::of_begun(now_us, self.options.deadline, calls),
                    class,
                    lane,
                    wakes_us: 0,
                };
                self.lanes.all[lane].batches += 1;
                self.running.insert(self.batches, running);
                self.ready.push(self.batches);
            }
        }
    }

    /// Does the next steps of a batch.
    fn step(&mut self, now_us: u64, id: u64) {
        let Some(mut running) = self.running.remove(&id) else {
            return;
        };
        self.timers.remove(&(running.wakes_us, id));
        let is_done = loop {
            match self.core.next(now_us, &mut running.batch) {
                Next::Send(sends) => {
                    for send in sends {
                        self.send(now_us, id, &mut running, send);
                    }
                }
                Next::Ask(ask) => self.ask(now_us, ask),
                Next::Wait { until_us } => {
                    running.wakes_us = until_us.max(now_us + 1);
                    break false;
                }
                Next::Done => break true,
            }
        };
        for (call, result) in running.batch.take_results() {
            self.ended.calls += 1;
            self.ended.bytes += call.bytes();
            call.end(result);
        }
        if is_done {
            self.lanes.all[running.lane].batches -= 1;
        } else {
            self.timers.insert((running.wakes_us, id));
            self.running.insert(id, running);
        }
    }

    fn send(&mut self, now_us: u64, id: u64, running: &mut Running, send: Send) {
        let lane = self.lanes.to(Peer {
            address: send.address.clone(),
            class: running.class,
        });
        // D2: the batch moves from its former lane to the lane of this server.
        self.lanes.all[running.lane].batches -= 1;
        self.lanes.all[lane].batches += 1;
        running.lane = lane;
        let expires_us = now_us + self.options.attempt.as_micros() as u64;
        let link = &mut self.lanes.all[lane].link;
        link.add(Flight::Request { batch: id, send }, expires_us);
        if link.is_open() {
            link.encode(|request, flight, out| {
                if let Flight::Request { send, .. } = flight {
                    running.batch.encode(send, request, out);
                }
                true
            });
        } else if link.is_closed() {
            self.open(lane);
        }
    }

    fn ask(&mut self, now_us: u64, ask: CoordinatorRequest) {
        let lane = self.lanes.to(Peer {
            address: ask.address.clone(),
            class: Class::Coordinator,
        });
        let expires_us = now_us + self.options.attempt.as_micros() as u64;
        let link = &mut self.lanes.all[lane].link;
        link.add(Flight::Question(ask), expires_us);
        if link.is_open() {
            self.encode(now_us, lane);
        } else if link.is_closed() {
            self.open(lane);
        }
    }

    /// Encodes the requests that waited for the connection.
    fn encode(&mut self, now_us: u64, lane: usize) {
        let running = &self.running;
        let link = &mut self.lanes.all[lane].link;
        let dropped = link.encode(|request, flight, out| match flight {
            Flight::Request { batch, send } => {
                let Some(running) = running.get(batch) else {
                    return false;
                };
                let is_awaited = running.batch.is_awaited(send); // D3
                if is_awaited {
                    running.batch.encode(send, request, out);
                }
                is_awaited
            }
            Flight::Question(ask) => {
                let envelope = Envelope {
                    request,
                    ..Envelope::default()
                };
                encode_to_coordinator(out, &envelope, &ask.question);
                true
            }
        });
        let why = "some operations of the request have ended"
            .to_owned()
            .into();
        for flight in dropped {
            self.failed(now_us, flight, &why);
        }
    }

    fn open(&mut self, lane: usize) {
        let address = self.lanes.all[lane].peer.address.to_string();
        if let Ok(address) = address.parse::<SocketAddr>() {
            return self.connect(lane, vec![address]);
        }
        self.lanes.all[lane].link.resolving();
        // A lookup may take seconds, so it runs on a thread of its own (D1).
        let inbox = self.inbox.clone();
        let look_up = move || {
            let found = address.to_socket_addrs();
            let found = found.map(|found| found.collect::<Vec<_>>());
            let found = found.map_err(|error| format!("`{address}`: {error}"));
            inbox.resolved((lane, found));
        };
        let thread = std::thread::Builder::new().name("duramen-resolver".to_owned());
        if let Err(error) = thread.spawn(look_up) {
            let why = format!("no thread for looking up a name: {error}");
            self.broken.push((lane, why.into()));
        }
    }

    fn resolved(&mut self, lane: usize, addresses: Result<Vec<SocketAddr>, String>) {
        // Its requests may have failed meanwhile.
        if !self.lanes.all[lane].link.is_resolving() {
            return;
        }
        match addresses {
            Ok(mut addresses) => {
                addresses.reverse();
                self.connect(lane, addresses);
            }
            Err(why) => self.broken.push((lane, why.into())),
        }
    }

    fn connect(&mut self, lane: usize, addresses: Vec<SocketAddr>) {
        let link = &mut self.lanes.all[lane].link;
        if let Err(why) = link.connect(addresses, &self.poller, lane) {
            self.broken.push((lane, why));
        }
    }

    /// Closes a lane's connection; its requests fail.
    fn break_lane(&mut self, now_us: u64, lane: usize, why: &Unopened) {
        for flight in self.lanes.all[lane].link.close() {
            self.failed(now_us, flight, why);
        }
    }

    fn failed(&mut self, now_us: u64, flight: Flight, why: &Unopened) {
        let (Unopened::Failed(text)
        | Unopened::Foreign(text)
        | Unopened::Denied(text)
        | Unopened::Unanswered(text)) = why;
        match flight {
            Flight::Request { batch, send } => {
                if let Some(running) = self.running.get_mut(&batch) {
                    let running = &mut running.batch;
                    match why {
                        Unopened::Denied(_) => self.core.denied(now_us, running, &send, text),
                        Unopened::Unanswered(_) => {
                            self.core.login_unanswered(now_us, running, &send, text);
                        }
                        _ => self.core.failed(now_us, running, &send, text),
                    }
                    self.ready.push(batch);
                }
            }
            Flight::Question(ask) => {
                let error = || Error::Refused(format!("{}: {text}", ask.address));
                match why {
                    Unopened::Failed(_) | Unopened::Unanswered(_) => {
                        self.core.coordinator_failed(now_us, &ask, text);
                    }
                    Unopened::Foreign(_) => self.core.refuse(error()),
                    Unopened::Denied(_) => self.core.deny_question(now_us, &ask, error()),
                }
                self.ready_all();
            }
        }
    }

    fn ready_all(&mut self) {
        self.ready.extend(self.running.keys());
    }

    fn flush(&mut self, now_us: u64) {
        for lane in 0..self.lanes.all.len() {
            let link = &mut self.lanes.all[lane].link;
            if let Err(why) = link.flush(&self.poller, lane) {
                self.break_lane(now_us, lane, &why);
            }
        }
    }

    /// Microseconds until there is something to do without an event; `None` if nothing is due.
    fn timeout_us(&mut self, now_us: u64) -> Option<u64> {
        self.inbox.release(std::mem::take(&mut self.ended));
        let sleep = self.inbox.may_sleep();
        let Some(sleep) = sleep.filter(|_| self.ready.is_empty() && self.broken.is_empty()) else {
            return Some(0);
        };
        let deadline_us = self.options.deadline.as_micros() as u64;
        let deadline = |begun_us: u64| begun_us.saturating_add(deadline_us);
        let timer = self.timers.first().map(|(wakes_us, _)| *wakes_us);
        let lanes = self.lanes.all.iter().flat_map(|lane| {
            let queued = lane.queue.front().map(|call| deadline(call.begun_us));
            queued.into_iter().chain(lane.link.expires_us())
        });
        let waiting = sleep.waiting_since_us.map(deadline);
        let first = lanes.chain(timer).chain(waiting).min();
        first.map(|at_us| at_us.saturating_sub(now_us))
    }

    fn handle(&mut self, events: &[Event]) {
        let now_us = self.inbox.now_us();
        for event in events {
            let (token, flags) = (event.data.u64(), event.flags);
            if token == BELL {
                // The read finds nothing if it was not the bell after all.
                let _ = rustix::io::read(self.inbox.bell(), &mut [0; 8]);
                continue;
            }
            let lane = token as usize;
            if let Err(why) = self.progress(now_us, lane, flags) {
                self.break_lane(now_us, lane, &why);
            }
        }
        if self.core.routes().version() != self.map {
            self.map = self.core.routes().version();
            let calls = self.lanes.take_queues();
            calls.into_iter().for_each(|call| self.assign(call));
        }
    }

    /// Handles the events of a lane's connection.
    fn progress(&mut self, now_us: u64, lane: usize, flags: EventFlags) -> Result<(), Unopened> {
        let Lane { link, peer, .. } = &mut self.lanes.all[lane];
        let ended = EventFlags::HUP | EventFlags::ERR;
        if flags.intersects(EventFlags::OUT | ended) {
            let address = &peer.address;
            link.connected(&self.poller, lane, self.certificates.as_ref(), address)?;
        }
        if !flags.intersects(EventFlags::IN | ended) {
            return Ok(());
        }
        link.receive()?;
        let ours = credentials(&self.options.cluster, &self.options.token);
        let was_open = link.is_open();
        link.shake(ours, self.options.login.as_ref())?;
        if !link.is_open() {
            return Ok(());
        }
        if !was_open {
            self.encode(now_us, lane);
        }
        let input = self.lanes.all[lane].link.take_input();
        let limit = match self.lanes.all[lane].peer.class {
            Class::Coordinator => PEER_FRAME_BYTES_MAX,
            _ => CLIENT_FRAME_BYTES_MAX,
        };
        let mut used = 0;
        while let Parsed::Frame { frame, bytes } =
            parse_frame(&input[used..], limit).map_err(|error| error.to_string())?
        {
            self.answered(now_us, lane, &frame)?;
            used += bytes;
        }
        self.lanes.all[lane].link.keep(input, used);
        Ok(())
    }

    /// Handles an answer.
    fn answered(&mut self, now_us: u64, lane: usize, frame: &Frame<'_>) -> Result<(), Unopened> {
        let reply = decode_reply(frame).map_err(|error| error.to_string())?;
        let Lane { link, peer, .. } = &mut self.lanes.all[lane];
        let Some(flight) = link.answered(frame.header.envelope.request) else {
            // An error to request 0 is an error to the handshake.
            return Err(match reply {
                Reply::Trouble(trouble) => match Failure::of(&peer.address, &trouble) {
                    Failure::Never(error) | Failure::Denied(error) | Failure::Login(error) => {
                        Unopened::Foreign(error.to_string())
                    }
                    _ => Unopened::Failed(trouble.to_string()),
                },
                _ => Unopened::Failed("an answer to another request".to_owned()),
            });
        };
        match flight {
            Flight::Request { batch, send } => {
                if let Some(running) = self.running.get_mut(&batch) {
                    self.core.answered(now_us, &mut running.batch, &send, reply);
                    self.ready.push(batch);
                }
            }
            Flight::Question(ask) => {
                match reply {
                    Reply::Coordinator(answer) => {
                        self.core.coordinator_answered(now_us, &ask, answer);
                    }
                    Reply::Trouble(trouble) => match Failure::of(&ask.address, &trouble) {
                        Failure::Never(error) => self.core.refuse(error),
                        Failure::Login(error) | Failure::Denied(error) => {
                            self.core.deny_question(now_us, &ask, error);
                        }
                        Failure::NotSent(why) | Failure::Again(why) => {
                            self.core.coordinator_failed(now_us, &ask, &why);
                        }
                    },
                    _ => {
                        let why = "an answer that does not fit";
                        self.core.coordinator_failed(now_us, &ask, why);
                    }
                }
                self.ready_all();
            }
        }
        Ok(())
    }
}
