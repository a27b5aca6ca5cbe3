"""`CLIENT TRACKING`: caches of clients are never stale for longer than a message needs.

Redis's own tests of it run in `test_redis_suite.py`.
"""

import itertools
import threading
import time

import pytest
import redis
from redis.cache import CacheConfig

import harness

pytestmark = pytest.mark.duramen


def tracking(server, *options):
    """A RESP3 connection that tracks."""
    wire = server.connect()
    wire.call("HELLO", "3")
    wire.call("CLIENT", "TRACKING", "ON", *options)
    return wire


def nothing_comes(wire):
    """Whatever was sent for it has come: it is before the reply to a PING."""
    return wire.call("PING") == b"PONG"


def test_a_key_that_leaves_the_table_while_its_script_is_suspended(start):
    """Its invalidation comes before the reply with the value, so it does not count for that."""
    server = start("--tracking-table-max-keys", "1")
    slow = "local v = redis.call('get', KEYS[1]) local t = os.clock() while os.clock() < t + 2 do end return v"
    with tracking(server) as wire, tracking(server) as other:
        other.call("MSET", "a", "old", "b", "1")
        wire.send(harness.encode("EVAL", slow, "1", "a"))
        # For the rest of its 2 s it is suspended most of the time.
        harness.wait_until(lambda: server.info("stats")["tracking_total_keys"] == "1", "it has read the key")
        other.call("GET", "b")  # there is room for one key
        assert wire.reply() == [b"invalidate", [b"a"]]
        assert wire.reply() == b"old"
        with server.connect() as writer:
            writer.call("SET", "a", "new")
        assert wire.reply() == [b"invalidate", [b"a"]]


def test_each_way_of_change_invalidates(server):
    """Also those without a command of Redis on the key itself."""
    changes = [
        ("SET", "k", "2"),
        ("APPEND", "k", "x"),
        ("INCRBY", "n", "1"),
        ("DEL", "k"),
        ("GETDEL", "k"),
        ("UNLINK", "k"),
        ("EXPIRE", "k", "100"),
        ("PERSIST", "t"),
        ("RENAME", "k", "other"),
        ("RENAME", "other", "k"),
        ("COPY", "other", "k", "REPLACE"),
        ("HSET", "h", "f", "2"),
        ("LPUSH", "l", "2"),
        ("SADD", "s", "2"),
        ("ZADD", "z", "2", "m"),
        ("XADD", "x", "*", "f", "2"),
        ("SETBIT", "k", "7", "0"),
        ("PFADD", "p", "2"),
        ("GETEX", "k", "EX", "100"),
        ("SUNIONSTORE", "k", "s"),
        ("MSET", "a", "1", "k", "2"),
        ("MOVE", "k", "1"),
    ]
    with server.connect() as other:
        for change in changes:
            other.call("FLUSHALL")
            for key in ("k", "other"):
                other.call("SET", key, "1")
            other.call("SET", "n", "1")
            other.call("SET", "t", "1", "EX", "100")
            other.call("HSET", "h", "f", "1")
            other.call("LPUSH", "l", "1")
            other.call("SADD", "s", "1")
            other.call("ZADD", "z", "1", "m")
            other.call("XADD", "x", "*", "f", "1")
            other.call("PFADD", "p", "1")
            read = next(key for key in ("k", "n", "t", "h", "l", "s", "z", "x", "p") if key in change[1:])
            with tracking(server) as wire:
                wire.call("EXISTS", read)
                other.call(*change)
                assert wire.reply() == [b"invalidate", [read.encode()]], change
                nothing_comes(wire)
        for change in [("FLUSHALL",), ("FLUSHDB",), ("SWAPDB", "0", "1")]:
            with tracking(server) as wire:
                wire.call("GET", "k")
                other.call(*change)
                assert wire.reply() == [b"invalidate", None], change


def test_expired_keys_invalidate(server):
    with tracking(server) as wire, server.connect() as other:
        other.call("SET", "k", "1", "PX", "50")
        assert wire.call("GET", "k") == b"1"
        assert wire.reply() == [b"invalidate", [b"k"]]


