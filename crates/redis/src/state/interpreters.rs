//! A thread's interpreters of scripts, and the scripts that it has suspended.
//!
//! - A script that has run for its slice is suspended, and goes on in the next round (`YIELDS`). It
//!   holds no lock meanwhile: its writes are in its draft. So a long script delays the other
//!   clients of its thread by one slice in each round, and no other client.
//! - S1: each script runs its first slice, whatever other scripts there are, once it has an
//!   interpreter (S5).
//! - S2: a script that does not end in its first slice needs a place among the suspended scripts.
//!   If all places are taken, its run is dropped (script::run::L1), and it waits for a place.
//!   Scripts get places in the order in which they began to wait. A script that has waited for
//!   `busy-reply-threshold` gets the error `BUSY`. A script that has reserved keys needs no place,
//!   and goes on whatever memory the others have: these may wait for its keys. If the script loses
//!   its reservation, its run is dropped, and so is the run of a script that stands in line for
//!   keys (`drafted`).
//! - S3: a script that has reserved keys is not cut into slices: all that stand in line wait for
//!   it. In one round such scripts run for [`RESERVED_ROUND`] together.
//! - S4: while all that is suspended in a thread (scripts, loads of libraries, EXECs in slices,
//!   combinations of values in parts) has more than `script-memory` together, the oldest request
//!   goes on alone, and no other request of these kinds begins. All memory of a script counts: its
//!   interpreter, its draft, its messages and events, and the copies of its arguments. A request
//!   that is not shown for a while, because of `CLIENT PAUSE`, keeps no other out. If it is a
//!   script or an EXEC, it is shown once more, and its run is dropped.
//! - S5: an interpreter that is not used again is dropped by another thread, because that may take
//!   tens of milliseconds. While many interpreters wait to be dropped, and hold their memory, a
//!   script that needs a new interpreter waits. The thread that drops them waits for no other, so
//!   each of these waits has an end.

use super::script::cache::LongScript;
use super::script::libraries::Library;
use crate::reply::effects::Effects;
use crate::state::Shared;
use crate::state::conflicts::Conflicts;
use crate::state::db::{DBS, Db};
use duramen_acl::User;
use duramen_base::ids::TabletsVersion;
use duramen_base::planted::{Bug, has_bug};
use duramen_config::seldom;
use duramen_engine::{Draft, KeyHash, TableId};
use duramen_node::View;
use duramen_script::{Event, Flags, LibraryText, Limits, Machine, Program};
use duramen_wire::resp::Requests;
use std::collections::{HashMap, VecDeque};
use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Interpreters that a thread keeps for the next scripts.
const IDLE_MAX: usize = 2;
/// Maximum scripts that a thread has suspended; others wait until one has ended.
const SUSPENDED_MAX: usize = 16;
/// Minimum time of the first slice of a script: most scripts end in it.
const FIRST_SLICE: Duration = Duration::from_millis(1);
/// Time of all suspended scripts of a thread in one round.
const ROUND: Duration = Duration::from_millis(4);

/// A request that waits, or is suspended, and is not shown for so long keeps no other request out.
/// Other requests are shown in each round.
const SHOWN_WITHIN: Duration = Duration::from_millis(100);
/// Time of all scripts of a thread that have reserved keys, in one round (S3).
pub(crate) const RESERVED_ROUND: Duration = Duration::from_millis(10);
/// Minimum slice of such a script: the switch to a shorter one would cost as much as its work.
pub(crate) const RESERVED_MIN: Duration = Duration::from_millis(1);
/// Memory of a key in the line of those that reserve keys: its hash, and the free places of a table
/// that has just grown.
const KEY_IN_LINE_BYTES: usize = 20;

/// An interpreter with what it was made for.
pub(crate) struct Interpreter {
    machine: Machine,
    generation: u64,
    memory_bytes: usize,
}

impl Deref for Interpreter {
    type Target = Machine;

    fn deref(&self) -> &Machine {
        &self.machine
    }
}

impl DerefMut for Interpreter {
    fn deref_mut(&mut self) -> &mut Machine {
        &mut self.machine
    }
}

