"""Ends what a process of tests leaves behind, however it ended: its servers, mounted file systems,
network namespaces.

`start` runs this file as a process of its own, which waits for the end of its standard input: that is
the end of the tests. Then it kills all processes with the tests' mark in their environment, and runs
the commands that the tests have told it, the last one first.
"""

import contextlib
import json
import os
import pathlib
import secrets
import signal
import subprocess
import sys
import time

# A variable in the environment of all processes that the tests start.
MARK = "STARTED_BY_TESTS"

# Longest wait for the end of killed processes, in seconds.
KILLED_S = 20

reaper = None


def start():
    global reaper
    mark = secrets.token_hex(8)
    reaper = subprocess.Popen([sys.executable, __file__, mark], stdin=subprocess.PIPE, start_new_session=True)
    os.environ[MARK] = mark


def finish():
    """Waits until everything that the tests left behind has ended."""
    if reaper:
        reaper.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            reaper.wait(2 * KILLED_S)


def at_the_end(*command):
    """Runs a command after the tests. It changes nothing if a test has done the same before."""
    if reaper:
        reaper.stdin.write(json.dumps([str(word) for word in command]).encode() + b"\n")
        reaper.stdin.flush()


def marked(mark):
    """The ids of running processes with this mark, and their commands."""
    found = {}
    for folder in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            if f"{MARK}={mark}".encode() in (folder / "environ").read_bytes().split(b"\0"):
                words = (folder / "cmdline").read_bytes().split(b"\0")
                found[int(folder.name)] = b" ".join(words).decode(errors="replace").strip()
        except OSError:
            continue  # it has ended, or is not ours
    return found


def main():
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    commands = [json.loads(line) for line in sys.stdin]
    mark = sys.argv[1]
    for pid, command in marked(mark).items():
        print(f"left behind by the tests: {pid} {command:.200}", file=sys.stderr, flush=True)
        end(pid)
    # A process that waits for a frozen file system ends when that goes on.
    for command in reversed(commands):
        subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + KILLED_S
    while (left := marked(mark)) and time.monotonic() < deadline:
        for pid in left:
            end(pid)
        time.sleep(0.05)


def end(pid):
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


if __name__ == "__main__":
    main()
