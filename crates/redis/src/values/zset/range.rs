//! Ranges of sorted sets: by rank, by score, by member.

use super::{event, write_scored};
use crate::command::context::{Context, Done, Failure, NOT_AN_INTEGER, SYNTAX};
use crate::command::row::*;
use crate::values::collection::{Write, change, encoded, read, typed};
use crate::values::computed::computed_at_once;
use crate::values::list::range_of;
use duramen_engine::Guard;
use duramen_types::sorted::{LexEnd, ScoreEnd};
use duramen_types::{Sorted, Text};
use duramen_wire::resp::number::{parse_double, parse_integer};
use std::ops::Range;

#[rustfmt::skip] // They are rows of a table.
pub(crate) const COMMANDS: &[Spec] = &[
    row("zcount", 4, FAST, doc(Topic::SortedSet, "2.0.0", "O(N)", "Counts the members in a range of scores."),
        Keys::one(READS), Effect::Reads, Secrets::None, Run::Data(zcount)),
    row("zlexcount", 4, FAST, doc(Topic::SortedSet, "2.8.9", "O(N)", "Counts the members in a range of members."),
        Keys::one(READS), Effect::Reads, Secrets::None, Run::Data(zlexcount)),
    row("zrange", -4, NO_FLAGS, doc(Topic::SortedSet, "1.2.0", "O(N)", "Returns the members in a range."),
        Keys::one(READS), Effect::Reads, Secrets::None, Run::Data(zrange)),
    row("zrevrange", -4, NO_FLAGS, doc(Topic::SortedSet, "1.2.0", "O(N)", "Returns the members in a range of ranks from the end."),
        Keys::one(READS), Effect::Reads, Secrets::None, Run::Data(zrevrange)),
    row("zrangebyscore", -4, NO_FLAGS, doc(Topic::SortedSet, "1.0.5", "O(N)", "Returns the members in a range of scores."),
        Keys::one(READS), Effect::Reads, Secrets::None, Run::Data(zrangebyscore)),
    row("zrevrangebyscore", -4, NO_FLAGS, doc(Topic::SortedSet, "2.2.0", "O(N)", "Returns the members in a range of scores, the highest first."),
        Keys::one(READS), Effect::Reads, Secrets::None, Run::Data(zrevrangebyscore)),
    row("zrangebylex", -4, NO_FLAGS, doc(Topic::SortedSet, "2.8.9", "O(N)", "Returns the members in a range of members."),
        Keys::one(READS), Effect::Reads, Secrets::None, Run::Data(zrangebylex)),
    row("zrevrangebylex", -4, NO_FLAGS, doc(Topic::SortedSet, "2.8.9", "O(N)", "Returns the members in a range of members, the last first."),
        Keys::one(READS), Effect::Reads, Secrets::None, Run::Data(zrevrangebylex)),
    row("zremrangebyrank", 4, NO_FLAGS, doc(Topic::SortedSet, "2.0.0", "O(N)", "Removes the members in a range of ranks."),
        Keys::one(REMOVES), Effect::Writes(Growth::Nothing), Secrets::None, Run::Data(zremrangebyrank)),
    row("zremrangebyscore", 4, NO_FLAGS, doc(Topic::SortedSet, "1.2.0", "O(N)", "Removes the members in a range of scores."),
        Keys::one(REMOVES), Effect::Writes(Growth::Nothing), Secrets::None, Run::Data(zremrangebyscore)),
    row("zremrangebylex", 4, NO_FLAGS, doc(Topic::SortedSet, "2.8.9", "O(N)", "Removes the members in a range of members."),
        Keys::one(REMOVES), Effect::Writes(Growth::Nothing), Secrets::None, Run::Data(zremrangebylex)),
    row("zrangestore", -5, DENYOOM, doc(Topic::SortedSet, "6.2.0", "O(N)", "Stores the members in a range."),
        Keys::two(SETS, READS), Effect::Writes(Growth::Combines), Secrets::None, Run::Atomic(zrangestore)),
];

/// The order in which a range is taken.
#[derive(Clone, Copy, PartialEq, Eq)]
enum By {
    Rank,
    Score,
    Member,
}

/// The two ends of a range, the lower first.
#[derive(Clone, Copy)]
enum Ends<'a> {
    /// Ranks from the first member on or, if the range is reversed, from the last.
    Rank(i64, i64),
    Score(ScoreEnd, ScoreEnd),
    Member(LexEnd<'a>, LexEnd<'a>),
}

impl Ends<'_> {
    fn ranks(&self, set: &mut Sorted<'_>, reversed: bool) -> Range<usize> {
        match *self {
            Ends::Rank(start, stop) => {
                let len = set.len();
                let range = range_of(start, stop, len);
                match reversed {
                    true if !range.is_empty() => len - range.end..len - range.start,
                    _ => range,
                }
            }
            Ends::Score(min, max) => set.ranks_of_scores(min, max),
            Ends::Member(min, max) => set.ranks_of_members(min, max, reversed),
        }
    }
}

