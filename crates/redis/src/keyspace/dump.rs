//! DUMP and RESTORE: values in Redis's own serialization.

use crate::command::context::{Context, Done, Failure, NOT_AN_INTEGER, SYNTAX};
use crate::command::events::{EventName, NEW};
use crate::command::row::*;
use duramen_base::expiry::removes_at_once;
use duramen_config::EventClasses;
use duramen_engine::{Decision, Guard};
use duramen_types::dump;
use duramen_wire::resp::number::parse_integer;

#[rustfmt::skip] // They are rows of a table.
pub(crate) const COMMANDS: &[Spec] = &[
    row("dump", 2, KEYSPACE, doc(Topic::Generic, "2.6.0", "O(N)", "Returns a value in Redis's serialization."),
        Keys::one(READS), Effect::Reads, Secrets::None, Run::Data(dump))
            .differs("A stream has the form of 7.0.").tips(&["nondeterministic_output"]),
    row("restore", -4, DENYOOM | KEYSPACE | DANGEROUS, doc(Topic::Generic, "2.6.0", "O(N)", "Creates a key from a value in Redis's serialization."),
        Keys::one(SETS), Effect::Writes(Growth::Sets(growth::any)), Secrets::None, Run::Data(restore)),
];

const RESTORE: EventName = (EventClasses::GENERIC, "restore");

pub(crate) fn dump(ctx: &mut Context<'_>, guard: &mut Guard<'_>) -> Done {
    let key = ctx.key();
    match guard.read(key.table, key.hash, key.bytes)? {
        Some(object) => ctx.reply.bulk(&dump::dump(object.value, object.is_typed)?),
        None => {
            ctx.notify_miss(key.bytes);
            ctx.reply.null()
        }
    }
}

/// The options of RESTORE.
#[derive(Default)]
struct Options {
    replace: bool,
    /// Whether the time to live is a time of expiry.
    absolute: bool,
}

fn parse(ctx: &Context<'_>) -> Result<Options, Failure> {
    let mut options = Options::default();
    let (mut idle, mut frequent) = (false, false);
    let mut rest = ctx.request.args.skip(4).into_iter();
    while let Some(option) = rest.next() {
        match option.to_ascii_lowercase().as_slice() {
            b"replace" => options.replace = true,
            b"absttl" => options.absolute = true,
            // IDLETIME and FREQ are accepted, but only one of them, and have no effect.
            b"idletime" if !frequent => {
                idle = true;
                let seconds = parse_integer(rest.next().ok_or(SYNTAX)?).ok_or(NOT_AN_INTEGER)?;
                if seconds < 0 {
                    return Err(Failure::Text("ERR Invalid IDLETIME value, must be >= 0"));
                }
            }
            b"freq" if !idle => {
                frequent = true;
                let freq = parse_integer(rest.next().ok_or(SYNTAX)?).ok_or(NOT_AN_INTEGER)?;
                if !(0..=255).contains(&freq) {
                    return Err(Failure::Text(
                        "ERR Invalid FREQ value, must be >= 0 and <= 255",
                    ));
                }
            }
            _ => return Err(SYNTAX),
        }
    }
    Ok(options)
}

pub(crate) fn restore(ctx: &mut Context<'_>, guard: &mut Guard<'_>) -> Done {
    let key = ctx.key();
    let options = parse(ctx)?;
    let now_ms = guard.now_ms();
    let ttl_ms = parse_integer(ctx.arg(2)).ok_or(NOT_AN_INTEGER);
    let expires_at_ms = ttl_ms.and_then(|ttl_ms| match u64::try_from(ttl_ms) {
        Ok(0) => Ok(None),
        Ok(ttl_ms) if options.absolute => Ok(Some(ttl_ms)),
        Ok(ttl_ms) => Ok(Some(now_ms.saturating_add(ttl_ms))),
        Err(_) => Err(Failure::Text("ERR Invalid TTL value, must be >= 0")),
    });
    let value = dump::restore(ctx.arg(3)).map_err(|error| match error {
        dump::Error::Collection(error) => error.into(),
        error => Failure::from(format!("ERR {error}")),
    });
    let restored = expires_at_ms.and_then(|expires_at_ms| Ok((value?, expires_at_ms)));
    let mut is_taken = false;
    let outcome = guard.update(key.table, key.hash, key.bytes, |found, scratch| {
        is_taken = found.is_some() && !options.replace;
        let Ok(((value, is_typed), expires_at_ms)) = &restored else {
            return Decision::Keep;
        };
        if is_taken {
            return Decision::Keep;
        }
        if expires_at_ms.is_some_and(|at_ms| removes_at_once(at_ms, now_ms)) {
            return Decision::Remove;
        }
        scratch.extend_from_slice(value);
        match is_typed {
            true => Decision::PutTyped {
                expires_at_ms: *expires_at_ms,
            },
            false => Decision::PutScratch {
                expires_at_ms: *expires_at_ms,
            },
        }
    })?;
    if is_taken {
        return Err(Failure::Text("BUSYKEY Target key name already exists."));
    }
    restored?;
    match outcome.after {
        Some(_) => {
            // A key that was there before is replaced by a new one.
            ctx.notify(NEW, key.bytes);
            ctx.notify(RESTORE, key.bytes);
        }
        None => ctx.notify_removal(key.bytes, outcome), // the expiry is in the past
    }
    ctx.reply.ok()
}
