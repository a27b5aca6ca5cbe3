//! The library `cmsgpack`: MessagePack.

use crate::channel::Channel;
use crate::host::{Host, NO_MEMORY};
use crate::number;
use crate::result::answer;
use mlua::{Lua, MultiValue, Table, Value};
use std::rc::Rc;

/// Maximum nesting of packed tables: deeper ones are packed as nil, as in the C library.
const NESTING_MAX: usize = 16;
/// Maximum nesting that is read.
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

struct Writer<'h> {
    host: Host<'h>,
    out: Vec<u8>,
    bytes_max: usize,
}

impl Writer<'_> {
    /// Fails if the text would be too long with these bytes more.
    fn check(&self, bytes: usize) -> Result<(), String> {
        if self.out.len().saturating_add(bytes) > self.bytes_max {
            Err(NO_MEMORY.to_owned())
        } else {
            Ok(())
        }
    }

    fn put(&mut self, value: &Value, depth: usize) -> Result<(), String> {
        self.host.charge(16)?;
        self.check(0)?;
        let out = &mut self.out;
        match value {
            Value::String(text) => {
                let text = text.as_bytes();
                self.check(text.len())?;
                self.host.charge(text.len())?;
                let out = &mut self.out;
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
            Value::Table(table) if depth < NESTING_MAX => return self.put_table(table, depth),
            _ => out.push(0xC0),
        }
        Ok(())
    }

    fn put_table(&mut self, table: &Table, depth: usize) -> Result<(), String> {
        self.host.descend()?;
        let (mut length, mut most) = (0, 0);
        for pair in table.pairs() {
            let (key, _): (Value, Value) = pair.map_err(|error| error.to_string())?;
            self.host.charge(64)?;
            length += 1;
            most = most.max(match key {
                Value::Integer(index) if index > 0 => index,
                _ => i64::MAX,
            });
        }
        if most == length as i64 {
            put_length(&mut self.out, length, Some((0x90, 15)), [0, 0xDC, 0xDD]);
            for index in 1..=length {
                let value: Value = table.raw_get(index).map_err(|error| error.to_string())?;
                self.put(&value, depth + 1)?;
            }
            return Ok(());
        }
        put_length(&mut self.out, length, Some((0x80, 15)), [0, 0xDE, 0xDF]);
        for pair in table.pairs() {
            let (key, value): (Value, Value) = pair.map_err(|error| error.to_string())?;
            self.put(&key, depth + 1)?;
            self.put(&value, depth + 1)?;
        }
        Ok(())
    }
}

/// The text of an error, or an error of the host.
enum Stop {
    Text(String),
    Host(mlua::Error),
}

impl From<mlua::Error> for Stop {
    fn from(error: mlua::Error) -> Stop {
        Stop::Host(error)
    }
}

impl From<&str> for Stop {
    fn from(text: &str) -> Stop {
        Stop::Text(text.to_owned())
    }
}

struct Reader<'t> {
    host: Host<'t>,
    rest: &'t [u8],
}

