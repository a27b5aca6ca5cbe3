"""A supervisor (systemd, `Type=notify`) learns when a server loads, serves, reads its settings again
and stops."""

import contextlib
import os
import signal
import socket
import subprocess
import threading
import time

import pytest

import harness

pytestmark = pytest.mark.duramen


class Supervisor:
    """The socket of NOTIFY_SOCKET, and the reports that come there."""

    def __init__(self, name):
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
        self.socket.settimeout(harness.PATIENCE_S)
        self.socket.bind("\0" + name[1:] if name.startswith("@") else name)
        self.environment = {"NOTIFY_SOCKET": name}

    def report(self):
        """The next one, as a dictionary."""
        return dict(line.split("=", 1) for line in self.socket.recv(4096).decode().splitlines())

    def reports_until(self, name):
        found = [self.report()]
        while name not in found[-1]:
            found.append(self.report())
        return found

    def is_silent(self):
        self.socket.settimeout(0.3)
        with contextlib.suppress(TimeoutError):
            return self.report() is None
        return True


@pytest.fixture(params=["path", "abstract"])
def supervisor(request, tmp_path):
    name = str(tmp_path / "notify") if request.param == "path" else f"@duramen-test-{os.getpid()}-{time.monotonic_ns()}"
    made = Supervisor(name)
    yield made
    made.socket.close()


def test_a_server_reports_its_states(start, supervisor, tmp_path):
    config = tmp_path / "duramen.toml"
    config.write_text("maxclients = 100\n")
    server = start("--config", config, dir=tmp_path / "data", environment=supervisor.environment)
    ready = supervisor.reports_until("READY")[-1]
    assert ready["READY"] == "1" and f"resp=127.0.0.1:{server.port}" in ready["STATUS"]

    config.write_text("maxclients = 200\n")
    before_us = time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000
    server.process.send_signal(signal.SIGHUP)
    reloading = supervisor.report()
    assert reloading["RELOADING"] == "1"
    assert before_us <= int(reloading["MONOTONIC_USEC"]) <= time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000
    assert supervisor.report() == {"READY": "1"}
    with server.connect() as wire:
        assert wire.call("CONFIG", "GET", "maxclients")[1] == b"200", "READY comes after the change"

    assert server.stop() == 0
    assert supervisor.report()["STOPPING"] == "1"
    assert supervisor.is_silent()


@pytest.mark.full
def test_loading_takes_as_long_as_it_takes(tmp_path):
    """Without more time, systemd would end a server that loads much data."""
    supervisor = Supervisor(str(tmp_path / "notify"))
    with harness.Duramen(tmp_path, level="buffered", dir=tmp_path / "data", memory="512mb") as server:
        with server.connect() as wire:
            wire.load([b"key:%d" % n for n in range(300)], b"v" * 1_000_000)
    server.log_path = tmp_path / "second.log"
    server.environment = supervisor.environment
    starting = threading.Thread(target=server.start)
    starting.start()
    # Half a second of loading is not reported. The server sleeps while it loads.
    harness.wait_until(lambda: server.process and " loading dir=" in server.log(), "it loads", pause_s=0.001)
    server.process.send_signal(signal.SIGSTOP)
    time.sleep(0.6)
    server.process.send_signal(signal.SIGCONT)
    *reports, last = supervisor.reports_until("READY")
    starting.join()
    server.kill()
    supervisor.socket.close()
    assert reports and last["READY"] == "1"
    for report in reports:
        assert report["STATUS"].startswith("loading: ") and int(report["EXTEND_TIMEOUT_USEC"]) >= 10_000_000, report


def test_a_reload_before_the_start_has_ended_is_no_readiness(tmp_path):
    """A member that waits for its coordinator is not ready, whatever signals it gets."""
    supervisor = Supervisor(str(tmp_path / "notify"))
    port = harness.free_port()
    server = harness.Duramen(tmp_path, "--coordinator", f"127.0.0.1:{port}", dir=tmp_path / "data", level=None, environment=supervisor.environment)
    with open(server.log_path, "ab") as log:
        server.process = subprocess.Popen([*server.command(), "--native-port", "0"], stderr=log, cwd=tmp_path, env=harness.environment(supervisor.environment))
    try:
        assert "coordinator" in supervisor.report()["STATUS"]
        server.process.send_signal(signal.SIGHUP)
        harness.wait_until(lambda: "SIGHUP" in server.log(), "the signal is seen")
        assert server.stop() == 0
        assert supervisor.report()["STOPPING"] == "1"
    finally:
        server.kill()
        supervisor.socket.close()


def test_a_watchdog_gets_reports(start, tmp_path):
    supervisor = Supervisor(str(tmp_path / "notify"))
    start(environment={**supervisor.environment, "WATCHDOG_USEC": "400000"})
    supervisor.reports_until("READY")
    times, shortest = [], 60
    # It needs the clock, because reports are expected at times. A busy machine delays some of them.
    while len(times) < 40 and shortest >= 3 * 0.4:
        if supervisor.report() == {"WATCHDOG": "1"}:
            times.append(time.monotonic())
        if len(times) >= 4:
            shortest = min(shortest, times[-1] - times[-4])
    assert shortest < 3 * 0.4, "reports come more often than they are expected"
    supervisor.socket.close()


def test_nothing_is_reported_without_a_supervisor(start, tmp_path):
    """A socket that is not there, or has no reader, ends no server."""
    for name in (str(tmp_path / "absent"), "@duramen-test-absent", "x" * 500, ""):
        server = start(environment={"NOTIFY_SOCKET": name, "WATCHDOG_USEC": "1000000"})
        with server.connect() as wire:
            assert wire.call("PING") == b"PONG"
        assert server.stop() == 0


def test_others_watchdog_is_not_reported_to(start, tmp_path):
    supervisor = Supervisor(str(tmp_path / "notify"))
    start(environment={**supervisor.environment, "WATCHDOG_USEC": "40000", "WATCHDOG_PID": "1"})
    supervisor.reports_until("READY")
    assert supervisor.is_silent()
    supervisor.socket.close()
