"""`duramen restore`: a snapshot becomes a data directory and stays a backup; `serve --dir` with a
snapshot, and without."""

import json
import os
import shutil
import signal
import subprocess

import pytest

import harness
from harness import content

pytestmark = pytest.mark.duramen

KEYS = 4000


def duramen(*arguments, code=0, folder=None):
    done = harness.duramen(*arguments, code=code, folder=folder)
    return done.stdout + done.stderr


def serve(*arguments, code=2, folder=None):
    """The message of a server that refuses to start."""
    return duramen("serve", "--port", 0, "--admin=no", "--memory", "64mb", *arguments, code=code, folder=folder)


@pytest.fixture
def snapshot(start, tmp_path):
    """A snapshot of a running server."""
    server = start("--wal-size", "16mb", dir=tmp_path / "data", level=None, memory="64mb")
    with server.connect() as wire:
        wire.load([b"k%d" % n for n in range(KEYS)], b"x" * 1000)
        wire.pipeline([("DEL", f"k{n}") for n in range(0, KEYS, 4)])
        wire.call("SELECT", 1)
        wire.call("SET", "there", "v")
    duramen("snapshot", tmp_path / "monday", "--port", server.port)
    return tmp_path / "monday"


def holds_all(server):
    with server.connect() as wire:
        assert wire.call("DBSIZE") == KEYS - KEYS // 4
        values = wire.pipeline([("GET", f"k{n}") for n in range(KEYS)])
        assert values == [None if n % 4 == 0 else b"x" * 1000 for n in range(KEYS)]
        wire.call("SELECT", 1)
        assert wire.call("GET", "there") == b"v"


def test_restore_makes_a_data_directory_and_leaves_the_snapshot(snapshot, start, tmp_path):
    """The only way to restore was to serve the backup, which wrote to it."""
    before = content(snapshot)
    said = duramen("restore", snapshot, tmp_path / "restored")
    assert said.startswith("restored: ") and "every entry was verified" in said
    assert f"duramen serve --dir {tmp_path / 'restored'} --memory 64mb" in said
    server = start(dir=tmp_path / "restored", level=None, memory="64mb")
    holds_all(server)
    with server.connect() as wire:
        wire.call("SET", "more", "v")
    server.kill()
    server.start()
    with server.connect() as wire:
        assert wire.call("GET", "more") == b"v"
    assert content(snapshot) == before, "the backup is what it was"
    # And once more, beside the first result.
    told = json.loads(duramen("restore", snapshot, tmp_path / "again", "--json"))
    assert told["restored"] and told["objects"] >= KEYS * 3 // 4 and told["memory_bytes"] == 64 << 20, told
    assert duramen("fsck", tmp_path / "again").splitlines()[-1] == "sound"


def test_a_pipe_in_the_place_of_a_file_blocks_nothing(snapshot, start, tmp_path):
    """A named pipe called `superblock` in a neighbour's folder blocked the first start for ever, in
    the target of a snapshot the snapshot and the stop, in a directory each tool."""
    other = tmp_path / "neighbours" / "other"  # without the snapshot, which would be named
    other.mkdir(parents=True)
    os.mkfifo(other / "superblock")
    server = start(dir=other.with_name("elsewhere"), level=None, memory="64mb")
    with server.connect() as wire:
        wire.call("DURAMEN.SNAPSHOT", str(other))
        harness.wait_until(lambda: "neither a regular file nor a block device" in server.log(), "the snapshot has failed")

        def another():
            try:
                return wire.call("DURAMEN.SNAPSHOT", str(tmp_path / "more"))
            except harness.ErrorReply:
                return None

        harness.wait_until(another, "the next one begins")
    assert server.stop() == 0
    (other / "superblock").unlink()
    # Each file of a store, for each tool.
    for name in ("superblock", "wal", "frames", "LOCK"):
        copy = tmp_path / f"without {name}"
        shutil.copytree(snapshot, copy)
        (copy / name).unlink(missing_ok=True)
        os.mkfifo(copy / name)
        for command in (("fsck", copy), ("log", "dump", copy), ("restore", copy, tmp_path / "new")):
            done = harness.duramen(*command)
            assert done.returncode in (1, 5), done
            assert "neither a regular file nor a block device" in done.stdout + done.stderr, done


@pytest.mark.full
def test_what_restore_says_that_is_needed_is_enough(start, tmp_path):
    server = start("--wal-size", "16mb", dir=tmp_path / "data", level=None, memory="256mb")
    with server.connect() as wire:
        wire.load([b"k%d" % n for n in range(75_000)], b"x" * 1600)
    duramen("snapshot", tmp_path / "copy", "--port", server.port)
    server.kill()
    needs = json.loads(duramen("restore", tmp_path / "copy", tmp_path / "restored", "--json"))
    assert needs["memory_bytes"] < 320 << 20 and needs["memory_with_flash_bytes"] < needs["memory_bytes"], needs
    flash = ("--flash-file", tmp_path / "flash", "--flash-size", needs["flash_bytes"])
    for memory, more in (("memory_bytes", ()), ("memory_with_flash_bytes", flash)):
        server = start(*more, dir=tmp_path / "restored", level=None, memory=str(needs[memory]))
        with server.connect() as wire:
            assert wire.call("DBSIZE") >= 75_000
            assert wire.call("SET", f"more {memory}", "x" * 1000) == b"OK"
        server.kill()


