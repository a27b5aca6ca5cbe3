"""Clients of a cluster that wait for elements: they are served by the owner of their keys, told when
the keys leave, and closed when the owner dies."""

import contextlib
import threading

import pytest
from redis.cluster import ClusterNode, RedisCluster

import harness
from harness import Closed, ErrorReply, encode, wait_until
from processes import Cluster

pytestmark = pytest.mark.duramen

KEY = "jobs"


@pytest.fixture
def cluster(place):
    with Cluster(place, 4, replicas=2, settings=harness.CALM) as running:  # one may die
        yield running


def owner_of(cluster, key):
    for member in cluster.members:
        with harness.Wire(member.port) as wire, contextlib.suppress(ErrorReply):
            wire.call("EXISTS", key)
            return member
    raise AssertionError("nobody serves it")


def waiting(member):
    with harness.Wire(member.port) as wire:
        lines = wire.call("INFO", "clients").splitlines()
        return int(next(line for line in lines if line.startswith(b"blocked_clients:")).split(b":")[1])


def await_waiting(member, number):
    wait_until(lambda: waiting(member) == number, f"{number} clients wait")


def move(cluster, key, target):
    """Moves the slot of a key to another member."""
    with harness.Wire(target.port) as wire:
        slot = wire.call("CLUSTER", "KEYSLOT", key)
    servers = cluster.await_health()["servers"]
    server = next(each["server"] for each in servers if harness.port_of(each["resp"]) == target.port)
    slots = f"{slot}-{slot}"
    done = cluster.tell("tablet", "migrate", "db0", "--slots", slots, "--to", server, "--wait", timeout_s=60)
    assert done.returncode == 0, done


def test_those_who_wait_for_keys_that_leave_are_sent_after_them(cluster):
    owner = owner_of(cluster, KEY)
    target = next(member for member in cluster.members if member is not owner)
    stays = next(name for name in map(str, range(10_000)) if owner_of(cluster, name) is owner)
    with harness.Wire(owner.port) as first, harness.Wire(owner.port) as second, harness.Wire(owner.port) as third:
        first.send(encode("BLPOP", KEY, 0))
        second.send(encode("BLMOVE", f"{{{KEY}}}:a", f"{{{KEY}}}:b", "LEFT", "LEFT", 0))
        third.send(encode("BZPOPMIN", stays, 0))
        await_waiting(owner, 3)
        move(cluster, KEY, target)
        for waiter in (first, second):
            with pytest.raises(ErrorReply, match=f"MOVED \\d+ \\S+:{target.port}"):
                waiter.reply()
        await_waiting(owner, 1)
        with harness.Wire(target.port) as there:
            there.send(encode("BLPOP", KEY, 0))
            await_waiting(target, 1)
            with harness.Wire(target.port) as writer:
                assert writer.call("RPUSH", KEY, "x") == 1
            assert there.reply() == [KEY.encode(), b"x"]
        with harness.Wire(owner.port) as writer:
            assert writer.call("ZADD", stays, 1, "m") == 1
        assert third.reply() == [stays.encode(), b"m", b"1"]


def test_the_owner_of_a_key_dies(cluster):
    owner = owner_of(cluster, KEY)
    with harness.Wire(owner.port) as waiter:
        waiter.send(encode("BLPOP", KEY, 0))
        await_waiting(owner, 1)
        owner.kill()
        with pytest.raises(Closed):
            waiter.reply()
    others = [member for member in cluster.members if member is not owner]

    def new_owner():
        with contextlib.suppress(ErrorReply, OSError, Closed):
            for member in others:
                with harness.Wire(member.port) as wire, contextlib.suppress(ErrorReply):
                    wire.call("EXISTS", KEY)
                    return member
        return None

    member = wait_until(new_owner, "another member serves the key")
    with harness.Wire(member.port) as waiter, harness.Wire(member.port) as writer:
        waiter.send(encode("BLPOP", KEY, 30))
        await_waiting(member, 1)
        assert writer.call("RPUSH", KEY, "x") == 1
        assert waiter.reply() == [KEY.encode(), b"x"]
    owner.start()


def test_jobs_of_a_cluster_client_while_slots_move(cluster):
    """Each job is done once, while its slot moves from member to member."""
    jobs, done, lock = 300, [], threading.Lock()
    nodes = [ClusterNode("127.0.0.1", member.port) for member in cluster.members]

    def work():
        with RedisCluster(startup_nodes=nodes) as client:
            while True:
                reply = client.blpop(KEY, timeout=5)
                if reply is None:
                    continue
                if reply[1] == b"end":
                    return
                with lock:
                    done.append(int(reply[1]))

    workers = [threading.Thread(target=work) for _ in range(4)]
    for worker in workers:
        worker.start()
    with RedisCluster(startup_nodes=nodes) as client:
        for job in range(jobs):
            client.rpush(KEY, job)
            if job % 60 == 30:
                owner = owner_of(cluster, KEY)
                move(cluster, KEY, next(member for member in cluster.members if member is not owner))
        wait_until(lambda: len(done) == jobs, "all jobs are done")
        client.rpush(KEY, *["end"] * len(workers))
        for worker in workers:
            worker.join()
        assert sorted(done) == list(range(jobs))
