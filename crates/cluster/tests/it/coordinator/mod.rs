//! The coordinator against servers that a test plays: membership, tables, recovery, failover.

mod advice;
mod balance;
mod busy;
mod copysets;
mod drains;
mod enlisting;
mod foreign;
mod full_stop;
mod functions;
mod life;
mod map;
mod membership;
mod recovery;
mod rig;
mod scale;
mod shares;
mod tables;
mod users;
mod waits;
mod world;
