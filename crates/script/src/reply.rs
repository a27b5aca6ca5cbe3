//! Replies of commands as Lua values, and the result of a script as a reply.

use crate::host::Host;
use crate::number;
use mlua::{Lua, Table, Value};

/// Deepest nesting of a reply.
const DEPTH_MAX: usize = 1_000;
/// Error of a script whose result is nested deeper.
const TOO_DEEP: &[u8] = b"ERR reached lua stack limit";

/// Writes an error reply. As in Redis, line ends become blanks, and those at its end are dropped.
pub(crate) fn write_error(out: &mut Vec<u8>, text: &[u8]) {
    out.push(b'-');
    write_line(out, without_end(text));
}

/// The text without the line ends at its end.
fn without_end(mut text: &[u8]) -> &[u8] {
    while let [rest @ .., last] = text
        && is_line_end(last)
    {
        text = rest;
    }
    text
}

fn is_line_end(byte: &u8) -> bool {
    matches!(byte, b'\r' | b'\n')
}

fn write_line(out: &mut Vec<u8>, text: &[u8]) {
    let byte = |byte: &u8| if is_line_end(byte) { b' ' } else { *byte };
    out.extend(text.iter().map(byte));
    out.extend_from_slice(b"\r\n");
}

/// The text of an error as `redis.error_reply` makes it: with a code in front.
pub(crate) fn error_text(text: &[u8]) -> Vec<u8> {
    let text = text.strip_prefix(b"-").unwrap_or(text);
    // The first word of the text is its code.
    let end = text.iter().position(|byte| *byte == b' ');
    let (code, rest) = match end {
        Some(end) => (&text[..end], &text[end + 1..]),
        None => (&b"ERR"[..], text),
    };
    let start = rest.iter().position(|byte| !is_line_end(byte));
    let rest = rest.get(start.unwrap_or(rest.len())..).unwrap_or_default();
    [code, b" ", without_end(rest)].concat()
}

pub(crate) fn error_table(lua: &Lua, text: &[u8]) -> mlua::Result<Value> {
    let table = lua.create_table_with_capacity(0, 1)?;
    table.raw_set("err", lua.create_string(text)?)?;
    Ok(Value::Table(table))
}

/// Reads a reply. The server wrote it, so it is well formed; any other bytes become nil.
pub(crate) fn read(host: Host<'_>, bytes: &[u8]) -> mlua::Result<Value> {
    Reader { host, bytes }.value(0)
}

struct Reader<'a> {
    host: Host<'a>,
    bytes: &'a [u8],
}

impl<'a> Reader<'a> {
    fn line(&mut self) -> (u8, &'a [u8]) {
        let bytes = self.bytes;
        let end = bytes.iter().position(|byte| *byte == b'\r');
        let end = end.unwrap_or(bytes.len());
        let line = bytes.get(1..end).unwrap_or_default();
        let kind = bytes.first().copied().unwrap_or(b'_');
        self.bytes = bytes.get(end + 2..).unwrap_or_default();
        (kind, line)
    }

    fn text(&mut self, length: usize) -> mlua::Result<Value> {
        let text = self.bytes.get(..length).unwrap_or_default();
        self.host
            .charge(length)
            .map_err(mlua::Error::RuntimeError)?;
        let text = self.host.lua.create_string(text)?;
        self.bytes = self.bytes.get(length + 2..).unwrap_or_default();
        Ok(Value::String(text))
    }

    fn one_field(&self, name: &str, value: Value) -> mlua::Result<Value> {
        let table = self.host.lua.create_table_with_capacity(0, 1)?;
        table.raw_set(name, value)?;
        Ok(Value::Table(table))
    }

    fn line_field(&self, name: &str, line: &[u8]) -> mlua::Result<Value> {
        let text = Value::String(self.host.lua.create_string(line)?);
        self.one_field(name, text)
    }

