"""Clusters of real processes: coordinators, etcd, servers; each killed, stopped and started by its
own process id."""

import contextlib
import datetime
import json
import pathlib
import random
import subprocess
import threading
import time
import traceback

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

import harness
import provide
from harness import wait_until

# Longest recovery of a cluster from any fault, on two shared cores, in seconds.
HEALTH_S = 60

# Password of servers that others could reach.
PASSWORD = "of the test"


class Process:
    """A `duramen` process. After a restart it has the same addresses and the same directory."""

    def __init__(self, name, folder, host=None):
        self.name = name
        self.folder = pathlib.Path(folder)
        self.folder.mkdir(parents=True, exist_ok=True)
        self.host = host
        self.address = host.address if host else "127.0.0.1"
        self.prefix = host.prefix if host else []
        self.log_path = self.folder.parent / f"{name}.log"
        self.process = None

    def launch(self, command):
        """Starts it without waiting for its ready line."""
        with open(self.log_path, "ab") as log:
            log.write(b"--- started\n")
            log.flush()
            self.process = subprocess.Popen(
                [str(word) for word in [*self.prefix, *command]],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.folder,
                env=harness.environment({}),
            )

    def open(self):
        """Whether it is on a host of its own, in a network without other users."""
        return ["--insecure-bind"] if self.host else []

    def password(self):
        return ["--requirepass", PASSWORD] if self.host else []

    def is_running(self):
        process = self.process
        return process is not None and process.poll() is None

    def signal(self, number):
        self.process.send_signal(number)

    def kill(self):
        """`kill -9`, also of one that is stopped."""
        if self.process:
            self.process.kill()
            self.process.wait()
            self.process = None

    def stop(self):
        """SIGTERM; returns the exit code."""
        self.process.terminate()
        try:
            code = self.process.wait(harness.PATIENCE_S)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"{self.name} does not end\n{self.log()[-4000:]}") from None
        self.process = None
        return code

    def log(self):
        return self.log_path.read_text(errors="replace")

    def alive(self):
        """Fails if the process ended by itself."""
        process = self.process
        code = process.poll() if process else None
        if code is not None:
            raise AssertionError(f"{self.name} ended by itself with {code}\n{self.log()[-4000:]}")


