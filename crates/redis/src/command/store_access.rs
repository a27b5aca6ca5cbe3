//! A request's access to the store.

use duramen_engine::{Guard, Notes, Session, TypedWrite, Work};

/// The access to the store with which a request runs.
pub(crate) enum Access<'w, 'g> {
    Guarded(&'w mut Guard<'g>),
    Session(&'w mut Session),
    /// There is no store yet.
    NoStore,
}

impl<'g> Access<'_, 'g> {
    pub(crate) fn guard(&mut self) -> Option<&mut Guard<'g>> {
        match self {
            Access::Guarded(guard) => Some(guard),
            Access::Session(_) | Access::NoStore => None,
        }
    }

    /// The counts of the thread's session.
    #[inline]
    fn work(&self) -> Option<&Work> {
        match self {
            Access::Guarded(guard) => Some(guard.pin().work()),
            Access::Session(session) => Some(session.work()),
            Access::NoStore => None,
        }
    }

    /// Bytes that the thread's session has appended to the log.
    #[inline]
    pub(crate) fn appended_bytes(&self) -> u64 {
        self.work().map_or(0, Work::appended_bytes)
    }

    /// The notes of the thread's session about its writes.
    #[inline]
    fn notes(&mut self) -> Option<&mut Notes> {
        match self {
            Access::Guarded(guard) => Some(guard.notes()),
            Access::Session(session) => Some(session.notes()),
            Access::NoStore => None,
        }
    }

    /// The typed writes that are visible by now and were not looked at yet; `None` if there are
    /// none.
    #[inline]
    pub(crate) fn typed_writes(&mut self) -> Option<&mut Vec<TypedWrite>> {
        let writes = self.notes().map(Notes::typed_writes);
        writes.filter(|writes| !writes.is_empty())
    }

    /// As [`Notes::set_origin`].
    pub(crate) fn set_origin(&mut self, client: u64) {
        if let Some(notes) = self.notes() {
            notes.set_origin(client);
        }
    }

    /// As [`Work::take_waited`].
    #[inline]
    pub(crate) fn take_waited(&self) -> bool {
        self.work().is_some_and(Work::take_waited)
    }

    /// The same access, for a shorter lifetime.
    #[inline]
    pub(crate) fn for_now(&mut self) -> Access<'_, 'g> {
        match self {
            Access::Guarded(guard) => Access::Guarded(guard),
            Access::Session(session) => Access::Session(session),
            Access::NoStore => Access::NoStore,
        }
    }
}
