"""Admin HTTP: /metrics, /livez, /readyz, /memory."""

import json
import re
import time
import urllib.error
import urllib.request

import pytest

import harness
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


@pytest.mark.parametrize("level, memory, count", [(None, "256mb", 120_000), ("memory", "1gb", 600_000)])
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
            began = time.monotonic()
            assert get(server, "/livez").strip() == "ok"
            assert time.monotonic() - began < 0.5
            time.sleep(0.1)
    finally:
        for wire in halves:
            wire.close()
