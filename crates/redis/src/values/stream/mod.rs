//! Streams: entries that are added, removed and listed.
//!
//! Reading with and without groups is in [`mod@read`], groups are in [`group`], claims in
//! [`claim`], and XINFO is in [`info`].

pub(crate) mod claim;
pub(crate) mod group;
pub(crate) mod info;
pub(crate) mod read;

use crate::command::context::{Context, Done, Failure, NO_SUCH_KEY, NOT_AN_INTEGER, SYNTAX};
use crate::command::events::EventName;
use crate::command::row::*;
use crate::values::collection::{change, change_silently, read};
use duramen_config::EventClasses;
use duramen_engine::Guard;
use duramen_types::stream::{self, Entry, Id, Rough, Trim};
use duramen_types::{Part, Parts, Stream, Text};
use duramen_wire::resp::number::parse_integer;
use duramen_wire::resp::{Args, Encoder};

#[rustfmt::skip] // They are rows of a table.
pub(crate) const COMMANDS: &[Spec] = &[
    row("xadd", -5, DENYOOM | FAST, doc(Topic::Stream, "5.0.0", "O(1) when adding a new entry, O(N) when trimming", "Adds an entry."),
        Keys::one(UPDATES).note("UPDATE instead of INSERT because of the optional trimming feature"),
        Effect::Writes(Growth::By(|args, _| 2 * growth::texts(args, 2) + STREAM_BYTES)), Secrets::None, Run::Data(xadd))
            .differs("`~` removes multiples of `stream-node-max-entries`, or all.")
        .tips(&["nondeterministic_output"]),
    row("xlen", 2, FAST, doc(Topic::Stream, "5.0.0", "O(1)", "Returns the number of entries."),
        Keys::one(LOOKS), Effect::Reads, Secrets::None, Run::Data(xlen)),
    row("xrange", -4, NO_FLAGS, doc(Topic::Stream, "5.0.0", "O(N)", "Returns the entries in a range of ids."),
        Keys::one(READS), Effect::Reads, Secrets::None, Run::Data(xrange)),
    row("xrevrange", -4, NO_FLAGS, doc(Topic::Stream, "5.0.0", "O(N)", "Returns the entries in a range of ids, the last first."),
        Keys::one(READS), Effect::Reads, Secrets::None, Run::Data(xrevrange)),
    row("xdel", -3, FAST, doc(Topic::Stream, "5.0.0", "O(N)", "Removes entries by their ids."),
        Keys::one(REMOVES), Effect::Writes(Growth::By(|_, _| STREAM_BYTES)), Secrets::None, Run::Data(xdel)),
    row("xtrim", -4, NO_FLAGS, doc(Topic::Stream, "5.0.0", "O(N)", "Removes the first entries."),
        Keys::one(REMOVES), Effect::Writes(Growth::By(|_, _| STREAM_BYTES)), Secrets::None, Run::Data(xtrim))
            .differs("`~` removes multiples of `stream-node-max-entries`, or all.").tips(&["nondeterministic_output"]),
    row("xsetid", -3, DENYOOM | FAST, doc(Topic::Stream, "5.0.0", "O(1)", "Sets the last id of a stream."),
        Keys::one(UPDATES), Effect::Writes(Growth::By(|_, _| STREAM_BYTES)), Secrets::None, Run::Data(xsetid)),
];

/// Maximum growth of a stream's head, and of a group or a consumer without its name.
pub(super) const STREAM_BYTES: usize = 128;
/// Maximum bytes of a pending entry of a stream, with those that it may add to the next one.
pub(super) const PENDING_BYTES: usize = 56;
/// Minimum bytes of an entry of a stream, or of a pending entry.
const ENTRY_BYTES: usize = 5;

/// The growth of a stream of `bytes` by pending entries: as many as COUNT says, or as there may be.
/// `from`: the position of the first option.
pub(super) fn pending_bytes(args: &Args<'_>, from: usize, bytes: usize) -> usize {
    let all = bytes / ENTRY_BYTES;
    let mut most = all;
    let mut at = from;
    while let Some(option) = args.get(at) {
        at += match option.to_ascii_lowercase().as_slice() {
            b"count" => {
                let count = growth::index(args, at + 1);
                // If COUNT is given more than once, the last one counts.
                most = if count > 0 { all.min(count) } else { all };
                2
            }
            b"block" => 2,
            b"group" => 3,
            b"streams" => break,
            _ => 1,
        };
    }
    growth::texts(args, 1) + STREAM_BYTES + most * PENDING_BYTES
}

