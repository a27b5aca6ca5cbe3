//! Counters of one thread: the thread writes them without a locked instruction, any thread reads
//! them.

use super::error_names;
use super::figure::Value::{Count, Time};
use super::figure::{Figure, counter, gauge};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// A counter (or gauge) with one writing thread.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// Only the owning thread may call this: it is a load and a store, not an atomic addition.
    #[inline]
    pub fn add(&self, n: u64) {
        let now = self.0.load(Ordering::Relaxed);
        self.0.store(now.wrapping_add(n), Ordering::Relaxed);
    }

    /// Only the owning thread may call this.
    #[inline]
    pub fn set(&self, n: u64) {
        self.0.store(n, Ordering::Relaxed);
    }

    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Commands that share one latency figure in the metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum Family {
    /// Reads one key.
    Read,
    /// Writes one key.
    Write,
    /// Reads many keys (`MGET`, `EXISTS` …).
    MultiRead,
    /// Writes many keys (`MSET`, `DEL` …).
    MultiWrite,
    /// Walks a table (`SCAN`, `KEYS`, `RANDOMKEY` …).
    Scan,
    /// `MULTI` to `EXEC`.
    Transaction,
    /// Everything else.
    Other,
}

impl Family {
    pub const ALL: [Family; 7] = [
        Family::Read,
        Family::Write,
        Family::MultiRead,
        Family::MultiWrite,
        Family::Scan,
        Family::Transaction,
        Family::Other,
    ];

    /// Its label in the metrics.
    pub fn name(self) -> &'static str {
        match self {
            Family::Read => "read",
            Family::Write => "write",
            Family::MultiRead => "multi_read",
            Family::MultiWrite => "multi_write",
            Family::Scan => "scan",
            Family::Transaction => "transaction",
            Family::Other => "other",
        }
    }
}

/// Bits of a sub-bucket's number within a power of two: a recorded time is known within 1/4.
const SUB_BITS: u32 = 2;
/// Powers of two covered: 2^40 ns is 18 minutes; longer times count in the last bucket.
const POWERS: usize = 40;
const BUCKETS: usize = POWERS << SUB_BITS;

/// Times in nanoseconds, in buckets whose width is a quarter of their power of two.
#[derive(Debug)]
pub struct Histogram {
    buckets: [Counter; BUCKETS],
    sum_ns: Counter,
}

impl Default for Histogram {
    fn default() -> Histogram {
        Histogram {
            buckets: std::array::from_fn(|_| Counter::default()),
            sum_ns: Counter::default(),
        }
    }
}

impl Histogram {
    pub const BUCKETS: usize = BUCKETS;

    fn bucket(ns: u64) -> usize {
        if ns < 1 << SUB_BITS {
            return ns as usize;
        }
        let power = 63 - ns.leading_zeros();
        let sub = (ns >> (power - SUB_BITS)) & ((1 << SUB_BITS) - 1);
        ((((power - SUB_BITS + 1) as usize) << SUB_BITS) + sub as usize).min(BUCKETS - 1)
    }

    /// The first time, in nanoseconds, above the bucket.
    pub fn bucket_end_ns(bucket: usize) -> u64 {
        let next = bucket as u64 + 1;
        if next <= 1 << SUB_BITS {
            return next;
        }
        let power = next >> SUB_BITS;
        let sub = next & ((1 << SUB_BITS) - 1);
        ((1 << SUB_BITS) + sub) << (power - 1)
    }

    /// Records that `count` requests took `ns` each. Owning thread only.
    pub fn record(&self, ns: u64, count: u64) {
        self.record_all(ns.saturating_mul(count), count);
    }

    /// Records that `count` requests took `ns` together. `count` 0: the requests must be presented
    /// again, and count then. Owning thread only.
    pub fn record_all(&self, ns: u64, count: u64) {
        self.sum_ns.add(ns);
        let each_ns = ns.checked_div(count).unwrap_or_default();
        if count > 0
            && let Some(bucket) = self.buckets.get(Self::bucket(each_ns))
        {
            bucket.add(count);
        }
    }

