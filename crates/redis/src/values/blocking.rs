//! Commands that wait for elements: BLPOP, BRPOP, BLMOVE, BRPOPLPUSH, BLMPOP, BZPOPMIN, BZPOPMAX,
//! BZMPOP.
//!
//! **Mechanism.** Such a command takes elements as the command of the same kind that does not wait.
//! If there are none, it enters the queues of its keys, looks once more, and parks its client
//! (`Unfinished::Waits`). A write to one of the keys, the end of its time, CLIENT UNBLOCK, or a
//! change of the served slots shows the request again, and it begins anew. So all checks of a
//! request are made at that moment, and it has had no effect before.
//!
//! **Reserved keys.** If the first key with elements is reserved by another client, the request is
//! shown again until the reservation ends. Meanwhile it keeps its places in the queues of all its
//! keys, so that no later client comes before it. The price: clients behind it in the queue of
//! another key get nothing from that key meanwhile, although the key may have elements.
//!
//! **Invariants**
//! - B1: the entries of a request in the queues are those of its client's `KeyWait`. It leaves the
//!   queues when it is answered, in whatever way, and when its client is closed.
//! - B2: the order of steps of waiters::W1 and waiters::W2 is in [`take_or_wait`] alone.

use super::collection::{parse_keys, parse_pop_count};
use super::float::Float;
use super::list::{self, parse_end};
use super::zset::{self, parse_side};
use crate::blocking::key_wait::KeyWait;
use crate::command::context::{Context, Done, Failure, SYNTAX};
use crate::command::outcome::Unfinished;
use crate::command::row::*;
use crate::threads::clients::key_wait_state as state;
use duramen_base::planted::{Bug, has_bug};
use duramen_base::waiters::WaitKey;
use duramen_config::clock;
use duramen_engine::Guard;
use duramen_types::Type;
use duramen_types::list::End;
use std::sync::atomic::Ordering;

#[rustfmt::skip] // They are rows of a table.
pub(crate) const COMMANDS: &[Spec] = &[
    row("blpop", -3, BLOCKING | TAKES_FIRST,
        doc(Topic::List, "2.0.0", "O(N)", "Takes the first element of the first list that has one, or waits for one."),
        Keys::until(-2, TAKES), Effect::Writes(Growth::Nothing), Secrets::None, Run::Atomic(blpop))
            .differs("A key that becomes another type does not end the wait."),
    row("brpop", -3, BLOCKING | TAKES_FIRST,
        doc(Topic::List, "2.0.0", "O(N)", "Takes the last element of the first list that has one, or waits for one."),
        Keys::until(-2, TAKES), Effect::Writes(Growth::Nothing), Secrets::None, Run::Atomic(brpop))
            .differs("A key that becomes another type does not end the wait."),
    row("blmove", 6, DENYOOM | BLOCKING, doc(Topic::List, "6.2.0", "O(1)", "Moves an element to another list and returns it, or waits for one."),
        Keys::two(TAKES, ADDS), Effect::Writes(Growth::Moves), Secrets::None, Run::Atomic(blmove))
            .differs("A key that becomes another type does not end the wait."),
    row("brpoplpush", 4, DENYOOM | BLOCKING,
        doc(Topic::List, "2.2.0", "O(1)", "Moves the last element to the front of another list, or waits for one."),
        Keys::two(TAKES, ADDS), Effect::Writes(Growth::Moves), Secrets::None, Run::Atomic(brpoplpush))
            .differs("A key that becomes another type does not end the wait."),
    row("blmpop", -5, BLOCKING | TAKES_FIRST,
        doc(Topic::List, "7.0.0", "O(N+M)", "Takes elements of the first list that has some, or waits for some."),
        Keys::counted(2, TAKES), Effect::Writes(Growth::Nothing), Secrets::None, Run::Atomic(blmpop))
            .differs("A key that becomes another type does not end the wait."),
    row("bzpopmin", -3, BLOCKING | FAST | TAKES_FIRST,
        doc(Topic::SortedSet, "5.0.0", "O(log(N))", "Takes the member with the lowest score of the first sorted set that has one, or waits for one."),
        Keys::until(-2, TAKES), Effect::Writes(Growth::Nothing), Secrets::None, Run::Atomic(bzpopmin))
            .differs("A key that becomes another type does not end the wait."),
    row("bzpopmax", -3, BLOCKING | FAST | TAKES_FIRST,
        doc(Topic::SortedSet, "5.0.0", "O(log(N))", "Takes the member with the highest score of the first sorted set that has one, or waits for one."),
        Keys::until(-2, TAKES), Effect::Writes(Growth::Nothing), Secrets::None, Run::Atomic(bzpopmax))
            .differs("A key that becomes another type does not end the wait."),
    row("bzmpop", -5, BLOCKING | TAKES_FIRST,
        doc(Topic::SortedSet, "7.0.0", "O(N)", "Takes members of the first sorted set that has some, or waits for some."),
        Keys::counted(2, TAKES), Effect::Writes(Growth::Nothing), Secrets::None, Run::Atomic(bzmpop))
            .differs("A key that becomes another type does not end the wait."),
];

