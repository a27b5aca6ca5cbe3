//! The failure detector: a server pings a random other one at each interval.
//!
//! With n servers each one is pinged about once per interval, for any n, and no server needs the
//! state of all. A suspicion is no verdict: the coordinator asks the suspect itself.
//!
//! **Invariants**
//! - F1: a server is suspected if it does not answer within the timeout, or its connection is
//!   refused or reset.
//! - F2: time in which this process stood still does not count: it is added to the deadlines of
//!   pings in flight.
//! - F3: the timeout follows the answer times, also those that came too late, and the delays of
//!   this process: it is at least the configured one, and at most ten times that.
//! - F4: a server whose list stays behind those of others, or that has no others in its list, asks
//!   the coordinator: it may have been declared crashed while it was unreachable, and dead servers
//!   are told nothing.
//!
//! Paper: [Ousterhout15 §7.2]; differs: a refused connection is noticed at once, and the timeout
//! adapts.

use crate::membership::Members;
use duramen_base::ids::{ListVersion, ServerId};
use duramen_base::random::Random;
use std::collections::BTreeMap;

/// The timeout is never more than this many times the configured one (F3).
const TIMEOUT_FACTOR_MAX: u64 = 10;

/// A list may be behind for this long before the coordinator is asked: usually the update is in
/// flight.
const BEHIND_US: u64 = 1_000_000;

/// An action of the detector.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Act {
    /// Ping this server; its answer has the nonce.
    Ping { to: ServerId, nonce: u64 },
    /// Report this server to the coordinator.
    Suspect(ServerId),
}

struct Pinged {
    to: ServerId,
    sent_us: u64,
    deadline_us: u64,
    /// Whether the server is suspected. Its answer is still measured.
    is_late: bool,
}

/// The failure detector; see the module.
pub struct Detector {
    me: ServerId,
    interval_us: u64,
    timeout_us: u64,
    random: Random,
    others: Vec<ServerId>,
    under_way: BTreeMap<u64, Pinged>,
    next_us: u64,
    /// Round trips: smoothed, and their mean deviation (as in TCP).
    smoothed_us: u64,
    deviation_us: u64,
    /// The longest delay of this process; old ones count less.
    own_us: u64,
    version: ListVersion,
    behind_since_us: Option<u64>,
}

impl Detector {
    /// The detector of server `me`; times as in `ClusterSettings`.
    pub fn new(
        me: ServerId,
        interval_ms: u32,
        timeout_ms: u32,
        seed: u64,
        now_us: u64,
    ) -> Detector {
        let interval_us = u64::from(interval_ms).max(1) * 1000;
        Detector {
            me,
            interval_us,
            timeout_us: u64::from(timeout_ms).max(1) * 1000,
            random: Random::new(seed ^ me.number()),
            others: Vec::new(),
            under_way: BTreeMap::new(),
            next_us: now_us + interval_us,
            smoothed_us: 0,
            deviation_us: 0,
            own_us: 0,
            version: ListVersion(0),
            behind_since_us: None,
        }
    }

    /// The members changed.
    pub fn set_members(&mut self, members: &Members) {
        let me = self.me;
        self.version = members.version();
        self.behind_since_us = None;
        self.others.clear();
        let others = members.up().map(|entry| entry.server);
        self.others.extend(others.filter(|id| *id != me));
        self.under_way.retain(|_, asked| members.is_up(asked.to));
    }

    /// When [`tick`](Self::tick) is due.
    pub fn due_us(&self) -> u64 {
        let waiting = self.under_way.values().filter(|asked| !asked.is_late);
        let deadlines = waiting.map(|asked| asked.deadline_us);
        deadlines.min().unwrap_or(u64::MAX).min(self.next_us)
    }

    /// Handles the time.
    pub fn tick(&mut self, now_us: u64) -> Vec<Act> {
        let late_us = now_us.saturating_sub(self.due_us());
        self.own_us = late_us.max(self.own_us - self.own_us / 8);
        if late_us > self.timeout_us {
            for asked in self.under_way.values_mut() {
                asked.deadline_us += late_us + self.timeout_us; // F2
            }
        }
        let mut acts = Vec::new();
        let forget_us = self.timeout_us * TIMEOUT_FACTOR_MAX;
        self.under_way.retain(|_, asked| {
            if asked.deadline_us <= now_us && !std::mem::replace(&mut asked.is_late, true) {
                acts.push(Act::Suspect(asked.to)); // F1
            }
            !asked.is_late || now_us < asked.sent_us + forget_us
        });
        if self.next_us <= now_us {
            self.next_us = now_us + self.interval_us;
            if let Some(to) = self.random.pick(&self.others).copied() {
                let nonce = self.random.next_u64();
                let asked = Pinged {
                    to,
                    sent_us: now_us,
                    deadline_us: now_us + self.patience_us(),
                    is_late: false,
                };
                self.under_way.insert(nonce, asked);
                acts.push(Act::Ping { to, nonce });
            }
        }
        acts
    }

