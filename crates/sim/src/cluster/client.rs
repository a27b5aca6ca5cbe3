//! Clients that follow redirections, as RESP clients do. Each operation is sent again until its
//! outcome is known, or until no server answers. Then its outcome is unknown, and the client
//! continues under another name.

use super::history::{Action, Event as Deed, Found, UNKNOWN};
use super::machine::{Process, wall_ms};
use super::native::Native;
use super::net::{Mode, Place};
use super::tables::number_of;
use super::twins::{self, is_twin};
use super::world::{Event, World};
use duramen::internals::Position;
use duramen_base::ids::{Level, ServerId, TableId};
use duramen_engine::{Error, Guard};
use duramen_format::hash::KeyHasher;
use duramen_node::Route;
use std::collections::{BTreeMap, VecDeque};

/// The table that always exists.
pub(super) const TABLE: TableId = TableId(1);
/// Timeout of one request.
const PATIENCE_US: u64 = 600_000;
/// The client number of the operator that empties tables.
const EMPTIER: usize = usize::MAX;
/// Pause before a retry.
const PAUSE_US: u64 = 10_000;

/// A request.
#[derive(Clone, Debug)]
pub(super) struct Request {
    pub client: usize,
    pub sequence: u64,
    pub key: u64,
    pub action: Action,
    pub value_bytes: usize,
}

/// A reply.
#[derive(Clone, Debug)]
pub(super) struct Reply {
    pub sequence: u64,
    pub answer: Answer,
}

#[derive(Clone, Debug)]
pub(super) enum Answer {
    Done(Found),
    /// Nothing was done; this server may own the key.
    Moved(usize),
    /// Nothing was done; retry later.
    Again,
}

/// A reply that waits until its position is durable, and for the server's lease.
pub(super) struct HeldReply {
    request: Request,
    position: Position,
    found: Found,
    /// The time when the data it needed from flash has been read.
    from_us: u64,
}

/// The current operation of a client.
#[derive(Clone, Debug)]
struct Errand {
    key: u64,
    action: Action,
    value_bytes: usize,
    from_us: u64,
    sequence: u64,
    /// The version that was known when it began.
    before: u64,
}

/// A client; see the module.
pub(super) struct Client {
    /// Its name in the history. Changes when an outcome stays unknown.
    pub name: u64,
    errand: Option<Errand>,
    /// The server where each key was found last.
    known: BTreeMap<u64, usize>,
    pub is_off: bool,
    /// Set for a client of the native protocol.
    pub native: Option<Native>,
    /// Its operations at the end of the run, in order: each is repeated until it is known to be
    /// done.
    last: VecDeque<(u64, Last)>,
}

/// An operation on a key at the end of the run.
#[derive(Clone, Copy, Debug)]
enum Last {
    Read,
    /// A write, or an increment of a counter.
    Write,
    Remove,
}

impl Client {
    pub fn new(n: usize, native: Option<Native>) -> Client {
        Client {
            native,
            name: n as u64,
            errand: None,
            known: BTreeMap::new(),
            is_off: false,
            last: VecDeque::new(),
        }
    }

    /// Whether it has no more work.
    pub fn is_done(&self) -> bool {
        let idle = self.native.as_ref().is_none_or(Native::is_idle);
        self.errand.is_none() && self.last.is_empty() && idle
    }
}

/// The bytes of a key.
pub(super) fn key_of(key: u64) -> Vec<u8> {
    format!("key {}", number_of(key)).into_bytes()
}

pub(super) fn value_of(value: u64, bytes: usize) -> Vec<u8> {
    let mut all = vec![value as u8; bytes.max(8)];
    all[..8].copy_from_slice(&value.to_le_bytes());
    all
}

/// The number that a value represents.
pub(super) fn read_value(bytes: &[u8], is_counter: bool) -> Option<u64> {
    if is_counter {
        return std::str::from_utf8(bytes).ok()?.parse().ok();
    }
    let value = u64::from_le_bytes(bytes.get(..8)?.try_into().ok()?);
    let rest = bytes[8..].iter().all(|byte| *byte == value as u8);
    rest.then_some(value)
}

