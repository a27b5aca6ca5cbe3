"""Tablets that move under load, while servers and the coordinator die: one owner at every moment,
nothing lost."""

import pytest

import harness
from processes import Cluster
from runs import clients_of, filled, histories_under, nothing_failed, settle

pytestmark = pytest.mark.duramen


def test_moves_and_kills(place):
    with Cluster(place, 5, replicas=3, settings=harness.CALM) as cluster:
        clients = clients_of(cluster, place)
        filled(clients)
        refused = []

        def move(storm):
            done = cluster.move_something(storm.dice)
            if done.returncode:
                refused.append(done.stderr)
            cluster.await_health()

        def move_and_kill(storm):
            done = cluster.move_something(storm.dice)
            if done.returncode:
                refused.append(done.stderr)
            storm.rest(0, 0.1)
            died = storm.dice.choice([*cluster.members, *cluster.coordinators])
            died.kill()
            storm.rest(0, 0.5)
            died.start()
            cluster.await_health()

        storm = histories_under(cluster, clients, "move", [move, move, move_and_kill], 20, quick=2)
        print(f"{len(refused)} refused:", refused[:3])
        # A move may lose its race with a recovery, but not each of them; the number depends on
        # scheduling.
        assert len(refused) < sum(storm.counts.values()), refused
        settle(cluster, clients)
        clients.end()


def test_a_rolling_restart(place):
    """Each server is drained, stopped and started: no recovery, and no errors for clients. The
    replicas that it keeps for others stay on its disk."""
    with Cluster(place, 5, replicas=3, settings=harness.CALM) as cluster:
        clients = clients_of(cluster, place)
        filled(clients)
        clients.begin("rolling", 8)
        for member in cluster.members:
            drained = cluster.tell("drain", member.resp, "--wait", timeout_s=60)
            assert drained.returncode == 0, drained
            share = next(each for each in cluster.certain_status()["servers"] if each["resp"] == member.resp)
            assert (share["state"], share["tablets"], share["drain_waits_for"]) == ("draining", 0, None), share
            assert member.stop() == 0
            member.start()
            cluster.await_health()
        said = clients.finish()
        nothing_failed([said])
        settle(cluster, clients)
        clients.end()
