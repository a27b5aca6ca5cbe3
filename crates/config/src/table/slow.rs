//! Rows of the settings about commands and events that take long.

use super::super::Setting;
use super::{between, row};

pub(super) const SLOWLOG_LOG_SLOWER_THAN: Setting = row(
    "slowlog-log-slower-than",
    between(-1, i64::MAX),
    "microseconds",
    "10000",
    field!(Number(slow.log_slower_than_us as i64)),
    "Execution time above which a command is recorded in SLOWLOG; 0 = all, -1 = none.",
)
.runtime();

pub(super) const SLOWLOG_MAX_LEN: Setting = row(
    "slowlog-max-len",
    between(0, 1_000_000),
    "entries",
    "128",
    field!(Number(slow.log_max_len as usize)),
    "Maximum number of entries in the slow log.",
)
.runtime();

pub(super) const LATENCY_MONITOR_THRESHOLD: Setting = row(
    "latency-monitor-threshold",
    between(0, i64::MAX),
    "milliseconds",
    "0",
    field!(Number(slow.event_ms as u64)),
    "Time from which on LATENCY records a command, a wait for the disk or for the cleaner; 0 = it records nothing.",
)
.runtime();
