"""A durable server whose disk hangs: only those clients wait whose replies need the disk. All clients
of these tests are served by one thread."""

import contextlib
import os
import select
import threading
import time
import urllib.error
import urllib.request

import pytest

import harness
from harness import ErrorReply, encode

pytestmark = pytest.mark.duramen


# Far less than a disk hangs here, and more than a busy machine needs.
AT_ONCE_S = 4


def serve(start, place, level):
    return start("--wal-size", "16mb", level=level, dir=place / "data", memory="64mb", threads=1)


def hang(wire):
    """The disk was frozen: lets a commit begin."""
    assert wire.call("SET", "hangs", "v") == b"OK"
    time.sleep(1.5)


def seconds(work):
    began = time.monotonic()
    work()
    return time.monotonic() - began


def has_reply(wire):
    return bool(wire.received[wire.at :]) or bool(select.select([wire.socket], [], [], 0)[0])


def page(server, path):
    with urllib.request.urlopen(f"http://127.0.0.1:{server.admin_port}{path}", timeout=60) as reply:
        assert reply.status == 200
        return reply.read()


def test_figures_and_probes_do_not_wait_for_the_disk(hanging_disk, start):
    """INFO and /metrics waited for the commit in progress: one exporter stopped every client of a
    thread, and /livez."""
    server = serve(start, hanging_disk, "memory")
    with server.connect() as wire, server.connect() as other:
        wire.call("SET", "k", "v")
        with harness.frozen(hanging_disk):
            hang(wire)
            other.send(encode("INFO") + encode("INFO", "persistence"))
            assert seconds(lambda: wire.call("GET", "k")) < AT_ONCE_S
            assert b"duramen_segments_listed" in other.reply() + other.reply()
            assert seconds(lambda: page(server, "/metrics")) < AT_ONCE_S
            assert seconds(lambda: page(server, "/livez")) < AT_ONCE_S


@pytest.mark.full
def test_writes_that_fill_memory_hold_up_nobody_else_for_long(hanging_disk, start):
    """Each write waited 5 s for memory on the thread, one after the other: with twelve writers reads
    waited for a minute."""
    server = serve(start, hanging_disk, "memory")
    with server.connect() as wire:
        wire.call("SET", "k", "v")
        with harness.frozen(hanging_disk):
            hang(wire)
            sets, replies = [("SET", n, b"x" * 1000) for n in range(50)], []
            for _ in range(4_000):  # far more than memory
                if any(isinstance(reply, ErrorReply) for reply in replies):
                    break
                replies = wire.pipeline(sets)
            assert "OOM" in str(replies[-1]), replies[-1]
            done, slowest = threading.Event(), []

            def write(number):
                with server.connect() as mine:
                    while not done.is_set():
                        mine.pipeline([("SET", number, b"x" * 1000)])

            def read():
                slowest.append(max(seconds(lambda: wire.call("GET", "k")) for _ in range(5)))
                done.set()

            harness.in_threads(13, lambda number: write(number) if number < 12 else read())
            # Readers waited for a minute. A busy machine delays twelve writers and the reader.
            assert slowest[0] < 4 * AT_ONCE_S
        harness.wait_until(lambda: wire.pipeline([("SET", "k", "w")])[0] == b"OK", "writes go on")


def test_a_reader_does_not_wait_for_the_commit_of_another_client(hanging_disk, start):
    """A thread that had no reader for a moment made the commits itself."""
    server = serve(start, hanging_disk, "synced")
    with server.connect() as wire, server.connect() as other:
        other.call("PING")
        for n in range(200):
            wire.call("SET", n, "v")
        with harness.frozen(hanging_disk):
            wire.send(encode("SET", "k", "v"))
            time.sleep(1)
            assert seconds(lambda: other.call("GET", "0")) < AT_ONCE_S
        assert wire.reply() == b"OK"


@pytest.mark.parametrize("writers", [1, 20])
@pytest.mark.full
def test_a_new_client_is_served_while_all_others_wait_for_the_disk(hanging_disk, start, writers):
    """A thread whose clients all write commits by itself. The disk hung, and the thread with it: it
    accepted nobody. Twice, because the threads change their roles."""
    server = serve(start, hanging_disk, "synced")
    with contextlib.ExitStack() as stack:
        wires = [stack.enter_context(server.connect()) for _ in range(writers)]
        for n in range(2):
            for wire in wires * 10:
                assert wire.call("SET", "k", n) == b"OK"
            with harness.frozen(hanging_disk):
                for number, wire in enumerate(wires):
                    wire.send(encode("SET", number, n))
                time.sleep(1)
                with server.connect() as new:
                    assert seconds(lambda: new.call("PING")) < AT_ONCE_S
                    assert seconds(lambda: new.call("INFO")) < AT_ONCE_S
                    assert new.call("GET", "k") == str(n).encode()
            assert [wire.reply() for wire in wires] == [b"OK"] * writers
    assert server.stop() == 0


