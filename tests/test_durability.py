"""Durability across processes: restarts, levels, snapshots, and disks that are full, in use or
foreign."""

import collections
import contextlib
import json
import os
import pathlib
import random
import resource
import shutil
import signal
import subprocess
import tempfile
import threading
import time

import pytest

import harness
from harness import Closed, ErrorReply, content, encode

pytestmark = pytest.mark.duramen


@pytest.fixture
def durable(start, tmp_path):
    """Starts a durable server; all servers of a test use the same directory unless a test names
    another one."""

    def start_one(*arguments, **options):
        options = {"level": None, "dir": tmp_path / "data", "memory": "64mb", **options}
        return start("--wal-size", "16mb", *arguments, **options)

    return start_one


def restart(server, kill=True):
    if kill:
        server.kill()
    else:
        assert server.stop() == 0
    return server.start()


def refusal(*arguments):
    """The message of a server that does not start; its exit code must be that of a failed start."""
    serve = ("serve", "--port", 0, "--admin=no", "--memory", "64mb", "--wal-size", "16mb")
    done = harness.duramen(*serve, *arguments, code=5)
    said = [line for line in done.stderr.splitlines() if line.startswith("duramen: ")]
    assert len(said) == 1, done.stderr
    return said[0]


# The default path: without any flag.


def test_other_users_can_neither_read_nor_lock_the_data(durable, tmp_path):
    """Directories had mode 0755 and files 0644: any user of the machine read all data of a server
    with a password, in its snapshots too, and its lock on `LOCK` kept the server from starting."""
    before = os.umask(0o022)
    try:
        server = durable("--flash-file", tmp_path / "flash", "--flash-size", "64mb")
    finally:
        os.umask(before)
    with server.connect() as wire:
        assert wire.call("SET", "card", "4111") == b"OK"
        assert wire.call("SAVE") == b"OK"
    assert server.stop() == 0
    data = tmp_path / "data"
    copy = tmp_path / "restored"
    subprocess.run([harness.BINARY, "restore", data / "snapshots" / "dump", copy], check=True, umask=0o022)
    made = [data, copy, tmp_path / "flash", *data.rglob("*"), *copy.rglob("*")]
    assert {"superblock", "wal", "frames", "LOCK", "dump"} <= {path.name for path in made}
    assert [path for path in made if path.stat().st_mode & 0o077] == []
    assert "other users" not in server.log()


def test_a_directory_that_others_can_open_keeps_its_mode_with_a_warning(durable, tmp_path):
    (tmp_path / "data").mkdir()
    (tmp_path / "data").chmod(0o755)
    server = durable()
    assert "other users of this machine can open the data directory" in server.log()
    assert (tmp_path / "data").stat().st_mode & 0o777 == 0o755


def test_without_any_flag_it_is_durable(start, tmp_path):
    server = start(level=None, memory="64mb")
    assert (tmp_path / "duramen-data").is_dir()
    with server.connect() as wire:
        assert wire.call("SET", "k", "v") == b"OK"
        assert wire.call("CONFIG", "GET", "level") == [b"level", b"synced"]
        assert wire.call("CONFIG", "GET", "appendonly") == [b"appendonly", b"yes"]
        assert wire.call("CONFIG", "GET", "appendfsync") == [b"appendfsync", b"always"]
    info = server.info("persistence")
    assert info["duramen_level"] == "synced" and "power cut" in info["duramen_durability"]
    assert info["loading"] == "0" and info["aof_enabled"] == "1" and info["aof_last_write_status"] == "ok"
    assert int(info["duramen_syncs"]) >= 1
    restart(server)
    with server.connect() as wire:
        assert wire.call("GET", "k") == b"v"


def test_level_memory_writes_no_file(start, tmp_path):
    server = start(level="memory")
    with server.connect() as wire:
        assert wire.call("SET", "k", "v") == b"OK"
        with pytest.raises(ErrorReply, match="--dir"):
            wire.call("CONFIG", "SET", "level", "synced")
        with pytest.raises(ErrorReply, match="--dir"):
            wire.call("BGSAVE")
    assert not (tmp_path / "duramen-data").exists()
    restart(server)
    with server.connect() as wire:
        assert wire.call("GET", "k") is None


# Restarts.


@pytest.mark.parametrize("kill", [True, False], ids=["kill -9", "SIGTERM"])
@pytest.mark.parametrize("mode", ["buffered", "direct"])
def test_everything_is_back_after_a_restart(durable, kill, mode):
    server = durable("--disk-mode", mode, threads=2)
    with server.connect() as wire:
        wire.load([b"k%d" % n for n in range(20_000)], b"x" * 100)
        wire.pipeline([("DEL", f"k{n}") for n in range(0, 20_000, 10)])
        wire.pipeline([("SET", f"k{n}", f"new{n}") for n in range(5, 20_000, 10)])
        wire.pipeline([("INCRBY", "n", 2)] * 500)
        assert wire.call("SET", "later", "v", "PX", 3_600_000) == b"OK"
        assert wire.call("SET", "soon", "v", "PX", 1) == b"OK"
        version = wire.call("DURAMEN.WRITE", "versioned", "v")[0]
        deleted = wire.call("DURAMEN.WRITE", "deleted", "v")[0]
        wire.call("DEL", "deleted")
        size = wire.call("DBSIZE")
    for _ in range(2):
        restart(server, kill)
        info = server.info("persistence")
        assert info["duramen_clean_start"] == ("0" if kill else "1")
        assert int(info["duramen_loaded_entries"]) > 0
        with server.connect() as wire:
            assert wire.call("GET", "soon") is None
            assert wire.call("DBSIZE") in (size, size - 1)
            values = wire.pipeline([("GET", f"k{n}") for n in range(20_000)])
            for n, value in enumerate(values):
                expected = None if n % 10 == 0 else (b"new%d" % n if n % 10 == 5 else b"x" * 100)
                assert value == expected, (n, value)
            assert wire.call("GET", "n") == b"1000"
            assert 0 < wire.call("PTTL", "later") <= 3_600_000
            assert wire.call("DURAMEN.READ", "versioned") == [b"v", version]
            # Versions only grow, also for a removed key.
            assert wire.call("DURAMEN.WRITE", "deleted", "v")[0] > deleted
            wire.call("DEL", "deleted")


@pytest.mark.parametrize("kill", [True, False], ids=["kill -9", "SIGTERM"])
def test_collections_are_back_after_a_restart(durable, kill):
    server = durable()
    with server.connect() as wire:
        for n in range(50):
            wire.call("HSET", f"hash:{n}", "field", n, "other", "x" * n)
            wire.call("RPUSH", f"list:{n}", *range(n + 1))
            wire.call("SADD", f"set:{n}", n, "member")
            wire.call("ZADD", f"zset:{n}", n / 4, "member", "-inf", "first")
            wire.call("LPOP", f"list:{n}")
        wire.call("EXPIRE", "hash:1", 10_000)
        wire.call("DEL", "set:2")
    restart(server, kill)
    with server.connect() as wire:
        for n in range(50):
            fields = [b"field", b"%d" % n, b"other", b"x" * n]
            assert wire.call("HGETALL", f"hash:{n}") == fields
            items = [b"%d" % i for i in range(1, n + 1)]
            assert wire.call("LRANGE", f"list:{n}", 0, -1) == items
            assert wire.call("ZRANGE", f"zset:{n}", 0, -1) == [b"first", b"member"]
            assert wire.call("TYPE", f"set:{n}") == (b"none" if n == 2 else b"set")
        assert wire.call("EXISTS", "list:0") == 0
        assert 9_000 < wire.call("TTL", "hash:1") <= 10_000
        with pytest.raises(ErrorReply, match="WRONGTYPE"):
            wire.call("GET", "hash:0")


def test_databases_tables_and_their_levels_are_back(durable):
    server = durable()
    with server.connect() as wire:
        for db in (0, 1, 5):
            wire.call("SELECT", db)
            wire.call("SET", "here", db)
        assert wire.call("SWAPDB", 0, 5) == b"OK"
        wire.call("SELECT", 7)
        wire.call("SET", "here", "made after the exchange")
        assert wire.call("DURAMEN.TABLE", "CREATE", "fast", "LEVEL", "memory") > 0
        assert wire.call("DURAMEN.TABLE", "CREATE", "safe", "LEVEL", "synced") > 0
        assert wire.call("DURAMEN.TABLE", "CREATE", "plain") > 0
        assert wire.call("DURAMEN.TABLE", "CREATE", "gone") > 0
        assert wire.call("DURAMEN.TABLE", "DROP", "gone") == b"OK"
        tables = wire.call("DURAMEN.TABLE", "LIST")
    restart(server)
    with server.connect() as wire:
        assert wire.call("DURAMEN.TABLE", "LIST") == tables
        names = {table[1]: table[7] for table in tables}
        assert names[b"fast"] == b"memory" and names[b"safe"] == b"synced" and names[b"plain"] == b"synced"
        assert b"gone" not in names and not [name for name in names if name.startswith(b"duramen:")]
        shown = [line.split(":")[0] for line in wire.call("INFO", "keyspace").decode().split() if "keys=" in line]
        assert {"db0", "db1", "db5", "db7"} <= set(shown) and "duramen_table_db7" not in shown, shown
        for db, value in ((0, b"5"), (1, b"1"), (5, b"0"), (7, b"made after the exchange")):
            wire.call("SELECT", db)
            assert wire.call("GET", "here") == value
        assert wire.call("FLUSHALL") == b"OK"
    restart(server)
    with server.connect() as wire:
        for db in (0, 1, 5):
            wire.call("SELECT", db)
            assert wire.call("DBSIZE") == 0
        assert wire.call("SET", "k", "v") == b"OK"


