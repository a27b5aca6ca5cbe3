//! The rows of the command table, in the order of the groups, and the commands that are refused by
//! name.
//!
//! Names, arities, flags and key positions are those of Redis, because clients read them
//! (`COMMAND`).

use crate::access::commands as acl;
use crate::command::spec::Run::{Alone, Atomic, Data, Plain, Refused, Store};
use crate::command::spec::flag::*;
use crate::command::spec::{
    ALL_KEYS, Commands, Group, Hooks, NO_KEYS, ONE_KEY, Spec, counted_keys, key_and_store, keys,
    row, stream_keys,
};
use crate::connection::{client, client_list, commands as connection};
use crate::figures::counters::Family;
use crate::figures::totals::CommandTotals;
use crate::keyspace::{databases, dump, expire, keys as key_space, scan, sort};
use crate::operation::{
    cluster, command, config, duramen, info, latency, memory, persistence as durability, server,
    slowlog,
};
use crate::pubsub::commands as pubsub;
use crate::script::{commands as script, function};
use crate::state::Shared;
use crate::tracking::commands as tracking;
use crate::values::{
    bitmap, blocking, geo, hash, hyperloglog, list, multi_key, set, stream, stream_claim,
    stream_group, stream_info, stream_read, string, zset, zset_combine, zset_range,
};
use crate::{monitor, transaction};
use duramen_acl::{CATEGORIES, Catalog, Command};

const NO_FLAGS: u64 = 0;

