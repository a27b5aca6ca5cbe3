//! The durable write path against a simulated consumer that collects, completes late and crashes.
//!
//! After a crash, only completed data are sure to be there. Of the data that were collected and not
//! completed, each head keeps any prefix (as with replicas on different backups). A plain replay of
//! these bytes must show: every write whose position was reached; nothing older than a state that
//! any reply with a reached position showed; transactions whole or not at all. Beside each such
//! test is one with the rule broken on purpose, which must be detected.

pub(crate) mod disk;
mod histories;
mod scenarios;
mod threads;
pub(crate) mod world;
