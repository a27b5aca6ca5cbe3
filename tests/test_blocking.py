"""Commands that wait for elements: order, time, unblocking, kills, lost and found clients, by sockets
and by redis-py."""

import contextlib
import random
import select
import socket
import threading
import time

import pytest
import redis

import harness
from harness import Closed, ErrorReply, encode, wait_until


def waiting(wire):
    info = wire.call("INFO", "clients")
    line = next(line for line in info.splitlines() if line.startswith(b"blocked_clients:"))
    return int(line.split(b":")[1])


def await_waiting(wire, number):
    wait_until(lambda: waiting(wire) == number, f"{number} clients wait")


def silent(wire, for_s=0.05):
    """Whether nothing comes."""
    return not select.select([wire.socket], [], [], for_s)[0]


def test_who_came_first_is_served_first(server, wire):
    with contextlib.ExitStack() as stack:
        waiters = []
        for number in range(40):
            waiter = stack.enter_context(server.connect())
            waiter.send(encode("BLPOP", "other", "q", 0))
            waiters.append(waiter)
            await_waiting(wire, number + 1)
        wire.call("RPUSH", "q", *range(10))
        for number in range(10):
            assert waiters[number].reply() == [b"q", b"%d" % number]
        for number in range(10, 25):
            wire.call("RPUSH", "q", number)
        for number in range(10, 25):
            assert waiters[number].reply() == [b"q", b"%d" % number]
        await_waiting(wire, 15)
        with wire_transaction(wire):
            for number in range(25, 45):
                wire.call("RPUSH", "q", number)
        for number in range(25, 40):
            assert waiters[number].reply() == [b"q", b"%d" % number]
        assert wire.call("LRANGE", "q", 0, -1) == [b"%d" % number for number in range(40, 45)]
        await_waiting(wire, 0)


@contextlib.contextmanager
def wire_transaction(wire):
    wire.call("MULTI")
    yield
    wire.call("EXEC")


@pytest.mark.full
def test_waits_end_in_time(server, wire):
    with server.connect() as waiter:
        for timeout_s in (0.001, 0.02, 0.1, 0.5, 1):
            began = time.monotonic()
            assert waiter.call("BLPOP", "q", timeout_s) is None
            took_s = time.monotonic() - began
            # It needs the clock, because times are its subject. Later by as much as a busy machine
            # delays a thread; never earlier.
            assert timeout_s - 0.001 <= took_s < timeout_s + 15, (timeout_s, took_s)
        delays = []
        for _ in range(20):
            began = time.monotonic()
            assert waiter.call("BZPOPMIN", "q", 0.05) is None
            delays.append(time.monotonic() - began - 0.05)
        print(f"late by {sorted(delays)[10] * 1000:.1f} ms in the median, {max(delays) * 1000:.1f} at most")
        # A wait of a connection that has another one behind it.
        waiter.send(encode("BLPOP", "q", 0.05) + encode("BLPOP", "q", 0.05) + encode("PING"))
        assert [waiter.reply(), waiter.reply(), waiter.reply()] == [None, None, b"PONG"]


def test_requests_behind_a_wait_wait(server, wire):
    with server.connect() as waiter:
        many = b"".join(encode("SET", f"k{number}", "x" * 100) for number in range(10_000))
        waiter.send(encode("SET", "before", 1) + encode("BLPOP", "q", 0) + encode("SET", "after", 1))
        assert waiter.reply() == b"OK"
        await_waiting(wire, 1)
        sender = threading.Thread(target=waiter.send, args=(many,))
        sender.start()
        assert wire.call("EXISTS", "before", "after") == 1
        assert wire.call("RPUSH", "q", "x") == 1
        assert waiter.reply() == [b"q", b"x"]
        for _ in range(10_001):
            assert waiter.reply() == b"OK"
        sender.join()
        assert wire.call("EXISTS", "after", "k0", "k9999") == 3


@pytest.mark.parametrize("behind", [0, 100, 1_000_000])
def test_a_client_that_goes_away_takes_nothing(server, wire, behind):
    """Also if it has sent more than the server receives from a client that waits."""
    for half in (False, True):
        with contextlib.ExitStack() as stack:
            gone = stack.enter_context(server.connect())
            gone.socket.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                gone.socket.send(encode("BLPOP", "q", 0) + encode("SET", "never", "x" * behind))
            await_waiting(wire, 1)
            if half:
                gone.socket.shutdown(socket.SHUT_WR)
            else:
                gone.close()
            await_waiting(wire, 0)
            assert wire.call("RPUSH", "q", "x") == 1
            assert wire.call("LPOP", "q") == b"x"
            assert wire.call("EXISTS", "never") == 0


