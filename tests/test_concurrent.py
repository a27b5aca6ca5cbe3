"""Several connections at once: atomic steps must look atomic to all clients."""

import concurrent.futures
import contextlib
import random
import socket
import threading
import time

import pytest
import redis

import harness
from harness import in_threads

ACCOUNTS = 20
START = 1000


def test_transfers_with_watch_keep_the_sum(server, wire):
    wire.call("MSET", *[word for i in range(ACCOUNTS) for word in (f"account:{i}", START)])
    done = threading.Event()
    transfers = [0] * 4

    def transfer(number):
        choose = random.Random(number)
        with server.connect() as own:
            while transfers[number] < 150:
                a, b = (f"account:{i}" for i in choose.sample(range(ACCOUNTS), 2))
                own.call("WATCH", a, b)
                from_a, to_b = map(int, own.call("MGET", a, b))
                amount = choose.randrange(1, 50)
                own.pipeline([("MULTI",), ("SET", a, from_a - amount), ("SET", b, to_b + amount)])
                transfers[number] += own.call("EXEC") is not None

    def check(_):
        with server.connect() as own:
            while not done.is_set():
                balances = own.call("MGET", *[f"account:{i}" for i in range(ACCOUNTS)])
                assert sum(map(int, balances)) == ACCOUNTS * START

    checker = threading.Thread(target=check, args=(0,))
    checker.start()
    try:
        in_threads(4, transfer)
    finally:
        done.set()
        checker.join()
    balances = wire.call("MGET", *[f"account:{i}" for i in range(ACCOUNTS)])
    assert sum(map(int, balances)) == ACCOUNTS * START


def test_transfers_without_watch_keep_the_sum(server, wire):
    names = [f"account:{i}" for i in range(ACCOUNTS)]
    wire.call("MSET", *[word for name in names for word in (name, START)])

    def transfer(number):
        choose = random.Random(number)
        with server.connect() as own:
            for _ in range(100):
                batch = []
                for _ in range(10):
                    a, b = choose.sample(names, 2)
                    batch += [("MULTI",), ("DECRBY", a, 7), ("INCRBY", b, 7), ("MGET", *names), ("EXEC",)]
                for reply in own.pipeline(batch)[4::5]:
                    assert sum(map(int, reply[2])) == ACCOUNTS * START

    in_threads(4, transfer)


def test_msetnx_lets_one_win(server, wire):
    won = []

    def claim(number):
        with server.connect() as own:
            for round_number in range(200):
                if own.call("MSETNX", f"a{round_number}", number, f"b{round_number}", number):
                    won.append(round_number)

    in_threads(4, claim)
    assert sorted(won) == list(range(200))
    for round_number in range(200):
        a, b = wire.call("MGET", f"a{round_number}", f"b{round_number}")
        assert a == b


def test_lock_by_set_nx_and_conditional_delete(server, wire):
    """The usual lock of Redis clients; the guarded counter must not lose an increment."""
    wire.call("SET", "guarded", 0)

    def work(number):
        with server.connect() as own:
            for _ in range(25):
                while own.call("SET", "lock", number, "NX", "PX", 30_000) is None:
                    pass
                own.call("SET", "guarded", int(own.call("GET", "guarded")) + 1)
                assert own.call("GETDEL", "lock") == str(number).encode()

    in_threads(4, work)
    assert wire.call("GET", "guarded") == b"100"


def test_flushall_beside_writers(server, wire):
    """After the last FLUSHALL and the last write, only later writes are there."""
    stop = threading.Event()

    def write(number):
        with server.connect() as own:
            while not stop.is_set():
                own.pipeline([("SET", f"{number}:{i}", "x" * 100) for i in range(200)])

    writers = [threading.Thread(target=write, args=(number,)) for number in range(3)]
    for writer in writers:
        writer.start()
    try:
        for _ in range(30):
            assert wire.call("FLUSHALL") == b"OK"
    finally:
        stop.set()
        for writer in writers:
            writer.join()
    assert wire.call("DBSIZE") <= 600
    wire.call("FLUSHALL")
    assert wire.call("DBSIZE") == 0
    assert wire.call("SCAN", 0)[1] == []