def test_the_first_write_to_a_new_table_has_its_level(durable):
    """Other clients found a table before the server had recorded its level: 107 of 200 first writes
    to tables of level `synced` were answered at the level of the server, `memory`."""
    server = durable(level="memory", threads=2)
    count = 60

    def work(number):
        with server.connect() as wire:
            for n in range(count):
                if number == 0:
                    wire.call("DURAMEN.TABLE", "CREATE", f"t{n}", "LEVEL", "synced")
                    continue
                harness.wait_until(lambda: wire.pipeline([("DURAMEN.USE", f"t{n}")]) == [b"OK"], "the table is there", pause_s=0)  # noqa: B023
                assert wire.call("DURAMEN.WRITE", "k", "v")[1] == b"synced"

    harness.in_threads(2, work)


def test_transactions_are_kept_as_a_whole(durable):
    server = durable()
    with server.connect() as wire:
        for round_ in range(50):
            wire.pipeline([("MULTI",), *(("SET", f"t{n}", round_) for n in range(20)), ("EXEC",)])
        wire.pipeline([("MULTI",), ("SET", "t0", "x"), ("FLUSHALL",), ("SET", "after", 1), ("EXEC",)])
        wire.pipeline([("MULTI",), *(("SET", f"t{n}", "last") for n in range(20)), ("EXEC",)])
    restart(server)
    with server.connect() as wire:
        assert wire.call("MGET", *(f"t{n}" for n in range(20))) == [b"last"] * 20
        assert wire.call("DBSIZE") == 21 and wire.call("GET", "after") == b"1"


def test_a_stopped_server_goes_on_where_it_was(durable):
    server = durable()
    acknowledged = []

    def write():
        with server.connect() as wire:
            for n in range(100_000):
                try:
                    wire.call("SET", f"k{n}", n)
                except (Closed, OSError):
                    return
                acknowledged.append(n)

    writer = threading.Thread(target=write)
    writer.start()
    harness.wait_until(lambda: len(acknowledged) > 100, "the first writes")
    server.process.send_signal(signal.SIGSTOP)
    harness.wait_until(lambda: state_of(server.process.pid) == "T", "the process is stopped")
    before = len(acknowledged)
    server.process.send_signal(signal.SIGCONT)
    harness.wait_until(lambda: len(acknowledged) > before + 100, "writes go on")
    server.process.send_signal(signal.SIGSTOP)
    server.kill()
    writer.join()
    server.start()
    with server.connect() as wire:
        values = wire.pipeline([("GET", f"k{n}") for n in acknowledged])
        assert values == [b"%d" % n for n in acknowledged]


def state_of(pid):
    return pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]


def test_a_snapshot_of_a_stopped_process_is_not_needed_to_start_with_more_memory(durable):
    server = durable()
    with server.connect() as wire:
        wire.load([b"k%d" % n for n in range(1000)], b"v")
    server.kill()
    server.memory = "96mb"
    server.start()
    with server.connect() as wire:
        assert wire.call("DBSIZE") == 1000


# Levels.


def test_the_reply_tells_the_level(durable):
    server = durable()
    with server.connect() as wire:
        assert wire.call("DURAMEN.WRITE", "k", "v")[1] == b"synced"
        for level in (b"memory", b"buffered", b"synced"):
            assert wire.call("DURAMEN.WRITE", "k", "v", "LEVEL", level)[1] == level
        assert wire.call("DURAMEN.REMOVE", "k", "LEVEL", "buffered")[1] == b"buffered"
        with pytest.raises(ErrorReply, match="LEVEL is one of memory, buffered, synced"):
            wire.call("DURAMEN.WRITE", "k", "v", "LEVEL", "sure")
        assert wire.call("CONFIG", "SET", "level", "buffered") == b"OK"
        assert wire.call("DURAMEN.WRITE", "k", "v")[1] == b"buffered"
        assert wire.call("CONFIG", "GET", "appendfsync") == [b"appendfsync", b"no"]
        assert wire.call("DURAMEN.TABLE", "CREATE", "t", "LEVEL", "memory") > 0
        assert wire.call("DURAMEN.USE", "t") == b"OK"
        assert wire.call("DURAMEN.WRITE", "k", "v")[1] == b"memory"
        assert wire.pipeline([("MULTI",), ("DURAMEN.WRITE", "k", "v", "LEVEL", "synced"), ("EXEC",)])[-1][0][1] == b"synced"
    assert server.info("persistence")["duramen_level"] == "buffered"


def test_buffered_survives_kill_9(durable):
    server = durable("--level", "buffered")
    with server.connect() as wire:
        replies = wire.pipeline([("SET", f"k{n}", n) for n in range(5000)])
        assert set(replies) == {b"OK"}
        server.kill()
    server.start()
    with server.connect() as wire:
        assert wire.pipeline([("GET", f"k{n}") for n in range(5000)]) == [b"%d" % n for n in range(5000)]


def test_memory_level_reaches_the_disk_a_moment_later(durable):
    server = durable("--level", "memory")
    with server.connect() as wire:
        assert wire.call("SET", "k", "v") == b"OK"
        assert wire.call("WAITAOF", 1, 0, 0) == [1, 0]
        server.kill()
    server.start()
    with server.connect() as wire:
        assert wire.call("GET", "k") == b"v"


def test_synced_writes_sync_and_memory_writes_wait_for_none(durable):
    server = durable()
    syncs = lambda: int(server.info("persistence")["duramen_syncs"])
    with server.connect() as wire:
        before = syncs()
        for n in range(20):
            wire.call("SET", "k", n)
        assert syncs() >= before + 20
        before = syncs()
        for n in range(2000):
            wire.call("DURAMEN.WRITE", "k", n, "LEVEL", "memory")
        assert syncs() < before + 1000


def test_wait_and_waitaof(durable):
    server = durable()
    with server.connect() as wire:
        wire.call("SET", "k", "v")
        assert wire.call("WAIT", 0, 0) == 0
        assert wire.call("WAIT", 1, 100) == 0
        assert wire.call("WAITAOF", 1, 0, 60_000) == [1, 0]
        writes = [("DURAMEN.WRITE", "k", n, "LEVEL", "memory") for n in range(100)]
        replies = wire.pipeline([*writes, ("WAITAOF", 1, 0, 60_000), ("WAITAOF", 1, 1, 500), ("GET", "k")])
        assert replies[-3:] == [[1, 0], [1, 0], b"99"]
        assert wire.pipeline([("MULTI",), ("WAITAOF", 1, 0, 0), ("EXEC",)])[-1][0][1] == 0
        with pytest.raises(ErrorReply, match="between 0 and 1"):
            wire.call("WAITAOF", 2, 0, 0)
        with pytest.raises(ErrorReply, match="timeout is negative"):
            wire.call("WAITAOF", 1, 0, -1)


@pytest.mark.parametrize("mode", ["SKIP", "OFF"])
def test_a_silent_waitaof_waits_too(durable, mode):
    """Its wait was dropped with its reply: the request behind it was answered before the sync."""
    server = durable("--level", "memory")
    with server.connect() as wire:
        assert wire.call("SET", "k", "v") == b"OK"
        wire.send(encode("CLIENT", "REPLY", mode) + encode("WAITAOF", 1, 0, 0) + encode("CLIENT", "REPLY", "ON"))
        assert wire.reply() == b"OK"
        server.kill()
    server.start()
    with server.connect() as wire:
        assert wire.call("GET", "k") == b"v"


def test_replies_keep_their_order_while_some_wait(durable):
    server = durable(threads=2)
    with server.connect() as wire, server.connect() as other:
        commands, expected = [], []
        for n in range(300):
            commands += [("SET", "a", n), ("GET", "a"), ("GET", "none"), ("ECHO", n), ("INCR", "c"), ("DURAMEN.WRITE", "m", n, "LEVEL", "memory")]
            expected += [b"OK", b"%d" % n, None, b"%d" % n, n + 1]
        replies = wire.pipeline(commands)
        assert [reply for reply in replies if not isinstance(reply, list)] == expected
        # A reader meanwhile.
        wire.send(encode("SET", "a", "x") * 200)
        seen = [other.call("GET", "a") for _ in range(200)]
        assert set(seen) <= {b"299", b"x"}
        assert [wire.reply() for _ in range(200)] == [b"OK"] * 200


def test_client_reply_off_and_quit(durable):
    server = durable()
    with server.connect() as wire:
        wire.send(encode("CLIENT", "REPLY", "OFF") + encode("SET", "a", 1) * 50 + encode("CLIENT", "REPLY", "ON"))
        assert wire.reply() == b"OK"
        wire.send(encode("SET", "b", 2) + encode("QUIT"))
        assert wire.drain() == b"+OK\r\n+OK\r\n"
    restart(server)
    with server.connect() as wire:
        assert wire.call("MGET", "a", "b") == [b"1", b"2"]


