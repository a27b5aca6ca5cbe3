"""Alert rules and the dashboard name metrics that servers and coordinators have, and do what they
say."""

import itertools
import json
import re
import subprocess
import urllib.request

import pytest

import harness
import provide
from installing import PACKAGING, run

pytestmark = pytest.mark.duramen

RULES = PACKAGING / "prometheus/duramen.rules.yml"
TESTS = PACKAGING / "prometheus/duramen.test.yml"
DASHBOARD = PACKAGING / "grafana/duramen.json"
METRIC = re.compile(r"\b(?:duramen|process)_[a-z0-9_]+")


def promtool(*words, **options):
    return run(provide.optional(provide.promtool), *words, **options)


def samples(port):
    """{name of a sample: its value} of a page of metrics, without those that have labels."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=harness.PATIENCE_S) as answer:
        lines = answer.read().decode().splitlines()
    return dict(line.split(" ") for line in lines if re.match("[a-z0-9_]+ ", line)), lines


def page(port):
    """{name of a sample} of a page of metrics."""
    _, lines = samples(port)
    return {re.match("[a-z0-9_]+", line)[0] for line in lines if line and not line.startswith("#")}


@pytest.fixture(scope="module")
def metrics(tmp_path_factory):
    """The names of all metrics: of a server with a directory, flash and TLS, of a coordinator, and of
    a member."""
    folder = tmp_path_factory.mktemp("metrics")
    certs = folder / "certs"
    run(harness.BINARY, "cert", "init", certs)
    files = ("--tls-cert-file", certs / "server.crt", "--tls-key-file", certs / "server.key")
    files += ("--tls-ca-cert-file", certs / "ca.crt")
    listen, admin = harness.free_port(), harness.free_port()
    coordinator = subprocess.Popen(
        [harness.BINARY, "coordinator", "--listen", f"127.0.0.1:{listen}", "--admin", f"127.0.0.1:{admin}"]
        + ["--store", f"redb:{folder}/store", "--replicas", "1", "--log-file", folder / "coordinator.log", *files],
        stdout=subprocess.PIPE,
    )
    try:
        assert coordinator.stdout.readline().startswith(b"ready ")
        flash = ("--flash-file", folder / "flash", "--flash-size", "64mb")
        tls = ("--tls-port", harness.free_port(), *files)
        member = ("--coordinator", f"127.0.0.1:{listen}", "--native-port", "0", "--tls-cluster=yes", *files)
        single = harness.Duramen(folder, *flash, *tls, dir=folder / "single", memory="64mb")
        single.port = harness.free_port()  # with `tls-port`, `port 0` would turn it off
        with single:
            with harness.Duramen(folder, *member, dir=folder / "member", memory="64mb", level=None) as one:
                yield page(single.admin_port) | page(one.admin_port) | page(admin)
    finally:
        coordinator.kill()
        coordinator.wait()
        coordinator.stdout.close()


def expressions_of_rules():
    """{alert: expression}; blocks of the one form that the file has."""
    found = re.findall(r"(?m)^ +- alert: (\w+)\n +expr: >-\n((?: {10}.*\n)+)", RULES.read_text())
    assert len(found) == RULES.read_text().count("- alert:")
    return {name: " ".join(expression.split()) for name, expression in found}


def descriptions_of_rules():
    """{alert: the remedy that it tells}."""
    found = {}
    for rule in re.split(r"(?m)^ +- alert: ", RULES.read_text())[1:]:
        description = rule.partition("description: >-\n")[2]
        lines = itertools.takewhile(lambda line: line.startswith(" " * 12), description.splitlines())
        found[rule.split()[0]] = " ".join(" ".join(lines).split())
    assert set(found) == set(expressions_of_rules()) and all(found.values())
    return found


def expressions_of_dashboard():
    """[(title of the panel, expression)], those of variables included."""
    dashboard = json.loads(DASHBOARD.read_text())
    found = [(panel["title"], target["expr"]) for panel in dashboard["panels"] for target in panel.get("targets", [])]
    assert len(found) > 50
    return found + [(one["name"], one["definition"]) for one in dashboard["templating"]["list"] if one["type"] == "query"]


def unknown(named, metrics):
    return {(name, metric) for name, expression in named for metric in METRIC.findall(expression) if metric not in metrics}


def test_every_metric_of_the_rules_exists(metrics):
    assert not unknown(expressions_of_rules().items(), metrics)


def test_every_metric_of_the_dashboard_exists(metrics):
    assert not unknown(expressions_of_dashboard(), metrics)


def test_a_metric_that_does_not_exist_is_found(metrics):
    assert unknown([("a", "rate(duramen_commands[5m]) > duramen_objects")], metrics) == {("a", "duramen_commands")}


def test_every_metric_is_documented(metrics):
    """Twenty were not, and two names in the documentation did not exist."""
    text = PACKAGING.parent.joinpath("docs/operations.md").read_text()
    documented = {name.removesuffix("_total") for name in METRIC.findall(text)}
    ends = re.compile(r"_(?:total|bucket|sum|count)$")
    existing = {ends.sub("", name) for name in metrics}
    assert not existing - documented
    table = re.findall(r"(?m)^\| ((?:`(?:duramen|process)_[a-z0-9_]+` ?)+)\|", text)
    named = {name for row in table for name in METRIC.findall(row)}
    assert len(named) > 100 and not named - existing


def alerts_of(pages, tmp_path):
    """The names of the alerts that fire after these pages, which are scraped one a minute."""
    names = {name for page in pages for name in page}
    series = [
        {"series": f'{name}{{job="duramen",instance="a"}}', "values": " ".join(page.get(name, "_") for page in pages)}
        for name in sorted(names)
    ]
    expected = {"expr": 'ALERTS{alertstate="firing"}', "eval_time": f"{len(pages) - 1}m", "exp_samples": []}
    test = {"name": "a server", "interval": "1m", "input_series": series, "promql_expr_test": [expected]}
    file = tmp_path / "server.test.yml"
    file.write_text(json.dumps({"rule_files": [str(RULES)], "evaluation_interval": "1m", "tests": [test]}))
    words = [provide.optional(provide.promtool), "test", "rules", file]
    ended = subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=harness.PATIENCE_S)
    text = ended.stdout.decode()
    assert (ended.returncode == 0) == ("got:" not in text), text
    return set(re.findall(r'alertname="(\w+)"', text.partition("got:")[2]))


@pytest.mark.parametrize("memory", ["64mb", "256mb"])
def test_the_alert_of_full_memory_fires_when_a_server_refuses(memory, tmp_path):
    """It was never true: the figure was another one than that by which writes are refused."""
    value = b"v" * 20_000
    with harness.Duramen(tmp_path, dir=tmp_path / "data", memory=memory, level="memory") as server:
        wire = server.connect()
        pages, number, refused = [samples(server.admin_port)[0]], 0, False
        while not refused:
            replies = wire.pipeline([("SET", f"key:{number + n}", value) for n in range(10)])
            number += 10
            refused = any(isinstance(reply, harness.ErrorReply) and str(reply).startswith("OOM") for reply in replies)
            used = float(samples(server.admin_port)[0]["duramen_utilization_ratio"])
            if not refused and used > 0.9 and len(pages) == 1:
                pages += [samples(server.admin_port)[0]] * 12
        assert len(pages) > 1, "it is refused at a fill of more than 0.9"
        assert "DuramenMemoryNearlyFull" in alerts_of(pages, tmp_path)
        assert "DuramenMemoryFull" not in alerts_of(pages, tmp_path)
        pages.append(samples(server.admin_port)[0])
        assert 0.97 < float(pages[-1]["duramen_utilization_ratio"]) < 1.05
        assert "DuramenMemoryFull" in alerts_of(pages, tmp_path)
        info = wire.call("INFO", "memory").decode()
        shown = float(re.search("duramen_utilization:(.*)", info)[1])
        assert abs(shown - float(pages[-1]["duramen_utilization_ratio"])) < 0.02
        assert server.log().count("writes are refused for lack of memory from now on") == 1
        harness.wait_until(lambda: "no write was refused for lack of memory" in server.log(), "the end of the refusals")


def test_the_alert_of_a_nearly_full_disk_fires_before_writes_are_refused(tmp_path):
    """It compared frames: writes were refused when a quarter of them was used."""
    value = b"v" * 20_000
    sizes = ("--disk-size", "256mb", "--wal-size", "64mb")
    with harness.Duramen(tmp_path, *sizes, dir=tmp_path / "data", memory="512mb", level="memory") as server:
        wire = server.connect()
        pages, number, refused, nearly = [samples(server.admin_port)[0]], 0, False, None
        while not refused:
            replies = wire.pipeline([("SET", f"key:{number + n}", value) for n in range(20)])
            number += 20
            refused = any(isinstance(reply, harness.ErrorReply) for reply in replies)
            page = samples(server.admin_port)[0]
            used, most = (float(page[f"duramen_{name}"]) for name in ("log_segments", "log_segments_max"))
            if not refused and nearly is None and used > 0.95 * most:
                nearly = page
        assert "MISCONF" in str([reply for reply in replies if isinstance(reply, harness.ErrorReply)]), replies
        assert nearly, "it is nearly full before it refuses"
        assert "DuramenDiskNearlyFull" not in alerts_of(pages * 18, tmp_path)
        assert "DuramenDiskNearlyFull" in alerts_of(pages + [nearly] * 17, tmp_path)


def test_a_cache_is_told_from_a_store(tmp_path):
    with harness.Duramen(tmp_path, memory="64mb", mode="cache") as server:
        assert float(samples(server.admin_port)[0]["duramen_evicts"]) == 1
        server.connect().call("CONFIG", "SET", "maxmemory-policy", "noeviction")
        assert float(samples(server.admin_port)[0]["duramen_evicts"]) == 0


def test_the_remedy_of_damaged_data_is_no_snapshot():
    """A snapshot reads the damaged frames, and ends with an error at the first one: it was the only
    remedy of the critical alert."""
    remedies = {name: text for name, text in descriptions_of_rules().items() if "Damage" in name}
    assert "DuramenDamageNotRepaired" in remedies and len(remedies) > 2
    assert not [name for name, text in remedies.items() if re.search("duramen snapshot|SAVE|take a", text)]
    lost = remedies["DuramenDamageNotRepaired"]
    assert "do not restart" in lost and "duramen scan" in lost and "restore" in lost


def test_promtool_accepts_the_rules():
    assert f"SUCCESS: {len(expressions_of_rules())} rules found" in promtool("check", "rules", RULES)


def test_the_alerts_fire_when_they_should():
    """Each alert has a test in which it fires; servers that are well, and a full cache, cause none."""
    fired = re.findall(r"labels: 'ALERTS\{alertname=\"(\w+)\"", TESTS.read_text())
    assert set(fired) == set(expressions_of_rules())
    assert "SUCCESS" in promtool("test", "rules", TESTS)


def test_an_alert_that_does_not_fire_is_noticed(tmp_path):
    (tmp_path / TESTS.name).write_text(TESTS.read_text())
    (tmp_path / RULES.name).write_text(RULES.read_text().replace("duramen_disk_ok == 0", "duramen_disk_ok == 2"))
    with pytest.raises(AssertionError, match="DuramenDiskFailed"):
        promtool("test", "rules", tmp_path / TESTS.name)


def test_promtool_accepts_the_dashboards_expressions(tmp_path):
    """As rules, with the variables that Grafana replaces."""
    rules = []
    for number, (_, expression) in enumerate(expressions_of_dashboard()):
        if not expression.startswith("label_values("):
            text = expression.replace("$__rate_interval", "5m")
            rules.append({"record": f"panel:{number}", "expr": re.sub(r"\$\w+", ".*", text)})
    file = tmp_path / "dashboard.yml"
    file.write_text(json.dumps({"groups": [{"name": "dashboard", "rules": rules}]}))
    assert f"{len(rules)} rules found" in promtool("check", "rules", file)


def test_the_panels_of_the_dashboard_do_not_overlap():
    taken = set()
    for panel in json.loads(DASHBOARD.read_text())["panels"]:
        place = panel["gridPos"]
        cells = {(x, y) for x in range(place["x"], place["x"] + place["w"]) for y in range(place["y"], place["y"] + place["h"])}
        assert not cells & taken, panel["title"]
        assert max(x for x, _ in cells) < 24, panel["title"]
        taken |= cells
