//! The arguments of BITFIELD: the command runs them, and EXEC plans its room by them (`room`).

use super::context::{Failure, NOT_AN_INTEGER, SYNTAX};
use duramen_types::bits::{Form, Overflow};
use duramen_wire::resp::Args;
use duramen_wire::resp::number::parse_integer;

const BAD_OFFSET: Failure = Failure::Text("ERR bit offset is not an integer or out of range");
/// Redis's strings end at 512 MiB.
const BITS_MAX: i64 = 1 << 32;

/// Parses a bit offset. With `width`, the form `#n` counts in units of that many bits.
pub(crate) fn parse_offset(text: &[u8], width: Option<u32>) -> Result<usize, Failure> {
    let (text, factor) = match (text, width) {
        ([b'#', rest @ ..], Some(width)) => (rest, i64::from(width)),
        (text, _) => (text, 1),
    };
    let number = parse_integer(text).and_then(|number| number.checked_mul(factor));
    let number = number.filter(|at| (0..BITS_MAX).contains(at));
    number
        .and_then(|at| usize::try_from(at).ok())
        .ok_or(BAD_OFFSET)
}

/// One step of BITFIELD.
#[derive(Clone, Copy)]
pub(crate) struct Step {
    pub(crate) form: Form,
    pub(crate) at: usize,
    pub(crate) action: Action,
    pub(crate) overflow: Overflow,
}

#[derive(Clone, Copy)]
pub(crate) enum Action {
    Get,
    Set(i64),
    Add(i64),
}

fn parse_form(text: &[u8]) -> Result<Form, Failure> {
    let wrong = Failure::Text(
        "ERR Invalid bitfield type. Use something like i16 u8. Note that u64 is not supported but i64 is.",
    );
    let (is_signed, digits) = match text {
        [b'i', rest @ ..] => (true, rest),
        [b'u', rest @ ..] => (false, rest),
        _ => return Err(wrong),
    };
    let most = if is_signed { 64 } else { 63 };
    match parse_integer(digits).and_then(|bits| u32::try_from(bits).ok()) {
        Some(bits) if (1..=most).contains(&bits) => Ok(Form { is_signed, bits }),
        _ => Err(wrong),
    }
}

/// The steps of BITFIELD, or of BITFIELD_RO.
pub(crate) fn parse_steps(args: &Args<'_>, only_get: bool) -> Result<Vec<Step>, Failure> {
    let (mut steps, mut overflow) = (Vec::new(), Overflow::Wrap);
    let mut rest = args.skip(2).into_iter();
    let mut left = args.len() - 2;
    while let Some(name) = rest.next() {
        left -= 1;
        let name = name.to_ascii_lowercase();
        let needed = match name.as_slice() {
            b"get" => 2,
            b"set" | b"incrby" => 3,
            b"overflow" => 1,
            _ => return Err(SYNTAX),
        };
        if left < needed {
            return Err(SYNTAX);
        }
        left -= needed;
        let first = rest.next().unwrap_or_default();
        if needed == 1 {
            overflow = match first.to_ascii_lowercase().as_slice() {
                b"wrap" => Overflow::Wrap,
                b"sat" => Overflow::Saturate,
                b"fail" => Overflow::Fail,
                _ => return Err(Failure::Text("ERR Invalid OVERFLOW type specified")),
            };
            continue;
        }
        let form = parse_form(first)?;
        let at = parse_offset(rest.next().unwrap_or_default(), Some(form.bits))?;
        let mut number = || parse_integer(rest.next().unwrap_or_default()).ok_or(NOT_AN_INTEGER);
        let action = match name.as_slice() {
            b"get" => Action::Get,
            b"set" => Action::Set(number()?),
            _ => Action::Add(number()?),
        };
        steps.push(Step {
            form,
            at,
            action,
            overflow,
        });
    }
    if only_get && steps.iter().any(|step| !matches!(step.action, Action::Get)) {
        return Err(Failure::Text(
            "ERR BITFIELD_RO only supports the GET subcommand",
        ));
    }
    Ok(steps)
}

/// Minimum bytes of the string after BITFIELD with these arguments.
pub(crate) fn bytes_of(args: &Args<'_>) -> usize {
    let steps = parse_steps(args, false).unwrap_or_default(); // if invalid, the command fails
    end_of(&steps).map_or(0, |end| end.div_ceil(8))
}

/// The end of the last field that is changed, in bits.
pub(crate) fn end_of(steps: &[Step]) -> Option<usize> {
    let changes = steps
        .iter()
        .filter(|step| !matches!(step.action, Action::Get));
    changes.map(|step| step.at + step.form.bits as usize).max()
}
