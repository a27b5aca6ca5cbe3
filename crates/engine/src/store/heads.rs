//! The open segments of the heads, for those who want them closed.

use crate::Store;
use crate::core::Core;
use duramen_base::ids::SegmentId;
use duramen_base::planted::{Bug, has_bug};
use duramen_base::waits::{self, NOTHING, Resource};

/// The open segments of a store's heads; from [`Store::heads`].
#[derive(Clone, Copy)]
pub struct Heads<'s> {
    core: &'s Core,
}

impl Store {
    /// The open segments of its heads.
    pub fn heads(&self) -> Heads<'_> {
        Heads { core: &self.core }
    }
}

impl Heads<'_> {
    /// Closes the segments of all heads, so that everything appended so far is in closed ones.
    /// Waits for threads that are writing.
    pub fn close_all(self) {
        let Some(log) = self.core.log.as_deref() else {
            return;
        };
        let _noted = waits::note(Resource::Head, NOTHING);
        for head in self.core.actors.heads() {
            let mut tail = head.tail.lock().expect("head");
            log.streams()
                .close_head(&self.core.space, head.number, &mut tail);
        }
    }

    /// Closes the segments of heads that are below a position: later appends are above it. Waits
    /// for threads that are writing.
    ///
    /// # Panics
    /// If the store has no log.
    pub fn close_below(self, position: SegmentId) {
        let core = self.core;
        let log = core.log.as_deref().expect("a store with a log");
        let _noted = waits::note(Resource::Head, NOTHING);
        for head in core.actors.heads() {
            let mut tail = head.tail.lock().expect("head");
            let window = tail.window();
            if window.is_some_and(|window| log.segment_of(window as usize) < position) {
                log.streams()
                    .close_head(&core.space, head.number, &mut tail);
            }
        }
    }

    /// Closes the segment if it is a head's open one. Does nothing if another thread is using that
    /// head.
    pub fn close(self, segment: SegmentId) {
        let core = self.core;
        let Some(log) = core.log.as_deref() else {
            return;
        };
        for head in core.actors.heads() {
            let Ok(mut tail) = head.tail.try_lock() else {
                continue;
            };
            let window = tail.window();
            if window.is_some_and(|window| log.segment_of(window as usize) == segment) {
                log.streams()
                    .close_head(&core.space, head.number, &mut tail);
            }
        }
    }

    /// Closes the segments of all heads and returns a position: later appends are in segments with
    /// higher ids, earlier ones in lower ones. For the creation of a tablet on this server: entries
    /// of an earlier time of the same tablet are below. (A running cleaning pass has lower ids, and
    /// copies no later entry.)
    ///
    /// It waits for no head (waits::W4): one that another thread is using stays open, and its next
    /// appends may be below the position. Call [`close_below`](Self::close_below) before the tablet
    /// is served.
    ///
    /// # Panics
    /// If the store has no log.
    pub fn try_roll(self) -> SegmentId {
        let log = self.core.log.as_deref().expect("a store with a log");
        let position = log.numbers().new_segment_id();
        if has_bug(Bug::RollsOnNodeThread) {
            self.close_all();
        }
        let core = self.core;
        for head in core.actors.heads() {
            let Ok(mut tail) = head.tail.try_lock() else {
                continue;
            };
            log.streams()
                .close_head(&core.space, head.number, &mut tail);
        }
        position
    }
}