/// Maximum keys that a client waits for at once: their entries in the queues take some 190 bytes
/// each.
const KEYS_MAX: usize = 16_384;

/// Milliseconds in the units of [`Float::Fixed`].
const UNITS_PER_MS: i128 = 100_000_000_000_000;

/// The wait of a command.
pub(crate) struct WaitFor {
    /// The type of the values that it waits for.
    pub(crate) kind: Type,
    /// Whether only the first of the request's keys is waited for.
    pub(crate) first_key_alone: bool,
    /// Whether the command takes nothing, so that all such waiters see the same elements.
    pub(crate) only_reads: bool,
    /// The end of the wait in milliseconds of the server's clock; 0: the wait has no end.
    pub(crate) deadline_ms: u64,
    /// Writes the reply if nothing came in time.
    pub(crate) late: fn(&mut Context<'_>),
}

/// Parses a timeout in seconds, as Redis reads it, and returns the end of the wait.
fn parse_timeout(guard: &Guard<'_>, text: &[u8]) -> Result<u64, Failure> {
    const OUT_OF_RANGE: Failure = Failure::Text("ERR timeout is out of range");
    let number =
        Float::parse(text).ok_or(Failure::Text("ERR timeout is not a float or out of range"))?;
    let timeout_ms = match number {
        Float::Fixed(units) => {
            let whole = units.div_euclid(UNITS_PER_MS);
            whole + i128::from(units.rem_euclid(UNITS_PER_MS) != 0)
        }
        // The product saturates; it is no NaN.
        Float::Binary(seconds) => (seconds * 1_000.0).ceil() as i128,
    };
    if timeout_ms > i128::from(i64::MAX) {
        return Err(OUT_OF_RANGE);
    }
    let timeout_ms =
        u64::try_from(timeout_ms).map_err(|_| Failure::Text("ERR timeout is negative"))?;
    match timeout_ms {
        0 => Ok(0),
        // As in Redis, the time of the end must be representable.
        _ if timeout_ms > i64::MAX as u64 - guard.now_ms() => Err(OUT_OF_RANGE),
        _ => Ok(clock::now_ms().saturating_add(timeout_ms)),
    }
}

fn write_null_array(ctx: &mut Context<'_>) {
    ctx.reply.encoder().null_array();
}

/// Runs a command that takes elements, or waits until there are some. `take` takes elements and
/// replies, but takes none from the keys whose places in its last argument are false. It returns
/// whether there were any elements, and is called again if there were none.
pub(crate) fn take_or_wait(
    ctx: &mut Context<'_>,
    guard: &mut Guard<'_>,
    wait: &WaitFor,
    mut take: impl FnMut(&mut Context<'_>, &mut Guard<'_>, &[bool]) -> Result<bool, Failure>,
) -> Done {
    if let Some(failure) = begin_look(ctx) {
        ctx.client.end_key_wait(ctx.shared, true);
        return match failure {
            state::UNBLOCKED_WITH_ERROR => Err(Failure::Text(
                "UNBLOCKED client unblocked via CLIENT UNBLOCK",
            )),
            _ => {
                (wait.late)(ctx);
                Ok(())
            }
        };
    }
    let deadline_ms = match ctx.client.key_wait.get() {
        Some(known) => known.deadline_ms,
        None => wait.deadline_ms,
    };
    let keys = wait_keys(ctx, wait);
    loop {
        let may_take = may_take(ctx, &keys);
        match take(ctx, guard, &may_take) {
            Ok(true) => {
                // The command has not looked at the keys behind the one from which it took.
                ctx.client.end_key_wait(ctx.shared, keys.len() > 1);
                return Ok(());
            }
            Ok(false) => {}
            Err(failure) => {
                put_off(ctx, &failure, deadline_ms);
                return Err(failure);
            }
        }
        if ctx.thread.exec.runs() || deadline_ms > 0 && clock::now_ms() >= deadline_ms {
            ctx.client.end_key_wait(ctx.shared, false);
            (wait.late)(ctx);
            return Ok(());
        }
        let entered = ctx.client.key_wait.get();
        if entered.is_some_and(|known| known.ticket.is_some()) {
            note_place(ctx);
            let state = &ctx.client.record().key_wait;
            state.store(state::WAITS, Ordering::Relaxed);
            return Err(Failure::Unfinished(Unfinished::Waits));
        }
        enter(ctx, &keys, wait, deadline_ms)?;
    }
}

/// Begins a look of a request that may wait already. Returns the way in which its wait has ended,
/// if it has: then the request takes nothing any more.
fn begin_look(ctx: &mut Context<'_>) -> Option<u8> {
    if ctx.client.key_wait.get()?.table != ctx.table {
        ctx.client
            .key_wait
            .leave_queues(ctx.shared.waiters(), &ctx.shared.threads, true); // after SWAPDB
    }
    let known = ctx.client.key_wait.get()?;
    if let Some(ticket) = known.ticket {
        ctx.shared.waiters().look(ticket, &known.keys);
    }
    let is_late = known.is_late();
    let state = &ctx.client.record().key_wait;
    match state.swap(state::NONE, Ordering::Relaxed) {
        state::UNBLOCKED_WITH_ERROR => Some(state::UNBLOCKED_WITH_ERROR),
        state::UNBLOCKED_IN_TIME => Some(state::UNBLOCKED_IN_TIME),
        _ => is_late.then_some(state::UNBLOCKED_IN_TIME),
    }
}

/// Called when the request has failed or is shown again, and so has not looked at everything. Its
/// wait goes on, and may be ended, even if it has entered no queue yet.
fn put_off(ctx: &mut Context<'_>, failure: &Failure, deadline_ms: u64) {
    let is_first = !ctx.client.key_wait.waits() && !ctx.thread.exec.runs();
    if is_first && failure.yields() {
        ctx.client.key_wait.begin(KeyWait {
            deadline_ms,
            table: ctx.table,
            ticket: None,
            keys: Vec::new(),
            places: Vec::new(),
            last_ids: Vec::new(),
        });
    }
    if let Some(known) = ctx.client.key_wait.get() {
        if let Some(ticket) = known.ticket {
            ctx.shared.waiters().put_off(ticket, &known.keys);
        }
        let state = &ctx.client.record().key_wait;
        state.store(state::WAITS, Ordering::Relaxed);
    }
}

/// The keys that are waited for, in the order of the request; some may be equal.
fn wait_keys(ctx: &Context<'_>, wait: &WaitFor) -> Vec<WaitKey> {
    let most = if wait.first_key_alone { 1 } else { usize::MAX };
    let keys = ctx.request.keys(ctx.table).take(most);
    let keys = keys.map(|key| WaitKey {
        table: key.table.0,
        hash: key.hash.number(),
        kind: wait.kind as u8,
    });
    keys.collect()
}

/// Whether elements may be taken, for each key (waiters::W4). As in Redis, elements that EXEC finds
/// under a key may be taken, because they were not offered to waiters yet.
fn may_take(ctx: &Context<'_>, keys: &[WaitKey]) -> Vec<bool> {
    if ctx.thread.exec.runs() {
        return Vec::new();
    }
    let ticket = ctx.client.key_wait.get().and_then(|known| known.ticket);
    let waiters = ctx.shared.waiters();
    keys.iter()
        .map(|key| waiters.is_first(ticket, *key))
        .collect()
}

fn enter(ctx: &mut Context<'_>, keys: &[WaitKey], wait: &WaitFor, deadline_ms: u64) -> Done {
    let mut keys = keys.to_vec();
    keys.sort_unstable();
    keys.dedup();
    if keys.len() > KEYS_MAX {
        return Err(format!("ERR a client can wait for {KEYS_MAX} different keys at most").into());
    }
    let waiters = ctx.shared.waiters();
    let (client, thread) = (ctx.client.id(), ctx.client.record().thread);
    let ticket = waiters.ticket(client, thread as u32, wait.only_reads);
    waiters.enter(ticket, &keys);
    ctx.client.key_wait.begin(KeyWait {
        deadline_ms,
        table: ctx.table,
        ticket: Some(ticket),
        keys,
        places: Vec::new(),
        last_ids: Vec::new(),
    });
    Ok(())
}

/// Notes, in a cluster, since when this member serves each of the keys, which are in one slot.
fn note_place(ctx: &mut Context<'_>) {
    if ctx.shared.membership().is_none() {
        return;
    }
    // The view must be the one of the look, not a newer one.
    let view = ctx.thread.last_view();
    let places = ctx.request.keys(ctx.table).map(|key| {
        let route = key.hash.route(key.bytes);
        (route, view.serves_since(key.table, route))
    });
    let most = match has_bug(Bug::FirstKeyIsAll) {
        true => 1,
        false => usize::MAX,
    };
    let places = places.take(most).collect();
    if let Some(known) = ctx.client.key_wait.get_mut() {
        known.places = places;
    }
}

fn pop(ctx: &mut Context<'_>, guard: &mut Guard<'_>, end: End) -> Done {
    let wait = WaitFor {
        kind: Type::List,
        first_key_alone: false,
        only_reads: false,
        deadline_ms: parse_timeout(guard, ctx.arg(ctx.request.args.len() - 1))?,
        late: write_null_array,
    };
    take_or_wait(ctx, guard, &wait, |ctx, guard, may_take| {
        list::take_first(ctx, guard, end, 1, may_take, |ctx, key, items| {
            let mut reply = ctx.reply.encoder();
            reply.array(2);
            reply.bulk(key);
            reply.bulk(items.first().map_or(&[], Vec::as_slice));
        })
    })
}

pub(crate) fn blpop(ctx: &mut Context<'_>, guard: &mut Guard<'_>) -> Done {
    pop(ctx, guard, End::Head)
}

pub(crate) fn brpop(ctx: &mut Context<'_>, guard: &mut Guard<'_>) -> Done {
    pop(ctx, guard, End::Tail)
}

fn move_item(
    ctx: &mut Context<'_>,
    guard: &mut Guard<'_>,
    from: End,
    to: End,
    timeout: &[u8],
) -> Done {
    let in_exec = ctx.thread.exec.runs();
    let wait = WaitFor {
        kind: Type::List,
        first_key_alone: true,
        only_reads: false,
        deadline_ms: parse_timeout(guard, timeout)?,
        late: match in_exec {
            true => |ctx| ctx.reply.encoder().null(),
            false => write_null_array,
        },
    };
    take_or_wait(ctx, guard, &wait, |ctx, guard, may_take| {
        list::try_move(ctx, guard, from, to, may_take)
    })
}

pub(crate) fn blmove(ctx: &mut Context<'_>, guard: &mut Guard<'_>) -> Done {
    let (from, to) = (parse_end(ctx.arg(3))?, parse_end(ctx.arg(4))?);
    move_item(ctx, guard, from, to, ctx.arg(5))
}

pub(crate) fn brpoplpush(ctx: &mut Context<'_>, guard: &mut Guard<'_>) -> Done {
    move_item(ctx, guard, End::Tail, End::Head, ctx.arg(3))
}

/// Parses the number of keys of BLMPOP and BZMPOP, argument 2.
fn parse_numkeys(ctx: &Context<'_>) -> Result<usize, Failure> {
    let too_few = Failure::Text("ERR numkeys should be greater than 0");
    parse_keys(ctx, 2, too_few, SYNTAX)
}

pub(crate) fn blmpop(ctx: &mut Context<'_>, guard: &mut Guard<'_>) -> Done {
    let deadline_ms = parse_timeout(guard, ctx.arg(1))?;
    let keys = parse_numkeys(ctx)?;
    let end = parse_end(ctx.request.args.get(3 + keys).ok_or(SYNTAX)?)?;
    let wanted = parse_pop_count(ctx, 4 + keys)?;
    let wait = WaitFor {
        kind: Type::List,
        first_key_alone: false,
        only_reads: false,
        deadline_ms,
        late: write_null_array,
    };
    take_or_wait(ctx, guard, &wait, |ctx, guard, may_take| {
        list::take_first(ctx, guard, end, wanted, may_take, list::write_popped)
    })
}

fn zpop(ctx: &mut Context<'_>, guard: &mut Guard<'_>, highest: bool) -> Done {
    let wait = WaitFor {
        kind: Type::SortedSet,
        first_key_alone: false,
        only_reads: false,
        deadline_ms: parse_timeout(guard, ctx.arg(ctx.request.args.len() - 1))?,
        late: write_null_array,
    };
    take_or_wait(ctx, guard, &wait, |ctx, guard, may_take| {
        zset::take_first(ctx, guard, highest, 1, may_take, |ctx, key, popped| {
            let mut reply = ctx.reply.encoder();
            reply.array(3);
            reply.bulk(key);
            for (member, score) in popped {
                reply.bulk(member);
                reply.double(*score);
            }
        })
    })
}

pub(crate) fn bzpopmin(ctx: &mut Context<'_>, guard: &mut Guard<'_>) -> Done {
    zpop(ctx, guard, false)
}

pub(crate) fn bzpopmax(ctx: &mut Context<'_>, guard: &mut Guard<'_>) -> Done {
    zpop(ctx, guard, true)
}

pub(crate) fn bzmpop(ctx: &mut Context<'_>, guard: &mut Guard<'_>) -> Done {
    let deadline_ms = parse_timeout(guard, ctx.arg(1))?;
    let keys = parse_numkeys(ctx)?;
    let highest = parse_side(ctx.request.args.get(3 + keys).ok_or(SYNTAX)?)?;
    let wanted = parse_pop_count(ctx, 4 + keys)?;
    let wait = WaitFor {
        kind: Type::SortedSet,
        first_key_alone: false,
        only_reads: false,
        deadline_ms,
        late: write_null_array,
    };
    take_or_wait(ctx, guard, &wait, |ctx, guard, may_take| {
        zset::take_first(ctx, guard, highest, wanted, may_take, zset::write_popped)
    })
}
