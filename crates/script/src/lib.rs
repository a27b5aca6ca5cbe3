//! Lua scripts as Redis runs them (`EVAL`): the language, its libraries, its sandbox, and the
//! conversion of replies. It runs no command and knows no store: a script that calls a command is
//! suspended, and the caller resumes it with the reply.
//!
//! - [`source`]: a script's text, its name, the flags of its first line; the cache of sources.
//! - [`machine`]: one interpreter, on a stack of its own, so that a script can be suspended
//!   anywhere.
//! - [`channel`]: the values that pass between a script and its caller.
//! - [`library`]: the text of a library of functions.
//! - [`sandbox`]: the globals that a script sees.
//! - [`host`]: what the host's functions are charged, and the stack that is left to them.
//! - [`result`]: results of the host's functions.
//! - [`raise`]: functions that raise errors at their caller's line.
//! - [`ticking`]: functions of Lua that work on long texts in one piece.
//! - [`reply`]: replies of commands as Lua values, and a script's result as a reply.
//! - [`patterns`]: the patterns of `string.find` and its like.
//! - [`json`], [`pack`], [`layout`], [`bits`]: the libraries `cjson`, `cmsgpack`, `struct`, `bit`.

mod bits;
mod call;
mod channel;
mod host;
mod json;
mod layout;
mod library;
pub mod machine;
mod number;
mod pack;
mod patterns;
mod raise;
mod random;
mod reply;
mod result;
mod sandbox;
pub mod source;
mod ticking;

pub use channel::{Answer, Arguments, Event, Job, Limits, Outcome, Program};
pub use library::{LibraryText, Registered};
pub use machine::Machine;
pub use source::{Cache, Flags, Script, sha1_hex};
