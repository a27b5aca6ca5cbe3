//! The library `cjson`, with the error texts and limits of the one in Redis.

mod decode;
mod encode;

use crate::channel::Channel;
use crate::host::Host;
use crate::result::{answer, answer_many};
use mlua::{Lua, MultiValue, Table, Value};
use std::cell::RefCell;
use std::rc::Rc;

/// Maximum nesting that a script may choose: a deeper one would not fit on the interpreter's stack.
const DEPTH_MAX: i64 = 1_000;

/// The settings of one copy of the library.
#[derive(Clone, Copy, Debug)]
struct Settings {
    encode_depth: i64,
    decode_depth: i64,
    precision: usize,
    keep_buffer: bool,
    /// Numbers that JSON does not have: refused, written as they are, or written as null.
    encode_invalid: Invalid,
    decode_invalid: bool,
    sparse_convert: bool,
    sparse_ratio: i64,
    sparse_safe: i64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Invalid {
    Off,
    On,
    Null,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            encode_depth: DEPTH_MAX,
            decode_depth: DEPTH_MAX,
            precision: 14,
            keep_buffer: true,
            encode_invalid: Invalid::Off,
            decode_invalid: true,
            sparse_convert: false,
            sparse_ratio: 2,
            sparse_safe: 10,
        }
    }
}

/// Argument `at`, an integer in a range; `None`: it was not given.
fn integer(
    args: &MultiValue,
    at: usize,
    name: &str,
    range: std::ops::RangeInclusive<i64>,
) -> Result<Option<i64>, String> {
    let number = match args.get(at) {
        None | Some(Value::Nil) => return Ok(None),
        Some(Value::Integer(number)) => *number,
        Some(Value::Number(number)) => crate::number::to_integer(*number),
        Some(other) => {
            return Err(format!(
                "bad argument #{} to '{name}' (number expected, got {})",
                at + 1,
                other.type_name()
            ));
        }
    };
    if !range.contains(&number) {
        return Err(format!(
            "bad argument #{} to '{name}' (expected integer between {} and {})",
            at + 1,
            range.start(),
            range.end()
        ));
    }
    Ok(Some(number))
}

/// Argument `at`, a boolean, "on" or "off".
fn switch(args: &MultiValue, at: usize) -> Option<bool> {
    match args.get(at) {
        Some(Value::Boolean(yes)) => Some(*yes),
        Some(Value::String(text)) => Some(&text.as_bytes()[..] == b"on"),
        _ => None,
    }
}

type Shared = Rc<RefCell<Settings>>;

fn add(
    lua: &Lua,
    (library, settings): (&Table, &Shared),
    name: &'static str,
    change: fn(&mut Settings, &MultiValue) -> Result<Value, String>,
) -> mlua::Result<()> {
    let settings = Rc::clone(settings);
    let run = lua.create_function(move |lua, args: MultiValue| {
        answer(lua, change(&mut settings.borrow_mut(), &args))
    })?;
    library.raw_set(name, run)
}

/// Adds `encode` and `decode`.
fn add_conversions(
    lua: &Lua,
    (library, settings): (&Table, &Shared),
    channel: &Rc<Channel>,
    bytes_max: usize,
) -> mlua::Result<()> {
    let own = Rc::clone(settings);
    let shared = Rc::clone(channel);
    let encode = lua.create_function(move |lua, args: MultiValue| {
        let settings = *own.borrow();
        let channel = &shared;
        let text = match args.len() {
            1 => encode::encode(Host { lua, channel }, &args[0], &settings, bytes_max),
            _ => Err("bad argument #1 to 'encode' (expected 1 argument)".to_owned()),
        };
        match text {
            Ok(text) => {
                let text = lua.create_string(text)?;
                answer(lua, Ok(text))
            }
            Err(text) => answer::<Value>(lua, Err(text)),
        }
    })?;
    library.raw_set("encode", encode)?;
    let own = Rc::clone(settings);
    let shared = Rc::clone(channel);
    let decode = lua.create_function(move |lua, args: MultiValue| {
        let settings = *own.borrow();
        let channel = &shared;
        let value = decode_argument(Host { lua, channel }, &args, &settings)?;
        answer(lua, value)
    })?;
    library.raw_set("decode", decode)
}

