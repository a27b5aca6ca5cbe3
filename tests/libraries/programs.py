"""Runs the program of one library against one server."""

import dataclasses
import os
import signal
import subprocess
import time

import places


@dataclasses.dataclass
class Result:
    # `pass`, `fail` or `skip`.
    verdict: str
    version: str = ""
    # The program's own words for the things that it did.
    done: tuple = ()
    # The reason of a skip, the last words of a failure.
    text: str = ""
    seconds: float = 0.0


def run(library, host, port):
    """Installs the library and runs its program."""
    try:
        command = library.command()
        version = library.version()
    except places.Missing as why:
        return Result("skip", text=str(why))
    start = time.monotonic()
    code, output, errors = in_group(command, library.limit_s, REDIS_HOST=host, REDIS_PORT=str(port))
    seconds = time.monotonic() - start
    done = tuple(line.removeprefix("did ") for line in output.splitlines() if line.startswith("did "))
    if code == 0 and done:
        return Result("pass", version, done, "", seconds)
    why = f"it did not end within {library.limit_s} s" if code is None else f"it ended with {code}"
    return Result("fail", version, done, f"{why}\n{errors or output}", seconds)


def in_group(command, limit_s, cwd=None, **variables):
    """Runs a command with all its children; returns its exit code, which is None if it was ended
    after that time, and its two outputs."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("DURAMEN_")}
    process = subprocess.Popen(
        command,
        env={**env, "PYTHONDONTWRITEBYTECODE": "1", **variables},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        start_new_session=True,
        cwd=cwd,
    )
    try:
        output, errors = process.communicate(timeout=limit_s)
        code = process.returncode
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        output, errors = process.communicate()
        code = None
    finally:
        # A worker that the program left behind.
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
    return code, output, errors