    /// Timeout of an answer, in microseconds (F3).
    pub fn patience_us(&self) -> u64 {
        let adapted_us = self.smoothed_us + 4 * self.deviation_us + 4 * self.own_us;
        adapted_us.clamp(self.timeout_us, self.timeout_us * TIMEOUT_FACTOR_MAX)
    }

    /// A server answered.
    pub fn pong(&mut self, now_us: u64, nonce: u64) {
        let Some(asked) = self.under_way.remove(&nonce) else {
            return;
        };
        let took_us = now_us.saturating_sub(asked.sent_us);
        let off_us = took_us.abs_diff(self.smoothed_us);
        self.deviation_us = (3 * self.deviation_us + off_us) / 4;
        self.smoothed_us = (7 * self.smoothed_us + took_us) / 8;
    }

    /// Another server has this version of the list. Returns whether to send the coordinator a
    /// `Confirm`: if it refuses that, this server is not a member any more (F4).
    pub fn heard(&mut self, now_us: u64, version: ListVersion) -> bool {
        if version <= self.version {
            return false;
        }
        let since_us = *self.behind_since_us.get_or_insert(now_us);
        let is_long = now_us.saturating_sub(since_us) >= BEHIND_US;
        if is_long {
            self.behind_since_us = None;
        }
        is_long
    }

    /// Whether no other server is UP according to this server's list. A lone server, too, sends a
    /// `Confirm` from time to time, which tells whether it still is a member (F4).
    pub fn is_alone(&self) -> bool {
        self.others.is_empty()
    }

