//! The rows of the command table, in the order of the groups, and the commands that are refused by
//! name.
//!
//! Names, arities, flags and key positions are those of Redis, because clients read them
//! (`COMMAND`).

use super::{
    acl, client, client_list, cluster, command, config, connection, databases, durability, duramen,
    expire, info, keys as key_space, latency, memory, monitor, multi_key, scan, server, slowlog,
    string, transaction,
};
use crate::exec::request::spec::Run::{Alone, Atomic, Data, Plain, Refused, Store};
use crate::exec::request::spec::flag::*;
use crate::exec::request::spec::{ALL_KEYS, Group, NO_KEYS, ONE_KEY, Spec, keys, row};
use crate::shared::totals::{CommandTotals, Totals, counted};
use crate::shared::{Family, Shared};

const NO_FLAGS: u32 = 0;

/// The rows without their numbers.
#[rustfmt::skip] // One row, one line: it is a table.
const ROWS: &[Spec] = &[
    row("hello", -1, NOSCRIPT | LOADING | STALE | FAST | NO_AUTH | ALLOW_BUSY | CONNECTION, NO_KEYS, Group::Connection, Family::Other, "6.0.0", "O(1)", "Chooses the protocol version, and authenticates and names the connection.", Plain(connection::hello)),
    row("auth", -2, NOSCRIPT | LOADING | STALE | FAST | NO_AUTH | ALLOW_BUSY | CONNECTION, NO_KEYS, Group::Connection, Family::Other, "1.0.0", "O(N)", "Gives the password.", Plain(connection::auth)),
    row("ping", -1, FAST | CONNECTION, NO_KEYS, Group::Connection, Family::Other, "1.0.0", "O(1)", "Answers PONG, or what it was given.", Plain(connection::ping)),
    row("echo", 2, LOADING | STALE | FAST | CONNECTION, NO_KEYS, Group::Connection, Family::Other, "1.0.0", "O(1)", "Answers what it was given.", Plain(connection::echo)),
    row("select", 2, LOADING | STALE | FAST | CONNECTION, NO_KEYS, Group::Connection, Family::Other, "1.0.0", "O(1)", "Chooses the database of this connection.", Store(databases::select)),
    row("quit", -1, NOSCRIPT | LOADING | STALE | FAST | NO_AUTH | ALLOW_BUSY | CONNECTION | NEVER_QUEUED, NO_KEYS, Group::Connection, Family::Other, "1.0.0", "O(1)", "Closes the connection after its replies.", Plain(connection::quit)),
    row("reset", 1, NOSCRIPT | LOADING | STALE | FAST | NO_AUTH | ALLOW_BUSY | CONNECTION | NEVER_QUEUED, NO_KEYS, Group::Connection, Family::Other, "6.2.0", "O(1)", "Brings the connection back to how it was when it was new.", Plain(connection::reset)),
    row("get", 2, READONLY | FAST | STRING, ONE_KEY, Group::String, Family::Read, "1.0.0", "O(1)", "Returns the value of a key.", Data(string::get)),
    row("set", -3, WRITE | DENYOOM | STRING, ONE_KEY, Group::String, Family::Write, "1.0.0", "O(1)", "Sets the value of a key, under conditions and with an expiry if wanted.", Data(string::set)),
    row("setnx", 3, WRITE | DENYOOM | FAST | STRING, ONE_KEY, Group::String, Family::Write, "1.0.0", "O(1)", "Sets the value of a key that does not exist.", Data(string::setnx)),
    row("setex", 4, WRITE | DENYOOM | STRING, ONE_KEY, Group::String, Family::Write, "2.0.0", "O(1)", "Sets a value and its time to live in seconds.", Data(string::setex)),
    row("psetex", 4, WRITE | DENYOOM | STRING, ONE_KEY, Group::String, Family::Write, "2.6.0", "O(1)", "Sets a value and its time to live in milliseconds.", Data(string::psetex)),
    row("getset", 3, WRITE | DENYOOM | FAST | STRING, ONE_KEY, Group::String, Family::Write, "1.0.0", "O(1)", "Sets a value and returns the one before.", Data(string::getset)),
    row("getdel", 2, WRITE | FAST | STRING, ONE_KEY, Group::String, Family::Write, "6.2.0", "O(1)", "Returns the value of a key and deletes the key.", Data(string::getdel)),
    row("getex", -2, WRITE | FAST | STRING, ONE_KEY, Group::String, Family::Write, "6.2.0", "O(1)", "Returns the value of a key and changes its expiry.", Data(string::getex)),
    row("mget", -2, READONLY | FAST | STRING, ALL_KEYS, Group::String, Family::MultiRead, "1.0.0", "O(N)", "Returns the values of several keys, all at one instant.", Atomic(multi_key::mget)),
    row("mset", -3, WRITE | DENYOOM | STRING, keys(1, -1, 2), Group::String, Family::MultiWrite, "1.0.1", "O(N)", "Sets the values of several keys, all at one instant.", Atomic(multi_key::mset)),
    row("msetnx", -3, WRITE | DENYOOM | STRING, keys(1, -1, 2), Group::String, Family::MultiWrite, "1.0.1", "O(N)", "Sets the values of several keys if none of them exists.", Atomic(multi_key::msetnx)),
    row("append", 3, WRITE | DENYOOM | FAST | STRING, ONE_KEY, Group::String, Family::Write, "2.0.0", "O(1)", "Appends to the value of a key.", Data(string::append)),
    row("strlen", 2, READONLY | FAST | STRING, ONE_KEY, Group::String, Family::Read, "2.2.0", "O(1)", "Returns the length of a value.", Data(string::strlen)),
    row("getrange", 4, READONLY | STRING, ONE_KEY, Group::String, Family::Read, "2.4.0", "O(N)", "Returns a part of a value.", Data(string::getrange)),
    row("substr", 4, READONLY | STRING, ONE_KEY, Group::String, Family::Read, "1.0.0", "O(N)", "Returns a part of a value (old name of GETRANGE).", Data(string::getrange)),
    row("setrange", 4, WRITE | DENYOOM | STRING, ONE_KEY, Group::String, Family::Write, "2.2.0", "O(1),", "Overwrites a part of a value.", Data(string::setrange)),
    row("incr", 2, WRITE | DENYOOM | FAST | STRING, ONE_KEY, Group::String, Family::Write, "1.0.0", "O(1)", "Adds one to an integer.", Data(string::incr)),
    row("decr", 2, WRITE | DENYOOM | FAST | STRING, ONE_KEY, Group::String, Family::Write, "1.0.0", "O(1)", "Subtracts one from an integer.", Data(string::decr)),
    row("incrby", 3, WRITE | DENYOOM | FAST | STRING, ONE_KEY, Group::String, Family::Write, "1.0.0", "O(1)", "Adds to an integer.", Data(string::incrby)),
    row("decrby", 3, WRITE | DENYOOM | FAST | STRING, ONE_KEY, Group::String, Family::Write, "1.0.0", "O(1)", "Subtracts from an integer.", Data(string::decrby)),
    row("incrbyfloat", 3, WRITE | DENYOOM | FAST | STRING, ONE_KEY, Group::String, Family::Write, "2.6.0", "O(1)", "Adds to a floating-point number.", Data(string::incrbyfloat)),
    row("del", -2, WRITE | KEYSPACE, ALL_KEYS, Group::Generic, Family::MultiWrite, "1.0.0", "O(N)", "Deletes keys, all at one instant.", Atomic(multi_key::del)),
    row("unlink", -2, WRITE | FAST | KEYSPACE, ALL_KEYS, Group::Generic, Family::MultiWrite, "4.0.0", "O(1)", "Deletes keys, all at one instant (the same as DEL here).", Atomic(multi_key::del)),
    row("exists", -2, READONLY | FAST | KEYSPACE, ALL_KEYS, Group::Generic, Family::MultiRead, "1.0.0", "O(N)", "Counts how many of the keys exist.", Atomic(multi_key::exists)),
    row("touch", -2, READONLY | FAST | KEYSPACE, ALL_KEYS, Group::Generic, Family::MultiRead, "3.2.1", "O(N)", "Counts how many of the keys exist.", Atomic(multi_key::exists)),
    row("type", 2, READONLY | FAST | KEYSPACE, ONE_KEY, Group::Generic, Family::Read, "1.0.0", "O(1)", "Returns the type of a value.", Data(key_space::type_of)),
    row("expire", -3, WRITE | FAST | KEYSPACE, ONE_KEY, Group::Generic, Family::Write, "1.0.0", "O(1)", "Sets the time to live of a key in seconds.", Data(expire::expire)),
    row("pexpire", -3, WRITE | FAST | KEYSPACE, ONE_KEY, Group::Generic, Family::Write, "2.6.0", "O(1)", "Sets the time to live of a key in milliseconds.", Data(expire::pexpire)),
    row("expireat", -3, WRITE | FAST | KEYSPACE, ONE_KEY, Group::Generic, Family::Write, "1.2.0", "O(1)", "Sets when a key expires, in seconds since 1970.", Data(expire::expireat)),
    row("pexpireat", -3, WRITE | FAST | KEYSPACE, ONE_KEY, Group::Generic, Family::Write, "2.6.0", "O(1)", "Sets when a key expires, in milliseconds since 1970.", Data(expire::pexpireat)),
    row("ttl", 2, READONLY | FAST | KEYSPACE, ONE_KEY, Group::Generic, Family::Read, "1.0.0", "O(1)", "Returns the time to live of a key in seconds.", Data(expire::ttl)),
    row("pttl", 2, READONLY | FAST | KEYSPACE, ONE_KEY, Group::Generic, Family::Read, "2.6.0", "O(1)", "Returns the time to live of a key in milliseconds.", Data(expire::pttl)),
    row("expiretime", 2, READONLY | FAST | KEYSPACE, ONE_KEY, Group::Generic, Family::Read, "7.0.0", "O(1)", "Returns when a key expires, in seconds since 1970.", Data(expire::expiretime)),
    row("pexpiretime", 2, READONLY | FAST | KEYSPACE, ONE_KEY, Group::Generic, Family::Read, "7.0.0", "O(1)", "Returns when a key expires, in milliseconds since 1970.", Data(expire::pexpiretime)),
    row("persist", 2, WRITE | FAST | KEYSPACE, ONE_KEY, Group::Generic, Family::Write, "2.2.0", "O(1)", "Removes the expiry of a key.", Data(expire::persist)),
    row("rename", 3, WRITE | KEYSPACE, keys(1, 2, 1), Group::Generic, Family::MultiWrite, "1.0.0", "O(1)", "Renames a key.", Atomic(key_space::rename)),
    row("renamenx", 3, WRITE | FAST | KEYSPACE, keys(1, 2, 1), Group::Generic, Family::MultiWrite, "1.0.0", "O(1)", "Renames a key if the new name is not taken.", Atomic(key_space::renamenx)),
    row("copy", -3, WRITE | DENYOOM | KEYSPACE, keys(1, 2, 1), Group::Generic, Family::MultiWrite, "6.2.0", "O(N)", "Copies a value to another key or database.", Alone(key_space::copy)),
    row("move", 3, WRITE | FAST | KEYSPACE, ONE_KEY, Group::Generic, Family::MultiWrite, "1.0.0", "O(1)", "Moves a key to another database.", Alone(key_space::move_to)),
    row("swapdb", 3, WRITE | FAST | KEYSPACE | DANGEROUS | WHOLE, NO_KEYS, Group::Server, Family::Other, "4.0.0", "O(N)", "Exchanges two databases.", Alone(databases::swapdb)),
    row("randomkey", 1, READONLY | KEYSPACE | WHOLE, NO_KEYS, Group::Generic, Family::Scan, "1.0.0", "O(1)", "Returns some key.", Data(scan::randomkey)),
    row("dbsize", 1, READONLY | FAST | KEYSPACE | WHOLE, NO_KEYS, Group::Server, Family::Scan, "1.0.0", "O(1)", "Returns the number of keys.", Store(scan::dbsize)),
    row("scan", -2, READONLY | KEYSPACE | WHOLE | TIMED, NO_KEYS, Group::Generic, Family::Scan, "2.8.0", "O(1)", "Walks over the keys step by step.", Data(scan::scan)),
    row("keys", 2, READONLY | KEYSPACE | DANGEROUS | WHOLE | TIMED, NO_KEYS, Group::Generic, Family::Scan, "1.0.0", "O(N)", "Returns all keys that match a pattern.", Data(scan::keys)),
    row("flushdb", -1, WRITE | KEYSPACE | DANGEROUS | WHOLE | TIMED, NO_KEYS, Group::Server, Family::Other, "1.0.0", "O(N)", "Deletes all keys of the database.", Alone(databases::flushdb)),
    row("flushall", -1, WRITE | KEYSPACE | DANGEROUS | WHOLE | TIMED, NO_KEYS, Group::Server, Family::Other, "1.0.0", "O(N)", "Deletes all keys of all databases and tables.", Alone(databases::flushall)),
    row("object", -2, CONTAINER, NO_KEYS, Group::Generic, Family::Other, "2.2.3", "Depends on the subcommand", "A container for commands about values.", Plain(server::container)),
    row("object|encoding", 3, READONLY | KEYSPACE, keys(2, 2, 1), Group::Generic, Family::Read, "2.2.3", "O(1)", "Returns how Redis would represent a value.", Data(key_space::object_encoding)),
    row("object|freq", 3, READONLY | KEYSPACE, keys(2, 2, 1), Group::Generic, Family::Read, "4.0.0", "O(1)", "Returns the access frequency of a value.", Data(key_space::object_freq)),
    row("object|idletime", 3, READONLY | KEYSPACE, keys(2, 2, 1), Group::Generic, Family::Read, "2.2.3", "O(1)", "Returns the time since the last access.", Data(key_space::object_idletime)),
    row("object|refcount", 3, READONLY | KEYSPACE, keys(2, 2, 1), Group::Generic, Family::Read, "2.2.3", "O(1)", "Returns the number of references to a value.", Data(key_space::object_refcount)),
    row("object|help", 2, LOADING | STALE | KEYSPACE, NO_KEYS, Group::Generic, Family::Other, "6.2.0", "O(1)", "Lists the subcommands.", Plain(key_space::object_help)),
    row("multi", 1, NOSCRIPT | LOADING | STALE | FAST | ALLOW_BUSY | TRANSACTION | NEVER_QUEUED, NO_KEYS, Group::Transactions, Family::Transaction, "1.2.0", "O(1)", "Starts a transaction.", Plain(transaction::multi)),
    row("exec", 1, NOSCRIPT | LOADING | STALE | SKIP_SLOWLOG | TRANSACTION | NEVER_QUEUED | TIMED, NO_KEYS, Group::Transactions, Family::Transaction, "1.2.0", "O(1)", "Runs the transaction.", Alone(transaction::exec)),
    row("discard", 1, NOSCRIPT | LOADING | STALE | FAST | ALLOW_BUSY | TRANSACTION | NEVER_QUEUED, NO_KEYS, Group::Transactions, Family::Transaction, "2.0.0", "O(N),", "Forgets the transaction.", Plain(transaction::discard)),
    row("watch", -2, NOSCRIPT | LOADING | STALE | FAST | ALLOW_BUSY | TRANSACTION | NEVER_QUEUED, ALL_KEYS, Group::Transactions, Family::Transaction, "2.2.0", "O(1) for every key", "Makes the transaction depend on keys that must not change.", Data(transaction::watch)),
    row("unwatch", 1, NOSCRIPT | LOADING | STALE | FAST | ALLOW_BUSY | TRANSACTION, NO_KEYS, Group::Transactions, Family::Transaction, "2.2.0", "O(1)", "Forgets the watched keys.", Plain(transaction::unwatch)),
    row("info", -1, LOADING | STALE | DANGEROUS | TIMED, NO_KEYS, Group::Server, Family::Other, "1.0.0", "O(1)", "Returns what the server tells about itself.", Alone(info::info)),
    row("config", -2, CONTAINER, NO_KEYS, Group::Server, Family::Other, "2.0.0", "Depends on the subcommand", "A container for commands about settings.", Plain(server::container)),
    row("config|get", -3, ADMIN | NOSCRIPT | LOADING | STALE | DANGEROUS, NO_KEYS, Group::Server, Family::Other, "2.0.0", "O(N)", "Returns settings.", Plain(config::get)),
    row("config|set", -4, ADMIN | NOSCRIPT | LOADING | STALE | DANGEROUS, NO_KEYS, Group::Server, Family::Other, "2.0.0", "O(N)", "Changes settings of the running server.", Plain(config::set)),
    row("config|resetstat", 2, ADMIN | NOSCRIPT | LOADING | STALE | DANGEROUS, NO_KEYS, Group::Server, Family::Other, "2.0.0", "O(1)", "Sets the counters of INFO back to 0.", Plain(config::resetstat)),
    row("config|rewrite", 2, ADMIN | NOSCRIPT | LOADING | STALE | NO_MULTI | DANGEROUS, NO_KEYS, Group::Server, Family::Other, "2.8.0", "O(1)", "Writes the settings that CONFIG SET changed to the configuration file.", Plain(config::rewrite)),
    row("config|help", 2, LOADING | STALE, NO_KEYS, Group::Server, Family::Other, "5.0.0", "O(1)", "Lists the subcommands.", Plain(config::help)),
    row("time", 1, LOADING | STALE | FAST, NO_KEYS, Group::Server, Family::Other, "2.6.0", "O(1)", "Returns the server's time.", Plain(server::time)),
    row("role", 1, NOSCRIPT | LOADING | STALE | FAST | DANGEROUS, NO_KEYS, Group::Server, Family::Other, "2.8.12", "O(1)", "Returns the role of this server.", Plain(server::role)),
    row("lastsave", 1, LOADING | STALE | FAST | DANGEROUS, NO_KEYS, Group::Server, Family::Other, "1.0.0", "O(1)", "Returns when the data was last saved.", Plain(durability::lastsave)),
    row("save", 1, ADMIN | NOSCRIPT | NO_ASYNC_LOADING | NO_MULTI | DANGEROUS, NO_KEYS, Group::Server, Family::Other, "1.0.0", "O(N)", "Saves the data.", Plain(durability::save)),
    row("bgsave", -1, ADMIN | NOSCRIPT | NO_ASYNC_LOADING | DANGEROUS, NO_KEYS, Group::Server, Family::Other, "1.0.0", "O(1)", "Saves the data in the background.", Plain(durability::bgsave)),
    row("bgrewriteaof", 1, ADMIN | NOSCRIPT | NO_ASYNC_LOADING | DANGEROUS, NO_KEYS, Group::Server, Family::Other, "1.0.0", "O(1)", "Rewrites the append-only file.", Plain(durability::bgrewriteaof)),
    row("wait", 3, NOSCRIPT | CONNECTION, NO_KEYS, Group::Generic, Family::Other, "3.0.0", "O(1)", "Waits for replicas.", Plain(durability::wait)),
    row("waitaof", 4, NOSCRIPT | BLOCKING | CONNECTION, NO_KEYS, Group::Generic, Family::Other, "7.2.0", "O(1)", "Waits for the append-only file.", Plain(durability::waitaof)),
    row("shutdown", -1, ADMIN | NOSCRIPT | LOADING | STALE | NO_MULTI | ALLOW_BUSY | DANGEROUS, NO_KEYS, Group::Server, Family::Other, "1.0.0", "O(N)", "Stops the server.", Plain(server::shutdown)),
    row("lolwut", -1, READONLY | FAST, NO_KEYS, Group::Server, Family::Other, "5.0.0", "O(1)", "Tells the version.", Plain(server::lolwut)),
    row("monitor", 1, ADMIN | NOSCRIPT | LOADING | STALE | DANGEROUS, NO_KEYS, Group::Server, Family::Other, "1.0.0", "O(1)", "Shows what all clients send.", Plain(monitor::monitor)),
    row("slowlog", -2, CONTAINER, NO_KEYS, Group::Server, Family::Other, "2.2.12", "Depends on the subcommand", "A container for commands about slow requests.", Plain(server::container)),
    row("slowlog|get", -2, ADMIN | LOADING | STALE | DANGEROUS, NO_KEYS, Group::Server, Family::Other, "2.2.12", "O(N)", "Returns the newest entries.", Plain(slowlog::get)),
    row("slowlog|len", 2, ADMIN | LOADING | STALE | DANGEROUS, NO_KEYS, Group::Server, Family::Other, "2.2.12", "O(1)", "Returns the number of entries.", Plain(slowlog::len)),
    row("slowlog|reset", 2, ADMIN | LOADING | STALE | DANGEROUS, NO_KEYS, Group::Server, Family::Other, "2.2.12", "O(N)", "Removes all entries.", Plain(slowlog::reset)),
    row("slowlog|help", 2, LOADING | STALE, NO_KEYS, Group::Server, Family::Other, "6.2.0", "O(1)", "Lists the subcommands.", Plain(slowlog::help)),
    row("latency", -2, CONTAINER, NO_KEYS, Group::Server, Family::Other, "2.8.13", "Depends on the subcommand", "A container for commands about latency.", Plain(server::container)),
    row("latency|doctor", 2, ADMIN | NOSCRIPT | LOADING | STALE | DANGEROUS, NO_KEYS, Group::Server, Family::Other, "2.8.13", "O(1)", "Says in words how latency is.", Plain(latency::doctor)),
    row("latency|graph", 3, ADMIN | NOSCRIPT | LOADING | STALE | DANGEROUS, NO_KEYS, Group::Server, Family::Other, "2.8.13", "O(1)", "Draws the latency of an event.", Plain(latency::graph)),
    row("latency|history", 3, ADMIN | NOSCRIPT | LOADING | STALE | DANGEROUS, NO_KEYS, Group::Server, Family::Other, "2.8.13", "O(1)", "Returns the samples of an event.", Plain(latency::history)),
    row("latency|latest", 2, ADMIN | NOSCRIPT | LOADING | STALE | DANGEROUS, NO_KEYS, Group::Server, Family::Other, "2.8.13", "O(1)", "Returns the latest sample of each event.", Plain(latency::latest)),
    row("latency|reset", -2, ADMIN | NOSCRIPT | LOADING | STALE | DANGEROUS, NO_KEYS, Group::Server, Family::Other, "2.8.13", "O(1)", "Removes samples.", Plain(latency::reset)),
    row("latency|histogram", -2, ADMIN | NOSCRIPT | LOADING | STALE | DANGEROUS, NO_KEYS, Group::Server, Family::Other, "7.0.0", "O(N)", "Returns the distribution of latency by command.", Plain(latency::histogram)),
    row("latency|help", 2, LOADING | STALE, NO_KEYS, Group::Server, Family::Other, "2.8.13", "O(1)", "Lists the subcommands.", Plain(latency::help)),
    row("memory", -2, CONTAINER, NO_KEYS, Group::Server, Family::Other, "4.0.0", "Depends on the subcommand", "A container for commands about memory.", Plain(server::container)),
    row("memory|usage", -3, READONLY, keys(2, 2, 1), Group::Server, Family::Read, "4.0.0", "O(N) where N is the number of samples", "Returns the bytes that a key takes.", Data(memory::usage)),
    row("memory|stats", 2, NO_FLAGS, NO_KEYS, Group::Server, Family::Other, "4.0.0", "O(1)", "Returns where memory went.", Store(memory::stats)),
    row("memory|doctor", 2, NO_FLAGS, NO_KEYS, Group::Server, Family::Other, "4.0.0", "O(1)", "Says in words how memory is.", Store(memory::doctor)),
    row("memory|malloc-stats", 2, NO_FLAGS, NO_KEYS, Group::Server, Family::Other, "4.0.0", "O(1)", "Returns the allocator's figures.", Store(memory::malloc_stats)),
    row("memory|purge", 2, NO_FLAGS, NO_KEYS, Group::Server, Family::Other, "4.0.0", "O(1)", "Gives free memory back.", Store(memory::purge)),
    row("memory|help", 2, LOADING | STALE, NO_KEYS, Group::Server, Family::Other, "4.0.0", "O(1)", "Lists the subcommands.", Store(memory::help)),
    row("client", -2, CONTAINER, NO_KEYS, Group::Connection, Family::Other, "2.4.0", "Depends on the subcommand", "A container for commands about client connections.", Plain(server::container)),
    row("client|id", 2, NOSCRIPT | LOADING | STALE | CONNECTION, NO_KEYS, Group::Connection, Family::Other, "5.0.0", "O(1)", "Returns the connection's id.", Plain(client::id)),
    row("client|info", 2, NOSCRIPT | LOADING | STALE | CONNECTION, NO_KEYS, Group::Connection, Family::Other, "6.2.0", "O(1)", "Describes this connection.", Plain(client_list::info)),
    row("client|list", -2, ADMIN | NOSCRIPT | LOADING | STALE | CONNECTION | DANGEROUS, NO_KEYS, Group::Connection, Family::Other, "2.4.0", "O(N)", "Describes all connections.", Plain(client_list::list)),
    row("client|kill", -3, ADMIN | NOSCRIPT | LOADING | STALE | CONNECTION | DANGEROUS, NO_KEYS, Group::Connection, Family::Other, "2.4.0", "O(N)", "Closes connections.", Plain(client_list::kill)),
    row("client|setname", 3, NOSCRIPT | LOADING | STALE | CONNECTION, NO_KEYS, Group::Connection, Family::Other, "2.6.9", "O(1)", "Names the connection.", Plain(client::setname)),
    row("client|getname", 2, NOSCRIPT | LOADING | STALE | CONNECTION, NO_KEYS, Group::Connection, Family::Other, "2.6.9", "O(1)", "Returns the connection's name.", Plain(client::getname)),
    row("client|reply", 3, NOSCRIPT | LOADING | STALE | CONNECTION, NO_KEYS, Group::Connection, Family::Other, "3.2.0", "O(1)", "Switches replies off and on.", Plain(client::reply)),
    row("client|no-evict", 3, ADMIN | NOSCRIPT | LOADING | STALE | CONNECTION | DANGEROUS, NO_KEYS, Group::Connection, Family::Other, "7.0.0", "O(1)", "Keeps the connection from being closed for want of memory.", Plain(client::no_evict)),
    row("client|pause", -3, ADMIN | NOSCRIPT | LOADING | STALE | CONNECTION | DANGEROUS, NO_KEYS, Group::Connection, Family::Other, "2.9.50", "O(1)", "Lets requests wait.", Plain(client::pause)),
    row("client|unpause", 2, ADMIN | NOSCRIPT | LOADING | STALE | CONNECTION | DANGEROUS, NO_KEYS, Group::Connection, Family::Other, "6.2.0", "O(N)", "Ends a pause.", Plain(client::unpause)),
    row("client|unblock", -3, ADMIN | NOSCRIPT | LOADING | STALE | CONNECTION | DANGEROUS, NO_KEYS, Group::Connection, Family::Other, "5.0.0", "O(log", "Wakes a client that waits in a command.", Plain(client::unblock)),
    row("client|tracking", -3, NOSCRIPT | LOADING | STALE | CONNECTION, NO_KEYS, Group::Connection, Family::Other, "6.0.0", "O(1)", "Starts tracking keys for the client's cache.", Plain(client::tracking)),
    row("client|trackinginfo", 2, NOSCRIPT | LOADING | STALE | CONNECTION, NO_KEYS, Group::Connection, Family::Other, "6.2.0", "O(1)", "Describes tracking.", Plain(client::trackinginfo)),
    row("client|getredir", 2, NOSCRIPT | LOADING | STALE | CONNECTION, NO_KEYS, Group::Connection, Family::Other, "6.0.0", "O(1)", "Returns who gets the invalidations.", Plain(client::getredir)),
    row("client|caching", 3, NOSCRIPT | LOADING | STALE | CONNECTION, NO_KEYS, Group::Connection, Family::Other, "6.0.0", "O(1)", "Tracks the keys of the next command.", Plain(client::caching)),
    row("client|help", 2, LOADING | STALE | CONNECTION, NO_KEYS, Group::Connection, Family::Other, "5.0.0", "O(1)", "Lists the subcommands.", Plain(client::help)),
    row("client|setinfo", 4, NOSCRIPT | LOADING | STALE | CONNECTION, NO_KEYS, Group::Connection, Family::Other, "7.2.0", "O(1)", "Tells the client library's name and version.", Plain(client::setinfo)),
    row("client|no-touch", 3, NOSCRIPT | LOADING | STALE | CONNECTION, NO_KEYS, Group::Connection, Family::Other, "7.2.0", "O(1)", "Keeps the client's reads from counting as accesses.", Plain(client::no_touch)),
    row("command", -1, LOADING | STALE | CONNECTION | CONTAINER | TIMED, NO_KEYS, Group::Server, Family::Other, "2.8.13", "O(N)", "Describes all commands.", Plain(command::command)),
    row("command|count", 2, LOADING | STALE | CONNECTION, NO_KEYS, Group::Server, Family::Other, "2.8.13", "O(1)", "Returns the number of commands.", Plain(command::count)),
    row("command|info", -2, LOADING | STALE | CONNECTION, NO_KEYS, Group::Server, Family::Other, "2.8.13", "O(N)", "Describes commands.", Plain(command::info)),
    row("command|docs", -2, LOADING | STALE | CONNECTION, NO_KEYS, Group::Server, Family::Other, "7.0.0", "O(N)", "Documents commands.", Plain(command::docs)),
    row("command|getkeys", -3, LOADING | STALE | CONNECTION, NO_KEYS, Group::Server, Family::Other, "2.8.13", "O(N)", "Returns the keys of a request.", Plain(command::getkeys)),
    row("command|getkeysandflags", -3, LOADING | STALE | CONNECTION, NO_KEYS, Group::Server, Family::Other, "7.0.0", "O(N)", "Returns the keys of a request and what it does to them.", Plain(command::getkeysandflags)),
    row("command|list", -2, LOADING | STALE | CONNECTION, NO_KEYS, Group::Server, Family::Other, "7.0.0", "O(N)", "Returns the names of all commands.", Plain(command::list)),
    row("command|help", 2, LOADING | STALE | CONNECTION, NO_KEYS, Group::Server, Family::Other, "5.0.0", "O(1)", "Lists the subcommands.", Plain(command::help)),
    row("cluster", -2, CONTAINER, NO_KEYS, Group::Cluster, Family::Other, "3.0.0", "Depends on subcommand.", "A container for commands about the cluster.", Plain(server::container)),
    row("cluster|info", 2, STALE, NO_KEYS, Group::Cluster, Family::Other, "3.0.0", "O(1)", "Returns information about the cluster.", Plain(cluster::info)),
    row("cluster|keyslot", 3, STALE, NO_KEYS, Group::Cluster, Family::Other, "3.0.0", "O(N) where N is the number of bytes in the key", "Returns the hash slot of a key.", Plain(cluster::keyslot)),
    row("cluster|links", 2, STALE, NO_KEYS, Group::Cluster, Family::Other, "7.0.0", "O(N) where N is the total number of Cluster nodes", "Returns the bus connections to other servers: there are none.", Plain(cluster::links)),
    row("cluster|myid", 2, STALE, NO_KEYS, Group::Cluster, Family::Other, "3.0.0", "O(1)", "Returns the id of this server.", Plain(cluster::myid)),
    row("cluster|nodes", 2, STALE, NO_KEYS, Group::Cluster, Family::Other, "3.0.0", "O(N) where N is the total number of Cluster nodes", "Returns the servers of the cluster and their slots.", Plain(cluster::nodes)),
    row("cluster|shards", 2, STALE, NO_KEYS, Group::Cluster, Family::Other, "7.0.0", "O(N) where N is the total number of cluster nodes", "Returns the servers of the cluster and their slots.", Plain(cluster::shards)),
    row("cluster|slots", 2, STALE, NO_KEYS, Group::Cluster, Family::Other, "3.0.0", "O(N) where N is the total number of Cluster nodes", "Returns ranges of slots and who serves them.", Plain(cluster::slots)),
    row("cluster|myshardid", 2, STALE, NO_KEYS, Group::Cluster, Family::Other, "7.2.0", "O(1)", "Returns the id of this server, which is its shard.", Plain(cluster::myid)),
    row("cluster|countkeysinslot", 3, STALE | WHOLE | TIMED, NO_KEYS, Group::Cluster, Family::Other, "3.0.0", "O(N)", "Returns the number of keys of a slot that this server has.", Alone(cluster::countkeysinslot)),
    row("cluster|getkeysinslot", 4, STALE | WHOLE | TIMED, NO_KEYS, Group::Cluster, Family::Other, "3.0.0", "O(N)", "Returns keys of a slot that this server has.", Alone(cluster::getkeysinslot)),
    row("cluster|count-failure-reports", 3, ADMIN | STALE | DANGEROUS, NO_KEYS, Group::Cluster, Family::Other, "3.0.0", "O(N) where N is the number of failure reports", "Returns 0: servers report failures to the coordinator.", Plain(cluster::count_failure_reports)),
    row("cluster|replicas", 3, ADMIN | STALE | DANGEROUS, NO_KEYS, Group::Cluster, Family::Other, "5.0.0", "O(N) where N is the number of replicas.", "Returns the replicas of a server that serve requests: there are none.", Plain(cluster::replicas)),
    row("cluster|slaves", 3, ADMIN | STALE | DANGEROUS, NO_KEYS, Group::Cluster, Family::Other, "3.0.0", "O(N) where N is the number of replicas.", "Returns the replicas of a server that serve requests: there are none.", Plain(cluster::replicas)),
    row("cluster|help", 2, LOADING | STALE, NO_KEYS, Group::Cluster, Family::Other, "5.0.0", "O(1)", "Lists the subcommands.", Plain(cluster::help)),
    row("cluster|addslots", -3, ADMIN | STALE | NO_ASYNC_LOADING | DANGEROUS, NO_KEYS, Group::Cluster, Family::Other, "3.0.0", "O(1)", "Refused: the coordinator decides that.", Plain(cluster::decided_elsewhere)),
    row("cluster|addslotsrange", -4, ADMIN | STALE | NO_ASYNC_LOADING | DANGEROUS, NO_KEYS, Group::Cluster, Family::Other, "7.0.0", "O(1)", "Refused: the coordinator decides that.", Plain(cluster::decided_elsewhere)),
    row("cluster|bumpepoch", 2, ADMIN | STALE | NO_ASYNC_LOADING | DANGEROUS, NO_KEYS, Group::Cluster, Family::Other, "3.0.0", "O(1)", "Refused: the coordinator decides that.", Plain(cluster::decided_elsewhere)),
    row("cluster|delslots", -3, ADMIN | STALE | NO_ASYNC_LOADING | DANGEROUS, NO_KEYS, Group::Cluster, Family::Other, "3.0.0", "O(1)", "Refused: the coordinator decides that.", Plain(cluster::decided_elsewhere)),
    row("cluster|delslotsrange", -4, ADMIN | STALE | NO_ASYNC_LOADING | DANGEROUS, NO_KEYS, Group::Cluster, Family::Other, "7.0.0", "O(1)", "Refused: the coordinator decides that.", Plain(cluster::decided_elsewhere)),
    row("cluster|failover", -2, ADMIN | STALE | NO_ASYNC_LOADING | DANGEROUS, NO_KEYS, Group::Cluster, Family::Other, "3.0.0", "O(1)", "Refused: the coordinator decides that.", Plain(cluster::decided_elsewhere)),
    row("cluster|flushslots", 2, ADMIN | STALE | NO_ASYNC_LOADING | DANGEROUS, NO_KEYS, Group::Cluster, Family::Other, "3.0.0", "O(1)", "Refused: the coordinator decides that.", Plain(cluster::decided_elsewhere)),
    row("cluster|forget", 3, ADMIN | STALE | NO_ASYNC_LOADING | DANGEROUS, NO_KEYS, Group::Cluster, Family::Other, "3.0.0", "O(1)", "Refused: the coordinator decides that.", Plain(cluster::decided_elsewhere)),
    row("cluster|meet", -4, ADMIN | STALE | NO_ASYNC_LOADING | DANGEROUS, NO_KEYS, Group::Cluster, Family::Other, "3.0.0", "O(1)", "Refused: the coordinator decides that.", Plain(cluster::decided_elsewhere)),
    row("cluster|replicate", 3, ADMIN | STALE | NO_ASYNC_LOADING | DANGEROUS, NO_KEYS, Group::Cluster, Family::Other, "3.0.0", "O(1)", "Refused: the coordinator decides that.", Plain(cluster::decided_elsewhere)),
    row("cluster|saveconfig", 2, ADMIN | STALE | NO_ASYNC_LOADING | DANGEROUS, NO_KEYS, Group::Cluster, Family::Other, "3.0.0", "O(1)", "Refused: the coordinator decides that.", Plain(cluster::decided_elsewhere)),
    row("cluster|set-config-epoch", 3, ADMIN | STALE | NO_ASYNC_LOADING | DANGEROUS, NO_KEYS, Group::Cluster, Family::Other, "3.0.0", "O(1)", "Refused: the coordinator decides that.", Plain(cluster::decided_elsewhere)),
    row("cluster|setslot", -4, ADMIN | STALE | NO_ASYNC_LOADING | DANGEROUS, NO_KEYS, Group::Cluster, Family::Other, "3.0.0", "O(1)", "Refused: the coordinator decides that.", Plain(cluster::decided_elsewhere)),
    row("cluster|reset", -2, ADMIN | NOSCRIPT | STALE | DANGEROUS, NO_KEYS, Group::Cluster, Family::Other, "3.0.0", "O(1)", "Refused: the coordinator decides that.", Plain(cluster::decided_elsewhere)),
    row("asking", 1, FAST | CONNECTION, NO_KEYS, Group::Cluster, Family::Other, "3.0.0", "O(1)", "Accepted: a cluster of this kind never asks for it.", Plain(cluster::accept)),
    row("readonly", 1, LOADING | STALE | FAST | CONNECTION, NO_KEYS, Group::Cluster, Family::Other, "3.0.0", "O(1)", "Accepted: every server serves what it owns, and nothing else.", Plain(cluster::accept)),
    row("readwrite", 1, LOADING | STALE | FAST | CONNECTION, NO_KEYS, Group::Cluster, Family::Other, "3.0.0", "O(1)", "Accepted: every server serves what it owns, and nothing else.", Plain(cluster::accept)),
    row("duramen.read", 2, READONLY | FAST, ONE_KEY, Group::Duramen, Family::Read, "0.1.0", "O(1)", "Returns the value and the object version of a key.", Data(duramen::read)),
    row("duramen.write", -3, WRITE | DENYOOM | FAST, ONE_KEY, Group::Duramen, Family::Write, "0.1.0", "O(1)", "Writes a key under a condition; returns its object version and the level.", Data(duramen::write)),
    row("duramen.remove", -2, WRITE | FAST, ONE_KEY, Group::Duramen, Family::Write, "0.1.0", "O(1)", "Removes a key under a condition; returns the object version it had.", Data(duramen::remove)),
    row("duramen.incrby", 3, WRITE | DENYOOM | FAST, ONE_KEY, Group::Duramen, Family::Write, "0.1.0", "O(1)", "Adds to an integer; returns it and its object version.", Data(duramen::incrby)),
    row("duramen.incrbyfloat", 3, WRITE | DENYOOM | FAST, ONE_KEY, Group::Duramen, Family::Write, "0.1.0", "O(1)", "Adds to a number; returns it and its object version.", Data(duramen::incrbyfloat)),
    row("duramen.mread", -2, READONLY | FAST, ALL_KEYS, Group::Duramen, Family::MultiRead, "0.1.0", "O(N)", "Returns the values and object versions of several keys, each by itself.", Data(duramen::mread)),
    row("duramen.mwrite", -3, WRITE | DENYOOM, keys(1, -1, 2), Group::Duramen, Family::MultiWrite, "0.1.0", "O(N)", "Writes several keys, each by itself.", Data(duramen::mwrite)),
    row("duramen.mremove", -2, WRITE, ALL_KEYS, Group::Duramen, Family::MultiWrite, "0.1.0", "O(N)", "Removes several keys, each by itself.", Data(duramen::mremove)),
    row("duramen.scan", -2, READONLY | WHOLE | TIMED, NO_KEYS, Group::Duramen, Family::Scan, "0.1.0", "O(N)", "Walks over keys, values and object versions.", Data(duramen::scan)),
    row("duramen.scrub", 1, ADMIN | NOSCRIPT | NO_MULTI | DANGEROUS, NO_KEYS, Group::Duramen, Family::Other, "0.2.0", "O(N)", "Verifies all data on disk, in the background.", Plain(durability::scrub)),
    row("duramen.snapshot", 2, ADMIN | NOSCRIPT | NO_MULTI | DANGEROUS, NO_KEYS, Group::Duramen, Family::Other, "0.2.0", "O(N)", "Copies all data into a new directory, in the background.", Plain(durability::snapshot)),
    row("duramen.stuck", 1, NOSCRIPT | LOADING | STALE, NO_KEYS, Group::Duramen, Family::Other, "0.1.0", "O(N) where N is the number of threads.", "Tells which threads have not come back to their loops, and for how long.", Plain(server::stuck)),
    row("duramen.use", 2, FAST | NO_MULTI | CONNECTION, NO_KEYS, Group::Duramen, Family::Other, "0.1.0", "O(1)", "Chooses a table for this connection by name.", Store(duramen::use_table)),
    row("duramen.table", -2, CONTAINER, NO_KEYS, Group::Duramen, Family::Other, "0.1.0", "O(1)", "A container for commands about tables.", Plain(server::container)),
    row("duramen.table|create", -3, WRITE | NO_MULTI, NO_KEYS, Group::Duramen, Family::Other, "0.1.0", "O(1)", "Makes a table, with a level of its own if wanted; returns its id.", Store(duramen::table_create)),
    row("duramen.table|id", 3, READONLY, NO_KEYS, Group::Duramen, Family::Other, "0.1.0", "O(1)", "Returns the id of a table.", Store(duramen::table_id)),
    row("duramen.table|drop", 3, WRITE | NO_MULTI | DANGEROUS, NO_KEYS, Group::Duramen, Family::Other, "0.1.0", "O(1)", "Drops a table and all its objects.", Alone(duramen::table_drop)),
    row("duramen.table|list", 2, READONLY, NO_KEYS, Group::Duramen, Family::Other, "0.1.0", "O(1)", "Returns names, ids, sizes and levels of all tables.", Store(duramen::table_list)),
    row("duramen.table|help", 2, NO_FLAGS, NO_KEYS, Group::Duramen, Family::Other, "0.1.0", "O(1)", "Lists the subcommands.", Store(duramen::table_help)),
    row("acl", -2, CONTAINER, NO_KEYS, Group::Server, Family::Other, "6.0.0", "Depends on the subcommand", "A container for commands about users.", Plain(server::container)),
    row("acl|cat", -2, NOSCRIPT | LOADING | STALE, NO_KEYS, Group::Server, Family::Other, "6.0.0", "O(1)", "Lists the categories, or the commands of one.", Plain(acl::cat)),
    row("acl|deluser", -3, ADMIN | NOSCRIPT | LOADING | STALE | DANGEROUS, NO_KEYS, Group::Server, Family::Other, "6.0.0", "O(1)", "Removes users and closes their connections.", Plain(acl::deluser)),
    row("acl|dryrun", -4, ADMIN | NOSCRIPT | LOADING | STALE | DANGEROUS, NO_KEYS, Group::Server, Family::Other, "7.0.0", "O(1).", "Tells whether a user may make a request, without making it.", Plain(acl::dryrun)),
    row("acl|genpass", -2, NOSCRIPT | LOADING | STALE, NO_KEYS, Group::Server, Family::Other, "6.0.0", "O(1)", "Returns a new random password.", Plain(acl::genpass)),
    row("acl|getuser", 3, ADMIN | NOSCRIPT | LOADING | STALE | DANGEROUS, NO_KEYS, Group::Server, Family::Other, "6.0.0", "O(N)", "Returns the rights of a user.", Plain(acl::getuser)),
    row("acl|help", 2, LOADING | STALE, NO_KEYS, Group::Server, Family::Other, "6.0.0", "O(1)", "Lists the subcommands.", Plain(acl::help)),
    row("acl|list", 2, ADMIN | NOSCRIPT | LOADING | STALE | DANGEROUS, NO_KEYS, Group::Server, Family::Other, "6.0.0", "O(N)", "Returns all users and their rights.", Plain(acl::list)),
    row("acl|load", 2, ADMIN | NOSCRIPT | LOADING | STALE | NO_MULTI | DANGEROUS, NO_KEYS, Group::Server, Family::Other, "6.0.0", "O(N)", "Reads the users from their file again.", Plain(acl::load)),
    row("acl|log", -2, ADMIN | NOSCRIPT | LOADING | STALE | DANGEROUS, NO_KEYS, Group::Server, Family::Other, "6.0.0", "O(N)", "Returns denied requests and failed logins.", Plain(acl::log)),
    row("acl|save", 2, ADMIN | NOSCRIPT | LOADING | STALE | NO_MULTI | DANGEROUS, NO_KEYS, Group::Server, Family::Other, "6.0.0", "O(N)", "Writes the users to their file.", Plain(acl::save)),
    row("acl|setuser", -3, ADMIN | NOSCRIPT | LOADING | STALE | DANGEROUS, NO_KEYS, Group::Server, Family::Other, "6.0.0", "O(N)", "Makes or changes a user.", Plain(acl::setuser)),
    row("acl|users", 2, ADMIN | NOSCRIPT | LOADING | STALE | DANGEROUS, NO_KEYS, Group::Server, Family::Other, "6.0.0", "O(N)", "Returns the names of all users.", Plain(acl::users)),
    row("acl|whoami", 2, NOSCRIPT | LOADING | STALE, NO_KEYS, Group::Server, Family::Other, "6.0.0", "O(1)", "Returns the name of this connection's user.", Plain(acl::whoami)),
    row("module", -2, CONTAINER, NO_KEYS, Group::Server, Family::Other, "4.0.0", "Depends on the subcommand", "A container for commands about modules, of which there are none.", Plain(server::container)),
    row("module|list", 2, ADMIN | NOSCRIPT, NO_KEYS, Group::Server, Family::Other, "4.0.0", "O(1)", "Returns an empty list.", Plain(server::no_modules)),
    row("module|load", -3, ADMIN | NOSCRIPT | DANGEROUS, NO_KEYS, Group::Server, Family::Other, "4.0.0", "O(1)", "Refused: there are no modules.", Plain(server::refuse_module)),
    row("module|loadex", -3, ADMIN | NOSCRIPT | DANGEROUS, NO_KEYS, Group::Server, Family::Other, "7.0.0", "O(1)", "Refused: there are no modules.", Plain(server::refuse_module)),
    row("module|unload", 3, ADMIN | NOSCRIPT | DANGEROUS, NO_KEYS, Group::Server, Family::Other, "4.0.0", "O(1)", "Refused: there are no modules.", Plain(server::refuse_module)),
    row("module|help", 2, LOADING | STALE, NO_KEYS, Group::Server, Family::Other, "5.0.0", "O(1)", "Lists the subcommands.", Plain(server::module_help)),

    // Refused by name.
    no("blmove", WHY_LIST), no("blmpop", WHY_LIST), no("blpop", WHY_LIST), no("brpop", WHY_LIST), no("brpoplpush", WHY_LIST),
    no("lindex", WHY_LIST), no("linsert", WHY_LIST), no("llen", WHY_LIST), no("lmove", WHY_LIST), no("lmpop", WHY_LIST),
    no("lpop", WHY_LIST), no("lpos", WHY_LIST), no("lpush", WHY_LIST), no("lpushx", WHY_LIST), no("lrange", WHY_LIST),
    no("lrem", WHY_LIST), no("lset", WHY_LIST), no("ltrim", WHY_LIST), no("rpop", WHY_LIST), no("rpoplpush", WHY_LIST),
    no("rpush", WHY_LIST), no("rpushx", WHY_LIST),
    no("hdel", WHY_HASH), no("hexists", WHY_HASH), no("hexpire", WHY_HASH), no("hexpireat", WHY_HASH), no("hexpiretime", WHY_HASH),
    no("hget", WHY_HASH), no("hgetall", WHY_HASH), no("hgetdel", WHY_HASH), no("hgetex", WHY_HASH), no("hincrby", WHY_HASH),
    no("hincrbyfloat", WHY_HASH), no("hkeys", WHY_HASH), no("hlen", WHY_HASH), no("hmget", WHY_HASH), no("hmset", WHY_HASH),
    no("hpersist", WHY_HASH), no("hpexpire", WHY_HASH), no("hpexpireat", WHY_HASH), no("hpexpiretime", WHY_HASH),
    no("hpttl", WHY_HASH), no("hrandfield", WHY_HASH), no("hscan", WHY_HASH), no("hset", WHY_HASH), no("hsetex", WHY_HASH),
    no("hsetnx", WHY_HASH), no("hstrlen", WHY_HASH), no("httl", WHY_HASH), no("hvals", WHY_HASH),
    no("sadd", WHY_SET), no("scard", WHY_SET), no("sdiff", WHY_SET), no("sdiffstore", WHY_SET), no("sinter", WHY_SET),
    no("sintercard", WHY_SET), no("sinterstore", WHY_SET), no("sismember", WHY_SET), no("smembers", WHY_SET),
    no("smismember", WHY_SET), no("smove", WHY_SET), no("spop", WHY_SET), no("srandmember", WHY_SET), no("srem", WHY_SET),
    no("sscan", WHY_SET), no("sunion", WHY_SET), no("sunionstore", WHY_SET),
    no("bzmpop", WHY_SORTED_SET), no("bzpopmax", WHY_SORTED_SET), no("bzpopmin", WHY_SORTED_SET), no("zadd", WHY_SORTED_SET),
    no("zcard", WHY_SORTED_SET), no("zcount", WHY_SORTED_SET), no("zdiff", WHY_SORTED_SET), no("zdiffstore", WHY_SORTED_SET),
    no("zincrby", WHY_SORTED_SET), no("zinter", WHY_SORTED_SET), no("zintercard", WHY_SORTED_SET),
    no("zinterstore", WHY_SORTED_SET), no("zlexcount", WHY_SORTED_SET), no("zmpop", WHY_SORTED_SET),
    no("zmscore", WHY_SORTED_SET), no("zpopmax", WHY_SORTED_SET), no("zpopmin", WHY_SORTED_SET),
    no("zrandmember", WHY_SORTED_SET), no("zrange", WHY_SORTED_SET), no("zrangebylex", WHY_SORTED_SET),
    no("zrangebyscore", WHY_SORTED_SET), no("zrangestore", WHY_SORTED_SET), no("zrank", WHY_SORTED_SET),
    no("zrem", WHY_SORTED_SET), no("zremrangebylex", WHY_SORTED_SET), no("zremrangebyrank", WHY_SORTED_SET),
    no("zremrangebyscore", WHY_SORTED_SET), no("zrevrange", WHY_SORTED_SET), no("zrevrangebylex", WHY_SORTED_SET),
    no("zrevrangebyscore", WHY_SORTED_SET), no("zrevrank", WHY_SORTED_SET), no("zscan", WHY_SORTED_SET),
    no("zscore", WHY_SORTED_SET), no("zunion", WHY_SORTED_SET), no("zunionstore", WHY_SORTED_SET),
    no("xack", WHY_STREAM), no("xadd", WHY_STREAM), no("xautoclaim", WHY_STREAM), no("xclaim", WHY_STREAM), no("xdel", WHY_STREAM),
    no("xgroup", WHY_STREAM), no("xinfo", WHY_STREAM), no("xlen", WHY_STREAM), no("xpending", WHY_STREAM), no("xrange", WHY_STREAM),
    no("xread", WHY_STREAM), no("xreadgroup", WHY_STREAM), no("xrevrange", WHY_STREAM), no("xsetid", WHY_STREAM),
    no("xtrim", WHY_STREAM),
    no("geoadd", WHY_GEO), no("geodist", WHY_GEO), no("geohash", WHY_GEO), no("geopos", WHY_GEO), no("georadius", WHY_GEO),
    no("georadius_ro", WHY_GEO), no("georadiusbymember", WHY_GEO), no("georadiusbymember_ro", WHY_GEO), no("geosearch", WHY_GEO),
    no("geosearchstore", WHY_GEO),
    no("pfadd", WHY_HYPERLOGLOG), no("pfcount", WHY_HYPERLOGLOG), no("pfdebug", WHY_HYPERLOGLOG), no("pfmerge", WHY_HYPERLOGLOG),
    no("pfselftest", WHY_HYPERLOGLOG),
    no("bitcount", WHY_BITMAP), no("bitfield", WHY_BITMAP), no("bitfield_ro", WHY_BITMAP), no("bitop", WHY_BITMAP),
    no("bitpos", WHY_BITMAP), no("getbit", WHY_BITMAP), no("setbit", WHY_BITMAP),
    no("lcs", WHY_LCS),
    no("sort", WHY_SORT), no("sort_ro", WHY_SORT),
    no("dump", WHY_DUMP), no("restore", WHY_DUMP), no("restore-asking", WHY_DUMP), no("migrate", WHY_DUMP),
    no("eval", WHY_SCRIPT), no("eval_ro", WHY_SCRIPT), no("evalsha", WHY_SCRIPT), no("evalsha_ro", WHY_SCRIPT),
    no("script", WHY_SCRIPT), no("fcall", WHY_SCRIPT), no("fcall_ro", WHY_SCRIPT), no("function", WHY_SCRIPT),
    no("subscribe", WHY_PUBSUB), no("unsubscribe", WHY_PUBSUB), no("psubscribe", WHY_PUBSUB), no("punsubscribe", WHY_PUBSUB),
    no("ssubscribe", WHY_PUBSUB), no("sunsubscribe", WHY_PUBSUB), no("publish", WHY_PUBSUB), no("spublish", WHY_PUBSUB),
    no("pubsub", WHY_PUBSUB),
    no("replicaof", WHY_REPLICATION), no("slaveof", WHY_REPLICATION), no("replconf", WHY_REPLICATION),
    no("psync", WHY_REPLICATION), no("sync", WHY_REPLICATION), no("failover", WHY_REPLICATION),
    no("debug", WHY_DEBUG),
    no("duramen.tablet", WHY_TABLET),
];

