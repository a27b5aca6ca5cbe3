"""The same commands to Redis and to Duramen: the replies must be equal, byte for byte.

Each case is a list of commands for a fresh connection to an empty server. Intended differences are
in docs/compatibility.md and not here. The peer is Debian's redis-server 7.0.
"""

import time

import pytest

import harness
from harness import encode

# As long as all commands of a case take less, no rounded time differs.
ALIKE_S = 0.4

MULTI = [
    ("MULTI",),
    *[("SET", "k", "1"), ("INCR", "k"), ("GET", "k")],
    ("EXEC",),
]

CASES = {
    "get and set": [
        *[("GET", "k"), ("SET", "k", "v"), ("GET", "k"), ("set", "k", "w"), ("gEt", "k"), ("SET", "k", ""), ("GET", "k")],
        *[("GET",), ("GET", "a", "b"), ("SET", "k"), ("SET",)],
    ],
    "set options": [
        *[("SET", "k", "1", "NX"), ("SET", "k", "2", "NX"), ("SET", "k", "3", "XX"), ("SET", "no", "3", "XX")],
        *[("SET", "k", "4", "GET"), ("SET", "no", "4", "GET"), ("SET", "k", "5", "XX", "GET"), ("SET", "k", "6", "NX", "GET")],
        *[("SET", "k", "5", "NX", "XX"), ("SET", "k", "5", "EX", "10", "PX", "10"), ("SET", "k", "5", "EX"), ("SET", "k", "5", "ZZ")],
        *[("SET", "k", "5", "EX", "0"), ("SET", "k", "5", "EX", "-1"), ("SET", "k", "5", "EX", "x"), ("SET", "k", "5", "PX", "1.5")],
        *[("SET", "k", "5", "EX", "9223372036854775807"), ("SET", "k", "5", "EX", "9223372036854775808")],
        *[("SET", "k", "5", "EX", "100"), ("TTL", "k"), ("SET", "k", "5", "KEEPTTL"), ("TTL", "k"), ("SET", "k", "5"), ("TTL", "k")],
        *[("SET", "k", "5", "KEEPTTL", "EX", "10"), ("SET", "k", "5", "EXAT", "9999999999"), ("EXPIRETIME", "k")],
        *[("SET", "k", "5", "PXAT", "9999999999999"), ("PEXPIRETIME", "k"), ("SET", "k", "5", "EXAT", "1"), ("EXISTS", "k")],
        *[("SET", "k", "5", "PXAT", "0"), ("SET", "k", "v", "get", "ex", "100"), ("TTL", "k"), ("SET", "k", "v", "KEEPTTL", "NX")],
    ],
    "setnx setex psetex getset getdel getex": [
        *[("SETNX", "k", "1"), ("SETNX", "k", "2"), ("SETEX", "k", "100", "v"), ("TTL", "k"), ("SETEX", "k", "0", "v"), ("SETEX", "k", "x", "v")],
        *[("SETEX", "k", "-5", "v"), ("PSETEX", "k", "0", "v"), ("PSETEX", "k", "100000", "v"), ("GETSET", "k", "n"), ("TTL", "k"), ("GETSET", "no", "n")],
        *[("GETDEL", "k"), ("GETDEL", "k"), ("GETDEL",), ("SET", "k", "v"), ("GETEX", "k"), ("GETEX", "k", "EX", "100"), ("TTL", "k")],
        *[("GETEX", "k", "PERSIST"), ("TTL", "k"), ("GETEX", "k", "EX", "0"), ("GETEX", "k", "EX"), ("GETEX", "k", "EX", "5", "PERSIST")],
        *[("GETEX", "no", "EX", "5"), ("GETEX", "k", "ZZ"), ("GETEX", "k", "EXAT", "1"), ("EXISTS", "k"), ("GETEX", "k", "KEEPTTL")],
    ],
    "append strlen getrange setrange": [
        *[("APPEND", "k", "hello"), ("APPEND", "k", " world"), ("STRLEN", "k"), ("STRLEN", "no"), ("GETRANGE", "k", "0", "-1")],
        *[("GETRANGE", "k", "-5", "-1"), ("GETRANGE", "k", "3", "1"), ("GETRANGE", "k", "-1", "-5"), ("GETRANGE", "k", "0", "1000")],
        *[("GETRANGE", "k", "-1000", "2"), ("GETRANGE", "no", "0", "1"), ("GETRANGE", "k", "x", "1"), ("SUBSTR", "k", "0", "1")],
        *[("GETRANGE", "k", "-1000", "-999"), ("GETRANGE", "k", "11", "12"), ("GETRANGE", "k", "10", "10")],
        *[("SETRANGE", "k", "6", "Redis"), ("GET", "k"), ("SETRANGE", "n", "5", "x"), ("GET", "n"), ("SETRANGE", "k", "-1", "x")],
        *[("SETRANGE", "no", "5", ""), ("EXISTS", "no"), ("SETRANGE", "k", "0", ""), ("SETRANGE", "k", "x", "x"), ("APPEND", "k", "")],
    ],
    "increments": [
        *[("INCR", "k"), ("INCR", "k"), ("DECR", "k"), ("INCRBY", "k", "41"), ("DECRBY", "k", "2"), ("GET", "k"), ("INCRBY", "k", "x")],
        *[("INCRBY", "k", "9223372036854775807"), ("SET", "k", "9223372036854775807"), ("INCR", "k"), ("DECRBY", "k", "-1")],
        *[("SET", "k", "-9223372036854775808"), ("DECR", "k"), ("INCRBY", "k", "9223372036854775808"), ("DECRBY", "k", "-9223372036854775808")],
        *[("SET", "k", " 1"), ("INCR", "k"), ("SET", "k", "1 "), ("INCR", "k"), ("SET", "k", "01"), ("INCR", "k"), ("SET", "k", "+1"), ("INCR", "k")],
        *[("SET", "k", "-0"), ("INCR", "k"), ("SET", "k", ""), ("INCR", "k"), ("SET", "k", "1.5"), ("INCR", "k"), ("INCRBY", "k", ""), ("INCRBY", "k", "1.0")],
        *[("SET", "k", "5", "EX", "100"), ("INCR", "k"), ("TTL", "k"), ("INCRBYFLOAT", "k", "1.5"), ("TTL", "k"), ("APPEND", "k", "1"), ("TTL", "k")],
    ],
    "incrbyfloat": [
        *[("INCRBYFLOAT", "k", "10.5"), ("INCRBYFLOAT", "k", "0.1"), ("INCRBYFLOAT", "k", "-5"), ("INCRBYFLOAT", "k", "5.0e1"), ("GET", "k")],
        *[("INCRBYFLOAT", "k", "x"), ("INCRBYFLOAT", "k", "nan"), ("INCRBYFLOAT", "k", "inf"), ("SET", "k", "abc"), ("INCRBYFLOAT", "k", "1")],
        *[("SET", "k", "3.0"), ("INCRBYFLOAT", "k", "1.0"), ("SET", "k", "3"), ("INCRBYFLOAT", "k", "1.5"), ("SET", "k", "1e2")],
        *[("INCRBYFLOAT", "k", "0"), ("SET", "k", " 1"), ("INCRBYFLOAT", "k", "1"), ("SET", "k", ""), ("INCRBYFLOAT", "k", "1"), ("INCRBYFLOAT", "n", "-0.25")],
        *[("SET", "k", "0.1"), ("INCRBYFLOAT", "k", "0.2"), ("SET", "k", "1e15"), ("INCRBYFLOAT", "k", "0.5"), ("INCRBYFLOAT", "z", "0")],
    ],
    "mget mset msetnx": [
        *[("MSET", "a", "1", "b", "2"), ("MGET", "a", "b", "c", "a"), ("MSET", "a"), ("MSET", "a", "1", "b"), ("MSET",), ("MGET",)],
        *[("MSETNX", "c", "3", "d", "4"), ("MSETNX", "d", "5", "e", "6"), ("EXISTS", "e"), ("MSET", "a", "1", "a", "2"), ("GET", "a"), ("MSETNX", "z", "1", "z", "2"), ("GET", "z")],
        ("MSETNX", "x", "1", "y"),
    ],
    "del exists touch unlink type": [
        *[("MSET", "a", "1", "b", "2", "c", "3"), ("EXISTS", "a", "a", "b", "no"), ("TOUCH", "a", "no"), ("TYPE", "a"), ("TYPE", "no")],
        *[("DEL", "a", "a", "no"), ("UNLINK", "b", "no"), ("DEL",), ("EXISTS",), ("UNLINK",), ("TOUCH",), ("DBSIZE",), ("DBSIZE", "x"), ("TYPE",)],
    ],
    "expire": [
        *[("SET", "k", "v"), ("TTL", "k"), ("PTTL", "k"), ("TTL", "no"), ("PTTL", "no"), ("EXPIRE", "k", "100"), ("TTL", "k"), ("EXPIRE", "no", "100")],
        *[("PERSIST", "k"), ("PERSIST", "k"), ("PERSIST", "no"), ("EXPIRETIME", "k"), ("PEXPIRETIME", "no"), ("EXPIREAT", "k", "9999999999"), ("EXPIRETIME", "k")],
        *[("PEXPIREAT", "k", "9999999999999"), ("PEXPIRETIME", "k"), ("EXPIRE", "k", "x"), ("EXPIRE", "k"), ("EXPIRE", "k", "1", "ZZ")],
        *[("EXPIRE", "k", "100", "NX"), ("EXPIRE", "k", "100", "XX"), ("EXPIRE", "k", "50", "GT"), ("EXPIRE", "k", "50", "LT"), ("TTL", "k")],
        *[("EXPIRE", "k", "200", "GT"), ("EXPIRE", "k", "300", "LT"), ("EXPIRE", "k", "1", "NX", "XX"), ("EXPIRE", "k", "1", "GT", "LT"), ("EXPIRE", "k", "1", "NX", "GT")],
        *[("PERSIST", "k"), ("EXPIRE", "k", "100", "GT"), ("EXPIRE", "k", "100", "XX"), ("EXPIRE", "k", "100", "LT"), ("TTL", "k"), ("EXPIRE", "k", "150", "XX", "GT")],
        *[("EXPIRE", "k", "9223372036854775807"), ("PEXPIRE", "k", "9223372036854775807"), ("EXPIRE", "k", "-9223372036854775808"), ("EXPIREAT", "k", "9223372036854775807")],
        *[("EXPIRE", "k", "-1"), ("EXISTS", "k"), ("SET", "k", "v"), ("PEXPIRE", "k", "0"), ("EXISTS", "k"), ("SET", "k", "v"), ("EXPIREAT", "k", "0"), ("EXISTS", "k")],
    ],
    "rename copy": [
        *[("SET", "a", "1", "EX", "100"), ("RENAME", "a", "b"), ("TTL", "b"), ("GET", "a"), ("RENAME", "a", "b"), ("RENAME", "b", "b"), ("RENAME", "no", "no")],
        *[("SET", "c", "2"), ("RENAMENX", "b", "c"), ("RENAMENX", "b", "d"), ("RENAMENX", "no", "x"), ("RENAME", "d", "c"), ("GET", "c"), ("TTL", "c"), ("RENAME", "c"), ("RENAMENX", "c", "c")],
        *[("COPY", "c", "e"), ("TTL", "e"), ("COPY", "c", "e"), ("COPY", "c", "e", "REPLACE"), ("COPY", "no", "e"), ("COPY", "c", "c"), ("COPY", "c", "e", "ZZ"), ("COPY", "c")],
    ],
    "randomkey keys scan": [
        *[("RANDOMKEY",), ("KEYS", "*"), ("SCAN", "0"), ("SET", "only", "1"), ("RANDOMKEY",), ("KEYS", "*"), ("KEYS", "o?ly"), ("KEYS", "[n-p]nly"), ("KEYS", "[^o]*"), ("KEYS", "ONLY")],
        *[("SET", "a*b", "1"), ("KEYS", "a\\*b"), ("KEYS", "a[*]?"), ("KEYS", ""), ("KEYS", "x*"), ("DEL", "a*b"), ("KEYS", "*n*l*y*"), ("KEYS", "[only"), ("KEYS", "o[a-"), ("KEYS", "\\only")],
        *[("SCAN", "0"), ("SCAN", "0", "MATCH", "x*"), ("SCAN", "0", "TYPE", "string"), ("SCAN", "0", "TYPE", "list"), ("SCAN", "0", "COUNT", "1000", "MATCH", "on*")],
        *[("SCAN", "x"), ("SCAN", "0", "COUNT", "0"), ("SCAN", "0", "COUNT", "x"), ("SCAN", "0", "ZZ"), ("SCAN",), ("SCAN", "0", "MATCH"), ("KEYS",)],
    ],
    "flush": [
        *[("SET", "k", "v"), ("FLUSHDB",), ("DBSIZE",), ("SET", "k", "v"), ("FLUSHALL", "ASYNC"), ("DBSIZE",), ("FLUSHALL", "SYNC"), ("FLUSHDB", "ZZ"), ("FLUSHALL", "A", "B")],
    ],
    "transactions": [
        *MULTI,
        *[("EXEC",), ("DISCARD",), ("MULTI",), ("MULTI",), ("DISCARD",), ("MULTI",), ("SET", "k", "9"), ("DISCARD",), ("GET", "k"), ("MULTI",), ("EXEC",)],
        *[("MULTI",), ("NOSUCH",), ("SET", "k", "9"), ("EXEC",), ("GET", "k"), ("MULTI",), ("GET",), ("EXEC",), ("MULTI",), ("SET", "k", "x"), ("INCR", "k"), ("GET", "k"), ("EXEC",)],
        *[("MULTI",), ("WATCH", "k"), ("EXEC",), ("UNWATCH",), ("WATCH",), ("WATCH", "a", "b"), ("MULTI", "x"), ("UNWATCH", "x"), ("DISCARD", "x"), ("EXEC", "x")],
        *[("WATCH", "k"), ("SET", "k", "1"), ("MULTI",), ("SET", "k", "2"), ("EXEC",), ("GET", "k"), ("WATCH", "k"), ("SET", "k", "1"), ("UNWATCH",), ("MULTI",), ("SET", "k", "2"), ("EXEC",)],
        *[("WATCH", "gone"), ("SET", "gone", "1"), ("DEL", "gone"), ("MULTI",), ("PING",), ("EXEC",), ("WATCH", "k"), ("EXPIRE", "k", "100"), ("MULTI",), ("PING",), ("EXEC",)],
        *[("WATCH", "k"), ("GET", "k"), ("TTL", "k"), ("MULTI",), ("PING",), ("EXEC",), ("WATCH", "k"), ("DISCARD",), ("MULTI",), ("FLUSHALL",), ("DBSIZE",), ("EXEC",)],
        *[("WATCH", "never"), ("DEL", "never"), ("MULTI",), ("PING",), ("EXEC",), ("SET", "k", "v"), ("WATCH", "k"), ("FLUSHALL",), ("MULTI",), ("PING",), ("EXEC",)],
    ],
    "connection": [
        *[("PING",), ("PING", "hello"), ("PING", "a", "b"), ("ECHO", "x"), ("ECHO",), ("ECHO", "a", "b"), ("SELECT", "0"), ("SELECT", "x"), ("SELECT",)],
        *[("CLIENT", "GETNAME"), ("CLIENT", "SETNAME", "me"), ("CLIENT", "GETNAME"), ("CLIENT", "SETNAME", "a b"), ("CLIENT", "SETNAME", ""), ("CLIENT", "GETNAME")],
        *[("CLIENT",), ("CLIENT", "NOSUCH"), ("CLIENT", "GETNAME", "x"), ("CLIENT", "REPLY"), ("CLIENT", "REPLY", "x"), ("CLIENT", "REPLY", "ON"), ("CLIENT", "KILL"), ("CLIENT", "KILL", "ID", "x")],
        *[("CLIENT", "KILL", "ID", "99999999"), ("CLIENT", "KILL", "1.2.3.4:5"), ("CLIENT", "KILL", "ZZ", "1"), ("CLIENT", "NO-EVICT", "ON"), ("CLIENT", "NO-EVICT", "x"), ("CLIENT", "PAUSE", "x"), ("CLIENT", "UNPAUSE")],
        *[("AUTH", "x"), ("AUTH", "default", "x"), ("AUTH",), ("AUTH", "a", "b", "c"), ("HELLO", "4"), ("HELLO", "x"), ("HELLO", "3", "ZZ"), ("HELLO", "3", "AUTH", "x"), ("RESET",), ("PING",)],
        *[("CLIENT", "REPLY", "SKIP"), ("PING", "skipped"), ("PING", "seen"), ("CLIENT", "REPLY", "OFF"), ("PING", "off"), ("CLIENT", "REPLY", "ON"), ("QUIT",)],
    ],
    "unknown": [
        *[("NOSUCH",), ("NOSUCH", "a", "b"), ("nosuch", "x" * 200), ("NO\r\nSUCH", "a\r\nb"), ("",), ("OBJECT", "NOSUCH", "k"), ("CONFIG", "NOSUCH"), ("COMMAND", "NOSUCH"), ("MEMORY", "NOSUCH")],
        *[("SLOWLOG", "NOSUCH"), ("LATENCY", "NOSUCH"), ("OBJECT",), ("CONFIG",), ("MEMORY",), ("SLOWLOG",), ("LATENCY",), ("NOSUCH", *["argument"] * 40), ("OBJECT", "FREQ"), ("CONFIG", "GET")],
    ],
    "object and memory": [
        *[("OBJECT", "REFCOUNT", "no"), ("OBJECT", "IDLETIME", "no"), ("OBJECT", "ENCODING", "no"), ("MEMORY", "USAGE", "no"), ("SET", "k", "v"), ("OBJECT", "REFCOUNT", "k")],
        *[("SET", "i", "12"), ("OBJECT", "ENCODING", "i"), ("OBJECT", "ENCODING", "k"), ("SET", "l", "x" * 100), ("OBJECT", "ENCODING", "l"), ("OBJECT", "FREQ", "k")],
    ],
    "operations": [
        *[("CONFIG", "GET", "nosuchsetting"), ("CONFIG", "SET", "nosuchsetting", "1"), ("CONFIG", "RESETSTAT"), ("CONFIG", "SET", "maxmemory"), ("CONFIG", "GET", "maxmemory-policy")],
        *[("SLOWLOG", "RESET"), ("SLOWLOG", "LEN"), ("SLOWLOG", "GET"), ("SLOWLOG", "GET", "-1"), ("SLOWLOG", "GET", "x"), ("SLOWLOG", "GET", "-2"), ("LATENCY", "RESET"), ("LATENCY", "LATEST"), ("LATENCY", "HISTORY", "x")],
        *[("WAIT", "0", "0"), ("WAIT", "x", "0"), ("WAIT", "0", "-1"), ("ROLE",), ("TIME", "x"), ("COMMAND", "COUNT", "x"), ("COMMAND", "GETKEYS", "GET", "k"), ("COMMAND", "GETKEYS", "MSET", "a", "1", "b", "2")],
        *[("COMMAND", "GETKEYS"), ("COMMAND", "GETKEYS", "NOSUCH", "x"), ("COMMAND", "INFO", "nosuch"), ("SHUTDOWN", "ZZ")],
    ],
}

