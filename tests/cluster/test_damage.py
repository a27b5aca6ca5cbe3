"""Damage at rest: a replica that was found damaged is replaced while all members live."""

import pytest
import redis

import harness
from harness import wait_until
from processes import Cluster

pytestmark = [pytest.mark.duramen, pytest.mark.full]

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


def damaged(members):
    """Damages the first of the members that has values in frames; returns it, and their number."""
    return next(((member, changed) for member in members if (changed := damage(member))), None)


def figures(member):
    """The figures of `INFO cluster` whose names begin with `duramen_damaged` or `duramen_scrub`."""
    with harness.Wire(member.port, timeout=60) as wire:
        text = wire.call("INFO", "cluster").decode()
    fields = dict(line.split(":", 1) for line in text.splitlines() if ":" in line)
    wanted = ("duramen_damaged", "duramen_scrub")
    return {name: int(value) for name, value in fields.items() if name.startswith(wanted)}


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
        # Segments are placed by chance: one of the members that stay may have no closed one.
        stay = [cluster.members[at] for at in (1, 3, 4)]
        ill, changed = wait_until(lambda: damaged(stay), "replicas are in their frames", patience_s=30)
        print(changed, "values are damaged")
        # Figures may be a moment old. Those that have changed twice were counted after the damage.
        for _ in range(2):
            await_next_rounds(ill)
        # The round that is running now, and a whole one after it.
        rounds = figures(ill)["duramen_scrub_rounds"] + 2
        what = "all damage is found and replaced"
        wait_until(lambda: is_mended(ill, rounds), what, patience_s=600, pause_s=0.2)
        assert figures(ill)["duramen_damaged_replicas"] > 0, "the damage is found"
        cluster.members[0].kill()
        cluster.members[2].kill()
        cluster.await_health()
        with redis.RedisCluster(host="127.0.0.1", port=ports[3]) as client:
            for number in range(KEYS):
                assert client.get(key(number)) == value(number), key(number)


def await_next_rounds(member):
    """Waits until the member shows a new number of its scrubber's rounds."""
    before = figures(member)["duramen_scrub_rounds"]

    def is_next():
        return figures(member)["duramen_scrub_rounds"] != before

    wait_until(is_next, "the scrubber works", patience_s=600)


def is_mended(member, rounds):
    """Whether that many rounds of the scrubber have ended and no damage is left. The member counts
    both at one moment, so all that these rounds found has been replaced."""
    shown = figures(member)
    return shown["duramen_scrub_rounds"] >= rounds and shown["duramen_damaged_replicas_left"] == 0