class Etcd(Process):
    def __init__(self, folder, host=None):
        super().__init__("etcd", folder, host)
        self.port, self.peer_port = harness.free_port(), harness.free_port()

    @property
    def endpoint(self):
        return f"{self.address}:{self.port}"

    def start(self):
        client, peer = f"http://{self.endpoint}", f"http://{self.address}:{self.peer_port}"
        self.launch(
            [
                *(provide.program("etcd"), "--name", "one", "--data-dir", self.folder / "etcd", "--log-level", "error"),
                *("--listen-client-urls", client, "--advertise-client-urls", client),
                *("--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer),
                *("--initial-cluster", f"one={peer}"),
            ]
        )
        return self


class Coordinator(Process):
    def __init__(self, name, folder, cluster, store, host=None):
        super().__init__(name, folder, host)
        self.cluster = cluster
        self.store = store
        self.port = harness.free_port()

    @property
    def listens(self):
        return f"{self.address}:{self.port}"

    def start(self):
        self.launch(
            [
                *(harness.BINARY, "coordinator", "--listen", self.listens, "--store", self.store),
                *("--cluster", self.cluster.name, "--admin", "no", *self.cluster.settings, *self.open()),
            ]
        )
        return self


class Member(Process):
    def __init__(self, name, folder, cluster, host=None):
        super().__init__(name, folder, host)
        self.cluster = cluster
        self.port, self.admin_port, self.native_port = (harness.free_port() for _ in range(3))

    @property
    def resp(self):
        return f"{self.address}:{self.port}"

    @property
    def native(self):
        return f"{self.address}:{self.native_port}"

    def start(self, *options):
        self.launch(
            [
                *(harness.BINARY, "serve", "--coordinator", ",".join(self.cluster.coordinator_addresses())),
                *("--cluster", self.cluster.name, "--dir", self.folder / "data", "--bind", self.address, *self.open(), *self.password()),
                *("--port", self.port, "--admin-port", self.admin_port, "--native-port", self.native_port),
                *("--memory", self.cluster.memory, "--threads", "1", *self.cluster.options, *options),
            ]
        )
        return self


    def excuse(self, listed):
        """The reason why it does not answer clients, as it reports itself; empty: it does. A dead
        life may still be listed, so its own id must be a listed one. It may not know its tablets
        yet (`listed`: the number of each server's tablets): a new coordinator announces recovered
        tablets only when leases of the dead owner have surely ended, which takes it a second after
        its start (K7)."""
        try:
            with harness.Wire(self.port, timeout=2) as wire:
                text = wire.call("INFO", "cluster").decode()
        except (OSError, harness.Closed, harness.ErrorReply) as error:
            return f"{self.name}: {error!r}"
        fields = dict(line.split(":", 1) for line in text.splitlines() if ":" in line)
        if fields.get("duramen_server") not in listed:
            return f"{self.name} is {fields.get('duramen_server', 'no member')}, listed are {sorted(listed)}"
        owned, served = listed[fields["duramen_server"]], int(fields["duramen_tablets_served"])
        if served < owned:
            return f"{self.name} serves {served} of {owned} tablets"
        return "" if fields["duramen_may_reply"] == "1" else f"{self.name} has no lease"


def connect(member, user=None, password=None):
    """A client of one member."""
    # Each repeated login would be a failed one, which slows the next.
    never = Retry(NoBackoff(), 0)
    options = {"decode_responses": True, "socket_timeout": 20, "protocol": 3, "retry": never}
    return redis.Redis(port=member.port, username=user, password=password, **options)


class Cluster:
    """Coordinators and servers, on the loopback address or on hosts of a network."""

    def __init__(self, folder, servers, replicas=3, coordinators=1, etcd=False, network=None, settings=(), options=(), owners=None, memory="64mb", balance="no"):
        self.folder = pathlib.Path(folder)
        self.name = "test"
        self.network = network
        self.replicas = replicas
        # Tests that look at owners do not want tablets that move by themselves.
        self.settings = ["--replicas", replicas, "--balance", balance, *settings]
        self.options = options
        self.memory = memory
        # Number of servers over which the table is spread at first; None: all.
        self.first_owners = owners

        def host(name):
            return network.host(name) if network else None

        self.etcd = Etcd(self.folder / "etcd", network.hub if network else None) if etcd else None
        self.coordinators = []
        for number in range(coordinators):
            name = f"coordinator{number}"
            home = self.folder / name
            store = f"etcd:http://{self.etcd.endpoint}" if etcd else f"redb:{home / 'store'}"
            self.coordinators.append(Coordinator(name, home, self, store, host(f"c{number}")))
        self.members = [
            Member(f"server{number}", self.folder / f"server{number}", self, host(f"s{number}")) for number in range(servers)
        ]

    def coordinator_addresses(self):
        return [coordinator.listens for coordinator in self.coordinators]

    def everybody(self):
        return [*([self.etcd] if self.etcd else []), *self.coordinators, *self.members]

    def start(self):
        for process in self.everybody():
            process.start()
        self.await_health(with_tablets=False)
        spread = ["--servers", self.first_owners] if self.first_owners else []
        done = self.tell("table", "create", "db0", *spread)
        assert done.returncode == 0, done
        self.await_health()
        return self

    def end(self):
        for process in self.everybody():
            process.kill()

    def __enter__(self):
        try:
            return self.start()
        except BaseException:
            self.leave_state()
            self.end()
            raise

    def __exit__(self, kind, *_):
        if kind:
            self.leave_state()
        self.end()

    # The coordinator's own status.

    def prefix(self):
        return self.network.hub.prefix if self.network else []

    def tell(self, *words, timeout_s=30, coordinators=None):
        """Runs a command of the operator; returns the finished process."""
        asked = [each.listens for each in coordinators or self.coordinators]
        command = [*self.prefix(), harness.BINARY, *words, "--coordinator", ",".join(asked)]
        # `table` is also a command for a single server, and takes seconds like that one.
        command += ["--timeout", timeout_s if words[0] == "table" else f"{timeout_s}s"]
        return subprocess.run(
            [str(word) for word in command], capture_output=True, text=True, env=harness.environment({}), timeout=timeout_s + 30
        )

    def status(self, timeout_s=2, coordinators=None):
        """`duramen status` as a dictionary; None: no coordinator answers."""
        done = self.tell("status", "--json", timeout_s=timeout_s, coordinators=coordinators)
        assert "panicked" not in done.stderr, done.stderr
        return json.loads(done.stdout) if done.returncode == 0 else None

    def certain_status(self):
        """The same, with more time for the coordinator."""
        return wait_until(lambda: self.status(timeout_s=30), "a coordinator answers")

    def trouble(self, with_tablets=True):
        """The reason why the cluster is not whole, as text; empty if it is whole."""
        for process in self.everybody():
            if process.process:
                process.alive()
        status = self.status()
        if status is None:
            return "no coordinator answers"
        up = [server for server in status["servers"] if server["state"] == "up"]
        running = sum(member.is_running() for member in self.members)
        if len(up) != running:
            return f"{len(up)} servers are up, {running} run: {status['servers']}"
        if not self.network:
            listed = {server["server"]: server["tablets"] for server in up}
            for member in self.members:
                if member.is_running() and (reason := member.excuse(listed)):
                    return reason
        recoveries = [recovery for recovery in status["recoveries"] if recovery["phase"] != "done"]
        if recoveries:
            return f"recoveries: {recoveries}"
        if status["migrations"]:
            return f"migrations: {status['migrations']}"
        unserved = [tablet for tablet in status["tablets"] if tablet["state"] != "served"]
        if unserved or (with_tablets and not status["tablets"]):
            return f"not served: {unserved}"
        return ""

    def leave_state(self):
        """Writes the state of the cluster to `state.txt` beside the logs, for the analysis of a
        failure."""
        with open(self.folder / "state.txt", "a") as out:
            print(f"--- {datetime.datetime.now(datetime.timezone.utc).isoformat()}", file=out)
            for process in self.everybody():
                print(process.name, "runs" if process.is_running() else "does not run", file=out)
            for form in ([], ["--json"]):
                done = self.tell("status", *form)
                print(done.stdout, done.stderr, file=out)
            for member in self.members:
                try:
                    with harness.Wire(member.port, timeout=2) as wire:
                        about = [wire.call("INFO", section).decode() for section in ("cluster", "duramen", "persistence")]
                        print(member.name, member.resp, *about, file=out)
                except (OSError, harness.Closed, harness.ErrorReply) as error:
                    print(member.name, member.resp, repr(error), file=out)

    @contextlib.contextmanager
    def explained(self):
        """Writes the state of the cluster if the body fails."""
        try:
            yield
        except BaseException:
            self.leave_state()
            raise

    def owners(self):
        """Servers that own tablets: a death of one of them has an effect."""
        status = self.await_health()
        owning = {server["resp"] for server in status["servers"] if server["tablets"] > 0}
        return [member for member in self.members if member.resp in owning]

    def owner(self, client, key):
        """The server that serves a key; `client` is one of redis-py for clusters."""
        port = client.get_node_from_key(key.decode()).port
        return next(member for member in self.members if member.port == port)

    def victim(self, dice):
        """A random server, mostly one that owns tablets."""
        return dice.choice(self.owners() if dice.random() < 0.8 else self.members)

    def move_something(self, dice):
        """Begins to move a part of the table to another server; returns that server's answer."""
        status = self.await_health()
        first = dice.randrange(16384)
        # A range must not reach beyond its tablet.
        tablet = next(each for each in status["tablets"] if each["first_slot"] <= first <= each["last_slot"])
        last = min(tablet["last_slot"], first + dice.randrange(4096))
        others = [each["server"] for each in status["servers"] if each["state"] == "up" and each["server"] != tablet["owner"]]
        return self.tell("tablet", "migrate", "db0", "--slots", f"{first}-{last}", "--to", dice.choice(others))

    def await_health(self, patience_s=HEALTH_S, with_tablets=True):
        """Waits until every running server is listed, and every tablet is served by one of them."""
        last = ["nothing asked"]

        def whole():
            last[0] = self.trouble(with_tablets)
            return not last[0]

        try:
            wait_until(whole, "the cluster is whole", patience_s=patience_s, pause_s=0.1)
        except AssertionError as error:
            if "passed and still not" not in str(error):
                raise
            raise AssertionError(f"not whole within {patience_s} s: {last[0]}") from None
        return self.certain_status()


class Storm(threading.Thread):
    """Faults, one after the other, until it is ended. `end` raises an error of a fault."""

    def __init__(self, faults, seed):
        super().__init__(daemon=True)
        self.faults = faults
        self.dice = random.Random(seed)
        self.over = threading.Event()
        self.error = None
        self.counts = {}
        self.diary = []
        self.now = None

    def run(self):
        try:
            while not self.over.is_set():
                fault = self.dice.choice(self.faults)
                began = time.time()
                self.now = (began, fault.__name__)
                fault(self)
                self.diary.append((began, time.time(), fault.__name__))
                self.counts[fault.__name__] = self.counts.get(fault.__name__, 0) + 1
        except BaseException as error:  # noqa: BLE001 - handed to the test
            self.error = error

    def rest(self, least_s, most_s):
        self.over.wait(self.dice.uniform(least_s, most_s))

    def __enter__(self):
        self.start()
        return self

    def __exit__(self, kind, *_):
        self.over.set()
        self.join(harness.PATIENCE_S * 2)
        if kind:
            print("faults, in seconds since 1970:", self.diary[-10:], "last:", self.now)
            traceback.print_exception(self.error)
        elif self.error:
            raise self.error
