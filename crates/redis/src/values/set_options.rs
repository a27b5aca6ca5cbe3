//! Options of `SET` and `GETEX`: the condition of the write, the expiry, and the reply.

use crate::command::context::{Failure, NOT_AN_INTEGER, SYNTAX};
use duramen_wire::resp::Args;
use duramen_wire::resp::number::parse_integer;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum When<'a> {
    Always,
    Absent,
    Present,
    /// The write needs a key with exactly this value.
    Equals(&'a [u8]),
    /// The write needs a key without a value, or with another one.
    Differs(&'a [u8]),
}

/// The expiry options of a `SET` or `GETEX`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Expiry<'a> {
    /// No option: `SET` removes the expiry, `GETEX` leaves it.
    Unsaid,
    Keep,
    Persist,
    At(Unit, &'a [u8]),
}

/// The unit of a given time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Unit {
    pub(crate) seconds: bool,
    /// Whether the time counts since the Unix epoch, not since now.
    pub(crate) absolute: bool,
}

pub(crate) const EX: Unit = Unit {
    seconds: true,
    absolute: false,
};
pub(crate) const PX: Unit = Unit {
    seconds: false,
    absolute: false,
};
pub(crate) const EXAT: Unit = Unit {
    seconds: true,
    absolute: true,
};
pub(crate) const PXAT: Unit = Unit {
    seconds: false,
    absolute: true,
};

#[derive(Clone, Copy, Debug)]
pub(crate) struct SetOptions<'a> {
    pub(crate) when: When<'a>,
    pub(crate) get: bool,
    pub(crate) expiry: Expiry<'a>,
}

impl When<'_> {
    /// Whether the condition depends on the value.
    pub(crate) fn compares(&self) -> bool {
        matches!(self, When::Equals(_) | When::Differs(_))
    }
}

/// Reads the options of `SET` from argument 3 on.
pub(crate) fn parse_set<'a>(args: &Args<'a>) -> Result<SetOptions<'a>, Failure> {
    let mut options = SetOptions {
        when: When::Always,
        get: false,
        expiry: Expiry::Unsaid,
    };
    let mut rest = args.skip(3).into_iter();
    while let Some(option) = rest.next() {
        let is = |name: &str| option.eq_ignore_ascii_case(name.as_bytes());
        if is("get") {
            options.get = true;
        } else if is("nx") || is("xx") {
            let when = if is("nx") {
                When::Absent
            } else {
                When::Present
            };
            if options.when != When::Always && options.when != when {
                return Err(SYNTAX);
            }
            options.when = when;
        } else if is("ifeq") || is("ifne") {
            if options.when != When::Always {
                return Err(SYNTAX);
            }
            let value = rest.next().ok_or(SYNTAX)?;
            options.when = match is("ifeq") {
                true => When::Equals(value),
                false => When::Differs(value),
            };
        } else if is("keepttl") {
            if !matches!(options.expiry, Expiry::Unsaid | Expiry::Keep) {
                return Err(SYNTAX);
            }
            options.expiry = Expiry::Keep;
        } else {
            options.expiry = parse_time(option, options.expiry, &mut rest)?;
        }
    }
    Ok(options)
}

/// Reads the options of `GETEX` from argument 2 on.
pub(crate) fn parse_getex<'a>(args: &Args<'a>) -> Result<Expiry<'a>, Failure> {
    let mut expiry = Expiry::Unsaid;
    let mut rest = args.skip(2).into_iter();
    while let Some(option) = rest.next() {
        if option.eq_ignore_ascii_case(b"persist") {
            if !matches!(expiry, Expiry::Unsaid | Expiry::Persist) {
                return Err(SYNTAX);
            }
            expiry = Expiry::Persist;
        } else {
            expiry = parse_time(option, expiry, &mut rest)?;
        }
    }
    Ok(expiry)
}

fn parse_time<'a>(
    option: &[u8],
    before: Expiry<'a>,
    rest: &mut impl Iterator<Item = &'a [u8]>,
) -> Result<Expiry<'a>, Failure> {
    let is = |name: &str| option.eq_ignore_ascii_case(name.as_bytes());
    let unit = if is("ex") {
        EX
    } else if is("px") {
        PX
    } else if is("exat") {
        EXAT
    } else if is("pxat") {
        PXAT
    } else {
        return Err(SYNTAX);
    };
    // The same option twice is accepted; the last one counts.
    if !matches!(before, Expiry::Unsaid) && !matches!(before, Expiry::At(same, _) if same == unit) {
        return Err(SYNTAX);
    }
    Ok(Expiry::At(unit, rest.next().ok_or(SYNTAX)?))
}

impl Expiry<'_> {
    /// The given time, in milliseconds since the Unix epoch; the error names `command`.
    pub(crate) fn at_ms(self, now_ms: u64, command: &str) -> Result<Option<u64>, Failure> {
        match self {
            Expiry::At(unit, text) => expiry_ms(unit, text, now_ms, command).map(Some),
            _ => Ok(None),
        }
    }
}

/// The time given by `text`, in milliseconds since the Unix epoch; the error names `command`.
pub(crate) fn expiry_ms(
    unit: Unit,
    text: &[u8],
    now_ms: u64,
    command: &str,
) -> Result<u64, Failure> {
    let given = parse_integer(text).ok_or(NOT_AN_INTEGER)?;
    if given <= 0 {
        return Err(invalid_expiry(command));
    }
    when_ms(unit, given, now_ms, command).map(i64::unsigned_abs)
}

/// As [`expiry_ms`]; the time may be in the past, even before the epoch.
pub(crate) fn when_ms(unit: Unit, given: i64, now_ms: u64, command: &str) -> Result<i64, Failure> {
    let invalid = || invalid_expiry(command);
    let given_ms = if unit.seconds {
        given.checked_mul(1000).ok_or_else(invalid)?
    } else {
        given
    };
    if unit.absolute {
        return Ok(given_ms);
    }
    let now_ms = i64::try_from(now_ms).unwrap_or(i64::MAX);
    given_ms.checked_add(now_ms).ok_or_else(invalid)
}

fn invalid_expiry(command: &str) -> Failure {
    Failure::from(format!("ERR invalid expire time in '{command}' command"))
}
