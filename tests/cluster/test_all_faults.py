"""All faults in one cluster of five, in any order: deaths, pauses, full disks and hanging ones,
moves, drains, coordinators, power."""

import contextlib
import os
import signal

import pytest

import harness
from processes import Cluster
from runs import clients_of, filled, histories_under, settle

pytestmark = pytest.mark.duramen

SERVERS = 5
REPLICAS = 3
DISK = 1 << 30
HISTORIES = 16
SEED = int(os.environ.get("DURAMEN_TEST_SEED", "1"))


@pytest.fixture
def disks(place):
    """A disk for each server, at the path of its folder."""
    with contextlib.ExitStack() as stack:
        for number in range(SERVERS):
            stack.enter_context(harness.disk(place / f"disk{number}", place / f"server{number}", DISK))
        yield


class Faults:
    """Each method is one fault, or two that fit together, and waits until the cluster is whole
    again."""

    def __init__(self, cluster):
        self.cluster = cluster

    def all(self):
        return [getattr(self, name) for name in dir(type(self)) if name.startswith("do_")]

    def restart(self, storm, *processes):
        """Kills all of them, and starts them again in any order."""
        for process in processes:
            process.kill()
        storm.rest(0, 1)
        for process in storm.dice.sample(processes, len(processes)):
            process.start()
            storm.rest(0, 0.3)
        self.cluster.await_health()

    def do_kill(self, storm):
        self.restart(storm, self.cluster.victim(storm.dice))

    def do_kill_two(self, storm):
        self.restart(storm, *storm.dice.sample(self.cluster.members, REPLICAS - 1))

    def do_kill_a_coordinator_and_a_server(self, storm):
        self.restart(storm, storm.dice.choice(self.cluster.coordinators), storm.dice.choice(self.cluster.members))

    def do_kill_the_store_of_the_coordinators(self, storm):
        self.restart(storm, self.cluster.etcd or self.cluster.coordinators[0])

    def do_power_cut(self, storm):
        self.restart(storm, *self.cluster.everybody())

    @contextlib.contextmanager
    def paused(self, process):
        process.signal(signal.SIGSTOP)
        try:
            yield
        finally:
            process.signal(signal.SIGCONT)

    def do_pause(self, storm):
        with self.paused(storm.dice.choice([*self.cluster.members, *self.cluster.coordinators])):
            storm.rest(0.05, 3)
        self.cluster.await_health()

    def do_kill_while_another_pauses(self, storm):
        paused, killed = storm.dice.sample(self.cluster.members, 2)
        with self.paused(paused):
            storm.rest(0, 1)
            killed.kill()
            storm.rest(0, 1)
        killed.start()
        self.cluster.await_health()

    def do_move_and_kill(self, storm):
        self.cluster.move_something(storm.dice)
        storm.rest(0, 0.2)
        self.restart(storm, storm.dice.choice([*self.cluster.members, *self.cluster.coordinators]))

    def do_drain(self, storm):
        member = storm.dice.choice(self.cluster.members)
        drained = self.cluster.tell("drain", member.resp, "--wait", timeout_s=60)
        assert drained.returncode == 0, drained
        assert member.stop() == 0
        member.start()
        self.cluster.await_health()

    def do_fill_a_disk(self, storm):
        member = storm.dice.choice(self.cluster.members)
        ballast = harness.fill(member.folder, 1 << 20)
        storm.rest(0.5, 4)
        if storm.dice.random() < 0.5:
            # On a disk without any room it may start or not: both are allowed.
            member.kill()
            storm.rest(0, 0.5)
        ballast.unlink()
        if not member.is_running():
            member.start()
        self.cluster.await_health()

    def do_hang_a_disk(self, storm):
        member = storm.dice.choice(self.cluster.members)
        with harness.frozen(member.folder):
            storm.rest(0.1, 8)
        self.cluster.await_health()

    def do_hang_a_disk_and_kill_another(self, storm):
        hung, killed = storm.dice.sample(self.cluster.members, 2)
        with harness.frozen(hung.folder):
            storm.rest(0, 1)
            killed.kill()
            storm.rest(0, 6)
        killed.start()
        self.cluster.await_health()


def check_under_faults(cluster, place):
    """`DURAMEN_TEST_LENGTH` makes it longer, `DURAMEN_TEST_SEED` chooses other faults."""
    clients = clients_of(cluster, place)
    filled(clients)
    faults = Faults(cluster)
    # The other faults have tests of their own, which run in the quick tier too.
    disks = [[faults.do_fill_a_disk], [faults.do_hang_a_disk]]
    for number, chosen in enumerate(harness.of_tier(disks, [faults.all()])):
        histories_under(cluster, clients, f"faults{number}-", chosen, HISTORIES, seed=SEED, masked=False)
    settle(cluster, clients)
    clients.end()


def test_all_faults(place, disks):
    with Cluster(place, SERVERS, replicas=REPLICAS) as cluster:
        check_under_faults(cluster, place)


@pytest.mark.full
def test_all_faults_on_etcd(place, disks):
    with Cluster(place, SERVERS, replicas=REPLICAS, coordinators=3, etcd=True) as cluster:
        check_under_faults(cluster, place)