/// Libraries of one request that are being loaded, one after the other.
pub(crate) struct Load {
    pub(crate) machine: Interpreter,
    /// The event with which it was suspended; `None` if the first library is not begun.
    pub(crate) event: Option<Event>,
    /// The libraries that are not loaded yet; the first of them is being loaded.
    pub(crate) texts: VecDeque<Arc<LibraryText>>,
    pub(crate) loaded: Vec<Library>,
    /// Time that the load of the first library has run.
    pub(crate) ran: Duration,
}

/// A script that is running or suspended.
pub(crate) struct Running {
    /// Its interpreter; `None` if its next run is not begun.
    pub(crate) machine: Option<Interpreter>,
    /// The event with which it was suspended.
    pub(crate) event: Event,
    /// Its draft; `None` if the script is at its start, or if the guard has the draft.
    pub(crate) draft: Option<Box<Draft>>,
    /// The tablet list with which its draft began (drafted::R4).
    pub(crate) list: Option<TabletsVersion>,
    /// The table of its declared keys, and the view by which this member serves all of them.
    pub(crate) placed: Option<(TableId, Arc<View>)>,
    pub(crate) effects: Effects,
    /// The database that it has selected.
    pub(crate) db: Db,
    /// The tables of the databases in its last slice.
    pub(crate) tables: [Option<TableId>; DBS],
    /// Whether all writes of its last run gave back about as much memory as they took.
    pub(crate) little: bool,
    /// Whether there was no memory to lock its keys: then it is alone in the store in all its
    /// slices.
    pub(crate) lacks_memory: bool,
    /// Its user's rights, flags and program when its run began.
    pub(crate) user: Option<Arc<User>>,
    pub(crate) flags: Flags,
    pub(crate) program: Program,
    pub(crate) started: Instant,
    /// When its slice, or its run in this round, began.
    pub(crate) began: Instant,
    /// The time of the earlier slices of its run.
    pub(crate) ran: Duration,
    pub(crate) conflicts: Conflicts,
    /// Its entry in the list of long scripts, once it was suspended.
    pub(crate) long: Option<Arc<LongScript>>,
    /// When it was shown last.
    pub(crate) shown: Instant,
    /// Memory of the interpreter when it was suspended.
    pub(crate) machine_bytes: usize,
    /// Memory of the copies of its keys and arguments, which its interpreter holds until it ends.
    pub(crate) job_bytes: usize,
    /// Whether the log has a line that it takes long.
    pub(crate) is_reported: bool,
}

impl Running {
    /// Its memory while it is suspended (S4).
    fn bytes(&self) -> usize {
        let draft = self.draft.as_ref().map_or(0, |draft| draft.bytes());
        self.machine_bytes + self.job_bytes + draft + self.effects.bytes()
    }

    /// Takes the tables of the databases for the next slice. Returns true if the script must run
    /// again: while it was suspended, a database has got another table, or its user has got other
    /// rights, or its program or flags have changed. A change of the program or flags counts before
    /// the first slice too, because the interpreter has started already.
    pub(crate) fn is_outdated(
        &mut self,
        tables: [Option<TableId>; DBS],
        user: Option<&Arc<User>>,
        (program, flags): (&Program, Flags),
    ) -> bool {
        let before = std::mem::replace(&mut self.tables, tables);
        let mut pairs = before.iter().zip(&self.tables);
        let has_other_tables = pairs.any(|(before, now)| before.is_some() && before != now);
        let is_other_user = match (&self.user, user) {
            (Some(before), Some(now)) => !Arc::ptr_eq(before, now) && before.print() != now.print(),
            (before, now) => before.is_some() != now.is_some(),
        };
        let is_other_program = self.flags != flags || !self.program.is(program);
        is_other_program || self.draft.is_some() && (has_other_tables || is_other_user)
    }
}

