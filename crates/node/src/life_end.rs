//! The end of a life. The node notes it, and its backup's service, which is on another thread,
//! looks whether it has come (backup_service::B0).

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Whether a life is over; shared by its parts.
#[derive(Clone, Debug, Default)]
pub(crate) struct LifeEnd(Arc<AtomicBool>);

impl LifeEnd {
    pub fn note(&self) {
        self.0.store(true, Ordering::Release);
    }

    #[inline]
    pub fn has_come(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}