# Snapshots.


def cli(server, *arguments, code=0):
    done = harness.duramen(*arguments, "--port", server.port, code=code)
    return done.stdout + done.stderr


def test_a_snapshot_while_writing_is_one_moment(durable, start, tmp_path):
    server = durable(threads=2)
    stop = threading.Event()

    def write():
        with server.connect() as wire:
            n = 0
            while not stop.is_set():
                n += 1
                replies = wire.pipeline([("MULTI",), *(("SET", f"pair{i}", n) for i in range(8)), ("EXEC",), ("SET", "last", n)])
                assert replies[-1] == b"OK"

    with server.connect() as wire:
        wire.load([b"k%d" % n for n in range(20_000)], b"x" * 100)
    writer = threading.Thread(target=write)
    writer.start()
    try:
        with server.connect() as wire:
            harness.wait_until(lambda: wire.call("GET", "last"), "the writer writes")
            least = int(wire.call("GET", "last"))
        said = cli(server, "snapshot", tmp_path / "copy")
        assert str(tmp_path / "copy") in said
    finally:
        stop.set()
        writer.join()
    with server.connect() as wire:
        most = int(wire.call("GET", "last"))
    copy = durable("--use-snapshot", dir=tmp_path / "copy")
    with copy.connect() as wire:
        pairs = wire.call("MGET", *(f"pair{i}" for i in range(8)))
        assert len(set(pairs)) == 1 and least <= int(pairs[0]) <= most
        assert wire.call("DBSIZE") == 20_000 + 9
        assert set(wire.pipeline([("GET", f"k{n}") for n in range(20_000)])) == {b"x" * 100}
        assert wire.call("SET", "more", "v") == b"OK"
    restart(copy)
    with copy.connect() as wire:
        assert wire.call("GET", "more") == b"v"


def test_save_bgsave_and_lastsave(durable, tmp_path):
    server = durable()
    with server.connect() as wire:
        assert wire.call("LASTSAVE") == 0
        wire.call("SET", "k", "one")
        began = int(time.time())
        assert wire.call("SAVE") == b"OK"
        assert wire.call("LASTSAVE") >= began
        wire.call("SET", "k", "two")
        assert wire.call("BGSAVE") == b"Background saving started"
        harness.wait_until(lambda: fields(wire)["rdb_bgsave_in_progress"] == "0", "the save is done")
        assert fields(wire)["rdb_last_bgsave_status"] == "ok"
        wire.call("SET", "k", "three")
        assert wire.call("BGREWRITEAOF")
        with pytest.raises(ErrorReply, match="syntax"):
            wire.call("BGSAVE", "NOW")
    copy = durable("--use-snapshot", dir=tmp_path / "data" / "snapshots" / "dump")
    with copy.connect() as wire:
        assert wire.call("GET", "k") == b"two"


def fields(wire):
    text = wire.call("INFO", "persistence").decode()
    return dict(line.split(":", 1) for line in text.splitlines() if ":" in line)


@pytest.mark.full
def test_a_copy_takes_transactions_as_long_as_the_original(start, tmp_path):
    """A copy's write-ahead log had 64 MiB at most, for ever: what the original took was refused."""
    server = start("--wal-size", "256mb", level=None, dir=tmp_path / "data", memory="512mb")
    long = ("MSET", *(word for n in range(30) for word in (b"k%d" % n, b"v" * 400_000)))
    size = (tmp_path / "data" / "wal").stat().st_size
    assert size > 64 << 20
    with server.connect() as wire:
        assert wire.call(*long) == b"OK"
        assert wire.call("SAVE") == b"OK"
    saved = tmp_path / "data" / "snapshots" / "dump"
    # The copy itself takes no more space than it needs.
    assert (saved / "wal").stat().st_size == size and (saved / "wal").stat().st_blocks * 512 < 2 << 20
    subprocess.run([harness.BINARY, "restore", saved, tmp_path / "restored"], check=True)
    for options, dir in [(("--use-snapshot",), saved), ((), tmp_path / "restored")]:
        with start(*options, level=None, memory="512mb", dir=dir).connect() as wire:
            assert wire.call(*long) == b"OK"


@pytest.mark.parametrize(
    ("level", "before", "behind"),
    [
        ("memory", [("DURAMEN.USE", "strict")], ("RESET",)),
        ("synced", [], ("CONFIG", "SET", "level", "memory")),
        ("synced", [("MULTI",)], ("CONFIG", "SET", "level", "memory")),
    ],
)
def test_a_request_behind_a_write_does_not_lower_its_level(durable, level, before, behind):
    """Writes that were answered OK at level synced were gone after a kill: their turn took the level
    that held at its end."""
    server = durable(level="memory", threads=1)
    with server.connect() as wire:
        wire.call("DURAMEN.TABLE", "CREATE", "strict", "LEVEL", "synced")
    table = [("DURAMEN.USE", "strict")] if level == "memory" else []
    for n in range(5):
        with server.connect() as wire:
            assert wire.call("CONFIG", "SET", "level", level) == b"OK"
            end = [("EXEC",)] if ("MULTI",) in before else []
            replies = wire.pipeline([*before, ("SET", f"k{n}", "v"), behind, *end])
            assert not any(isinstance(reply, ErrorReply) for reply in replies), replies
        server.kill()
        server.start()
        with server.connect() as wire:
            assert wire.pipeline([*table, ("GET", f"k{n}")])[-1] == b"v", n


def test_a_snapshot_never_writes_over_anything(durable, tmp_path):
    server = durable()
    taken = tmp_path / "taken"
    taken.mkdir()
    (taken / "mine").write_text("precious")
    said = cli(server, "snapshot", taken, code=3)
    assert str(taken) in said
    assert [path.name for path in taken.iterdir()] == ["mine"]
    with server.connect() as wire, pytest.raises(ErrorReply, match="absolute"):
        wire.call("DURAMEN.SNAPSHOT", "somewhere")


# Directories that we must not use.


@pytest.mark.full
def test_two_servers_on_one_directory(durable, tmp_path):
    server = durable()
    said = refusal("--dir", tmp_path / "data")
    assert str(tmp_path / "data") in said and "in use by another server" in said
    with server.connect() as wire:
        assert wire.call("SET", "k", "v") == b"OK"


def test_a_directory_of_something_else(tmp_path):
    (tmp_path / "photo.jpg").write_bytes(b"\xff\xd8")
    said = refusal("--dir", tmp_path)
    assert str(tmp_path) in said
    assert [path.name for path in tmp_path.iterdir()] == ["photo.jpg"]


def test_a_file_in_place_of_the_directory(tmp_path):
    (tmp_path / "data").write_text("no directory")
    assert str(tmp_path / "data") in refusal("--dir", tmp_path / "data")
    assert (tmp_path / "data").read_text() == "no directory"


def test_a_damaged_superblock(durable, tmp_path):
    server = durable()
    assert server.stop() == 0
    superblock = tmp_path / "data" / "superblock"
    superblock.write_bytes(b"x" * superblock.stat().st_size)
    before = superblock.read_bytes()
    said = refusal("--dir", tmp_path / "data")
    assert "superblock" in said
    assert superblock.read_bytes() == before


def without_lock(folder):
    """The content of a directory, except for the lock: it names the last process."""
    return {name: data for name, data in content(folder).items() if name != "LOCK"}


def reseal(superblock, at, new):
    """Writes bytes into both copies of a superblock, and corrects their checksums
    (docs/data-on-disk.md)."""
    data = bytearray(superblock.read_bytes())
    for copy in (0, 64 << 10):
        block = data[copy : copy + 4092]
        assert block.startswith(b"DURAMEN\0")
        assert data[copy + 4092 : copy + 4096] == harness.crc32c(block).to_bytes(4, "little")
        block[at : at + len(new)] = new
        data[copy : copy + 4096] = block + harness.crc32c(block).to_bytes(4, "little")
    superblock.write_bytes(data)


@pytest.mark.parametrize(
    "at, new, words",
    [
        (8, (4).to_bytes(2, "little"), ["format version 4", "versions up to 3", "newer Duramen"]),
        (8, (1).to_bytes(2, "little"), ["format version 1", "before the first release", "versions 2 to 3"]),
        (8, (65535).to_bytes(2, "little"), ["format version 65535", "newer Duramen"]),
        (64, (5).to_bytes(4, "little") + b"other", ["belongs to the cluster `other`", "Set the cluster's name"]),
        (24, bytes(8), None),
    ],
    ids=["newer format", "older format", "newest format", "another cluster", "another hash seed"],
)
def test_a_directory_that_is_not_for_us_is_left_alone(durable, tmp_path, at, new, words):
    server = durable()
    with server.connect() as wire:
        wire.load([b"k%d" % n for n in range(1000)], b"v")
    server.kill()
    reseal(tmp_path / "data" / "superblock", at, new)
    before = without_lock(tmp_path / "data")
    if words is None:
        # The seed of the hashes is not guaranteed: the keys are still found.
        server.start()
        with server.connect() as wire:
            assert wire.pipeline([("GET", f"k{n}") for n in range(1000)]) == [b"v"] * 1000
        return
    said = refusal("--dir", tmp_path / "data")
    assert str(tmp_path / "data") in said and all(word in said for word in words), said
    assert without_lock(tmp_path / "data") == before