impl World {
    /// Gives a client's next request a new number; earlier requests have no effect any more.
    fn ask_anew(&mut self, c: usize) -> Option<Errand> {
        let sequence = self.number();
        let errand = self.clients[c].errand.as_mut()?;
        errand.sequence = sequence;
        Some(errand.clone())
    }

    pub(super) fn clients_begin(&mut self) {
        for c in 0..self.clients.len() {
            let delay_us = self.random.below(20_000);
            self.after(delay_us, Event::ClientActs(c, 0));
        }
    }

    /// Reads every key once more.
    pub(super) fn last_reads(&mut self) {
        let keys = self.present_keys().into_iter();
        self.ask_at_the_end(keys.map(|key| (key, Last::Read)).collect());
    }

    /// Writes, removes and writes again every key.
    pub(super) fn last_writes(&mut self) {
        let of = |key| {
            if self.is_counter(key) {
                vec![(key, Last::Write)]
            } else {
                vec![(key, Last::Write), (key, Last::Remove), (key, Last::Write)]
            }
        };
        let last = self.present_keys().into_iter().flat_map(of).collect();
        self.ask_at_the_end(last);
    }

    fn ask_at_the_end(&mut self, last: VecDeque<(u64, Last)>) {
        let client = &mut self.clients[0];
        client.is_off = false;
        client.native = None;
        client.last = last;
        self.after(0, Event::ClientActs(0, 0));
    }

    /// Begins an operation (`sequence` 0), or sends it again.
    pub(super) fn client_acts(&mut self, c: usize, sequence: u64) {
        let is_over = self.is_over();
        let client = &mut self.clients[c];
        if let Some(native) = &client.native {
            if native.turn == sequence {
                self.native_acts(c);
            }
            return;
        }
        match &client.errand {
            Some(errand) if errand.sequence == sequence => return self.ask(c),
            Some(_) => return,
            None if sequence != 0 || client.is_off => return,
            None if is_over && client.last.is_empty() => return, // a pause ended late
            None => {}
        }
        let (key, action) = match client.last.front().copied() {
            Some((key, Last::Read)) => (key, Action::Read),
            Some((key, Last::Remove)) => (key, Action::Remove),
            Some((key, Last::Write)) if self.is_counter(key) => (key, Action::Increment),
            Some((key, Last::Write)) => (key, Action::Write(self.new_value())),
            None if self.plan.twins > 0 && self.random.one_in(4) => self.some_twin_action(),
            None => {
                let key = self.some_key();
                (key, self.some_action(key, false))
            }
        };
        self.doubt(key, action);
        let value_bytes = match self.random.below(self.plan.large_one_in) {
            0 => 8 + self.random.below(self.plan.value_bytes),
            _ => 8 + self.random.below(100),
        };
        self.clients[c].errand = Some(Errand {
            key,
            action,
            value_bytes: value_bytes as usize,
            from_us: self.now_us,
            sequence: 0,
            before: self.known_version(key),
        });
        self.ask(c);
    }

    pub(super) fn some_action(&mut self, key: u64, may_create: bool) -> Action {
        let is_counter = self.is_counter(key);
        let choice = self.random.below(10);
        match choice {
            0..4 => Action::Read,
            _ if is_counter => Action::Increment,
            4 => Action::Remove,
            5 if may_create => Action::Create(self.new_value()),
            _ => {
                let value = self.new_value();
                if !self.plan.clocks || !self.random.one_in(3) {
                    return Action::Write(value);
                }
                let expires_us = self.now_us + 20_000 + self.random.below(800_000);
                self.expiring.insert(key);
                Action::Fleeting { value, expires_us }
            }
        }
    }

    pub(super) fn new_value(&mut self) -> u64 {
        self.last_value += 1;
        self.last_value
    }

    /// Whether clients begin nothing new.
    pub(super) fn is_over(&self) -> bool {
        self.now_us >= self.plan.load_us + self.began_us
    }

