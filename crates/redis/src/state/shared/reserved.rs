//! Keys that one script or EXEC has reserved, and the line of steps that will reserve theirs next.
//!
//! A step on a draft (`command::drafted`) is in vain if others change one of its keys before
//! it ends. Beside one steady writer, a long step would never end. So after some runs in vain it
//! reserves the keys that it met: the writes of other clients to these keys wait until it has
//! ended, and the next run finds them as it has left them. Steps that compete for keys would still
//! run for nothing most of the time, so they do not run while another one has them: they stand in
//! line, and run one after the other. A step in line runs only when it is the first.
//!
//! **Invariants**
//! - V1: one client has reserved keys at a time. While it has them it waits for no write of another
//!   client, so nobody waits in a circle.
//! - V2: a reservation ends with its client's request, with its client, or when its time is over.
//!   Its time is over when the request was not shown for [`SHOWN_WITHIN`], and after the time that
//!   its owner gave.
//! - V3: a client whose write was put off waits for that reservation only. So scripts that reserve
//!   a key in turns do not keep a writer out. A step on a draft has no such right: with each of its
//!   runs the step would break the reservations of others.
//! - V4: steps get their reservations in the order in which they came to the line, each at the
//!   moment at which the one before it ends.

use std::collections::{HashMap, HashSet, VecDeque};
use std::time::{Duration, Instant};

/// A reservation whose request is not shown for this long ends (V2). A request is shown in each
/// round of its thread. A step that is not cut into slices takes some 100 ms, and several times as
/// long if the machine is busy.
const SHOWN_WITHIN: Duration = Duration::from_secs(2);

/// The keys of a step, by their hashes. Two keys with one hash, or in two databases, count as one:
/// a write may then wait without need.
#[derive(Debug)]
struct Step {
    keys: HashSet<u64>,
    /// The maximum time of its reservation.
    most: Duration,
}

/// All reservations: that of the first step in line, and those to come.
#[derive(Debug, Default)]
pub(crate) struct Reservations {
    /// The clients in line. The first has its keys reserved.
    line: VecDeque<u64>,
    /// The step of each client in line. The line may have thousands of clients, each of which is
    /// shown in each round. So the line is not searched for a client: writers need the same lock.
    steps: HashMap<u64, Step>,
    /// The number of the first step's reservation, counted for the whole server from 1 on.
    number: u64,
    /// The end of the reservation if its request is not shown again, and its latest end (V2).
    ends: Option<(Instant, Instant)>,
}

impl Reservations {
    /// Whether a client has reserved keys.
    pub(crate) fn is_any(&self) -> bool {
        !self.line.is_empty()
    }

    /// Reserves more keys for `client`, for `most` at most, or puts it in line. Must be called each
    /// time that its request is shown. Returns false if another client has reserved keys (V1).
    pub(crate) fn add(
        &mut self,
        client: u64,
        keys: impl Iterator<Item = u64>,
        (now, most): (Instant, Duration),
    ) -> bool {
        self.end_old(now);
        match self.steps.get_mut(&client) {
            Some(step) => step.keys.extend(keys),
            None => {
                let keys = keys.collect();
                self.steps.insert(client, Step { keys, most });
                self.line.push_back(client);
                if self.line.len() == 1 {
                    self.begin(now);
                }
            }
        }
        self.keep(client, now)
    }

    /// As [`add`](Self::add), for a step whose keys the line has; `None` if the step is not in
    /// line.
    pub(crate) fn show(&mut self, client: u64, now: Instant) -> Option<bool> {
        self.end_old(now);
        let is_in_line = self.steps.contains_key(&client);
        is_in_line.then(|| self.keep(client, now))
    }

    /// Notes that the request of a client in line is shown (V2). Returns whether the client has its
    /// keys reserved.
    fn keep(&mut self, client: u64, now: Instant) -> bool {
        let is_first = self.is_of(client);
        if let Some((until, _)) = self.ends.as_mut().filter(|_| is_first) {
            *until = now + SHOWN_WITHIN;
        }
        is_first
    }

    /// Ends the reservation of a client, or its place in the line.
    pub(crate) fn remove(&mut self, client: u64, now: Instant) {
        if self.steps.remove(&client).is_none() {
            return;
        }
        match self.is_of(client) {
            true => {
                self.line.pop_front();
                self.begin(now);
            }
            false => self.line.retain(|other| *other != client),
        }
    }

    /// Whether `client` has reserved its keys.
    pub(crate) fn is_of(&self, client: u64) -> bool {
        self.line.front() == Some(&client)
    }

    /// The client that has its keys reserved, and its step.
    fn first(&self) -> Option<(u64, &Step)> {
        let client = self.line.front()?;
        Some((*client, self.steps.get(client)?))
    }

    /// Returns the number of the reservation for which a write of `client` to these keys waits.
    /// `put_off`: the number of the one for which it waits already, or 0 (V3).
    pub(crate) fn bars(
        &mut self,
        (client, put_off): (u64, u64),
        keys: impl Iterator<Item = u64>,
        now: Instant,
    ) -> Option<u64> {
        self.end_old(now);
        let is_first = put_off == 0 || put_off == self.number;
        (is_first && self.stops(client, keys, now)).then_some(self.number)
    }

    /// Whether the reservation with this number has not ended yet.
    pub(crate) fn lasts(&mut self, number: u64, now: Instant) -> bool {
        self.end_old(now);
        self.is_any() && self.number == number
    }

    /// Whether a step of `client` that uses these keys would run in vain now.
    pub(crate) fn stops(
        &mut self,
        client: u64,
        mut keys: impl Iterator<Item = u64>,
        now: Instant,
    ) -> bool {
        self.end_old(now);
        let first = self.first().filter(|(first, _)| *first != client);
        first.is_some_and(|(_, step)| keys.any(|key| step.keys.contains(&key)))
    }

