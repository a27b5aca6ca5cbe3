"""Fixtures of the tests of packages."""

import os

import pytest

import harness
import provide
from installing import Machine, run


@pytest.fixture(scope="session")
def packages(tmp_path_factory):
    """{name: path} of the packages of the program under test."""
    xtask = os.environ.get("DURAMEN_TEST_XTASK")
    if not xtask:
        pytest.skip("DURAMEN_TEST_XTASK names no program: run it by `scripts/test`")
    out = tmp_path_factory.mktemp("packages")
    run(xtask, "package", "--fast", "--binary", harness.BINARY, "--out", out)
    return {path.name.split("_")[0]: path for path in out.glob("*.deb")}


@pytest.fixture(scope="module")
def machine(tmp_path_factory):
    folder = tmp_path_factory.mktemp("machine")
    provide.program("redis-cli")
    if os.getuid() != 0:
        pytest.skip("only root can install packages")
    # No package is installed on this machine meanwhile: its file system is the lower layer. Layers may
    # not lie inside of each other.
    with provide.apt(), harness.disk(folder / "image", folder / "disk", 8 << 30) as place:
        made = Machine(place)
        yield made
        made.end()
