"""A durable server whose disk hangs: only those clients wait whose replies need the disk. All clients
of these tests are served by one thread."""

import time
import urllib.request

import pytest

import harness
from harness import encode

pytestmark = pytest.mark.duramen


# Far less than a disk hangs here, and more than a busy machine needs.
AT_ONCE_S = 4


@pytest.fixture
def hanging_disk(tmp_path):
    with harness.disk(tmp_path / "image", tmp_path / "disk", 400 << 20) as place:
        yield place


def serve(start, place, level):
    return start("--wal-size", "16mb", level=level, dir=place / "data", memory="64mb", threads=1)


def hang(wire):
    """The disk was frozen: lets a commit begin."""
    assert wire.call("SET", "hangs", "v") == b"OK"
    time.sleep(1.5)


def seconds(work):
    began = time.monotonic()
    work()
    return time.monotonic() - began


def page(server, path):
    with urllib.request.urlopen(f"http://127.0.0.1:{server.admin_port}{path}", timeout=60) as reply:
        assert reply.status == 200
        return reply.read()


def test_figures_and_probes_do_not_wait_for_the_disk(hanging_disk, start):
    """INFO and /metrics waited for the commit in progress: one exporter stopped every client of a
    thread, and /livez."""
    server = serve(start, hanging_disk, "memory")
    with server.connect() as wire, server.connect() as other:
        wire.call("SET", "k", "v")
        with harness.frozen(hanging_disk):
            hang(wire)
            other.send(encode("INFO") + encode("INFO", "persistence"))
            assert seconds(lambda: wire.call("GET", "k")) < AT_ONCE_S
            assert b"duramen_segments_listed" in other.reply() + other.reply()
            assert seconds(lambda: page(server, "/metrics")) < AT_ONCE_S
            assert seconds(lambda: page(server, "/livez")) < AT_ONCE_S
