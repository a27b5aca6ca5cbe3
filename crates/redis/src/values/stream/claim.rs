//! XCLAIM and XAUTOCLAIM: pending entries that change their consumer.

use super::group::{idle_ms, no_key_or_group, position};
use super::read::SEEN_STEP_MS;
use super::{
    CONSUMER_MADE, PENDING_BYTES, STREAM_BYTES, parse_id, parse_start, pending_bytes, write_entry,
    write_id,
};
use crate::command::context::{Context, Done, Failure, SYNTAX};
use crate::command::row::*;
use crate::values::collection::change_silently;
use duramen_engine::Guard;
use duramen_types::stream::{Entry, Group, Id, Pending};
use duramen_types::{Part, Parts, Stream, Text};
use duramen_wire::resp::number::parse_integer;
use std::collections::BTreeMap;

#[rustfmt::skip] // They are rows of a table.
pub(crate) const COMMANDS: &[Spec] = &[
    row("xclaim", -6, FAST, doc(Topic::Stream, "5.0.0", "O(N)", "Gives pending entries to another consumer."),
        Keys::one(UPDATES).needing(READS),
        Effect::Writes(Growth::By(|args, _| growth::text(args, 3) + STREAM_BYTES + args.len() * PENDING_BYTES)), Secrets::None, Run::Data(xclaim))
            .differs("Needs the right to read the stream.")
        .tips(&["nondeterministic_output"]),
    row("xautoclaim", -6, FAST, doc(Topic::Stream, "6.2.0", "O(N)", "Gives pending entries that are idle for long to another consumer."),
        Keys::one(REMOVES).needing(READS),
        Effect::Writes(Growth::By(|args, bytes| pending_bytes(args, 6, bytes))), Secrets::None, Run::Data(xautoclaim))
            .differs("Needs the right to read the stream.")
        .tips(&["nondeterministic_output"]),
];

/// Maximum entries that XAUTOCLAIM claims without COUNT.
const COUNT_DEFAULT: usize = 100;
/// XAUTOCLAIM looks at this many pending entries for each entry that it may claim.
const ATTEMPTS_FACTOR: usize = 10;

/// How entries are claimed.
struct Claim<'a> {
    consumer: &'a [u8],
    least_idle_ms: i64,
    /// The new time of delivery; `None`: now.
    delivered_at_ms: Option<u64>,
    deliveries: Option<u64>,
    /// Whether entries that are not pending are claimed too.
    forces: bool,
    only_ids: bool,
    /// The lowest last id that the group has after the claim.
    last: Id,
}

fn parse_least_idle(ctx: &Context<'_>) -> Result<i64, Failure> {
    let name = ctx.request.spec.name.to_ascii_uppercase();
    let wrong = || format!("ERR Invalid min-idle-time argument for {name}");
    Ok(parse_integer(ctx.arg(4)).ok_or_else(wrong)?.max(0))
}

/// The time of a delivery. A time before 1970 or in the future counts as now.
fn past(time_ms: i64, now_ms: u64) -> u64 {
    let time_ms = u64::try_from(time_ms).unwrap_or(now_ms);
    time_ms.min(now_ms)
}

/// Parses XCLAIM: ids and options.
fn parse<'a>(ctx: &Context<'a>, now_ms: u64) -> Result<(Vec<Id>, Claim<'a>), Failure> {
    let least_idle_ms = parse_least_idle(ctx)?;
    let (mut ids, mut at) = (Vec::new(), 5);
    while let Some(id) = ctx
        .request
        .args
        .get(at)
        .and_then(|text| parse_id(text, 0).ok())
    {
        ids.push(id);
        at += 1;
    }
    let mut claim = Claim {
        consumer: ctx.arg(3),
        least_idle_ms,
        delivered_at_ms: None,
        deliveries: None,
        forces: false,
        only_ids: false,
        last: Id::MIN,
    };
    let mut rest = ctx.request.args.skip(at).into_iter();
    while let Some(option) = rest.next() {
        let name = option.to_ascii_lowercase();
        let (is_last, value) = (rest.len() == 0, rest.clone().next().unwrap_or_default());
        let number = || {
            let name = String::from_utf8_lossy(&name).to_ascii_uppercase();
            let wrong = || format!("ERR Invalid {name} option argument for XCLAIM");
            parse_integer(value).ok_or_else(wrong)
        };
        match name.as_slice() {
            b"force" => claim.forces = true,
            b"justid" => claim.only_ids = true,
            b"idle" | b"time" | b"retrycount" | b"lastid" if !is_last => {
                rest.next();
                match name.as_slice() {
                    b"lastid" => claim.last = parse_id(value, 0)?,
                    b"retrycount" => claim.deliveries = u64::try_from(number()?).ok(),
                    b"time" => claim.delivered_at_ms = Some(past(number()?, now_ms)),
                    _ => {
                        let time_ms = (now_ms as i64).wrapping_sub(number()?);
                        claim.delivered_at_ms = Some(past(time_ms, now_ms));
                    }
                }
            }
            _ => {
                let option = String::from_utf8_lossy(option);
                return Err(format!("ERR Unrecognized XCLAIM option '{option}'").into());
            }
        }
    }
    Ok((ids, claim))
}