pub(crate) const fn event(name: &'static str) -> EventName {
    (EventClasses::STREAM, name)
}

/// The event of a consumer that is made.
pub(crate) const CONSUMER_MADE: EventName = event("xgroup-createconsumer");

const INVALID_ID: Failure =
    Failure::Text("ERR Invalid stream ID specified as stream command argument");
/// Maximum bytes of an id: in Redis longer texts are no ids.
const ID_BYTES_MAX: usize = 127;
/// Maximum nodes whose entries `~` removes without LIMIT.
const NODES_MAX: usize = 100;
/// Maximum entries that `~` removes without LIMIT.
const LIMIT_MAX: usize = 1_000_000;

/// A part of an id, as `strtoull` reads it.
fn parse_part(text: &[u8]) -> Option<u64> {
    let text = text.trim_ascii_start();
    let digits = text.strip_prefix(b"+").unwrap_or(text);
    let is_number = digits.first().is_some_and(u8::is_ascii_digit);
    let digits = std::str::from_utf8(digits).ok()?;
    is_number.then(|| digits.parse().ok())?
}

/// Parses an id. `missing`: the id's number, if only the milliseconds are given.
pub(crate) fn parse_id(text: &[u8], missing: u64) -> Result<Id, Failure> {
    if text.len() > ID_BYTES_MAX {
        return Err(INVALID_ID);
    }
    let mut parts = text.splitn(2, |byte| *byte == b'-');
    let ms = parts.next().and_then(parse_part).ok_or(INVALID_ID)?;
    let seq = match parts.next() {
        Some(seq) => parse_part(seq).ok_or(INVALID_ID)?,
        None => missing,
    };
    Ok(Id { ms, seq })
}

/// Parses an id, or `-` and `+` for the lowest and the highest id that there can be.
pub(crate) fn parse_any_id(text: &[u8], missing: u64) -> Result<Id, Failure> {
    match text {
        b"-" => Ok(Id::MIN),
        b"+" => Ok(Id::MAX),
        _ => parse_id(text, missing),
    }
}

/// Parses the lower end of a range. The id is included, unless `(` excludes it.
pub(crate) fn parse_start(text: &[u8]) -> Result<Id, Failure> {
    match text {
        [b'(', rest @ ..] if !rest.is_empty() => parse_id(rest, 0)?
            .next()
            .ok_or(Failure::Text("ERR invalid start ID for the interval")),
        _ => parse_any_id(text, 0),
    }
}

/// Parses the upper end of a range. The id is included, unless `(` excludes it.
pub(crate) fn parse_end(text: &[u8]) -> Result<Id, Failure> {
    match text {
        [b'(', rest @ ..] if !rest.is_empty() => parse_id(rest, u64::MAX)?
            .previous()
            .ok_or(Failure::Text("ERR invalid end ID for the interval")),
        _ => parse_any_id(text, u64::MAX),
    }
}

/// Parses the ids in all arguments from `from` on.
pub(crate) fn parse_ids(ctx: &Context<'_>, from: usize) -> Result<Vec<Id>, Failure> {
    let ids = ctx.request.args.skip(from).into_iter();
    ids.map(|text| parse_id(text, 0)).collect()
}

pub(crate) fn write_id(reply: &mut Encoder<'_>, id: Id) {
    reply.bulk(id.to_string().as_bytes());
}

/// Replies with an entry: its id, and fields and values in turn.
pub(crate) fn write_entry(reply: &mut Encoder<'_>, stream: &Stream<'_>, entry: &Entry<'_>) -> Done {
    let pairs = stream.pairs(entry)?;
    reply.array(2);
    write_id(reply, entry.id);
    reply.array(2 * pairs.len());
    for (field, value) in pairs {
        reply.bulk(&field.bytes());
        reply.bulk(&value.bytes());
    }
    Ok(())
}

