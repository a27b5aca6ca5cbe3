"""The second tier: data larger than memory, on flash, with every value right and memory never over
its budget."""

import json
import os
import random
import resource
import shutil
import subprocess
import threading
import time
import urllib.request

import pytest

import harness
from harness import Closed, ErrorReply, Wire, encode, in_threads

pytestmark = pytest.mark.duramen

MIB = 1 << 20
MEMORY = 64 * MIB
# Memory of a server beside its budget: its program, its threads' stacks and buffers, connections.
OVERHEAD = 48 * MIB
VALUE_BYTES = 1000


@pytest.fixture
def tiered(start, tmp_path):
    """Starts servers with a second tier; all servers of a test use the same flash file unless a
    test names another one."""

    def start_one(*arguments, size="1gb", file=None, **options):
        flash = ("--flash-file", file or tmp_path / "flash", "--flash-size", size)
        return start(*flash, *arguments, **{"memory": "64mb", **options})

    return start_one


def key(number):
    return b"key:%012d" % number


def value(number, turn=0):
    """The value of a key after its `turn`-th write: different from all other keys and turns."""
    seed = b"%d.%d." % (number, turn)
    return (seed * (VALUE_BYTES // len(seed) + 1))[:VALUE_BYTES]


def fill(wire, numbers, turn=0, options=(), step=500):
    numbers = list(numbers)
    for start in range(0, len(numbers), step):
        some = numbers[start : start + step]
        replies = wire.pipeline([("SET", key(n), value(n, turn), *options) for n in some])
        assert replies == [b"OK"] * len(some), next(reply for reply in replies if reply != b"OK")


class Watch:
    """Measures a server's memory continuously; fails if it was over the limit once."""

    def __init__(self, server, limit=MEMORY + OVERHEAD):
        self.server = server
        self.limit = limit
        self.most = 0
        self.over = threading.Event()

    def look(self):
        while not self.over.wait(0.05):
            self.most = max(self.most, self.server.rss_bytes())

    def __enter__(self):
        self.thread = threading.Thread(target=self.look)
        self.thread.start()
        return self

    def __exit__(self, kind, *_):
        self.over.set()
        self.thread.join()
        if kind is None:
            assert self.most <= self.limit, f"{self.most / MIB:.0f} MiB resident"


def on_flash(server):
    """The figures of the tier, by their short names."""
    prefix = "duramen_flash_"
    info = server.info("memory")
    return {name.removeprefix(prefix): int(text) for name, text in info.items() if name.startswith(prefix)}


# Ten times the data that memory has room for.


@pytest.mark.full
def test_ten_times_memory_every_value_is_right_and_memory_stays_in_its_budget(tiered):
    server = tiered(threads=2)
    count = 10 * MEMORY // (VALUE_BYTES + 64)
    turns = {}
    with server.connect() as wire, Watch(server):
        fill(wire, range(count))
        assert wire.call("DBSIZE") == count
        figures = on_flash(server)
        assert figures["segments_demoted"] > 0 and figures["live_bytes"] > 7 * MEMORY, figures
        rng = random.Random(1)
        for _ in range(60):
            some = [rng.randrange(count) for _ in range(200)]
            got = wire.pipeline([("GET", key(n)) for n in some])
            assert got == [value(n, turns.get(n, 0)) for n in some]
            some = {rng.randrange(count) for _ in range(100)}
            for n in some:
                turns[n] = turns.get(n, 0) + 1
            replies = wire.pipeline([("SET", key(n), value(n, turns[n])) for n in some])
            assert replies == [b"OK"] * len(some)
        # And each once, in an order that memory can't predict.
        numbers = list(range(count))
        rng.shuffle(numbers)
        for start in range(0, count, 400):
            some = numbers[start : start + 400]
            assert wire.call("MGET", *(key(n) for n in some)) == [value(n, turns.get(n, 0)) for n in some]
        assert wire.call("DBSIZE") == count
    assert on_flash(server)["fetches"] > 0


def test_many_clients_read_and_write_what_is_on_flash(tiered):
    server = tiered(threads=2)
    clients, each = 8, 3 * MEMORY // (VALUE_BYTES + 64) // 8

    def work(number):
        rng = random.Random(number)
        own = range(number * each, (number + 1) * each)
        turns = dict.fromkeys(own, 0)
        with server.connect() as wire:
            fill(wire, own)
            for _ in range(40):
                some = rng.sample(own, 32)
                commands, expected = [], []
                for n in some:
                    if rng.random() < 0.5:
                        commands.append(("GET", key(n)))
                        expected.append(value(n, turns[n]))
                    else:
                        turns[n] += 1
                        commands.append(("GETSET", key(n), value(n, turns[n])))
                        expected.append(value(n, turns[n] - 1))
                assert wire.pipeline(commands) == expected
            for n in own[:: max(1, each // 300)]:
                assert wire.call("GET", key(n)) == value(n, turns[n])

    with Watch(server):
        in_threads(clients, work)
    assert on_flash(server)["segments_demoted"] > 0


# Each kind of command, on keys of which most are on flash.


@pytest.fixture
def cold(tiered):
    """A server with `count` keys, the oldest of which are on flash."""
    server = tiered(threads=2)
    server.count = 2 * MEMORY // (VALUE_BYTES + 64)
    with server.connect() as wire:
        fill(wire, range(server.count))
    harness.wait_until(lambda: on_flash(server)["segments"] > 0, "segments go to flash")
    return server


def test_commands_on_cold_keys_answer_as_if_they_were_in_memory(cold):
    with cold.connect() as wire:
        fetches = on_flash(cold)["fetches"]
        k = [key(n) for n in range(0, 40_000, 400)]
        v = [value(n) for n in range(0, 40_000, 400)]
        assert wire.call("GET", k[0]) == v[0]
        assert wire.call("STRLEN", k[1]) == VALUE_BYTES
        assert wire.call("EXISTS", k[2], k[3], b"none", k[2]) == 3
        assert wire.call("APPEND", k[4], b"more") == VALUE_BYTES + 4
        assert wire.call("GET", k[4]) == v[4] + b"more"
        assert wire.call("SETNX", k[5], b"other") == 0
        assert wire.call("SET", k[6], b"other", "GET") == v[6]
        assert wire.call("SET", k[7], b"other", "XX") == b"OK"
        assert wire.call("SET", k[8], b"other", "NX") is None
        assert wire.call("GETDEL", k[9]) == v[9] and wire.call("GET", k[9]) is None
        assert wire.call("DEL", k[10], k[11], b"none", k[12]) == 3
        assert wire.call("EXISTS", k[10], k[11], k[12]) == 0
        assert wire.call("RENAME", k[13], k[14]) == b"OK"
        assert wire.call("MGET", k[13], k[14]) == [None, v[13]]
        assert wire.call("COPY", k[15], b"copied") == 1
        assert wire.call("MGET", k[15], b"copied") == [v[15], v[15]]
        assert wire.call("MSET", k[16], b"1", b"new", b"2", k[17], b"3") == b"OK"
        assert wire.call("MGET", k[16], b"new", k[17]) == [b"1", b"2", b"3"]
        assert wire.call("MSETNX", b"new2", b"1", k[18], b"2") == 0
        assert wire.call("MGET", b"new2", k[18]) == [None, v[18]]
        assert wire.call("TTL", k[19]) == -1 and wire.call("TYPE", k[19]) == b"string"
        assert wire.call("EXPIRE", k[20], 100) == 1 and 0 < wire.call("TTL", k[20]) <= 100
        assert wire.call("GET", k[20]) == v[20]
        assert wire.call("GETRANGE", k[21], 0, 4) == v[21][:5]
        assert wire.call("SETRANGE", k[22], 0, b"XY") == VALUE_BYTES
        assert wire.call("GET", k[22]) == b"XY" + v[22][2:]
        with pytest.raises(ErrorReply, match="not an integer"):
            wire.call("INCR", k[23])
        assert wire.call("DURAMEN.READ", k[24])[0] == v[24]
        assert [part[0] for part in wire.call("DURAMEN.MREAD", *k[25:30])] == v[25:30]
        removed = wire.call("DURAMEN.MREMOVE", *k[30:35], b"none")
        assert [part is None for part in removed] == [False] * 5 + [True]
        written = wire.call("DURAMEN.MWRITE", k[35], b"x", k[36], b"y")
        assert len(written) == 2 and wire.call("MGET", k[35], k[36]) == [b"x", b"y"]
        assert wire.call("MEMORY", "USAGE", k[37]) > VALUE_BYTES
        assert wire.call("OBJECT", "ENCODING", k[38]) == b"raw"
        assert on_flash(cold)["fetches"] > fetches


def test_a_pipeline_over_cold_keys_is_answered_in_its_order(cold):
    with cold.connect() as wire:
        rng = random.Random(2)
        for _ in range(20):
            commands, expected = [], []
            for _ in range(64):
                n = rng.randrange(20_000)
                if rng.random() < 0.3:
                    commands.append(("ECHO", b"%d" % n))
                    expected.append(b"%d" % n)
                else:
                    commands.append(("GET", key(n)))
                    expected.append(value(n))
            assert wire.pipeline(commands) == expected


def test_combinations_of_cold_sets_go_on_in_parts(tiered):
    """With flash they ran in one go. Their sets may go to flash again between two parts."""
    server = tiered(threads=1)
    sets, sorted_sets = ([f"{kind}:{n}" for n in range(4)] for kind in ("set", "zset"))
    with server.connect() as wire:
        for n in range(4):
            for start in range(n, n + 40_000, 10_000):
                names = range(start, start + 10_000)
                assert wire.call("SADD", sets[n], *names) == 10_000
                assert wire.call("ZADD", sorted_sets[n], *[text for name in names for text in (1, name)]) == 10_000
        fill(wire, range(2 * MEMORY // (VALUE_BYTES + 64)))
        harness.wait_until(lambda: on_flash(server)["segments"] > 0, "segments go to flash")
        fetches = on_flash(server)["fetches"]
        for _ in range(3):
            assert wire.call("SUNIONSTORE", "union", *sets) == 40_003
            assert wire.call("SINTERCARD", 4, *sets) == 39_997
            assert sorted(wire.call("SDIFF", sets[0], sets[3])) == [b"0", b"1", b"2"]
            assert wire.call("ZUNIONSTORE", "zunion", 4, *sorted_sets) == 40_003
            assert wire.call("ZINTERCARD", 4, *sorted_sets) == 39_997
        assert on_flash(server)["fetches"] > fetches


def test_others_go_on_while_somebody_waits_for_flash(cold):
    """Requests that need no data from flash are answered while others fetch data without end."""
    done = threading.Event()

    def reader(number):
        rng = random.Random(number)
        with cold.connect() as wire:
            while not done.is_set():
                some = [rng.randrange(20_000) for _ in range(50)]
                assert wire.call("MGET", *(key(n) for n in some)) == [value(n) for n in some]

    def other():
        with cold.connect() as wire:
            wire.call("SET", b"hot", b"value")
            for _ in range(500):
                assert wire.call("GET", b"hot") == b"value"
                assert wire.call("PING") == b"PONG"

    def work(number):
        if number > 0:
            return reader(number)
        try:
            other()
        finally:
            done.set()

    in_threads(4, work)


def test_a_flash_file_never_spoils_a_new_data_directory(tmp_path):
    """The file was made first; then the directory was no Duramen store, now and at each later start."""
    dir = tmp_path / "data"
    dir.mkdir()
    command = [harness.BINARY, "serve", "--port", "0", "--admin=no", "--memory", "64mb", "--dir", dir]
    done = subprocess.run(
        [*command, "--flash-file", dir / "flash", "--flash-size", "64mb"], capture_output=True, text=True, timeout=harness.PATIENCE_S, check=False
    )
    assert done.returncode != 0 and "choose another folder" in done.stderr, done.stderr
    assert list(dir.iterdir()) == []


def test_transactions_over_cold_keys_are_one_step(cold):
    with cold.connect() as wire, cold.connect() as other:
        some = range(100, 20_000, 1000)
        assert wire.call("MULTI") == b"OK"
        for n in some:
            assert wire.call("GETSET", key(n), value(n, 1)) == b"QUEUED"
        assert wire.call("MGET", key(7), key(1007)) == b"QUEUED"
        assert wire.call("EXEC") == [value(n) for n in some] + [[value(7), value(1007)]]
        # Watched keys on flash: unchanged, then changed.
        for change in (False, True):
            first, second = (key(9 + 1000 * change), key(19 + 1000 * change))
            assert wire.call("WATCH", first, second) == b"OK"
            if change:
                assert other.call("SET", first, b"changed") == b"OK"
            wire.call("MULTI")
            wire.call("SET", second, b"mine")
            assert wire.call("EXEC") == (None if change else [b"OK"])
        assert wire.call("GET", key(1019)) == value(1019)
        assert wire.call("GET", key(19)) == b"mine"


def test_a_script_that_waits_for_flash_and_runs_again_is_not_told_of_its_own_change(cold):
    """It has begun to read what it has written, but its first run changed nothing."""
    lua = "redis.call('SET', KEYS[1], 1) redis.call('GET', KEYS[1]) return redis.call('GET', KEYS[2])"
    with cold.connect() as wire, cold.connect() as other:
        wire.call("HELLO", "3")
        wire.call("CLIENT", "TRACKING", "ON")
        fetches = on_flash(cold)["fetches"]
        for n in range(20):
            assert wire.call("EVAL", lua, "2", f"own:{n}", key(n)) == value(n)
            assert wire.call("PING") == b"PONG", "an invalidation has come"
        assert on_flash(cold)["fetches"] > fetches
        other.call("SET", "own:7", "2")
        assert wire.reply() == [b"invalidate", [b"own:7"]]


@pytest.mark.full
def test_scan_and_keys_see_every_key(tiered):
    server = tiered(threads=1)
    count = 2 * MEMORY // (VALUE_BYTES + 64)
    with server.connect() as wire, Watch(server):
        fill(wire, range(count))
        harness.wait_until(lambda: on_flash(server)["segments"] > 0, "segments go to flash")
        seen, cursor = set(), b"0"
        while True:
            cursor, some = wire.call("SCAN", cursor, "COUNT", 1000)
            seen.update(some)
            if cursor == b"0":
                break
        assert seen == {key(n) for n in range(count)}
        found = wire.call("KEYS", "key:*7")
        assert sorted(found) == [key(n) for n in range(7, count, 10)]
        drawn = {wire.call("RANDOMKEY") for _ in range(50)}
        assert drawn <= seen and len(drawn) > 10


@pytest.mark.parametrize(
    "command", [("KEYS", "nothing*"), ("SCAN", 0, "COUNT", 1_000_000), ("RANDOMKEY",), ("DURAMEN.SCAN", 0, "COUNT", 100_000)]
)
def test_a_walk_inside_multi_never_waits_for_flash(cold, command):
    """EXEC of KEYS read every entry on flash with all clients kept out, for minutes, and held all of
    them in memory."""
    watch = harness.Stopwatch(cold)
    with cold.connect() as wire, Watch(cold):
        for _ in range(3):
            assert wire.pipeline([("MULTI",), ("SET", "mine", "v"), command]) == [b"OK", b"QUEUED", b"QUEUED"]
            done, walked = wire.call("EXEC")
            assert done == b"OK"
            if command == ("RANDOMKEY",) and isinstance(walked, bytes):
                assert walked == b"mine" or walked in {key(n) for n in range(cold.count)}
                continue  # no key of the bucket that it drew was on flash
            assert "inside MULTI" in str(walked), walked
        assert wire.call("GET", "mine") == b"v"
    assert watch.seconds() < 5


@pytest.mark.parametrize("threads", [1, 4])
@pytest.mark.parametrize("sizes", [*map(harness.only_full, [(1 << 20,), (10, 100, 1 << 20)]), (10, 300_000)])
def test_walks_over_values_that_cannot_be_fetched_together(tiered, threads, sizes):
    """A thread of a small server fetches two of the longest values at once, and a bucket of the
    index has seven: SCAN, KEYS, RANDOMKEY and DURAMEN.SCAN were refused."""
    server = tiered(threads=threads)
    with server.connect() as wire, Watch(server):
        rng = random.Random(len(sizes))
        stored = {key(n): bytes([n % 251]) * rng.choice(sizes) for n in range(320)}
        for name, content in stored.items():
            assert wire.call("SET", name, content) == b"OK"
        assert on_flash(server)["segments_demoted"] > 0
        for command in (("SCAN",), ("SCAN", "COUNT", 1000), ("DURAMEN.SCAN",), ("DURAMEN.SCAN", "COUNT", 30)):
            seen, cursor = {}, b"0"
            while True:
                cursor, some = wire.call(command[0], cursor, *command[1:])
                if command[0] == "SCAN":
                    seen.update((name, stored[name]) for name in some)
                else:
                    seen.update(zip(some[::3], some[1::3]))
                if cursor == b"0":
                    break
            assert seen == stored, command
        assert sorted(wire.call("KEYS", "*")) == sorted(stored)
        assert {wire.call("RANDOMKEY") for _ in range(40)} <= stored.keys()


@pytest.mark.full
def test_expiry_of_what_lies_on_flash(tiered):
    server = tiered(threads=1)
    count = 2 * MEMORY // (VALUE_BYTES + 64)
    with server.connect() as wire:
        # They expire while the rest is written, or soon after.
        fill(wire, range(2000), options=("PX", 3000))
        fill(wire, range(2000, count))
        assert harness.wait_until(
            lambda: wire.call("MGET", *(key(n) for n in range(0, 2000, 10))) == [None] * 200,
            "they expire",
        )
        assert wire.call("TTL", key(0)) == -2
        assert wire.call("GET", key(2000)) == value(2000)


@pytest.mark.parametrize("durable", [False, True])
@pytest.mark.full
def test_what_expires_on_flash_goes_by_itself(tiered, tmp_path, durable):
    """Keys, their part of the index, and their room on flash, without any access to them, and with
    much free flash."""
    options = {"level": "buffered", "dir": tmp_path / "data"} if durable else {}
    server = tiered("--wal-size", "16mb", threads=1, size="2gb", **options)
    count = 5 * MEMORY // (VALUE_BYTES + 64)
    with server.connect() as wire, Watch(server):
        assert wire.call("SET", b"stays", b"value") == b"OK"
        fill(wire, range(count), options=("PX", 20000))
        assert on_flash(server)["segments_demoted"] > 0
        harness.wait_until(lambda: wire.call("DBSIZE") == 1, "all keys that expire are gone", 120)
        harness.wait_until(
            lambda: on_flash(server)["used_bytes"] < MEMORY,
            "their room on flash is free",
            120,
        )
        assert int(server.info("stats")["expired_keys"]) == count
        assert wire.call("GET", b"stays") == b"value"
    if durable:
        server.kill()
        server.start()
        with server.connect() as wire:
            assert wire.call("GET", b"stays") == b"value"
            assert wire.call("MGET", *(key(n) for n in range(0, count, 1000))) == [None] * len(range(0, count, 1000))


@pytest.mark.full
def test_one_of_several_databases_is_emptied_and_the_others_stay_killed_in_the_midst_too(tiered, tmp_path):
    server = tiered("--wal-size", "16mb", threads=2, level="buffered", dir=tmp_path / "data")
    count = MEMORY // (VALUE_BYTES + 64)
    databases = range(4)
    turns = [0] * count

    def of(database, n, turn=0):
        return value(n * 10 + database, turn)

    with server.connect() as wire:
        for start in range(0, count, 250):
            some = range(start, min(start + 250, count))
            for database in databases:
                assert wire.call("SELECT", database) == b"OK"
                replies = wire.pipeline([("SET", key(n), of(database, n)) for n in some])
                assert replies == [b"OK"] * len(some)
        assert on_flash(server)["live_bytes"] > MEMORY
        wire.call("SELECT", 1)
        assert wire.call("FLUSHDB") == b"OK"
        # Other keys are written meanwhile, and so is this one.
        assert wire.call("SET", key(5), of(1, 5, 7)) == b"OK"
        wire.call("SELECT", 0)
        for n in range(0, count, 20):
            turns[n] = 1
            assert wire.call("SET", key(n), of(0, n, 1)) == b"OK"
        wire.call("SELECT", 2)
        assert wire.call("FLUSHDB") == b"OK"
    server.kill()
    server.start()
    for life in range(2):
        with server.connect() as wire:
            for database, keys in ((0, count), (1, 1), (2, 0), (3, count)):
                wire.call("SELECT", database)
                assert wire.call("DBSIZE") == keys, (life, database)
            wire.call("SELECT", 1)
            assert wire.call("MGET", key(4), key(5)) == [None, of(1, 5, 7)]
            for database in (0, 3):
                wire.call("SELECT", database)
                for start in range(0, count, 400):
                    some = range(start, min(start + 400, count))
                    expected = [of(database, n, 0 if database else turns[n]) for n in some]
                    assert wire.call("MGET", *(key(n) for n in some)) == expected
            # Without a kill: counted as dead in the background.
            wire.call("SELECT", 3)
            if life == 0:
                assert wire.call("FLUSHDB") == b"OK"
                for start in range(0, count, 500):
                    some = range(start, min(start + 500, count))
                    replies = wire.pipeline([("SET", key(n), of(3, n)) for n in some])
                    assert replies == [b"OK"] * len(some)


@pytest.mark.full
def test_a_cache_evicts_what_neither_memory_nor_flash_has_room_for(tiered):
    server = tiered(threads=1, mode="cache", size="128mb")
    count = 3 * (MEMORY + 128 * MIB) // (VALUE_BYTES + 64)
    hot = range(500)

    def there(wire, numbers):
        found = 0
        for start in range(0, len(numbers), 250):
            some = numbers[start : start + 250]
            replies = wire.call("MGET", *(key(n) for n in some))
            assert all(reply in (None, value(n)) for n, reply in zip(some, replies, strict=True))
            found += sum(reply is not None for reply in replies)
        return found

    with server.connect() as wire, Watch(server):
        for start in range(0, count, 5000):
            fill(wire, range(start, min(start + 5000, count)))
            there(wire, hot)
        found = there(wire, range(count))
        evicted = int(server.info("stats")["evicted_keys"])
        assert evicted >= count - found > 0, (evicted, found)
        assert found > 60 * MIB // VALUE_BYTES, found
        newest = range(count - 20 * MIB // VALUE_BYTES, count)
        assert there(wire, newest) > 0.6 * len(newest)
        assert there(wire, hot) > 0.1 * len(hot)
        assert on_flash(server)["segments_demoted"] > 0


def test_values_of_all_sizes(tiered):
    """A value on flash is longer than assumed, or ends at the end of a segment."""
    server = tiered(threads=1)
    rng = random.Random(3)
    sizes = [rng.choice([0, 1, 100, 511, 512, 513, 4000, 70_000, 1 << 20]) for _ in range(1200)]

    def content(n):
        return bytes([n % 251]) * sizes[n]

    with server.connect() as wire, Watch(server):
        for n in range(len(sizes)):
            assert wire.call("SET", key(n), content(n)) == b"OK"
        assert on_flash(server)["segments_demoted"] > 0
        for n in rng.sample(range(len(sizes)), len(sizes)):
            assert wire.call("GET", key(n)) == content(n), sizes[n]
        some = [n for n in range(len(sizes)) if sizes[n] < 5000]
        assert wire.call("MGET", *(key(n) for n in some)) == [content(n) for n in some]


def test_what_one_request_may_need_of_flash_is_bounded(tiered):
    server = tiered(threads=1)
    large = b"v" * (1 << 20)
    with server.connect() as wire, Watch(server):
        for n in range(200):
            assert wire.call("SET", key(n), large) == b"OK"
        with pytest.raises(ErrorReply, match="from flash at once, and .* is the most"):
            wire.call("EXISTS", *(key(n) for n in range(100)))
        assert wire.call("EXISTS", key(0), key(1)) == 2
        assert wire.call("GET", key(2)) == large


# Clients that disconnect, servers that stop.


@pytest.mark.full
def test_clients_that_wait_for_flash_take_no_memory_beyond_the_bound(tiered):
    """A request that met more keys on flash when it was presented again kept its entries while it
    waited behind others: each of many clients had up to 2 MB, and that memory was never given
    back."""
    server = tiered(threads=1, size="256mb")
    clients, keys = 100, 1900
    with server.connect() as wire:
        fill(wire, range(150_000))
    bound = 1.1 * MEMORY + 10_000_000

    def ask(number):
        with server.connect() as wire:
            assert wire.call("EXISTS", *(key(number * 37 + n) for n in range(keys))) == keys

    requests = clients * keys * len(encode(key(0)))
    with harness.Resident(server) as resident:
        in_threads(clients, ask)
    assert resident.most <= bound + requests, f"{resident.most / 1e6:.0f} MB resident: {resident.kinds}"
    harness.wait_until(lambda: server.resident_bytes() <= bound, "memory is given back")


def test_clients_that_leave_while_their_keys_are_fetched(cold):
    rng = random.Random(4)
    for _ in range(200):
        with Wire(cold.port) as wire:
            some = [rng.randrange(20_000) for _ in range(100)]
            wire.send(encode("MGET", *(key(n) for n in some)))
    harness.wait_until(lambda: on_flash(cold)["waiting_clients"] == 0, "nobody waits any more")
    with cold.connect() as wire:
        assert wire.call("GET", key(5)) == value(5)
    assert cold.stop() == 0


def test_a_server_stops_cleanly_while_keys_are_fetched(cold):
    wires = [cold.connect() for _ in range(10)]
    for number, wire in enumerate(wires):
        wire.send(b"".join(encode("GET", key(n)) for n in range(number, 20_000, 500)))
    assert cold.stop() == 0
    for number, wire in enumerate(wires):
        # All answers were right; a stop answers requests that were already read.
        try:
            for n in range(number, 20_000, 500):
                assert wire.reply() == value(n)
        except Closed:
            pass
        wire.close()


# Restarts.


@pytest.mark.parametrize("clean", [False, True])
@pytest.mark.full
def test_after_a_restart_everything_is_there(tiered, tmp_path, clean):
    server = tiered("--wal-size", "16mb", threads=2, level="buffered", dir=tmp_path / "data", size="512mb")
    count = 2 * MEMORY // (VALUE_BYTES + 64)
    rng = random.Random(5)
    turns = {n: 0 for n in range(count)}
    with server.connect() as wire:
        fill(wire, range(count))
        for n in rng.sample(range(count), 3000):
            turns[n] += 1
            assert wire.call("SET", key(n), value(n, turns[n])) == b"OK"
        gone = set(rng.sample(range(count), 1000))
        for n in gone:
            assert wire.call("DEL", key(n)) == 1
    if clean:
        assert server.stop() == 0
    else:
        server.kill()
    server.start()
    with server.connect() as wire, Watch(server):
        assert wire.call("DBSIZE") == count - len(gone)
        numbers = list(range(count))
        rng.shuffle(numbers)
        for start in range(0, count, 400):
            some = numbers[start : start + 400]
            got = wire.call("MGET", *(key(n) for n in some))
            assert got == [None if n in gone else value(n, turns[n]) for n in some]
        assert wire.call("SET", b"new", b"value") == b"OK"


class Writer:
    """A client with keys of its own. It keeps every value that may be stored: a command that a kill
    cut off may have been executed or not."""

    def __init__(self, number):
        self.number = number
        self.chance = random.Random(number)
        self.stored = {}
        self.unknown = None
        self.refused = 0

    def work(self, server):
        """Runs until the server is killed."""
        self.watch = harness.Stopwatch(server)
        try:
            with server.connect() as wire:
                while True:
                    self.step(wire)
        except (Closed, OSError):
            pass

    def step(self, wire):
        name = b"%d:%d" % (self.number, self.chance.randrange(400))
        kind = self.chance.random() if self.refused else 1  # first of all the store fills up
        now = self.stored.get(name)
        if kind < 0.15:
            command, after = ("DEL", name), None
        elif kind < 0.25:
            more = self.chance.randbytes(self.chance.choice((10, 1000, 20_000)))
            command, after = ("APPEND", name, more), (now or b"") + more
        elif kind < 0.40:
            assert wire.call("GET", name) == now, name
            return
        else:
            lengths = (10, 1000, 100_000, 300_000) if self.refused else (100_000, 300_000)
            after = self.chance.randbytes(self.chance.choice(lengths))
            command = ("SET", name, after)
        self.unknown = (name, now, after)
        self.watch.restart()
        try:
            wire.call(*command)
        except ErrorReply as error:
            assert command[0] != "DEL" and "OOM" in str(error), (command[:2], error)
            self.refused += 1
        else:
            self.keep(name, after)
        self.unknown = None
        took = self.watch.seconds()
        assert took < 5, f"{command[0]} took {took:.1f} s"

    def keep(self, name, content):
        if content is None:
            self.stored.pop(name, None)
        else:
            self.stored[name] = content

    def check(self, wire):
        """After a restart: every acknowledged value is there, and no deleted one."""
        if self.unknown:
            name, before, after = self.unknown
            content = wire.call("GET", name)
            assert content in (before, after), name
            self.keep(name, content)
            self.unknown = None
        for name, content in self.stored.items():
            assert wire.call("GET", name) == content, name


@pytest.mark.full
def test_a_nearly_full_store_starts_again_after_kills_amid_writes(tiered, tmp_path):
    """A store whose memory and flash were nearly full could not be started again after `kill -9`:
    the load had no room for the index beside the writers' reserve, and short segments took whole
    slots of flash."""
    server = tiered(dir=tmp_path / "data", size="128mb", threads=2, level="synced")
    writers = [Writer(number) for number in range(6)]

    def work(number):
        if number < len(writers):
            return writers[number].work(server)
        try:
            harness.wait_until(lambda: all(writer.refused for writer in writers), "the store is full")
            time.sleep(2)
        finally:
            server.process.kill()

    for _ in range(5):
        in_threads(len(writers) + 1, work)
        server.kill()
        server.start()
        with server.connect() as wire:
            for writer in writers:
                writer.check(wire)
            assert wire.call("DBSIZE") == sum(len(writer.stored) for writer in writers)


@pytest.mark.full
def test_a_snapshot_has_what_lies_on_flash(tiered, start, tmp_path):
    """The snapshot is of one moment, and has no tier of its own: so no data may be missing in it.
    """
    server = tiered("--wal-size", "16mb", threads=2, level="buffered", dir=tmp_path / "data", size="256mb")
    count = 3 * MEMORY // (VALUE_BYTES + 64) // 2
    with server.connect() as wire:
        fill(wire, range(count))
        harness.wait_until(lambda: on_flash(server)["segments"] > 0, "segments go to flash")
        assert wire.call("SAVE") == b"OK"
        fill(wire, range(0, count, 2), turn=1)
        assert wire.call("GET", key(0)) == value(0, 1)
    server.kill()
    copy = start("--use-snapshot", "--wal-size", "16mb", dir=tmp_path / "data" / "snapshots" / "dump", level="buffered", memory="256mb")
    with copy.connect() as wire:
        assert wire.call("DBSIZE") == count
        for start_at in range(0, count, 400):
            some = range(start_at, min(start_at + 400, count))
            assert wire.call("MGET", *(key(n) for n in some)) == [value(n) for n in some]


def test_without_a_directory_a_restart_is_empty_and_the_file_is_used_again(tiered):
    server = tiered(threads=1)
    with server.connect() as wire:
        fill(wire, range(2 * MEMORY // (VALUE_BYTES + 64)))
    server.kill()
    server.start()
    with server.connect() as wire:
        assert wire.call("DBSIZE") == 0
        fill(wire, range(2 * MEMORY // (VALUE_BYTES + 64)), turn=1)
        assert wire.call("GET", key(3)) == value(3, 1)


# Invalid settings.


def refusal(tmp_path, *arguments):
    """The message of a server that does not start."""
    serve = ("serve", "--port", 0, "--admin=no", "--memory", "64mb", "--level", "memory")
    done = harness.duramen(*serve, *arguments, folder=tmp_path)
    assert done.returncode != 0, done
    return done.stderr


@pytest.mark.full
def test_flash_that_cannot_be_used_is_refused_in_words(tiered, tmp_path):
    folder = tmp_path / "folder"
    folder.mkdir()

    def said(file, size="64mb", *more):
        return refusal(tmp_path, "--flash-file", file, "--flash-size", size, *more)

    assert "is a directory" in said(folder)
    assert "special file" in said("/dev/null")
    assert "make its directory first" in said(tmp_path / "none" / "flash")
    assert "too small" in said(tmp_path / "flash", "1mb")
    assert "flash-file without flash-size" in refusal(tmp_path, "--flash-file", tmp_path / "flash")
    assert "flash-size without flash-file" in refusal(tmp_path, "--flash-size", "64mb")
    assert "a cache with flash" in said(tmp_path / "flash", "64mb", "--mode", "cache", "--dir", tmp_path / "cache")
    assert "set at least 1" in said(tmp_path / "flash", "64mb", "--cleaners", "0")
    with tiered(file=tmp_path / "taken", size="64mb").connect():
        assert "in use by another process" in said(tmp_path / "taken")


def test_settings_are_told(tiered, tmp_path):
    server = tiered(size="128mb")
    with server.connect() as wire:
        assert wire.call("CONFIG", "GET", "flash-size") == [b"flash-size", b"%d" % (128 * MIB)]
        assert wire.call("CONFIG", "GET", "flash-file")[1] == str(tmp_path / "flash").encode()
        with pytest.raises(ErrorReply):
            wire.call("CONFIG", "SET", "flash-size", "1gb")


def test_both_tiers_are_shown(cold):
    """By INFO, /memory, /metrics and `duramen top`."""
    with cold.connect() as wire:
        assert wire.call("MGET", *(key(n) for n in range(50))) == [value(n) for n in range(50)]
    told = on_flash(cold)
    assert told["bytes"] == 1 << 30 and told["fetches"] >= 50 and told["fetched_bytes"] >= 50 * VALUE_BYTES

    def get(path):
        with urllib.request.urlopen(f"http://127.0.0.1:{cold.admin_port}{path}", timeout=harness.PATIENCE_S) as answer:
            return answer.read().decode()

    memory = json.loads(get("/memory"))
    assert memory["parts"]["live_bytes"] > 0 and memory["flash"]["live_bytes"] > 0
    assert {name: memory["flash"][name] for name in ("bytes", "fetches")} == {name: told[name] for name in ("bytes", "fetches")}
    assert f"duramen_flash_fetches_total {told['fetches']}" in get("/metrics").replace(".0\n", "\n")
    top = [harness.BINARY, "top", "--once", "--json", "--port", str(cold.port)]
    done = subprocess.run(top, capture_output=True, text=True, env=harness.environment({}), timeout=harness.PATIENCE_S)
    reading = json.loads(done.stdout)
    assert reading["flash_bytes"] == 1 << 30 and reading["flash_live_bytes"] > 0, done


def test_without_flash_memory_is_the_limit_and_nothing_is_told_of_a_tier(start):
    server = start(memory="64mb")
    assert not any(name.startswith("duramen_flash") for name in server.info())


@pytest.mark.full
def test_when_both_tiers_are_full_writes_are_refused_and_nothing_is_lost(tiered):
    server = tiered(threads=1, size="64mb")
    with server.connect() as wire, Watch(server):
        stored, refused = 0, 0
        while refused < 1000:
            some = range(stored, stored + 500)
            replies = wire.pipeline([("SET", key(n), value(n)) for n in some])
            accepted = [n for n, reply in zip(some, replies) if reply == b"OK"]
            for reply in replies:
                assert reply == b"OK" or str(reply).startswith("OOM "), reply
            if len(accepted) < len(some):
                refused += len(some) - len(accepted)
                wire.call("DEL", *(key(n) for n in some))
            else:
                stored += 500
            assert stored < 400_000, "64 MiB of memory and 64 MiB of flash have an end"
        assert stored * VALUE_BYTES > 70 * MIB, f"full with {stored}"
        for start in range(0, stored, 200):
            some = range(start, min(start + 200, stored))
            assert wire.call("MGET", *(key(n) for n in some)) == [value(n) for n in some]
        # Deletes continue, and then writes do.
        for start in range(0, stored, 1000):
            numbers = range(start, min(start + 1000, stored))
            wire.call("DEL", *(key(n) for n in numbers if n % 2))

        def writes():
            replies = wire.pipeline([("SET", b"more:%d" % n, value(n)) for n in range(500)])
            return replies == [b"OK"] * 500

        harness.wait_until(writes, "writes go on after half was deleted")
        assert wire.call("GET", key(0)) == value(0)


# Devices that fail.


def run(*arguments):
    return subprocess.run(list(map(str, arguments)), capture_output=True, text=True, check=False)


@pytest.fixture
def small_disk(tmp_path):
    with harness.disk(tmp_path / "image", tmp_path / "small", 96 * MIB) as place:
        yield place


def test_a_disk_without_room_for_the_file_is_refused(small_disk, tmp_path):
    said = refusal(tmp_path, "--flash-file", small_disk / "flash", "--flash-size", "1gb")
    assert "No space left" in said and "choose a smaller flash-size" in said, said


@pytest.mark.parametrize("damage", ["ends early", "is overwritten", "is as it was before"])
@pytest.mark.full
def test_a_device_that_does_not_give_back_what_it_was_given_is_told_and_memory_is_served_on(tiered, tmp_path, damage):
    """No value of another key, and no key that seems to be gone."""
    server = tiered(threads=1, size="256mb")
    count = 2 * MEMORY // (VALUE_BYTES + 64)
    flash = tmp_path / "flash"
    with server.connect() as wire:
        fill(wire, range(count))
        assert wire.call("SET", b"hot", b"value") == b"OK"
        turn = 0
        if damage == "ends early":
            os.truncate(flash, 0)
        elif damage == "is as it was before":
            # Whole entries of the same keys, and of others.
            shutil.copyfile(flash, tmp_path / "before")
            turn = 1
            fill(wire, range(count), turn)
            assert wire.call("SET", b"hot", b"value") == b"OK"  # or it would be on flash by now
            with flash.open("r+b") as file, (tmp_path / "before").open("rb") as before:
                shutil.copyfileobj(before, file, MIB)
        else:
            length = flash.stat().st_size
            with flash.open("r+b") as file:
                for _ in range(0, length, MIB):
                    file.write(b"\xa5" * MIB)
        asked = range(0, count, 50)
        replies = wire.pipeline([("GET", key(n)) for n in asked])
        errors = [reply for reply in replies if isinstance(reply, ErrorReply)]
        assert errors and all("flash" in str(error) for error in errors), errors[:3]
        for n, reply in zip(asked, replies, strict=True):
            assert isinstance(reply, ErrorReply) or reply == value(n, turn)
        # A transaction is done as a whole or not at all.
        wire.call("MULTI")
        wire.call("SET", b"hot", b"other")
        wire.call("GET", key(asked[replies.index(errors[0])]))
        with pytest.raises(ErrorReply, match="flash"):
            wire.call("EXEC")
        assert wire.call("GET", b"hot") == b"value"
        assert wire.call("SET", b"hot", b"other") == b"OK"
        assert wire.call("GET", b"hot") == b"other"
        assert on_flash(server)["read_errors"] > 0
    assert server.log().count("reading from flash fails") < 10  # one line in ten seconds


@pytest.mark.duramen
def test_a_device_that_takes_no_writes_is_told_and_memory_is_served_on(tiered):
    """Nothing in the log said that flash had failed."""
    server = tiered(threads=1, size="256mb", level="memory", dir=None)
    resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE, (MIB, MIB))
    with server.connect() as wire:
        for n in range(2 * MEMORY // VALUE_BYTES):
            try:
                assert wire.call("SET", key(n), value(n)) == b"OK"
            except ErrorReply as error:
                assert "OOM" in str(error), error
                break
        else:
            pytest.fail("more than memory was taken, and flash takes nothing")
        assert wire.call("GET", key(0)) == value(0)
        assert on_flash(server)["write_errors"] > 0
    assert 0 < server.log().count("writing to flash fails: File too large") < 10


@pytest.mark.full
def test_large_msets_of_many_threads_hold_nobody_up(tiered):
    """A transaction waited for memory with its keys locked. Others waited for the keys, pinned, and
    so held back the memory that it waited for: an MSET of 260 KB took 15 s with eight threads, and
    clients got OOM with a nearly empty disk."""
    server = tiered(threads=8, level="memory")
    done, replies, longest = threading.Event(), [0] * 12, [0.0]

    def write(number):
        choose = random.Random(number)
        with server.connect() as wire:
            while not done.is_set():
                some = [b"%d" % choose.randrange(16 if choose.randrange(2) else 20_000) for _ in range(13)]
                command = ["MSET"] + [part for name in some for part in (name, b"v" * choose.randrange(60_000))]
                replies[number] += 1 if ask(wire, command) else 0

    def ask(wire, command):
        watch = harness.Stopwatch(server)
        try:
            return wire.call(*command)
        except ErrorReply as error:  # cold values to be overwritten: more than a thread may fetch at once
            assert "from flash at once" in str(error), error
        finally:
            longest[0] = max(longest[0], watch.seconds())

    def look(_):
        with server.connect() as wire:
            for _ in range(160):
                assert ask(wire, ["PING"])
                time.sleep(0.05)
        done.set()

    in_threads(13, lambda number: look(number) if number == 12 else write(number))
    assert sum(replies) > 100, replies
    assert longest[0] < 5, f"a reply took {longest[0]:.1f} s"


@pytest.mark.full
def test_renames_and_copies_of_large_values_are_never_refused_for_want_of_memory(tiered):
    """A head that had only room for removals left counted as found room, so COPY and EXEC failed
    eight times for lack of memory, over a nearly empty disk; RENAME and COPY held the keys
    meanwhile, 2 s each time, for all clients."""
    server = tiered(threads=2, level="buffered")
    keys, value = 300, random.Random(4).randbytes(300_000)
    with server.connect() as wire:
        for n in range(keys):
            wire.call("SET", f"k{n}", value)
        wire.call("SET", "own", value)
    pings = []

    def work(number):
        choose = random.Random(number)

        def key():
            return f"k{choose.randrange(keys)}"

        with server.connect() as wire:
            for _ in harness.rounds(6, least=21 if number == 7 else 5):
                if number < 3:
                    wire.call("SET", key(), value)
                elif number < 5:
                    wire.call("COPY", f"k{choose.randrange(keys // 2)}", f"k{keys // 2 + choose.randrange(keys // 2)}", "REPLACE")
                elif number == 5:
                    wire.call("RENAME", "own", "other")
                    wire.call("RENAME", "other", "own")
                elif number == 6:
                    source, target = f"k{choose.randrange(keys // 2)}", f"k{keys // 2 + choose.randrange(keys // 2)}"
                    replies = wire.pipeline([("MULTI",), ("COPY", source, target, "REPLACE"), ("APPEND", target, ""), ("EXEC",)])
                    assert isinstance(replies[-1], list), replies
                else:
                    watch = harness.Stopwatch(server)
                    wire.call("PING")
                    pings.append(watch.seconds())
                    time.sleep(0.01)

    in_threads(8, work)
    assert len(pings) > 20 and max(pings) < 1.5, f"a PING took {max(pings):.1f} s"


def test_a_pipeline_that_names_a_key_twice_is_answered(tiered):
    """GETs of values on flash, and behind them in the same pipeline other commands on the same
    keys: the fetches of the first GET were also recorded for a later command, given up for lack of
    room as such, and requested again, without end."""
    server = tiered(size="128mb", threads=2)
    value, count, choose = b"v" * 100_000, 900, random.Random(3)
    with server.connect() as wire:
        fill = [("SET", f"k{n}", value) for n in range(count)]
        for start_at in range(0, count, 50):
            assert wire.pipeline(fill[start_at : start_at + 50]) == [b"OK"] * 50
        for turn in range(60):
            some = [f"k{n}" for n in choose.sample(range(count), 20)]
            after = ("PTTL", "GET", "STRLEN")[turn % 3]
            replies = wire.pipeline([("GET", key) for key in some] + [(after, key) for key in some])
            assert replies[:20] == [value] * 20
            assert replies[20:] == [{"PTTL": -1, "GET": value, "STRLEN": len(value)}[after]] * 20


# Devices whose sectors are not 512 bytes.


def image(tmp_path, sector_bytes):
    """A sparse file for a block device with sectors of this length."""
    file = tmp_path / f"device-{sector_bytes}"
    with open(file, "wb") as made:
        made.truncate(1024 * MIB)
    return file


@pytest.mark.parametrize("sector_bytes", [512, 4096])
@pytest.mark.full
def test_values_come_back_from_a_device_with_long_sectors(tiered, tmp_path, sector_bytes):
    # Reads at multiples of 512 failed on such a device: the server started without a message, and
    # 144 of 200 GETs were refused.
    with harness.loop_device(image(tmp_path, sector_bytes), sector_bytes) as device:
        server = tiered(file=device, size="512mb")
        count = 3 * MEMORY // (VALUE_BYTES + 64)
        with server.connect() as wire:
            fill(wire, range(count))
            assert on_flash(server)["segments_demoted"] > 0
            for start in range(0, count, 500):
                some = range(start, min(start + 500, count), 3)
                assert wire.pipeline([("GET", key(n)) for n in some]) == [value(n) for n in some]
            # The engine's own reads: several keys under their locks, and a scan.
            rng = random.Random(3)
            some = [rng.randrange(count) for _ in range(50)]
            assert wire.call("MGET", *map(key, some)) == [value(n) for n in some]
            assert on_flash(server)["read_errors"] == 0
        assert server.stop() == 0


def test_a_device_whose_sectors_are_too_long_is_refused(start, tmp_path):
    with harness.loop_device(image(tmp_path, 16384), 16384) as device:
        flash = ("--flash-file", device, "--flash-size", "512mb")
        command = (harness.BINARY, "serve", "--port", "0", "--memory", "64mb", "--level", "memory", *flash)
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=tmp_path)
        said = done.stdout + done.stderr
        assert done.returncode != 0 and "in units of 16384 bytes; at most 4096 can be used" in said, said
