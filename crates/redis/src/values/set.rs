//! Sets: members, their combinations, random members.

use super::collection::{
    self, Write, at_once, change, encoded, parse_count, parse_keys, parse_random_count,
    random_places, read, typed, write_random,
};
use super::computed::{Part, computed_at_once, end_part};
use crate::command::context::{Context, Done, Failure, SYNTAX};
use crate::command::events::EventName;
use crate::command::flag;
use crate::command::row::*;
use crate::state::progress::Progress;
use duramen_base::limits::COLLECTION_ELEMENTS_MAX;
use duramen_config::EventClasses;
use duramen_engine::{Guard, Object};
use duramen_types::table::Set;
use duramen_types::{Members, Text, Type, count, find_at_most_once, members_from};
use duramen_wire::resp::number::parse_integer;

#[rustfmt::skip] // They are rows of a table.
pub(crate) const COMMANDS: &[Spec] = &[
    row("sadd", -3, DENYOOM | FAST, doc(Topic::Set, "1.0.0", "O(N)", "Adds members."),
        Keys::one(ADDS), Effect::Writes(Growth::By(|args, _| growth::texts(args, 2))), Secrets::None, Run::Data(sadd)),
    row("srem", -3, FAST, doc(Topic::Set, "1.0.0", "O(N)", "Removes members."),
        Keys::one(REMOVES), Effect::Writes(Growth::Nothing), Secrets::None, Run::Data(srem)),
    row("scard", 2, FAST, doc(Topic::Set, "1.0.0", "O(1)", "Returns the number of members."),
        Keys::one(LOOKS), Effect::Reads, Secrets::None, Run::Data(scard)),
    row("sismember", 3, FAST, doc(Topic::Set, "1.0.0", "O(1)", "Tells whether a member exists."),
        Keys::one(LOOKS), Effect::Reads, Secrets::None, Run::Data(sismember)),
    row("smismember", -3, FAST, doc(Topic::Set, "6.2.0", "O(N)", "Tells which members exist."),
        Keys::one(READS), Effect::Reads, Secrets::None, Run::Data(smismember)),
    row("smembers", 2, NO_FLAGS, doc(Topic::Set, "1.0.0", "O(N)", "Returns all members."),
        Keys::one(READS), Effect::Reads, Secrets::None, Run::Data(smembers)).tips(&["nondeterministic_output_order"]),
    row("spop", -2, FAST, doc(Topic::Set, "1.0.0", "O(N)", "Takes random members."),
        Keys::one(TAKES), Effect::Writes(Growth::Nothing), Secrets::None, Run::Data(spop)).tips(&["nondeterministic_output"]),
    row("srandmember", -2, NO_FLAGS, doc(Topic::Set, "1.0.0", "O(N)", "Returns random members."),
        Keys::one(READS), Effect::Reads, Secrets::None, Run::Data(srandmember))
            .differs("A negative count takes each MiB of the reply from the set of that moment.").tips(&["nondeterministic_output"]),
    row("smove", 4, FAST, doc(Topic::Set, "1.0.0", "O(N)", "Moves a member to another set."),
        Keys::two(TAKES, ADDS).misses(Misses::None), Effect::Writes(Growth::By(|args, _| growth::text(args, 3))), Secrets::None, Run::Atomic(smove)),
    row("sinter", -2, NO_FLAGS, doc(Topic::Set, "1.0.0", "O(N*M)", "Returns the members of all sets."),
        Keys::all(READS), Effect::Reads, Secrets::None, Run::Atomic(sinter)).tips(&["nondeterministic_output_order"]),
    row("sinterstore", -3, DENYOOM, doc(Topic::Set, "1.0.0", "O(N*M)", "Stores the members of all sets."),
        Keys::target_and_sources(1, UPDATES, READS), Effect::Writes(Growth::Combines), Secrets::None, Run::Atomic(sinterstore)),
    row("sintercard", -3, NO_FLAGS, doc(Topic::Set, "7.0.0", "O(N*M)", "Counts the members of all sets."),
        Keys::counted(1, READS), Effect::Reads, Secrets::None, Run::Atomic(sintercard)),
    row("sunion", -2, NO_FLAGS, doc(Topic::Set, "1.0.0", "O(N)", "Returns the members of any set."),
        Keys::all(READS), Effect::Reads, Secrets::None, Run::Atomic(sunion)).tips(&["nondeterministic_output_order"]),
    row("sunionstore", -3, DENYOOM, doc(Topic::Set, "1.0.0", "O(N)", "Stores the members of any set."),
        Keys::target_and_sources(1, SETS, READS), Effect::Writes(Growth::Combines), Secrets::None, Run::Atomic(sunionstore)),
    row("sdiff", -2, NO_FLAGS, doc(Topic::Set, "1.0.0", "O(N)", "Returns the members of the first set alone."),
        Keys::all(READS), Effect::Reads, Secrets::None, Run::Atomic(sdiff)).tips(&["nondeterministic_output_order"]),
    row("sdiffstore", -3, DENYOOM, doc(Topic::Set, "1.0.0", "O(N)", "Stores the members of the first set alone."),
        Keys::target_and_sources(1, SETS, READS), Effect::Writes(Growth::Combines), Secrets::None, Run::Atomic(sdiffstore)),
    row("sscan", -3, NO_FLAGS, doc(Topic::Set, "2.8.0", "O(N)", "Walks over members."),
        Keys::one(READS), Effect::Reads, Secrets::None, Run::Data(sscan))
            .differs("Everything in one step, with cursor 0.").tips(&["nondeterministic_output"]),
];

