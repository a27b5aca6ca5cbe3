//! One head of a log without a store, for the model checkers.

use super::Log;
use crate::LogOptions;
use crate::head::Tail;
use crate::space::Space;
use duramen_base::ids::Level;

/// A log with one head, in a space that was made for a store with a log.
pub struct OneHead(Log);

impl OneHead {
    pub fn new(space: &Space) -> OneHead {
        OneHead(Log::new(&LogOptions::new(1), space, 1))
    }

    pub fn log(&self) -> &Log {
        &self.0
    }

    /// The head continues in a fresh window.
    pub fn roll(&self, space: &Space, tail: &mut Tail, window: u32) {
        self.0.open_window(space, window, 0);
        self.0.enter(space, 0, tail, window);
        self.publish(tail);
    }

    /// Everything appended so far may be collected, unless a group is open.
    pub fn publish(&self, tail: &Tail) {
        self.0.streams[0].publish(tail.position(), tail.in_group());
    }

    pub fn begin_group(&self, tail: &mut Tail) {
        self.0.begin_group(tail);
    }

    pub fn end_group(&self, tail: &mut Tail) {
        self.0.end_group(0, tail);
    }

    /// True if the entry at a location is synced, judged by its position.
    pub fn is_reached(&self, space: &Space, location: u64) -> bool {
        let (stream, end) = self.0.place_of(space, location);
        end <= self.0.end_of(stream, Level::Synced)
    }

    pub fn is_durably_closed(&self, window: u32) -> bool {
        self.0.is_durably_closed(window as usize)
    }
}
