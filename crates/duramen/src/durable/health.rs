//! Health of the disk: whether it takes writes, and the notification of changes.

use crate::{DiskState, Error};
use duramen_engine::Log;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Mutex, OnceLock};

/// The state of the disk. `Failed` is permanent.
#[derive(Default)]
pub(crate) struct Health {
    /// 0 ok, 1 full, 2 failed: for a check without the lock. Release, pairs with Acquire in
    /// `check`.
    code: AtomicU8,
    reason: Mutex<String>,
    hook: OnceLock<Hook>,
    /// The state, as a number, that the hook was called with last.
    told: AtomicU8,
}

type Hook = Box<dyn Fn(&DiskState) + Send + Sync>;

fn code(state: &DiskState) -> u8 {
    match state {
        DiskState::Ok => 0,
        DiskState::Full => 1,
        DiskState::Failed(_) => 2,
    }
}

impl Health {
    pub fn set(&self, state: DiskState, log: &Log) {
        let code = code(&state);
        let before = self.code.load(Ordering::Acquire);
        if before == code || before == 2 {
            return;
        }
        if let DiskState::Failed(reason) = state {
            *self.reason.lock().expect("the reason of a failure") = reason;
        }
        self.code.store(code, Ordering::Release);
        match code {
            2 => log.disk_failed(),
            _ => log.disk_full(code == 1),
        }
        self.tell(log);
    }

    /// Whether the disk takes writes that add data.
    pub fn state(&self, log: &Log) -> DiskState {
        match self.get() {
            DiskState::Ok if log.swaps().disk().is_short() => DiskState::Full,
            state => state,
        }
    }

    /// Calls the hook if the state is another one than at the last call.
    pub fn tell(&self, log: &Log) {
        let state = self.state(log);
        let code = code(&state);
        if self.told.load(Ordering::Relaxed) != code
            && self.told.swap(code, Ordering::AcqRel) != code
            && let Some(hook) = self.hook.get()
        {
            hook(&state);
        }
    }

    /// Calls `hook` for each later change. Only the first hook counts.
    pub fn watch(&self, hook: Hook) {
        self.hook.get_or_init(|| hook);
    }

    pub fn get(&self) -> DiskState {
        match self.code.load(Ordering::Acquire) {
            0 => DiskState::Ok,
            1 => DiskState::Full,
            _ => DiskState::Failed(self.reason.lock().expect("the reason of a failure").clone()),
        }
    }

    /// # Errors
    /// [`Error::DiskFull`], [`Error::DiskFailed`] while the disk takes no writes.
    pub fn check(&self) -> Result<(), Error> {
        match self.get() {
            DiskState::Ok => Ok(()),
            DiskState::Full => Err(Error::DiskFull("no space for the log".to_owned())),
            DiskState::Failed(reason) => Err(Error::DiskFailed(reason)),
        }
    }
}
