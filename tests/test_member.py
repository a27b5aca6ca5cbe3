"""A server as a member of a cluster: its start, refused peers, and its status."""

import contextlib
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request

import pytest

import harness
import native

pytestmark = pytest.mark.duramen

KEYS = 100
MIB = 1 << 20


class Coordinator(harness.Duramen):
    """`duramen coordinator`; after a restart it has the same port and store."""

    def __init__(self, folder, replicas=2):
        super().__init__(folder)
        self.replicas = replicas

    def command(self):
        store = f"redb:{self.folder}/coordinator"
        return [
            *(harness.BINARY, "coordinator", "--listen", f"127.0.0.1:{self.port}", "--store", store),
            *("--cluster", "t", "--admin", "no", "--replicas", str(self.replicas), "--balance", "no", *harness.CALM),
        ]

    def await_ready(self):
        self.address = self.read_ready_line()["coordinator"]
        self.port = harness.port_of(self.address)


class Member(harness.Duramen):
    """A member; after a restart it has the same ports and directory."""

    def __init__(self, folder, number, coordinator, cluster="t", memory="64mb", rack=None, **options):
        self.native_port = 0
        self.joins = ("--coordinator", coordinator, "--cluster", cluster, *(("--rack", rack) if rack else ()))
        super().__init__(folder, memory=memory, level=None, dir=folder / f"member-{number}", **options)

    def command(self):
        return [*super().command(), *self.joins, "--native-port", str(self.native_port)]

    def await_ready(self):
        ready = self.read_ready_line()
        self.port = harness.port_of(ready["resp"])
        self.native_port = harness.port_of(ready["native"])
        self.admin_port = harness.port_of(ready["admin"])

    def page(self, path):
        with urllib.request.urlopen(f"http://127.0.0.1:{self.admin_port}{path}", timeout=harness.PATIENCE_S) as page:
            return page.read().decode()

    def id(self):
        return self.info("cluster")["duramen_server"]


class Cluster:
    def __init__(self, folder, members=4, racks=(), **options):  # one more than the replicas need, so that one may die
        self.coordinator = Coordinator(folder).start()
        racks = racks or [None] * members
        self.members = [Member(folder, number, self.coordinator.address, rack=racks[number], **options) for number in range(members)]
        for member in self.members:
            member.start()
        self.tool("table", "create", "db0", "--servers", members)

    def tool(self, *arguments):
        return harness.duramen(*arguments, "--coordinator", self.coordinator.address, "--cluster", "t", code=0).stdout

    def explain(self):
        """Prints the state of everything, and the ends of the logs: for a failed test."""
        print(harness.duramen("status", "--coordinator", self.coordinator.address).stdout)
        for process in [self.coordinator, *self.members]:
            print(f"--- port {process.port}, {'runs' if process.process else 'does not run'}", harness.tail(process.log_path), sep="\n")

    def running(self):
        return [member for member in self.members if member.process]

    def try_call(self, port, *arguments):
        """Sends one command to the server that serves its key; None: no server does at this moment.
        """
        for _ in range(len(self.members)):
            try:
                with harness.Wire(port, timeout=2) as wire:
                    return wire.call(*arguments)
            except harness.ErrorReply as error:
                moved = re.match(r"MOVED \d+ \S+:(\d+)", str(error))
                if moved:
                    port = int(moved[1])
                elif re.match("TRYAGAIN|CLUSTERDOWN|LOADING|NOREPLICAS", str(error)):
                    return None
                else:
                    raise
            except (OSError, harness.Closed):
                return None
        return None

    def call(self, *arguments, at=None):
        port = (at or self.running()[0]).port
        return harness.wait_until(lambda: self.try_call(port, *arguments), f"{arguments} is answered")

    def write(self, name):
        for number in range(KEYS):
            assert self.call("SET", f"key {number}", f"{name} {number}") == b"OK"

    def check(self, name, at=None):
        for number in range(KEYS):
            assert self.call("GET", f"key {number}", at=at) == f"{name} {number}".encode()

    def close(self):
        """Ends all processes."""
        for process in [*self.members, self.coordinator]:
            if process.process:
                os.kill(process.process.pid, signal.SIGCONT)
                process.kill()


