//! The parts of a simulated server: queues that serve one piece of work after another, in simulated
//! nanoseconds.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Nanoseconds of simulated time.
pub(super) type Ns = u64;

pub(super) const SECOND: Ns = 1_000_000_000;
pub(super) const MICROSECOND: Ns = 1_000;

/// The resources of a server, and the costs of its work.
#[derive(Clone, Copy, Debug)]
pub(super) struct Machine {
    pub cores: usize,
    /// Bytes per second.
    pub disk_read: f64,
    pub disk_write: f64,
    /// Bytes per second in each direction.
    pub network: f64,
    /// One way, with the wake-up at its end.
    pub latency: Ns,
    /// A sync of a few bytes on disk.
    pub sync: Ns,
    pub costs: Costs,
}

/// Bytes per second and core.
#[derive(Clone, Copy, Debug)]
pub(super) struct Costs {
    /// A recovery master replays entries.
    pub replay: f64,
    /// A backup verifies and divides a segment that it has read.
    pub divide: f64,
    /// A backup stores a whole segment: verifies it, writes it to its disk.
    pub keep: f64,
    /// Bytes pass through a socket, cost at each end.
    pub send: f64,
    pub receive: f64,
}

pub(super) fn ns(bytes: u64, per_second: f64) -> Ns {
    (bytes as f64 / per_second * SECOND as f64) as Ns
}

/// Serves requests in their order, with one or several workers.
#[derive(Clone, Debug)]
pub(super) struct Queue {
    free_at: BinaryHeap<Reverse<Ns>>,
    pub busy: Ns,
}

impl Queue {
    pub fn new(hands: usize) -> Queue {
        Queue {
            free_at: (0..hands.max(1)).map(|_| Reverse(0)).collect(),
            busy: 0,
        }
    }

    /// The time when work requested at `now` is done.
    pub fn serve(&mut self, now: Ns, work: Ns) -> Ns {
        let Reverse(free_at) = self.free_at.pop().unwrap_or_default();
        let end = now.max(free_at) + work;
        self.free_at.push(Reverse(end));
        self.busy += work;
        end
    }
}

/// A simulated server.
#[derive(Clone, Debug)]
pub(super) struct Server {
    pub cores: Queue,
    pub disk: Queue,
    pub inwards: Queue,
    pub outwards: Queue,
}

impl Server {
    pub fn new(machine: &Machine) -> Server {
        Server {
            cores: Queue::new(machine.cores),
            disk: Queue::new(1),
            inwards: Queue::new(1),
            outwards: Queue::new(1),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_waits_for_a_free_hand() {
        let mut queue = Queue::new(2);
        assert_eq!(queue.serve(10, 5), 15);
        assert_eq!(queue.serve(10, 5), 15);
        assert_eq!(queue.serve(10, 5), 20);
        assert_eq!(queue.serve(100, 5), 105);
        assert_eq!(queue.busy, 20);
    }
}
