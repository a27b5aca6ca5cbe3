"""The command line beside a cluster, and its side effects: the addressed server, names of servers,
the end after an interruption."""

import json
import os
import pathlib
import re
import signal
import subprocess
import time

import pytest

import harness

pytestmark = pytest.mark.duramen

KEYS = [f"key:{number}" for number in range(40)]


def duramen(*arguments, **options):
    return harness.duramen(*arguments, **{"timeout": 2 * harness.PATIENCE_S, **options})


class Up(harness.Duramen):
    """`duramen up`: a local cluster."""

    def __init__(self, folder, servers):
        super().__init__(folder)
        self.servers = servers

    def command(self):
        return [
            *(harness.BINARY, "up", "--servers", str(self.servers), "--replicas", "2", "--memory", "64mb"),
            *("--dir", str(self.folder / "up"), "--balance", "no", "--no-restart", *harness.CALM),
        ]

    def await_ready(self):
        ready = self.read_ready_line()
        self.coordinator = ready["coordinator"]
        self.ports = [harness.port_of(address) for address in ready["resp"].split(",")]
        self.pids = [int(pid) for pid in ready["pids"].split(",")]

    def ask(self, command, *arguments, at=0, code=0):
        done = duramen(command, "--port", self.ports[at], *arguments)
        assert done.returncode == code, done
        return done.stdout

    def status(self):
        return json.loads(duramen("status", "--json", "--coordinator", self.coordinator).stdout)


@pytest.fixture(scope="module")
def up(tmp_path_factory):
    cluster = Up(tmp_path_factory.mktemp("up"), 4)
    yield cluster.start()
    cluster.stop()


def test_up_and_status_call_servers_alike(up):
    """`up` named the process "server 1" that `duramen status` called 2.1."""
    said = re.findall(r"server (\d+\.\d+) at 127\.0\.0\.1:(\d+), pid (\d+)", up.log())
    members = [(member["server"], harness.port_of(member["resp"])) for member in up.status()["servers"]]
    assert [(name, int(port)) for name, port, _ in said] == members
    assert members == [(f"{number}.1", port) for number, port in enumerate(up.ports)]
    assert [int(pid) for _, _, pid in said] == up.pids
    for number, pid in enumerate(up.pids):
        command = pathlib.Path(f"/proc/{pid}/cmdline").read_bytes()
        assert f"server-{number}\0".encode() in command, "the log of a server has its number"


def test_commands_go_to_the_member_that_has_the_key(up):
    """`duramen get` of a key of another member was answered with MOVED."""
    for number, key in enumerate(KEYS):
        up.ask("set", key, f"value {number}", at=number % 4)
    for number, key in enumerate(KEYS[:20]):
        assert up.ask("get", key, at=(number + 1) % 4) == f"value {number}\n"
    assert up.ask("mget", *KEYS).splitlines() == [f"value {number}" for number in range(len(KEYS))]
    assert up.ask("exists", *KEYS, "nobody", at=1) == f"{len(KEYS)}\n"
    assert up.ask("dbsize", at=2) == f"{len(KEYS)}\n"
    assert sorted(up.ask("scan", at=3).split()) == sorted(KEYS)
    assert len(up.ask("scan", "--limit", "7").split()) == 7
    values = dict(line.split("\t") for line in up.ask("scan", "--values", at=1).splitlines())
    assert values == {key: f"value {number}" for number, key in enumerate(KEYS)}
    assert sorted(up.ask("keys", "key:1*").split()) == sorted(key for key in KEYS if key.startswith("key:1"))
    assert up.ask("incr", "counter", "5", at=3) == "5\n"
    assert up.ask("call", "GETRANGE", "key:7", "0", "4", at=2) == "value\n"
    # A request that cannot be split gets the remedy in its error.
    refused = duramen("mset", "a", "1", "b", "2", "c", "3", "--port", up.ports[0])
    assert refused.returncode == 3 and "CROSSSLOT" in refused.stderr and "hash tag" in refused.stderr, refused
    assert up.ask("mset", "{t}a", "1", "{t}b", "2", at=1) == ""
    assert up.ask("del", *KEYS, "{t}a", "{t}b", "counter", at=1) == f"{len(KEYS) + 3}\n"
    assert up.ask("dbsize") == "0\n"


def test_a_table_without_tablets_is_told_at_once(up):
    """It waited for 30 s, as if a recovery were in progress. So it needs the clock."""
    began = time.monotonic()
    done = duramen("get", "k", "--table", "default", "--port", up.ports[0])
    assert done.returncode == 3 and "duramen table create" in done.stderr, done
    assert time.monotonic() - began < 25


