"""Scripts: programs of real libraries, many clients at once, hostile scripts, and kills."""

import concurrent.futures
import random
import socket
import struct
import threading
import time

import pytest
import redis

import harness
from harness import Closed, ErrorReply

pytestmark = pytest.mark.duramen

UNLOCK = "if redis.call('get',KEYS[1]) == ARGV[1] then return redis.call('del',KEYS[1]) else return 0 end"
LIMIT = """
local n = redis.call('incr', KEYS[1])
if n == 1 then redis.call('pexpire', KEYS[1], ARGV[2]) end
if n > tonumber(ARGV[1]) then return {0, redis.call('pttl', KEYS[1])} end
return {1, n}
"""
# As BullMQ takes a job: from a list and a sorted set to a list of active jobs and a hash.
TAKE = """
local id = redis.call('rpoplpush', KEYS[1], KEYS[2])
if not id then
  local next = redis.call('zrange', KEYS[3], 0, 0)
  if #next == 0 then return false end
  id = next[1]
  redis.call('zrem', KEYS[3], id)
  redis.call('lpush', KEYS[2], id)
end
local job = ARGV[1] .. id
redis.call('hmset', job, 'processedOn', ARGV[2], 'state', cjson.encode({active = true}))
return {id, redis.call('hgetall', job)}
"""
TRANSFER = """
local from, to = redis.call('decrby', KEYS[1], ARGV[1]), redis.call('incrby', KEYS[2], ARGV[1])
redis.call('rpush', 'log', KEYS[1] .. KEYS[2])
return {from, to}
"""


def connect(server, **options):
    return redis.Redis(port=server.port, **options)


def test_the_scripts_of_libraries(server):
    client = connect(server)
    lock = client.lock("lock", timeout=10)
    assert lock.acquire(blocking=False) and lock.owned()
    assert lock.extend(5) and lock.reacquire()
    lock.release()
    assert client.exists("lock") == 0
    unlock = client.register_script(UNLOCK)
    client.set("resource", "token")
    assert (unlock(["resource"], ["other"]), unlock(["resource"], ["token"])) == (0, 1)
    limit = client.register_script(LIMIT)
    assert [limit(["rate"], [3, 60_000])[0] for _ in range(5)] == [1, 1, 1, 0, 0]
    take = client.register_script(TAKE)
    client.lpush("wait", "1")
    client.zadd("prioritized", {"2": 1})
    client.hset("job:1", "data", "x")
    keys = ["wait", "active", "prioritized"]
    assert take(keys, ["job:", 5])[0] == b"1"
    assert take(keys, ["job:", 6])[0] == b"2"
    assert take(keys, ["job:", 7]) is None
    assert client.hget("job:1", "state") == b'{"active":true}'
    assert client.lrange("active", 0, -1) == [b"2", b"1"]


def test_many_clients_run_scripts_on_the_same_keys(server):
    connect(server).mset({"a": 1000, "b": 1000, "c": 1000})

    def work(number):
        client = connect(server)
        transfer = client.register_script(TRANSFER)
        for _ in range(150):
            transfer(random.sample(["a", "b", "c"], 2), [1])
            assert sum(map(int, client.eval("return redis.call('mget','a','b','c')", 0))) == 3000

    harness.in_threads(6, work)
    client = connect(server)
    assert client.llen("log") == 900
    assert sum(map(int, client.mget("a", "b", "c"))) == 3000


@pytest.mark.parametrize(
    "script",
    [
        harness.only_full("while true do end"),
        harness.only_full("while true do pcall(function() while true do end end) end"),
        "while true do redis.call('set', 'looped', 'x') end",
        harness.only_full("while true do redis.pcall('nope') end"),
        harness.only_full("coroutine.wrap(function() while true do end end)()"),
    ],
)
def test_a_script_that_loops_delays_nobody_and_can_be_killed(server, script):
    looper = threading.Thread(target=lambda: pytest.raises(redis.RedisError, connect(server, socket_timeout=60).eval, script, 0))
    looper.start()
    clients = [connect(server) for _ in range(8)]
    slowest = 0
    for _ in harness.rounds(2, least=10):
        for client in clients:
            watch = harness.Stopwatch(server)
            client.set("looped-not", "x")
            slowest = max(slowest, watch.seconds())
    assert slowest < 1, slowest  # some milliseconds on a quiet machine
    assert clients[0].script_kill()
    looper.join(harness.PATIENCE_S)
    assert not looper.is_alive()
    assert clients[0].get("looped") is None
    with pytest.raises(redis.ResponseError, match="No scripts in execution"):
        clients[0].script_kill()
    assert clients[0].eval("return 7", 0) == 7