def test_kill_and_unblock(server, wire):
    with server.connect() as first, server.connect() as second, server.connect() as third:
        ids = [each.call("CLIENT", "ID") for each in (first, second, third)]
        for number, each in enumerate((first, second, third)):
            each.send(encode("BLMOVE", "q", "to", "LEFT", "LEFT", 0))
            await_waiting(wire, number + 1)
        listed = wire.call("CLIENT", "LIST", "ID", ids[0]).decode()
        assert " flags=b " in listed and " cmd=blmove " in listed, listed
        assert wire.call("CLIENT", "KILL", "ID", ids[0]) == 1
        with pytest.raises(Closed):
            first.reply()
        await_waiting(wire, 2)
        assert wire.call("CLIENT", "UNBLOCK", ids[1], "ERROR") == 1
        with pytest.raises(ErrorReply, match="UNBLOCKED client unblocked via CLIENT UNBLOCK"):
            second.reply()
        assert wire.call("CLIENT", "UNBLOCK", ids[1]) == 0
        assert wire.call("RPUSH", "q", "x") == 1
        assert third.reply() == b"x"
        third.send(encode("BRPOP", "q", 0))
        await_waiting(wire, 1)
        assert wire.call("CLIENT", "UNBLOCK", ids[2]) == 1
        assert third.reply() is None
        await_waiting(wire, 0)


def test_silent_clients_wait_too(server, wire):
    with server.connect() as waiter:
        waiter.send(encode("CLIENT", "REPLY", "SKIP") + encode("BLPOP", "q", 0) + encode("PING"))
        await_waiting(wire, 1)
        assert silent(waiter)
        wire.call("RPUSH", "q", "x")
        assert waiter.reply() == b"PONG"
        assert wire.call("EXISTS", "q") == 0


def test_a_pause_of_all_clients_delays_those_that_wait(server, wire):
    with server.connect() as waiter:
        waiter.send(encode("BLPOP", "q", 0))
        await_waiting(wire, 1)
        began = time.monotonic()  # it needs the clock, because the pause is one of time
        wire.send(encode("MULTI") + encode("CLIENT", "PAUSE", 300, "WRITE") + encode("RPUSH", "q", "x") + encode("EXEC"))
        assert [wire.reply() for _ in range(3)] == [b"OK", b"QUEUED", b"QUEUED"]
        wire.reply()
        assert waiter.reply() == [b"q", b"x"]
        assert time.monotonic() - began > 0.29


