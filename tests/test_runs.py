"""What runs of the tests rely on: things are brought once, tests of the full tier are left out of the
quick one, and nothing is left behind."""

import os
import pathlib
import socket
import subprocess
import sys
import time

import pytest

import harness
import provide

TESTS = pathlib.Path(__file__).parent


def test_a_thing_is_brought_once_for_its_sources(tmp_path):
    source, folder = tmp_path / "source", tmp_path / "made"
    source.write_text("first")
    made = []

    def work():
        assert list(folder.iterdir()) == [], "an earlier try left something"
        (folder / "thing").write_text(source.read_text())
        time.sleep(0.2)
        made.append(source.read_text())

    def bring():
        provide.once(folder, [source], work)
        assert (folder / "thing").read_text() == source.read_text()

    harness.in_threads(3, lambda _: bring())
    assert made == ["first"]
    source.write_text("second")
    bring()
    assert made == ["first", "second"]


def test_what_failed_is_brought_again(tmp_path):
    def fail():
        (tmp_path / "made/half").write_text("")
        raise provide.Missing("no network")

    with pytest.raises(provide.Missing):
        provide.once(tmp_path / "made", [], fail)
    provide.once(tmp_path / "made", [], lambda: (tmp_path / "made/whole").write_text(""))
    assert sorted(path.name for path in (tmp_path / "made").iterdir()) == ["built-from", "whole"]


def test_a_missing_thing_is_asked_for_once_and_says_why():
    asked = []

    @provide.remembered
    def thing():
        asked.append(1)
        provide.call("sh", "-c", "echo there is no registry >&2; exit 1")

    for _ in range(2):
        with pytest.raises(provide.Missing, match="there is no registry"):
            thing()
    with pytest.raises(pytest.skip.Exception, match="cannot be had: .*there is no registry"):
        provide.optional(thing)
    assert asked == [1]


def test_other_processes_wait_for_a_lock(tmp_path):
    code = f"import provide; from pathlib import Path\nwith provide.lock(Path({str(tmp_path / 'lock')!r})): print('got it', flush=True)"
    with provide.lock(tmp_path / "lock"), provide.lock(tmp_path / "lock"):
        other = subprocess.Popen([sys.executable, "-c", code], cwd=TESTS, stdout=subprocess.PIPE)
        with pytest.raises(subprocess.TimeoutExpired):
            other.wait(1)
    assert other.communicate(timeout=harness.PATIENCE_S)[0] == b"got it\n" and other.returncode == 0


def test_tests_in_other_languages_get_programs_too():
    done = subprocess.run([sys.executable, "provide.py", "redis-server", "openssl"], cwd=TESTS, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    server, openssl = done.stdout.split()
    version = subprocess.run([server, "--version"], capture_output=True, text=True, check=True).stdout
    assert version.startswith("Redis server v=") and pathlib.Path(openssl).is_file()


TIERS = """
import pytest
import harness

@pytest.mark.full
def test_slow(): pass

@pytest.mark.parametrize("n", [1, harness.only_full(2)])
def test_some(n): assert harness.of_tier(10, 20) in (10, 20)
"""


def collected(folder, tier):
    (folder / "test_tiers.py").write_text(TIERS)
    environment = {name: value for name, value in os.environ.items() if name != "DURAMEN_TEST_TIER"}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "conftest", "--rootdir", folder, "-c", TESTS / "pytest.ini", folder],
        cwd=TESTS,
        env={**environment, "PYTHONPATH": str(TESTS), **({"DURAMEN_TEST_TIER": tier} if tier else {})},
        capture_output=True,
        text=True,
    )
    return [line.split("::")[1] for line in done.stdout.splitlines() if "::" in line], done


def test_the_quick_tier_leaves_out_what_is_marked(tmp_path):
    everything = ["test_slow", "test_some[1]", "test_some[2]"]
    assert collected(tmp_path, "full")[0] == everything
    for tier in ("quick", None):
        found, done = collected(tmp_path, tier)
        assert found == ["test_some[1]"] and "2 deselected" in done.stdout, done
    found, done = collected(tmp_path, "quik")
    assert found == [] and done.returncode not in (0, 5) and "quick or full" in done.stdout + done.stderr, done


KILLED = """
import os, subprocess, sys
import reaper
reaper.start()
reaper.at_the_end("sh", "-c", 'echo one >> "$0"', sys.argv[1])
reaper.at_the_end("sh", "-c", 'echo two >> "$0"', sys.argv[1])
servers = [subprocess.Popen(["sleep", "600"], start_new_session=True) for _ in range(2)]
print(*(server.pid for server in servers), reaper.reaper.pid, flush=True)
os.kill(os.getpid(), 9)
"""


def test_killed_tests_leave_nothing(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", KILLED, tmp_path / "said"], cwd=TESTS, capture_output=True, text=True, timeout=harness.PATIENCE_S
    )
    # Its output has ended: so has the reaper.
    assert done.returncode == -9, done
    assert (tmp_path / "said").read_text() == "two\none\n"
    *servers, _ = map(int, done.stdout.split())
    for server in servers:
        assert f"left behind by the tests: {server} sleep 600" in done.stderr
        harness.wait_until(lambda: has_ended(server), "the server has ended", 10)


def has_ended(pid):
    status = pathlib.Path(f"/proc/{pid}/stat")
    return not status.exists() or status.read_text().rsplit(")", 1)[1].split()[0] == "Z"


@pytest.mark.skipif(not provide.OUTSIDE, reason="this process is in the network of the machine")
def test_an_address_that_nobody_has_is_silent():
    """In a network without a way out the kernel reports an error at once, and tests of unreachable
    members test less."""
    with pytest.raises(TimeoutError):
        socket.create_connection(("192.0.2.1", 80), 1)
    registry = provide.call(sys.executable, "-c", "import os; print(os.stat('/proc/self/ns/net').st_ino)")
    assert int(registry) == os.stat(provide.OUTSIDE).st_ino != os.stat("/proc/self/ns/net").st_ino


def test_a_test_that_is_stuck_ends(tmp_path):
    """By an error, after which the fixtures end its servers."""
    (tmp_path / "test_stuck.py").write_text(
        """
import threading, pytest

@pytest.fixture
def server():
    yield
    print("the server ends")

@pytest.mark.timeout(1)
def test_stuck(server): threading.Event().wait(60)

def test_next(): pass
"""
    )
    began = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-v", "-s", "-c", TESTS / "pytest.ini", "--rootdir", tmp_path, tmp_path], capture_output=True, text=True
    )
    assert time.monotonic() - began < 30
    assert "Timeout" in done.stdout and "the server ends" in done.stdout and "1 failed, 1 passed" in done.stdout, done


def test_an_installation_does_not_count_as_time_of_a_test(tmp_path):
    (tmp_path / "test_brought.py").write_text(
        """
import pytest, provide

@pytest.mark.timeout(0.5)
def test_brought(): provide.call("sleep", "1")

@pytest.mark.timeout(0.5)
def test_slow():
    provide.call("true")
    import time
    time.sleep(10)
"""
    )
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-v", "-c", TESTS / "pytest.ini", "--rootdir", tmp_path, tmp_path],
        env={**os.environ, "PYTHONPATH": str(TESTS)},
        capture_output=True,
        text=True,
    )
    assert "1 failed, 1 passed" in done.stdout and "test_slow" in done.stdout.split("FAILURES")[1], done
