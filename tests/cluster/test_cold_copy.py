"""A cluster is backed up by a copy of its stopped processes' directories, as operations.md says: the
copy serves everything at other addresses, and the original goes on as before."""

import subprocess

import pytest

from processes import Cluster
from runs import clients_of

pytestmark = [pytest.mark.duramen, pytest.mark.full]

KEYS, VALUE_BYTES = 20_000, 1000


def stop(cluster):
    """The coordinator first: it would take the members for dead, one after the other, and move
    their data while they end."""
    for process in [*cluster.coordinators, *cluster.members]:
        assert process.stop() == 0, process.name


def start(cluster):
    for process in cluster.everybody():
        process.start()
    return cluster.await_health()


def holds(cluster, place, value_bytes):
    clients = clients_of(cluster, place, timeout_ms=30_000)
    said = clients.ask("checkfill", KEYS, value_bytes)
    clients.end()
    assert said["wrong"] == 0, said


@pytest.mark.parametrize("members, replicas", [(3, 2), (5, 3)])
def test_a_copy_of_a_stopped_cluster_serves_elsewhere(place, members, replicas):
    original, backup = place / "original", place / "backup"
    with Cluster(original, members, replicas=replicas) as cluster:
        clients = clients_of(cluster, place, timeout_ms=30_000)
        for number in range(3):
            said = clients.ask("fill", KEYS, VALUE_BYTES + number)
            assert not said["failures"], said
        clients.end()
        tablets = len(cluster.certain_status()["tablets"])
        stop(cluster)
        subprocess.run(["cp", "-a", "--sparse=always", original, backup], check=True)
        # It has other addresses: those of its new machines.
        copy = Cluster(backup, members, replicas=replicas)
        try:
            start(copy)
            holds(copy, place, VALUE_BYTES + 2)
            assert len(copy.certain_status()["tablets"]) == tablets
            clients = clients_of(copy, place, timeout_ms=30_000)
            assert not clients.ask("fill", KEYS, VALUE_BYTES + 7)["failures"]
            clients.end()
            stop(copy)
            start(copy)
            holds(copy, place, VALUE_BYTES + 7)
            stop(copy)
        except BaseException:
            copy.leave_state()
            raise
        finally:
            copy.end()
        start(cluster)
        holds(cluster, place, VALUE_BYTES + 2)
