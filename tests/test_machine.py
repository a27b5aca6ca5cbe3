"""Limits of the machine: its memory, the memory of a control group, and the rights of a user who is
not root."""

import contextlib
import os
import pathlib
import shutil
import subprocess
import tempfile
import uuid

import pytest

import harness

pytestmark = pytest.mark.duramen

GROUPS = pathlib.Path("/sys/fs/cgroup")


@contextlib.contextmanager
def control_group(limit_bytes):
    """A control group with this much memory; returns the file to which a process writes its id to
    enter it."""
    v2 = (GROUPS / "cgroup.controllers").exists()
    folder = (GROUPS if v2 else GROUPS / "memory") / f"duramen-test-{uuid.uuid4().hex}"
    try:
        folder.mkdir()
        (folder / ("memory.max" if v2 else "memory.limit_in_bytes")).write_text(str(limit_bytes))
    except OSError as error:
        if folder.exists():
            folder.rmdir()
        pytest.skip(f"no control group can be made here: {error}")
    try:
        yield folder / ("cgroup.procs" if v2 else "tasks")
    finally:
        # It is empty as soon as its last process has ended.
        harness.wait_until(lambda: removed(folder), "the control group is removed")


def removed(folder):
    with contextlib.suppress(OSError):
        folder.rmdir()
    return not folder.exists()


def refusal(folder, *arguments, **options):
    """The exit code of a server that does not start, and its message."""
    serve = ("serve", "--port", 0, "--admin=no", "--level", "memory")
    done = harness.duramen(*serve, *arguments, folder=folder, **options)
    assert done.returncode != 0 and done.stdout == "", done
    return done.returncode, done.stderr


def memory_of(server):
    with server.connect() as wire:
        names = [wire.call("CONFIG", "GET", name)[1] for name in ("memory", "maxmemory")]
    assert names[0] == names[1] == server.info("memory")["maxmemory"].encode()
    return int(names[0])


def machine_bytes():
    line = next(line for line in pathlib.Path("/proc/meminfo").read_text().splitlines() if line.startswith("MemTotal:"))
    return int(line.split()[1]) << 10


def test_more_memory_than_the_machine_has_is_refused(tmp_path):
    """It was accepted without a message, and the kernel killed the server when it was half full."""
    code, said = refusal(tmp_path, "--memory", "60tb")
    assert code == 2 and "60tb is more than" in said and "--memory 80%" in said


def test_memory_that_leaves_no_room_beside_it_is_told_of(start):
    server = start(memory=str(int(machine_bytes() * 0.97)))
    assert "the kernel may kill the server when it fills up" in server.log()
    assert memory_of(server) == int(machine_bytes() * 0.97)


def test_memory_as_a_share_of_the_machine(start, tmp_path):
    server = start(memory="5%")
    assert "may kill" not in server.log()
    assert memory_of(server) <= machine_bytes() * 0.05 < memory_of(server) + (1 << 20) + machine_bytes() * 0.01
    file = tmp_path / "share.toml"
    file.write_text('memory = "80%"\n')
    printed = subprocess.run([harness.BINARY, "config", "print", "--config", file], capture_output=True, text=True, check=True).stdout
    assert '\nmemory = "80%"\n' in "\n" + printed
    for wrong, words in [("0%", "is not a share"), ("101%", "is not a share"), ("x%", "is not a share"), ("80 percent", "or 80%")]:
        code, said = refusal(tmp_path, "--memory", wrong)
        assert code == 2 and words in said, said


def test_a_control_group_counts(start, tmp_path):
    """In a container the machine's memory is not the limit."""
    with control_group(256 << 20) as members:

        def enter():
            members.write_text(str(os.getpid()))

        code, said = refusal(tmp_path, "--memory", "40gb", preexec_fn=enter)
        assert code == 2 and "the control group of this process allows (256mb)" in said, said
        for memory, wanted, is_tight in [("80%", 204 << 20, False), ("250mb", 250 << 20, True), ("200mb", 200 << 20, False)]:
            port = harness.free_port()
            command = [harness.BINARY, "serve", "--port", str(port), "--admin=no", "--level", "memory", "--memory", memory, "--threads", "1"]
            log = tmp_path / "log"
            with open(log, "wb") as stderr:
                process = subprocess.Popen(
                    command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=stderr, preexec_fn=enter, env=harness.environment({})
                )
            try:
                assert process.stdout.readline().startswith(b"ready "), log.read_text()
                with harness.Wire(port) as wire:
                    assert int(wire.call("CONFIG", "GET", "memory")[1]) == wanted
                said = log.read_text()
                assert ("the control group of this process allows only 256mb" in said) == is_tight, said
            finally:
                process.kill()
                process.wait()
                process.stdout.close()


NOBODY = 65534


@pytest.fixture
def public():
    """A folder that every user can use, and the program in it."""
    if os.geteuid() != 0:
        pytest.skip("needs root, to be somebody else")
    folder = pathlib.Path(tempfile.mkdtemp(prefix="duramen-public-", dir="/tmp"))
    folder.chmod(0o777)
    program = folder / "duramen"
    try:
        os.link(harness.BINARY, program)
    except OSError:
        shutil.copy(harness.BINARY, program)
    yield folder
    shutil.rmtree(folder)


def as_nobody(folder, *arguments):
    command = [folder / "duramen", "serve", "--admin=no", "--memory", "64mb", "--threads", "1", *map(str, arguments)]
    done = subprocess.run(
        command, cwd=folder, user=NOBODY, group=NOBODY, extra_groups=[], capture_output=True, text=True, check=False, timeout=harness.PATIENCE_S, env={}
    )
    return done.returncode, done.stderr


def test_a_directory_of_root_is_told_of_as_such(public):
    """After one start by root, a directory was refused to all other users without a message about
    its owner."""
    with harness.Duramen(public, memory="64mb", level=None, dir=public / "data") as server:
        assert server.stop() == 0
    (public / "data").chmod(0o777)
    code, said = as_nobody(public, "--port", 0, "--dir", public / "data")
    assert code == 5 and "belongs to user 0" in said and f"chown -R {NOBODY}" in said, said
    closed = public / "closed"
    closed.mkdir(mode=0o700)
    code, said = as_nobody(public, "--port", 0, "--dir", closed / "data")
    assert code == 5 and "no permission" in said and "belongs to user 0" in said, said


def test_a_port_of_root_is_told_of_as_such(public):
    first = pathlib.Path("/proc/sys/net/ipv4/ip_unprivileged_port_start")
    if first.exists() and int(first.read_text()) <= 80:
        pytest.skip("everybody may take port 80 here")
    code, said = as_nobody(public, "--port", 80, "--level", "memory")
    assert code == 5 and "privileged users" in said and "setcap" in said, said
