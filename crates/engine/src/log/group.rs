//! A head's segments and groups in its stream: entered, closed and published by the holder of the
//! head's lock.

use super::Log;
use crate::head::Tail;
use crate::space::Space;
use duramen_base::planted::{Bug, has_bug};

impl Log {
    /// Continues in `window`, which the open group has set aside: the group has a part in each
    /// segment, and is still collected as a whole (engine::log::L2).
    pub(crate) fn span(&self, space: &Space, head: usize, tail: &mut Tail, window: u32) {
        let has_begun = !tail.group().is_empty();
        tail.end_group();
        self.enter(space, head, tail, window);
        if has_begun {
            self.streams[head].continue_group();
        }
        self.begin_group(tail);
        self.publish(head, tail);
    }

    /// Closes the head's segment, if it has one, and continues in `window`.
    pub(crate) fn enter(&self, space: &Space, head: usize, tail: &mut Tail, window: u32) {
        self.close(space, head, tail);
        tail.roll(space, window);
        tail.set_base(self.enter_stream(head, window));
    }

    /// Entries that the holder of the head's lock appends from now on form one group.
    pub(crate) fn begin_group(&self, tail: &mut Tail) {
        if !has_bug(Bug::GroupsInParts) {
            tail.begin_group();
        }
    }

    /// Ends the group and makes its entries collectable.
    pub(crate) fn end_group(&self, head: usize, tail: &mut Tail) {
        tail.end_group();
        if tail.window().is_some() {
            self.streams[head].publish(tail.position(), false);
        }
    }

    /// Publishes the appends of the holder of the head's lock to the stream.
    pub(crate) fn publish(&self, head: usize, tail: &Tail) {
        self.streams[head].publish(tail.position(), tail.in_group());
    }

    /// Ends the head's segment.
    fn close(&self, space: &Space, head: usize, tail: &mut Tail) -> bool {
        let length = tail.length();
        let closed = tail.close(space).is_some();
        if closed {
            self.streams[head].close(length);
        }
        closed
    }

    /// Ends the segment of a head whose lock the caller holds; the next append opens another.
    pub(crate) fn close_head(&self, space: &Space, head: usize, tail: &mut Tail) {
        assert!(!tail.in_group(), "H3");
        if self.close(space, head, tail) {
            self.streams[head].publish_close();
        }
    }
}
