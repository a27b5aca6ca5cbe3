"""Admin HTTP: /metrics, /livez, /readyz, /memory."""

import base64
import json
import re
import subprocess
import time
import urllib.error
import urllib.request

import pytest

import harness
import provide
from harness import encode

pytestmark = pytest.mark.duramen

# `name{label="value",…} number`, or a comment.
METRIC = re.compile(r'^[a-z_][a-z0-9_]*(\{[a-z_]+="[^"]*"(,[a-z_]+="[^"]*")*\})? [-+0-9.eEInfNa]+$')


def get(server, path):
    with urllib.request.urlopen(f"http://127.0.0.1:{server.admin_port}{path}", timeout=harness.PATIENCE_S) as answer:
        return answer.read().decode()


def total(server, name):
    """Sum of all samples of a metric."""
    samples = [line for line in get(server, "/metrics").splitlines() if re.match(rf"{name}[{{ ]", line)]
    assert samples, f"no metric {name}"
    return sum(float(line.rsplit(" ", 1)[1]) for line in samples)


def test_alive_and_ready(server):
    assert get(server, "/livez").strip() == "ok"
    assert get(server, "/readyz").strip() == "ok"


def test_metrics_are_well_formed_and_documented(server):
    text = get(server, "/metrics")
    lines = text.splitlines()
    for line in lines:
        assert line.startswith("#") or METRIC.match(line), line
    described = {line.split()[2] for line in lines if line.startswith("# HELP")}
    for line in lines:
        if line and not line.startswith("#"):
            name = re.match(r"[a-z0-9_]+", line)[0]
            assert name.startswith(("duramen_", "process_")), line
            family = re.sub(r"_(bucket|sum|count|total)$", "", name)
            assert {name, family} & described, f"{name} has no HELP"


def test_every_metric_is_in_the_operations_page(server):
    page = (harness.pathlib.Path(__file__).parent.parent / "docs/operations.md").read_text()
    text = get(server, "/metrics")
    names = [name.removesuffix("_total") for name in re.findall(r"^# TYPE (\S+)", text, re.MULTILINE)]
    missing = [name for name in names if f"`{name}`" not in page]
    assert not missing


@pytest.mark.parametrize("level, memory, count", [(None, "256mb", 120_000), harness.only_full("memory", "1gb", 600_000)])
def test_memory_report_adds_up_to_rss(start, tmp_path, level, memory, count):
    """Data waiting for the disk, and memory kept by the heap, were missing in the report: at 256 MB
    of budget 200 MB were unexplained."""
    server = start(memory=memory, level="memory", dir=None if level else tmp_path / "data")
    with server.connect() as wire:
        wire.load([b"key:%09d" % i for i in range(count)], b"v" * 1000)
    seen = []

    def adds_up():  # the two are not read at one moment, and the cleaner is running
        report, rss = json.loads(get(server, "/memory")), server.rss_bytes()
        seen[:] = [f"/memory says {report['total_bytes']}, the system {rss}:\n{json.dumps(report)[:2000]}"]
        assert sum(report["parts"].values()) == report["total_bytes"]
        assert report["budget_used_bytes"] <= report["budget_bytes"]
        return abs(report["total_bytes"] - rss) <= 0.03 * rss

    try:
        harness.wait_until(adds_up, "the report adds up to what is resident")
    except AssertionError:
        print(*seen)
        raise


def test_unknown_path(server):
    with pytest.raises(urllib.error.HTTPError) as refused:
        get(server, "/nonsense")
    assert refused.value.code == 404


def test_garbage_on_the_admin_port(server):
    for data in (b"\x00" * 100_000, b"GET / HTTP/9\r\n\r\n", encode("PING"), b"GET /" + b"x" * 100_000):
        with harness.Wire(server.admin_port) as wire:
            try:
                wire.send(data)
                wire.socket.shutdown(harness.socket.SHUT_WR)
            except OSError:
                continue
            wire.drain()
    assert get(server, "/livez").strip() == "ok"


def test_peers_that_never_read_keep_the_admin_port_only_for_a_moment(server):
    """Every place was taken by connections that requested /metrics repeatedly and read nothing:
    /livez did not answer for two minutes, and an orchestrator would have killed the server."""
    request = b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n"
    silent = [harness.Wire(server.admin_port, receive_buffer=4096) for _ in range(32)]
    for wire in silent:
        wire.send(request * 200)
    harness.wait_until(lambda: get(server, "/livez").strip() == "ok", "somebody else is answered")
    for wire in silent:
        wire.close()