    fn ask(&mut self, c: usize) {
        let Some(errand) = self.ask_anew(c) else {
            return;
        };
        if self.tables.is_gone(errand.key) && self.random.one_in(4) {
            // Nothing was done so far, and no server will do it.
            self.gives_up(c);
            return;
        }
        let servers = self.machines.len() as u64;
        let known = self.clients[c].known.get(&errand.key).copied();
        let server = known.unwrap_or_else(|| self.random.below(servers) as usize);
        let request = Request {
            client: c,
            sequence: errand.sequence,
            key: errand.key,
            action: errand.action,
            value_bytes: errand.value_bytes,
        };
        let way = (Place::Client(c), Place::Server(server));
        let event = Event::Request(server, Box::new(request));
        self.send(way, Mode::Safe, event, None);
        self.after(PATIENCE_US, Event::ClientTires(c, errand.sequence));
    }

    /// A request timed out.
    pub(super) fn client_tires(&mut self, c: usize, sequence: u64) {
        if self.clients[c].native.is_some() {
            return self.native_tires(c, sequence);
        }
        let client = &mut self.clients[c];
        let Some(errand) = client.errand.take_if(|errand| errand.sequence == sequence) else {
            return;
        };
        client.known.remove(&errand.key);
        if errand.action == Action::Read {
            // A read has no effect, so its outcome does not matter.
            client.errand = Some(errand);
            return self.ask(c);
        }
        self.ends(c, &errand, Found::Nothing);
    }

    /// The client dies in the middle of its operation; another one takes its place.
    pub(super) fn client_crashes(&mut self, c: usize) -> bool {
        if self.clients[c].native.is_some() {
            return self.native_crashes(c);
        }
        let Some(errand) = self.clients[c].errand.take() else {
            return false;
        };
        self.ends(c, &errand, Found::Nothing);
        true
    }

    /// Gives up the current operation.
    fn gives_up(&mut self, c: usize) {
        if let Some(errand) = self.clients[c].errand.take()
            && errand.action == Action::Remove
        {
            self.doubt_no_more(errand.key);
        }
        if !self.is_over() {
            let delay_us = self.random.below(self.plan.think_us);
            self.after(delay_us, Event::ClientActs(c, 0));
        }
    }

    fn ends(&mut self, c: usize, errand: &Errand, found: Found) {
        let to_us = match found {
            Found::Nothing => UNKNOWN,
            _ => self.now_us,
        };
        let is_over = self.is_over();
        self.know(errand.key, errand.action, found, errand.before);
        let client = &mut self.clients[c];
        self.history.events.push(Deed {
            client: client.name,
            key: errand.key,
            action: errand.action,
            found,
            from_us: errand.from_us,
            to_us,
        });
        if found == Found::Nothing {
            client.name += 1_000;
        }
        let delay_us = if client.last.is_empty() {
            if is_over {
                return;
            }
            self.random.below(self.plan.think_us)
        } else {
            if found != Found::Nothing {
                client.last.pop_front();
            }
            if client.last.is_empty() {
                return;
            }
            0
        };
        self.after(delay_us, Event::ClientActs(c, 0));
    }

    pub(super) fn reply_arrives(&mut self, c: usize, reply: Reply) {
        let client = &mut self.clients[c];
        let fits = |errand: &mut Errand| errand.sequence == reply.sequence;
        let Some(errand) = client.errand.take_if(fits) else {
            return;
        };
        match reply.answer {
            Answer::Done(found) => self.ends(c, &errand, found),
            Answer::Moved(server) => {
                client.known.insert(errand.key, server);
                client.errand = Some(errand);
                self.ask(c);
            }
            Answer::Again => {
                client.known.remove(&errand.key);
                client.errand = Some(errand);
                let errand = self.ask_anew(c).expect("it was put back");
                let delay_us = PAUSE_US + self.random.below(PAUSE_US);
                self.after(delay_us, Event::ClientActs(c, errand.sequence));
            }
        }
    }

