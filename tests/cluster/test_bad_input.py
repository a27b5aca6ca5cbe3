"""Requests that a running cluster must refuse, and invalid bytes: a clear answer each time, and
nothing lost."""

import contextlib
import random
import shutil
import socket
import subprocess
import threading

import pytest

import harness
import native
from harness import PATIENCE_S, wait_until
from native import COORDINATOR, REPLICA, SERVER, frame, opening
from processes import HEALTH_S, Cluster, Member
from runs import clients_of

pytestmark = pytest.mark.duramen

FILL = (2000, 400)
# More than one server has room for.
LARGE = (120, 600_000)


@pytest.fixture(scope="module")
def cluster(home):
    with Cluster(home, 3, replicas=2, settings=harness.CALM) as made:
        yield made


@pytest.fixture(scope="module")
def clients(cluster, home):
    clients = clients_of(cluster, home)
    said = clients.ask("fill", *FILL)
    assert not said["failures"], said
    yield clients
    clients.end()


@pytest.fixture(autouse=True)
def nothing_is_lost(cluster, clients):
    """After each test the cluster is whole, the same processes run, and all data is there."""
    pids = [member.process.pid for member in cluster.members]
    yield
    with cluster.explained():
        cluster.await_health()
        said = clients.ask("checkfill", *FILL)
        assert said["wrong"] == 0, said
        assert [member.process.pid for member in cluster.members] == pids
        for process in cluster.everybody():
            assert "panicked" not in process.log(), process.name


def refused(cluster, *words, code=3):
    """The message of a tool whose request is refused."""
    done = cluster.tell(*words, timeout_s=20)
    assert done.returncode == code and "panicked" not in done.stderr, done
    return done.stderr


def ended(folder, *words):
    """Runs the program with these words; it must end by itself, without a panic."""
    done = subprocess.run(
        [harness.BINARY, *map(str, words)],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        cwd=folder,
        env=harness.environment({}),
        check=False,
    )
    assert "panicked" not in done.stderr, done
    return done


def joining(folder, *arguments):
    """`duramen join` that does not become a member: its exit code and its message."""
    folder.mkdir(exist_ok=True)
    ports = ("--port", "0", "--admin-port", "0", "--native-port", "0", "--memory", "64mb", "--threads", "1")
    done = ended(folder, "join", *ports, *arguments)
    assert "ready " not in done.stdout, done
    return done.returncode, done.stderr


# --- Members that are refused


def test_a_server_of_another_cluster_is_told_so_and_ends(cluster, place):
    code, said = joining(place, "--dir", "data", "--cluster", "other", "--coordinator", cluster.coordinators[0].listens)
    assert code == 3, said
    assert "belongs to cluster `test`, this one to `other`" in said and "--cluster" in said
    assert not (place / "data").exists() or not any((place / "data").iterdir())


@contextlib.contextmanager
def coordinator_of_the_future():
    """A coordinator with versions of the protocol that do not exist yet."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def greet():
            with contextlib.suppress(OSError):
                while True:
                    peer, _ = listener.accept()
                    with peer, contextlib.suppress(OSError):
                        peer.sendall(opening(COORDINATOR, versions=(7, 9)))
                        while peer.recv(1 << 12):
                            pass

        threading.Thread(target=greet, daemon=True).start()
        yield "127.0.0.1:%d" % listener.getsockname()[1]
        listener.shutdown(socket.SHUT_RDWR)


def test_a_coordinator_of_another_version_is_said(place):
    with coordinator_of_the_future() as address:
        code, said = joining(place, "--dir", "data", "--cluster", "test", "--coordinator", address)
    assert code == 3, said
    assert "versions 7 to 9" in said and "update the older program" in said


def test_one_right_address_is_enough(cluster, place):
    """A server joins although some address in the list belongs to another cluster."""
    with coordinator_of_the_future() as wrong:
        member = Member("guest", place / "guest", cluster)
        right = cluster.coordinators[0].listens
        member.launch(
            [
                *(harness.BINARY, "join", "--coordinator", f"{wrong},{right}", "--cluster", "test", "--dir", "data"),
                *("--port", member.port, "--admin-port", member.admin_port, "--native-port", member.native_port, "--memory", "64mb"),
            ]
        )
        try:
            wait_until(lambda: listed(cluster, member), "it is a member", HEALTH_S, pause_s=0.1)
        finally:
            member.kill()
    wait_until(lambda: not listed(cluster, member), "it is gone", HEALTH_S, pause_s=0.1)


def listed(cluster, member):
    if member.process:
        member.alive()
    status = cluster.status() or {"servers": []}
    return [each for each in status["servers"] if each["native"] == member.native and each["state"] == "up"]


@pytest.mark.full
def test_a_copy_of_a_server_is_not_let_in(cluster, place):
    """Two processes with one directory's identity: the running one stays."""
    member = cluster.members[0]
    data = member.folder / "data"
    # Only the files of the identity: the replicas change during a copy.
    copy = place / "copy"
    copy.mkdir(parents=True)
    for name in data.iterdir():
        if name.is_file() and name.name != "LOCK":
            shutil.copy(name, copy / name.name)
    code, said = joining(place, "--dir", copy, "--cluster", "test", "--coordinator", cluster.coordinators[0].listens)
    assert code != 0 and "copy" in said, (code, said)


