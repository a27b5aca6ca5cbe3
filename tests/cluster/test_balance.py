"""Shares of the data become equal by themselves, and then nothing moves any more."""

import time

import pytest

import harness
from processes import Cluster, Member, wait_until
from runs import clients_of

pytestmark = [pytest.mark.duramen, pytest.mark.full]

SLOTS = 16384
VALUE_BYTES = 2000
KEYS = 8000
# Quiet of 15 s, and some moves.
BALANCED_S = 120
# Longer than the pause between two looks of the coordinator, and between two counts of members.
STAYS_S = 35


def slots_of(status):
    """The number of slots of each server that is up."""
    count = {server["server"]: 0 for server in status["servers"] if server["state"] == "up"}
    for tablet in status["tablets"]:
        count[tablet["owner"]] += (int(tablet["last_hash"], 16) + 1 - int(tablet["first_hash"], 16)) * SLOTS >> 64
    return count


def balanced(cluster, servers):
    status = cluster.status()
    if not status or status["migrations"] or status["recoveries"] and status["recoveries"][-1]["phase"] != "done":
        return None
    if status["balance"]["moves_left"]:
        return None  # between two moves
    count = slots_of(status)
    mean = SLOTS / servers
    return count if len(count) == servers and all(abs(slots - mean) < mean / 4 for slots in count.values()) else None


def moves_so_far(cluster):
    return [move["migration"] for move in cluster.certain_status()["migrations_ended"]]


def test_a_rolling_restart_and_a_new_member_end_with_equal_shares(place):
    """Four members with 4096 slots each had 8192, 4096, 4096 and none after a rolling restart, for
    good, and a member that joined owned nothing."""
    with Cluster(place, 4, replicas=2, settings=harness.CALM, balance="yes") as cluster:
        clients = clients_of(cluster, place, timeout_ms=60_000)
        said = clients.ask("fill", KEYS, VALUE_BYTES)
        assert not said["failures"], said
        for member in cluster.members:
            name = next(s["server"] for s in cluster.certain_status()["servers"] if s["resp"] == member.resp)
            done = cluster.tell("drain", name, "--wait")
            assert done.returncode == 0, done
            assert member.stop() == 0
            member.start()
            cluster.await_health()
        wait_until(lambda: balanced(cluster, 4), "the shares are equal", BALANCED_S, pause_s=1)
        before = moves_so_far(cluster)
        time.sleep(STAYS_S)
        assert moves_so_far(cluster) == before, "nothing moves any more"
        # `join` takes the cluster's name and free ports from the coordinator.
        joined = Member("joined", place / "joined", cluster)
        joined.launch(
            [
                *(harness.BINARY, "join", "--coordinator", cluster.coordinators[0].listens),
                *("--dir", "data", "--memory", "64mb", "--threads", "1"),
            ]
        )
        try:
            wait_until(lambda: balanced(cluster, 5), "the new member has its share", BALANCED_S, pause_s=1)
            done = cluster.tell("rebalance", "--dry-run")
            assert done.returncode == 0 and "nothing moves" in done.stdout, done
            said = clients.ask("checkfill", KEYS, VALUE_BYTES)
            assert said["wrong"] == 0, said
        finally:
            joined.kill()
        clients.end()


def test_switched_off_nothing_moves_until_somebody_asks(place):
    with Cluster(place, 3, replicas=1, settings=harness.CALM, owners=1) as cluster:
        time.sleep(STAYS_S)
        assert sorted(slots_of(cluster.certain_status()).values()) == [0, 0, SLOTS]
        line = next(line for line in cluster.tell("status").stdout.splitlines() if line.startswith("balance:"))
        assert "--balance=no" in line, line
        done = cluster.tell("rebalance", "--wait")
        assert done.returncode == 0 and "2 ranges move" in done.stdout, done
        assert balanced(cluster, 3), slots_of(cluster.certain_status())
