//! The release of effects on other clients, when the replies of their turn may be sent
//! (effects::D1).

use super::connection::Connection;
use super::here::Here;
use duramen_redis::pubsub;
use duramen_redis::reply::Effects;

#[derive(Default)]
pub(super) struct Releases {
    /// The thread may have posted messages to its own mailbox in this round.
    has_posted: bool,
}

impl Releases {
    /// Releases the effects of the turn whose replies begin at `from` in the connection's output.
    #[inline]
    pub(super) fn release(
        &mut self,
        here: Here<'_>,
        connection: &mut Connection,
        effects: Effects,
        from: usize,
    ) {
        if effects.is_empty() {
            return;
        }
        let out = Some((&mut connection.output, from));
        pubsub::release(effects, here.shared, here.number, out);
        self.has_posted = true;
        connection.crowds = true;
    }

    /// As [`release`](Self::release), for a connection that is closed.
    pub(super) fn release_orphan(&mut self, here: Here<'_>, effects: Effects) {
        pubsub::release(effects, here.shared, here.number, None);
        self.has_posted = true;
    }

    /// The thread has posted a message to itself.
    pub(super) fn note_posted(&mut self) {
        self.has_posted = true;
    }

    pub(super) fn has_posted(&self) -> bool {
        self.has_posted
    }

    pub(super) fn take_posted(&mut self) -> bool {
        std::mem::take(&mut self.has_posted)
    }
}
