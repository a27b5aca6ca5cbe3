//! Tablets move between whole nodes while clients read, write and remove, over a network that
//! loses, repeats and reorders, and any participant may crash at any moment: no acknowledged write
//! is lost, and no client is shown a stale value.

#[path = "../common/coordinator.rs"]
mod coordinator;
mod crashes;
mod large;
#[path = "../common/net.rs"]
#[allow(dead_code, reason = "not every test looks at everything")]
mod net;
mod planted;
mod scenarios;
#[path = "../common/settings.rs"]
mod settings;
mod world;
