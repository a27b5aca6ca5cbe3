"""Encryption at rest: nothing of the data is in any file, every start finds all of it again, and
no start succeeds without the key."""

import hashlib
import os
import pathlib
import random
import subprocess
import threading
import time

import pytest

import harness
import test_member

pytestmark = pytest.mark.duramen

SECRET = b"the account number of a client "
MIB = 1 << 20


def tool(*arguments, code=0):
    """Runs a command; returns both kinds of its output."""
    done = harness.duramen(*arguments, code=code, timeout=120)
    return done.stdout + done.stderr


def new_key(path):
    """A new key file; its id."""
    return tool("key", "init", path).splitlines()[0].rsplit(" ", 1)[1]


@pytest.fixture
def key(tmp_path):
    path = tmp_path / "key"
    new_key(path)
    return path


@pytest.fixture
def encrypted(start, tmp_path, key):
    """Starts an encrypted server; all servers of a test use the same directory unless a test names
    another one."""

    def start_one(*arguments, **options):
        options = {"level": None, "dir": tmp_path / "data", "memory": "64mb", **options}
        return start("--wal-size", "16mb", "--encryption-key-file", key, *arguments, **options)

    return start_one


def shown_in(folder, text=SECRET[:16]):
    """The files below a folder that contain a text."""
    paths = [path for path in pathlib.Path(folder).rglob("*") if path.is_file()]
    return sorted(path.name for path in paths if text in path.read_bytes())


# Blocks that begin so are the store's own plain ones: slots, commits, segments, hints.
MAGICS = (b"DSEG", b"DCMT", b"DFRM", b"DHOT")
# Plain by design, in bytes from the start: they are read before there is a key.
CLEAR = {"superblock": MIB, "wal": 8192, "LOCK": MIB, "member": MIB}


def plain_blocks(folder):
    """The files below a folder with blocks that do not look random, though they should: of 512
    random bytes, 221 are different on average, and never fewer than 150."""
    found = set()
    for path in pathlib.Path(folder).rglob("*"):
        if not path.is_file() or path.name == "aside":
            continue
        content = path.read_bytes()
        for at in range(CLEAR.get(path.name, 0), len(content), 4096):
            start = content[at : at + 512]
            if any(start) and (start[:4] in MAGICS or len(set(start)) < 150):
                found.add(path.name)
                break
    return found


def shown_in_memory(server, *secrets):
    """The mappings of a server that contain a secret and would be in a core dump."""
    shown = []
    with open(f"/proc/{server.process.pid}/smaps") as maps, open(f"/proc/{server.process.pid}/mem", "rb", 0) as memory:
        for line in maps:
            first = line.split(" ", 1)[0]
            if "-" in first and ":" not in first:
                begin, end = (int(text, 16) for text in first.split("-"))
                name = line.strip()
            elif line.startswith("VmFlags:") and "rd" in line.split() and "dd" not in line.split():
                for at in range(begin, end, 16 * MIB):
                    try:
                        memory.seek(at)
                        content = memory.read(min(16 * MIB + 64, end - at))
                    except (OSError, ValueError, OverflowError):
                        break  # [vvar], [vsyscall]
                    shown += [name for secret in secrets if secret in content]
    return shown


def digests(folder):
    paths = [path for path in pathlib.Path(folder).rglob("*") if path.is_file() and path.name != "LOCK"]
    return {path: hashlib.sha256(path.read_bytes()).hexdigest() for path in paths}


