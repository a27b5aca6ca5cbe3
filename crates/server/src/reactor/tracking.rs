//! Invalidations for clients that track keys: their delivery to the clients of this thread.
//!
//! **Invariants**
//! - V1: an invalidation is appended behind whole replies, as a message of publish and subscribe.
//!   A client that does not take its invalidations is closed at `output-limit`.
//! - V2: a client in broadcast mode hears only of keys that its user may read now.

use super::Traffic;
use super::connections::Token;
use super::effects::push;
use super::here::Here;
use super::round::resp_connection;
use duramen_redis::state::shown;
use duramen_redis::threads::{Invalid, Message};
use duramen_redis::tracking::tend_tracking;
use duramen_redis::tracking::{ClientTracking, Limits, Scope, write_broken, write_invalidation};
use std::sync::Arc;
use std::time::Duration;

/// Interval at which the registry is tended, in milliseconds.
const TEND_MS: u64 = 100;

/// The state of the steps that a thread takes for clients that track keys.
#[derive(Default)]
pub(super) struct Invalidations {
    /// The generation of the member's view at which tracking clients last lost all keys.
    tablets_seen: u64,
    tended_ms: u64,
}

impl Invalidations {
    /// Makes tracking clients forget all keys if the tablets of this member have changed: a client
    /// gets no invalidations from another server that owns a tablet now (tracking::table::I4).
    pub(super) fn lose_all(&mut self, here: Here<'_>) {
        let Some(member) = here.shared.membership() else {
            return;
        };
        let generation = member.generation();
        if std::mem::replace(&mut self.tablets_seen, generation) != generation {
            let (threads, thread) = (&here.shared.threads, Some(here.number));
            here.shared.tracking().all_changed(threads, thread);
        }
    }

    /// After a round: the first thread tends the registry.
    #[inline]
    pub(super) fn tend(&mut self, here: Here<'_>) {
        if here.number == 0 && here.now_ms >= self.tended_ms + TEND_MS {
            self.tended_ms = here.now_ms;
            tend_tracking(here.shared, limits(here));
        }
    }
}

fn limits(here: Here<'_>) -> Limits {
    Limits::new(here.config.tracked_keys_max, here.config.memory_bytes)
}

/// The time until the first thread must tend the registry; `None` if there is nothing to tend.
pub(super) fn pause(here: Here<'_>) -> Option<Duration> {
    let tracking = here.shared.tracking();
    let is_due = here.number == 0 && tracking.is_on() && tracking.exceeds(limits(here));
    is_due.then_some(Duration::from_millis(TEND_MS))
}

/// Delivers invalidations to a client that tracks, or to the one to which it redirects them.
pub(super) fn invalidate(traffic: &mut Traffic, client: u64, what: Invalid) {
    let Some(token) = traffic.token_of(client) else {
        return;
    };
    let Some(connection) = resp_connection(&mut traffic.connections, &mut traffic.groups, token)
    else {
        return;
    };
    let client = &mut connection.client;
    let Some(tracking) = client.tracking() else {
        return; // it has ended tracking since then
    };
    let user = client.login().present_user(traffic.thread.shared().acl());
    let may_read = |key: &Arc<[u8]>| user.as_ref().is_some_and(|user| user.may_read_key(key));
    let what = wanted(tracking, what, may_read);
    if what == Invalid::Keys(Vec::new()) {
        return;
    }
    let Some(redirect) = tracking.redirect else {
        return push_invalid(traffic, token, &what, false);
    };
    let user_id = client.record().text().user_id;
    let record = traffic.thread.shared().threads.client(redirect);
    // It may have become another user since then.
    if let Some(record) = record.filter(|record| record.text().user_id == user_id) {
        let client = redirect;
        return traffic
            .thread
            .shared()
            .threads
            .post(&record, Message::Redirected { client, what });
    }
    let protocol = client.protocol();
    client.record().show(shown::BROKEN_REDIRECT, true);
    if let Some(tracking) = client.tracking_mut() {
        tracking.is_broken = true;
    }
    let mut out = Vec::new();
    write_broken(&mut out, protocol, redirect);
    push(traffic, token, &out);
}

/// Delivers the invalidations of another client.
pub(super) fn redirected(traffic: &mut Traffic, client: u64, what: &Invalid) {
    if let Some(token) = traffic.token_of(client) {
        push_invalid(traffic, token, what, true);
    }
}

fn push_invalid(traffic: &mut Traffic, token: Token, what: &Invalid, redirected: bool) {
    let Some(connection) = traffic.connection(token) else {
        return;
    };
    let protocol = connection.client.protocol();
    let form = (redirected, !connection.client.subscriptions().is_empty());
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
        push(traffic, token, &out);
    }
}

/// The keys for which a client wants invalidations.
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
