"""Alert rules and the dashboard name metrics that servers and coordinators have, and do what they
say."""

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


def page(port):
    """{name of a sample} of a page of metrics."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=harness.PATIENCE_S) as answer:
        lines = answer.read().decode().splitlines()
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


def test_promtool_accepts_the_rules():
    assert "SUCCESS: 30 rules found" in promtool("check", "rules", RULES)


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
