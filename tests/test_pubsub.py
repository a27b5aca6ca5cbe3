"""Publish and subscribe, and events of keys: by redis-py in both protocols, with many, slow and
vanished subscribers, and with data that is not durable yet."""

import contextlib
import socket
import threading
import time

import pytest
import redis

import harness
from harness import Closed, ErrorReply, encode

pytestmark = pytest.mark.duramen


@pytest.fixture(params=[2, 3])
def client(request, server):
    """redis-py, with one of the protocols."""
    with redis.Redis(port=server.port, protocol=request.param) as connected:
        connected.flushall()
        yield connected


def received(pubsub, count):
    """The next messages, each as kind, pattern, channel and data."""
    messages = []
    while len(messages) < count:
        message = pubsub.get_message(timeout=harness.PATIENCE_S)
        assert message is not None, messages
        messages.append((message["type"], message["pattern"], message["channel"], message["data"]))
    return messages


def subscriber(server, *channels, **options):
    wire = server.connect(**options)
    for number, channel in enumerate(channels):
        assert wire.call("SUBSCRIBE", channel) == [b"subscribe", channel.encode(), number + 1]
    return wire


def has_message(wire):
    """Whether a message has arrived; waits a moment for it."""
    wire.socket.settimeout(0.2)
    try:
        wire.more()
    except TimeoutError:
        pass
    wire.socket.settimeout(harness.PATIENCE_S)
    return len(wire.received) > wire.at


def test_redis_py_publishes_and_subscribes(client):
    with client.pubsub() as pubsub:
        pubsub.subscribe("news", "other")
        pubsub.psubscribe("n*")
        assert [kind for kind, *_ in received(pubsub, 3)] == ["subscribe", "subscribe", "psubscribe"]
        assert client.publish("news", "one") == 2
        assert client.publish("nothing", "two") == 1
        assert client.publish("missing", "three") == 0
        assert sorted(received(pubsub, 3), key=str) == [
            ("message", None, b"news", b"one"),
            ("pmessage", b"n*", b"news", b"one"),
            ("pmessage", b"n*", b"nothing", b"two"),
        ]
        assert sorted(client.pubsub_channels()) == [b"news", b"other"]
        assert client.pubsub_numsub("news", "no") == [(b"news", 1), (b"no", 0)]
        assert client.pubsub_numpat() == 1
        pubsub.unsubscribe()
        pubsub.punsubscribe()
        assert len(received(pubsub, 3)) == 3
    assert client.publish("news", "four") == 0


def test_redis_py_subscribes_to_shard_channels(client):
    with client.pubsub() as pubsub:
        pubsub.ssubscribe("orders")
        assert received(pubsub, 1) == [("ssubscribe", None, b"orders", 1)]
        assert client.execute_command("SPUBLISH", "orders", "x") == 1
        assert client.publish("orders", "not this") == 0
        assert received(pubsub, 1) == [("smessage", None, b"orders", b"x")]
        assert client.execute_command("PUBSUB", "SHARDCHANNELS") == [b"orders"]


def test_a_transaction_publishes_and_subscribes(server, client):
    with client.pubsub() as pubsub:
        pubsub.subscribe("c")
        received(pubsub, 1)
        with client.pipeline(transaction=True) as pipe:
            pipe.set("k", "v").publish("c", "first").publish("c", "second").get("k")
            assert pipe.execute() == [True, 1, 1, b"v"]
        assert [data for *_, data in received(pubsub, 2)] == [b"first", b"second"]
        with pytest.raises(redis.WatchError), client.pipeline(transaction=True) as pipe:
            pipe.watch("k")
            client.set("k", "changed")
            pipe.multi()
            pipe.publish("c", "never")
            pipe.execute()
        assert client.publish("c", "last") == 1
        assert [data for *_, data in received(pubsub, 1)] == [b"last"]
    with server.connect() as wire:
        assert wire.call("MULTI") == b"OK"
        assert wire.call("SUBSCRIBE", "c") == b"QUEUED"
        assert wire.call("EXEC") == [[b"subscribe", b"c", 1]]
        with pytest.raises(ErrorReply, match="only .P|S.SUBSCRIBE"):
            wire.call("GET", "k")
        assert wire.call("PING") == [b"pong", b""]
        assert client.publish("c", "heard") == 1
        assert wire.reply() == [b"message", b"c", b"heard"]
        assert wire.call("RESET") == b"RESET"
        assert wire.call("GET", "k") == b"changed"


