//! State that a connection keeps for requests that wait for entries on flash, or that run in parts.

use super::conflicts::Conflicts;
use super::progress::Progress;
use crate::flash::unfetched::Unfetched;
use crate::threads::clients::ClientRecord;
use duramen_acl::Users;
use duramen_engine::TableId;
use duramen_engine::flash::Cold;
use std::sync::Arc;

/// Progress of KEYS, RANDOMKEY, CLIENT LIST or ACL LIST.
#[derive(Default)]
pub(crate) struct Walk {
    /// The table behind its database when the walk began.
    pub(super) table: Option<TableId>,
    pub(crate) cursor: u64,
    pub(crate) keys: usize,
    /// The replies of these keys, or the key that RANDOMKEY has drawn.
    pub(crate) found: Vec<u8>,
    /// RANDOMKEY: 1 = from its random place to the end, 2 = from the start.
    pub(crate) passes: u8,
    /// The walk made progress since the request was presented.
    pub(crate) moved: bool,
    /// CLIENT LIST: those to show; the cursor is the place of the next one.
    pub(crate) clients: Vec<Arc<ClientRecord>>,
    /// ACL LIST: the users when it began.
    pub(crate) users: Option<Arc<Users>>,
}

/// Entries that a client's parked requests need, and the state kept for these requests.
#[derive(Default)]
pub(crate) struct Parking {
    /// Those that the first request has noted when it looked last.
    pub(crate) wanted: Vec<Cold>,
    /// Entries for the requests behind, and their bytes.
    pub(crate) ahead: Vec<Cold>,
    pub(crate) ahead_bytes: usize,
    /// Entries that were not fetched, with the reason.
    pub(crate) failed: Vec<(Cold, Unfetched)>,
    /// The walk of KEYS and its like (cold::C4).
    pub(super) walk: Option<Walk>,
    /// The progress of a command that combines values (computed::C2).
    pub(super) combined: Option<Progress>,
    /// The runs of SORT that were in vain.
    pub(super) conflicts: Conflicts,
    /// See `Client::take_progress`.
    pub(super) progressed: bool,
    /// Monitors have been sent the parked request.
    pub(crate) monitored: bool,
    /// The parked request is in the audit log.
    pub(crate) audited: bool,
    /// Bytes that were lent for the parked request.
    pub(super) lent: usize,
    /// A walk needs more entries than may be fetched at once: it requests the first of them, and
    /// can use a part of those.
    pub(crate) in_parts: bool,
    /// How often its lent entries were given up because there was no room for more beside them.
    pub(super) given_up: u32,
}
