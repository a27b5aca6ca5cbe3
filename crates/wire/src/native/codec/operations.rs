//! Single operations, their outcomes, and the other small client messages.
//!
//! **Layout** of an operation; the preceding fields say whether the fields in brackets exist:
//!
//! ```text
//! 0    1       2           3        4       5   6       8       12      16
//! +----+-------+-----------+--------+-------+---+-------+-------+-------+-----------+--------+-------+---------+-----+-------+
//! | op | flags | condition | expiry | level | 0 | bytes | table | bytes | [version] | [time] | [rpc] | [amount]| key | value |
//! | u8 |  u8   |    u8     |   u8   |  u8   |   | of key|  u32  | of    |    u64    |  u64   | 3 u64 |   u64   |     |       |
//! |    |       |           |        |       |   |  u16  |       | value |           |        |       |         |     |       |
//! +----+-------+-----------+--------+-------+---+-------+-------+-------+-----------+--------+-------+---------+-----+-------+
//! ```
//!
//! op: 1 read, 2 write, 3 remove, 4 increment. Flags: 1 rpc (client, id, acknowledged), 2 the
//! amount is a float. Condition: 0 always, 1 absent, 2 present, 3 this version, 4 older than this
//! version or absent. Expiry (of a write): 0 never, 1 as before, 2 at this time. Level: 0 memory, 1
//! buffered, 2 synced, 255 the table's.
//!
//! Layout of an outcome:
//!
//! ```text
//! 0      1       2      4       8         16
//! +------+-------+------+-------+---------+--------+---------------+
//! | kind | flags | code | bytes | version | [word] | value or text |
//! |  u8  |  u8   | u16  |  u32  |   u64   |  u64   |               |
//! +------+-------+------+-------+---------+--------+---------------+
//! ```
//!
//! kind: 1 value (flag 1: the word is its expiry), 2 absent, 3 written, 4 removed, 5 number (in the
//! word; flag 2: a float), 6 condition failed (flag 4: an object is there, of that version), 7
//! problem (code: see `PROBLEM_*`; retry and in progress have their milliseconds in `version`).

use super::cursor::Cursor;
use super::frame::Builder;
use super::{BodyError, Envelope, Kind};
use crate::native::message::{
    Amount, Condition, Expiry, Operation, Outcome, Problem, Request, Rpc, Single,
};
use duramen_base::ids::{ClientId, KeyRange, Level, RouteHash, RpcId, TableId};

const READ: u8 = 1;
const WRITE: u8 = 2;
const REMOVE: u8 = 3;
const INCREMENT: u8 = 4;

const FLAG_RPC: u8 = 1;
const FLAG_FLOAT: u8 = 2;
const FLAG_EXPIRY: u8 = 1;
const FLAG_PRESENT: u8 = 4;

const NO_LEVEL: u8 = 255;

const VALUE: u8 = 1;
const ABSENT: u8 = 2;
const WRITTEN: u8 = 3;
const REMOVED: u8 = 4;
const NUMBER: u8 = 5;
const CONDITION_FAILED: u8 = 6;
const PROBLEM: u8 = 7;

const PROBLEM_UNKNOWN_TABLET: u16 = 1;
const PROBLEM_UNKNOWN_TABLE: u16 = 2;
const PROBLEM_RETRY: u16 = 3;
const PROBLEM_STALE: u16 = 4;
const PROBLEM_LEASE_EXPIRED: u16 = 5;
const PROBLEM_NOT_A_NUMBER: u16 = 6;
const PROBLEM_OVERFLOW: u16 = 7;
const PROBLEM_TOO_LARGE: u16 = 8;
const PROBLEM_FULL: u16 = 9;
const PROBLEM_FAILED: u16 = 10;
const PROBLEM_IN_PROGRESS: u16 = 11;
const PROBLEM_WRONG_TYPE: u16 = 12;

/// The part of an operation after its first 16 bytes.
#[derive(Clone, Copy, Debug, Default)]
struct Optional<'a> {
    condition: Condition,
    expiry: Expiry,
    amount: Option<Amount>,
    value: &'a [u8],
}

