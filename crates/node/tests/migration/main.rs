//! Tablets move between whole nodes while clients read, write and remove, over a network that
//! loses, repeats and reorders, and whoever takes part may crash at any moment: who acknowledged
//! something keeps it, and nobody is shown anything old.

#[path = "../common/coordinator.rs"]
mod coordinator;
mod crashes;
#[path = "../common/net.rs"]
#[allow(dead_code, reason = "not every test looks at everything")]
mod net;
mod planted;
mod scenarios;
#[path = "../common/settings.rs"]
mod settings;
mod world;
