"""`CONFIG SET maxmemory`: resident memory follows the budget down and up while clients write, and no
value is lost."""

import random
import re
import signal
import threading
import time

import pytest

import harness
from harness import ErrorReply
from test_member import Cluster

pytestmark = pytest.mark.duramen

MIB = 1 << 20
VALUE_BYTES = 1000


def value_of(key, count):
    return b"%b=%d;" % (key, count) + b"v" * VALUE_BYTES


class Writer(threading.Thread):
    """Overwrites its keys in random order, 64 at a time, and knows the last acknowledged value of
    each. A write that was sent and not answered may have been done."""

    def __init__(self, server, number, count, is_cache=False):
        super().__init__(daemon=True)
        self.keys = [b"w%d:%07d" % (number, n) for n in range(count)]
        self.server, self.is_cache = server, is_cache
        self.random = random.Random(number)
        self.acknowledged, self.sent = {}, {}
        self.batches, self.failure, self.refused = 0, None, 0
        self.longest_s = 0
        self.done = threading.Event()

    def write(self, wire, keys):
        for key in keys:
            self.sent[key] = self.acknowledged.get(key, 0) + 1
        began = time.monotonic()
        replies = wire.pipeline([("SET", key, value_of(key, self.sent[key])) for key in keys])
        self.longest_s = max(self.longest_s, time.monotonic() - began)
        for key, reply in zip(keys, replies):
            if reply == b"OK":
                self.acknowledged[key] = self.sent[key]
            elif str(reply).startswith("OOM "):
                self.refused += 1
            else:
                raise AssertionError(reply)
        self.batches += 1

    def load(self):
        with self.server.connect() as wire:
            for at in range(0, len(self.keys), 500):
                self.write(wire, self.keys[at : at + 500])
        return self

    def run(self):
        try:
            with self.server.connect() as wire:
                while not self.done.is_set():
                    self.write(wire, self.random.sample(self.keys, 64))
        except (harness.Closed, OSError):
            pass  # the server was killed
        except Exception as error:
            self.failure = error

    def stop(self):
        self.done.set()
        self.join()
        assert self.failure is None, self.failure

    def check(self, wire):
        """Every key has its last acknowledged value, or the one that was under way."""
        missing = 0
        for at in range(0, len(self.keys), 500):
            some = self.keys[at : at + 500]
            for key, found in zip(some, wire.call("MGET", *some)):
                if found is None and self.is_cache:
                    missing += 1
                    continue
                allowed = {value_of(key, count) for count in (self.acknowledged.get(key, 0), self.sent.get(key, 0)) if count}
                assert found in allowed, (key, found and found[:40], self.acknowledged.get(key), self.sent.get(key))
        return missing


def set_memory(server, size):
    with server.connect() as wire:
        assert wire.call("CONFIG", "SET", "maxmemory", size) == b"OK"


def refused(server, size):
    with server.connect() as wire, pytest.raises(ErrorReply) as error:
        wire.call("CONFIG", "SET", "maxmemory", size)
    return str(error.value)


def bound(mib):
    """The most that a process takes with this `memory`."""
    return 1.1 * mib * MIB + 10_000_000


def wait_for_fall(server, mib):
    def state():
        return f"{server.resident_bytes() / MIB:.0f} MiB are resident of {mib}: {server.resident_kinds()}"

    try:
        harness.wait_until(
            lambda: server.resident_bytes() <= bound(mib) and int(server.info("memory")["duramen_excess_bytes"]) == 0,
            f"memory falls to {mib} MiB",
            patience_s=3 * harness.PATIENCE_S,
            pause_s=0.05,
        )
    except AssertionError:
        print(state(), server.info())
        raise


