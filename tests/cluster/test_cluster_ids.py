"""A coordinator with the wrong store: members go on as if none answered, and nothing is lost."""

import contextlib
import hmac
import pathlib
import re
import shutil
import socket
import subprocess
import threading
import time
import urllib.error
import urllib.request

import pytest

import harness
import native
from harness import wait_until
from processes import Cluster, Coordinator, Etcd, Member

pytestmark = pytest.mark.duramen

KEYS = 300
# As long as members and coordinator are watched. A member asks its coordinator each second.
WATCHED_S = 6
# A recovery waits 5 s for its machine after a full stop, and 10 s for replicas that are whole.
RECOVERED_S = 12


class Client:
    """Follows redirections, with one connection to each member."""

    def __init__(self, cluster):
        self.wires = {}
        self.first = cluster.members[0].port

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for wire in self.wires.values():
            wire.close()

    def tried(self, *arguments):
        port = self.first
        for _ in range(5):
            try:
                if port not in self.wires:
                    self.wires[port] = harness.Wire(port, timeout=harness.PATIENCE_S)
                return [self.wires[port].call(*arguments)]
            except harness.ErrorReply as error:
                moved = re.match(r"MOVED \d+ \S+:(\d+)", str(error))
                if not moved:
                    assert re.match("TRYAGAIN|CLUSTERDOWN|LOADING|NOREPLICAS", str(error)), error
                    return None
                port = int(moved[1])
            except (OSError, harness.Closed):
                self.wires.pop(port, None)
                return None
        return None

    def call(self, *arguments):
        return wait_until(lambda: self.tried(*arguments), f"{arguments} is answered")[0]


def filled(cluster, value):
    with Client(cluster) as client:
        for number in range(KEYS):
            assert client.call("SET", f"key{number}", f"{value}{number}") == b"OK"


def everything_is_there(cluster, value):
    with Client(cluster) as client:
        for number in range(KEYS):
            assert client.call("GET", f"key{number}") == f"{value}{number}".encode()


def words(member):
    """Those of the slot that counts in the member's file."""
    text = (member.folder / "data" / "member").read_text()
    slots = [text[:4096].split(), text[4096:].split()]
    return max(filter(None, slots), key=lambda slot: int(slot[-2]))


def id_of(member):
    """A member writes it when a coordinator has told it."""
    wait_until(lambda: words(member)[0] == "3", "the member's file has the id")
    return words(member)[4]


def ids_of(cluster):
    return {id_of(member) for member in cluster.members}


def forget_id(member):
    """As a version left it that knew of no ids."""
    _, name, disk, last, _, turn, _ = words(member)
    line = f"2 {name} {disk} {last} {turn}"
    line += f" {harness.crc32c(line.encode()):08x}"
    slot = f"{line:4095}\n"
    (member.folder / "data" / "member").write_text(slot if int(turn) % 2 == 0 else " " * 4095 + "\n" + slot)
    assert words(member)[0] == "2"


def with_store(coordinator, store):
    """The same coordinator, at the same address, with another store."""
    other = Coordinator(coordinator.name, coordinator.folder, coordinator.cluster, store, coordinator.host)
    other.port = coordinator.port
    return other


