"""Fixtures of the tests of whole clusters."""

import contextlib
import pathlib
import shutil
import tempfile

import pytest

import histories
from network import Network, Unable


@contextlib.contextmanager
def folder(request, name):
    """A folder for servers, logs and histories. It stays, and is named, if a test fails meanwhile."""
    failed = request.session.testsfailed
    path = pathlib.Path(tempfile.mkdtemp(prefix=f"duramen-{name}-", dir=histories.KEPT))
    print(f"logs and histories: {path}")
    yield path
    if request.session.testsfailed == failed:
        shutil.rmtree(path, ignore_errors=True)


@pytest.fixture
def place(request):
    with folder(request, request.node.name.split("[")[0]) as path:
        yield path


@pytest.fixture(scope="module")
def home(request):
    """The same for a cluster that all tests of a file share."""
    with folder(request, request.module.__name__) as path:
        yield path


@pytest.fixture
def network():
    """An empty network; skips the test where there can be none."""
    try:
        made = Network()
    except Unable as reason:
        pytest.skip(f"no network namespaces here: {reason}")
    yield made
    made.end()
