"""A firewall at the coordinator drops what one member sends to it. The coordinator reaches that
member, so each check of it succeeds."""

import pytest

from harness import wait_until
from network import run
from processes import Cluster

pytestmark = [pytest.mark.duramen, pytest.mark.full]

# Its silence counts after 15 s; then its part is given to another one.
RECOVERED_S = 60


def drop(member, coordinator):
    """What the member sends to the coordinator's port is dropped, and nothing else."""
    host = coordinator.host
    table = (
        "table inet deaf {\n  chain arrives {\n    type filter hook input priority 0\n"
        f"    ip saddr {member.host.address} tcp dport {coordinator.port} drop\n  }}\n}}\n"
    )
    run(*host.prefix, host.network.nft, "-f", "-", text=table)


def test_a_member_that_the_coordinator_does_not_hear(place, network):
    """It was given all of a dead server's tablets and could not report that it had them: they were
    not served as long as the fault lasted, and no line of the status said why."""
    with Cluster(place, 4, replicas=2, network=network) as cluster, cluster.explained():
        servers = {server["resp"]: server["server"] for server in cluster.await_health()["servers"]}
        # Masters with equally many tablets get partitions in the order of their ids.
        mute, *_, dead = sorted(cluster.members, key=lambda member: servers[member.resp])
        coordinator = cluster.coordinators[0]
        drop(mute, coordinator)
        dead.kill()
        cluster.await_health(patience_s=RECOVERED_S)
        assert all(tablet["owner"] != servers[dead.resp] for tablet in cluster.certain_status()["tablets"])

        def is_named():
            named = [wait for wait in cluster.certain_status()["waits"] if "has not asked" in str(wait)]
            return [wait for wait in named if servers[mute.resp] in str(wait)]

        assert len(wait_until(is_named, "the status names it", pause_s=0.2)) == 1
        run(*coordinator.host.prefix, network.nft, "delete", "table", "inet", "deaf")
        wait_until(lambda: not is_named(), "it is heard again", pause_s=0.2)
        cluster.await_health()
