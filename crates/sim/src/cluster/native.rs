//! Native clients: the decisions of the `client` crate, and the servant of the node, over frames of
//! the native protocol.
//!
//! An operation that is acknowledged to such a client was executed once, however often its frames
//! arrived.

use super::client::{key_of, read_value, value_of};
use super::coverage::Class;
use super::history::{Action, Event as Deed, Found, UNKNOWN};
use super::machine::wall_ms;
use super::net::{Mode, Place};
use super::world::{Asker, Event, World};
use duramen::internals::Position;
use duramen_base::ids::{ServerId, TableId};
use duramen_client::core::{Batch, CoordinatorRequest, Core, Next, Send, Settled, Work};
use duramen_client::{Error, Outcome};
use duramen_cluster::coordinator::{Input, ReplyId};
use duramen_node::ClientRequest;
use duramen_wire::native::codec::{
    CLIENT_FRAME_BYTES_MAX, Frame, Parsed, Question, Reply, decode_question, decode_reply,
    parse_frame,
};
use duramen_wire::native::message::{
    Amount, Answer, Condition, CoordinatorAnswer, Expiry, Operation, Outcome as WireOutcome,
    Problem, Single,
};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::Duration;

/// Timeout of one request.
const PATIENCE_US: u64 = 500_000;
/// Deadline of a call.
const DEADLINE: Duration = Duration::from_secs(8);
/// Most operations of a call.
const PARTS_MAX: u64 = 3;

/// A frame between a client and a server.
#[derive(Clone, Debug)]
pub(super) struct Letter {
    pub client: usize,
    /// Number of this sending.
    pub number: u64,
    pub bytes: Vec<u8>,
}

/// A reply that waits for its position or for a lease.
pub(super) struct HeldLetter {
    letter: Letter,
    position: Position,
    keys: Vec<u64>,
    /// The time when the data it needed from flash has been read.
    from_us: u64,
}

/// One operation of a call.
#[derive(Clone, Copy, Debug)]
struct Part {
    key: u64,
    action: Action,
    /// The version that was known when it began.
    before: u64,
}

/// A native client; see the module.
pub(super) struct Native {
    core: Core,
    call: Option<(Batch<Work<'static>>, Vec<Part>, u64)>,
    /// Requests that are not answered yet.
    sent: BTreeMap<u64, Send>,
    asked: BTreeMap<u64, CoordinatorRequest>,
    /// Sendings of this call that a server has executed or refused, and whether a server did so
    /// twice with one of them.
    served: BTreeSet<u64>,
    was_repeated: bool,
    /// Number of its current timer: older timers have no effect.
    pub turn: u64,
}

impl Native {
    pub fn new(coordinators: usize, seed: u64) -> Native {
        let addresses = (0..coordinators)
            .map(super::sim_coordinator::address)
            .collect();
        Native {
            core: Core::new(addresses, true, PATIENCE_US, seed),
            call: None,
            sent: BTreeMap::new(),
            asked: BTreeMap::new(),
            served: BTreeSet::new(),
            was_repeated: false,
            turn: 0,
        }
    }

    pub fn is_idle(&self) -> bool {
        self.call.is_none()
    }
}

/// Bytes with the lifetime of the program, since batches borrow theirs. All runs share the same
/// few.
fn forever(bytes: Vec<u8>) -> &'static [u8] {
    static ALL: OnceLock<Mutex<HashMap<Vec<u8>, &'static [u8]>>> = OnceLock::new();
    let all = ALL.get_or_init(Mutex::default);
    let mut all = all.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(known) = all.get(&bytes) {
        return known;
    }
    let leaked: &'static [u8] = Box::leak(bytes.clone().into_boxed_slice());
    all.insert(bytes, leaked);
    leaked
}

