//! Keys that one script or EXEC has reserved.
//!
//! A step on a draft (`exec::commands::drafted`) is in vain if others change one of its keys before
//! it ends. Beside one steady writer, a long step would never end. So after some runs in vain it
//! reserves the keys that it met: the writes of other clients to these keys wait until it has
//! ended, and the next run finds them as it has left them.
//!
//! **Invariants**
//! - V1: one client has reserved keys at a time. While it has them it waits for no write of another
//!   client, so nobody waits in a circle.
//! - V2: a reservation ends with its client's request, with its client, or when its time is over.
//! - V3: a client whose write was put off waits for that reservation only. So scripts that reserve
//!   a key in turns do not keep a writer out.

use std::collections::HashSet;
use std::time::{Duration, Instant};

/// The keys that a client has reserved, by their hashes. Two keys with one hash, or in two
/// databases, count as one: then a write waits that need not.
#[derive(Debug)]
pub(crate) struct Reserved {
    /// Its number among all reservations of the server, from 1 on.
    number: u64,
    client: u64,
    keys: HashSet<u64>,
    /// The end of its time (V2).
    until: Instant,
}

impl Reserved {
    /// Reserves more keys for `client`, for `time` since its first; `number`: of a new reservation.
    /// False: another client has reserved keys (V1).
    pub(crate) fn add(
        reserved: &mut Option<Reserved>,
        (number, client): (u64, u64),
        keys: impl Iterator<Item = u64>,
        (now, time): (Instant, Duration),
    ) -> bool {
        if reserved.as_ref().is_some_and(|it| it.until <= now) {
            *reserved = None;
        }
        let reserved = reserved.get_or_insert_with(|| Reserved {
            number,
            client,
            keys: HashSet::new(),
            until: now + time,
        });
        if reserved.client != client {
            return false;
        }
        reserved.keys.extend(keys);
        true
    }

    /// Whether `client` has reserved these keys.
    pub(crate) fn is_of(&self, client: u64) -> bool {
        self.client == client
    }

    /// `Some`: a write of `client` to these keys waits for the reservation with this number.
    /// `put_off`: that for which it waits already, or 0 (V3).
    pub(crate) fn bars(
        &self,
        (client, put_off): (u64, u64),
        mut keys: impl Iterator<Item = u64>,
        now: Instant,
    ) -> Option<u64> {
        let is_first = put_off == 0 || put_off == self.number;
        let bars = self.client != client
            && is_first
            && now < self.until
            && keys.any(|key| self.keys.contains(&key));
        bars.then_some(self.number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_client_has_reserved_keys_until_its_time_is_over() {
        let key = |n| std::iter::once(n);
        let (start, time) = (Instant::now(), Duration::from_secs(1));
        let mut all = None;
        assert!(Reserved::add(&mut all, (5, 1), key(7), (start, time)));
        assert!(Reserved::add(&mut all, (6, 1), key(8), (start, time)));
        assert!(!Reserved::add(&mut all, (6, 2), key(9), (start, time)));
        let now = all.as_ref().expect("reserved keys");
        assert!(now.is_of(1));
        assert_eq!(now.bars((2, 0), key(7), start), Some(5));
        assert_eq!(now.bars((2, 5), key(8), start), Some(5));
        assert_eq!(
            now.bars((2, 4), key(8), start),
            None,
            "it has waited for another one"
        );
        assert_eq!(now.bars((1, 0), key(7), start), None);
        assert_eq!(now.bars((2, 0), key(9), start), None);
        let later = start + time;
        assert_eq!(now.bars((2, 0), key(7), later), None);
        assert!(Reserved::add(&mut all, (6, 2), key(9), (later, time)));
        let now = all.expect("reserved keys");
        assert!(now.is_of(2) && now.bars((1, 0), key(7), later).is_none());
        assert_eq!(now.bars((1, 0), key(9), later), Some(6));
    }
}
