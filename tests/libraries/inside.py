"""Runs one test suite beside a server on port 6379, in a network namespace of its own: suites that
have this port in their sources run unchanged. Called as `inside.py COMMAND…` by suites.py."""

import pathlib
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))

import harness  # noqa: E402


def main():
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    with tempfile.TemporaryDirectory(prefix="duramen-libraries-") as folder:
        server = harness.Server(folder, threads=2, memory="512mb")
        server.port = 6379
        with server:
            return subprocess.run(sys.argv[1:]).returncode


sys.exit(main())