fn work_of(table: TableId, part: &Part, (most_bytes, large_one_in): (u64, u64)) -> Work<'static> {
    let write = |value: u64, condition, expiry| {
        let bytes = 8 + value.wrapping_mul(0x9e37_79b9)
            % if value.is_multiple_of(large_one_in) {
                most_bytes
            } else {
                90
            };
        Operation::Write {
            value: forever(value_of(value, bytes as usize)),
            condition,
            expiry,
        }
    };
    let operation = match part.action {
        Action::Read => Operation::Read,
        Action::Write(value) => write(value, Condition::Always, Expiry::Never),
        Action::Fleeting { value, expires_us } => {
            write(value, Condition::Always, Expiry::At(wall_ms(expires_us)))
        }
        Action::Create(value) => write(value, Condition::Absent, Expiry::Never),
        Action::Remove => Operation::Remove {
            condition: Condition::Always,
        },
        Action::Increment => Operation::Increment {
            by: Amount::Integer(1),
        },
    };
    Work::Operation(Single {
        table,
        key: forever(key_of(part.key)),
        operation,
        level: None,
        rpc: None,
    })
}

impl World {
    /// Begins a call, or continues the current one.
    pub(super) fn native_acts(&mut self, c: usize) {
        if self.clients[c].is_off {
            return;
        }
        let idle = self.clients[c].native.as_ref().is_some_and(Native::is_idle);
        if idle {
            if self.is_over() {
                return;
            }
            let count = match self.random.below(4) {
                0 => 1 + self.random.below(PARTS_MAX),
                _ => 1,
            };
            let mut parts: Vec<Part> = Vec::new();
            for _ in 0..count {
                let key = self.some_key();
                if parts.iter().all(|part| part.key != key) {
                    let action = self.some_action(key, true);
                    let before = self.known_version(key);
                    parts.push(Part {
                        key,
                        action,
                        before,
                    });
                }
            }
            for part in &parts {
                self.doubt(part.key, part.action);
            }
            let sizes = (self.plan.value_bytes, self.plan.large_one_in);
            let tables = &self.tables;
            let works = parts
                .iter()
                .map(|part| work_of(tables.table_of(part.key), part, sizes));
            let batch = Batch::new(self.now_us, DEADLINE, works.collect::<Vec<_>>());
            let native = self.clients[c].native.as_mut().expect("a native client");
            native.call = Some((batch, parts, self.now_us));
            native.served.clear();
            native.was_repeated = false;
        }
        self.native_goes_on(c);
    }

    fn native_goes_on(&mut self, c: usize) {
        let now_us = self.now_us;
        let native = self.clients[c].native.as_mut().expect("a native client");
        if !native.sent.is_empty() || !native.asked.is_empty() {
            return; // it waits for answers
        }
        let Some((batch, ..)) = &mut native.call else {
            return;
        };
        match native.core.next(now_us, batch) {
            Next::Send(sends) => {
                for send in sends {
                    self.native_sends(c, send);
                }
            }
            Next::Ask(ask) => self.native_asks(c, ask),
            Next::Wait { until_us } => {
                native.turn += 1;
                let turn = native.turn;
                self.at(until_us.max(now_us + 100), Event::ClientActs(c, turn));
            }
            Next::Done => self.native_ends(c),
        }
    }

    fn native_sends(&mut self, c: usize, send: Send) {
        let number = self.number();
        let native = self.clients[c].native.as_mut().expect("a native client");
        let (batch, ..) = native.call.as_ref().expect("it has a call");
        let mut bytes = Vec::new();
        batch.encode(&send, number, &mut bytes);
        let server: usize = send.address.parse().expect("servers have numbers");
        native.sent.insert(number, send);
        let letter = Letter {
            client: c,
            number,
            bytes,
        };
        let way = (Place::Client(c), Place::Server(server));
        let event = Event::Letter(server, Box::new(letter));
        self.send(way, Mode::Free, event, Some(Event::ClientTires(c, number)));
        self.after(PATIENCE_US, Event::ClientTires(c, number));
    }

