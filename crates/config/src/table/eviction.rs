//! Rows of the settings about the behaviour at the memory limit.

use super::super::{Kind, Mode, Policy, ServerConfig, Setting, Value};
use super::row;

pub(super) const MODE: Setting = row(
    "mode",
    Kind::Choice(&["store", "cache"]),
    "",
    "store",
    field!(mode: Mode::Store => "store", Mode::Cache => "cache"),
    "Behaviour at the memory limit: `store` refuses writes and loses nothing; `cache` evicts objects that are rarely used. It cannot change while the server runs with flash-file.",
)
.runtime();

pub(super) const MAXMEMORY_POLICY: Setting = row(
    "maxmemory-policy",
    Kind::Choice(&[
        Policy::NONE,
        Policy::Lru.name(),
        Policy::Lfu.name(),
        Policy::Random.name(),
    ]),
    "",
    "noeviction",
    (show_policy, set_policy),
    "The mode by Redis's names: `noeviction` is `store`, the others are `cache`, whose order of eviction is the same for all: what was read least often lately leaves first. With `allkeys-lfu`, OBJECT FREQ tells the number of recent reads.",
)
.runtime();

fn show_policy(config: &ServerConfig) -> Value {
    Value::Choice(config.policy_name())
}

fn set_policy(config: &mut ServerConfig, value: Value) {
    if let Value::Choice(name) = value {
        let policies = [Policy::Lru, Policy::Lfu, Policy::Random];
        match policies.into_iter().find(|policy| policy.name() == name) {
            Some(policy) => (config.mode, config.policy) = (Mode::Cache, policy),
            None => config.mode = Mode::Store,
        }
    }
}