def test_scan_prints_all_keys_beside_a_drain(up):
    """Keys that moved to a member that had been walked already, from one that had not, were left
    out, with exit code 0."""
    keys = [f"key that takes a place in the pipe:{number}" for number in range(8000)]
    for port in up.ports:  # each takes the keys that it has
        with harness.Wire(port) as wire:
            wire.pipeline([("SET", key, "v") for key in keys])
    scan = subprocess.Popen(
        [harness.BINARY, "scan", "--batch", "20", "--port", str(up.ports[0])],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=harness.environment({}),
    )
    # Then the full pipe stops it. A buffer of this program would keep lines from `communicate`.
    first = b""
    while not first.endswith(b"\n"):
        first += os.read(scan.stdout.fileno(), 1)
    found = {first.decode().strip()}
    drained = duramen("drain", "3.1", "--wait", "--coordinator", up.coordinator)
    assert drained.returncode == 0, drained
    rest, errors = scan.communicate(timeout=harness.PATIENCE_S)
    assert (scan.returncode, errors) == (0, "")
    assert found | set(rest.splitlines()) == set(keys)
    # A member counts what has left until it is purged.
    harness.wait_until(lambda: up.ask("dbsize") == f"{len(keys)}\n", "data: all keys are counted once")
    assert duramen("undrain", "3.1", "--coordinator", up.coordinator).returncode == 0
    for port in up.ports:
        with harness.Wire(port) as wire:
            wire.pipeline([("DEL", key) for key in keys])
    assert up.ask("dbsize") == "0\n"


def test_scan_prints_large_values(tmp_path):
    """The values of one batch were requested at once: beyond the server's output-limit that failed."""
    with harness.Duramen(tmp_path, "--output-limit", "4mb", "--output-pause", "512kb", memory="128mb") as server:
        with server.connect() as wire:
            wire.load([b"key:%d" % number for number in range(100)], b"v" * 400_000)
        done = duramen("scan", "--values", "--port", server.port)
        assert done.returncode == 0, done
        assert sorted(done.stdout.splitlines()) == sorted(f"key:{number}\t" + "v" * 400_000 for number in range(100))


def test_empty_variables_are_as_none(up, tmp_path):
    """`${DURAMEN_PASSWORD:-}` of a compose file: each request began with a login that failed."""
    names = "HOST PORT TABLE USER PASSWORD PASSWORD_FILE TLS TLS_SERVER_NAME TLS_CERT_FILE TLS_KEY_FILE TLS_CA_CERT_FILE"
    empty = {f"DURAMEN_{name}": "" for name in [*names.split(), "COORDINATOR", "CLUSTER", "CLUSTER_TOKEN_FILE", "TLS_PORT"]}
    with harness.Duramen(tmp_path, memory="64mb") as single:
        for words in (("ping",), ("table", "list"), ("dbsize",)):
            done = duramen(*words, variables={**empty, "DURAMEN_PORT": str(single.port)})
            assert done.returncode == 0, done
    done = duramen("status", variables={**empty, "DURAMEN_COORDINATOR": up.coordinator})
    assert done.returncode == 0, done


def test_the_files_for_clients_in_a_servers_environment_are_not_the_clusters(up):
    """`duramen status` in the container of a member with `tls-port` did not reach its plain cluster."""
    files = {f"DURAMEN_TLS_{name}_FILE": f"/nowhere/{name}" for name in ("CERT", "KEY", "CA_CERT")}
    own = {"DURAMEN_COORDINATOR": up.coordinator, "DURAMEN_TLS": "yes", "DURAMEN_TLS_PORT": "6380", **files}
    for words in (("status",), ("table", "list")):
        done = duramen(*words, variables=own)
        assert done.returncode == 0, done
        done = duramen(*words, variables={**own, "DURAMEN_TLS_CLUSTER": "yes"})
        assert done.returncode != 0 and "/nowhere" in done.stderr, done


def test_a_named_server_beats_a_coordinator_of_the_environment(up, tmp_path):
    """`table drop NAME --port P` with DURAMEN_COORDINATOR exported dropped the cluster's table."""
    with harness.Duramen(tmp_path, memory="64mb") as single:
        here, exported = ("--port", single.port), {"DURAMEN_COORDINATOR": up.coordinator}

        def table(*words, code=0):
            done = duramen("table", *words, variables=exported)
            assert done.returncode == code, done
            return done.stdout + done.stderr

        table("create", "sessions", "--servers", "2")
        table("create", "sessions", *here)
        assert "default" in table("list", *here) and "db0" in table("list")
        assert "--servers" in table("create", "more", "--servers", "2", *here, code=2)
        assert "give one of them" in table("drop", "sessions", *here, "--coordinator", up.coordinator, code=2)
        assert table("drop", "sessions", *here) == f"dropped table `sessions` of the server at 127.0.0.1:{single.port}\n"
        assert "sessions" in table("list") and "sessions" not in table("list", *here)
        assert table("drop", "sessions") == f"dropped table `sessions` of the cluster at {up.coordinator}\n"