@pytest.mark.parametrize(
    "commands",
    [
        harness.only_full([("SELECT", 7)]),
        harness.only_full([("MULTI",), ("SELECT", 7), ("SET", "k", "w"), ("EXEC",)]),
        [("SWAPDB", 0, 7)],
        harness.only_full([("MOVE", "moved", 7)]),
        harness.only_full([("DURAMEN.TABLE", "CREATE", "t")]),
        harness.only_full([("DURAMEN.TABLE", "DROP", "old")]),
    ],
    ids=lambda commands: commands[-1 if len(commands) == 1 else 1][0].lower(),
)
def test_a_change_of_tables_holds_up_nobody_else(hanging_disk, start, commands):
    """The first SELECT of a database waited on the thread until its table was on disk."""
    server = serve(start, hanging_disk, "memory")
    with server.connect() as wire, server.connect() as other:
        wire.pipeline([("SET", "k", "v"), ("SET", "moved", "v"), ("DURAMEN.TABLE", "CREATE", "old")])
        with harness.frozen(hanging_disk):
            hang(wire)
            other.send(b"".join(encode(*command) for command in commands))
            time.sleep(0.5)
            # While an exchange of databases can still be lost, every reply waits for it.
            if commands[0][0] != "SWAPDB":
                assert seconds(lambda: wire.call("GET", "k")) < AT_ONCE_S
            assert seconds(lambda: page(server, "/livez")) < AT_ONCE_S
        for _ in commands:
            other.reply()  # no error


@pytest.mark.full
def test_an_exchange_of_databases_holds_up_only_their_data(hanging_disk, start):
    """One SWAPDB while the disk hung stopped PING and everything else for all clients, even that of
    a database with itself."""
    server = serve(start, hanging_disk, "synced")
    with server.connect() as wire, server.connect() as other, server.connect() as third, server.connect() as mover:
        for db in (9, 7, 8, 0):
            wire.call("SELECT", db)
            wire.call("SET", "k", db)
        third.call("SELECT", 7)
        with harness.frozen(hanging_disk):
            other.send(encode("SWAPDB", 0, 0))
            assert other.reply() == b"OK"
            other.send(encode("SWAPDB", 7, 8))
            time.sleep(0.5)
            for command in [("PING",), ("GET", "k"), ("INFO",), ("CONFIG", "GET", "maxmemory"), ("CLIENT", "ID")]:
                assert seconds(lambda command=command: wire.call(*command)) < AT_ONCE_S, command
            assert wire.call("GET", "k") == b"0"
            third.send(encode("GET", "k"))
            time.sleep(0.5)
            assert not has_reply(third), "it shows the exchange"
            # A request without data does not wait, nor does one that is only queued.
            assert seconds(lambda: mover.call("MULTI")) < AT_ONCE_S
            for command in [("SELECT", 7), ("SET", "new", "v"), ("COPY", "k", "copied", "DB", 9)]:
                assert mover.call(*command) == b"QUEUED"
            mover.send(encode("EXEC"))
            time.sleep(0.5)
            # A reader of data that COPY took from an exchanged database does.
            wire.call("SELECT", 9)
            wire.send(encode("GET", "copied"))
            time.sleep(0.5)
            assert not has_reply(wire), "it shows the exchange"
        assert other.reply() == b"OK"
        assert third.reply() == b"8"
        assert mover.reply() == [b"OK", b"OK", 1]
        assert wire.reply() == b"8"


def test_a_rewrite_of_the_configuration_waits_alone_for_its_disk(hanging_disk, start, tmp_path):
    """CONFIG REWRITE held its thread while the file's disk hung, and the next CONFIG SET the others."""
    config = hanging_disk / "duramen.toml"
    config.write_text("maxclients = 1000\n")
    server = start("--config", config, threads=1)
    with server.connect() as wire, server.connect() as other:
        assert wire.call("CONFIG", "SET", "maxclients", 1001) == b"OK"
        with harness.frozen(hanging_disk):
            wire.send(encode("CONFIG", "REWRITE"))
            time.sleep(0.5)
            for command in [("PING",), ("CONFIG", "SET", "maxclients", 1002), ("CONFIG", "GET", "maxclients")]:
                assert seconds(lambda command=command: other.call(*command)) < AT_ONCE_S, command
            assert not has_reply(wire)
            # Each request left a thread behind.
            threads = lambda: len(os.listdir(f"/proc/{server.process.pid}/task"))
            before, impatient = threads(), [server.connect() for _ in range(30)]
            for one in impatient:
                one.send(encode("CONFIG", "REWRITE"))
            time.sleep(0.5)
            assert threads() <= before
            for one in impatient[:15]:
                one.close()
        assert wire.reply() == b"OK"
        for one in impatient[15:]:
            assert one.reply() == b"OK"
            one.close()
        assert "maxclients = 1002" in config.read_text(), "the last ones have read it after it was set"
        assert other.call("CONFIG", "REWRITE") == b"OK"
        assert config.read_text() == "maxclients = 1002\n"