fn split<'a>(operation: &Operation<'a>) -> (u8, Optional<'a>) {
    let nothing = Optional::default();
    match *operation {
        Operation::Read => (READ, nothing),
        Operation::Write {
            value,
            condition,
            expiry,
        } => {
            let write = Optional {
                condition,
                expiry,
                amount: None,
                value,
            };
            (WRITE, write)
        }
        Operation::Remove { condition } => (
            REMOVE,
            Optional {
                condition,
                ..nothing
            },
        ),
        Operation::Increment { by } => (
            INCREMENT,
            Optional {
                amount: Some(by),
                ..nothing
            },
        ),
    }
}

fn condition_parts(condition: Condition) -> (u8, Option<u64>) {
    match condition {
        Condition::Always => (0, None),
        Condition::Absent => (1, None),
        Condition::Present => (2, None),
        Condition::Version(version) => (3, Some(version)),
        Condition::NewerThan(version) => (4, Some(version)),
    }
}

fn expiry_parts(expiry: Expiry) -> (u8, Option<u64>) {
    match expiry {
        Expiry::Never => (0, None),
        Expiry::Keep => (1, None),
        Expiry::At(time) => (2, Some(time)),
    }
}

fn amount_parts(amount: Amount) -> (u8, u64) {
    match amount {
        Amount::Integer(number) => (0, number as u64),
        Amount::Float(number) => (FLAG_FLOAT, number.to_bits()),
    }
}

fn amount(flags: u8, word: u64) -> Amount {
    if flags & FLAG_FLOAT == 0 {
        Amount::Integer(word as i64)
    } else {
        Amount::Float(f64::from_bits(word))
    }
}

/// Bytes of an operation in a body: needed to divide a batch.
pub fn single_bytes(single: &Single<'_>) -> usize {
    let (_, optional) = split(&single.operation);
    let words = usize::from(condition_parts(optional.condition).1.is_some())
        + usize::from(expiry_parts(optional.expiry).1.is_some())
        + usize::from(optional.amount.is_some())
        + if single.rpc.is_some() { 3 } else { 0 };
    16 + 8 * words + single.key.len() + optional.value.len()
}

/// # Panics
/// If the key is longer than 64 KiB or the value than 4 GiB: callers check limits before.
#[inline]
pub(super) fn append_single(out: &mut Vec<u8>, single: &Single<'_>) {
    let (op, optional) = split(&single.operation);
    let (condition, version) = condition_parts(optional.condition);
    let (expiry, time) = expiry_parts(optional.expiry);
    let amount = optional.amount.map(amount_parts);
    let mut flags = amount.map_or(0, |(flag, _)| flag);
    if single.rpc.is_some() {
        flags |= FLAG_RPC;
    }
    let level = single.level.map_or(NO_LEVEL, |level| level as u8);
    let key_bytes = u16::try_from(single.key.len()).expect("a key within its limit");
    let value_bytes = u32::try_from(optional.value.len()).expect("a value within its limit");
    out.reserve(single_bytes(single));
    out.extend_from_slice(&[op, flags, condition, expiry, level, 0]);
    out.extend_from_slice(&key_bytes.to_le_bytes());
    out.extend_from_slice(&single.table.0.to_le_bytes());
    out.extend_from_slice(&value_bytes.to_le_bytes());
    for word in [version, time].into_iter().flatten() {
        out.extend_from_slice(&word.to_le_bytes());
    }
    if let Some(rpc) = single.rpc {
        for word in [rpc.client.0, rpc.id.0, rpc.acknowledged.0] {
            out.extend_from_slice(&word.to_le_bytes());
        }
    }
    if let Some((_, word)) = amount {
        out.extend_from_slice(&word.to_le_bytes());
    }
    out.extend_from_slice(single.key);
    out.extend_from_slice(optional.value);
}