def test_a_long_request_of_a_script_is_parsed_once(server):
    """It was parsed again before each slice of the script, which took longer than the slice."""
    script = "local n = 0 for i = 1, 60000000 do n = n + i end return #ARGV"
    with server.connect() as wire:

        def seconds(arguments):
            began = time.monotonic()
            wire.send(harness.encode("EVAL", script, 0, *arguments))
            time.sleep(0.01)
            wire.send(harness.encode("ECHO", "x" * 100) + harness.encode("PING"))
            assert [wire.reply() for _ in range(3)] == [len(arguments), b"x" * 100, b"PONG"]
            return time.monotonic() - began

        short, long = seconds(["a"]), seconds(["a"] * 1_000_000)
        assert long < 3 * short + 2, f"{long:.1f} s, a short one {short:.1f} s"


def test_an_exchange_of_databases_beside_a_suspended_script(server):
    """Each slice looked its tables up anew: the script wrote into both, and missed its own write."""
    first, second = connect(server), redis.Redis(port=server.port, db=1)
    wait = "local t = os.clock() while os.clock() < t + 0.5 do end "
    script = f"""
    redis.call('set', 'a', 'x') local before = redis.call('get', 'where')
    {wait}
    redis.call('set', 'b', 'x') return {{before, redis.call('get', 'where'), redis.call('get', 'a')}}
    """
    first.flushall()
    first.set("where", "0")
    second.set("where", "1")
    wire = harness.Wire(server.port)
    wire.send(harness.encode("EVAL", script, "0"))
    time.sleep(0.2)
    assert first.execute_command("SWAPDB", 0, 1)
    before, after, own = wire.reply()
    assert before == after and own == b"x"
    in_first, in_second = first.mget("a", "b"), second.mget("a", "b")
    assert sorted([in_first, in_second], key=str) == sorted([[b"x", b"x"], [None, None]], key=str)
    wire.socket.close()
    second.close()
    first.flushall()


LONG = "local t = os.clock() while os.clock() < t + 9 do end redis.call('set', 'ghost', '1') return 'ghost'"


@pytest.mark.parametrize("refusal", ["flush", "functions", "rights"])
def test_a_suspended_script_that_is_refused_leaves_nothing(server, refusal):
    """It stayed behind, and the client's next script went on with it: another one than was asked
    for. 16 of them stopped all scripts of a thread."""
    other = connect(server)
    other.flushall()
    library = f"#!lua name=ghosts\nredis.register_function('ghost', function() {LONG} end)"
    request, change = {
        "flush": (("EVALSHA", other.script_load(LONG), "0"), ("SCRIPT", "FLUSH")),
        "functions": (("FCALL", "ghost", "0"), ("FUNCTION", "FLUSH")),
        "rights": (("EVAL", LONG, "0"), ("ACL", "SETUSER", "ghost", "-eval")),
    }[refusal]
    other.execute_command("FUNCTION", "LOAD", "REPLACE", library)
    other.execute_command("ACL", "SETUSER", "ghost", "on", "nopass", "~*", "+@all")
    wires = [harness.Wire(server.port) for _ in range(20)]
    for wire in wires:
        wire.call("AUTH", "ghost", "x")
        wire.send(harness.encode(*request))
    time.sleep(0.2)
    other.execute_command(*change)
    for wire in wires:
        with pytest.raises(harness.ErrorReply):
            wire.reply()
    assert other.get("ghost") is None
    for wire in wires:
        assert wire.call("EVAL_RO", "return 'mine'", "0") == b"mine"
        wire.socket.close()
    assert other.get("ghost") is None
    other.execute_command("ACL", "DELUSER", "ghost")


