"""Plain clients: the results of test_clients.py, which is not about servers elsewhere."""

import os
import re
import sys
import tempfile
import xml.etree.ElementTree as xml

import places
import programs

# Its name in test_clients.py, and where its version is.
CLIENTS = {
    "redis-py": ("requirements.txt", r"^redis==(\S+)"),
    "go-redis": ("clients/go/go.mod", r"go-redis/v9 v(\S+)"),
    "node-redis": ("clients/node/package.json", r'"redis": "(\S+)"'),
    "ioredis": ("clients/node/package.json", r'"ioredis": "(\S+)"'),
    "jedis": ("clients/java/pom.xml", r"<artifactId>jedis</artifactId>\s*<version>(\S+)</version>"),
    "lettuce": ("clients/java/pom.xml", r"<artifactId>lettuce-core</artifactId>\s*<version>(\S+)</version>"),
}
NAMES = list(CLIENTS)

# Longest time of all of them.
LIMIT_S = 600


def run():
    """Results by client."""
    with tempfile.TemporaryDirectory() as folder:
        report = os.path.join(folder, "report.xml")
        command = [sys.executable, "-m", "pytest", "-q", f"--junitxml={report}", "test_clients.py"]
        given = {name: value for name, value in os.environ.items() if name.startswith("DURAMEN_")}
        _, output, _ = programs.in_group(command, LIMIT_S, cwd=places.HERE.parent, **given)
        if not os.path.exists(report):
            return {name: programs.Result("fail", text=output) for name in NAMES}
        cases = list(xml.parse(report).iter("testcase"))
    return {name: result for name in NAMES if (result := of_client(name, cases))}


def of_client(name, cases):
    """The result of one client; none if it has no tests."""
    own = [case for case in cases if re.search(rf"\b{name}-resp", case.get("name"))]
    if not own:
        return None
    file, pattern = CLIENTS[name]
    text = (places.HERE.parent / file).read_text()
    version = re.search(pattern, text, re.MULTILINE)[1]
    problems = [(case.get("name"), problem) for case in own for problem in case]
    failed = [f"{test}: {problem.get('message')}" for test, problem in problems if problem.tag in ("failure", "error")]
    kinds = sorted({kind for case in own for kind in re.findall(r"resp\d", case.get("name"))})
    done = (f"{len(own)} tests of `tests/test_clients.py`, " + ", ".join(kind.upper() for kind in kinds),)
    seconds = sum(float(case.get("time")) for case in own)
    return programs.Result("fail" if failed else "pass", version, done, "\n".join(failed), seconds)
