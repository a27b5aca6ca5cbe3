"""Deaths of coordinators, and of the store of their state: clients continue."""

import signal
import time

import pytest

from processes import Cluster
from runs import clients_of, filled, histories_under, settle

pytestmark = pytest.mark.duramen

# A new leader leads within 3 s; the rest is the delay of two shared cores.
FAILOVER_S = 3 + 27


def test_a_coordinator_with_its_own_store_is_killed(place):
    with Cluster(place, 5, replicas=3) as cluster:
        clients = clients_of(cluster, place)
        filled(clients)
        coordinator = cluster.coordinators[0]

        def kill(storm):
            coordinator.kill()
            storm.rest(0, 1)
            coordinator.start()
            cluster.await_health()

        def kill_with_a_server(storm):
            member = storm.dice.choice(cluster.members)
            coordinator.kill()
            member.kill()
            storm.rest(0, 1)
            first, second = storm.dice.sample([coordinator, member], 2)
            first.start()
            storm.rest(0, 0.5)
            second.start()
            cluster.await_health()

        histories_under(cluster, clients, "coordinator", [kill, kill_with_a_server], 15, quick=2)
        settle(cluster, clients)
        clients.end()


def test_coordinators_on_etcd(place):
    with Cluster(place, 5, replicas=3, coordinators=3, etcd=True) as cluster:
        clients = clients_of(cluster, place)
        filled(clients)
        failovers = []

        def leader():
            status = cluster.await_health()
            return next(each for each in cluster.coordinators if each.listens == status["leader"])

        def failed_over(dead):
            began = time.monotonic()
            # A stopped coordinator accepts connections and never answers: it must not delay the
            # query of the others.
            others = [each for each in cluster.coordinators if each is not dead]
            while cluster.status(timeout_s=1, coordinators=others) is None:
                assert time.monotonic() - began < FAILOVER_S, "no other coordinator leads"
            failovers.append(time.monotonic() - began)

        def kill_the_leader(storm):
            dead = leader()
            dead.kill()
            failed_over(dead)
            dead.start()
            cluster.await_health()

        def stop_the_leader(storm):
            stopped = leader()
            stopped.signal(signal.SIGSTOP)
            try:
                failed_over(stopped)
            finally:
                stopped.signal(signal.SIGCONT)
            cluster.await_health()

        def kill_the_leader_with_a_server(storm):
            dead, member = leader(), storm.dice.choice(cluster.members)
            member.kill()
            storm.rest(0, 0.5)
            dead.kill()
            failed_over(dead)
            dead.start()
            member.start()
            cluster.await_health()

        def kill_etcd(storm):
            cluster.etcd.kill()
            storm.rest(0, 3)
            cluster.etcd.start()
            cluster.await_health()

        faults = [kill_the_leader, stop_the_leader, kill_the_leader_with_a_server, kill_etcd]
        histories_under(cluster, clients, "etcd", faults, 25, quick=2)
        print("failover:", [f"{seconds:.1f} s" for seconds in failovers])
        settle(cluster, clients)
        clients.end()
