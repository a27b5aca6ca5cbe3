"""The memory limit, the behaviour at it, and memory that is returned to the system."""

import random
import threading
import time

import pytest

import harness
from harness import ErrorReply, encode, in_threads

MIB = 1 << 20


def keys(prefix, count, start=0):
    return [b"%s:%010d" % (prefix, i) for i in range(start, start + count)]


def fill(wire, value, prefix=b"fill", options=(), most=float("inf")):
    """SETs new keys until the server reports that memory is full, or there are `most`; returns the
    stored keys."""
    stored = []
    while len(stored) < most:
        some = keys(prefix, 200, len(stored))
        for key, reply in zip(some, wire.pipeline([("SET", key, value, *options) for key in some])):
            if isinstance(reply, ErrorReply):
                assert str(reply).startswith("OOM "), reply
                return stored
            stored.append(key)
    return stored


def remove(wire, some):
    for start in range(0, len(some), 1000):
        assert wire.call("DEL", *some[start : start + 1000]) == len(some[start : start + 1000])


@pytest.mark.parametrize("value_bytes", [harness.only_full(100), 1000, 10_000, 500_000])
def test_store_mode_refuses_and_goes_on(start, value_bytes):
    server = start(memory="96mb")
    value = b"v" * value_bytes
    with server.connect() as wire:
        stored = fill(wire, value)
        if not harness.PEER:
            live = len(stored) * (value_bytes + len(stored[0]))
            # Headers and index take their part of small objects.
            assert live >= (0.6 if value_bytes < 1000 else 0.8) * 96 * MIB, f"full with {live / MIB:.0f} MiB live"
        # Nothing was lost, and reads continue.
        for begin in range(0, len(stored), 500):
            some = stored[begin : begin + 500]
            assert wire.call("MGET", *some) == [value] * len(some)
        # The cleaner may still gain a segment or two after the first refusal; not more than that.
        with pytest.raises(ErrorReply, match="^OOM "):
            for key in keys(b"more", max(1000, 8 * MIB // value_bytes)):
                wire.call("SET", key, value)
        # Deletes continue, and then writes do.
        remove(wire, stored[::2])
        kept = stored[1::2]

        def writes():
            replies = wire.pipeline([("SET", key, value) for key in keys(b"new", max(1, len(kept) // 2))])
            return all(reply == b"OK" for reply in replies)

        harness.wait_until(writes, "writes work again after half of the data was deleted")
        assert wire.call("MGET", *kept[:500]) == [value] * len(kept[:500])


def test_overwriting_a_full_store_goes_on(start):
    """Live data does not grow, so the cleaner can always make room."""
    server = start(memory="96mb")
    with server.connect() as wire:
        stored = fill(wire, b"v" * 1000)
        remove(wire, stored[: len(stored) // 20])
        kept = stored[len(stored) // 20 :]
        for round_number in range(3):
            value = b"%01000d" % round_number
            for begin in range(0, len(kept), 500):
                replies = wire.pipeline([("SET", key, value) for key in kept[begin : begin + 500]])
                assert replies == [b"OK"] * len(replies)
        assert wire.call("MGET", *kept[:1000]) == [value] * len(kept[:1000])


def test_deletes_succeed_when_nothing_fits(start):
    server = start(memory="96mb")
    with server.connect() as wire:
        stored = fill(wire, b"v" * 500)
        remove(wire, stored)
        assert wire.call("DBSIZE") == 0


@pytest.mark.duramen
def test_out_of_memory_does_not_break_a_transaction(start):
    server = start(memory="96mb")
    with server.connect() as wire:
        stored = fill(wire, b"v" * 10_000)
        value = b"w" * MIB
        wire.pipeline([("MULTI",), ("GET", stored[0]), ("SET", "huge", value)])
        try:
            replies = wire.call("EXEC")
        except ErrorReply as error:
            assert str(error).startswith(("OOM ", "EXECABORT ")), error
        else:
            assert replies[0] == b"v" * 10_000
        assert wire.call("DEL", *stored) == len(stored)
        assert wire.call("PING") == b"PONG"


def test_expired_data_makes_room(start):
    server = start(memory="96mb")
    value = b"v" * 1000
    with server.connect() as wire:
        # On a slow machine the first keys expire before memory is full, and it never is.
        life_ms, most = 1500, 96 * MIB // len(value)
        while len(fill(wire, value, b"short", ("PX", life_ms), most)) >= most:
            assert wire.call("FLUSHALL") == b"OK"
            life_ms *= 2

        def room():
            replies = wire.pipeline([("SET", key, value) for key in keys(b"new", 20_000)])
            return all(reply == b"OK" for reply in replies)

        harness.wait_until(room, "20 MB fit again once the old data has expired")
        assert wire.call("GET", b"short:0000000000") is None


@pytest.mark.duramen
def test_cache_mode_evicts_what_is_cold(start):
    server = start(memory="96mb", mode="cache")
    value = b"v" * 1000
    hot = keys(b"hot", 1000)
    with server.connect() as wire:
        wire.load(hot, value)
        found = []
        for start_at in range(0, 300_000, 5000):
            wire.load(keys(b"cold", 5000, start_at), value)
            found = [reply is not None for reply in wire.call("MGET", *hot)]
        survivors = sum(found)
        assert survivors >= 950, f"{survivors} of 1000 keys that were read all the time survived"
        # 300 MB went through 96 MB: most of the cold data must be gone, and memory must be used.
        size = wire.call("DBSIZE")
        assert 40_000 < size < 100_000, f"{size} keys in 96 MB"
        assert wire.call("GET", keys(b"cold", 1, 299_999)[0]) == value
    assert server.rss_bytes() < 1.15 * 96 * MIB + 32 * MIB


@pytest.mark.duramen
@pytest.mark.full
def test_rss_follows_deletion(start):
    server = start(memory="1500mb", threads=2)
    value = b"v" * 1000
    everything = keys(b"object", 1_000_000)
    with server.connect() as wire:
        wire.load(everything, value)
        full = server.rss_bytes()
        assert full >= 1_000_000 * 1000
        # One key in ten stays, spread over all segments.
        gone = [key for i, key in enumerate(everything) if i % 10]
        for begin in range(0, len(gone), 1000):
            wire.send(encode("UNLINK", *gone[begin : begin + 1000]))
            assert wire.reply() == len(gone[begin : begin + 1000])
        live = 100_000 * (1000 + len(everything[0]))
        bound = 1.3 * live
        what = f"{bound / MIB:.0f} MiB or less are resident for {live / MIB:.0f} MiB live (full: {full / MIB:.0f})"
        try:
            # A gigabyte is cleaned, by a program with little optimisation.
            harness.wait_until(lambda: server.rss_bytes("RssAnon") <= bound, what, patience_s=5 * harness.PATIENCE_S)
        except AssertionError:
            print(f"resident: {server.rss_bytes() / MIB:.0f} MiB", server.info("duramen"))
            raise
        kept = everything[::10]
        for begin in range(0, len(kept), 1000):
            assert wire.call("MGET", *kept[begin : begin + 1000]) == [value] * 1000


def page_faults(server):
    """Pages that the system has given to the process until now."""
    text = open(f"/proc/{server.process.pid}/stat").read()
    return int(text.rsplit(")", 1)[1].split()[7])


@pytest.mark.duramen
@pytest.mark.parametrize("name", ["GET", "SET"])
def test_large_values_use_the_same_buffers_again(start, name):
    """Each GET of 1 MB mapped new memory, which the system cleared: 245 pages."""
    server = start(memory="64mb")
    large = b"v" * 1_000_000
    request = {"GET": ("GET", "large"), "SET": ("SET", "large", large)}[name]
    with server.connect() as wire:
        assert wire.call("SET", "large", large) == b"OK"
        for _ in range(200):  # until the log has been everywhere
            wire.call(*request)
        before = page_faults(server)
        for _ in range(100):
            wire.call(*request)
        each = (page_faults(server) - before) / 100
        print(f"{name}: {each} page faults each")
        assert each < 40, f"{each} page faults for each {name}"


@pytest.mark.duramen
def test_resident_memory_stays_below_the_budget(start):
    """Overwriting with changing sizes fragments an ordinary allocator."""
    server = start(memory="128mb")
    names = keys(b"object", 60_000)
    with server.connect() as wire:
        for value_bytes in (100, 1300, 700, 40, 1300):
            wire.load(names, b"v" * value_bytes)
        assert server.rss_bytes() < 128 * MIB + 32 * MIB
        assert wire.call("DBSIZE") == len(names)


@pytest.mark.duramen
@pytest.mark.parametrize(
    "level, value_bytes, has_dir",
    [
        harness.only_full("memory", 1000, False),
        harness.only_full("memory", 1000, True),
        harness.only_full("buffered", 1000, True),
        ("synced", 1000, True),
        harness.only_full("memory", 100, True),
        harness.only_full("memory", 100_000, True),
    ],
)
def test_the_process_stays_within_a_tenth_above_the_budget(start, tmp_path, level, value_bytes, has_dir):
    """Data waiting for the disk was in memory a second time, and the heap kept freed memory: 495
    MiB of 256, 474 when idle."""
    directory = tmp_path / "data" if has_dir else None
    overwrite_within_the_budget(start, 256, value_bytes, level=level, dir=directory)


@pytest.mark.parametrize("threads", [2, 8])
@pytest.mark.full
def test_a_small_server_keeps_its_budget_beside_snapshots(start, tmp_path, threads):
    """The log buffer and the heap of a server of 64 MiB were more than a tenth of it: 92 MB."""
    more = {"dir": tmp_path / "data", "threads": threads}
    overwrite_within_the_budget(start, 64, 1000, level="buffered", saves=True, **more)


def test_memory_of_clients_that_have_gone_is_given_back(start):
    """The state of WATCH and MULTI is in small pieces. Freed, they stayed resident for ever: 858 MB
    of 60 disconnected clients."""
    server = start(memory="64mb", threads=2)
    watched = [b"%0100d" % n for n in range(20_000)]
    before = server.resident_bytes()
    clients = [server.connect() for _ in range(30)]
    for wire in clients:
        wire.send(b"".join(encode("WATCH", *watched[at : at + 1000]) for at in range(0, len(watched), 1000)))
    for wire in clients:
        assert [wire.reply() for _ in range(20)] == [b"OK"] * 20
    for wire in clients[::2]:
        wire.send(encode("MULTI") + b"".join(encode("SET", key, key) for key in watched[:5000]))
        assert [wire.reply() for _ in range(5001)][-1] == b"QUEUED"
    most = server.resident_bytes()
    assert most > before + 80 * MIB, "it took too little to tell"
    for wire in clients:
        wire.close()
    harness.wait_until(lambda: server.resident_bytes() < before + 16 * MIB, "their memory is given back")


@pytest.mark.full
def test_short_segments_take_what_they_are_charged(start, tmp_path):
    """Each start leaves short segments. A huge page backed all of each while they were loaded: 131
    MB of 64 MiB."""
    server = start(memory="64mb", threads=2, level="buffered", dir=tmp_path / "data")
    for round_number in range(40):
        with server.connect() as wire:
            wire.load(keys(b"%d" % round_number, 100), b"v" * 3000)
        server.kill()
        server.start()
    server.kill()
    server.start()
    with server.connect() as wire:
        assert wire.call("DBSIZE") == 4000
    most = server.rss_bytes("VmHWM")
    assert most < 64 * MIB, f"{most / 1e6:.0f} MB were resident for 12 MB of data"


def overwrite_within_the_budget(start, memory_mib, value_bytes, saves=False, **settings):
    server = start(memory=f"{memory_mib}mb", **{"threads": 2, **settings})
    bound = 1.1 * memory_mib * MIB + 10_000_000
    writers, batch = 4, 64 if value_bytes < 10_000 else 16
    each = memory_mib * MIB // 2 // (value_bytes + 60) // writers
    seconds = 8 if saves else 3

    def work(number):
        """Overwrites its own keys, with a common depth of pipelines."""
        choose = random.Random(number)
        with server.connect() as wire:
            for _ in harness.rounds(seconds, least=3):
                if number == writers:
                    save(wire)
                else:
                    wire.load([b"%d:%08d" % (number, choose.randrange(each)) for _ in range(batch)], b"v" * value_bytes)

    def save(wire):
        assert wire.call("BGSAVE") == b"Background saving started"
        harness.wait_until(lambda: b"rdb_bgsave_in_progress:0" in wire.call("INFO", "persistence"), "the snapshot ends")

    with harness.Resident(server) as resident:
        in_threads(writers + saves, work)
    assert resident.most <= bound, f"{resident.most / 1e6:.1f} MB resident under load: {resident.kinds}"
    harness.wait_until(
        lambda: server.resident_bytes() <= bound,
        f"{bound / 1e6:.0f} MB or less are resident when nothing is asked",
    )


@pytest.mark.full
def test_nothing_is_lost_or_mixed_up_while_the_cleaner_works(start):
    """Several connections overwrite and delete their own keys at high utilization; every value
    names key and round."""
    server = start(memory="96mb", threads=2)
    workers, rounds, each = 4, 6, 8000

    def value(worker, number, round_number):
        text = b"%d:%d:%d;" % (worker, number, round_number)
        return text * (1 + (number * 31 + round_number * 17) % 220)

    wires = [server.connect() for _ in range(workers)]
    current = [{} for _ in range(workers)]
    for round_number in range(rounds):
        for begin in range(0, each, 250):
            batches = []
            for worker, wire in enumerate(wires):
                batch = []
                for number in range(begin, begin + 250):
                    if (number + round_number) % 7 == 0:
                        current[worker].pop(number, None)
                        batch.append(("DEL", f"{worker}/{number}"))
                    else:
                        current[worker][number] = round_number
                        batch.append(("SET", f"{worker}/{number}", value(worker, number, round_number)))
                wire.send(b"".join(encode(*command) for command in batch))
                batches.append(batch)
            for wire, batch in zip(wires, batches):
                for command in batch:
                    reply = wire.reply()
                    assert reply == b"OK" if command[0] == "SET" else reply in (0, 1)
        # Each worker's keys are read through another worker's connection.
        for worker in range(workers):
            reader = wires[(worker + 1) % workers]
            for begin in range(0, each, 500):
                numbers = range(begin, begin + 500)
                found = reader.call("MGET", *[f"{worker}/{number}" for number in numbers])
                for number, reply in zip(numbers, found):
                    last = current[worker].get(number)
                    assert reply == (None if last is None else value(worker, number, last)), (worker, number)
    for wire in wires:
        wire.close()


@pytest.mark.full
def test_transactions_at_the_limit_never_stop_for_good(start):
    """Two connections once waited for memory while they held keys that a third, pinned, waited for:
    none of them continued."""
    server = start(memory="64mb", threads=3)
    names = keys(b"key", 100_000)
    least, deadline = time.monotonic() + 8, time.monotonic() + harness.PATIENCE_S

    def writer(choose):
        return ("MSET", *[word for name in choose.sample(names, 20) for word in (name, b"v" * 900)])

    def reader(choose):
        return ("MGET", *choose.sample(names, 20))

    def transaction(choose):
        return ("MSETNX", *[word for name in choose.sample(names, 5) for word in (name, b"w" * 900)])

    refused = [0]

    def run(number):
        choose = random.Random(number)
        make = [writer, writer, reader, transaction, reader, writer][number]
        with server.connect() as own:
            # A slow machine takes longer to fill its memory.
            while time.monotonic() < (least if refused[0] else deadline):
                for reply in own.pipeline([make(choose) for _ in range(10)]):
                    if isinstance(reply, ErrorReply):
                        assert str(reply).startswith("OOM "), reply
                        refused[0] += 1

    in_threads(6, run)
    assert refused[0] > 0, "the limit was never met"
    with server.connect() as wire:
        assert wire.call("FLUSHALL") == b"OK"
        assert wire.call("SET", "k", "v" * 900) == b"OK"