@pytest.mark.full
def test_commands_on_whole_databases_and_swapdb_keep_to_their_database(start):
    """FLUSHDB, COPY and MOVE looked their table up before they entered the store. A SWAPDB in
    between made that the table of another database: acknowledged writes of an unflushed database
    were gone, and its keys were copied and moved. The same for guards that wait outside for keys or
    memory: MSET and EXEC."""
    server = start(threads=8, memory="64mb")
    done = threading.Event()

    def again(db, *commands):
        with server.connect() as wire:
            wire.call("SELECT", db)
            while not done.is_set():
                for reply in wire.pipeline(commands * (100 // len(commands))):
                    whole = reply in (b"OK", b"QUEUED", [b"OK", b"OK"], 0, [None, None])  # `k` is never in database 0
                    parts = isinstance(reply, list) and all(isinstance(part, list) for part in reply)
                    assert whole or parts, reply

    def swap():
        with server.connect() as wire, server.connect() as other:
            other.call("SELECT", 1)
            for number in harness.rounds(6, least=21):
                wire.call("SWAPDB", 0, 1)
                other.call("DEL", "m", "n")  # written while this was database 0
                other.call("SET", "k", number)
                for _ in range(2):
                    assert other.call("MGET", "k", "kk", "m", "n") == [b"%d" % number, None, None, None]
                other.call("DEL", "k")

    def work(number):
        if number == 0:
            try:
                swap()
            finally:
                done.set()
        else:
            again(*OTHERS[number])

    in_threads(len(OTHERS), work)


# Commands of the clients beside the one that swaps, after the database in which they run.
OTHERS = [
    None,
    (0, ("FLUSHDB",)),
    (9, ("FLUSHDB",)),
    (0, ("COPY", "k", "kk")),
    (0, ("MOVE", "k", 5)),
    (0, ("MSET", "m", 1, "n", 1)),
    (0, ("DURAMEN.MWRITE", "m", 4, "n", 4)),
    (0, ("DURAMEN.MREMOVE", "k", "kk")),
    (0, ("MULTI",), ("SET", "m", 2), ("SET", "n", 2), ("EXEC",)),
    (0, ("MULTI",), ("SET", "n", 3), ("SET", "m", 3), ("EXEC",)),
]


def test_a_slow_keys_command_does_not_stop_others_for_long(server, wire):
    wire.load([b"key:%07d" % i for i in range(200_000)], b"v")
    with server.connect() as other:
        other.send(harness.encode("KEYS", "nothing*") * 5)
        for i in range(100):
            assert wire.call("GET", f"key:{i:07d}") == b"v"
        assert [other.reply() for _ in range(5)] == [[]] * 5


@pytest.mark.duramen
def test_reports_in_a_transaction_have_an_end(server, wire):
    """20,000 CLIENT LIST in one EXEC held every thread for 43 s; COMMAND DOCS and INFO for less."""
    others = [server.connect() for _ in range(100)]
    with server.connect() as other:
        reports = [("CLIENT", "LIST"), ("COMMAND", "DOCS"), ("INFO", "everything"), ("MEMORY", "DOCTOR")] * 250
        other.pipeline([("MULTI",), ("DBSIZE",), *reports, ("SET", "behind", "1")])
        watch = harness.Stopwatch(server)
        other.send(harness.encode("EXEC"))
        # The step is done, whether its replies fit into output-limit or not.
        harness.wait_until(lambda: wire.call("GET", "behind") == b"1", "the step is done")
        assert watch.seconds() < 10
    for one in others:
        one.close()


@pytest.mark.duramen
def test_reports_in_a_transaction_stop_after_a_moment(start):
    """One EXEC of reports held its thread for more than 5 s: 40 CONFIG GET of long patterns, or COMMAND INFO of 1,024
    names each; and 400 ACL LIST of 1,000 users. Now all of them together have 10 ms, and the writes happen."""
    server = start(threads=1)
    with server.connect() as wire:
        users = wire.pipeline([("ACL", "SETUSER", f"user{n}", "on", "nopass", "~*", "+@all") for n in range(1000)])
        assert set(users) == {b"OK"}
    many = {
        "patterns": ("CONFIG", "GET", *["*[!]" * 32] * 128),
        "names": ("COMMAND", "INFO", *["get"] * 1024),
        "docs": ("COMMAND", "DOCS", *["set"] * 1024),
        "users": ("ACL", "LIST"),
    }
    for name, report in many.items():
        with server.connect() as wire, server.connect() as other:
            wire.pipeline([("MULTI",), ("SET", "before", name), *[report] * 1000, ("SET", "behind", name)])
            wire.send(harness.encode("EXEC"))
            time.sleep(0.02)
            watch = harness.Stopwatch(server)
            assert other.call("PING") == b"PONG"
            assert watch.seconds() < 2, name
            # It may begin after the PING.
            harness.wait_until(lambda name=name: other.call("GET", "behind") == name.encode(), "the step is done")
            assert watch.seconds() < 4, name
            replies = bytearray()  # too many for this program to decode
            while not replies.endswith(b"in one transaction\r\n+OK\r\n"):
                replies += wire.socket.recv(1 << 20)
            assert replies.startswith(b"*1002\r\n+OK\r\n*")


@pytest.mark.duramen
def test_small_writes_to_large_values_hold_up_nobody(start):
    """64 SETRANGE of a byte rewrite 64 MB, and the clock was read after all of them: with 100 such clients a PING waited
    for 8 to 24 s."""
    server = start(threads=1, memory="512mb")
    with server.connect() as wire:
        for n in range(4):
            wire.call("SET", f"b{n}", b"x" * 1_000_000)
        requests = [harness.encode("SETRANGE", f"b{n}", 0, "y") * 64 for n in range(4)]
        busy = [server.connect() for _ in range(60)]
        for n, one in enumerate(busy):
            one.send(requests[n % 4])
        slowest, rounds = 0.0, 0
        while rounds < 10:
            watch = harness.Stopwatch(server)
            assert wire.call("PING") == b"PONG"
            slowest = max(slowest, watch.seconds())
            rounds += 1
        assert slowest < 1.5, slowest
        for one in busy:
            for _ in range(64):
                assert one.reply() == 1_000_000
            one.close()


@pytest.mark.duramen
@pytest.mark.parametrize("command", ["kill", "exec"])
def test_nothing_of_a_killed_client_happens_after_the_reply(start, command):
    """CLIENT KILL was answered when a message to the client's thread was posted. That thread ran more of the client's
    requests first, in 26 of 40 rounds; people fence a stuck program with this command."""
    server = start(threads=4, memory="512mb")
    requests = (harness.encode("INCR", "counter") + harness.encode("APPEND", "b", "y")) * 1000

    def feed(victim):
        try:
            for _ in range(6):
                victim.send(requests)
        except OSError:
            pass  # it is killed

    def drain(victim):
        try:
            while victim.socket.recv(1 << 16):
                pass
        except OSError:
            pass

    with server.connect() as wire:
        for _ in range(12):
            wire.call("SET", "b", b"x" * 500_000)
            wire.call("SET", "counter", 0)
            victims = [server.connect() for _ in range(3)]
            numbers = [victim.call("CLIENT", "ID") for victim in victims]
            threads = [threading.Thread(target=work, args=(victim,)) for victim in victims for work in (feed, drain)]
            for thread in threads:
                thread.start()
            harness.wait_until(lambda: int(wire.call("GET", "counter")) > 0, "they write", pause_s=0)
            kills = [("CLIENT", "KILL", "ID", number) for number in numbers]
            if command == "kill":
                # The next request of the connection comes after the kill, too.
                *killed, now = wire.pipeline([*kills, ("GET", "counter")])
            else:
                *killed, now = [*wire.pipeline([("MULTI",), *kills, ("EXEC",)])[-1], wire.call("GET", "counter")]
            assert killed == [1] * 3
            time.sleep(0.05)
            assert wire.call("GET", "counter") == now
            for victim in victims:
                with contextlib.suppress(OSError):
                    victim.socket.shutdown(socket.SHUT_RDWR)
            for thread in threads:
                thread.join()
            for victim in victims:
                victim.close()


@pytest.mark.duramen
def test_clients_that_kill_each_other_are_both_gone(start):
    """The reply of CLIENT KILL waits for the killed client: two that wait for each other end each other."""
    server = start(threads=4)
    with server.connect() as wire:
        for _ in range(20):
            pair = [server.connect() for _ in range(2)]
            numbers = [one.call("CLIENT", "ID") for one in pair]
            for one, other in zip(pair, reversed(numbers)):
                one.send(harness.encode("CLIENT", "KILL", "ID", other))
            listed = [b"id=%d " % number for number in numbers]
            harness.wait_until(lambda: not all(one in wire.call("CLIENT", "LIST") for one in listed), "one is gone")
            assert wire.call("PING") == b"PONG"
            for one in pair:
                one.close()


@pytest.mark.duramen
@pytest.mark.full
def test_monitors_hold_up_nobody(start):
    """Each line for each monitor was a message and a system call of its own, and a thread took all that waited at once:
    with 200 monitors a PING took 6 s."""
    server = start(threads=2)
    monitors = [server.connect() for _ in range(100)]
    for monitor in monitors:
        assert monitor.call("MONITOR") == b"OK"
    slowest = 0.0
    with server.connect() as busy, server.connect() as wire:
        busy.send(harness.encode("GET", "k") * 30_000)
        for _ in harness.rounds(3, least=5):
            watch = harness.Stopwatch(server)
            assert wire.call("PING") == b"PONG"
            slowest = max(slowest, watch.seconds())
        for _ in range(30_000):
            assert busy.reply() is None
    assert slowest < 2, slowest
    for monitor in monitors:
        monitor.close()


@pytest.mark.duramen
def test_a_large_request_is_shown_to_monitors_in_part(start):
    """A line of MONITOR was four times as long as its request: three of 60 MB stopped a thread for 6 s and took 900 MB."""
    server = start(threads=1, memory="64mb")
    with server.connect() as monitor, server.connect() as busy, server.connect() as wire:
        assert monitor.call("MONITOR") == b"OK"
        assert busy.call("STRLEN", bytes(60_000_000)) == 0
        line = monitor.reply()
        assert b"more bytes)" in line and len(line) < 2_000_000
        busy.send(harness.encode("STRLEN", bytes(60_000_000)))
        watch = harness.Stopwatch(server)
        assert wire.call("PING") == b"PONG"
        assert watch.seconds() < 2
        assert busy.reply() == 0


@pytest.mark.duramen
def test_kills_in_a_transaction_have_an_end(start):
    """200,000 CLIENT KILL in an EXEC beside 400 clients held every thread for 11 s."""
    server = start(threads=2)
    others = [server.connect() for _ in range(400)]
    with server.connect() as busy, server.connect() as wire:
        busy.pipeline([("MULTI",), ("FLUSHDB",), *[("CLIENT", "KILL", "ADDR", "1.2.3.4:5")] * 1000])
        busy.send(harness.encode("EXEC"))
        watch = harness.Stopwatch(server)
        assert wire.call("GET", "k") is None
        assert watch.seconds() < 5
        assert len(busy.reply()) == 1001
        assert len(wire.call("CLIENT", "LIST").splitlines()) == 402
    for other in others:
        other.close()


@pytest.mark.duramen
def test_patterns_of_config_get_are_bounded(wire):
    """One CONFIG GET with a million patterns held its thread for 20 s, one with 1,024 long patterns for more than 1 s."""
    with pytest.raises(harness.ErrorReply, match="at most 128 patterns"):
        wire.call("CONFIG", "GET", *["*q*x*y*z"] * 129)
    with pytest.raises(harness.ErrorReply, match="at most 16384 bytes"):
        wire.call("CONFIG", "GET", *["*[!]" * 250] * 17)
    assert wire.call("CONFIG", "GET", *["maxmem*"] * 128)
    assert wire.call("CONFIG", "GET", *["*[!]" * 250] * 16) == []


@pytest.mark.duramen
@pytest.mark.parametrize("command", [("KEYS", "nomatch*x"), ("SCAN", "0", "COUNT", "100000", "MATCH", "*z*z*z*")])
def test_walks_of_a_transaction_have_an_end(server, wire, command):
    """300 KEYS in one EXEC held every thread for 51 s: the walks inside it had no bound."""
    wire.load([b"key:%07d" % i for i in range(20_000)], b"v")
    with server.connect() as other:
        other.pipeline([("MULTI",), ("SET", "before", "1"), *[command] * 1000, ("SET", "behind", "1")])
        other.send(harness.encode("EXEC"))
        watch = harness.Stopwatch(server)
        wire.call("PING")
        replies = other.reply()
        assert watch.seconds() < 25
    assert replies[0] == replies[-1] == b"OK" and wire.call("GET", "behind") == b"1"
    assert not isinstance(replies[1], harness.ErrorReply) and "in one transaction" in str(replies[-2])


@pytest.mark.duramen
def test_a_transaction_does_not_go_on_for_replies_that_nobody_gets(start):
    """An EXEC whose replies had passed `output-limit` went on encoding them for 23 s."""
    server = start("--output-limit", "4mb", threads=1)
    with server.connect() as wire, server.connect() as other:
        wire.pipeline([("MULTI",), *[("COMMAND", "DOCS")] * 1000, ("SET", "behind", "1")])
        wire.send(harness.encode("EXEC"))
        watch = harness.Stopwatch(server)
        assert other.call("PING") == b"PONG"
        # It is done, or it ended with its client between two slices, as a whole.
        harness.wait_until(lambda: other.call("CLIENT", "LIST").count(b" addr=") == 1, "the client is closed")
        assert other.call("GET", "behind") in (b"1", None)
        assert watch.seconds() < 3


@pytest.mark.duramen
@pytest.mark.parametrize("poll", ["adaptive", "busy", "off"])
def test_every_way_of_polling(start, poll):
    server = start("--poll", poll, threads=2)

    def work(number):
        with server.connect() as own:
            for i in range(300):
                assert own.call("SET", f"{number}:{i}", i) == b"OK"
                assert own.call("GET", f"{number}:{i}") == str(i).encode()

    in_threads(8, work)
    assert server.stop() == 0


@pytest.mark.duramen
def test_an_idle_server_uses_no_processor(start):
    """With adaptive polling: the spin ends, however busy the server was before."""
    server = start("--poll", "adaptive", threads=2)
    with server.connect() as wire:
        for _ in range(2000):
            wire.call("PING")
        stat = harness.pathlib.Path(f"/proc/{server.process.pid}/stat")

        def ticks():
            return sum(map(int, stat.read_text().rsplit(")", 1)[1].split()[11:13]))

        def idle():
            before, start_s = ticks(), time.monotonic()
            time.sleep(0.5)
            return ticks() - before <= 100 * 0.02 * (time.monotonic() - start_s)

        harness.wait_until(idle, "half a second passes with less than 2 % of one core")
        assert wire.call("PING") == b"PONG"


CROSSED = {
    "scripts": (("exec", "x", "y"), ("exec", "y", "x")),
    "a script and MSET": (("exec", "x", "y"), ("mset", "x", "y")),
    "SORT in EXEC": (("sort", "w_1", "ly"), ("sort", "w_2", "lx")),
    "SORT STORE": (("store", "lx", "dst"), ("mset", "w_1", "dst", "dsu", "w_2")),
}


first, *others = CROSSED.values()


@pytest.mark.duramen
@pytest.mark.parametrize("jobs", [first, *map(harness.only_full, others)], ids=CROSSED)
def test_steps_that_read_keys_they_do_not_name(server, jobs):
    """Each held the locks of its own keys and waited for the other's: the server hung for ever."""

    def run(kind, *keys):
        with redis.Redis(port=server.port, socket_timeout=harness.PATIENCE_S) as client:
            for _ in harness.rounds(1.5, least=20):
                if kind == "mset":
                    client.mset(dict.fromkeys(keys, 1))
                elif kind == "store":
                    assert client.sort(keys[0], by="w_*", get="w_*", store=keys[1]) == 2
                else:
                    step = client.pipeline(transaction=True)
                    step.set(keys[0], 1)
                    if kind == "exec":
                        step.eval("return redis.call('get', ARGV[1])", 0, keys[1])
                    else:
                        step.sort(keys[1], by="w_*", get="w_*")
                    step.execute()

    with redis.Redis(port=server.port) as client, concurrent.futures.ThreadPoolExecutor(4) as pool:
        client.delete("lx", "ly")
        client.rpush("lx", 1, 2)
        client.rpush("ly", 1, 2)
        for done in [pool.submit(run, *job) for job in jobs for _ in range(2)]:
            done.result()
        assert client.ping()


POINTERS = """
local i, sum = tonumber(redis.call('get', KEYS[1]) or '0'), 0
for n = 0, 7 do
  sum = sum + tonumber(redis.call('get', 'counter' .. ((i + n * tonumber(ARGV[1])) % 16)) or '0')
  redis.call('incr', 'counter' .. ((i * 5 + n) % 16))
end
redis.call('set', KEYS[1], (i + 1) % 16)
return redis.call('incr', 'calls')
"""


@pytest.mark.duramen
@pytest.mark.parametrize("in_exec", [False, True], ids=["alone", "in EXEC"])
@pytest.mark.full
def test_scripts_whose_keys_are_in_keys(server, in_exec):
    """A script that had been in conflict held its last keys and waited for others: a hang for ever."""
    began, progress = time.monotonic(), [0] * 12

    def goes_on():
        """On a busy machine 100 calls may take longer than 3 s."""
        passed = time.monotonic() - began
        return passed < 3 or (sum(progress) <= 100 and passed < harness.PATIENCE_S)

    def run(n):
        calls = 0
        with redis.Redis(port=server.port, socket_timeout=harness.PATIENCE_S) as client:
            client.select(0)
            while goes_on():
                step = client.pipeline(transaction=in_exec)
                if in_exec:
                    step.incr(f"own{n}")
                    step.execute_command("SELECT", 1)
                    step.incr(f"own{n}")
                    step.execute_command("SELECT", 0)
                step.eval(POINTERS, 1, f"pointer{n % 4}", 1 + n % 3 * 2)
                try:
                    step.execute()
                    calls += 1
                    progress[n] = calls
                except redis.ResponseError as error:
                    assert "takes too long" in str(error)  # nothing was done: the machine is busy
        return calls

    with redis.Redis(port=server.port) as client, concurrent.futures.ThreadPoolExecutor(12) as pool:
        client.flushall()
        calls = list(pool.map(run, range(12)))
        assert int(client.get("calls")) == sum(calls) > 100
        assert sum(int(client.get(f"counter{n}")) for n in range(16)) == 8 * sum(calls)
        if in_exec:
            # A run in vain left the other database selected, and the next one began there.
            assert [int(client.get(f"own{n}")) for n in range(12)] == calls
            client.select(1)
            assert [int(client.get(f"own{n}")) for n in range(12)] == calls
        client.flushall()


@pytest.mark.duramen
def test_a_watched_key_ends_a_transaction_with_a_script(server):
    """Of a read, its check and its write by WATCH, some script is in between; none is lost."""
    began, progress, add = time.monotonic(), [0] * 6, "return redis.call('set', KEYS[1], ARGV[1])"

    def goes_on():
        """On a busy machine 50 steps may take longer than 2 s."""
        passed = time.monotonic() - began
        return passed < 2 or (sum(progress) <= 50 and passed < harness.PATIENCE_S)

    def run(n):
        done = 0
        with redis.Redis(port=server.port, socket_timeout=harness.PATIENCE_S) as client:
            while goes_on():
                with client.pipeline() as step:
                    step.watch("watched")
                    now = int(step.get("watched") or 0)
                    step.multi()
                    step.eval(add, 1, "watched", now + 1)
                    step.incr("not watched")
                    try:
                        step.execute()
                        done += 1
                        progress[n] = done
                    except redis.WatchError:
                        pass
                    except redis.ResponseError as error:
                        assert "takes too long" in str(error)
        return done

    with redis.Redis(port=server.port) as client, concurrent.futures.ThreadPoolExecutor(6) as pool:
        client.delete("watched", "not watched")
        done = sum(pool.map(run, range(6)))
        assert int(client.get("watched")) == int(client.get("not watched")) == done > 50
