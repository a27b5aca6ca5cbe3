//! Sorted sets: changes, scores and ranks, popping, random members.
//!
//! Ranges are in [`range`], unions and their like in [`combine`].

pub(crate) mod combine;
pub(crate) mod range;

use crate::command::context::{Context, Done, Failure, NOT_A_FLOAT, SYNTAX};
use crate::command::events::EventName;
use crate::command::row::*;
use crate::values::collection::{
    self, Write, change, change_first, parse_count, parse_keys, parse_pop_count,
    parse_random_count, read, write_random,
};
use duramen_config::EventClasses;
use duramen_engine::Guard;
use duramen_types::{Sorted, Text, Type, count, find_at_most_once};
use duramen_wire::resp::number::{parse_double, parse_integer};
use duramen_wire::resp::{Args, Protocol};
use std::ops::Deref;

#[rustfmt::skip] // They are rows of a table.
pub(crate) const COMMANDS: &[Spec] = &[
    row("zadd", -4, DENYOOM | FAST, doc(Topic::SortedSet, "1.2.0", "O(N)", "Adds members or changes their scores."),
        Keys::one(UPDATES), Effect::Writes(Growth::By(|args, _| scored_bytes(args, false))), Secrets::None, Run::Data(zadd)),
    row("zincrby", 4, DENYOOM | FAST, doc(Topic::SortedSet, "1.2.0", "O(N)", "Adds to the score of a member."),
        Keys::one(CHANGES), Effect::Writes(Growth::By(|args, _| scored_bytes(args, true))), Secrets::None, Run::Data(zincrby)),
    row("zrem", -3, FAST, doc(Topic::SortedSet, "1.2.0", "O(N)", "Removes members."),
        Keys::one(REMOVES), Effect::Writes(Growth::Nothing), Secrets::None, Run::Data(zrem)),
    row("zcard", 2, FAST, doc(Topic::SortedSet, "1.2.0", "O(1)", "Returns the number of members."),
        Keys::one(LOOKS), Effect::Reads, Secrets::None, Run::Data(zcard)),
    row("zscore", 3, FAST, doc(Topic::SortedSet, "1.2.0", "O(1)", "Returns the score of a member."),
        Keys::one(READS), Effect::Reads, Secrets::None, Run::Data(zscore)),
    row("zmscore", -3, FAST, doc(Topic::SortedSet, "6.2.0", "O(N)", "Returns the scores of members."),
        Keys::one(READS), Effect::Reads, Secrets::None, Run::Data(zmscore)),
    row("zrank", -3, FAST, doc(Topic::SortedSet, "2.0.0", "O(N)", "Returns the rank of a member."),
        Keys::one(READS), Effect::Reads, Secrets::None, Run::Data(zrank)),
    row("zrevrank", -3, FAST, doc(Topic::SortedSet, "2.0.0", "O(N)", "Returns the rank of a member from the end."),
        Keys::one(READS), Effect::Reads, Secrets::None, Run::Data(zrevrank)),
    row("zpopmin", -2, FAST, doc(Topic::SortedSet, "5.0.0", "O(N)", "Takes the members with the lowest scores."),
        Keys::one(TAKES), Effect::Writes(Growth::Nothing), Secrets::None, Run::Data(zpopmin)),
    row("zpopmax", -2, FAST, doc(Topic::SortedSet, "5.0.0", "O(N)", "Takes the members with the highest scores."),
        Keys::one(TAKES), Effect::Writes(Growth::Nothing), Secrets::None, Run::Data(zpopmax)),
    row("zmpop", -4, NO_FLAGS, doc(Topic::SortedSet, "7.0.0", "O(N)", "Takes members of the first sorted set that has some."),
        Keys::counted(1, TAKES).misses(Misses::None), Effect::Writes(Growth::Nothing), Secrets::None, Run::Atomic(zmpop)),
    row("zrandmember", -2, NO_FLAGS, doc(Topic::SortedSet, "6.2.0", "O(N)", "Returns random members."),
        Keys::one(READS), Effect::Reads, Secrets::None, Run::Data(zrandmember))
            .differs("A negative count takes each MiB of the reply from the sorted set of that moment.").tips(&["nondeterministic_output"]),
    row("zscan", -3, NO_FLAGS, doc(Topic::SortedSet, "2.8.0", "O(N)", "Walks over members and scores."),
        Keys::one(READS), Effect::Reads, Secrets::None, Run::Data(zscan))
            .differs("Everything in one step, with cursor 0.").tips(&["nondeterministic_output"]),
];