def test_a_pipeline_publishes_between_its_own_subscriptions(server):
    """The message was sent behind the whole pipeline: to nobody."""
    commands = [
        ("SUBSCRIBE", "mine"),
        ("PUBLISH", "mine", "heard"),
        ("UNSUBSCRIBE", "mine"),
        ("PUBLISH", "mine", "missed"),
        ("SUBSCRIBE", "mine"),
        ("PUBLISH", "mine", "last"),
        ("QUIT",),
    ]
    with server.connect() as wire:
        wire.call("HELLO", 3)
        wire.send(b"".join(encode(*command) for command in commands))
        assert [wire.reply() for _ in range(9)] == [
            [b"subscribe", b"mine", 1],
            1,
            [b"message", b"mine", b"heard"],
            [b"unsubscribe", b"mine", 0],
            0,
            [b"subscribe", b"mine", 1],
            1,
            [b"message", b"mine", b"last"],
            b"OK",
        ]


def test_events_of_keys(client):
    client.config_set("notify-keyspace-events", "KEA")
    try:
        with client.pubsub() as pubsub:
            pubsub.psubscribe("__key*__:*")
            received(pubsub, 1)
            client.set("k", "v", px=1)
            client.lpush("l", "x")
            client.delete("l")
            data = [(channel, data) for _, _, channel, data in received(pubsub, 10)]
            # The end of `k` may come at any time from its expiry on.
            expired = [(b"__keyspace@0__:k", b"expired"), (b"__keyevent@0__:expired", b"k")]
            assert [message for message in data if message in expired] == expired
            assert [message for message in data if message not in expired] == [
                (b"__keyspace@0__:k", b"set"),
                (b"__keyevent@0__:set", b"k"),
                (b"__keyspace@0__:k", b"expire"),
                (b"__keyevent@0__:expire", b"k"),
                (b"__keyspace@0__:l", b"lpush"),
                (b"__keyevent@0__:lpush", b"l"),
                (b"__keyspace@0__:l", b"del"),
                (b"__keyevent@0__:del", b"l"),
            ]
    finally:
        client.config_set("notify-keyspace-events", "")


def test_evicted_keys_are_told(start):
    server = start("--notify-keyspace-events", "Ee", mode="cache", memory="64mb")
    with server.connect() as wire, subscriber(server, "__keyevent@0__:evicted") as listener:
        keys = [b"key:%d" % number for number in range(100_000)]
        wire.load(keys, b"x" * 1000)
        first = listener.reply()
        assert first[:2] == [b"message", b"__keyevent@0__:evicted"] and first[2] in keys
        assert wire.call("EXISTS", first[2]) == 0


@pytest.mark.full
def test_a_thousand_subscribers_get_all_messages_in_order(start):
    server = start(threads=2)
    with contextlib.ExitStack() as stack:
        wires = [stack.enter_context(subscriber(server, "c")) for _ in range(1_000)]
        publishers = [stack.enter_context(server.connect()) for _ in range(2)]

        def publish(number):
            for message in range(100):
                assert publishers[number].call("PUBLISH", "c", f"{number}:{message}") == 1_000

        harness.in_threads(2, publish)
        orders = {tuple(wire.reply()[2] for _ in range(200)) for wire in wires}
        assert len(orders) == 1, "all have one order"
        order = orders.pop()
        for number in (b"0", b"1"):
            mine = [text for text in order if text.startswith(number)]
            assert mine == [b"%b:%d" % (number, message) for message in range(100)]
        assert server.info("clients")["pubsub_clients"] == "1000"


