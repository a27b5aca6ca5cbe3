//! How long the requests of a client wait for what others must do first: for a server of the
//! cluster to serve their keys, and for the end of reservations of their keys.

use crate::state::shared::CommandState;
use duramen_config::clock;
use duramen_engine::KeyHash;

/// How long a request waits until a server serves its keys, in milliseconds: shorter than the
/// timeouts of client libraries.
const PATIENCE_MS: u64 = 1_000;
/// A waiting request is checked again after this time, in milliseconds, unless a new view wakes it.
pub const AGAIN_MS: u64 = 2;
/// Maximum keys of writes in flight that wait for reservations. Above it the oldest write loses its
/// right (reserved::V3).
const KEYS_PUT_OFF_MAX: usize = 64;

/// See the head of this file.
#[derive(Default)]
pub struct Patience {
    /// The time, in milliseconds of the server's clock, until which its next request waits for a
    /// server that serves its keys; 0 if the request does not wait for one.
    unserved_until_ms: u64,
    /// The number of the reservation for which its write waits (reserved::V3), or 0.
    put_off: u64,
    /// The same number for each key to which requests in flight of a native client would write.
    keys_put_off: Vec<(KeyHash, u64)>,
}

impl Patience {
    /// Called when a request cannot run now, because no server serves its keys. Returns the time at
    /// which the request must be presented again, or `None` if it has waited long enough.
    #[cold]
    pub(crate) fn waits_for_owner(&mut self) -> Option<u64> {
        let now_ms = clock::now_ms();
        if self.unserved_until_ms == 0 {
            self.unserved_until_ms = now_ms + PATIENCE_MS;
        }
        if now_ms >= self.unserved_until_ms {
            self.unserved_until_ms = 0;
            return None;
        }
        Some(now_ms + AGAIN_MS)
    }

    /// Notes that its next request waits for no server yet.
    #[inline]
    pub(crate) fn end_wait_for_owner(&mut self) {
        self.unserved_until_ms = 0;
    }

    /// Whether a write of `client` to these keys waits for another client's reservation.
    pub(crate) fn is_put_off(
        &mut self,
        commands: &CommandState,
        client: u64,
        keys: impl Iterator<Item = KeyHash>,
    ) -> bool {
        let number = commands.reservation((client, self.put_off), keys);
        self.put_off = number.unwrap_or(self.put_off);
        number.is_some()
    }

    /// Whether the write that waits for a reservation still waits; `None` if no write waits.
    pub(crate) fn is_still_put_off(&self, commands: &CommandState) -> Option<bool> {
        (self.put_off != 0).then(|| commands.reservation_lasts(self.put_off))
    }

    /// Notes that its write does not wait.
    #[inline]
    pub(crate) fn end_put_off(&mut self) {
        self.put_off = 0;
    }

    /// As `is_put_off`, for one of several requests in flight.
    pub fn is_key_put_off(&mut self, commands: &CommandState, client: u64, key: KeyHash) -> bool {
        let known = self.keys_put_off.iter().find(|(known, _)| *known == key);
        let put_off = known.map_or(0, |(_, number)| *number);
        let keys = std::iter::once(key);
        let Some(number) = commands.reservation((client, put_off), keys) else {
            return false;
        };
        if put_off == 0 {
            if self.keys_put_off.len() >= KEYS_PUT_OFF_MAX {
                self.keys_put_off.remove(0);
            }
            self.keys_put_off.push((key, number));
        }
        true
    }

    /// Notes that a write to this key does not wait.
    pub fn end_key_put_off(&mut self, key: KeyHash) {
        self.keys_put_off.retain(|(known, _)| *known != key);
    }
}
