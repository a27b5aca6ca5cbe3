//! Messages of PUBLISH to the other members: each gets all of them, in the order of this member.
//!
//! **Invariants**
//! - B1: one batch is on its way to a member at a time, of [`BATCH_BYTES`] or one message, so pings
//!   on the same link wait for one batch at most.
//! - B2: a batch without an answer is sent again while its receiver is up. The receiver recognizes
//!   it by its number and delivers it once ([`Heard`]).
//! - B3: the messages that wait for a member are bounded: beyond [`WAITING_BYTES_MAX`] later ones
//!   are dropped for it. As in Redis, a message is delivered at most once, and no client waits for
//!   its delivery.
//!
//! **Concurrency** none: one owner, the node's thread.

use duramen_base::ids::ServerId;
use duramen_config::seldom;
use duramen_redis::membership::BATCH_BYTES;
use duramen_wire::native::Slice;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

/// Maximum bytes that wait for one member: a few seconds of a fast link.
const WAITING_BYTES_MAX: usize = 64 << 20;
/// A batch without an answer is sent again after this time.
const AGAIN_US: u64 = 100_000;
const _: () = assert!(WAITING_BYTES_MAX > 16 * BATCH_BYTES);

/// Another member that takes messages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Receiver {
    pub server: ServerId,
    pub address: String,
}

/// A batch to be sent.
pub(super) struct Batch {
    pub to: Receiver,
    pub number: u64,
    pub payload: Slice,
}

/// The messages for one member.
struct Link {
    to: Receiver,
    waiting: VecDeque<Slice>,
    bytes: usize,
    /// Number of the first batch in `waiting`.
    number: u64,
    is_on_its_way: bool,
    /// Not to be sent before this time.
    from_us: u64,
}

/// The messages for all other members.
#[derive(Default)]
pub(super) struct Broadcast {
    links: BTreeMap<ServerId, Link>,
}

impl Broadcast {
    /// Adds a batch for these members.
    pub fn add(&mut self, batch: Vec<u8>, receivers: impl Iterator<Item = Receiver>) {
        let bytes = batch.len();
        let batch = Slice::of(Arc::new(batch), 0..bytes);
        for to in receivers {
            let link = self.links.entry(to.server).or_insert_with(|| Link {
                to: to.clone(),
                waiting: VecDeque::new(),
                bytes: 0,
                number: 1,
                is_on_its_way: false,
                from_us: 0,
            });
            link.to = to;
            if link.bytes + bytes > WAITING_BYTES_MAX && !link.waiting.is_empty() {
                let server = link.to.server;
                seldom!(warn, %server, "messages of PUBLISH are dropped for a member that is slow to take them");
                continue;
            }
            link.bytes += bytes;
            link.waiting.push_back(batch.clone());
        }
    }

    /// Forgets members that are not up.
    pub fn retain(&mut self, is_up: impl Fn(ServerId) -> bool) {
        self.links.retain(|server, _| is_up(*server));
    }

    /// The batches to be sent now (B1).
    pub fn due(&mut self, now_us: u64) -> Vec<Batch> {
        let mut due = Vec::new();
        for link in self.links.values_mut() {
            if !link.is_on_its_way
                && now_us >= link.from_us
                && let Some(payload) = link.waiting.front()
            {
                link.is_on_its_way = true;
                due.push(Batch {
                    to: link.to.clone(),
                    number: link.number,
                    payload: payload.clone(),
                });
            }
        }
        due
    }

    /// Ends the wait for an answer to a batch. `is_done` is true if the member has answered the
    /// batch or cannot understand it, and false if there was no answer.
    pub fn answered(&mut self, server: ServerId, is_done: bool, now_us: u64) {
        let Some(link) = self.links.get_mut(&server) else {
            return;
        };
        link.is_on_its_way = false;
        if !is_done {
            link.from_us = now_us + AGAIN_US;
        } else if let Some(done) = link.waiting.pop_front() {
            link.bytes -= done.len();
            link.number += 1;
        }
    }

    pub fn is_empty(&self) -> bool {
        self.links.values().all(|link| link.waiting.is_empty())
    }
}

/// For each other member, the number of the last batch that it has sent.
#[derive(Default)]
pub(super) struct Heard {
    numbers: BTreeMap<ServerId, u64>,
}

impl Heard {
    /// Whether a batch is new (B2).
    pub fn is_new(&mut self, sender: ServerId, number: u64) -> bool {
        let last = self.numbers.entry(sender).or_default();
        let is_new = number > *last;
        *last = number.max(*last);
        is_new
    }

    /// Forgets members that are not up.
    pub fn retain(&mut self, is_up: impl Fn(ServerId) -> bool) {
        self.numbers.retain(|server, _| is_up(*server));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn receiver(n: u32) -> Receiver {
        Receiver {
            server: ServerId::new(n, 1),
            address: format!("there:{n}"),
        }
    }

    fn sent(broadcast: &mut Broadcast, now_us: u64) -> Vec<(ServerId, u64, Vec<u8>)> {
        let due = broadcast.due(now_us).into_iter();
        due.map(|batch| (batch.to.server, batch.number, batch.payload.to_vec()))
            .collect()
    }

    #[test]
    fn each_member_gets_all_batches_one_by_one_and_lost_ones_again() {
        let (mut broadcast, [one, two]) = (Broadcast::default(), [receiver(1), receiver(2)]);
        for text in ["a", "b"] {
            let receivers = [one.clone(), two.clone()].into_iter();
            broadcast.add(text.as_bytes().to_vec(), receivers);
        }
        let first = [one.server, two.server].map(|server| (server, 1, b"a".to_vec()));
        assert_eq!(sent(&mut broadcast, 5), first);
        assert_eq!(sent(&mut broadcast, 6), [], "B1");
        broadcast.answered(one.server, true, 7);
        broadcast.answered(two.server, false, 7);
        assert_eq!(sent(&mut broadcast, 8), [(one.server, 2, b"b".to_vec())]);
        assert_eq!(sent(&mut broadcast, 7 + AGAIN_US), [first[1].clone()], "B2");
        broadcast.answered(one.server, true, 9);
        broadcast.retain(|server| server == one.server);
        assert!(broadcast.is_empty());
        let mut heard = Heard::default();
        let news = [1, 1, 2, 1, 2, 3].map(|number| heard.is_new(two.server, number));
        assert_eq!(news, [true, false, true, false, false, true]);
        assert!(heard.is_new(ServerId::new(2, 2), 1), "another life");
    }

    #[test]
    fn messages_for_a_slow_member_are_dropped_at_last() {
        let mut broadcast = Broadcast::default();
        for _ in 0..70 {
            broadcast.add(vec![0; 1 << 20], std::iter::once(receiver(1)));
        }
        let mut taken = 0;
        while let [(server, number, _)] = &sent(&mut broadcast, 0)[..] {
            taken += 1;
            assert_eq!(*number, taken);
            broadcast.answered(*server, true, 0);
        }
        assert_eq!(taken, 64);
    }
}
