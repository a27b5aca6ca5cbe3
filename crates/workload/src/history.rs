//! A history: each request of a client, its answer, and their times. tests/checker/history.go
//! describes the form.
//!
//! Layout of a value on a server: the text in the history, and for some values `:` and a filling.
//! The filling depends on the text alone, so bytes of another value are detected.

use duramen_format::hash::slot;
use serde::{Serialize, Serializer};
use std::time::Instant;

/// One operation: a line of a history.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Record {
    pub(crate) client: usize,
    pub(crate) key: String,
    #[serde(flatten)]
    pub(crate) input: Input,
    /// Nanoseconds since the program began.
    pub(crate) call: u64,
    #[serde(rename = "return", skip_serializing_if = "Option::is_none")]
    pub(crate) end: Option<u64>,
    /// `None`: unknown outcome.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) out: Option<Output>,
}

/// A command on a group of keys: its words.
pub(crate) type Command = Vec<String>;

/// The input of an operation: the request for a key.
#[derive(Clone, Debug, Serialize, PartialEq, Eq)]
pub(crate) struct Input {
    pub(crate) op: Op,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(crate) value: String,
    #[serde(skip_serializing_if = "is_zero")]
    pub(crate) by: i64,
    #[serde(rename = "if", skip_serializing_if = "Option::is_none")]
    pub(crate) condition: Option<When>,
    #[serde(skip_serializing_if = "is_none")]
    pub(crate) version: u64,
    /// The commands on a group of keys (crate::group); more than one: they are a transaction.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) commands: Vec<Command>,
    /// Whether and how the request also reads the text that was there before; the RESP client uses
    /// it.
    #[serde(skip)]
    pub(crate) before: Before,
}

#[derive(Clone, Copy, Debug, Serialize, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Op {
    Read,
    Write,
    Remove,
    Increment,
    /// On a group of keys.
    Commands,
}

#[derive(Clone, Copy, Debug, Serialize, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub(crate) enum When {
    Absent,
    Present,
    Version,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Before {
    #[default]
    No,
    /// `SET … GET`.
    Reply,
    /// `MULTI`, `GET`, `SET`, `EXEC`.
    Transaction,
}

/// The output of an operation: the answer.
#[derive(Clone, Debug, Default, Serialize, PartialEq, Eq)]
pub(crate) struct Output {
    /// Those of the commands on a group of keys.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) replies: Option<Vec<serde_json::Value>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) value: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) number: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) applied: Option<bool>,
    /// `Some(None)`: there was nothing before.
    #[serde(
        skip_serializing_if = "Option::is_none",
        serialize_with = "before_or_null"
    )]
    pub(crate) before: Option<Option<String>>,
    #[serde(skip_serializing_if = "is_none")]
    pub(crate) version: u64,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde's signature")]
fn is_zero(number: &i64) -> bool {
    *number == 0
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde's signature")]
fn is_none(version: &u64) -> bool {
    *version == 0
}

fn before_or_null<S: Serializer>(
    before: &Option<Option<String>>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    before
        .as_ref()
        .and_then(Option::as_ref)
        .serialize(serializer)
}

impl Input {
    pub(crate) fn new(op: Op) -> Input {
        Input {
            op,
            value: String::new(),
            by: 0,
            condition: None,
            version: 0,
            commands: Vec::new(),
            before: Before::No,
        }
    }

    pub(crate) fn write(value: String) -> Input {
        Input {
            value,
            ..Input::new(Op::Write)
        }
    }
}

/// The clock of all histories of this process.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock(Instant);

impl Clock {
    pub(crate) fn new() -> Clock {
        Clock(Instant::now())
    }

    pub(crate) fn now(self) -> u64 {
        self.0.elapsed().as_nanos() as u64
    }
}

/// One in so many texts gets a filling, of at most so many bytes.
const FILLED_EVERY: u16 = 5;
const FILL_BYTES_MAX: u16 = 6_000;

fn filling(text: &str) -> usize {
    let dice = slot(text.as_bytes());
    match dice % FILLED_EVERY {
        0 => usize::from(dice % FILL_BYTES_MAX),
        _ => 0,
    }
}

/// The value on a server for a text.
pub(crate) fn dress(text: &str) -> Vec<u8> {
    let bytes = filling(text);
    let mut dressed = text.as_bytes().to_vec();
    if bytes > 0 {
        dressed.push(b':');
        dressed.extend(text.bytes().cycle().take(bytes));
    }
    dressed
}

/// The text of a value; for a value that no client wrote, a description that no history contains.
pub(crate) fn undress(value: &[u8]) -> String {
    let end = value.iter().position(|byte| *byte == b':');
    let text = String::from_utf8_lossy(&value[..end.unwrap_or(value.len())]).into_owned();
    // Counters are numbers, which never get a filling.
    let bare = text.parse::<i64>().is_ok();
    if value == text.as_bytes() && bare || value == dress(&text) {
        return text;
    }
    format!("damaged {} bytes of {text}", value.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_known_again_and_damage_is_seen() {
        let mut filled = 0;
        for n in 0..1_000 {
            let text = format!("c{n}-7");
            let mut value = dress(&text);
            assert_eq!(undress(&value), text);
            filled += usize::from(value.len() > text.len());
            value.push(b'x');
            assert_ne!(undress(&value), text);
        }
        assert!((100..300).contains(&filled), "{filled}");
        assert_eq!(undress(b"-12"), "-12");
    }

    #[test]
    fn lines_are_those_that_the_checker_reads() {
        let mut input = Input::write("c1-1".to_owned());
        input.condition = Some(When::Version);
        input.version = 7;
        let record = Record {
            client: 1,
            key: "k".to_owned(),
            input,
            call: 5,
            end: Some(9),
            out: Some(Output {
                before: Some(None),
                applied: Some(false),
                ..Output::default()
            }),
        };
        let line = serde_json::to_string(&record).expect("plain data");
        assert_eq!(
            line,
            r#"{"client":1,"key":"k","op":"write","value":"c1-1","if":"version","version":7,"call":5,"return":9,"out":{"applied":false,"before":null}}"#
        );
        let lost = Record {
            input: Input::new(Op::Read),
            end: None,
            out: None,
            ..record
        };
        let line = serde_json::to_string(&lost).expect("plain data");
        assert_eq!(line, r#"{"client":1,"key":"k","op":"read","call":5}"#);
    }
}
