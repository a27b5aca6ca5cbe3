//! Decides whether a history is linearizable, key by key, with operations of unknown outcome.
//!
//! The search of Wing and Gong with the memory of Lowe: the next operation is any one that began
//! before all remaining ones have ended. Versions make it fast: an operation that was answered with
//! a version has its place among all others of the key. An operation of unknown outcome may take
//! effect at any time after it began, or never.
//!
//! Paper: [Lowe, Testing for linearizability, 2017]; differs: versions cut the search.

use super::history::{Action, Event, Found, History, UNKNOWN};
use std::collections::{BTreeMap, HashSet};
use std::fmt::Write as _;

/// Largest error of a wall clock in a run, in the terms of this check.
pub(super) const CLOCKS_US: u64 = 302_000;
/// Most steps of the search for one key; beyond it the verdict is undecided.
const STEPS_MAX: usize = 400_000;

/// The verdict on a history.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    Linearizable,
    /// With the operations of one key, as far as they can be ordered.
    Illegal(String),
    Undecided(String),
}

/// The state of a key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
struct Register {
    value: Option<u64>,
    /// The version of the object; `None` if no client was told.
    version: Option<u64>,
    /// Each later version is above it.
    floor: u64,
    /// When the object expires, by a correct clock.
    expires_us: Option<u64>,
}

impl Register {
    /// Whether a fast clock may have let it expire before this operation ended.
    fn may_be_gone(self, event: &Event) -> bool {
        let expires_us = self.expires_us;
        self.value.is_none()
            || expires_us.is_some_and(|at_us| at_us <= event.to_us.saturating_add(CLOCKS_US))
    }

    /// Whether a slow clock may have kept it until this operation began.
    fn may_be_there(self, event: &Event) -> bool {
        let expires_us = self.expires_us;
        self.value.is_some() && expires_us.is_none_or(|at_us| event.from_us < at_us + CLOCKS_US)
    }

    fn put(self, value: u64, version: Option<u64>) -> Option<Register> {
        let floor = match version {
            Some(version) if version <= self.floor => return None,
            Some(version) => version,
            None => self.floor + 1,
        };
        Some(Register {
            value: Some(value),
            version,
            floor,
            expires_us: None,
        })
    }

    fn expiring(self, expires_us: u64) -> Register {
        Register {
            expires_us: Some(expires_us),
            ..self
        }
    }

    /// This register with this version, if that contradicts nothing known.
    fn at(self, version: u64) -> Option<Register> {
        match self.version {
            Some(own) if own != version => None,
            None if version < self.floor => None,
            _ => Some(Register {
                version: Some(version),
                floor: version,
                ..self
            }),
        }
    }

    /// The state after this operation, if it can be the next one.
    fn after(self, event: &Event) -> Option<Register> {
        let absent = Register {
            value: None,
            version: None,
            floor: self.floor,
            expires_us: None,
        };
        match (event.action, event.found) {
            (Action::Read | Action::Remove, Found::Absent) => {
                self.may_be_gone(event).then_some(self)
            }
            (Action::Read, Found::Value { value, version }) => {
                (self.value == Some(value) && self.may_be_there(event)).then(|| self.at(version))?
            }
            (Action::Write(value), Found::Written { version }) => self.put(value, Some(version)),
            (Action::Write(value), Found::Nothing) => self.put(value, None),
            (Action::Fleeting { value, expires_us }, Found::Written { version }) => {
                Some(self.put(value, Some(version))?.expiring(expires_us))
            }
            // It had expired when it arrived.
            (Action::Fleeting { expires_us, .. }, Found::Absent) => {
                (expires_us <= event.to_us.saturating_add(CLOCKS_US)).then_some(absent)
            }
            // No version was given if it had expired when it arrived.
            (Action::Fleeting { value, expires_us }, Found::Nothing) => Some(Register {
                value: Some(value),
                version: None,
                expires_us: Some(expires_us),
                ..self
            }),
            (Action::Create(value), Found::Written { version }) => self
                .may_be_gone(event)
                .then(|| self.put(value, Some(version)))?,
            (Action::Create(_), Found::Refused { current }) => {
                self.may_be_there(event).then(|| self.at(current?))?
            }
            (Action::Create(value), Found::Nothing) => {
                if self.may_be_gone(event) {
                    self.put(value, None)
                } else {
                    Some(self)
                }
            }
            (Action::Remove, Found::Removed { version }) => {
                let before = self.may_be_there(event).then(|| self.at(version))?;
                let floor = before?.floor;
                Some(Register { floor, ..absent })
            }
            (Action::Remove, Found::Nothing) => Some(absent),
            (Action::Increment, Found::Value { value, version }) => {
                let next = self.value.unwrap_or(0) + 1;
                (next == value).then(|| self.put(next, Some(version)))?
            }
            (Action::Increment, Found::Nothing) => self.put(self.value.unwrap_or(0) + 1, None),
            _ => None,
        }
    }
}

