"""Popular cluster clients, against real clusters: through the death of a master and, before that, a
live migration."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading

import pytest

import harness
import provide
from test_clients import JAVA, parameters

HERE = os.path.dirname(os.path.abspath(__file__))
# The command of each client; it brings the client.
PROGRAMS = {
    "redis-py": lambda: [sys.executable, f"{HERE}/clients/python/cluster.py"],
    "go-redis": lambda: [provide.go_client(), "cluster"],
    "jedis": lambda: [*JAVA, provide.java(), "Cluster", "jedis"],
    "lettuce": lambda: [*JAVA, provide.java(), "Cluster", "lettuce"],
}
CASES = [("redis-py", 2), ("redis-py", 3), ("go-redis", 2), ("go-redis", 3), ("jedis", 2), ("jedis", 3), ("lettuce", 3)]
# Errors that the libraries retry by themselves, and return when their limit is reached (go-redis:
# MaxRedirects; redis-py: cluster_error_retry_attempts; Jedis: maxAttempts; Lettuce: the command's
# timeout, and its redirections). No other error may be seen, and these not often. NOREPLICAS:
# backups did not acknowledge for `reply-timeout`. LOADING, and a node that Lettuce does not know
# yet: a server that was too slow, was taken for dead and comes back.
ALLOWED = {
    "redis-py": (
        *("ConnectionError", "TimeoutError", "ClusterDownError", "TryAgainError", "MovedError", "BusyLoadingError"),
        # Threads that share a client: a failed connection reorders its list of nodes without its
        # lock, while other threads read it.
        *("RuntimeError dictionary changed size", "RuntimeError dictionary keys changed", "KeyError '127.0.0.1:"),
        # Such a thread also disconnects a connection from whose buffer another one reads.
        "ValueError I/O operation on closed file",
        # Not an error of the cluster either. It must be over soon: `goes_on` checks that.
        "RedisClusterException Redis Cluster cannot be connected",
        "ResponseError NOREPLICAS",
    ),
    "go-redis": (
        *("*net.OpError", "*errors.errorString EOF", "proto.RedisError TRYAGAIN", "proto.RedisError CLUSTERDOWN"),
        *("proto.RedisError MOVED", "proto.RedisError LOADING", "proto.RedisError NOREPLICAS"),
    ),
    "jedis": ("JedisConnectionException", "JedisClusterOperationException", "JedisDataException NOREPLICAS"),
    "lettuce": (
        *("RedisCommandTimeoutException", "RedisConnectionException", "RedisException"),
        *("RedisCommandExecutionException MOVED", "RedisLoadingException", "UnknownPartitionException"),
        "RedisCommandExecutionException NOREPLICAS",
    ),
}
# A refused worker rests for 10 ms.
ERRORS_MAX = 5000
SERVERS = 5


class Up:
    """`duramen up`: a coordinator and servers."""

    def __init__(self, folder, servers=SERVERS):
        command = [harness.BINARY, "up", "--servers", str(servers), "--memory", "64mb", "--dir", f"{folder}/cluster", *harness.CALM]
        command += ["--replicas", str(servers - 2), "--balance", "no", "--no-restart"]
        self.folder = folder
        self.explained = False
        self.log_path = f"{folder}/up.log"
        with open(self.log_path, "wb") as log:
            self.process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log, text=True, env=harness.environment({})
            )
        watchdog = threading.Timer(harness.PATIENCE_S, self.process.kill)
        watchdog.start()
        try:
            line = next((line for line in self.process.stdout if line.startswith("ready ")), None)
        finally:
            watchdog.cancel()
        assert line, f"the cluster did not become ready\n{self.log()}"
        ready = dict(word.split("=", 1) for word in line.split()[1:])
        self.coordinator = ready["coordinator"]
        self.nodes = ready["resp"].split(",")
        self.pids = [int(pid) for pid in ready["pids"].split(",")]

    def log(self):
        return harness.tail(self.log_path)

    def explain(self):
        """Prints the status of the coordinator and of each server, and their logs: for a failed
        test."""
        if self.explained:
            return
        self.explained = True
        done = subprocess.run(
            [harness.BINARY, "status", "--json", "--coordinator", self.coordinator], capture_output=True, text=True
        )
        print("pids:", self.pids, "status:", done.stdout, done.stderr)
        for number, node in enumerate(self.nodes):
            print(f"--- {node}")
            try:
                with harness.Wire(harness.port_of(node), timeout=5) as wire:
                    slots = wire.call("CLUSTER", "SLOTS")
                    print("slots:", ", ".join(f"{first}-{last}: {owner[1]}" for first, last, owner in slots))
                    print(wire.call("INFO", "cluster").decode(), wire.call("CLIENT", "LIST").decode())
            except (OSError, harness.Closed, harness.ErrorReply) as error:
                print(repr(error))
            print(harness.tail(f"{self.folder}/cluster/server-{number}.log"))
        print("--- coordinator", harness.tail(f"{self.folder}/cluster/coordinator.log"), "--- up", self.log(), sep="\n")

    def wire(self, number):
        return harness.Wire(harness.port_of(self.nodes[number]))

    def lives(self):
        """Ids of the servers: they change when a server was too slow, was taken for dead, and came
        back."""
        servers = json.loads(self.tool("status", "--json"))["servers"]
        return sorted(server["server"] for server in servers if server["state"] == "up")

    def kill(self, number):
        """`kill -9` of one server."""
        os.kill(self.pids[number], signal.SIGKILL)

    def tool(self, *arguments):
        return harness.duramen(*arguments, "--coordinator", self.coordinator, "--timeout", "30s", code=0).stdout

    def move_a_tablet(self):
        """Moves one server's part of database 0 to another one, and waits until it has moved;
        returns the other's number."""
        tablets = [tablet for tablet in json.loads(self.tool("tablet", "list", "--json")) if tablet["table"] == "db0"]
        first = tablets[0]
        # A server that was slow enough to be taken for dead has lost its tablets to others.
        last = next(tablet for tablet in reversed(tablets) if tablet["owner"] != first["owner"])
        slots = f"{first['first_slot']}-{first['last_slot']}"
        self.tool("tablet", "migrate", "db0", "--slots", slots, "--to", last["owner"], "--wait")
        now = json.loads(self.tool("tablet", "list", "--json"))
        owners = [tablet["owner"] for tablet in now if tablet["table"] == "db0" and tablet["first_slot"] == first["first_slot"]]
        assert owners == [last["owner"]], now
        servers = json.loads(self.tool("status", "--json"))["servers"]
        address = next(server["resp"] for server in servers if server["server"] == last["owner"])
        return self.nodes.index(address)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(harness.PATIENCE_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.process.stdout.close()


@pytest.fixture
def cluster(request, tmp_path):
    failed = request.session.testsfailed
    with Up(tmp_path) as up:
        yield up
        if request.session.testsfailed > failed:
            up.explain()


class Workload:
    """A running client program."""

    def __init__(self, cluster, client, resp, nodes):
        command = [*PROGRAMS[client](), ",".join(nodes), str(resp)]
        self.cluster = cluster
        self.errors_file = tempfile.NamedTemporaryFile("w")
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.errors_file, text=True
        )
        self.passes = {}
        self.said = []
        self.result = None
        self.reader = threading.Thread(target=self.read)
        self.reader.start()

    def read(self):
        for line in self.process.stdout:
            kind, _, rest = line.strip().partition(" ")
            if kind == "pass":
                worker, passes, errors = map(int, rest.split())
                self.passes[worker] = (passes, errors)
            elif kind == "result":
                self.result = json.loads(rest)
            else:
                self.said.append(line)

    def failures(self):
        return harness.tail(self.errors_file.name, 60_000)

    def explain(self):
        """Prints its progress, and the stacks of its threads. Some clients end by that."""
        print("passes and errors of each worker:", self.passes, "result:", self.result)
        self.process.send_signal(signal.SIGQUIT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(3)
        print("--- what the client says, and its stacks", self.failures(), "".join(self.said), sep="\n")

    def errors(self):
        return sum(errors for _, errors in self.passes.values())

    def goes_on(self, what):
        """Waits until every worker has done all its keys twice without an error."""
        marks = {}

        def done():
            assert self.process.poll() is None, f"the client ended: {self.failures()}"
            for worker, (passes, errors) in list(self.passes.items()):
                if worker not in marks or marks[worker][1] != errors:
                    marks[worker] = (passes, errors)
            # The pass in progress at the mark does not count.
            ready = [worker for worker, (passes, _) in marks.items() if self.passes[worker][0] >= passes + 3]
            return len(ready) == 4

        harness.wait_until(done, what)

    def stop(self):
        self.process.stdin.write("stop\n")
        self.process.stdin.flush()
        self.reader.join(harness.PATIENCE_S)
        assert self.result, f"the client gave no result: {self.failures()}"
        return self.result

    def __enter__(self):
        return self

    def __exit__(self, kind, *_):
        if kind:
            self.cluster.explain()
            self.explain()
        self.process.kill()
        self.process.wait()
        self.reader.join()
        self.process.stdin.close()
        self.process.stdout.close()
        self.errors_file.close()


def check_errors(client, errors):
    foreign = [text for text in errors if not text.startswith(ALLOWED[client])]
    assert foreign == [], f"every value was right, but a library saw other errors: {errors}"
    assert sum(errors.values()) <= ERRORS_MAX, f"every value was right, but there were many errors: {errors}"


@pytest.mark.duramen
@pytest.mark.parametrize("client, resp", parameters(CASES, [("redis-py", 3)]), ids=[f"{client}-resp{resp}" for client, resp in CASES])
def test_client_through_a_migration_and_the_death_of_a_master(cluster, client, resp):
    with Workload(cluster, client, resp, cluster.nodes[:2]) as workload:
        lives = cluster.lives()
        workload.goes_on("all workers work")
        target = cluster.move_a_tablet()
        workload.goes_on("all workers work after the migration")
        moves_quietly = workload.errors() == 0 or cluster.lives() != lives
        # It serves its former tablets and the one that has just come.
        cluster.kill(target)
        workload.goes_on("all workers work again after the crash")
        result = workload.stop()
    assert result["wrong"] == []
    assert result["acknowledged"] > 1000, "every value was right, but few were acknowledged"
    print("errors:", result["errors"], "longest pause of a worker:", result["gap_ms"], "ms")
    assert moves_quietly, f"every value was right, but a tablet that moves caused errors: {result['errors']}"
    check_errors(client, result["errors"])
    # The survivors have every acknowledged write, also for a new client.
    with Workload(cluster, client, resp, [cluster.nodes[(target + 1) % SERVERS]]) as workload:
        lives = cluster.lives()
        workload.goes_on("a new client works")
        fresh = workload.stop()
    assert fresh["wrong"] == []
    quiet = fresh["errors"] == {} or cluster.lives() != lives
    assert quiet, f"every value was right, but a new client saw errors: {fresh}"
    check_errors(client, fresh["errors"])


def redis_cli(node, *arguments):
    port = str(harness.port_of(node))
    done = subprocess.run(
        [provide.program("redis-cli"), "-c", "-p", port, *arguments], capture_output=True, text=True, timeout=harness.PATIENCE_S
    )
    return done.stdout.strip() or done.stderr.strip()


@pytest.mark.duramen
def test_redis_cli_through_the_death_of_a_master(cluster):
    keys = [f"key{number}" for number in range(40)]

    def all_agree():  # a member gets the map a while after its tablets
        check = redis_cli(cluster.nodes[0], "--cluster", "check", cluster.nodes[2])
        return "All 16384 slots covered" in check and "agree about slots" in check

    harness.wait_until(all_agree, "all members agree about all slots", pause_s=0.1)
    for key in keys:
        # Again if a server that a busy machine delayed was taken for dead; a refused request had no
        # effect.
        harness.wait_until(
            lambda: redis_cli(cluster.nodes[0], "SET", key, f"value of {key}") == "OK", f"{key} is set", pause_s=0.1
        )
    harness.wait_until(all_agree, "all members agree about all slots", pause_s=0.1)
    cluster.kill(4)
    for key in keys:
        # A request for a key that is being recovered waits in the server; redis-cli itself does not
        # retry.
        found = redis_cli(cluster.nodes[1], "GET", key)
        if found != f"value of {key}":
            assert found.startswith(("TRYAGAIN", "CLUSTERDOWN", "NOREPLICAS", "Could not connect", "Error:")), found
        # At both: one may learn of the new owner a moment later than the other.
        for node in cluster.nodes[1:3]:
            harness.wait_until(
                lambda: redis_cli(node, "GET", key) == f"value of {key}", f"{key} is there again", pause_s=0.1
            )
        assert redis_cli(cluster.nodes[2], "APPEND", key, "!") == str(len(f"value of {key}!"))


@pytest.mark.duramen
def test_commands_of_a_cluster(cluster):
    """All members report the same map of slots, and FLUSHALL, DBSIZE, SCAN and KEYS concern the
    member's own part."""
    wires = [cluster.wire(number) for number in range(SERVERS)]
    told = []

    def all_tell_the_same():  # a member gets the map a while after its tablets
        try:
            told[:] = [wire.call("CLUSTER", "SLOTS") for wire in wires]
        except harness.ErrorReply:  # a member without a map yet
            return False
        return all(one == told[0] for one in told) and len(told[0]) == SERVERS

    harness.wait_until(all_tell_the_same, "all members tell the same of all slots")
    covered = sorted((first, last) for first, last, *_ in told[0])
    assert covered[0][0] == 0 and covered[-1][1] == 16383
    assert all(before[1] + 1 == after[0] for before, after in zip(covered, covered[1:]))
    assert {f"{node[0].decode()}:{node[1]}" for _, _, node in told[0]} == set(cluster.nodes)
    ids = [wire.call("CLUSTER", "MYID") for wire in wires]
    assert len(set(ids)) == SERVERS
    owner = {}
    for first, last, node in told[0]:
        owner.update(dict.fromkeys(range(first, last + 1), ids.index(node[2])))
    keys = [f"k{number}".encode() for number in range(500)]
    for key in keys:
        slot = wires[0].call("CLUSTER", "KEYSLOT", key)
        for number in {owner[slot], (owner[slot] + 1) % SERVERS}:
            if number == owner[slot]:
                assert wires[number].call("SET", key, b"v") == b"OK"
            else:
                with pytest.raises(harness.ErrorReply, match=f"MOVED {slot} {cluster.nodes[owner[slot]]}"):
                    wires[number].call("SET", key, b"v")
    assert sum(wire.call("DBSIZE") for wire in wires) == len(keys)
    assert sorted(key for wire in wires for key in wire.call("KEYS", "*")) == sorted(keys)
    slot = wires[0].call("CLUSTER", "KEYSLOT", b"k7")
    assert wires[owner[slot]].call("CLUSTER", "COUNTKEYSINSLOT", slot) >= 1
    assert b"k7" in wires[owner[slot]].call("CLUSTER", "GETKEYSINSLOT", slot, 100)
    # Three other servers have the writes.
    assert wires[0].call("WAIT", 3, 60_000) == 3
    assert wires[0].call("WAITAOF", 0, 3, 60_000) == [0, 3]
    assert wires[2].call("FLUSHALL") == b"OK"
    left = sorted(key for key in keys if owner[wires[0].call("CLUSTER", "KEYSLOT", key)] != 2)
    assert sorted(key for wire in wires for key in wire.call("KEYS", "*")) == left
    # A recovery does not bring deleted keys back.
    cluster.kill(2)
    living = [wire for number, wire in enumerate(wires) if number != 2]

    def recovered():
        info = living[0].call("CLUSTER", "INFO")
        return b"cluster_state:ok" in info

    harness.wait_until(recovered, "every slot is served again")
    harness.wait_until(
        lambda: sorted(key for wire in living for key in wire.call("KEYS", "*")) == left, "what was left is there"
    )
    for wire in wires:
        wire.close()
