"""Redis's own test suite, of Debian's source package, against Duramen.

`redis_suite.txt` lists each test that does not pass, with the reason: any other test must pass, and
a listed one that passes has to be taken off the list. DURAMEN_TEST_REDIS_SUITE=FILE appends the
results to a file, for the numbers of docs/compatibility.md. `redis_suite/suite.sed` has the lines
of the suite that are changed.
"""

import collections
import contextlib
import os
import pathlib
import re
import signal
import subprocess

import pytest

import harness
import provide

LIST = pathlib.Path(__file__).with_name("redis_suite.txt")

# Longest duration of one unit, in seconds.
UNIT_S = 240

# Units whose tests start servers of their own, with their own settings: Redis marks them
# `external:skip`, so that none of them would run by host and port.
WITH_OWN_SERVERS = ["unit/acl", "unit/acl-v2", "unit/auth", "unit/pubsubshard"]

# Units that run by host and port, without the tests that Redis excludes there.
BY_HOST_AND_PORT = [
    "unit/type/string",
    "unit/type/incr",
    "unit/type/hash",
    "unit/type/list",
    "unit/type/list-3",
    "unit/type/set",
    "unit/type/zset",
    "unit/type/stream",
    "unit/type/stream-cgroups",
    "unit/bitops",
    "unit/bitfield",
    "unit/dump",
    "unit/expire",
    "unit/geo",
    "unit/hyperloglog",
    "unit/info-command",
    "unit/introspection",
    "unit/introspection-2",
    "unit/keyspace",
    "unit/latency-monitor",
    "unit/multi",
    "unit/other",
    "unit/pause",
    "unit/protocol",
    "unit/pubsub",
    "unit/quit",
    "unit/scan",
    "unit/slowlog",
    "unit/sort",
    "unit/scripting",
    "unit/functions",
    "unit/tracking",
]

# Units of the quick tier: each of them takes about a second.
QUICK = [
    *("unit/acl-v2", "unit/auth", "unit/pubsubshard", "unit/type/incr", "unit/bitfield", "unit/info-command", "unit/keyspace"),
    *("unit/introspection", "unit/latency-monitor", "unit/protocol", "unit/quit", "unit/slowlog", "unit/functions", "unit/tracking"),
]

# Tests that use DEBUG or replication, that change maxmemory, and slow ones.
NOT_TAGGED = "-needs:debug -needs:repl -needs:pfdebug -needs:config-maxmemory -slow"

# Name of a failure outside of any test.
OUTSIDE = "(outside of a test)"

pytestmark = pytest.mark.duramen


class Listed:
    """The list: reasons by unit and test."""

    def __init__(self, text):
        self.units = collections.defaultdict(dict)
        for line in text.splitlines():
            if line and not line.startswith("#"):
                unit, rest = line.split(" | ", 1)
                name, reason = rest.rsplit(" | ", 1)
                assert name not in self.units[unit], f"twice in the list: {line}"
                self.units[unit][name] = reason

    def of(self, unit):
        return self.units.get(unit, {})

    def not_run(self, unit):
        return [name for name, reason in self.of(unit).items() if reason.startswith("not run: ")]


LISTED = Listed(LIST.read_text())


class Results:
    """Tests of a unit by outcome, read from the suite's output."""

    def __init__(self, output):
        self.failed = {}
        self.passed = set()
        self.done = False
        for block in re.split(r"^(?=\[)", re.sub(r"\x1b\[[0-9;]*m", "", output), flags=re.MULTILINE):
            kind, _, text = block.partition("]: ")
            if kind == "[ok":
                self.passed.add(re.sub(r" \(\d+ ms\)$", "", text.splitlines()[0]))
            elif kind in ("[err", "[exception"):
                first, _, _ = text.partition("\n")
                name, is_test, _ = first.partition(" in tests/")
                self.failed[name if is_test else OUTSIDE] = text[:2000]
            elif kind.startswith("[1/1 done"):
                self.done = True
        # A name may stand for several tests.
        self.passed -= self.failed.keys()


def run(unit, arguments, log):
    """Runs a unit of the suite; its output also goes to the file `log`."""
    folder = provide.optional(provide.redis_suite)
    command = ["./runtest", "--durable", "--no-latency", "--clients", "1", "--single", unit]
    for name in LISTED.not_run(unit):
        command += ["--skiptest", name]
    environment = {**os.environ, "DURAMEN_TEST_BINARY": harness.BINARY}
    with open(log, "wb") as output:
        suite = subprocess.Popen(
            [*command, "--tags", NOT_TAGGED, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            cwd=folder,
            env=environment,
            start_new_session=True,
        )
        with contextlib.suppress(subprocess.TimeoutExpired):
            suite.wait(UNIT_S)
        # Its clients and servers too. `judge` sees whether the unit came to its end.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(suite.pid, signal.SIGKILL)
        suite.wait()
    return log.read_text(errors="replace")


def judge(unit, output):
    """Compares the results with the list."""
    results = Results(output)
    listed = LISTED.of(unit)
    expected = listed.keys() - set(LISTED.not_run(unit))
    if record := os.environ.get("DURAMEN_TEST_REDIS_SUITE"):
        with open(record, "a") as file:
            file.write(f"{unit}: {len(results.passed)} pass, {len(listed)} are listed\n")
            for name, text in results.failed.items():
                file.write(f"  {'listed' if name in listed else 'FAILED'}: {name}\n")
                if name not in listed:
                    file.write("".join(f"    {line}\n" for line in text.splitlines()[:6]))
    new = {name: text for name, text in results.failed.items() if name not in listed}
    assert not new, "\n\n".join(new.values())
    assert results.done, f"the unit did not end\n{output[-4000:]}"
    assert results.passed, "no test ran"
    better = expected & results.passed
    assert not better, f"passed, take it off the list: {sorted(better)}"
    gone = expected - results.failed.keys()
    assert not gone, f"there is no such test, take it off the list: {sorted(gone)}"


def skip_if_listed(unit):
    if reason := LISTED.of(unit).get("*"):
        pytest.skip(reason)


def parameters(units):
    return [unit if unit in QUICK else harness.only_full(unit) for unit in units]


@pytest.mark.parametrize("unit", parameters(WITH_OWN_SERVERS))
def test_unit_with_own_servers(unit, tmp_path):
    skip_if_listed(unit)
    judge(unit, run(unit, [], tmp_path / "output"))


@pytest.mark.parametrize("unit", parameters(BY_HOST_AND_PORT))
def test_unit_by_host_and_port(unit, start, tmp_path):
    skip_if_listed(unit)
    server = start(dir=tmp_path / "data", threads=1)
    arguments = ["--host", "127.0.0.1", "--port", str(server.port), "--ignore-digest"]
    judge(unit, run(unit, arguments, tmp_path / "output"))