def test_a_wait_for_the_disk_is_an_event_of_latency(hanging_disk, start):
    server = serve(start, hanging_disk, "synced")
    with server.connect() as wire:
        wire.call("SET", "k", "v")
        assert wire.call("CONFIG", "SET", "latency-monitor-threshold", "500") == b"OK"
        with harness.frozen(hanging_disk):
            wire.send(encode("SET", "k", "w"))
            time.sleep(2)  # a busy machine needs a part of it to begin the commit
        assert wire.reply() == b"OK"
        found = {name: longest_ms for name, _, _, longest_ms in wire.call("LATENCY", "LATEST")}
        assert 500 <= found[b"aof-fsync-always"] < 60_000


@pytest.mark.full
def test_a_turn_without_replies_is_waited_for_by_the_next(hanging_disk, start):
    """After `CLIENT REPLY OFF`, or SKIP, the wait for a write was forgotten: its message was heard, and
    `CLIENT REPLY ON` answered, before the write was durable."""
    server = serve(start, hanging_disk, "synced")
    with contextlib.ExitStack() as stack:
        first, off, skip, on, subscriber = [stack.enter_context(server.connect()) for _ in range(5)]
        subscriber.call("SUBSCRIBE", "m")
        for wire in (off, on):
            wire.send(encode("CLIENT", "REPLY", "OFF"))
        with harness.frozen(hanging_disk):
            hang_unacknowledged(first)
            off.send(encode("SET", "off", "v"))
            skip.send(encode("CLIENT", "REPLY", "SKIP") + encode("SET", "skip", "v"))
            on.send(encode("SET", "on", "v"))
            time.sleep(0.2)
            for wire in (off, skip):
                wire.send(encode("PUBLISH", "m", "it is written"))
            on.send(encode("CLIENT", "REPLY", "ON"))
            time.sleep(1)
            assert not has_reply(subscriber) and not has_reply(on) and not has_reply(skip)
        assert on.reply() == b"OK"
        assert [subscriber.reply()[2] for _ in range(2)] == [b"it is written"] * 2
        assert on.call("MGET", "off", "skip", "on") == [b"v"] * 3


def hang_unacknowledged(wire):
    """As [hang], at level synced."""
    wire.send(encode("SET", "hangs", "v"))
    time.sleep(1.5)


@pytest.mark.parametrize("walk", ["'keys', '*'", "'dbsize'", "'scan', 0", "'get', KEYS[1]"])
@pytest.mark.full
def test_a_long_script_waits_for_all_that_it_has_seen(hanging_disk, start, walk):
    """That which a slice before the last one had seen was not waited for."""
    server = serve(start, hanging_disk, "synced")
    script = f"local v = redis.call({walk}) local x = 0 for i = 1, 4e6 do x = x + i % 7 end return v"
    with server.connect() as first, server.connect() as writer, server.connect() as wire:
        with harness.frozen(hanging_disk):
            hang_unacknowledged(first)
            writer.send(encode("SET", "k", "v"))
            time.sleep(0.2)
            wire.send(encode("EVAL", script, 1, "k"))
            time.sleep(2)
            assert not has_reply(wire)
        assert wire.reply() in ([b"hangs", b"k"], [b"k", b"hangs"], 2, [b"0", [b"hangs", b"k"]], [b"0", [b"k", b"hangs"]], b"v")


@pytest.mark.full
def test_a_transaction_with_a_script_has_the_level_of_its_beginning(hanging_disk, start):
    server = serve(start, hanging_disk, "synced")
    with server.connect() as first, server.connect() as wire:
        with harness.frozen(hanging_disk):
            hang_unacknowledged(first)
            for request in (("MULTI",), ("SET", "k", "v"), ("EVAL", "return 1", 0), ("CONFIG", "SET", "level", "memory")):
                wire.call(*request)
            wire.send(encode("EXEC"))
            time.sleep(1)
            assert not has_reply(wire)
        assert wire.reply() == [b"OK", 1, b"OK"]


def test_a_disk_that_hangs_shows(hanging_disk, start):
    """No page, figure or alert told that a single server acknowledged nothing."""

    def held_s():
        lines = page(server, "/metrics").decode().splitlines()
        return float(next(line for line in lines if line.startswith("duramen_replies_held_seconds ")).split()[1])

    def why():
        with pytest.raises(urllib.error.HTTPError, match="503") as raised:
            page(server, "/readyz")
        return raised.value.read().decode()

    server = serve(start, hanging_disk, "synced")
    with server.connect() as wire, server.connect() as patient:
        assert (held_s(), page(server, "/readyz").strip()) == (0, b"ok")
        patient.send(encode("WAIT", 1, 0))  # its own wait: no fault of the server
        with harness.frozen(hanging_disk):
            wire.send(encode("SET", "k", "v"))
            harness.wait_until(lambda: held_s() > 3.5, "the reply waits")
            assert "replies wait for the disk since" in why()
        assert wire.reply() == b"OK"
        harness.wait_until(lambda: held_s() == 0, "nothing waits but by its own will")
        assert page(server, "/readyz").strip() == b"ok"