#[inline]
pub(super) fn read_single<'a>(cursor: &mut Cursor<'a>) -> Result<Single<'a>, BodyError> {
    let op = cursor.u8("op")?;
    let flags = cursor.u8("flags")?;
    let condition = cursor.u8("condition")?;
    let expiry = cursor.u8("expiry")?;
    let level = cursor.u8("level")?;
    let reserved = cursor.u8("reserved")?;
    let key_bytes = usize::from(cursor.u16("bytes of key")?);
    let table = TableId(cursor.u32("table")?);
    let value_bytes = cursor.u32("bytes of value")? as usize;
    // codec::N4: fields that the operation does not have are zero.
    let known_flags = match op {
        READ => 0,
        WRITE | REMOVE => FLAG_RPC,
        INCREMENT => FLAG_RPC | FLAG_FLOAT,
        _ => return Err(cursor.wrong("op")),
    };
    if flags & !known_flags != 0 || reserved != 0 {
        return Err(cursor.wrong("flags"));
    }
    if condition != 0 && !matches!(op, WRITE | REMOVE) {
        return Err(cursor.wrong("condition"));
    }
    if expiry != 0 && op != WRITE {
        return Err(cursor.wrong("expiry"));
    }
    if value_bytes != 0 && op != WRITE {
        return Err(cursor.wrong("bytes of value"));
    }
    let condition = read_condition(cursor, condition)?;
    let expiry = read_expiry(cursor, expiry)?;
    let level = match level {
        NO_LEVEL => None,
        number => Some(Level::from_number(number).ok_or(cursor.wrong("level"))?),
    };
    let rpc = if flags & FLAG_RPC != 0 {
        Some(read_rpc(cursor)?)
    } else {
        None
    };
    let word = match op {
        INCREMENT => cursor.u64("amount")?,
        _ => 0,
    };
    let key = cursor.bytes(key_bytes, "key")?;
    let value = cursor.bytes(value_bytes, "value")?;
    let operation = match op {
        READ => Operation::Read,
        REMOVE => Operation::Remove { condition },
        INCREMENT => Operation::Increment {
            by: amount(flags, word),
        },
        _ => Operation::Write {
            value,
            condition,
            expiry,
        },
    };
    Ok(Single {
        table,
        key,
        operation,
        level,
        rpc,
    })
}

#[inline]
fn read_condition(cursor: &mut Cursor<'_>, number: u8) -> Result<Condition, BodyError> {
    Ok(match number {
        0 => Condition::Always,
        1 => Condition::Absent,
        2 => Condition::Present,
        3 => Condition::Version(cursor.u64("version")?),
        4 => Condition::NewerThan(cursor.u64("version")?),
        _ => return Err(cursor.wrong("condition")),
    })
}

#[inline]
fn read_expiry(cursor: &mut Cursor<'_>, number: u8) -> Result<Expiry, BodyError> {
    Ok(match number {
        0 => Expiry::Never,
        1 => Expiry::Keep,
        2 => Expiry::At(cursor.u64("time")?),
        _ => return Err(cursor.wrong("expiry")),
    })
}

fn read_rpc(cursor: &mut Cursor<'_>) -> Result<Rpc, BodyError> {
    let rpc = Rpc {
        client: ClientId(cursor.u64("client")?),
        id: RpcId(cursor.u64("rpc")?),
        acknowledged: RpcId(cursor.u64("acknowledged")?),
    };
    if rpc.client == ClientId::NONE || rpc.acknowledged >= rpc.id {
        return Err(cursor.wrong("rpc"));
    }
    Ok(rpc)
}

/// Bytes of an outcome in a body.
pub fn outcome_bytes(outcome: &Outcome<'_>) -> usize {
    24 + match outcome {
        Outcome::Value { value, .. } => value.len(),
        Outcome::Problem(problem) => problem_parts(problem).2.len(),
        _ => 0,
    }
}

/// Reads an outcome that [`append_outcome`] wrote, with nothing after it.
///
/// # Errors
/// The bytes are no outcome.
#[inline]
pub fn read_whole_outcome(bytes: &[u8]) -> Result<Outcome<'_>, BodyError> {
    let mut cursor = Cursor::new(Kind::Single, bytes);
    let outcome = read_outcome(&mut cursor)?;
    cursor.end()?;
    Ok(outcome)
}