def test_messages_sent_together_stay_whole_and_in_order(start):
    """Pipelined messages go to a subscriber in one piece, and a full socket takes only a part."""
    server = start(threads=1)
    with contextlib.ExitStack() as stack:
        slow = stack.enter_context(subscriber(server, "c", receive_buffer=4096))
        wires = [slow, stack.enter_context(subscriber(server, "c", "other"))]
        wires.append(stack.enter_context(server.connect()))
        wires[2].call("HELLO", "3")
        assert wires[2].call("SUBSCRIBE", "c")[0] == b"subscribe"
        publisher = stack.enter_context(server.connect())
        texts, since = [], [0, 0, 0]
        for batch in range(400):
            if batch % 100 == 50:
                since.append(len(texts))
                wires.append(stack.enter_context(subscriber(server, "c")))
            new = [b"%d:" % number + b"x" * (number * 37 % 4_000) for number in range(len(texts), len(texts) + 10)]
            counts = publisher.pipeline([("PUBLISH", "c", text) for text in new])
            assert counts == [len(wires)] * 10
            texts += new
            if batch % 40 == 7:
                publisher.pipeline([("PUBLISH", "other", b"o"), ("PUBLISH", "c", b"last"), ("PUBLISH", "other", b"o")])
                texts.append(b"last")
        listed = [line for line in publisher.call("CLIENT", "LIST").decode().splitlines() if " sub=1 " in line]
        assert any(" omem=0 " not in line for line in listed), "a socket was full"
        for number, (wire, first) in enumerate(zip(wires, since)):
            others = 0
            for text in texts[first:]:
                while (reply := wire.reply())[1] == b"other":
                    others += 1
                assert reply == [b"message", b"c", text]
            assert others == (20 if number == 1 else 0)


def test_a_slow_subscriber_is_closed_and_delays_nobody(start):
    server = start("--output-limit", "8mb", memory="64mb")
    with subscriber(server, "c", receive_buffer=4096) as slow, subscriber(server, "c") as fast:
        counts = []

        def publish(_):
            with server.connect() as wire:
                for _ in range(300):
                    began = time.monotonic()
                    counts.append(wire.call("PUBLISH", "c", b"x" * 100_000))
                    assert time.monotonic() - began < 10

        publisher = threading.Thread(target=publish, args=(0,))
        publisher.start()
        for _ in range(300):
            assert len(fast.reply()[2]) == 100_000
        publisher.join()
        assert counts[0] == 2 and counts[-1] == 1, "the slow one is gone"
        with pytest.raises(Closed):
            while True:
                slow.reply()
    assert server.resident_bytes() < 120_000_000


def test_subscribers_that_vanish_are_forgotten(start):
    server = start(threads=2)
    with server.connect() as wire:
        for round in range(5):
            wires = [subscriber(server, "c", f"c:{number}") for number in range(100)]
            for number, gone in enumerate(wires):
                if number % 2:  # without a word
                    gone.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")
                gone.close()
                wire.call("PUBLISH", "c", round)
        harness.wait_until(lambda: wire.call("PUBLISH", "c", "x") == 0, "nobody is left")
        assert wire.call("PUBSUB", "CHANNELS") == []
        assert server.info("clients")["pubsub_clients"] == "0"


def test_a_changed_right_closes_subscribers(server):
    with server.connect() as admin, server.connect() as wire, server.connect() as other:
        admin.call("ACL", "SETUSER", "u", "on", "nopass", "+@all", "~*", "resetchannels", "&a*")
        for user in (wire, other):
            user.call("AUTH", "u", "x")
        with pytest.raises(ErrorReply, match="NOPERM No permissions to access a channel"):
            wire.call("SUBSCRIBE", "b")
        wire.call("SUBSCRIBE", "apple")
        other.call("SUBSCRIBE", "avocado")
        admin.call("ACL", "SETUSER", "u", "resetchannels", "&apple")
        with pytest.raises(Closed):
            other.reply()
        assert admin.call("PUBLISH", "apple", "x") == 1
        assert wire.reply() == [b"message", b"apple", b"x"]
        admin.call("ACL", "DELUSER", "u")