/// See the head of this file.
#[derive(Default)]
pub(crate) struct Scripts {
    idle: Vec<Interpreter>,
    suspended: HashMap<u64, Box<Running>>,
    /// The clients whose scripts wait for a place (S2).
    waiting: HashMap<u64, Waiting>,
    /// The memory of suspended EXECs, combinations and loads, by client (S4).
    kept: HashMap<u64, Kept>,
    /// The loads of libraries that are suspended, by client.
    pub(crate) loads: HashMap<u64, Box<Load>>,
    /// The clients of this thread whose requests have asked for a reservation of keys: they have
    /// it, or stand in line for it.
    reserving: HashMap<u64, Reserving>,
    /// The time in this round of the scripts that have reserved keys (S3).
    ran_reserved: Duration,
    /// The tables of the command that a script runs; the next command uses them again.
    pub(crate) command: Command,
}

/// A client whose script waits for a place.
struct Waiting {
    since: Instant,
    shown: Instant,
}

/// The memory of a suspended request.
struct Kept {
    bytes: usize,
    since: Instant,
    shown: Instant,
}

/// A client whose request has asked for a reservation.
struct Reserving {
    /// The memory of its keys in the line, in bytes.
    bytes: usize,
    since: Instant,
}

/// Whether a script begins now: see [`Scripts::entry`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Entry {
    Runs,
    Waits,
    Busy,
}

/// A command that a script runs.
#[derive(Default)]
pub(crate) struct Command {
    pub(crate) requests: Requests,
    pub(crate) hashes: Vec<KeyHash>,
}

impl Scripts {
    /// An interpreter. `None`: the system has no memory for one.
    pub(crate) fn machine(&mut self, shared: &Shared, limits: Limits) -> Option<Interpreter> {
        let (generation, memory_bytes) = (shared.scripts().generation(), limits.memory_bytes);
        let is_new =
            |it: &Interpreter| (it.generation, it.memory_bytes) == (generation, memory_bytes);
        self.idle.retain(is_new);
        if let Some(machine) = self.idle.pop() {
            return Some(machine);
        }
        Some(Interpreter {
            machine: Machine::new(limits).ok()?,
            generation,
            memory_bytes,
        })
    }

    /// Whether another interpreter has to be made for a client's script (S5).
    pub(crate) fn needs_machine(&self, client: u64) -> bool {
        self.idle.is_empty() && !self.has_run(client)
    }

    pub(crate) fn give_back(&mut self, shared: &Shared, mut machine: Interpreter) {
        // A script that is stopped may leave a library half loaded, or its values in globals.
        let is_stopped = machine.is_busy();
        machine.stop();
        let is_old = machine.generation != shared.scripts().generation();
        if machine.is_heavy() || is_stopped || is_old {
            shared.scripts().discard(machine.machine);
        } else if self.idle.len() < IDLE_MAX {
            self.idle.push(machine);
        }
    }

    /// Memory of all that is suspended (S4).
    pub(crate) fn bytes(&self) -> usize {
        let scripts = self.suspended.values().map(|it| it.bytes());
        let others = self.kept.values().map(|it| it.bytes);
        let in_line = self.reserving.values().map(|it| it.bytes);
        scripts.sum::<usize>() + others.sum::<usize>() + in_line.sum::<usize>()
    }

    /// Notes that a client's EXEC or combination is suspended, and keeps so many bytes until its
    /// request has ended.
    pub(crate) fn keep(&mut self, client: u64, bytes: usize) {
        let now = Instant::now();
        let kept = self.kept.entry(client).or_insert(Kept {
            bytes,
            since: now,
            shown: now,
        });
        kept.bytes = bytes;
    }

    /// Notes that the run of a client's EXEC is dropped.
    pub(crate) fn keep_nothing(&mut self, client: u64) {
        self.kept.remove(&client);
    }

    /// Whether a client's EXEC or combination is suspended.
    pub(crate) fn keeps(&self, client: u64) -> bool {
        self.kept.contains_key(&client)
    }

    /// The part of a round's time for one of the suspended EXECs and combinations: all of them
    /// share `time`, and each gets at least `least`.
    pub(crate) fn share(&self, time: Duration, least: Duration) -> Duration {
        (time / (self.kept.len() as u32).max(1)).max(least)
    }

    /// Whether no other script can be suspended; `bytes_max`: maximum memory of all of them
    /// together.
    pub(crate) fn is_full(&self, bytes_max: usize) -> bool {
        let takes_places = !has_bug(Bug::ScriptsNeedNoPlace);
        takes_places && self.places() >= SUSPENDED_MAX || self.bytes() > bytes_max
    }

