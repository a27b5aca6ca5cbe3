//! One head of a log without a store, for the model checkers.

use super::{Log, begin_group};
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
        self.0
            .streams
            .enter(&self.0.windows, space, 0, tail, window);
        self.publish(tail);
    }

    /// Everything appended so far may be collected, unless a group is open.
    pub fn publish(&self, tail: &Tail) {
        self.0.streams.publish(0, tail);
    }

    pub fn begin_group(&self, tail: &mut Tail) {
        begin_group(tail);
    }

    pub fn end_group(&self, tail: &mut Tail) {
        self.0.streams.end_group(0, tail);
    }

    /// True if the entry at a location is synced, judged by its position.
    pub fn is_reached(&self, space: &Space, location: u64) -> bool {
        let (stream, end) = self.0.windows.place_of(space, location);
        end <= self.0.streams.end_of(stream, Level::Synced)
    }

    pub fn is_durably_closed(&self, window: u32) -> bool {
        self.0.windows.is_durably_closed(window)
    }
}