@pytest.mark.parametrize("end", ["close", "reset"])
def test_a_script_whose_client_has_gone_does_nothing(server, end):
    wire, client = harness.Wire(server.port), connect(server)
    wire.call("PING")
    before = len(client.client_list())
    busy = client.config_get("busy-reply-threshold")
    client.config_set("busy-reply-threshold", 1000)
    wire.send(harness.encode("EVAL", "redis.call('set','gone',1) while true do end", "0"))
    if end == "reset":
        wire.send(harness.encode("PING"))
        wire.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    time.sleep(0.3)
    wire.close()
    harness.wait_until(lambda: len(client.client_list()) < before, "the connection is closed")
    client.config_set("busy-reply-threshold", busy["busy-reply-threshold"])
    with pytest.raises(redis.ResponseError, match="No scripts in execution"):
        client.script_kill()
    assert client.get("gone") is None


def test_a_client_that_sends_nothing_more_gets_all_replies(server):
    script = "local t = redis.call('time') repeat local u = redis.call('time')"
    script += " until (u[1] - t[1]) * 1e6 + u[2] - t[2] > 300000"
    script += " return redis.call('incr', KEYS[1])"
    requests = [("EVAL", script, "1", "half"), ("INCR", "half"), ("EVAL", script, "1", "half")]
    with harness.Wire(server.port) as wire:
        wire.send(b"".join(harness.encode(*request) for request in requests))
        wire.socket.shutdown(socket.SHUT_WR)
        assert [wire.reply() for _ in requests] == [1, 2, 3]
        with pytest.raises(harness.Closed):
            wire.more()
    connect(server).delete("half")


def test_a_script_in_exec_selects_a_database_that_is_new(start):
    server = start()
    with harness.Wire(server.port) as wire:
        for request in (("MULTI",), ("INCR", "a"), ("SELECT", "7"), ("INCR", "b")):
            wire.call(*request)
        wire.call("EVAL", "redis.call('select', 9) return redis.call('incr', 'c')", "0")
        assert wire.call("EXEC") == [1, b"OK", 1, 1]
        assert wire.call("EXISTS", "b") == 1  # the script's choice ends with it
        for db, key in (("0", "a"), ("9", "c")):
            assert wire.call("SELECT", db) == b"OK"
            assert wire.call("DBSIZE") == 1 and wire.call("GET", key) == b"1"


def test_an_exec_that_fails_as_a_whole_leaves_the_database_selected(server):
    with harness.Wire(server.port) as wire:
        for request in (("MULTI",), ("SELECT", "5"), ("SET", "nothing", "of this")):
            wire.call(*request)
        wire.call("EVAL", "while true do end", "0")
        with pytest.raises(harness.ErrorReply, match="too long"):
            wire.call("EXEC")
        assert wire.call("SET", "in", "database 0") == b"OK"
        assert wire.call("SELECT", "5") == b"OK"
        assert wire.call("DBSIZE") == 0
    client = connect(server)
    assert client.delete("in") == 1


@pytest.mark.parametrize(
    "script",
    [
        "local t = {} for n = 1, 1e9 do t[n] = ('x'):rep(10000) .. n end",
        "local s = 'x' while true do s = s .. s end",
        "return ('x'):rep(1e10)",
        "for n = 1, 1e6 do redis.call('set', 'big' .. n, ('x'):rep(100000)) end",
        "error({})",
        "return cjson.decode(('['):rep(1e6))",
        "return cmsgpack.unpack(('\\145'):rep(1e6))",
        "local t = {} t[1] = t return t",
        "error(setmetatable({}, {__tostring = function() error('x') end}))",
        "local function f() return pcall(f) end return f()",
        "local function f() f() end f()",
        "return unpack({}, 1, 1e8)",
        "redis.call('set', 'x', 'y') error('half')",
        "return redis.call(unpack({'mget', unpack({}, 1, 6000)}))",
    ],
)
def test_a_hostile_script_harms_nobody(server, script):
    with harness.Wire(server.port) as wire:
        # The reply may be nested deeper than Python reads it.
        wire.send(harness.encode("EVAL", script, "0") + harness.encode("ECHO", "behind it"))
        harness.wait_until(lambda: wire.more() or b"behind it" in wire.received, "it ends", 120)
    client = connect(server)
    assert client.eval("return redis.call('echo', 'still here')", 0) == b"still here"
    assert server.process.poll() is None
    assert server.rss_bytes() < 700 << 20