    fn value(&mut self, depth: usize) -> mlua::Result<Value> {
        let stopped = |text| mlua::Error::RuntimeError(text);
        self.host.charge(64).map_err(stopped)?;
        self.host.descend().map_err(stopped)?;
        let (kind, line) = self.line();
        let number: i64 = std::str::from_utf8(line)
            .ok()
            .and_then(|text| text.parse().ok())
            .unwrap_or(-1);
        let length = usize::try_from(number);
        if depth > DEPTH_MAX {
            return Ok(Value::Nil);
        }
        match (kind, length) {
            (b':', _) => Ok(Value::Number(number as f64)),
            (b'$', Ok(length)) => self.text(length),
            (b'$' | b'*', Err(_)) => Ok(Value::Boolean(false)),
            (b'+', _) => self.line_field("ok", line),
            (b'-', _) => self.line_field("err", line),
            (b'*' | b'>', Ok(length)) => {
                let table = self
                    .host
                    .lua
                    .create_table_with_capacity(length.min(1 << 16), 0)?;
                for n in 1..=length {
                    table.raw_set(n, self.value(depth + 1)?)?;
                }
                Ok(Value::Table(table))
            }
            (b'%', Ok(length)) => {
                let table = self.host.lua.create_table()?;
                for _ in 0..length {
                    let key = self.value(depth + 1)?;
                    let value = self.value(depth + 1)?;
                    if !matches!(key, Value::Nil) {
                        table.raw_set(key, value)?;
                    }
                }
                self.one_field("map", Value::Table(table))
            }
            (b'~', Ok(length)) => {
                let table = self.host.lua.create_table()?;
                for _ in 0..length {
                    let key = self.value(depth + 1)?;
                    if !matches!(key, Value::Nil) {
                        table.raw_set(key, true)?;
                    }
                }
                self.one_field("set", Value::Table(table))
            }
            (b'#', _) => Ok(Value::Boolean(line == b"t")),
            (b',', _) => {
                let text = String::from_utf8_lossy(line);
                self.one_field("double", Value::Number(text.parse().unwrap_or(f64::NAN)))
            }
            (b'(', _) => self.line_field("big_number", line),
            (b'=', Ok(length)) => self.verbatim(length),
            _ => Ok(Value::Nil),
        }
    }

    fn verbatim(&mut self, length: usize) -> mlua::Result<Value> {
        let text = self.bytes.get(..length).unwrap_or_default();
        let (format, content) = text.split_at(text.len().min(4));
        let table = self.host.lua.create_table()?;
        let format = format.get(..3).unwrap_or_default();
        table.raw_set("format", self.host.lua.create_string(format)?)?;
        table.raw_set("string", self.host.lua.create_string(content)?)?;
        self.bytes = self.bytes.get(length + 2..).unwrap_or_default();
        self.one_field("verbatim_string", Value::Table(table))
    }
}

/// Writes the result of a script.
pub(crate) struct Writer<'h> {
    pub(crate) host: Host<'h>,
    pub(crate) out: Vec<u8>,
    pub(crate) resp3: bool,
    /// Whether booleans are written as booleans, because the script has chosen RESP3.
    pub(crate) booleans: bool,
    pub(crate) bytes_max: usize,
}