/// A claim for the consumer at a place of its group.
struct Claimer<'c> {
    claim: &'c Claim<'c>,
    place: usize,
    now_ms: u64,
}

impl Claimer<'_> {
    /// Gives a pending entry to the consumer; returns false if the entry is not idle for long
    /// enough.
    fn take(&self, pending: &mut Pending, is_new: bool) -> bool {
        let claim = self.claim;
        let needs_idle = !is_new && claim.least_idle_ms > 0;
        if needs_idle && idle_ms(pending, self.now_ms) < claim.least_idle_ms {
            return false;
        }
        pending.consumer = self.place;
        pending.delivered_at_ms = claim.delivered_at_ms.unwrap_or(self.now_ms);
        pending.deliveries = match claim.deliveries {
            Some(deliveries) => deliveries,
            None => pending
                .deliveries
                .saturating_add(u64::from(!claim.only_ids)),
        };
        true
    }
}

/// The claimed entries, the ids of entries that do not exist any more, and the place to go on from.
#[derive(Default)]
struct Claimed<'s> {
    entries: Vec<Entry<'s>>,
    gone: Vec<Id>,
    next: Id,
}

/// Claims entries by their ids.
fn claim_ids<'s>(
    stream: &'s Stream<'_>,
    group: &mut Group<'_>,
    ids: &[Id],
    claimer: &Claimer<'_>,
) -> Result<Claimed<'s>, Failure> {
    let mut sorted = ids.to_vec();
    sorted.sort_unstable();
    sorted.dedup();
    let found = stream.find(sorted.iter().copied())?;
    let pending = std::mem::take(&mut group.pending).into_iter();
    let mut pending: BTreeMap<Id, Pending> = pending.map(|p| (p.id, p)).collect();
    let mut claimed = Claimed::default();
    for id in ids {
        let entry = sorted.binary_search(id).ok().and_then(|at| found.get(at));
        let Some(entry) = entry.copied().flatten() else {
            pending.remove(id);
            continue;
        };
        let is_new = claimer.claim.forces && !pending.contains_key(id);
        if is_new {
            let made = Pending {
                id: *id,
                consumer: claimer.place,
                delivered_at_ms: claimer.now_ms,
                deliveries: 1,
            };
            pending.insert(*id, made);
        }
        let taken = pending.get_mut(id);
        if taken.is_some_and(|pending| claimer.take(pending, is_new)) {
            claimed.entries.push(entry);
        }
    }
    group.pending = pending.into_values().collect();
    Ok(claimed)
}

/// Claims up to `count` entries from `start` on.
fn claim_from<'s>(
    stream: &'s Stream<'_>,
    group: &mut Group<'_>,
    start: Id,
    mut count: usize,
    claimer: &Claimer<'_>,
) -> Result<Claimed<'s>, Failure> {
    let from = group.pending.partition_point(|pending| pending.id < start);
    let seen = group.pending.get(from..).unwrap_or_default();
    let attempts = count.saturating_mul(ATTEMPTS_FACTOR).min(seen.len());
    let found = stream.find(seen.iter().take(attempts).map(|pending| pending.id))?;
    let (mut claimed, mut examined) = (Claimed::default(), from);
    let mut candidates = group.pending.iter_mut().skip(from).zip(found);
    while count > 0 {
        let Some((pending, entry)) = candidates.next() else {
            break;
        };
        examined += 1;
        match entry {
            None => {
                claimed.gone.push(pending.id);
                count -= 1;
            }
            Some(entry) if claimer.take(pending, false) => {
                claimed.entries.push(entry);
                count -= 1;
            }
            Some(_) => {}
        }
    }
    claimed.next = group
        .pending
        .get(examined)
        .map_or(Id::MIN, |pending| pending.id);
    let gone = &claimed.gone;
    group
        .pending
        .retain(|pending| gone.binary_search(&pending.id).is_err());
    Ok(claimed)
}