def test_nobody_hears_of_a_write_that_a_crash_takes_back(start, hanging_disk):
    """The disk hangs: no commit ends. Subscribers heard nothing of what is gone after `kill -9`."""
    options = {"level": "synced", "dir": hanging_disk / "data", "memory": "64mb", "threads": 2}
    server = start("--wal-size", "16mb", "--notify-keyspace-events", "EA", **options)
    with contextlib.ExitStack() as stack:
        listeners = [stack.enter_context(subscriber(server, "c", "__keyevent@0__:set")) for _ in range(4)]
        writer, other = (stack.enter_context(server.connect()) for _ in range(2))
        assert writer.call("SET", "before", "v") == b"OK"
        for listener in listeners:
            assert listener.reply() == [b"message", b"__keyevent@0__:set", b"before"]
        with harness.frozen(hanging_disk):
            writer.send(encode("SET", "k", "v") + encode("PUBLISH", "c", "k is set"))
            time.sleep(0.5)
            assert other.call("PUBLISH", "c", "depends on nothing") == 4
            for listener in listeners:
                assert listener.reply() == [b"message", b"c", b"depends on nothing"]
            assert not any(has_message(listener) for listener in listeners)
        assert writer.reply() == b"OK" and writer.reply() == 4
        for listener in listeners:
            assert listener.reply() == [b"message", b"__keyevent@0__:set", b"k"]
            assert listener.reply() == [b"message", b"c", b"k is set"]


def test_everything_that_was_heard_is_there_after_a_kill(start, tmp_path):
    server = start("--wal-size", "16mb", "--notify-keyspace-events", "E$", level="synced", dir=tmp_path / "data", memory="64mb", threads=2)
    number = 0
    for _ in range(3):
        heard = []
        with subscriber(server, "__keyevent@0__:incrby", "c") as listener, server.connect() as writer:

            def listen(_=None, listener=listener, heard=heard):
                with contextlib.suppress(Closed):
                    while True:
                        heard.append(listener.reply())

            def write(_=None, writer=writer):
                with contextlib.suppress(Closed, OSError):
                    while True:
                        writer.pipeline([("INCR", "n"), ("PUBLISH", "c", "incremented")])

            threads = [threading.Thread(target=run) for run in (listen, write)]
            for thread in threads:
                thread.start()
            harness.wait_until(lambda: len(heard) > 200, "it hears")
            server.kill()
            for thread in threads:
                thread.join()
        server.start()
        with server.connect() as wire:
            now = int(wire.call("GET", "n"))
        events = [channel for _, channel, _ in heard if channel != b"c"]
        assert len(events) <= now - number, "it heard of an increment that is gone"
        number = now


def test_a_command_that_waited_for_flash_tells_its_event_once(start, tmp_path):
    flash = ("--flash-file", tmp_path / "flash", "--flash-size", "256mb")
    server = start(*flash, "--notify-keyspace-events", "E$", memory="64mb")
    keys = [b"key:%d" % number for number in range(80_000)]
    with server.connect() as wire, subscriber(server, "__keyevent@0__:append") as listener:
        wire.load(keys, b"x" * 1000)
        harness.wait_until(lambda: int(server.info("memory")["duramen_flash_segments"]) > 0, "segments go to flash")
        cold = keys[:200]
        assert wire.pipeline([("APPEND", key, "y") for key in cold]) == [1001] * len(cold)
        assert int(server.info("memory")["duramen_flash_fetches"]) > 0
        assert [listener.reply()[2] for _ in cold] == cold
        assert not has_message(listener)


@pytest.mark.full
def test_a_subscriber_that_sends_requests_misses_no_message(server):
    """A thread that spun could receive a request from a subscriber, and then take a message for it:
    the message was lost. CLIENT KILL was lost in the same way."""
    with server.connect() as subscriber, server.connect() as publisher:
        subscriber.call("HELLO", "3")
        subscriber.call("SUBSCRIBE", "news")
        ends = threading.Event()
        received = []

        def take():
            while not ends.is_set() or len(received) < sent:
                subscriber.send(encode("PING"))
                while isinstance(reply := subscriber.reply(), list):
                    received.append(int(reply[2]))

        taker = threading.Thread(target=take, daemon=True)
        sent = 0
        taker.start()
        for _ in harness.rounds(3, least=100):
            assert publisher.call("PUBLISH", "news", str(sent)) == 1
            sent += 1
        ends.set()
        taker.join(harness.PATIENCE_S)
        assert received == list(range(sent))
        for _ in range(50):
            with server.connect() as victim:
                number = victim.call("CLIENT", "ID")
                victim.send(encode("PING") * 100)
                assert publisher.call("CLIENT", "KILL", "ID", str(number)) == 1
                with contextlib.suppress(ConnectionError):
                    victim.drain()