def test_a_device_that_is_too_small(tmp_path):
    device = tmp_path / "device"
    device.write_bytes(bytes(1 << 20))
    said = refusal("--disk-mode", "raw", "--dir", device)
    assert str(device) in said and "1048576 bytes" in said and "needs" in said
    assert device.read_bytes() == bytes(1 << 20)


def test_a_directory_that_is_deleted_under_a_server_is_a_failed_disk(durable, tmp_path):
    """`rm -rf` of the directory went unnoticed: replies said `synced`, and the next start was
    empty."""
    server = durable()
    with server.connect() as wire:
        assert wire.call("SET", "k", "v") == b"OK"
        shutil.rmtree(tmp_path / "data")
        harness.wait_until(lambda: server.info("persistence")["duramen_disk_state"].startswith("failed"), "the deletion is noticed")
        with pytest.raises(ErrorReply, match="MISCONF"):
            wire.call("SET", "k", "later")
        assert wire.call("GET", "k") == b"v"
    harness.wait_until(lambda: "the disk has failed" in server.log(), "the log says so")
    assert server.log().count("the disk has failed") == 1
    server.kill()


@pytest.mark.full
def test_after_a_failure_all_data_can_be_read_out(durable, tmp_path):
    """Values that were not on disk yet spoiled the replies of all requests of their turn, and DBSIZE,
    KEYS and SCAN failed for ever."""
    server = durable()
    with server.connect() as wire:
        wire.pipeline([("SET", f"k{n}", n) for n in range(1_000)])
        assert wire.call("CONFIG", "SET", "level", "memory") == b"OK"
        shutil.rmtree(tmp_path / "data")
        # Without a pause, so that the failed commit had something to write.
        late, reply = [], b"OK"
        until = time.monotonic() + harness.PATIENCE_S
        while reply == b"OK" and time.monotonic() < until:
            reply = wire.pipeline([("SET", f"late{len(late)}", len(late))])[0]
            if reply == b"OK":
                late.append(f"late{len(late)}")
        assert "MISCONF" in str(reply)
        assert wire.call("CONFIG", "SET", "level", "synced") == b"OK"
        lost = {name for name in late if isinstance(wire.pipeline([("GET", name)])[0], ErrorReply)}
        assert late[-1] in lost
        names = [*(f"k{n}" for n in range(500)), *late, *(f"k{n}" for n in range(500, 1_000))]
        replies = wire.pipeline([("GET", name) for name in names])
        assert {name for name, reply in zip(names, replies) if isinstance(reply, ErrorReply)} == lost
        # As the page says: replies that do not wait for the disk any more.
        assert wire.call("CONFIG", "SET", "level", "memory") == b"OK"
        assert wire.call("DBSIZE") == len(names)
        cursor, keys = None, set()
        while cursor != b"0":
            cursor, some = wire.call("SCAN", cursor or 0, "COUNT", 100)
            keys.update(some)
        assert keys == {name.encode() for name in names} == set(wire.call("KEYS", "*"))
    server.kill()


@pytest.mark.full
def test_a_device_that_is_mounted_is_refused(tmp_path):
    """A mounted file system was overwritten while it was in use: the device was not claimed."""
    with harness.disk(tmp_path / "image", tmp_path / "mounted", 300 << 20) as place:
        (place / "file").write_bytes(b"precious")
        found = subprocess.run(["findmnt", "-no", "SOURCE", place], check=True, capture_output=True, text=True)
        device = found.stdout.strip()
        said = refusal("--dir", tmp_path / "data", "--flash-file", device, "--flash-size", "64mb")
        assert device in said and "mounted" in said
        said = refusal("--disk-mode", "raw", "--dir", device)
        assert device in said and "not a Duramen store" in said
        assert (place / "file").read_bytes() == b"precious"


@pytest.mark.full
def test_a_block_device_is_claimed_and_opened_again(durable, tmp_path):
    image = tmp_path / "image"
    with open(image, "wb") as file:
        file.truncate(600 << 20)
    with harness.loop_device(image) as device:
        claimed = os.open(device, os.O_RDWR | os.O_EXCL)
        said = refusal("--disk-mode", "raw", "--dir", device)
        assert device in said and "mounted" in said
        os.close(claimed)
        server = durable("--disk-mode", "raw", "--flash-file", tmp_path / "flash", "--flash-size", "64mb", dir=device)
        with server.connect() as wire:
            assert wire.call("SET", "k", "v") == b"OK"
        with pytest.raises(OSError, match="busy"):
            os.close(os.open(device, os.O_RDWR | os.O_EXCL))
        for kill in (True, False):
            restart(server, kill=kill)
            with server.connect() as wire:
                assert wire.call("GET", "k") == b"v"
        assert server.stop() == 0


@pytest.mark.parametrize("at, found", [(4096, b"\xfc\x4e\x2b\xa9\x01"), (1080, b"\x53\xef"), (512, b"LABELONE"), (900 << 10, b"x")])
def test_a_device_whose_first_blocks_are_zero_may_hold_something(tmp_path, at, found):
    """A member of a RAID (its superblock is at 4 KiB) was taken for an empty device, and so were
    ext4 and LVM, whose first sector is zero."""
    device = tmp_path / "device"
    with open(device, "wb") as file:
        file.seek(at)
        file.write(found)
        file.truncate(1 << 30)
    said = refusal("--disk-mode", "raw", "--dir", device)
    assert str(device) in said and "not a Duramen store" in said and "wipefs" in said
    with open(device, "rb") as file:
        begin = file.read(2 << 20)
    assert begin[at : at + len(found)] == found and begin.count(0) == len(begin) - len(found)


def test_a_device_with_something_else_on_it(tmp_path):
    device = tmp_path / "device"
    with open(device, "wb") as file:
        file.write(b"precious" * 1024)
        file.truncate(1 << 30)
    said = refusal("--disk-mode", "raw", "--dir", device)
    assert str(device) in said and "not a Duramen store" in said
    with open(device, "rb") as file:
        assert file.read(8192) == b"precious" * 1024 and not any(file.read(1 << 20))