/// The version in an operation's answer.
fn version_of(event: &Event) -> Option<u64> {
    match event.found {
        Found::Value { version, .. } | Found::Written { version } | Found::Removed { version } => {
            Some(version)
        }
        Found::Refused { current } => current,
        Found::Nothing | Found::Absent => None,
    }
}

/// Judges all keys.
pub fn check(history: &History) -> Verdict {
    let mut keys: BTreeMap<u64, Vec<Event>> = BTreeMap::new();
    for event in &history.events {
        if event.to_us == UNKNOWN && event.action == Action::Read {
            continue;
        }
        keys.entry(event.key).or_default().push(*event);
    }
    for (key, events) in keys {
        match Search::new(events).run() {
            Verdict::Linearizable => {}
            Verdict::Illegal(why) => return Verdict::Illegal(format!("key {key}: {why}")),
            Verdict::Undecided(why) => return Verdict::Undecided(format!("key {key}: {why}")),
        }
    }
    Verdict::Linearizable
}

#[derive(Clone, PartialEq, Eq, Hash)]
struct Place {
    /// Known operations before this one are done, and those in the mask, counted from it.
    base: usize,
    done: u128,
    /// The mask of the unknown operations that are done.
    taken: u128,
    register: Register,
}

struct Search {
    known: Vec<Event>,
    unknown: Vec<Event>,
    seen: HashSet<Place>,
    steps: usize,
    /// Most known operations that could be ordered, and the state after them.
    best: (usize, Register),
}

impl Search {
    fn new(events: Vec<Event>) -> Search {
        let (mut known, unknown): (Vec<Event>, Vec<Event>) =
            events.into_iter().partition(|event| event.to_us != UNKNOWN);
        known.sort_by_key(|event| (event.from_us, event.to_us));
        let written: HashSet<u64> = known
            .iter()
            .filter(|event| matches!(event.found, Found::Written { .. }))
            .filter_map(version_of)
            .collect();
        let mut read: HashSet<u64> = HashSet::new();
        let (mut absent, mut strange) = (false, false);
        for event in &known {
            // A key that could be created was absent, as was one that was read and not found.
            let creates = matches!(event.action, Action::Create(_));
            absent |= creates && matches!(event.found, Found::Written { .. });
            // So was a counter that began anew.
            absent |= event.action == Action::Increment
                && matches!(event.found, Found::Value { value: 1, .. });
            match event.found {
                Found::Value { value, .. } => {
                    read.insert(value);
                }
                Found::Absent => absent = true,
                Found::Removed { version }
                | Found::Refused {
                    current: Some(version),
                } => strange |= !written.contains(&version),
                _ => {}
            }
        }
        // A creation without an answer happened if its value was read.
        absent |= unknown
            .iter()
            .any(|event| matches!(event.action, Action::Create(value) if read.contains(&value)));
        // An unknown operation whose effect no answer shows need not be considered.
        let noticed = |event: &Event| match event.action {
            Action::Write(value) | Action::Create(value) => read.contains(&value) || strange,
            Action::Fleeting { value, .. } => read.contains(&value) || strange || absent,
            Action::Remove => absent,
            Action::Increment => true,
            Action::Read => false,
        };
        let mut unknown: Vec<Event> = unknown.into_iter().filter(noticed).collect();
        unknown.sort_by_key(|event| event.from_us);
        Search {
            known,
            unknown,
            seen: HashSet::new(),
            steps: 0,
            best: (0, Register::default()),
        }
    }