/// Appends an outcome without a frame, for a completion record.
///
/// # Panics
/// If the value is longer than 4 GiB.
#[inline]
pub fn append_outcome(out: &mut Vec<u8>, outcome: &Outcome<'_>) {
    let (kind, flags, code, version, word, bytes): (u8, u8, u16, u64, Option<u64>, &[u8]) =
        match *outcome {
            Outcome::Value {
                version,
                expires_at_ms,
                value,
            } => {
                let flags = if expires_at_ms.is_some() {
                    FLAG_EXPIRY
                } else {
                    0
                };
                (VALUE, flags, 0, version, expires_at_ms, value)
            }
            Outcome::Absent => (ABSENT, 0, 0, 0, None, &[]),
            Outcome::Written { version } => (WRITTEN, 0, 0, version, None, &[]),
            Outcome::Removed { version } => (REMOVED, 0, 0, version, None, &[]),
            Outcome::Number { value, version } => {
                let (flags, word) = amount_parts(value);
                (NUMBER, flags, 0, version, Some(word), &[])
            }
            Outcome::ConditionFailed { current } => {
                let flags = if current.is_some() { FLAG_PRESENT } else { 0 };
                let version = current.unwrap_or(0);
                (CONDITION_FAILED, flags, 0, version, None, &[])
            }
            Outcome::Problem(problem) => {
                let (code, after_ms, text) = problem_parts(&problem);
                (PROBLEM, 0, code, after_ms.into(), None, text.as_bytes())
            }
        };
    let length = u32::try_from(bytes.len()).expect("a value within its limit");
    out.reserve(24 + bytes.len());
    out.extend_from_slice(&[kind, flags]);
    out.extend_from_slice(&code.to_le_bytes());
    out.extend_from_slice(&length.to_le_bytes());
    out.extend_from_slice(&version.to_le_bytes());
    if let Some(word) = word {
        out.extend_from_slice(&word.to_le_bytes());
    }
    out.extend_from_slice(bytes);
}

fn problem_parts<'a>(problem: &Problem<'a>) -> (u16, u32, &'a str) {
    match *problem {
        Problem::UnknownTablet => (PROBLEM_UNKNOWN_TABLET, 0, ""),
        Problem::UnknownTable => (PROBLEM_UNKNOWN_TABLE, 0, ""),
        Problem::Retry { after_ms } => (PROBLEM_RETRY, after_ms, ""),
        Problem::Stale => (PROBLEM_STALE, 0, ""),
        Problem::LeaseExpired => (PROBLEM_LEASE_EXPIRED, 0, ""),
        Problem::NotANumber => (PROBLEM_NOT_A_NUMBER, 0, ""),
        Problem::WrongType => (PROBLEM_WRONG_TYPE, 0, ""),
        Problem::Overflow => (PROBLEM_OVERFLOW, 0, ""),
        Problem::TooLarge => (PROBLEM_TOO_LARGE, 0, ""),
        Problem::Full { what } => (PROBLEM_FULL, 0, what),
        Problem::Failed { reason } => (PROBLEM_FAILED, 0, reason),
        Problem::InProgress { after_ms } => (PROBLEM_IN_PROGRESS, after_ms, ""),
    }
}

#[inline]
pub(super) fn read_outcome<'a>(cursor: &mut Cursor<'a>) -> Result<Outcome<'a>, BodyError> {
    let kind = cursor.u8("kind")?;
    let flags = cursor.u8("flags")?;
    let code = cursor.u16("code")?;
    let length = cursor.u32("bytes")? as usize;
    let version = cursor.u64("version")?;
    // codec::N4: fields that the kind does not have are zero.
    let (known_flags, has_bytes, has_version) = match kind {
        VALUE => (FLAG_EXPIRY, true, true),
        ABSENT => (0, false, false),
        WRITTEN | REMOVED => (0, false, true),
        NUMBER => (FLAG_FLOAT, false, true),
        CONDITION_FAILED => (FLAG_PRESENT, false, flags & FLAG_PRESENT != 0),
        PROBLEM => (0, true, matches!(code, PROBLEM_RETRY | PROBLEM_IN_PROGRESS)),
        _ => return Err(cursor.wrong("kind")),
    };
    if flags & !known_flags != 0 || (code != 0 && kind != PROBLEM) {
        return Err(cursor.wrong("flags"));
    }
    if version != 0 && !has_version {
        return Err(cursor.wrong("version"));
    }
    if length != 0 && !has_bytes {
        return Err(cursor.wrong("bytes"));
    }
    Ok(match kind {
        VALUE => Outcome::Value {
            version,
            expires_at_ms: if flags & FLAG_EXPIRY != 0 {
                Some(cursor.u64("time")?)
            } else {
                None
            },
            value: cursor.bytes(length, "value")?,
        },
        ABSENT => Outcome::Absent,
        WRITTEN => Outcome::Written { version },
        REMOVED => Outcome::Removed { version },
        NUMBER => Outcome::Number {
            value: amount(flags, cursor.u64("number")?),
            version,
        },
        CONDITION_FAILED => Outcome::ConditionFailed {
            current: has_version.then_some(version),
        },
        _ => Outcome::Problem(read_problem(cursor, code, version, length)?),
    })
}