    /// The suspended scripts.
    #[cfg(test)]
    pub(crate) fn all_suspended(&self) -> impl Iterator<Item = &Running> {
        self.suspended.values().map(|it| &**it)
    }

    /// The number of scripts whose runs are suspended.
    fn places(&self) -> usize {
        let scripts = self.suspended.values();
        scripts.filter(|it| it.machine.is_some()).count()
    }

    /// Whether a script gets a place (S2). A script that has not waited gets none while others
    /// wait.
    pub(crate) fn has_place(&self, client: u64, bytes_max: usize) -> bool {
        let now = Instant::now();
        let mut waiting = self.waiting.values();
        let is_awaited = waiting.any(|it| !is_away(it.shown, now));
        let is_behind = is_awaited && !self.waiting.contains_key(&client);
        !is_behind && !self.is_full(bytes_max)
    }

    /// The next step of a client's script that is not suspended. `busy`: the time after which a
    /// waiting script gets the error `BUSY`.
    pub(crate) fn entry(&mut self, client: u64, bytes_max: usize, busy: Duration) -> Entry {
        let now = Instant::now();
        let Some(own) = self.waiting.get_mut(&client) else {
            return Entry::Runs; // S1
        };
        own.shown = now;
        let since = own.since;
        let is_behind = |other: &Waiting| since <= other.since || is_away(other.shown, now);
        let is_next = self.waiting.values().all(is_behind);
        match self.is_full(bytes_max) {
            true if since.elapsed() > busy => Entry::Busy,
            false if is_next => Entry::Runs,
            _ => Entry::Waits,
        }
    }

    /// Notes that the script of this client waits for a place (S2).
    pub(crate) fn wait(&mut self, client: u64) {
        let now = Instant::now();
        self.waiting.entry(client).or_insert(Waiting {
            since: now,
            shown: now,
        });
        let oldest = self.suspended.values().min_by_key(|it| it.started);
        seldom!(
            warn,
            client,
            oldest = oldest.map_or("", |it| it.program.name()),
            ms = oldest.map_or(0, |it| it.started.elapsed().as_millis() as u64),
            "a script waits: its thread has no place for another long script; SCRIPT KILL ends these"
        );
    }

