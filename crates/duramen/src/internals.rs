//! Internals for the server, the members of a cluster, the tools and the simulator: not stable, and
//! no part of the embedded API.

pub use crate::accepted::{Losses, accept, losses};
pub use crate::directory::Directory;
pub use crate::durable::{Backups, Bytes, Call, Repair, RepairStep, ToBackups};
pub use crate::hints::Hints;
pub use crate::member::MemberOptions;
pub use crate::restart::{MemberDisk, member_disk};
pub use crate::salvage::{Lost, Salvaged, salvage};
pub use crate::writer::LogWriter;
pub use duramen_backup::Copies;
pub use duramen_backup::os::{finish_removal, is_copy, remove_copy, store_of};
pub use duramen_engine::Position;