def test_evicted_keys_invalidate(start):
    server = start(mode="cache", memory="64mb", level="memory")
    with tracking(server) as wire, server.connect() as other:
        for n in range(2000):
            other.call("SET", f"k{n}", "1")
            wire.call("GET", f"k{n}")
        for n in range(2000):
            other.pipeline([("SET", f"{n}:{m}", "x" * 1000) for m in range(100)])
        kind, (key,) = wire.reply()
        assert kind == b"invalidate" and key.startswith(b"k")


def test_reads_in_a_transaction_are_remembered_and_others_are_not(server):
    with tracking(server) as wire, server.connect() as other:
        wire.call("MULTI")
        wire.call("GET", "a")
        wire.call("SET", "b", "1")
        wire.call("EXEC")
        other.call("SET", "b", "2")
        nothing_comes(wire)
        other.call("SET", "a", "2")
        assert wire.reply() == [b"invalidate", [b"a"]]
        with pytest.raises(harness.ErrorReply, match="inside MULTI|transaction"):
            wire.call("MULTI")
            wire.call("CLIENT", "TRACKING", "OFF")
        wire.call("DISCARD")


def test_keys_without_a_right_are_not_told(server):
    """A client with rights to few keys does not learn the names of others by their prefixes; and
    only a client of the same user gets its invalidations."""
    with server.connect() as root, server.connect() as wire:
        root.call("ACL", "SETUSER", "ann", "on", ">secret", "~app:*", "%W~log:*", "+@all")
        wire.call("HELLO", "3", "AUTH", "ann", "secret")
        wire.call("CLIENT", "TRACKING", "ON", "BCAST")
        for key in ("app:1", "other", "log:1", "app:2"):
            root.call("SET", key, "1")
        assert wire.reply() == [b"invalidate", [b"app:1"]]
        assert wire.reply() == [b"invalidate", [b"app:2"]]
        root.call("ACL", "SETUSER", "ann", "resetkeys", "~other")
        root.call("SET", "app:1", "2")
        root.call("SET", "other", "2")
        assert wire.reply() == [b"invalidate", [b"other"]]
        target = root.call("CLIENT", "ID")
        wire.call("CLIENT", "TRACKING", "OFF")
        with pytest.raises(harness.ErrorReply, match="does not exist"):
            wire.call("CLIENT", "TRACKING", "ON", "REDIRECT", str(target))


def test_prefixes_are_bounded(server):
    with tracking(server, "BCAST", "PREFIX", "x" * 200) as wire:
        with pytest.raises(harness.ErrorReply, match="too many prefixes: those of one client"):
            for n in range(10_000):
                wire.call("CLIENT", "TRACKING", "ON", "BCAST", "PREFIX", f"{n:05}" + "y" * 200)
        with pytest.raises(harness.ErrorReply, match="a prefix can have 256 bytes, this one has 257"):
            wire.call("CLIENT", "TRACKING", "ON", "BCAST", "PREFIX", "z" * 257)
        assert wire.call("PING") == b"PONG"
        with server.connect() as other:
            assert b"tracking_clients:1\r\n" in other.call("INFO", "clients")


OWN_WRITE_AND_READ = {
    "pipeline": [("SET", "k", "1"), ("GET", "k")],
    "transaction": [("MULTI",), ("SET", "k", "1"), ("GET", "k"), ("EXEC",)],
    "script": [("EVAL", "redis.call('SET', KEYS[1], 1) return redis.call('GET', KEYS[1])", "1", "k")],
    "read before": [("GET", "k"), ("SET", "k", "1")],
}


@pytest.mark.parametrize("requests", OWN_WRITE_AND_READ.values(), ids=OWN_WRITE_AND_READ)
def test_a_client_that_does_not_hear_of_its_own_changes_hears_of_others(server, requests):
    """Its own change is told when its guard ends: what it has read by then stays remembered."""
    with tracking(server, "NOLOOP") as wire, server.connect() as other:
        wire.pipeline(requests)
        nothing_comes(wire)
        other.call("SET", "k", "2")
        assert wire.reply() == [b"invalidate", [b"k"]]


