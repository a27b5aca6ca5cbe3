//! The rules of replication against simulated backups, under random schedules, losses and crashes.

mod losses;
mod schedules;