@pytest.mark.parametrize("durable", [False, True])
@pytest.mark.full
def test_resident_memory_follows_down_and_up_under_load(start, tmp_path, durable):
    options = {"level": "buffered", "dir": tmp_path / "data"} if durable else {}
    server = start(memory="512mb", threads=2, **options)
    writers = [Writer(server, number, 40_000).load() for number in range(3)]  # 120 MB
    for writer in writers:
        writer.start()
    try:
        for low in (176, 192, 160):
            harness.wait_until(lambda low=low: server.resident_bytes() > bound(low) + 16 * MIB, "memory rises", pause_s=0.05)
            high = server.resident_bytes()
            set_memory(server, f"{low}mb")
            assert int(server.info("memory")["maxmemory"]) == low * MIB
            wait_for_fall(server, low)
            before = [writer.batches for writer in writers]
            harness.wait_until(
                lambda before=before: all(w.batches > n + 200 for w, n in zip(writers, before)), "writers go on"
            )
            now = server.resident_bytes()
            assert now <= bound(low), f"{now / MIB:.0f} MiB of {low} MiB: {server.resident_kinds()}"
            print(f"{high / MIB:.0f} MiB resident, then {now / MIB:.0f} of {low}")
            set_memory(server, "512mb")
    finally:
        for writer in writers:
            writer.stop()
    with server.connect() as wire:
        for writer in writers:
            assert writer.refused == 0, f"{writer.refused} writes were refused"
            writer.check(wire)
    print("longest batch:", max(writer.longest_s for writer in writers))


def test_data_that_does_not_fit_is_a_refusal(start):
    server = start(memory="256mb", threads=2)
    writer = Writer(server, 1, 120_000).load()
    with server.connect() as wire:
        wire.call("SET", "early", "v" * 1000)
    text = refused(server, "96mb")
    assert "96mb does not hold" in text and "live data" in text, text
    with server.connect() as wire:
        assert wire.call("CONFIG", "GET", "maxmemory") == [b"maxmemory", b"%d" % (256 * MIB)]
    least = re.search(r"at least (\d+)mb", text)[1]
    set_memory(server, f"{least}mb")
    wait_for_fall(server, int(least))
    with server.connect() as wire:
        # The lowered budget holds little more. A full store still deletes, and a higher budget ends
        # the refusals.
        replies = wire.pipeline([("SET", b"more:%d" % n, b"v" * 1000) for n in range(20_000)])
        assert any(str(reply).startswith("OOM ") for reply in replies)
        assert wire.call("DEL", "early") == 1
        writer.check(wire)
        set_memory(server, "256mb")
        wire.load([b"more:%d" % n for n in range(60_000)], b"v" * 1000)
        writer.check(wire)


def test_the_bounds_of_the_budget_are_stated(start):
    server = start(memory="96mb")
    assert "minimum of 64mb" in refused(server, "1mb")
    assert "minimum of 64mb" in refused(server, 0)
    text = refused(server, "128mb")
    assert "memory-max (96mb)" in text and "start" in text, text
    set_memory(server, "64mb")
    set_memory(server, "96mb")


@pytest.mark.full
def test_a_server_made_for_more_rises_above_its_beginning(start, tmp_path):
    server = start("--memory-max", "256mb", memory="64mb", level="buffered", dir=tmp_path / "data")
    keys = [b"k%d" % n for n in range(150_000)]
    with server.connect() as wire, pytest.raises(AssertionError, match="OOM"):
        wire.load(keys, b"v" * 1000)
    with server.connect() as wire:
        set_memory(server, "256mb")
        wire.load(keys, b"w" * 1000)
        assert wire.call("CONFIG", "GET", "memory-max") == [b"memory-max", b"%d" % (256 * MIB)]
        assert server.rss_bytes() > 150 * MIB
        assert "memory-max (256mb)" in refused(server, "257mb")
        assert "does not hold" in refused(server, "64mb")
        for at in range(0, len(keys), 1000):
            assert wire.call("MGET", *keys[at : at + 1000]) == [b"w" * 1000] * len(keys[at : at + 1000])


@pytest.mark.full
def test_a_writer_that_was_refused_goes_on_when_the_budget_rises(start):
    server = start(memory="256mb")
    set_memory(server, "64mb")
    writer = Writer(server, 1, 100_000)
    writer.load()
    assert writer.refused > 0
    set_memory(server, "256mb")
    writer.refused = 0
    writer.load()
    assert writer.refused == 0
    with server.connect() as wire:
        writer.check(wire)


