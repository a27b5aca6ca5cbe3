//! Typed values under the keys of a request: reading them, changing one, changing several at one
//! instant.
//!
//! - C1: a change of a collection is one write of its key, and keeps the expiry; a collection that
//!   is stored as a result has none. A collection without elements is removed.
//! - C2: a command on a type refuses a value of another type, before it has any effect.

use crate::command::cold;
use crate::command::context::{Context, Done, Failure, NOT_AN_INTEGER, SYNTAX, YIELDS};
use crate::command::events::{DEL, EventName, NEW};
use crate::command::flag;
use crate::command::key::Key;
use crate::command::turn::Ending;
use crate::command::walk::{compiled, parse_cursor};
use crate::state::client::Client;
use crate::state::patience::AGAIN_MS;
use duramen_base::glob::Pattern;
use duramen_config::clock;
use duramen_engine::{Decision, Error, Guard, Object, Outcome, Room};
use duramen_types::{Part, Parts, Text, Type, count};
use duramen_wire::resp::Encoder;
use duramen_wire::resp::number::parse_integer;

pub(crate) const WRONG_TYPE: Failure =
    Failure::Text("WRONGTYPE Operation against a key holding the wrong kind of value");
const NOT_POSITIVE: Failure = Failure::Text("ERR value is out of range, must be positive");

impl From<duramen_types::Error> for Failure {
    #[cold]
    fn from(error: duramen_types::Error) -> Failure {
        match error {
            duramen_types::Error::WrongType => WRONG_TYPE,
            duramen_types::Error::Full => Failure::Full,
            error => format!("ERR {error}").into(),
        }
    }
}

/// The part of a value that a change sees and replaces.
pub(crate) struct Root<'p, 's> {
    old: Option<&'p [u8]>,
    new: &'s mut Vec<u8>,
    change: Change,
}

#[derive(Clone, Copy)]
enum Change {
    Keep,
    Put,
    Remove,
}

impl<'p> Parts<'p> for Root<'p, '_> {
    fn get(&self, _: Part) -> Option<&'p [u8]> {
        self.old
    }

    fn put(&mut self, _: Part) -> &mut Vec<u8> {
        self.change = Change::Put;
        self.new.clear();
        self.new
    }

    fn remove(&mut self, _: Part) {
        self.change = Change::Remove;
    }
}

/// The bytes of a typed value; fails for a plain string (C2).
pub(crate) fn typed(found: Option<Object<'_>>) -> Result<Option<&[u8]>, Failure> {
    match found {
        None => Ok(None),
        Some(object) if object.is_typed => Ok(Some(object.value)),
        Some(_) => Err(WRONG_TYPE),
    }
}

/// As [`typed`], for a command that waits for values of this type. As in Redis, a client that waits
/// already goes on waiting if a value of another type is there.
pub(crate) fn awaited<'v>(
    client: &Client,
    found: Option<Object<'v>>,
    kind: Type,
) -> Result<Option<&'v [u8]>, Failure> {
    let value = typed(found);
    let is_other = match &value {
        Ok(value) => value.is_some_and(|value| value.first() != Some(&(kind as u8))),
        Err(_) => true,
    };
    match is_other && client.key_wait.waits() {
        true => Ok(None),
        false => value,
    }
}

/// The bytes of a plain string; fails for a typed value (C2).
#[inline]
pub(crate) fn plain(found: Option<Object<'_>>) -> Result<Option<&[u8]>, Failure> {
    match found {
        None => Ok(None),
        Some(object) if !object.is_typed => Ok(Some(object.value)),
        Some(_) => Err(WRONG_TYPE),
    }
}

/// Reads the request's only key, a typed value.
pub(crate) fn read<'g>(
    ctx: &mut Context<'_>,
    guard: &'g Guard<'_>,
) -> Result<Option<&'g [u8]>, Failure> {
    let key = ctx.key();
    let found = guard.read(key.table, key.hash, key.bytes)?;
    let counters = ctx.thread.counters(ctx.shared);
    match found {
        Some(_) => counters.keyspace_hits.add(1),
        None => {
            counters.keyspace_misses.add(1);
            ctx.notify_miss(key.bytes);
        }
    }
    typed(found)
}