    /// Count per bucket, in the order of [`bucket_end_ns`](Self::bucket_end_ns).
    pub fn counts(&self) -> Vec<u64> {
        self.buckets.iter().map(Counter::get).collect()
    }

    pub fn sum_ns(&self) -> u64 {
        self.sum_ns.get()
    }

    /// The time, in nanoseconds, that a share of `quantile` (0 to 1) of `counts` does not exceed; 0
    /// if there are no counts.
    pub fn quantile_ns(counts: &[u64], quantile: f64) -> u64 {
        let total: u64 = counts.iter().sum();
        let wanted = (total as f64 * quantile).ceil() as u64;
        let mut seen = 0;
        for (bucket, count) in counts.iter().enumerate() {
            seen += count;
            if seen >= wanted && seen > 0 {
                return Self::bucket_end_ns(bucket);
            }
        }
        0
    }
}

/// Counters of one thread. Aligned to two cache lines, because the hardware fetches lines in pairs.
#[derive(Debug, Default)]
#[repr(align(128))]
pub struct ThreadCounters {
    /// Executed requests, those with errors included.
    pub commands: Counter,
    pub batches: Counter,
    pub errors: Counter,
    pub keyspace_hits: Counter,
    pub keyspace_misses: Counter,
    pub net_input_bytes: Counter,
    pub net_output_bytes: Counter,
    pub connections_accepted: Counter,
    /// Connections that were refused because of `maxclients`, or because no file descriptors were
    /// left.
    pub connections_rejected: Counter,
    pub protocol_errors: Counter,
    /// Connections that were closed by `timeout`.
    pub idle_closed: Counter,
    /// Clients that did not authenticate within `login-timeout`.
    pub logins_timed_out: Counter,
    /// Handshakes of TLS that succeeded, those of them that continued a session, and failures.
    pub tls_handshakes: Counter,
    pub tls_resumed: Counter,
    pub tls_failed: Counter,
    /// Connections that were closed by `output-limit` or `output-stall`.
    pub output_closed: Counter,
    /// Replies that waited for `reply-timeout` and became errors.
    pub replies_given_up: Counter,
    /// The time from which the thread's oldest held reply has waited, in milliseconds of the
    /// server's clock; 0 = no reply is held. Updated when the thread looks at its held replies.
    pub held_since_ms: Counter,
    /// Bytes in the thread's connection buffers now.
    pub query_buffer_bytes: Counter,
    pub output_buffer_bytes: Counter,
    /// Bytes of effects of closed connections that wait for a commit now, and effects that were
    /// dropped because too many waited.
    pub orphan_bytes: Counter,
    pub effects_dropped: Counter,
    /// Rounds of the event loop that found work, and waits that slept in the kernel.
    pub rounds: Counter,
    pub sleeps: Counter,
    /// Nanoseconds of spinning that found no work.
    pub spin_ns: Counter,
    /// Entries read from flash for requests, the bytes read for them, and the reads that the device
    /// has failed.
    pub flash_fetches: Counter,
    pub flash_fetched_bytes: Counter,
    pub flash_read_errors: Counter,
    /// Connections whose requests wait for flash now.
    pub flash_parked: Counter,
}