/// The rows without their numbers.
#[rustfmt::skip] // One row, one line: it is a table.
const ROWS: &[Spec] = &[
    row("hello", -1, NOSCRIPT | LOADING | STALE | FAST | NO_AUTH | ALLOW_BUSY | CONNECTION, NO_KEYS, Group::Connection, Family::Other, "6.0.0", "O(1)", "Chooses the protocol version, and authenticates and names the connection.", Plain(connection::hello)),
    row("auth", -2, NOSCRIPT | LOADING | STALE | FAST | NO_AUTH | ALLOW_BUSY | CONNECTION, NO_KEYS, Group::Connection, Family::Other, "1.0.0", "O(N)", "Gives the password.", Plain(connection::auth)),
    row("ping", -1, SUBSCRIBED | FAST | CONNECTION, NO_KEYS, Group::Connection, Family::Other, "1.0.0", "O(1)", "Answers PONG, or what it was given.", Plain(connection::ping)),
    row("echo", 2, LOADING | STALE | FAST | CONNECTION, NO_KEYS, Group::Connection, Family::Other, "1.0.0", "O(1)", "Answers what it was given.", Plain(connection::echo)),
    row("select", 2, LOADING | STALE | FAST | CONNECTION, NO_KEYS, Group::Connection, Family::Other, "1.0.0", "O(1)", "Chooses the database of this connection.", Store(databases::select)),
    row("quit", -1, SUBSCRIBED | NOSCRIPT | LOADING | STALE | FAST | NO_AUTH | ALLOW_BUSY | CONNECTION | NEVER_QUEUED, NO_KEYS, Group::Connection, Family::Other, "1.0.0", "O(1)", "Closes the connection after its replies.", Plain(connection::quit)),
    row("reset", 1, SUBSCRIBED | NOSCRIPT | LOADING | STALE | FAST | NO_AUTH | ALLOW_BUSY | CONNECTION | NEVER_QUEUED, NO_KEYS, Group::Connection, Family::Other, "6.2.0", "O(1)", "Brings the connection back to how it was when it was new.", Plain(connection::reset)),
    row("get", 2, READONLY | FAST | STRING, ONE_KEY, Group::String, Family::Read, "1.0.0", "O(1)", "Returns the value of a key.", Data(string::get)),
    row("set", -3, WRITE | DENYOOM | STRING, ONE_KEY, Group::String, Family::Write, "1.0.0", "O(1)", "Sets the value of a key, under conditions and with an expiry if wanted.", Data(string::set)),
    row("setnx", 3, WRITE | DENYOOM | FAST | STRING, ONE_KEY, Group::String, Family::Write, "1.0.0", "O(1)", "Sets the value of a key that does not exist.", Data(string::setnx)),
    row("setex", 4, WRITE | DENYOOM | STRING, ONE_KEY, Group::String, Family::Write, "2.0.0", "O(1)", "Sets a value and its time to live in seconds.", Data(string::setex)),
    row("psetex", 4, WRITE | DENYOOM | STRING, ONE_KEY, Group::String, Family::Write, "2.6.0", "O(1)", "Sets a value and its time to live in milliseconds.", Data(string::psetex)),
    row("getset", 3, WRITE | DENYOOM | FAST | STRING, ONE_KEY, Group::String, Family::Write, "1.0.0", "O(1)", "Sets a value and returns the one before.", Data(string::getset)),
    row("delifeq", 3, WRITE | FAST | STRING, ONE_KEY, Group::String, Family::Write, "9.0.0", "O(1)", "Deletes a key if its value is equal to the given one.", Data(string::delifeq)),
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
    row("hset", -4, WRITE | DENYOOM | FAST | HASH, ONE_KEY, Group::Hash, Family::Write, "2.0.0", "O(1)", "Sets fields of a hash.", Data(hash::hset)),
    row("hmset", -4, WRITE | DENYOOM | FAST | HASH, ONE_KEY, Group::Hash, Family::Write, "2.0.0", "O(N)", "Sets fields of a hash (old name of HSET).", Data(hash::hmset)),
    row("hsetnx", 4, WRITE | DENYOOM | FAST | HASH, ONE_KEY, Group::Hash, Family::Write, "2.0.0", "O(1)", "Sets a field that does not exist.", Data(hash::hsetnx)),
    row("hget", 3, READONLY | FAST | HASH, ONE_KEY, Group::Hash, Family::Read, "2.0.0", "O(1)", "Returns the value of a field.", Data(hash::hget)),
    row("hmget", -3, READONLY | FAST | HASH, ONE_KEY, Group::Hash, Family::Read, "2.0.0", "O(N)", "Returns the values of fields.", Data(hash::hmget)),
    row("hdel", -3, WRITE | FAST | HASH, ONE_KEY, Group::Hash, Family::Write, "2.0.0", "O(N)", "Removes fields.", Data(hash::hdel)),
    row("hlen", 2, READONLY | FAST | HASH, ONE_KEY, Group::Hash, Family::Read, "2.0.0", "O(1)", "Returns the number of fields.", Data(hash::hlen)),
    row("hstrlen", 3, READONLY | FAST | HASH, ONE_KEY, Group::Hash, Family::Read, "3.2.0", "O(1)", "Returns the length of a field's value.", Data(hash::hstrlen)),
    row("hexists", 3, READONLY | FAST | HASH, ONE_KEY, Group::Hash, Family::Read, "2.0.0", "O(1)", "Tells whether a field exists.", Data(hash::hexists)),
    row("hkeys", 2, READONLY | HASH, ONE_KEY, Group::Hash, Family::Read, "2.0.0", "O(N)", "Returns all fields.", Data(hash::hkeys)),
    row("hvals", 2, READONLY | HASH, ONE_KEY, Group::Hash, Family::Read, "2.0.0", "O(N)", "Returns all values.", Data(hash::hvals)),
    row("hgetall", 2, READONLY | HASH, ONE_KEY, Group::Hash, Family::Read, "2.0.0", "O(N)", "Returns all fields and values.", Data(hash::hgetall)),
    row("hincrby", 4, WRITE | DENYOOM | FAST | HASH, ONE_KEY, Group::Hash, Family::Write, "2.0.0", "O(1)", "Adds to the integer in a field.", Data(hash::hincrby)),
    row("hincrbyfloat", 4, WRITE | DENYOOM | FAST | HASH, ONE_KEY, Group::Hash, Family::Write, "2.6.0", "O(1)", "Adds to the number in a field.", Data(hash::hincrbyfloat)),
    row("hrandfield", -2, READONLY | HASH, ONE_KEY, Group::Hash, Family::Read, "6.2.0", "O(N)", "Returns random fields.", Data(hash::hrandfield)),
    row("hscan", -3, READONLY | HASH, ONE_KEY, Group::Hash, Family::Read, "2.8.0", "O(N)", "Walks over fields and values.", Data(hash::hscan)),
    row("lpush", -3, WRITE | DENYOOM | FAST | LIST, ONE_KEY, Group::List, Family::Write, "1.0.0", "O(1)", "Puts elements before the first.", Data(list::lpush)),
    row("rpush", -3, WRITE | DENYOOM | FAST | LIST, ONE_KEY, Group::List, Family::Write, "1.0.0", "O(1)", "Puts elements behind the last.", Data(list::rpush)),
    row("lpushx", -3, WRITE | DENYOOM | FAST | LIST, ONE_KEY, Group::List, Family::Write, "2.2.0", "O(1)", "Puts elements before the first, if there is a list.", Data(list::lpushx)),
    row("rpushx", -3, WRITE | DENYOOM | FAST | LIST, ONE_KEY, Group::List, Family::Write, "2.2.0", "O(1)", "Puts elements behind the last, if there is a list.", Data(list::rpushx)),
    row("lpop", -2, WRITE | FAST | LIST, ONE_KEY, Group::List, Family::Write, "1.0.0", "O(N)", "Takes the first elements.", Data(list::lpop)),
    row("rpop", -2, WRITE | FAST | LIST, ONE_KEY, Group::List, Family::Write, "1.0.0", "O(N)", "Takes the last elements.", Data(list::rpop)),
    row("llen", 2, READONLY | FAST | LIST, ONE_KEY, Group::List, Family::Read, "1.0.0", "O(1)", "Returns the number of elements.", Data(list::llen)),
    row("lindex", 3, READONLY | LIST, ONE_KEY, Group::List, Family::Read, "1.0.0", "O(N)", "Returns an element by its index.", Data(list::lindex)),
    row("linsert", 5, WRITE | DENYOOM | LIST, ONE_KEY, Group::List, Family::Write, "2.2.0", "O(N)", "Puts an element before or behind another.", Data(list::linsert)),
    row("lset", 4, WRITE | DENYOOM | LIST, ONE_KEY, Group::List, Family::Write, "1.0.0", "O(N)", "Sets an element by its index.", Data(list::lset)),
    row("lrange", 4, READONLY | LIST, ONE_KEY, Group::List, Family::Read, "1.0.0", "O(N)", "Returns a range of elements.", Data(list::lrange)),
    row("ltrim", 4, WRITE | LIST, ONE_KEY, Group::List, Family::Write, "1.0.0", "O(N)", "Keeps a range of elements.", Data(list::ltrim)),
    row("lrem", 4, WRITE | LIST, ONE_KEY, Group::List, Family::Write, "1.0.0", "O(N)", "Removes elements that are equal to a string.", Data(list::lrem)),
    row("lpos", -3, READONLY | LIST, ONE_KEY, Group::List, Family::Read, "6.0.6", "O(N)", "Returns indexes of elements that are equal to a string.", Data(list::lpos)),
    row("lmove", 5, WRITE | DENYOOM | LIST, keys(1, 2, 1), Group::List, Family::MultiWrite, "6.2.0", "O(N)", "Moves an element to another list, and returns it.", Atomic(list::lmove)),
    row("rpoplpush", 3, WRITE | DENYOOM | LIST, keys(1, 2, 1), Group::List, Family::MultiWrite, "1.2.0", "O(N)", "Moves the last element to the front of another list.", Atomic(list::rpoplpush)),
    row("lmpop", -4, WRITE | MOVABLE | LIST, counted_keys(0, 1), Group::List, Family::MultiWrite, "7.0.0", "O(N)", "Takes elements of the first list that has some.", Atomic(list::lmpop)),
    row("blpop", -3, WRITE | BLOCKING | LIST, keys(1, -2, 1), Group::List, Family::MultiWrite, "2.0.0", "O(N)", "Takes the first element of the first list that has one, or waits for one.", Atomic(blocking::blpop)),
    row("brpop", -3, WRITE | BLOCKING | LIST, keys(1, -2, 1), Group::List, Family::MultiWrite, "2.0.0", "O(N)", "Takes the last element of the first list that has one, or waits for one.", Atomic(blocking::brpop)),
    row("blmove", 6, WRITE | DENYOOM | BLOCKING | LIST, keys(1, 2, 1), Group::List, Family::MultiWrite, "6.2.0", "O(1)", "Moves an element to another list and returns it, or waits for one.", Atomic(blocking::blmove)),
    row("brpoplpush", 4, WRITE | DENYOOM | BLOCKING | LIST, keys(1, 2, 1), Group::List, Family::MultiWrite, "2.2.0", "O(1)", "Moves the last element to the front of another list, or waits for one.", Atomic(blocking::brpoplpush)),
    row("blmpop", -5, WRITE | BLOCKING | MOVABLE | LIST, counted_keys(0, 2), Group::List, Family::MultiWrite, "7.0.0", "O(N+M)", "Takes elements of the first list that has some, or waits for some.", Atomic(blocking::blmpop)),
    row("sadd", -3, WRITE | DENYOOM | FAST | SET, ONE_KEY, Group::Set, Family::Write, "1.0.0", "O(N)", "Adds members.", Data(set::sadd)),
    row("srem", -3, WRITE | FAST | SET, ONE_KEY, Group::Set, Family::Write, "1.0.0", "O(N)", "Removes members.", Data(set::srem)),
    row("scard", 2, READONLY | FAST | SET, ONE_KEY, Group::Set, Family::Read, "1.0.0", "O(1)", "Returns the number of members.", Data(set::scard)),
    row("sismember", 3, READONLY | FAST | SET, ONE_KEY, Group::Set, Family::Read, "1.0.0", "O(1)", "Tells whether a member exists.", Data(set::sismember)),
    row("smismember", -3, READONLY | FAST | SET, ONE_KEY, Group::Set, Family::Read, "6.2.0", "O(N)", "Tells which members exist.", Data(set::smismember)),
    row("smembers", 2, READONLY | SET, ONE_KEY, Group::Set, Family::Read, "1.0.0", "O(N)", "Returns all members.", Data(set::smembers)),
    row("spop", -2, WRITE | FAST | SET, ONE_KEY, Group::Set, Family::Write, "1.0.0", "O(N)", "Takes random members.", Data(set::spop)),
    row("srandmember", -2, READONLY | SET, ONE_KEY, Group::Set, Family::Read, "1.0.0", "O(N)", "Returns random members.", Data(set::srandmember)),
    row("smove", 4, WRITE | FAST | SET, keys(1, 2, 1), Group::Set, Family::MultiWrite, "1.0.0", "O(N)", "Moves a member to another set.", Atomic(set::smove)),
    row("sinter", -2, READONLY | SET, ALL_KEYS, Group::Set, Family::MultiRead, "1.0.0", "O(N*M)", "Returns the members of all sets.", Atomic(set::sinter)),
    row("sinterstore", -3, WRITE | DENYOOM | SET, ALL_KEYS, Group::Set, Family::MultiWrite, "1.0.0", "O(N*M)", "Stores the members of all sets.", Atomic(set::sinterstore)),
    row("sintercard", -3, READONLY | MOVABLE | SET, counted_keys(0, 1), Group::Set, Family::MultiRead, "7.0.0", "O(N*M)", "Counts the members of all sets.", Atomic(set::sintercard)),
    row("sunion", -2, READONLY | SET, ALL_KEYS, Group::Set, Family::MultiRead, "1.0.0", "O(N)", "Returns the members of any set.", Atomic(set::sunion)),
    row("sunionstore", -3, WRITE | DENYOOM | SET, ALL_KEYS, Group::Set, Family::MultiWrite, "1.0.0", "O(N)", "Stores the members of any set.", Atomic(set::sunionstore)),
    row("sdiff", -2, READONLY | SET, ALL_KEYS, Group::Set, Family::MultiRead, "1.0.0", "O(N)", "Returns the members of the first set alone.", Atomic(set::sdiff)),
    row("sdiffstore", -3, WRITE | DENYOOM | SET, ALL_KEYS, Group::Set, Family::MultiWrite, "1.0.0", "O(N)", "Stores the members of the first set alone.", Atomic(set::sdiffstore)),
    row("sscan", -3, READONLY | SET, ONE_KEY, Group::Set, Family::Read, "2.8.0", "O(N)", "Walks over members.", Data(set::sscan)),
    row("zadd", -4, WRITE | DENYOOM | FAST | SORTED_SET, ONE_KEY, Group::SortedSet, Family::Write, "1.2.0", "O(N)", "Adds members or changes their scores.", Data(zset::zadd)),
    row("zincrby", 4, WRITE | DENYOOM | FAST | SORTED_SET, ONE_KEY, Group::SortedSet, Family::Write, "1.2.0", "O(N)", "Adds to the score of a member.", Data(zset::zincrby)),
    row("zrem", -3, WRITE | FAST | SORTED_SET, ONE_KEY, Group::SortedSet, Family::Write, "1.2.0", "O(N)", "Removes members.", Data(zset::zrem)),
    row("zcard", 2, READONLY | FAST | SORTED_SET, ONE_KEY, Group::SortedSet, Family::Read, "1.2.0", "O(1)", "Returns the number of members.", Data(zset::zcard)),
    row("zscore", 3, READONLY | FAST | SORTED_SET, ONE_KEY, Group::SortedSet, Family::Read, "1.2.0", "O(1)", "Returns the score of a member.", Data(zset::zscore)),
    row("zmscore", -3, READONLY | FAST | SORTED_SET, ONE_KEY, Group::SortedSet, Family::Read, "6.2.0", "O(N)", "Returns the scores of members.", Data(zset::zmscore)),
    row("zrank", -3, READONLY | FAST | SORTED_SET, ONE_KEY, Group::SortedSet, Family::Read, "2.0.0", "O(N)", "Returns the rank of a member.", Data(zset::zrank)),
    row("zrevrank", -3, READONLY | FAST | SORTED_SET, ONE_KEY, Group::SortedSet, Family::Read, "2.0.0", "O(N)", "Returns the rank of a member from the end.", Data(zset::zrevrank)),
    row("zpopmin", -2, WRITE | FAST | SORTED_SET, ONE_KEY, Group::SortedSet, Family::Write, "5.0.0", "O(N)", "Takes the members with the lowest scores.", Data(zset::zpopmin)),
    row("zpopmax", -2, WRITE | FAST | SORTED_SET, ONE_KEY, Group::SortedSet, Family::Write, "5.0.0", "O(N)", "Takes the members with the highest scores.", Data(zset::zpopmax)),
    row("zmpop", -4, WRITE | MOVABLE | SORTED_SET, counted_keys(0, 1), Group::SortedSet, Family::MultiWrite, "7.0.0", "O(N)", "Takes members of the first sorted set that has some.", Atomic(zset::zmpop)),
    row("bzpopmin", -3, WRITE | BLOCKING | FAST | SORTED_SET, keys(1, -2, 1), Group::SortedSet, Family::MultiWrite, "5.0.0", "O(log(N))", "Takes the member with the lowest score of the first sorted set that has one, or waits for one.", Atomic(blocking::bzpopmin)),
    row("bzpopmax", -3, WRITE | BLOCKING | FAST | SORTED_SET, keys(1, -2, 1), Group::SortedSet, Family::MultiWrite, "5.0.0", "O(log(N))", "Takes the member with the highest score of the first sorted set that has one, or waits for one.", Atomic(blocking::bzpopmax)),
    row("bzmpop", -5, WRITE | BLOCKING | MOVABLE | SORTED_SET, counted_keys(0, 2), Group::SortedSet, Family::MultiWrite, "7.0.0", "O(N)", "Takes members of the first sorted set that has some, or waits for some.", Atomic(blocking::bzmpop)),
    row("zrandmember", -2, READONLY | SORTED_SET, ONE_KEY, Group::SortedSet, Family::Read, "6.2.0", "O(N)", "Returns random members.", Data(zset::zrandmember)),
    row("zscan", -3, READONLY | SORTED_SET, ONE_KEY, Group::SortedSet, Family::Read, "2.8.0", "O(N)", "Walks over members and scores.", Data(zset::zscan)),
    row("zcount", 4, READONLY | FAST | SORTED_SET, ONE_KEY, Group::SortedSet, Family::Read, "2.0.0", "O(N)", "Counts the members in a range of scores.", Data(zset_range::zcount)),
    row("zlexcount", 4, READONLY | FAST | SORTED_SET, ONE_KEY, Group::SortedSet, Family::Read, "2.8.9", "O(N)", "Counts the members in a range of members.", Data(zset_range::zlexcount)),
    row("zrange", -4, READONLY | SORTED_SET, ONE_KEY, Group::SortedSet, Family::Read, "1.2.0", "O(N)", "Returns the members in a range.", Data(zset_range::zrange)),
    row("zrevrange", -4, READONLY | SORTED_SET, ONE_KEY, Group::SortedSet, Family::Read, "1.2.0", "O(N)", "Returns the members in a range of ranks from the end.", Data(zset_range::zrevrange)),
    row("zrangebyscore", -4, READONLY | SORTED_SET, ONE_KEY, Group::SortedSet, Family::Read, "1.0.5", "O(N)", "Returns the members in a range of scores.", Data(zset_range::zrangebyscore)),
    row("zrevrangebyscore", -4, READONLY | SORTED_SET, ONE_KEY, Group::SortedSet, Family::Read, "2.2.0", "O(N)", "Returns the members in a range of scores, the highest first.", Data(zset_range::zrevrangebyscore)),
    row("zrangebylex", -4, READONLY | SORTED_SET, ONE_KEY, Group::SortedSet, Family::Read, "2.8.9", "O(N)", "Returns the members in a range of members.", Data(zset_range::zrangebylex)),
    row("zrevrangebylex", -4, READONLY | SORTED_SET, ONE_KEY, Group::SortedSet, Family::Read, "2.8.9", "O(N)", "Returns the members in a range of members, the last first.", Data(zset_range::zrevrangebylex)),
    row("zremrangebyrank", 4, WRITE | SORTED_SET, ONE_KEY, Group::SortedSet, Family::Write, "2.0.0", "O(N)", "Removes the members in a range of ranks.", Data(zset_range::zremrangebyrank)),
    row("zremrangebyscore", 4, WRITE | SORTED_SET, ONE_KEY, Group::SortedSet, Family::Write, "1.2.0", "O(N)", "Removes the members in a range of scores.", Data(zset_range::zremrangebyscore)),
    row("zremrangebylex", 4, WRITE | SORTED_SET, ONE_KEY, Group::SortedSet, Family::Write, "2.8.9", "O(N)", "Removes the members in a range of members.", Data(zset_range::zremrangebylex)),
    row("zrangestore", -5, WRITE | DENYOOM | SORTED_SET, keys(1, 2, 1), Group::SortedSet, Family::MultiWrite, "6.2.0", "O(N)", "Stores the members in a range.", Atomic(zset_range::zrangestore)),
    row("zunion", -3, READONLY | MOVABLE | SORTED_SET, counted_keys(0, 1), Group::SortedSet, Family::MultiRead, "6.2.0", "O(N)", "Returns the members of any sorted set.", Atomic(zset_combine::zunion)),
    row("zinter", -3, READONLY | MOVABLE | SORTED_SET, counted_keys(0, 1), Group::SortedSet, Family::MultiRead, "6.2.0", "O(N)", "Returns the members of all sorted sets.", Atomic(zset_combine::zinter)),
    row("zdiff", -3, READONLY | MOVABLE | SORTED_SET, counted_keys(0, 1), Group::SortedSet, Family::MultiRead, "6.2.0", "O(N)", "Returns the members of the first sorted set alone.", Atomic(zset_combine::zdiff)),
    row("zintercard", -3, READONLY | MOVABLE | SORTED_SET, counted_keys(0, 1), Group::SortedSet, Family::MultiRead, "7.0.0", "O(N)", "Counts the members of all sorted sets.", Atomic(zset_combine::zintercard)),
    row("zunionstore", -4, WRITE | DENYOOM | MOVABLE | SORTED_SET, counted_keys(1, 2), Group::SortedSet, Family::MultiWrite, "2.0.0", "O(N)", "Stores the members of any sorted set.", Atomic(zset_combine::zunionstore)),
    row("zinterstore", -4, WRITE | DENYOOM | MOVABLE | SORTED_SET, counted_keys(1, 2), Group::SortedSet, Family::MultiWrite, "2.0.0", "O(N)", "Stores the members of all sorted sets.", Atomic(zset_combine::zinterstore)),
    row("zdiffstore", -4, WRITE | DENYOOM | MOVABLE | SORTED_SET, counted_keys(1, 2), Group::SortedSet, Family::MultiWrite, "6.2.0", "O(N)", "Stores the members of the first sorted set alone.", Atomic(zset_combine::zdiffstore)),
    row("getbit", 3, READONLY | FAST | BITMAP, ONE_KEY, Group::Bitmap, Family::Read, "2.2.0", "O(1)", "Returns a bit.", Data(bitmap::getbit)),
    row("setbit", 4, WRITE | DENYOOM | BITMAP, ONE_KEY, Group::Bitmap, Family::Write, "2.2.0", "O(N)", "Sets a bit.", Data(bitmap::setbit)),
    row("bitcount", -2, READONLY | BITMAP, ONE_KEY, Group::Bitmap, Family::Read, "2.6.0", "O(N)", "Counts the bits that are 1.", Data(bitmap::bitcount)),
    row("bitpos", -3, READONLY | BITMAP, ONE_KEY, Group::Bitmap, Family::Read, "2.8.7", "O(N)", "Returns the position of the first bit that is 0 or 1.", Data(bitmap::bitpos)),
    row("bitop", -4, WRITE | DENYOOM | BITMAP, keys(2, -1, 1), Group::Bitmap, Family::MultiWrite, "2.6.0", "O(N)", "Stores the result of an operation on the bits of strings.", Atomic(bitmap::bitop)),
    row("bitfield", -2, WRITE | DENYOOM | BITMAP, ONE_KEY, Group::Bitmap, Family::Write, "3.2.0", "O(N)", "Reads and changes integers of any number of bits.", Data(bitmap::bitfield)),
    row("bitfield_ro", -2, READONLY | FAST | BITMAP, ONE_KEY, Group::Bitmap, Family::Read, "6.0.0", "O(1)", "Reads integers of any number of bits.", Data(bitmap::bitfield_ro)),
    row("pfadd", -2, WRITE | DENYOOM | FAST | HYPERLOGLOG, ONE_KEY, Group::HyperLogLog, Family::Write, "2.8.9", "O(N)", "Adds strings to a HyperLogLog.", Data(hyperloglog::pfadd)),
    row("pfcount", -2, READONLY | MAY_REPLICATE | HYPERLOGLOG, ALL_KEYS, Group::HyperLogLog, Family::MultiRead, "2.8.9", "O(N)", "Estimates the number of different strings.", Atomic(hyperloglog::pfcount)),
    row("pfmerge", -2, WRITE | DENYOOM | HYPERLOGLOG, ALL_KEYS, Group::HyperLogLog, Family::MultiWrite, "2.8.9", "O(N)", "Merges HyperLogLogs.", Atomic(hyperloglog::pfmerge)),
    row("geoadd", -5, WRITE | DENYOOM | GEO, ONE_KEY, Group::Geo, Family::Write, "3.2.0", "O(N)", "Adds places.", Data(geo::geoadd)),
    row("geodist", -4, READONLY | GEO, ONE_KEY, Group::Geo, Family::Read, "3.2.0", "O(1)", "Returns the distance of two places.", Data(geo::geodist)),
    row("geohash", -2, READONLY | GEO, ONE_KEY, Group::Geo, Family::Read, "3.2.0", "O(N)", "Returns geohashes of places.", Data(geo::geohash)),
    row("geopos", -2, READONLY | GEO, ONE_KEY, Group::Geo, Family::Read, "3.2.0", "O(N)", "Returns longitudes and latitudes of places.", Data(geo::geopos)),
    row("geosearch", -7, READONLY | GEO, ONE_KEY, Group::Geo, Family::Read, "6.2.0", "O(N)", "Returns the places in a region.", Atomic(geo::geosearch)),
    row("geosearchstore", -8, WRITE | DENYOOM | GEO, keys(1, 2, 1), Group::Geo, Family::MultiWrite, "6.2.0", "O(N)", "Stores the places in a region.", Atomic(geo::geosearchstore)),
    row("georadius", -6, WRITE | DENYOOM | MOVABLE | GEO, key_and_store(6), Group::Geo, Family::MultiWrite, "3.2.0", "O(N)", "Returns or stores the places around a place.", Atomic(geo::georadius)),
    row("georadius_ro", -6, READONLY | GEO, ONE_KEY, Group::Geo, Family::Read, "3.2.10", "O(N)", "Returns the places around a place.", Atomic(geo::georadius_ro)),
    row("georadiusbymember", -5, WRITE | DENYOOM | MOVABLE | GEO, key_and_store(5), Group::Geo, Family::MultiWrite, "3.2.0", "O(N)", "Returns or stores the places around a member.", Atomic(geo::georadiusbymember)),
    row("georadiusbymember_ro", -5, READONLY | GEO, ONE_KEY, Group::Geo, Family::Read, "3.2.10", "O(N)", "Returns the places around a member.", Atomic(geo::georadiusbymember_ro)),
    row("xadd", -5, WRITE | DENYOOM | FAST | STREAM, ONE_KEY, Group::Stream, Family::Write, "5.0.0", "O(1) when adding a new entry, O(N) when trimming", "Adds an entry.", Data(stream::xadd)),
    row("xlen", 2, READONLY | FAST | STREAM, ONE_KEY, Group::Stream, Family::Read, "5.0.0", "O(1)", "Returns the number of entries.", Data(stream::xlen)),
    row("xrange", -4, READONLY | STREAM, ONE_KEY, Group::Stream, Family::Read, "5.0.0", "O(N)", "Returns the entries in a range of ids.", Data(stream::xrange)),
    row("xrevrange", -4, READONLY | STREAM, ONE_KEY, Group::Stream, Family::Read, "5.0.0", "O(N)", "Returns the entries in a range of ids, the last first.", Data(stream::xrevrange)),
    row("xdel", -3, WRITE | FAST | STREAM, ONE_KEY, Group::Stream, Family::Write, "5.0.0", "O(N)", "Removes entries by their ids.", Data(stream::xdel)),
    row("xtrim", -4, WRITE | STREAM, ONE_KEY, Group::Stream, Family::Write, "5.0.0", "O(N)", "Removes the first entries.", Data(stream::xtrim)),
    row("xsetid", -3, WRITE | DENYOOM | FAST | STREAM, ONE_KEY, Group::Stream, Family::Write, "5.0.0", "O(1)", "Sets the last id of a stream.", Data(stream::xsetid)),
    row("xread", -4, BLOCKING | READONLY | MOVABLE | STREAM, stream_keys(1), Group::Stream, Family::MultiRead, "5.0.0", "O(N)", "Returns the entries behind an id, of several streams.", Atomic(stream_read::xread)),
    row("xreadgroup", -7, BLOCKING | WRITE | MOVABLE | STREAM, stream_keys(4), Group::Stream, Family::MultiWrite, "5.0.0", "O(N)", "Gives new entries of several streams to a consumer of a group, or its pending ones again.", Atomic(stream_read::xreadgroup)),
    row("xack", -4, WRITE | FAST | STREAM, ONE_KEY, Group::Stream, Family::Write, "5.0.0", "O(N)", "Acknowledges entries for a group.", Data(stream_group::xack)),
    row("xpending", -3, READONLY | STREAM, ONE_KEY, Group::Stream, Family::Read, "5.0.0", "O(N)", "Returns the entries that a group was given and has not acknowledged.", Data(stream_group::xpending)),
    row("xclaim", -6, WRITE | FAST | STREAM, ONE_KEY, Group::Stream, Family::Write, "5.0.0", "O(N)", "Gives pending entries to another consumer.", Data(stream_claim::xclaim)),
    row("xautoclaim", -6, WRITE | FAST | STREAM, ONE_KEY, Group::Stream, Family::Write, "6.2.0", "O(N)", "Gives pending entries that are idle for long to another consumer.", Data(stream_claim::xautoclaim)),
    row("xgroup", -2, CONTAINER, NO_KEYS, Group::Stream, Family::Other, "5.0.0", "Depends on the subcommand", "A container for commands about groups of consumers.", Plain(server::container)),
    row("xgroup|create", -5, WRITE | DENYOOM | STREAM, keys(2, 2, 1), Group::Stream, Family::Write, "5.0.0", "O(1)", "Makes a group.", Data(stream_group::create)),
    row("xgroup|setid", -5, WRITE | STREAM, keys(2, 2, 1), Group::Stream, Family::Write, "5.0.0", "O(1)", "Sets the last id that a group was given.", Data(stream_group::setid)),
    row("xgroup|destroy", 4, WRITE | STREAM, keys(2, 2, 1), Group::Stream, Family::Write, "5.0.0", "O(N)", "Removes a group.", Data(stream_group::destroy)),
    row("xgroup|createconsumer", 5, WRITE | DENYOOM | STREAM, keys(2, 2, 1), Group::Stream, Family::Write, "6.2.0", "O(1)", "Makes a consumer of a group.", Data(stream_group::createconsumer)),
    row("xgroup|delconsumer", 5, WRITE | STREAM, keys(2, 2, 1), Group::Stream, Family::Write, "5.0.0", "O(N)", "Removes a consumer and its pending entries.", Data(stream_group::delconsumer)),
    row("xgroup|help", 2, LOADING | STALE | STREAM, NO_KEYS, Group::Stream, Family::Other, "5.0.0", "O(1)", "Lists the subcommands.", Plain(stream_group::group_help)),
    row("xinfo", -2, CONTAINER, NO_KEYS, Group::Stream, Family::Other, "5.0.0", "Depends on the subcommand", "A container for commands that tell about streams.", Plain(server::container)),
    row("xinfo|stream", -3, READONLY | STREAM, keys(2, 2, 1), Group::Stream, Family::Read, "5.0.0", "O(1)", "Tells about a stream.", Data(stream_info::stream_info)),
    row("xinfo|groups", 3, READONLY | STREAM, keys(2, 2, 1), Group::Stream, Family::Read, "5.0.0", "O(N)", "Tells about the groups of a stream.", Data(stream_info::groups)),
    row("xinfo|consumers", 4, READONLY | STREAM, keys(2, 2, 1), Group::Stream, Family::Read, "5.0.0", "O(N)", "Tells about the consumers of a group.", Data(stream_info::consumers)),
    row("xinfo|help", 2, LOADING | STALE | STREAM, NO_KEYS, Group::Stream, Family::Other, "5.0.0", "O(1)", "Lists the subcommands.", Plain(stream_info::help)),
    row("dump", 2, READONLY | KEYSPACE, ONE_KEY, Group::Generic, Family::Read, "2.6.0", "O(N)", "Returns a value in Redis's serialization.", Data(dump::dump)),
    row("restore", -4, WRITE | DENYOOM | KEYSPACE | DANGEROUS, ONE_KEY, Group::Generic, Family::Write, "2.6.0", "O(N)", "Creates a key from a value in Redis's serialization.", Data(dump::restore)),
    row("sort", -2, WRITE | DENYOOM | MOVABLE | SET | SORTED_SET | LIST | DANGEROUS, key_and_store(2), Group::Generic, Family::MultiWrite, "1.0.0", "O(N*log(N))", "Sorts the elements of a collection.", Atomic(sort::sort)),
    row("sort_ro", -2, READONLY | MOVABLE | SET | SORTED_SET | LIST | DANGEROUS, ONE_KEY, Group::Generic, Family::Read, "7.0.0", "O(N*log(N))", "Sorts the elements of a collection.", Atomic(sort::sort)),
    row("lcs", -3, READONLY | STRING, keys(1, 2, 1), Group::String, Family::MultiRead, "7.0.0", "O(N*M)", "Returns the longest common subsequence of two strings.", Atomic(sort::lcs)),
    row("del", -2, WRITE | KEYSPACE, ALL_KEYS, Group::Generic, Family::MultiWrite, "1.0.0", "O(N)", "Deletes keys, all at one instant.", Atomic(multi_key::del)),
    row("unlink", -2, WRITE | FAST | KEYSPACE, ALL_KEYS, Group::Generic, Family::MultiWrite, "4.0.0", "O(1)", "Deletes keys, all at one instant (the same as DEL here).", Atomic(multi_key::del)),
    row("exists", -2, READONLY | FAST | KEYSPACE | UNCOUNTED, ALL_KEYS, Group::Generic, Family::MultiRead, "1.0.0", "O(N)", "Counts how many of the keys exist.", Atomic(multi_key::exists)),
    row("touch", -2, READONLY | FAST | KEYSPACE | COUNTED, ALL_KEYS, Group::Generic, Family::MultiRead, "3.2.1", "O(N)", "Counts how many of the keys exist.", Atomic(multi_key::exists)),
    row("type", 2, READONLY | FAST | KEYSPACE | UNCOUNTED, ONE_KEY, Group::Generic, Family::Read, "1.0.0", "O(1)", "Returns the type of a value.", Data(key_space::type_of)),
    row("expire", -3, WRITE | FAST | KEYSPACE, ONE_KEY, Group::Generic, Family::Write, "1.0.0", "O(1)", "Sets the time to live of a key in seconds.", Data(expire::expire)),
    row("pexpire", -3, WRITE | FAST | KEYSPACE, ONE_KEY, Group::Generic, Family::Write, "2.6.0", "O(1)", "Sets the time to live of a key in milliseconds.", Data(expire::pexpire)),
    row("expireat", -3, WRITE | FAST | KEYSPACE, ONE_KEY, Group::Generic, Family::Write, "1.2.0", "O(1)", "Sets when a key expires, in seconds since 1970.", Data(expire::expireat)),
    row("pexpireat", -3, WRITE | FAST | KEYSPACE, ONE_KEY, Group::Generic, Family::Write, "2.6.0", "O(1)", "Sets when a key expires, in milliseconds since 1970.", Data(expire::pexpireat)),
    row("ttl", 2, READONLY | FAST | KEYSPACE | UNCOUNTED, ONE_KEY, Group::Generic, Family::Read, "1.0.0", "O(1)", "Returns the time to live of a key in seconds.", Data(expire::ttl)),
    row("pttl", 2, READONLY | FAST | KEYSPACE | UNCOUNTED, ONE_KEY, Group::Generic, Family::Read, "2.6.0", "O(1)", "Returns the time to live of a key in milliseconds.", Data(expire::pttl)),
    row("expiretime", 2, READONLY | FAST | KEYSPACE | UNCOUNTED, ONE_KEY, Group::Generic, Family::Read, "7.0.0", "O(1)", "Returns when a key expires, in seconds since 1970.", Data(expire::expiretime)),
    row("pexpiretime", 2, READONLY | FAST | KEYSPACE | UNCOUNTED, ONE_KEY, Group::Generic, Family::Read, "7.0.0", "O(1)", "Returns when a key expires, in milliseconds since 1970.", Data(expire::pexpiretime)),
    row("persist", 2, WRITE | FAST | KEYSPACE, ONE_KEY, Group::Generic, Family::Write, "2.2.0", "O(1)", "Removes the expiry of a key.", Data(expire::persist)),
    row("rename", 3, WRITE | KEYSPACE, keys(1, 2, 1), Group::Generic, Family::MultiWrite, "1.0.0", "O(1)", "Renames a key.", Atomic(key_space::rename)),
    row("renamenx", 3, WRITE | FAST | KEYSPACE, keys(1, 2, 1), Group::Generic, Family::MultiWrite, "1.0.0", "O(1)", "Renames a key if the new name is not taken.", Atomic(key_space::renamenx)),
    row("copy", -3, WRITE | DENYOOM | KEYSPACE, keys(1, 2, 1), Group::Generic, Family::MultiWrite, "6.2.0", "O(N)", "Copies a value to another key or database.", Alone(key_space::copy)),
    row("move", 3, WRITE | FAST | KEYSPACE, ONE_KEY, Group::Generic, Family::MultiWrite, "1.0.0", "O(1)", "Moves a key to another database.", Alone(key_space::move_to)),
    row("swapdb", 3, WRITE | FAST | KEYSPACE | DANGEROUS | WHOLE, NO_KEYS, Group::Server, Family::Other, "4.0.0", "O(N)", "Exchanges two databases.", Alone(databases::swapdb)),
    row("randomkey", 1, READONLY | KEYSPACE | WHOLE, NO_KEYS, Group::Generic, Family::Scan, "1.0.0", "O(1)", "Returns some key.", Data(scan::randomkey)),
    row("dbsize", 1, READONLY | FAST | KEYSPACE | WHOLE, NO_KEYS, Group::Server, Family::Scan, "1.0.0", "O(1)", "Returns the number of keys.", Data(scan::dbsize)),
    row("scan", -2, READONLY | KEYSPACE | WHOLE | TIMED, NO_KEYS, Group::Generic, Family::Scan, "2.8.0", "O(1)", "Walks over the keys step by step.", Data(scan::scan)),
    row("keys", 2, READONLY | KEYSPACE | DANGEROUS | WHOLE | TIMED, NO_KEYS, Group::Generic, Family::Scan, "1.0.0", "O(N)", "Returns all keys that match a pattern.", Data(scan::keys)),
    row("flushdb", -1, WRITE | KEYSPACE | DANGEROUS | WHOLE | TIMED, NO_KEYS, Group::Server, Family::Other, "1.0.0", "O(N)", "Deletes all keys of the database.", Alone(databases::flushdb)),
    row("flushall", -1, WRITE | KEYSPACE | DANGEROUS | WHOLE | TIMED, NO_KEYS, Group::Server, Family::Other, "1.0.0", "O(N)", "Deletes all keys of all databases and tables.", Alone(databases::flushall)),
    row("object", -2, CONTAINER, NO_KEYS, Group::Generic, Family::Other, "2.2.3", "Depends on the subcommand", "A container for commands about values.", Plain(server::container)),
    row("object|encoding", 3, READONLY | KEYSPACE | UNCOUNTED, keys(2, 2, 1), Group::Generic, Family::Read, "2.2.3", "O(1)", "Returns how Redis would represent a value.", Data(key_space::object_encoding)),
    row("object|freq", 3, READONLY | KEYSPACE | UNCOUNTED, keys(2, 2, 1), Group::Generic, Family::Read, "4.0.0", "O(1)", "Returns the access frequency of a value.", Data(key_space::object_freq)),
    row("object|idletime", 3, READONLY | KEYSPACE | UNCOUNTED, keys(2, 2, 1), Group::Generic, Family::Read, "2.2.3", "O(1)", "Returns the time since the last access.", Data(key_space::object_idletime)),
    row("object|refcount", 3, READONLY | KEYSPACE | UNCOUNTED, keys(2, 2, 1), Group::Generic, Family::Read, "2.2.3", "O(1)", "Returns the number of references to a value.", Data(key_space::object_refcount)),
    row("object|help", 2, LOADING | STALE | KEYSPACE, NO_KEYS, Group::Generic, Family::Other, "6.2.0", "O(1)", "Lists the subcommands.", Plain(key_space::object_help)),
    row("publish", 3, PUBSUB | LOADING | STALE | FAST | MAY_REPLICATE, NO_KEYS, Group::PubSub, Family::Other, "2.0.0", "O(N+M)", "Sends a message to the subscribers of a channel.", Plain(pubsub::publish)),
    row("subscribe", -2, PUBSUB | NOSCRIPT | LOADING | STALE | SUBSCRIBED, NO_KEYS, Group::PubSub, Family::Other, "2.0.0", "O(N)", "Subscribes to channels.", Plain(pubsub::subscribe)),
    row("unsubscribe", -1, PUBSUB | NOSCRIPT | LOADING | STALE | SUBSCRIBED, NO_KEYS, Group::PubSub, Family::Other, "2.0.0", "O(N)", "Ends subscriptions to channels.", Plain(pubsub::unsubscribe)),
    row("psubscribe", -2, PUBSUB | NOSCRIPT | LOADING | STALE | SUBSCRIBED, NO_KEYS, Group::PubSub, Family::Other, "2.0.0", "O(N)", "Subscribes to all channels that match patterns.", Plain(pubsub::psubscribe)),
    row("punsubscribe", -1, PUBSUB | NOSCRIPT | LOADING | STALE | SUBSCRIBED, NO_KEYS, Group::PubSub, Family::Other, "2.0.0", "O(N)", "Ends subscriptions to patterns.", Plain(pubsub::punsubscribe)),
    row("spublish", 3, PUBSUB | LOADING | STALE | FAST | MAY_REPLICATE, ONE_KEY, Group::PubSub, Family::Other, "7.0.0", "O(N)", "Sends a message to the subscribers of a shard channel.", Plain(pubsub::spublish)),
    row("ssubscribe", -2, PUBSUB | NOSCRIPT | LOADING | STALE | SUBSCRIBED, ALL_KEYS, Group::PubSub, Family::Other, "7.0.0", "O(N)", "Subscribes to shard channels.", Plain(pubsub::ssubscribe)),
    row("sunsubscribe", -1, PUBSUB | NOSCRIPT | LOADING | STALE | SUBSCRIBED, ALL_KEYS, Group::PubSub, Family::Other, "7.0.0", "O(N)", "Ends subscriptions to shard channels.", Plain(pubsub::sunsubscribe)),
    row("pubsub", -2, CONTAINER, NO_KEYS, Group::PubSub, Family::Other, "2.8.0", "Depends on the subcommand", "A container for commands about subscriptions.", Plain(server::container)),
    row("pubsub|channels", -2, PUBSUB | LOADING | STALE, NO_KEYS, Group::PubSub, Family::Other, "2.8.0", "O(N)", "Returns the channels that have subscribers.", Plain(pubsub::channels)),
    row("pubsub|help", 2, LOADING | STALE, NO_KEYS, Group::PubSub, Family::Other, "6.2.0", "O(1)", "Lists the subcommands.", Plain(pubsub::help)),
    row("pubsub|numpat", 2, PUBSUB | LOADING | STALE, NO_KEYS, Group::PubSub, Family::Other, "2.8.0", "O(1)", "Returns the number of patterns that have subscribers.", Plain(pubsub::numpat)),
    row("pubsub|numsub", -2, PUBSUB | LOADING | STALE, NO_KEYS, Group::PubSub, Family::Other, "2.8.0", "O(N)", "Returns the numbers of subscribers of channels.", Plain(pubsub::numsub)),
    row("pubsub|shardchannels", -2, PUBSUB | LOADING | STALE, NO_KEYS, Group::PubSub, Family::Other, "7.0.0", "O(N)", "Returns the shard channels that have subscribers.", Plain(pubsub::shardchannels)),
    row("pubsub|shardnumsub", -2, PUBSUB | LOADING | STALE, NO_KEYS, Group::PubSub, Family::Other, "7.0.0", "O(N)", "Returns the numbers of subscribers of shard channels.", Plain(pubsub::shardnumsub)),
    row("multi", 1, NOSCRIPT | LOADING | STALE | FAST | ALLOW_BUSY | TRANSACTION | NEVER_QUEUED, NO_KEYS, Group::Transactions, Family::Transaction, "1.2.0", "O(1)", "Starts a transaction.", Plain(transaction::multi)),
    row("exec", 1, NOSCRIPT | LOADING | STALE | SKIP_SLOWLOG | TRANSACTION | NEVER_QUEUED | TIMED, NO_KEYS, Group::Transactions, Family::Transaction, "1.2.0", "O(1)", "Runs the transaction.", Alone(transaction::exec)),
    row("discard", 1, NOSCRIPT | LOADING | STALE | FAST | ALLOW_BUSY | TRANSACTION | NEVER_QUEUED, NO_KEYS, Group::Transactions, Family::Transaction, "2.0.0", "O(N),", "Forgets the transaction.", Plain(transaction::discard)),
    row("watch", -2, NOSCRIPT | LOADING | STALE | FAST | ALLOW_BUSY | TRANSACTION | NEVER_QUEUED, ALL_KEYS, Group::Transactions, Family::Transaction, "2.2.0", "O(1) for every key", "Makes the transaction depend on keys that must not change.", Data(transaction::watch)),
    row("unwatch", 1, NOSCRIPT | LOADING | STALE | FAST | ALLOW_BUSY | TRANSACTION, NO_KEYS, Group::Transactions, Family::Transaction, "2.2.0", "O(1)", "Forgets the watched keys.", Plain(transaction::unwatch)),
    row("eval", -3, NOSCRIPT | STALE | MAY_REPLICATE | MOVABLE | SCRIPTING | TIMED, counted_keys(0, 2), Group::Scripting, Family::Other, "2.6.0", "Depends on the script that is executed.", "Runs a script.", Alone(script::eval)),
    row("eval_ro", -3, NOSCRIPT | STALE | READONLY | MOVABLE | SCRIPTING | TIMED, counted_keys(0, 2), Group::Scripting, Family::Other, "7.0.0", "Depends on the script that is executed.", "Runs a script that does not write.", Alone(script::eval_ro)),
    row("evalsha", -3, NOSCRIPT | STALE | MAY_REPLICATE | MOVABLE | SCRIPTING | TIMED, counted_keys(0, 2), Group::Scripting, Family::Other, "2.6.0", "Depends on the script that is executed.", "Runs a script by its name.", Alone(script::evalsha)),
    row("evalsha_ro", -3, NOSCRIPT | STALE | READONLY | MOVABLE | SCRIPTING | TIMED, counted_keys(0, 2), Group::Scripting, Family::Other, "7.0.0", "Depends on the script that is executed.", "Runs a script by its name, which does not write.", Alone(script::evalsha_ro)),
    row("fcall", -3, NOSCRIPT | STALE | MAY_REPLICATE | MOVABLE | SCRIPTING | TIMED, counted_keys(0, 2), Group::Scripting, Family::Other, "7.0.0", "Depends on the function that is executed.", "Calls a function.", Alone(function::fcall)),
    row("fcall_ro", -3, NOSCRIPT | STALE | READONLY | MOVABLE | SCRIPTING | TIMED, counted_keys(0, 2), Group::Scripting, Family::Other, "7.0.0", "Depends on the function that is executed.", "Calls a function that does not write.", Alone(function::fcall_ro)),
    row("function", -2, CONTAINER, NO_KEYS, Group::Scripting, Family::Other, "7.0.0", "Depends on subcommand.", "A container for commands about functions.", Plain(server::container)),
    row("function|delete", 3, NOSCRIPT | WRITE | SCRIPTING, NO_KEYS, Group::Scripting, Family::Other, "7.0.0", "O(1)", "Deletes a library and its functions.", Alone(function::delete)),
    row("function|dump", 2, NOSCRIPT | SCRIPTING, NO_KEYS, Group::Scripting, Family::Other, "7.0.0", "O(N)", "Serializes all libraries.", Plain(function::dump)),
    row("function|flush", -2, NOSCRIPT | WRITE | SCRIPTING, NO_KEYS, Group::Scripting, Family::Other, "7.0.0", "O(N)", "Deletes all libraries.", Alone(function::flush)),
    row("function|help", 2, LOADING | STALE | SCRIPTING, NO_KEYS, Group::Scripting, Family::Other, "7.0.0", "O(1)", "Lists the subcommands.", Plain(function::help)),
    row("function|kill", 2, NOSCRIPT | ALLOW_BUSY | SCRIPTING, NO_KEYS, Group::Scripting, Family::Other, "7.0.0", "O(1)", "Ends the functions that run for long.", Plain(function::kill)),
    row("function|list", -2, NOSCRIPT | SCRIPTING, NO_KEYS, Group::Scripting, Family::Other, "7.0.0", "O(N)", "Lists the libraries and their functions.", Plain(function::list)),
    row("function|load", -3, NOSCRIPT | WRITE | DENYOOM | SCRIPTING, NO_KEYS, Group::Scripting, Family::Other, "7.0.0", "O(1)", "Creates a library.", Alone(function::load)),
    row("function|restore", -3, NOSCRIPT | WRITE | DENYOOM | SCRIPTING, NO_KEYS, Group::Scripting, Family::Other, "7.0.0", "O(N)", "Restores libraries from a payload.", Alone(function::restore)),
    row("function|stats", 2, NOSCRIPT | ALLOW_BUSY | SCRIPTING, NO_KEYS, Group::Scripting, Family::Other, "7.0.0", "O(1)", "Tells about the function that runs, and about the libraries.", Plain(function::stats)),
    row("script", -2, CONTAINER, NO_KEYS, Group::Scripting, Family::Other, "2.6.0", "Depends on the subcommand", "A container for commands about scripts.", Plain(server::container)),
    row("script|debug", 3, NOSCRIPT | SCRIPTING, NO_KEYS, Group::Scripting, Family::Other, "3.2.0", "O(1)", "Would switch the debugger of scripts on or off.", Plain(script::debug)),
    row("script|exists", -3, NOSCRIPT | SCRIPTING, NO_KEYS, Group::Scripting, Family::Other, "2.6.0", "O(N)", "Tells which scripts the server knows.", Plain(script::exists)),
    row("script|flush", -2, NOSCRIPT | SCRIPTING, NO_KEYS, Group::Scripting, Family::Other, "2.6.0", "O(N)", "Forgets all scripts.", Plain(script::flush)),
    row("script|help", 2, LOADING | STALE | SCRIPTING, NO_KEYS, Group::Scripting, Family::Other, "5.0.0", "O(1)", "Lists the subcommands.", Plain(script::help)),
    row("script|kill", 2, NOSCRIPT | ALLOW_BUSY | SCRIPTING, NO_KEYS, Group::Scripting, Family::Other, "2.6.0", "O(1)", "Ends the scripts that run for long.", Plain(script::kill)),
    row("script|load", 3, NOSCRIPT | STALE | SCRIPTING, NO_KEYS, Group::Scripting, Family::Other, "2.6.0", "O(N)", "Makes a script known to the server.", Plain(script::load)),
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
    row("client|tracking", -3, NO_MULTI | NOSCRIPT | LOADING | STALE | CONNECTION, NO_KEYS, Group::Connection, Family::Other, "6.0.0", "O(1)", "Starts tracking keys for the client's cache.", Store(tracking::tracking)),
    row("client|trackinginfo", 2, NOSCRIPT | LOADING | STALE | CONNECTION, NO_KEYS, Group::Connection, Family::Other, "6.2.0", "O(1)", "Describes tracking.", Plain(tracking::trackinginfo)),
    row("client|getredir", 2, NOSCRIPT | LOADING | STALE | CONNECTION, NO_KEYS, Group::Connection, Family::Other, "6.0.0", "O(1)", "Returns who gets the invalidations.", Plain(tracking::getredir)),
    row("client|caching", 3, NOSCRIPT | LOADING | STALE | CONNECTION, NO_KEYS, Group::Connection, Family::Other, "6.0.0", "O(1)", "Tracks the keys of the next command.", Plain(tracking::caching)),
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
    row("duramen.snapshot", -2, ADMIN | NOSCRIPT | NO_MULTI | DANGEROUS, NO_KEYS, Group::Duramen, Family::Other, "0.2.0", "O(N)", "Copies all data into a new directory, in the background.", Plain(durability::snapshot)),
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
    row("replicaof", 3, ADMIN | NOSCRIPT | STALE | NO_ASYNC_LOADING | DANGEROUS, NO_KEYS, Group::Server, Family::Other, "5.0.0", "O(1)", "Accepts `NO ONE` alone: there are no replicas of single servers.", Plain(server::replicaof)),
    row("slaveof", 3, ADMIN | NOSCRIPT | STALE | NO_ASYNC_LOADING | DANGEROUS, NO_KEYS, Group::Server, Family::Other, "1.0.0", "O(1)", "As REPLICAOF.", Plain(server::replicaof)),
    row("module", -2, CONTAINER, NO_KEYS, Group::Server, Family::Other, "4.0.0", "Depends on the subcommand", "A container for commands about modules, of which there are none.", Plain(server::container)),
    row("module|list", 2, ADMIN | NOSCRIPT, NO_KEYS, Group::Server, Family::Other, "4.0.0", "O(1)", "Returns an empty list.", Plain(server::no_modules)),
    row("module|load", -3, ADMIN | NOSCRIPT | DANGEROUS, NO_KEYS, Group::Server, Family::Other, "4.0.0", "O(1)", "Refused: there are no modules.", Plain(server::refuse_module)),
    row("module|loadex", -3, ADMIN | NOSCRIPT | DANGEROUS, NO_KEYS, Group::Server, Family::Other, "7.0.0", "O(1)", "Refused: there are no modules.", Plain(server::refuse_module)),
    row("module|unload", 3, ADMIN | NOSCRIPT | DANGEROUS, NO_KEYS, Group::Server, Family::Other, "4.0.0", "O(1)", "Refused: there are no modules.", Plain(server::refuse_module)),
    row("module|help", 2, LOADING | STALE, NO_KEYS, Group::Server, Family::Other, "5.0.0", "O(1)", "Lists the subcommands.", Plain(server::module_help)),

    // Refused by name.
    no("hexpire", WHY_FIELD_TTL), no("hexpireat", WHY_FIELD_TTL), no("hexpiretime", WHY_FIELD_TTL), no("hgetdel", WHY_FIELD_TTL),
    no("hgetex", WHY_FIELD_TTL), no("hpersist", WHY_FIELD_TTL), no("hpexpire", WHY_FIELD_TTL), no("hpexpireat", WHY_FIELD_TTL),
    no("hpexpiretime", WHY_FIELD_TTL), no("hpttl", WHY_FIELD_TTL), no("hsetex", WHY_FIELD_TTL), no("httl", WHY_FIELD_TTL),
    no("pfdebug", WHY_DEBUG), no("pfselftest", WHY_DEBUG),
    no("restore-asking", WHY_MIGRATE), no("migrate", WHY_MIGRATE),
    no("replconf", server::WHY_REPLICATION),
    no("psync", server::WHY_REPLICATION), no("sync", server::WHY_REPLICATION), no("failover", server::WHY_REPLICATION),
    no("debug", WHY_DEBUG),
    tool("duramen.tablet", WHY_TABLET), tool("duramen.drain", WHY_DRAIN),
    tool("duramen.crash", WHY_CRASH),
];

