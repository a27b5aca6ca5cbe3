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
        **{"metrics": {"annotations": False}, "config": "maxclients = 500\nthreads = 4\n"},
    },
}
# Settings that this version of the program does not have yet.
LATER = re.compile(r"(?m)^(tls-[a-z-]+|aclfile) = .*\n")


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
            kubernetes_validate.validate(one, version, strict=True)
    kinds = {one["kind"] for one in objects}
    assert {"ConfigMap", "Service", "StatefulSet"} <= kinds
    assert ("PodDisruptionBudget" in kinds) == (case != "single")
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
    assert bool(LATER.search(text)) == (case == "everything")
    file = tmp_path / "duramen.toml"
    file.write_text(LATER.sub("", text))
    server = container(find(objects, "StatefulSet", "shop-duramen"))
    assert server["args"] == ["serve", "--config", "/config/duramen.toml"]
    variables = {one["name"]: one.get("value", "some-text") for one in server["env"] if one["name"] != "POD_NAME"}
    said = run(harness.BINARY, "config", "check", file, env=harness.environment(variables))
    assert "did you mean" not in said and f"{len(variables)} by variables" in said, said


def test_a_cluster_starts_as_the_chart_says(start, tmp_path):
    """The coordinator's real arguments, with other addresses; and the job creates the table of
    database 0. If the table is there, from an earlier installation, the job succeeds too."""
    objects = render({**AUTH, "cluster": {"servers": 2, "replicas": 1}})
    listen, admin = harness.free_port(), harness.free_port()
    (tmp_path / "token").write_text(AUTH["auth"]["token"])
    replaced = {
        **{"0.0.0.0:7400": f"127.0.0.1:{listen}", "0.0.0.0:8400": f"127.0.0.1:{admin}", "/data": str(tmp_path)},
        **{"/secrets": str(tmp_path), "$(POD_NAME).shop-duramen-coordinator:7400": f"127.0.0.1:{listen}"},
    }
    words = container(find(objects, "StatefulSet", "shop-duramen-coordinator"))["args"]
    for old, new in replaced.items():
        words = [word.replace(old, new) for word in words]
    process = subprocess.Popen([harness.BINARY, *words], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    try:
        assert process.stdout.readline().startswith(f"ready coordinator=127.0.0.1:{listen}".encode())
        token = ("--cluster-token-file", tmp_path / "token")
        for n in range(2):
            member = ("--coordinator", f"127.0.0.1:{listen}", "--native-port", "0", *token)
            start(*member, dir=tmp_path / f"member-{n}", memory="64mb", level=None)
        job = container(find(objects, "Job", "shop-duramen-table"))
        names = [variable["name"] for variable in job["env"]]
        environment = {**os.environ, "PATH": f"{pathlib.Path(harness.BINARY).parent}:{os.environ['PATH']}"}
        environment |= dict(zip(names, [f"127.0.0.1:{listen}", str(tmp_path / "token")], strict=True))
        first, again = (run(*job["command"], *job["args"], env=environment) for _ in range(2))
        assert "2 tablets on 2 servers" in first and "exists" in again, (first, again)
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


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
        ({**AUTH, "memory": {"limit": "2gb"}}, "pattern"),
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
