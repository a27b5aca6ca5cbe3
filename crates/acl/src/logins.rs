//! Failed logins are slowed, by address.
//!
//! The first failures of an address cost nothing. Each further one takes a turn, and the turns of
//! an address follow one another, at growing intervals, however many connections it has. The reply
//! to a failed login is sent at the end of its turn. A login that would wait for too long is
//! refused without a look at its password, so more connections do not bring more guesses. The
//! caller holds the reply until the end of the turn.
//!
//! **Invariants**
//! - G1: an address tries at most `FREE` + `BACKLOG_MS` / `DELAY_MS` passwords at once, and one per
//!   `DELAY_MAX_MS` in the long run.
//! - G2: an address is free again at most `BACKLOG_MS` + `FORGET_MS` after its last failure, so
//!   clients behind one address are not locked out for ever. Its failures with a user's name are
//!   forgotten at once when it gives that user's password. So a user's own login frees no guesses
//!   of another user's password. A user that needs no password frees nothing.
//! - G3: the table has at most `ADDRESSES_MAX` entries. A full table forgets the oldest entry.

use crate::user::User;
use crate::users::Users;
use std::collections::HashMap;
use std::hash::{BuildHasher as _, RandomState};
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, Mutex, PoisonError};

/// Failures of an address that cost nothing: a person who mistypes does not wait.
const FREE: u32 = 5;
/// Interval of the turns after the free failures, in milliseconds; it doubles with each failure.
const DELAY_MS: u64 = 100;
const DELAY_MAX_MS: u64 = 3_200;
/// Maximum time until the turn of a login, in milliseconds; a later one is refused.
const BACKLOG_MS: u64 = 10_000;
/// Time without failures after which an address is free again, in milliseconds.
const FORGET_MS: u64 = 60_000;
/// Maximum addresses in the table: some hundred KB.
const ADDRESSES_MAX: usize = 4_096;

/// Maximum names for each address whose failures are counted by name; failures with other names
/// stay for the time of G2.
const NAMES_MAX: usize = 16;

#[derive(Clone, Debug)]
struct Failures {
    count: u32,
    /// Hashes of the names of users, each with its number of failures, which `count` includes.
    names: Vec<(u64, u32)>,
    last_ms: u64,
    /// End of the last turn, in milliseconds of the server's clock.
    busy_until_ms: u64,
}

/// The addresses from which logins have failed. One lock is enough: logins are rare, and failed
/// logins are slowed.
#[derive(Debug, Default)]
pub struct Logins {
    addresses: Mutex<HashMap<IpAddr, Failures>>,
    /// Its keys are random, so nobody finds two names with one hash.
    hashes: RandomState,
}

/// Reason why a login failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LoginError {
    /// The password was not looked at.
    #[error("too many failed logins from this address: try again in some seconds")]
    TooMany,
    /// The password or the name was wrong. `until_ms`: the time before which the reply must not be
    /// sent, on the clock of [`Logins::log_in`]. `None`: it may be sent at once.
    #[error("invalid username-password pair or user is disabled.")]
    Wrong { until_ms: Option<u64> },
}

/// The part of an address that belongs to one owner: in version 6 a network of /64.
fn owner(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => {
            let network = address.to_bits() & !u128::from(u64::MAX);
            IpAddr::V6(Ipv6Addr::from_bits(network))
        }
        address => address,
    }
}

