"""All replicas of a segment are damaged: the recovery waits for the operator. If one
of them is, `fsck` counts it.
"""

import json
import re
import subprocess

import pytest
import redis

import harness
from harness import wait_until
from processes import Cluster
from runs import fill

pytestmark = [pytest.mark.duramen, pytest.mark.full]

KEYS = 20_000
FLIPPED = b"the-key-with-the-bit"
VALUE = b"0123456789abcdef" * 40


def hurt(member, key, value):
    """Changes two bits of the value of this key in the member's frames."""
    with open(member.folder / "data" / "backup" / "frames", "r+b") as frames:
        data = frames.read()
        at, found = data.find(key + value), 0
        while at >= 0:
            frames.seek(at + len(key) + 100)
            byte = data[at + len(key) + 100]
            frames.write(bytes([byte ^ 0x18]))
            at, found = data.find(key + value, at + 1), found + 1
        return found


def test_a_recovery_without_a_whole_replica_waits_for_the_operator(place):
    options, settings = ["--scrub-interval", 0], ["--segment-size", "2mb"]
    with Cluster(place, 4, replicas=2, options=options, settings=settings) as cluster:
        ports = [member.port for member in cluster.members]
        with redis.RedisCluster(host="127.0.0.1", port=ports[0]) as client:
            client.set(FLIPPED, b"older")
            fill(client, KEYS, 0)
            client.set(FLIPPED, VALUE)
            fill(client, KEYS, 1)
            ill = cluster.owner(client, FLIPPED)
        others = [member for member in cluster.members if member is not ill]

        replicas = set()

        def are_hurt():
            replicas.update(member.name for member in others if hurt(member, FLIPPED, VALUE))
            return len(replicas) == 2

        wait_until(are_hurt, "both replicas are in frames", patience_s=60)
        servers = cluster.status()["servers"]
        dead = next(each["server"] for each in servers if each["resp"] == ill.resp)
        ill.kill()

        def asked():
            done = cluster.tell("accept-loss", "--server", dead)
            return done.stdout if done.returncode == 1 and "--token" in done.stdout else None

        said = wait_until(asked, "the loss is told", patience_s=120, pause_s=0.5)
        assert FLIPPED.decode() in said, said
        assert "duramen accept-loss" in cluster.tell("status").stdout
        assert cluster.tell("accept-loss", "--server", dead, "--token", "00000000").returncode == 3
        done = cluster.tell("accept-loss", "--server", dead, "--token", said.split()[-1])
        assert done.returncode == 0, done
        cluster.await_health()
        with redis.RedisCluster(host="127.0.0.1", port=others[0].port) as client:
            assert client.get(FLIPPED) is None, "not the older value"
            found = [client.get(f"k{n}") for n in range(0, KEYS, 37)]
            lost = found.count(None)
            assert found.count(b"0001" * 160) == len(found) - lost and lost < len(found) // 3, lost


def test_fsck_counts_a_damaged_replica_of_a_member(place):
    """`fsck` did not look into entries. It is no problem of the member: its cluster has another
    replica made in place of this one."""
    options, settings = ["--scrub-interval", 0], ["--segment-size", "2mb"]
    with Cluster(place, 3, replicas=1, options=options, settings=settings) as cluster:
        with redis.RedisCluster(host="127.0.0.1", port=cluster.members[0].port) as client:
            client.set(FLIPPED, VALUE)
            fill(client, KEYS, 0)
            others = [member for member in cluster.members if member is not cluster.owner(client, FLIPPED)]

        def one_is_hurt():
            return next((member for member in others if hurt(member, FLIPPED, VALUE)), None)

        ill = wait_until(one_is_hurt, "its replica is in a frame", patience_s=60)
        assert ill.stop() == 0
        command = [harness.BINARY, "fsck", "--json", str(ill.folder / "data" / "backup")]
        done = subprocess.run(command, capture_output=True, text=True, env=harness.environment({}), timeout=harness.PATIENCE_S)
        assert done.returncode == 0, done
        told = json.loads(done.stdout)
        notes = "\n".join(told["notes"])
        assert told["sound"] and re.search(r"logs of other servers, [1-9]\d* of them unreadable", notes), told