    fn native_asks(&mut self, c: usize, ask: CoordinatorRequest) {
        let number = self.number();
        let place =
            super::sim_coordinator::place_of(&ask.address).expect("coordinators have numbers");
        self.askers.insert(number, Asker::Client(c));
        let asked = Input::Request {
            reply: ReplyId(number),
            sender: ServerId::NONE,
            question: ask.question.clone(),
        };
        let native = self.clients[c].native.as_mut().expect("a native client");
        native.asked.insert(number, ask);
        let way = (Place::Client(c), Place::Coordinator(place));
        let event = Event::ToCoordinator(place, Box::new(asked));
        self.send(way, Mode::Once, event, Some(Event::ClientTires(c, number)));
        self.after(PATIENCE_US, Event::ClientTires(c, number));
    }

    /// A request timed out, or its connection broke.
    pub(super) fn native_tires(&mut self, c: usize, number: u64) {
        let now_us = self.now_us;
        let native = self.clients[c].native.as_mut().expect("a native client");
        if let Some(send) = native.sent.remove(&number) {
            if let Some((batch, ..)) = &mut native.call {
                native.core.failed(now_us, batch, &send, "no answer");
            }
        } else if let Some(ask) = native.asked.remove(&number) {
            native.core.coordinator_failed(now_us, &ask, "no answer");
        } else {
            return;
        }
        if !self.clients[c].is_off {
            self.native_goes_on(c);
        }
    }

    pub(super) fn coordinator_answers_client(
        &mut self,
        c: usize,
        number: u64,
        answer: CoordinatorAnswer,
    ) {
        let now_us = self.now_us;
        let Some(native) = self.clients[c].native.as_mut() else {
            return;
        };
        let Some(ask) = native.asked.remove(&number) else {
            return;
        };
        if matches!(
            answer,
            CoordinatorAnswer::Refused(duramen_wire::native::message::Refusal::Invalid(_))
        ) {
            self.coverage.fired(Class::LeaseEnd);
        }
        native.core.coordinator_answered(now_us, &ask, answer);
        if !self.clients[c].is_off {
            self.native_goes_on(c);
        }
    }

    pub(super) fn letter_for_client(&mut self, letter: &Letter) {
        let c = letter.client;
        let now_us = self.now_us;
        let Some(native) = self.clients[c].native.as_mut() else {
            return;
        };
        let Some(send) = native.sent.remove(&letter.number) else {
            return;
        };
        let reply = frame_of(&letter.bytes).map(|frame| decode_reply(&frame));
        let Some(Ok(reply)) = reply else {
            return self.violated("a server answers what is no reply".to_owned());
        };
        if let Reply::Client(Answer::Single(WireOutcome::Problem(Problem::LeaseExpired))) = reply {
            self.coverage.fired(Class::LeaseEnd);
        }
        if let Some((batch, ..)) = &mut native.call {
            native.core.answered(now_us, batch, &send, reply);
        }
        if !self.clients[c].is_off {
            self.native_goes_on(c);
        }
    }

    /// All results of the call have arrived.
    fn native_ends(&mut self, c: usize) {
        let client = &mut self.clients[c];
        let native = client.native.as_mut().expect("a native client");
        let (batch, parts, from_us) = native.call.take().expect("it has a call");
        let was_repeated = native.was_repeated;
        let results: Vec<_> = batch.into_results().collect();
        for (part, result) in parts.into_iter().zip(results) {
            let found = match result {
                Ok(Settled::Outcome(outcome)) => self.found(part.key, outcome),
                Ok(Settled::Objects(_) | Settled::Table(_)) => None,
                Err(Error::OutcomeUnknown { .. }) => Some(Found::Nothing),
                // An answer from the time when the table existed may have been lost.
                Err(Error::NoSuchTable(_)) if self.may_be_denied(part.key) => Some(Found::Nothing),
                // "Not done" refers to sendings that arrive once, as on a connection. The network
                // repeated a frame, and the reply "later, it is being executed" was about the copy:
                // whether the first one was done is not known.
                Err(Error::Deadline { .. }) if was_repeated => Some(Found::Nothing),
                Err(Error::Deadline { .. } | Error::Full(_)) => None, // it was not done
                Err(Error::Refused(_) | Error::RefusedAgain(_))
                    if self.coverage.count(Class::FlashError) > 0 =>
                {
                    Some(Found::Nothing)
                }
                Err(error) => {
                    self.violated(format!("a client is told: {error}"));
                    None
                }
            };
            if let Some(found) = found {
                self.note(c, part, found, from_us);
            }
        }
        let delay_us = self.random.below(self.plan.think_us);
        let native = self.clients[c].native.as_mut().expect("a native client");
        native.turn += 1;
        let turn = native.turn;
        self.after(delay_us, Event::ClientActs(c, turn));
    }

