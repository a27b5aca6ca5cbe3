"""Readers of a server's figures: Prometheus, its linter, redis_exporter, and agents that read INFO.
"""

import contextlib
import math
import re
import subprocess
import time
import urllib.request

import pytest

import harness
import provide

pytestmark = pytest.mark.duramen

OPEN_METRICS = "application/openmetrics-text; version=1.0.0; charset=utf-8"
PLAIN = "text/plain; version=0.0.4; charset=utf-8"
# The header of Prometheus itself.
OF_PROMETHEUS = "application/openmetrics-text;version=1.0.0;q=0.5,application/openmetrics-text;version=0.0.1;q=0.4,text/plain;version=0.0.4;q=0.3,*/*;q=0.2"
SAMPLE = re.compile(r"^([a-zA-Z_:][a-zA-Z0-9_:]*)(\{.*\})? (\S+)$")


def fetch(port, path="/metrics", accept=None):
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", headers={"Accept": accept} if accept else {})
    with urllib.request.urlopen(request, timeout=harness.PATIENCE_S) as answer:
        return answer.headers["Content-Type"], answer.read().decode()


def samples(text):
    """All samples: {(name, labels): value}."""
    found = {}
    for line in text.splitlines():
        if line and not line.startswith("#"):
            name, labels, value = SAMPLE.match(line).groups()
            assert (name, labels or "") not in found, f"twice: {line}"
            found[name, labels or ""] = float(value)
    return found


def lint(text):
    done = subprocess.run([provide.optional(provide.promtool), "check", "metrics"], input=text, capture_output=True, text=True, check=False, timeout=harness.PATIENCE_S)
    return done.returncode, done.stdout + done.stderr


def load(server):
    """A few commands of each kind: each command here has a known number of calls."""
    with server.connect() as wire:
        wire.call("CONFIG", "RESETSTAT")
        wire.load([b"k%d" % n for n in range(500)], b"v" * 100, ("EX", 1000))
        for _ in range(20):
            wire.pipeline([("GET", f"k{n}") for n in range(50)])
        wire.pipeline([("GET", "absent"), ("INCR", "k1"), ("NOSUCH",), ("MGET", "k1", "k2"), ("STRLEN", "k1")])
        wire.pipeline([("MULTI",), ("SET", "a", "1"), ("INCR", "a"), ("EXEC",), ("CONFIG", "GET", "maxmemory")])
        wire.call("SELECT", 1)
        wire.call("SET", "other", "db")


@pytest.mark.parametrize(
    "accept, kind",
    [(None, PLAIN), ("*/*", PLAIN), ("text/plain; version=0.0.4", PLAIN), (OF_PROMETHEUS, OPEN_METRICS), ("application/openmetrics-text", OPEN_METRICS)],
)
def test_metrics_come_in_the_format_that_is_asked_for(server, accept, kind):
    """Every client got OpenMetrics: a scraper of the older format found no help and no type for any
    counter."""
    said, text = fetch(server.admin_port, accept=accept)
    assert said == kind
    assert text.endswith("# EOF\n") == (kind == OPEN_METRICS)
    counter = "duramen_commands" if kind == OPEN_METRICS else "duramen_commands_total"
    assert f"# TYPE {counter} counter\n" in text and "\nduramen_commands_total{" in text


def test_the_page_names_the_program_and_the_process(server):
    found = samples(fetch(server.admin_port)[1])
    (labels,) = [labels for name, labels in found if name == "duramen_build_info"]
    version = subprocess.run([harness.BINARY, "--version"], capture_output=True, text=True, check=True).stdout.split()[1]
    assert f'version="{version}"' in labels
    for name in ["cpu_seconds_total", "resident_memory_bytes", "virtual_memory_bytes", "open_fds", "max_fds", "threads", "start_time_seconds"]:
        assert found[f"process_{name}", ""] > 0, name
    resident = found["process_resident_memory_bytes", ""]
    assert abs(resident - server.rss_bytes()) < 0.2 * resident
    age_s = time.time() - found["process_start_time_seconds", ""]
    assert 0 <= age_s + 1 < 3600


def test_promtool_finds_nothing_to_say(start, tmp_path):
    """36 metrics had no help. With a directory and flash, every metric of a single server is on the
    page."""
    server = start("--flash-file", tmp_path / "flash", "--flash-size", "64mb", dir=tmp_path / "data", memory="128mb")
    load(server)
    assert lint(fetch(server.admin_port)[1]) == (0, "")


