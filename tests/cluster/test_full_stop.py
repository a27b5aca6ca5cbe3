"""All servers of a rather full cluster stop, and start again: everything is served soon, nothing
that was acknowledged is lost, and no recovery is tried in vain."""

import random
import time

import pytest

from harness import wait_until
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
# Percent of its limit up to which a server's data comes back after a stop of all.
SURVIVES = 90
# Percent up to which the data of one of four members fits on the other three.
FITS = 70
# Pause between two members that stop one after the other.
STEP_S = 3


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


def stop(members, how):
    """All at once, by SIGTERM or kill -9; or one after the other."""
    if how == "kill":
        for member in members:
            member.process.kill()
        for member in members:
            member.kill()
        return
    if how in ("slow term", "slow kill"):
        for member in members:
            if how == "slow kill":
                member.kill()
            else:
                assert member.stop() == 0
            time.sleep(STEP_S)
        return
    for member in members:
        member.process.terminate()
    for member in members:
        assert member.stop() == 0


def start(members, dice):
    for number, member in enumerate(members):
        time.sleep(dice.choice([0, 0, 0.5, 2]) if number else 0)
        member.start()


class Full:
    """A cluster that is filled, and stops and starts again."""

    def __init__(self, place, members, percent, replicas=2, **options):
        self.dice = random.Random(members * percent)
        self.percent = percent
        self.cluster = Cluster(place, members, replicas=replicas, memory=f"{MEMORY >> 20}mb", **options)

    def __enter__(self):
        self.cluster.__enter__()
        self.clients = clients_of(self.cluster, self.cluster.folder, timeout_ms=60_000)
        self.count, self.value_bytes = fill(self.cluster, self.clients, self.percent)
        self.live_gb = self.count * self.value_bytes / 1e9
        return self

    def __exit__(self, *error):
        self.clients.end()
        self.cluster.__exit__(*error)

    def shuffled(self):
        return self.dice.sample(self.cluster.members, len(self.cluster.members))

    def patience_s(self):
        return START_S + GB_S * self.live_gb

    def comes_back(self, how, splits=False):
        """All members stop, and start in a drawn order: all is served soon, each value is there,
        and no recovery was tried in vain. `splits`: others may have recovered some of it meanwhile,
        and have tried more."""
        cluster = self.cluster
        tablets = len(cluster.certain_status()["tablets"])
        stop(self.shuffled(), how)
        order = self.shuffled()
        start(order, self.dice)
        watch = Watch(cluster)
        took_s = watch.until_whole(self.patience_s() * (2 if splits else 1))
        more = len(cluster.certain_status()["tablets"]) - tablets
        per_gb = took_s / self.live_gb
        print(
            f"{', '.join(member.name for member in order)}: {self.percent} %, {how}: {self.live_gb:.2f} GB "
            f"after {took_s:.1f} s ({per_gb:.0f} s for each GB), {more} more tablets"
        )
        self.is_all_there()
        # Attempts that the others had begun while they stopped may have failed.
        assert splits or not watch.failures, watch.failures
        assert splits or more == 0, f"{more} tablets more"

    def is_all_there(self):
        said = self.clients.ask("checkfill", self.count, self.value_bytes)
        assert said["wrong"] == 0, said


@pytest.mark.parametrize(
    ("members", "percent"),
    [*((members, percent) for members in (3, 4) for percent in (50, 70, 80, 90)), (5, 80), (5, 90), (6, 80), (6, 90)],
)
def test_everything_is_served_soon_after_a_full_stop(place, members, percent):
    """Each number of members up to the largest fill that the page promises, `SURVIVES`. The least
    and the most of them come back in three orders: to fill them anew takes longer."""
    with Full(place, members, percent) as full, full.cluster.explained():
        full.comes_back("term")
        for _ in range(2 if members in (3, 6) and percent == SURVIVES else 1):
            full.comes_back("kill")


@pytest.mark.parametrize("percent", [50, 80])
def test_members_that_stop_one_after_the_other_come_back(place, percent):
    """Meanwhile the others recover what they can, and make lost copies anew: that fills disks."""
    with Full(place, 4, percent) as full, full.cluster.explained():
        full.comes_back("slow term", splits=True)
        full.comes_back("slow kill", splits=True)


@pytest.mark.parametrize(
    ("percent", "options"),
    [
        (80, {"settings": ("--zone-size", "32mb")}),
        (70, {"options": ("--disk-size", "160mb")}),
        (80, {"options": ("--disk-size", "512mb")}),
        (80, {"replicas": 1}),
        (80, {"replicas": 3}),
    ],
    ids=["zones", "small disks", "large disks", "one replica", "three replicas"],
)
def test_other_logs_come_back_too(place, percent, options):
    with Full(place, 4, percent, **options) as full, full.cluster.explained():
        full.comes_back("term")
        full.comes_back("kill")


@pytest.mark.parametrize(("percent", "how"), [(50, "kill"), (70, "term"), (85, "kill")])
def test_without_one_member_the_others_serve_or_say_for_what_they_wait(place, percent, how):
    """Up to 70 % the other members have room for its data; at 85 % they serve theirs, and `status`
    says for what the rest waits until it is back."""
    with Full(place, 4, percent) as full, full.cluster.explained():
        cluster = full.cluster
        stop(cluster.members, how)
        late, *others = cluster.members
        start(others, full.dice)
        watch = Watch(cluster)
        if percent <= FITS:
            watch.until_whole(2 * full.patience_s())
            full.is_all_there()
        else:
            wait_until(lambda: waits_for_room(cluster), "status says that room is missing", patience_s=full.patience_s())
        late.start()
        took_s = watch.until_whole(full.patience_s())
        print(f"{percent} %, {how}, one member late: all of it {took_s:.1f} s after its start")
        full.is_all_there()


def waits_for_room(cluster):
    """Only one member's data waits, and the reason is room."""
    status = cluster.status()
    if not status:
        return False
    waiting = [wait for wait in status["waits"] if wait["is_now"] and "is not served" in wait["reason"]]
    return len(waiting) == 1 and "room for" in waiting[0]["reason"]


def test_status_warns_before_the_cluster_is_too_full(place):
    """The warning is there while writes still succeed, and before the fill up to which everything
    comes back (docs/operations.md)."""
    with Full(place, 4, 76) as full, full.cluster.explained():
        cluster = full.cluster
        warned_at = None
        while True:
            percent = full.percent + 2
            limit = sum(server["limit_bytes"] for server in cluster.certain_status()["servers"])
            count = limit * percent // 100 // (VALUE_BYTES + EXTRA_BYTES)
            said = full.clients.ask("fill", count, VALUE_BYTES)
            if said["failures"]:
                break
            full.percent, full.count, full.value_bytes = percent, count, VALUE_BYTES
            time.sleep(2.5)  # room is reported every 2 s
            soon = [wait for wait in cluster.certain_status()["waits"] if "% full" in wait["reason"]]
            if soon and warned_at is None:
                warned_at = percent
        print(f"warned at {warned_at} %, full at {percent} %")
        assert warned_at is not None and warned_at <= SURVIVES < percent
