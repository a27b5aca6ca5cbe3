//! The open segments of the heads, and their ends.

use crate::Store;
use duramen_base::ids::SegmentId;
use duramen_base::planted::{Bug, has_bug};
use duramen_base::waits::{self, NOTHING, Resource};

impl Store {
    /// Closes the segments of all heads, so that everything appended so far is in closed ones.
    /// Waits for threads that are writing.
    pub fn close_heads(&self) {
        let Some(log) = self.log() else {
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
    pub fn close_heads_below(&self, position: SegmentId) {
        let log = self.log().expect("a store with a log");
        let core = self.core();
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
    pub fn close_head_of(&self, segment: SegmentId) {
        let Some(log) = self.log() else {
            return;
        };
        let core = self.core();
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
    /// appends may be below the position. Call [`close_heads_below`](Self::close_heads_below)
    /// before the tablet is served.
    ///
    /// # Panics
    /// If the store has no log.
    pub fn try_roll_heads(&self) -> SegmentId {
        let log = self.log().expect("a store with a log");
        let position = log.numbers().new_segment_id();
        if has_bug(Bug::RollsOnNodeThread) {
            self.close_heads();
        }
        let core = self.core();
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
