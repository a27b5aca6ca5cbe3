"""Servers killed with SIGKILL and stopped with SIGSTOP under load: no acknowledged write is lost,
no stale value is read."""

import signal

import pytest

from processes import Cluster
from runs import clients_of, filled, histories_under, settle

pytestmark = pytest.mark.duramen

# After R-1 deaths each remaining server still finds R others for its log.
SERVERS = 6
REPLICAS = 3
LEASE_S = 1.0


@pytest.fixture(scope="module")
def cluster(home):
    with Cluster(home, SERVERS, replicas=REPLICAS) as running:
        yield running


@pytest.fixture
def clients(cluster, place):
    cluster.await_health()
    made = clients_of(cluster, place)
    filled(made)
    yield made
    made.end()


def test_kills(cluster, clients):
    def kill(storm):
        member = cluster.victim(storm.dice)
        member.kill()
        storm.rest(0, 0.6)
        member.start()
        cluster.await_health()

    histories_under(cluster, clients, "kill", [kill], 25)
    settle(cluster, clients)


def test_as_many_kills_at_once_as_data_survives(cluster, clients):
    """R-1 servers at once; they return only when the others serve everything."""

    def kill_some(storm):
        members = storm.dice.sample(cluster.members, REPLICAS - 1)
        for member in members:
            member.kill()
        cluster.await_health()
        for member in members:
            member.start()
        cluster.await_health()

    histories_under(cluster, clients, "kills", [kill_some], 20)
    settle(cluster, clients)


def test_pauses(cluster, clients):
    """A server that stops for longer than its lease comes back as a zombie that serves nothing; a
    short stop has no effect."""

    def pause(storm, least_s, most_s):
        member = cluster.victim(storm.dice)
        member.signal(signal.SIGSTOP)
        try:
            storm.rest(least_s, most_s)
        finally:
            member.signal(signal.SIGCONT)

    def blink(storm):
        pause(storm, 0.02, 0.2)

    def zombie(storm):
        pause(storm, 1.2 * LEASE_S, 3 * LEASE_S)
        cluster.await_health()

    histories_under(cluster, clients, "pause", [blink, zombie], 20, quick=2)
    settle(cluster, clients)


def test_kills_and_pauses_together(cluster, clients):
    def kill_while_another_pauses(storm):
        paused, killed = storm.dice.sample(cluster.members, 2)
        paused.signal(signal.SIGSTOP)
        try:
            storm.rest(0, LEASE_S)
            killed.kill()
            storm.rest(0, LEASE_S)
        finally:
            paused.signal(signal.SIGCONT)
        storm.rest(0, 0.3)
        killed.start()
        cluster.await_health()

    histories_under(cluster, clients, "both", [kill_while_another_pauses], 15)
    settle(cluster, clients)
