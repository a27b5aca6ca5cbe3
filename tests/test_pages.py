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
import test_full_stop  # noqa: E402
from network import Network, Unable  # noqa: E402

pytestmark = pytest.mark.duramen

# Every page with a block; `test_no_page_is_left_out` finds the others.
PAGES = [
    "ARCHITECTURE.md",
    "CONTRIBUTING.md",
    "README.md",
    "docs/alloc.md",
    "docs/benchmarks.md",
    "docs/embedded.md",
    "docs/install.md",
    "docs/native-protocol.md",
    "docs/operations.md",
    "docs/reliability.md",
    "docs/security.md",
    "docs/tour.md",
    "heap/README.md",
]

# All blocks of these pages that are not run. A wrong page is corrected; it does not get another
# line here. `test_commands_of_the_sources_exist` checks the names in those of `cargo xtask`.
NOT_RUN = [
    ("ARCHITECTURE.md", "                 base ←─ shm       ids, units, limits, levels · two byte rings in shared memory"),
    ("CONTRIBUTING.md", "./scripts/test                the quick tier: minutes; the last line says how many passed and failed"),
    ("CONTRIBUTING.md", "git config core.hooksPath scripts"),
    ("README.md", "./scripts/test"),
    ("docs/benchmarks.md", "cargo xtask bench FIGURE --out docs/benchmarks      # `--help` lists them"),
    ("docs/embedded.md", "[dependencies]"),
    ("docs/install.md", "cargo xtask package                 # takes 12 to 15 minutes on two cores"),
    ("docs/install.md", "systemctl edit duramen              # [Service]"),
    ("docs/install.md", "systemctl disable --now duramen"),
    ("docs/install.md", "podman build --format docker --file packaging/container/Containerfile --tag duramen:0.1.0 ."),
    ("docs/install.md", "helm install shop packaging/charts/duramen --set auth.existingSecret=shop-duramen"),
    ("docs/install.md", "size -A target/shipped/duramen"),
    ("docs/operations.md", "duramen cert init certs"),
    ("docs/operations.md", "duramen coordinator --cluster shop --listen 10.0.0.1:7400 --store redb:/var/lib/duramen-coordinator \\"),
    ("docs/reliability.md", "cargo xtask torture --seed 5 --episodes 30 --seconds 6"),
    ("docs/reliability.md", "DURAMEN_TEST_LENGTH=3 DURAMEN_TEST_SEED=100 scripts/test --full all_faults"),
    ("docs/reliability.md", "DURAMEN_SIM_FIRST=700000 DURAMEN_SIM_RUNS=4200 \\"),
    ("docs/security.md", '{"unix_ms":1764270000000,"user":"default","address":"10.0.0.7:51234","client":12,'),
    ("heap/README.md", "#include <duramen_alloc.h>"),
    ("heap/README.md", "   program        ordinary loads and stores"),
    ("heap/README.md", "cargo test                  # in this folder: all tests of the heap"),
]

# Their commands run for longer than a test may.
WITHOUT_COMMANDS = {page for page, _ in NOT_RUN} - {
    "README.md",
    "docs/benchmarks.md",
    "docs/operations.md",
    "docs/security.md",
}


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


# alloc.md needs the library of the heap, and runs its programs; benchmarks.md measures for half a
# minute.
FULL = ["docs/alloc.md", "docs/benchmarks.md"]


@pytest.mark.parametrize("page", [harness.only_full(page) if page in FULL else page for page in PAGES])
def test_a_page_is_as_it_says(reader, page):
    began = time.monotonic()
    skipped = reader.read(page)
    print(f"{page}: {reader.commands} commands in {time.monotonic() - began:.1f} s, the slowest {reader.slowest}")
    assert (reader.commands > 0) == (page not in WITHOUT_COMMANDS), "a page of which nothing runs is listed as such"
    assert [(page, first) for page, first, _ in skipped] == [entry for entry in NOT_RUN if entry[0] == page]
    assert all(len(reason) > 10 for _, _, reason in skipped), skipped


def documents():
    """All pages of the repository."""
    listed = subprocess.run(["git", "ls-files", "*.md"], cwd=pages.ROOT, capture_output=True, text=True, check=True)
    return listed.stdout.split()


def test_no_page_is_left_out():
    """Five pages were run. Eight others showed commands, and nobody noticed which of them failed."""
    with_blocks = [page for page in documents() if pages.blocks(page)]
    assert sorted(with_blocks) == PAGES


def test_long_pages_have_a_list_of_contents():
    """operations.md had 1,079 lines, and no way to find a subject but a search."""
    for page in ("docs/operations.md",):
        text = (pages.ROOT / page).read_text()
        listed = re.findall(r"^\| \[([^\]]+)\]\(#", text.split("\n## ")[0], re.M)
        assert listed == re.findall(r"^## (.*)$", text, re.M), page
        for row in re.findall(r"^\| \[.*$", text.split("\n## ")[0], re.M):
            assert row.count(" | ") == 1 and len(row.split(" | ")[1]) > 5, f"{page}: nothing says what it is about: {row}"


def cases_of(test):
    """The values of a test's only `parametrize`."""
    (mark,) = (mark for mark in test.pytestmark if mark.name == "parametrize")
    return mark.args[1]