def lives_through(cluster, wrong):
    """Members, with data, meet a coordinator of another cluster, and then their own again."""
    right, cluster_id = cluster.coordinators[0], id_of(cluster.members[0])
    assert {id_of(member) for member in cluster.members} == {cluster_id} and int(cluster_id, 16) > 0
    lives = [words(member)[3] for member in cluster.members]
    right.kill()
    wrong.start()
    stranger = Member("server9", cluster.folder / "server9", cluster)
    began = time.monotonic()
    while time.monotonic() - began < WATCHED_S:
        for member in cluster.members:
            member.alive()
        wrong.alive()
        everything_is_there(cluster, "before")
        if time.monotonic() - began > WATCHED_S / 2 and stranger.process is None:
            stranger.start()  # with an empty directory
    filled(cluster, "during")
    for member in cluster.members:
        lines = [line for line in member.log().splitlines() if "belongs to the cluster with id" in line]
        assert len(lines) == 1 and cluster_id in lines[0], lines
    done = cluster.tell("status", timeout_s=2)
    advice = "start it with the store of their cluster"
    assert done.returncode != 0 and advice in done.stderr and cluster_id in done.stderr, done
    done = cluster.tell("table", "create", "db1", timeout_s=2)
    assert done.returncode != 0 and advice in done.stderr, done
    assert advice in wrong.log() and wrong.log().count(advice) < 4, wrong.log()
    # A member that is started meanwhile waits: its data are needed.
    late = cluster.members[2]
    late.kill()
    late.start()
    wait_until(lambda: late.log().count("belongs to the cluster with id") > 1, "it says what it waits for")
    time.sleep(2)
    late.alive()
    stranger.alive()
    assert advice in stranger.log()
    wrong.kill()
    right.start()
    cluster.members.append(stranger)
    cluster.await_health()
    assert id_of(stranger) == cluster_id
    # Only the killed member has begun another life.
    assert [words(member)[3] for member in cluster.members[:2]] == lives[:2]
    everything_is_there(cluster, "during")
    filled(cluster, "after")
    everything_is_there(cluster, "after")


@pytest.mark.full
def test_a_coordinator_starts_on_an_empty_store(place):
    with Cluster(place, 3, replicas=2, settings=harness.CALM) as cluster:
        filled(cluster, "before")
        right = cluster.coordinators[0]
        lives_through(cluster, with_store(right, f"redb:{right.folder / 'empty'}"))


@pytest.mark.full
def test_a_coordinator_starts_on_an_empty_etcd(place):
    with Cluster(place, 3, replicas=2, etcd=True, settings=harness.CALM) as cluster:
        filled(cluster, "before")
        other = Etcd(cluster.folder / "another").start()
        try:
            lives_through(cluster, with_store(cluster.coordinators[0], f"etcd:http://{other.endpoint}"))
        finally:
            other.kill()


def tablets_of(status, owner):
    return {(tablet["table"], tablet["first_hash"]) for tablet in status["tablets"] if tablet["owner"] == owner}


def second_values_on(member):
    """The keys, with their values, in all replicas on the disk of a stopped member."""
    command = [harness.BINARY, "log", "dump", member.folder / "data" / "backup"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=harness.PATIENCE_S, check=True)
    return set(re.findall(r"(key\d+) version \d+ \d+ bytes \S*?(second\d+)", done.stdout))


@pytest.mark.full
def test_a_coordinator_starts_with_an_older_copy_of_its_store(place):
    """A copy from before a member's last start does not know that member's log. The others took it
    for gone, and dropped what was acknowledged since. They keep it, and the operator is told. Nobody
    serves the member's former life either, whose values are old."""
    with Cluster(place, 4, replicas=2, settings=harness.CALM) as cluster:
        coordinator, late = cluster.coordinators[0], cluster.members[3]
        store, older = coordinator.folder / "store", place / "older"
        filled(cluster, "first")
        former = words(late)[3]
        its_tablets = tablets_of(cluster.certain_status(), former)
        assert its_tablets
        assert coordinator.stop() == 0
        shutil.copytree(store, older)
        coordinator.start()
        cluster.await_health()
        assert late.stop() == 0
        late.start()
        cluster.await_health()
        cluster.tell("rebalance", "--wait")
        life = words(late)[3]
        assert life in [tablet["owner"] for tablet in cluster.certain_status()["tablets"]]
        filled(cluster, "second")
        for process in [coordinator, *cluster.members]:
            assert process.stop() == 0, process.name
        shutil.rmtree(store)
        shutil.copytree(older, store)
        for process in cluster.everybody():
            process.start()

        def told(server):
            waits = (cluster.status() or {"waits": []})["waits"]
            return [wait for wait in waits if wait["server"] == server and "older than the cluster" in wait["reason"]]

        wait_until(lambda: told(life), "status names the life that the store never knew")
        wait_until(lambda: not late.is_running(), "it is refused")
        assert f"never had a server {life}" in late.log()
        wait_until(lambda: told(former), "the recovery of its former life waits")
        began = time.monotonic()
        while time.monotonic() - began < RECOVERED_S:
            assert its_tablets <= tablets_of(cluster.certain_status(), former)
            time.sleep(0.5)
        assert told(life) and told(former)
        late.kill()
        for process in [coordinator, *cluster.members[:3]]:
            process.stop()
        kept = set().union(*(second_values_on(member) for member in cluster.members[:3]))
        lost = [number for number in range(KEYS) if (f"key{number}", f"second{number}") not in kept]
        assert not lost, lost


