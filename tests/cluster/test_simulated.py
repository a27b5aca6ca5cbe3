"""Histories of simulated clusters, checked by the checker of real ones.

The simulator has a checker of its own; this test compares the verdicts of two independent checkers.
"""

import os
import pathlib
import subprocess

import pytest

import harness
from histories import judge
from runs import scaled

pytestmark = pytest.mark.duramen

PROGRAM = pathlib.Path(
    os.environ.get("DURAMEN_TEST_SIMULATOR", pathlib.Path(harness.BINARY).parent / "examples" / "histories")
)


def test_histories_of_simulated_clusters(place):
    count = scaled(40, quick=4)
    done = subprocess.run([PROGRAM, place, "1", str(count)], capture_output=True, text=True)
    assert done.returncode == 0 and not done.stderr, done.stderr
    verdict = judge(sorted(pathlib.Path(place).glob("seed-*.jsonl")))
    print(verdict)
    assert (verdict.illegal, verdict.undecided) == (0, 0), verdict.text
    assert verdict.histories == count and verdict.operations > 100 * count and verdict.unknown > 0