@pytest.mark.duramen
def test_thousands_wait(server, wire):
    """Each gets one element; none costs anything while it waits."""
    number = 1_000
    with contextlib.ExitStack() as stack:
        waiters = [stack.enter_context(server.connect()) for _ in range(number)]
        for waiter in waiters:
            waiter.send(encode("BLPOP", "all", "q", 0))
        await_waiting(wire, number)
        used, began = server.info("cpu")["used_cpu_user"], time.monotonic()
        time.sleep(1)
        spent = float(server.info("cpu")["used_cpu_user"]) - float(used)
        took = time.monotonic() - began
        assert spent < 0.3 * took, f"{spent} s of a processor in {took} s"
        began = time.monotonic()
        with server.connect() as writer:
            for start in range(0, number // 2, 50):
                writer.call("RPUSH", "q", *range(start, start + 50))
            writer.pipeline([("RPUSH", "q", item) for item in range(number // 2, number)])
        got = [waiter.reply() for waiter in waiters]
        print(f"{number} served in {time.monotonic() - began:.2f} s")
        assert sorted(int(item) for _, item in got) == list(range(number))
        assert wire.call("EXISTS", "q") == 0
        await_waiting(wire, 0)
        for waiter in waiters:
            waiter.send(encode("BZPOPMAX", "z", 0))
        await_waiting(wire, number)
    await_waiting(wire, 0)


def test_a_game_of_two(server, wire):
    """Two clients that wait for each other in turn, on two threads of the server and on one."""
    rounds = 2_000
    with server.connect() as first, server.connect() as second, server.connect() as third:
        for players in ((first, second), (second, third), (first, third)):

            def answer(player=players[0]):
                for number in range(rounds):
                    assert player.call("BLPOP", "a", 30) == [b"a", b"%d" % number]
                    player.call("RPUSH", "b", number)

            other = threading.Thread(target=answer)
            began = time.monotonic()
            other.start()
            for number in range(rounds):
                players[1].call("RPUSH", "a", number)
                assert players[1].call("BLPOP", "b", 30) == [b"b", b"%d" % number]
            other.join()
            print(f"{rounds / (time.monotonic() - began):,.0f} rounds a second")
            wire.call("FLUSHALL")


@pytest.mark.duramen
def test_clients_that_wake_each_other_keep_nobody_out(start):
    """Two clients move an element to and fro by many requests; another client is served meanwhile."""
    moves = 10_000
    server = start(threads=1)

    def calls():
        return int(server.info("commandstats")["cmdstat_blmove"].split(",")[0].removeprefix("calls="))

    with server.connect() as wire:
        for _ in range(5):
            with server.connect() as first, server.connect() as second:
                for client, way in ((first, ("a", "b")), (second, ("b", "a"))):
                    client.send(encode("BLMOVE", *way, "LEFT", "RIGHT", 0) * moves)
                await_waiting(wire, 2)
                wire.call("RPUSH", "a", "x")
                done = calls()
                assert [first.reply() for _ in range(moves)] == [b"x"] * moves
                assert [second.reply() for _ in range(moves)] == [b"x"] * moves
            wire.call("DEL", "a", "b")
            if done < calls():
                return
    pytest.fail("nobody was served before the last move")


def test_no_wake_up_is_lost(server, wire):
    """Many clients that push and many that wait, on several keys: each element is taken once, and
    nobody waits while there are elements."""
    pushers, poppers, each = 4, 6, 500
    taken = [[] for _ in range(poppers)]

    def push(number):
        dice = random.Random(number)
        with server.connect() as client:
            for n in range(each):
                key = f"q{dice.randrange(3)}"
                item = f"{number}:{n}"
                if dice.random() < 0.2:
                    client.pipeline([("MULTI",), ("RPUSH", key, item), ("EXEC",)])
                elif dice.random() < 0.2:
                    client.pipeline([("RPUSH", f"from{number}", item), ("RPOPLPUSH", f"from{number}", key)])
                else:
                    client.call("RPUSH", key, item)

    def pop(number):
        dice = random.Random(100 + number)
        with server.connect() as client:
            while True:
                keys = ["end", *dice.sample(["q0", "q1", "q2"], 3)]
                name = dice.choice(["BLPOP", "BRPOP", "BLMPOP"])
                call = (name, *keys, 30) if name != "BLMPOP" else (name, 30, len(keys), *keys, "LEFT")
                reply = client.call(*call)
                assert reply is not None, "nobody pushes any more, and the end did not come"
                key, item = reply
                if key == b"end":
                    return
                taken[number].append(item[0] if isinstance(item, list) else item)

    threads = [threading.Thread(target=pop, args=(number,)) for number in range(poppers)]
    threads += [threading.Thread(target=push, args=(number,)) for number in range(pushers)]
    for thread in threads:
        thread.start()
    for thread in threads[poppers:]:
        thread.join()
    wait_until(lambda: sum(map(len, taken)) == pushers * each, "all elements are taken")
    wire.call("RPUSH", "end", *range(poppers))
    for thread in threads[:poppers]:
        thread.join()
    items = [item for some in taken for item in some]
    assert len(set(items)) == len(items) == pushers * each
    assert wire.call("EXISTS", "q0", "q1", "q2") == 0


@pytest.mark.duramen
def test_what_was_taken_stays_taken_after_a_kill(start, tmp_path):
    """A reply is there only when the element's removal is durable; an element that no client got is
    still there."""
    server = start("--wal-size", "16mb", level=None, dir=tmp_path / "data", memory="64mb", threads=2)
    got, lock, pushed = set(), threading.Lock(), []

    def pop():
        with contextlib.suppress(OSError, Closed), server.connect() as client:
            while True:
                reply = client.call("BLPOP", "q", 0)
                with lock:
                    got.add(int(reply[1]))

    for _ in range(3):
        threads = [threading.Thread(target=pop) for _ in range(4)]
        for thread in threads:
            thread.start()
        with server.connect() as wire:
            await_waiting(wire, 4)
            for _ in range(300):
                assert wire.call("RPUSH", "q", len(pushed)) >= 1
                pushed.append(len(pushed))
        server.kill()
        for thread in threads:
            thread.join()
        server.start()
        with server.connect() as wire:
            left = {int(item) for item in wire.call("LRANGE", "q", 0, -1)}
            # The reply of at most one element for each client was lost on its way.
            assert not left & got, "an element that was taken is back"
            lost = set(pushed) - left - got
            assert len(lost) <= 4 * 3, lost


@pytest.mark.parametrize("protocol", [2, 3])
def test_redis_py(server, wire, protocol):
    with redis.Redis(port=server.port, protocol=protocol, decode_responses=True) as client:
        client.rpush("q", "a", "b", "c", "d")
        client.zadd("z", {"one": 1, "two": 2.5, "three": 3})
        assert client.blpop("q") in (("q", "a"), ["q", "a"])
        assert client.brpop(["none", "q"], timeout=1) in (("q", "d"), ["q", "d"])
        assert client.blmove("q", "to", 1) == "b"
        assert client.brpoplpush("q", "to", 1) == "c"
        assert client.blmpop(0.01, 1, "to", direction="LEFT", count=5)[1] in (["c", "b"], ["b", "c"])
        assert list(client.bzpopmin("z")) == ["z", "one", 1.0]
        assert list(client.bzpopmax("z")) == ["z", "three", 3.0]
        assert client.bzmpop(0.01, 1, "z", min=True)[0] == "z"
        assert client.blpop("q", timeout=0.01) is None
        assert client.bzpopmin("z", timeout=0.01) is None
        result = []
        thread = threading.Thread(target=lambda: result.append(redis.Redis(port=server.port).blpop(["q"], timeout=30)))
        thread.start()
        await_waiting(wire, 1)
        client.rpush("q", "late")
        thread.join()
        assert list(result[0]) == [b"q", b"late"]


@pytest.mark.duramen
def test_a_stop_does_not_wait_for_those_that_wait(start):
    server = start(threads=2)
    with server.connect() as waiter, server.connect() as wire:
        waiter.send(encode("BLPOP", "q", 0))
        await_waiting(wire, 1)
        # It would wait for ever.
        assert server.stop() == 0
        with pytest.raises(Closed):
            waiter.reply()


@pytest.mark.duramen
def test_a_user_that_loses_its_right_while_it_waits(server, wire):
    wire.call("ACL", "SETUSER", "worker", "on", ">secret", "~*", "+@all")
    with server.connect() as waiter:
        waiter.call("AUTH", "worker", "secret")
        waiter.send(encode("BLPOP", "q", 0))
        await_waiting(wire, 1)
        wire.call("ACL", "SETUSER", "worker", "-blpop")
        wire.call("RPUSH", "q", "x")
        with pytest.raises(ErrorReply, match="NOPERM"):
            waiter.reply()
        assert wire.call("LPOP", "q") == b"x"
    wire.call("ACL", "DELUSER", "worker")


def test_readers_of_streams_wait(server, wire):
    with contextlib.ExitStack() as stack:
        readers = [stack.enter_context(server.connect()) for _ in range(3)]
        wire.call("XADD", "s", "1-1", "f", "old")
        began = time.monotonic()
        assert readers[0].call("XREAD", "BLOCK", 50, "STREAMS", "s", "other", "$", 0) is None
        assert time.monotonic() - began >= 0.049
        # `$` is the last id of the moment when the wait began.
        for reader in readers:
            reader.send(encode("XREAD", "BLOCK", 0, "STREAMS", "other", "s", 0, "$"))
        await_waiting(wire, 3)
        wire.call("SET", "unrelated", 1)
        wire.call("XGROUP", "CREATE", "s", "g", "$")  # a change of the stream without an entry
        assert silent(readers[0])
        with wire_transaction(wire):
            wire.call("XADD", "s", "2-1", "f", "new")
            wire.call("XADD", "s", "2-2", "f", "newer")
        entries = [[b"2-1", [b"f", b"new"]], [b"2-2", [b"f", b"newer"]]]
        for reader in readers:
            assert reader.reply() == [[b"s", entries]]
        await_waiting(wire, 0)


def test_consumers_of_a_group_wait_and_share(server, wire):
    with contextlib.ExitStack() as stack:
        wire.call("XGROUP", "CREATE", "s", "g", "$", "MKSTREAM")
        readers = [stack.enter_context(server.connect()) for _ in range(3)]
        for number, reader in enumerate(readers):
            who = ("GROUP", "g", f"c{number}")
            reader.send(encode("XREADGROUP", *who, "COUNT", 1, "BLOCK", 0, "STREAMS", "s", ">"))
            await_waiting(wire, number + 1)
        assert wire.call("XINFO", "CONSUMERS", "s", "g") == []
        for number in range(3):
            wire.call("XADD", "s", f"{number + 1}-0", "n", number)
        seen = [reader.reply()[0][1][0] for reader in readers]
        assert sorted(seen) == [[b"%d-0" % (n + 1), [b"n", b"%d" % n]] for n in range(3)]
        assert wire.call("XPENDING", "s", "g")[0] == 3
        # Pending entries are answered at once, also if there are none.
        reader = readers[0]
        assert reader.call("XREADGROUP", "GROUP", "g", "none", "BLOCK", 0, "STREAMS", "s", 0) == [[b"s", []]]
        began = time.monotonic()
        late = ("XREADGROUP", "GROUP", "g", "c0", "BLOCK", 30, "STREAMS", "s", ">")
        assert reader.call(*late) is None
        assert time.monotonic() - began >= 0.029
        # Nothing waits in a transaction.
        reader.call("MULTI")
        reader.call("XREAD", "BLOCK", 0, "STREAMS", "s", "$")
        assert reader.call("EXEC") == [None]


def test_a_reader_of_a_stream_is_unblocked_and_killed(server, wire):
    with server.connect() as reader:
        number = reader.call("CLIENT", "ID")
        for how, outcome in (("TIMEOUT", None), ("ERROR", "UNBLOCKED")):
            reader.send(encode("XREAD", "BLOCK", 0, "STREAMS", "s", "$"))
            await_waiting(wire, 1)
            assert wire.call("CLIENT", "UNBLOCK", number, how) == 1
            if outcome is None:
                assert reader.reply() is None
            else:
                with pytest.raises(ErrorReply, match=outcome):
                    reader.reply()
        reader.send(encode("XREAD", "BLOCK", 0, "STREAMS", "s", "$"))
        await_waiting(wire, 1)
        wire.call("CLIENT", "KILL", "ID", number)
        await_waiting(wire, 0)
        wire.call("XADD", "s", "*", "f", "v")


@pytest.mark.duramen
def test_the_time_of_a_client_ends_in_a_pause(server, wire):
    """It was woken and met CLIENT PAUSE: neither its end nor CLIENT UNBLOCK was noticed before the pause
    ended, and it kept its place."""
    with server.connect() as waiter, server.connect() as endless, server.connect() as killer:
        number = endless.call("CLIENT", "ID")
        # It needs the clock, because a time has to end in the pause. This one is long enough for
        # the steps before the pause on a busy machine, and the pause for all after it.
        waiter.send(encode("BLPOP", "q", 5))
        await_waiting(wire, 1)
        endless.send(encode("BLPOP", "q", 0))
        await_waiting(wire, 2)
        began = time.monotonic()
        wire.pipeline([("MULTI",), ("RPUSH", "q", "x"), ("CLIENT", "PAUSE", 100_000, "WRITE"), ("EXEC",)])
        assert waiter.reply() is None
        assert killer.call("CLIENT", "UNBLOCK", number) == 1
        assert endless.reply() is None
        assert time.monotonic() - began < harness.PATIENCE_S
        wire.call("CLIENT", "UNPAUSE")
        assert wire.call("LPOP", "q") == b"x"


@pytest.mark.parametrize("half", [False, True])
def test_a_client_that_goes_away_in_a_pause_takes_nothing(server, wire, half):
    """Its end was not noticed. Workers that gave up and came again left an LPOP each behind, and all of
    these took effect when the pause ended."""
    wire.call("RPUSH", "q", "x")
    wire.call("CLIENT", "PAUSE", 100_000, "WRITE")
    with server.connect() as gone:
        gone.send(encode("LPOP", "q"))
        await_waiting(wire, 1)
        if half:
            gone.socket.shutdown(socket.SHUT_WR)
        else:
            gone.close()
        await_waiting(wire, 0)
        wire.call("CLIENT", "UNPAUSE")
        assert wire.call("LLEN", "q") == 1


@pytest.mark.duramen
def test_a_pause_keeps_the_order_of_those_that_wait(start):
    """A woken client that met CLIENT PAUSE gave up its place: behind the pause the order was another."""
    server = start(threads=2)
    with contextlib.ExitStack() as stack:
        wire, *waiters = [stack.enter_context(server.connect()) for _ in range(5)]
        for n, waiter in enumerate(waiters):
            waiter.send(encode("BLPOP", "q", 0))
            await_waiting(wire, n + 1)
        wire.pipeline([("MULTI",), ("RPUSH", "q", 1), ("CLIENT", "PAUSE", 100, "WRITE"), ("EXEC",)])
        time.sleep(0.3)
        wire.call("RPUSH", "q", 2, 3, 4)
        assert [waiter.reply() for waiter in waiters] == [[b"q", b"%d" % n] for n in range(1, 5)]
