"""Attacks by users with narrow rights: each tried by a real connection, and refused."""

import contextlib
import re

import pytest

import harness

pytestmark = pytest.mark.duramen

PASSWORD = "open sesame"
# Every client may send these.
FREE = {"hello", "auth", "quit", "reset"}
# A command that this server does not offer says so to everybody.
REFUSED = "NOPERM|unknown subcommand|wrong number of arguments|is not supported"
COLLECTIONS = [
    *(("SET", "a:1", "x"), ("SET", "b:1", "secret"), ("SET", "b:w_1", "one"), ("RPUSH", "a:l", "1", "2")),
    *(("RPUSH", "b:l", "1"), ("HSET", "b:h", "f", "v"), ("SADD", "a:s", "1"), ("SADD", "b:s", "1")),
    *(("ZADD", "a:z", "1", "1"), ("ZADD", "b:z", "1", "1"), ("XADD", "a:x", "1-1", "f", "v")),
    *(("XADD", "b:x", "1-1", "f", "v"), ("GEOADD", "a:g", "1", "1", "x"), ("GEOADD", "b:g", "1", "1", "x")),
    ("PFADD", "b:p", "1"),
]


@pytest.fixture
def login(server):
    """Makes users of a fresh store, and logs in as one."""
    with server.connect() as admin, contextlib.ExitStack() as open_ones:
        admin.call("FLUSHALL")
        assert set(map(str, admin.pipeline(COLLECTIONS))).isdisjoint({"ERR"})

        def make(*rules):
            assert admin.call("ACL", "SETUSER", "ann", "reset", "on", f">{PASSWORD}", *rules) == b"OK"
            wire = open_ones.enter_context(server.connect())
            assert wire.call("AUTH", "ann", PASSWORD) == b"OK"
            return wire

        make.admin = admin
        yield make
        admin.call("ACL", "DELUSER", "ann")


def denied(wire, requests, why="NOPERM"):
    """Those of the requests whose replies are no denials."""
    commands = [request.split(" ") for request in requests]
    replies = wire.pipeline(commands)
    return {request: reply for request, reply in zip(requests, replies) if why not in str(reply)}


def names(wire):
    """The names of all commands and subcommands."""
    for command in wire.call("COMMAND"):
        for info in (command, *command[9]):
            yield info[0].decode()


def test_a_user_with_one_command_runs_no_other(login):
    wire = login("~a:*", "+get")
    tried = [name for name in names(login.admin) if name not in {*FREE, "get"}]
    assert len(tried) > 350
    ran = {}
    for key in ("a:1", "1"):
        for count in range(6):
            requests = [(*name.split("|"), *[key] * count) for name in tried]
            for request, reply in zip(requests, wire.pipeline(requests)):
                if not isinstance(reply, harness.ErrorReply) or not re.search(REFUSED, str(reply)):
                    ran[request] = reply
    assert ran == {}
    assert wire.call("GET", "a:1") == b"x"