impl Logins {
    /// The user of this name, if it accepts the password. `now_ms`: milliseconds on a clock of the
    /// caller, the same for all calls.
    ///
    /// # Errors
    /// [`LoginError`].
    pub fn log_in<'u>(
        &self,
        users: &'u Users,
        address: IpAddr,
        (name, password): (&[u8], &[u8]),
        now_ms: u64,
    ) -> Result<&'u Arc<User>, LoginError> {
        if !self.may_try(address, now_ms) {
            return Err(LoginError::TooMany);
        }
        let known = std::str::from_utf8(name).ok();
        let known = known.and_then(|name| users.get(name));
        // The comparison takes as long as for a user that exists.
        let accepts = known.unwrap_or(users.default_user()).accepts(password);
        match known.filter(|_| accepts) {
            Some(user) => {
                if !user.needs_no_password() {
                    self.succeeded(address, name);
                }
                Ok(user)
            }
            None => Err(LoginError::Wrong {
                until_ms: self.failed(address, name, now_ms),
            }),
        }
    }

    /// Whether a password from this address is looked at now.
    fn may_try(&self, address: IpAddr, now_ms: u64) -> bool {
        let addresses = self.lock();
        let known = addresses.get(&owner(address));
        known.is_none_or(|known| known.busy_until_ms <= now_ms + BACKLOG_MS)
    }

    /// Counts a failed login. Returns the time before which its reply must not be sent; `None`: the
    /// reply may be sent at once.
    fn failed(&self, address: IpAddr, name: &[u8], now_ms: u64) -> Option<u64> {
        let mut addresses = self.lock();
        let address = owner(address);
        if addresses.len() >= ADDRESSES_MAX && !addresses.contains_key(&address) {
            addresses.retain(|_, known| !known.is_over(now_ms));
        }
        if addresses.len() >= ADDRESSES_MAX && !addresses.contains_key(&address) {
            let oldest = addresses.iter().min_by_key(|(_, known)| known.last_ms);
            if let Some(oldest) = oldest.map(|(address, _)| *address) {
                addresses.remove(&oldest);
            }
        }
        let known = addresses.entry(address).or_insert(Failures {
            count: 0,
            names: Vec::new(),
            last_ms: now_ms,
            busy_until_ms: 0,
        });
        if known.is_over(now_ms) {
            known.count = 0;
            known.names.clear();
        }
        known.count = known.count.saturating_add(1);
        let name = self.hashes.hash_one(name);
        let is_full = known.names.len() >= NAMES_MAX;
        match known.names.iter_mut().find(|(hash, _)| *hash == name) {
            Some((_, count)) => *count = count.saturating_add(1),
            None if is_full => {}
            None => known.names.push((name, 1)),
        }
        known.last_ms = now_ms;
        let beyond = known.count.checked_sub(FREE + 1)?;
        let delay_ms = DELAY_MS
            .checked_shl(beyond)
            .filter(|_| beyond < u64::BITS - 7)
            .unwrap_or(DELAY_MAX_MS);
        let turn_ms = known.busy_until_ms.max(now_ms) + delay_ms.min(DELAY_MAX_MS);
        known.busy_until_ms = turn_ms;
        Some(turn_ms)
    }

    /// Forgets the failures of an address with the name of a user whose login was right (G2).
    fn succeeded(&self, address: IpAddr, name: &[u8]) {
        let mut addresses = self.lock();
        let address = owner(address);
        let Some(known) = addresses.get_mut(&address) else {
            return;
        };
        let name = self.hashes.hash_one(name);
        if let Some(at) = known.names.iter().position(|(hash, _)| *hash == name) {
            known.count -= known.names.swap_remove(at).1;
        }
        if known.count == 0 {
            addresses.remove(&address);
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<IpAddr, Failures>> {
        self.addresses
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

impl Failures {
    fn is_over(&self, now_ms: u64) -> bool {
        self.busy_until_ms <= now_ms && self.last_ms + FORGET_MS <= now_ms
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalog::Catalog;

    const ADDRESS: IpAddr = IpAddr::V4(std::net::Ipv4Addr::LOCALHOST);

    #[test]
    fn failures_wait_longer_and_longer_and_a_success_ends_that() {
        let logins = Logins::default();
        for _ in 0..FREE {
            assert_eq!(logins.failed(ADDRESS, b"ann", 1_000), None);
        }
        let mut now_ms = 1_000;
        for delay_ms in [100, 200, 400, 800, 1_600, 3_200, 3_200, 3_200] {
            let turn_ms = logins.failed(ADDRESS, b"ann", now_ms).expect("it waits");
            assert_eq!(turn_ms - now_ms, delay_ms);
            now_ms = turn_ms;
        }
        logins.succeeded(ADDRESS, b"ann");
        assert_eq!(logins.failed(ADDRESS, b"ann", now_ms), None);
    }

    /// G1: many connections at once.
    #[test]
    fn more_connections_do_not_bring_more_guesses() {
        let logins = Logins::default();
        let mut tried = 0;
        while logins.may_try(ADDRESS, 1_000) {
            logins.failed(ADDRESS, b"ann", 1_000);
            tried += 1;
            assert!(tried < 20, "{tried}");
        }
        let other = IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 1));
        assert!(logins.may_try(other, 1_000));
        // A minute of guesses as fast as allowed.
        let mut now_ms = 1_000;
        let mut in_a_minute = 0;
        while now_ms < 61_000 {
            if logins.may_try(ADDRESS, now_ms) {
                logins.failed(ADDRESS, b"ann", now_ms);
                in_a_minute += 1;
            }
            now_ms += 10;
        }
        assert!(in_a_minute <= 60_000 / DELAY_MAX_MS + 1, "{in_a_minute}");
        // G2.
        let free_ms = now_ms + BACKLOG_MS + DELAY_MAX_MS + FORGET_MS;
        assert!(logins.may_try(ADDRESS, now_ms + DELAY_MAX_MS + 1));
        assert_eq!(logins.failed(ADDRESS, b"ann", free_ms), None);
    }

    #[test]
    fn a_login_needs_the_right_password_of_a_user_that_is_on() {
        let catalog = Catalog::new([]);
        let mut users = Users::new(&catalog);
        for (name, rules) in [
            ("ann", [&b"on"[..], b">secret"]),
            ("bob", [b"off", b">secret"]),
        ] {
            users.set(name.as_bytes(), rules, &catalog).expect("right");
        }
        let logins = Logins::default();
        let log_in = |name: &[u8], password: &[u8]| {
            let user = logins.log_in(&users, ADDRESS, (name, password), 1_000);
            user.map(|user| user.name().to_owned())
        };
        let wrong = Err(LoginError::Wrong { until_ms: None });
        assert_eq!(log_in(b"ann", b"guess"), wrong);
        assert_eq!(log_in(b"bob", b"secret"), wrong, "it is off");
        assert_eq!(log_in(b"eve", b"secret"), wrong);
        assert_eq!(log_in(b"\xff", b"secret"), wrong);
        assert_eq!(log_in(b"ann", b"secret"), Ok("ann".to_owned()));
        while log_in(b"ann", b"guess") != Err(LoginError::TooMany) {}
        assert_eq!(log_in(b"ann", b"secret"), Err(LoginError::TooMany));
    }

    /// G2: a user with a login of its own guessed the passwords of others without a pause.
    #[test]
    fn a_login_of_ones_own_frees_no_guesses_of_another_password() {
        let catalog = Catalog::new([]);
        let mut users = Users::new(&catalog);
        for name in ["ann", "eve"] {
            let rules = [&b"on"[..], b">secret"];
            users.set(name.as_bytes(), rules, &catalog).expect("right");
        }
        let logins = Logins::default();
        let log_in = |name: &[u8], password: &[u8]| {
            let user = logins.log_in(&users, ADDRESS, (name, password), 1_000);
            user.map(|user| user.name().to_owned())
        };
        let mut slowed = 0;
        for guess in 0..FREE + 3 {
            let failed = log_in(b"ann", &guess.to_string().into_bytes());
            slowed += u32::from(failed != Err(LoginError::Wrong { until_ms: None }));
            assert_eq!(log_in(b"eve", b"secret"), Ok("eve".to_owned()));
            assert_eq!(log_in(b"default", b""), Ok("default".to_owned()));
        }
        assert_eq!(slowed, 3);
        assert_eq!(log_in(b"ann", b"secret"), Ok("ann".to_owned()));
        assert!(logins.lock().is_empty());
    }

    #[test]
    fn the_table_is_bounded() {
        let logins = Logins::default();
        for n in 0..2 * ADDRESSES_MAX as u32 {
            let address = IpAddr::V4(std::net::Ipv4Addr::from_bits(n));
            logins.failed(address, b"ann", 1_000 + u64::from(n));
        }
        assert_eq!(logins.lock().len(), ADDRESSES_MAX);
        // A network of version 6 is one owner.
        let logins = Logins::default();
        for n in 0..100 {
            logins.failed(IpAddr::V6(Ipv6Addr::from_bits(1 << 100 | n)), b"ann", 1_000);
        }
        assert_eq!(logins.lock().len(), 1);
    }
}
