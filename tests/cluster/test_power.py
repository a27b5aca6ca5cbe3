"""Power cuts: all processes are killed at once, and every acknowledged write is there afterwards.
"""

import random
import time

import pytest

from processes import Cluster
from runs import clients_of, filled, nothing_failed, scaled, settle

pytestmark = pytest.mark.duramen


def test_a_power_cut_of_everything(place):
    dice = random.Random(11)
    with Cluster(place, 4, replicas=3) as cluster:
        clients = clients_of(cluster, place, timeout_ms=1000)
        filled(clients)
        said = []
        for number in range(scaled(6)):
            clients.begin(f"cut{number}", 1.5)
            time.sleep(dice.uniform(0.5, 1.2))
            everybody = cluster.everybody()
            dice.shuffle(everybody)
            for process in everybody:
                process.process.kill()
            for process in everybody:
                process.kill()
            # They come back in any order, the last ones late.
            dice.shuffle(everybody)
            for process in everybody:
                time.sleep(dice.choice([0, 0, 0.3]))
                process.start()
            said.append(clients.finish())
            cluster.await_health()
        nothing_failed(said)
        settle(cluster, clients)
        clients.end()
