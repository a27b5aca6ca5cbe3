//! Eviction, by Redis's names of its policies.

use super::{Mode, ServerConfig};

/// The name of a cache's order of eviction. The order is the same for every name: objects that were
/// read least often lately leave first. The name decides whether `OBJECT FREQ` returns the number
/// of reads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Policy {
    #[default]
    Lru,
    Lfu,
    Random,
}

impl Policy {
    /// Redis's name of the policy of a store, which evicts nothing.
    pub(crate) const NONE: &'static str = "noeviction";

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Policy::Lru => "allkeys-lru",
            Policy::Lfu => "allkeys-lfu",
            Policy::Random => "allkeys-random",
        }
    }
}

impl ServerConfig {
    /// Redis's name for the behaviour at the memory limit.
    pub fn policy_name(&self) -> &'static str {
        match self.mode {
            Mode::Store => Policy::NONE,
            Mode::Cache => self.policy.name(),
        }
    }
}