def test_get_waits_while_the_key_is_recovered(up):
    """`kill -9` and `get` at once, as in the README's tour, showed an error."""
    for number, key in enumerate(KEYS):
        up.ask("set", key, f"value {number}")
    subprocess.run(["kill", "-9", str(up.pids[1])], check=True)
    for number, key in enumerate(KEYS):
        assert up.ask("get", key, at=(0, 2, 3)[number % 3]) == f"value {number}\n"
    assert up.ask("dbsize", at=2) == f"{len(KEYS)}\n"
    # The named member must be there.
    gone = duramen("get", "k", "--port", up.ports[1])
    assert gone.returncode == 4 and "cannot reach" in gone.stderr, gone


def processes_in(folder):
    """Ids of processes with this folder in their command."""
    found = []
    for path in pathlib.Path("/proc").glob("[0-9]*/cmdline"):
        try:
            command = path.read_bytes()
        except OSError:
            continue
        if str(folder).encode() in command:
            found.append(int(path.parent.name))
    return found


@pytest.mark.full
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_an_interrupted_bench_leaves_nothing(tmp_path, number):
    """It left its files, and a running cluster."""
    scratch = tmp_path / "scratch"
    bench = subprocess.Popen(
        [harness.BENCH, "recovery", "--quick", "--duramen", harness.BINARY]
        + ["--dir", str(scratch), "--out", str(tmp_path / "out")],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
        preexec_fn=lambda: signal.signal(number, signal.SIG_DFL),  # below `nohup` it is ignored
    )
    harness.wait_until(lambda: list(scratch.glob("*/server-1.log")), "servers are started")
    assert len(processes_in(scratch)) >= 3, "bench, up and servers"
    bench.send_signal(number)
    _, said = bench.communicate(timeout=harness.PATIENCE_S)
    assert bench.returncode == 128 + number, said
    assert "interrupted" in said
    assert list(scratch.iterdir()) == [] and processes_in(scratch) == [], said


@pytest.mark.full
@pytest.mark.parametrize(
    "report, arguments, columns",
    [
        (
            "timeline",
            ["timeline", "--keys", "2000", "--window-ms", "200"],
            ["all µs", "client: send", "server: waiting"],
        ),
        (
            "loaded",
            ["loaded", "--percent", "5,50", "--clients", "1,4", "--keys", "2000", "--window-ms", "200"],
            ["k operations/s", "GET p50 µs", "SET p99"],
        ),
        (
            "network",
            ["network", "--value-bytes", "1024", "--data", "1"],
            ["updates/s", "of the own disk's"],
        ),
        (
            "ycsb-servers",
            ["ycsb-servers", "--percent", "50", "--memory", "64", "--window-ms", "200"],
            ["operations/s", "objects"],
        ),
        ("cluster-sizes", ["cluster", "--only", "sizes"], ["value bytes", "p50 µs", "p99.9 µs"]),
        (
            "cache-writes",
            ["cache-writes", "--memory", "64", "--keys", "2000"],
            ["objects per MB", "k writes/s", "CPU µs"],
        ),
    ],
    ids=lambda given: given if isinstance(given, str) else "",
)
def test_a_figure_of_servers_has_its_rows(tmp_path, report, arguments, columns):
    subprocess.run(
        [harness.BENCH, *arguments, "--quick", "--rounds", "1", "--out", str(tmp_path)]
        + ["--duramen", harness.BINARY]
        + ([] if report == "cache-writes" else ["--dir", str(tmp_path / "scratch")]),
        stdin=subprocess.DEVNULL,
        check=True,
        timeout=2 * harness.PATIENCE_S,
    )
    report = json.loads((tmp_path / f"{report}.json").read_text())
    for table in report["tables"]:
        assert len(table["rows"]) >= 2
    for row in report["tables"][0]["rows"]:
        assert all(row[column] is not None for column in columns), row
    assert all((tmp_path / plot).exists() for plot in report["plots"])


def test_an_interrupted_up_leaves_nothing(tmp_path):
    """It left the temporary directory."""
    up = subprocess.Popen(
        [harness.BINARY, "up", "--servers", "2", "--memory", "64mb"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=harness.environment({"TMPDIR": str(tmp_path)}),
    )
    assert up.stdout.readline().startswith(b"ready ")
    assert len(list(tmp_path.glob("duramen-up-*"))) == 1
    up.send_signal(signal.SIGINT)
    assert up.wait(harness.PATIENCE_S) == 0
    up.stdout.close()
    assert list(tmp_path.iterdir()) == [] and processes_in(tmp_path) == []