def test_the_fills_of_the_page_are_those_that_are_tested():
    """operations.md said which fill survives a full stop, and the tests had figures of their own:
    either could change, and nobody noticed that the page promised what nothing tested."""
    page = (pages.ROOT / "docs/operations.md").read_text()
    table = page.split("| survives |\n")[1].split("\n\n")[0]
    fills = [row.split(" | ")[0].removeprefix("| ") for row in table.splitlines()[1:]]
    waits = (pages.ROOT / "crates/cluster/src/coordinator/waits.rs").read_text()
    warns = int(re.search(r"^const FULL_PERCENT: u64 = (\d+);", waits, re.M)[1])
    survives, fits = test_full_stop.SURVIVES, test_full_stop.FITS

    def less(servers):
        return 100 * (servers - 1) // servers - 5

    assert fills == [
        f"up to {warns} %",
        f"{warns} to {survives} %",
        "up to (*N* - 1) / *N* less 5 points of *N* servers "
        f"({less(4)} % of 4, {less(5)} % of 5), if *R* + 1 others are up",
        f"above that, up to {survives} %",
        f"above {survives} %",
    ]
    assert f"warns (`soon:`) of a server that is {warns} % full" in " ".join(page.split())
    assert fits == less(4)
    filled = cases_of(test_full_stop.test_everything_is_served_soon_after_a_full_stop)
    assert {members for members, percent in filled if percent == survives} >= {3, 4, 5, 6}, filled
    assert max(percent for _, percent in filled) == survives, filled
    missing = cases_of(test_full_stop.test_without_one_member_the_others_serve_or_say_for_what_they_wait)
    percents = [percent for percent, _ in missing]
    assert fits in percents and fits < max(percents) <= survives, percents


def flags_of(command):
    return [word.split("=")[0] for word in command.split() if re.fullmatch(r"--[a-z][a-z-]*(=.*)?", word)]


def is_a_test(word):
    """Whether `scripts/test` with this word runs anything: a part, or a part of a test's name."""
    words = word.replace("::", "/").strip("/")
    listed = subprocess.run(["git", "ls-files", "crates", "tests"], cwd=pages.ROOT, capture_output=True, text=True, check=True)
    parts = (pages.ROOT / "crates/xtask/src/test/tier.rs").read_text()
    named = ["git", "grep", "-qE", rf"(fn|def) \w*{words}", "--", "crates", "tests"]
    return words in listed.stdout or f"  {word} " in parts or subprocess.run(named, cwd=pages.ROOT, check=False).returncode == 0


def test_commands_of_the_sources_exist():
    """benchmarks.md showed `duramen bench tier` and `bench-base memory`, which no program had any
    more; find-your-way.md showed a selection of tests that selected none."""
    xtask = (pages.ROOT / "crates/xtask/src/main.rs").read_text()
    figures = {}
    for path in (pages.ROOT / "bench/src/figures").rglob("*.rs"):
        for name in re.findall(r'const NAME: &\'static str = "([a-z-]+)"', path.read_text()):
            folder = pages.ROOT / "bench/src/figures" / name.replace("-", "_")
            folder = folder if folder.is_dir() else path.parent if path.parent.name != "figures" else None
            files = folder.rglob("*.rs") if folder else [path]
            figures[name] = "\n".join(file.read_text() for file in files)
    found = 0
    for page in documents():
        text = (pages.ROOT / page).read_text()
        for command in re.findall(r"(?:^|`)(?:cargo xtask) ([a-z][^`\n]*)", text, re.M):
            name, *rest = command.split()
            assert f'"{name}"' in xtask, f"{page}: cargo xtask {command}"
            found += 1
            if name == "bench" and rest and rest[0] not in ("FIGURE", "NAME", "render", "--help"):
                assert rest[0] in figures, f"{page}: cargo xtask {command}"
                source = figures[rest[0]]
                shared = (pages.ROOT / "bench/src/main.rs").read_text() + (pages.ROOT / "bench/src/figure.rs").read_text()
                for flag in flags_of(" ".join(rest).split("#")[0]):
                    assert re.search(rf"\b{flag[2:].replace('-', '_')}\b", source + shared), f"{page}: cargo xtask {command}: {flag}"
            if name == "torture":
                source = (pages.ROOT / "crates/workload/src/torture/mod.rs").read_text()
                for flag in flags_of(" ".join(rest).split(";")[0]):
                    field = rf"^ *(pub )?{flag[2:].replace('-', '_')}:"
                    assert flag == "--release" or re.search(field, source, re.M), f"{page}: cargo xtask {command}: {flag}"
        for words in re.findall(r"(?:^|`)(?:\./)?scripts/test ([^`\n]+)", text, re.M):
            for word in re.split(r"\s{2,}", words)[0].split():
                if re.fullmatch(r"[a-z_:/]+", word):
                    assert is_a_test(word), f"{page}: scripts/test {word} selects nothing"
                    found += 1
        for example in re.findall(r"cargo run (?:--release )?--example ([a-z_]+)", text):
            assert (pages.ROOT / f"crates/duramen/examples/{example}.rs").exists(), f"{page}: {example}"
            found += 1
        assert not re.search(r"`(duramen bench (cluster|tier)|bench-base)", text), page
    assert found > 50, found


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
        for command in re.findall(r"`duramen ([a-z][^`]*)`", path.read_text()):
            words = command.split()
            if path.name == "benchmarks.md" and words[0] not in ("bench", "serve"):
                continue  # there it is a column of a table
            names = words[:2] if words[0] in ("bench", "config", "key", "log", "table", "tablet") else words[:1]
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