    /// Whether scripts wait for a place.
    pub(crate) fn are_awaited(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Whether the suspended request of a client may go on, or a request that may be suspended may
    /// begin (S4).
    pub(crate) fn may_go_on(&mut self, client: u64, bytes_max: usize) -> bool {
        let now = Instant::now();
        let script = self.suspended.get_mut(&client);
        let script = script.map(|it| (it.started, &mut it.shown));
        let kept = self
            .kept
            .get_mut(&client)
            .map(|it| (it.since, &mut it.shown));
        let Some((since, shown)) = script.or(kept) else {
            return self.bytes() <= bytes_max;
        };
        *shown = now;
        let scripts = self.suspended.values().map(|it| (it.started, it.shown));
        let mut all = scripts.chain(self.kept.values().map(|it| (it.since, it.shown)));
        let is_oldest = all.all(|(other, shown)| since <= other || is_away(shown, now));
        self.is_killed(client) || is_oldest || self.bytes() <= bytes_max
    }

    /// Whether the suspended script of a client was killed.
    pub(crate) fn is_killed(&self, client: u64) -> bool {
        let long = self.suspended.get(&client).and_then(|it| it.long.as_ref());
        long.is_some_and(|long| long.is_killed())
    }

    pub(crate) fn has(&self, client: u64) -> bool {
        self.suspended.contains_key(&client)
    }

    /// Whether a run of a client's script is suspended.
    pub(crate) fn has_run(&self, client: u64) -> bool {
        let script = self.suspended.get(&client);
        script.is_some_and(|it| it.machine.is_some())
    }

    /// The time since the script of this client began. If it has not begun: since it waits for a
    /// place, since its script or EXEC has asked for a reservation, or since its EXEC, combination
    /// or load was first suspended.
    pub(crate) fn age(&self, client: u64) -> Option<Duration> {
        let running = self.suspended.get(&client).map(|running| running.started);
        let waiting = || self.waiting.get(&client).map(|waiting| waiting.since);
        let in_line = || self.reserving.get(&client).map(|it| it.since);
        let kept = || self.kept.get(&client).map(|it| it.since);
        let since = running.or_else(waiting).or_else(in_line).or_else(kept)?;
        Some(since.elapsed())
    }

    /// The time for which a script runs before it is suspended.
    pub(crate) fn slice(&self) -> Duration {
        ROUND / (self.places() as u32 + 1)
    }

    pub(crate) fn first_slice(&self) -> Duration {
        self.slice().max(FIRST_SLICE)
    }

    pub(crate) fn suspend(&mut self, client: u64, running: Box<Running>) {
        self.waiting.remove(&client);
        self.suspended.insert(client, running);
    }

    /// Takes the suspended script of a client.
    pub(crate) fn take(&mut self, client: u64) -> Option<Box<Running>> {
        self.suspended.remove(&client)
    }

    /// Notes that a request of the client has ended. If a script of the request is still suspended,
    /// it was refused when it was shown again (`SCRIPT FLUSH`, other rights): it is dropped, and
    /// nothing of it is done.
    #[inline]
    pub(crate) fn request_ended(&mut self, shared: &Shared, client: u64) {
        let has_state = !self.suspended.is_empty()
            || !self.waiting.is_empty()
            || !self.loads.is_empty()
            || !self.kept.is_empty()
            || !self.reserving.is_empty();
        if has_state {
            self.drop_of(shared, client);
        }
    }

    /// Whether the request of a client has asked for a reservation of keys.
    pub(crate) fn has_asked(&self, client: u64) -> bool {
        self.reserving.contains_key(&client)
    }

    /// Reserves keys for a client until its request has ended, for `most` at most
    /// (`shared::reserved`). Returns false if another client has reserved keys, and this one stands
    /// in line.
    pub(crate) fn reserve(
        &mut self,
        shared: &Shared,
        client: u64,
        keys: impl Iterator<Item = KeyHash>,
        most: Duration,
    ) -> bool {
        let mut bytes = 0;
        let keys = keys.inspect(|_| bytes += KEY_IN_LINE_BYTES);
        let is_first = shared.commands.reserve(client, keys, most);
        let known = self.reserving.entry(client).or_insert(Reserving {
            bytes: 0,
            since: Instant::now(),
        });
        known.bytes = bytes.max(known.bytes);
        is_first
    }

    /// A round of the thread begins.
    pub(crate) fn begin_round(&mut self) {
        self.ran_reserved = Duration::ZERO;
    }

    /// The slice of a script that has reserved keys; `None` if it runs in the next round (S3).
    pub(crate) fn reserved_slice(&self) -> Option<Duration> {
        let left = RESERVED_ROUND.saturating_sub(self.ran_reserved);
        (left >= RESERVED_MIN).then_some(left)
    }

    /// Notes that a script that has reserved keys has run for so long.
    pub(crate) fn ran_reserved(&mut self, time: Duration) {
        self.ran_reserved += time;
    }

    /// Drops the suspended script of a client that has gone, and its reservation.
    pub(crate) fn drop_of(&mut self, shared: &Shared, client: u64) {
        if self.reserving.remove(&client).is_some() {
            shared.commands.release(client);
        }
        self.waiting.remove(&client);
        self.kept.remove(&client);
        if let Some(load) = self.loads.remove(&client) {
            self.give_back(shared, load.machine);
        }
        if let Some(running) = self.take(client) {
            if let Some(long) = &running.long {
                shared.scripts().end_long(long);
            }
            if let Some(machine) = running.machine {
                self.give_back(shared, machine);
            }
        }
    }
}

/// Whether a request that was shown last at `shown` is not shown any more.
fn is_away(shown: Instant, now: Instant) -> bool {
    now.saturating_duration_since(shown) > SHOWN_WITHIN
}

/// Writes a line of a script to the log.
pub(crate) fn log(level: u8, text: &[u8]) {
    let text = String::from_utf8_lossy(text);
    match level {
        0 => tracing::debug!(script = %text),
        1 | 2 => tracing::info!(script = %text),
        _ => tracing::warn!(script = %text),
    }
}
