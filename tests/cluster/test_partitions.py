"""Network faults: a server cut off from the others, one way or both, on and off, while clients
still reach it."""

import pytest

from processes import Cluster
from runs import clients_of, filled, histories_under, settle

pytestmark = pytest.mark.duramen

LEASE_S = 1.0


def test_partitions(place, network):
    with Cluster(place, 5, replicas=3, network=network) as cluster:
        clients = clients_of(cluster, place)
        filled(clients)
        coordinator = cluster.coordinators[0].host

        def apart(storm, one_way, with_coordinator):
            count = storm.dice.choice([1, 1, 2])
            lonely = [member.host for member in storm.dice.sample(cluster.members, count)]
            others = [member.host for member in cluster.members if member.host not in lonely]
            return (lonely, [*others, coordinator] if with_coordinator else others, one_way)

        def cut(storm, one_way, with_coordinator):
            left, right, one_way = apart(storm, one_way, with_coordinator)
            if one_way and storm.dice.random() < 0.5:
                left, right = right, left
            network.cut(left, right, one_way=one_way)
            storm.rest(0.1, 3 * LEASE_S)
            network.heal()
            cluster.await_health()

        def cut_off(storm):
            cut(storm, False, True)

        def cut_off_but_from_the_coordinator(storm):
            cut(storm, False, False)

        def one_way(storm):
            cut(storm, True, True)

        def flapping(storm):
            left, right, _ = apart(storm, False, True)
            for _ in range(8):
                network.cut(left, right)
                storm.rest(0.02, 0.3)
                network.heal()
                storm.rest(0.02, 0.3)
            cluster.await_health()

        def without_coordinator(storm):
            lonely = storm.dice.choice(cluster.members).host
            network.cut([lonely], [coordinator])
            storm.rest(0.1, 2 * LEASE_S)
            network.heal()
            cluster.await_health()

        faults = [cut_off, cut_off_but_from_the_coordinator, one_way, flapping, without_coordinator]
        histories_under(cluster, clients, "cut", faults, 25, quick=3, masked=False)
        settle(cluster, clients)
        clients.end()