    // --- at the server

    pub(super) fn request_arrives(&mut self, n: usize, request: Request) {
        let machine = &self.machines[n];
        if !machine.is_powered {
            return;
        }
        if machine.process.is_none() {
            return self.answer(n, &request, Answer::Again); // refused: nothing was done
        }
        if self.is_deaf(n, || Event::Request(n, Box::new(request.clone()))) {
            return;
        }
        if self.waits_for_memory(n, || Event::Request(n, Box::new(request.clone()))) {
            return;
        }
        self.execute(n, request);
        self.let_work(n);
    }

    fn answer(&mut self, n: usize, request: &Request, answer: Answer) {
        let way = (Place::Server(n), Place::Client(request.client));
        let reply = Reply {
            sequence: request.sequence,
            answer,
        };
        let event = Event::Reply(request.client, Box::new(reply));
        self.send(way, Mode::Safe, event, None);
    }

    /// The answer of a server that does not serve a key.
    fn is_served(&self, process: &Process, key: u64) -> Result<(), Answer> {
        let table = self.tables.table_of(key);
        let route = |key: &[u8]| process.view.route(table, KeyHasher::new(1).route(key));
        let bytes = key_of(key);
        match route(&bytes) {
            Route::Serve => {}
            Route::Moved(owner) => {
                let other = owner
                    .addresses
                    .native
                    .parse()
                    .expect("servers have numbers");
                return Err(Answer::Moved(other));
            }
            _ => return Err(Answer::Again),
        }
        let has_twin = route(&twins::twin_of(&bytes)) == Route::Serve;
        if is_twin(key) && !has_twin {
            Err(Answer::Again)
        } else {
            Ok(())
        }
    }

    fn does_twins(
        &mut self,
        n: usize,
        guard: &mut Guard<'_>,
        table: TableId,
        request: &Request,
    ) -> Result<Option<Found>, Error> {
        let asked = (request.key, request.action, request.value_bytes);
        match twins::execute(guard, table, asked) {
            Ok(found) => Ok(Some(found)),
            Err(twins::Failure::Engine(error)) => Err(error),
            Err(twins::Failure::Torn(why)) => {
                let key = request.key;
                self.violated(format!("server {n}: the twins of key {key}: {why}"));
                Ok(None)
            }
        }
    }

    fn execute(&mut self, n: usize, request: Request) {
        let process = self.machines[n].process.as_ref().expect("it runs");
        if let Err(answer) = self.is_served(process, request.key) {
            return self.answer(n, &request, answer);
        }
        let Some(store) = process.store.clone() else {
            return self.answer(n, &request, Answer::Again);
        };
        self.flash_took_us(n);
        self.set_wall(n);
        let mut session = store.engine().session().expect("few sessions");
        let mut guard = session.pin();
        let table = self.tables.table_of(request.key);
        let done = if is_twin(request.key) {
            self.does_twins(n, &mut guard, table, &request)
        } else {
            act(&mut guard, table, &request, self.is_counter(request.key))
        };
        let position = guard.order().take_position();
        drop(guard);
        self.say(|| {
            let Request { key, action, .. } = &request;
            format!("server {n}: {action:?} of key {key}: {done:?}, durable by {position:?}")
        });
        match done {
            Ok(Some(found)) => {
                let held = HeldReply {
                    request,
                    position,
                    found,
                    from_us: self.now_us + self.flash_took_us(n),
                };
                let process = self.machines[n].process.as_mut().expect("it runs");
                process.held.push(held);
            }
            Ok(None) => {
                let key = request.key;
                self.violated(format!("server {n} has something else in key {key}"));
            }
            Err(error) => {
                self.say(|| format!("server {n}: {error}"));
                self.answer(n, &request, Answer::Again); // nothing was changed
            }
        }
    }

