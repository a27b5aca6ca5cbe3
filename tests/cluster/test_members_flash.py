"""Members with a second tier and several times more data than memory: nothing is lost or stale when
servers die and tablets move, and memory stays within its budget."""

import json
import random
import re
import threading
import time
import urllib.request

import pytest

import harness
from processes import Cluster
from runs import clients_of, histories_under, nothing_failed

pytestmark = [pytest.mark.duramen, pytest.mark.full]

MIB = 1 << 20
MEMORY = 64 * MIB
# Memory of a member beside its budget: its program, threads and connections, replicas of others in
# flight to its disk, data that a recovery reads from it, and send buffers.
OVERHEAD = 192 * MIB
SERVERS = 4
COUNT = 300_000
VALUE_BYTES = 1000


class Watch(threading.Thread):
    """Measures the members' memory continuously."""

    def __init__(self, members):
        super().__init__(daemon=True)
        self.members = members
        self.over = threading.Event()
        self.most = {}

    def run(self):
        while not self.over.wait(0.05):
            for member in self.members:
                self.most[member.name] = max(self.most.get(member.name, 0), resident_bytes(member))

    def end(self):
        self.over.set()
        self.join()
        print("resident:", {name: f"{most / MIB:.0f} MiB" for name, most in self.most.items()})
        assert max(self.most.values()) <= MEMORY + OVERHEAD, self.most


def resident_bytes(member):
    """The process's own memory, without its program; 0: it does not run."""
    process = member.process
    if process is None:
        return 0
    try:
        with open(f"/proc/{process.pid}/status") as lines:
            found = [line for line in lines if line.startswith("RssAnon:")]
    except OSError:
        return 0
    return int(found[0].split()[1]) * 1024 if found else 0


def on_flash(member):
    """The figures of the member's tier."""
    with harness.Wire(member.port, timeout=harness.PATIENCE_S) as wire:
        text = wire.call("INFO", "memory").decode()
    found = re.findall(r"duramen_flash_(\w+):(\d+)", text)
    return {name: int(number) for name, number in found}


def call(cluster, *arguments):
    """Sends one command to the server that serves its key, until one does."""

    def tried():
        for member in cluster.members:
            member.process and member.alive()
        port = next(member.port for member in cluster.members if member.is_running())
        for _ in range(2 * SERVERS):
            try:
                with harness.Wire(port, timeout=harness.PATIENCE_S) as wire:
                    return [wire.call(*arguments)]
            except harness.ErrorReply as error:
                moved = re.match(r"MOVED \d+ \S+:(\d+)", str(error))
                if not moved:
                    assert re.match("TRYAGAIN|CLUSTERDOWN|LOADING|NOREPLICAS", str(error)), error
                    return None
                port = int(moved[1])
            except (OSError, harness.Closed):
                return None
        return None

    return harness.wait_until(tried, f"{arguments} is answered")[0]


