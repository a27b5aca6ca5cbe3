"""All servers of a rather full cluster stop, and start again: everything is served soon, nothing
that was acknowledged is lost, and no recovery is tried in vain."""

import random
import time

import pytest

from processes import Cluster
from runs import clients_of

pytestmark = [pytest.mark.duramen, pytest.mark.full, pytest.mark.alone]

MIB = 1 << 20
MEMORY = 128 * MIB
# A log takes at most twice its memory on disks. A log that has taken that has been written so much.
WRITTEN = 2.2 * MEMORY
VALUE_BYTES = 4000
# Of an entry beside its value: key, header.
EXTRA_BYTES = 48

# Longest time until everything is served again: a part for starts and leases, and the rest for each
# GB of live data, on two busy cores with a program that checks its asserts.
START_S, GB_S = 10, 30


class Watch:
    """Looks at the recoveries until the cluster is whole."""

    def __init__(self, cluster):
        self.cluster = cluster
        self.failures = set()
        self.waits = set()

    def until_whole(self, patience_s):
        began = time.monotonic()
        while (reason := self.cluster.trouble()) and time.monotonic() < began + patience_s:
            self.look()
            time.sleep(0.1)
        assert not reason, f"not whole in {patience_s:.0f} s: {reason}\nfailures: {self.failures}\nwaits: {self.waits}"
        return time.monotonic() - began

    def look(self):
        status = self.cluster.status()
        for recovery in status["recoveries"] if status else ():
            text = recovery.get("waits_for") or ""
            if recovery["phase"] != "done" and text:
                (self.failures if " failed on " in text else self.waits).add(text)


def fill(cluster, clients, percent):
    """Fills the cluster, and overwrites all keys until the logs have reached their limit. Returns
    the number of the objects and the length of their values."""
    servers = cluster.await_health()["servers"]
    limit = sum(server["limit_bytes"] for server in servers if server["state"] == "up")
    count = limit * percent // 100 // (VALUE_BYTES + EXTRA_BYTES)
    rounds = 1 + round(WRITTEN * len(servers) / (count * VALUE_BYTES))
    for number in range(rounds):
        said = clients.ask("fill", count, VALUE_BYTES + number)
        assert not said["failures"], said
    time.sleep(25)  # the members report their loads every 10 s, and 10 s later they are stored
    return count, VALUE_BYTES + rounds - 1


def stop(cluster, how):
    if how == "kill":
        for member in cluster.members:
            member.process.kill()
        for member in cluster.members:
            member.kill()
        return
    for member in cluster.members:
        member.process.terminate()
    for member in cluster.members:
        assert member.stop() == 0


@pytest.mark.parametrize("percent", [50, 70, 80])
@pytest.mark.parametrize("members", [3, 4])
def test_everything_is_served_soon_after_a_full_stop(place, members, percent):
    dice = random.Random(members * percent)
    with Cluster(place, members, replicas=2, memory=f"{MEMORY >> 20}mb") as cluster:
        clients = clients_of(cluster, place, timeout_ms=60_000)
        count, value_bytes = fill(cluster, clients, percent)
        live_gb = count * value_bytes / 1e9
        with cluster.explained():
            for how in ("term", "kill"):
                tablets = len(cluster.certain_status()["tablets"])
                stop(cluster, how)
                order = list(cluster.members)
                dice.shuffle(order)
                for number, member in enumerate(order):
                    time.sleep(dice.choice([0, 0, 0.5, 2]) if number else 0)
                    member.start()
                watch = Watch(cluster)
                took_s = watch.until_whole(START_S + GB_S * live_gb)
                more = len(cluster.certain_status()["tablets"]) - tablets
                print(f"{members} members, {percent} %, {how}: {live_gb:.2f} GB after {took_s:.1f} s, {more} more tablets")
                said = clients.ask("checkfill", count, value_bytes)
                assert said["wrong"] == 0, said
                assert not watch.failures, watch.failures
                assert more == 0, f"{more} tablets more"
        clients.end()