@pytest.fixture
def open_folder():
    """A folder that any user may enter; those of pytest are root's alone."""
    folder = pathlib.Path(tempfile.mkdtemp(prefix="duramen-"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


def test_no_permission(open_folder):
    user = []
    if os.geteuid() == 0:
        # Root may write everywhere, so another user has to try.
        program = open_folder / "duramen"
        shutil.copy(harness.BINARY, program)
        user = [shutil.which("setpriv"), "--reuid=65534", "--regid=65534", "--clear-groups"]
        if user[0] is None:
            pytest.skip("no setpriv to become another user with")
    else:
        program = harness.BINARY
    (open_folder / "locked").mkdir(mode=0o555)
    done = subprocess.run(
        [*user, program, "serve", "--port", "0", "--admin=no", "--memory", "64mb", "--dir", open_folder / "locked" / "data"],
        capture_output=True,
        text=True,
        cwd=open_folder,
        env=harness.environment({}),
        timeout=harness.PATIENCE_S,
    )
    assert done.returncode == 5 and "panicked" not in done.stderr, done
    assert "no permission" in done.stderr and "locked" in done.stderr
    assert list((open_folder / "locked").iterdir()) == []


# A full disk.


def test_a_full_disk_refuses_writes_and_recovers(small_disk, durable):
    ballast = small_disk / "ballast"
    server = durable(dir=small_disk / "data", memory="128mb")
    acknowledged = {}
    with server.connect() as wire:
        free = shutil.disk_usage(small_disk).free
        with open(ballast, "wb") as file:
            while free > 12 << 20:
                file.write(b"\0" * (1 << 20))
                file.flush()
                os.fsync(file.fileno())
                free = shutil.disk_usage(small_disk).free
        error = None
        for n in range(400):
            reply = wire.pipeline([("SET", f"k{n}", b"x" * 200_000)])[0]
            if reply == b"OK":
                acknowledged[f"k{n}"] = b"x" * 200_000
            else:
                error = str(reply)
                break
        assert error and "disk is full" in error, error
        assert wire.call("GET", "k0") == b"x" * 200_000
        assert fields(wire)["aof_last_write_status"] == "err"
        harness.wait_until(lambda: "the disk is full: writes are refused" in server.log(), "the log says so")
        ballast.unlink()
        harness.wait_until(
            lambda: wire.pipeline([("SET", "again", "v")])[0] == b"OK", "writes go on when there is space again"
        )
        acknowledged["again"] = b"v"
        harness.wait_until(lambda: fields(wire)["aof_last_write_status"] == "ok", "INFO says that writes go on")
        harness.wait_until(lambda: "the disk takes writes again" in server.log(), "the log says that too")
    restart(server)
    with server.connect() as wire:
        for key, value in acknowledged.items():
            assert wire.call("GET", key) == value


def test_a_copy_with_holes_gets_its_space(small_disk, durable):
    """A data directory that was copied with holes had no space of its own: when others had filled
    the disk, a write in the middle of the write-ahead log failed, and the server with it."""
    server = durable(dir=small_disk / "data", memory="64mb")
    with server.connect() as wire:
        assert wire.call("SET", "k", "v") == b"OK"
    assert server.stop() == 0
    copy, ballast = small_disk / "copy", small_disk / "ballast"
    subprocess.run(["cp", "-a", "--sparse=always", small_disk / "data", copy], check=True)

    def blocks(folder):
        return sum((folder / name).stat().st_blocks for name in ("superblock", "wal", "frames"))

    had = blocks(small_disk / "data")
    assert blocks(copy) < had // 2
    with open(ballast, "wb") as file, contextlib.suppress(OSError):
        os.posix_fallocate(file.fileno(), 0, shutil.disk_usage(small_disk).free - (1 << 20))
    refused = harness.duramen("serve", "--port", 0, "--admin=no", "--memory", "64mb", "--dir", copy)
    assert refused.returncode != 0 and "copied with holes" in refused.stderr, refused
    ballast.unlink()
    server = durable(dir=copy, memory="64mb")
    assert blocks(copy) > had - 100, "all but blocks of the file system itself"
    with server.connect() as wire:
        assert wire.call("GET", "k") == b"v"


def test_a_disk_that_hangs_while_tables_are_cleared(small_disk, durable):
    """Each FLUSHALL writes a record for every table. Records that did not fit into one control
    segment while the disk hung ended the server."""
    tables = 100
    server = durable(dir=small_disk / "data", level="memory")
    with server.connect() as wire, server.connect() as other:
        wire.pipeline([("DURAMEN.TABLE", "CREATE", f"t{n}") for n in range(tables)])
        wire.call("SET", "before", "1")
        with harness.frozen(small_disk):
            for _ in range(12):  # 120,000 records of 24 bytes; 2 MiB of them fit
                replies = wire.pipeline([("FLUSHALL",)] * 100)
                assert replies == [b"OK"] * 100
            assert other.call("SET", "after", "2") == b"OK"
        assert wire.call("GET", "after") == b"2"
        assert wire.call("WAITAOF", 1, 0, 0) == [1, 0]
    restart(server)
    with server.connect() as wire:
        assert wire.call("GET", "before") is None and wire.call("GET", "after") == b"2"
        assert len(wire.call("DURAMEN.TABLE", "LIST")) == tables + 1


@pytest.mark.parametrize("level, stop", [("synced", None), ("memory", "NOSAVE"), ("memory", "NOW NOSAVE")])
@pytest.mark.full
def test_a_disk_that_hangs_does_not_delay_a_stop(small_disk, durable, level, stop):
    """SIGTERM and SHUTDOWN NOSAVE waited for the disk without bound."""
    server = durable("--stop-timeout-ms", 1000, dir=small_disk / "data", level=level)
    with server.connect() as wire:
        wire.call("SET", "before", "1")
        assert wire.call("WAITAOF", 1, 0, 60_000) == [1, 0]
        with harness.frozen(small_disk):
            if stop:
                wire.call("SET", "lost", "2")
                wire.send(harness.encode("SHUTDOWN", *stop.split()))
            else:
                server.process.terminate()
            harness.wait_until(lambda: "did not end within its time" in server.log(), "it ends")
    assert server.process.wait(timeout=harness.PATIENCE_S) == 6
    assert "the directory is not closed: the disk has not answered" in server.log()
    server.start()
    with server.connect() as wire:
        assert wire.call("GET", "before") == b"1"


@pytest.mark.full
def test_a_stop_waits_for_writes_at_level_memory_while_the_disk_hangs(small_disk, durable):
    server = durable("--stop-timeout-ms", 100, dir=small_disk / "data", level="memory")
    with server.connect() as wire:
        with harness.frozen(small_disk):
            assert wire.call("SET", "owed", "1") == b"OK"
            server.process.terminate()
            time.sleep(7)
            assert server.process.poll() is None
        assert server.process.wait(timeout=harness.PATIENCE_S) == 0
    server.start()
    with server.connect() as wire:
        assert wire.call("GET", "owed") == b"1"


def test_a_stop_on_a_full_disk_loses_nothing(small_disk, durable):
    """SHUTDOWN answered nothing, exited with 0 and had discarded 88 MB that level `memory` had
    acknowledged. It is refused unless every acknowledged write has room."""
    server = durable(dir=small_disk / "data", memory="128mb", level="memory")
    ballast = harness.fill(small_disk, 6 << 20)
    kept = []
    with server.connect() as wire:
        for n in range(40):
            asked = [("SET", f"k{n}:{m}", b"x" * 100_000) for m in range(16)]
            for request, reply in zip(asked, wire.pipeline(asked)):
                if reply == b"OK":
                    kept.append(request[1])
        try:
            with pytest.raises(ErrorReply, match="Errors trying to SHUTDOWN"):
                wire.call("SHUTDOWN")
            os.kill(server.process.pid, signal.SIGTERM)
            harness.wait_until(lambda: server.log().count("not stopping") == 2, "the signal is refused as well")
            assert wire.call("PING") == b"PONG" and wire.call("GET", kept[-1]) == b"x" * 100_000
        except Closed:
            assert server.process.wait(timeout=harness.PATIENCE_S) == 0
        ballast.unlink()
    if server.process.poll() is None:
        assert server.stop() == 0
    server.start()
    with server.connect() as wire:
        lost = [key for key in kept if wire.call("STRLEN", key) != 100_000]
    assert not lost, (len(lost), len(kept))


@pytest.mark.full
def test_a_stop_on_a_full_disk_is_not_refused_if_nothing_can_be_lost(small_disk, durable):
    server = durable(dir=small_disk / "data", memory="128mb")
    harness.fill(small_disk, 6 << 20)
    with server.connect() as wire:
        replies = wire.pipeline([("SET", f"k{n}", b"x" * 200_000) for n in range(200)])
    assert b"OK" in replies and any(reply != b"OK" for reply in replies)
    server.process.terminate()
    server.process.wait(timeout=harness.PATIENCE_S)
    assert "not stopping" not in server.log() and "panicked" not in server.log()


@pytest.mark.full
def test_shutdown_nosave_ends_on_a_full_disk(small_disk, durable):
    server = durable(dir=small_disk / "data", memory="128mb", level="memory")
    harness.fill(small_disk, 6 << 20)
    with server.connect() as wire:
        wire.pipeline([("SET", f"k{m}", b"x" * 100_000) for m in range(600)])
        with pytest.raises(Closed):
            wire.call("SHUTDOWN", "NOSAVE")
    assert server.process.wait(timeout=harness.PATIENCE_S) == 0


@pytest.mark.parametrize("value_bytes", [300, 20_000])
@pytest.mark.full
def test_removals_make_room_on_a_full_disk(small_disk, durable, value_bytes):
    """A disk smaller than log and frames: all frames were full, the cleaner needed one to free any,
    and the log took nothing any more. DEL, FLUSHALL and even GET returned MISCONF for ever."""
    harness.fill(small_disk, 90 << 20)
    server = durable(dir=small_disk / "data", memory="128mb", level="buffered")
    value = b"v" * value_bytes

    def set_until_refused(wire, prefix, options=(), most=1_000_000):
        """Stores new keys until the disk is full; returns them."""
        taken = []
        while len(taken) < most:
            names = [f"{prefix}{len(taken) + n}" for n in range(50)]
            for name, reply in zip(names, wire.pipeline([("SET", name, value, *options) for name in names])):
                if reply != b"OK":
                    assert "disk is full" in str(reply), reply
                    return taken
                taken.append(name)
        return taken

    def is_taken(wire):
        return wire.pipeline([("SET", "probe", value)])[0] == b"OK"

    with server.connect() as wire:
        # Overwriting needs room only for a while: dead entries are cleaned.
        for round_number in range(8):
            written = wire.pipeline([("SET", f"same{n}", value) for n in range(6_000_000 // value_bytes)])
            assert set(written) == {b"OK"}, [reply for reply in written if reply != b"OK"][:1]
        for how in ("DEL", "UNLINK", "expiry", "FLUSHALL"):
            options = ("PX", 3000) if how == "expiry" else ()
            stored = set_until_refused(wire, how, options)
            assert stored, how
            # The cleaner may still gain a segment or two; the first of the expiring keys may be
            # gone.
            while how != "expiry" and fields(wire)["aof_last_write_status"] == "ok":
                stored += set_until_refused(wire, f"{how}{len(stored)}.", options)
            assert wire.call("GET", "same0") == value
            if how == "FLUSHALL":
                assert wire.call("FLUSHALL") == b"OK"
            elif how != "expiry":
                for begin in range(0, len(stored), 100):
                    part = stored[begin : begin + 100]
                    assert wire.call(how, *part) == len(part)
            harness.wait_until(lambda: is_taken(wire), f"writes go on after {how}")
            assert fields(wire)["aof_last_write_status"] == "ok"
        wire.call("SET", "last", "v")
    restart(server)
    with server.connect() as wire:
        assert wire.call("GET", "last") == b"v" and wire.call("GET", "same0") is None


@pytest.mark.full
def test_removals_make_room_after_a_command_that_spans_many_segments(start, tmp_path):
    """An MSET longer than the rest of `disk-size` took the segments that are reserved for cleaning
    and for removals: `DEL` was refused for ever, also after a restart."""
    folder = tmp_path / "data"
    server = start("--disk-size", "256mb", "--wal-size", "512mb", dir=folder, memory="1gb", level="buffered")
    big = [part for n in range(31) for part in (f"big{n}", bytes(1 << 20))]

    def listed():
        return int(server.info("persistence")["duramen_segments_listed"])

    with server.connect() as wire:
        keys = 0
        while listed() < 116:
            step = range(keys, keys + 1000)
            assert wire.pipeline([("SET", f"k{n}", b"v" * 4000) for n in step]) == [b"OK"] * 1000
            keys += 1000
        assert "the disk is full" in str(wire.pipeline([("MSET", *big)])[0])
        gone = random.Random(1).sample(range(keys), keys * 9 // 10)
        for start_at in range(0, len(gone), 500):
            some = gone[start_at : start_at + 500]
            assert wire.pipeline([("DEL", f"k{n}") for n in some]) == [1] * len(some)
        harness.wait_until(lambda: wire.pipeline([("MSET", *big)]) == [b"OK"], "there is room again")


@pytest.mark.parametrize("command", [("EXPIRE", "100000"), ("GETEX", "EX", "100000")])
@pytest.mark.full
def test_removals_make_room_after_changes_of_expiry(start, tmp_path, command):
    """EXPIRE and GETEX of scattered keys, on a full disk, took the space that is reserved for
    removals: from then on every DEL was refused."""
    server = start("--disk-size", "128mb", dir=tmp_path / "data", memory="1gb", threads=2, level="buffered")
    name, *rest = command
    with server.connect() as wire:
        stored, refused = [], 0
        while refused < 200:
            keys = [b"k%d" % n for n in range(len(stored), len(stored) + 200)]
            replies = wire.pipeline([("SET", key, b"x" * 2000) for key in keys])
            stored += [key for key, reply in zip(keys, replies) if reply == b"OK"]
            refused += sum(reply != b"OK" for reply in replies)
        random.Random(3).shuffle(stored)
        for at in range(0, len(stored), 10):
            replies = wire.pipeline([(name, key, *rest) for key in stored[at : at + 10]])
            if any("disk is full" in str(reply) for reply in replies):
                break
        replies = wire.pipeline([("DEL", key) for key in stored[:2500]])
        assert replies == [1] * len(replies), collections.Counter(map(str, replies))


def test_database_0_keeps_its_table(durable):
    """A table called `db0` was taken for that of database 0 after a restart: its data could not be reached. After SWAPDB 0 1
    its table could be dropped: new clients were refused from then on."""
    server = durable()
    with server.connect() as wire:
        wire.call("SET", "k", "v")
        assert "is kept" in str(wire.pipeline([("DURAMEN.TABLE", "CREATE", "db0")])[0])
        assert wire.pipeline([("SELECT", 1), ("SET", "one", "1"), ("SELECT", 0), ("SWAPDB", 0, 1)])[-1] == b"OK"
        assert "cannot be dropped" in str(wire.pipeline([("DURAMEN.TABLE", "DROP", "db1")])[0])
    restart(server)
    with server.connect() as wire:
        assert wire.call("GET", "one") == b"1"
        assert wire.pipeline([("SELECT", 1), ("GET", "k")])[-1] == b"v"


@pytest.mark.parametrize("key_bytes, value_bytes, depth", [(1000, 0, 1), (1000, 0, 50), (16, 100, 500), (30_000, 0, 5)])
@pytest.mark.full
def test_scattered_removals_of_small_objects_make_room(start, tmp_path, key_bytes, value_bytes, depth):
    """A tombstone of an object without a value is as long as the object. Scattered `DEL`s filled
    the reserve for removals before any few segments had enough dead bytes for a pass to free one:
    from then on every `DEL` was refused."""
    server = start("--disk-size", "128mb", dir=tmp_path / "data", memory="1gb", threads=2, level="buffered")
    with server.connect() as wire:
        stored, refused = [], 0
        while not refused:
            keys = [(b"%09d" % n).ljust(key_bytes, b"k") for n in range(len(stored), len(stored) + 200)]
            replies = wire.pipeline([("SET", key, b"v" * value_bytes) for key in keys])
            stored += [key for key, reply in zip(keys, replies) if reply == b"OK"]
            refused += sum(reply != b"OK" for reply in replies)
        random.Random(1).shuffle(stored)
        part = stored[: 20_000 if depth == 1 else len(stored) // 2]
        for at in range(0, len(part), depth):
            some = part[at : at + depth]
            assert wire.pipeline([("DEL", key) for key in some]) == [1] * len(some), f"{at} of {len(stored)}"
        if depth > 1:
            harness.wait_until(lambda: wire.pipeline([("SET", "probe", "v")]) == [b"OK"], "there is room again")


@pytest.mark.full
def test_removals_make_room_on_a_full_disk_after_kills(small_disk, durable):
    """Each restart closed the open segments, so heads took a segment each, and soon none was left
    for a tombstone: DEL returned MISCONF for ever."""
    harness.fill(small_disk, 80 << 20)
    server = durable(dir=small_disk / "data", memory="128mb", level="synced", threads=2)
    chance = random.Random(12)
    stored = {}
    for round_number in range(8):
        with server.connect() as wire:
            for number in range(1000):
                name, value = f"k{chance.randrange(3000)}", chance.randbytes(chance.choice((10, 1000, 100_000)))
                reply = wire.pipeline([("SET", name, value)])[0]
                if reply == b"OK":
                    stored[name] = value
                else:
                    assert "disk is full" in str(reply), reply
            for name in chance.sample(sorted(stored), 10):
                assert wire.call("DEL", name) == 1
                del stored[name]
        restart(server)
        with server.connect() as wire:
            assert wire.call("DBSIZE") == len(stored)
            found = wire.pipeline([("GET", name) for name in stored])
            assert found == list(stored.values())
    with server.connect() as wire:
        for name in sorted(stored):
            assert wire.call("DEL", name) == 1
        harness.wait_until(lambda: wire.pipeline([("SET", "k", "v")])[0] == b"OK", "writes go on")


def test_a_full_disk_takes_no_memory(small_disk, start):
    """When no frame could be written, data waiting for one was in memory a second time: 121 MB of
    64 MiB."""
    server = start("--wal-size", "64mb", dir=small_disk / "data", memory="64mb", level="memory")
    harness.fill(small_disk, 0)
    budget, count, refused, value = 64 << 20, 0, None, b"v" * 300
    with harness.Resident(server) as resident, server.connect() as wire:
        while refused is None and count * len(value) < budget:
            replies = wire.pipeline([("SET", f"k{count + n}", value) for n in range(20)])
            refused = next((reply for reply in replies if reply != b"OK"), None)
            count += 20
    assert resident.most <= 1.1 * budget + 10_000_000, f"{resident.most / 1e6:.0f} MB resident"
    assert refused is not None and "disk is full" in str(refused), refused


@pytest.mark.full
def test_a_failed_save_leaves_nothing_and_keeps_the_last_one(small_disk, durable, tmp_path):
    """`dump.new` stayed, and took the room that the server's own log needed."""
    server = durable("--snapshot-dir", small_disk / "saves")
    with server.connect() as wire:
        wire.call("SET", "k", "first")
        assert wire.call("SAVE") == b"OK"
        ballast = harness.fill(small_disk, 4 << 20)
        wire.call("SET", "big", b"x" * 1_000_000)
        with pytest.raises(ErrorReply):
            wire.call("SAVE")
        assert [path.name for path in (small_disk / "saves").iterdir()] == ["dump"]
        ballast.unlink()
        assert wire.call("SAVE") == b"OK"
        # The next start removes the remains of a killed one.
        shutil.copytree(small_disk / "saves" / "dump", small_disk / "saves" / "dump.new")
    restart(server)
    assert [path.name for path in (small_disk / "saves").iterdir()] == ["dump"]


@pytest.mark.parametrize("name", ["dump.new", "dump", "dump.old"])
def test_a_save_never_removes_what_is_no_snapshot(durable, tmp_path, name):
    """SAVE removed whole directories of these names under any snapshot-dir."""
    taken = tmp_path / "saves" / name
    taken.mkdir(parents=True)
    (taken / "mine").write_text("precious")
    server = durable("--snapshot-dir", tmp_path / "saves")
    with server.connect() as wire:
        wire.call("SET", "k", "v")
        if name == "dump.old":
            assert wire.call("SAVE") == b"OK"
        else:
            with pytest.raises(ErrorReply, match="mine"):
                wire.call("SAVE")
    assert (taken / "mine").read_text() == "precious"


def test_a_save_never_replaces_data_of_a_server(durable, tmp_path):
    """A server served its own last snapshot in place. SAVE gave its live directory another name,
    put the new snapshot there, and the next start removed what was acknowledged since."""
    (tmp_path / "dump").mkdir()
    server = durable("--snapshot-dir", tmp_path, dir=tmp_path / "dump")
    with server.connect() as wire:
        wire.call("SET", "k", "v")
        with pytest.raises(ErrorReply, match="data directory of a server"):
            wire.call("SAVE")
        wire.call("BGSAVE")
        harness.wait_until(lambda: b"rdb_bgsave_in_progress:0" in wire.call("INFO", "persistence"), "the snapshot ends")
        wire.call("SET", "later", "v")
    restart(server)
    with server.connect() as wire:
        assert wire.call("MGET", "k", "later") == [b"v", b"v"]


def test_a_copy_of_a_snapshot_stays(durable, tmp_path):
    """A start and a SAVE removed a directory that an operator had named `dump.old`."""
    server = durable("--snapshot-dir", tmp_path / "saves")
    with server.connect() as wire:
        wire.call("SET", "k", "v")
        assert wire.call("SAVE") == b"OK"
        shutil.copytree(tmp_path / "saves" / "dump", tmp_path / "saves" / "dump.old")
        assert wire.call("SAVE") == b"OK"
    restart(server)
    assert (tmp_path / "saves" / "dump.old" / "frames").exists()


def test_a_file_size_limit_counts_as_a_full_disk(durable, tmp_path):
    """SIGXFSZ ended the server."""
    server = durable()
    limit = (tmp_path / "data" / "frames").stat().st_size
    resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
    with server.connect() as wire:
        replies = [wire.pipeline([("SET", f"k{n}", b"x" * 500_000)])[0] for n in range(80)]
        refused = [reply for reply in replies if reply != b"OK"]
        assert refused and "disk is full" in str(refused[0]), refused[:1]
        resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY,) * 2)
        harness.wait_until(lambda: wire.pipeline([("SET", "k", "v")])[0] == b"OK", "writes go on without the limit")


def fail_a_turn(server, before, commands):
    """A connection all of whose `commands` ran in one turn whose commit failed.

    A commit of the server itself sometimes meets the full disk first. The commands that write are
    then refused at once, and the others are answered: that connection is none that is wanted here.
    """
    no_limit = (resource.RLIM_INFINITY,) * 2
    for _ in range(20):
        wire = server.connect()
        for command in before:
            wire.call(*command)
        resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE, (4096, resource.RLIM_INFINITY))
        wire.send(b"".join(encode(*command) for command in commands))
        replies = []
        for _ in commands:
            try:
                replies.append(wire.reply())
            except ErrorReply as error:
                assert "disk is full" in str(error)
        if not replies:
            return wire
        wire.close()
        resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE, no_limit)
        with server.connect() as other:
            harness.wait_until(lambda: other.pipeline([("SET", "k", "1")])[0] == b"OK", "writes go on")
    raise AssertionError(f"no turn of {commands} failed as a whole")


@pytest.mark.parametrize(
    ("before", "commands"),
    [
        ([], [("SELECT", 1), ("SET", "x", 1)]),
        # The first SELECT of a database creates its table.
        ([], [("SELECT", 7)]),
        ([], [("SET", "x", 1), ("MULTI",)]),
        ([], [("SET", "x", 1), ("HELLO", 3)]),
        ([], [("SET", "x", 1), ("MONITOR",)]),
        # It was in a transaction before, and is in one afterwards: in another one.
        ([("MULTI",), ("SET", "k", "v")], [("EXEC",), ("MULTI",)]),
    ],
)
def test_a_connection_whose_state_changed_in_a_failed_turn_is_closed(durable, before, commands):
    """Its client got an error for SELECT, and its next write went to the other database; after MULTI,
    the next reply was `QUEUED`."""
    server = durable()
    with fail_a_turn(server, before, commands) as wire, pytest.raises(Closed):
        wire.call("SET", "k", "2")


def test_a_client_whose_state_is_as_before_stays_after_a_failed_turn(durable):
    server = durable()
    with server.connect() as wire:
        assert wire.call("MULTI") == b"OK" and wire.call("SET", "k", "v") == b"QUEUED"
        resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE, (4096, resource.RLIM_INFINITY))
        for command in [("EXEC",), ("SET", "k", "v")]:
            with pytest.raises(ErrorReply, match="disk is full"):
                wire.call(*command)
        assert wire.call("PING") == b"PONG"
        resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY,) * 2)
        harness.wait_until(lambda: wire.pipeline([("SET", "k", "v")])[0] == b"OK", "writes go on")