@pytest.mark.full
def test_clients_that_never_finish_their_request_do_not_delay_a_probe(server):
    """Fifty connections a second with half a request each took all places for two seconds each:
    /livez was answered after eight seconds, and a probe with a usual timeout would have had the
    server restarted."""
    halves = []
    try:
        until = time.monotonic() + 3
        while time.monotonic() < until:
            halves += [harness.Wire(server.admin_port) for _ in range(5)]
            for wire in halves[-5:]:
                wire.send(b"GET /livez HTTP/1.1\r\nHost:")
            watch = harness.Stopwatch(server)
            assert get(server, "/livez").strip() == "ok"
            assert watch.seconds() < 0.5
            time.sleep(0.1)
    finally:
        for wire in halves:
            wire.close()


USERS = "user default off\nuser watch on >open-sesame +info\nuser guest on >open-sesame ~* +@all -info\n"


@pytest.fixture
def guarded(start, tmp_path):
    """A server whose pages need a user; it has an audit log."""
    (tmp_path / "users").write_text(USERS)
    return start("--aclfile", tmp_path / "users", "--audit-log", tmp_path / "audit.jsonl")


def code(server, path, user=None, password="open-sesame"):
    """The status code of a page."""
    request = urllib.request.Request(f"http://127.0.0.1:{server.admin_port}{path}")
    if user:
        login = base64.b64encode(f"{user}:{password}".encode()).decode()
        request.add_header("Authorization", f"Basic {login}")
    try:
        with urllib.request.urlopen(request, timeout=harness.PATIENCE_S) as answer:
            return answer.status
    except urllib.error.HTTPError as refused:
        return refused.code


def test_pages_need_a_user_with_the_right_to_info(guarded, tmp_path):
    for path in ("/metrics", "/memory", "/loading"):
        assert code(guarded, path) == 401
        assert code(guarded, path, "watch") == 200
        assert code(guarded, path, "guest") == 403
        assert code(guarded, path, "watch", "guess") == 401 == code(guarded, path, "default")
        with guarded.connect() as wire:  # a right password ends the wait of the address
            wire.call("AUTH", "watch", "open-sesame")
    assert code(guarded, "/livez") == 200 == code(guarded, "/readyz")

    def lines():
        found = [json.loads(line) for line in (tmp_path / "audit.jsonl").read_text().splitlines()]
        return {(line["outcome"], line["user"], line["command"]) for line in found}

    expected = {("failed-login", "watch", "auth"), ("denied", "guest", "info")}
    harness.wait_until(lambda: expected <= lines(), "the audit log has them")
    assert "open-sesame" not in (tmp_path / "audit.jsonl").read_text()


@pytest.mark.full
def test_failed_logins_at_the_admin_port_are_slowed_and_delay_no_probe(guarded):
    for _ in range(5):
        assert code(guarded, "/metrics", "watch", "guess") == 401
    slow = [time.monotonic()]
    for _ in range(3):
        assert code(guarded, "/metrics", "watch", "guess") == 401
        slow.append(time.monotonic())
    assert slow[-1] - slow[0] >= 0.65, "100, 200 and 400 ms"
    guesses = []
    harness.in_threads(24, lambda _: guesses.append(attempt(guarded)))
    assert 429 in guesses, guesses
    watch = harness.Stopwatch(guarded)
    assert code(guarded, "/livez") == 200 and watch.seconds() < 2


def attempt(server):
    try:
        return code(server, "/metrics", "watch", "guess")
    except OSError:
        return None  # its turn would have come later than a connection may last


def test_curl_logs_in(guarded, tmp_path):
    curl = provide.program("curl")
    url = f"http://127.0.0.1:{guarded.admin_port}/metrics"
    run = lambda *words: subprocess.run([curl, "-sS", *words, url], capture_output=True, text=True, timeout=60)  # noqa: E731
    assert "duramen_connected_clients" in run("--user", "watch:open-sesame").stdout
    assert run().stdout == "log in\n"
    assert "+info" in run("--user", "guest:open-sesame").stdout
    (tmp_path / "netrc").write_text("machine 127.0.0.1 login watch password open-sesame\n")
    assert "duramen_connected_clients" in run("--netrc-file", tmp_path / "netrc").stdout
