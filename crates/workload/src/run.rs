//! One history: clients that send random requests until the time is over, each of them one at a
//! time.

use crate::ask::{Answer, Asker};
use crate::group;
use crate::history::{Before, Clock, Input, Op, Record, When};
use duramen_base::random::Random;
use serde::Serialize;
use std::collections::HashMap;
use std::time::{Duration, Instant};

/// The plan of a history.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub(crate) name: String,
    pub(crate) registers: usize,
    pub(crate) counters: usize,
    /// Groups of keys with collections; for RESP clients.
    pub(crate) groups: usize,
    /// The longest rest between two operations of a client.
    pub(crate) rest: Duration,
    pub(crate) until: Instant,
    /// Longest time after `until` for which a client continues an operation that it has begun.
    pub(crate) grace: Duration,
    pub(crate) clock: Clock,
}

impl Plan {
    /// The keys, and behind them the names of the groups.
    pub(crate) fn keys(&self) -> Vec<String> {
        let registers = (0..self.registers).map(|n| format!("{}:r{n}", self.name));
        let counters = (0..self.counters).map(|n| format!("{}:c{n}", self.name));
        let groups = (0..self.groups).map(|n| format!("{{{}:g{n}}}", self.name));
        registers.chain(counters).chain(groups).collect()
    }

    pub(crate) fn is_group(&self, which: usize) -> bool {
        which >= self.registers + self.counters
    }
}

/// The results of the operations of one client, or of all of a kind.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct Summary {
    pub(crate) done: u64,
    pub(crate) unknown: u64,
    /// Not done before the client's deadline.
    pub(crate) not_done: u64,
    pub(crate) slowest_ms: u64,
    /// The longest time without an answer to any client of this kind.
    pub(crate) silence_ms: u64,
    /// Some reasons of unknown and failed operations.
    pub(crate) reasons: Vec<String>,
    /// Answers that make no sense. There must be none.
    pub(crate) nonsense: Vec<String>,
}

/// The reason for keys without any request.
pub(crate) const NO_TIME: &str = "no time is left";

const REASONS_KEPT: usize = 4;
const NONSENSE_KEPT: usize = 20;

impl Summary {
    pub(crate) fn add(&mut self, other: Summary) {
        self.done += other.done;
        self.unknown += other.unknown;
        self.not_done += other.not_done;
        self.slowest_ms = self.slowest_ms.max(other.slowest_ms);
        self.reasons.extend(other.reasons);
        self.reasons.truncate(REASONS_KEPT);
        self.nonsense.extend(other.nonsense);
        self.nonsense.truncate(NONSENSE_KEPT);
    }
}

/// A client of one history after the other.
pub(crate) struct Worker {
    number: usize,
    asker: Box<dyn Asker + Send>,
    random: Random,
    written: u64,
}

impl Worker {
    pub(crate) fn new(number: usize, asker: Box<dyn Asker + Send>) -> Worker {
        Worker {
            number,
            asker,
            random: Random::new(number as u64),
            written: 0,
        }
    }

    pub(crate) fn is_native(&self) -> bool {
        self.asker.is_native()
    }

    /// Takes part in a history, with at least one operation: so no history is empty after a
    /// standstill of the machine.
    pub(crate) fn run(&mut self, plan: &Plan) -> (Vec<Record>, Summary) {
        let keys = plan.keys();
        let keys = if self.asker.is_native() {
            keys[..plan.registers + plan.counters].to_vec()
        } else {
            keys
        };
        if keys.is_empty() {
            return (Vec::new(), Summary::default());
        }
        let mut versions = HashMap::new();
        let mut states: HashMap<String, String> = HashMap::new();
        let mut records = Vec::new();
        let mut summary = Summary::default();
        loop {
            let which = self.random.index(keys.len());
            let key = &keys[which];
            let input = if plan.is_group(which) {
                let state = states.get(key).map_or("", String::as_str);
                self.of_group(state)
            } else if which < plan.registers {
                let version = versions.get(key).copied();
                self.of_register(version.unwrap_or(0))
            } else {
                self.of_counter()
            };
            let record = self.one(key, input, plan, &mut summary);
            if let Some(record) = record {
                let version = record.out.as_ref().map_or(0, |out| out.version);
                if version > 0 {
                    versions.insert(key.clone(), version);
                }
                let replies = record.out.as_ref().and_then(|out| out.replies.as_ref());
                let state = replies.and_then(|replies| group::state_after(&record.input, replies));
                if let Some(state) = state {
                    states.insert(key.clone(), state);
                }
                records.push(record);
            }
            let rest = self.random.index(plan.rest.as_micros() as usize + 1);
            std::thread::sleep(Duration::from_micros(rest as u64));
            if Instant::now() >= plan.until {
                return (records, summary);
            }
        }
    }