const fn event(name: &'static str) -> EventName {
    (EventClasses::SET, name)
}

pub(crate) fn sadd(ctx: &mut Context<'_>, guard: &mut Guard<'_>) -> Done {
    let args = ctx.request.args;
    let added = change(ctx, guard, event("sadd"), |_, parts| {
        let mut set = Set::load(parts)?;
        set.expect(args.len() - 2);
        let before = set.len();
        for member in args.skip(2) {
            set.insert(Text::of(member), ());
        }
        let added = set.len() - before;
        if added > 0 {
            set.store(parts)?;
        }
        Ok(added)
    })?;
    ctx.reply.integer(added as i64)
}

pub(crate) fn srem(ctx: &mut Context<'_>, guard: &mut Guard<'_>) -> Done {
    let members: Vec<_> = ctx.request.args.skip(2).into_iter().map(Text::of).collect();
    let removed = change(ctx, guard, event("srem"), |_, parts| {
        let mut set = Set::load(parts)?;
        let removed = set.remove(members.iter().copied());
        if removed > 0 {
            set.store(parts)?;
        }
        Ok(removed)
    })?;
    ctx.reply.integer(removed as i64)
}

pub(crate) fn scard(ctx: &mut Context<'_>, guard: &mut Guard<'_>) -> Done {
    let value = read(ctx, guard)?;
    let count = value.map_or(Ok(0), |value| count(value, Type::Set))?;
    ctx.reply.integer(count as i64)
}

pub(crate) fn sismember(ctx: &mut Context<'_>, guard: &mut Guard<'_>) -> Done {
    let found = match read(ctx, guard)? {
        Some(value) => find_at_most_once::<()>(value, ctx.arg(2))?.is_some(),
        None => false,
    };
    ctx.reply.integer(found.into())
}

pub(crate) fn smismember(ctx: &mut Context<'_>, guard: &mut Guard<'_>) -> Done {
    let mut set = Set::of(read(ctx, guard)?)?;
    let members = ctx.request.args.skip(2);
    set.expect(members.len());
    let mut reply = ctx.reply.encoder();
    reply.array(members.len());
    for member in members {
        reply.integer(set.has(&Text::of(member)).into());
    }
    Ok(())
}

