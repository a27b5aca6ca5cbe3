//! The requests of clients and their answers, with times: the input of the check of
//! linearizability.

use std::collections::BTreeSet;
use std::fmt::Write as _;

/// Never answered, or without knowledge of whether it was done.
pub const UNKNOWN: u64 = u64::MAX;

/// The operation of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Action {
    Read,
    /// Writes a value that no other operation writes.
    Write(u64),
    /// As `Write`, of a value that expires at this time of the run.
    Fleeting {
        value: u64,
        expires_us: u64,
    },
    /// As `Write`, if there is no object.
    Create(u64),
    Remove,
    /// Increments by one.
    Increment,
}

/// The outcome of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Found {
    /// The outcome is unknown.
    Nothing,
    /// There was no object.
    Absent,
    /// Read: this value at this version. Increment: the number after it.
    Value { value: u64, version: u64 },
    /// The version of a write.
    Written { version: u64 },
    /// The version that was removed.
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
    /// When it was first sent.
    pub from_us: u64,
    /// When its answer came, or [`UNKNOWN`].
    pub to_us: u64,
}

/// All operations of a run, in the order in which they ended or were given up.
#[derive(Clone, Debug, Default)]
pub struct History {
    pub events: Vec<Event>,
}

impl History {
    /// One JSON object per line, in the form that the checker of real servers' histories reads
    /// (tests/checker/history.go): two independent checkers judge the same runs. The other checker
    /// does not support expiry: keys whose values expire are left out.
    pub fn to_json_lines(&self) -> String {
        let mut lines = String::new();
        let expires = |event: &&Event| matches!(event.action, Action::Fleeting { .. });
        let expiring = self.events.iter().filter(expires).map(|event| event.key);
        let expiring: BTreeSet<u64> = expiring.collect();
        let events = self.events.iter();
        for event in events.filter(|event| !expiring.contains(&event.key)) {
            let (op, what) = match event.action {
                Action::Read => ("read", String::new()),
                Action::Write(value) | Action::Fleeting { value, .. } => {
                    ("write", format!(r#","value":"{value}""#))
                }
                Action::Create(value) => ("write", format!(r#","value":"{value}","if":"absent""#)),
                Action::Remove => ("remove", String::new()),
                Action::Increment => ("increment", r#","by":1"#.to_owned()),
            };
            let _ = write!(
                lines,
                r#"{{"client":{},"key":"{}","op":"{op}"{what},"call":{}"#,
                event.client,
                event.key,
                event.from_us * 1000,
            );
            if event.to_us != UNKNOWN
                && let Some(out) = answer(event.action, event.found)
            {
                let _ = write!(lines, r#","return":{},"out":{{{out}}}"#, event.to_us * 1000);
            }
            lines.push_str("}\n");
        }
        lines
    }
}

/// The fields of an answer; `None`: the outcome is unknown.
fn answer(action: Action, found: Found) -> Option<String> {
    let of = |version: u64| match version {
        0 => String::new(),
        version => format!(r#""version":{version}"#),
    };
    Some(match (action, found) {
        (_, Found::Nothing) => return None,
        (Action::Read, Found::Absent) => String::new(),
        (_, Found::Absent) => r#""applied":false"#.to_owned(),
        (Action::Increment, Found::Value { value, .. }) => format!(r#""number":{value}"#),
        (_, Found::Value { value, version }) => match of(version) {
            version if version.is_empty() => format!(r#""value":"{value}""#),
            version => format!(r#""value":"{value}",{version}"#),
        },
        (_, Found::Written { version } | Found::Removed { version }) => of(version),
        (_, Found::Refused { current }) => match of(current.unwrap_or(0)) {
            version if version.is_empty() => r#""applied":false"#.to_owned(),
            version => format!(r#""applied":false,{version}"#),
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_history_has_the_form_that_the_checker_reads() {
        let event = |action, found, to_us| Event {
            client: 3,
            key: 7,
            action,
            found,
            from_us: 10,
            to_us,
        };
        let history = History {
            events: vec![
                event(Action::Write(5), Found::Written { version: 2 }, 20),
                event(Action::Create(6), Found::Refused { current: Some(2) }, 20),
                event(
                    Action::Read,
                    Found::Value {
                        value: 5,
                        version: 2,
                    },
                    20,
                ),
                event(Action::Remove, Found::Nothing, UNKNOWN),
                event(
                    Action::Increment,
                    Found::Value {
                        value: 6,
                        version: 3,
                    },
                    20,
                ),
                event(Action::Read, Found::Absent, 20),
            ],
        };
        let lines = [
            r#"{"client":3,"key":"7","op":"write","value":"5","call":10000,"return":20000,"out":{"version":2}}"#,
            r#"{"client":3,"key":"7","op":"write","value":"6","if":"absent","call":10000,"return":20000,"out":{"applied":false,"version":2}}"#,
            r#"{"client":3,"key":"7","op":"read","call":10000,"return":20000,"out":{"value":"5","version":2}}"#,
            r#"{"client":3,"key":"7","op":"remove","call":10000}"#,
            r#"{"client":3,"key":"7","op":"increment","by":1,"call":10000,"return":20000,"out":{"number":6}}"#,
            r#"{"client":3,"key":"7","op":"read","call":10000,"return":20000,"out":{}}"#,
        ];
        assert_eq!(history.to_json_lines(), lines.join("\n") + "\n");
    }
}