@pytest.mark.parametrize(
    "script",
    [
        "local m = ('x'):rep(1e6) for n = 1, 600 do redis.call('publish', 'nobody', m) end",
        "local k = ('k'):rep(10000) for n = 1, 30000 do redis.call('set', k, n) end",
    ],
)
def test_messages_and_events_of_a_script_are_bounded(start, script):
    """They took memory without limit until the script ended: 600 MB in a second."""
    server = start("--notify-keyspace-events", "KEA", memory="64mb")
    with harness.Wire(server.port) as wire:
        before = server.rss_bytes()
        with pytest.raises(harness.ErrorReply, match="messages and events of the script"):
            wire.call("EVAL", "redis.call('set', 'half', 1) " + script, "0")
        assert server.rss_bytes() < before + (200 << 20)
        assert wire.call("DBSIZE") == 0


def test_kills_leave_no_half_of_a_script(start, tmp_path):
    options = {"level": None, "dir": tmp_path / "data", "memory": "64mb"}
    server = start("--wal-size", "16mb", **options)
    connect(server).mset({"a": 1000, "b": 1000, "c": 1000})
    for _ in range(5):
        acknowledged = []

        def work(number):
            wire = harness.Wire(server.port)
            try:
                while True:
                    wire.call("EVAL", TRANSFER, "2", *random.sample(["a", "b", "c"], 2), "1")
                    acknowledged.append(1)
            except (Closed, ErrorReply, OSError):
                pass

        before = connect(server).llen("log")
        threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        time.sleep(random.uniform(0.2, 0.6))
        server.kill()
        for thread in threads:
            thread.join()
        server.start()
        client = connect(server)
        assert sum(map(int, client.mget("a", "b", "c"))) == 3000
        moved = client.llen("log") - before
        assert len(acknowledged) <= moved <= len(acknowledged) + 4


def test_rights_hold_inside_of_scripts(server):
    admin = connect(server)
    admin.execute_command("ACL", "SETUSER", "app", "on", ">pw", "~app:*", "+@all", "-set")
    user = connect(server, username="app", password="pw")
    assert user.eval("return redis.call('incr', KEYS[1])", 1, "app:n") == 1
    with pytest.raises(redis.ResponseError, match="ACL failure in script"):
        user.eval("return redis.call('set', KEYS[1], 1)", 1, "app:n")
    with pytest.raises(redis.ResponseError, match="ACL failure in script"):
        user.eval("return redis.call('get', 'other')", 0)
    with pytest.raises(redis.ResponseError, match="No permissions"):
        user.eval("return 1", 1, "other")
    assert user.eval("return redis.acl_check_cmd('set', 'app:x', 1)", 0) is None
    log = admin.acl_log()
    assert any(entry["context"] == "lua" for entry in log)
    admin.acl_deluser("app")


def test_the_writes_of_a_script_wake_those_that_wait(server):
    client = connect(server)
    client.delete("queue", "stream", "zqueue")
    got = {}
    waits = {
        "queue": lambda waiter: waiter.blpop(["queue"], timeout=30),
        "zqueue": lambda waiter: waiter.bzpopmin(["zqueue"], timeout=30),
        "stream": lambda waiter: waiter.xread({"stream": "$"}, block=30_000),
    }

    def wait(name):
        got[name] = waits[name](connect(server))

    threads = [threading.Thread(target=wait, args=(name,)) for name in waits]
    for thread in threads:
        thread.start()
    harness.wait_until(lambda: client.info("clients")["blocked_clients"] == 3, "all wait")
    # A push that a script takes back before its end wakes nobody.
    client.eval("redis.call('rpush', 'queue', 'x') redis.call('del', 'queue')", 0)
    assert client.info("clients")["blocked_clients"] == 3
    client.eval(
        """
        redis.call('rpush', 'queue', 'a', 'b')
        redis.call('zadd', 'zqueue', 1, 'm')
        redis.call('xadd', 'stream', '1-1', 'f', 'v')
        """,
        0,
    )
    for thread in threads:
        thread.join(30)
    assert got["queue"] == (b"queue", b"a")
    assert got["zqueue"] == (b"zqueue", b"m", 1.0)
    assert got["stream"] == [[b"stream", [(b"1-1", {b"f": b"v"})]]]
    assert client.lrange("queue", 0, -1) == [b"b"]
    # In a transaction too.
    thread = threading.Thread(target=wait, args=("zqueue",))
    thread.start()
    harness.wait_until(lambda: client.info("clients")["blocked_clients"] == 1, "it waits")
    pipe = client.pipeline(transaction=True)
    pipe.eval("return redis.call('zadd', 'zqueue', 2, 'n')", 0)
    pipe.execute()
    thread.join(30)
    assert got["zqueue"] == (b"zqueue", b"n", 2.0)


