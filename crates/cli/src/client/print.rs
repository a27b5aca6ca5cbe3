//! Prints replies as text for people and pipes, or as JSON.
//!
//! Text is binary-safe: the bytes of a value are written unchanged. In JSON a string that is not
//! UTF-8 is `{"base64": "…"}`.

use std::io::{self, StdoutLock, Write};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use duramen_wire::resp::Reply;
use serde_json::{Map, Value, json};

use crate::failure::Failure;

/// Standard output, buffered: [`flush`](Printer::flush) it before the end.
pub(super) struct Printer {
    out: io::BufWriter<StdoutLock<'static>>,
    json: bool,
}

impl Printer {
    pub(super) fn new(json: bool) -> Printer {
        Printer {
            out: io::BufWriter::new(io::stdout().lock()),
            json,
        }
    }

    pub(super) fn is_json(&self) -> bool {
        self.json
    }

    pub(super) fn flush(&mut self) -> Result<(), Failure> {
        self.out.flush().map_err(Failure::stdout)
    }

    /// A value, or "not found".
    pub(super) fn value(&mut self, reply: &Reply, newline: bool) -> Result<(), Failure> {
        if self.json || *reply != Reply::Null {
            if self.json || newline {
                self.reply(reply)?;
            } else {
                self.write(reply.as_bytes().unwrap_or_default())?;
            }
        }
        if *reply == Reply::Null {
            self.flush()?;
            return Err(Failure::NotFound("no such key".to_owned()));
        }
        Ok(())
    }

    /// Reports success: nothing is printed unless the server's reply is more than OK.
    pub(super) fn done(&mut self, reply: &Reply) -> Result<(), Failure> {
        if !self.json && reply.as_bytes() == Some(b"OK") {
            return Ok(());
        }
        self.reply(reply)
    }

    /// Null in JSON, nothing in text.
    pub(super) fn null(&mut self) -> Result<(), Failure> {
        if self.json {
            self.json(&Value::Null)
        } else {
            Ok(())
        }
    }

    /// Any reply: one line per value; nested values are indented by their index.
    pub(super) fn reply(&mut self, reply: &Reply) -> Result<(), Failure> {
        if self.json {
            return self.json(&json_of(reply));
        }
        match reply {
            Reply::Array(elements) | Reply::Set(elements) | Reply::Push(elements) => {
                for element in elements {
                    if let Reply::Array(fields) = element {
                        self.row(fields)?;
                    } else {
                        self.line(&line_of(element))?;
                    }
                }
                Ok(())
            }
            Reply::Map(pairs) => pairs
                .iter()
                .try_for_each(|(key, value)| self.pair(&line_of(key), &line_of(value))),
            other => self.line(&line_of(other)),
        }
    }

    /// Fields of one row, separated by tabs.
    fn row(&mut self, fields: &[Reply]) -> Result<(), Failure> {
        let fields: Vec<Vec<u8>> = fields.iter().map(line_of).collect();
        self.line(&fields.join(&b'\t'))
    }

    /// One string on a line of its own.
    pub(super) fn line(&mut self, bytes: &[u8]) -> Result<(), Failure> {
        if self.json {
            return self.json(&json_string(bytes));
        }
        self.write(bytes)?;
        self.write(b"\n")
    }

    /// One string and a zero byte, for `xargs -0`. One that contains a zero byte would be two.
    pub(super) fn ended_by_zero(&mut self, bytes: &[u8]) -> Result<(), Failure> {
        if self.json {
            return self.line(bytes);
        }
        if bytes.contains(&0) {
            eprintln!(
                "duramen: not printed, it contains a zero byte: {}",
                json_string(bytes)
            );
            return Ok(());
        }
        self.write(bytes)?;
        self.write(b"\0")
    }

    /// A key and its value on one line.
    pub(super) fn pair(&mut self, key: &[u8], value: &[u8]) -> Result<(), Failure> {
        if self.json {
            return self.json(&json!({ "key": json_string(key), "value": json_string(value) }));
        }
        self.write(key)?;
        self.write(b"\t")?;
        self.line(value)
    }

