//! Sends one operation over RESP or over the native protocol, and converts the answer for the
//! history.

use crate::group;
use crate::history::{Before, Input, Op, Output, When, dress, undress};
use crate::resp::{Client as RespClient, Failure, Reply};
use duramen_client::{Condition, Error, Outcome, Table, Write};
use std::time::Instant;

/// The result of a request.
#[derive(Debug)]
pub(crate) enum Answer {
    Done(Output),
    /// It may have been done, or be done later.
    Unknown(String),
    /// It was not done and won't be.
    NotDone(String),
    /// The answer makes no sense here: the test must fail. Whether the operation was done is not
    /// known.
    Nonsense(String),
}

/// A connection to servers.
pub(crate) trait Asker {
    fn ask(&mut self, key: &str, input: &Input, deadline: Instant) -> Answer;

    /// A native client returns versions, so writes may depend on them; it cannot read the text
    /// before a write; and it masks failures.
    fn is_native(&self) -> bool;
}

impl Asker for RespClient {
    fn ask(&mut self, key: &str, input: &Input, deadline: Instant) -> Answer {
        if input.op == Op::Commands {
            return self.ask_group(key, input, deadline);
        }
        let value = dress(&input.value);
        let by = input.by.to_string();
        let key = key.as_bytes();
        let mut commands: Vec<Vec<&[u8]>> = Vec::new();
        match input.op {
            Op::Read => commands.push(vec![b"GET", key]),
            Op::Remove => commands.push(vec![b"DEL", key]),
            Op::Increment => commands.push(vec![b"INCRBY", key, by.as_bytes()]),
            Op::Commands => {}
            Op::Write => {
                let mut set: Vec<&[u8]> = vec![b"SET", key, &value];
                match input.condition {
                    Some(When::Absent) => set.push(b"NX"),
                    Some(When::Present) => set.push(b"XX"),
                    Some(When::Version) => {
                        return Answer::Nonsense("no versions in RESP".to_owned());
                    }
                    None => {}
                }
                match input.before {
                    Before::No => commands.push(set),
                    Before::Reply => {
                        set.push(b"GET");
                        commands.push(set);
                    }
                    Before::Transaction => {
                        commands.extend([vec![&b"MULTI"[..]], vec![b"GET", key], set]);
                        commands.push(vec![b"EXEC"]);
                    }
                }
            }
        }
        let replies = self.run(key, &commands, deadline);
        answer_of(input, replies, |replies| output_of(input, replies.last()))
    }

    fn is_native(&self) -> bool {
        false
    }
}

impl RespClient {
    /// `name`: the group, which is also the prefix of its keys.
    fn ask_group(&mut self, name: &str, input: &Input, deadline: Instant) -> Answer {
        let words = input.commands.iter().map(|one| group::words(name, one));
        let mut words: Vec<Vec<Vec<u8>>> = words.collect();
        if words.len() > 1 {
            words.insert(0, vec![b"MULTI".to_vec()]);
            words.push(vec![b"EXEC".to_vec()]);
        }
        let commands: Vec<Vec<&[u8]>> = words
            .iter()
            .map(|command| command.iter().map(Vec::as_slice).collect())
            .collect();
        let replies = self.run(name.as_bytes(), &commands, deadline);
        answer_of(input, replies, |replies| {
            let replies = Some(group::replies(name, input, replies)?);
            Some(Output {
                replies,
                ..Output::default()
            })
        })
    }
}

fn answer_of(
    input: &Input,
    replies: Result<Vec<Reply>, Failure>,
    read: impl Fn(&[Reply]) -> Option<Output>,
) -> Answer {
    match replies {
        Ok(replies) => match read(&replies) {
            Some(output) => Answer::Done(output),
            None => Answer::Nonsense(format!("{input:?}: {replies:?}")),
        },
        Err(Failure::NotDone(reason)) => Answer::NotDone(reason),
        Err(Failure::Unknown(reason)) => Answer::Unknown(reason),
    }
}

fn text_or_absent(reply: &Reply) -> Option<Option<String>> {
    match reply {
        Reply::Bulk(value) => Some(Some(undress(value))),
        Reply::Null => Some(None),
        _ => None,
    }
}

/// The content of a RESP answer; `None`: it does not fit the request.
fn output_of(input: &Input, reply: Option<&Reply>) -> Option<Output> {
    let ok = Reply::Simple("OK".to_owned());
    let mut output = Output::default();
    match (input.op, reply?) {
        (Op::Read, reply) => output.value = text_or_absent(reply)?,
        (Op::Remove, Reply::Number(removed @ 0..=1)) => output.applied = Some(*removed == 1),
        (Op::Increment, Reply::Number(number)) => output.number = Some(*number),
        (Op::Write, reply) => match (input.before, reply) {
            (Before::No, Reply::Null) => output.applied = Some(false),
            (Before::No, reply) if *reply == ok => {}
            (Before::Reply, reply) => output.before = Some(text_or_absent(reply)?),
            (Before::Transaction, Reply::Array(results)) => match results.as_slice() {
                [before, done] if *done == ok => output.before = Some(text_or_absent(before)?),
                _ => return None,
            },
            _ => return None,
        },
        _ => return None,
    }
    Some(output)
}

/// A table of the native client.
#[derive(Debug)]
pub(crate) struct Native(pub(crate) Table);

impl Asker for Native {
    fn ask(&mut self, key: &str, input: &Input, _: Instant) -> Answer {
        let key = key.as_bytes();
        let condition = match input.condition {
            None => Condition::Always,
            Some(When::Absent) => Condition::Absent,
            Some(When::Present) => Condition::Present,
            Some(When::Version) => Condition::Version(input.version),
        };
        let mut output = Output::default();
        let result = match input.op {
            Op::Read => self.0.get(key).map(|object| {
                if let Some(object) = object {
                    output.value = Some(undress(&object.value));
                    output.version = object.version;
                }
                None
            }),
            Op::Increment => self.0.increment(key, input.by).map(|sum| {
                output.number = Some(sum);
                None
            }),
            Op::Remove => self.0.remove_if(key, condition).map(Some),
            Op::Commands => {
                return Answer::Nonsense("no commands in the native protocol".to_owned());
            }
            Op::Write => {
                let write = Write {
                    condition,
                    ..Write::default()
                };
                self.0.write(key, &dress(&input.value), write).map(Some)
            }
        };
        match result {
            Ok(None) => {}
            Ok(Some(Outcome::Written { version } | Outcome::Removed { version })) => {
                output.version = version;
            }
            Ok(Some(Outcome::Absent)) => output.applied = Some(false),
            Ok(Some(Outcome::ConditionFailed { current })) => {
                output.applied = Some(false);
                output.version = current.unwrap_or(0);
            }
            Ok(Some(other)) => return Answer::Nonsense(format!("{input:?}: {other:?}")),
            Err(error @ Error::Deadline { .. }) => return Answer::NotDone(error.to_string()),
            Err(error @ Error::OutcomeUnknown { .. }) => return Answer::Unknown(error.to_string()),
            Err(error) => return Answer::Nonsense(format!("{input:?}: {error}")),
        }
        Answer::Done(output)
    }

    fn is_native(&self) -> bool {
        true
    }
}
