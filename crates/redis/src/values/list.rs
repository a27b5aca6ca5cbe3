//! Lists. `blocking` has the commands that wait for elements.

use super::collection::{
    Write, at_once, awaited, change, change_first, parse_count, parse_keys, parse_pop_count, read,
};
use crate::command::context::{Context, Done, Failure, NO_SUCH_KEY, NOT_AN_INTEGER, SYNTAX};
use crate::command::events::EventName;
use crate::command::row::*;
use duramen_config::EventClasses;
use duramen_engine::Guard;
use duramen_types::list::{self, End, List};
use duramen_types::{Part, Parts, Text, Type, count};
use duramen_wire::resp::number::parse_integer;

#[rustfmt::skip] // They are rows of a table.
pub(crate) const COMMANDS: &[Spec] = &[
    row("lpush", -3, DENYOOM | FAST, doc(Topic::List, "1.0.0", "O(1)", "Puts elements before the first."),
        Keys::one(ADDS), Effect::Writes(Growth::By(|args, _| growth::texts(args, 2))), Secrets::None, Run::Data(lpush)),
    row("rpush", -3, DENYOOM | FAST, doc(Topic::List, "1.0.0", "O(1)", "Puts elements behind the last."),
        Keys::one(ADDS), Effect::Writes(Growth::By(|args, _| growth::texts(args, 2))), Secrets::None, Run::Data(rpush)),
    row("lpushx", -3, DENYOOM | FAST, doc(Topic::List, "2.2.0", "O(1)", "Puts elements before the first, if there is a list."),
        Keys::one(ADDS), Effect::Writes(Growth::By(|args, _| growth::texts(args, 2))), Secrets::None, Run::Data(lpushx)),
    row("rpushx", -3, DENYOOM | FAST, doc(Topic::List, "2.2.0", "O(1)", "Puts elements behind the last, if there is a list."),
        Keys::one(ADDS), Effect::Writes(Growth::By(|args, _| growth::texts(args, 2))), Secrets::None, Run::Data(rpushx)),
    row("lpop", -2, FAST, doc(Topic::List, "1.0.0", "O(N)", "Takes the first elements."),
        Keys::one(TAKES), Effect::Writes(Growth::Nothing), Secrets::None, Run::Data(lpop)),
    row("rpop", -2, FAST, doc(Topic::List, "1.0.0", "O(N)", "Takes the last elements."),
        Keys::one(TAKES), Effect::Writes(Growth::Nothing), Secrets::None, Run::Data(rpop)),
    row("llen", 2, FAST, doc(Topic::List, "1.0.0", "O(1)", "Returns the number of elements."),
        Keys::one(LOOKS), Effect::Reads, Secrets::None, Run::Data(llen)),
    row("lindex", 3, NO_FLAGS, doc(Topic::List, "1.0.0", "O(N)", "Returns an element by its index."),
        Keys::one(READS), Effect::Reads, Secrets::None, Run::Data(lindex)),
    row("linsert", 5, DENYOOM, doc(Topic::List, "2.2.0", "O(N)", "Puts an element before or behind another."),
        Keys::one(ADDS), Effect::Writes(Growth::By(|args, _| growth::text(args, 4))), Secrets::None, Run::Data(linsert)),
    row("lset", 4, DENYOOM, doc(Topic::List, "1.0.0", "O(N)", "Sets an element by its index."),
        Keys::one(UPDATES), Effect::Writes(Growth::By(|args, _| growth::text(args, 3))), Secrets::None, Run::Data(lset)),
    row("lrange", 4, NO_FLAGS, doc(Topic::List, "1.0.0", "O(N)", "Returns a range of elements."),
        Keys::one(READS), Effect::Reads, Secrets::None, Run::Data(lrange)),
    row("ltrim", 4, NO_FLAGS, doc(Topic::List, "1.0.0", "O(N)", "Keeps a range of elements."),
        Keys::one(REMOVES), Effect::Writes(Growth::Nothing), Secrets::None, Run::Data(ltrim)),
    row("lrem", 4, NO_FLAGS, doc(Topic::List, "1.0.0", "O(N)", "Removes elements that are equal to a string."),
        Keys::one(REMOVES), Effect::Writes(Growth::Nothing), Secrets::None, Run::Data(lrem)),
    row("lpos", -3, NO_FLAGS, doc(Topic::List, "6.0.6", "O(N)", "Returns indexes of elements that are equal to a string."),
        Keys::one(READS), Effect::Reads, Secrets::None, Run::Data(lpos)),
    row("lmove", 5, DENYOOM, doc(Topic::List, "6.2.0", "O(N)", "Moves an element to another list, and returns it."),
        Keys::two(TAKES, ADDS).misses(Misses::None), Effect::Writes(Growth::Moves), Secrets::None, Run::Atomic(lmove)),
    row("rpoplpush", 3, DENYOOM, doc(Topic::List, "1.2.0", "O(N)", "Moves the last element to the front of another list."),
        Keys::two(TAKES, ADDS).misses(Misses::None), Effect::Writes(Growth::Moves), Secrets::None, Run::Atomic(rpoplpush)),
    row("lmpop", -4, NO_FLAGS, doc(Topic::List, "7.0.0", "O(N)", "Takes elements of the first list that has some."),
        Keys::counted(1, TAKES).misses(Misses::None), Effect::Writes(Growth::Nothing), Secrets::None, Run::Atomic(lmpop)),
];

