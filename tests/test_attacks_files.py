"""Files that another user of the machine has prepared: a start says why it does not use them, and
waits for nobody."""

import os
import select
import socket
import subprocess
import time

import pytest

import harness

pytestmark = pytest.mark.duramen

# A start that waits for the other end of a pipe never ends.
REFUSED_WITHIN_S = harness.PATIENCE_S  # it waited for ever


def refused(folder, *arguments, code=5):
    """What `serve` says that does not start."""
    begun = time.monotonic()
    done = subprocess.run(
        [harness.BINARY, "serve", "--port", "0", "--admin=no", "--memory", "64mb", *map(str, arguments)],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        cwd=folder,
        env=harness.environment({}),
        timeout=REFUSED_WITHIN_S,
        check=False,
    )
    assert done.returncode == code and "panicked" not in done.stderr, (time.monotonic() - begun, done)
    return done.stderr


@pytest.fixture
def pipe(tmp_path):
    path = tmp_path / "pipe"
    os.mkfifo(path, 0o600)
    return path


@pytest.mark.parametrize("setting", ["aclfile", "audit-log", "log-file", "encryption-key-file"])
def test_a_pipe_in_place_of_a_file(tmp_path, pipe, setting):
    """The first two waited for the other end of the pipe for ever, and no signal ended that."""
    stored = ("--dir", tmp_path / "data") if setting == "encryption-key-file" else ("--level", "memory")
    said = refused(tmp_path, *stored, f"--{setting}", pipe)
    assert str(pipe) in said and ("neither a regular file" in said or "no process reads" in said), said


@pytest.mark.parametrize("setting", ["tls-cert-file", "tls-key-file", "tls-ca-cert-file"])
def test_a_pipe_in_place_of_a_certificate(tmp_path, certs, pipe, setting):
    files = {"tls-cert-file": certs / "server.crt", "tls-key-file": certs / "server.key", "tls-ca-cert-file": certs / "ca.crt"}
    given = [word for name, path in {**files, setting: pipe}.items() for word in (f"--{name}", path)]
    said = refused(tmp_path, "--level", "memory", "--tls-port", harness.free_port(), *given, code=2)
    assert str(pipe) in said and "no regular file" in said, said


def test_an_audit_log_goes_into_a_pipe_that_is_read(start, pipe):
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    server = start("--audit-log", pipe)
    with server.connect() as wire, pytest.raises(harness.ErrorReply):
        wire.call("AUTH", "nobody", "guess")
    assert select.select([reader], [], [], harness.PATIENCE_S)[0] and b"failed-login" in os.read(reader, 1 << 16)
    os.close(reader)


@pytest.mark.parametrize("how", ["signal", "SHUTDOWN"])
def test_the_last_records_are_in_the_audit_log_after_a_stop(start, tmp_path, how):
    """The process ended before the thread that writes had taken the last ones, now and then."""
    for run in range(8):
        path = tmp_path / f"audit-{run}"
        server = start("--audit-log", path, "--audit-log-classes", "write", "--audit-log-keys", "plain")
        sets = [("SET", f"k{n}", "x") for n in range(50)]
        with server.connect() as wire:
            for _ in range(40):
                assert set(wire.pipeline(sets)) == {b"OK"}
            if how == "SHUTDOWN":
                wire.send(harness.encode("SHUTDOWN"))
                assert server.end() == 0
            else:
                assert server.stop() == 0
        assert path.read_text().count('"command":"set"') == 40 * len(sets), run


@pytest.mark.parametrize("kind", ["file", "link", "pipe", "lost link", "live socket"])
def test_the_unix_socket_replaces_no_file_of_others(tmp_path, pipe, kind):
    victim, path = tmp_path / "victim", tmp_path / "socket"
    victim.write_text("precious")
    with socket.socket(socket.AF_UNIX) as listener:
        if kind == "file":
            path.write_text("precious")
        elif kind == "pipe":
            path = pipe
        elif kind == "live socket":
            listener.bind(str(path))
            listener.listen()
        else:
            path.symlink_to(victim if kind == "link" else tmp_path / "nowhere")
        said = refused(tmp_path, "--level", "memory", "--unixsocket", path)
    assert str(path) in said and "another" in said, said
    assert victim.read_text() == "precious" and os.path.lexists(path) and not (tmp_path / "nowhere").exists()


def test_a_file_of_users_that_others_may_change_is_warned_of(start, tmp_path):
    users = tmp_path / "users.acl"
    users.write_text("user default on nopass ~* &* +@all\n")
    for mode, warns in ((0o666, True), (0o644, True), (0o620, True), (0o640, False), (0o600, False)):
        users.chmod(mode)
        server = start("--aclfile", users)
        assert ("may read or change the users" in server.log()) == warns, oct(mode)
        with server.connect() as wire:
            assert wire.call("ACL", "SAVE") == b"OK"
        server.kill()
        server.log_path.unlink()
        assert users.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("output, words", [("true", "must be one line of 64"), ("cat /dev/zero", "encryption-key-command failed")])
def test_a_key_command_that_gives_no_key(tmp_path, output, words):
    assert words in refused(tmp_path, "--dir", tmp_path / "data", "--encryption-key-command", output)


@pytest.mark.parametrize("name", ["superblock", "wal", "frames", "LOCK"])
def test_a_pipe_in_place_of_a_file_of_the_store(start, tmp_path, name):
    data = tmp_path / "data"
    start("--wal-size", "16mb", dir=data, level=None, memory="64mb").stop()
    (data / name).unlink()
    os.mkfifo(data / name)
    assert "neither a regular file" in refused(tmp_path, "--dir", data, "--wal-size", "16mb")


def test_a_snapshot_replaces_no_link(start, tmp_path):
    elsewhere, data = tmp_path / "elsewhere", tmp_path / "data"
    elsewhere.mkdir()
    (elsewhere / "file").write_text("precious")
    server = start("--wal-size", "16mb", dir=data, level=None, memory="64mb")
    (data / "snapshots").mkdir(exist_ok=True)
    (data / "snapshots" / "dump").symlink_to(elsewhere)
    with server.connect() as wire, pytest.raises(harness.ErrorReply, match="symbolic link"):
        wire.call("SAVE")
    assert [path.name for path in elsewhere.iterdir()] == ["file"]