def test_events_and_messages_of_a_script_leave_in_order(server):
    client = connect(server)
    client.config_set("notify-keyspace-events", "KEA")
    try:
        listener = client.pubsub()
        listener.psubscribe("__keyevent@0__:*", "chat")
        for _ in range(2):
            listener.get_message(timeout=harness.PATIENCE_S)
        client.eval(
            """
            redis.call('set', 'ev:a', 1)
            redis.call('publish', 'chat', 'hello')
            redis.call('del', 'ev:a')
            redis.pcall('lpush', 'ev:b', 1)
            """,
            0,
        )
        with pytest.raises(redis.ResponseError, match="late"):
            client.eval("redis.call('set', 'ev:c', 1) error('late')", 0)
        heard = [listener.get_message(timeout=harness.PATIENCE_S) for _ in range(5)]
        assert [(it["channel"].rpartition(b":")[2], it["data"]) for it in heard] == [
            (b"set", b"ev:a"),
            (b"chat", b"hello"),
            (b"del", b"ev:a"),
            (b"lpush", b"ev:b"),
            (b"set", b"ev:c"),
        ]
    finally:
        client.config_set("notify-keyspace-events", "")


LIBRARY = """#!lua name={name}
local function add(keys, args) return redis.call('incrby', keys[1], args[1]) end
redis.register_function('{name}_add', add)
redis.register_function{{
  function_name='{name}_get', callback=function(keys) return redis.call('get', keys[1]) end, flags={{'no-writes'}}
}}
redis.register_function('{name}_loop', function() while true do end end)
"""


def names(client):
    listed = client.execute_command("FUNCTION LIST")
    maps = [it if isinstance(it, dict) else dict(zip(it[::2], it[1::2])) for it in listed]
    return sorted(it[b"library_name"].decode() for it in maps)


def test_functions_survive_kills(start, tmp_path):
    options = {"level": None, "dir": tmp_path / "data"}
    server = start(**options)
    client = connect(server)
    client.flushall()
    known = set()
    for round_number in range(4):
        for n in range(3):
            name = f"lib{round_number}_{n}"
            assert client.function_load(LIBRARY.format(name=name)).decode() == name
            known.add(name)
        gone = f"lib{round_number}_1"
        client.function_delete(gone)
        known.discard(gone)
        client.function_load(LIBRARY.format(name="lib0_0"), replace=True)
        server.kill()
        server.start()
        client = connect(server)
        assert names(client) == sorted(known)
        for name in known:
            client.set("n", 5)
            assert client.fcall(f"{name}_add", 1, "n", 2) == 7
            assert client.fcall_ro(f"{name}_get", 1, "n") == b"7"
    payload = client.function_dump()
    client.function_flush()
    server.kill()
    server.start()
    client = connect(server)
    assert client.function_list() == []
    client.function_restore(payload)
    assert names(client) == sorted(known)
    assert client.execute_command("DURAMEN.TABLE", "LIST") is not None
    assert client.flushall() and names(client) == sorted(known)


def test_libraries_are_exchanged_with_redis(server, tmp_path):
    client = connect(server)
    client.function_flush()
    with harness.Redis(tmp_path, program="redis-server") as peer:
        other = connect(peer)
        for name in ("one", "two"):
            client.function_load(LIBRARY.format(name=name))
        other.function_restore(client.function_dump())
        assert names(other) == ["one", "two"]
        client.function_restore(other.function_dump(), "FLUSH")
        assert names(client) == ["one", "two"]
        client.set("n", 1)
        assert client.fcall("one_add", 1, "n", 4) == 5
    client.function_flush()


def told(client):
    """The function that runs, as FUNCTION STATS tells it."""
    running = client.execute_command("FUNCTION STATS")
    running = running[b"running_script"] if isinstance(running, dict) else running[1]
    if running is None:
        return None
    if isinstance(running, list):
        running = dict(zip(running[::2], running[1::2]))
    assert running.pop(b"duration_ms") >= 0
    return running


