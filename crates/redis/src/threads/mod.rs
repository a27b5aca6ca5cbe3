//! Messages between the threads of a server, and the parts of a thread that others see.

pub(crate) mod all;
pub(crate) mod background;
pub(crate) mod bell;
pub(crate) mod clients;
pub(crate) mod commits;
pub(crate) mod mailbox;
pub(crate) mod publication;
pub(crate) mod start;
pub(crate) mod thread;
pub(crate) mod watch;
pub(crate) mod works;

pub use all::Threads;
pub use background::Background;
pub use bell::Bell;
pub use clients::ClientRecord;
pub use mailbox::{Invalid, Lost, Message};
pub use publication::{CROWDED_BYTES, Kind, Publication};
pub use start::{Starter, Work};
pub use thread::ThreadShared;
pub use watch::{Running, Stop, Watch};