ELSEWHERE = [
    *("GET b:1", "SORT a:l BY b:w_*", "SORT a:l GET b:w_*", "SORT a:l BY a:w_* GET a:w_*", "SORT_RO a:l GET b:w_*"),
    *("SORT a:l STORE b:o", "SORT a:l STORE a:o STORE b:o", "SORT a:l BY b:w_*->f", "SORT b:l"),
    *('EVAL return(redis.call("get","b:1")) 0', "EVAL return(1) 1 b:1", 'EVAL return(redis.pcall("get","b:1")) 0'),
    *('EVAL_RO return(redis.call("get","b:1")) 0', "FCALL f 1 b:1", "EVALSHA 0 1 b:1"),
    *("COPY a:1 b:2", "COPY b:1 a:2", "RENAME a:1 b:2", "RENAME b:1 a:2", "RENAMENX b:1 a:2", "MOVE b:1 3"),
    *("GEORADIUS a:g 1 1 9 km STORE b:o", "GEORADIUS a:g 1 1 9 km STORE a:o STOREDIST b:o", "GEORADIUS b:g 1 1 9 km"),
    *("GEORADIUSBYMEMBER a:g x 9 km STORE b:o", "GEOSEARCHSTORE b:o a:g FROMMEMBER x BYRADIUS 9 km"),
    *("GEOSEARCHSTORE a:o b:g FROMMEMBER x BYRADIUS 9 km", "GEORADIUSBYMEMBER_RO b:g x 9 km"),
    *("XREAD STREAMS b:x 0", "XREAD STREAMS a:x b:x 0 0", "XREAD STREAMS STREAMS b:x 0 0"),
    *("XREADGROUP GROUP STREAMS c STREAMS b:x >", "XINFO STREAM b:x", "XAUTOCLAIM b:x g c 0 0"),
    *("DUMP b:1", "RESTORE b:r 0 x", "OBJECT ENCODING b:1", "MEMORY USAGE b:1", "TYPE b:1", "EXISTS b:1", "TTL b:1"),
    *("HSCAN b:h 0", "SSCAN b:s 0", "ZSCAN b:z 0", "TOUCH b:1", "WATCH b:1", "DEL a:no b:1", "MGET a:1 b:1"),
    *("SINTER a:s b:s", "SINTERCARD 2 a:s b:s", "SINTERSTORE b:o a:s", "ZUNION 2 a:z b:z", "ZUNIONSTORE a:o 2 a:z b:z"),
    *("ZRANGESTORE a:o b:z 0 -1", "ZDIFFSTORE a:o 1 b:z", "LMPOP 2 a:l b:l LEFT", "BLMPOP 0.01 1 b:l LEFT"),
    *("LMOVE a:l b:l LEFT LEFT", "BRPOPLPUSH b:l a:l 0.01", "BLPOP a:no b:l 0.01", "SMOVE a:s b:s 1", "LCS a:1 b:1"),
    *("BITOP AND a:o b:1", "BITFIELD b:1 GET u8 0", "PFCOUNT a:p b:p", "PFMERGE a:p b:p", "MSETNX a:q x b:q y"),
    *("PUBLISH c x", "SUBSCRIBE c", "PSUBSCRIBE *", "SSUBSCRIBE c", "SPUBLISH c x", "PSUBSCRIBE __key*"),
    *("SUBSCRIBE __redis__:invalidate", "SUBSCRIBE __keyspace@0__:b:1", "DELIFEQ b:1 secret", "DURAMEN.READ b:1"),
]


def test_keys_and_channels_of_others_are_reached_by_no_detour(login):
    wire = login("~a:*", "+@all")
    assert denied(wire, ELSEWHERE) == {}
    assert wire.call("MULTI") == b"OK"
    # A script is checked when it runs.
    queued = [request for request in ELSEWHERE if "redis." not in request]
    assert denied(wire, queued) == {}
    with pytest.raises(harness.ErrorReply, match="EXECABORT"):
        wire.call("EXEC")


def test_a_user_who_may_only_write_reads_nothing(login):
    admin = login.admin
    admin.pipeline([("XADD", "w:x", "1-1", "f", "secret"), ("XGROUP", "CREATE", "w:x", "g", "0")])
    assert admin.call("XREADGROUP", "GROUP", "g", "c", "STREAMS", "w:x", ">")
    wire = login("%W~w:*", "+@all")
    assert wire.call("SET", "w:1", "x") == b"OK"
    # Both return entries that others have read.
    reads = [
        *("XAUTOCLAIM w:x g c 0 0", "XCLAIM w:x g c 0 1-1", "GET w:1", "SET w:1 x GET", "GETDEL w:1", "GETEX w:1"),
        *("GETRANGE w:1 0 9", "SPOP w:s", "LPOP w:l", "ZPOPMIN w:z", "BITFIELD w:1 GET u8 0", "DUMP w:1", "INCR w:1"),
        *("SORT w:l STORE w:o", "RENAME w:1 w:2", "LMOVE w:l w:m LEFT LEFT", "XREAD STREAMS w:x 0", "ZINCRBY w:z 1 a"),
        *("XREADGROUP GROUP g c STREAMS w:x 0", "XINFO STREAM w:x FULL", "XPENDING w:x g", "HINCRBY w:h f 1"),
    ]
    assert denied(wire, reads) == {}


