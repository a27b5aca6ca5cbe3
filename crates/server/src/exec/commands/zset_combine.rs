//! Unions, intersections and differences of sorted sets. A set counts as a sorted set in which
//! every score is 1.

use super::collection::{Write, at_once, encoded, parse_keys, typed};
use super::set::{check_result, parse_limit};
use super::zset::{event, owned, parse_score, write_scored};
use crate::exec::request::context::{Context, Done, Failure, SYNTAX};
use crate::exec::request::spec::flag;
use duramen_engine::{Guard, KeyHash, Object};
use duramen_types::table::Set;
use duramen_types::{Sorted, Type, count};

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
            // The first of equal ones: -0 equals 0.
            Aggregate::Min if b < a => b,
            Aggregate::Max if b > a => b,
            Aggregate::Min | Aggregate::Max => a,
            // Of infinity and minus infinity.
            Aggregate::Sum if (a + b).is_nan() => 0.0,
            Aggregate::Sum => a + b,
        }
    }
}

struct Query {
    operation: Operation,
    /// One for each source.
    weights: Vec<f64>,
    aggregate: Aggregate,
    with_scores: bool,
}

/// The number of sources, in argument `at`.
fn parse_sources(ctx: &Context<'_>, at: usize) -> Result<usize, Failure> {
    let name = ctx.spec.name;
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
    let mut rest = ctx.args.skip(at + 1 + sources).into_iter();
    let mut left = ctx.args.len() - (at + 1 + sources);
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

/// A source: a sorted set, or a set.
fn source(value: Option<&[u8]>, weight: f64) -> Result<Sorted<'_>, Failure> {
    let mut result = Sorted::default();
    let weighted = |score: f64| {
        let product = weight * score;
        if product.is_nan() { 0.0 } else { product }
    };
    if value.and_then(Type::of) == Some(Type::Set) {
        let set = Set::of(value)?;
        result.expect(set.len());
        for (member, ()) in set.elements() {
            result.set(*member, weighted(1.0));
        }
        return Ok(result);
    }
    let mut set = Sorted::of(value)?;
    if weight == 1.0 {
        return Ok(set);
    }
    result.expect(set.len());
    for (member, score) in set.elements() {
        result.set(*member, weighted(*score));
    }
    Ok(result)
}

/// Number of members of a source.
fn members(value: Option<&[u8]>) -> Result<usize, Failure> {
    let kind = match value.and_then(Type::of) {
        Some(Type::Set) => Type::Set,
        _ => Type::SortedSet,
    };
    Ok(value.map_or(Ok(0), |value| count(value, kind))?)
}

/// Redis looks at the sources before it looks at the options.
fn check_types(found: &[Option<Object<'_>>]) -> Done {
    for found in found {
        members(typed(*found)?)?;
    }
    Ok(())
}

impl Query {
    /// Decodes one source after the other, since there may be many.
    fn run<'g>(
        &self,
        ctx: &Context<'_>,
        found: &[Option<Object<'g>>],
    ) -> Result<Sorted<'g>, Failure> {
        let mut sources = Vec::with_capacity(found.len());
        for (found, weight) in found.iter().zip(&self.weights) {
            let value = typed(*found)?;
            sources.push((members(value)?, value, *weight));
        }
        // The order of sums, as in Redis.
        if self.operation != Operation::Difference {
            sources.sort_by_key(|(members, ..)| *members);
        }
        let sources = sources.into_iter();
        let mut sources = sources.map(|(_, value, weight)| source(value, weight));
        let mut result = sources.next().transpose()?.unwrap_or_default();
        for other in sources {
            let mut other = other?;
            if self.operation == Operation::Union {
                result.expect(other.len());
                for (member, score) in other.elements() {
                    let old = result.score(member);
                    let new = old.map_or(*score, |old| self.aggregate.of(old, *score));
                    result.set(*member, new);
                }
                check_result(ctx, ctx.spec.has(flag::WRITE), result.len())?;
            } else if result.is_empty() {
                break;
            } else {
                result = self.kept(&mut result, &mut other);
            }
        }
        Ok(result)
    }

    /// The members that an intersection or a difference keeps.
    fn kept<'g>(&self, result: &mut Sorted<'g>, other: &mut Sorted<'_>) -> Sorted<'g> {
        other.expect(result.len());
        let mut kept = Sorted::default();
        kept.expect(result.len());
        for (member, score) in result.elements() {
            match (self.operation, other.score(member)) {
                (Operation::Intersection, Some(second)) => {
                    kept.set(*member, self.aggregate.of(*score, second));
                }
                (Operation::Difference, None) => {
                    kept.set(*member, *score);
                }
                _ => {}
            }
        }
        kept
    }
}

