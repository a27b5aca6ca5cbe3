"""Fixtures of the tests of whole clusters."""

import shutil
import tempfile
import pathlib

import pytest

import histories


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item, call):
    report = (yield).get_result()
    if report.failed:
        item.failed = True


@pytest.fixture
def place(request):
    """A folder for servers, logs and histories. It stays, and is named, if the test fails."""
    folder = pathlib.Path(tempfile.mkdtemp(prefix=f"duramen-{request.node.name.split('[')[0]}-", dir=histories.KEPT))
    yield folder
    if getattr(request.node, "failed", False):
        print(f"\nlogs and histories: {folder}")
    else:
        shutil.rmtree(folder, ignore_errors=True)
