"""A bit flips in the memory of a member, which is then killed."""

import pytest
import redis

import flips
from processes import Cluster
from runs import fill

pytestmark = [pytest.mark.duramen, pytest.mark.full]

KEYS = 20_000
FLIPPED = b"the-key-with-the-bit"
VALUE = b"0123456789abcdef" * 40
ROUNDS = 10


def check(client, round_):
    for at in range(0, KEYS, 2000):
        pipe = client.pipeline()
        for n in range(at, at + 2000):
            pipe.get(f"k{n}")
        for n, found in enumerate(pipe.execute(), at):
            assert found == b"%04d" % round_ * 160, n


def test_a_flipped_bit_costs_no_key(place):
    """The recovery of a member never ended: its backups had the bad entry with good checksums."""
    with Cluster(place, 4, replicas=2) as cluster:
        ports = [member.port for member in cluster.members]
        with redis.RedisCluster(host="127.0.0.1", port=ports[0]) as client:
            fill(client, KEYS, 0)
            client.set(FLIPPED, VALUE)
            fill(client, KEYS, 1)
            ill = cluster.owner(client, FLIPPED)
            assert flips.flip_in_value(ill.process.pid, FLIPPED, VALUE, 100, [3]) > 0
            for round_ in range(2, ROUNDS):
                fill(client, KEYS, round_)
        ill.kill()
        cluster.await_health()
        alive = next(member for member in cluster.members if member is not ill)
        with redis.RedisCluster(host="127.0.0.1", port=alive.port) as client:
            assert client.get(FLIPPED) == VALUE
            check(client, ROUNDS - 1)