def test_own_changes_in_broadcast_mode(server):
    with tracking(server, "BCAST", "NOLOOP") as quiet, tracking(server, "BCAST") as wire:
        quiet.call("SET", "k", "1")
        assert wire.reply() == [b"invalidate", [b"k"]]
        wire.send(harness.encode("SET", "k", "2"))
        assert sorted(map(str, [wire.reply(), wire.reply()])) == ["[b'invalidate', [b'k']]", "b'OK'"]
        assert quiet.reply() == [b"invalidate", [b"k"]]


def test_caching_is_for_the_next_request_even_if_it_is_refused(server):
    with tracking(server, "OPTIN") as wire, server.connect() as other:
        for refused in [("NOSUCH",), ("GET",), ("GET", "a", "b"), ("SET", "k", "v", "what")]:
            wire.call("CLIENT", "CACHING", "YES")
            with pytest.raises(harness.ErrorReply):
                wire.call(*refused)
            wire.call("GET", "k")
            other.call("SET", "k", "1")
            nothing_comes(wire)
        wire.call("CLIENT", "CACHING", "YES")
        wire.call("CLIENT", "ID")
        wire.call("GET", "k")
        other.call("SET", "k", "2")
        assert wire.reply() == [b"invalidate", [b"k"]]


def test_a_redirect_ends_when_the_other_becomes_another_user(server):
    with server.connect() as target, server.connect() as root:
        root.call("ACL", "SETUSER", "ann", "on", ">secret", "~app:*", "&*", "+@all")
        number = str(target.call("CLIENT", "ID"))
        with tracking(server, "REDIRECT", number) as wire:
            target.call("SUBSCRIBE", "__redis__:invalidate")
            wire.call("GET", "k")
            root.call("SET", "k", "1")
            assert target.reply() == [b"message", b"__redis__:invalidate", [b"k"]]
            target.call("UNSUBSCRIBE")
            target.call("AUTH", "ann", "secret")
            target.call("SUBSCRIBE", "__redis__:invalidate")
            wire.call("GET", "k")
            root.call("SET", "k", "2")
            assert wire.reply() == [b"tracking-redir-broken", int(number)]
            assert target.call("PING") == [b"pong", b""]


WRITE_AND_READ = ("EVAL", "redis.call('SET', KEYS[1], 1) return redis.call('GET', KEYS[1])", "1", "k")
READ_AND_WRITE = ("EVAL", "redis.call('GET', KEYS[1]) return redis.call('SET', KEYS[1], 1)", "1", "k")
TWICE = ("EVAL", "for n = 1, 2 do redis.call('SET', KEYS[1], n) redis.call('GET', KEYS[1]) end", "1", "k")
GET, SET, MULTI, EXEC = ("GET", "k"), ("SET", "k", "1"), ("MULTI",), ("EXEC",)
# Requests before and at once, and whether the client hears of its own change.
OWN_CHANGES = [
    ([], [WRITE_AND_READ], False),
    ([], [READ_AND_WRITE], True),
    ([], [TWICE], True),
    ([GET], [WRITE_AND_READ], True),
    ([], [SET, GET], False),
    ([GET], [SET, GET], True),
    ([], [GET, SET, GET], True),
    ([], [MULTI, SET, GET, EXEC], False),
    ([], [MULTI, GET, SET, EXEC], True),
    ([], [MULTI, GET, SET, GET, EXEC], True),
]


@pytest.mark.parametrize("before, requests, is_told", OWN_CHANGES)
def test_a_client_hears_of_its_own_changes_after_it_has_read(server, before, requests, is_told):
    """As in Redis: a value that is read after its change is no news. rueidis' locks answer each
    invalidation by a script that writes and reads their key, and did so 10,000 times a second."""
    invalidation = [b"invalidate", [b"k"]]
    with tracking(server) as wire, server.connect() as other:
        for request in before:
            wire.call(*request)
        wire.send(b"".join(harness.encode(*request) for request in requests))
        replies = [wire.reply() for _ in requests + [None] * is_told]
        assert replies.count(invalidation) == is_told, replies
        nothing_comes(wire)
        if not is_told:
            other.call("SET", "k", "of another")
            assert wire.reply() == invalidation


