"""Fixtures of the tests of whole clusters."""

import contextlib
import pathlib
import shutil
import tempfile

import pytest

import harness
import histories
from network import Network, Unable


@contextlib.contextmanager
def folder(request, name):
    """A folder for servers, logs and histories. If a test fails meanwhile, the folder stays, and
    the ends of its logs are printed: in an automatic run the output is all that remains."""
    failed = request.session.testsfailed
    path = pathlib.Path(tempfile.mkdtemp(prefix=f"duramen-{name}-", dir=histories.KEPT))
    print(f"logs and histories: {path}")
    yield path
    if request.session.testsfailed == failed:
        shutil.rmtree(path, ignore_errors=True)
        return
    for log in sorted([*path.glob("*.log"), *path.glob("*/*.log"), *path.glob("state.txt")]):
        print(f"--- the end of {log}", harness.tail(log, 40_000), sep="\n")


@pytest.fixture
def place(request):
    with folder(request, request.node.name.split("[")[0]) as path:
        yield path


@pytest.fixture
def durable(place):
    """One durable server, without a cluster."""
    with harness.Duramen(place, "--wal-size", "16mb", level=None, dir=place / "data", memory="64mb", threads=2) as server:
        yield server


@pytest.fixture(scope="module")
def home(request):
    """The same for a cluster that all tests of a file share."""
    with folder(request, request.module.__name__) as path:
        yield path


@pytest.fixture
def network():
    """An empty network; skips the test on a machine without namespaces."""
    try:
        made = Network()
    except Unable as reason:
        pytest.skip(f"no network namespaces here: {reason}")
    yield made
    made.end()