const fn event(name: &'static str) -> EventName {
    (EventClasses::LIST, name)
}

const fn pushed(end: End) -> EventName {
    event(match end {
        End::Head => "lpush",
        End::Tail => "rpush",
    })
}

const fn popped(end: End) -> EventName {
    event(match end {
        End::Head => "lpop",
        End::Tail => "rpop",
    })
}

fn push(ctx: &mut Context<'_>, guard: &mut Guard<'_>, end: End, only_present: bool) -> Done {
    let items: Vec<&[u8]> = ctx.request.args.skip(2).into_iter().collect();
    let length = change(ctx, guard, pushed(end), |_, parts| {
        if only_present && parts.get(Part::Root).is_none() {
            return Ok(0);
        }
        Ok(list::push(parts, end, items.iter().copied())?)
    })?;
    ctx.reply.integer(length as i64)
}

pub(crate) fn lpush(ctx: &mut Context<'_>, guard: &mut Guard<'_>) -> Done {
    push(ctx, guard, End::Head, false)
}

pub(crate) fn rpush(ctx: &mut Context<'_>, guard: &mut Guard<'_>) -> Done {
    push(ctx, guard, End::Tail, false)
}

pub(crate) fn lpushx(ctx: &mut Context<'_>, guard: &mut Guard<'_>) -> Done {
    push(ctx, guard, End::Head, true)
}

pub(crate) fn rpushx(ctx: &mut Context<'_>, guard: &mut Guard<'_>) -> Done {
    push(ctx, guard, End::Tail, true)
}

/// Pops elements; `None`: there is no list.
fn pop_some(
    parts: &mut super::collection::Root<'_, '_>,
    end: End,
    n: usize,
) -> Result<Option<Vec<Vec<u8>>>, Failure> {
    if let (Some(value), 0) = (parts.get(Part::Root), n) {
        count(value, Type::List)?;
        return Ok(Some(Vec::new()));
    }
    if parts.get(Part::Root).is_none() {
        return Ok(None);
    }
    let popped = list::pop(parts, end, n)?;
    Ok(Some(
        popped.iter().map(|item| item.bytes().to_vec()).collect(),
    ))
}

fn pop(ctx: &mut Context<'_>, guard: &mut Guard<'_>, end: End) -> Done {
    let wanted = match ctx.request.args.len() {
        2 => None,
        3 => Some(parse_count(ctx.arg(2))?),
        _ => {
            let name = ctx.request.spec.name;
            return Err(format!("ERR wrong number of arguments for '{name}' command").into());
        }
    };
    let popped = change(ctx, guard, popped(end), |_, parts| {
        pop_some(parts, end, wanted.unwrap_or(1))
    })?;
    match (popped, wanted) {
        (None, None) => return ctx.reply.null(),
        (None, Some(_)) => ctx.reply.encoder().null_array(),
        (Some(items), Some(_)) => write_items(ctx, &items),
        (Some(items), None) => return ctx.reply.bulk(items.first().map_or(&[], Vec::as_slice)),
    }
    Ok(())
}

fn write_items(ctx: &mut Context<'_>, items: &[Vec<u8>]) {
    let mut reply = ctx.reply.encoder();
    reply.array(items.len());
    items.iter().for_each(|item| reply.bulk(item));
}

pub(crate) fn lpop(ctx: &mut Context<'_>, guard: &mut Guard<'_>) -> Done {
    pop(ctx, guard, End::Head)
}

pub(crate) fn rpop(ctx: &mut Context<'_>, guard: &mut Guard<'_>) -> Done {
    pop(ctx, guard, End::Tail)
}