/// Replies with a number of members, as a set.
fn write_members<'m>(
    ctx: &mut Context<'_>,
    number: usize,
    members: impl Iterator<Item = Text<'m>>,
) {
    let mut reply = ctx.reply.encoder();
    reply.set(number);
    members.for_each(|member| reply.bulk(&member.bytes()));
}

pub(crate) fn smembers(ctx: &mut Context<'_>, guard: &mut Guard<'_>) -> Done {
    let set = Set::of(read(ctx, guard)?)?;
    let members = set.elements().iter().map(|(member, ())| *member);
    write_members(ctx, set.len(), members);
    Ok(())
}

pub(crate) fn spop(ctx: &mut Context<'_>, guard: &mut Guard<'_>) -> Done {
    let wanted = match ctx.request.args.len() {
        2 => None,
        3 => Some(parse_count(ctx.arg(2))?),
        _ => return Err(SYNTAX),
    };
    let number = wanted.unwrap_or(1);
    let popped: Vec<Vec<u8>> = change(ctx, guard, event("spop"), |ctx, parts| {
        let mut set = Set::load(parts)?;
        let places = random_places(ctx, set.len(), number);
        let elements = set.elements();
        let picked: Vec<_> = places.iter().filter_map(|at| elements.get(*at)).collect();
        let picked: Vec<Text<'_>> = picked.into_iter().map(|(member, ())| *member).collect();
        if !picked.is_empty() {
            set.remove(picked.iter().copied());
            set.store(parts)?;
        }
        Ok(picked
            .iter()
            .map(|member| member.bytes().to_vec())
            .collect())
    })?;
    let mut reply = ctx.reply.encoder();
    match (wanted, popped.first()) {
        (None, None) => reply.null(),
        (None, Some(member)) => reply.bulk(member),
        (Some(_), _) => {
            reply.set(popped.len());
            popped.iter().for_each(|member| reply.bulk(member));
        }
    }
    Ok(())
}

pub(crate) fn srandmember(ctx: &mut Context<'_>, guard: &mut Guard<'_>) -> Done {
    let wanted = match ctx.request.args.len() {
        2 => None,
        3 => Some(parse_random_count(ctx.arg(2))?),
        _ => return Err(SYNTAX),
    };
    let set = Set::of(read(ctx, guard)?)?;
    let Some(wanted) = wanted else {
        return match ctx.thread.random().pick(set.elements()) {
            Some((member, ())) => ctx.reply.bulk(&member.bytes()),
            None => ctx.reply.null(),
        };
    };
    write_random(ctx, set.elements(), wanted, 1, |reply, (member, ())| {
        reply.bulk(&member.bytes());
    })
}

pub(crate) fn smove(ctx: &mut Context<'_>, guard: &mut Guard<'_>) -> Done {
    let member = Text::of(ctx.arg(3));
    let is_same = ctx.arg(1) == ctx.arg(2);
    at_once(ctx, guard, |ctx, found| {
        let [source, target] = found else {
            return Err(SYNTAX);
        };
        let Some(value) = typed(*source)? else {
            ctx.reply.integer(0)?;
            return Ok(Vec::new());
        };
        let set = Set::of(Some(value))?;
        let other = Set::of(typed(*target)?)?;
        let is_member = set.has(&member);
        ctx.reply.integer(is_member.into())?;
        if is_same || !is_member {
            return Ok(Vec::new());
        }
        let events = [Some(event("srem")), None];
        let (removed, _) = Write::change(0, *source, events, |parts| {
            let mut set = Set::load(parts)?;
            set.remove([member].into_iter());
            Ok(set.store(parts)?)
        })?;
        if other.has(&member) {
            return Ok(vec![removed]);
        }
        let events = [Some(event("sadd")), None];
        let (added, _) = Write::change(1, *target, events, |parts| {
            let mut set = Set::load(parts)?;
            set.insert(member, ());
            Ok(set.store(parts)?)
        })?;
        Ok(vec![removed, added])
    })
}

