//! The library `cmsgpack`: MessagePack.

use crate::number;
use crate::result::{answer, answer_many};
use mlua::{Lua, MultiValue, Table, Value};

/// Tables nested deeper are packed as nil, as in the C library.
const NESTING_MAX: usize = 16;
/// Deepest nesting that is read.
const DEPTH_MAX: usize = 500;
/// Maximum results of one call.
const RESULTS_MAX: usize = 7_000;

const MISSING: &str = "Missing bytes in input.";
const BAD: &str = "Bad data format in input.";

fn put_length(out: &mut Vec<u8>, length: usize, small: Option<(u8, usize)>, marks: [u8; 3]) {
    match (small, length) {
        (Some((mark, most)), length) if length <= most => out.push(mark | length as u8),
        (_, 0..=0xFF) if marks[0] != 0 => out.extend_from_slice(&[marks[0], length as u8]),
        (_, 0..=0xFFFF) => {
            out.push(marks[1]);
            out.extend_from_slice(&(length as u16).to_be_bytes());
        }
        _ => {
            out.push(marks[2]);
            out.extend_from_slice(&(length as u32).to_be_bytes());
        }
    }
}

fn put_integer(out: &mut Vec<u8>, number: i64) {
    match number {
        0..=127 => out.push(number as u8),
        128..=0xFF => out.extend_from_slice(&[0xCC, number as u8]),
        0x100..=0xFFFF => {
            out.push(0xCD);
            out.extend_from_slice(&(number as u16).to_be_bytes());
        }
        0x1_0000..=0xFFFF_FFFF => {
            out.push(0xCE);
            out.extend_from_slice(&(number as u32).to_be_bytes());
        }
        0x1_0000_0000.. => {
            out.push(0xCF);
            out.extend_from_slice(&number.to_be_bytes());
        }
        -32..0 => out.push(number as i8 as u8),
        -128..-32 => out.extend_from_slice(&[0xD0, number as i8 as u8]),
        -32_768..-128 => {
            out.push(0xD1);
            out.extend_from_slice(&(number as i16).to_be_bytes());
        }
        -2_147_483_648..-32_768 => {
            out.push(0xD2);
            out.extend_from_slice(&(number as i32).to_be_bytes());
        }
        _ => {
            out.push(0xD3);
            out.extend_from_slice(&number.to_be_bytes());
        }
    }
}

fn put(out: &mut Vec<u8>, value: &Value, depth: usize, bytes_max: usize) -> Result<(), String> {
    if out.len() > bytes_max {
        return Err("not enough memory".to_owned());
    }
    match value {
        Value::String(text) => {
            let text = text.as_bytes();
            put_length(out, text.len(), Some((0xA0, 31)), [0xD9, 0xDA, 0xDB]);
            out.extend_from_slice(&text);
        }
        Value::Boolean(yes) => out.push(if *yes { 0xC3 } else { 0xC2 }),
        Value::Integer(number) => put_integer(out, *number),
        Value::Number(number) => {
            let whole = number::to_integer(*number);
            if whole as f64 == *number && whole != i64::MIN {
                put_integer(out, whole);
            } else if f64::from(*number as f32) == *number {
                out.push(0xCA);
                out.extend_from_slice(&(*number as f32).to_be_bytes());
            } else {
                out.push(0xCB);
                out.extend_from_slice(&number.to_be_bytes());
            }
        }
        Value::Table(table) if depth < NESTING_MAX => {
            return put_table(out, table, depth, bytes_max);
        }
        _ => out.push(0xC0),
    }
    Ok(())
}

fn put_table(
    out: &mut Vec<u8>,
    table: &Table,
    depth: usize,
    bytes_max: usize,
) -> Result<(), String> {
    let (mut length, mut most) = (0, 0);
    for pair in table.pairs() {
        let (key, _): (Value, Value) = pair.map_err(|error| error.to_string())?;
        length += 1;
        most = most.max(match key {
            Value::Integer(index) if index > 0 => index,
            _ => i64::MAX,
        });
    }
    if most == length as i64 {
        put_length(out, length, Some((0x90, 15)), [0, 0xDC, 0xDD]);
        for index in 1..=length {
            let value: Value = table.raw_get(index).map_err(|error| error.to_string())?;
            put(out, &value, depth + 1, bytes_max)?;
        }
        return Ok(());
    }
    put_length(out, length, Some((0x80, 15)), [0, 0xDE, 0xDF]);
    for pair in table.pairs() {
        let (key, value): (Value, Value) = pair.map_err(|error| error.to_string())?;
        put(out, &key, depth + 1, bytes_max)?;
        put(out, &value, depth + 1, bytes_max)?;
    }
    Ok(())
}