/// A new copy of the library. `bytes_max`: maximum length of a text.
pub(crate) fn library(lua: &Lua, channel: &Rc<Channel>, bytes_max: usize) -> mlua::Result<Table> {
    let library = lua.create_table()?;
    let settings = Shared::default();
    let at = (&library, &settings);
    add_conversions(lua, at, channel, bytes_max)?;
    add(lua, at, "encode_max_depth", |settings, args| {
        let depth = integer(args, 0, "encode_max_depth", 1..=i64::from(i32::MAX))?;
        settings.encode_depth = depth.unwrap_or(settings.encode_depth).min(DEPTH_MAX);
        Ok(Value::Integer(settings.encode_depth))
    })?;
    add(lua, at, "decode_max_depth", |settings, args| {
        let depth = integer(args, 0, "decode_max_depth", 1..=i64::from(i32::MAX))?;
        settings.decode_depth = depth.unwrap_or(settings.decode_depth).min(DEPTH_MAX);
        Ok(Value::Integer(settings.decode_depth))
    })?;
    add(lua, at, "encode_number_precision", |settings, args| {
        let digits = integer(args, 0, "encode_number_precision", 1..=14)?;
        settings.precision = digits.map_or(settings.precision, |digits| digits as usize);
        Ok(Value::Integer(settings.precision as i64))
    })?;
    add(lua, at, "encode_keep_buffer", |settings, args| {
        settings.keep_buffer = switch(args, 0).unwrap_or(settings.keep_buffer);
        Ok(Value::Boolean(settings.keep_buffer))
    })?;
    add(lua, at, "decode_invalid_numbers", |settings, args| {
        settings.decode_invalid = switch(args, 0).unwrap_or(settings.decode_invalid);
        Ok(Value::Boolean(settings.decode_invalid))
    })?;
    let own = Rc::clone(&settings);
    let invalid = lua.create_function(move |lua, args: MultiValue| {
        let mut settings = own.borrow_mut();
        let is_null = |text: &mlua::String| &text.as_bytes()[..] == b"null";
        settings.encode_invalid = match (args.front(), switch(&args, 0)) {
            (Some(Value::String(text)), _) if is_null(text) => Invalid::Null,
            (_, Some(true)) => Invalid::On,
            (_, Some(false)) => Invalid::Off,
            (_, None) => settings.encode_invalid,
        };
        let shown = match settings.encode_invalid {
            Invalid::Off => Value::Boolean(false),
            Invalid::On => Value::Boolean(true),
            Invalid::Null => Value::String(lua.create_string("null")?),
        };
        answer(lua, Ok(shown))
    })?;
    library.raw_set("encode_invalid_numbers", invalid)?;
    let sparse = lua.create_function(move |lua, args: MultiValue| {
        let result = set_sparse(&mut settings.borrow_mut(), &args);
        answer_many(lua, result)
    })?;
    library.raw_set("encode_sparse_array", sparse)?;
    Ok(library)
}

fn set_sparse(settings: &mut Settings, args: &MultiValue) -> Result<Vec<Value>, String> {
    const NAME: &str = "encode_sparse_array";
    let numbers = 0..=i64::from(i32::MAX);
    settings.sparse_convert = switch(args, 0).unwrap_or(settings.sparse_convert);
    let ratio = integer(args, 1, NAME, numbers.clone())?;
    settings.sparse_ratio = ratio.unwrap_or(settings.sparse_ratio);
    let safe = integer(args, 2, NAME, numbers)?;
    settings.sparse_safe = safe.unwrap_or(settings.sparse_safe);
    Ok(vec![
        Value::Boolean(settings.sparse_convert),
        Value::Integer(settings.sparse_ratio),
        Value::Integer(settings.sparse_safe),
    ])
}

fn decode_argument(
    host: Host<'_>,
    args: &MultiValue,
    settings: &Settings,
) -> mlua::Result<Result<Value, String>> {
    if args.len() != 1 {
        let text = "bad argument #1 to 'decode' (expected 1 argument)";
        return Ok(Err(text.to_owned()));
    }
    let text = match args.front() {
        Some(Value::String(text)) => text.as_bytes().to_vec(),
        Some(Value::Integer(number)) => number.to_string().into_bytes(),
        Some(Value::Number(number)) => crate::number::general(*number, 14).into_bytes(),
        other => {
            let got = other.map_or("no value", Value::type_name);
            let text = format!("bad argument #1 to 'decode' (string expected, got {got})");
            return Ok(Err(text));
        }
    };
    decode::decode(host, &text, settings)
}
