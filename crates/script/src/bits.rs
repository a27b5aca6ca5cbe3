//! The library `bit`: operations on numbers of 32 bits.

use crate::number;
use crate::result::answer;
use mlua::{Lua, MultiValue, Table, Value};

/// The number that `bit` makes of an argument: the lowest 32 bits of the rounded number.
fn argument(args: &MultiValue, at: usize, name: &str) -> Result<i32, String> {
    let number = match args.get(at) {
        Some(Value::Integer(number)) => *number as f64,
        Some(Value::Number(number)) => *number,
        Some(Value::String(text)) => {
            let text = String::from_utf8_lossy(&text.as_bytes()).trim().to_owned();
            text.parse().map_err(|_| wrong(at, name, "string"))?
        }
        None => return Err(wrong(at, name, "no value")),
        Some(other) => return Err(wrong(at, name, other.type_name())),
    };
    // The number is rounded as the addition of 2^52 + 2^51 rounds it in the C library.
    let rounded = number.round_ties_even();
    if !rounded.is_finite() {
        return Ok(0);
    }
    Ok(number::to_integer(rounded.rem_euclid(4_294_967_296.0)) as u32 as i32)
}

fn wrong(at: usize, name: &str, got: &str) -> String {
    format!(
        "bad argument #{} to '{name}' (number expected, got {got})",
        at + 1
    )
}

fn fold(args: &MultiValue, name: &str, join: impl Fn(i32, i32) -> i32) -> Result<f64, String> {
    let mut result = argument(args, 0, name)?;
    for at in 1..args.len() {
        result = join(result, argument(args, at, name)?);
    }
    Ok(result.into())
}

fn shift(args: &MultiValue, name: &str, by: impl Fn(i32, u32) -> i32) -> Result<f64, String> {
    let number = argument(args, 0, name)?;
    let count = argument(args, 1, name)? as u32 & 31;
    Ok(by(number, count).into())
}

fn to_hex(args: &MultiValue) -> Result<String, String> {
    let number = argument(args, 0, "tohex")? as u32;
    let digits = match args.len() {
        0 | 1 => 8,
        _ => argument(args, 1, "tohex")?,
    };
    let count = digits.unsigned_abs().min(8) as usize;
    let text = if digits < 0 {
        format!("{number:08X}")
    } else {
        format!("{number:08x}")
    };
    Ok(text[8 - count..].to_owned())
}

pub(crate) fn library(lua: &Lua) -> mlua::Result<Table> {
    let library = lua.create_table()?;
    let add = |name: &'static str, run: fn(&MultiValue) -> Result<f64, String>| {
        let run = lua.create_function(move |lua, args: MultiValue| answer(lua, run(&args)))?;
        library.raw_set(name, run)
    };
    add("tobit", |args| Ok(argument(args, 0, "tobit")?.into()))?;
    add("bnot", |args| Ok((!argument(args, 0, "bnot")?).into()))?;
    add("bswap", |args| {
        Ok(argument(args, 0, "bswap")?.swap_bytes().into())
    })?;
    add("band", |args| fold(args, "band", |a, b| a & b))?;
    add("bor", |args| fold(args, "bor", |a, b| a | b))?;
    add("bxor", |args| fold(args, "bxor", |a, b| a ^ b))?;
    add("lshift", |args| {
        shift(args, "lshift", |a, by| ((a as u32) << by) as i32)
    })?;
    add("rshift", |args| {
        shift(args, "rshift", |a, by| (a as u32 >> by) as i32)
    })?;
    add("arshift", |args| shift(args, "arshift", |a, by| a >> by))?;
    add("rol", |args| shift(args, "rol", |a, by| a.rotate_left(by)))?;
    add("ror", |args| shift(args, "ror", |a, by| a.rotate_right(by)))?;
    let to_hex = lua.create_function(|lua, args: MultiValue| answer(lua, to_hex(&args)))?;
    library.raw_set("tohex", to_hex)?;
    Ok(library)
}
