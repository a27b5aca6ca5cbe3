//! Unions, intersections and differences of sorted sets. A set counts as a sorted set in which
//! every score is 1.

use super::{event, parse_score, write_scored};
use crate::command::context::{Context, Done, Failure, SYNTAX};
use crate::command::flag;
use crate::command::row::*;
use crate::state::progress::Progress;
use crate::values::collection::{Write, encoded, parse_keys, typed};
use crate::values::computed::{Part, computed_at_once, end_part};
use crate::values::set::{check_result, parse_limit};
use duramen_engine::{Guard, Object};
use duramen_types::{Sorted, Text, Type, count, each};

#[rustfmt::skip] // They are rows of a table.
pub(crate) const COMMANDS: &[Spec] = &[
    row("zunion", -3, NO_FLAGS, doc(Topic::SortedSet, "6.2.0", "O(N)", "Returns the members of any sorted set."),
        Keys::counted(1, READS), Effect::Reads, Secrets::None, Run::Atomic(zunion)),
    row("zinter", -3, NO_FLAGS, doc(Topic::SortedSet, "6.2.0", "O(N)", "Returns the members of all sorted sets."),
        Keys::counted(1, READS), Effect::Reads, Secrets::None, Run::Atomic(zinter)),
    row("zdiff", -3, NO_FLAGS, doc(Topic::SortedSet, "6.2.0", "O(N)", "Returns the members of the first sorted set alone."),
        Keys::counted(1, READS), Effect::Reads, Secrets::None, Run::Atomic(zdiff)),
    row("zintercard", -3, NO_FLAGS, doc(Topic::SortedSet, "7.0.0", "O(N)", "Counts the members of all sorted sets."),
        Keys::counted(1, READS), Effect::Reads, Secrets::None, Run::Atomic(zintercard)),
    row("zunionstore", -4, DENYOOM, doc(Topic::SortedSet, "2.0.0", "O(N)", "Stores the members of any sorted set."),
        Keys::target_and_counted(2, SETS, READS), Effect::Writes(Growth::Combines), Secrets::None, Run::Atomic(zunionstore)),
    row("zinterstore", -4, DENYOOM, doc(Topic::SortedSet, "2.0.0", "O(N)", "Stores the members of all sorted sets."),
        Keys::target_and_counted(2, SETS, READS), Effect::Writes(Growth::Combines), Secrets::None, Run::Atomic(zinterstore)),
    row("zdiffstore", -4, DENYOOM, doc(Topic::SortedSet, "6.2.0", "O(N)", "Stores the members of the first sorted set alone."),
        Keys::target_and_counted(2, SETS, READS), Effect::Writes(Growth::Combines), Secrets::None, Run::Atomic(zdiffstore)),
];

