//! A segment that is being read, piece by piece, from one source after another.

use crate::requests::PeerCall;

/// A segment that is being read.
pub(super) struct Part {
    /// Number of its sources that were left, in turn.
    pub left: usize,
    /// Failures since the last progress.
    pub failed: usize,
    /// Grows when it begins anew: pieces of an earlier attempt do not count (recovery::R6).
    pub attempt: u32,
    /// The offset of the next piece; `None`: all of it has arrived.
    pub offset: Option<u32>,
    /// The highest offset so far, of all attempts.
    pub reached: u32,
    /// The unanswered requests for that piece, to one source after another; the last one counts as
    /// in flight.
    pub asked: Vec<PeerCall>,
    /// When the last one was sent.
    pub asked_us: u64,
    pub due_us: u64,
    /// Pieces that are being replayed.
    pub jobs: u32,
    /// A holder has said that its replica is bad (recovery::R7).
    pub is_bad: bool,
}

impl Part {
    pub fn new(now_us: u64) -> Part {
        Part {
            left: 0,
            failed: 0,
            attempt: 0,
            offset: Some(0),
            reached: 0,
            asked: Vec::new(),
            asked_us: now_us,
            due_us: now_us,
            jobs: 0,
            is_bad: false,
        }
    }

    /// Continues with the next source.
    pub fn leave(&mut self) {
        self.left += 1;
        self.failed += 1;
    }

    /// A piece has arrived; the next one is at this offset.
    pub fn goes_on(&mut self, next: Option<u32>) {
        self.offset = next;
        if next > Some(self.reached) {
            self.reached = next.unwrap_or_default();
            self.failed = 0;
        }
    }

    /// Begins with the next source, from the start (recovery::R6).
    pub fn turn(&mut self) {
        self.leave();
        self.attempt += 1;
        self.offset = Some(0);
        self.asked.clear();
        self.jobs = 0;
    }
}