# --- the coordinator and its store


def test_a_coordinator_without_its_store_says_so(cluster, place):
    """Its store is unreachable: the coordinator keeps trying, and reports that to each client."""
    nowhere = f"http://127.0.0.1:{harness.free_port()}"
    listens = f"127.0.0.1:{harness.free_port()}"
    log = place / "lonely.log"
    with open(log, "wb") as out:
        lonely = subprocess.Popen(
            [harness.BINARY, "coordinator", "--listen", listens, "--store", f"etcd:{nowhere}", "--cluster", "test", "--admin", "no"],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            env=harness.environment({}),
        )
    try:
        wait_until(lambda: nowhere.removeprefix("http://") in harness.tail(log), "its log names the store")
        done = ended(place, "status", "--coordinator", listens, "--timeout", "1s")
        assert done.returncode in (3, 4) and "store" in done.stderr, done
        assert lonely.poll() is None, harness.tail(log)
    finally:
        lonely.kill()
        lonely.wait()


def test_a_store_has_one_coordinator(cluster, place):
    words = ("--listen", "127.0.0.1:0", "--admin", "no", "--cluster", "test", "--store", cluster.coordinators[0].store)
    done = ended(place, "coordinator", *words)
    assert done.returncode == 5, done
    assert str(cluster.coordinators[0].folder / "store") in done.stderr, done


# --- tables and tablets


def test_tables_that_exist_and_tables_that_do_not(cluster):
    assert "table `db0` exists" in refused(cluster, "table", "create", "db0")
    assert "there is no table `nothing`" in refused(cluster, "table", "drop", "nothing")
    assert "cannot be dropped" in refused(cluster, "table", "drop", "default")
    assert "a table's name has 1 to" in refused(cluster, "table", "create", "x" * 1000)


def test_splits_at_places_that_are_not_there(cluster):
    status = cluster.await_health()
    tablet = next(each for each in status["tablets"] if each["table"] == "db0")
    other = next(each["server"] for each in status["servers"] if each["server"] != tablet["owner"])
    inside = tablet["first_slot"] + 1
    said = refused(cluster, "tablet", "split", "db0", "--slot", inside, "--of", other)
    assert f"which is server {tablet['owner']}'s, not {other}'s" in said
    assert "no server `77.1` is a member" in refused(cluster, "tablet", "split", "db0", "--slot", inside, "--of", "77.1")
    assert "there is no table `nothing`" in refused(cluster, "tablet", "split", "nothing", "--slot", inside)
    assert "lies within slot" in refused(cluster, "tablet", "split", "db0", "--hash", "123", code=2)
    refused(cluster, "tablet", "split", "db0", "--slot", "16384", code=2)
    assert cluster.await_health()["tablets"] == status["tablets"]