@pytest.mark.full
def test_a_coordinator_starts_with_the_store_of_another_cluster(place):
    """Of the same name, with members of the same ids: they are this cluster's neither."""
    calm = {"replicas": 1, "settings": harness.CALM}
    with Cluster(place / "one", 2, **calm) as one, Cluster(place / "two", 2, **calm) as two:
        filled(one, "before")
        filled(two, "other")
        (mine,), (foreign,) = ids_of(one), ids_of(two)
        assert mine != foreign
        right, their = one.coordinators[0], two.coordinators[0]
        right.kill()
        their.kill()
        wrong = with_store(right, their.store)
        wrong.start()
        time.sleep(WATCHED_S)
        for member in one.members:
            member.alive()
            assert mine in member.log() and foreign in member.log()
        everything_is_there(one, "before")
        # It is the coordinator of its own, whatever else asks.
        assert one.status() is not None
        assert "is refused: this is the cluster with id" in wrong.log()
        wrong.kill()
        right.start()
        their.start()
        one.await_health()
        two.await_health()
        filled(one, "after")
        everything_is_there(one, "after")
        everything_is_there(two, "other")


@pytest.mark.full
def test_members_of_an_older_version(place):
    """They have an id, and do not know that of their cluster."""
    with Cluster(place, 3, replicas=2, settings=harness.CALM) as cluster:
        filled(cluster, "before")
        right, (cluster_id,) = cluster.coordinators[0], ids_of(cluster)
        for member in cluster.members:
            member.kill()
            forget_id(member)
        # A new store never gave their ids: none of them ends.
        right.kill()
        wrong = with_store(right, f"redb:{right.folder / 'empty'}").start()
        for member in cluster.members:
            member.start()
        for member in cluster.members:
            wait_until(lambda log=member.log: "members of another cluster ask here" in log(), "it says what it waits for")
        time.sleep(2)
        for member in cluster.members:
            member.alive()
        wrong.kill()
        right.start()
        cluster.await_health()
        assert ids_of(cluster) == {cluster_id}
        everything_is_there(cluster, "before")


class OldCoordinator:
    """Passes on what members say to a coordinator, as one of version 2 of the protocol would hear and say it: without ids."""

    def __init__(self, coordinator, cluster):
        self.coordinator, self.name = coordinator, cluster.name.encode()
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        self.open = [self.listener]
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        while True:
            try:
                member, _ = self.listener.accept()
            except OSError:
                return
            threading.Thread(target=self.greet, args=[member], daemon=True).start()

    def greet(self, member):
        self.open.append(member)
        said = native.receive(member, native.OPENING_BYTES)
        ours = native.opening(native.COORDINATOR)
        member.sendall(ours)
        said += ours
        said += self.proof(member)
        label = b"DURAMENN proof of who accepted"
        body = hmac.digest(b"", label + said + self.name, "sha256") + self.name
        member.sendall(native.frame(native.PROOF, body, flags=native.ANSWER, request=0))
        assert self.proof(member)[32:] == self.name, "no id is said in version 2"
        there = wait_until(self.reached, "the coordinator listens")
        self.open.append(there)
        native.shake(there, native.SERVER, self.name)
        for one, other in ((member, there), (there, member)):
            threading.Thread(target=self.pass_on, args=[one, other], daemon=True).start()

    def reached(self):
        with contextlib.suppress(ConnectionRefusedError):
            return socket.create_connection(("127.0.0.1", self.coordinator.port))

    @staticmethod
    def proof(member):
        head = native.receive(member, 40)
        return native.receive(member, int.from_bytes(head[:4], "little"))

    def pass_on(self, one, other):
        with contextlib.suppress(OSError):
            while data := one.recv(1 << 16):
                other.sendall(data)
        for each in (one, other):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def end(self):
        for each in self.open:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()