@pytest.mark.full
def test_a_cache_evicts_down_to_the_budget(start):
    server = start(memory="256mb", threads=2, mode="cache")
    writers = [Writer(server, number, 150_000, is_cache=True).load() for number in range(2)]
    for writer in writers:
        writer.start()
    try:
        harness.wait_until(lambda: server.resident_bytes() > 200 * MIB, "memory is used")
        set_memory(server, "80mb")
        wait_for_fall(server, 80)
        before = writers[0].batches
        harness.wait_until(lambda: writers[0].batches > before + 300, "writers go on")
        assert server.resident_bytes() <= bound(80)
        with server.connect() as wire:
            assert 30_000 < wire.call("DBSIZE") < 80_000
        set_memory(server, "256mb")
        harness.wait_until(lambda: server.resident_bytes() > 200 * MIB, "memory is used again")
    finally:
        for writer in writers:
            writer.stop()
    with server.connect() as wire:
        for writer in writers:
            assert writer.refused == 0
            writer.check(wire)


@pytest.mark.full
def test_segments_go_to_flash_for_a_lower_budget(start, tmp_path):
    flash = ("--flash-file", tmp_path / "flash", "--flash-size", "512mb")
    server = start(*flash, memory="256mb", threads=2)
    writers = [Writer(server, number, 60_000).load() for number in range(2)]  # 120 MB
    used = server.info()
    assert int(used["duramen_flash_used_bytes"]) < 64 * MIB, used
    for writer in writers:
        writer.start()
    try:
        set_memory(server, "96mb")
        wait_for_fall(server, 96)
        before = writers[0].batches
        harness.wait_until(lambda: writers[0].batches > before + 50, "writers go on")
        assert server.resident_bytes() <= bound(96)
        assert int(server.info()["duramen_flash_used_bytes"]) > 32 * MIB
        set_memory(server, "256mb")
        before = writers[0].batches
        harness.wait_until(lambda: writers[0].batches > before + 50, "writers go on")
    finally:
        for writer in writers:
            writer.stop()
    with server.connect() as wire:
        for writer in writers:
            assert writer.refused == 0
            writer.check(wire)


@pytest.mark.full
def test_a_kill_while_memory_falls_loses_nothing(start, tmp_path):
    """The budget of the next start is that of its settings."""
    server = start(memory="384mb", threads=2, level="buffered", dir=tmp_path / "data")
    writers = [Writer(server, number, 40_000).load() for number in range(2)]
    for pause_s in (0, 0.02, 0.3):
        for writer in writers:
            writer.start()
        harness.wait_until(lambda: server.resident_bytes() > 180 * MIB, "memory rises")
        set_memory(server, "128mb")
        time.sleep(pause_s)
        server.kill()
        for writer in writers:
            writer.stop()
        server.start()
        again = []
        with server.connect() as wire:
            assert wire.call("CONFIG", "GET", "maxmemory") == [b"maxmemory", b"%d" % (384 * MIB)]
            for number, writer in enumerate(writers):
                writer.check(wire)
                again.append(Writer(server, number, 40_000).load())
        writers = again


def test_changes_at_the_same_time(start):
    server = start(memory="256mb", threads=2)
    writer = Writer(server, 1, 40_000).load()
    writer.start()
    sizes = (96, 128, 160, 256)

    def change(number):
        with server.connect() as wire:
            for n in range(100):
                assert wire.call("CONFIG", "SET", "maxmemory", f"{sizes[(n + number) % 4]}mb") == b"OK"

    harness.in_threads(4, change)
    now = int(server.info("memory")["maxmemory"]) // MIB
    assert now in sizes
    wait_for_fall(server, now)
    # In a transaction too.
    with server.connect() as wire:
        wire.pipeline([("MULTI",), ("CONFIG", "SET", "maxmemory", "96mb"), ("SET", "k", "v")])
        assert wire.call("EXEC") == [b"OK", b"OK"]
        wait_for_fall(server, 96)
        writer.stop()
        assert writer.refused == 0
        writer.check(wire)