impl<'t> Reader<'t> {
    fn take(&mut self, bytes: usize) -> Result<&'t [u8], Stop> {
        let (taken, rest) = self.rest.split_at_checked(bytes).ok_or(MISSING)?;
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
        self.host.charge(length).map_err(Stop::Text)?;
        Ok(Value::String(self.host.lua.create_string(text)?))
    }

    fn long_text(&mut self, bytes: usize) -> Result<Value, Stop> {
        let length = self.number(bytes)? as usize;
        self.text(length)
    }

    fn array(&mut self, length: u64, depth: usize) -> Result<Value, Stop> {
        self.host.descend().map_err(Stop::Text)?;
        let table = self.host.lua.create_table()?;
        for index in 1..=length {
            table.raw_set(index, self.value(depth + 1)?)?;
        }
        Ok(Value::Table(table))
    }

    fn map(&mut self, length: u64, depth: usize) -> Result<Value, Stop> {
        self.host.descend().map_err(Stop::Text)?;
        let table = self.host.lua.create_table()?;
        for _ in 0..length {
            let key = self.value(depth + 1)?;
            let value = self.value(depth + 1)?;
            let is_number = matches!(key, Value::Number(number) if number.is_nan());
            if is_number || matches!(key, Value::Nil) {
                return Err(Stop::from(BAD));
            }
            table.raw_set(key, value)?;
        }
        Ok(Value::Table(table))
    }

    fn value(&mut self, depth: usize) -> Result<Value, Stop> {
        if depth > DEPTH_MAX {
            return Err(Stop::from(BAD));
        }
        self.host.charge(64).map_err(Stop::Text)?;
        let [mark] = self.take(1)? else {
            return Err(Stop::from(MISSING));
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
            _ => return Err(Stop::from(BAD)),
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

/// The values of a text, and their number. They are in a table, so that Rust refers to one at a
/// time. `limit`: maximum number of values; the next offset then comes before them. `None`: all
/// values.
fn unpack(
    host: Host<'_>,
    args: &MultiValue,
    name: &str,
    limit: Option<i64>,
    offset: i64,
) -> mlua::Result<Result<(Table, usize), String>> {
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
    let mut reader = Reader { host, rest };
    let values = host.lua.create_table()?;
    let (first, mut number) = (usize::from(limit.is_some()), 0);
    let most = limit.map_or(usize::MAX, |limit| limit as usize);
    while !reader.rest.is_empty() && number < most {
        number += 1;
        match reader.value(0) {
            Ok(value) => values.raw_set(first + number, value)?,
            Err(Stop::Text(text)) => return Ok(Err(text)),
            Err(Stop::Host(error)) => return Err(error),
        }
        if number > RESULTS_MAX {
            return Ok(Err("too many results to unpack".to_owned()));
        }
    }
    if limit.is_some() {
        let next = match reader.rest.len() {
            0 => -1,
            left => (length - left) as i64,
        };
        values.raw_set(1, next)?;
    }
    Ok(Ok((values, first + number)))
}

type Unpacked = mlua::Result<(bool, Value, usize)>;

fn unpacked(lua: &Lua, result: Result<(Table, usize), String>) -> Unpacked {
    Ok(match result {
        Ok((values, number)) => (true, Value::Table(values), number),
        Err(text) => (false, Value::String(lua.create_string(text)?), 0),
    })
}

/// `pack` takes the number of its arguments and a table of them. The others return a table of
/// their results and its length.
pub(crate) fn library(lua: &Lua, channel: &Rc<Channel>, bytes_max: usize) -> mlua::Result<Table> {
    let library = lua.create_table()?;
    let own = Rc::clone(channel);
    let pack = lua.create_function(move |lua, (number, args): (usize, Table)| {
        if number == 0 {
            let text = "bad argument #0 to 'pack' (MessagePack pack needs input.)";
            return answer::<Value>(lua, Err(text.to_owned()));
        }
        let channel = &own;
        let mut writer = Writer {
            host: Host { lua, channel },
            out: Vec::new(),
            bytes_max,
        };
        for n in 1..=number {
            if let Err(text) = writer.put(&args.raw_get(n)?, 0) {
                return answer::<Value>(lua, Err(text));
            }
        }
        let packed = lua.create_string(writer.out)?;
        answer(lua, Ok(packed))
    })?;
    library.raw_set("pack", pack)?;
    let own = Rc::clone(channel);
    let all = lua.create_function(move |lua, args: MultiValue| {
        let channel = &own;
        let values = unpack(Host { lua, channel }, &args, "unpack", None, 0)?;
        unpacked(lua, values)
    })?;
    library.raw_set("unpack", all)?;
    let own = Rc::clone(channel);
    let one = lua.create_function(move |lua, args: MultiValue| {
        let channel = &own;
        let host = Host { lua, channel };
        let offset = match args.len() {
            0 | 1 => Ok(0),
            _ => whole(&args, 1, "unpack_one"),
        };
        let values = match offset {
            Ok(offset) => unpack(host, &args, "unpack_one", Some(1), offset)?,
            Err(text) => Err(text),
        };
        unpacked(lua, values)
    })?;
    library.raw_set("unpack_one", one)?;
    let own = Rc::clone(channel);
    let some = lua.create_function(move |lua, args: MultiValue| {
        let channel = &own;
        let host = Host { lua, channel };
        let limit = whole(&args, 1, "unpack_limit");
        let offset = match args.len() {
            0..=2 => Ok(0),
            _ => whole(&args, 2, "unpack_limit"),
        };
        let values = match (limit, offset) {
            (Ok(limit), Ok(offset)) => unpack(host, &args, "unpack_limit", Some(limit), offset)?,
            (Err(text), _) | (_, Err(text)) => Err(text),
        };
        unpacked(lua, values)
    })?;
    library.raw_set("unpack_limit", some)?;
    Ok(library)
}