@pytest.fixture
def cluster(request, tmp_path):
    failed = request.session.testsfailed
    made = Cluster(tmp_path)
    yield made
    if request.session.testsfailed > failed:
        made.explain()
    made.close()


@pytest.fixture
def large_cluster(request, tmp_path):
    """With memory for more than a few keys."""
    failed = request.session.testsfailed
    made = Cluster(tmp_path, memory="128mb", threads=2)
    yield made
    if request.session.testsfailed > failed:
        made.explain()
    made.close()


@pytest.fixture
def coordinator(tmp_path):
    made = Coordinator(tmp_path).start()
    yield made
    made.kill()


def test_keys_of_a_killed_member_are_served_by_others_and_it_comes_back_as_another(cluster):
    cluster.write("first")
    victim = cluster.members[1]
    was = victim.id()
    victim.kill()
    cluster.check("first")
    victim.start()
    slot, generation = was.split(".")
    harness.wait_until(lambda: victim.id() == f"{slot}.{int(generation) + 1}", "it is a member again")
    cluster.check("first", at=victim)
    cluster.write("second")
    # Everything at once, without a warning.
    for process in [*cluster.members, cluster.coordinator]:
        process.kill()
    cluster.coordinator.start()
    for member in cluster.members:
        member.start()
    cluster.check("second")


def tag_of_each(members):
    """By port, a tag whose keys that member serves; None while one serves nothing."""
    tags = {}
    try:
        with members[0].connect() as wire:
            slots = wire.call("CLUSTER", "SLOTS")
            for number in range(1000):
                slot = wire.call("CLUSTER", "KEYSLOT", f"{{{number}}}")
                owner = next((entry[2][1] for entry in slots if entry[0] <= slot <= entry[1]), None)
                tags.setdefault(owner, number)
    except harness.ErrorReply:
        return None  # it has no list of tablets yet
    return tags if set(tags) == {member.port for member in members} else None


