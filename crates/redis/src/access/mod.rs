//! Users and their rights: commands, refusals, the audit log.

pub(crate) mod audit;
pub(crate) mod client_line;
pub(crate) mod commands;
pub(crate) mod record;
pub(crate) mod refusals;
pub(crate) mod users;

pub use audit::{Outcome, Record};
pub use commands::origin;
pub use refusals::Origin;
pub use users::Reason;