fn parse_score_end(text: &[u8]) -> Result<ScoreEnd, Failure> {
    let (is_open, text) = match text {
        [b'(', rest @ ..] => (true, rest),
        rest => (false, rest),
    };
    // The number is read as C reads it: blanks before it are skipped, an empty text is 0, and a
    // number that is too large is infinite.
    let score = match text {
        [] => Some(0.0),
        text => parse_double(text.trim_ascii_start()),
    };
    let score = score.filter(|score| !score.is_nan());
    let score = score.ok_or(Failure::Text("ERR min or max is not a float"))?;
    Ok(ScoreEnd { score, is_open })
}

fn parse_lex_end(text: &[u8]) -> Result<LexEnd<'_>, Failure> {
    match text {
        b"-" => Ok(LexEnd::First),
        b"+" => Ok(LexEnd::Last),
        [b'[', rest @ ..] => Ok(LexEnd::Closed(rest)),
        [b'(', rest @ ..] => Ok(LexEnd::Open(rest)),
        _ => Err(Failure::Text("ERR min or max not valid string range item")),
    }
}

/// Parses the ends in two arguments. With `reversed` the upper end comes first, except in ranges of
/// ranks.
fn parse_ends<'a>(
    ctx: &Context<'a>,
    at: usize,
    by: By,
    reversed: bool,
) -> Result<Ends<'a>, Failure> {
    let (first, second) = (ctx.arg(at), ctx.arg(at + 1));
    let (low, high) = if reversed {
        (second, first)
    } else {
        (first, second)
    };
    match by {
        By::Rank => Ok(Ends::Rank(
            parse_integer(first).ok_or(NOT_AN_INTEGER)?,
            parse_integer(second).ok_or(NOT_AN_INTEGER)?,
        )),
        By::Score => Ok(Ends::Score(parse_score_end(low)?, parse_score_end(high)?)),
        By::Member => Ok(Ends::Member(parse_lex_end(low)?, parse_lex_end(high)?)),
    }
}

/// A range as the request describes it.
struct Query<'a> {
    ends: Ends<'a>,
    reversed: bool,
    with_scores: bool,
    /// The number of members that are left out first, and the number of members after them;
    /// negative: all.
    limit: Option<(i64, i64)>,
}

/// Kind and direction of a range; `None`: the options decide.
#[derive(Clone, Copy)]
struct Fixed {
    by: Option<By>,
    reversed: Option<bool>,
}

/// Parses a range whose first end is argument `at`.
fn parse<'a>(
    ctx: &Context<'a>,
    at: usize,
    fixed: Fixed,
    stores: bool,
) -> Result<Query<'a>, Failure> {
    let (mut by, mut reversed) = (fixed.by, fixed.reversed);
    let (mut with_scores, mut limit) = (false, None);
    let mut rest = ctx.request.args.skip(at + 2).into_iter();
    while let Some(option) = rest.next() {
        match option.to_ascii_lowercase().as_slice() {
            b"withscores" if !stores => with_scores = true,
            b"limit" => {
                let (offset, count) = (rest.next().ok_or(SYNTAX)?, rest.next().ok_or(SYNTAX)?);
                let offset = parse_integer(offset).ok_or(NOT_AN_INTEGER)?;
                limit = Some((offset, parse_integer(count).ok_or(NOT_AN_INTEGER)?));
            }
            b"rev" if reversed.is_none() => reversed = Some(true),
            b"bylex" if by.is_none() => by = Some(By::Member),
            b"byscore" if by.is_none() => by = Some(By::Score),
            _ => return Err(SYNTAX),
        }
    }
    let (by, reversed) = (by.unwrap_or(By::Rank), reversed.unwrap_or(false));
    if limit.is_some_and(|(_, count)| count != -1) && by == By::Rank {
        return Err(Failure::Text(
            "ERR syntax error, LIMIT is only supported in combination with either BYSCORE or BYLEX",
        ));
    }
    if with_scores && by == By::Member {
        return Err(Failure::Text(
            "ERR syntax error, WITHSCORES not supported in combination with BYLEX",
        ));
    }
    Ok(Query {
        ends: parse_ends(ctx, at, by, reversed)?,
        reversed,
        with_scores,
        limit,
    })
}