    /// Ends a reservation whose time is over (V2).
    fn end_old(&mut self, now: Instant) {
        let ends = self.ends.map(|(until, at_last)| until.min(at_last));
        if ends.is_some_and(|ends| ends <= now) {
            if let Some(client) = self.line.pop_front() {
                self.steps.remove(&client);
            }
            self.begin(now);
        }
    }

    /// Begins the reservation of the first step in line (V4).
    fn begin(&mut self, now: Instant) {
        self.number += 1;
        let first = self.first();
        self.ends = first.map(|(_, step)| (now + SHOWN_WITHIN, now + step.most));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(n: u64) -> std::iter::Once<u64> {
        std::iter::once(n)
    }

    #[test]
    fn one_client_has_reserved_keys_until_its_time_is_over() {
        let (start, time) = (Instant::now(), Duration::from_millis(10));
        let mut all = Reservations::default();
        assert!(all.add(1, key(7), (start, time)));
        assert!(all.add(1, key(8), (start, time)));
        assert!(!all.add(2, key(9), (start, time)));
        assert!(all.is_of(1));
        assert_eq!(all.bars((2, 0), key(7), start), Some(1));
        assert_eq!(all.bars((3, 1), key(8), start), Some(1));
        let waited_for_another = all.bars((3, 5), key(8), start);
        assert_eq!(waited_for_another, None);
        assert!(all.lasts(1, start) && !all.lasts(2, start));
        assert!(all.stops(3, key(8), start), "a step has no such right");
        assert_eq!(all.bars((1, 0), key(7), start), None);
        assert_eq!(all.bars((3, 0), key(9), start), None);
        let later = start + time;
        // It has waited for the first one, whose end nobody has seen before it (V3).
        assert_eq!(all.bars((3, 1), key(9), later), None);
        assert_eq!(all.bars((3, 0), key(7), later), None);
        assert!(!all.lasts(1, later) && all.lasts(2, later));
        assert!(all.is_of(2) && !all.stops(2, key(7), later));
        assert_eq!(all.bars((1, 0), key(9), later), Some(2));
    }

    #[test]
    fn a_reservation_lasts_while_its_request_is_shown_and_not_for_ever() {
        let most = Duration::from_secs(8);
        let start = Instant::now();
        let at = |ms: u64| start + Duration::from_millis(ms);
        let mut all = Reservations::default();
        assert!(all.add(1, key(7), (start, most)));
        assert!(all.add(1, key(7), (at(1600), most)));
        assert!(all.stops(2, key(7), at(3200)));
        assert!(!all.stops(2, key(7), at(3600)), "it is not shown");
        assert!(all.add(1, key(7), (at(4000), most)));
        assert!((1..20).all(|n| all.add(1, key(7), (at(4000 + 400 * n), most))));
        assert!(!all.stops(2, key(7), at(12_000)), "it has had its time");
    }

    /// Each showing sent all its keys again, under the lock that all threads take.
    #[test]
    fn a_step_in_line_is_shown_without_its_keys() {
        let most = Duration::from_secs(8);
        let start = Instant::now();
        let at = |ms: u64| start + Duration::from_millis(ms);
        let mut all = Reservations::default();
        assert_eq!(all.show(1, start), None);
        assert!(all.add(1, key(7), (start, most)));
        assert!(!all.add(2, key(8), (start, most)));
        assert_eq!(all.show(1, at(1600)), Some(true));
        assert_eq!(all.show(2, at(1600)), Some(false));
        assert_eq!(all.steps[&2].keys.len(), 1);
        assert!(all.stops(3, key(7), at(3200)), "it was shown");
        assert_eq!(all.show(1, at(3700)), None, "it was not shown");
        assert_eq!(all.show(2, at(3700)), Some(true));
        assert!(all.stops(3, key(8), at(3700)));
    }

    #[test]
    fn the_line_moves_on_in_the_order_of_arrival() {
        let (start, time) = (Instant::now(), Duration::from_secs(1));
        let mut all = Reservations::default();
        for client in 1..=5 {
            assert_eq!(all.add(client, key(7), (start, time)), client == 1);
        }
        assert!(!all.add(2, key(8), (start, time)), "it keeps its place");
        // One that leaves the line does not stop it; keys of others do not stop a step.
        all.remove(3, start);
        for client in [1, 2, 4, 5] {
            assert!(all.is_of(client));
            assert!(!all.stops(client, key(7), start));
            assert!(all.stops(6, key(7), start) && !all.stops(6, key(9), start));
            all.remove(client, start);
        }
        assert!(!all.is_any() && !all.stops(6, key(7), start));
        assert!((0..20).all(|number| !all.lasts(number, start)));
    }

    /// Each client in line was searched for in the line, and the line was moved when its first one
    /// left: thousands of clients with scripts on one key held the lock nearly all the time.
    #[test]
    fn a_long_line_is_not_searched_for_each_client() {
        let (start, time) = (Instant::now(), Duration::from_secs(600));
        let mut all = Reservations::default();
        let clients = 1..=50_000;
        for client in clients.clone() {
            assert_eq!(all.add(client, key(7), (start, time)), client == 1);
        }
        for client in clients.clone() {
            assert_eq!(all.show(client, start), Some(client == 1));
        }
        for client in clients {
            assert!(all.is_of(client));
            all.remove(client, start);
        }
        assert!(!all.is_any() && all.steps.is_empty());
        let took = start.elapsed();
        assert!(took < Duration::from_secs(2), "{took:?}");
    }
}
