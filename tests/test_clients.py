"""Popular client libraries, with all the scenarios of clients/README.md."""

import functools
import os
import subprocess
import sys
import threading

import pytest

import harness
import provide

HERE = os.path.dirname(os.path.abspath(__file__))
SCENARIOS = [
    *("connect", "strings", "pipeline", "transaction", "watch", "big"),
    *("binary", "expiry", "scan", "errors", "concurrent", "reconnect"),
]
JAVA = ("java", "-XX:TieredStopAtLevel=1", "-cp")
# The command of each client; it brings the client.
PROGRAMS = {
    "redis-py": lambda: [sys.executable, f"{HERE}/clients/python/main.py"],
    "go-redis": lambda: [provide.go_client()],
    "node-redis": lambda: ["node", provide.node()],
    "ioredis": lambda: ["node", provide.node()],
    "jedis": lambda: [*JAVA, provide.java(), "Main"],
    "lettuce": lambda: [*JAVA, provide.java(), "Lettuce"],
}
CASES = [
    *(("redis-py", 2), ("redis-py", 3), ("go-redis", 2), ("go-redis", 3), ("node-redis", 2)),
    *(("node-redis", 3), ("ioredis", 2), ("jedis", 2), ("jedis", 3), ("lettuce", 2), ("lettuce", 3)),
]
# One of each library that is installed within seconds.
QUICK = [("redis-py", 3), ("go-redis", 3), ("node-redis", 3), ("ioredis", 2)]


def parameters(cases, quick):
    """Parameters of a test; the quick tier has those of `quick` alone."""
    return [pytest.param(*case, marks=() if case in quick else pytest.mark.full) for case in cases]



@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """Runs each program once and keeps its results of each scenario."""

    @functools.cache
    def run(client, resp):
        with harness.Server(tmp_path_factory.mktemp(client), threads=2) as server:
            return run_program(client, resp, server)

    return run


def run_program(client, resp, server, port=None, environment=None):
    """`port`: the one with TLS, otherwise the plain one. `environment`: certificates and user."""
    command = [*PROGRAMS[client](), "127.0.0.1", str(port or server.port), str(resp)]
    if client == "ioredis":
        command.append("ioredis")
    said = {}
    process = subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **(environment or {})},
    )
    watchdog = threading.Timer(3 * harness.PATIENCE_S, process.kill)
    watchdog.start()
    try:
        for line in process.stdout:
            verdict, name, *reason = line.strip().split(" ", 2)
            if verdict == "kill":
                server.kill()
                server.start()
                process.stdin.write("back\n")
                process.stdin.flush()
            else:
                said[name] = "" if verdict == "pass" else " ".join(reason) or "failed without a reason"
    finally:
        watchdog.cancel()
        process.kill()
        _, errors = process.communicate()
    assert set(said) <= {*SCENARIOS, "denied"}, f"unknown scenarios: {set(said) - {*SCENARIOS, 'denied'}}"
    return said, errors


@pytest.mark.parametrize("scenario", SCENARIOS)
@pytest.mark.parametrize("client, resp", parameters(CASES, QUICK), ids=[f"{client}-resp{resp}" for client, resp in CASES])
def test_client(results, client, resp, scenario):
    said, errors = results(client, resp)
    assert scenario in said, f"{client} never came to `{scenario}`; it got through {list(said)} and wrote:\n{errors}"
    assert said[scenario] == ""