# Orders of reads and writes of a key, and ways to run them at once. Those of Redis have one outcome:
# each write is told to a client that has read before.
ORDERS = ["".join(order) for length in (1, 2, 3, 4) for order in itertools.product("rw", repeat=length)]
STEPS = {"r": ("GET", "k"), "w": ("SET", "k", "1")}
LUA = {"r": "redis.call('GET', KEYS[1]) ", "w": "redis.call('SET', KEYS[1], 1) "}
# Redis 7.0 remembers all declared keys of a script when it first reads any: of other keys only Duramen's
# scripts read. It has no clock in its scripts, and they are not suspended.
BEGIN = "local clock, turn, count = rawget(_G, 'os') and os.clock, nil, 0 "
READ_TURN = "if clock then turn = redis.call('GET', 'turn') end "
SPIN = "if clock then local t = clock() while clock() < t + 0.012 do end end "
OTHERS = """
for n = 1, 40 do
    count = count + 1
    redis.call('SET', 'o' .. count, n)
    if clock then redis.call('GET', 'o' .. count) end
end """


def script(*lua):
    return ("EVAL", BEGIN + "".join(lua) + "return turn", "1", "k")


def steps_of(order, between=""):
    return between.join(["", *(LUA[kind] for kind in order), ""])


def with_others(order):
    """Its steps with 100 other writes around each."""
    others = [("SET", f"o{n}", "1") for n in range(100)]
    return [step for kind in order for step in [*others, STEPS[kind], *others]]


WAYS = {
    "pipeline": lambda order: [STEPS[kind] for kind in order],
    "long pipeline": with_others,
    "transaction": lambda order: [("MULTI",), *(STEPS[kind] for kind in order), ("EXEC",)],
    "long transaction": lambda order: [("MULTI",), *with_others(order), ("EXEC",)],
    "script": lambda order: [script(steps_of(order))],
    "long script": lambda order: [script(steps_of(order, OTHERS))],
    "script in a transaction": lambda order: [("MULTI",), script(steps_of(order)), ("EXEC",)],
    "suspended script": lambda order: [script(steps_of(order, SPIN))],
    # It runs again, because another client changes what it has read.
    "conflict": lambda order: [script(READ_TURN, steps_of(order), SPIN, READ_TURN)],
    "conflict in a transaction": lambda order: [
        ("MULTI",),
        script(READ_TURN, steps_of(order), SPIN, READ_TURN),
        ("EXEC",),
    ],
}
MODES = {
    "default": (),
    "OPTIN": ("OPTIN",),
    "OPTOUT": ("OPTOUT",),
    "NOLOOP": ("NOLOOP",),
    "BCAST": ("BCAST", "PREFIX", "k"),
    "REDIRECT": ("REDIRECT",),
}


def told_keys(wire, count):
    """The invalid keys that come with `count` replies or at once behind them."""
    replies, keys = [], set()
    for end in [None, b"end 1", b"end 2"]:
        if end:
            wire.send(harness.encode("ECHO", end))
        while replies[-1:] != [end] if end else len(replies) < count:
            reply = wire.reply()
            if isinstance(reply, list) and reply[:1] == [b"invalidate"]:
                keys.update(reply[1])
            else:
                replies.append(reply)
    return replies, keys


def own_changes(server, options, way, order, read_before, wanted_own=frozenset(), wanted_then=frozenset()):
    """The keys of which a client is told for its own requests, and then for the write of another; and
    whether they ran again. On a busy machine a message of another thread may come later: the wanted
    keys are waited for."""
    requests = WAYS[way](order)
    with server.connect() as other, server.connect() as target, server.connect() as third:
        other.call("FLUSHALL")
        other.call("SET", "turn", "1")
        target.call("HELLO", "3")
        if options == ("REDIRECT",):
            options = ("REDIRECT", str(target.call("CLIENT", "ID")))
        with tracking(server, *options) as wire:
            caching = [("CLIENT", "CACHING", "YES")] if options == ("OPTIN",) else []
            if read_before:
                wire.pipeline([*caching, STEPS["r"]])
            if caching and requests[0] != ("MULTI",):
                requests = [one for request in requests for one in [*caching, request]]
            else:
                requests = [*caching, *requests]
            wire.send(b"".join(harness.encode(*request) for request in requests))
            if "conflict" in way:
                time.sleep(0.004)
                third.call("SET", "turn", "2")  # mostly by another thread than the script

            def told(count):
                replies, keys = told_keys(wire, count)
                if options[:1] == ("REDIRECT",):
                    time.sleep(0.005)
                    keys = told_keys(target, 0)[1]
                return replies, keys

            def told_all(keys, wanted):
                deadline = time.monotonic() + 5
                while not wanted <= keys and time.monotonic() < deadline:
                    time.sleep(0.01)
                    keys = keys | told(0)[1]
                return keys - {b"turn"}

            replies, own = told(len(requests))
            own = told_all(own, wanted_own)
            ran_again = replies[len(requests) - 1] in (b"2", [b"2"])
            other.call("SET", "k", "of another")
            time.sleep(0.001)
            return own, told_all(told(0)[1], wanted_then), ran_again