fn read_problem<'a>(
    cursor: &mut Cursor<'a>,
    code: u16,
    version: u64,
    length: usize,
) -> Result<Problem<'a>, BodyError> {
    let text = cursor.text(length, "text")?;
    let problem = match code {
        PROBLEM_UNKNOWN_TABLET => Problem::UnknownTablet,
        PROBLEM_UNKNOWN_TABLE => Problem::UnknownTable,
        PROBLEM_RETRY => Problem::Retry {
            after_ms: u32::try_from(version).map_err(|_| cursor.wrong("version"))?,
        },
        PROBLEM_STALE => Problem::Stale,
        PROBLEM_LEASE_EXPIRED => Problem::LeaseExpired,
        PROBLEM_NOT_A_NUMBER => Problem::NotANumber,
        PROBLEM_WRONG_TYPE => Problem::WrongType,
        PROBLEM_OVERFLOW => Problem::Overflow,
        PROBLEM_TOO_LARGE => Problem::TooLarge,
        PROBLEM_FULL => Problem::Full { what: text },
        PROBLEM_FAILED => Problem::Failed { reason: text },
        PROBLEM_IN_PROGRESS => Problem::InProgress {
            after_ms: u32::try_from(version).map_err(|_| cursor.wrong("version"))?,
        },
        _ => return Err(cursor.wrong("code")),
    };
    let has_text = matches!(problem, Problem::Full { .. } | Problem::Failed { .. });
    if !has_text && !text.is_empty() {
        return Err(cursor.wrong("bytes"));
    }
    Ok(problem)
}

/// Appends a ping.
pub fn encode_ping(out: &mut Vec<u8>, envelope: &Envelope) {
    Builder::question(out, Kind::Ping, envelope).finish(0);
}

/// Appends the answer to [`encode_ping`].
pub fn encode_pong(out: &mut Vec<u8>, envelope: &Envelope) {
    Builder::reply(out, Kind::Ping, envelope).finish(0);
}

/// Appends one operation as a request.
///
/// # Panics
/// If the key is longer than 64 KiB or the value than 4 GiB: callers check limits before.
#[inline]
pub fn encode_single(out: &mut Vec<u8>, envelope: &Envelope, single: &Single<'_>) {
    let builder = Builder::question(out, Kind::Single, envelope);
    append_single(builder.out, single);
    builder.finish(0);
}

/// Appends the answer to one operation.
#[inline]
pub fn encode_outcome(out: &mut Vec<u8>, envelope: &Envelope, outcome: &Outcome<'_>) {
    let builder = Builder::reply(out, Kind::Single, envelope);
    append_outcome(builder.out, outcome);
    builder.finish(0);
}

/// Appends a request for objects of a range; see [`Request::Enumerate`].
pub fn encode_enumerate(
    out: &mut Vec<u8>,
    envelope: &Envelope,
    table: TableId,
    range: KeyRange,
    cursor: u64,
    bytes_max: u32,
) {
    let builder = Builder::question(out, Kind::Enumerate, envelope);
    builder.out.extend_from_slice(&table.0.to_le_bytes());
    builder.out.extend_from_slice(&bytes_max.to_le_bytes());
    builder.out.extend_from_slice(&range.first.0.to_le_bytes());
    builder.out.extend_from_slice(&range.last.0.to_le_bytes());
    builder.out.extend_from_slice(&cursor.to_le_bytes());
    builder.finish(0);
}

pub(super) fn read_enumerate(body: &[u8]) -> Result<Request<'_>, BodyError> {
    let mut cursor = Cursor::new(Kind::Enumerate, body);
    let table = TableId(cursor.u32("table")?);
    let bytes_max = cursor.u32("bytes_max")?;
    let first = RouteHash(cursor.u64("first")?);
    let last = RouteHash(cursor.u64("last")?);
    let from = cursor.u64("cursor")?;
    cursor.end()?;
    if first > last {
        return Err(cursor.wrong("last"));
    }
    Ok(Request::Enumerate {
        table,
        range: KeyRange::new(first, last),
        cursor: from,
        bytes_max,
    })
}