def test_a_user_of_one_table_has_no_other(login):
    login.admin.pipeline([("SELECT", 3), ("SET", "k", "secret"), ("SELECT", 0)])
    wire = login("~*", "+@all", "table:default")
    table = "No permissions to access a table"
    elsewhere = [
        *("SELECT 3", "MOVE a:1 3", "COPY a:1 k DB 3", "SWAPDB 0 3", "FLUSHALL", "DURAMEN.USE db3", "DURAMEN.TABLE DROP db3"),
        # The last DB counts.
        *("COPY a:1 k DB 0 DB 3", "COPY a:1 k DB 0 REPLACE DB 3", "COPY a:1 k DB 3 DB 0"),
        *('EVAL return(redis.call("select",3)) 0', 'EVAL return(redis.call("copy","a:1","k","DB","0","DB","3","REPLACE")) 0'),
        # They tell of the keys of all tables.
        *("MONITOR", "CLIENT TRACKING ON BCAST", "CLIENT TRACKING ON NOLOOP PREFIX k BCAST"),
    ]
    assert denied(wire, elsewhere, table) == {}
    assert wire.call("COPY", "a:1", "a:2", "DB", "0") == 1
    assert wire.call("CLIENT", "TRACKING", "ON") == b"OK"
    login.admin.call("SELECT", 3)
    assert login.admin.call("GET", "k") == b"secret"


def test_who_loses_a_table_hears_of_it_no_more(login, server):
    admin, wire = login.admin, login("~*", "+@all")
    with server.connect() as other:
        for one in (wire, other):
            for request in (("HELLO", "3"), ("CLIENT", "TRACKING", "ON", "BCAST")):
                one.call(*request)
        assert admin.call("ACL", "SETUSER", "ann", "table:db5") == b"OK"
        admin.call("SET", "b:1", "changed")
        assert b"b:1" not in wire.drain(), "the connection is closed instead"
        assert other.reply() == [b"invalidate", [b"b:1"]], "other users hear of it"


def test_read_rights_hold_no_scripts(login):
    wire = login("~*", "+@read")
    assert denied(wire, ["EVAL_RO return(1) 0", "EVALSHA_RO x 0", "FCALL_RO f 0"]) == {}
    assert set(login.admin.call("ACL", "CAT", "read")).isdisjoint({b"eval_ro", b"evalsha_ro", b"fcall_ro"})


def test_rights_that_are_taken_while_a_request_waits(login):
    admin = login.admin
    queued = login("~a:*", "+@all")
    queued.pipeline([("MULTI",), ("SET", "a:1", "late")])
    blocked = login("~a:*", "+@all")
    blocked.send(harness.encode("BLPOP", "a:wait", "9"))
    reader = login("~a:*", "+@all")
    reader.send(harness.encode("XREAD", "BLOCK", "9000", "STREAMS", "a:x", "$"))
    heard = login("~a:*", "&c*", "+@all")
    assert heard.call("SUBSCRIBE", "c1")
    harness.wait_until(lambda: b"blocked_clients:2" in admin.call("INFO", "clients"), "both wait")
    assert admin.call("ACL", "SETUSER", "ann", "resetkeys", "resetchannels") == b"OK"
    admin.pipeline([("RPUSH", "a:wait", "1"), ("XADD", "a:x", "*", "f", "secret")])
    admin.call("PUBLISH", "c1", "secret")
    assert "NOPERM" in str(queued.pipeline([("EXEC",)])[0][0])
    for wire in (blocked, reader):
        with pytest.raises(harness.ErrorReply, match="NOPERM"):
            wire.reply()
    assert b"secret" not in heard.drain()
    assert admin.pipeline([("GET", "a:1"), ("LLEN", "a:wait")]) == [b"x", 1]