# Ways that belong to the full tier.
SLOW_WAYS = [way for way in WAYS if way.startswith(("suspended", "conflict"))]


@pytest.fixture(scope="module")
def both(tmp_path_factory):
    """Duramen with two threads, and a Redis."""
    folder = tmp_path_factory.mktemp("both")
    with harness.Duramen(folder, threads=2) as duramen, harness.Redis(folder, program="redis-server") as peer:
        yield duramen, peer


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("way", [harness.only_full(way) if way in SLOW_WAYS else way for way in WAYS])
def test_own_changes_are_told_as_by_redis(both, way, mode):
    """Also if the requests are suspended, or run again."""
    again = []
    for order, read_before in itertools.product(ORDERS, [False, True]):
        if mode != "default" and len(order) > 2:
            continue
        own_there, then_there, _ = own_changes(both[1], MODES[mode], way, order, read_before)
        # NOLOOP keeps the key where it was read; else one that was told of keeps nothing.
        is_kept = "r" in order or read_before if mode == "NOLOOP" else not own_there
        wanted = own_there, (then_there if mode != "NOLOOP" else {b"k"}) if is_kept else set()
        own, then, ran_again = own_changes(both[0], MODES[mode], way, order, read_before, *wanted)
        again.append(ran_again)
        assert own == own_there, (order, read_before)
        # A client that was told keeps nothing: here it is not remembered. Redis forgets those with
        # NOLOOP at their own changes.
        if not own and mode != "NOLOOP":
            assert then == then_there, (order, read_before)
        if mode == "NOLOOP" and ("r" in order or read_before):
            assert then == {b"k"}, (order, read_before)
    # On a busy machine the other client changes the key before the script begins, or behind its end.
    while "conflict" in way and not any(again) and len(again) < 200:
        again.append(own_changes(both[0], MODES[mode], way, "w", False)[2])
    assert "conflict" not in way or any(again)


@pytest.mark.parametrize("way", [way for way in WAYS if "script" in way or "conflict" in way])
def test_what_a_request_has_read_stays_remembered_when_the_next_one_begins(server, way):
    """Only what a run has read that was in vain is forgotten."""
    reads_another = script("redis.call('GET', 'another') ")
    with server.connect() as other:
        other.call("FLUSHALL")
        for next_one in ([reads_another], [("MULTI",), reads_another, ("EXEC",)]):
            with tracking(server) as wire:
                requests = WAYS[way]("wr")
                wire.send(b"".join(harness.encode(*request) for request in requests))
                if "conflict" in way:
                    time.sleep(0.004)
                    other.call("SET", "turn", "2")
                assert b"k" not in told_keys(wire, len(requests))[1]
                wire.pipeline(next_one)
                other.call("SET", "k", "of another")
                assert wire.reply() == [b"invalidate", [b"k"]]


def test_keys_that_a_script_writes_without_reading_are_not_remembered(server):
    """It was suspended. They were remembered when it ended, and its next run was told of them."""
    slow = BEGIN + SPIN + "for n = 1, 100 do redis.call('SET', 'w' .. n, n) end " + SPIN + READ_TURN
    with server.connect() as other:
        other.call("FLUSHALL")
    with server.connect() as other, tracking(server) as wire:
        for _ in range(3):
            wire.send(harness.encode("EVAL", slow, "0"))
            assert told_keys(wire, 1)[1] == set()
            assert b"tracking_total_keys:1\r\n" in other.call("INFO", "stats")