    fn one(
        &mut self,
        key: &str,
        input: Input,
        plan: &Plan,
        summary: &mut Summary,
    ) -> Option<Record> {
        let call = plan.clock.now();
        let answer = self.asker.ask(key, &input, plan.until + plan.grace);
        let end = plan.clock.now();
        summary.slowest_ms = summary.slowest_ms.max((end - call) / 1_000_000);
        let mut record = Record {
            client: self.number,
            key: key.to_owned(),
            input,
            call,
            end: None,
            out: None,
        };
        match answer {
            Answer::Done(output) => {
                summary.done += 1;
                record.end = Some(end);
                record.out = Some(output);
            }
            Answer::NotDone(reason) => {
                summary.not_done += 1;
                summary.reasons.push(reason);
                summary.reasons.truncate(REASONS_KEPT);
                return None;
            }
            Answer::Unknown(reason) => {
                summary.unknown += 1;
                summary.reasons.push(reason);
                summary.reasons.truncate(REASONS_KEPT);
            }
            Answer::Nonsense(text) => {
                summary.nonsense.push(text);
                summary.nonsense.truncate(NONSENSE_KEPT);
            }
        }
        Some(record)
    }

    /// `version`: the newest that this client saw of the key; 0: none.
    fn of_register(&mut self, version: u64) -> Input {
        self.written += 1;
        let mut input = Input::write(format!("{}-{}", self.number, self.written));
        match self.random.index(100) {
            0..45 => return Input::new(Op::Read),
            45..52 => return Input::new(Op::Remove),
            52..60 => input.condition = Some(When::Absent),
            60..65 => input.condition = Some(When::Present),
            65..80 if self.asker.is_native() && version > 0 => {
                input.condition = Some(When::Version);
                input.version = version;
            }
            65..80 if self.asker.is_native() => {}
            65..75 => input.before = Before::Reply,
            75..80 => input.before = Before::Transaction,
            _ => {}
        }
        input
    }

    fn of_counter(&mut self) -> Input {
        match self.random.index(100) {
            0..30 => Input::new(Op::Read),
            30..33 => Input::new(Op::Remove),
            _ => Input {
                by: 1 + self.random.index(3) as i64,
                ..Input::new(Op::Increment)
            },
        }
    }

    fn of_group(&mut self, state: &str) -> Input {
        self.written += 1;
        let text = format!("{}-{}", self.number, self.written);
        group::draw(&mut self.random, self.number, &text, state)
    }

    /// Reads a key or a group until a server answers, or until the deadline.
    pub(crate) fn read(
        &mut self,
        key: &str,
        is_group: bool,
        clock: Clock,
        deadline: Instant,
    ) -> Result<Record, String> {
        let input = if is_group {
            group::read()
        } else {
            Input::new(Op::Read)
        };
        let mut last = NO_TIME.to_owned();
        while Instant::now() < deadline {
            let call = clock.now();
            last = match self.asker.ask(key, &input, deadline) {
                Answer::Done(output) => {
                    return Ok(Record {
                        client: self.number,
                        key: key.to_owned(),
                        input,
                        call,
                        end: Some(clock.now()),
                        out: Some(output),
                    });
                }
                Answer::Nonsense(text) => return Err(text),
                Answer::Unknown(reason) | Answer::NotDone(reason) => reason,
            };
        }
        Err(format!("{key} can't be read: {last}"))
    }
}