#[derive(Clone, Copy, PartialEq, Eq)]
enum Operation {
    Union,
    Intersection,
    Difference,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Aggregate {
    Sum,
    Min,
    Max,
}

impl Aggregate {
    fn of(self, a: f64, b: f64) -> f64 {
        match self {
            // If both scores are equal, the first one counts: -0 equals 0.
            Aggregate::Min if b < a => b,
            Aggregate::Max if b > a => b,
            Aggregate::Min | Aggregate::Max => a,
            // The sum of infinity and minus infinity is 0.
            Aggregate::Sum if (a + b).is_nan() => 0.0,
            Aggregate::Sum => a + b,
        }
    }
}

struct Query {
    operation: Operation,
    /// The weights, one for each source.
    weights: Vec<f64>,
    aggregate: Aggregate,
    with_scores: bool,
}

/// Parses the number of sources, in argument `at`.
fn parse_sources(ctx: &Context<'_>, at: usize) -> Result<usize, Failure> {
    let name = ctx.request.spec.name;
    let too_few = format!("ERR at least 1 input key is needed for '{name}' command");
    parse_keys(ctx, at, too_few, SYNTAX)
}

/// Parses a request whose number of sources is argument `at`.
fn parse(
    ctx: &Context<'_>,
    at: usize,
    operation: Operation,
    stores: bool,
) -> Result<Query, Failure> {
    let sources = parse_sources(ctx, at)?;
    let mut query = Query {
        operation,
        weights: vec![1.0; sources],
        aggregate: Aggregate::Sum,
        with_scores: false,
    };
    let mut rest = ctx.request.args.skip(at + 1 + sources).into_iter();
    let mut left = ctx.request.args.len() - (at + 1 + sources);
    while let Some(option) = rest.next() {
        left -= 1;
        match option.to_ascii_lowercase().as_slice() {
            b"weights" if operation != Operation::Difference && left >= sources => {
                for weight in &mut query.weights {
                    let text = rest.next().ok_or(SYNTAX)?;
                    let wrong = Failure::Text("ERR weight value is not a float");
                    *weight = parse_score(text).ok_or(wrong)?;
                }
                left -= sources;
            }
            b"aggregate" if operation != Operation::Difference && left >= 1 => {
                query.aggregate = match rest.next().unwrap_or_default() {
                    text if text.eq_ignore_ascii_case(b"sum") => Aggregate::Sum,
                    text if text.eq_ignore_ascii_case(b"min") => Aggregate::Min,
                    text if text.eq_ignore_ascii_case(b"max") => Aggregate::Max,
                    _ => return Err(SYNTAX),
                };
                left -= 1;
            }
            b"withscores" if !stores => query.with_scores = true,
            _ => return Err(SYNTAX),
        }
    }
    Ok(query)
}

/// Calls `take` with each member of a source, a sorted set or a set, and its weighted score.
fn each_of<'g>(
    value: Option<&'g [u8]>,
    weight: f64,
    mut take: impl FnMut(Text<'g>, f64),
) -> Result<(), duramen_types::Error> {
    let weighted = |score: f64| {
        let product = weight * score;
        if product.is_nan() { 0.0 } else { product }
    };
    match value.and_then(Type::of) {
        Some(Type::Set) => each(value, |member, ()| take(member, weighted(1.0))),
        _ => each(value, |member, score: f64| take(member, weighted(score))),
    }
}

/// Number of members of a source.
fn members(value: Option<&[u8]>) -> Result<usize, Failure> {
    let kind = match value.and_then(Type::of) {
        Some(Type::Set) => Type::Set,
        _ => Type::SortedSet,
    };
    Ok(value.map_or(Ok(0), |value| count(value, kind))?)
}

/// Checks the types of the sources: Redis does so before it looks at the options.
fn check_types(found: &[Option<Object<'_>>]) -> Done {
    for found in found {
        members(typed(*found)?)?;
    }
    Ok(())
}

impl Query {
    /// Decodes one source after the other, since there may be many, in parts (computed::C2).
    /// `progress`: the result of the earlier parts.
    fn run<'g>(
        &self,
        ctx: &Context<'_>,
        found: &[Option<Object<'g>>],
        progress: &'g Progress,
        part: &Part,
    ) -> Result<Combined<'g>, Failure> {
        let mut sources = Vec::with_capacity(found.len());
        for (found, weight) in found.iter().zip(&self.weights) {
            let value = typed(*found)?;
            sources.push((members(value)?, value, *weight));
        }
        // The sources are in the order of Redis, because the order decides how sums are rounded.
        if self.operation != Operation::Difference {
            sources.sort_by_key(|(members, ..)| *members);
        }
        let mut result = match (progress.done, sources.first()) {
            (_, None) => Sorted::default(),
            (0, Some((members, value, weight))) => {
                let mut first = Vec::with_capacity(*members);
                each_of(*value, *weight, |member, score| first.push((member, score)))?;
                Sorted::of_elements(first)
            }
            _ => Sorted::unpack(&progress.result)?,
        };
        for (n, (members, value, weight)) in
            sources.into_iter().enumerate().skip(progress.done.max(1))
        {
            if result.is_empty() && self.operation != Operation::Union {
                break;
            }
            // The clock is read after a source that this part has combined: unpacking may have
            // taken all its time.
            if n > progress.done && part.is_over() {
                return Ok(Combined::Part(n, result.pack()));
            }
            result.expect(members);
            match self.operation {
                Operation::Union => {
                    each_of(value, weight, |member, score| {
                        let known = result.position(&member);
                        match known.and_then(|at| result.score_at(at)) {
                            Some(old) => *old = self.aggregate.of(*old, score),
                            None => result.add(member, score),
                        }
                    })?;
                    check_result(ctx, ctx.request.spec.has(flag::WRITE), result.len())?;
                }
                Operation::Intersection | Operation::Difference => {
                    self.narrow(&mut result, value, weight)?;
                }
            }
        }
        Ok(Combined::All(result))
    }

    /// Keeps the members that an intersection or a difference with a source keeps.
    fn narrow<'g>(
        &self,
        result: &mut Sorted<'g>,
        value: Option<&'g [u8]>,
        weight: f64,
    ) -> Result<(), duramen_types::Error> {
        let keeps = self.operation == Operation::Intersection;
        let mut seen = vec![false; result.len()];
        each_of(value, weight, |member, score| {
            let Some(at) = result.position(&member) else {
                return;
            };
            if let Some(seen) = seen.get_mut(at).filter(|seen| !**seen) {
                *seen = true;
                if keeps && let Some(sum) = result.score_at(at) {
                    *sum = self.aggregate.of(*sum, score);
                }
            }
        })?;
        if seen.contains(&!keeps) {
            result.retain_at(|at| seen.get(at) == Some(&keeps));
        }
        Ok(())
    }

