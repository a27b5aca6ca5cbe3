//! The limits of the host's functions. These are no instructions of Lua, so they are charged for
//! their work, and they check the rest of the interpreter's stack before they recurse on it.
//!
//! - H1: a value that is walked holds at most five references of `mlua` per level. With
//!   [`DEPTH_MAX`](crate::reply) levels and the arguments of one call they fit into
//!   `sandbox::REFERENCES`.

use crate::channel::Channel;
use mlua::Lua;

/// Bytes of the interpreter's stack that stay free below a level of a walk: for the frames of the
/// level itself, and for the calls of Lua in it.
const STACK_BYTES_LEFT: usize = 256 << 10;
/// The text of the error if there is no memory for a value.
pub(crate) const NO_MEMORY: &str = "not enough memory";

/// An interpreter, as a host's function that is charged sees it.
#[derive(Clone, Copy)]
pub(crate) struct Host<'h> {
    pub(crate) lua: &'h Lua,
    pub(crate) channel: &'h Channel,
}

impl Host<'_> {
    /// As [`Channel::charge`].
    ///
    /// # Errors
    /// The script was stopped: a text. Each later call fails, too.
    pub(crate) fn charge(&self, work: usize) -> Result<(), String> {
        let memory = || self.lua.used_memory();
        let charged = self.channel.charge(work, memory);
        charged.map_err(|stopped| stopped.to_string())
    }

    /// Must be called before each level of a walk.
    ///
    /// # Errors
    /// Too little of the stack is left: a text.
    pub(crate) fn descend(&self) -> Result<(), String> {
        let here = 0_u8;
        let left = (&raw const here)
            .addr()
            .saturating_sub(self.channel.stack_limit.get());
        if left > STACK_BYTES_LEFT {
            Ok(())
        } else {
            Err("C stack overflow".to_owned())
        }
    }
}