    /// A removal by the operator that empties tables counts as that of a client which waits for its
    /// reply.
    pub(super) fn hold_removal(
        &mut self,
        n: usize,
        (sequence, key): (u64, u64),
        position: Position,
        found: Found,
    ) {
        let request = Request {
            client: EMPTIER,
            sequence,
            key,
            action: Action::Remove,
            value_bytes: 0,
        };
        let process = self.machines[n].process.as_mut().expect("it runs");
        process.held.push(HeldReply {
            request,
            position,
            found,
            from_us: 0,
        });
    }

    /// Sends held replies when their positions are durable and the lease runs.
    pub(super) fn let_replies_go(&mut self, n: usize) {
        let true_us = self.now_us;
        let now_us = self.machines[n].clock(true_us);
        let Some(process) = self.machines[n].process.as_mut() else {
            return;
        };
        if process.held.is_empty() || !process.node.read_until().may_read(now_us) {
            return;
        }
        let Some(log) = process.store.as_ref().and_then(|store| store.log()) else {
            return;
        };
        let held = std::mem::take(&mut process.held);
        let (ready, waiting): (Vec<HeldReply>, Vec<HeldReply>) =
            held.into_iter().partition(|held| {
                held.from_us <= true_us && log.reached(&held.position) >= Level::Synced
            });
        process.held = waiting;
        let me = process.node.member().id();
        for held in ready {
            self.check_alone(n, me, held.request.key);
            match held.request.client {
                EMPTIER => self.emptied(held.request.sequence, held.found),
                _ => self.answer(n, &held.request, Answer::Done(held.found)),
            }
        }
    }

    /// No other server may be answering for this key now. A server that gave the key away after it
    /// executed a request may still send the outcome: that went along with the key.
    pub(super) fn check_alone(&mut self, n: usize, me: ServerId, key: u64) {
        let route = KeyHasher::new(1).route(&key_of(key));
        let table = self.tables.table_of(key);
        let now_us = self.now_us;
        let mine = self.machines[n].process.as_ref();
        if !mine.is_some_and(|process| process.view.route(table, route) == Route::Serve) {
            return;
        }
        let others = self.machines.iter().enumerate();
        let other = others
            .filter(|(other, _)| *other != n)
            .find(|(_, machine)| {
                machine.process.as_ref().is_some_and(|process| {
                    process.view.route(table, route) == Route::Serve
                        && process.node.read_until().may_read(machine.clock(now_us))
                })
            });
        if let Some((other, _)) = other {
            self.violated(format!(
                "server {n} ({me}) answers for key {key}, and server {other} would too"
            ));
        }
    }
}

/// Executes a request on its key; `None`: the key has a value that no client wrote.
fn act(
    guard: &mut Guard<'_>,
    table: TableId,
    request: &Request,
    is_counter: bool,
) -> Result<Option<Found>, Error> {
    let key = key_of(request.key);
    let hash = guard.hash(&key);
    match request.action {
        Action::Read => guard.read(table, hash, &key).map(|object| match object {
            None => Some(Found::Absent),
            Some(object) => read_value(object.value, is_counter).map(|value| Found::Value {
                value,
                version: object.version,
            }),
        }),
        Action::Write(value) | Action::Create(value) | Action::Fleeting { value, .. } => {
            let bytes = value_of(value, request.value_bytes);
            let expires_at_ms = match request.action {
                Action::Fleeting { expires_us, .. } => Some(wall_ms(expires_us)),
                _ => None,
            };
            let written = guard.write(table, hash, &key, &bytes, expires_at_ms);
            written.map(|outcome| match outcome.after {
                // It had expired when it arrived.
                None if expires_at_ms.is_some() => Some(Found::Absent),
                after => after.map(|version| Found::Written { version }),
            })
        }
        Action::Remove => guard.remove(table, hash, &key).map(|outcome| {
            Some(match outcome.before {
                Some(version) => Found::Removed { version },
                None => Found::Absent,
            })
        }),
        Action::Increment => guard.increment(table, hash, &key, 1).map(|done| {
            Some(Found::Value {
                value: done.value as u64,
                version: done.version,
            })
        }),
    }
}
