"""A short torture of a real server: clients of all kinds, pauses, kills, and a watchdog for every
reply.

In 2026 four ordinary clients that deleted old keys hung the server for ever, beside 1,600 passing
tests. This run finds that defect, if it is put back, in its first episodes. `cargo xtask torture`
runs longer ones; `crates/workload/src/torture` documents the checks.
"""

import json
import os
import random
import subprocess

import pytest

import harness

pytestmark = [pytest.mark.duramen, pytest.mark.full]

WORKLOAD = os.path.abspath(os.environ.get("DURAMEN_TEST_WORKLOAD", "../target/debug/duramen-workload"))

# Episodes of one run, and the length of each in seconds. With start and end it takes about 35 s.
EPISODES = 4
SECONDS = 6


@pytest.mark.parametrize("threads", [2, 4])
def test_every_reply_comes_and_is_right(tmp_path, threads):
    # Other plans in each run; a failure prints the command that repeats its episode.
    seed = random.randrange(1 << 32)
    run = subprocess.run(
        [
            *(WORKLOAD, "torture", "--server", harness.BINARY, "--seed", str(seed), "--threads", str(threads)),
            *("--minutes", "10", "--episodes", str(EPISODES), "--seconds", str(SECONDS), "--folder", str(tmp_path / "run")),
        ],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=600,
    )
    assert run.returncode == 0, run.stdout[-8000:]
    totals = json.loads(run.stdout.splitlines()[-1])
    assert totals["episodes"] == EPISODES
    assert totals["operations"] > 1000, totals
