"""Histories under faults: the common part of every test of a cluster."""

import os

import harness
from histories import Workload
from processes import PASSWORD, Storm

# Factor of the tests' length, relative to the full tier: DURAMEN_TEST_LENGTH=20 is an hour or two.
LENGTH = float(os.environ.get("DURAMEN_TEST_LENGTH", "1"))

# To search for slow answers: longest wait of a native client, in milliseconds; a longer one fails
# its history.
SLOWEST_MS = float(os.environ.get("DURAMEN_TEST_SLOWEST_MS", "inf"))

FILL = (4000, 400)


def clients_of(cluster, place, **options):
    """Clients of both kinds, outside of every server's host."""
    options = {"resp_clients": 6, "native_clients": 6, "groups": 2, "rest_us": 6000, **options}
    if cluster.network:
        options["password"] = PASSWORD
    resp = [member.resp for member in cluster.members]
    return Workload(
        place, resp, cluster.coordinator_addresses(), prefix=cluster.prefix(), cluster=cluster.name, **options
    )


def scaled(count, quick=1):
    """A number of histories: `count` in the full tier, `quick` in the quick one."""
    return max(1, round(harness.of_tier(quick, count) * LENGTH))


def histories_under(cluster, clients, name, faults, count, quick=1, seconds=0.8, seed=1, masked=True):
    """Runs histories, as many as `scaled` says, while faults happen, one after the other; returns
    the storm. With `masked`, native clients get no error."""
    said = []
    with cluster.explained(), Storm(faults, seed) as storm:
        for number in range(scaled(count, quick)):
            clients.begin(f"{name}{number}", seconds)
            said.append(clients.finish())
            if masked:
                nothing_failed(said[-1:])
                assert said[-1]["native"]["slowest_ms"] <= SLOWEST_MS, said[-1]
            if storm.error:
                raise storm.error
    assert storm.counts, "no fault happened"
    with cluster.explained():
        cluster.await_health()
    for kind in ("resp", "native"):
        silences = sorted(history[kind]["silence_ms"] for history in said)
        print(f"{kind}: longest silence {silences[len(silences) // 2]} ms (median of histories), {silences[-1]} ms at most")
    print(f"{len(said)} histories, {storm.counts}")
    return storm


def fill(client, keys, round_):
    """Writes 640 bytes that name the round to each of so many keys."""
    for at in range(0, keys, 2000):
        pipe = client.pipeline()
        for n in range(at, at + 2000):
            pipe.set(f"k{n}", b"%04d" % round_ * 160)
        pipe.execute()


def filled(clients):
    said = clients.ask("fill", *FILL)
    assert not said["failures"], said


def settle(cluster, clients):
    """The cluster is whole, and every write that was ever acknowledged is there."""
    with cluster.explained():
        cluster.await_health()
        clients.recheck()
        said = clients.ask("checkfill", *FILL)
        assert said["wrong"] == 0, said
    verdict = clients.judge()
    print(verdict)
    assert (verdict.illegal, verdict.undecided) == (0, 0), verdict.text
    return verdict


def nothing_failed(said):
    """Native clients get no error at all."""
    for history in said:
        native = history["native"]
        assert native["unknown"] == 0 and native["not_done"] == 0, history
