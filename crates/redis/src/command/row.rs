//! The words in which the rows of the command table are written. Each file of commands has its rows
//! in its `COMMANDS`, before the functions of the commands.

pub(crate) use super::access::{
    ADDS, CHANGES, CHANNEL, CREATES, DELETES, LOOKS, MERGES, READS, REFORMS, REMOVES, SETS, TAKES,
    UPDATES, VARIES,
};
pub(crate) use super::doc::{Topic, doc};
pub(crate) use super::flag::*;
pub(crate) use super::growth::{self, Growth};
pub(crate) use super::keys::{Keys, Misses};
pub(crate) use super::names::{Database, Names, ScriptName};
pub(crate) use super::secrets::Secrets;
pub(crate) use super::spec::{Effect, NO_FLAGS, Run, Spec, container, row};
pub(crate) use crate::figures::counters::Family;