/// A text of an error, or an error of the host.
enum Stop {
    Text(&'static str),
    Host(mlua::Error),
}

impl From<mlua::Error> for Stop {
    fn from(error: mlua::Error) -> Stop {
        Stop::Host(error)
    }
}

struct Reader<'t> {
    lua: &'t Lua,
    rest: &'t [u8],
}

impl<'t> Reader<'t> {
    fn take(&mut self, bytes: usize) -> Result<&'t [u8], Stop> {
        let (taken, rest) = self
            .rest
            .split_at_checked(bytes)
            .ok_or(Stop::Text(MISSING))?;
        self.rest = rest;
        Ok(taken)
    }

    /// An unsigned number of some bytes, the highest first.
    fn number(&mut self, bytes: usize) -> Result<u64, Stop> {
        let taken = self.take(bytes)?.iter();
        Ok(taken.fold(0, |sum, byte| sum << 8 | u64::from(*byte)))
    }

    fn signed(&mut self, bytes: usize) -> Result<Value, Stop> {
        let unused = 64 - 8 * bytes as u32;
        let number = (self.number(bytes)? << unused) as i64 >> unused;
        Ok(Value::Number(number as f64))
    }

    fn text(&mut self, length: usize) -> Result<Value, Stop> {
        let text = self.take(length)?;
        Ok(Value::String(self.lua.create_string(text)?))
    }

    fn long_text(&mut self, bytes: usize) -> Result<Value, Stop> {
        let length = self.number(bytes)? as usize;
        self.text(length)
    }

    fn array(&mut self, length: u64, depth: usize) -> Result<Value, Stop> {
        let table = self.lua.create_table()?;
        for index in 1..=length {
            table.raw_set(index, self.value(depth + 1)?)?;
        }
        Ok(Value::Table(table))
    }

    fn map(&mut self, length: u64, depth: usize) -> Result<Value, Stop> {
        let table = self.lua.create_table()?;
        for _ in 0..length {
            let key = self.value(depth + 1)?;
            let value = self.value(depth + 1)?;
            let is_number = matches!(key, Value::Number(number) if number.is_nan());
            if is_number || matches!(key, Value::Nil) {
                return Err(Stop::Text(BAD));
            }
            table.raw_set(key, value)?;
        }
        Ok(Value::Table(table))
    }

    fn value(&mut self, depth: usize) -> Result<Value, Stop> {
        if depth > DEPTH_MAX {
            return Err(Stop::Text(BAD));
        }
        let [mark] = self.take(1)? else {
            return Err(Stop::Text(MISSING));
        };
        Ok(match mark {
            0..=0x7F => Value::Number(f64::from(*mark)),
            0x80..=0x8F => self.map(u64::from(mark & 15), depth)?,
            0x90..=0x9F => self.array(u64::from(mark & 15), depth)?,
            0xA0..=0xBF => self.text(usize::from(mark & 31))?,
            0xC0 => Value::Nil,
            0xC2 => Value::Boolean(false),
            0xC3 => Value::Boolean(true),
            0xC4 | 0xD9 => self.long_text(1)?,
            0xC5 | 0xDA => self.long_text(2)?,
            0xC6 | 0xDB => self.long_text(4)?,
            0xCA => Value::Number(f64::from(f32::from_bits(self.number(4)? as u32))),
            0xCB => Value::Number(f64::from_bits(self.number(8)?)),
            0xCC => Value::Number(self.number(1)? as f64),
            0xCD => Value::Number(self.number(2)? as f64),
            0xCE => Value::Number(self.number(4)? as f64),
            0xCF => Value::Number(self.number(8)? as f64),
            0xD0 => self.signed(1)?,
            0xD1 => self.signed(2)?,
            0xD2 => self.signed(4)?,
            0xD3 => self.signed(8)?,
            0xDC => {
                let length = self.number(2)?;
                self.array(length, depth)?
            }
            0xDD => {
                let length = self.number(4)?;
                self.array(length, depth)?
            }
            0xDE => {
                let length = self.number(2)?;
                self.map(length, depth)?
            }
            0xDF => {
                let length = self.number(4)?;
                self.map(length, depth)?
            }
            0xE0..=0xFF => Value::Number(f64::from(*mark as i8)),
            _ => return Err(Stop::Text(BAD)),
        })
    }
}

