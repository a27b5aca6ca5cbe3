//! Routing: whether this member of a cluster serves the keys of a request, and the error if it does
//! not.
//!
//! **Invariants**
//! - As membership::M1 says, the view is read under the guard with which the request runs, and the
//!   guard is renewed first if the view has changed since the last read. So a thread that takes a
//!   range away waits for this guard, or the request's writes fail with `Error::TryAgain`. Then the
//!   request, which had no effect, is checked again.
//! - R1: all keys of a request, and of a transaction, are in one slot, and one server serves all of
//!   them: an atomic operation never spans servers.
//! - R2: a request for keys that no server serves at the moment (their tablet is being recovered or
//!   moved) waits here for up to `PATIENCE_MS`, because few clients repeat a request after
//!   `TRYAGAIN` by themselves. The request has not run, and neither have those behind it on its
//!   connection.
//! - R3: a client with TLS is redirected to a port with TLS, and one without to a plain port, as
//!   far as the other member has both. Reports of the cluster (`operation::cluster`) do the same.
//!
//! There is no `ASK`: the source of a migration serves everything until it serves nothing (`Route`
//! of `duramen_node`).

use super::context::{Context, Failure};
use super::flag;
use super::key::Key;
use super::outcome::Unfinished;
use super::spec::{Kind, Request, Spec};
use crate::state::Shared;
use crate::state::db::DROPPED;
use duramen_base::ids::{RouteHash, TableId};
use duramen_engine::{Guard, KeyHash};
use duramen_node::{Route, View};
use std::sync::Arc;

const CROSS_SLOT: &str = "CROSSSLOT Keys in request don't hash to the same slot";
pub(crate) const UNSERVED: &str =
    "TRYAGAIN the keys are being recovered or moved, and no server serves them yet: send it again";
const CLUSTER_DOWN: &str = "CLUSTERDOWN The cluster is down: this server is no member of it yet";
const NO_TABLE: &str = "CLUSTERDOWN Hash slot not served: the cluster has no such table, or it has no tablets; make them with `duramen table create`";
pub(crate) const NO_DATABASE: &str = "CLUSTERDOWN Hash slot not served: the cluster has no table db0; make it with `duramen table create db0`";
const NO_PORT: &str =
    "CLUSTERDOWN Hash slot not served: its server has no port for Redis clients (RESP)";

/// Reason for which a request does not run here and now.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum NotServed {
    /// Perhaps this server serves the keys soon. The text is the error for clients that have waited
    /// long enough.
    NotNow(&'static str),
    /// This server does not serve the keys. The text is the error.
    Refused(Box<str>),
}

impl From<NotServed> for Failure {
    fn from(not_served: NotServed) -> Failure {
        match not_served {
            NotServed::NotNow(text) => Failure::Unfinished(Unfinished::Moving(text)),
            NotServed::Refused(text) => Failure::Owned(text),
        }
    }
}

impl Context<'_> {
    /// The view under this guard (membership::M1); `None`: the server is in no cluster.
    pub(crate) fn view(&mut self, guard: &mut Guard<'_>) -> Option<Arc<View>> {
        let member = self.shared.membership()?;
        Some(Arc::clone(self.thread.view(member, guard)))
    }
}

/// The table whose map says where the keys of a request are. Shard channels are in the slots of
/// database 0, whatever the client has selected.
#[inline]
pub(crate) fn table_of(spec: &Spec, selected: TableId, shared: &Shared) -> TableId {
    match spec.has(flag::PUBSUB) {
        true => shared.commands.table(0).unwrap_or(DROPPED),
        false => selected,
    }
}

/// Whether another member serves the slot of a shard channel, or no member will.
pub(crate) fn has_left(view: &View, table: TableId, channel: &[u8], hash: KeyHash) -> bool {
    let route = view.route(table, hash.route(channel));
    matches!(route, Route::Moved(_) | Route::NoTable)
}