/// An operation on several sets.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Operation {
    Union,
    Intersection,
    Difference,
}

/// Fails if a result may not have so many members. A stored result may have as many as a
/// collection, and a reply as many as fit into the output, with at least 7 bytes for each.
pub(crate) fn check_result(ctx: &Context<'_>, stores: bool, members: usize) -> Done {
    match stores {
        true if members > COLLECTION_ELEMENTS_MAX => Err(duramen_types::Error::Full.into()),
        false if members > ctx.reply.bytes_max() / 7 => Err(ctx.reply.too_long()),
        _ => Ok(()),
    }
}

/// Elements that are combined between two looks at the clock: some 50 µs.
const LOOK_EVERY: usize = 2_048;

/// Combines one source after the other, since there may be many, until the time of the command's
/// part is over (computed::C2). Returns true if all are combined; else `progress` has the result so
/// far.
fn combined(
    ctx: &Context<'_>,
    operation: Operation,
    found: &[Option<Object<'_>>],
    progress: &mut Progress,
    part: &Part,
) -> Result<bool, Failure> {
    let mut sources = Vec::with_capacity(found.len());
    for found in found {
        let value = typed(*found)?;
        let number = value.map_or(Ok(0), |value| count(value, Type::Set))?;
        sources.push((number, value));
    }
    if operation == Operation::Intersection {
        sources.sort_by_key(|(number, _)| *number);
    }
    let (mut combined, done) = (0_usize, progress.done);
    for (n, (number, value)) in sources.into_iter().enumerate().skip(done) {
        let Progress {
            members, at, seen, ..
        } = &mut *progress;
        let narrows = n > 0 && operation != Operation::Union;
        if narrows && members.is_empty() {
            break;
        }
        if narrows && *at == 0 {
            seen.clear();
            seen.resize(members.len(), false);
        }
        if n > 0 {
            members.expect(number);
        } else if *at == 0 {
            members.reserve(number, value.map_or(0, <[u8]>::len));
        }
        let next = members_from(value, *at, |member| {
            if narrows {
                let place = members.position(&member);
                if let Some(seen) = place.and_then(|place| seen.get_mut(place)) {
                    *seen = true;
                }
            } else if n > 0 {
                members.insert(&member);
            } else {
                members.add(&member);
            }
            combined += 1;
            !combined.is_multiple_of(LOOK_EVERY) || !part.is_over()
        })?;
        if let Some(next) = next {
            *at = next;
            return Ok(false);
        }
        let keeps = operation == Operation::Intersection;
        if narrows && seen.contains(&!keeps) {
            members.retain(|place| seen.get(place) == Some(&keeps));
        }
        *at = 0;
        progress.done = n + 1;
        if operation == Operation::Union {
            let stores = ctx.request.spec.has(flag::WRITE);
            check_result(ctx, stores, progress.members.len())?;
        }
        if part.is_over() {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Combines sets in a part of the command. When all are combined, `ends` gets the result.
fn combine_then(
    ctx: &mut Context<'_>,
    operation: Operation,
    found: &[Option<Object<'_>>],
    ends: impl FnOnce(&mut Context<'_>, &Members) -> Result<Vec<Write>, Failure>,
) -> Result<Vec<Write>, Failure> {
    let (mut progress, part) = Part::begin(ctx);
    if combined(ctx, operation, found, &mut progress, &part)? {
        return ends(ctx, &progress.members);
    }
    let done = progress.done;
    Err(end_part(ctx, progress, done, Vec::new()))
}

fn combine(ctx: &mut Context<'_>, guard: &mut Guard<'_>, operation: Operation) -> Done {
    computed_at_once(ctx, guard, |ctx, found| {
        combine_then(ctx, operation, found, |ctx, members| {
            write_members(ctx, members.len(), members.all());
            Ok(Vec::new())
        })
    })
}

/// As [`combine`], with the result in argument 1.
fn combine_into(ctx: &mut Context<'_>, guard: &mut Guard<'_>, operation: Operation) -> Done {
    computed_at_once(ctx, guard, |ctx, found| {
        let found = found.get(1..).unwrap_or_default();
        combine_then(ctx, operation, found, |ctx, members| {
            let set = members.set()?;
            ctx.reply.integer(set.len() as i64)?;
            let value = encoded(|parts| set.store(parts))?;
            Ok(vec![Write::result(
                0,
                value,
                true,
                event(ctx.request.spec.name),
            )])
        })
    })
}

pub(crate) fn sunion(ctx: &mut Context<'_>, guard: &mut Guard<'_>) -> Done {
    combine(ctx, guard, Operation::Union)
}

pub(crate) fn sinter(ctx: &mut Context<'_>, guard: &mut Guard<'_>) -> Done {
    combine(ctx, guard, Operation::Intersection)
}

pub(crate) fn sdiff(ctx: &mut Context<'_>, guard: &mut Guard<'_>) -> Done {
    combine(ctx, guard, Operation::Difference)
}

pub(crate) fn sunionstore(ctx: &mut Context<'_>, guard: &mut Guard<'_>) -> Done {
    combine_into(ctx, guard, Operation::Union)
}

pub(crate) fn sinterstore(ctx: &mut Context<'_>, guard: &mut Guard<'_>) -> Done {
    combine_into(ctx, guard, Operation::Intersection)
}

pub(crate) fn sdiffstore(ctx: &mut Context<'_>, guard: &mut Guard<'_>) -> Done {
    combine_into(ctx, guard, Operation::Difference)
}

/// Parses the LIMIT of SINTERCARD and ZINTERCARD after their keys; 0: there is none.
pub(crate) fn parse_limit(ctx: &Context<'_>, from: usize) -> Result<usize, Failure> {
    let (mut limit, mut rest) = (0, ctx.request.args.skip(from).into_iter());
    while let Some(option) = rest.next() {
        if !option.eq_ignore_ascii_case(b"limit") {
            return Err(SYNTAX);
        }
        let number = parse_integer(rest.next().ok_or(SYNTAX)?);
        let number = number.and_then(|number| usize::try_from(number).ok());
        limit = number.ok_or(Failure::Text("ERR LIMIT can't be negative"))?;
    }
    Ok(limit)
}

pub(crate) fn sintercard(ctx: &mut Context<'_>, guard: &mut Guard<'_>) -> Done {
    let too_few = Failure::Text("ERR numkeys should be greater than 0");
    let too_many = Failure::Text("ERR Number of keys can't be greater than number of args");
    let keys = parse_keys(ctx, 1, too_few, too_many)?;
    let limit = parse_limit(ctx, 2 + keys)?;
    computed_at_once(ctx, guard, |ctx, found| {
        combine_then(ctx, Operation::Intersection, found, |ctx, members| {
            let count = if limit > 0 {
                members.len().min(limit)
            } else {
                members.len()
            };
            ctx.reply.integer(count as i64)?;
            Ok(Vec::new())
        })
    })
}

pub(crate) fn sscan(ctx: &mut Context<'_>, guard: &mut Guard<'_>) -> Done {
    collection::parse_scan_cursor(ctx)?;
    let Some(value) = read(ctx, guard)? else {
        return collection::empty_scan(ctx);
    };
    let set = Set::of(Some(value))?;
    let options = collection::parse_scan(ctx, Type::Set)?;
    let shown = set.elements().iter();
    let shown: Vec<_> = shown
        .filter(|(member, ())| options.matches(member))
        .collect();
    let mut reply = ctx.reply.encoder();
    reply.array(2);
    reply.bulk(b"0");
    reply.array(shown.len());
    shown
        .iter()
        .for_each(|(member, ())| reply.bulk(&member.bytes()));
    Ok(())
}
