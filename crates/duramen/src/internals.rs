//! Internals for the server, the members of a cluster, the tools and the simulator: not stable, and
//! no part of the embedded API.

pub use crate::member::{Backups, Bytes, Call, MemberOptions};
pub use crate::repair::{Repair, RepairStep};
pub use crate::salvage::{Lost, Salvaged, salvage};
pub use crate::writer::LogWriter;
pub use duramen_backup::Copies;
pub use duramen_backup::os::{is_store, remove_store};
pub use duramen_engine::Position;
