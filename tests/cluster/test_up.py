"""`duramen up` as its pages describe it: replicas by default, members that die come back, the line
for one more member; and `drain --wait` beside it."""

import json
import os
import pathlib
import re
import shlex
import signal
import subprocess
import threading

import pytest

import harness
import test_tools
from harness import wait_until
from test_cluster_ids import Client

pytestmark = [pytest.mark.duramen, pytest.mark.full]

SERVERS = 5
VALUE = b"v" * 100_000


class Up(test_tools.Up):
    """With the replicas that it chooses itself, and with restarts."""

    def command(self):
        return [
            *(harness.BINARY, "up", "--servers", str(self.servers), "--memory", "128mb"),
            *("--dir", str(self.folder / "up"), "--balance", "no", "--level", "buffered", *harness.CALM),
        ]


@pytest.fixture(scope="module")
def up(home):
    cluster = Up(home, SERVERS)
    yield cluster.start()
    cluster.stop()


def living(status):
    return [server for server in status["servers"] if server["state"] == "up"]


def is_whole(up):
    status = up.status()
    return status["state"] == "served" and len(living(status)) == SERVERS and not status["migrations"]


def test_five_servers_have_two_replicas_and_two_may_be_down(up):
    """With three replicas, the former default, two of five servers that are down stop everything."""
    assert "2 replicas: 3 servers must be up, so 2 may be down" in up.log()
    assert up.status()["settings"]["replicas"] == 2


def test_a_coordinator_has_two_replicas_by_default(tmp_path):
    port = harness.free_port()
    coordinator = subprocess.Popen(
        [harness.BINARY, "coordinator", "--listen", f"127.0.0.1:{port}", "--store", f"redb:{tmp_path}/store", "--admin", "no"],
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=harness.environment({}),
    )
    try:
        assert coordinator.stdout.readline().startswith(b"ready ")
        done = test_tools.duramen("status", "--json", "--coordinator", f"127.0.0.1:{port}")
        assert json.loads(done.stdout)["settings"]["replicas"] == 2, done
    finally:
        coordinator.kill()
        coordinator.wait()
        coordinator.stdout.close()


class Members(Client):
    """A client that follows redirections, of this cluster."""

    def __init__(self, up):
        self.wires, self.first = {}, up.ports[0]


def test_a_member_that_dies_is_started_again(up):
    wait_until(lambda: is_whole(up), "all is served", pause_s=0.1)
    with Members(up) as client:
        for n in range(40):
            assert client.call("SET", f"k{n}", f"v{n}") == b"OK"
    dead = up.pids[3]
    os.kill(dead, signal.SIGKILL)
    wait_until(lambda: f"(pid {dead}) was ended by signal 9; it is started again in 5 s" in up.log(), "it says so")
    again = wait_until(lambda: re.search(r"server 3 is started again, pid (\d+)", up.log()), "it is started")
    assert int(again[1]) != dead
    wait_until(lambda: is_whole(up), "it is a member again", pause_s=0.1)
    with harness.Wire(up.ports[3]) as wire:
        assert wire.call("PING") == b"PONG", "at the same address"
        assert f"process_id:{again[1]}\r\n" in wire.call("INFO", "server").decode()
    with Members(up) as client:
        assert [client.call("GET", f"k{n}") for n in range(40)] == [f"v{n}".encode() for n in range(40)]


def test_the_line_for_one_more_member_works_as_it_is_printed(up, tmp_path):
    """Without it `join` had to be told of ports and a directory that nothing named."""
    line = re.search(r"one more: (duramen join .*)", up.log())[1]
    tools = tmp_path / "bin"
    tools.mkdir()
    (tools / "duramen").symlink_to(harness.BINARY)
    own = harness.environment({"PATH": f"{tools}:{os.environ['PATH']}"})
    member = subprocess.Popen(
        ["sh", "-c", f"exec {line}"], cwd=tmp_path, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=own
    )
    try:
        ready = member.stdout.readline().decode()
        assert ready.startswith("ready "), (line, member.stderr.read().decode())
        address = re.search(r"resp=(\S+)", ready)[1]
        wait_until(lambda: address in [server["resp"] for server in living(up.status())], "it is a member", pause_s=0.1)
        assert len(living(up.status())) == SERVERS + 1
        folder = pathlib.Path(shlex.split(line)[shlex.split(line).index("--dir") + 1])
        assert folder.parent == up.folder / "up" and (folder / "member").exists(), "beside those of the others"
    finally:
        member.terminate()
        member.communicate(timeout=harness.PATIENCE_S)
    wait_until(lambda: is_whole(up), "it is gone", pause_s=0.1)


def test_a_drain_tells_its_progress_and_outlives_the_coordinator(up):
    """It said nothing until its end, and ended with an error when the coordinator was restarted."""
    wait_until(lambda: is_whole(up), "all is served", pause_s=0.1)

    def fill(part):
        with Members(up) as client:
            for n in range(part, 2000, 4):
                assert client.call("SET", f"large:{n}", VALUE) == b"OK"

    harness.in_threads(4, fill)
    drain = subprocess.Popen(
        [harness.BINARY, "drain", "1", "--wait", "--coordinator", up.coordinator],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=harness.environment({}),
    )
    watchdog = threading.Timer(2 * harness.PATIENCE_S, drain.kill)
    watchdog.start()
    try:
        first = drain.stderr.readline()
        assert re.match(r"\d+ of \d+ tablets left, about [\d.]+[kmg]?b of data", first), first
        (leader,) = [pid for pid in test_tools.processes_in(up.folder / "up" / "coordinator") if is_coordinator(pid)]
        os.kill(leader, signal.SIGKILL)
        said, errors = drain.communicate()
    finally:
        watchdog.cancel()
        drain.kill()
    print(first, errors)
    assert drain.returncode == 0 and "owns nothing" in said, (drain.returncode, said, errors)
    drained = next(server for server in up.status()["servers"] if server["server"].startswith("1."))
    assert drained["tablets"] == 0, drained
    with Members(up) as client:
        assert all(client.call("GET", f"large:{n}") == VALUE for n in range(0, 2000, 50))


def is_coordinator(pid):
    return b"\0coordinator\0" in pathlib.Path(f"/proc/{pid}/cmdline").read_bytes()