fn whole(args: &MultiValue, at: usize, name: &str) -> Result<i64, String> {
    match args.get(at) {
        Some(Value::Integer(number)) => Ok(*number),
        Some(Value::Number(number)) => Ok(number::to_integer(*number)),
        other => {
            let got = other.map_or("no value", Value::type_name);
            let at = at + 1;
            Err(format!(
                "bad argument #{at} to '{name}' (number expected, got {got})"
            ))
        }
    }
}

/// `limit`: maximum values, and the next offset comes first; `None`: all values.
fn unpack(
    lua: &Lua,
    args: &MultiValue,
    name: &str,
    limit: Option<i64>,
    offset: i64,
) -> mlua::Result<Result<Vec<Value>, String>> {
    let text = match args.front() {
        Some(Value::String(text)) => text.as_bytes().to_vec(),
        Some(Value::Integer(number)) => number.to_string().into_bytes(),
        Some(Value::Number(number)) => number::general(*number, 14).into_bytes(),
        other => {
            let got = other.map_or("no value", Value::type_name);
            return Ok(Err(format!(
                "bad argument #1 to '{name}' (string expected, got {got})"
            )));
        }
    };
    let length = text.len();
    if offset < 0 || limit.is_some_and(|limit| limit < 0) {
        return Ok(Err(format!(
            "Invalid request to unpack with offset of {offset} and limit of {length}."
        )));
    }
    let Some(rest) = text.get(usize::try_from(offset).unwrap_or(usize::MAX)..) else {
        return Ok(Err(format!(
            "Start offset {offset} greater than input length {length}."
        )));
    };
    let mut reader = Reader { lua, rest };
    let mut values = Vec::new();
    let most = limit.unwrap_or(i64::MAX);
    while !reader.rest.is_empty() && (values.len() as i64) < most {
        match reader.value(0) {
            Ok(value) => values.push(value),
            Err(Stop::Text(text)) => return Ok(Err(text.to_owned())),
            Err(Stop::Host(error)) => return Err(error),
        }
        if values.len() > RESULTS_MAX {
            return Ok(Err("too many results to unpack".to_owned()));
        }
    }
    if limit.is_some() {
        let next = match reader.rest.len() {
            0 => -1,
            left => (length - left) as i64,
        };
        values.insert(0, Value::Integer(next));
    }
    Ok(Ok(values))
}

pub(crate) fn library(lua: &Lua, bytes_max: usize) -> mlua::Result<Table> {
    let library = lua.create_table()?;
    let pack = lua.create_function(move |lua, args: MultiValue| {
        if args.is_empty() {
            let text = "bad argument #0 to 'pack' (MessagePack pack needs input.)";
            return answer::<Value>(lua, Err(text.to_owned()));
        }
        let mut out = Vec::new();
        for value in &args {
            if let Err(text) = put(&mut out, value, 0, bytes_max) {
                return answer::<Value>(lua, Err(text));
            }
        }
        let packed = lua.create_string(out)?;
        answer(lua, Ok(packed))
    })?;
    library.raw_set("pack", pack)?;
    let all = lua.create_function(|lua, args: MultiValue| {
        let values = unpack(lua, &args, "unpack", None, 0)?;
        answer_many(lua, values)
    })?;
    library.raw_set("unpack", all)?;
    let one = lua.create_function(|lua, args: MultiValue| {
        let offset = match args.len() {
            0 | 1 => Ok(0),
            _ => whole(&args, 1, "unpack_one"),
        };
        let values = match offset {
            Ok(offset) => unpack(lua, &args, "unpack_one", Some(1), offset)?,
            Err(text) => Err(text),
        };
        answer_many(lua, values)
    })?;
    library.raw_set("unpack_one", one)?;
    let some = lua.create_function(|lua, args: MultiValue| {
        let limit = whole(&args, 1, "unpack_limit");
        let offset = match args.len() {
            0..=2 => Ok(0),
            _ => whole(&args, 2, "unpack_limit"),
        };
        let values = match (limit, offset) {
            (Ok(limit), Ok(offset)) => unpack(lua, &args, "unpack_limit", Some(limit), offset)?,
            (Err(text), _) | (_, Err(text)) => Err(text),
        };
        answer_many(lua, values)
    })?;
    library.raw_set("unpack_limit", some)?;
    Ok(library)
}