@pytest.mark.full
def test_members_stay_within_their_budget_when_one_dies(large_cluster):
    """All segments of which a dead backup had replicas were requested at once, 8 MB each; and the
    read-ahead of a recovery was counted for each log: members of 128 MB took 80 MB beside it, and
    one of 16 GB would have taken gigabytes."""
    members = large_cluster.members
    bound = 1.1 * 128 * MIB + 10_000_000
    tags = harness.wait_until(lambda: tag_of_each(members), "each member has slots")
    each = 55 * MIB // 1_100

    def fill(number):
        member = members[number]
        with member.connect() as wire:
            wire.load([b"{%d}:%d" % (tags[member.port], n) for n in range(each)], b"v" * 1000)

    with contextlib.ExitStack() as stack:
        watched = [(member, stack.enter_context(harness.Resident(member))) for member in members[:-1]]
        harness.in_threads(len(members), fill)
        dead = members[-1]
        dead.kill()
        large_cluster.call("GET", f"{{{tags[dead.port]}}}:0", at=members[0])
        time.sleep(5)  # the dead one's replicas are copied to others meanwhile
    for member, resident in watched:
        most = f"{resident.most / MIB:.0f} MiB resident: {member.page('/memory')}"
        assert resident.most <= bound + 16 * MIB, most  # memory of a recovery beside it
        assert member.resident_bytes() <= bound
    for tag in tags.values():
        for n in (0, each // 2, each - 1):
            assert large_cluster.call("GET", f"{{{tag}}}:{n}", at=members[0]) == b"v" * 1000


def written(member):
    """Bytes that the process has written."""
    with open(f"/proc/{member.process.pid}/io") as file:
        return int(re.search(r"wchar: (\d+)", file.read())[1])


def sick(member):
    """The answer of /livez if the member is unhealthy."""
    try:
        member.page("/livez")
    except urllib.error.HTTPError as error:
        return error.read().decode()
    return None


@pytest.mark.full
def test_a_member_whose_disk_hangs_holds_up_nobody(tmp_path):
    """It answered pings, so it was not called crashed; masters with a replica there waited for it
    for ever, and /livez was ok."""
    places = [tmp_path / f"member-{number}" for number in range(4)]  # alike, so that all get replicas
    with contextlib.ExitStack() as stack:
        for place in places:
            stack.enter_context(harness.disk(place.with_suffix(".image"), place, 1 << 30))
        cluster = stack.enter_context(contextlib.closing(Cluster(tmp_path)))
        cluster.write("before")
        hung = max(range(4), key=lambda number: written(cluster.members[number]))
        well = cluster.members[(hung + 1) % 4]
        with harness.frozen(places[hung]):
            begun = time.monotonic()
            cluster.write("meanwhile")
            # It was waited for without end. Now 4 s until it is given up, by each of three masters at
            # worst, which need the clock; the rest is for a busy machine.
            assert time.monotonic() - begun < 45
            cluster.check("meanwhile", at=well)
            table = harness.wait_until(lambda: sick(cluster.members[hung]), "/livez tells it")
            assert re.search(r"^keeper .* has not come back", table, re.MULTILINE), table
            assert not sick(well)
        harness.wait_until(lambda: not sick(cluster.members[hung]), "it is well again")
        cluster.write("after")
        cluster.check("after", at=well)


def fill_up(place):
    """Takes all room of a file system, also a rest of less than a block."""
    with contextlib.suppress(OSError):
        harness.fill(place, 0)
    assert shutil.disk_usage(place).free == 0


@pytest.mark.full
def test_a_member_comes_back_although_its_disk_is_full(tmp_path):
    """Its id was written to a new file, for which a disk full of its own replicas has no room: a
    member that was killed, or called crashed, answered LOADING for ever, and neither its memory nor
    its replicas came back."""
    place = tmp_path / "member-1"
    with contextlib.ExitStack() as stack:
        stack.enter_context(harness.disk(tmp_path / "image", place, 256 * MIB))
        cluster = stack.enter_context(contextlib.closing(Cluster(tmp_path)))
        cluster.write("before")
        victim, other = cluster.members[1], cluster.members[0]
        was = victim.id()
        fill_up(place)
        victim.kill()
        victim.start()
        harness.wait_until(lambda: has_joined_after(victim, was), "it is a member again")
        assert "cannot be stored" not in victim.log()
        cluster.check("before", at=victim)
        # It is stored: the next life has the next generation.
        slot, generation = victim.id().split(".")
        victim.kill()
        victim.start()
        harness.wait_until(lambda: victim.id() == f"{slot}.{int(generation) + 1}", "it is a member again")
        # A life that begins in the same process stores its id too.
        harness.wait_until(lambda: json.loads(other.page("/cluster"))["servers_up"] == 4, "all are seen")
        was = victim.id()
        os.kill(victim.process.pid, signal.SIGSTOP)
        harness.wait_until(lambda: json.loads(other.page("/cluster"))["servers_up"] == 3, "the sleeper is noticed")
        os.kill(victim.process.pid, signal.SIGCONT)
        harness.wait_until(lambda: has_joined_after(victim, was), "it is a member again")
        assert shutil.disk_usage(place).free == 0
        cluster.check("before", at=victim)


def has_joined_after(member, was):
    """Whether it serves as a member under another id."""
    try:
        return member.info("cluster").get("duramen_server", was) != was
    except (OSError, harness.Closed, harness.ErrorReply):
        return False


@pytest.mark.full
def test_who_slept_is_replaced_and_begins_anew_in_the_same_process(cluster):
    cluster.write("value")
    sleeper, other = cluster.members[2], cluster.members[0]
    harness.wait_until(lambda: json.loads(other.page("/cluster"))["servers_up"] == 4, "all are seen")
    was, process = sleeper.id(), sleeper.process.pid
    os.kill(process, signal.SIGSTOP)
    harness.wait_until(lambda: json.loads(other.page("/cluster"))["servers_up"] == 3, "the sleeper is noticed")
    cluster.check("value", at=other)
    os.kill(process, signal.SIGCONT)
    harness.wait_until(lambda: has_joined_after(sleeper, was), "it is a member again")
    assert sleeper.process.poll() is None
    harness.wait_until(lambda: "this member's life is over" in sleeper.log(), "its log tells why")
    cluster.check("value", at=sleeper)


def test_people_see_how_a_member_is(cluster):
    first, *others = cluster.members
    harness.wait_until(lambda: json.loads(first.page("/cluster"))["servers_up"] == 4, "all are seen")
    page = json.loads(first.page("/cluster"))
    assert (page["cluster"], page["servers_up"], page["replicas"]) == ("t", 4, 2)
    assert page["native"] == f"127.0.0.1:{first.native_port}" and page["resp"] == f"127.0.0.1:{first.port}"
    assert page["enough_backups"] and page["recoveries"] == []
    # Each tablet is served once; one each, unless a server was so slow that others took its tablets
    # over.
    harness.wait_until(
        lambda: sum(json.loads(member.page("/cluster"))["tablets_served"] for member in cluster.members) == 4,
        "all tablets are served",
    )
    assert "duramen_cluster_servers_up 4.0" in first.page("/metrics")
    # Two replicas, and only one other server: reported, and no write is acknowledged.
    for other in others[1:]:
        other.kill()
    harness.wait_until(lambda: not json.loads(first.page("/cluster"))["enough_backups"], "it is seen")
    assert first.info("cluster")["duramen_enough_backups"] == "0"
    assert first.stop() == 0


def sharing(member):
    return int(member.info("cluster")["duramen_segments_sharing_rack"])


@pytest.mark.full
def test_writes_go_on_when_those_who_live_are_in_too_few_racks(tmp_path):
    """Two replicas, racks a, a, b and c: the member of b died, and the one of c wrote nothing any more, as both others are in one rack.
    It said that there were enough backups."""
    with contextlib.closing(Cluster(tmp_path, racks="aabc")) as cluster:
        members = cluster.members
        harness.wait_until(lambda: all(member.info("cluster")["duramen_enough_backups"] == "1" for member in members), "all are enough")
        cluster.write("before")
        harness.wait_until(lambda: not any(map(sharing, members)), "control logs that began in one rack have left it")
        lost, alone = members[2], members[3]
        lost.kill()
        living = cluster.running()
        harness.wait_until(lambda: all(member.info("cluster")["duramen_servers_up"] == "3" for member in living), "it is missed")
        cluster.write("meanwhile")
        for member in living:
            cluster.check("meanwhile", at=member)
            assert member.info("cluster")["duramen_enough_backups"] == "1"
        harness.wait_until(lambda: tag_of_each(living), "each of those left has slots")
        harness.wait_until(lambda: sharing(alone), "it says that copies share a rack")
        assert re.search(r"^duramen_cluster_segments_sharing_rack [1-9]", alone.page("/metrics"), re.MULTILINE)
        assert json.loads(alone.page("/cluster"))["segments_sharing_rack"] > 0
        shared = harness.wait_until(lambda: re.findall(r".*\n.* have copies that share a rack", cluster.tool("status")), "people see it")
        assert [line.split()[0] for line in shared] == [alone.id()]
        # All that `alone` wrote meanwhile is with those two; with one of them gone there are too few.
        members[0].kill()
        harness.wait_until(lambda: alone.info("cluster")["duramen_enough_backups"] == "0", "two are too few")
        members[0].start()
        cluster.check("meanwhile", at=alone)
        # A member of b is back: what is new lies apart, and what was written meanwhile stays.
        lost.start()
        cluster.write("spread")
        cluster.check("spread", at=lost)


def test_garbage_on_the_native_port_harms_nobody(cluster):
    member = cluster.members[0]
    opening = native.opening(native.SERVER)
    known = [b"\xff" * 64, bytes(200), native.frame(native.PROOF, bytes(33))]
    for name, garbage in (
        *((None, strange) for strange in (b"", b"PING\r\n", b"\xff" * 100_000, opening, opening + b"\xff" * 64, opening + bytes(200))),
        *((b"t", strange) for strange in known),
        (b"u", b""),
    ):
        with socket.create_connection(("127.0.0.1", member.native_port), timeout=harness.PATIENCE_S) as peer:
            try:
                if name:
                    native.shake(peer, native.SERVER, cluster=name)
                peer.sendall(garbage)
                peer.shutdown(socket.SHUT_WR)
                while peer.recv(1 << 16):
                    pass
            except ConnectionError:
                pass
    cluster.write("value")
    assert "panicked" not in member.log()


def refusal(folder, *arguments, code=2):
    serve = ("serve", "--port", 0, "--admin-port", 0, "--native-port", 0, "--memory", "64mb")
    done = harness.duramen(*serve, *arguments, code=code, folder=folder)
    assert "ready " not in done.stdout, done
    return done.stderr


@pytest.mark.parametrize(
    "arguments, words",
    [
        (("--coordinator", "somewhere"), ["somewhere", "host:port"]),
        (("--mode", "cache"), ["cache"]),
        (("--disk-mode", "raw"), ["raw", "directory"]),
        (("--master=no", "--backup=no"), ["master", "backup"]),
        (("--cluster", ""), ["name"]),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else None,
)
def test_settings_that_make_no_member_are_refused(tmp_path, arguments, words):
    joins = () if "--coordinator" in arguments else ("--coordinator", "127.0.0.1:1")
    said = refusal(tmp_path, *joins, *arguments)
    for word in words:
        assert word in said


def test_a_directory_belongs_to_one_kind_of_server_and_one_cluster(tmp_path, coordinator):
    with harness.Duramen(tmp_path, level=None, dir=tmp_path / "single"):
        pass
    said = refusal(tmp_path, "--coordinator", coordinator.address, "--cluster", "t", "--dir", tmp_path / "single")
    assert "single server" in said
    with Member(tmp_path, 1, coordinator.address):
        pass
    said = refusal(tmp_path, "--dir", tmp_path / "member-1")
    assert "member of a cluster" in said
    (tmp_path / "member-1" / "member").write_text("1 u 0123456789abcdef 3.7\n", encoding="ascii")  # as before 0.1.0
    said = refusal(tmp_path, "--coordinator", coordinator.address, "--cluster", "t", "--dir", tmp_path / "member-1")
    assert "cluster `u`" in said


def test_without_its_coordinator_it_says_so_once_and_waits(tmp_path):
    member = Member(tmp_path, 1, f"127.0.0.1:{harness.free_port()}")
    with open(member.log_path, "ab") as log:
        member.process = subprocess.Popen(member.command(), stdout=subprocess.PIPE, stderr=log, env=harness.environment({}))
    try:
        harness.wait_until(lambda: "it goes on trying" in member.log() and "refused" in member.log(), "it says why it waits")
        assert member.stop() == 0
        assert member.log().count("it goes on trying") == 1, member.log()
    finally:
        member.kill()


def test_who_joins_another_cluster_is_told_so_and_ends(tmp_path, coordinator):
    said = refusal(tmp_path, "--coordinator", coordinator.address, "--cluster", "u", code=3)
    assert coordinator.address in said and "cluster `t`" in said, said


def test_a_members_token_is_asked_for(tmp_path, coordinator):
    token = tmp_path / "token"
    said = refusal(tmp_path, "--coordinator", coordinator.address, "--cluster-token-file", token, code=5)
    assert "token" in said
    token.write_text("\nsecret\n", encoding="ascii")
    said = refusal(tmp_path, "--coordinator", coordinator.address, "--cluster-token-file", token)
    assert "first line" in said


def joined(folder, coordinator, *options, **variables):
    """The ports of a member that `duramen join` has started, which is then killed."""
    command = [harness.BINARY, "join", "--coordinator", coordinator, "--dir", folder, "--memory", "64mb", "--threads", "1", *options]
    own = harness.environment(variables)
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=own, cwd=folder.parent)
    try:
        return process.stdout.readline()
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def test_a_member_that_has_joined_keeps_its_ports(cluster, tmp_path):
    """Each restart of `duramen join` took ports after its own former ones."""
    first = joined(tmp_path / "a", cluster.coordinator.address)
    other = joined(tmp_path / "b", cluster.coordinator.address)
    assert first.startswith(b"ready ") and other.startswith(b"ready ") and other != first
    for _ in range(2):
        assert joined(tmp_path / "a", cluster.coordinator.address) == first


def test_a_member_that_has_joined_comes_back_to_a_cluster_with_users(cluster, tmp_path):
    """`duramen join` asked the coordinator without a login, was refused, and took the default name:
    `belongs to cluster ..., this one to duramen`."""
    address = cluster.coordinator.address
    first = joined(tmp_path / "a", address)
    assert first.startswith(b"ready ")
    assert cluster.call("ACL", "SETUSER", "default", "resetpass", ">secret") == b"OK"
    assert joined(tmp_path / "a", address) == first
    # A new one has a login.
    new = joined(tmp_path / "b", address, "--user", "default", DURAMEN_PASSWORD="secret")
    assert new.startswith(b"ready ") and new != first
    assert joined(tmp_path / "b", address) == new
