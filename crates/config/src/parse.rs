//! Text of a setting → checked value, and back.
#![deny(clippy::unwrap_used, clippy::indexing_slicing)]

use super::hints::value_hint;
use super::{EventClasses, Kind, MemoryLimit, Setting, Value};
use crate::error::ServerError;
use std::net::IpAddr;

/// Parses a size: a number and an optional unit. As in `redis.conf`, `k m g t` are powers of 1000
/// and `kb mb gb tb` powers of 1024; `kib mib gib tib` are accepted too. With a unit the number may
/// be a fraction, `1.5gb`; it is rounded down to whole bytes. Case does not matter.
pub fn parse_size(text: &str) -> Option<u64> {
    let text = text.trim().to_ascii_lowercase();
    let digits = text
        .find(|c: char| !c.is_ascii_digit() && c != '.')
        .unwrap_or(text.len());
    let (number, unit) = text.split_at_checked(digits)?;
    let factor: u64 = match unit.trim() {
        "" | "b" => 1,
        "k" => 1_000,
        "kb" | "kib" => 1 << 10,
        "m" => 1_000_000,
        "mb" | "mib" => 1 << 20,
        "g" => 1_000_000_000,
        "gb" | "gib" => 1 << 30,
        "t" => 1_000_000_000_000,
        "tb" | "tib" => 1 << 40,
        _ => return None,
    };
    let Some((whole, fraction)) = number.split_once('.') else {
        return number.parse::<u64>().ok()?.checked_mul(factor);
    };
    if factor == 1 {
        return None;
    }
    // More digits than these are less than one byte, even for the largest unit.
    let places = u32::try_from(fraction.len()).ok().filter(|n| *n <= 12)?;
    let (whole, fraction): (u64, u64) = (whole.parse().ok()?, fraction.parse().ok()?);
    let part = u128::from(fraction) * u128::from(factor) / 10u128.pow(places);
    let part = u64::try_from(part).ok()?;
    whole.checked_mul(factor)?.checked_add(part)
}

/// Writes a size with the largest unit that divides it: `1gb`, `1536mb`, `100`.
pub fn format_size(bytes: u64) -> String {
    for (shift, unit) in [(40, "tb"), (30, "gb"), (20, "mb"), (10, "kb")] {
        if bytes != 0 && bytes.trailing_zeros() >= shift {
            return format!("{}{unit}", bytes >> shift);
        }
    }
    bytes.to_string()
}

pub(super) fn plain(value: &Value) -> String {
    match value {
        Value::Size(bytes) => bytes.to_string(),
        Value::Share { percent, .. } => format!("{percent}%"),
        Value::Number(n) => n.to_string(),
        Value::Flag(on) => if *on { "yes" } else { "no" }.to_owned(),
        Value::Choice(name) => (*name).to_owned(),
        Value::Addresses(list) => list
            .iter()
            .map(ToString::to_string)
            .collect::<Vec<_>>()
            .join(" "),
        Value::Text(text) => text.clone(),
    }
}

