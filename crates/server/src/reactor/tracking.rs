//! Invalidations for clients that track keys: their delivery to the clients of this thread.
//!
//! **Invariants**
//! - V1: an invalidation is appended behind whole replies, as a message of publish and subscribe.
//!   A client that does not take its invalidations is closed at `output-limit`.
//! - V2: a client in broadcast mode hears only of keys that its user may read now.

use super::Reactor;
use super::connections::Token;
use super::round::resp_connection;
use duramen_redis::state::shown;
use duramen_redis::threads::{Invalid, Message};
use duramen_redis::tracking::{ClientTracking, Limits, Scope, write_broken, write_invalidation};
use std::sync::Arc;
use std::time::Duration;

/// Interval at which the registry is tended, in milliseconds.
const TEND_MS: u64 = 100;

impl Reactor {
    /// Delivers invalidations to a client that tracks, or to the one to which it redirects them.
    pub(super) fn invalidate(&mut self, client: u64, what: Invalid) {
        let Some(token) = self.traffic.token_of(client) else {
            return;
        };
        let Some(connection) = resp_connection(
            &mut self.traffic.connections,
            &mut self.traffic.ready,
            token,
        ) else {
            return;
        };
        let client = &mut connection.client;
        let Some(tracking) = client.tracking.as_deref() else {
            return; // it has ended tracking since then
        };
        let user = client.present_user(self.traffic.thread.shared());
        let may_read = |key: &Arc<[u8]>| user.as_ref().is_some_and(|user| user.may_read_key(key));
        let what = wanted(tracking, what, may_read);
        if what == Invalid::Keys(Vec::new()) {
            return;
        }
        let Some(redirect) = tracking.redirect else {
            return self.push_invalid(token, &what, false);
        };
        let user_id = client.record().text().user_id;
        let record = self.traffic.thread.shared().client(redirect);
        // It may have become another user since then.
        if let Some(record) = record.filter(|record| record.text().user_id == user_id) {
            let client = redirect;
            return self
                .traffic
                .thread
                .shared()
                .post(&record, Message::Redirected { client, what });
        }
        let protocol = client.protocol();
        client.show(shown::BROKEN_REDIRECT, true);
        if let Some(tracking) = &mut client.tracking {
            tracking.is_broken = true;
        }
        let mut out = Vec::new();
        write_broken(&mut out, protocol, redirect);
        self.push(token, &out);
    }

    /// Delivers the invalidations of another client.
    pub(super) fn redirected(&mut self, client: u64, what: &Invalid) {
        if let Some(token) = self.traffic.token_of(client) {
            self.push_invalid(token, what, true);
        }
    }

    fn push_invalid(&mut self, token: Token, what: &Invalid, redirected: bool) {
        let Some(connection) = self.traffic.connection(token) else {
            return;
        };
        let protocol = connection.client.protocol();
        let form = (redirected, connection.client.subscription_count() > 0);
        let mut out = Vec::new();
        match what {
            Invalid::All => write_invalidation(&mut out, protocol, None, form),
            Invalid::Keys(all) => {
                for one in all {
                    write_invalidation(&mut out, protocol, Some(&one.keys), form);
                }
            }
        }
        if !out.is_empty() {
            self.push(token, &out);
        }
    }

    /// The tablets of this member have changed: clients cannot hear of changes on the server that
    /// has got some (tracking::table::I4). Looks only after a change.
    pub(super) fn invalidate_left(&mut self) {
        let Some(member) = self.traffic.thread.shared().membership() else {
            return;
        };
        let generation = member.generation();
        if std::mem::replace(&mut self.tablets_seen, generation) != generation {
            let (threads, thread) = (
                &self.traffic.thread.shared().threads,
                Some(self.traffic.thread.number()),
            );
            self.traffic
                .thread
                .shared()
                .tracking
                .all_changed(threads, thread);
        }
    }

    fn tracking_limits(&mut self) -> Limits {
        let config = self.traffic.thread.here().config;
        Limits::new(config.tracked_keys_max, config.memory_bytes)
    }

    /// The time until the first thread must tend the registry; `None`: it has nothing to do there.
    pub(super) fn tracking_pause(&mut self) -> Option<Duration> {
        let limits = self.tracking_limits();
        let tracking = &self.traffic.thread.shared().tracking;
        let is_due =
            self.traffic.thread.number() == 0 && tracking.is_on() && tracking.exceeds(limits);
        is_due.then_some(Duration::from_millis(TEND_MS))
    }

    /// After a round: the first thread tends the registry.
    pub(super) fn tend_tracking(&mut self) {
        if self.traffic.thread.number() == 0
            && self.traffic.thread.now_ms() >= self.tracking_tended_ms + TEND_MS
        {
            self.tracking_tended_ms = self.traffic.thread.now_ms();
            let limits = self.tracking_limits();
            self.traffic.thread.shared().tend_tracking(limits);
        }
    }
}

/// The keys of which a client wants to hear.
fn wanted(
    tracking: &ClientTracking,
    what: Invalid,
    may_read: impl Fn(&Arc<[u8]>) -> bool,
) -> Invalid {
    let Invalid::Keys(mut all) = what else {
        return what;
    };
    let broadcasts = tracking.scope == Scope::Broadcast;
    all.retain_mut(|one| {
        if one.is_broadcast {
            one.keys.retain(&may_read);
        }
        one.is_broadcast == broadcasts && !one.keys.is_empty()
    });
    Invalid::Keys(all)
}