/// Counters of the reactor threads: the metrics page has a series per thread, `INFO` their sum
/// since `CONFIG RESETSTAT`.
#[rustfmt::skip] // One row, one line: it is a table.
pub static THREADS: [Figure<ThreadCounters>; 22] = [
    counter("commands", "total_commands_processed", "Requests that ran, errors included.", |c| Count(c.commands.get())),
    counter("batches", "", "Batches that the requests ran in.", |c| Count(c.batches.get())),
    counter("command_errors", "total_error_replies", "Requests answered with an error.", |c| Count(c.errors.get())),
    counter("keyspace_hits", "keyspace_hits", "Reads that found their key.", |c| Count(c.keyspace_hits.get())),
    counter("keyspace_misses", "keyspace_misses", "Reads that did not find their key.", |c| Count(c.keyspace_misses.get())),
    counter("network_received_bytes", "total_net_input_bytes", "Bytes received from clients.", |c| Count(c.net_input_bytes.get())),
    counter("network_sent_bytes", "total_net_output_bytes", "Bytes sent to clients.", |c| Count(c.net_output_bytes.get())),
    counter("connections_accepted", "total_connections_received", "Connections accepted.", |c| Count(c.connections_accepted.get())),
    counter("connections_rejected", "rejected_connections", "Connections turned away: maxclients, or no file descriptors.", |c| Count(c.connections_rejected.get())),
    counter("protocol_errors", "", "Connections closed because what they sent is not RESP.", |c| Count(c.protocol_errors.get())),
    counter("connections_idle_closed", "duramen_idle_disconnections", "Connections closed by `timeout`.", |c| Count(c.idle_closed.get())),
    counter("connections_login_timed_out", "duramen_login_timeouts", "Connections closed by `login-timeout`.", |c| Count(c.logins_timed_out.get())),
    counter("tls_handshakes", "", "Handshakes of TLS that succeeded.", |c| Count(c.tls_handshakes.get())),
    counter("tls_resumed", "", "Handshakes that continued an earlier session.", |c| Count(c.tls_resumed.get())),
    counter("tls_failed", "", "Handshakes that failed or took too long.", |c| Count(c.tls_failed.get())),
    counter("connections_output_closed", "client_output_buffer_limit_disconnections", "Connections closed by `output-limit` or `output-stall`.", |c| Count(c.output_closed.get())),
    counter("replies_given_up", "", "Replies that became errors because backups did not acknowledge for `reply-timeout`.", |c| Count(c.replies_given_up.get())),
    gauge("effects_orphan_bytes", "", "Bytes of messages and events of closed connections that wait for a commit.", |c| Count(c.orphan_bytes.get())),
    counter("effects_dropped", "", "Messages and events of closed connections that were dropped because too many waited for a commit.", |c| Count(c.effects_dropped.get())),
    counter("reactor_rounds", "", "Rounds of the event loop that found work.", |c| Count(c.rounds.get())),
    counter("reactor_sleeps", "", "Times a reactor thread slept in the kernel.", |c| Count(c.sleeps.get())),
    counter("reactor_spin_seconds", "", "Time spent looking for work before sleeping.", |c| Time(Duration::from_nanos(c.spin_ns.get()))),
];

/// Counters of one command on one thread.
#[derive(Debug, Default)]
pub(crate) struct CommandCounters {
    /// Requests that were refused before they ran.
    pub(crate) rejected: Counter,
    /// Requests that ran and replied with an error.
    pub(crate) failed: Counter,
    /// Number of requests that ran, and their times. Created by the thread when it runs the command
    /// for the first time.
    pub(crate) times: OnceLock<Box<Histogram>>,
}

/// One thread's counters of commands, in the order of the command table.
#[derive(Debug)]
#[repr(align(128))]
pub(crate) struct ThreadCommands {
    pub(crate) commands: Box<[CommandCounters]>,
    /// Error replies, in the order of [`error_names::NAMES`].
    pub(crate) errors: [Counter; error_names::NAMES.len()],
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_are_contiguous_and_hold_their_times() {
        let mut previous = 0;
        for bucket in 0..BUCKETS - 1 {
            let end = Histogram::bucket_end_ns(bucket);
            assert!(end > previous, "bucket {bucket}");
            assert_eq!(Histogram::bucket(previous), bucket);
            assert_eq!(Histogram::bucket(end - 1), bucket);
            previous = end;
        }
        assert_eq!(Histogram::bucket(u64::MAX), BUCKETS - 1);
    }

    #[test]
    fn quantiles_of_what_was_recorded() {
        let histogram = Histogram::default();
        histogram.record(1_000, 90);
        histogram.record(1_000_000, 10);
        let counts = histogram.counts();
        let near = |ns: u64, wanted: u64| {
            assert!(ns >= wanted && ns <= wanted * 5 / 4, "{ns} for {wanted}")
        };
        near(Histogram::quantile_ns(&counts, 0.5), 1_000);
        near(Histogram::quantile_ns(&counts, 0.99), 1_000_000);
        assert_eq!(Histogram::quantile_ns(&[], 0.5), 0);
        assert_eq!(histogram.sum_ns(), 90 * 1_000 + 10 * 1_000_000);
    }
}