def value(number, turn, size):
    text = SECRET + b"%d.%d." % (number, turn)
    return (text * (size // len(text) + 1))[:size]


def write(wire, numbers, turn=0, size=2000):
    numbers = list(numbers)
    for begin in range(0, len(numbers), 500):
        some = numbers[begin : begin + 500]
        sets = [("SET", SECRET + b"%d" % number, value(number, turn, size)) for number in some]
        assert wire.pipeline(sets) == [b"OK"] * len(some)


def check(wire, numbers, turn=0, size=2000):
    numbers = list(numbers)
    for begin in range(0, len(numbers), 500):
        some = numbers[begin : begin + 500]
        found = wire.pipeline([("GET", SECRET + b"%d" % number) for number in some])
        assert found == [value(number, turn, size) for number in some]


def refusal(dir, *arguments):
    serve = ("serve", "--port", 0, "--admin=no", "--memory", "64mb", "--dir", dir)
    return harness.duramen(*serve, *arguments, code=5).stderr


@pytest.mark.full
def test_no_file_shows_anything_of_the_data(encrypted, start, tmp_path, key):
    (tmp_path / "flash_folder").mkdir()
    flash = ("--flash-file", tmp_path / "flash_folder" / "flash", "--flash-size", "256mb")
    server = encrypted(*flash)
    keys = range(50_000)
    with server.connect() as wire:
        write(wire, keys)
        # A value that goes straight to its frame, and keys that are read often.
        assert wire.call("SET", b"large", SECRET * 20_000) == b"OK"
        check(wire, range(0, 50_000, 7))
        check(wire, range(0, 50_000, 7))
        assert wire.call("SAVE") == b"OK"
        info = server.info("persistence")
        assert info["duramen_encryption"] == "aes-256-xts"
        assert info["duramen_encryption_key"] == tool("key", "show", tmp_path / "data").split()[-1]
        assert int(server.info("everything")["duramen_flash_fetches"]) > 0
        digits = key.read_text().strip().encode()
        for shown in (wire.call("INFO", "everything"), repr(wire.call("CONFIG", "GET", "*")).encode()):
            assert digits not in shown
    assert shown_in(tmp_path) == []
    assert server.stop() == 0
    assert digits not in server.log_path.read_bytes()
    files = {path.name for path in tmp_path.rglob("*") if path.is_file() and path.stat().st_size > 0}
    assert {"wal", "frames", "heat", "flash", "superblock"} <= files
    assert (tmp_path / "data" / "snapshots" / "dump" / "frames").exists()
    for folder in (tmp_path / "data", tmp_path / "flash_folder"):
        assert plain_blocks(folder) == set()
    assert shown_in(tmp_path) == []
    server.start()
    with server.connect() as wire:
        check(wire, keys)
        assert wire.call("GET", b"large") == SECRET * 20_000
    server.kill()
    # The test would find each kind that is left plain. (On flash every segment is under a mask, also
    # without encryption: `tier::tests::with_a_key_the_file_shows_nothing` looks below the mask.)
    plain = start("--wal-size", "16mb", *flash, level=None, dir=tmp_path / "plain", memory="64mb")
    with plain.connect() as wire:
        write(wire, keys)
        check(wire, range(0, 50_000, 7))
        check(wire, range(0, 50_000, 7))
        assert wire.call("SAVE") == b"OK"
    assert plain.stop() == 0
    assert (tmp_path / "plain" / "heat").stat().st_size > 0
    assert {"frames", "wal"} <= set(shown_in(tmp_path))
    assert plain_blocks(tmp_path / "plain" / "snapshots") == {"frames", "wal"}
    (tmp_path / "plain" / "snapshots").rename(tmp_path / "elsewhere")
    assert plain_blocks(tmp_path / "plain") == {"frames", "wal", "heat"}


def test_no_core_dump_shows_the_key(encrypted, key):
    server = encrypted()
    with server.connect() as wire:
        write(wire, range(1000))
        assert wire.call("SAVE") == b"OK"
        assert wire.call("SET", b"seen", b"found in memory " * 4) == b"OK"
    digits = key.read_text().strip()
    assert shown_in_memory(server, b"found in memory " * 4) != []
    assert shown_in_memory(server, digits.encode(), bytes.fromhex(digits)) == []


def writer(server, turn, most):
    """A thread that writes values of this turn until the server is killed, and the number of those
    that were acknowledged, in a list."""
    acknowledged = [0]

    def work():
        try:
            with server.connect() as wire:
                for begin in range(0, most, 100):
                    write(wire, range(begin, begin + 100), turn, 300)
                    acknowledged[0] = begin + 100
        except (OSError, harness.Closed):
            pass

    thread = threading.Thread(target=work)
    thread.start()
    return thread, acknowledged


def test_killed_again_and_again_it_loses_nothing(encrypted):
    server = encrypted()
    chosen = random.Random(5)
    for turn in range(8):
        thread, acknowledged = writer(server, turn, 20_000)
        time.sleep(chosen.uniform(0.05, 0.6))
        server.kill()
        thread.join()
        server.start()
        with server.connect() as wire:
            check(wire, range(acknowledged[0]), turn, 300)


def test_without_the_right_key_nothing_starts_and_nothing_is_touched(encrypted, tmp_path, key):
    data = tmp_path / "data"
    server = encrypted()
    with server.connect() as wire:
        write(wire, range(1000))
    server.kill()
    before = digests(data)
    wrong = tmp_path / "wrong"
    new_key(wrong)
    loose = tmp_path / "loose"
    loose.write_text(key.read_text())
    loose.chmod(0o644)
    short = tmp_path / "short"
    short.write_text("0123\n")
    short.chmod(0o600)
    assert "no key is given. Name it by `encryption-key-file`" in refusal(data)
    for given, words in [
        (("--encryption-key-file", wrong), "Name the right one by `encryption-key-file`"),
        (("--encryption-key-file", tmp_path / "lost"), "cannot read the encryption key in"),
        (("--encryption-key-file", loose), f"chmod 600 {loose}"),
        (("--encryption-key-file", short), "one line of 64 hexadecimal digits"),
        (("--encryption-key-command", "exit 7"), "encryption-key-command failed: exit status: 7"),
    ]:
        said = refusal(data, *given)
        assert words in said, said
    for command in [("fsck", data), ("log", "dump", data), ("restore", data, tmp_path / "copy")]:
        assert "no key is given" in tool(*command, code=5)
        assert "Name the right one" in tool(*command, "--encryption-key-file", wrong, code=5)
    assert digests(data) == before
    # By the output of a command it opens.
    server.arguments = ["--encryption-key-command", f"cat {key}"]
    server.start()
    with server.connect() as wire:
        check(wire, range(1000))
        assert wire.call("CONFIG", "GET", "encryption-key-*")[3] == b"(hidden)"


@pytest.mark.full
def test_a_plain_store_is_not_opened_with_a_key_but_encrypted_by_a_copy(start, encrypted, tmp_path, key):
    plain = start("--wal-size", "16mb", level=None, dir=tmp_path / "plain", memory="64mb")
    with plain.connect() as wire:
        write(wire, range(1000))
        assert plain.info("persistence")["duramen_encryption"] == "off"
    assert plain.stop() == 0
    before = digests(tmp_path / "plain")
    said = refusal(tmp_path / "plain", "--encryption-key-file", key)
    assert "is not encrypted" in said and "duramen restore" in said, said
    assert digests(tmp_path / "plain") == before
    tool("restore", tmp_path / "plain", tmp_path / "data", "--new-encryption-key-file", key)
    assert shown_in(tmp_path / "data") == []
    server = encrypted()
    with server.connect() as wire:
        check(wire, range(1000))
    assert server.stop() == 0
    tool("restore", tmp_path / "data", tmp_path / "again", "--encryption-key-file", key, "--decrypt")
    assert "wal" in shown_in(tmp_path / "again") or "frames" in shown_in(tmp_path / "again")


@pytest.mark.full
def test_the_key_is_rotated_while_the_server_runs_and_while_the_command_is_killed(encrypted, tmp_path, key):
    data = tmp_path / "data"
    server = encrypted()
    chosen = random.Random(7)
    ids = [tool("key", "show", data).split()[-1]]
    with server.connect() as wire:
        write(wire, range(2000))
    for turn in range(6):
        new = tmp_path / "key.new"
        ids.append(new_key(new))
        rotate = ["key", "rotate", data, "--encryption-key-file", key, "--new-encryption-key-file", new]
        killed = subprocess.Popen([harness.BINARY, *map(str, rotate)], stdout=subprocess.DEVNULL)
        time.sleep(chosen.uniform(0, 0.03))
        killed.kill()
        killed.wait()
        assert tool("key", "show", data).split()[-1] in ids[-2:]
        assert tool(*rotate).split()[-2] == ids[-1]
        new.rename(key)
        with server.connect() as wire:
            check(wire, range(2000), turn)
            write(wire, range(2000), turn + 1)
            # A snapshot is made with the key that the file has now.
            assert wire.call("SAVE") == b"OK"
        assert tool("key", "show", data / "snapshots" / "dump").split()[-1] == ids[-1]
        server.kill()
        server.start()
        with server.connect() as wire:
            check(wire, range(2000), turn + 1)
    server.kill()
    other = tmp_path / "other"
    new_key(other)
    dump, copy = data / "snapshots" / "dump", tmp_path / "copy"
    tool("restore", dump, copy, "--encryption-key-file", key, "--new-encryption-key-file", other)
    assert tool("fsck", copy, "--encryption-key-file", other).count("problem") == 0
    assert "Name the right one" in refusal(copy, "--encryption-key-file", key)


@pytest.mark.full
def test_the_key_is_rotated_under_load_and_both_processes_are_killed(encrypted, tmp_path, key):
    data = tmp_path / "data"
    server = encrypted()
    chosen = random.Random(9)
    used, ids = [], [tool("key", "show", data).split()[-1]]
    for turn in range(8):
        thread, acknowledged = writer(server, turn, 200_000)
        harness.wait_until(lambda acknowledged=acknowledged: acknowledged[0] > 0, "it writes")
        time.sleep(chosen.uniform(0.05, 0.3))
        old = tmp_path / f"key.{turn}"
        old.write_bytes(key.read_bytes())
        old.chmod(0o600)
        used.append(old)
        new = tmp_path / "key.new"
        id = new_key(new)
        rotate = ["key", "rotate", data, "--encryption-key-file", key, "--new-encryption-key-file", new]
        killed = subprocess.Popen([harness.BINARY, *map(str, rotate)], stdout=subprocess.DEVNULL)
        time.sleep(chosen.uniform(0, 0.03))
        if turn % 2:
            killed.kill()
        server.kill()
        killed.kill()
        killed.wait()
        thread.join()
        assert tool("key", "show", data).split()[-1] in (id, *ids[-1:])
        ids.append(id)
        tool(*rotate)
        new.rename(key)
        server.start()
        with server.connect() as wire:
            assert acknowledged[0] > 0
            check(wire, range(acknowledged[0]), turn, 300)
    server.kill()
    # No key of before opens anything any more.
    for old in used:
        assert "Name the right one" in tool("fsck", data, "--encryption-key-file", old, code=5)
    tool("fsck", data, "--encryption-key-file", key)


@pytest.mark.full
def test_tampered_bytes_are_damage(encrypted, tmp_path, key):
    server = encrypted()
    data = tmp_path / "data"
    with server.connect() as wire:
        write(wire, range(20_000))
    assert server.stop() == 0
    tool("fsck", data, "--encryption-key-file", key)
    frames = data / "frames"
    with open(frames, "r+b") as file:
        content = file.read()
        # Behind the slots, in the middle of all blocks that were written.
        written = [at for at in range(4 * MIB, len(content), 4096) if any(content[at : at + 4096])]
        at = written[len(written) // 2]
        file.seek(at + 100)
        file.write(bytes([content[at + 100] ^ 1]))
    assert "damaged" in tool("fsck", data, "--encryption-key-file", key, code=1)
    # So are two blocks that changed places.
    with open(frames, "r+b") as file:
        file.write(content)
        other = written[len(written) // 2 + 1]
        for place, source in ((at, other), (other, at)):
            file.seek(place)
            file.write(content[source : source + 512])
    assert "damaged" in tool("fsck", data, "--encryption-key-file", key, code=1)
    repaired = tmp_path / "repaired"
    tool("fsck", "--repair", data, "--out", repaired, "--encryption-key-file", key, code=1)
    assert "encrypted with the key" in tool("key", "show", repaired)
    assert shown_in(repaired) == []


@pytest.mark.full
def test_a_cluster_of_encrypted_members_recovers_one(tmp_path, key):
    made = test_member.Cluster(tmp_path, members=4, environment={"DURAMEN_ENCRYPTION_KEY_FILE": str(key)})
    try:
        made.write(SECRET.decode())
        for member in made.members:
            assert member.info("persistence")["duramen_encryption"] == "aes-256-xts"
            assert 'duramen_encryption{key="' in member.page("/metrics")
        victim = made.members[1]
        victim.kill()
        made.check(SECRET.decode())
        victim.start()
        made.check(SECRET.decode(), at=victim)
        stored = [path for path in tmp_path.rglob("wal") if path.is_file()]
        assert len(stored) == 4
        for member in made.members:
            assert shown_in(member.dir) == []
            assert plain_blocks(member.dir) == set()
        rotated = tmp_path / "key.new"
        id = new_key(rotated)
        for member in made.members:
            rotate = ("--encryption-key-file", key, "--new-encryption-key-file", rotated)
            assert id in tool("key", "rotate", member.dir, *rotate)
        os.replace(rotated, key)
        for process in [*made.members, made.coordinator]:
            process.kill()
        made.coordinator.start()
        for member in made.members:
            member.start()
        made.check(SECRET.decode())
        assert made.members[0].info("persistence")["duramen_encryption_key"] == id
    finally:
        made.close()