def test_a_failed_save_is_never_answered_ok(durable):
    """One that failed before its client's thread had noted the wait was answered OK: 2 in 1,000."""
    server = durable(level="memory")
    with server.connect() as wire:
        wire.call("CONFIG", "SET", "snapshot-dir", "/etc/passwd/x")
        replies = [wire.pipeline([("SAVE",)])[0] for _ in range(1_000)]
    assert b"OK" not in replies


# redis-py.


def test_redis_py_sees_the_levels(durable):
    redis = pytest.importorskip("redis")
    server = durable()
    client = redis.Redis(port=server.port, decode_responses=True)
    assert client.set("k", "v")
    assert client.execute_command("DURAMEN.WRITE", "k", "w", "LEVEL", "buffered")[1] == "buffered"
    assert client.info("persistence")["aof_enabled"] == 1
    assert client.config_get("appendonly") == {"appendonly": "yes"}
    assert client.wait(0, 0) == 0
    assert client.execute_command("WAITAOF", 1, 0, 0) == [1, 0]
    with client.pipeline(transaction=True) as pipe:
        pipe.set("a", 1).incr("a").get("a")
        assert pipe.execute() == [True, 2, "2"]
    assert client.bgsave()
    server.kill()
    server.start()
    assert client.get("a") == "2" and client.get("k") == "w"