    /// Whether a client may be answered that the table of a key does not exist. A leader that slept
    /// for longer than its lease answers here with its old state; a real one checks its lease
    /// first.
    fn may_be_denied(&self, key: u64) -> bool {
        let slept = self.coverage.count(Class::CoordinatorPause) > 0;
        self.tables.is_gone(key) || slept && self.plan.churns
    }

    fn note(&mut self, c: usize, part: Part, found: Found, from_us: u64) {
        let to_us = match found {
            Found::Nothing => UNKNOWN,
            _ => self.now_us,
        };
        self.know(part.key, part.action, found, part.before);
        let client = &mut self.clients[c];
        self.history.events.push(Deed {
            client: client.name,
            key: part.key,
            action: part.action,
            found,
            from_us,
            to_us,
        });
        if found == Found::Nothing {
            client.name += 1_000;
        }
    }

    fn found(&mut self, key: u64, outcome: Outcome) -> Option<Found> {
        let is_counter = self.is_counter(key);
        Some(match outcome {
            Outcome::Value(object) => {
                let version = object.version;
                let Some(value) = read_value(&object.value, is_counter) else {
                    self.violated(format!("key {key} holds something else"));
                    return None;
                };
                Found::Value { value, version }
            }
            Outcome::Absent => Found::Absent,
            Outcome::Written { version: 0 } => Found::Absent, // it had expired when it came
            Outcome::Written { version } => Found::Written { version },
            Outcome::Removed { version } => Found::Removed { version },
            Outcome::Number {
                value: Amount::Integer(value),
                version,
            } => Found::Value {
                value: value as u64,
                version,
            },
            Outcome::ConditionFailed { current } => Found::Refused { current },
            Outcome::Number { .. } => {
                self.violated(format!("key {key} is no integer"));
                return None;
            }
        })
    }

    /// The client dies in the middle of its call; another one takes its place.
    pub(super) fn native_crashes(&mut self, c: usize) -> bool {
        let coordinators = self.coordinators.len();
        let seed = self.random.next_u64();
        let native = self.clients[c].native.as_mut().expect("a native client");
        let turn = native.turn + 1;
        let call = native.call.take();
        *native = Native::new(coordinators, seed);
        native.turn = turn;
        let was_busy = call.is_some();
        if let Some((_, parts, from_us)) = call {
            for part in parts {
                self.note(c, part, Found::Nothing, from_us);
            }
        }
        self.after(10_000, Event::ClientActs(c, turn));
        was_busy
    }

    // --- at the server

    pub(super) fn letter_for_server(&mut self, n: usize, letter: Letter) {
        let machine = &self.machines[n];
        if !machine.is_powered {
            return;
        }
        let has_servant = machine
            .process
            .as_ref()
            .is_some_and(|p| p.servant.is_some());
        if !has_servant {
            // The server refuses the connection.
            return self.after(200, Event::ClientTires(letter.client, letter.number));
        }
        if self.is_deaf(n, || Event::Letter(n, Box::new(letter.clone()))) {
            return;
        }
        if self.waits_for_memory(n, || Event::Letter(n, Box::new(letter.clone()))) {
            return;
        }
        self.serve(n, letter);
        self.let_work(n);
    }