    /// Combines sources in a part of the command. When all are combined, `ends` gets the result.
    fn run_then(
        &self,
        ctx: &mut Context<'_>,
        found: &[Option<Object<'_>>],
        ends: impl FnOnce(&mut Context<'_>, Sorted<'_>) -> Result<Vec<Write>, Failure>,
    ) -> Result<Vec<Write>, Failure> {
        let (progress, part) = Part::begin(ctx);
        match self.run(ctx, found, &progress, &part)? {
            Combined::All(set) => ends(ctx, set),
            Combined::Part(done, result) => Err(end_part(ctx, progress, done, result)),
        }
    }
}

/// A combination of sorted sets.
enum Combined<'g> {
    All(Sorted<'g>),
    /// The combination of the first so many sources, packed.
    Part(usize, Vec<u8>),
}

fn combine(ctx: &mut Context<'_>, guard: &mut Guard<'_>, operation: Operation) -> Done {
    parse_sources(ctx, 1)?;
    computed_at_once(ctx, guard, |ctx, found| {
        check_types(found)?;
        let query = parse(ctx, 1, operation, false)?;
        query.run_then(ctx, found, |ctx, mut set| {
            let members = set.elements().iter();
            let members = members.map(|(member, score)| (member.bytes(), *score));
            write_scored(ctx, members, query.with_scores);
            Ok(Vec::new())
        })
    })
}

fn combine_into(ctx: &mut Context<'_>, guard: &mut Guard<'_>, operation: Operation) -> Done {
    parse_sources(ctx, 2)?;
    computed_at_once(ctx, guard, |ctx, found| {
        let found = found.get(1..).unwrap_or_default();
        check_types(found)?;
        let query = parse(ctx, 2, operation, true)?;
        query.run_then(ctx, found, |ctx, mut result| {
            ctx.reply.integer(result.len() as i64)?;
            let value = encoded(|parts| result.store(parts))?;
            Ok(vec![Write::result(
                0,
                value,
                true,
                event(ctx.request.spec.name),
            )])
        })
    })
}

pub(crate) fn zunion(ctx: &mut Context<'_>, guard: &mut Guard<'_>) -> Done {
    combine(ctx, guard, Operation::Union)
}

pub(crate) fn zinter(ctx: &mut Context<'_>, guard: &mut Guard<'_>) -> Done {
    combine(ctx, guard, Operation::Intersection)
}

pub(crate) fn zdiff(ctx: &mut Context<'_>, guard: &mut Guard<'_>) -> Done {
    combine(ctx, guard, Operation::Difference)
}

pub(crate) fn zunionstore(ctx: &mut Context<'_>, guard: &mut Guard<'_>) -> Done {
    combine_into(ctx, guard, Operation::Union)
}

pub(crate) fn zinterstore(ctx: &mut Context<'_>, guard: &mut Guard<'_>) -> Done {
    combine_into(ctx, guard, Operation::Intersection)
}

pub(crate) fn zdiffstore(ctx: &mut Context<'_>, guard: &mut Guard<'_>) -> Done {
    combine_into(ctx, guard, Operation::Difference)
}

pub(crate) fn zintercard(ctx: &mut Context<'_>, guard: &mut Guard<'_>) -> Done {
    let sources = parse_sources(ctx, 1)?;
    let query = Query {
        operation: Operation::Intersection,
        weights: vec![1.0; sources],
        aggregate: Aggregate::Sum,
        with_scores: false,
    };
    computed_at_once(ctx, guard, |ctx, found| {
        check_types(found)?;
        let limit = parse_limit(ctx, 2 + sources)?;
        query.run_then(ctx, found, |ctx, set| {
            let count = if limit > 0 {
                set.len().min(limit)
            } else {
                set.len()
            };
            ctx.reply.integer(count as i64)?;
            Ok(Vec::new())
        })
    })
}