def test_migrations_to_nobody(cluster):
    status = cluster.await_health()
    tablet = next(each for each in status["tablets"] if each["table"] == "db0")
    slots = f"{tablet['first_slot']}-{tablet['last_slot']}"
    assert "no server `77.1` is a member" in refused(cluster, "tablet", "migrate", "db0", "--slots", slots, "--to", "77.1")
    said = refused(cluster, "tablet", "migrate", "nothing", "--slots", slots, "--to", tablet["owner"])
    assert "there is no table `nothing`" in said
    refused(cluster, "tablet", "migrate", "db0", "--slots", "9-3", "--to", tablet["owner"], code=2)
    assert cluster.await_health()["tablets"] == status["tablets"]


def test_a_migration_to_a_server_that_dies(cluster, place):
    """Whether its death was known or not: the tablet stays on its server, and the reason is
    reported."""
    guest = Member("guest", place / "guest", cluster)
    guest.start()
    try:
        server = wait_until(lambda: listed(cluster, guest), "it is a member", HEALTH_S, pause_s=0.1)[0]["server"]
        tablet = next(each for each in cluster.certain_status()["tablets"] if each["table"] == "db0")
    finally:
        guest.kill()
    slots = f"{tablet['first_slot']}-{tablet['last_slot']}"
    said = refused(cluster, "tablet", "migrate", "db0", "--slots", slots, "--to", server, "--wait")
    assert any(why in said for why in ("is not UP", "is a member", "crashed")), said
    status = cluster.await_health()
    stays = next(each for each in status["tablets"] if each["table"] == "db0" and each["first_slot"] == tablet["first_slot"])
    assert stays["owner"] == tablet["owner"]


@pytest.mark.full
def test_a_migration_to_a_server_without_room(cluster, clients):
    """Refused before anything moves, with the numbers."""
    said = clients.ask("fill", *LARGE)
    assert not said["failures"], said
    try:
        # Each of three servers of 64 MB has a third of it.
        wait_until(lambda: is_told(cluster, LARGE[0] * LARGE[1]), "it is known how much there is", HEALTH_S, pause_s=0.2)
        before = cluster.await_health()
        target = before["servers"][0]
        said = refused(cluster, "tablet", "migrate", "db0", "--all", "--to", target["server"])
        assert f"server {target['server']} has no room: about " in said and f"and {target['limit_bytes']} may be" in said
        after = cluster.await_health()
        assert after["tablets"] == before["tablets"] and not after["migrations_ended"][len(before["migrations_ended"]) :]
    finally:
        said = clients.ask("fill", *FILL)
    assert not said["failures"], said


def is_told(cluster, least_bytes):
    """Whether all servers have reported their data and their limit."""
    servers = (cluster.status() or {"servers": []})["servers"]
    return all(each["limit_bytes"] for each in servers) and sum(each["bytes"] for each in servers) >= least_bytes


# --- bytes on the native port


def greet(role, **words):
    """Goes through the handshake in this role; it may be refused."""
    return lambda peer: native.shake(peer, role, **{"cluster": b"test", **words})


def bad_inputs():
    """Name, handshake, the bytes after it, and whether the other side must end the connection (else
    it may answer, and wait for more)."""
    dice = random.Random(2026)
    noise = dice.randbytes(200_000)
    yield "random bytes", None, noise, True
    yield "wrong magic", None, opening(SERVER, magic=b"DURAMENX"), True
    yield "wrong version", None, opening(SERVER, versions=(40, 41)), True
    yield "the hello of version 1", None, b"DURAMENN\1\0\1\0\2\4\0\0test", True
    yield "versions upside down", None, opening(SERVER, versions=(9, 1)), True
    yield "no role", None, opening(77), True
    yield "noise instead of a proof", None, opening(SERVER) + noise, True
    yield "frames instead of a proof", None, opening(SERVER) + frame(3, b"\0\1") * 40, True
    yield "another cluster", greet(SERVER, cluster=b"other"), b"", True
    yield "a token too much", greet(SERVER, token=b"guess"), b"", True
    for role in (SERVER, REPLICA, COORDINATOR):
        begin = greet(role)
        yield f"noise after the handshake of {role}", begin, noise, True
        yield f"too long of {role}", begin, frame(3, b"", length=0xFFFF_FFFF), True
        yield f"a wrong checksum of {role}", begin, frame(3, b"\0\1", crc=0), True
        yield f"unknown flags of {role}", begin, frame(3, b"\0\1", flags=0x8000), True
        yield f"an answer of {role}", begin, frame(3, b"\0\1", flags=1), True
        yield f"an unknown kind of {role}", begin, frame(999, b"\0"), False
        yield f"a proof once more of {role}", begin, frame(native.PROOF, bytes(36)), False
        for kind in (1, 2, 3, 4, 17, 18, 19):
            yield f"a body of noise, kind {kind}, of {role}", begin, frame(kind, noise[:300], noise[:5000]), False
    for cut in (3, 12, 30, 50):
        yield f"cut off at {cut}", None, (opening(SERVER) + frame(3, b"\0\1"))[:cut], False


