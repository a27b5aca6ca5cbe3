//! The clock of one slice of EXEC: where a run of the queue stops (`slices`).

use crate::command::context::Context;
use crate::command::spec::Request;
use duramen_engine::Guard;
use std::time::{Duration, Instant};

/// The time of one slice: all suspended EXECs of a thread share it.
pub(super) const SLICE: Duration = Duration::from_millis(2);
/// Minimum time of a slice: a shorter one would cost as much as its work.
pub(super) const SLICE_MIN: Duration = Duration::from_micros(200);
/// The clock is looked at after so much work, or so many commands.
const LOOK_EVERY_BYTES: u64 = 4 << 10;
const LOOK_EVERY_STEPS: usize = 64;
/// Where a run of the queue may stop.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Stops {
    Never,
    /// The run may stop before the first command that writes: nothing must be taken back then.
    BeforeWrites,
    /// The run may stop between any two commands: it runs on a draft.
    Anywhere,
}

/// One run of the queue, or a part of it.
pub(super) struct Slice {
    /// The number of the first command.
    pub(super) from: usize,
    stops: Stops,
    ends: Instant,
    work: u64,
    looked_at: usize,
}

impl Slice {
    pub(super) fn new(
        from: usize,
        stops: Stops,
        time: Duration,
        ctx: &Context<'_>,
        guard: &Guard<'_>,
    ) -> Slice {
        Slice {
            from,
            stops,
            ends: Instant::now() + time,
            work: guard.pin().work().met_bytes() + ctx.thread.work(),
            looked_at: from,
        }
    }

    /// Whether the run stops before this command. One command always runs.
    pub(super) fn is_over(
        &mut self,
        n: usize,
        request: &Request<'_>,
        ctx: &Context<'_>,
        guard: &Guard<'_>,
    ) -> bool {
        if self.stops == Stops::BeforeWrites && request.spec.writes(&request.args) {
            self.stops = Stops::Never;
        }
        if self.stops == Stops::Never || n == self.from {
            return false;
        }
        let work = guard.pin().work().met_bytes() + ctx.thread.work();
        let is_due = self.stops == Stops::Anywhere
            || work - self.work >= LOOK_EVERY_BYTES
            || n - self.looked_at >= LOOK_EVERY_STEPS;
        if !is_due {
            return false;
        }
        (self.work, self.looked_at) = (work, n);
        Instant::now() >= self.ends
    }
}