/// The growth by scores and members in turn at the end of a request, behind its options. `adds`:
/// the scores are added to those of the set, and a sum may be longer than both.
fn scored_bytes(args: &Args<'_>, adds: bool) -> usize {
    let is_incr = |arg: &[u8]| arg.eq_ignore_ascii_case(b"incr");
    let adds = adds || args.skip(2).into_iter().any(is_incr);
    let bytes = args.skip(2).into_iter().enumerate().map(|(n, arg)| {
        let is_member = (args.len() - 3 - n).is_multiple_of(2);
        match parse_integer(arg) {
            _ if is_member => growth::text_bytes(arg.len()),
            Some(_) if !adds => arg.len().min(growth::SCORE_BYTES),
            _ => growth::SCORE_BYTES,
        }
    });
    bytes.sum()
}

pub(crate) const fn event(name: &'static str) -> EventName {
    (EventClasses::SORTED_SET, name)
}

/// Members with scores, apart from the value that they were in.
pub(crate) type Scored = Vec<(Vec<u8>, f64)>;

/// A score from an argument: any number, infinity included.
pub(crate) fn parse_score(text: &[u8]) -> Option<f64> {
    let score = parse_double(text)?;
    let spelled_infinite = text.iter().any(|byte| matches!(byte, b'i' | b'I'));
    (!score.is_nan() && (score.is_finite() || spelled_infinite)).then_some(score)
}

/// Replies with members, and their scores if wanted, in the form of Redis: pairs in RESP3, one list
/// in RESP2.
pub(crate) fn write_scored(
    ctx: &mut Context<'_>,
    members: impl ExactSizeIterator<Item = (impl Deref<Target = [u8]>, f64)>,
    with_scores: bool,
) {
    let in_pairs = with_scores && ctx.client.protocol() == Protocol::Resp3;
    let mut reply = ctx.reply.encoder();
    match with_scores && !in_pairs {
        true => reply.array(2 * members.len()),
        false => reply.array(members.len()),
    }
    for (member, score) in members {
        if in_pairs {
            reply.array(2);
        }
        reply.bulk(&member);
        if with_scores {
            reply.double(score);
        }
    }
}