def value(number):
    """The value that the clients write."""
    text = f"<{number} of {VALUE_BYTES}>".encode()
    return (text * (VALUE_BYTES // len(text) + 1))[:VALUE_BYTES]


def all_there(clients):
    said = clients.ask("checkfill", COUNT, VALUE_BYTES)
    assert said["wrong"] == 0, said


def reads_and_changes_by_resp(cluster, dice, prefix):
    """Uses keys on flash: plain reads, and commands that read before they write, which must take
    effect once. Restores the values."""
    for _ in range(120):
        number = dice.randrange(COUNT)
        key = f"fill:{number}".encode()
        assert call(cluster, "GET", key) == value(number)
    for _ in range(30):
        number = dice.randrange(COUNT)
        key = f"fill:{number}".encode()
        assert call(cluster, "STRLEN", key) == VALUE_BYTES
        assert call(cluster, "SETNX", key, b"no") == 0
        assert call(cluster, "GETSET", key, prefix) == value(number)
        assert call(cluster, "APPEND", key, b"!") == len(prefix) + 1
        assert call(cluster, "GETDEL", key) == prefix + b"!"
        assert call(cluster, "SET", key, value(number)) == b"OK"


def test_more_than_memory_through_a_death_and_a_move(place):
    flash = ("--flash-file", "flash", "--flash-size", "768mb")
    with Cluster(place, SERVERS, replicas=2, settings=harness.CALM, options=flash, owners=1) as cluster:
        clients = clients_of(cluster, place, resp_clients=4, native_clients=4, patience_ms=90_000)
        watch = Watch(cluster.members)
        watch.start()
        said = clients.ask("fill", COUNT, VALUE_BYTES)
        assert not said["failures"], said
        died, *others = cluster.owners()
        assert not others
        harness.wait_until(lambda: on_flash(died)["live_bytes"] > 3 * MEMORY, "most of it lies on flash")
        print(died.name, on_flash(died))
        dice = random.Random(1)
        reads_and_changes_by_resp(cluster, dice, b"before")

        # Killed under load: others take over more data than their memory holds.
        def die(storm):
            died.kill()
            cluster.await_health()
            storm.over.wait()

        histories_under(cluster, clients, "death", [die], 6)
        all_there(clients)
        reads_and_changes_by_resp(cluster, dice, b"after")
        print("others:", {member.name: on_flash(member) for member in cluster.owners()})
        died.start()
        cluster.await_health()

        # Moved under load, to the restarted server, with an empty flash file.
        status = cluster.certain_status()
        home = next(each["server"] for each in status["servers"] if each["resp"] == died.resp and each["state"] == "up")
        clients.begin("move", 4)
        moved = False
        for tablet in [each for each in status["tablets"] if each["owner"] != home]:
            slots = f"{tablet['first_slot']}-{(tablet['first_slot'] + tablet['last_slot']) // 2}"
            told = cluster.tell("tablet", "migrate", "db0", "--slots", slots, "--to", home)
            assert told.returncode == 0, told
            owned = {each["server"]: each["tablets"] for each in cluster.await_health()["servers"]}
            moved = owned[home] > 0
            if moved:
                break  # a move may be given up if it takes too long beside everything else
        nothing_failed([clients.finish()])
        assert moved, cluster.certain_status()["migrations_ended"]
        all_there(clients)
        reads_and_changes_by_resp(cluster, dice, b"at last")
        clients.recheck()
        verdict = clients.judge()
        print(verdict)
        assert (verdict.illegal, verdict.undecided) == (0, 0), verdict.text
        watch.end()
        clients.end()


def read_of(member, keys):
    """This member's values of keys, without keys of other members; second: the number of its reads
    that copies served."""
    before = on_flash(member)["promoted_hits"]
    found = {}
    with harness.Wire(member.port, timeout=harness.PATIENCE_S) as wire:
        for start in range(0, len(keys), 250):
            some = keys[start : start + 250]
            replies = wire.pipeline([("GET", f"fill:{number}") for number in some])
            for number, reply in zip(some, replies):
                if not isinstance(reply, harness.ErrorReply):
                    found[number] = reply
                else:
                    assert str(reply).startswith("MOVED "), reply
    return found, on_flash(member)["promoted_hits"] - before


def hits(members, keys):
    """Reads all keys at their owners, and counts the reads that promoted copies served."""
    read, served = {}, 0
    for member in members:
        some, more = read_of(member, keys)
        read.update(some)
        served += more
    assert read == {number: value(number) for number in keys}
    return served


def knows_since(member, began):
    """Whether another member has sent its hot keys to this one, some time after `began`."""
    with urllib.request.urlopen(f"http://127.0.0.1:{member.admin_port}/cluster", timeout=harness.PATIENCE_S) as reply:
        hints = json.load(reply)["hints"]
    return any(hint["age_ms"] / 1000 + 1 < time.monotonic() - began for hint in hints)


def test_what_was_hot_is_copied_where_it_is_recovered(place):
    flash = ("--flash-file", "flash", "--flash-size", "768mb")
    with Cluster(place, SERVERS, replicas=1, settings=harness.CALM, options=flash, owners=1) as cluster:
        clients = clients_of(cluster, place, resp_clients=1, native_clients=1, patience_ms=90_000)
        said = clients.ask("fill", COUNT, VALUE_BYTES)
        assert not said["failures"], said
        clients.end()
        (died,) = cluster.owners()
        others = [member for member in cluster.members if member is not died]
        dice = random.Random(3)
        hot = dice.sample(range(COUNT), 1500)
        on_its_flash = on_flash(died)["live_bytes"] / (COUNT * VALUE_BYTES)
        harness.wait_until(lambda: hits([died], hot) > 0.7 * on_its_flash * len(hot), "what is hot is copied")
        began = time.monotonic()

        def is_told():
            hits([died], hot)
            return sum(knows_since(member, began) for member in others) >= 2

        harness.wait_until(is_told, "two others know what is hot", pause_s=0.2)
        died.kill()
        cluster.await_health()

        def is_refilled():
            figures = [on_flash(member) for member in others]
            is_over = all(each["refill_left"] == 0 for each in figures)
            # Members that received the hints, and members that must request them.
            has_all = all(each["refilled"] > 0 for each in figures if each["live_bytes"] > MEMORY / 4)
            return is_over and has_all and sum(each["refilled"] for each in figures) > len(hot) / 4

        harness.wait_until(is_refilled, "what was hot is copied again")
        print({member.name: on_flash(member) for member in others})
        # Keys that were not read yet are not promoted otherwise.
        rest = sorted(set(range(COUNT)) - set(hot))
        assert hits(others, dice.sample(rest, len(hot))) < len(hot) / 20
        served = hits(others, hot)
        print(f"copies served {served} of {len(hot)}")
        assert served > len(hot) / 5