    fn run(mut self) -> Verdict {
        if self.unknown.len() > 128 {
            return Verdict::Undecided(format!("{} unknown operations", self.unknown.len()));
        }
        let mut stack = vec![Place {
            base: 0,
            done: 0,
            taken: 0,
            register: Register::default(),
        }];
        while let Some(place) = stack.pop() {
            if place.base == self.known.len() {
                return Verdict::Linearizable;
            }
            self.steps += 1;
            if self.steps > STEPS_MAX {
                return Verdict::Undecided(self.describe());
            }
            let count = place.base + place.done.count_ones() as usize;
            if count >= self.best.0 {
                self.best = (count, place.register);
            }
            self.next(&place, &mut stack);
        }
        Verdict::Illegal(self.describe())
    }

    /// Pushes each state that one more operation leads to, the likeliest last.
    fn next(&mut self, place: &Place, stack: &mut Vec<Place>) {
        let mut end_us = u64::MAX;
        let mut lowest = u64::MAX;
        let mut open = Vec::new();
        for (n, event) in self.known.iter().enumerate().skip(place.base) {
            let at = n - place.base;
            if at < 128 && place.done >> at & 1 == 1 {
                continue;
            }
            if let Some(version) = version_of(event) {
                lowest = lowest.min(version);
            }
            if event.from_us <= end_us && at < 128 {
                end_us = end_us.min(event.to_us);
                open.push(n);
            }
        }
        for (n, event) in self.unknown.iter().enumerate().rev() {
            let is_taken = place.taken >> n & 1 == 1;
            if is_taken || event.from_us > end_us {
                continue;
            }
            if let Some(register) = place.register.after(event) {
                let place = Place {
                    taken: place.taken | 1 << n,
                    register,
                    ..place.clone()
                };
                if self.seen.insert(place.clone()) {
                    stack.push(place);
                }
            }
        }
        for n in open.into_iter().rev() {
            let event = &self.known[n];
            let in_turn = event.from_us <= end_us
                && version_of(event).is_none_or(|version| version <= lowest);
            if let Some(register) = place.register.after(event).filter(|_| in_turn) {
                let mut place = Place {
                    done: place.done | 1 << (n - place.base),
                    register,
                    ..place.clone()
                };
                while place.done & 1 == 1 {
                    place.done >>= 1;
                    place.base += 1;
                }
                if self.seen.insert(place.clone()) {
                    stack.push(place);
                }
            }
        }
    }