pub(super) fn parse(setting: &Setting, text: &str) -> Result<Value, ServerError> {
    let name = setting.name;
    let refuse = |what: String| ServerError::Config(format!("{name}: {what}"));
    match setting.kind {
        Kind::Size { min, max } => {
            let bytes = parse_size(text).ok_or_else(|| {
                refuse(format!(
                    "`{text}` is not a size; write for example 512mb or 1.5gb"
                ))
            })?;
            bounded(bytes, text, min, max).map_err(refuse)?;
            Ok(Value::Size(bytes))
        }
        Kind::Memory { min, max } => match text.trim().strip_suffix('%') {
            Some(percent) => share(percent, min, max).map_err(refuse),
            None => {
                let bytes = parse_size(text).ok_or_else(|| {
                    refuse(format!(
                        "`{text}` is not a size; write for example 512mb, 1.5gb or 80%"
                    ))
                })?;
                bounded(bytes, text, min, max).map_err(refuse)?;
                Ok(Value::Size(bytes))
            }
        },
        Kind::Number { min, max } => {
            let unit = if setting.unit.is_empty() {
                String::new()
            } else {
                format!(" {}", setting.unit)
            };
            let number: i64 = text.trim().parse().map_err(|_| {
                refuse(format!(
                    "`{text}` is not a whole number; it must be {min} to {max}{unit}"
                ))
            })?;
            if number < min || number > max {
                return Err(refuse(format!(
                    "{number} is out of range; it must be {min} to {max}{unit}"
                )));
            }
            Ok(Value::Number(number))
        }
        Kind::Flag => match text.trim().to_ascii_lowercase().as_str() {
            "yes" | "true" | "on" | "1" => Ok(Value::Flag(true)),
            "no" | "false" | "off" | "0" => Ok(Value::Flag(false)),
            _ => Err(refuse(format!("`{text}` is neither yes nor no"))),
        },
        Kind::Choice(names) => names
            .iter()
            .find(|choice| choice.eq_ignore_ascii_case(text.trim()))
            .map(|choice| Value::Choice(choice))
            .ok_or_else(|| {
                let (all, why) = (names.join(", "), value_hint(name, text));
                refuse(format!("`{text}` is not one of {all}{why}"))
            }),
        Kind::Addresses { one } => addresses(text, one).map(Value::Addresses).map_err(refuse),
        Kind::Text => {
            if text.contains(['\0', '\n', '\r']) {
                return Err(refuse("must not contain line breaks or NUL".to_owned()));
            }
            Ok(Value::Text(text.to_owned()))
        }
        Kind::Lines if text.contains('\0') => Err(refuse("must not contain NUL".to_owned())),
        Kind::Lines | Kind::Password => Ok(Value::Text(text.to_owned())),
        Kind::Events => match EventClasses::parse(text) {
            Some(classes) => Ok(Value::Text(classes.to_string())),
            None => Err(refuse(
                "Invalid event class character. Use 'Ag$lshzxeKEtmdn'.".to_owned(),
            )),
        },
    }
}

/// Checks the range of a size; the error text gives the fault.
fn bounded(bytes: u64, text: &str, min: u64, max: u64) -> Result<(), String> {
    if bytes < min {
        return Err(format!(
            "{text} is below the minimum of {}",
            format_size(min)
        ));
    }
    if bytes > max {
        return Err(format!(
            "{text} is above the maximum of {}",
            format_size(max)
        ));
    }
    Ok(())
}

/// Parses a share of the memory that this process may use; the error text gives the fault.
fn share(percent: &str, min: u64, max: u64) -> Result<Value, String> {
    let parsed = percent.trim().parse().ok();
    let percent = parsed
        .filter(|percent| (1..=100).contains(percent))
        .ok_or_else(|| format!("`{percent}%` is not a share; write for example 80%"))?;
    let limit = MemoryLimit::now()
        .ok_or("this system does not tell how much memory it has: write a size")?;
    let bytes = limit.share(percent);
    let text = format!("{percent}%, which is {} here,", format_size(bytes));
    bounded(bytes, &text, min, max)?;
    Ok(Value::Share { percent, bytes })
}

/// Parses IP addresses separated by commas or blanks; the error text gives the fault.
fn addresses(text: &str, one: bool) -> Result<Vec<IpAddr>, String> {
    let mut list = Vec::new();
    for part in text.split([',', ' ']).filter(|part| !part.is_empty()) {
        let part = if part == "localhost" {
            "127.0.0.1"
        } else {
            part
        };
        list.push(part.parse().map_err(|_| {
            format!("`{part}` is not an IP address; write for example 127.0.0.1 or ::1")
        })?);
    }
    if list.is_empty() || (one && list.len() > 1) {
        let wanted = if one { "exactly one" } else { "at least one" };
        return Err(format!("needs {wanted} IP address, got `{text}`"));
    }
    Ok(list)
}
