//! What clients asked for and what they were told, and when: what linearizability is judged by.

use std::fmt::Write as _;

/// Never answered, or not so that anybody knows whether it was done.
pub const UNKNOWN: u64 = u64::MAX;

/// What was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Action {
    Read,
    /// Of a value that nobody else writes.
    Write(u64),
    /// The same, if there is no object.
    Create(u64),
    Remove,
    /// By one.
    Increment,
}

/// What came of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Found {
    /// Nothing is known.
    Nothing,
    /// There was no object.
    Absent,
    /// Read: this value at this version. Increment: the number that it left.
    Value { value: u64, version: u64 },
    /// A write's version.
    Written { version: u64 },
    /// The version that is gone.
    Removed { version: u64 },
    /// There was an object already.
    Refused { current: Option<u64> },
}

/// One operation of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    pub client: u64,
    pub key: u64,
    pub action: Action,
    pub found: Found,
    /// When it was sent first.
    pub from_us: u64,
    /// When its answer came, or [`UNKNOWN`].
    pub to_us: u64,
}

/// All of a run, in the order in which they ended or were given up.
#[derive(Clone, Debug, Default)]
pub struct History {
    pub events: Vec<Event>,
}

impl History {
    /// One JSON object per line: client, key, action, value, found, version, from, to (null: unknown). For other checkers.
    pub fn to_json_lines(&self) -> String {
        let mut lines = String::new();
        for event in &self.events {
            let (action, value) = match event.action {
                Action::Read => ("read", 0),
                Action::Write(value) => ("write", value),
                Action::Create(value) => ("create", value),
                Action::Remove => ("remove", 0),
                Action::Increment => ("increment", 1),
            };
            let (found, result, version) = match event.found {
                Found::Nothing => ("unknown", 0, 0),
                Found::Absent => ("absent", 0, 0),
                Found::Value { value, version } => ("value", value, version),
                Found::Written { version } => ("written", 0, version),
                Found::Removed { version } => ("removed", 0, version),
                Found::Refused { current } => ("refused", 0, current.unwrap_or(0)),
            };
            let to = match event.to_us {
                UNKNOWN => "null".to_owned(),
                to => to.to_string(),
            };
            let _ = writeln!(
                lines,
                r#"{{"client":{},"key":{},"action":"{action}","value":{value},"found":"{found}","result":{result},"version":{version},"from":{},"to":{to}}}"#,
                event.client, event.key, event.from_us,
            );
        }
        lines
    }
}