// Reasons for refusing a command.
const WHY_FIELD_TTL: &str = "fields of a hash do not expire";
const WHY_MIGRATE: &str = "a server opens no connection to another; use DUMP and RESTORE";
const WHY_DEBUG: &str = "debugging commands are not offered over the network";
const WHY_TABLET: &str =
    "tablets are split and moved by `duramen tablet`, which asks the coordinator of a cluster";
const WHY_DRAIN: &str =
    "members are emptied by `duramen drain`, which asks the coordinator of a cluster";
const WHY_CRASH: &str =
    "members are declared dead by `duramen crash`, which asks the coordinator of a cluster";

/// The command table.
pub static COMMANDS: Commands = Commands::new(&NUMBERED, HOOKS);

const HOOKS: Hooks = Hooks {
    note_reads: tracking::note_reads,
    refused_late: acl::refused_late,
};

/// All rows; a command's position is its number.
static NUMBERED: [Spec; ROWS.len()] = numbered(ROWS);

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

/// Every command with its counters since the server started: these never decrease.
pub fn commands_since_start(
    shared: &Shared,
) -> impl Iterator<Item = (&'static Spec, CommandTotals)> {
    COMMANDS
        .rows()
        .iter()
        .zip(shared.command_totals_since_start())
}

/// The commands, as rules of users see them.
pub fn catalog() -> Catalog {
    Catalog::new(COMMANDS.rows().iter().map(|spec| Command {
        name: spec.name,
        categories: categories(spec),
        is_free: spec.has(NO_AUTH),
    }))
}

fn categories(spec: &Spec) -> u32 {
    let mut bits = 0;
    let mut add = |name: &str| {
        let bit = CATEGORIES.iter().position(|known| *known == name);
        bits |= bit.map_or(0, |bit| 1 << bit);
    };
    for name in spec.categories() {
        add(name.trim_start_matches('@'));
    }
    if !spec.has(FAST) && !spec.is_refused() {
        add("slow");
    }
    bits
}

/// A command of a tool, which the coordinator of a cluster obeys, and no server: it is here so that
/// rules of users can name it.
const fn tool(name: &'static str, why: &'static str) -> Spec {
    absent(name, ADMIN | DANGEROUS, why)
}

/// A command that clients may know but that does not exist here. It accepts any arguments, so that
/// clients always get the reason.
const fn no(name: &'static str, why: &'static str) -> Spec {
    absent(name, NO_FLAGS, why)
}

const fn absent(name: &'static str, flags: u64, why: &'static str) -> Spec {
    row(
        name,
        -1,
        flags,
        NO_KEYS,
        Group::Foreign,
        Family::Other,
        "",
        "",
        "",
        Refused(why),
    )
}
