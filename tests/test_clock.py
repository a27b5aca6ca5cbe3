"""A wall clock that is wrong for a while: what has expired by it stays away, whatever stop follows.

The server has no setting for its clock, and a time namespace of Linux does not move the wall clock.
So a library of some lines stands before libc's `clock_gettime`; it adds the seconds of a file, which
a test changes while the server runs. The clocks that nobody can set stay as they are.
"""

import shutil
import struct
import subprocess

import pytest

import harness
from harness import wait_until

pytestmark = pytest.mark.duramen

HOUR_S = 3600
LIBRARY = r"""
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static volatile const long *ahead_s;

__attribute__((constructor)) static void map(void) {
    int file = open(getenv("AHEAD_FILE"), O_RDONLY);
    void *place = mmap(0, sizeof(long), PROT_READ, MAP_SHARED, file, 0);
    if (place == MAP_FAILED) abort();
    ahead_s = place;
}

int clock_gettime(clockid_t clock, struct timespec *now) {
    int failed = (int)syscall(SYS_clock_gettime, clock, now);
    if (!failed && clock == CLOCK_REALTIME && ahead_s) now->tv_sec += *ahead_s;
    return failed;
}
"""


class Clock:
    """The wall clock of the servers that get its environment."""

    def __init__(self, folder):
        self.file = folder / "ahead"
        self.file.write_bytes(struct.pack("q", 0))
        source, self.library = folder / "clock.c", folder / "clock.so"
        source.write_text(LIBRARY)
        compiler = shutil.which("cc") or pytest.skip("no C compiler")
        subprocess.run([compiler, "-shared", "-fPIC", "-o", self.library, source], check=True)
        self.environment = {"LD_PRELOAD": str(self.library), "AHEAD_FILE": str(self.file)}

    def is_ahead(self, seconds):
        """From now on; the file stays mapped, so it is changed in place."""
        with open(self.file, "r+b") as file:
            file.write(struct.pack("q", seconds))


@pytest.fixture
def clock(tmp_path):
    return Clock(tmp_path)


def now_s(wire):
    return int(wire.call("TIME")[0])


def is_removed(wire, count):
    """Whether so many objects have expired, and were taken out of the index."""
    return f"expired_keys:{count}\r\n" in wire.call("INFO", "stats").decode()


@pytest.mark.parametrize("back", ["before the stop", "after the stop"])
@pytest.mark.parametrize("how", ["SIGTERM", "kill -9"])
def test_what_expired_while_the_clock_was_ahead_stays_away(start, clock, tmp_path, how, back):
    """A clock had jumped ahead and was set back: what had expired meanwhile was there again after a
    clean stop and a start. Nothing had been written of its end (docs/protocols.md, Restart, 8)."""
    server = start(dir=tmp_path / "data", memory="64mb", level="synced", environment=clock.environment)
    keys = [f"short:{n}" for n in range(50)]
    with server.connect() as wire:
        for key in keys:
            assert wire.call("SET", key, "v", "EX", HOUR_S // 2) == b"OK"
        assert wire.call("SET", "long", "v", "EX", 100 * HOUR_S) == b"OK"
        assert wire.call("SET", "plain", "v") == b"OK"
        was_s = now_s(wire)
        clock.is_ahead(HOUR_S)
        assert HOUR_S <= now_s(wire) - was_s < HOUR_S + harness.PATIENCE_S, "the server has this clock"
        assert wire.call("MGET", *keys) == [None] * len(keys), "they have expired"
        wait_until(lambda: is_removed(wire, len(keys)), "all of them are removed")
        if back == "before the stop":
            clock.is_ahead(0)
            assert now_s(wire) - was_s < harness.PATIENCE_S
            assert wire.call("MGET", *keys) == [None] * len(keys), "nothing comes back while it runs"
        # Behind all removals: what is acknowledged after them is on the disk with them.
        assert wire.call("SET", "last", "v") == b"OK"
    if how == "SIGTERM":
        assert server.stop() == 0
    else:
        server.kill()
    clock.is_ahead(0)
    for _ in range(2):
        server.start()
        with server.connect() as wire:
            assert now_s(wire) - was_s < 4 * harness.PATIENCE_S, "the clock is right again"
            assert wire.call("MGET", *keys) == [None] * len(keys), "they stay away"
            assert wire.call("MGET", "long", "plain", "last") == [b"v"] * 3
            assert wire.call("DBSIZE") == 3
        assert server.stop() == 0
