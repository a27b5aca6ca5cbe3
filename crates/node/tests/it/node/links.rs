//! Slow links between servers: large messages take their time, and nodes are told that they move.

use crate::node::net::{Event, Net, Waiting};
use duramen_node::NodeInput;

/// Interval at which nodes are told that connections move.
const MOVING_US: u64 = 100_000;
const SMALL_BYTES: usize = 4096;

impl Net {
    /// The bytes of a large message on slow links, and the input that tells the server that waits
    /// for it, or for its answer, that the connection moves.
    pub(super) fn large(&self, event: &Event) -> Option<(usize, Event)> {
        let Event::ToNode(n, life, input) = event else {
            return None;
        };
        let (bytes, n, life, call) = match (input, life) {
            (NodeInput::Request(received), _) => match self.waiting[&received.request] {
                Waiting::Node(asker, life, call) => (received.payload.len(), asker, life, call),
                Waiting::Coordinator(..) => return None,
            },
            (
                NodeInput::PeerAnswered {
                    call,
                    answer: Some((_, payload)),
                },
                Some(life),
            ) => (payload.len(), *n, *life, *call),
            _ => return None,
        };
        let moving = Event::ToNode(n, Some(life), NodeInput::Moving(vec![call]));
        (self.slow.is_some() && bytes > SMALL_BYTES).then_some((bytes, moving))
    }

    pub(super) fn send_slowly(&mut self, from: usize, bytes: usize, moving: Event, event: Event) {
        let now_us = self.now_us;
        let slow = self.slow.as_mut().expect("only called with one");
        let free_us = slow.free_us.entry(from).or_default();
        let began_us = now_us.max(*free_us);
        *free_us = began_us + bytes as u64 * 1_000_000 / slow.bytes_per_s;
        slow.bytes += bytes as u64;
        let delay_us = *free_us - now_us;
        for moved_us in (MOVING_US..delay_us).step_by(MOVING_US as usize) {
            self.at(moved_us, moving.clone());
        }
        self.at(delay_us, event);
    }
}