def test_a_function_that_loops_can_be_killed_and_told(server):
    client = connect(server)
    client.function_load(LIBRARY.format(name="loops"), replace=True)

    def loop():
        with pytest.raises(redis.ResponseError, match="killed"):
            connect(server, socket_timeout=60).fcall("loops_loop", 0)

    looper = threading.Thread(target=loop)
    looper.start()
    running = harness.wait_until(lambda: told(client), "it runs")
    assert running == {b"name": b"loops_loop", b"command": [b"FCALL", b"loops_loop", b"0"]}
    with pytest.raises(redis.ResponseError, match="You can only call FUNCTION KILL"):
        client.script_kill()
    assert client.function_kill()
    looper.join(harness.PATIENCE_S)
    assert told(client) is None
    # A library that never ends to load is stopped.
    with pytest.raises(redis.ResponseError, match="FUNCTION LOAD timeout"):
        client.function_load("#!lua name=never\nwhile true do end")
    client.function_flush()


def test_functions_change_while_they_are_called(server):
    client = connect(server)
    text = "#!lua name=v\nredis.register_function('version', function() return {{{n}, {n}}} end)"
    client.function_load(text.format(n=0), replace=True)
    stop = threading.Event()

    def call(number):
        own, last = connect(server), 0
        while not stop.is_set():
            first, second = own.fcall("version", 0)
            assert first == second and first >= last
            last = first
        assert own.fcall("version", 0) == [100, 100]

    callers = [threading.Thread(target=call, args=(n,)) for n in range(4)]
    for caller in callers:
        caller.start()
    for n in range(1, 101):
        client.function_load(text.format(n=n), replace=True)
    stop.set()
    for caller in callers:
        caller.join(30)
        assert not caller.is_alive()
    client.function_flush()


def test_replies_stay_in_order_when_an_exec_is_too_long(start):
    """The reply of a script in EXEC took the place of EXEC's, and all later replies were one behind."""
    server = start("--output-limit", "4mb")
    with harness.Wire(server.port) as wire:
        wire.call("SET", "big", "x" * 1_000_000)
        script = "redis.pcall('ping') return {'I', 'am', 'another', 'reply'}"
        queued = [("MULTI",), *[("GET", "big")] * 6, ("EVAL", script, "0"), ("EXEC",), ("ECHO", "behind")]
        wire.send(b"".join(harness.encode(*request) for request in queued))
        try:
            assert [wire.reply() for _ in queued[:-2]] == [b"OK", *[b"QUEUED"] * 7]
            reply = wire.reply_or_error()
            assert isinstance(reply, harness.ErrorReply) and wire.reply() == b"behind"
        except harness.Closed:
            pass  # as Redis does at its limit of the output


@pytest.mark.parametrize("in_exec", [False, True], ids=["alone", "in EXEC"])
def test_a_long_script_in_conflict_holds_up_nobody(start, in_exec):
    """A run without a slice's end (one long command) was neither suspended nor alone, and ran again and
    again: its thread stood still for busy-reply-threshold."""
    server, script = start(threads=1), "redis.call('incr', 'hot') return redis.call('sintercard', 8, unpack(ARGV))"
    with connect(server) as client, connect(server) as hot, connect(server) as other:
        client.config_set("busy-reply-threshold", 6000)
        for name in ("s1", "s2"):
            for first in range(0, 40_000, 4_000):
                client.sadd(name, *[f"member{n}" for n in range(first, first + 4_000)])
        ends = threading.Event()

        def change():
            while not ends.is_set():
                hot.incr("hot")

        thread = threading.Thread(target=change)
        thread.start()
        try:
            waited, step = [], client.pipeline(transaction=in_exec)
            step.eval(script, 0, *["s1", "s2"] * 4)
            run = threading.Thread(target=lambda: step.execute(raise_on_error=False))
            run.start()
            while run.is_alive():
                began = time.monotonic()
                other.ping()
                waited.append(time.monotonic() - began)
                time.sleep(0.005)
            run.join()
        finally:
            ends.set()
            thread.join()
        # It stood still for 6 s, busy-reply-threshold, which is time of the clock; in EXEC it may for
        # 100 ms and one run more, which take longer on a busy machine.
        assert waited and max(waited) < 5, max(waited)


