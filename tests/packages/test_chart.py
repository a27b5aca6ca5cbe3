"""The Helm chart is accepted by Helm and by the schemas of Kubernetes, and its settings and
arguments by the program."""

import importlib
import os
import pathlib
import re
import subprocess
import sys

import pytest

import harness
import pods
import provide
from installing import PACKAGING, run

pytestmark = pytest.mark.duramen

CHART = PACKAGING / "charts/duramen"
# The oldest version that the chart names, and a new one.
VERSIONS = ["1.25", "1.34"]

AUTH = {"auth": {"password": "open sesame", "token": "0123456789" * 4}}
CASES = {
    "cluster": AUTH,
    "single": {"auth": {"password": "open sesame"}, "cluster": {"enabled": False}},
    "several coordinators": {**AUTH, "coordinator": {"count": 3, "etcd": "http://etcd-0:2379,http://etcd-1:2379"}},
    "own secrets": {"auth": {"existingSecret": "mine"}, "storage": {"storageClassName": "fast", "size": "1Ti"}},
    "everything": {
        **AUTH,
        **{"tls": {"existingSecret": "tls", "port": 6390}, "acl": {"existingSecret": "acl"}, "cpu": {"limit": "4", "request": "2"}},
        **{"imagePullSecrets": [{"name": "registry"}], "nodeSelector": {"disk": "ssd"}, "tolerations": [{"operator": "Exists"}]},
        **{"metrics": {"annotations": True, "podMonitor": {"enabled": True}}, "config": "maxclients = 500\nthreads = 4\n"},
        **{"affinity": {"nodeAffinity": {}}, "extraEnv": [{"name": "DURAMEN_LOG_LEVEL", "value": "debug"}], "clusterDomain": "cluster.local"},
        **{"ipFamilies": ["IPv6", "IPv4"], "coordinator": {"extraEnv": [{"name": "A", "value": "b"}], "affinity": {"nodeAffinity": {}}}},
        **{"topologySpreadConstraints": [{"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "ScheduleAnyway"}]},
    },
    "TLS alone": {**AUTH, "tls": {"existingSecret": "tls", "only": True, "clientCertificates": "optional"}},
    "TLS for clients": {**AUTH, "tls": {"existingSecret": "tls", "cluster": False}, "ipFamilies": ["IPv6"]},
    "one with TLS": {
        **{"auth": {"password": "p"}, "cluster": {"enabled": False}, "metrics": {"podMonitor": {"enabled": True}}},
        "tls": {"existingSecret": "tls", "clientCertificates": "none", "ca": False},
    },
}
# Kinds that Kubernetes itself does not have.
OTHERS = {"PodMonitor"}


@pytest.fixture(autouse=True, scope="module")
def linters():
    """Helm and the others, as modules of this file: they are brought when the tests run."""
    folder = provide.optional(provide.linters)
    sys.path.extend(map(str, folder.glob("lib/python*/site-packages")))
    for name in ("helm_python", "kubernetes_validate", "yaml"):
        globals()[name] = importlib.import_module(name)


def render(values):
    """The objects of a release `shop`."""
    with helm_python.Chart.load(str(CHART)) as chart:
        chart.validate_schema(values)
        files = chart.render(values, name="shop", namespace="prod")
    texts = [text for name, text in files.items() if not name.endswith("NOTES.txt")]
    return [found for text in texts for found in yaml.safe_load_all(text) if found]


def find(objects, kind, name):
    (found,) = [one for one in objects if one["kind"] == kind and one["metadata"]["name"] == name]
    return found


def container(one):
    return one["spec"]["template"]["spec"]["containers"][0]


def test_helm_finds_no_mistake(capfd):
    found = helm_python.lint(str(CHART), values=AUTH)
    # An icon is not worth a file.
    assert [message["error"] for message in found["messages"]] == ["icon is recommended"], found


@pytest.mark.parametrize("case", CASES)
def test_kubernetes_accepts_the_objects(case):
    objects = render(CASES[case])
    for version in VERSIONS:
        for one in objects:
            if one["kind"] not in OTHERS:
                kubernetes_validate.validate(one, version, strict=True)
    kinds = {one["kind"] for one in objects}
    assert {"ConfigMap", "Service", "StatefulSet"} <= kinds
    assert ("PodDisruptionBudget" in kinds) == CASES[case].get("cluster", {}).get("enabled", True)
    assert ("PodMonitor" in kinds) == ("podMonitor" in CASES[case].get("metrics", {}))
    assert ("Secret" in kinds) == (case != "own secrets")


def test_a_wrong_object_is_found():
    one = find(render(AUTH), "StatefulSet", "shop-duramen")
    container(one)["livenessProbe"]["httpGet"]["prot"] = 1
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(one, VERSIONS[0], strict=True)


@pytest.mark.parametrize("case", CASES)
def test_the_program_accepts_the_settings(case, tmp_path):
    """Each name of a setting, in the file and in the environment."""
    objects = render(CASES[case])
    text = find(objects, "ConfigMap", "shop-duramen")["data"]["duramen.toml"]
    server = container(find(objects, "StatefulSet", "shop-duramen"))
    assert server["args"] == ["serve", "--config", "/config/duramen.toml"]
    variables = {one["name"]: one.get("value", "some-text") for one in server["env"] if one["name"] != "POD_NAME"}
    # The check reads these files.
    files = tmp_path / "tls"
    certificates(files)
    (tmp_path / "users.acl").write_text("")
    (tmp_path / "token").write_text("0123456789" * 4)
    local = lambda text: re.sub("/(?:acl|secrets)/", f"{tmp_path}/", text.replace("/tls/", f"{files}/"))  # noqa: E731
    file = tmp_path / "duramen.toml"
    file.write_text(local(text))
    variables = {name: local(value) for name, value in variables.items()}
    said = run(harness.BINARY, "config", "check", file, env=harness.environment(variables))
    # Those are for commands.
    settings = variables.keys() - {"DURAMEN_PASSWORD", "DURAMEN_HOST", "DURAMEN_TLS"}
    assert "did you mean" not in said and f"{len(settings)} by variables" in said, said


def test_affinity_and_variables_of_the_values_are_in_the_pods():
    """The schema takes any name, so a value that no template reads is refused by nobody."""
    rule = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": []}}}
    mine, its = [{"name": "A", "value": "b"}], [{"name": "C", "valueFrom": {"fieldRef": {"fieldPath": "status.hostIP"}}}]
    more = {"affinity": rule, "extraEnv": mine, "coordinator": {"affinity": {**rule, "podAffinity": {}}, "extraEnv": its}}
    for values, spreads in (({**AUTH, **more}, False), (AUTH, True)):
        objects = render(values)
        for name, given, variables in (
            ("shop-duramen", more["affinity"], mine),
            ("shop-duramen-coordinator", more["coordinator"]["affinity"], its),
        ):
            found = find(objects, "StatefulSet", name)["spec"]["template"]["spec"]
            if spreads:  # without values of its own a pod avoids nodes that have such a pod
                assert list(found["affinity"]) == ["podAntiAffinity"], name
            else:
                assert found["affinity"] == given, name
            own = found["containers"][0]["env"]
            assert [one in own for one in variables] == [not spreads], (name, own)
            names = [one["name"] for one in own]
            assert len(set(names)) == len(names), "a variable twice hides one of them"


def test_annotations_for_a_scrape_are_there_only_when_they_are_asked_for():
    """They carry no password: a scrape that follows them alone is answered with 401."""
    for values, wanted in ((AUTH, False), ({**AUTH, "metrics": {"annotations": True}}, True)):
        objects = render(values)
        for name, port in (("shop-duramen", "8379"), ("shop-duramen-coordinator", "8400")):
            metadata = find(objects, "StatefulSet", name)["spec"]["template"]["metadata"]
            found = {key: text for key, text in metadata.get("annotations", {}).items() if key.startswith("prometheus.io/")}
            expected = {"prometheus.io/scrape": "true", "prometheus.io/path": "/metrics", "prometheus.io/port": port}
            assert found == (expected if wanted else {}), (name, found)


def test_commands_in_a_pod_reach_its_server():
    """With IPv6 alone, the `duramen ping` of the notes went to 127.0.0.1."""
    hosts = {}
    for families in (["IPv4"], ["IPv6"], ["IPv6", "IPv4"]):
        server = container(find(render({**AUTH, "ipFamilies": families}), "StatefulSet", "shop-duramen"))
        hosts[" ".join(families)] = [one["value"] for one in server["env"] if one["name"] == "DURAMEN_HOST"]
    assert hosts == {"IPv4": [], "IPv6": ["::1"], "IPv6 IPv4": []}


@pytest.mark.parametrize("case", CASES)
def test_what_is_not_encrypted_is_said_only_where_it_is_so(case):
    objects = render(CASES[case])
    text = find(objects, "ConfigMap", "shop-duramen")["data"]["duramen.toml"]
    assert ("insecure-bind = true" in text) == (case != "TLS alone")
    encrypts = case in ("TLS alone", "everything")
    assert ("tls-cluster = true" in text) == encrypts
    for one in objects:
        if one["kind"] == "StatefulSet" and one["metadata"]["name"].endswith("coordinator"):
            assert ("--insecure-bind" in container(one)["args"]) != encrypts
            assert any(variable["name"] == "DURAMEN_TLS_CA_CERT_FILE" for variable in container(one)["env"]) == encrypts


def test_the_job_logs_in():
    """Over the volumes of a cluster with users the hook after an installation failed."""
    for case in ("cluster", "own secrets", "TLS alone"):
        objects = render(CASES[case])
        variables = [
            {variable["name"]: variable for variable in container(find(objects, kind, name))["env"]}
            for kind, name in (("Job", "shop-duramen-table"), ("StatefulSet", "shop-duramen"))
        ]
        job, server = (each["DURAMEN_PASSWORD"] for each in variables)
        assert job == server and job["valueFrom"]["secretKeyRef"]["key"] == "password"


def test_the_names_for_certificates_are_those_of_the_pods():
    """With `clusterDomain` the pods announced names that no certificate of the list had."""
    text = (CHART / "values.yaml").read_text()
    listed = re.search(r"#   (NAME\.NS\.svc.*)\n# With a clusterDomain .*: (NAME\.\S+),", text)
    names = [name.strip().replace("NAME", "shop-duramen").replace("NS", "prod") for name in listed[1].split(",")]
    assert listed[2] == "NAME.NS.svc.cluster.local"
    for domain, ending in (("", ""), ("cluster.local", ".cluster.local")):
        server = container(find(render({**AUTH, "clusterDomain": domain}), "StatefulSet", "shop-duramen"))
        (announced,) = [one["value"] for one in server["env"] if one["name"] == "DURAMEN_ANNOUNCE"]
        assert announced.replace("$(POD_NAME)", "*") in [name + ending for name in names]


@pytest.fixture
def place(tmp_path):
    """Starts the pods of values: they end with the test."""
    places = []

    def start(values, family="IPv4"):
        folder = tmp_path / "pods"
        folder.mkdir()
        try:
            made = pods.Place(folder, render(values), family, {"files": certificates(tmp_path / "authority")})
        except pods.Unable as reason:
            pytest.skip(str(reason))
        places.append(made)
        for name in ("shop-duramen-coordinator", "shop-duramen"):
            if any(one["kind"] == "StatefulSet" and one["metadata"]["name"] == name for one in made.objects):
                made.add(name)
        for pod in made.pods:
            pod.start()
        return made

    yield start
    for made in places:
        made.end()


def certificates(folder):
    """The content of a Secret, with the names that values.yaml asks for."""
    harness.cert("init", folder)
    names = ("shop-duramen.prod.svc", "*.shop-duramen-server.prod.svc", "*.shop-duramen-coordinator.prod.svc")
    harness.cert("issue", "tls", "--dir", folder, *(word for name in names for word in ("--san", name)))
    return {name: (folder / name).read_text() for name in ("tls.crt", "tls.key", "ca.crt")}


def share():
    """A share of this machine's memory that is enough for a server."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return f"{-(-(100 << 20) * 100 // total)}%"


SMALL = {**AUTH, "memory": {"share": share(), "limit": "1Gi"}, "cluster": {"servers": 3, "replicas": 1}}
MONITOR = {"metrics": {"podMonitor": {"enabled": True}}}
RUNNING = {
    "plain": {**SMALL, **MONITOR},
    "TLS alone": {**SMALL, **MONITOR, "tls": {"existingSecret": "files", "only": True}},
    "TLS beside plain": {**SMALL, **MONITOR, "tls": {"existingSecret": "files"}},
    "one server": {**SMALL, **MONITOR, "cluster": {"enabled": False}, "tls": {"existingSecret": "files", "only": True}},
    "IPv6": {**SMALL, **MONITOR, "tls": {"existingSecret": "files", "only": True}, "ipFamilies": ["IPv6", "IPv4"]},
}


@pytest.mark.parametrize(
    "case", ["plain", "TLS alone", "one server", harness.only_full("TLS beside plain"), harness.only_full("IPv6")]
)
def test_the_pods_of_the_chart_serve(case, place):
    """With `tls.existingSecret` no pod got ready: probes spoke HTTP to a port with TLS, which also
    asked for a certificate. A scrape had no password, and neither had NOTES' `duramen ping`.
    Members had names that no other namespace resolves."""
    if case == "IPv6" and not pathlib.Path("/proc/net/if_inet6").exists():
        pytest.skip("this machine has no IPv6")
    values = RUNNING[case]
    made = place(values, "IPv6" if case == "IPv6" else "IPv4")
    servers = [pod for pod in made.pods if "coordinator" not in pod.name]
    log = lambda: "".join(f"{pod.name}: {pod.log.read_text()[-2000:]}\n" for pod in made.pods)  # noqa: E731
    try:
        watched = list(made.pods)
        for pod in watched:
            harness.wait_until(lambda pod=pod: pod.probe("livenessProbe") == 200, f"{pod.name} lives")
        if values["cluster"].get("enabled", True):
            the_job_makes_the_table(made)
        for pod in watched:
            harness.wait_until(lambda pod=pod: pod.probe("readinessProbe") == 200, f"{pod.name} is ready")
            assert "startupProbe" not in pod.container or pod.probe("startupProbe") == 200
    except AssertionError as error:
        raise AssertionError(f"{error}\n{log()}") from error
    the_notes_are_true(values, servers[0])
    the_monitor_gets_figures(made)
    another_namespace_uses_it(made, values)


def the_job_makes_the_table(made):
    """Also a second time: the table may be there from an earlier installation."""
    job = made.object("Job", "shop-duramen-table")["spec"]["template"]["spec"]
    pod = made.pod("shop-duramen-table", job)
    words = [*job["containers"][0]["command"], *job["containers"][0]["args"]]
    harness.wait_until(lambda: pod.execute(*words)[0] == 0, "the job succeeds")
    assert "exists" in pod.execute(*words)[1]


def the_notes_are_true(values, first):
    """Each command that NOTES shows, but for the one with a name to be filled in."""
    with helm_python.Chart.load(str(CHART)) as chart:
        files = chart.render(values, name="shop", namespace="prod")
    (notes,) = [text for name, text in files.items() if name.endswith("NOTES.txt")]
    commands = re.findall(r"kubectl exec --namespace prod shop-duramen-0 -- (.*)", notes)
    commands = [command for command in commands if "SERVER" not in command]
    assert commands[0] == "duramen ping" and (len(commands) == 2) == (values["cluster"].get("enabled", True))
    for command in commands:
        code, said = first.execute(*command.split())
        assert code == 0, (command, said)


def the_monitor_gets_figures(made):
    """As Prometheus scrapes by the objects PodMonitor."""
    monitors = [one for one in made.objects if one["kind"] == "PodMonitor"]
    assert monitors
    files = made.folder / "scraper"
    files.mkdir()
    for name, text in made.secrets["files"].items():
        (files / name).write_text(text)
    for monitor in monitors:
        (end,) = monitor["spec"]["podMetricsEndpoints"]
        login = [made.secret(end["basicAuth"][part]["name"])[end["basicAuth"][part]["key"]] for part in ("username", "password")]
        more = {"scheme": end.get("scheme", "http").upper(), "login": ":".join(login)}
        if "tlsConfig" in end:
            tls = end["tlsConfig"]
            more |= {"name": tls["serverName"], "ca": str(files / tls["ca"]["secret"]["key"])}
            more |= {"cert": str(files / tls["cert"]["secret"]["key"]), "key": str(files / tls["keySecret"]["key"])}
        selected = monitor["spec"]["selector"]["matchLabels"]["app.kubernetes.io/component"]
        for pod in made.pods:
            if "table" in pod.name or ("coordinator" in pod.name) != (selected == "coordinator"):
                continue
            status, page = made.get(pod, end["port"], end["path"], **more)
            assert status == 200 and "\nduramen_" in page, (pod.name, status, page)
            if selected == "server":
                nobody = made.get(pod, end["port"], end["path"], **{**more, "login": ""})
                assert nobody[0] == 401, nobody


def another_namespace_uses_it(made, values):
    """A client that has the password, and the authority and a certificate, but no variables."""
    stranger = made.pods[-1]
    servers = [pod for pod in made.pods if pod.name.startswith("shop-duramen-") and pod.name[-1].isdigit() and "coord" not in pod.name]
    host = [f"{pod.name}.shop-duramen-server.prod.svc" for pod in servers]
    tls = values.get("tls", {})
    ways = [] if tls.get("only") else [("--port", "6379")]
    files = made.folder / "scraper"
    if tls:
        flags = ("--tls-ca-cert-file", files / "ca.crt", "--tls-cert-file", files / "tls.crt", "--tls-key-file", files / "tls.key")
        ways.append(("--port", "6380", *flags))
    for way in ways:
        for n in range(12):
            ask = lambda *words: subprocess.run(  # noqa: E731
                list(map(str, stranger.command(harness.BINARY, *words, "--host", host[n % len(host)], *way))),
                env=harness.environment({"DURAMEN_PASSWORD": AUTH["auth"]["password"]}), capture_output=True, text=True, timeout=100,
            )
            done = ask("set", f"key {n}", way[1])
            assert done.returncode == 0, (way, done)
            assert ask("get", f"key {n}").stdout == f"{way[1]}\n"


def test_nothing_runs_with_more_rights_than_it_needs():
    for case, values in CASES.items():
        for one in render(values):
            if "template" not in one.get("spec", {}):
                continue
            pod = one["spec"]["template"]["spec"]
            assert pod["securityContext"]["runAsNonRoot"] and not pod["automountServiceAccountToken"], case
            own = container(one)["securityContext"]
            assert own["readOnlyRootFilesystem"] and not own["allowPrivilegeEscalation"], case
            assert own["capabilities"] == {"drop": ["ALL"]}, case


def test_no_secret_is_outside_of_secrets():
    for one in render(AUTH):
        if one["kind"] != "Secret":
            text = yaml.safe_dump(one)
            assert AUTH["auth"]["password"] not in text and AUTH["auth"]["token"] not in text, one["metadata"]


def test_the_memory_of_a_server_is_one_number():
    objects = render({**AUTH, "memory": {"limit": "12Gi", "share": "60%"}})
    resources = container(find(objects, "StatefulSet", "shop-duramen"))["resources"]
    assert resources["requests"]["memory"] == resources["limits"]["memory"] == "12Gi"
    assert 'memory = "60%"' in find(objects, "ConfigMap", "shop-duramen")["data"]["duramen.toml"]


@pytest.mark.parametrize(
    "values, sentence",
    [
        ({}, "set auth.password"),
        ({"auth": {"password": "p", "token": "short"}}, "openssl rand"),
        ({**AUTH, "cluster": {"servers": 3, "replicas": 3}}, "at most 2"),
        ({**AUTH, "coordinator": {"count": 2}}, "share etcd"),
        ({**AUTH, "cluster": {"name": "n" * 65}}, "name"),
        ({**AUTH, "memory": {"limit": "2gb"}}, "pattern"),
        ({**AUTH, "tls": {"existingSecret": "t", "only": True, "cluster": False}}, "needs tls.cluster"),
        ({**AUTH, "tls": {"existingSecret": "t", "ca": False}}, "need the authority"),
        ({**AUTH, "tls": {"clientCertificates": "yes"}}, "clientCertificates"),
        ({**AUTH, "ipFamilies": ["IPv5"]}, "ipFamilies"),
    ],
)
def test_wrong_values_are_refused(values, sentence):
    with pytest.raises(helm_python.HelmError, match=sentence):
        render(values)


def test_selectors_find_their_pods():
    """A service whose selector has a typing mistake has no endpoints, and nothing reports it."""
    objects = render(AUTH)
    pods = [one["spec"]["template"]["metadata"]["labels"] for one in objects if one["kind"] in ("StatefulSet", "Job")]
    for one in objects:
        selector = one.get("spec", {}).get("selector")
        if selector:
            selector = selector.get("matchLabels", selector)
            assert len([labels for labels in pods if selector.items() <= labels.items()]) == 1, one["metadata"]["name"]
    for kind in ("Service",):
        for service in [one for one in objects if one["kind"] == kind]:
            selector = service["spec"]["selector"]
            ports = {
                port["name"]
                for one in objects
                if one["kind"] == "StatefulSet" and selector.items() <= one["spec"]["template"]["metadata"]["labels"].items()
                for port in container(one)["ports"]
            }
            assert {port["targetPort"] for port in service["spec"]["ports"]} <= ports
