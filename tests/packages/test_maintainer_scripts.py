"""The scripts of the packages by themselves, on machines that differ from the one of test_deb.py."""

import os
import subprocess

import pytest

from installing import PACKAGING

pytestmark = pytest.mark.duramen


@pytest.fixture
def programs(tmp_path):
    """A folder of programs that come before those of the machine."""
    folder = tmp_path / "programs"
    folder.mkdir()

    def put(name, script):
        (folder / name).write_text(f"#!/bin/sh\n{script}\n")
        (folder / name).chmod(0o755)

    put("deb-systemd-helper", "exit 0")
    put("getent", "exit 2")
    put.path = f"{folder}:{os.environ['PATH']}"
    return put


def sh(programs, script, *words):
    ended = subprocess.run(
        [*words, "sh", "-c", script], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env={"PATH": programs.path}, timeout=60
    )
    return ended.returncode, ended.stdout.decode()


@pytest.mark.parametrize("is_mounted", [False, True])
def test_a_purge_deletes_the_data_on_a_mount_point_too(is_mounted, tmp_path, programs):
    """`rm -rf` of a mount point fails, and the purge with it."""
    data = tmp_path / "lib"
    data.mkdir()
    script = (PACKAGING / "debian/postrm").read_text().replace("/var/lib/duramen", str(data))
    script = script.replace("/var/log/duramen", str(tmp_path / "log")).replace("/etc/duramen", str(tmp_path / "etc"))
    (tmp_path / "postrm").write_text(script)
    mount = f"mount -t tmpfs none {data} && " if is_mounted else ""
    make = f"mkdir -p {data}/data && touch {data}/data/wal {data}/.hidden"
    purge = f"{mount}{make} && sh {tmp_path}/postrm purge && ls -A {data} 2>&1"
    code, said = sh(programs, purge + " || test $? = 2", "unshare", "--user", "--map-root-user", "--mount")
    if "unshare:" in said:
        pytest.skip(said)
    assert code == 0, said
    assert "wal" not in said and "hidden" not in said
    assert ("stays" in said) == is_mounted, said


@pytest.mark.parametrize("flag", ["--kill-whom", "--kill-who"])
def test_the_rotation_of_logs_reaches_the_servers_by_any_systemd(flag, tmp_path, programs):
    """Before systemd 252 `--kill-whom` is unknown: the servers wrote on into the old file."""
    told = tmp_path / "told"
    programs("systemctl", f'case "$*" in *{flag}=main*) echo "$@" >> {told};; *) exit 1;; esac')
    text = (PACKAGING / "debian/duramen.logrotate").read_text()
    script = text.partition("postrotate\n")[2].partition("endscript")[0]
    code, said = sh(programs, script.replace("[ -d /run/systemd/system ]", "true"))
    assert (code, said) == (0, "")
    assert told.read_text() == f"kill --signal=HUP {flag}=main duramen*.service\n"
