//! HyperLogLogs: estimates of how many different strings were added.

use super::collection::{Write, plain};
use super::computed::computed_at_once;
use crate::command::context::{Context, Done, Failure};
use crate::command::events::EventName;
use crate::command::row::*;
use duramen_config::EventClasses;
use duramen_engine::{Decision, Guard, Object};
use duramen_types::hll::{Error, Log};
use std::collections::HashSet;

#[rustfmt::skip] // They are rows of a table.
pub(crate) const COMMANDS: &[Spec] = &[
    row("pfadd", -2, DENYOOM | FAST, doc(Topic::HyperLogLog, "2.8.9", "O(N)", "Adds strings to a HyperLogLog."),
        Keys::one(ADDS), Effect::Writes(Growth::To(|_, bytes| bytes.max(growth::LEAST_BYTES))), Secrets::None, Run::Data(pfadd)),
    row("pfcount", -2, MAY_REPLICATE, doc(Topic::HyperLogLog, "2.8.9", "O(N)", "Estimates the number of different strings."),
        Keys::all(REFORMS).note("RW because it may change the internal representation of the key, and propagate to replicas"),
        Effect::Reads, Secrets::None, Run::Atomic(pfcount))
            .differs("Changes nothing: the estimate is not stored in the value."),
    row("pfmerge", -2, DENYOOM, doc(Topic::HyperLogLog, "2.8.9", "O(N)", "Merges HyperLogLogs."),
        Keys::target_and_sources(1, MERGES, READS).misses(Misses::All), Effect::Writes(Growth::Combines), Secrets::None, Run::Atomic(pfmerge)),
];

impl From<Error> for Failure {
    #[cold]
    fn from(error: Error) -> Failure {
        match error {
            Error::NoLog => Failure::Text("WRONGTYPE Key is not a valid HyperLogLog string value."),
            Error::Damaged => Failure::Text("INVALIDOBJ Corrupted HLL object detected"),
        }
    }
}

const PFADD: EventName = (EventClasses::STRING, "pfadd");

fn log(found: Option<Object<'_>>) -> Result<Log, Failure> {
    match plain(found)? {
        Some(value) => Ok(Log::of(value)?),
        None => Ok(Log::default()),
    }
}

pub(crate) fn pfadd(ctx: &mut Context<'_>, guard: &mut Guard<'_>) -> Done {
    let (args, key) = (ctx.request.args, ctx.key());
    let mut result = Ok(false);
    let outcome = guard.update(key.table, key.hash, key.bytes, |found, scratch| {
        let mut log = match log(found) {
            Ok(log) => log,
            Err(failure) => {
                result = Err(failure);
                return Decision::Keep;
            }
        };
        let mut changed = found.is_none();
        for string in args.skip(2) {
            changed |= log.add(string);
        }
        result = Ok(changed);
        if !changed {
            return Decision::Keep;
        }
        log.encode(scratch);
        Decision::PutScratch {
            expires_at_ms: found.and_then(|object| object.expires_at_ms),
        }
    })?;
    let changed = result?;
    ctx.notify_change(PFADD, key.bytes, outcome);
    ctx.reply.integer(changed.into())
}

/// The union of the HyperLogLogs. A request may name a key any number of times: after the first
/// time the key adds nothing.
fn merged(found: &[Option<Object<'_>>]) -> Result<Log, Failure> {
    let mut found = found.iter().copied();
    let mut result = log(found.next().flatten())?;
    let mut known = HashSet::new();
    for other in found {
        let place = other.map(|object| (object.value.as_ptr(), object.value.len()));
        if known.insert(place) {
            result.merge(&log(other)?);
        }
    }
    Ok(result)
}

pub(crate) fn pfcount(ctx: &mut Context<'_>, guard: &mut Guard<'_>) -> Done {
    computed_at_once(ctx, guard, |ctx, found| {
        let count = merged(found)?.count();
        ctx.reply.integer(count as i64)?;
        Ok(Vec::new())
    })
}

pub(crate) fn pfmerge(ctx: &mut Context<'_>, guard: &mut Guard<'_>) -> Done {
    computed_at_once(ctx, guard, |ctx, found| {
        let mut value = Vec::new();
        merged(found)?.encode(&mut value);
        ctx.reply.ok()?;
        let target = found.first().copied().flatten();
        Ok(vec![Write::kept(0, target, value, PFADD)])
    })
}
