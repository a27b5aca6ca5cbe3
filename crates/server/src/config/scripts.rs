//! Settings about scripts.

/// See `config/table/scripts.rs`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ScriptConfig {
    pub memory_bytes: usize,
    /// In milliseconds; 0: never.
    pub busy_ms: u64,
}