impl Query<'_> {
    /// The members of the range, in the order of the reply.
    fn members<'s>(&self, set: &mut Sorted<'s>) -> Vec<(Text<'s>, f64)> {
        let ranks = self.ends.ranks(set, self.reversed);
        let mut members = set.elements().get(ranks).unwrap_or_default().to_vec();
        if self.reversed {
            members.reverse();
        }
        let is_limited = !matches!(self.ends, Ends::Rank(..));
        if let Some((offset, count)) = self.limit.filter(|_| is_limited) {
            let Ok(offset) = usize::try_from(offset) else {
                return Vec::new();
            };
            members.drain(..offset.min(members.len()));
            members.truncate(usize::try_from(count).unwrap_or(usize::MAX));
        }
        members
    }
}

fn range(ctx: &mut Context<'_>, guard: &mut Guard<'_>, fixed: Fixed) -> Done {
    let query = parse(ctx, 2, fixed, false)?;
    let mut set = Sorted::of(read(ctx, guard)?)?;
    let members = query.members(&mut set).into_iter();
    let members = members.map(|(member, score)| (member.bytes(), score));
    write_scored(ctx, members, query.with_scores);
    Ok(())
}

const ANY: Fixed = Fixed {
    by: None,
    reversed: None,
};

const fn fixed(by: By, reversed: bool) -> Fixed {
    Fixed {
        by: Some(by),
        reversed: Some(reversed),
    }
}

pub(crate) fn zrange(ctx: &mut Context<'_>, guard: &mut Guard<'_>) -> Done {
    range(ctx, guard, ANY)
}

pub(crate) fn zrevrange(ctx: &mut Context<'_>, guard: &mut Guard<'_>) -> Done {
    range(ctx, guard, fixed(By::Rank, true))
}

pub(crate) fn zrangebyscore(ctx: &mut Context<'_>, guard: &mut Guard<'_>) -> Done {
    range(ctx, guard, fixed(By::Score, false))
}

pub(crate) fn zrevrangebyscore(ctx: &mut Context<'_>, guard: &mut Guard<'_>) -> Done {
    range(ctx, guard, fixed(By::Score, true))
}

pub(crate) fn zrangebylex(ctx: &mut Context<'_>, guard: &mut Guard<'_>) -> Done {
    range(ctx, guard, fixed(By::Member, false))
}

pub(crate) fn zrevrangebylex(ctx: &mut Context<'_>, guard: &mut Guard<'_>) -> Done {
    range(ctx, guard, fixed(By::Member, true))
}

pub(crate) fn zrangestore(ctx: &mut Context<'_>, guard: &mut Guard<'_>) -> Done {
    let query = parse(ctx, 3, ANY, true)?;
    computed_at_once(ctx, guard, |ctx, found| {
        let source = found.get(1).copied().flatten();
        let mut set = Sorted::of(typed(source)?)?;
        let mut result = Sorted::default();
        let members = query.members(&mut set);
        result.expect(members.len());
        for (member, score) in &members {
            result.set(*member, *score);
        }
        ctx.reply.integer(members.len() as i64)?;
        let value = encoded(|parts| result.store(parts))?;
        Ok(vec![Write::result(0, value, true, event("zrangestore"))])
    })
}

fn counted(ctx: &mut Context<'_>, guard: &mut Guard<'_>, by: By) -> Done {
    let ends = parse_ends(ctx, 2, by, false)?;
    let mut set = Sorted::of(read(ctx, guard)?)?;
    let count = ends.ranks(&mut set, false).len();
    ctx.reply.integer(count as i64)
}

pub(crate) fn zcount(ctx: &mut Context<'_>, guard: &mut Guard<'_>) -> Done {
    counted(ctx, guard, By::Score)
}

pub(crate) fn zlexcount(ctx: &mut Context<'_>, guard: &mut Guard<'_>) -> Done {
    counted(ctx, guard, By::Member)
}

fn remove(ctx: &mut Context<'_>, guard: &mut Guard<'_>, by: By) -> Done {
    let ends = parse_ends(ctx, 2, by, false)?;
    let event = event(ctx.request.spec.name);
    let removed = change(ctx, guard, event, |_, parts| {
        let mut set = Sorted::load(parts)?;
        let ranks = ends.ranks(&mut set, false);
        let removed = ranks.len();
        if removed > 0 {
            set.remove_ranks(ranks);
            set.store(parts)?;
        }
        Ok(removed)
    })?;
    ctx.reply.integer(removed as i64)
}

pub(crate) fn zremrangebyrank(ctx: &mut Context<'_>, guard: &mut Guard<'_>) -> Done {
    remove(ctx, guard, By::Rank)
}

pub(crate) fn zremrangebyscore(ctx: &mut Context<'_>, guard: &mut Guard<'_>) -> Done {
    remove(ctx, guard, By::Score)
}

pub(crate) fn zremrangebylex(ctx: &mut Context<'_>, guard: &mut Guard<'_>) -> Done {
    remove(ctx, guard, By::Member)
}
