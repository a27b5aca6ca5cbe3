//! One request: its command's description, the context in which it runs, and the services that
//! commands share (routing in a cluster, entries on flash, room for writes, databases).

pub(crate) mod access;
pub(crate) mod background;
pub(crate) mod bitfield;
pub(crate) mod cold;
pub(crate) mod context;
pub(crate) mod databases;
pub(crate) mod doc;
pub(crate) mod drafted;
pub(crate) mod events;
pub(crate) mod flag;
pub(crate) mod growth;
pub(crate) mod key;
pub(crate) mod keys;
pub(crate) mod kinds;
pub(crate) mod locks;
pub(crate) mod lookup;
pub(crate) mod names;
pub(crate) mod outcome;
pub(crate) mod pause;
pub(crate) mod permit;
mod queue;
pub(crate) mod refusal;
pub(crate) mod reply;
pub(crate) mod room;
pub(crate) mod routing;
pub(crate) mod row;
pub(crate) mod run;
pub(crate) mod secrets;
pub(crate) mod served_keys;
pub(crate) mod slow_timer;
pub(crate) mod spec;
pub(crate) mod store_access;
pub(crate) mod turn;
pub(crate) mod walk;

pub use crate::state::patience::AGAIN_MS;
pub use cold::{look_ahead, too_much};
pub use databases::restore;
pub use key::Key;
pub use pause::native_waits_ms;
pub use spec::{Commands, Spec};
pub use turn::Ending;

/// Keys that one group hints before it runs: enough to overlap many misses, few enough to stay in
/// the first-level cache (64 keys × two lines).
pub(crate) const GROUP_KEYS: usize = 64;
/// Keys for which a thread keeps memory between requests.
pub(crate) const KEYS_KEPT: usize = 16 * GROUP_KEYS;
/// Keys whose entries are hinted ahead of the running request: about as many lines as a core can
/// have in flight. So memory works while requests run, not before.
pub(crate) const ENTRIES_AHEAD: usize = 16;