/// Replies with entries, as long as there is room.
pub(crate) fn write_entries(
    ctx: &mut Context<'_>,
    stream: &Stream<'_>,
    entries: &[Entry<'_>],
) -> Done {
    ctx.reply.encoder().array(entries.len());
    for entry in entries {
        write_entry(&mut ctx.reply.encoder(), stream, entry)?;
        ctx.reply.fits()?;
    }
    Ok(())
}

/// The id that a request of XADD gives.
#[derive(Clone, Copy)]
enum NewId {
    /// `*`
    Any,
    /// `ms-*`
    At(u64),
    Exact(Id),
}

/// The options of XADD and XTRIM.
struct Options {
    trim: Option<Trim>,
    /// How roughly entries are removed; `None`: exactly.
    rough: Option<Rough>,
    only_present: bool,
    id: NewId,
    /// The position of the first argument behind the options and the id.
    next: usize,
}

/// Parses the threshold of MAXLEN or MINID in the arguments from `at` on. Returns it, whether `~`
/// is before it, and the position of the next argument.
fn parse_trim(
    ctx: &Context<'_>,
    at: usize,
    is_length: bool,
) -> Result<(Trim, bool, usize), Failure> {
    let has_more = at + 1 < ctx.request.args.len();
    let at = at + usize::from(has_more && matches!(ctx.arg(at), b"~" | b"="));
    let is_rough = ctx.arg(at - 1) == b"~";
    let trim = match is_length {
        true => {
            let length = parse_integer(ctx.arg(at)).ok_or(NOT_AN_INTEGER)?;
            let length = usize::try_from(length);
            Trim::Length(
                length.map_err(|_| Failure::Text("ERR The MAXLEN argument must be >= 0."))?,
            )
        }
        false => Trim::Before(parse_id(ctx.arg(at), 0)?),
    };
    Ok((trim, is_rough, at + 1))
}

fn parse_new_id(text: &[u8]) -> Result<NewId, Failure> {
    match text.strip_suffix(b"-*") {
        Some(ms) if text.len() <= ID_BYTES_MAX => parse_part(ms).map(NewId::At).ok_or(INVALID_ID),
        _ => parse_id(text, 0).map(NewId::Exact),
    }
}

/// Parses the options of XADD, which end with an id, or of XTRIM.
fn parse(ctx: &Context<'_>, adds: bool) -> Result<Options, Failure> {
    let (mut trim, mut is_rough, mut limit) = (None, false, None);
    let (mut only_present, mut id, mut at) = (false, NewId::Any, 2);
    while let Some(option) = ctx.request.args.get(at) {
        let has_more = at + 1 < ctx.request.args.len();
        at += 1;
        match option.to_ascii_lowercase().as_slice() {
            b"*" if adds => break,
            name @ (b"maxlen" | b"minid") if has_more => {
                if trim.is_some() {
                    return Err(Failure::Text(
                        "ERR syntax error, MAXLEN and MINID options at the same time are not compatible",
                    ));
                }
                let (found, rough, next) = parse_trim(ctx, at, name == b"maxlen")?;
                (trim, is_rough, at) = (Some(found), rough, next);
            }
            b"limit" if has_more => {
                let number = parse_integer(ctx.arg(at)).ok_or(NOT_AN_INTEGER)?;
                let number = usize::try_from(number);
                limit = Some(
                    number.map_err(|_| Failure::Text("ERR The LIMIT argument must be >= 0."))?,
                );
                at += 1;
            }
            b"nomkstream" if adds => only_present = true,
            _ if adds => {
                id = parse_new_id(option)?;
                break;
            }
            _ => return Err(SYNTAX),
        }
    }
    check(adds, trim.is_some(), is_rough, limit)?;
    Ok(Options {
        trim,
        rough: is_rough.then(|| rough(ctx, limit)),
        only_present,
        id,
        next: at,
    })
}

/// The roughness of a trim by `~`. `limit`: LIMIT, if it was given; 0: there is no limit.
fn rough(ctx: &Context<'_>, limit: Option<usize>) -> Rough {
    let entries = ctx.shared.settings.encodings().stream_node_entries();
    let limit = limit.unwrap_or(entries.saturating_mul(NODES_MAX).min(LIMIT_MAX));
    Rough {
        node_entries: entries,
        limit: if limit == 0 { usize::MAX } else { limit },
    }
}

/// Checks which options of XADD and XTRIM may be given together.
fn check(adds: bool, trims: bool, is_rough: bool, limit: Option<usize>) -> Done {
    let why = match limit {
        Some(1..) if !trims => "LIMIT cannot be used without specifying a trimming strategy",
        _ if !adds && !trims => "XTRIM must be called with a trimming strategy",
        Some(_) if !is_rough => "LIMIT cannot be used without the special ~ option",
        _ => return Ok(()),
    };
    Err(format!("ERR syntax error, {why}").into())
}

/// The id of the next entry.
fn new_id(stream: &Stream<'_>, id: NewId, now_ms: u64) -> Result<Id, Failure> {
    let last = stream.last();
    if last == Id::MAX {
        return Err(Failure::Text(
            "ERR The stream has exhausted the last possible ID, unable to add more items",
        ));
    }
    let id = match id {
        NewId::Any if now_ms > last.ms => Some(Id { ms: now_ms, seq: 0 }),
        NewId::Any => last.next(),
        NewId::At(ms) if ms == last.ms => last.seq.checked_add(1).map(|seq| Id { ms, seq }),
        NewId::At(ms) => Some(Id { ms, seq: 0 }),
        NewId::Exact(id) => Some(id),
    };
    id.filter(|id| *id > last).ok_or(Failure::Text(
        "ERR The ID specified in XADD is equal or smaller than the target stream top item",
    ))
}

pub(crate) fn xadd(ctx: &mut Context<'_>, guard: &mut Guard<'_>) -> Done {
    let options = parse(ctx, true)?;
    let number = ctx.request.args.len().saturating_sub(options.next);
    if number < 2 || number % 2 == 1 {
        return Err(Failure::Text(
            "ERR wrong number of arguments for 'xadd' command",
        ));
    }
    if matches!(options.id, NewId::Exact(Id::MIN)) {
        return Err(Failure::Text(
            "ERR The ID specified in XADD must be greater than 0-0",
        ));
    }
    let mut pairs = Vec::with_capacity(number / 2);
    let mut rest = ctx.request.args.skip(options.next).into_iter();
    while let (Some(field), Some(value)) = (rest.next(), rest.next()) {
        pairs.push((Text::of(field), Text::of(value)));
    }
    let now_ms = guard.now_ms();
    let mut trimmed = 0;
    let (added, outcome) = change_silently(ctx, guard, |_, parts| {
        if options.only_present && parts.get(Part::Root).is_none() {
            return Ok(None);
        }
        let mut stream = Stream::load(parts)?;
        let id = new_id(&stream, options.id, now_ms)?;
        stream.append(id, &pairs);
        if let Some(trim) = options.trim {
            trimmed = stream.trim(trim, options.rough)?;
        }
        stream.store(parts)?;
        Ok(Some(id))
    })?;
    ctx.notify_change(event("xadd"), ctx.key().bytes, outcome);
    if added.is_some() && trimmed > 0 {
        ctx.notify(event("xtrim"), ctx.key().bytes);
    }
    match added {
        Some(id) => write_id(&mut ctx.reply.encoder(), id),
        None => ctx.reply.encoder().null(),
    }
    Ok(())
}

pub(crate) fn xtrim(ctx: &mut Context<'_>, guard: &mut Guard<'_>) -> Done {
    let options = parse(ctx, false)?;
    let removed = change(ctx, guard, event("xtrim"), |_, parts| {
        let mut stream = Stream::load(parts)?;
        let removed = match options.trim {
            Some(trim) => stream.trim(trim, options.rough)?,
            None => 0,
        };
        if removed > 0 {
            stream.store(parts)?;
        }
        Ok(removed)
    })?;
    ctx.reply.integer(removed as i64)
}

pub(crate) fn xdel(ctx: &mut Context<'_>, guard: &mut Guard<'_>) -> Done {
    let removed = change(ctx, guard, event("xdel"), |ctx, parts| {
        if parts.get(Part::Root).is_none() {
            return Ok(0);
        }
        let mut stream = Stream::load(parts)?;
        let mut ids = parse_ids(ctx, 2)?;
        ids.sort_unstable();
        let removed = stream.remove(&ids)?;
        if removed > 0 {
            stream.store(parts)?;
        }
        Ok(removed)
    })?;
    ctx.reply.integer(removed as i64)
}

pub(crate) fn xlen(ctx: &mut Context<'_>, guard: &mut Guard<'_>) -> Done {
    let value = read(ctx, guard)?;
    let len = value.map_or(Ok(0), stream::len)?;
    ctx.reply.integer(len as i64)
}

/// Parses the COUNT of XRANGE; `None` without one.
fn parse_count(ctx: &Context<'_>) -> Result<Option<usize>, Failure> {
    let (mut count, mut rest) = (None, ctx.request.args.skip(4).into_iter());
    while let Some(option) = rest.next() {
        if !option.eq_ignore_ascii_case(b"count") {
            return Err(SYNTAX);
        }
        let number = parse_integer(rest.next().ok_or(SYNTAX)?).ok_or(NOT_AN_INTEGER)?;
        count = Some(usize::try_from(number).unwrap_or(0));
    }
    Ok(count)
}

fn range(ctx: &mut Context<'_>, guard: &mut Guard<'_>, reversed: bool) -> Done {
    let (low, high) = if reversed { (3, 2) } else { (2, 3) };
    let (start, end) = (parse_start(ctx.arg(low))?, parse_end(ctx.arg(high))?);
    let count = parse_count(ctx)?;
    let Some(value) = read(ctx, guard)? else {
        ctx.reply.encoder().array(0);
        return Ok(());
    };
    let stream = Stream::of(Some(value))?;
    if count == Some(0) {
        ctx.reply.encoder().null_array();
        return Ok(());
    }
    let most = count.unwrap_or(usize::MAX);
    let entries = match reversed {
        true => stream.range_back(start, end, most)?,
        false => stream.range(start, end, most)?,
    };
    write_entries(ctx, &stream, &entries)
}

pub(crate) fn xrange(ctx: &mut Context<'_>, guard: &mut Guard<'_>) -> Done {
    range(ctx, guard, false)
}

pub(crate) fn xrevrange(ctx: &mut Context<'_>, guard: &mut Guard<'_>) -> Done {
    range(ctx, guard, true)
}

pub(crate) fn xsetid(ctx: &mut Context<'_>, guard: &mut Guard<'_>) -> Done {
    let last = parse_id(ctx.arg(2), 0)?;
    let (mut added, mut deleted) = (None, Id::MIN);
    let mut rest = ctx.request.args.skip(3).into_iter();
    while let Some(option) = rest.next() {
        let value = rest.next().ok_or(SYNTAX)?;
        match option.to_ascii_lowercase().as_slice() {
            b"entriesadded" => {
                let number = parse_integer(value).ok_or(NOT_AN_INTEGER)?;
                let number = u64::try_from(number);
                added =
                    Some(number.map_err(|_| Failure::Text("ERR entries_added must be positive"))?);
            }
            b"maxdeletedid" => {
                deleted = parse_id(value, 0)?;
                if last < deleted {
                    return Err(Failure::Text(
                        "ERR The ID specified in XSETID is smaller than the provided max_deleted_entry_id",
                    ));
                }
            }
            _ => return Err(SYNTAX),
        }
    }
    let deleted = Some(deleted).filter(|id| *id != Id::MIN);
    change(ctx, guard, event("xsetid"), |_, parts| {
        parts.get(Part::Root).ok_or(NO_SUCH_KEY)?;
        let mut stream = Stream::load(parts)?;
        let too_small = match added {
            _ if last < stream.deleted() => {
                Some("ID specified in XSETID is smaller than current max_deleted_entry_id")
            }
            _ if stream.is_empty() => None,
            _ if last < stream.tip() => {
                Some("ID specified in XSETID is smaller than the target stream top item")
            }
            Some(added) if added < stream.len() as u64 => {
                Some("entries_added specified in XSETID is smaller than the target stream length")
            }
            _ => None,
        };
        if let Some(why) = too_small {
            return Err(format!("ERR The {why}").into());
        }
        stream.set_last(last, added, deleted);
        Ok(stream.store(parts)?)
    })?;
    ctx.reply.ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_read_as_by_redis() {
        let id = |ms, seq| Some(Id { ms, seq });
        for (text, expected) in [
            ("1-2", id(1, 2)),
            ("1", id(1, 9)),
            ("0", id(0, 9)),
            ("007-+3", id(7, 3)),
            (" 5- 6", id(5, 6)),
            ("18446744073709551615-18446744073709551615", Some(Id::MAX)),
            ("18446744073709551616-0", None),
            ("", None),
            ("-", None),
            ("-1", None),
            ("1-", None),
            ("1-2-3", None),
            ("1-*", None),
            ("a-1", None),
            ("+", None),
            ("++1", None),
            ("1 ", None),
        ] {
            assert_eq!(parse_id(text.as_bytes(), 9).ok(), expected, "{text:?}");
        }
        assert!(parse_id(&[b'0'; 128], 0).is_err());
        assert!(parse_id(&[b'0'; 127], 0).is_ok());
    }
}
