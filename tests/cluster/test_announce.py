"""Members that announce an address at which nobody reaches them: the others do not notice them."""

import time

import pytest

import harness
from harness import wait_until
from processes import Cluster, Member

pytestmark = pytest.mark.duramen

# Longest write meanwhile, on shared cores. A backup that nobody reaches delayed them without end.
SLOWEST_S = 20


def keys_of(cluster):
    """An open connection to each server, with a key that it owns."""
    found = []
    for member in cluster.members:
        wire = harness.Wire(member.port)
        for number in range(1000):
            try:
                wire.call("SET", f"key{number}", "x")
            except harness.ErrorReply:
                continue  # another server's
            found.append((wire, f"key{number}"))
            break
    assert len(found) == len(cluster.members)
    return found


@pytest.mark.parametrize("address", ["192.0.2.1", harness.only_full("no-such-host.invalid")])
def test_a_member_that_is_not_reached_does_not_join_and_delays_no_write(place, address):
    with Cluster(place, 3, replicas=2, settings=harness.CALM) as cluster:
        owned = keys_of(cluster)
        lost = Member("lost", place / "lost", cluster)
        lost.start("--announce", address)
        try:
            wait_until(lambda: "cannot reach this member at the address that it announces" in lost.log(), "it logs why")
            assert f"{address}:{lost.native_port}" in lost.log()
            slowest = 0
            for _ in harness.rounds(harness.of_tier(2, 6), least=3):
                for wire, key in owned:
                    sent = time.monotonic()
                    wire.call("SET", key, b"v" * 20_000)
                    slowest = max(slowest, time.monotonic() - sent)
            assert slowest < SLOWEST_S, slowest
            status = cluster.certain_status()
            assert [server["state"] for server in status["servers"]] == ["up"] * 3, status["servers"]
            assert "a server crashed" not in cluster.coordinators[0].log()
            # With the right address it joins at once.
            lost.kill()
            lost.start()
            wait_until(lambda: cluster.certain_status()["servers"][3:], "it is a member")
        finally:
            lost.kill()