// Reasons for refusing a command.
const WHY_LIST: &str = "it is a list command, and data types beyond strings are not supported";
const WHY_HASH: &str = "it is a hash command, and data types beyond strings are not supported";
const WHY_SET: &str = "it is a set command, and data types beyond strings are not supported";
const WHY_SORTED_SET: &str =
    "it is a sorted set command, and data types beyond strings are not supported";
const WHY_STREAM: &str = "it is a stream command, and data types beyond strings are not supported";
const WHY_GEO: &str = "it is a geospatial command, and data types beyond strings are not supported";
const WHY_HYPERLOGLOG: &str =
    "it is a HyperLogLog command, and data types beyond strings are not supported";
const WHY_BITMAP: &str = "it is a bitmap command, and data types beyond strings are not supported";
const WHY_LCS: &str = "it is not offered yet";
const WHY_SORT: &str = "it works on data types beyond strings, which are not supported";
const WHY_DUMP: &str = "values are not exchanged in Redis's own serialization";
const WHY_SCRIPT: &str = "there is no scripting";
const WHY_PUBSUB: &str = "there is no publish and subscribe";
const WHY_REPLICATION: &str =
    "a single server has no replicas; members of a cluster keep copies of each other's data";
const WHY_DEBUG: &str = "debugging commands are not offered over the network";
const WHY_TABLET: &str =
    "tablets are split and moved by `duramen tablet`, which asks the coordinator of a cluster";

