//! The library `struct`: binary layouts described by a format string.

use crate::channel::Channel;
use crate::host::Host;
use crate::number;
use crate::result::{answer, answer_many};
use mlua::{Lua, MultiValue, Table, Value};
use std::rc::Rc;

/// Longest integer, in bytes.
const INTEGER_BYTES_MAX: usize = 32;
/// Maximum digits of a number in a format: they bound the work for an item.
const DIGITS_MAX: usize = 32;
/// Work for one item, beside its bytes (`Host::charge`).
const ITEM_WORK: usize = 16;
/// Bytes of a text that are copied in one nanosecond.
const COPIED_PER_WORK: usize = 8;
/// The alignment of a format without `!`.
const NO_ALIGNMENT: usize = 1;
/// The alignment of `!` alone: the largest of C's basic types.
const NATIVE_ALIGNMENT: usize = 8;

struct Format<'f> {
    rest: &'f [u8],
    little: bool,
    alignment: usize,
}

/// An item of a format.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Item {
    /// The number of bytes, and whether the integer is signed.
    Integer(usize, bool),
    Float,
    Double,
    Pad,
    /// The length of a text; 0 stands for the length of the argument, or for the number before it.
    Fixed(usize),
    Terminated,
    /// An item that takes no bytes of its own.
    Nothing,
}

