"""Fixtures shared by all tests of whole processes."""

import pytest

import harness
import provide
import reaper


def pytest_configure():
    reaper.start()
    if provide.OUTSIDE:
        harness.lead_nowhere()


def pytest_unconfigure():
    reaper.finish()


def pytest_collection_modifyitems(config, items):
    if harness.TIER == "quick":
        left_out = [item for item in items if item.get_closest_marker("full")]
        items[:] = [item for item in items if not item.get_closest_marker("full")]
        config.hook.pytest_deselected(items=left_out)
    if harness.PEER:
        for item in items:
            if item.get_closest_marker("duramen"):
                item.add_marker(pytest.mark.skip(reason="says something about Duramen alone"))


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """A server with the defaults of the harness, shared by the tests of one file."""
    with harness.Server(tmp_path_factory.mktemp("server"), threads=2) as running:
        yield running


@pytest.fixture
def wire(server):
    """A fresh connection to an empty `server`."""
    with server.connect() as connection:
        connection.call("FLUSHALL")
        yield connection


@pytest.fixture
def start(tmp_path):
    """Starts servers with the test's own options; they end with the test."""
    running = []

    def start_one(*arguments, **options):
        server = harness.Server(tmp_path, *arguments, **options)
        running.append(server)
        return server.start()

    yield start_one
    for server in running:
        server.kill()


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 200 MiB."""
    with harness.disk(tmp_path / "image", tmp_path / "disk", 200 << 20) as place:
        yield place


@pytest.fixture
def hanging_disk(tmp_path):
    """A file system of 400 MiB, for [harness.frozen]."""
    with harness.disk(tmp_path / "image", tmp_path / "disk", 400 << 20) as place:
        yield place


@pytest.fixture(scope="module")
def certs(tmp_path_factory):
    """An authority with certificates for `server`, and for the client `alice`."""
    folder = tmp_path_factory.mktemp("certs")
    harness.cert("init", folder)
    harness.cert("issue", "alice", "--dir", folder)
    return folder


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    """Duramen and a Redis."""
    folder = tmp_path_factory.mktemp("pair")
    with harness.Duramen(folder) as duramen, harness.Redis(folder, program="redis-server") as peer:
        yield duramen, peer