/// Changes the request's only key, a typed value; `event` is the event of a change. `run` may be
/// called again, so it must reset its own state.
pub(crate) fn change<T>(
    ctx: &mut Context<'_>,
    guard: &mut Guard<'_>,
    event: EventName,
    run: impl FnMut(&mut Context<'_>, &mut Root<'_, '_>) -> Result<T, Failure>,
) -> Result<T, Failure> {
    let (done, outcome) = change_silently(ctx, guard, run)?;
    ctx.notify_change(event, ctx.key().bytes, outcome);
    Ok(done)
}

/// As [`change`], without an event: returns the outcome, so that the caller can add the events.
pub(crate) fn change_silently<T>(
    ctx: &mut Context<'_>,
    guard: &mut Guard<'_>,
    mut run: impl FnMut(&mut Context<'_>, &mut Root<'_, '_>) -> Result<T, Failure>,
) -> Result<(T, Outcome), Failure> {
    let key = ctx.key();
    let mut result = Err(SYNTAX);
    let outcome = guard.update(key.table, key.hash, key.bytes, |found, scratch| {
        let mut change = Change::Keep;
        result = typed(found).and_then(|old| {
            let mut root = Root {
                old,
                new: scratch,
                change,
            };
            let done = run(ctx, &mut root)?;
            change = root.change;
            Ok(done)
        });
        match change {
            Change::Keep => Decision::Keep,
            Change::Remove => Decision::Remove,
            Change::Put => Decision::PutTyped {
                expires_at_ms: found.and_then(|object| object.expires_at_ms),
            },
        }
    })?;
    Ok((result?, outcome))
}

/// The new value of one of the request's keys.
pub(crate) struct Write {
    /// Number of the key, in the order of key positions.
    key: usize,
    /// The new value; `None`: the key is removed.
    value: Option<Vec<u8>>,
    is_typed: bool,
    /// The expiry of the key; `None`: it has none.
    expires_at_ms: Option<u64>,
    events: WriteEvents,
}

/// The events of a write.
#[derive(Clone, Copy)]
enum WriteEvents {
    /// The events of a change, if there is one. A key that is left without a value has the event of
    /// its removal, too.
    Change([Option<EventName>; 2]),
    /// The event of a new value; a key that is left without one has the event of its removal alone.
    Result(EventName),
}

impl WriteEvents {
    fn add(self, ctx: &mut Context<'_>, key: &[u8], outcome: Outcome) {
        if !ctx.has_events() || outcome.before == outcome.after {
            return;
        }
        match self {
            WriteEvents::Change([first, second]) => {
                let events: Vec<EventName> = first.into_iter().chain(second).collect();
                ctx.add_change(&events, key, outcome);
            }
            WriteEvents::Result(_) if outcome.after.is_none() => ctx.notify(DEL, key),
            WriteEvents::Result(event) => {
                if outcome.before.is_none() {
                    ctx.notify(NEW, key);
                }
                ctx.notify(event, key);
            }
        }
    }
}

impl Write {
    /// The write of a command's result, which has no expiry.
    pub(crate) fn result(
        key: usize,
        value: Option<Vec<u8>>,
        is_typed: bool,
        event: EventName,
    ) -> Write {
        Write {
            key,
            value,
            is_typed,
            expires_at_ms: None,
            events: WriteEvents::Result(event),
        }
    }

    /// The write of a plain string in place of the value that was found, with the expiry of that.
    pub(crate) fn kept(
        key: usize,
        found: Option<Object<'_>>,
        value: Vec<u8>,
        event: EventName,
    ) -> Write {
        Write {
            key,
            value: Some(value),
            is_typed: false,
            expires_at_ms: found.and_then(|object| object.expires_at_ms),
            events: WriteEvents::Result(event),
        }
    }

    /// The write of a change that `run` makes to the value that was found, and the result of `run`.
    /// `events`: the events of a change, in order.
    pub(crate) fn change<T>(
        key: usize,
        found: Option<Object<'_>>,
        events: [Option<EventName>; 2],
        run: impl FnOnce(&mut Root<'_, '_>) -> Result<T, Failure>,
    ) -> Result<(Write, T), Failure> {
        let mut new = Vec::new();
        let mut root = Root {
            old: typed(found)?,
            new: &mut new,
            change: Change::Keep,
        };
        let done = run(&mut root)?;
        let change = root.change;
        let value = match change {
            Change::Put => Some(new),
            Change::Remove => None,
            Change::Keep => found.map(|object| object.value.to_vec()),
        };
        let write = Write {
            key,
            value,
            is_typed: true,
            expires_at_ms: found.and_then(|object| object.expires_at_ms),
            events: WriteEvents::Change(events),
        };
        Ok((write, done))
    }

    /// Adds the room that the write takes under this key.
    pub(crate) fn reserve(&self, room: &mut Room, key: &[u8]) {
        match &self.value {
            Some(value) => room.put(key, value.len()),
            None => room.remove(key),
        }
    }

    pub(crate) fn apply(&self, ctx: &mut Context<'_>, guard: &mut Guard<'_>, key: Key<'_>) -> Done {
        let Key { table, hash, bytes } = key;
        let outcome = match &self.value {
            Some(value) => {
                let value = (&value[..], self.is_typed);
                guard.write_as(table, hash, bytes, value, self.expires_at_ms)?
            }
            None => guard.remove(table, hash, bytes)?,
        };
        self.events.add(ctx, bytes, outcome);
        Ok(())
    }
}

/// Encodes a collection as a result: `None` if it is empty (C1).
pub(crate) fn encoded(
    store: impl FnOnce(&mut Root<'_, '_>) -> Result<(), duramen_types::Error>,
) -> Result<Option<Vec<u8>>, Failure> {
    let mut new = Vec::new();
    let mut root = Root {
        old: None,
        new: &mut new,
        change: Change::Keep,
    };
    store(&mut root)?;
    Ok(matches!(root.change, Change::Put).then_some(new))
}

/// Runs a command on all its keys at one instant: `run` sees the values under all keys, replies,
/// and returns the command's writes. `run` may be called again; the reply is reset before.
pub(crate) fn at_once(
    ctx: &mut Context<'_>,
    guard: &mut Guard<'_>,
    mut run: impl FnMut(&mut Context<'_>, &[Option<Object<'_>>]) -> Result<Vec<Write>, Failure>,
) -> Done {
    let mut keys = ctx.request.keys(ctx.table);
    if let (Some(key), None) = (keys.next(), keys.next()) {
        return one_at_once(ctx, guard, key, &mut run);
    }
    several_at_once(ctx, guard, |ctx, _, found| run(ctx, found))
}

/// Makes writes whose keys are locked: all of them, or none for lack of memory.
pub(crate) fn write_all(
    ctx: &mut Context<'_>,
    guard: &mut Guard<'_>,
    keys: &[Key<'_>],
    writes: &[Write],
    room: &mut Room,
) -> Done {
    let of = |write: &Write| keys.get(write.key).copied();
    *room = Room::default();
    for (write, key) in writes.iter().filter_map(|write| Some((write, of(write)?))) {
        write.reserve(room, key.bytes);
    }
    ctx.set_aside(guard, *room)?;
    for (write, key) in writes.iter().filter_map(|write| Some((write, of(write)?))) {
        write.apply(ctx, guard, key)?;
    }
    Ok(())
}

/// Changes the first of the request's keys that has elements: `change` gets the key's place, the
/// key and its value, and replies. `kind`: the type of such values. `may_take`: for each key
/// whether elements may be taken from it; empty: from all keys. Returns false if no key has
/// elements that may be taken. A command that may wait for elements is shown again while the first
/// key that has some is reserved.
pub(crate) fn change_first(
    ctx: &mut Context<'_>,
    guard: &mut Guard<'_>,
    kind: Type,
    may_take: &[bool],
    change: impl Fn(&mut Context<'_>, usize, &[u8], Object<'_>) -> Result<Write, Failure>,
) -> Result<bool, Failure> {
    let mut is_done = false;
    at_once(ctx, guard, |ctx, found| {
        is_done = false;
        let positions = ctx.request.key_positions();
        for ((n, found), at) in found.iter().enumerate().zip(positions) {
            let value = awaited(ctx.client, *found, kind)?;
            let (Some(value), Some(object)) = (value, *found) else {
                continue;
            };
            if may_take.get(n) == Some(&false) {
                count(value, kind)?;
                continue;
            }
            if is_put_off(ctx, ctx.arg(at)) {
                return Err(YIELDS);
            }
            let key = ctx.arg(at);
            let change = change(ctx, n, key, object)?;
            is_done = true;
            return Ok(vec![change]);
        }
        Ok(Vec::new())
    })?;
    Ok(is_done)
}

/// Whether a command that may wait for elements must not take them from this key now, because
/// another client has reserved it. Then the turn's ending has the time at which the command is
/// shown again. For other commands this is known before they run.
fn is_put_off(ctx: &mut Context<'_>, key: &[u8]) -> bool {
    if !ctx.shared.commands.has_reserved()
        || ctx.thread.exec.runs()
        || !ctx.request.spec.has(flag::TAKES_FIRST)
    {
        return false;
    }
    let hash = ctx.shared.store().hash(key);
    let (id, patience) = (ctx.client.id(), &mut ctx.client.patience);
    let is_put_off = patience.is_put_off(&ctx.shared.commands, id, std::iter::once(hash));
    if is_put_off {
        ctx.turn.ending = Ending::Paused {
            until_ms: clock::now_ms() + AGAIN_MS,
        };
    }
    is_put_off
}

/// As [`at_once`], for more than one key; `run` may read other keys.
pub(crate) fn several_at_once(
    ctx: &mut Context<'_>,
    guard: &mut Guard<'_>,
    mut run: impl FnMut(
        &mut Context<'_>,
        &Guard<'_>,
        &[Option<Object<'_>>],
    ) -> Result<Vec<Write>, Failure>,
) -> Done {
    let (start, effects) = (ctx.reply.len(), ctx.client.effects.len());
    let keys: Vec<_> = ctx.request.keys(ctx.table).collect();
    let places: Vec<_> = keys.iter().map(Key::place).collect();
    ctx.locked_for_room(guard, &places, |ctx, guard, room| {
        ctx.reply.truncate(start);
        ctx.client.effects.truncate(effects);
        cold::warm_own(ctx, guard)?;
        let read = |key: &Key<'_>| guard.read(key.table, key.hash, key.bytes);
        let found: Result<Vec<_>, Error> = keys.iter().map(read).collect();
        let found = found?;
        let writes = run(ctx, guard, &found)?;
        for (n, key) in keys.iter().enumerate() {
            if found.get(n).is_some_and(Option::is_none) && ctx.request.spec.looks_up(n) {
                ctx.notify_miss(key.bytes);
            }
        }
        match writes.is_empty() {
            true => Ok(()),
            false => write_all(ctx, guard, &keys, &writes, room),
        }
    })
}

/// [`at_once`] for a single key, which needs no lock.
fn one_at_once(
    ctx: &mut Context<'_>,
    guard: &mut Guard<'_>,
    key: Key<'_>,
    run: &mut impl FnMut(&mut Context<'_>, &[Option<Object<'_>>]) -> Result<Vec<Write>, Failure>,
) -> Done {
    if ctx.request.spec.has(flag::READONLY) {
        let found = guard.read(key.table, key.hash, key.bytes)?;
        run(ctx, &[found])?;
        if found.is_none() {
            ctx.notify_miss(key.bytes);
        }
        return Ok(());
    }
    let (start, mut result) = (ctx.reply.len(), Ok(()));
    let mut events = None;
    let outcome = guard.update(key.table, key.hash, key.bytes, |found, scratch| {
        ctx.reply.truncate(start);
        (result, events) = (Ok(()), None);
        let writes = run(ctx, &[found]).unwrap_or_else(|failure| {
            result = Err(failure);
            Vec::new()
        });
        let Some(write) = writes.into_iter().next() else {
            return Decision::Keep;
        };
        let expires_at_ms = write.expires_at_ms;
        events = Some(write.events);
        match write.value {
            None => Decision::Remove,
            Some(value) => {
                scratch.extend_from_slice(&value);
                match write.is_typed {
                    true => Decision::PutTyped { expires_at_ms },
                    false => Decision::PutScratch { expires_at_ms },
                }
            }
        }
    })?;
    result?;
    if outcome.before.is_none() && ctx.request.spec.looks_up(0) {
        ctx.notify_miss(key.bytes);
    }
    if let Some(events) = events {
        events.add(ctx, key.bytes, outcome);
    }
    Ok(())
}

/// Parses an optional number of elements, which is not negative.
pub(crate) fn parse_count(text: &[u8]) -> Result<usize, Failure> {
    let count = parse_integer(text).ok_or(NOT_POSITIVE)?;
    usize::try_from(count).map_err(|_| NOT_POSITIVE)
}

/// Parses a number of random elements; a negative one allows repetitions.
pub(crate) fn parse_random_count(text: &[u8]) -> Result<i64, Failure> {
    let count = parse_integer(text).ok_or(NOT_AN_INTEGER)?;
    match count {
        i64::MIN => Err(Failure::Text(
            "ERR value is out of range, value must between -9223372036854775807 and 9223372036854775807",
        )),
        count => Ok(count),
    }
}

/// Parses the COUNT of LMPOP and ZMPOP, from argument `from` on; 1 without one.
pub(crate) fn parse_pop_count(ctx: &Context<'_>, from: usize) -> Result<usize, Failure> {
    let mut wanted = None;
    let mut rest = ctx.request.args.skip(from).into_iter();
    while let Some(option) = rest.next() {
        if wanted.is_some() || !option.eq_ignore_ascii_case(b"count") {
            return Err(SYNTAX);
        }
        let count = parse_integer(rest.next().ok_or(SYNTAX)?).filter(|count| *count > 0);
        let count = count.and_then(|count| usize::try_from(count).ok());
        wanted = Some(count.ok_or(Failure::Text("ERR count should be greater than 0"))?);
    }
    Ok(wanted.unwrap_or(1))
}

/// Parses argument `at`, the number of keys that follow it.
pub(crate) fn parse_keys(
    ctx: &Context<'_>,
    at: usize,
    too_few: impl Into<Failure>,
    too_many: Failure,
) -> Result<usize, Failure> {
    let number = parse_integer(ctx.arg(at)).ok_or(NOT_AN_INTEGER);
    let too_few = too_few.into();
    let number = match number {
        Ok(number) if number >= 1 => number,
        Err(failure) if !matches!(too_few, Failure::Text(_)) => return Err(failure),
        _ => return Err(too_few),
    };
    match usize::try_from(number) {
        Ok(number) if number < ctx.request.args.len() - at => Ok(number),
        _ => Err(too_many),
    }
}

/// Numbers of at most `number` different random elements of `len`.
pub(crate) fn random_places(ctx: &mut Context<'_>, len: usize, number: usize) -> Vec<usize> {
    if len == 0 {
        return Vec::new();
    }
    let random = ctx.thread.random();
    if number == 1 {
        return vec![random.index(len)];
    }
    let mut places: Vec<usize> = (0..len).collect();
    let number = number.min(len);
    if number < len {
        for at in 0..number {
            let other = at + random.index(len - at);
            places.swap(at, other);
        }
        places.truncate(number);
    }
    places
}

/// Bytes of random elements after which a request lets others run: a millisecond or two.
const RANDOM_BYTES_PER_SLICE: usize = 1 << 20;

/// Replies with an array of `wanted` random elements: different ones, or with repetitions if
/// `wanted` is negative. `write` writes one of them, which is `width` replies long.
pub(crate) fn write_random<E>(
    ctx: &mut Context<'_>,
    elements: &[E],
    wanted: i64,
    width: usize,
    mut write: impl FnMut(&mut Encoder<'_>, &E),
) -> Done {
    let number = usize::try_from(wanted.unsigned_abs()).unwrap_or(usize::MAX);
    if wanted >= 0 || elements.is_empty() {
        let places = random_places(ctx, elements.len(), number);
        let mut reply = ctx.reply.encoder();
        reply.array(width * places.len());
        let picked = places.iter().filter_map(|at| elements.get(*at));
        picked.for_each(|element| write(&mut reply, element));
        return Ok(());
    }
    // There are as many elements as a client likes, so they are written in parts. Each part draws
    // from the elements that are there then.
    let mut walk = ctx.client.parking.take_walk(ctx.table);
    let (goes_on, before) = (walk.keys > 0, walk.found.len());
    let mut room = ctx.reply.room_left();
    while walk.keys < number {
        if let Some(element) = ctx.thread.random().pick(elements) {
            let mut reply = Encoder::within(&mut walk.found, ctx.client.protocol(), &mut room);
            write(&mut reply, element);
        }
        if room.exceeded {
            return Err(ctx.reply.too_long());
        }
        walk.keys += 1;
        if walk.found.len() - before > RANDOM_BYTES_PER_SLICE && !ctx.locked {
            walk.moved = true;
            ctx.client.parking.keep_walk(walk);
            return Err(YIELDS);
        }
    }
    if goes_on {
        ctx.settle_all(); // no reply covers elements of earlier rounds yet
    }
    ctx.reply.encoder().array(number.saturating_mul(width));
    ctx.reply.append(&walk.found);
    Ok(())
}

/// The options of HSCAN, SSCAN, ZSCAN.
pub(crate) struct ScanOptions {
    pattern: Option<Pattern>,
    pub(crate) no_values: bool,
}

impl ScanOptions {
    pub(crate) fn matches(&self, name: &Text<'_>) -> bool {
        let pattern = self.pattern.as_ref();
        pattern.is_none_or(|pattern| pattern.matches(&name.bytes()))
    }
}

/// Parses the cursor of HSCAN, SSCAN, ZSCAN. A packed collection is shown in one step.
pub(crate) fn parse_scan_cursor(ctx: &Context<'_>) -> Done {
    parse_cursor(ctx.arg(2)).map(|_| ())
}

/// Replies of HSCAN, SSCAN, ZSCAN for a key that does not exist.
pub(crate) fn empty_scan(ctx: &mut Context<'_>) -> Done {
    let mut reply = ctx.reply.encoder();
    reply.array(2);
    reply.bulk(b"0");
    reply.array(0);
    Ok(())
}

/// Parses the options of HSCAN, SSCAN, ZSCAN. `kind`: only HSCAN may leave out values.
pub(crate) fn parse_scan(ctx: &Context<'_>, kind: Type) -> Result<ScanOptions, Failure> {
    let (mut pattern, mut no_values) = (None, false);
    let mut rest = ctx.request.args.skip(3).into_iter();
    while let Some(option) = rest.next() {
        if option.eq_ignore_ascii_case(b"count") {
            let count = parse_integer(rest.next().ok_or(SYNTAX)?).ok_or(NOT_AN_INTEGER)?;
            if count < 1 {
                return Err(SYNTAX);
            }
        } else if option.eq_ignore_ascii_case(b"match") {
            pattern = Some(rest.next().ok_or(SYNTAX)?).filter(|pattern| *pattern != b"*");
        } else if option.eq_ignore_ascii_case(b"novalues") {
            if kind != Type::Hash {
                return Err(Failure::Text(
                    "ERR NOVALUES option can only be used in HSCAN",
                ));
            }
            no_values = true;
        } else {
            return Err(SYNTAX);
        }
    }
    Ok(ScanOptions {
        pattern: compiled(pattern)?,
        no_values,
    })
}
