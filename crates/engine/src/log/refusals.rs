//! Reasons why the log takes no writes now.

use crate::Error;
use duramen_base::sync::{AtomicBool, AtomicU8, Ordering};

/// A reason; each is a bit.
#[derive(Clone, Copy)]
pub enum Refusal {
    /// The disk has no space.
    Full = 1,
    /// The disk failed.
    Failed = 2,
    /// The log has ended.
    Closed = 4,
}

#[derive(Default)]
pub struct Refusals {
    /// The reasons; 0 = writes are not refused.
    reasons: AtomicU8,
    /// Survivors could not be written for want of disk space.
    cannot_clean: AtomicBool,
}

impl Refusals {
    /// Sets or takes back a reason. Release pairs with Acquire in `refusal`.
    pub(super) fn set(&self, reason: Refusal, refuses: bool) {
        if refuses {
            self.reasons.fetch_or(reason as u8, Ordering::Release);
        } else {
            self.reasons.fetch_and(!(reason as u8), Ordering::Release);
        }
    }

    /// # Errors
    /// [`Error::DiskFull`], [`Error::DiskFailed`], [`Error::Closed`] if nothing can be written now.
    #[inline(always)]
    pub(crate) fn check(&self) -> Result<(), Error> {
        if self.reasons.load(Ordering::Relaxed) != 0 {
            self.refusal()
        } else {
            Ok(())
        }
    }

    #[cold]
    fn refusal(&self) -> Result<(), Error> {
        let reasons = self.reasons.load(Ordering::Acquire);
        let has = |reason: Refusal| reasons & reason as u8 != 0;
        if has(Refusal::Closed) {
            Err(Error::Closed)
        } else if has(Refusal::Failed) {
            Err(Error::DiskFailed)
        } else if has(Refusal::Full) {
            Err(Error::DiskFull)
        } else {
            Ok(())
        }
    }

    /// The disk has no space for survivors: a thread that waits for memory which they would free
    /// waits in vain.
    pub fn set_cannot_clean(&self, is_full: bool) {
        self.cannot_clean.store(is_full, Ordering::Release);
    }

    pub(crate) fn cannot_clean(&self) -> bool {
        self.cannot_clean.load(Ordering::Acquire)
    }
}
