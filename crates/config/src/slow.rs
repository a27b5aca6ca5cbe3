//! Settings about commands and events that take long.

/// See `table/slow.rs`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SlowConfig {
    /// Limit of the slow log, in microseconds; negative: no slow log.
    pub log_slower_than_us: i64,
    pub log_max_len: usize,
    /// Limit of `LATENCY`, in milliseconds; 0: no event is recorded.
    pub event_ms: u64,
}