/// Claims entries in the stream under argument 1, and replies. `run` claims, and `write` replies
/// with the claimed entries.
fn claim(
    ctx: &mut Context<'_>,
    guard: &mut Guard<'_>,
    claim: &Claim<'_>,
    is_cursor: bool,
    mut run: impl for<'s> FnMut(
        &'s Stream<'_>,
        &mut Group<'_>,
        &Claimer<'_>,
    ) -> Result<Claimed<'s>, Failure>,
) -> Done {
    let (start, now_ms) = (ctx.reply.len(), guard.now_ms());
    let mut is_new = false;
    let (_, outcome) = change_silently(ctx, guard, |ctx, parts| {
        ctx.reply.truncate(start);
        parts.get(Part::Root).ok_or_else(|| no_key_or_group(ctx))?;
        let mut stream = Stream::load(parts)?;
        let mut groups = stream.groups()?;
        let at = position(&groups, ctx.arg(2)).ok_or_else(|| no_key_or_group(ctx))?;
        let group = groups.get_mut(at).ok_or_else(|| no_key_or_group(ctx))?;
        let last_before = group.last;
        group.last = group.last.max(claim.last);
        let consumer = Text::of(claim.consumer);
        let known = group.consumer(&consumer);
        is_new = known.is_none();
        let known = known.and_then(|place| group.consumers.get(place));
        let is_recent = known.is_some_and(|it| it.seen_at_ms.abs_diff(now_ms) < SEEN_STEP_MS);
        let before = (last_before, group.pending.len());
        let place = group.seen(consumer, now_ms);
        let claimer = Claimer {
            claim,
            place,
            now_ms,
        };
        let claimed = run(&stream, group, &claimer)?;
        let is_changed = !claimed.entries.is_empty()
            || !is_recent
            || before != (group.last, group.pending.len());
        if !claimed.entries.is_empty() {
            group.active(place, now_ms);
        }
        write_claimed(ctx, &stream, &claimed, claim.only_ids, is_cursor)?;
        if is_changed {
            stream.set_groups(&groups);
            stream.store(parts)?;
        }
        Ok(())
    })?;
    if is_new {
        ctx.notify_change(CONSUMER_MADE, ctx.key().bytes, outcome);
    }
    Ok(())
}

fn write_claimed(
    ctx: &mut Context<'_>,
    stream: &Stream<'_>,
    claimed: &Claimed<'_>,
    only_ids: bool,
    is_cursor: bool,
) -> Done {
    if is_cursor {
        let mut reply = ctx.reply.encoder();
        reply.array(3);
        write_id(&mut reply, claimed.next);
    }
    ctx.reply.encoder().array(claimed.entries.len());
    for entry in &claimed.entries {
        match only_ids {
            true => write_id(&mut ctx.reply.encoder(), entry.id),
            false => write_entry(&mut ctx.reply.encoder(), stream, entry)?,
        }
        ctx.reply.fits()?;
    }
    if is_cursor {
        let mut reply = ctx.reply.encoder();
        reply.array(claimed.gone.len());
        claimed.gone.iter().for_each(|id| write_id(&mut reply, *id));
    }
    Ok(())
}

pub(crate) fn xclaim(ctx: &mut Context<'_>, guard: &mut Guard<'_>) -> Done {
    let parsed = parse(ctx, guard.now_ms());
    // As in Redis, the group is checked before the arguments are.
    let (ids, options) = match parsed {
        Ok(parsed) => parsed,
        Err(failure) => {
            let value = crate::values::collection::read(ctx, guard)?;
            let groups = value.map(|value| Stream::of(Some(value))?.groups());
            let groups = groups.transpose()?.unwrap_or_default();
            position(&groups, ctx.arg(2)).ok_or_else(|| no_key_or_group(ctx))?;
            return Err(failure);
        }
    };
    claim(ctx, guard, &options, false, |stream, group, claimer| {
        claim_ids(stream, group, &ids, claimer)
    })
}

pub(crate) fn xautoclaim(ctx: &mut Context<'_>, guard: &mut Guard<'_>) -> Done {
    let least_idle_ms = parse_least_idle(ctx)?;
    let start = parse_start(ctx.arg(5))?;
    let (mut count, mut only_ids) = (COUNT_DEFAULT, false);
    let mut rest = ctx.request.args.skip(6).into_iter();
    while let Some(option) = rest.next() {
        match option.to_ascii_lowercase().as_slice() {
            b"count" if rest.len() > 0 => {
                let number = rest.next().and_then(parse_integer);
                let most = i64::MAX / 16;
                let number = number.filter(|number| (1..=most).contains(number));
                let number = number.ok_or(Failure::Text("ERR COUNT must be > 0"))?;
                count = usize::try_from(number).unwrap_or(usize::MAX);
            }
            b"justid" => only_ids = true,
            _ => return Err(SYNTAX),
        }
    }
    let options = Claim {
        consumer: ctx.arg(3),
        least_idle_ms,
        delivered_at_ms: None,
        deliveries: None,
        forces: false,
        only_ids,
        last: Id::MIN,
    };
    claim(ctx, guard, &options, true, |stream, group, claimer| {
        claim_from(stream, group, start, count, claimer)
    })
}