def test_versions_in_an_exec_with_a_script_are_those_of_the_store(server):
    with harness.Wire(server.port) as wire:
        queued = [("SET", "counter", "1"), ("INCR", "counter"), ("DURAMEN.READ", "counter"), ("EVAL", "return 1", "0")]
        before = 0
        for _ in range(3):
            wire.call("MULTI")
            for request in queued:
                wire.call(*request)
            told = wire.call("EXEC")[2]
            assert told == wire.call("DURAMEN.READ", "counter") and told[1] > before
            before = told[1]
        wire.call("DEL", "counter")


def test_clients_that_are_alone_in_the_store_keep_nobody_out(start):
    """EXEC with a script and a command that cannot be taken back is alone in the store, one after the
    other: others did not get in between."""
    server = start(threads=2)
    loop = "local t = os.clock() while os.clock() < t + 0.004 do end return 1"
    began, over = time.monotonic(), threading.Event()

    def work(_):
        with harness.Wire(server.port) as wire:
            while not over.is_set():
                requests = [("MULTI",), ("CLIENT", "NO-EVICT", "off"), ("EVAL", loop, "0"), ("EXEC",)]
                wire.pipeline(requests * 5)

    def look(_):
        reads = 0
        with harness.Wire(server.port) as wire:
            # On a busy machine a few reads may take longer than 2 s.
            while (passed := time.monotonic() - began) < 2 or (reads <= 5 and passed < 30):
                wire.call("GET", "key")
                reads += 1
        return reads

    with concurrent.futures.ThreadPoolExecutor(6) as pool:
        working = [pool.submit(work, n) for n in range(2)]
        try:
            reads = list(pool.map(look, range(4)))
        finally:
            over.set()
        for one in working:
            one.result()
    assert min(reads) > 5, reads


def test_what_cannot_be_taken_back_does_not_run_twice(start):
    server = start()
    with harness.Wire(server.port) as wire:
        for request in (("MULTI",), ("SLOWLOG", "RESET"), ("SET", "a", "1")):
            wire.call(*request)
        wire.call("EVAL", "redis.call('select', 9) return redis.call('set', 'a', 1)", "0")
        with pytest.raises(harness.ErrorReply, match="behind commands that change more than data"):
            wire.call("EXEC")
        assert wire.call("EXISTS", "a") == 0


def fill(wire):
    """Sets `k0`, `k1`, … to 20,000 bytes until the store is full; returns their number."""
    n = 0
    while not isinstance(wire.pipeline([("SET", f"k{n}", "x" * 20_000)])[0], harness.ErrorReply):
        n += 1
    return n


def test_a_full_store_refuses_an_exec_with_a_script(start):
    """EXEC with a script took the reserve for removals: behind it EXPIRE and RENAME were refused."""
    server = start(memory="64mb")
    with harness.Wire(server.port) as wire:
        fill(wire)
        for at in range(200):
            queued = [("MULTI",), ("EVAL", "return 1", "0"), ("SET", f"more{at}", "x" * 20_000), ("DEL", "nothing"), ("EXEC",)]
            done = wire.pipeline(queued)[-1]
            assert isinstance(done, harness.ErrorReply) and "OOM" in str(done), (at, done)
        assert wire.call("EXPIRE", "k0", "1000") == 1
        assert wire.call("RENAME", "k1", "k1b") == b"OK"


LOOP = "local n = 0 for i = 1, tonumber(ARGV[1]) do n = n + i end "

# Each with what it adds to the hot key.
STEPS_IN_CONFLICT = {
    "short": (lambda step: step.eval(LOOP + "return redis.call('incr', 'hot')", 0, 1_000), 1),
    "long": (lambda step: step.eval("redis.call('incr', 'hot') " + LOOP + "return 1", 0, 1_000_000), 1),
    "sort": (lambda step: step.sort("hot:list", by="weight*", store="hot:sorted"), 0),
}