@pytest.mark.full
def test_a_change_during_loading_is_refused(start, tmp_path):
    server = start(memory="512mb", threads=2, level="memory", dir=tmp_path / "data")
    with server.connect() as wire:
        wire.load([b"k%d" % n for n in range(300_000)], b"v" * 1000)
    # On a busy machine the question may come when all is loaded; but not each time.
    for _ in range(10):
        assert server.stop() == 0
        port, texts = server.port, []

        def ask(port=port, texts=texts):
            deadline = time.monotonic() + harness.PATIENCE_S
            while not texts and time.monotonic() < deadline:
                try:
                    with harness.Wire(port) as wire:
                        texts.append(wire.pipeline([("CONFIG", "SET", "maxmemory", "480mb")])[0])
                except (OSError, harness.Closed):
                    time.sleep(0.001)

        asking = threading.Thread(target=ask)
        asking.start()
        server.start()
        asking.join()
        if texts != [b"OK"]:
            break
    assert "load" in str(texts[0]).lower(), texts
    set_memory(server, "480mb")
    with server.connect() as wire:
        assert wire.call("DBSIZE") == 300_000


class FromFile(harness.Duramen):
    """A server whose `memory` is in its file alone."""

    def command(self):
        command = super().command()
        at = command.index("--memory")
        return [*command[:at], *command[at + 2 :]]


def test_the_file_is_read_again_and_written(tmp_path):
    path = tmp_path / "duramen.toml"
    path.write_text('memory = "128mb"\nmemory-max = "256mb"\n')
    with FromFile(tmp_path, "--config", path) as server, server.connect() as wire:

        def memory():
            return int(wire.call("CONFIG", "GET", "memory")[1]) // MIB

        assert memory() == 128
        path.write_text('memory = "192mb"\nmemory-max = "256mb"\n')
        server.process.send_signal(signal.SIGHUP)
        harness.wait_until(lambda: memory() == 192, "the file is read again")
        # A value that the running server cannot have changes nothing, and the log says why.
        path.write_text('memory = "300mb"\nmaxclients = 77\n')
        server.process.send_signal(signal.SIGHUP)
        harness.wait_until(lambda: "memory (300mb) is above memory-max" in server.log(), "it is refused")
        assert memory() == 192 and wire.call("CONFIG", "GET", "maxclients")[1] != b"77"
        path.write_text('memory = "192mb"\nmemory-max = "256mb"\n')
        assert wire.call("CONFIG", "SET", "maxmemory", "160mb", "timeout", 99) == b"OK"
        assert wire.call("CONFIG", "REWRITE") == b"OK"
        text = path.read_text()
        assert str(160 * MIB) in text or "160mb" in text, text
        # All of it or nothing.
        with pytest.raises(ErrorReply, match="memory-max"):
            wire.call("CONFIG", "SET", "timeout", 11, "maxmemory", "512mb")
        assert wire.call("CONFIG", "GET", "timeout") == [b"timeout", b"99"]


@pytest.mark.full
def test_a_member_of_a_cluster_follows(tmp_path):
    cluster = Cluster(tmp_path, members=3, memory="256mb", threads=2)
    writer = None
    try:
        assert cluster.call("SET", "{a}", "v") == b"OK"
        owner = next(member for member in cluster.members if owns(member, "{a}"))
        writer = Writer(owner, 1, 40_000)
        writer.keys = [b"{a}%d" % n for n in range(40_000)]
        writer.load().start()
        harness.wait_until(lambda: committed(owner) > 110 * MIB, "memory rises")
        set_memory(owner, "96mb")
        harness.wait_until(lambda: committed(owner) <= 96 * MIB, "memory falls", patience_s=180)
        before = writer.batches
        harness.wait_until(lambda: writer.batches > before + 50, "writers go on")
        assert committed(owner) <= 96 * MIB
        set_memory(owner, "256mb")
        harness.wait_until(lambda: committed(owner) > 110 * MIB, "memory rises again")
        writer.stop()
        assert writer.refused == 0
        with owner.connect() as wire:
            writer.check(wire)
    except BaseException:
        cluster.explain()
        raise
    finally:
        if writer:
            writer.done.set()
        cluster.close()


def owns(member, key):
    with member.connect() as wire:
        return not isinstance(wire.pipeline([("GET", key)])[0], ErrorReply)


def committed(server):
    return int(server.info("memory")["duramen_committed_bytes"])