# Other tests compare commands whose replies contain times or other data that differs from run to
# run.


def replies(server, resp, commands):
    """The bytes of a server's reply to each command, readable in a test report."""
    with server.connect() as wire:
        wire.call("FLUSHALL")
        if resp == 3:
            wire.call("HELLO", 3)
        said = []
        for command in commands:
            wire.send(encode(*command))
            if command[:2] == ("CLIENT", "REPLY") and command[2:] in (("SKIP",), ("OFF",)) or command[1:] in (("skipped",), ("off",)):
                continue
            said.append((command, wire.raw_reply()))
            if command[0] == "QUIT":
                said.append(("afterwards", wire.drain()))
        return said


@pytest.mark.duramen
@pytest.mark.parametrize("resp", [2, 3])
@pytest.mark.parametrize("name", CASES)
def test_same_replies(pair, name, resp):
    duramen, redis = pair
    deadline = time.monotonic() + harness.PATIENCE_S
    while True:
        began = time.monotonic()
        wanted = replies(redis, resp, CASES[name])
        found = replies(duramen, resp, CASES[name])
        now = time.monotonic()
        # TTL rounds to seconds: after this much time, one of the two may be a second further.
        if wanted == found or now - began < ALIKE_S or now > deadline:
            break
    different = [f"{command!r:.150}\n   Redis:   {a!r:.300}\n   Duramen: {b!r:.300}" for (command, a), (_, b) in zip(wanted, found) if a != b]
    assert not different, "\n" + "\n".join(different)
