"""README.md and the pages for users are correct: each command that they show is run, in order."""

import pathlib
import re
import subprocess
import sys
import time

import pytest

import harness
import pages

sys.path.append(str(pathlib.Path(__file__).parent / "cluster"))
from network import Network, Unable  # noqa: E402

pytestmark = pytest.mark.duramen

PAGES = ["README.md", "docs/tour.md", "docs/operations.md", "docs/alloc.md", "docs/native-protocol.md"]

# All blocks of these pages that are not run. A wrong page is corrected; it does not get another
# line here.
NOT_RUN = [
    ("README.md", "./scripts/test"),
    ("docs/operations.md", "duramen cert init certs"),
    ("docs/operations.md", "duramen coordinator --cluster shop --listen 10.0.0.1:7400 --store redb:/var/lib/duramen-coordinator \\"),
]


@pytest.fixture
def reader(tmp_path):
    try:
        network = Network()
    except Unable as reason:
        pytest.skip(f"no network namespaces here: {reason}")
    made = pages.Reader(tmp_path, network)
    yield made
    made.end()
    network.end()


# Needs the library of the heap, and runs its programs.
FULL = ["docs/alloc.md"]


@pytest.mark.parametrize("page", [harness.only_full(page) if page in FULL else page for page in PAGES])
def test_a_page_is_as_it_says(reader, page):
    began = time.monotonic()
    skipped = reader.read(page)
    print(f"{page}: {reader.commands} commands in {time.monotonic() - began:.1f} s, the slowest {reader.slowest}")
    assert reader.commands > 0, "a page without a command is none for users"
    assert [(page, first) for page, first, _ in skipped] == [entry for entry in NOT_RUN if entry[0] == page]
    assert all(len(reason) > 10 for _, _, reason in skipped), skipped


def test_what_a_page_shows_is_compared():
    """A comparison that accepts everything would find nothing."""
    assert pages.matches(["OK"], ["OK"]) and not pages.matches(["OK"], ["OK", "more"])
    assert not pages.matches(["OK"], ["ok"]) and not pages.matches(["OK"], [])
    assert pages.matches(["a … c"], ["a b c"]) and not pages.matches(["a … c"], ["a b", "c"])
    assert pages.matches(["…", "end"], ["1", "2", "end"]) and pages.matches(["…", "end"], ["end"])
    assert pages.matches(["begin", "…"], ["begin", "1", "2"]) and not pages.matches(["…", "end"], ["1"])
    assert pages.matches(['{"a":1,…}'], ['{"a":1,"b":2}'])


def test_the_pages_are_read_as_they_are_written():
    block = pages.Block("p", 1, ["$ one", "1", "$ two \\", "  more", "127.0.0.1:6379> GET k", "(nil)"], [])
    assert pages.steps(block) == [
        ("shell", "one", ["1"]),
        ("shell", "two more", []),
        ("redis", "GET k", ["(nil)"]),
    ]


def test_serve_by_the_script_keeps_its_data_where_it_was_called(reader, tmp_path):
    """Called from elsewhere, scripts/serve put `duramen-data` into the source tree, where git did
    not ignore it."""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    process = subprocess.Popen(
        [*reader.network.hub.prefix, str(pages.ROOT / "scripts/serve"), "--memory", "64mb"],
        cwd=elsewhere,
        env=reader.variables,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    try:
        assert process.stdout.readline().startswith(b"ready ")
        assert (elsewhere / "duramen-data/superblock").exists()
        assert not (pages.ROOT / "duramen-data").exists()
    finally:
        process.terminate()
        assert process.wait(harness.PATIENCE_S) == 0
        process.stdout.close()
    ignored = (pages.ROOT / ".gitignore").read_text().splitlines()
    assert "duramen-data/" in ignored


def test_commands_within_sentences_exist():
    """A page may name a command or a flag that does not exist, where no block would show it."""
    told = {}
    for path in [pages.ROOT / "README.md", *sorted((pages.ROOT / "docs").glob("*.md"))]:
        if path.name == "benchmarks.md":
            continue  # there it is a column of a table
        for command in re.findall(r"`duramen ([a-z][^`]*)`", path.read_text()):
            words = command.split()
            names = words[:2] if words[0] in ("bench", "config", "log", "table", "tablet") else words[:1]
            flags = re.findall(r"(?<!\S)--[a-z-]+", command)
            told.setdefault(tuple(names), {}).setdefault(path.name, set()).update(flags)
    assert len(told) > 15, told
    for names, where in told.items():
        names = [name for name in names if re.fullmatch("[a-z0-9-]+", name)]
        done = subprocess.run([harness.BINARY, *names, "--help"], capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"`duramen {' '.join(names)}` in {', '.join(where)}: {done.stderr}"
        for page, flags in where.items():
            missing = [flag for flag in flags if not re.search(rf"{flag}\b", done.stdout)]
            assert not missing, f"`duramen {' '.join(names)}` has no {missing}, which {page} names"