# Offline tools.


def offline(*arguments, code=0):
    return harness.duramen(*arguments, code=code).stdout


@pytest.mark.full
def test_fsck_finds_nothing_after_a_kill_and_writes_nothing(durable, tmp_path):
    server = durable()
    with server.connect() as wire:
        wire.load([b"k%d" % n for n in range(3000)], b"x" * 500)
        wire.pipeline([("DEL", f"k{n}") for n in range(0, 3000, 3)])
        assert "in use" in offline_error("fsck", tmp_path / "data")
    server.kill()
    before = content(tmp_path / "data")
    assert offline("fsck", tmp_path / "data").splitlines()[-1] == "sound"
    report = json.loads(offline("fsck", "--json", tmp_path / "data"))
    assert report["sound"] and report["problems"] == [] and report["objects"] >= 3000 and report["tombstones"] >= 1000
    lines = offline("log", "dump", tmp_path / "data").splitlines()
    assert any(" object table 0 key k7 " in line for line in lines)
    assert any(" tombstone table 0 key k3 " in line for line in lines)
    entries = [json.loads(line) for line in offline("log", "dump", "--json", tmp_path / "data").splitlines()]
    assert {"superblock", "commit", "segment", "entry", "control"} <= {key for entry in entries for key in entry}
    only = offline("log", "dump", tmp_path / "data" / "superblock").splitlines()
    assert len(only) == 2 and all(line.startswith("superblock") for line in only)
    assert content(tmp_path / "data") == before


def flip_in_k7777(frames, bits):
    """Flips bits of one byte of the value of `k7777`."""
    data = bytearray(frames.read_bytes())
    data[data.rindex(b"k7777x") + 100] ^= bits
    frames.write_bytes(data)


def stopped_with_values(durable):
    """A server that has stopped with 30,000 values of 300 bytes."""
    server = durable()
    with server.connect() as wire:
        wire.load([b"k%d" % n for n in range(30_000)], b"x" * 300)
    assert server.stop() == 0
    return server


def test_fsck_says_where_the_damage_is_and_a_server_refuses_it(durable, tmp_path):
    server, frames = stopped_with_values(durable), tmp_path / "data" / "frames"
    flip_in_k7777(frames, 3)
    said = offline("fsck", tmp_path / "data", code=1)
    assert "problem: " in said and "segment" in said and said.splitlines()[-1].startswith("damaged: ")
    assert json.loads(offline("fsck", "--json", tmp_path / "data", code=1))["sound"] is False
    said = refusal("--dir", tmp_path / "data")
    assert "segment" in said and "fsck" in said
    flip_in_k7777(frames, 3)
    server.start()
    with server.connect() as wire:
        assert wire.call("DBSIZE") == 30_000


def test_one_flipped_bit_is_put_back_and_told(durable, tmp_path):
    """One flipped bit of one value made a server refuse all of its data."""
    server = stopped_with_values(durable)
    flip_in_k7777(tmp_path / "data" / "frames", 4)
    said = offline("fsck", tmp_path / "data")
    assert "had flipped and was put back (key `k7777` of table 0)" in said and said.splitlines()[-1] == "sound"
    server.start()
    with server.connect() as wire:
        assert wire.call("DBSIZE") == 30_000 and wire.call("GET", "k7777") == b"x" * 300


