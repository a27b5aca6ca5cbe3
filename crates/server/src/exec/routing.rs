//! Whether this member of a cluster serves the keys of a request, and what a request is told whose
//! keys it does not.
//!
//! **Invariants**
//! - M1 (`cluster::membership`): the view is looked at under the guard by which the request runs,
//!   and the guard is renewed first if the view has changed since it was last looked at. So whoever
//!   takes a range away waits for this guard, or its writes fail with `Error::TryAgain`; then the
//!   request, which had no effect, is looked at again.
//! - R1: all keys of a request, and of a transaction, are in one slot, and one server serves all of
//!   them: what is atomic never spans servers.
//! - R2: a request for keys that nobody serves at the moment (their tablet is being recovered or
//!   moved) waits here for up to [`PATIENCE_MS`], because few clients repeat `TRYAGAIN` by
//!   themselves. It has not run, and neither has what follows it on its connection.
//!
//! There is no `ASK`: the source of a migration serves everything until it serves nothing (`Route`
//! of `duramen_node`).

use super::admit;
use super::client::{Client, Verdict};
use super::context::Failure;
use super::local::Local;
use super::table::{Run, Spec, flag};
use crate::clock;
use crate::cluster::Membership;
use duramen_base::ids::{RouteHash, TableId};
use duramen_engine::{Guard, KeyHash};
use duramen_node::{Route, View};
use duramen_wire::resp::Args;
use std::sync::Arc;

/// How long a request waits for somebody to serve its keys, in milliseconds: shorter than the
/// patience of client libraries.
const PATIENCE_MS: u64 = 1_000;
/// When a waiting request is looked at again, unless a new view wakes it, in milliseconds.
const AGAIN_MS: u64 = 2;

const CROSS_SLOT: &str = "CROSSSLOT Keys in request don't hash to the same slot";
pub(super) const UNSERVED: &str =
    "TRYAGAIN the keys are being recovered or moved, and nobody serves them yet: send it again";
const CLUSTER_DOWN: &str = "CLUSTERDOWN The cluster is down: this server is no member of it yet";
const NO_TABLE: &str = "CLUSTERDOWN Hash slot not served: the cluster has no such table, or it has no tablets; make them with `duramen table create`";
const NO_DATABASE: &str = "CLUSTERDOWN Hash slot not served: the cluster has no table db0; make it with `duramen table create db0`";
const NO_PORT: &str =
    "CLUSTERDOWN Hash slot not served: its server has no port for Redis clients (RESP)";

/// Why a request does not run here and now.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Elsewhere {
    /// In a moment, perhaps. With the error for clients that have waited long enough.
    NotNow(&'static str),
    /// Not here.
    Refused(Box<str>),
}

impl From<Elsewhere> for Failure {
    fn from(elsewhere: Elsewhere) -> Failure {
        match elsewhere {
            Elsewhere::NotNow(text) => Failure::NotNow(text),
            Elsewhere::Refused(text) => Failure::Owned(text),
        }
    }
}

impl Local {
    /// The view to run by under this guard (M1).
    #[inline]
    pub(super) fn view(&mut self, member: &Membership, guard: &mut Guard<'_>) -> &Arc<View> {
        if !self.views.is_current(member) {
            guard.renew();
        }
        self.views.get(member)
    }

    /// The view for what only tells of it.
    pub(super) fn view_to_tell(&mut self, member: &Membership) -> &Arc<View> {
        self.views.get(member)
    }
}

/// Whether one key is served here.
#[inline]
pub(super) fn one(view: &View, table: TableId, key: &[u8], hash: KeyHash) -> Result<(), Elsewhere> {
    let route = hash.route(key);
    match view.route(table, route) {
        Route::Serve => Ok(()),
        other => Err(elsewhere(other, table, route)),
    }
}

#[cold]
fn elsewhere(route: Route<'_>, table: TableId, hash: RouteHash) -> Elsewhere {
    match route {
        Route::Moved(owner) => Elsewhere::Refused(match &owner.addresses.resp {
            Some(address) => format!("MOVED {} {address}", hash.slot()).into(),
            None => NO_PORT.into(),
        }),
        Route::Serve | Route::TryAgain => Elsewhere::NotNow(UNSERVED),
        Route::ClusterDown => Elsewhere::NotNow(CLUSTER_DOWN),
        Route::NoTable if table == admit::DROPPED => Elsewhere::Refused(NO_DATABASE.into()),
        // It may be so new that the map does not have it yet.
        Route::NoTable => Elsewhere::NotNow(NO_TABLE),
    }
}

/// Looks for several keys at once (R1).
pub(super) struct Search<'v> {
    view: &'v View,
    /// The first key's table and route, and where it is.
    first: Option<(TableId, RouteHash, Route<'v>)>,
    crossed: bool,
    /// Keys are in different places.
    torn: bool,
}

impl<'v> Search<'v> {
    pub(super) fn new(view: &'v View) -> Search<'v> {
        Search {
            view,
            first: None,
            crossed: false,
            torn: false,
        }
    }

    pub(super) fn key(&mut self, table: TableId, key: &[u8], hash: KeyHash) {
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

    pub(super) fn outcome(self) -> Result<(), Elsewhere> {
        match self.first {
            _ if self.crossed => Err(Elsewhere::Refused(CROSS_SLOT.into())),
            // A slot that is moved or recovered in parts; if it stays cut, its parts cannot be used
            // together.
            Some(_) if self.torn => Err(Elsewhere::NotNow(UNSERVED)),
            None | Some((_, _, Route::Serve)) => Ok(()),
            Some((table, hash, route)) => Err(elsewhere(route, table, hash)),
        }
    }
}

/// Whether all keys of a request are served here. `hashes`: those of its keys, or none if there are
/// too many to have been hashed before.
pub(super) fn find(
    view: &View,
    guard: Option<&Guard<'_>>,
    table: TableId,
    spec: &Spec,
    args: &Args<'_>,
    hashes: &[KeyHash],
) -> Result<(), Elsewhere> {
    let mut search = Search::new(view);
    for (n, at) in spec.key_positions(args.len()).enumerate() {
        let key = args.get(at).unwrap_or_default();
        match (hashes.get(n), guard) {
            (Some(hash), _) => search.key(table, key, *hash),
            (None, Some(guard)) => search.key(table, key, guard.hash(key)),
            (None, None) => {} // it is looked for under its guard
        }
    }
    search.outcome()
}

/// Whether a reply of this command tells of data, and so may leave only while this member may
/// answer (M2).
#[inline]
pub(super) fn tells_of_data(spec: &Spec) -> bool {
    let alone = matches!(spec.run, Run::Alone(_)) && spec.name != "info";
    spec.keys.first != 0 || spec.has(flag::WHOLE) || alone
}

impl Client {
    /// A request of this client cannot run now: true = it is to be shown again, the verdict says
    /// when; false = it has waited long enough.
    #[cold]
    pub(super) fn waits_for_owner(&mut self) -> bool {
        let now_ms = clock::now_ms();
        if self.unserved_until_ms == 0 {
            self.unserved_until_ms = now_ms + PATIENCE_MS;
        }
        if now_ms >= self.unserved_until_ms {
            self.unserved_until_ms = 0;
            return false;
        }
        self.verdict = Verdict::Paused {
            until_ms: now_ms + AGAIN_MS,
        };
        true
    }
}
