//! The log writer: makes what was appended durable, in groups.

use crate::{Error, Position};
use duramen_base::ids::Level;
use std::sync::Arc;

/// Makes what was appended durable; waits for it, or says when it is. Shared by all threads.
pub struct LogWriter {}

impl LogWriter {
    /// The level that everything up to `position` has reached. Cheap.
    pub fn reached(&self, _position: &Position) -> Level {
        Level::Memory
    }

    /// Waits until `position` has reached `level`, committing on this thread if nobody else is at it.
    ///
    /// # Errors
    /// [`Error::DiskFull`], [`Error::DiskFailed`], [`Error::Closed`]: whether the write survives is then unknown.
    pub fn wait(&self, _position: &Position, _level: Level) -> Result<(), Error> {
        Err(Error::Closed)
    }

    /// Asks for everything appended so far to reach `level` soon, and returns at once; watchers are called when it has.
    pub fn demand(&self, _level: Level) {}

    /// Commits everything appended so far at `level` on this thread, unless a commit is under way: then does nothing and
    /// returns false. For a writer who is alone, this saves the way to the writer's thread and back.
    pub fn try_commit_here(&self, _level: Level) -> bool {
        false
    }

    /// Calls `waker` after every commit, from whichever thread made it, and when the disk fails. Short, and not back into this.
    pub fn watch(&self, _waker: Arc<dyn Fn() + Send + Sync>) {}

    /// Why writes are refused for good; `None` while they are not.
    pub fn failure(&self) -> Option<String> {
        None
    }
}
