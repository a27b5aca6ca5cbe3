//! Lua values as JSON.

use super::{Invalid, Settings};
use crate::host::{Host, NO_MEMORY};
use crate::number;
use mlua::{Table, Value};

pub(super) fn encode(
    host: Host<'_>,
    value: &Value,
    settings: &Settings,
    bytes_max: usize,
) -> Result<Vec<u8>, String> {
    let mut writer = Writer {
        host,
        out: Vec::new(),
        settings,
        bytes_max,
    };
    writer.value(value, 0)?;
    Ok(writer.out)
}

/// Bytes of a string between two checks of the limits.
const PART_BYTES: usize = 4 << 10;

struct Writer<'s> {
    host: Host<'s>,
    out: Vec<u8>,
    settings: &'s Settings,
    bytes_max: usize,
}

fn cannot(value: &Value, why: &str) -> String {
    let name = match value {
        Value::Integer(_) => "number",
        value => value.type_name(),
    };
    format!("Cannot serialise {name}: {why}")
}

impl Writer<'_> {
    fn value(&mut self, value: &Value, depth: i64) -> Result<(), String> {
        self.host.charge(16)?;
        if self.out.len() > self.bytes_max {
            return Err(NO_MEMORY.to_owned());
        }
        match value {
            Value::Nil => self.out.extend_from_slice(b"null"),
            Value::LightUserData(pointer) if pointer.0.is_null() => {
                self.out.extend_from_slice(b"null");
            }
            Value::Boolean(true) => self.out.extend_from_slice(b"true"),
            Value::Boolean(false) => self.out.extend_from_slice(b"false"),
            Value::Integer(number) => self.number(*number as f64)?,
            Value::Number(number) => self.number(*number)?,
            Value::String(text) => self.string(&text.as_bytes())?,
            Value::Table(table) => self.table(table, depth + 1)?,
            other => return Err(cannot(other, "type not supported")),
        }
        Ok(())
    }

    fn number(&mut self, number: f64) -> Result<(), String> {
        if !number.is_finite() {
            match self.settings.encode_invalid {
                Invalid::Off => {
                    return Err(cannot(&Value::Number(number), "must not be NaN or Inf"));
                }
                Invalid::Null => {
                    self.out.extend_from_slice(b"null");
                    return Ok(());
                }
                Invalid::On => {}
            }
        }
        let text = number::general(number, self.settings.precision);
        self.out.extend_from_slice(text.as_bytes());
        Ok(())
    }

    fn string(&mut self, text: &[u8]) -> Result<(), String> {
        self.out.push(b'"');
        for part in text.chunks(PART_BYTES) {
            self.host.charge(part.len())?;
            if self.out.len() > self.bytes_max {
                return Err(NO_MEMORY.to_owned());
            }
            self.escaped(part);
        }
        self.out.push(b'"');
        Ok(())
    }

    fn escaped(&mut self, text: &[u8]) {
        for byte in text {
            let escape: &[u8] = match byte {
                b'"' => b"\\\"",
                b'\\' => b"\\\\",
                b'/' => b"\\/",
                8 => b"\\b",
                b'\t' => b"\\t",
                b'\n' => b"\\n",
                12 => b"\\f",
                b'\r' => b"\\r",
                0..32 | 127 => {
                    self.out
                        .extend_from_slice(format!("\\u{byte:04x}").as_bytes());
                    continue;
                }
                other => {
                    self.out.push(*other);
                    continue;
                }
            };
            self.out.extend_from_slice(escape);
        }
    }

    fn table(&mut self, table: &Table, depth: i64) -> Result<(), String> {
        if depth > self.settings.encode_depth {
            return Err(format!("Cannot serialise, excessive nesting ({depth})"));
        }
        self.host.descend()?;
        match self.array_length(table)? {
            Some(length) => self.array(table, length, depth),
            None => self.object(table, depth),
        }
    }

    /// The largest index, if the table has keys and all are indexes; `None`: the table is an
    /// object.
    fn array_length(&self, table: &Table) -> Result<Option<i64>, String> {
        let (mut most, mut length) = (0, 0);
        for pair in table.pairs() {
            let (key, _): (Value, Value) = pair.map_err(|error| error.to_string())?;
            self.host.charge(64)?;
            length += 1;
            match key {
                Value::Integer(index) if index >= 1 => most = most.max(index),
                Value::Number(index) if index >= 1.0 && index.fract() == 0.0 => {
                    most = most.max(number::to_integer(index));
                }
                _ => return Ok(None),
            }
        }
        let settings = self.settings;
        let is_sparse = settings.sparse_ratio > 0
            && most > i64::saturating_mul(length, settings.sparse_ratio)
            && most > settings.sparse_safe;
        match is_sparse {
            true if settings.sparse_convert => Ok(None),
            true => Err(cannot(
                &Value::Table(table.clone()),
                "excessively sparse array",
            )),
            false => Ok((most > 0).then_some(most)),
        }
    }

    fn array(&mut self, table: &Table, length: i64, depth: i64) -> Result<(), String> {
        self.out.push(b'[');
        for index in 1..=length {
            if index > 1 {
                self.out.push(b',');
            }
            let value: Value = table.raw_get(index).map_err(|error| error.to_string())?;
            self.value(&value, depth)?;
        }
        self.out.push(b']');
        Ok(())
    }

    fn object(&mut self, table: &Table, depth: i64) -> Result<(), String> {
        self.out.push(b'{');
        for (n, pair) in table.pairs().enumerate() {
            let (key, value): (Value, Value) = pair.map_err(|error| error.to_string())?;
            if n > 0 {
                self.out.push(b',');
            }
            match &key {
                Value::String(text) => self.string(&text.as_bytes())?,
                Value::Integer(_) | Value::Number(_) => {
                    self.out.push(b'"');
                    self.value(&key, depth)?;
                    self.out.push(b'"');
                }
                other => return Err(cannot(other, "table key must be a number or string")),
            }
            self.out.push(b':');
            self.value(&value, depth)?;
        }
        self.out.push(b'}');
        Ok(())
    }
}
