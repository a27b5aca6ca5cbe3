//! Rights of users: commands, changes, refusals, records of requests. The users and the audit log
//! are in `state::access`.

mod changes;
pub(crate) mod client_line;
pub(crate) mod commands;
pub(crate) mod record;
pub(crate) mod refusals;

pub use crate::state::access::audit::{Outcome, Record};
pub use crate::state::access::users::Reason;
pub use commands::origin;
pub use refusals::Origin;
