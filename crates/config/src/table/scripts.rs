//! Rows of the settings about scripts.

use super::super::{Kind, Setting};
use super::{between, row};
use duramen_base::units::{GIB, MIB};

pub(super) const SCRIPT_MEMORY: Setting = row(
    "script-memory",
    Kind::Size {
        min: MIB,
        max: 4 * GIB,
    },
    "bytes",
    "64mb",
    field!(Size(scripts.memory_bytes as usize)),
    "Memory of one script, and as much again for its writes until it ends. Scripts of one thread that take more than a slice share it, or wait for each other.",
)
.runtime();

pub(super) const BUSY_REPLY_THRESHOLD: Setting = row(
    "busy-reply-threshold",
    between(0, i64::MAX),
    "milliseconds",
    "5000",
    field!(Number(scripts.busy_ms as u64)),
    "Time after which a script is reported in the log, and fails if its keys are changed each time before it ends; 0 = never.",
)
.redis("lua-time-limit")
.runtime();