def test_promtool_finds_nothing_to_say_of_a_coordinator(tmp_path):
    ports = [harness.free_port() for _ in range(2)]
    command = [harness.BINARY, "coordinator", "--listen", f"127.0.0.1:{ports[0]}", "--admin", f"127.0.0.1:{ports[1]}"]
    process = subprocess.Popen([*command, "--store", f"redb:{tmp_path}/store"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    try:
        assert process.stdout.readline().startswith(b"ready ")
        kind, text = fetch(ports[1])
        assert kind.startswith("text/plain; version=0.0.4")
        assert 'duramen_coordinator_build_info{version="' in text
        assert lint(text) == (0, "")
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


@pytest.fixture
def exported(start, tmp_path):
    """A server with some activity, and redis_exporter's metrics of it."""
    binary = provide.optional(provide.redis_exporter)
    server = start(threads=2)
    load(server)
    port = harness.free_port()
    command = [binary, "-redis.addr", f"redis://127.0.0.1:{server.port}", "-web.listen-address", f"127.0.0.1:{port}"]
    log = tmp_path / "exporter.log"
    with open(log, "wb") as output:
        process = subprocess.Popen([*command, "-include-system-metrics"], stdout=output, stderr=output)
        try:

            def page():
                with contextlib.suppress(OSError):
                    return fetch(port)[1]

            text = harness.wait_until(page, "the exporter answers")
            yield server, samples(text), text
        finally:
            process.kill()
            process.wait()
    said = log.read_text()
    assert "level=error" not in said and "level=warn" not in said, said


@pytest.mark.full
def test_redis_exporter_tells_true_figures(exported):
    """`usec=0` of all commands; histograms whose buckets had more calls than there were; figures
    that it did not find."""
    server, found, text = exported
    of = lambda name, labels="": found[f"redis_{name}", labels]  # noqa: E731
    assert of("up") == 1 and of("exporter_last_scrape_error", '{err=""}') == 0
    assert not [key for key, value in found.items() if math.isnan(value)]
    for cmd, calls in [("set", 502), ("get", 1001), ("mget", 1), ("incr", 2), ("exec", 1), ("strlen", 1)]:
        assert of("commands_total", f'{{cmd="{cmd}"}}') == calls, cmd
        assert of("commands_duration_seconds_total", f'{{cmd="{cmd}"}}') > 0, cmd
    assert of("commands_rejected_calls_total", '{cmd="get"}') == 0
    assert of("errors_total", '{err="ERR"}') == 2  # an INCR of text, and an unknown command
    assert of("commands_failed_calls_total", '{cmd="incr"}') == 1
    assert (of("db_keys", '{db="db0"}'), of("db_keys_expiring", '{db="db0"}'), of("db_keys", '{db="db1"}')) == (501, 500, 1)
    assert 900 < of("db_avg_ttl_seconds", '{db="db0"}') <= 1000
    assert (of("keyspace_hits_total"), of("keyspace_misses_total")) == (1000 + 2 + 1, 1)
    assert of("connected_clients") >= 1 and of("config_maxclients") == 10000
    assert of("memory_max_bytes") == of("config_maxmemory") == 256 << 20
    memory = [of(f"memory_used_{name}_bytes") for name in ("startup", "dataset", "overhead", "rss", "peak")]
    assert all(bytes_ > 0 for bytes_ in memory), memory
    used = of("memory_used_bytes")
    assert used == memory[1] + memory[2] <= memory[4] and used <= memory[3]
    assert 0.9 < of("mem_fragmentation_ratio") < 20 and of("total_system_memory_bytes") > 1 << 30


@pytest.mark.full
def test_redis_exporters_histograms_are_whole(exported):
    """Each command had the histogram of its family: buckets beyond the number of calls, which
    scrapers refuse."""
    _, found, _ = exported
    name = "redis_commands_latencies_usec"
    for (metric, labels), count in found.items():
        if metric != f"{name}_count":
            continue
        cmd = re.search(r'cmd="([^"]+)"', labels)[1]
        buckets = [
            (float(re.search(r'le="([^"]+)"', where)[1]), value)
            for (bucket, where), value in found.items()
            if bucket == f"{name}_bucket" and f'cmd="{cmd}"' in where
        ]
        buckets.sort()
        values = [value for _, value in buckets]
        assert values == sorted(values) and buckets[-1] == (math.inf, count), (cmd, buckets)
        assert len(values) == 1 or values[-2] == count, (cmd, buckets)
        # The sums are from INFO, in whole microseconds; and the command's own end was not counted
        # yet.
        assert found[f"{name}_sum", labels] > 0 or count <= 2, cmd
    assert found[f"{name}_count", '{cmd="get"}'] == 1001


def test_the_sum_of_all_commands_is_the_time_that_was_spent(start):
    """The time of a slow command must not count as that of the fast ones in the same batch."""
    server = start(threads=1)
    with server.connect() as wire:
        said = wire.pipeline([("SET", "a", 1), ("GET", "a"), ("INFO", "commandstats")])[2].decode()
        assert "cmdstat_get:calls=1," in said and "cmdstat_info" not in said  # which has not ended yet
        wire.load([b"key:%d" % n for n in range(20_000)], b"v" * 10)
        wire.call("CONFIG", "RESETSTAT")
        for _ in range(10):
            wire.pipeline([*[("GET", "key:1")] * 20, ("KEYS", "nothing*"), *[("GET", "key:1")] * 20])
    info = server.info("everything")
    stats = {name: dict(part.split("=") for part in info[f"cmdstat_{name}"].split(",")) for name in ("get", "keys")}
    assert (stats["get"]["calls"], stats["keys"]["calls"]) == ("400", "10")
    # A KEYS examines 20,000 keys, a GET one.
    get, keys = (float(stats[name]["usec_per_call"]) for name in ("get", "keys"))
    assert 0 < get * 50 < keys, stats
    assert abs(float(stats["keys"]["usec"]) - 10 * keys) <= 1 + 0.01 * 10 * keys


# Fields of Redis's INFO that ours lacks, with the reason.
NOT_HERE = {
    "gcc_version": "no C compiler made it",
    "expired_stale_perc": "nobody looks for expired keys in cycles",
    "total_reads_processed": "reads and writes of sockets are not counted",
    "total_writes_processed": "reads and writes of sockets are not counted",
}


def test_info_has_the_fields_that_redis_has(pair):
    """Exporters and agents did not find `total_system_memory`, `allocator_*`, `master_replid` and
    forty others."""
    names = []
    for server in pair:
        with server.connect() as wire:
            text = wire.call("INFO", "everything").decode()
        names.append({line.split(":")[0] for line in text.splitlines() if ":" in line})
    ours, theirs = names
    dynamic = re.compile(r"cmdstat_|errorstat_|latency_percentiles|db\d")
    assert not {name for name in theirs - ours - set(NOT_HERE) if not dynamic.match(name)}
    assert not set(NOT_HERE) & ours, "they are here now: strike them off the list"


def test_config_get_knows_what_tools_ask_for(server, wire):
    """`CONFIG GET requirepass` and `notify-keyspace-events` returned empty lists, which clients
    took for an error."""
    for name in ["requirepass", "notify-keyspace-events", "latency-monitor-threshold", "client-output-buffer-limit", "databases", "save", "io-threads"]:
        found = wire.call("CONFIG", "GET", name)
        assert len(found) == 2 and found[0] == name.encode(), name
    assert wire.call("CONFIG", "GET", "requirepass")[1] == wire.call("CONFIG", "GET", "notify-keyspace-events")[1] == b""
    assert wire.call("CONFIG", "SET", "notify-keyspace-events", "KEA") == b"OK"
    assert wire.call("CONFIG", "GET", "notify-keyspace-events")[1] == b"AKE"
    assert wire.call("CONFIG", "SET", "notify-keyspace-events", "") == b"OK"


def test_a_password_is_not_shown(start):
    server = start("--requirepass", "s3cret")
    with server.connect() as wire:
        wire.call("AUTH", "s3cret")
        assert wire.call("CONFIG", "GET", "requirepass") == [b"requirepass", b"(hidden)"]
        assert b"s3cret" not in repr(wire.call("CONFIG", "GET", "*")).encode()


def test_there_are_no_modules(server, wire):
    assert wire.call("MODULE", "LIST") == []
    with pytest.raises(harness.ErrorReply, match="there are no modules"):
        wire.call("MODULE", "LOAD", "/x.so")


def test_blocked_clients_are_counted(start, tmp_path):
    """It was always 0."""
    with harness.disk(tmp_path / "image", tmp_path / "disk", 512 << 20) as place:
        server = start(level="memory", dir=place / "data", memory="64mb")
        with server.connect() as waiting:
            with harness.frozen(place):
                waiting.pipeline([("SET", "k", "v")])
                waiting.send(harness.encode("WAITAOF", 1, 0, 0))
                harness.wait_until(lambda: server.info("clients")["blocked_clients"] == "1", "one client is blocked")
                assert " flags=b " in server.connect().call("CLIENT", "LIST").decode()
            assert waiting.reply() == [1, 0]
            assert server.info("clients")["blocked_clients"] == "0"
        server.kill()


def test_ttls_are_estimated(start):
    server = start()
    with server.connect() as wire:
        wire.load([b"plain:%d" % n for n in range(3000)], b"v")
        wire.load([b"short:%d" % n for n in range(500)], b"v", ("EX", 100))
        wire.load([b"long:%d" % n for n in range(500)], b"v", ("EX", 300))
    fields = dict(part.split("=") for part in server.info("keyspace")["db0"].split(","))
    assert (fields["keys"], fields["expires"]) == ("4000", "1000")
    assert 140_000 < int(fields["avg_ttl"]) < 260_000, fields


def test_counters_of_processor_time_do_not_fall(start):
    """The kernel's ticks divide the time between user and system mode: an estimate, which sometimes
    decreased."""
    server = start(threads=2)
    last = {}
    with server.connect() as wire:
        for _ in range(150):
            wire.pipeline([("SET", "a", 1)] * 200)
            now = {name: float(value) for name, value in server.info("cpu").items() if name.startswith("used_cpu")}
            assert len(now) >= 4 and not [name for name in last if now[name] < last[name]], (last, now)
            last = now
    memory = server.info("memory")
    assert int(memory["allocator_rss_bytes"]) >= 0 and int(memory["allocator_frag_bytes"]) >= 0, memory
