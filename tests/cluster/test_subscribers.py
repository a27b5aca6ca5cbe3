"""Publish and subscribe in a cluster: messages reach the subscribers of all members, once and in
order; channels of a slot are at its owner, and leave with it."""

import contextlib
import threading

import pytest
import redis
from redis.cluster import ClusterNode, RedisCluster

import harness
from harness import ErrorReply, wait_until
from processes import Cluster

pytestmark = pytest.mark.duramen


@pytest.fixture
def cluster(place):
    with Cluster(place, 3, replicas=2, settings=harness.CALM) as running:
        yield running


def subscribed(member, *channels):
    wire = harness.Wire(member.port)
    for number, channel in enumerate(channels):
        assert wire.call("SUBSCRIBE", channel) == [b"subscribe", channel.encode(), number + 1]
    return wire


def owner_of(cluster, channel):
    """The member that serves the channel's slot."""
    for member in cluster.members:
        with harness.Wire(member.port) as wire, contextlib.suppress(ErrorReply):
            wire.call("SPUBLISH", channel, "x")
            return member
    raise AssertionError("nobody serves it")


def test_messages_reach_all_members_once_and_in_order(cluster):
    with contextlib.ExitStack() as stack:
        listeners = [stack.enter_context(subscribed(member, "c")) for member in cluster.members for _ in range(2)]
        publishers = [stack.enter_context(harness.Wire(member.port)) for member in cluster.members]

        def publish(number):
            for start in range(0, 2_000, 100):
                messages = [("PUBLISH", "c", f"{number}:{n}") for n in range(start, start + 100)]
                # The receivers of other members are not counted, as in Redis.
                assert publishers[number].pipeline(messages) == [2] * 100

        harness.in_threads(3, publish)
        for listener in listeners:
            heard = [listener.reply()[2] for _ in range(6_000)]
            for number in range(3):
                mine = [text for text in heard if text.startswith(b"%d:" % number)]
                assert mine == [b"%d:%d" % (number, n) for n in range(2_000)]
        # Long messages, which a batch has no room for, and events of keys, which stay where they are.
        publishers[0].call("PUBLISH", "c", b"x" * 3_000_000)
        for listener in listeners:
            assert len(listener.reply()[2]) == 3_000_000
        with pytest.raises(ErrorReply, match="a message to a cluster has at most"):
            publishers[0].call("PUBLISH", "c", b"x" * 9_000_000)


def test_events_of_keys_stay_on_their_member(cluster):
    with contextlib.ExitStack() as stack:
        listeners = []
        for member in cluster.members:
            with harness.Wire(member.port) as wire:
                assert wire.call("CONFIG", "SET", "notify-keyspace-events", "E$") == b"OK"
            listeners.append(stack.enter_context(subscribed(member, "__keyevent@0__:set", "end")))
        keys = [b"key:%d" % number for number in range(300)]
        client = stack.enter_context(RedisCluster(startup_nodes=[ClusterNode("127.0.0.1", cluster.members[0].port)]))
        for key in keys:
            client.set(key, "v")
        client.publish("end", "end")
        heard = []
        for listener in listeners:
            while (message := listener.reply())[1] != b"end":
                heard.append(message[2])
        assert sorted(heard) == sorted(keys)


def test_a_member_that_dies_and_comes_back_hears_again(cluster):
    gone, *others = cluster.members
    with harness.Wire(others[0].port) as publisher, subscribed(others[1], "c") as listener:
        gone.kill()
        for number in range(100):
            assert publisher.call("PUBLISH", "c", number) == 0
            assert listener.reply() == [b"message", b"c", b"%d" % number]
        gone.start()
        cluster.await_health()
        with subscribed(gone, "c") as again:
            done = threading.Event()

            def publish(_=None):
                while not done.is_set():
                    publisher.call("PUBLISH", "c", "back")

            thread = threading.Thread(target=publish)
            thread.start()
            assert again.reply() == [b"message", b"c", b"back"]
            done.set()
            thread.join()


def test_redis_py_subscribes_to_channels_of_a_slot(cluster):
    with RedisCluster(startup_nodes=[ClusterNode("127.0.0.1", cluster.members[0].port)]) as client:
        with client.pubsub() as pubsub:
            for number in range(20):
                pubsub.ssubscribe(f"orders:{number}")
            for number in range(20):
                assert client.spublish(f"orders:{number}", number) == 1
            got = set()

            def all_came():
                message = pubsub.get_sharded_message(timeout=0.01)
                if message and message["type"] == "smessage":
                    got.add((message["channel"], message["data"]))
                return len(got) == 20

            wait_until(all_came, "every message comes")
            assert got == {(b"orders:%d" % number, b"%d" % number) for number in range(20)}


def test_a_slot_that_leaves_ends_the_subscriptions_to_its_channels(cluster):
    channel = "orders"
    owner = owner_of(cluster, channel)
    stays = next(name for name in map(str, range(10_000)) if owner_of(cluster, name) is owner)
    with contextlib.ExitStack() as stack:
        listeners = []
        for version in (2, 3):
            wire = stack.enter_context(harness.Wire(owner.port))
            wire.call("HELLO", version)
            wire.call("SSUBSCRIBE", channel)
            wire.call("SSUBSCRIBE", stays)
            wire.call("SUBSCRIBE", channel)
            listeners.append(wire)
        other = next(member for member in cluster.members if member is not owner)
        with harness.Wire(other.port) as wire, pytest.raises(ErrorReply, match="MOVED"):
            wire.call("SSUBSCRIBE", channel)
        slot = redis.crc.key_slot(channel.encode())
        status = cluster.await_health()
        target = next(each for each in status["servers"] if each["resp"] == other.resp)
        done = cluster.tell("tablet", "migrate", "db0", "--slots", f"{slot}-{slot}", "--to", target["server"])
        assert done.returncode == 0, done
        for listener in listeners:
            assert listener.reply() == [b"sunsubscribe", channel.encode(), 1]
        with harness.Wire(other.port) as wire:
            assert wire.call("SPUBLISH", channel, "x") == 0
            assert wire.call("PUBLISH", channel, "still here") == 0
        with harness.Wire(owner.port) as wire:
            with pytest.raises(ErrorReply, match="MOVED"):
                wire.call("SPUBLISH", channel, "x")
            assert wire.call("SPUBLISH", stays, "y") == 2
        for listener in listeners:
            heard = [listener.reply(), listener.reply()]
            assert [b"message", channel.encode(), b"still here"] in heard
            assert [b"smessage", stays.encode(), b"y"] in heard
