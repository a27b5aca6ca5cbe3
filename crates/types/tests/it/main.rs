//! Tests of collections and streams.

mod properties;
mod streams;

use rustix::time::{ClockId, clock_gettime};
use std::time::Duration;

/// Processor time of this thread: a cost that does not depend on what else the machine does.
fn processor_time() -> Duration {
    let now = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(now.tv_sec as u64, now.tv_nsec as u32)
}
