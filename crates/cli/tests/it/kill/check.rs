//! The clients' record of the data, and its comparison with the server.
//!
//! Each key has one writer, so its possible states are a sequence: the last one that was
//! acknowledged, or shown to a reader, and those of the later in-flight requests. After a crash it
//! must be one of these.

use super::series::Series;
use super::server::Server;
use super::wire::Wire;
use duramen_wire::resp::Reply;
use std::collections::HashMap;
use std::fmt;

/// A value, or none.
pub(crate) type State = Option<Vec<u8>>;

/// One key.
#[derive(Debug, Default)]
pub(crate) struct Known {
    /// The acknowledged state.
    pub(crate) sure: State,
    /// Possible later states, in order.
    pub(crate) maybe: Vec<State>,
    /// Further possible states: those before `sure`, acknowledged at level `memory` only.
    pub(crate) loose: Vec<State>,
}

impl Known {
    /// The state after all sent requests.
    pub(crate) fn newest(&self) -> &State {
        self.maybe.last().unwrap_or(&self.sure)
    }

    /// The oldest in-flight request was acknowledged.
    pub(crate) fn acknowledge(&mut self, lasting: bool) {
        let state = self.maybe.remove(0);
        let before = std::mem::replace(&mut self.sure, state);
        if lasting {
            self.loose.clear();
        } else {
            self.loose.push(before);
        }
    }
}

/// The record of one writer, which alone writes its keys.
#[derive(Debug, Default)]
pub(crate) struct Writer {
    pub(crate) keys: HashMap<String, Known>,
    /// Keys that are always written together, with the same value, in one transaction.
    pub(crate) group: Known,
    /// Collections that always change together.
    pub(crate) series: Series,
    /// The highest value of this writer's public number that the reader saw.
    pub(crate) shown: u64,
}

/// A counter that all writers add to.
#[derive(Debug, Default)]
pub(crate) struct Counter {
    pub(crate) acknowledged: i64,
    pub(crate) maybe: i64,
    /// The highest value that any client saw.
    pub(crate) shown: i64,
}

pub(crate) struct Model {
    pub(crate) writers: Vec<Writer>,
    pub(crate) counter: Counter,
}

/// Keys of a group.
pub(crate) const GROUP: usize = 5;

pub(crate) fn group_key(writer: usize, n: usize) -> String {
    format!("group:{writer}:{n}")
}

pub(crate) const COUNTER: &str = "counter";

impl Model {
    pub(crate) fn new(writers: usize) -> Model {
        Model {
            writers: (0..writers).map(|_| Writer::default()).collect(),
            counter: Counter::default(),
        }
    }

    /// Compares everything, and records the present state. Returns the differences.
    pub(crate) fn check(&mut self, server: &Server, totals: &mut Totals) -> Vec<String> {
        let mut wire = Wire::connect(server.port).expect("a fresh server takes connections");
        let mut wrong = Vec::new();
        for (number, writer) in self.writers.iter_mut().enumerate() {
            check_keys(&mut wire, writer, &mut wrong, totals);
            check_group(&mut wire, number, writer, &mut wrong, totals);
            writer.series.check(number, &mut wire, &mut wrong, totals);
            let public = get(&mut wire, &public_key(number));
            let public = public.map_or(0, |value| number_in(&value));
            if public < writer.shown {
                wrong.push(format!(
                    "{}: a reader was shown {}, now it is {public}",
                    public_key(number),
                    writer.shown
                ));
            }
            writer.shown = public;
        }
        self.check_counter(&mut wire, &mut wrong);
        wrong
    }

    fn check_counter(&mut self, wire: &mut Wire, wrong: &mut Vec<String>) {
        let counter = &mut self.counter;
        let found = get(wire, COUNTER).map_or(0, |value| number_in(&value) as i64);
        let least = counter.acknowledged.max(counter.shown);
        let most = counter.acknowledged + counter.maybe;
        if found < least || found > most {
            wrong.push(format!("{COUNTER}: {found}, and not {least} to {most}"));
        }
        *counter = Counter {
            acknowledged: found,
            maybe: 0,
            shown: found,
        };
    }
}

