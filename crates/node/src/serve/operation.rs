//! The effects of operations on a key.

use duramen_base::planted::{Bug, has_bug};
use duramen_engine::{Decision, Error, Guard, KeyHash, Object};
use duramen_format::entry::Completion;
use duramen_wire::native::codec::append_outcome;
use duramen_wire::native::message::{
    Amount, Condition, Expiry, Operation, Outcome, Problem, Single,
};

/// Room in the log for an operation, apart from its key (stored twice) and its value: headers,
/// padding, a completion record, a number as text (a float has up to 330 digits).
const ROOM_BYTES: usize = 1024;

/// Applies a mutating operation. `Ok`: the result is final, with an effect or without. `Err`:
/// nothing happened, and it may be tried again.
pub(super) fn apply(
    guard: &mut Guard<'_>,
    single: &Single<'_>,
    hash: KeyHash,
) -> Result<Outcome<'static>, Error> {
    let applied = match single.operation {
        Operation::Read => unreachable!("a read is no mutation"),
        Operation::Write {
            value,
            condition,
            expiry,
        } => write(guard, single, hash, value, condition, expiry),
        Operation::Remove { condition } => remove(guard, single, hash, condition),
        Operation::Increment { by } => increment(guard, single, hash, by),
    };
    match applied {
        Err(Error::NotAnInteger | Error::NotAFloat) => Ok(Outcome::Problem(Problem::NotANumber)),
        Err(Error::WrongType) => Ok(Outcome::Problem(Problem::WrongType)),
        Err(Error::Overflow | Error::NotFinite) => Ok(Outcome::Problem(Problem::Overflow)),
        other => other,
    }
}

/// As [`apply`], with the outcome in the log; its bytes are left in `record`. The key is locked.
///
/// # Panics
/// If the log has no room for a record although it was set aside: the effect would be without it.
pub(super) fn apply_recorded(
    guard: &mut Guard<'_>,
    single: &Single<'_>,
    hash: KeyHash,
    completion: &Completion<'_>,
    record: &mut Vec<u8>,
) -> Result<Outcome<'static>, Error> {
    let value_bytes = match single.operation {
        Operation::Write { value, .. } => value.len(),
        _ => 0,
    };
    guard.reserve(ROOM_BYTES + 2 * single.key.len() + value_bytes)?;
    let outcome = apply(guard, single, hash)?;
    record.clear();
    append_outcome(record, &outcome);
    if has_bug(Bug::RecordApart) {
        guard.unlock_keys();
        guard.lock_keys(&[(single.table, hash)])?;
    }
    let completion = Completion {
        result: record,
        ..*completion
    };
    guard
        .complete(&completion)
        .expect("room was set aside for the record");
    Ok(outcome)
}

/// Whether a condition holds for an object of this version, `None` = absent.
fn holds(condition: Condition, current: Option<u64>) -> bool {
    match condition {
        Condition::Always => true,
        Condition::Absent => current.is_none(),
        Condition::Present => current.is_some(),
        Condition::Version(version) => current == Some(version),
        Condition::NewerThan(version) => current.is_none_or(|current| current < version),
    }
}

/// Decides under the key's lock; if the condition does not hold, nothing changes.
fn change<'v>(
    guard: &mut Guard<'_>,
    single: &Single<'_>,
    hash: KeyHash,
    condition: Condition,
    decide: impl Fn(Option<Object<'_>>) -> Decision<'v>,
) -> Result<Result<duramen_engine::Outcome, Outcome<'static>>, Error> {
    let mut failed = None;
    let changed = guard.update(single.table, hash, single.key, |found, _| {
        let current = found.map(|object| object.version);
        failed = (!holds(condition, current)).then_some(Outcome::ConditionFailed { current });
        match failed {
            Some(_) => Decision::Keep,
            None => decide(found),
        }
    })?;
    Ok(match failed {
        Some(failed) => Err(failed),
        None => Ok(changed),
    })
}

fn write(
    guard: &mut Guard<'_>,
    single: &Single<'_>,
    hash: KeyHash,
    value: &[u8],
    condition: Condition,
    expiry: Expiry,
) -> Result<Outcome<'static>, Error> {
    let changed = change(guard, single, hash, condition, |found| Decision::Put {
        value,
        expires_at_ms: match expiry {
            Expiry::Never => None,
            Expiry::Keep => found.and_then(|object| object.expires_at_ms),
            Expiry::At(time_ms) => Some(time_ms),
        },
    })?;
    Ok(changed.map_or_else(
        |failed| failed,
        // None: it expired before it was written.
        |changed| Outcome::Written {
            version: changed.after.unwrap_or(0),
        },
    ))
}

fn remove(
    guard: &mut Guard<'_>,
    single: &Single<'_>,
    hash: KeyHash,
    condition: Condition,
) -> Result<Outcome<'static>, Error> {
    let changed = change(guard, single, hash, condition, |found| match found {
        Some(_) => Decision::Remove,
        None => Decision::Keep,
    })?;
    Ok(changed.map_or_else(
        |failed| failed,
        |changed| match changed.before {
            Some(version) => Outcome::Removed { version },
            None => Outcome::Absent,
        },
    ))
}

fn increment(
    guard: &mut Guard<'_>,
    single: &Single<'_>,
    hash: KeyHash,
    by: Amount,
) -> Result<Outcome<'static>, Error> {
    let (value, version) = match by {
        Amount::Integer(by) => {
            let sum = guard.increment(single.table, hash, single.key, by)?;
            (Amount::Integer(sum.value), sum.version)
        }
        Amount::Float(by) => {
            let sum = guard.increment_float(single.table, hash, single.key, by)?;
            (Amount::Float(sum.value), sum.version)
        }
    };
    Ok(Outcome::Number { value, version })
}
