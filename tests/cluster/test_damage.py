"""Damage at rest: a replica that was found damaged is replaced while all members live."""

import time

import pytest
import redis

import harness
from harness import wait_until
from processes import Cluster

pytestmark = pytest.mark.duramen

VALUE_BYTES = 16_000
KEYS = 1_500
SCRUB_MS = 2


def key(number):
    return f"k{number}"


def value(number):
    return f"{number}.".encode() + bytes([65 + number % 26]) * VALUE_BYTES


def damage(member):
    """Overwrites some bytes of each value in the member's replicas; returns their number."""
    changed = 0
    with open(member.folder / "data" / "backup" / "frames", "r+b") as frames:
        data = frames.read()
        at = 0
        while at + 64 < len(data):
            piece = data[at : at + 64]
            if 65 <= piece[0] <= 90 and piece == piece[:1] * 64:
                frames.seek(at + 8)
                frames.write(b"#" * 8)
                changed += 1
                at += VALUE_BYTES
            else:
                at += 1_000
    return changed


def figure(member, name):
    with harness.Wire(member.port, timeout=10) as wire:
        text = wire.call("INFO", "cluster").decode()
    return int(dict(line.split(":", 1) for line in text.splitlines() if ":" in line)[name])


@pytest.mark.parametrize("zones", [(), ("--zone-size", "32mb")], ids=["scattered", "zones"])
def test_damaged_replicas_are_replaced(place, zones):
    """With two replicas, the damage of one disk and then the deaths of two other members lose
    nothing, because the damage was replaced before."""
    settings = ["--segment-size", "2mb", *zones]
    options = ["--scrub-interval", SCRUB_MS]
    with Cluster(place, 5, replicas=2, settings=settings, options=options) as cluster:
        ports = [member.port for member in cluster.members]
        with redis.RedisCluster(host="127.0.0.1", port=ports[0]) as client:
            for number in range(KEYS):
                client.set(key(number), value(number))
        ill = cluster.members[1]
        changed = wait_until(lambda: damage(ill), "replicas are in their frames", patience_s=30)
        print(changed, "values are damaged")
        wait_until(lambda: figure(ill, "duramen_damaged_replicas") > 0, "the damage is found", patience_s=60)

        # The scrubber visits all frames in less than this time.
        wait_until(lambda: rests(ill, 5), "all of it is found and replaced", patience_s=180)
        cluster.members[0].kill()
        cluster.members[2].kill()
        cluster.await_health()
        with redis.RedisCluster(host="127.0.0.1", port=ports[3]) as client:
            for number in range(KEYS):
                assert client.get(key(number)) == value(number), key(number)


def rests(member, seconds):
    """Whether no damage is left, and none is found for some time."""
    found = figure(member, "duramen_damaged_replicas")
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if figure(member, "duramen_damaged_replicas_left") > 0:
            return False
        time.sleep(0.2)
    return figure(member, "duramen_damaged_replicas") == found