pub(crate) fn public_key(writer: usize) -> String {
    format!("public:{writer}")
}

/// Values begin with a number; padding follows.
pub(crate) fn number_in(value: &[u8]) -> u64 {
    let digits = value.iter().take_while(|byte| byte.is_ascii_digit());
    digits.fold(0, |number, digit| number * 10 + u64::from(digit - b'0'))
}

fn get(wire: &mut Wire, key: &str) -> State {
    match wire.ask(&[b"GET", key.as_bytes()]) {
        Ok(Reply::Bulk(value)) => Some(value),
        Ok(Reply::Null) => None,
        other => panic!("GET {key}: {other:?}"),
    }
}

fn check_keys(wire: &mut Wire, writer: &mut Writer, wrong: &mut Vec<String>, totals: &mut Totals) {
    for key in writer.keys.keys() {
        wire.request(&[b"GET", key.as_bytes()]);
    }
    wire.flush().expect("a fresh server takes requests");
    for (key, known) in &mut writer.keys {
        let found = match wire.reply() {
            Ok(Reply::Bulk(value)) => Some(value),
            Ok(Reply::Null) => None,
            other => panic!("GET {key}: {other:?}"),
        };
        check_one(key, known, &found, wrong);
        totals.checked_keys += 1;
        *known = Known {
            sure: found,
            ..Known::default()
        };
    }
}

fn check_one(key: &str, known: &Known, found: &State, wrong: &mut Vec<String>) {
    let mut possible = known.loose.iter().chain([&known.sure]).chain(&known.maybe);
    if !possible.any(|state| state == found) {
        let show = |state: &State| {
            state.as_ref().map_or("nothing".to_owned(), |value| {
                format!("{}… ({} bytes)", number_in(value), value.len())
            })
        };
        let maybe: Vec<String> = known.maybe.iter().map(show).collect();
        wrong.push(format!(
            "{key}: {}, and neither {} nor one of {maybe:?} ({} loose)",
            show(found),
            show(&known.sure),
            known.loose.len()
        ));
    }
}

/// All or nothing: every key of the group has the same value.
fn check_group(
    wire: &mut Wire,
    number: usize,
    writer: &mut Writer,
    wrong: &mut Vec<String>,
    totals: &mut Totals,
) {
    let states: Vec<State> = (0..GROUP)
        .map(|n| get(wire, &group_key(number, n)))
        .collect();
    if states.iter().any(|state| *state != states[0]) {
        let numbers: Vec<_> = states
            .iter()
            .map(|state| state.as_deref().map(number_in))
            .collect();
        wrong.push(format!("group {number} is torn: {numbers:?}"));
    }
    check_one(&format!("group {number}"), &writer.group, &states[0], wrong);
    totals.checked_keys += GROUP as u64;
    writer.group = Known {
        sure: states[0].clone(),
        ..Known::default()
    };
}

/// Activity of a run.
#[derive(Debug, Default)]
pub(crate) struct Totals {
    pub(crate) acknowledged: u64,
    /// Sent, and not answered before the server died.
    pub(crate) unanswered: u64,
    pub(crate) checked_keys: u64,
    pub(crate) clean_stops: u64,
    pub(crate) restarts_ms: Vec<u64>,
}

impl Totals {
    pub(crate) fn add(&mut self, other: &Totals) {
        self.acknowledged += other.acknowledged;
        self.unanswered += other.unanswered;
        self.checked_keys += other.checked_keys;
        self.clean_stops += other.clean_stops;
        self.restarts_ms.extend(&other.restarts_ms);
    }
}

impl fmt::Display for Totals {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut restarts = self.restarts_ms.clone();
        restarts.sort_unstable();
        let median = restarts.get(restarts.len() / 2).copied().unwrap_or(0);
        write!(
            f,
            "{} writes acknowledged, {} unanswered, {} keys checked, {} clean stops, restart {median} ms (median), {} ms at most",
            self.acknowledged,
            self.unanswered,
            self.checked_keys,
            self.clean_stops,
            restarts.last().copied().unwrap_or(0)
        )
    }
}
