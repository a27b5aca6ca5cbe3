"""More servers are down than the replicas allow: requests wait, and everybody says for what."""

import re

import pytest

import harness
from harness import wait_until
from processes import Cluster

pytestmark = [pytest.mark.duramen, pytest.mark.full]

KEYS = 200
NEEDED = "3 of the 4 servers needed are up"


def tried(port, *arguments):
    """Sends one command to the server that serves its key: its reply in a list, or the error of a
    request that has waited."""
    for _ in range(6):
        try:
            with harness.Wire(port, timeout=harness.PATIENCE_S) as wire:
                return [wire.call(*arguments)]
        except harness.ErrorReply as error:
            moved = re.match(r"MOVED \d+ \S+:(\d+)", str(error))
            if not moved:
                return str(error)
            port = int(moved[1])
        except (OSError, harness.Closed) as error:
            return repr(error)
    return "it is moved on and on"


def answered(port, *arguments):
    def once():
        said = tried(port, *arguments)
        return said if isinstance(said, list) else None

    return wait_until(once, f"{arguments} is answered")[0]


def test_two_of_five_are_down_with_three_replicas(place):
    """Nothing was answered, and `status`, `CLUSTER INFO` and the error did not say why. Three
    replicas need four servers: each of the three says so, and when a fourth one comes all goes on."""
    options = ("--reply-timeout", "3")
    with Cluster(place, 5, replicas=3, settings=harness.CALM, options=options) as cluster, cluster.explained():
        port = cluster.members[0].port
        keys = [f"k{n}" for n in range(KEYS)]
        for key in keys:
            assert answered(port, "SET", key, key) == b"OK"
        for member in cluster.members[3:]:
            member.kill()

        def says_why():
            status = cluster.status()
            return status if status and NEEDED in status["summary"] else None

        status = wait_until(says_why, "status says what is missing", pause_s=0.2)
        assert status["state"] == "waits" and status["summary"].endswith("Start 1 more"), status["summary"]
        assert cluster.tell("status").stdout.splitlines()[0].count(NEEDED) == 1

        def knows(member):
            with harness.Wire(member.port) as wire:
                said = wire.call("CLUSTER", "INFO").decode()
            return "cluster_state:fail" in said and f"duramen_waits_for:{NEEDED}: start another one" in said

        for member in cluster.members[:3]:
            wait_until(lambda member=member: knows(member), f"{member.name} says what is missing")
        # A request is answered, or its error names the remedy; it does not hang.
        reads, writes = {}, {}

        def ask(n):
            reads[n], writes[n] = tried(port, "GET", keys[n]), tried(port, "SET", keys[n], "new")

        harness.in_threads(20, ask)
        for reply in [*reads.values(), *writes.values()]:
            assert isinstance(reply, list) or re.match("NOREPLICAS|TRYAGAIN|CLUSTERDOWN", reply), reply
        print(f"{sum(isinstance(reply, list) for reply in reads.values())} of {len(reads)} reads are answered")
        assert not any(isinstance(reply, list) for reply in writes.values()), "three copies cannot be made"
        refused = [reply for reply in writes.values() if reply.startswith("NOREPLICAS")]
        assert refused and all(reply.endswith(f"{NEEDED}: start another one") for reply in refused), writes
        cluster.members[3].start()
        cluster.await_health()
        status = cluster.certain_status()
        assert status["state"] == "served" and "all of them are needed" in status["summary"], status["summary"]
        for key in keys:
            assert answered(port, "GET", key) in (key.encode(), b"new"), key
        for key in keys:
            assert answered(port, "SET", key, "newer") == b"OK"
