"""What all programs of this folder share: the server, and the lines that they print."""

import os
import time

HOST = os.environ.get("REDIS_HOST", "127.0.0.1")
PORT = int(os.environ.get("REDIS_PORT", "6379"))
URL = f"redis://{HOST}:{PORT}"


def did(what):
    print("did", what, flush=True)


def wait_until(condition, what, patience_s=20):
    deadline = time.monotonic() + patience_s
    while not (result := condition()):
        assert time.monotonic() < deadline, f"{patience_s} s passed and still not: {what}"
        time.sleep(0.02)
    return result


def raises(kind, work):
    """The error of `kind` that `work()` must raise."""
    try:
        result = work()
    except kind as error:
        return error
    raise AssertionError(f"no {kind.__name__}, but {result!r}")