def send(port, begin, data, must_end):
    """Sends the bytes; waits until the other side has ended the connection, if it must, else ends
    it itself."""
    with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S) as peer, contextlib.suppress(ConnectionError):
        if begin:
            with contextlib.suppress(native.RefusedError):
                begin(peer)
        peer.sendall(data)
        if not must_end:
            peer.shutdown(socket.SHUT_WR)
        while peer.recv(1 << 16):
            pass


def rss_bytes(process):
    with open(f"/proc/{process.process.pid}/status") as lines:
        return next(int(line.split()[1]) << 10 for line in lines if line.startswith("VmRSS:"))


def offences(member):
    with harness.Wire(member.port) as wire:
        text = wire.call("INFO", "cluster").decode()
    return int(next(line.split(":")[1] for line in text.splitlines() if line.startswith("duramen_offences:")))


def both_are_logged(process, port):
    """Some lines are written each second: one of each kind, if other clients do not cause them."""
    for begin, data, line in (
        (None, opening(SERVER, magic=b"DURAMENX"), "a connection is refused: the other side does not speak"),
        (greet(SERVER), frame(3, b"", length=0xFFFF_FFFF), "a connection is closed: a malformed frame"),
    ):

        def is_logged(begin=begin, data=data, line=line):
            before = len(process.log())
            send(port, begin, data, True)
            return line in process.log()[before:]

        wait_until(is_logged, f"it logs `{line}`", pause_s=0.3)


def test_what_makes_no_sense_on_a_peer_port(cluster):
    member = cluster.members[1]
    counted, memory, log = offences(member), rss_bytes(member), len(member.log())
    bad = list(bad_inputs())
    for name, begin, data, must_end in bad:
        try:
            send(member.native_port, begin, data, must_end)
        except TimeoutError:
            raise AssertionError(f"the connection stays open: {name}") from None
    least = sum(must_end for *_, must_end in bad)
    wait_until(lambda: offences(member) >= counted + least, f"{least} offences are counted")
    # A flood of bad connections causes neither a flood of lines nor a growth of memory.
    assert member.log()[log:].count("a connection is") <= len(bad)
    assert rss_bytes(member) < memory + (64 << 20)
    both_are_logged(member, member.native_port)


def test_lengths_are_believed_only_as_bytes_arrive(cluster):
    """Many peers that announce the longest frame and send none of it cost almost nothing."""
    member = cluster.members[2]
    memory = rss_bytes(member)
    announced = frame(3, b"", length=64 << 20)[:40]
    with contextlib.ExitStack() as stack:
        for _ in range(100):
            peer = stack.enter_context(socket.create_connection(("127.0.0.1", member.native_port), timeout=PATIENCE_S))
            native.shake(peer, SERVER, cluster=b"test")
            peer.sendall(announced + b"x" * 1000)
        cluster.await_health()
        assert rss_bytes(member) < memory + (64 << 20)


def test_what_makes_no_sense_to_a_coordinator(cluster):
    coordinator = cluster.coordinators[0]
    memory, term = rss_bytes(coordinator), cluster.certain_status()["term"]
    for name, begin, data, must_end in bad_inputs():
        try:
            send(coordinator.port, begin, data, must_end)
        except TimeoutError:
            raise AssertionError(f"the connection stays open: {name}") from None
    assert cluster.certain_status()["term"] == term
    assert rss_bytes(coordinator) < memory + (64 << 20)
    both_are_logged(coordinator, coordinator.port)