@pytest.mark.parametrize("in_exec", [False, True], ids=["alone", "in EXEC"])
@pytest.mark.parametrize(("step", "adds"), STEPS_IN_CONFLICT.values(), ids=STEPS_IN_CONFLICT.keys())
def test_steps_make_progress_beside_steady_writers_and_they_too(start, step, adds, in_exec):
    """Beside one writer of a key that it used, a script was run again and again, and never ended."""
    server = start(threads=2)
    with connect(server) as client:
        client.rpush("hot:list", *range(50))
        ends, written = threading.Event(), [0, 0]

        def write(place):
            with harness.Wire(server.port, timeout=60) as wire:
                while not ends.is_set():
                    wire.send(harness.encode("INCR", "hot") * 10 + harness.encode("RPOPLPUSH", "hot:list", "hot:list"))
                    for _ in range(11):
                        wire.reply()
                    written[place] += 10

        writers = [threading.Thread(target=write, args=(place,)) for place in range(2)]
        for writer in writers:
            writer.start()
        try:
            done, began = 0, time.monotonic()
            while done < 20 or min(written) == 0:
                pipeline = client.pipeline(transaction=in_exec)
                step(pipeline)
                pipeline.execute()
                done += 1
                assert time.monotonic() - began < 120, f"{done} steps and {written} writes in two minutes"
        finally:
            ends.set()
            for writer in writers:
                writer.join(60)
        assert not any(writer.is_alive() for writer in writers)
        assert int(client.get("hot")) == sum(written) + done * adds


def test_a_long_sort_stores_its_result_although_a_weight_changes(server):
    """It ran again each time that a key of its patterns changed, and failed in the end."""
    client = connect(server)
    client.delete("long")
    for first in range(0, 20_000, 2_000):
        client.rpush("long", *range(first, first + 2_000))
        client.mset({f"weight{n}": -n for n in range(first, first + 2_000)})
    ends = threading.Event()

    def change():
        with connect(server) as hot:
            while not ends.is_set():
                hot.incr("weight7")

    thread = threading.Thread(target=change)
    thread.start()
    try:
        for _ in range(5):
            assert client.sort("long", by="weight*", get="weight*", store="sorted") == 20_000
            assert client.lindex("sorted", 0) == b"-19999"
    finally:
        ends.set()
        thread.join()
    client.flushall()


def test_a_script_alone_in_a_full_store_ends_nothing(start):
    """Its new keys had no places in the index: the server ended at the commit."""
    server = start(memory="64mb")
    with harness.Wire(server.port) as wire:
        n = fill(wire)
        wire.pipeline([("DEL", f"k{at}") for at in range(0, n, 20)])
        script = "#!lua flags=allow-oom\nfor n = 1, tonumber(ARGV[1]) do redis.call('set', ARGV[2] .. n, 'v') end"
        for at in range(60):
            queued = [("MULTI",), ("CLIENT", "NO-TOUCH", "on"), ("EVAL", script, 0, 100 + at * 40, f"new{at}:"), ("EXEC",)]
            wire.pipeline(queued)
        assert wire.call("PING") == b"PONG"


def test_a_full_store_does_a_script_as_a_whole_or_not_at_all(start):
    """Its DEL was done, and its SET behind it was refused."""
    server = start(memory="64mb")
    script = "redis.call('del', KEYS[1]) redis.call('set', KEYS[2], ('x'):rep(ARGV[1])) return 'ok'"
    with harness.Wire(server.port) as wire:
        fill(wire)
        for at in range(20):
            done = wire.pipeline([("EVAL", script, 2, f"k{at}", f"more{at}", 100_000)])[0]
            assert isinstance(done, harness.ErrorReply) and "OOM" in str(done)
            assert wire.pipeline([("EXISTS", f"k{at}"), ("EXISTS", f"more{at}")]) == [1, 0]
            # It removes as much as it adds.
            assert wire.call("EVAL", script, 2, f"k{at}", f"moved{at}", 20_000) == b"ok"
            assert wire.pipeline([("EXISTS", f"k{at}"), ("EXISTS", f"moved{at}")]) == [0, 1]


def test_a_script_goes_on_with_the_rights_with_which_it_began(server):
    client = connect(server)
    client.execute_command("ACL", "SETUSER", "narrow", "reset", "on", "nopass", "~*", "+@all")
    with harness.Wire(server.port) as wire:
        wire.call("AUTH", "narrow", "x")
        loop = "local t = os.clock() while os.clock() < t + 3 do end"  # longer than a busy machine needs to change the rights
        script = f"local n = redis.call('incr', 'runs') {loop} return redis.pcall('incr', 'other')"
        wire.send(harness.encode("EVAL", script, "0"))
        time.sleep(0.2)
        client.execute_command("ACL", "SETUSER", "narrow", "resetkeys", "~other")
        with pytest.raises(harness.ErrorReply, match="NOPERM"):
            wire.reply()
    assert client.exists("runs", "other") == 0
    client.execute_command("ACL", "DELUSER", "narrow")
