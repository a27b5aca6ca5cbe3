//! Future events, in order.

use std::collections::BTreeMap;

/// Events in the order of their times; those of one time in the order of their numbers.
pub struct Queue<E> {
    events: BTreeMap<(u64, u64), E>,
    last_number: u64,
}

impl<E> Default for Queue<E> {
    fn default() -> Queue<E> {
        Queue {
            events: BTreeMap::new(),
            last_number: 0,
        }
    }
}

impl<E> Queue<E> {
    /// A number that was not given before, to an event or to the caller.
    pub fn number(&mut self) -> u64 {
        self.last_number += 1;
        self.last_number
    }

    pub fn push(&mut self, at_us: u64, event: E) {
        let number = self.number();
        self.events.insert((at_us, number), event);
    }

    /// All events, in order.
    pub fn events(&self) -> impl Iterator<Item = &E> {
        self.events.values()
    }

    /// The time of the next event; `u64::MAX` if there is none.
    pub fn next_us(&self) -> u64 {
        let next = self.events.first_key_value();
        next.map_or(u64::MAX, |((at_us, _), _)| *at_us)
    }

    /// Takes the next event, with its time.
    pub fn pop(&mut self) -> Option<(u64, E)> {
        let ((at_us, _), event) = self.events.pop_first()?;
        Some((at_us, event))
    }
}
