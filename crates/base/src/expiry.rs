//! Comparisons of times of expiry with the present time, both in milliseconds since the Unix epoch.
//!
//! As in Redis, a key still exists in the millisecond of its time of expiry. A new time of expiry
//! that is not in the future removes the key at once, except with a new value: then the value can
//! be read in that millisecond.

/// True if a key with this time of expiry no longer exists.
#[inline(always)]
pub const fn is_expired(expires_at_ms: u64, now_ms: u64) -> bool {
    expires_at_ms < now_ms
}

/// True if a key that gets this time of expiry, and keeps its value, is removed at once.
#[inline(always)]
pub const fn removes_at_once(expires_at_ms: u64, now_ms: u64) -> bool {
    expires_at_ms <= now_ms
}