/// Whether one key is served here. `has_tls`: the client's connection, for a redirection (R3).
#[inline]
pub(crate) fn one(view: &View, key: Key<'_>, has_tls: bool) -> Result<(), NotServed> {
    let route = key.hash.route(key.bytes);
    match view.route(key.table, route) {
        Route::Serve => Ok(()),
        other => Err(not_served(other, key.table, route, has_tls)),
    }
}

#[cold]
fn not_served(route: Route<'_>, table: TableId, hash: RouteHash, has_tls: bool) -> NotServed {
    match route {
        Route::Moved(owner) => NotServed::Refused(match owner.addresses.resp_for(has_tls) {
            // As in Redis, and as CLUSTER SLOTS tells it: without the brackets of IPv6.
            Some(address) => {
                format!("MOVED {} {}", hash.slot(), address.replace(['[', ']'], "")).into()
            }
            None => NO_PORT.into(),
        }),
        Route::Serve | Route::TryAgain => NotServed::NotNow(UNSERVED),
        Route::ClusterDown => NotServed::NotNow(CLUSTER_DOWN),
        Route::NoTable if table == DROPPED => NotServed::Refused(NO_DATABASE.into()),
        // The table may be so new that the map does not have it yet.
        Route::NoTable => NotServed::NotNow(NO_TABLE),
    }
}

/// Routes several keys at once (R1).
pub(crate) struct RouteSearch<'v> {
    view: &'v View,
    /// The first key's table, route hash and route.
    first: Option<(TableId, RouteHash, Route<'v>)>,
    crossed: bool,
    /// Whether keys have different routes.
    torn: bool,
    /// Whether the client's connection has TLS (R3).
    has_tls: bool,
}

impl<'v> RouteSearch<'v> {
    pub(crate) fn new(view: &'v View, has_tls: bool) -> RouteSearch<'v> {
        RouteSearch {
            view,
            first: None,
            crossed: false,
            torn: false,
            has_tls,
        }
    }

    pub(crate) fn key(&mut self, table: TableId, key: &[u8], hash: KeyHash) {
        let hash = hash.route(key);
        let route = self.view.route(table, hash);
        match self.first {
            None => self.first = Some((table, hash, route)),
            Some((_, first, found)) => {
                self.crossed |= first.slot() != hash.slot();
                self.torn |= found != route;
            }
        }
    }

    pub(crate) fn outcome(self) -> Result<(), NotServed> {
        match self.first {
            _ if self.crossed => Err(NotServed::Refused(CROSS_SLOT.into())),
            // A slot that is moved or recovered in parts; if it stays divided, its parts cannot be
            // used together.
            Some(_) if self.torn => Err(NotServed::NotNow(UNSERVED)),
            None | Some((_, _, Route::Serve)) => Ok(()),
            Some((table, hash, route)) => Err(not_served(route, table, hash, self.has_tls)),
        }
    }
}

/// Whether all keys of a request are served here. `has_tls`: as in [`one`]. Without a guard only
/// keys whose hashes are known are checked.
pub(crate) fn find(
    view: &View,
    has_tls: bool,
    guard: Option<&Guard<'_>>,
    table: TableId,
    request: &Request<'_>,
) -> Result<(), NotServed> {
    let mut search = RouteSearch::new(view, has_tls);
    for (n, at) in request.key_positions().enumerate() {
        let key = request.arg(at);
        match (request.hashes.get(n), guard) {
            (Some(hash), _) => search.key(table, key, *hash),
            (None, Some(guard)) => search.key(table, key, guard.hash(key)),
            (None, None) => {} // the request is checked again under its guard
        }
    }
    search.outcome()
}

/// Whether a reply of this command depends on data, and so may be sent only while this member may
/// answer (membership::M2).
#[inline]
pub(crate) fn tells_of_data(spec: &Spec) -> bool {
    let alone = spec.kind() == Kind::Alone && !spec.has(flag::WITHOUT_DATA);
    spec.has_keys() || spec.has(flag::WHOLE) || alone
}