    fn describe(&self) -> String {
        let mut text = format!(
            "{} of {} known operations can be put in order, then it holds {:?}\n",
            self.best.0,
            self.known.len(),
            self.best.1
        );
        let mut all: Vec<&Event> = self.known.iter().chain(&self.unknown).collect();
        all.sort_by_key(|event| event.from_us);
        for event in all {
            let to = match event.to_us {
                UNKNOWN => "?".to_owned(),
                to => to.to_string(),
            };
            let _ = writeln!(
                text,
                "  {:>10} - {to:>10} client {:>3} {:?} -> {:?}",
                event.from_us, event.client, event.action, event.found
            );
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(action: Action, found: Found, from_us: u64, to_us: u64) -> Event {
        Event {
            client: 1,
            key: 1,
            action,
            found,
            from_us,
            to_us,
        }
    }

    fn judge(events: &[Event]) -> bool {
        match check(&History {
            events: events.to_vec(),
        }) {
            Verdict::Linearizable => true,
            Verdict::Illegal(_) => false,
            Verdict::Undecided(why) => panic!("{why}"),
        }
    }

    fn written(value: u64, version: u64, from_us: u64, to_us: u64) -> Event {
        event(
            Action::Write(value),
            Found::Written { version },
            from_us,
            to_us,
        )
    }

    fn read(value: u64, version: u64, from_us: u64, to_us: u64) -> Event {
        event(
            Action::Read,
            Found::Value { value, version },
            from_us,
            to_us,
        )
    }

    #[test]
    fn what_is_in_order_is_legal_and_what_goes_back_is_not() {
        let history = [
            written(7, 1, 0, 10),
            written(8, 2, 20, 30),
            read(8, 2, 40, 50),
        ];
        assert!(judge(&history));
        assert!(
            !judge(&[history[0], history[1], read(7, 1, 40, 50)]),
            "a stale read"
        );
        assert!(
            judge(&[history[0], history[1], read(7, 1, 15, 50)]),
            "it may have come before"
        );
        assert!(
            !judge(&[written(7, 2, 0, 10), written(8, 1, 20, 30)]),
            "a version goes back"
        );
        assert!(!judge(&[
            written(7, 1, 0, 10),
            event(Action::Read, Found::Absent, 20, 30)
        ]));
        assert!(
            !judge(&[written(7, 1, 0, 10), written(8, 1, 5, 10)]),
            "a version twice"
        );
    }

    #[test]
    fn what_nobody_knows_may_have_been_or_not() {
        let lost = event(Action::Write(9), Found::Nothing, 5, UNKNOWN);
        assert!(judge(&[written(7, 1, 0, 10), lost, read(7, 1, 20, 30)]));
        assert!(judge(&[written(7, 1, 0, 10), lost, read(9, 2, 20, 30)]));
        assert!(judge(&[
            lost,
            written(7, 1, 0, 10),
            read(7, 1, 20, 30),
            read(9, 2, 40, 50)
        ]));
        let back = [lost, written(7, 3, 20, 30), read(9, 2, 40, 50)];
        assert!(!judge(&back), "its version is below");
        let early = [read(9, 2, 0, 4), lost];
        assert!(!judge(&early), "before it was asked for");
        let gone = event(Action::Remove, Found::Nothing, 5, UNKNOWN);
        let absent = event(Action::Read, Found::Absent, 20, 30);
        assert!(judge(&[written(7, 1, 0, 4), gone, absent]));
        // A history of 2026 in which no client read the key while it was gone.
        let created = event(Action::Create(8), Found::Written { version: 2 }, 20, 30);
        assert!(judge(&[written(7, 1, 0, 4), gone, created]));
        assert!(!judge(&[written(7, 1, 0, 4), created]));
        // The answer to the creation may be lost too, but not its value.
        let created = event(Action::Create(8), Found::Nothing, 20, UNKNOWN);
        assert!(judge(&[
            written(7, 1, 0, 4),
            gone,
            created,
            read(8, 2, 40, 50)
        ]));
        assert!(!judge(&[written(7, 1, 0, 4), created, read(8, 2, 40, 50)]));
        assert!(!judge(&[
            written(7, 1, 0, 4),
            gone,
            absent,
            read(7, 1, 40, 50)
        ]));
    }

    #[test]
    fn counters_count_each_increment_once() {
        let add = |value, version, from, to| {
            event(Action::Increment, Found::Value { value, version }, from, to)
        };
        let lost = event(Action::Increment, Found::Nothing, 5, UNKNOWN);
        assert!(judge(&[add(1, 1, 0, 10), add(2, 2, 11, 20)]));
        assert!(!judge(&[add(1, 1, 0, 10), add(3, 3, 11, 20)]), "twice");
        assert!(judge(&[add(1, 1, 0, 10), lost, add(3, 3, 11, 20)]));
        assert!(!judge(&[add(1, 1, 0, 10), lost, add(4, 4, 11, 20)]));
        assert!(!judge(&[add(1, 1, 0, 10), add(1, 2, 11, 20)]), "lost");
    }
}