impl Writer<'_> {
    fn line(&mut self, kind: u8, text: &str) {
        self.out.push(kind);
        self.out.extend_from_slice(text.as_bytes());
        self.out.extend_from_slice(b"\r\n");
    }

    fn bulk(&mut self, text: &[u8]) {
        self.line(b'$', &text.len().to_string());
        self.out.extend_from_slice(text);
        self.out.extend_from_slice(b"\r\n");
    }

    fn null(&mut self) {
        self.out
            .extend_from_slice(if self.resp3 { b"_\r\n" } else { b"$-1\r\n" });
    }

    /// Fails if the reply would be too long with these bytes more.
    fn check(&self, bytes: usize) -> Result<(), String> {
        if self.out.len().saturating_add(bytes) > self.bytes_max {
            Err(format!(
                "ERR the reply does not fit into this connection's output-limit of {} bytes: ask for less at once",
                self.bytes_max
            ))
        } else {
            Ok(())
        }
    }

    /// # Errors
    /// The text of the error reply: the reply is too long, or the script was stopped.
    pub(crate) fn write(&mut self, value: &Value, depth: usize) -> Result<(), String> {
        self.host.charge(64)?;
        self.check(0)?;
        match value {
            Value::String(text) => {
                let text = text.as_bytes();
                self.check(text.len())?;
                self.host.charge(text.len())?;
                self.bulk(&text);
            }
            Value::Integer(number) => self.line(b':', &number.to_string()),
            Value::Number(number) => self.line(b':', &number::to_integer(*number).to_string()),
            Value::Boolean(yes) if self.booleans && self.resp3 => {
                self.line(b'#', if *yes { "t" } else { "f" });
            }
            Value::Boolean(yes) if self.booleans => self.line(b':', if *yes { "1" } else { "0" }),
            Value::Boolean(true) => self.line(b':', "1"),
            Value::Table(_) if depth >= DEPTH_MAX => write_error(&mut self.out, TOO_DEEP),
            Value::Table(table) => return self.table(table, depth),
            _ => self.null(),
        }
        Ok(())
    }

    fn table(&mut self, table: &Table, depth: usize) -> Result<(), String> {
        self.host.descend()?;
        let field = |name: &str| table.raw_get::<Value>(name).unwrap_or(Value::Nil);
        if let Some(text) = text(&field("err")) {
            write_error(&mut self.out, &text);
            return Ok(());
        }
        if let Some(text) = text(&field("ok")) {
            self.out.push(b'+');
            write_line(&mut self.out, &text);
            return Ok(());
        }
        if let Some(number) = float(&field("double")) {
            self.double(number);
            return Ok(());
        }
        if let Value::Table(map) = field("map") {
            return self.pairs(&map, depth, true);
        }
        if let Value::Table(set) = field("set") {
            return self.pairs(&set, depth, false);
        }
        if let Some(text) = text(&field("big_number")) {
            if self.resp3 {
                self.out.push(b'(');
                write_line(&mut self.out, &text);
            } else {
                self.bulk(&text)
            }
            return Ok(());
        }
        if let Value::Table(verbatim) = field("verbatim_string") {
            let field = |name: &str| verbatim.raw_get::<Value>(name).unwrap_or(Value::Nil);
            if let (Some(format), Some(content)) = (text(&field("format")), text(&field("string")))
            {
                self.verbatim(&format, &content);
                return Ok(());
            }
        }
        self.array(table, depth)
    }

    /// Writes the elements up to the first nil, with their number before them.
    fn array(&mut self, table: &Table, depth: usize) -> Result<(), String> {
        let element = |n: usize| table.raw_get::<Value>(n).unwrap_or(Value::Nil);
        let mut number = 0;
        while !matches!(element(number + 1), Value::Nil) {
            self.host.charge(32)?;
            number += 1;
        }
        self.line(b'*', &number.to_string());
        for n in 1..=number {
            self.write(&element(n), depth + 1)?;
        }
        Ok(())
    }

    /// Writes the keys of a table as a set or, `with_values`, as a map.
    fn pairs(&mut self, table: &Table, depth: usize, with_values: bool) -> Result<(), String> {
        let mut number = 0;
        for _ in table.pairs::<Value, Value>() {
            self.host.charge(64)?;
            number += 1;
        }
        match (self.resp3, with_values) {
            (true, true) => self.line(b'%', &number.to_string()),
            (true, false) => self.line(b'~', &number.to_string()),
            (false, true) => self.line(b'*', &(2 * number).to_string()),
            (false, false) => self.line(b'*', &number.to_string()),
        }
        for pair in table.pairs() {
            let (key, value): (Value, Value) = pair.map_err(|error| format!("ERR {error}"))?;
            self.write(&key, depth + 1)?;
            if with_values {
                self.write(&value, depth + 1)?;
            }
        }
        Ok(())
    }

    fn double(&mut self, number: f64) {
        let text = number::general(number, 17);
        if self.resp3 {
            self.line(b',', &text)
        } else {
            self.bulk(text.as_bytes())
        }
    }

    fn verbatim(&mut self, format: &[u8], content: &[u8]) {
        if !self.resp3 {
            return self.bulk(content);
        }
        let mut format = format.to_vec();
        format.resize(3, b' ');
        self.line(b'=', &(content.len() + 4).to_string());
        self.out.extend_from_slice(&format);
        self.out.push(b':');
        self.out.extend_from_slice(content);
        self.out.extend_from_slice(b"\r\n");
    }
}

fn text(value: &Value) -> Option<Vec<u8>> {
    match value {
        Value::String(text) => Some(text.as_bytes().to_vec()),
        _ => None,
    }
}

fn float(value: &Value) -> Option<f64> {
    match value {
        Value::Integer(number) => Some(*number as f64),
        Value::Number(number) => Some(*number),
        _ => None,
    }
}
