"""The clients that write histories (crates/workload), and the checker of histories (tests/checker).
"""

import json
import os
import pathlib
import re
import select
import socketserver
import subprocess
import tempfile
import time

import harness
import provide

WORKLOAD = pathlib.Path(os.environ.get("DURAMEN_TEST_WORKLOAD", pathlib.Path(harness.BINARY).parent / "duramen-workload"))

# Failed runs leave their histories and logs here, and print the path.
KEPT = pathlib.Path(os.environ.get("DURAMEN_TEST_KEPT", tempfile.gettempdir()))

# Longest wait for a line of a run: its own time, and the wait of its clients for a server's return.
ANSWER_S = 120


class Workload:
    """Clients of a cluster, or of one server, that continue from history to history."""

    def __init__(self, folder, resp, coordinators=(), prefix=(), **options):
        self.folder = pathlib.Path(folder)
        self.histories = self.folder / "histories"
        self.histories.mkdir(exist_ok=True)
        command = [*prefix, WORKLOAD, "--out", self.histories]
        if resp:
            command += ["--resp", ",".join(resp)]
        if coordinators:
            command += ["--coordinator", ",".join(coordinators)]
        for name, value in options.items():
            command += [f"--{name.replace('_', '-')}", value]
        self.log_path = self.folder / "workload.log"
        with open(self.log_path, "ab") as log:
            self.process = subprocess.Popen(
                [str(word) for word in command], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log
            )
        self.received = b""
        self.names = []
        self.answer()

    def answer(self, patience_s=ANSWER_S):
        deadline = time.monotonic() + patience_s
        while b"\n" not in self.received:
            readable, _, _ = select.select([self.process.stdout], [], [], max(0, deadline - time.monotonic()))
            chunk = os.read(self.process.stdout.fileno(), 1 << 16) if readable else b""
            if not chunk:
                said = "gone" if readable else f"silent for {patience_s} s"
                self.end()
                raise AssertionError(f"the clients are {said}\n{self.log_path.read_text(errors='replace')}")
            self.received += chunk
        line, self.received = self.received.split(b"\n", 1)
        return json.loads(line)

    def tell(self, *words):
        self.process.stdin.write((" ".join(map(str, words)) + "\n").encode())
        self.process.stdin.flush()

    def ask(self, *words):
        self.tell(*words)
        return self.answer()

    def begin(self, name, seconds):
        """Begins a history; `finish` waits for its end, and faults are injected in between."""
        self.names.append(name)
        self.tell("run", name, int(seconds * 1000))

    def finish(self):
        """The clients' results; invalid answers fail the test at once."""
        said = self.answer()
        for kind in ("resp", "native"):
            assert not said[kind]["nonsense"], said
        assert said["resp"]["done"] + said["native"]["done"] > 0, said
        return said

    def recheck(self):
        """Reads every key of all histories again, into the histories."""
        said = self.ask("recheck")
        assert said["failed"] == 0, said
        return said["rechecked"]

    def judge(self, limit_s=60):
        """Runs the checker on all histories."""
        return judge([self.histories / f"{name}.jsonl" for name in self.names], limit_s)

    def end(self):
        if self.process:
            self.process.kill()
            self.process.wait()
            self.process.stdin.close()
            self.process.stdout.close()
            self.process = None


class Verdict:
    """The checker's result for some histories."""

    def __init__(self, text):
        self.text = text
        counts = re.search(r"^checked (.*)$", text, re.MULTILINE)
        assert counts, text
        numbers = dict(word.split("=") for word in counts[1].split())
        self.histories, self.operations, self.unknown, self.illegal, self.undecided = (
            int(numbers[name]) for name in ("histories", "operations", "unknown", "illegal", "undecided")
        )

    def __str__(self):
        return self.text.splitlines()[-1]


def judge(paths, limit_s=60):
    done = subprocess.run(
        [provide.checker(), "-limit", f"{limit_s}s", "-show", str(pathlib.Path(paths[0]).parent), *map(str, paths)],
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode in (0, 1, 2), done
    verdict = Verdict(done.stdout)
    assert verdict.histories == len(paths), done.stdout
    return verdict


class RequestHandler(socketserver.StreamRequestHandler):
    """A connection to a server of a test, which reads requests of RESP."""

    disable_nagle_algorithm = True

    def words(self):
        line = self.rfile.readline()
        if not line:
            return None
        words = []
        for _ in range(int(line[1:])):
            length = int(self.rfile.readline()[1:])
            words.append(self.rfile.read(length + 2)[:-2])
        return words


class Listener(socketserver.ThreadingTCPServer):
    daemon_threads = True
    allow_reuse_address = True