def test_members_of_a_coordinator_that_is_updated_take_its_id_while_they_run(place):
    cluster = Cluster(place, 2, replicas=1, settings=harness.CALM)
    coordinator = cluster.coordinators[0]
    old = OldCoordinator(coordinator, cluster)
    cluster.coordinator_addresses = lambda: [f"127.0.0.1:{old.port}"]
    with cluster:
        filled(cluster, "before")
        lives = [words(member)[3] for member in cluster.members]
        assert [words(member)[0] for member in cluster.members] == ["2", "2"]
        coordinator.kill()
        old.end()
        coordinator.port = old.port
        coordinator.start()
        wait_until(lambda: all(words(member)[0] == "3" for member in cluster.members), "they store the id")
        assert id_of(cluster.members[0]) == id_of(cluster.members[1])
        # From then on no other coordinator counts for them.
        coordinator.kill()
        wrong = with_store(coordinator, f"redb:{coordinator.folder / 'empty'}").start()
        wait_until(lambda: "not ready: members of the cluster with id" in wrong.log(), "it hears of them")
        wrong.kill()
        coordinator.start()
        cluster.await_health()
        assert [words(member)[3] for member in cluster.members] == lives
        everything_is_there(cluster, "before")


@pytest.mark.full
def test_a_connection_on_which_no_coordinator_answers_is_given_up(place):
    """A member asked for ever through a proxy that had kept the connection but not the coordinator."""
    cluster = Cluster(place, 2, replicas=1, settings=harness.CALM)

    class Proxy(OldCoordinator):
        silent = True

        def greet(self, member):
            with contextlib.suppress(SystemExit):
                super().greet(member)

        def reached(self):
            if self.silent:
                raise SystemExit  # the connection stays open, and nothing is passed on
            return super().reached()

        def pass_on(self, one, other):
            with contextlib.suppress(OSError):
                while data := one.recv(1 << 16):
                    if not self.silent:
                        other.sendall(data)

    proxy = Proxy(cluster.coordinators[0], cluster)
    absent = harness.free_port()  # an answer or an error of another coordinator ends no silence of this one
    cluster.coordinator_addresses = lambda: [f"127.0.0.1:{proxy.port}", f"127.0.0.1:{absent}"]

    def silent_until_they_come_again():
        proxy.silent, known = True, len(proxy.open)
        wait_until(lambda: len(proxy.open) >= known + len(cluster.members), "they connect again")
        proxy.silent = False

    try:
        cluster.coordinators[0].start()
        for member in cluster.members:
            member.start()
        silent_until_they_come_again()  # for the settings
        silent_until_they_come_again()
        cluster.await_health(with_tablets=False)
        silent_until_they_come_again()  # as members
        done = cluster.tell("table", "create", "db0")
        assert done.returncode == 0, done
        cluster.await_health()
    finally:
        cluster.end()
        proxy.end()


@pytest.mark.full
def test_the_pages_of_a_coordinator_that_is_not_ready(place):
    with Cluster(place, 2, replicas=1, settings=harness.CALM) as cluster:
        right = cluster.coordinators[0]
        right.kill()
        port = harness.free_port()

        class WithPages(Coordinator):
            def launch(self, command):
                command[command.index("--admin") + 1] = f"127.0.0.1:{port}"
                super().launch(command)

        wrong = WithPages("wrong", pathlib.Path(place) / "wrong", cluster, f"redb:{place / 'empty'}")
        wrong.port = right.port
        wrong.start()

        def page(path):
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=harness.PATIENCE_S) as answer:
                    return answer.status, answer.read().decode()
            except urllib.error.HTTPError as error:
                return error.code, error.read().decode()
            except OSError:
                return 0, ""

        try:
            wait_until(lambda: page("/readyz")[0] == 503 and "remove the directories" in page("/readyz")[1], "it says why")
            assert page("/status")[0] == 503
            assert page("/livez")[0] == 200
            # The members are given up: the store is a new cluster's.
            for member in cluster.members:
                member.kill()
            wait_until(lambda: page("/readyz")[0] == 200, "nobody asks any more")
        finally:
            wrong.kill()