impl<'f> Format<'f> {
    fn new(text: &'f [u8]) -> Format<'f> {
        Format {
            rest: text,
            little: true,
            alignment: NO_ALIGNMENT,
        }
    }

    fn number(&mut self) -> Result<Option<usize>, String> {
        let mut number: Option<usize> = None;
        let before = self.rest.len();
        while let [digit @ b'0'..=b'9', rest @ ..] = self.rest {
            let next = number.unwrap_or(0).checked_mul(10);
            let next = next.and_then(|next| next.checked_add(usize::from(digit - b'0')));
            let next = next.filter(|next| *next <= i32::MAX as usize);
            let next = next.filter(|_| before - rest.len() <= DIGITS_MAX);
            number = Some(next.ok_or("integral size overflow")?);
            self.rest = rest;
        }
        Ok(number)
    }

    fn integer(&mut self, signed: bool, native: usize) -> Result<Item, String> {
        let bytes = self.number()?.unwrap_or(native);
        if bytes > INTEGER_BYTES_MAX {
            return Err(format!(
                "integral size {bytes} is larger than limit of {INTEGER_BYTES_MAX}"
            ));
        }
        Ok(Item::Integer(bytes, signed))
    }

    /// The next item, and its size for alignment.
    fn next(&mut self) -> Option<Result<Item, String>> {
        let [option, rest @ ..] = self.rest else {
            return None;
        };
        self.rest = rest;
        Some(match option {
            b'b' => Ok(Item::Integer(1, true)),
            b'B' => Ok(Item::Integer(1, false)),
            b'h' => Ok(Item::Integer(2, true)),
            b'H' => Ok(Item::Integer(2, false)),
            b'l' => Ok(Item::Integer(8, true)),
            b'L' | b'T' => Ok(Item::Integer(8, false)),
            b'i' => self.integer(true, 4),
            b'I' => self.integer(false, 4),
            b'f' => Ok(Item::Float),
            b'd' | b'n' => Ok(Item::Double),
            b'x' => Ok(Item::Pad),
            b's' => Ok(Item::Terminated),
            b'c' => self.number().map(|length| Item::Fixed(length.unwrap_or(1))),
            b' ' => Ok(Item::Nothing),
            b'<' | b'>' => {
                self.little = *option == b'<';
                Ok(Item::Nothing)
            }
            b'!' => match self.number() {
                Err(text) => Err(text),
                Ok(number) => {
                    self.alignment = number.unwrap_or(NATIVE_ALIGNMENT);
                    if self.alignment.is_power_of_two() {
                        Ok(Item::Nothing)
                    } else {
                        Err("alignment is not a power of 2".to_owned())
                    }
                }
            },
            other => Err(format!("invalid format option '{}'", char::from(*other))),
        })
    }

    /// Padding before an item at `position`.
    fn padding(&self, item: Item, position: usize) -> usize {
        let size = match item {
            Item::Integer(bytes, _) => bytes,
            Item::Float => 4,
            Item::Double => 8,
            Item::Pad | Item::Fixed(_) | Item::Terminated | Item::Nothing => return 0,
        };
        let align = size.min(self.alignment);
        if align <= 1 {
            return 0;
        }
        (align - (position & (align - 1))) & (align - 1)
    }
}

fn bad(at: usize, name: &str, why: &str) -> String {
    format!("bad argument #{at} to '{name}' ({why})")
}

/// The error of a wrong format. An unknown option is a wrong argument; other mistakes have texts of
/// their own.
fn wrong(text: String, name: &str) -> String {
    if text.starts_with("invalid format") {
        bad(1, name, &text)
    } else {
        text
    }
}

/// Argument `at`, counted from 1, as a number.
fn number_at(args: &MultiValue, at: usize, name: &str) -> Result<f64, String> {
    match args.get(at - 1) {
        Some(Value::Integer(number)) => Ok(*number as f64),
        Some(Value::Number(number)) => Ok(*number),
        Some(Value::String(text)) => {
            let text = String::from_utf8_lossy(&text.as_bytes()).trim().to_owned();
            let wrong = |_| bad(at, name, "number expected, got string");
            text.parse().map_err(wrong)
        }
        None => Err(bad(at, name, "number expected, got no value")),
        Some(other) => {
            let why = format!("number expected, got {}", other.type_name());
            Err(bad(at, name, &why))
        }
    }
}

fn text_at(args: &MultiValue, at: usize, name: &str) -> Result<Vec<u8>, String> {
    match args.get(at - 1) {
        Some(Value::String(text)) => Ok(text.as_bytes().to_vec()),
        Some(Value::Integer(number)) => Ok(number.to_string().into_bytes()),
        Some(Value::Number(number)) => Ok(number::general(*number, 14).into_bytes()),
        None => Err(bad(at, name, "string expected, got no value")),
        Some(other) => {
            let why = format!("string expected, got {}", other.type_name());
            Err(bad(at, name, &why))
        }
    }
}

/// Appends a number by its bytes, the lowest first, in the order of the format.
fn write_ordered<const BYTES: usize>(out: &mut Vec<u8>, mut bytes: [u8; BYTES], little: bool) {
    if !little {
        bytes.reverse();
    }
    out.extend_from_slice(&bytes);
}

fn write_integer(out: &mut Vec<u8>, number: f64, bytes: usize, little: bool) {
    // The number is converted as C does it if the number is too large for a signed integer.
    let value = match number >= 0.0 {
        true if number < 18_446_744_073_709_551_616.0 => number as u64,
        true => 0,
        false => number::to_integer(number) as u64,
    };
    let start = out.len();
    out.extend((0..bytes).map(|n| if n < 8 { (value >> (8 * n)) as u8 } else { 0 }));
    if !little && let Some(written) = out.get_mut(start..) {
        written.reverse();
    }
}

fn pack(host: Host<'_>, args: &MultiValue, bytes_max: usize) -> Result<Vec<u8>, String> {
    const NAME: &str = "pack";
    let text = text_at(args, 1, NAME)?;
    host.charge(text.len() / COPIED_PER_WORK)?;
    let mut format = Format::new(&text);
    let mut out = Vec::new();
    let mut at = 2;
    while let Some(item) = format.next() {
        host.charge(ITEM_WORK)?;
        let item = item.map_err(|text| wrong(text, NAME))?;
        let padding = format.padding(item, out.len());
        out.resize(out.len() + padding, 0);
        match item {
            Item::Integer(bytes, _) => {
                let number = number_at(args, at, NAME)?;
                write_integer(&mut out, number, bytes, format.little);
                at += 1;
            }
            Item::Float => {
                let number = number_at(args, at, NAME)? as f32;
                write_ordered(&mut out, number.to_le_bytes(), format.little);
                at += 1;
            }
            Item::Double => {
                let number = number_at(args, at, NAME)?;
                write_ordered(&mut out, number.to_le_bytes(), format.little);
                at += 1;
            }
            Item::Pad => out.push(0),
            Item::Terminated | Item::Fixed(_) => {
                let text = text_at(args, at, NAME)?;
                host.charge(text.len() / COPIED_PER_WORK)?;
                let length = match item {
                    Item::Fixed(length) if length > 0 => length,
                    _ => text.len(),
                };
                let Some(bytes) = text.get(..length) else {
                    return Err(bad(at + 1, NAME, "string too short"));
                };
                out.extend_from_slice(bytes);
                if item == Item::Terminated {
                    out.push(0);
                }
                at += 1;
            }
            Item::Nothing => {}
        }
        if out.len() > bytes_max {
            return Err("not enough memory".to_owned());
        }
    }
    Ok(out)
}

fn read_integer(bytes: &[u8], little: bool, signed: bool) -> f64 {
    let mut value: u64 = 0;
    let take = |value: &mut u64, byte: &u8| *value = *value << 8 | u64::from(*byte);
    if little {
        bytes.iter().rev().for_each(|byte| take(&mut value, byte))
    } else {
        bytes.iter().for_each(|byte| take(&mut value, byte))
    }
    if !signed {
        return value as f64;
    }
    let unused = 64 - 8 * bytes.len().clamp(1, 8) as u32;
    ((value << unused) as i64 >> unused) as f64
}

const UNPACK: &str = "unpack";
const TOO_SHORT: &str = "data string too short";

/// The bytes of an item at the beginning of `rest`. The length of a text may be the last one of
/// `values`: then that value is removed.
fn length_of(item: Item, rest: &[u8], values: &mut Vec<Value>) -> Result<usize, String> {
    Ok(match item {
        Item::Integer(bytes, _) => bytes,
        Item::Float => 4,
        Item::Double => 8,
        Item::Pad => 1,
        Item::Nothing => 0,
        Item::Fixed(0) => {
            let Some(Value::Number(number)) = values.pop() else {
                return Err("format 'c0' needs a previous size".to_owned());
            };
            let length = usize::try_from(number::to_integer(number));
            length.map_err(|_| bad(2, UNPACK, TOO_SHORT))?
        }
        Item::Fixed(length) => length,
        Item::Terminated => {
            let length = rest.iter().position(|byte| *byte == 0);
            length.ok_or("unfinished string in data")?
        }
    })
}

/// The format and the data of `unpack`.
fn texts(host: Host<'_>, args: &MultiValue) -> Result<(Vec<u8>, Vec<u8>), String> {
    let (text, data) = (text_at(args, 1, UNPACK)?, text_at(args, 2, UNPACK)?);
    host.charge((text.len() + data.len()) / COPIED_PER_WORK)?;
    Ok((text, data))
}

fn unpack(host: Host<'_>, args: &MultiValue) -> mlua::Result<Result<Vec<Value>, String>> {
    let (text, data) = match texts(host, args) {
        Ok(prepared) => prepared,
        Err(text) => return Ok(Err(text)),
    };
    let start = match args.len() {
        0..=2 => 1.0,
        _ => match number_at(args, 3, UNPACK) {
            Ok(number) => number,
            Err(text) => return Ok(Err(text)),
        },
    };
    let start = number::to_integer(start);
    if start < 1 {
        return Ok(Err(bad(3, UNPACK, "offset must be 1 or greater")));
    }
    let mut position = usize::try_from(start - 1).unwrap_or(usize::MAX);
    let too_short = || Ok(Err(bad(2, UNPACK, TOO_SHORT)));
    let mut format = Format::new(&text);
    let mut values: Vec<Value> = Vec::new();
    while let Some(item) = format.next() {
        let item = match item {
            Ok(item) => item,
            Err(text) => return Ok(Err(wrong(text, UNPACK))),
        };
        position = position.saturating_add(format.padding(item, position));
        let rest = data.get(position..).unwrap_or_default();
        let length = length_of(item, rest, &mut values).and_then(|length| {
            host.charge(ITEM_WORK + length.min(rest.len()))?;
            Ok(length)
        });
        let length = match length {
            Ok(length) => length,
            Err(text) => return Ok(Err(text)),
        };
        if position > data.len() && item != Item::Nothing {
            return too_short();
        }
        let Some(bytes) = rest.get(..length) else {
            return too_short();
        };
        match item {
            Item::Integer(_, signed) => {
                values.push(Value::Number(read_integer(bytes, format.little, signed)));
            }
            Item::Float => values.push(Value::Number(float(bytes, format.little))),
            Item::Double => values.push(Value::Number(double(bytes, format.little))),
            Item::Fixed(_) | Item::Terminated => {
                values.push(Value::String(host.lua.create_string(bytes)?));
            }
            Item::Pad | Item::Nothing => {}
        }
        position += length + usize::from(item == Item::Terminated);
        if values.len() > 7_000 {
            return Ok(Err("too many results to unpack".to_owned()));
        }
    }
    values.push(Value::Number(position as f64 + 1.0));
    Ok(Ok(values))
}

fn float(bytes: &[u8], little: bool) -> f64 {
    let bytes: [u8; 4] = bytes.try_into().unwrap_or_default();
    f64::from(if little {
        f32::from_le_bytes(bytes)
    } else {
        f32::from_be_bytes(bytes)
    })
}

fn double(bytes: &[u8], little: bool) -> f64 {
    let bytes: [u8; 8] = bytes.try_into().unwrap_or_default();
    if little {
        f64::from_le_bytes(bytes)
    } else {
        f64::from_be_bytes(bytes)
    }
}

fn size(host: Host<'_>, args: &MultiValue) -> Result<f64, String> {
    const NAME: &str = "size";
    let text = text_at(args, 1, NAME)?;
    host.charge(text.len() / COPIED_PER_WORK)?;
    let mut format = Format::new(&text);
    let mut position: usize = 0;
    while let Some(item) = format.next() {
        host.charge(ITEM_WORK)?;
        let item = item.map_err(|text| wrong(text, NAME))?;
        position += format.padding(item, position);
        position += match item {
            Item::Integer(bytes, _) => bytes,
            Item::Float => 4,
            Item::Double => 8,
            Item::Pad => 1,
            Item::Nothing => 0,
            Item::Terminated => return Err(bad(1, NAME, "option 's' has no fixed size")),
            Item::Fixed(0) => return Err(bad(1, NAME, "option 'c0' has no fixed size")),
            Item::Fixed(length) => length,
        };
    }
    Ok(position as f64)
}

pub(crate) fn library(lua: &Lua, channel: &Rc<Channel>, bytes_max: usize) -> mlua::Result<Table> {
    let library = lua.create_table()?;
    let own = Rc::clone(channel);
    let pack = lua.create_function(move |lua, args: MultiValue| {
        let channel = &own;
        let packed = pack(Host { lua, channel }, &args, bytes_max);
        let packed = packed.map(|bytes| lua.create_string(bytes));
        answer(
            lua,
            match packed {
                Ok(text) => Ok(text?),
                Err(text) => Err(text),
            },
        )
    })?;
    library.raw_set("pack", pack)?;
    let own = Rc::clone(channel);
    let unpack = lua.create_function(move |lua, args: MultiValue| {
        let channel = &own;
        let values = unpack(Host { lua, channel }, &args)?;
        answer_many(lua, values)
    })?;
    library.raw_set("unpack", unpack)?;
    let own = Rc::clone(channel);
    let size = lua.create_function(move |lua, args: MultiValue| {
        let channel = &own;
        answer(lua, size(Host { lua, channel }, &args))
    })?;
    library.raw_set("size", size)?;
    Ok(library)
}
