//! Counters and times of what a server does.

pub(crate) mod counters;
pub(crate) mod error_names;
pub(crate) mod figure;
pub(crate) mod latency;
pub(crate) mod local_use;
pub(crate) mod meter;
pub(crate) mod slow_log;
pub(crate) mod timing;
pub(crate) mod totals;

pub use counters::{Family, Histogram, THREADS, ThreadCounters};
pub use figure::{Figure, Value};
pub use latency::Event;
pub use local_use::{LocalSeat, LocalUse};
