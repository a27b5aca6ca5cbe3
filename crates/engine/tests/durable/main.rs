//! The durable write path against a simulated consumer that collects, completes late and crashes.
//!
//! After a crash only what was completed is sure to be there; of what was collected and not
//! completed, each head keeps any prefix (as with replicas on different backups). A plain replay of
//! these bytes must show: every write whose position was reached, nothing older than what any reply
//! showed whose position was reached, transactions whole or not at all. Beside each such test
//! stands one with the rule broken on purpose, which must be noticed.

mod disk;
mod histories;
mod scenarios;
mod threads;
mod world;