pub(crate) fn llen(ctx: &mut Context<'_>, guard: &mut Guard<'_>) -> Done {
    let value = read(ctx, guard)?;
    let count = value.map_or(Ok(0), |value| count(value, Type::List))?;
    ctx.reply.integer(count as i64)
}

/// The position that an index stands for; a negative index counts from the end.
fn place(index: i64, len: usize) -> Option<usize> {
    let len_signed = i64::try_from(len).ok()?;
    let at = if index < 0 {
        index.checked_add(len_signed)?
    } else {
        index
    };
    usize::try_from(at).ok().filter(|at| *at < len)
}

pub(crate) fn lindex(ctx: &mut Context<'_>, guard: &mut Guard<'_>) -> Done {
    let Some(value) = read(ctx, guard)? else {
        return ctx.reply.null();
    };
    let len = count(value, Type::List)?;
    let index = parse_integer(ctx.arg(2)).ok_or(NOT_AN_INTEGER)?;
    let Some(at) = place(index, len) else {
        return ctx.reply.null();
    };
    match list::range(value, at, 1)?.first() {
        Some(item) => ctx.reply.bulk(&item.bytes()),
        None => ctx.reply.null(),
    }
}

pub(crate) fn lset(ctx: &mut Context<'_>, guard: &mut Guard<'_>) -> Done {
    let args = ctx.request.args;
    change(ctx, guard, event("lset"), |ctx, parts| {
        let mut list = List::load(parts)?;
        if list.items.is_empty() {
            return Err(NO_SUCH_KEY);
        }
        let index = parse_integer(ctx.arg(2)).ok_or(NOT_AN_INTEGER)?;
        let at = place(index, list.items.len());
        let item = at.and_then(|at| list.items.get_mut(at));
        *item.ok_or(Failure::Text("ERR index out of range"))? =
            Text::of(args.get(3).unwrap_or_default());
        Ok(list.store(parts)?)
    })?;
    ctx.reply.ok()
}

pub(crate) fn linsert(ctx: &mut Context<'_>, guard: &mut Guard<'_>) -> Done {
    let after = match ctx.arg(2) {
        side if side.eq_ignore_ascii_case(b"after") => 1,
        side if side.eq_ignore_ascii_case(b"before") => 0,
        _ => return Err(SYNTAX),
    };
    let (pivot, item) = (Text::of(ctx.arg(3)), Text::of(ctx.arg(4)));
    let length = change(ctx, guard, event("linsert"), |_, parts| {
        let mut list = List::load(parts)?;
        if list.items.is_empty() {
            return Ok(0);
        }
        let Some(at) = list.items.iter().position(|item| *item == pivot) else {
            return Ok(-1);
        };
        list.items.insert(at + after, item);
        list.store(parts)?;
        Ok(list.items.len() as i64)
    })?;
    ctx.reply.integer(length)
}

/// The range from `start` to `stop`, both included and counted from the end if negative.
pub(crate) fn range_of(start: i64, stop: i64, len: usize) -> std::ops::Range<usize> {
    let len = len as i64;
    let from_end = |at: i64| if at < 0 { at.saturating_add(len) } else { at };
    let (start, stop) = (from_end(start).max(0), from_end(stop).min(len - 1));
    if start > stop {
        return 0..0;
    }
    start as usize..stop as usize + 1
}

fn parse_range(ctx: &Context<'_>) -> Result<(i64, i64), Failure> {
    let start = parse_integer(ctx.arg(2)).ok_or(NOT_AN_INTEGER)?;
    let stop = parse_integer(ctx.arg(3)).ok_or(NOT_AN_INTEGER)?;
    Ok((start, stop))
}

pub(crate) fn lrange(ctx: &mut Context<'_>, guard: &mut Guard<'_>) -> Done {
    let (start, stop) = parse_range(ctx)?;
    let items = match read(ctx, guard)? {
        Some(value) => {
            let range = range_of(start, stop, count(value, Type::List)?);
            list::range(value, range.start, range.len())?
        }
        None => Vec::new(),
    };
    let mut reply = ctx.reply.encoder();
    reply.array(items.len());
    items.iter().for_each(|item| reply.bulk(&item.bytes()));
    Ok(())
}