def test_a_client_that_does_not_listen_costs_little(server):
    """It is closed at output-limit, or gets one message for all keys."""
    with server.connect() as other:
        other.call("CONFIG", "SET", "output-limit", "4mb")
        wire = tracking(server, "BCAST")
        keys = [b"k" * 500 + b"%d" % n for n in range(100_000)]
        for start in range(0, len(keys), 1000):
            other.pipeline([("SET", key, "v") for key in keys[start : start + 1000]])
        with pytest.raises(harness.Closed):
            while True:
                wire.reply()


@pytest.mark.parametrize("remembered_keys", ["0", "8"])
@pytest.mark.full
def test_no_cache_is_stale(server, remembered_keys):
    """Readers with caches, and writers: what a reader has in its cache is the value of the store, as
    soon as what was sent for it has come. Also if keys leave the server's table all the time."""
    with server.connect() as wire:
        wire.call("CONFIG", "SET", "tracking-table-max-keys", remembered_keys)
    keys = [f"key{n}" for n in range(20)]
    faults = []

    def write(number):
        with server.connect() as wire:
            for turn in harness.rounds(4, least=50):
                key = keys[(turn * 7 + number) % len(keys)]
                match turn % 4:
                    case 0:
                        wire.call("DEL", key)
                    case 1:
                        wire.pipeline([("MULTI",), ("INCR", key), ("INCR", keys[turn % 20]), ("EXEC",)])
                    case _:
                        wire.call("SET", key, str(turn))

    read_slowly = "local read = redis.call('GET', KEYS[1]) local t = os.clock() while os.clock() < t + 0.02 do end "
    ways = [
        ("GET",),
        ("EVAL", "redis.call('SET', KEYS[1], 'own') return redis.call('GET', KEYS[1])", "1"),
        ("EVAL", read_slowly + "return read", "1"),
    ]

    def read(cache, wire):
        """One that keeps what it has read until it is told. It reads, changes before it reads, and
        reads in a script that is suspended."""
        for turn in harness.rounds(4, least=50):
            key = keys[turn % len(keys)].encode()
            if key not in cache:
                way = ways[1] if turn % 10 == 0 else ways[2] if turn % 50 == 1 else ways[0]
                wire.send(harness.encode(*way, key))
                cache[key] = None  # an invalidation that comes before the reply drops it
                while (reply := wire.reply()) and isinstance(reply, list):
                    drop(cache, reply)
                if key in cache:
                    cache[key] = reply

    def drop(cache, message):
        assert message[0] == b"invalidate", message
        for key in message[1]:
            cache.pop(key, None)

    writers = [threading.Thread(target=write, args=(n,)) for n in range(3)]
    readers = []
    for _ in range(2):
        cache, wire = {}, tracking(server)
        readers.append((threading.Thread(target=read, args=(cache, wire)), cache, wire))
    for thread in [*writers, *(reader[0] for reader in readers)]:
        thread.start()
    for thread in [*writers, *(reader[0] for reader in readers)]:
        thread.join()
    with server.connect() as other:
        for _, cache, wire in readers:
            wire.send(harness.encode("ECHO", "end"))
            while isinstance(reply := wire.reply(), list):
                drop(cache, reply)
            assert reply == b"end"
            # Those of the last writes may be behind the reply, on a busy machine by more.
            deadline = time.monotonic() + 10
            while True:
                time.sleep(0.2)
                wire.send(harness.encode("ECHO", "end"))
                while isinstance(reply := wire.reply(), list):
                    drop(cache, reply)
                now = {key: other.call("GET", key) for key in cache}
                stale = [(key, value, now[key]) for key, value in cache.items() if now[key] != value]
                if not stale or time.monotonic() > deadline:
                    break
            faults += stale
        other.call("CONFIG", "SET", "tracking-table-max-keys", "1000000")
    assert not faults


def test_redis_py_reads_from_its_cache(server):
    with redis.Redis(port=server.port, protocol=3, cache_config=CacheConfig()) as cached:
        with redis.Redis(port=server.port) as other:
            other.set("k", "1")
            other.config_resetstat()
            assert [cached.get("k") for _ in range(3)] == [b"1"] * 3
            assert other.info("commandstats")["cmdstat_get"]["calls"] == 1
            other.set("k", "2")
            harness.wait_until(lambda: cached.get("k") == b"2", "its cache is told of the change")
