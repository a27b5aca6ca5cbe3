//! A run of EXEC between two slices.

use crate::reply::effects::Effects;
use crate::state::db::{DBS, Db};
use duramen_acl::User;
use duramen_base::ids::TabletsVersion;
use duramen_engine::{Draft, TableId};
use std::sync::Arc;
use std::time::Duration;

/// See the head of this file.
pub(crate) struct ExecRun {
    pub(crate) draft: Box<Draft>,
    /// The tablet list with which its draft began (drafted::R4).
    pub(crate) list: Option<TabletsVersion>,
    /// The number of the next step.
    pub(crate) step: usize,
    /// The replies of the earlier steps.
    pub(crate) reply: Vec<u8>,
    pub(crate) effects: Effects,
    /// The client's database after these steps.
    pub(crate) db: Db,
    pub(crate) tables: [Option<TableId>; DBS],
    pub(crate) user: Option<Arc<User>>,
    /// The time of its scripts so far.
    pub(crate) scripts_took: Duration,
}
