"""Pods of a rendered chart as processes: each has a network of its own with an address, so ports
and addresses to listen at are those of the chart, and its own names of hosts."""

import json
import pathlib
import re
import subprocess
import sys

import harness

sys.path.append(str(pathlib.Path(__file__).parent.parent / "cluster"))

from network import Network, Unable, run  # noqa: E402, F401

# Folders of a container.
FOLDERS = ("/data", "/config", "/secrets", "/tls", "/acl")

# One request of HTTP, from the network of a host: its status and its page. No certificate of the
# server is checked without an authority, as by the kubelet.
REQUEST = """
import base64, http.client, json, socket, ssl, sys
ask = json.loads(sys.argv[1])
stream = socket.create_connection((ask["address"], ask["port"]), timeout=20)
if ask["scheme"] == "HTTPS":
    context = ssl._create_unverified_context()
    if "ca" in ask:
        context = ssl.create_default_context(cafile=ask["ca"])
        context.load_cert_chain(ask["cert"], ask["key"])
    stream = context.wrap_socket(stream, server_hostname=ask.get("name"))
login = base64.b64encode(ask.get("login", "").encode()).decode()
head = {"Authorization": f"Basic {login}"} if login else {}
lines = [f"GET {ask['path']} HTTP/1.0", *(f"{name}: {value}" for name, value in head.items()), "", ""]
stream.sendall("\\r\\n".join(lines).encode())
answer = http.client.HTTPResponse(stream)
answer.begin()
print(answer.status)
print(answer.read().decode())
"""


class Pod:
    """The one container of a pod."""

    def __init__(self, place, name, number, template, node="node"):
        self.place, self.name, self.template = place, name, template
        self.host = place.network.host(f"pod{number}", number)
        self.folder = place.folder / name
        self.node = node
        for folder in FOLDERS:
            (self.folder / folder[1:]).mkdir(parents=True)
        for volume in template.get("volumes", []):
            self.mount(volume)
        self.container = template["containers"][0]
        self.process = None

    def mount(self, volume):
        """Puts the files of a volume where the container has them."""
        found = self.place.files(volume)
        mounts = self.template["containers"][0]["volumeMounts"]
        (path,) = [mount["mountPath"] for mount in mounts if mount["name"] == volume["name"]]
        for name, content in found.items():
            (self.folder / path[1:] / name).write_bytes(content)

    def local(self, text):
        """A text with the folders of the container in the test's folder."""
        for folder in FOLDERS:
            text = re.sub(rf"(?<![\w.]){folder}(?=/)", str(self.folder / folder[1:]), text)
        return text

    def value(self, variable):
        if "value" in variable:
            return self.local(variable["value"].replace("$(POD_NAME)", self.name))
        source = variable["valueFrom"]
        if "secretKeyRef" in source:
            return self.place.secret(source["secretKeyRef"]["name"])[source["secretKeyRef"]["key"]]
        return {"metadata.name": self.name, "spec.nodeName": self.node}[source["fieldRef"]["fieldPath"]]

    def environment(self):
        variables = {variable["name"]: self.value(variable) for variable in self.container.get("env", [])}
        path = f"{pathlib.Path(harness.BINARY).parent}:/usr/sbin:/usr/bin:/sbin:/bin"
        return {"PATH": path, **variables}

    def command(self, *words):
        """A command in the container."""
        script = 'mount --bind "$0" /etc/hosts && exec "$@"'
        return [*self.host.prefix, "unshare", "--mount", "sh", "-c", script, self.place.hosts, *words]

    def execute(self, *words):
        done = subprocess.run(list(map(str, self.command(*words))), env=self.environment(), capture_output=True, text=True, timeout=200, cwd=self.folder)
        return done.returncode, done.stdout + done.stderr

    def start(self):
        for file in (self.folder / "config").iterdir():
            file.write_text(self.local(file.read_text()))
        words = [self.local(word.replace("$(POD_NAME)", self.name)) for word in self.container["args"]]
        self.log = self.folder / "log"
        with open(self.log, "wb") as log:
            command = list(map(str, self.command(harness.BINARY, *words)))
            self.process = subprocess.Popen(command, env=self.environment(), stdout=log, stderr=log, cwd=self.folder)

    def end(self):
        if self.process:
            self.process.kill()
            self.process.wait()

    def port(self, name):
        (port,) = [port["containerPort"] for port in self.container["ports"] if port["name"] == name]
        return port

    def probe(self, name):
        """The status that the kubelet gets."""
        asked = self.container[name]["httpGet"]
        return self.place.get(self, scheme=asked.get("scheme", "HTTP"), port=asked["port"], path=asked["path"])[0]


class Place:
    """All pods of a release, and what they share."""

    def __init__(self, folder, objects, family="IPv4", secrets=()):
        self.folder, self.objects = folder, objects
        self.secrets = dict(secrets)
        self.network = Network()
        self.family = family
        self.hosts = folder / "hosts"
        self.hosts.write_text("127.0.0.1 localhost\n::1 localhost\n")
        self.pods = []

    def object(self, kind, name):
        (found,) = [one for one in self.objects if one["kind"] == kind and one["metadata"]["name"] == name]
        return found

    def secret(self, name):
        return self.secrets.get(name) or self.object("Secret", name)["stringData"]

    def files(self, volume):
        """{name: bytes} of a volume of a Secret or a ConfigMap."""
        if "configMap" in volume:
            found = self.object("ConfigMap", volume["configMap"]["name"])["data"]
        else:
            found = self.secret(volume["secret"]["secretName"])
            items = volume["secret"].get("items")
            found = {item["path"]: found[item["key"]] for item in items} if items else found
        return {name: text.encode() for name, text in found.items()}

    def add(self, name):
        """The pods of a StatefulSet, by the names that all namespaces see."""
        found = self.object("StatefulSet", name)
        for number in range(found["spec"]["replicas"]):
            self.pod(f"{name}-{number}", found["spec"]["template"]["spec"], found["spec"]["serviceName"])

    def pod(self, name, template, service=None):
        number = len(self.pods) + 20
        pod = Pod(self, name, number, template, node=f"node-{number}")
        pod.address = pod.host.address
        if self.family == "IPv6":
            pod.address = f"fd00:177::{number}"
            run(self.network.ip, "-n", pod.host.namespace, "addr", "add", f"{pod.address}/64", "dev", "wire", "nodad")
        if service:
            with self.hosts.open("a") as hosts:
                hosts.write(f"{pod.address} {name}.{service}.prod.svc\n")
        self.pods.append(pod)
        return pod

    def get(self, pod, port, path, **more):
        """The status of a page, and its text."""
        ask = json.dumps({"address": pod.address, "port": pod.port(port), "path": path, **more})
        done = subprocess.run([*self.pods[-1].host.prefix, sys.executable, "-c", REQUEST, ask], capture_output=True, text=True, timeout=60)
        if done.returncode != 0:
            return 0, done.stderr
        status, page = done.stdout.split("\n", 1)
        return int(status), page

    def end(self):
        for pod in self.pods:
            pod.end()
        self.network.end()