def test_a_server_starts_without_what_was_accepted_as_lost(durable, tmp_path):
    """Damage without another copy: the keys that are lost are named, and no server starts until
    somebody accepts that, by its token."""
    server, data = stopped_with_values(durable), tmp_path / "data"
    flip_in_k7777(data / "frames", 3)
    before = content(data)
    said = offline("accept-loss", data, code=1)
    assert "`k7777` of table 0, version " in said and "table 0 is `default`" in said, said
    assert "--json has them all" in said
    told = json.loads(offline("accept-loss", data, "--json", code=1))
    lost = {claim["key"] for loss in told["losses"] for claim in loss["claims"]}
    assert "k7777" in lost and len(lost) < 20_000 and said.split()[-1] == told["token"] and not told["accepted"]
    assert content(data) == before
    assert "look again" in offline_error("accept-loss", data, "--token", "00000000")
    assert "accept-loss" in refusal("--dir", data)
    assert "accepted" in offline("accept-loss", data, "--token", told["token"])
    server.start()
    with server.connect() as wire:
        assert wire.call("DBSIZE") == 30_000 - len(lost)
        for n in range(0, 30_000, 7):
            assert wire.call("GET", f"k{n}") == (None if f"k{n}" in lost else b"x" * 300), n
    assert server.stop() == 0
    assert offline("accept-loss", data).splitlines() == ["nothing is lost"]


def test_tools_see_a_server_whose_lock_file_is_gone(durable, tmp_path):
    """They locked that file alone, and so worked beside a server without it."""
    durable()
    (tmp_path / "data" / "LOCK").unlink()
    for tool in ("fsck", "accept-loss"):
        assert "in use by a server" in offline_error(tool, tmp_path / "data")


def test_fsck_repairs_into_a_new_directory(durable, tmp_path):
    """A server refused all of a store because of two flipped bits, and no tool recovered the rest."""
    server = durable()
    with server.connect() as wire:
        assert wire.pipeline([("SET", f"k{n}", b"%04d" % n * 500) for n in range(3000)]) == [b"OK"] * 3000
        wire.call("SELECT", 1)
        wire.call("SET", "there", "v")
    assert server.stop() == 0
    frames = tmp_path / "data" / "frames"
    content = bytearray(frames.read_bytes())
    content[content.index(b"1234" * 200) + 100] ^= 3
    frames.write_bytes(content)
    assert "do not match its certificate" in refusal("--dir", tmp_path / "data")
    before = without_lock(tmp_path / "data")
    out = tmp_path / "repaired"
    told = json.loads(offline("fsck", "--repair", tmp_path / "data", "--out", out, "--json", code=1))
    assert told["keys"] == 3000 and len(told["lost"]) == 1 and 0 < told["unproved"] <= 3000
    assert len(pathlib.Path(f"{out}.unproved").read_text().splitlines()) == told["unproved"]
    assert without_lock(tmp_path / "data") == before
    server = durable(dir=out, memory="256mb")
    with server.connect() as wire:
        for n in range(3000):
            assert wire.call("GET", f"k{n}") == (None if n == 1234 else b"%04d" % n * 500)
        wire.call("SELECT", 1)
        assert wire.call("GET", "there") == b"v"


def test_fsck_repairs_into_no_directory_that_holds_something(durable, tmp_path):
    """`--out` could be a store: newer values there were replaced by those of the damaged one, with
    exit code 0."""
    for name in ("one", "other"):
        server = durable(dir=tmp_path / name)
        with server.connect() as wire:
            wire.call("SET", "shared", name)
        assert server.stop() == 0
    other, before = tmp_path / "other", without_lock(tmp_path / "other")
    assert "already holds a store" in offline_error("fsck", "--repair", tmp_path / "one", "--out", other)
    assert without_lock(other) == before
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "letter").write_text("mine")
    said = offline_error("fsck", "--repair", tmp_path / "one", "--out", tmp_path / "full")
    assert "`letter`" in said
    new = tmp_path / "new"
    unfinished = new / ".duramen-repair-unfinished"  # the state after an interrupted repair
    unfinished.mkdir(parents=True)
    (unfinished / "wal").write_bytes(b"x")
    assert "proved" in offline("fsck", "--repair", tmp_path / "one", "--out", new)
    assert not unfinished.exists()
    with durable(dir=new).connect() as wire:
        assert wire.call("GET", "shared") == b"one"


@pytest.mark.parametrize(
    "name, keep, words",
    [
        ("wal", None, "the file `wal` is damaged: it is gone"),
        ("wal", 4096, "the file `wal` is damaged: it has 4096 bytes of "),
        ("frames", None, "the file `frames` is damaged: it is gone"),
        ("frames", 4096, "the file `frames` is damaged: it has 4096 bytes, and its slots alone take "),
        ("superblock", None, "both copies of the superblock are damaged: the file is gone"),
        ("superblock", 100, "both copies of the superblock are damaged: "),
    ],
)
def test_fsck_names_the_file_that_is_short_or_missing(durable, tmp_path, name, keep, words):
    """A deleted `wal` was reported as "cannot look", truncated `frames` as a damaged superblock."""
    server = durable()
    with server.connect() as wire:
        wire.load([b"k%d" % n for n in range(1000)], b"x" * 300)
    assert server.stop() == 0
    file = tmp_path / "data" / name
    if keep is None:
        file.unlink()
    else:
        os.truncate(file, keep)
    said = offline("fsck", tmp_path / "data", code=1).splitlines()
    assert [line for line in said if line.startswith("problem: ")][0].startswith(f"problem: {words}"), said
    assert sum(words in line for line in said) == 1 and said[-1] == "damaged: 1 problem", said
    advice = [line for line in said if line.startswith("to recover: ")][0]
    assert ("fsck --repair" in advice) == (name != "superblock"), said
    if name == "superblock":
        # It proposed `duramen fsck`, and left an empty directory.
        said = offline_error("fsck", "--repair", tmp_path / "data", "--out", tmp_path / "repaired")
        assert "can copy nothing" in said and "snapshot" in said and not (tmp_path / "repaired").exists(), said
    report = json.loads(offline("fsck", "--json", tmp_path / "data", code=1))
    assert words in report["problems"][0], report


def test_there_is_nothing_to_look_at(tmp_path):
    for command in (("fsck",), ("log", "dump")):
        assert str(tmp_path) in offline_error(*command, tmp_path)
        assert "none" in offline_error(*command, tmp_path / "none")


@pytest.mark.parametrize(
    "at, new",
    [(60, b"\xff" * 4), harness.only_full(48, (1 << 40).to_bytes(8, "little")), (48, (2**64 - 4096).to_bytes(8, "little"))],
)
def test_a_forged_superblock_keeps_no_tool_busy(durable, tmp_path, at, new):
    """The checksum is right, and the number of frames or the length of the write-ahead log is absurd:
    the tools read behind the ends of the files for hours."""
    server = durable()
    with server.connect() as wire:
        wire.load([b"k%d" % n for n in range(100)], b"v")
    assert server.stop() == 0
    reseal(tmp_path / "data" / "superblock", at, new)
    began = time.monotonic()
    for command in (("fsck",), ("log", "dump"), ("restore",), ("fsck", "--repair", "--out", tmp_path / "repaired")):
        target = [tmp_path / "restored"] if command == ("restore",) else []
        done = harness.duramen(*command, tmp_path / "data", *target)
        assert done.returncode in (1, 5), done
    assert time.monotonic() - began < harness.PATIENCE_S


def offline_error(*arguments):
    return harness.duramen(*arguments, code=5).stderr


@pytest.mark.parametrize("how", ["FLUSHALL", "SWAPDB", "EXEC of FLUSHALL", "EXEC of SELECT and FLUSHDB", "EXEC of SWAPDB"])
def test_commands_on_other_tables_have_the_levels_of_those(durable, how):
    """A client of a table at level `memory` got OK for FLUSHALL; after `kill -9` the data of the
    durable tables were back."""
    server = durable()
    with server.connect() as wire:
        wire.call("DURAMEN.TABLE", "CREATE", "fast", "LEVEL", "memory")
        assert wire.call("SET", "k", "v") == b"OK"
    with server.connect() as wire:
        wire.call("DURAMEN.USE", "fast")
        commands = {"FLUSHALL": [("FLUSHALL",)], "SWAPDB": [("SWAPDB", "0", "1")]}
        commands["EXEC of FLUSHALL"] = commands["FLUSHALL"]
        commands["EXEC of SWAPDB"] = commands["SWAPDB"]
        commands["EXEC of SELECT and FLUSHDB"] = [("SELECT", "0"), ("FLUSHDB",)]
        if how.startswith("EXEC"):
            wire.pipeline([("MULTI",), *commands[how]])
            assert wire.call("EXEC")[-1] == b"OK"
        else:
            assert wire.call(*commands[how][0]) == b"OK"
        server.kill()
    server = server.start()
    with server.connect() as wire:
        assert wire.call("GET", "k") is None
        if "SWAPDB" in how:
            assert wire.call("SELECT", "1") == b"OK"
            assert wire.call("GET", "k") == b"v"


def test_a_silent_command_replaces_no_reply(server, wire):
    """A silent SAVE that failed put its error in place of the reply of the SET before it."""
    wire.call("CONFIG", "SET", "snapshot-dir", "/proc/none")
    wire.send(encode("SET", "a", "1") + encode("CLIENT", "REPLY", "SKIP") + encode("SAVE") + encode("ECHO", "end"))
    assert [wire.reply(), wire.reply()] == [b"OK", b"end"]