@pytest.mark.full
def test_restore_writes_over_nothing(snapshot, tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "letters").write_text("precious")
    said = duramen("restore", snapshot, tmp_path / "mine", code=5)
    assert "not a Duramen store" in said and "letters" in said
    assert content(tmp_path / "mine") == {"letters": b"precious"}
    # A store is not touched, nor one in use, nor the snapshot itself.
    for target in (tmp_path / "data", snapshot):
        before = content(target)
        assert "already holds a store" in duramen("restore", snapshot, target, code=5)
        assert content(target) == before
    assert "in use" in duramen("restore", tmp_path / "data", tmp_path / "new", code=5)
    assert "none" in duramen("restore", tmp_path / "none", tmp_path / "new", code=5)
    assert not (tmp_path / "new").exists()


@pytest.mark.full
def test_files_of_two_snapshots_are_not_restored(start, tmp_path):
    """A backup job copied the files one by one while another snapshot took their place: `fsck` and
    `restore` called the copy sound, and no server started with it."""
    for life in range(3):
        server = start("--wal-size", "16mb", dir=tmp_path / "data", level=None, memory="64mb")
        with server.connect() as wire:
            wire.load([b"k%d" % n for n in range(KEYS)], b"%d" % life * 1000)
        assert server.stop() == 0
        shutil.copytree(tmp_path / "data", tmp_path / f"life{life}")
    shutil.copy(tmp_path / "life0" / "frames", tmp_path / "life2" / "frames")
    mixed = tmp_path / "life2"
    assert "newest control segment cannot be read" in duramen("fsck", mixed, code=1)
    said = duramen("restore", mixed, tmp_path / "new", code=1)
    assert "nothing was restored" in said
    assert "newest control segment cannot be read" in serve("--dir", mixed, code=5)
    said = duramen("fsck", "--repair", mixed, "--out", tmp_path / "repaired", code=1)
    assert f"not proved: {KEYS} of them" in said


def test_a_damaged_snapshot_is_not_restored(snapshot, tmp_path):
    frames = snapshot / "frames"
    data = bytearray(frames.read_bytes())
    at = data.index(b"k77x") + 100
    data[at] ^= 3
    frames.write_bytes(data)
    said = duramen("restore", snapshot, tmp_path / "new", code=1)
    assert "problem: segment" in said and "nothing was restored" in said
    refused = duramen("serve", "--port", 0, "--admin=no", "--dir", tmp_path / "new", code=5)
    assert "never completed" in refused
    data[at] ^= 3
    frames.write_bytes(data)
    assert "now starts again" in duramen("restore", snapshot, tmp_path / "new")
    (snapshot / "wal").unlink()
    assert "the file `wal` is damaged: it is gone" in duramen("restore", snapshot, tmp_path / "other", code=1)
    assert not (tmp_path / "other").exists()


@pytest.mark.parametrize("where", ["superblock", "wal", "frames"])
def test_a_restore_that_was_cut_off_is_refused_and_begun_anew(snapshot, start, tmp_path, where):
    """Interrupted at the first system call that touches a file: strace does it at the same place
    each time."""
    if not shutil.which("strace"):
        pytest.skip("needs strace; crates/sim/tests/restore.rs cuts at every operation")
    new = tmp_path / "new"
    inject = ("-f", "-qq", "-o", os.devnull, "-P", new / where, "-e", "inject=fsync,fdatasync,pwritev2,pwrite64:signal=KILL:when=1")
    killed = subprocess.run(
        ["strace", *map(str, inject), harness.BINARY, "restore", str(snapshot), str(new)], capture_output=True, check=False
    )
    assert killed.returncode in (-signal.SIGKILL, 128 + signal.SIGKILL), killed
    refused = duramen("serve", "--port", 0, "--admin=no", "--dir", new, code=5)
    assert "never completed" in refused and "Restore into it again" in refused
    assert "now starts again" in duramen("restore", snapshot, new)
    holds_all(start(dir=new, level=None, memory="64mb"))


def test_a_snapshot_is_not_written_to_unless_it_is_wanted(snapshot, start, tmp_path):
    """`serve --dir SNAPSHOT` made the backup its data directory without a message."""
    before = content(snapshot)
    said = serve("--dir", snapshot)
    assert f"duramen restore {snapshot} DIR" in said and "--use-snapshot" in said
    assert content(snapshot) == before
    server = start("--use-snapshot", dir=snapshot, level=None, memory="64mb")
    holds_all(server)
    server.kill()
    # From then on it is a normal data directory.
    holds_all(start(dir=snapshot, level=None, memory="64mb"))


def test_a_mistyped_snapshot_does_not_become_an_empty_store(snapshot, start, tmp_path):
    """A path that did not exist was created, and an empty store served from it."""
    said = serve("--dir", tmp_path / "mondya")
    assert "does not exist" in said and str(snapshot) in said and "duramen restore" in said
    for name in ("snapshots/dump", "my-dump"):
        said = serve("--dir", name, folder=tmp_path / "data")
        assert "does not exist" in said and "mkdir" in said
        assert not (tmp_path / "data" / name).exists()
    # It names the copy that SAVE made.
    here = tmp_path / "here"
    here.mkdir()
    server = harness.Duramen(here, level=None, memory="64mb").start()
    with server.connect() as wire:
        assert wire.call("SAVE") == b"OK"
    server.kill()
    assert "`duramen-data/snapshots/dump`" in serve("--dir", "snapshots/dump", folder=here)
    # An empty store is still possible, with an explicit directory; other new names need nothing.
    (tmp_path / "mondya").mkdir()
    for name in ("mondya", "elsewhere/data"):
        server = start(dir=tmp_path / name, level=None, memory="64mb")
        with server.connect() as wire:
            assert wire.call("DBSIZE") == 0
        server.kill()
