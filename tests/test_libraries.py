"""Programs of libraries that use Redis (libraries/README.md): those that are installed and done
within seconds. `libraries/run` runs all of them, and writes the table of docs/compatibility.md."""

import os
import sys

import pytest

import harness

pytestmark = pytest.mark.full

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "libraries"))

import catalogue  # noqa: E402
import programs  # noqa: E402

QUICK = [library for library in catalogue.LIBRARIES if library.quick]


@pytest.mark.parametrize("library", QUICK, ids=[library.name for library in QUICK])
def test_library(library, tmp_path):
    with harness.Server(tmp_path, threads=2) as server:
        result = programs.run(library, "127.0.0.1", server.port)
    if result.verdict == "skip":
        pytest.skip(result.text)
    assert result.verdict == "pass", f"{library.name} {result.version} did {result.done}, then:\n{result.text}"
