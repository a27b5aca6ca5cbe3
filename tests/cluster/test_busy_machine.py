"""A machine without free processors: members wait for one, and none of them counts as dead.

Four survivors of one killed member were called crashed at a load of 12 to 20 on two cores."""

import contextlib
import os
import random
import subprocess
import sys

import pytest

import harness
from processes import Cluster
from runs import FILL, clients_of, filled

pytestmark = [pytest.mark.duramen, pytest.mark.alone]

MEMBERS = 5
# Processes that never wait, for each core.
LOOPS = 8
ROUNDS = harness.of_tier(3, 20)


@contextlib.contextmanager
def busy_loops():
    count = LOOPS * len(os.sched_getaffinity(0))
    loops = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
        for loop in loops:
            loop.wait()


def lives(cluster):
    """The member that each running process is."""
    up = [server for server in cluster.certain_status()["servers"] if server["state"] == "up"]
    of = {server["native"]: server["server"] for server in up}
    return {member.name: of.get(member.native) for member in cluster.members if member.is_running()}


def test_survivors_of_a_killed_member_live(place):
    """With the verdict timeout of a coordinator by itself, 250 ms."""
    dice = random.Random(1)
    with Cluster(place, MEMBERS, replicas=3) as cluster:
        clients = clients_of(cluster, place, timeout_ms=60_000)
        filled(clients)
        with busy_loops(), cluster.explained():
            cluster.await_health()
            for number in range(ROUNDS):
                victim = dice.choice(cluster.members)
                before = lives(cluster)
                victim.kill()
                cluster.await_health()
                del before[victim.name]
                assert lives(cluster) == before, f"round {number}: a survivor was called crashed"
                victim.start()
                cluster.await_health()
        said = clients.ask("checkfill", *FILL)
        assert said["wrong"] == 0, said
        clients.end()