pub(crate) fn ltrim(ctx: &mut Context<'_>, guard: &mut Guard<'_>) -> Done {
    let (start, stop) = parse_range(ctx)?;
    let is_whole = change(ctx, guard, event("ltrim"), |_, parts| {
        let mut list = List::load(parts)?;
        let len = list.items.len();
        let range = range_of(start, stop, len);
        if range.len() < len {
            list.items.truncate(range.end);
            list.items.drain(..range.start);
            list.store(parts)?;
        }
        Ok(len > 0 && range.len() == len)
    })?;
    if is_whole {
        ctx.notify(event("ltrim"), ctx.arg(1)); // as Redis does
    }
    ctx.reply.ok()
}

pub(crate) fn lrem(ctx: &mut Context<'_>, guard: &mut Guard<'_>) -> Done {
    let wanted = parse_integer(ctx.arg(2)).ok_or(NOT_AN_INTEGER)?;
    let item = Text::of(ctx.arg(3));
    let removed = change(ctx, guard, event("lrem"), |_, parts| {
        let mut list = List::load(parts)?;
        let before = list.items.len();
        let mut left = match wanted {
            0 => usize::MAX,
            wanted => usize::try_from(wanted.unsigned_abs()).unwrap_or(usize::MAX),
        };
        let mut keeps = |found: &Text<'_>| {
            let removes = left > 0 && *found == item;
            left -= usize::from(removes);
            !removes
        };
        if wanted < 0 {
            list.items.reverse();
            list.items.retain(&mut keeps);
            list.items.reverse();
        } else {
            list.items.retain(&mut keeps);
        }
        if list.items.len() < before {
            list.store(parts)?;
        }
        Ok(before - list.items.len())
    })?;
    ctx.reply.integer(removed as i64)
}

/// The options of LPOS.
struct Search {
    rank: i64,
    /// The number of wanted positions; `None`: only the first one; 0: all.
    wanted: Option<usize>,
    /// Maximum number of compared elements; 0: the whole list is searched.
    compared_max: usize,
}

fn parse_search(ctx: &Context<'_>) -> Result<Search, Failure> {
    let mut search = Search {
        rank: 1,
        wanted: None,
        compared_max: 0,
    };
    let mut rest = ctx.request.args.skip(3).into_iter();
    while let Some(option) = rest.next() {
        let value = rest.next().ok_or(SYNTAX)?;
        let not_negative = |text| {
            let number = parse_integer(value).and_then(|number| usize::try_from(number).ok());
            number.ok_or(Failure::Text(text))
        };
        if option.eq_ignore_ascii_case(b"rank") {
            search.rank = super::collection::parse_random_count(value)?;
            if search.rank == 0 {
                return Err(Failure::Text(
                    "ERR RANK can't be zero: use 1 to start from the first match, 2 from the second ... \
                     or use negative to start from the end of the list",
                ));
            }
        } else if option.eq_ignore_ascii_case(b"count") {
            search.wanted = Some(not_negative("ERR COUNT can't be negative")?);
        } else if option.eq_ignore_ascii_case(b"maxlen") {
            search.compared_max = not_negative("ERR MAXLEN can't be negative")?;
        } else {
            return Err(SYNTAX);
        }
    }
    Ok(search)
}

pub(crate) fn lpos(ctx: &mut Context<'_>, guard: &mut Guard<'_>) -> Done {
    let search = parse_search(ctx)?;
    let list = List::of(read(ctx, guard)?)?;
    let item = Text::of(ctx.arg(2));
    let limit = |n| if n == 0 { usize::MAX } else { n };
    let len = list.items.len();
    let skipped = usize::try_from(search.rank.unsigned_abs() - 1).unwrap_or(usize::MAX);
    let places = (0..len).map(|n| if search.rank < 0 { len - 1 - n } else { n });
    let found: Vec<usize> = places
        .take(limit(search.compared_max))
        .filter(|at| list.items.get(*at) == Some(&item))
        .skip(skipped)
        .take(search.wanted.map_or(1, limit))
        .collect();
    if search.wanted.is_none() {
        return match found.first() {
            Some(at) => ctx.reply.integer(*at as i64),
            None => ctx.reply.null(),
        };
    }
    let mut reply = ctx.reply.encoder();
    reply.array(found.len());
    found.iter().for_each(|at| reply.integer(*at as i64));
    Ok(())
}

pub(crate) fn parse_end(text: &[u8]) -> Result<End, Failure> {
    match text {
        text if text.eq_ignore_ascii_case(b"left") => Ok(End::Head),
        text if text.eq_ignore_ascii_case(b"right") => Ok(End::Tail),
        _ => Err(SYNTAX),
    }
}