    /// A connection to a server was refused or reset, whatever its purpose (F1).
    pub fn unreachable(&mut self, server: ServerId) -> Option<Act> {
        self.under_way.retain(|_, asked| asked.to != server);
        self.others
            .contains(&server)
            .then_some(Act::Suspect(server))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use duramen_wire::native::message::{
        Addresses, Roles, ServerEntry, ServerList, ServerListUpdate, ServerStatus,
    };

    const ME: ServerId = ServerId::new(0, 1);

    fn members(count: u32) -> Members {
        let servers = (0..count).map(|slot| ServerEntry {
            server: ServerId::new(slot, 1),
            addresses: Addresses::default(),
            rack: None,
            roles: Roles {
                master: true,
                backup: true,
            },
            disk: u64::from(slot),
            read_bytes_per_s: 0,
            status: ServerStatus::Up,
            draining: false,
            unused: None,
        });
        let mut members = Members::new();
        members.apply(&ServerListUpdate::Full(
            ServerList {
                version: ListVersion(1),
                servers: servers.collect(),
            }
            .into(),
        ));
        members
    }

    fn detector(count: u32) -> Detector {
        let mut detector = Detector::new(ME, 100, 50, 7, 0);
        detector.set_members(&members(count));
        detector
    }

    /// Runs until a time; each answer takes `took_us`. Returns the suspects.
    fn run(detector: &mut Detector, until_us: u64, took_us: impl Fn(u64) -> u64) -> Vec<ServerId> {
        let mut suspects = Vec::new();
        let mut answers: BTreeMap<u64, u64> = BTreeMap::new();
        loop {
            let answer = answers.first_key_value().map(|(at, nonce)| (*at, *nonce));
            let at_us = answer.map_or(u64::MAX, |(at, _)| at).min(detector.due_us());
            let rest_us = if answers.is_empty() { 0 } else { 1_000_000 };
            if at_us > until_us + rest_us {
                return suspects; // nothing is left unanswered
            }
            match answer {
                Some((at, nonce)) if at == at_us => {
                    answers.remove(&at);
                    detector.pong(at, nonce);
                }
                _ => {
                    for act in detector.tick(at_us) {
                        match act {
                            Act::Ping { nonce, .. } => {
                                answers.insert(at_us + took_us(at_us), nonce);
                            }
                            Act::Suspect(server) => suspects.push(server),
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn every_other_server_is_asked_and_silence_is_a_suspicion() {
        let mut detector = detector(4);
        let mut asked = std::collections::BTreeSet::new();
        let mut suspects = Vec::new();
        for _ in 0..200 {
            for act in detector.tick(detector.due_us()) {
                match act {
                    Act::Ping { to, .. } => asked.insert(to),
                    Act::Suspect(server) => {
                        suspects.push(server);
                        true
                    }
                };
            }
        }
        assert_eq!(asked.len(), 3, "{asked:?}");
        assert!(!asked.contains(&ME));
        assert!(suspects.len() > 50 && suspects.iter().all(|s| asked.contains(s)));
    }

    #[test]
    fn answers_in_time_suspect_nobody_and_slow_ones_are_learned() {
        let mut detector = detector(3);
        assert_eq!(run(&mut detector, 10_000_000, |_| 2_000), []);
        assert_eq!(detector.patience_us(), 50_000);
        // A machine under load: answers become slower, and stay so. No server is suspected, as the
        // timeout follows.
        let slower = |at_us: u64| ((at_us - 10_000_000) / 50).min(120_000);
        assert_eq!(run(&mut detector, 40_000_000, slower), []);
        assert!(detector.patience_us() > 120_000);
        // Answers that always take longer than ten timeouts.
        assert!(!run(&mut detector, 60_000_000, |_| 600_000).is_empty());
        assert!(detector.patience_us() <= 500_000);
    }

    /// An answer after the timeout was never measured, so the next ones were suspicions as well.
    #[test]
    fn late_answers_are_learned_too() {
        let mut detector = detector(3);
        assert_eq!(run(&mut detector, 10_000_000, |_| 2_000), []);
        let suspects = run(&mut detector, 20_000_000, |_| 120_000);
        assert!(suspects.len() < 5, "{suspects:?}");
        assert!(detector.patience_us() > 120_000);
    }

    #[test]
    fn delays_of_this_process_make_it_patient_for_a_while() {
        let mut detector = detector(3);
        let mut now_us = 0;
        let mut after = |late_us, ticks: u32| {
            for _ in 0..ticks {
                now_us = detector.due_us() + late_us;
                for act in detector.tick(now_us) {
                    if let Act::Ping { nonce, .. } = act {
                        detector.pong(now_us, nonce);
                    }
                }
            }
            detector.patience_us()
        };
        assert_eq!(after(1_000, 5), 50_000);
        assert_eq!(after(30_000, 1), 120_000);
        assert_eq!(after(0, 20), 50_000);
    }

    #[test]
    fn a_pause_of_this_process_suspects_nobody() {
        let mut detector = detector(2);
        let acts = detector.tick(100_000);
        let [Act::Ping { nonce, .. }] = acts[..] else {
            panic!("{acts:?}");
        };
        // It stood still for a second: the answer is there, but was not read yet (F2).
        let acts = detector.tick(1_100_000);
        assert!(matches!(acts[..], [Act::Ping { .. }]), "{acts:?}");
        detector.pong(1_100_001, nonce);
    }

    #[test]
    fn a_refused_connection_is_a_suspicion_at_once_of_members_only() {
        let mut detector = detector(2);
        let other = ServerId::new(1, 1);
        assert_eq!(detector.unreachable(other), Some(Act::Suspect(other)));
        assert_eq!(detector.unreachable(ServerId::new(9, 1)), None);
        assert_eq!(detector.unreachable(ME), None);
        assert!(!detector.is_alone());
        detector.set_members(&members(1));
        assert!(detector.is_alone());
    }

    #[test]
    fn a_list_that_stays_behind_is_asked_for() {
        let mut detector = detector(2);
        assert!(!detector.heard(0, ListVersion(1)));
        assert!(!detector.heard(0, ListVersion(2)));
        assert!(!detector.heard(900_000, ListVersion(2)));
        assert!(detector.heard(1_000_000, ListVersion(3)));
        assert!(
            !detector.heard(1_000_001, ListVersion(3)),
            "not at once again"
        );
        detector.set_members(&members(2));
        assert!(
            !detector.heard(9_000_000, ListVersion(3)),
            "it has just got one"
        );
    }
}