/// The members of a range, copied.
fn owned(members: &[(Text<'_>, f64)]) -> Scored {
    let member = |(member, score): &(Text<'_>, f64)| (member.bytes().to_vec(), *score);
    members.iter().map(member).collect()
}

/// The options of ZADD.
#[derive(Clone, Copy, Default)]
pub(crate) struct AddOptions {
    pub(crate) only_new: bool,
    pub(crate) only_present: bool,
    pub(crate) greater: bool,
    pub(crate) less: bool,
    pub(crate) count_changed: bool,
    pub(crate) increment: bool,
}

/// Parses options; returns the position of the first score too.
fn parse_add(ctx: &Context<'_>) -> Result<(AddOptions, usize), Failure> {
    let (mut options, mut at) = (AddOptions::default(), 2);
    while let Some(option) = ctx.request.args.get(at) {
        let flag = match option.to_ascii_lowercase().as_slice() {
            b"nx" => &mut options.only_new,
            b"xx" => &mut options.only_present,
            b"gt" => &mut options.greater,
            b"lt" => &mut options.less,
            b"ch" => &mut options.count_changed,
            b"incr" => &mut options.increment,
            _ => break,
        };
        *flag = true;
        at += 1;
    }
    let rest = ctx.request.args.len() - at;
    if rest == 0 || !rest.is_multiple_of(2) {
        return Err(SYNTAX);
    }
    if options.only_new && options.only_present {
        return Err(Failure::Text(
            "ERR XX and NX options at the same time are not compatible",
        ));
    }
    if options.greater && (options.less || options.only_new) || options.less && options.only_new {
        return Err(Failure::Text(
            "ERR GT, LT, and/or NX options at the same time are not compatible",
        ));
    }
    if options.increment && rest > 2 {
        return Err(Failure::Text(
            "ERR INCR option supports a single increment-element pair",
        ));
    }
    Ok((options, at))
}

/// Outcome of adding members.
#[derive(Default)]
pub(crate) struct Added {
    added: i64,
    updated: i64,
    /// The last score that was set; `None` if a condition did not hold.
    score: Option<f64>,
}

/// Adds one member to a set.
fn add_one<'a>(
    set: &mut Sorted<'a>,
    member: Text<'a>,
    score: f64,
    options: AddOptions,
    done: &mut Added,
) -> Result<(), Failure> {
    done.score = None;
    let old = set.score(&member);
    let Some(old) = old else {
        if !options.only_present {
            set.set(member, score);
            done.added += 1;
            done.score = Some(score);
        }
        return Ok(());
    };
    if options.only_new {
        return Ok(());
    }
    let new = if options.increment {
        old + score
    } else {
        score
    };
    if new.is_nan() {
        return Err(Failure::Text("ERR resulting score is not a number (NaN)"));
    }
    if options.greater && new <= old || options.less && new >= old {
        return Ok(());
    }
    done.score = Some(new);
    if new != old {
        set.set(member, new);
        done.updated += 1;
    }
    Ok(())
}

fn add(
    ctx: &mut Context<'_>,
    guard: &mut Guard<'_>,
    options: AddOptions,
    at: usize,
) -> Result<Added, Failure> {
    let mut rest = ctx.request.args.skip(at).into_iter();
    let mut pairs = Vec::with_capacity((ctx.request.args.len() - at) / 2);
    while let (Some(score), Some(member)) = (rest.next(), rest.next()) {
        pairs.push((parse_score(score).ok_or(NOT_A_FLOAT)?, Text::of(member)));
    }
    add_all(ctx, guard, &pairs, options)
}

/// Adds members to argument 1.
pub(crate) fn add_all(
    ctx: &mut Context<'_>,
    guard: &mut Guard<'_>,
    pairs: &[(f64, Text<'_>)],
    options: AddOptions,
) -> Result<Added, Failure> {
    let name = if options.increment { "zincr" } else { "zadd" };
    change(ctx, guard, event(name), |_, parts| {
        let mut set = Sorted::load(parts)?;
        set.expect(pairs.len());
        let mut done = Added::default();
        for (score, member) in pairs {
            add_one(&mut set, *member, *score, options, &mut done)?;
        }
        if done.added + done.updated > 0 {
            set.store(parts)?;
        }
        Ok(done)
    })
}

pub(crate) fn write_added(ctx: &mut Context<'_>, done: &Added, options: AddOptions) -> Done {
    if !options.increment {
        let updated = if options.count_changed {
            done.updated
        } else {
            0
        };
        return ctx.reply.integer(done.added + updated);
    }
    match done.score {
        Some(score) => {
            ctx.reply.encoder().double(score);
            Ok(())
        }
        None => ctx.reply.null(),
    }
}

pub(crate) fn zadd(ctx: &mut Context<'_>, guard: &mut Guard<'_>) -> Done {
    let (options, at) = parse_add(ctx)?;
    let done = add(ctx, guard, options, at)?;
    write_added(ctx, &done, options)
}

pub(crate) fn zincrby(ctx: &mut Context<'_>, guard: &mut Guard<'_>) -> Done {
    let options = AddOptions {
        increment: true,
        ..AddOptions::default()
    };
    let done = add(ctx, guard, options, 2)?;
    write_added(ctx, &done, options)
}

pub(crate) fn zrem(ctx: &mut Context<'_>, guard: &mut Guard<'_>) -> Done {
    let members: Vec<_> = ctx.request.args.skip(2).into_iter().map(Text::of).collect();
    let removed = change(ctx, guard, event("zrem"), |_, parts| {
        let mut set = Sorted::load(parts)?;
        let removed = set.remove(members.iter().copied());
        if removed > 0 {
            set.store(parts)?;
        }
        Ok(removed)
    })?;
    ctx.reply.integer(removed as i64)
}

pub(crate) fn zcard(ctx: &mut Context<'_>, guard: &mut Guard<'_>) -> Done {
    let value = read(ctx, guard)?;
    let count = value.map_or(Ok(0), |value| count(value, Type::SortedSet))?;
    ctx.reply.integer(count as i64)
}

pub(crate) fn zscore(ctx: &mut Context<'_>, guard: &mut Guard<'_>) -> Done {
    let score = match read(ctx, guard)? {
        Some(value) => find_at_most_once::<f64>(value, ctx.arg(2))?,
        None => None,
    };
    match score {
        Some(score) => ctx.reply.encoder().double(score),
        None => return ctx.reply.null(),
    }
    Ok(())
}

pub(crate) fn zmscore(ctx: &mut Context<'_>, guard: &mut Guard<'_>) -> Done {
    let mut set = Sorted::of(read(ctx, guard)?)?;
    let members = ctx.request.args.skip(2);
    set.expect(members.len());
    let mut reply = ctx.reply.encoder();
    reply.array(members.len());
    for member in members {
        match set.score(&Text::of(member)) {
            Some(score) => reply.double(score),
            None => reply.null(),
        }
    }
    Ok(())
}

fn rank(ctx: &mut Context<'_>, guard: &mut Guard<'_>, from_end: bool) -> Done {
    let with_score = match ctx.request.args.len() {
        3 => false,
        4 if ctx.arg(3).eq_ignore_ascii_case(b"withscore") => true,
        _ => return Err(SYNTAX),
    };
    let mut set = Sorted::of(read(ctx, guard)?)?;
    let member = Text::of(ctx.arg(2));
    let Some(rank) = set.rank(&member) else {
        match with_score {
            true => ctx.reply.encoder().null_array(),
            false => ctx.reply.encoder().null(),
        }
        return Ok(());
    };
    let rank = if from_end { set.len() - 1 - rank } else { rank };
    let score = set.score(&member).unwrap_or(0.0);
    let mut reply = ctx.reply.encoder();
    if with_score {
        reply.array(2);
    }
    reply.integer(rank as i64);
    if with_score {
        reply.double(score);
    }
    Ok(())
}

pub(crate) fn zrank(ctx: &mut Context<'_>, guard: &mut Guard<'_>) -> Done {
    rank(ctx, guard, false)
}

pub(crate) fn zrevrank(ctx: &mut Context<'_>, guard: &mut Guard<'_>) -> Done {
    rank(ctx, guard, true)
}

const fn popped_from(highest: bool) -> EventName {
    event(match highest {
        true => "zpopmax",
        false => "zpopmin",
    })
}

/// Removes up to `n` members with the lowest or highest scores.
fn pop_some(set: &mut Sorted<'_>, highest: bool, n: usize) -> Scored {
    let len = set.len();
    let n = n.min(len);
    let ranks = if highest { len - n..len } else { 0..n };
    let mut popped = owned(set.elements().get(ranks.clone()).unwrap_or_default());
    if highest {
        popped.reverse();
    }
    set.remove_ranks(ranks);
    popped
}

fn pop(ctx: &mut Context<'_>, guard: &mut Guard<'_>, highest: bool) -> Done {
    let wanted = match ctx.request.args.len() {
        2 => None,
        3 => Some(parse_count(ctx.arg(2))?),
        _ => return Err(SYNTAX),
    };
    let popped = change(ctx, guard, popped_from(highest), |_, parts| {
        let mut set = Sorted::load(parts)?;
        let popped = pop_some(&mut set, highest, wanted.unwrap_or(1));
        if !popped.is_empty() {
            set.store(parts)?;
        }
        Ok(popped)
    })?;
    if wanted.is_none()
        && let Some((member, score)) = popped.first()
    {
        let mut reply = ctx.reply.encoder();
        reply.array(2);
        reply.bulk(member);
        reply.double(*score);
        return Ok(());
    }
    let members = popped.iter().map(|(member, score)| (&member[..], *score));
    write_scored(ctx, members, true);
    Ok(())
}

pub(crate) fn zpopmin(ctx: &mut Context<'_>, guard: &mut Guard<'_>) -> Done {
    pop(ctx, guard, false)
}

pub(crate) fn zpopmax(ctx: &mut Context<'_>, guard: &mut Guard<'_>) -> Done {
    pop(ctx, guard, true)
}

/// Parses `MIN` or `MAX`; returns whether it is `MAX`.
pub(crate) fn parse_side(text: &[u8]) -> Result<bool, Failure> {
    match text {
        side if side.eq_ignore_ascii_case(b"min") => Ok(false),
        side if side.eq_ignore_ascii_case(b"max") => Ok(true),
        _ => Err(SYNTAX),
    }
}

pub(crate) fn zmpop(ctx: &mut Context<'_>, guard: &mut Guard<'_>) -> Done {
    let too_few = Failure::Text("ERR numkeys should be greater than 0");
    let keys = parse_keys(ctx, 1, too_few, SYNTAX)?;
    let highest = parse_side(ctx.request.args.get(2 + keys).ok_or(SYNTAX)?)?;
    let wanted = parse_pop_count(ctx, 3 + keys)?;
    if !take_first(ctx, guard, highest, wanted, &[], write_popped)? {
        ctx.reply.encoder().null_array();
    }
    Ok(())
}

/// Takes up to `wanted` members with the highest or lowest scores of the first sorted set that has
/// some, and lets `write` reply with its key and the members. Returns false if no set has members
/// that may be taken; `may_take` says for each key whether they may.
pub(crate) fn take_first(
    ctx: &mut Context<'_>,
    guard: &mut Guard<'_>,
    highest: bool,
    wanted: usize,
    may_take: &[bool],
    write: impl Fn(&mut Context<'_>, &[u8], &[(Vec<u8>, f64)]),
) -> Result<bool, Failure> {
    change_first(
        ctx,
        guard,
        Type::SortedSet,
        may_take,
        |ctx, n, key, found| {
            let events = [Some(popped_from(highest)), None];
            let (change, popped) = Write::change(n, Some(found), events, |parts| {
                let mut set = Sorted::load(parts)?;
                let popped = pop_some(&mut set, highest, wanted);
                set.store(parts)?;
                Ok(popped)
            })?;
            write(ctx, key, &popped);
            Ok(change)
        },
    )
}

/// The reply of ZMPOP.
pub(crate) fn write_popped(ctx: &mut Context<'_>, key: &[u8], popped: &[(Vec<u8>, f64)]) {
    let mut reply = ctx.reply.encoder();
    reply.array(2);
    reply.bulk(key);
    reply.array(popped.len());
    for (member, score) in popped {
        reply.array(2);
        reply.bulk(member);
        reply.double(*score);
    }
}

pub(crate) fn zrandmember(ctx: &mut Context<'_>, guard: &mut Guard<'_>) -> Done {
    let wanted = match ctx.request.args.len() {
        2 => None,
        _ => Some(parse_random_count(ctx.arg(2))?),
    };
    let with_scores = match ctx.request.args.len() {
        2 | 3 => false,
        4 if ctx.arg(3).eq_ignore_ascii_case(b"withscores") => true,
        _ => return Err(SYNTAX),
    };
    let mut set = Sorted::of(read(ctx, guard)?)?;
    let Some(wanted) = wanted else {
        return match ctx.thread.random().pick(set.elements()) {
            Some((member, _)) => ctx.reply.bulk(&member.bytes()),
            None => ctx.reply.null(),
        };
    };
    let in_pairs = with_scores && ctx.client.protocol() == Protocol::Resp3;
    let width = if with_scores && !in_pairs { 2 } else { 1 };
    write_random(
        ctx,
        set.elements(),
        wanted,
        width,
        |reply, (member, score)| {
            if in_pairs {
                reply.array(2);
            }
            reply.bulk(&member.bytes());
            if with_scores {
                reply.double(*score);
            }
        },
    )
}

pub(crate) fn zscan(ctx: &mut Context<'_>, guard: &mut Guard<'_>) -> Done {
    collection::parse_scan_cursor(ctx)?;
    let Some(value) = read(ctx, guard)? else {
        return collection::empty_scan(ctx);
    };
    let mut set = Sorted::of(Some(value))?;
    let options = collection::parse_scan(ctx, Type::SortedSet)?;
    let shown = set.elements().iter();
    let shown: Vec<_> = shown
        .filter(|(member, _)| options.matches(member))
        .collect();
    let mut reply = ctx.reply.encoder();
    reply.array(2);
    reply.bulk(b"0");
    reply.array(2 * shown.len());
    for (member, score) in shown {
        reply.bulk(&member.bytes());
        reply.bulk(duramen_wire::resp::number::format_double(*score).as_bytes());
    }
    Ok(())
}
