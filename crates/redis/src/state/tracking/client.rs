//! A client's tracking of keys: its options.

use duramen_wire::resp::{Encoder, Protocol};
use std::collections::BTreeSet;
use std::sync::Arc;

/// The channel of invalidations that are redirected to a RESP2 client.
const CHANNEL: &[u8] = b"__redis__:invalidate";

/// The keys of which a client wants to hear.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Scope {
    /// All keys that the client reads.
    #[default]
    Read,
    /// The keys that the client reads after `CLIENT CACHING YES`.
    OptIn,
    /// The keys that the client reads, except after `CLIENT CACHING NO`.
    OptOut,
    /// The keys that begin with one of the client's prefixes.
    Broadcast,
}

/// State of a client that tracks.
#[derive(Debug, Default)]
pub struct ClientTracking {
    pub scope: Scope,
    /// Whether the client does not hear of its own changes.
    pub(crate) no_loop: bool,
    /// The client that gets the invalidations.
    pub redirect: Option<u64>,
    /// Whether that client has gone.
    pub is_broken: bool,
    /// Whether `CLIENT CACHING` was called for the next request.
    pub(crate) caching: bool,
    /// The prefixes in broadcast mode; none is a prefix of another.
    pub(crate) prefixes: BTreeSet<Arc<[u8]>>,
    /// Keys under which the present run of its request, on a draft, was the first to remember the
    /// client.
    pub(crate) new_keys: Vec<Box<[u8]>>,
}

impl ClientTracking {
    /// The client that gets its invalidations, as replies show it; 0 = the client itself.
    pub(crate) fn shown_redirect(&self) -> i64 {
        self.redirect.unwrap_or_default() as i64
    }

    /// Whether the client is remembered under the keys that its request reads.
    pub(crate) fn remembers(&self) -> bool {
        match self.scope {
            Scope::Read => true,
            Scope::OptIn => self.caching,
            Scope::OptOut => !self.caching,
            Scope::Broadcast => false,
        }
    }
}

/// The invalid keys of one message, for an [`Encoder`]; `None` = all keys.
pub(crate) type Keys<'a> = Option<&'a [Arc<[u8]>]>;

/// Appends an invalidation, as the client that tracks gets it or, with `redirected`, as another
/// client gets it. Appends nothing if the client's protocol has no such message. `subscribed`:
/// whether the client has subscriptions.
pub fn write_invalidation(
    out: &mut Vec<u8>,
    protocol: Protocol,
    keys: Keys<'_>,
    (redirected, subscribed): (bool, bool),
) {
    let mut reply = Encoder::new(out, protocol);
    match protocol {
        Protocol::Resp3 => {
            reply.push(2);
            reply.bulk(b"invalidate");
        }
        Protocol::Resp2 if redirected && subscribed => {
            reply.push(3);
            reply.bulk(b"message");
            reply.bulk(CHANNEL);
        }
        Protocol::Resp2 => return,
    }
    match keys {
        None => reply.null(),
        Some(keys) => {
            reply.array(keys.len());
            keys.iter().for_each(|key| reply.bulk(key));
        }
    }
}

/// Appends the message that the client to which invalidations go has gone.
pub fn write_broken(out: &mut Vec<u8>, protocol: Protocol, redirect: u64) {
    if protocol == Protocol::Resp3 {
        let mut reply = Encoder::new(out, protocol);
        reply.push(2);
        reply.bulk(b"tracking-redir-broken");
        reply.integer(redirect as i64);
    }
}
