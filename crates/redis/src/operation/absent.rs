//! The commands that clients may know but that do not exist here: they are refused by name.

use crate::command::row::*;
use crate::command::spec::absent;
use crate::operation::server::WHY_REPLICATION;

pub(crate) const COMMANDS: &[Spec] = &[
    absent("hexpire", NO_FLAGS, WHY_FIELD_TTL),
    absent("hexpireat", NO_FLAGS, WHY_FIELD_TTL),
    absent("hexpiretime", NO_FLAGS, WHY_FIELD_TTL),
    absent("hgetdel", NO_FLAGS, WHY_FIELD_TTL),
    absent("hgetex", NO_FLAGS, WHY_FIELD_TTL),
    absent("hpersist", NO_FLAGS, WHY_FIELD_TTL),
    absent("hpexpire", NO_FLAGS, WHY_FIELD_TTL),
    absent("hpexpireat", NO_FLAGS, WHY_FIELD_TTL),
    absent("hpexpiretime", NO_FLAGS, WHY_FIELD_TTL),
    absent("hpttl", NO_FLAGS, WHY_FIELD_TTL),
    absent("hsetex", NO_FLAGS, WHY_FIELD_TTL),
    absent("httl", NO_FLAGS, WHY_FIELD_TTL),
    absent("pfdebug", NO_FLAGS, WHY_DEBUG),
    absent("pfselftest", NO_FLAGS, WHY_DEBUG),
    absent("restore-asking", NO_FLAGS, WHY_MIGRATE),
    absent("migrate", NO_FLAGS, WHY_MIGRATE),
    absent("replconf", NO_FLAGS, WHY_REPLICATION),
    absent("psync", NO_FLAGS, WHY_REPLICATION),
    absent("sync", NO_FLAGS, WHY_REPLICATION),
    absent("failover", NO_FLAGS, WHY_REPLICATION),
    absent("debug", NO_FLAGS, WHY_DEBUG),
    // The coordinator of a cluster obeys them, and no server: rules of users can name them.
    absent("duramen.tablet", ADMIN | DANGEROUS, WHY_TABLET),
    absent("duramen.drain", ADMIN | DANGEROUS, WHY_DRAIN),
    absent("duramen.crash", ADMIN | DANGEROUS, WHY_CRASH),
];

const WHY_FIELD_TTL: &str = "fields of a hash do not expire";
const WHY_MIGRATE: &str = "a server opens no connection to another; use DUMP and RESTORE";
const WHY_DEBUG: &str = "debugging commands are not offered over the network";
const WHY_TABLET: &str =
    "tablets are split and moved by `duramen tablet`, which asks the coordinator of a cluster";
const WHY_DRAIN: &str =
    "members are emptied by `duramen drain`, which asks the coordinator of a cluster";
const WHY_CRASH: &str =
    "members are declared dead by `duramen crash`, which asks the coordinator of a cluster";