    /// One JSON value on a line of its own.
    pub(super) fn json(&mut self, value: &Value) -> Result<(), Failure> {
        serde_json::to_writer(&mut self.out, value)
            .map_err(|error| Failure::stdout(error.into()))?;
        self.write(b"\n")
    }

    /// The reply to `INFO`: sections of `field:value` lines. In JSON an object of objects, numbers
    /// as numbers.
    pub(super) fn info(&mut self, text: &str) -> Result<(), Failure> {
        if !self.json {
            return self.write(text.replace("\r\n", "\n").as_bytes());
        }
        let mut sections = Map::new();
        let mut name = "info".to_owned();
        for line in text.lines() {
            if let Some(title) = line.strip_prefix("# ") {
                name = title.to_lowercase();
            } else if let Some((field, value)) = line.split_once(':') {
                let section = sections.entry(&name).or_insert_with(|| json!({}));
                if let Some(section) = section.as_object_mut() {
                    section.insert(field.to_owned(), number_or_string(value));
                }
            }
        }
        self.json(&Value::Object(sections))
    }

    fn write(&mut self, bytes: &[u8]) -> Result<(), Failure> {
        self.out.write_all(bytes).map_err(Failure::stdout)
    }
}

fn number_or_string(text: &str) -> Value {
    if let Ok(number) = text.parse::<i64>() {
        return json!(number);
    }
    match text.parse::<f64>() {
        Ok(number) if number.is_finite() => json!(number),
        _ => json!(text),
    }
}

/// The bytes of a reply on a line.
fn line_of(reply: &Reply) -> Vec<u8> {
    match reply {
        Reply::Integer(value) => value.to_string().into_bytes(),
        Reply::Double(value) => value.to_string().into_bytes(),
        Reply::Boolean(value) => value.to_string().into_bytes(),
        Reply::Error(text) => text.clone().into_bytes(),
        Reply::Null => Vec::new(),
        Reply::Array(_) | Reply::Set(_) | Reply::Push(_) | Reply::Map(_) => {
            json_of(reply).to_string().into_bytes()
        }
        Reply::Simple(_) | Reply::Bulk(_) | Reply::BigNumber(_) | Reply::Verbatim { .. } => {
            reply.as_bytes().unwrap_or_default().to_vec()
        }
    }
}

/// A reply in a message.
pub(super) fn short(reply: &Reply) -> String {
    String::from_utf8_lossy(&line_of(reply))
        .chars()
        .take(80)
        .collect()
}

fn json_string(bytes: &[u8]) -> Value {
    match std::str::from_utf8(bytes) {
        Ok(text) => json!(text),
        Err(_) => json!({ "base64": STANDARD.encode(bytes) }),
    }
}

/// Named fields as a JSON object: a map, or its form in RESP2, names and values in turn.
pub(super) fn object_of(reply: &Reply) -> Value {
    let Some(fields) = reply.as_array() else {
        return json_of(reply);
    };
    let named = fields.as_chunks::<2>().0.iter();
    let named = named.map(|[name, value]| {
        let name = String::from_utf8_lossy(&line_of(name)).into_owned();
        (name, json_of(value))
    });
    Value::Object(named.collect())
}

/// A reply as JSON.
pub(super) fn json_of(reply: &Reply) -> Value {
    match reply {
        Reply::Null => Value::Null,
        Reply::Integer(value) => json!(value),
        Reply::Double(value) => json!(value),
        Reply::Boolean(value) => json!(value),
        Reply::Error(text) => json!({ "error": text }),
        Reply::Simple(text) | Reply::BigNumber(text) => json!(text),
        Reply::Bulk(bytes) | Reply::Verbatim { text: bytes, .. } => json_string(bytes),
        Reply::Array(elements) | Reply::Set(elements) | Reply::Push(elements) => {
            elements.iter().map(json_of).collect()
        }
        Reply::Map(pairs) => {
            let text = |key| String::from_utf8_lossy(&line_of(key)).into_owned();
            Value::Object(
                pairs
                    .iter()
                    .map(|(key, value)| (text(key), json_of(value)))
                    .collect(),
            )
        }
    }
}
