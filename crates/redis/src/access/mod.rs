//! Rights of users: commands, changes, refusals, records of requests. The users and the audit log
//! are in `state::access`.

pub(crate) mod changes;
pub(crate) mod client_line;
pub(crate) mod commands;
pub(crate) mod record;
pub(crate) mod refusals;

pub use crate::state::access::audit::{Outcome, Record};
pub use crate::state::access::users::Reason;
pub use changes::{adopt_first_users, adopt_users};
pub use commands::origin;
pub use refusals::{Origin, note_denial, note_failed_login, record_login};