/// The command table; a command's position is its number.
pub(crate) static COMMANDS: [Spec; ROWS.len()] = numbered(ROWS);

const fn numbered<const N: usize>(rows: &[Spec]) -> [Spec; N] {
    let mut table = [rows[0]; N];
    let mut number = 0;
    while number < N {
        table[number] = rows[number];
        table[number].number = number;
        number += 1;
    }
    table
}

/// Every command with its counters since `CONFIG RESETSTAT`.
pub(crate) fn commands_since_reset(
    shared: &Shared,
) -> impl Iterator<Item = (&'static Spec, CommandTotals)> {
    COMMANDS.iter().zip(Totals::commands(shared))
}

/// Every command with its counters since the server started: these never decrease.
pub(crate) fn commands_since_start(
    shared: &Shared,
) -> impl Iterator<Item = (&'static Spec, CommandTotals)> {
    COMMANDS.iter().zip(counted(shared))
}

/// A command that clients may know but that does not exist here. It accepts any arguments, so that
/// clients always get the reason.
const fn no(name: &'static str, why: &'static str) -> Spec {
    row(
        name,
        -1,
        NO_FLAGS,
        NO_KEYS,
        Group::Foreign,
        Family::Other,
        "",
        "",
        "",
        Refused(why),
    )
}