fn combine(
    ctx: &mut Context<'_>,
    guard: &mut Guard<'_>,
    hashes: &[KeyHash],
    operation: Operation,
) -> Done {
    parse_sources(ctx, 1)?;
    at_once(ctx, guard, hashes, |ctx, found| {
        check_types(found)?;
        let query = parse(ctx, 1, operation, false)?;
        let members = owned(query.run(ctx, found)?.elements());
        let members = members.iter().map(|(member, score)| (&member[..], *score));
        write_scored(ctx, members, query.with_scores);
        Ok(Vec::new())
    })
}

fn combine_into(
    ctx: &mut Context<'_>,
    guard: &mut Guard<'_>,
    hashes: &[KeyHash],
    operation: Operation,
) -> Done {
    parse_sources(ctx, 2)?;
    at_once(ctx, guard, hashes, |ctx, found| {
        let found = found.get(1..).unwrap_or_default();
        check_types(found)?;
        let query = parse(ctx, 2, operation, true)?;
        let mut result = query.run(ctx, found)?;
        ctx.integer(result.len() as i64)?;
        let value = encoded(|parts| result.store(parts))?;
        Ok(vec![Write::result(0, value, true, event(ctx.spec.name))])
    })
}

pub(crate) fn zunion(ctx: &mut Context<'_>, guard: &mut Guard<'_>, hashes: &[KeyHash]) -> Done {
    combine(ctx, guard, hashes, Operation::Union)
}

pub(crate) fn zinter(ctx: &mut Context<'_>, guard: &mut Guard<'_>, hashes: &[KeyHash]) -> Done {
    combine(ctx, guard, hashes, Operation::Intersection)
}

pub(crate) fn zdiff(ctx: &mut Context<'_>, guard: &mut Guard<'_>, hashes: &[KeyHash]) -> Done {
    combine(ctx, guard, hashes, Operation::Difference)
}

pub(crate) fn zunionstore(
    ctx: &mut Context<'_>,
    guard: &mut Guard<'_>,
    hashes: &[KeyHash],
) -> Done {
    combine_into(ctx, guard, hashes, Operation::Union)
}

pub(crate) fn zinterstore(
    ctx: &mut Context<'_>,
    guard: &mut Guard<'_>,
    hashes: &[KeyHash],
) -> Done {
    combine_into(ctx, guard, hashes, Operation::Intersection)
}

pub(crate) fn zdiffstore(ctx: &mut Context<'_>, guard: &mut Guard<'_>, hashes: &[KeyHash]) -> Done {
    combine_into(ctx, guard, hashes, Operation::Difference)
}

pub(crate) fn zintercard(ctx: &mut Context<'_>, guard: &mut Guard<'_>, hashes: &[KeyHash]) -> Done {
    let sources = parse_sources(ctx, 1)?;
    let query = Query {
        operation: Operation::Intersection,
        weights: vec![1.0; sources],
        aggregate: Aggregate::Sum,
        with_scores: false,
    };
    at_once(ctx, guard, hashes, |ctx, found| {
        check_types(found)?;
        let limit = parse_limit(ctx, 2 + sources)?;
        let count = query.run(ctx, found)?.len();
        let count = if limit > 0 { count.min(limit) } else { count };
        ctx.integer(count as i64)?;
        Ok(Vec::new())
    })
}