    fn serve(&mut self, n: usize, letter: Letter) {
        if let Some(native) = self.clients[letter.client].native.as_mut() {
            native.was_repeated |= !native.served.insert(letter.number);
        }
        let now_us = self.machines[n].clock(self.now_us);
        let question = frame_of(&letter.bytes).map(|frame| (frame.header, decode_question(&frame)));
        let Some((header, Ok(Question::Client(request)))) = question else {
            return self.violated("a client sends what is no request".to_owned());
        };
        let keys = self.keys_of(&request);
        self.flash_took_us(n);
        self.set_wall(n);
        let process = self.machines[n].process.as_mut().expect("it runs");
        let store = process.store.clone().expect("it is a member");
        let servant = process.servant.as_mut().expect("it is a member");
        let mut session = store.engine().session().expect("few sessions");
        let mut guard = session.pin();
        let mut bytes = Vec::new();
        let asked = ClientRequest {
            envelope: header.envelope,
            request,
            hint: None,
        };
        servant.serve(
            &mut guard,
            &mut process.view.clone(),
            now_us,
            &asked,
            &mut bytes,
        );
        let position = servant.take_wait();
        drop(guard);
        let from_us = self.now_us + self.flash_took_us(n);
        let process = self.machines[n].process.as_mut().expect("it runs");
        process.held_letters.push(HeldLetter {
            letter: Letter { bytes, ..letter },
            position,
            keys,
            from_us,
        });
    }

    fn keys_of(&self, request: &duramen_wire::native::message::Request<'_>) -> Vec<u64> {
        let duramen_wire::native::message::Request::Single(single) = request else {
            return Vec::new();
        };
        let text = std::str::from_utf8(single.key).unwrap_or_default();
        let number = text.strip_prefix("key ").and_then(|n| n.parse().ok());
        let key = number.and_then(|number| self.tables.key_in(single.table, number));
        key.into_iter().collect()
    }

    /// As [`let_replies_go`](Self::let_replies_go), for native clients.
    pub(super) fn let_letters_go(&mut self, n: usize) {
        let true_us = self.now_us;
        let now_us = self.machines[n].clock(true_us);
        let Some(process) = self.machines[n].process.as_mut() else {
            return;
        };
        let log = process.store.as_ref().and_then(|store| store.log());
        let (Some(log), Some(servant)) = (log, process.servant.as_mut()) else {
            return;
        };
        servant.settle(|position| log.reached(position));
        if process.held_letters.is_empty() || !process.node.read_until().may_read(now_us) {
            return;
        }
        let held = std::mem::take(&mut process.held_letters);
        let is_ready = |held: &HeldLetter| {
            held.from_us <= true_us && log.reached(&held.position) >= held.position.level()
        };
        let (ready, waiting): (Vec<HeldLetter>, Vec<HeldLetter>) =
            held.into_iter().partition(is_ready);
        process.held_letters = waiting;
        let me = process.node.member().id();
        for held in ready {
            if has_an_outcome(&held.letter.bytes) {
                for key in held.keys {
                    self.check_alone(n, me, key);
                }
            }
            let way = (Place::Server(n), Place::Client(held.letter.client));
            let event = Event::Answered(Box::new(held.letter));
            self.send(way, Mode::Once, event, None);
        }
    }
}

fn frame_of(bytes: &[u8]) -> Option<Frame<'_>> {
    match parse_frame(bytes, CLIENT_FRAME_BYTES_MAX) {
        Ok(Parsed::Frame { frame, .. }) => Some(frame),
        _ => None,
    }
}

/// Whether the reply contains the outcome for a key, rather than a problem.
fn has_an_outcome(bytes: &[u8]) -> bool {
    let reply = frame_of(bytes).map(|frame| {
        decode_reply(&frame).map(|reply| match reply {
            Reply::Client(Answer::Single(outcome)) => !matches!(outcome, WireOutcome::Problem(_)),
            _ => false,
        })
    });
    matches!(reply, Some(Ok(true)))
}
