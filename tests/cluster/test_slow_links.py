"""A server dies in a cluster whose links are slow: what is resent fills no link, so its data is back
in about the time that the link needs."""

import time

import pytest

from network import Unable
from processes import Cluster
from runs import clients_of

pytestmark = pytest.mark.duramen

MBIT = 50
# 12 MB in the log of each server: their copies alone need 2 s of a link.
FILL = (4000, 12_000)
# Once it took minutes: each piece was requested again while it was on its way.
RECOVERED_S = 25


def test_a_death_behind_slow_links(place, network):
    with Cluster(place, 4, replicas=2, network=network) as cluster:
        clients = clients_of(cluster, place)
        try:
            said = clients.ask("fill", *FILL)
            assert not said["failures"], said
            try:
                network.slow([member.host for member in cluster.members], MBIT)
            except Unable as reason:
                pytest.skip(f"no slow links here: {reason}")
            with cluster.explained():
                cluster.members[0].kill()
                began = time.monotonic()
                cluster.await_health(patience_s=RECOVERED_S)
                print(f"recovered in {time.monotonic() - began:.1f} s")
            said = clients.ask("checkfill", *FILL)
            assert said["wrong"] == 0, said
        finally:
            clients.end()