pub(crate) fn lmove(ctx: &mut Context<'_>, guard: &mut Guard<'_>) -> Done {
    let (from, to) = (parse_end(ctx.arg(3))?, parse_end(ctx.arg(4))?);
    move_item(ctx, guard, from, to)
}

pub(crate) fn rpoplpush(ctx: &mut Context<'_>, guard: &mut Guard<'_>) -> Done {
    move_item(ctx, guard, End::Tail, End::Head)
}

/// LMOVE and RPOPLPUSH.
fn move_item(ctx: &mut Context<'_>, guard: &mut Guard<'_>, from: End, to: End) -> Done {
    match try_move(ctx, guard, from, to, &[])? {
        true => Ok(()),
        false => ctx.reply.null(),
    }
}

/// Moves one element from argument 1 to argument 2, and replies with it. Returns false if there is
/// none, or if it may not be taken; `may_take` says so for the first key.
pub(crate) fn try_move(
    ctx: &mut Context<'_>,
    guard: &mut Guard<'_>,
    from: End,
    to: End,
    may_take: &[bool],
) -> Result<bool, Failure> {
    let is_same = ctx.arg(1) == ctx.arg(2);
    let mut is_done = false;
    at_once(ctx, guard, |ctx, found| {
        is_done = false;
        let [source, target] = found else {
            return Err(SYNTAX);
        };
        let Some(value) = awaited(ctx.client, *source, Type::List)? else {
            return Ok(Vec::new());
        };
        if may_take.first() == Some(&false) {
            count(value, Type::List)?;
            return Ok(Vec::new());
        }
        is_done = true;
        if is_same {
            let events = [Some(pushed(to)), Some(popped(from))];
            let (write, item) = Write::change(0, *source, events, |parts| {
                let mut list = List::load(parts)?;
                let item = match from {
                    End::Head => list.items.remove(0),
                    End::Tail => list.items.pop().unwrap_or(Text::Bytes(b"")),
                };
                let at = if to == End::Head { 0 } else { list.items.len() };
                list.items.insert(at, item);
                list.store(parts)?;
                Ok(item.bytes().to_vec())
            })?;
            ctx.reply.bulk(&item)?;
            return Ok(vec![write]);
        }
        let events = [Some(popped(from)), None];
        let (removed, item) = Write::change(0, *source, events, |parts| {
            let items = pop_some(parts, from, 1)?.unwrap_or_default();
            Ok(items.into_iter().next().unwrap_or_default())
        })?;
        let events = [Some(pushed(to)), None];
        let (added, _) = Write::change(1, *target, events, |parts| {
            Ok(list::push(parts, to, [&item[..]].into_iter())?)
        })?;
        ctx.reply.bulk(&item)?;
        Ok(vec![added, removed]) // in the order of Redis's events
    })?;
    Ok(is_done)
}

pub(crate) fn lmpop(ctx: &mut Context<'_>, guard: &mut Guard<'_>) -> Done {
    let too_few = Failure::Text("ERR numkeys should be greater than 0");
    let keys = parse_keys(ctx, 1, too_few, SYNTAX)?;
    let end = parse_end(ctx.request.args.get(2 + keys).ok_or(SYNTAX)?)?;
    let wanted = parse_pop_count(ctx, 3 + keys)?;
    if !take_first(ctx, guard, end, wanted, &[], write_popped)? {
        ctx.reply.encoder().null_array();
    }
    Ok(())
}

/// Takes up to `wanted` elements of the first list that has some, and lets `write` reply with its
/// key and the elements. Returns false if no list has elements that may be taken; `may_take` says
/// for each key whether they may.
pub(crate) fn take_first(
    ctx: &mut Context<'_>,
    guard: &mut Guard<'_>,
    end: End,
    wanted: usize,
    may_take: &[bool],
    write: impl Fn(&mut Context<'_>, &[u8], &[Vec<u8>]),
) -> Result<bool, Failure> {
    change_first(ctx, guard, Type::List, may_take, |ctx, n, key, found| {
        let events = [Some(popped(end)), None];
        let (change, items) =
            Write::change(n, Some(found), events, |parts| pop_some(parts, end, wanted))?;
        write(ctx, key, &items.unwrap_or_default());
        Ok(change)
    })
}

/// The reply of LMPOP.
pub(crate) fn write_popped(ctx: &mut Context<'_>, key: &[u8], items: &[Vec<u8>]) {
    let mut reply = ctx.reply.encoder();
    reply.array(2);
    reply.bulk(key);
    write_items(ctx, items);
}
